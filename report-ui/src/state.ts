// What is chosen on the page. Brokers and topics go by name, so that a choice holds in every plan.

export type Choice =
    | { kind: "nothing" }
    | { kind: "topic"; topic: string }
    | { kind: "broker"; broker: string }
    | { kind: "failure"; broker: string }
    | { kind: "change"; before: number; after: number };

export interface State {
    choice: Choice;
    /** Which overlay plan is shown; all, if side by side. */
    plan: number;
    sideBySide: boolean;
    linksBy: "load" | "weight";
    layout: "places" | "forces";
}

type Listener = (state: State, before: State) => void;

export class Store {
    private readonly listeners: Listener[] = [];

    constructor(private current: State) {}

    get state(): State {
        return this.current;
    }

    set(change: Partial<State>): void {
        const before = this.current;
        this.current = { ...before, ...change };
        for (const listener of this.listeners) listener(this.current, before);
    }

    choose(choice: Choice): void {
        this.set({ choice });
    }

    onChange(listener: Listener): void {
        this.listeners.push(listener);
    }
}

// What the page shows. Brokers, topics and sites go by name, so that a choice holds in every plan and in the address.

import type { EffectRecord } from "./console";
import type { FleetRecord } from "./fleet";
import type { Graph } from "./graph";

export type Choice =
    | { kind: "nothing" }
    | { kind: "topic"; topic: string }
    | { kind: "broker"; broker: string }
    | { kind: "site"; site: string }
    | { kind: "link"; ends: [string, string] }
    | { kind: "between"; sites: [string, string] }
    | { kind: "failure"; failure: Failure }
    | { kind: "change"; before: number; after: number }
    /** Of the console: what the last operation did to the plan before it; it is not in the address. */
    | { kind: "effect"; effect: EffectRecord; before: Graph };

/** What fails: a broker, two brokers, a site or a link; the names are of brokers, or of the site. */
export interface Failure {
    of: "broker" | "pair" | "site" | "link";
    names: string[];
}

export type TableName = "brokers" | "links" | "topics";

export interface TableState {
    name: TableName;
    /** The column that rows are sorted by, and whether the largest is first. */
    sort: string;
    down: boolean;
    filter: string;
    page: number;
}

/** The part of the layout that is shown: its centre, and its width. */
export interface Window {
    x: number;
    y: number;
    width: number;
}

export interface State {
    choice: Choice;
    /** Which overlay plan is shown; all, if side by side. */
    plan: number;
    sideBySide: boolean;
    linksBy: "load" | "weight";
    layout: "places" | "forces";
    table: TableState;
    /** Null: everything is shown. */
    window: Window | null;
    /** Of the console: the running fleet; it is not in the address. */
    fleet: FleetRecord | null;
}

/** What else a choice does: move the map to what is chosen, and put the focus on its panel. */
export interface Effect {
    move?: boolean;
    focus?: boolean;
    /** The same choice with more to show: the focus stays. */
    quiet?: boolean;
}

type Listener = (state: State, before: State, effect: Effect) => void;

export class Store {
    private readonly listeners: Listener[] = [];

    constructor(private current: State) {}

    get state(): State {
        return this.current;
    }

    set(change: Partial<State>, effect: Effect = {}): void {
        const before = this.current;
        this.current = { ...before, ...change };
        for (const listener of this.listeners) listener(this.current, before, effect);
    }

    choose(choice: Choice, effect: Effect = { move: true, focus: true }): void {
        this.set({ choice }, effect);
    }

    onChange(listener: Listener): void {
        this.listeners.push(listener);
    }
}

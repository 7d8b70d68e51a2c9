// The console: the same page on a server of its own, where operations change the plan and are repaired at once.

import { button, count, el, num, percent, signed, table, type Cell } from "./dom";
import { download } from "./exports";
import type { Graph } from "./graph";
import type { Report } from "./record";
import type { Choice, Store } from "./state";

interface Measures {
    cost: number;
    links: number;
    brokers: number;
    gap: number | null;
    worstDelay?: number;
    worstHops?: number;
}

export interface EffectRecord {
    operation: string;
    added: [string, string][];
    removed: [string, string][];
    costBefore: number;
    costAfter: number;
    links: number;
    aboveLimit: string[];
    newlyAbove: string[];
}

interface SessionState {
    branch: string;
    branches: string[];
    steps: number;
    measures: Measures;
    first: Measures;
    relink: {
        state: string;
        fits: boolean;
        error: string;
        measures?: Measures;
        changed?: number;
        aboveLimit?: string[];
    } | null;
    failed: string[];
    cut: [string, string][];
    forbidden: [string, string][];
    pinned: [string, string][];
    limit: number;
    operations: string[];
    effect: EffectRecord | null;
}

const POLL = 1000; // ms between questions while something is computed
const OPERATIONS = [
    "fail broker ", "fail site ", "fail link ", "restore broker ", "restore site ", "restore link ", "move ", "weigh ",
    "pin ", "unpin ", "forbid ", "allow ", "limit ", "subscribe ", "unsubscribe ",
]; // prettier-ignore

const CHANGES = ["do", "undo", "switch", "use"]; // requests after which the plan is another one

/** The words of a text, with quotes as in a shell. */
export function shellWords(text: string): string[] {
    return [...text.matchAll(/"([^"]*)"|'([^']*)'|(\S+)/g)].map((one) => one[1] ?? one[2] ?? one[3]!);
}

/** What the page does when the server has another plan. */
export interface Page {
    /** Show a new record, with a choice. */
    mount(report: Report, choice: Choice): void;
    store(): Store;
    graph(): Graph | null;
}

export class ConsoleView {
    readonly element: HTMLElement;
    private state: SessionState;
    private readonly token: string;
    private readonly body = el("div", {});
    private readonly said = el("p", { class: "words", role: "status", id: "said" });
    private readonly failedText = el("p", { class: "bad", role: "alert", id: "refused" });
    private readonly commands = el("div", {});
    private timer = 0;
    private asked = 0;
    private inFlight = 0;
    private turn: Promise<unknown> = Promise.resolve();
    /** Whether the page shows the record of an earlier plan. */
    private outdated = false;
    private loading = new AbortController();

    constructor(
        record: { token: string; state: SessionState },
        private readonly page: Page,
    ) {
        this.token = record.token;
        this.state = record.state;
        this.element = el(
            "section",
            { class: "card", id: "what-if" },
            el("h2", {}, "What if"),
            this.form(),
            this.failedText,
            this.said,
            this.body,
        );
        this.show();
    }

    /** Buttons for what is chosen, for its panel. */
    actions(choice: Choice): HTMLElement | null {
        const act = (label: string, ...words: string[]): HTMLElement =>
            button(label, () => void this.perform("do", { words }), { class: "act" });
        const box = (...parts: HTMLElement[]): HTMLElement =>
            el("div", { class: "acts", role: "group", "aria-label": "What if" }, ...parts);
        if (choice.kind === "broker")
            return box(act("Fail this broker", "fail", "broker", choice.broker), this.mover(choice.broker));
        if (choice.kind === "site")
            return box(
                act("Fail this site", "fail", "site", choice.site),
                act("Double its weights", "weigh", choice.site, "2"),
            );
        if (choice.kind === "link")
            return box(
                act("Fail this link", "fail", "link", ...choice.ends),
                act("Forbid it", "forbid", ...choice.ends),
                act("Pin it", "pin", ...choice.ends),
            );
        return null;
    }

    private mover(broker: string): HTMLElement {
        const sites = (this.page.graph()?.interest.sites ?? []).filter(Boolean);
        const select = el(
            "select",
            { "aria-label": `Move ${broker} to a site` },
            el("option", { value: "" }, "Move to…"),
            ...sites.map((site) => el("option", { value: site }, site)),
        );
        select.addEventListener("change", () => {
            if (select.value) void this.perform("do", { words: ["move", broker, select.value] });
        });
        return sites.length > 1 ? select : el("span", {});
    }

    private form(): HTMLElement {
        const input = el("input", {
            type: "text",
            id: "operation",
            list: "operations",
            autocomplete: "off",
            spellcheck: "false",
            placeholder: "fail broker NAME",
            "aria-label": "An operation",
        });
        const list = el(
            "datalist",
            { id: "operations" },
            ...OPERATIONS.map((value) => el("option", { value })),
        );
        const submit = (event: Event): void => {
            event.preventDefault();
            const words = shellWords(input.value);
            if (words.length) void this.perform("do", { words }).then((done) => done && (input.value = ""));
        };
        return el(
            "form",
            { class: "toolbar", submit },
            input,
            list,
            el("button", { type: "submit", class: "act" }, "Do"),
        );
    }

    /** Ask the server in the background; null if it does not answer. */
    async ask(path: string): Promise<unknown> {
        try {
            const response = await fetch(path, { headers: { Authorization: `Bearer ${this.token}` } });
            return response.ok ? await response.json() : null;
        } catch {
            return null;
        }
    }

    /** The server has begun again with another plan: show it. */
    async reload(): Promise<void> {
        const asked = ++this.asked;
        const state = (await this.ask("/api/state")) as SessionState | null;
        const record = (await this.ask("/api/record")) as Report | null;
        if (state === null || record === null || asked !== this.asked) return;
        this.state = state;
        this.show();
        const { choice } = this.page.store().state;
        this.page.mount(record, choice.kind === "effect" ? { kind: "nothing" } : choice);
    }

    restartButton(): HTMLElement {
        return button("Begin again with the plan of the fleet", () => void this.perform("restart"), {
            class: "act",
            "aria-label": "Begin again with the plan of the fleet",
        });
    }

    /** Ask the server for something, after all that was asked before; true if it was done. */
    private perform(name: string, body: object = {}): Promise<boolean> {
        this.inFlight++;
        this.loading.abort(); // a record of the plan before would only hold up this request
        this.loading = new AbortController();
        const { signal } = this.loading;
        const asked = ++this.asked;
        const turn = this.turn.then(() => this.performNow(name, body));
        this.turn = turn.catch(() => false).finally(() => this.inFlight--);
        void turn.then((done) => (done && asked === this.asked ? this.load(asked, signal) : undefined));
        return turn;
    }

    private async performNow(name: string, body: object): Promise<boolean> {
        const graph = this.page.graph();
        const answer = await this.call("POST", `/api/${name}`, body);
        if (answer === null) return false;
        this.state = answer as SessionState;
        this.commands.replaceChildren(); // they were those of the plan before
        this.show();
        if (!CHANGES.includes(name)) return true;
        const { effect } = this.state;
        const shown = (name === "do" || name === "use") && effect !== null && graph !== null;
        const choice: Choice = shown ? { kind: "effect", effect, before: graph } : { kind: "nothing" };
        this.page.store().choose(choice, { focus: false });
        this.outdated = true;
        return true;
    }

    /** Load the record of the present plan, and show it. */
    private async load(asked: number, signal: AbortSignal): Promise<void> {
        if (!this.outdated) return;
        const record = (await this.call("GET", "/api/record", undefined, signal)) as Report | null;
        if (record === null || asked !== this.asked) return;
        this.outdated = false;
        this.page.mount(record, this.page.store().state.choice);
    }

    private async call(
        method: string,
        path: string,
        body?: object,
        signal: AbortSignal | null = null,
    ): Promise<unknown> {
        if (body) this.failedText.textContent = "";
        try {
            const headers = { Authorization: `Bearer ${this.token}`, "Content-Type": "application/json" };
            const options = { method, headers, signal, body: body ? JSON.stringify(body) : null };
            const response = await fetch(path, options);
            if (path === "/api/script" || path === "/api/apply") return await response.text();
            const answer = (await response.json()) as { error?: string };
            if (response.ok) return answer;
            this.failedText.textContent = answer.error ?? "The server refused it.";
        } catch {
            if (!signal?.aborted)
                this.failedText.textContent = "The server does not answer: broadloom serve has ended.";
        }
        return null;
    }

    private poll(): void {
        clearTimeout(this.timer);
        const { relink, measures, first } = this.state;
        const missing = (one: Measures | undefined): boolean =>
            one !== undefined && one.worstDelay === undefined;
        if (
            relink?.state !== "running" &&
            !missing(measures) &&
            !missing(first) &&
            !(relink?.fits && missing(relink.measures))
        )
            return;
        this.timer = window.setTimeout(() => {
            if (this.inFlight) return this.poll(); // its answer has the state
            const { asked } = this;
            void this.call("GET", "/api/state").then((answer) => {
                if (answer === null || asked !== this.asked) return;
                this.state = answer as SessionState;
                this.show();
            });
        }, POLL);
    }

    private show(): void {
        const { effect, relink, limit } = this.state;
        const kept = this.body.contains(document.activeElement) ? document.activeElement?.id : undefined;
        this.said.textContent = effect ? effectWords(effect) : "Nothing is changed yet.";
        this.body.replaceChildren(
            this.measuresTable(),
            ...this.chips(
                "Failed brokers",
                this.state.failed,
                (name) => ["restore", "broker", name],
                "Restore",
            ),
            ...this.pairs("Failed links", this.state.cut, ["restore", "link"], "Restore"),
            ...this.pairs("Forbidden links", this.state.forbidden, ["allow"], "Allow"),
            ...this.pairs("Pinned links", this.state.pinned, ["unpin"], "Unpin"),
            ...(limit ? this.limitWords(limit) : []),
            el(
                "div",
                { class: "toolbar" },
                button("Undo", () => void this.perform("undo"), {
                    class: "act",
                    id: "undo",
                    disabled: this.state.steps === 0,
                }),
                relink?.state === "running"
                    ? button("Cancel the re-link", () => void this.perform("cancel"), {
                          class: "act",
                          id: "relink",
                      })
                    : button("Find a better re-link", () => void this.perform("relink"), {
                          class: "act",
                          id: "relink",
                      }),
                relink?.state === "done" && relink.fits
                    ? button("Use the re-link", () => void this.perform("use"), { class: "act", id: "use" })
                    : null,
                this.branches(),
                button("Script", () => void this.script(), {
                    class: "act",
                    id: "script",
                    title: "Commands that give this plan again",
                }),
                button("Apply…", () => void this.showCommands(), {
                    class: "act",
                    id: "apply",
                    title: "Show the commands that put this plan into effect",
                }),
            ),
            this.commands,
        );
        if (kept) document.getElementById(kept)?.focus();
        this.poll();
    }

    private limitWords(limit: number): HTMLElement[] {
        const { effect, relink } = this.state;
        const names = (list: string[]): string =>
            `${list.slice(0, 6).join(", ")}${list.length > 6 ? ` and ${num(list.length - 6)} more` : ""}`;
        const above = effect?.aboveLimit ?? [];
        const failed = relink?.fits && relink.aboveLimit?.length ? relink.aboveLimit : [];
        return [
            el("p", { class: "words" }, `The limit is ${count(limit, "link")} on each broker.`),
            above.length
                ? el(
                      "p",
                      { class: "bad", id: "above-limit" },
                      `${count(above.length, "broker has", "brokers have")} more: ${names(above)}. ` +
                          (effect!.newlyAbove.length
                              ? `The repair could not keep the limit at ${names(effect!.newlyAbove)}; a re-link may.`
                              : "Find a better re-link to keep it."),
                  )
                : null,
            failed.length
                ? el("p", { class: "bad" }, `The re-link does not keep it at ${names(failed)}.`)
                : null,
        ].filter((one): one is HTMLParagraphElement => one !== null);
    }

    /** The commands that would put the plan into effect: the console runs none of them. */
    private async showCommands(): Promise<void> {
        const text = await this.call("GET", "/api/apply");
        if (typeof text !== "string") return;
        const pre = el(
            "pre",
            { tabindex: 0, id: "commands", "aria-label": "Commands to run yourself" },
            text,
        );
        this.commands.replaceChildren(
            el(
                "p",
                { class: "words" },
                "The console changes nothing. To put this plan into effect, run these commands:",
            ),
            pre,
        );
        pre.focus();
    }

    private async script(): Promise<void> {
        const text = await this.call("GET", "/api/script");
        if (typeof text === "string") download("what-if.sh", text, "text/x-shellscript");
    }

    private measuresTable(): HTMLElement {
        const { first, measures, relink, effect } = this.state;
        const row = (name: string, one: Measures, changed: Cell): Cell[] => [
            name,
            one.brokers,
            one.links,
            one.cost,
            one.worstDelay ?? { number: "…" },
            { number: one.gap === null ? "not proven" : percent(one.gap) },
            changed,
        ];
        const changed = effect ? effect.added.length + effect.removed.length : 0;
        const rows = [row("at the start", first, 0), row("now", measures, changed)];
        if (relink?.measures && relink.fits)
            rows.push(row("better re-link", relink.measures, relink.changed ?? 0));
        else if (relink && relink.fits)
            rows.push([
                `re-link: ${relink.state}${relink.error ? `: ${relink.error}` : ""}`,
                "",
                "",
                "",
                "",
                "",
                "",
            ]);
        return table(
            "The plan at the start, now, and after a re-link",
            ["plan", "brokers", "links", "cost", "worst delay", "above the bound", "links changed"],
            rows,
        );
    }

    private chips(
        title: string,
        names: string[],
        words: (name: string) => string[],
        label: string,
    ): HTMLElement[] {
        if (!names.length) return [];
        const each = (name: string): HTMLElement =>
            button(`${name} ×`, () => void this.perform("do", { words: words(name) }), {
                class: "name",
                "aria-label": `${label} ${name}`,
            });
        return [
            el("h3", { class: "minor" }, `${title}: ${num(names.length)}`),
            el("div", { class: "names" }, ...names.slice(0, 60).map(each)),
        ];
    }

    private pairs(title: string, pairs: [string, string][], words: string[], label: string): HTMLElement[] {
        const named = new Map(pairs.map((pair) => [pair.join(" – "), pair]));
        return this.chips(title, [...named.keys()], (name) => [...words, ...named.get(name)!], label);
    }

    private branches(): HTMLElement {
        const { branch, branches } = this.state;
        const select = (label: string, chosen: string | null, act: (name: string) => void): HTMLElement => {
            const options = branches.map((name) =>
                el("option", { value: name, selected: name === chosen }, name),
            );
            const first = chosen === null ? [el("option", { value: "" }, "Compare with…")] : [];
            const made = el("select", { "aria-label": label, id: label.toLowerCase() }, ...first, ...options);
            made.addEventListener("change", () => made.value && act(made.value));
            return made;
        };
        const name = el("input", {
            type: "text",
            id: "branch-name",
            placeholder: "new branch",
            "aria-label": "Name of a new branch",
            autocomplete: "off",
        });
        const start = (event: Event): void => {
            event.preventDefault();
            void this.perform("branch", { name: name.value });
        };
        const compare = (other: string): void => {
            const query = new URLSearchParams({ a: other, b: branch, token: this.token });
            window.open(`/compare?${query.toString()}`, "_blank", "noopener");
        };
        return el(
            "form",
            { class: "pair", submit: start },
            select("Branch", branch, (to) => void this.perform("switch", { name: to })),
            name,
            el("button", { type: "submit", class: "act" }, "Branch off"),
            branches.length > 1 ? select("Compare", null, compare) : null,
        );
    }
}

export function effectWords(effect: EffectRecord): string {
    const above = effect.newlyAbove.length
        ? ` The repair breaks the limit on links at ${count(effect.newlyAbove.length, "broker")}.`
        : "";
    return `${effect.operation}: ${count(effect.added.length, "link")} added, ${num(effect.removed.length)} removed; cost ${num(effect.costAfter)} (${signed(Number((effect.costAfter - effect.costBefore).toPrecision(4)))}).${above}`;
}

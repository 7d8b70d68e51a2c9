// The state of the page in its address, after the #: a copied address shows the same, and Back goes back.

import type { Choice, Failure, State, Store, TableName } from "./state";

const TABLES: TableName[] = ["brokers", "links", "topics"];
const FAILURES: Failure["of"][] = ["broker", "pair", "site", "link"];

/** The state as the part of an address after the #; what is as at the start is left out. */
export function toAddress(state: State, start: State): string {
    const parts = new URLSearchParams();
    const { choice, table, window } = state;
    if (choice.kind === "topic") parts.set("topic", choice.topic);
    if (choice.kind === "broker") parts.set("broker", choice.broker);
    if (choice.kind === "site") parts.set("site", choice.site);
    if (choice.kind === "link") for (const name of choice.ends) parts.append("link", name);
    if (choice.kind === "between") for (const name of choice.sites) parts.append("between", name);
    if (choice.kind === "failure") {
        parts.set("fails", choice.failure.of);
        for (const name of choice.failure.names) parts.append("name", name);
    }
    if (choice.kind === "change") parts.set("change", `${choice.before}-${choice.after}`);
    if (state.plan !== start.plan) parts.set("plan", String(state.plan));
    if (state.sideBySide) parts.set("maps", "all");
    if (state.linksBy !== start.linksBy) parts.set("links", state.linksBy);
    if (state.layout !== start.layout) parts.set("layout", state.layout);
    if (table.name !== start.table.name) parts.set("table", table.name);
    if (table.sort) parts.set("sort", `${table.down ? "-" : ""}${table.sort}`);
    if (table.filter) parts.set("filter", table.filter);
    if (table.page) parts.set("page", String(table.page + 1));
    if (window) parts.set("at", [window.x, window.y, window.width].map(String).join(","));
    return parts.toString();
}

/** The state that an address means; what it does not say, or what makes no sense, is as at the start. */
export function fromAddress(address: string, start: State, plans: number): State {
    const parts = new URLSearchParams(address.replace(/^#/, ""));
    const plan = Number(parts.get("plan") ?? start.plan);
    const sort = parts.get("sort") ?? "";
    const at = (parts.get("at") ?? "").split(",").map(Number);
    const table = parts.get("table") as TableName | null;
    return {
        choice: choiceOf(parts, plans),
        plan: Number.isInteger(plan) && plan >= 0 && plan < plans ? plan : start.plan,
        sideBySide: parts.get("maps") === "all" && plans > 1,
        linksBy: parts.get("links") === "weight" ? "weight" : start.linksBy,
        layout: parts.get("layout") === "forces" ? "forces" : start.layout,
        table: {
            name: table !== null && TABLES.includes(table) ? table : start.table.name,
            sort: sort.replace(/^-/, ""),
            down: sort.startsWith("-"),
            filter: parts.get("filter") ?? "",
            page: Math.max(0, (Number.parseInt(parts.get("page") ?? "1", 10) || 1) - 1),
        },
        window:
            at.length === 3 && at.every(Number.isFinite) && at[2]! > 0
                ? { x: at[0]!, y: at[1]!, width: at[2]! }
                : null,
        fleet: start.fleet,
    };
}

function choiceOf(parts: URLSearchParams, plans: number): Choice {
    const [topic, broker, site] = ["topic", "broker", "site"].map((name) => parts.get(name));
    const [link, between, names] = ["link", "between", "name"].map((name) => parts.getAll(name));
    const fails = parts.get("fails") as Failure["of"] | null;
    const change = /^(\d+)-(\d+)$/.exec(parts.get("change") ?? "");
    if (topic != null) return { kind: "topic", topic };
    if (broker != null) return { kind: "broker", broker };
    if (site != null) return { kind: "site", site };
    if (link!.length === 2) return { kind: "link", ends: [link![0]!, link![1]!] };
    if (between!.length === 2) return { kind: "between", sites: [between![0]!, between![1]!] };
    if (fails !== null && FAILURES.includes(fails)) {
        const wanted = fails === "pair" || fails === "link" ? 2 : 1;
        if (names!.length === wanted) return { kind: "failure", failure: { of: fails, names: names! } };
    }
    if (change && Math.max(Number(change[1]), Number(change[2])) < plans)
        return { kind: "change", before: Number(change[1]), after: Number(change[2]) };
    return { kind: "nothing" };
}

/** Keep address and state the same. Only another choice, plan or layout is a step that Back undoes. */
export function watchAddress(store: Store, start: State, plans: number, signal: AbortSignal): void {
    let shown = toAddress(store.state, start);
    let reading = false;
    store.onChange((state, before) => {
        const address = toAddress(state, start);
        if (reading || address === shown) return;
        shown = address;
        const step =
            state.choice !== before.choice ||
            state.plan !== before.plan ||
            state.layout !== before.layout ||
            state.sideBySide !== before.sideBySide ||
            state.table.name !== before.table.name;
        if (step) location.hash = address;
        else location.replace(`#${address}`);
    });
    const read = (): void => {
        const address = location.hash.replace(/^#/, "");
        if (address === shown) return;
        const state = fromAddress(address, start, plans);
        shown = toAddress(state, start);
        reading = true;
        store.set({ ...state, fleet: store.state.fleet }, { focus: true });
        reading = false;
    };
    addEventListener("hashchange", read, { signal });
}

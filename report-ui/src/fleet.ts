// The running fleet: what its controller says, asked once a second. It is only read.

import { count, el, num, table, type Cell } from "./dom";
import type { Graph } from "./graph";
import type { Choice, Store } from "./state";

/** A directed hop: from, to, whether it is up, bytes that wait, and why it is down. */
export type Hop = [string, string, boolean, number, string];

/** What console/running_fleet.py writes; only the number and the base where nothing else has changed. */
export interface FleetRecord {
    number: number;
    /** Rises when the session begins again with another plan. */
    base: number;
    /** Whether the session began with the plan that the fleet has now. */
    isBase: boolean;
    controller: string;
    file: string;
    away: { reason: string; since: string } | null;
    adopt: string;
    /** Whether the controller has ever answered; otherwise the rest is missing. */
    known: boolean;
    state: string;
    refused: string | null;
    version: number;
    groups: number;
    /** Name, state of its agent, whether the broker is up, number of subscriptions. */
    brokers: [string, string, boolean | null, number | null][];
    hops: Hop[];
    bytes: number;
    problems: string[];
    notCarried: string[];
    notCarriedCount: number;
    quarantined: string[];
    underWay: string[];
    changes: string[];
    proposal: string | null;
}

const POLL = 1000; // ms
const MOST_ROWS = 60;

/** What the view needs of the page. */
export interface FleetPage {
    ask(path: string): Promise<unknown>;
    store(): Store;
    /** The session has begun again with another plan. */
    renewed(): void;
    restart(): HTMLElement;
}

/** Links of the map by the state of their hops, and brokers that are not up. */
export function fleetState(
    fleet: FleetRecord,
    graph: Graph,
): { up: [number, number][]; down: [number, number][]; gone: number[] } {
    const pairs = new Map<string, { pair: [number, number]; up: boolean }>();
    for (const [from, to, isUp] of fleet.hops) {
        const ends = [from, to].map((name) => graph.brokerIndex.get(name) ?? -1);
        const pair: [number, number] = [Math.min(...ends), Math.max(...ends)];
        if (pair[0] < 0) continue;
        const known = pairs.get(pair.join(" "));
        if (known) known.up &&= isUp;
        else pairs.set(pair.join(" "), { pair, up: isUp });
    }
    const found = [...pairs.values()];
    const gone = fleet.brokers.filter(([, agent, isUp]) => agent !== "removed" && !(agent === "up" && isUp));
    return {
        up: found.filter(({ up }) => up).map(({ pair }) => pair),
        down: found.filter(({ up }) => !up).map(({ pair }) => pair),
        gone: gone.map(([name]) => graph.brokerIndex.get(name) ?? -1).filter((b) => b >= 0),
    };
}

export class FleetView {
    readonly element: HTMLElement;
    private readonly alert = el("p", { class: "bad", role: "alert", id: "away" });
    private readonly summary = el("p", { class: "words", role: "status", id: "fleet-summary" });
    private readonly body = el("div", {});
    private chosen: { choice: Choice; element: HTMLElement } | null = null;

    constructor(
        public record: FleetRecord,
        private readonly page: FleetPage,
    ) {
        this.element = el(
            "section",
            { class: "card", id: "fleet" },
            el("h2", {}, "The running fleet"),
            this.alert,
            this.summary,
            this.body,
        );
        this.show();
        setTimeout(() => void this.poll(), POLL);
    }

    /** What the controller says of a chosen broker or link; it stays up to date while it is shown. */
    about(choice: Choice): HTMLElement | null {
        if (choice.kind !== "broker" && choice.kind !== "link") return null;
        this.chosen = { choice, element: el("div", { class: "live" }) };
        this.tellChosen();
        return this.chosen.element;
    }

    private async poll(): Promise<void> {
        const answer = (await this.page.ask(`/api/fleet?after=${this.record.number}`)) as FleetRecord | null;
        if (answer !== null) {
            const before = this.record;
            const other = answer.number !== before.number || answer.isBase !== before.isBase;
            this.record = { ...before, ...answer };
            if (other) {
                this.show();
                this.page.store().set({ fleet: this.record });
            }
            if (answer.base !== before.base) this.page.renewed();
        }
        setTimeout(() => void this.poll(), POLL);
    }

    private show(): void {
        const { record } = this;
        const words = this.words();
        if (this.summary.textContent !== words) this.summary.textContent = words;
        const away = record.away
            ? `The controller at ${record.controller} has not answered since ${record.away.since}: ${record.away.reason}. ` +
              `${record.known ? "What is shown is from before. " : ""}It is asked again every second; messages flow on without it.`
            : record.refused
              ? `The controller orders nothing: ${record.refused}`
              : "";
        if (this.alert.textContent !== away) this.alert.textContent = away;
        const focus = this.body.contains(document.activeElement) ? document.activeElement : null;
        const label = focus?.getAttribute("aria-label") ?? null;
        this.body.replaceChildren(...(record.known ? this.parts() : []));
        if (label !== null)
            this.body.querySelector<HTMLElement>(`[aria-label="${CSS.escape(label)}"]`)?.focus();
        this.tellChosen();
    }

    private words(): string {
        const { record } = this;
        if (!record.known) return `Fleet file ${record.file}; nothing is known of it yet.`;
        const agents = record.brokers.filter(([, agent]) => agent === "up").length;
        const up = record.hops.filter((hop) => hop[2]).length;
        return (
            `${record.state === "settled" ? "Settled" : record.state === "changing" ? "Changing" : "Orders nothing"}, version ${num(record.version)}: ` +
            `${num(agents)} of ${count(record.brokers.length, "agent")} up, ${num(up)} of ${count(record.hops.length, "hop")} up, ` +
            `${count(record.bytes, "byte waits", "bytes wait")}, ${count(record.groups, "group")} of topics.`
        );
    }

    private parts(): HTMLElement[] {
        const { record } = this;
        const down = record.hops.filter((hop) => !hop[2]);
        const waiting = record.hops.filter((hop) => hop[3] > 0).sort((a, b) => b[3] - a[3]);
        const absent = record.brokers.filter(([, agent, isUp]) => !(agent === "up" && isUp));
        const hopRow = ([from, to, isUp, bytes, error]: Hop): Cell[] => [
            from,
            to,
            isUp ? "up" : "down",
            bytes,
            error,
        ];
        const hops = (caption: string, list: Hop[]): HTMLElement | null =>
            list.length
                ? table(
                      more(caption, list.length),
                      ["from", "to", "hop", "bytes waiting", "reason"],
                      list.slice(0, MOST_ROWS).map(hopRow),
                  )
                : null;
        const notCarried = `Not carried: ${num(record.notCarriedCount)}`;
        const found = [
            lines("Problems", record.problems, "bad"),
            absent.length
                ? table(
                      more("Brokers that are not up", absent.length),
                      ["broker", "agent", "broker up"],
                      absent
                          .slice(0, MOST_ROWS)
                          .map(([name, agent, isUp]) => [
                              name,
                              agent,
                              isUp === null ? "not known" : isUp ? "yes" : "no",
                          ]),
                  )
                : null,
            hops("Hops that are down", down),
            hops("Hops with bytes waiting", waiting),
            lines(notCarried, record.notCarried),
            lines("Changes under way", record.underWay),
            lines("Last changes", record.changes.slice(0, 12)),
            lines("Events that were refused", record.quarantined),
            record.proposal
                ? el(
                      "div",
                      { id: "proposal" },
                      el("h3", { class: "minor" }, "The controller proposes a better plan"),
                      el("p", { class: "words" }, `${record.proposal}. To move to it, run:`),
                      el("code", {}, record.adopt),
                  )
                : null,
            record.isBase
                ? null
                : el(
                      "div",
                      { class: "toolbar", id: "other-base" },
                      el("span", {}, "The fleet has another plan than the one that operations began with."),
                      this.page.restart(),
                  ),
        ];
        return found.filter((part): part is HTMLElement => part !== null);
    }

    private tellChosen(): void {
        if (this.chosen === null || !this.record.known) return;
        const { choice, element } = this.chosen;
        const { brokers, hops } = this.record;
        const own =
            choice.kind === "broker"
                ? hops.filter(([from, to]) => from === choice.broker || to === choice.broker)
                : choice.kind === "link"
                  ? hops.filter(([from, to]) => choice.ends.includes(from) && choice.ends.includes(to))
                  : [];
        const state = choice.kind === "broker" ? brokers.find(([name]) => name === choice.broker) : undefined;
        const words = state
            ? `Now: agent ${state[1]}, broker ${state[2] === null ? "not known" : state[2] ? "up" : "down"}, ${state[3] === null ? "subscriptions not known" : count(state[3], "subscription")}.`
            : own.length
              ? "Now:"
              : "No hop of it is open now.";
        element.replaceChildren(
            el("p", { class: "words" }, words),
            ...(own.length
                ? [
                      table(
                          "Hops now",
                          ["from", "to", "hop", "bytes"],
                          own
                              .slice(0, MOST_ROWS)
                              .map(([from, to, isUp, bytes]) => [from, to, isUp ? "up" : "down", bytes]),
                      ),
                  ]
                : []),
        );
    }
}

const more = (caption: string, n: number): string =>
    n > MOST_ROWS ? `${caption}: the first ${MOST_ROWS} of ${num(n)}` : `${caption}: ${num(n)}`;

function lines(title: string, list: string[], kind?: string): HTMLElement | null {
    if (!list.length) return null;
    return el(
        "div",
        {},
        el("h3", { class: "minor" }, title),
        el("ul", { class: kind ? `rows ${kind}` : "rows" }, ...list.map((text) => el("li", {}, text))),
    );
}

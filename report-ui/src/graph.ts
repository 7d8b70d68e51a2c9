// An overlay plan to ask things of: who is linked to whom, what a topic's part of it is, what a failure breaks.

import type { InterestRecord, OverlayRecord, Report } from "./record";

export interface Neighbour {
    broker: number;
    link: number;
}

export class Graph {
    readonly near: Neighbour[][];
    readonly topicsOf: number[][];
    readonly brokerIndex: Map<string, number>;
    readonly topicIndex: Map<string, number>;
    private readonly marked: Int32Array;
    private mark = 0;

    constructor(
        readonly plan: OverlayRecord,
        readonly interest: InterestRecord,
    ) {
        const n = interest.brokers.length;
        this.near = Array.from({ length: n }, () => []);
        this.topicsOf = Array.from({ length: n }, () => []);
        for (let e = 0; e < plan.links.u.length; e++) {
            const [u, v] = this.ends(e);
            this.near[u]!.push({ broker: v, link: e });
            this.near[v]!.push({ broker: u, link: e });
        }
        for (let t = 0; t < interest.topics.length; t++)
            for (const b of this.members(t)) this.topicsOf[b]!.push(t);
        this.brokerIndex = new Map(interest.brokers.map((name, i) => [name, i]));
        this.topicIndex = new Map(interest.topics.map((name, i) => [name, i]));
        this.marked = new Int32Array(n);
    }

    get brokerCount(): number {
        return this.interest.brokers.length;
    }

    get linkCount(): number {
        return this.plan.links.u.length;
    }

    ends(link: number): [number, number] {
        return [this.plan.links.u[link]!, this.plan.links.v[link]!];
    }

    site(broker: number): string {
        return this.interest.sites[this.interest.siteOf[broker] ?? -1] ?? "";
    }

    members(topic: number): number[] {
        return this.interest.members.slice(this.interest.start[topic], this.interest.start[topic + 1]);
    }

    /** The links among a topic's subscribers. */
    subOverlay(topic: number): number[] {
        const members = this.members(topic);
        const mark = this.remember(members);
        const links: number[] = [];
        for (const u of members)
            for (const { broker, link } of this.near[u]!)
                if (u < broker && this.marked[broker] === mark) links.push(link);
        return links;
    }

    /** The least tree of a topic's sub-overlay, by Kruskal's algorithm: cheap links first, then earlier ones. */
    tree(topic: number): number[] {
        const { weight } = this.plan.links;
        const sets = new Sets(this.brokerCount);
        return this.subOverlay(topic)
            .sort((a, b) => weight[a]! - weight[b]! || a - b)
            .filter((link) => sets.join(...this.ends(link)));
    }

    /** The topics whose other subscribers are in more components without the broker. */
    brokenWithout(broker: number): number[] {
        return this.topicsOf[broker]!.filter(
            (topic) => this.partsWithout(topic, broker) > this.partsWithout(topic, -1),
        );
    }

    private partsWithout(topic: number, gone: number): number {
        const sets = new Sets(this.brokerCount);
        let parts = this.members(topic).filter((b) => b !== gone).length;
        for (const link of this.subOverlay(topic)) {
            const [u, v] = this.ends(link);
            if (u !== gone && v !== gone && sets.join(u, v)) parts--;
        }
        return parts;
    }

    private remember(members: number[]): number {
        this.mark++;
        for (const b of members) this.marked[b] = this.mark;
        return this.mark;
    }
}

/** Disjoint sets of numbers. */
class Sets {
    private readonly parent: Int32Array;

    constructor(size: number) {
        this.parent = Int32Array.from({ length: size }, (_, i) => i);
    }

    /** Make one set of two; false if they are one already. */
    join(a: number, b: number): boolean {
        const [i, j] = [this.root(a), this.root(b)];
        this.parent[i] = j;
        return i !== j;
    }

    private root(i: number): number {
        while (this.parent[i] !== i) {
            this.parent[i] = this.parent[this.parent[i]!]!;
            i = this.parent[i]!;
        }
        return i;
    }
}

export interface LinkChange {
    added: [string, string][];
    removed: [string, string][];
    kept: number;
}

/** What to do to get from one plan to another: links are matched by the names of their ends. */
export function linkChange(before: Graph, after: Graph): LinkChange {
    const [old, now] = [namedLinks(before), namedLinks(after)];
    return {
        added: [...now].filter(([key]) => !old.has(key)).map(([, link]) => link),
        removed: [...old].filter(([key]) => !now.has(key)).map(([, link]) => link),
        kept: [...now.keys()].filter((key) => old.has(key)).length,
    };
}

function namedLinks(graph: Graph): Map<string, [string, string]> {
    const names = graph.interest.brokers;
    const links = new Map<string, [string, string]>();
    for (let e = 0; e < graph.linkCount; e++) {
        const [u, v] = graph.ends(e).map((b) => names[b]!) as [string, string];
        links.set(JSON.stringify(u < v ? [u, v] : [v, u]), [u, v]);
    }
    return links;
}

export function graphs(report: Report): Graph[] {
    return report.plans.flatMap((plan) =>
        plan.kind === "overlay" ? [new Graph(plan, report.interests[plan.interest]!)] : [],
    );
}

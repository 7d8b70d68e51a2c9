// An overlay plan to ask things of: links of a broker, the part of a topic, what a failure disconnects.

import type { InterestRecord, OverlayRecord, Report, WeightsRecord } from "./record";

export interface Neighbour {
    broker: number;
    link: number;
}

/** Brokers and links that fail together. */
export interface Outage {
    brokers: Set<number>;
    links: Set<number>;
}

const NONE: Outage = { brokers: new Set(), links: new Set() };

export class Graph {
    readonly brokerIndex: Map<string, number>;
    readonly topicIndex: Map<string, number>;
    readonly siteIndex: Map<string, number>;
    /** The weight of a pair of brokers; null where the page does not know it. */
    readonly weightOf: ((u: number, v: number) => number) | null;
    // Neighbours and topics of broker b: the entries from first[b] to first[b + 1].
    private readonly first: Int32Array;
    private readonly others: Int32Array;
    private readonly via: Int32Array;
    private readonly firstTopic: Int32Array;
    private readonly topicList: Int32Array;
    private readonly memberList: Int32Array;
    private readonly marked: Int32Array;
    private readonly parent: Int32Array;
    private mark = 0;
    private ranks: Int32Array | null = null;
    private lastTree: { topic: number; links: Int32Array; tree: number[] } | null = null;

    constructor(
        readonly plan: OverlayRecord,
        readonly interest: InterestRecord,
    ) {
        const n = interest.brokers.length;
        const { u, v } = plan.links;
        this.first = new Int32Array(n + 1);
        for (let e = 0; e < u.length; e++) {
            this.first[u[e]! + 1]!++;
            this.first[v[e]! + 1]!++;
        }
        for (let b = 0; b < n; b++) this.first[b + 1]! += this.first[b]!;
        this.others = new Int32Array(2 * u.length);
        this.via = new Int32Array(2 * u.length);
        const next = this.first.slice();
        for (let e = 0; e < u.length; e++) {
            for (const [from, to] of [
                [u[e]!, v[e]!],
                [v[e]!, u[e]!],
            ] as const) {
                this.others[next[from]!] = to;
                this.via[next[from]!++] = e;
            }
        }
        this.firstTopic = new Int32Array(n + 1);
        for (const b of interest.members) this.firstTopic[b + 1]!++;
        for (let b = 0; b < n; b++) this.firstTopic[b + 1]! += this.firstTopic[b]!;
        this.topicList = new Int32Array(interest.members.length);
        const free = this.firstTopic.slice();
        for (let t = 0; t < interest.topics.length; t++)
            for (let i = interest.start[t]!; i < interest.start[t + 1]!; i++)
                this.topicList[free[interest.members[i]!]!++] = t;
        this.brokerIndex = new Map(interest.brokers.map((name, i) => [name, i]));
        this.topicIndex = new Map(interest.topics.map((name, i) => [name, i]));
        this.siteIndex = new Map(
            interest.sites.flatMap((name, i) => (name ? [[name, i] as [string, number]] : [])),
        );
        this.weightOf = weightFunction(plan.weights);
        this.memberList = Int32Array.from(interest.members);
        this.marked = new Int32Array(n);
        this.parent = new Int32Array(n);
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

    degree(broker: number): number {
        return this.first[broker + 1]! - this.first[broker]!;
    }

    near(broker: number): Neighbour[] {
        const all: Neighbour[] = [];
        for (let i = this.first[broker]!; i < this.first[broker + 1]!; i++)
            all.push({ broker: this.others[i]!, link: this.via[i]! });
        return all;
    }

    /** The link between two brokers, or -1. */
    linkBetween(u: number, v: number): number {
        for (let i = this.first[u]!; i < this.first[u + 1]!; i++)
            if (this.others[i] === v) return this.via[i]!;
        return -1;
    }

    topicsOf(broker: number): number[] {
        return Array.from(this.topicList.subarray(this.firstTopic[broker]!, this.firstTopic[broker + 1]!));
    }

    topicCount(broker: number): number {
        return this.firstTopic[broker + 1]! - this.firstTopic[broker]!;
    }

    /** The topics that both brokers subscribe to. */
    common(u: number, v: number): number[] {
        const ofU = new Set(this.topicsOf(u));
        return this.topicsOf(v).filter((topic) => ofU.has(topic));
    }

    site(broker: number): string {
        return this.interest.sites[this.interest.siteOf[broker] ?? -1] ?? "";
    }

    brokersOf(site: number): number[] {
        const found: number[] = [];
        this.interest.siteOf.forEach((other, b) => other === site && found.push(b));
        return found;
    }

    members(topic: number): number[] {
        return this.interest.members.slice(this.interest.start[topic], this.interest.start[topic + 1]);
    }

    memberCount(topic: number): number {
        return this.interest.start[topic + 1]! - this.interest.start[topic]!;
    }

    /** The links among a topic's subscribers, light ones first, then earlier ones. */
    subOverlay(topic: number): Int32Array {
        return this.treeAndLinks(topic).links;
    }

    /** The minimum spanning tree of a topic's sub-overlay, by Kruskal's algorithm. */
    tree(topic: number): number[] {
        return this.treeAndLinks(topic).tree;
    }

    private treeAndLinks(topic: number): { links: Int32Array; tree: number[] } {
        if (this.lastTree?.topic === topic) return this.lastTree;
        const { rank, order } = this.byWeight();
        const { u, v } = this.plan.links;
        const members = this.membersAt(topic);
        const mark = this.remember(members);
        const found: number[] = [];
        for (const b of members) {
            this.parent[b] = b;
            for (let i = this.first[b]!; i < this.first[b + 1]!; i++)
                if (b < this.others[i]! && this.marked[this.others[i]!] === mark)
                    found.push(rank[this.via[i]!]!);
        }
        const links = Int32Array.from(found).sort();
        const tree: number[] = [];
        for (let i = 0; i < links.length; i++) {
            const link = order[links[i]!]!;
            links[i] = link;
            if (this.join(u[link]!, v[link]!)) tree.push(link);
        }
        this.lastTree = { topic, links, tree };
        return this.lastTree;
    }

    /** Links by weight, then by number: their order, and the rank of each. Found once. */
    byWeight(): { rank: Int32Array; order: Int32Array } {
        const m = this.linkCount;
        if (this.ranks === null) {
            const { weight } = this.plan.links;
            const order = Int32Array.from({ length: m }, (_, e) => e);
            order.sort((a, b) => weight[a]! - weight[b]! || a - b);
            this.ranks = new Int32Array(2 * m);
            this.ranks.set(order, m);
            for (let i = 0; i < m; i++) this.ranks[order[i]!] = i;
        }
        return { rank: this.ranks.subarray(0, m), order: this.ranks.subarray(m) };
    }

    /** Whether a link is in the tree of a topic: lighter links do not connect its ends. */
    isInTree(topic: number, link: number): boolean {
        const [u, v] = this.ends(link);
        this.remember(this.membersAt(topic));
        return !this.reaches(u, v, (other) => this.before(other, link) < 0);
    }

    /** Whether a topic needs a link: without it its ends are not connected in the topic's sub-overlay. */
    isNeeded(topic: number, link: number): boolean {
        const [u, v] = this.ends(link);
        this.remember(this.membersAt(topic));
        return !this.reaches(u, v, (other) => other !== link);
    }

    /** The brokers of a topic that one of them reaches without a link. */
    sideOf(topic: number, broker: number, without: number): number[] {
        this.remember(this.membersAt(topic));
        const seen: number[] = [];
        this.reaches(broker, -1, (other) => other !== without, seen);
        return seen;
    }

    /** The topics that an outage disconnects: their other brokers are in more parts than before. */
    brokenBy(outage: Outage): number[] {
        const touched = new Set<number>();
        for (const b of outage.brokers) for (const topic of this.topicsOf(b)) touched.add(topic);
        for (const link of outage.links)
            for (const topic of this.common(...this.ends(link))) touched.add(topic);
        return [...touched].sort((a, b) => a - b).filter((topic) => this.isBrokenBy(topic, outage));
    }

    /** Whether an outage disconnects a topic. Of a connected topic it is enough that the neighbours of what fails still
     * reach each other. */
    private isBrokenBy(topic: number, outage: Outage): boolean {
        const gone = [...outage.brokers];
        if (gone.length === 0 || gone.length > 2 || this.plan.topics.hops[topic] == null)
            return this.partCount(topic, outage) > this.partsBefore(topic);
        const mark = this.remember(this.membersAt(topic));
        for (const b of gone) this.marked[b] = 0;
        const around = new Set<number>();
        for (const b of gone)
            for (let i = this.first[b]!; i < this.first[b + 1]!; i++)
                if (this.marked[this.others[i]!] === mark) around.add(this.others[i]!);
        if (around.size < 2) return false;
        const [start] = around;
        return !this.reachesAll(start!, around);
    }

    /** The number of parts of a topic: one if the plan knows its longest path. */
    private partsBefore(topic: number): number {
        return this.plan.topics.hops[topic] == null ? this.partCount(topic) : 1;
    }

    partCount(topic: number, outage: Outage = NONE): number {
        return this.unite(topic, outage).parts;
    }

    /** The brokers of a topic that are connected to each other, without those of an outage; the largest part first. */
    parts(topic: number, outage: Outage = NONE): number[][] {
        const { members } = this.unite(topic, outage);
        const parts = new Map<number, number[]>();
        for (const b of members) {
            const root = this.root(b);
            (parts.get(root) ?? parts.set(root, []).get(root)!).push(b);
        }
        return [...parts.values()].sort((a, b) => b.length - a.length || a[0]! - b[0]!);
    }

    private unite(topic: number, outage: Outage): { members: Int32Array; parts: number } {
        const all = this.membersAt(topic);
        const members = outage.brokers.size ? all.filter((b) => !outage.brokers.has(b)) : all;
        const mark = this.remember(members);
        for (const b of members) this.parent[b] = b;
        const cut = outage.links.size > 0;
        let parts = members.length;
        for (const u of members) {
            if (parts === 1) break;
            for (let i = this.first[u]!; i < this.first[u + 1]!; i++) {
                const v = this.others[i]!;
                if (u > v || this.marked[v] !== mark || (cut && outage.links.has(this.via[i]!))) continue;
                if (this.join(u, v)) parts--;
            }
        }
        return { members, parts };
    }

    private membersAt(topic: number): Int32Array {
        return this.memberList.subarray(this.interest.start[topic]!, this.interest.start[topic + 1]!);
    }

    /** Whether one broker reaches another over links that are allowed, among the remembered brokers. */
    private reaches(
        from: number,
        to: number,
        allowed: (link: number) => boolean,
        seen: number[] = [],
    ): boolean {
        const mark = this.mark;
        this.marked[from] = -mark;
        seen.push(from);
        for (let at = 0; at < seen.length; at++) {
            const u = seen[at]!;
            for (let i = this.first[u]!; i < this.first[u + 1]!; i++) {
                const v = this.others[i]!;
                if (this.marked[v] !== mark || !allowed(this.via[i]!)) continue;
                if (v === to) return true;
                this.marked[v] = -mark;
                seen.push(v);
            }
        }
        return false;
    }

    /** Whether one broker reaches all others of a set among the remembered brokers. */
    private reachesAll(from: number, wanted: Set<number>): boolean {
        const mark = this.mark;
        const seen = [from];
        let left = wanted.size - 1;
        this.marked[from] = -mark;
        for (let at = 0; at < seen.length && left > 0; at++) {
            const u = seen[at]!;
            for (let i = this.first[u]!; i < this.first[u + 1]!; i++) {
                const v = this.others[i]!;
                if (this.marked[v] !== mark) continue;
                this.marked[v] = -mark;
                if (wanted.has(v)) left--;
                seen.push(v);
            }
        }
        return left === 0;
    }

    private before(a: number, b: number): number {
        const { weight } = this.plan.links;
        return weight[a]! - weight[b]! || a - b;
    }

    /** Make one set of two; false if they are one already. */
    private join(a: number, b: number): boolean {
        const i = this.root(a);
        const j = this.root(b);
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

    private remember(members: Int32Array): number {
        this.mark++;
        for (let i = 0; i < members.length; i++) this.marked[members[i]!] = this.mark;
        return this.mark;
    }
}

function weightFunction(record: WeightsRecord | null): ((u: number, v: number) => number) | null {
    if (record === null) return null;
    if (record.kind === "uniform") return () => 1;
    if (record.kind === "euclidean")
        return (u, v) => Math.hypot(...record.points[u]!.map((at, axis) => at - record.points[v]![axis]!));
    if (record.kind === "dense") return (u, v) => record.rows[Math.max(u, v)]![Math.min(u, v)]!;
    const { site, table, inner, outer } = record;
    if (table.length) return (u, v) => table[site[u]!]![site[v]!]!;
    return (u, v) => (site[u] === site[v] ? inner : outer);
}

export type NamedLink = [string, string];

/** What changes from one plan to another: links and brokers are matched by their names. */
export interface PlanChange {
    added: { link: NamedLink; weight: number }[];
    removed: { link: NamedLink; weight: number }[];
    kept: number;
    left: string[];
    joined: string[];
}

const changesKnown = new WeakMap<Graph, WeakMap<Graph, PlanChange>>();

export function planChange(before: Graph, after: Graph): PlanChange {
    const ofBefore = changesKnown.get(before) ?? new WeakMap<Graph, PlanChange>();
    changesKnown.set(before, ofBefore);
    const known = ofBefore.get(after) ?? changeOf(before, after);
    ofBefore.set(after, known);
    return known;
}

function changeOf(before: Graph, after: Graph): PlanChange {
    const missing = (one: Graph, other: Graph): { link: NamedLink; weight: number }[] => {
        const numbers = one.interest.brokers.map((name) => other.brokerIndex.get(name) ?? -1);
        const found: { link: NamedLink; weight: number }[] = [];
        for (let e = 0; e < one.linkCount; e++) {
            const [u, v] = one.ends(e);
            const there = Math.min(numbers[u]!, numbers[v]!) >= 0;
            if (!there || other.linkBetween(numbers[u]!, numbers[v]!) < 0)
                found.push({
                    link: [one.interest.brokers[u]!, one.interest.brokers[v]!],
                    weight: one.plan.links.weight[e]!,
                });
        }
        return found;
    };
    const added = missing(after, before);
    return {
        added,
        removed: missing(before, after),
        kept: after.linkCount - added.length,
        left: before.interest.brokers.filter((name) => !after.brokerIndex.has(name)),
        joined: after.interest.brokers.filter((name) => !before.brokerIndex.has(name)),
    };
}

export function graphs(report: Report): Graph[] {
    return report.plans.flatMap((plan) =>
        plan.kind === "overlay" ? [new Graph(plan, report.interests[plan.interest]!)] : [],
    );
}

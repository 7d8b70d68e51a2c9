// Why a link is there, what its loss would cost, and which links would reconnect topics after a failure.

import type { Graph, Outage } from "./graph";

const MOST_PAIRS = 250_000; // pairs of brokers that are compared as alternatives of a link
const MOST_ALTERNATIVES = 6;
const MOST_MEMBERS = 40; // brokers of a part that are tried as ends of a new link
const MOST_CANDIDATES = 60_000;

export interface WeightedPair {
    u: number;
    v: number;
    weight: number;
}

export interface Explanation {
    /** Topics that both ends subscribe to; of these, those whose tree uses the link; of these, those that need it. */
    common: number[];
    carried: number[];
    needed: number[];
    /** The lightest other links that would connect all topics that need it, ascending; null if weights are not known. */
    alternatives: WeightedPair[] | null;
    /** Whether only links at its own ends were compared, because there are too many others. */
    atItsEnds: boolean;
}

export function explain(graph: Graph, link: number): Explanation {
    const common = graph.common(...graph.ends(link));
    const carried = common.filter((topic) => graph.isInTree(topic, link));
    const needed = carried.filter((topic) => graph.isNeeded(topic, link));
    if (!needed.length || graph.weightOf === null)
        return { common, carried, needed, alternatives: needed.length ? null : [], atItsEnds: false };
    const [u, v] = graph.ends(link);
    const inAll = (end: number): number[] => {
        const times = new Map<number, number>();
        for (const topic of needed)
            for (const b of graph.sideOf(topic, end, link)) times.set(b, (times.get(b) ?? 0) + 1);
        return [...times].filter(([, n]) => n === needed.length).map(([b]) => b);
    };
    const [left, right] = [inAll(u), inAll(v)];
    const atItsEnds = left.length * right.length > MOST_PAIRS;
    const best: WeightedPair[] = [];
    const consider = (x: number, y: number): void => {
        if (x === u && y === v) return;
        const weight = graph.weightOf!(x, y);
        if (best.length === MOST_ALTERNATIVES && weight >= best[best.length - 1]!.weight) return;
        const at = best.findIndex((one) => one.weight > weight);
        best.splice(at < 0 ? best.length : at, 0, { u: x, v: y, weight });
        best.length = Math.min(best.length, MOST_ALTERNATIVES);
    };
    if (atItsEnds) {
        for (const y of right) consider(u, y);
        for (const x of left) if (x !== u) consider(x, v);
    } else for (const x of left) for (const y of right) consider(x, y);
    return { common, carried, needed, alternatives: best, atItsEnds };
}

/** Links that reconnect the topics that an outage disconnects, chosen greedily: most parts joined per weight.
 *
 * Null where weights are not known. Topics that no link can reconnect stay as they are. */
export function reconnect(graph: Graph, broken: number[], outage: Outage): WeightedPair[] | null {
    if (graph.weightOf === null) return null;
    const partOf = new Map<number, Map<number, number>>(); // topic -> broker -> part
    const ends = new Map<number, [number, number, number[]]>(); // pair -> its ends, and the topics it can join
    for (const topic of broken) {
        const parts = graph.parts(topic, outage);
        partOf.set(topic, new Map(parts.flatMap((part, i) => part.map((b) => [b, i] as [number, number]))));
        const tried = parts.map((part) =>
            [...part].sort((a, b) => graph.topicCount(b) - graph.topicCount(a)).slice(0, MOST_MEMBERS),
        );
        for (let i = 1; i < tried.length; i++)
            for (let j = 0; j < i; j++)
                for (const x of tried[i]!)
                    for (const y of tried[j]!) {
                        const key = Math.min(x, y) * graph.brokerCount + Math.max(x, y);
                        const known = ends.get(key);
                        if (known) known[2].push(topic);
                        else if (ends.size < MOST_CANDIDATES)
                            ends.set(key, [Math.min(x, y), Math.max(x, y), [topic]]);
                    }
    }
    const chosen: WeightedPair[] = [];
    const joins = ([u, v, topics]: [number, number, number[]]): number =>
        topics.filter((topic) => partOf.get(topic)!.get(u) !== partOf.get(topic)!.get(v)).length;
    let pairs = [...ends.values()];
    for (;;) {
        let [best, score] = [null as WeightedPair | null, 0];
        pairs = pairs.filter((pair) => {
            const joined = joins(pair);
            const weight = graph.weightOf!(pair[0], pair[1]);
            if (joined / weight > score)
                [best, score] = [{ u: pair[0], v: pair[1], weight }, joined / weight];
            return joined > 0;
        });
        const found = best as WeightedPair | null;
        if (found === null) return chosen;
        chosen.push(found);
        for (const parts of partOf.values()) {
            const [from, to] = [parts.get(found.u), parts.get(found.v)];
            if (from === undefined || to === undefined || from === to) continue;
            for (const [b, part] of parts) if (part === from) parts.set(b, to);
        }
    }
}

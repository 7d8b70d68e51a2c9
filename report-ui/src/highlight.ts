// What stands out on the map for what is chosen: links and brokers, in the order in which they are drawn.

import type { EffectRecord } from "./console";
import { fleetState, type FleetRecord } from "./fleet";
import { reconnect } from "./explain";
import { planChange, type Graph, type NamedLink, type Outage } from "./graph";
import type { Choice, Failure } from "./state";
import type { Colours } from "./theme";

const MOST_AT_ONCE = 2000; // brokers up to which a repair is found before the panel is shown

export interface Strokes {
    pairs: [number, number][];
    colour: keyof Colours;
    width: number;
    dash?: number[];
}

export interface Dots {
    brokers: number[];
    colour: keyof Colours;
    labels?: boolean;
    crossed?: boolean;
}

/** A broker of another plan that the shown one does not have. */
export interface Ghost {
    name: string;
    graph: Graph;
    broker: number;
    /** Brokers of the shown plan that it was linked to. */
    near: number[];
}

export interface Highlight {
    strokes: Strokes[];
    dots: Dots[];
    /** They have the numbers after those of the plan's brokers. */
    ghosts: Ghost[];
}

/** What stands out, or null where everything is as it is. */
export function highlight(
    choice: Choice,
    graph: Graph,
    all: Graph[],
    fleet: FleetRecord | null,
): Highlight | null {
    const found =
        choice.kind === "nothing" && fleet?.known ? ofFleet(graph, fleet) : parts(choice, graph, all);
    return found && { ghosts: [], ...found };
}

type Parts = Omit<Highlight, "ghosts"> & { ghosts?: Ghost[] };

function parts(choice: Choice, graph: Graph, all: Graph[]): Parts | null {
    const broker = (name: string): number => graph.brokerIndex.get(name) ?? -1;
    if (choice.kind === "topic") return ofTopic(graph, graph.topicIndex.get(choice.topic));
    if (choice.kind === "broker") return ofBroker(graph, broker(choice.broker));
    if (choice.kind === "site") return ofSite(graph, graph.siteIndex.get(choice.site));
    if (choice.kind === "link") return ofLink(broker(choice.ends[0]), broker(choice.ends[1]));
    if (choice.kind === "between") return ofPair(graph, choice.sites);
    if (choice.kind === "failure") return ofFailure(graph, choice.failure);
    if (choice.kind === "change" && [all[choice.before], all[choice.after]].includes(graph))
        return ofChange(all[choice.before]!, all[choice.after]!, graph);
    if (choice.kind === "effect") return ofEffect(graph, choice.before, choice.effect);
    return null;
}

const endsOf = (graph: Graph, links: number[]): [number, number][] => links.map((link) => graph.ends(link));

/** Hops that are up and down, and brokers that are not up. */
function ofFleet(graph: Graph, fleet: FleetRecord): Parts {
    const { up, down, gone } = fleetState(fleet, graph);
    return {
        strokes: [
            { pairs: up, colour: "good", width: 1.4 },
            { pairs: down, colour: "bad", width: 2, dash: [5, 4] },
        ],
        dots: [
            { brokers: [...new Set([...up, ...down].flat())], colour: "good" },
            { brokers: gone, colour: "bad", labels: gone.length < 6, crossed: true },
        ],
    };
}

function ofTopic(graph: Graph, topic: number | undefined): Parts | null {
    if (topic === undefined) return null;
    const tree = new Set(graph.tree(topic));
    const spare = Array.from(graph.subOverlay(topic)).filter((link) => !tree.has(link));
    const connected = graph.plan.topics.hops[topic] != null;
    const [largest, ...apart] = connected ? [graph.members(topic)] : graph.parts(topic);
    return {
        strokes: [
            { pairs: endsOf(graph, spare), colour: "accent", width: 0.8, dash: [3, 3] },
            { pairs: endsOf(graph, [...tree]), colour: "accent", width: 2 },
        ],
        dots: [
            { brokers: largest ?? [], colour: "accent" },
            { brokers: apart.flat(), colour: "bad" },
        ],
    };
}

function ofBroker(graph: Graph, broker: number): Parts | null {
    if (broker < 0) return null;
    const near = graph.near(broker);
    return {
        strokes: [{ pairs: near.map((other) => [broker, other.broker]), colour: "accent", width: 1.6 }],
        dots: [
            { brokers: near.map((other) => other.broker), colour: "accent" },
            { brokers: [broker], colour: "ink", labels: true },
        ],
    };
}

function ofSite(graph: Graph, site: number | undefined): Parts | null {
    if (site === undefined) return null;
    const inside = graph.brokersOf(site);
    const links = [...new Set(inside.flatMap((b) => graph.near(b).map(({ link }) => link)))];
    return {
        strokes: [{ pairs: endsOf(graph, links), colour: "accent", width: 1.2 }],
        dots: [{ brokers: inside, colour: "ink" }],
    };
}

function ofLink(u: number, v: number): Parts | null {
    if (u < 0 || v < 0) return null;
    return {
        strokes: [{ pairs: [[u, v]], colour: "accent", width: 3 }],
        dots: [{ brokers: [u, v], colour: "ink", labels: true }],
    };
}

/** The links between two sites, by number. */
export function linksBetween(graph: Graph, names: [string, string]): number[] {
    const [a, b] = names.map((name) => graph.siteIndex.get(name) ?? -1) as [number, number];
    const { siteOf } = graph.interest;
    const { u, v } = graph.plan.links;
    const found: number[] = [];
    for (let e = 0; e < graph.linkCount; e++) {
        const [from, to] = [siteOf[u[e]!], siteOf[v[e]!]];
        if ((from === a && to === b) || (from === b && to === a)) found.push(e);
    }
    return found;
}

function ofPair(graph: Graph, sites: [string, string]): Parts {
    const links = linksBetween(graph, sites);
    return {
        strokes: [{ pairs: endsOf(graph, links), colour: "accent", width: 1.6 }],
        dots: [{ brokers: [...new Set(endsOf(graph, links).flat())], colour: "accent" }],
    };
}

/** The brokers and links that fail; null where the plan does not have them. */
export function outageOf(graph: Graph, { of, names }: Failure): Outage | null {
    if (of === "site") {
        const site = graph.siteIndex.get(names[0]!);
        return site === undefined ? null : { brokers: new Set(graph.brokersOf(site)), links: new Set() };
    }
    const brokers = names.map((name) => graph.brokerIndex.get(name) ?? -1);
    if (Math.min(...brokers) < 0) return null;
    if (of !== "link") return { brokers: new Set(brokers), links: new Set() };
    const link = graph.linkBetween(brokers[0]!, brokers[1]!);
    return link < 0 ? null : { brokers: new Set(), links: new Set([link]) };
}

export interface Repair {
    added: [number, number][];
    /** Whether maintenance found it when the page was made; otherwise the page chose the links itself. */
    maintained: boolean;
}

const repairs = new WeakMap<Graph, Map<string, Repair | null>>();

/** The links that reconnect everything after a failure; null where they cannot be known, undefined where they take long
 * to find and `later` is called when they are known. */
export function repairOf(
    graph: Graph,
    failure: Failure,
    broken: number[],
    later: (() => void) | null = null,
): Repair | null | undefined {
    const known = repairs.get(graph) ?? new Map<string, Repair | null>();
    repairs.set(graph, known);
    const key = JSON.stringify(failure);
    if (!known.has(key)) {
        const made = plannedRepair(graph, failure);
        if (made) known.set(key, made);
        else if (graph.brokerCount <= MOST_AT_ONCE) known.set(key, findRepair(graph, failure, broken));
        else if (later)
            setTimeout(() => {
                known.set(key, findRepair(graph, failure, broken));
                later();
            }, 50);
    }
    return known.get(key);
}

/** The repair that maintenance found when the page was made. */
function plannedRepair(graph: Graph, failure: Failure): Repair | null {
    const { failures, siteFailures } = graph.plan;
    if (failure.of === "broker" && failures) {
        const at = failures.brokers.indexOf(graph.brokerIndex.get(failure.names[0]!) ?? -1);
        if (at >= 0) return { added: failures.added[at]!, maintained: true };
    }
    if (failure.of === "site" && siteFailures) {
        const at = siteFailures.sites.indexOf(graph.siteIndex.get(failure.names[0]!) ?? -1);
        if (at >= 0) return { added: siteFailures.added[at]!, maintained: true };
    }
    return null;
}

function findRepair(graph: Graph, failure: Failure, broken: number[]): Repair | null {
    const added = reconnect(graph, broken, outageOf(graph, failure)!);
    return added && { added: added.map(({ u, v }) => [u, v]), maintained: false };
}

const broken = new WeakMap<Graph, Map<string, number[]>>();

/** The topics that a failure disconnects; undefined where they take long to find and `later` is called then. */
export function brokenTopics(
    graph: Graph,
    failure: Failure,
    outage: Outage,
    later: (() => void) | null = null,
): number[] | undefined {
    const known = broken.get(graph) ?? new Map<string, number[]>();
    broken.set(graph, known);
    const key = JSON.stringify(failure);
    const quick = graph.brokerCount <= MOST_AT_ONCE || outage.brokers.size < 3;
    if (!known.has(key)) {
        if (quick) known.set(key, graph.brokenBy(outage));
        else if (later)
            setTimeout(() => {
                known.set(key, graph.brokenBy(outage));
                later();
            }, 50);
    }
    return known.get(key);
}

function ofFailure(graph: Graph, failure: Failure): Parts | null {
    const outage = outageOf(graph, failure);
    if (outage === null) return null;
    const gone = [...outage.brokers];
    const lost = new Set(gone.flatMap((b) => graph.near(b).map(({ link }) => link)));
    for (const link of outage.links) lost.add(link);
    const found = brokenTopics(graph, failure, outage);
    const added = (found && repairOf(graph, failure, found)?.added) ?? [];
    const ends = [...outage.links].flatMap((link) => graph.ends(link));
    return {
        strokes: [
            { pairs: endsOf(graph, [...lost]), colour: "bad", width: 1, dash: [4, 4] },
            { pairs: added, colour: "good", width: 2.2 },
        ],
        dots: [
            { brokers: ends, colour: "broker" },
            { brokers: [...new Set(added.flat())], colour: "good" },
            { brokers: gone, colour: "bad", labels: gone.length < 3, crossed: true },
        ],
    };
}

function ofChange(before: Graph, after: Graph, shown: Graph): Parts {
    const change = planChange(before, after);
    const other = shown === after ? before : after;
    const missing = shown === after ? change.left : change.joined;
    const number = new Map(missing.map((name, i) => [name, shown.brokerCount + i]));
    const indexOf = (name: string): number => shown.brokerIndex.get(name) ?? number.get(name) ?? -1;
    const pairs = (links: { link: NamedLink }[]): [number, number][] =>
        links.map(({ link }) => [indexOf(link[0]), indexOf(link[1])]);
    const ghosts = missing.map((name) => {
        const broker = other.brokerIndex.get(name)!;
        const near = other
            .near(broker)
            .map((one) => shown.brokerIndex.get(other.interest.brokers[one.broker]!) ?? -1);
        return { name, graph: other, broker, near: near.filter((b) => b >= 0) };
    });
    const own = shown === after ? change.joined : change.left;
    const few = missing.length <= 12;
    return {
        strokes: [
            { pairs: pairs(change.removed), colour: "bad", width: 1, dash: [4, 4] },
            { pairs: pairs(change.added), colour: "good", width: 1.4 },
        ],
        dots: [
            { brokers: own.map(indexOf), colour: shown === after ? "good" : "bad" },
            {
                brokers: missing.map(indexOf),
                colour: shown === after ? "bad" : "good",
                labels: few,
                crossed: shown === after,
            },
        ],
        ghosts,
    };
}

/**
 * What an operation of the console did; brokers that it took away are drawn where they were.
 * A broker that came and went before its record was loaded is in neither graph: it has no place.
 */
function ofEffect(shown: Graph, before: Graph, effect: EffectRecord): Parts {
    const named = [...new Set([...effect.added, ...effect.removed].flat())];
    const missing = named.filter((name) => !shown.brokerIndex.has(name) && before.brokerIndex.has(name));
    const number = new Map(missing.map((name, i) => [name, shown.brokerCount + i]));
    const indexOf = (name: string): number => shown.brokerIndex.get(name) ?? number.get(name) ?? -1;
    const pairs = (links: [string, string][]): [number, number][] =>
        links
            .map(([u, v]) => [indexOf(u), indexOf(v)] as [number, number])
            .filter((pair) => Math.min(...pair) >= 0);
    const failed = /^fail (broker|site) /.test(effect.operation);
    const site = before.siteIndex.get(effect.operation.replace(/^fail site /, "").replace(/^'|'$/g, ""));
    const gone = failed
        ? named.filter(
              (name) =>
                  missing.includes(name) ||
                  effect.operation === `fail broker ${name}` ||
                  effect.operation === `fail broker '${name}'` ||
                  (site !== undefined && before.interest.siteOf[before.brokerIndex.get(name) ?? -1] === site),
          )
        : missing;
    return {
        strokes: [
            { pairs: pairs(effect.removed), colour: "bad", width: 1, dash: [4, 4] },
            { pairs: pairs(effect.added), colour: "good", width: 2.2 },
        ],
        dots: [
            { brokers: [...new Set(pairs(effect.added).flat())], colour: "good" },
            {
                brokers: gone.map(indexOf).filter((b) => b >= 0),
                colour: "bad",
                labels: gone.length < 3,
                crossed: true,
            },
        ],
        ghosts: missing.map((name) => ({
            name,
            graph: before,
            broker: before.brokerIndex.get(name)!,
            near: [],
        })),
    };
}

// What stands out on the map for what is chosen: links and brokers, in the order in which they are drawn.

import { linkChange, type Graph } from "./graph";
import type { Choice } from "./state";
import type { Colours } from "./theme";

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

export interface Highlight {
    strokes: Strokes[];
    dots: Dots[];
}

/** What stands out, or null where everything is as it is. */
export function highlight(choice: Choice, graph: Graph, all: Graph[]): Highlight | null {
    if (choice.kind === "topic") return ofTopic(graph, graph.topicIndex.get(choice.topic));
    if (choice.kind === "broker") return ofBroker(graph, graph.brokerIndex.get(choice.broker));
    if (choice.kind === "failure") return ofFailure(graph, graph.brokerIndex.get(choice.broker));
    if (choice.kind === "change" && [all[choice.before], all[choice.after]].includes(graph))
        return ofChange(all[choice.before]!, all[choice.after]!, graph);
    return null;
}

function ofTopic(graph: Graph, topic: number | undefined): Highlight | null {
    if (topic === undefined) return null;
    const tree = new Set(graph.tree(topic));
    const pairs = (links: number[]): [number, number][] => links.map((link) => graph.ends(link));
    return {
        strokes: [
            {
                pairs: pairs(graph.subOverlay(topic).filter((link) => !tree.has(link))),
                colour: "accent",
                width: 0.8,
                dash: [3, 3],
            },
            { pairs: pairs([...tree]), colour: "accent", width: 2 },
        ],
        dots: [{ brokers: graph.members(topic), colour: "accent" }],
    };
}

function ofBroker(graph: Graph, broker: number | undefined): Highlight | null {
    if (broker === undefined) return null;
    const near = graph.near[broker]!;
    return {
        strokes: [{ pairs: near.map((other) => [broker, other.broker]), colour: "accent", width: 1.6 }],
        dots: [
            { brokers: near.map((other) => other.broker), colour: "accent" },
            { brokers: [broker], colour: "ink", labels: true },
        ],
    };
}

function ofFailure(graph: Graph, broker: number | undefined): Highlight | null {
    if (broker === undefined) return null;
    const near = graph.near[broker]!;
    const added = repair(graph, broker) ?? [];
    return {
        strokes: [
            { pairs: near.map((other) => [broker, other.broker]), colour: "bad", width: 1, dash: [4, 4] },
            { pairs: added, colour: "good", width: 2.2 },
        ],
        dots: [
            { brokers: near.map((other) => other.broker), colour: "broker" },
            { brokers: [...new Set(added.flat())], colour: "good" },
            { brokers: [broker], colour: "bad", labels: true, crossed: true },
        ],
    };
}

function ofChange(before: Graph, after: Graph, shown: Graph): Highlight {
    const change = linkChange(before, after);
    const pairs = (links: [string, string][]): [number, number][] =>
        links
            .map((link) => link.map((name) => shown.brokerIndex.get(name) ?? -1) as [number, number])
            .filter((pair) => Math.min(...pair) >= 0);
    return {
        strokes: [
            { pairs: pairs(change.removed), colour: "bad", width: 1, dash: [4, 4] },
            { pairs: shown === after ? pairs(change.added) : [], colour: "good", width: 1.4 },
        ],
        dots: [],
    };
}

/** The links that maintenance would add if the broker failed; null where that was not worked out. */
export function repair(graph: Graph, broker: number): [number, number][] | null {
    const at = graph.plan.failures?.brokers.indexOf(broker) ?? -1;
    return at < 0 ? null : graph.plan.failures!.added[at]!;
}

/** Who would stand in for a broker; null where that was not worked out. */
export function backups(graph: Graph, broker: number): number[] | null {
    return graph.plan.backups?.[broker] ?? null;
}

// Beside the map: what is chosen, in words and lists.

import { button, count, el, num, table } from "./dom";
import { linkChange, type Graph } from "./graph";
import { backups, repair } from "./highlight";
import type { Store } from "./state";

const MOST_NAMES = 24;
const MOST_ROWS = 60;

export function panel(store: Store, graph: () => Graph, all: Graph[]): HTMLElement {
    const element = el("aside", {
        class: "panel",
        id: "panel",
        "aria-live": "polite",
        "aria-label": "What is chosen",
    });
    const show = (): void => {
        element.dataset["choice"] = store.state.choice.kind;
        element.replaceChildren(...contents(store, graph(), all));
    };
    store.onChange(show);
    show();
    return element;
}

function contents(store: Store, graph: Graph, all: Graph[]): Node[] {
    const { choice } = store.state;
    if (choice.kind === "topic") {
        const topic = graph.topicIndex.get(choice.topic);
        return topic === undefined ? missing(store, choice.topic) : ofTopic(store, graph, topic);
    }
    if (choice.kind === "broker" || choice.kind === "failure") {
        const broker = graph.brokerIndex.get(choice.broker);
        if (broker === undefined) return missing(store, choice.broker);
        return choice.kind === "broker" ? ofBroker(store, graph, broker) : ofFailure(store, graph, broker);
    }
    if (choice.kind === "change") return ofChange(store, all[choice.before]!, all[choice.after]!);
    return ofNothing(store, graph);
}

const topicButton = (store: Store, graph: Graph, topic: number): HTMLElement =>
    button(
        graph.interest.topics[topic]!,
        () => store.choose({ kind: "topic", topic: graph.interest.topics[topic]! }),
        { class: "name" },
    );

export const brokerButton = (store: Store, graph: Graph, broker: number): HTMLElement =>
    button(
        graph.interest.brokers[broker]!,
        () => store.choose({ kind: "broker", broker: graph.interest.brokers[broker]! }),
        { class: "name" },
    );

function head(store: Store, kind: string, name: string): Node {
    return el(
        "div",
        { class: "head" },
        el("div", {}, el("small", {}, kind), el("h3", {}, name)),
        button("×", () => store.choose({ kind: "nothing" }), {
            class: "close",
            "aria-label": "Close",
            title: "Close (Escape)",
        }),
    );
}

export function facts(...pairs: [string, string | Node][]): HTMLElement {
    return el(
        "dl",
        { class: "facts" },
        ...pairs.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]),
    );
}

/** Names as buttons, the first of them; the others are behind one more button. */
function names(items: number[], each: (item: number) => HTMLElement, none: string): HTMLElement {
    if (!items.length) return el("p", { class: "words" }, none);
    const box = el("div", { class: "names" }, ...items.slice(0, MOST_NAMES).map(each));
    if (items.length > MOST_NAMES) {
        const rest = button(
            `${num(items.length - MOST_NAMES)} more`,
            () => rest.replaceWith(...items.slice(MOST_NAMES).map(each)),
            { class: "more" },
        );
        box.append(rest);
    }
    return box;
}

function missing(store: Store, name: string): Node[] {
    return [
        head(store, "Not in this plan", name),
        el("p", { class: "words" }, "This plan does not have it."),
    ];
}

function ofNothing(store: Store, graph: Graph): Node[] {
    const sizes = graph.interest.topics.map(
        (_, t) => graph.interest.start[t + 1]! - graph.interest.start[t]!,
    );
    const first = (values: number[]): number[] => top(values, 8);
    const left = graph.interest.topicsInAll - graph.interest.topics.length;
    return [
        el("h3", {}, "Choose a topic or a broker"),
        el("p", { class: "words" }, "Click a broker on the map, find a name above, or begin here."),
        el("h4", {}, "Topics with the most brokers"),
        names(first(sizes), (t) => topicButton(store, graph, t), "There are none."),
        el("h4", {}, "Brokers with the most load"),
        names(first(graph.plan.load), (b) => brokerButton(store, graph, b), "There are none."),
        el("h4", {}, "Brokers that hold the most topics together"),
        names(
            first(graph.plan.holds).filter((b) => graph.plan.holds[b]! > 0),
            (b) => brokerButton(store, graph, b),
            "None: no topic falls apart when one broker fails.",
        ),
        ...(left > 0
            ? [
                  el(
                      "p",
                      { class: "words" },
                      `${count(left, "small topic")} of ${num(graph.interest.topicsInAll)} are left out, so that the page stays quick.`,
                  ),
              ]
            : []),
    ];
}

export function top(values: number[], n: number): number[] {
    return Array.from(values.keys())
        .sort((a, b) => values[b]! - values[a]! || a - b)
        .slice(0, n);
}

function ofTopic(store: Store, graph: Graph, topic: number): Node[] {
    const { plan } = graph;
    const members = graph.members(topic);
    const links = graph.subOverlay(topic);
    const hops = plan.topics.hops[topic];
    return [
        head(store, "Topic", graph.interest.topics[topic]!),
        el(
            "p",
            { class: "words" },
            hops === null || hops === undefined
                ? "Its brokers are NOT connected over links among themselves."
                : `Its ${count(members.length, "broker")} ${members.length === 1 ? "is" : "are"} connected over ${count(links.length, "link")} among themselves. ` +
                      "Its messages go over the tree, the thick lines; the dashed ones are spare.",
        ),
        facts(
            ["Brokers", num(members.length)],
            ["Links", num(links.length)],
            ["Links of the tree", num(graph.tree(topic).length)],
            ["Longest way", hops === null ? "–" : count(hops ?? 0, "hop")],
            ...(plan.weighted
                ? ([["Longest way by weight", num(plan.topics.length[topic])]] as [string, string][])
                : []),
            [plan.weighted ? "Weight of the tree" : "A message costs", num(plan.topics.cost[topic])],
        ),
        el("h4", {}, "Brokers"),
        names(members, (b) => brokerButton(store, graph, b), "Nobody subscribes."),
    ];
}

function ofBroker(store: Store, graph: Graph, broker: number): Node[] {
    const { plan } = graph;
    const near = [...graph.near[broker]!].sort((a, b) => plan.links.load[b.link]! - plan.links.load[a.link]!);
    const standIns = backups(graph, broker);
    const name = graph.interest.brokers[broker]!;
    const rows = near
        .slice(0, MOST_ROWS)
        .map(({ broker: other, link }) => [
            brokerButton(store, graph, other),
            plan.links.weight[link]!,
            plan.links.load[link]!,
        ]);
    return [
        head(store, "Broker", name),
        facts(
            ...(graph.site(broker) ? ([["Site", graph.site(broker)]] as [string, string][]) : []),
            ["Links", num(near.length)],
            ["Topics", num(graph.topicsOf[broker]!.length)],
            ["Load", num(plan.load[broker])],
            ["Holds together alone", count(plan.holds[broker]!, "topic")],
        ),
        button("What if it fails?", () => store.choose({ kind: "failure", broker: name }), {
            class: "act",
            id: "fail",
        }),
        el("h4", {}, "Links"),
        near.length
            ? table(`Links of ${name}`, ["to", "weight", "topics"], rows)
            : el("p", { class: "words" }, "It has none."),
        near.length > MOST_ROWS
            ? el("p", { class: "words" }, `and ${num(near.length - MOST_ROWS)} more`)
            : "",
        el("h4", {}, "Backups"),
        standIns === null
            ? el(
                  "p",
                  { class: "words" },
                  "Not worked out: there are too many brokers, or topics that are not connected.",
              )
            : names(standIns, (b) => brokerButton(store, graph, b), "Nobody else has its topics."),
        el("h4", {}, "Topics"),
        names(graph.topicsOf[broker]!, (t) => topicButton(store, graph, t), "It has none."),
    ].filter((node) => node !== "") as Node[];
}

function bounded(graph: Graph): string {
    if (graph.plan.failures === null) return "Not worked out: the plan does not connect every topic.";
    const known = graph.plan.failures.brokers.length;
    return `Worked out for the ${num(known)} busiest of ${count(graph.brokerCount, "broker")} only, so that the report is soon done.`;
}

function ofFailure(store: Store, graph: Graph, broker: number): Node[] {
    const name = graph.interest.brokers[broker]!;
    const broken = graph.brokenWithout(broker);
    const added = repair(graph, broker);
    const lost = count(graph.near[broker]!.length, "link");
    const consequence = broken.length
        ? `${count(broken.length, "topic falls", "topics fall")} apart until the overlay is mended.`
        : "Every topic stays connected.";
    return [
        head(store, "If it fails", name),
        el(
            "p",
            { class: "words" },
            `Without ${name} and its ${lost}, ${consequence[0]!.toLowerCase()}${consequence.slice(1)}`,
        ),
        facts(
            ["Links lost", num(graph.near[broker]!.length)],
            ["Topics that fall apart", num(broken.length)],
            ["Links that mend it", added === null ? "not worked out" : num(added.length)],
        ),
        el("h4", {}, "The repair that maintain would make"),
        added === null
            ? el("p", { class: "words" }, bounded(graph))
            : added.length
              ? table(
                    `Links to add if ${name} fails`,
                    ["link", ""],
                    added.map(([u, v]) => [brokerButton(store, graph, u), brokerButton(store, graph, v)]),
                )
              : el("p", { class: "words" }, "None is needed."),
        button("Back to the broker", () => store.choose({ kind: "broker", broker: name }), { class: "act" }),
        el("h4", {}, "Topics that fall apart"),
        names(broken, (t) => topicButton(store, graph, t), "None."),
    ];
}

function ofChange(store: Store, before: Graph, after: Graph): Node[] {
    const change = linkChange(before, after);
    const list = (title: string, links: [string, string][]): Node[] => [
        el("h4", {}, title),
        links.length
            ? table(title, ["from", "to"], links.slice(0, MOST_ROWS))
            : el("p", { class: "words" }, "None."),
        ...(links.length > MOST_ROWS
            ? [el("p", { class: "words" }, `and ${num(links.length - MOST_ROWS)} more`)]
            : []),
    ];
    return [
        head(store, "Change", `${before.plan.name} → ${after.plan.name}`),
        facts(
            ["Links added", el("span", { class: "good" }, `+ ${num(change.added.length)}`)],
            ["Links removed", el("span", { class: "bad" }, `− ${num(change.removed.length)}`)],
            ["Links kept", num(change.kept)],
        ),
        ...list("Links to add", change.added),
        ...list("Links to remove", change.removed),
    ];
}

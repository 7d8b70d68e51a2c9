// Beside the map: what is chosen, in words and lists.

import { effectWords, type EffectRecord } from "./console";
import { explain } from "./explain";
import { button, count, el, num, signed, table, type Cell } from "./dom";
import { planChange, type Graph } from "./graph";
import { brokenTopics, linksBetween, outageOf, repairOf } from "./highlight";
import type { Choice, Failure, State, Store } from "./state";

const MOST_NAMES = 24;
const MOST_ROWS = 60;

/** Says what is chosen where the focus does not go to the panel. */
export const spoken = el("p", { class: "unseen", role: "status" });

export function panel(
    store: Store,
    graph: () => Graph,
    all: Graph[],
    unit: string,
    actions: (choice: Choice) => (HTMLElement | null)[],
): HTMLElement {
    const element = el("aside", { class: "panel", id: "panel", "aria-label": "What is chosen" });
    const show = (): void => {
        element.dataset["choice"] = store.state.choice.kind;
        const [head, ...rest] = new Contents(store, graph(), all, unit).nodes();
        const acts = actions(store.state.choice).filter((one): one is HTMLElement => one !== null);
        element.replaceChildren(head!, ...acts, ...rest);
    };
    store.onChange((state, before, effect) => {
        if (!isOther(state, before)) return;
        const inside = element.contains(document.activeElement);
        show();
        if (!effect.quiet) element.scrollTop = 0;
        const heading = element.querySelector("h3")!;
        if (effect.quiet) return;
        if (effect.focus || inside) {
            element.closest(".card")?.scrollIntoView({ block: "nearest" });
            heading.focus({ preventScroll: true });
            reveal(element);
        } else spoken.textContent = heading.parentElement!.textContent;
    });
    show();
    return element;
}

const isOther = (state: State, before: State): boolean =>
    state.choice !== before.choice || state.plan !== before.plan;

/** Scroll only if the top of an element is out of view. */
function reveal(element: HTMLElement): void {
    const { top } = element.getBoundingClientRect();
    if (top < 0 || top > innerHeight - 120) element.scrollIntoView({ block: "start" });
}

export const topicButton = (store: Store, graph: Graph, topic: number): HTMLElement =>
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

export const siteButton = (store: Store, site: string): HTMLElement =>
    button(site, () => store.choose({ kind: "site", site }), { class: "name" });

export const linkButton = (
    store: Store,
    graph: Graph,
    link: number,
    text: string | null = null,
): HTMLElement => {
    const ends = graph.ends(link).map((b) => graph.interest.brokers[b]!) as [string, string];
    const name = `${ends[0]} – ${ends[1]}`;
    return button(text ?? name, () => store.choose({ kind: "link", ends }), {
        class: "name",
        "aria-label": text ? `The link ${name}` : undefined,
    });
};

export function facts(...pairs: [string, string | Node][]): HTMLElement {
    return el(
        "dl",
        { class: "facts" },
        ...pairs.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]),
    );
}

/** Names as buttons, the first of them; the others are behind one more button. */
function names<T>(items: T[], each: (item: T) => HTMLElement, none: string): HTMLElement {
    if (!items.length) return el("p", { class: "words" }, none);
    const box = el("div", { class: "names" }, ...items.slice(0, MOST_NAMES).map(each));
    if (items.length > MOST_NAMES) {
        const rest = button(
            `${num(items.length - MOST_NAMES)} more`,
            () => {
                const others = items.slice(MOST_NAMES).map(each);
                rest.replaceWith(...others);
                others[0]?.focus();
            },
            { class: "more" },
        );
        box.append(rest);
    }
    return box;
}

export function top(values: number[], n: number): number[] {
    return Array.from(values.keys())
        .sort((a, b) => values[b]! - values[a]! || a - b)
        .slice(0, n);
}

/** The contents of the panel for one choice. */
class Contents {
    constructor(
        private readonly store: Store,
        private readonly graph: Graph,
        private readonly all: Graph[],
        private readonly unit: string,
    ) {}

    nodes(): Node[] {
        const { choice } = this.store.state;
        const { graph } = this;
        const broker = (name: string): number => graph.brokerIndex.get(name) ?? -1;
        if (choice.kind === "topic") {
            const topic = graph.topicIndex.get(choice.topic);
            return topic === undefined ? this.missing(choice.topic) : this.ofTopic(topic);
        }
        if (choice.kind === "broker") {
            const b = broker(choice.broker);
            return b < 0 ? this.missing(choice.broker) : this.ofBroker(b);
        }
        if (choice.kind === "site") {
            const site = graph.siteIndex.get(choice.site);
            return site === undefined ? this.missing(choice.site) : this.ofSite(site);
        }
        if (choice.kind === "link") {
            const [u, v] = choice.ends.map(broker) as [number, number];
            const link = Math.min(u, v) < 0 ? -1 : graph.linkBetween(u, v);
            return link < 0 ? this.missing(choice.ends.join(" – ")) : this.ofLink(link);
        }
        if (choice.kind === "between") return this.between(choice.sites);
        if (choice.kind === "failure") return this.ofFailure(choice.failure);
        if (choice.kind === "change") return this.ofChange(this.all[choice.before]!, this.all[choice.after]!);
        if (choice.kind === "effect") return this.ofEffect(choice.effect);
        return this.ofNothing();
    }

    private ofEffect(effect: EffectRecord): Node[] {
        const list = (title: string, links: [string, string][]): Node[] => [
            el("h4", {}, title),
            links.length ? table(title, ["from", "to"], links.slice(0, MOST_ROWS)) : this.words("None."),
            ...(links.length > MOST_ROWS ? [this.words(`and ${num(links.length - MOST_ROWS)} more`)] : []),
        ];
        return [
            this.head("Done", effect.operation),
            this.words(effectWords(effect)),
            facts(
                ["Links added", el("span", { class: "good" }, `+ ${num(effect.added.length)}`)],
                ["Links removed", el("span", { class: "bad" }, `− ${num(effect.removed.length)}`)],
                ["Cost before", this.weight(effect.costBefore)],
                ["Cost after", this.weight(effect.costAfter)],
            ),
            ...list("Links added", effect.added),
            ...list("Links removed", effect.removed),
        ];
    }

    private head(kind: string, name: string): Node {
        return el(
            "div",
            { class: "head" },
            el("div", {}, el("small", {}, kind), el("h3", { tabindex: -1 }, name)),
            button("×", () => this.store.choose({ kind: "nothing" }), {
                class: "close",
                "aria-label": "Close",
                title: "Close (Escape)",
            }),
        );
    }

    private words(text: string): HTMLElement {
        return el("p", { class: "words" }, text);
    }

    private topics(list: number[], none: string): HTMLElement {
        return names(list, (t) => topicButton(this.store, this.graph, t), none);
    }

    private brokers(list: number[], none: string): HTMLElement {
        return names(list, (b) => brokerButton(this.store, this.graph, b), none);
    }

    private failButton(of: Failure["of"], list: string[], label = "What if it fails?"): HTMLElement {
        return button(label, () => this.store.choose({ kind: "failure", failure: { of, names: list } }), {
            class: "act",
            id: "fail",
        });
    }

    private weight(value: number | null | undefined): string {
        return `${num(value)}${this.unit && value != null ? ` ${this.unit}` : ""}`;
    }

    private missing(name: string): Node[] {
        return [this.head("Not in this plan", name), this.words("This plan does not have it.")];
    }

    private ofNothing(): Node[] {
        const { graph, store } = this;
        const { plan, interest } = graph;
        const sizes = interest.topics.map((_, t) => graph.memberCount(t));
        const left = interest.topicsInAll - interest.topics.length;
        const broken = disconnected(graph);
        return [
            el("div", {}, el("h3", { tabindex: -1 }, "Choose a broker, link, site or topic")),
            this.words("Click on the map, find a name above, use the tables below, or begin here."),
            ...(broken.length
                ? [
                      el("h4", { class: "bad" }, `Topics that are NOT connected: ${num(broken.length)}`),
                      this.topics(broken, ""),
                  ]
                : []),
            el("h4", {}, "Topics with the most brokers"),
            this.topics(top(sizes, 8), "This plan has no topics."),
            el("h4", {}, "Brokers with the highest load"),
            this.brokers(top(plan.load, 8), "This plan has no brokers."),
            el("h4", {}, "Brokers whose failure disconnects the most topics"),
            this.brokers(
                top(plan.holds, 8).filter((b) => plan.holds[b]! > 0),
                "None: no topic is disconnected if one broker fails.",
            ),
            ...(graph.siteIndex.size > 1
                ? [
                      el("h4", {}, "Sites with the most brokers"),
                      names(
                          top(siteSizes(graph), 8).filter((site) => interest.sites[site]),
                          (site) => siteButton(store, interest.sites[site]!),
                          "",
                      ),
                  ]
                : []),
            ...(left > 0
                ? [
                      this.words(
                          `${count(left, "small topic")} of ${num(interest.topicsInAll)} are left out, to keep the page small.`,
                      ),
                  ]
                : []),
        ];
    }

    private ofTopic(topic: number): Node[] {
        const { graph } = this;
        const { plan } = graph;
        const members = graph.members(topic);
        const links = graph.subOverlay(topic);
        const hops = plan.topics.hops[topic];
        const connected = hops !== null && hops !== undefined;
        const parts = connected ? [] : graph.parts(topic);
        return [
            this.head("Topic", graph.interest.topics[topic]!),
            this.words(
                connected
                    ? `Its ${count(members.length, "broker")} ${members.length === 1 ? "is" : "are"} connected by ${count(links.length, "link")} among themselves. ` +
                          "Its messages use the tree, drawn as solid lines; dashed links are spare."
                    : `Its brokers are NOT connected: they are in ${count(parts.length, "part")}, with no link between the parts.`,
            ),
            facts(
                ["Brokers", num(members.length)],
                ["Links", num(links.length)],
                ["Links of the tree", num(graph.tree(topic).length)],
                ["Longest path", connected ? count(hops, "hop") : "–"],
                ...(plan.weighted
                    ? ([["Longest path by weight", this.weight(plan.topics.length[topic])]] as [
                          string,
                          string,
                      ][])
                    : []),
                [
                    plan.weighted ? "Weight of the tree" : "Links per message",
                    plan.weighted ? this.weight(plan.topics.cost[topic]) : num(plan.topics.cost[topic]),
                ],
            ),
            ...(connected
                ? [el("h4", {}, "Brokers"), this.brokers(members, "No broker subscribes to it.")]
                : parts
                      .slice(0, MOST_ROWS)
                      .flatMap((part, i) => [
                          el("h4", {}, `Part ${i + 1}: ${count(part.length, "broker")}`),
                          this.brokers(part, ""),
                      ])),
            ...(parts.length > MOST_ROWS
                ? [this.words(`and ${num(parts.length - MOST_ROWS)} more parts`)]
                : []),
        ];
    }

    private ofBroker(broker: number): Node[] {
        const { graph, store } = this;
        const { plan } = graph;
        const near = graph.near(broker).sort((a, b) => plan.links.load[b.link]! - plan.links.load[a.link]!);
        const backups = plan.backups?.[broker] ?? null;
        const name = graph.interest.brokers[broker]!;
        const site = graph.site(broker);
        const rows: Cell[][] = near
            .slice(0, MOST_ROWS)
            .map(({ broker: other, link }) => [
                brokerButton(store, graph, other),
                plan.links.weight[link]!,
                plan.links.load[link]!,
                linkButton(store, graph, link, "why?"),
            ]);
        return [
            this.head("Broker", name),
            facts(
                ...(site ? ([["Site", siteButton(store, site)]] as [string, Node][]) : []),
                ["Links", num(near.length)],
                ["Topics", num(graph.topicCount(broker))],
                ["Load", `${num(plan.load[broker])} topics on its links`],
                ["Topics that need it", num(plan.holds[broker])],
            ),
            el("div", { class: "acts" }, this.failButton("broker", [name]), this.pairPicker(broker)),
            el("h4", {}, "Links"),
            near.length
                ? table(
                      `Links of ${name}`,
                      ["to", this.unit ? `weight (${this.unit})` : "weight", "topics", ""],
                      rows,
                  )
                : this.words("It has no links."),
            ...(near.length > MOST_ROWS
                ? [this.words(`and ${num(near.length - MOST_ROWS)} more; the table of links has all of them`)]
                : []),
            el("h4", {}, "Backups"),
            backups === null
                ? this.words("Not computed: there are too many brokers, or topics that are not connected.")
                : this.brokers(backups, "No other broker has its topics."),
            el("h4", {}, "Topics"),
            this.topics(graph.topicsOf(broker), "It has no topics."),
        ];
    }

    /** Two brokers that fail together: the other one is chosen by name. */
    private pairPicker(broker: number): HTMLElement {
        const { graph, store } = this;
        const name = graph.interest.brokers[broker]!;
        const list = el(
            "datalist",
            { id: "pair-names" },
            ...graph
                .near(broker)
                .slice(0, 200)
                .map((one) => el("option", { value: graph.interest.brokers[one.broker]! })),
        );
        const input = el("input", {
            type: "text",
            id: "pair",
            list: "pair-names",
            autocomplete: "off",
            "aria-label": "Another broker that fails at the same time",
            placeholder: "another broker",
        });
        const problem = el("span", { class: "bad", role: "alert" });
        const act = (): void => {
            const other = input.value.trim();
            if (other === name || !graph.brokerIndex.has(other))
                problem.textContent = other ? "No other broker has this name." : "Give a name.";
            else store.choose({ kind: "failure", failure: { of: "pair", names: [name, other] } });
        };
        return el(
            "form",
            { class: "pair", submit: (event: Event) => (event.preventDefault(), act()) },
            input,
            list,
            el("button", { type: "submit", class: "act" }, "Both fail"),
            problem,
        );
    }

    private ofSite(site: number): Node[] {
        const { graph, store } = this;
        const { plan, interest } = graph;
        const name = interest.sites[site]!;
        const inside = graph.brokersOf(site);
        const links = [...new Set(inside.flatMap((b) => graph.near(b).map((one) => one.link)))];
        const others = new Map<string, { links: number; weight: number }>();
        let own = 0;
        for (const link of links) {
            const [a, b] = graph.ends(link).map((end) => graph.site(end)) as [string, string];
            if (a === b) {
                own++;
                continue;
            }
            const other = a === name ? b : a;
            const sum = others.get(other) ?? { links: 0, weight: 0 };
            sum.links++;
            sum.weight += plan.links.weight[link]!;
            others.set(other, sum);
        }
        const rows: Cell[][] = [...others]
            .sort((a, b) => b[1].links - a[1].links || (a[0] < b[0] ? -1 : 1))
            .slice(0, MOST_ROWS)
            .map(([other, sum]) => [
                other ? siteButton(store, other) : "no site",
                sum.links,
                sum.weight,
                other
                    ? button("links", () => store.choose({ kind: "between", sites: [name, other] }), {
                          class: "name",
                          "aria-label": `The links between ${name} and ${other}`,
                      })
                    : "",
            ]);
        const topics = new Set(inside.flatMap((b) => graph.topicsOf(b)));
        return [
            this.head("Site", name),
            facts(
                ["Brokers", num(inside.length)],
                ["Topics", num(topics.size)],
                ["Links inside", num(own)],
                ["Links to other sites", num(links.length - own)],
            ),
            this.failButton("site", [name]),
            el("h4", {}, "Links to other sites"),
            rows.length
                ? table(`Sites linked to ${name}`, ["site", "links", "weight", ""], rows)
                : this.words("It has none."),
            el("h4", {}, "Brokers"),
            this.brokers(inside, "It has none."),
        ];
    }

    private between(sites: [string, string]): Node[] {
        const { graph, store } = this;
        const links = linksBetween(graph, sites);
        const { weight, load } = graph.plan.links;
        const sum = (values: number[]): number => links.reduce((total, e) => total + values[e]!, 0);
        const rows = [...links]
            .sort((a, b) => load[b]! - load[a]!)
            .slice(0, MOST_ROWS)
            .map((e) => [linkButton(store, graph, e), weight[e]!, load[e]!]);
        return [
            this.head("Links between two sites", `${sites[0]} – ${sites[1]}`),
            facts(
                ["Links", num(links.length)],
                ["Weight together", this.weight(sum(weight))],
                ["Sites", el("span", {}, siteButton(store, sites[0]), " ", siteButton(store, sites[1]))],
            ),
            links.length
                ? table("The links, highest load first", ["link", "weight", "topics"], rows)
                : this.words("No link connects them."),
            ...(links.length > MOST_ROWS ? [this.words(`and ${num(links.length - MOST_ROWS)} more`)] : []),
        ];
    }

    private ofLink(link: number): Node[] {
        const { graph, store } = this;
        const { plan } = graph;
        const [u, v] = graph.ends(link);
        const weight = plan.links.weight[link]!;
        const why = explain(graph, link);
        const ends = [u, v].map((b) => graph.interest.brokers[b]!);
        const reason = why.needed.length
            ? `${count(why.needed.length, "topic is", "topics are")} connected only through this link: without it, ${why.needed.length === 1 ? "it falls" : "they fall"} into two parts.`
            : why.carried.length
              ? "No topic needs it: every topic stays connected without it, over longer or heavier paths."
              : "No topic's tree uses it: it is spare.";
        return [
            this.head("Link", ends.join(" – ")),
            this.words(reason),
            facts(
                ["From", brokerButton(store, graph, u)],
                ["To", brokerButton(store, graph, v)],
                ["Weight", this.weight(weight)],
                ["Topics that it carries", num(why.carried.length)],
                ["Topics that need it", num(why.needed.length)],
                ["Topics of both brokers", num(why.common.length)],
            ),
            this.failButton("link", ends),
            el("h4", {}, "If it is lost"),
            ...this.alternatives(why, weight),
            el("h4", {}, "Topics that need it"),
            this.topics(why.needed, "None."),
            el("h4", {}, "Topics that it carries"),
            this.topics(why.carried, "None."),
        ];
    }

    private alternatives(why: ReturnType<typeof explain>, weight: number): Node[] {
        const { graph, store } = this;
        if (!why.needed.length) return [this.words("Nothing has to replace it.")];
        if (why.alternatives === null)
            return [
                this.words("Alternatives are not known: the page does not hold the weights of all pairs."),
            ];
        if (!why.alternatives.length)
            return [
                this.words(
                    "No single other link can replace it: several are needed. “What if it fails?” lists them.",
                ),
            ];
        const best = why.alternatives[0]!;
        const more = best.weight - weight;
        const words =
            Math.abs(more) < 1e-9
                ? "The best other link that replaces it alone weighs the same."
                : more > 0
                  ? `The lightest other link that replaces it alone weighs ${this.weight(best.weight)}: ${this.weight(more)} more.`
                  : `A lighter link could replace it alone: it weighs ${this.weight(best.weight)}.`;
        return [
            this.words(words + (why.atItsEnds ? " Only links at its two brokers were compared." : "")),
            table(
                "Other links that would replace it alone",
                ["link", "", "weight", "more"],
                why.alternatives.map((one) => [
                    brokerButton(store, graph, one.u),
                    brokerButton(store, graph, one.v),
                    one.weight,
                    { number: signed(one.weight - weight) },
                ]),
            ),
        ];
    }

    private ofFailure(failure: Failure): Node[] {
        const { graph, store } = this;
        const name = failure.names.join(failure.of === "link" ? " – " : " and ");
        const outage = outageOf(graph, failure);
        if (outage === null) return this.missing(name);
        const lost = new Set(outage.links);
        for (const b of outage.brokers) for (const { link } of graph.near(b)) lost.add(link);
        const later = (): void => {
            const { choice } = store.state;
            if (choice.kind === "failure" && choice.failure === failure)
                store.set({ choice: { ...choice } }, { quiet: true });
        };
        const broken = brokenTopics(graph, failure, outage, later);
        if (broken === undefined)
            return [
                this.head(`If the ${failure.of} fails`, name),
                this.words("Computing what it disconnects."),
            ];
        const repair = repairOf(graph, failure, broken, later);
        const added = repair?.added ?? null;
        const weights = added && graph.weightOf ? added.map(([u, v]) => graph.weightOf!(u, v)) : null;
        const links = count(lost.size, "link");
        const [is, it] = failure.of === "pair" ? ["fail", "they"] : ["fails", "it"];
        const consequence = broken.length
            ? `${count(broken.length, "topic is", "topics are")} disconnected until the overlay is repaired.`
            : "every topic stays connected.";
        const what =
            failure.of === "link"
                ? "the link"
                : failure.of === "site"
                  ? `${count(outage.brokers.size, "broker")} and ${links}`
                  : links;
        return [
            this.head(`If ${failure.of === "pair" ? "both" : `the ${failure.of}`} ${is}`, name),
            this.words(`${capital(what)} would be lost; ${consequence}`),
            facts(
                ...(outage.brokers.size > 1
                    ? ([["Brokers lost", num(outage.brokers.size)]] as [string, string][])
                    : []),
                ["Links lost", num(lost.size)],
                ["Topics disconnected", num(broken.length)],
                [
                    "Links to add",
                    added ? num(added.length) : repair === undefined ? "computing" : "not computed",
                ],
                ...(weights?.length
                    ? ([["Weight to add", this.weight(weights.reduce((a, b) => a + b, 0))]] as [
                          string,
                          string,
                      ][])
                    : []),
            ),
            el(
                "h4",
                {},
                repair?.maintained === false ? "Links that would reconnect them" : "Repair by maintain",
            ),
            added === null
                ? this.words(
                      repair === undefined
                          ? "Computing."
                          : "Not computed: the page does not hold the weights of all pairs.",
                  )
                : added.length
                  ? table(
                        `Links to add if ${it} ${is}`,
                        ["from", "to", "weight"],
                        added
                            .slice(0, MOST_ROWS)
                            .map(([u, v], i) => [
                                brokerButton(store, graph, u),
                                brokerButton(store, graph, v),
                                weights ? weights[i]! : "",
                            ]),
                    )
                  : this.words("None is needed."),
            ...(added && added.length > MOST_ROWS
                ? [this.words(`and ${num(added.length - MOST_ROWS)} more`)]
                : []),
            ...(repair?.maintained === false && added!.length
                ? [
                      this.words(
                          "Chosen in this page, link by link, by topics joined per weight; “broadloom maintain” can choose others.",
                      ),
                  ]
                : []),
            this.back(failure),
            el("h4", {}, "Topics disconnected"),
            this.topics(broken, "None."),
        ];
    }

    private back({ of, names: list }: Failure): HTMLElement {
        const { store } = this;
        const to = (): void =>
            of === "site"
                ? store.choose({ kind: "site", site: list[0]! })
                : of === "link"
                  ? store.choose({ kind: "link", ends: [list[0]!, list[1]!] })
                  : store.choose({ kind: "broker", broker: list[0]! });
        return button(`Back to the ${of === "pair" ? "first broker" : of}`, to, { class: "act" });
    }

    private ofChange(before: Graph, after: Graph): Node[] {
        const change = planChange(before, after);
        const { store } = this;
        const total = (links: { weight: number }[]): number =>
            links.reduce((sum, one) => sum + one.weight, 0);
        const list = (title: string, links: { link: [string, string]; weight: number }[]): Node[] => [
            el("h4", {}, title),
            links.length
                ? table(
                      title,
                      ["from", "to", "weight"],
                      links.slice(0, MOST_ROWS).map(({ link, weight }) => [...link, weight]),
                  )
                : this.words("None."),
            ...(links.length > MOST_ROWS ? [this.words(`and ${num(links.length - MOST_ROWS)} more`)] : []),
        ];
        const nameButton = (name: string): HTMLElement =>
            button(name, () => store.choose({ kind: "broker", broker: name }), { class: "name" });
        return [
            this.head("Change", `${before.plan.name} → ${after.plan.name}`),
            facts(
                ["Brokers that left", el("span", { class: "bad" }, `− ${num(change.left.length)}`)],
                ["Brokers that joined", el("span", { class: "good" }, `+ ${num(change.joined.length)}`)],
                ["Links added", el("span", { class: "good" }, `+ ${num(change.added.length)}`)],
                ["Links removed", el("span", { class: "bad" }, `− ${num(change.removed.length)}`)],
                ["Links kept", num(change.kept)],
                ["Weight added", this.weight(total(change.added))],
                ["Weight removed", this.weight(total(change.removed))],
            ),
            el("h4", {}, "Brokers that left"),
            names(change.left, nameButton, "None."),
            el("h4", {}, "Brokers that joined"),
            names(change.joined, nameButton, "None."),
            ...list("Links to add", change.added),
            ...list("Links to remove", change.removed),
        ];
    }
}

const capital = (text: string): string => `${text[0]!.toUpperCase()}${text.slice(1)}`;

/** The topics whose brokers are not connected. */
export function disconnected(graph: Graph): number[] {
    return graph.interest.topics
        .map((_, t) => t)
        .filter((t) => graph.plan.topics.hops[t] == null && graph.memberCount(t) > 0);
}

export function siteSizes(graph: Graph): number[] {
    const sizes = graph.interest.sites.map(() => 0);
    for (const site of graph.interest.siteOf) sizes[site]!++;
    return sizes;
}

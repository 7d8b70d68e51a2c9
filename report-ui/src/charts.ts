// Charts of an overlay plan. Plot draws SVG that takes its colours from the style sheet, so it prints and darkens well.

import * as Plot from "@observablehq/plot";
import { button, count, el, num, percent, section, table } from "./dom";
import { download, fileName, svgText } from "./exports";
import type { Graph } from "./graph";
import { brokerButton, facts, linkButton, top } from "./panel";
import type { AnyPlan } from "./record";
import type { Store } from "./state";

const MOST_SITES = 24;
const WORST = 8;

/** A chart with a text that describes it, and a button that saves it. */
export function chart(label: string, options: Plot.PlotOptions): HTMLElement {
    const drawn = Plot.plot({
        width: 440,
        height: 230,
        marginLeft: 44,
        marginBottom: 38,
        ...options,
        style: { background: "none", fontSize: "12px", overflow: "visible" },
    });
    for (const part of drawn.querySelectorAll("[aria-label]")) part.removeAttribute("aria-label"); // the whole has one
    drawn.setAttribute("role", "img");
    drawn.setAttribute("aria-label", label);
    const save = button(
        "SVG",
        () => download(`${fileName(label)}.svg`, svgText(drawn as SVGElement), "image/svg+xml"),
        {
            class: "save",
            "aria-label": `Save as SVG: ${label}`,
        },
    );
    return el("figure", { class: "chart" }, drawn, save);
}

/** How often each value occurs: one bar per value, or per interval where there are many values. */
export function histogram(values: number[], x: string, y: string, label: string): HTMLElement {
    const whole = values.every(Number.isInteger) && new Set(values).size <= 60;
    const counts = new Map<number, number>();
    for (const value of values) counts.set(value, (counts.get(value) ?? 0) + 1);
    const bars = [...counts].map(([value, n]) => ({ value, n }));
    return chart(label, {
        x: { label: x, ...(whole ? { tickFormat: "d", ticks: wholeTicks(values) } : {}) },
        y: { label: y, grid: true, tickFormat: "~s" },
        marks: [
            whole
                ? Plot.rectY(bars, {
                      x1: (d: { value: number }) => d.value - 0.45,
                      x2: (d: { value: number }) => d.value + 0.45,
                      y: "n",
                      fill: "var(--accent)",
                      title: (d: { value: number; n: number }) => `${d.value}: ${num(d.n)}`,
                  })
                : Plot.rectY(values, {
                      ...Plot.binX({ y: "count" }, { x: Plot.identity, thresholds: 30 }),
                      fill: "var(--accent)",
                  }),
            Plot.ruleY([0]),
        ],
    });
}

/** Whole numbers from the least value to the largest, at most a dozen. */
function wholeTicks(values: number[]): number[] {
    const [least, most] = [values.reduce((a, b) => Math.min(a, b), Infinity), longest(values)];
    const step = Math.max(1, Math.ceil((most - least) / 12));
    return Array.from({ length: Math.floor((most - least) / step) + 1 }, (_, i) => least + i * step);
}

const mean = (values: number[]): number => values.reduce((a, b) => a + b, 0) / Math.max(1, values.length);

export function degrees(graph: Graph): HTMLElement {
    const values = graph.interest.brokers.map((_, b) => graph.degree(b));
    if (!values.length) return section("Links per broker", "This plan has no brokers.");
    const words = `A broker has ${num(mean(values))} links on average, and at most ${num(longest(values))}.`;
    return section(
        "Links per broker",
        words,
        histogram(values, "links of a broker", "brokers", `Links per broker. ${words}`),
    );
}

export function diameters(graph: Graph): HTMLElement {
    const all = wanted(graph, graph.plan.topics.hops);
    const hops = known(all);
    if (!all.length) return section("Longest path per topic", "No broker subscribes to a topic.");
    if (!hops.length) return section("Longest path per topic", "No topic is connected.");
    const broken = all.length - hops.length;
    const words =
        `The longest path between two brokers of a topic has ${graph.plan.topics.exact ? "" : "at least "}${count(longest(hops), "hop")}; on average over the topics ${num(mean(hops))}.` +
        (broken ? ` ${count(broken, "topic is", "topics are")} not connected.` : "");
    return section(
        "Longest path per topic",
        words,
        histogram(hops, "longest path (hops)", "topics", `Longest path per topic, in hops. ${words}`),
    );
}

export function lengths(graph: Graph, unit: string): HTMLElement | null {
    const values = known(wanted(graph, graph.plan.topics.length));
    if (!graph.plan.weighted || !values.length) return null;
    const words = `The heaviest path between two brokers of a topic weighs ${graph.plan.topics.exact ? "" : "at least "}${num(longest(values))}${unit && ` ${unit}`}; on average over the topics ${num(mean(values))}.`;
    return section(
        "Longest path per topic, by weight",
        words,
        histogram(
            values,
            `longest path (${unit || "weight"})`,
            "topics",
            `Longest path per topic, by weight. ${words}`,
        ),
    );
}

/** The values of the topics that some broker subscribes to. */
const wanted = <T>(graph: Graph, values: T[]): T[] =>
    values.filter((_, topic) => graph.interest.start[topic + 1]! > graph.interest.start[topic]!);
const known = (values: (number | null)[]): number[] =>
    values.filter((value): value is number => value !== null);
const longest = (values: number[]): number => values.reduce((a, b) => Math.max(a, b), 0);

interface Pair {
    from: string;
    to: string;
    links: number;
    weight: number;
}

const brief = (name: string): string => (name.length > 24 ? `${name.slice(0, 23)}…` : name);

function sitePairs(graph: Graph): Pair[] {
    const pairs = new Map<string, Pair>();
    const { siteOf, sites } = graph.interest;
    for (let e = 0; e < graph.linkCount; e++) {
        const [a, b] = graph
            .ends(e)
            .map((broker) => siteOf[broker]!)
            .sort((x, y) => x - y) as [number, number];
        const key = `${a} ${b}`;
        const pair = pairs.get(key) ?? {
            from: sites[a] || "no site",
            to: sites[b] || "no site",
            links: 0,
            weight: 0,
        };
        pair.links++;
        pair.weight += graph.plan.links.weight[e]!;
        pairs.set(key, pair);
    }
    return [...pairs.values()].sort((a, b) => b.weight - a.weight);
}

export function sites(graph: Graph): HTMLElement | null {
    if (!graph.interest.siteOf.length) return null;
    const pairs = sitePairs(graph);
    const total = new Map<string, number>();
    for (const { from, to, weight } of pairs)
        for (const site of new Set([from, to])) total.set(site, (total.get(site) ?? 0) + weight);
    const shown = [...total.keys()].sort((a, b) => total.get(b)! - total.get(a)!).slice(0, MOST_SITES);
    const kept = new Set(shown);
    const cells = pairs.filter(({ from, to }) => kept.has(from) && kept.has(to));
    const both = cells.flatMap((pair) =>
        pair.from === pair.to ? [pair] : [pair, { ...pair, from: pair.to, to: pair.from }],
    );
    const all = pairs.reduce((sum, pair) => sum + pair.weight, 0);
    const inside = pairs.filter(({ from, to }) => from === to).reduce((sum, pair) => sum + pair.weight, 0);
    const words =
        `Links between the ${count(total.size, "site")} weigh ${num(all - inside)} together; links inside a site, ${num(inside)}.` +
        (total.size > MOST_SITES ? ` The ${MOST_SITES} sites with the highest weight are shown.` : "");
    const side = Math.max(200, 16 * shown.length);
    const picture = chart(`Weight of the links between each two sites. ${words}`, {
        width: side + 195,
        height: side + 165,
        marginLeft: 175,
        marginBottom: 155,
        padding: 0.08,
        x: { domain: shown, tickRotate: -60, label: null, tickSize: 0, tickFormat: brief },
        y: { domain: shown, label: null, tickSize: 0, tickFormat: brief },
        marks: [
            Plot.cell(both, {
                x: "from",
                y: "to",
                fill: "var(--accent)",
                fillOpacity: (d: Pair) => 0.08 + 0.92 * Math.sqrt(d.weight / (cells[0]?.weight || 1)),
                title: (d: Pair) => `${d.from} – ${d.to}: ${num(d.links)} links, weight ${num(d.weight)}`,
            }),
        ],
    });
    const costliest = table(
        "The pairs of sites with the highest weight",
        ["site", "site", "links", "weight", "share"],
        pairs
            .slice(0, WORST)
            .map((pair) => [
                pair.from,
                pair.to,
                pair.links,
                pair.weight,
                { number: percent(pair.weight / (all || 1)) },
            ]),
    );
    return section("Cost by pair of sites", words, el("div", { class: "split" }, picture, costliest));
}

export function bottlenecks(graph: Graph, store: Store): HTMLElement {
    const { plan } = graph;
    const weak = plan.holds.filter((n) => n > 0).length;
    const words = weak
        ? `${count(weak, "broker is", "brokers are")} needed by at least one topic, of ${num(graph.brokerCount)}: if one of them fails, the topic is disconnected until the overlay is repaired.`
        : "No topic needs any single broker: whichever fails, every topic stays connected.";
    const links = top(plan.links.load, WORST).map((e) => {
        const [u, v] = graph.ends(e);
        return [
            brokerButton(store, graph, u),
            brokerButton(store, graph, v),
            linkButton(store, graph, e, num(plan.links.load[e])),
            plan.links.holds[e]!,
            plan.links.weight[e]!,
        ];
    });
    const brokers = top(plan.load, WORST).map((b) => [
        brokerButton(store, graph, b),
        plan.load[b]!,
        graph.degree(b),
        plan.holds[b]!,
    ]);
    return section(
        "Bottlenecks",
        words,
        el(
            "div",
            { class: "split" },
            table("Links with the most topics", ["from", "to", "topics", "need it", "weight"], links),
            table("Brokers with the highest load", ["broker", "load", "links", "need it"], brokers),
        ),
        el(
            "p",
            { class: "note" },
            "Topics: those whose tree uses the link. Load: the sum of these over the links of a broker. Need it: topics that are disconnected without it.",
        ),
    );
}

/** How far the plan is from the proven bound. */
export function certificate(plan: AnyPlan): HTMLElement {
    const { bound, total, gap, words } = plan.certificate;
    const bars =
        bound !== null && total !== null && gap !== null
            ? chart(words, {
                  height: 120,
                  marginLeft: 90,
                  x: { label: null, grid: true, zero: true, tickFormat: "~s" },
                  y: { label: null, domain: ["this plan", "proven bound"] },
                  marks: [
                      Plot.barX(
                          [
                              { what: "this plan", value: total },
                              { what: "proven bound", value: bound },
                          ],
                          {
                              x: "value",
                              y: "what",
                              fill: (d: { what: string }) =>
                                  d.what === "this plan" ? "var(--accent)" : "var(--quiet)",
                          },
                      ),
                      Plot.ruleX([0]),
                  ],
              })
            : null;
    return section("Certificate", words, bars);
}

export function settings(plan: AnyPlan): HTMLElement {
    const pairs = Object.entries(plan.asked).map(
        ([name, value]) =>
            [name.replaceAll("_", " "), value === null ? "none" : String(value)] as [string, string],
    );
    return section("Settings", null, facts(...pairs));
}

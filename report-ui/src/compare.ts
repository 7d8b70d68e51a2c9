// Measures of one plan, of several side by side, and what changes from one to the other, in numbers.

import { button, el, num, percent, section, signed, table, type Cell } from "./dom";
import { download, toCsv } from "./exports";
import { planChange, type Graph } from "./graph";
import { facts } from "./panel";
import type { AnyPlan } from "./record";
import type { Store } from "./state";

// Measures of which less is better.
const LESS = new Set([
  "edges", "mean_degree", "max_degree", "weighted_mean_degree", "weighted_max_degree", "total_weight",
  "mean_diameter", "max_diameter", "weighted_mean_diameter", "weighted_max_diameter", "mean_routing_cost",
  "disconnected_topics", "bandwidth", "leaf_bandwidth", "delay_rms", "delay_max", "delay_over", "lbf", "load_std",
  "cost", "access_cost", "core_cost", "gap",
]); // prettier-ignore

/** A table of measures: one column per plan, each with its difference from the first; the smallest value of those that
 * should be small is marked. */
function measures(plans: AnyPlan[]): HTMLElement {
    const rows = plans.map(
        (plan) => ({ ...plan.metrics, gap: plan.certificate.gap }) as Record<string, unknown>,
    );
    const names = [...new Set(rows.flatMap((row) => Object.keys(row)))].filter((name) =>
        rows.some((row) => row[name] !== null && row[name] !== undefined),
    );
    // Only plans for the same brokers, subscriptions and kind of weights compete.
    const kinds = plans.map((plan, i) =>
        ["nodes", "subscriptions"]
            .map((name) => rows[i]![name])
            .concat("weighted" in plan ? plan.weighted : null),
    );
    const alike = plans.length > 1 && new Set(kinds.map((kind) => kind.join())).size === 1;
    const body = names.map((name) => {
        const values = rows.map((row) => row[name]);
        const numbers = values.filter((value): value is number => typeof value === "number");
        const least = alike && LESS.has(name) && new Set(numbers).size > 1 ? Math.min(...numbers) : null;
        return el(
            "tr",
            {},
            el("th", { scope: "row" }, measureName(name)),
            ...values.flatMap((value, i) => [
                el(
                    "td",
                    { class: `number${least !== null && value === least ? " best" : ""}` },
                    shown(name, value),
                    least !== null && value === least
                        ? el("span", { class: "mark", title: "the smallest" }, " ●")
                        : null,
                ),
                ...(i ? [el("td", { class: "number" }, difference(name, values[0], value))] : []),
            ]),
        );
    });
    const header = plans.flatMap((plan, i) => [
        el("th", { scope: "col", class: "number" }, plan.name),
        ...(i ? [el("th", { scope: "col", class: "number" }, "difference")] : []),
    ]);
    return el(
        "div",
        { class: "scroll", tabindex: 0, role: "group", "aria-label": "Measures" },
        el(
            "table",
            { class: "measures" },
            el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "measure"), ...header)),
            el("tbody", {}, ...body),
        ),
    );
}

/** A difference from the first plan: in absolute terms, and in per cent. */
function difference(name: string, first: unknown, value: unknown): string {
    if (typeof first !== "number" || typeof value !== "number") return "–";
    const change = value - first;
    if (Math.abs(change) <= 1e-12 * Math.abs(first)) return "0";
    if (name === "gap") return `${signed(Math.round(1000 * change) / 10)} points`;
    return first
        ? `${signed(change)} (${signed(Math.round((1000 * change) / first) / 10)} %)`
        : signed(change);
}

const NAMES: Record<string, string> = {
    nodes: "brokers",
    edges: "links",
    mean_degree: "mean links per broker",
    max_degree: "most links on one broker",
    weighted_mean_degree: "mean weight per broker",
    weighted_max_degree: "highest weight on one broker",
    mean_diameter: "mean longest path of a topic (hops)",
    max_diameter: "longest path in any topic (hops)",
    weighted_mean_diameter: "mean longest path of a topic (weight)",
    weighted_max_diameter: "longest path in any topic (weight)",
    mean_routing_cost: "mean weight of a topic's tree",
    disconnected_topics: "topics that are not connected",
};

const measureName = (name: string): string => NAMES[name] ?? name.replaceAll("_", " ");

function shown(name: string, value: unknown): string {
    if (typeof value === "number") return name === "gap" ? percent(value) : num(value);
    if (Array.isArray(value)) return value.join(", ") || "–";
    return value === null || value === undefined ? "–" : String(value);
}

/** The measures of one plan. */
export function measured(plan: AnyPlan): HTMLElement {
    const pairs = Object.entries(plan.metrics).map(
        ([name, value]) => [measureName(name), shown(name, value)] as [string, string],
    );
    return section(
        "Measures",
        null,
        el("div", { class: "columns split" }, ...pairs.map((pair) => facts(pair))),
        csvButton([plan]),
    );
}

function csvButton(plans: AnyPlan[]): HTMLElement {
    const names = [...new Set(plans.flatMap((plan) => Object.keys(plan.metrics)))];
    const value = (plan: AnyPlan, name: string): string | number | null => {
        const found = plan.metrics[name] ?? null;
        return typeof found === "number" || found === null ? found : String(found);
    };
    return button(
        "CSV",
        () =>
            download(
                "measures.csv",
                toCsv(
                    ["measure", ...plans.map((plan) => plan.name)],
                    names.map((name) => [name, ...plans.map((plan) => value(plan, name))]),
                ),
                "text/csv;charset=utf-8",
            ),
        { class: "act small", "aria-label": "Save the measures as CSV" },
    );
}

/** Plans of one kind side by side. */
export function comparison(plans: AnyPlan[]): HTMLElement {
    return section(
        "Plans side by side",
        `${plans.length} plans, and how each differs from ${plans[0]!.name}; the smallest value of each measure is marked with ●.`,
        measures(plans),
        csvButton(plans),
    );
}

/** Each two overlay plans by their brokers and links. */
export function changes(graphs: Graph[], store: Store): HTMLElement {
    const rows: Cell[][] = [];
    for (let before = 0; before < graphs.length; before++)
        for (let after = before + 1; after < graphs.length; after++) {
            const change = planChange(graphs[before]!, graphs[after]!);
            const show = button(
                "Show on the map",
                () =>
                    store.set(
                        { plan: after, sideBySide: false, choice: { kind: "change", before, after } },
                        { move: true, focus: true },
                    ),
                {
                    class: "act small",
                    "aria-label": `Show the change from ${graphs[before]!.plan.name} to ${graphs[after]!.plan.name} on the map`,
                },
            );
            rows.push([
                graphs[before]!.plan.name,
                graphs[after]!.plan.name,
                change.added.length,
                change.removed.length,
                change.kept,
                change.left.length,
                change.joined.length,
                show,
            ]);
        }
    return section(
        "Changes",
        null,
        table(
            "Links and brokers, from one plan to the other",
            ["before", "after", "added", "removed", "kept", "brokers left", "brokers joined", ""],
            rows,
        ),
    );
}

// Measures of one plan, of several side by side, and what changes from one to the other.

import { button, el, num, percent, section, table, type Cell } from "./dom";
import { linkChange, type Graph } from "./graph";
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

/** A table of measures, a column a plan; the least of those that should be small is marked. */
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
            el("th", { scope: "row" }, name.replaceAll("_", " ")),
            ...values.map((value) =>
                el(
                    "td",
                    { class: `number${least !== null && value === least ? " best" : ""}` },
                    shown(name, value),
                    least !== null && value === least
                        ? el("span", { class: "mark", title: "the least" }, " ●")
                        : null,
                ),
            ),
        );
    });
    const header = plans.map((plan) => el("th", { scope: "col", class: "number" }, plan.name));
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

function shown(name: string, value: unknown): string {
    if (typeof value === "number") return name === "gap" ? percent(value) : num(value);
    if (Array.isArray(value)) return value.join(", ") || "–";
    return value === null || value === undefined ? "–" : String(value);
}

/** The measures of one plan. */
export function measured(plan: AnyPlan): HTMLElement {
    const pairs = Object.entries(plan.metrics).map(
        ([name, value]) => [name.replaceAll("_", " "), shown(name, value)] as [string, string],
    );
    return section(
        "Measures",
        null,
        el("div", { class: "columns split" }, ...pairs.map((pair) => facts(pair))),
    );
}

/** Plans of one kind side by side. */
export function comparison(plans: AnyPlan[]): HTMLElement {
    return section(
        "Plans side by side",
        `${plans.length} plans; the least of each measure is marked with ●.`,
        measures(plans),
    );
}

/** Each two overlay plans by their links. */
export function changes(graphs: Graph[], store: Store): HTMLElement {
    const rows: Cell[][] = [];
    for (let before = 0; before < graphs.length; before++)
        for (let after = before + 1; after < graphs.length; after++) {
            const change = linkChange(graphs[before]!, graphs[after]!);
            const show = button(
                "Show on the map",
                () => (
                    store.set({ plan: after, choice: { kind: "change", before, after } }),
                    document.getElementById("maps")?.scrollIntoView({ block: "center" })
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
                show,
            ]);
        }
    return section(
        "Changes",
        null,
        table(
            "Links added and removed from one plan to the other",
            ["before", "after", "added", "removed", "kept", ""],
            rows,
        ),
    );
}

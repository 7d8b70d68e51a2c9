// Full tables of brokers, links and topics: sorted by any column, filtered by words, page by page, and as CSV.

import { button, count, el, num } from "./dom";
import { download, fileName, toCsv } from "./exports";
import { wordsOf } from "./finder";
import type { Graph } from "./graph";
import { brokerButton, linkButton, siteButton, topicButton } from "./panel";
import type { Store, TableName, TableState } from "./state";

const ROWS = 25; // per page

interface Column {
    name: string;
    /** A value per row: numbers, or text to sort and filter by. */
    value: (row: number) => number | string | null;
    /** The cell, where it is more than the value. */
    cell?: (row: number) => Node | string;
    number?: boolean;
    title?: string;
}

interface Source {
    rows: number;
    columns: Column[];
    /** Further text that a filter finds. */
    more?: (row: number) => string;
}

export function tables(store: Store, graph: () => Graph, title: string, unit: string): HTMLElement {
    const tabs = el("div", { class: "group", role: "group", "aria-label": "Table" });
    const filter = el("input", {
        type: "search",
        id: "filter",
        placeholder: "Filter by words",
        "aria-label": "Filter the rows by words",
        spellcheck: "false",
    });
    const said = el("span", { class: "words", role: "status", id: "rows-shown" });
    const body = el("div", {
        class: "scroll",
        tabindex: 0,
        role: "group",
        "aria-label": "Rows of the table",
    });
    const pages = el("div", { class: "group", role: "group", "aria-label": "Pages" });
    const set = (change: Partial<TableState>): void =>
        store.set({ table: { ...store.state.table, page: 0, ...change } });
    let known: { graph: Graph; name: TableName; source: Source } | null = null;
    let order: number[] = [];
    const sourceNow = (): Source => {
        const { name } = store.state.table;
        if (known?.graph !== graph() || known.name !== name)
            known = { graph: graph(), name, source: sourceOf(name, store, graph(), unit) };
        return known.source;
    };
    const show = (anew: boolean): void => {
        const { table } = store.state;
        const source = sourceNow();
        if (anew) order = sorted(source, table);
        const last = Math.max(0, Math.ceil(order.length / ROWS) - 1);
        const page = Math.min(table.page, last);
        const shown = order.slice(page * ROWS, (page + 1) * ROWS);
        tabs.replaceChildren(
            ...(["brokers", "links", "topics"] as const).map((name) =>
                button(name, () => set({ name, sort: "", down: false, filter: "" }), {
                    "aria-pressed": String(name === table.name),
                }),
            ),
        );
        if (filter.value !== table.filter) filter.value = table.filter;
        said.textContent = order.length
            ? `${num(page * ROWS + 1)} to ${num(page * ROWS + shown.length)} of ${count(order.length, table.name.slice(0, -1))}`
            : `No ${table.name} match.`;
        const focused = body.contains(document.activeElement)
            ? (document.activeElement as HTMLElement).dataset["column"]
            : undefined;
        body.replaceChildren(drawn(source, shown, table, set));
        if (focused) body.querySelector<HTMLElement>(`[data-column="${CSS.escape(focused)}"]`)?.focus();
        const to = (label: string, at: number, off: boolean): HTMLElement =>
            button(label, () => store.set({ table: { ...store.state.table, page: at } }), { disabled: off });
        pages.replaceChildren(
            to("First", 0, page === 0),
            to("Previous", page - 1, page === 0),
            to("Next", page + 1, page === last),
            to("Last", last, page === last),
        );
        pages.hidden = last === 0;
    };
    filter.addEventListener("input", () => set({ filter: filter.value }));
    const csv = button(
        "CSV",
        () => {
            const { columns } = sourceNow();
            const rows = order.map((row) => columns.map((column) => column.value(row)));
            const name = `${fileName(title)}-${store.state.table.name}.csv`;
            download(
                name,
                toCsv(
                    columns.map((column) => column.name),
                    rows,
                ),
                "text/csv;charset=utf-8",
            );
        },
        { class: "act small", id: "csv", "aria-label": "Save the rows as CSV" },
    );
    store.onChange((state, before) => {
        const { table } = state;
        const anew =
            state.plan !== before.plan ||
            table.name !== before.table.name ||
            table.sort !== before.table.sort ||
            table.down !== before.table.down ||
            table.filter !== before.table.filter;
        if (anew || table !== before.table) show(anew);
    });
    show(true);
    return el(
        "section",
        { class: "card", id: "tables" },
        el("h2", {}, "All brokers, links and topics"),
        el("div", { class: "toolbar" }, tabs, filter, csv, said),
        body,
        pages,
    );
}

function drawn(
    { columns }: Source,
    rows: number[],
    table: TableState,
    set: (change: Partial<TableState>) => void,
): HTMLElement {
    const heads = columns.map((column) => {
        const on = table.sort === column.name;
        const arrow = on ? (table.down ? " ▼" : " ▲") : "";
        const next = on ? !table.down : column.number === true;
        return el(
            "th",
            {
                scope: "col",
                class: column.number ? "number" : undefined,
                "aria-sort": on ? (table.down ? "descending" : "ascending") : undefined,
            },
            button(`${column.name}${arrow}`, () => set({ sort: column.name, down: next }), {
                class: "sort",
                "data-column": column.name,
                title: column.title ?? `Sort by ${column.name}`,
            }),
        );
    });
    const body = rows.map((row) =>
        el(
            "tr",
            {},
            ...columns.map((column) => {
                const value = column.value(row);
                const cell = column.cell?.(row) ?? (typeof value === "number" ? num(value) : (value ?? "–"));
                return el("td", { class: column.number ? "number" : undefined }, cell);
            }),
        ),
    );
    return el("table", {}, el("thead", {}, el("tr", {}, ...heads)), el("tbody", {}, ...body));
}

const collator = new Intl.Collator("en", { numeric: true });

/** The rows that a filter leaves, in order. */
function sorted(source: Source, table: TableState): number[] {
    const words = wordsOf(table.filter);
    const text = source.columns.filter((column) => !column.number);
    let rows = Array.from({ length: source.rows }, (_, row) => row);
    if (words.length)
        rows = rows.filter((row) => {
            const all = text.map((column) => column.value(row));
            const found = `${all.join(" ")} ${source.more?.(row) ?? ""}`.toLowerCase();
            return words.every((word) => found.includes(word));
        });
    const by = source.columns.find((column) => column.name === table.sort);
    if (!by) return rows;
    const sign = table.down ? -1 : 1;
    if (by.number) {
        // Rows without a value are last in both directions.
        const keys = new Map(rows.map((row) => [row, by.value(row) as number | null]));
        const key = (row: number): number => keys.get(row) ?? sign * Infinity;
        return rows.sort((a, b) => sign * (key(a) - key(b)) || a - b);
    }
    const distinct = [...new Set(rows.map((row) => by.value(row) as string))].sort((a, b) =>
        collator.compare(a, b),
    );
    const rank = new Map(distinct.map((name, i) => [name, i]));
    const key = (row: number): number => rank.get(by.value(row) as string)!;
    return rows.sort((a, b) => sign * (key(a) - key(b)) || a - b);
}

function sourceOf(name: TableName, store: Store, graph: Graph, unit: string): Source {
    const { plan, interest } = graph;
    const weight = unit ? `weight (${unit})` : "weight";
    const hasSites = graph.siteIndex.size > 0;
    if (name === "brokers") {
        const site: Column = {
            name: "site",
            value: (b) => graph.site(b),
            cell: (b) => (graph.site(b) ? siteButton(store, graph.site(b)) : "–"),
        };
        return {
            rows: graph.brokerCount,
            columns: [
                {
                    name: "broker",
                    value: (b) => interest.brokers[b]!,
                    cell: (b) => brokerButton(store, graph, b),
                },
                ...(hasSites ? [site] : []),
                { name: "links", value: (b) => graph.degree(b), number: true },
                { name: "topics", value: (b) => graph.topicCount(b), number: true },
                {
                    name: "load",
                    value: (b) => plan.load[b]!,
                    number: true,
                    title: "Topics on its links: the sum over the links",
                },
                {
                    name: "topics that need it",
                    value: (b) => plan.holds[b]!,
                    number: true,
                    title: "Topics that its failure disconnects",
                },
            ],
        };
    }
    if (name === "links") {
        const end = (side: 0 | 1): Pick<Column, "value" | "cell"> => ({
            value: (e) => interest.brokers[graph.ends(e)[side]]!,
            cell: (e) => brokerButton(store, graph, graph.ends(e)[side]),
        });
        return {
            rows: graph.linkCount,
            more: (e) =>
                graph
                    .ends(e)
                    .map((b) => graph.site(b))
                    .join(" "),
            columns: [
                { name: "from", ...end(0) },
                { name: "to", ...end(1) },
                { name: weight, value: (e) => plan.links.weight[e]!, number: true },
                {
                    name: "topics",
                    value: (e) => plan.links.load[e]!,
                    cell: (e) => linkButton(store, graph, e, num(plan.links.load[e])),
                    number: true,
                    title: "Topics whose tree uses the link",
                },
                {
                    name: "topics that need it",
                    value: (e) => plan.links.holds[e]!,
                    number: true,
                    title: "Topics that its failure disconnects",
                },
            ],
        };
    }
    const connected = (t: number): boolean => plan.topics.hops[t] != null || graph.memberCount(t) === 0;
    return {
        rows: interest.topics.length,
        columns: [
            { name: "topic", value: (t) => interest.topics[t]!, cell: (t) => topicButton(store, graph, t) },
            {
                name: "connected",
                value: (t) => (connected(t) ? "yes" : "NOT connected"),
                cell: (t) => (connected(t) ? "yes" : el("strong", { class: "bad" }, "NOT connected")),
            },
            { name: "brokers", value: (t) => graph.memberCount(t), number: true },
            { name: "longest path (hops)", value: (t) => plan.topics.hops[t] ?? null, number: true },
            ...(plan.weighted
                ? [
                      {
                          name: `longest path (${unit || "weight"})`,
                          value: (t: number) => plan.topics.length[t] ?? null,
                          number: true,
                      },
                  ]
                : []),
            {
                name: plan.weighted ? `tree (${unit || "weight"})` : "tree (links)",
                value: (t) => plan.topics.cost[t] ?? null,
                number: true,
            },
        ],
    };
}

// What a plan does not carry: subscriptions that are left out, and what cannot be published where.

import { button, count, el, num, section, table } from "./dom";
import { download, toCsv } from "./exports";
import type { NotCarried, OverlayRecord } from "./record";

const MOST_ROWS = 200;

interface Row {
    broker: string;
    topic: string;
    reason: string;
}

/** The section "Not carried"; if everything is carried, a line that says so, unless topics are not connected. */
export function notCarried(plan: OverlayRecord, broken: boolean): HTMLElement[] {
    const all = rowsOf(plan.notCarried);
    const fine = "Everything that clients subscribe to is carried.";
    if (!all.length) return broken ? [] : [el("p", { class: "words", id: "carried" }, fine)];
    const reasons = new Map<string, number>();
    for (const row of all) reasons.set(row.reason, (reasons.get(row.reason) ?? 0) + 1);
    const counts = [...reasons].sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1));
    const list = el("div", { "aria-live": "polite" });
    const show = (text: string): void => {
        const wanted = text.trim().toLowerCase();
        const found = all.filter((row) =>
            Object.values(row).some((one) => one.toLowerCase().includes(wanted)),
        );
        const shown = found.slice(0, MOST_ROWS);
        const more = found.length > shown.length ? `, the first ${num(shown.length)} of them here` : "";
        list.replaceChildren(
            table(
                `${count(found.length, "entry", "entries")}${more}`,
                ["broker", "topic or filter", "reason"],
                shown.map((row) => [row.broker, el("code", {}, row.topic), row.reason]),
            ),
        );
    };
    const csv = button(
        "CSV",
        () =>
            download(
                "not-carried.csv",
                toCsv(
                    ["broker", "topic or filter", "reason"],
                    all.map((row) => [row.broker, row.topic, row.reason]),
                ),
                "text/csv;charset=utf-8",
            ),
        { class: "act small", "aria-label": "Save everything that is not carried as CSV" },
    );
    const search = el("input", {
        type: "search",
        id: "find-not-carried",
        input: (event: Event) => show((event.target as HTMLInputElement).value),
    });
    show("");
    const made = section(
        "Not carried",
        "Clients subscribe to this or publish it, and the plan does not deliver it.",
        el(
            "div",
            { class: "split" },
            table("By reason", ["reason", "entries"], counts),
            el("div", {}, el("div", { class: "toolbar" }, el("label", {}, "Search ", search), csv), list),
        ),
    );
    made.id = "not-carried";
    return [made];
}

function rowsOf(record: NotCarried): Row[] {
    const rows = record.subscriptions.map(({ node, topic, reason }) => ({ broker: node, topic, reason }));
    for (const { node, filters, carried } of record.publications) {
        const kept = carried.length ? `, except ${carried.join(", ")}` : "";
        const reason = "not carried from the broker: nobody was seen to publish it there";
        rows.push(...filters.map((topic) => ({ broker: node, topic: `${topic}${kept}`, reason })));
    }
    return rows;
}

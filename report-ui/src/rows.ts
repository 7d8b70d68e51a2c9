// The row counts of a run, and its quarantined rows.

import { el, num, section, table } from "./dom";
import type { Rows } from "./record";

export function rows(record: Rows): HTMLElement {
    const quarantined = record.tables.flatMap((account) =>
        Object.entries(account.quarantined).map(([reason, n]) => ({ table: account.table, reason, n })),
    );
    const accounts = record.tables.map((a) => [
        a.table,
        a.rows,
        a.used,
        a.duplicates,
        Object.values(a.quarantined).reduce((x, y) => x + y, 0),
        a.written,
    ]);
    const reasons = quarantined
        .sort((a, b) => b.n - a.n)
        .map(({ table: name, reason, n }) => {
            const examples = record.examples.filter((one) => one.table === name && one.reason === reason);
            return [name, reason, n, el("code", {}, examples[0]?.row ?? "")];
        });
    return section(
        "Quarantine",
        `${record.words}.`,
        ...record.notes.map((note) => el("p", { class: "note" }, note)),
        el(
            "div",
            { class: "split" },
            table(
                "Rows by table",
                ["table", "rows", "used", "duplicates", "quarantine", "written"],
                accounts,
            ),
            reasons.length
                ? table("Quarantined rows, by reason", ["table", "reason", "rows", "example"], reasons)
                : el(
                      "p",
                      { class: "words" },
                      `No row is in quarantine, of ${num(record.tables.reduce((n, a) => n + a.rows, 0))} rows.`,
                  ),
        ),
    );
}

"""What became of the rows that a run was given: the ledger, and examples of what was quarantined."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from broadloom.model import LEDGER_FILE, RowLedger
from broadloom.storage.tables import read_table

# So many rows of each table and reason are shown, each cut at so many characters.
EXAMPLES, LONGEST = 3, 200


def rows_record(folder: Path) -> dict[str, Any] | None:
    """The accounts of a folder that `ingest` wrote; None where there is none."""
    if not (folder / LEDGER_FILE).exists():
        return None
    ledger = RowLedger.load(folder)
    return ledger.record() | {"words": ledger.summary(), "examples": _examples(folder)}


def _examples(folder: Path) -> list[dict[str, str]]:
    """A few rows of each table and reason, in their order."""
    table = read_table(folder, "quarantine")
    if table is None:
        return []
    shown = []
    for group in table.group_by(["table", "reason"]).aggregate([]).to_pylist():
        same = pc.and_(*(pc.equal(table[name], group[name]) for name in ("table", "reason")))
        rows = table.filter(same).slice(0, EXAMPLES).column("row").to_pylist()
        shown += [group | {"row": (row or "")[:LONGEST]} for row in rows]
    return sorted(shown, key=lambda one: (one["table"], one["reason"], one["row"]))

"""What became of every row: used, a duplicate, or in quarantine; and the sum must come out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

FILE = "ingest.json"


@dataclass(frozen=True)
class Account:
    """The rows of one table.

    Attributes:
        table: which.
        rows: how many came in; the headers of CSV files are no rows.
        used: how many of them the table was made from.
        duplicates: how many said again what another row had said.
        quarantined: how many were set aside, by reason.
        written: how many rows the table has: several used rows may be one of it.

    Examples:
        >>> Account("nodes", 5, 3, 1, {"no node": 1}, 3).adds_up
        True
    """

    table: str
    rows: int
    used: int
    duplicates: int
    quarantined: Mapping[str, int]
    written: int

    @property
    def adds_up(self) -> bool:
        """Whether rows in = rows used + duplicates + rows in quarantine."""
        return self.rows == self.used + self.duplicates + sum(self.quarantined.values())


@dataclass(frozen=True)
class Ledger:
    """The accounts of all tables, and what a reader should know of the data.

    Examples:
        >>> ledger = Ledger((Account("nodes", 5, 3, 1, {"no node": 1}, 3),))
        >>> ledger.summary()
        '5 rows: 3 used, 1 duplicates, 1 in quarantine'
    """

    accounts: tuple[Account, ...]
    notes: tuple[str, ...] = field(default_factory=tuple)

    def __post_init__(self) -> None:
        for account in self.accounts:
            assert account.adds_up, f"the rows of {account.table} do not add up: {account}"

    def summary(self) -> str:
        """All accounts in a sentence."""
        rows, used, duplicates = (
            sum(getattr(account, name) for account in self.accounts)
            for name in ("rows", "used", "duplicates")
        )
        return (
            f"{rows:,} rows: {used:,} used, {duplicates:,} duplicates, "
            f"{rows - used - duplicates:,} in quarantine"
        )

    def record(self) -> dict[str, Any]:
        """The ledger as JSON has it."""
        return {"tables": [asdict(account) for account in self.accounts], "notes": list(self.notes)}

    def save(self, folder: Path) -> None:
        """Write it beside the tables."""
        (folder / FILE).write_text(json.dumps(self.record(), indent=2) + "\n")

    @classmethod
    def load(cls, folder: Path) -> Ledger:
        """Read what `save` wrote."""
        record = json.loads((folder / FILE).read_text())
        return cls(tuple(Account(**account) for account in record["tables"]), tuple(record["notes"]))

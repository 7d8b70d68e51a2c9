"""Ledger of input rows: used, duplicate or in quarantine, with the reasons for quarantine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from broadloom.errors import InternalError

LEDGER_FILE = "ingest.json"


@dataclass(frozen=True)
class TableAccount:
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
class RowLedger:
    """The accounts of all tables, and what a reader should know of the data.

    Examples:
        >>> ledger = Ledger((Account("nodes", 5, 3, 1, {"no node": 1}, 3),))
        >>> ledger.summary()
        '5 rows: 3 used, 1 duplicates, 1 in quarantine'
    """

    accounts: tuple[TableAccount, ...]
    notes: tuple[str, ...] = field(default_factory=tuple)

    def __post_init__(self) -> None:
        for account in self.accounts:
            if not account.adds_up:
                raise InternalError(f"the rows of table {account.table} do not add up: {account}")

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
        (folder / LEDGER_FILE).write_text(json.dumps(self.record(), indent=2) + "\n")

    @classmethod
    def load(cls, folder: Path) -> RowLedger:
        """Read what `save` wrote."""
        record = json.loads((folder / LEDGER_FILE).read_text())
        return cls(tuple(TableAccount(**account) for account in record["tables"]), tuple(record["notes"]))


class Reason:
    """Reasons for which a row is in quarantine; the text stands in the table `quarantine`."""

    NOT_UTF8 = "not UTF-8"
    BLANK = "blank line"
    FIELDS = "wrong number of fields"
    QUOTE = "quotes do not match"
    NOT_JSON = "not a JSON object"
    CUT = "cut in the middle"
    NO_LIST = "not the document that was expected"
    UNSUBSCRIBED = "unsubscribed later"
    ENDED = "session ended later"
    OWN = "our own link"
    REPLY = "inbox of a reply"
    INTERNAL = "topic of the broker itself"
    BETWEEN_EXCHANGES = "binding between exchanges"
    NO_TOPIC_EXCHANGE = "not bound to a topic exchange"
    NOT_LISTED = "subscriptions are counted and not listed: ask for connz?subs=detail"
    BAD_FILTER = "not a topic filter"
    BAD_TOPIC = "not a topic"
    UNKNOWN_NODE = "unknown node"
    UNKNOWN_TOPIC = "unknown topic"
    NOT_POSITIVE = "rtt_ms is not above 0"
    SAME_ENDS = "src and dst are the same"

    @staticmethod
    def missing(column: str) -> str:
        """The reason for a row without a value that it needs."""
        return f"no {column}"

    @staticmethod
    def conflict(key: str) -> str:
        """The reason for a row that says something else than the one that is kept of its key."""
        return f"another row has this {key}"

    @staticmethod
    def not_a(column: str, kind: str) -> str:
        """The reason for a value of another type."""
        return f"{column} is not a {kind}"

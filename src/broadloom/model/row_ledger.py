"""Ledger of input rows (each is used, a duplicate, or in quarantine), and the reasons for quarantine."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from broadloom.errors import InputError, InternalError, error_from_os
from broadloom.storage import as_path, committed

LEDGER_FILE = "ingest.json"


@dataclass(frozen=True)
class TableAccount:
    """Row counts of one table.

    Attributes:
        table: the name of the table.
        rows: the number of input rows, without the headers of CSV files.
        used: the number of input rows that the table was made from.
        duplicates: the number of input rows that repeat another row.
        quarantined: the number of input rows in quarantine, by reason.
        written: the number of rows of the table; several used rows can make one.

    Examples:
        >>> TableAccount("nodes", 5, 3, 1, {"no node": 1}, 3).adds_up
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
    """Row counts of all tables, and notes on the data.

    Examples:
        >>> ledger = RowLedger((TableAccount("nodes", 5, 3, 1, {"no node": 1}, 3),))
        >>> ledger.summary()
        '5 rows: 3 used, 1 duplicates, 1 in quarantine'
    """

    accounts: tuple[TableAccount, ...]
    notes: tuple[str, ...] = field(default_factory=tuple)

    def __post_init__(self) -> None:
        for account in self.accounts:
            if not account.adds_up:
                raise InternalError(
                    f"the rows of table {account.table} do not add up: {account}; please report this"
                )

    def summary(self) -> str:
        """The totals over all tables, in a sentence."""
        rows, used, duplicates = (
            sum(getattr(account, name) for account in self.accounts)
            for name in ("rows", "used", "duplicates")
        )
        return (
            f"{rows:,} rows: {used:,} used, {duplicates:,} duplicates, "
            f"{rows - used - duplicates:,} in quarantine"
        )

    def reasons(self) -> list[str]:
        """A line for each reason for quarantine, with its rows in all tables; the most frequent one first.

        Examples:
            >>> RowLedger((TableAccount("nodes", 5, 1, 0, {"no node": 1, "blank line": 3}, 1),)).reasons()
            ['  in quarantine: 3 blank line', '  in quarantine: 1 no node']
        """
        counts: Counter[str] = Counter()
        for account in self.accounts:
            counts.update(account.quarantined)
        ordered = sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))
        return [f"  in quarantine: {count:,} {reason}" for reason, count in ordered]

    def record(self) -> dict[str, Any]:
        """The ledger in the types of JSON."""
        return {"tables": [asdict(account) for account in self.accounts], "notes": list(self.notes)}

    def save(self, folder: Path) -> None:
        """Write the ledger into the folder of the tables."""
        (as_path(folder) / LEDGER_FILE).write_text(json.dumps(self.record(), indent=2) + "\n")

    @classmethod
    def load(cls, folder: Path) -> RowLedger:
        """Read a ledger that `save` wrote.

        Raises:
            InputError: the file does not exist or is damaged.
            StorageError: the file cannot be read.
        """
        path = committed(folder) / LEDGER_FILE
        try:
            record = json.loads(path.read_text())
            accounts = tuple(TableAccount(**account) for account in record["tables"])
            return cls(accounts, tuple(record["notes"]))
        except OSError as error:
            raise error_from_os(f"{path} cannot be read", error) from error
        except (ValueError, KeyError, TypeError, AttributeError, InternalError) as error:
            raise InputError(f"{path} is damaged, or was edited: {error}") from error


class Reason:
    """Reasons for quarantine, as the table `quarantine` states them."""

    NOT_UTF8 = "not UTF-8"
    BLANK = "blank line"
    FIELDS = "wrong number of fields"
    QUOTE = "quotes do not match"
    NOT_JSON = "not a JSON object"
    CUT = "cut in the middle"
    NO_LIST = "not the document that was expected"
    UNSUBSCRIBED = "unsubscribed later"
    ENDED = "session ended later"
    EXPIRED = "session has expired"
    OWN = "our own link"
    REPLY = "inbox of a reply"
    LEAF_NODE = "leaf node of NATS, not a client"
    OUTSIDE = "outside of what links carry"
    INTERNAL = "topic of the broker itself"
    BETWEEN_EXCHANGES = "binding between exchanges"
    NO_TOPIC_EXCHANGE = "not bound to a topic exchange"
    NOT_LISTED = "subscriptions are counted and not listed: ask for connz?subs=detail"
    BAD_FILTER = "not a topic filter"
    BAD_TOPIC = "not a topic"
    UNKNOWN_NODE = "unknown node"
    UNKNOWN_TOPIC = "unknown topic"
    NOT_POSITIVE = "rtt_ms is not above 0"
    NEGATIVE_RATE = "rate is not a finite number from 0"
    SAME_ENDS = "src and dst are the same"

    @staticmethod
    def missing(column: str) -> str:
        """Reason for a row without a required value."""
        return f"no {column}"

    @staticmethod
    def conflict(key: str) -> str:
        """Reason for a row that contradicts the row that is kept for the same key."""
        return f"another row has this {key}"

    @staticmethod
    def not_a(column: str, kind: str) -> str:
        """Reason for a value of the wrong type."""
        return f"{column} is not a {kind}"

"""Events from tables and logs: each is applied once and in order, or set aside with a reason."""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from broadloom.errors import InputError
from broadloom.maintenance.changes import Change
from broadloom.maintenance.live import Live
from broadloom.maintenance.requests import JOIN, LEAVE, SUBSCRIBE, UNSUBSCRIBE

KINDS = (JOIN, LEAVE, SUBSCRIBE, UNSUBSCRIBE)
NOT_JSON, NOT_A_SEQ, NOT_TOPICS = (
    "not a JSON object",
    "seq is not a whole number",
    "topics is not a list of texts",
)
UNKNOWN_KIND, UNKNOWN_NODE, THERE_ALREADY = "unknown kind", "unknown node", "node is there already"
DUPLICATE, LATE = "duplicate: its seq was applied before", "late: a later seq was applied before"


class Event(NamedTuple):
    """An event as it was written, and what it says; `values` is None where it says nothing."""

    raw: str
    values: Mapping[str, Any] | None


class Applied(NamedTuple):
    """An event that was applied."""

    seq: int
    node: str
    change: Change


class Refused(NamedTuple):
    """An event that was set aside."""

    raw: str
    reason: str


class Seqs:
    """A set of numbers as ranges: of events that come in order there is one.

    Examples:
        >>> seqs = Seqs([[0, 3]])
        >>> for seq in (4, 7, 6):
        ...     seqs.add(seq)
        >>> seqs.ranges, 5 in seqs, seqs.last
        ([[0, 4], [6, 7]], False, 7)
    """

    def __init__(self, ranges: Iterable[list[int]] = ()) -> None:
        self.ranges = [list(one) for one in ranges]

    @property
    def last(self) -> int | None:
        """The largest one."""
        return self.ranges[-1][1] if self.ranges else None

    def __contains__(self, seq: int) -> bool:
        at = bisect_right(self.ranges, [seq, math.inf]) - 1
        return at >= 0 and seq <= self.ranges[at][1]

    def add(self, seq: int) -> None:
        """Put one in that is not there."""
        at = bisect_right(self.ranges, [seq, seq])
        self.ranges.insert(at, [seq, seq])
        for left in (at, at - 1):
            if 0 <= left < len(self.ranges) - 1 and self.ranges[left][1] + 1 == self.ranges[left + 1][0]:
                self.ranges[left][1] = self.ranges.pop(left + 1)[1]


class Feed:
    """Applies events to a live overlay.

    Events that come together are sorted by `seq`. One whose `seq` was applied is a duplicate, one that comes
    after a later one was applied is late; a gap is no fault, for nobody knows whether it will be filled.
    """

    def __init__(self, live: Live, seen: Seqs | None = None) -> None:
        self.live = live
        self.seen = seen or Seqs()

    def take(self, events: Iterable[Event]) -> Iterator[Applied | Refused]:
        """Apply events, in the order of their `seq`; those that say too little come first."""
        good = []
        for event in events:
            fault = fault_of(event.values)
            if fault is None and event.values is not None:
                good.append((event.values["seq"], event.raw, event.values))
            else:
                yield Refused(event.raw, fault or NOT_JSON)
        for seq, raw, values in sorted(good, key=lambda one: one[:2]):
            reason = self._untimely(seq)
            if reason is None:
                try:
                    change = self._do(values)
                except InputError as error:
                    reason = str(error)
                else:
                    self.seen.add(seq)
                    yield Applied(seq, values["node"], change)
            if reason is not None:
                yield Refused(raw, reason)

    def _untimely(self, seq: int) -> str | None:
        if seq in self.seen:
            return DUPLICATE
        return LATE if self.seen.last is not None and seq < self.seen.last else None

    def _do(self, values: Mapping[str, Any]) -> Change:
        kind, name, topics = values["kind"], values["node"], dict.fromkeys(values.get("topics") or ())
        node = self.live.named(name)
        if kind == JOIN:
            if node is not None:
                raise InputError(THERE_ALREADY)
            return self.live.join(topics, name=name, at=_place(self.live, values.get("at")))
        if node is None:
            raise InputError(UNKNOWN_NODE)
        return self.live.leave(node) if kind == LEAVE else self.live.apply([(0, kind, node, topics)])[0]


def fault_of(values: Mapping[str, Any] | None) -> str | None:
    """What an event lacks.

    Examples:
        >>> fault_of({"seq": 1, "kind": "leave", "node": "a"})
        >>> fault_of({"seq": 1, "kind": "quit", "node": "a"})
        'unknown kind'
    """
    if values is None:
        return NOT_JSON
    missing = next((f"no {name}" for name in ("seq", "kind", "node") if values.get(name) in (None, "")), None)
    if missing:
        return missing
    topics = values.get("topics")
    if not isinstance(values["seq"], int) or isinstance(values["seq"], bool):
        return NOT_A_SEQ
    if values["kind"] not in KINDS:
        return UNKNOWN_KIND
    if not isinstance(values["node"], str):
        return "node is not a text"
    if topics is not None and not (
        isinstance(topics, list) and all(isinstance(topic, str) and topic for topic in topics)
    ):
        return NOT_TOPICS
    return "no topics" if values["kind"] in (SUBSCRIBE, UNSUBSCRIBE) and not topics else None


def _place(live: Live, at: Any) -> Any:
    """The place of an event as `join` takes it: a site is a list of one number."""
    sites = live.plan().weights.kind == "sites" if at is not None and len(at) == 1 else False
    return int(at[0]) if sites else at


def read_events(path: Path) -> list[Event]:
    """The events of a file (Parquet, CSV, or JSON lines), or of the table `events` of a folder.

    Raises:
        InputError: there is no such file, or it cannot be read at all.
    """
    place = path
    if path.is_dir():
        found = [file for end in (".parquet", ".csv", ".jsonl") if (file := path / f"events{end}").exists()]
        place = found[0] if found else path / "events.parquet"
    if not place.exists():
        raise InputError(f"{place} is not there; give a file of events: .parquet, .csv or .jsonl")
    try:
        if place.suffix == ".jsonl":
            return [
                event_of(line) for line in place.read_text("utf-8", "replace").splitlines() if line.strip()
            ]
        if place.suffix == ".csv":
            return [_from_csv(row) for row in _texts(place)]
        return [Event(json.dumps(row), row) for row in pyarrow.parquet.read_table(place).to_pylist()]
    except (pa.ArrowInvalid, OSError, TypeError) as error:
        raise InputError(f"{place} cannot be read: {' '.join(str(error).split())}") from error


def event_of(line: str) -> Event:
    """An event from a line of JSON."""
    try:
        values = json.loads(line)
    except ValueError:
        values = None
    return Event(line, values if isinstance(values, dict) else None)


def _texts(place: Path) -> list[dict[str, str]]:
    """The rows of a CSV file, all as texts."""
    with pyarrow.csv.open_csv(place) as reader:
        names = reader.schema.names
    options = pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()))
    return pyarrow.csv.read_csv(place, convert_options=options).to_pylist()


def _from_csv(row: Mapping[str, str]) -> Event:
    """An event from a row of texts: seq is a number, topics and at are lists, written as in JSON."""
    values: dict[str, Any] = dict(row)
    for name in ("seq", "topics", "at"):
        try:
            values[name] = json.loads(row[name]) if row.get(name) else None
        except ValueError:
            continue  # `fault_of` says what is wrong
    return Event(json.dumps(row), values)

"""Feed of events: reading them, applying them to a live overlay, and recording each round.

Events come as JSON lines, CSV or Parquet. Each is applied once and in order, or refused with a reason.
"""

from __future__ import annotations

import csv
import json
import math
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from broadloom.checks import is_text
from broadloom.errors import InputError, StorageError, error_from_os
from broadloom.maintenance.changes import (
    JOIN,
    LEAVE,
    REBASELINE,
    RESUBSCRIBE,
    SUBSCRIBE,
    UNSUBSCRIBE,
    Change,
    ChangeRequest,
)
from broadloom.maintenance.dynamics import Drift
from broadloom.maintenance.live import Live
from broadloom.maintenance.node_columns import ADDRESS, SITE, check_columns
from broadloom.mqtt.topic_filters import SHARED, is_valid_filter, is_wild
from broadloom.progress import stage
from broadloom.storage import unpack

if TYPE_CHECKING:
    import pyarrow as pa

# Kinds of events, and the faults of an event by itself.
EVENT_KINDS = (JOIN, LEAVE, SUBSCRIBE, UNSUBSCRIBE)
NOT_JSON = "not a JSON object"
FIELDS = "wrong number of fields"
NOT_A_SEQ = "seq is not a whole number"
NOT_TOPICS = "topics is not a list of texts"
NOT_A_TEXT = "{} is not a text"
NOT_A_POSITION = "at is not a list of numbers, a site, or weights by node"
UNKNOWN_KIND = "unknown kind"
ENDINGS = (".parquet", ".csv", ".jsonl", ".json", ".ndjson")
# Reasons for which a feed refuses an event.
UNKNOWN_NODE = "unknown node"
EXISTS_ALREADY = "node exists already"
DUPLICATE = "duplicate: its seq was applied before"
NO_WEIGHT = "at has no weight to {!r}; give one for every node that is present, by name"
NOT_A_FILTER = "{!r} is not an MQTT topic filter"
LATE = "late: a later seq was applied before"
OLD = "duplicate or late: this or a later seq of its node was applied before"
# Columns of the tables of a run.
LINKS = {"seq": "int64", "action": "string", "u": "string", "v": "string"}
OF_EVENTS = (JOIN, LEAVE, RESUBSCRIBE)
FRESH = ("fresh_max_degree", "fresh_mean_degree")
_WHOLE = "int64"
_NUMBER = "float64"
ROUNDS = (
    {"seq": _WHOLE, "kind": "string", "node": "string"}
    | dict.fromkeys(("added", "removed", "repair_edges"), _WHOLE)
    | {"repair_ratio": _NUMBER, "shadow": _WHOLE, "ms": _NUMBER, "backup_ms": _NUMBER}
    | {"nodes": _WHOLE, "edges": _WHOLE, "max_degree": _WHOLE, "mean_degree": _NUMBER}
    | dict(zip(FRESH, (_WHOLE, _NUMBER), strict=True))
)
_MEANS = ("backup_ms", "repair_edges", "repair_ratio", "shadow")


class EventRow(NamedTuple):
    """An event as it was written, with its values; or with None and a fault, if it cannot be parsed."""

    raw: str
    values: Mapping[str, Any] | None
    fault: str = NOT_JSON


def read_events(path: Path) -> list[EventRow]:
    """The events of a file (Parquet, CSV, or JSON lines), or of the table `events` of a folder.

    Args:
        path: the path, also in a remote store.

    Raises:
        InputError: the file does not exist, or is not a file of events.
        StorageError: it cannot be read.
    """
    source = path
    if path.is_dir() and path.suffix != ".parquet":
        found = [file for ending in ENDINGS if (file := path / f"events{ending}").exists()]
        if len(found) > 1:
            raise InputError(f"{path} has both {found[0].name} and {found[1].name}; keep one")
        source = found[0] if found else path / "events.parquet"
    files = sorted(source.glob("*.parquet")) if source.is_dir() else [source]
    try:
        return [event for file in files for event in events_of(str(file), file.read_bytes())]
    except StorageError:
        raise
    except OSError as error:
        kind = type(error_from_os("", error))
        raise kind(
            f"{source} cannot be read: {error.strerror}; give a file of events: .parquet, .csv or .jsonl"
        ) from error


def events_of(name: str, data: bytes) -> list[EventRow]:
    r"""The events in the bytes of a file; the ending of its name tells its format.

    Raises:
        InputError: the format is unknown, or the content is damaged.

    Examples:
        >>> events_of("e.csv", b'seq,kind,node\n1,leave,a\n2\n')[0].values
        {'seq': 1, 'kind': 'leave', 'node': 'a'}
    """
    import pyarrow as pa

    ending = Path(name.removesuffix(".gz")).suffix
    if ending not in ENDINGS:
        raise InputError(f"{name} has an unknown ending; files of events end with {', '.join(ENDINGS)}")
    reader = {".parquet": _of_parquet, ".csv": _of_csv}.get(ending, _of_json)
    try:
        return list(reader(unpack(name, data) if name.endswith(".gz") else data))
    except (pa.ArrowException, csv.Error, ValueError, OSError) as error:
        raise InputError(f"{name} cannot be read: {' '.join(str(error).split())}") from error


def event_of(line: str) -> EventRow:
    """An event from a line of JSON."""
    return _event(line, _json(line))


def fault_of(event: EventRow) -> str | None:
    """The fault of an event by itself, whatever the overlay; None if it has no fault.

    Examples:
        >>> fault_of(event_of('{"seq": 1, "kind": "leave", "node": "a"}'))
        >>> fault_of(event_of('{"seq": 1, "kind": "quit", "node": "a"}'))
        'unknown kind'
    """
    values = event.values
    if values is None:
        return event.fault
    missing = next((f"no {name}" for name in ("seq", "kind", "node") if values.get(name) in (None, "")), None)
    topics = values.get("topics")
    faults = (
        (missing is not None, missing),
        (not _is_seq(values.get("seq")), NOT_A_SEQ),
        (values.get("kind") not in EVENT_KINDS, UNKNOWN_KIND),
        (not is_text(values.get("node")), "node is not a text"),
        (topics is not None and not (isinstance(topics, list) and all(map(is_text, topics))), NOT_TOPICS),
        (values.get("kind") in (SUBSCRIBE, UNSUBSCRIBE) and not topics, "no topics"),
        (not _is_position(values.get("at")), NOT_A_POSITION),
        *((not _is_optional_text(values.get(name)), NOT_A_TEXT.format(name)) for name in (ADDRESS, SITE)),
    )
    return next((reason for wrong, reason in faults if wrong), None)


def _is_seq(seq: object) -> bool:
    return isinstance(seq, int) and not isinstance(seq, bool) and -(2**63) <= seq < 2**63


def _is_optional_text(value: object) -> bool:
    return value is None or value == "" or is_text(value)


def _is_position(at: object) -> bool:
    return isinstance(at, (str, int, float, list, Mapping, type(None))) and not isinstance(at, bool)


def _event(raw: str, values: object) -> EventRow:
    """An event with its values; a position that was written as a text is parsed."""
    if not isinstance(values, dict):
        return EventRow(raw, None)
    at = values.get("at")
    if isinstance(at, str):
        position = _json(at) if at.lstrip()[:1] in ("[", "{") else None
        values = values | {"at": (at or None) if position is None else position}
    return EventRow(raw, values)


def _json(text: str) -> Any:
    """The value of a JSON text; None if it is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _lines(data: bytes) -> Iterator[str]:
    """The lines that are not blank; bytes that are not UTF-8 become surrogates, which later checks refuse."""
    for line in data.decode("utf-8-sig", "surrogateescape").split("\n"):
        if line.strip():
            yield line.rstrip("\r")


def _of_json(data: bytes) -> Iterator[EventRow]:
    return map(event_of, _lines(data))


def _of_csv(data: bytes) -> Iterator[EventRow]:
    """Events from rows of CSV: seq is a number and topics a list, written as in JSON."""
    lines = _lines(data)
    header = next(csv.reader([next(lines, "")]), [])
    for line in lines:
        try:
            row = next(csv.reader([line], strict=True))
        except csv.Error as error:
            yield EventRow(line, None, f"not a row of CSV: {error}")
            continue
        if len(row) != len(header):
            yield EventRow(line, None, FIELDS)
            continue
        values: dict[str, Any] = dict(zip(header, row, strict=True))
        for name in {"seq", "topics"} & values.keys():
            parsed = _json(values[name])
            values[name] = (values[name] or None) if parsed is None else parsed  # `fault_of` finds faults
        yield _event(line, values)


def _of_parquet(data: bytes) -> Iterator[EventRow]:
    import pyarrow as pa
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(pa.BufferReader(data))
    for row in table.to_pylist(maps_as_pydicts="lossy"):
        yield _event(json.dumps(row, default=str), row)


class AppliedEvent(NamedTuple):
    """An event that was applied."""

    seq: int
    node: str
    change: Change


class RefusedEvent(NamedTuple):
    """An event that was refused, with the reason."""

    raw: str
    reason: str


class SequenceSet:
    """A set of sequence numbers as ranges; events in order make one range.

    Examples:
        >>> seqs = SequenceSet([[0, 3]])
        >>> for seq in (4, 7, 6):
        ...     seqs.add(seq)
        >>> seqs.ranges, 5 in seqs, seqs.last
        ([[0, 4], [6, 7]], False, 7)
    """

    def __init__(self, ranges: Iterable[list[int]] = ()) -> None:
        self.ranges = [list(one) for one in ranges]

    @property
    def last(self) -> int | None:
        """The largest number, or None."""
        return self.ranges[-1][1] if self.ranges else None

    def __contains__(self, seq: int) -> bool:
        at = bisect_right(self.ranges, [seq, math.inf]) - 1
        return at >= 0 and seq <= self.ranges[at][1]

    def add(self, seq: int) -> None:
        """Add a number that is not in the set."""
        at = bisect_right(self.ranges, [seq, seq])
        self.ranges.insert(at, [seq, seq])
        for left in (at, at - 1):
            if 0 <= left < len(self.ranges) - 1 and self.ranges[left][1] + 1 == self.ranges[left + 1][0]:
                self.ranges[left][1] = self.ranges.pop(left + 1)[1]


class EventFeed:
    """Applies events to a live overlay.

    Events that come together are sorted by `seq`. An event whose `seq` was applied before is a duplicate; one
    that comes after a larger `seq` was applied is late. A gap is not a fault: it can be filled later.

    Events that come over several channels, each in order (partitions of Kafka, with the node as the key), are
    in order for each node only. Then an event is refused if this or a larger `seq` of its node was applied.

    Attributes:
        live: the overlay.
        seen: the sequence numbers that were applied, if all events are in one order.
        last_of_node: the last `seq` of each node, if events are in order for each node; otherwise None.
    """

    def __init__(
        self, live: Live, seen: SequenceSet | None = None, last_of_node: dict[str, int] | None = None
    ) -> None:
        self.live = live
        self.seen = seen or SequenceSet()
        self.last_of_node = last_of_node

    def take(self, events: Iterable[EventRow]) -> Iterator[AppliedEvent | RefusedEvent]:
        """Apply events in the order of their `seq`; events that cannot be parsed come first."""
        good = []
        for event in events:
            fault = fault_of(event)
            if fault is None and event.values is not None:
                good.append((event.values["seq"], event.raw, event.values))
            else:
                yield _refused(event.raw, fault or NOT_JSON)
        for seq, raw, values in sorted(good, key=lambda one: one[:2]):
            reason = self._untimely(seq, values["node"])
            if reason is None:
                try:
                    change = self.live._execute([self._request(values)])[0]
                except InputError as error:
                    reason = str(error)
                else:
                    self._note(seq, values["node"])
                    yield AppliedEvent(seq, values["node"], change)
            if reason is not None:
                yield _refused(raw, reason)

    def _note(self, seq: int, node: str) -> None:
        """Remember that an event was applied."""
        if self.last_of_node is None:
            self.seen.add(seq)
        else:
            self.last_of_node[node] = seq

    def _untimely(self, seq: int, node: str) -> str | None:
        """Why a `seq` comes too late, or None."""
        if self.last_of_node is not None:
            last = self.last_of_node.get(node)
            return OLD if last is not None and seq <= last else None
        if seq in self.seen:
            return DUPLICATE
        return LATE if self.seen.last is not None and seq < self.seen.last else None

    def _request(self, values: Mapping[str, Any]) -> ChangeRequest:
        """The request of an event: nodes and sites are named, as in tables."""
        kind = values["kind"]
        name = values["node"]
        topics = tuple(dict.fromkeys(map(_as_matched, values.get("topics") or ())))
        node = self.live.named(name)
        if kind == JOIN:
            if node is not None:
                raise InputError(EXISTS_ALREADY)
            columns = check_columns(values.get(ADDRESS) or None, values.get(SITE) or None)
            return ChangeRequest(JOIN, None, topics, name, _position(self.live, values.get("at")), columns)
        if node is None:
            raise InputError(UNKNOWN_NODE)
        return ChangeRequest(kind, node, () if kind == LEAVE else topics)


def _as_matched(topic: str) -> str:
    """A topic or filter as the broker matches it: without the prefix of a shared subscription.

    Raises:
        InputError: it has a wildcard in a position where MQTT does not allow it.

    Examples:
        >>> _as_matched("$share/workers/jobs/#"), _as_matched("c#")
        ('jobs/#', 'c#')
    """
    if not topic.startswith("$") and not is_wild(topic):
        return topic
    plain = re.sub(SHARED, "", topic)
    if (plain != topic or {"+", "#"} & set(plain.split("/"))) and not is_valid_filter(plain):
        raise InputError(NOT_A_FILTER.format(topic))
    return plain


def _refused(raw: str, reason: str) -> RefusedEvent:
    """A refused event; characters that cannot be encoded are escaped."""
    return RefusedEvent(*(text.encode("utf-8", "backslashreplace").decode() for text in (raw, reason)))


def _position(live: Live, at: Any) -> Any:
    """The position of an event as `Live.join` takes it; None if links have no weights."""
    if live.weights_kind == "uniform":
        return None
    if live.weights_kind == "dense":
        given = at if isinstance(at, Mapping) else {}
        missing = next((name for name in map(live.name_of, live.nodes.tolist()) if name not in given), None)
        if missing is not None:
            raise InputError(NO_WEIGHT.format(missing))
    if isinstance(at, Mapping):
        return {node: weight for name, weight in at.items() if (node := live.named(name)) is not None}
    if live.weights_kind != "sites":
        return at
    site = at[0] if isinstance(at, list) and len(at) == 1 else at
    if isinstance(site, float) and site.is_integer():
        site = int(site)
    if live.site_ids:
        return str(site) if isinstance(site, int) else site
    return int(site) if isinstance(site, str) and site.isdecimal() else site


class RoundLog:
    """A record of a run over events (paper 3, VI-C): tables `rounds`, `links` and `quarantine`."""

    def __init__(self) -> None:
        self.rounds: list[dict[str, Any]] = []
        self.links: list[tuple[int, str, str, str]] = []
        self.refused: list[RefusedEvent] = []

    @property
    def applied(self) -> int:
        """The number of applied events."""
        return sum(row["kind"] != REBASELINE for row in self.rounds)

    def run(
        self, feed: EventFeed, events: Sequence[EventRow], fresh_every: int = 0, rebaseline: bool = False
    ) -> None:
        """Apply events; after every `fresh_every`, compare with a fresh build, and rebuild if it is due."""
        live, names = feed.live, _Names(feed.live)
        with stage("events", len(events)) as done:
            for count, outcome in enumerate(feed.take(events), start=1):
                if isinstance(outcome, RefusedEvent):
                    self.refused.append(outcome)
                else:
                    self._add(outcome, live, names)
                    if fresh_every and sum(live.counts[kind] for kind in OF_EVENTS) % fresh_every == 0:
                        self._compare(outcome.seq, live, names, rebaseline)
                done(count)

    def _compare(self, seq: int, live: Live, names: _Names, rebaseline: bool) -> None:
        """Add the degrees of a fresh build to the last round, and rebuild if it is due."""
        drift = live.drift()
        self.rounds[-1] |= _fresh(drift)
        if rebaseline and live.rebuild_due(drift=drift):
            self._add(AppliedEvent(seq, "", live.rebaseline()), live, names)
            self.rounds[-1] |= _fresh(drift)

    def _add(self, applied: AppliedEvent, live: Live, names: _Names) -> None:
        """Append a round and its links."""
        self.rounds.append(_round(applied, live))
        self.links += names.links_of(applied)

    def tables(self) -> dict[str, pa.Table]:
        """The tables."""
        import pyarrow as pa

        links = {
            name: pa.array([row[i] for row in self.links], kind)
            for i, (name, kind) in enumerate(LINKS.items())
        }
        raws, reasons = ([getattr(one, name) for one in self.refused] for name in ("raw", "reason"))
        quarantine = {"table": ["events"] * len(raws), "row": raws, "reason": reasons}
        return {
            "rounds": _rounds_table(self.rounds),
            "links": pa.table(links),
            "quarantine": pa.table(
                {name: pa.array(column, pa.string()) for name, column in quarantine.items()}
            ),
        }

    def summary(self) -> dict[str, Any]:
        """A summary of all rounds in a few numbers."""
        kinds = {kind: [row for row in self.rounds if row["kind"] == kind] for kind in _kinds(self.rounds)}
        reasons = sorted({one.reason for one in self.refused})
        record: dict[str, Any] = {kind: _numbers(rows) for kind, rows in kinds.items()}
        record["quarantined"] = {
            reason: sum(one.reason == reason for one in self.refused) for reason in reasons
        }
        compared = [row for row in self.rounds if FRESH[0] in row]
        events = [row for row in compared if row["kind"] != REBASELINE]
        if compared:
            record["against_fresh"] = {
                "rounds": len(events),
                "max_degree_above": float(np.mean([row["max_degree"] - row[FRESH[0]] for row in events])),
                "mean_degree_above": float(np.mean([row["mean_degree"] - row[FRESH[1]] for row in events])),
                "last_max_degree_above": compared[-1]["max_degree"] - compared[-1][FRESH[0]],
                "last_mean_degree_above": compared[-1]["mean_degree"] - compared[-1][FRESH[1]],
            }
        return record


class _Names:
    """The names of nodes, including those that have just left."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._names = {node: live.name_of(node) for node in live.nodes.tolist()}

    def links_of(self, applied: AppliedEvent) -> list[tuple[int, str, str, str]]:
        """The rows of `links` for one event."""
        change = applied.change
        self._names.setdefault(change.node, applied.node)
        rows = [
            (applied.seq, action, self._names[u], self._names[v])
            for action, links in (("remove", change.removed), ("add", change.added))
            for u, v in links.tolist()
        ]
        if change.kind == "leave":
            del self._names[change.node]
        return rows


def _round(applied: AppliedEvent, live: Live) -> dict[str, Any]:
    change = applied.change
    return {
        "seq": applied.seq,
        "kind": change.kind,
        "node": applied.node,
        "added": len(change.added),
        "removed": len(change.removed),
        "repair_edges": change.repair_edges,
        "repair_ratio": change.repair_ratio,
        "shadow": len(change.shadow),
        "ms": 1e3 * change.seconds,
        "backup_ms": 1e3 * change.backup_seconds,
        "nodes": live.node_count,
        "edges": live.edge_count,
        "max_degree": live.max_degree,
        "mean_degree": live.mean_degree,
    }


def _fresh(drift: Drift) -> dict[str, Any]:
    return dict(zip(FRESH, (drift.fresh_max_degree, drift.fresh_mean_degree), strict=True))


def _kinds(rows: Iterable[dict[str, Any]]) -> list[str]:
    return sorted({row["kind"] for row in rows})


def _numbers(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Means over all rounds of one kind, and quantiles of their times."""
    times = np.array([row["ms"] for row in rows])
    means = {name: float(np.mean([row[name] for row in rows])) for name in _MEANS}
    spread = {"ms_mean": times.mean(), "ms_p50": np.quantile(times, 0.5), "ms_p99": np.quantile(times, 0.99)}
    return {"rounds": len(rows)} | {name: float(value) for name, value in spread.items()} | means


def _rounds_table(rows: Sequence[dict[str, Any]]) -> pa.Table:
    """A table with one row per round, always with the same columns."""
    import pyarrow as pa

    return pa.table({name: pa.array([row.get(name) for row in rows], kind) for name, kind in ROUNDS.items()})

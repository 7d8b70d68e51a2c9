"""Events as files say them: JSON lines, CSV or Parquet; what says too little is told apart, row by row."""

from __future__ import annotations

import csv
import gzip
import json
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet

from broadloom.errors import InputError
from broadloom.maintenance.requests import JOIN, LEAVE, SUBSCRIBE, UNSUBSCRIBE, is_text

KINDS = (JOIN, LEAVE, SUBSCRIBE, UNSUBSCRIBE)
NOT_JSON, FIELDS = "not a JSON object", "wrong number of fields"
NOT_A_SEQ, NOT_TOPICS = "seq is not a whole number", "topics is not a list of texts"
NOT_A_PLACE = "at is not a list of numbers, a site, or weights by node"
UNKNOWN_KIND = "unknown kind"
ENDINGS = (".parquet", ".csv", ".jsonl", ".json", ".ndjson")


class Event(NamedTuple):
    """An event as it was written, and what it says; or None, and the fault for which it says nothing."""

    raw: str
    values: Mapping[str, Any] | None
    fault: str = NOT_JSON


def read_events(path: Path) -> list[Event]:
    """The events of a file (Parquet, CSV, or JSON lines), or of the table `events` of a folder.

    Raises:
        InputError: there is no such file, or it cannot be read at all.
    """
    place = path
    if path.is_dir() and path.suffix != ".parquet":
        found = [file for ending in ENDINGS if (file := path / f"events{ending}").exists()]
        if len(found) > 1:
            raise InputError(f"{path} has both {found[0].name} and {found[1].name}; keep one")
        place = found[0] if found else path / "events.parquet"
    files = sorted(place.glob("*.parquet")) if place.is_dir() else [place]
    try:
        return [event for file in files for event in events_of(str(file), file.read_bytes())]
    except OSError as error:
        raise InputError(
            f"{place} cannot be read: {error.strerror}; give a file of events: .parquet, .csv or .jsonl"
        ) from error


def events_of(name: str, data: bytes) -> list[Event]:
    r"""The events in the bytes of a file, which is of the kind that its name says.

    Raises:
        InputError: it is of another kind, or cannot be read at all.

    Examples:
        >>> events_of("e.csv", b'seq,kind,node\n1,leave,a\n2\n')[0].values
        {'seq': 1, 'kind': 'leave', 'node': 'a'}
    """
    ending = Path(name.removesuffix(".gz")).suffix
    if ending not in ENDINGS:
        raise InputError(f"{name} is of no kind that is read; events are in {', '.join(ENDINGS)}")
    reader = {".parquet": _of_parquet, ".csv": _of_csv}.get(ending, _of_json)
    try:
        return list(reader(gzip.decompress(data) if name.endswith(".gz") else data))
    except (pa.ArrowException, ValueError, OSError, EOFError, zlib.error) as error:
        raise InputError(f"{name} cannot be read: {' '.join(str(error).split())}") from error


def event_of(line: str) -> Event:
    """An event from a line of JSON."""
    return _event(line, _json(line))


def fault_of(event: Event) -> str | None:
    """What is wrong with an event by itself, whatever there is to apply it to; None: nothing.

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
        (values.get("kind") not in KINDS, UNKNOWN_KIND),
        (not is_text(values.get("node")), "node is not a text"),
        (topics is not None and not (isinstance(topics, list) and all(map(is_text, topics))), NOT_TOPICS),
        (values.get("kind") in (SUBSCRIBE, UNSUBSCRIBE) and not topics, "no topics"),
        (not _may_be_place(values.get("at")), NOT_A_PLACE),
    )
    return next((reason for wrong, reason in faults if wrong), None)


def _is_seq(seq: object) -> bool:
    return isinstance(seq, int) and not isinstance(seq, bool) and -(2**63) <= seq < 2**63


def _may_be_place(at: object) -> bool:
    return isinstance(at, (str, int, float, list, Mapping, type(None))) and not isinstance(at, bool)


def _event(raw: str, values: object) -> Event:
    """An event of values, if they are some; a place that was written as a text is read."""
    if not isinstance(values, dict):
        return Event(raw, None)
    at = values.get("at")
    if isinstance(at, str):
        place = _json(at) if at.lstrip()[:1] in ("[", "{") else None
        values = values | {"at": (at or None) if place is None else place}
    return Event(raw, values)


def _json(text: str) -> Any:
    """What a text says in JSON; None: nothing."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _lines(data: bytes) -> Iterator[str]:
    """The lines that are not blank; what is no UTF-8 in them becomes what is no text."""
    for line in data.decode("utf-8-sig", "surrogateescape").split("\n"):
        if line.strip():
            yield line.rstrip("\r")


def _of_json(data: bytes) -> Iterator[Event]:
    return map(event_of, _lines(data))


def _of_csv(data: bytes) -> Iterator[Event]:
    """Events from rows of texts: seq is a number and topics a list, written as in JSON."""
    lines = _lines(data)
    header = next(csv.reader([next(lines, "")]), [])
    for line in lines:
        try:
            row = next(csv.reader([line], strict=True))
        except csv.Error as error:
            yield Event(line, None, f"not a row of CSV: {error}")
            continue
        if len(row) != len(header):
            yield Event(line, None, FIELDS)
            continue
        values: dict[str, Any] = dict(zip(header, row, strict=True))
        for name in {"seq", "topics"} & values.keys():
            said = _json(values[name])
            values[name] = (values[name] or None) if said is None else said  # `fault_of` tells what is wrong
        yield _event(line, values)


def _of_parquet(data: bytes) -> Iterator[Event]:
    table = pyarrow.parquet.read_table(pa.BufferReader(data))
    for row in table.to_pylist(maps_as_pydicts="lossy"):
        yield _event(json.dumps(row, default=str), row)

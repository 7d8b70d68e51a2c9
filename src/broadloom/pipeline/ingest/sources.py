"""Which files are given, of what kind they are, and how many lines they have; no Spark in it."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.parquet

from broadloom.errors import InputError
from broadloom.formats import FORMATS
from broadloom.storage.tables import OPTIONAL, REQUIRED

# The tables that are taken as they are; subscriptions and latency are worked on.
PLAIN = ("nodes", "topics", "publisher", "brokers", "subscribers", "density", "messages", "events")
TABLES: dict[str, dict[str, pa.DataType]] = {
    name: REQUIRED[name] for name in (*PLAIN, "subscriptions", "latency")
}

# Other names that columns go by.
ALIASES: dict[str, tuple[str, ...]] = {
    "node": ("node", "broker", "node_id"),
    "client": ("client", "clientid", "client_id", "device", "subscriber"),
    "topic": ("topic", "filter", "topic_filter"),
    "src": ("src", "source", "from"),
    "dst": ("dst", "destination", "target", "to"),
    "rtt_ms": ("rtt_ms", "rtt", "latency_ms", "ms"),
}

# What ingest can do with wildcards, and with the two directions of a latency.
WILDCARDS = ("match", "group")
SYMMETRIC = ("none", "mean", "min", "max")

MATRIX = "matrix"
DUMPS = {form.name: form for form in FORMATS}
KINDS = (*TABLES, MATRIX, *DUMPS)

_HEAD = 64 * 1024
_SIGNS = set("[]{}*?:\\")
_BLOCK = 4 * 1024 * 1024
_LARGEST_DUMP = 2**31 - 1


@dataclass(frozen=True)
class Source:
    """Where rows come from, as a user says it: `[KIND[@NODE]=]PATH`.

    Attributes:
        path: a file, a folder of files, or a pattern such as `logs/*.csv`.
        kind: a canonical table, "matrix", or a broker's dump; None: it is found out.
        node: the broker that a dump is of; None: as the dump says, or else the file's name.

    Examples:
        >>> Source.parse("mosquitto@berlin=logs/berlin.log")
        Source(path='logs/berlin.log', kind='mosquitto', node='berlin')
        >>> Source.parse("dumps").kind is None
        True
    """

    path: str
    kind: str | None = None
    node: str | None = None

    @classmethod
    def parse(cls, text: str) -> Source:
        """A source from the words of the command line."""
        before, equals, path = text.partition("=")
        if not equals or "/" in before.partition("@")[0]:
            return cls(text)
        kind, _, node = before.partition("@")
        return cls(path, kind or None, node or None)

    def __post_init__(self) -> None:
        if self.kind is not None and self.kind not in KINDS:
            raise InputError(f"source {self.path}: no kind {self.kind!r}; there are {', '.join(KINDS)}")


@dataclass(frozen=True)
class Input:
    """One file, and how it is read.

    Attributes:
        path: the file.
        table: the canonical table that its rows are for.
        reader: "csv", "jsonl", "parquet", "matrix", or the name of a dump's format.
        names: the columns that it has, as far as its beginning tells.
        header: of a CSV file its first line, of a Parquet file its types: what files that are alike share.
        node: the broker that a dump is of, where it does not say so itself.
    """

    path: Path
    table: str
    reader: str
    names: tuple[str, ...] = ()
    header: str = ""
    node: str = ""


def check_choices(wildcards: str = "match", symmetric: str = "none") -> None:
    """Refuse what ingest cannot do, before anything starts."""
    if wildcards not in WILDCARDS:
        raise InputError(f"no way {wildcards!r} to treat wildcards; there are {', '.join(WILDCARDS)}")
    if symmetric not in SYMMETRIC:
        raise InputError(f"no symmetric rule {symmetric!r}; there are {', '.join(SYMMETRIC)}")


def find_inputs(sources: Iterable[Source]) -> list[Input]:
    """Every file of the sources, in order of their paths, each with its kind.

    Raises:
        InputError: a file is missing, of no kind that is known, in UTF-16, cut (Parquet), or lacks a column;
            or all are empty.
    """
    found: dict[Path, Input] = {}
    for source in sources:
        for path in _files(source.path):
            if (one := _recognise(path, source)) is not None:
                found[path] = one
    if not found:
        raise InputError("every source is empty; give at least one row")
    return [found[path] for path in sorted(found)]


def total_bytes(inputs: Iterable[Input]) -> int:
    """The size of the files together."""
    return sum(one.path.stat().st_size for one in inputs)


def count_lines(path: Path) -> int:
    """The lines of a text file; a last one without its end counts.

    Read in blocks, without any parser: the figure that all accounting has to add up to.
    """
    count, last = 0, b"\n"
    with open_file(path) as file:
        while block := file.read(_BLOCK):
            count += block.count(b"\n")
            last = block[-1:]
    return count + (last != b"\n")


def open_file(path: Path) -> IO[bytes]:
    """A file's bytes; unpacked if its name ends in .gz."""
    return gzip.open(path) if path.suffix == ".gz" else path.open("rb")  # type: ignore[return-value]


def separator(header: str) -> str:
    """What stands between the fields of a CSV file: a tab, a semicolon or a comma, as in its header."""
    return next((sign for sign in "\t;" if sign in header), ",")


def fields(header: str) -> list[str]:
    """The names in a CSV file's header."""
    return [name.strip().strip('"').lower() for name in header.split(separator(header))]


def columns_for(names: Iterable[str], column: str) -> list[str]:
    """All of `names` that a canonical column goes by."""
    have = set(names)
    return [name for name in ALIASES.get(column, (column,)) if name in have]


def column_of(names: Iterable[str], column: str) -> str | None:
    """The one of `names` that a canonical column goes by here, or None.

    Examples:
        >>> column_of(["device", "broker"], "node")
        'broker'
    """
    return next(iter(columns_for(names, column)), None)


def _files(path: str) -> list[Path]:
    place = Path(path)
    found = [place] if place.is_file() else list(place.rglob("*"))
    if not place.exists():
        found = list(Path(place.anchor or ".").glob(path.removeprefix(place.anchor)))
    chosen = sorted(
        file.absolute() for file in found if file.is_file() and not file.name.startswith((".", "_"))
    )
    if not chosen:
        raise InputError(f"source {path}: there is no such file; give a file, a folder or a pattern")
    odd = next((file for file in chosen if set(str(file)) & _SIGNS), None)
    if odd is not None:
        raise InputError(
            f"{odd}: Spark takes the signs {' '.join(sorted(_SIGNS))} in a name for others; rename it"
        )
    return chosen


def _recognise(path: Path, source: Source) -> Input | None:
    """What a file is; None if it is empty."""
    if path.suffix == ".gz":
        _check_packed(path)
    head = _head(path)
    if head is None:
        return None
    node = source.node or path.name.split(".")[0]
    if source.kind == MATRIX:
        return Input(path, "latency", MATRIX)
    if source.kind in DUMPS:
        return _dump(path, source.kind, node)
    if head.startswith("PAR1"):
        schema = _parquet_schema(path)
        return _canonical(path, source.kind, "parquet", schema.names, str(schema.types))
    line = head.partition("\n")[0].rstrip("\r")
    form = next((form for form in FORMATS if source.kind is None and form.looks_like(head)), None)
    if form is not None:
        return _dump(path, form.name, node)
    if line.lstrip().startswith("{") or {".jsonl", ".ndjson"} & set(path.suffixes):
        return _canonical(path, source.kind, "jsonl", _keys(head))
    return _canonical(path, source.kind, "csv", fields(line), line)


def _check_packed(path: Path) -> None:
    """Refuse a packed file that is cut or damaged: Spark would fail at its end, with all rows before it."""
    try:
        with open_file(path) as file:
            while file.read(_BLOCK):
                pass
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(
            f"{path} is cut or damaged ({error}); unpack what is there: gunzip -c {path.name} > {path.stem}"
        ) from error


def _head(path: Path) -> str | None:
    """The beginning of a file as text."""
    try:
        with open_file(path) as file:
            head = file.read(_HEAD)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error
    if head.startswith((b"\xff\xfe", b"\xfe\xff")) or head[1:2] == b"\x00":
        raise InputError(f"{path} is UTF-16; convert it first: iconv -f UTF-16 -t UTF-8")
    return head.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace") or None


def _dump(path: Path, kind: str, node: str) -> Input:
    if path.stat().st_size > _LARGEST_DUMP:
        raise InputError(f"{path} is larger than 2 GiB, and a dump is read whole; split it")
    return Input(path, "subscriptions", kind, node=node)


def _canonical(path: Path, kind: str | None, reader: str, names: list[str], header: str = "") -> Input:
    table = _table(path, kind, names)
    if table == "events" and reader == "jsonl":  # a first one that leaves has no topics, but others do
        names = list(dict.fromkeys([*names, *OPTIONAL[table]]))
    return Input(path, table, reader, tuple(names), header)


def _parquet_schema(path: Path) -> pa.Schema:
    try:
        return pa.parquet.read_schema(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(f"{path} is cut or damaged: {str(error).partition(chr(10))[0]}") from error


def _keys(head: str) -> list[str]:
    """The keys of the lines that are JSON objects, and one that any line of subscriptions may have."""
    keys: dict[str, None] = {}
    for line in head.split("\n"):
        try:
            value = json.loads(line)
        except ValueError:
            continue
        keys |= dict.fromkeys(value) if isinstance(value, dict) else {}
    return [*keys, *({"client"} - keys.keys())]


def _table(path: Path, asked: str | None, names: list[str]) -> str:
    """The table that was asked for, or that the file's name says, or that needs most of these columns."""
    word = asked or path.name.split(".")[0].rstrip("-_0123456789")
    candidates = [word] if word in TABLES else sorted(TABLES, key=lambda name: -len(TABLES[name]))
    if word == "brokers" and asked is None:
        candidates.append("nodes")  # a list of brokers with their sites
    for table in candidates:
        if all(column_of(names, column) for column in TABLES[table]):
            return table
    have = ", ".join(names)[:200] or "none"
    if word in TABLES:
        needs = TABLES[word]
        first = next(column for column in needs if not column_of(names, column))
        raise InputError(
            f"{path} has no column {first!r}: table {word} needs {', '.join(needs)}; it has {have}"
        )
    raise InputError(
        f"{path} is of no kind that is known (its columns: {have}); "
        f"say which: KIND={path.name}, where KIND is one of {', '.join(KINDS)}"
    )


def columns_of(table: str, names: Iterable[str] = (), optional: bool = True) -> dict[str, pa.DataType]:
    """The columns that ingest keeps of a table, required ones first; coordinates are those in `names`."""
    if not optional:
        return TABLES[table]
    extra = {"client": pa.string()} if table == "subscriptions" else {}
    if table == "nodes":
        extra = {name: pa.float64() for name in sorted(names) if re.fullmatch(r"[xyz]|x\d+", name)}
    return TABLES[table] | OPTIONAL.get(table, {}) | extra

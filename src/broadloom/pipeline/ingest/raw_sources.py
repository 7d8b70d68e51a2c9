"""Raw inputs of ingest: the files and tables of each source, their kinds, and their columns.

Only tables of Spark's catalog, and of Delta and Iceberg, need a session to find their columns.
"""

from __future__ import annotations

import csv
import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet

from broadloom.checks import and_more
from broadloom.errors import InputError, error_from_os
from broadloom.formats import FORMATS, dump_problem
from broadloom.formats.mosquitto_db import FORMAT as MOSQUITTO_DB
from broadloom.formats.mosquitto_db import read_version
from broadloom.storage import MOST_UNPACKED, RemotePath, as_path, committed, is_committed, is_hidden
from broadloom.storage.tables import OPTIONAL, REQUIRED

# The tables that ingest only checks and copies; it computes the others from their rows.
PLAIN = ("nodes", "topics", "publisher", "brokers", "subscribers", "density", "messages", "events")
TABLES: dict[str, dict[str, pa.DataType]] = {
    name: REQUIRED[name] for name in (*PLAIN, "subscriptions", "latency", "publications")
}
_ORDER = {name: number for number, name in enumerate(TABLES)}
# The tables that are not recognised by their columns, only by the kind or the name of the file.
BY_NAME = ("publications",)
# Further columns of the table nodes have this prefix until the table is written; numbers among them.
FURTHER = "further:{}"
NODE_NUMBERS = ("lat", "lon", "capacity")

# The names that a column can have, the canonical one first.
ALIASES: dict[str, tuple[str, ...]] = {
    "node": ("node", "broker", "node_id"),
    "client": ("client", "clientid", "client_id", "device", "subscriber"),
    "topic": ("topic", "filter", "topic_filter"),
    "src": ("src", "source", "from"),
    "dst": ("dst", "destination", "target", "to"),
    "rtt_ms": ("rtt_ms", "rtt", "latency_ms", "ms"),
}

# The values of the options `wildcards` and `symmetric`.
WILDCARDS = ("group", "match")
SYMMETRIC = ("none", "mean", "min", "max")

MATRIX = "matrix"
DUMPS = {form.name: form for form in FORMATS}
KINDS = (*TABLES, MATRIX, *DUMPS)

_HEAD_BYTES = 64 * 1024
# The longest line of a table, in bytes: Spark keeps a whole line in memory, in several copies.
LONGEST_LINE = 16 * 1024 * 1024
# Text compresses five to fifty times. What unpacks to more than this, and is so much smaller, is refused.
MOST_RATIO = 100
# JSON lines up to this size are read as a whole to find their columns; of larger files, the beginning.
_SCANNED_BYTES = 16 * 1024 * 1024
# Prefixes of sources that Spark reads by itself: a table of its catalog, or the folder of a table format.
SPARK_TABLES = ("table", "delta", "iceberg")
HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
_BLOCK_BYTES = 4 * 1024 * 1024
_MOST_SHOWN = 3  # sources in an error
# Dumps up to this size are checked before Spark starts, and logs of any size up to their first subscription.
_CHECKED_BYTES = 64 * 1024 * 1024
# Characters that Spark interprets in a path.
_SPECIAL = set("[]{}*?:\\")


@dataclass(frozen=True)
class RawSource:
    """A source of raw rows, on the command line `[KIND[@NODE]=]PATH` or `KIND(COLUMNS)=PATH`.

    Attributes:
        path: a file, a folder of files, or a pattern such as `logs/*.csv`, local or a URI; or a table that
            Spark reads: `table:catalog.db.name`, `delta:PATH`, `iceberg:PATH`.
        kind: a canonical table, "matrix", or a format of dumps; None: detected from the content.
        node: the broker of a dump that does not name it; None: the file's name up to the first dot.
        columns: the declared columns of a canonical table: all columns of CSV files without a header, in
            order, "-" for one that is not used (`client,-,node,topic`); or other names that columns have
            (`node:hub,topic:path`). Empty: the files say it.

    Examples:
        >>> RawSource.parse("mosquitto@berlin=logs/berlin.log")
        RawSource(path='logs/berlin.log', kind='mosquitto', node='berlin', columns=())
        >>> RawSource.parse("subscriptions(node:hub,topic:path)=a.jsonl").columns
        ('node:hub', 'topic:path')
        >>> RawSource.parse("dumps").kind is None
        True
        >>> RawSource.parse("s3a://logs/day=1/a.csv").kind is None
        True
    """

    path: str
    kind: str | None = None
    node: str | None = None
    columns: tuple[str, ...] = ()

    @property
    def own_names(self) -> tuple[tuple[str, str], ...]:
        """The columns with a declared name: (column, name)."""
        pairs = (one.partition(":") for one in self.columns)
        return tuple((column, name) for column, colon, name in pairs if colon)

    @property
    def spark_format(self) -> str | None:
        """The format if Spark reads the source as a table: "table", "delta" or "iceberg"; otherwise None."""
        prefix, colon, name = self.path.partition(":")
        if colon and prefix in SPARK_TABLES:
            if not name:
                raise InputError(f"source {self.path}: no name; give {prefix}:NAME")
            return prefix
        if any(sign in self.path for sign in "*?["):
            return None
        folder = as_path(self.path)
        if (folder / "_delta_log").is_dir():
            return "delta"
        return "iceberg" if any((folder / "metadata").glob("*.metadata.json")) else None

    @classmethod
    def parse(cls, text: str) -> RawSource:
        """Read `[KIND[@NODE]=]PATH` or `KIND(COLUMNS)=PATH`."""
        declared = re.fullmatch(r"([\w-]+)\(([^()]*)\)=(.*)", text, re.DOTALL)
        if declared:
            columns = tuple(name.strip() for name in declared[2].split(","))
            return cls(declared[3], declared[1], None, columns)
        before, equals, path = text.partition("=")
        if not equals or "/" in before.partition("@")[0]:
            return cls(text)
        kind, _, node = before.partition("@")
        return cls(path, kind or None, node or None)

    def __post_init__(self) -> None:
        if self.kind is not None and self.kind not in KINDS:
            raise InputError(f"source {self.path}: unknown kind {self.kind!r}; there are {', '.join(KINDS)}")
        if self.columns:
            _check_declared(self)


def _check_declared(source: RawSource) -> None:
    """Raise if the declared columns of a source are not columns of its table, or lack a required one."""
    table = source.kind or ""
    if table not in TABLES:
        raise InputError(f"source {source.path}: columns can be declared for {', '.join(TABLES)} only")
    named = [column for column, _ in source.own_names]
    if named and len(named) < len(source.columns):
        raise InputError(
            f"source {source.path}: give COLUMN:NAME for each column, or all columns in their order"
        )
    listed = named or [column for column in source.columns if column != "-"]
    known = columns_of(table, listed)
    wrong = next((one for one in listed if not one or (one not in known and table != "nodes")), None)
    if wrong is not None or "" in dict(source.own_names).values() or len(set(listed)) < len(listed):
        raise InputError(
            f"source {source.path}: {','.join(source.columns)} are not columns of {table}; "
            f"give each of {', '.join(known)} at most once"
        )
    missing = next((column for column in TABLES[table] if not named and column not in listed), None)
    if missing is not None:
        raise InputError(
            f"source {source.path}: no column {missing!r} among {','.join(source.columns)}; "
            f"table {table} needs {', '.join(TABLES[table])}"
        )


@dataclass(frozen=True)
class RawFile:
    """One file of a source, with its table and its reader.

    Attributes:
        path: the path of the file.
        table: the canonical table that its rows belong to.
        reader: "csv", "jsonl", "parquet", "matrix", or the name of a dump's format.
        names: its columns; of JSON lines, those that a row can have.
        header: the first line of a CSV file, or the types of a Parquet file; files with the same header are
            read together. Of a CSV file without a header, a text that no line can be.
        node: the broker of a dump that does not name it itself.
        partitions: the columns that the names of its folders give (`site=rome/part-0.csv`).
        dropped: its columns that ingest does not use.
        own_names: the columns whose name is declared: (column, name).
    """

    path: Path
    table: str
    reader: str
    names: tuple[str, ...] = ()
    header: str = ""
    node: str = ""
    partitions: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    own_names: tuple[tuple[str, str], ...] = ()

    def names_of(self, column: str) -> list[str]:
        """Those of the file's columns that can be a canonical column: the declared one, or all its names."""
        return columns_for(self.all_names, column, self.own_names)

    @property
    def all_names(self) -> tuple[str, ...]:
        """The columns of the file and of its folders."""
        return (*self.partitions, *self.names)

    @property
    def size(self) -> int:
        """The size in bytes; 0 for a table that Spark reads."""
        return 0 if self.reader in SPARK_TABLES else self.path.stat().st_size

    @property
    def stamp(self) -> int | None:
        """The time of the last change; None for a table that Spark reads, whose changes are not known."""
        return None if self.reader in SPARK_TABLES else self.path.stat().st_mtime_ns


def check_choices(wildcards: str = "group", symmetric: str = "none") -> None:
    """Raise if an option of ingest has an unknown value."""
    if wildcards not in WILDCARDS:
        raise InputError(f"wildcards is {wildcards!r}; there are {', '.join(WILDCARDS)}")
    if symmetric not in SYMMETRIC:
        raise InputError(f"symmetric is {symmetric!r}; there are {', '.join(SYMMETRIC)}")


def find_files(
    sources: Iterable[RawSource], spark_columns: Callable[[str, str], tuple[list[str], str]] | None = None
) -> list[RawFile]:
    """All files of the sources, in the order of their paths.

    Args:
        sources: the sources.
        spark_columns: returns the columns of a table that Spark reads, and their types as a text, for its
            format and name; needed only if there is such a source.

    Raises:
        InputError: a file is missing, of an unknown kind, in UTF-16, truncated, or lacks a column; or all
            files are empty.
        StorageError: a file cannot be read.
    """
    found: dict[Path, RawFile] = {}
    for source in sources:
        form = source.spark_format
        if form is not None:
            path = Path(source.path.removeprefix(f"{form}:"))
            if spark_columns is None:
                raise InputError(f"source {source.path} can only be read by Spark")
            name = source.path.removeprefix(f"{form}:")
            found[path] = _canonical(path, source, form, *spark_columns(form, name))
            continue
        for path, partitions in _files(source.path):
            if (file := _recognise(path, source, partitions)) is not None:
                found[path] = file
    if not found:
        raise InputError("every source is empty; give at least one row")
    return [found[path] for path in sorted(found)]


def check_dumps(files: Iterable[RawFile]) -> list[str]:
    """One note per dump without subscriptions, or with too few: the setting that is missing.

    Raises:
        InputError: no other source has subscriptions or subscribers.
    """
    listed = list(files)
    empty: list[str] = []
    notes: list[str] = []
    for one in listed:
        large = one.reader != "mosquitto" and one.size > _CHECKED_BYTES
        if one.reader not in DUMPS or large:
            continue
        with open_file(one.path) as file:
            problem = dump_problem(DUMPS[one.reader], file)
        if problem is not None:
            notes.append(f"{one.path}: {problem.text}")
            empty += notes[-1:] if problem.empty else []
    wanted = [one for one in listed if one.table in ("subscriptions", "subscribers")]
    if empty and len(empty) == len(wanted):
        raise InputError("; ".join(empty[:_MOST_SHOWN]) + and_more(max(len(empty) - _MOST_SHOWN, 0)))
    return notes


def total_bytes(files: Iterable[RawFile]) -> int:
    """The total size of the files."""
    return sum(one.size for one in files)


def count_lines(path: Path) -> int:
    """The number of lines of a text file; a last line without a line end counts.

    The file is read in blocks, without a parser. The rows in the ledger must add up to this number.

    Raises:
        InputError: a line is longer than `LONGEST_LINE`.
    """
    lines = _LineMeter()
    with open_file(path) as file:
        while block := file.read(_BLOCK_BYTES):
            lines.feed(block)
            _check_too_long(path, lines.too_long)
    return lines.count()


def _check_too_long(path: Path, line: int | None) -> None:
    if line is not None:
        raise InputError(
            f"{path}: line {line:,} is longer than {LONGEST_LINE >> 20} MiB, so it is not a row; "
            "remove it, or end its rows with line ends"
        )


class _LineMeter:
    """Number and length of the lines of a text that comes in blocks.

    Attributes:
        too_long: the number of the first line longer than `LONGEST_LINE`.
    """

    def __init__(self) -> None:
        self.too_long: int | None = None
        self._ends = 0
        self._size = 0  # of the last line, so far

    def feed(self, block: bytes) -> None:
        """Take the next block, which is no longer than a line can be."""
        ends = block.count(b"\n")
        if self._size + (block.find(b"\n") if ends else len(block)) > LONGEST_LINE and self.too_long is None:
            self.too_long = self._ends + 1
        self._ends += ends
        self._size = len(block) - block.rfind(b"\n") - 1 if ends else self._size + len(block)

    def count(self) -> int:
        """The number of lines."""
        return self._ends + bool(self._size)


def open_file(path: Path) -> IO[bytes]:
    """Open a file; decompress it if its name ends in .gz."""
    if path.suffix != ".gz":
        return path.open("rb")
    return gzip.open(path.open("rb") if isinstance(path, RemotePath) else path)  # type: ignore[return-value]


def separator(header: str) -> str:
    """The separator of a CSV file: a tab or a semicolon if its header has one, otherwise a comma."""
    return next((sign for sign in "\t;" if sign in header), ",")


def fields(header: str) -> list[str]:
    """The names in a CSV file's header."""
    return [name.strip().strip('"').lower() for name in header.split(separator(header))]


def columns_for(names: Iterable[str], column: str, own_names: Iterable[tuple[str, str]] = ()) -> list[str]:
    """Those of `names` that are names of a canonical column: the declared one, else those in `ALIASES`."""
    known = set(names)
    declared = [name for one, name in own_names if one == column]
    return [name for name in declared or ALIASES.get(column, (column,)) if name in known]


def column_of(names: Iterable[str], column: str, own_names: Iterable[tuple[str, str]] = ()) -> str | None:
    """The name of a canonical column among `names`, or None.

    Examples:
        >>> column_of(["device", "broker"], "node")
        'broker'
    """
    return next(iter(columns_for(names, column, own_names)), None)


def _files(path: str) -> list[tuple[Path, tuple[str, ...]]]:
    """The files of a path or pattern, sorted, each with the columns that its folders give.

    Files and folders that Spark and Hadoop ignore (`_temporary`, hidden ones) are left out.
    """
    start = as_path(path)
    found = _remote_files(start) if isinstance(start, RemotePath) else _local_files(start)
    chosen = sorted(
        (file, _partitions(parts[:-1])) for file, parts in found if parts and not any(map(is_hidden, parts))
    )
    if not chosen:
        raise InputError(f"source {path}: no such file; give a file, a folder or a pattern")
    inner = ((file, str(file).partition("://")[2] or str(file)) for file, _ in chosen)
    special = next((file for file, text in inner if set(text) & _SPECIAL), None)
    if special is not None:
        raise InputError(
            f"{special}: Spark cannot read a path with one of {' '.join(sorted(_SPECIAL))}; rename it"
        )
    return chosen


def _local_files(start: Path) -> list[tuple[Path, tuple[str, ...]]]:
    """The files of a local path or pattern, each with its parts below the start."""
    if start.is_file():
        return [(start.absolute(), (*_partition_folders(start), start.name))]
    if start.exists():
        below = [file for file in start.rglob("*") if file.is_file()]
        above = _partition_folders(start / "file")
        return [(file.absolute(), above + file.relative_to(start).parts) for file in below]
    pattern = str(start).removeprefix(start.anchor)
    found = [file for file in Path(start.anchor or ".").glob(pattern) if file.is_file()]
    fixed = next((number for number, part in enumerate(start.parts) if set(part) & set("*?[")), 0)
    return [
        (file.absolute(), tuple(part for part in file.parts[:fixed] if "=" in part) + file.parts[fixed:])
        for file in found
    ]


def _remote_files(start: RemotePath) -> list[tuple[Path, tuple[str, ...]]]:
    """The files of a URI; of a folder that Broadloom wrote, those that its manifest lists."""
    text = str(start)
    if not any(sign in text for sign in "*?["):
        root = committed(as_path(start)) if is_committed(as_path(start)) else as_path(start)
        below = list(root.files())  # type: ignore[attr-defined]
        above = _partition_folders(start / "file")
        if below == [root]:
            return [(root, (*_partition_folders(start), start.name))]
        return [(one, (*above, *str(one).removeprefix(f"{root}/").split("/"))) for one in below]
    base = text[: text.rindex("/", 0, min(text.index(sign) for sign in "*?[" if sign in text)) + 1]
    matched = RemotePath(base.rstrip("/")).glob(text.removeprefix(base))
    return [(as_path(one), tuple(str(one).removeprefix(base).split("/"))) for one in matched]


def _partition_folders(path: Path | RemotePath) -> tuple[str, ...]:
    """The folders directly above a file that name a partition, such as `site=rome`."""
    found: list[str] = []
    folder = path.parent
    while "=" in folder.name:
        found.insert(0, folder.name)
        folder = folder.parent
    return tuple(found)


def _partitions(folders: Iterable[str]) -> tuple[str, ...]:
    """The columns that folders give: `("day=1", "x")` gives `day`.

    Examples:
        >>> _partitions(("raw", "site=rome", "day=2024-01-01"))
        ('site', 'day')
    """
    return tuple(unquote(name) for name, sign, _ in (one.partition("=") for one in folders) if sign and name)


def _recognise(path: Path, source: RawSource, partitions: tuple[str, ...] = ()) -> RawFile | None:
    """The table and the reader of a file; None if it is empty."""
    too_long = _check_compressed(path) if path.suffix == ".gz" else None
    head = _head(path)
    if head is None:
        return None
    node = source.node or path.name.split(".")[0]
    if source.kind == MATRIX:
        return RawFile(path, "latency", MATRIX)
    if source.kind in DUMPS:
        return _dump(path, source.kind, node)
    if head.startswith("PAR1"):
        schema = _parquet_schema(path)
        return _canonical(path, source, "parquet", schema.names, str(schema.types), partitions)
    line = head.partition("\n")[0].rstrip("\r")
    form = next((form for form in FORMATS if source.kind is None and form.looks_like(head)), None)
    if form is not None:
        return _dump(path, form.name, node)
    _check_too_long(path, too_long)
    if line.lstrip().startswith("{") or {".jsonl", ".ndjson"} & set(path.suffixes):
        return _canonical(path, source, "jsonl", _keys(path, _SCANNED_BYTES), "", partitions)
    if source.columns and not source.own_names:
        return _without_header(path, source, line, partitions)
    return _canonical(path, source, "csv", fields(line), line, partitions)


def _without_header(path: Path, source: RawSource, line: str, partitions: tuple[str, ...]) -> RawFile:
    """A CSV file with declared columns; its first line is a row, unless it has the names of the columns."""
    count = len(source.columns)
    found = ((sign, next(csv.reader([line], delimiter=sign), [""])) for sign in ",;\t")
    sign, cells = next(((sign, cells) for sign, cells in found if len(cells) == count), ("", []))
    if not sign:
        raise InputError(
            f"{path}: {count} columns are declared, but the first line has another number of fields: "
            f"{line[:200]}"
        )
    pairs = zip(source.columns, cells, strict=True)
    is_header = all(cell.strip().lower() in ALIASES.get(name, (name,)) for name, cell in pairs if name != "-")
    names = [
        f"number {number}" if name == "-" else name for number, name in enumerate(source.columns, start=1)
    ]
    header = line if is_header else f"{sign}\n"
    return _canonical(path, source, "csv", names, header, partitions)


def _check_compressed(path: Path) -> int | None:
    """Raise if a compressed file is truncated, damaged or a bomb; Spark would fail in the middle of the work.

    Returns:
        The number of the first line that is too long for a row; None: there is none.
    """
    most = max(MOST_UNPACKED, MOST_RATIO * path.stat().st_size)
    size = 0
    lines = _LineMeter()
    try:
        with open_file(path) as file:
            while block := file.read(_BLOCK_BYTES):
                lines.feed(block)
                size += len(block)
                if size > most:
                    raise InputError(
                        f"{path} unpacks to more than {MOST_UNPACKED >> 30} GiB, and to more than "
                        f"{MOST_RATIO} times its size; if this is right, unpack it yourself"
                    )
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(
            f"{path} is truncated or damaged ({error}); to use its beginning, run: "
            f"gunzip -c {path.name} > {path.stem}"
        ) from error
    except OSError as error:
        raise error_from_os(f"{path} cannot be read", error) from error
    return lines.too_long


def _head(path: Path) -> str | None:
    """The beginning of a file as text; None if the file is empty."""
    try:
        with open_file(path) as file:
            head = file.read(_HEAD_BYTES)
    except OSError as error:
        raise error_from_os(f"{path} cannot be read", error) from error
    if head.startswith((b"\xff\xfe", b"\xfe\xff")) or head[1:2] == b"\x00":
        raise InputError(f"{path} is UTF-16; convert it first: iconv -f UTF-16 -t UTF-8")
    return head.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace") or None


def _dump(path: Path, kind: str, node: str) -> RawFile:
    if kind == MOSQUITTO_DB.name:
        with open_file(path) as file:
            try:
                read_version(file)  # an unknown version is an error before any work
            except InputError as error:
                raise InputError(f"{path}: {error}") from error
    return RawFile(path, "subscriptions", kind, node=node)


def _canonical(
    path: Path,
    source: RawSource,
    reader: str,
    names: list[str],
    header: str = "",
    partitions: tuple[str, ...] = (),
) -> RawFile:
    own = source.own_names
    if reader == "jsonl":  # a declared key can first appear in any line
        names = list(dict.fromkeys([*names, *(name for _, name in own)]))
    elif reader == "csv":  # the names of a header are in lower case
        own = tuple((column, name.lower()) for column, name in own)
    if source.columns and not own and reader != "csv":
        raise InputError(f"{path} is not CSV, so its columns have names; declare them as COLUMN:NAME")
    absent = next((name for _, name in own if name not in (*partitions, *names)), None)
    if absent is not None:
        raise InputError(
            f"{path} has no column {absent!r}, which is declared; it has {', '.join(names)[:200]}"
        )
    table = _table(path, source.kind, [*partitions, *names], own)
    if reader == "jsonl" and table == "nodes":  # all columns are kept, also those that first appear late
        names = _keys(path)
    quoted = next((name for name in names if table == "nodes" and set(name) & {"'", "`", "\\"}), None)
    if quoted is not None:
        raise InputError(f"{path}: Spark cannot read a column named {quoted!r}; name it without ' ` and \\")
    file = RawFile(path, table, reader, tuple(names), header, "", partitions, own_names=own)
    dropped = dropped_columns(file)
    if reader == "jsonl":  # a column can first appear in any line
        declared = dict(own)
        known = [name for _, name in own]
        for column in columns_of(table).keys() - declared.keys():
            known += ALIASES.get(column, (column,))
        kept = names if table == "nodes" else [name for name in names if name not in dropped]
        names = sorted({*known, *kept})
    return replace(file, names=tuple(names), dropped=dropped)


def dropped_columns(one: RawFile) -> tuple[str, ...]:
    """The columns of a file that ingest does not use.

    Examples:
        >>> names = ("node", "broker", "topic", "qos")
        >>> dropped_columns(RawFile(Path("a.csv"), "subscriptions", "csv", names))
        ('broker', 'qos')
    """
    used = set(further_columns(one))
    for column in columns_of(one.table, one.all_names):
        found = one.names_of(column)
        used.update(found if one.reader == "jsonl" else found[:1])
    return tuple(name for name in dict.fromkeys(one.all_names) if name not in used)


def dropped_notes(files: Iterable[RawFile]) -> list[str]:
    """One note per table on the columns that are not used."""
    dropped: dict[str, dict[str, None]] = {}
    for one in files:
        if one.dropped:
            dropped.setdefault(one.table, {}).update(
                dict.fromkeys(name or "(no name)" for name in one.dropped)
            )
    return [f"{table}: not used: column {', '.join(names)}" for table, names in sorted(dropped.items())]


def _parquet_schema(path: Path) -> pa.Schema:
    try:
        if isinstance(path, RemotePath):
            return pa.parquet.read_schema(path.store_path, filesystem=path.filesystem)
        return pa.parquet.read_schema(path)
    except (pa.ArrowInvalid, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise error_from_os(f"{path} cannot be read", error) from error
        raise InputError(f"{path} is truncated or damaged: {str(error).partition(chr(10))[0]}") from error


def _keys(path: Path, limit: int | None = None) -> list[str]:
    """The keys of all lines that are JSON objects, in the first `limit` bytes of a file."""
    keys: dict[str, None] = {}
    size = 0
    with open_file(path) as file:
        while line := file.readline(LONGEST_LINE + 1):
            if len(line.rstrip(b"\n")) > LONGEST_LINE:
                count_lines(path)  # names it
            size += len(line)
            if limit is not None and size > limit:
                break
            try:
                value = json.loads(line.removeprefix(b"\xef\xbb\xbf"))
            except ValueError:
                continue
            keys |= dict.fromkeys(value) if isinstance(value, dict) else {}
    return list(keys)


def _table(path: Path, kind: str | None, names: list[str], own_names: Iterable[tuple[str, str]] = ()) -> str:
    """The table that the kind or the file's name says, else the widest one with all columns in `names`."""
    name = kind or _table_name(path)
    by_columns = sorted(TABLES.keys() - set(BY_NAME), key=lambda table: (-len(TABLES[table]), _ORDER[table]))
    candidates = [name] if name in TABLES else by_columns
    if name == "brokers" and kind is None:
        candidates.append("nodes")  # a list of brokers with their sites
    for table in candidates:
        if all(column_of(names, column, own_names) for column in TABLES[table]):
            return table
    columns = ", ".join(names)[:200] or "none"
    if name in TABLES:
        needs = TABLES[name]
        first = next(column for column in needs if not column_of(names, column, own_names))
        raise InputError(
            f"{path} has no column {first!r}: table {name} needs {', '.join(needs)}; it has {columns}"
        )
    raise InputError(
        f"{path} is of an unknown kind (its columns: {columns}); "
        f"give it as KIND={path.name}, where KIND is one of {', '.join(KINDS)}"
    )


def _table_name(path: Path) -> str:
    """The name of a table by the name of a file; of files of Spark (`part-...`), by that of their folder.

    Examples:
        >>> _table_name(Path("raw/nodes-2.csv")), _table_name(Path("publications/day=1/part-00.parquet"))
        ('nodes', 'publications')
    """
    name = path.name
    if re.match(r"part-\d", name) or "=" in path.parent.name:
        folder = path.parent
        while "=" in folder.name:
            folder = folder.parent
        name = folder.name if _stem(folder.name) in TABLES else name
    return _stem(name)


def _stem(name: str) -> str:
    return name.split(".")[0].rstrip("-_0123456789")


def columns_of(table: str, names: Iterable[str] = (), optional: bool = True) -> dict[str, pa.DataType]:
    """The columns that ingest keeps of a table, required ones first; coordinates are those in `names`."""
    if not optional:
        return TABLES[table]
    extra = {"client": pa.string()} if table == "subscriptions" else {}
    if table == "nodes":
        extra = {name: pa.float64() for name in sorted(names) if re.fullmatch(r"[xyz]|x\d+", name)}
    return TABLES[table] | OPTIONAL.get(table, {}) | extra


def further_columns(one: RawFile) -> dict[str, pa.DataType | None]:
    """The further columns of a file of nodes, with their types; None: the type that the file has.

    Examples:
        >>> further_columns(RawFile(Path("nodes.csv"), "nodes", "csv", ("node", "site", "lat", "rack")))
        {'lat': DataType(double), 'rack': DataType(string)}
    """
    if one.table != "nodes":
        return {}
    known = {*columns_of("nodes", one.all_names), *ALIASES["node"], *(name for _, name in one.own_names), ""}
    text = None if one.reader in ("parquet", *SPARK_TABLES) else pa.string()
    own = {name: pa.float64() if name in NODE_NUMBERS else text for name in one.names if name not in known}
    above = {name: pa.float64() if name in NODE_NUMBERS else pa.string() for name in one.partitions}
    return own | {name: kind for name, kind in above.items() if name not in known}

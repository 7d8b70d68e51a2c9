"""The canonical tables: their columns, and the one place that reads and writes them."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import NDArray

from broadloom.checks import raise_for_first
from broadloom.errors import InputError

_TEXTS, _NUMBERS = pa.list_(pa.string()), pa.list_(pa.float64())

# What each table must have, and what it may have; `nodes` may also have coordinates (x, y, z, x3, x4, ...).
REQUIRED: dict[str, dict[str, pa.DataType]] = {
    "nodes": {"node": pa.string()},
    "subscriptions": {"node": pa.string(), "topic": pa.string()},
    "latency": {"src": pa.string(), "dst": pa.string(), "rtt_ms": pa.float64()},
    "subscribers": {"subscriber": pa.string(), "place": _NUMBERS, "lo": _NUMBERS, "hi": _NUMBERS},
    "brokers": {"broker": pa.string(), "place": _NUMBERS},
    "publisher": {"place": _NUMBERS},
    "assignments": {"subscriber": pa.string(), "broker": pa.string()},
    "filters": {"broker": pa.string(), "lo": _NUMBERS, "hi": _NUMBERS},
    "density": {"lo": _NUMBERS, "hi": _NUMBERS, "mass": pa.float64()},
    "messages": {"publisher": pa.string(), "at": pa.timestamp("us"), "bytes": pa.int64()},
    "histograms": {"publisher": pa.string(), "topic": pa.string(), "rate": pa.float64()},
    "traffic_matrix": {"src": pa.string(), "dst": pa.string(), "rate": pa.float64()},
    "events": {"seq": pa.int64(), "kind": pa.string(), "node": pa.string()},
    "edges": {"u": pa.string(), "v": pa.string(), "weight": pa.float64(), "rank": pa.int32()},
    "quarantine": {"table": pa.string(), "row": pa.string(), "reason": pa.string()},
    "topics": {"topic": pa.string()},
    "weights": {"node": pa.string()},
}
OPTIONAL: dict[str, dict[str, pa.DataType]] = {
    "nodes": {"site": pa.string()},
    "subscribers": {"max_latency": pa.float64()},
    "brokers": {"parent": pa.string(), "capacity": pa.float64()},
    "publisher": dict.fromkeys(("max_delay", "alpha", "beta", "beta_max"), pa.float64()),
    "messages": {"point": _NUMBERS, "topic": pa.string()},
    "events": {"topics": _TEXTS, "at": pa.string()},
}


def read_table(folder: Path, name: str) -> pa.Table | None:
    """The canonical table `name` of a folder (Parquet file or folder, or CSV), or None if there is none.

    Columns come back in the canonical types; others are kept as they are.

    Raises:
        InputError: the file cannot be read, lacks a column, or has a value of another type.
    """
    place = _find(folder, name)
    if place is None:
        return None
    try:
        table = _read_csv(place, name) if place.suffix == ".csv" else pyarrow.parquet.read_table(place)
    except (pa.ArrowInvalid, pa.ArrowKeyError, OSError, UnicodeDecodeError) as error:
        raise InputError(f"{place} cannot be read: {' '.join(str(error).split())}") from error
    return _typed(table, name, place)


def require_table(folder: Path, name: str) -> pa.Table:
    """As `read_table`, for a table that must be there."""
    table = read_table(folder, name)
    if table is None:
        have = sorted(p.name for p in folder.iterdir()) if folder.is_dir() else []
        what = f"has {', '.join(have)}" if have else "is empty" if folder.is_dir() else "is not a folder"
        raise InputError(f"{folder} {what}; expected {name}.parquet or {name}.csv there")
    return table


def write_table(folder: Path, name: str, table: pa.Table) -> None:
    """Write a canonical table as Parquet."""
    pyarrow.parquet.write_table(_typed(table, name, folder), folder / f"{name}.parquet")


def indices_in(column: pa.Array | pa.ChunkedArray, among: pa.Array) -> NDArray[np.int64]:
    """The index of each value in `among`, -1 where it is not there."""
    return np.asarray(pc.fill_null(pc.index_in(column, among), -1), np.int64)


def list_column(rows: NDArray[np.float64] | Sequence[NDArray[np.float64]]) -> pa.Array:
    """Rows of numbers as a column of lists."""
    flat = np.concatenate([*rows, np.empty(0)]) if isinstance(rows, list) else np.ravel(rows)
    width = len(rows[0]) if len(rows) else 0
    return pa.ListArray.from_arrays(np.arange(len(rows) + 1, dtype=np.int32) * width, flat)


def list_matrix(table: pa.Table, name: str, column: str) -> NDArray[np.float64]:
    """A column of lists as a matrix, if all are of one length and none is missing."""
    lists = table[column].combine_chunks()
    size = np.asarray(pc.fill_null(pc.list_value_length(lists), -1))
    width = int(size[0]) if len(size) else 0
    raise_for_first(
        (size != width) | (size < 0),
        lambda row: f"table {name} row {row}: {column} is {lists[row].as_py()}",
        f"give {max(width, 1)} numbers a row, as in row 0",
    )
    return np.asarray(lists.flatten(), np.float64).reshape(len(size), width)


def coordinate_columns(table: pa.Table) -> list[str]:
    """The coordinates that a nodes table has, in order: x, y, z, x3, x4, ..."""
    names = ["x", "y", "z", *(f"x{axis}" for axis in range(3, table.num_columns + 3))]
    present = [name for name in names if name in table.column_names]
    if present != names[: len(present)]:
        raise InputError(
            f"nodes have coordinates {', '.join(present)}; name them x, y, z, x3, x4, ... in order"
        )
    return present


def _find(folder: Path, name: str) -> Path | None:
    found = [place for ending in (".parquet", ".csv") if (place := folder / f"{name}{ending}").exists()]
    if len(found) > 1:
        raise InputError(f"{folder} has both {found[0].name} and {found[1].name}; keep one")
    return found[0] if found else None


def _read_csv(place: Path, name: str) -> pa.Table:
    """A CSV file with a header line; ids stay text even where they look like numbers."""
    flat = {column: kind for column, kind in _columns(name).items() if not pa.types.is_list(kind)}
    options = pa.csv.ConvertOptions(column_types=flat, strings_can_be_null=False)
    return pa.csv.read_csv(place, convert_options=options)


def _columns(name: str) -> dict[str, pa.DataType]:
    return REQUIRED.get(name, {}) | OPTIONAL.get(name, {})


def _typed(table: pa.Table, name: str, place: Path) -> pa.Table:
    """The table with its canonical columns in their types, after checking that they are there."""
    twice = {column for column in table.column_names if table.column_names.count(column) > 1}
    if twice:
        raise InputError(f"{place} has column {sorted(twice)[0]!r} more than once; keep one")
    missing = [column for column in REQUIRED.get(name, {}) if column not in table.column_names]
    if missing:
        raise InputError(
            f"{place} has no column {missing[0]!r}: table {name} needs {_and(REQUIRED[name])}, "
            f"it has {_and(table.column_names)}"
        )
    for column, kind in _columns(name).items():
        if column in table.column_names and table.schema.field(column).type != kind:
            table = table.set_column(
                table.column_names.index(column), column, _cast(table, column, kind, place)
            )
    return table


def _cast(table: pa.Table, column: str, kind: pa.DataType, place: Path) -> pa.ChunkedArray:
    have = table.schema.field(column).type
    words = f"{place}: column {column!r} is {have}, expected {kind}"
    if pa.types.is_string(kind) and pa.types.is_floating(have):
        raise InputError(f"{words}: an id is text or a whole number")
    try:
        return pc.cast(table.column(column), kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InputError(words) from error


def _and(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"

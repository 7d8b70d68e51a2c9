"""Canonical tables: their columns and types, reading and writing."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import NDArray

from broadloom.checks import raise_for_first, shown
from broadloom.errors import BroadloomError, InputError, error_from_os
from broadloom.storage.locations import RemotePath, as_path, committed, is_hidden, named_store_errors

_TEXTS = pa.list_(pa.string())
_NUMBERS = pa.list_(pa.float64())
# Rows of texts after which `coded_table` unites the distinct ones for the first time.
_UNITED_ROWS = 500_000

# Required and optional columns of each table; `nodes` can also have coordinates (x, y, z, x3, x4, ...).
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
    "publications": {"node": pa.string(), "topic": pa.string()},
    "not_carried": {"node": pa.string(), "topic": pa.string(), "reason": pa.string()},
}
OPTIONAL: dict[str, dict[str, pa.DataType]] = {
    "nodes": {"site": pa.string(), "address": pa.string(), "kind": pa.string()},
    "subscribers": {"max_latency": pa.float64()},
    "brokers": {"parent": pa.string(), "capacity": pa.float64()},
    "publisher": dict.fromkeys(("max_delay", "alpha", "beta", "beta_max"), pa.float64()),
    "messages": {"point": _NUMBERS, "topic": pa.string()},
    "publications": {"rate": pa.float64()},
    "events": {"topics": _TEXTS, "at": pa.string(), "address": pa.string(), "site": pa.string()},
}


def read_table(folder: Path, name: str) -> pa.Table | None:
    """The canonical table `name` of a folder (Parquet file or folder, or CSV), or None if there is no file.

    Canonical columns are converted to their types; other columns are kept unchanged.

    Raises:
        InputError: the file is damaged, lacks a column, or has a value of another type.
        StorageError: the file cannot be read.
    """
    path = _find(committed(folder), name)
    if path is None:
        return None
    try:
        table = _read_csv(path, name) if path.suffix == ".csv" else read_parquet(path)
    except BroadloomError:
        raise
    except (pa.ArrowInvalid, pa.ArrowKeyError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {' '.join(str(error).split())}") from error
    except OSError as error:
        raise error_from_os(f"{path} cannot be read", error) from error
    return _typed(table, name, path)


def read_parquet(path: Path) -> pa.Table:
    """A Parquet file, or a folder of them, local or remote."""
    path = as_path(path)
    if isinstance(path, RemotePath):
        return parquet_dataset(path).to_table()
    if path.is_dir():
        return pyarrow.parquet.read_table(path)
    with pyarrow.parquet.ParquetFile(path) as file:  # for one file: `read_table` would load pandas
        return file.read()


def parquet_dataset(path: Path) -> Any:
    """A Parquet file, or a folder of them, as a data set of PyArrow, which can be read in part."""
    import pyarrow.dataset

    path = as_path(path)
    if not isinstance(path, RemotePath):
        return pyarrow.dataset.dataset(path, format="parquet")
    start = f"{path.uri}/"
    inner = [(one, one.uri.removeprefix(start).split("/")) for one in path.files()]
    files = [one for one, parts in inner if not any(map(is_hidden, parts))]
    with named_store_errors(path, "read"):
        store = path.filesystem
        return pyarrow.dataset.dataset([one.store_path for one in files], format="parquet", filesystem=store)


def write_parquet(table: pa.Table, path: Path, **options: int) -> None:
    """Write a table as one Parquet file, local or remote."""
    path = as_path(path)
    if isinstance(path, RemotePath):
        with named_store_errors(path, "written"):
            pyarrow.parquet.write_table(table, path.store_path, filesystem=path.filesystem, **options)
    else:
        pyarrow.parquet.write_table(table, path, **options)


def coded_table(path: Path, columns: list[str]) -> pa.Table:
    """Columns of texts of a Parquet file or folder, each value as an index into the distinct values.

    Only some rows are in memory as texts at any time. The distinct texts of the rows so far are united
    whenever the rows have doubled, so that few of them are held more than once.
    """
    schema = pa.schema([(name, pa.dictionary(pa.int32(), pa.string())) for name in columns])
    whole = schema.empty_table()
    held: list[pa.RecordBatch] = []
    for batch in parquet_dataset(path).to_batches(columns=columns):
        if batch.num_rows:
            held.append(pa.record_batch([batch[name].dictionary_encode() for name in columns], columns))
        if sum(one.num_rows for one in held) > max(_UNITED_ROWS, whole.num_rows):
            whole = pa.concat_tables([whole, pa.Table.from_batches(held, schema)]).unify_dictionaries()
            held = []
    return pa.concat_tables([whole, pa.Table.from_batches(held, schema)]).unify_dictionaries()


def table_blocks(path: Path, name: str, rows: int) -> Iterator[pa.Table]:
    """A canonical table in blocks of `rows` rows, the last one smaller; at least one block, even if empty."""
    dataset = parquet_dataset(path / f"{name}.parquet")
    held = dataset.schema.empty_table()
    is_first = True
    for batch in dataset.to_batches(batch_size=rows):
        held = pa.concat_tables([held, pa.Table.from_batches([batch])])
        while held.num_rows >= rows:
            yield _typed(held.slice(0, rows).combine_chunks(), name, path)
            held = held.slice(rows)
            is_first = False
    if held.num_rows or is_first:
        yield _typed(held, name, path)


def require_table(folder: Path, name: str) -> pa.Table:
    """As `read_table`, for a table that the folder must have."""
    folder = committed(folder)
    table = read_table(folder, name)
    if table is None:
        files = sorted(file.name for file in folder.iterdir()) if folder.is_dir() else []
        state = f"has {', '.join(files)}" if files else "is empty" if folder.is_dir() else "is not a folder"
        raise InputError(f"{folder} {state}; expected {name}.parquet or {name}.csv there")
    return table


def write_table(folder: Path, name: str, table: pa.Table) -> None:
    """Write a canonical table as Parquet."""
    write_parquet(_typed(table, name, folder), as_path(folder) / f"{name}.parquet")


def indices_in(column: pa.Array | pa.ChunkedArray, ids: pa.Array) -> NDArray[np.int64]:
    """The index of each value of the column in `ids`; -1 for an unknown value."""
    return np.asarray(pc.fill_null(pc.index_in(column, ids), -1), np.int64)


def list_column(rows: NDArray[np.float64] | Sequence[NDArray[np.float64]]) -> pa.Array:
    """Rows of numbers, all of one length, as a column of lists."""
    flat = np.concatenate([*rows, np.empty(0)]) if isinstance(rows, list) else np.ravel(rows)
    width = len(rows[0]) if len(rows) else 0
    return pa.ListArray.from_arrays(np.arange(len(rows) + 1, dtype=np.int32) * width, flat)


def list_matrix(table: pa.Table, name: str, column: str) -> NDArray[np.float64]:
    """A column of lists as a matrix; all lists must have one length."""
    lists = table[column].combine_chunks()
    size = np.asarray(pc.fill_null(pc.list_value_length(lists), -1))
    width = int(size[0]) if len(size) else 0
    raise_for_first(
        (size != width) | (size < 0),
        lambda row: f"table {name} row {row}: {column} is {lists[row].as_py()}",
        f"give {max(width, 1)} numbers per row, as in row 0",
    )
    return np.asarray(lists.flatten(), np.float64).reshape(len(size), width)


def as_table(value: object, name: str) -> pa.Table:
    """The value as an Arrow table; `name` is its name in messages.

    It is an Arrow table, record batch or reader, a DataFrame of pandas or Polars, or any other object with
    the Arrow C interface (`__arrow_c_stream__` or `__arrow_c_array__`).

    Raises:
        InputError: it is something else, or a column has values that Arrow cannot hold.

    Examples:
        >>> as_table(pa.record_batch({"node": ["a"]}), "nodes").num_rows
        1
        >>> as_table([("a", "x")], "subscriptions")
        Traceback (most recent call last):
        broadloom.errors.InputError: table subscriptions is a list; give a table of Arrow, pandas or Polars
    """
    if isinstance(value, pa.Table):
        return value
    kind = type(value)
    known = any(hasattr(kind, name) for name in ("__arrow_c_stream__", "__arrow_c_array__"))
    if not (known or _is_pandas(value)):
        hint = "collect it first" if hasattr(kind, "collect") else "give a table of Arrow, pandas or Polars"
        raise InputError(f"table {name} is a {kind.__name__}; {hint}")
    try:
        return pa.Table.from_pandas(value, preserve_index=False) if _is_pandas(value) else pa.table(value)
    except (pa.ArrowException, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"table {name}, a {kind.__name__}, is not a table of columns: {reason}") from error


def _is_pandas(value: object) -> bool:
    """Whether the value is a DataFrame of pandas, whose index is not a column."""
    kind = type(value)
    return kind.__name__ == "DataFrame" and kind.__module__.partition(".")[0] == "pandas"


def coordinate_columns(table: pa.Table) -> list[str]:
    """The names of the coordinate columns of a nodes table, in order: x, y, z, x3, x4, ..."""
    names = ["x", "y", "z", *(f"x{axis}" for axis in range(3, table.num_columns + 3))]
    present = [name for name in names if name in table.column_names]
    if present != names[: len(present)]:
        raise InputError(
            f"nodes have coordinates {', '.join(present)}; name them x, y, z, x3, x4, ... in order"
        )
    return present


def _find(folder: Path, name: str) -> Path | None:
    """The file of a table, or None; raises if there is a Parquet file and a CSV file."""
    paths = [folder / f"{name}{ending}" for ending in (".parquet", ".csv")]
    found = [path for path in paths if path.exists()]
    if len(found) > 1:
        raise InputError(f"{folder} has both {found[0].name} and {found[1].name}; keep one")
    return found[0] if found else None


def _read_csv(path: Path, name: str) -> pa.Table:
    """A CSV file with a header line, lists as in JSON; ids stay text even where they look like numbers."""
    kinds = _columns(name)
    lists = {column: kind for column, kind in kinds.items() if pa.types.is_list(kind)}
    options = pa.csv.ConvertOptions(
        column_types=kinds | dict.fromkeys(lists, pa.string()), strings_can_be_null=False
    )
    with path.open("rb") as file:
        table = pa.csv.read_csv(file, convert_options=options)
    for index, column in enumerate(table.column_names):
        if column in lists:
            parsed = _parsed_lists(table.column(index), column, lists[column], path)
            table = table.set_column(index, column, parsed)
    return table


def _parsed_lists(written: pa.ChunkedArray, column: str, kind: pa.ListType, path: Path) -> pa.Array:
    """Lists that are written as in JSON; an empty text is a missing list."""
    texts = written.to_pylist()
    rows = [_parsed_list(text, kind.value_type) if text else None for text in texts]
    raise_for_first(
        np.array([bool(text) and row is None for text, row in zip(texts, rows, strict=True)], bool),
        lambda row: f"{path} row {row}: {column} is {shown(texts[row])}",
        'give a list as in JSON, such as ["a", "b"]' if kind == _TEXTS else "give a list such as [1.5, 2]",
    )
    return pa.array(rows, kind)


def _parsed_list(text: str, kind: pa.DataType) -> list[Any] | None:
    """A list of texts or numbers from JSON; None if the text is something else."""
    try:
        values = json.loads(text)
        known = (str,) if pa.types.is_string(kind) else (int, float)
        if isinstance(values, list) and all(type(value) in known for value in values):
            return values if known == (str,) else [float(value) for value in values]
    except (ValueError, OverflowError, RecursionError):
        pass
    return None


def _columns(name: str) -> dict[str, pa.DataType]:
    """The required and optional columns of a table."""
    return REQUIRED.get(name, {}) | OPTIONAL.get(name, {})


def _typed(table: pa.Table, name: str, path: Path) -> pa.Table:
    """The table with its canonical columns converted to their types; raises if one is missing."""
    repeats = {column for column in table.column_names if table.column_names.count(column) > 1}
    if repeats:
        raise InputError(f"{path} has column {sorted(repeats)[0]!r} more than once; keep one")
    missing = [column for column in REQUIRED.get(name, {}) if column not in table.column_names]
    if missing:
        raise InputError(
            f"{path} has no column {missing[0]!r}: table {name} needs {', '.join(REQUIRED[name])}; "
            f"it has {', '.join(table.column_names) or 'none'}"
        )
    for column, kind in _columns(name).items():
        if column in table.column_names and table.schema.field(column).type != kind:
            table = table.set_column(
                table.column_names.index(column), column, _cast(table, column, kind, path)
            )
    return table


def _cast(table: pa.Table, column: str, kind: pa.DataType, path: Path) -> pa.ChunkedArray:
    """A column converted to a type; raises if a value does not fit."""
    found = table.schema.field(column).type
    message = f"{path}: column {column!r} is {found}, expected {kind}"
    if pa.types.is_string(kind) and pa.types.is_floating(found):
        raise InputError(f"{message}: an id is text or a whole number")
    try:
        return pc.cast(table.column(column), kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InputError(message) from error

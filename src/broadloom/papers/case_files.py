"""Files of a reproduction: one per case, so that a stopped run continues; one per figure, to be kept.

The file of a figure is JSON, compressed to the same bytes each time:

    {"figure": "paper1-fig4",
     "cases": {"nodes": [100, 100], "seed": [0, 1]},
     "rows": {"case": [0, 0, 1, 1], "algorithm": ["grmaw", "pdmaw", "grmaw", "pdmaw"], "seconds": [...]}}

Both parts are tables by columns, with null where a value is missing. A row belongs to the case of that index,
and has the parameters of its case where it has no value of its own.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from broadloom.papers.figures import Case

DIGITS = 6  # of the numbers in rows


def case_file(folder: Path, key: str, case: Case) -> Path:
    """The file of a case; its name has a digest of the case, so that a changed case has another file."""
    given = {name: value for name, value in case.items() if value is not None}
    digest = hashlib.sha256(json.dumps(given, sort_keys=True).encode()).hexdigest()[:16]
    return folder / "cases" / f"{key}-{digest}.json"


def write_case(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write the rows of a case, with six digits, and without missing values."""
    kept = [{name: _short(value) for name, value in row.items() if value is not None} for row in rows]
    put(json.dumps(kept).encode(), path)


def _short(value: Any) -> Any:
    """A number with six digits; any other value as it is.

    Examples:
        >>> _short(0.123456789), _short(7), _short("gm")
        (0.123457, 7, 'gm')
    """
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def read_case(path: Path) -> list[dict[str, Any]]:
    """The rows of a case; empty if it was not run, or its file is damaged."""
    try:
        rows = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return []
    return rows if isinstance(rows, list) and all(isinstance(row, dict) for row in rows) else []


def pack(folder: Path, key: str, cases: Sequence[Case], path: Path) -> bool:
    """Write the file of a figure from those of its cases; return False if a case has not been run."""
    all_rows = [read_case(case_file(folder, key, case)) for case in cases]
    if not all(all_rows):
        return False
    rows = [
        {"case": index} | {name: value for name, value in row.items() if value != case.get(name)}
        for index, (case, of_case) in enumerate(zip(cases, all_rows, strict=True))
        for row in of_case
    ]
    record = {"figure": key, "cases": _by_columns(cases), "rows": _by_columns(rows)}
    text = json.dumps(record, separators=(",", ":"))
    put(gzip.compress(text.encode(), compresslevel=9, mtime=0), path)
    return True


def unpack(path: Path, folder: Path) -> None:
    """Write the files of the cases of a figure that was kept, except those that are in the folder."""
    record = json.loads(gzip.decompress(path.read_bytes()))
    cases = _by_rows(record["cases"])
    rows_of: list[list[dict[str, Any]]] = [[] for _ in cases]
    for row in _by_rows(record["rows"]):
        index = row.pop("case")
        rows_of[index].append(cases[index] | row)
    for case, rows in zip(cases, rows_of, strict=True):
        target = case_file(folder, record["figure"], case)
        if not read_case(target):
            write_case(rows, target)


def _by_columns(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    rows = list(rows)
    columns = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in columns}


def _by_rows(columns: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """The rows of a table by columns, without missing values."""
    return [
        {name: value for name, value in zip(columns, row, strict=True) if value is not None}
        for row in zip(*columns.values(), strict=True)
    ]


def write_rows(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write rows as Parquet; rows can have different columns."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    table = pa.table({name: [row.get(name) for row in rows] for name in columns})
    written = io.BytesIO()
    pa.parquet.write_table(table, written)
    put(written.getvalue(), path)


def put(content: bytes, path: Path) -> None:
    """Write a file by one rename: readers see the old file or the new one."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.draft")
    draft.write_bytes(content)
    draft.replace(path)

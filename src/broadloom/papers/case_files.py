"""Files of a reproduction: one per case, written by one rename, so that a stopped run continues."""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from broadloom.papers.figures import Case


def case_file(folder: Path, key: str, case: Case) -> Path:
    """The file of a case; its name has a digest of the case, so that a changed case has another file."""
    digest = hashlib.sha256(json.dumps(case, sort_keys=True).encode()).hexdigest()[:16]
    return folder / "cases" / f"{key}-{digest}.json"


def write_case(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write the rows of a case."""
    put(json.dumps(rows).encode(), path)


def read_case(path: Path) -> list[dict[str, Any]]:
    """The rows of a case; empty if it was not run, or its file is damaged."""
    try:
        rows = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return []
    return rows if isinstance(rows, list) and all(isinstance(row, dict) for row in rows) else []


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

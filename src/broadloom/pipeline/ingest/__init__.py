"""Ingest: canonical tables from raw logs, dumps and pings, with an account of every row.

Names are imported on first use, so that importing this folder does not load pyspark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broadloom.pipeline.ingest.raw_sources import RawFile, RawSource, find_files

if TYPE_CHECKING:
    from broadloom.pipeline.ingest.raw_to_tables import ingest, ingest_into

__all__ = ["RawFile", "RawSource", "find_files", "ingest", "ingest_into"]


def __getattr__(name: str) -> Any:
    if name not in ("ingest", "ingest_into"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from broadloom.pipeline.ingest import raw_to_tables

    return getattr(raw_to_tables, name)

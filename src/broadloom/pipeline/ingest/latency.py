"""Latency samples to one round-trip time a pair: the median, with the number of samples."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from broadloom.errors import InputError
from broadloom.model import Reason
from broadloom.pipeline.ingest.read import REASON, first_fault
from broadloom.pipeline.ingest.sources import open_file, separator


def checked(rows: DataFrame, known: DataFrame | None) -> DataFrame:
    """The rows with a reason where one is not to be used; `known` has the columns node and, maybe, site."""
    rtt = sf.col("rtt_ms")
    faults = [(sf.isnan(rtt) | (rtt <= 0) | (rtt == float("inf")), Reason.NOT_POSITIVE)]
    if known is not None:
        names = known.select(sf.col("node").alias("name"), sf.lit(False).alias("is_site"))
        if "site" in known.columns:
            sites = known.where("site is not null").select(
                sf.col("site").alias("name"), sf.lit(True).alias("is_site")
            )
            names = names.union(sites)
        names = names.groupBy("name").agg(sf.bool_and("is_site").alias("is_site"))
        for end in ("src", "dst"):
            there = names.select(sf.col("name").alias(end), sf.col("is_site").alias(f"{end}_site"))
            rows = rows.join(sf.broadcast(there), end, "left")
            faults.append((sf.col(f"{end}_site").isNull(), Reason.UNKNOWN_NODE))
        same = (sf.col("src") == sf.col("dst")) & ~sf.col("src_site")
    else:
        same = sf.col("src") == sf.col("dst")
    faults.append((same, Reason.SAME_ENDS))
    return rows.withColumn(REASON, sf.coalesce(REASON, first_fault(faults)))


def medians(samples: DataFrame, symmetric: str) -> DataFrame:
    """One row a pair: src, dst, the median rtt_ms, and the number of samples.

    Args:
        samples: src, dst, rtt_ms.
        symmetric: "none" keeps the directions apart; "mean", "min" or "max" makes one of them.
    """
    directed = samples.groupBy("src", "dst").agg(
        sf.median("rtt_ms").alias("rtt_ms"), sf.count("*").alias("samples")
    )
    if symmetric == "none":
        return directed
    rule = {"mean": sf.mean, "min": sf.min, "max": sf.max}[symmetric]
    return directed.groupBy(sf.least("src", "dst").alias("src"), sf.greatest("src", "dst").alias("dst")).agg(
        rule("rtt_ms").alias("rtt_ms"), sf.sum("samples").alias("samples")
    )


def read_matrix(path: Path, nodes: list[str]) -> pa.Table:
    """The cells of a matrix file as rows raw, source, reason, src, dst, rtt_ms; empty cells are none.

    The first line names the columns, and the first field of each line its row; a square of numbers alone is
    in the order of `nodes`.
    """
    with open_file(path) as file:
        text = file.read().decode("utf-8-sig", "replace")
    sign = separator(text.partition("\n")[0])
    lines = [
        [cell.strip() for cell in line] for line in csv.reader(io.StringIO(text), delimiter=sign) if line
    ]
    named = bool(lines) and _has_header(lines, nodes)
    columns = lines[0] if named else nodes
    body = lines[1:] if named else lines
    row_named = bool(body) and named and _has_labels(lines[0], body)
    if row_named:
        columns = columns[1:] if len(columns) == len(body[0]) else columns
    rows = [line[0] for line in body] if row_named else columns
    if len(rows) != len(body):
        raise InputError(
            f"{path} has {len(body)} rows for {len(rows)} names; give a square matrix, or name its rows"
        )
    cells = [line[row_named:] for line in body]
    return pa.Table.from_pylist(list(_cells(path, rows, columns, cells)), schema=_SCHEMA)


def _has_header(lines: list[list[str]], nodes: list[str]) -> bool:
    """Whether the first line has names, which may be numbers."""
    head, body = lines[0], lines[1:]
    if any(_is_word(cell) for cell in head):
        return True
    known = not nodes or set(filter(None, head)) <= set(nodes)
    if body and (len(body) == len(head) or len(body[0]) == len(head) + 1):
        return known
    # A square with an empty corner and the same along its side is that of the nodes if it is of their size.
    mirrored = not head[0] and [line[0] for line in body] == head[1:]
    return mirrored and (known or len(nodes) != len(lines))


def _has_labels(head: list[str], body: list[list[str]]) -> bool:
    """Whether the first field of each line names it, given that `head` names the columns."""
    side = [line[0] for line in body]
    return len(body[0]) == len(head) + 1 or not head[0] or side == head[1:] or _is_word(side[0])


def _is_word(cell: str) -> bool:
    return bool(cell) and _number(cell) is None


_SCHEMA = pa.schema(
    [(name, pa.string()) for name in ("raw", "source", "reason", "src", "dst")] + [("rtt_ms", pa.float64())]
)


def _cells(
    path: Path, rows: list[str], columns: list[str], cells: list[list[str]]
) -> Iterator[dict[str, object]]:
    for src, line in zip(rows, cells, strict=True):
        if len(line) != len(columns):
            yield {"raw": ",".join(line), "source": str(path), "reason": Reason.FIELDS}
            continue
        for dst, cell in zip(columns, line, strict=True):
            value = _number(cell)
            if not cell.strip() or (src == dst and not value):
                continue
            reason = None if value is not None else Reason.not_a("rtt_ms", "number")
            yield {
                "raw": f"{src},{dst},{cell}",
                "source": str(path),
                "reason": reason,
                "src": src,
                "dst": dst,
                "rtt_ms": value,
            }


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None

"""Files to rows of one shape: the line as it was, where it is from, its fault if it has one, its columns.

Text is read line by line and never by Spark's own CSV or JSON sources: those drop blank lines in silence, and
tell of a corrupt record only when every column is used.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterable, Iterator
from functools import reduce
from itertools import groupby

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from broadloom.formats import PAGE
from broadloom.model import Reason
from broadloom.pipeline.ingest.sources import DUMPS, Input, columns_for, columns_of, separator

RAW, SOURCE, REASON = "raw", "source", "reason"
# The reasons of lines that are no rows: they are counted, and not kept.
HEADER = "header"
NO_ROWS = (HEADER, PAGE)

_LINE, _CELLS, _ENTRY = "line", "cells", "entry"
_COLUMN = "in:{}"  # a column of a Parquet file, whatever its name is
_MARK = "\ufeff"
_ROWS_AT_A_TIME = 20_000
_WORDS = {
    "double": "number",
    "bigint": "whole number",
    "timestamp": "time",
    "array<double>": "list of numbers",
}

# A value as it is there (null: missing), and from the column that holds it, the same in the table's type.
Value = tuple[Column, Column]
Fault = tuple[Column, str]


def read_inputs(spark: SparkSession, inputs: Iterable[Input]) -> DataFrame:
    """All files of one table as rows: raw, source, reason, and the table's columns.

    A row without a reason has every column that its table needs, in its type.
    """
    readers = {"csv": _csv, "jsonl": _json_lines, "parquet": _parquet, "dump": _dumps}
    alike = groupby(sorted(inputs, key=_likeness), key=_likeness)
    parts = [readers[likeness[0]](spark, list(group)) for likeness, group in alike]
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), parts)


def first_fault(faults: Iterable[Fault]) -> Column:
    """The reason of the first fault that a row has; null: it has none."""
    chain = sf.lit(None).cast("string")
    for fault, reason in reversed(list(faults)):
        chain = sf.when(fault, sf.lit(reason)).otherwise(chain)
    return chain


def _likeness(one: Input) -> tuple[str, str, tuple[str, ...]]:
    """Files that are alike in this are read together."""
    return ("dump" if one.reader in DUMPS else one.reader, one.header, one.names)


def _lines(spark: SparkSession, inputs: list[Input]) -> DataFrame:
    """The lines of text files, without their ends and without a byte order mark."""
    lines = spark.read.text([str(one.path) for one in inputs], lineSep="\n")
    value = sf.col("value")
    bare = sf.when(
        value.startswith(_MARK) | value.endswith("\r"), sf.regexp_replace(value, f"^{_MARK}|\r$", "")
    )
    bare = bare.otherwise(value)
    return lines.select(bare.alias(_LINE), sf.col("_metadata.file_path").alias(SOURCE))


def _csv(spark: SparkSession, inputs: list[Input]) -> DataFrame:
    """CSV files with the same header."""
    header, names = inputs[0].header, inputs[0].names
    sign, line = separator(header), sf.col(_LINE)
    field = rf'(?:"[^"]*+(?:""[^"]*+)*+"|[^"{sign}]*+)'
    quoted = sf.regexp_extract_all(sf.concat(line, sf.lit(sign)), sf.lit(f"({field}){sign}"), sf.lit(1))
    cells = sf.when(line.contains('"'), sf.transform(quoted, _unquoted)).otherwise(sf.split(line, sign, -1))
    faults = [
        (line == header, HEADER),
        (~sf.is_valid_utf8(line), Reason.NOT_UTF8),
        (sf.trim(line) == "", Reason.BLANK),
        (line.contains('"') & ~line.rlike(f"^{field}(?:{sign}{field})*+$"), Reason.QUOTE),
        (sf.size(_CELLS) != len(names), Reason.FIELDS),
    ]

    def value(found: list[str], there: str, kind: str) -> Value:
        cell = sf.nullif(sf.trim(sf.get(_CELLS, sf.lit(names.index(found[0])))), sf.lit(""))
        if kind.startswith("array"):
            return cell, sf.try_variant_get(sf.try_parse_json(there), "$", kind)
        return cell, sf.col(there).try_cast(kind)

    return _typed(_lines(spark, inputs).withColumn(_CELLS, cells), inputs[0], value, faults)


def _unquoted(cell: Column) -> Column:
    """A CSV field without its quotes."""
    inner = sf.replace(cell.substr(sf.lit(2), sf.length(cell) - 2), sf.lit('""'), sf.lit('"'))
    return sf.when(cell.startswith('"'), inner).otherwise(cell)


def _json_lines(spark: SparkSession, inputs: list[Input]) -> DataFrame:
    """Files with a JSON object a line, parsed as a list of one: more after it makes it bad."""
    line, entry = sf.col(_LINE), sf.col(_ENTRY)
    listed = sf.try_parse_json(sf.concat(sf.lit("["), line, sf.lit("]")))
    alone = sf.try_variant_get(entry, "$[1]", "variant").isNull()
    faults = [
        (~sf.is_valid_utf8(line), Reason.NOT_UTF8),
        (sf.trim(line) == "", Reason.BLANK),
        (entry.isNull() | ~line.rlike(r"^\s*\{") | ~alone, Reason.NOT_JSON),
    ]

    def value(found: list[str], there: str, kind: str) -> Value:
        paths = [f"$[0]['{name}']" for name in found]
        if kind == "string":
            texts = [sf.nullif(sf.try_variant_get(entry, path, kind), sf.lit("")) for path in paths]
            return sf.coalesce(*texts), sf.col(there)
        values = [sf.try_variant_get(entry, path, "variant") for path in paths]
        return sf.coalesce(*values), sf.try_variant_get(sf.col(there), "$", kind)

    return _typed(_lines(spark, inputs).withColumn(_ENTRY, listed), inputs[0], value, faults)


def _parquet(spark: SparkSession, inputs: list[Input]) -> DataFrame:
    """Parquet files with the same columns; what stands for a row in quarantine is its JSON."""
    table = spark.read.parquet(*(str(one.path) for one in inputs))
    line = sf.to_json(sf.struct(*(f"`{name}`" for name in table.columns)))
    columns = [sf.col(f"`{name}`").alias(_COLUMN.format(name)) for name in table.columns]

    def value(found: list[str], there: str, kind: str) -> Value:
        column = sf.col(f"`{_COLUMN.format(found[0])}`")
        if kind == "string":
            return sf.nullif(column.cast(kind), sf.lit("")), sf.col(there)
        return column, sf.col(there).try_cast(kind)

    path = sf.col("_metadata.file_path").alias(SOURCE)
    return _typed(table.select(*columns, line.alias(_LINE), path), inputs[0], value, [])


def _dumps(spark: SparkSession, inputs: list[Input]) -> DataFrame:
    """Dumps of brokers, each parsed whole by its format's plain Python."""
    known = {str(one.path): (one.reader, one.node) for one in inputs}

    def parse(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for source, data in zip(batch["path"].to_pylist(), batch["content"], strict=True):
                form, node = known[local_path(source)]
                yield from _parsed(source, form, node, data.as_py())

    files = spark.read.format("binaryFile").load([str(one.path) for one in inputs]).select("path", "content")
    return files.mapInArrow(
        parse, "raw string, source string, reason string, node string, client string, topic string"
    )


def local_path(source: str) -> str:
    """The path in a source as Spark names it, such as `file:/tmp/dump.json`."""
    return "/" + source.partition(":")[2].lstrip("/")


def _parsed(source: str, form: str, node: str, data: bytes) -> Iterator[pa.RecordBatch]:
    """The rows of one dump, some thousands at a time."""
    text = gzip.decompress(data) if source.endswith(".gz") else data
    columns: tuple[list[str | None], ...] = ([], [], [], [], [], [])

    def batch() -> pa.RecordBatch:
        arrays = [pa.array(column, pa.string()) for column in columns]
        return pa.record_batch(arrays, [RAW, SOURCE, REASON, "node", "client", "topic"])

    for row in DUMPS[form].rows(text):
        fault = row.reason or (None if row.filter else Reason.missing("topic"))
        values = (row.raw, source, fault, row.node or node, row.client, row.filter)
        for column, value in zip(columns, values, strict=True):
            column.append(value)
        if len(columns[0]) == _ROWS_AT_A_TIME:
            yield batch()
            for column in columns:
                column.clear()
    yield batch()


def _typed(
    rows: DataFrame, one: Input, value: Callable[[list[str], str, str], Value], faults: list[Fault]
) -> DataFrame:
    """The table's columns in their types, and the first fault of each row as its reason."""
    needed, checks = columns_of(one.table, optional=False), list(faults)
    there: dict[str, Column] = {}
    typed: dict[str, Column] = {}
    for column, kind in columns_of(one.table, one.names).items():
        found, spark_kind = columns_for(one.names, column), _kind(kind)
        if not found:
            continue
        there[f"_{column}"], typed[column] = value(found, f"_{column}", spark_kind)
        if column in needed:
            checks.append((sf.col(f"_{column}").isNull(), Reason.missing(column)))
        if spark_kind != "string":
            word = _WORDS.get(spark_kind, spark_kind)
            checks.append(
                (sf.col(f"_{column}").isNotNull() & typed[column].isNull(), Reason.not_a(column, word))
            )
    line = sf.col(_LINE)
    readable = sf.when(sf.is_valid_utf8(line), line).otherwise(sf.concat(sf.lit("hex:"), sf.hex(line)))
    return rows.withColumns(there).select(
        readable.alias(RAW),
        SOURCE,
        first_fault(checks).alias(REASON),
        *(column.alias(name) for name, column in typed.items()),
    )


def _kind(kind: pa.DataType) -> str:
    """Spark's name of an Arrow type that canonical tables have."""
    if pa.types.is_list(kind):
        return f"array<{_kind(kind.value_type)}>"
    names = {pa.string(): "string", pa.float64(): "double", pa.int64(): "bigint"}
    return names.get(kind, "timestamp")

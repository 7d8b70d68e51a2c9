"""Readers of raw files: each row has its original line, its source, a reason if it is bad, and its columns.

Text is read line by line and never by Spark's own CSV or JSON sources: these drop blank lines silently, and
report a corrupt record only if every column is used.
"""

from __future__ import annotations

import gzip
import io
import re
from collections.abc import Callable, Iterable, Iterator
from functools import reduce
from itertools import groupby
from typing import IO, cast

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from broadloom.errors import InputError, MissingExtraError
from broadloom.formats import PAGE
from broadloom.model import Reason
from broadloom.pipeline.ingest.raw_sources import (
    DUMPS,
    FURTHER,
    HIVE_NULL,
    LONGEST_LINE,
    SPARK_TABLES,
    RawFile,
    columns_of,
    further_columns,
    separator,
)
from broadloom.storage import as_path, is_remote, store_settings, use_store_settings

RAW = "raw"
SOURCE = "source"
REASON = "reason"
# The reasons of lines that are not rows (headers and page descriptions); they are counted but not kept.
HEADER = "header"
NOT_ROWS = (HEADER, PAGE)

# The setting that brings Spark a table format, from Maven.
PACKAGES = {
    "delta": "spark.jars.packages=io.delta:delta-spark_2.13:<version>",
    "iceberg": "spark.jars.packages=org.apache.iceberg:iceberg-spark-runtime-<Spark>_2.13:<version>",
}

_LINE = "line"
_CELLS = "cells"
_QUOTED = "quoted"
_ENTRY = "entry"
_COLUMN = "in:{}"  # prefix of the columns of a Parquet file, so that they do not clash with ours
_BYTE_ORDER_MARK = "\ufeff"
_ROWS_PER_BATCH = 20_000
# Larger dumps are read in blocks by the task that parses them.
LARGE_DUMP = 8 * 2**20
_DUMP_ROW = "raw string, source string, reason string, node string, client string, topic string"
# Names of types in the reasons for quarantine.
_TYPE_NAMES = {
    "double": "number",
    "bigint": "whole number",
    "timestamp": "time",
    "array<double>": "list of numbers",
}

# The raw value (null: missing), and the same value in the type of the table, computed from the raw column.
Value = tuple[Column, Column]
# A condition that makes a row bad, and its reason.
Fault = tuple[Column, str]


def read_files(spark: SparkSession, files: Iterable[RawFile]) -> DataFrame:
    """All files of one table as rows: raw, source, reason, and the table's columns.

    A row without a reason has all required columns of its table, in their types.
    """
    readers = {"csv": _csv, "jsonl": _json_lines, "parquet": _parquet, "dump": _dumps}
    readers |= dict.fromkeys(SPARK_TABLES, _spark_table)
    groups = groupby(sorted(files, key=_shape), key=_shape)
    parts = [readers[shape[0]](spark, list(group)) for shape, group in groups]
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), parts)


def first_fault(faults: Iterable[Fault]) -> Column:
    """The reason of the first fault of a row; null: the row is good."""
    chain = sf.lit(None).cast("string")
    for fault, reason in reversed(list(faults)):
        chain = sf.when(fault, sf.lit(reason)).otherwise(chain)
    return chain


def _shape(file: RawFile) -> tuple[str, str, tuple[str, ...], tuple[str, ...], tuple[tuple[str, str], ...]]:
    """The key by which files are grouped; the files of a group are read together."""
    if file.reader in SPARK_TABLES:
        return (file.reader, str(file.path), (), (), ())
    reader = "dump" if file.reader in DUMPS else file.reader
    return (reader, file.header, file.names, file.partitions, file.own_names)


def _lines(spark: SparkSession, files: list[RawFile]) -> DataFrame:
    """The lines of text files, without their ends and without a byte order mark.

    Of a line that is too long, Spark gives only a part, and `count_lines` refuses it.
    """
    reader = spark.read.option("mapreduce.input.linerecordreader.line.maxlength", LONGEST_LINE + 2)
    lines = reader.text([str(one.path) for one in files], lineSep="\n")
    value = sf.col("value")
    bare = sf.when(
        value.startswith(_BYTE_ORDER_MARK) | value.endswith("\r"),
        sf.regexp_replace(value, f"^{_BYTE_ORDER_MARK}|\r$", ""),
    )
    bare = bare.otherwise(value)
    return lines.select(bare.alias(_LINE), sf.col("_metadata.file_path").alias(SOURCE))


def _csv(spark: SparkSession, files: list[RawFile]) -> DataFrame:
    """CSV files with the same header."""
    header = files[0].header
    names = files[0].names
    sign = separator(header)
    line = sf.col(_LINE)
    field = rf'(?:"[^"]*+(?:""[^"]*+)*+"|[^"{sign}]*+)'
    quoted = sf.col(_QUOTED)
    found = sf.regexp_extract_all(sf.concat(line, sf.lit(sign)), sf.lit(f"({field}){sign}"), sf.lit(1))
    cells = sf.when(quoted, sf.transform(found, _unquoted)).otherwise(sf.split(line, sign, -1))
    faults = [
        (line == header, HEADER),
        (~sf.is_valid_utf8(line), Reason.NOT_UTF8),
        (sf.trim(line) == "", Reason.BLANK),
        (quoted & ~line.rlike(f"^{field}(?:{sign}{field})*+$"), Reason.QUOTE),
        (sf.size(_CELLS) != len(names), Reason.FIELDS),
    ]

    def value(found: list[str], raw: str, kind: str) -> Value:
        cell = sf.nullif(sf.trim(sf.get(_CELLS, sf.lit(names.index(found[0])))), sf.lit(""))
        if kind.startswith("array"):
            return cell, sf.try_variant_get(sf.try_parse_json(raw), "$", kind)
        return cell, sf.col(f"`{raw}`").try_cast(kind)

    lines = _lines(spark, files).withColumn(_QUOTED, line.contains('"'))
    return _typed(lines.withColumn(_CELLS, cells), files[0], value, faults)


def _unquoted(cell: Column) -> Column:
    """A CSV field without its quotes."""
    inner = sf.replace(cell.substr(sf.lit(2), sf.length(cell) - 2), sf.lit('""'), sf.lit('"'))
    return sf.when(cell.startswith('"'), inner).otherwise(cell)


def _json_lines(spark: SparkSession, files: list[RawFile]) -> DataFrame:
    """Files with one JSON object per line; lines are parsed as lists, which must have one entry."""
    line = sf.col(_LINE)
    entry = sf.col(_ENTRY)
    listed = sf.try_parse_json(sf.concat(sf.lit("["), line, sf.lit("]")))
    alone = sf.try_variant_get(entry, "$[1]", "variant").isNull()
    faults = [
        (~sf.is_valid_utf8(line), Reason.NOT_UTF8),
        (sf.trim(line) == "", Reason.BLANK),
        (entry.isNull() | ~line.rlike(r"^\s*\{") | ~alone, Reason.NOT_JSON),
    ]

    def value(found: list[str], raw: str, kind: str) -> Value:
        paths = [f"$[0]['{name}']" for name in found]
        if kind == "string":
            texts = [sf.nullif(sf.try_variant_get(entry, path, kind), sf.lit("")) for path in paths]
            return sf.coalesce(*texts), sf.col(f"`{raw}`")
        values = [sf.try_variant_get(entry, path, "variant") for path in paths]
        return sf.coalesce(*values), sf.try_variant_get(sf.col(f"`{raw}`"), "$", kind)

    return _typed(_lines(spark, files).withColumn(_ENTRY, listed), files[0], value, faults)


def _parquet(spark: SparkSession, files: list[RawFile]) -> DataFrame:
    """Parquet files with the same columns; the quarantine shows a row as JSON."""
    # Each file is a path of its own, so that Spark sees no partitions; `_typed` reads those from the path.
    table = spark.read.option("recursiveFileLookup", "true").parquet(*(str(one.path) for one in files))
    return _frame_rows(table, files[0], sf.col("_metadata.file_path"))


def _spark_table(spark: SparkSession, files: list[RawFile]) -> DataFrame:
    """A table that Spark reads by itself; the quarantine shows a row as JSON."""
    [one] = files
    name = str(one.path)
    return _frame_rows(spark_frame(spark, one.reader, name), one, sf.lit(f"{one.reader}:{name}"))


def spark_frame(spark: SparkSession, form: str, name: str) -> DataFrame:
    """A table of Spark's catalog ("table"), or the folder of a table format ("delta", "iceberg").

    Raises:
        InputError: there is no such table.
        MissingExtraError: Spark has no package for the format.
    """
    try:
        frame = spark.table(name) if form == "table" else spark.read.format(form).load(name)
        frame.columns  # noqa: B018 - Spark Connect looks for the table only now
        return frame
    except (PySparkException, Py4JError) as error:
        reason = str(error).strip().partition("\n")[0]
        if "DATA_SOURCE_NOT_FOUND" in str(error):
            raise MissingExtraError(
                f"{name} is a table of {form}, and Spark has no package for it; "
                f"add --conf {PACKAGES.get(form)}, or spark.jars with its jar"
            ) from error
        raise InputError(f"{form}:{name} cannot be read: {reason}") from error


def spark_columns(spark: SparkSession, form: str, name: str) -> tuple[list[str], str]:
    """The columns of a table that Spark reads, and their types as a text."""
    frame = spark_frame(spark, form, name)
    return frame.columns, str(frame.dtypes)


def _frame_rows(table: DataFrame, one: RawFile, source: Column) -> DataFrame:
    """The rows of a frame with typed columns."""
    line = sf.to_json(sf.struct(*(f"`{name}`" for name in table.columns)))
    columns = [sf.col(f"`{name}`").alias(_COLUMN.format(name)) for name in table.columns]

    def value(found: list[str], raw: str, kind: str) -> Value:
        column = sf.col(f"`{_COLUMN.format(found[0])}`")
        if kind == "string":
            return sf.nullif(column.cast(kind), sf.lit("")), sf.col(f"`{raw}`")
        return column, sf.col(f"`{raw}`").try_cast(kind) if kind else sf.col(f"`{raw}`")

    return _typed(table.select(*columns, line.alias(_LINE), source.alias(SOURCE)), one, value, [])


def _dumps(spark: SparkSession, files: list[RawFile]) -> DataFrame:
    """Dumps of brokers, parsed by the Python parser of their format.

    Spark reads small dumps as a whole, many in one task. A task opens a large dump itself, and reads it in
    blocks, so that its size does not matter.
    """
    known = {str(one.path): (one.reader, one.node) for one in files}

    def parse(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for source, data in zip(batch["path"].to_pylist(), batch["content"], strict=True):
                with io.BytesIO(data.as_py()) as file:
                    yield from _parsed(source, *known[file_path(source)], file)

    large = [str(one.path) for one in files if one.size > LARGE_DUMP]
    settings = store_settings()

    def stream(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        use_store_settings(settings)
        for batch in batches:
            for number in batch["id"].to_pylist():
                path = as_path(large[number])
                source = str(path) if is_remote(path) else f"file:{path}"
                with path.open("rb") as file:
                    yield from _parsed(source, *known[large[number]], file)

    parts = []
    small = [str(one.path) for one in files if one.size <= LARGE_DUMP]
    if small:
        contents = spark.read.format("binaryFile").load(small).select("path", "content")
        parts.append(contents.mapInArrow(parse, _DUMP_ROW))
    if large:
        parts.append(spark.range(0, len(large), 1, len(large)).mapInArrow(stream, _DUMP_ROW))
    return reduce(DataFrame.unionByName, parts)


def file_path(source: str) -> str:
    """The path of a source as Spark reports it: local (`file:/tmp/dump.json`) or a URI.

    Examples:
        >>> file_path("file:///tmp/dump.json"), file_path("s3a://bucket/dump.json")
        ('/tmp/dump.json', 's3a://bucket/dump.json')
    """
    return "/" + source.partition(":")[2].lstrip("/") if source.startswith("file:") else source


def _partition_value(name: str) -> Column:
    """The value of a partition's column from the path of the file, null for that of Hive; `""` is null too.

    The names of folders are encoded once by Spark or Hive, and again in the URI that Spark reports.
    """
    path = _decoded(sf.col(SOURCE))
    value = _decoded(sf.regexp_extract(path, f"/{re.escape(name)}=([^/]*)/", 1))
    return sf.when(~value.isin("", HIVE_NULL), value)


def _decoded(text: Column) -> Column:
    """A text with `%20` and the like decoded; a plus stays a plus."""
    return sf.url_decode(sf.replace(text, sf.lit("+"), sf.lit("%2B")))


def _parsed(source: str, form: str, node: str, file: IO[bytes]) -> Iterator[pa.RecordBatch]:
    """The rows of one dump, in batches."""
    opened = cast("IO[bytes]", gzip.GzipFile(fileobj=file)) if source.endswith(".gz") else file
    columns: tuple[list[str | None], ...] = ([], [], [], [], [], [])

    def batch() -> pa.RecordBatch:
        arrays = [pa.array(column, pa.string()) for column in columns]
        return pa.record_batch(arrays, [RAW, SOURCE, REASON, "node", "client", "topic"])

    for row in DUMPS[form].rows(opened):
        fault = row.reason or (None if row.filter else Reason.missing("topic"))
        values = (row.raw, source, fault, row.node or node, row.client, row.filter)
        for column, value in zip(columns, values, strict=True):
            column.append(value)
        if len(columns[0]) == _ROWS_PER_BATCH:
            yield batch()
            for column in columns:
                column.clear()
    yield batch()


def _typed(
    rows: DataFrame, one: RawFile, own_value: Callable[[list[str], str, str], Value], faults: list[Fault]
) -> DataFrame:
    """The columns of the table in their types, and the first fault of each row as its reason."""
    required = columns_of(one.table, optional=False)

    def value(found: list[str], raw: str, kind: str) -> Value:
        above = next((name for name in found if name in one.partitions), None)
        if above is None:
            return own_value(found, raw, kind)
        return _partition_value(above), sf.col(f"`{raw}`").try_cast(kind or "string")

    checks = list(faults)
    raw: dict[str, Column] = {}
    typed: dict[str, Column] = {}
    for column, kind in columns_of(one.table, one.all_names).items():
        found = one.names_of(column)
        spark_type = _spark_type(kind)
        if not found:
            continue
        raw[f"_{column}"], typed[column] = value(found, f"_{column}", spark_type)
        if column in required:
            checks.append((sf.col(f"_{column}").isNull(), Reason.missing(column)))
        if spark_type != "string":
            name = _TYPE_NAMES.get(spark_type, spark_type)
            checks.append(
                (sf.col(f"_{column}").isNotNull() & typed[column].isNull(), Reason.not_a(column, name))
            )
    for name, further in further_columns(one).items():
        column = FURTHER.format(name)
        raw[f"_{column}"], typed[column] = value([name], f"_{column}", _spark_type(further))
        if further == pa.float64():
            unread = sf.col(f"`_{column}`").isNotNull() & typed[column].isNull()
            checks.append((unread, Reason.not_a(name, _TYPE_NAMES["double"])))
    line = sf.col(_LINE)
    readable = sf.when(sf.is_valid_utf8(line), line).otherwise(sf.concat(sf.lit("hex:"), sf.hex(line)))
    return rows.withColumns(raw).select(
        readable.alias(RAW),
        SOURCE,
        first_fault(checks).alias(REASON),
        *(column.alias(name) for name, column in typed.items()),
    )


def _spark_type(kind: pa.DataType | None) -> str:
    """Spark's name of an Arrow type of a canonical table; empty without a type."""
    if kind is None:
        return ""
    if pa.types.is_list(kind):
        return f"array<{_spark_type(kind.value_type)}>"
    names = {pa.string(): "string", pa.float64(): "double", pa.int64(): "bigint"}
    return names.get(kind, "timestamp")

"""Checks of the rows of each table; subscriptions from topic filters, and latencies from samples."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from functools import reduce
from operator import or_
from pathlib import Path

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sf

from broadloom.checks import CONTROL_CHARACTERS
from broadloom.errors import InputError
from broadloom.maintenance import EVENT_KINDS, SUBSCRIBE, UNKNOWN_KIND, UNSUBSCRIBE
from broadloom.model import Reason
from broadloom.mqtt import topic_filters as filters
from broadloom.pipeline.ingest.raw_rows import RAW, REASON, SOURCE, first_fault
from broadloom.pipeline.ingest.raw_sources import open_file, separator

MOST_NOTES = 5  # on shared subscriptions

# Reasons of rows that are neither refused nor rows of the table: repeats, and marks of shared subscriptions.
DUPLICATE = "duplicate"
SHARED = "shared"

# Columns of checked subscriptions: whether a broker has the subscription although no plan carries it, and the
# shared subscription that a filter was taken from.
LEFT_OUT = "left_out"
SHARE = "share"

# The column that identifies a row of these tables.
KEYS = {"nodes": "node", "topics": "topic", "brokers": "broker", "subscribers": "subscriber", "events": "seq"}

_MATRIX_SCHEMA = pa.schema(
    [(name, pa.string()) for name in ("raw", "source", "reason", "src", "dst")] + [("rtt_ms", pa.float64())]
)


def tally_rows(rows: DataFrame, key: str | None) -> DataFrame:
    """The rows of a table that is only checked, as a tally: its columns, rows, and the refused rows.

    If the table has a key, the first good row with a key is kept, in the order of their text. A row with the
    same values is a duplicate, and a row with other values is bad.
    """
    columns = [name for name in rows.columns if name not in (RAW, SOURCE, REASON)]
    if key is not None:
        values = sf.to_json(sf.struct(*(f"`{name}`" for name in columns)))
        rows = rows.withColumns({"values": values, "good": sf.col(REASON).isNull()})
        same_key = Window.partitionBy(key, "good").orderBy(RAW, "values")
        rows = rows.withColumns(
            {"first": sf.first("values").over(same_key), "number": sf.row_number().over(same_key)}
        )
        fault = sf.when(sf.col("values") != sf.col("first"), sf.lit(Reason.conflict(key)))
        repeat = sf.when(sf.col("number") > 1, sf.lit(DUPLICATE))
        rows = rows.withColumn(REASON, sf.coalesce(REASON, fault, repeat))
    good = sf.col(REASON).isNull()
    kept = [sf.when(good, sf.col(f"`{name}`")).alias(name) for name in columns]
    details = [sf.when(~good, sf.col(name)).alias(name) for name in (RAW, SOURCE)]
    return rows.select(*kept, sf.lit(1).cast("long").alias("rows"), REASON, *details)


def _held(*more: Column) -> Column:
    """A refused row, with a number of its own, so that it is not combined with equal ones; null if good."""
    values = (REASON, RAW, SOURCE, *more, sf.monotonically_increasing_id().alias("number"))
    return sf.when(sf.col(REASON).isNotNull(), sf.struct(*values)).alias("held")


def _good(name: str) -> Column:
    return sf.when(sf.col(REASON).isNull(), sf.col(name)).alias(name)


def _unpacked(*names: str) -> list[Column]:
    """The columns of refused rows."""
    return [sf.col("held").getField(name).alias(name) for name in (REASON, RAW, SOURCE, *names)]


def check_events(rows: DataFrame) -> DataFrame:
    """The events, with a reason for each event of an unknown kind, or without the topics that it needs."""
    for column, type_name in (("topics", "array<string>"), ("at", "string")):
        if column not in rows.columns:
            rows = rows.withColumn(column, sf.lit(None).cast(type_name))
    kind = sf.col("kind")
    no_topics = sf.coalesce(sf.size("topics"), sf.lit(0)) <= 0
    faults = [
        (~kind.isin(*EVENT_KINDS), UNKNOWN_KIND),
        (kind.isin(SUBSCRIBE, UNSUBSCRIBE) & no_topics, Reason.missing("topics")),
    ]
    return rows.withColumn(REASON, sf.coalesce(REASON, first_fault(faults)))


def check_subscriptions(rows: DataFrame, nodes: DataFrame | None, topics: DataFrame | None) -> DataFrame:
    """The subscriptions, with filters without `$share/<group>/`, and with a reason for each bad row."""
    bare = sf.when(sf.col("topic").startswith("$"), sf.regexp_replace("topic", filters.SHARED, "")).otherwise(
        sf.col("topic")
    )
    is_share = sf.col("topic").startswith("$") & sf.col("topic").rlike(filters.SHARED)
    share = sf.when(is_share, sf.col("topic"))
    client = sf.col("client") if "client" in rows.columns else sf.lit("")
    rows = rows.withColumns({SHARE: share, "topic": bare, "client": sf.coalesce(client, sf.lit(""))})
    topic = sf.col("topic")
    wild = _is_wild("topic")
    internal = topic.startswith("$")
    bad_filter = (topic == "") | (wild & ~topic.rlike(filters.VALID)) | topic.rlike(CONTROL_CHARACTERS)
    own = reduce(or_, (sf.col("client").startswith(name) for name in filters.OWN_CLIENTS))
    faults = [(own, Reason.OWN)]
    unsure = sf.lit(True)
    if topics is not None:  # a topic that is known to be a good one needs no further test
        rows = _marked(rows, topics, "topic", "topic_known", ~(wild | internal | bad_filter))
        unsure = ~sf.coalesce("topic_known", sf.lit(False))
    faults += [(unsure & internal, Reason.INTERNAL), (unsure & bad_filter, Reason.BAD_FILTER)]
    if nodes is not None:
        rows = _marked(rows, nodes, "node", "node_known")
        faults.append((sf.col("node_known").isNull(), Reason.UNKNOWN_NODE))
    if topics is not None:
        faults.append((unsure & ~wild & sf.col("topic_known").isNull(), Reason.UNKNOWN_TOPIC))
    rows = rows.withColumn("fault", first_fault(faults))  # a column, so that it is computed once
    known = sf.col("node_known").isNotNull() if nodes is not None else sf.lit(True)
    of_filter = sf.col("fault").isin(Reason.INTERNAL, Reason.BAD_FILTER, Reason.UNKNOWN_TOPIC)
    left_out = sf.coalesce(sf.col(REASON).isNull() & of_filter & (topic != "") & known, sf.lit(False))
    return rows.withColumns({LEFT_OUT: left_out, REASON: sf.coalesce(REASON, "fault")})


def tally_subscriptions(rows: DataFrame, pieces: int) -> DataFrame:
    """Count checked subscriptions in one pass: good rows by node and filter, refused rows one by one.

    Nearly all rows differ, so combining equal rows before the shuffle would only fill the memory. Each row
    goes to one of `pieces` partitions, which are small enough to be counted without a sort.

    Returns:
        The columns node, filter, clients and rows for good rows, and reason, raw and source for refused rows;
        the columns of the other kind are null. A refused row that is a subscription has its node and filter
        as left_node and left_topic. In addition, one row with the reason `SHARED` for each shared
        subscription (raw) of a node (left_node); it counts 0 rows.
    """
    marks = sf.when(sf.col(SHARE).isNull() | sf.col(REASON).isNotNull(), sf.array(sf.lit(False)))
    rows = rows.withColumn("mark", sf.explode(marks.otherwise(sf.array(sf.lit(False), sf.lit(True)))))
    left = [sf.when(sf.col(LEFT_OUT), sf.col(name)).alias(f"left_{name}") for name in ("node", "topic")]
    nothing = sf.lit(None).cast("string")
    shared = sf.struct(
        sf.lit(SHARED).alias(REASON),
        sf.col(SHARE).alias(RAW),
        nothing.alias(SOURCE),
        sf.col("node").alias("left_node"),
        nothing.alias("left_topic"),
        sf.lit(None).cast("long").alias("number"),
    )
    mark = sf.col("mark")
    held = sf.when(mark, shared).otherwise(_held(*left)).alias("held")
    kept = [sf.when(~mark, _good(name)).alias(name) for name in ("node", "topic", "client")]
    apart = rows.select(held, *kept, sf.when(mark, 0).otherwise(1).alias("rows"))
    apart = apart.coalesce(1) if pieces == 1 else apart.repartition(pieces, "held", "node", "topic")
    by_client = apart.groupBy("held", "node", "topic", "client").agg(sf.sum("rows").alias("rows"))
    counted = by_client.groupBy("held", "node", "topic").agg(
        sf.count("*").alias("clients"), sf.sum("rows").alias("rows")
    )
    fields = _unpacked("left_node", "left_topic")
    return counted.select("node", sf.col("topic").alias("filter"), "clients", "rows", *fields)


def shared_notes(brokers: dict[str, list[str]]) -> list[str]:
    """Notes on shared subscriptions that exist at several brokers: each of them delivers its own copy."""
    several = sorted((share, sorted(nodes)) for share, nodes in brokers.items() if len(nodes) > 1)
    notes = [
        f"shared subscription {share!r} is at {len(nodes):,} brokers ({few(nodes)}); "
        "the group of each broker receives a copy of its own"
        for share, nodes in several[:MOST_NOTES]
    ]
    more = len(several) - MOST_NOTES
    return [*notes, f"{more:,} more shared subscriptions are at several brokers"] if more > 0 else notes


def not_carried_notes(table: pa.Table) -> list[str]:
    """One note per reason on the table not_carried: the number of filters, and the first of them.

    Examples:
        >>> rows = {"node": ["rome", "oslo"], "topic": ["$SYS/#", "$SYS/#"], "reason": ["of the broker"] * 2}
        >>> not_carried_notes(pa.table(rows))
        ["not carried: 2 subscriptions, of the broker ('$SYS/#' at oslo, '$SYS/#' at rome)"]
    """
    by_reason: dict[str, list[tuple[str, str]]] = {}
    for row in table.to_pylist():
        by_reason.setdefault(row["reason"], []).append((row["topic"], row["node"]))
    return [
        f"not carried: {len(rows):,} subscriptions, {reason} "
        f"({few([f'{topic!r} at {node}' for topic, node in sorted(rows)])})"
        for reason, rows in sorted(by_reason.items())
    ]


def few(names: list[str], most: int = 3) -> str:
    """The first of some names, and the number of the others.

    Examples:
        >>> few(["a", "b", "c", "d", "e"])
        'a, b, c and 2 more'
    """
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def check_publications(rows: DataFrame, nodes: DataFrame | None) -> DataFrame:
    """The publications, with a reason for each bad row; a topic has no wildcard."""
    topic = sf.col("topic")
    rate = sf.col("rate")
    faults = [
        (_is_wild("topic") | topic.contains("\0"), Reason.BAD_TOPIC),
        (topic.startswith("$"), Reason.INTERNAL),
        (sf.isnan(rate) | (rate < 0) | (rate == float("inf")), Reason.NEGATIVE_RATE),
    ]
    if nodes is not None:
        rows = _marked(rows, nodes, "node", "node_known")
        faults.append((sf.col("node_known").isNull(), Reason.UNKNOWN_NODE))
    return rows.withColumn(REASON, sf.coalesce(REASON, first_fault(faults)))


def tally_publications(rows: DataFrame) -> DataFrame:
    """The publications as a tally: node, topic, their total rate, rows, and the refused rows."""
    apart = rows.select(_held(), _good("node"), _good("topic"), _good("rate"))
    counted = apart.groupBy("held", "node", "topic").agg(
        sf.sum("rate").alias("rate"), sf.count("*").alias("rows")
    )
    return counted.select("node", "topic", "rate", "rows", *_unpacked())


def _marked(
    rows: DataFrame, known: DataFrame, column: str, mark: str, value: Column | None = None
) -> DataFrame:
    """The rows with a column `mark`, null if the value of `column` is unknown; `known` has each value once.

    The mark of a known value is true, or `value`, which is computed once for each.
    """
    listed = known.select(column).withColumn(mark, sf.lit(True) if value is None else value)
    return rows.join(sf.broadcast(listed), column, "left")


def _is_wild(column: str) -> Column:
    return sf.col(column).contains("+") | sf.col(column).contains("#")


def check_latency(rows: DataFrame, known: DataFrame | None) -> DataFrame:
    """The samples, with a reason for each bad row; `known` has the column node and optionally site."""
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
            listed = names.select(sf.col("name").alias(end), sf.col("is_site").alias(f"{end}_site"))
            rows = rows.join(sf.broadcast(listed), end, "left")
            faults.append((sf.col(f"{end}_site").isNull(), Reason.UNKNOWN_NODE))
        same = (sf.col("src") == sf.col("dst")) & ~sf.col("src_site")
    else:
        same = sf.col("src") == sf.col("dst")
    faults.append((same, Reason.SAME_ENDS))
    return rows.withColumn(REASON, sf.coalesce(REASON, first_fault(faults)))


def tally_latency(rows: DataFrame, symmetric: str) -> DataFrame:
    """The samples as a tally: src, dst, the median rtt_ms, rows, and the refused rows.

    Args:
        rows: the checked samples.
        symmetric: "none" keeps both directions; "mean", "min" or "max" combines them.
    """
    apart = rows.select(_held(), _good("src"), _good("dst"), _good("rtt_ms"))
    counted = apart.groupBy("held", "src", "dst").agg(
        sf.median("rtt_ms").alias("rtt_ms"), sf.count("*").alias("rows")
    )
    if symmetric != "none":
        rule = {"mean": sf.mean, "min": sf.min, "max": sf.max}[symmetric]
        pair = sf.least("src", "dst").alias("src"), sf.greatest("src", "dst").alias("dst")
        counted = counted.groupBy("held", *pair).agg(
            rule("rtt_ms").alias("rtt_ms"), sf.sum("rows").alias("rows")
        )
    return counted.select("src", "dst", "rtt_ms", "rows", *_unpacked())


def read_matrix(path: Path, nodes: list[str]) -> pa.Table:
    """The cells of a matrix file as rows: raw, source, reason, src, dst, rtt_ms; empty cells are skipped.

    The first line has the names of the columns, and the first field of each line the name of its row. A
    square of numbers without names is in the order of `nodes`.

    Raises:
        InputError: the matrix is not square, or its names do not fit.
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
    return pa.Table.from_pylist(list(_cells(path, rows, columns, cells)), schema=_MATRIX_SCHEMA)


def _has_header(lines: list[list[str]], nodes: list[str]) -> bool:
    """Whether the first line has names, which can be numbers."""
    head = lines[0]
    body = lines[1:]
    if any(_is_word(cell) for cell in head):
        return True
    known = not nodes or set(filter(None, head)) <= set(nodes)
    if body and (len(body) == len(head) or len(body[0]) == len(head) + 1):
        return known
    # A square with an empty corner and equal first line and column is unnamed if its size is that of `nodes`.
    mirrored = not head[0] and [line[0] for line in body] == head[1:]
    return mirrored and (known or len(nodes) != len(lines))


def _has_labels(head: list[str], body: list[list[str]]) -> bool:
    """Whether the first field of each line is its name; `head` has the names of the columns."""
    side = [line[0] for line in body]
    return len(body[0]) == len(head) + 1 or not head[0] or side == head[1:] or _is_word(side[0])


def _is_word(cell: str) -> bool:
    return bool(cell) and _number(cell) is None


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

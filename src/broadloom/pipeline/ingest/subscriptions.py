"""Client subscriptions to the interest of every broker: checks, duplicates, wildcards."""

from __future__ import annotations

from functools import reduce
from operator import or_

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from broadloom.model import Reason
from broadloom.mqtt import topic_filters as filters
from broadloom.pipeline.ingest.read import RAW, REASON, SOURCE, first_fault


def checked(rows: DataFrame, nodes: DataFrame | None, topics: DataFrame | None) -> DataFrame:
    """The rows with their filters bare of shares, and with a reason where one is not to be used."""
    bare = sf.when(sf.col("topic").startswith("$"), sf.regexp_replace("topic", filters.SHARED, "")).otherwise(
        sf.col("topic")
    )
    client = sf.col("client") if "client" in rows.columns else sf.lit("")
    rows = rows.withColumns({"topic": bare, "client": sf.coalesce(client, sf.lit(""))})
    topic, wild = sf.col("topic"), _is_wild("topic")
    own = reduce(or_, (sf.col("client").startswith(name) for name in filters.OWN_CLIENTS))
    faults = [
        (own, Reason.OWN),
        (topic.startswith("$"), Reason.INTERNAL),
        ((topic == "") | ((wild | topic.contains("\0")) & ~topic.rlike(filters.VALID)), Reason.BAD_FILTER),
    ]
    if nodes is not None:
        rows = _marked(rows, nodes, "node", "node_known")
        faults.append((sf.col("node_known").isNull(), Reason.UNKNOWN_NODE))
    if topics is not None:
        rows = _marked(rows, topics, "topic", "topic_known")
        faults.append((~wild & sf.col("topic_known").isNull(), Reason.UNKNOWN_TOPIC))
    return rows.withColumn(REASON, sf.coalesce(REASON, first_fault(faults)))


def tally(rows: DataFrame, pieces: int) -> DataFrame:
    """One pass over checked rows: what is wanted, by how many clients and rows; and every bad row by itself.

    Nearly every row differs from all others, so to gather equal ones before they travel would only fill the
    memory: each goes to one of `pieces` at once, which are small enough to be counted without a sort.

    Returns:
        node, filter, clients, rows of good rows; reason, raw, source of bad ones and headers, which are null
        for good ones.
    """
    good, bad = sf.col(REASON).isNull(), sf.col(REASON).isNotNull()
    held = sf.when(bad, sf.struct(REASON, RAW, SOURCE, sf.monotonically_increasing_id())).alias("held")
    kept = [sf.when(good, sf.col(name)).alias(name) for name in ("node", "topic", "client")]
    apart = rows.select(held, *kept).repartition(pieces, "held", "node", "topic", "client")
    by_client = apart.groupBy("held", "node", "topic", "client")
    by_filter = by_client.agg(sf.count("*").alias("rows")).groupBy("held", "node", "topic")
    counted = by_filter.agg(sf.count("*").alias("clients"), sf.sum("rows").alias("rows"))
    words = [sf.col("held").getField(name).alias(name) for name in (REASON, RAW, SOURCE)]
    return counted.select("node", sf.col("topic").alias("filter"), "clients", "rows", *words)


def interest(
    spark: SparkSession, wanted: DataFrame, known: DataFrame | None, wildcards: str
) -> tuple[DataFrame, list[str]]:
    """The table subscriptions, without wildcards, and notes on filters that want very much.

    Args:
        spark: the session.
        wanted: the nodes and their filters.
        known: the list of topics, if there is one; otherwise the topics are those named without a wildcard.
        wildcards: "match": a filter stands for the topics that it matches. "group": filters that can meet in
            a topic become one topic, for topics that nobody knows beforehand.
    """
    wild = _is_wild("filter")
    patterns = _texts(wanted.where(wild).select("filter"))
    if not patterns:
        return wanted.select("node", sf.col("filter").alias("topic")), []
    literal = wanted.where(~wild).select(sf.col("filter").alias("topic")) if known is None else known
    topics = _texts(literal)
    stands_for = _stands_for(patterns, topics, wildcards)
    pairs = [(text, topic) for text, found in stands_for.items() for topic in found]
    columns = [pa.array(column, pa.string()) for column in zip(*pairs, strict=True)]
    meaning = spark.createDataFrame(pa.table(columns, names=["filter", "topic"]))
    expanded = wanted.join(sf.broadcast(meaning), "filter", "left").select(
        "node", sf.coalesce("topic", "filter").alias("topic")
    )
    return expanded.distinct(), _notes(stands_for, len(topics))


def _stands_for(patterns: list[str], topics: list[str], wildcards: str) -> dict[str, list[str]]:
    """The topics of each filter; those that stand for themselves may be missing."""
    if wildcards == "match":
        return filters.topics_of(patterns, topics)
    groups = filters.groups(patterns + topics)
    return {text: [group] for text, group in groups.items() if text != group or filters.is_wild(text)}


def _notes(stands_for: dict[str, list[str]], topics: int) -> list[str]:
    """What one filter does to the plan, if that is much."""
    broad = [text for text, found in stands_for.items() if len(found) > max(10, topics // 2)]
    groups: dict[str, int] = {}
    for found in stands_for.values():
        groups[found[0]] = groups.get(found[0], 0) + (len(found) == 1)
    huge = [text for text, size in groups.items() if size > max(10, topics // 2)]
    notes = [f"filter {text!r} matches {len(stands_for[text]):,} of {topics:,} topics" for text in broad]
    return notes + [
        f"{groups[text]:,} filters can meet in a topic and became the one topic {text!r}" for text in huge
    ]


def _marked(rows: DataFrame, known: DataFrame, column: str, mark: str) -> DataFrame:
    """The rows with a mark where the value of a column is a known one; `known` has each once."""
    listed = known.select(column).withColumn(mark, sf.lit(True))
    return rows.join(sf.broadcast(listed), column, "left")


def _is_wild(column: str) -> Column:
    return sf.col(column).contains("+") | sf.col(column).contains("#")


def _texts(column: DataFrame) -> list[str]:
    """The distinct values of a frame of one column, ascending."""
    return sorted(column.distinct().toArrow().column(0).to_pylist())

"""Verification and measures of a plan as Spark jobs, from its tables alone.

No code of this module is used to build plans. Each topic is checked and measured separately. Topic filters
and topics that overlap count as one topic, named by the shortest of them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from broadloom.errors import InputError
from broadloom.measures import filters_text
from broadloom.measures.sub_overlays import graph_diameter
from broadloom.mqtt.topic_filters import groups, is_filter
from broadloom.pipeline.spark_session import SparkEngine, session

# The largest number of disconnected topics that a verdict names.
SHOWN = 100


@dataclass(frozen=True)
class Verdict:
    """The result of a verification.

    Attributes:
        topics: the number of topics that were checked; topic filters that overlap are one.
        disconnected: the number of topics with more than one component.
        examples: the first of these, by name.
        bad_edges: the number of loops, of repeated links, and of link ends at unknown nodes.
        filters: the number of topic filters with a wildcard.

    Examples:
        >>> Verdict(3, 0, (), 0).good
        True
    """

    topics: int
    disconnected: int
    examples: tuple[str, ...]
    bad_edges: int
    filters: int = 0

    @property
    def good(self) -> bool:
        """Whether every topic is connected and no link is bad."""
        return self.disconnected == 0 and self.bad_edges == 0

    def summary(self) -> str:
        """The verdict in a sentence."""
        all_topics = f"{self.topics:,} topics{filters_text(self.filters)}"
        if self.good:
            return f"every one of {all_topics} is connected"
        names = ", ".join(self.examples[:5])
        topics = f"{self.disconnected:,} of {all_topics} are not connected ({names})"
        return f"{topics}; {self.bad_edges:,} bad links"


def verify_on_spark(
    plan: str | Path, engine: SparkEngine | None = None, spark: SparkSession | None = None
) -> Verdict:
    """Verify the plan in a folder: that every topic is connected, and that no link is bad."""
    folder = Path(plan).absolute()
    with session(engine, spark) as running:
        found = components(running, folder)
        broken = found.where("components > 1")
        counts = found.agg(
            sf.count("*").alias("topics"), sf.count_if(sf.expr("components > 1")).alias("disconnected")
        )
        row = counts.toArrow().to_pylist()[0]
        names = (
            broken.select("topic").orderBy("topic").limit(SHOWN).toArrow() if row["disconnected"] else None
        )
        examples = tuple(names.column(0).to_pylist()) if names is not None else ()
        bad = _bad_edges(running, folder)
        filters = sum(map(is_filter, _wild_topics(folder)))
        return Verdict(row["topics"], row["disconnected"], examples, bad, filters)


def components(spark: SparkSession, plan: Path) -> DataFrame:
    """The number of components of each topic: topic, subscribers, components."""
    merged = links(spark, plan).select("topic", "u", "v").groupBy("topic")
    joined = subscribers(spark, plan).join(
        merged.applyInArrow(_merged, "topic string, merged long"), "topic", "left"
    )
    remaining = sf.col("subscribers") - sf.coalesce("merged", sf.lit(0))
    return joined.select("topic", "subscribers", remaining.alias("components"))


def _merged(group: pa.Table) -> pa.Table:
    """The number by which the links of a topic (topic, u, v) reduce its components: topic, merged."""
    ends = pa.concat_arrays([*group.column("u").chunks, *group.column("v").chunks]).dictionary_encode()
    index = np.asarray(ends.indices)
    size = len(ends.dictionary)
    graph = coo_array((np.ones(group.num_rows, np.int8), np.split(index, 2)), shape=(size, size))
    merged = size - int(connected_components(graph, directed=False)[0])
    return pa.table({"topic": group.column("topic").slice(0, 1), "merged": [merged]})


def _bad_edges(spark: SparkSession, plan: Path) -> int:
    """The number of loops, of repeated links, and of link ends at unknown nodes."""
    edges = plan_table(spark, plan, "edges")
    nodes = plan_table(spark, plan, "nodes").select("node")
    loops = edges.where("u = v").count()
    pairs = edges.select(sf.least("u", "v").alias("a"), sf.greatest("u", "v").alias("b"))
    repeated = pairs.groupBy("a", "b").count().where("count > 1").count()
    ends = edges.select(sf.explode(sf.array("u", "v")).alias("node"))
    return int(loops + repeated + ends.join(nodes, "node", "left_anti").count())


def measure_on_spark(
    plan: str | Path, engine: SparkEngine | None = None, spark: SparkSession | None = None
) -> dict[str, Any]:
    """Measures of the plan in a folder, with the names of `broadloom.measures.metrics`."""
    with session(engine, spark) as running:
        folder = Path(plan).absolute()
        return _node_measures(degrees(running, folder)) | _topic_measures(diameters(running, folder))


def measure_into(folder: Path, plan: Path, spark: SparkSession) -> None:
    """Write the measures of each node, of each topic, and of the whole plan into an existing folder."""
    degrees(spark, plan).coalesce(1).write.parquet(str(folder / "nodes.parquet"))
    diameters(spark, plan).coalesce(1).write.parquet(str(folder / "topics.parquet"))
    nodes, topics = (spark.read.parquet(str(folder / f"{name}.parquet")) for name in ("nodes", "topics"))
    measures = _node_measures(nodes) | _topic_measures(topics)
    (folder / "measures.json").write_text(json.dumps(measures, indent=2) + "\n")


def degrees(spark: SparkSession, plan: Path) -> DataFrame:
    """The number of links of each node, and their total weight: node, degree, weighted_degree."""
    ends = plan_table(spark, plan, "edges").select(sf.explode(sf.array("u", "v")).alias("node"), "weight")
    counted = ends.groupBy("node").agg(
        sf.count("*").alias("degree"), sf.sum("weight").alias("weighted_degree")
    )
    nodes = plan_table(spark, plan, "nodes").select("node").join(counted, "node", "left")
    return nodes.fillna({"degree": 0, "weighted_degree": 0.0})


def diameters(spark: SparkSession, plan: Path) -> DataFrame:
    """The diameter of each topic that has subscribers: topic, subscribers, hops, length.

    Infinity for a topic that is not connected, 0 for one subscriber.
    """
    shape = "topic string, reached long, hops double, length double"
    found = links(spark, plan).groupBy("topic").applyInArrow(_diameter, shape)
    joined = subscribers(spark, plan).where("subscribers > 0").join(found, "topic", "left")
    whole = sf.coalesce("reached", sf.lit(1)) == sf.col("subscribers")
    distances = [
        sf.when(whole, sf.coalesce(name, sf.lit(0.0))).otherwise(float("inf")).alias(name)
        for name in ("hops", "length")
    ]
    return joined.select("topic", "subscribers", *distances)


def _diameter(group: pa.Table) -> pa.Table:
    """The number of nodes that the links of a topic reach, and its diameter in hops and in weight."""
    ends = pa.concat_arrays([*group.column("u").chunks, *group.column("v").chunks]).dictionary_encode()
    edges = np.stack(np.split(np.asarray(ends.indices), 2), axis=1)
    size = len(ends.dictionary)
    hops = graph_diameter(size, edges, np.ones(len(edges)))
    length = graph_diameter(size, edges, group.column("weight").to_numpy())
    topic = group.column("topic").slice(0, 1)
    return pa.table({"topic": topic, "reached": [size], "hops": [hops], "length": [length]})


def _node_measures(nodes: DataFrame) -> dict[str, Any]:
    row = nodes.agg(
        sf.count("*").alias("nodes"),
        sf.sum("degree").alias("ends"),
        sf.max("degree").alias("max_degree"),
        sf.sum("weighted_degree").alias("weight"),
        sf.max("weighted_degree").alias("weighted_max_degree"),
    )
    found = row.toArrow().to_pylist()[0]
    count = max(found["nodes"], 1)
    return {
        "nodes": found["nodes"],
        "edges": (found["ends"] or 0) // 2,
        "mean_degree": (found["ends"] or 0) / count,
        "max_degree": found["max_degree"] or 0,
        "weighted_mean_degree": (found["weight"] or 0.0) / count,
        "weighted_max_degree": found["weighted_max_degree"] or 0.0,
        "total_weight": (found["weight"] or 0.0) / 2,
    }


def _topic_measures(topics: DataFrame) -> dict[str, Any]:
    row = topics.agg(
        sf.mean("hops").alias("mean_diameter"),
        sf.max("hops").alias("max_diameter"),
        sf.mean("length").alias("weighted_mean_diameter"),
        sf.max("length").alias("weighted_max_diameter"),
        sf.count_if(sf.col("hops") == float("inf")).alias("disconnected_topics"),
    )
    found: dict[str, Any] = row.toArrow().to_pylist()[0]
    return {name: 0 if value is None else value for name, value in found.items()}


def plan_table(spark: SparkSession, plan: Path, name: str) -> DataFrame:
    """A table of a plan."""
    path = plan / f"{name}.parquet"
    _require(path)
    return spark.read.parquet(str(path))


def _require(path: Path) -> None:
    if not path.exists():
        raise InputError(f"{path.parent} is not a plan: {path.name} is missing; give the folder of a plan")


def subscribers(spark: SparkSession, plan: Path) -> DataFrame:
    """The number of subscribers of each topic, 0 included: topic, subscribers."""
    counted = grouped_table(spark, plan, "subscriptions").groupBy("topic")
    topics = grouped_table(spark, plan, "topics").join(
        counted.agg(sf.count("*").alias("subscribers")), "topic", "left"
    )
    return topics.select("topic", sf.coalesce("subscribers", sf.lit(0)).alias("subscribers"))


def grouped_table(spark: SparkSession, plan: Path, name: str) -> DataFrame:
    """The table topics or subscriptions of a plan; topics that overlap have the name of their group.

    A topic filter without subscribers is in no group with others.
    """
    table = plan_table(spark, plan, name)
    if not any(map(is_filter, _wild_topics(plan))):
        return table
    wanted = plan_table(spark, plan, "subscriptions").select("topic").distinct()
    names = groups(wanted.toArrow().column("topic").to_pylist())
    changed = [(text, group) for text, group in names.items() if text != group]
    if not changed:
        return table
    columns = [pa.array(column, pa.string()) for column in zip(*changed, strict=True)]
    group_of = spark.createDataFrame(pa.table(columns, names=["topic", "group"]))
    joined = table.join(sf.broadcast(group_of), "topic", "left")
    renamed = joined.withColumn("topic", sf.coalesce("group", "topic"))
    return renamed.select(*(column for column in ("node", "topic") if column in table.columns)).distinct()


def _wild_topics(plan: Path) -> list[str]:
    """The topics of a plan with a sign of a wildcard."""
    signs = pc.match_substring(pc.field("topic"), "+") | pc.match_substring(pc.field("topic"), "#")
    path = plan / "topics.parquet"
    _require(path)
    topics = pyarrow.dataset.dataset(path).to_table(["topic"], filter=signs)
    found: list[str] = topics.column("topic").to_pylist()
    return found


def links(spark: SparkSession, plan: Path) -> DataFrame:
    """One row per link and topic that both ends want: topic, u, v, weight."""
    subscriptions = grouped_table(spark, plan, "subscriptions")
    wanted = subscriptions.groupBy("node").agg(sf.collect_list("topic").alias("topics"))
    edges = plan_table(spark, plan, "edges").select("u", "v", "weight")
    for end in ("u", "v"):
        own = wanted.select(sf.col("node").alias(end), sf.col("topics").alias(f"{end}_topics"))
        edges = edges.join(own, end)
    shared = sf.array_intersect("u_topics", "v_topics")
    return edges.select(sf.explode(shared).alias("topic"), "u", "v", "weight")

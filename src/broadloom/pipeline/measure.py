"""Measure a plan as Spark jobs: degrees and weights of nodes, diameters of topics, each topic on its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from broadloom.measures.sub_overlays import graph_diameter
from broadloom.pipeline.session import Engine, session
from broadloom.pipeline.topics import links, plan_table, subscribers


def measure(
    plan: str | Path, engine: Engine | None = None, spark: SparkSession | None = None
) -> dict[str, Any]:
    """Measures of the plan in a folder, under the names that `broadloom.measures.metrics` gives them."""
    with session(engine, spark) as running:
        place = Path(plan).absolute()
        nodes, topics = degrees(running, place), diameters(running, place)
        return _of_nodes(nodes) | _of_topics(topics)


def measure_into(folder: Path, plan: Path, spark: SparkSession) -> None:
    """Write the measures of each node, of each topic, and of the whole into a folder that is there."""
    degrees(spark, plan).coalesce(1).write.parquet(str(folder / "nodes.parquet"))
    diameters(spark, plan).coalesce(1).write.parquet(str(folder / "topics.parquet"))
    nodes, topics = (spark.read.parquet(str(folder / f"{name}.parquet")) for name in ("nodes", "topics"))
    measures = _of_nodes(nodes) | _of_topics(topics)
    (folder / "measures.json").write_text(json.dumps(measures, indent=2) + "\n")


def degrees(spark: SparkSession, plan: Path) -> DataFrame:
    """The number of links of each node, and their weight: node, degree, weighted_degree."""
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
    ways = [
        sf.when(whole, sf.coalesce(way, sf.lit(0.0))).otherwise(float("inf")).alias(way)
        for way in ("hops", "length")
    ]
    return joined.select("topic", "subscribers", *ways)


def _diameter(group: pa.Table) -> pa.Table:
    """How many nodes a topic's links reach, and how far apart the farthest two are."""
    ends = pa.concat_arrays([*group.column("u").chunks, *group.column("v").chunks]).dictionary_encode()
    edges = np.stack(np.split(np.asarray(ends.indices), 2), axis=1)
    size, weights = len(ends.dictionary), group.column("weight").to_numpy()
    hops, length = (graph_diameter(size, edges, way) for way in (np.ones(len(edges)), weights))
    topic = group.column("topic").slice(0, 1)
    return pa.table({"topic": topic, "reached": [size], "hops": [hops], "length": [length]})


def _of_nodes(nodes: DataFrame) -> dict[str, Any]:
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


def _of_topics(topics: DataFrame) -> dict[str, Any]:
    row = topics.agg(
        sf.mean("hops").alias("mean_diameter"),
        sf.max("hops").alias("max_diameter"),
        sf.mean("length").alias("weighted_mean_diameter"),
        sf.max("length").alias("weighted_max_diameter"),
        sf.count_if(sf.col("hops") == float("inf")).alias("disconnected_topics"),
    )
    found: dict[str, Any] = row.toArrow().to_pylist()[0]
    return {name: 0 if value is None else value for name, value in found.items()}

"""A plan's tables, topic by topic: who subscribes, and which links both ends of which subscribe."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from broadloom.errors import InputError


def plan_table(spark: SparkSession, plan: Path, name: str) -> DataFrame:
    """A table of a plan's folder."""
    place = plan / f"{name}.parquet"
    if not place.exists():
        raise InputError(f"{plan} is not a plan: it has no {place.name}")
    return spark.read.parquet(str(place))


def subscribers(spark: SparkSession, plan: Path) -> DataFrame:
    """How many nodes subscribe to each topic; 0 for a topic without any."""
    counted = (
        plan_table(spark, plan, "subscriptions").groupBy("topic").agg(sf.count("*").alias("subscribers"))
    )
    topics = plan_table(spark, plan, "topics").join(counted, "topic", "left")
    return topics.select("topic", sf.coalesce("subscribers", sf.lit(0)).alias("subscribers"))


def links(spark: SparkSession, plan: Path) -> DataFrame:
    """One row a link and topic that both its ends want: topic, u, v, weight."""
    wanted = (
        plan_table(spark, plan, "subscriptions").groupBy("node").agg(sf.collect_list("topic").alias("topics"))
    )
    edges = plan_table(spark, plan, "edges").select("u", "v", "weight")
    for end in ("u", "v"):
        own = wanted.select(sf.col("node").alias(end), sf.col("topics").alias(f"{end}_topics"))
        edges = edges.join(own, end)
    shared = sf.array_intersect("u_topics", "v_topics")
    return edges.select(sf.explode(shared).alias("topic"), "u", "v", "weight")

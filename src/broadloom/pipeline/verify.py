"""Verify a plan as a Spark job, from its tables alone: nothing here is used to build plans."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from broadloom.pipeline.session import Engine, session
from broadloom.pipeline.topics import links, plan_table, subscribers

SHOWN = 100


@dataclass(frozen=True)
class Verdict:
    """What a check found.

    Attributes:
        topics: how many topics were checked.
        disconnected: how many of them are in more than one component.
        examples: the first of these, by name.
        bad_edges: links that are loops, given twice, or whose end is no node.

    Examples:
        >>> Verdict(3, 0, (), 0).good
        True
    """

    topics: int
    disconnected: int
    examples: tuple[str, ...]
    bad_edges: int

    @property
    def good(self) -> bool:
        """Whether every topic is connected, over links that can exist."""
        return self.disconnected == 0 and self.bad_edges == 0

    def summary(self) -> str:
        """The verdict in a sentence."""
        if self.good:
            return f"every one of {self.topics:,} topics is connected"
        few = ", ".join(self.examples[:5])
        broken = f"{self.disconnected:,} of {self.topics:,} topics are not connected ({few})"
        return f"{broken}; {self.bad_edges:,} bad links"


def verify(plan: str | Path, engine: Engine | None = None, spark: SparkSession | None = None) -> Verdict:
    """Check the plan in a folder: the components of every topic, each topic on its own."""
    place = Path(plan).absolute()
    with session(engine, spark) as running:
        found = components(running, place)
        broken = found.where("components > 1")
        counts = found.agg(
            sf.count("*").alias("topics"), sf.count_if(sf.expr("components > 1")).alias("disconnected")
        )
        row = counts.toArrow().to_pylist()[0]
        names = (
            broken.select("topic").orderBy("topic").limit(SHOWN).toArrow() if row["disconnected"] else None
        )
        examples = tuple(names.column(0).to_pylist()) if names is not None else ()
        return Verdict(row["topics"], row["disconnected"], examples, _bad_edges(running, place))


def components(spark: SparkSession, plan: Path) -> DataFrame:
    """Into how many components the plan leaves each topic's subscribers: topic, subscribers, components."""
    merged = links(spark, plan).select("topic", "u", "v").groupBy("topic")
    joined = subscribers(spark, plan).join(
        merged.applyInArrow(_merged, "topic string, merged long"), "topic", "left"
    )
    left = sf.col("subscribers") - sf.coalesce("merged", sf.lit(0))
    return joined.select("topic", "subscribers", left.alias("components"))


def _merged(group: pa.Table) -> pa.Table:
    """How many components fewer a topic has thanks to its links."""
    ends = pa.concat_arrays([*group.column("u").chunks, *group.column("v").chunks]).dictionary_encode()
    index, size = np.asarray(ends.indices), len(ends.dictionary)
    graph = coo_array((np.ones(group.num_rows, np.int8), np.split(index, 2)), shape=(size, size))
    merged = size - int(connected_components(graph, directed=False)[0])
    return pa.table({"topic": group.column("topic").slice(0, 1), "merged": [merged]})


def _bad_edges(spark: SparkSession, plan: Path) -> int:
    edges = plan_table(spark, plan, "edges")
    nodes = plan_table(spark, plan, "nodes").select("node")
    loops = edges.where("u = v").count()
    pairs = edges.select(sf.least("u", "v").alias("a"), sf.greatest("u", "v").alias("b"))
    repeated = pairs.groupBy("a", "b").count().where("count > 1").count()
    ends = edges.select(sf.explode(sf.array("u", "v")).alias("node"))
    return int(loops + repeated + ends.join(nodes, "node", "left_anti").count())

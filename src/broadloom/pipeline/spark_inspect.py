"""Verification and measures of a plan, from its tables alone: on Spark, or in one process if it fits there.

No code of this module is used to build plans. Topics are checked and measured in blocks. Every task gets the
links of the plan, and the subscriptions of its block of topics; both ways give the same numbers, bit for bit.
Topic filters and topics that overlap count as one topic, named by the shortest of them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset
from numpy.typing import NDArray
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from broadloom.errors import InputError
from broadloom.measures import filters_text
from broadloom.measures.sub_overlays import Graph, block_components, block_diameters, link_graph
from broadloom.mqtt.topic_filters import FilterLookup, is_filter
from broadloom.pipeline.spark_session import (
    SparkEngine,
    executors_are_elsewhere,
    session,
    table_paths,
    task_count,
    write_frame,
)
from broadloom.storage import committed, share_folder
from broadloom.storage.tables import coded_table, indices_in, parquet_dataset, write_parquet

# The largest number of disconnected topics that a verdict names.
SHOWN = 100
# The subscriptions of one block of topics on Spark; a task holds about 60 bytes for each.
BLOCK_ROWS = 1_000_000
# Smaller blocks than this are not worth a task.
FEW_ROWS = 20_000
# Plans with at most this many subscriptions are inspected in one process, at about 30 bytes for each.
IN_PROCESS_ROWS = 10_000_000

TOPIC_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("subscribers", pa.int64()),
        ("components", pa.int64()),
        ("hops", pa.float64()),
        ("length", pa.float64()),
    ]
)
_WANTED_SCHEMA = pa.schema([("node", pa.string()), ("topic", pa.string())])
_BLOCK_SCHEMA = pa.schema(
    [*TOPIC_SCHEMA, ("merged", pa.int64()), ("node", pa.string()), ("name", pa.string())]
)
_BLOCK_TYPES = (
    "topic string, subscribers long, components long, hops double, length double, "
    "merged long, node string, name string"
)


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
    with session(engine, spark) as running:
        return _verdict(PlanTables(committed(plan).absolute()), running)


def verify_plan(plan: Path, spark: Callable[[], SparkSession]) -> Verdict:
    """As `verify_on_spark`, but in this process if the plan fits; `spark` starts a session if it does not."""
    tables = PlanTables(plan)
    return _verdict(tables, None if tables.fits else spark())


def _verdict(tables: PlanTables, spark: SparkSession | None) -> Verdict:
    links = tables.links()
    totals = _totals(tables, links, spark, measured=False)
    topics = tables.topic_count - totals.merged
    return Verdict(topics, totals.disconnected, totals.examples, links.bad, len(tables.filters()))


def measure_on_spark(
    plan: str | Path, engine: SparkEngine | None = None, spark: SparkSession | None = None
) -> dict[str, Any]:
    """Measures of the plan in a folder, with the names of `broadloom.measures.metrics`."""
    with session(engine, spark) as running:
        tables = PlanTables(committed(plan).absolute())
        links = tables.links()
        totals = _totals(tables, links, running, measured=True)
        return _node_measures(tables.degrees()) | totals.measures()


def measure_into(folder: Path, plan: Path, spark: Callable[[], SparkSession]) -> None:
    """Write the measures of each node, of each topic, and of the whole plan into an existing folder.

    `spark` starts a session, if the plan does not fit into this process.
    """
    tables = PlanTables(plan)
    links = tables.links()
    path = folder / "topics.parquet"
    if tables.fits:
        write_parquet(_topics_in_process(tables, links, measured=True)[0], path)
    else:
        with topics_on_spark(tables, links, spark(), measured=True) as topics:
            if executors_are_elsewhere(topics.sparkSession):
                share_folder(folder)
            write_frame(topics.select(*TOPIC_SCHEMA.names), path)
    degrees = tables.degrees()
    write_parquet(degrees, folder / "nodes.parquet")
    batches = parquet_dataset(path).to_batches()
    totals = reduce(TopicTotals.plus, map(TopicTotals.of, batches), TopicTotals())
    measures = _node_measures(degrees) | totals.measures()
    (folder / "measures.json").write_text(json.dumps(measures, indent=2) + "\n")


class TopicTotals(NamedTuple):
    """Sums over topics with subscribers; adding them up in any order gives the same bits.

    Attributes:
        topics: the number of topics.
        disconnected: how many of them have more than one component.
        examples: the first of these by name, at most `SHOWN`.
        merged: the number of topics that are part of another one, because filters overlap.
        hops: the sum of diameters in hops.
        max_hops: the largest of them.
        lengths: numbers whose sum is exactly that of the diameters in weight.
        max_length: the largest of them.
    """

    topics: int = 0
    disconnected: int = 0
    examples: tuple[str, ...] = ()
    merged: int = 0
    hops: float = 0.0
    max_hops: float = 0.0
    lengths: tuple[float, ...] = ()
    max_length: float = 0.0

    @classmethod
    def of(cls, topics: pa.RecordBatch | pa.Table, merged: int = 0) -> TopicTotals:
        """The totals of rows of topics."""
        wrong = pc.greater(topics["components"], 1)
        names = sorted(topics["topic"].filter(wrong).to_pylist())
        hops, length = (np.asarray(topics[name]) for name in ("hops", "length"))
        return cls(
            topics.num_rows,
            len(names),
            tuple(names[:SHOWN]),
            merged,
            float(hops.sum()),
            float(hops.max(initial=0.0)),
            exact_sum(length.tolist()),
            float(length.max(initial=0.0)),
        )

    def plus(self, other: TopicTotals) -> TopicTotals:
        """The totals of the topics of both."""
        return TopicTotals(
            self.topics + other.topics,
            self.disconnected + other.disconnected,
            tuple(sorted(self.examples + other.examples)[:SHOWN]),
            self.merged + other.merged,
            self.hops + other.hops,
            max(self.max_hops, other.max_hops),
            exact_sum(self.lengths + other.lengths),
            max(self.max_length, other.max_length),
        )

    def measures(self) -> dict[str, Any]:
        """The measures of topics, with the names of `broadloom.measures.metrics`."""
        count = max(self.topics, 1)
        return {
            "mean_diameter": self.hops / count,
            "max_diameter": self.max_hops,
            "weighted_mean_diameter": math.fsum(self.lengths) / count,
            "weighted_max_diameter": self.max_length,
            "disconnected_topics": self.disconnected,
        }


def exact_sum(values: Iterable[float]) -> tuple[float, ...]:
    """A few numbers with exactly the sum of `values`: their rounded sum, what it lacks, and so on.

    Examples:
        >>> exact_sum([1e16, 1.0, 1.0, 1e-9])
        (1.0000000000000002e+16, 1e-09)
        >>> exact_sum([float("inf"), 1.0]), exact_sum([])
        ((inf,), ())
    """
    terms = list(values)
    found: list[float] = []
    while rest := math.fsum(terms):
        found.append(rest)
        if math.isinf(rest):
            return (rest,)
        terms.append(-rest)
    return tuple(found)


class PlanLinks(NamedTuple):
    """The links of a plan: the nodes that have some, the graph over their indices, and the bad links.

    `bad` is the number of loops, of repeated links, and of link ends at unknown nodes.
    """

    names: pa.Array
    graph: Graph
    bad: int


@dataclass(frozen=True)
class PlanTables:
    """The tables of a plan in a folder, read as far as they are needed."""

    folder: Path

    @property
    def fits(self) -> bool:
        """Whether one process can inspect the plan."""
        return bool(self.dataset("subscriptions").count_rows() <= IN_PROCESS_ROWS)

    @property
    def topic_count(self) -> int:
        """The number of topics and topic filters."""
        return int(self.dataset("topics").count_rows())

    def dataset(self, name: str) -> pyarrow.dataset.Dataset:
        """A table of the plan."""
        path = self.folder / f"{name}.parquet"
        if not path.exists():
            raise InputError(
                f"{path.parent} is not a plan: {path.name} is missing; give the folder of a plan"
            )
        return parquet_dataset(path)

    def filters(self) -> list[str]:
        """The topic filters with a wildcard."""
        signs = pc.match_substring(pc.field("topic"), "+") | pc.match_substring(pc.field("topic"), "#")
        found = self.dataset("topics").to_table(["topic"], filter=signs)["topic"].to_pylist()
        return [text for text in found if is_filter(text)]

    def edges(self) -> pa.Table:
        """The links: u, v, weight."""
        return self.dataset("edges").to_table(["u", "v", "weight"])

    def nodes(self) -> pa.Array:
        """The names of the nodes."""
        return self.dataset("nodes").to_table(["node"])["node"].combine_chunks()

    def links(self) -> PlanLinks:
        """The links as a graph, without loops."""
        edges = self.edges()
        both = pa.chunked_array(edges["u"].chunks + edges["v"].chunks, pa.string())
        names = pc.unique(both)
        ends = np.stack([indices_in(edges[end], names) for end in ("u", "v")], axis=1)
        low, high = ends.min(axis=1, initial=len(names)), ends.max(axis=1, initial=0)
        loops = int(np.sum(low == high))
        pairs = np.sort(low * len(names) + high)
        again = repeated_values(pairs)
        unknown = int(np.sum(indices_in(both, self.nodes()) < 0))
        kept = low != high
        weights = edges["weight"].to_numpy().astype(np.float64)
        graph = link_graph(len(names), ends[kept].astype(np.int32), weights[kept])
        return PlanLinks(names, graph, loops + again + unknown)

    def degrees(self) -> pa.Table:
        """The number of links of each node, and their total weight: node, degree, weighted_degree."""
        nodes = self.nodes()
        edges = self.edges()
        ends = np.stack([indices_in(edges[end], nodes) for end in ("u", "v")], axis=1).ravel()
        weights = np.repeat(edges["weight"].to_numpy().astype(np.float64), 2)
        known = ends >= 0
        degree = np.bincount(ends[known], minlength=len(nodes))
        weighted = np.bincount(ends[known], weights[known], minlength=len(nodes))
        return pa.table({"node": nodes, "degree": degree, "weighted_degree": weighted})


def repeated_values(ascending: NDArray[np.int64]) -> int:
    """How many values occur more than once.

    Examples:
        >>> repeated_values(np.array([1, 2, 2, 2, 5, 5]))
        2
    """
    same = np.diff(ascending, prepend=-1) == 0
    return int(np.sum(same & ~np.concatenate(([False], same[:-1]))))


def _node_measures(degrees: pa.Table) -> dict[str, Any]:
    degree = degrees["degree"].to_numpy()
    weighted = degrees["weighted_degree"].to_numpy()
    count = max(len(degree), 1)
    ends, weight = int(degree.sum()), math.fsum(weighted)
    return {
        "nodes": len(degree),
        "edges": ends // 2,
        "mean_degree": ends / count,
        "max_degree": int(degree.max(initial=0)),
        "weighted_mean_degree": weight / count,
        "weighted_max_degree": float(weighted.max(initial=0.0)),
        "total_weight": weight / 2,
    }


def _totals(tables: PlanTables, links: PlanLinks, spark: SparkSession | None, measured: bool) -> TopicTotals:
    """The totals of all topics; `measured`: with diameters."""
    if spark is None:
        return TopicTotals.of(*_topics_in_process(tables, links, measured))
    with topics_on_spark(tables, links, spark, measured) as topics:
        rows = topics.mapInArrow(_summed, "totals string").toArrow()["totals"].to_pylist()
    return reduce(TopicTotals.plus, map(_read_totals, rows), TopicTotals())


def _summed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The totals of all topics of a task, as one row of JSON."""
    totals = [TopicTotals.of(batch, pc.sum(batch["merged"]).as_py() or 0) for batch in batches]
    yield pa.record_batch([[json.dumps(reduce(TopicTotals.plus, totals, TopicTotals()))]], ["totals"])


def _read_totals(text: str) -> TopicTotals:
    values: list[Any] = [tuple(one) if isinstance(one, list) else one for one in json.loads(text)]
    return TopicTotals(*values)


class TopicBlock(NamedTuple):
    """The subscriptions of some topics: one index into `topics` and one into `nodes` for each."""

    topic: NDArray[np.int64]
    node: NDArray[np.int64]
    topics: pa.Array
    nodes: pa.Array

    @classmethod
    def of(cls, table: pa.Table) -> TopicBlock:
        """The rows of a table with the columns topic and node."""
        (topic, topics), (node, nodes) = (_coded(table[name]) for name in ("topic", "node"))
        return cls(topic, node, topics, nodes)

    def only(self, rows: NDArray[np.bool_], topics: NDArray[np.bool_]) -> TopicBlock:
        """The block with only some rows, whose topics are marked in `topics`."""
        number = np.cumsum(topics) - 1
        return TopicBlock(
            number[self.topic[rows]], self.node[rows], self.topics.filter(pa.array(topics)), self.nodes
        )

    def inspected(self, links: PlanLinks, measured: bool) -> pa.Table:
        """One row per topic: `TOPIC_SCHEMA`; without `measured` the diameters are 0."""
        count = len(self.topics)
        index = indices_in(self.nodes, links.names)
        order = np.argsort(index, kind="stable")
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order))
        pairs = np.sort(self.topic * len(order) + rank[self.node])
        pairs = pairs[np.diff(pairs, prepend=-1) != 0]
        topic = pairs // max(len(order), 1)
        member = index[order[pairs % max(len(order), 1)]]
        linked = member >= 0  # a node without links is a component by itself
        subscribers = np.bincount(topic, minlength=count)
        alone = subscribers - np.bincount(topic[linked], minlength=count)
        start = np.concatenate(([0], np.cumsum(subscribers - alone)))
        nodes = member[linked].astype(np.int32)
        graph = links.graph
        components = block_components(start, nodes, graph) + alone
        apart = np.where((alone > 0) & (subscribers > 1), np.inf, 0.0)
        hops = length = np.zeros(count)
        if measured:
            hops = apart + block_diameters(start, nodes, graph._replace(lengths=np.ones(len(graph.ends))))
            length = apart + block_diameters(start, nodes, graph)
        return pa.table([self.topics, subscribers, components, hops, length], schema=TOPIC_SCHEMA)


def _coded(column: pa.ChunkedArray) -> tuple[NDArray[np.int64], pa.Array]:
    """The values of a column as indices into its distinct values."""
    if not len(column):
        return np.empty(0, np.int64), pa.array([], pa.string())
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    combined = column.unify_dictionaries().combine_chunks()
    return np.asarray(combined.indices).astype(np.int64), combined.dictionary


def _topics_in_process(tables: PlanTables, links: PlanLinks, measured: bool) -> tuple[pa.Table, int]:
    """The topics of a plan by name (`TOPIC_SCHEMA`), and the number of them that are part of others."""
    block = TopicBlock.of(coded_table(tables.folder / "subscriptions.parquet", ["node", "topic"]))
    merged = 0
    if tables.filters():
        names = block.topics.to_pylist()
        found = FilterLookup(filter(is_filter, names))
        group = [found.group(name) or name for name in names]
        shortest = _shortest(zip(group, names, strict=True))
        number = {name: code for code, name in enumerate(shortest)}
        renamed = np.array([number[name] for name in group], np.int64)
        merged = len(names) - len(shortest)
        block = block._replace(topic=renamed[block.topic], topics=pa.array(shortest.values(), pa.string()))
    return block.inspected(links, measured).sort_by("topic"), merged


def _shortest(names: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The shortest name of each group, the first by name among equals; from pairs of a group and a name."""
    found: dict[str, str] = {}
    for group, name in names:
        found[group] = min(found.get(group, name), name, key=lambda text: (len(text), text))
    return found


@contextmanager
def topics_on_spark(
    tables: PlanTables, links: PlanLinks, spark: SparkSession, measured: bool
) -> Iterator[DataFrame]:
    """The topics of a plan on Spark: the columns of `TOPIC_SCHEMA`, and merged.

    Each task has all subscriptions of its topics. A topic that belongs to a group of filters is not finished
    there: what its group wants, each node once, goes to another task, which has all of the group.
    """
    paths = table_paths(tables.folder / "subscriptions.parquet")
    wanted = spark.read.schema("node string, topic string").parquet(*paths)
    rows = tables.dataset("subscriptions").count_rows()
    blocks = max(1 + rows // BLOCK_ROWS, task_count(spark, rows // FEW_ROWS))
    filters = _wanted_filters(wanted) if tables.filters() else []
    found = FilterLookup(filters)

    def inspect(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        table = _whole(batches, _WANTED_SCHEMA)
        yield from _inspect_block(TopicBlock.of(table), found, links, measured).to_batches()

    def finish(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        table = _whole(batches, _BLOCK_SCHEMA)
        yield from _inspect_groups(table, links, measured).to_batches()

    topics = wanted.repartition(blocks, "topic").mapInArrow(inspect, _BLOCK_TYPES)
    if not filters:
        yield topics
        return
    topics.persist()  # both parts come from it
    try:
        parts = topics.where("node is not null").repartition(blocks, "topic")
        whole = parts.mapInArrow(finish, _BLOCK_TYPES)
        yield topics.where("node is null").unionByName(whole)
    finally:
        topics.unpersist()


def _whole(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    """All rows of a task; Spark knows of some columns that they have no missing values."""
    held = list(batches)
    return pa.Table.from_batches(held) if held else schema.empty_table()


def _wanted_filters(wanted: DataFrame) -> list[str]:
    """The topic filters that have subscribers."""
    wild = wanted.where(sf.col("topic").contains("+") | sf.col("topic").contains("#"))
    return list(filter(is_filter, wild.select("topic").distinct().toArrow()["topic"].to_pylist()))


def _inspect_block(block: TopicBlock, found: FilterLookup, links: PlanLinks, measured: bool) -> pa.Table:
    """The topics of a block that are in no group, and the nodes that want a group (`_BLOCK_SCHEMA`)."""
    names: list[str] = block.topics.to_pylist() if found else []
    group = [found.group(name) for name in names]
    is_free = np.array([one is None for one in group] if found else [True] * len(block.topics), bool)
    free = block.only(is_free[block.topic], is_free).inspected(links, measured)
    free = free.append_column("merged", pa.array(np.zeros(free.num_rows, np.int64)))
    free = free.append_column("node", pa.nulls(free.num_rows, pa.string()))
    free = free.append_column("name", pa.nulls(free.num_rows, pa.string()))
    if is_free.all():
        return free
    members = np.flatnonzero(~is_free)
    pairs_of_names = [(group[code] or "", names[code]) for code in members.tolist()]
    shortest = _shortest(pairs_of_names)
    number = {one: code for code, one in enumerate(shortest)}
    group_of_topic = np.full(len(names), -1, np.int64)
    group_of_topic[members] = [number[one] for one, _ in pairs_of_names]
    rows = ~is_free[block.topic]
    pairs = np.unique(group_of_topic[block.topic[rows]] * len(block.nodes) + block.node[rows])
    owner = pairs // len(block.nodes)
    merged = np.where(np.diff(owner, prepend=-1) != 0, np.bincount(group_of_topic[members])[owner], 0)
    columns = {
        "topic": pa.array(list(shortest), pa.string()).take(pa.array(owner)),
        "merged": pa.array(merged, pa.int64()),
        "node": block.nodes.take(pa.array(pairs % len(block.nodes))),
        "name": pa.array(list(shortest.values()), pa.string()).take(pa.array(owner)),
    }
    missing = {field.name: pa.nulls(len(pairs), field.type) for field in _BLOCK_SCHEMA}
    parts = missing | columns
    return pa.concat_tables(
        [free, pa.table([parts[name] for name in _BLOCK_SCHEMA.names], schema=_BLOCK_SCHEMA)]
    )


def _inspect_groups(table: pa.Table, links: PlanLinks, measured: bool) -> pa.Table:
    """The groups of filters, from the nodes that want them (`_BLOCK_SCHEMA`)."""
    block = TopicBlock.of(table)
    groups_found = block.topics.to_pylist()
    shortest = _shortest(zip(table["topic"].to_pylist(), table["name"].to_pylist(), strict=True))
    names = pa.array([shortest[group] for group in groups_found], pa.string())
    members = np.bincount(block.topic, table["merged"].to_numpy(), len(groups_found)).astype(np.int64)
    topics = block._replace(topics=names).inspected(links, measured)
    topics = topics.append_column("merged", pa.array(members - 1))
    for name in ("node", "name"):
        topics = topics.append_column(name, pa.nulls(topics.num_rows, pa.string()))
    return topics

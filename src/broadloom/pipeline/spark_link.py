"""Linking on Spark: dcmaw (paper 1, Alg. 6) in tasks, and the best partners of each node.

Executors conquer and join the parts with the same kernels. The plan equals that of the in-process `dcmaw` for
the same division, byte for byte: the edges of a part depend only on the part, and parts are combined in the
order of their numbers, whichever task ends first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from numpy.typing import NDArray
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from broadloom.errors import InputError
from broadloom.kernels import WORD, kernel, pack_rows, popcount
from broadloom.linking import (
    ALGORITHMS,
    DivideOptions,
    LinkResult,
    PartGroup,
    assemble,
    conquer,
    divide,
    join,
    members,
    rows_of,
    run,
)
from broadloom.model import Interest, Weights, find_algorithm, trusted_weights
from broadloom.pipeline.spark_session import SparkEngine, session, shared_scratch, task_count, write_frame
from broadloom.plans import Plan
from broadloom.progress import stage
from broadloom.storage import as_path
from broadloom.storage.tables import read_parquet, write_parquet

# The largest size of a part: the part and the data of its kernels must fit into one task.
PART_BYTES = 64 * 2**20
# Nodes per block of pairwise contributions: 2,048 nodes with 1,000 topics are 256 kB of bits.
BLOCK = 2048

_INTS = pa.list_(pa.int32())
_NUMBERS = pa.list_(pa.float64())
PART_SCHEMA = pa.schema(
    [
        ("part", pa.int32()),
        ("nodes", _INTS),
        ("starts", _INTS),
        ("topics", _INTS),
        ("sites", _INTS),
        ("points", _NUMBERS),
        ("table", _NUMBERS),
        ("joined", _INTS),
    ]
)

_Best = tuple[NDArray[np.int32], NDArray[np.int32]]


def link_on_spark(
    interest: Interest,
    weights: Weights | None = None,
    seed: int = 0,
    engine: SparkEngine | None = None,
    spark: SparkSession | None = None,
    scratch: str | Path | None = None,
    part_bytes: int = PART_BYTES,
    mllib: bool = False,
    **options: Any,
) -> Plan:
    """Build a plan with `dcmaw`, conquering its parts on Spark.

    Args:
        interest: the topics of each node.
        weights: the cost of links; None: all links weigh 1.
        seed: the seed of the division.
        engine: the Spark to use.
        spark: a session of your own, instead of an engine.
        scratch: a folder that the executors see under the same path, for intermediate tables; by default a
            temporary folder, which is enough on one machine.
        part_bytes: cut parts that are larger than this.
        mllib: divide by MLlib's k-means on the coordinates, for more points than one machine should handle.
        **options: the options of `dcmaw`.

    Raises:
        InputError: an option is wrong, or `mllib` is set and the weights are not distances of points.
    """
    costs = Weights.uniform(interest.node_count) if weights is None else weights

    with session(engine, spark) as running:

        def dcmaw(interest: Interest, weights: Weights, settings: DivideOptions, seed: int) -> LinkResult:
            with stage("divide"):
                part_of_node = _divided(running, weights, settings, seed, mllib)
                part_of_node = bounded(interest, weights, part_of_node, part_bytes)
            solve = PartSolver(running, interest, weights, settings.conquer, seed, scratch)
            with stage("conquer"):
                inner = solve([PartGroup(nodes, nodes[:0]) for nodes in members(part_of_node)])
            with stage("combine"):
                return assemble(interest, weights, part_of_node, inner, settings, solve)

        return run(replace(find_algorithm("dcmaw", ALGORITHMS), run=dcmaw), interest, costs, seed, options)


@dataclass(frozen=True)
class PartSolver:
    """Solver of parts in tasks of Spark: conquers parts, or joins groups; the driver joins a single group."""

    spark: SparkSession
    interest: Interest
    weights: Weights
    algorithm: str
    seed: int
    scratch: str | Path | None

    def __call__(self, parts: Sequence[PartGroup]) -> list[NDArray[np.int32]]:
        """The edges of each part, in the order of the parts."""
        if not parts:
            return []
        if len(parts) == 1 and len(parts[0].part):
            return [join(self.interest, self.weights, parts[0])]
        with shared_scratch(self.spark, self.scratch, "link") as folder:
            return self._by_tasks(parts, folder)

    def _by_tasks(self, parts: Sequence[PartGroup], folder: Path) -> list[NDArray[np.int32]]:
        # Local names: the executors get these values, not this object.
        topic_count = self.interest.topic_count
        frame = frame_of(self.weights)
        algorithm = self.algorithm
        seed = self.seed
        with stage("hand out"):
            write_parts(folder / "parts.parquet", self.interest, self.weights, parts)

        def solve(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for part in read_parts(batch, topic_count, frame):
                    yield _edges_batch(part.number, part.nodes[_solved(part, algorithm, seed)])

        rows = self.spark.read.parquet(str(folder / "parts.parquet"))
        rows = rows.repartition(task_count(self.spark, len(parts)))
        edges = rows.mapInArrow(solve, "part int, u int, v int")
        with stage("tasks"):
            write_frame(edges, folder / "edges.parquet")
        return _by_part(read_parquet(folder / "edges.parquet"), len(parts))


def _solved(part: LinkPart, algorithm: str, seed: int) -> NDArray[np.int32]:
    """The edges of a part, as indices into its nodes."""
    all_nodes = np.arange(len(part.nodes))
    if len(part.joined):
        return join(part.interest, part.weights, PartGroup(all_nodes, part.joined.astype(np.int64)))
    return conquer(part.interest, part.weights, all_nodes, algorithm, seed)


def _edges_batch(part: int, edges: NDArray[np.int32]) -> pa.RecordBatch:
    columns = np.full(len(edges), part, np.int32), edges[:, 0], edges[:, 1]
    return pa.record_batch([np.ascontiguousarray(column, np.int32) for column in columns], ["part", "u", "v"])


def _by_part(edges: pa.Table, count: int) -> list[NDArray[np.int32]]:
    """The edges of each part; the rows of a part are in one file, in the order of selection."""
    part = edges.column("part").to_numpy()
    order = np.argsort(part, kind="stable")
    pairs = np.stack([edges.column(end).to_numpy()[order] for end in ("u", "v")], axis=1)
    return np.split(pairs, np.cumsum(np.bincount(part, minlength=count))[:-1]) if count else []


def _divided(
    spark: SparkSession, weights: Weights, settings: DivideOptions, seed: int, mllib: bool
) -> NDArray[np.int32]:
    if not mllib:
        return divide(weights, settings, seed)
    if weights.kind != "euclidean":
        raise InputError(f"weights are {weights.kind}; MLlib's k-means needs coordinates (kind euclidean)")
    return kmeans(spark, weights.points, math.ceil(weights.node_count / settings.part_size), seed)


def kmeans(spark: SparkSession, points: NDArray[np.float64], parts: int, seed: int) -> NDArray[np.int32]:
    """The part of each point, by MLlib's k-means; in one partition, so that the order of sums is fixed."""
    from pyspark.ml.clustering import KMeans
    from pyspark.ml.functions import array_to_vector

    values = pa.FixedSizeListArray.from_arrays(pa.array(points.ravel()), points.shape[1])
    table = pa.table({"node": np.arange(len(points)), "point": values.cast(pa.list_(pa.float64()))})
    rows = spark.createDataFrame(table).coalesce(1)
    rows = rows.select("node", array_to_vector("point").alias("features"))
    model = KMeans(k=max(parts, 2), seed=seed).fit(rows)
    found = model.transform(rows).select("node", "prediction").toArrow().sort_by("node")
    return np.unique(found.column("prediction").to_numpy(), return_inverse=True)[1].astype(np.int32)


class LinkPart(NamedTuple):
    """A part with everything that a task needs to link it; one row of a table.

    If its nodes come from parts that are already connected, `joined` has the part of each node.
    """

    number: int
    nodes: NDArray[np.int32]
    interest: Interest
    weights: Weights
    joined: NDArray[np.int32]


def bounded(
    interest: Interest, weights: Weights, part_of_node: NDArray[np.int32], max_bytes: int
) -> NDArray[np.int32]:
    """The division with each part cut into pieces of at most `max_bytes` bytes, or of one node.

    The nodes of a part are cut in order, so that one huge site, or a run of nodes with very many topics,
    never becomes a task that is too large for an executor.
    """
    pieces = np.zeros(len(part_of_node), np.int64)
    for nodes in members(part_of_node):
        sizes = 4 * (interest.topic_start[nodes + 1] - interest.topic_start[nodes]) + 64
        total = int(sizes.sum()) + (8 * len(nodes) ** 2 if weights.kind == "dense" else 0)
        if total > max_bytes:
            pieces[nodes] = np.cumsum(sizes) * -(-total // max_bytes) // (int(sizes.sum()) + 1)
    both = part_of_node.astype(np.int64) * (int(pieces.max(initial=0)) + 1) + pieces
    return np.unique(both, return_inverse=True)[1].astype(np.int32)


def write_parts(path: Path, interest: Interest, weights: Weights, parts: Sequence[PartGroup]) -> None:
    """Write one row and one row group per part, so that a task holds only the part that it works on."""
    with as_path(path).open("wb") as file, pa.parquet.ParquetWriter(file, PART_SCHEMA) as writer:
        for number, (nodes, joined) in enumerate(parts):
            starts, topics = rows_of(interest, nodes)
            cost = weights.subset(nodes)
            table = cost.table.ravel() if weights.kind == "dense" else np.empty(0)
            row = (number, nodes, starts, topics, cost.site, cost.points.ravel(), table, joined)
            columns = [_one(value, field.type) for value, field in zip(row, PART_SCHEMA, strict=True)]
            writer.write_table(pa.table(columns, schema=PART_SCHEMA))


def read_parts(batch: pa.RecordBatch, topic_count: int, frame: Weights) -> Iterator[LinkPart]:
    """The parts in a batch of rows; `frame` has the weights without the values of nodes (`frame_of`)."""
    for row in range(batch.num_rows):
        number, *lists = (batch.column(name)[row] for name in PART_SCHEMA.names)
        nodes, starts, topics, sites, points, table, joined = (np.array(value.values) for value in lists)
        interest = Interest.from_rows(starts, topics, topic_count)
        weights = trusted_weights(
            frame.kind,
            len(nodes),
            table=table.reshape(len(nodes), -1) if frame.kind == "dense" else frame.table,
            points=points.reshape(len(nodes), -1) if frame.kind == "euclidean" else frame.points,
            site=sites,
            inner=frame.inner,
            outer=frame.outer,
        )
        yield LinkPart(number.as_py(), nodes, interest, weights, joined)


def frame_of(weights: Weights) -> Weights:
    """The weights without the values of nodes: small, and the same for all parts."""
    return weights.subset(np.empty(0, np.int64))


def _one(value: Any, kind: pa.DataType) -> pa.Array:
    """An array of one value."""
    if not pa.types.is_list(kind):
        return pa.array([value], kind)
    items = pa.array(value, kind.value_type)
    return pa.ListArray.from_arrays(pa.array([0, len(items)], pa.int32()), items).cast(kind)


def top_partners(spark: SparkSession, interest: Interest, count: int, scratch: Path) -> DataFrame:
    """The nodes with which each node shares the most topics: node, rank, partner, shared.

    Without links, the contribution of a pair (papers 1 and 2) is the number of topics that both want. For
    many nodes, all pairs do not fit on any machine. Therefore a task compares one block of nodes with all
    others, block by block, and keeps the best of each row. Only blocks of packed bits are sent, never pairs.

    Args:
        spark: the session.
        interest: the topics of each node; topic filters and topics that overlap count as one topic.
        count: the number of partners per node, fewer if it shares a topic with fewer nodes; among equals the
            lowest index comes first.
        scratch: a folder that the executors can read; the packed bits are written there.

    Raises:
        InputError: `count` is below 1.
    """
    if count < 1:
        raise InputError(f"count is {count}; give at least 1 partner per node")
    interest = interest.grouped()
    blocks = _blocks(spark, interest, scratch)
    others = sf.broadcast(blocks.select(*(sf.col(name).alias(f"other_{name}") for name in blocks.columns)))
    pairs = blocks.repartition("first").crossJoin(others)
    words = -(-interest.topic_count // WORD)

    def best(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from _best(batches, words, count)

    return pairs.mapInArrow(best, "node int, rank int, partner int, shared int")


def _blocks(spark: SparkSession, interest: Interest, scratch: Path) -> DataFrame:
    """The nodes' topics as packed bits, one row per block: first (the block's first node) and bits."""
    words = -(-interest.topic_count // WORD)
    bits = pack_rows(interest.topic_start, interest.topics, words)
    starts = list(range(0, interest.node_count, BLOCK))
    table = pa.table(
        {
            "first": pa.array(starts, pa.int32()),
            "bits": pa.array([bits[first : first + BLOCK].tobytes() for first in starts], pa.binary()),
        }
    )
    path = as_path(scratch) / "bits.parquet"
    write_parquet(table, path, row_group_size=1)
    return spark.read.parquet(str(path))


def _best(batches: Iterable[pa.RecordBatch], words: int, count: int) -> Iterator[pa.RecordBatch]:
    """The best partners of the nodes of each block; the rows of a block are consecutive."""
    first = -1
    best = None
    for batch in batches:
        for own, bits, other, other_bits in zip(*(batch[i] for i in range(4)), strict=True):
            rows = _words(bits, words)
            if best is None or own.as_py() != first:
                if best is not None:
                    yield _listed(first, best)
                first = own.as_py()
                best = np.zeros((len(rows), count), np.int32), np.full((len(rows), count), -1, np.int32)
            _keep_best(rows, _words(other_bits, words), first, other.as_py(), *best)
    if best is not None:
        yield _listed(first, best)


def _words(bits: pa.BinaryScalar, words: int) -> NDArray[np.uint64]:
    return (
        np.frombuffer(bits.as_buffer(), np.uint64).reshape(-1, max(words, 1))
        if words
        else np.empty((0, 1), np.uint64)
    )


def _listed(first: int, best: _Best) -> pa.RecordBatch:
    """The best partners as rows."""
    shared, partner = best
    row, rank = np.nonzero(shared)
    columns: list[NDArray[Any]] = [row + first, rank, partner[row, rank], shared[row, rank]]
    names = ["node", "rank", "partner", "shared"]
    return pa.record_batch([column.astype(np.int32) for column in columns], names)


@kernel
def _keep_best(
    rows: NDArray[np.uint64],
    others: NDArray[np.uint64],
    first: int,
    other_first: int,
    shared: NDArray[np.int32],
    partner: NDArray[np.int32],
) -> None:
    """Compare each row with all others, and keep the best in `shared` and `partner`, best first."""
    last = shared.shape[1] - 1
    for i in range(len(rows)):
        for j in range(len(others)):
            count, v = 0, other_first + j
            for word in range(rows.shape[1]):
                count += popcount(rows[i, word] & others[j, word])
            if count == 0 or v == first + i or not _before(count, v, shared[i, last], partner[i, last]):
                continue
            at = last
            while at > 0 and _before(count, v, shared[i, at - 1], partner[i, at - 1]):
                shared[i, at], partner[i, at] = shared[i, at - 1], partner[i, at - 1]
                at -= 1
            shared[i, at], partner[i, at] = count, v


@kernel
def _before(count: int, v: int, other_count: int, other: int) -> bool:
    """Whether a partner is better than another: more topics, or as many and a lower index."""
    return count > other_count or (count == other_count and v < other)

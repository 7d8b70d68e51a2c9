"""Link on Spark: dcmaw (paper 1, Alg. 6), its parts conquered and joined by executors with the same kernels.

The plan is that of the in-process `dcmaw` for the same division, byte for byte: a part's edges depend on the
part alone, and parts are put together in the order of their numbers, whichever task came first.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from numpy.typing import NDArray
from pyspark.sql import SparkSession

from broadloom.errors import InputError
from broadloom.linking import ALGORITHMS
from broadloom.linking._built import Built
from broadloom.linking.divide import DivideOptions, Group, assemble, conquer, divide, join, members
from broadloom.linking.link import run
from broadloom.model import Interest, Weights, find_algorithm
from broadloom.pipeline.parts import Part, bounded, frame_of, read_parts, write_parts
from broadloom.pipeline.session import Engine, session
from broadloom.plans import Plan
from broadloom.progress import stage

# A part and what its kernels need on top of it must fit a task.
PART_BYTES = 64 * 2**20
TASKS_A_CORE = 4


def link(
    interest: Interest,
    weights: Weights | None = None,
    seed: int = 0,
    engine: Engine | None = None,
    spark: SparkSession | None = None,
    scratch: str | Path | None = None,
    part_bytes: int = PART_BYTES,
    mllib: bool = False,
    **options: Any,
) -> Plan:
    """Build a plan with `dcmaw`, conquering its parts on Spark.

    Args:
        interest: who wants what.
        weights: what links cost; None: all links weigh 1.
        seed: the seed of the division.
        engine: where Spark runs.
        spark: a session of your own, in place of an engine.
        scratch: a folder that the executors see under the same path, for what goes between the steps; by
            default a temporary one, which is right on one machine.
        part_bytes: cut parts that are larger than this.
        mllib: divide by MLlib's k-means on the coordinates, for more points than one machine should sort out.
        **options: those of `dcmaw`.
    """
    given = Weights.uniform(interest.node_count) if weights is None else weights

    def run_on(running: SparkSession) -> Callable[..., Built]:
        def dcmaw(interest: Interest, weights: Weights, settings: DivideOptions, seed: int) -> Built:
            with stage("divide"):
                part_of_node = _divided(running, weights, settings, seed, mllib)
                part_of_node = bounded(interest, weights, part_of_node, part_bytes)
            solve = Solver(running, interest, weights, settings.conquer, seed, scratch)
            with stage("conquer"):
                inner = solve([Group(nodes, nodes[:0]) for nodes in members(part_of_node)])
            with stage("combine"):
                return assemble(interest, weights, part_of_node, inner, settings, solve)

        return dcmaw

    with session(engine, spark) as running:
        algorithm = replace(find_algorithm("dcmaw", ALGORITHMS), run=run_on(running))
        return run(algorithm, interest, given, seed, options)


@dataclass(frozen=True)
class Solver:
    """Conquers parts, and joins groups of them, by tasks of Spark; a group by itself stays where it is."""

    spark: SparkSession
    interest: Interest
    weights: Weights
    algorithm: str
    seed: int
    scratch: str | Path | None

    def __call__(self, parts: Sequence[Group]) -> list[NDArray[np.int32]]:
        """The edges of each part, in the order of the parts."""
        if not parts:
            return []
        if len(parts) == 1 and len(parts[0].part):
            return [join(self.interest, self.weights, parts[0])]
        with tempfile.TemporaryDirectory(dir=self.scratch, prefix="link-") as place:
            return self._by_tasks(parts, Path(place))

    def _by_tasks(self, parts: Sequence[Group], place: Path) -> list[NDArray[np.int32]]:
        topic_count, frame = self.interest.topic_count, frame_of(self.weights)
        algorithm, seed = self.algorithm, self.seed  # the executors need no more of this than these
        with stage("hand out"):
            write_parts(place / "parts.parquet", self.interest, self.weights, parts)

        def solve(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for part in read_parts(batch, topic_count, frame):
                    yield _edges_batch(part.number, part.nodes[_solved(part, algorithm, seed)])

        rows = self.spark.read.parquet(str(place / "parts.parquet"))
        rows = rows.repartition(_tasks(self.spark, len(parts)))
        edges = rows.mapInArrow(solve, "part int, u int, v int")
        with stage("tasks"):
            edges.write.parquet(str(place / "edges.parquet"))
        return _by_part(pa.parquet.read_table(place / "edges.parquet"), len(parts))


def _solved(part: Part, algorithm: str, seed: int) -> NDArray[np.int32]:
    """The edges of a part, as places among its nodes."""
    everybody = np.arange(len(part.nodes))
    if len(part.joined):
        return join(part.interest, part.weights, Group(everybody, part.joined.astype(np.int64)))
    return conquer(part.interest, part.weights, everybody, algorithm, seed)


def _edges_batch(part: int, edges: NDArray[np.int32]) -> pa.RecordBatch:
    columns = np.full(len(edges), part, np.int32), edges[:, 0], edges[:, 1]
    return pa.record_batch([np.ascontiguousarray(column, np.int32) for column in columns], ["part", "u", "v"])


def _by_part(edges: pa.Table, count: int) -> list[NDArray[np.int32]]:
    """The edges of each part; a part's edges are in one file, in the order of selection."""
    part = edges.column("part").to_numpy()
    order = np.argsort(part, kind="stable")
    pairs = np.stack([edges.column(end).to_numpy()[order] for end in ("u", "v")], axis=1)
    return np.split(pairs, np.cumsum(np.bincount(part, minlength=count))[:-1]) if count else []


def _tasks(spark: SparkSession, parts: int) -> int:
    """A few tasks a core, so that one slow part does not hold up all; never more than parts."""
    cores = int(spark.conf.get("spark.sql.shuffle.partitions", "8") or 8)
    return max(1, min(parts, TASKS_A_CORE * cores))


def _divided(
    spark: SparkSession, weights: Weights, settings: DivideOptions, seed: int, mllib: bool
) -> NDArray[np.int32]:
    if not mllib:
        return divide(weights, settings, seed)
    if weights.kind != "euclidean":
        raise InputError(f"weights are {weights.kind}; MLlib's k-means needs coordinates")
    return kmeans(spark, weights.points, math.ceil(weights.node_count / settings.part_size), seed)


def kmeans(spark: SparkSession, points: NDArray[np.float64], parts: int, seed: int) -> NDArray[np.int32]:
    """The part of each point, by MLlib's k-means; in one partition, so that sums come in one order."""
    from pyspark.ml.clustering import KMeans
    from pyspark.ml.functions import array_to_vector

    values = pa.FixedSizeListArray.from_arrays(pa.array(points.ravel()), points.shape[1])
    table = pa.table({"node": np.arange(len(points)), "point": values.cast(pa.list_(pa.float64()))})
    rows = spark.createDataFrame(table).coalesce(1)
    rows = rows.select("node", array_to_vector("point").alias("features"))
    model = KMeans(k=max(parts, 2), seed=seed).fit(rows)
    found = model.transform(rows).select("node", "prediction").toArrow().sort_by("node")
    return np.unique(found.column("prediction").to_numpy(), return_inverse=True)[1].astype(np.int32)

"""Assignment of subscribers on Spark (paper 4), for more subscribers than fit on one machine.

Spark jobs draw the sample, test which filters cover which subscribers, assign all subscribers and verify the
result. The driver gets the sample, the number of subscribers of each kind (subscribers of a kind have the
same candidates), and the few subscribers for which a filter must grow. The plan equals that of the in-process
`broadloom` for the same options and seed: kinds are numbered by their bits, and their members are ranked by
their row in the table, whichever task ends first.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as sf

from broadloom.assignment import ALGORITHMS
from broadloom.assignment import assign as assign_in_process
from broadloom.assignment.subscribers import (
    AnnealingOptions,
    Filters,
    KindShares,
    allot,
    around_members,
    as_tuples,
    broker_by_rank,
    draw_sample,
    feasible_beta,
    filters_around,
    groups_from_masks,
    kind_masks,
    load_limits,
    masks_in_time,
    number_rows,
    place_rest,
    sample_filters,
)
from broadloom.errors import InputError, InternalError
from broadloom.measures.content_measures import ContentTally, add_tallies, metrics_of_tally, tally
from broadloom.model import (
    AssignmentProblem,
    ContentFilter,
    assignment_tables,
    find_algorithm,
    read_assignment_problem,
)
from broadloom.pipeline.spark_session import (
    SparkEngine,
    executors_are_elsewhere,
    session,
    shared_scratch,
    table_paths,
)
from broadloom.plans import filters_table, write_assignment_record
from broadloom.progress import stage
from broadloom.storage import RemotePath, as_path, committed, copy_remote, new_folder, share_folder
from broadloom.storage.tables import list_matrix, parquet_dataset, write_table

ALGORITHM = "broadloom"
# A sum of floats depends on the order of the tasks, so the sum of delays is rounded to this many digits.
DIGITS = 10

Mark = Callable[[AssignmentProblem], NDArray[np.uint64]]


class KindCensus(NamedTuple):
    """The kinds of subscribers, in the order of their numbers: their bits, and their numbers of members."""

    masks: NDArray[np.uint64]
    size: NDArray[np.int64]

    def keys(self) -> pa.Array:
        """The bits of each kind as one binary value."""
        return pa.array([row.tobytes() for row in self.masks], pa.binary())


def assign_on_spark(
    tables: str | Path,
    output: str | Path,
    seed: int = 0,
    engine: SparkEngine | None = None,
    spark: SparkSession | None = None,
    overwrite: bool = False,
    limits: dict[str, float | None] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Assign the subscribers of a folder of tables with `broadloom`, and write the plan.

    Args:
        tables: `publisher`, `brokers`, and `subscribers` as Parquet; executors see it under the same path.
        output: the folder for the plan; executors see it under the same path.
        seed: the seed of the sample and of the search.
        engine: the Spark to use.
        spark: a session of your own, instead of an engine.
        overwrite: replace an existing plan.
        limits: max_delay, alpha, beta, beta_max, instead of those in the tables.
        **options: the options of `broadloom`. Up to `polish_up_to` subscribers are assigned on the driver.

    Returns:
        The measures of the assignment.

    Raises:
        InputError: a value in the tables is wrong, or no broker can serve a subscriber in time.
        InternalError: the result breaks a promise of the algorithm.
    """
    algorithm = find_algorithm(ALGORITHM, [one for one in ALGORITHMS if one.problem is AssignmentProblem])
    settings = algorithm.with_options(options)
    subscribers = committed(tables) / "subscribers.parquet"
    if not subscribers.exists():
        raise InputError(f"{tables} has no subscribers.parquet; on Spark, subscribers are read from Parquet")
    with session(engine, spark) as running:
        rows, count = indexed(running, subscribers)
        if settings.holds_all(count):
            result = assign_in_process(
                read_assignment_problem(tables, **limits or {}), ALGORITHM, seed, **vars(settings)
            )
            result.save(output, overwrite)
            return result.metrics()
        with new_folder(as_path(output), overwrite) as folder:
            if executors_are_elsewhere(running):
                share_folder(folder)
            with shared_scratch(running, folder, "assign") as scratch:
                job = _AssignmentJob(
                    running, rows, count, committed(tables), scratch, limits or {}, settings, seed
                )
                filters, metrics = job.run(folder)
            _write_tables(folder, subscribers, job.frame, filters)
            write_assignment_record(folder, ALGORITHM, seed, vars(settings), job.notes, metrics)
        return metrics


def indexed(spark: SparkSession, path: Path) -> tuple[DataFrame, int]:
    """The subscribers, with their row in the table (files sorted by name) as `index`; and their number."""
    if isinstance(path, RemotePath):
        files = [as_path(file) for file in path.files()]
    else:
        files = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    counts = [int(parquet_dataset(file).count_rows()) for file in files]
    starts = pa.table({"file": [file.name for file in files], "before": np.cumsum([0, *counts])[:-1]})
    rows = spark.read.parquet(*table_paths(path)).select(
        "*", sf.col("_metadata.file_name").alias("file"), sf.col("_metadata.row_index").alias("row")
    )
    known = rows.join(sf.broadcast(spark.createDataFrame(starts)), "file")
    index = (sf.col("before") + sf.col("row")).alias("index")
    columns = [name for name in rows.columns if name not in ("file", "row")]
    return known.select(index, *columns), sum(counts)


@dataclass
class _AssignmentJob:
    """One assignment, step by step; intermediate tables are Parquet in the scratch folder.

    Attributes:
        spark: the session.
        rows: the subscribers with their index.
        count: the number of subscribers.
        tables: the folder of the input tables.
        scratch: the folder for intermediate tables.
        limits: the limits of the assignment.
        settings: the options of the algorithm.
        seed: the seed of the sample and of the search.
        notes: notes for the plan.
        frame: the problem without subscribers.
    """

    spark: SparkSession
    rows: DataFrame
    count: int
    tables: Path
    scratch: Path
    limits: dict[str, float | None]
    settings: AnnealingOptions
    seed: int
    notes: dict[str, object] = field(init=False, default_factory=dict)
    frame: AssignmentProblem = field(init=False)

    def __post_init__(self) -> None:
        self._rng = np.random.default_rng(self.seed)

    def run(self, folder: Path) -> tuple[tuple[ContentFilter, ...], dict[str, Any]]:
        """Assign and verify; write the table of assignments, and return the filters and the measures."""
        with stage("sample"):
            self._check_ids()
            part = self._some(_one_of(draw_sample(self.count, self.settings.sample, self._rng)))
            self.frame = part.subset(np.empty(0, np.int64)).replace(subscriber_ids=None)
        with stage("count candidates"):
            census = self._census(masks_in_time, "candidates")
            self._check_candidates(census)
            candidates = groups_from_masks(census.masks, census.size, self.frame.leaves)
            beta, self.notes = feasible_beta(self.frame, candidates)
            limit = load_limits(part, beta, self.count)
        filters = sample_filters(part, beta, self.settings, self._rng)
        with stage("test filters"):
            kinds = self._census(lambda block: kind_masks(block, filters), "kinds")
            shares = allot(self.frame, kinds.masks, kinds.size, limit)
        with stage("assign"):
            filters = self._assign_all(kinds, shares, filters, limit)
            everyone = self.spark.read.parquet(str(self.scratch / "assigned.parquet"))
            names = assignment_tables(self.frame)["brokers"]["broker"].to_pylist()
            name = sf.array(*map(sf.lit, names))[sf.col("broker")].alias("broker")
            in_order = everyone.orderBy("index").select(sf.col("subscriber").cast("string"), name)
            in_order.write.parquet(str(folder / "assignments.parquet"))
        with stage("shrink and verify"):
            shrunk = as_tuples(filters_around(self.frame, *self._around(everyone, filters)))
            metrics = metrics_of_tally(part, shrunk, self._tally(everyone, shrunk))
            broken = {"leaf", "latency", "nesting", "alpha"} & set(metrics["violated"])
            if broken:
                raise InternalError(
                    f"the assignment violates {', '.join(sorted(broken))}; please report this"
                )
            return shrunk, metrics

    def _some(self, keep: Callable[[pa.RecordBatch], NDArray[np.bool_]]) -> AssignmentProblem:
        """The problem of the subscribers that `keep` selects, in the order of their rows."""

        def pick(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                yield batch.filter(pa.array(keep(batch)))

        found = self.rows.mapInArrow(pick, self.rows.schema).toArrow().sort_by("index")
        return read_assignment_problem(self.tables, found.drop_columns("index"), **self.limits)

    def _check_ids(self) -> None:
        """Raise if a subscriber has no id, or an id that is not unique."""
        counted = self.rows.groupBy("subscriber").agg(sf.count("*").alias("count"))
        wrong = counted.where("count > 1 or subscriber is null or subscriber = ''")
        found = wrong.agg(sf.min("subscriber").alias("id"), sf.sum("count").alias("count")).first()
        if found is not None and found["count"]:
            fault = f"id {found['id']!r} appears twice" if found["id"] else "has no id"
            raise InputError(
                f"subscriber {fault} ({found['count']:,} rows without a unique id); "
                "give each subscriber a unique id"
            )

    def _census(self, mark: Mark, name: str) -> KindCensus:
        """Write the kind of each subscriber to a table, and count the members of each kind."""
        path = str(self.scratch / f"{name}.parquet")
        frame = self.frame

        def marked(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                keys: list[bytes | None] = [None] * batch.num_rows
                fault = None
                try:
                    keys = [row.tobytes() for row in mark(block_of(frame, batch))]
                except InputError as error:
                    first = batch["index"][0].as_py() if batch.num_rows else 0
                    fault = f"subscribers from row {first:,} on: {error}"
                faults = pa.array([fault] * batch.num_rows, pa.string())
                yield pa.record_batch(
                    [batch["index"], pa.array(keys, pa.binary()), faults], ["index", "key", "fault"]
                )

        self.rows.mapInArrow(marked, "index long, key binary, fault string").write.parquet(path)
        counted = self.spark.read.parquet(path).groupBy("key")
        found = counted.agg(sf.count("*").alias("count"), sf.min("fault").alias("fault")).toArrow()
        faults = found["fault"].drop_null()
        if len(faults):
            raise InputError(min(faults.to_pylist()))
        bits = np.frombuffer(b"".join(found["key"].to_pylist()), np.uint64).reshape(found.num_rows, -1)
        _, order = number_rows(bits)
        return KindCensus(bits[order], found["count"].to_numpy()[order])

    def _check_candidates(self, census: KindCensus) -> None:
        """Raise if no leaf broker can serve a subscriber in time."""
        unreached = ~census.masks.any(axis=1)
        if unreached.any():
            marks = self.spark.read.parquet(str(self.scratch / "candidates.parquet"))
            unserved = marks.where(sf.col("key") == census.keys()[int(unreached.argmax())].as_py())
            first = self.rows.join(unserved.orderBy("index").limit(10), "index").orderBy("index")
            names = ", ".join(str(row["subscriber"]) for row in first.collect())
            count = census.size[unreached].sum()
            raise InputError(
                f"{count:,} subscribers have no leaf broker within their latency bound: "
                f"{names}{', ...' if count > 10 else ''}; raise their max_latency or add brokers"
            )

    def _assign_all(
        self, kinds: KindCensus, shares: KindShares, filters: Filters, limit: NDArray[np.int64]
    ) -> Filters:
        """Write all subscribers with their broker; return the filters, some of which had to grow."""
        keys = kinds.keys()

        def by_rank(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                kind = pc.index_in(batch["key"], keys).to_numpy().astype(np.int64)
                broker = broker_by_rank(shares, kind, batch["rank"].to_numpy().astype(np.int64))
                yield pa.record_batch([batch["index"], broker], ["index", "broker"])

        marks = self.spark.read.parquet(str(self.scratch / "kinds.parquet"))
        rank = sf.row_number().over(Window.partitionBy("key").orderBy("index")) - 1
        ranked = marks.select("index", "key", rank.alias("rank"))
        ranked.mapInArrow(by_rank, "index long, broker long").write.parquet(
            str(self.scratch / "placed.parquet")
        )
        placed = self.spark.read.parquet(str(self.scratch / "placed.parquet"))
        unplaced = np.sort(placed.where("broker < 0").select("index").toArrow()["index"].to_numpy())
        loads = placed.where("broker >= 0").groupBy("broker").count().toArrow()
        spare = limit.copy()
        spare[loads["broker"].to_numpy()] -= loads["count"].to_numpy()
        remainder = self._some(_one_of(unplaced)) if len(unplaced) else self.frame
        broker, filters = place_rest(remainder, filters, spare, self._rng)
        late = self.spark.createDataFrame(pa.table({"index": unplaced, "broker": broker}))
        everyone = placed.where("broker >= 0").unionByName(late) if len(unplaced) else placed
        self.rows.join(everyone, "index").write.parquet(str(self.scratch / "assigned.parquet"))
        return filters

    def _around(self, everyone: DataFrame, filters: Filters) -> tuple[NDArray[np.float64], ...]:
        """The lower and upper corners of the smallest boxes around the members of each filter's boxes."""
        frame = self.frame
        shape = filters.lo.shape

        def corners(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            low = np.full(shape, np.inf)
            high = np.full(shape, -np.inf)
            for batch in batches:
                block = block_of(frame, batch)
                block_low, block_high = around_members(
                    block.lo, block.hi, batch["broker"].to_numpy(), filters
                )
                low = np.minimum(low, block_low)
                high = np.maximum(high, block_high)
            yield pa.record_batch([[low.tobytes()], [high.tobytes()]], ["low", "high"])

        found = everyone.mapInArrow(corners, "low binary, high binary").toArrow()
        sides = [
            np.stack([np.frombuffer(part, np.float64).reshape(shape) for part in found[name].to_pylist()])
            for name in ("low", "high")
        ]
        return sides[0].min(axis=0), sides[1].max(axis=0)

    def _tally(self, everyone: DataFrame, filters: tuple[ContentFilter, ...]) -> ContentTally:
        """The sums of the independent measures over all subscribers."""
        frame = self.frame

        def count(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                one = tally(block_of(frame, batch), batch["broker"].to_numpy().astype(np.int32), filters)
                columns = [[one.load.tolist()], *([value] for value in one[1:])]
                yield pa.record_batch(columns, list(ContentTally._fields))

        shape = "load array<long>, delay_squares double, delay_max double, over long, inside boolean"
        found = everyone.mapInArrow(count, shape).toArrow().sort_by("delay_squares").to_pylist()
        whole = reduce(add_tallies, (ContentTally(np.array(row.pop("load")), *row.values()) for row in found))
        return whole._replace(delay_squares=float(f"{whole.delay_squares:.{DIGITS}g}"))


def block_of(frame: AssignmentProblem, batch: pa.RecordBatch) -> AssignmentProblem:
    """The problem of the subscribers in a batch of rows."""
    table = pa.Table.from_batches([batch])
    bounds = (
        batch["max_latency"].to_numpy(zero_copy_only=False) if "max_latency" in table.column_names else None
    )
    position, lo, hi = (list_matrix(table, "subscribers", name) for name in ("place", "lo", "hi"))
    return frame.replace(subscriber_place=position, lo=lo, hi=hi, max_latency=bounds)


def _one_of(index: NDArray[np.int64]) -> Callable[[pa.RecordBatch], NDArray[np.bool_]]:
    """A function that tells which rows of a batch have one of these indices, which are ascending."""

    def keep(batch: pa.RecordBatch) -> NDArray[np.bool_]:
        rows = batch["index"].to_numpy()
        nearest = np.minimum(np.searchsorted(index, rows), len(index) - 1)
        return index[nearest] == rows

    return keep


def _write_tables(
    folder: Path, subscribers: Path, frame: AssignmentProblem, filters: tuple[ContentFilter, ...]
) -> None:
    """Write the input tables and the filters of a plan."""
    tables = assignment_tables(frame)
    for name in tables.keys() - {"subscribers"}:
        write_table(folder, name, tables[name])
    write_table(folder, "filters", filters_table(filters, tables["brokers"]["broker"]))
    if isinstance(subscribers, RemotePath):
        copy_remote(subscribers, as_path(folder) / subscribers.name)
    else:
        (shutil.copytree if subscribers.is_dir() else shutil.copy)(subscribers, folder / subscribers.name)

"""Assignment of subscribers on Spark (paper 4), for more subscribers than fit on one machine.

Spark jobs draw the sample, test which filters cover which subscribers, assign all subscribers and verify the
result. The first job packs the subscribers into blocks of some thousand, one row of Spark each: passing
single rows to Python costs more than the work on them. The driver gets the sample, the number of subscribers
of each kind (subscribers of a kind have the same candidates), and the few subscribers for which a filter must
grow. The plan equals that of the in-process `broadloom` for the same options and seed: kinds are numbered by
their bits, and their members are ranked by their row in the table, whichever task ends first.
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
import pyarrow.ipc
from numpy.typing import NDArray
from pyspark.sql import DataFrame, SparkSession
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
    write_frame,
)
from broadloom.plans import filters_table, write_assignment_record
from broadloom.progress import stage
from broadloom.storage import RemotePath, as_path, committed, copy_remote, new_folder, share_folder
from broadloom.storage.tables import list_matrix, parquet_dataset, write_table

ALGORITHM = "broadloom"
# A sum of floats depends on the order of the tasks, so the sum of delays is rounded to this many digits.
DIGITS = 10

_PLACED = ["start", "brokers", "load", "unplaced"]

Mark = Callable[[AssignmentProblem], NDArray[np.uint64]]


class KindCensus(NamedTuple):
    """The kinds of subscribers, in the order of their numbers: their bits, and their numbers of members.

    `earlier` has, by the start of each block and for each kind in it, the number of members in blocks before.
    """

    masks: NDArray[np.uint64]
    size: NDArray[np.int64]
    earlier: dict[int, NDArray[np.int64]]

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
            self._pack()
            part = self._some(draw_sample(self.count, self.settings.sample, self._rng))
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
            everyone = self._table("assigned", "start long, data binary, brokers binary")
            self._write_assignments(everyone, folder)
        with stage("shrink and verify"):
            shrunk = as_tuples(filters_around(self.frame, *self._around(everyone, filters)))
            metrics = metrics_of_tally(part, shrunk, self._tally(everyone, shrunk))
            broken = {"leaf", "latency", "nesting", "alpha"} & set(metrics["violated"])
            if broken:
                raise InternalError(
                    f"the assignment violates {', '.join(sorted(broken))}; please report this"
                )
            return shrunk, metrics

    def _table(self, name: str, columns: str) -> DataFrame:
        """An intermediate table."""
        return self.spark.read.schema(columns).parquet(str(self.scratch / f"{name}.parquet"))

    def _pack(self) -> None:
        """Write the subscribers in blocks of consecutive rows: the first index, and the rows in Arrow."""

        def pack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                index = batch["index"].to_numpy()
                cuts = np.flatnonzero(np.diff(index) != 1) + 1  # where another file begins
                for first, last in zip([0, *cuts], [*cuts, len(index)], strict=True):
                    if last > first:
                        rows = batch.slice(first, last - first).drop_columns(["index"])
                        yield pa.record_batch([[int(index[first])], [_packed(rows)]], ["start", "data"])

        packed = self.rows.mapInArrow(pack, "start long, data binary")
        write_frame(packed, self.scratch / "blocks.parquet")

    def _blocks(self) -> DataFrame:
        return self._table("blocks", "start long, data binary")

    def _some(self, chosen: NDArray[np.int64]) -> AssignmentProblem:
        """The problem of the subscribers with these indices, which are ascending."""

        def pick(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for start, data in _rows_of(batches, "start", "data"):
                rows = _unpacked(data)
                first, last = np.searchsorted(chosen, [start, start + rows.num_rows])
                if last > first:
                    taken = rows.take(pa.array(chosen[first:last] - start)).combine_chunks()
                    block = taken.to_batches()[0]
                    yield pa.record_batch([[start], [_packed(block)]], ["start", "data"])

        found = self._blocks().mapInArrow(pick, "start long, data binary").toArrow().sort_by("start")
        rows = [_unpacked(data.as_buffer()) for data in found["data"]]
        empty = self.rows.drop("index").limit(0).toArrow() if not rows else rows[0].slice(0, 0)
        return read_assignment_problem(self.tables, pa.concat_tables([empty, *rows]), **self.limits)

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
        """Write the kind of each subscriber, block by block, and count the members of each kind."""
        frame = self.frame

        def marked(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for start, data in _rows_of(batches, "start", "data"):
                try:
                    masks = mark(block_of(frame, _unpacked(data)))
                except InputError as error:
                    fault = f"subscribers from row {start:,} on: {error}"
                    row = [[start], [b""], [b""], [b""], [fault]]
                else:
                    code, first = number_rows(masks)
                    counts = np.bincount(code, minlength=len(first))
                    arrays = code.astype(np.int32), masks[first], counts
                    row = [[start], *([array.tobytes()] for array in arrays), pa.nulls(1, pa.string())]
                yield pa.record_batch(row, ["start", "codes", "keys", "counts", "fault"])

        columns = "start long, codes binary, keys binary, counts binary, fault string"
        write_frame(self._blocks().mapInArrow(marked, columns), self.scratch / f"{name}.parquet")
        found = self._table(name, columns).select("start", "keys", "counts", "fault").toArrow()
        faults = found["fault"].drop_null()
        if len(faults):
            raise InputError(min(faults.to_pylist()))
        return _added_up(found.sort_by("start"))

    def _check_candidates(self, census: KindCensus) -> None:
        """Raise if no leaf broker can serve a subscriber in time."""
        unreached = ~census.masks.any(axis=1)
        if not unreached.any():
            return

        def unserved(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for start, codes, keys, data in _rows_of(batches, "start", "codes", "keys", "data"):
                code = np.frombuffer(codes, np.int32)
                width = len(keys) // max(int(code.max(initial=-1)) + 1, 1)
                is_served = np.any(np.frombuffer(keys, np.uint8).reshape(-1, max(width, 1)), axis=1)
                rows = np.flatnonzero(~np.asarray(is_served)[code])[:10]
                names = _unpacked(data)["subscriber"].take(pa.array(rows)).cast(pa.string())
                yield pa.record_batch([rows + start, names.combine_chunks()], ["index", "subscriber"])

        marks = self._table("candidates", "start long, codes binary, keys binary")
        both = marks.join(self._blocks(), "start")
        found = both.mapInArrow(unserved, "index long, subscriber string").toArrow().sort_by("index")
        names = ", ".join(found["subscriber"].slice(0, 10).to_pylist())
        count = census.size[unreached].sum()
        raise InputError(
            f"{count:,} subscribers have no leaf broker within their latency bound: "
            f"{names}{', ...' if count > 10 else ''}; raise their max_latency or add brokers"
        )

    def _assign_all(
        self, kinds: KindCensus, shares: KindShares, filters: Filters, limit: NDArray[np.int64]
    ) -> Filters:
        """Write all subscribers with their broker; return the filters, some of which had to grow."""
        masks = kinds.masks
        earlier = kinds.earlier
        broker_count = self.frame.broker_count

        def by_rank(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for start, codes, keys in _rows_of(batches, "start", "codes", "keys"):
                code = np.frombuffer(codes, np.int32)
                kind = _numbers_of(np.frombuffer(keys, np.uint64).reshape(-1, masks.shape[1]), masks)
                rank = earlier[start][code] + _rank_in_block(code)
                broker = broker_by_rank(shares, kind[code], rank).astype(np.int32)
                load = np.bincount(broker[broker >= 0], minlength=broker_count)
                unplaced = np.flatnonzero(broker < 0) + start
                values = (array.tobytes() for array in (broker, load, unplaced))
                yield pa.record_batch([[start], *([value] for value in values)], _PLACED)

        marks = self._table("kinds", "start long, codes binary, keys binary")
        columns = "start long, brokers binary, load binary, unplaced binary"
        write_frame(marks.mapInArrow(by_rank, columns), self.scratch / "placed.parquet")
        placed = self._table("placed", columns)
        found = placed.select("load", "unplaced").toArrow()
        spare = limit.copy()
        for load in found["load"]:
            spare -= np.frombuffer(load.as_buffer(), np.int64)
        parts = [np.frombuffer(part.as_buffer(), np.int64) for part in found["unplaced"]]
        unplaced = np.sort(np.concatenate([np.empty(0, np.int64), *parts]))
        remainder = self._some(unplaced) if len(unplaced) else self.frame
        late, filters = place_rest(remainder, filters, spare, self._rng)

        def complete(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for start, brokers, data in _rows_of(batches, "start", "brokers", "data"):
                broker = np.frombuffer(brokers, np.int32).copy()
                first, last = np.searchsorted(unplaced, [start, start + len(broker)])
                broker[unplaced[first:last] - start] = late[first:last]
                columns = [[start], [data.to_pybytes()], [broker.tobytes()]]
                yield pa.record_batch(columns, ["start", "data", "brokers"])

        whole = self._blocks().join(placed.select("start", "brokers"), "start")
        assigned = whole.mapInArrow(complete, "start long, data binary, brokers binary")
        write_frame(assigned, self.scratch / "assigned.parquet")
        return filters

    def _write_assignments(self, everyone: DataFrame, folder: Path) -> None:
        """Write the table of assignments, in the order of the subscribers."""
        names = assignment_tables(self.frame)["brokers"]["broker"].combine_chunks()

        def name(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for data, brokers in _rows_of(batches, "data", "brokers"):
                subscribers = _unpacked(data)["subscriber"].cast(pa.string()).combine_chunks()
                broker = names.take(pa.array(np.frombuffer(brokers, np.int32)))
                yield pa.record_batch([subscribers, broker], ["subscriber", "broker"])

        in_order = everyone.orderBy("start").mapInArrow(name, "subscriber string, broker string")
        write_frame(in_order, folder / "assignments.parquet")

    def _around(self, everyone: DataFrame, filters: Filters) -> tuple[NDArray[np.float64], ...]:
        """The lower and upper corners of the smallest boxes around the members of each filter's boxes."""
        frame = self.frame
        shape = filters.lo.shape

        def corners(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            low = np.full(shape, np.inf)
            high = np.full(shape, -np.inf)
            for data, brokers in _rows_of(batches, "data", "brokers"):
                block = block_of(frame, _unpacked(data))
                broker = np.frombuffer(brokers, np.int32).astype(np.int64)
                block_low, block_high = around_members(block.lo, block.hi, broker, filters)
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
            for data, brokers in _rows_of(batches, "data", "brokers"):
                one = tally(block_of(frame, _unpacked(data)), np.frombuffer(brokers, np.int32), filters)
                columns = [[one.load.tolist()], *([value] for value in one[1:])]
                yield pa.record_batch(columns, list(ContentTally._fields))

        shape = "load array<long>, delay_squares double, delay_max double, over long, inside boolean"
        found = everyone.mapInArrow(count, shape).toArrow().sort_by("delay_squares").to_pylist()
        whole = reduce(add_tallies, (ContentTally(np.array(row.pop("load")), *row.values()) for row in found))
        return whole._replace(delay_squares=float(f"{whole.delay_squares:.{DIGITS}g}"))


def _packed(rows: pa.RecordBatch) -> bytes:
    """Rows as one binary value, in Arrow's stream format."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    return bytes(sink.getvalue())


def _unpacked(data: pa.Buffer) -> pa.Table:
    return pa.ipc.open_stream(data).read_all()


def _rows_of(batches: Iterable[pa.RecordBatch], *columns: str) -> Iterator[tuple[Any, ...]]:
    """The values of some columns, row by row: whole numbers, and binary values as buffers."""
    for batch in batches:
        for row in zip(*(batch[name] for name in columns), strict=True):
            yield tuple(
                value.as_buffer() if pa.types.is_binary(value.type) else value.as_py() for value in row
            )


def _added_up(found: pa.Table) -> KindCensus:
    """The census of all blocks, which are in order: start, keys, counts."""
    counts = [np.frombuffer(value.as_buffer(), np.int64) for value in found["counts"]]
    keys = [np.frombuffer(value.as_buffer(), np.uint64) for value in found["keys"]]
    bits = np.concatenate(keys).reshape(sum(map(len, counts)), -1)
    number, first = number_rows(bits)
    size = np.zeros(len(first), np.int64)
    earlier = {}
    position = 0
    for start, count in zip(found["start"].to_pylist(), counts, strict=True):
        kinds = number[position : position + len(count)]
        earlier[start] = size[kinds]
        size[kinds] += count
        position += len(count)
    return KindCensus(bits[first], size, earlier)


def _numbers_of(rows: NDArray[np.uint64], masks: NDArray[np.uint64]) -> NDArray[np.int64]:
    """The index of each row among `masks`."""
    both, _ = number_rows(np.concatenate([masks, rows]))
    index = np.empty(len(masks), np.int64)
    index[both[: len(masks)]] = np.arange(len(masks))
    return index[both[len(masks) :]]


def _rank_in_block(code: NDArray[np.int32]) -> NDArray[np.int64]:
    """The number of earlier rows with the same code.

    Examples:
        >>> _rank_in_block(np.array([1, 0, 1, 1, 0])).tolist()
        [0, 0, 1, 2, 1]
    """
    order = np.argsort(code, kind="stable")
    starts = np.concatenate(([0], np.cumsum(np.bincount(code))))
    rank = np.empty(len(code), np.int64)
    rank[order] = np.arange(len(code)) - starts[code[order]]
    return rank


def block_of(frame: AssignmentProblem, table: pa.Table) -> AssignmentProblem:
    """The problem of the subscribers in a table of rows."""
    bounds = table["max_latency"].to_numpy() if "max_latency" in table.column_names else None
    position, lo, hi = (list_matrix(table, "subscribers", name) for name in ("place", "lo", "hi"))
    return frame.replace(subscriber_place=position, lo=lo, hi=hi, max_latency=bounds)


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

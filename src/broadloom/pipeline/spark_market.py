"""Markets on Spark (paper 5): rates from message logs, and the trees of Steiner mixing.

The results equal those of the in-process functions, bit for bit: sums of bytes are whole numbers, and the
weights of channels are added in the order of the channels, whichever task ends first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.types import StringType, TimestampType

from broadloom.assignment import assign
from broadloom.assignment.market.steiner_mixing import (
    MixingOptions,
    channel_weights,
    cheapest_paths,
    draw_brokers,
)
from broadloom.errors import InputError
from broadloom.model import (
    Grid,
    MarketProblem,
    check_has_points,
    read_market_problem,
    summarize,
)
from broadloom.pipeline.spark_session import (
    SparkEngine,
    hadoop_settings,
    session,
    shared_scratch,
    table_paths,
    task_count,
    write_frame,
)
from broadloom.plans import MarketResult
from broadloom.progress import stage
from broadloom.storage import as_path, is_remote, use_store_settings
from broadloom.storage.tables import read_parquet, write_parquet


def assign_market_on_spark(
    engine: SparkEngine,
    tables: Path,
    sizes: tuple[int, float, float],
    algorithm: str,
    seed: int,
    core: str,
    options: Mapping[str, Any],
) -> MarketResult:
    """As `bl.assign` of `read_market_problem(tables, *sizes)`, with messages and Steiner trees on Spark."""
    use_store_settings(hadoop_settings(engine))
    folder = as_path(tables).absolute()
    with session(engine) as spark:
        problem = read_market_problem(folder, *sizes, traffic=SparkTraffic(spark))
        if algorithm == "steiner-mixing" and not options:
            # A remote folder of tables has only what its manifest lists.
            scratch = folder.parent if is_remote(folder) else folder
            return steiner_mixing(problem, core, seed, spark=spark, scratch=scratch)
    return assign(problem, algorithm, seed, core=core, **options)


def steiner_mixing(
    problem: MarketProblem,
    core: str = "mst",
    seed: int = 0,
    engine: SparkEngine | None = None,
    spark: SparkSession | None = None,
    scratch: str | Path | None = None,
) -> MarketResult:
    """Steiner mixing with its phase 1 on Spark.

    Args:
        problem: the market.
        core: the routing of traffic in the core: mst, pair or tree.
        seed: the seed of the draws.
        engine: the Spark to use.
        spark: a session of your own, instead of an engine.
        scratch: a folder that the executors see under the same path; by default a temporary folder, which is
            enough on one machine.
    """
    options = MixingOptions(core)
    with session(engine, spark) as running:
        found = draw_brokers(problem, options, seed, link_weights(running, problem, scratch))
    result = replace(found, algorithm="steiner-mixing", seed=seed, options=vars(options))
    result.verify()
    return result


def link_weights(
    spark: SparkSession, problem: MarketProblem, scratch: str | Path | None = None
) -> NDArray[np.float64]:
    """Phase 1 of Steiner mixing: the executors compute the weights of each channel's trees."""
    weights = np.zeros(problem.access.shape)
    access, core = problem.access, problem.core

    def grow(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        prices = np.ascontiguousarray(access)
        paths = cheapest_paths(prices, np.ascontiguousarray(core))
        for batch in batches:
            for channel, rates, wants in zip(*(batch[name] for name in _CHANNELS.names), strict=True):
                rate, wanted = rates.values.to_numpy(), wants.values.to_numpy(zero_copy_only=False)
                links = channel_weights(rate, wanted, prices, *paths)
                channels = np.full(len(links[0]), channel.as_py(), np.int64)
                yield pa.record_batch([channels, *links], ["channel", "user", "broker", "weight"])

    with stage("trees"), shared_scratch(spark, scratch, "market") as folder:
        # Row groups of few channels, so that tasks can share the table.
        tasks = task_count(spark, problem.channel_count)
        rows = -(-problem.channel_count // tasks)
        write_parquet(_channel_rows(problem), folder / "channels.parquet", row_group_size=rows)
        channels = spark.read.parquet(str(folder / "channels.parquet")).repartition(tasks)
        grown = channels.mapInArrow(grow, "channel long, user long, broker long, weight double")
        write_frame(grown, folder / "weights.parquet")
        found = read_parquet(folder / "weights.parquet").sort_by("channel")
    channel, user, broker, weight = (found.column(name).to_numpy() for name in found.column_names)
    for first, last in zip(*_runs(channel), strict=True):
        weights[user[first:last], broker[first:last]] += weight[first:last]
    return weights


_CHANNELS = pa.schema(
    [("channel", pa.int64()), ("rates", pa.list_(pa.float64())), ("wants", pa.list_(pa.bool_()))]
)


def _channel_rows(problem: MarketProblem) -> pa.Table:
    """One row per channel: the rate of each user, and whether the user wants the channel."""
    users, channels = problem.rates.shape
    starts = np.arange(channels + 1) * users
    columns = [
        pa.LargeListArray.from_arrays(starts, np.ascontiguousarray(values.T).ravel()).cast(kind)
        for values, kind in ((problem.rates, _CHANNELS.types[1]), (problem.wants, _CHANNELS.types[2]))
    ]
    return pa.table([np.arange(channels), *columns], schema=_CHANNELS)


def _runs(values: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The start and the end of each run of equal values."""
    starts = np.flatnonzero(np.diff(values, prepend=-1))
    return starts, np.append(starts[1:], len(values))


class SparkTraffic:
    """A `TrafficReader` for `read_market_problem`: executors summarize the messages (Parquet)."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def topics(self, tables: Path) -> list[str] | None:
        """The topics of the messages; None if messages have points in a content space."""
        messages = self._messages(tables)
        if "point" in messages.columns or "topic" not in messages.columns:
            return None
        return [row["topic"] for row in messages.select("topic").distinct().collect()]

    def topic_rates(self, tables: Path, users: list[str], topics: list[str]) -> NDArray[np.float64]:
        """As `summarize`, with the topics as channels."""
        return summarize_log(self._messages(tables), users, topics)

    def grid_rates(
        self, tables: Path, users: list[str], corners: NDArray[np.float64], channels: int
    ) -> tuple[Grid, NDArray[np.float64]]:
        """The grid over corners and messages, and the rates of each user in its cells."""
        messages = self._messages(tables)
        check_has_points(messages.columns, tables)
        grid = Grid.covering(np.concatenate([corners, _extremes(messages, corners.shape[1])]), channels)
        return grid, summarize_log(messages, users, grid)

    def _messages(self, tables: Path) -> DataFrame:
        source = (tables / "messages.parquet").absolute()
        if not source.exists():
            raise InputError(f"{source} is missing; on Spark, messages are read from Parquet")
        return self._spark.read.parquet(*table_paths(source))


def _extremes(messages: DataFrame, axes: int) -> NDArray[np.float64]:
    """The lower and upper corners of the box around all messages with `axes` coordinates; NaN without any."""
    points = messages.where(sql.size("point") == axes)
    sides = [extreme(sql.col("point")[axis]) for extreme in (sql.min, sql.max) for axis in range(axes)]
    found = points.agg(*(side.cast("double") for side in sides)).first()
    return np.array(found, np.float64).reshape(2, axes)


def summarize_log(
    messages: DataFrame, users: Sequence[str], channels: Grid | Sequence[str], seconds: float | None = None
) -> NDArray[np.float64]:
    """As `broadloom.summarize`, for a log of any length: executors find the channels and add up the bytes.

    Raises:
        InputError: as for `summarize`; the message names the first bad message of a batch.
    """
    key = "point" if isinstance(channels, Grid) else "topic"
    if seconds is None:
        seconds = _duration(messages)
    names = list(users)

    def add_up(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            try:
                total = summarize(pa.Table.from_batches([batch]), names, channels, seconds=1.0)
            except InputError as error:
                yield pa.record_batch([[-1], [-1], [0], [str(error)]], _SUMS)
                continue
            user, channel = np.nonzero(total)
            size = total[user, channel].astype(np.int64)
            yield pa.record_batch([user, channel, size, pa.nulls(len(user), pa.string())], _SUMS)

    sums = messages.select("publisher", "at", "bytes", key).mapInArrow(
        add_up, "user long, channel long, bytes long, fault string"
    )
    found = sums.groupBy("user", "channel").agg(
        sql.sum("bytes").alias("bytes"), sql.min("fault").alias("fault")
    )
    return _rates(found.toArrow(), len(names), channels, seconds)


def _duration(messages: DataFrame) -> float:
    """The seconds from the first message to the last one; 1 if that is zero."""
    at = sql.col("at")
    kind = messages.schema["at"].dataType
    if isinstance(kind, StringType | TimestampType):
        at = sql.unix_micros(at.cast("timestamp"))
    found = messages.agg(sql.min(at), sql.max(at), sql.count_if(at.isNull())).first()
    if found is None:
        return 1.0
    first, last, missing = found
    if missing:
        raise InputError(
            f"{missing:,} messages have no time; give each one a time, or the seconds of the log"
        )
    if first is None:
        return 1.0
    between = last - first
    # Whole numbers are microseconds.
    return (between.total_seconds() if isinstance(between, timedelta) else between / 1e6) or 1.0


_SUMS = pa.schema(
    [("user", pa.int64()), ("channel", pa.int64()), ("bytes", pa.int64()), ("fault", pa.string())]
)


def _rates(
    found: pa.Table, users: int, channels: Grid | Sequence[str], seconds: float
) -> NDArray[np.float64]:
    """The rates (users, channels) of sums of bytes; raises if a batch had a bad message."""
    faults = found.column("fault").drop_null()
    if len(faults):
        raise InputError(faults[0].as_py())
    count = channels.channel_count if isinstance(channels, Grid) else len(channels)
    rates = np.zeros((users, count))
    rates[found.column("user").to_numpy(), found.column("channel").to_numpy()] = found.column(
        "bytes"
    ).to_numpy()
    return rates / seconds

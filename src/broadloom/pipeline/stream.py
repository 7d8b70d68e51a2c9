"""Maintain on Spark: a stream of events, applied in order and exactly once (paper 3; SPEC, Dynamics).

Spark's checkpoint says which events a batch has, and gives the same ones again after a crash. A batch first
writes its tables, each under the batch's number, then the new version of the plan, whole, by one rename. That
is what counts: a batch that has its version is not applied again, and one that has none starts from the
version before it, and writes the same once more.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from broadloom.errors import InputError
from broadloom.maintenance.feed import Event, Feed, Seqs, event_of
from broadloom.maintenance.live import Live
from broadloom.maintenance.rounds import Rounds
from broadloom.maintenance.store import read_state, write_state
from broadloom.model._atomic import new_folder
from broadloom.model._check import whole
from broadloom.model._records import hold
from broadloom.pipeline.session import Engine, session
from broadloom.progress import stage

EVENTS = "seq long, kind string, node string, topics array<string>, at array<double>"
CONNECTOR = "spark.jars.packages=org.apache.spark:spark-sql-kafka-0-10_2.13:<version of Spark>"
VERSIONS, CHECKPOINT, FEED = "versions", "checkpoint", "feed.json"


def stream(
    start: Callable[[], Live],
    events: str | Path,
    output: str | Path,
    engine: Engine | None = None,
    spark: SparkSession | None = None,
    once: bool = False,
    keep: int = 10,
    files_at_a_time: int = 100,
) -> dict[str, Any]:
    """Apply a stream of events to a live overlay, and publish every new version of the plan.

    Below `output`: `versions/<number>` is a plan each, the newest `keep` of them; `links.parquet` says which
    links to add and to remove, `rounds.parquet` what each event did, and `quarantine.parquet` which events
    were set aside and why, each with the number of the version that they led to.

    Args:
        start: makes the overlay to begin with; not called where `output` has a version already.
        events: a folder into which files are moved, JSON lines or Parquet; or kafka://host:port/topic, with
            a JSON object a message, if Spark has its connector.
        output: the folder for everything; one stream at a time may write to it.
        engine: where Spark runs.
        spark: a session of your own, in place of an engine.
        once: stop when all that is there has been applied; otherwise go on until interrupted.
        keep: how many versions of the plan to keep.
        files_at_a_time: how many files one batch takes at most.

    Returns:
        How many batches and events this run has applied, how many it set aside, and the newest version.
    """
    place, keep = Path(output), whole(keep, "keep", least=1)
    place.mkdir(parents=True, exist_ok=True)
    lock = hold(place)
    try:
        with session(engine, spark) as running, stage("events") as done:
            rows = _rows(running, str(events), whole(files_at_a_time, "files_at_a_time", least=1))
            state = _State(place, start, keep, done)
            writer = rows.writeStream.foreachBatch(state.apply)
            writer = writer.option("checkpointLocation", str(place / CHECKPOINT))
            query = (writer.trigger(availableNow=True) if once else writer).start()
            try:
                query.awaitTermination()
            finally:
                query.stop()
            return {"output": str(place), "version": state.version} | state.counts
    finally:
        os.close(lock)


class _State:
    """The overlay at its newest version, and how batches are applied to it."""

    def __init__(
        self, output: Path, start: Callable[[], Live], keep: int, done: Callable[[float], None]
    ) -> None:
        self._output, self._keep, self._done = output, keep, done
        self.counts = {"batches": 0, "applied": 0, "quarantined": 0}
        versions = sorted(int(folder.name) for folder in (output / VERSIONS).glob("[0-9]*"))
        if versions:
            self.version = versions[-1]
            folder = self._folder(self.version)
            self._feed = Feed(read_state(folder), Seqs(json.loads((folder / FEED).read_text())["seen"]))
        else:
            self.version, self._feed = 0, Feed(start())
            self._publish(0)

    def apply(self, rows: DataFrame, batch: int) -> None:
        """Apply a batch, if it was not applied before."""
        version = batch + 1
        if version <= self.version:
            return
        rounds = Rounds()
        rounds.run(self._feed, _events(rows))
        for name, table in rounds.tables().items():
            _write(self._output / f"{name}.parquet", version, table)
        self._publish(version)
        self.version = version
        self.counts["batches"] += 1
        self.counts["applied"] += len(rounds.rounds)
        self.counts["quarantined"] += len(rounds.refused)
        self._done(self.counts["applied"])
        for old in range(version - self._keep, -1, -1):
            if not self._folder(old).exists():
                break
            shutil.rmtree(self._folder(old), ignore_errors=True)

    def _publish(self, version: int) -> None:
        """Put the new version at its place: from now on the batch is applied."""
        with new_folder(self._folder(version), overwrite=True) as folder:
            write_state(folder, self._feed.live)
            (folder / FEED).write_text(json.dumps({"seen": self._feed.seen.ranges}) + "\n")

    def _folder(self, version: int) -> Path:
        return self._output / VERSIONS / f"{version:012d}"


def _rows(spark: SparkSession, events: str, files_at_a_time: int) -> DataFrame:
    """The stream, a line of JSON a row."""
    if events.startswith("kafka://"):
        return _from_kafka(spark, events)
    folder = Path(events)
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; give one into which files of events are moved")
    reader = spark.readStream.option("maxFilesPerTrigger", files_at_a_time)
    if any(folder.glob("*.parquet")):
        rows = reader.schema(EVENTS).option("pathGlobFilter", "*.parquet").parquet(str(folder))
        return rows.select(sf.to_json(sf.struct("*")).alias("value"))
    return reader.option("pathGlobFilter", "*.json*").text(str(folder))


def _from_kafka(spark: SparkSession, events: str) -> DataFrame:
    address = urlsplit(events)
    topic = address.path.strip("/")
    if not address.netloc or not topic:
        raise InputError(f"{events!r} names no topic; give kafka://host:port/topic")
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", address.netloc)
    try:
        rows = reader.option("subscribe", topic).option("startingOffsets", "earliest").load()
    except PySparkException as error:
        raise InputError(f"Spark has no connector to Kafka; add --conf {CONNECTOR}") from error
    return rows.select(sf.col("value").cast("string").alias("value"))


def _events(rows: DataFrame) -> Sequence[Event]:
    """The events of a batch: changes of brokers are few, so that they fit the driver."""
    lines = rows.select("value").toArrow().column("value").to_pylist()
    return [event_of(line or "") for line in lines]


def _write(folder: Path, version: int, table: pa.Table) -> None:
    """Write a batch's part of a table under its version's number, whole, in place of any that is there."""
    folder.mkdir(exist_ok=True)
    draft, column = folder / f".{version:012d}", pa.array([version] * table.num_rows, pa.int64())
    pyarrow.parquet.write_table(table.add_column(0, "version", column), draft)
    with draft.open("rb") as file:
        os.fsync(file.fileno())
    draft.replace(folder / f"{version:012d}.parquet")

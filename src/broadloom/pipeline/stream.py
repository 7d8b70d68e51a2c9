"""Maintain on Spark: a stream of events, applied in order and exactly once (paper 3; SPEC, Dynamics).

Spark's checkpoint says which events a batch has, and gives the same ones again after a crash. A batch first
writes its tables, each under the number of the version to come, then that version of the plan, whole, by one
rename. That is what counts: a batch that has its version is not applied again, and one that has none starts
from the version before it, and writes the same once more. Without its checkpoint Spark begins with the first
file again; then the `seq` of each event says what was applied.
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
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from broadloom.checks import check_count
from broadloom.errors import InputError
from broadloom.maintenance import (
    EventFeed,
    EventRow,
    Live,
    RoundLog,
    SequenceSet,
    event_of,
    events_of,
    read_state,
    write_state,
)
from broadloom.pipeline.session import Engine, session
from broadloom.progress import stage
from broadloom.storage import lock_folder, new_folder

FILES = "path string, modificationTime timestamp, length long, content binary"
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
    fresh_every: int = 0,
    rebaseline: bool = False,
) -> dict[str, Any]:
    """Apply a stream of events to a live overlay, and publish every new version of the plan.

    Below `output`: `versions/<number>` is a plan each, the newest `keep` of them; `links.parquet` says which
    links to add and to remove, `rounds.parquet` what each event did, and `quarantine.parquet` which events
    were set aside and why, each with the number of the version that they led to.

    Args:
        start: makes the overlay to begin with; not called where `output` has a version already.
        events: a folder into which files are moved, JSON lines, CSV or Parquet; or kafka://host:port/topic,
            with a JSON object a message, if Spark has its connector.
        output: the folder for everything; one stream at a time may write to it.
        engine: where Spark runs.
        spark: a session of your own, in place of an engine.
        once: stop when all that is there has been applied; otherwise go on until interrupted.
        keep: how many versions of the plan to keep.
        files_at_a_time: how many files one batch takes at most.
        fresh_every: compare with a fresh build every so many events; 0: never.
        rebaseline: where a rebuild is due then, make it, with few changes.

    Returns:
        How many batches and events this run has applied, how many it set aside, and the newest version.

    Raises:
        InputError: `output` was made from other events, is in use, or its checkpoint is older than it.
    """
    if engine is not None and engine.remote:
        raise InputError("a stream keeps its overlay in this process, not on Spark Connect; give a master")
    place, looks = Path(output), (check_count(fresh_every, "fresh_every"), rebaseline)
    check_count(keep, "keep", minimum=1)
    check_count(files_at_a_time, "files_at_a_time", minimum=1)
    place.mkdir(parents=True, exist_ok=True)
    lock = lock_folder(place)
    try:
        with session(engine, spark) as running, stage("events") as done:
            rows, source = _rows(running, str(events), files_at_a_time)
            state = _State(place, start, keep, done, source, looks)
            _run(rows, state, place / CHECKPOINT, once)
            return {"output": str(place), "version": state.version} | state.counts
    finally:
        os.close(lock)


def _run(rows: DataFrame, state: _State, checkpoint: Path, once: bool) -> None:
    """Apply batch after batch until there is no more, or somebody interrupts."""
    writer = rows.writeStream.foreachBatch(state.apply).option("checkpointLocation", str(checkpoint))
    query = (writer.trigger(availableNow=True) if once else writer).start()
    try:
        query.awaitTermination()
    except KeyboardInterrupt:
        if once:
            raise
    except StreamingQueryException as error:
        if state.fault is not None and not isinstance(state.fault, PySparkException):
            raise state.fault from error
        first = str(error).strip().partition("\n")[0]
        raise InputError(f"Spark stopped the stream: {first}") from error
    finally:
        query.stop()


class _State:
    """The overlay at its newest version, and how batches are applied to it."""

    def __init__(
        self,
        output: Path,
        start: Callable[[], Live],
        keep: int,
        done: Callable[[float], None],
        source: str = "",
        looks: tuple[int, bool] = (0, False),
    ) -> None:
        self._output, self._keep, self._done, self._source = output, keep, done, source
        self._looks = looks
        self.counts = {"batches": 0, "applied": 0, "quarantined": 0}
        self.fault: Exception | None = None
        versions = sorted(int(folder.name) for folder in (output / VERSIONS).glob("[0-9]*"))
        if versions:
            self.version = versions[-1]
            folder = self._folder(self.version)
            live, record = read_state(folder), json.loads((folder / FEED).read_text())
            self._query, self._batch = record["query"], record["batch"]
            self._feed = EventFeed(live, SequenceSet(record["seen"]))
            self._check(record["events"])
        elif self._last_batch_there() >= 0:
            raise InputError(f"{output} has a checkpoint but no version; remove it, or restore {VERSIONS}/")
        else:
            self.version, self._query, self._batch = 0, None, -1
            self._feed = EventFeed(start())
            self._publish(0)

    def apply(self, rows: DataFrame, batch: int) -> None:
        """Apply a batch, if it was not applied before."""
        query = self._query_there()
        if query == self._query and batch <= self._batch:
            return
        try:
            self._apply(_events(rows), self.version + 1, query, batch)
        except OSError as error:
            self.fault = InputError(f"cannot write to {self._output}: {error.strerror or error}")
            raise self.fault from error
        except Exception as error:
            self.fault = error  # Spark hands on its words only
            raise

    def _apply(self, events: Sequence[EventRow], version: int, query: str | None, batch: int) -> None:
        rounds = RoundLog()
        rounds.run(self._feed, events, *self._looks)
        for name, table in rounds.tables().items():
            _write(self._output / f"{name}.parquet", version, table)
        self._query, self._batch = query, batch
        self._publish(version)
        self.version = version
        self.counts["batches"] += 1
        self.counts["applied"] += rounds.applied
        self.counts["quarantined"] += len(rounds.refused)
        self._done(self.counts["applied"])
        for old in range(version - self._keep, -1, -1):
            if not self._folder(old).exists():
                break
            shutil.rmtree(self._folder(old), ignore_errors=True)

    def _publish(self, version: int) -> None:
        """Put the new version at its place: from now on the batch is applied."""
        record = {
            "seen": self._feed.seen.ranges,
            "events": self._source,
            "query": self._query,
            "batch": self._batch,
        }
        with new_folder(self._folder(version), overwrite=True) as folder:
            write_state(folder, self._feed.live)
            (folder / FEED).write_text(json.dumps(record) + "\n")

    def _check(self, source: str) -> None:
        """Refuse to go on with other events, or from a checkpoint that has forgotten what was applied."""
        if source != self._source:
            raise InputError(
                f"{self._output} was made from the events in {source}, not in {self._source}; "
                "give these, or another output"
            )
        same = self._query is not None and self._query == self._query_there()
        if same and self._last_batch_there() < self._batch:
            raise InputError(
                f"{self._output / CHECKPOINT} is older than the versions beside it; remove it: events that "
                "were applied are known by their seq, and are not applied again"
            )

    def _last_batch_there(self) -> int:
        """The last batch that the checkpoint knows of; -1: none."""
        offsets = (self._output / CHECKPOINT / "offsets").glob("[0-9]*")
        return max((int(one.name) for one in offsets), default=-1)

    def _query_there(self) -> str | None:
        """The id of the query whose checkpoint is there: the numbers of batches are its own."""
        place = self._output / CHECKPOINT / "metadata"
        return str(json.loads(place.read_text())["id"]) if place.exists() else None

    def _folder(self, version: int) -> Path:
        return self._output / VERSIONS / f"{version:012d}"


def _rows(spark: SparkSession, events: str, files_at_a_time: int) -> tuple[DataFrame, str]:
    """The stream, a file or a message a row, and where it comes from."""
    if events.startswith("kafka://"):
        return _from_kafka(spark, events), events
    folder = Path(events).resolve()
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; give one into which files of events are moved")
    reader = spark.readStream.format("binaryFile").schema(FILES)
    rows = reader.option("maxFilesPerTrigger", files_at_a_time).load(str(folder))
    return rows.select("path", "content"), str(folder)


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


def _events(rows: DataFrame) -> Sequence[EventRow]:
    """The events of a batch: changes of brokers are few, so that they fit the driver."""
    table = rows.toArrow()
    if "value" in table.column_names:
        return [event_of(message or "") for message in table.column("value").to_pylist()]
    return [event for file in table.to_pylist() for event in _of_file(file["path"], file["content"])]


def _of_file(path: str, content: bytes) -> list[EventRow]:
    """The events of a file; one that cannot be read is set aside as a whole, by its name."""
    try:
        return events_of(path, content)
    except InputError as error:
        return [EventRow(path, None, str(error))]


def _write(folder: Path, version: int, table: pa.Table) -> None:
    """Write a batch's part of a table under its version's number, whole, in place of any that is there."""
    folder.mkdir(exist_ok=True)
    draft, column = folder / f".{version:012d}", pa.array([version] * table.num_rows, pa.int64())
    pyarrow.parquet.write_table(table.add_column(0, "version", column), draft)
    with draft.open("rb") as file:
        os.fsync(file.fileno())
    draft.replace(folder / f"{version:012d}.parquet")

"""Maintenance on Spark: a stream of events, applied in order and exactly once (paper 3).

Spark's checkpoint records the events of each batch, and returns the same events again after a crash. A batch
first writes its tables, each under the number of the next version, and then that version of the plan, by one
rename. The rename commits the batch: a batch with a version is not applied again. A batch without a version
starts from the version before it, and writes the same tables again. If the checkpoint is lost, Spark starts
again with the first file; then the `seq` of each event shows whether it was applied.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from broadloom.checks import check_count
from broadloom.errors import BroadloomError, InputError, MissingExtraError, StorageError, error_from_os
from broadloom.maintenance import (
    EventFeed,
    EventRow,
    Live,
    RoundLog,
    SequenceSet,
    brokers_without_address,
    event_of,
    events_of,
    read_state,
    write_state,
)
from broadloom.pipeline.spark_session import SparkEngine, hadoop_settings, is_connect, session, spark_error
from broadloom.progress import stage
from broadloom.storage import (
    as_path,
    committed,
    is_committed,
    is_remote,
    lock_folder,
    new_folder,
    remove_path,
    use_store_settings,
    write_file,
)
from broadloom.storage.tables import write_parquet

FILE_COLUMNS = "path string, modificationTime timestamp, length long, content binary"
CONNECTOR = "spark.jars.packages=org.apache.spark:spark-sql-kafka-0-10_2.13:<version of Spark>"
VERSIONS = "versions"
CHECKPOINT = "checkpoint"
FEED = "feed.json"
METRICS = "metrics.prom"
ORDERS = ("seq", "node")
# Spark skips files that are older than the newest one by more than this, 7 days by default: no limit.
NO_AGE_LIMIT = "100000d"


def maintain_on_spark(
    start: Callable[[], Live],
    events: str | Path,
    output: str | Path,
    engine: SparkEngine | None = None,
    spark: SparkSession | None = None,
    once: bool = False,
    keep: int = 10,
    files_at_a_time: int = 100,
    fresh_every: int = 0,
    rebaseline: bool = False,
    order: str | None = None,
    messages_at_a_time: int = 100_000,
    kafka: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Apply a stream of events to a live overlay, and publish every new version of the plan.

    The folder `output` gets: `versions/<number>`, the newest `keep` versions of the plan; `links.parquet`,
    the links to add and to remove; `rounds.parquet`, the effect of each event; and `quarantine.parquet`, the
    refused events with their reasons. Each row has the number of the version that it led to. `metrics.prom`
    has the progress of this run, in the text format of Prometheus.

    Args:
        start: makes the first overlay; not called if `output` already has a version.
        events: a folder (a path or a URI) into which files (JSON lines, CSV or Parquet) are moved; or
            kafka://host:port/topic, with one JSON object per message, if Spark has the connector.
        output: the output folder, a path or a URI; only one stream at a time can write to it. A second one
            is refused on one machine, but not noticed in a remote store.
        engine: the Spark to use.
        spark: a session of your own, instead of an engine.
        once: stop when all present events are applied; otherwise continue until interrupted.
        keep: the number of versions of the plan to keep.
        files_at_a_time: the largest number of files per batch.
        fresh_every: the number of events between two comparisons with a fresh build; 0: no comparisons.
        rebaseline: rebuild the overlay with few changes when such a comparison calls for it.
        order: "seq": all events are in one order; "node": those of each node are, as in Kafka with the node
            as the key, where an event without `seq` gets the offset of its message. By default "node" for
            Kafka and "seq" for files.
        messages_at_a_time: the largest number of messages of Kafka per batch.
        kafka: settings of Kafka's client, for example `security.protocol` and `sasl.jaas.config`.

    Returns:
        `output`, `version` (the newest one), and of this run: `batches`, `applied` and `quarantined` events;
        and `brokers_without_address`, if other brokers have one.

    Raises:
        InputError: `output` was made from other events or is in use, or its checkpoint is too old.
        MissingExtraError: Spark has no connector to Kafka.
        StorageError: `output` cannot be written, or another disk failed.
        UnreachableError: Spark stopped the stream.
    """
    if (engine is not None and engine.remote) or (spark is not None and is_connect(spark)):
        raise InputError(
            "a stream cannot run on Spark Connect, because its overlay is in this process; give a master"
        )
    from_kafka = str(events).startswith("kafka://")
    chosen = order or ("node" if from_kafka else "seq")
    if chosen not in ORDERS:
        raise InputError(f"order is {chosen!r}; there are {', '.join(ORDERS)}")
    check_count(messages_at_a_time, "messages_at_a_time", minimum=1)
    use_store_settings(hadoop_settings(engine or SparkEngine(), spark))
    folder = as_path(output)
    comparison = check_count(fresh_every, "fresh_every"), rebaseline
    check_count(keep, "keep", minimum=1)
    check_count(files_at_a_time, "files_at_a_time", minimum=1)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise error_from_os(f"cannot write to {folder}", error) from error
    lock = None if is_remote(folder) else lock_folder(folder)
    try:
        with session(engine, spark) as running, stage("events") as done:
            if from_kafka:
                rows, source = _from_kafka(running, str(events), messages_at_a_time, kafka or {}), str(events)
            else:
                rows, source = _from_files(running, str(events), files_at_a_time)
            state = StreamState(folder, start, keep, done, source, comparison, chosen)
            _apply_batches(rows, state, folder / CHECKPOINT, once)
            record = {"output": str(folder), "version": state.version} | state.counts
            without = state.brokers_without_address
            return record | ({"brokers_without_address": without} if without else {})
    finally:
        if lock is not None:
            os.close(lock)


def _apply_batches(rows: DataFrame, state: StreamState, checkpoint: Path, once: bool) -> None:
    """Apply batches until all events are applied, or until the user interrupts."""
    writer = rows.writeStream.foreachBatch(state.apply).option("checkpointLocation", str(checkpoint))
    try:
        query = (writer.trigger(availableNow=True) if once else writer).start()
    except (PySparkException, Py4JError) as error:
        raise spark_error(f"Spark cannot write {checkpoint}", error) from error
    state.query = query
    try:
        query.awaitTermination()
    except KeyboardInterrupt:
        if once:
            raise
    except StreamingQueryException as error:
        if state.fault is not None and not isinstance(state.fault, PySparkException):
            raise state.fault from error
        raise spark_error("Spark stopped the stream", error) from error
    finally:
        query.stop()


class StreamState:
    """The newest version of the overlay, in memory and on disk.

    Attributes:
        version: the number of the newest version.
        counts: the batches, applied events and quarantined events of this run.
        fault: the error that ended a batch; Spark itself passes on only its text.
        query: the query of Spark, if it has started; its progress is part of the metrics.
    """

    def __init__(
        self,
        output: Path,
        start: Callable[[], Live],
        keep: int,
        done: Callable[[float], None],
        source: str = "",
        comparison: tuple[int, bool] = (0, False),
        order: str = "seq",
    ) -> None:
        self._output = output
        self._keep = keep
        self._done = done
        self._source = source
        self._comparison = comparison
        self.counts = {"batches": 0, "applied": 0, "quarantined": 0}
        self.fault: Exception | None = None
        self.query: Any = None
        self._order = order
        versions = _versions(output)
        if versions:
            self.version = versions[-1]
            folder = committed(self._folder(self.version))
            record = json.loads((folder / FEED).read_text())
            self._query = record["query"]
            self._batch = record["batch"]
            seen, last = SequenceSet(record["seen"]), record.get("last_of_node")
            self._feed = EventFeed(read_state(folder), seen, last)
            self._check_resumable(record["events"], "seq" if last is None else "node")
        elif self._last_checkpoint_batch() >= 0:
            raise InputError(
                f"{output} has a checkpoint but no version; remove the checkpoint, or restore {VERSIONS}/"
            )
        else:
            self.version = 0
            self._query = None
            self._batch = -1
            self._feed = EventFeed(start(), None, {} if order == "node" else None)
            self._publish(0)

    @property
    def brokers_without_address(self) -> list[str]:
        """The brokers of the newest version without an address, if others have one."""
        return brokers_without_address(self._feed.live.plan()) or []

    def apply(self, rows: DataFrame, batch: int) -> None:
        """Apply a batch, unless it was applied before."""
        query = self._checkpoint_query()
        if query == self._query and batch <= self._batch:
            return
        started = time.monotonic()
        try:
            self._apply(_events(rows), self.version + 1, query, batch)
            self._write_metrics(time.monotonic() - started)
        except (BroadloomError, ConnectionError) as error:
            self.fault = error
            raise
        except OSError as error:
            self.fault = error_from_os(f"cannot write to {self._output}", error)
            raise self.fault from error
        except Exception as error:
            self.fault = error
            raise

    def _apply(self, events: Sequence[EventRow], version: int, query: str | None, batch: int) -> None:
        rounds = RoundLog()
        rounds.run(self._feed, events, *self._comparison)
        for name, table in rounds.tables().items():
            _write(self._output / f"{name}.parquet", version, table)
        self._query = query
        self._batch = batch
        self._publish(version)
        self.version = version
        self.counts["batches"] += 1
        self.counts["applied"] += rounds.applied
        self.counts["quarantined"] += len(rounds.refused)
        self._done(self.counts["applied"])
        for old in range(version - self._keep, -1, -1):
            if not self._folder(old).exists():
                break
            with suppress(OSError, StorageError):
                remove_path(self._folder(old))

    def _write_metrics(self, seconds: float) -> None:
        """Write the progress of this run, in the text format of Prometheus."""
        progress = (self.query and self.query.lastProgress) or {}
        known = {
            "batches_total": ("counter", "Batches of this run", self.counts["batches"]),
            "events_applied_total": ("counter", "Applied events of this run", self.counts["applied"]),
            "events_refused_total": ("counter", "Refused events of this run", self.counts["quarantined"]),
            "version": ("gauge", "Newest version of the plan", self.version),
            "batch_seconds": ("gauge", "Duration of the last batch", round(seconds, 3)),
            "batch_time_seconds": ("gauge", "Time of the last batch since 1970", round(time.time(), 3)),
            "rows_per_second": ("gauge", "Input rows per second", progress.get("inputRowsPerSecond")),
            "messages_behind": (
                "gauge",
                "Messages of Kafka that wait, most of a partition",
                _behind(progress),
            ),
        }
        lines = []
        for name, (kind, words, value) in known.items():
            if value is not None:
                full = f"broadloom_stream_{name}"
                lines += [f"# HELP {full} {words}.", f"# TYPE {full} {kind}", f"{full} {value}"]
        write_file(self._output / METRICS, ("\n".join(lines) + "\n").encode())

    def _publish(self, version: int) -> None:
        """Write the new version by one rename, which commits the batch."""
        record = {
            "seen": self._feed.seen.ranges,
            "last_of_node": self._feed.last_of_node,
            "events": self._source,
            "query": self._query,
            "batch": self._batch,
        }
        with new_folder(self._folder(version), overwrite=True) as folder:
            write_state(folder, self._feed.live)
            (folder / FEED).write_text(json.dumps(record) + "\n")

    def _check_resumable(self, source: str, order: str) -> None:
        """Raise if the events have another source or order, or the checkpoint is older than the version."""
        if order != self._order:
            raise InputError(
                f"{self._output} was made with events in the order of {order}, not {self._order}; "
                f"give order {order}, or another output"
            )
        if source != self._source:
            raise InputError(
                f"{self._output} was made from the events in {source}, not in {self._source}; "
                "give the same events, or another output"
            )
        same = self._query is not None and self._query == self._checkpoint_query()
        if same and self._last_checkpoint_batch() < self._batch:
            raise InputError(
                f"{self._output / CHECKPOINT} is older than the newest version; remove it: events that were "
                "applied before are recognised by their seq, and are not applied again"
            )

    def _last_checkpoint_batch(self) -> int:
        """The last batch in the checkpoint; -1: the checkpoint is empty."""
        offsets = (self._output / CHECKPOINT / "offsets").glob("[0-9]*")
        return max((int(one.name) for one in offsets), default=-1)

    def _checkpoint_query(self) -> str | None:
        """The id of the checkpoint's query, or None; each query numbers its batches from 0."""
        metadata = self._output / CHECKPOINT / "metadata"
        return str(json.loads(metadata.read_text())["id"]) if metadata.exists() else None

    def _folder(self, version: int) -> Path:
        return self._output / VERSIONS / f"{version:012d}"


def _versions(output: Path) -> list[int]:
    """The numbers of the complete versions in an output folder, in order."""
    folder = output / VERSIONS
    found = [one for one in folder.iterdir() if one.name.isdigit()] if folder.exists() else []
    return sorted(int(one.name) for one in found if is_committed(one))


def _behind(progress: Mapping[str, Any]) -> float | None:
    """How many messages the stream is behind, of the partition of Kafka with the most."""
    sources = progress.get("sources") or [{}]
    behind = (sources[0].get("metrics") or {}).get("maxOffsetsBehindLatest")
    return None if behind is None else float(behind)


def _from_files(spark: SparkSession, events: str, files_at_a_time: int) -> tuple[DataFrame, str]:
    """The stream of a folder, one row per file, and the name of the folder."""
    folder = as_path(events).resolve()
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; give the folder into which files of events are moved")
    reader = spark.readStream.format("binaryFile").schema(FILE_COLUMNS).option("maxFileAge", NO_AGE_LIMIT)
    rows = reader.option("maxFilesPerTrigger", files_at_a_time).load(str(folder))
    return rows.select("path", "content"), str(folder)


def kafka_options(address: str, messages_at_a_time: int, client: Mapping[str, str]) -> dict[str, str]:
    """The options of Spark's source for an address kafka://host:port,host:port/topic.

    Examples:
        >>> kafka_options("kafka://a:9092,b:9092/events", 10, {"security.protocol": "SSL"})["subscribe"]
        'events'
    """
    parts = urlsplit(address)
    topic = parts.path.strip("/")
    if not parts.netloc or not topic:
        raise InputError(f"{address!r} has no host or no topic; give kafka://host:port/topic")
    own = {
        "kafka.bootstrap.servers": parts.netloc,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(messages_at_a_time),
    }
    return {
        name if name.startswith("kafka.") else f"kafka.{name}": value for name, value in client.items()
    } | own


def read_kafka_config(path: str | Path) -> dict[str, str]:
    """The settings of a file of Kafka's client: lines like `security.protocol=SASL_SSL`.

    Raises:
        InputError: the file does not exist, or a line is not a setting.
        StorageError: the file cannot be read.
    """
    file = as_path(path)
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise error_from_os(f"{file} cannot be read", error) from error
    found = {}
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if not text or text.startswith(("#", "!")):
            continue
        name, sign, value = text.partition("=")
        if not sign or not name.strip():
            raise InputError(f"{file}, line {number}: not a setting; give name=value")
        found[name.strip()] = value.strip()
    return found


def _from_kafka(
    spark: SparkSession, events: str, messages_at_a_time: int, client: Mapping[str, str]
) -> DataFrame:
    """The stream of a topic, one row per message: value, offset."""
    options = kafka_options(events, messages_at_a_time, client)
    try:
        rows = spark.readStream.format("kafka").options(**options).load()
    except PySparkException as error:
        if "Failed to find data source: kafka" in str(error) or "DATA_SOURCE_NOT_FOUND" in str(error):
            raise MissingExtraError(f"Spark has no connector to Kafka; add --conf {CONNECTOR}") from error
        raise spark_error(f"{events} cannot be read", error) from error
    return rows.select(sf.col("value").cast("string").alias("value"), sf.col("offset"))


def _events(rows: DataFrame) -> Sequence[EventRow]:
    """The events of a batch; changes of brokers are few, so they fit into the driver's memory."""
    table = rows.toArrow()
    if "value" in table.column_names:
        offsets = (
            table.column("offset").to_pylist() if "offset" in table.column_names else [None] * len(table)
        )
        return list(map(_message_event, table.column("value").to_pylist(), offsets))
    return [event for file in table.to_pylist() for event in _file_events(file["path"], file["content"])]


def _message_event(message: str | None, offset: int | None) -> EventRow:
    """The event of a message; without a `seq` it has the offset, which grows in each partition."""
    event = event_of(message or "")
    if event.values is None or offset is None or event.values.get("seq") is not None:
        return event
    return event._replace(values={**event.values, "seq": offset})


def _file_events(path: str, content: bytes) -> list[EventRow]:
    """The events of a file; for a file that cannot be read, one event that is refused with the error."""
    try:
        return events_of(path, content)
    except InputError as error:
        return [EventRow(path, None, str(error))]


def _write(folder: Path, version: int, table: pa.Table) -> None:
    """Write the rows of one batch as a file named by the version, which appears at once."""
    column = pa.array([version] * table.num_rows, pa.int64())
    rows = table.add_column(0, "version", column)
    path = folder / f"{version:012d}.parquet"
    folder.mkdir(exist_ok=True)
    if is_remote(path):
        write_parquet(rows, path)
        return
    draft = folder / f".{version:012d}"
    write_parquet(rows, draft)
    with draft.open("rb") as file:
        os.fsync(file.fileno())
    draft.replace(path)

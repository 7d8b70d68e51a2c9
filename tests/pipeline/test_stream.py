"""Stream of events: applied in order and exactly once, even after a kill; bad events are in quarantine."""

import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming import DataStreamReader
from pyspark.sql.streaming.datasource import ReadMaxRows, SupportsTriggerAvailableNow

import broadloom as bl
from broadloom import BroadloomError, InputError, MissingExtraError, StorageError
from broadloom.maintenance import read_state
from broadloom.pipeline import SparkEngine, maintain_on_spark
from broadloom.pipeline import stream as module

pytestmark = pytest.mark.spark

INTEREST = bl.workload.interest(nodes=30, topics=10, sizes=(2, 4), seed=0)
EVENTS = bl.workload.churn(INTEREST, rounds=60, change=0.3, seed=1)
ROWS = bl.workload.events_table(INTEREST, EVENTS).to_pylist()


def start():
    return bl.maintain(INTEREST)


def drop(folder, name, rows):
    """Move a complete file of events into a folder."""
    folder.mkdir(exist_ok=True)
    text = "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)
    (folder.parent / "draft").write_text(text)
    (folder.parent / "draft").replace(folder / f"{name}.jsonl")


def table(output, name):
    return pq.read_table(output / f"{name}.parquet").to_pylist()


def check(output, events=EVENTS):
    """Check that the newest version equals one made without a stream, and that its links add up."""
    newest = max((output / "versions").iterdir())
    plain = start()
    plain.apply(events)
    assert read_state(newest).edges.tolist() == plain.edges.tolist()
    seqs = [row["seq"] for row in table(output, "rounds")]
    assert sorted(seqs) == [event.seq for event in events]
    first = bl.Plan.load(output / "versions" / "000000000000")
    links = {tuple(sorted(first.interest.node_ids[end] for end in edge)) for edge in first.edges.tolist()}
    for row in sorted(table(output, "links"), key=lambda row: row["seq"]):
        link = tuple(sorted((row["u"], row["v"])))
        (links.add if row["action"] == "add" else links.remove)(link)
    last = bl.Plan.load(newest)
    assert links == {
        tuple(sorted(last.interest.node_ids[end] for end in edge)) for edge in last.edges.tolist()
    }


def test_a_stream_equals_the_live_object(spark, tmp_path):
    """Over several batches and after a restart; the order within a batch does not matter."""
    drop(tmp_path / "in", "a", ROWS[:20][::-1])
    drop(tmp_path / "in", "b", ROWS[20:40])
    result = maintain_on_spark(
        start, tmp_path / "in", tmp_path / "out", spark=spark, once=True, files_at_a_time=2
    )
    assert (result["applied"], result["quarantined"]) == (40, 0)
    drop(tmp_path / "in", "c", ROWS[40:])
    result = maintain_on_spark(pytest.fail, tmp_path / "in", tmp_path / "out", spark=spark, once=True)
    assert result["applied"] == 20
    check(tmp_path / "out")
    result = maintain_on_spark(pytest.fail, tmp_path / "in", tmp_path / "out", spark=spark, once=True)
    assert result["batches"] == 0


def test_bad_events_are_in_quarantine_with_a_reason(spark, tmp_path):
    stranger = {"seq": 61, "kind": "leave", "node": "nobody", "topics": None}
    bad = ["{broken", "[1]", {"kind": "join", "node": "x"}, {"seq": "one", "kind": "join", "node": "x"}]
    bad += [{"seq": 63, "kind": "fly", "node": "x"}, {"seq": 64, "kind": "join", "node": "x", "topics": [3]}]
    drop(tmp_path / "in", "a", [*ROWS[:30], *ROWS[31:60], *bad, ROWS[3], stranger])
    maintain_on_spark(start, tmp_path / "in", tmp_path / "out", spark=spark, once=True)
    drop(tmp_path / "in", "b", [ROWS[30], ROWS[5]])
    result = maintain_on_spark(start, tmp_path / "in", tmp_path / "out", spark=spark, once=True)
    assert (result["applied"], result["quarantined"]) == (0, 2)
    reasons = Counter(row["reason"] for row in table(tmp_path / "out", "quarantine"))
    assert reasons["not a JSON object"] == 2
    assert reasons["no seq"] == reasons["seq is not a whole number"] == 1
    assert reasons["unknown kind"] == reasons["topics is not a list of texts"] == 1
    assert reasons["duplicate: its seq was applied before"] == 2
    assert reasons["late: a later seq was applied before"] == 1
    assert reasons["unknown node"] >= 1
    rows = len(table(tmp_path / "out", "rounds")) + sum(reasons.values())
    assert rows == 59 + len(bad) + 2 + 2, "every event is applied or in quarantine"


class KilledError(Exception):
    """A simulated kill: nothing runs after it, and the memory is lost."""


@pytest.mark.parametrize("phase", ["applied", "links", "quarantine", "published"])
def test_a_stream_continues_after_a_kill_in_any_phase(spark, tmp_path, monkeypatch, phase):
    """The second of three batches dies in a phase; afterwards every event is applied exactly once."""
    for name, rows in (("a", ROWS[:20]), ("b", ROWS[20:40]), ("c", ROWS[40:])):
        drop(tmp_path / "in", name, rows)
        stamp = 1_700_000_000 + ord(name)
        os.utime(tmp_path / "in" / f"{name}.jsonl", (stamp, stamp))
    with monkeypatch.context() as patch:
        die_in(patch, phase, version=2)
        with pytest.raises(KilledError):
            maintain_on_spark(
                start, tmp_path / "in", tmp_path / "out", spark=spark, once=True, files_at_a_time=1
            )
    maintain_on_spark(start, tmp_path / "in", tmp_path / "out", spark=spark, once=True, files_at_a_time=1)
    check(tmp_path / "out")
    assert not table(tmp_path / "out", "quarantine")


def die_in(patch, phase, version):
    """Raise in a phase of the batch that leads to this version."""
    write, publish = module._write, module.StreamState._publish

    def dying_write(folder, number, rows):
        if number == version and phase == "applied":
            raise KilledError
        write(folder, number, rows)
        if number == version and folder.name == f"{phase}.parquet":
            raise KilledError

    def dying_publish(self, number):
        publish(self, number)
        if number == version and phase == "published":
            raise KilledError

    patch.setattr(module, "_write", dying_write)
    patch.setattr(module.StreamState, "_publish", dying_publish)


KILLED = """
import os, signal, sys
import broadloom as bl
from broadloom.pipeline import stream as module
from broadloom.pipeline import SparkEngine
publish = module.StreamState._publish
def dying(self, version):
    publish(self, version)
    if version == 1:
        os.kill(os.getpid(), signal.SIGKILL)
module.StreamState._publish = dying
interest = bl.workload.interest(nodes=30, topics=10, sizes=(2, 4), seed=0)
engine = SparkEngine(master="local[1]", conf={"spark.driver.memory": "1g"})
module.maintain_on_spark(lambda: bl.maintain(interest), *sys.argv[1:3], engine, once=True, files_at_a_time=1)
"""


def test_a_real_kill_loses_nothing(spark, tmp_path):
    """A process is killed after it published and before Spark knows: no event is applied twice."""
    drop(tmp_path / "in", "a", ROWS[:30])
    words = [sys.executable, "-c", KILLED, str(tmp_path / "in"), str(tmp_path / "out")]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    drop(tmp_path / "in", "b", ROWS[30:])
    result = maintain_on_spark(
        start, tmp_path / "in", tmp_path / "out", spark=spark, once=True, files_at_a_time=1
    )
    assert result["applied"] == 30
    check(tmp_path / "out")


def test_files_of_all_kinds_are_read_and_others_are_in_quarantine_by_name(spark, tmp_path):
    """A file that cannot be read does not stop the stream, and neither does a bad row."""
    folder = tmp_path / "in"
    folder.mkdir()

    def go():
        return maintain_on_spark(start, folder, tmp_path / "out", spark=spark, once=True)

    assert go()["applied"] == 0, "a folder that is empty at the start"
    events = bl.workload.events_table(INTEREST, EVENTS)
    pq.write_table(events.slice(0, 20), folder / "1.parquet")
    rows = [f"{row['seq']},{row['kind']},{row['node']}," for row in ROWS[20:40]]
    rows = [line + csv_list(row["topics"]) for line, row in zip(rows, ROWS[20:40], strict=True)]
    (folder / "2.csv").write_text("seq,kind,node,topics\n" + "\n".join(rows) + "\n7,leave\n")
    (folder / "3.json.gz").write_bytes(gzip.compress("\n\n".join(map(json.dumps, ROWS[40:])).encode()))
    wrong = events.slice(0, 1).set_column(0, "seq", [["one"]])
    pq.write_table(wrong, folder / "4.parquet")
    (folder / "5.parquet").write_bytes(b"PAR1abc")
    (folder / "6.txt").write_text("hello")
    far = [{"seq": 2**70, "kind": "leave", "node": "1"}, {"seq": 99, "kind": "join", "node": "\ud800"}]
    drop(folder, "7", [*far, {"seq": 99, "kind": "join", "node": "x", "at": True}, "[" * 100_000])
    assert go()["applied"] == 60
    check(tmp_path / "out")
    quarantined = {row["row"][-9:]: row["reason"] for row in table(tmp_path / "out", "quarantine")}
    assert quarantined["7,leave"] == "wrong number of fields"
    assert "in/5.parquet cannot be read" in quarantined["5.parquet"]
    assert "has an unknown ending" in quarantined["/in/6.txt"]
    assert Counter(quarantined.values())["seq is not a whole number"] == 2
    assert len(table(tmp_path / "out", "quarantine")) == 8
    assert go()["batches"] == 0


def csv_list(topics):
    """A list as a CSV field."""
    return '"' + json.dumps(topics).replace('"', '""') + '"'


def test_an_interrupted_stream_returns_its_counts(spark, tmp_path):
    """Without `once` a stream ends by an interrupt, and can be continued."""
    drop(tmp_path / "in", "a", ROWS[:20])

    def interrupt():
        end = time.monotonic() + 60
        while not (tmp_path / "out" / "versions" / "000000000001").exists() and time.monotonic() < end:
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    result = maintain_on_spark(start, tmp_path / "in", tmp_path / "out", spark=spark)
    assert result["version"] <= 1
    drop(tmp_path / "in", "b", ROWS[20:])
    maintain_on_spark(pytest.fail, tmp_path / "in", tmp_path / "out", spark=spark, once=True)
    check(tmp_path / "out")


def test_a_stream_continues_without_its_checkpoint_but_not_with_other_events(spark, tmp_path):
    drop(tmp_path / "in", "a", ROWS[:30])
    maintain_on_spark(start, tmp_path / "in", tmp_path / "out", spark=spark, once=True)
    shutil.rmtree(tmp_path / "out" / "checkpoint")
    drop(tmp_path / "in", "b", ROWS[30:])
    result = maintain_on_spark(start, tmp_path / "in", tmp_path / "out", spark=spark, once=True)
    assert (result["applied"], result["quarantined"]) == (30, 30)
    check(tmp_path / "out")
    drop(tmp_path / "elsewhere", "a", ROWS)
    with pytest.raises(InputError, match=r"was made from the events in .*/in, not in .*/elsewhere; give"):
        maintain_on_spark(start, tmp_path / "elsewhere", tmp_path / "out", spark=spark, once=True)


def test_a_full_disk_is_an_error_in_one_line(spark, tmp_path, monkeypatch):
    drop(tmp_path / "in", "a", ROWS[:10])

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(module, "_write", full)
        with pytest.raises(StorageError, match=r"cannot write to .*/out: No space left on device$"):
            maintain_on_spark(start, tmp_path / "in", tmp_path / "out", spark=spark, once=True)
    assert (
        maintain_on_spark(start, tmp_path / "in", tmp_path / "out", spark=spark, once=True)["applied"] == 10
    )


def test_sources_that_cannot_be_streamed_are_refused(spark, tmp_path):
    with pytest.raises(InputError, match="cannot run on Spark Connect"):
        maintain_on_spark(start, tmp_path, tmp_path / "out", SparkEngine(remote="sc://host"), once=True)
    with pytest.raises(InputError, match="is not a folder"):
        maintain_on_spark(start, tmp_path / "nowhere", tmp_path / "out", spark=spark, once=True)
    with pytest.raises(InputError, match="has no host or no topic"):
        maintain_on_spark(start, "kafka://host:9092", tmp_path / "out", spark=spark, once=True)
    with pytest.raises(MissingExtraError, match=r"no connector to Kafka; add --conf spark\.jars\.packages"):
        maintain_on_spark(start, "kafka://host:9092/events", tmp_path / "out", spark=spark, once=True)


def test_files_of_any_age_are_applied(spark, tmp_path):
    """Spark itself skips files that are a week older than the newest one."""
    drop(tmp_path / "in", "new", ROWS[:20])
    go = {"spark": spark, "once": True}
    assert maintain_on_spark(start, tmp_path / "in", tmp_path / "out", **go)["applied"] == 20
    drop(tmp_path / "in", "old", ROWS[20:])
    os.utime(tmp_path / "in" / "old.jsonl", (1_500_000_000, 1_500_000_000))
    assert maintain_on_spark(start, tmp_path / "in", tmp_path / "out", **go)["applied"] == 40
    check(tmp_path / "out")
    metrics = (tmp_path / "out" / "metrics.prom").read_text().splitlines()
    assert "broadloom_stream_events_applied_total 40" in metrics
    assert "broadloom_stream_version 2" in metrics


def test_a_store_that_spark_does_not_know_is_an_error_in_one_line(spark, tmp_path, monkeypatch, store):
    """And no local folder appears that is named like the store."""
    monkeypatch.chdir(tmp_path)
    drop(tmp_path / "in", "new", ROWS[:20])
    with pytest.raises(BroadloomError, match=r"^Spark cannot write s3a:.*s3a\.S3A not found$"):
        maintain_on_spark(start, tmp_path / "in", store, spark=spark, once=True)
    assert {path.name for path in tmp_path.iterdir()} == {"in", "store"}


def partitioned_source():
    """A data source of Spark with Kafka's options and columns; each file of a folder is a partition.

    The limit per batch is divided among the partitions. The class is local, so Spark sends it to its workers.
    """

    class Reader(DataSourceStreamReader, SupportsTriggerAvailableNow):
        def __init__(self, options):
            self.folder = Path(options["kafka.test.folder"])
            self.limit = int(options["maxOffsetsPerTrigger"])
            self.end = None

        def messages(self, name):
            return (self.folder / name).read_text(encoding="utf-8").splitlines()

        def newest(self):
            return {part.name: len(self.messages(part.name)) for part in sorted(self.folder.iterdir())}

        def initialOffset(self):  # noqa: N802
            return dict.fromkeys(self.newest(), 0)

        def getDefaultReadLimit(self):  # noqa: N802
            return ReadMaxRows(self.limit)

        def prepareForTriggerAvailableNow(self):  # noqa: N802
            self.end = self.newest()

        def latestOffset(self, start, limit):  # noqa: N802
            end = self.end or self.newest()
            share = limit.max_rows // len(end)
            return {name: min(start[name] + share, last) for name, last in end.items()}

        def partitions(self, start, end):
            return [InputPartition((name, start[name], end[name])) for name in end if start[name] < end[name]]

        def read(self, partition):
            name, first, last = partition.value
            for offset, line in enumerate(self.messages(name)[first:last], start=first):
                yield line.encode(), int(name), offset

    class Partitions(DataSource):
        @classmethod
        def name(cls):
            return "partitions"

        def schema(self):
            return "value binary, partition int, offset bigint"

        def streamReader(self, schema):  # noqa: ARG002, N802
            return Reader(self.options)

    return Partitions


def send(folder, rows):
    """Add each message to the partition of its key, which is the node."""
    folder.mkdir(exist_ok=True)
    for part in range(3):
        with (folder / str(part)).open("a", encoding="utf-8") as lines:
            for row in rows:
                if sum(map(ord, row["node"])) ** 2 % 7 % 3 == part:
                    lines.write(json.dumps(row) + "\n")


def topics_of_nodes(plan):
    """What each node wants; the links depend on the order of events of different nodes."""
    interest = plan.interest
    return {
        name: sorted(interest.topic_ids[topic] for topic in interest.topics_of(node))
        for node, name in enumerate(interest.node_ids)
    }


def test_several_partitions_with_a_rate_are_applied_in_the_order_of_each_key(spark, tmp_path, monkeypatch):
    """Spark reads three partitions at different speed, over many batches and after a restart."""
    spark.dataSource.register(partitioned_source())
    format_of = DataStreamReader.format
    monkeypatch.setattr(
        DataStreamReader, "format", lambda reader, name: format_of(reader, {"kafka": "partitions"}[name])
    )
    topic = tmp_path / "topic"
    go = {
        "events": "kafka://host:9092/events",
        "spark": spark,
        "once": True,
        "messages_at_a_time": 33,
        "kafka": {"test.folder": str(topic)},
    }
    send(topic, ROWS[:40])
    sizes = [len((topic / str(part)).read_text().splitlines()) for part in range(3)]
    assert len(set(sizes)) > 1
    assert min(sizes) > 0
    result = maintain_on_spark(start, output=tmp_path / "out", **go)
    assert (result["applied"], result["quarantined"]) == (40, 0)
    assert result["batches"] == -(-max(sizes) // 11) > 1, "at most eleven messages of each partition"
    send(topic, ROWS[40:])
    result = maintain_on_spark(pytest.fail, output=tmp_path / "out", **go)
    assert (result["applied"], result["quarantined"]) == (20, 0), "the checkpoint has all offsets"
    assert sorted(row["seq"] for row in table(tmp_path / "out", "rounds")) == [event.seq for event in EVENTS]
    live = start()
    live.apply(EVENTS)
    newest = max((tmp_path / "out" / "versions").iterdir())
    assert topics_of_nodes(bl.Plan.load(newest)) == topics_of_nodes(live.plan())
    assert bl.Plan.load(newest).is_topic_connected()
    result = maintain_on_spark(start, output=tmp_path / "seq", order="seq", **go)
    assert result["quarantined"] > 0, "in one order of all events, those of slower partitions are late"

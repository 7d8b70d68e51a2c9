"""Batches of a stream without Spark: after a kill between any two writes, events are applied exactly once."""

import json
import shutil
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import broadloom as bl
from broadloom import InputError
from broadloom.maintenance import EventFeed, RoundLog, event_of, read_state
from broadloom.pipeline import stream as module
from broadloom.storage import as_path, committed
from broadloom.storage.tables import read_parquet

INTEREST = bl.workload.interest(nodes=30, topics=10, sizes=(2, 4), seed=0)
EVENTS = bl.workload.churn(INTEREST, rounds=60, change=0.3, seed=1)
LINES = [json.dumps(row) for row in bl.workload.events_table(INTEREST, EVENTS).to_pylist()]
BATCHES = [LINES[:20], LINES[20:40], LINES[40:]]


class Rows:
    """A substitute for a data frame, with the one method that a batch needs."""

    def __init__(self, lines):
        self.lines = lines

    def toArrow(self):  # noqa: N802
        """The lines."""
        return pa.table({"value": pa.array(self.lines, pa.string())})


class KilledError(Exception):
    """A simulated kill: the memory is lost."""


def run(output):
    """Start a stream and apply all batches, as Spark does again after a restart."""
    state = module.StreamState(output, lambda: bl.maintain(INTEREST), keep=2, done=lambda _: None)
    for number, lines in enumerate(BATCHES):
        state.apply(Rows(lines), number)
    return state


def test_without_a_checkpoint_applied_events_are_recognised_by_their_seq(tmp_path):
    """Spark starts again with batch 0; applied events are duplicates, and new ones are applied."""

    def checkpoint(query, batches):
        (tmp_path / "checkpoint" / "offsets").mkdir(parents=True, exist_ok=True)
        (tmp_path / "checkpoint" / "metadata").write_text(json.dumps({"id": query}))
        for batch in range(batches):
            (tmp_path / "checkpoint" / "offsets" / str(batch)).touch()

    def state():
        return module.StreamState(tmp_path, lambda: bl.maintain(INTEREST), keep=2, done=lambda _: None)

    one = state()
    checkpoint("first", 2)
    one.apply(Rows(BATCHES[0]), 0)
    one.apply(Rows(BATCHES[1]), 1)
    state().apply(Rows(BATCHES[2]), 1)
    assert pq.read_table(tmp_path / "rounds.parquet").num_rows == 40, "batch 1 of this query was applied"
    shutil.rmtree(tmp_path / "checkpoint")
    checkpoint("second", 1)
    two = state()
    two.apply(Rows(LINES), 0)
    assert (two.version, two.counts["applied"], two.counts["quarantined"]) == (3, 20, 40)
    seqs = pq.read_table(tmp_path / "rounds.parquet").column("seq").to_pylist()
    assert sorted(seqs) == [event.seq for event in EVENTS]
    (tmp_path / "checkpoint" / "offsets" / "0").unlink()
    with pytest.raises(InputError, match="is older than the newest version; remove it"):
        state()
    checkpoint("second", 1)
    shutil.rmtree(tmp_path / "versions")
    with pytest.raises(InputError, match="has a checkpoint but no version; remove the checkpoint"):
        state()


@pytest.fixture(params=["local", "remote"])
def output(request, tmp_path):
    """An output folder, and that of a store."""
    return as_path(request.getfixturevalue("store")) if request.param == "remote" else tmp_path


def rows_of(output, name):
    """The rows of all batches in a table of the output."""
    return pa.concat_tables(read_parquet(as_path(one)) for one in (output / f"{name}.parquet").iterdir())


@pytest.mark.parametrize("steps", range(13))
def test_after_a_kill_at_any_write_each_event_counts_once(output, monkeypatch, steps):
    """A start writes a version, a batch three tables and a version; the kill comes after each in turn."""
    remaining = [steps]

    def mortal(work):
        def until_killed(*arguments):
            if remaining[0] == 0:
                raise KilledError
            remaining[0] -= 1
            work(*arguments)

        return until_killed

    with monkeypatch.context() as patch:
        patch.setattr(module, "_write", mortal(module._write))
        patch.setattr(module.StreamState, "_publish", mortal(module.StreamState._publish))
        with pytest.raises(KilledError):
            run(output)
    run(output)
    plain = bl.maintain(INTEREST)
    plain.apply(EVENTS)
    newest = max((output / "versions").iterdir())
    assert read_state(committed(newest)).edges.tolist() == plain.edges.tolist()
    seqs = rows_of(output, "rounds").column("seq").to_pylist()
    assert sorted(seqs) == [event.seq for event in EVENTS]
    assert rows_of(output, "quarantine").num_rows == 0
    assert len(list((output / "versions").iterdir())) == 2, "old versions are removed"


def test_a_stream_rebuilds_when_a_comparison_calls_for_it(tmp_path):
    """It compares every so many events of the overlay, not of a batch, over restarts too."""
    hub = {(0, node) for node in range(1, 30)} | {
        *map(tuple, bl.link(INTEREST, algorithm="gm").edges.tolist())
    }

    def start():
        return bl.maintain(INTEREST, edges=sorted(hub))

    for batch, lines in enumerate(BATCHES):
        state = module.StreamState(tmp_path, start, keep=2, done=lambda _: None, comparison=(25, True))
        state.apply(Rows(lines), batch)
    rows = pq.read_table(tmp_path / "rounds.parquet").sort_by("version").to_pylist()
    comparisons = [
        (row["seq"], row["kind"] == "rebaseline") for row in rows if row["fresh_max_degree"] is not None
    ]
    assert comparisons == [(24, False), (24, True), (49, False)]
    rounds = RoundLog()
    rounds.run(EventFeed(start()), [event_of(line) for line in LINES], 25, rebaseline=True)
    links = pq.read_table(tmp_path / "links.parquet").sort_by("version").select(["seq", "action", "u", "v"])
    assert links.to_pylist() == rounds.tables()["links"].to_pylist()
    assert state.counts["applied"] == 20


def test_versions_keep_the_addresses_and_filters_of_the_plan(tmp_path):
    """Each version is a plan with all columns of its brokers, also after a restart; others are named."""
    interest = bl.Interest.from_lists([["a/#"], ["a/b"]], node_ids=["rome", "oslo"])
    nodes = pa.table({"node": ["rome", "oslo"], "address": ["10.0.0.1", "10.0.0.2:8883"]})
    plan = replace(bl.link(interest, algorithm="gm"), nodes=nodes)
    join = {"kind": "join", "topics": ["+/b"]}
    rows = [
        join | {"seq": 1, "node": "bonn", "address": "bonn.example.org"},
        join | {"seq": 2, "node": "lima"},
    ]
    for number, row in enumerate(rows):
        state = module.StreamState(tmp_path, lambda: bl.maintain(plan), keep=2, done=lambda _: None)
        state.apply(Rows([json.dumps(row)]), number)
    assert state.brokers_without_address == ["lima"]
    found = bl.Plan.load(tmp_path / "versions" / f"{2:012d}")
    assert found.nodes.column("address").to_pylist() == [
        *nodes.column("address").to_pylist(),
        "bonn.example.org",
        None,
    ]
    assert found.is_topic_connected()
    assert found.interest.topic_ids == ("a/#", "a/b", "+/b")


def partitions(count):
    """The events as messages of several partitions of Kafka: each node has one, in the order of events."""
    parts = [[] for _ in range(count)]
    for line in LINES:
        node = json.loads(line)["node"]
        parts[sum(map(ord, node)) % count].append(line)
    return parts


def test_partitions_that_are_read_at_different_speed_are_applied_in_the_order_of_each_node(tmp_path):
    """With one order of all events, normal traffic of the slower partition would be refused as late."""
    fast, slow = partitions(2)
    batches = [fast[:20] + slow[:2], fast[20:], slow[2:10], slow[10:]]
    state = module.StreamState(
        tmp_path / "node", lambda: bl.maintain(INTEREST), keep=2, done=lambda _: None, order="node"
    )
    for number, lines in enumerate(batches):
        state.apply(Rows(lines), number)
    assert (state.counts["applied"], state.counts["quarantined"]) == (60, 0)
    again = module.StreamState(
        tmp_path / "node", lambda: bl.maintain(INTEREST), keep=2, done=lambda _: None, order="node"
    )
    again.apply(Rows(LINES), 9)
    assert (again.counts["applied"], again.counts["quarantined"]) == (0, 60), "a replay applies nothing"
    with pytest.raises(InputError, match="in the order of node, not seq; give order node"):
        module.StreamState(tmp_path / "node", pytest.fail, keep=2, done=lambda _: None)
    whole = module.StreamState(tmp_path / "seq", lambda: bl.maintain(INTEREST), keep=2, done=lambda _: None)
    for number, lines in enumerate(batches):
        whole.apply(Rows(lines), number)
    assert whole.counts["quarantined"] > 0


def test_a_message_without_seq_gets_its_offset():
    event = module._message_event('{"kind": "leave", "node": "a"}', 7)
    assert event.values["seq"] == 7
    assert module._message_event('{"seq": 3, "kind": "leave", "node": "a"}', 7).values["seq"] == 3
    assert module._message_event(None, 7).values is None


def test_options_of_kafka_have_a_rate_and_the_settings_of_the_client():
    client = {"security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "PLAIN"}
    assert module.kafka_options("kafka://a:9092,b:9092/events", 500, client) == {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.bootstrap.servers": "a:9092,b:9092",
        "subscribe": "events",
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "500",
    }

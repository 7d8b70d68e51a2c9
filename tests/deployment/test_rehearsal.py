"""Rehearsals on real mosquitto brokers: counts of deliveries, links and failures are as predicted."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

import broadloom as bl
from broadloom.deployment import (
    Publication,
    SampleMessage,
    WiredLink,
    Wiring,
    plan_trees,
    sample_messages,
    wire,
)
from broadloom.deployment.rehearsal import compare, mosquitto_lab, rehearse
from broadloom.deployment.rehearsal.delivery_counts import DeliveryTally, LabClients, publish_all
from broadloom.deployment.rehearsal.mosquitto_lab import BrokerLog, MosquittoLab, free_ports, packet_size
from broadloom.deployment.rehearsal.rehearsals import connect

pytestmark = [pytest.mark.needs("mosquitto"), pytest.mark.xdist_group("mosquitto")]

X = ("x",)
PAIR = Wiring(("a", "b"), {"a": X, "b": X}, {}, (WiredLink("a", "b", X, X),))


def planned(lists, sent=(), **options):
    plan = bl.link(bl.Interest.from_lists(lists), algorithm="gm", **options)
    trees = plan_trees(plan, sent, publishers="observed")
    return plan, trees, wire(plan, trees, sent, "observed")


def brokers_of(parent):
    """The mosquitto processes that a process has started for a rehearsal, as folders in /proc."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            own = f"PPid:\t{parent}\n" in (folder / "status").read_text()
            if own and b"broadloom-rehearsal-" in (folder / "cmdline").read_bytes():
                found.add(folder)
    return found


def is_running(folder):
    """Whether the broker process of a folder in /proc is running."""
    with suppress(OSError):
        return b"broadloom-rehearsal-" in (folder / "cmdline").read_bytes()
    return False


def test_thirty_brokers_deliver_sixty_topics_as_planned():
    """Each delivery once, none elsewhere, links as planned; a cut link and a killed broker as predicted."""
    interest = bl.workload.interest(nodes=30, topics=60, sizes=(3, 8), seed=0)
    plan = bl.link(interest, bl.workload.weights(nodes=30, kind="planar", seed=0), "grmaw")
    only = [Publication(node, topic, 1.0) for node, topic in ((3, "0"), (7, "11"), (20, "40"))]
    trees = plan_trees(plan, only, publishers="observed")
    wiring = wire(plan, trees, only, "observed")
    messages = sample_messages(wiring, 10)
    outcome = rehearse(wiring, messages, kill=1)
    assert outcome.ok, outcome.record()
    record = outcome.record()
    assert record["expected"] == sum(10 * len(wiring.wanting(topic)) for _, topic in messages)
    assert [record[key] for key in ("missing", "duplicates", "unexpected", "uninterested")] == [0, 0, 0, 0]
    edges = sum(10 * len(tree.edges) for tree in trees for _, topic in messages if topic in tree.filters)
    leaves = sum(10 * len(tree.leaves) for tree in trees)
    assert record["messages_on_links"] == edges + leaves
    for failure in record["failures"]:
        assert failure["missing_while_down"] == failure["predicted"]
        assert failure["lost"] == 0


def test_wildcards_and_a_publisher_without_interest_deliver_each_message_once():
    sent = [Publication(3, "a/b", 1.0), Publication(3, "c", 1.0)]
    _, _, wiring = planned([["a/#", "c"], ["a/#", "a/b"], ["a/#", "a/b", "+/b", "c"], []], sent)
    outcome = rehearse(wiring, sample_messages(wiring, 3))
    assert outcome.ok, outcome.record()


def test_wirings_that_the_checks_refuse_really_loop():
    """One message each: a link configured at both ends, and overlapping filters on two trees."""
    both = {"a": X, "b": X}
    three = dict.fromkeys("abc", ("a/#", "a/b"))
    trees = WiredLink("a", "b", ("a/#",), ("a/#",)), WiredLink("b", "c", ("a/#", "a/b"), ("a/#", "a/b"))
    looping = [
        Wiring(("a", "b"), both, {}, (WiredLink("a", "b", X, X), WiredLink("b", "a", X, X))),
        Wiring(("a", "b", "c"), three, {}, (*trees, WiredLink("a", "c", ("a/b",), ("a/b",)))),
    ]
    for wiring in looping:
        tally = run_one(wiring)
        assert max(tally.arrived.values()) > 20


def run_one(wiring):
    """Publish one message at the first broker, and wait until it has arrived often enough."""
    tally = DeliveryTally(wiring)
    topic = wiring.wants["a"][-1]
    with MosquittoLab(wiring) as brokers, LabClients(brokers.ports, tally.receive) as clients:
        connect(brokers, clients, wiring)
        publish_all(clients, tally, {SampleMessage("a", topic): 1})
        clients.run(lambda: max(tally.arrived.values(), default=0) > 20, 60)
    return tally


def test_faults_are_counted():
    """Links that carry too little, too much, or nothing show in the counts of their kind."""
    _, _, wiring = planned([["x"], ["x"], ["y"], ["y"]])
    messages = sample_messages(wiring, 2)
    first, second = wiring.links
    too_little = rehearse(replace(wiring, links=(first._replace(into=()), second)), messages).record()
    assert (too_little["ok"], too_little["missing"]) == (False, 2)
    unused = rehearse(replace(wiring, links=(first._replace(out=("x", "y")), second)), messages)
    assert unused.ok  # y is not published at the first broker
    wide = WiredLink("1", "2", ("#",), ())
    record = rehearse(replace(wiring, links=(first, wide, second)), messages).record()
    assert record["uninterested"] == 4  # the messages of x at a broker of y
    assert record["missing"] == record["duplicates"] == 0


def test_the_alternatives_deliver_the_same_traffic():
    plan, _, wiring = planned([["x", "y"], ["x"], ["y"], ["x", "z"], ["z"]])
    messages = sample_messages(wiring, 2)
    rows = compare(plan, (wiring, rehearse(wiring, messages)), (), messages)
    assert [row["links"] for row in rows] == [len(wiring.links), 10, 4, 4, 4]
    assert all(row["missing"] == row["duplicates"] == row["unexpected"] == 0 for row in rows)
    assert rows[0]["uninterested"] == rows[1]["uninterested"] == 0
    assert rows[1]["max_hops"] == 1


def test_rehearse_on_the_command_line(run, tmp_path):
    plan, _, _ = planned([["x"], ["x", "y"], ["y"]])
    plan.save(tmp_path / "plan")
    code, out, _ = run("deploy", "rehearse", tmp_path / "plan", "--kill", 0, "--json")
    assert code == 0
    record = json.loads(out)
    for key in ("expected", "missing", "duplicates", "unexpected", "uninterested", "links", "comparison"):
        assert key in record
    one_way = 2 * 2 * 5  # broker 0 publishes y, and broker 2 publishes x
    assert record["expected"] == 2 * 2 * 2 * 5 + one_way
    assert record["links"][0] == {"from": "0", "to": "1", "messages": 10, "planned": 10}
    code, out, _ = run("deploy", "rehearse", tmp_path / "plan", "--kill", 1, "--no-compare")
    assert code == 0
    assert "60 deliveries expected: 0 missing, 0 twice, 0 unexpected" in out
    assert "broker 1 killed: " in out


@pytest.mark.parametrize("lists", [[], [[], []], [["x"]], [["x"], ["y"]]], ids=str)
def test_plans_without_links_can_be_rehearsed(run, tmp_path, lists):
    """Without brokers, without topics, or with one broker per topic, the rehearsal succeeds."""
    planned(lists)[0].save(tmp_path / "plan")
    assert run("deploy", "rehearse", tmp_path / "plan", "--kill", 0)[0] == 0


INTERRUPTED = """
from broadloom.deployment.rehearsal.mosquitto_lab import MosquittoLab
from broadloom.deployment import Wiring
import time
with MosquittoLab(Wiring(("a", "b"), {}, {}, ())):
    print("up", flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_broker_outlives_a_rehearsal(kind):
    """Whether the rehearsal is interrupted, terminated or killed."""
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        own = brokers_of(process.pid)
        assert len(own) == 2
        os.kill(process.pid, kind)
        process.wait(60)
    end = time.monotonic() + 60
    while any(map(is_running, own)) and time.monotonic() < end:
        time.sleep(0.05)
    assert not any(map(is_running, own))


def test_folders_of_killed_rehearsals_are_removed(tmp_path, monkeypatch):
    """Folders in use and new folders stay."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    old, fresh = tmp_path / f"{mosquitto_lab.PREFIX}old", tmp_path / f"{mosquitto_lab.PREFIX}fresh"
    for folder in (old, fresh):
        folder.mkdir()
    os.utime(old, (0, 0))
    with MosquittoLab(Wiring((), {}, {}, ())) as first:
        os.utime(first._folder, (0, 0))
        assert not old.exists()
        with MosquittoLab(Wiring((), {}, {}, ())):
            assert first._folder.exists()
    assert list(tmp_path.iterdir()) == [fresh]


def test_ports_are_free_and_different():
    assert len(set(free_ports(50))) == 50


def test_a_broker_that_cannot_start_is_reported_with_its_log(monkeypatch):
    monkeypatch.setattr(mosquitto_lab, "_LISTEN", "nonsense\n")
    with (
        pytest.raises(bl.UnreachableError, match=r"broker '[ab]' ended; the end of its log: .*nonsense"),
        MosquittoLab(PAIR),
    ):
        pass


def test_a_log_is_read_while_it_grows(tmp_path):
    path = tmp_path / "log"
    line = "17: Sending PUBLISH to l.broadloom-a:b (d0, q1, r0, m6, 't', ... (5 bytes))\n"
    path.write_text(line + line[:20])
    log = BrokerLog(path)
    log.read()
    assert log.sent["l.broadloom-a:b", "t"] == 1
    with path.open("a") as file:
        file.write(line[20:])
    log.read()
    assert log.sent["l.broadloom-a:b", "t"] == 2
    assert log.bytes_sent["l.broadloom-a:b"] == 2 * packet_size("t", 5, 1) == 24
    log.close()

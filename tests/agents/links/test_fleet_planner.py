"""Planner of a fleet: every wanted filter reaches all brokers by its tree, over events and restarts."""

import json
import random
from dataclasses import replace
from itertools import combinations

import networkx as nx
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import broadloom as bl
from broadloom.agents.links.fleet_planner import FleetPlanner
from broadloom.agents.links.group_trees import overlapping_groups
from broadloom.agents.links.planned_trees import _spanning
from broadloom.deployment import FleetBroker, FleetLinks
from broadloom.errors import InputError, StorageError
from broadloom.mqtt.topic_filters import common_topic, covers
from broadloom.storage import RecordJournal

NAMES = ("a", "b", "c", "d", "e")
FILTERS = (
    "x",
    "y",
    "w/1",
    "w/2",
    "w/#",
    "+/1",
    "w/+/3",
    "$SYS/#",
    "broadloom/a",
    "bad/#/filter",
    "$share/g/x",
)


def fleet(names=NAMES, **links):
    brokers = [FleetBroker(name, f"{name}.example.org") for name in names]
    return bl.Fleet(brokers, FleetLinks(**links))


def reached(hops, start):
    """The brokers that a message published at `start` reaches, by the forwarding rule, each once."""
    edges = {(min(hop), max(hop)) for hop in hops}
    got, todo = [start], [start]
    while todo:
        here = todo.pop()
        for u, v in hops:
            if u == here and start in side(edges, u, v):
                got.append(v)
                todo.append(v)
    return got


def side(edges, u, v):
    """The brokers on u's side of the edge {u, v}."""
    found, todo = {u}, [u]
    while todo:
        here = todo.pop()
        for edge in edges - {(min(u, v), max(u, v))}:
            if here in edge:
                fresh = set(edge) - found
                found |= fresh
                todo += fresh
    return found


def wanted_parts(text, carry):
    plain = text.removeprefix("$share/g/")
    if plain.startswith(("$", "broadloom/")) or plain == "bad/#/filter":
        return set()
    return {plain} if any(covers(one, plain) for one in carry) else set()


def check_targets(targets, wanted, names, carry=("#",), anywhere=True):
    """Each wanted filter is in one group; its messages reach all who want it, and nobody twice."""
    for index, one in enumerate(targets):
        for other in list(targets)[:index]:
            assert all(common_topic(u, v) is None for u in one for v in other), "groups must not overlap"
    parts = {name: {p for text in texts for p in wanted_parts(text, carry)} for name, texts in wanted.items()}
    for broker, texts in parts.items():
        for text in texts:
            takers = {name for name, others in parts.items() if text in others}
            group = next((filters for filters in targets if text in filters), None)
            senders = set(names) if anywhere else takers
            if group is None:
                assert senders == {broker}, (text, "has no tree")
                continue
            for start in senders:
                got = reached(targets[group], start)
                assert len(got) == len(set(got)), "a message comes twice"
                assert takers <= set(got), (text, start, got)


@settings(max_examples=15)
@given(st.data())
def test_every_wanted_filter_reaches_all_brokers_over_restarts(data):
    """Observations, events and round-trip times in any order; a restart plans the same."""
    rng = random.Random(data.draw(st.integers(0, 2**32)))
    anywhere = data.draw(st.booleans())
    carry = data.draw(st.sampled_from([("#",), ("w/#",)]))
    made = fleet(carry=carry, publishers="anywhere" if anywhere else "observed")
    journal = RecordJournal(None)
    planner = FleetPlanner(made, journal)
    observed = {name: set() for name in NAMES}
    stated = {name: set() for name in NAMES}
    seq = 0
    before = {}
    for _ in range(data.draw(st.integers(1, 25))):
        luck = rng.random()
        name = rng.choice(sorted(observed))
        texts = rng.sample(FILTERS, rng.randint(0, 4))
        if luck < 0.5:
            planner.observe(name, texts)
            observed[name] = set(texts)
        elif luck < 0.7:
            seq += rng.choice([0, 1, 2])
            kind = rng.choice(["subscribe", "unsubscribe"])
            line = json.dumps({"seq": seq, "kind": kind, "node": name, "topics": texts})
            texts = [text.removeprefix("$share/g/") for text in texts]
            if planner.event(line) is None:
                stated[name] = stated[name] | set(texts) if kind == "subscribe" else stated[name] - set(texts)
        elif luck < 0.75:
            seq += 1
            new = f"n{seq}"
            event = {"seq": seq, "kind": "join", "node": new, "topics": [], "address": "10.0.0.1:1883"}
            assert planner.event(json.dumps(event)) is None
            observed[new], stated[new] = set(), set()
        elif luck < 0.8 and len(observed) > 2:
            seq += 1
            assert planner.event(json.dumps({"seq": seq, "kind": "leave", "node": name})) is None
            del observed[name], stated[name]
        elif luck < 0.9:
            planner.latency(name, rng.choice(NAMES), rng.choice([0.2, 5.0, 80.0]))
        elif luck < 0.95:
            planner.compact()
        else:
            planner.propose()
            planner.adopt()
        targets = planner.targets(before)
        wanted = {
            name: observed[name] | {t.removeprefix("$share/g/") for t in stated[name]} for name in observed
        }
        check_targets(targets, wanted, observed, carry, anywhere)
        again = FleetPlanner(made, journal)
        assert again.targets(before) == targets
        assert again.status() == planner.status()
        assert again.addresses() == planner.addresses()
        assert again.departed() == planner.departed()
        before = targets


def line(seq, kind, node, *topics, **more):
    return json.dumps({"seq": seq, "kind": kind, "node": node, "topics": list(topics)} | more) + "\n"


def test_a_file_of_events_gives_the_same_overlay_with_and_without_restarts(tmp_path):
    """A late or bad event is refused with its reason, once and for ever, however the file is read."""
    text = "".join(
        [
            line(1, "subscribe", "a", "x"),
            line(2, "subscribe", "z", "x"),  # z has not joined yet
            line(4, "join", "z", "x", address="10.0.0.9"),
            line(3, "subscribe", "b", "x"),  # late
            line(4, "leave", "a"),  # duplicate
            line(5, "join", "q", "x"),  # without an address
            "{not json\n",
            line(6, "subscribe", "b", "x", "w/#"),
            line(7, "leave", "c"),
        ]
    )
    made = fleet()
    path = tmp_path / "events.jsonl"
    path.write_text(text)
    whole = FleetPlanner(made, tmp_path)
    assert whole.read_events(path) == 9
    expected = whole.targets({})
    assert whole.departed() == {"c"}
    assert whole.addresses() == {"z": "10.0.0.9"}
    reasons = [row["reason"] for row in whole.status()["quarantined"]]
    assert len(reasons) == 5
    for reason, part in zip(
        reasons, ("unknown node", "late", "duplicate", "no address", "JSON"), strict=True
    ):
        assert part in reason
    whole.close()
    path.unlink()
    for restarts in (False, True):
        folder = tmp_path / f"slow-{restarts}"
        folder.mkdir()
        planner = FleetPlanner(made, folder)
        for end in range(0, len(text) + 1, 17):
            path.write_text(text[:end])
            planner.read_events(path)
            if restarts:
                planner.close()
                planner = FleetPlanner(made, folder)
        path.write_text(text)
        planner.read_events(path)
        assert planner.read_events(path) == 0
        assert planner.targets({}) == expected
        assert [row["reason"] for row in planner.status()["quarantined"]] == reasons
        planner.close()


def test_a_file_of_events_that_is_replaced_is_read_again(tmp_path):
    path = tmp_path / "events.jsonl"
    planner = FleetPlanner(fleet(), None)
    assert planner.read_events(path) == 0
    path.write_text(line(1, "subscribe", "a", "x"))
    planner.read_events(path)
    path.write_text(line(1, "subscribe", "a", "x") * 2 + line(2, "subscribe", "b", "x"))
    assert planner.read_events(path) == 2
    path.write_text(line(2, "subscribe", "b", "x") + line(3, "subscribe", "c", "x"))
    assert planner.read_events(path) == 2
    assert ["duplicate" in row["reason"] for row in planner.status()["quarantined"]] == [True, True]
    hops = planner.targets()["x",]
    assert {start for start, end in hops if (end, start) in hops} == {"a", "b", "c"}


def test_a_long_file_of_events_is_read_from_where_it_was_read_to(tmp_path):
    """Only its new lines, and its two ends, which tell whether it was replaced."""
    path = tmp_path / "events.jsonl"
    planner = FleetPlanner(fleet(), None)
    path.write_text("\n" * 20_000 + line(1, "subscribe", "a", "x"))
    assert planner.read_events(path) == 1
    with path.open("r+") as file:
        file.seek(10_000)
        file.write("not read again\n")
    assert planner.read_events(path) == 0
    with path.open("a") as file:
        file.write(line(2, "subscribe", "b", "x"))
    assert planner.read_events(path) == 1
    path.write_text("\n" * 20_000 + line(3, "subscribe", "c", "x") + line(4, "subscribe", "b", "y"))
    assert planner.read_events(path) == 2, "another end: another file"
    assert planner.status()["quarantined"] == []


def test_events_that_cannot_be_written_are_taken_again(tmp_path, monkeypatch):
    planner = FleetPlanner(fleet(), tmp_path)
    path = tmp_path / "events.jsonl"
    path.write_text(line(1, "subscribe", "a", "x") + line(2, "subscribe", "b", "x"))

    def full(*_):
        raise StorageError("the disk is full")

    monkeypatch.setattr(planner._journal, "append", full)
    with pytest.raises(StorageError):
        planner.read_events(path)
    monkeypatch.undo()
    assert planner.read_events(path) == 2
    assert planner.status()["quarantined"] == []
    assert ("a", "b") in planner.targets()["x",]


def test_a_plan_is_the_beginning_until_clients_are_observed():
    interest = bl.Interest.from_lists([["x"], ["x", "y"], ["y"]], node_ids=["a", "b", "c"])
    plan = bl.link(interest, algorithm="gm")
    journal = RecordJournal(None)
    planner = FleetPlanner(fleet("abc"), journal, plan)
    check_targets(planner.targets(), {"a": {"x"}, "b": {"x", "y"}, "c": {"y"}}, "abc")
    planner.observe("b", ["y"])
    assert ("c", "b") in planner.targets()["y",]
    assert planner.targets()["x",] == {("b", "a"), ("c", "a")}, "nobody else wants it, but all can publish it"
    again = FleetPlanner(fleet("abc"), journal, plan)
    assert again.targets({}) == FleetPlanner(fleet("abc"), journal).targets({})
    assert again.targets(planner.targets()) == planner.targets()


def test_a_plan_with_an_unknown_broker_needs_its_address():
    interest = bl.Interest.from_lists([["x"], ["x"]], node_ids=["a", "z"])
    plan = bl.link(interest, algorithm="gm")
    with pytest.raises(InputError, match="'z' of the plan is not in the fleet file"):
        FleetPlanner(fleet("ab"), None, plan)
    nodes = pa.table({"node": ["a", "z"], "address": [None, "10.0.0.8:1883"]})
    planner = FleetPlanner(fleet("ab"), None, replace(plan, nodes=nodes))
    assert planner.addresses() == {"z": "10.0.0.8:1883"}
    assert ("a", "z") in planner.targets()["x",]


def test_brokers_come_into_the_fleet_file_and_go():
    journal = RecordJournal(None)
    planner = FleetPlanner(fleet("abc"), journal)
    for name in "abc":
        planner.observe(name, ["x"])
    planner = FleetPlanner(fleet("abd"), journal)
    planner.observe("d", ["x"])
    assert planner.departed() == {"c"}
    assert {broker for hop in planner.targets()["x",] for broker in hop} == set("abd")
    planner = FleetPlanner(fleet("abcd"), journal)
    assert planner.departed() == set()
    planner.observe("c", ["x"])
    check_targets(planner.targets(), {name: {"x"} for name in "abcd"}, "abcd")


def test_round_trips_matter_when_they_move_by_more_than_noise():
    planner = FleetPlanner(fleet("abc"), None)
    assert planner.latency("a", "b", 40.0)
    assert not planner.latency("b", "a", 45.0), "less than a quarter"
    assert planner.latency("b", "a", 60.0)
    assert planner.latency("a", "c", 0.4)
    assert not planner.latency("a", "c", 0.9), "less than a millisecond"
    assert not planner.latency("a", "a", 5.0)
    assert not planner.latency("a", "b", float("nan"))


def test_a_proposal_saves_weight_and_is_adopted():
    names = [f"b{number}" for number in range(8)]
    journal = RecordJournal(None)
    planner = FleetPlanner(fleet(names), journal)
    rng = random.Random(5)
    for name in names:
        planner.observe(name, ["x", *(f"t{n}" for n in range(6) if rng.random() < 0.4)])
    points = {name: np.array([rng.random(), rng.random()]) for name in names}
    for u in names:
        for v in names:
            if u < v:
                planner.latency(u, v, 100 * float(np.linalg.norm(points[u] - points[v])) + 1)
    planner.targets()
    proposal = planner.propose()
    assert proposal is not None
    assert 0 < proposal["saving"] < 1
    assert planner.status()["proposal"]["saving"] == proposal["saving"]
    assert "instead of" in planner.adopt()
    assert planner.adopt() is None
    assert planner.status()["proposal"] is None
    assert planner._plan().total_weight == pytest.approx(proposal["weight"], abs=1e-3)
    assert FleetPlanner(fleet(names), journal).targets({}) == planner.targets({})


def test_what_is_not_carried_is_listed():
    planner = FleetPlanner(fleet("ab", carry=("w/#",)), None)
    planner.observe("a", ["w/1", "x", "#", "$SYS/#", "broadloom/a", "bad/#/filter"])
    reasons = {row["filter"]: row["reason"] for row in planner.not_carried()}
    assert reasons["x"] == "outside of what links carry"
    assert reasons["#"] == "links carry only w/# of it"
    assert reasons["$SYS/#"] == "topic of the broker itself"
    assert set(reasons) == {"x", "#", "$SYS/#", "broadloom/a", "bad/#/filter"}
    assert planner.status()["not_carried_count"] == 5


def test_observed_publishers_have_one_way_hops():
    interest = bl.Interest.from_lists([["x"], ["x"], [], []], node_ids=list("abcd"))
    publishers = bl.Publishers("observed", [("c", "x")])
    plan = bl.link(interest, algorithm="gm", publishers=publishers)
    planner = FleetPlanner(fleet("abcd", publishers="observed"), None, plan)
    hops = planner.targets()["x",]
    assert len(hops) == 3
    assert any(start == "c" for start, _ in hops)
    assert not any("d" in hop for hop in hops)


def test_one_group_changes_without_the_others():
    planner = FleetPlanner(fleet(), None)
    rng = random.Random(2)
    for name in NAMES:
        planner.observe(name, [f"t{n}" for n in range(30) if rng.random() < 0.5])
    before = planner.targets()
    planner.observe("a", [text for text in planner._observed["a"] if text != "t0"] + ["new"])
    after = planner.targets(before)
    assert {filters for filters in before if before[filters] != after.get(filters)} <= {("t0",), ("new",)}


EDGES = st.lists(st.tuples(st.sampled_from("abcdefgh"), st.sampled_from("abcdefgh")), min_size=1, max_size=20)


@given(EDGES)
def test_edges_that_close_no_ring_span_the_same_brokers(edges):
    graph = nx.Graph(edges)
    graph.remove_edges_from(nx.selfloop_edges(graph))
    forest = nx.Graph(_spanning(edges))
    forest.add_nodes_from(graph)
    assert nx.is_forest(forest)
    assert set(map(frozenset, nx.connected_components(forest))) == set(
        map(frozenset, nx.connected_components(graph))
    )


SOME_FILTERS = st.sampled_from(("a", "b", "a/b", "a/+", "+/b", "a/#", "b/#", "c/d", "+/d", "c", "e"))


@given(
    st.lists(st.sets(SOME_FILTERS, min_size=1, max_size=3).map(lambda some: tuple(sorted(some))), max_size=8)
)
def test_groups_that_have_topics_in_common_stay_together(members):
    graph = nx.Graph()
    graph.add_nodes_from(members)
    for one, other in combinations(graph, 2):
        if any(common_topic(first, second) for first in one for second in other):
            graph.add_edge(one, other)
    found = {frozenset(part) for part in overlapping_groups(members)}
    assert found == set(map(frozenset, nx.connected_components(graph)))

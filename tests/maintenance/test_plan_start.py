"""Maintenance that starts from a plan: weights, sites and every column of its nodes are those of the plan."""

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import broadloom as bl
from broadloom import InputError
from broadloom.maintenance import EventFeed, RefusedEvent, event_of, maintain_folders, read_state, write_state
from broadloom.model import NotCarried, Publishers, Reason, write_link_problem

NAMES = ["rome", "oslo", "bonn"]
NODES = pa.table(
    {
        "node": NAMES,
        "site": ["s", "n", "n"],
        "lat": [41.9, 59.9, 50.7],
        "lon": [12.5, 10.7, 7.1],
        "address": ["mqtt.rome.example.org:8883", "10.0.0.2", None],
        "kind": ["mosquitto", "emqx", "nats"],
        "capacity": [5, 6, 7],
    }
)
INTEREST = bl.Interest.from_lists([["a"], ["a", "b"], ["b"]], node_ids=NAMES)
BY_SITE = bl.Weights.sites([1, 0, 0], between=[[1, 9], [9, 2]])


def a_plan(weights=BY_SITE, nodes=NODES):
    """A plan with columns."""
    return replace(bl.link(INTEREST, weights, algorithm="grmaw"), nodes=nodes)


def feed(live, *events):
    """Apply events; none may be refused."""
    lines = [json.dumps({"seq": seq, **event}) for seq, event in enumerate(events)]
    outcomes = list(EventFeed(live).take(map(event_of, lines)))
    assert not [one.reason for one in outcomes if isinstance(one, RefusedEvent)]


def test_a_live_overlay_of_a_plan_has_its_interest_weights_links_sites_and_columns():
    plan = a_plan()
    live = bl.maintain(plan)
    again = live.plan()
    assert again.interest == plan.interest
    assert again.weights == plan.weights
    assert sorted(again.edges.tolist()) == sorted(plan.edges.tolist())
    assert live.site_ids == ("n", "s")
    assert again.nodes.drop_columns(["id"]).equals(NODES)


@pytest.mark.parametrize("kind", ["uniform", "dense", "euclidean", "sites"])
def test_brokers_that_stay_keep_every_column_through_joins_leaves_and_restarts(tmp_path, kind):
    points = np.array([[0.0, 0], [5, 1], [9, 2]])
    weights = {
        "uniform": bl.Weights.uniform(3),
        "dense": bl.Weights.dense(np.array([[0, 2, 3], [2, 0, 4], [3, 4, 0.0]])),
        "euclidean": bl.Weights.euclidean(points),
        "sites": BY_SITE,
    }[kind]
    at = {"uniform": {}, "dense": {"at": {"rome": 1, "bonn": 2}}, "euclidean": {"at": [7, 7]}, "sites": {}}[
        kind
    ]
    live = bl.maintain(a_plan(weights))
    join = {"kind": "join", "node": "lima", "topics": ["a"], "site": "s", "address": "lima.example.org"}
    feed(live, {"kind": "leave", "node": "oslo"}, join | at)
    write_state(tmp_path, live)
    for plan in (live.plan(), read_state(tmp_path).plan(), bl.Plan.load(tmp_path)):
        assert plan.nodes.column("id").to_pylist() == [0, 2, 3]
        rows = plan.nodes.drop_columns(["id"]).to_pylist()
        assert rows[:2] == [NODES.to_pylist()[0], NODES.to_pylist()[2]]
        empty = dict.fromkeys(("lat", "lon", "kind", "capacity"))
        assert rows[2] == {"node": "lima", "site": "s", "address": "lima.example.org"} | empty
        assert plan.weights.kind == weights.kind


def test_a_site_in_an_event_is_the_position_if_weights_are_by_site():
    live = bl.maintain(a_plan())
    feed(live, {"kind": "join", "node": "bari", "topics": ["a"], "site": "s"})
    assert live.plan().weights.site.tolist() == [1, 0, 0, 1]
    with pytest.raises(InputError, match="the new node is at 'n', but its site is 's'; give one of them"):
        live.join(["a"], at="n", site="s")
    with pytest.raises(InputError, match="there is no site 'x'; there are n, s"):
        live.join(["a"], site="x")


def test_sites_keep_their_names_when_their_last_broker_has_left():
    live = bl.maintain(a_plan())
    live.leave(0)
    again = bl.maintain(live.plan())
    assert again.site_ids == ("n", "s")
    again.join(["a"], at="s")
    assert again.plan().weights.site.tolist() == [0, 0, 1]
    assert again.plan().nodes.column("site").to_pylist() == ["n", "n", "s"]


def test_a_column_id_of_the_user_survives(tmp_path):
    """Maintenance has a column of that name; then the ids of nodes are a note."""
    live = bl.maintain(a_plan(nodes=NODES.append_column("id", pa.array([7, 8, 9]))))
    live.leave(1)
    write_state(tmp_path, live)
    again = read_state(tmp_path)
    assert again.nodes.tolist() == [0, 2]
    for plan in (live.plan(), again.plan(), bl.maintain(bl.Plan.load(tmp_path)).plan()):
        assert plan.nodes.column("id").to_pylist() == [7, 9]
    assert bl.maintain(bl.maintain(a_plan()).plan()).plan().nodes.column("id").to_pylist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        ({"address": "host:"}, "the address of the new node is 'host:'; give host or host:port"),
        (
            {"address": "me:secret@host"},
            "the address of the new node contains a login; give host or host:port only",
        ),
        ({"address": 5}, "address is not a text"),
        ({"site": ["s"]}, "site is not a text"),
    ],
)
def test_a_wrong_address_or_site_is_refused(event, reason):
    live = bl.maintain(a_plan(bl.Weights.uniform(3)))
    line = json.dumps({"seq": 1, "kind": "join", "node": "x", "topics": ["a"]} | event)
    (refused,) = EventFeed(live).take([event_of(line)])
    assert refused.reason == reason


def test_the_journal_restores_addresses_and_sites(tmp_path):
    with bl.maintain(a_plan()) as live:
        live.save(tmp_path / "live")
        live.join(["a"], "bari", address="bari.example.org", site="s")
        expected = live.plan()
    with bl.Live.load(tmp_path / "live") as again:
        assert again.plan() == expected


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=8))
def test_columns_do_not_depend_on_a_restart(tmp_path_factory, changes):
    """After any joins with and without an address, and leaves, with a restart after each of them."""
    folder = tmp_path_factory.mktemp("states")
    one, other = (bl.maintain(a_plan(bl.Weights.uniform(3))) for _ in range(2))
    for number, (joins, known) in enumerate(changes):
        for live in (one, other):
            if joins:
                live.join(["a"], f"new-{number}", address="h" if known else None)
            elif live.node_count:
                live.leave(int(live.nodes[-1]))
        (folder / str(number)).mkdir()
        write_state(folder / str(number), other)
        other = read_state(folder / str(number))
        assert one.plan() == other.plan()


def saved(tmp_path, **changes):
    """A folder of tables, and a plan of them."""
    nodes = changes.pop("nodes", NODES)
    write_link_problem(tmp_path / "tables", changes.pop("interest", INTEREST), {"nodes": nodes})
    a_plan().save(tmp_path / "plan")
    return tmp_path / "tables", tmp_path / "plan"


def test_tables_and_a_plan_must_agree(tmp_path):
    tables, plan = saved(tmp_path, interest=bl.Interest.from_lists([["a"], ["a"], ["b"]], node_ids=NAMES))
    with pytest.raises(
        InputError, match="only one of them has topic 'b' at node 'oslo'; link the tables first"
    ):
        maintain_folders(tables, plan)
    other = NODES.set_column(4, "address", pa.array(["elsewhere", "10.0.0.2", None]))
    (tmp_path / "more").mkdir()
    tables, plan = saved(tmp_path / "more", nodes=other)
    with pytest.raises(InputError, match="different values of 'address' for node 'rome'; link the tables"):
        maintain_folders(tables, plan)


def test_a_column_that_only_the_tables_have_is_taken(tmp_path):
    tables, plan = saved(tmp_path, nodes=NODES.append_column("rack", pa.array(["1", "2", "3"])))
    live = maintain_folders(tables, plan)
    assert live.plan().nodes.column("rack").to_pylist() == ["1", "2", "3"]
    assert live.plan().weights == BY_SITE
    assert maintain_folders(tables, plan, "uniform").weights_kind == "uniform"
    assert maintain_folders(None, plan, "uniform").weights_kind == "uniform"
    assert maintain_folders(tables).weights_kind == "sites"
    assert maintain_folders(tables).plan().nodes.column("kind").to_pylist() == ["mosquitto", "emqx", "nats"]
    with pytest.raises(InputError, match="weights from latency need the folder of tables"):
        maintain_folders(None, plan, "latency")
    with pytest.raises(InputError, match="there are no tables and no plan"):
        maintain_folders(None)
    with pytest.raises(InputError, match="the weights come from the plan, but there is no plan"):
        maintain_folders(tables, weights="plan")


def test_publishers_and_what_is_not_carried_stay_with_the_brokers_that_stay(tmp_path):
    """Also through a restart; those of a broker that left do not come back with its name."""
    left_out = NotCarried([("oslo", "$SYS/#", Reason.INTERNAL), ("bonn", "x/#", "outside of carry")])
    seen = Publishers("observed", [("rome", "b", 3.0), ("oslo", "z")])
    plan = replace(a_plan(bl.Weights.uniform(3)), publishers=seen, not_carried=left_out)
    live = bl.maintain(plan)
    assert live.plan().publishers == seen
    assert live.plan().not_carried == plan.not_carried
    join = {"kind": "join", "node": "oslo", "topics": ["a", "$SYS/broker/#"]}
    feed(live, {"kind": "leave", "node": "oslo"}, join)
    live.apply([(0, "subscribe", 2, ["$SYS/y"]), (0, "unsubscribe", 3, ["$SYS/broker/#"])])
    live.resubscribe(2, ["b"])
    feed(live, {"kind": "subscribe", "node": "rome", "topics": ["$SYS/z"]})
    write_state(tmp_path, live)
    assert "$SYS/z" not in live.topic_ids
    for found in (live.plan(), read_state(tmp_path).plan(), bl.Plan.load(tmp_path)):
        assert found.publishers == Publishers("observed", [("rome", "b", 3.0)])
        assert [(row.node, row.topic) for row in found.not_carried.subscriptions] == [
            ("bonn", "x/#"),
            ("rome", "$SYS/z"),
        ]
        assert found.not_carried.publications == bl.Plan.load(tmp_path).not_carried.publications

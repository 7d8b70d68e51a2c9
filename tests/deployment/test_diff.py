"""Rollout of a change: no step loops, each broker restarts once, and nothing is lost."""

import json
import re
from dataclasses import replace

import networkx as nx
import pyarrow as pa
import pytest
from deploy_strategies import plans
from hypothesis import event, given, settings
from hypothesis import strategies as st
from pyarrow import csv as pa_csv

import broadloom as bl
import naive_deploy
from broadloom.deployment import Deployment, Settings, WiredLink, Wiring, changes, order, plan_trees, wire
from broadloom.deployment.rehearsal import rehearse_change
from broadloom.deployment.rollout import common, nats_steps
from broadloom.deployment.targets import nats_leafnodes, rabbitmq_federation

X = ("x",)


def wired(plan):
    return wire(plan, plan_trees(plan))


@st.composite
def pairs(draw):
    """The wirings of two plans, whose brokers and interests can differ."""
    return wired(draw(plans())), wired(draw(plans()))


@given(pairs())
@settings(max_examples=60)
def test_no_step_of_a_change_loops_and_the_last_step_is_the_new_plan(pair):
    old, new = pair
    batches = order(old, new)
    links = old.links
    for batch in batches:
        for start, topic in {
            (hop[0], text) for link in batch.links for hop, texts in link.carried() for text in texts
        }:
            assert max(naive_deploy.arrivals(batch.links, start, topic).values()) == 1
        kept = [link for link in links if link.owner not in batch.brokers]
        assert [link for link in batch.links if link.owner not in batch.brokers] == sorted(kept)
        links = batch.links
    assert sorted(links) == sorted(new.links)
    restarted = [broker for batch in batches for broker in batch.brokers]
    assert sorted(restarted) == sorted(change.broker for change in changes(old, new))
    assert not batches or batches[-1].cut == 0


@given(pairs())
@settings(max_examples=60)
def test_sessions_are_opened_for_new_links_and_ended_for_old_ones(pair):
    old, new = pair
    before, after = ({link[:2] for link in wiring.links} for wiring in pair)
    batches = order(old, new)
    ended = [session.client for batch in batches for session in batch.ended]
    assert len(ended) == len(set(ended)) == 2 * len(before - after)
    opened = {session.client.partition("broadloom-")[2] for batch in batches for session in batch.opened}
    assert opened <= {f"{owner}:{peer}" for owner, peer in after - before}


@given(pairs(), st.booleans())
@settings(max_examples=60)
def test_sessions_change_where_a_broker_runs_and_its_link_does_not(pair, at_once):
    """At the peer while the owner is down; at the owner before it has the link.

    Those of removed links end when all brokers are back, so that none is down for longer.
    """
    up = {link[:2] for link in pair[0].links}
    for batch in order(*pair, at_once):
        down, seen = set(), []
        for action, broker, session in batch.actions():
            if session is None:
                (down.add if action == "stop" else down.remove)(broker)
                continue
            seen.append(session)
            assert broker not in down
            peer = session.client.rpartition(":")[2]
            if action == "end":
                assert not down
                assert (session.owner, peer) not in {link[:2] for link in batch.links}
            else:
                assert session.owner in down or (session.owner, peer) not in up
        assert not down
        assert sorted(seen) == sorted((*batch.opened, *batch.grown, *batch.shrunk, *batch.ended))
        up = {link[:2] for link in batch.links}


@given(pairs())
@settings(max_examples=40)
def test_rabbitmq_adds_then_switches_and_then_removes_the_rest(pair):
    """After the calls, each broker has what the calls of the new plan make, and nothing else."""
    old, new = pair
    lab = Settings(tls=False)
    for broker in {*old.brokers, *new.brokers}:
        made = {call["path"]: call for call in puts(rabbitmq_federation.calls(old, broker, lab))}
        for part in rabbitmq_federation.change(old, new, lab, lab):
            for call in part.get(broker, []):
                if call["method"] == "DELETE":
                    del made[call["path"]]
                elif call["method"] == "PUT":
                    made[call["path"]] = call
        assert made == {call["path"]: call for call in puts(rabbitmq_federation.calls(new, broker, lab))}


def puts(calls):
    return [call for call in calls if call["method"] == "PUT"]


@given(pairs())
@settings(max_examples=30)
def test_a_change_at_once_is_one_batch(pair):
    old, new = pair
    batches = order(old, new, at_once=True)
    assert len(batches) == (1 if changes(old, new) else 0)
    assert all(sorted(batch.links) == sorted(new.links) for batch in batches)


def test_nothing_changes_between_a_plan_and_itself():
    wiring = wired(bl.link(bl.Interest.from_lists([["x"], ["x"]]), algorithm="gm"))
    assert changes(wiring, wiring) == order(wiring, wiring) == []


def test_brokers_whose_changes_would_close_a_ring_restart_in_order():
    """Moving x from b-c to a-c: b drops its link before a opens one; meanwhile the session of a-c queues."""
    wants = dict.fromkeys("abc", X)
    ab, bc, ac = (WiredLink(u, v, X, X) for u, v in ("ab", "bc", "ac"))
    first, second = order(
        Wiring(tuple("abc"), wants, {}, (ab, bc)), Wiring(tuple("abc"), wants, {}, (ab, ac))
    )
    assert (first.brokers, second.brokers) == (("b",), ("a",))
    assert {(session.broker, session.client) for session in first.opened} == {
        ("c", "r.broadloom-a:c"),
        ("a", "l.broadloom-a:c"),
    }
    assert {(session.broker, session.client) for session in first.ended} == {
        ("c", "r.broadloom-b:c"),
        ("b", "l.broadloom-b:c"),
    }
    assert first.cut == 4


@pytest.fixture
def two_plans(tmp_path):
    interest = bl.workload.interest(nodes=8, topics=12, sizes=(3, 6), seed=1)
    weights = bl.workload.weights(nodes=8, kind="planar", seed=0)
    found = []
    for name in ("grmaw", "gm"):
        found.append(bl.link(interest, weights, name, publishers=bl.Publishers("observed")))
        found[-1].save(tmp_path / name)
    return found, tmp_path / "grmaw", tmp_path / "gm"


@pytest.mark.needs("mosquitto")
@pytest.mark.xdist_group("mosquitto")
def test_a_change_under_load_loses_nothing(two_plans):
    """After the change every message arrives once; a loop would double everything."""
    (old, new), _, _ = two_plans
    record = rehearse_change(wired(old), wired(new))
    assert record["afterwards"] == {"expected": 151, "missing": 0, "duplicates": 0, "unexpected": 0}
    assert record["unexpected"] == 0
    assert record["lost"] == 0
    assert record["doubled"] <= min(record["in_flight"], 0.3 * record["expected"])


@pytest.mark.parametrize("target", ["mosquitto", "rabbitmq", "nats"])
def test_diff_lists_changes_and_restarts(run, two_plans, target):
    _, old, new = two_plans
    diff = ("deploy", "diff", old, new, "--to", target, "--accounts")
    code, out, _ = run(*diff, "--json")
    assert code == 0
    record = json.loads(out)
    assert record["changes"]
    assert bool(record["restarts"]) == (target != "rabbitmq")
    assert all(("commands" in step) == (target == "mosquitto") for step in record["order"])
    assert "step 1: " in run(*diff)[1]
    assert run("deploy", "diff", old, old, "--to", target, "--accounts")[:2] == (0, "nothing changes\n")


def test_diff_names_links_and_the_commands_for_their_sessions(run, two_plans):
    _, old, new = two_plans
    lines = run("deploy", "diff", old, new, "--address", "{broker}.example", "--qos", 2)[1].splitlines()
    assert "0: new link to 5, both ways: 5, 8" in lines
    assert "1: link to 3, no more both ways: 3" in lines
    assert "2: no more link to 3" in lines
    assert "  broadloom deploy session 5.example:8883 r.broadloom-0:5 --open=8 --qos 2" in lines
    assert "  broadloom deploy session 7.example:8883 r.broadloom-5:7 --end" in lines
    live = run("deploy", "diff", old, new, "--to", "rabbitmq")[1]
    assert re.search(
        r'  0: POST /api/bindings/%2F/e/\S+\.tree/e/\S+\.link\.0%3A5 {"routing_key": "5"}\n', live
    )


def test_diff_refuses_plans_that_export_refuses(run, two_plans, tmp_path):
    """The error is the same, and names the plan."""
    _, old, new = two_plans
    code, _, err = run("deploy", "diff", old, new, "--to", "nats")
    assert code == 2
    assert err.startswith(f"broadloom: {old}: the tree of '10' closes a ring")
    dotted = bl.link(bl.Interest.from_lists([["x.y"], ["x.y"]]), algorithm="gm")
    dotted.save(tmp_path / "dotted")
    code, _, err = run("deploy", "diff", old, tmp_path / "dotted", "--to", "rabbitmq")
    assert code == 2
    assert f"{tmp_path / 'dotted'}: topic 'x.y' has a dot or a star" in err
    assert run("deploy", "diff", old, new, "--address", "here")[0] == 2
    code, _, err = run("deploy", "diff", old, new, "--to", "rabbitmq", "--at-once")
    assert (code, err.count("\n")) == (2, 1)
    code, _, err = run("deploy", "diff", old, new, "--to", "nats", "--accounts", "--rehearse")
    assert (code, "no rehearsal on nats" in err) == (2, True)


@pytest.fixture
def moved(tmp_path):
    """A plan of three brokers in a row, and the same with one of them at another address."""
    plan = bl.link(bl.Interest.from_lists([["x"], ["x", "y"], ["y"]]), algorithm="gm")
    for name, last in (("old", "c.example:99"), ("new", "d.example")):
        nodes = pa.table({"node": ["0", "1", "2"], "address": ["a.example", "b.example", last]})
        replace(plan, nodes=nodes).save(tmp_path / name)
    return tmp_path / "old", tmp_path / "new"


def test_a_changed_address_restarts_the_brokers_that_link_to_it(run, moved):
    record = json.loads(run("deploy", "diff", *moved, "--json")[1])
    assert record["moving"] == {"2": ["c.example:99", "d.example"]}
    assert (record["changes"], record["restarts"]) == ([], ["1"])
    assert record["files"][0]["lines"] == ["-address c.example:99", "+address d.example:8883"]
    assert "2: moves from c.example:99 to d.example\n" in run("deploy", "diff", *moved)[1]


def test_a_login_in_an_address_is_never_printed(run, tmp_path):
    """Not even the login of a broker without links."""
    plan = bl.link(bl.Interest.from_lists([["x"], ["y"]]), algorithm="gm")
    for name in ("one", "two"):
        nodes = pa.table({"node": ["0", "1"], "address": ["a", f"admin:secret@{name}"]})
        replace(plan, nodes=nodes).save(tmp_path / name)
    code, out, err = run("deploy", "diff", tmp_path / "one", tmp_path / "two")
    assert (code, "contains a login" in err, "secret" in out + err) == (2, True, False)


def test_a_changed_address_is_another_deployment_in_rabbitmq(run, moved):
    """So the old links stay as they are until they are empty."""
    add, switch, remove = json.loads(run("deploy", "diff", *moved, "--to", "rabbitmq", "--json")[1])["order"]
    uris = [call["body"]["value"]["uri"] for call in add["call"]["1"] if "value" in call.get("body", {})]
    assert any(uri.startswith("amqps://d.example:5671?") for uri in uris)
    assert {call["path"] for calls in switch["call"].values() for call in calls} == {
        "/api/policies/%2F/broadloom.switch"
    }
    assert {call["method"] for calls in remove["call"].values() for call in calls} == {"DELETE"}
    assert remove["when"] == "when the queues of the old links are empty"


def test_a_changed_address_restarts_both_ends_in_nats(run, moved):
    """The broker that listens at another port comes first; there are no sessions."""
    record = json.loads(run("deploy", "diff", *moved, "--to", "nats", "--json")[1])
    assert [step["restart"] for step in record["order"]] == [["1", "2"]]
    assert not [key for step in record["order"] for key in step if key in ("sessions", "cut", "commands")]


def test_nats_restarts_no_broker_for_topics_on_existing_links(run, tmp_path):
    for name, topics in (("one", ["x"]), ("two", ["x", "y"])):
        bl.link(bl.Interest.from_lists([topics, topics]), algorithm="gm").save(tmp_path / name)
    record = json.loads(
        run("deploy", "diff", tmp_path / "one", tmp_path / "two", "--to", "nats", "--json")[1]
    )
    assert record["changes"]
    assert record["restarts"] == record["order"] == []


@given(pairs())
@settings(max_examples=40)
def test_no_step_closes_a_ring_in_nats(pair):
    """After each step the leaf links of each account form a forest; in the end they are the new plan's."""
    both = Settings(tls=False, accounts=True)
    old, new = (Deployment(wiring, both, nats_leafnodes.files(wiring, both)) for wiring in pair)
    if nats_leafnodes.moved_topics(*pair):
        return
    links, account_of = {link.owner: [] for link in (*pair[0].links, *pair[1].links)}, {}
    for wiring in pair:
        account_of |= nats_leafnodes.account_of(wiring)
    for link in pair[0].links:
        links[link.owner].append(link)
    for step in nats_steps(old, new, at_once=False):
        for broker in step["restart"]:
            links[broker] = [link for link in pair[1].links if link.owner == broker]
        for account in set(account_of.values()):
            graph = nx.MultiGraph(
                link[:2]
                for owned in links.values()
                for link in owned
                if any(account_of[text] == account for text in link.out + link.into)
            )
            assert not graph or nx.is_forest(graph)
    ends = sorted(link[:2] for owned in links.values() for link in owned)
    assert ends == sorted(link[:2] for link in pair[1].links)
    event(f"steps: {len(nats_steps(old, new, at_once=False))}")


P = {"p": X}


def test_brokers_that_only_publish_count_in_a_change():
    """Their deliveries count, and are part of the load."""
    ab, ap, bp = WiredLink("a", "b", X, X), WiredLink("a", "p", (), X), WiredLink("b", "p", (), X)
    old, new = (Wiring(("a", "b", "p"), {"a": X, "b": X}, P, links) for links in ((ab, ap), (ab, bp)))
    assert common(old, new).publishes == P
    first, second = order(old, new)
    assert (first.brokers, first.cut) == (("a",), 2)  # messages of p for a and b wait
    assert second.cut == 0


def test_a_publisher_of_one_plan_is_ignored_in_the_other(run, tmp_path):
    """A publisher in neither plan is refused."""
    for name, lists in (("old", [["x"], ["x"], []]), ("new", [["x"], ["x"]])):
        bl.link(bl.Interest.from_lists(lists), algorithm="gm").save(tmp_path / name)
    log = {"publisher": ["2"], "at": ["2026-01-01 00:00:00"], "bytes": [10], "topic": ["x"]}
    pa_csv.write_csv(pa.table(log), tmp_path / "messages.csv")
    diff = ("deploy", "diff", tmp_path / "old", tmp_path / "new", "--messages", tmp_path)
    code, out, _ = run(*diff)
    assert code == 0
    assert "2: leaves; it runs until the last step is done" in out
    assert "0: no more link to 2" in out
    pa_csv.write_csv(pa.table(log | {"publisher": ["9"]}), tmp_path / "messages.csv")
    code, _, err = run(*diff)
    assert (code, "a publisher is '9', not a broker of the plan" in err) == (2, True)


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({}, 0),
        ({"lost": 1}, 1),
        ({"unexpected": 1}, 1),
        *(({"afterwards": {key: 1}}, 1) for key in ("missing", "duplicates", "unexpected")),
    ],
)
def test_faults_after_a_change_show_in_the_exit_code(run, two_plans, monkeypatch, wrong, code):
    clean = {"missing": 0, "duplicates": 0, "unexpected": 0}
    record = {"lost": 0, "doubled": 1, "expected": 9, "unexpected": 0} | wrong
    record["afterwards"] = clean | record.get("afterwards", {})
    monkeypatch.setattr("broadloom.deployment.rehearsal.rehearse_change", lambda *_, **__: record)
    assert run("deploy", "diff", *two_plans[1:], "--rehearse")[0] == code


@pytest.mark.needs("mosquitto")
@pytest.mark.xdist_group("mosquitto")
def test_diff_can_rehearse_the_change(run, two_plans):
    _, old, new = two_plans
    code, out, _ = run("deploy", "diff", old, new, "--rehearse", "--rate", 100, "--json")
    assert code == 0
    assert json.loads(out)["rehearsal"]["batches"] == 3

"""Changes from plan to plan: never a loop on the way, each broker once, next to nothing lost."""

import json

import pytest
from deploy_strategies import plans
from hypothesis import given, settings
from hypothesis import strategies as st

import broadloom as bl
from broadloom.deployment import rabbitmq
from broadloom.deployment.check import would_loop
from broadloom.deployment.diff import changes, order
from broadloom.deployment.rewiring import rehearse_change
from broadloom.deployment.settings import Settings
from broadloom.deployment.trees import plan_trees
from broadloom.deployment.wiring import Link, Wiring, wire

X = ("x",)


def wired(plan):
    return wire(plan, plan_trees(plan))


@st.composite
def pairs(draw):
    """Two plans' wirings; brokers and interests may come and go."""
    return wired(draw(plans())), wired(draw(plans()))


@given(pairs())
@settings(max_examples=60)
def test_no_step_of_a_change_loops_and_the_last_one_is_the_new_plan(pair):
    old, new = pair
    batches = order(old, new)
    links = old.links
    for batch in batches:
        assert not would_loop(batch.links)
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


@given(pairs())
@settings(max_examples=40)
def test_rabbitmq_adds_first_and_removes_what_nobody_needs(pair):
    """All calls of the new plan have been made, and none that it shares was taken back."""
    old, new = pair
    lab = Settings(tls=False)
    adds, removals = rabbitmq.change(old, new, lab)
    for broker in {*old.brokers, *new.brokers}:
        before, after = (rabbitmq.calls(wiring, broker, lab) for wiring in pair)
        made = {rabbitmq.undone(call)["path"] for call in [*before, *adds.get(broker, [])]}
        made -= {call["path"] for call in removals.get(broker, [])}
        assert made == {rabbitmq.undone(call)["path"] for call in after}


@given(pairs())
@settings(max_examples=30)
def test_all_at_once_is_one_batch(pair):
    old, new = pair
    batches = order(old, new, at_once=True)
    assert len(batches) == (1 if changes(old, new) else 0)
    assert all(sorted(batch.links) == sorted(new.links) for batch in batches)


def test_nothing_changes_between_a_plan_and_itself():
    wiring = wired(bl.link(bl.Interest.from_lists([["x"], ["x"]]), algorithm="gm"))
    assert changes(wiring, wiring) == order(wiring, wiring) == []


def test_brokers_whose_changes_close_a_ring_restart_together_or_in_order():
    """Moving x from b-c to a-c: b lets go before a takes over, and the session of a-c waits meanwhile."""
    wants = dict.fromkeys("abc", X)
    ab, bc, ac = (Link(u, v, X, X) for u, v in ("ab", "bc", "ac"))
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
        found.append(bl.link(interest, weights, name))
        found[-1].save(tmp_path / name)
    return found, tmp_path / "grmaw", tmp_path / "gm"


@pytest.mark.needs("mosquitto")
@pytest.mark.xdist_group("mosquitto")
def test_a_change_under_load_loses_next_to_nothing(two_plans):
    """And when it is done every message comes once; a loop on the way would double everything."""
    (old, new), _, _ = two_plans
    told = rehearse_change(wired(old), wired(new))
    assert told["afterwards"] == {"expected": 151, "missing": 0, "duplicates": 0, "unexpected": 0}
    assert told["unexpected"] == 0
    assert told["lost"] <= 0.02 * told["expected"]
    assert told["doubled"] <= 0.3 * told["expected"]


@pytest.mark.parametrize("target", ["mosquitto", "rabbitmq", "nats"])
def test_diff_says_what_changes_and_who_restarts(run, two_plans, target):
    _, old, new = two_plans
    code, out, _ = run("deploy", "diff", old, new, "--to", target, "--json")
    assert code == 0
    told = json.loads(out)
    assert told["changes"]
    assert bool(told["restarts"]) == (target != "rabbitmq")
    assert "step 1: " in run("deploy", "diff", old, new, "--to", target)[1]
    assert run("deploy", "diff", old, old, "--to", target)[:2] == (0, "nothing changes\n")


@pytest.mark.needs("mosquitto")
@pytest.mark.xdist_group("mosquitto")
def test_diff_rehearses(run, two_plans):
    _, old, new = two_plans
    code, out, _ = run("deploy", "diff", old, new, "--rehearse", "--rate", 100, "--json")
    assert code == 0
    assert json.loads(out)["rehearsal"]["batches"] == 3

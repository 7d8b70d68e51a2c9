"""What-if session: repairs are those of maintain, undo gives the same bytes back, scripts replay."""

import random
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

import broadloom as bl
from broadloom import InputError
from broadloom.cli import main
from broadloom.console import WhatIfSession, operation_of
from broadloom.console.what_if import changed_links, relinked_plan
from what_if_plans import contents, plan_of, random_operation

KINDS = ("uniform", "sites", "regions", "euclidean", "dense")


@pytest.mark.parametrize("kind", KINDS)
def test_a_failure_is_repaired_as_maintain_does(kind):
    """For every broker, the links added and removed are those of `live.leave`."""
    plan = plan_of(kind)
    names = plan.interest.node_ids
    session = WhatIfSession(plan)
    for broker, name in enumerate(names):
        change = bl.maintain(plan).leave(broker)
        effect = session.do(["fail", "broker", name])
        assert set(effect.added) == {tuple(sorted(names[u] for u in pair)) for pair in change.added.tolist()}
        assert set(effect.removed) == {
            tuple(sorted(names[u] for u in pair)) for pair in change.removed.tolist()
        }
        session.undo()


def test_two_hundred_operations_and_undos_give_the_first_plan(tmp_path):
    """Byte for byte; each situation between connects every topic and keeps its rules."""
    plan = plan_of("dense")
    first = contents(plan, tmp_path / "first")
    session = WhatIfSession(plan)
    rng = random.Random(7)
    done = 0
    while done < 200:
        before = session.situation
        try:
            session.do(random_operation(session, rng))
        except InputError:
            assert session.situation is before
            continue
        done += 1
        situation = session.situation
        assert situation.plan.is_topic_connected()
        names = situation.plan.interest.node_ids
        links = {tuple(sorted(names[b] for b in edge)) for edge in situation.plan.edges.tolist()}
        assert not links & (situation.cut | situation.forbidden)
        up = {pair for pair in situation.pinned - situation.cut if set(pair) <= set(names)}
        assert up <= links
        assert set(names) | set(situation.failed) == set(plan.interest.node_ids)
    for _ in range(200):
        session.undo()
    assert session.plan is plan
    assert contents(session.plan, tmp_path / "again") == first
    with pytest.raises(InputError, match="nothing to undo"):
        session.undo()


def test_a_script_replays_to_the_same_plan(tmp_path, monkeypatch):
    plan = plan_of("regions")
    plan.save(tmp_path / "a plan")
    session = WhatIfSession(bl.Plan.load(tmp_path / "a plan"))
    rng = random.Random(3)
    done = 0
    while done < 25:
        try:
            session.do(random_operation(session, rng))
            done += 1
        except InputError:
            continue
    session.do("relink")
    script = session.script("a plan", "after it")
    monkeypatch.chdir(tmp_path)
    words = shlex.split(script.split("set -eu\n")[1].replace("\\\n", " "))
    assert words[0] == "broadloom"
    with pytest.raises(SystemExit) as stopped:
        main([*words[1:], "--quiet"])
    assert stopped.value.code == 0
    replayed = {path.name: path.read_bytes() for path in (tmp_path / "after it").iterdir()}
    assert contents(session.plan, tmp_path / "own") == replayed


def test_a_relink_is_not_heavier_and_keeps_the_rules():
    plan = plan_of("regions")
    session = WhatIfSession(plan)
    u, v = (plan.interest.node_ids[b] for b in plan.edges[0])
    session.do(["forbid", u, v])
    session.do(["fail", "broker", "broker-3"])
    repaired = session.plan.total_weight
    made = relinked_plan(session.situation)
    effect = session.do("relink", made)
    assert session.plan is made
    assert effect.cost_after <= repaired * (1 + 1e-9)
    assert made.is_topic_connected()
    assert tuple(sorted((u, v))) not in {
        tuple(sorted(made.interest.node_ids[b] for b in edge)) for edge in made.edges.tolist()
    }
    assert made.gap is None or made.gap >= 0


def test_branches_are_independent():
    session = WhatIfSession(plan_of("sites"))
    session.do("fail broker broker-1")
    session.branch("without site 2")
    session.do("fail site site-2")
    session.switch("main")
    assert list(session.situation.failed) == ["broker-1"]
    assert len(session.plan_of("without site 2").interest.node_ids) < len(session.plan.interest.node_ids)
    assert session.branches == ("main", "without site 2")
    for wrong in ("main", " "):
        with pytest.raises(InputError, match="cannot be named"):
            session.branch(wrong)
    with pytest.raises(InputError, match="there is no branch"):
        session.switch("nowhere")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "explode",
        "fail",
        "fail broker",
        "fail broker a b",
        "fail link a a",
        "limit -1",
        "weigh site-1 0",
        "weigh site-1 nan",
        "pin 'a",
    ],
)
def test_wrong_operations_are_refused(text):
    with pytest.raises(InputError):
        operation_of(text)


@pytest.mark.parametrize(
    "text",
    [
        "fail broker nobody",
        "restore broker broker-1",
        "fail site nowhere",
        "restore site site-1",
        "restore link broker-1 broker-2",
        "unpin broker-1 broker-2",
        "allow broker-1 broker-2",
        "move broker-1 nowhere",
        "unsubscribe broker-1 nothing",
    ],
)
def test_operations_that_do_not_apply_change_nothing(text):
    session = WhatIfSession(plan_of("sites"))
    before = session.situation
    with pytest.raises(InputError):
        session.do(text)
    assert session.situation is before


def test_forbidding_all_links_of_a_broker_is_refused():
    interest = bl.Interest.from_lists([["a"], ["a"]], node_ids=["rome", "oslo"])
    session = WhatIfSession(bl.link(interest, algorithm="gm"))
    with pytest.raises(InputError, match="no allowed link connects topic 'a'"):
        session.do("forbid rome oslo")
    assert session.steps == 0


def test_a_broken_plan_is_refused():
    interest = bl.Interest.from_lists([["a"], ["a"]])
    broken = bl.Plan(interest, bl.Weights.uniform(2), bl.Overlay.from_edges(2, []), "by hand")
    with pytest.raises(InputError, match="leaves a topic disconnected"):
        WhatIfSession(broken)


def test_repairs_keep_a_limit_on_links_where_they_can():
    """No broker gets above it, although the repair of maintain alone would put some there."""
    plan = plan_of("sites", nodes=40, topics=12)
    limit = int(plan.overlay.degrees().max()) - 1
    free, bound = WhatIfSession(plan), WhatIfSession(plan)
    above = set(bound.do(f"limit {limit}").above_limit)
    assert above
    others = 0
    for name in plan.interest.node_ids:
        alone = free.do(["fail", "broker", name])
        effect = bound.do(["fail", "broker", name])
        assert bound.plan.is_topic_connected()
        assert effect.newly_above == ()
        assert set(effect.above_limit) <= above
        others += alone.added != effect.added
        free.undo()
        bound.undo()
    assert others > 0


def test_a_limit_that_cannot_be_kept_is_said():
    """Three brokers of one topic need a broker with two links, or two links of a broker that joins."""
    interest = bl.Interest.from_lists([["a"], ["a"], ["a"]], node_ids=["rome", "oslo", "bonn"])
    session = WhatIfSession(bl.link(interest, algorithm="gm"))
    session.do("fail broker oslo")
    session.do("limit 1")
    effect = session.do("restore broker oslo")
    assert session.plan.is_topic_connected()
    assert len(effect.newly_above) == 1
    assert effect.record()["newlyAbove"] == list(effect.newly_above) == list(effect.above_limit)


@given(st.data())
def test_changed_links_are_the_differences_by_name(data):
    """Brokers of the two plans can differ, and have other numbers."""
    plans = []
    for _ in range(2):
        names = data.draw(st.lists(st.sampled_from("abcdef"), unique=True, min_size=1))
        pairs = [(u, v) for u in range(len(names)) for v in range(u + 1, len(names))]
        edges = data.draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
        interest = bl.Interest.from_lists([["t"]] * len(names), node_ids=names)
        overlay = bl.Overlay.from_edges(len(names), edges)
        plans.append(bl.Plan(interest, bl.Weights.uniform(len(names)), overlay, "by hand"))
    before, after = (
        {tuple(sorted(plan.interest.node_ids[b] for b in edge)) for edge in plan.edges.tolist()}
        for plan in plans
    )
    assert changed_links(*plans) == (tuple(sorted(after - before)), tuple(sorted(before - after)))

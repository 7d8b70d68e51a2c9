"""The order of moves: highest gain first, no capacity exceeded, at most `at_once` moves per step."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import broadloom as bl
import naive_moves
from broadloom import InputError
from broadloom.agents.moves.move_plans import MoveRefusedError
from broadloom.agents.moves.move_registry import MoveState


@st.composite
def changes(draw):
    """A small market of whole numbers, two assignments within its capacities, and a number at once."""
    users, brokers, channels = draw(st.integers(0, 7)), draw(st.integers(1, 4)), draw(st.integers(1, 3))
    whole = st.integers(0, 5)

    def matrix(rows, columns, values=whole):
        return np.array(
            draw(st.lists(values, min_size=rows * columns, max_size=rows * columns)), float
        ).reshape(rows, columns)

    core = matrix(brokers, brokers)
    demandless = bl.MarketProblem(
        matrix(users, channels),
        matrix(users, channels, st.booleans()).astype(bool),
        matrix(users, brokers),
        core + core.T,
        capacity=0.0,
        close=True,
    )
    chosen = st.lists(st.integers(0, brokers - 1), min_size=users, max_size=users)
    present, planned = draw(chosen), draw(chosen)
    least = np.maximum(naive_moves.loads(demandless, present), naive_moves.loads(demandless, planned))
    capacity = least + draw(st.sampled_from([0.0, 1.0, 5.0, 100.0]))
    fields = {name: getattr(demandless, name) for name in ("rates", "wants", "access", "core")}
    return bl.MarketProblem(**fields, capacity=capacity), present, planned, draw(st.integers(1, 3))


@settings(max_examples=80)
@given(change=changes())
def test_every_plan_keeps_its_promises(change):
    problem, present, planned, at_once = change
    plan = bl.plan_moves(problem, present, planned, at_once)
    naive_moves.check(problem, present, planned, plan, at_once)
    expected = naive_moves.first_step(problem, present, planned, at_once)
    if expected:
        found = [(int(move.client), round(move.gain, 6)) for move in plan.steps[0]]
        assert sorted(found) == sorted(expected)


def swap(spare, capacity=1.0):
    """Two users who should swap brokers that are both full, and perhaps a third broker."""
    brokers = 3 if spare else 2
    rates, wants = [[0.5], [0.5]], [[1], [1]]
    prices = np.ones((brokers, brokers)) - np.eye(brokers)
    return bl.MarketProblem(rates, wants, np.ones((2, brokers)), prices, [capacity] * brokers)


def test_a_ring_of_full_brokers_is_told_with_what_would_free_it():
    plan = bl.plan_moves(swap(spare=False), [0, 1], [1, 0])
    assert plan.steps == ()
    assert [move.client for move in plan.blocked] == ["0", "1"]
    assert plan.advice == (
        "2 users wait for each other's room; 1 more capacity at '1', or 1 at a spare broker, "
        "would let '0' move"
    )
    assert "2 blocked" in plan.summary()


def test_a_ring_is_opened_by_a_spare_broker():
    plan = bl.plan_moves(swap(spare=True), [0, 1], [1, 0])
    assert not plan.blocked
    assert [(move.client, move.home, move.to) for step in plan.steps for move in step] == [
        ("0", "0", "2"),
        ("1", "1", "0"),
        ("0", "2", "1"),
    ]


def test_nothing_to_do():
    plan = bl.plan_moves(swap(spare=False), [0, 1], [0, 1])
    assert (plan.steps, plan.blocked, plan.move_count) == ((), (), 0)
    assert bl.run_moves(plan, Mover()) == {}


def test_plans_that_cannot_be():
    for present, planned, at_once, words in (
        ([0, 1], [0, 0], 1, "overloads a broker by 1"),
        ([0, 1], [0, 7], 1, "user '1' is at broker 7"),
        ([0], [0, 1], 1, "give one broker per user"),
        ([0, 1], [1, 0], 0, "at_once is 0"),
    ):
        with pytest.raises(InputError, match=words):
            bl.plan_moves(swap(spare=False), present, planned, at_once)


def test_a_present_overload_is_relieved():
    """Who is at a broker that carries too much may leave, and nobody comes."""
    plan = bl.plan_moves(swap(spare=True), [0, 0], [1, 2], at_once=1)
    assert plan.move_count == 2


def test_a_plan_is_read_as_it_was_written(tmp_path):
    plan = bl.plan_moves(swap(spare=True), [0, 1], [1, 0])
    plan.save(tmp_path / "moves")
    again = bl.MovePlan.load_from(tmp_path / "moves")
    assert again == plan
    assert again.key == plan.key
    other = bl.plan_moves(swap(spare=True), [0, 1], [1, 0])
    assert other == plan
    assert other.key != plan.key, "a plan like it is asked for anew"
    with pytest.raises(InputError, match="exists already"):
        plan.save(tmp_path / "moves")
    (tmp_path / "moves" / "moves.json").write_text("[]")
    with pytest.raises(InputError, match="not a plan of moves"):
        bl.MovePlan.load_from(tmp_path / "moves")
    with pytest.raises(InputError, match="cannot be read"):
        bl.MovePlan.load_from(tmp_path)


class Mover:
    """Makes moves at once, except for clients that decline or are unknown."""

    def __init__(self, decline=(), unknown=(), slow=(), stay=()):
        self.decline, self.unknown, self.slow, self.stay = decline, unknown, slow, stay
        self.asked = []

    def request_to_move(self, client, to, key=""):  # noqa: ARG002
        """Note it."""
        if client in self.unknown:
            raise MoveRefusedError("the agent says: no")
        if key not in self.asked:
            self.asked.append(key)
        return {"id": client}

    def move(self, move):
        """It is over."""
        if move in self.slow:
            return {"state": str(MoveState.REPLICATED)}
        if move in self.stay:
            return {"state": str(MoveState.STAYING)}
        return {"state": str(MoveState.DECLINED if move in self.decline else MoveState.REDIRECTED)}


def test_who_declines_keeps_its_room():
    """The second user has no room when the first one stays, and the third step has nobody to bring back."""
    plan = bl.plan_moves(swap(spare=True), [0, 1], [1, 0])
    assert bl.run_moves(plan, Mover()) == {"redirected": 3}
    assert bl.run_moves(plan, Mover(decline=["0"])) == {"declined": 1, "no_room": 2}
    assert bl.run_moves(plan, Mover(unknown=["0"])) == {"refused": 1, "no_room": 2}


def test_who_stays_until_later_is_not_waited_for():
    """It keeps its room at both brokers, since it may come at any time; the others go on."""
    plan = bl.plan_moves(swap(spare=True), [0, 1], [1, 0])
    assert bl.run_moves(plan, Mover(stay=["0"])) == {"staying": 1, "no_room": 2}
    one = bl.MovePlan(((("a", "h", "f", 1.0, 1.0), ("b", "h", "f", 1.0, 1.0)),))
    assert bl.run_moves(one, Mover(stay=["a"])) == {"staying": 1, "redirected": 1}


def test_a_run_is_stopped_and_taken_up_again():
    """What is under way is the agent's; a second run asks for the same moves by the same keys."""
    plan = bl.plan_moves(swap(spare=True), [0, 1], [1, 0])
    mover, asked = Mover(slow=["1"]), []
    stop = lambda: len(mover.asked) == 2  # noqa: E731
    assert bl.run_moves(plan, mover, stop, sleep=asked.append) == {
        "redirected": 1,
        "under_way": 1,
        "not_begun": 1,
    }
    mover.slow = ()
    before = list(mover.asked)
    assert bl.run_moves(plan, mover) == {"redirected": 3}
    assert mover.asked[:2] == before
    assert len(mover.asked) == 3

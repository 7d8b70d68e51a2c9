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
    """A small market of whole numbers, two assignments within its capacities, and a limit at once."""
    users, brokers, channels = draw(st.integers(0, 7)), draw(st.integers(1, 4)), draw(st.integers(1, 3))
    whole = st.integers(0, 5)

    def matrix(rows, columns, values=whole):
        return np.array(
            draw(st.lists(values, min_size=rows * columns, max_size=rows * columns)), float
        ).reshape(rows, columns)

    core = matrix(brokers, brokers)
    unlimited = bl.MarketProblem(
        matrix(users, channels),
        matrix(users, channels, st.booleans()).astype(bool),
        matrix(users, brokers),
        core + core.T,
        capacity=0.0,
        close=True,
    )
    assignments = st.lists(st.integers(0, brokers - 1), min_size=users, max_size=users)
    present, planned = draw(assignments), draw(assignments)
    least = np.maximum(naive_moves.loads(unlimited, present), naive_moves.loads(unlimited, planned))
    capacity = least + draw(st.sampled_from([0.0, 1.0, 5.0, 100.0]))
    fields = {name: getattr(unlimited, name) for name in ("rates", "wants", "access", "core")}
    return bl.MarketProblem(**fields, capacity=capacity), present, planned, draw(st.integers(1, 3))


@settings(max_examples=80)
@given(change=changes())
def test_every_plan_respects_capacities_and_starts_with_the_best_moves(change):
    problem, present, planned, at_once = change
    plan = bl.plan_moves(problem, present, planned, at_once)
    naive_moves.check(problem, present, planned, plan, at_once)
    expected = naive_moves.first_step(problem, present, planned, at_once)
    if expected:
        found = [(int(move.client), round(move.gain, 6)) for move in plan.steps[0]]
        assert sorted(found) == sorted(expected)


def swap(spare, capacity=1.0):
    """Two users that should swap two full brokers, and optionally a spare broker."""
    brokers = 3 if spare else 2
    rates, wants = [[0.5], [0.5]], [[1], [1]]
    prices = np.ones((brokers, brokers)) - np.eye(brokers)
    return bl.MarketProblem(rates, wants, np.ones((2, brokers)), prices, [capacity] * brokers)


def test_a_cycle_of_full_brokers_is_reported_with_advice():
    plan = bl.plan_moves(swap(spare=False), [0, 1], [1, 0])
    assert plan.steps == ()
    assert [move.client for move in plan.blocked] == ["0", "1"]
    assert plan.advice == (
        "2 users wait for each other's capacity; 1 more capacity at '1', or 1 at a spare broker, "
        "would let '0' move"
    )
    assert "2 blocked" in plan.summary()


def test_a_spare_broker_resolves_a_cycle_of_full_brokers():
    plan = bl.plan_moves(swap(spare=True), [0, 1], [1, 0])
    assert not plan.blocked
    assert [(move.client, move.home, move.to) for step in plan.steps for move in step] == [
        ("0", "0", "2"),
        ("1", "1", "0"),
        ("0", "2", "1"),
    ]


def test_equal_assignments_need_no_moves():
    plan = bl.plan_moves(swap(spare=False), [0, 1], [0, 1])
    assert (plan.steps, plan.blocked, plan.move_count) == ((), (), 0)
    assert bl.run_moves(plan, Mover()) == {}


def test_invalid_assignments_and_limits_are_refused():
    for present, planned, at_once, message in (
        ([0, 1], [0, 0], 1, "overloads a broker by 1"),
        ([0, 1], [0, 7], 1, "user '1' is at broker 7"),
        ([0], [0, 1], 1, "give one broker per user"),
        ([0, 1], [1, 0], 0, "at_once is 0"),
    ):
        with pytest.raises(InputError, match=message):
            bl.plan_moves(swap(spare=False), present, planned, at_once)


def test_users_can_leave_an_overloaded_broker():
    plan = bl.plan_moves(swap(spare=True), [0, 0], [1, 2], at_once=1)
    assert plan.move_count == 2


def test_a_plan_survives_saving_and_loading(tmp_path):
    plan = bl.plan_moves(swap(spare=True), [0, 1], [1, 0])
    plan.save(tmp_path / "moves")
    again = bl.MovePlan.load_from(tmp_path / "moves")
    assert again == plan
    assert again.key == plan.key
    other = bl.plan_moves(swap(spare=True), [0, 1], [1, 0])
    assert other == plan
    assert other.key != plan.key, "an equal plan has keys of its own"
    with pytest.raises(InputError, match="exists already"):
        plan.save(tmp_path / "moves")
    (tmp_path / "moves" / "moves.json").write_text("[]")
    with pytest.raises(InputError, match="not a plan of moves"):
        bl.MovePlan.load_from(tmp_path / "moves")
    with pytest.raises(InputError, match="cannot be read"):
        bl.MovePlan.load_from(tmp_path)


class Mover:
    """Fake operator whose moves end at once, except for the clients that it lists."""

    def __init__(self, decline=(), unknown=(), slow=(), stay=()):
        self.decline, self.unknown, self.slow, self.stay = decline, unknown, slow, stay
        self.requested = []

    def request_to_move(self, client, to, key=""):  # noqa: ARG002
        """Record the request."""
        if client in self.unknown:
            raise MoveRefusedError("the agent says: no")
        if key not in self.requested:
            self.requested.append(key)
        return {"id": client}

    def move(self, move):
        """The state of the move."""
        if move in self.slow:
            return {"state": str(MoveState.REPLICATED)}
        if move in self.stay:
            return {"state": str(MoveState.STAYING)}
        return {"state": str(MoveState.DECLINED if move in self.decline else MoveState.REDIRECTED)}


def test_moves_into_the_capacity_of_a_client_that_declines_are_skipped():
    """The second user does not fit while the first one stays, and the third step has nothing to do."""
    plan = bl.plan_moves(swap(spare=True), [0, 1], [1, 0])
    assert bl.run_moves(plan, Mover()) == {"redirected": 3}
    assert bl.run_moves(plan, Mover(decline=["0"])) == {"declined": 1, "no_room": 2}
    assert bl.run_moves(plan, Mover(unknown=["0"])) == {"refused": 1, "no_room": 2}


def test_a_run_does_not_wait_for_a_client_that_stays():
    """Its capacity is reserved at both brokers, since it can move at any time; other moves go on."""
    plan = bl.plan_moves(swap(spare=True), [0, 1], [1, 0])
    assert bl.run_moves(plan, Mover(stay=["0"])) == {"staying": 1, "no_room": 2}
    one = bl.MovePlan(((("a", "h", "f", 1.0, 1.0), ("b", "h", "f", 1.0, 1.0)),))
    assert bl.run_moves(one, Mover(stay=["a"])) == {"staying": 1, "redirected": 1}


def test_a_stopped_run_can_be_resumed():
    """Active moves stay with the agent; a second run requests the same moves by the same keys."""
    plan = bl.plan_moves(swap(spare=True), [0, 1], [1, 0])
    mover, sleeps = Mover(slow=["1"]), []
    stop = lambda: len(mover.requested) == 2  # noqa: E731
    assert bl.run_moves(plan, mover, stop, sleep=sleeps.append) == {
        "redirected": 1,
        "under_way": 1,
        "not_begun": 1,
    }
    mover.slow = ()
    before = list(mover.requested)
    assert bl.run_moves(plan, mover) == {"redirected": 3}
    assert mover.requested[:2] == before
    assert len(mover.requested) == 3

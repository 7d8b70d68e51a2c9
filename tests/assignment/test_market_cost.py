"""Cost of a market: measure, cost ledger and naive version agree under every core, also after moves."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import broadloom as bl
import naive_market as naive
from broadloom.assignment.market import MovingCost
from broadloom.assignment.market.cost_ledger import (
    assignment_cost,
    core_of,
    move_user,
    open_ledger,
    traffic_of,
)
from broadloom.measures import market_cost, market_flows, market_metrics
from broadloom.model import CORES
from market_strategies import markets


@pytest.mark.parametrize("core", CORES)
@settings(max_examples=40, deadline=None)
@given(problem=markets(), data=st.data())
def test_cost_and_flows_equal_the_naive_ones(core, problem, data):
    """Access plus core cost, and the flow on each link, are those of the naive version."""
    broker_of = data.draw(
        st.lists(
            st.integers(0, problem.broker_count - 1), min_size=problem.user_count, max_size=problem.user_count
        )
    )
    market = naive.Market(problem)
    assert market_cost(problem, broker_of, core).total == pytest.approx(naive.cost(market, broker_of, core))
    flows = market_flows(problem, broker_of, core)
    assert np.sum(flows * problem.core) / 2 == pytest.approx(market_cost(problem, broker_of, core).core)
    if (
        len(set(np.triu(problem.core, 1).ravel()))
        == 1 + problem.broker_count * (problem.broker_count - 1) // 2
    ):
        for (u, v), rate in naive.flows(market, broker_of, core).items():
            assert flows[u, v] == flows[v, u] == pytest.approx(rate)


@pytest.mark.parametrize("core", CORES)
@settings(max_examples=40, deadline=None)
@given(problem=markets(), data=st.data())
def test_a_move_changes_the_cost_as_predicted(core, problem, data):
    """`change` is the difference of two full evaluations, and `move` keeps the running cost correct."""
    broker = st.integers(0, problem.broker_count - 1)
    moving = MovingCost(
        problem, data.draw(st.lists(broker, min_size=problem.user_count, max_size=problem.user_count)), core
    )
    for _ in range(5):
        user, to = data.draw(st.integers(0, problem.user_count - 1)), data.draw(broker)
        before, predicted = moving.cost.total, moving.change(user, to)
        moving.move(user, to)
        now = market_cost(problem, moving.broker_of, core).total
        assert moving.cost.total == pytest.approx(now, abs=1e-9)
        assert predicted == pytest.approx(now - before, rel=1e-6, abs=1e-8 * (1 + before))


@pytest.mark.parametrize("core", CORES)
@settings(max_examples=40, deadline=None)
@given(problem=markets(users=10, brokers=6), data=st.data())
def test_the_ledger_and_the_measure_agree(core, problem, data):
    """The algorithms' ledger has the costs and loads of the measure, when opened and after moves."""
    broker = st.integers(0, problem.broker_count - 1)
    broker_of = data.draw(st.lists(broker, min_size=problem.user_count, max_size=problem.user_count))
    model, traffic = core_of(problem, core), traffic_of(problem)
    ledger = open_ledger(problem, broker_of, model)
    for _ in range(4):
        _assert_agree(problem, ledger, core)
        move_user(
            model, traffic, ledger, data.draw(st.integers(0, problem.user_count - 1)), data.draw(broker)
        )
    _assert_agree(problem, ledger, core)


def _assert_agree(problem, ledger, core):
    measured = market_metrics(problem, ledger.broker_of, core)
    cost = market_cost(problem, ledger.broker_of, core)
    assert np.sum(ledger.cost) == pytest.approx(measured["core_cost"], rel=1e-12, abs=1e-12)
    assert assignment_cost(problem, ledger.broker_of, core) == pytest.approx(cost.total, rel=1e-12)
    assert np.sum(ledger.readers > 0) == measured["memberships"]
    assert ledger.load.max() == pytest.approx(measured["max_load"], rel=1e-12, abs=1e-12)
    flows = market_flows(problem, ledger.broker_of, core)
    assert np.sum(ledger.cost) == pytest.approx(np.sum(flows * problem.core) / 2, rel=1e-9, abs=1e-12)


def test_demand_is_the_rate_sent_and_received():
    """A user does not receive its own messages, and messages that only their sender wants do not count."""
    market = bl.MarketProblem([[2, 5], [1, 0]], [[1, 1], [1, 0]], [[1], [1]], [[0]], 100)
    assert market.rates.tolist() == [[2, 0], [1, 0]]
    assert market.sent.tolist() == [2, 1]
    assert market.received.tolist() == [1, 2]


def test_a_spanning_tree_is_not_always_the_cheapest_tree():
    """The paper's claim fails: a broker in the middle, without users, would make the tree cheaper."""
    core = [[0, 2, 2, 1.1], [2, 0, 2, 1.1], [2, 2, 0, 1.1], [1.1, 1.1, 1.1, 0]]
    market = bl.MarketProblem([[1], [0], [0]], [[0], [1], [1]], np.zeros((3, 4)), core, 100)
    assert market_cost(market, [0, 1, 2], "mst").core == 4
    assert market_cost(market, [0, 1, 2], "tree").core == pytest.approx(3.3)


@pytest.mark.parametrize("core", CORES)
def test_awkward_markets_cost_nothing(core):
    """No users, one broker, no channels, channels without readers."""
    empty = bl.MarketProblem(np.empty((0, 3)), np.empty((0, 3)), np.empty((0, 2)), np.zeros((2, 2)), 1)
    assert market_cost(empty, [], core).total == 0
    alone = bl.MarketProblem([[1, 2]], [[0, 0]], [[3]], [[0]], 1)
    assert market_cost(alone, [0], core).total == 0
    bare = bl.MarketProblem(np.empty((2, 0)), np.empty((2, 0)), np.ones((2, 2)), np.zeros((2, 2)), 1)
    assert market_metrics(bare, [0, 1], core)["cost"] == 0


@pytest.mark.parametrize(("user", "to"), [(0, 5), (50, 0), (0, -1), (-1, 0)])
def test_moves_of_unknown_users_or_brokers_are_refused(user, to):
    moving = MovingCost(bl.workload.market(users=50, brokers=5, channels=8), np.zeros(50, int))
    for call in (moving.change, moving.move):
        with pytest.raises(bl.InputError, match="users are 0 to 49, brokers 0 to 4"):
            call(user, to)

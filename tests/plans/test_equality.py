"""Results compare by value: a loaded or copied result equals the original, and any change makes it differ."""

import json
import pickle
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

import broadloom as bl
from assign_strategies import problems
from broadloom import InputError, Overlay, Plan, Weights
from market_strategies import markets
from strategies import instances


def _saved(result, factory):
    """The result after a round trip through a folder."""
    path = factory.mktemp("results") / "result"
    result.save(path)
    return type(result).load(path)


def _same(one, other):
    assert one == other
    assert hash(one) == hash(other)


@given(instances())
@settings(max_examples=40, deadline=None)
def test_a_plan_equals_its_copies_and_a_second_run(tmp_path_factory, instance):
    plan = bl.link(*instance, algorithm="gm")
    _same(plan, bl.link(*instance, algorithm="gm"))
    _same(plan, pickle.loads(pickle.dumps(plan)))
    _same(plan, _saved(plan, tmp_path_factory))
    assert plan.weights == _saved(plan, tmp_path_factory).weights


def _plan():
    interest = bl.Interest.from_lists([[0], [0], [0]])
    nodes = pa.table({"node": ["0", "1", "2"], "site": ["a", None, "b"], "lat": [1.0, None, float("nan")]})
    weights = Weights.euclidean([[0.0], [1.0], [3.0]])
    return replace(bl.link(interest, weights, algorithm="gm"), nodes=nodes, lower_bound=1.0)


@pytest.mark.parametrize(
    "change",
    [
        {"interest": bl.Interest.from_lists([[0], [0], []], topics=1)},
        {"weights": Weights.euclidean([[0.0], [1.0], [4.0]])},
        {"overlay": Overlay.from_edges(3, [(1, 2), (0, 1)])},
        {"algorithm": "grmaw"},
        {"seed": 1},
        {"options": {"max_degree": 3}},
        {"lower_bound": 2.0},
        {"lower_bound": None},
        {"notes": {"x": 1}},
        {"nodes": None},
        {"nodes": pa.table({"node": ["0", "1", "2"], "site": ["a", None, "c"]})},
    ],
    ids=lambda change: next(iter(change)),
)
def test_each_part_of_a_plan_counts(change):
    plan = _plan()
    _same(plan, replace(plan))
    assert plan != replace(plan, **change)


def test_nodes_with_only_ids_are_the_same_as_no_nodes():
    plan = replace(_plan(), nodes=None)
    _same(plan, replace(plan, nodes=pa.table({"node": ["0", "1", "2"]})))


def test_a_plan_equals_only_plans():
    plan = _plan()
    assert plan != "plan"
    assert plan != plan.overlay
    assert len({plan, replace(plan), replace(plan, seed=1)}) == 2


@given(problems())
@settings(max_examples=30, deadline=None)
def test_an_assignment_equals_its_copies_and_a_second_run(tmp_path_factory, problem):
    result = bl.assign(problem, "closest")
    _same(result, bl.assign(problem, "closest"))
    _same(result, pickle.loads(pickle.dumps(result)))
    assert problem == pickle.loads(pickle.dumps(problem))
    if result._fault() is None:
        _same(result, _saved(result, tmp_path_factory))


def test_each_part_of_an_assignment_counts():
    problem = bl.AssignmentProblem([0], [[1], [2]], [-1, -1], [[3], [0]], [[0], [5]], [[1], [7]])
    result = bl.assign(problem, "closest")
    other = problem.replace(beta_max=2.5)
    assert problem != other
    assert problem != problem.replace(density=bl.Density([[0, 1, 8]], [3.0, 1.0]))
    assert problem == problem.replace(broker_ids=["0", "1"])
    assert problem != problem.replace(broker_ids=["0", "2"])
    for change in (
        {"problem": other},
        {"broker_of": np.flip(result.broker_of)},
        {"filters": result.filters[::-1]},
        {"algorithm": "gr"},
        {"notes": {"x": 1}},
    ):
        assert result != replace(result, **change), change


@given(markets())
@settings(max_examples=40, deadline=None)
def test_a_saved_market_result_needs_nothing_else(tmp_path_factory, market):
    """The folder holds the whole problem, so that a loaded result equals the saved one, bit for bit."""
    result = bl.assign(market, "greedy-packing", core="pair")
    again = _saved(result, tmp_path_factory)
    _same(result, again)
    assert again.problem == market
    assert again.cost == result.cost
    assert again.metrics() == result.metrics()


def test_each_part_of_a_market_result_counts():
    market = bl.workload.market(users=12, brokers=3, channels=4, seed=1)
    result = bl.assign(market, "greedy-packing")
    for change in (
        {"problem": replace(market, capacity=market.capacity * 2, close=False)},
        {"broker_of": (result.broker_of + 1) % 3},
        {"core": "tree"},
        {"seed": 5},
    ):
        assert result != replace(result, **change), change


def test_markets_of_unusual_shapes_and_names_are_loaded(tmp_path):
    empty = bl.MarketProblem(np.zeros((0, 2)), np.zeros((0, 2)), np.zeros((0, 3)), np.zeros((3, 3)), 1)
    no_channels = bl.MarketProblem(
        np.zeros((2, 0)), np.zeros((2, 0)), [[1], [2]], [[0]], 1, ["é", "<b>"], ["7"]
    )
    for number, market in enumerate((empty, no_channels)):
        result = bl.MarketResult(market, np.zeros(market.user_count, np.int32), algorithm="by hand")
        result.save(tmp_path / str(number))
        _same(result, bl.MarketResult.load(tmp_path / str(number)))


def test_an_option_that_is_an_array_compares_and_survives(tmp_path):
    market = bl.workload.market(users=20, brokers=4, channels=8, seed=1)
    start = bl.assign(market, "random").broker_of
    result = bl.assign(market, "migration", start=start)
    result.save(tmp_path / "plan")
    _same(result, bl.MarketResult.load(tmp_path / "plan"))


def test_a_market_of_an_older_version_is_loaded_with_its_problem(tmp_path):
    """Folders without the market's tables load as before, and say what they need."""
    market = bl.workload.market(users=20, brokers=4, channels=8, seed=1)
    result = bl.assign(market, core="pair", seed=3)
    path = tmp_path / "plan"
    result.save(path)
    for name in ("market_users", "market_brokers"):
        (path / f"{name}.parquet").unlink()
    record = json.loads((path / "plan.json").read_text())
    del record["channels"]
    (path / "plan.json").write_text(json.dumps(record))
    _same(result, bl.MarketResult.load(path, market))
    with pytest.raises(InputError, match="an older version wrote it; pass the market as problem"):
        bl.MarketResult.load(path)


def test_a_damaged_market_is_refused(tmp_path):
    market = bl.workload.market(users=20, brokers=4, channels=8, seed=1)
    bl.assign(market, "greedy-packing").save(tmp_path / "plan")
    users = pa.parquet.read_table(tmp_path / "plan" / "market_users.parquet")
    for damaged in (users.drop_columns("rates"), users.slice(0, 19)):
        pa.parquet.write_table(damaged, tmp_path / "plan" / "market_users.parquet")
        with pytest.raises(InputError, match=r"damaged|other users"):
            bl.MarketResult.load(tmp_path / "plan")


def test_plans_of_live_overlays_compare():
    """Two live overlays with the same history have equal plans."""
    plans = []
    for _ in range(2):
        live = bl.maintain(bl.Interest.from_lists([[0], [0, 1], [1]]))
        live.join([0, 1])
        plans.append(live.plan())
    _same(*plans)
    assert isinstance(plans[0], Plan)

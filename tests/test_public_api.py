"""Calls that users rely on keep working as they are written here: names, arguments, defaults and results."""

import inspect

import numpy as np
import pyarrow as pa
import pytest
import scipy.sparse

import broadloom as bl

ROWS = [[0, 2], [2, 5], [0, 5], [5]]
MATRIX = [[0, 1, 2, 3], [1, 0, 4, 5], [2, 4, 0, 6], [3, 5, 6, 0]]
ASSIGN = [
    "gr",
    "gr*",
    "gr-no-latency",
    "closest",
    "closest-unbalanced",
    "balance",
    "slp1",
    "slp",
    "broadloom",
]
MARKET = ["random", "greedy-packing", "clustering", "steiner-mixing", "migration", "ilp", "broadloom"]
LINK = [
    *("broadloom", "trmaw", "gm", "grmaw", "pdmaw", "pdrdmaw", "dcmaw"),
    *("minmax-oda", "low-oda", "cd-oda", "cd-oda-1", "cd-oda-2", "exact"),
]


@pytest.fixture
def interest():
    return bl.Interest.from_lists(ROWS)


def defaults(function):
    return {
        name: one.default
        for name, one in inspect.signature(function).parameters.items()
        if one.default is not inspect.Parameter.empty
    }


def test_interests_from_all_sources():
    table = pa.table({"node": ["a", "b"], "topic": ["t", "t"]})
    assert bl.Interest.from_pairs([0, 1], [0, 0]).node_count == 2
    assert bl.Interest.from_table(table) == bl.Interest.from_table(table.to_pandas())
    assert bl.Interest.from_matrix(scipy.sparse.csr_matrix([[1, 0], [1, 1]])).topic_count == 2


def test_weights_of_all_kinds():
    assert bl.Weights.uniform(4).is_uniform
    assert bl.Weights.dense(MATRIX).node_count == 4
    assert bl.Weights.euclidean([[0.0, 0.0], [3.0, 4.0]]).matrix()[0, 1] == 5
    assert bl.Weights.sites([0, 0, 1], inner=1, outer=10).matrix()[0].tolist() == [0, 1, 10]


def test_plans(interest, tmp_path):
    assert bl.link(interest, weights=None, algorithm=None, seed=0).algorithm == "gm"
    plan = bl.link(interest, bl.Weights.dense(MATRIX))
    assert plan.algorithm == "broadloom"
    assert plan.edges.dtype == np.int32
    assert (plan.edges[:, 0] < plan.edges[:, 1]).all()
    assert {"edges", "mean_degree", "max_degree", "weighted_mean_degree", "total_weight"} <= set(
        plan.metrics()
    )
    assert "mean_diameter" in plan.metrics()
    assert plan.gap == pytest.approx((plan.total_weight - plan.lower_bound) / plan.lower_bound)
    plan.save(tmp_path / "plan")
    assert bl.Plan.load(tmp_path / "plan") == plan
    assert bl.is_topic_connected(interest, plan.edges)
    assert len(plan.to_networkx().edges) == plan.to_table().num_rows == len(plan.edges)
    assert "<table" in plan._repr_html_()


def test_algorithms_are_listed_with_their_properties():
    assert all({"name", "stage", "paper", "objective", "options"} <= set(row) for row in bl.algorithms())
    assert sorted(row["name"] for row in bl.algorithms("link")) == sorted(LINK)


def test_live_overlays(interest):
    wanted = {"weights": None, "rho": 3, "coverage": 3, "seed": 0, "edges": None}
    assert wanted.items() <= defaults(bl.maintain).items()
    live = bl.maintain(interest, None, method="shadow", rho=3, coverage=3, seed=0, edges=None)
    assert bl.maintain(interest, algorithm="shadow").edges.tolist() == live.edges.tolist()
    assert bl.maintain(interest, method="naive", edges=live.edges).edges.tolist() == live.edges.tolist()
    change = live.join([0, 2])
    assert change.node == 4
    assert change.added.shape[1] == change.removed.shape[1] == 2
    assert change.shadow.ndim == 1
    assert change.seconds >= 0
    live.leave(0)
    live.resubscribe(1, [0])
    assert live.metrics()["topic_connected"]
    assert bl.is_topic_connected(live.interest, live.edges)


@pytest.mark.parametrize("algorithm", ASSIGN)
def test_assignments_of_subscribers(algorithm):
    rng = np.random.default_rng(0)
    lo = rng.random((30, 2)) / 2
    brokers, subscribers = rng.random((3, 2)), rng.random((30, 2))
    problem = bl.AssignmentProblem(
        np.zeros(2), brokers, [-1, -1, -1], subscribers, lo, lo + 0.2,
        max_delay=3.0, max_latency=None, alpha=3, beta=1.5, beta_max=1.8, capacity=None, density=None,
    )  # fmt: skip
    result = bl.assign(problem, algorithm=algorithm, seed=0)
    assert result.broker_of.dtype == np.int32
    assert result.broker_of.shape == (30,)
    assert [len(one) <= 3 for one in result.filters] == [True] * 3
    assert {"bandwidth", "delay_rms", "delay_max", "lbf", "load_std"} <= set(result.metrics())
    assert isinstance(result.feasible, bool)
    assert result.lower_bound is None or result.lower_bound <= result.bandwidth


@pytest.mark.parametrize("algorithm", MARKET)
def test_assignments_of_users(algorithm):
    rng = np.random.default_rng(0)
    rates, wants, access = rng.random((6, 3)), rng.random((6, 3)) > 0.5, rng.random((6, 2)) + 0.1
    market = bl.MarketProblem(rates, wants, access, [[0, 1], [1, 0]], [100, 100])
    assert bl.assign(market, algorithm=algorithm, core="mst", seed=0).feasible


def test_generators(interest):
    made = bl.workload.interest(
        nodes=50, topics=200, popularity="zipf", alpha=2.0, sizes=(20, 100), size_law="uniform", seed=0
    )
    assert made.node_count == 50
    assert bl.workload.weights(nodes=50, kind="planar", mean=1.0, seed=0).node_count == 50
    assert all(bl.workload.weights(nodes=50, kind=kind).node_count == 50 for kind in ("sites", "regions"))
    assert len(bl.workload.churn(interest, rounds=10, join=0.5, seed=0)) == 10
    problem = bl.workload.subscribers(
        set=1, subscribers=200, brokers=5, levels=1, interest_skew="high", broad_interests="low", seed=0
    )
    assert len(problem.lo) == 200
    assert bl.workload.market(users=20, brokers=3, channels=8, width=0.1, seed=0).rates.shape == (20, 8)


def test_generators_have_the_promised_defaults():
    wanted = {
        "nodes": 1000,
        "topics": 200,
        "alpha": 2.0,
        "sizes": (20, 100),
        "size_law": "uniform",
        "seed": 0,
    }
    assert wanted.items() <= defaults(bl.workload.interest).items()
    wanted = {"set": 1, "subscribers": 100_000, "brokers": 100, "levels": 1, "interest_skew": "high"}
    assert wanted.items() <= defaults(bl.workload.subscribers).items()
    assert {"users": 10_000, "brokers": 100, "channels": 128}.items() <= defaults(bl.workload.market).items()


def test_errors_have_kinds():
    assert issubclass(bl.InputError, ValueError)
    kinds = (bl.InputError, bl.MissingExtraError, bl.StorageError, bl.UnreachableError, bl.InternalError)
    assert all(issubclass(kind, bl.BroadloomError) for kind in kinds)

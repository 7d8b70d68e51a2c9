"""Exact: the optimum on tiny instances, the papers' ratios to it, valid bounds when it stops early."""

import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import broadloom as bl
import naive
import strategies
from broadloom.linking import ALGORITHMS
from broadloom.linking.exact_overlay import MOST_PAIRS, binding_topics, most_violated_partition
from shapes import SHAPES

# The most that the bound of an optimum lies below it, relative.
SAFETY = 1e-6

tiny = strategies.instances(max_nodes=7, max_topics=4)


def small(nodes: int, topics: int, seed: int, popularity: str = "unif") -> tuple[bl.Interest, bl.Weights]:
    interest = bl.workload.interest(
        nodes=nodes, topics=topics, popularity=popularity, sizes=(2, 6), seed=seed
    )
    return interest, bl.workload.weights(nodes=nodes, kind="planar", mean=1.0, seed=seed)


def harmonic(m: int) -> float:
    return math.fsum(1 / i for i in range(1, m + 1))


def weight_of(weights: bl.Weights, edges: list[tuple[int, int]]) -> float:
    ends = np.array(edges, int).reshape(-1, 2)
    return math.fsum(weights.of(ends[:, 0], ends[:, 1]))


# The optimum.


@given(tiny)
@settings(max_examples=300)
def test_equals_the_exhaustive_optimum(instance):
    interest, weights = instance
    value, _ = naive.optimum(strategies.lists_of(interest), weights.matrix().tolist())
    plan = bl.link(interest, weights, algorithm="exact")
    assert plan.total_weight == pytest.approx(value, rel=1e-9)
    assert plan.lower_bound <= value * (1 + 1e-15)
    assert plan.lower_bound >= value * (1 - SAFETY)
    assert plan.notes["optimal"]


@given(tiny)
def test_bounds_are_below_and_every_algorithm_above(instance):
    """Dual of PdMAW <= optimum <= every overlay that any algorithm builds."""
    interest, weights = instance
    best = bl.link(interest, weights, algorithm="exact").total_weight
    _, dual = naive.pdmaw(strategies.lists_of(interest), weights.matrix().tolist())
    assert dual <= best * (1 + 1e-12)
    for algorithm in ALGORITHMS:
        plan = bl.link(interest, weights, algorithm=algorithm.name)
        assert plan.total_weight >= best * (1 - 1e-12), algorithm.name
        assert plan.lower_bound is None or plan.lower_bound <= best * (1 + 1e-12), algorithm.name


@pytest.mark.parametrize("shape", SHAPES)
def test_awkward_shapes_are_solved_to_the_optimum(shape):
    interest = bl.Interest.from_lists(SHAPES[shape])
    plan = bl.link(interest, algorithm="exact")
    assert plan.notes["optimal"]
    assert plan.lower_bound == plan.total_weight == len(plan.edges)
    assert len(plan.edges) <= len(bl.link(interest, algorithm="gm").edges)


@pytest.mark.parametrize("popularity", ["unif", "zipf", "expo"])
@pytest.mark.parametrize("uniform", [True, False])
def test_thirty_nodes_are_solved(popularity, uniform):
    """Beyond what can be searched exhaustively; whole weights give a whole bound."""
    interest, weights = small(30, 15, seed=1, popularity=popularity)
    plan = bl.link(interest, None if uniform else weights, algorithm="exact")
    assert plan.notes["optimal"]
    assert plan.gap <= SAFETY
    if uniform:
        assert plan.lower_bound == len(plan.edges)


@pytest.mark.parametrize("factor", [1e-9, 1.0, 1e9])
def test_the_unit_of_the_weights_does_not_matter(factor):
    """The solver's tolerances are absolute; ours are not."""
    interest, weights = small(20, 10, seed=3)
    plan = bl.link(interest, weights, algorithm="exact")
    scaled = bl.link(interest, weights.scaled(factor), algorithm="exact")
    assert scaled.edges.tolist() == plan.edges.tolist()
    assert scaled.lower_bound == pytest.approx(plan.lower_bound * factor, rel=1e-9)


def test_edges_ascend_and_are_the_same_in_every_process():
    interest, weights = small(25, 12, seed=5)
    edges = bl.link(interest, weights, algorithm="exact").edges
    assert edges.tolist() == sorted(edges.tolist())
    program = (
        "import broadloom as bl\n"
        "interest = bl.workload.interest(nodes=25, topics=12, popularity='unif', sizes=(2, 6), seed=5)\n"
        "weights = bl.workload.weights(nodes=25, kind='planar', mean=1.0, seed=5)\n"
        "print(bl.link(interest, weights, algorithm='exact').edges.tolist())\n"
    )
    other = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert other.stdout.strip() == str(edges.tolist())


# The papers' ratios, on instances beyond exhaustive search.


@pytest.mark.parametrize("popularity", ["unif", "zipf"])
@pytest.mark.parametrize("seed", range(4))
def test_ratios_of_paper_1(seed, popularity):
    """TrMAW within |T| (Lemma 1), GrMAW within H(max mu) (Theorem 2), the primal-duals as Lemmas 8 and 9."""
    interest, weights = small(14, 8, seed, popularity)
    lists, matrix = strategies.lists_of(interest), weights.matrix().tolist()
    best = bl.link(interest, weights, algorithm="exact").total_weight
    most = max(naive.contributions(lists, []).values())
    primal_dual, dual = naive.pdmaw(lists, matrix)
    assert weight_of(weights, naive.trmaw(lists, matrix)) <= len(naive.topics(lists)) * best
    assert weight_of(weights, naive.grmaw(lists, matrix)) <= harmonic(most) * best
    assert dual <= best
    for overlay in (primal_dual, naive.pdrdmaw(lists, matrix)):
        assert weight_of(weights, overlay) <= primal_dual_ratio(lists, primal_dual, overlay) * best


def primal_dual_ratio(lists: list[list[int]], chosen: list, overlay: list) -> float:
    """Paper 1, Eq. 24: the largest (sum of mu_X(e) over what the overlay adds to X) / mu_X(all of it).

    Over the sets X that PdMAW has chosen at each step, not over all sets as in the Lemmas, so it is sharper.
    """
    ratios = []
    for i in range(len(chosen)):
        mu = naive.contributions(lists, chosen[:i])
        added = sum(mu.get(e, 0) for e in overlay if e not in chosen[:i])
        ratios.append(added / naive.to_merge(lists, chosen[:i]))
    return max(ratios)


@pytest.mark.parametrize("k", [1, 2, 3, 6])
@pytest.mark.parametrize("seed", range(4))
def test_ratio_of_low_oda(seed, k):
    """Paper 2, Theorem 1: at most k ln(C_start) times the least number of edges, rounded up; GM is k = 1."""
    interest, _ = small(14, 8, seed)
    lists = strategies.lists_of(interest)
    best = len(bl.link(interest, algorithm="exact").edges)
    assert len(naive.low_oda(lists, k)) <= math.ceil(k * best * math.log(interest.subscription_count))
    assert len(naive.gm(lists)) <= harmonic(max(naive.contributions(lists, []).values())) * best


# Stopping early.


@pytest.mark.parametrize("limit", [{"node_limit": 1}, {"time_limit": 1e-6}])
def test_a_limit_stops_with_the_best_known_and_a_true_bound(limit):
    interest, weights = small(40, 20, seed=2, popularity="expo")
    plan = bl.link(interest, weights, algorithm="exact", **limit)
    best = bl.link(interest, weights, algorithm="exact")
    assert best.notes["optimal"]
    assert not plan.notes["optimal"]
    assert best.summary().endswith("connected, optimal")
    assert plan.summary().endswith("stopped before the best was proven")
    assert plan.lower_bound <= best.total_weight <= plan.total_weight


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [("node_limit", 0, "a whole number from 1"), ("time_limit", -1, "a number from 0")],
)
def test_refuses_wrong_limits(option, value, expected):
    with pytest.raises(bl.InputError, match=f"{option} is {value}; give {expected}"):
        bl.link(bl.Interest.from_lists([[0], [0]]), algorithm="exact", **{option: value})


def test_refuses_instances_that_are_too_large():
    interest = bl.Interest.from_lists([[0]] * 400)
    with pytest.raises(
        bl.InputError, match=f"79,800 pairs of subscribers .* its limit is {MOST_PAIRS:,}; use"
    ):
        bl.link(interest, algorithm="exact")


# Steps of the algorithm.


def test_only_topics_that_bind_are_kept():
    """Each set once, without sets of one subscriber and those that smaller topics connect completely."""
    interest = bl.Interest.from_lists([[0, 1, 3, 5], [0, 1, 2, 3], [0, 2, 3, 4], [3], [4]])
    assert [group.tolist() for group in binding_topics(interest)] == [[0, 1], [1, 2], [2, 4], [0, 1, 2, 3]]


def every_partition(n: int):
    """Every partition of n things, as a list of part numbers."""
    if n == 0:
        yield []
        return
    for rest in every_partition(n - 1):
        for part in range(max(rest, default=-1) + 2):
            yield [*rest, part]


def violation(x: np.ndarray, part) -> float:
    across = np.triu(np.not_equal.outer(part, part))
    return len(set(part)) - 1 - x[across].sum()


@given(st.integers(1, 6), st.integers(0, 2**32 - 1), st.sampled_from([0.3, 1.0, 2.0]))
@settings(max_examples=150)
def test_finds_the_partition_that_is_violated_most(n, seed, size):
    rng = np.random.default_rng(seed)
    x = np.triu(np.where(rng.random((n, n)) < 0.3, 0.0, rng.random((n, n)) * size), 1)
    x = np.minimum(x + x.T, 1.0)
    found = violation(x, most_violated_partition(x).tolist())
    assert found == pytest.approx(max(violation(x, part) for part in every_partition(n)), abs=1e-6)

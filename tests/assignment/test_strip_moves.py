"""Local search: after every pass boxes are tight, costs exact, and loads within limits."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import naive_assign as naive
from assign_strategies import problems
from broadloom.assignment.subscribers.annealing import PlacementSearch
from broadloom.assignment.subscribers.greedy_assignment import guarded_greedy
from broadloom.assignment.subscribers.load_flow import candidates_in_time, least_lbf, load_limits
from broadloom.measures.content_measures import union_measure


def search_on(problem, seed, slack=1.2):
    """A search from a guarded start, with limits a little above the least possible."""
    candidates, rng = candidates_in_time(problem), np.random.default_rng(seed)
    limit = load_limits(problem, least_lbf(problem, candidates)[0] * slack)
    order = rng.permutation(problem.subscriber_count)
    start = guarded_greedy(problem, candidates, limit, order)
    return PlacementSearch(problem, candidates, limit, start, rng), limit


def check(problem, search, limit):
    """Assert that boxes are tight around their members, and that costs equal those of independent code."""
    placement = search.placement
    broker = placement.broker[search.bundles.of]
    assert np.all(np.bincount(broker, minlength=problem.broker_count) <= limit)
    assert np.array_equal(placement.load, np.bincount(broker, minlength=problem.broker_count))
    for b in range(problem.broker_count):
        boxes = []
        for k in range(problem.alpha):
            members = np.flatnonzero((placement.broker == b) & (placement.box == k))
            assert placement.size[b, k] == len(members)
            if len(members):
                lo, hi = (
                    search.state.arrays.lo[members].min(axis=0),
                    search.state.arrays.hi[members].max(axis=0),
                )
                assert np.array_equal(placement.lo[b, k], lo)
                assert np.array_equal(placement.hi[b, k], hi)
                boxes.append((lo, hi))
        assert placement.cost[b] == pytest.approx(union_measure(problem, tuple(boxes)), abs=1e-9)
        if problem.density is None:
            plain = [(tuple(lo), tuple(hi)) for lo, hi in boxes]
            assert placement.cost[b] == pytest.approx(naive.union(plain), abs=1e-9)


@settings(max_examples=60)
@given(problems(levels=3, most=40), st.integers(0, 1000))
def test_hot_passes_keep_boxes_and_costs_exact(problem, seed):
    search, limit = search_on(problem, seed)
    check(problem, search, limit)
    for heat in (5.0, 0.5, 0.0):
        search._pass(heat)
        check(problem, search, limit)


@settings(max_examples=40)
@given(problems(levels=2, most=40), st.integers(0, 1000))
def test_a_descent_never_rises_and_the_best_is_kept(problem, seed):
    search, _ = search_on(problem, seed)
    costs = [search.cost()]
    for _ in range(4):
        search._pass(0.0)
        costs.append(search.cost())
    if problem.is_one_level:
        assert np.all(np.diff(costs) <= 1e-9)
    search.anneal(3)
    search.descend(2)
    assert search.best()[1].measure.sum() <= min(costs[0], search.cost()) + 1e-9

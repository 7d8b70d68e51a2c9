"""The lower bound on bandwidth: below every allowed assignment, and equal to the best one in easy cases."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings

import broadloom as bl
from assign_strategies import problems
from broadloom.assignment.subscribers.bandwidth_bound import lower_bound
from broadloom.assignment.subscribers.load_flow import candidates_in_time, load_limits
from broadloom.measures.content_measures import union_measure


def least_bandwidth(problem):
    """The minimum over all assignments within the limits, with a rectangle per subscriber."""
    candidates, limit = candidates_in_time(problem), load_limits(problem, problem.beta_max)
    open_to = [candidates.brokers[candidates.start[g] : candidates.start[g + 1]] for g in candidates.group]
    best = np.inf
    for broker_of in itertools.product(*open_to):
        if np.all(np.bincount(broker_of, minlength=problem.broker_count) <= limit):
            total = 0.0
            for b in range(problem.broker_count):
                members = [j for j, leaf in enumerate(broker_of) if _is_above(problem, b, leaf)]
                total += union_measure(problem, tuple((problem.lo[j], problem.hi[j]) for j in members))
            best = min(best, total)
    return best


def _is_above(problem, b, leaf):
    while leaf not in (b, -1):
        leaf = problem.broker_parent[leaf]
    return leaf == b


@settings(max_examples=60)
@given(problems(levels=3, most=4))
def test_no_allowed_assignment_is_below_the_bound(problem):
    bound, least = lower_bound(problem, candidates_in_time(problem)), least_bandwidth(problem)
    assert (bound is None) == np.isinf(least)
    assert bound is None or bound <= least * (1 + 1e-9)


def test_the_bound_is_reached_where_all_interests_are_equal():
    """Ten subscribers want one square and a broker holds four: three brokers need it."""
    problem = bl.AssignmentProblem(
        [0],
        [[1], [1], [1], [1]],
        [-1] * 4,
        np.ones((10, 1)),
        np.zeros((10, 2)),
        np.full((10, 2), 3.0),
        beta=1.6,
        beta_max=1.6,
    )
    result = bl.assign(problem)
    assert result.lower_bound == 27.0
    assert result.bandwidth == 27.0
    assert result.gap == 0.0


def test_the_bound_adds_up_over_distant_locations():
    """Two cities without a broker in common: each needs the event."""
    position = np.repeat([[0.0], [100.0]], 5, axis=0)
    problem = bl.AssignmentProblem(
        [50], [[0], [100]], [-1, -1], position, np.zeros((10, 1)), np.ones((10, 1))
    )
    assert bl.assign(problem).lower_bound == 2.0


def test_there_is_no_bound_without_an_allowed_assignment():
    position = np.concatenate((np.zeros((9, 1)), [[100.0]]))
    problem = bl.AssignmentProblem(
        [50], [[0], [100]], [-1, -1], position, np.zeros((10, 1)), np.ones((10, 1)), max_delay=0.0
    )
    result = bl.assign(problem.replace(beta_max=1.5))
    assert not result.feasible
    assert result.lower_bound is None


@pytest.mark.parametrize("number", [1, 2, 3])
def test_the_default_is_above_the_bound_on_the_workloads(number):
    problem = bl.workload.subscribers(number, 3000, 100, geography=0).replace(beta=4, beta_max=5)
    result = bl.assign(problem, passes=2, starts=1, many_starts=1)
    assert result.lower_bound is not None
    assert 0 < result.lower_bound <= result.bandwidth


def test_many_dimensions_have_no_bound():
    """In seven dimensions a grid is either huge or useless, so there is no bound."""
    lo = np.random.default_rng(0).random((30, 7))
    problem = bl.AssignmentProblem([0], [[1], [2]], [-1, -1], np.ones((30, 1)), lo, lo + 1, max_delay=9)
    assert lower_bound(problem, candidates_in_time(problem)) is None
    assert bl.assign(problem, passes=1).feasible
    flat = problem.replace(lo=lo[:, :6], hi=lo[:, :6] + 1)
    assert lower_bound(flat, candidates_in_time(flat)) >= 0

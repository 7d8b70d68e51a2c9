"""SLP: candidate rectangles, coverage, rounding and the linear program against slow twins."""

import numpy as np
import pytest
from assign_strategies import problems
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

import broadloom as bl
import naive_assign as naive
from broadloom.assignment.candidates import candidate_rectangles, intervals
from broadloom.assignment.coreset import Phi, covered, may_serve, rounded
from broadloom.assignment.lp import Sample, relax
from broadloom.assignment.reach import reach_of


def random_boxes(seed, count, dimensions=2):
    rng = np.random.default_rng(seed)
    lo = rng.integers(0, 40, (count, dimensions)).astype(float)
    return lo, lo + rng.integers(0, 9, (count, dimensions))


@settings(max_examples=60)
@given(st.integers(0, 10**6), st.integers(1, 30))
def test_every_interval_is_inside_a_candidate_of_at_most_four_times_its_length(seed, count):
    """Section IV-A.3: lengths double, and an interval of at most half a length is inside one of it."""
    lo, hi = random_boxes(seed, count, 1)
    left, right = intervals(lo[:, 0], hi[:, 0])
    whole = max(hi.max() - lo.min(), 1e-300)
    for low, high in zip(lo[:, 0], hi[:, 0], strict=True):
        around = (left <= low) & (high <= right)
        assert around.any()
        least = max(high - low, (hi - lo).min(), whole / 256)
        assert (right - left)[around].min() <= 4 * least + 1e-9


@settings(max_examples=30)
@given(st.integers(0, 10**6), st.integers(1, 60), st.integers(1, 12), st.integers(1, 3))
def test_candidate_rectangles_hold_every_subscription_tightly(seed, count, clusters, dimensions):
    lo, hi = random_boxes(seed, count, dimensions)
    rng = np.random.default_rng(seed)
    boxes_lo, boxes_hi = candidate_rectangles(rng.random((count, 2)), lo, hi, clusters, rng)
    inside = np.all((boxes_lo[:, None] <= lo) & (hi <= boxes_hi[:, None]), axis=2)
    assert inside.any(axis=0).all()
    for k in range(len(boxes_lo)):
        assert np.array_equal(boxes_lo[k], lo[inside[k]].min(axis=0))
        assert np.array_equal(boxes_hi[k], hi[inside[k]].max(axis=0))


@settings(max_examples=40)
@given(problems(most=30, dimensions=2), st.integers(0, 10**6))
def test_covered_is_what_the_paper_says(problem, seed):
    """Covered: inside a rectangle of the filter of a broker that is in time."""
    n = problem.broker_count
    lo, hi = random_boxes(seed, 3 * n)
    hi += 6
    phi = Phi(lo, hi, np.arange(0, 3 * n + 1, 3))
    found = covered(phi, problem.lo.copy(), problem.hi.copy(), reach_of(problem))
    for j in range(problem.subscriber_count):
        box = tuple(problem.lo[j]), tuple(problem.hi[j])
        may = naive.candidates(
            problem.publisher, problem.broker_place, problem.subscriber_place[j], problem.max_delay
        )
        expected = any(
            naive.inside(box, (tuple(lo[k]), tuple(hi[k]))) for b in may for k in range(3 * b, 3 * b + 3)
        )
        assert found[j] == expected


def program(problem, boxes, limit):
    """C1 to C4 as printed, over all pairs, for an exact solver; boxes are shrunk for nobody."""
    lo, hi = boxes
    n, m, u = problem.broker_count, problem.subscriber_count, len(lo)
    may = may_serve(reach_of(problem), np.arange(m), n)
    volume = np.prod(hi - lo, axis=1)
    y, x = np.arange(n * u).reshape(n, u), n * u + np.arange(n * m).reshape(n, m)
    rows, sides = [], []

    def at_most(columns, values, side):
        row = np.zeros(n * (u + m))
        row[columns] = values
        rows.append(row)
        sides.append(side)

    for i in range(n):
        at_most(y[i], 1.0, problem.alpha)
        at_most(x[i], 1.0, limit[i])
    for j in range(m):
        at_most(x[may[j], j], -1.0, -1.0)
        around = np.all((lo <= problem.lo[j]) & (problem.hi[j] <= hi), axis=1)
        for i in np.flatnonzero(may[j]):
            at_most(np.append(y[i, around], x[i, j]), np.append(np.full(around.sum(), -1.0), 1.0), 0.0)
    objective = np.concatenate((np.tile(volume, n), np.zeros(n * m)))
    return linprog(objective, np.array(rows), sides, bounds=(0, 1)).fun


@pytest.mark.parametrize("seed", range(6))
def test_the_linear_program_has_the_exact_value(seed):
    """One box set for all brokers, so that shrinking changes nothing: the value is the simplex method's."""
    pytest.importorskip("ortools")
    rng = np.random.default_rng(seed)
    lo, hi = random_boxes(seed, 14)
    problem = bl.AssignmentProblem(
        [0, 0], rng.random((3, 2)), [-1] * 3, rng.random((14, 2)), lo, hi + 1, max_delay=9.0, alpha=2
    )
    boxes = candidate_rectangles(problem.subscriber_place, problem.lo, problem.hi, 6, rng)
    limit = np.full(3, 7.0)
    sample = Sample(problem.lo.copy(), problem.hi.copy(), np.ones((14, 3), bool), np.ones(14, bool))
    found = relax(None, sample, boxes, limit, 2, 1e-8, 200_000)
    assert found.solved
    assert found.value == pytest.approx(program(problem, boxes, limit), rel=1e-4)
    phi = rounded(found, sample, 2 * np.log(14), 3, rng)
    assert covered(phi, sample.lo, sample.hi, reach_of(problem)).all()


@pytest.mark.parametrize("name", ["slp1", "slp"])
def test_the_fractional_value_is_told_beside_a_proven_bound(name):
    """The fractional value holds for the sample and the candidates only; the bound holds for all."""
    pytest.importorskip("ortools")
    problem = bl.workload.subscribers(subscribers=3000, brokers=12)
    result = bl.assign(problem, name, size=8)
    assert result.feasible
    assert result.notes["fractional"] > 0
    assert 0 < result.lower_bound < result.bandwidth


def test_the_literal_slp1_runs_and_tells_who_is_unplaced():
    pytest.importorskip("ortools")
    problem = bl.workload.subscribers(subscribers=2000, brokers=10)
    result = bl.assign(problem, "slp1", literal=True, size=8)
    assert result.notes["unplaced"] >= 0
    assert not set(result.metrics()["violated"]) & {"latency", "nesting", "alpha", "leaf"}

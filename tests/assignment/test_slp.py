"""SLP: candidate rectangles, coverage, rounding and the linear program, compared with slow twins."""

import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import LinearConstraint, linprog, milp

import broadloom as bl
import naive_assign as naive
from assign_strategies import problems
from broadloom.assignment.subscribers.linear_program import (
    PreliminaryFilters,
    ProgramSample,
    candidate_rectangles,
    covered,
    intervals,
    relax,
    rounded,
)
from broadloom.assignment.subscribers.load_flow import candidates_from_matrix, candidates_in_time
from broadloom.assignment.subscribers.slp import (
    SampledLevel,
    SlpOptions,
    _among_children,
    _literal_loads,
    candidate_matrix,
    filter_assign,
    reweigh,
)


def random_boxes(seed, count, dimensions=2):
    rng = np.random.default_rng(seed)
    lo = rng.integers(0, 40, (count, dimensions)).astype(float)
    return lo, lo + rng.integers(0, 9, (count, dimensions))


@settings(max_examples=60)
@given(st.integers(0, 10**6), st.integers(1, 30))
def test_every_interval_is_inside_a_candidate_of_at_most_four_times_its_length(seed, count):
    """Section IV-A.3: lengths double; an interval of at most half a length is inside a candidate of it."""
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
def test_covered_is_as_the_paper_defines_it(problem, seed):
    """Covered: inside a rectangle of the filter of a broker that is in time."""
    n = problem.broker_count
    lo, hi = random_boxes(seed, 3 * n)
    hi += 6
    phi = PreliminaryFilters(lo, hi, np.arange(0, 3 * n + 1, 3))
    found = covered(phi, problem.lo.copy(), problem.hi.copy(), candidates_in_time(problem))
    for j in range(problem.subscriber_count):
        box = tuple(problem.lo[j]), tuple(problem.hi[j])
        in_time = naive.candidates(
            problem.publisher, problem.broker_place, problem.subscriber_place[j], problem.max_delay
        )
        expected = any(
            naive.inside(box, (tuple(lo[k]), tuple(hi[k]))) for b in in_time for k in range(3 * b, 3 * b + 3)
        )
        assert found[j] == expected


def program(problem, boxes, limit):
    """C1 to C4 as printed, over all pairs, for an exact solver, without shrinking of boxes."""
    lo, hi = boxes
    n, m, u = problem.broker_count, problem.subscriber_count, len(lo)
    may_serve = candidate_matrix(candidates_in_time(problem), np.arange(m), n)
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
        at_most(x[may_serve[j], j], -1.0, -1.0)
        around = np.all((lo <= problem.lo[j]) & (problem.hi[j] <= hi), axis=1)
        for i in np.flatnonzero(may_serve[j]):
            at_most(np.append(y[i, around], x[i, j]), np.append(np.full(around.sum(), -1.0), 1.0), 0.0)
    objective = np.concatenate((np.tile(volume, n), np.zeros(n * m)))
    return linprog(objective, np.array(rows), sides, bounds=(0, 1)).fun


@pytest.mark.parametrize("seed", range(6))
def test_the_linear_program_has_the_exact_value(seed):
    """With the same boxes for all brokers, shrinking changes nothing: the value is that of the simplex."""
    pytest.importorskip("ortools")
    rng = np.random.default_rng(seed)
    lo, hi = random_boxes(seed, 14)
    problem = bl.AssignmentProblem(
        [0, 0], rng.random((3, 2)), [-1] * 3, rng.random((14, 2)), lo, hi + 1, max_delay=9.0, alpha=2
    )
    boxes = candidate_rectangles(problem.subscriber_place, problem.lo, problem.hi, 6, rng)
    limit = np.full(3, 7.0)
    all_open = np.ones((14, 3), bool)
    sample = ProgramSample(problem.lo.copy(), problem.hi.copy(), all_open, np.ones(14, bool), limit, 2, None)
    found = relax(sample, boxes, 1e-8, 200_000)
    assert found.solved
    assert found.value == pytest.approx(program(problem, boxes, limit), rel=1e-4)
    phi = rounded(found, sample, 2 * np.log(14), rng)
    assert covered(phi, sample.lo, sample.hi, candidates_in_time(problem)).all()


@pytest.mark.parametrize("seed", range(4))
def test_the_literal_program_has_the_value_of_all_boxes_for_all_brokers(seed):
    """One box per set of subscribers, and no rows that others imply: the value of the whole program."""
    pytest.importorskip("ortools")
    rng = np.random.default_rng(seed)
    lo, hi = random_boxes(seed, 16)
    problem = bl.AssignmentProblem(
        [0, 0], rng.random((3, 2)), [-1] * 3, rng.random((16, 2)), lo, hi + 1, max_delay=0.4, alpha=2
    )
    boxes = candidate_rectangles(problem.subscriber_place, problem.lo, problem.hi, 6, rng)
    may_serve = candidate_matrix(candidates_in_time(problem), np.arange(16), 3)
    assert not may_serve.all()
    limit = np.full(3, 16.0)
    nobody = np.zeros(16, bool)
    sample = ProgramSample(problem.lo.copy(), problem.hi.copy(), may_serve, nobody, limit, 2, None)
    expected = program(problem, boxes, limit)
    found = relax(sample, boxes, 1e-8, 200_000, literal=True)
    assert found.solved
    assert found.value == pytest.approx(expected, rel=1e-4)
    known = {(*low, *high) for low, high in zip(*boxes, strict=True)}
    assert {(*low, *high) for low, high in zip(found.lo, found.hi, strict=True)} <= known
    assert relax(sample, boxes, 1e-8, 200_000).value <= expected * (1 + 1e-4)


@pytest.mark.parametrize("name", ["slp1", "slp"])
def test_a_result_has_a_fractional_value_and_a_proven_bound(name):
    """The fractional value holds for the sample and the candidate rectangles; the bound for the problem."""
    pytest.importorskip("ortools")
    problem = bl.workload.subscribers(subscribers=3000, brokers=12)
    result = bl.assign(problem, name, size=8)
    assert result.feasible
    assert result.notes["fractional"] > 0
    assert 0 < result.lower_bound < result.bandwidth


def test_an_unsolved_program_has_no_fractional_value():
    """After two iterations of the solver there is no optimum, but the result is feasible all the same."""
    pytest.importorskip("ortools")
    problem = bl.workload.subscribers(subscribers=1000, brokers=8)
    result = bl.assign(problem, "slp1", size=8, iterations=2, tolerance=1e-9)
    assert result.feasible
    assert not result.notes["solved"]
    assert result.notes["fractional"] is None


def test_the_literal_slp1_continues_until_all_subscribers_are_covered():
    """Algorithm 1: notes say whether it ended with a certificate or at the limit on programs."""
    pytest.importorskip("ortools")
    problem = bl.workload.subscribers(subscribers=300, brokers=4, geography=0).replace(beta=4, beta_max=4)
    whole = bl.assign(problem, "slp1", literal=True)
    assert whole.notes["certificate"]
    assert whole.notes["outside"] == 0
    assert 1 < whole.notes["programs"] < 100
    short = bl.assign(problem, "slp1", literal=True, passes=1)
    assert short.notes["programs"] == 1
    assert not short.notes["certificate"]
    assert short.notes["outside"] > 0
    for result in (whole, short):
        assert result.notes["unplaced"] >= 0
        assert not set(result.metrics()["violated"]) & {"latency", "nesting", "alpha", "leaf"}


def test_the_literal_slp_divides_subscribers_down_the_tree():
    """Section V: every subscriber ends at a leaf in time, inside the filters of all brokers above."""
    problem = bl.workload.subscribers(1, subscribers=300, brokers=40, levels=2, latency="loose", seed=1)
    result = bl.assign(problem, "slp", literal=True, passes=2)
    assert result.notes["unplaced"] >= 0
    assert not set(result.metrics()["violated"]) & {"latency", "nesting", "alpha", "leaf"}


def test_a_threshold_closes_inner_brokers_with_few_leaves_in_time():
    """Two of three leaves of one inner broker are too far away: a threshold of a half closes it."""
    places = [[0, 1], [0, -1], [0, 2], [50, 2], [60, 2], [0, -2], [1, -2], [2, -2]]
    problem = bl.AssignmentProblem(
        [0, 0],
        places,
        [-1, -1, 0, 0, 0, 1, 1, 1],
        [[0, 0]] * 4,
        [[0]] * 4,
        [[1]] * 4,
        max_delay=2.0,
        beta=3,
        beta_max=3,
    )
    candidates = candidates_in_time(problem)
    assert problem.broker_parent[candidates.brokers].tolist() == [0, 1, 1, 1]
    limit = np.full(8, 4)
    for threshold, children in ((0.0, [0, 1]), (0.3, [0, 1]), (0.5, [1]), (2.0, [1])):
        _, part, _ = _among_children(problem, candidates, limit, np.arange(4), np.array([0, 1]), threshold)
        assert part.brokers.tolist() == children


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 12))
def test_lemma_4_a_candidate_of_bounded_volume_is_around_every_box_of_subscriptions(seed, count):
    """Appendix, Lemma 4: a box around subscriptions is inside a candidate of at most 4^d its volume."""
    rng = np.random.default_rng(seed)
    lo = rng.random((count, 2)) * 20
    hi = lo + 1 + rng.random((count, 2)) * 8  # no length is below 1/256 of the whole
    boxes = candidate_rectangles(rng.random((count, 2)), lo, hi, count, rng)
    for _ in range(20):
        some = rng.random(count) < 0.3
        if some.any():
            low, high = lo[some].min(axis=0), hi[some].max(axis=0)
            around = np.all((boxes[0] <= low) & (high <= boxes[1]), axis=1)
            least = np.prod(boxes[1] - boxes[0], axis=1)[around].min()
            assert least <= 4**2 * np.prod(high - low) + 1e-9


def least_volume(sample, relaxed):
    """The least volume of whole boxes that serve all subscribers within the limits: an integer program."""
    m, n = sample.may_serve.shape
    boxes = len(relaxed.lo)
    around = np.all((relaxed.lo <= sample.lo[:, None]) & (sample.hi[:, None] <= relaxed.hi), axis=2)
    served = np.zeros((m, boxes + m * n))  # variables: boxes, then subscriber j at broker b
    inside = np.zeros((m * n, boxes + m * n))
    load, count = np.zeros((n, boxes + m * n)), np.zeros((n, boxes + m * n))
    for j, b in np.ndindex(m, n):
        at = boxes + j * n + b
        served[j, at] = load[b, at] = inside[j * n + b, at] = 1
        inside[j * n + b, :boxes] = -1.0 * (around[j] & (relaxed.broker == b))
    count[relaxed.broker, np.arange(boxes)] = 1
    volume = np.prod(relaxed.hi - relaxed.lo, axis=1)
    found = milp(
        np.append(volume, np.zeros(m * n)),
        constraints=[
            LinearConstraint(served, 1, 1),
            LinearConstraint(inside, ub=0),
            LinearConstraint(load, ub=sample.limit),
            LinearConstraint(count, ub=sample.alpha),
        ],
        integrality=1,
        bounds=(0, 1),
    )
    assert found.success
    return found.fun


class CountedRandom:
    """A generator that counts how often it is asked for random numbers."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.calls = 0

    def random(self, size):
        """Random numbers from 0 to 1."""
        self.calls += 1
        return self.rng.random(size)


@pytest.mark.parametrize("seed", range(3))
def test_theorem_1_rounding_costs_at_most_twice_the_logarithm_of_the_sample(seed):
    """Appendix, Theorem 1: volume and boxes per broker grow on average by at most 2 ln |S_a|.

    Volume is compared with the optimum of the integer program. Every rounding covers the sample; on average
    at most two are needed, because one covers it with a chance of at least one half (section IV-A.1).
    """
    count, brokers, alpha, draws = 8, 2, 2, 200
    lo, hi = random_boxes(seed, count)
    hi = hi + 1
    may_serve = np.ones((count, brokers), bool)
    limit = np.full(brokers, 5.0)
    sample = ProgramSample(lo, hi, may_serve, np.ones(count, bool), limit, alpha, None)
    boxes = candidate_rectangles(lo, lo, hi, count, np.random.default_rng(seed))
    relaxed = relax(sample, boxes, 1e-6, 100_000, literal=True)
    optimum = least_volume(sample, relaxed)
    assert relaxed.value <= optimum * (1 + 1e-3)
    factor = 2 * np.log(count)
    rng = CountedRandom(seed)
    everywhere = candidates_from_matrix(may_serve, np.arange(brokers, dtype=np.int32))
    volumes, counts = [], []
    for _ in range(draws):
        phi = rounded(relaxed, sample, factor, rng)
        assert covered(phi, lo, hi, everywhere).all()
        volumes.append(np.prod(phi.hi - phi.lo, axis=1).sum())
        counts.append(np.diff(phi.start))
    assert np.mean(volumes) <= factor * optimum
    assert np.all(np.mean(counts, axis=0) <= factor * alpha)
    assert rng.calls <= 2 * draws


@pytest.mark.parametrize("seed", range(3))
def test_lemma_2_a_small_certificate_is_found_within_the_printed_number_of_iterations(seed):
    """Appendix, Lemma 2: with a certificate of size g, 4 g ln(|S| / g) valid iterations are enough.

    The certificate has one subscriber per kind. Three of the four kinds have a single subscriber, which a
    sample seldom draws before its weight has doubled some times.
    """
    pytest.importorskip("ortools")
    m, g = 2000, 4
    corner = np.zeros((m, 1))
    corner[-3:, 0] = [100, 200, 300]
    everywhere = candidates_from_matrix(np.ones((m, 2), bool), np.arange(2, dtype=np.int32))
    level = SampledLevel(corner, corner, corner + 1, everywhere, np.full(2, float(m)), None, 4)
    options = SlpOptions(literal=True, passes=10_000, size=g, load_sample=1)
    found = filter_assign(level, options, np.random.default_rng(seed))
    assert found.outside == 0
    assert 1 < found.programs <= 4 * g * np.log(m / g)


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.integers(1, 40), st.floats(0, 1))
def test_the_weight_of_missed_subscribers_doubles_if_they_are_few(seed, count, eps):
    """Algorithm 1, lines 14 and 15: an iteration is valid if the weight missed is a share of at most eps."""
    rng = np.random.default_rng(seed)
    before, missed = 2.0 ** rng.integers(0, 5, count), rng.random(count) < eps
    weight = before.copy()
    valid = reweigh(weight, missed, eps)
    assert valid == (sum(before[missed]) <= eps * sum(before))
    assert weight.tolist() == [w * (1 + (valid and m)) for w, m in zip(before, missed, strict=True)]


@pytest.mark.parametrize("seed", range(4))
def test_a_load_sample_is_drawn_until_its_program_has_a_solution(seed):
    """Half of the subscribers can only go to the first broker, which can hold no more: few samples fit."""
    m = 400
    is_open = np.ones((m, 2), bool)
    is_open[: m // 2, 1] = False
    candidates = candidates_from_matrix(is_open, np.arange(2, dtype=np.int32))
    flat = np.zeros((m, 1))
    level = SampledLevel(flat, flat, flat, candidates, np.array([m / 2, m / 2]), None, 3)
    loads = _literal_loads(level, SlpOptions(literal=True), np.random.default_rng(seed))
    assert len(np.unique(loads)) == 20
    assert np.count_nonzero(loads < m // 2) <= 10


def test_missing_or_tools_is_a_missing_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "ortools.pdlp", None)
    problem = bl.AssignmentProblem([0], [[1], [2]], [-1, -1], [[1], [2]], [[0], [1]], [[1], [2]])
    with pytest.raises(
        bl.MissingExtraError, match=r'^OR-tools is not installed .*; run: pip install "broadloom\[lp\]"$'
    ):
        bl.assign(problem, "slp1")

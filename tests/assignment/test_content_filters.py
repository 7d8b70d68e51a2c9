"""Rectangles and filters: kernels, independent measure and naive twin agree on the measure of unions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import broadloom as bl
import naive_assign as naive
from broadloom.assignment.subscribers.content_filters import (
    cheapest_change,
    empty_filters,
    few_boxes,
    take_in,
    uncovered,
    union_of,
)
from broadloom.measures.content_measures import union_measure


def random_boxes(seed, count, dimensions):
    rng = np.random.default_rng(seed)
    lo = rng.integers(0, 12, (count, dimensions)).astype(float)
    return lo, lo + rng.integers(0, 6, (count, dimensions))


def as_tuples(lo, hi):
    return [(tuple(low), tuple(high)) for low, high in zip(lo, hi, strict=True)]


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10**6), st.integers(0, 6), st.integers(1, 4))
def test_the_union_is_exact_in_any_dimension(seed, count, dimensions):
    lo, hi = random_boxes(seed, count, dimensions)
    assert union_of(None, lo, hi) == pytest.approx(naive.union(as_tuples(lo, hi)))


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(1, 3))
def test_the_union_grows_by_the_uncovered_measure(seed, count, dimensions):
    lo, hi = random_boxes(seed, count + 1, dimensions)
    boxes = as_tuples(lo, hi)
    grown = naive.union(boxes) - naive.union(boxes[1:])
    assert uncovered(None, lo[0], hi[0], lo[1:], hi[1:]) == pytest.approx(grown, abs=1e-9)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10**6), st.integers(0, 4), st.integers(1, 3))
def test_the_measure_under_a_histogram_agrees_with_the_independent_one(seed, count, dimensions):
    """The kernel cuts pieces away and interpolates cumulative mass; the measure adds up cells of a grid."""
    lo, hi = random_boxes(seed, count, dimensions)
    mass = np.random.default_rng(seed).integers(0, 9, (4,) * dimensions)
    density = bl.Density([[0, 2, 3, 7, 15]] * dimensions, mass)
    zeros = np.zeros((1, dimensions))
    problem = bl.AssignmentProblem([0], [[1]], [-1], [[1]], zeros, zeros, density=density)
    boxes = tuple(zip(lo, hi, strict=True))
    assert union_of(density.arrays(), lo, hi) == pytest.approx(union_measure(problem, boxes), abs=1e-9)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(1, 12))
def test_a_filter_takes_in_rectangles_at_the_least_growth(seed, alpha, count):
    """The growth equals the twin's, then the rectangle is inside one box, and boxes stay within alpha."""
    lo, hi = random_boxes(seed, count, 2)
    filters, twin = empty_filters(1, alpha, 2), []
    for low, high in zip(lo, hi, strict=True):
        growth, change = cheapest_change(None, filters, 0, low, high, np.inf)
        take_in(None, filters, 0, low, high, change)
        options = naive.changes(twin, (tuple(low), tuple(high)), alpha)
        assert growth == pytest.approx(min(map(naive.union, options)) - naive.union(twin), abs=1e-9)
        twin = as_tuples(filters.lo[0, : filters.used[0]], filters.hi[0, : filters.used[0]])
        assert len(twin) <= alpha
        assert any(naive.inside((tuple(low), tuple(high)), box) for box in twin)
        assert filters.measure[0] == pytest.approx(naive.union(twin))


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10**6), st.integers(0, 60), st.integers(1, 4))
def test_a_few_boxes_hold_every_rectangle(seed, count, alpha):
    lo, hi = random_boxes(seed, count, 2)
    boxes_lo, boxes_hi = few_boxes(None, lo, hi, alpha)
    assert len(boxes_lo) <= alpha
    for box in as_tuples(lo, hi):
        assert any(naive.inside(box, outer) for outer in as_tuples(boxes_lo, boxes_hi))

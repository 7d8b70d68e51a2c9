"""Filters for a given assignment (paper 4, section IV-C): few boxes around many rectangles, up the tree."""

import numpy as np
from numpy.typing import NDArray

from broadloom.assignment.subscribers._boxes import (
    box_with,
    cheapest_merge,
    extend,
    is_inside,
    set_box,
    span,
    union_of,
)
from broadloom.assignment.subscribers._filters import Filters, empty_filters, refresh
from broadloom.kernels import kernel
from broadloom.model import AssignmentProblem, DensityArrays, measure_of

# Rectangles are first gathered into so many boxes, which are then merged down to alpha.
MICRO = 24
# The last merges, from so many times alpha boxes, mind that boxes overlap.
EXACT = 2


def tight_filters(problem: AssignmentProblem, broker_of: NDArray[np.integer]) -> Filters:
    """Filters of at most alpha boxes a broker around what its subscribers want, nested up the tree.

    Clustering is the paper's own way out (the least boxes are NP-hard to find): gather into a few micro
    boxes, then merge the pair that adds least to the union until alpha are left.
    """
    filters = empty_filters(problem.broker_count, problem.alpha, problem.dimensions)
    order = np.argsort(broker_of, kind="stable")
    ends = np.searchsorted(broker_of[order], np.arange(problem.broker_count + 1))
    for leaf in problem.leaves:
        mine = order[ends[leaf] : ends[leaf + 1]]
        put(problem, filters, int(leaf), problem.lo[mine], problem.hi[mine])
    nest(problem, filters)
    return filters


def tighter(
    problem: AssignmentProblem, broker_of: NDArray[np.int64], filters: Filters
) -> tuple[NDArray[np.int64], Filters]:
    """The assignment with the smaller filter a leaf: new ones, or those given, shrunk to what they hold."""
    best = tight_filters(problem, broker_of)
    low, high = around_members(problem.lo, problem.hi, broker_of, filters)
    for leaf in problem.leaves:
        used = np.isfinite(low[leaf, :, 0])
        lo, hi = low[leaf, used], high[leaf, used]
        if union_of(problem.density_arrays, lo, hi) < best.measure[leaf]:
            put(problem, best, int(leaf), lo, hi)
    nest(problem, best)
    return broker_of, best


@kernel
def around_members(
    lo: NDArray[np.float64], hi: NDArray[np.float64], broker_of: NDArray[np.int64], filters: Filters
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The least boxes around those who are in a filter's box, each in the first that it is inside."""
    low, high = np.full(filters.lo.shape, np.inf), np.full(filters.lo.shape, -np.inf)
    for j in range(len(lo)):
        b = broker_of[j]
        k = box_with(filters.lo, filters.hi, b, filters.used[b], lo[j], hi[j])
        extend(low[b], high[b], k, lo[j], hi[j])
    return low, high


def nest(problem: AssignmentProblem, filters: Filters) -> None:
    """Filters of inner brokers around those of the brokers below, from the leaves up."""
    children: list[list[int]] = [[] for _ in range(problem.broker_count)]
    for broker in problem.top_down[::-1]:
        below = children[broker]
        if below:
            lo, hi = (
                np.concatenate([side[b, : filters.used[b]] for b in below])
                for side in (filters.lo, filters.hi)
            )
            put(problem, filters, int(broker), lo, hi)
        if problem.broker_parent[broker] >= 0:
            children[problem.broker_parent[broker]].append(int(broker))


def put(
    problem: AssignmentProblem,
    filters: Filters,
    broker: int,
    lo: NDArray[np.float64],
    hi: NDArray[np.float64],
) -> None:
    """Make a broker's filter the tight one around some rectangles."""
    boxes_lo, boxes_hi = few_boxes(problem.density_arrays, lo, hi, problem.alpha)
    filters.used[broker] = len(boxes_lo)
    filters.lo[broker, : len(boxes_lo)], filters.hi[broker, : len(boxes_hi)] = boxes_lo, boxes_hi
    refresh(problem.density_arrays, filters, broker)


@kernel
def few_boxes(
    density: DensityArrays | None, lo: NDArray[np.float64], hi: NDArray[np.float64], alpha: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """At most `alpha` boxes so that each rectangle is inside one of them."""
    d, micro = lo.shape[1], max(MICRO, alpha)
    boxes_lo, boxes_hi = np.empty((micro + 1, d)), np.empty((micro + 1, d))
    count = 0
    for j in range(len(lo)):
        inside, low, high = False, lo[j], hi[j]
        for i in range(count):
            if is_inside(low, high, boxes_lo, boxes_hi, i):
                inside = True
                break
        if not inside:
            set_box(boxes_lo, boxes_hi, count, low, high)
            count += 1
            if count > micro:
                i, j = _roughly_cheapest_merge(density, boxes_lo, boxes_hi)
                count = _merge(boxes_lo, boxes_hi, count, i, j)
    while count > alpha:
        if count > EXACT * alpha:
            i, j = _roughly_cheapest_merge(density, boxes_lo[:count], boxes_hi[:count])
        else:
            _, i, j = cheapest_merge(density, boxes_lo[:count], boxes_hi[:count])
        count = _merge(boxes_lo, boxes_hi, count, i, j)
    return boxes_lo[:count].copy(), boxes_hi[:count].copy()


@kernel
def _roughly_cheapest_merge(
    density: DensityArrays | None, boxes_lo: NDArray[np.float64], boxes_hi: NDArray[np.float64]
) -> tuple[int, int]:
    """The pair whose common box exceeds the two by least, as if no others were there: much faster."""
    d, count = boxes_lo.shape[1], len(boxes_lo)
    around_lo, around_hi = np.empty(d), np.empty(d)
    own = np.empty(count)
    for i in range(count):
        own[i] = measure_of(density, boxes_lo[i], boxes_hi[i])
    best, first, second = np.inf, 0, 1
    for i in range(count):
        low, high = boxes_lo[i], boxes_hi[i]
        for j in range(i + 1, count):
            span(low, high, boxes_lo, boxes_hi, j, around_lo, around_hi)
            excess = measure_of(density, around_lo, around_hi) - own[i] - own[j]
            if excess < best:
                best, first, second = excess, i, j
    return first, second


@kernel
def _merge(boxes_lo: NDArray[np.float64], boxes_hi: NDArray[np.float64], count: int, i: int, j: int) -> int:
    """Replace two boxes by the box around them, the last box taking the free place; gives the new number."""
    extend(boxes_lo, boxes_hi, i, boxes_lo[j], boxes_hi[j])
    set_box(boxes_lo, boxes_hi, j, boxes_lo[count - 1], boxes_hi[count - 1])
    return count - 1

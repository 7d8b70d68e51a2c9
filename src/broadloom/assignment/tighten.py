"""Filters for a given assignment (paper 4, section IV-C): few boxes around many rectangles, up the tree."""

import numpy as np
from numpy.typing import NDArray

from broadloom._jit import kernel
from broadloom.assignment._boxes import Filters, cheapest_merge, empty_filters, is_inside, refresh, span
from broadloom.model import AssignmentProblem
from broadloom.model.density import DensityArrays

# Rectangles are first gathered into so many boxes, which are then merged down to alpha.
MICRO = 24


def tight_filters(problem: AssignmentProblem, broker_of: NDArray[np.int32]) -> Filters:
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
    density: DensityArrays, lo: NDArray[np.float64], hi: NDArray[np.float64], alpha: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """At most `alpha` boxes so that each rectangle is inside one of them."""
    d, micro = lo.shape[1], max(MICRO, alpha)
    boxes_lo, boxes_hi = np.empty((micro + 1, d)), np.empty((micro + 1, d))
    count = 0
    for j in range(len(lo)):
        inside = False
        for i in range(count):
            if is_inside(lo[j], hi[j], boxes_lo[i], boxes_hi[i]):
                inside = True
                break
        if not inside:
            boxes_lo[count], boxes_hi[count] = lo[j], hi[j]
            count += 1
            if count > micro:
                count = merge_once(density, boxes_lo, boxes_hi, count)
    while count > alpha:
        count = merge_once(density, boxes_lo, boxes_hi, count)
    return boxes_lo[:count].copy(), boxes_hi[:count].copy()


@kernel
def merge_once(
    density: DensityArrays, boxes_lo: NDArray[np.float64], boxes_hi: NDArray[np.float64], count: int
) -> int:
    """Replace the pair of boxes that adds least to the union by the box around them; gives the new number."""
    _, i, j = cheapest_merge(density, boxes_lo[:count], boxes_hi[:count])
    span(boxes_lo[i], boxes_hi[i], boxes_lo[j], boxes_hi[j], boxes_lo[i], boxes_hi[i])
    boxes_lo[j], boxes_hi[j] = boxes_lo[count - 1], boxes_hi[count - 1]
    return count - 1

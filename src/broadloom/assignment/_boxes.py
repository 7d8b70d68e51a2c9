"""Rectangles of event space, and filters made of a few of them: exact growth of their union."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from broadloom._jit import kernel
from broadloom.model.assigned import Filter
from broadloom.model.density import DensityArrays, measure_of

Corner = NDArray[np.float64]

# How a filter takes in a rectangle: 0 and up enlarges that box; otherwise one of these.
INSIDE, NEW, MERGE = -1, -2, -3


class Filters(NamedTuple):
    """The filters of all brokers: `lo[b, i]` to `hi[b, i]` for each box `i < used[b]`."""

    lo: NDArray[np.float64]
    hi: NDArray[np.float64]
    used: NDArray[np.int64]


def empty_filters(brokers: int, alpha: int, dimensions: int) -> Filters:
    """Filters that let nothing through."""
    shape = (brokers, alpha, dimensions)
    return Filters(np.zeros(shape), np.zeros(shape), np.zeros(brokers, np.int64))


def as_tuples(filters: Filters) -> tuple[Filter, ...]:
    """Filters as results hold them."""
    return tuple(
        tuple((filters.lo[b, i].copy(), filters.hi[b, i].copy()) for i in range(filters.used[b]))
        for b in range(len(filters.used))
    )


@kernel
def is_inside(lo: Corner, hi: Corner, outer_lo: Corner, outer_hi: Corner) -> bool:
    """Whether a rectangle is inside another."""
    for axis in range(len(lo)):  # noqa: SIM110 (a kernel has no generators)
        if lo[axis] < outer_lo[axis] or hi[axis] > outer_hi[axis]:
            return False
    return True


@kernel
def box_with(filters: Filters, b: int, lo: Corner, hi: Corner) -> int:
    """The first box of broker `b` that the rectangle is inside, or -1."""
    for i in range(filters.used[b]):
        if is_inside(lo, hi, filters.lo[b, i], filters.hi[b, i]):
            return i
    return -1


@kernel
def span(lo: Corner, hi: Corner, other_lo: Corner, other_hi: Corner, to_lo: Corner, to_hi: Corner) -> None:
    """Write the least rectangle around two others to `to_lo`, `to_hi`."""
    for axis in range(len(lo)):
        to_lo[axis] = min(lo[axis], other_lo[axis])
        to_hi[axis] = max(hi[axis], other_hi[axis])


@kernel
def _overlaps(lo: Corner, hi: Corner, other_lo: Corner, other_hi: Corner) -> bool:
    """Whether two rectangles have more in common than their rims."""
    for axis in range(len(lo)):  # noqa: SIM110 (a kernel has no generators)
        if lo[axis] >= other_hi[axis] or hi[axis] <= other_lo[axis]:
            return False
    return True


@kernel
def uncovered(
    density: DensityArrays,
    lo: Corner,
    hi: Corner,
    boxes_lo: NDArray[np.float64],
    boxes_hi: NDArray[np.float64],
) -> float:
    """The measure of the part of a rectangle that none of the boxes covers.

    Each box cuts what is left of the rectangle into at most two pieces an axis, so nothing is counted twice
    and nothing is subtracted: exact in any dimension, and cheap where few boxes overlap.
    """
    d, boxes = len(lo), len(boxes_lo)
    first = 0
    while first < boxes and not _overlaps(lo, hi, boxes_lo[first], boxes_hi[first]):
        first += 1
    if first == boxes:
        return measure_of(density, lo, hi)
    if is_inside(lo, hi, boxes_lo[first], boxes_hi[first]):
        return 0.0
    piece_lo, piece_hi = np.empty((2 * d * boxes + 1, d)), np.empty((2 * d * boxes + 1, d))
    against = np.empty(2 * d * boxes + 1, np.int64)
    piece_lo[0], piece_hi[0], against[0], top = lo, hi, first, 1
    low, high = np.empty(d), np.empty(d)
    total = 0.0
    while top > 0:
        top -= 1
        low[:], high[:], i = piece_lo[top], piece_hi[top], against[top]
        while i < boxes and not _overlaps(low, high, boxes_lo[i], boxes_hi[i]):
            i += 1
        if i == boxes:
            total += measure_of(density, low, high)
            continue
        for axis in range(d):
            if low[axis] < boxes_lo[i, axis]:
                piece_lo[top], piece_hi[top], against[top] = low, high, i + 1
                piece_hi[top, axis] = boxes_lo[i, axis]
                low[axis] = boxes_lo[i, axis]
                top += 1
            if high[axis] > boxes_hi[i, axis]:
                piece_lo[top], piece_hi[top], against[top] = low, high, i + 1
                piece_lo[top, axis] = boxes_hi[i, axis]
                high[axis] = boxes_hi[i, axis]
                top += 1
    return total


@kernel
def union_of(density: DensityArrays, boxes_lo: NDArray[np.float64], boxes_hi: NDArray[np.float64]) -> float:
    """The measure of the union of boxes: each one's part that later ones do not cover."""
    total = 0.0
    for i in range(len(boxes_lo)):
        total += uncovered(density, boxes_lo[i], boxes_hi[i], boxes_lo[i + 1 :], boxes_hi[i + 1 :])
    return total


@kernel
def cheapest_merge(
    density: DensityArrays, boxes_lo: NDArray[np.float64], boxes_hi: NDArray[np.float64]
) -> tuple[float, int, int]:
    """The pair of boxes whose common rectangle adds least to the union, and how much."""
    lo, hi = np.empty(boxes_lo.shape[1]), np.empty(boxes_lo.shape[1])
    best, first, second = np.inf, 0, 0
    for i in range(len(boxes_lo)):
        for j in range(i + 1, len(boxes_lo)):
            span(boxes_lo[i], boxes_hi[i], boxes_lo[j], boxes_hi[j], lo, hi)
            growth = uncovered(density, lo, hi, boxes_lo, boxes_hi)
            if growth < best:
                best, first, second = growth, i, j
    return best, first, second


@kernel
def cheapest_way(
    density: DensityArrays,
    boxes_lo: NDArray[np.float64],
    boxes_hi: NDArray[np.float64],
    count: int,
    lo: Corner,
    hi: Corner,
) -> tuple[float, int]:
    """The least growth of a filter's measure to take in a rectangle, and the way: see `take_in`."""
    d, alpha = boxes_lo.shape[1], boxes_lo.shape[0]
    mine_lo, mine_hi = boxes_lo[:count], boxes_hi[:count]
    for i in range(count):
        if is_inside(lo, hi, mine_lo[i], mine_hi[i]):
            return 0.0, INSIDE
    best, way = np.inf, NEW
    if count < alpha:
        best = uncovered(density, lo, hi, mine_lo, mine_hi)
    around_lo, around_hi = np.empty(d), np.empty(d)
    for i in range(count):
        span(lo, hi, mine_lo[i], mine_hi[i], around_lo, around_hi)
        growth = uncovered(density, around_lo, around_hi, mine_lo, mine_hi)
        if growth < best:
            best, way = growth, i
    if count == alpha and count > 1:
        growth, i, j = cheapest_merge(density, mine_lo, mine_hi)
        if growth < best:
            span(mine_lo[i], mine_hi[i], mine_lo[j], mine_hi[j], around_lo, around_hi)
            after_lo, after_hi = mine_lo.copy(), mine_hi.copy()
            after_lo[i], after_hi[i] = around_lo, around_hi
            growth += uncovered(density, lo, hi, after_lo, after_hi)
            if growth < best:
                best, way = growth, MERGE
    return best, way


@kernel
def take_in(
    density: DensityArrays,
    boxes_lo: NDArray[np.float64],
    boxes_hi: NDArray[np.float64],
    count: int,
    lo: Corner,
    hi: Corner,
    way: int,
) -> int:
    """Change a filter so that the rectangle is inside one of its boxes; gives its new number of boxes."""
    if way >= 0:
        span(lo, hi, boxes_lo[way], boxes_hi[way], boxes_lo[way], boxes_hi[way])
    elif way == NEW:
        boxes_lo[count], boxes_hi[count] = lo, hi
        return count + 1
    elif way == MERGE:
        _, i, j = cheapest_merge(density, boxes_lo[:count], boxes_hi[:count])
        span(boxes_lo[i], boxes_hi[i], boxes_lo[j], boxes_hi[j], boxes_lo[i], boxes_hi[i])
        boxes_lo[j], boxes_hi[j] = lo, hi
    return count

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
    """The filters of all brokers: `lo[b, i]` to `hi[b, i]` for each box `i < used[b]`.

    `measure` is each filter's, and `merge` the growth if the boxes `pair` became one; `refresh` keeps them.
    """

    lo: NDArray[np.float64]
    hi: NDArray[np.float64]
    used: NDArray[np.int64]
    measure: NDArray[np.float64]
    merge: NDArray[np.float64]
    pair: NDArray[np.int64]


def empty_filters(brokers: int, alpha: int, dimensions: int) -> Filters:
    """Filters that let nothing through."""
    shape = (brokers, alpha, dimensions)
    return Filters(
        np.zeros(shape),
        np.zeros(shape),
        np.zeros(brokers, np.int64),
        np.zeros(brokers),
        np.full(brokers, np.inf),
        np.zeros((brokers, 2), np.int64),
    )


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
def refresh(density: DensityArrays, filters: Filters, b: int) -> None:
    """Bring what is known of a filter up to date after its boxes have changed."""
    boxes_lo, boxes_hi = filters.lo[b, : filters.used[b]], filters.hi[b, : filters.used[b]]
    filters.measure[b] = union_of(density, boxes_lo, boxes_hi)
    if filters.used[b] == filters.lo.shape[1]:
        filters.merge[b], filters.pair[b, 0], filters.pair[b, 1] = cheapest_merge(density, boxes_lo, boxes_hi)
    else:
        filters.merge[b] = np.inf


@kernel
def cheapest_way(
    density: DensityArrays, filters: Filters, b: int, lo: Corner, hi: Corner, ceiling: float
) -> tuple[float, int]:
    """The least growth of a filter's measure to take in a rectangle, and the way: see `take_in`.

    Growth above the ceiling may come back as infinite: then nobody wants it exactly.
    """
    used = filters.used[b]
    boxes_lo, boxes_hi = filters.lo[b, :used], filters.hi[b, :used]
    for i in range(used):
        if is_inside(lo, hi, boxes_lo[i], boxes_hi[i]):
            return 0.0, INSIDE
    best, way = np.inf, NEW
    if used < filters.lo.shape[1]:
        best = uncovered(density, lo, hi, boxes_lo, boxes_hi)
    around_lo, around_hi = np.empty(len(lo)), np.empty(len(lo))
    for i in range(used):
        span(lo, hi, boxes_lo[i], boxes_hi[i], around_lo, around_hi)
        # The filter covers at most its own measure of the enlarged box.
        if measure_of(density, around_lo, around_hi) - filters.measure[b] <= min(best, ceiling):
            growth = uncovered(density, around_lo, around_hi, boxes_lo, boxes_hi)
            if growth < best:
                best, way = growth, i
    if filters.merge[b] < min(best, ceiling):
        i, j = filters.pair[b]
        span(boxes_lo[i], boxes_hi[i], boxes_lo[j], boxes_hi[j], around_lo, around_hi)
        after_lo, after_hi = boxes_lo.copy(), boxes_hi.copy()
        after_lo[i], after_hi[i] = around_lo, around_hi
        growth = filters.merge[b] + uncovered(density, lo, hi, after_lo, after_hi)
        if growth < best:
            best, way = growth, MERGE
    return best, way


@kernel
def take_in(density: DensityArrays, filters: Filters, b: int, lo: Corner, hi: Corner, way: int) -> None:
    """Change a filter so that the rectangle is inside one of its boxes."""
    boxes_lo, boxes_hi = filters.lo[b], filters.hi[b]
    if way == INSIDE:
        return
    if way >= 0:
        span(lo, hi, boxes_lo[way], boxes_hi[way], boxes_lo[way], boxes_hi[way])
    elif way == NEW:
        boxes_lo[filters.used[b]], boxes_hi[filters.used[b]] = lo, hi
        filters.used[b] += 1
    else:
        i, j = filters.pair[b]
        span(boxes_lo[i], boxes_hi[i], boxes_lo[j], boxes_hi[j], boxes_lo[i], boxes_hi[i])
        boxes_lo[j], boxes_hi[j] = lo, hi
    refresh(density, filters, b)


@kernel
def copy_filter(source: Filters, a: int, target: Filters, b: int) -> None:
    """Make row `b` of the target the filter of broker `a`."""
    target.lo[b], target.hi[b], target.used[b] = source.lo[a], source.hi[a], source.used[a]
    target.measure[b], target.merge[b], target.pair[b] = source.measure[a], source.merge[a], source.pair[a]


@kernel
def path_growth(
    density: DensityArrays,
    filters: Filters,
    scratch: Filters,
    parent: NDArray[np.int32],
    b: int,
    lo: Corner,
    hi: Corner,
    ceiling: float,
) -> float:
    """The growth of all filters from leaf `b` up, if it took in the rectangle; `scratch` has a row a level."""
    total, way = cheapest_way(density, filters, b, lo, hi, ceiling)
    row = 0
    if way != INSIDE and parent[b] >= 0 and total <= ceiling:
        copy_filter(filters, b, scratch, 0)
        take_in(density, scratch, 0, lo, hi, way)
        b = parent[b]
        while b >= 0 and total <= ceiling:
            copy_filter(filters, b, scratch, row + 1)
            growth, changed = _take_in_all(density, scratch, row, scratch, row + 1)
            total += growth
            if not changed:
                break
            b, row = parent[b], row + 1
    return total


@kernel
def _take_in_all(
    density: DensityArrays, source: Filters, a: int, target: Filters, b: int
) -> tuple[float, bool]:
    """Let filter `b` take in every box of filter `a`; gives its growth and whether it changed."""
    total, changed = 0.0, False
    for i in range(source.used[a]):
        growth, way = cheapest_way(density, target, b, source.lo[a, i], source.hi[a, i], np.inf)
        if way != INSIDE:
            take_in(density, target, b, source.lo[a, i], source.hi[a, i], way)
            total, changed = total + growth, True
    return total, changed


@kernel
def take_in_path(
    density: DensityArrays, filters: Filters, parent: NDArray[np.int32], b: int, lo: Corner, hi: Corner
) -> None:
    """Let leaf `b` take in the rectangle, and the brokers above it what has changed below."""
    _, way = cheapest_way(density, filters, b, lo, hi, np.inf)
    changed = way != INSIDE
    take_in(density, filters, b, lo, hi, way)
    while changed and parent[b] >= 0:
        _, changed = _take_in_all(density, filters, b, filters, parent[b])
        b = parent[b]

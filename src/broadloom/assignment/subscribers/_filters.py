"""Filters made of a few rectangles: the cheapest way to take one more in, up the tree."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from broadloom.assignment.subscribers._boxes import (
    Corner,
    cheapest_merge,
    extend,
    is_inside,
    set_box,
    span,
    uncovered,
    union_of,
)
from broadloom.kernels import kernel
from broadloom.model import ContentFilter, DensityArrays, measure_of

# How a filter takes in a rectangle: 0 and up enlarges that box; otherwise one of these.
INSIDE, NEW, MERGE = -1, -2, -3


class Filters(NamedTuple):
    """The filters of all brokers: `lo[b, i]` to `hi[b, i]` for each box `i < used[b]`.

    `measure` is each filter's, and `merge` the growth if the boxes `pair` became one; `refresh` keeps them.
    `around` is room for one rectangle while growth is computed.
    """

    lo: NDArray[np.float64]
    hi: NDArray[np.float64]
    used: NDArray[np.int64]
    measure: NDArray[np.float64]
    merge: NDArray[np.float64]
    pair: NDArray[np.int64]
    around: NDArray[np.float64]


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
        np.zeros((2, dimensions)),
    )


def as_tuples(filters: Filters) -> tuple[ContentFilter, ...]:
    """Filters as results hold them."""
    return tuple(
        tuple((filters.lo[b, i].copy(), filters.hi[b, i].copy()) for i in range(filters.used[b]))
        for b in range(len(filters.used))
    )


@kernel
def refresh(density: DensityArrays | None, filters: Filters, b: int) -> None:
    """Bring what is known of a filter up to date after its boxes have changed."""
    boxes_lo, boxes_hi = filters.lo[b, : filters.used[b]], filters.hi[b, : filters.used[b]]
    filters.measure[b] = union_of(density, boxes_lo, boxes_hi)
    if filters.used[b] == filters.lo.shape[1]:
        filters.merge[b], filters.pair[b, 0], filters.pair[b, 1] = cheapest_merge(density, boxes_lo, boxes_hi)
    else:
        filters.merge[b] = np.inf


@kernel
def cheapest_way(
    density: DensityArrays | None, filters: Filters, b: int, lo: Corner, hi: Corner, ceiling: float
) -> tuple[float, int]:
    """The least growth of a filter's measure to take in a rectangle, and the way: see `take_in`.

    Growth above the ceiling may come back as infinite: then nobody wants it exactly.
    """
    used, alpha = filters.used[b], filters.lo.shape[1]
    boxes_lo, boxes_hi = filters.lo[b, :used], filters.hi[b, :used]
    for i in range(used):
        if is_inside(lo, hi, boxes_lo, boxes_hi, i):
            return 0.0, INSIDE
    # Whatever the way, the rectangle itself is let through afterwards.
    least = uncovered(density, lo, hi, boxes_lo, boxes_hi)
    # A full filter has no room for a new box, even if all growth is infinite.
    best, way = (least, NEW) if used < alpha else (np.inf, 0)
    if least > ceiling:
        return np.inf, way
    around_lo, around_hi = filters.around[0], filters.around[1]
    for i in range(used):
        span(lo, hi, boxes_lo, boxes_hi, i, around_lo, around_hi)
        # The filter covers at most its own measure of the enlarged box.
        if measure_of(density, around_lo, around_hi) - filters.measure[b] <= min(best, ceiling):
            growth = uncovered(density, around_lo, around_hi, boxes_lo, boxes_hi)
            if growth < best:
                best, way = growth, i
    if filters.merge[b] < best and filters.merge[b] <= ceiling:
        i, j = filters.pair[b, 0], filters.pair[b, 1]
        span(boxes_lo[i], boxes_hi[i], boxes_lo, boxes_hi, j, around_lo, around_hi)
        after_lo, after_hi = boxes_lo.copy(), boxes_hi.copy()
        set_box(after_lo, after_hi, i, around_lo, around_hi)
        growth = filters.merge[b] + uncovered(density, lo, hi, after_lo, after_hi)
        if growth < best:
            best, way = growth, MERGE
    return best, way


@kernel
def take_in(
    density: DensityArrays | None, filters: Filters, b: int, lo: Corner, hi: Corner, way: int
) -> None:
    """Change a filter so that the rectangle is inside one of its boxes."""
    boxes_lo, boxes_hi = filters.lo[b], filters.hi[b]
    if way == INSIDE:
        return
    if way >= 0:
        extend(boxes_lo, boxes_hi, way, lo, hi)
    elif way == NEW:
        set_box(boxes_lo, boxes_hi, filters.used[b], lo, hi)
        filters.used[b] += 1
    else:
        i, j = filters.pair[b, 0], filters.pair[b, 1]
        extend(boxes_lo, boxes_hi, i, boxes_lo[j], boxes_hi[j])
        set_box(boxes_lo, boxes_hi, j, lo, hi)
    refresh(density, filters, b)


@kernel
def copy_filter(source: Filters, a: int, target: Filters, b: int) -> None:
    """Make row `b` of the target the filter of broker `a`."""
    for i in range(source.used[a]):
        set_box(target.lo[b], target.hi[b], i, source.lo[a, i], source.hi[a, i])
    target.used[b], target.measure[b], target.merge[b] = source.used[a], source.measure[a], source.merge[a]
    target.pair[b, 0], target.pair[b, 1] = source.pair[a, 0], source.pair[a, 1]


@kernel
def grow_path(
    density: DensityArrays | None,
    filters: Filters,
    scratch: Filters,
    parent: NDArray[np.int64],
    b: int,
    lo: Corner,
    hi: Corner,
    ceiling: float,
    commit: bool,
) -> float:
    """The growth of all filters from leaf `b` up, if it took in the rectangle; it does so if `commit`.

    What changes below must be inside the broker above, so each level takes in the boxes of the one below.
    `scratch` has a row a level. Above the ceiling the growth may be less than all of it.
    """
    total, way = cheapest_way(density, filters, b, lo, hi, ceiling)
    if way == INSIDE or (not commit and (total > ceiling or parent[b] < 0)):
        return total
    copy_filter(filters, b, scratch, 0)
    take_in(density, scratch, 0, lo, hi, way)
    row, changed = 0, True
    while changed:
        if commit:
            copy_filter(scratch, row, filters, b)
        b = parent[b]
        if b < 0 or total > ceiling:
            break
        copy_filter(filters, b, scratch, row + 1)
        changed = False
        for i in range(scratch.used[row]):
            low, high = scratch.lo[row, i], scratch.hi[row, i]
            growth, way = cheapest_way(density, scratch, row + 1, low, high, np.inf)
            if way != INSIDE:
                take_in(density, scratch, row + 1, low, high, way)
                total, changed = total + growth, True
        row += 1
    return total

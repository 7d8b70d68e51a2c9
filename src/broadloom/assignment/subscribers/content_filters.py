"""Rectangles of event space, and content filters made of a few of them (paper 4, sections III and IV-C).

A filter is a union of at most alpha rectangles, here called boxes. The first part of this module has the
geometry: containment, and the exact measure of unions. The second part grows a filter, and those above it in
the tree, around one more rectangle. The third part builds filters around the members of an assignment.

Kernels take the arrays of boxes and an index, and read arrays out of tuples before a loop: numba counts the
references to every view and tuple member, which takes longer than the comparison itself.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from broadloom.kernels import kernel
from broadloom.model import AssignmentProblem, ContentFilter, DensityArrays, measure_of

Corner = NDArray[np.float64]  # one corner of a rectangle: a number per axis
Corners = NDArray[np.float64]  # a row per rectangle

# Changes by which a filter takes in a rectangle: the index of the box to enlarge, or one of these.
INSIDE, NEW, MERGE = -1, -2, -3
# Rectangles are first gathered into this many boxes, which are then merged down to alpha.
MICRO_BOXES = 24
# The last merges, from this many times alpha boxes, are compared by the measure of the union.
EXACT_MERGES = 2


class Filters(NamedTuple):
    """The filters of all brokers: `lo[b, i]` to `hi[b, i]` for each box `i < used[b]`.

    `measure` is the measure of each filter, and `merge` its growth if the boxes `pair` became one; `refresh`
    keeps both up to date. `around` is scratch space for one rectangle.
    """

    lo: NDArray[np.float64]
    hi: NDArray[np.float64]
    used: NDArray[np.int64]
    measure: NDArray[np.float64]
    merge: NDArray[np.float64]
    pair: NDArray[np.int64]
    around: NDArray[np.float64]


class GrowingFilters(NamedTuple):
    """The filters of a tree of brokers while they grow; `scratch` has a row per level of the tree."""

    density: DensityArrays | None
    parent: NDArray[np.int64]
    filters: Filters
    scratch: Filters


# The broker of each subscriber, and the filters of all brokers.
BrokersAndFilters = tuple[NDArray[np.int64], Filters]


def empty_filters(brokers: int, alpha: int, dimensions: int) -> Filters:
    """Filters without boxes."""
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
    """The filters as tuples of rectangles, which is their form in results."""
    return tuple(
        tuple((filters.lo[b, i].copy(), filters.hi[b, i].copy()) for i in range(filters.used[b]))
        for b in range(len(filters.used))
    )


# Geometry of rectangles


@kernel
def is_inside(lo: Corner, hi: Corner, boxes_lo: Corners, boxes_hi: Corners, i: int) -> bool:
    """Whether a rectangle is inside box `i`."""
    for axis in range(len(lo)):  # noqa: SIM110 (a kernel has no generators)
        if lo[axis] < boxes_lo[i, axis] or hi[axis] > boxes_hi[i, axis]:
            return False
    return True


@kernel
def holds(lo: Corner, hi: Corner, boxes_lo: Corners, boxes_hi: Corners, i: int) -> bool:
    """Whether box `i` is inside a rectangle."""
    for axis in range(len(lo)):  # noqa: SIM110 (a kernel has no generators)
        if lo[axis] > boxes_lo[i, axis] or hi[axis] < boxes_hi[i, axis]:
            return False
    return True


@kernel
def box_around(
    all_lo: NDArray[np.float64], all_hi: NDArray[np.float64], b: int, count: int, lo: Corner, hi: Corner
) -> int:
    """The first of the `count` boxes of broker `b` that the rectangle is inside, or -1."""
    for i in range(count):
        inside = True
        for axis in range(len(lo)):
            if lo[axis] < all_lo[b, i, axis] or hi[axis] > all_hi[b, i, axis]:
                inside = False
                break
        if inside:
            return i
    return -1


@kernel
def are_apart(
    all_lo: NDArray[np.float64], all_hi: NDArray[np.float64], b: int, count: int, lo: Corner, hi: Corner
) -> bool:
    """Whether the rectangle overlaps none of the `count` boxes of broker `b`."""
    for i in range(count):
        overlaps = True
        for axis in range(len(lo)):
            if lo[axis] >= all_hi[b, i, axis] or hi[axis] <= all_lo[b, i, axis]:
                overlaps = False
                break
        if overlaps:
            return False
    return True


@kernel
def span(
    lo: Corner, hi: Corner, boxes_lo: Corners, boxes_hi: Corners, i: int, around: NDArray[np.float64]
) -> None:
    """Write the least rectangle around a rectangle and box `i` to the rows of `around`."""
    for axis in range(len(lo)):
        around[0, axis] = min(lo[axis], boxes_lo[i, axis])
        around[1, axis] = max(hi[axis], boxes_hi[i, axis])


@kernel
def extend(boxes_lo: Corners, boxes_hi: Corners, i: int, lo: Corner, hi: Corner) -> None:
    """Enlarge box `i` so that the rectangle is inside."""
    for axis in range(len(lo)):
        boxes_lo[i, axis] = min(lo[axis], boxes_lo[i, axis])
        boxes_hi[i, axis] = max(hi[axis], boxes_hi[i, axis])


@kernel
def set_box(boxes_lo: Corners, boxes_hi: Corners, i: int, lo: Corner, hi: Corner) -> None:
    """Make box `i` the rectangle. Plain loops: slices would take seconds to compile."""
    for axis in range(len(lo)):
        boxes_lo[i, axis] = lo[axis]
        boxes_hi[i, axis] = hi[axis]


@kernel
def _overlaps(lo: Corner, hi: Corner, boxes_lo: Corners, boxes_hi: Corners, i: int) -> bool:
    """Whether a rectangle and box `i` share interior points."""
    for axis in range(len(lo)):
        if lo[axis] >= boxes_hi[i, axis] or hi[axis] <= boxes_lo[i, axis]:
            return False
    return True


@kernel
def uncovered(
    density: DensityArrays | None, lo: Corner, hi: Corner, boxes_lo: Corners, boxes_hi: Corners
) -> float:
    """The measure of the part of a rectangle that no box covers: exact, in any dimension."""
    boxes = len(boxes_lo)
    overlaps = 0
    first = 0
    second = 0
    for i in range(boxes):
        if _overlaps(lo, hi, boxes_lo, boxes_hi, i):
            if is_inside(lo, hi, boxes_lo, boxes_hi, i):
                return 0.0
            if overlaps == 0:
                first = i
            second = i
            overlaps += 1
    if overlaps == 0:
        return measure_of(density, lo, hi)
    if density is None and overlaps <= 2:
        return _outside_two(lo, hi, boxes_lo, boxes_hi, first, second)
    return _cut_away(density, lo, hi, boxes_lo[first:], boxes_hi[first:])


@kernel
def _outside_two(lo: Corner, hi: Corner, boxes_lo: Corners, boxes_hi: Corners, a: int, b: int) -> float:
    """The volume of a rectangle outside two boxes (`a` can equal `b`), by inclusion and exclusion."""
    whole, in_a, in_b, in_both = 1.0, 1.0, 1.0, 1.0
    for axis in range(len(lo)):
        low_a, high_a = max(lo[axis], boxes_lo[a, axis]), min(hi[axis], boxes_hi[a, axis])
        low_b, high_b = max(lo[axis], boxes_lo[b, axis]), min(hi[axis], boxes_hi[b, axis])
        whole *= hi[axis] - lo[axis]
        in_a *= high_a - low_a
        in_b *= high_b - low_b
        in_both *= max(0.0, min(high_a, high_b) - max(low_a, low_b))
    return max(0.0, whole - in_a - (in_b - in_both))


@kernel
def _cut_away(
    density: DensityArrays | None, lo: Corner, hi: Corner, boxes_lo: Corners, boxes_hi: Corners
) -> float:
    """As `uncovered`, for any number of boxes.

    Each box cuts the remainder of the rectangle into at most two pieces per axis, so nothing is counted twice
    and nothing is subtracted.
    """
    d = len(lo)
    boxes = len(boxes_lo)
    last = 2 * d * boxes + 1
    piece_lo, piece_hi = np.empty((last + 1, d)), np.empty((last + 1, d))
    against = np.zeros(last, np.int64)
    set_box(piece_lo, piece_hi, 0, lo, hi)
    top = 1
    total = 0.0
    # The last row is the current piece; the parts cut from it are pushed below.
    low, high = piece_lo[last], piece_hi[last]
    while top > 0:
        top -= 1
        i = against[top]
        set_box(piece_lo, piece_hi, last, piece_lo[top], piece_hi[top])
        while i < boxes and not _overlaps(low, high, boxes_lo, boxes_hi, i):
            i += 1
        if i == boxes:
            total += measure_of(density, low, high)
            continue
        for axis in range(d):
            if low[axis] < boxes_lo[i, axis]:
                set_box(piece_lo, piece_hi, top, low, high)
                against[top] = i + 1
                piece_hi[top, axis] = boxes_lo[i, axis]
                low[axis] = boxes_lo[i, axis]
                top += 1
            if high[axis] > boxes_hi[i, axis]:
                set_box(piece_lo, piece_hi, top, low, high)
                against[top] = i + 1
                piece_lo[top, axis] = boxes_hi[i, axis]
                high[axis] = boxes_hi[i, axis]
                top += 1
    return total


@kernel
def union_of(density: DensityArrays | None, boxes_lo: Corners, boxes_hi: Corners) -> float:
    """The measure of the union of boxes: for each box, the part that later ones do not cover."""
    total = 0.0
    for i in range(len(boxes_lo)):
        total += uncovered(density, boxes_lo[i], boxes_hi[i], boxes_lo[i + 1 :], boxes_hi[i + 1 :])
    return total


@kernel
def cheapest_merge(
    density: DensityArrays | None, boxes_lo: Corners, boxes_hi: Corners
) -> tuple[float, int, int]:
    """The least growth of the union if two boxes became one, and the two boxes."""
    around = np.empty((2, boxes_lo.shape[1]))
    lo, hi = around[0], around[1]
    best, first, second = np.inf, 0, 0
    for i in range(len(boxes_lo)):
        one_lo, one_hi = boxes_lo[i], boxes_hi[i]
        for j in range(i + 1, len(boxes_lo)):
            span(one_lo, one_hi, boxes_lo, boxes_hi, j, around)
            growth = uncovered(density, lo, hi, boxes_lo, boxes_hi)
            if growth < best:
                best, first, second = growth, i, j
    return best, first, second


# Growth of filters, up the tree


@kernel
def refresh(density: DensityArrays | None, filters: Filters, b: int) -> None:
    """Recompute the measure and the cheapest merge of a filter after a change of its boxes."""
    boxes_lo, boxes_hi = filters.lo[b, : filters.used[b]], filters.hi[b, : filters.used[b]]
    filters.measure[b] = union_of(density, boxes_lo, boxes_hi)
    if filters.used[b] == filters.lo.shape[1]:
        filters.merge[b], filters.pair[b, 0], filters.pair[b, 1] = cheapest_merge(density, boxes_lo, boxes_hi)
    else:
        filters.merge[b] = np.inf


@kernel
def cheapest_change(
    density: DensityArrays | None, filters: Filters, b: int, lo: Corner, hi: Corner, ceiling: float
) -> tuple[float, int]:
    """The least growth of a filter's measure to take in a rectangle, and the change that `take_in` makes.

    Growth above the ceiling can be returned as infinite: no caller needs its exact value.
    """
    used, alpha = filters.used[b], filters.lo.shape[1]
    boxes_lo, boxes_hi = filters.lo[b, :used], filters.hi[b, :used]
    for i in range(used):
        if is_inside(lo, hi, boxes_lo, boxes_hi, i):
            return 0.0, INSIDE
    # Every change covers the rectangle itself.
    least = uncovered(density, lo, hi, boxes_lo, boxes_hi)
    # A full filter cannot take a new box, even if all growth is infinite.
    best, change = (least, NEW) if used < alpha else (np.inf, 0)
    if least > ceiling:
        return np.inf, change
    around = filters.around
    around_lo, around_hi = around[0], around[1]
    for i in range(used):
        span(lo, hi, boxes_lo, boxes_hi, i, around)
        # The filter covers at most its own measure of the enlarged box.
        if measure_of(density, around_lo, around_hi) - filters.measure[b] <= min(best, ceiling):
            growth = uncovered(density, around_lo, around_hi, boxes_lo, boxes_hi)
            if growth < best:
                best, change = growth, i
    if filters.merge[b] < best and filters.merge[b] <= ceiling:
        i, j = filters.pair[b, 0], filters.pair[b, 1]
        span(boxes_lo[i], boxes_hi[i], boxes_lo, boxes_hi, j, around)
        after_lo, after_hi = boxes_lo.copy(), boxes_hi.copy()
        set_box(after_lo, after_hi, i, around_lo, around_hi)
        growth = filters.merge[b] + uncovered(density, lo, hi, after_lo, after_hi)
        if growth < best:
            best, change = growth, MERGE
    return best, change


@kernel
def take_in(
    density: DensityArrays | None, filters: Filters, b: int, lo: Corner, hi: Corner, change: int
) -> None:
    """Change a filter so that the rectangle is inside one of its boxes."""
    boxes_lo, boxes_hi = filters.lo[b], filters.hi[b]
    if change == INSIDE:
        return
    if change >= 0:
        extend(boxes_lo, boxes_hi, change, lo, hi)
    elif change == NEW:
        set_box(boxes_lo, boxes_hi, filters.used[b], lo, hi)
        filters.used[b] += 1
    else:
        i, j = filters.pair[b, 0], filters.pair[b, 1]
        extend(boxes_lo, boxes_hi, i, boxes_lo[j], boxes_hi[j])
        set_box(boxes_lo, boxes_hi, j, lo, hi)
    refresh(density, filters, b)


@kernel
def _copy_filter(source: Filters, a: int, target: Filters, b: int) -> None:
    """Make row `b` of the target the filter of broker `a`."""
    for i in range(source.used[a]):
        set_box(target.lo[b], target.hi[b], i, source.lo[a, i], source.hi[a, i])
    target.used[b] = source.used[a]
    target.measure[b] = source.measure[a]
    target.merge[b] = source.merge[a]
    target.pair[b, 0] = source.pair[a, 0]
    target.pair[b, 1] = source.pair[a, 1]


@kernel
def grow_path(growing: GrowingFilters, b: int, lo: Corner, hi: Corner, ceiling: float, commit: bool) -> float:
    """The growth of all filters from leaf `b` up, if it took in the rectangle; it does so if `commit`.

    Each level must hold the filters below it, so it takes in the changed boxes of the level below. Above the
    ceiling the returned growth can be less than the total.
    """
    density, parent, filters, scratch = growing.density, growing.parent, growing.filters, growing.scratch
    total, change = cheapest_change(density, filters, b, lo, hi, ceiling)
    if change == INSIDE or (not commit and (total > ceiling or parent[b] < 0)):
        return total
    _copy_filter(filters, b, scratch, 0)
    take_in(density, scratch, 0, lo, hi, change)
    row = 0
    changed = True
    while changed:
        if commit:
            _copy_filter(scratch, row, filters, b)
        b = parent[b]
        if b < 0 or total > ceiling:
            break
        _copy_filter(filters, b, scratch, row + 1)
        changed = False
        for i in range(scratch.used[row]):
            low, high = scratch.lo[row, i], scratch.hi[row, i]
            growth, change = cheapest_change(density, scratch, row + 1, low, high, np.inf)
            if change != INSIDE:
                take_in(density, scratch, row + 1, low, high, change)
                total += growth
                changed = True
        row += 1
    return total


# Filters around the members of an assignment


def tight_filters(problem: AssignmentProblem, broker_of: NDArray[np.integer]) -> Filters:
    """Filters of at most alpha boxes per broker around its subscriptions, nested up the tree.

    The smallest such boxes are NP-hard to find, so they are clustered, as the paper suggests: gathered into a
    few micro boxes, then merged pair by pair, the least growth of the union first.
    """
    filters = empty_filters(problem.broker_count, problem.alpha, problem.dimensions)
    order = np.argsort(broker_of, kind="stable")
    ends = np.searchsorted(broker_of[order], np.arange(problem.broker_count + 1))
    for leaf in problem.leaves:
        members = order[ends[leaf] : ends[leaf + 1]]
        set_filter(problem, filters, int(leaf), problem.lo[members], problem.hi[members])
    nest(problem, filters)
    return filters


def tighter(problem: AssignmentProblem, assigned: BrokersAndFilters) -> BrokersAndFilters:
    """The same brokers with the smaller filter per leaf: a new one, or the old one shrunk to its members."""
    broker_of, filters = assigned
    best = tight_filters(problem, broker_of)
    low, high = around_members(problem.lo, problem.hi, broker_of, filters)
    for leaf in problem.leaves:
        used = np.isfinite(low[leaf, :, 0])
        lo, hi = low[leaf, used], high[leaf, used]
        if union_of(problem.density_arrays, lo, hi) < best.measure[leaf]:
            set_filter(problem, best, int(leaf), lo, hi)
    nest(problem, best)
    return broker_of, best


@kernel
def around_members(
    lo: Corners, hi: Corners, broker_of: NDArray[np.int64], filters: Filters
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The least boxes around the members of each filter's boxes; a member is in the first box around it."""
    low, high = np.full(filters.lo.shape, np.inf), np.full(filters.lo.shape, -np.inf)
    for j in range(len(lo)):
        b = broker_of[j]
        k = box_around(filters.lo, filters.hi, b, filters.used[b], lo[j], hi[j])
        extend(low[b], high[b], k, lo[j], hi[j])
    return low, high


def nest(problem: AssignmentProblem, filters: Filters) -> None:
    """Make the filters of inner brokers tight around those of their children, from the leaves up."""
    children: list[list[int]] = [[] for _ in range(problem.broker_count)]
    for broker in problem.top_down[::-1]:
        below = children[broker]
        if below:
            lo, hi = (
                np.concatenate([side[b, : filters.used[b]] for b in below])
                for side in (filters.lo, filters.hi)
            )
            set_filter(problem, filters, int(broker), lo, hi)
        if problem.broker_parent[broker] >= 0:
            children[problem.broker_parent[broker]].append(int(broker))


def set_filter(problem: AssignmentProblem, filters: Filters, broker: int, lo: Corners, hi: Corners) -> None:
    """Make a broker's filter tight around some rectangles."""
    boxes_lo, boxes_hi = few_boxes(problem.density_arrays, lo, hi, problem.alpha)
    count = len(boxes_lo)
    filters.used[broker] = count
    filters.lo[broker, :count] = boxes_lo
    filters.hi[broker, :count] = boxes_hi
    refresh(problem.density_arrays, filters, broker)


@kernel
def few_boxes(
    density: DensityArrays | None, lo: Corners, hi: Corners, alpha: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """At most `alpha` boxes such that each rectangle is inside one of them."""
    d, micro = lo.shape[1], max(MICRO_BOXES, alpha)
    boxes_lo, boxes_hi = np.empty((micro + 1, d)), np.empty((micro + 1, d))
    count = 0
    for j in range(len(lo)):
        inside = False
        low, high = lo[j], hi[j]
        for i in range(count):
            if is_inside(low, high, boxes_lo, boxes_hi, i):
                inside = True
                break
        if not inside:
            set_box(boxes_lo, boxes_hi, count, low, high)
            count += 1
            if count > micro:
                one, other = _roughly_cheapest_merge(density, boxes_lo, boxes_hi)
                count = _merge(boxes_lo, boxes_hi, count, one, other)
    while count > alpha:
        if count > EXACT_MERGES * alpha:
            one, other = _roughly_cheapest_merge(density, boxes_lo[:count], boxes_hi[:count])
        else:
            _, one, other = cheapest_merge(density, boxes_lo[:count], boxes_hi[:count])
        count = _merge(boxes_lo, boxes_hi, count, one, other)
    return boxes_lo[:count].copy(), boxes_hi[:count].copy()


@kernel
def _roughly_cheapest_merge(
    density: DensityArrays | None, boxes_lo: Corners, boxes_hi: Corners
) -> tuple[int, int]:
    """The pair whose common box exceeds the two by the least, other boxes ignored: much faster."""
    count = len(boxes_lo)
    around = np.empty((2, boxes_lo.shape[1]))
    around_lo, around_hi = around[0], around[1]
    own = np.empty(count)
    for i in range(count):
        own[i] = measure_of(density, boxes_lo[i], boxes_hi[i])
    best, first, second = np.inf, 0, 1
    for i in range(count):
        low, high = boxes_lo[i], boxes_hi[i]
        for j in range(i + 1, count):
            span(low, high, boxes_lo, boxes_hi, j, around)
            excess = measure_of(density, around_lo, around_hi) - own[i] - own[j]
            if excess < best:
                best, first, second = excess, i, j
    return first, second


@kernel
def _merge(boxes_lo: Corners, boxes_hi: Corners, count: int, i: int, j: int) -> int:
    """Replace two boxes by the box around them, and move the last box to the free row; the new count."""
    extend(boxes_lo, boxes_hi, i, boxes_lo[j], boxes_hi[j])
    set_box(boxes_lo, boxes_hi, j, boxes_lo[count - 1], boxes_hi[count - 1])
    return count - 1

"""Rectangles of event space: what is inside what, and the exact measure of unions."""

import numpy as np
from numpy.typing import NDArray

from broadloom.kernels import kernel
from broadloom.model import DensityArrays, measure_of

Corner = NDArray[np.float64]

# Kernels name a box by its arrays and its number, and take arrays out of tuples before a loop: numba counts
# the references to every view and member, which takes longer than the comparison itself.


@kernel
def is_inside(
    lo: Corner, hi: Corner, boxes_lo: NDArray[np.float64], boxes_hi: NDArray[np.float64], i: int
) -> bool:
    """Whether a rectangle is inside box `i`."""
    for axis in range(len(lo)):  # noqa: SIM110 (a kernel has no generators)
        if lo[axis] < boxes_lo[i, axis] or hi[axis] > boxes_hi[i, axis]:
            return False
    return True


@kernel
def holds(
    lo: Corner, hi: Corner, boxes_lo: NDArray[np.float64], boxes_hi: NDArray[np.float64], i: int
) -> bool:
    """Whether box `i` is inside a rectangle."""
    for axis in range(len(lo)):  # noqa: SIM110 (a kernel has no generators)
        if lo[axis] > boxes_lo[i, axis] or hi[axis] < boxes_hi[i, axis]:
            return False
    return True


@kernel
def box_with(
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
    lo: Corner,
    hi: Corner,
    boxes_lo: NDArray[np.float64],
    boxes_hi: NDArray[np.float64],
    i: int,
    to_lo: Corner,
    to_hi: Corner,
) -> None:
    """Write the least rectangle around a rectangle and box `i` to `to_lo`, `to_hi`."""
    for axis in range(len(lo)):
        to_lo[axis] = min(lo[axis], boxes_lo[i, axis])
        to_hi[axis] = max(hi[axis], boxes_hi[i, axis])


@kernel
def extend(
    boxes_lo: NDArray[np.float64], boxes_hi: NDArray[np.float64], i: int, lo: Corner, hi: Corner
) -> None:
    """Enlarge box `i` so that the rectangle is inside."""
    for axis in range(len(lo)):
        boxes_lo[i, axis] = min(lo[axis], boxes_lo[i, axis])
        boxes_hi[i, axis] = max(hi[axis], boxes_hi[i, axis])


@kernel
def set_box(
    boxes_lo: NDArray[np.float64], boxes_hi: NDArray[np.float64], i: int, lo: Corner, hi: Corner
) -> None:
    """Make box `i` the rectangle. Plain loops: slices would take seconds to compile."""
    for axis in range(len(lo)):
        boxes_lo[i, axis] = lo[axis]
        boxes_hi[i, axis] = hi[axis]


@kernel
def _overlaps(
    lo: Corner, hi: Corner, boxes_lo: NDArray[np.float64], boxes_hi: NDArray[np.float64], i: int
) -> bool:
    """Whether a rectangle and box `i` have more in common than their rims."""
    for axis in range(len(lo)):
        if lo[axis] >= boxes_hi[i, axis] or hi[axis] <= boxes_lo[i, axis]:
            return False
    return True


@kernel
def uncovered(
    density: DensityArrays | None,
    lo: Corner,
    hi: Corner,
    boxes_lo: NDArray[np.float64],
    boxes_hi: NDArray[np.float64],
) -> float:
    """The measure of the part of a rectangle that none of the boxes covers: exact, in any dimension."""
    boxes, overlaps, first, second = len(boxes_lo), 0, 0, 0
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
def _outside_two(
    lo: Corner, hi: Corner, boxes_lo: NDArray[np.float64], boxes_hi: NDArray[np.float64], a: int, b: int
) -> float:
    """The volume of a rectangle outside two boxes (which may be the same), by inclusion and exclusion."""
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
    density: DensityArrays | None,
    lo: Corner,
    hi: Corner,
    boxes_lo: NDArray[np.float64],
    boxes_hi: NDArray[np.float64],
) -> float:
    """As `uncovered`, for any number of boxes.

    Each box cuts what is left of the rectangle into at most two pieces an axis, so nothing is counted twice
    and nothing is subtracted.
    """
    d, boxes = len(lo), len(boxes_lo)
    last = 2 * d * boxes + 1
    piece_lo, piece_hi = np.empty((last + 1, d)), np.empty((last + 1, d))
    against = np.zeros(last, np.int64)
    set_box(piece_lo, piece_hi, 0, lo, hi)
    top, total = 1, 0.0
    # The last row is the piece at hand: what is cut from it is pushed below.
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
def union_of(
    density: DensityArrays | None, boxes_lo: NDArray[np.float64], boxes_hi: NDArray[np.float64]
) -> float:
    """The measure of the union of boxes: each one's part that later ones do not cover."""
    total = 0.0
    for i in range(len(boxes_lo)):
        total += uncovered(density, boxes_lo[i], boxes_hi[i], boxes_lo[i + 1 :], boxes_hi[i + 1 :])
    return total


@kernel
def cheapest_merge(
    density: DensityArrays | None, boxes_lo: NDArray[np.float64], boxes_hi: NDArray[np.float64]
) -> tuple[float, int, int]:
    """The pair of boxes whose common rectangle adds least to the union, and how much."""
    lo, hi = np.empty(boxes_lo.shape[1]), np.empty(boxes_lo.shape[1])
    best, first, second = np.inf, 0, 0
    for i in range(len(boxes_lo)):
        one_lo, one_hi = boxes_lo[i], boxes_hi[i]
        for j in range(i + 1, len(boxes_lo)):
            span(one_lo, one_hi, boxes_lo, boxes_hi, j, lo, hi)
            growth = uncovered(density, lo, hi, boxes_lo, boxes_hi)
            if growth < best:
                best, first, second = growth, i, j
    return best, first, second

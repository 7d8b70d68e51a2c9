"""Who is in which box of which broker: the state of local search, and what it costs."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from broadloom.assignment.subscribers._boxes import extend, is_inside, uncovered
from broadloom.assignment.subscribers._filters import Filters
from broadloom.assignment.subscribers._greedy import Wants
from broadloom.kernels import kernel
from broadloom.model import DensityArrays, measure_of


class Placing(NamedTuple):
    """Who is in which box of which broker, and what that costs; changed in place.

    Boxes `lo[b, k]` to `hi[b, k]` are tight around their members; one without members is inverted, so that it
    overlaps nothing and the box around it and a rectangle is the rectangle. The members of a box are a list:
    `head[b, k]`, then `after[j]`, both ways. A member stands for `weight[j]` subscribers.
    """

    broker: NDArray[np.int64]
    box: NDArray[np.int64]
    lo: NDArray[np.float64]
    hi: NDArray[np.float64]
    cost: NDArray[np.float64]
    load: NDArray[np.int64]
    head: NDArray[np.int64]
    size: NDArray[np.int64]
    after: NDArray[np.int64]
    before: NDArray[np.int64]
    weight: NDArray[np.int64]


def place_all(
    wants: Wants, broker_of: NDArray[np.int64], weight: NDArray[np.int64], filters: Filters
) -> Placing:
    """Put each member in the smallest box of its broker that it is inside, and tighten the boxes."""
    m, (n, alpha, d) = len(broker_of), filters.lo.shape
    placing = Placing(
        broker_of.astype(np.int64),
        np.zeros(m, np.int64),
        np.full((n, alpha, d), np.inf),
        np.full((n, alpha, d), -np.inf),
        np.zeros(n),
        np.bincount(broker_of, weight, n).astype(np.int64),
        np.full((n, alpha), -1, np.int64),
        np.zeros((n, alpha), np.int64),
        np.empty(m, np.int64),
        np.empty(m, np.int64),
        weight,
    )
    _place_all(wants, placing, filters)
    return placing


@kernel
def _place_all(wants: Wants, placing: Placing, filters: Filters) -> None:
    for j in range(len(placing.broker)):
        b = placing.broker[j]
        best, least = -1, np.inf
        boxes_lo, boxes_hi = filters.lo[b], filters.hi[b]
        for k in range(filters.used[b]):
            if is_inside(wants.lo[j], wants.hi[j], boxes_lo, boxes_hi, k):
                size = measure_of(wants.density, filters.lo[b, k], filters.hi[b, k])
                if best < 0 or size < least:
                    best, least = k, size
        link(placing, j, b, best)
    for b in range(len(placing.cost)):
        tighten_all(wants, placing, b)


@kernel
def link(placing: Placing, j: int, b: int, k: int) -> None:
    """Make `j` a member of box `k` of `b`."""
    first = placing.head[b, k]
    placing.broker[j], placing.box[j], placing.before[j], placing.after[j] = b, k, -1, first
    if first >= 0:
        placing.before[first] = j
    placing.head[b, k] = j
    placing.size[b, k] += 1


@kernel
def unlink(placing: Placing, j: int) -> None:
    """Take `j` out of its box."""
    b, k = placing.broker[j], placing.box[j]
    if placing.before[j] >= 0:
        placing.after[placing.before[j]] = placing.after[j]
    else:
        placing.head[b, k] = placing.after[j]
    if placing.after[j] >= 0:
        placing.before[placing.after[j]] = placing.before[j]
    placing.size[b, k] -= 1


@kernel
def move(placing: Placing, j: int, b: int, k: int) -> None:
    """Make `j` a member of another box, with the loads."""
    placing.load[placing.broker[j]] -= placing.weight[j]
    unlink(placing, j)
    link(placing, j, b, k)
    placing.load[b] += placing.weight[j]


@kernel
def tighten(wants: Wants, placing: Placing, b: int, k: int) -> None:
    """Make a box the least one around its members."""
    boxes_lo, boxes_hi = placing.lo[b], placing.hi[b]
    for axis in range(placing.lo.shape[2]):
        boxes_lo[k, axis], boxes_hi[k, axis] = np.inf, -np.inf
    j = placing.head[b, k]
    while j >= 0:
        extend(boxes_lo, boxes_hi, k, wants.lo[j], wants.hi[j])
        j = placing.after[j]


@kernel
def tighten_all(wants: Wants, placing: Placing, b: int) -> None:
    """Tighten all boxes of a broker, and take down what they cost."""
    for k in range(placing.head.shape[1]):
        tighten(wants, placing, b, k)
    placing.cost[b] = boxes_measure(wants.density, placing.lo[b], placing.hi[b])


@kernel
def boxes_measure(
    density: DensityArrays | None, boxes_lo: NDArray[np.float64], boxes_hi: NDArray[np.float64]
) -> float:
    """The measure of the union of boxes, inverted ones left out."""
    total = 0.0
    for i in range(len(boxes_lo)):
        if boxes_lo[i, 0] <= boxes_hi[i, 0]:
            total += uncovered(density, boxes_lo[i], boxes_hi[i], boxes_lo[i + 1 :], boxes_hi[i + 1 :])
    return total

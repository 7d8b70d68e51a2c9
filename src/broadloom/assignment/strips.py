"""Strip moves: a local search that ejects the subscribers who hold a filter's edge.

A box of a filter is as large as its outermost members make it. A strip move takes members off one side of a
box, outermost first, and puts each where the filters grow least; the best run of them is kept. Moving all
members closes the box. Loads stay within their limits throughout, so any stop is valid.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from broadloom._jit import kernel
from broadloom.assignment._boxes import Filters, box_with, extend, is_inside, set_box, span, uncovered
from broadloom.assignment._greedy import Wants
from broadloom.assignment.reach import Reach
from broadloom.assignment.tighten import few_boxes
from broadloom.model.density import DensityArrays, measure_of

# Patience grows by this factor as long as members reach equally far.
TIES = 8


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
        _link(placing, j, b, best)
    for b in range(len(placing.cost)):
        for k in range(placing.head.shape[1]):
            _tighten(wants, placing, b, k)
        placing.cost[b] = _measure(wants.density, placing.lo[b], placing.hi[b])


@kernel
def _link(placing: Placing, j: int, b: int, k: int) -> None:
    """Make `j` a member of box `k` of `b`."""
    first = placing.head[b, k]
    placing.broker[j], placing.box[j], placing.before[j], placing.after[j] = b, k, -1, first
    if first >= 0:
        placing.before[first] = j
    placing.head[b, k] = j
    placing.size[b, k] += 1


@kernel
def _unlink(placing: Placing, j: int) -> None:
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
def _move(placing: Placing, j: int, b: int, k: int) -> None:
    """Make `j` a member of another box, with the loads."""
    placing.load[placing.broker[j]] -= placing.weight[j]
    _unlink(placing, j)
    _link(placing, j, b, k)
    placing.load[b] += placing.weight[j]


@kernel
def _tighten(wants: Wants, placing: Placing, b: int, k: int) -> None:
    """Make a box the least one around its members."""
    boxes_lo, boxes_hi = placing.lo[b], placing.hi[b]
    for axis in range(placing.lo.shape[2]):
        boxes_lo[k, axis], boxes_hi[k, axis] = np.inf, -np.inf
    j = placing.head[b, k]
    while j >= 0:
        extend(boxes_lo, boxes_hi, k, wants.lo[j], wants.hi[j])
        j = placing.after[j]


@kernel
def _measure(
    density: DensityArrays | None, boxes_lo: NDArray[np.float64], boxes_hi: NDArray[np.float64]
) -> float:
    """The measure of the union of boxes, inverted ones left out."""
    total = 0.0
    for i in range(len(boxes_lo)):
        if boxes_lo[i, 0] <= boxes_hi[i, 0]:
            total += uncovered(density, boxes_lo[i], boxes_hi[i], boxes_lo[i + 1 :], boxes_hi[i + 1 :])
    return total


@kernel
def _best_place(
    wants: Wants,
    reach: Reach,
    limit: NDArray[np.int64],
    above: Filters,
    placing: Placing,
    j: int,
    avoid: int,
    around: NDArray[np.float64],
) -> tuple[float, int, int]:
    """Where the measure grows least if `j` leaves box `avoid` of its broker: growth, broker and box.

    A broker that already lets it through is best, the least loaded of them. With brokers above the leaves, a
    box may only grow inside one box of its parent, so that nothing grows further up.
    """
    lo, hi, g, own = wants.lo[j], wants.hi[j], reach.group[j], placing.broker[j]
    around_lo, around_hi = around[0], around[1]
    all_lo, all_hi, load, cost = placing.lo, placing.hi, placing.load, placing.cost
    brokers, capacity, density, alpha = reach.brokers, wants.capacity, wants.density, placing.lo.shape[1]
    weight = placing.weight[j]
    least, best, best_box, lightest = np.inf, -1, -1, np.inf
    for p in range(reach.start[g], reach.start[g + 1]):
        b = brokers[p]
        if b == own or load[b] + weight <= limit[b]:
            k = box_with(all_lo, all_hi, b, alpha, lo, hi)
            ratio = load[b] / capacity[b]
            if k >= 0 and not (b == own and k == avoid) and ratio < lightest:
                least, best, best_box, lightest = 0.0, b, k, ratio
    if best >= 0:
        return least, best, best_box
    for p in range(reach.start[g], reach.start[g + 1]):
        b = brokers[p]
        if b != own and load[b] + weight > limit[b]:
            continue
        boxes_lo, boxes_hi, parent = all_lo[b], all_hi[b], wants.parent[b]
        for k in range(alpha):
            if b == own and k == avoid:
                continue
            span(lo, hi, boxes_lo, boxes_hi, k, around_lo, around_hi)
            if measure_of(density, around_lo, around_hi) - cost[b] >= least:
                continue
            if (
                parent >= 0
                and box_with(above.lo, above.hi, parent, above.used[parent], around_lo, around_hi) < 0
            ):
                continue
            growth = uncovered(density, around_lo, around_hi, boxes_lo, boxes_hi)
            if growth < least:
                least, best, best_box = growth, b, k
    return least, best, best_box


@kernel
def strip_moves(
    wants: Wants,
    reach: Reach,
    limit: NDArray[np.int64],
    above: Filters,
    placing: Placing,
    order: NDArray[np.int64],
    threshold: NDArray[np.float64],
    patience: NDArray[np.int64],
) -> None:
    """Try a strip move at each side of each box, in the order given, with its threshold and patience."""
    alpha, d = placing.lo.shape[1:]
    for i in range(len(order)):
        place, side = divmod(order[i], 2 * d)
        b, k = divmod(place, alpha)
        if placing.size[b, k] > 0:
            _strip(wants, reach, limit, above, placing, b, k, side, threshold[i], patience[i])


@kernel
def _reaches(wants: Wants, j: int, side: int) -> float:
    """How far the rectangle of `j` reaches to a side: the less, the further."""
    return wants.lo[j, side >> 1] if side & 1 else -wants.hi[j, side >> 1]


@kernel
def _outermost_first(wants: Wants, placing: Placing, b: int, k: int, side: int) -> NDArray[np.int64]:
    """The members of a box, those that reach furthest to the side first."""
    count = placing.size[b, k]
    members, key = np.empty(count, np.int64), np.empty(count)
    j = placing.head[b, k]
    for i in range(count):
        members[i] = j
        key[i] = _reaches(wants, j, side)
        j = placing.after[j]
    return members[np.argsort(key, kind="mergesort")]


@kernel
def _strip(
    wants: Wants,
    reach: Reach,
    limit: NDArray[np.int64],
    above: Filters,
    placing: Placing,
    b: int,
    k: int,
    side: int,
    threshold: float,
    patience: int,
) -> None:
    """Eject members off one side of box `k` of `b`; keep the best run of them if it is below the threshold.

    It ends when no member has a place, when no further one can pay, or after `patience` in vain.
    """
    d = placing.lo.shape[2]
    members = _outermost_first(wants, placing, b, k, side)
    count = len(members)
    # What box k shrinks to when the first i members are gone.
    rest_lo, rest_hi = np.full((count + 1, d), np.inf), np.full((count + 1, d), -np.inf)
    for i in range(count - 1, -1, -1):
        j = members[i]
        span(wants.lo[j], wants.hi[j], rest_lo, rest_hi, i + 1, rest_lo[i], rest_hi[i])
    target = np.empty((count, 2), np.int64)
    old_lo, old_hi = np.empty((count, d)), np.empty((count, d))
    around = np.empty((2, d))
    start, inserted, best, best_count, done = placing.cost[b], 0.0, threshold, 0, 0
    end, floor = _horizon(wants, placing, members, rest_lo, rest_hi, b, k, side, done, patience)
    while done < end:
        j = members[done]
        set_box(placing.lo[b], placing.hi[b], k, rest_lo[done + 1], rest_hi[done + 1])
        placing.cost[b] = _measure(wants.density, placing.lo[b], placing.hi[b])
        growth, to, box = _best_place(wants, reach, limit, above, placing, j, k, around)
        if to < 0 or inserted + growth + floor - start >= best:
            break
        set_box(old_lo, old_hi, done, placing.lo[to, box], placing.hi[to, box])
        extend(placing.lo[to], placing.hi[to], box, wants.lo[j], wants.hi[j])
        target[done, 0], target[done, 1] = to, box
        _move(placing, j, to, box)
        placing.cost[to] += growth
        if to != b:
            inserted += growth
        done += 1
        total = inserted + placing.cost[b] - start
        if total < best:
            best, best_count = total, done
            end, floor = _horizon(wants, placing, members, rest_lo, rest_hi, b, k, side, done, patience)
    while done > best_count:
        done -= 1
        to, box = target[done, 0], target[done, 1]
        set_box(placing.lo[to], placing.hi[to], box, old_lo[done], old_hi[done])
        _move(placing, members[done], b, k)
        if to != b:
            placing.cost[to] = _measure(wants.density, placing.lo[to], placing.hi[to])
    set_box(placing.lo[b], placing.hi[b], k, rest_lo[done], rest_hi[done])
    placing.cost[b] = _measure(wants.density, placing.lo[b], placing.hi[b])


@kernel
def _horizon(
    wants: Wants,
    placing: Placing,
    members: NDArray[np.int64],
    rest_lo: NDArray[np.float64],
    rest_hi: NDArray[np.float64],
    b: int,
    k: int,
    side: int,
    done: int,
    patience: int,
) -> tuple[int, float]:
    """How many members a strip move tries at most if nothing pays before, and the least cost of `b` by then.

    Those who reach equally far let the box shrink only together, so patience lasts longer among them. The
    boxes of `b` besides `k` only grow on the way: what does not pay with that cost never will.
    """
    end = done + patience
    while end < min(len(members), done + TIES * patience) and (
        _reaches(wants, members[end], side) == _reaches(wants, members[end - 1], side)
    ):
        end += 1
    end = min(end, len(members))
    set_box(placing.lo[b], placing.hi[b], k, rest_lo[end], rest_hi[end])
    return end, _measure(wants.density, placing.lo[b], placing.hi[b])


@kernel
def rebalance(
    wants: Wants, reach: Reach, limit: NDArray[np.int64], placing: Placing, order: NDArray[np.int64]
) -> None:
    """Move subscribers, at no cost, to less loaded brokers that let them through anyway; then tighten all."""
    all_lo, all_hi, load, alpha = placing.lo, placing.hi, placing.load, placing.lo.shape[1]
    brokers, capacity = reach.brokers, wants.capacity
    for j in order:
        g, own, lo, hi = reach.group[j], placing.broker[j], wants.lo[j], wants.hi[j]
        best, best_box = own, -1
        weight = placing.weight[j]
        lightest = (load[own] - weight) / capacity[own]
        for p in range(reach.start[g], reach.start[g + 1]):
            b = brokers[p]
            ratio = load[b] / capacity[b]
            if b != own and ratio < lightest and load[b] + weight <= limit[b]:
                k = box_with(all_lo, all_hi, b, alpha, lo, hi)
                if k >= 0:
                    best, best_box, lightest = b, k, ratio
        if best_box >= 0:
            _move(placing, j, best, best_box)
    for b in range(len(placing.cost)):
        for k in range(placing.head.shape[1]):
            _tighten(wants, placing, b, k)
        placing.cost[b] = _measure(wants.density, placing.lo[b], placing.hi[b])


@kernel
def recluster(wants: Wants, above: Filters, placing: Placing, key: NDArray[np.float64]) -> None:
    """Cluster the members of each broker anew, in the order of their keys; keep what costs less."""
    alpha, d = placing.lo.shape[1:]
    for b in range(len(placing.cost)):
        if placing.load[b] == 0:
            continue
        members = _members(placing, b)
        members = members[np.argsort(key[members])]
        lo, hi = np.empty((len(members), d)), np.empty((len(members), d))
        for i in range(len(members)):
            set_box(lo, hi, i, wants.lo[members[i]], wants.hi[members[i]])
        boxes_lo, boxes_hi = few_boxes(wants.density, lo, hi, alpha)
        if _measure(wants.density, boxes_lo, boxes_hi) >= placing.cost[b]:
            continue
        if wants.parent[b] >= 0 and not _fits(above, wants.parent[b], boxes_lo, boxes_hi):
            continue
        for j in members:
            _unlink(placing, j)
        for j in members:
            k = 0
            while not is_inside(wants.lo[j], wants.hi[j], boxes_lo, boxes_hi, k):
                k += 1
            _link(placing, j, b, k)
        for k in range(alpha):
            _tighten(wants, placing, b, k)
        placing.cost[b] = _measure(wants.density, placing.lo[b], placing.hi[b])


@kernel
def _members(placing: Placing, b: int) -> NDArray[np.int64]:
    """All members of a broker's boxes."""
    result, i = np.empty(placing.size[b].sum(), np.int64), 0
    for k in range(placing.head.shape[1]):
        j = placing.head[b, k]
        while j >= 0:
            result[i] = j
            j, i = placing.after[j], i + 1
    return result


@kernel
def _fits(above: Filters, b: int, boxes_lo: NDArray[np.float64], boxes_hi: NDArray[np.float64]) -> bool:
    """Whether each box is inside one box of broker `b` above."""
    for k in range(len(boxes_lo)):
        if box_with(above.lo, above.hi, b, above.used[b], boxes_lo[k], boxes_hi[k]) < 0:
            return False
    return True

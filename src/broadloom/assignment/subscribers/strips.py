"""Strip moves: a local search that ejects the subscribers who hold a filter's edge.

A box of a filter is as large as its outermost members make it. A strip move takes members off one side of a
box, outermost first, and puts each where the filters grow least; the best run of them is kept. Moving all
members closes the box. Loads stay within their limits throughout, so any stop is valid.
"""

import numpy as np
from numpy.typing import NDArray

from broadloom.assignment.subscribers._boxes import box_with, extend, set_box, span, uncovered
from broadloom.assignment.subscribers._filters import Filters
from broadloom.assignment.subscribers._greedy import Wants
from broadloom.assignment.subscribers.placing import Placing, boxes_measure, move
from broadloom.assignment.subscribers.reach import Reach
from broadloom.kernels import kernel
from broadloom.model import measure_of

# Patience grows by this factor as long as members reach equally far.
TIES = 8


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
        placing.cost[b] = boxes_measure(wants.density, placing.lo[b], placing.hi[b])
        growth, to, box = _best_place(wants, reach, limit, above, placing, j, k, around)
        if to < 0 or inserted + growth + floor - start >= best:
            break
        set_box(old_lo, old_hi, done, placing.lo[to, box], placing.hi[to, box])
        extend(placing.lo[to], placing.hi[to], box, wants.lo[j], wants.hi[j])
        target[done, 0], target[done, 1] = to, box
        move(placing, j, to, box)
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
        move(placing, members[done], b, k)
        if to != b:
            placing.cost[to] = boxes_measure(wants.density, placing.lo[to], placing.hi[to])
    set_box(placing.lo[b], placing.hi[b], k, rest_lo[done], rest_hi[done])
    placing.cost[b] = boxes_measure(wants.density, placing.lo[b], placing.hi[b])


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
    return end, boxes_measure(wants.density, placing.lo[b], placing.hi[b])

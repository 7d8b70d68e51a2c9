"""Moves of the local search over a placement of subscribers in boxes (ours): strip moves and compaction.

A box of a filter is as large as its outermost members make it. A strip move takes members off one side of a
box, outermost first, and puts each where the filters grow least; the best run of them is kept. Moving all
members closes the box. Between strip moves, compaction evens out loads at no cost and clusters the members of
each broker again. Loads stay within their limits throughout, so the search can stop at any time.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from broadloom.assignment.subscribers.content_filters import (
    Corners,
    Filters,
    box_around,
    extend,
    few_boxes,
    is_inside,
    set_box,
    span,
    uncovered,
)
from broadloom.assignment.subscribers.greedy_assignment import ProblemArrays
from broadloom.assignment.subscribers.load_flow import CandidateBrokers
from broadloom.kernels import kernel
from broadloom.model import DensityArrays, measure_of

# Patience grows by this factor while members extend equally far.
TIES = 8


class Placement(NamedTuple):
    """The broker and the box of each member, and the cost of the boxes; kernels change it.

    Boxes `lo[b, k]` to `hi[b, k]` are tight around their members. A box without members is inverted: it
    overlaps nothing, and the box around it and a rectangle is the rectangle. The members of a box are a
    doubly linked list from `head[b, k]`, by `after[j]` and `before[j]`. A member represents `weight[j]`
    subscribers.
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


class SearchState(NamedTuple):
    """The state of the local search: the members' problem, and their placement within the limits.

    `nested` are the filters of all brokers as they were before the current pass. A leaf's box grows only
    inside one box of its parent there, so that nothing grows further up.
    """

    arrays: ProblemArrays
    candidates: CandidateBrokers
    limit: NDArray[np.int64]
    placement: Placement
    nested: Filters


def place_members(
    arrays: ProblemArrays, broker_of: NDArray[np.int64], weight: NDArray[np.int64], filters: Filters
) -> Placement:
    """Put each member in the smallest box of its broker that it is inside, and tighten the boxes."""
    m, (n, alpha, d) = len(broker_of), filters.lo.shape
    placement = Placement(
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
    _place_members(arrays, placement, filters)
    return placement


@kernel
def _place_members(arrays: ProblemArrays, placement: Placement, filters: Filters) -> None:
    for j in range(len(placement.broker)):
        b = placement.broker[j]
        best, least = -1, np.inf
        boxes_lo, boxes_hi = filters.lo[b], filters.hi[b]
        for k in range(filters.used[b]):
            if is_inside(arrays.lo[j], arrays.hi[j], boxes_lo, boxes_hi, k):
                size = measure_of(arrays.density, filters.lo[b, k], filters.hi[b, k])
                if best < 0 or size < least:
                    best, least = k, size
        _link(placement, j, b, best)
    for b in range(len(placement.cost)):
        _tighten(arrays, placement, b)


@kernel
def _link(placement: Placement, j: int, b: int, k: int) -> None:
    """Make `j` a member of box `k` of `b`."""
    first = placement.head[b, k]
    placement.broker[j] = b
    placement.box[j] = k
    placement.before[j] = -1
    placement.after[j] = first
    if first >= 0:
        placement.before[first] = j
    placement.head[b, k] = j
    placement.size[b, k] += 1


@kernel
def _unlink(placement: Placement, j: int) -> None:
    """Take `j` out of its box."""
    b, k = placement.broker[j], placement.box[j]
    if placement.before[j] >= 0:
        placement.after[placement.before[j]] = placement.after[j]
    else:
        placement.head[b, k] = placement.after[j]
    if placement.after[j] >= 0:
        placement.before[placement.after[j]] = placement.before[j]
    placement.size[b, k] -= 1


@kernel
def _move(placement: Placement, j: int, b: int, k: int) -> None:
    """Make `j` a member of another box, and update the loads."""
    placement.load[placement.broker[j]] -= placement.weight[j]
    _unlink(placement, j)
    _link(placement, j, b, k)
    placement.load[b] += placement.weight[j]


@kernel
def _tighten(arrays: ProblemArrays, placement: Placement, b: int) -> None:
    """Make each box of a broker the least one around its members, and update the cost."""
    boxes_lo, boxes_hi = placement.lo[b], placement.hi[b]
    for k in range(placement.head.shape[1]):
        for axis in range(placement.lo.shape[2]):
            boxes_lo[k, axis] = np.inf
            boxes_hi[k, axis] = -np.inf
        j = placement.head[b, k]
        while j >= 0:
            extend(boxes_lo, boxes_hi, k, arrays.lo[j], arrays.hi[j])
            j = placement.after[j]
    placement.cost[b] = _boxes_measure(arrays.density, boxes_lo, boxes_hi)


@kernel
def _boxes_measure(density: DensityArrays | None, boxes_lo: Corners, boxes_hi: Corners) -> float:
    """The measure of the union of boxes, without inverted ones."""
    total = 0.0
    for i in range(len(boxes_lo)):
        if boxes_lo[i, 0] <= boxes_hi[i, 0]:
            total += uncovered(density, boxes_lo[i], boxes_hi[i], boxes_lo[i + 1 :], boxes_hi[i + 1 :])
    return total


# Strip moves


class _Strip(NamedTuple):
    """One side of box `k` of broker `b`.

    `members` are those of the box, outermost first; when the first `i` of them are gone, the box shrinks to
    `rest_lo[i]`, `rest_hi[i]`. The move ends after `patience` members without success.
    """

    b: int
    k: int
    side: int
    patience: int
    members: NDArray[np.int64]
    rest_lo: NDArray[np.float64]
    rest_hi: NDArray[np.float64]


@kernel(cost=15)
def strip_moves(
    state: SearchState,
    order: NDArray[np.int64],
    threshold: NDArray[np.float64],
    patience: NDArray[np.int64],
) -> None:
    """Try a strip move at each side of each box, in this order, with its threshold and patience."""
    alpha, d = state.placement.lo.shape[1:]
    for i in range(len(order)):
        index, side = divmod(order[i], 2 * d)
        b, k = divmod(index, alpha)
        if state.placement.size[b, k] > 0:
            _strip_move(state, b, k, side, threshold[i], patience[i])


@kernel
def _strip_move(state: SearchState, b: int, k: int, side: int, threshold: float, patience: int) -> None:
    """Move members off one side of box `k` of `b`; keep the best run of them if it is below the threshold.

    It ends when a member fits nowhere, when no further one can pay off, or when patience is exhausted.
    """
    arrays, placement = state.arrays, state.placement
    d = placement.lo.shape[2]
    members = _outermost_first(arrays, placement, b, k, side)
    count = len(members)
    rest_lo, rest_hi = np.full((count + 1, d), np.inf), np.full((count + 1, d), -np.inf)
    for i in range(count - 1, -1, -1):
        j = members[i]
        set_box(rest_lo, rest_hi, i, rest_lo[i + 1], rest_hi[i + 1])
        extend(rest_lo, rest_hi, i, arrays.lo[j], arrays.hi[j])
    strip = _Strip(b, k, side, patience, members, rest_lo, rest_hi)
    target = np.empty((count, 2), np.int64)
    old_lo, old_hi = np.empty((count, d)), np.empty((count, d))
    around = np.empty((2, d))
    start = placement.cost[b]
    inserted = 0.0
    best, best_count = threshold, 0
    done = 0
    end, floor = _horizon(arrays, placement, strip, done)
    while done < end:
        j = members[done]
        set_box(placement.lo[b], placement.hi[b], k, rest_lo[done + 1], rest_hi[done + 1])
        placement.cost[b] = _boxes_measure(arrays.density, placement.lo[b], placement.hi[b])
        growth, to, box = _best_box(state, j, k, around)
        if to < 0 or inserted + growth + floor - start >= best:
            break
        set_box(old_lo, old_hi, done, placement.lo[to, box], placement.hi[to, box])
        extend(placement.lo[to], placement.hi[to], box, arrays.lo[j], arrays.hi[j])
        target[done, 0] = to
        target[done, 1] = box
        _move(placement, j, to, box)
        placement.cost[to] += growth
        if to != b:
            inserted += growth
        done += 1
        total = inserted + placement.cost[b] - start
        if total < best:
            best, best_count = total, done
            end, floor = _horizon(arrays, placement, strip, done)
    while done > best_count:
        done -= 1
        to, box = target[done, 0], target[done, 1]
        set_box(placement.lo[to], placement.hi[to], box, old_lo[done], old_hi[done])
        _move(placement, members[done], b, k)
        if to != b:
            placement.cost[to] = _boxes_measure(arrays.density, placement.lo[to], placement.hi[to])
    set_box(placement.lo[b], placement.hi[b], k, rest_lo[done], rest_hi[done])
    placement.cost[b] = _boxes_measure(arrays.density, placement.lo[b], placement.hi[b])


@kernel
def _outermost_first(
    arrays: ProblemArrays, placement: Placement, b: int, k: int, side: int
) -> NDArray[np.int64]:
    """The members of a box, those that extend furthest to the side first."""
    count = placement.size[b, k]
    members, key = np.empty(count, np.int64), np.empty(count)
    j = placement.head[b, k]
    for i in range(count):
        members[i] = j
        key[i] = _inset(arrays, j, side)
        j = placement.after[j]
    return members[np.argsort(key, kind="mergesort")]


@kernel
def _inset(arrays: ProblemArrays, j: int, side: int) -> float:
    """A number that is smaller the further the rectangle of `j` extends to a side."""
    return arrays.lo[j, side >> 1] if side & 1 else -arrays.hi[j, side >> 1]


@kernel
def _horizon(arrays: ProblemArrays, placement: Placement, strip: _Strip, done: int) -> tuple[int, float]:
    """The most members that a strip move tries before the next success, and the least cost of `b` by then.

    Members that extend equally far let the box shrink only together, so patience lasts longer among them. The
    other boxes of `b` only grow meanwhile: a move that does not pay off at that cost never will.
    """
    members, side, b = strip.members, strip.side, strip.b
    end = done + strip.patience
    while end < min(len(members), done + TIES * strip.patience) and (
        _inset(arrays, members[end], side) == _inset(arrays, members[end - 1], side)
    ):
        end += 1
    end = min(end, len(members))
    set_box(placement.lo[b], placement.hi[b], strip.k, strip.rest_lo[end], strip.rest_hi[end])
    return end, _boxes_measure(arrays.density, placement.lo[b], placement.hi[b])


@kernel
def _best_box(state: SearchState, j: int, avoid: int, around: NDArray[np.float64]) -> tuple[float, int, int]:
    """The least growth of the measure if `j` leaves box `avoid` of its broker, and the broker and box for it.

    A broker whose boxes hold it already is best, the least loaded among them.
    """
    arrays, candidates, placement, nested = state.arrays, state.candidates, state.placement, state.nested
    lo, hi, g, own = arrays.lo[j], arrays.hi[j], candidates.group[j], placement.broker[j]
    around_lo, around_hi = around[0], around[1]
    all_lo, all_hi, load, cost = placement.lo, placement.hi, placement.load, placement.cost
    brokers, capacity, density, limit = candidates.brokers, arrays.capacity, arrays.density, state.limit
    alpha = placement.lo.shape[1]
    weight = placement.weight[j]
    least, best, best_box, lightest = np.inf, -1, -1, np.inf
    for p in range(candidates.start[g], candidates.start[g + 1]):
        b = brokers[p]
        if b == own or load[b] + weight <= limit[b]:
            k = box_around(all_lo, all_hi, b, alpha, lo, hi)
            ratio = load[b] / capacity[b]
            if k >= 0 and not (b == own and k == avoid) and ratio < lightest:
                least, best, best_box, lightest = 0.0, b, k, ratio
    if best >= 0:
        return least, best, best_box
    for p in range(candidates.start[g], candidates.start[g + 1]):
        b = brokers[p]
        if b != own and load[b] + weight > limit[b]:
            continue
        boxes_lo, boxes_hi, parent = all_lo[b], all_hi[b], arrays.parent[b]
        for k in range(alpha):
            if b == own and k == avoid:
                continue
            span(lo, hi, boxes_lo, boxes_hi, k, around)
            if measure_of(density, around_lo, around_hi) - cost[b] >= least:
                continue
            if (
                parent >= 0
                and box_around(nested.lo, nested.hi, parent, nested.used[parent], around_lo, around_hi) < 0
            ):
                continue
            growth = uncovered(density, around_lo, around_hi, boxes_lo, boxes_hi)
            if growth < least:
                least, best, best_box = growth, b, k
    return least, best, best_box


# Compaction


@kernel
def rebalance(state: SearchState, order: NDArray[np.int64]) -> None:
    """Move members, at no cost, to less loaded brokers whose boxes hold them already; then tighten all."""
    arrays, candidates, placement, limit = state.arrays, state.candidates, state.placement, state.limit
    all_lo, all_hi, load, alpha = placement.lo, placement.hi, placement.load, placement.lo.shape[1]
    brokers, capacity = candidates.brokers, arrays.capacity
    for j in order:
        g, own, lo, hi = candidates.group[j], placement.broker[j], arrays.lo[j], arrays.hi[j]
        best, best_box = own, -1
        weight = placement.weight[j]
        lightest = (load[own] - weight) / capacity[own]
        for p in range(candidates.start[g], candidates.start[g + 1]):
            b = brokers[p]
            ratio = load[b] / capacity[b]
            if b != own and ratio < lightest and load[b] + weight <= limit[b]:
                k = box_around(all_lo, all_hi, b, alpha, lo, hi)
                if k >= 0:
                    best, best_box, lightest = b, k, ratio
        if best_box >= 0:
            _move(placement, j, best, best_box)
    for b in range(len(placement.cost)):
        _tighten(arrays, placement, b)


@kernel(cost=15)
def recluster(state: SearchState, key: NDArray[np.float64]) -> None:
    """Cluster the members of each broker again, in the order of their keys; keep a result that costs less."""
    arrays, placement = state.arrays, state.placement
    alpha, d = placement.lo.shape[1:]
    for b in range(len(placement.cost)):
        if placement.load[b] == 0:
            continue
        members = _members(placement, b)
        members = members[np.argsort(key[members], kind="mergesort")]
        lo, hi = np.empty((len(members), d)), np.empty((len(members), d))
        for i in range(len(members)):
            set_box(lo, hi, i, arrays.lo[members[i]], arrays.hi[members[i]])
        boxes_lo, boxes_hi = few_boxes(arrays.density, lo, hi, alpha)
        if _boxes_measure(arrays.density, boxes_lo, boxes_hi) >= placement.cost[b]:
            continue
        if arrays.parent[b] >= 0 and not _fits(state.nested, arrays.parent[b], boxes_lo, boxes_hi):
            continue
        for j in members:
            _unlink(placement, j)
        for j in members:
            k = 0
            while not is_inside(arrays.lo[j], arrays.hi[j], boxes_lo, boxes_hi, k):
                k += 1
            _link(placement, j, b, k)
        _tighten(arrays, placement, b)


@kernel
def _members(placement: Placement, b: int) -> NDArray[np.int64]:
    """All members of a broker's boxes."""
    result = np.empty(placement.size[b].sum(), np.int64)
    i = 0
    for k in range(placement.head.shape[1]):
        j = placement.head[b, k]
        while j >= 0:
            result[i] = j
            j = placement.after[j]
            i += 1
    return result


@kernel
def _fits(nested: Filters, b: int, boxes_lo: Corners, boxes_hi: Corners) -> bool:
    """Whether each box is inside one box of broker `b`."""
    for k in range(len(boxes_lo)):
        if box_around(nested.lo, nested.hi, b, nested.used[b], boxes_lo[k], boxes_hi[k]) < 0:
            return False
    return True

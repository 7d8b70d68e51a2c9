"""What local search does between strip moves: even out loads at no cost, and cluster members anew."""

import numpy as np
from numpy.typing import NDArray

from broadloom.assignment.subscribers._boxes import box_with, is_inside, set_box
from broadloom.assignment.subscribers._filters import Filters
from broadloom.assignment.subscribers._greedy import Wants
from broadloom.assignment.subscribers.placing import Placing, boxes_measure, link, move, tighten_all, unlink
from broadloom.assignment.subscribers.reach import Reach
from broadloom.assignment.subscribers.tighten import few_boxes
from broadloom.kernels import kernel


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
            move(placing, j, best, best_box)
    for b in range(len(placing.cost)):
        tighten_all(wants, placing, b)


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
        if boxes_measure(wants.density, boxes_lo, boxes_hi) >= placing.cost[b]:
            continue
        if wants.parent[b] >= 0 and not _fits(above, wants.parent[b], boxes_lo, boxes_hi):
            continue
        for j in members:
            unlink(placing, j)
        for j in members:
            k = 0
            while not is_inside(wants.lo[j], wants.hi[j], boxes_lo, boxes_hi, k):
                k += 1
            link(placing, j, b, k)
        tighten_all(wants, placing, b)


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

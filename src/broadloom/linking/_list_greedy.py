"""GrMAW (paper 1, Alg. 2) over a list of candidate edges, at costs that may differ from their weights."""

import numpy as np
from numpy.typing import NDArray

from broadloom.kernels import inner_kernel, kernel
from broadloom.linking._candidates import Candidates


def list_greedy(candidates: Candidates, cost: NDArray[np.float64], subscriptions: int) -> NDArray[np.int64]:
    """The candidates taken, in order: the lowest cost a contribution first, the smallest edge among equals.

    A contribution only falls, so an edge's key only rises: the edge on top of the heap is taken if its key
    is current, else it is brought up to date and put back. Entries that have been joined are dropped for
    good, so that a contribution is counted over what is left of it.
    """
    entries = np.diff(candidates.start)
    label = np.arange(subscriptions)
    return _greedy(
        cost,
        candidates.start,
        (candidates.low.copy(), candidates.high.copy()),
        (label, label.copy(), np.ones_like(label)),
        (np.flatnonzero(entries), cost / np.maximum(entries, 1), entries),
    )


@kernel
def _greedy(
    cost: NDArray[np.float64],
    start: NDArray[np.int64],
    ends: tuple[NDArray[np.int32], NDArray[np.int32]],
    components: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]],
    queue: tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int64]],
) -> NDArray[np.int64]:
    """The edges taken. `queue`: the edges as a heap, each one's key, and how many entries it has left."""
    low, high = ends
    label, following, size = components
    heap, key, left = queue
    for at in range(len(heap) // 2 - 1, -1, -1):
        _sink(heap, len(heap), key, at)
    taken = np.empty(len(heap), np.int64)
    count, waiting = 0, len(heap)
    while waiting:
        e = heap[0]
        contribution = _still_apart(label, low, high, start[e], left[e])
        if contribution == left[e]:
            taken[count] = e
            count += 1
            for k in range(start[e], start[e] + contribution):
                _join(label, following, size, label[low[k]], label[high[k]])
            contribution = 0
        left[e] = contribution
        if contribution:
            key[e] = cost[e] / contribution
        else:
            waiting -= 1
            heap[0] = heap[waiting]
        _sink(heap, waiting, key, 0)
    return taken[:count]


@inner_kernel
def _still_apart(
    label: NDArray[np.int64], low: NDArray[np.int32], high: NDArray[np.int32], first: int, count: int
) -> int:
    """Bring the entries whose ends are still in different components to the front; how many there are."""
    apart = 0
    for k in range(first, first + count):
        if label[low[k]] != label[high[k]]:
            low[first + apart], high[first + apart] = low[k], high[k]
            apart += 1
    return apart


@inner_kernel
def _join(
    label: NDArray[np.int64], following: NDArray[np.int64], size: NDArray[np.int64], x: int, y: int
) -> None:
    """Give the members of the smaller component the label of the larger one, and link the two rings."""
    if size[x] < size[y]:
        x, y = y, x
    size[x] += size[y]
    member = y
    while label[member] != x:
        label[member] = x
        member = following[member]
    following[x], following[y] = following[y], following[x]


@inner_kernel
def _sink(heap: NDArray[np.int64], count: int, key: NDArray[np.float64], at: int) -> None:
    """Let the edge at this place of the heap sink to where it belongs, by key and then by number."""
    if at >= count:
        return
    e = heap[at]
    while 2 * at + 1 < count:
        child = 2 * at + 1
        if child + 1 < count and _before(key, heap[child + 1], heap[child]):
            child += 1
        if not _before(key, heap[child], e):
            break
        heap[at] = heap[child]
        at = child
    heap[at] = e


@inner_kernel
def _before(key: NDArray[np.float64], e: int, f: int) -> bool:
    return key[e] < key[f] or (key[e] == key[f] and e < f)

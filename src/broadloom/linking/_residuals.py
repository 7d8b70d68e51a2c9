"""When an edge becomes tight in the primal-dual greedy, without stored residuals (paper 1, VII).

Let Y be the sum of all y so far, and M_t(e) what it was when the ends of e were merged in topic t. An edge
pays y for each step and topic in which its ends are apart, so its residual is w - sum of min(Y, M_t) over the
topics that it shares, and it becomes tight when Y reaches

    K(e) = (w(e) - sum of M_t(e) over its shared topics that are merged) / mu(e).

A merge at Y <= K takes Y from the numerator and 1 from the denominator, so K only rises: greedy by key again.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from broadloom.kernels import inner_kernel, lowest, popcount
from broadloom.linking._components import STILL_TO_MERGE, Components, subscription

Y, LAST_SNAPSHOT, RATIO, TO_MERGE_FIRST = range(4)

# A snapshot is due whenever Y has grown so much, but not before this share of the merges, while Y is small.
GROWTH, FIRST_MERGES = 1.25, 0.3


class History(NamedTuple):
    """What Y was at every merge, exactly for a pair and from above for whole rows.

    A topic of which two nodes were both in the main component at a snapshot was merged for them by then, so
    snapshots bound M_t from above with a few words a pair.

    Attributes:
        y_of_edge: Y at each edge added.
        inside: per snapshot and node, as words: the topics in whose main component the node was.
        y_of_snapshot: Y at each snapshot.
        taken: how many snapshots there are.
        state: Y, Y at the last snapshot, the growth that makes the next one due, merges at the beginning.
    """

    y_of_edge: NDArray[np.float64]
    inside: NDArray[np.uint64]
    y_of_snapshot: NDArray[np.float64]
    taken: NDArray[np.int64]
    state: NDArray[np.float64]


def new_history(components: Components, snapshots: int = 24) -> History:
    """No edge and no snapshot yet; room for so many snapshots of the size of `components.subscribed`."""
    merges = int(components.tally[STILL_TO_MERGE])
    return History(
        np.empty(merges),
        np.empty((snapshots, *components.subscribed.shape), np.uint64),
        np.empty(snapshots),
        np.zeros(1, np.int64),
        np.array([0.0, 0.0, GROWTH, merges]),
    )


@inner_kernel
def raise_y(c: Components, history: History, y: float) -> None:
    """An edge becomes tight at y and is about to be added; it may be time for a snapshot before that."""
    state = history.state
    early = c.tally[STILL_TO_MERGE] > (1 - FIRST_MERGES) * state[TO_MERGE_FIRST]
    if not early and state[Y] > state[RATIO] * state[LAST_SNAPSHOT] and y > state[Y]:
        _take_snapshot(c, history)
    state[Y] = max(state[Y], y)


@inner_kernel
def _take_snapshot(c: Components, history: History) -> None:
    """Keep who is in the main components now; when there is no room, forget every second snapshot first."""
    if history.taken[0] == len(history.y_of_snapshot):
        history.taken[0] //= 2
        for k in range(history.taken[0]):
            history.y_of_snapshot[k] = history.y_of_snapshot[2 * k + 1]
            for u in range(c.outside.shape[0]):
                for w in range(c.outside.shape[1]):
                    history.inside[k, u, w] = history.inside[2 * k + 1, u, w]
        history.state[RATIO] *= history.state[RATIO]
    k = history.taken[0]
    for u in range(c.outside.shape[0]):
        for w in range(c.outside.shape[1]):
            history.inside[k, u, w] = c.subscribed[u, w] & ~c.outside[u, w]
    history.y_of_snapshot[k] = history.state[LAST_SNAPSHOT] = history.state[Y]
    history.taken[0] += 1


@inner_kernel
def paid_at_most(c: Components, history: History, u: int, v: int, enough: float) -> float:
    """An upper bound on the sum of M_t over the topics of which u and v are both in the main component.

    It may stop early, with a bound that is not the best, when that falls below `enough`.
    """
    later, shared = history.state[Y], 0
    for w in range(c.subscribed.shape[1]):
        shared += popcount(_both_inside(c, u, v, w))
    bound = later * shared
    k = history.taken[0] - 1
    while k >= 0 and bound >= enough:
        shared = 0
        for w in range(c.subscribed.shape[1]):
            shared += popcount(_both_inside(c, u, v, w) & history.inside[k, u, w] & history.inside[k, v, w])
        bound -= (later - history.y_of_snapshot[k]) * shared
        later = history.y_of_snapshot[k]
        k -= 1
    return bound


@inner_kernel
def _both_inside(c: Components, u: int, v: int, w: int) -> np.uint64:
    """The shared topics, of one word, in whose main component both are."""
    return c.subscribed[u, w] & c.subscribed[v, w] & ~(c.outside[u, w] | c.outside[v, w])


@inner_kernel
def paid(c: Components, history: History, u: int, v: int) -> float:
    """The sum of M_t over the shared topics in which u and v are merged, in ascending order of topics."""
    total = 0.0
    for w in range(c.subscribed.shape[1]):
        merged = _both_inside(c, u, v, w) | (c.grouped[u, w] & c.grouped[v, w])
        while merged:
            bit = np.uint64(1) << np.uint64(lowest(merged))
            i, j = subscription(c, u, w, bit), subscription(c, v, w, bit)
            in_main = not c.grouped[u, w] & bit
            if in_main and c.entered[i] != c.entered[j]:  # so the later one met the other there
                total += history.y_of_edge[max(c.entered[i], c.entered[j])]
            elif in_main or c.label[i] == c.label[j]:
                total += history.y_of_edge[_merged_by(c, i, j)]
            merged ^= bit
    return total


@inner_kernel
def _merged_by(c: Components, i: int, j: int) -> int:
    """The number of the edge that brought two subscriptions of one component together.

    Labels absorb each other in a forest whose numbers rise towards the roots: climb from the side whose next
    step is the earlier one until both sides meet. Without branches, as nobody can predict these.
    """
    edge = 0
    while i != j:
        left, right = c.absorbed_at[i], c.absorbed_at[j]
        edge = min(left, right)
        up = c.absorbed_by[i if left < right else j]
        i, j = (up if left < right else i), (j if left < right else up)
    return edge

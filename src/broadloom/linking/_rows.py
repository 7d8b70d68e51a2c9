"""Upper bounds on the contributions of a whole row of pairs, in the cheaper of two ways.

By bits: two words a pair and 64 topics. By lists: one addition a pair and shared topic that is not yet merged
away, which gets cheaper with every merge. Both count, for each pair, the topics of which at least one of the
two is outside the main component; neither keeps anything from one row to the next.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from broadloom._jit import inner_kernel, kernel
from broadloom.linking._bits import bit_of, popcount
from broadloom.linking._components import Components
from broadloom.model.weights import EUCLIDEAN, WeightArrays, weight_of

Columns = TypeVar("Columns", NDArray[np.int32], NDArray[np.float64])

# Nanoseconds, as measured; only their ratios matter, and only for speed.
BITS_A_PAIR, BITS_A_WORD, LISTS_A_PAIR, LISTS_AN_ADDITION = 1.0, 0.25, 0.3, 1.0


# Rows are looked at in strips of this many pairs; most have nothing in them.
STRIP = 16

# Squares below this may have lost all their bits.
TINY = 1e-290


class Outsiders(NamedTuple):
    """For each topic, the subscribers outside its main component, ascending.

    Attributes:
        by_bits: whether rows are counted by bits, so that the lists are not needed and are empty.
        start: where each topic's nodes start, with the end appended.
        nodes: the nodes, topic after topic.
        after: for each subscription, where the list that is to be counted for it goes on behind its node:
            this one if the node is in the topic's main component, otherwise that of all subscribers.
    """

    by_bits: bool
    start: NDArray[np.int64]
    nodes: NDArray[np.int32]
    after: NDArray[np.int32]


def prepare_rows(components: Components, by_bits: bool | None = None) -> Outsiders:
    """Choose how to count the rows of a pass over all pairs, and make what this one pass needs."""
    c = components
    outside = np.diff(c.node_start) - c.size[c.main].astype(np.int64)
    if by_bits is None:
        by_bits = _bits_are_cheaper(c, outside)
    if by_bits:
        return Outsiders(True, np.zeros(1, np.int64), np.empty(0, np.int32), np.empty(0, np.int32))
    start = np.concatenate((np.zeros(1, np.int64), np.cumsum(outside, dtype=np.int64)))
    lists = Outsiders(False, start, np.empty(start[-1], np.int32), np.empty(len(c.topics), np.int32))
    _list_outsiders(c, lists, c.node_start[:-1].copy(), start[:-1].copy())
    return lists


def _bits_are_cheaper(c: Components, outside: NDArray[np.int64]) -> bool:
    n, words = c.subscribed.shape
    subscribers = np.diff(c.node_start)
    inside = subscribers - outside
    additions = float(np.sum(subscribers * (subscribers - 1) - inside * (inside - 1))) / 2
    pairs = n * (n - 1) / 2
    by_bits = pairs * (BITS_A_PAIR + BITS_A_WORD * words)
    return by_bits < pairs * LISTS_A_PAIR + additions * LISTS_AN_ADDITION


@kernel
def _list_outsiders(c: Components, lists: Outsiders, at: NDArray[np.int64], free: NDArray[np.int64]) -> None:
    """Fill in the lists; `at` and `free` are where each topic's subscribers and outsiders start."""
    for i in range(len(c.topics)):
        t, u = c.topics[i], c.owner[i]
        at[t] += 1
        if c.outside[u, t >> 6] & bit_of(t):
            lists.nodes[free[t]] = u
            free[t] += 1
            lists.after[i] = at[t]
        else:
            lists.after[i] = free[t]


def sample_rows(c: Components, count: int) -> tuple[NDArray[np.int64], float]:
    """Some of the rows that are outside a main component, spread evenly, and how many each stands for.

    A pair that contributes has at least one end in such a row. To count each pair of them once, skip those
    for which `counts_for` says no.
    """
    rows = np.flatnonzero(c.outside.any(axis=1))
    chosen = rows[np.arange(min(count, len(rows))) * len(rows) // max(1, min(count, len(rows)))]
    return chosen, len(rows) / max(1, len(chosen))


@inner_kernel
def counts_for(c: Components, u: int, v: int) -> bool:
    """Whether the pair is to be counted in the sampled row u, rather than in row v."""
    n = len(c.topic_start) - 1
    return u != v and ((v - u) % n * 2 < n or not c.outside[v].any())


@inner_kernel
def count_row(c: Components, outsiders: Outsiders, u: int, counts: NDArray[np.int32]) -> None:
    """Into `counts[v]`, for each v > u, an upper bound on the contribution of (u, v)."""
    if outsiders.by_bits:
        _count_bits(c.subscribed, c.outside, u, counts)
    else:
        _count_lists(c, outsiders, u, counts)


@inner_kernel
def _count_bits(
    subscribed: NDArray[np.uint64],
    outside: NDArray[np.uint64],
    u: int,
    counts: NDArray[np.int32],
) -> None:
    for v in range(u + 1, len(counts)):
        count = 0
        for w in range(subscribed.shape[1]):
            count += popcount((outside[u, w] & subscribed[v, w]) | (subscribed[u, w] & outside[v, w]))
        counts[v] = count


@inner_kernel
def _count_lists(c: Components, outsiders: Outsiders, u: int, counts: NDArray[np.int32]) -> None:
    for v in range(u + 1, len(counts)):
        counts[v] = 0
    for i in range(c.topic_start[u], c.topic_start[u + 1]):
        t = c.topics[i]
        if c.outside[u, t >> 6] & bit_of(t):
            for k in range(outsiders.after[i], c.node_start[t + 1]):
                counts[c.nodes[k]] += 1
        else:
            for k in range(outsiders.after[i], outsiders.start[t + 1]):
                counts[outsiders.nodes[k]] += 1


@inner_kernel
def any_from(counts: NDArray[np.int32], first: int, last: int, floor: int) -> bool:
    """Whether any of these counts is `floor` or more; without branches, so that it runs in vectors."""
    highest = np.int32(0)
    for v in range(first, last):
        highest = max(highest, counts[v])
    return bool(highest >= floor)


@inner_kernel
def screen_row(weights: WeightArrays, u: int, reach: float, counts: NDArray[np.int32]) -> None:
    """Set `counts[v]`, for each v > u, to 0 where the weight of (u, v) exceeds `reach * counts[v]`."""
    if (
        weights.kind == EUCLIDEAN and weights.points.shape[1] == 2
    ):  # squares spare the root, and run in vectors
        x, y = weights.points[u, 0], weights.points[u, 1]
        for v in range(u + 1, len(counts)):
            dx, dy, most = x - weights.points[v, 0], y - weights.points[v, 1], reach * counts[v]
            counts[v] *= dx * dx + dy * dy <= most * most * (1 + 1e-12) + TINY
    else:
        for v in range(u + 1, len(counts)):
            counts[v] *= weight_of(weights, u, v) <= reach * counts[v]


@kernel
def with_room(found: Columns, size: int, more: int) -> Columns:
    """Columns with room for `more` behind the first `size`: the same array, or a copy twice as long."""
    if size + more <= found.shape[1]:
        return found
    longer = np.empty((found.shape[0], 2 * found.shape[1] + more), found.dtype)
    for column in range(found.shape[0]):
        for i in range(size):
            longer[column, i] = found[column, i]
    return longer

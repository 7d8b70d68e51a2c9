"""Upper bounds on the contributions of a whole row of pairs, in the cheaper of two ways.

By bits: two words a pair and 64 topics. By lists: one addition a pair and shared topic that is not yet merged
away, which gets cheaper with every merge. Both count, for each pair, the topics of which at least one of the
two is outside the main component; neither keeps anything from one row to the next.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from broadloom._jit import inner_kernel, kernel
from broadloom.linking._bits import bit_of, popcount
from broadloom.linking._components import Components

# Nanoseconds, as measured; only their ratios matter, and only for speed.
BITS_A_PAIR, BITS_A_WORD, LISTS_A_PAIR, LISTS_AN_ADDITION = 1.0, 0.25, 0.3, 1.0


class Outsiders(NamedTuple):
    """For each topic, the subscribers outside its main component, ascending.

    Attributes:
        by_bits: whether rows are counted by bits, so that the lists are not needed and are empty.
        start: where each topic's nodes start, with the end appended.
        nodes: the nodes, topic after topic.
    """

    by_bits: bool
    start: NDArray[np.int64]
    nodes: NDArray[np.int32]


def prepare_rows(components: Components, by_bits: bool | None = None) -> Outsiders:
    """Choose how to count the rows of a pass over all pairs, and make what that needs; not for later passes."""
    outside = _outside_of_topics(components)
    if by_bits is None:
        by_bits = _bits_are_cheaper(components, outside)
    if by_bits:
        return Outsiders(True, np.zeros(1, np.int64), np.empty(0, np.int32))
    return Outsiders(False, *_list_outsiders(components, outside))


def _bits_are_cheaper(c: Components, outside: NDArray[np.int64]) -> bool:
    n, words = c.subscribed.shape
    subscribers = np.diff(c.node_start)
    inside = subscribers - outside
    additions = float(np.sum(subscribers * (subscribers - 1) - inside * (inside - 1))) / 2
    pairs = n * (n - 1) / 2
    by_bits = pairs * (BITS_A_PAIR + BITS_A_WORD * words)
    return by_bits < pairs * LISTS_A_PAIR + additions * LISTS_AN_ADDITION


@kernel
def _outside_of_topics(c: Components) -> NDArray[np.int64]:
    """How many subscribers of each topic are outside its main component."""
    count = np.empty(len(c.main), np.int64)
    for t in range(len(c.main)):
        count[t] = c.node_start[t + 1] - c.node_start[t] - c.size[c.main[t]]
    return count


@kernel
def _list_outsiders(c: Components, outside: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    start = np.zeros(len(outside) + 1, np.int64)
    start[1:] = np.cumsum(outside)
    nodes = np.empty(start[-1], np.int32)
    filled = start[:-1].copy()
    for i in range(len(c.topics)):
        t, u = c.topics[i], c.owner[i]
        if c.outside[u, t >> 6] & bit_of(t):
            nodes[filled[t]] = u
            filled[t] += 1
    return start, nodes


@inner_kernel
def count_row(c: Components, outsiders: Outsiders, u: int, first: int, counts: NDArray[np.int32]) -> None:
    """Into `counts[v]`, for each v from `first`, an upper bound on the contribution of (u, v)."""
    if outsiders.by_bits:
        _count_bits(c.subscribed, c.outside, u, first, counts)
    else:
        _count_lists(c, outsiders, u, first, counts)


@inner_kernel
def _count_bits(
    subscribed: NDArray[np.uint64],
    outside: NDArray[np.uint64],
    u: int,
    first: int,
    counts: NDArray[np.int32],
) -> None:
    for v in range(first, len(counts)):
        count = 0
        for w in range(subscribed.shape[1]):
            count += popcount((outside[u, w] & subscribed[v, w]) | (subscribed[u, w] & outside[v, w]))
        counts[v] = count


@inner_kernel
def _count_lists(c: Components, outsiders: Outsiders, u: int, first: int, counts: NDArray[np.int32]) -> None:
    counts[first:] = 0
    for i in range(c.topic_start[u], c.topic_start[u + 1]):
        t = c.topics[i]
        if c.outside[u, t >> 6] & bit_of(t):
            others = c.nodes[c.node_start[t] : c.node_start[t + 1]]
        else:
            others = outsiders.nodes[outsiders.start[t] : outsiders.start[t + 1]]
        for k in range(_first_from(others, first), len(others)):
            counts[others[k]] += 1


@inner_kernel
def _first_from(ascending: NDArray[np.int32], least: int) -> int:
    """The position of the first entry that is not below `least`."""
    low, high = 0, len(ascending)
    while low < high:
        middle = (low + high) // 2
        if ascending[middle] < least:
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def with_room(found: NDArray[np.int32], size: int, more: int) -> NDArray[np.int32]:
    """Columns with room for `more` behind the first `size`: the same array, or a copy twice as long."""
    if size + more <= found.shape[1]:
        return found
    longer = np.empty((found.shape[0], 2 * found.shape[1] + more), found.dtype)
    longer[:, :size] = found[:, :size]
    return longer

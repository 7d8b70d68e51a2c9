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
from broadloom.model.weights import EUCLIDEAN, WeightArrays, weight_of

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
    c = components
    outside = np.diff(c.node_start) - c.size[c.main]
    if by_bits is None:
        by_bits = _bits_are_cheaper(c, outside)
    start = np.concatenate((np.zeros(1, np.int64), np.cumsum(outside)))
    nodes = np.empty(0 if by_bits else start[-1], np.int32)
    if not by_bits:
        _list_outsiders(c, start[:-1].copy(), nodes)
    return Outsiders(by_bits, start, nodes)


def _bits_are_cheaper(c: Components, outside: NDArray[np.int64]) -> bool:
    n, words = c.subscribed.shape
    subscribers = np.diff(c.node_start)
    inside = subscribers - outside
    additions = float(np.sum(subscribers * (subscribers - 1) - inside * (inside - 1))) / 2
    pairs = n * (n - 1) / 2
    by_bits = pairs * (BITS_A_PAIR + BITS_A_WORD * words)
    return by_bits < pairs * LISTS_A_PAIR + additions * LISTS_AN_ADDITION


@kernel
def _list_outsiders(c: Components, free: NDArray[np.int64], nodes: NDArray[np.int32]) -> None:
    """Fill in each topic's nodes outside its main component."""
    for i in range(len(c.topics)):
        t, u = c.topics[i], c.owner[i]
        if c.outside[u, t >> 6] & bit_of(t):
            nodes[free[t]] = u
            free[t] += 1


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
    for v in range(first, len(counts)):
        counts[v] = 0
    for i in range(c.topic_start[u], c.topic_start[u + 1]):
        t = c.topics[i]
        if c.outside[u, t >> 6] & bit_of(t):
            others = c.nodes[c.node_start[t] : c.node_start[t + 1]]
        else:
            others = outsiders.nodes[outsiders.start[t] : outsiders.start[t + 1]]
        for k in range(_first_from(others, first), len(others)):
            counts[others[k]] += 1


@inner_kernel
def weigh_row(weights: WeightArrays, u: int, first: int, row: NDArray[np.float64]) -> None:
    """Into `row[v]`, for each v from `first`, the weight of (u, v), to the last bit what `weight_of` gives."""
    if weights.kind != EUCLIDEAN:
        for v in range(first, len(row)):
            row[v] = weight_of(weights, u, v)
        return
    for v in range(first, len(row)):
        row[v] = 0.0
    for axis in range(weights.points.shape[1]):
        here = weights.points[u, axis]
        for v in range(first, len(row)):
            step = here - weights.points[v, axis]
            row[v] += step * step
    for v in range(first, len(row)):
        row[v] = np.sqrt(row[v])


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
    for column in range(found.shape[0]):
        for i in range(size):
            longer[column, i] = found[column, i]
    return longer

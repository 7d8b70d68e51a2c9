"""Upper bounds on the contributions of a whole row of pairs, in the cheaper of two ways.

By bits: two words a pair and 64 topics. By lists: one addition a pair and shared topic that is not yet merged
away, which gets cheaper with every merge. Both count, for each pair, the topics of which at least one of the
two is outside the main component; neither keeps anything from one row to the next.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from broadloom.kernels import WORDS_AT_ONCE, bit_of, by_word, inner_kernel, kernel, popcount
from broadloom.linking._components import Components
from broadloom.model import EUCLIDEAN, WeightArrays, weight_of

Columns = TypeVar("Columns", NDArray[np.int32], NDArray[np.int64], NDArray[np.float64])

# Nanoseconds, as measured; only their ratios matter, and only for speed.
BITS_A_PAIR, BITS_A_WORD, SHARED_A_WORD = 0.4, 0.26, 0.15
LISTS_A_PAIR, LISTS_A_SUBSCRIPTION, LISTS_AN_ADDITION = 0.7, 10.0, 0.95


# Rows are looked at in strips of this many pairs; most have nothing in them.
STRIP = 32

# Bits are counted for some rows at a time, chunk by chunk of their columns.
ROWS_AT_ONCE, CHUNK = 8, 1024

# Squares below this may have lost all their bits.
TINY = 1e-290


class RowCounter(NamedTuple):
    """What one pass needs to count rows: words of all nodes by bits, or lists of each topic's outsiders.

    Attributes:
        by_bits: whether rows are counted by bits, so that the lists are empty; otherwise the words are.
        subscribed: as in `Components`, but a row a word, and as many rows as are a multiple of WORDS_AT_ONCE.
        outside: likewise; empty as long as no main component has two members, since then all that is shared
            counts.
        start: where each topic's nodes outside its main component start, with the end appended.
        nodes: these nodes, ascending, topic after topic.
        after: for each subscription, where the list that is to be counted for it goes on behind its node:
            this one if the node is in the topic's main component, otherwise that of all subscribers.
    """

    by_bits: bool
    subscribed: NDArray[np.uint64]
    outside: NDArray[np.uint64]
    start: NDArray[np.int64]
    nodes: NDArray[np.int32]
    after: NDArray[np.int32]


def row_counter(components: Components, by_bits: bool | None = None) -> RowCounter:
    """Choose how to count the rows of a pass over all pairs, and make what this one pass needs."""
    c = components
    outside = np.diff(c.node_start) - c.size[c.main].astype(np.int64)
    words, none = np.empty((0, 0), np.uint64), np.empty(0, np.int32)
    merged = bool((c.size[c.main] > 1).any())
    if by_bits is None:
        by_bits = _bits_are_cheaper(c, outside, BITS_A_WORD if merged else SHARED_A_WORD)
    if by_bits:
        outside_words = by_word(c.outside) if merged else words
        return RowCounter(True, by_word(c.subscribed), outside_words, np.zeros(1, np.int64), none, none)
    start = np.concatenate((np.zeros(1, np.int64), np.cumsum(outside, dtype=np.int64)))
    nodes, after = np.empty(start[-1], np.int32), np.empty(len(c.topics), np.int32)
    counter = RowCounter(False, words, words, start, nodes, after)
    _list_outsiders(c, counter, c.node_start[:-1].copy(), start[:-1].copy())
    return counter


def _bits_are_cheaper(c: Components, outside: NDArray[np.int64], a_word: float) -> bool:
    n, words = c.subscribed.shape
    subscribers = np.diff(c.node_start)
    inside = subscribers - outside
    additions = float(np.sum(subscribers * (subscribers - 1) - inside * (inside - 1))) / 2
    pairs = n * (n - 1) / 2
    by_bits = pairs * (BITS_A_PAIR + a_word * words)
    by_lists = pairs * LISTS_A_PAIR + len(c.topics) * LISTS_A_SUBSCRIPTION + additions * LISTS_AN_ADDITION
    return by_bits < by_lists


@kernel
def _list_outsiders(
    c: Components, counter: RowCounter, at: NDArray[np.int64], free: NDArray[np.int64]
) -> None:
    """Fill in the lists; `at` and `free` are where each topic's subscribers and outsiders start."""
    for i in range(len(c.topics)):
        t, u = c.topics[i], c.owner[i]
        at[t] += 1
        if c.outside[u, t >> 6] & bit_of(t):
            counter.nodes[free[t]] = u
            free[t] += 1
            counter.after[i] = at[t]
        else:
            counter.after[i] = free[t]


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
def count_rows(c: Components, counter: RowCounter, first: int, last: int, counts: NDArray[np.int32]) -> None:
    """Into `counts[u - first, v]`, for rows u up to `last` and each v > u, a bound on the contribution."""
    n = counts.shape[1]
    if not counter.by_bits:
        for u in range(first, last):
            _count_lists(c, counter, u, counts[u - first])
        return
    for start in range(first + 1, n, CHUNK):  # so that its words stay in the cache for all these rows
        for u in range(first, last):
            part = counts[u - first, start : min(start + CHUNK, n)]
            count_bits(counter.subscribed, counter.outside, u, start, part)


@inner_kernel
def count_bits(
    subscribed: NDArray[np.uint64],
    outside: NDArray[np.uint64],
    u: int,
    start: int,
    counts: NDArray[np.int32],
) -> None:
    """Into `counts` a bound on the contribution of column u and each one from `start` on, by their words."""
    for v in range(len(counts)):
        counts[v] = 0
    for w in range(0, len(subscribed), WORDS_AT_ONCE):
        s, o = subscribed[w : w + WORDS_AT_ONCE], outside[w : w + WORDS_AT_ONCE]
        if s[0, u] | s[1, u] | s[2, u] | s[3, u]:
            if len(o):
                _count_words(s, o, u, start, counts)
            else:
                _count_shared(s, u, start, counts)


@inner_kernel
def _count_shared(s: NDArray[np.uint64], u: int, start: int, counts: NDArray[np.int32]) -> None:
    """As `_count_words`, where two are never in one main component."""
    s0, s1, s2, s3 = s[0, u], s[1, u], s[2, u], s[3, u]
    t0, t1, t2, t3 = s[0, start:], s[1, start:], s[2, start:], s[3, start:]
    for v in range(len(counts)):
        counts[v] += popcount(s0 & t0[v]) + popcount(s1 & t1[v]) + popcount(s2 & t2[v]) + popcount(s3 & t3[v])


@inner_kernel
def _count_words(
    s: NDArray[np.uint64], o: NDArray[np.uint64], u: int, start: int, counts: NDArray[np.int32]
) -> None:
    """Add what four rows of words tell; the slices let the compiler see that the loop can run in vectors."""
    s0, s1, s2, s3 = s[0, u], s[1, u], s[2, u], s[3, u]
    o0, o1, o2, o3 = o[0, u], o[1, u], o[2, u], o[3, u]
    t0, t1, t2, t3 = s[0, start:], s[1, start:], s[2, start:], s[3, start:]
    p0, p1, p2, p3 = o[0, start:], o[1, start:], o[2, start:], o[3, start:]
    for v in range(len(counts)):
        counts[v] += (
            popcount(s0 & t0[v] & (o0 | p0[v]))
            + popcount(s1 & t1[v] & (o1 | p1[v]))
            + popcount(s2 & t2[v] & (o2 | p2[v]))
            + popcount(s3 & t3[v] & (o3 | p3[v]))
        )


@inner_kernel
def _count_lists(c: Components, counter: RowCounter, u: int, counts: NDArray[np.int32]) -> None:
    for v in range(u + 1, len(counts)):
        counts[v] = 0
    for i in range(c.topic_start[u], c.topic_start[u + 1]):
        t = c.topics[i]
        if c.outside[u, t >> 6] & bit_of(t):
            for k in range(counter.after[i], c.node_start[t + 1]):
                counts[c.nodes[k]] += 1
        else:
            for k in range(counter.after[i], counter.start[t + 1]):
                counts[counter.nodes[k]] += 1


@inner_kernel
def any_from(counts: NDArray[np.int32], floor: int) -> bool:
    """Whether any of these counts is `floor` or more; without branches, so that it runs in vectors."""
    highest = np.int32(0)
    for v in range(len(counts)):
        highest = max(highest, counts[v])
    return bool(highest >= floor)


@inner_kernel
def screen_row(weights: WeightArrays, u: int, reach: float, counts: NDArray[np.int32]) -> None:
    """Set `counts[v]`, for each v > u, to 0 where the weight of (u, v) exceeds `reach * counts[v]`."""
    if weights.kind == EUCLIDEAN and weights.points.shape[1] == 2:
        here, there = weights.points[u], weights.points[u + 1 :]
        _screen_plane(here[0], here[1], there, reach, counts[u + 1 :])
    else:
        for v in range(u + 1, len(counts)):
            if weight_of(weights, u, v) > reach * counts[v]:
                counts[v] = 0


@inner_kernel
def _screen_plane(
    x: float, y: float, points: NDArray[np.float64], reach: float, counts: NDArray[np.int32]
) -> None:
    """Squares spare the root, and without a branch the loop runs in vectors."""
    for v in range(len(counts)):
        dx, dy, most = x - points[v, 0], y - points[v, 1], reach * counts[v]
        counts[v] = counts[v] if dx * dx + dy * dy <= most * most * (1 + 1e-12) + TINY else 0


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

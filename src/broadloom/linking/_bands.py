"""Passes over all pairs in bands of keys, for greedy algorithms that never store all pairs.

A pass looks at every pair, row by row, and collects those of the best remaining keys: a band. They are merged
in order. Contributions only fall, so that no pair outside of the band can be better than those in it.

Rows are screened by upper bounds on the contributions of all their pairs, counted by the cheaper of two
methods. By bits: two words per pair and 64 topics. By lists: one addition per pair and shared topic that is
not yet merged, which gets cheaper with every merge. Both count, for each pair, the shared topics for which at
least one of the two nodes is outside of the main component.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from broadloom.kernels import WORDS_AT_ONCE, bit_of, by_word, inner_kernel, kernel, popcount, thread_count
from broadloom.linking.topic_components import TO_MERGE, Components
from broadloom.model import EUCLIDEAN, WeightArrays, weight_of
from broadloom.progress import stage

B = TypeVar("B")
R = TypeVar("R")
Columns = TypeVar("Columns", NDArray[np.int32], NDArray[np.int64], NDArray[np.float64])
Rows = tuple[int, int]

PAIRS_PER_BLOCK = 4_000_000  # the work of a thread at a time: some hundredths of a second

# Nanoseconds, as measured. Only their ratios matter, and only for speed.
BITS_PER_PAIR = 0.4
BITS_PER_WORD = 0.26
SHARED_PER_WORD = 0.15
LISTS_PER_PAIR = 0.7
LISTS_PER_SUBSCRIPTION = 10.0
LISTS_PER_ADDITION = 0.95

SEGMENT = 32  # a row is scanned in segments of this many pairs; most of them can be skipped
# Bits are counted for a tile of rows and columns at a time.
TILE_ROWS = 8
TILE_COLUMNS = 1024

TINY = 1e-290  # squares below this may have lost all their bits


class BandSize(NamedTuple):
    """Size of the bands. It changes the time and the memory, never the edges.

    Attributes:
        share: the share of all pairs that a band aims at.
        least: the fewest pairs that it aims at.
        most: the most pairs that it aims at.
        sampled_rows: the number of rows from which the number of pairs is estimated.
        by_bits: whether rows are counted by bits or by lists; None: the cheaper of the two.
    """

    share: float = 1 / 64
    least: int = 1 << 12
    most: int = 1 << 23
    sampled_rows: int = 16
    by_bits: bool | None = None

    def pairs(self, nodes: int) -> int:
        """The number of pairs that a band aims at, with this many nodes."""
        return min(self.most, max(self.least, int(self.share * nodes * (nodes - 1) / 2)))


class Band(NamedTuple):
    """Pairs `u < v` in lexicographic order, and their keys.

    Attributes:
        pairs: rows `u` and `v`, and a third row where the rule of the greedy needs one.
        key: the key of each pair; empty where the third row is the key.
    """

    pairs: NDArray[np.int32]
    key: NDArray[np.float64]


class BandRule(Protocol):
    """The rule of a greedy algorithm: the next bands, the pairs of a band, and the order of its merges.

    Attributes:
        size: the size of the bands.
        columns: the columns of what `merge` returns: `u`, `v`, and more if the rule needs them.
    """

    size: BandSize
    columns: int

    def next_bands(self) -> list[tuple[float, int]]:
        """The last key of each of the next bands, and the number of pieces in which to collect it."""

    def collect(self, counter: RowCounter, last: float, rows: Rows) -> Band:
        """The pairs of these rows whose keys are in the band."""

    def merge(self, band: Band, last: float) -> NDArray[np.int32]:
        """Merge along the pairs of a band in the order of their keys; the edges added, in order."""


def merge_in_bands(components: Components, rule: BandRule) -> NDArray[np.int32]:
    """Add edges by a greedy rule until every topic is connected; the rows that the rule's merges return."""
    n = len(components.topic_start) - 1
    edges = [np.empty((0, rule.columns), np.int32)]
    with stage("link", to_merge := int(components.tally[TO_MERGE])) as done:
        while components.tally[TO_MERGE] > 0:
            for last, pieces in rule.next_bands():
                for rows in blocks_of_rows(n, (0, n), n * (n - 1) / 2 / pieces):
                    band = _collect_band(components, rule, last, rows)
                    edges.append(rule.merge(band, last))
            done(to_merge - components.tally[TO_MERGE])
    return np.concatenate(edges)


def _collect_band(components: Components, rule: BandRule, last: float, rows: Rows) -> Band:
    """The pairs of the band in these rows, collected on all threads."""
    counter = row_counter(components, rule.size.by_bits)
    blocks = blocks_of_rows(len(components.topic_start) - 1, rows)
    found = in_threads(lambda block: rule.collect(counter, last, block), blocks)
    if len(found) == 1:
        return found[0]
    pairs = np.concatenate([band.pairs for band in found], axis=1)
    return Band(pairs, np.concatenate([band.key for band in found]))


def blocks_of_rows(nodes: int, rows: Rows, pairs: float = PAIRS_PER_BLOCK) -> list[Rows]:
    """Rows cut into blocks of at most about that many pairs (u, v), u < v.

    Examples:
        >>> blocks_of_rows(5, (0, 5), pairs=4)
        [(0, 1), (1, 2), (2, 5)]
    """
    blocks: list[Rows] = []
    first, last = rows
    while first < last:
        later = (nodes - first) * (nodes - first - 1) / 2 - pairs  # the pairs of later blocks
        end = last if later <= 0 else min(last, nodes - math.ceil(0.5 + math.sqrt(0.25 + 2 * later)))
        blocks.append((first, max(end, first + 1)))
        first = blocks[-1][1]
    return blocks


def cut_at(keys: NDArray[np.float64], theta: float, size: float) -> list[tuple[float, int]]:
    """Bands up to the key theta, as (highest key, pieces).

    If too many pairs have the key theta, those of lower keys come first, in a band of their own. Pairs of
    equal keys are merged in the order of their rows, so they can be collected in pieces, row after row.

    Args:
        keys: a sorted sample of the keys.
        theta: one of them.
        size: the number of sampled keys that a band aims at.

    Examples:
        >>> cut_at(np.array([1.0, 2.0, 5.0, 9.0]), theta=5.0, size=3)
        [(5.0, 1)]
        >>> cut_at(np.array([1.0, 5.0, 5.0, 5.0, 5.0, 5.0]), theta=5.0, size=2)
        [(4.999999999999999, 1), (5.0, 3)]
    """
    pairs = int(np.searchsorted(keys, theta, side="right"))
    if pairs <= 2 * size or pairs == 1:
        return [(theta, 1)]
    return [(math.nextafter(theta, 0.0), 1), (theta, math.ceil(pairs / max(size, 1)))]


def in_threads(work: Callable[[B], R], blocks: Sequence[B]) -> list[R]:
    """The result of each block, in the order of the blocks, for any number of threads."""
    if len(blocks) < 2 or thread_count() == 1:
        return [work(block) for block in blocks]
    with ThreadPoolExecutor(thread_count()) as pool:
        return list(pool.map(work, blocks))


def sample_rows(c: Components, count: int) -> tuple[NDArray[np.int64], float]:
    """Some of the rows that are outside of a main component, spread evenly, and the rows per sampled row.

    A pair that contributes has at least one end in such a row. `counts_for` tells in which of the two rows to
    count a pair, so that no pair is counted twice.
    """
    rows = np.flatnonzero(c.outside.any(axis=1))
    chosen = rows[np.arange(min(count, len(rows))) * len(rows) // max(1, min(count, len(rows)))]
    return chosen, len(rows) / max(1, len(chosen))


@inner_kernel
def counts_for(c: Components, u: int, v: int) -> bool:
    """Whether the pair is counted in the sampled row u, rather than in row v."""
    n = len(c.topic_start) - 1
    return u != v and ((v - u) % n * 2 < n or not c.outside[v].any())


class RowCounter(NamedTuple):
    """The words of all nodes, or the lists of each topic's outsiders, from which one pass counts its rows.

    Attributes:
        by_bits: whether rows are counted by bits, so that the lists are empty; otherwise the words are empty.
        subscribed: as in `Components`, but one row per word, padded to a multiple of WORDS_AT_ONCE rows.
        outside: likewise; empty while no main component has two members, since all shared topics count then.
        start: the start of each topic's nodes outside of its main component, with the end appended.
        nodes: these nodes, ascending, topic after topic.
        after: per subscription, the position behind its node in the list that is counted for it: the list
            of outsiders if the node is in the topic's main component, otherwise that of all subscribers.
        inside: the number of topics per node in whose main component it is.
    """

    by_bits: bool
    subscribed: NDArray[np.uint64]
    outside: NDArray[np.uint64]
    start: NDArray[np.int64]
    nodes: NDArray[np.int32]
    after: NDArray[np.int32]
    inside: NDArray[np.int32]


def row_counter(components: Components, by_bits: bool | None = None) -> RowCounter:
    """The words or lists for one pass over all pairs."""
    c = components
    outside = np.diff(c.node_start) - c.size[c.main].astype(np.int64)
    inside = np.bitwise_count(c.subscribed & ~c.outside).sum(axis=1, dtype=np.int32)
    no_words = np.empty((0, 0), np.uint64)
    empty = np.empty(0, np.int32)
    merged = bool((c.size[c.main] > 1).any())
    if by_bits is None:
        by_bits = _bits_are_cheaper(c, outside, BITS_PER_WORD if merged else SHARED_PER_WORD)
    if by_bits:
        words = by_word(c.subscribed), by_word(c.outside) if merged else no_words
        return RowCounter(True, *words, np.zeros(1, np.int64), empty, empty, inside)
    start = np.concatenate((np.zeros(1, np.int64), np.cumsum(outside, dtype=np.int64)))
    nodes = np.empty(start[-1], np.int32)
    after = np.empty(len(c.topics), np.int32)
    counter = RowCounter(False, no_words, no_words, start, nodes, after, inside)
    _list_outsiders(c, counter, c.node_start[:-1].copy(), start[:-1].copy())
    return counter


def _bits_are_cheaper(c: Components, outside: NDArray[np.int64], per_word: float) -> bool:
    n, words = c.subscribed.shape
    subscribers = np.diff(c.node_start)
    inside = subscribers - outside
    additions = float(np.sum(subscribers * (subscribers - 1) - inside * (inside - 1))) / 2
    pairs = n * (n - 1) / 2
    by_bits = pairs * (BITS_PER_PAIR + per_word * words)
    by_lists = pairs * LISTS_PER_PAIR + len(c.topics) * LISTS_PER_SUBSCRIPTION
    return by_bits < by_lists + additions * LISTS_PER_ADDITION


@kernel
def _list_outsiders(
    c: Components, counter: RowCounter, subscriber: NDArray[np.int64], outsider: NDArray[np.int64]
) -> None:
    """Fill the lists; the two cursors start at each topic's first subscriber and first outsider."""
    for i in range(len(c.topics)):
        t = c.topics[i]
        u = c.owner[i]
        subscriber[t] += 1
        if c.outside[u, t >> 6] & bit_of(t):
            counter.nodes[outsider[t]] = u
            outsider[t] += 1
            counter.after[i] = subscriber[t]
        else:
            counter.after[i] = outsider[t]


@inner_kernel
def count_rows(c: Components, counter: RowCounter, first: int, last: int, counts: NDArray[np.int32]) -> None:
    """Bounds on the contributions, in `counts[u - first, v]` for the rows u from `first` to `last`, v > u."""
    n = counts.shape[1]
    if not counter.by_bits:
        for u in range(first, last):
            _count_lists(c, counter, u, counts[u - first])
        return
    for start in range(first + 1, n, TILE_COLUMNS):  # so that the words stay in the cache for all these rows
        for u in range(first, last):
            part = counts[u - first, start : min(start + TILE_COLUMNS, n)]
            count_bits(counter.subscribed, counter.outside, u, start, part)


@inner_kernel
def count_bits(
    subscribed: NDArray[np.uint64],
    outside: NDArray[np.uint64],
    u: int,
    start: int,
    counts: NDArray[np.int32],
) -> None:
    """Bounds on the contributions of column u with each column from `start` on, by their words."""
    for v in range(len(counts)):
        counts[v] = 0
    for w in range(0, len(subscribed), WORDS_AT_ONCE):
        s = subscribed[w : w + WORDS_AT_ONCE]
        o = outside[w : w + WORDS_AT_ONCE]
        if s[0, u] | s[1, u] | s[2, u] | s[3, u]:
            if len(o):
                _count_words(s, o, u, start, counts)
            else:
                _count_shared(s, u, start, counts)


@inner_kernel
def _count_shared(s: NDArray[np.uint64], u: int, start: int, counts: NDArray[np.int32]) -> None:
    """As `_count_words`, while no main component has two members."""
    s0, s1, s2, s3 = s[0, u], s[1, u], s[2, u], s[3, u]
    t0, t1, t2, t3 = s[0, start:], s[1, start:], s[2, start:], s[3, start:]
    for v in range(len(counts)):
        counts[v] += popcount(s0 & t0[v]) + popcount(s1 & t1[v]) + popcount(s2 & t2[v]) + popcount(s3 & t3[v])


@inner_kernel
def _count_words(
    s: NDArray[np.uint64], o: NDArray[np.uint64], u: int, start: int, counts: NDArray[np.int32]
) -> None:
    """Add the counts of four rows of words; the slices let the compiler vectorise the loop."""
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
def any_from(counts: NDArray[np.int32], least: int) -> bool:
    """Whether any of these counts is `least` or more; without branches, so that it is vectorised."""
    highest = np.int32(0)
    for v in range(len(counts)):
        highest = max(highest, counts[v])
    return bool(highest >= least)


@inner_kernel
def screen_row(weights: WeightArrays, u: int, theta: float, counts: NDArray[np.int32]) -> None:
    """Set `counts[v]`, for each v > u, to 0 where the weight of (u, v) exceeds `theta * counts[v]`."""
    if weights.kind == EUCLIDEAN and weights.points.shape[1] == 2:
        point = weights.points[u]
        _screen_plane(point[0], point[1], weights.points[u + 1 :], theta, counts[u + 1 :])
    else:
        for v in range(u + 1, len(counts)):
            if weight_of(weights, u, v) > theta * counts[v]:
                counts[v] = 0


@inner_kernel
def _screen_plane(
    x: float, y: float, points: NDArray[np.float64], theta: float, counts: NDArray[np.int32]
) -> None:
    """Compare squares, which needs no root, and without a branch, so that the loop is vectorised."""
    for v in range(len(counts)):
        dx = x - points[v, 0]
        dy = y - points[v, 1]
        most = theta * counts[v]
        counts[v] = counts[v] if dx * dx + dy * dy <= most * most * (1 + 1e-12) + TINY else 0


@kernel
def with_capacity(found: Columns, size: int, more: int) -> Columns:
    """Columns with space for `more` behind the first `size`: the same array, or a copy twice as long."""
    if size + more <= found.shape[1]:
        return found
    longer = np.empty((found.shape[0], 2 * found.shape[1] + more), found.dtype)
    for column in range(found.shape[0]):
        for i in range(size):
            longer[column, i] = found[column, i]
    return longer

"""TrMAW (paper 1, Alg. 1), GM (papers 1 and 2) and GrMAW (paper 1, Alg. 2).

GM and GrMAW add the pair of the best key until every topic is connected. The key of GM is the contribution mu
of a pair, that of GrMAW its weight per contribution. Contributions only fall, so a key only gets worse, and
both work in bands of keys, without a table or a queue of all pairs.
"""

from __future__ import annotations

import heapq
import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from broadloom.checks import check_count
from broadloom.kernels import inner_kernel, kernel, thread_count
from broadloom.linking._bands import (
    SEGMENT,
    TILE_ROWS,
    Band,
    BandSize,
    RowCounter,
    Rows,
    any_from,
    count_rows,
    counts_for,
    cut_at,
    merge_in_bands,
    sample_rows,
    screen_row,
    with_capacity,
)
from broadloom.linking.degree_and_diameter import low_degree_edges
from broadloom.linking.link_result import LinkResult, without_repetition
from broadloom.linking.topic_components import (
    TO_MERGE,
    Components,
    add_edge,
    components_of,
    contribution,
    least_in_same_component,
    most_contribution,
    topics_in_same_component,
)
from broadloom.model import Interest, NoOptions, WeightArrays, Weights, weight_of

# Screening compares w <= theta * mu, which is not rounded as w / mu <= theta is; this factor allows for that.
TOLERANCE = 1 + 1e-12


@dataclass(frozen=True)
class GreedyOptions:
    """Options of gm and grmaw.

    Attributes:
        max_degree: no node gets more links than this; None: no limit.
    """

    max_degree: int | None = None

    def __post_init__(self) -> None:
        if self.max_degree is not None:
            check_count(self.max_degree, "max_degree", minimum=1)


def gm(interest: Interest, weights: Weights, options: GreedyOptions, seed: int) -> LinkResult:
    """Add the edge of the highest contribution, ties by `(u, v)`, until no edge contributes."""
    return grmaw(interest, Weights.uniform(weights.node_count), options, seed)


def grmaw(interest: Interest, weights: Weights, options: GreedyOptions, seed: int) -> LinkResult:  # noqa: ARG001
    """Add the edge of the lowest weight per contribution, ties by `(u, v)`, until no edge contributes."""
    if options.max_degree is not None:
        return LinkResult(low_degree_edges(interest, weights, k=0, max_degree=options.max_degree))
    components = components_of(interest)
    if weights.is_uniform:  # the lowest 1/mu is the highest mu, and integers are faster than ratios
        return LinkResult(merge_by_contribution(components))
    return LinkResult(merge_by_weight(components, weights.arrays()))


def merge_by_contribution(components: Components, size: BandSize | None = None) -> NDArray[np.int32]:
    """Add the pair of the highest contribution until every topic is connected; the edges, in order."""
    size = size or BandSize(share=1 / 32, sampled_rows=8)  # integers merge fast: larger bands pay
    return merge_in_bands(components, _ByContribution(components, size))


def merge_by_weight(
    components: Components, weights: WeightArrays, size: BandSize | None = None
) -> NDArray[np.int32]:
    """Add the pair of the lowest weight per contribution until every topic is connected; the edges."""
    return merge_in_bands(components, _ByWeight(components, weights, size or BandSize()))


class _ByContribution:
    """GM's rule: for each contribution from the highest to 1, one scan in lexicographic order.

    A scan adds every pair whose contribution is still that high when it is reached.
    """

    columns = 2

    def __init__(self, components: Components, size: BandSize) -> None:
        self.size = size
        self._components = components
        self._previous = int(np.diff(components.topic_start).max(initial=0)) + 1

    def next_bands(self) -> list[tuple[float, int]]:
        """The lowest contribution of the next band; several pieces if it is one contribution of many pairs.

        Pairs of equal contributions are merged in the order of their rows, so that some rows can be merged
        before the next ones are collected.
        """
        rows, stands_for = sample_rows(self._components, self.size.sampled_rows)
        counts = _sample_contributions(self._components, rows, self._previous)
        pairs = np.cumsum(counts[::-1])[::-1] * stands_for
        most = self.size.pairs(len(self._components.topic_start) - 1)
        lowest = next((mu for mu in range(1, self._previous) if pairs[mu] <= most), self._previous - 1)
        self._previous = lowest
        return [(lowest, max(1, math.ceil(pairs[lowest] / most)))]

    def collect(self, counter: RowCounter, last: float, rows: Rows) -> Band:
        """The pairs of these rows that contribute `last` or more; their third row bounds the contribution."""
        return _collect_contributions(self._components, counter, int(last), rows)

    def merge(self, band: Band, last: float) -> NDArray[np.int32]:
        """Scan the band for each contribution from the highest down to `last`."""
        return _merge_contributions(self._components, band, int(last))


@kernel
def _sample_contributions(c: Components, rows: NDArray[np.int64], end: int) -> NDArray[np.int64]:
    """The number of pairs of these rows for each contribution below `end`."""
    counts = np.zeros(end, np.int64)
    for r in range(len(rows)):
        for v in range(len(c.topic_start) - 1):
            mu = most_contribution(c, rows[r], v)
            if mu > 0 and counts_for(c, rows[r], v):
                counts[mu - least_in_same_component(c, rows[r], v)] += 1
    return counts


@kernel
def _collect_contributions(c: Components, counter: RowCounter, lowest: int, rows: Rows) -> Band:
    n = len(c.topic_start) - 1
    size = 0
    tile = np.empty((TILE_ROWS, n), np.int32)
    found = np.empty((3, n), np.int32)
    for u in range(rows[0], rows[1]):
        row = (u - rows[0]) % TILE_ROWS
        if row == 0:
            count_rows(c, counter, u, min(u + TILE_ROWS, rows[1]), tile)
        counts = tile[row]
        found = with_capacity(found, size, n - u)
        for first in range(u + 1, n, SEGMENT):
            last = min(first + SEGMENT, n)
            if not any_from(counts[first:last], lowest):
                continue
            for v in range(first, last):
                if counts[v] >= lowest:
                    mu = counts[v] - least_in_same_component(c, u, v)
                    if mu >= lowest:
                        found[0, size], found[1, size], found[2, size] = u, v, mu
                        size += 1
    return Band(found[:, :size].copy(), np.empty(0))


@kernel
def _merge_contributions(c: Components, band: Band, lowest: int) -> NDArray[np.int32]:
    us = band.pairs[0]
    vs = band.pairs[1]
    bounds = band.pairs[2]
    edges = np.empty((min(len(us), c.tally[TO_MERGE]), 2), np.int32)
    added = 0
    mu = 0
    for i in range(len(us)):
        mu = max(mu, bounds[i])
    while mu >= lowest:
        for i in range(len(us)):
            if bounds[i] == mu:
                u, v = int(us[i]), int(vs[i])
                now = most_contribution(c, u, v)
                if now >= mu:
                    now -= topics_in_same_component(c, u, v)
                bounds[i] = now
                if now == mu:
                    add_edge(c, u, v)
                    edges[added, 0], edges[added, 1] = u, v
                    added += 1
        mu -= 1
    return edges[:added].copy()


class _ByWeight:
    """GrMAW's rule: in the order of the keys w/mu, which only rise.

    A pair whose key has risen when it is reached goes to a small heap if it is still in the band; otherwise a
    later pass finds it again.
    """

    columns = 2

    def __init__(self, components: Components, weights: WeightArrays, size: BandSize) -> None:
        self.size = size
        self._components = components
        self._weights = weights

    def next_bands(self) -> list[tuple[float, int]]:
        """The highest key of each of the next bands, from a sample."""
        c = self._components
        rows, stands_for = sample_rows(c, self.size.sampled_rows)
        keys = np.sort(_sample_keys(c, self._weights, rows))
        if not len(keys):  # all their pairs are counted in rows that are not in the sample
            rows, stands_for = sample_rows(c, len(c.topic_start))
            keys = np.sort(_sample_keys(c, self._weights, rows))
        size = self.size.pairs(len(c.topic_start) - 1) / stands_for
        return cut_at(keys, float(keys[min(len(keys) - 1, int(size))]), size)

    def collect(self, counter: RowCounter, last: float, rows: Rows) -> Band:
        """The pairs of these rows whose key is at most `last`."""
        return _collect_keys(self._components, self._weights, counter, last, rows)

    def merge(self, band: Band, last: float) -> NDArray[np.int32]:
        """Merge the pairs of the band in the order of their keys, as these rise."""
        order = np.argsort(band.key, kind="stable")
        return _merge_keys(self._components, self._weights, band, order, last)


@kernel
def _sample_keys(c: Components, weights: WeightArrays, rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """The keys of the pairs of these rows that contribute."""
    n = len(c.topic_start) - 1
    size = 0
    keys = np.empty((1, n))
    for r in range(len(rows)):
        keys = with_capacity(keys, size, n)
        for v in range(n):
            most = most_contribution(c, rows[r], v)
            if most > 0 and counts_for(c, rows[r], v):
                mu = most - topics_in_same_component(c, rows[r], v)
                if mu > 0:
                    keys[0, size] = weight_of(weights, rows[r], v) / mu
                    size += 1
    return keys[0, :size].copy()


@kernel
def _collect_keys(
    c: Components, weights: WeightArrays, counter: RowCounter, theta: float, rows: Rows
) -> Band:
    n = len(c.topic_start) - 1
    size = 0
    tile = np.empty((TILE_ROWS, n), np.int32)
    pairs = np.empty((2, n), np.int32)
    keys = np.empty((1, n))
    for u in range(rows[0], rows[1]):
        row = (u - rows[0]) % TILE_ROWS
        if row == 0:
            count_rows(c, counter, u, min(u + TILE_ROWS, rows[1]), tile)
        counts = tile[row]
        screen_row(weights, u, theta * TOLERANCE, counts)
        pairs = with_capacity(pairs, size, n - u)
        keys = with_capacity(keys, size, n - u)
        for first in range(u + 1, n, SEGMENT):
            last = min(first + SEGMENT, n)
            if not any_from(counts[first:last], 1):
                continue
            for v in range(first, last):
                if counts[v] > 0:
                    mu = counts[v] - topics_in_same_component(c, u, v)
                    weight = weight_of(weights, u, v)
                    if mu > 0 and weight / mu <= theta:
                        pairs[0, size] = u
                        pairs[1, size] = v
                        keys[0, size] = weight / mu
                        size += 1
    return Band(pairs[:, :size].copy(), keys[0, :size].copy())


@kernel
def _merge_keys(
    c: Components, weights: WeightArrays, band: Band, order: NDArray[np.int64], theta: float
) -> NDArray[np.int32]:
    us = band.pairs[0]
    vs = band.pairs[1]
    keys = band.key
    edges = np.empty((min(len(us), c.tally[TO_MERGE]), 2), np.int32)
    added = 0
    following = 0
    risen = [(0.0, np.int64(0)) for _ in range(0)]
    while following < len(order) or len(risen) > 0:
        if len(risen) == 0 or (
            following < len(order) and (keys[order[following]], order[following]) < risen[0]
        ):
            i = order[following]
            following += 1
        else:
            _, i = heapq.heappop(risen)
        u, v = int(us[i]), int(vs[i])
        mu = contribution(c, u, v)
        if mu == 0:
            continue
        key = weight_of(weights, u, v) / mu
        if key == keys[i]:
            add_edge(c, u, v)
            edges[added, 0], edges[added, 1] = u, v
            added += 1
        elif key <= theta:
            keys[i] = key
            heapq.heappush(risen, (key, i))
    return edges[:added].copy()


def trmaw(interest: Interest, weights: Weights, options: NoOptions, seed: int) -> LinkResult:  # noqa: ARG001
    """A minimum spanning tree per topic: topic after topic its edges by weight, then `(u, v)`, each once.

    That is Kruskal's order, without his list of all pairs: under a strict order of the edges there is one
    minimum spanning tree, and Prim finds it in memory linear in the subscribers.
    """
    arrays = weights.arrays()
    topics = range(interest.topic_count)
    with ThreadPoolExecutor(thread_count()) as threads:
        trees = list(threads.map(lambda topic: _spanning_tree(arrays, interest.nodes_of(topic)), topics))
    edges = np.concatenate([tree for tree, _ in trees] + [np.empty((0, 2), np.int32)])
    cost = np.concatenate([cost for _, cost in trees] + [np.empty(0)])
    topic = np.repeat(topics, [len(tree) for tree, _ in trees])
    return LinkResult(without_repetition(edges[np.lexsort((edges[:, 1], edges[:, 0], cost, topic))]))


@kernel
def _spanning_tree(
    weights: WeightArrays, members: NDArray[np.int32]
) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """The minimum spanning tree of the members under the order (weight, u, v), and its edges' weights.

    Prim over all pairs, n^2 / 2 weights: each member outside of the tree keeps its best edge into the tree.
    """
    outside = members[1:].copy()
    inside = np.empty_like(outside)  # the end in the tree of each best edge
    cost = np.full(len(outside), np.inf)
    tree = np.empty((len(outside), 2), np.int32)
    tree_cost = np.empty(len(outside))
    newest = members[0] if len(members) else 0
    for remaining in range(len(outside), 0, -1):
        lowest = np.inf
        for i in range(remaining):
            w = weight_of(weights, newest, outside[i])
            if w <= cost[i] and (w < cost[i] or _precedes(newest, outside[i], inside[i], outside[i])):
                cost[i] = w
                inside[i] = newest
            lowest = min(lowest, cost[i])
        best = _first_of_cost(lowest, cost[:remaining], inside, outside)
        newest = outside[best]
        tree[remaining - 1] = min(newest, inside[best]), max(newest, inside[best])
        tree_cost[remaining - 1] = lowest
        outside[best] = outside[remaining - 1]
        inside[best] = inside[remaining - 1]
        cost[best] = cost[remaining - 1]
    return tree, tree_cost


@kernel
def _first_of_cost(
    lowest: float, cost: NDArray[np.float64], inside: NDArray[np.int32], outside: NDArray[np.int32]
) -> int:
    """The index of the smallest edge `(u, v)` among those of the lowest cost."""
    best = -1
    for i in range(len(cost)):
        if cost[i] == lowest and (best < 0 or _precedes(inside[i], outside[i], inside[best], outside[best])):
            best = i
    return best


@inner_kernel
def _precedes(a: int, b: int, c: int, d: int) -> bool:
    """Whether the edge of a and b comes before that of c and d in lexicographic order."""
    low = min(a, b)
    other = min(c, d)
    return low < other or (low == other and max(a, b) < max(c, d))

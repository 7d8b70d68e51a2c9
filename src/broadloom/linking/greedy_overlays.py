"""GM (papers 1 and 2) and GrMAW (paper 1, Alg. 2).

GM and GrMAW add the pair of the best key until every topic is connected. The key of GM is the contribution mu
of a pair, that of GrMAW its weight per contribution. Contributions only fall, so a key only gets worse, and
both work in bands of keys, without a table or a queue of all pairs.

Of pairs with equal keys the smallest comes first, or with `ties="random"` the one of the lowest priority
(`_ties.py`). If too many pairs have one key, a band takes some rows of them, or some priorities.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from broadloom.checks import check_count
from broadloom.kernels import inner_kernel, kernel
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
from broadloom.linking._ties import (
    SMALLEST,
    PriorityRange,
    TieRule,
    check_ties,
    priority_of,
    tie_rule,
)
from broadloom.linking.degree_and_diameter import low_degree_edges
from broadloom.linking.link_result import LinkResult
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
from broadloom.model import Interest, WeightArrays, Weights, weight_of

# Screening compares w <= theta * mu, which is not rounded as w / mu <= theta is; this factor allows for that.
TOLERANCE = 1 + 1e-12

SORTED_FIRST = 16  # of the pairs of one contribution, this part is merged before the others are sorted


@dataclass(frozen=True)
class GreedyOptions:
    """Options of gm and grmaw.

    Attributes:
        max_degree: no node gets more links than this; None: no limit.
        ties: the choice among equally good links: "smallest", the smallest pair of indices; "random", drawn
            from the seed.
    """

    max_degree: int | None = None
    ties: str = "smallest"

    def __post_init__(self) -> None:
        check_ties(self.ties)
        if self.max_degree is not None:
            check_count(self.max_degree, "max_degree", minimum=1)


def gm(interest: Interest, weights: Weights, options: GreedyOptions, seed: int) -> LinkResult:
    """Add the edge of the highest contribution until no edge contributes.

    Reference: Chockler, Melamed, Tock and Vitenberg, PODC 2007; used by papers 1 and 2.
    """
    return grmaw(interest, Weights.uniform(weights.node_count), options, seed)


def grmaw(interest: Interest, weights: Weights, options: GreedyOptions, seed: int) -> LinkResult:
    """Add the edge of the lowest weight per contribution until no edge contributes.

    Reference: Chen, Tock, Jacobsen and Vitenberg, ICDCS 2015 (paper 1), Alg. 2.
    """
    ties = tie_rule(options.ties, seed)
    if options.max_degree is not None:
        edges = low_degree_edges(interest, weights, k=0, max_degree=options.max_degree, ties=ties)
        return LinkResult(edges)
    components = components_of(interest)
    if weights.is_uniform:  # the lowest 1/mu is the highest mu, and integers are faster than ratios
        return LinkResult(merge_by_contribution(components, ties=ties))
    return LinkResult(merge_by_weight(components, weights.arrays(), ties=ties))


def merge_by_contribution(
    components: Components, size: BandSize | None = None, ties: TieRule = SMALLEST
) -> NDArray[np.int32]:
    """Add the pair of the highest contribution until every topic is connected; the edges, in order."""
    size = size or BandSize(share=1 / 32, sampled_rows=8)  # integers merge fast: larger bands pay
    if ties.random:
        return merge_in_bands(components, _ByContributionAndPriority(components, size, ties))
    return merge_in_bands(components, _ByContribution(components, size))


def merge_by_weight(
    components: Components,
    weights: WeightArrays,
    size: BandSize | None = None,
    ties: TieRule = SMALLEST,
) -> NDArray[np.int32]:
    """Add the pair of the lowest weight per contribution until every topic is connected; the edges."""
    kind = _ByWeightAndPriority if ties.random else _ByWeight
    return merge_in_bands(components, kind(components, weights, size or BandSize(), ties))


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
        return _collect_contributions(self._components, counter, int(last), rows, SMALLEST)

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
def _collect_contributions(
    c: Components, counter: RowCounter, lowest: int, rows: Rows, ties: TieRule
) -> Band:
    """The pairs that contribute more than `lowest`, or as much at a priority within the limit."""
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
                    if mu > lowest or (mu == lowest and priority_of(ties, u, v, mu) <= ties.limit):
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


class _ByContributionAndPriority:
    """GM's rule with random ties: for each contribution from the highest to 1, in the order of priorities.

    If too many pairs have one contribution, a band has those of the lowest priorities. They connect most of
    what the others would, so that few bands follow.
    """

    columns = 2

    def __init__(self, components: Components, size: BandSize, ties: TieRule) -> None:
        self.size = size
        self._components = components
        self._previous = int(np.diff(components.topic_start).max(initial=0)) + 1
        self._priorities = PriorityRange(ties)

    def next_bands(self) -> list[tuple[float, int]]:
        """The lowest contribution of the next band; the limit on its priorities is kept for `collect`."""
        rows, stands_for = sample_rows(self._components, self.size.sampled_rows)
        counts = _sample_exact_contributions(self._components, rows, self._previous)
        pairs = np.cumsum(counts[::-1])[::-1] * stands_for
        most = self.size.pairs(len(self._components.topic_start) - 1)
        lowest = next((mu for mu in range(1, self._previous) if pairs[mu] <= most), self._previous - 1)
        if self._priorities.advance(lowest, most / max(pairs[lowest], 1)):
            self._previous = lowest
        return [(lowest, 1)]

    def collect(self, counter: RowCounter, last: float, rows: Rows) -> Band:
        """The pairs of these rows in the band; their third row bounds the contribution."""
        return _collect_contributions(self._components, counter, int(last), rows, self._priorities.rule)

    def merge(self, band: Band, last: float) -> NDArray[np.int32]:
        """For each contribution from the highest down to `last`, merge its pairs in the order of priority.

        First those of the lowest priorities: after them most of the others need not be sorted.
        """
        edges = [np.empty((0, 2), np.int32)]
        for mu in range(int(band.pairs[2].max(initial=0)), int(last) - 1, -1):
            rule = self._priorities.rule if mu == last else self._priorities.without_limit
            for share in (SORTED_FIRST, 1):
                ties = rule._replace(limit=np.uint64(int(rule.limit) // share))
                level, priority = _level(self._components, band, mu, ties)
                order = level[np.argsort(priority, kind="stable")]
                edges.append(_merge_level(self._components, band, order, mu))
        return np.concatenate(edges)


@kernel
def _sample_exact_contributions(c: Components, rows: NDArray[np.int64], end: int) -> NDArray[np.int64]:
    """As `_sample_contributions`, but not by bounds, which can stay high after most pairs are merged."""
    counts = np.zeros(end, np.int64)
    for r in range(len(rows)):
        for v in range(len(c.topic_start) - 1):
            if most_contribution(c, rows[r], v) > 0 and counts_for(c, rows[r], v):
                counts[contribution(c, rows[r], v)] += 1
    return counts


@kernel
def _level(c: Components, band: Band, mu: int, ties: TieRule) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """The indices of the pairs of this contribution with priorities within the limit, and these."""
    us = band.pairs[0]
    vs = band.pairs[1]
    bounds = band.pairs[2]
    size = 0
    level = np.empty(len(us), np.int64)
    priority = np.empty(len(us), np.uint64)
    for i in range(len(us)):
        if bounds[i] == mu:
            u, v = int(us[i]), int(vs[i])
            drawn = priority_of(ties, u, v, mu)
            if drawn <= ties.limit:
                bounds[i] = contribution(c, u, v)
                if bounds[i] == mu:
                    level[size], priority[size] = i, drawn
                    size += 1
    return level[:size].copy(), priority[:size].copy()


@kernel
def _merge_level(c: Components, band: Band, order: NDArray[np.int64], mu: int) -> NDArray[np.int32]:
    """Add the pairs that still contribute `mu` when they are reached in this order."""
    us = band.pairs[0]
    vs = band.pairs[1]
    edges = np.empty((min(len(order), c.tally[TO_MERGE]), 2), np.int32)
    added = 0
    for i in order:
        u, v = int(us[i]), int(vs[i])
        now = most_contribution(c, u, v)
        if now >= mu:
            now -= topics_in_same_component(c, u, v)
        band.pairs[2, i] = now
        if now == mu:
            add_edge(c, u, v)
            edges[added, 0], edges[added, 1] = u, v
            added += 1
    return edges[:added].copy()


class _ByWeight:
    """GrMAW's rule: in the order of the keys w/mu, which only rise.

    A pair whose key has risen when it is reached goes to a small heap if it is still in the band; otherwise a
    later pass finds it again.
    """

    columns = 2

    def __init__(
        self, components: Components, weights: WeightArrays, size: BandSize, ties: TieRule = SMALLEST
    ) -> None:
        self.size = size
        self._components = components
        self._weights = weights
        self._priorities = PriorityRange(ties)

    def next_bands(self) -> list[tuple[float, int]]:
        """The highest key of each of the next bands, from a sample."""
        keys, size = self._sampled_keys()
        return cut_at(keys, float(keys[min(len(keys) - 1, int(size))]), size)

    def _sampled_keys(self) -> tuple[NDArray[np.float64], float]:
        """The keys of some pairs, ascending, and the number of them that a band aims at."""
        c = self._components
        rows, stands_for = sample_rows(c, self.size.sampled_rows)
        keys = np.sort(_sample_keys(c, self._weights, rows))
        if not len(keys):  # all their pairs are counted in rows that are not in the sample
            rows, stands_for = sample_rows(c, len(c.topic_start))
            keys = np.sort(_sample_keys(c, self._weights, rows))
        return keys, self.size.pairs(len(c.topic_start) - 1) / stands_for

    def collect(self, counter: RowCounter, last: float, rows: Rows) -> Band:
        """The pairs of these rows whose key is at most `last`."""
        c = self._components
        return _collect_keys(c, self._weights, counter, last, rows, self._priorities.rule)

    def merge(self, band: Band, last: float) -> NDArray[np.int32]:
        """Merge the pairs of the band in the order of their keys, as these rise."""
        c = self._components
        return _merge_keys(c, self._weights, band, self._order(band), last, self._priorities.rule)

    def _order(self, band: Band) -> NDArray[np.int64]:
        """The order of the band's pairs by their keys."""
        return np.argsort(band.key, kind="stable")


class _ByWeightAndPriority(_ByWeight):
    """GrMAW's rule with random ties: in the order of the keys w/mu, then of the priorities."""

    def next_bands(self) -> list[tuple[float, int]]:
        """The highest key of the next band; the limit on its priorities at that key is kept."""
        keys, size = self._sampled_keys()
        theta = float(keys[min(len(keys) - 1, int(size))])
        pairs = int(np.searchsorted(keys, theta, side="right"))
        if pairs > 2 * size and keys[0] < theta:
            theta = math.nextafter(theta, 0.0)
            pairs = 0
        self._priorities.advance(theta, 1.0 if pairs <= max(2 * size, 1) else size / pairs)
        return [(theta, 1)]

    def _order(self, band: Band) -> NDArray[np.int64]:
        """The order of the band's pairs by their keys, then by priority."""
        order = super()._order(band)
        keys = band.key[order]
        same = np.zeros(len(order) + 1, bool)  # whether a key is that of the pair before
        same[1:-1] = keys[1:] == keys[:-1]
        tied = np.flatnonzero(same[1:] | same[:-1])
        if len(tied):
            pairs = order[tied]
            priority = _priorities(self._components, band, pairs, self._priorities.rule)
            order[tied] = pairs[np.lexsort((priority, keys[tied]))]
        return order


@kernel
def _priorities(c: Components, band: Band, pairs: NDArray[np.int64], ties: TieRule) -> NDArray[np.uint64]:
    """The priority of each of these pairs at its contribution."""
    priority = np.empty(len(pairs), np.uint64)
    for i in range(len(pairs)):
        u, v = int(band.pairs[0, pairs[i]]), int(band.pairs[1, pairs[i]])
        priority[i] = priority_of(ties, u, v, contribution(c, u, v))
    return priority


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


def _collect_work(*arguments: Any) -> float:
    """The work of `_collect_keys`, which looks at the later nodes of each row."""
    components, _, _, _, rows, _ = arguments
    return (rows[1] - rows[0]) * (len(components.topic_start) - 1) / 2


@kernel(cost=_collect_work)
def _collect_keys(
    c: Components,
    weights: WeightArrays,
    counter: RowCounter,
    theta: float,
    rows: Rows,
    ties: TieRule,
) -> Band:
    """The pairs of keys below theta, or of the key theta and a priority within the limit."""
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
                    if (
                        mu > 0
                        and weight / mu <= theta
                        and (weight / mu < theta or priority_of(ties, u, v, mu) <= ties.limit)
                    ):
                        pairs[0, size] = u
                        pairs[1, size] = v
                        keys[0, size] = weight / mu
                        size += 1
    return Band(pairs[:, :size].copy(), keys[0, :size].copy())


@kernel
def _merge_keys(
    c: Components,
    weights: WeightArrays,
    band: Band,
    order: NDArray[np.int64],
    theta: float,
    ties: TieRule,
) -> NDArray[np.int32]:
    us = band.pairs[0]
    vs = band.pairs[1]
    keys = band.key
    edges = np.empty((min(len(us), c.tally[TO_MERGE]), 2), np.int32)
    added = 0
    following = 0
    risen = [(0.0, np.uint64(0), np.int64(0)) for _ in range(0)]
    while following < len(order) or len(risen) > 0:
        if len(risen) == 0 or (
            following < len(order) and _precedes_risen(weights, band, order[following], ties, risen[0])
        ):
            i = order[following]
            following += 1
        else:
            _, _, i = heapq.heappop(risen)
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
            priority = priority_of(ties, u, v, mu)
            if key < theta or priority <= ties.limit:
                keys[i] = key
                heapq.heappush(risen, (key, priority, i))
    return edges[:added].copy()


@inner_kernel
def _precedes_risen(
    weights: WeightArrays, band: Band, i: np.int64, ties: TieRule, risen: tuple[float, np.uint64, np.int64]
) -> bool:
    """Whether the pair of index i comes before one whose key has risen: by key, priority, index."""
    key = band.key[i]
    if key != risen[0] or not ties.random:
        return (key, i) < (risen[0], risen[2])
    u, v = int(band.pairs[0, i]), int(band.pairs[1, i])
    mu = int(np.rint(weight_of(weights, u, v) / key))  # the contribution that gave the key
    return (priority_of(ties, u, v, mu), i) < (risen[1], risen[2])

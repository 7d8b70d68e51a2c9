"""Lagrangian lower bound on the total weight of an overlay: proven, never an estimate.

Split the weight of each edge among the topics that its ends share, and its two ends. An overlay that connects
every topic then weighs at least as much as all the topics' minimum spanning trees under their parts, and all
the nodes' cheapest covers of their topics by links under theirs (`_star_covers`), whatever the split. Without
the covers, no split can exceed the linear relaxation; with them it can. The bound is concave in the split. We
climb by multiplicative updates: a part that a tree or a cover uses grows, and the other parts of its edge
shrink. What a tree does not need is released first: above the height at which the tree joins the two ends, a
part changes nothing.

Only candidate edges are split. For the other pairs there is a proof instead: take the heights at which the
trees join u and v, summed over the topics that they share, and for either end what covering these topics
costs it. If that does not exceed w(u, v), it is a split of w(u, v) that changes no tree and no cover.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from broadloom.kernels import kernel
from broadloom.linking._candidate_edges import (
    Candidates,
    Chains,
    candidates_of,
    chains_of_overlay,
    chains_of_trees,
    codes_of,
    heavy_pairs,
    height_between,
    is_among,
    pricing_work,
)
from broadloom.linking._spanning_trees import (
    TopicEntries,
    entries_by_topic,
    minimum_tree,
    minimum_trees,
    workspace_for,
)
from broadloom.linking._star_covers import (
    BETTER,
    LEAST_WAIT,
    MOST_WAIT,
    SEARCH_NODES,
    Covers,
    Stars,
    add_cover,
    carry_covers,
    cheapest_cover,
    cover_costs,
    cover_prices,
    cover_values,
    cover_workspace,
    edges_in_covers,
    known_cover,
    no_covers,
    no_stars,
    proven_costs,
    stars_of,
)
from broadloom.linking.greedy_overlays import GreedyOptions, grmaw
from broadloom.model import Interest, Weights
from broadloom.plans import WeightDivision
from broadloom.progress import stage

# A proof screens the pairs of subscribers of every topic; above this many, only those of the smallest topics.
MOST_WORK = 20_000_000_000

# The rate at which parts grow falls as 1 / (1 + step / slow). That does not depend on the number of steps, so
# a longer ascent continues a shorter one. Covers take part from COVER_STEP on, at first with this share of
# the weight at either end of an edge; the rate then starts anew.
TREE_RATE, TREE_SLOW = 3.0, 5.0
COVER_STEP = 60
COVER_SHARE = 0.1
COVER_RATE, COVER_SLOW = 1.5, 50.0
RELEASES = 1  # before a proof
MEMORY = 0.8  # of the moving average of the trees' use
SOME_USE = 1e-3  # a candidate that the trees use more than this is not dropped
LEAST_PART = 1e-6  # of an edge's weight: a part at 0 could never grow again

# The first candidates: pairs that pay this many times their weight at the prices of the greedy overlay.
FIRST_RATIO = 2.2
# A pair becomes a candidate when its heights sum to ADD of its weight, and is dropped when they sum to less
# than DROP of it and no tree uses it. Any ADD below 1 is a proof; a lower one covers more pairs until the
# candidates are renewed.
ADD = 0.95
DROP = 0.85
# The first renewals, while prices change much: the step of each, and in place of ADD and DROP, a share of the
# weight above 1. It keeps the candidates few.
EARLY_RENEWALS = {4: 1.1, 10: 1.0}

STRIDE = 20  # steps between two checks of the time
COVER_STRIDE = 2  # the same, while covers take part
SAFE = 1.0 - 1e-9  # of its weight: a pair whose price is less than that is priced without a doubt
ROUNDING = 2.0**-52  # twice the relative error of one operation


def lagrangian_bound(
    interest: Interest, weights: Weights, steps: int, until: Callable[[], bool] = lambda: False
) -> float:
    """The bound after that many steps of the ascent from a greedy overlay, or when `until()` is true.

    If the instance is too large, the bound is that of its smallest topics.
    """
    interest = smallest_topics(interest, MOST_WORK)
    overlay = grmaw(interest, weights, GreedyOptions(), seed=0).edges
    ascent = Ascent(interest, weights, overlay)
    ascent.climb_to(steps, until)
    return ascent.certify()


def can_visit_all_pairs(interest: Interest) -> bool:
    """Whether the bound can visit all pairs of all topics."""
    return pricing_work(interest) <= MOST_WORK


def smallest_topics(interest: Interest, most_work: int) -> Interest:
    """The interest in as many of the topics with the fewest subscribers as that much work allows.

    An overlay that connects all topics connects these, so a bound for these is a bound for all.
    """
    subscribers = np.diff(interest.node_start)
    order = np.argsort(subscribers, kind="stable")
    chosen = np.zeros(interest.topic_count, bool)
    chosen[order[np.cumsum(subscribers[order] ** 2) <= most_work]] = True
    if chosen.all():
        return interest
    kept = chosen[interest.topics]
    start = np.concatenate(([0], np.cumsum(kept)))[interest.topic_start]
    return Interest.from_rows(start, interest.topics[kept], interest.topic_ids, interest.node_ids)


class Shares(NamedTuple):
    """Parts of the edges' weights, up to a factor per edge, and their moving average use."""

    part: NDArray[np.float64]
    use: NDArray[np.float64]


class Ascent:
    """Ascent to the best split of the weights, and the bound that it proves.

    Attributes:
        candidates: the edges that are split; they connect every topic.
        steps: the number of steps made.
        bound: the best lower bound proven so far.
        division: the trees that have proven the best bound without covers; None before the first proof.

    Examples:
        >>> interest = Interest.from_lists([[0], [0], [0]])
        >>> ascent = Ascent(interest, Weights.uniform(3), np.array([[0, 1], [0, 2]], np.int32))
        >>> round(ascent.certify(), 9)
        2.0
    """

    def __init__(self, interest: Interest, weights: Weights, overlay: NDArray[np.int32]) -> None:
        """Start from a topic-connected overlay, preferably a greedy one in its order of selection."""
        self._interest = interest
        self._weights = weights
        self.steps = 0
        self.bound = 0.0
        self.division: WeightDivision | None = None
        self._has_covers = False
        nothing = Shares(np.empty(0), np.empty(0))
        no_ends = Shares(np.empty((0, 2)), np.empty((0, 2)))
        self._adopt(candidates_of(interest, weights, np.empty(0, np.int64)), nothing, no_ends)
        codes = self._codes(overlay)
        order = np.argsort(codes, kind="stable")
        sequence = candidates_of(interest, weights, codes[order])
        chains = chains_of_overlay(interest, sequence, np.argsort(order, kind="stable"))
        pairs = heavy_pairs(interest, weights, chains, FIRST_RATIO, np.zeros(interest.node_count))
        parts = self._feasible()
        self._set_candidates(np.union1d(codes, self._codes(pairs.edges)), chains, parts)

    def climb(self, steps: int) -> None:
        """Make that many steps of the ascent."""
        weight = self.candidates.weight
        total = self._totals()
        for _ in range(steps):
            scale = weight / total
            total = np.zeros(len(weight))
            if self._has_covers:
                step = self.steps - COVER_STEP
                rate = COVER_RATE / (1.0 + step / COVER_SLOW)
                _grow_trees(self._entries, self._trees, weight, scale, total, rate, False)
                _grow_covers(self._stars, self._covers, self._ends, (weight, scale), total, rate, step)
            else:
                rate = TREE_RATE / (1.0 + self.steps / TREE_SLOW)
                _grow_trees(self._entries, self._trees, weight, scale, total, rate, True)
            self.steps += 1

    def climb_to(self, steps: int, until: Callable[[], bool] = lambda: False) -> None:
        """Climb to that many steps in all, or until `until()` is true, renewing the candidates in between."""
        with stage("bound", steps) as done:
            while self.steps < steps and not until():
                if self.steps >= COVER_STEP and not self._has_covers:
                    self._add_covers()
                renewal = next(at for at in _renewals() if at > self.steps)
                stride = COVER_STRIDE if self._has_covers else STRIDE
                self.climb(min(steps, renewal, self.steps + stride) - self.steps)
                if self.steps == renewal < steps:
                    self._renew_candidates(
                        EARLY_RENEWALS.get(renewal, ADD), EARLY_RENEWALS.get(renewal, DROP)
                    )
                done(self.steps)

    def certify(self) -> float:
        """Prove a bound from the current split, after adding the candidates that the proof needs.

        The split is made feasible before the last trees and covers are built.
        """
        if self._has_covers:
            return self._certify_with_covers()
        for _ in range(RELEASES):
            part, _ = self._feasible()
            _, self._trees.part[:] = minimum_trees(self._entries, part)
        self._renew_candidates(ADD, DROP)
        part, _ = self._feasible()
        tree, _ = minimum_trees(self._entries, part)
        before = self.bound
        if self._prove(part[tree]) > before:
            origin = self._entries.origin[tree]
            ends = self.candidates.low[origin], self.candidates.high[origin]
            self.division = WeightDivision(self._interest, self._weights, *ends, part[tree])
        return self.bound

    def _certify_with_covers(self) -> float:
        """The same with covers: for the proof, all pairs that a cover could use are candidates.

        Those that the cheapest covers do use stay candidates.
        """
        chains = self._renew_candidates(ADD, None)
        before = self._codes(self.candidates.edges)
        self._add_pairs_below_their_price(chains)
        part, ends = self._feasible()
        tree, _ = minimum_trees(self._entries, part)
        covers = proven_costs(self._stars, self._covers, ends)
        bound = self._prove(np.concatenate((part[tree], covers)))
        used = self._codes(self.candidates.edges[edges_in_covers(self._stars, self._covers, ends)])
        self._set_candidates(np.union1d(before, used), chains, (part, ends))
        return bound

    def _prove(self, terms: NDArray[np.float64]) -> float:
        """The best bound so far, or the sum of these terms, rounded down."""
        self.bound = max(self.bound, float(terms.sum()) * (1.0 - (len(terms) + 4) * ROUNDING))
        return self.bound

    def edge_use(self) -> NDArray[np.float64]:
        """The recent use of each candidate, from 0 to 1: that of the topic or the end that used it most."""
        most = np.zeros(len(self.candidates.weight))
        np.maximum.at(most, self._entries.edge, self._trees.use)
        np.maximum.at(most, self._stars.edge, self._ends.use)
        return most

    def _feasible(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The parts of topics and of ends, scaled: those of an edge sum to its weight or less, exactly.

        A sum of k parts is off by k roundings at most, and the scaling adds three: more are taken off.
        """
        scale = (
            self.candidates.weight / self._totals() * (1.0 - (np.diff(self.candidates.start) + 12) * ROUNDING)
        )
        return self._trees.part * scale[self._entries.edge], self._ends.part * scale[self._stars.edge]

    def _totals(self) -> NDArray[np.float64]:
        """The sum of the parts of each edge."""
        total = np.zeros(len(self.candidates.weight))
        total += np.bincount(self._entries.edge, self._trees.part, minlength=len(total))
        total += np.bincount(self._stars.edge, self._ends.part, minlength=len(total))
        return total

    def _add_covers(self) -> None:
        """Let the nodes' covers take part from here on."""
        part, _ = self._feasible()
        self._trees.part[:] = part * (1.0 - 2.0 * COVER_SHARE)
        self._has_covers = True
        self._stars = stars_of(self._interest, self.candidates)
        self._covers = no_covers(self._stars)
        ends = COVER_SHARE * self.candidates.weight[self._stars.edge]
        self._ends = Shares(ends, np.zeros(len(ends)))

    def _renew_candidates(self, add: float, drop: float | None) -> Chains:
        """Add the pairs whose price nearly reaches their weight; drop the candidates that are far from it.

        The price of a pair is the sum of its heights, which the trees would pay for it, and of its values for
        the covers of both ends. Heights only fall as others are added: those of a pair that stays outside are
        at most `add` of its weight. Returns the chains of the trees.
        """
        part, ends = self._feasible()
        tree, _ = minimum_trees(self._entries, part)
        origin = self._entries.origin[tree]
        low, high = self.candidates.low[origin], self.candidates.high[origin]
        chains = chains_of_trees(self._interest, low, high, part[tree])
        pairs = heavy_pairs(self._interest, self._weights, chains, drop or add, self._most(ends))
        price = pairs.height + self._values(pairs.edges, ends).sum(axis=1)
        weight = self._weights.of(pairs.edges[:, 0], pairs.edges[:, 1])
        codes = self._codes(pairs.edges)
        old = self._codes(self.candidates.edges)
        if drop is not None:
            keep = is_among(old, codes[price > drop * weight]) | (self.edge_use() > SOME_USE)
            keep[self._entries.edge[tree]] = True
            old = old[keep]
        self._set_candidates(np.union1d(old, codes[price > add * weight]), chains, (part, ends))
        return chains

    def _add_pairs_below_their_price(self, chains: Chains) -> None:
        """Make candidates of all pairs that covers could use.

        The trees need the heights of such a pair. The remainder of its weight goes to the ends. If the
        remainder reaches the price of covering the topics that they share, covers do not need the pair.
        """
        parts = self._feasible()
        ends = parts[1]
        pairs = heavy_pairs(self._interest, self._weights, chains, SAFE, self._most(ends))
        price = self._prices(pairs.edges, ends)
        remainder = self._weights.of(pairs.edges[:, 0], pairs.edges[:, 1]) - pairs.height
        old = self._codes(self.candidates.edges)
        codes = self._codes(pairs.edges)
        new = (price.sum(axis=1) > SAFE * remainder) & ~is_among(codes, old)
        need = price[new] + self._values(pairs.edges[new], ends)
        need *= (remainder[new] / need.sum(axis=1))[:, None]
        self._set_candidates(np.union1d(old, codes[new]), chains, parts, need)

    def _most(self, ends: NDArray[np.float64]) -> NDArray[np.float64]:
        """The cost of each node's cheapest cover that is known: more than any pair can be worth to it."""
        if not self._has_covers:
            return np.zeros(self._interest.node_count)
        return cover_costs(self._stars, self._covers, ends)

    def _prices(self, edges: NDArray[np.int32], ends: NDArray[np.float64]) -> NDArray[np.float64]:
        """What it costs either end of each pair to cover the topics that the two share by its candidates."""
        rows = (self._interest.topic_start, self._interest.topics)
        u, v = np.ascontiguousarray(edges.T)
        by_end = (cover_prices(rows, self._stars, ends, pairs) for pairs in ((u, v), (v, u)))
        return np.stack(list(by_end), axis=1)

    def _values(self, edges: NDArray[np.int32], ends: NDArray[np.float64]) -> NDArray[np.float64]:
        """About how much cheaper the cheapest covers of either end of each pair would get with it."""
        if not self._has_covers:
            return np.zeros((len(edges), 2))
        rows = (self._interest.topic_start, self._interest.topics)
        u, v = np.ascontiguousarray(edges.T)
        by_end = (cover_values(rows, self._stars, self._covers, ends, pairs) for pairs in ((u, v), (v, u)))
        return np.stack(list(by_end), axis=1)

    def _set_candidates(
        self,
        codes: NDArray[np.int64],
        chains: Chains,
        parts: tuple[NDArray[np.float64], NDArray[np.float64]],
        new_ends: NDArray[np.float64] | None = None,
    ) -> None:
        """Change the candidates; new ones are split by their heights and by their values for the ends.

        `parts`: those of topics and ends of the candidates until now, feasible.
        """
        part, ends = parts
        known = self._codes(self.candidates.edges)
        before = np.where(is_among(codes, known), np.searchsorted(known, codes), -1)
        new = candidates_of(self._interest, self._weights, codes)
        trees = _carry_parts(
            (self.candidates.start, self._entries.origin), Shares(part, self._trees.use), before, new, chains
        )
        is_known = before >= 0
        old = before[is_known]
        by_end = Shares(np.zeros((len(codes), 2)), np.zeros((len(codes), 2)))
        by_end.part[is_known] = self._by_end(ends)[old]
        by_end.use[is_known] = self._by_end(self._ends.use)[old]
        if new_ends is None:
            new_ends = self._values(new.edges[~is_known], ends) + LEAST_PART * new.weight[~is_known, None]
        by_end.part[~is_known] = new_ends
        self._adopt(new, trees, by_end)

    def _by_end(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """The values of the stars' entries, one row per edge."""
        by_end = np.zeros((len(self.candidates.edges), 2))
        by_end[self._stars.edge, self._end_of_entries()] = values
        return by_end

    def _end_of_entries(self) -> NDArray[np.int64]:
        """The column of each of the stars' entries in `candidates.edges`."""
        return np.where(self.candidates.edges[self._stars.edge, 1] == self._stars.other, 0, 1)

    def _adopt(self, candidates: Candidates, trees: Shares, by_end: Shares) -> None:
        """Take the candidates, the values of their entries edge after edge, and those of their ends."""
        self.candidates = candidates
        self._entries = entries_by_topic(candidates, self._interest.node_start)
        origin = self._entries.origin
        self._trees = Shares(trees.part[origin], trees.use[origin])
        if self._has_covers:
            before = self._stars, self._covers
            self._stars = stars_of(self._interest, candidates)
            self._covers = no_covers(self._stars)
            carry_covers(*before, self._stars, self._covers)
        else:
            self._stars = no_stars()
        entries = self._stars.edge, self._end_of_entries()
        self._ends = Shares(by_end.part[entries], by_end.use[entries])

    def _codes(self, edges: NDArray[np.int32]) -> NDArray[np.int64]:
        return codes_of(edges, self._interest.node_count)


def _renewals() -> Iterator[int]:
    """The steps after which candidates are renewed: often at first, while they change much."""
    yield from (*EARLY_RENEWALS, 30, 60, 80, 100, 140, 180)
    yield from itertools.count(240, 100)


@kernel
def _grow_trees(
    entries: TopicEntries,
    trees: Shares,
    weight: NDArray[np.float64],
    scale: NDArray[np.float64],
    total: NDArray[np.float64],
    rate: float,
    release: bool,
) -> None:
    """A step of the topics: scale their parts, build the trees, and let the parts grow that these use.

    The new parts are added to the total of each edge. `release`: first lower the parts to their heights.
    """
    work = workspace_for(entries)
    tree = np.empty(entries.node_start[-1], np.int64)
    height = np.empty(len(trees.part))
    for t in range(len(entries.start) - 1):
        for i in range(entries.start[t], entries.start[t + 1]):
            e = entries.edge[i]
            trees.part[i] = max(trees.part[i] * scale[e], LEAST_PART * weight[e])
            trees.use[i] *= MEMORY
        for k in range(minimum_tree(entries, t, trees.part, work, tree, height)):
            trees.use[tree[k]] += 1.0 - MEMORY
        for i in range(entries.start[t], entries.start[t + 1]):
            needed = height[i] if release else trees.part[i]
            trees.part[i] = needed * (1.0 + rate * trees.use[i])
            total[entries.edge[i]] += trees.part[i]


@kernel
def _grow_covers(
    stars: Stars,
    covers: Covers,
    ends: Shares,
    edges: tuple[NDArray[np.float64], NDArray[np.float64]],
    total: NDArray[np.float64],
    rate: float,
    step: int,
) -> None:
    """A step of the nodes' covers, as one of the trees. `edges`: the weight and the scale of each.

    A search is not needed at each step: most of the time, a cover that is known is the cheapest one.
    """
    weight, scale = edges
    work = cover_workspace(stars)
    for u in range(len(stars.start) - 1):
        for i in range(stars.start[u], stars.start[u + 1]):
            e = stars.edge[i]
            ends.part[i] = max(ends.part[i] * scale[e], LEAST_PART * weight[e])
            ends.use[i] *= MEMORY
        cost = ends.part[stars.start[u] : stars.start[u + 1]]
        cover, least = known_cover(covers, u, cost)
        if step >= covers.due[u]:
            size, _, _ = cheapest_cover(stars, u, cost, least * BETTER, SEARCH_NODES, work)
            if size:
                cover = add_cover(covers, u, work, size)
            wait = covers.wait[u] // 2 if size else covers.wait[u] * 2
            covers.wait[u] = min(max(wait, LEAST_WAIT), MOST_WAIT)
            covers.due[u] = step + covers.wait[u]
        if cover >= 0:
            for k in range(covers.size[u, cover]):
                ends.use[stars.start[u] + covers.entries[u, cover, k]] += 1.0 - MEMORY
        for i in range(stars.start[u], stars.start[u + 1]):
            ends.part[i] *= 1.0 + rate * ends.use[i]
            total[stars.edge[i]] += ends.part[i]


@kernel
def _carry_parts(
    entries: tuple[NDArray[np.int64], NDArray[np.int64]],
    trees: Shares,
    before: NDArray[np.int64],
    candidates: Candidates,
    chains: Chains,
) -> Shares:
    """The parts and the use of the candidates' entries, edge after edge.

    `before`: the index that each edge had, -1 for a new one: its parts are the heights, up to a factor.
    `entries`: the start of the entries of each edge before, and the index of each one of `trees` among them.
    """
    start, origin = entries
    index = np.empty(len(origin), np.int64)
    for i in range(len(origin)):
        index[origin[i]] = i
    result = Shares(np.zeros(len(candidates.topic)), np.zeros(len(candidates.topic)))
    for e in range(len(before)):
        first = candidates.start[e]
        for k in range(first, candidates.start[e + 1]):
            if before[e] >= 0:
                i = index[start[before[e]] + k - first]
                result.part[k] = trees.part[i]
                result.use[k] = trees.use[i]
            else:
                result.part[k] = height_between(chains, candidates.low[k], candidates.high[k])
    return result

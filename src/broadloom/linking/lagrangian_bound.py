"""Lagrangian lower bound on the total weight of an overlay: proven, never an estimate.

Split the weight of each edge among the topics that its ends share. An overlay that connects every topic then
weighs at least as much as all the topics' minimum spanning trees under their parts, whatever the split. This
bound is concave in the split. We climb by multiplicative updates: a part that a tree uses grows, and the
other parts of its edge shrink.

Only candidate edges are split. For the other pairs there is a proof instead: if the heights at which the
trees join u and v, summed over the topics that they share, do not exceed w(u, v), then these heights are a
split of w(u, v) that changes no tree.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from broadloom.kernels import inner_kernel, kernel
from broadloom.linking._candidate_edges import (
    Candidates,
    Chains,
    candidates_of,
    chains_of_overlay,
    chains_of_trees,
    codes_of,
    heavy_pairs,
    height_between,
    pricing_work,
)
from broadloom.linking.greedy_overlays import GreedyOptions, grmaw
from broadloom.model import Interest, Weights
from broadloom.progress import stage

# A proof visits every pair of subscribers of every topic; above this many, only those of the smallest topics.
MOST_WORK = 5_000_000_000

# Parts grow at FIRST_RATE, falling as 1 / (1 + step / SLOW). That does not depend on the number of steps, so
# a longer ascent continues a shorter one.
FIRST_RATE = 0.8
SLOW = 20.0
MEMORY = 0.8  # of the moving average of the trees' use
SOME_USE = 1e-3  # a candidate that the trees use more than this is not dropped
LEAST_PART = 1e-6  # of an edge's weight: a part at 0 could never grow again

# The first candidates: pairs that pay this many times their weight at the prices of the greedy overlay.
FIRST_RATIO = 2.2
# A pair becomes a candidate when its heights sum to ADD of its weight, and is dropped when they sum to less
# than DROP of it and no tree uses it. Any ADD below 1 is a proof; a lower one covers more pairs until the
# candidates are renewed.
ADD = 0.95
DROP = 0.7

STRIDE = 20  # steps between two checks of the time
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


class Ascent:
    """Ascent to the best split of the weights, and the bound that it proves.

    Attributes:
        candidates: the edges that are split; they connect every topic.
        steps: the number of steps made.
        bound: the best lower bound proven so far.

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
        self._adopt(candidates_of(interest, weights, np.empty(0, np.int64)), np.empty(0), np.empty(0))
        codes = codes_of(overlay, interest.node_count)
        order = np.argsort(codes, kind="stable")
        sequence = candidates_of(interest, weights, codes[order])
        chains = chains_of_overlay(interest, sequence, np.argsort(order, kind="stable"))
        pairs = heavy_pairs(interest, weights, chains, FIRST_RATIO)
        self._set_candidates(np.union1d(codes, codes_of(pairs.edges, interest.node_count)), chains)

    def climb(self, steps: int) -> None:
        """Make that many steps of the ascent."""
        _climb(self._entries, self.candidates.weight, self._part, self._use, self.steps, steps)
        self.steps += steps

    def climb_to(self, steps: int, until: Callable[[], bool] = lambda: False) -> None:
        """Climb to that many steps in all, or until `until()` is true, renewing the candidates in between."""
        with stage("bound", steps) as done:
            while self.steps < steps and not until():
                renewal = next(at for at in _renewals() if at > self.steps)
                self.climb(min(steps, renewal, self.steps + STRIDE) - self.steps)
                if self.steps == renewal < steps:
                    self._renew_candidates()
                done(self.steps)

    def certify(self) -> float:
        """Prove a bound from the current split, after adding the candidates that the proof needs.

        The split is made feasible before the last trees are built.
        """
        self._renew_candidates()
        part = self._feasible()
        used = part[minimum_trees(self._entries, part)]
        self.bound = max(self.bound, float(used.sum()) * (1.0 - (len(used) + 4) * ROUNDING))
        return self.bound

    def edge_use(self) -> NDArray[np.float64]:
        """The recent use of each candidate by the trees, from 0 to 1: that of the topic that used it most."""
        most = np.zeros(len(self.candidates.weight))
        np.maximum.at(most, self._entries.edge, self._use)
        return most

    def _feasible(self) -> NDArray[np.float64]:
        """The parts, scaled so that those of an edge sum to its weight or less, exactly.

        A sum of k parts is off by k roundings at most, and the scaling adds three: more are taken off.
        """
        edge = self._entries.edge
        weight = self.candidates.weight
        total = np.bincount(edge, self._part, minlength=len(weight))
        scale = weight / total * (1.0 - (np.diff(self.candidates.start) + 8) * ROUNDING)
        return self._part * scale[edge]

    def _renew_candidates(self) -> None:
        """Add the pairs that the trees' heights nearly pay for; drop the candidates that are far from it.

        The heights of a pair that stays outside sum to at most ADD of its weight, and only fall as others
        are added: what is proven afterwards holds for all pairs.
        """
        part = self._feasible()
        tree = minimum_trees(self._entries, part)
        ends = self._entries.origin[tree]
        low, high = self.candidates.low[ends], self.candidates.high[ends]
        chains = chains_of_trees(self._interest, low, high, part[tree])
        n = self._interest.node_count
        pairs = heavy_pairs(self._interest, self._weights, chains, DROP)
        codes = codes_of(pairs.edges, n)
        near = pairs.height > ADD * self._weights.of(pairs.edges[:, 0], pairs.edges[:, 1])
        old = codes_of(self.candidates.edges, n)
        keep = np.isin(old, codes) | (self.edge_use() > SOME_USE)
        keep[self._entries.edge[tree]] = True
        self._set_candidates(np.union1d(old[keep], codes[near]), chains)

    def _set_candidates(self, codes: NDArray[np.int64], chains: Chains) -> None:
        """Change the candidates; new ones are split by the heights at which the chains join their topics."""
        new = candidates_of(self._interest, self._weights, codes)
        known = codes_of(self.candidates.edges, self._interest.node_count)
        is_known = np.isin(codes, known, assume_unique=True)
        old = np.isin(known, codes, assume_unique=True)
        kept = np.repeat(is_known, np.diff(new.start))
        carried = np.empty(len(self._part), np.int64)  # the entry by topic of each entry by edge
        carried[self._entries.origin] = np.arange(len(carried))
        carried = carried[np.repeat(old, np.diff(self.candidates.start))]
        part = np.zeros(len(kept))
        use = np.zeros(len(kept))
        part[kept] = self._part[carried]
        use[kept] = self._use[carried]
        _split_by_height(new, is_known, chains, part)
        self._adopt(new, part, use)

    def _adopt(self, candidates: Candidates, part: NDArray[np.float64], use: NDArray[np.float64]) -> None:
        """Take the candidates, and the values of their entries edge after edge."""
        self.candidates = candidates
        self._entries = entries_by_topic(candidates, self._interest.node_start)
        self._part = part[self._entries.origin]
        self._use = use[self._entries.origin]


def _renewals() -> Iterator[int]:
    """The steps after which candidates are renewed: often at first, while they change much."""
    yield from (4, 20, 60, 140)
    yield from itertools.count(240, 100)


@kernel
def _climb(
    entries: TopicEntries,
    weight: NDArray[np.float64],
    part: NDArray[np.float64],
    use: NDArray[np.float64],
    first: int,
    steps: int,
) -> None:
    """Steps of the ascent, one pass over the entries each; `part` is known up to a factor per edge."""
    work = workspace_for(entries)
    tree = np.empty(entries.node_start[-1], np.int64)
    total = np.zeros(len(weight))
    for i in range(len(part)):
        total[entries.edge[i]] += part[i]
    for step in range(first, first + steps):
        rate = FIRST_RATE / (1.0 + step / SLOW)
        scale = weight / total
        total[:] = 0.0
        for t in range(len(entries.start) - 1):
            for i in range(entries.start[t], entries.start[t + 1]):
                e = entries.edge[i]
                part[i] = max(part[i] * scale[e], LEAST_PART * weight[e])
                use[i] *= MEMORY
            for k in range(minimum_tree(entries, t, part, work, tree)):
                use[tree[k]] += 1.0 - MEMORY
            for i in range(entries.start[t], entries.start[t + 1]):
                part[i] *= 1.0 + rate * use[i]
                total[entries.edge[i]] += part[i]


@kernel
def _split_by_height(
    candidates: Candidates, is_known: NDArray[np.bool_], chains: Chains, part: NDArray[np.float64]
) -> None:
    """Set the parts of new edges, up to a factor per edge."""
    for e in range(len(is_known)):
        if not is_known[e]:
            for k in range(candidates.start[e], candidates.start[e + 1]):
                part[k] = height_between(chains, candidates.low[k], candidates.high[k])


class TopicEntries(NamedTuple):
    """The entries of candidate edges, topic after topic.

    Attributes:
        node_start: the start of each topic's subscribers, with the end appended.
        start: the start of each topic's entries, with the end appended.
        origin: the index of each entry among the candidates' entries.
        edge: the edge of each entry.
        low: one end of each entry, as an index of the topic's subscribers.
        high: its other end.
    """

    node_start: NDArray[np.int64]
    start: NDArray[np.int64]
    origin: NDArray[np.int64]
    edge: NDArray[np.int32]
    low: NDArray[np.int32]
    high: NDArray[np.int32]


class TreeWorkspace(NamedTuple):
    """Buffers for one tree: the remaining entries, and the lightest entry and label of each component."""

    weight: NDArray[np.float64]
    low: NDArray[np.int32]
    high: NDArray[np.int32]
    entry: NDArray[np.int64]
    least: NDArray[np.float64]
    best: NDArray[np.int32]
    label: NDArray[np.int32]


@kernel
def entries_by_topic(candidates: Candidates, node_start: NDArray[np.int64]) -> TopicEntries:
    """The candidates' entries, topic after topic, in the order of the edges within a topic."""
    total = len(candidates.topic)
    topics = len(node_start) - 1
    start = np.zeros(topics + 1, np.int64)
    for k in range(total):
        start[candidates.topic[k] + 1] += 1
    for t in range(topics):
        start[t + 1] += start[t]
    origin = np.empty(total, np.int64)
    edge = np.empty(total, np.int32)
    low, high = np.empty(total, np.int32), np.empty(total, np.int32)
    filled = start.copy()
    for e in range(len(candidates.edges)):
        for k in range(candidates.start[e], candidates.start[e + 1]):
            t = candidates.topic[k]
            at = filled[t]
            filled[t] += 1
            origin[at] = k
            edge[at] = e
            low[at] = candidates.low[k] - node_start[t]
            high[at] = candidates.high[k] - node_start[t]
    return TopicEntries(node_start, start, origin, edge, low, high)


@kernel
def workspace_for(entries: TopicEntries) -> TreeWorkspace:
    """A workspace large enough for every topic."""
    most_nodes = 1
    most_entries = 1
    for t in range(len(entries.start) - 1):
        most_nodes = max(most_nodes, entries.node_start[t + 1] - entries.node_start[t])
        most_entries = max(most_entries, entries.start[t + 1] - entries.start[t])
    return TreeWorkspace(
        np.empty(most_entries),
        np.empty(most_entries, np.int32),
        np.empty(most_entries, np.int32),
        np.empty(most_entries, np.int64),
        np.empty(most_nodes),
        np.empty(most_nodes, np.int32),
        np.empty(most_nodes, np.int32),
    )


@kernel
def minimum_trees(entries: TopicEntries, weight: NDArray[np.float64]) -> NDArray[np.int64]:
    """The entries in the topics' minimum spanning trees; each topic must be connected by its entries."""
    workspace = workspace_for(entries)
    tree = np.empty(entries.node_start[-1], np.int64)
    count = 0
    for t in range(len(entries.start) - 1):
        count += minimum_tree(entries, t, weight, workspace, tree[count:])
    return tree[:count].copy()


@kernel
def minimum_tree(
    entries: TopicEntries, t: int, weight: NDArray[np.float64], work: TreeWorkspace, tree: NDArray[np.int64]
) -> int:
    """Write the entries of the topic's minimum spanning tree to `tree`; returns their number.

    Boruvka with contraction: each component takes its lightest entry, the first of several, and entries
    inside of a component are dropped. The least weights are found without a branch, and only then the
    entries that have them, since a branch on these comparisons would be unpredictable.
    """
    components = entries.node_start[t + 1] - entries.node_start[t]
    if components < 2:
        return 0
    remaining = _fetch(entries, t, weight, work, components)
    count = 0
    while True:
        _find_lightest(work, components, remaining)
        count = _take_lightest(work, components, tree, count)
        components = _number_components(work, components)
        if components == 1:
            return count
        remaining = _contract(work, components, remaining)


@inner_kernel
def _fetch(
    entries: TopicEntries, t: int, weight: NDArray[np.float64], work: TreeWorkspace, components: int
) -> int:
    """Copy the topic's entries, and note the least weight at each subscriber; the number of entries."""
    for c in range(components):
        work.least[c] = np.inf
    first = entries.start[t]
    count = entries.start[t + 1] - first
    for i in range(count):
        w = weight[first + i]
        x = entries.low[first + i]
        y = entries.high[first + i]
        work.weight[i] = w
        work.low[i] = x
        work.high[i] = y
        work.entry[i] = first + i
        work.least[x] = min(work.least[x], w)
        work.least[y] = min(work.least[y], w)
    return count


@inner_kernel
def _find_lightest(work: TreeWorkspace, components: int, remaining: int) -> None:
    """The first entry that has the least weight of each component."""
    for c in range(components):
        work.best[c] = -1
    for i in range(remaining):
        w = work.weight[i]
        x = work.low[i]
        y = work.high[i]
        if w == work.least[x] and work.best[x] < 0:
            work.best[x] = i
        if w == work.least[y] and work.best[y] < 0:
            work.best[y] = i


@inner_kernel
def _take_lightest(work: TreeWorkspace, components: int, tree: NDArray[np.int64], count: int) -> int:
    """Attach each component to the other end of its lightest entry; if both chose it, one is the root."""
    for c in range(components):
        i = work.best[c]
        other = work.low[i] + work.high[i] - c
        if work.best[other] == i and c < other:
            work.label[c] = c
        else:
            work.label[c] = other
            tree[count] = work.entry[i]
            count += 1
    return count


@inner_kernel
def _number_components(work: TreeWorkspace, components: int) -> int:
    """Label each component with its new one, numbered from 0; returns the number of new ones."""
    for c in range(components):
        root = c
        while work.label[root] != root:
            root = work.label[root]
        below = c
        while work.label[below] != root:
            above = work.label[below]
            work.label[below] = root
            below = above
    count = 0
    for c in range(components):
        if work.label[c] == c:
            work.best[c] = count
            count += 1
    for c in range(components):
        work.label[c] = work.best[work.label[c]]
    return count


@inner_kernel
def _contract(work: TreeWorkspace, components: int, remaining: int) -> int:
    """Drop the entries inside of a component, and note the least weight at each; returns the number kept."""
    for c in range(components):
        work.least[c] = np.inf
    kept = 0
    for i in range(remaining):
        x = work.label[work.low[i]]
        y = work.label[work.high[i]]
        w = work.weight[i]
        work.low[kept] = x
        work.high[kept] = y
        work.weight[kept] = w
        work.entry[kept] = work.entry[i]
        at_ends = w if x != y else np.inf
        work.least[x] = min(work.least[x], at_ends)
        work.least[y] = min(work.least[y], at_ends)
        kept += x != y
    return kept

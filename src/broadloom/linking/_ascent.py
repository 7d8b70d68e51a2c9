"""The ascent to the best split of the edges' weights over topics: the Lagrangian bound of SPEC.md.

Divide the weight of each edge among the topics that its ends share. An overlay that connects every topic then
weighs at least as much as all the topics' minimum spanning trees under their parts, whatever the division.
This bound is concave in the split. We climb by multiplicative updates: a part that a tree uses grows, and the
other parts of its edge shrink.

Only candidate edges are split. For the other pairs there is a proof instead: if the heights at which the
trees join u and v, summed over the topics that they share, do not exceed w(u, v), then these heights are a
split of w(u, v) that changes no tree.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from broadloom.kernels import kernel
from broadloom.linking._candidates import Candidates, candidates_of, codes_of
from broadloom.linking._chains import (
    Chains,
    chains_of_overlay,
    chains_of_trees,
    heavy_pairs,
    height_between,
)
from broadloom.linking._trees import (
    Entries,
    entries_by_topic,
    minimum_tree,
    minimum_trees,
    workspace_for,
)
from broadloom.model import Interest, Weights
from broadloom.progress import stage

# Parts grow at FIRST_RATE, falling as 1 / (1 + step / SLOW): this depends on no budget, so that a longer
# ascent continues a shorter one.
FIRST_RATE, SLOW = 0.8, 20.0
MEMORY = 0.8  # of the moving average of the trees' use
SOME_USE = 1e-3
LEAST_PART = 1e-6  # of an edge's weight: a part at 0 could never grow again

# The first candidates: pairs that pay, at the prices of the greedy overlay, this much of their weight.
FIRST_RATIO = 2.2
# A pair becomes a candidate when its heights sum to ADD of its weight, and is one no more when they sum to
# less than DROP of it and no tree uses it. Any ADD below 1 is a proof; a lower one keeps more pairs in check
# until the next time.
ADD, DROP = 0.95, 0.7

STRIDE = 20  # steps between two looks at the clock
ROUNDING = 2.0**-52  # twice the relative error of one operation


class Ascent:
    """A split of the weights, how it climbs, and what it proves.

    Attributes:
        candidates: the edges that are split; they connect every topic.
        steps: how many steps were made.
        bound: the best lower bound that was proven so far.

    Examples:
        >>> interest = Interest.from_lists([[0], [0], [0]])
        >>> ascent = Ascent(interest, Weights.uniform(3), np.array([[0, 1], [0, 2]], np.int32))
        >>> round(ascent.certify(), 9)
        2.0
    """

    def __init__(self, interest: Interest, weights: Weights, overlay: NDArray[np.int32]) -> None:
        """Start from a topic-connected overlay, best a greedy one in its order of selection."""
        self._interest, self._weights = interest, weights
        self.steps, self.bound = 0, 0.0
        self._adopt(candidates_of(interest, weights, np.empty(0, np.int64)), np.empty(0), np.empty(0))
        codes = codes_of(overlay, interest.node_count)
        order = np.argsort(codes, kind="stable")
        sequence = candidates_of(interest, weights, codes[order])
        chains = chains_of_overlay(interest, sequence, np.argsort(order, kind="stable"))
        pairs = heavy_pairs(interest, weights, chains, FIRST_RATIO)
        self._set_candidates(np.union1d(codes, codes_of(pairs.edges, interest.node_count)), chains)

    def climb(self, steps: int) -> None:
        """Make some steps of the ascent."""
        _climb(self._entries, self.candidates.weight, self._part, self._use, self.steps, steps)
        self.steps += steps

    def climb_to(self, steps: int, until: Callable[[], bool] = lambda: False) -> None:
        """Climb until so many steps were made in all, or until told, with new candidates on the way."""
        with stage("bound", steps) as done:
            while self.steps < steps and not until():
                renewal = next(at for at in _renewals() if at > self.steps)
                self.climb(min(steps, renewal, self.steps + STRIDE) - self.steps)
                if self.steps == renewal < steps:
                    self._renew_candidates()
                done(self.steps)

    def certify(self) -> float:
        """Prove a bound from the split as it is, after taking in what stands in the way of the proof.

        The feasibility of the split is made sure of before the last trees are built.
        """
        self._renew_candidates()
        part = self._feasible()
        used = part[minimum_trees(self._entries, part)]
        self.bound = max(self.bound, float(used.sum()) * (1.0 - (len(used) + 4) * ROUNDING))
        return self.bound

    def edge_use(self) -> NDArray[np.float64]:
        """How much the trees used each candidate lately, from 0 to 1: the most that one of its topics did."""
        most = np.zeros(len(self.candidates.weight))
        np.maximum.at(most, self._entries.edge, self._use)
        return most

    def _feasible(self) -> NDArray[np.float64]:
        """The parts, scaled so that those of an edge sum to its weight or less, exactly.

        A sum of k parts is wrong by k roundings at most, and the scaling adds three: so many are taken off.
        """
        edge, weight = self._entries.edge, self.candidates.weight
        total = np.bincount(edge, self._part, minlength=len(weight))
        scale = weight / total * (1.0 - (np.diff(self.candidates.start) + 8) * ROUNDING)
        return self._part * scale[edge]

    def _renew_candidates(self) -> None:
        """Add the pairs that the trees' heights nearly pay for, drop the candidates that are far from it.

        The heights of a pair that stays outside sum to at most ADD of its weight, and only fall as others
        come in: what is proven afterwards holds for all pairs.
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
        old, kept = np.isin(known, codes, assume_unique=True), np.repeat(is_known, np.diff(new.start))
        carried = np.empty(len(self._part), np.int64)  # the entry of each number among the candidates' own
        carried[self._entries.origin] = np.arange(len(carried))
        carried = carried[np.repeat(old, np.diff(self.candidates.start))]
        part, use = np.zeros(len(kept)), np.zeros(len(kept))
        part[kept], use[kept] = self._part[carried], self._use[carried]
        _split_by_height(new, is_known, chains, part)
        self._adopt(new, part, use)

    def _adopt(self, candidates: Candidates, part: NDArray[np.float64], use: NDArray[np.float64]) -> None:
        """Take the candidates, and the values of their entries edge after edge."""
        self.candidates = candidates
        self._entries = entries_by_topic(candidates, self._interest.node_start)
        self._part, self._use = part[self._entries.origin], use[self._entries.origin]


def _renewals() -> Iterator[int]:
    """After how many steps the candidates are renewed: often at first, when they still change a lot."""
    yield from (4, 20, 60, 140)
    yield from itertools.count(240, 100)


@kernel
def _climb(
    entries: Entries,
    weight: NDArray[np.float64],
    part: NDArray[np.float64],
    use: NDArray[np.float64],
    first: int,
    steps: int,
) -> None:
    """Steps of the ascent, in one pass over the entries each; `part` is up to a factor an edge."""
    work, tree = workspace_for(entries), np.empty(entries.node_start[-1], np.int64)
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
    """The parts of edges that were not there before, up to a factor."""
    for e in range(len(is_known)):
        if not is_known[e]:
            for k in range(candidates.start[e], candidates.start[e + 1]):
                part[k] = height_between(chains, candidates.low[k], candidates.high[k])

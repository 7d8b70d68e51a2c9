"""Linking as an integer program: which pairs may be chosen, and what connecting every topic asks of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from broadloom.errors import InputError
from broadloom.linking._partition_cuts import most_violated_partition
from broadloom.model import Interest, Weights

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Above this many pairs of subscribers, summed over the topics, not even the linear relaxation is worth a try.
MOST_PAIRS = 50_000
# The solver's solutions are right to 1e-6: an inequality counts as violated from here.
VIOLATED = 1e-4


@dataclass(frozen=True)
class Program:
    """Choose pairs of least weight such that every inequality holds; more of these are found on the way.

    Attributes:
        pairs: the pairs of nodes that share a topic, ascending.
        weight: the weight of each pair.
        topics: for each topic that binds, the index of each pair of its subscribers; -1 on the diagonal.
        needs: so many of these pairs must be chosen at least.
    """

    pairs: NDArray[np.int32]
    weight: Floats
    topics: Sequence[Ints]
    needs: dict[tuple[int, ...], int] = field(default_factory=dict)

    @classmethod
    def of(cls, interest: Interest, weights: Weights) -> Program:
        """The program of an instance, with an inequality for each single subscriber, and for all of a topic.

        Raises:
            InputError: the instance is too large to try.
        """
        groups = binding_topics(interest)
        size = sum(math.comb(len(group), 2) for group in groups)
        if size > MOST_PAIRS:
            raise InputError(
                f"exact would have to look at {size:,} pairs of subscribers over all topics, its limit is "
                f"{MOST_PAIRS:,}; use another algorithm and its lower bound"
            )
        n = max(interest.node_count, 1)
        codes = [np.minimum(g[:, None] * n + g, g * n + g[:, None]) for g in groups]
        pairs = np.unique(
            np.concatenate([np.empty(0, np.int64), *(c[np.triu_indices_from(c, 1)] for c in codes)])
        )
        topics = [np.where(np.eye(len(c), dtype=bool), -1, np.searchsorted(pairs, c)) for c in codes]
        u, v = np.divmod(pairs, n)
        program = cls(np.stack((u, v), axis=1).astype(np.int32), weights.of(u, v), topics)
        for topic in topics:
            everyone = np.arange(len(topic))
            program.need(topic, everyone)
            for subscriber in everyone:
                program.need(topic, everyone == subscriber)
        return program

    def need(self, topic: Ints, part: NDArray[np.generic]) -> bool:
        """Ask that enough pairs connect the parts of a topic; false if that was asked before."""
        key = tuple(np.sort(topic[_across(part)]).tolist())
        count = len(np.unique(part)) - 1
        new = self.needs.get(key, 0) < count
        if new:
            self.needs[key] = count
        return new

    def separate(self, x: Floats) -> int:
        """Ask for the inequality of each topic that x violates most; how many of them are new."""
        new = 0
        for topic in self.topics:
            values = np.where(topic < 0, 0.0, x[topic])
            part = most_violated_partition(values)
            if values[_across(part)].sum() < len(np.unique(part)) - 1 - VIOLATED:
                new += self.need(topic, part)
        return new

    def rows(self) -> tuple[csr_array, Floats]:
        """A matrix with a row an inequality, and what a choice must give there at least."""
        start = np.cumsum([0, *map(len, self.needs)])
        columns = np.concatenate([np.array(key, np.int64) for key in self.needs])
        matrix = csr_array((np.ones(len(columns)), columns, start), shape=(len(self.needs), len(self.pairs)))
        return matrix, np.array(list(self.needs.values()), np.float64)

    def total(self, chosen: Bools) -> float:
        """The weight of a choice."""
        return math.fsum(self.weight[chosen])

    def guided(self, x: Floats) -> Bools:
        """A choice that connects every topic: spanning trees by weight * (1 - x), then reverse delete."""
        rank = np.argsort(np.argsort(self.weight * (1 - x), kind="stable"))
        chosen = np.zeros(len(self.pairs), bool)
        for topic in self.topics:
            chosen[_spanning_tree(topic, rank)] = True
        heaviest_first = np.argsort(-self.weight, kind="stable")
        for pair in heaviest_first[chosen[heaviest_first]]:
            chosen[pair] = False
            chosen[pair] = not all(_is_connected(topic, chosen) for topic in self._topics_of[pair])
        return chosen

    @cached_property
    def _topics_of(self) -> list[list[Ints]]:
        """The topics that each pair shares."""
        result: list[list[Ints]] = [[] for _ in self.pairs]
        for topic in self.topics:
            for pair in topic[np.triu_indices_from(topic, 1)]:
                result[pair].append(topic)
        return result


def binding_topics(interest: Interest) -> list[Ints]:
    """The subscribers of the topics that ask for something: each set once, none that smaller ones imply.

    Topics whose subscribers are all among those of a larger one connect these piece by piece. Where the
    pieces hang together, the larger topic is connected with them.
    """
    sets = {frozenset(interest.nodes_of(t).tolist()) for t in range(interest.topic_count)}
    kept: list[frozenset[int]] = []
    for group in sorted(sets, key=lambda s: (len(s), sorted(s))):
        pieces = [frozenset({v}) for v in group]
        for smaller in kept:
            if smaller < group:
                touched = frozenset().union(*(p for p in pieces if p & smaller))
                pieces = [p for p in pieces if not p & smaller] + [touched]
        if len(pieces) > 1:
            kept.append(group)
    return [np.array(sorted(group), np.int64) for group in kept]


def _across(part: NDArray[np.generic]) -> Bools:
    """Which pairs (above the diagonal) are of different parts."""
    return np.triu(part[:, None] != part[None, :])


def _spanning_tree(topic: Ints, rank: Ints) -> list[int]:
    """The pairs of a topic's minimum spanning tree by rank (Prim)."""
    ranks = np.where(topic < 0, len(rank), rank[topic])
    nearest, parent, outside = ranks[0].copy(), np.zeros(len(topic), int), np.arange(len(topic)) > 0
    tree = []
    while outside.any():
        v = int(np.where(outside, nearest, len(rank)).argmin())
        tree.append(int(topic[parent[v], v]))
        outside[v] = False
        closer = ranks[v] < nearest
        nearest[closer], parent[closer] = ranks[v][closer], v
    return tree


def _is_connected(topic: Ints, chosen: Bools) -> bool:
    """Whether the chosen pairs connect a topic."""
    linked = np.where(topic < 0, False, chosen[topic])
    seen = np.arange(len(topic)) == 0
    front = seen
    while front.any():
        front = linked[front].any(axis=0) & ~seen
        seen = seen | front
    return bool(seen.all())

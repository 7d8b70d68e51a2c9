"""TrMAW (paper 1, Alg. 1): a minimum spanning tree per topic."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from broadloom.errors import InputError
from broadloom.kernels import inner_kernel, kernel, thread_count
from broadloom.linking._ties import TIES, TieRule, priority_of, tie_rule
from broadloom.linking.link_result import LinkResult, without_repetition
from broadloom.model import Interest, WeightArrays, Weights, weight_of

PER_TOPIC = "random-per-topic"


@dataclass(frozen=True)
class TreeOptions:
    """Options of trmaw.

    Attributes:
        ties: the choice among links of equal weight: "smallest", the smallest pair of indices; "random",
            drawn from the seed, the same for all topics, so that topics share the links that they can share;
            "random-per-topic", drawn anew for each topic, so that they seldom do.
    """

    ties: str = "smallest"

    def __post_init__(self) -> None:
        if not isinstance(self.ties, str) or self.ties not in (*TIES, PER_TOPIC):
            raise InputError(f"ties is {self.ties!r}; give one of {', '.join((*TIES, PER_TOPIC))}")


def trmaw(interest: Interest, weights: Weights, options: TreeOptions, seed: int) -> LinkResult:
    """A minimum spanning tree per topic: topic after topic its edges by weight, then by ties, each once.

    That is Kruskal's order, without his list of all pairs: under a strict order of the edges there is one
    minimum spanning tree, and Prim finds it in memory linear in the subscribers.

    Reference: Chen, Tock, Jacobsen and Vitenberg, ICDCS 2015 (paper 1), Alg. 1.
    """
    arrays = weights.arrays()
    topics = range(interest.topic_count)
    if options.ties == PER_TOPIC:
        seeds = np.random.default_rng(seed).integers(2**63, size=len(topics))
        ties = [tie_rule("random", int(drawn)) for drawn in seeds]
    else:
        ties = [tie_rule(options.ties, seed)] * len(topics)
    with ThreadPoolExecutor(thread_count()) as threads:
        trees = list(
            threads.map(lambda topic: _spanning_tree(arrays, interest.nodes_of(topic), ties[topic]), topics)
        )
    edges = np.concatenate([tree.edges for tree in trees] + [np.empty((0, 2), np.int32)])
    cost = np.concatenate([tree.cost for tree in trees] + [np.empty(0)])
    priority = np.concatenate([tree.priority for tree in trees] + [np.empty(0, np.uint64)])
    topic = np.repeat(topics, [len(tree.edges) for tree in trees])
    order = np.lexsort((edges[:, 1], edges[:, 0], priority, cost, topic))
    return LinkResult(without_repetition(edges[order]))


class TopicTree(NamedTuple):
    """The spanning tree of a topic: its edges, their weights and their priorities."""

    edges: NDArray[np.int32]
    cost: NDArray[np.float64]
    priority: NDArray[np.uint64]


class Fringe(NamedTuple):
    """The nodes outside of a tree, and the best edge of each into the tree.

    Attributes:
        outside: the nodes.
        inside: the end in the tree of each best edge.
        cost: its weight; infinite before the first.
        priority: its priority, if ties are random.
    """

    outside: NDArray[np.int32]
    inside: NDArray[np.int32]
    cost: NDArray[np.float64]
    priority: NDArray[np.uint64]


def _tree_work(weights: WeightArrays, members: NDArray[np.int32], ties: TieRule) -> float:  # noqa: ARG001
    """The work of `_spanning_tree`, which looks at all pairs."""
    return len(members) ** 2 / 8


@kernel(cost=_tree_work)
def _spanning_tree(weights: WeightArrays, members: NDArray[np.int32], ties: TieRule) -> TopicTree:
    """The minimum spanning tree of the members under the order (weight, priority, u, v).

    Prim over all pairs, n^2 / 2 weights: each member outside of the tree keeps its best edge into the tree.
    """
    outside = members[1:].copy()
    inside = np.empty_like(outside)
    cost = np.full(len(outside), np.inf)
    priority = np.zeros(len(outside), np.uint64)
    fringe = Fringe(outside, inside, cost, priority)
    tree = TopicTree(
        np.empty((len(outside), 2), np.int32), np.empty(len(outside)), np.empty(len(outside), np.uint64)
    )
    newest = members[0] if len(members) else 0
    for remaining in range(len(outside), 0, -1):
        if ties.random:
            lowest = _attach_by_priority(weights, newest, fringe, remaining, ties)
        else:
            lowest = _attach(weights, newest, fringe, remaining)
        best = _first_of_cost(lowest, fringe, remaining, ties)
        newest = outside[best]
        tree.edges[remaining - 1] = min(newest, inside[best]), max(newest, inside[best])
        tree.cost[remaining - 1] = lowest
        tree.priority[remaining - 1] = priority[best]
        outside[best] = outside[remaining - 1]
        inside[best] = inside[remaining - 1]
        cost[best] = cost[remaining - 1]
        priority[best] = priority[remaining - 1]
    return tree


@inner_kernel
def _attach(weights: WeightArrays, newest: int, fringe: Fringe, remaining: int) -> float:
    """Update the best edge of each node outside by its edge to the newest node; the lowest cost of all."""
    outside = fringe.outside
    inside = fringe.inside
    cost = fringe.cost
    lowest = np.inf
    for i in range(remaining):
        w = weight_of(weights, newest, outside[i])
        if w <= cost[i] and (w < cost[i] or _precedes(newest, outside[i], inside[i], outside[i])):
            cost[i] = w
            inside[i] = newest
        lowest = min(lowest, cost[i])
    return lowest


@inner_kernel
def _attach_by_priority(
    weights: WeightArrays, newest: int, fringe: Fringe, remaining: int, ties: TieRule
) -> float:
    """As `_attach`, by weight, then by priority."""
    outside = fringe.outside
    inside = fringe.inside
    cost = fringe.cost
    priority = fringe.priority
    lowest = np.inf
    for i in range(remaining):
        w = weight_of(weights, newest, outside[i])
        if w <= cost[i]:
            new = priority_of(ties, min(newest, outside[i]), max(newest, outside[i]), 0)
            if (
                w < cost[i]
                or new < priority[i]
                or (new == priority[i] and _precedes(newest, outside[i], inside[i], outside[i]))
            ):
                cost[i] = w
                inside[i] = newest
                priority[i] = new
        lowest = min(lowest, cost[i])
    return lowest


@inner_kernel
def _first_of_cost(lowest: float, fringe: Fringe, remaining: int, ties: TieRule) -> int:
    """The index of the first edge, by priority and `(u, v)`, among those of the lowest cost."""
    outside = fringe.outside
    inside = fringe.inside
    priority = fringe.priority
    best = -1
    for i in range(remaining):
        if fringe.cost[i] == lowest:
            if best < 0:
                best = i
            elif ties.random and priority[i] != priority[best]:
                if priority[i] < priority[best]:
                    best = i
            elif _precedes(inside[i], outside[i], inside[best], outside[best]):
                best = i
    return best


@inner_kernel
def _precedes(a: int, b: int, c: int, d: int) -> bool:
    """Whether the edge of a and b comes before that of c and d in lexicographic order."""
    low = min(a, b)
    other = min(c, d)
    return low < other or (low == other and max(a, b) < max(c, d))

"""Spanning trees of the part of an overlay that a topic uses: by weight, or by shortest ways from a root."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra

# Of a large topic so many roots are tried, the most central ones.
ROOTS = 64

Pair = tuple[int, int]
Edges = tuple[int, ...]  # the links of a tree, by their number in the group, ascending


class Group(NamedTuple):
    """A topic, or filters that can match one topic, and the links among the brokers that want it.

    Attributes:
        filters: the topic, or the filters.
        members: the brokers that want one of them, by name, so that ties do not hang on the plan's order.
        ends: the links, (m, 2), ends counted among the members.
        lengths: the weight of each link.
        shared: how many of the filters both ends of each link want.
        sent: how much each member sends, for a tree of least delay; None: the weight of the tree counts.
        rate: bytes a second of all who publish.
    """

    filters: tuple[str, ...]
    members: NDArray[np.int64]
    ends: NDArray[np.int64]
    lengths: NDArray[np.float64]
    shared: NDArray[np.int64]
    sent: NDArray[np.float64] | None
    rate: float

    def pairs(self) -> list[Pair]:
        """The ends of each link as a pair of brokers, ascending."""
        return [(min(u, v), max(u, v)) for u, v in self.members[self.ends].tolist()]

    def links(self, tree: Sequence[int]) -> tuple[Pair, ...]:
        """The links of a tree as pairs of brokers, ascending."""
        pairs = self.pairs()
        return tuple(sorted(pairs[edge] for edge in tree))

    def cost(self, tree: Sequence[int]) -> float:
        """What a tree costs: its weight, or the delay from all who send to all members, by what they send."""
        chosen = list(tree)
        if self.sent is None:
            return float(self.lengths[chosen].sum())
        return total_delay(self.ends[chosen], self.lengths[chosen], self.sent)


def best_tree(group: Group) -> Edges | None:
    """The tree of a group, or None if its links do not connect it."""
    if group.sent is None:
        return least_weight(group)
    distances = _distances(group)
    if np.isinf(distances).any():
        return None
    count = len(group.members)
    through = distances @ group.sent * count + group.sent.sum() * distances.sum(axis=1)
    roots = np.argsort(through, kind="stable")[:ROOTS]
    trees = [shortest_ways(group, distances[root], int(root)) for root in roots]
    return min(trees, key=lambda tree: (group.cost(tree), tree))


def least_weight(group: Group) -> Edges | None:
    """Kruskal's algorithm, links that share the most filters first; None if not all are connected.

    The spanning tree with the most sharing leaves each filter's brokers in the fewest parts: of `k` brokers
    in `c` parts the tree's links share that filter `k - c` times.
    """
    order = np.lexsort((group.ends[:, 1], group.ends[:, 0], group.lengths, -group.shared))
    parent, tree = list(range(len(group.members))), []
    for edge in order.tolist():
        a, b = (_root(parent, end) for end in group.ends[edge].tolist())
        if a != b:
            parent[a] = b
            tree.append(edge)
    return tuple(sorted(tree)) if len(tree) == len(group.members) - 1 else None


def shortest_ways(group: Group, distance: NDArray[np.float64], root: int) -> Edges:
    """The tree of shortest ways from a root; among equally short ones over the smallest broker.

    Every broker but the root hangs on a link that ends a shortest way: the sum is exactly the distance.
    """
    edges = np.tile(np.arange(len(group.ends)), 2)
    start, end = np.concatenate((group.ends, group.ends[:, ::-1])).T
    tight = np.flatnonzero(distance[start] + group.lengths[edges] == distance[end])
    order = tight[np.lexsort((start[tight], end[tight]))]
    hung, first = np.unique(end[order], return_index=True)
    return tuple(sorted(edges[order[first[hung != root]]].tolist()))


def total_delay(ends: NDArray[np.int64], lengths: NDArray[np.float64], sent: NDArray[np.float64]) -> float:
    """The sum, over all members, of what each sends times its distances to all, in a tree.

    A link carries what is sent on either side of it to everybody on the other side.
    """
    count, everything = len(sent), float(sent.sum())
    order, above, length = _from_the_leaves(ends, lengths, count)
    below, sent_below, total = [1] * count, sent.tolist(), 0.0
    for v in order:
        others = count - below[v]
        total += length[v] * (sent_below[v] * others + (everything - sent_below[v]) * below[v])
        below[above[v]] += below[v]
        sent_below[above[v]] += sent_below[v]
    return total


def neighbours(ends: NDArray[np.int64], count: int) -> list[list[tuple[int, int]]]:
    """Of each member of a tree, the members next to it, and over which link."""
    near: list[list[tuple[int, int]]] = [[] for _ in range(count)]
    for edge, (u, v) in enumerate(ends.tolist()):
        near[u].append((v, edge))
        near[v].append((u, edge))
    return near


def _from_the_leaves(
    ends: NDArray[np.int64], lengths: NDArray[np.float64], count: int
) -> tuple[list[int], list[int], list[float]]:
    """All members but the first, those far from it first; of each the one above it, and the length there."""
    near, above, length, order = neighbours(ends, count), [0] * count, [0.0] * count, [0]
    for v in order:
        for w, edge in near[v]:
            if w != above[v] or (v == 0 and w != 0):
                above[w], length[w] = v, float(lengths[edge])
                order.append(w)
    return order[:0:-1], above, length


def _distances(group: Group) -> NDArray[np.float64]:
    """Between all members, over the group's links."""
    count = len(group.members)
    graph = csr_array((group.lengths, (group.ends[:, 0], group.ends[:, 1])), shape=(count, count))
    return np.asarray(dijkstra(graph, directed=False))


def _root(parent: list[int], i: int) -> int:
    while parent[i] != i:
        parent[i] = i = parent[parent[i]]
    return i

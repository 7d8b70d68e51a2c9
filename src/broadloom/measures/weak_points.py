"""What holds topics together: the links and nodes whose loss alone would make a topic fall apart."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from broadloom.kernels import kernel
from broadloom.measures.connectivity import as_overlay
from broadloom.measures.diameter import Graph, sub_overlay
from broadloom.model import Interest, Overlay


class WeakPoints(NamedTuple):
    """How many topics would fall apart by the loss of each link, and of each node, int64 (m,) and (n,)."""

    links: NDArray[np.int64]
    nodes: NDArray[np.int64]


def weak_points(interest: Interest, edges: Overlay | ArrayLike) -> WeakPoints:
    """How many topics each link, and each node, holds together on its own.

    A link does if it is a bridge of the topic's sub-overlay; a node if the topic's other subscribers are in
    more components without it. Costs about the sum, over the subscriptions, of the subscriber's links.

    Examples:
        >>> weak_points(Interest.from_lists([[0], [0, 1], [0, 1]]), [(0, 1), (1, 2), (0, 2)])
        WeakPoints(links=array([0, 1, 0]), nodes=array([0, 0, 0]))
        >>> weak_points(Interest.from_lists([[0], [0], [0]]), [(0, 1), (1, 2)]).nodes
        array([0, 1, 0])
    """
    overlay = as_overlay(interest, edges)
    found = WeakPoints(np.zeros(overlay.edge_count, np.int64), np.zeros(overlay.node_count, np.int64))
    number = np.arange(overlay.edge_count, dtype=np.float64)
    _count(interest.node_start, interest.nodes, *overlay.adjacency(), number, *found)
    return found


@kernel
def _count(
    node_start: NDArray[np.int64],
    nodes: NDArray[np.int32],
    near_start: NDArray[np.int64],
    near: NDArray[np.int32],
    near_edge: NDArray[np.int32],
    number: NDArray[np.float64],
    links: NDArray[np.int64],
    cuts: NDArray[np.int64],
) -> None:
    """Add each topic's bridges to `links`, and its cut nodes to `cuts`."""
    local = np.full(len(near_start) - 1, -1, np.int32)
    for t in range(len(node_start) - 1):
        members = nodes[node_start[t] : node_start[t + 1]]
        graph = sub_overlay(members, near_start, near, near_edge, number, local)
        is_cut = _search(graph, links)
        for i in range(len(members)):
            cuts[members[i]] += is_cut[i]


@kernel
def _search(graph: Graph, links: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Tarjan's search in depth: add bridges to `links`, and return which nodes are cut nodes.

    An arc's length is the number of its link. `low` is the earliest node that is reached from below a node.
    """
    n, clock = len(graph.start) - 1, 0
    seen, low = np.zeros(n, np.int64), np.zeros(n, np.int64)
    parent, over, at = np.full(n, -1, np.int64), np.zeros(n, np.int64), graph.start[:-1].copy()
    is_cut = np.zeros(n, np.bool_)
    for root in range(n):
        if seen[root] > 0:
            continue
        branches, v = 0, root
        while v >= 0:
            if seen[v] == 0:
                clock += 1
                seen[v] = low[v] = clock
            if at[v] < graph.start[v + 1]:
                arc = at[v]
                at[v] += 1
                w = graph.ends[arc]
                if seen[w] == 0:
                    parent[w], over[w], v = v, arc, w
                elif w != parent[v]:
                    low[v] = min(low[v], seen[w])
                continue
            above = parent[v]
            if above >= 0:
                low[above] = min(low[above], low[v])
                links[np.int64(graph.lengths[over[v]])] += low[v] > seen[above]
                branches += above == root
                is_cut[above] |= above != root and low[v] >= seen[above]
            v = above
        is_cut[root] = branches > 1
    return is_cut

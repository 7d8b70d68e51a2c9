"""How far apart a topic's subscribers are in its sub-overlay: exact diameters, in hops and by weight."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from broadloom.checks import check_count, raise_for_first
from broadloom.kernels import kernel, over_ranges
from broadloom.measures.connectivity import as_overlay, link_weights
from broadloom.model import Interest, Overlay, Weights

# Two sums of the same weights in another order may differ in the last digits: prune only beyond this.
_SLACK = 1e-12


class Graph(NamedTuple):
    """A topic's sub-overlay over its subscribers, numbered from 0: compressed rows with a length an arc."""

    start: NDArray[np.int64]
    ends: NDArray[np.int32]
    lengths: NDArray[np.float64]


def topic_diameters(
    interest: Interest,
    edges: Overlay | ArrayLike,
    weights: Weights | None = None,
    topics: ArrayLike | None = None,
    searches: int | None = None,
) -> NDArray[np.float64]:
    """The diameter of each topic's sub-overlay: the longest of all shortest paths between two subscribers.

    Args:
        interest: who wants what.
        edges: the overlay.
        weights: lengths of the links; None: each counts 1, so diameters are in hops.
        topics: which topics; None: all.
        searches: stop a topic after so many searches of its graph, so that its number is a lower bound; None:
            as many as it takes to be exact. Most graphs need a few dozen, a ring one from every node.

    Returns:
        One number a topic: 0 for one subscriber or none, infinity for a topic that is not connected.

    Raises:
        InputError: a topic that is not there, or weights or an overlay for another number of nodes.

    Examples:
        >>> topic_diameters(Interest.from_lists([[0], [0, 1], [0, 1]]), [(0, 1), (1, 2)])
        array([2., 1.])
    """
    overlay = as_overlay(interest, edges)
    chosen = np.arange(interest.topic_count) if topics is None else np.asarray(topics, np.int64)
    raise_for_first(
        (chosen < 0) | (chosen >= interest.topic_count),
        lambda i: f"topic {chosen[i]} is not there",
        f"topics are 0 to {interest.topic_count - 1}",
    )
    lengths, near = link_weights(overlay, weights), overlay.adjacency()
    limit = np.iinfo(np.int64).max if searches is None else check_count(searches, "searches", minimum=1)
    result = np.zeros(len(chosen))

    def measure(first: int, last: int) -> None:
        part = chosen[first:last], interest.node_start, interest.nodes
        _diameters(*part, *near, lengths, limit, result[first:last])

    over_ranges(len(chosen), measure, "measure diameters")
    return result


def graph_diameter(node_count: int, edges: NDArray[np.int32], lengths: NDArray[np.float64]) -> float:
    """The diameter of one graph: edges over the nodes from 0, and their lengths.

    Examples:
        >>> graph_diameter(3, np.array([[0, 1], [1, 2]], np.int32), np.array([1.0, 5.0]))
        6.0
    """
    near = Overlay(node_count, edges).adjacency()
    graph = Graph(near.start, near.neighbours, lengths[near.edge])
    return float(_diameter(graph, np.iinfo(np.int64).max))


@kernel
def _diameters(
    topics: NDArray[np.int64],
    node_start: NDArray[np.int64],
    nodes: NDArray[np.int32],
    near_start: NDArray[np.int64],
    near: NDArray[np.int32],
    near_edge: NDArray[np.int32],
    lengths: NDArray[np.float64],
    limit: int,
    result: NDArray[np.float64],
) -> None:
    """The diameter of each topic in `topics`, into `result`."""
    local = np.full(len(near_start) - 1, -1, np.int32)
    for i in range(len(topics)):
        members = nodes[node_start[topics[i]] : node_start[topics[i] + 1]]
        result[i] = _diameter(sub_overlay(members, near_start, near, near_edge, lengths, local), limit)


@kernel
def sub_overlay(
    members: NDArray[np.int32],
    near_start: NDArray[np.int64],
    near: NDArray[np.int32],
    near_edge: NDArray[np.int32],
    lengths: NDArray[np.float64],
    local: NDArray[np.int32],
) -> Graph:
    """The part of the overlay among `members`; `local` is -1 everywhere before and after."""
    for i in range(len(members)):
        local[members[i]] = i
    start = np.zeros(len(members) + 1, np.int64)
    for i in range(len(members)):
        count = 0
        for k in range(near_start[members[i]], near_start[members[i] + 1]):
            count += local[near[k]] >= 0
        start[i + 1] = start[i] + count
    ends, arc_lengths = np.empty(start[-1], np.int32), np.empty(start[-1])
    for i in range(len(members)):
        at = start[i]
        for k in range(near_start[members[i]], near_start[members[i] + 1]):
            if local[near[k]] >= 0:
                ends[at] = local[near[k]]
                arc_lengths[at] = lengths[near_edge[k]]
                at += 1
    for i in range(len(members)):
        local[members[i]] = -1
    return Graph(start, ends, arc_lengths)


@kernel
def _diameter(graph: Graph, limit: int) -> float:
    """The exact diameter, by bounding eccentricities; a lower bound if that takes over `limit` searches.

    After a search from `v` the eccentricity of `w` is at least `d(v, w)`, at most `ecc(v) + d(v, w)`: a node
    whose upper bound does not exceed the longest path found needs no search of its own. A few dozen searches
    do where each node would need one.
    """
    n = len(graph.start) - 1
    if n < 2:
        return 0.0
    low, high = np.zeros(n), np.full(n, np.inf)
    open_nodes, longest, take_high, searches = n, 0.0, True, 0
    while open_nodes > 0 and searches < limit:
        searches += 1
        v = _extreme(low, high, take_high)
        take_high = not take_high
        distance = _distances(graph, v)
        eccentricity = distance.max()
        if eccentricity == np.inf:
            return np.inf
        longest = max(longest, eccentricity)
        high[v] = -1.0
        open_nodes = 0
        for w in range(n):
            if high[w] >= 0.0:
                low[w] = max(low[w], distance[w], eccentricity - distance[w])
                high[w] = min(high[w], eccentricity + distance[w])
                if high[w] * (1.0 + _SLACK) <= longest:
                    high[w] = -1.0
                else:
                    open_nodes += 1
    return longest


@kernel
def _extreme(low: NDArray[np.float64], high: NDArray[np.float64], take_high: bool) -> int:
    """The open node with the largest upper bound, or the one with the smallest lower bound."""
    best = -1
    for v in range(len(low)):
        if high[v] >= 0.0 and (
            best < 0 or (take_high and high[v] > high[best]) or (not take_high and low[v] < low[best])
        ):
            best = v
    return best


@kernel
def _distances(graph: Graph, source: int) -> NDArray[np.float64]:
    """Shortest distances from `source`: Dijkstra's algorithm on a binary heap."""
    n = len(graph.start) - 1
    distance = np.full(n, np.inf)
    distance[source] = 0.0
    heap = [(0.0, np.int32(source))]
    while heap:
        reached, v = heappop(heap)
        if reached > distance[v]:
            continue
        for k in range(graph.start[v], graph.start[v + 1]):
            w, through = graph.ends[k], reached + graph.lengths[k]
            if through < distance[w]:
                distance[w] = through
                heappush(heap, (through, w))
    return distance


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

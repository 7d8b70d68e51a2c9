"""Diameters and weak points of the sub-overlays of topics.

A topic's sub-overlay has its subscribers and the links between them.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from broadloom.checks import check_count, index_array, lock_array
from broadloom.kernels import kernel, over_ranges
from broadloom.measures.connectivity import as_overlay, link_weights
from broadloom.model import Interest, Overlay, Weights, trusted_overlay

# Relative difference of sums of the same weights in another order: prune only beyond this.
_SLACK = 1e-12


class Graph(NamedTuple):
    """A graph over nodes from 0, in compressed rows: the ends of each node's arcs, and their lengths."""

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
        interest: the topics of each node.
        edges: the overlay.
        weights: the length of each link; None: 1 each, so diameters are in hops.
        topics: the topics to measure, or a mask with one truth value per topic; None: all.
        searches: the limit of searches per topic, which makes diameters lower bounds; None: as many as exact
            diameters take. Most graphs need a few dozen, a ring needs one from every node.

    Returns:
        One diameter per topic: 0 for less than two subscribers, infinity for a topic that is not connected.

    Raises:
        InputError: an unknown topic, or weights or an overlay for another number of nodes.

    Examples:
        >>> topic_diameters(Interest.from_lists([[0], [0, 1], [0, 1]]), [(0, 1), (1, 2)])
        array([2., 1.])
    """
    overlay = as_overlay(interest, edges)
    count = interest.topic_count
    chosen = np.arange(count) if topics is None else index_array(topics, count, "topic")
    graph = _whole_graph(overlay, link_weights(overlay, weights))
    limit = np.iinfo(np.int64).max if searches is None else check_count(searches, "searches", minimum=1)
    result = np.zeros(len(chosen))

    def measure(first: int, last: int) -> None:
        topic_nodes = interest.node_start, interest.nodes
        _diameters(chosen[first:last], *topic_nodes, graph, limit, result[first:last])

    over_ranges(len(chosen), measure, "measure diameters")
    return result


def link_graph(node_count: int, edges: NDArray[np.int32], lengths: NDArray[np.float64]) -> Graph:
    """Links over the nodes from 0 as a graph, with the length of each link."""
    return _whole_graph(trusted_overlay(node_count, edges.copy()), lengths)


def block_components(
    node_start: NDArray[np.int64], nodes: NDArray[np.int32], graph: Graph
) -> NDArray[np.int64]:
    """The number of components of each topic of a block, whose topic `t` has `nodes[start[t]:start[t + 1]]`.

    Examples:
        >>> graph = link_graph(3, np.array([[0, 1]], np.int32), np.ones(1))
        >>> block_components(np.array([0, 2, 4]), np.array([0, 1, 1, 2], np.int32), graph)
        array([1, 2])
    """
    result = np.zeros(len(node_start) - 1, np.int64)
    for array in (node_start, nodes):
        lock_array(array)
    _components(node_start, nodes, graph, result)
    return result


def block_diameters(
    node_start: NDArray[np.int64], nodes: NDArray[np.int32], graph: Graph
) -> NDArray[np.float64]:
    """The diameter of each topic of a block; infinity for a topic that is not connected.

    Examples:
        >>> graph = link_graph(3, np.array([[0, 1], [1, 2]], np.int32), np.array([1.0, 5.0]))
        >>> block_diameters(np.array([0, 3, 5]), np.array([0, 1, 2, 0, 2], np.int32), graph)
        array([ 6., inf])
    """
    result = np.zeros(len(node_start) - 1)
    topics = np.arange(len(result))
    for array in (node_start, nodes):
        lock_array(array)  # as those of an interest: the kernel would be compiled a second time
    limit = np.iinfo(np.int64).max

    def measure(first: int, last: int) -> None:
        _diameters(topics[first:last], node_start, nodes, graph, limit, result[first:last])

    over_ranges(len(result), measure, "measure diameters")
    return result


def _whole_graph(overlay: Overlay, lengths: NDArray[np.float64]) -> Graph:
    """An overlay as a graph, with the length of each link."""
    near = overlay.adjacency()
    return Graph(near.start, near.neighbours, lengths[near.edge])


def _diameters_work(topics: NDArray[np.int64], node_start: NDArray[np.int64], *_: object) -> float:
    """The work of `_diameters`: a search from each subscriber of a topic."""
    return float(np.sum(np.diff(node_start)[topics] ** 2)) / 5


@kernel(cost=_diameters_work)
def _diameters(
    topics: NDArray[np.int64],
    node_start: NDArray[np.int64],
    nodes: NDArray[np.int32],
    graph: Graph,
    limit: int,
    result: NDArray[np.float64],
) -> None:
    """The diameter of each topic in `topics`, into `result`."""
    local = np.full(len(graph.start) - 1, -1, np.int32)
    for i in range(len(topics)):
        members = nodes[node_start[topics[i]] : node_start[topics[i] + 1]]
        result[i] = _diameter(_sub_overlay(members, graph, local), limit)


@kernel
def _components(
    node_start: NDArray[np.int64], nodes: NDArray[np.int32], graph: Graph, result: NDArray[np.int64]
) -> None:
    """The number of components of each topic, into `result`, by searches from nodes not reached so far."""
    count = len(graph.start) - 1
    wanted = np.full(count, -1, np.int64)  # the last topic that has the node and whose search has not met it
    todo = np.empty(count, np.int32)
    for t in range(len(node_start) - 1):
        members = nodes[node_start[t] : node_start[t + 1]]
        for i in range(len(members)):
            wanted[members[i]] = t
        for i in range(len(members)):
            if wanted[members[i]] != t:
                continue
            result[t] += 1
            todo[0] = members[i]
            wanted[members[i]] = -1
            size = 1
            while size > 0:
                size -= 1
                v = todo[size]
                for k in range(graph.start[v], graph.start[v + 1]):
                    if wanted[graph.ends[k]] == t:
                        wanted[graph.ends[k]] = -1
                        todo[size] = graph.ends[k]
                        size += 1


@kernel
def _sub_overlay(members: NDArray[np.int32], graph: Graph, local: NDArray[np.int32]) -> Graph:
    """The part of the graph among `members`; `local` is scratch space, -1 everywhere before and after."""
    for i in range(len(members)):
        local[members[i]] = i
    start = np.zeros(len(members) + 1, np.int64)
    for i in range(len(members)):
        count = 0
        for k in range(graph.start[members[i]], graph.start[members[i] + 1]):
            count += local[graph.ends[k]] >= 0
        start[i + 1] = start[i] + count
    ends, arc_lengths = np.empty(start[-1], np.int32), np.empty(start[-1])
    for i in range(len(members)):
        at = start[i]
        for k in range(graph.start[members[i]], graph.start[members[i] + 1]):
            if local[graph.ends[k]] >= 0:
                ends[at] = local[graph.ends[k]]
                arc_lengths[at] = graph.lengths[k]
                at += 1
    for i in range(len(members)):
        local[members[i]] = -1
    return Graph(start, ends, arc_lengths)


@kernel
def _diameter(graph: Graph, limit: int) -> float:
    """The exact diameter, by bounding eccentricities; a lower bound after `limit` searches.

    After a search from `v` the eccentricity of `w` is at least `d(v, w)`, at most `ecc(v) + d(v, w)`: a node
    whose upper bound does not exceed the longest path found needs no search. So a few dozen searches are
    enough for most graphs.
    """
    n = len(graph.start) - 1
    if n < 2:
        return 0.0
    low, high = np.zeros(n), np.full(n, np.inf)
    open_nodes, longest, take_high, searches = n, 0.0, True, 0
    in_hops = bool(np.all(graph.lengths == 1.0))
    while open_nodes > 0 and searches < limit:
        searches += 1
        v = _extreme(low, high, take_high)
        take_high = not take_high
        distance = _hop_distances(graph, v) if in_hops else _distances(graph, v)
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


@kernel
def _hop_distances(graph: Graph, source: int) -> NDArray[np.float64]:
    """Shortest distances from `source` if every link has length 1: breadth-first search."""
    n = len(graph.start) - 1
    distance = np.full(n, np.inf)
    distance[source] = 0.0
    queue = np.empty(n, np.int32)
    queue[0] = source
    first, last = 0, 1
    while first < last:
        v = queue[first]
        first += 1
        for k in range(graph.start[v], graph.start[v + 1]):
            w = graph.ends[k]
            if distance[w] == np.inf:
                distance[w] = distance[v] + 1.0
                queue[last] = w
                last += 1
    return distance


class WeakPoints(NamedTuple):
    """The number of topics that each link, and each node, disconnects if it fails, int64 (m,) and (n,)."""

    links: NDArray[np.int64]
    nodes: NDArray[np.int64]


def weak_points(interest: Interest, edges: Overlay | ArrayLike) -> WeakPoints:
    """The number of topics that each link, and each node, disconnects if it fails.

    A link disconnects a topic if it is a bridge of the sub-overlay; a node, if the other subscribers are in
    more components without it. Takes about the sum, over the subscriptions, of the subscriber's links.

    Examples:
        >>> weak_points(Interest.from_lists([[0], [0, 1], [0, 1]]), [(0, 1), (1, 2), (0, 2)])
        WeakPoints(links=array([0, 1, 0]), nodes=array([0, 0, 0]))
        >>> weak_points(Interest.from_lists([[0], [0], [0]]), [(0, 1), (1, 2)]).nodes
        array([0, 1, 0])
    """
    overlay = as_overlay(interest, edges)
    found = WeakPoints(np.zeros(overlay.edge_count, np.int64), np.zeros(overlay.node_count, np.int64))
    # The length of each arc is set to the index of its link.
    graph = _whole_graph(overlay, np.arange(overlay.edge_count, dtype=np.float64))
    _count_weak_points(interest.node_start, interest.nodes, graph, found)
    return found


@kernel
def _count_weak_points(
    node_start: NDArray[np.int64], nodes: NDArray[np.int32], graph: Graph, found: WeakPoints
) -> None:
    """Add each topic's bridges and cut nodes to `found`."""
    local = np.full(len(graph.start) - 1, -1, np.int32)
    for t in range(len(node_start) - 1):
        members = nodes[node_start[t] : node_start[t + 1]]
        is_cut = _search(_sub_overlay(members, graph, local), found.links)
        for i in range(len(members)):
            found.nodes[members[i]] += is_cut[i]


@kernel
def _search(graph: Graph, links: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Tarjan's depth-first search: add bridges to `links`, and return for each node whether it is a cut node.

    An arc's length is the index of its link. `low` is the earliest node that the nodes below a node reach.
    """
    n = len(graph.start) - 1
    clock = 0
    seen, low = np.zeros(n, np.int64), np.zeros(n, np.int64)
    parent, parent_arc = np.full(n, -1, np.int64), np.zeros(n, np.int64)
    next_arc = graph.start[:-1].copy()
    is_cut = np.zeros(n, np.bool_)
    for root in range(n):
        if seen[root] > 0:
            continue
        branches, v = 0, root
        while v >= 0:
            if seen[v] == 0:
                clock += 1
                seen[v] = low[v] = clock
            if next_arc[v] < graph.start[v + 1]:
                arc = next_arc[v]
                next_arc[v] += 1
                w = graph.ends[arc]
                if seen[w] == 0:
                    parent[w] = v
                    parent_arc[w] = arc
                    v = w
                elif w != parent[v]:
                    low[v] = min(low[v], seen[w])
                continue
            above = parent[v]
            if above >= 0:
                low[above] = min(low[above], low[v])
                links[np.int64(graph.lengths[parent_arc[v]])] += low[v] > seen[above]
                branches += above == root
                is_cut[above] |= above != root and low[v] >= seen[above]
            v = above
        is_cut[root] = branches > 1
    return is_cut

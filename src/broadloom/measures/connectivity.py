"""Connectivity of topics, computed without code of the algorithms, so that it can check their results."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from broadloom.checks import check_count, check_instance, lock_array
from broadloom.errors import InputError
from broadloom.kernels import kernel
from broadloom.model import Interest, Overlay, Weights


def components_per_topic(interest: Interest, edges: Overlay | ArrayLike) -> NDArray[np.int64]:
    """The number of components of each topic's subscribers in the overlay; 0 for a topic without subscribers.

    Topic filters and topics that overlap share one tree (`Interest.grouped`), so each of them has the number
    of components of all subscribers of its group. Costs about the sum, over the edges, of the topics of both
    ends.

    Examples:
        >>> components_per_topic(Interest.from_lists([[0, 1], [0], [0, 1]]), [(0, 1)])
        array([2, 2])
        >>> components_per_topic(Interest.from_lists([["a/#"], ["a/b"], ["c"]]), [(0, 2)])
        array([2, 2, 1])
    """
    pairs = as_overlay(interest, edges).edges
    grouped = interest.grouped()
    forests = spanning_forests(grouped, pairs, np.zeros(len(pairs)))
    components = np.diff(grouped.node_start) - forests.links
    return components if grouped is interest else components[interest.group_of_topic]


def disconnected_topics(interest: Interest, edges: Overlay | ArrayLike) -> NDArray[np.int64]:
    """The topics with more than one component, ascending.

    Examples:
        >>> disconnected_topics(Interest.from_lists([[0, 1], [0], [1]]), [(0, 1)])
        array([1])
    """
    return np.flatnonzero(components_per_topic(interest, edges) > 1)


def is_topic_connected(interest: Interest, edges: Overlay | ArrayLike) -> bool:
    """Whether the subscribers of every topic are connected by links among themselves.

    Topic filters and topics that overlap count as one topic.

    Examples:
        >>> is_topic_connected(Interest.from_lists([[0], [0, 1], [1]]), [(0, 1), (1, 2)])
        True
    """
    return len(disconnected_topics(interest, edges)) == 0


def filters_text(count: int) -> str:
    """The words that follow a count of topics if topic filters are among them; empty without filters.

    Examples:
        >>> filters_text(31)
        ' (31 topic filters; those that overlap count as one topic)'
    """
    number = check_count(count, "the number of topic filters")
    return f" ({number:,} topic filters; those that overlap count as one topic)" if number else ""


def as_overlay(interest: Interest, edges: Overlay | ArrayLike) -> Overlay:
    """The edges as an overlay over the interest's nodes; an `InputError` if the numbers of nodes differ."""
    check_instance(interest, Interest, "the interest", "make one with Interest.from_lists")
    overlay = edges if isinstance(edges, Overlay) else Overlay.from_edges(interest.node_count, edges)
    if overlay.node_count != interest.node_count:
        raise InputError(
            f"the interest has {interest.node_count:,} nodes, the overlay {overlay.node_count:,}; "
            "give the same number"
        )
    return overlay


def link_weights(overlay: Overlay, weights: Weights | None) -> NDArray[np.float64]:
    """The weight of each link of an overlay; 1 each without weights."""
    if weights is None:
        return np.ones(overlay.edge_count)
    check_instance(weights, Weights, "weights", "make them with Weights.dense, or give None")
    if weights.node_count != overlay.node_count:
        raise InputError(
            f"the overlay has {overlay.node_count:,} nodes, the weights {weights.node_count:,}; "
            "give the same number"
        )
    return weights.of(overlay.edges[:, 0], overlay.edges[:, 1])


class Forests(NamedTuple):
    """Spanning forests, one per topic: the links and the price of each, and the number of uses per edge."""

    links: NDArray[np.int64]
    price: NDArray[np.float64]
    uses: NDArray[np.int64]


def spanning_forests(interest: Interest, edges: NDArray[np.int32], prices: NDArray[np.float64]) -> Forests:
    """A spanning forest of each topic's sub-overlay, of the earliest edges."""
    locked_edges, locked_prices = edges.view(), prices.view()
    for array in (locked_edges, locked_prices):
        lock_array(array)  # the kernel would be compiled a second time for writeable arrays
    return _spanning_forests(
        interest.topic_start, interest.topics, interest.topic_count, locked_edges, locked_prices
    )


@kernel
def _spanning_forests(
    topic_start: NDArray[np.int64],
    topics: NDArray[np.int32],
    topic_count: int,
    edges: NDArray[np.int32],
    prices: NDArray[np.float64],
) -> Forests:
    """Kruskal's algorithm in all topics at once: union-find over subscriptions."""
    parent = np.arange(len(topics))
    links = np.zeros(topic_count, np.int64)
    price = np.zeros(topic_count)
    uses = np.zeros(len(edges), np.int64)
    for e in range(len(edges)):
        i, j = topic_start[edges[e, 0]], topic_start[edges[e, 1]]
        i_end, j_end = topic_start[edges[e, 0] + 1], topic_start[edges[e, 1] + 1]
        while i < i_end and j < j_end:
            if topics[i] < topics[j]:
                i += 1
            elif topics[i] > topics[j]:
                j += 1
            else:
                a, b = _root(parent, i), _root(parent, j)
                if a != b:
                    parent[a] = b
                    links[topics[i]] += 1
                    price[topics[i]] += prices[e]
                    uses[e] += 1
                i += 1
                j += 1
    return Forests(links, price, uses)


@kernel
def _root(parent: NDArray[np.int64], i: int) -> int:
    """The root of i's set; halves the path to it."""
    while parent[i] != i:
        parent[i] = parent[parent[i]]
        i = parent[i]
    return i

"""What a message costs: the links of a tree that reaches every subscriber of its topic once."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from broadloom._jit import kernel
from broadloom.measures.connectivity import _root, as_overlay
from broadloom.model.interest import Interest
from broadloom.model.overlay import Overlay
from broadloom.model.weights import Weights


def routing_costs(
    interest: Interest, edges: Overlay | ArrayLike, weights: Weights | None = None
) -> NDArray[np.float64]:
    """The cost of one message of each topic over the least tree of its sub-overlay: the sum of its links' weights.

    A topic that is not connected costs what its components' trees do.

    Args:
        interest: who wants what.
        edges: the overlay.
        weights: what a message costs on each link; None: 1, so that costs count links.

    Example:
        >>> routing_costs(Interest.from_lists([[0], [0, 1], [0, 1]]), [(0, 1), (1, 2), (0, 2)])
        array([2., 1.])
    """
    overlay = as_overlay(interest, edges)
    prices = np.ones(overlay.edge_count)
    if weights is not None:
        prices = weights.of(overlay.edges[:, 0], overlay.edges[:, 1])
    order = np.argsort(prices, kind="stable")
    return _tree_prices(
        interest.topic_start, interest.topics, interest.topic_count, overlay.edges[order], prices[order]
    )


@kernel
def _tree_prices(
    topic_start: NDArray[np.int64],
    topics: NDArray[np.int32],
    topic_count: int,
    edges: NDArray[np.int32],
    prices: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Kruskal's algorithm in all topics at once, over edges from the cheapest to the dearest."""
    parent = np.arange(len(topics))
    total = np.zeros(topic_count)
    for e in range(len(edges)):
        i, j = topic_start[edges[e, 0]], topic_start[edges[e, 1]]
        while i < topic_start[edges[e, 0] + 1] and j < topic_start[edges[e, 1] + 1]:
            if topics[i] < topics[j]:
                i += 1
            elif topics[i] > topics[j]:
                j += 1
            else:
                a, b = _root(parent, i), _root(parent, j)
                if a != b:
                    parent[a] = b
                    total[topics[i]] += prices[e]
                i += 1
                j += 1
    return total

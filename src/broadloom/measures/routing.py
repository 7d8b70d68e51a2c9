"""What a message costs: the links of a tree that reaches every subscriber of its topic once."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from broadloom.measures.connectivity import Forests, as_overlay, link_weights, spanning_forests
from broadloom.model import Interest, Overlay, Weights


def routing_costs(
    interest: Interest, edges: Overlay | ArrayLike, weights: Weights | None = None
) -> NDArray[np.float64]:
    """What one message of each topic costs over the least tree of its sub-overlay: the sum of its links.

    A topic that is not connected costs what its components' trees do.

    Args:
        interest: who wants what.
        edges: the overlay.
        weights: what a message costs on each link; None: 1, so that costs count links.

    Examples:
        >>> routing_costs(Interest.from_lists([[0], [0, 1], [0, 1]]), [(0, 1), (1, 2), (0, 2)])
        array([2., 1.])
    """
    return _least_trees(interest, edges, weights)[0].price


def link_loads(
    interest: Interest, edges: Overlay | ArrayLike, weights: Weights | None = None
) -> NDArray[np.int64]:
    """How many topics send over each link, when each one's messages go over its least tree.

    Args:
        interest: who wants what.
        edges: the overlay.
        weights: what a message costs on each link; None: 1 each, and earlier links go before later ones.

    Examples:
        >>> link_loads(Interest.from_lists([[0], [0, 1], [0, 1]]), [(0, 1), (1, 2), (0, 2)])
        array([1, 2, 0])
    """
    forests, order = _least_trees(interest, edges, weights)
    loads = np.empty_like(forests.uses)
    loads[order] = forests.uses
    return loads


def _least_trees(
    interest: Interest, edges: Overlay | ArrayLike, weights: Weights | None
) -> tuple[Forests, NDArray[np.int64]]:
    """The least tree of each topic, and the order in which edges were tried: cheap ones first."""
    overlay = as_overlay(interest, edges)
    prices = link_weights(overlay, weights)
    order = np.argsort(prices, kind="stable")
    return spanning_forests(interest, overlay.edges[order], prices[order]), order

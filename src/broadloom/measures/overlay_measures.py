"""Measures of overlays: degrees, weights, diameters, routing costs, loads of links."""

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from broadloom.checks import check_count, seeded_generator
from broadloom.measures.connectivity import (
    Forests,
    as_overlay,
    components_per_topic,
    link_weights,
    spanning_forests,
)
from broadloom.measures.sub_overlays import topic_diameters
from broadloom.model import Interest, Overlay, Weights

# Up to this many subscriptions, the diameters of all topics are measured; above it, those of a sample.
EXACT_SUBSCRIPTIONS = 20_000_000
SAMPLED_TOPICS = 100
# If a topic has more subscribers than this, searches per topic are limited, and diameters are lower bounds.
LARGE_TOPIC = 20_000
LARGE_SEARCHES = 200


def metrics(
    interest: Interest,
    edges: Overlay | ArrayLike,
    weights: Weights | None = None,
    sample: int | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Every measure of an overlay.

    Degrees are over all nodes. Diameters and the routing cost (of a message over the minimum spanning tree of
    its topic) are over the topics with subscribers. `diameters` is "exact", or the number of sampled topics,
    or says that diameters are lower bounds because a topic is very large.

    Topic filters and topics that overlap count as one topic (`Interest.grouped`); then `topic_filters` is the
    number of filters. `subscriptions` counts them as they are.

    Args:
        interest: the topics of each node.
        edges: the overlay.
        weights: the price of each link; None: 1 each.
        sample: the number of topics whose diameters are measured; None: all, or 100 if there are more than
            20 million subscriptions.
        seed: the seed of the sample.

    Examples:
        >>> metrics(Interest.from_lists([[0], [0], []]), [(0, 1)])["mean_degree"]
        0.6666666666666666
    """
    overlay = as_overlay(interest, edges)
    subscriptions = interest.subscription_count
    filters = {"topic_filters": interest.filter_count} if interest.has_filters else {}
    interest = interest.grouped()
    seeded_generator(seed)
    lengths_of = Weights.uniform(interest.node_count) if weights is None else weights
    degree = overlay.degrees()
    prices = link_weights(overlay, lengths_of)
    weighted = np.bincount(overlay.edges.ravel(), np.repeat(prices, 2), minlength=overlay.node_count)
    components = components_per_topic(interest, overlay)
    served = np.flatnonzero(components)
    topics, searches, how = _measured_topics(interest, served, sample, seed)
    hops, lengths = (
        topic_diameters(interest, overlay, kind, topics, searches) for kind in (None, lengths_of)
    )
    return {
        "nodes": interest.node_count,
        "topics": interest.topic_count,
        **filters,
        "subscriptions": subscriptions,
        "edges": overlay.edge_count,
        "mean_degree": _mean(degree),
        "max_degree": int(degree.max(initial=0)),
        "weighted_mean_degree": _mean(weighted),
        "weighted_max_degree": float(weighted.max(initial=0.0)),
        "total_weight": math.fsum(prices),
        "topic_connected": bool(np.all(components <= 1)),
        "disconnected_topics": int(np.sum(components > 1)),
        "components": int(components.sum()),
        "diameters": how,
        "mean_diameter": _mean(hops),
        "max_diameter": float(hops.max(initial=0.0)),
        "weighted_mean_diameter": _mean(lengths),
        "weighted_max_diameter": float(lengths.max(initial=0.0)),
        "mean_routing_cost": _mean(routing_costs(interest, overlay, lengths_of)[served]),
    }


def _measured_topics(
    interest: Interest, served: NDArray[np.int64], sample: int | None, seed: int
) -> tuple[NDArray[np.int64], int | None, str]:
    """The topics whose diameters are measured, the most searches per topic, and the metric `diameters`."""
    if sample is None and interest.subscription_count > EXACT_SUBSCRIPTIONS:
        sample = SAMPLED_TOPICS
    topics, how = served, "exact"
    if sample is not None and check_count(sample, "sample", minimum=1) < len(served):
        topics = np.sort(seeded_generator(seed).choice(served, sample, replace=False))
        how = f"sampled: {sample} of {len(served)} topics"
    if np.diff(interest.node_start)[topics].max(initial=0) <= LARGE_TOPIC:
        return topics, None, how
    return topics, LARGE_SEARCHES, f"lower bounds by {LARGE_SEARCHES} searches per topic, {how}"


def _mean(values: NDArray[Any]) -> float:
    return float(values.mean()) if len(values) else 0.0


def routing_costs(
    interest: Interest, edges: Overlay | ArrayLike, weights: Weights | None = None
) -> NDArray[np.float64]:
    """The cost of one message of each topic over the minimum spanning tree of its sub-overlay.

    A topic that is not connected costs the sum of its components' trees.

    Args:
        interest: the topics of each node.
        edges: the overlay.
        weights: the cost of a message on each link; None: 1, so that costs count links.

    Examples:
        >>> routing_costs(Interest.from_lists([[0], [0, 1], [0, 1]]), [(0, 1), (1, 2), (0, 2)])
        array([2., 1.])
    """
    return _spanning_trees(interest, edges, weights)[0].price


def link_loads(
    interest: Interest, edges: Overlay | ArrayLike, weights: Weights | None = None
) -> NDArray[np.int64]:
    """The number of topics that use each link, if messages follow the minimum spanning tree of their topic.

    Args:
        interest: the topics of each node.
        edges: the overlay.
        weights: the cost of a message on each link; None: 1 each, and earlier links are preferred.

    Examples:
        >>> link_loads(Interest.from_lists([[0], [0, 1], [0, 1]]), [(0, 1), (1, 2), (0, 2)])
        array([1, 2, 0])
    """
    forests, order = _spanning_trees(interest, edges, weights)
    loads = np.empty_like(forests.uses)
    loads[order] = forests.uses
    return loads


def _spanning_trees(
    interest: Interest, edges: Overlay | ArrayLike, weights: Weights | None
) -> tuple[Forests, NDArray[np.int64]]:
    """The minimum spanning tree of each topic, and the order of the edges: cheap ones first."""
    overlay = as_overlay(interest, edges)
    prices = link_weights(overlay, weights)
    order = np.argsort(prices, kind="stable")
    return spanning_forests(interest, overlay.edges[order], prices[order]), order

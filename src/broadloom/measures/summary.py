"""Every measure of an overlay, under the names that the API, the CLI and the docs use."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from broadloom.measures.connectivity import as_overlay, components_per_topic
from broadloom.measures.diameter import topic_diameters
from broadloom.measures.routing import routing_costs
from broadloom.model.interest import Interest
from broadloom.model.overlay import Overlay
from broadloom.model.weights import Weights

# Up to this many subscriptions diameters are over all topics; above, over a sample, and `diameters` says so.
EXACT_SUBSCRIPTIONS = 20_000_000
SAMPLED_TOPICS = 100


def metrics(
    interest: Interest, edges: Overlay | ArrayLike, weights: Weights | None = None, seed: int = 0
) -> dict[str, Any]:
    """Every measure of an overlay.

    Degrees are over all nodes. Diameters and the routing cost (of a message over the least tree of its topic)
    are over the topics with subscribers; `diameters` says "exact", or over how many sampled topics they are.

    Example:
        >>> metrics(Interest.from_lists([[0], [0], []]), [(0, 1)])["mean_degree"]
        0.6666666666666666
    """
    overlay = as_overlay(interest, edges)
    given = Weights.uniform(interest.node_count) if weights is None else weights
    degree = overlay.degrees()
    prices = given.of(overlay.edges[:, 0], overlay.edges[:, 1])
    weighted = np.bincount(overlay.edges.ravel(), np.repeat(prices, 2), minlength=overlay.node_count)
    components = components_per_topic(interest, overlay)
    served = np.flatnonzero(components)
    sample, how = _sampled(interest, served, seed)
    hops, lengths = (topic_diameters(interest, overlay, kind, sample) for kind in (None, given))
    return {
        "nodes": interest.node_count,
        "topics": interest.topic_count,
        "subscriptions": interest.subscription_count,
        "edges": overlay.edge_count,
        "mean_degree": _mean(degree),
        "max_degree": int(degree.max(initial=0)),
        "weighted_mean_degree": _mean(weighted),
        "weighted_max_degree": float(weighted.max(initial=0.0)),
        "total_weight": float(prices.sum()),
        "topic_connected": bool(np.all(components <= 1)),
        "disconnected_topics": int(np.sum(components > 1)),
        "components": int(components.sum()),
        "diameters": how,
        "mean_diameter": _mean(hops),
        "max_diameter": float(hops.max(initial=0.0)),
        "weighted_mean_diameter": _mean(lengths),
        "weighted_max_diameter": float(lengths.max(initial=0.0)),
        "mean_routing_cost": _mean(routing_costs(interest, overlay, given)[served]),
    }


def _sampled(interest: Interest, served: NDArray[np.int64], seed: int) -> tuple[NDArray[np.int64], str]:
    """The topics whose diameters are measured, and how that is told."""
    if interest.subscription_count <= EXACT_SUBSCRIPTIONS or len(served) <= SAMPLED_TOPICS:
        return served, "exact"
    sample = np.sort(np.random.default_rng(seed).choice(served, SAMPLED_TOPICS, replace=False))
    return sample, f"sampled: {SAMPLED_TOPICS} of {len(served)} topics"


def _mean(values: NDArray[Any]) -> float:
    return float(values.mean()) if len(values) else 0.0

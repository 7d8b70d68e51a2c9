"""How nodes are divided into parts: by site, by nearness, by lot (paper 1, section IX-G)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from broadloom.errors import InputError
from broadloom.kernels import k_means
from broadloom.model import Weights

LANDMARKS = 8
Parts = NDArray[np.int32]


def by_site(weights: Weights, parts: int, rng: np.random.Generator) -> Parts:  # noqa: ARG001
    """A part for each site of the weights."""
    if weights.kind != "sites":
        raise InputError(f"by='site' needs weights by site, these are {weights.kind}; use by='kmeans'")
    return weights.site


def by_lot(weights: Weights, parts: int, rng: np.random.Generator) -> Parts:
    """Parts of equal size, drawn at random."""
    return (rng.permutation(weights.node_count) % parts).astype(np.int32)


def by_landmark(weights: Weights, parts: int, rng: np.random.Generator) -> Parts:
    """Each node with the nearest of as many landmarks, which are far from each other."""
    return np.argmin(distances_to(weights, landmarks(weights, parts, rng)), axis=1).astype(np.int32)


def by_kmeans(weights: Weights, parts: int, rng: np.random.Generator) -> Parts:
    """Clusters of places: of coordinates, or of the weights to a few landmarks where there are none."""
    if weights.kind == "euclidean":
        return k_means(weights.points, parts, rng)
    return k_means(distances_to(weights, landmarks(weights, LANDMARKS, rng)), parts, rng)


WAYS: dict[str, Callable[[Weights, int, np.random.Generator], Parts]] = {
    "site": by_site,
    "kmeans": by_kmeans,
    "random": by_lot,
    "landmark": by_landmark,
}


def landmarks(weights: Weights, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Nodes far from each other: one by lot, then always the one farthest from those before it."""
    n = weights.node_count
    chosen = [int(rng.integers(n))]
    nearest = distances_to(weights, np.array(chosen))[:, 0]
    while len(chosen) < min(count, n):
        chosen.append(int(np.argmax(nearest)))
        nearest = np.minimum(nearest, distances_to(weights, np.array(chosen[-1:]))[:, 0])
    return np.array(chosen)


def distances_to(weights: Weights, nodes: NDArray[np.int64]) -> NDArray[np.float64]:
    """The weight from every node, a row each, to these; 0 to itself."""
    n = weights.node_count
    table = weights.of(np.repeat(np.arange(n), len(nodes)), np.tile(nodes, n)).reshape(n, len(nodes))
    table[nodes, np.arange(len(nodes))] = 0.0
    return table

"""What links cost while nodes come and go: weights with room for nodes that join later."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from broadloom.errors import InputError
from broadloom.model import Weights
from broadloom.model._check import number, whole
from broadloom.model.weights import DENSE, EUCLIDEAN, KINDS, SITES, UNIFORM, WeightArrays


def with_room(weights: WeightArrays, nodes: NDArray[np.int64], room: int) -> WeightArrays:
    """The weights among some of the nodes, in arrays of their own with room for more."""
    n, table, points, site = len(nodes), weights.table.copy(), weights.points.copy(), weights.site.copy()
    if weights.kind == DENSE:
        table = np.ones((room, room))
        table[:n, :n] = weights.table[np.ix_(nodes, nodes)]
    elif weights.kind == EUCLIDEAN:
        points = np.zeros((room, weights.points.shape[1]))
        points[:n] = weights.points[nodes]
    elif weights.kind == SITES:
        site = np.zeros(room, np.int32)
        site[:n] = weights.site[nodes]
    return weights._replace(table=table, points=points, site=site)


def as_weights(arrays: WeightArrays, count: int) -> Weights:
    """Weights among so many nodes, as users see them."""
    return Weights(
        KINDS[arrays.kind], count, arrays.table, arrays.points, arrays.site, arrays.inner, arrays.outer
    )


def place_node(arrays: WeightArrays, node: int, at: object, others: Mapping[int, int]) -> None:
    """Put a new node at its place: what its links to the nodes that are there will cost.

    Args:
        arrays: the weights.
        node: its position.
        at: its point, its site, or its weight to each present node, by their ids; None without weights.
        others: the position of each node that is there, by its id.
    """
    if arrays.kind == UNIFORM:
        if at is not None:
            raise InputError(f"at is {at!r}, but there are no weights; leave it out")
    elif arrays.kind == EUCLIDEAN:
        arrays.points[node] = _point(arrays, at, others)
    elif arrays.kind == SITES:
        arrays.site[node] = _site(arrays, at)
    else:
        row = _row(at, others)
        positions = list(others.values())
        arrays.table[node, positions] = arrays.table[positions, node] = row


def _point(arrays: WeightArrays, at: object, others: Mapping[int, int]) -> NDArray[np.float64]:
    axes = arrays.points.shape[1]
    try:
        point = np.array(at, np.float64)
    except (TypeError, ValueError):
        point = np.empty(0)
    if point.shape != (axes,) or not np.isfinite(point).all():
        raise InputError(f"the new node is at {at!r}; give its point: {axes} finite numbers")
    here = arrays.points[list(others.values())]
    if (here == point).all(axis=1).any():
        raise InputError(f"the new node is at the place of another, {at!r}; give it a place of its own")
    return point


def _site(arrays: WeightArrays, at: object) -> int:
    site = whole(at, "the new node's site")
    limit = len(arrays.table) or np.iinfo(np.int32).max
    if site >= limit:
        raise InputError(f"the new node's site is {site}; sites are 0 to {limit - 1}")
    return site


def _row(at: object, others: Mapping[int, int]) -> NDArray[np.float64]:
    given: Mapping[Any, Any] = at if isinstance(at, Mapping) else {}
    missing = [node for node in others if node not in given]
    if missing or not isinstance(at, Mapping):
        raise InputError(
            f"the new node has no weight to node {next(iter(missing), 0)}; "
            "give at={node: weight} for every node that is there"
        )
    tiny = np.finfo(np.float64).tiny
    return np.array([number(given[node], f"the weight to node {node}", least=tiny) for node in others])

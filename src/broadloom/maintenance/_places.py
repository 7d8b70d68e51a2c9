"""What links cost while nodes come and go: weights with room for nodes that join later."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from broadloom.checks import check_count, check_number
from broadloom.errors import InputError
from broadloom.model import Weights
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


Place = list[float] | int | dict[int, float] | None


def checked_place(arrays: WeightArrays, at: object, others: Mapping[int, int], sites: int = 0) -> Place:
    """The place of a node that is to join, in plain values that a journal can keep.

    Args:
        arrays: the weights.
        at: its point, its site, or its weight to each present node, by their ids; None without weights.
        others: the position of each node that is there, by its id.
        sites: how many sites there are; 0: any number is one, unless a table has their weights.

    Raises:
        InputError: it is not a place, or another node is there.
    """
    if arrays.kind == UNIFORM:
        if at is not None:
            raise InputError(f"at is {at!r:.40}, but there are no weights; leave it out")
        return None
    if arrays.kind == EUCLIDEAN:
        return _point(arrays, at, others)
    return _site(at, sites or len(arrays.table)) if arrays.kind == SITES else _row(at, others)


def put_at(arrays: WeightArrays, node: int, place: Any, others: Mapping[int, int]) -> None:
    """Put the node of this position at a place that was checked: what its links will cost."""
    if arrays.kind == EUCLIDEAN:
        arrays.points[node] = place
    elif arrays.kind == SITES:
        arrays.site[node] = place
    elif arrays.kind == DENSE:
        positions = list(others.values())
        row = [place[other] for other in others]
        arrays.table[node, positions] = arrays.table[positions, node] = row


def _point(arrays: WeightArrays, at: object, others: Mapping[int, int]) -> list[float]:
    axes = arrays.points.shape[1]
    try:
        point = np.array(at, np.float64)
    except (TypeError, ValueError, OverflowError):
        point = np.empty(0)
    if point.shape != (axes,) or not np.isfinite(point).all():
        raise InputError(f"the new node is at {at!r:.40}; give its point: {axes} finite numbers")
    here = arrays.points[list(others.values())]
    if (here == point).all(axis=1).any():
        raise InputError(f"the new node is at the place of another, {at!r:.40}; give it a place of its own")
    return [float(value) for value in point]


def _site(at: object, sites: int) -> int:
    site, limit = check_count(at, "the new node's site"), sites or np.iinfo(np.int32).max
    if site >= limit:
        raise InputError(f"the new node's site is {site}; sites are 0 to {limit - 1}")
    return site


def _row(at: object, others: Mapping[int, int]) -> dict[int, float]:
    given: Mapping[Any, Any] = at if isinstance(at, Mapping) else {}
    missing = [node for node in others if node not in given]
    if missing or not isinstance(at, Mapping):
        raise InputError(
            f"the new node has no weight to node {next(iter(missing), 0)}; "
            "give at={node: weight} for every node that is there"
        )
    tiny = np.finfo(np.float64).tiny
    return {node: check_number(given[node], f"the weight to node {node}", minimum=tiny) for node in others}

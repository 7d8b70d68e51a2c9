"""Weights between the nodes of an interest, read from the edges of a NetworkX graph."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from broadloom.checks import and_more, check_choice, raise_for_first, shown
from broadloom.errors import InputError

if TYPE_CHECKING:
    import networkx as nx

MISSING_RULES = ("refuse", "path")


def weights_matrix(
    graph: nx.Graph, ids: Sequence[str], weight: str | None, missing: str
) -> NDArray[np.float64]:
    """The weights between the nodes with these ids, as a symmetric matrix; see `Weights.from_networkx`."""
    if not all(hasattr(graph, name) for name in ("nodes", "edges", "is_directed")):
        raise InputError(f"the graph is a {type(graph).__name__}; give a NetworkX graph")
    if not (weight is None or isinstance(weight, str)):
        raise InputError(f"weight is {shown(weight)}; give the name of an edge attribute, or None")
    check_choice(missing, "missing", MISSING_RULES)
    number = {node: index for index, node in enumerate(graph.nodes)}
    rows = _rows_of(ids, number)
    lightest = _lightest(graph, number, weight)
    row_of = {int(node): row for row, node in enumerate(rows)}
    matrix = np.full((len(ids), len(ids)), np.nan)
    np.fill_diagonal(matrix, 0.0)
    for (u, v), value in lightest.items():
        if u in row_of and v in row_of:
            matrix[row_of[u], row_of[v]] = matrix[row_of[v], row_of[u]] = value
    holes = np.isnan(matrix)
    if missing == "path" and holes.any():
        matrix = np.where(holes, _path_lengths(lightest, len(number), rows), matrix)
        holes = np.isinf(matrix)
    n = len(ids)
    raise_for_first(
        np.triu(holes).ravel(),
        lambda i: f"{ids[i // n]!r} and {ids[i % n]!r} have no {'path' if missing == 'path' else 'edge'}",
        'connect them in the graph, or pass missing="path"' if missing == "refuse" else "connect the graph",
    )
    return matrix


def _rows_of(ids: Sequence[str], number: dict[Any, int]) -> NDArray[np.int64]:
    """The number of the graph's node of each id; a node is named by its text."""
    by_text: dict[str, list[int]] = {}
    for node, index in number.items():
        if isinstance(node, (str, int, np.integer)) and not isinstance(node, bool):
            by_text.setdefault(str(node), []).append(index)
    unknown = [name for name in ids if name not in by_text]
    if unknown:
        raise InputError(
            f"the graph has no node {unknown[0]!r}{and_more(len(unknown) - 1)}; "
            "name its nodes by the ids of the interest"
        )
    twice = [name for name in ids if len(by_text[name]) > 1]
    if twice:
        raise InputError(
            f"the graph has a number and a text as node {twice[0]!r}{and_more(len(twice) - 1)}; rename one"
        )
    return np.array([by_text[name][0] for name in ids], np.int64)


def _lightest(graph: nx.Graph, number: dict[Any, int], weight: str | None) -> dict[tuple[int, int], float]:
    """The weight of each pair of linked nodes (u < v): the mean of both directions, of the lightest edges."""
    one_way: dict[tuple[int, int], float] = {}
    edges: Iterable[tuple[Any, Any, Any]] = (
        graph.edges(data=weight) if weight is not None else ((u, v, 1.0) for u, v in graph.edges())
    )
    for start, end, value in edges:
        u, v = number[start], number[end]
        if u == v:
            continue
        pair = (u, v) if graph.is_directed() or u < v else (v, u)
        checked = _positive(value, start, end, weight)
        one_way[pair] = min(checked, one_way.get(pair, checked))
    both = {}
    for (u, v), value in one_way.items():
        reverse = one_way.get((v, u), value)
        both[min(u, v), max(u, v)] = (value + reverse) / 2
    return both


def _positive(value: Any, start: object, end: object, weight: str | None) -> float:
    """The weight of an edge, if it is a finite number above 0."""
    is_number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    if not (is_number and 0 < value < np.inf):
        state = f"has no {weight!r}" if value is None else f"has {weight} {shown(value)}"
        raise InputError(
            f"the edge of {shown(start)} and {shown(end)} {state}; give each edge a finite number above 0, "
            "or weight=None to count edges"
        )
    return float(value)


def _path_lengths(
    lightest: dict[tuple[int, int], float], nodes: int, rows: NDArray[np.int64]
) -> NDArray[np.float64]:
    """The length of the shortest path between each two of these nodes; infinite if there is none."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import dijkstra

    pairs = np.array(list(lightest), np.int64).reshape(-1, 2)
    values = np.array(list(lightest.values()), np.float64)
    sparse = csr_array((values, (pairs[:, 0], pairs[:, 1])), shape=(nodes, nodes))
    lengths = dijkstra(sparse, directed=False, indices=rows)[:, rows]
    return np.minimum(lengths, lengths.T)  # sums in the two directions can differ in the last bit

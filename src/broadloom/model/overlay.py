"""Which nodes are linked: a set of edges over the nodes, with its adjacency."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array

from broadloom.checks import check_count, lock_array, raise_for_first, repeated
from broadloom.errors import InputError


class Adjacency(NamedTuple):
    """The neighbours of node `u` are `neighbours[start[u]:start[u + 1]]`, over the edges `edge` there."""

    start: NDArray[np.int64]
    neighbours: NDArray[np.int32]
    edge: NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Overlay:
    """Links between nodes, each once, as pairs `u < v`, in the order in which they were chosen.

    Attributes:
        node_count: how many nodes there are.
        edges: int32 (m, 2).

    Examples:
        >>> overlay = Overlay.from_edges(3, [(1, 0), (1, 2)])
        >>> overlay.edges.tolist()
        [[0, 1], [1, 2]]
        >>> overlay.degrees().tolist()
        [1, 2, 1]
    """

    node_count: int
    edges: NDArray[np.int32]

    def __post_init__(self) -> None:
        lock_array(self.edges)

    @classmethod
    def from_edges(cls, node_count: int, edges: ArrayLike) -> Overlay:
        """An overlay from pairs of node indices, in any direction.

        Raises:
            InputError: not pairs of whole numbers, a node that is not there, a loop, or an edge given twice.
        """
        node_count = check_count(node_count, "nodes")
        try:
            pairs = np.asarray(edges)
        except ValueError as error:
            raise InputError("edges are of different lengths; give pairs of node indices") from error
        if pairs.size == 0:
            return cls(node_count, np.empty((0, 2), np.int32))
        if pairs.ndim != 2 or pairs.shape[1] != 2 or not np.issubdtype(pairs.dtype, np.integer):
            raise InputError(f"edges are {pairs.dtype} of shape {pairs.shape}; give pairs of node indices")
        low, high = pairs.min(axis=1), pairs.max(axis=1)
        raise_for_first(
            (low < 0) | (high >= node_count),
            lambda i: f"edge {i} is {tuple(pairs[i].tolist())}",
            f"nodes are 0 to {node_count - 1}",
        )
        raise_for_first(low == high, lambda i: f"edge {i} links node {low[i]} to itself", "link two nodes")
        code = low.astype(np.int64) * node_count + high
        raise_for_first(
            repeated(code), lambda i: f"edge {i} repeats {(int(low[i]), int(high[i]))}", "give each edge once"
        )
        return cls(node_count, np.stack((low, high), axis=1).astype(np.int32))

    @property
    def edge_count(self) -> int:
        """How many links there are."""
        return len(self.edges)

    def degrees(self) -> NDArray[np.int64]:
        """The number of links of each node."""
        return np.bincount(self.edges.ravel(), minlength=self.node_count)

    def adjacency(self) -> Adjacency:
        """The neighbours of each node, ascending, and over which edge each is reached."""
        ends, m, n = self.edges.astype(np.int64), self.edge_count, self.node_count
        rows, columns = np.concatenate((ends, ends[:, ::-1])).T
        matrix = csr_array((np.tile(np.arange(m, dtype=np.int32), 2), (rows, columns)), shape=(n, n))
        matrix.sort_indices()
        return Adjacency(matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32), matrix.data)

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self.__post_init__()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Overlay):
            return NotImplemented
        return self.node_count == other.node_count and np.array_equal(self.edges, other.edges)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Overlay({self.node_count:,} nodes, {self.edge_count:,} edges)"

"""What a change did to the overlay."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Change:
    """What one change did: which links to add and which to remove.

    Attributes:
        node: the node that joined, left or changed its topics.
        added: the links to add, pairs of nodes (u, v), u < v, in the order of selection.
        removed: the links to remove; those of a node that left are among them.
        shadow: the nodes that were candidates for new links.
        seconds: until every topic was connected again.
        backup_seconds: what choosing backups anew took afterwards; nobody has to wait for it.
        kind: "join", "leave", "resubscribe" or "rebaseline".
        edges_before: how many links there were before.
        fallbacks: how many merges the shadow could not do, so that all nodes became candidates.

    Examples:
        >>> import broadloom as bl
        >>> live = bl.maintain(bl.Interest.from_lists([[0], [0], [0]]))
        >>> change = live.leave(0)
        >>> change.added.tolist(), change.removed.tolist(), change.repair_edges
        ([[1, 2]], [[0, 1], [0, 2]], 1)
    """

    node: int
    added: NDArray[np.int64]
    removed: NDArray[np.int64]
    shadow: NDArray[np.int64]
    seconds: float
    backup_seconds: float
    kind: str
    edges_before: int
    fallbacks: int = 0

    @property
    def repair_edges(self) -> int:
        """Links added, and removed other than those of the node that left."""
        return len(self.added) + (0 if self.kind == "leave" else len(self.removed))

    @property
    def repair_ratio(self) -> float:
        """Repair edges over the number of links before."""
        return self.repair_edges / max(self.edges_before, 1)

    def __repr__(self) -> str:
        links = f"{len(self.added)} links added, {len(self.removed)} removed"
        return f"Change({self.kind} of node {self.node}: {links})"

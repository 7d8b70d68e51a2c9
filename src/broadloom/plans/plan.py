"""Plan: the result of the link stage."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from broadloom import measures
from broadloom.checks import lock_array, raise_for_first
from broadloom.errors import InputError
from broadloom.model import Interest, Overlay, Weights
from broadloom.plans.stage_result import StageResult
from broadloom.storage import read_plan_json, to_json_value
from broadloom.storage.tables import indices_in, require_table

FORMAT = 1
TABLES = ("nodes", "topics", "subscriptions", "edges", "weights")
RECORD: dict[str, tuple[type, ...]] = {
    "format": (int,),
    "algorithm": (str,),
    "seed": (int,),
    "options": (dict,),
    "notes": (dict,),
    "weights": (dict,),
    "lower_bound": (int, float, type(None)),
}


@dataclass(frozen=True, eq=False)
class Plan(StageResult):
    """An overlay for an interest and weights, with its origin.

    Attributes:
        interest: the subscriptions of the nodes.
        weights: the weights of links.
        overlay: the links.
        algorithm: the algorithm that built the overlay.
        seed: the seed of its random choices.
        options: the options that the algorithm ran with.
        lower_bound: a proven lower bound of the total weight of any topic-connected overlay, or None.
        notes: further facts that the algorithm reports (number of parts, whether it stopped early, ...).
        nodes: the table of the nodes, with further columns (sites, coordinates, ...).

    Examples:
        >>> import broadloom as bl
        >>> plan = bl.link(bl.Interest.from_lists([[0], [0], [0]]), algorithm="gm")
        >>> plan.edges.tolist()
        [[0, 1], [0, 2]]
    """

    interest: Interest
    weights: Weights
    overlay: Overlay
    algorithm: str
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    lower_bound: float | None = None
    notes: Mapping[str, Any] = field(default_factory=dict)
    nodes: pa.Table | None = None

    def __post_init__(self) -> None:
        count = self.interest.node_count
        for name, other in (("weights", self.weights.node_count), ("overlay", self.overlay.node_count)):
            if other != count:
                raise InputError(
                    f"the interest has {count:,} nodes but the {name} {other:,}; give the same number"
                )
        if self.lower_bound is not None and not (np.isfinite(self.lower_bound) and self.lower_bound >= 0):
            raise InputError(f"the lower bound is {self.lower_bound}; give a finite number from 0")
        if self.nodes is not None and tuple(self.nodes.column("node").to_pylist()) != self.interest.node_ids:
            raise InputError(
                "the nodes table has other nodes than the interest, or in another order; give the same nodes"
            )
        self._lock_mappings(to_json_value)

    @property
    def edges(self) -> NDArray[np.int32]:
        """The links, int32 (m, 2), `u < v`, in the order of selection."""
        return self.overlay.edges

    @cached_property
    def edge_weights(self) -> NDArray[np.float64]:
        """The weight of each link, in the order of `edges`."""
        weights = self.weights.of(self.edges[:, 0], self.edges[:, 1])
        lock_array(weights)
        return weights

    @property
    def total_weight(self) -> float:
        """The objective of linking: the sum of the weights of all links."""
        return math.fsum(self.edge_weights)  # exact, so it does not depend on the order of links

    @property
    def _objective(self) -> float:
        return self.total_weight

    @cached_property
    def _metrics(self) -> dict[str, Any]:
        return measures.metrics(self.interest, self.overlay, self.weights)

    @cached_property
    def _broken_topics(self) -> int:
        return int(np.sum(measures.components_per_topic(self.interest, self.overlay) > 1))

    def summary(self) -> str:
        """The plan in a sentence.

        Examples:
            >>> import broadloom as bl
            >>> bl.link(bl.Interest.from_lists([[0], [0]]), algorithm="gm").summary()
            'gm: 2 brokers, 1 links, every one of 1 topics connected'
        """
        interest = self.interest
        broken = self._broken_topics
        proven = self._gap_text
        if "optimal" in self.notes:
            proven = ", optimal" if self.notes["optimal"] else f"{proven}, stopped before the best was proven"
        connected = f"every one of {interest.topic_count:,} topics connected"
        if broken:
            connected = f"{broken:,} of {interest.topic_count:,} topics NOT connected"
        counts = f"{interest.node_count:,} brokers, {len(self.edges):,} links"
        return f"{self.algorithm}: {counts}, {connected}{proven}"

    def is_topic_connected(self) -> bool:
        """Whether the subscribers of every topic are connected by links among themselves."""
        return self._broken_topics == 0

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        """Read a plan that `save` wrote.

        Raises:
            InputError: there is no plan at `path`, or it was written by a newer version, or is damaged.
        """
        folder = Path(path)
        record = read_link_record(folder)
        tables = {name: require_table(folder, name) for name in TABLES}
        interest = Interest.from_table(tables["subscriptions"], tables["nodes"], tables["topics"])
        if tuple(tables["weights"].column("node").to_pylist()) != interest.node_ids:
            raise InputError(
                f"{folder}: tables weights and nodes have different nodes, or in another order; it is damaged"
            )
        return cls(
            interest,
            _weights_from(record["weights"], tables["weights"], folder),
            Overlay.from_edges(interest.node_count, _edge_indices(tables["edges"], interest)),
            record["algorithm"],
            record["seed"],
            record["options"],
            record["lower_bound"],
            record["notes"],
            tables["nodes"],
        )

    def _fault(self) -> str | None:
        return None if self.is_topic_connected() else "the plan leaves a topic disconnected"

    def _own_record(self) -> dict[str, Any]:
        weights = {"kind": self.weights.kind, "inner": self.weights.inner, "outer": self.weights.outer}
        return {"format": FORMAT, "weights": weights}

    def _tables(self) -> dict[str, pa.Table]:
        names = pa.array(self.interest.node_ids, pa.string())
        edges = {
            "u": names.take(self.edges[:, 0]),
            "v": names.take(self.edges[:, 1]),
            "weight": self.edge_weights,
            "rank": np.arange(len(self.edges), dtype=np.int32),
        }
        return {
            "nodes": pa.table({"node": names}) if self.nodes is None else self.nodes,
            "topics": pa.table({"topic": pa.array(self.interest.topic_ids, pa.string())}),
            "subscriptions": self.interest.to_table(),
            "edges": pa.table(edges),
            "weights": _weights_table(self.weights).add_column(0, "node", names),
        }

    def __repr__(self) -> str:
        return f"Plan({self.algorithm}, {self.interest.node_count:,} nodes, {len(self.edges):,} edges)"


def read_link_record(folder: Path) -> dict[str, Any]:
    """The record of a link plan; raises if it is damaged or of a newer format."""
    path = folder / "plan.json"
    record = read_plan_json(folder)
    for key, kinds in RECORD.items():
        if not isinstance(record.get(key, ...), kinds):
            raise InputError(
                f"{path}: {key!r} is missing or wrong; it was not written by broadloom, or is damaged"
            )
    if not 1 <= record["format"] <= FORMAT:
        raise InputError(
            f"{path} has format {record['format']}, this version reads 1 to {FORMAT}; upgrade broadloom"
        )
    return record


def _edge_indices(edges: pa.Table, interest: Interest) -> ArrayLike:
    """The edges of a plan's table as pairs of node indices, in the order of their rank."""
    edges = edges.sort_by("rank")
    names = pa.array(interest.node_ids, pa.string())
    ranks = edges.column("rank").to_numpy()
    raise_for_first(
        ranks[1:] == ranks[:-1],
        lambda i: f"two edges of the plan have rank {ranks[i]}",
        "give each edge its own rank",
    )
    pairs = np.stack([indices_in(edges.column(side), names) for side in ("u", "v")], axis=1)
    raise_for_first(
        np.any(pairs < 0, axis=1),
        lambda i: f"edge {i} of the plan has an unknown node",
        "add it to table nodes",
    )
    return pairs


def _weights_table(weights: Weights) -> pa.Table:
    """One row per node: its point, its site, or its weights to later nodes."""
    n = weights.node_count
    if weights.kind == "uniform":
        return pa.table({"weight": np.ones(n)})
    if weights.kind == "euclidean":
        return pa.table({"point": pa.array(list(weights.points), pa.list_(pa.float64()))})
    if weights.kind == "dense":
        later = [weights.table[u, u + 1 :] for u in range(n)]
        return pa.table({"later": pa.array(later, pa.list_(pa.float64()))})
    table = pa.table({"site": weights.site})
    return table.replace_schema_metadata({"between": json.dumps(weights.table.tolist())})


def _weights_from(record: Mapping[str, Any], table: pa.Table, folder: Path) -> Weights:
    """The weights that `_weights_table` wrote."""
    readers: dict[str, Callable[[], Weights]] = {
        "uniform": lambda: Weights.uniform(table.num_rows),
        "euclidean": lambda: Weights.euclidean(table.column("point").to_pylist() or np.empty((0, 1))),
        "dense": lambda: Weights.dense(_symmetric_matrix(table.column("later"))),
        "sites": lambda: Weights.sites(
            table.column("site").to_numpy(),
            record["inner"],
            record["outer"],
            json.loads(table.schema.metadata[b"between"]) or None,
        ),
    }
    try:
        return readers[record["kind"]]()
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{folder}: the weights of the plan are damaged: {error}") from error


def _symmetric_matrix(later: pa.ChunkedArray) -> NDArray[np.float64]:
    """The symmetric matrix with these rows to the right of its diagonal."""
    matrix = np.zeros((len(later), len(later)))
    for u, row in enumerate(later):
        matrix[u, u + 1 :] = row.values
    return matrix + matrix.T

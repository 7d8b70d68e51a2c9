"""What comes out: an overlay, what was asked, what built it, and how good it is proven to be."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from broadloom._version import VERSION
from broadloom.errors import InputError
from broadloom.model._atomic import new_folder
from broadloom.model._check import refuse
from broadloom.model.interest import Interest
from broadloom.model.overlay import Overlay
from broadloom.model.tables import need_table, write_table
from broadloom.model.weights import Weights

FORMAT = 1


@dataclass(frozen=True, eq=False)
class Plan:
    """An overlay that serves an interest under weights, and where it comes from.

    Attributes:
        interest: who wants what.
        weights: what links cost.
        overlay: which nodes are linked.
        algorithm: what built it.
        seed: the seed of its chance.
        options: the options that the algorithm ran with.
        lower_bound: a proven bound that no topic-connected overlay's total weight can beat, or None.
        notes: what the algorithm has to tell (how it divided, where it stopped early, ...).
        nodes: the nodes table, with whatever else is known of each node (its site, its coordinates).

    Example:
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
        for what, other in (("weights", self.weights.node_count), ("overlay", self.overlay.node_count)):
            if other != count:
                raise InputError(f"the interest has {count:,} nodes but the {what} {other:,}; give as many")
        for name in ("options", "notes"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))

    @property
    def edges(self) -> NDArray[np.int32]:
        """The links, int32 (m, 2), `u < v`, in the order of selection."""
        return self.overlay.edges

    @cached_property
    def edge_weights(self) -> NDArray[np.float64]:
        """The weight of each link, in the order of `edges`."""
        return self.weights.of(self.edges[:, 0], self.edges[:, 1])

    @property
    def total_weight(self) -> float:
        """The objective of linking: the sum of the weights of all links."""
        return float(self.edge_weights.sum())

    @property
    def gap(self) -> float | None:
        """How far at most the total weight is above the best possible: (objective - bound) / bound."""
        if self.lower_bound is None:
            return None
        if self.lower_bound <= 0:
            return 0.0 if self.total_weight == 0 else None
        return (self.total_weight - self.lower_bound) / self.lower_bound

    def metrics(self) -> dict[str, Any]:
        """Every measure of the overlay; see `broadloom.measures`."""
        from broadloom import measures  # measures stand on the model, so they are met here, at the call

        return measures.metrics(self.interest, self.overlay, self.weights)

    def summary(self) -> str:
        """The plan in a sentence.

        Example:
            >>> import broadloom as bl
            >>> bl.link(bl.Interest.from_lists([[0], [0]]), algorithm="gm").summary()
            'gm: 2 brokers, 1 links, every one of 1 topics connected'
        """
        interest = self.interest
        proven = "" if self.gap is None else f", at most {self.gap:.1%} above the best possible"
        return (
            f"{self.algorithm}: {interest.node_count:,} brokers, {len(self.edges):,} links, "
            f"every one of {interest.topic_count:,} topics connected{proven}"
        )

    def is_topic_connected(self) -> bool:
        """Whether every topic's subscribers are connected over links among themselves."""
        from broadloom import measures

        return measures.is_topic_connected(self.interest, self.overlay)

    def save(self, path: str | Path, overwrite: bool = False) -> None:
        """Write the plan as a folder that appears at its place by one rename.

        Raises:
            InputError: the overlay does not connect every topic, or there is something at `path` already
                and `overwrite` is false.
        """
        if not self.is_topic_connected():
            raise InputError(
                "the plan leaves a topic disconnected; a plan is saved only when every topic is connected"
            )
        with new_folder(Path(path), overwrite) as folder:
            for name, table in self._tables().items():
                write_table(folder, name, table)
            (folder / "plan.json").write_text(json.dumps(self._record(), indent=2, sort_keys=True) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        """Read a plan that `save` wrote.

        Raises:
            InputError: there is no plan at `path`, or it was written by a newer version, or is damaged.
        """
        folder = Path(path)
        record = _read_record(folder)
        nodes, subscriptions, edges = (
            need_table(folder, name) for name in ("nodes", "subscriptions", "edges")
        )
        topics = need_table(folder, "topics").column("topic").to_pylist()
        interest = Interest.from_pairs(
            subscriptions.column("node"),
            subscriptions.column("topic"),
            nodes.column("node").to_pylist(),
            topics,
        )
        return cls(
            interest,
            _weights_from(record["weights"], need_table(folder, "weights")),
            Overlay.from_edges(interest.node_count, _edge_indices(edges, interest)),
            record["algorithm"],
            record["seed"],
            record["options"],
            record["lower_bound"],
            record["notes"],
            nodes,
        )

    def _record(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "broadloom": VERSION,
            "algorithm": self.algorithm,
            "seed": self.seed,
            "options": dict(self.options),
            "notes": dict(self.notes),
            "weights": {"kind": self.weights.kind, "inner": self.weights.inner, "outer": self.weights.outer},
            "lower_bound": self.lower_bound,
            "gap": self.gap,
            "metrics": self.metrics(),
        }

    def _tables(self) -> dict[str, pa.Table]:
        interest, nodes = self.interest, self.nodes
        names, topics = pa.array(interest.node_ids, pa.string()), pa.array(interest.topic_ids, pa.string())
        owners = np.repeat(np.arange(interest.node_count), np.diff(interest.topic_start))
        return {
            "nodes": pa.table({"node": names}) if nodes is None else nodes,
            "topics": pa.table({"topic": topics}),
            "subscriptions": pa.table({"node": names.take(owners), "topic": topics.take(interest.topics)}),
            "edges": pa.table(
                {
                    "u": names.take(self.edges[:, 0]),
                    "v": names.take(self.edges[:, 1]),
                    "weight": self.edge_weights,
                    "rank": np.arange(len(self.edges), dtype=np.int32),
                }
            ),
            "weights": _weights_table(self.weights),
        }

    def __repr__(self) -> str:
        return f"Plan({self.algorithm}, {self.interest.node_count:,} nodes, {len(self.edges):,} edges)"


def _read_record(folder: Path) -> dict[str, Any]:
    """The plan's `plan.json`, if it is one that this version can read."""
    place = folder / "plan.json"
    try:
        record: dict[str, Any] = json.loads(place.read_text())
    except FileNotFoundError as error:
        raise InputError(f"{folder} is not a plan: it has no plan.json") from error
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError(f"{place} cannot be read: {error}") from error
    missing = [
        key
        for key in ("format", "algorithm", "seed", "options", "notes", "weights", "lower_bound")
        if not isinstance(record, dict) or key not in record
    ]
    if missing:
        raise InputError(f"{place} has no {missing[0]!r}; it was not written by broadloom, or is damaged")
    if record["format"] > FORMAT:
        raise InputError(
            f"{place} has format {record['format']}, this version reads up to {FORMAT}; upgrade broadloom"
        )
    return record


def _edge_indices(edges: pa.Table, interest: Interest) -> ArrayLike:
    """The edges of a plan's table as pairs of node indices, in the order of their rank."""
    index = {name: u for u, name in enumerate(interest.node_ids)}
    edges = edges.sort_by("rank")
    ends = [[index.get(name, -1) for name in edges.column(side).to_pylist()] for side in ("u", "v")]
    pairs = np.array(ends, np.int64).T
    refuse(
        np.any(pairs < 0, axis=1), lambda i: f"edge {i} of the plan has an unknown node", "list it in nodes"
    )
    return pairs


def _weights_table(weights: Weights) -> pa.Table:
    """One row a node: its point, its site, or its weights to later nodes."""
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


def _weights_from(record: Mapping[str, Any], table: pa.Table) -> Weights:
    """The weights that `_weights_table` wrote."""
    kind = record["kind"]
    if kind == "uniform":
        return Weights.uniform(table.num_rows)
    if kind == "euclidean":
        points = np.array(table.column("point").to_pylist(), np.float64)
        return Weights.euclidean(points if len(points) else np.empty((0, 1)))
    if kind == "sites":
        between = json.loads(table.schema.metadata[b"between"])
        return Weights.sites(
            table.column("site").to_numpy(), record["inner"], record["outer"], between or None
        )
    matrix = np.zeros((table.num_rows, table.num_rows))
    for u, later in enumerate(table.column("later")):
        matrix[u, u + 1 :] = later.values
    return Weights.dense(matrix + matrix.T)

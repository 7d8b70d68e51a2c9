"""Plan: the result of the link stage."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from broadloom import measures
from broadloom.checks import check_instance, lock_array, raise_for_first
from broadloom.errors import InputError
from broadloom.model import Interest, NotCarried, Overlay, Publishers, Weights, not_carried_publications
from broadloom.model.link_problem import read_subscriptions
from broadloom.notebook import PREVIEW_ROWS
from broadloom.plans import conversions
from broadloom.plans.division import WeightDivision
from broadloom.plans.stage_result import StageResult
from broadloom.storage import committed, read_plan_json, to_json_value

if TYPE_CHECKING:
    import networkx as nx
    import pyarrow as pa
    from matplotlib.axes import Axes

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
        publishers: where clients publish; by default at any broker.
        not_carried: the subscriptions that are left out, and with observed publishers the topic filters that
            are not carried from some brokers, which follow from the interest and the publishers.
        division: how the weights were divided to prove the lower bound, for the next plan; it is not saved.

    Examples:
        >>> import broadloom as bl
        >>> plan = bl.link(bl.Interest.from_lists([[0], [0], [0]]), algorithm="gm")
        >>> plan.edges.tolist()
        [[0, 1], [0, 2]]
        >>> plan == bl.link(plan.interest, algorithm="gm")
        True
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
    publishers: Publishers = field(default_factory=Publishers)
    not_carried: NotCarried = field(default_factory=NotCarried)
    division: WeightDivision | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        check_instance(self.interest, Interest, "the interest", "make one with Interest.from_lists")
        check_instance(self.weights, Weights, "weights", "make them with Weights.uniform")
        check_instance(self.overlay, Overlay, "the overlay", "make one with Overlay.from_edges")
        count = self.interest.node_count
        for name, other in (("weights", self.weights.node_count), ("overlay", self.overlay.node_count)):
            if other != count:
                raise InputError(
                    f"the interest has {count:,} nodes but the {name} {other:,}; give the same number"
                )
        if self.nodes is not None and _node_names(self.nodes) != self.interest.node_ids:
            raise InputError(
                "the nodes table has other nodes than the interest, or in another order; give the same nodes"
            )
        if self.division is not None:
            check_instance(self.division, WeightDivision, "the division of weights", "leave it out")
        self._check_publishers()
        self._check_run()

    def _check_publishers(self) -> None:
        """Check the publishers, and derive what is not carried from them."""
        check_instance(self.publishers, Publishers, "publishers", "make them with Publishers")
        check_instance(self.not_carried, NotCarried, "what is not carried", "leave it out")
        known = set(self.interest.node_ids)
        for one in self.publishers.observed:
            if one.broker not in known:
                raise InputError(
                    f"{one.broker!r:.80} publishes {one.topic!r:.80}, but is not a node of the interest; "
                    "name its nodes"
                )
        found = not_carried_publications(self.interest, self.publishers)
        object.__setattr__(self, "not_carried", replace(self.not_carried, publications=found))

    @staticmethod
    def _plain_mapping(values: Mapping[str, Any]) -> dict[str, Any]:
        return dict(to_json_value(values))

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
        return int(np.sum(measures.components_per_topic(self.interest.grouped(), self.overlay) > 1))

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
        topics = interest.grouped().topic_count
        connected = f"every one of {topics:,} topics connected"
        if broken:
            connected = f"{broken:,} of {topics:,} topics NOT connected"
        connected += measures.filters_text(interest.filter_count)
        counts = f"{interest.node_count:,} brokers, {len(self.edges):,} links"
        return f"{self.algorithm}: {counts}, {connected}{proven}"

    def is_topic_connected(self) -> bool:
        """Whether the subscribers of every topic are connected by links among themselves.

        Topic filters and topics that overlap count as one topic.
        """
        return self._broken_topics == 0

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        """Read a plan that `save` wrote.

        Raises:
            InputError: there is no plan at `path`, or it was written by a newer version, or is damaged.
        """
        from broadloom.storage.tables import require_table

        folder = committed(path)
        record = read_link_record(folder)
        tables = {name: require_table(folder, name) for name in TABLES if name != "subscriptions"}
        tables["subscriptions"] = read_subscriptions(folder)
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
            _publishers_from(record, folder),
            NotCarried.from_record(record["not_carried"]) if "not_carried" in record else NotCarried(),
        )

    def to_networkx(self) -> nx.Graph:
        """The plan as an undirected NetworkX graph.

        Nodes are named by their ids, or by their indices (whole numbers) if the interest has no other ids.

        A node has the attributes `topics` (list of topic ids) and, where they are known, `site`, its
        coordinates `x`, `y`, ..., `lat`, `lon`, and `pos` (the pair for drawing: longitude and latitude, or
        the first two coordinates). A link has `weight`, `rank` (the order of selection), and `topics`: those
        that its ends share; topic filters that overlap are one topic, named by the shortest.

        Raises:
            MissingExtraError: networkx is not installed.

        Examples:
            >>> import broadloom as bl
            >>> graph = bl.link(bl.Interest.from_lists([["a"], ["a"], ["a"]]), algorithm="gm").to_networkx()
            >>> list(graph.edges(data=True))[0]
            (0, 1, {'weight': 1.0, 'rank': 0, 'topics': ['a']})
        """
        return conversions.networkx_graph(self)

    def to_table(self) -> pa.Table:
        """The links as an Arrow table with the columns of the canonical table `edges`: u, v, weight, rank.

        `plan.to_table().to_pandas()` is a DataFrame of pandas, `polars.from_arrow(plan.to_table())` one of
        Polars.

        Examples:
            >>> import broadloom as bl
            >>> plan = bl.link(bl.Interest.from_lists([[0], [0]], node_ids=["rome", "oslo"]), algorithm="gm")
            >>> plan.to_table().to_pylist()
            [{'u': 'rome', 'v': 'oslo', 'weight': 1.0, 'rank': 0}]
        """
        import pyarrow as pa

        names = pa.array(self.interest.node_ids, pa.string())
        edges = {
            "u": names.take(self.edges[:, 0]),
            "v": names.take(self.edges[:, 1]),
            "weight": self.edge_weights,
            "rank": np.arange(len(self.edges), dtype=np.int32),
        }
        return pa.table(edges)

    def to_geojson(
        self, positions: ArrayLike | Mapping[str, Sequence[float]] | None = None
    ) -> dict[str, Any]:
        """The plan as a GeoJSON feature collection (RFC 7946): one point per broker, one line per link.

        A link across the antimeridian is two lines. Brokers without a position, and their links, have the
        geometry null.

        Args:
            positions: latitude and longitude of the nodes in degrees: one pair per node, or pairs by node id.
                None: those of the columns `lat` and `lon` of the nodes table, else those of sites named like
                cloud regions.

        Returns:
            Values that `json.dump` writes.

        Raises:
            InputError: no node has a position, or one is out of range.

        Examples:
            >>> import broadloom as bl
            >>> plan = bl.link(bl.Interest.from_lists([[0], [0]], node_ids=["rome", "oslo"]), algorithm="gm")
            >>> world = plan.to_geojson({"rome": (41.9, 12.5), "oslo": (59.9, 10.8)})
            >>> world["features"][2]["geometry"]
            {'type': 'LineString', 'coordinates': [[12.5, 41.9], [10.8, 59.9]]}
        """
        return conversions.geojson(self, positions)

    def to_graphml(self, path: str | Path) -> None:
        """Write the plan as a GraphML file, which Gephi, yEd and `networkx.read_graphml` open.

        Nodes and links have the attributes of `to_networkx`, without `pos`; topics are a JSON list. An
        existing file is replaced.

        Raises:
            InputError: a node id or a site has a character that XML cannot hold, or the path is wrong.
            StorageError: the file cannot be written.

        Examples:
            >>> import broadloom as bl, networkx as nx, tempfile
            >>> plan = bl.link(bl.Interest.from_lists([["a"], ["a"]], node_ids=["u", "v"]), algorithm="gm")
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     plan.to_graphml(f"{folder}/plan.graphml")
            ...     nx.read_graphml(f"{folder}/plan.graphml").edges["u", "v"]
            {'weight': 1.0, 'rank': 0, 'topics': '["a"]'}
        """
        conversions.write_graphml(self, path)

    def plot(
        self,
        ax: Axes | None = None,
        positions: ArrayLike | Mapping[str, Sequence[float]] | None = None,
        labels: bool | None = None,
    ) -> Axes:
        """Draw the plan with matplotlib; each site has a colour.

        Args:
            ax: the axes to draw on; None: those of a new figure.
            positions: x and y of the nodes: one pair per node, or pairs by node id. None: longitude and
                latitude if all nodes have them, else their coordinates, else a layout of NetworkX.
            labels: whether to write the ids of the nodes; None: if there are at most 30.

        Returns:
            The axes.

        Raises:
            MissingExtraError: matplotlib is not installed, or networkx where a layout is needed.
            InputError: a position is not a pair of finite numbers.

        Examples:
            >>> import broadloom as bl
            >>> from matplotlib.figure import Figure
            >>> plan = bl.link(bl.Interest.from_lists([[0], [0], [0]]), algorithm="gm")
            >>> plan.plot(ax=Figure().subplots()).get_title()
            'gm: 3 brokers, 2 links'
        """
        return conversions.draw(self, ax, positions, labels)

    @property
    def _decision(self) -> NDArray[np.int32]:
        return self.edges

    def _stage_values(self) -> tuple[object, ...]:
        nodes = self._nodes_table()
        columns = [(name, nodes.column(name).to_pylist()) for name in sorted(nodes.column_names)]
        return (self.overlay, self.interest, self.weights, columns, self.publishers, self.not_carried)

    def _nodes_table(self) -> pa.Table:
        """The table of the nodes; only their ids if there are no further columns."""
        import pyarrow as pa

        if self.nodes is not None:
            return self.nodes
        return pa.table({"node": pa.array(self.interest.node_ids, pa.string())})

    def _facts(self) -> dict[str, object]:
        degrees = self.overlay.degrees()
        return {
            "total weight": self.total_weight,
            "mean degree": float(degrees.mean()) if len(degrees) else 0.0,
            "max degree": int(degrees.max(initial=0)),
        } | self._carrying_facts()

    def _carrying_facts(self) -> dict[str, object]:
        """The publishers and what is not carried, where they are not the default."""
        facts: dict[str, object] = {}
        if self.publishers != Publishers():
            facts["publishers"] = self.publishers.mode
        if self.not_carried:
            facts["not carried"] = "; ".join(line.strip() for line in self.not_carried.lines())
        return facts

    def _repr_html_(self) -> str:
        first = self.to_table().slice(0, PREVIEW_ROWS).to_pylist()
        rows = [tuple(row.values()) for row in first]
        return self._html(("u", "v", "weight", "rank"), rows, len(self.edges))

    def _fault(self) -> str | None:
        return None if self.is_topic_connected() else "the plan leaves a topic disconnected"

    def _own_record(self) -> dict[str, Any]:
        weights = {"kind": self.weights.kind, "inner": self.weights.inner, "outer": self.weights.outer}
        record: dict[str, Any] = {"format": FORMAT, "weights": weights}
        if self.publishers != Publishers():  # the record of a plan with the defaults has neither
            record["publishers"] = self.publishers.mode
        if self.not_carried:
            record["not_carried"] = self.not_carried.record()
        return record

    def _tables(self) -> dict[str, pa.Table]:
        import pyarrow as pa

        names = pa.array(self.interest.node_ids, pa.string())
        observed = {"publications": self.publishers.to_table()} if self.publishers.observed else {}
        return {
            "nodes": self._nodes_table(),
            "topics": pa.table({"topic": pa.array(self.interest.topic_ids, pa.string())}),
            "subscriptions": self.interest.to_table(),
            "edges": self.to_table(),
            "weights": _weights_table(self.weights).add_column(0, "node", names),
        } | observed

    def __repr__(self) -> str:
        return f"Plan({self.algorithm}, {self.interest.node_count:,} nodes, {len(self.edges):,} edges)"


def _node_names(nodes: object) -> tuple[str, ...]:
    """The column `node` of a table of nodes."""
    import pyarrow as pa

    table = check_instance(nodes, pa.Table, "the table of nodes", "give a pyarrow.Table with a column node")
    if "node" not in table.column_names:
        raise InputError(f"the table of nodes has no column 'node'; it has {', '.join(table.column_names)}")
    return tuple(table.column("node").to_pylist())


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


def _publishers_from(record: Mapping[str, Any], folder: Path) -> Publishers:
    """The publishers of a saved plan."""
    from broadloom.storage.tables import read_table

    if "publishers" not in record:
        return Publishers()
    table = read_table(folder, "publications")
    columns = [] if table is None else [table.column(name).to_pylist() for name in ("node", "topic", "rate")]
    return Publishers(record["publishers"], list(zip(*columns, strict=True)))


def saved_not_carried(folder: Path) -> NotCarried:
    """What the plan in a folder does not carry, without its tables; nothing if it has no record."""
    folder = committed(folder)
    record = read_link_record(folder) if (folder / "plan.json").exists() else {}
    return NotCarried.from_record(record["not_carried"]) if "not_carried" in record else NotCarried()


def _edge_indices(edges: pa.Table, interest: Interest) -> ArrayLike:
    """The edges of a plan's table as pairs of node indices, in the order of their rank."""
    import pyarrow as pa

    from broadloom.storage.tables import indices_in

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
    import pyarrow as pa

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

"""Link weights: a positive number for each pair of nodes, without a V x V matrix where possible.

Also the preparation of measured matrices: `symmetrised`, `fill_missing`, `raise_to_floor`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from broadloom.checks import (
    MAX_INDEX,
    and_more,
    check_choice,
    check_count,
    check_ids,
    check_number,
    check_positive,
    check_range,
    index_array,
    integer_array,
    number_array,
    ordered_list,
    plain_array,
    raise_for_first,
    repeated,
    restore_frozen,
)
from broadloom.errors import InputError
from broadloom.kernels import inner_kernel, kernel
from broadloom.model.graphs import Interest
from broadloom.notebook import html_summary

if TYPE_CHECKING:
    import networkx as nx

WEIGHT_KINDS = ("uniform", "dense", "euclidean", "sites")
UNIFORM, DENSE, EUCLIDEAN, SITES = range(len(WEIGHT_KINDS))

# Both directions of a pair count as equal below this relative difference, which is due to rounding.
SYMMETRY_TOLERANCE = 1e-9
# The range of weights, so that their sums and squares are finite.
LIGHTEST, HEAVIEST = 1e-100, 1e100
FEW_POINTS = 100  # up to this many, all distances are computed
RANGE = f"from {LIGHTEST:g} to {HEAVIEST:g}"


class WeightArrays(NamedTuple):
    """The arrays of weights, for kernels, which pass them to `weight_of`."""

    kind: int
    table: NDArray[np.float64]
    points: NDArray[np.float64]
    site: NDArray[np.int32]
    inner: float
    outer: float


@inner_kernel
def weight_of(weights: WeightArrays, u: int, v: int) -> float:
    """The weight of the pair (u, v); for other kernels."""
    if weights.kind == UNIFORM:
        return 1.0
    if weights.kind == DENSE:
        return weights.table[u, v]
    if weights.kind == EUCLIDEAN:
        total = 0.0
        for axis in range(weights.points.shape[1]):
            step = weights.points[u, axis] - weights.points[v, axis]
            total += step * step
        return np.sqrt(total)
    if weights.table.shape[0] > 0:
        return weights.table[weights.site[u], weights.site[v]]
    return weights.inner if weights.site[u] == weights.site[v] else weights.outer


@kernel
def _weights_of(weights: WeightArrays, u: NDArray[np.int64], v: NDArray[np.int64]) -> NDArray[np.float64]:
    """The weight of each pair (u[i], v[i])."""
    result = np.empty(len(u))
    for i in range(len(u)):
        result[i] = weight_of(weights, u[i], v[i])
    return result


@dataclass(frozen=True, eq=False)
class Weights:
    """Weights of all pairs of nodes: finite, above 0, symmetric.

    Make weights with `uniform`, `dense`, `euclidean` or `sites`, which check them once.

    Attributes:
        kind: one of "uniform", "dense", "euclidean", "sites".
        node_count: the number of nodes.
        table: dense: the matrix. Sites: the weights between sites, if they differ; otherwise empty.
        points: euclidean: one point per node; otherwise empty.
        site: sites: the site of each node; otherwise empty.
        inner: sites: the weight inside a site.
        outer: sites: the weight between sites, if `table` is empty.

    Examples:
        >>> weights = Weights.sites([0, 0, 1], inner=1, outer=10)
        >>> weights.of([0, 0], [1, 2])
        array([ 1., 10.])
    """

    kind: str
    node_count: int
    table: NDArray[np.float64] = field(default_factory=lambda: np.empty((0, 0)))
    points: NDArray[np.float64] = field(default_factory=lambda: np.empty((0, 0)))
    site: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    inner: float = 1.0
    outer: float = 1.0

    def __post_init__(self) -> None:
        between = self.table if plain_array(self.table, "table").size else None
        makers: dict[str, Callable[[], Weights]] = {
            "uniform": lambda: Weights.uniform(self.node_count),
            "dense": lambda: Weights.dense(self.table),
            "euclidean": lambda: Weights.euclidean(self.points),
            "sites": lambda: Weights.sites(self.site, self.inner, self.outer, between),
        }
        checked = makers[check_choice(self.kind, "the kind of weights", WEIGHT_KINDS)]()
        used = {"dense": ("table",), "euclidean": ("points",), "sites": ("table", "site")}
        for name in ("table", "points", "site"):
            if name not in used.get(self.kind, ()) and plain_array(getattr(self, name), name).size:
                raise InputError(f"{self.kind} weights have no {name}; leave it out")
        for name in ("inner", "outer"):
            check_number(getattr(self, name), f"the {name} weight of sites", LIGHTEST, HEAVIEST)
        count = check_count(self.node_count, "nodes")
        if count != checked.node_count:
            raise InputError(f"{count:,} nodes but weights of {checked.node_count:,}; give the same number")
        vars(self).update(vars(checked) | {"inner": float(self.inner), "outer": float(self.outer)})

    @classmethod
    def uniform(cls, node_count: int) -> Weights:
        """Weight 1 for every link.

        Examples:
            >>> Weights.uniform(3).of([0], [2])
            array([1.])
        """
        return trusted_weights("uniform", check_count(node_count, "nodes", maximum=MAX_INDEX))

    @classmethod
    def dense(cls, matrix: ArrayLike, names: Sequence[str] | None = None) -> Weights:
        """Weights from a square symmetric matrix; its diagonal is ignored.

        Args:
            matrix: one row per node.
            names: names of the nodes for error messages; their numbers by default.

        Raises:
            InputError: not square, or a pair that is NaN, infinite, zero, negative or asymmetric.

        Examples:
            >>> Weights.dense([[0, 5], [5, 0]]).of([1], [0])
            array([5.])
        """
        table = _square(matrix, "weights")
        _check_table(table, "node", _listed_names(names, len(table)))
        return trusted_weights("dense", len(table), table=table)

    @classmethod
    def euclidean(cls, points: ArrayLike, names: Sequence[str] | None = None) -> Weights:
        """Distances between points as weights.

        Args:
            points: one row of coordinates per node.
            names: names of the nodes for error messages; their numbers by default.

        Raises:
            InputError: a coordinate is not finite, or two nodes are at the same point.

        Examples:
            >>> Weights.euclidean([[0, 0], [3, 4]]).of([0], [1])
            array([5.])
        """
        rows = number_array(points, "points")
        if rows.ndim != 2:
            raise InputError(f"points have shape {rows.shape}; give one row of coordinates per node")
        names = _listed_names(names, len(rows))
        raise_for_first(
            np.any(~np.isfinite(rows), axis=1),
            lambda u: f"node {_name(u, names)} is at {rows[u].tolist()}",
            "coordinates are finite numbers",
        )
        _check_apart(rows, names)
        return trusted_weights("euclidean", len(rows), points=rows)

    @classmethod
    def sites(
        cls,
        site_of_node: ArrayLike,
        inner: float = 1.0,
        outer: float = 10.0,
        between: ArrayLike | None = None,
    ) -> Weights:
        """Weights by site: `inner` inside a site, and `outer` or the entry of `between` between two sites.

        Args:
            site_of_node: the number of each node's site.
            inner: the weight of a link inside a site.
            outer: the weight of a link between two sites.
            between: weights between sites instead of `outer`: a square symmetric matrix, one row per site. An
                entry above 0 on its diagonal is the weight inside that site instead of `inner`.

        Raises:
            InputError: a site is not a whole number from 0, or a weight is not finite and above 0.

        Examples:
            >>> Weights.sites([0, 1, 1], inner=2, between=[[0, 7], [7, 0]]).of([0, 1], [1, 2])
            array([7., 2.])
        """
        site, table = _site_numbers(site_of_node), np.empty((0, 0))
        for name, value in (("inner", inner), ("outer", outer)):
            check_number(value, f"the {name} weight of sites", LIGHTEST, HEAVIEST)
        if between is not None:
            table = _square(between, "weights between sites")
            inside = table.diagonal().copy()
            _check_table(table, "site", None)
            np.fill_diagonal(table, np.where(np.isfinite(inside) & (inside > 0), inside, inner))
            raise_for_first(
                site >= len(table),
                lambda u: f"node {u} is at site {site[u]}",
                f"the table between sites has sites 0 to {len(table) - 1}",
            )
        return trusted_weights(
            "sites", len(site), table=table, site=site, inner=float(inner), outer=float(outer)
        )

    @classmethod
    def from_networkx(
        cls,
        graph: nx.Graph,
        nodes: Interest | Sequence[object],
        weight: str | None = "weight",
        missing: str = "refuse",
    ) -> Weights:
        """Weights from the edges of a NetworkX graph.

        The two directions of a directed graph count by their mean, or by the only one there is; of parallel
        edges the lightest counts; an edge from a node to itself is ignored.

        Args:
            graph: a NetworkX graph of any kind. It can have more nodes than the interest, such as routers:
                shortest paths can pass through them.
            nodes: the interest that the weights are for, or the ids of its nodes in their order. An id names
                the graph's node with the same text: `"7"` is the node `"7"` or the node `7`.
            weight: the name of the edge attribute with the weight; None: every edge weighs 1.
            missing: "refuse" pairs of nodes without an edge, or give them the length of their shortest
                "path".

        Raises:
            InputError: a node is missing in the graph or is there twice, an edge has no weight above 0, or a
                pair of nodes has no edge (or path).

        Examples:
            >>> import networkx as nx
            >>> graph = nx.Graph()
            >>> graph.add_weighted_edges_from([("rome", "router", 2), ("router", "oslo", 9)])
            >>> Weights.from_networkx(graph, ["oslo", "rome"], missing="path").of([0], [1])
            array([11.])
        """
        from broadloom.model.networkx_weights import weights_matrix

        ids = nodes.node_ids if isinstance(nodes, Interest) else check_ids(nodes, "node")
        return cls.dense(weights_matrix(graph, ids, weight, missing), ids)

    @property
    def is_uniform(self) -> bool:
        """Whether the kind is "uniform", so that every link weighs 1."""
        return self.kind == "uniform"

    def arrays(self) -> WeightArrays:
        """The arrays of the weights, for kernels."""
        return WeightArrays(
            WEIGHT_KINDS.index(self.kind), self.table, self.points, self.site, self.inner, self.outer
        )

    def of(self, u: ArrayLike, v: ArrayLike) -> NDArray[np.float64]:
        """The weight of each pair (u[i], v[i]).

        Args:
            u: the index of one end of each pair, or one index.
            v: the index of the other end.

        Raises:
            InputError: not two lists of whole numbers of the same length, or a node that does not exist.
        """
        ends = [np.array(integer_array(end, "nodes"), ndmin=1) for end in (u, v)]
        if ends[0].ndim > 1 or ends[1].ndim > 1:
            raise InputError(f"nodes have shapes {ends[0].shape} and {ends[1].shape}; give two lists")
        if len(ends[0]) != len(ends[1]):
            raise InputError(f"{len(ends[0])} nodes against {len(ends[1])}; give the same number of each")
        for end in ends:
            check_range(end, self.node_count, "node")
        return _weights_of(self.arrays(), *ends)

    def matrix(self) -> NDArray[np.float64]:
        """All weights as a new V x V matrix with a zero diagonal, for small instances."""
        n = self.node_count
        u, v = np.divmod(np.arange(n * n), max(n, 1))
        result = self.of(u, v).reshape(n, n)
        np.fill_diagonal(result, 0.0)
        return result

    def subset(self, nodes: ArrayLike) -> Weights:
        """The weights among some of the nodes, in this order.

        Args:
            nodes: node indices, each once; or a mask: one truth value per node.

        Raises:
            InputError: a node does not exist or occurs twice, or a mask has another length.

        Examples:
            >>> Weights.euclidean([[0], [1], [5]]).subset([2, 0]).of([0], [1])
            array([5.])
        """
        chosen = index_array(nodes, self.node_count, "node")
        raise_for_first(repeated(chosen), lambda i: f"node {chosen[i]} is given twice", "give each node once")
        return trusted_weights(
            self.kind,
            len(chosen),
            table=self.table[np.ix_(chosen, chosen)] if self.kind == "dense" else self.table,
            points=self.points[chosen] if self.kind == "euclidean" else self.points,
            site=self.site[chosen] if self.kind == "sites" else self.site,
            inner=self.inner,
            outer=self.outer,
        )

    def scaled(self, factor: float) -> Weights:
        """The same weights times a factor.

        Examples:
            >>> Weights.euclidean([[0], [4]]).scaled(0.5).of([0], [1])
            array([2.])
        """
        factor = check_positive(factor, "the factor of the weights")
        with np.errstate(over="ignore", under="ignore"):  # the constructors check the result
            table = self.table * factor
            points = self.points * factor
        if self.kind == "dense":
            return Weights.dense(table)
        if self.kind == "euclidean":
            return Weights.euclidean(points)
        site = np.zeros(self.node_count, np.int32) if self.is_uniform else self.site
        between = table if len(table) else None
        return Weights.sites(site, self.inner * factor, self.outer * factor, between)

    def __setstate__(self, state: dict[str, object]) -> None:
        restore_frozen(self, state)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Weights):
            return NotImplemented
        no_points = self.points.size == 0 and other.points.size == 0  # without nodes, axes do not matter
        return (
            (self.kind, self.node_count, self.inner, self.outer)
            == (other.kind, other.node_count, other.inner, other.outer)
            and np.array_equal(self.table, other.table)
            and (no_points or np.array_equal(self.points, other.points))
            and np.array_equal(self.site, other.site)
        )

    __hash__ = None  # type: ignore[assignment]

    def _repr_html_(self) -> str:
        facts: dict[str, object] = {"kind": self.kind, "nodes": self.node_count}
        if self.kind == "euclidean":
            facts["coordinates per node"] = self.points.shape[1]
        if self.kind == "sites":
            facts |= {"sites": len(np.unique(self.site)), "inside a site": self.inner}
            facts["between sites"] = "by a table" if len(self.table) else self.outer
        return html_summary("Weights", facts)

    def __repr__(self) -> str:
        return f"Weights({self.kind}, {self.node_count:,} nodes)"


def trusted_weights(
    kind: str,
    node_count: int,
    table: NDArray[np.float64] | None = None,
    points: NDArray[np.float64] | None = None,
    site: NDArray[np.int32] | None = None,
    inner: float = 1.0,
    outer: float = 1.0,
) -> Weights:
    """Weights of arrays that our own code made, not checked again; the arrays become read-only."""
    weights = object.__new__(Weights)
    state = {
        "kind": kind,
        "node_count": node_count,
        "table": np.empty((0, 0)) if table is None else table,
        "points": np.empty((0, 0)) if points is None else points,
        "site": np.empty(0, np.int32) if site is None else site,
        "inner": inner,
        "outer": outer,
    }
    restore_frozen(weights, state)
    return weights


def _listed_names(names: Sequence[str] | None, count: int) -> Sequence[str] | None:
    """The names of nodes for error messages, if there is one per node."""
    if names is None:
        return None
    listed = ordered_list(names, "names")
    if len(listed) != count:
        raise InputError(f"{count:,} nodes but {len(listed):,} names; give one name per node")
    return listed


def _square(matrix: ArrayLike, name: str) -> NDArray[np.float64]:
    """A copy of the matrix as doubles, if it is square."""
    table = number_array(matrix, name)
    if table.ndim != 2 or table.shape[0] != table.shape[1]:
        raise InputError(f"{name} have shape {table.shape}; give a square matrix")
    return table


def _name(node: int, names: Sequence[str] | None) -> str:
    return str(node) if names is None else repr(names[node])


def _check_table(table: NDArray[np.float64], kind: str, names: Sequence[str] | None) -> None:
    """Raise unless every pair is finite, above 0 and symmetric; then make the table exactly symmetric."""
    np.fill_diagonal(table, 1.0)
    faults: tuple[tuple[str, Callable[[], NDArray[np.bool_]]], ...] = (
        ("is not finite", lambda: ~np.isfinite(table)),
        ("is not above 0", lambda: table <= 0),
        (f"is not {RANGE}", lambda: (table < LIGHTEST) | (table > HEAVIEST)),
        ("differs from its reverse", lambda: np.abs(table - table.T) > SYMMETRY_TOLERANCE * np.abs(table)),
    )
    for fault, find in faults:
        bad = find()
        if bad.any():
            u, v = np.argwhere(bad)[0].tolist()
            pairs = int(np.triu(bad | bad.T).sum())
            raise InputError(
                f"the weight of {kind}s {_name(u, names)} and {_name(v, names)} is {table[u, v]}, "
                f"the reverse {table[v, u]}: it {fault}{and_more(pairs - 1)}; "
                "weights are finite, above 0 and symmetric"
            )
    lower = np.tril_indices(len(table), -1)
    table[lower] = table.T[lower]
    np.fill_diagonal(table, 0.0)


def _check_apart(points: NDArray[np.float64], names: Sequence[str] | None) -> None:
    """Raise if two points have distance 0, or are so far apart that the distance overflows."""
    if len(points) < 2:
        return
    if points.shape[1] == 0:
        raise InputError("points have no coordinates, so all nodes are at one point; give at least one")
    with np.errstate(over="ignore"):
        span = np.sqrt(np.sum((points.max(axis=0) - points.min(axis=0)) ** 2))
    if not span <= HEAVIEST:
        raise InputError(f"points are {span:g} apart; weights are {RANGE}, so use another unit")
    distance, nearest = _nearest_others(points)

    def describe(u: int) -> str:
        pair = f"nodes {_name(u, names)} and {_name(nearest[u], names)}"
        return f"{pair} are at the same point, {points[u].tolist()}"

    raise_for_first(distance == 0, describe, "weights are above 0, so give each node another point")
    if distance.min() < LIGHTEST:
        raise InputError(f"two points are {distance.min():g} apart; weights are {RANGE}, so use another unit")


def _nearest_others(points: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The distance from each point to the nearest other point, and that point."""
    if len(points) <= FEW_POINTS:
        distances = np.sqrt(((points[:, None] - points) ** 2).sum(axis=2))
        np.fill_diagonal(distances, np.inf)
        nearest = distances.argmin(axis=1)
        return distances[np.arange(len(points)), nearest], nearest
    from scipy.spatial import KDTree  # a heavy import, needed only here

    distance, two = map(np.asarray, KDTree(points).query(points, k=2))
    itself = two[:, 0] == np.arange(len(points))
    return distance[:, 1], np.where(itself, two[:, 1], two[:, 0])


def _site_numbers(site_of_node: ArrayLike) -> NDArray[np.int32]:
    """The sites as int32, if they are whole numbers from 0."""
    site = plain_array(site_of_node, "sites")
    if site.ndim != 1:
        raise InputError(f"sites have shape {site.shape}; give one site number per node")
    if site.size and not np.issubdtype(site.dtype, np.integer):
        raise InputError(f"sites are {site.dtype} ({site[0]!r}, ...); give whole numbers from 0")
    site = integer_array(site, "sites")
    raise_for_first(
        (site < 0) | (site > np.iinfo(np.int32).max),
        lambda u: f"node {u} is at site {site[u]}",
        "sites are whole numbers from 0, below 2**31",
    )
    return site.astype(np.int32)


def symmetrised(matrix: NDArray[np.float64], rule: str) -> NDArray[np.float64]:
    """The matrix with one weight per pair: both directions combined by a rule, or the only known one.

    The rule is "mean", "min", "max", or "refuse", which keeps both directions for a later check.
    """
    rules: dict[str, Callable[..., NDArray[np.float64]]] = {
        "mean": lambda a, b: (a + b) / 2,
        "min": np.fmin,
        "max": np.fmax,
        "refuse": lambda a, _: a,
    }
    check_choice(rule, "the rule for the two directions", rules)
    reverse = matrix.T
    both = ~np.isnan(matrix) & ~np.isnan(reverse)
    known = np.where(np.isnan(matrix), reverse, matrix)
    return np.where(both, rules[rule](matrix, reverse), known)


def fill_missing(
    matrix: NDArray[np.float64], rule: str, names: Sequence[str] | None = None
) -> NDArray[np.float64]:
    """The matrix with missing pairs (NaN) filled by the rule "path" (shortest paths); "refuse" raises."""
    check_choice(rule, "the rule for missing pairs", ("refuse", "path"))
    n = len(matrix)
    holes = np.isnan(matrix)
    np.fill_diagonal(holes, False)
    if not holes.any():
        return matrix
    if rule == "path":
        from scipy.sparse.csgraph import csgraph_from_dense, shortest_path  # heavy, and rarely needed

        graph = csgraph_from_dense(np.where(holes, np.inf, matrix), null_value=np.inf)
        matrix = np.where(holes, shortest_path(graph, directed=False), matrix)
        holes = np.isinf(matrix)
    labels = [str(i) for i in range(n)] if names is None else [repr(name) for name in names]
    raise_for_first(
        np.triu(holes).ravel(),
        lambda i: f"{labels[i // n]} and {labels[i % n]} have no latency",
        'measure them, or fill missing pairs by shortest paths (--missing path, missing="path")'
        if rule == "refuse"
        else "no path over other pairs connects them; measure more pairs",
    )
    return matrix


def raise_to_floor(matrix: NDArray[np.float64], floor: float | None) -> NDArray[np.float64]:
    """The matrix with values below the floor raised to it; raises if a value is negative."""
    if floor is None:
        return matrix
    floor = check_positive(floor, "floor")
    n = len(matrix)
    raise_for_first(
        (matrix < 0).ravel(),
        lambda i: f"latency of {i // n} and {i % n} is {matrix[i // n, i % n]}",
        "latencies are not negative",
    )
    return np.maximum(matrix, floor)

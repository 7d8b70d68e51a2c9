"""Columns of the nodes of a live overlay: those of the plan it started from, and those of nodes that join.

A node that stays keeps every column of its plan (address, site, position, kind, ...), unchanged. A node that
joins has those that are known of it; its other columns are empty.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from broadloom.checks import is_text, shown
from broadloom.errors import InputError
from broadloom.mqtt.endpoint import Address
from broadloom.plans import Plan

if TYPE_CHECKING:
    import pyarrow as pa

ADDRESS = "address"
SITE = "site"
# The column with the ids of nodes, which maintenance adds; and the note with them, if it has another use.
ID = "id"
IDS_NOTE = "ids"
SITES_NOTE = "sites"
DEFAULT_PORT = 1883  # only to check an address that has no port


class NodeColumns:
    """The columns of nodes beside their names and ids.

    Args:
        table: one row per node of the start; None: no columns.
        ids: the id of the node of each row.

    Attributes:
        names: the names of the columns.

    Examples:
        >>> import pyarrow as pa
        >>> columns = NodeColumns(pa.table({"site": ["eu", "us"], "kind": ["emqx", "nats"]}), [0, 1])
        >>> columns.join(2, {"site": "eu", "address": "10.0.0.7"})
        >>> columns.of([1, 2]).to_pylist()  # doctest: +NORMALIZE_WHITESPACE
        [{'site': 'us', 'kind': 'nats', 'address': None},
         {'site': 'eu', 'kind': None, 'address': '10.0.0.7'}]
    """

    def __init__(self, table: pa.Table | None = None, ids: Sequence[int] = ()) -> None:
        self._table = table
        self._row = {node: row for row, node in enumerate(ids)} if table is not None else {}
        self.names = [] if table is None else list(table.column_names)
        self._joined: dict[int, dict[str, Any]] = {}

    def __contains__(self, name: str) -> bool:
        return name in self.names

    def __deepcopy__(self, _: object) -> NodeColumns:
        """A copy for another live overlay; the table itself never changes."""
        copy = NodeColumns(self._table)
        copy._row = dict(self._row)
        copy.names = list(self.names)
        copy._joined = {node: dict(values) for node, values in self._joined.items()}
        return copy

    def join(self, node: int, values: Mapping[str, Any]) -> None:
        """Set the known columns of a node that joins; a column that is new stays from now on."""
        self.names += [name for name in values if name not in self.names]
        if values:
            self._joined[node] = dict(values)

    def leave(self, node: int) -> None:
        """Forget a node."""
        self._row.pop(node, None)
        self._joined.pop(node, None)

    def of(self, nodes: Sequence[int]) -> pa.Table:
        """The columns of these nodes, in this order."""
        import pyarrow as pa

        rows = pa.array([self._row.get(node) for node in nodes], pa.int64())
        table = pa.table({}) if self._table is None else self._table.take(rows)
        joined = [(row, self._joined[node]) for row, node in enumerate(nodes) if node in self._joined]
        for name in self.names:
            known = table.column(name) if name in table.column_names else pa.nulls(len(nodes), pa.string())
            if any(name in values for _, values in joined):
                known = _filled(known, {row: values[name] for row, values in joined if name in values})
            if name in table.column_names:
                table = table.set_column(table.column_names.index(name), name, known)
            else:
                table = table.append_column(name, known) if table.num_columns else pa.table({name: known})
        return table


def _filled(column: pa.Array | pa.ChunkedArray, values: Mapping[int, Any]) -> pa.Array:
    """A column with the values of some rows; it becomes a column of texts if they do not fit its type."""
    import pyarrow as pa

    whole = column.to_pylist()
    for row, value in values.items():
        whole[row] = value
    kind = pa.string() if pa.types.is_null(column.type) else column.type
    try:
        return pa.array(whole, kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError):
        return pa.array([None if value is None else str(value) for value in whole], pa.string())


def check_columns(address: object = None, site: object = None) -> dict[str, str]:
    """The columns of a node that joins, if they are valid; those that are None are left out.

    Raises:
        InputError: the address is not host or host:port, or the site is not a text.

    Examples:
        >>> check_columns("10.0.0.7:8883", None)
        {'address': '10.0.0.7:8883'}
        >>> check_columns("10.0.0.7:", None)
        Traceback (most recent call last):
        broadloom.errors.InputError: the address of the new node is '10.0.0.7:'; give host or host:port
    """
    columns: dict[str, str] = {}
    if address is not None:
        Address.parse(address, DEFAULT_PORT, "the address of the new node")  # type: ignore[arg-type]
        columns[ADDRESS] = str(address)
    if site is not None:
        if not is_text(site):
            raise InputError(f"the site of the new node is {shown(site)}; give a text")
        columns[SITE] = str(site)
    return columns


def columns_of(nodes: pa.Table | None, earlier: bool = False) -> NodeColumns:
    """The columns of a table of nodes without their names.

    If the nodes come from an `earlier` maintenance, their ids are left out too: there are new ones.
    """
    if nodes is None:
        return NodeColumns()
    unused = ["node", *([ID] if earlier and ID in nodes.column_names else [])]
    table = nodes.drop_columns(unused)
    return NodeColumns(table if table.num_columns else None, range(nodes.num_rows))


def sites_of(plan: Plan) -> tuple[str, ...]:
    """The names of the sites of a plan by their numbers in its weights; empty if they have no names.

    Examples:
        >>> import broadloom as bl
        >>> import pyarrow as pa
        >>> nodes = pa.table({"node": ["0", "1"], "site": ["us", "eu"]})
        >>> overlay = bl.Overlay.from_edges(2, [])
        >>> plan = bl.Plan(
        ...     bl.Interest.from_lists([[], []]), bl.Weights.sites([1, 0]), overlay, "", nodes=nodes
        ... )
        >>> sites_of(plan)
        ('eu', 'us')
    """
    if plan.weights.kind != "sites":
        return ()
    if SITES_NOTE in plan.notes:
        return tuple(map(str, plan.notes[SITES_NOTE]))
    if plan.nodes is None or SITE not in plan.nodes.column_names:
        return ()
    name_of = dict(zip(plan.weights.site.tolist(), plan.nodes.column(SITE).to_pylist(), strict=True))
    count = max(len(plan.weights.table), int(plan.weights.site.max(initial=-1)) + 1)
    names = [name_of.get(number) for number in range(count)]
    known = [name for name in names if is_text(name)]
    return tuple(map(str, known)) if len(set(known)) == len(names) else ()


def brokers_without_address(plan: Plan) -> list[str] | None:
    """The names of the brokers without an address; None if the plan has no addresses at all.

    Examples:
        >>> import broadloom as bl
        >>> import pyarrow as pa
        >>> from dataclasses import replace
        >>> plan = bl.link(bl.Interest.from_lists([[0], [0]]), algorithm="gm")
        >>> brokers_without_address(replace(plan, nodes=pa.table({"node": ["0", "1"], "address": ["h", ""]})))
        ['1']
    """
    if plan.nodes is None or ADDRESS not in plan.nodes.column_names:
        return None
    addresses = plan.nodes.column(ADDRESS).to_pylist()
    if not any(addresses):
        return None
    pairs = zip(plan.interest.node_ids, addresses, strict=True)
    return [name for name, address in pairs if not address]


def coordinates_of(point: Sequence[float] | np.ndarray) -> dict[str, float]:
    """The coordinate columns of a point.

    Examples:
        >>> coordinates_of([0.5, 2.0])
        {'x': 0.5, 'y': 2.0}
    """
    names = ["x", "y", "z", *(f"x{axis}" for axis in range(3, len(point)))]
    return {name: float(value) for name, value in zip(names, point, strict=False)}

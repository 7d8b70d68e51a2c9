"""Where brokers are drawn: on the map, in network space, or wherever forces put them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from broadloom.plans import Plan
from broadloom.report.numbers import short
from broadloom.storage.tables import coordinate_columns
from broadloom.workload import REGIONS

# What the columns of a nodes table may be called that hold degrees.
DEGREES = (("lat", "lon"), ("latitude", "longitude"), ("lat", "lng"))


def places(plan: Plan) -> dict[str, Any]:
    """Where each broker is: `kind` is "map" (x east, y north, in degrees), "plane", or "none".

    Degrees come from the columns `lat` and `lon` of the nodes, else from a site that is a cloud's region.
    Brokers without a place have None on a map that others are on.

    Examples:
        >>> import broadloom as bl
        >>> nodes = pa.table({"node": ["0", "1"], "lat": [48.9, None], "lon": [2.4, None]})
        >>> interest = bl.Interest.from_lists([[0], [0]])
        >>> places(Plan(interest, bl.Weights.uniform(2), bl.Overlay.from_edges(2, [(0, 1)]), "", nodes=nodes))
        {'kind': 'map', 'x': [2.4, None], 'y': [48.9, None]}
    """
    degrees = _degrees(plan)
    if np.isfinite(degrees).any():
        return {"kind": "map", "x": short(degrees[:, 1]), "y": short(degrees[:, 0])}
    plane = _plane(plan)
    if plane is not None:
        return {"kind": "plane", "x": short(plane[:, 0]), "y": short(plane[:, 1])}
    return {"kind": "none"}


def with_places_of(plan: Plan, others: Iterable[Plan]) -> Plan:
    """A plan that says nothing of places, with those that another plan knows of brokers of the same name.

    So a plan after a change, with a broker that has just joined, is on the same map as the plan before.

    Examples:
        >>> import broadloom as bl
        >>> nodes = pa.table({"node": ["0", "1"], "lat": [48.9, 50.1], "lon": [2.4, 8.7]})
        >>> before, after = (bl.link(bl.Interest.from_lists([[0]] * n), algorithm="gm") for n in (2, 3))
        >>> places(with_places_of(after, [replace(before, nodes=nodes)]))
        {'kind': 'map', 'x': [2.4, 8.7, None], 'y': [48.9, 50.1, None]}
    """
    on_map = next((other for other in others if places(other)["kind"] == "map"), None)
    if on_map is None or on_map.nodes is None or places(plan)["kind"] != "none":
        return plan
    at = {name: row for row, name in enumerate(on_map.interest.node_ids)}
    rows = pa.array([at.get(name) for name in plan.interest.node_ids], pa.int64())
    nodes = on_map.nodes.take(rows)
    where = nodes.column_names.index("node")
    return replace(plan, nodes=nodes.set_column(where, "node", pa.array(plan.interest.node_ids, pa.string())))


def site_names(plan: Plan) -> list[str] | None:
    """The site of each broker, or None where sites are not known; "" for a broker without one."""
    if plan.nodes is not None and "site" in plan.nodes.column_names:
        return ["" if site is None else str(site) for site in plan.nodes.column("site").to_pylist()]
    if plan.weights.kind == "sites":
        return [f"site-{site}" for site in plan.weights.site.tolist()]
    return None


def _degrees(plan: Plan) -> NDArray[np.float64]:
    """Latitude and longitude of each broker, NaN where they are not known or not on Earth."""
    known = np.full((plan.interest.node_count, 2), np.nan)
    for columns in DEGREES:
        if plan.nodes is not None and set(columns) <= set(plan.nodes.column_names):
            known = np.stack([_numbers(plan.nodes.column(name)) for name in columns], axis=1)
            break
    else:
        regions = {region.name: (region.latitude, region.longitude) for region in REGIONS}
        for broker, site in enumerate(site_names(plan) or ()):
            known[broker] = regions.get(site, (np.nan, np.nan))
    known[~np.all(np.abs(known) <= (90, 180), axis=1)] = np.nan
    return known


def _plane(plan: Plan) -> NDArray[np.float64] | None:
    """The first two network coordinates of each broker, if all have them."""
    if plan.weights.kind == "euclidean" and plan.weights.points.shape[1] >= 2:
        return plan.weights.points[:, :2]
    if plan.nodes is None or len(axes := coordinate_columns(plan.nodes)) < 2:
        return None
    points = np.stack([_numbers(plan.nodes.column(axis)) for axis in axes[:2]], axis=1)
    return points if np.isfinite(points).all() else None


def _numbers(column: pa.ChunkedArray) -> NDArray[np.float64]:
    """A column as doubles; NaN for what is no number."""
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        return np.full(len(column), np.nan)
    return np.array(column.cast(pa.float64()).to_pylist(), np.float64)

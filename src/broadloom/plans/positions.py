"""Sites and positions of a plan's nodes: latitude and longitude, or coordinates in a plane."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from broadloom.model import REGIONS

if TYPE_CHECKING:
    import pyarrow as pa

    from broadloom.plans.plan import Plan

# Names of the columns of latitude and longitude in a nodes table.
DEGREES = (("lat", "lon"), ("latitude", "longitude"), ("lat", "lng"))


def site_names(plan: Plan) -> list[str] | None:
    """The site of each broker, or None if sites are unknown; "" for a broker without a site."""
    if plan.nodes is not None and "site" in plan.nodes.column_names:
        return ["" if site is None else str(site) for site in plan.nodes.column("site").to_pylist()]
    if plan.weights.kind == "sites":
        return [f"site-{site}" for site in plan.weights.site.tolist()]
    return None


def map_positions(plan: Plan) -> NDArray[np.float64]:
    """Latitude and longitude of each broker, in degrees; NaN if they are unknown.

    They come from the columns `lat` and `lon` of the nodes, else from sites named like cloud regions.

    Examples:
        >>> import broadloom as bl
        >>> import pyarrow as pa
        >>> from dataclasses import replace
        >>> plan = bl.link(bl.Interest.from_lists([[0], [0]]), algorithm="gm")
        >>> map_positions(replace(plan, nodes=pa.table({"node": ["0", "1"], "site": ["aws/eu-west-3", "?"]})))
        array([[48.86,  2.35],
               [  nan,   nan]])
    """
    for columns in DEGREES:
        if plan.nodes is not None and set(columns) <= set(plan.nodes.column_names):
            return np.stack([_numbers(plan.nodes.column(name)) for name in columns], axis=1)
    known = np.full((plan.interest.node_count, 2), np.nan)
    regions = {region.name: (region.latitude, region.longitude) for region in REGIONS}
    for broker, site in enumerate(site_names(plan) or ()):
        known[broker] = regions.get(site, (np.nan, np.nan))
    return known


def plane_positions(plan: Plan) -> NDArray[np.float64] | None:
    """The first two network coordinates of each broker, if all have them."""
    from broadloom.storage.tables import coordinate_columns

    if plan.weights.kind == "euclidean" and plan.weights.points.shape[1] >= 2:
        return plan.weights.points[:, :2]
    if plan.nodes is None or len(axes := coordinate_columns(plan.nodes)) < 2:
        return None
    points = np.stack([_numbers(plan.nodes.column(axis)) for axis in axes[:2]], axis=1)
    return points if np.isfinite(points).all() else None


def coordinates(plan: Plan) -> dict[str, NDArray[np.float64]]:
    """The network coordinates of the nodes by their names x, y, z, x3, ...; NaN where one is unknown.

    They are the points of the weights, else columns of the nodes table.
    """
    from broadloom.storage.tables import coordinate_columns

    if plan.weights.kind == "euclidean":
        points = plan.weights.points
        names = ["x", "y", "z", *(f"x{axis}" for axis in range(3, points.shape[1]))]
        return dict(zip(names, points.T, strict=False))
    if plan.nodes is None:
        return {}
    return {name: _numbers(plan.nodes.column(name)) for name in coordinate_columns(plan.nodes)}


def _numbers(column: pa.ChunkedArray) -> NDArray[np.float64]:
    """A column as doubles; NaN for each value that is not a number."""
    import pyarrow as pa

    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        return np.full(len(column), np.nan)
    return np.array(column.cast(pa.float64()).to_pylist(), np.float64)

"""Plans in the forms of other tools: NetworkX graph, GeoJSON, GraphML file, picture of matplotlib."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import numpy as np
from numpy.typing import ArrayLike, NDArray

from broadloom.checks import check_flag, number_array, raise_for_first
from broadloom.errors import InputError, missing_extra
from broadloom.plans.positions import coordinates, map_positions, plane_positions, site_names
from broadloom.storage import write_file

if TYPE_CHECKING:
    import networkx as nx
    from matplotlib.axes import Axes

    from broadloom.plans.plan import Plan

# The attributes of nodes and links in a GraphML file, with the type names of that format.
GRAPHML_TYPES = {"site": "string", "topics": "string", "weight": "double", "rank": "int"}
GRAPHML_NAMESPACE = "http://graphml.graphdrawing.org/xmlns"
# Characters that an XML document cannot hold, or that a reader of XML changes.
_NOT_XML = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
# The largest number of nodes whose names are drawn unless the caller decides.
MOST_LABELS = 30
# Seed of the layout of nodes without positions.
LAYOUT_SEED = 0


def networkx_graph(plan: Plan) -> nx.Graph:
    """The plan as an undirected NetworkX graph; see `Plan.to_networkx`."""
    networkx = _networkx("to_networkx needs it")
    names = _node_names(plan)
    graph = networkx.Graph()
    graph.add_nodes_from(zip(names, _node_values(plan), strict=True))
    pairs = [(names[u], names[v]) for u, v in plan.edges.tolist()]
    graph.add_edges_from((u, v, values) for (u, v), values in zip(pairs, _link_values(plan), strict=True))
    return graph


def geojson(plan: Plan, positions: ArrayLike | Mapping[str, Sequence[float]] | None = None) -> dict[str, Any]:
    """The plan as a GeoJSON feature collection (RFC 7946); see `Plan.to_geojson`."""
    degrees = map_positions(plan) if positions is None else _points_of(plan, positions)
    _check_degrees(plan, degrees)
    points = [None if np.isnan(point).any() else (float(point[1]), float(point[0])) for point in degrees]
    ids = plan.interest.node_ids
    sites = site_names(plan) or [""] * len(ids)
    counts = np.diff(plan.interest.topic_start).tolist()
    features = [
        {
            "type": "Feature",
            "id": name,
            "geometry": None if point is None else {"type": "Point", "coordinates": list(point)},
            "properties": {"node": name, "topics": topics} | ({"site": site} if site else {}),
        }
        for name, point, site, topics in zip(ids, points, sites, counts, strict=True)
    ]
    for rank, (u, v) in enumerate(plan.edges.tolist()):
        one, other = points[u], points[v]
        features.append(
            {
                "type": "Feature",
                "geometry": None if one is None or other is None else _line_geometry(one, other),
                "properties": {
                    "u": ids[u],
                    "v": ids[v],
                    "weight": float(plan.edge_weights[rank]),
                    "rank": rank,
                },
            }
        )
    return {"type": "FeatureCollection", "features": features}


def write_graphml(plan: Plan, path: str | Path) -> None:
    """Write the plan as a GraphML file; see `Plan.to_graphml`."""
    nodes = _node_values(plan)
    links = _link_values(plan)
    ids = plan.interest.node_ids
    _check_xml(ids, "node id")
    _check_xml((str(values.get("site", "")) for values in nodes), "site")
    root = ElementTree.Element("graphml", {"xmlns": GRAPHML_NAMESPACE})
    keys = {}
    for kind, records in (("node", nodes), ("edge", links)):
        for name in dict.fromkeys(name for values in records for name in values if name != "pos"):
            keys[kind, name] = f"{kind}-{name}"
            declared = {"attr.name": name, "attr.type": GRAPHML_TYPES.get(name, "double")}
            ElementTree.SubElement(root, "key", {"id": keys[kind, name], "for": kind, **declared})
    graph = ElementTree.SubElement(root, "graph", {"edgedefault": "undirected"})
    for name, values in zip(ids, nodes, strict=True):
        _add_data(ElementTree.SubElement(graph, "node", {"id": name}), "node", values, keys)
    for (u, v), values in zip(plan.edges.tolist(), links, strict=True):
        ends = {"source": ids[u], "target": ids[v]}
        _add_data(ElementTree.SubElement(graph, "edge", ends), "edge", values, keys)
    write_file(path, ElementTree.tostring(root, encoding="utf-8", xml_declaration=True))


def draw(
    plan: Plan,
    ax: Axes | None = None,
    positions: ArrayLike | Mapping[str, Sequence[float]] | None = None,
    labels: bool | None = None,
) -> Axes:
    """Draw the plan with matplotlib; see `Plan.plot`."""
    try:
        from matplotlib import pyplot
        from matplotlib.collections import LineCollection
    except ImportError as error:
        raise missing_extra("matplotlib", "plot", "Plan.plot draws with it") from error
    if not (ax is None or hasattr(ax, "add_collection")):
        raise InputError(f"ax is a {type(ax).__name__}; give axes of matplotlib, or None")
    shown = None if labels is None else check_flag(labels, "labels")
    points, on_map = _drawn_positions(plan, positions)
    axes = pyplot.subplots()[1] if ax is None else ax
    pairs = [(tuple(points[u]), tuple(points[v])) for u, v in plan.edges.tolist()]
    lines = [part for pair in pairs for part in (split_line(*pair) if on_map else [pair])]
    axes.add_collection(LineCollection(lines, colors="0.6", linewidths=1, zorder=1))
    sites = site_names(plan) or [""] * len(points)
    number = {site: index for index, site in enumerate(sorted(set(sites)))}
    colors = [f"C{number[site] % 10}" for site in sites]
    axes.scatter(points[:, 0], points[:, 1], s=30, c=colors, zorder=2)
    if (len(points) <= MOST_LABELS) if shown is None else shown:
        for name, point in zip(plan.interest.node_ids, points, strict=True):
            axes.annotate(
                name, tuple(point), (4, 4), textcoords="offset points", fontsize="small", parse_math=False
            )
    if on_map:
        axes.set_xlabel("longitude")
        axes.set_ylabel("latitude")
    elif positions is None and plane_positions(plan) is None:
        axes.set_axis_off()  # the coordinates of a layout mean nothing
    axes.set_title(f"{plan.algorithm}: {len(points):,} brokers, {len(pairs):,} links", parse_math=False)
    axes.autoscale_view()
    return axes


def split_line(
    one: tuple[float, float], other: tuple[float, float]
) -> list[tuple[tuple[float, float], tuple[float, float]]]:
    """The line between two points (longitude, latitude), cut where it crosses the antimeridian.

    It takes the shorter way around the globe; RFC 7946, section 3.1.9, asks for the cut.

    Examples:
        >>> split_line((170.0, 10.0), (-170.0, 20.0))
        [((170.0, 10.0), (180.0, 15.0)), ((-180.0, 15.0), (-170.0, 20.0))]
        >>> split_line((10.0, 0.0), (20.0, 0.0))
        [((10.0, 0.0), (20.0, 0.0))]
    """
    if abs(one[0] - other[0]) <= 180:
        return [(one, other)]
    side = 180.0 if one[0] > 0 else -180.0  # the line leaves the map on this side
    before = abs(side - one[0])
    after = abs(side + other[0])
    if before + after == 0:  # both ends are on the antimeridian
        return [(one, (one[0], other[1]))]
    if after == 0:
        return [(one, (side, other[1]))]
    if before == 0:
        return [((-side, one[1]), other)]
    latitude = one[1] + (other[1] - one[1]) * before / (before + after)
    return [(one, (side, latitude)), ((-side, latitude), other)]


def _networkx(reason: str) -> Any:
    try:
        import networkx
    except ImportError as error:
        raise missing_extra("networkx", "networkx", reason) from error
    return networkx


def _node_names(plan: Plan) -> Sequence[str] | range:
    """The ids of the nodes; their indices as numbers if the ids are just these."""
    ids = plan.interest.node_ids
    indices = range(len(ids))
    return indices if ids == tuple(map(str, indices)) else ids


def _node_values(plan: Plan) -> list[dict[str, Any]]:
    """What is known of each node: topics, site, coordinates, latitude and longitude, position for drawing."""
    interest = plan.interest
    degrees = map_positions(plan).tolist()
    axes = {name: values.tolist() for name, values in coordinates(plan).items()}
    plane = plane_positions(plan)
    sites = site_names(plan) or [""] * interest.node_count
    result = []
    for node in range(interest.node_count):
        values: dict[str, Any] = {"topics": [interest.topic_ids[topic] for topic in interest.topics_of(node)]}
        if sites[node]:
            values["site"] = sites[node]
        values |= {name: column[node] for name, column in axes.items() if np.isfinite(column[node])}
        if np.isfinite(degrees[node]).all():
            values |= dict(zip(("lat", "lon"), degrees[node], strict=True))
            values["pos"] = (degrees[node][1], degrees[node][0])
        elif plane is not None:
            values["pos"] = tuple(plane[node].tolist())
        result.append(values)
    return result


def _link_values(plan: Plan) -> list[dict[str, Any]]:
    """The weight and rank of each link, and the topics (or groups of topic filters) that its ends share."""
    interest = plan.interest.grouped()
    result = []
    for rank, (u, v) in enumerate(plan.edges.tolist()):
        shared = np.intersect1d(interest.topics_of(u), interest.topics_of(v), assume_unique=True)
        topics = [interest.topic_ids[topic] for topic in shared]
        result.append({"weight": float(plan.edge_weights[rank]), "rank": rank, "topics": topics})
    return result


def _points_of(plan: Plan, positions: ArrayLike | Mapping[str, Sequence[float]]) -> NDArray[np.float64]:
    """Positions given by the caller, one pair of numbers per node; NaN for a node that a mapping lacks."""
    ids = plan.interest.node_ids
    if isinstance(positions, Mapping):
        texts = {str(node): point for node, point in positions.items()}
        unknown = [node for node in texts if node not in set(ids)]
        if unknown:
            raise InputError(f"there is a position of {unknown[0]!r}, which is not a node of the plan")
        positions = [texts.get(node, (np.nan, np.nan)) for node in ids]
    if isinstance(positions, np.ma.MaskedArray) and positions.dtype.kind in "iuf":
        positions = np.where(np.ma.getmaskarray(positions), np.nan, positions.data)
    points = number_array(positions, "positions")
    if points.shape != (len(ids), 2) and not (points.size == 0 and not ids):
        raise InputError(
            f"positions have shape {points.shape}; give two numbers for each of {len(ids):,} nodes"
        )
    return points.reshape(-1, 2)


def _check_degrees(plan: Plan, degrees: NDArray[np.float64]) -> None:
    """Raise if no node has a latitude and longitude, or if one is out of range."""
    ids = plan.interest.node_ids
    raise_for_first(
        np.any(np.abs(degrees) > (90, 180), axis=1),
        lambda node: f"node {ids[node]!r} is at latitude {degrees[node, 0]}, longitude {degrees[node, 1]}",
        "latitudes are -90 to 90, longitudes -180 to 180",
    )
    if len(ids) and np.isnan(degrees).any(axis=1).all():
        raise InputError(
            "the plan has no geographic positions; give positions, or columns lat and lon in its nodes, "
            "or sites named like cloud regions (aws/eu-west-1)"
        )


def _line_geometry(one: tuple[float, float], other: tuple[float, float]) -> dict[str, Any]:
    """The geometry of a link: a line, or two if it crosses the antimeridian."""
    parts = [[list(point) for point in part] for part in split_line(one, other)]
    if len(parts) == 1:
        return {"type": "LineString", "coordinates": parts[0]}
    return {"type": "MultiLineString", "coordinates": parts}


def _check_xml(texts: Iterable[str], kind: str) -> None:
    """Raise if a text has a character that XML cannot hold."""
    for text in texts:
        if _NOT_XML.search(text):
            raise InputError(f"{kind} {text!r:.60} has a character that XML cannot hold; rename it")


def _add_data(
    element: ElementTree.Element,
    kind: str,
    values: Mapping[str, Any],
    keys: Mapping[tuple[str, str], str],
) -> None:
    """Add the values of a node or a link to its element; a list of topics is written as JSON."""
    for name, value in values.items():
        if (kind, name) in keys:
            data = ElementTree.SubElement(element, "data", {"key": keys[kind, name]})
            data.text = _json_text(value) if isinstance(value, list) else str(value)


def _json_text(value: object) -> str:
    """JSON in which characters that XML cannot hold are escaped."""
    text = json.dumps(value, ensure_ascii=False)
    return _NOT_XML.sub(lambda match: json.dumps(match[0])[1:-1], text)


def _drawn_positions(
    plan: Plan, positions: ArrayLike | Mapping[str, Sequence[float]] | None
) -> tuple[NDArray[np.float64], bool]:
    """Where each node is drawn, and whether that is on a map."""
    if positions is not None:
        points = _points_of(plan, positions)
        raise_for_first(
            np.any(~np.isfinite(points), axis=1),
            lambda node: f"node {plan.interest.node_ids[node]!r} has no position",
            "give two finite numbers per node",
        )
        return points, False
    degrees = map_positions(plan)
    if len(degrees) and (np.abs(degrees) <= (90, 180)).all():
        return degrees[:, ::-1], True
    plane = plane_positions(plan)
    if plane is not None:
        return plane, False
    networkx = _networkx("nodes without positions are laid out with it")
    graph = networkx.Graph()
    graph.add_nodes_from(range(plan.interest.node_count))
    graph.add_edges_from(plan.edges.tolist())
    layout = networkx.spring_layout(graph, seed=LAYOUT_SEED)
    return np.array([layout[node] for node in graph], np.float64).reshape(-1, 2), False

"""Record of an overlay plan for the report: links, loads, topics, weak points, positions, failures."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from broadloom import measures
from broadloom.maintenance import Live, maintain
from broadloom.measures.overlay_measures import LARGE_SEARCHES, LARGE_TOPIC
from broadloom.model import Interest, Weights
from broadloom.plans import Plan, map_positions, plane_positions, site_names
from broadloom.progress import stage
from broadloom.report.record_values import certificate, short
from broadloom.storage import to_json_value

# The largest number of subscriptions in a page; topics with the fewest subscribers are left out.
MOST_SUBSCRIPTIONS = 1_000_000
LEAST = "no overlay that connects every topic weighs"
# The largest number of brokers, the busiest ones, whose repair is computed.
MOST_REPAIRS = 250
# Each repair copies the overlay: the largest number of brokers in all copies together.
MOST_COPIED = 500_000
# The largest number of subscriptions, times brokers that leave.
MOST_REPAIRED = 30_000_000
# The largest number of names of a group of topic filters.
MOST_NAMES = 20
# The largest number of brokers whose backups are listed: each has dozens.
MOST_BROKERS = 5000
# The largest number of sites whose repair is computed, those with the highest load, and of their brokers.
MOST_SITES = 60
MOST_LEAVING = 1000
# The largest number of brokers whose matrix of weights is in a page.
MOST_IN_MATRIX = 500
NO_REPAIRS: dict[str, Any] = {"backups": None, "failures": None, "siteFailures": None}


def shown_topics(interest: Interest, most: int = MOST_SUBSCRIPTIONS) -> NDArray[np.int64]:
    """The topics that a page shows, ascending: those with the most subscribers, up to `most` subscriptions.

    Examples:
        >>> shown_topics(Interest.from_lists([[0, 1], [1], [1, 2]]), most=4)
        array([0, 1])
    """
    sizes = np.diff(interest.node_start)
    order = np.argsort(-sizes, kind="stable")
    return np.sort(order[np.cumsum(sizes[order]) <= most])


def interest_record(plan: Plan) -> dict[str, Any]:
    """The record of brokers, their sites and positions, and the subscribers of each topic.

    Topic filters and topics that overlap are one topic, with all their names.
    """
    names = group_labels(plan.interest)
    interest = plan.interest.grouped()
    topics = shown_topics(interest)
    members = [interest.nodes_of(int(topic)) for topic in topics]
    sites = site_names(plan)
    labels = sorted(set(sites or ()))
    number = {label: i for i, label in enumerate(labels)}
    return {
        "brokers": list(interest.node_ids),
        "sites": labels,
        "siteOf": [number[site] for site in sites or ()],
        "places": positions(plan),
        "topics": [names[topic] for topic in topics],
        "start": [0, *np.cumsum([len(one) for one in members], dtype=np.int64).tolist()],
        "members": np.concatenate([*members, np.empty(0, np.int32)]).tolist(),
        "topicsInAll": interest.topic_count,
        "subscriptionsInAll": interest.subscription_count,
    }


def group_labels(interest: Interest, most: int = MOST_NAMES) -> list[str]:
    """The name of each topic of `Interest.grouped` on the page: its shortest member, and then the others.

    Examples:
        >>> group_labels(Interest.from_lists([["a/#"], ["a/b", "c"], ["a/+"]]))
        ['a/#, a/+, a/b', 'c']
        >>> group_labels(Interest.from_lists([["a/#"], ["a/b", "c"], ["a/+"]]), most=1)
        ['a/#, and 2 more', 'c']
    """
    grouped = interest.grouped()
    if grouped is interest:
        return list(interest.topic_ids)
    members: list[list[str]] = [[] for _ in grouped.topic_ids]
    for text, group in zip(interest.topic_ids, interest.group_of_topic.tolist(), strict=True):
        members[group].append(text)
    labels = []
    for shortest, texts in zip(grouped.topic_ids, members, strict=True):
        shown = [shortest, *sorted(text for text in texts if text != shortest)]
        more = [f"and {len(shown) - most:,} more"] if len(shown) > most else []
        labels.append(", ".join(shown[:most] + more))
    return labels


def overlay_record(plan: Plan, name: str, interest: int, repairs: bool = True) -> dict[str, Any]:
    """The record of a plan: summary, what is not carried, metrics, links, topics, weak points and failures.

    Args:
        plan: the plan.
        name: its name on the page.
        interest: the index of the record of its interest, in the list of the page.
        repairs: whether the repairs of failures, and backups, are computed.
    """
    subscriptions, overlay, weights = plan.interest.grouped(), plan.overlay, plan.weights
    topics = shown_topics(subscriptions)
    exact = np.diff(subscriptions.node_start).max(initial=0) <= LARGE_TOPIC
    searches = None if exact else LARGE_SEARCHES
    with stage("loads and weak points"):
        loads = measures.link_loads(subscriptions, overlay, weights)
        weak = measures.weak_points(subscriptions, overlay)
        hops, lengths = (
            measures.topic_diameters(subscriptions, overlay, kind, topics, searches)
            for kind in (None, weights)
        )
        costs = measures.routing_costs(subscriptions, overlay, weights)[topics]
    busy = np.bincount(plan.edges.ravel(), np.repeat(loads, 2), minlength=subscriptions.node_count).astype(
        np.int64
    )
    return {
        "kind": "overlay",
        "name": name,
        "interest": interest,
        "summary": plan.summary(),
        "notCarried": plan.not_carried.record(),
        "asked": _settings(plan),
        "metrics": to_json_value(plan.metrics()),
        "certificate": certificate(plan.total_weight, plan.lower_bound, plan.gap, LEAST),
        "weighted": not weights.is_uniform,
        "weights": weights_record(weights),
        "links": {
            "u": plan.edges[:, 0].tolist(),
            "v": plan.edges[:, 1].tolist(),
            "weight": short(plan.edge_weights),
            "load": loads.tolist(),
            "holds": weak.links.tolist(),
        },
        "load": busy.tolist(),
        "holds": weak.nodes.tolist(),
        "topics": {"hops": short(hops), "length": short(lengths), "cost": short(costs), "exact": bool(exact)},
    } | (failures(plan, busy) if repairs else NO_REPAIRS)


def weights_record(weights: Weights) -> dict[str, Any] | None:
    """The weights of all pairs in few numbers; None for a large matrix, which a page does not hold.

    Examples:
        >>> weights_record(Weights.sites([0, 1], inner=1, outer=10))
        {'kind': 'sites', 'site': [0, 1], 'table': [], 'inner': 1.0, 'outer': 10.0}
        >>> weights_record(Weights.dense([[0, 2.5], [2.5, 0]]))
        {'kind': 'dense', 'rows': [[], [2.5]]}
    """
    if weights.kind == "uniform":
        return {"kind": "uniform"}
    if weights.kind == "euclidean":
        return {"kind": "euclidean", "points": [short(point) for point in weights.points]}
    if weights.kind == "sites":
        table = [short(row) for row in weights.table]
        inner_outer = {"inner": weights.inner, "outer": weights.outer}
        return {"kind": "sites", "site": weights.site.tolist(), "table": table} | inner_outer
    if weights.node_count > MOST_IN_MATRIX:
        return None
    return {"kind": "dense", "rows": [short(row[:u]) for u, row in enumerate(weights.table)]}


def _settings(plan: Plan) -> dict[str, Any]:
    """Algorithm, seed, options and notes of the plan, without long lists."""
    notes = {name: value for name, value in plan.notes.items() if not isinstance(value, (list, dict))}
    return {"algorithm": plan.algorithm, "seed": plan.seed} | dict(plan.options) | notes


def failures(plan: Plan, load: NDArray[np.int64], most: int = MOST_REPAIRS) -> dict[str, Any]:
    """The backups of all brokers, and the links that maintenance adds if one of the `most` busiest fails.

    Args:
        plan: the plan; without repairs if it does not connect every topic.
        load: the load of each broker.
        most: the number of brokers whose repair is computed.

    Returns:
        `backups`, one list per broker, or None; `failures`, or None: `brokers` (ascending), and the links
        `added` for each of them; `siteFailures`: the same for `sites` whose brokers all leave, one by one.

    Examples:
        >>> import broadloom as bl
        >>> plan = bl.link(bl.Interest.from_lists([[0], [0], [0]]), algorithm="gm")
        >>> found = failures(plan, plan.overlay.degrees(), most=1)
        >>> found["backups"], found["failures"]
        ([[1, 2], [0, 2], [0, 1]], {'brokers': [0], 'added': [[[1, 2]]]})
    """
    if not plan.is_topic_connected():
        return dict(NO_REPAIRS)
    weights = None if plan.weights.is_uniform else plan.weights
    live = maintain(plan.interest, weights, edges=plan.edges)
    most = min(most, MOST_COPIED // max(1, len(load)), _most_leaving(plan))
    chosen = np.sort(np.argsort(-load, kind="stable")[:most]).tolist()
    added = []
    with stage("failures", len(chosen)) as done:
        for i, broker in enumerate(chosen):
            added.append(deepcopy(live).leave(broker).added.tolist())
            done(i + 1)
    nodes = live.nodes.tolist()
    backups = [live.backups(node).tolist() for node in nodes] if len(nodes) <= MOST_BROKERS else None
    return {
        "backups": backups,
        "failures": {"brokers": chosen, "added": added},
        "siteFailures": site_failures(plan, live, load),
    }


def _most_leaving(plan: Plan) -> int:
    """How many brokers may leave for repairs: at least one, and fewer if there are many subscriptions."""
    return max(1, MOST_REPAIRED // max(1, plan.interest.subscription_count))


def site_failures(plan: Plan, live: Live, load: NDArray[np.int64]) -> dict[str, Any] | None:
    """The links that maintenance adds if all brokers of a site leave, for the sites with the highest load.

    Numbers of sites are those of the record's list. None if no broker has a site.
    """
    names = site_names(plan)
    if not names or not any(names):
        return None
    labels = sorted(set(names))
    site_of = np.array([labels.index(name) for name in names])
    sizes = np.bincount(site_of, minlength=len(labels))
    order = np.argsort(-np.bincount(site_of, load, len(labels)), kind="stable")
    leaving = min(MOST_LEAVING, _most_leaving(plan))
    heaviest = order[np.cumsum(sizes[order]) <= leaving][:MOST_SITES]
    chosen = [site for site in np.sort(heaviest).tolist() if labels[site]]
    added = []
    with stage("failures of sites", len(chosen)) as done:
        for i, site in enumerate(chosen):
            copy = deepcopy(live)
            gone = np.flatnonzero(site_of == site).tolist()
            before = set(map(tuple, copy.edges.tolist()))
            copy.apply([(i, "leave", broker, ()) for i, broker in enumerate(gone)])
            added.append([list(edge) for edge in copy.edges.tolist() if tuple(edge) not in before])
            done(i + 1)
    return {"sites": chosen, "added": added}


def positions(plan: Plan) -> dict[str, Any]:
    """The position of each broker: `kind` is "map" (x east, y north, in degrees), "plane", or "none".

    Degrees come from the columns `lat` and `lon` of the nodes, else from sites named like cloud regions.
    On a map, brokers without a position have None.

    Examples:
        >>> import broadloom as bl
        >>> import pyarrow as pa
        >>> nodes = pa.table({"node": ["0", "1"], "lat": [48.9, None], "lon": [2.4, None]})
        >>> interest = bl.Interest.from_lists([[0], [0]])
        >>> overlay = bl.Overlay.from_edges(2, [(0, 1)])
        >>> positions(Plan(interest, bl.Weights.uniform(2), overlay, "", nodes=nodes))
        {'kind': 'map', 'x': [2.4, None], 'y': [48.9, None]}
    """
    degrees = map_positions(plan)
    degrees[~np.all(np.abs(degrees) <= (90, 180), axis=1)] = np.nan
    if np.isfinite(degrees).any():
        return {"kind": "map", "x": short(degrees[:, 1]), "y": short(degrees[:, 0])}
    plane = plane_positions(plan)
    if plane is not None:
        return {"kind": "plane", "x": short(plane[:, 0]), "y": short(plane[:, 1])}
    return {"kind": "none"}


def with_positions_of(plan: Plan, others: Iterable[Plan]) -> Plan:
    """The plan, with the positions of another plan for brokers of the same name if it has none itself.

    Then a plan with a broker that has just joined is shown on the same map as the plan before.

    Examples:
        >>> import broadloom as bl
        >>> import pyarrow as pa
        >>> nodes = pa.table({"node": ["0", "1"], "lat": [48.9, 50.1], "lon": [2.4, 8.7]})
        >>> before, after = (bl.link(bl.Interest.from_lists([[0]] * n), algorithm="gm") for n in (2, 3))
        >>> positions(with_positions_of(after, [replace(before, nodes=nodes)]))
        {'kind': 'map', 'x': [2.4, 8.7, None], 'y': [48.9, 50.1, None]}
    """
    import pyarrow as pa

    on_map = next((other for other in others if positions(other)["kind"] == "map"), None)
    if on_map is None or on_map.nodes is None or positions(plan)["kind"] != "none":
        return plan
    row_of = {name: row for row, name in enumerate(on_map.interest.node_ids)}
    rows = pa.array([row_of.get(name) for name in plan.interest.node_ids], pa.int64())
    nodes = on_map.nodes.take(rows)
    column = nodes.column_names.index("node")
    return replace(
        plan, nodes=nodes.set_column(column, "node", pa.array(plan.interest.node_ids, pa.string()))
    )

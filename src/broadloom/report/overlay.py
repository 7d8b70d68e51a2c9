"""An overlay plan as the page has it: links with their loads, topics with their diameters, weak points."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from broadloom import measures
from broadloom.measures.overlay_measures import LARGE_SEARCHES, LARGE_TOPIC
from broadloom.model import Interest
from broadloom.plans import Plan
from broadloom.progress import stage
from broadloom.report.certificate import certificate
from broadloom.report.failures import failures
from broadloom.report.numbers import short
from broadloom.report.places import places, site_names
from broadloom.storage import to_json_value

# A page has so many subscriptions at most, of the topics with the most subscribers; it says what it left out.
MOST_SUBSCRIPTIONS = 1_000_000
LEAST = "no overlay that connects every topic weighs"


def shown_topics(interest: Interest, most: int = MOST_SUBSCRIPTIONS) -> NDArray[np.int64]:
    """The topics that a page shows, ascending: those with the most subscribers, while there is room.

    Examples:
        >>> shown_topics(Interest.from_lists([[0, 1], [1], [1, 2]]), most=4)
        array([0, 1])
    """
    sizes = np.diff(interest.node_start)
    order = np.argsort(-sizes, kind="stable")
    return np.sort(order[np.cumsum(sizes[order]) <= most])


def interest_record(plan: Plan) -> dict[str, Any]:
    """Who wants what, and where everybody is."""
    interest = plan.interest
    topics = shown_topics(interest)
    members = [interest.nodes_of(int(topic)) for topic in topics]
    sites = site_names(plan)
    labels = sorted(set(sites or ()))
    number = {label: i for i, label in enumerate(labels)}
    return {
        "brokers": list(interest.node_ids),
        "sites": labels,
        "siteOf": [number[site] for site in sites or ()],
        "places": places(plan),
        "topics": [interest.topic_ids[topic] for topic in topics],
        "start": [0, *np.cumsum([len(one) for one in members], dtype=np.int64).tolist()],
        "members": np.concatenate([*members, np.empty(0, np.int32)]).tolist(),
        "topicsInAll": interest.topic_count,
        "subscriptionsInAll": interest.subscription_count,
    }


def overlay_record(plan: Plan, name: str, interest: int) -> dict[str, Any]:
    """A plan: its summary, measures, links, topics, bottlenecks, certificate and failures.

    Args:
        plan: the plan.
        name: what the page calls it.
        interest: the number of its interest's record.
    """
    given, overlay, weights = plan.interest, plan.overlay, plan.weights
    topics = shown_topics(given)
    exact = np.diff(given.node_start).max(initial=0) <= LARGE_TOPIC
    searches = None if exact else LARGE_SEARCHES
    with stage("loads and weak points"):
        loads = measures.link_loads(given, overlay, weights)
        weak = measures.weak_points(given, overlay)
        hops, lengths = (
            measures.topic_diameters(given, overlay, kind, topics, searches) for kind in (None, weights)
        )
        costs = measures.routing_costs(given, overlay, weights)[topics]
    busy = np.bincount(plan.edges.ravel(), np.repeat(loads, 2), minlength=given.node_count).astype(np.int64)
    return {
        "kind": "overlay",
        "name": name,
        "interest": interest,
        "summary": plan.summary(),
        "asked": _asked(plan),
        "metrics": to_json_value(plan.metrics()),
        "certificate": certificate(plan.total_weight, plan.lower_bound, plan.gap, LEAST),
        "weighted": not weights.is_uniform,
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
    } | failures(plan, busy)


def _asked(plan: Plan) -> dict[str, Any]:
    """What made the plan, without long lists such as all changes."""
    notes = {name: value for name, value in plan.notes.items() if not isinstance(value, (list, dict))}
    return {"algorithm": plan.algorithm, "seed": plan.seed} | dict(plan.options) | notes

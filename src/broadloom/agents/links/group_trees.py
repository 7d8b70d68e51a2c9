"""Groups of filters and their trees: checks, groups with topics in common, absent brokers, taking over."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from broadloom.agents.links.fleet_state import Filters, FleetState
from broadloom.agents.links.route_orders import AgentReport, Route
from broadloom.errors import InputError, InternalError
from broadloom.mqtt.topic_filters import covers, groups, is_wild

if TYPE_CHECKING:
    from broadloom.deployment import Hop

Hops = frozenset["Hop"]
VERSION_GAP = 1000  # a controller that takes over leaves out versions that the other one can have used


def without_brokers(hops: Hops, gone: Iterable[str]) -> Hops:
    """A tree without some brokers; the neighbours of an inner broker are joined at the first of them.

    Examples:
        >>> both = lambda *pairs: frozenset(hop for u, v in pairs for hop in ((u, v), (v, u)))
        >>> without_brokers(both("ab", "bc", "bd") | {("p", "b")}, "b") == both("ac", "ad") | {("p", "a")}
        True
    """
    for name in sorted(gone):
        near = sorted(end for start, end in hops if start == name and (end, name) in hops)
        feeders = [start for start, end in hops if end == name and (name, start) not in hops]
        hops = frozenset(hop for hop in hops if name not in hop)
        if near:
            hub = near[0]
            hops |= {hop for other in near[1:] for hop in ((hub, other), (other, hub))}
            hops |= {(feeder, hub) for feeder in feeders}
    return hops


def with_leaves(hops: Hops, away: Iterable[str]) -> Hops | None:
    """A tree in which brokers that are away are leaves, so that no message passes through them.

    Messages for them wait at a neighbour. None: no other broker receives messages of the tree.

    Examples:
        >>> both = lambda *pairs: frozenset(hop for u, v in pairs for hop in ((u, v), (v, u)))
        >>> with_leaves(both("ab", "bc", "bd"), "b") == both("ab", "ac", "ad")
        True
    """
    gone = {name for name in away if any(name in hop for hop in hops)}
    receiving = {end for _, end in hops}
    hubs = sorted(receiving - gone)
    if not hubs:
        return None
    leaves: set[Hop] = set()
    for name in gone:
        near = [hub for hub in hubs if (hub, name) in hops or (name, hub) in hops]
        hub = (near or hubs)[0]
        leaves.add((name, hub))
        if name in receiving:
            leaves.add((hub, name))
    feeders = {start for start, _ in hops} - receiving - gone
    core = without_brokers(hops, gone)
    lost = feeders - {start for start, _ in core}
    return core | leaves | {(name, hubs[0]) for name in lost}


def is_leaf(hops: Hops, broker: str) -> bool:
    """Whether a broker has one neighbour in a tree."""
    return len({one for hop in hops if broker in hop for one in hop}) == 2


def new_receivers(filters: Filters, hops: Hops, before: Iterable[Route]) -> frozenset[str]:
    """The brokers of a tree that have not received all its topics before: they need retained messages.

    Args:
        filters: the filters of the tree.
        hops: its hops.
        before: the routes that it replaces.

    Examples:
        >>> old = Route(1, ("a/1",), frozenset({("rome", "oslo"), ("oslo", "rome")}))
        >>> sorted(new_receivers(("a/1",), old.hops | {("oslo", "bern")}, [old]))
        ['bern']
        >>> sorted(new_receivers(("a/+",), old.hops, [old]))
        ['oslo', 'rome']
    """
    had = defaultdict[str, list[Filters]](list)
    for route in before:
        for broker in {end for _, end in route.hops}:
            had[broker].append(route.filters)
    known: dict[tuple[Filters, ...], bool] = {}
    found = set()
    for broker in {end for _, end in hops}:
        groups_had = tuple(had.get(broker, ()))
        if groups_had not in known:
            known[groups_had] = _covers_all({text for group in groups_had for text in group}, filters)
        if not known[groups_had]:
            found.add(broker)
    return frozenset(found)


def _covers_all(wide: set[str], filters: Iterable[str]) -> bool:
    wild = [text for text in wide if is_wild(text)]
    return all(text in wide or any(covers(one, text) for one in wild) for text in filters)


def group_key(filters: Iterable[str]) -> Filters:
    """The filters of a group in their one order."""
    return tuple(sorted(set(filters)))


def check_tree(filters: Filters, hops: Hops) -> None:
    """Raise unless the hops of a group are a tree."""
    neighbours = defaultdict[str, set[str]](set)
    for u, v in hops:
        neighbours[u].add(v)
        neighbours[v].add(u)
    todo = [min(neighbours)]
    seen = set(todo)
    for broker in todo:
        fresh = neighbours[broker] - seen
        seen |= fresh
        todo += fresh
    if len(seen) < len(neighbours):
        raise InputError(f"the hops of filter {filters[0]!r:.60} are not connected; give one tree")
    if sum(map(len, neighbours.values())) != 2 * (len(seen) - 1):
        u, v = _ring_edge(hops)
        raise InputError(f"the hops of filter {filters[0]!r:.60} have a ring at {u} and {v}; give a tree")


def check_trees(targets: Mapping[Filters, Hops], before: Mapping[Filters, Hops]) -> None:
    """Raise unless the hops of each group are a tree; those that are known from before are."""
    for filters, hops in targets.items():
        if hops and before.get(filters) is not hops:
            check_tree(filters, hops)


def _ring_edge(hops: Hops) -> Hop:
    """An edge that closes a ring, in hops that are not a tree."""
    component = {broker: {broker} for hop in hops for broker in hop}
    for u, v in sorted({(min(hop), max(hop)) for hop in hops}):
        if component[u] is component[v]:
            return u, v
        joined = component[u] | component[v]
        component.update(dict.fromkeys(joined, joined))
    raise InternalError("hops without a ring are not a tree")


def overlapping_groups(members: Iterable[Filters]) -> list[list[Filters]]:
    """Sets of groups that have topics in common, directly or by way of others."""
    listed = list(dict.fromkeys(members))
    group_of = groups(dict.fromkeys(text for filters in listed for text in filters))
    parent: dict[str, str] = {}

    def root(text: str) -> str:
        while parent.setdefault(text, text) != text:
            parent[text] = parent[parent[text]]
            text = parent[text]
        return text

    for filters in listed:
        first = root(group_of[filters[0]])
        for text in filters:
            parent[root(group_of[text])] = first
    found = defaultdict[str, list[Filters]](list)
    for filters in listed:
        found[root(group_of[filters[0]])].append(filters)
    return list(found.values())


def adoption_record(state: FleetState, report: AgentReport, doubtful: set[int]) -> dict[str, Any]:
    """The record by which a controller takes over the routes of an agent of another controller.

    Args:
        state: the state of the controller.
        report: the report of the agent, whose orders are newer than the journal.
        doubtful: the routes of the journal that no such agent has confirmed. If the agent should have one and
            does not, the other controller has dropped it.
    """
    listed = report.routes or ()
    dropped = [number for number in sorted(doubtful) if report.broker in state.routes[number].brokers()]
    routes = {number: route for number, route in state.routes.items() if number not in dropped}
    for route in listed:
        mine = routes.get(route.number)
        if mine is not None and (mine.filters, mine.hops) != (route.filters, route.hops):
            route, mine = replace(route, number=max(*state.routes, *routes, state.next_number) + 1), None
        if route.since is not None and (mine is None or mine.until is None):
            routes[route.number] = route
    _end_overlapped(routes)
    used = [report.published, report.version, *(route.until or route.since or 0 for route in listed)]
    return {
        "dropped": dropped,
        "routes": [route.to_json() for number, route in routes.items() if route != state.routes.get(number)],
        "version": max(state.version, max(used) + VERSION_GAP),
        "versions": {report.broker: report.published},
        "round": VERSION_GAP * (report.epoch.number + 1),
        "offset": max(state.offset, report.orders),
    }


def _end_overlapped(routes: dict[int, Route]) -> None:
    """Of routes in use that have topics in common, end all but the newest: an agent has missed a switch."""
    in_use = [route for route in routes.values() if route.since is not None and route.until is None]
    by_filters = defaultdict[Filters, list[Route]](list)
    for route in in_use:
        by_filters[group_key(route.filters)].append(route)
    for members in overlapping_groups(by_filters):
        same = sorted(
            (route for filters in members for route in by_filters[filters]), key=lambda one: one.since or 0
        )
        newest = same[-1].since or 0
        for route in same:
            if route.since != newest:
                routes[route.number] = replace(route, until=newest - 1)

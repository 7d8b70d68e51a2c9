"""Changes of trees: the target hops of a plan, and the single steps that lead there.

No step disconnects a topic's tree or closes an unguarded ring. An edge of the new tree that joins two parts
is added. An edge that would close a ring replaces an edge of that ring which the new tree does not have: a
guarded swap. So a broker that leaves becomes a leaf first, and is dropped last. Between trees of the same
brokers there is one swap per edge that only the new tree has.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from broadloom.deployment import Hop, Publication, Tree, plan_trees
from broadloom.errors import InputError, InternalError
from broadloom.mqtt.reserved_topics import CONTROL_ROOT
from broadloom.mqtt.topic_filters import is_valid_filter
from broadloom.plans import Plan

Filters = tuple[str, ...]
# Prefixes of the topics that no link carries: a broker's internal topics, and control topics.
NEVER_CARRIED = ("$", f"{CONTROL_ROOT}/")
Hops = frozenset[Hop]


def target_hops(
    plan: Plan,
    sent: Sequence[Publication] | None = None,
    before: Mapping[Filters, Hops] | None = None,
    least: str = "latency",
    slack: float = 0.1,
) -> dict[Filters, Hops]:
    """The hops that each group of filters should have.

    A group with links keeps those that the plan still has; the others come from the best tree.

    Args:
        plan: the plan.
        sent: the publications, for trees by traffic; None: those of the plan.
        before: the present hops of each group.
        least: trees of least "latency" or "weight".
        slack: as for `plan_trees`.

    Raises:
        InputError: the plan does not connect a group, filters of different trees would have to be joined or
            separated, or a filter is not valid in MQTT.

    Examples:
        >>> import broadloom as bl
        >>> plan = bl.link(bl.Interest.from_lists([["x"], ["x"]]), algorithm="gm")
        >>> sorted(target_hops(plan)["x",])
        [('0', '1'), ('1', '0')]
    """
    known = before or {}
    names = plan.interest.node_ids
    links = {_named(edge, names) for edge in plan.edges.tolist()}
    found = {}
    for tree in plan_trees(plan, sent, least, slack):
        _check(tree.filters)
        _check_together(tree.filters, known)
        found[tree.filters] = _nearest(tree, names, links, known.get(tree.filters, frozenset()))
    return found


def _nearest(tree: Tree, names: Sequence[str], links: set[Hop], now: Hops) -> Hops:
    """The hops of a tree, or of a similar tree with as many present hops as possible."""
    best = {_named(edge, names) for edge in tree.edges}
    members = {broker for edge in best for broker in edge}
    old = {edge for edge in edges(now) & links if members.issuperset(edge)}
    chosen = set[Hop]()
    for edge in (*sorted(old), *sorted(best - old)):
        if path_between(chosen, *edge) is None:
            chosen.add(edge)
    hops = {hop for u, v in chosen for hop in ((u, v), (v, u))}
    for leaf, receiver in tree.leaves:
        receivers = [stop for start, stop in now if start == names[leaf] and stop in members]
        hops.add((names[leaf], min(receivers, default=names[receiver])))
    return frozenset(hops)


def _check(filters: Filters) -> None:
    """Refuse filters that are not valid in MQTT, and filters of topics that no link carries."""
    for text in filters:
        if text.startswith(NEVER_CARRIED) or not is_valid_filter(text):
            raise InputError(f"{text!r:.80} is not a filter that a link can carry; remove it from the plan")


def _check_together(filters: Filters, known: Mapping[Filters, Hops]) -> None:
    """Refuse a group that would join or split present groups."""
    if filters in known:
        return
    other = next((group for group in known if set(group) & set(filters) and known[group]), None)
    if other is not None:
        raise InputError(
            f"filters {_listed(other)} become {_listed(filters)}, which can match one topic and need one "
            "tree; this cannot change live: take the links down (--down) and start again"
        )


def _listed(filters: Iterable[str]) -> str:
    return " ".join(repr(text) for text in filters)


def _named(edge: Sequence[int], names: Sequence[str]) -> Hop:
    u, v = names[edge[0]], names[edge[1]]
    return min(u, v), max(u, v)


class Step(NamedTuple):
    """Hops to add and hops to drop; with both, it is a guarded swap of two edges."""

    add: Hops = frozenset()
    drop: Hops = frozenset()


def edge_of(hop: Hop) -> Hop:
    """The edge of a hop: its ends, ascending."""
    return min(hop), max(hop)


def edges(hops: Iterable[Hop]) -> set[Hop]:
    """The edges of hops."""
    return {edge_of(hop) for hop in hops}


def next_step(now: Hops, target: Hops) -> Step | None:
    """The next step from the present hops to the target; None: there is nothing to do.

    Examples:
        >>> both = lambda *pairs: frozenset(hop for u, v in pairs for hop in ((u, v), (v, u)))
        >>> now, target = both("ab", "bc"), both("ac")
        >>> while step := next_step(now, target):
        ...     print(sorted(edges(step.add)), sorted(edges(step.drop)))
        ...     now = now - step.drop | step.add
        [('a', 'c')] [('a', 'b')]
        [] [('b', 'c')]
    """
    present = edges(now)
    wanted = edges(target)
    if wider := {hop for hop in target - now if edge_of(hop) in present}:
        return Step(add=frozenset(wider))
    if joins := _joins(now, target):
        return Step(add=joins)
    for edge in sorted(wanted - present):
        ring = path_between(present, *edge)
        if ring is None:
            raise InternalError(f"edge {edge} does not close a ring; please report this")
        old = next(other for other in ring if other not in wanted)
        dropped = {hop for hop in now if edge_of(hop) == old}
        return Step(_new_hops(edge, present - {old}, target), frozenset(dropped))
    return Step(drop=now - target) if now - target else None


def _joins(now: Hops, target: Hops) -> Hops:
    """Hops of the new edges that close no ring, together with the present edges."""
    present = edges(now)
    found = set[Hop]()
    for edge in sorted(edges(target) - present):
        if path_between(present, *edge) is None:
            found |= _new_hops(edge, present, target)
            present.add(edge)
    return frozenset(found)


def _new_hops(edge: Hop, others: set[Hop], target: Hops) -> Hops:
    """The hops of a new edge: those of the target, or both while both ends have other edges."""
    u, v = edge
    if all(any(end in other for other in others) for end in edge):
        return frozenset(((u, v), (v, u)))
    return frozenset(hop for hop in ((u, v), (v, u)) if hop in target)


def path_between(links: Iterable[Hop], start: str, end: str) -> list[Hop] | None:
    """The edges of the path between two brokers of a forest; None: there is no path."""
    near = defaultdict[str, list[Hop]](list)
    for edge in links:
        for one in edge:
            near[one].append(edge)
    todo: list[tuple[str, list[Hop]]] = [(start, [])]
    for here, path in todo:
        if here == end:
            return path
        onward = [edge for edge in near[here] if not path or edge != path[-1]]
        todo += [(edge[edge[0] == here], [*path, edge]) for edge in onward]
    return None


def brokers_reaching(hops: Iterable[Hop], end: str) -> Iterator[str]:
    """The brokers whose messages reach a broker, including itself."""
    before = defaultdict[str, list[str]](list)
    for start, stop in hops:
        before[stop].append(start)
    seen, todo = {end}, [end]
    for here in todo:
        yield here
        fresh = [one for one in before[here] if one not in seen]
        seen.update(fresh)
        todo += fresh

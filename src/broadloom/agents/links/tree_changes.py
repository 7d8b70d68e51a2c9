"""The hops of every group of filters in a plan, changed as little as can be from those that there are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from broadloom.deployment.deployment_inputs import Publication
from broadloom.deployment.trees import Tree, plan_trees
from broadloom.deployment.wiring import Hop
from broadloom.errors import InputError
from broadloom.mqtt.reserved_topics import CONTROL_ROOT
from broadloom.mqtt.topic_filters import is_valid_filter
from broadloom.plans import Plan

Filters = tuple[str, ...]
# How topics begin that no link carries: a broker's own, and those by which clients are moved at one broker.
KEPT_BACK = ("$", f"{CONTROL_ROOT}/")
Hops = frozenset[Hop]


def target_hops(
    plan: Plan,
    sent: Sequence[Publication] = (),
    before: Mapping[Filters, Hops] | None = None,
    least: str = "latency",
    slack: float = 0.1,
) -> dict[Filters, Hops]:
    """Where each group's messages shall go.

    A group that has links already keeps those that the plan still has; others come from the best tree.

    Args:
        plan: the plan.
        sent: who publishes what.
        before: the hops of each group as they are.
        least: trees of least "latency" or "weight".
        slack: as for `plan_trees`.

    Raises:
        InputError: the plan does not connect a group, or filters that can match one topic would have to come
            together from different trees, or part, or a topic is none of MQTT.

    Examples:
        >>> import broadloom as bl
        >>> plan = bl.link(bl.Interest.from_lists([["x"], ["x"]]), algorithm="gm")
        >>> sorted(target_hops(plan)["x",])
        [('0', '1'), ('1', '0')]
    """
    known, names = before or {}, plan.interest.node_ids
    links = {_named(edge, names) for edge in plan.edges.tolist()}
    found = {}
    for tree in plan_trees(plan, sent, least, slack):
        _check(tree.filters)
        _check_together(tree.filters, known)
        found[tree.filters] = _near(tree, names, links, known.get(tree.filters, frozenset()))
    return found


def _near(tree: Tree, names: Sequence[str], links: set[Hop], now: Hops) -> Hops:
    """The hops of a tree, or of one like it with as many of the old ones as can be."""
    best = {_named(edge, names) for edge in tree.edges}
    members = {broker for edge in best for broker in edge}
    old = {edge for edge in edges(now) & links if members.issuperset(edge)}
    chosen = set[Hop]()
    for edge in (*sorted(old), *sorted(best - old)):
        if path_between(chosen, *edge) is None:
            chosen.add(edge)
    hops = {hop for u, v in chosen for hop in ((u, v), (v, u))}
    for leaf, taker in tree.leaves:
        takers = [stop for start, stop in now if start == names[leaf] and stop in members]
        hops.add((names[leaf], min(takers, default=names[taker])))
    return frozenset(hops)


def _check(filters: Filters) -> None:
    """Links carry what clients may subscribe to, and nothing of a broker's or an agent's own."""
    for text in filters:
        if text.startswith(KEPT_BACK) or not is_valid_filter(text):
            raise InputError(f"{text!r:.80} is no filter that a link can carry; leave it out of the plan")


def _check_together(filters: Filters, known: Mapping[Filters, Hops]) -> None:
    """Filters of one group are of one group today, too."""
    if filters in known:
        return
    other = next((group for group in known if set(group) & set(filters) and known[group]), None)
    if other is not None:
        raise InputError(
            f"filters {_told(other)} become {_told(filters)}, which can match one topic and need one tree; "
            "that is no live change: take the links down (--down) and start anew"
        )


def _told(filters: Iterable[str]) -> str:
    return " ".join(repr(text) for text in filters)


def _named(edge: Sequence[int], names: Sequence[str]) -> Hop:
    u, v = names[edge[0]], names[edge[1]]
    return min(u, v), max(u, v)


class Step(NamedTuple):
    """A step: hops that come and hops that go. With both it is a guarded swap of two edges."""

    add: Hops = frozenset()
    drop: Hops = frozenset()


def edge_of(hop: Hop) -> Hop:
    """The edge of a hop: its ends, ascending."""
    return min(hop), max(hop)


def edges(hops: Iterable[Hop]) -> set[Hop]:
    """The edges of hops."""
    return {edge_of(hop) for hop in hops}


def next_step(now: Hops, target: Hops) -> Step | None:
    """The next step from the hops that there are to those that shall be; None: there is nothing to do.

    Examples:
        >>> both = lambda *pairs: frozenset(hop for u, v in pairs for hop in ((u, v), (v, u)))
        >>> now, target = both("ab", "bc"), both("ac")
        >>> while step := next_step(now, target):
        ...     print(sorted(edges(step.add)), sorted(edges(step.drop)))
        ...     now = now - step.drop | step.add
        [('a', 'c')] [('a', 'b')]
        [] [('b', 'c')]
    """
    kept, wanted = edges(now), edges(target)
    if wider := {hop for hop in target - now if edge_of(hop) in kept}:
        return Step(add=frozenset(wider))
    if joins := _joins(now, target):
        return Step(add=joins)
    for edge in sorted(wanted - kept):
        ring = path_between(kept, *edge)
        assert ring is not None
        old = next(one for one in ring if one not in wanted)
        gone = {hop for hop in now if edge_of(hop) == old}
        return Step(_new_hops(edge, kept - {old}, target), frozenset(gone))
    return Step(drop=now - target) if now - target else None


def _joins(now: Hops, target: Hops) -> Hops:
    """Hops of the new edges that close no ring, with those there are and with each other."""
    kept, found = edges(now), set[Hop]()
    for edge in sorted(edges(target) - kept):
        if path_between(kept, *edge) is None:
            found |= _new_hops(edge, kept, target)
            kept.add(edge)
    return frozenset(found)


def _new_hops(edge: Hop, others: set[Hop], target: Hops) -> Hops:
    """How a new edge carries: as it shall, but both ways while there is more behind each of its ends."""
    u, v = edge
    if all(any(end in other for other in others) for end in edge):
        return frozenset(((u, v), (v, u)))
    return frozenset(hop for hop in ((u, v), (v, u)) if hop in target)


def path_between(links: Iterable[Hop], start: str, end: str) -> list[Hop] | None:
    """The edges between two brokers of a forest, or None."""
    near = defaultdict[str, list[Hop]](list)
    for edge in links:
        for one in edge:
            near[one].append(edge)
    todo: list[tuple[str, list[Hop]]] = [(start, [])]
    for here, gone in todo:
        if here == end:
            return gone
        onward = [edge for edge in near[here] if not gone or edge != gone[-1]]
        todo += [(edge[edge[0] == here], [*gone, edge]) for edge in onward]
    return None


def brokers_reaching(hops: Iterable[Hop], end: str) -> Iterator[str]:
    """The brokers whose messages come to one, itself among them."""
    before = defaultdict[str, list[str]](list)
    for start, stop in hops:
        before[stop].append(start)
    seen, todo = {end}, [end]
    for here in todo:
        yield here
        fresh = [one for one in before[here] if one not in seen]
        seen.update(fresh)
        todo += fresh

"""From one tree of a topic to another by single steps, none of which cuts it or closes a ring unguarded.

An edge of the new tree that joins two parts is added. One that closes a ring takes the place of an edge of
that ring which the new tree does not have: a guarded swap. So a broker that leaves becomes a leaf first, and
is dropped last. Between trees of the same brokers it takes a swap for each edge that only the new one has.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from broadloom.deployment.wiring import Hop

Hops = frozenset[Hop]


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
        ring = way(kept, *edge)
        assert ring is not None
        old = next(one for one in ring if one not in wanted)
        gone = {hop for hop in now if edge_of(hop) == old}
        return Step(_new_hops(edge, kept - {old}, target), frozenset(gone))
    return Step(drop=now - target) if now - target else None


def _joins(now: Hops, target: Hops) -> Hops:
    """Hops of the new edges that close no ring, with those there are and with each other."""
    kept, found = edges(now), set[Hop]()
    for edge in sorted(edges(target) - kept):
        if way(kept, *edge) is None:
            found |= _new_hops(edge, kept, target)
            kept.add(edge)
    return frozenset(found)


def _new_hops(edge: Hop, others: set[Hop], target: Hops) -> Hops:
    """How a new edge carries: as it shall, but both ways while there is more behind each of its ends."""
    u, v = edge
    if all(any(end in other for other in others) for end in edge):
        return frozenset(((u, v), (v, u)))
    return frozenset(hop for hop in ((u, v), (v, u)) if hop in target)


def way(links: Iterable[Hop], start: str, end: str) -> list[Hop] | None:
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


def reaching(hops: Iterable[Hop], end: str) -> Iterator[str]:
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

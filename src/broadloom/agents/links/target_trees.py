"""Trees that a fleet should have: the directed hops of each group of filters of a plan."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from broadloom.deployment import Hop, Publication, Tree, plan_trees
from broadloom.errors import InputError
from broadloom.mqtt.reserved_topics import CONTROL_ROOT
from broadloom.mqtt.topic_filters import is_valid_filter

if TYPE_CHECKING:
    from broadloom.plans import Plan

Filters = tuple[str, ...]
Hops = frozenset[Hop]
# Prefixes of the topics that no link carries: a broker's internal topics, and control topics.
NEVER_CARRIED = ("$", f"{CONTROL_ROOT}/")


def target_trees(
    plan: Plan,
    sent: Sequence[Publication] | None = None,
    before: Mapping[Filters, Hops] | None = None,
    least: str = "latency",
    slack: float = 0.1,
) -> dict[Filters, Hops]:
    """The directed hops that each group of filters should have.

    A group keeps those of its present links that the plan still has, also if it is merged from several groups
    or split from one; the others come from the best tree.

    Args:
        plan: the plan.
        sent: the publications, for trees by traffic; None: those of the plan.
        before: the present hops of each group.
        least: trees of least "latency" or "weight".
        slack: as for `plan_trees`.

    Raises:
        InputError: the plan does not connect a group, or a filter is not one that links can carry.

    Examples:
        >>> import broadloom as bl
        >>> plan = bl.link(bl.Interest.from_lists([["x"], ["x"]]), algorithm="gm")
        >>> sorted(target_trees(plan)["x",])
        [('0', '1'), ('1', '0')]
    """
    names = plan.interest.node_ids
    links = {_named(edge, names) for edge in plan.edges.tolist()}
    present = defaultdict[str, set[Hop]](set)
    for filters, hops in (before or {}).items():
        for text in filters:
            present[text] |= hops
    found = {}
    for tree in plan_trees(plan, sent, least, slack):
        for text in tree.filters:
            if text.startswith(NEVER_CARRIED) or not is_valid_filter(text):
                raise InputError(
                    f"{text!r:.80} is not a filter that a link can carry; remove it from the plan"
                )
        now = set[Hop]().union(*(present.get(text, ()) for text in tree.filters))
        found[tree.filters] = _nearest(tree, names, links, now)
    return {filters: hops for filters, hops in found.items() if hops}


def _nearest(tree: Tree, names: Sequence[str], links: set[Hop], now: set[Hop]) -> Hops:
    """The hops of a tree, or of a similar tree with as many present hops as possible."""
    best = {_named(edge, names) for edge in tree.edges}
    members = {broker for edge in best for broker in edge}
    two_way = {(min(hop), max(hop)) for hop in now if hop[::-1] in now}
    old = {edge for edge in two_way & links if members.issuperset(edge)}
    hops = {hop for u, v in _spanning((*sorted(old), *sorted(best - old))) for hop in ((u, v), (v, u))}
    members |= {names[receiver] for _, receiver in tree.leaves}
    for leaf, receiver in tree.leaves:
        receivers = [end for start, end in now if start == names[leaf] and end in members]
        hops.add((names[leaf], min(receivers, default=names[receiver])))
    return frozenset(hops)


def _spanning(edges: Iterable[Hop]) -> list[Hop]:
    """The edges that close no ring with those before them."""
    parent: dict[str, str] = {}

    def root(name: str) -> str:
        while parent.setdefault(name, name) != name:
            name = parent[name] = parent[parent[name]]
        return name

    chosen = []
    for u, v in edges:
        one, other = root(u), root(v)
        if one != other:
            parent[one] = other
            chosen.append((u, v))
    return chosen


def _named(edge: Sequence[int], names: Sequence[str]) -> Hop:
    u, v = names[edge[0]], names[edge[1]]
    return min(u, v), max(u, v)

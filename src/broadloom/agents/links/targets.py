"""The hops of every group of filters in a plan, changed as little as can be from those that there are."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from broadloom.agents.links.steps import Hops, edges, way
from broadloom.deployment.deployment_inputs import Publication
from broadloom.deployment.trees import Tree, plan_trees
from broadloom.deployment.wiring import Hop
from broadloom.errors import InputError
from broadloom.mqtt.reserved_topics import ROOT
from broadloom.mqtt.topic_filters import VALID
from broadloom.plans import Plan

Filters = tuple[str, ...]
LONGEST_BYTES = 65_535  # of a text in MQTT
# How topics begin that no link carries: a broker's own, and those by which clients are moved at one broker.
KEPT_BACK = ("$", f"{ROOT}/")


def targets(
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
        >>> sorted(targets(plan)["x",])
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
        if way(chosen, *edge) is None:
            chosen.add(edge)
    hops = {hop for u, v in chosen for hop in ((u, v), (v, u))}
    for leaf, taker in tree.leaves:
        takers = [stop for start, stop in now if start == names[leaf] and stop in members]
        hops.add((names[leaf], min(takers, default=names[taker])))
    return frozenset(hops)


def _check(filters: Filters) -> None:
    """Links carry what clients may subscribe to, and nothing of a broker's or an agent's own."""
    for text in filters:
        if text.startswith(KEPT_BACK) or not re.search(VALID, text) or len(text.encode()) > LONGEST_BYTES:
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

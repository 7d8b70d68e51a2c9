"""Trees that a fleet should have: the directed hops of each group of filters of a plan."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from broadloom.deployment import Hop, filter_groups, plan_trees
from broadloom.deployment.one_way_links import wanted_groups
from broadloom.errors import InputError
from broadloom.model import ANYWHERE, OBSERVED, Interest, Publishers
from broadloom.mqtt.reserved_topics import CONTROL_ROOT
from broadloom.mqtt.topic_filters import FilterIndex, is_valid_filter

if TYPE_CHECKING:
    from broadloom.plans import Plan

Filters = tuple[str, ...]
Hops = frozenset[Hop]
# Prefixes of the topics that no link carries: a broker's internal topics, and control topics.
NEVER_CARRIED = ("$", f"{CONTROL_ROOT}/")
MOST_GROUPS = 256  # that are planned together: a call of `plan_trees` takes quadratic time


class FittedTrees:
    """Trees that are known to fit a plan, so that the next call need not check them again.

    A tree fits as long as its members, the brokers that only publish, and the plan's links are the same.
    """

    def __init__(self) -> None:
        self._links: set[Hop] = set()
        self._known: dict[Filters, tuple[Hops, set[str], set[str]]] = {}

    def set_links(self, links: set[Hop]) -> None:
        """Begin a plan with some links."""
        gone = self._links - links
        if gone:
            self._known = {key: one for key, one in self._known.items() if gone.isdisjoint(one[0])}
        self._links = links

    def fits(self, filters: Filters, hops: Hops, members: set[str], leaves: set[str]) -> bool:
        """Whether a tree fits; it is remembered if it does."""
        if not hops:
            return False
        known = self._known.get(filters)
        if known is not None and known[0] is hops and known[1] == members and known[2] == leaves:
            return True
        if not _fits(hops, members, leaves, self._links):
            return False
        self._known[filters] = (hops, members, leaves)
        return True


def target_trees(
    plan: Plan,
    before: Mapping[Filters, Hops] | None = None,
    least: str = "latency",
    fitted: FittedTrees | None = None,
) -> dict[Filters, Hops]:
    """The directed hops that each group of filters should have.

    A tree that still fits stays as it is. Another one keeps those of its present links that the plan still
    has, also if its group is merged from several groups or split from one; the others come from the best
    tree. So a change of one group changes no other group.

    A broker that only publishes has one hop, to a broker to which it has a link anyway, if there is one:
    every other broker, or with observed publishers those that are known to publish topics of the group.

    Args:
        plan: the plan; its publishers say where clients publish.
        before: the present hops of each group.
        least: trees of least "latency" or "weight".
        fitted: what is known of earlier trees, and will be known of these.

    Raises:
        InputError: the plan does not connect a group, or a filter is not one that links can carry.

    Examples:
        >>> import broadloom as bl
        >>> plan = bl.link(bl.Interest.from_lists([["x"], ["x"], []]), algorithm="gm")
        >>> sorted(target_trees(plan)["x",])
        [('0', '1'), ('1', '0'), ('2', '0')]
    """
    names = plan.interest.node_ids
    grouped = filter_groups(plan.interest)
    wanted = wanted_groups(plan.interest, grouped)
    members = _members(grouped, wanted, names)
    known = {_sorted(filters): hops for filters, hops in (before or {}).items()}
    for filters in members:
        for text in () if filters in known else filters:
            if text.startswith(NEVER_CARRIED) or not is_valid_filter(text):
                raise InputError(
                    f"{text!r:.80} is not a filter that a link can carry; remove it from the plan"
                )
    leaves = _publishing(plan, members)
    links = {_named(edge, names) for edge in plan.edges.tolist()}
    fitted = FittedTrees() if fitted is None else fitted
    fitted.set_links(links)
    found = {}
    for filters, brokers in members.items():
        hops = known.get(_sorted(filters), frozenset[Hop]())
        if fitted.fits(filters, hops, brokers, leaves[filters]):
            found[filters] = hops
    new = [filters for filters in members if filters not in found]
    texts = {text for filters in new for text in filters}
    present = defaultdict[str, set[Hop]](set)
    for filters, hops in known.items():
        for text in texts.intersection(filters):
            present[text] |= hops
    near = LeafLinks(plan, links, found.values() if new else ())
    for filters, edges in zip(new, _best_edges(plan, new, members, least), strict=True):
        now = set[Hop]().union(*(present.get(text, ()) for text in filters))
        inner = _nearest(edges, links, now, members[filters])
        found[filters] = frozenset(inner | near.leaf_hops(leaves[filters], members[filters], now))
    return {filters: found[filters] for filters in members if found[filters]}


def _members(grouped: Sequence[Filters], wanted: np.ndarray, names: Sequence[str]) -> dict[Filters, set[str]]:
    """The brokers that want each group, of the groups that some broker wants."""
    groups, nodes = np.nonzero(wanted.T)
    starts = np.searchsorted(groups, np.arange(len(grouped) + 1)).tolist()
    listed = [names[node] for node in nodes.tolist()]
    return {
        filters: set(listed[start:end])
        for filters, start, end in zip(grouped, starts, starts[1:], strict=False)
        if end > start
    }


def _sorted(filters: Filters) -> Filters:
    return filters if len(filters) == 1 else tuple(sorted(filters))


def _publishing(plan: Plan, members: Mapping[Filters, set[str]]) -> dict[Filters, set[str]]:
    """The brokers that can publish topics of each group and do not want it."""
    names = set(plan.interest.node_ids)
    if plan.publishers.mode == ANYWHERE:
        others: dict[frozenset[str], set[str]] = {}
        found = {}
        for filters, brokers in members.items():
            key = frozenset(brokers)
            if key not in others:
                others[key] = names - brokers
            found[filters] = others[key]
        return found
    group_of = {text: filters for filters in members for text in filters}
    index = FilterIndex(group_of)
    found = {filters: set() for filters in members}
    for broker, topic, _ in plan.publishers.observed:
        for filters in {group_of[text] for text in index.meeting(topic)}:
            if broker in names and broker not in members[filters]:
                found[filters].add(broker)
    return found


def _fits(hops: Hops, members: set[str], leaves: set[str], links: set[Hop]) -> bool:
    """Whether hops are a tree of these members over links of the plan, with one hop from each leaf."""
    if len(hops) != 2 * (len(members) - 1) + len(leaves):
        return False
    edges = {hop for hop in hops if hop[0] < hop[1] and hop[::-1] in hops}
    if len(edges) != len(members) - 1 or not edges <= links:
        return False
    one_way = [(start, end) for start, end in hops if (end, start) not in hops]
    if {start for start, _ in one_way} != leaves or not all(end in members for _, end in one_way):
        return False
    ends = {broker for edge in edges for broker in edge}
    return len(_spanning(edges)) == len(edges) and (ends == members or len(members) == 1)


def _best_edges(
    plan: Plan, new: Sequence[Filters], members: Mapping[Filters, set[str]], least: str
) -> list[set[Hop]]:
    """The edges of the best tree of each group; topics that the same brokers want share one computation."""
    names = plan.interest.node_ids
    has_rates = any(row.rate > 0 for row in plan.publishers.observed)
    keys = [
        frozenset(members[filters]) if len(filters) == 1 and not has_rates else filters for filters in new
    ]
    chosen = dict(zip(keys, new, strict=True))
    rows = [set[str]() for _ in names]
    for node in range(len(names)):
        rows[node].update(plan.interest.topic_ids[topic] for topic in plan.interest.topics_of(node))
    found: dict[str, set[Hop]] = {}
    groups = list(chosen.values())
    for start in range(0, len(groups), MOST_GROUPS):
        texts = {text for filters in groups[start : start + MOST_GROUPS] for text in filters}
        part = Interest.from_lists([sorted(row & texts) for row in rows], node_ids=names)
        publishers = Publishers(OBSERVED, plan.publishers.observed)
        for tree in plan_trees(replace(plan, interest=part, publishers=publishers), least=least):
            found[tree.filters[0]] = {_named(edge, names) for edge in tree.edges}
    first = {key: next(text for text in filters if text in found) for key, filters in chosen.items()}
    return [found[first[key]] for key in keys]


def _nearest(best: set[Hop], links: set[Hop], now: set[Hop], members: set[str]) -> set[Hop]:
    """The hops of a tree, or of a similar tree with as many present links as possible."""
    two_way = {hop for hop in now if hop[0] < hop[1] and hop[::-1] in now}
    old = {edge for edge in two_way & links if members.issuperset(edge)}
    chosen = _spanning((*sorted(old), *sorted(best - old)))
    return {hop for u, v in chosen for hop in ((u, v), (v, u))}


class LeafLinks:
    """Choice of the broker to which a publishing broker hands its messages."""

    def __init__(self, plan: Plan, links: set[Hop], trees: Iterable[Hops]) -> None:
        self._weights = plan.weights
        self._names = plan.interest.node_ids
        self._rows: dict[str, dict[str, float]] = {}  # weights from a broker to all others
        self._linked = defaultdict[str, set[str]](set)
        for start, end in {*links, *((v, u) for u, v in links)}.union(*set(trees)):
            self._linked[start].add(end)

    def leaf_hops(self, leaves: set[str], members: set[str], now: set[Hop]) -> set[Hop]:
        """One hop from each leaf to a member: the present one, over a link that exists, or the shortest."""
        found = set()
        present = defaultdict[str, list[str]](list)
        for start, end in now:
            if start in leaves and end in members:
                present[start].append(end)
        for leaf in sorted(leaves):
            ends = sorted(present.get(leaf) or self._linked[leaf] & members or members)
            end = ends[0] if len(ends) == 1 else min(ends, key=self._row(leaf).__getitem__)
            found.add((leaf, end))
            self._linked[leaf].add(end)
        return found

    def _row(self, leaf: str) -> dict[str, float]:
        row = self._rows.get(leaf)
        if row is None:
            others = [node for node, name in enumerate(self._names) if name != leaf]
            start = self._names.index(leaf)
            weights = np.asarray(self._weights.of(np.full(len(others), start), np.array(others))).tolist()
            row = self._rows[leaf] = {
                self._names[node]: weight for node, weight in zip(others, weights, strict=True)
            }
        return row


def _spanning(edges: Iterable[Hop]) -> list[Hop]:
    """The edges that close no ring with those before them."""
    parent: dict[str, str] = {}

    def root(name: str) -> str:
        while parent.setdefault(name, name) != name:
            parent[name] = parent[parent[name]]
            name = parent[name]
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

"""One tree a topic over the plan's links: the shortest ways from its publishers, or the least weight.

Filters that can match one topic must share a tree, since on two their messages would go round for ever: they
are a group, and a group has one tree. Brokers that publish a topic but do not want it hang on it by a leaf
link that carries one way only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import fsum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra

from broadloom.checks import check_number
from broadloom.deployment.deployment_inputs import Publication
from broadloom.errors import InputError
from broadloom.model import Interest
from broadloom.mqtt.topic_filters import FilterTree, covers, groups
from broadloom.plans import Plan

LEAST = ("latency", "weight")


class Tree(NamedTuple):
    """The way of a topic's messages.

    Attributes:
        filters: the topic, or all the filters of a group, in the plan's order.
        edges: the links between brokers that want it, pairs `u < v`, ascending.
        leaves: pairs of a broker that only publishes it and the one that takes it from there.
        rate: bytes a second of all publishers; 0 if unknown.
    """

    filters: tuple[str, ...]
    edges: tuple[tuple[int, int], ...]
    leaves: tuple[tuple[int, int], ...] = ()
    rate: float = 0.0


def plan_trees(
    plan: Plan, publications: Sequence[Publication] = (), least: str = "latency", slack: float = 0.1
) -> list[Tree]:
    """The tree of every topic of a plan that somebody wants, in the order of topics.

    With one publisher its tree of shortest ways is the best there is. For several, the best tree of shortest
    ways from any one broker is taken, which has at most twice the least possible delay. In a group of
    several filters the brokers of each one are kept together first, and the weight decides after that.

    Args:
        plan: the plan.
        publications: who publishes what; nothing: every broker that wants a topic may publish it.
        least: "latency", the delay from all publishers to all subscribers, or "weight", that of the tree.
        slack: where rates are known, how much more a tree may cost to relieve busy links; 0.1 is a tenth.

    Raises:
        InputError: the overlay does not connect all brokers that want a topic, or a group of filters.

    Examples:
        >>> import broadloom as bl
        >>> plan = bl.link(bl.Interest.from_lists([["x"], ["x", "y"], ["x", "y"]]), algorithm="gm")
        >>> plan_trees(plan)[0]
        Tree(filters=('x',), edges=((0, 1), (1, 2)), leaves=(), rate=0.0)
    """
    if least not in LEAST:
        raise InputError(f"trees of least {least!r}; choose {' or '.join(LEAST)}")
    check_number(slack, "slack")
    senders = _senders(plan.interest, publications)
    names = plan.interest.node_ids
    by_name = np.array(sorted(range(len(names)), key=names.__getitem__), np.int64)
    planned, leaves, trees = [], [], []
    for filters in filter_groups(plan.interest):
        group = _group(plan, filters, by_name)
        if len(group.members):
            leaves.append(_hand_over(plan, group, senders[filters[0]]))
            planned.append(_with_senders(group, senders[filters[0]], dict(leaves[-1]), least))
            trees.append(_need_tree(planned[-1]))
    if any(group.rate > 0 for group in planned):
        trees = balance(planned, trees, slack)
    return [
        Tree(group.filters, group.links(tree), leaf, group.rate)
        for group, tree, leaf in zip(planned, trees, leaves, strict=True)
    ]


def filter_groups(interest: Interest) -> list[tuple[str, ...]]:
    """The topics of a plan, those that can match one topic together, in the order of their first.

    Examples:
        >>> filter_groups(Interest.from_lists([["a/#", "b"], ["a/c"]]))
        [('a/#', 'a/c'), ('b',)]
    """
    named = defaultdict(list)
    for text, name in groups(interest.topic_ids).items():
        named[name].append(text)
    return [tuple(members) for members in named.values()]


def _senders(interest: Interest, publications: Sequence[Publication]) -> Mapping[str, dict[int, float]]:
    """The rate of each broker that publishes into a group, by the group's first filter."""
    first = {text: filters[0] for filters in filter_groups(interest) for text in filters}
    known, senders = FilterTree(interest.topic_ids), defaultdict[str, dict[int, float]](dict)
    for broker, topic, rate in publications:
        met = next(known.meeting(topic), None)  # all that match one topic are in one group
        if met is not None:
            rates = senders[first[met]]
            rates[broker] = rates.get(broker, 0.0) + rate
    return senders


def _group(plan: Plan, filters: tuple[str, ...], by_name: NDArray[np.int64]) -> FilterGroup:
    """The part of the overlay among the brokers that want one of the filters."""
    wanted = _wanted(plan.interest, filters)
    members = by_name[wanted[:, by_name].any(axis=0)]
    place = np.full(plan.interest.node_count, -1)
    place[members] = np.arange(len(members))
    ends = np.sort(place[plan.edges], axis=1)
    order = np.lexsort((ends[:, 1], ends[:, 0]))
    order = order[ends[order, 0] >= 0]
    u, v = plan.edges[order].T
    shared = (wanted[:, u] & wanted[:, v]).sum(axis=0)
    return FilterGroup(filters, members, ends[order], plan.edge_weights[order], shared, None, 0.0)


def _wanted(interest: Interest, filters: tuple[str, ...]) -> NDArray[np.bool_]:
    """Which broker wants which of the filters, by itself or by a wider one."""
    number_of = {text: topic for topic, text in enumerate(interest.topic_ids)}
    wanted = np.zeros((len(filters), interest.node_count), bool)
    for row, narrow in enumerate(filters):
        for wide in filters:
            if covers(wide, narrow):
                wanted[row, interest.nodes_of(number_of[wide])] = True
    return wanted


def _hand_over(plan: Plan, group: FilterGroup, senders: Mapping[int, float]) -> tuple[tuple[int, int], ...]:
    """Of each broker that only publishes: the nearest member, over a link of the plan if there is one."""
    leaves = []
    for broker in sorted(set(senders) - set(group.members.tolist())):
        linked = np.concatenate([plan.edges[plan.edges[:, 1 - end] == broker, end] for end in (0, 1)])
        near = group.members[np.isin(group.members, linked)]
        near = near if len(near) else group.members
        weights = plan.weights.of(np.full(len(near), broker), near)
        leaves.append((broker, int(near[np.argmin(weights)])))
    return tuple(leaves)


def _with_senders(
    group: FilterGroup, senders: Mapping[int, float], taker: Mapping[int, int], least: str
) -> FilterGroup:
    """The group with what each member sends, or takes from those that only publish."""
    rate = fsum(senders.values())  # the same in any order
    together = len(group.filters) > 1
    if least == "weight" or together:
        return group._replace(rate=rate)
    sent = np.zeros(len(group.members))
    for broker in sorted(senders):
        at = group.members == taker.get(broker, broker)
        sent[at] += senders[broker] if rate > 0 else 1.0
    return group._replace(rate=rate, sent=sent if senders else np.ones(len(sent)))


def _need_tree(group: FilterGroup) -> Edges:
    tree = best_tree(group)
    if tree is not None:
        return tree
    names = ", ".join(repr(text) for text in group.filters[:3])
    if len(group.filters) == 1:
        raise InputError(f"the plan does not connect topic {names}; link again, or `broadloom verify` it")
    raise InputError(
        f"filters {names} can match one topic, so they need one tree, but the plan does not connect the "
        f"{len(group.members)} brokers that want them; make them one topic (ingest with wildcards = 'group')"
    )


# Of a large topic so many roots are tried, the most central ones.
ROOTS = 64

Pair = tuple[int, int]
Edges = tuple[int, ...]  # the links of a tree, by their number in the group, ascending


class FilterGroup(NamedTuple):
    """A topic, or filters that can match one topic, and the links among the brokers that want it.

    Attributes:
        filters: the topic, or the filters.
        members: the brokers that want one of them, by name, so that ties do not hang on the plan's order.
        ends: the links, (m, 2), ends counted among the members.
        lengths: the weight of each link.
        shared: how many of the filters both ends of each link want.
        sent: how much each member sends, for a tree of least delay; None: the weight of the tree counts.
        rate: bytes a second of all who publish.
    """

    filters: tuple[str, ...]
    members: NDArray[np.int64]
    ends: NDArray[np.int64]
    lengths: NDArray[np.float64]
    shared: NDArray[np.int64]
    sent: NDArray[np.float64] | None
    rate: float

    def pairs(self) -> list[Pair]:
        """The ends of each link as a pair of brokers, ascending."""
        return [(min(u, v), max(u, v)) for u, v in self.members[self.ends].tolist()]

    def links(self, tree: Sequence[int]) -> tuple[Pair, ...]:
        """The links of a tree as pairs of brokers, ascending."""
        pairs = self.pairs()
        return tuple(sorted(pairs[edge] for edge in tree))

    def cost(self, tree: Sequence[int]) -> float:
        """What a tree costs: its weight, or the delay from all who send to all members, by what they send."""
        chosen = list(tree)
        if self.sent is None:
            return float(self.lengths[chosen].sum())
        return total_delay(self.ends[chosen], self.lengths[chosen], self.sent)


def best_tree(group: FilterGroup) -> Edges | None:
    """The tree of a group, or None if its links do not connect it."""
    if group.sent is None:
        return least_weight(group)
    distances = _distances(group)
    if np.isinf(distances).any():
        return None
    count = len(group.members)
    through = distances @ group.sent * count + group.sent.sum() * distances.sum(axis=1)
    roots = np.argsort(through, kind="stable")[:ROOTS]
    trees = [shortest_ways(group, distances[root], int(root)) for root in roots]
    return min(trees, key=lambda tree: (group.cost(tree), tree))


def least_weight(group: FilterGroup) -> Edges | None:
    """Kruskal's algorithm, links that share the most filters first; None if not all are connected.

    The spanning tree with the most sharing leaves each filter's brokers in the fewest parts: of `k` brokers
    in `c` parts the tree's links share that filter `k - c` times.
    """
    order = np.lexsort((group.ends[:, 1], group.ends[:, 0], group.lengths, -group.shared))
    parent, tree = list(range(len(group.members))), []
    for edge in order.tolist():
        a, b = (_root(parent, end) for end in group.ends[edge].tolist())
        if a != b:
            parent[a] = b
            tree.append(edge)
    return tuple(sorted(tree)) if len(tree) == len(group.members) - 1 else None


def shortest_ways(group: FilterGroup, distance: NDArray[np.float64], root: int) -> Edges:
    """The tree of shortest ways from a root; among equally short ones over the smallest broker.

    Every broker but the root hangs on a link that ends a shortest way: the sum is exactly the distance.
    """
    edges = np.tile(np.arange(len(group.ends)), 2)
    start, end = np.concatenate((group.ends, group.ends[:, ::-1])).T
    tight = np.flatnonzero(distance[start] + group.lengths[edges] == distance[end])
    order = tight[np.lexsort((start[tight], end[tight]))]
    hung, first = np.unique(end[order], return_index=True)
    return tuple(sorted(edges[order[first[hung != root]]].tolist()))


def total_delay(ends: NDArray[np.int64], lengths: NDArray[np.float64], sent: NDArray[np.float64]) -> float:
    """The sum, over all members, of what each sends times its distances to all, in a tree.

    A link carries what is sent on either side of it to everybody on the other side.
    """
    count, everything = len(sent), float(sent.sum())
    order, above, length = _from_the_leaves(ends, lengths, count)
    below, sent_below, total = [1] * count, sent.tolist(), 0.0
    for v in order:
        others = count - below[v]
        total += length[v] * (sent_below[v] * others + (everything - sent_below[v]) * below[v])
        below[above[v]] += below[v]
        sent_below[above[v]] += sent_below[v]
    return total


def neighbours(ends: NDArray[np.int64], count: int) -> list[list[tuple[int, int]]]:
    """Of each member of a tree, the members next to it, and over which link."""
    near: list[list[tuple[int, int]]] = [[] for _ in range(count)]
    for edge, (u, v) in enumerate(ends.tolist()):
        near[u].append((v, edge))
        near[v].append((u, edge))
    return near


def _from_the_leaves(
    ends: NDArray[np.int64], lengths: NDArray[np.float64], count: int
) -> tuple[list[int], list[int], list[float]]:
    """All members but the first, those far from it first; of each the one above it, and the length there."""
    near, above, length, order = neighbours(ends, count), [0] * count, [0.0] * count, [0]
    for v in order:
        for w, edge in near[v]:
            if w != above[v] or (v == 0 and w != 0):
                above[w], length[w] = v, float(lengths[edge])
                order.append(w)
    return order[:0:-1], above, length


def _distances(group: FilterGroup) -> NDArray[np.float64]:
    """Between all members, over the group's links."""
    count = len(group.members)
    graph = csr_array((group.lengths, (group.ends[:, 0], group.ends[:, 1])), shape=(count, count))
    return np.asarray(dijkstra(graph, directed=False))


def _root(parent: list[int], i: int) -> int:
    while parent[i] != i:
        parent[i] = i = parent[parent[i]]
    return i


ROUNDS = 20


def balance(groups: Sequence[FilterGroup], trees: Sequence[Edges], slack: float) -> list[Edges]:
    """The trees after exchanges that lower the sum of squares of all loads.

    What a tree carries crosses each of its links once, so the sum of loads stays: only its spread changes. No
    tree may cost more than (1 + slack) times what it did. Rounds over all trees, the busiest first, until
    none changes.
    """
    result, load = list(trees), defaultdict[Pair, float](float)
    for group, tree in zip(groups, trees, strict=True):
        for pair in group.links(tree):
            load[pair] += group.rate
    limits = [group.cost(tree) * (1 + slack) for group, tree in zip(groups, trees, strict=True)]
    sending = (i for i in range(len(groups)) if groups[i].rate > 0)
    busiest = sorted(sending, key=lambda i: (-groups[i].rate, min(groups[i].filters)))
    for _ in range(ROUNDS):
        before = list(result)
        for i in busiest:
            result[i] = _relieve(groups[i], result[i], limits[i], load)
        if result == before:
            break
    return result


def _relieve(group: FilterGroup, tree: Edges, limit: float, load: dict[Pair, float]) -> Edges:
    """The tree after each link outside of it has had its chance to take over from a busier one."""
    pairs = group.pairs()
    for edge in sorted(range(len(pairs)), key=lambda edge: (load[pairs[edge]], edge)):
        if edge in tree:
            continue
        for old in _busiest_first(_cycle(group, tree, edge), pairs, load):
            if load[pairs[edge]] + group.rate >= load[pairs[old]]:
                break
            swapped = tuple(sorted({*tree, edge} - {old}))
            if group.shared[edge] >= group.shared[old] and group.cost(swapped) <= limit:
                load[pairs[edge]] += group.rate
                load[pairs[old]] -= group.rate
                tree = swapped
                break
    return tree


def _busiest_first(edges: list[int], pairs: list[Pair], load: dict[Pair, float]) -> list[int]:
    return sorted(edges, key=lambda edge: (-load[pairs[edge]], edge))


def _cycle(group: FilterGroup, tree: Edges, edge: int) -> list[int]:
    """The links of the tree between the ends of a link that is not in it."""
    near = neighbours(group.ends[list(tree)], len(group.members))
    source, target = group.ends[edge].tolist()
    came: dict[int, tuple[int, int]] = {source: (source, -1)}
    todo = [source]
    for v in todo:
        for w, link in near[v]:
            if w not in came:
                came[w] = (v, link)
                todo.append(w)
    path = []
    while target != source:
        target, link = came[target]
        path.append(tree[link])
    return path

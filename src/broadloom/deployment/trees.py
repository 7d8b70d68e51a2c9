"""Delivery trees: one tree per topic over the plan's links, of least delay or least weight.

Topic filters that can match the same topic form a group and share one tree: on two trees their messages would
loop. Brokers that publish a topic without wanting it are attached by a leaf link in one direction: all other
brokers, or with observed publishers those that are known to publish it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import fsum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from broadloom.checks import check_number
from broadloom.deployment.deployment_inputs import Publication, publications_of
from broadloom.deployment.one_way_links import filter_groups, publisher_links
from broadloom.errors import InputError
from broadloom.model import ANYWHERE, Interest, Publishers
from broadloom.mqtt.topic_filters import FilterIndex, covers
from broadloom.plans import Plan

LEAST = ("latency", "weight")
# Number of roots that are tried for a large topic, the most central ones. Up to MOST_EXACT members they are
# found by the distances between all; beyond, by the distances to SAMPLES members and the busiest senders.
ROOTS = 64
MOST_EXACT = 2_000
SAMPLES = 128
BALANCE_ROUNDS = 20

Pair = tuple[int, int]
Edges = tuple[int, ...]  # the links of a tree, by their index in the group, ascending


class Tree(NamedTuple):
    """The delivery tree of a topic, or of a group of topic filters.

    Attributes:
        filters: the topic, or the topic filters of the group, in the plan's order.
        edges: the links between brokers that want it, pairs `u < v`, ascending.
        leaves: pairs of a broker that only publishes it and the broker that receives it from there.
        rate: bytes per second of all publishers; 0 if unknown.
    """

    filters: tuple[str, ...]
    edges: tuple[tuple[int, int], ...]
    leaves: tuple[tuple[int, int], ...] = ()
    rate: float = 0.0


class TreeGroup(NamedTuple):
    """A topic or a group of topic filters, the brokers that want it, and the links between them.

    Attributes:
        filters: the topic, or the topic filters.
        members: the brokers that want one of them, sorted by name, so that ties do not depend on the plan's
            order.
        ends: the links, (m, 2), as indices of members.
        lengths: the weight of each link.
        shared: the number of the topic filters that both ends of each link want.
        sent: the amount that each member sends, for a tree of least delay; None: for one of least weight.
        rate: bytes per second of all publishers.
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
        """The cost of a tree: its weight, or the delay from all senders to all members, by amounts sent."""
        chosen = list(tree)
        if self.sent is None:
            return float(self.lengths[chosen].sum())
        return total_delay(self.ends[chosen], self.lengths[chosen], self.sent)


def plan_trees(
    plan: Plan,
    publications: Sequence[Publication] | None = None,
    least: str = "latency",
    slack: float = 0.1,
    publishers: str | None = None,
) -> list[Tree]:
    """The trees of all topics of a plan that a broker wants, in the order of topics.

    With one publisher, its shortest-path tree is optimal. With several, the best shortest-path tree of any
    root is taken, whose delay is at most twice the optimum; of a topic with more than 2,000 brokers, only
    roots that are central by a sample are tried. In a group of several topic filters, the brokers
    of each filter are kept together first, and the weight decides among the trees that do.

    Args:
        plan: the plan.
        publications: the known publications; None: those of the plan.
        least: "latency", the delay from all publishers to all subscribers, or "weight", that of the tree.
        slack: if rates are known, the share by which a tree's cost can grow to relieve busy links.
        publishers: "anywhere": any broker can publish any topic; "observed": leaf links only for the known
            publications; None: as the plan says. Brokers that want a topic can always publish it.

    Raises:
        InputError: the overlay does not connect all brokers that want a topic, or a group of topic filters.

    Examples:
        >>> import broadloom as bl
        >>> plan = bl.link(bl.Interest.from_lists([["x"], ["x", "y"], ["x", "y"]]), algorithm="gm")
        >>> plan_trees(plan)[0]
        Tree(filters=('x',), edges=((0, 1), (1, 2)), leaves=(), rate=0.0)
    """
    if least not in LEAST:
        raise InputError(f"least is {least!r}; choose {' or '.join(LEAST)}")
    check_number(slack, "slack")
    known = publications_of(plan) if publications is None else publications
    senders = _senders(plan.interest, known)
    grouped = filter_groups(plan.interest)
    anywhere = publisher_links(plan, grouped) if mode_of(plan, publishers) == ANYWHERE else None
    names = plan.interest.node_ids
    by_name = np.array(sorted(range(len(names)), key=names.__getitem__), np.int64)
    topics = {text: topic for topic, text in enumerate(plan.interest.topic_ids)}
    near = _LinksOfBrokers(plan)
    planned = []
    leaves = []
    trees = []
    for number, filters in enumerate(grouped):
        group = _group(plan, filters, topics, by_name, near)
        if len(group.members):
            sent = senders[filters[0]]
            leaves.append(_leaf_links(plan, group, sent) if anywhere is None else anywhere.leaves(number))
            planned.append(_with_senders(group, sent, dict(leaves[-1]), least))
            trees.append(_require_tree(planned[-1]))
    if any(group.rate > 0 for group in planned):
        trees = balance_loads(planned, trees, slack)
    return [
        Tree(group.filters, group.links(tree), leaf, group.rate)
        for group, tree, leaf in zip(planned, trees, leaves, strict=True)
    ]


def mode_of(plan: Plan, publishers: str | None) -> str:
    """Where clients publish, "anywhere" or "observed": as the argument says, or the plan if it is None."""
    return plan.publishers.mode if publishers is None else Publishers(publishers).mode


def _senders(interest: Interest, publications: Sequence[Publication]) -> Mapping[str, dict[int, float]]:
    """The rate of each broker that publishes into a group, by the group's first topic filter."""
    first = {text: filters[0] for filters in filter_groups(interest) for text in filters}
    wanted = np.flatnonzero(np.diff(interest.node_start)).tolist()
    known = FilterIndex(interest.topic_ids[topic] for topic in wanted)
    senders = defaultdict[str, dict[int, float]](dict)
    for broker, topic, rate in publications:
        match = next(known.meeting(topic), None)  # all filters that match one topic are in one group
        if match is not None:
            rates = senders[first[match]]
            rates[broker] = rates.get(broker, 0.0) + rate
    return senders


class _LinksOfBrokers:
    """The links of each broker of a plan, by their index in it."""

    def __init__(self, plan: Plan) -> None:
        start = plan.edges[:, 0]
        self._links = np.argsort(start, kind="stable")
        self._first = np.searchsorted(start[self._links], np.arange(plan.interest.node_count + 1))

    def of(self, brokers: NDArray[np.int64]) -> NDArray[np.int64]:
        """The links whose first end is one of some brokers."""
        counts = self._first[brokers + 1] - self._first[brokers]
        before = np.cumsum(counts) - counts
        return self._links[np.repeat(self._first[brokers] - before, counts) + np.arange(counts.sum())]


def _group(
    plan: Plan,
    filters: tuple[str, ...],
    topics: Mapping[str, int],
    by_name: NDArray[np.int64],
    near: _LinksOfBrokers,
) -> TreeGroup:
    """The part of the overlay among the brokers that want one of the topic filters."""
    wanted = _wanted(plan.interest, filters, topics)
    members = by_name[wanted[:, by_name].any(axis=0)]
    index = np.full(plan.interest.node_count, -1)
    index[members] = np.arange(len(members))
    links = near.of(members)
    ends = np.sort(index[plan.edges[links]], axis=1)
    order = np.lexsort((links, ends[:, 1], ends[:, 0]))
    order = order[ends[order, 0] >= 0]
    chosen = links[order]
    u, v = plan.edges[chosen].T
    shared = (wanted[:, u] & wanted[:, v]).sum(axis=0)
    return TreeGroup(filters, members, ends[order], plan.edge_weights[chosen], shared, None, 0.0)


def _wanted(interest: Interest, filters: tuple[str, ...], topics: Mapping[str, int]) -> NDArray[np.bool_]:
    """Whether each broker wants each of the topic filters, by itself or by a wider one."""
    wanted = np.zeros((len(filters), interest.node_count), bool)
    for row, narrow in enumerate(filters):
        for wide in filters:
            if covers(wide, narrow):
                wanted[row, interest.nodes_of(topics[wide])] = True
    return wanted


def _leaf_links(plan: Plan, group: TreeGroup, senders: Mapping[int, float]) -> tuple[tuple[int, int], ...]:
    """For each broker that only publishes, the nearest member, over a link of the plan if there is one."""
    leaves = []
    for broker in sorted(set(senders) - set(group.members.tolist())):
        linked = np.concatenate([plan.edges[plan.edges[:, 1 - end] == broker, end] for end in (0, 1)])
        near = group.members[np.isin(group.members, linked)]
        near = near if len(near) else group.members
        weights = plan.weights.of(np.full(len(near), broker), near)
        leaves.append((broker, int(near[np.argmin(weights)])))
    return tuple(leaves)


def _with_senders(
    group: TreeGroup, senders: Mapping[int, float], receiver: Mapping[int, int], least: str
) -> TreeGroup:
    """The group with the amount that each member sends, or receives from brokers that only publish."""
    rate = fsum(senders.values())  # exact, so the order of senders does not matter
    if least == "weight" or len(group.filters) > 1:
        return group._replace(rate=rate)
    sent = np.zeros(len(group.members))
    for broker in sorted(senders):
        at = group.members == receiver.get(broker, broker)
        sent[at] += senders[broker] if rate > 0 else 1.0
    return group._replace(rate=rate, sent=sent if senders else np.ones(len(sent)))


def _require_tree(group: TreeGroup) -> Edges:
    tree = best_tree(group)
    if tree is not None:
        return tree
    names = ", ".join(repr(text) for text in group.filters[:3])
    if len(group.filters) == 1:
        raise InputError(f"the plan does not connect topic {names}; link again, and run `broadloom verify`")
    raise InputError(
        f"filters {names} can match the same topic, so they need one tree, but the plan does not connect the "
        f"{len(group.members)} brokers that want them; link again, and run `broadloom verify`"
    )


def best_tree(group: TreeGroup) -> Edges | None:
    """The best tree of a group, or None if its links do not connect it."""
    if group.sent is None:
        return minimum_weight_tree(group)
    roots, distances = _central_members(group, group.sent)
    if np.isinf(distances).any():
        return None
    trees = [shortest_path_tree(group, row, int(root)) for row, root in zip(distances, roots, strict=True)]
    return min(trees, key=lambda tree: (group.cost(tree), tree))


def minimum_weight_tree(group: TreeGroup) -> Edges | None:
    """Kruskal's algorithm, links that share the most topic filters first; None if the group is disconnected.

    The spanning tree with the most sharing splits each filter's brokers into the fewest parts: the tree's
    links share a filter of `k` brokers in `c` parts exactly `k - c` times.
    """
    order = np.lexsort((group.ends[:, 1], group.ends[:, 0], group.lengths, -group.shared))
    parent = list(range(len(group.members)))
    tree = []
    for edge in order.tolist():
        a, b = (_root(parent, end) for end in group.ends[edge].tolist())
        if a != b:
            parent[a] = b
            tree.append(edge)
    return tuple(sorted(tree)) if len(tree) == len(group.members) - 1 else None


def _root(parent: list[int], i: int) -> int:
    while parent[i] != i:
        parent[i] = i = parent[parent[i]]
    return i


def shortest_path_tree(group: TreeGroup, distance: NDArray[np.float64], root: int) -> Edges:
    """The shortest-path tree of a root; of equally short paths the one over the smallest broker.

    The parent link of every other broker ends a shortest path: its sum is exactly the distance.
    """
    edges = np.tile(np.arange(len(group.ends)), 2)
    start, end = np.concatenate((group.ends, group.ends[:, ::-1])).T
    tight = np.flatnonzero(distance[start] + group.lengths[edges] == distance[end])
    order = tight[np.lexsort((start[tight], end[tight]))]
    children, first = np.unique(end[order], return_index=True)
    return tuple(sorted(edges[order[first[children != root]]].tolist()))


def _central_members(
    group: TreeGroup, sent: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """At most `ROOTS` members with the least delay to and from all others, and their distances to all."""
    count = len(group.members)
    if count <= MOST_EXACT:
        distances = _distances(group)
        through = distances @ sent * count + sent.sum() * distances.sum(axis=1)
        roots = np.argsort(through, kind="stable")[:ROOTS]
        return roots, distances[roots]
    busy = np.argsort(-sent, kind="stable")[:SAMPLES]
    sample = np.arange(0, count, count // SAMPLES)
    near = _distances(group, np.concatenate((busy, sample)))
    typical = near[len(busy) :].mean(axis=0)  # distance of each member to a random one
    from_busy = sent[busy] @ near[: len(busy)] + (sent.sum() - sent[busy].sum()) * typical
    roots = np.argsort(from_busy + sent.sum() * typical, kind="stable")[:ROOTS]
    return roots, _distances(group, roots)


def _distances(group: TreeGroup, starts: NDArray[np.int64] | None = None) -> NDArray[np.float64]:
    """The distances over the group's links from some members, or from all, to all."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import dijkstra

    count = len(group.members)
    graph = csr_array((group.lengths, (group.ends[:, 0], group.ends[:, 1])), shape=(count, count))
    return np.asarray(dijkstra(graph, directed=False, indices=starts))


def total_delay(ends: NDArray[np.int64], lengths: NDArray[np.float64], sent: NDArray[np.float64]) -> float:
    """The sum, over all members, of the amount that each sends times its distances to all others in a tree.

    A link carries everything that is sent on either side to every member on the other side.
    """
    count = len(sent)
    everything = float(sent.sum())
    order, parent, length = _leaves_first(ends, lengths, count)
    below = [1] * count
    sent_below = sent.tolist()
    total = 0.0
    for v in order:
        others = count - below[v]
        total += length[v] * (sent_below[v] * others + (everything - sent_below[v]) * below[v])
        below[parent[v]] += below[v]
        sent_below[parent[v]] += sent_below[v]
    return total


def _leaves_first(
    ends: NDArray[np.int64], lengths: NDArray[np.float64], count: int
) -> tuple[list[int], list[int], list[float]]:
    """All members but the root 0, the farthest first; the parent of each, and the length of that link."""
    near = _neighbours(ends, count)
    parent = [0] * count
    length = [0.0] * count
    order = [0]
    for v in order:
        for w, edge in near[v]:
            if w != parent[v] or (v == 0 and w != 0):
                parent[w] = v
                length[w] = float(lengths[edge])
                order.append(w)
    return order[:0:-1], parent, length


def _neighbours(ends: NDArray[np.int64], count: int) -> list[list[tuple[int, int]]]:
    """The neighbours of each member of a tree, with the links to them."""
    near: list[list[tuple[int, int]]] = [[] for _ in range(count)]
    for edge, (u, v) in enumerate(ends.tolist()):
        near[u].append((v, edge))
        near[v].append((u, edge))
    return near


def balance_loads(groups: Sequence[TreeGroup], trees: Sequence[Edges], slack: float) -> list[Edges]:
    """The trees after exchanges of busy links for idle ones, which lower the sum of squares of all loads.

    The messages of a tree cross each of its links once, so the sum of loads is constant: only its spread
    changes. No tree can cost more than (1 + slack) times its cost before. It visits all trees in rounds, the
    busiest first, until no tree changes.
    """
    result = list(trees)
    load = defaultdict[Pair, float](float)
    for group, tree in zip(groups, trees, strict=True):
        for pair in group.links(tree):
            load[pair] += group.rate
    limits = [group.cost(tree) * (1 + slack) for group, tree in zip(groups, trees, strict=True)]
    sending = (i for i in range(len(groups)) if groups[i].rate > 0)
    busiest = sorted(sending, key=lambda i: (-groups[i].rate, min(groups[i].filters)))
    for _ in range(BALANCE_ROUNDS):
        before = list(result)
        for i in busiest:
            result[i] = _exchange_links(groups[i], result[i], limits[i], load)
        if result == before:
            break
    return result


def _exchange_links(group: TreeGroup, tree: Edges, limit: float, load: dict[Pair, float]) -> Edges:
    """The tree after links outside of it have replaced busier ones, at a cost up to the limit."""
    pairs = group.pairs()
    for edge in sorted(range(len(pairs)), key=lambda edge: (load[pairs[edge]], edge)):
        if edge in tree:
            continue
        cycle = _cycle(group, tree, edge)
        for old in sorted(cycle, key=lambda other: (-load[pairs[other]], other)):
            if load[pairs[edge]] + group.rate >= load[pairs[old]]:
                break
            swapped = tuple(sorted({*tree, edge} - {old}))
            if group.shared[edge] >= group.shared[old] and group.cost(swapped) <= limit:
                load[pairs[edge]] += group.rate
                load[pairs[old]] -= group.rate
                tree = swapped
                break
    return tree


def _cycle(group: TreeGroup, tree: Edges, edge: int) -> list[int]:
    """The links of the tree between the ends of a link outside of it."""
    near = _neighbours(group.ends[list(tree)], len(group.members))
    source, target = group.ends[edge].tolist()
    parent: dict[int, tuple[int, int]] = {source: (source, -1)}
    queue = [source]
    for v in queue:
        for w, link in near[v]:
            if w not in parent:
                parent[w] = (v, link)
                queue.append(w)
    path = []
    while target != source:
        target, link = parent[target]
        path.append(tree[link])
    return path

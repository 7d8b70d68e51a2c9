"""Reuse of a previous plan's division of the weights, for an interest that differs in a few brokers.

Between subscriptions that were there before, a topic keeps its heights: for these pairs nothing is to prove,
if their weight is the same. A subscription that has gone leaves its lightest neighbour in the tree behind.
A new subscription gets parts of the pairs of its node: what the heights of the old topics leave of the
weight, divided over the new ones. The trees are built again with these parts, which a few steps of the
ascent improve.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from broadloom.kernels import kernel
from broadloom.linking._spanning_trees import TopicEntries, minimum_trees
from broadloom.linking.lagrangian_bound import LEAST_PART, ROUNDING
from broadloom.model import Interest, WeightArrays, Weights, weight_of
from broadloom.plans import WeightDivision

# Steps of an ascent over the new parts alone, and the rate at which those that the trees use grow.
STEPS = 2
RATE, SLOW = 1.0, 2.0


class Matching(NamedTuple):
    """What two interests, the previous one and that of today, have in common.

    Attributes:
        node: the index today of each previous node; -1 if it has left, or if weights at it have changed.
        topic: the index today of each previous topic; -1 if it is missing.
        subscription: the index today of each previous subscription; -1 if its node or its topic is missing,
            or does not have the other any more.
        is_known: whether each subscription of today was there before.
    """

    node: NDArray[np.int32]
    topic: NDArray[np.int32]
    subscription: NDArray[np.int32]
    is_known: NDArray[np.bool_]

    def changed_nodes(self, before: Interest, today: Interest) -> NDArray[np.bool_]:
        """The nodes of today that are new, or whose weights or topics have changed."""
        changed = np.ones(today.node_count, bool)
        changed[self.node[self.node >= 0]] = False
        changed[today.nodes[~self.is_known]] = True
        left = self.node[before.nodes[self.subscription < 0]]
        changed[left[left >= 0]] = True
        return changed


def match_interests(before: Interest, today: Interest, moved: NDArray[np.bool_]) -> Matching:
    """Match nodes and topics by their ids. `moved`: the nodes of today whose weights have changed."""
    index = {name: u for u, name in enumerate(today.node_ids)}
    node = np.array([index.get(name, -1) for name in before.node_ids], np.int32)
    node[node >= 0] = np.where(moved[node[node >= 0]], -1, node[node >= 0])
    index = {name: t for t, name in enumerate(today.topic_ids)}
    topic = np.array([index.get(name, -1) for name in before.topic_ids], np.int32)
    subscription = _match_subscriptions(
        (before.node_start, before.nodes), (today.node_start, today.nodes), node, topic, today.node_count
    )
    is_known = np.zeros(today.subscription_count, bool)
    is_known[subscription[subscription >= 0]] = True
    return Matching(node, topic, subscription, is_known)


@kernel
def _match_subscriptions(
    before: tuple[NDArray[np.int64], NDArray[np.int32]],
    today: tuple[NDArray[np.int64], NDArray[np.int32]],
    node: NDArray[np.int32],
    topic: NDArray[np.int32],
    nodes: int,
) -> NDArray[np.int32]:
    """The index today of each previous subscription, -1 if it has gone."""
    found = np.full(len(before[1]), -1, np.int32)
    position = np.full(nodes, -1, np.int32)
    for t in range(len(topic)):
        if topic[t] < 0:
            continue
        first, end = today[0][topic[t]], today[0][topic[t] + 1]
        for i in range(first, end):
            position[today[1][i]] = i
        for i in range(before[0][t], before[0][t + 1]):
            u = node[before[1][i]]
            found[i] = position[u] if u >= 0 else -1
        for i in range(first, end):
            position[today[1][i]] = -1
    return found


def carried_bound(
    division: WeightDivision, interest: Interest, weights: Weights, matching: Matching
) -> tuple[float, WeightDivision]:
    """The lower bound that a previous division proves for the interest of today, and its new trees.

    The weights between matched nodes must be those of the division.
    """
    before = division.interest
    rows = (interest.topic_start, interest.topics)
    columns = (interest.node_start, interest.nodes)
    trees = _carried_trees(
        (before.node_start, division.low, division.high, division.height),
        (_inverse(matching.topic, interest.topic_count), matching.subscription),
        interest.node_start,
    )
    parts, pair, rest = _new_parts(rows, columns, weights.arrays(), matching.is_known, trees)
    start, low, high, part, new = _by_topic(interest.node_start, trees, parts)
    nothing = np.empty(0, np.int64)
    entries = TopicEntries(interest.node_start, start, nothing, nothing.astype(np.int32), low, high)
    tree, height = minimum_trees(entries, part)
    terms = part[tree]
    for step in range(STEPS if len(new) else 0):
        used = np.zeros(len(part))
        used[tree] = 1.0
        part[new] = height[new] * (1.0 + RATE / (1.0 + step / SLOW) * used[new]) + LEAST_PART * rest[pair]
        total = np.bincount(pair, part[new], len(rest))
        part[new] *= np.divide(rest, total, out=np.zeros(len(rest)), where=total > 0.0)[pair]
        better, height = minimum_trees(entries, part)
        tree, terms = (better, part[better]) if part[better].sum() > terms.sum() else (tree, terms)
    bound = float(terms.sum()) * (1.0 - (len(terms) + 4) * ROUNDING)
    first = interest.node_start[np.searchsorted(start, tree, side="right") - 1]
    ends = (low[tree] + first).astype(np.int32), (high[tree] + first).astype(np.int32)
    return bound, WeightDivision(interest, weights, *ends, terms)


def _inverse(index: NDArray[np.int32], size: int) -> NDArray[np.int32]:
    """Where each number below the size is in the index, -1 if it is missing."""
    inverse = np.full(size, -1, np.int32)
    inverse[index[index >= 0]] = np.flatnonzero(index >= 0)
    return inverse


class _Links(NamedTuple):
    """Links between subscribers of one topic each; the ends are indices of the topic's subscribers."""

    topic: NDArray[np.int32]
    low: NDArray[np.int32]
    high: NDArray[np.int32]
    part: NDArray[np.float64]


@kernel
def _carried_trees(
    trees: tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int32], NDArray[np.float64]],
    matching: tuple[NDArray[np.int32], NDArray[np.int32]],
    node_start: NDArray[np.int64],
) -> _Links:
    """The previous trees without the subscriptions that have gone, topic after topic.

    `matching`: the previous topic of each topic, -1 for a new one; the subscription today of each previous
    one, -1 if it has gone.

    The heights between the others stay the same: a subscription that has gone is replaced by its neighbour at
    the lightest link, and that link is removed.
    """
    old_start, low, high, height = trees
    old_topic, new_subscription = matching
    tree_start = np.zeros(len(old_start), np.int64)
    for t in range(len(old_start) - 1):
        tree_start[t + 1] = tree_start[t] + max(old_start[t + 1] - old_start[t] - 1, 0)
    result = _Links(
        np.empty(len(low), np.int32),
        np.empty(len(low), np.int32),
        np.empty(len(low), np.int32),
        np.empty(len(low)),
    )
    a, b = low.copy(), high.copy()
    is_removed = np.zeros(len(low), np.bool_)
    count = 0
    for today in range(len(old_topic)):
        t = old_topic[today]
        if t < 0:
            continue
        first, end = tree_start[t], tree_start[t + 1]
        for s in range(old_start[t], old_start[t + 1]):
            if new_subscription[s] >= 0:
                continue
            lightest = -1
            for i in range(first, end):
                is_at = (a[i] == s or b[i] == s) and not is_removed[i]
                if is_at and (lightest < 0 or height[i] < height[lightest]):
                    lightest = i
            if lightest < 0:
                continue  # the only subscription that was left
            is_removed[lightest] = True
            heir = a[lightest] + b[lightest] - s
            for i in range(first, end):
                if a[i] == s:
                    a[i] = heir
                if b[i] == s:
                    b[i] = heir
        for i in range(first, end):
            if not is_removed[i]:
                result.topic[count] = today
                result.low[count] = new_subscription[a[i]] - node_start[today]
                result.high[count] = new_subscription[b[i]] - node_start[today]
                result.part[count] = height[i]
                count += 1
    return _Links(result.topic[:count], result.low[:count], result.high[:count], result.part[:count])


@kernel
def _new_parts(
    rows: tuple[NDArray[np.int64], NDArray[np.int32]],
    columns: tuple[NDArray[np.int64], NDArray[np.int32]],
    weights: WeightArrays,
    is_known: NDArray[np.bool_],
    trees: _Links,
) -> tuple[_Links, NDArray[np.int32], NDArray[np.float64]]:
    """The parts of new subscriptions in the weights of pairs; the pair of each; what each pair has for them.

    A sum of k parts and heights is off by k roundings at most: more are taken off.
    """
    topic_start, topics = rows
    node_start, nodes = columns
    n = len(topic_start) - 1
    start, share = _shares_of_trees(trees, node_start)
    new_topics = np.zeros(n, np.int64)
    most = 0
    for t in range(len(node_start) - 1):
        for i in range(node_start[t], node_start[t + 1]):
            if not is_known[i]:
                new_topics[nodes[i]] += 1
                most += node_start[t + 1] - node_start[t]
    # A pair of two changed nodes is listed by the smaller one alone, also for new topics of the larger one.
    result = _Links(
        np.empty(most, np.int32), np.empty(most, np.int32), np.empty(most, np.int32), np.empty(most)
    )
    pair = np.empty(most, np.int32)
    rest = np.empty(most)
    pairs = 0
    pair_with = np.empty(n, np.int32)
    count = 0
    paid = np.zeros(n)
    shares = np.zeros(n)
    shared = np.zeros(n, np.int64)
    work = _Heights(
        np.empty(n + 1, np.int64),
        np.empty(2 * n, np.int32),
        np.empty(2 * n),
        np.empty(n, np.int32),
        np.empty(n),
    )
    for u in range(n):
        if not new_topics[u]:
            continue
        paid[:] = 0.0
        shares[:] = 0.0
        shared[:] = 0
        pair_with[:] = -1
        for k in range(topic_start[u], topic_start[u + 1]):
            t = topics[k]
            own = _position_in(nodes, node_start[t], node_start[t + 1], u)
            if is_known[node_start[t] + own]:
                _heights_from(trees, start[t], start[t + 1], node_start[t + 1] - node_start[t], own, work)
            for i in range(node_start[t], node_start[t + 1]):
                v = nodes[i]
                shared[v] += 1
                if is_known[i] and is_known[node_start[t] + own]:
                    paid[v] += work.height[i - node_start[t]]
                else:
                    shares[v] += share[i]
        for k in range(topic_start[u], topic_start[u + 1]):
            t = topics[k]
            own = _position_in(nodes, node_start[t], node_start[t + 1], u)
            for i in range(node_start[t], node_start[t + 1]):
                v = nodes[i]
                if v == u or (new_topics[v] and v < u) or (is_known[i] and is_known[node_start[t] + own]):
                    continue
                if pair_with[v] < 0:
                    pair_with[v] = pairs
                    weight = weight_of(weights, u, v) * (1.0 - 4 * (shared[v] + 12) * ROUNDING)
                    rest[pairs] = max(weight - paid[v], 0.0)
                    pairs += 1
                pair[count] = pair_with[v]
                result.topic[count] = t
                result.low[count] = own
                result.high[count] = i - node_start[t]
                result.part[count] = rest[pair_with[v]] * share[i] / shares[v]
                count += 1
    found = _Links(result.topic[:count], result.low[:count], result.high[:count], result.part[:count])
    return found, pair[:count], rest[:pairs]


@kernel
def _position_in(nodes: NDArray[np.int32], first: int, end: int, u: int) -> int:
    """The index of node u among the subscribers of a topic, which ascend."""
    return int(np.searchsorted(nodes[first:end], u))


@kernel
def _shares_of_trees(
    trees: _Links, node_start: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The start of each topic's links, with the end appended, and what each subscription pays in its tree.

    That is the height at which it is joined to others; for a new one the mean of its topic, 1 in a new topic.
    """
    topics = len(node_start) - 1
    start = np.zeros(topics + 1, np.int64)
    total = np.zeros(topics)
    share = np.full(node_start[-1], np.inf)
    for i in range(len(trees.topic)):
        t = trees.topic[i]
        start[t + 1] += 1
        total[t] += trees.part[i]
        for x in (node_start[t] + trees.low[i], node_start[t] + trees.high[i]):
            share[x] = min(share[x], trees.part[i])
    for t in range(topics):
        mean = total[t] / start[t + 1] if total[t] > 0.0 else 1.0
        start[t + 1] += start[t]
        for x in range(node_start[t], node_start[t + 1]):
            if share[x] == np.inf:
                share[x] = mean
    return start, share


class _Heights(NamedTuple):
    """Buffers of a walk over a tree: the rows of its nodes, and the height of each node from the first."""

    row: NDArray[np.int64]
    other: NDArray[np.int32]
    part: NDArray[np.float64]
    queue: NDArray[np.int32]
    height: NDArray[np.float64]


@kernel
def _heights_from(trees: _Links, first: int, end: int, size: int, source: int, work: _Heights) -> None:
    """The heights between a subscriber of a topic and the others that its tree reaches."""
    work.row[: size + 1] = 0
    for i in range(first, end):
        work.row[trees.low[i]] += 1
        work.row[trees.high[i]] += 1
    total = 0
    for x in range(size):
        total += work.row[x]
        work.row[x] = total
    work.row[size] = total
    for i in range(first, end):
        x, y = trees.low[i], trees.high[i]
        work.row[x] -= 1
        work.other[work.row[x]] = y
        work.part[work.row[x]] = trees.part[i]
        work.row[y] -= 1
        work.other[work.row[y]] = x
        work.part[work.row[y]] = trees.part[i]
    work.height[:size] = -1.0
    work.height[source] = 0.0
    work.queue[0] = source
    count = 1
    done = 0
    while done < count:
        x = work.queue[done]
        done += 1
        for k in range(work.row[x], work.row[x + 1]):
            y = work.other[k]
            if work.height[y] < 0.0:
                work.height[y] = max(work.height[x], work.part[k])
                work.queue[count] = y
                count += 1


@kernel
def _by_topic(
    node_start: NDArray[np.int64], trees: _Links, parts: _Links
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int32], NDArray[np.float64], NDArray[np.int64]]:
    """The links of the trees and the new parts, topic after topic: start, ends, part; where the new are."""
    topics = len(node_start) - 1
    start = np.zeros(topics + 1, np.int64)
    for links in (trees, parts):
        for i in range(len(links.topic)):
            start[links.topic[i] + 1] += 1
    for t in range(topics):
        start[t + 1] += start[t]
    low = np.empty(start[-1], np.int32)
    high = np.empty(start[-1], np.int32)
    part = np.empty(start[-1])
    new = np.empty(len(parts.topic), np.int64)
    filled = start.copy()
    for is_new, links in ((False, trees), (True, parts)):
        for i in range(len(links.topic)):
            at = filled[links.topic[i]]
            filled[links.topic[i]] += 1
            if is_new:
                new[i] = at
            low[at] = links.low[i]
            high[at] = links.high[i]
            part[at] = links.part[i]
    return start, low, high, part, new

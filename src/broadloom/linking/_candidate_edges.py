"""Candidate edges with the topics that they share, and the heights at which spanning trees join two nodes.

Heights are those of single linkage: when the components of a topic are joined in rising order of height,
append the members of the smaller one to those of the larger one, with the height as the step between them.
The subscribers of a topic then form a chain, and two of them were joined at the highest step between them.
That takes memory linear in the subscriptions and answers all pairs.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from broadloom.kernels import WORD, bit_of, inner_kernel, kernel, popcount
from broadloom.linking._bands import Rows, in_threads, with_capacity
from broadloom.model import Interest, WeightArrays, Weights, weight_of

LEVELS = (0.3, 0.6, 0.8, 0.9, 0.97, 0.99, 1.0)  # of heights, as quantiles, by which pairs are screened
ALMOST_ONE = 1.0 - 1e-9  # allows for the rounding of an upper bound
# Nanoseconds, as measured. Only their ratios matter, and only for speed.
WALK_PER_STEP = 1.3
SCREEN_PER_WORD = 0.5
SUM_PER_TOPIC = 1.5
WORK_PER_BLOCK = 1 << 25  # steps of a thread at a time: some hundredths of a second


class Candidates(NamedTuple):
    """A list of edges, and an entry for each edge and topic that both its ends subscribe to.

    A subscription is an index of `interest.nodes`, so those of one topic are consecutive.

    Attributes:
        edges: int32 (m, 2), `u < v`, in lexicographic order.
        weight: the weight of each edge.
        start: the start of each edge's entries, with the end appended.
        low: the subscription of u of each entry, by ascending topic within an edge.
        high: the subscription of v of each entry.
        topic: the topic of each entry.
    """

    edges: NDArray[np.int32]
    weight: NDArray[np.float64]
    start: NDArray[np.int64]
    low: NDArray[np.int32]
    high: NDArray[np.int32]
    topic: NDArray[np.int32]


def candidates_of(interest: Interest, weights: Weights, codes: NDArray[np.int64]) -> Candidates:
    """The candidates of these codes, `u * nodes + v`, ascending."""
    edges = np.stack(np.divmod(codes, max(interest.node_count, 1)), axis=1).astype(np.int32)
    start, low, high, topic = _shared(interest.topic_start, interest.topics, positions_of(interest), edges)
    return Candidates(edges, weights.of(edges[:, 0], edges[:, 1]), start, low, high, topic)


def codes_of(edges: NDArray[np.int32], nodes: int) -> NDArray[np.int64]:
    """The code of each edge, ascending with `(u, v)`."""
    return edges[:, 0].astype(np.int64) * nodes + edges[:, 1]


def is_among(codes: NDArray[np.int64], others: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether each code is among the others; both ascend."""
    if not len(others):
        return np.zeros(len(codes), bool)
    return others[np.minimum(np.searchsorted(others, codes), len(others) - 1)] == codes


def positions_of(interest: Interest) -> NDArray[np.int32]:
    """The index in `interest.nodes` of each subscription of `interest.topics`."""
    return _positions(interest.topics, interest.node_start)


@kernel
def _positions(topics: NDArray[np.int32], node_start: NDArray[np.int64]) -> NDArray[np.int32]:
    position = np.empty(len(topics), np.int32)
    filled = node_start.copy()
    for i in range(len(topics)):
        position[i] = filled[topics[i]]
        filled[topics[i]] += 1
    return position


@kernel
def _shared(
    topic_start: NDArray[np.int64],
    topics: NDArray[np.int32],
    position: NDArray[np.int32],
    edges: NDArray[np.int32],
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
    """The entries of each edge: their start, the subscriptions of both ends, the topic."""
    most = np.int64(0)
    for e in range(len(edges)):
        u, v = edges[e, 0], edges[e, 1]
        most += min(topic_start[u + 1] - topic_start[u], topic_start[v + 1] - topic_start[v])
    start = np.zeros(len(edges) + 1, np.int64)
    low = np.empty(most, np.int32)
    high = np.empty(most, np.int32)
    topic = np.empty(most, np.int32)
    count = 0
    for e in range(len(edges)):
        i, j = topic_start[edges[e, 0]], topic_start[edges[e, 1]]
        i_end, j_end = topic_start[edges[e, 0] + 1], topic_start[edges[e, 1] + 1]
        while i < i_end and j < j_end:
            x, y = topics[i], topics[j]
            if x == y:
                low[count] = position[i]
                high[count] = position[j]
                topic[count] = x
                count += 1
            i += x <= y
            j += y <= x
        start[e + 1] = count
    return start, low[:count], high[:count], topic[:count]


class Chains(NamedTuple):
    """The chain of each topic, topic after topic, at the indices that its subscribers have in `nodes`.

    Attributes:
        position: the position of each subscription in the chains.
        node: the node at each position.
        step: the height between each position and the next one of the topic.
        joined_to: the subscription whose component absorbed that of this one; itself if none did.
        joined_at: the height at which it did; infinite if none did.
    """

    position: NDArray[np.int32]
    node: NDArray[np.int32]
    step: NDArray[np.float64]
    joined_to: NDArray[np.int32]
    joined_at: NDArray[np.float64]


class HeavyPairs(NamedTuple):
    """Pairs of nodes, `u < v` in lexicographic order, and the sum of the heights of their shared topics."""

    edges: NDArray[np.int32]
    height: NDArray[np.float64]


class _Joins(NamedTuple):
    """Components as linked lists of subscriptions; the first one is the label.

    Attributes:
        label: the component of each subscription.
        last: the last member of the component of this label.
        size: the number of its members.
        following: the next member, -1 for the last one.
        step: the height between a member and the next one.
        joined_to: see `Chains`.
        joined_at: see `Chains`.
    """

    label: NDArray[np.int32]
    last: NDArray[np.int32]
    size: NDArray[np.int32]
    following: NDArray[np.int32]
    step: NDArray[np.float64]
    joined_to: NDArray[np.int32]
    joined_at: NDArray[np.float64]


class _ChainWalk(NamedTuple):
    """The chains, and the position in them of each subscription of `topics`."""

    topic_start: NDArray[np.int64]
    topics: NDArray[np.int32]
    node_start: NDArray[np.int64]
    position: NDArray[np.int32]
    node: NDArray[np.int32]
    step: NDArray[np.float64]


def _no_joins(subscriptions: int) -> _Joins:
    """Every subscription in a component of its own."""
    alone = np.arange(subscriptions, dtype=np.int32)
    return _Joins(
        alone,
        alone.copy(),
        np.ones(subscriptions, np.int32),
        np.full(subscriptions, -1, np.int32),
        np.zeros(subscriptions),
        alone.copy(),
        np.full(subscriptions, np.inf),
    )


def chains_of_overlay(interest: Interest, sequence: Candidates, rank: NDArray[np.int64]) -> Chains:
    """Chains of a greedy overlay: an edge joins at its weight divided by its contribution when it is added.

    Args:
        interest: the topics of each node.
        sequence: the edges of the overlay.
        rank: their indices in the order of selection.
    """
    joins = _no_joins(interest.subscription_count)
    _replay(joins, sequence, rank)
    return _chains_of(joins, interest.node_start, interest.nodes)


def chains_of_trees(
    interest: Interest, low: NDArray[np.int32], high: NDArray[np.int32], height: NDArray[np.float64]
) -> Chains:
    """Chains of the topics' minimum spanning trees, from the subscriptions at the ends of their edges.

    The edges are those of one topic after the other.
    """
    joins = _no_joins(interest.subscription_count)
    _join_trees(joins, interest.node_start, low, high, height)
    return _chains_of(joins, interest.node_start, interest.nodes)


def heavy_pairs(
    interest: Interest, weights: Weights, chains: Chains, ratio: float, extra: NDArray[np.float64]
) -> HeavyPairs:
    """The pairs whose heights, summed over their shared topics, exceed `ratio` times their weight.

    The extra of both nodes is added to the heights first.

    It costs the sum of the squares of the topics' subscribers at most. Most pairs are far below: upper bounds
    on their heights show that, and heights are summed for the others.
    """
    position = chains.position[positions_of(interest)]
    walk = _ChainWalk(
        interest.topic_start, interest.topics, interest.node_start, position, chains.node, chains.step
    )
    screen = _screen_of(walk, interest.topic_count)
    limits = (float(ratio), extra)
    found = in_threads(
        lambda rows: _heavy_rows(walk, screen, weights.arrays(), limits, *rows),
        _blocks(interest.node_count, pricing_work(interest)),
    )
    ends, height = (np.concatenate(columns, axis=1) for columns in zip(*found, strict=True))
    return HeavyPairs(ends.T, height[0])


def _blocks(nodes: int, work: int) -> list[Rows]:
    """The rows of all nodes, cut into blocks for the threads; one at least."""
    count = max(1, min(nodes, work // WORK_PER_BLOCK))
    return list(pairwise(np.linspace(0, nodes, count + 1).astype(np.int64).tolist()))


def pricing_work(interest: Interest) -> int:
    """The number of steps of a pass over the pairs of every topic."""
    subscribers = np.diff(interest.node_start)
    return int(subscribers @ subscribers)


@inner_kernel
def height_between(chains: Chains, i: int, j: int) -> float:
    """The height at which two subscriptions to one topic are joined.

    The smaller component is always joined to the larger one, so the common ancestor is a few steps away.
    """
    height = 0.0
    while i != j:
        if chains.joined_at[i] > chains.joined_at[j]:
            i, j = j, i
        height = max(height, chains.joined_at[i])
        i = chains.joined_to[i]
    return height


@kernel
def _replay(joins: _Joins, sequence: Candidates, rank: NDArray[np.int64]) -> None:
    """Join along the edges in order, at the price per topic; the price never falls."""
    price = 0.0
    for e in rank:
        contribution = 0
        for k in range(sequence.start[e], sequence.start[e + 1]):
            contribution += joins.label[sequence.low[k]] != joins.label[sequence.high[k]]
        if contribution == 0:
            continue
        price = max(price, sequence.weight[e] / contribution)
        for k in range(sequence.start[e], sequence.start[e + 1]):
            _join(joins, sequence.low[k], sequence.high[k], price)


@kernel
def _join_trees(
    joins: _Joins,
    node_start: NDArray[np.int64],
    low: NDArray[np.int32],
    high: NDArray[np.int32],
    height: NDArray[np.float64],
) -> None:
    """Join the two subscriptions of each edge of the trees, the lowest of a tree first."""
    first = 0
    for t in range(len(node_start) - 1):
        end = first + max(node_start[t + 1] - node_start[t] - 1, 0)
        for k in np.argsort(height[first:end], kind="mergesort"):
            _join(joins, low[first + k], high[first + k], height[first + k])
        first = end


@inner_kernel
def _join(joins: _Joins, i: int, j: int, height: float) -> None:
    """Append the smaller of the components of i and j to the larger one."""
    large, small = joins.label[i], joins.label[j]
    if large == small:
        return
    if joins.size[large] < joins.size[small]:
        large, small = small, large
    joins.size[large] += joins.size[small]
    joins.joined_to[small] = large
    joins.joined_at[small] = height
    joins.following[joins.last[large]] = small
    joins.step[joins.last[large]] = height
    joins.last[large] = joins.last[small]
    member = small
    while member >= 0:
        joins.label[member] = large
        member = joins.following[member]


@kernel
def _chains_of(joins: _Joins, node_start: NDArray[np.int64], nodes: NDArray[np.int32]) -> Chains:
    """The chains of topics that are connected."""
    position = np.empty(len(nodes), np.int32)
    node = np.empty(len(nodes), np.int32)
    step = np.zeros(len(nodes))
    for t in range(len(node_start) - 1):
        if node_start[t] == node_start[t + 1]:
            continue
        member = joins.label[node_start[t]]
        for p in range(node_start[t], node_start[t + 1]):
            position[member] = p
            node[p] = nodes[member]
            step[p] = joins.step[member]
            member = joins.following[member]
    return Chains(position, node, step, joins.joined_to, joins.joined_at)


class _Screen(NamedTuple):
    """Upper bounds on the heights of pairs.

    A subscriber of a topic has reached the height at which it is joined to the first one of the chain. Two of
    them are joined at the higher one of what they have reached, if that differs; otherwise at most there.

    Attributes:
        same: of each position of the chains, the first and the last one that have reached the same height.
        reached: the height that each subscription of `topics` has reached.
        total: the sum of these heights over the topics of each node.
        level: ascending heights; the last one is the highest of all.
        bits: per node and level, the topics in which the node has not reached more than the level.
    """

    same: NDArray[np.int32]
    reached: NDArray[np.float64]
    total: NDArray[np.float64]
    level: NDArray[np.float64]
    bits: NDArray[np.uint64]


def _screen_of(walk: _ChainWalk, topics: int) -> _Screen:
    """The screen of some chains."""
    at_position, same = _reached(walk)
    reached = at_position[walk.position]
    level = np.quantile(reached, LEVELS) if len(reached) else np.zeros(len(LEVELS))
    total, bits = _screen_bits(walk, reached, level, -(-topics // WORD))
    return _Screen(same, reached, total, level, bits)


@kernel
def _reached(walk: _ChainWalk) -> tuple[NDArray[np.float64], NDArray[np.int32]]:
    """The height at which each position is joined to the first one of its chain; `same` of a screen."""
    reached = np.empty(len(walk.step))
    same = np.empty((len(walk.step), 2), np.int32)
    for t in range(len(walk.node_start) - 1):
        first = walk.node_start[t]
        height = 0.0
        for p in range(walk.node_start[t], walk.node_start[t + 1]):
            if p > first and walk.step[p - 1] > height:
                height = walk.step[p - 1]
                same[first:p, 1] = p - 1
                first = p
            reached[p] = height
            same[p, 0] = first
        same[first : walk.node_start[t + 1], 1] = walk.node_start[t + 1] - 1
    return reached, same


@kernel
def _screen_bits(
    walk: _ChainWalk, reached: NDArray[np.float64], level: NDArray[np.float64], words: int
) -> tuple[NDArray[np.float64], NDArray[np.uint64]]:
    """The total and the bits of a screen."""
    n = len(walk.topic_start) - 1
    total = np.zeros(n)
    bits = np.zeros((n, len(level), words), np.uint64)
    for u in range(n):
        for i in range(walk.topic_start[u], walk.topic_start[u + 1]):
            total[u] += reached[i]
            for k in range(len(level)):
                if reached[i] <= level[k]:
                    bits[u, k, walk.topics[i] >> 6] |= bit_of(walk.topics[i])
    return total, bits


@kernel
def _heavy_rows(
    walk: _ChainWalk,
    screen: _Screen,
    weights: WeightArrays,
    limits: tuple[float, NDArray[np.float64]],
    first: int,
    end: int,
) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """The heavy pairs (u, v) with first <= u < end, as two rows, and their heights as one.

    The pairs of a row are screened by the totals of their nodes, then by the levels. If many pass, the chains
    of the row are walked instead, which gives all heights.
    """
    ratio, extra = limits
    n = len(walk.topic_start) - 1
    words = screen.bits.shape[1] * screen.bits.shape[2]
    ends = np.empty((2, n), np.int32)
    height = np.empty((1, n))
    count = 0
    total = np.empty(n)
    limit = np.empty(n)
    passed = np.empty(n, np.int32)
    own = np.full(screen.bits.shape[2] * WORD, -1.0)  # the height that u has reached in each of its topics
    for u in range(first, end):
        steps = 0
        for i in range(walk.topic_start[u], walk.topic_start[u + 1]):
            steps += walk.node_start[walk.topics[i] + 1] - walk.node_start[walk.topics[i]]
            own[walk.topics[i]] = screen.reached[i]
        candidates = 0
        for v in range(u + 1, n):
            limit[v] = ratio * weight_of(weights, u, v) - extra[u] - extra[v]
            passed[candidates] = v
            candidates += screen.total[u] + screen.total[v] > limit[v] * ALMOST_ONE
        screens = candidates * words * SCREEN_PER_WORD < steps * WALK_PER_STEP
        topics = 0
        if screens:
            candidates = _pass_levels(screen, u, limit, passed, candidates)
            for k in range(candidates):
                topics += walk.topic_start[passed[k] + 1] - walk.topic_start[passed[k]]
        if screens and topics * SUM_PER_TOPIC < steps * WALK_PER_STEP:
            _walk_same_height(walk, screen, u, total)
            for k in range(candidates):
                total[passed[k]] += _sum_heights(walk, screen, own, passed[k])
        else:
            _walk_both_directions(walk, u, total)
        ends = with_capacity(ends, count, n)
        height = with_capacity(height, count, n)
        for k in range(candidates):
            v = passed[k]
            if total[v] > 0.0 and total[v] > limit[v]:
                ends[0, count] = u
                ends[1, count] = v
                height[0, count] = total[v]
                count += 1
        for i in range(walk.topic_start[u], walk.topic_start[u + 1]):
            own[walk.topics[i]] = -1.0
    return ends[:, :count], height[:, :count]


@inner_kernel
def _pass_levels(
    screen: _Screen, u: int, limit: NDArray[np.float64], passed: NDArray[np.int32], candidates: int
) -> int:
    """Keep the candidates whose topics exceed the limit by their levels; returns their number."""
    kept = 0
    for k in range(candidates):
        v = passed[k]
        below = 0
        bound = 0.0
        for level in range(len(screen.level)):
            shared = 0
            for word in range(screen.bits.shape[2]):
                shared += popcount(screen.bits[u, level, word] & screen.bits[v, level, word])
            bound += (shared - below) * screen.level[level]
            below = shared
        passed[kept] = v
        kept += bound > limit[v] * ALMOST_ONE
    return kept


@inner_kernel
def _sum_heights(walk: _ChainWalk, screen: _Screen, own: NDArray[np.float64], v: int) -> float:
    """The sum of the heights to v in topics where the two have reached different heights."""
    total = 0.0
    for i in range(walk.topic_start[v], walk.topic_start[v + 1]):
        reached = own[walk.topics[i]]
        counts = (reached >= 0.0) & (reached != screen.reached[i])  # without a branch: it is unpredictable
        total += max(reached, screen.reached[i]) if counts else 0.0
    return total


@inner_kernel
def _walk_same_height(walk: _ChainWalk, screen: _Screen, u: int, total: NDArray[np.float64]) -> None:
    """The sum of the heights between u and each other node in topics where they have reached the same one.

    Such nodes are next to each other in the chain.
    """
    for v in range(len(total)):
        total[v] = 0.0
    for i in range(walk.topic_start[u], walk.topic_start[u + 1]):
        position = walk.position[i]
        height = 0.0
        for p in range(position, screen.same[position, 1]):
            height = max(height, walk.step[p])
            total[walk.node[p + 1]] += height
        height = 0.0
        for p in range(position - 1, screen.same[position, 0] - 1, -1):
            height = max(height, walk.step[p])
            total[walk.node[p]] += height


@inner_kernel
def _walk_both_directions(walk: _ChainWalk, u: int, total: NDArray[np.float64]) -> None:
    """The sum of the heights between u and each other node."""
    for v in range(len(total)):
        total[v] = 0.0
    for i in range(walk.topic_start[u], walk.topic_start[u + 1]):
        height = 0.0
        for p in range(walk.position[i], walk.node_start[walk.topics[i] + 1] - 1):
            height = max(height, walk.step[p])
            total[walk.node[p + 1]] += height
        height = 0.0
        for p in range(walk.position[i] - 1, walk.node_start[walk.topics[i]] - 1, -1):
            height = max(height, walk.step[p])
            total[walk.node[p]] += height

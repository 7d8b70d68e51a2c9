"""At which height two subscribers of a topic are joined, for all pairs, in memory linear in subscriptions.

When the components of a topic are joined in rising order of height, write the members of the one behind
those of the other, with the height as the step between them. The subscribers of a topic then stand in a
chain, and two of them were joined at the height of the highest step between them.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from broadloom.kernels import inner_kernel, kernel
from broadloom.linking._bands import Rows, in_threads
from broadloom.linking._candidates import Candidates, places_of
from broadloom.linking._rows import with_room
from broadloom.model import Interest, WeightArrays, Weights, weight_of

MOST_NODES_SQUARED = 2048  # 32 MiB
WORK_OF_A_BLOCK = 1 << 25  # steps that a thread makes at a time: some hundredths of a second


class Chains(NamedTuple):
    """The chain of each topic, topic after topic, at the places that its subscribers have in `nodes`.

    Attributes:
        place: where each subscription stands in its topic's chain.
        node: who stands at each place.
        step: the height between each place and the next one of the topic.
        joined_to: the subscription whose component took each subscription's over, itself if none did.
        joined_at: at which height; infinite if none did.
    """

    place: NDArray[np.int32]
    node: NDArray[np.int32]
    step: NDArray[np.float64]
    joined_to: NDArray[np.int32]
    joined_at: NDArray[np.float64]


class HeavyPairs(NamedTuple):
    """Pairs of nodes, `u < v` in lexicographic order, and the sum of the heights of their shared topics."""

    edges: NDArray[np.int32]
    height: NDArray[np.float64]


class _Joining(NamedTuple):
    """Components as linked lists of subscriptions, that the one of its label is the first of.

    Attributes:
        label: the component of each subscription.
        last: the last member of the component of this label.
        size: how many members it has.
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


class _Walk(NamedTuple):
    """The chains, and where each subscription of `topics` stands in them."""

    topic_start: NDArray[np.int64]
    topics: NDArray[np.int32]
    node_start: NDArray[np.int64]
    place: NDArray[np.int32]
    node: NDArray[np.int32]
    step: NDArray[np.float64]


def _joining(subscriptions: int) -> _Joining:
    """Every subscription in a component of its own."""
    alone = np.arange(subscriptions, dtype=np.int32)
    return _Joining(
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
        interest: who wants what.
        sequence: the edges of the overlay.
        rank: their indices in the order of selection.
    """
    joining = _joining(interest.subscription_count)
    _replay(joining, sequence, rank)
    return _lined_up(joining, interest.node_start, interest.nodes)


def chains_of_trees(
    interest: Interest, low: NDArray[np.int32], high: NDArray[np.int32], height: NDArray[np.float64]
) -> Chains:
    """Chains of the topics' minimum spanning trees, given the subscriptions at the ends of their edges."""
    joining = _joining(interest.subscription_count)
    _join_in_order(joining, low, high, height, np.argsort(height, kind="stable"))
    return _lined_up(joining, interest.node_start, interest.nodes)


def heavy_pairs(interest: Interest, weights: Weights, chains: Chains, ratio: float) -> HeavyPairs:
    """The pairs whose heights, summed over their shared topics, exceed `ratio` times their weight.

    It costs the sum of the squares of the topics' subscribers. With few nodes it takes half of that, and a
    square of memory: each chain is walked one way only, and the two ends of a pair are added up.
    """
    n = interest.node_count
    place = chains.place[places_of(interest)]
    walk = _Walk(interest.topic_start, interest.topics, interest.node_start, place, chains.node, chains.step)
    blocks = _blocks(n, pricing_work(interest))
    square = np.zeros((n, n) if n <= MOST_NODES_SQUARED else (0, 0))
    if len(square):
        in_threads(lambda rows: _walk_ahead(walk, square, *rows), blocks)
    found = in_threads(lambda rows: _heavy_rows(walk, square, weights.arrays(), float(ratio), *rows), blocks)
    ends, height = (np.concatenate(columns, axis=1) for columns in zip(*found, strict=True))
    return HeavyPairs(ends.T, height[0])


def _blocks(nodes: int, work: int) -> list[Rows]:
    """The rows of all nodes, cut into blocks for the threads; one at least."""
    count = max(1, min(nodes, work // WORK_OF_A_BLOCK))
    return list(pairwise(np.linspace(0, nodes, count + 1).astype(np.int64).tolist()))


def pricing_work(interest: Interest) -> int:
    """How many steps a pass over the pairs of every topic takes."""
    subscribers = np.diff(interest.node_start)
    return int(subscribers @ subscribers)


@inner_kernel
def height_between(chains: Chains, i: int, j: int) -> float:
    """The height at which two subscriptions to one topic are joined.

    The smaller component is always joined to the larger one, so this takes a few steps up to where they meet.
    """
    height = 0.0
    while i != j:
        if chains.joined_at[i] > chains.joined_at[j]:
            i, j = j, i
        height = max(height, chains.joined_at[i])
        i = chains.joined_to[i]
    return height


@kernel
def _replay(joining: _Joining, sequence: Candidates, rank: NDArray[np.int64]) -> None:
    """Join along the edges in order, at the price that each topic paid; a price never falls."""
    price = 0.0
    for e in rank:
        contribution = 0
        for k in range(sequence.start[e], sequence.start[e + 1]):
            contribution += joining.label[sequence.low[k]] != joining.label[sequence.high[k]]
        if contribution == 0:
            continue
        price = max(price, sequence.weight[e] / contribution)
        for k in range(sequence.start[e], sequence.start[e + 1]):
            _join(joining, sequence.low[k], sequence.high[k], price)


@kernel
def _join_in_order(
    joining: _Joining,
    low: NDArray[np.int32],
    high: NDArray[np.int32],
    height: NDArray[np.float64],
    order: NDArray[np.int64],
) -> None:
    for k in order:
        _join(joining, low[k], high[k], height[k])


@inner_kernel
def _join(joining: _Joining, i: int, j: int, height: float) -> None:
    """Write the smaller of the components of i and j behind the larger one."""
    large, small = joining.label[i], joining.label[j]
    if large == small:
        return
    if joining.size[large] < joining.size[small]:
        large, small = small, large
    joining.size[large] += joining.size[small]
    joining.joined_to[small], joining.joined_at[small] = large, height
    joining.following[joining.last[large]], joining.step[joining.last[large]] = small, height
    joining.last[large] = joining.last[small]
    member = small
    while member >= 0:
        joining.label[member] = large
        member = joining.following[member]


@kernel
def _lined_up(joining: _Joining, node_start: NDArray[np.int64], nodes: NDArray[np.int32]) -> Chains:
    """The chains of topics that are connected by now."""
    place, node, step = np.empty(len(nodes), np.int32), np.empty(len(nodes), np.int32), np.zeros(len(nodes))
    for t in range(len(node_start) - 1):
        if node_start[t] == node_start[t + 1]:
            continue
        member = joining.label[node_start[t]]
        for p in range(node_start[t], node_start[t + 1]):
            place[member], node[p], step[p] = p, nodes[member], joining.step[member]
            member = joining.following[member]
    return Chains(place, node, step, joining.joined_to, joining.joined_at)


@kernel
def _walk_ahead(walk: _Walk, square: NDArray[np.float64], first: int, end: int) -> None:
    """Add up in row u the heights to those that stand behind u in its chains, for first <= u < end."""
    for u in range(first, end):
        for i in range(walk.topic_start[u], walk.topic_start[u + 1]):
            _add_ahead(walk, walk.place[i], walk.node_start[walk.topics[i] + 1], square[u])


@kernel
def _heavy_rows(
    walk: _Walk,
    square: NDArray[np.float64],
    weights: WeightArrays,
    ratio: float,
    first: int,
    end: int,
) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """The heavy pairs (u, v) with first <= u < end, as two rows, and their heights as one."""
    n = len(walk.topic_start) - 1
    ends, height = np.empty((2, n), np.int32), np.empty((1, n))
    count = 0
    total = np.empty(n)
    for u in range(first, end):
        if len(square):
            for v in range(u + 1, n):
                total[v] = square[u, v] + square[v, u]
        else:
            _walk_both_ways(walk, u, total)
        ends, height = with_room(ends, count, n), with_room(height, count, n)
        for v in range(u + 1, n):
            if total[v] > ratio * weight_of(weights, u, v):
                ends[0, count], ends[1, count], height[0, count] = u, v, total[v]
                count += 1
    return ends[:, :count], height[:, :count]


@inner_kernel
def _walk_both_ways(walk: _Walk, u: int, total: NDArray[np.float64]) -> None:
    """The sum of the heights between u and each other node."""
    for v in range(len(total)):
        total[v] = 0.0
    for i in range(walk.topic_start[u], walk.topic_start[u + 1]):
        _add_ahead(walk, walk.place[i], walk.node_start[walk.topics[i] + 1], total)
        height = 0.0
        for p in range(walk.place[i] - 1, walk.node_start[walk.topics[i]] - 1, -1):
            height = max(height, walk.step[p])
            total[walk.node[p]] += height


@inner_kernel
def _add_ahead(walk: _Walk, place: int, end: int, total: NDArray[np.float64]) -> None:
    """Add to everybody behind this place of a chain the height at which the one there is joined to them."""
    height = 0.0
    for p in range(place, end - 1):
        height = max(height, walk.step[p])
        total[walk.node[p + 1]] += height

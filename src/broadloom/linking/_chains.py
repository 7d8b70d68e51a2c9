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

from broadloom._jit import inner_kernel, kernel
from broadloom.linking._bands import in_threads
from broadloom.linking._candidates import Candidates, places_of
from broadloom.linking._rows import with_room
from broadloom.model import Interest, Weights
from broadloom.model.weights import WeightArrays, weight_of

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

    It costs the sum of the squares of the topics' subscribers, in one row of memory a thread.
    """
    n = interest.node_count
    places = chains.place[places_of(interest)]
    work = (interest.topic_start, interest.topics, interest.node_start, places, chains, weights.arrays())
    count = min(n, 1 + pricing_work(interest) // WORK_OF_A_BLOCK)
    cuts = np.linspace(0, n, count + 1).astype(np.int64).tolist() if n else [0, 0]
    found = in_threads(lambda rows: _heavy_rows(*work, float(ratio), *rows), list(pairwise(cuts)))
    ends, height = (np.concatenate(columns, axis=1) for columns in zip(*found, strict=True))
    return HeavyPairs(ends.T, height[0])


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
def _heavy_rows(
    topic_start: NDArray[np.int64],
    topics: NDArray[np.int32],
    node_start: NDArray[np.int64],
    places: NDArray[np.int32],
    chains: Chains,
    weights: WeightArrays,
    ratio: float,
    first: int,
    end: int,
) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """The heavy pairs (u, v) with first <= u < end, as columns, and in a column their heights.

    Walk from u along each of its chains, both ways.
    """
    n = len(topic_start) - 1
    ends, height = np.empty((2, n), np.int32), np.empty((1, n))
    count = 0
    total = np.empty(n)
    for u in range(first, end):
        for v in range(n):
            total[v] = 0.0
        for i in range(topic_start[u], topic_start[u + 1]):
            _add_heights(chains, node_start[topics[i]], node_start[topics[i] + 1], places[i], total)
        ends, height = with_room(ends, count, n), with_room(height, count, n)
        for v in range(u + 1, n):
            if total[v] > ratio * weight_of(weights, u, v):
                ends[0, count], ends[1, count], height[0, count] = u, v, total[v]
                count += 1
    return ends[:, :count], height[:, :count]


@inner_kernel
def _add_heights(chains: Chains, start: int, end: int, place: int, total: NDArray[np.float64]) -> None:
    """Add to everybody in the chain the height at which the one at this place is joined to them."""
    height = 0.0
    for p in range(place, end - 1):
        height = max(height, chains.step[p])
        total[chains.node[p + 1]] += height
    height = 0.0
    for p in range(place - 1, start - 1, -1):
        height = max(height, chains.step[p])
        total[chains.node[p]] += height

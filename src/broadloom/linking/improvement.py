"""Improvement of any overlay: reverse delete (paper 1, VII-B), and an exchange of edges that is ours."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from broadloom._jit import inner_kernel, kernel
from broadloom.errors import InputError
from broadloom.linking._bits import lowest
from broadloom.linking.reverse_delete import (
    Links,
    Scratch,
    cut_off,
    drop,
    heaviest_first,
    new_scratch,
    rarest_first,
    rarity,
    reverse_delete,
    still_joined,
    take_back,
)
from broadloom.model import Interest, Overlay, Plan, Weights
from broadloom.model.weights import WeightArrays, weight_of

MOST_TOPICS = 64  # an edge that more topics than a word has bits rely on is not exchanged
MOST_PAIRS = 1 << 16  # where there are more pairs to choose from, one end stays where it is
MOST_REPLACEMENTS = 1 << 23  # pairs that are listed in a round
REACH = 3.0  # how many times as heavy as an edge a pair may be that does for it, and maybe for others too
ROOM = 4  # links that a node can get in one round, beside a quarter of those it has


class Topics(NamedTuple):
    """Who wants what: a row of topic bits a node, the rarest topic lowest, and the nodes of each topic."""

    bits: NDArray[np.uint64]
    rarest: NDArray[np.int64]
    node_start: NDArray[np.int64]
    nodes: NDArray[np.int32]


class Cut(NamedTuple):
    """What relies on an edge: the topics that break without it, and the side that each of them loses.

    Attributes:
        topics: the topics that break, as bits.
        sides: per node, bit `i` is set if it is on the side that the i-th of these topics loses.
        stamp: per node, the trial that its `sides` are of.
        small: the nodes of the smallest of these sides.
    """

    topics: NDArray[np.uint64]
    sides: NDArray[np.uint64]
    stamp: NDArray[np.int64]
    small: NDArray[np.int32]


def improve(plan: Plan, *, exchange: bool = True, rounds: int = 20) -> Plan:
    """A plan that is lighter, or the same: still topic-connected, and the same on every run.

    Reverse delete drops what the overlay does without, heaviest first. Then an edge is added that can do for
    others, and these are dropped, wherever that pays; again and again, until it pays nowhere.

    Args:
        plan: a topic-connected plan.
        exchange: whether edges are exchanged; otherwise they are only dropped.
        rounds: how often at most all edges are tried.

    Returns:
        A plan with `notes["improvement"]`: how many rounds there were, and the weight before.

    Raises:
        InputError: a topic of the plan is not connected, or `rounds` is negative.

    Example:
        >>> import broadloom as bl
        >>> weights = bl.Weights.euclidean([[0], [1], [2]])
        >>> overlay = bl.Overlay.from_edges(3, [[0, 2], [1, 2]])
        >>> plan = bl.Plan(bl.Interest.from_lists([[0]] * 3), weights, overlay, "by hand")
        >>> improve(plan).edges.tolist()
        [[1, 2], [0, 1]]
    """
    if rounds < 0:
        raise InputError(f"rounds is {rounds}; give 0 or more")
    if not plan.is_topic_connected():
        raise InputError("the plan leaves a topic disconnected; improve a plan that connects every topic")
    edges, used = improved_edges(plan.interest, plan.weights, plan.edges, rounds if exchange else 0)
    notes = {**plan.notes, "improvement": {"rounds": used, "weight_before": plan.total_weight}}
    overlay = Overlay.from_edges(plan.interest.node_count, edges)
    better = replace(plan, overlay=overlay, algorithm=f"{plan.algorithm}+improve", notes=notes)
    assert better.is_topic_connected(), "improvement left a topic disconnected"
    return better


def improved_edges(
    interest: Interest, weights: Weights, edges: NDArray[np.int32], rounds: int
) -> tuple[NDArray[np.int32], int]:
    """The edges after reverse delete and some rounds of exchange, the new ones last; how many rounds."""
    topics = Topics(rarest_first(interest), rarity(interest), interest.node_start, interest.nodes)
    edges = edges[reverse_delete(interest, edges, heaviest_first(weights, edges))]
    for done in range(rounds):
        kept, new = _exchange(topics, weights, edges)
        if not len(new):
            return edges, done + 1
        edges = np.concatenate((edges[kept], new))
        edges = edges[reverse_delete(interest, edges, heaviest_first(weights, edges))]
    return edges, rounds


def _exchange(
    topics: Topics, weights: Weights, edges: NDArray[np.int32]
) -> tuple[NDArray[np.bool_], NDArray[np.int32]]:
    """Which edges are kept, and which come new."""
    by_weight = heaviest_first(weights, edges)
    edges = edges[by_weight]
    links = _links_with_room(len(topics.bits), edges)
    pair, edge = _replacements(topics, weights.arrays(), edges, links)
    order = np.lexsort((edge, pair))
    pairs, first = np.unique(pair[order], return_index=True)
    ends = np.stack((pairs >> 32, pairs & 0xFFFFFFFF), axis=1).astype(np.int32)
    cost, weight = weights.of(ends[:, 0], ends[:, 1]), weights.of(edges[:, 0], edges[:, 1])
    gain = np.add.reduceat(weight[edge[order]], first) - cost if len(first) else cost
    tries = np.lexsort((pairs, -gain))
    tries = tries[gain[tries] > 0]
    left, chosen = _try(
        topics.bits, links, edges, weight, ends, cost, tries, np.append(first, len(edge)), edge[order]
    )
    kept = np.empty_like(left)
    kept[by_weight] = left
    return kept, ends[chosen]


def _links_with_room(nodes: int, edges: NDArray[np.int32]) -> Links:
    """Links to which some can be added: a row ends where the next one starts."""
    adjacency = Overlay(nodes, edges).adjacency()
    degree = np.diff(adjacency.start)
    start = np.concatenate(([0], np.cumsum(degree + degree // 4 + ROOM)))
    neighbours = np.empty(start[-1], np.int32)
    neighbours[
        np.arange(len(adjacency.neighbours)) + np.repeat(start[:-1] - adjacency.start[:-1], degree)
    ] = adjacency.neighbours
    return Links(start, neighbours, degree)


@kernel
def _replacements(
    topics: Topics, weights: WeightArrays, edges: NDArray[np.int32], links: Links
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Pairs that can do for an edge, and for which edge: both sides of every topic that it alone joins.

    A pair is one number, u * 2^32 + v. Only pairs are listed that weigh at most REACH times the edge.
    """
    n, words = topics.bits.shape
    scratch = new_scratch(n)
    cut = Cut(
        np.empty(words, np.uint64), np.zeros(n, np.uint64), np.full(n, -1, np.int64), np.empty(n, np.int32)
    )
    pair, edge, size = np.empty(1024, np.int64), np.empty(1024, np.int64), 0
    for e in range(len(edges)):
        u, v = edges[e]
        drop(links, u, v)
        broken, topic, side = _find_cut(topics.bits, links, u, v, scratch, cut, e)
        take_back(links, u, v)
        if broken > MOST_TOPICS:
            continue
        t = topics.rarest[topic]
        members = topics.nodes[topics.node_start[t] : topics.node_start[t + 1]]
        if side * len(members) > MOST_PAIRS:
            side = 1  # a side starts with the end of the edge that it was searched from
        if size + side * len(members) > len(pair):
            if size > MOST_REPLACEMENTS:
                break
            room = np.empty(len(pair) + side * len(members), np.int64)
            pair, edge = np.concatenate((pair, room)), np.concatenate((edge, room))
        size = _list_pairs(topics.bits, weights, cut, e, broken, side, members, u, v, pair, edge, size)
    return pair[:size].copy(), edge[:size].copy()


@kernel
def _find_cut(
    bits: NDArray[np.uint64], links: Links, u: int, v: int, scratch: Scratch, cut: Cut, trial: int
) -> tuple[int, int, int]:
    """How many topics break between u and v, which of them loses the smallest side, and how small it is.

    Fills the cut; beyond as many topics as it can tell apart the rest is not looked at.
    """
    broken, topic, smallest = 0, -1, len(bits) + 1
    for word in range(bits.shape[1]):
        cut.topics[word] = 0
        shared = bits[u, word] & bits[v, word]
        while shared and broken <= MOST_TOPICS:
            bit = np.uint64(lowest(shared))
            shared &= shared - np.uint64(1)
            side, size = cut_off(bits[:, word], bit, links, u, v, scratch)
            if size == 0:
                continue
            cut.topics[word] |= np.uint64(1) << bit
            for i in range(size):
                x = scratch.queues[side, i]
                if cut.stamp[x] != trial:
                    cut.stamp[x], cut.sides[x] = trial, 0
                cut.sides[x] |= np.uint64(1) << np.uint64(broken)
                if size < smallest:
                    cut.small[i] = x
            if size < smallest:
                topic, smallest = 64 * word + int(bit), size
            broken += 1
    return broken, topic, smallest


@kernel
def _list_pairs(
    bits: NDArray[np.uint64],
    weights: WeightArrays,
    cut: Cut,
    e: int,
    broken: int,
    side: int,
    members: NDArray[np.int32],
    u: int,
    v: int,
    pair: NDArray[np.int64],
    edge: NDArray[np.int64],
    size: int,
) -> int:
    """List the pairs of one of the first nodes of the smallest side and one of its topic's other members."""
    all_sides = ~np.uint64(0) >> np.uint64(MOST_TOPICS - broken)
    limit = REACH * weight_of(weights, u, v)
    for i in range(side):
        x = cut.small[i]
        if not _has_all(bits, x, cut.topics):
            continue
        for y in members:
            other = cut.sides[y] if cut.stamp[y] == e else np.uint64(0)
            if cut.sides[x] ^ other != all_sides or weight_of(weights, x, y) > limit:
                continue
            low, high = min(x, y), max(x, y)
            if _has_all(bits, y, cut.topics) and not (low == u and high == v):
                pair[size], edge[size] = np.int64(low) << 32 | high, e
                size += 1
    return size


@kernel
def _try(
    bits: NDArray[np.uint64],
    links: Links,
    edges: NDArray[np.int32],
    weight: NDArray[np.float64],
    pairs: NDArray[np.int32],
    cost: NDArray[np.float64],
    tries: NDArray[np.int64],
    start: NDArray[np.int64],
    replaced: NDArray[np.int64],
) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Add a pair and drop what it can do for, if that weighs more: the edges kept, and the pairs added.

    The edges that pair `p` can do for are `replaced[start[p] : start[p + 1]]`, heaviest first.
    """
    kept, scratch = np.ones(len(edges), np.bool_), new_scratch(len(bits))
    gone, chosen, added = np.empty(len(edges), np.int64), np.empty(len(tries), np.int64), 0
    for p in tries:
        hope = 0.0
        for i in range(start[p], start[p + 1]):
            hope += weight[replaced[i]] if kept[replaced[i]] else 0.0
        u, v = pairs[p]
        if hope <= cost[p] or not (_has_room(links, u) and _has_room(links, v)):
            continue
        _link(links, u, v)
        saved, count = 0.0, 0
        for i in range(start[p], start[p + 1]):
            e = replaced[i]
            if not kept[e] or hope <= cost[p]:
                continue
            drop(links, edges[e, 0], edges[e, 1])
            if still_joined(bits, links, edges[e, 0], edges[e, 1], scratch):
                gone[count] = e
                count += 1
                saved += weight[e]
            else:
                take_back(links, edges[e, 0], edges[e, 1])
                hope -= weight[e]
        if saved > cost[p]:
            kept[gone[:count]] = False
            chosen[added] = p
            added += 1
        else:
            drop(links, u, v)
            for i in range(count):
                _link(links, edges[gone[i], 0], edges[gone[i], 1])
    return kept, chosen[:added]


@inner_kernel
def _has_all(bits: NDArray[np.uint64], u: int, topics: NDArray[np.uint64]) -> bool:
    missing = np.uint64(0)
    for word in range(len(topics)):
        missing |= topics[word] & ~bits[u, word]
    return not missing


@inner_kernel
def _has_room(links: Links, u: int) -> bool:
    return links.start[u] + links.degree[u] < links.start[u + 1]


@inner_kernel
def _link(links: Links, u: int, v: int) -> None:
    for a, b in ((u, v), (v, u)):
        links.neighbours[links.start[a] + links.degree[a]] = b
        links.degree[a] += 1

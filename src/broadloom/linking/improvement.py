"""Improvement of any overlay: reverse delete (paper 1, VII-B), and an exchange of edges that is ours."""

import time
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from broadloom.checks import check_count, check_flag, check_number
from broadloom.errors import InputError
from broadloom.kernels import inner_kernel, kernel, lowest
from broadloom.linking._rows import with_room
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
from broadloom.model import Interest, Overlay, WeightArrays, Weights, weight_of
from broadloom.plans import Plan

MOST_TOPICS = 64  # an edge that more topics than a word has bits rely on is not exchanged
MOST_PAIRS = 1 << 16  # where there are more pairs to choose from, one end stays where it is
MOST_REPLACEMENTS = 1 << 23  # pairs that are listed in a round
REACH = 3.0  # how many times as heavy as an edge a pair may be that does for it, and maybe for others too
BROKEN, TOPIC, SMALL = range(3)  # places in `Cut.counts`
ROUNDS = 20  # of exchange, unless asked otherwise; few instances take so many
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
        stamp: per node, the edge that its `sides` are of.
        small: the nodes of the smallest of these sides.
        counts: how many topics break, which of them loses the smallest side, and how many nodes that has.
    """

    topics: NDArray[np.uint64]
    sides: NDArray[np.uint64]
    stamp: NDArray[np.int64]
    small: NDArray[np.int32]
    counts: NDArray[np.int64]


class Offers(NamedTuple):
    """Pairs that can each do for some edges, the most promising first.

    Attributes:
        pairs: the two nodes of each.
        cost: what each weighs.
        start: where the edges that each can do for start in `edges`, with the end appended.
        edges: these edges, heaviest first.
    """

    pairs: NDArray[np.int32]
    cost: NDArray[np.float64]
    start: NDArray[np.int64]
    edges: NDArray[np.int64]


def improve(plan: Plan, *, exchange: bool = True, rounds: int = ROUNDS, seconds: float | None = None) -> Plan:
    """A plan that is lighter, or the same: still topic-connected, and the same on every run.

    Reverse delete drops what the overlay does without, heaviest first. Then an edge is added that can do for
    others, and these are dropped, wherever that pays; again and again, until it pays nowhere. A maximum
    degree among the plan's options is kept, and that of a plan made for low degrees.

    Args:
        plan: a topic-connected plan.
        exchange: whether edges are exchanged; otherwise they are only dropped.
        rounds: how often at most all edges are tried.
        seconds: no round starts after this time; then another run may give another plan.

    Returns:
        A plan with `notes["improvement"]`: how many rounds there were, the weight before, the time limit.

    Raises:
        InputError: a topic of the plan is not connected, or `rounds` or `seconds` is negative.

    Examples:
        >>> import broadloom as bl
        >>> weights = bl.Weights.euclidean([[0], [1], [2]])
        >>> overlay = bl.Overlay.from_edges(3, [[0, 2], [1, 2]])
        >>> plan = bl.Plan(bl.Interest.from_lists([[0]] * 3), weights, overlay, "by hand")
        >>> improve(plan).edges.tolist()
        [[1, 2], [0, 1]]
    """
    if not isinstance(plan, Plan):
        raise InputError(f"the plan is a {type(plan).__name__}; give what bl.link or Plan.load returns")
    rounds = check_count(rounds, "rounds")
    check_flag(exchange, "exchange")
    if seconds is not None:
        check_number(seconds, "seconds")
    if not plan.is_topic_connected():
        raise InputError("the plan leaves a topic disconnected; improve a plan that connects every topic")
    edges, used = improved_edges(
        plan.interest,
        plan.weights,
        plan.edges,
        rounds if exchange else 0,
        max_degree=degree_limit(plan),
        seconds=seconds,
    )
    report = {"rounds": used, "weight_before": plan.total_weight, "seconds": seconds}
    overlay = Overlay.from_edges(plan.interest.node_count, edges)
    better = replace(
        plan,
        overlay=overlay,
        algorithm=f"{plan.algorithm}+improve",
        notes={**plan.notes, "improvement": report},
    )
    if not better.is_topic_connected():
        raise RuntimeError("improvement left a topic disconnected: this is a bug in Broadloom")
    return better


def degree_limit(plan: Plan) -> int | None:
    """The most links a node may get when the plan is improved: its limit, or what it was made to keep low.

    Raises:
        InputError: the plan was made for short ways, which exchanges do not keep.
    """
    made_by = plan.algorithm.split("+")[0]
    refuse_stars(made_by)
    limit = plan.options.get("max_degree")
    if limit is None and made_by in ("low-oda", "minmax-oda"):
        return int(plan.overlay.degrees().max(initial=0))
    return limit


def refuse_stars(algorithm: str) -> None:
    """Refuse to improve what is made for short ways."""
    if algorithm.startswith("cd-oda"):
        raise InputError(
            f"{algorithm} makes stars, which exchanges would lengthen; link without improve and previous"
        )


def improved_edges(
    interest: Interest,
    weights: Weights,
    edges: NDArray[np.int32],
    rounds: int = ROUNDS,
    max_degree: int | None = None,
    seconds: float | None = None,
) -> tuple[NDArray[np.int32], int]:
    """The edges after reverse delete and some rounds of exchange, the new ones last; how many rounds."""
    began = time.monotonic()
    topics = Topics(rarest_first(interest), rarity(interest), interest.node_start, interest.nodes)
    limit = interest.node_count if max_degree is None else max_degree
    edges = edges[reverse_delete(interest, edges, heaviest_first(weights, edges))]
    for done in range(rounds):
        if seconds is not None and time.monotonic() - began > seconds:
            return edges, done
        kept, new = _exchange(topics, weights, edges, limit)
        if not len(new):
            return edges, done + 1
        edges = np.concatenate((edges[kept], new))
        edges = edges[reverse_delete(interest, edges, heaviest_first(weights, edges))]
    return edges, rounds


def _exchange(
    topics: Topics, weights: Weights, edges: NDArray[np.int32], limit: int
) -> tuple[NDArray[np.bool_], NDArray[np.int32]]:
    """Which edges are kept, and which come new."""
    by_weight = heaviest_first(weights, edges)
    edges = edges[by_weight]
    weight = weights.of(edges[:, 0], edges[:, 1])
    links = _links_with_room(len(topics.bits), edges)
    offers = _offers(weights, weight, *_replacements(topics, weights.arrays(), edges, links))
    left, chosen = _try(topics.bits, links, edges, weight, offers, limit)
    kept = np.empty_like(left)
    kept[by_weight] = left
    return kept, offers.pairs[chosen]


def _offers(
    weights: Weights, weight: NDArray[np.float64], pair: NDArray[np.int64], edge: NDArray[np.int64]
) -> Offers:
    """Entry by entry a pair that can do for an edge: gathered by pair, those that could gain the most first.

    A gain is what all those edges weigh more than the pair; a pair without one is left out.
    """
    order = np.lexsort((edge, pair))
    pair, edge = pair[order], edge[order]
    codes, start, count = np.unique(pair, return_index=True, return_counts=True)
    pairs = np.stack((codes >> 32, codes & 0xFFFFFFFF), axis=1).astype(np.int32)
    cost = weights.of(pairs[:, 0], pairs[:, 1])
    gain = np.bincount(np.repeat(np.arange(len(codes)), count), weight[edge], len(codes)) - cost
    tries = np.lexsort((codes, -gain))
    tries = tries[gain[tries] > 0]
    ends = np.cumsum(count[tries])
    starts = np.concatenate((np.zeros(1, np.int64), ends))
    places = np.arange(starts[-1]) + np.repeat(start[tries] - starts[:-1], count[tries])
    return Offers(pairs[tries], cost[tries], starts, edge[places])


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
        np.empty(words, np.uint64),
        np.zeros(n, np.uint64),
        np.full(n, -1, np.int64),
        np.empty(n, np.int32),
        np.zeros(3, np.int64),
    )
    found, size = np.empty((2, 1024), np.int64), 0
    for e in range(len(edges)):
        u, v = edges[e]
        drop(links, u, v)
        _find_cut(topics.bits, links, u, v, scratch, cut, e)
        take_back(links, u, v)
        if cut.counts[BROKEN] == 0 or cut.counts[BROKEN] > MOST_TOPICS:
            continue
        t = topics.rarest[cut.counts[TOPIC]]
        members = topics.nodes[topics.node_start[t] : topics.node_start[t + 1]]
        if cut.counts[SMALL] * len(members) > MOST_PAIRS:
            cut.counts[SMALL] = 1  # a side starts with the end of the edge that it was searched from
        if size > MOST_REPLACEMENTS:
            break
        found = with_room(found, size, cut.counts[SMALL] * len(members))
        size = _list_pairs(
            topics.bits, weights, cut, members, REACH * weight_of(weights, u, v), e, found, size
        )
    return found[0, :size].copy(), found[1, :size].copy()


@kernel
def _find_cut(
    bits: NDArray[np.uint64], links: Links, u: int, v: int, scratch: Scratch, cut: Cut, e: int
) -> None:
    """Find the topics that break between u and v, the ends of an edge that is out.

    Beyond as many topics as it can tell apart the rest is not looked at.
    """
    broken, topic, smallest = 0, 0, len(bits) + 1
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
                if cut.stamp[x] != e:
                    cut.stamp[x], cut.sides[x] = e, 0
                cut.sides[x] |= np.uint64(1) << np.uint64(broken)
                if size < smallest:
                    cut.small[i] = x
            if size < smallest:
                topic, smallest = 64 * word + int(bit), size
            broken += 1
    cut.counts[BROKEN], cut.counts[TOPIC], cut.counts[SMALL] = broken, topic, smallest


@kernel
def _list_pairs(
    bits: NDArray[np.uint64],
    weights: WeightArrays,
    cut: Cut,
    members: NDArray[np.int32],
    limit: float,
    e: int,
    found: NDArray[np.int64],
    size: int,
) -> int:
    """List the pairs, of a node of the smallest side and a member of its topic, that join all that is cut."""
    all_sides = ~np.uint64(0) >> np.uint64(MOST_TOPICS - cut.counts[BROKEN])
    for i in range(cut.counts[SMALL]):
        x = cut.small[i]
        if not _has_all(bits, x, cut.topics):
            continue
        for y in members:
            other = cut.sides[y] if cut.stamp[y] == e else np.uint64(0)
            if cut.sides[x] ^ other != all_sides or weight_of(weights, x, y) > limit:
                continue
            if _has_all(bits, y, cut.topics):
                found[0, size], found[1, size] = np.int64(min(x, y)) << 32 | max(x, y), e
                size += 1
    return size


@kernel
def _try(
    bits: NDArray[np.uint64],
    links: Links,
    edges: NDArray[np.int32],
    weight: NDArray[np.float64],
    offers: Offers,
    limit: int,
) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Take up each offer that pays: which edges are kept, and which offers were taken up.

    The pair is added, the edges that it can do for are dropped as far as all stays connected, and if they do
    not weigh more than the pair, all is undone.
    """
    kept, scratch = np.ones(len(edges), np.bool_), new_scratch(len(bits))
    gone, taken, count = np.empty(len(edges), np.int64), np.empty(len(offers.cost), np.int64), 0
    for p in range(len(offers.cost)):
        replaced = offers.edges[offers.start[p] : offers.start[p + 1]]
        u, v = offers.pairs[p]
        hope = 0.0  # what may still be saved
        for e in replaced:
            hope += weight[e] if kept[e] else 0.0
        if hope <= offers.cost[p] or not (_has_room(links, u) and _has_room(links, v)):
            continue
        _link(links, u, v)
        dropped = 0
        for e in replaced:
            if not kept[e] or hope <= offers.cost[p]:
                continue
            drop(links, edges[e, 0], edges[e, 1])
            if still_joined(bits, links, edges[e, 0], edges[e, 1], scratch):
                gone[dropped] = e
                dropped += 1
            else:
                take_back(links, edges[e, 0], edges[e, 1])
                hope -= weight[e]
        if hope > offers.cost[p] and links.degree[u] <= limit and links.degree[v] <= limit:
            kept[gone[:dropped]] = False
            taken[count] = p
            count += 1
        else:
            drop(links, u, v)
            for i in range(dropped):
                _link(links, edges[gone[i], 0], edges[gone[i], 1])
    return kept, taken[:count]


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

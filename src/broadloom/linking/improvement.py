"""Improvement of any overlay: reverse delete (paper 1, VII-B), and our exchange of an edge for a lighter one."""

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
    take_back,
)
from broadloom.model import Interest, Overlay, Plan, Weights
from broadloom.model.weights import WeightArrays, weight_of

MOST_TOPICS = 64  # an edge that more topics than a word has bits rely on is not exchanged
MOST_PAIRS = 1 << 16  # where there are more pairs to choose from, one end stays where it is
ROOM = 4  # links that a node can get in one round, beside a quarter of those it has


def improve(plan: Plan, *, exchange: bool = True, rounds: int = 20) -> Plan:
    """A plan that is lighter, or the same: still topic-connected, and the same on every run.

    Reverse delete drops what the overlay does without, heaviest first. Then each edge is exchanged for the
    lightest one that connects again every topic that relies on it, as long as that pays.

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
        [[0, 1], [1, 2]]
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
    """The edges after reverse delete and some rounds of exchange, new ones in place of those they replace."""
    edges = edges[reverse_delete(interest, edges, heaviest_first(weights, edges))]
    topics = Topics(rarest_first(interest), rarity(interest), interest.node_start, interest.nodes)
    for done in range(rounds):
        order = heaviest_first(weights, edges)
        links = _links_with_room(interest.node_count, edges)
        edges = edges.copy()
        changes, kept = _exchange(topics, weights.arrays(), edges, order, links)
        edges = edges[kept]
        if changes == 0:
            return edges, done + 1
    return edges, rounds


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
def _exchange(
    topics: Topics, weights: WeightArrays, edges: NDArray[np.int32], order: NDArray[np.int64], links: Links
) -> tuple[int, NDArray[np.bool_]]:
    """Drop each edge, or exchange it for the lightest that does for it, in place; how many went, what is left."""
    n, words = topics.bits.shape
    kept = np.ones(len(edges), np.bool_)
    scratch, changes = new_scratch(n), 0
    cut = Cut(
        np.empty(words, np.uint64), np.zeros(n, np.uint64), np.full(n, -1, np.int64), np.empty(n, np.int32)
    )
    for trial in range(len(order)):
        e = order[trial]
        u, v = edges[e]
        drop(links, u, v)
        broken, topic, size = _find_cut(topics.bits, links, u, v, scratch, cut, trial)
        x, y = (-1, -1) if broken == 0 or broken > MOST_TOPICS else (u, v)
        if x >= 0:
            x, y = _lightest(topics, weights, cut, trial, broken, topic, size, u, v)
        if broken == 0:
            kept[e] = False
            changes += 1
        elif x >= 0 and _has_room(links, x) and _has_room(links, y):
            _link(links, x, y)
            edges[e, 0], edges[e, 1] = x, y
            changes += 1
        else:
            take_back(links, u, v)
    return changes, kept


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
                topic, smallest = 64 * word + bit, size
            broken += 1
    return broken, topic, smallest


@kernel
def _lightest(
    topics: Topics,
    weights: WeightArrays,
    cut: Cut,
    trial: int,
    broken: int,
    topic: int,
    size: int,
    u: int,
    v: int,
) -> tuple[int, int]:
    """The lightest pair, lighter than (u, v), that joins both sides of every topic that is cut; else -1, -1.

    One end of it is on the smallest side, the other among the topic's subscribers elsewhere.
    """
    first, last = topics.node_start[topics.rarest[topic]], topics.node_start[topics.rarest[topic] + 1]
    all_sides = ~np.uint64(0) >> np.uint64(MOST_TOPICS - broken)
    best, best_u, best_v = weight_of(weights, u, v), -1, -1
    if size * (last - first) > MOST_PAIRS:
        size = 1  # a side starts with the end of the edge that it was searched from
    for i in range(size):
        x = cut.small[i]
        if not _has_all(topics.bits, x, cut.topics):
            continue
        for j in range(first, last):
            y = topics.nodes[j]
            other = cut.sides[y] if cut.stamp[y] == trial else np.uint64(0)
            if cut.sides[x] ^ other != all_sides:
                continue
            w = weight_of(weights, x, y)
            if w > best or not _has_all(topics.bits, y, cut.topics):
                continue
            low, high = min(x, y), max(x, y)
            if w < best or (best_u >= 0 and (low, high) < (best_u, best_v)):
                best, best_u, best_v = w, low, high
    return best_u, best_v


@inner_kernel
def _has_all(bits: NDArray[np.uint64], u: int, topics: NDArray[np.uint64]) -> bool:
    for word in range(len(topics)):
        if topics[word] & ~bits[u, word]:
            return False
    return True


@inner_kernel
def _has_room(links: Links, u: int) -> bool:
    return links.start[u] + links.degree[u] < links.start[u + 1]


@inner_kernel
def _link(links: Links, u: int, v: int) -> None:
    for a, b in ((u, v), (v, u)):
        links.neighbours[links.start[a] + links.degree[a]] = b
        links.degree[a] += 1

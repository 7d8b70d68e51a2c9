"""Reverse delete (paper 1, section VII-B and Alg. 5): drop the links that the overlay does without."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from broadloom.kernels import WORD, kernel, lowest, pack_rows
from broadloom.model import Interest, Overlay, Weights


def reverse_delete(interest: Interest, edges: ArrayLike, order: ArrayLike | None = None) -> NDArray[np.bool_]:
    """Try to drop each edge in turn: it goes if the rest is as topic-connected as before.

    A topic that needs the edge is mostly seen at once, by the bits of the ends' other neighbours. Otherwise
    each shared topic is searched from both ends in turn, so that a side that is cut off is known after
    twice its own size, and the first topic that breaks ends the trial.

    Args:
        interest: who wants what.
        edges: pairs of nodes, each pair once.
        order: the edges' indices in the order of the trials; the last edge first by default.

    Returns:
        Which edges are kept.

    Examples:
        >>> interest = Interest.from_lists([[0], [0], [0]])
        >>> reverse_delete(interest, [(0, 1), (1, 2), (0, 2)])
        array([ True,  True, False])
    """
    overlay = Overlay.from_edges(interest.node_count, edges)
    trials = np.arange(overlay.edge_count)[::-1] if order is None else np.asarray(order)
    adjacency = overlay.adjacency()
    return _delete(
        rarest_first(interest),
        overlay.edges,
        np.array(trials, np.int64),
        Links(adjacency.start, adjacency.neighbours, overlay.degrees()),
    )


def heaviest_first(weights: Weights, edges: NDArray[np.int32]) -> NDArray[np.int64]:
    """The edges' indices by falling weight, among equals by `(u, v)`."""
    u, v = edges[:, 0], edges[:, 1]
    return np.lexsort((v, u, -weights.of(u, v)))


class Links(NamedTuple):
    """The links of `u` are the first `degree[u]` neighbours from `start[u]` on; dropped ones stand behind."""

    start: NDArray[np.int64]
    neighbours: NDArray[np.int32]
    degree: NDArray[np.int64]


class Scratch(NamedTuple):
    """What searches write on: who was seen by which, the nodes to go on from on each side, a counter."""

    seen: NDArray[np.int64]
    queues: NDArray[np.int32]
    searches: NDArray[np.int64]


@kernel
def new_scratch(nodes: int) -> Scratch:
    """Clean paper for searches among that many nodes."""
    return Scratch(np.zeros(nodes, np.int64), np.empty((2, nodes), np.int32), np.zeros(1, np.int64))


def rarity(interest: Interest) -> NDArray[np.int64]:
    """The topics from the rarest to the most popular."""
    return np.argsort(np.diff(interest.node_start), kind="stable")


def rarest_first(interest: Interest) -> NDArray[np.uint64]:
    """A row of topic bits a node, the rarest topic lowest: it breaks soonest and is searched fastest."""
    place = np.empty(interest.topic_count, np.int32)
    place[rarity(interest)] = np.arange(interest.topic_count)
    words = -(-interest.topic_count // WORD)
    return pack_rows(interest.topic_start, place[interest.topics], words)


@kernel
def _delete(
    bits: NDArray[np.uint64], edges: NDArray[np.int32], order: NDArray[np.int64], links: Links
) -> NDArray[np.bool_]:
    """Which edges are left after trying to drop each one in the given order."""
    kept = np.ones(len(edges), np.bool_)
    scratch = new_scratch(len(bits))
    doubled = np.empty_like(bits)
    for u in range(len(bits)):
        _note_doubled(bits, links, u, doubled)
    for e in order:
        u, v = edges[e]
        if _is_last(bits, doubled, u, v):
            continue
        drop(links, u, v)
        if still_joined(bits, links, u, v, scratch):
            kept[e] = False
            _note_doubled(bits, links, u, doubled)
            _note_doubled(bits, links, v, doubled)
        else:
            take_back(links, u, v)
    return kept


@kernel
def _note_doubled(bits: NDArray[np.uint64], links: Links, u: int, doubled: NDArray[np.uint64]) -> None:
    """Write down which topics two neighbours of u have, or more."""
    for word in range(bits.shape[1]):
        once = twice = np.uint64(0)
        for i in range(links.start[u], links.start[u] + links.degree[u]):
            theirs = bits[links.neighbours[i], word]
            twice |= once & theirs
            once |= theirs
        doubled[u, word] = twice


@kernel
def _is_last(bits: NDArray[np.uint64], doubled: NDArray[np.uint64], u: int, v: int) -> bool:
    """Whether u and v share a topic in which one of them has no other neighbour."""
    for word in range(bits.shape[1]):
        if bits[u, word] & bits[v, word] & ~(doubled[u, word] & doubled[v, word]):
            return True
    return False


@kernel
def drop(links: Links, u: int, v: int) -> None:
    """Move the edge behind the links of both ends."""
    for a, b in ((u, v), (v, u)):
        at, last = links.start[a], links.start[a] + links.degree[a] - 1
        while links.neighbours[at] != b:
            at += 1
        links.neighbours[at], links.neighbours[last] = links.neighbours[last], links.neighbours[at]
        links.degree[a] -= 1


@kernel
def take_back(links: Links, u: int, v: int) -> None:
    """Undo the drop of the edge that was dropped last."""
    links.degree[u] += 1
    links.degree[v] += 1


@kernel
def still_joined(bits: NDArray[np.uint64], links: Links, u: int, v: int, scratch: Scratch) -> bool:
    """Whether the links connect u and v in every topic that they share."""
    common = _common_neighbours(links, u, v, scratch)
    for word in range(bits.shape[1]):
        shared = bits[u, word] & bits[v, word]
        for x in common:
            shared &= ~bits[x, word]
        while shared:
            if cut_off(bits[:, word], np.uint64(lowest(shared)), links, u, v, scratch)[1] > 0:
                return False
            shared &= shared - np.uint64(1)
    return True


@kernel
def _common_neighbours(links: Links, u: int, v: int, scratch: Scratch) -> NDArray[np.int32]:
    """The neighbours of both: each of them connects u and v in all its topics at once."""
    seen, found = scratch.seen, scratch.queues[0]
    scratch.searches[0] += 1
    stamp, size = 2 * scratch.searches[0], 0
    for i in range(links.start[u], links.start[u] + links.degree[u]):
        seen[links.neighbours[i]] = stamp
    for i in range(links.start[v], links.start[v] + links.degree[v]):
        if seen[links.neighbours[i]] == stamp:
            found[size] = links.neighbours[i]
            size += 1
    return found[:size].copy()


@kernel
def cut_off(
    bits: NDArray[np.uint64], bit: np.uint64, links: Links, u: int, v: int, scratch: Scratch
) -> tuple[int, int]:
    """Search from u and from v, a node of each in turn, over the nodes with that bit, until they meet.

    Returns:
        Which side was searched through before they met, 0 for that of u and 1 for that of v, and how many
        nodes it has: they are in the scratch's queue of that side. No nodes if the two sides meet.
    """
    seen, queues, searches = scratch
    searches[0] += 1
    stamp = 2 * searches[0]  # on the nodes seen from u, and the next number on those seen from v
    wanted = np.uint64(1) << bit
    queues[0, 0], queues[1, 0] = u, v
    seen[u], seen[v] = stamp, stamp + 1
    head, own_tail, other_tail, side = 0, 1, 1, 0
    while head < own_tail:
        x = queues[side, head]
        for i in range(links.start[x], links.start[x] + links.degree[x]):
            y = links.neighbours[i]
            if not bits[y] & wanted or seen[y] == stamp + side:
                continue
            if seen[y] == stamp + 1 - side:
                return 0, 0
            seen[y] = stamp + side
            queues[side, own_tail] = y
            own_tail += 1
        head += side
        side = 1 - side
        own_tail, other_tail = other_tail, own_tail
    return side, own_tail

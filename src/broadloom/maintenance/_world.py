"""The overlay that is maintained, as flat arrays that kernels change in place (paper 3, Struct 5)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from broadloom.kernels.bits import WORD, bit_of, lowest, pack_rows, popcount
from broadloom.kernels.jit import inner_kernel, kernel
from broadloom.maintenance._links import AFTER, NOTHING, OTHER, Pairs, new_pairs, put, put_all, take

# What `tally` counts.
NODES, MAX_DEGREE, LINKS, MARKS = range(4)


class World(NamedTuple):
    """Who wants what now, who is linked, and who is whose backup; each array has room for more.

    Nodes are positions here. They ascend with the nodes' ids, so that ties fall as ids say; a node that left
    keeps its position, without topics and links, until the world is made anew.

    Attributes:
        bits: per node, as words: its topics.
        start: where each topic's list of subscribers starts in `nodes`, with the end appended.
        size: how many subscribers each topic has.
        nodes: each topic's subscribers, ascending, with room behind them.
        links: which nodes are linked.
        backups: per node its backups, and who it is a backup for: its primaries.
        at_degree: how many nodes have each degree.
        residual: scratch: what is left of each node's weight as a backup.
        mark: scratch: in which search a node was last met.
        near: scratch: which nodes a search is waiting for.
        queue: scratch: the nodes of a search.
        tally: how many positions are in use, the maximum degree, how many links there are, the last mark.
        chance: the state of the generator.
    """

    bits: NDArray[np.uint64]
    start: NDArray[np.int64]
    size: NDArray[np.int32]
    nodes: NDArray[np.uint32]
    links: Pairs
    backups: Pairs
    at_degree: NDArray[np.int64]
    residual: NDArray[np.int32]
    mark: NDArray[np.int64]
    near: NDArray[np.bool_]
    queue: NDArray[np.int32]
    tally: NDArray[np.int64]
    chance: NDArray[np.uint64]


class Contents(NamedTuple):
    """What a world is made of, without any room: the topics of each node, links, backups, and chance."""

    topic_start: NDArray[np.int64]
    topics: NDArray[np.int32]
    edges: NDArray[np.int32]
    backups: NDArray[np.int32]
    chance: int


class Room(NamedTuple):
    """For how many nodes, topics, subscribers of each topic, links and backups there is room."""

    nodes: int
    topics: int
    subscribers: NDArray[np.int64]
    links: int
    backups: int


def new_world(contents: Contents, room: Room) -> World:
    """A world of these contents with this much room."""
    n = len(contents.topic_start) - 1
    world = World(
        bits=np.zeros((room.nodes, -(-room.topics // WORD)), np.uint64),
        start=np.concatenate((np.zeros(1, np.int64), np.cumsum(room.subscribers))),
        size=np.zeros(room.topics, np.int32),
        nodes=np.empty(int(room.subscribers.sum()), np.uint32),
        links=new_pairs(room.nodes, room.links, lists=1),
        backups=new_pairs(room.nodes, room.backups, lists=2),
        at_degree=np.zeros(room.nodes + 1, np.int64),
        residual=np.zeros(room.nodes, np.int32),
        mark=np.zeros(room.nodes, np.int64),
        near=np.zeros(room.nodes, np.bool_),
        queue=np.empty(room.nodes, np.int32),
        tally=np.array([n, 0, len(contents.edges), 0], np.int64),
        chance=np.array([contents.chance], np.uint64),
    )
    world.bits[:n] = pack_rows(contents.topic_start, contents.topics, world.bits.shape[1])
    _list_subscribers(world, contents.topic_start, contents.topics)
    put_all(world.links, contents.edges)
    put_all(world.backups, contents.backups)
    world.at_degree[:] = np.bincount(world.links.sizes[0], minlength=room.nodes + 1)
    world.tally[MAX_DEGREE] = world.links.sizes.max(initial=0)
    return world


@kernel
def _list_subscribers(w: World, topic_start: NDArray[np.int64], topics: NDArray[np.int32]) -> None:
    for u in range(len(topic_start) - 1):
        for i in range(topic_start[u], topic_start[u + 1]):
            t = topics[i]
            w.nodes[w.start[t] + w.size[t]] = u
            w.size[t] += 1


@inner_kernel
def wants(w: World, u: int, t: int) -> bool:
    """Whether node u subscribes to topic t."""
    return bool(w.bits[u, t >> 6] & bit_of(t))


@inner_kernel
def subscribe(w: World, u: int, t: int) -> None:
    """Node u has topic t from now on."""
    w.bits[u, t >> 6] |= bit_of(t)
    i = w.start[t] + w.size[t]
    while i > w.start[t] and w.nodes[i - 1] > u:
        w.nodes[i] = w.nodes[i - 1]
        i -= 1
    w.nodes[i] = u
    w.size[t] += 1


@inner_kernel
def unsubscribe(w: World, u: int, t: int) -> None:
    """Node u has topic t no more."""
    w.bits[u, t >> 6] &= ~bit_of(t)
    i, end = w.start[t], w.start[t] + w.size[t] - 1
    while w.nodes[i] != u:
        i += 1
    while i < end:
        w.nodes[i] = w.nodes[i + 1]
        i += 1
    w.size[t] -= 1


@inner_kernel
def degree_of(w: World, u: int) -> int:
    """How many links a node has."""
    return w.links.sizes[0, u]


@inner_kernel
def link(w: World, u: int, v: int) -> None:
    """Link two nodes."""
    put(w.links, u, v)
    w.tally[LINKS] += 1
    for end in (u, v):
        degree = degree_of(w, end)
        w.at_degree[degree - 1] -= 1
        w.at_degree[degree] += 1
        w.tally[MAX_DEGREE] = max(w.tally[MAX_DEGREE], degree)


@inner_kernel
def unlink(w: World, half: int) -> None:
    """Remove the link that this half belongs to."""
    u, v = w.links.halves[half, OTHER], w.links.halves[half ^ 1, OTHER]
    take(w.links, half)
    w.tally[LINKS] -= 1
    for end in (u, v):
        degree = degree_of(w, end)
        w.at_degree[degree + 1] -= 1
        w.at_degree[degree] += 1
    while w.tally[MAX_DEGREE] > 0 and w.at_degree[w.tally[MAX_DEGREE]] == 0:
        w.tally[MAX_DEGREE] -= 1


@inner_kernel
def half_towards(w: World, u: int, v: int) -> int:
    """The half of the link from u to v, or NOTHING."""
    half = w.links.heads[0, u]
    while half != NOTHING and w.links.halves[half, OTHER] != v:
        half = w.links.halves[half, AFTER]
    return half


@kernel
def topics_of(w: World, u: int) -> NDArray[np.int32]:
    """The topics of a node, ascending."""
    return rows_of(w, np.full(1, u))[1]


@kernel
def rows_of(w: World, nodes: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """The topics of these nodes as compressed rows: where each one's start, and the topics, ascending."""
    start = np.zeros(len(nodes) + 1, np.int64)
    for row in range(len(nodes)):
        start[row + 1] = start[row]
        for k in range(w.bits.shape[1]):
            start[row + 1] += popcount(w.bits[nodes[row], k])
    topics, i = np.empty(start[-1], np.int32), 0
    for row in range(len(nodes)):
        for k in range(w.bits.shape[1]):
            word = w.bits[nodes[row], k]
            while word:
                topics[i] = 64 * k + lowest(word)
                word &= word - np.uint64(1)
                i += 1
    return start, topics

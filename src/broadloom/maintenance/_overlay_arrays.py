"""State of a maintained overlay: topics, links and backups in flat arrays that kernels change in place."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from broadloom.kernels import WORD, bit_of, inner_kernel, kernel, lowest, pack_rows, popcount

# What `tally` counts.
NODES, MAX_DEGREE, LINKS, MARKS = range(4)


class OverlayArrays(NamedTuple):
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
    links: PairLists
    backups: PairLists
    at_degree: NDArray[np.int64]
    residual: NDArray[np.int32]
    mark: NDArray[np.int64]
    near: NDArray[np.bool_]
    queue: NDArray[np.int32]
    tally: NDArray[np.int64]
    chance: NDArray[np.uint64]


class OverlayContents(NamedTuple):
    """What a world is made of, without any room: the topics of each node, links, backups, and chance."""

    topic_start: NDArray[np.int64]
    topics: NDArray[np.int32]
    edges: NDArray[np.int32]
    backups: NDArray[np.int32]
    chance: int


class Capacities(NamedTuple):
    """For how many nodes, topics, subscribers of each topic, links and backups there is room."""

    nodes: int
    topics: int
    subscribers: NDArray[np.int64]
    links: int
    backups: int


def new_arrays(contents: OverlayContents, room: Capacities) -> OverlayArrays:
    """A world of these contents with this much room."""
    n = len(contents.topic_start) - 1
    world = OverlayArrays(
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
def _list_subscribers(w: OverlayArrays, topic_start: NDArray[np.int64], topics: NDArray[np.int32]) -> None:
    for u in range(len(topic_start) - 1):
        for i in range(topic_start[u], topic_start[u + 1]):
            t = topics[i]
            w.nodes[w.start[t] + w.size[t]] = u
            w.size[t] += 1


@inner_kernel
def wants(w: OverlayArrays, u: int, t: int) -> bool:
    """Whether node u subscribes to topic t."""
    return bool(w.bits[u, t >> 6] & bit_of(t))


@inner_kernel
def subscribe(w: OverlayArrays, u: int, t: int) -> None:
    """Node u has topic t from now on."""
    w.bits[u, t >> 6] |= bit_of(t)
    i = w.start[t] + w.size[t]
    while i > w.start[t] and w.nodes[i - 1] > u:
        w.nodes[i] = w.nodes[i - 1]
        i -= 1
    w.nodes[i] = u
    w.size[t] += 1


@inner_kernel
def unsubscribe(w: OverlayArrays, u: int, t: int) -> None:
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
def degree_of(w: OverlayArrays, u: int) -> int:
    """How many links a node has."""
    return w.links.sizes[0, u]


@inner_kernel
def link(w: OverlayArrays, u: int, v: int) -> None:
    """Link two nodes."""
    put(w.links, u, v)
    w.tally[LINKS] += 1
    for end in (u, v):
        degree = degree_of(w, end)
        w.at_degree[degree - 1] -= 1
        w.at_degree[degree] += 1
        w.tally[MAX_DEGREE] = max(w.tally[MAX_DEGREE], degree)


@inner_kernel
def unlink(w: OverlayArrays, half: int) -> None:
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
def half_towards(w: OverlayArrays, u: int, v: int) -> int:
    """The half of the link from u to v, or NOTHING."""
    half = w.links.heads[0, u]
    while half != NOTHING and w.links.halves[half, OTHER] != v:
        half = w.links.halves[half, AFTER]
    return half


@kernel
def topics_of(w: OverlayArrays, u: int) -> NDArray[np.int32]:
    """The topics of a node, ascending."""
    return rows_of(w, np.full(1, u))[1]


@kernel
def rows_of(w: OverlayArrays, nodes: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
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


NOTHING = -1
# The columns of `halves`.
OTHER, AFTER, BEFORE = range(3)
# The lists of a node: of links there is one; of backups one of its backups, and one of its primaries.
BACKUPS, PRIMARIES = range(2)


class PairLists(NamedTuple):
    """PairLists (u, v) as two halves: half 2p is in a list of u, and half 2p + 1 in a list of v.

    A link has no direction, so that all halves of a node are in one list. The order in a list is of no
    account.

    Attributes:
        heads: per list and node, the half at which it starts.
        sizes: per list and node, how long it is.
        halves: per half, the node at the other end, and the halves after and before it in its list. Of a pair
            that is free, the next free half is after its first.
        free: the first half of a free pair.
    """

    heads: NDArray[np.int32]
    sizes: NDArray[np.int32]
    halves: NDArray[np.int32]
    free: NDArray[np.int64]


def new_pairs(nodes: int, room: int, lists: int) -> PairLists:
    """No pairs yet, with room for so many."""
    halves = np.full((2 * room, 3), NOTHING, np.int32)
    halves[0 : 2 * room - 2 : 2, AFTER] = np.arange(2, 2 * room, 2)
    heads, sizes = np.full((lists, nodes), NOTHING, np.int32), np.zeros((lists, nodes), np.int32)
    return PairLists(heads, sizes, halves, np.zeros(1, np.int64))


def room_of(pairs: PairLists) -> int:
    """For how many pairs there is room."""
    return len(pairs.halves) // 2


@inner_kernel
def put(pairs: PairLists, u: int, v: int) -> None:
    """Add the pair (u, v); there must be room."""
    half = pairs.free[0]
    pairs.free[0] = pairs.halves[half, AFTER]
    _push(pairs, half, u, v)
    _push(pairs, half + 1, v, u)


@inner_kernel
def _list_of(pairs: PairLists, half: int) -> int:
    """In which list of its node a half is."""
    return half & (pairs.heads.shape[0] - 1)


@inner_kernel
def _push(pairs: PairLists, half: int, node: int, other: int) -> None:
    which = _list_of(pairs, half)
    head = pairs.heads[which, node]
    pairs.halves[half, OTHER], pairs.halves[half, AFTER], pairs.halves[half, BEFORE] = other, head, NOTHING
    if head != NOTHING:
        pairs.halves[head, BEFORE] = half
    pairs.heads[which, node] = half
    pairs.sizes[which, node] += 1


@inner_kernel
def take(pairs: PairLists, half: int) -> None:
    """Remove the pair that this half belongs to."""
    first = half - (half & 1)
    u, v = pairs.halves[first + 1, OTHER], pairs.halves[first, OTHER]
    _pull(pairs, first, u)
    _pull(pairs, first + 1, v)
    pairs.halves[first, AFTER] = pairs.free[0]
    pairs.free[0] = first


@inner_kernel
def _pull(pairs: PairLists, half: int, node: int) -> None:
    which, after, before = _list_of(pairs, half), pairs.halves[half, AFTER], pairs.halves[half, BEFORE]
    if after != NOTHING:
        pairs.halves[after, BEFORE] = before
    if before != NOTHING:
        pairs.halves[before, AFTER] = after
    else:
        pairs.heads[which, node] = after
    pairs.sizes[which, node] -= 1


@kernel
def put_all(pairs: PairLists, ends: NDArray[np.int32]) -> None:
    """Add pairs, one a row."""
    for i in range(len(ends)):
        put(pairs, ends[i, 0], ends[i, 1])


@kernel
def listed(pairs: PairLists, which: int, node: int) -> NDArray[np.int32]:
    """The nodes at the other ends of a list, ascending."""
    found, half = np.empty(pairs.sizes[which, node], np.int32), pairs.heads[which, node]
    for i in range(len(found)):
        found[i] = pairs.halves[half, OTHER]
        half = pairs.halves[half, AFTER]
    found.sort()
    return found


@kernel
def all_pairs(pairs: PairLists, nodes: int) -> NDArray[np.int32]:
    """Every pair (u, v) once, a row each."""
    found, count = np.empty((len(pairs.halves) // 2, 2), np.int32), 0
    for u in range(nodes):
        half = pairs.heads[0, u]
        while half != NOTHING:
            if half & 1 == 0:
                found[count, 0], found[count, 1] = u, pairs.halves[half, OTHER]
                count += 1
            half = pairs.halves[half, AFTER]
    return found[:count].copy()


# The residual of a node that may not be chosen; it stays far above all others, whatever is subtracted.
BARRED, FAR = 2**31 - 1, 2**30


@kernel
def build_backups(w: OverlayArrays, coverage: int, greedy: bool, v: int) -> None:
    """Choose the backups of v anew."""
    drop_backups(w, v)
    topics = topics_of(w, v)
    rest = np.empty(len(topics), np.int32)
    for _ in range(coverage):
        before = w.backups.sizes[BACKUPS, v]
        _weigh(w, v)
        rest[:] = topics
        if greedy:
            _cover_greedily(w, v, rest)
        else:
            _cover_by_primal_dual(w, v, rest)
        if w.backups.sizes[BACKUPS, v] == before:
            break  # all who could stand in do: no later round finds more


@kernel
def build_all_backups(w: OverlayArrays, coverage: int, greedy: bool, first: int, last: int) -> None:
    """Choose the backups of these nodes, one after the other."""
    for v in range(first, last):
        build_backups(w, coverage, greedy, v)


@kernel
def rebuild_backups(w: OverlayArrays, coverage: int, greedy: bool, nodes: NDArray[np.int32]) -> None:
    """Choose the backups of these nodes anew, one after the other."""
    for i in range(len(nodes)):
        build_backups(w, coverage, greedy, nodes[i])


@kernel
def forget(w: OverlayArrays, coverage: int, greedy: bool, v: int) -> None:
    """After v has left: it has no backups, and those that it was a backup for get new ones (Alg. 8)."""
    drop_backups(w, v)
    primaries = listed(w.backups, PRIMARIES, v)
    while w.backups.heads[PRIMARIES, v] != NOTHING:
        take(w.backups, w.backups.heads[PRIMARIES, v])
    rebuild_backups(w, coverage, greedy, primaries)


@inner_kernel
def drop_backups(w: OverlayArrays, v: int) -> None:
    """Node v has no backups any more."""
    while w.backups.heads[BACKUPS, v] != NOTHING:
        take(w.backups, w.backups.heads[BACKUPS, v])


@inner_kernel
def _weigh(w: OverlayArrays, v: int) -> None:
    """The weight of every node before a round; v and the backups that it has are barred."""
    nodes = w.tally[NODES]
    residual, degree, primaries = w.residual[:nodes], w.links.sizes[0], w.backups.sizes[PRIMARIES]
    for u in range(len(residual)):  # over plain arrays, so that it runs in vectors
        residual[u] = degree[u] + primaries[u]
    w.residual[v] = BARRED
    half = w.backups.heads[BACKUPS, v]
    while half != NOTHING:
        w.residual[w.backups.halves[half, OTHER]] = BARRED
        half = w.backups.halves[half, AFTER]


@inner_kernel
def _cover_by_primal_dual(w: OverlayArrays, v: int, rest: NDArray[np.int32]) -> None:
    """Alg. 12: a random topic that is not covered, its lightest subscriber; all its subscribers get lighter.

    A residual of 0 is a free choice: the printed rule would pass it over.
    """
    left = len(rest)
    while left > 0:
        t = rest[draw(w.chance, left)]
        first, last = w.start[t], w.start[t] + w.size[t]
        best, price = NOTHING, FAR
        for i in range(first, last):
            if w.residual[w.nodes[i]] < price:
                best, price = w.nodes[i], w.residual[w.nodes[i]]
                if price == 0:
                    break
        if best == NOTHING:
            left = _without_topic(rest, left, t)
            continue
        if price > 0:
            for i in range(first, last):
                w.residual[w.nodes[i]] -= price
        put(w.backups, v, best)
        left = _without_topics_of(w, rest, left, best)


@inner_kernel
def _without_topic(rest: NDArray[np.int32], left: int, topic: int) -> int:
    """Take a topic out of the first `left` ones, which stay in order; how many remain."""
    kept = 0
    for i in range(left):
        if rest[i] != topic:
            rest[kept] = rest[i]
            kept += 1
    return kept


@inner_kernel
def _without_topics_of(w: OverlayArrays, rest: NDArray[np.int32], left: int, u: int) -> int:
    """Take the topics of a node out of the first `left` ones, which stay in order; how many remain."""
    kept = 0
    for i in range(left):
        if not wants(w, u, rest[i]):
            rest[kept] = rest[i]
            kept += 1
    return kept


@kernel
def _cover_greedily(w: OverlayArrays, v: int, rest: NDArray[np.int32]) -> None:
    """Alg. 11: the node of the least weight a topic that it newly covers; fractions are compared exactly."""
    newly = np.zeros(w.tally[NODES], np.int64)
    for t in rest:
        for i in range(w.start[t], w.start[t] + w.size[t]):
            newly[w.nodes[i]] += w.residual[w.nodes[i]] != BARRED
    left = len(rest)
    while left > 0:
        best = NOTHING
        for u in range(len(newly)):
            if newly[u] > 0 and (
                best == NOTHING or w.residual[u] * newly[best] < w.residual[best] * newly[u]
            ):
                best = u
        if best == NOTHING:
            return
        put(w.backups, v, best)
        for k in range(left):
            t = rest[k]
            if wants(w, best, t):
                for i in range(w.start[t], w.start[t] + w.size[t]):
                    newly[w.nodes[i]] -= w.residual[w.nodes[i]] != BARRED
        left = _without_topics_of(w, rest, left, best)


@inner_kernel
def draw(chance: NDArray[np.uint64], count: int) -> int:
    """A number below `count`, by SplitMix64: its whole state is one word, which is saved with the rest."""
    chance[0] += np.uint64(0x9E3779B97F4A7C15)
    z = chance[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return int(z >> np.uint64(33)) % count

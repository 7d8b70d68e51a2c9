"""State of a maintained overlay (paper 3, Struct 5): flat arrays of topics, links and backups.

Kernels change the arrays in place.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from broadloom.kernels import WORD, bit_of, inner_kernel, kernel, lowest, pack_rows, popcount

# The entries of `tally`.
NODES, MAX_DEGREE, LINKS, MARKS = range(4)


class OverlayArrays(NamedTuple):
    """The topics, links and backups of all nodes; each array has spare capacity.

    A node is an array index here. Indices ascend with the ids of nodes, so that ties are broken by id. A node
    that left keeps its index, without topics and links, until the arrays are built again.

    Attributes:
        bits: the topics of each node, as words of 64 bits.
        start: the offset in `nodes` of the subscribers of each topic, with the end appended.
        size: the number of subscribers of each topic.
        nodes: the subscribers of each topic, ascending, each list followed by spare capacity.
        links: the links between nodes.
        backups: per node its backups, and its primaries: the nodes that have it as a backup.
        at_degree: the number of nodes of each degree.
        residual: scratch: the remaining weight of each node as a backup.
        mark: scratch: the last search that visited a node.
        queue: scratch: the queue of a search.
        tally: the number of indices in use, the maximum degree, the number of links, the last mark.
        random_state: the state of the random number generator.
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
    queue: NDArray[np.int32]
    tally: NDArray[np.int64]
    random_state: NDArray[np.uint64]


class OverlayContents(NamedTuple):
    """The contents of `OverlayArrays` without spare capacity."""

    topic_start: NDArray[np.int64]
    topics: NDArray[np.int32]
    edges: NDArray[np.int32]
    backups: NDArray[np.int32]
    random_state: int


class Capacities(NamedTuple):
    """The capacities of `OverlayArrays`: nodes, topics, subscribers per topic, links and backups."""

    nodes: int
    topics: int
    subscribers: NDArray[np.int64]
    links: int
    backups: int


def new_arrays(contents: OverlayContents, capacities: Capacities) -> OverlayArrays:
    """The arrays of these contents, with these capacities."""
    n = len(contents.topic_start) - 1
    arrays = OverlayArrays(
        bits=np.zeros((capacities.nodes, -(-capacities.topics // WORD)), np.uint64),
        start=np.concatenate((np.zeros(1, np.int64), np.cumsum(capacities.subscribers))),
        size=np.zeros(capacities.topics, np.int32),
        nodes=np.empty(int(capacities.subscribers.sum()), np.uint32),
        links=new_pairs(capacities.nodes, capacities.links, lists=1),
        backups=new_pairs(capacities.nodes, capacities.backups, lists=2),
        at_degree=np.zeros(capacities.nodes + 1, np.int64),
        residual=np.zeros(capacities.nodes, np.int32),
        mark=np.zeros(capacities.nodes, np.int64),
        queue=np.empty(capacities.nodes, np.int32),
        tally=np.array([n, 0, len(contents.edges), 0], np.int64),
        random_state=np.array([contents.random_state], np.uint64),
    )
    arrays.bits[:n] = pack_rows(contents.topic_start, contents.topics, arrays.bits.shape[1])
    _list_subscribers(arrays, contents.topic_start, contents.topics)
    put_all(arrays.links, contents.edges)
    put_all(arrays.backups, contents.backups)
    arrays.at_degree[:] = np.bincount(arrays.links.sizes[0], minlength=capacities.nodes + 1)
    arrays.tally[MAX_DEGREE] = arrays.links.sizes.max(initial=0)
    return arrays


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
    """Add topic t to node u."""
    w.bits[u, t >> 6] |= bit_of(t)
    i = w.start[t] + w.size[t]
    while i > w.start[t] and w.nodes[i - 1] > u:
        w.nodes[i] = w.nodes[i - 1]
        i -= 1
    w.nodes[i] = u
    w.size[t] += 1


@inner_kernel
def unsubscribe(w: OverlayArrays, u: int, t: int) -> None:
    """Remove topic t from node u."""
    w.bits[u, t >> 6] &= ~bit_of(t)
    i = w.start[t]
    end = w.start[t] + w.size[t] - 1
    while w.nodes[i] != u:
        i += 1
    while i < end:
        w.nodes[i] = w.nodes[i + 1]
        i += 1
    w.size[t] -= 1


@inner_kernel
def degree_of(w: OverlayArrays, u: int) -> int:
    """The degree of a node."""
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
    """The topics of these nodes as compressed rows: the start of each row, and the topics, ascending."""
    start = np.zeros(len(nodes) + 1, np.int64)
    for row in range(len(nodes)):
        start[row + 1] = start[row]
        for k in range(w.bits.shape[1]):
            start[row + 1] += popcount(w.bits[nodes[row], k])
    topics = np.empty(start[-1], np.int32)
    i = 0
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
# The lists of a node among backups: its backups, and its primaries. Links have one list.
BACKUPS, PRIMARIES = range(2)


class PairLists(NamedTuple):
    """PairLists (u, v) as two halves: half 2p is in a list of u, and half 2p + 1 in a list of v.

    A link has no direction, so all halves of a node are in one list. The order in a list does not matter.

    Attributes:
        heads: per list and node, its first half.
        sizes: per list and node, its length.
        halves: per half, the node at the other end, and the halves after and before it in its list. The first
            half of a free pair is followed by that of the next free pair.
        free: the first half of a free pair.
    """

    heads: NDArray[np.int32]
    sizes: NDArray[np.int32]
    halves: NDArray[np.int32]
    free: NDArray[np.int64]


def new_pairs(nodes: int, capacity: int, lists: int) -> PairLists:
    """An empty set of pairs with this capacity."""
    halves = np.full((2 * capacity, 3), NOTHING, np.int32)
    halves[0 : 2 * capacity - 2 : 2, AFTER] = np.arange(2, 2 * capacity, 2)
    heads = np.full((lists, nodes), NOTHING, np.int32)
    sizes = np.zeros((lists, nodes), np.int32)
    return PairLists(heads, sizes, halves, np.zeros(1, np.int64))


def pair_capacity(pairs: PairLists) -> int:
    """The number of pairs that fit."""
    return len(pairs.halves) // 2


@inner_kernel
def put(pairs: PairLists, u: int, v: int) -> None:
    """Add the pair (u, v); the capacity must suffice."""
    half = pairs.free[0]
    pairs.free[0] = pairs.halves[half, AFTER]
    _push(pairs, half, u, v)
    _push(pairs, half + 1, v, u)


@inner_kernel
def _list_of(pairs: PairLists, half: int) -> int:
    """The list of its node that a half belongs to."""
    return half & (pairs.heads.shape[0] - 1)


@inner_kernel
def _push(pairs: PairLists, half: int, node: int, other: int) -> None:
    which = _list_of(pairs, half)
    head = pairs.heads[which, node]
    pairs.halves[half, OTHER] = other
    pairs.halves[half, AFTER] = head
    pairs.halves[half, BEFORE] = NOTHING
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
    which = _list_of(pairs, half)
    after = pairs.halves[half, AFTER]
    before = pairs.halves[half, BEFORE]
    if after != NOTHING:
        pairs.halves[after, BEFORE] = before
    if before != NOTHING:
        pairs.halves[before, AFTER] = after
    else:
        pairs.heads[which, node] = after
    pairs.sizes[which, node] -= 1


@kernel
def put_all(pairs: PairLists, ends: NDArray[np.int32]) -> None:
    """Add pairs, one per row."""
    for i in range(len(ends)):
        put(pairs, ends[i, 0], ends[i, 1])


@kernel
def listed(pairs: PairLists, which: int, node: int) -> NDArray[np.int32]:
    """The nodes at the other ends of a list, ascending."""
    found = np.empty(pairs.sizes[which, node], np.int32)
    half = pairs.heads[which, node]
    for i in range(len(found)):
        found[i] = pairs.halves[half, OTHER]
        half = pairs.halves[half, AFTER]
    found.sort()
    return found


@kernel
def all_pairs(pairs: PairLists, nodes: int) -> NDArray[np.int32]:
    """Every pair (u, v) once, one per row."""
    found = np.empty((len(pairs.halves) // 2, 2), np.int32)
    count = 0
    for u in range(nodes):
        half = pairs.heads[0, u]
        while half != NOTHING:
            if half & 1 == 0:
                found[count, 0] = u
                found[count, 1] = pairs.halves[half, OTHER]
                count += 1
            half = pairs.halves[half, AFTER]
    return found[:count].copy()


# Backups (Alg. 6, 11 and 12): covers of the topics of a node by other nodes. The weight of a backup is the
# number of its links and primaries. A node has `coverage` covers of its topics, and these share no node; a
# topic with fewer other subscribers is covered as often as possible.

# The rule by which covers are chosen: Alg. 12, Alg. 11, Alg. 12 with line 8 as printed, or Alg. 11 with all
# weights 1.
PRIMAL_DUAL, GREEDY, PRINTED, UNWEIGHTED = 0, 1, 2, 3

# The residual of an excluded node; it stays far above all others, whatever is subtracted.
BARRED = 2**31 - 1
FAR = 2**30


@kernel
def build_backups(w: OverlayArrays, coverage: int, cover: int, v: int) -> None:
    """Choose the backups of v again."""
    drop_backups(w, v)
    topics = topics_of(w, v)
    rest = np.empty(len(topics), np.int32)
    for _ in range(coverage):
        before = w.backups.sizes[BACKUPS, v]
        _weigh(w, v, cover == UNWEIGHTED)
        rest[:] = topics
        if cover in (GREEDY, UNWEIGHTED):
            _cover_greedily(w, v, rest)
        else:
            _cover_by_primal_dual(w, v, rest, cover == PRINTED)
        if w.backups.sizes[BACKUPS, v] == before:
            break  # all possible backups are chosen: no later round finds more


@kernel
def build_all_backups(w: OverlayArrays, coverage: int, cover: int, first: int, last: int) -> None:
    """Choose the backups of the nodes from `first` to before `last`, in order."""
    for v in range(first, last):
        build_backups(w, coverage, cover, v)


@kernel
def rebuild_backups(w: OverlayArrays, coverage: int, cover: int, nodes: NDArray[np.int32]) -> None:
    """Choose the backups of these nodes again, in order."""
    for i in range(len(nodes)):
        build_backups(w, coverage, cover, nodes[i])


@kernel
def replace_backup(w: OverlayArrays, coverage: int, cover: int, v: int) -> None:
    """After v has left: drop its backups, and choose new backups for its primaries (Alg. 8)."""
    drop_backups(w, v)
    primaries = listed(w.backups, PRIMARIES, v)
    while w.backups.heads[PRIMARIES, v] != NOTHING:
        take(w.backups, w.backups.heads[PRIMARIES, v])
    rebuild_backups(w, coverage, cover, primaries)


@inner_kernel
def drop_backups(w: OverlayArrays, v: int) -> None:
    """Drop the backups of v."""
    while w.backups.heads[BACKUPS, v] != NOTHING:
        take(w.backups, w.backups.heads[BACKUPS, v])


@inner_kernel
def _weigh(w: OverlayArrays, v: int, equal: bool) -> None:
    """Set the weight of every node before a round, 1 if `equal`; v and its present backups are excluded."""
    nodes = w.tally[NODES]
    residual = w.residual[:nodes]
    degree = w.links.sizes[0]
    primaries = w.backups.sizes[PRIMARIES]
    if equal:
        residual[:] = 1
    else:
        for u in range(len(residual)):  # over plain arrays, so that the compiler vectorises it
            residual[u] = degree[u] + primaries[u]
    w.residual[v] = BARRED
    half = w.backups.heads[BACKUPS, v]
    while half != NOTHING:
        w.residual[w.backups.halves[half, OTHER]] = BARRED
        half = w.backups.halves[half, AFTER]


@inner_kernel
def _cover_by_primal_dual(w: OverlayArrays, v: int, rest: NDArray[np.int32], positive: bool) -> None:
    """Alg. 12: take a random uncovered topic and its lightest subscriber; all its subscribers get lighter.

    A subscriber with residual 0 can be chosen, unless `positive`: line 8 as printed skips it, and a topic
    with only such subscribers stays uncovered in this round.
    """
    left = len(rest)
    while left > 0:
        t = rest[draw(w.random_state, left)]
        first, last = w.start[t], w.start[t] + w.size[t]
        best = NOTHING
        price = FAR
        for i in range(first, last):
            if positive and w.residual[w.nodes[i]] <= 0:
                continue
            if w.residual[w.nodes[i]] < price:
                best = w.nodes[i]
                price = w.residual[w.nodes[i]]
                if price == 0:
                    break
        if best == NOTHING:
            left = _without_topic(rest, left, t)
            continue
        if price > 0:
            for i in range(first, last):
                if not positive or w.residual[w.nodes[i]] > 0:
                    w.residual[w.nodes[i]] -= price
        put(w.backups, v, best)
        left = _without_topics_of(w, rest, left, best)


@inner_kernel
def _without_topic(rest: NDArray[np.int32], left: int, topic: int) -> int:
    """Remove a topic from the first `left` ones, which stay in order; the number that remains."""
    kept = 0
    for i in range(left):
        if rest[i] != topic:
            rest[kept] = rest[i]
            kept += 1
    return kept


@inner_kernel
def _without_topics_of(w: OverlayArrays, rest: NDArray[np.int32], left: int, u: int) -> int:
    """Remove the topics of u from the first `left` ones, which stay in order; the number that remains."""
    kept = 0
    for i in range(left):
        if not wants(w, u, rest[i]):
            rest[kept] = rest[i]
            kept += 1
    return kept


@kernel
def _cover_greedily(w: OverlayArrays, v: int, rest: NDArray[np.int32]) -> None:
    """Alg. 11: take the node of the least weight per newly covered topic; fractions are compared exactly."""
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
def draw(state: NDArray[np.uint64], count: int) -> int:
    """A random number below `count`, by SplitMix64, whose whole state is one word."""
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    z = state[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return int(z >> np.uint64(33)) % count

"""Who stands in for whom: covers of a node's topics by other nodes (paper 3, Alg. 6, 11 and 12).

A backup weighs as much as it has links and primaries already. A node has `coverage` covers of its topics,
none of which uses a node of another; a topic with fewer other subscribers is covered as often as it can be.
"""

import numpy as np
from numpy.typing import NDArray

from broadloom.kernels.jit import inner_kernel, kernel
from broadloom.maintenance._links import AFTER, BACKUPS, NOTHING, OTHER, PRIMARIES, listed, put, take
from broadloom.maintenance._world import NODES, World, topics_of, wants

# The residual of a node that may not be chosen; it stays far above all others, whatever is subtracted.
BARRED, FAR = 2**31 - 1, 2**30


@kernel
def build_backups(w: World, coverage: int, greedy: bool, v: int) -> None:
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
def build_all_backups(w: World, coverage: int, greedy: bool, first: int, last: int) -> None:
    """Choose the backups of these nodes, one after the other."""
    for v in range(first, last):
        build_backups(w, coverage, greedy, v)


@kernel
def rebuild_backups(w: World, coverage: int, greedy: bool, nodes: NDArray[np.int32]) -> None:
    """Choose the backups of these nodes anew, one after the other."""
    for i in range(len(nodes)):
        build_backups(w, coverage, greedy, nodes[i])


@kernel
def forget(w: World, coverage: int, greedy: bool, v: int) -> None:
    """After v has left: it has no backups, and those that it was a backup for get new ones (Alg. 8)."""
    drop_backups(w, v)
    primaries = listed(w.backups, PRIMARIES, v)
    while w.backups.heads[PRIMARIES, v] != NOTHING:
        take(w.backups, w.backups.heads[PRIMARIES, v])
    rebuild_backups(w, coverage, greedy, primaries)


@inner_kernel
def drop_backups(w: World, v: int) -> None:
    """Node v has no backups any more."""
    while w.backups.heads[BACKUPS, v] != NOTHING:
        take(w.backups, w.backups.heads[BACKUPS, v])


@inner_kernel
def _weigh(w: World, v: int) -> None:
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
def _cover_by_primal_dual(w: World, v: int, rest: NDArray[np.int32]) -> None:
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
def _without_topics_of(w: World, rest: NDArray[np.int32], left: int, u: int) -> int:
    """Take the topics of a node out of the first `left` ones, which stay in order; how many remain."""
    kept = 0
    for i in range(left):
        if not wants(w, u, rest[i]):
            rest[kept] = rest[i]
            kept += 1
    return kept


@kernel
def _cover_greedily(w: World, v: int, rest: NDArray[np.int32]) -> None:
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

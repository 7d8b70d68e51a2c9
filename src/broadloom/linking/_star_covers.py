"""Cheapest covers of a node's topics by its candidate edges: the part of the lower bound that trees miss.

The links of a node must cover its topics: each topic needs a link to another subscriber. That is the weighted
set cover problem, and its optimum exceeds its linear relaxation by far more than a tree's (which is none).
The covers here are found and proven by branch and bound; a node has some dozen candidates, so most searches
take less than a millisecond. Covers that were the cheapest once are kept, as they often are again.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from broadloom.kernels import WORD, bit_of, inner_kernel, kernel, lowest, popcount
from broadloom.linking._candidate_edges import Candidates
from broadloom.model import Interest

KEPT_COVERS = 24  # per node
# Steps from one search of a node to the next: twice as many if it found nothing new, half as many otherwise.
LEAST_WAIT, MOST_WAIT = 2, 64
SEARCH_NODES = 3_000  # the most nodes of a search during the ascent, which only has to find a good cover
PROOF_NODES = 100_000  # the most nodes of a search whose result is proven
# If a search is too long to prove the cheapest cover, a smaller share of its cost is tried.
SHARES = (0.97, 0.92, 0.85, 0.75)
ROUNDING = 2.0**-52  # twice the relative error of one operation
BETTER = 1.0 - 1e-9  # of its cost: a cheaper cover than this counts as new


class Stars(NamedTuple):
    """The candidate edges at each node (its entries), and the topics of the node that each of them covers.

    Attributes:
        start: the start of each node's entries, with the end appended.
        edge: the edge of each entry.
        other: the node at the other end.
        covered: as bits, the node's topics that the entry covers, by their rank.
        topic_start: the start of each node's topics by rank, with the end appended: only those with another
            subscriber, the ones with the fewest entries first.
        entry_start: the start of the entries that cover each of these topics, with the end appended.
        entries: their indices among the node's entries.
        rank: the rank of each subscription of `interest.topics`; -1 without another subscriber.
    """

    start: NDArray[np.int64]
    edge: NDArray[np.int32]
    other: NDArray[np.int32]
    covered: NDArray[np.uint64]
    topic_start: NDArray[np.int64]
    entry_start: NDArray[np.int64]
    entries: NDArray[np.int32]
    rank: NDArray[np.int32]


class Covers(NamedTuple):
    """The covers that were the cheapest of a node once, and when its next search is due.

    Attributes:
        size: the number of entries of each node's covers; 0: no cover.
        entries: the indices of these entries among the node's.
        oldest: the cover that is replaced next.
        due: the step of the next search.
        wait: the number of steps from one search to the next.
    """

    size: NDArray[np.int32]
    entries: NDArray[np.int32]
    oldest: NDArray[np.int32]
    due: NDArray[np.int64]
    wait: NDArray[np.int64]


class CoverWorkspace(NamedTuple):
    """Buffers of the search, most by depth: what is uncovered, the branches, and what was chosen.

    Attributes:
        uncovered: the topics that are not covered yet.
        spent: the cost of the entries chosen so far.
        branch: the entries to try.
        branches: their number.
        tried: the number of those that were tried.
        chosen: the entry chosen at each depth.
        excluded: per entry, whether its branch was tried already.
        residual: per entry, the cost that no topic pays yet.
        key: per branch, the cost per topic.
        best: the entries of the best cover.
    """

    uncovered: NDArray[np.uint64]
    spent: NDArray[np.float64]
    branch: NDArray[np.int32]
    branches: NDArray[np.int64]
    tried: NDArray[np.int64]
    chosen: NDArray[np.int32]
    excluded: NDArray[np.bool_]
    residual: NDArray[np.float64]
    key: NDArray[np.float64]
    best: NDArray[np.int32]


def stars_of(interest: Interest, candidates: Candidates) -> Stars:
    """The stars of all nodes."""
    most = int(np.diff(interest.topic_start).max(initial=1))
    return _stars(interest.topic_start, interest.topics, candidates, max(1, -(-most // WORD)))


@kernel
def _stars(
    topic_start: NDArray[np.int64], topics: NDArray[np.int32], candidates: Candidates, words: int
) -> Stars:
    n = len(topic_start) - 1
    edges = candidates.edges
    start = np.zeros(n + 1, np.int64)
    for e in range(len(edges)):
        start[edges[e, 0] + 1] += 1
        start[edges[e, 1] + 1] += 1
    for u in range(n):
        start[u + 1] += start[u]
    edge = np.empty(start[n], np.int32)
    other = np.empty(start[n], np.int32)
    filled = start[:n].copy()
    for e in range(len(edges)):
        for end in range(2):
            u = edges[e, end]
            edge[filled[u]] = e
            other[filled[u]] = edges[e, 1 - end]
            filled[u] += 1
    covered = np.zeros((start[n], words), np.uint64)
    topic_total = 0
    for i in range(len(topics)):
        topic_total = max(topic_total, topics[i] + 1)
    count = np.zeros(topic_total, np.int64)
    rank_of = np.empty(topic_total, np.int32)
    rank = np.full(len(topics), -1, np.int32)
    first_topic = np.zeros(n + 1, np.int64)
    entry_start = np.zeros(len(topics) + 1, np.int64)
    entries = np.empty(2 * len(candidates.topic), np.int32)
    for u in range(n):
        own = topics[topic_start[u] : topic_start[u + 1]]
        for t in own:
            count[t] = 0
        for i in range(start[u], start[u + 1]):
            for k in range(candidates.start[edge[i]], candidates.start[edge[i] + 1]):
                count[candidates.topic[k]] += 1
        place = first_topic[u]
        for j in np.argsort(count[own], kind="mergesort"):
            t = own[j]
            if count[t]:
                rank_of[t] = place - first_topic[u]
                rank[topic_start[u] + j] = rank_of[t]
                entry_start[place + 1] = entry_start[place] + count[t]
                count[t] = entry_start[place]  # from here on: where its next entry goes
                place += 1
        first_topic[u + 1] = place
        for i in range(start[u], start[u + 1]):
            for k in range(candidates.start[edge[i]], candidates.start[edge[i] + 1]):
                t = candidates.topic[k]
                covered[i, rank_of[t] >> 6] |= bit_of(rank_of[t])
                entries[count[t]] = i - start[u]
                count[t] += 1
    return Stars(start, edge, other, covered, first_topic, entry_start[: first_topic[n] + 1], entries, rank)


def no_stars() -> Stars:
    """The stars of no node."""
    nothing = np.empty(0, np.int32)
    zero = np.zeros(1, np.int64)
    return Stars(zero, nothing, nothing, np.empty((0, 1), np.uint64), zero, zero, nothing, nothing)


def no_covers(stars: Stars) -> Covers:
    """No cover yet; every node is due for a search."""
    n = len(stars.start) - 1
    most = int(np.minimum(np.diff(stars.start), np.diff(stars.topic_start)).max(initial=0))
    return Covers(
        np.zeros((n, KEPT_COVERS), np.int32),
        np.zeros((n, KEPT_COVERS, most), np.int32),
        np.zeros(n, np.int32),
        np.zeros(n, np.int64),
        np.full(n, LEAST_WAIT),
    )


@kernel
def carry_covers(old_stars: Stars, old: Covers, stars: Stars, new: Covers) -> None:
    """Take over the covers whose edges are still candidates."""
    n = len(stars.start) - 1
    index = np.full(n, -1, np.int32)
    for u in range(n):
        for i in range(stars.start[u], stars.start[u + 1]):
            index[stars.other[i]] = i - stars.start[u]
        kept = 0
        for c in range(old.size.shape[1]):
            size = old.size[u, c]
            found = 0
            for i in range(size):
                entry = index[old_stars.other[old_stars.start[u] + old.entries[u, c, i]]]
                if entry >= 0:
                    new.entries[u, kept, found] = entry
                    found += 1
            if size and found == size:
                new.size[u, kept] = size
                kept += 1
        new.oldest[u] = kept % new.size.shape[1]
        new.due[u] = old.due[u]
        new.wait[u] = old.wait[u]
        for i in range(stars.start[u], stars.start[u + 1]):
            index[stars.other[i]] = -1


@kernel
def cover_workspace(stars: Stars) -> CoverWorkspace:
    """A workspace large enough for every node."""
    entries = 1
    depth = 2
    for u in range(len(stars.start) - 1):
        here = stars.start[u + 1] - stars.start[u]
        entries = max(entries, here)
        depth = max(depth, min(here, stars.topic_start[u + 1] - stars.topic_start[u]) + 2)
    return CoverWorkspace(
        np.zeros((depth, stars.covered.shape[1]), np.uint64),
        np.zeros(depth),
        np.zeros((depth, entries), np.int32),
        np.zeros(depth, np.int64),
        np.zeros(depth, np.int64),
        np.zeros(depth, np.int32),
        np.zeros(entries, np.bool_),
        np.zeros(entries),
        np.zeros(entries),
        np.zeros(depth, np.int32),
    )


@kernel
def cheapest_cover(
    stars: Stars,
    u: int,
    cost: NDArray[np.float64],
    limit: float,
    most_nodes: int,
    work: CoverWorkspace,
) -> tuple[int, float, bool]:
    """Search a cover of the node's topics that costs less than the limit, by the cost of each entry.

    Depth first: take the uncovered topic with the fewest entries, and try each of these, the lowest cost per
    topic first; what was tried is excluded from the later branches. A branch ends if what it has spent and
    the topics' payments reach the best cost. Payments are a dual solution: each topic pays what is left of
    the cost of its cheapest entry.

    Returns:
        The number of entries of the best cover found, in `work.best`, 0 if there is none; its cost; whether
        the search was completed, which proves that no cover costs less.
    """
    found = 0
    best = limit
    topics = stars.topic_start[u + 1] - stars.topic_start[u]
    if topics == 0:
        return 0, min(limit, 0.0), True
    for word in range(work.uncovered.shape[1]):
        here = min(max(topics - WORD * word, 0), WORD)
        work.uncovered[0, word] = ~np.uint64(0) >> np.uint64(WORD - here) if here else np.uint64(0)
    for i in range(stars.start[u + 1] - stars.start[u]):
        work.excluded[i] = False
    work.spent[0] = 0.0
    nodes = 1
    depth = 0
    _open_branches(stars, u, cost, best, work, 0)
    while depth >= 0:
        if work.tried[depth] == work.branches[depth]:
            for b in range(work.branches[depth]):
                work.excluded[work.branch[depth, b]] = False
            depth -= 1
            continue
        i = work.branch[depth, work.tried[depth]]
        # Excluded within the branch too, where it covers nothing more.
        work.excluded[i] = True
        work.tried[depth] += 1
        work.chosen[depth] = i
        work.spent[depth + 1] = work.spent[depth] + cost[i]
        nodes += 1
        if nodes > most_nodes:
            return found, best, False
        left = np.uint64(0)
        for word in range(work.uncovered.shape[1]):
            rest = work.uncovered[depth, word] & ~stars.covered[stars.start[u] + i, word]
            work.uncovered[depth + 1, word] = rest
            left |= rest
        if left:
            depth += 1
            _open_branches(stars, u, cost, best, work, depth)
        elif work.spent[depth + 1] < best:
            best = work.spent[depth + 1]
            found = depth + 1
            for d in range(found):
                work.best[d] = work.chosen[d]
    return found, best, True


@inner_kernel
def _open_branches(
    stars: Stars, u: int, cost: NDArray[np.float64], best: float, work: CoverWorkspace, depth: int
) -> None:
    """List the entries to try at this depth; none if no cover below it can cost less than the best."""
    first = stars.topic_start[u]
    work.tried[depth] = 0
    work.branches[depth] = 0
    for i in range(stars.start[u + 1] - stars.start[u]):
        work.residual[i] = np.inf if work.excluded[i] else cost[i]
    bound = work.spent[depth]
    pivot, fewest = -1, np.int64(1) << 62
    for word in range(work.uncovered.shape[1]):
        left = work.uncovered[depth, word]
        while left:
            topic = first + WORD * word + lowest(left)
            left &= left - np.uint64(1)
            payment = np.inf
            count = 0
            for k in range(stars.entry_start[topic], stars.entry_start[topic + 1]):
                payment = min(payment, work.residual[stars.entries[k]])
                count += not work.excluded[stars.entries[k]]
            bound += payment
            if bound >= best:
                return
            for k in range(stars.entry_start[topic], stars.entry_start[topic + 1]):
                work.residual[stars.entries[k]] -= payment
            if count < fewest:
                pivot, fewest = topic, np.int64(count)
    for k in range(stars.entry_start[pivot], stars.entry_start[pivot + 1]):
        i = stars.entries[k]
        if work.excluded[i]:
            continue
        gain = 0
        for word in range(work.uncovered.shape[1]):
            gain += popcount(work.uncovered[depth, word] & stars.covered[stars.start[u] + i, word])
        at = work.branches[depth]
        while at and work.key[at - 1] > cost[i] / gain:
            work.key[at] = work.key[at - 1]
            work.branch[depth, at] = work.branch[depth, at - 1]
            at -= 1
        work.key[at] = cost[i] / gain
        work.branch[depth, at] = i
        work.branches[depth] += 1


@inner_kernel
def known_cover(covers: Covers, u: int, cost: NDArray[np.float64]) -> tuple[int, float]:
    """The cheapest cover of a node that is known, and its cost; -1 and infinity if none is."""
    cheapest, least = -1, np.inf
    for c in range(covers.size.shape[1]):
        size = covers.size[u, c]
        total = 0.0
        for i in range(size):
            total += cost[covers.entries[u, c, i]]
        if size and total < least:
            cheapest, least = c, total
    return cheapest, least


@inner_kernel
def add_cover(covers: Covers, u: int, work: CoverWorkspace, size: int) -> int:
    """Keep the cover that a search has found, in place of the oldest one; returns its index."""
    c = covers.oldest[u]
    covers.oldest[u] = (c + 1) % covers.size.shape[1]
    covers.size[u, c] = size
    for i in range(size):
        covers.entries[u, c, i] = work.best[i]
    return c


@kernel
def cover_costs(stars: Stars, covers: Covers, cost: NDArray[np.float64]) -> NDArray[np.float64]:
    """The cost of the cheapest cover that is known of each node; 0 for a node without topics to cover."""
    n = len(stars.start) - 1
    least = np.zeros(n)
    for u in range(n):
        if stars.topic_start[u] < stars.topic_start[u + 1]:
            _, least[u] = known_cover(covers, u, cost[stars.start[u] : stars.start[u + 1]])
    return least


@kernel
def edges_in_covers(stars: Stars, covers: Covers, cost: NDArray[np.float64]) -> NDArray[np.int32]:
    """The edges of the cheapest cover that is known of each node; some are listed twice."""
    found = np.empty(len(stars.edge), np.int32)
    count = 0
    for u in range(len(stars.start) - 1):
        cover, _ = known_cover(covers, u, cost[stars.start[u] : stars.start[u + 1]])
        if cover >= 0:
            for k in range(covers.size[u, cover]):
                found[count] = stars.edge[stars.start[u] + covers.entries[u, cover, k]]
                count += 1
    return found[:count]


@kernel(cost=100)
def proven_costs(stars: Stars, covers: Covers, cost: NDArray[np.float64]) -> NDArray[np.float64]:
    """For each node a cost that no cover of its topics goes below: that of the cheapest one, if it is proven.

    Payments are off by one rounding per topic and entry at most, and so is their sum: more is taken off.
    """
    n = len(stars.start) - 1
    work = cover_workspace(stars)
    proven = np.zeros(n)
    for u in range(n):
        here = cost[stars.start[u] : stars.start[u + 1]]
        _, known = known_cover(covers, u, here)
        size, best, is_proven = cheapest_cover(stars, u, here, known * BETTER, PROOF_NODES, work)
        if size:
            add_cover(covers, u, work, size)
        if not is_proven:
            for share in SHARES:
                _, least, is_proven = cheapest_cover(stars, u, here, share * best, PROOF_NODES, work)
                if is_proven:
                    best = least
                    break
        if is_proven:
            terms = 4 * (stars.topic_start[u + 1] - stars.topic_start[u]) + 16
            proven[u] = best * (1.0 - terms * ROUNDING)
    return proven


@kernel
def cover_values(
    interest_rows: tuple[NDArray[np.int64], NDArray[np.int32]],
    stars: Stars,
    covers: Covers,
    cost: NDArray[np.float64],
    pairs: tuple[NDArray[np.int32], NDArray[np.int32]],
) -> NDArray[np.float64]:
    """For each pair, about how much cheaper the cheapest cover of its first node gets if the pair costs 0.

    An entry is superfluous if the other node has the topics that only this entry covers. It is faster if
    pairs of one node follow each other.
    """
    words = stars.covered.shape[1]
    shared = np.empty(words, np.uint64)
    once = np.empty(words, np.uint64)
    alone = np.empty((covers.entries.shape[1], covers.entries.shape[2], words), np.uint64)
    value = np.zeros(len(pairs[0]))
    last = -1
    best = 0.0
    for p in range(len(value)):
        u = pairs[0][p]
        here = cost[stars.start[u] : stars.start[u + 1]]
        if u != last:
            _, best = known_cover(covers, u, here)
            last = u
            for c in range(covers.size.shape[1]):
                _topics_covered_once(stars, covers, u, c, once)
                for k in range(covers.size[u, c]):
                    for word in range(words):
                        alone[c, k, word] = (
                            once[word] & stars.covered[stars.start[u] + covers.entries[u, c, k], word]
                        )
        _shared_topics(interest_rows, stars.rank, u, pairs[1][p], shared)
        for c in range(covers.size.shape[1]):
            total = 0.0
            for k in range(covers.size[u, c]):
                needed = np.uint64(0)
                for word in range(words):
                    needed |= alone[c, k, word] & ~shared[word]
                total += here[covers.entries[u, c, k]] if needed else 0.0
            if covers.size[u, c]:
                value[p] = max(value[p], best - total)
    return value


@inner_kernel
def _topics_covered_once(stars: Stars, covers: Covers, u: int, c: int, once: NDArray[np.uint64]) -> None:
    """The topics that exactly one entry of a cover covers."""
    for word in range(len(once)):
        once[word] = twice = np.uint64(0)
        for k in range(covers.size[u, c]):
            topics = stars.covered[stars.start[u] + covers.entries[u, c, k], word]
            twice |= once[word] & topics
            once[word] |= topics
        once[word] &= ~twice


@inner_kernel
def _shared_topics(
    interest_rows: tuple[NDArray[np.int64], NDArray[np.int32]],
    rank: NDArray[np.int32],
    u: int,
    v: int,
    shared: NDArray[np.uint64],
) -> int:
    """The topics of u that v has too, as bits by rank; returns their number."""
    topic_start, topics = interest_rows
    for word in range(len(shared)):
        shared[word] = np.uint64(0)
    count = 0
    j = topic_start[v]
    for i in range(topic_start[u], topic_start[u + 1]):
        while j < topic_start[v + 1] and topics[j] < topics[i]:
            j += 1
        if j < topic_start[v + 1] and topics[j] == topics[i]:
            shared[rank[i] >> 6] |= bit_of(rank[i])
            count += 1
    return count


@kernel
def cover_prices(
    interest_rows: tuple[NDArray[np.int64], NDArray[np.int32]],
    stars: Stars,
    cost: NDArray[np.float64],
    pairs: tuple[NDArray[np.int32], NDArray[np.int32]],
) -> NDArray[np.float64]:
    """For each pair, the cost at which entries of its first node cover the topics that the two share.

    If a pair costs as much, no cover needs it: these entries can replace it. The entry of the lowest cost per
    topic is taken first.
    """
    words = stars.covered.shape[1]
    left = np.zeros(words, np.uint64)
    price = np.zeros(len(pairs[0]))
    for p in range(len(price)):
        u = pairs[0][p]
        count = _shared_topics(interest_rows, stars.rank, u, pairs[1][p], left)
        while count:
            best, gain, least = -1, 0, np.inf
            for i in range(stars.start[u], stars.start[u + 1]):
                here = 0
                for word in range(words):
                    here += popcount(left[word] & stars.covered[i, word])
                if here and cost[i] < least * here:
                    best, gain, least = i, here, cost[i] / here
            price[p] += cost[best]
            count -= gain
            for word in range(words):
                left[word] &= ~stars.covered[best, word]
    return price

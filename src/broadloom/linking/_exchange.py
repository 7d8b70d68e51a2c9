"""Edge exchange within a list of candidates: take a link out, and put in lighter ones that mend what breaks.

A link that is taken out breaks the topics that it alone holds together, each into two sides. Any candidate
from one side to the other mends a topic. So a few searches tell whether the link can go for nothing, or which
candidates could take its place for less.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from broadloom.kernels import inner_kernel, kernel, lowest, popcount
from broadloom.linking._candidates import Candidates
from broadloom.linking.reverse_delete import rarest_first
from broadloom.model import Interest

MOST_CUTS = 64  # a link that holds more topics together stays: their sides are kept as bits of a word
MET, LEFT, RIGHT = -1, 0, 1

# Annealing starts at HEAT of the mean weight of a link, and cools down to 0.
HEAT = 0.1


class Links(NamedTuple):
    """The candidates at each node: the first `degree[u]` from `start[u]` on are links, the others wait."""

    start: NDArray[np.int64]
    neighbour: NDArray[np.int32]
    edge: NDArray[np.int32]
    degree: NDArray[np.int32]


class Cuts(NamedTuple):
    """The topics that break without a link, and who is on one side of each.

    Attributes:
        word: of each cut, the word of its topic.
        bit: of each cut, the bit of its topic in that word.
        start: where the nodes of each cut's side start in `nodes`, with the end appended.
        nodes: the nodes of one side, cut after cut.
        sides: per node, as bits: on which sides it is.
    """

    word: NDArray[np.int64]
    bit: NDArray[np.uint64]
    start: NDArray[np.int64]
    nodes: NDArray[np.int32]
    sides: NDArray[np.uint64]


class Search(NamedTuple):
    """What searches write on: who was seen by which, the nodes reached on each side, the last stamp."""

    seen: NDArray[np.int64]
    reached: NDArray[np.int32]
    stamp: NDArray[np.int64]


class Offers(NamedTuple):
    """Candidates that mend something: the edge, and as bits which cuts it mends."""

    edge: NDArray[np.int32]
    mends: NDArray[np.uint64]


class Exchange:
    """An overlay among candidate edges, and how it changes.

    Attributes:
        linked: which candidates are in the overlay.
    """

    def __init__(self, interest: Interest, candidates: Candidates, linked: NDArray[np.bool_]) -> None:
        self.linked = linked.copy()
        self._weight, self._edges = candidates.weight, candidates.edges
        self._bits = rarest_first(interest)
        self._links = _links(interest.node_count, candidates.edges, self.linked)

    @property
    def total_weight(self) -> float:
        """The weight of the overlay."""
        return float(self._weight[self.linked].sum())

    def descend(self) -> None:
        """Try every link once, the heaviest first; the overlay never gets heavier."""
        links = np.flatnonzero(self.linked)
        order = links[np.argsort(-self._weight[links], kind="stable")]
        self._try(order, np.zeros(len(order)))

    def anneal(self, sweeps: int, rng: np.random.Generator) -> None:
        """Try every link in random order, sweep after sweep, at first with some tolerance of heavier ones."""
        heat = HEAT * self._weight[self.linked].mean() if self.linked.any() else 0.0
        for sweep in range(sweeps):
            order = rng.permutation(np.flatnonzero(self.linked))
            self._try(order, rng.exponential(heat * (1.0 - sweep / sweeps), len(order)))

    def _try(self, order: NDArray[np.int64], tolerance: NDArray[np.float64]) -> None:
        _exchange(self._bits, self._edges, self._weight, self.linked, self._links, order, tolerance)


@kernel
def _links(nodes: int, edges: NDArray[np.int32], linked: NDArray[np.bool_]) -> Links:
    start, degree = np.zeros(nodes + 1, np.int64), np.zeros(nodes, np.int32)
    for e in range(len(edges)):
        for end in range(2):
            start[edges[e, end] + 1] += 1
    for u in range(nodes):
        start[u + 1] += start[u]
    links = Links(start, np.empty(2 * len(edges), np.int32), np.empty(2 * len(edges), np.int32), degree)
    filled = start.copy()
    for wanted in (True, False):
        for e in range(len(edges)):
            if linked[e] == wanted:
                for end in range(2):
                    u, v = edges[e, end], edges[e, 1 - end]
                    links.neighbour[filled[u]], links.edge[filled[u]] = v, e
                    filled[u] += 1
                    degree[u] += wanted
    return links


@kernel
def _exchange(
    bits: NDArray[np.uint64],
    edges: NDArray[np.int32],
    weight: NDArray[np.float64],
    linked: NDArray[np.bool_],
    links: Links,
    order: NDArray[np.int64],
    tolerance: NDArray[np.float64],
) -> None:
    """Exchange each link for what costs less than its weight and the tolerance, if there is such a thing."""
    n = len(links.degree)
    search = Search(np.zeros(n, np.int64), np.empty((2, n), np.int32), np.zeros(1, np.int64))
    cuts = Cuts(
        np.empty(MOST_CUTS, np.int64),
        np.empty(MOST_CUTS, np.uint64),
        np.zeros(MOST_CUTS + 1, np.int64),
        np.empty(MOST_CUTS * n, np.int32),
        np.zeros(n, np.uint64),
    )
    offers = Offers(np.empty(len(links.edge), np.int32), np.empty(len(links.edge), np.uint64))
    chosen = np.empty(MOST_CUTS, np.int64)
    for i in range(len(order)):
        e = order[i]
        u, v = edges[e, 0], edges[e, 1]
        limit = weight[e] * (1.0 - 1e-9) + tolerance[i]  # ties would go round in circles
        if (
            not linked[e]
            or _needs(bits, links, weight, u, v, limit)
            or _needs(bits, links, weight, v, u, limit)
        ):
            continue
        _turn(links, edges, linked, e)
        count = _find_cuts(bits, links, u, v, search, cuts)
        if count > MOST_CUTS:
            _turn(links, edges, linked, e)
        elif count > 0:
            found = _collect_offers(bits, links, weight, cuts, count, e, limit, offers)
            taken = _choose(weight, offers, found, count, limit, chosen)
            if taken == 0:
                _turn(links, edges, linked, e)
            for k in range(taken):
                _turn(links, edges, linked, offers.edge[chosen[k]])


@kernel
def _needs(
    bits: NDArray[np.uint64], links: Links, weight: NDArray[np.float64], u: int, v: int, limit: float
) -> bool:
    """Whether u has a topic from v alone, and no candidate below the limit brings another one with it."""
    border = links.start[u] + links.degree[u]
    for word in range(bits.shape[1]):
        alone = bits[u, word] & bits[v, word]
        for i in range(links.start[u], links.start[u + 1]):
            if not alone:
                break
            if links.neighbour[i] != v and (i < border or weight[links.edge[i]] < limit):
                alone &= ~bits[links.neighbour[i], word]
        if alone:
            return True
    return False


@kernel
def _turn(links: Links, edges: NDArray[np.int32], linked: NDArray[np.bool_], e: int) -> None:
    """Make a link of a waiting candidate, or the other way round."""
    change = -1 if linked[e] else 1
    linked[e] = not linked[e]
    for end in range(2):
        u = edges[e, end]
        at = links.start[u]
        while links.edge[at] != e:
            at += 1
        border = links.start[u] + links.degree[u] - (change < 0)
        links.edge[at], links.edge[border] = links.edge[border], links.edge[at]
        links.neighbour[at], links.neighbour[border] = links.neighbour[border], links.neighbour[at]
        links.degree[u] += change


@kernel
def _find_cuts(bits: NDArray[np.uint64], links: Links, u: int, v: int, search: Search, cuts: Cuts) -> int:
    """Note the topics in which u and v are not connected; how many, or MOST_CUTS + 1 if there are more.

    Most topics are settled by the bits of neighbours: where an end has none left, or both have one in common.
    """
    count = 0
    for word in range(bits.shape[1]):
        shared = bits[u, word] & bits[v, word]
        if not shared:
            continue
        at_u, at_v, common = _around(bits, word, links, u, v, search)
        open_topics = shared & ~common
        while open_topics:
            bit = np.uint64(lowest(open_topics))
            open_topics &= open_topics - np.uint64(1)
            if count == MOST_CUTS:
                return MOST_CUTS + 1
            if not (at_u >> bit) & np.uint64(1):
                side, size = LEFT, 1
                search.reached[LEFT, 0] = u
            elif not (at_v >> bit) & np.uint64(1):
                side, size = RIGHT, 1
                search.reached[RIGHT, 0] = v
            else:
                side, size = _search(bits, word, bit, links, u, v, search)
            if side != MET:
                first = cuts.start[count]
                for i in range(size):
                    cuts.nodes[first + i] = search.reached[side, i]
                cuts.word[count], cuts.bit[count] = word, bit
                count += 1
                cuts.start[count] = first + size
    return count


@inner_kernel
def _around(
    bits: NDArray[np.uint64], word: int, links: Links, u: int, v: int, search: Search
) -> tuple[np.uint64, np.uint64, np.uint64]:
    """The topics of u's neighbours, of v's neighbours, and of those that they have in common."""
    at_u, at_v, common = np.uint64(0), np.uint64(0), np.uint64(0)
    search.stamp[0] += 1
    for i in range(links.start[u], links.start[u] + links.degree[u]):
        at_u |= bits[links.neighbour[i], word]
        search.seen[links.neighbour[i]] = search.stamp[0]
    for i in range(links.start[v], links.start[v] + links.degree[v]):
        at_v |= bits[links.neighbour[i], word]
        if search.seen[links.neighbour[i]] == search.stamp[0]:
            common |= bits[links.neighbour[i], word]
    return at_u, at_v, common


@kernel
def _search(
    bits: NDArray[np.uint64], word: int, bit: np.uint64, links: Links, u: int, v: int, search: Search
) -> tuple[int, int]:
    """Search from u and v in turn, over the nodes with that bit: the side that is cut off, and its size."""
    seen, reached, last_stamp = search
    stamp = last_stamp[0] + 1
    last_stamp[0] += 2
    reached[LEFT, 0], reached[RIGHT, 0] = u, v
    seen[u], seen[v] = stamp, stamp + 1
    head, own_size, other_size, side = 0, 1, 1, LEFT
    while head < own_size:
        x = reached[side, head]
        for i in range(links.start[x], links.start[x] + links.degree[x]):
            y = links.neighbour[i]
            if seen[y] == stamp + side or not (bits[y, word] >> bit) & np.uint64(1):
                continue
            if seen[y] == stamp + 1 - side:
                return MET, 0
            seen[y] = stamp + side
            reached[side, own_size] = y
            own_size += 1
        head += side
        side = 1 - side
        own_size, other_size = other_size, own_size
    return side, own_size


@kernel
def _collect_offers(
    bits: NDArray[np.uint64],
    links: Links,
    weight: NDArray[np.float64],
    cuts: Cuts,
    count: int,
    but: int,
    limit: float,
    offers: Offers,
) -> int:
    """The waiting candidates below the limit that mend a cut, except one; how many there are."""
    for c in range(count):
        for i in range(cuts.start[c], cuts.start[c + 1]):
            cuts.sides[cuts.nodes[i]] |= np.uint64(1) << np.uint64(c)
    found = 0
    for c in range(count):
        for i in range(cuts.start[c], cuts.start[c + 1]):
            x = cuts.nodes[i]
            if lowest(cuts.sides[x]) != c:
                continue  # it was met on the side of an earlier cut
            for k in range(links.start[x] + links.degree[x], links.start[x + 1]):
                e = links.edge[k]
                if weight[e] < limit and e != but:
                    mends = _mends(bits, cuts, x, links.neighbour[k])
                    if mends:
                        offers.edge[found], offers.mends[found] = e, mends
                        found += 1
    for i in range(cuts.start[count]):
        cuts.sides[cuts.nodes[i]] = np.uint64(0)
    return found


@inner_kernel
def _mends(bits: NDArray[np.uint64], cuts: Cuts, x: int, y: int) -> np.uint64:
    """As bits: the cuts that have x and y on different sides, both with the topic."""
    mends = np.uint64(0)
    apart = cuts.sides[x] ^ cuts.sides[y]
    while apart:
        c = lowest(apart)
        apart &= apart - np.uint64(1)
        both = bits[x, cuts.word[c]] & bits[y, cuts.word[c]]
        mends |= ((both >> cuts.bit[c]) & np.uint64(1)) << np.uint64(c)
    return mends


@kernel
def _choose(
    weight: NDArray[np.float64],
    offers: Offers,
    found: int,
    count: int,
    limit: float,
    chosen: NDArray[np.int64],
) -> int:
    """Offers that mend all cuts for less than the limit: how many were chosen, 0 if there are none.

    The lightest one that mends all of them, or a greedy cover if that is lighter.
    """
    everything = ~np.uint64(0) >> np.uint64(64 - count)
    left, total, taken = everything, 0.0, 0
    while left and total < limit:
        best, least = -1, np.inf
        for i in range(found):
            mended = popcount(offers.mends[i] & left)
            if mended and weight[offers.edge[i]] / mended < least:
                best, least = i, weight[offers.edge[i]] / mended
        if best < 0:
            return 0
        chosen[taken] = best
        taken += 1
        total += weight[offers.edge[best]]
        left &= ~offers.mends[best]
    lightest, least = -1, min(total, limit) if not left else limit
    for i in range(found):
        if offers.mends[i] == everything and weight[offers.edge[i]] < least:
            lightest, least = i, weight[offers.edge[i]]
    if lightest >= 0:
        chosen[0] = lightest
        return 1
    return taken if not left and total < limit else 0

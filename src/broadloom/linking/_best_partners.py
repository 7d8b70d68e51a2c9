"""The best pair that is left, by weight a contribution, then `(u, v)`: a few candidates a node, kept lazily.

A pair's key w/mu only rises, since its contribution only falls. So each node `u` keeps the few best partners
`v > u` that it once found; the first one's key is a lower bound for the whole row of `u`, and a knockout tree
knows the row of the lowest bound. If that bound still is its pair's key, the pair is the best of all; if not,
the pair moves back in its row, and a row that has used up its partners is looked through again. Memory is
linear in the nodes.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from broadloom.kernels import bit_of, by_word, inner_kernel, kernel
from broadloom.linking._components import EDGES_ADDED, Components, contribution
from broadloom.linking._rows import STRIP, any_from, count_bits
from broadloom.model import UNIFORM, WeightArrays, weight_of

# Screening compares w <= key * mu, which rounds otherwise than w / mu <= key: this much is let through.
SLACK = 1 + 1e-12

KEPT = 6  # partners a row: more of them are found more slowly, but last longer
NONE = -1
GATHER = 16  # the members are gathered anew when a row was looked through for every so many of them
MEMBERS, ROWS_LEFT, GATHERED = range(3)  # places in `Partners.state`


class Partners(NamedTuple):
    """The best partners of all nodes.

    Behind the partners that a row keeps stands NONE, with a lower bound on the keys of all its other pairs:
    infinite if there are none.

    Attributes:
        key: per row the keys of its partners, ascending; there are rows for a power of two of nodes.
        partner: per row the partners with these keys.
        winner: the knockout tree over the rows, its root at 1, row `u` at `len(key) + u`.
        members: the nodes that may still be partners, ascending.
        subscribed: the words of the members, a row a word, when they were last gathered.
        outside: likewise; since then they have only lost bits, where the main component is still the same.
        bounds: on the contribution of each member, in the row that is looked through.
        state: how many members there are, for how many rows more they do before they are gathered anew, and
            how many edges had been added when they were.
    """

    key: NDArray[np.float64]
    partner: NDArray[np.int64]
    winner: NDArray[np.int64]
    members: NDArray[np.int64]
    subscribed: NDArray[np.uint64]
    outside: NDArray[np.uint64]
    bounds: NDArray[np.int32]
    state: NDArray[np.int64]


def new_partners(c: Components) -> Partners:
    """Nothing known: every row has to be looked through when its turn comes."""
    nodes = len(c.topic_start) - 1
    size = 1 << max(nodes - 1, 0).bit_length()
    key = np.full((size, KEPT + 1), np.inf)
    key[:nodes] = 0.0
    winner = np.zeros(2 * size, np.int64)
    winner[size:] = np.arange(size)
    while size > 1:
        winner[size // 2 : size] = winner[size : 2 * size : 2]
        size //= 2
    return Partners(
        key,
        np.full(key.shape, NONE),
        winner,
        np.arange(nodes),
        by_word(c.subscribed),
        by_word(c.outside),
        np.empty(nodes, np.int32),
        np.array([nodes, 0, 0], np.int64),
    )


@kernel
def start_from(partners: Partners, others: Partners) -> None:
    """Know what the others know: their bounds hold for any choice of nodes."""
    for u in range(len(partners.key)):
        for i in range(KEPT + 1):
            partners.key[u, i], partners.partner[u, i] = others.key[u, i], others.partner[u, i]
    for i in range(len(partners.winner)):
        partners.winner[i] = others.winner[i]
    for u in range(len(partners.members)):
        partners.members[u] = u
    partners.state[MEMBERS], partners.state[ROWS_LEFT] = len(partners.members), 0


@inner_kernel
def least_key(partners: Partners) -> float:
    """A lower bound on the key of the best pair."""
    return partners.key[partners.winner[1], 0]


@kernel
def best_pair(
    partners: Partners, c: Components, weights: WeightArrays, degree: NDArray[np.int64], limit: int
) -> tuple[int, int, int]:
    """The best pair of nodes of degrees below the limit, and its contribution; NONE if none contributes.

    Between two calls contributions must not rise, nor the limit, nor degrees fall.
    """
    while True:
        u = partners.winner[1]
        v, key = partners.partner[u, 0], partners.key[u, 0]
        if np.isinf(key):
            return NONE, NONE, 0
        if degree[u] >= limit:
            partners.key[u, 0], partners.partner[u, 0] = np.inf, NONE
        elif v == NONE:
            _look_through(partners, c, weights, degree, limit, u)
        else:
            mu = contribution(c, u, v) if degree[v] < limit else 0
            now = weight_of(weights, u, v) / mu if mu > 0 else np.inf
            if now == key:
                return u, v, mu
            _move_back(partners, u, now)
        i = (len(partners.key) + u) >> 1
        while i > 0:
            _play(partners, i)
            i >>= 1


@inner_kernel
def _play(partners: Partners, i: int) -> None:
    """Decide the match at this place of the tree; the earlier row wins a draw."""
    first, second = partners.winner[2 * i], partners.winner[2 * i + 1]
    partners.winner[i] = first if partners.key[first, 0] <= partners.key[second, 0] else second


@inner_kernel
def _move_back(partners: Partners, u: int, now: float) -> None:
    """Give the first partner of a row its key of now; it is forgotten if others may be better than it."""
    key, partner, v = partners.key, partners.partner, partners.partner[u, 0]
    for i in range(KEPT):
        if now < key[u, i + 1] or (now == key[u, i + 1] and v < partner[u, i + 1]):
            key[u, i], partner[u, i] = now, v
            return
        key[u, i], partner[u, i] = key[u, i + 1], partner[u, i + 1]
        if partner[u, i] == NONE:
            return


@inner_kernel
def _look_through(
    partners: Partners,
    c: Components,
    weights: WeightArrays,
    degree: NDArray[np.int64],
    limit: int,
    u: int,
) -> None:
    """Find the best partners of u anew."""
    key, partner, last = partners.key, partners.partner, KEPT - 1
    seen = key[u, 0]
    for i in range(KEPT + 1):
        key[u, i], partner[u, i] = np.inf, NONE
    enough = 1  # with equal weights, the least contribution that gets a pair in
    _gather(partners, c, degree, limit)
    place = _place_of(partners, c, u)
    bounds = partners.bounds[: partners.state[MEMBERS]]
    count_bits(partners.subscribed, partners.outside, place, place + 1, bounds[place + 1 :])
    for first in range(place + 1, len(bounds), STRIP):
        strip = bounds[first : first + STRIP]
        if not any_from(strip, enough):
            continue
        for i in range(len(strip)):
            most, v = strip[i], partners.members[first + i]
            if most < enough or degree[v] >= limit:
                continue
            w = weight_of(weights, u, v)
            if w <= seen * most * SLACK:  # this pair was used up, unless the bound is loose
                most = contribution(c, u, v)
            if w < key[u, last] * most * SLACK and most > 0 and w / most < key[u, last]:
                _insert(partners, u, v, w / most)
                if weights.kind == UNIFORM and partner[u, last] != NONE:
                    enough = int(np.rint(1.0 / key[u, last])) + 1
    key[u, KEPT] = key[u, last]


@inner_kernel
def _insert(partners: Partners, u: int, v: int, new: float) -> None:
    """Put a partner larger than the others into a row, in place of its last one."""
    key, partner, i = partners.key, partners.partner, KEPT - 1
    while i > 0 and key[u, i - 1] > new:
        key[u, i], partner[u, i] = key[u, i - 1], partner[u, i - 1]
        i -= 1
    key[u, i], partner[u, i] = new, v


@inner_kernel
def _gather(partners: Partners, c: Components, degree: NDArray[np.int64], limit: int) -> None:
    """Now and then, forget the members that have reached the limit, and renew the words of the others."""
    members, state = partners.members, partners.state
    state[ROWS_LEFT] -= 1
    if state[ROWS_LEFT] >= 0:
        return
    size = 0
    for i in range(state[MEMBERS]):
        u = members[i]
        if degree[u] < limit:
            members[size] = u
            for w in range(c.outside.shape[1]):
                partners.subscribed[w, size] = c.subscribed[u, w]
                partners.outside[w, size] = c.outside[u, w]
            size += 1
    state[MEMBERS], state[ROWS_LEFT], state[GATHERED] = size, size // GATHER, c.tally[EDGES_ADDED]


@inner_kernel
def _place_of(partners: Partners, c: Components, u: int) -> int:
    """The place of u among the members, after its words are renewed there.

    Where a topic has another main component since the members were gathered, their words do not tell who is
    outside: there u is made an outsider, so that all who share the topic count.
    """
    low, high = 0, partners.state[MEMBERS]
    while low < high:
        middle = (low + high) // 2
        if partners.members[middle] < u:
            low = middle + 1
        else:
            high = middle
    for w in range(c.outside.shape[1]):
        partners.outside[w, low] = c.outside[u, w]
    for i in range(c.topic_start[u], c.topic_start[u + 1]):
        t = c.topics[i]
        if c.main_since[t] >= partners.state[GATHERED]:
            partners.outside[t >> 6, low] |= bit_of(t)
    return low

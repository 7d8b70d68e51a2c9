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

from broadloom._jit import inner_kernel, kernel
from broadloom.linking._components import Components, contribution, most_contribution, same_group
from broadloom.model.weights import UNIFORM, WeightArrays, weight_of

# Screening compares w <= key * mu, which rounds otherwise than w / mu <= key: this much is let through.
SLACK = 1 + 1e-12

KEPT = 3  # partners a row: more of them are found more slowly, but last longer
NONE = -1
THIN_OUT = 16  # rows that are looked through before the members are thinned out again
MEMBERS, ROWS_LEFT = 0, 1  # places in `Partners.counts`


class Partners(NamedTuple):
    """The best partners of all nodes.

    Behind the partners that a row keeps stands NONE, with a lower bound on the keys of all its other pairs:
    infinite if there are none.

    Attributes:
        key: per row the keys of its partners, ascending; there are rows for a power of two of nodes.
        partner: per row the partners with these keys.
        winner: the knockout tree over the rows, its root at 1, row `u` at `len(key) + u`.
        members: the nodes that may still be partners, ascending.
        counts: how many members there are, and for how many rows more they do before they are thinned out.
    """

    key: NDArray[np.float64]
    partner: NDArray[np.int64]
    winner: NDArray[np.int64]
    members: NDArray[np.int64]
    counts: NDArray[np.int64]


def new_partners(nodes: int) -> Partners:
    """Nothing known: every row has to be looked through when its turn comes."""
    size = 1 << max(nodes - 1, 0).bit_length()
    key = np.full((size, KEPT + 1), np.inf)
    key[:nodes] = 0.0
    winner = np.zeros(2 * size, np.int64)
    winner[size:] = np.arange(size)
    while size > 1:
        winner[size // 2 : size] = winner[size : 2 * size : 2]
        size //= 2
    counts = np.array([nodes, THIN_OUT], np.int64)
    return Partners(key, np.full(key.shape, NONE), winner, np.arange(nodes), counts)


@kernel
def start_from(partners: Partners, others: Partners) -> None:
    """Know what the others know: their bounds hold for any choice of nodes."""
    for u in range(len(partners.key)):
        for i in range(KEPT + 1):
            partners.key[u, i], partners.partner[u, i] = others.key[u, i], others.partner[u, i]
    for i in range(len(partners.winner)):
        partners.winner[i] = others.winner[i]
    for i in range(len(partners.members)):
        partners.members[i] = i
    partners.counts[MEMBERS] = len(partners.members)


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
    _thin_out(partners, degree, limit)
    key, partner, last = partners.key, partners.partner, KEPT - 1
    seen = key[u, 0]
    for i in range(KEPT + 1):
        key[u, i], partner[u, i] = np.inf, NONE
    enough = 1  # with equal weights, the least contribution that gets a pair in
    for i in range(_first_above(partners, u), partners.counts[MEMBERS]):
        v = partners.members[i]
        most = most_contribution(c, u, v)
        if most < enough or degree[v] >= limit:
            continue
        w = weight_of(weights, u, v)
        if w <= seen * most * SLACK:  # this pair was used up, unless the bound on its contribution is loose
            most -= same_group(c, u, v)
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
def _thin_out(partners: Partners, degree: NDArray[np.int64], limit: int) -> None:
    """Now and then, forget the members that have reached the limit."""
    partners.counts[ROWS_LEFT] -= 1
    if partners.counts[ROWS_LEFT] > 0:
        return
    size = 0
    for i in range(partners.counts[MEMBERS]):
        if degree[partners.members[i]] < limit:
            partners.members[size] = partners.members[i]
            size += 1
    partners.counts[MEMBERS], partners.counts[ROWS_LEFT] = size, THIN_OUT


@inner_kernel
def _first_above(partners: Partners, u: int) -> int:
    """The place of the first member above u."""
    low, high = 0, partners.counts[MEMBERS]
    while low < high:
        middle = (low + high) // 2
        if partners.members[middle] <= u:
            low = middle + 1
        else:
            high = middle
    return low

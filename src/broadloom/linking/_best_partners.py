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

KEPT = 4  # partners a row: more of them are found more slowly, but last longer
THIN_OUT = 16  # rows that are looked through before the members are thinned out again
MOST_NODES = 40_000  # with a byte a pair: 0.8 GB
UNKNOWN = 255
NONE = -1
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
        ceiling: what is known of each pair: an upper bound on its contribution, as far as a byte goes; empty
            where V x V bytes are too many. Several `Partners` may share it.
    """

    key: NDArray[np.float64]
    partner: NDArray[np.int64]
    winner: NDArray[np.int64]
    members: NDArray[np.int64]
    counts: NDArray[np.int64]
    ceiling: NDArray[np.uint8]


def new_ceiling(nodes: int) -> NDArray[np.uint8]:
    """Room for what is known of each pair, if that fits; only its upper half is ever touched."""
    return np.empty((nodes, nodes) if nodes <= MOST_NODES else (0, 0), np.uint8)


@kernel
def new_partners(nodes: int, ceiling: NDArray[np.uint8]) -> Partners:
    """Nothing known: every row has to be looked through when its turn comes."""
    size = 1
    while size < nodes:
        size *= 2
    key = np.full((size, KEPT + 1), np.inf)
    key[:nodes] = 0.0
    winner = np.zeros(2 * size, np.int64)
    winner[size:] = np.arange(size)
    counts = np.array([nodes, nodes], np.int64)
    partners = Partners(key, np.full((size, KEPT + 1), NONE), winner, np.arange(nodes), counts, ceiling)
    for i in range(size - 1, 0, -1):
        _play(partners, i)
    return partners


@kernel
def start_from(partners: Partners, others: Partners) -> None:
    """Know what the others know: their bounds hold for any choice of nodes."""
    partners.key[:] = others.key
    partners.partner[:] = others.partner
    partners.winner[:] = others.winner
    partners.members[:] = others.members
    partners.counts[:] = others.counts


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
            _move_back(partners.key[u], partners.partner[u], now)
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
def _move_back(key: NDArray[np.float64], partner: NDArray[np.int64], now: float) -> None:
    """Give the first partner of a row its key of now; it is forgotten if others may be better than it."""
    v = partner[0]
    for i in range(KEPT):
        if now < key[i + 1] or (now == key[i + 1] and v < partner[i + 1]):
            key[i], partner[i] = now, v
            return
        key[i], partner[i] = key[i + 1], partner[i + 1]
        if partner[i] == NONE:
            return


@kernel
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
    members = partners.members[: partners.counts[MEMBERS]]
    key, partner = partners.key[u], partners.partner[u]
    if key[0] == 0.0 and len(partners.ceiling):
        partners.ceiling[u, u + 1 :] = UNKNOWN
    key[:], partner[:] = np.inf, NONE
    enough, known = 1, len(partners.ceiling) > 0
    for i in range(np.searchsorted(members, u + 1), len(members)):
        v = members[i]
        if known and partners.ceiling[u, v] < min(enough, UNKNOWN):
            continue
        most = most_contribution(c, u, v)
        if known:
            partners.ceiling[u, v] = min(most, UNKNOWN)
        if most < enough or degree[v] >= limit:
            continue
        w = weight_of(weights, u, v)
        if w > key[KEPT - 1] * SLACK * most:
            continue
        mu = most - same_group(c, u, v)
        if mu > 0 and w / mu < key[KEPT - 1]:
            _insert(key, partner, w / mu, v)
            if weights.kind == UNIFORM and partner[KEPT - 1] != NONE:
                enough = np.int64(np.rint(1.0 / key[KEPT - 1])) + 1
    key[KEPT] = key[KEPT - 1]


@inner_kernel
def _insert(key: NDArray[np.float64], partner: NDArray[np.int64], new: float, v: int) -> None:
    """Put a partner larger than the others into a row, in place of its last one."""
    i = KEPT - 1
    while i > 0 and key[i - 1] > new:
        key[i], partner[i] = key[i - 1], partner[i - 1]
        i -= 1
    key[i], partner[i] = new, v


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

"""Pairs of nodes that come and go, each found from both of its ends at once: links, and backups."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from broadloom._jit import inner_kernel, kernel

NOTHING = -1


class Pairs(NamedTuple):
    """Pairs (u, v) as two halves: 2p is in a list of u, and 2p + 1 in a list of v.

    For links both lists of a node are one, since a link has no direction; for backups u's list holds its
    backups, and v's its primaries. The order of a list is of no account.

    Attributes:
        first: per node, the half at which the list of its even halves starts.
        second: per node, the same of its odd halves.
        first_size: how long each list of even halves is.
        second_size: the same of odd halves.
        other: per half, the node at the other end.
        after: per half, the next one of its list; of a free pair, the next free one.
        before: per half, the one before it in its list.
        free: the first free pair.
    """

    first: NDArray[np.int32]
    second: NDArray[np.int32]
    first_size: NDArray[np.int32]
    second_size: NDArray[np.int32]
    other: NDArray[np.int32]
    after: NDArray[np.int32]
    before: NDArray[np.int32]
    free: NDArray[np.int64]


def new_pairs(nodes: int, room: int, directed: bool) -> Pairs:
    """No pairs yet, with room for so many."""
    heads, sizes = np.full(nodes, NOTHING, np.int32), np.zeros(nodes, np.int32)
    after = np.full(2 * room, NOTHING, np.int32)
    after[0 : 2 * room - 2 : 2] = np.arange(1, room)
    return Pairs(
        first=heads,
        second=heads.copy() if directed else heads,
        first_size=sizes,
        second_size=sizes.copy() if directed else sizes,
        other=np.full(2 * room, NOTHING, np.int32),
        after=after,
        before=np.full(2 * room, NOTHING, np.int32),
        free=np.zeros(1, np.int64),
    )


@inner_kernel
def put(pairs: Pairs, u: int, v: int) -> None:
    """Add the pair (u, v); there must be room."""
    p = pairs.free[0]
    pairs.free[0] = pairs.after[2 * p]
    _push(pairs, 2 * p, pairs.first, u, v)
    _push(pairs, 2 * p + 1, pairs.second, v, u)
    pairs.first_size[u] += 1
    pairs.second_size[v] += 1


@inner_kernel
def _push(pairs: Pairs, half: int, heads: NDArray[np.int32], node: int, other: int) -> None:
    head = heads[node]
    pairs.other[half], pairs.after[half], pairs.before[half] = other, head, NOTHING
    if head != NOTHING:
        pairs.before[head] = half
    heads[node] = half


@inner_kernel
def take(pairs: Pairs, half: int) -> None:
    """Remove the pair that this half belongs to."""
    even = half - (half & 1)
    u, v = pairs.other[even + 1], pairs.other[even]
    _unlink(pairs, even, pairs.first, u)
    _unlink(pairs, even + 1, pairs.second, v)
    pairs.first_size[u] -= 1
    pairs.second_size[v] -= 1
    pairs.after[even] = pairs.free[0]
    pairs.free[0] = even >> 1


@inner_kernel
def _unlink(pairs: Pairs, half: int, heads: NDArray[np.int32], node: int) -> None:
    after, before = pairs.after[half], pairs.before[half]
    if after != NOTHING:
        pairs.before[after] = before
    if before != NOTHING:
        pairs.after[before] = after
    else:
        heads[node] = after


@kernel
def put_all(pairs: Pairs, ends: NDArray[np.int32]) -> None:
    """Add pairs, one a row."""
    for i in range(len(ends)):
        put(pairs, ends[i, 0], ends[i, 1])


@kernel
def listed(pairs: Pairs, heads: NDArray[np.int32], node: int, size: int) -> NDArray[np.int32]:
    """The nodes at the other ends of one list, ascending."""
    found = np.empty(size, np.int32)
    half = heads[node]
    for i in range(size):
        found[i] = pairs.other[half]
        half = pairs.after[half]
    found.sort()
    return found


@kernel
def all_pairs(pairs: Pairs, nodes: int) -> NDArray[np.int32]:
    """Every pair once, (u, v) a row: for each u in turn, the list of its even halves."""
    total = 0
    for u in range(nodes):
        half = pairs.first[u]
        while half != NOTHING:
            total += 1 - (half & 1)
            half = pairs.after[half]
    found, i = np.empty((total, 2), np.int32), 0
    for u in range(nodes):
        half = pairs.first[u]
        while half != NOTHING:
            if half & 1 == 0:
                found[i, 0], found[i, 1] = u, pairs.other[half]
                i += 1
            half = pairs.after[half]
    return found

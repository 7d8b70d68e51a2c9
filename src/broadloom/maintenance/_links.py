"""Pairs of nodes that come and go, each found from both of its ends at once: links, and backups."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from broadloom.kernels.jit import inner_kernel, kernel

NOTHING = -1
# The columns of `halves`.
OTHER, AFTER, BEFORE = range(3)
# The lists of a node: of links there is one; of backups one of its backups, and one of its primaries.
BACKUPS, PRIMARIES = range(2)


class Pairs(NamedTuple):
    """Pairs (u, v) as two halves: half 2p is in a list of u, and half 2p + 1 in a list of v.

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


def new_pairs(nodes: int, room: int, lists: int) -> Pairs:
    """No pairs yet, with room for so many."""
    halves = np.full((2 * room, 3), NOTHING, np.int32)
    halves[0 : 2 * room - 2 : 2, AFTER] = np.arange(2, 2 * room, 2)
    heads, sizes = np.full((lists, nodes), NOTHING, np.int32), np.zeros((lists, nodes), np.int32)
    return Pairs(heads, sizes, halves, np.zeros(1, np.int64))


def room_of(pairs: Pairs) -> int:
    """For how many pairs there is room."""
    return len(pairs.halves) // 2


@inner_kernel
def put(pairs: Pairs, u: int, v: int) -> None:
    """Add the pair (u, v); there must be room."""
    half = pairs.free[0]
    pairs.free[0] = pairs.halves[half, AFTER]
    _push(pairs, half, u, v)
    _push(pairs, half + 1, v, u)


@inner_kernel
def _list_of(pairs: Pairs, half: int) -> int:
    """In which list of its node a half is."""
    return half & (pairs.heads.shape[0] - 1)


@inner_kernel
def _push(pairs: Pairs, half: int, node: int, other: int) -> None:
    which = _list_of(pairs, half)
    head = pairs.heads[which, node]
    pairs.halves[half, OTHER], pairs.halves[half, AFTER], pairs.halves[half, BEFORE] = other, head, NOTHING
    if head != NOTHING:
        pairs.halves[head, BEFORE] = half
    pairs.heads[which, node] = half
    pairs.sizes[which, node] += 1


@inner_kernel
def take(pairs: Pairs, half: int) -> None:
    """Remove the pair that this half belongs to."""
    first = half - (half & 1)
    u, v = pairs.halves[first + 1, OTHER], pairs.halves[first, OTHER]
    _pull(pairs, first, u)
    _pull(pairs, first + 1, v)
    pairs.halves[first, AFTER] = pairs.free[0]
    pairs.free[0] = first


@inner_kernel
def _pull(pairs: Pairs, half: int, node: int) -> None:
    which, after, before = _list_of(pairs, half), pairs.halves[half, AFTER], pairs.halves[half, BEFORE]
    if after != NOTHING:
        pairs.halves[after, BEFORE] = before
    if before != NOTHING:
        pairs.halves[before, AFTER] = after
    else:
        pairs.heads[which, node] = after
    pairs.sizes[which, node] -= 1


@kernel
def put_all(pairs: Pairs, ends: NDArray[np.int32]) -> None:
    """Add pairs, one a row."""
    for i in range(len(ends)):
        put(pairs, ends[i, 0], ends[i, 1])


@kernel
def listed(pairs: Pairs, which: int, node: int) -> NDArray[np.int32]:
    """The nodes at the other ends of a list, ascending."""
    found, half = np.empty(pairs.sizes[which, node], np.int32), pairs.heads[which, node]
    for i in range(len(found)):
        found[i] = pairs.halves[half, OTHER]
        half = pairs.halves[half, AFTER]
    found.sort()
    return found


@kernel
def all_pairs(pairs: Pairs, nodes: int) -> NDArray[np.int32]:
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

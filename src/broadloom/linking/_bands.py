"""Bands: the greedy algorithms look at few pairs at a time, the best that are left, and never store all.

A pass over all rows collects the pairs of a band, then they are merged in order; contributions only fall, so
no pair outside the band can be better than those in it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from broadloom.kernels import thread_count

B = TypeVar("B")
R = TypeVar("R")
Rows = tuple[int, int]

PAIRS_A_BLOCK = 4_000_000  # the work of a thread at a time: some hundredths of a second


class BandSize(NamedTuple):
    """How the pairs are cut into bands. It changes the time and the memory, never the edges.

    Attributes:
        share: which share of all pairs a band aims at.
        least: it aims at no fewer pairs than these.
        most: nor at more than these.
        sampled_rows: from how many rows the number of pairs is estimated.
        by_bits: how rows are counted; None: in the cheaper way.
    """

    share: float = 1 / 64
    least: int = 1 << 12
    most: int = 1 << 23
    sampled_rows: int = 16
    by_bits: bool | None = None

    def pairs(self, nodes: int) -> int:
        """How many pairs a band of an instance with so many nodes aims at."""
        return min(self.most, max(self.least, int(self.share * nodes * (nodes - 1) / 2)))


def blocks_of_rows(nodes: int, rows: Rows, pairs: float = PAIRS_A_BLOCK) -> list[Rows]:
    """Rows cut into blocks of at most about so many pairs (u, v), u < v.

    Examples:
        >>> blocks_of_rows(5, (0, 5), pairs=4)
        [(0, 1), (1, 2), (2, 5)]
    """
    blocks: list[Rows] = []
    first, last = rows
    while first < last:
        later = (nodes - first) * (nodes - first - 1) / 2 - pairs  # the pairs that are left to later blocks
        end = last if later <= 0 else min(last, nodes - math.ceil(0.5 + math.sqrt(0.25 + 2 * later)))
        blocks.append((first, max(end, first + 1)))
        first = blocks[-1][1]
    return blocks


def cut_at(keys: NDArray[np.float64], theta: float, room: float) -> list[tuple[float, int]]:
    """Bands up to the key theta, as (highest key, pieces), given a sorted sample and the room that it has.

    If too many pairs have theta for their key, all below come first, in a band of their own. Among those of
    one key the order is that of the rows, so they can be looked at in pieces, some rows after the others.

    Examples:
        >>> cut_at(np.array([1.0, 2.0, 5.0, 9.0]), theta=5.0, room=3)
        [(5.0, 1)]
        >>> cut_at(np.array([1.0, 5.0, 5.0, 5.0, 5.0, 5.0]), theta=5.0, room=2)
        [(4.999999999999999, 1), (5.0, 3)]
    """
    pairs = int(np.searchsorted(keys, theta, side="right"))
    if pairs <= 2 * room or pairs == 1:
        return [(theta, 1)]
    return [(math.nextafter(theta, 0.0), 1), (theta, math.ceil(pairs / max(room, 1)))]


def in_threads(work: Callable[[B], R], blocks: Sequence[B]) -> list[R]:
    """The result of each block, in the order of the blocks, however many threads there are."""
    if len(blocks) < 2 or thread_count() == 1:
        return [work(block) for block in blocks]
    with ThreadPoolExecutor(thread_count()) as pool:
        return list(pool.map(work, blocks))

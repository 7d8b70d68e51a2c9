"""Bundles of interchangeable subscribers (ours): the same candidates and the same interest move as one."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from broadloom.assignment.subscribers.reach import Reach

# A bundle takes at most this share of the largest broker's room, so that full brokers stay full to the brim.
LARGEST_SHARE = 1 / 32


class Bundles(NamedTuple):
    """The bundle of each subscriber; of each bundle, one member that stands for all, and how many it has."""

    of: NDArray[np.int64]
    first: NDArray[np.int64]
    size: NDArray[np.int64]


def bundles_of(
    reach: Reach,
    lo: NDArray[np.float64],
    hi: NDArray[np.float64],
    broker_of: NDArray[np.int64],
    limit: NDArray[np.int64],
) -> Bundles:
    """The subscribers of each broker in bundles; where hardly two are alike, each is a bundle of its own."""
    m = len(lo)
    kind = kinds(np.column_stack((reach.group, lo, hi)))
    if 2 * len(np.unique(kind)) >= m:
        return Bundles(np.arange(m), np.arange(m), np.ones(m, np.int64))
    most = max(1, int(limit.max() * LARGEST_SHARE))
    order = np.lexsort((broker_of, kind))
    changes = (np.diff(kind[order]) != 0) | (np.diff(broker_of[order]) != 0)
    starts = np.flatnonzero(np.concatenate(([True], changes)))
    rank = np.arange(m) - np.repeat(starts, np.diff(starts, append=m))
    number = np.cumsum(rank % most == 0) - 1
    of = np.empty(m, np.int64)
    of[order] = number
    return Bundles(of, order[rank % most == 0], np.bincount(number))


def kinds(rows: NDArray[np.float64]) -> NDArray[np.int64]:
    """A number for each row, the same for equal rows; it ends early where no two can be equal any more.

    Examples:
        >>> kinds(np.array([[1.0, 5.0], [1.0, 2.0], [1.0, 5.0]])).tolist()
        [1, 0, 1]
    """
    code = np.zeros(len(rows), np.int64)
    for column in rows.T:
        values, at = np.unique(column, return_inverse=True)
        distinct, code = np.unique(code * len(values) + at, return_inverse=True)
        if len(distinct) == len(rows):
            break
    return code

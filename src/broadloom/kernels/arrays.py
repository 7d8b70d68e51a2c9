"""Grouping by counting sort, and sums with the same bits in plain Python and in compiled code."""

import numpy as np
from numpy.typing import NDArray

from broadloom.kernels.jit import inner_kernel, kernel


@kernel
def group_by(keys: NDArray[np.int32], count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Items grouped by their keys 0 to count - 1: where each group starts, and the items in order.

    Items of one group keep their order. The last start is the number of items.
    """
    start = np.zeros(count + 1, np.int64)
    for key in keys:
        start[key + 1] += 1
    for key in range(count):
        start[key + 1] += start[key]
    end = start[:-1].copy()
    order = np.empty(len(keys), np.int64)
    for item in range(len(keys)):
        order[end[keys[item]]] = item
        end[keys[item]] += 1
    return start, order


def _plain_sum(values: NDArray[np.float64]) -> float:
    return float(np.cumsum(values)[-1]) if len(values) else 0.0


@inner_kernel(plain=_plain_sum)
def sum_in_order(values: NDArray[np.float64]) -> float:
    """The sum of a vector, added from the first value to the last; `np.sum` adds in another order."""
    total = 0.0
    for value in values:
        total += value
    return total

"""Numba options and on-disk cache, bit sets, threads, k-means."""

from broadloom.kernels.arrays import group_by, sum_in_order
from broadloom.kernels.bits import WORD, WORDS_AT_ONCE, bit_of, by_word, lowest, pack_rows, popcount
from broadloom.kernels.jit import (
    always_compiled,
    compiled_count,
    compiled_for,
    folder_of_kernels,
    inner_kernel,
    kernel,
    numba_is_loaded,
)
from broadloom.kernels.kmeans import k_means
from broadloom.kernels.threads import over_ranges, thread_count

__all__ = [
    "WORD",
    "WORDS_AT_ONCE",
    "always_compiled",
    "bit_of",
    "by_word",
    "compiled_count",
    "compiled_for",
    "folder_of_kernels",
    "group_by",
    "inner_kernel",
    "k_means",
    "kernel",
    "lowest",
    "numba_is_loaded",
    "over_ranges",
    "pack_rows",
    "popcount",
    "sum_in_order",
    "thread_count",
]

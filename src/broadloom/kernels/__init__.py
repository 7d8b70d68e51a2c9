"""Numba options and on-disk cache, bit sets, threads, k-means."""

from broadloom.kernels.bits import WORD, WORDS_AT_ONCE, bit_of, by_word, lowest, pack_rows, popcount
from broadloom.kernels.jit import compiled_for, inner_kernel, kernel
from broadloom.kernels.kmeans import k_means
from broadloom.kernels.threads import over_ranges, thread_count

__all__ = [
    "WORD",
    "WORDS_AT_ONCE",
    "bit_of",
    "by_word",
    "compiled_for",
    "inner_kernel",
    "k_means",
    "kernel",
    "lowest",
    "over_ranges",
    "pack_rows",
    "popcount",
    "thread_count",
]

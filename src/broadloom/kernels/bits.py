"""Bit sets: sets of topics as packed 64-bit words."""

from collections.abc import Callable
from typing import Any, cast

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from broadloom.kernels.jit import inner_kernel, kernel

WORD = 64
WORDS_AT_ONCE = 4  # words per node that kernels count in one step


def _popcount(typing: Any, word: Any) -> Any:  # noqa: ARG001
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        return builder.ctpop(arguments[0])

    return types.int64(types.uint64), generate


def _lowest(typing: Any, word: Any) -> Any:  # noqa: ARG001
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.uint64), generate


# The number of set bits of a word, and the index of its lowest set bit (64 for an empty word); kernels only.
popcount = cast(Callable[[Any], int], intrinsic(_popcount))
lowest = cast(Callable[[Any], int], intrinsic(_lowest))


@inner_kernel
def bit_of(topic: int) -> np.uint64:
    """The bit of a topic in its word, which is word `topic // 64`."""
    return np.uint64(1) << np.uint64(topic & 63)


@kernel
def pack_rows(start: NDArray[np.int64], topics: NDArray[np.int32], words: int) -> NDArray[np.uint64]:
    """Compressed rows of topics as one row of words per node."""
    packed = np.zeros((len(start) - 1, words), np.uint64)
    for u in range(len(start) - 1):
        for i in range(start[u], start[u + 1]):
            packed[u, topics[i] >> 6] |= bit_of(topics[i])
    return packed


def by_word(rows: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The transpose of the rows of words: one row per word, padded to a multiple of WORDS_AT_ONCE rows."""
    nodes, words = rows.shape
    columns = np.zeros((-(-words // WORDS_AT_ONCE) * WORDS_AT_ONCE, nodes), np.uint64)
    columns[:words] = rows.T
    return columns

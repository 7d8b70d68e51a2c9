"""Bit sets: sets of topics as packed 64-bit words."""

import numpy as np
from numpy.typing import NDArray

from broadloom.kernels.jit import inner_kernel, kernel

WORD = 64
WORDS_AT_ONCE = 4  # words per node that kernels count in one step

# Masks of a word.
EVEN_BITS = np.uint64(0x5555555555555555)
EVEN_PAIRS = np.uint64(0x3333333333333333)
EVEN_HALF_BYTES = np.uint64(0x0F0F0F0F0F0F0F0F)
ONE_PER_BYTE = np.uint64(0x0101010101010101)


def _plain_popcount(word: np.uint64) -> int:
    return int(word).bit_count()


def _plain_lowest(word: np.uint64) -> int:
    return (int(word) ^ (int(word) - 1)).bit_length() - 1 if word else WORD


@inner_kernel(plain=_plain_popcount)
def popcount(word: np.uint64) -> int:
    """The number of set bits of a word. LLVM knows this pattern: it becomes one instruction."""
    counts = word - ((word >> np.uint64(1)) & EVEN_BITS)
    counts = (counts & EVEN_PAIRS) + ((counts >> np.uint64(2)) & EVEN_PAIRS)
    counts = (counts + (counts >> np.uint64(4))) & EVEN_HALF_BYTES
    return np.int64((counts * ONE_PER_BYTE) >> np.uint64(56))  # type: ignore[return-value]


@inner_kernel(plain=_plain_lowest)
def lowest(word: np.uint64) -> int:
    """The index of the lowest set bit of a word; 64 for an empty word. It becomes one instruction too."""
    return popcount((word & (~word + np.uint64(1))) - np.uint64(1))


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

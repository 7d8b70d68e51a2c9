"""Sets of topics as rows of 64-bit words: one AND answers for 64 topics."""

import numpy as np
from numpy.typing import NDArray

from broadloom._jit import kernel


@kernel
def popcount(word: np.uint64) -> int:
    """How many bits of the word are set: the compiler makes it one instruction."""
    word -= (word >> np.uint64(1)) & np.uint64(0x5555555555555555)
    word = (word & np.uint64(0x3333333333333333)) + ((word >> np.uint64(2)) & np.uint64(0x3333333333333333))
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return int((word * np.uint64(0x0101010101010101)) >> np.uint64(56))


@kernel
def lowest(word: np.uint64) -> int:
    """The place of the lowest bit that is set; the word is not 0."""
    return popcount((word & (~word + np.uint64(1))) - np.uint64(1))


@kernel
def pack(start: NDArray[np.int64], items: NDArray[np.int32], width: int) -> NDArray[np.uint64]:
    """A row of bits for each compressed row: bit `i` is set where `i < width` is among its items."""
    bits = np.zeros((len(start) - 1, (width + 63) // 64), np.uint64)
    for row in range(len(bits)):
        for i in range(start[row], start[row + 1]):
            bits[row, items[i] >> 6] |= np.uint64(1) << np.uint64(items[i] & 63)
    return bits

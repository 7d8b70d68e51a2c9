"""Ties between equally good pairs: the smallest pair, or the pair of the lowest random priority.

A random priority is a hash of the seed, the pair and the contribution that the pair has then. So it does not
depend on the order in which pairs are looked at, and lazy evaluation stays exact: a key w/mu only rises, and
a pair gets another priority only when its key rises.

A pair that fails at one contribution draws again at the next one. No pair reaches the best key after another
one has been added at that key. Therefore gm and grmaw choose uniformly among the tied pairs at each step,
whatever they have chosen before.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from broadloom.errors import InputError
from broadloom.kernels import inner_kernel

TIES = ("smallest", "random")

MOST_PIECES = 64  # bands for the pairs of one key, if they are merged in order of priority

LAST_PRIORITY = np.uint64(2**64 - 1)

# The constants of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


@dataclass(frozen=True)
class TieOptions:
    """Options of trmaw, minmax-oda and the cd-oda family.

    Attributes:
        ties: the choice among equally good links or nodes: "smallest", the smallest pair of indices or the
            smallest index; "random", drawn from the seed.
    """

    ties: str = "smallest"

    def __post_init__(self) -> None:
        check_ties(self.ties)


def check_ties(ties: object) -> None:
    """Raise an `InputError` if it is not a rule for ties."""
    if not isinstance(ties, str) or ties not in TIES:
        raise InputError(f"ties is {ties!r}; give one of {', '.join(TIES)}")


class TieRule(NamedTuple):
    """The rule for ties, as kernels take it.

    Attributes:
        random: whether the lowest priority wins; otherwise all priorities are 0, and the smallest pair wins.
        seed: a random number on which the priorities depend.
        limit: the highest priority that a band of pairs takes of its last key.
    """

    random: bool
    seed: np.uint64
    limit: np.uint64


SMALLEST = TieRule(random=False, seed=np.uint64(0), limit=LAST_PRIORITY)


def tie_rule(ties: str, seed: int) -> TieRule:
    """The rule of an option `ties` and a seed."""
    if ties == "smallest":
        return SMALLEST
    rng = np.random.default_rng(seed)
    word = np.uint64(rng.integers(2**64 - 1, dtype=np.uint64, endpoint=True))
    return TieRule(random=True, seed=word, limit=LAST_PRIORITY)


class PriorityRange:
    """The priorities of the next band of pairs, if the pairs of one key are merged in several bands.

    Attributes:
        rule: the rule for ties, with the highest priority of the band.
        without_limit: the rule for ties, without it.
    """

    def __init__(self, ties: TieRule) -> None:
        self.rule = self.without_limit = ties
        self._key = math.nan

    def advance(self, key: float, share: float) -> bool:
        """Set the limit for about that share of the pairs with this key; whether these are all of them.

        The pairs below the previous limit, if it was for the same key, have been merged and do not count.
        """
        last = int(LAST_PRIORITY)
        done = int(self.rule.limit) if key == self._key else 0
        limit = last if share >= 1 else done + max(int((last - done) * share), last // MOST_PIECES)
        self.rule = self.rule._replace(limit=np.uint64(min(limit, last)))
        self._key = key if limit < last else math.nan
        return limit >= last


@inner_kernel
def priority_of(rule: TieRule, u: int, v: int, draw: int) -> np.uint64:
    """The priority of the pair u < v; another value of `draw` is another draw."""
    if not rule.random:
        return np.uint64(0)
    pair = (np.uint64(u) << np.uint64(32)) | np.uint64(v)
    return _mix(_mix(rule.seed + pair * _STEP) + np.uint64(draw) * _STEP)


@inner_kernel
def _mix(word: np.uint64) -> np.uint64:
    """A permutation of the 64-bit words in which each bit of the result depends on all bits."""
    word = (word ^ (word >> np.uint64(30))) * _FIRST
    word = (word ^ (word >> np.uint64(27))) * _SECOND
    return word ^ (word >> np.uint64(31))

"""Candidates: which leaf brokers serve a subscriber in time (paper 4, section III, condition 1).

Subscribers with the same candidates are one group, which is what makes max-flow small.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from broadloom.errors import InputError
from broadloom.kernels import kernel, over_ranges
from broadloom.model import AssignmentProblem

# Two ways to add up the same latency differ by less than this, relatively.
ROUNDING = 1e-12


class Reach(NamedTuple):
    """The candidates of group `g` are `brokers[start[g]:start[g + 1]]`, ascending.

    `group` is the group of each subscriber, `size` how many subscribers each group has.
    """

    group: NDArray[np.int64]
    start: NDArray[np.int64]
    brokers: NDArray[np.int64]
    size: NDArray[np.int64]


def reach_of(problem: AssignmentProblem) -> Reach:
    """The candidates of every subscriber.

    Raises:
        InputError: a subscriber has none.
    """
    masks = masks_in_time(problem)
    refuse_unreached(problem, np.flatnonzero(~masks.any(axis=1)))
    return grouped_masks(masks, problem.leaves)


def masks_in_time(problem: AssignmentProblem) -> NDArray[np.uint64]:
    """The candidates of every subscriber as bits, 64 leaf brokers a word; each subscriber on its own."""
    m, leaves = problem.subscriber_count, problem.leaves
    masks = np.zeros((m, -(-len(leaves) // 64)), np.uint64)
    bound = np.full(m, np.nan) if problem.max_latency is None else problem.max_latency

    def work(first: int, last: int) -> None:
        _mark_candidates(
            problem.subscriber_place[first:last],
            problem.broker_place[leaves],
            problem.uplink[leaves],
            bound[first:last],
            1 + problem.max_delay,
            masks[first:last],
        )

    over_ranges(m, work, "find candidates")
    return masks


def refuse_unreached(problem: AssignmentProblem, nobody: NDArray[np.int64]) -> None:
    """Name the subscribers without a candidate, if there are any."""
    if len(nobody):
        names = problem.subscriber_ids
        few = ", ".join(str(j) if names is None else names[j] for j in nobody[:10])
        raise InputError(
            f"{len(nobody):,} subscribers have no leaf broker within their latency bound: "
            f"{few}{', ...' if len(nobody) > 10 else ''}; raise their max_latency or add brokers"
        )


def everywhere(problem: AssignmentProblem) -> Reach:
    """Candidates where latency does not count: every leaf, for one group of all subscribers."""
    m, leaves = problem.subscriber_count, problem.leaves
    groups = min(m, 1)
    return Reach(
        np.zeros(m, np.int64),
        np.arange(groups + 1) * len(leaves),
        np.tile(leaves.astype(np.int64), groups),
        np.full(groups, m),
    )


def take(reach: Reach, subscribers: NDArray[np.int64]) -> Reach:
    """The candidates of some of the subscribers, in the order given; groups without any stay, with size 0."""
    group = reach.group[subscribers]
    return reach._replace(group=group, size=np.bincount(group, minlength=len(reach.size)))


def grouped(is_open: NDArray[np.bool_], brokers: NDArray[np.int32]) -> Reach:
    """Candidates from a matrix: which of the brokers (columns) are open to a subscriber (row)."""
    width = -(-is_open.shape[1] // 64) * 8
    bits = np.packbits(is_open, axis=1, bitorder="little")
    masks = np.zeros((len(is_open), width), np.uint8)
    masks[:, : bits.shape[1]] = bits
    return grouped_masks(masks.view(np.uint64), brokers)


def grouped_masks(masks: NDArray[np.uint64], leaves: NDArray[np.int32]) -> Reach:
    """Number the distinct sets of candidates, and spell them out."""
    group, firsts = numbered(masks)
    return spelled(masks[firsts], np.bincount(group, minlength=len(firsts)), leaves)._replace(group=group)


def spelled(masks: NDArray[np.uint64], size: NDArray[np.int64], leaves: NDArray[np.int32]) -> Reach:
    """The candidates of groups from their bits; who is in which group is left open."""
    bits = np.unpackbits(np.ascontiguousarray(masks).view(np.uint8), axis=1, bitorder="little")
    start = np.concatenate(([0], np.cumsum(bits.sum(axis=1, dtype=np.int64))))
    brokers = leaves[np.nonzero(bits)[1]].astype(np.int64)
    return Reach(np.empty(0, np.int64), start, brokers, size.astype(np.int64))


def numbered(rows: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """A number for each row, by the order of their last words, and a row that has each number."""
    order = np.lexsort(rows.T)
    changes = np.any(rows[order[1:]] != rows[order[:-1]], axis=1)
    is_first = np.concatenate((np.ones(min(len(rows), 1), bool), changes))
    number = np.empty(len(rows), np.int64)
    number[order] = np.cumsum(is_first) - 1
    return number, order[is_first]


@kernel
def _mark_candidates(
    place: NDArray[np.float64],
    broker_place: NDArray[np.float64],
    uplink: NDArray[np.float64],
    bound: NDArray[np.float64],
    factor: float,
    masks: NDArray[np.uint64],
) -> None:
    """Set the bit of each broker whose latency is within the bound, or within `factor` of the least."""
    latency = np.empty(len(uplink))
    for j in range(len(place)):
        for b in range(len(uplink)):
            hop = 0.0
            for axis in range(place.shape[1]):
                hop += (place[j, axis] - broker_place[b, axis]) ** 2
            latency[b] = uplink[b] + np.sqrt(hop)
        limit = (factor * latency.min() if np.isnan(bound[j]) else bound[j]) * (1 + ROUNDING)
        for b in range(len(uplink)):
            if latency[b] <= limit:
                masks[j, b >> 6] |= np.uint64(1) << np.uint64(b & 63)

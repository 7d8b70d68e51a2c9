"""Candidates: which leaf brokers serve a subscriber in time (paper 4, section III, condition 1).

Subscribers with the same candidates are one group, which is what makes max-flow small.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from broadloom._jit import kernel
from broadloom._threads import over_ranges
from broadloom.errors import InputError
from broadloom.model import AssignmentProblem


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
    nobody = np.flatnonzero(~masks.any(axis=1))
    if len(nobody):
        names = problem.subscriber_ids or tuple(map(str, range(m)))
        few = ", ".join(names[j] for j in nobody[:10]) + (", ..." if len(nobody) > 10 else "")
        raise InputError(
            f"{len(nobody):,} subscribers have no leaf broker within their latency bound: {few}; "
            "raise their max_latency or add brokers"
        )
    return _grouped(masks, leaves)


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
    return _grouped(masks.view(np.uint64), brokers)


def _grouped(masks: NDArray[np.uint64], leaves: NDArray[np.int32]) -> Reach:
    """Number the distinct sets of candidates, and spell them out."""
    order = np.lexsort(masks.T)
    in_order = masks[order]
    changes = np.any(in_order[1:] != in_order[:-1], axis=1)
    number = np.concatenate(([0], np.cumsum(changes))) if len(masks) else np.empty(0, np.int64)
    group = np.empty(len(masks), np.int64)
    group[order] = number
    firsts = np.flatnonzero(np.concatenate(([True], changes))) if len(masks) else np.empty(0, np.int64)
    bits = np.unpackbits(in_order[firsts].view(np.uint8), axis=1, bitorder="little")[:, : len(leaves)]
    start = np.concatenate(([0], np.cumsum(bits.sum(axis=1, dtype=np.int64))))
    return Reach(
        group, start, leaves[np.nonzero(bits)[1]].astype(np.int64), np.bincount(group, minlength=len(firsts))
    )


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
        limit = factor * latency.min() if np.isnan(bound[j]) else bound[j]
        for b in range(len(uplink)):
            if latency[b] <= limit:
                masks[j, b >> 6] |= np.uint64(1) << np.uint64(b & 63)

"""The last assignment (ours, after paper 4, section IV-B): everybody into filters that a sample has made.

Subscribers with the same candidates, who are let through by the same of them, are of one kind. A max-flow
over kinds says how many of each kind go to which broker; only the few who need a filter to grow are placed
one by one. Whoever counts kinds, and ranks their members, need not hold the subscribers: see the pipeline.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from broadloom.assignment.subscribers._boxes import box_with
from broadloom.assignment.subscribers._filters import Filters, empty_filters, refresh
from broadloom.assignment.subscribers._greedy import run_greedy
from broadloom.assignment.subscribers.flow import max_flow
from broadloom.assignment.subscribers.reach import grouped_masks, masks_in_time, numbered, spelled
from broadloom.assignment.subscribers.tighten import around_members, nest
from broadloom.kernels import kernel, over_ranges
from broadloom.model import AssignmentProblem


class Shares(NamedTuple):
    """From rank `start[s]` on, members of kind `kind[s]` go to `broker[s]`; -1: to be placed one by one.

    Ascending by kind and rank, the first share of a kind from rank 0.
    """

    kind: NDArray[np.int64]
    start: NDArray[np.int64]
    broker: NDArray[np.int64]


def fill(
    problem: AssignmentProblem, filters: Filters, limit: NDArray[np.int64], rng: np.random.Generator
) -> tuple[NDArray[np.int64], Filters]:
    """Put everybody into the filters, which grow where they must and shrink where they can."""
    masks = kind_masks(problem, filters)
    kind, firsts = numbered(masks)
    shares = allot(problem, masks[firsts], np.bincount(kind, minlength=len(firsts)), limit)
    broker_of = broker_by_rank(shares, kind, _ranks(kind))
    rest = np.flatnonzero(broker_of < 0)
    room = limit - np.bincount(broker_of[broker_of >= 0], minlength=len(limit))
    broker_of[rest], filters = place_rest(problem.subset(rest), filters, room, rng)
    return broker_of, shrunk_to(problem, *around_members(problem.lo, problem.hi, broker_of, filters))


def kind_masks(problem: AssignmentProblem, filters: Filters) -> NDArray[np.uint64]:
    """The kind of every subscriber as bits: its candidates, then those of them who let it through."""
    in_time = masks_in_time(problem)
    both = np.hstack((in_time, np.zeros_like(in_time)))

    def work(first: int, last: int) -> None:
        _mark_inside(
            problem.lo[first:last], problem.hi[first:last], problem.leaves, filters, both[first:last]
        )

    over_ranges(len(both), work, "test filters")
    return both


def allot(
    problem: AssignmentProblem,
    masks: NDArray[np.uint64],
    count: NDArray[np.int64],
    limit: NDArray[np.int64],
) -> Shares:
    """How many of each kind go where: as many as can be to those who let them through.

    Those left over have a place in the flow too, so that limits hold in the end.
    """
    words = masks.shape[1] // 2
    inside = spelled(masks[:, words:], count, problem.leaves)
    anywhere = spelled(masks[:, :words], count, problem.leaves)
    known, place = _owners(inside.start), _owners(anywhere.start)
    n = len(limit)
    at = np.searchsorted(place * n + anywhere.brokers, known * n + inside.brokers)
    units = np.zeros(len(anywhere.brokers), np.int64)
    units[at] = max_flow(inside, limit)[0].units
    flow, left, _ = max_flow(anywhere, limit, units)
    assert left == 0, "a last assignment needs limits that can be met"
    settled = flow.units[at]
    used = settled > 0
    rest = count - np.bincount(known, settled, len(count)).astype(np.int64)
    kind = np.concatenate((known[used], np.flatnonzero(rest)))
    size = np.concatenate((settled[used], rest[rest > 0]))
    broker = np.concatenate((inside.brokers[used], np.full(np.count_nonzero(rest), -1)))
    order = np.argsort(kind, kind="stable")
    kind, size, broker = kind[order], size[order], broker[order]
    before = np.cumsum(size) - size
    return Shares(kind, before - before[np.searchsorted(kind, kind)], broker)


def broker_by_rank(shares: Shares, kind: NDArray[np.int64], rank: NDArray[np.int64]) -> NDArray[np.int64]:
    """The broker of members of kinds by their rank in the kind; -1: still to be placed."""
    if not len(kind):
        return np.empty(0, np.int64)
    most = int(max(rank.max(), shares.start.max())) + 1
    at = np.searchsorted(shares.kind * most + shares.start, kind * most + rank, side="right") - 1
    return shares.broker[at]


def place_rest(
    rest: AssignmentProblem, filters: Filters, room: NDArray[np.int64], rng: np.random.Generator
) -> tuple[NDArray[np.int64], Filters]:
    """Those who need a filter to grow, one by one within the room that is left, where it grows least."""
    reach = grouped_masks(masks_in_time(rest), rest.leaves)
    flow, left, _ = max_flow(reach, room)
    assert left == 0, "the flow over kinds has left room for everybody"
    order = rng.permutation(rest.subscriber_count)
    made = run_greedy(rest, reach, room, order, True, flow, filters)
    return made.broker_of, made.filters


def shrunk_to(problem: AssignmentProblem, low: NDArray[np.float64], high: NDArray[np.float64]) -> Filters:
    """Filters of the boxes around members, (brokers, alpha, dimensions); infinite ones have no members."""
    filters = empty_filters(*low.shape)
    for leaf in problem.leaves:
        used = np.isfinite(low[leaf]).all(axis=1)
        count = filters.used[leaf] = np.count_nonzero(used)
        filters.lo[leaf, :count], filters.hi[leaf, :count] = low[leaf, used], high[leaf, used]
        refresh(problem.density_arrays, filters, leaf)
    nest(problem, filters)
    return filters


def _owners(start: NDArray[np.int64]) -> NDArray[np.int64]:
    """The group of each place in compressed rows."""
    return np.repeat(np.arange(len(start) - 1), np.diff(start))


def _ranks(kind: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many of the same kind come before each one."""
    order = np.argsort(kind, kind="stable")
    first = np.concatenate(([0], np.cumsum(np.bincount(kind))))
    rank = np.empty(len(kind), np.int64)
    rank[order] = np.arange(len(kind)) - first[kind[order]]
    return rank


@kernel
def _mark_inside(
    lo: NDArray[np.float64],
    hi: NDArray[np.float64],
    leaves: NDArray[np.int32],
    filters: Filters,
    masks: NDArray[np.uint64],
) -> None:
    """Set the bit, in the second half, of each candidate (in the first) with a box around the interest."""
    words = masks.shape[1] // 2
    all_lo, all_hi, used = filters.lo, filters.hi, filters.used
    for j in range(len(lo)):
        low, high = lo[j], hi[j]
        for i in range(len(leaves)):
            word, bit, b = i >> 6, np.uint64(1) << np.uint64(i & 63), leaves[i]
            if masks[j, word] & bit and box_with(all_lo, all_hi, b, used[b], low, high) >= 0:
                masks[j, words + word] |= bit

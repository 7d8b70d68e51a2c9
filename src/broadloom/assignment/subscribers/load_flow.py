"""Candidate brokers in time, and max-flow of load between subscribers and brokers (paper 4, III and IV-B).

A leaf broker is a candidate for a subscriber if its latency is within the bound (section III, condition 1).
Subscribers with the same candidates form one group, and a group is one node of the flow, so that a million
subscribers take milliseconds. The flow answers whether load limits can be met at all, and it guards greedy
assignments: `admit` accepts a choice only if all other subscribers can still be placed.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from broadloom.errors import InputError
from broadloom.kernels import kernel, over_ranges
from broadloom.model import AssignmentProblem

# Sums of the same latencies in a different order differ by less than this, relatively.
LATENCY_ROUNDING = 1e-12
# A limit of 29.999999999 subscribers, by rounding, counts as 30.
LIMIT_ROUNDING = 1e-9


class CandidateBrokers(NamedTuple):
    """The candidates of group `g` are `brokers[start[g]:start[g + 1]]`, ascending.

    `group` is the group of each subscriber, `size` the number of subscribers per group.
    """

    group: NDArray[np.int64]
    start: NDArray[np.int64]
    brokers: NDArray[np.int64]
    size: NDArray[np.int64]


class LoadFlow(NamedTuple):
    """The number of subscribers of each group at each candidate, aligned with `CandidateBrokers.brokers`.

    `load` is the sum per broker; `movable[a, c]` is how many of the subscribers at `a` could go to `c`.
    `by_broker` lists the indices of `units` broker by broker, from `by_start`.
    """

    units: NDArray[np.int64]
    load: NDArray[np.int64]
    movable: NDArray[np.int64]
    group_of: NDArray[np.int64]
    by_start: NDArray[np.int64]
    by_broker: NDArray[np.int64]


# Candidates in time


def candidates_in_time(problem: AssignmentProblem) -> CandidateBrokers:
    """The candidates of every subscriber.

    Raises:
        InputError: a subscriber has no candidate.
    """
    masks = masks_in_time(problem)
    _require_candidates(problem, np.flatnonzero(~masks.any(axis=1)))
    return candidates_from_masks(masks, problem.leaves)


def masks_in_time(problem: AssignmentProblem) -> NDArray[np.uint64]:
    """The candidates of every subscriber as bits, 64 leaf brokers per word."""
    m, leaves = problem.subscriber_count, problem.leaves
    masks = np.zeros((m, -(-len(leaves) // 64)), np.uint64)
    bound = np.full(m, np.nan) if problem.max_latency is None else problem.max_latency

    def mark(first: int, last: int) -> None:
        _mark_candidates(
            problem.subscriber_place[first:last],
            problem.broker_place[leaves],
            problem.uplink[leaves],
            bound[first:last],
            1 + problem.max_delay,
            masks[first:last],
        )

    over_ranges(m, mark, "find candidates")
    return masks


def _require_candidates(problem: AssignmentProblem, without: NDArray[np.int64]) -> None:
    """Raise an error that names the subscribers without a candidate, if there are any."""
    if len(without):
        names = problem.subscriber_ids
        listed = ", ".join(str(j) if names is None else names[j] for j in without[:10])
        raise InputError(
            f"{len(without):,} subscribers have no leaf broker within their latency bound: "
            f"{listed}{', ...' if len(without) > 10 else ''}; raise their max_latency or add brokers"
        )


def all_leaves(problem: AssignmentProblem) -> CandidateBrokers:
    """Candidates without a latency bound: every leaf, for one group of all subscribers."""
    m, leaves = problem.subscriber_count, problem.leaves
    groups = min(m, 1)
    return CandidateBrokers(
        np.zeros(m, np.int64),
        np.arange(groups + 1) * len(leaves),
        np.tile(leaves.astype(np.int64), groups),
        np.full(groups, m),
    )


def candidates_of(candidates: CandidateBrokers, subscribers: NDArray[np.int64]) -> CandidateBrokers:
    """The candidates of some of the subscribers, in this order; groups without any stay, with size 0."""
    group = candidates.group[subscribers]
    return candidates._replace(group=group, size=np.bincount(group, minlength=len(candidates.size)))


def candidates_from_matrix(is_open: NDArray[np.bool_], brokers: NDArray[np.int32]) -> CandidateBrokers:
    """Candidates from a matrix: which of the brokers (columns) are open to a subscriber (row)."""
    width = -(-is_open.shape[1] // 64) * 8
    bits = np.packbits(is_open, axis=1, bitorder="little")
    masks = np.zeros((len(is_open), width), np.uint8)
    masks[:, : bits.shape[1]] = bits
    return candidates_from_masks(masks.view(np.uint64), brokers)


def candidates_from_masks(masks: NDArray[np.uint64], leaves: NDArray[np.int32]) -> CandidateBrokers:
    """Candidates from the bits of each subscriber; equal bits make a group."""
    group, firsts = number_rows(masks)
    size = np.bincount(group, minlength=len(firsts))
    return groups_from_masks(masks[firsts], size, leaves)._replace(group=group)


def groups_from_masks(
    masks: NDArray[np.uint64], size: NDArray[np.int64], leaves: NDArray[np.int32]
) -> CandidateBrokers:
    """The candidates of groups from their bits; `group`, the members, stays empty."""
    bits = np.unpackbits(np.ascontiguousarray(masks).view(np.uint8), axis=1, bitorder="little")
    start = np.concatenate(([0], np.cumsum(bits.sum(axis=1, dtype=np.int64))))
    brokers = leaves[np.nonzero(bits)[1]].astype(np.int64)
    return CandidateBrokers(np.empty(0, np.int64), start, brokers, size.astype(np.int64))


def number_rows(rows: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """A number per distinct row, in the order of their last words, and the index of one row of each."""
    order = np.lexsort(rows.T)
    changes = np.any(rows[order[1:]] != rows[order[:-1]], axis=1)
    is_first = np.concatenate((np.ones(min(len(rows), 1), bool), changes))
    number = np.empty(len(rows), np.int64)
    number[order] = np.cumsum(is_first) - 1
    return number, order[is_first]


@kernel
def _mark_candidates(
    position: NDArray[np.float64],
    broker_position: NDArray[np.float64],
    uplink: NDArray[np.float64],
    bound: NDArray[np.float64],
    factor: float,
    masks: NDArray[np.uint64],
) -> None:
    """Set the bit of each broker whose latency is within the bound, or within `factor` of the least."""
    latency = np.empty(len(uplink))
    for j in range(len(position)):
        for b in range(len(uplink)):
            hop = 0.0
            for axis in range(position.shape[1]):
                hop += (position[j, axis] - broker_position[b, axis]) ** 2
            latency[b] = uplink[b] + np.sqrt(hop)
        limit = (factor * latency.min() if np.isnan(bound[j]) else bound[j]) * (1 + LATENCY_ROUNDING)
        for b in range(len(uplink)):
            if latency[b] <= limit:
                masks[j, b >> 6] |= np.uint64(1) << np.uint64(b & 63)


# Max-flow


def load_limits(problem: AssignmentProblem, beta: float, count: int | None = None) -> NDArray[np.int64]:
    """The most subscribers per broker at a load balance factor, out of `count` (default: the problem's)."""
    m = problem.subscriber_count if count is None else count
    return np.floor(beta * problem.capacity * m + LIMIT_ROUNDING).astype(np.int64)


def max_flow(
    candidates: CandidateBrokers, limit: NDArray[np.int64], units: NDArray[np.int64] | None = None
) -> tuple[LoadFlow, int, NDArray[np.bool_]]:
    """The largest part of the subscribers that fits within the limits.

    Args:
        candidates: the groups and their candidates.
        limit: the most subscribers per broker.
        units: a flow within the limits to start from; the subscribers that it places stay placed.

    Returns:
        The flow; the number of subscribers that do not fit; and a set of brokers that is full with
        subscribers without candidates outside of it, empty if all fit.
    """
    n = len(limit)
    order = np.argsort(candidates.brokers, kind="stable")
    flow = LoadFlow(
        np.zeros(len(candidates.brokers), np.int64),
        np.zeros(n, np.int64),
        np.zeros((n, n), np.int64),
        np.repeat(np.arange(len(candidates.size)), np.diff(candidates.start)),
        np.searchsorted(candidates.brokers[order], np.arange(n + 1)),
        order,
    )
    unplaced, tight = _fill(candidates, flow, limit, np.zeros_like(flow.units) if units is None else units)
    return flow, int(unplaced), tight


def least_lbf(problem: AssignmentProblem, candidates: CandidateBrokers) -> tuple[float, LoadFlow]:
    """The least load balance factor of any assignment within the latency bounds, and its flow.

    When the flow does not fit, a set of brokers is full with subscribers that have no other candidates. The
    factor must rise until the set holds them: that is necessary, so the first factor that suffices is the
    least.
    """
    beta = 1.0
    m = int(candidates.size.sum())
    while True:
        flow, unplaced, tight = max_flow(candidates, load_limits(problem, beta, m))
        if unplaced == 0:
            return max_ratio(problem, flow.load), flow
        confined = np.logical_and.reduceat(tight[candidates.brokers], candidates.start[:-1])
        share = problem.capacity[tight] * m
        beta = _factor_that_holds(share[share > 0], int(candidates.size[confined].sum()), beta)


def max_ratio(problem: AssignmentProblem, load: NDArray[np.int64]) -> float:
    """The load balance factor of some loads."""
    busy = load > 0
    share = problem.capacity[busy] * load.sum()
    return float(np.max(load[busy] / share, initial=0.0))


def _factor_that_holds(share: NDArray[np.float64], count: int, beta: float) -> float:
    """The least factor from `beta` up at which brokers with these shares can hold `count` subscribers."""
    beta = max(beta, count / share.sum())
    while (limit := np.floor(beta * share + LIMIT_ROUNDING)).sum() < count:
        beta = float(np.min((limit + 1) / share))
    return beta


def spread(candidates: CandidateBrokers, flow: LoadFlow) -> NDArray[np.int32]:
    """The broker of each subscriber, with the flow's numbers per group and broker; a group in input order."""
    order = np.argsort(candidates.group, kind="stable")
    broker_of = np.empty(len(candidates.group), np.int32)
    broker_of[order] = np.repeat(candidates.brokers, flow.units)
    return broker_of


@kernel
def _fill(
    candidates: CandidateBrokers, flow: LoadFlow, limit: NDArray[np.int64], units: NDArray[np.int64]
) -> tuple[int, NDArray[np.bool_]]:
    """Place all groups, those with few candidates first; where brokers are full, move other subscribers on.

    Returns the number of subscribers that do not fit, and the set of full brokers that they are confined to.
    """
    for p in range(len(units)):
        if units[p] > 0:
            _add_units(candidates, flow, p, units[p])
    groups = len(candidates.size)
    tight = np.zeros(len(limit), np.bool_)
    unplaced = 0
    for g in np.argsort(candidates.start[1:] - candidates.start[:-1], kind="mergesort")[:groups]:
        rest = _place_greedily(candidates, flow, limit, g)
        while rest > 0:
            pushed, reached = _augment(candidates, flow, limit, g, rest)
            if pushed == 0:
                unplaced += rest
                tight |= reached
                break
            rest -= pushed
    return unplaced, tight


@kernel
def _place_greedily(candidates: CandidateBrokers, flow: LoadFlow, limit: NDArray[np.int64], g: int) -> int:
    """Give a group's subscribers to the candidates with the most spare capacity; the number that remains."""
    rest = candidates.size[g]
    for p in range(candidates.start[g], candidates.start[g + 1]):
        rest -= flow.units[p]
    while rest > 0:
        best, spare = -1, 0
        for p in range(candidates.start[g], candidates.start[g + 1]):
            b = candidates.brokers[p]
            if limit[b] - flow.load[b] > spare:
                best, spare = p, limit[b] - flow.load[b]
        if best < 0:
            break
        amount = min(rest, max(1, spare // 2))
        _add_units(candidates, flow, best, amount)
        rest -= amount
    return rest


@kernel
def _add_units(candidates: CandidateBrokers, flow: LoadFlow, p: int, amount: int) -> None:
    """Add this many subscribers of a group (or remove, below 0) at the candidate with index `p`."""
    g, b = flow.group_of[p], candidates.brokers[p]
    flow.units[p] += amount
    flow.load[b] += amount
    for q in range(candidates.start[g], candidates.start[g + 1]):
        flow.movable[b, candidates.brokers[q]] += amount


@kernel
def _augment(
    candidates: CandidateBrokers, flow: LoadFlow, limit: NDArray[np.int64], g: int, rest: int
) -> tuple[int, NDArray[np.bool_]]:
    """Push some of a group to a candidate and others on from there, to a broker with spare capacity."""
    n = len(limit)
    came_from = np.full(n, -1, np.int64)
    reached = np.zeros(n, np.bool_)
    queue = np.empty(n, np.int64)
    tail = 0
    for p in range(candidates.start[g], candidates.start[g + 1]):
        reached[candidates.brokers[p]] = True
        queue[tail] = candidates.brokers[p]
        tail += 1
    end = _find_spare(flow, limit, queue, tail, reached, came_from)
    if end < 0:
        return 0, reached
    amount = min(rest, limit[end] - flow.load[end])
    b = end
    while came_from[b] >= 0:
        amount = min(amount, flow.movable[came_from[b], b])
        b = came_from[b]
    b = end
    while came_from[b] >= 0:
        _shift(candidates, flow, came_from[b], b, amount)
        b = came_from[b]
    _add_units(candidates, flow, _candidate_index(candidates, g, b), amount)
    return amount, reached


@kernel
def _find_spare(
    flow: LoadFlow,
    limit: NDArray[np.int64],
    queue: NDArray[np.int64],
    tail: int,
    reached: NDArray[np.bool_],
    came_from: NDArray[np.int64],
) -> int:
    """Breadth first from the queued brokers, along possible moves, to a broker with spare capacity; or -1."""
    head = 0
    while head < tail:
        a = queue[head]
        head += 1
        if flow.load[a] < limit[a]:
            return a
        for c in range(len(limit)):
            if not reached[c] and flow.movable[a, c] > 0:
                reached[c] = True
                came_from[c] = a
                queue[tail] = c
                tail += 1
    return -1


@kernel
def _shift(candidates: CandidateBrokers, flow: LoadFlow, a: int, c: int, amount: int) -> None:
    """Move this many subscribers from broker `a` to `c`, of any groups that can."""
    for i in range(flow.by_start[a], flow.by_start[a + 1]):
        p = flow.by_broker[i]
        if flow.units[p] > 0:
            q = _candidate_index(candidates, flow.group_of[p], c)
            if q >= 0:
                moved = min(amount, flow.units[p])
                _add_units(candidates, flow, p, -moved)
                _add_units(candidates, flow, q, moved)
                amount -= moved
                if amount == 0:
                    return


@kernel
def _candidate_index(candidates: CandidateBrokers, g: int, b: int) -> int:
    """The index of broker `b` among the candidates of group `g`; -1 if it is not a candidate."""
    low, high = candidates.start[g], candidates.start[g + 1]
    while low < high:
        middle = (low + high) // 2
        if candidates.brokers[middle] < b:
            low = middle + 1
        else:
            high = middle
    return low if low < candidates.start[g + 1] and candidates.brokers[low] == b else -1


# The guard of greedy assignments


@kernel
def admit(candidates: CandidateBrokers, flow: LoadFlow, limit: NDArray[np.int64], g: int, b: int) -> bool:
    """Decide that one subscriber of group `g` goes to `b`, unless that would leave another without a broker.

    The flow is a complete tentative assignment: `flow.units` counts the undecided subscribers, `flow.load`
    all of them. A choice that takes the last spare capacity is accepted if undecided subscribers can move on,
    one by one along a path of brokers, and refused otherwise. The tentative broker of a subscriber is always
    accepted, so every subscriber gets a broker.
    """
    p = _candidate_index(candidates, g, b)
    if flow.units[p] > 0:
        # The load stays, but this subscriber is no longer movable.
        _add_units(candidates, flow, p, -1)
        flow.load[b] += 1
        return True
    taken = candidates.start[g]
    while flow.units[taken] == 0:
        taken += 1
    _add_units(candidates, flow, taken, -1)
    if flow.load[b] < limit[b] or _free_capacity(candidates, flow, limit, b):
        flow.load[b] += 1
        return True
    _add_units(candidates, flow, taken, 1)
    return False


@kernel
def _free_capacity(candidates: CandidateBrokers, flow: LoadFlow, limit: NDArray[np.int64], b: int) -> bool:
    """Move one undecided subscriber on from each broker of a path that starts at `b`; false if impossible."""
    n = len(limit)
    came_from = np.full(n, -1, np.int64)
    reached = np.zeros(n, np.bool_)
    queue = np.empty(n, np.int64)
    queue[0] = b
    reached[b] = True
    end = _find_spare(flow, limit, queue, 1, reached, came_from)
    if end < 0:
        return False
    while came_from[end] >= 0:
        _shift(candidates, flow, came_from[end], end, 1)
        end = came_from[end]
    return True

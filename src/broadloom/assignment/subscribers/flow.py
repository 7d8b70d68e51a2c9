"""Max-flow between groups of subscribers and brokers (paper 4, section IV-B): can loads be met at all?

Subscribers with the same candidates are one node of the flow, so a million of them take milliseconds.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from broadloom.assignment.subscribers.reach import Reach
from broadloom.kernels import kernel
from broadloom.model import AssignmentProblem

# A limit of 29.999999999 subscribers, by rounding, is one of 30.
ROUNDING = 1e-9


class Flow(NamedTuple):
    """How many subscribers of each group go to each of its candidates, aligned with `Reach.brokers`.

    `movable[a, c]` is how many of those at `a` could go to `c`; `load` is the sum a broker; `by_broker` has
    the places of `units` broker after broker, from `by_start`.
    """

    units: NDArray[np.int64]
    load: NDArray[np.int64]
    movable: NDArray[np.int64]
    group_of: NDArray[np.int64]
    by_start: NDArray[np.int64]
    by_broker: NDArray[np.int64]


def limits(problem: AssignmentProblem, beta: float, count: int | None = None) -> NDArray[np.int64]:
    """The most subscribers that each broker may have at a load balance factor, if there are `count`."""
    m = problem.subscriber_count if count is None else count
    return np.floor(beta * problem.capacity * m + ROUNDING).astype(np.int64)


def max_flow(
    reach: Reach, limit: NDArray[np.int64], units: NDArray[np.int64] | None = None
) -> tuple[Flow, int, NDArray[np.bool_]]:
    """The largest part of the subscribers that fits, how many are left, and why.

    Args:
        reach: the groups, and who may serve them.
        limit: the most subscribers of each broker.
        units: a flow within the limits to start from; everybody whom it places keeps a place.

    Returns:
        The flow, the number of subscribers without a place, and a set of brokers that is full with
        subscribers who have no candidates outside of it; empty if nobody is left.
    """
    n = len(limit)
    order = np.argsort(reach.brokers, kind="stable")
    flow = Flow(
        np.zeros(len(reach.brokers), np.int64),
        np.zeros(n, np.int64),
        np.zeros((n, n), np.int64),
        np.repeat(np.arange(len(reach.size)), np.diff(reach.start)),
        np.searchsorted(reach.brokers[order], np.arange(n + 1)),
        order,
    )
    left, tight = _fill(reach, flow, limit, np.zeros_like(flow.units) if units is None else units)
    return flow, int(left), tight


def least_lbf(problem: AssignmentProblem, reach: Reach) -> tuple[float, Flow]:
    """The least load balance factor that any assignment within the latency bounds has, and its flow.

    When the flow does not fit, a set of brokers is full with subscribers who can go nowhere else. The factor
    must rise until the set holds them: that is necessary, so the first factor that suffices is the least.
    """
    beta, m = 1.0, int(reach.size.sum())
    while True:
        flow, left, tight = max_flow(reach, limits(problem, beta, m))
        if left == 0:
            return max_ratio(problem, flow.load), flow
        confined = np.logical_and.reduceat(tight[reach.brokers], reach.start[:-1])
        share = problem.capacity[tight] * m
        beta = _factor_that_holds(share[share > 0], int(reach.size[confined].sum()), beta)


def max_ratio(problem: AssignmentProblem, load: NDArray[np.int64]) -> float:
    """The load balance factor of some loads."""
    busy = load > 0
    share = problem.capacity[busy] * load.sum()
    return float(np.max(load[busy] / share, initial=0.0))


def _factor_that_holds(share: NDArray[np.float64], count: int, beta: float) -> float:
    """The least factor above `beta` at which brokers of some shares have room for `count` subscribers."""
    beta = max(beta, count / share.sum())
    while (room := np.floor(beta * share + ROUNDING)).sum() < count:
        beta = float(np.min((room + 1) / share))
    return beta


def spread(reach: Reach, flow: Flow) -> NDArray[np.int32]:
    """An assignment of single subscribers that has the flow's numbers; in each group in input order."""
    order = np.argsort(reach.group, kind="stable")
    broker_of = np.empty(len(reach.group), np.int32)
    broker_of[order] = np.repeat(reach.brokers, flow.units)
    return broker_of


@kernel
def _fill(
    reach: Reach, flow: Flow, limit: NDArray[np.int64], units: NDArray[np.int64]
) -> tuple[int, NDArray[np.bool_]]:
    """Place all groups, those with few candidates first; make room by moving others where there is none."""
    for p in range(len(units)):
        if units[p] > 0:
            add_units(reach, flow, p, units[p])
    groups = len(reach.size)
    tight = np.zeros(len(limit), np.bool_)
    left = 0
    for g in np.argsort(reach.start[1:] - reach.start[:-1], kind="mergesort")[:groups]:
        rest = _place_greedily(reach, flow, limit, g)
        while rest > 0:
            pushed, reached = _augment(reach, flow, limit, g, rest)
            if pushed == 0:
                left += rest
                tight |= reached
                break
            rest -= pushed
    return left, tight


@kernel
def _place_greedily(reach: Reach, flow: Flow, limit: NDArray[np.int64], g: int) -> int:
    """Give a group's subscribers to its candidates with the most room; gives how many are left."""
    rest = reach.size[g]
    for p in range(reach.start[g], reach.start[g + 1]):
        rest -= flow.units[p]
    while rest > 0:
        best, room = -1, 0
        for p in range(reach.start[g], reach.start[g + 1]):
            b = reach.brokers[p]
            if limit[b] - flow.load[b] > room:
                best, room = p, limit[b] - flow.load[b]
        if best < 0:
            break
        amount = min(rest, max(1, room // 2))
        add_units(reach, flow, best, amount)
        rest -= amount
    return rest


@kernel
def add_units(reach: Reach, flow: Flow, p: int, amount: int) -> None:
    """Put so many (or take, below 0) subscribers of a group at the candidate at place `p`."""
    g, b = flow.group_of[p], reach.brokers[p]
    flow.units[p] += amount
    flow.load[b] += amount
    for q in range(reach.start[g], reach.start[g + 1]):
        flow.movable[b, reach.brokers[q]] += amount


@kernel
def _augment(
    reach: Reach, flow: Flow, limit: NDArray[np.int64], g: int, rest: int
) -> tuple[int, NDArray[np.bool_]]:
    """Push some of a group to a candidate and others on from there, to a broker with room."""
    n = len(limit)
    came_from = np.full(n, -1, np.int64)
    reached = np.zeros(n, np.bool_)
    queue, tail = np.empty(n, np.int64), 0
    for p in range(reach.start[g], reach.start[g + 1]):
        reached[reach.brokers[p]] = True
        queue[tail] = reach.brokers[p]
        tail += 1
    end = search_room(flow, limit, queue, tail, reached, came_from)
    if end < 0:
        return 0, reached
    amount, b = min(rest, limit[end] - flow.load[end]), end
    while came_from[b] >= 0:
        amount = min(amount, flow.movable[came_from[b], b])
        b = came_from[b]
    b = end
    while came_from[b] >= 0:
        shift(reach, flow, came_from[b], b, amount)
        b = came_from[b]
    add_units(reach, flow, place_of(reach, g, b), amount)
    return amount, reached


@kernel
def search_room(
    flow: Flow,
    limit: NDArray[np.int64],
    queue: NDArray[np.int64],
    tail: int,
    reached: NDArray[np.bool_],
    came_from: NDArray[np.int64],
) -> int:
    """Breadth first from the queued brokers, over those who can move, to a broker with room; -1 if none."""
    head = 0
    while head < tail:
        a = queue[head]
        head += 1
        if flow.load[a] < limit[a]:
            return a
        for c in range(len(limit)):
            if not reached[c] and flow.movable[a, c] > 0:
                reached[c], came_from[c], queue[tail] = True, a, c
                tail += 1
    return -1


@kernel
def shift(reach: Reach, flow: Flow, a: int, c: int, amount: int) -> None:
    """Move so many subscribers from broker `a` to `c`, of whichever groups can."""
    for i in range(flow.by_start[a], flow.by_start[a + 1]):
        p = flow.by_broker[i]
        if flow.units[p] > 0:
            q = place_of(reach, flow.group_of[p], c)
            if q >= 0:
                moved = min(amount, flow.units[p])
                add_units(reach, flow, p, -moved)
                add_units(reach, flow, q, moved)
                amount -= moved
                if amount == 0:
                    return


@kernel
def place_of(reach: Reach, g: int, b: int) -> int:
    """Where broker `b` stands among the candidates of group `g`; -1 if it is none."""
    low, high = reach.start[g], reach.start[g + 1]
    while low < high:
        middle = (low + high) // 2
        if reach.brokers[middle] < b:
            low = middle + 1
        else:
            high = middle
    return low if low < reach.start[g + 1] and reach.brokers[low] == b else -1

"""The loop of all greedy assignments: next subscriber, cheapest broker, take it in."""

import heapq
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from broadloom.assignment.subscribers._boxes import are_apart, box_with
from broadloom.assignment.subscribers._filters import Filters, empty_filters, grow_path
from broadloom.assignment.subscribers.flow import Flow
from broadloom.assignment.subscribers.guard import admit
from broadloom.assignment.subscribers.reach import Reach
from broadloom.kernels import kernel
from broadloom.model import AssignmentProblem, DensityArrays, measure_of


class Wants(NamedTuple):
    """What kernels have to know of a problem: rectangles, tree, density, capacity."""

    lo: NDArray[np.float64]
    hi: NDArray[np.float64]
    parent: NDArray[np.int64]
    density: DensityArrays | None
    capacity: NDArray[np.float64]


class Greedy(NamedTuple):
    """A greedy assignment: the broker of each subscriber, filters, how many found all candidates full."""

    broker_of: NDArray[np.int64]
    filters: Filters
    stranded: int
    refused: int


def wants_of(problem: AssignmentProblem) -> Wants:
    """What kernels have to know of a problem, in arrays of one kind: locked ones would be compiled apart."""
    parent = problem.broker_parent.astype(np.int64)
    return Wants(
        problem.lo.copy(), problem.hi.copy(), parent, problem.density_arrays, problem.capacity.copy()
    )


def run_greedy(
    problem: AssignmentProblem,
    reach: Reach,
    limit: NDArray[np.int64],
    order: NDArray[np.int64],
    adaptive: bool,
    flow: Flow | None = None,
    filters: Filters | None = None,
    strict: bool = False,
) -> Greedy:
    """Assign subscribers one by one to the broker whose filters grow least.

    Args:
        problem: what is given.
        reach: who may go where.
        limit: the most subscribers of each broker.
        order: the subscribers in the order in which they come.
        adaptive: those with the fewest candidates that are not full first, in that order among equals (Gr*).
        flow: a complete max-flow that guards the choices, so that nobody is stranded; it is used up.
        filters: start from these; they are changed.
        strict: stop at the first who finds all candidates full; else such a one overloads a broker.
    """
    n, alpha, d = problem.broker_count, problem.alpha, problem.dimensions
    if filters is None:
        filters = empty_filters(n, alpha, d)
    levels = empty_filters(n + 1 if not problem.is_one_level else 1, alpha, d)
    guarded = flow is not None
    guard = _NO_FLOW if flow is None else flow
    by_group = np.argsort(reach.group[order], kind="stable")
    broker_of, stranded, refused = _assign_all(
        wants_of(problem), reach, limit, order, by_group, adaptive, guard, guarded, strict, filters, levels
    )
    return Greedy(broker_of, filters, stranded, refused)


_NO_FLOW = Flow(
    np.empty(0, np.int64),
    np.empty(0, np.int64),
    np.empty((0, 0), np.int64),
    np.empty(0, np.int64),
    np.empty(0, np.int64),
    np.empty(0, np.int64),
)


@kernel
def _assign_all(
    wants: Wants,
    reach: Reach,
    limit: NDArray[np.int64],
    order: NDArray[np.int64],
    by_group: NDArray[np.int64],
    adaptive: bool,
    flow: Flow,
    guarded: bool,
    strict: bool,
    filters: Filters,
    scratch: Filters,
) -> tuple[NDArray[np.int64], int, int]:
    """Decide all subscribers; `by_group` has the ranks in `order`, group after group, ascending."""
    m = len(order)
    broker_of = np.full(len(reach.group), -1, np.int64)
    load = np.zeros(len(limit), np.int64)
    closed = np.zeros(len(reach.brokers), np.bool_)
    following = np.zeros(len(reach.size) + 1, np.int64)
    following[1:] = np.cumsum(reach.size)
    ends = following[1:].copy()
    queue = _queue(reach, limit, load, by_group, following, ends)
    stranded, refused = 0, 0
    for step in range(m):
        rank = queue[0] % m if adaptive else step
        j = order[rank]
        g = reach.group[j]
        b, anywhere = -1, step < 0
        while b < 0:
            b = _cheapest(wants, reach, limit, load, closed, filters, scratch, j, anywhere)
            if b < 0 and strict:
                return broker_of, 1, refused
            if b < 0:
                stranded, anywhere = stranded + 1, True
            elif guarded and not admit(reach, flow, limit, g, b):
                _close(reach, closed, g, b)
                refused, b = refused + 1, -1
        grow_path(wants.density, filters, scratch, wants.parent, b, wants.lo[j], wants.hi[j], np.inf, True)
        broker_of[j] = b
        load[b] += 1
        following[g] += 1
        if adaptive:
            if load[b] == limit[b]:
                queue = _queue(reach, limit, load, by_group, following, ends)
            elif following[g] < ends[g]:
                heapq.heapreplace(queue, queue[0] - rank + by_group[following[g]])
            else:
                heapq.heappop(queue)
    return broker_of, stranded, refused


@kernel
def _queue(
    reach: Reach,
    limit: NDArray[np.int64],
    load: NDArray[np.int64],
    by_group: NDArray[np.int64],
    following: NDArray[np.int64],
    ends: NDArray[np.int64],
) -> list[int]:
    """A heap of (candidates that are not full, rank of the next member) a group, each pair as one number."""
    m = len(by_group)
    queue = [0 for _ in range(0)]
    for g in range(len(reach.size)):
        if following[g] < ends[g]:
            free = 0
            for p in range(reach.start[g], reach.start[g + 1]):
                free += load[reach.brokers[p]] < limit[reach.brokers[p]]
            queue.append(free * m + by_group[following[g]])
    heapq.heapify(queue)
    return queue


@kernel
def _close(reach: Reach, closed: NDArray[np.bool_], g: int, b: int) -> None:
    """Never offer `b` to group `g` again: what was refused once would be refused always."""
    for p in range(reach.start[g], reach.start[g + 1]):
        if reach.brokers[p] == b:
            closed[p] = True


@kernel
def _cheapest(
    wants: Wants,
    reach: Reach,
    limit: NDArray[np.int64],
    load: NDArray[np.int64],
    closed: NDArray[np.bool_],
    filters: Filters,
    scratch: Filters,
    j: int,
    anywhere: bool,
) -> int:
    """The candidate with room whose path grows least, the least loaded among equals; -1 if none has room.

    With `anywhere`, room does not count.
    """
    lo, hi, g = wants.lo[j], wants.hi[j], reach.group[j]
    all_lo, all_hi, used = filters.lo, filters.hi, filters.used
    brokers, capacity, parent = reach.brokers, wants.capacity, wants.parent
    best, least, lightest, own = -1, np.inf, np.inf, measure_of(wants.density, lo, hi)
    # Those who let it through anyway come first: then hardly anybody else is worth a look.
    for p in range(reach.start[g], reach.start[g + 1]):
        b = brokers[p]
        if anywhere or (load[b] < limit[b] and not closed[p]):
            ratio = load[b] / capacity[b]
            if ratio < lightest and box_with(all_lo, all_hi, b, used[b], lo, hi) >= 0:
                best, least, lightest = b, 0.0, ratio
    for p in range(reach.start[g], reach.start[g + 1]):
        b = brokers[p]
        if anywhere or (load[b] < limit[b] and not closed[p]):
            ratio = load[b] / capacity[b]
            is_lighter = ratio < lightest or (ratio == lightest and b < best)
            # Where it overlaps nothing, filters grow by all of it at least.
            if (least == 0.0 and not is_lighter) or (
                own > least and are_apart(all_lo, all_hi, b, used[b], lo, hi)
            ):
                continue
            growth = grow_path(wants.density, filters, scratch, parent, b, lo, hi, least, False)
            if growth < least or (growth == least and is_lighter):
                best, least, lightest = b, growth, ratio
    return best

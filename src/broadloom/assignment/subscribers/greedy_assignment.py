"""Greedy assignments of paper 4: Gr and Gr* (section III), and the comparisons of section VI.

Gr assigns subscribers one by one to the broker whose filters grow least, Gr* those with the fewest open
candidates first. The comparisons are Gr without latency, Closest with and without load limits, and Balance.
`guarded_greedy` is ours: Gr* with a max-flow that keeps a broker for every subscriber.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from broadloom.assignment.subscribers.content_filters import (
    BrokersAndFilters,
    Filters,
    GrowingFilters,
    are_apart,
    as_tuples,
    box_around,
    empty_filters,
    grow_path,
    tight_filters,
)
from broadloom.assignment.subscribers.load_flow import (
    CandidateBrokers,
    LoadFlow,
    admit,
    all_leaves,
    candidates_in_time,
    least_lbf,
    load_limits,
    max_flow,
    spread,
)
from broadloom.checks import check_choice, check_flag
from broadloom.errors import InternalError
from broadloom.kernels import kernel
from broadloom.model import AssignmentProblem, DensityArrays, NoOptions, measure_of
from broadloom.plans import AssignmentResult

# "We increase the value of beta by a small factor": the paper does not give the factor.
BETA_STEP = 0.05


@dataclass(frozen=True)
class OrderOptions:
    """Options of Gr and Gr*.

    Attributes:
        shuffle: take subscribers in a random order (by the seed) instead of the order of the input.
    """

    shuffle: bool = False

    def __post_init__(self) -> None:
        check_flag(self.shuffle, "option shuffle")


# What Gr does with a subscriber whose candidates are all full: overload one of them, or remove a random
# subscriber from each and assign these next, or after all others.
MAKE_ROOM = ("no", "next", "later")
# The most removals, as a multiple of the number of subscribers.
REMOVALS = 20


@dataclass(frozen=True)
class GrOptions(OrderOptions):
    """Options of Gr.

    Attributes:
        shuffle: as for Gr*.
        make_room: if all candidates of a subscriber are full at `beta_max`: "no", one of them is overloaded;
            "next" or "later", a random subscriber is removed from each, and assigned again next, or after all
            others. These are the variants that section VI tries; after 20 removals per subscriber they
            overload, too.
    """

    make_room: str = "no"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self.make_room, "make_room", MAKE_ROOM)


def gr(problem: AssignmentProblem, options: GrOptions, seed: int) -> AssignmentResult:
    """Each subscriber in turn to the candidate whose filters grow least.

    Reference: Yu, Agarwal and Yang, ICDE 2011 (paper 4), section III.
    """
    if options.make_room != "no":
        return _making_room(problem, options, seed)
    return _raising_beta(problem, candidates_in_time(problem), _order(problem, options, seed), adaptive=False)


def gr_star(problem: AssignmentProblem, options: OrderOptions, seed: int) -> AssignmentResult:
    """As Gr, but those with the fewest candidates that are not full first.

    Reference: Yu, Agarwal and Yang, ICDE 2011 (paper 4), section III.
    """
    return _raising_beta(problem, candidates_in_time(problem), _order(problem, options, seed), adaptive=True)


def gr_no_latency(problem: AssignmentProblem, options: OrderOptions, seed: int) -> AssignmentResult:
    """As Gr, with every leaf broker as a candidate: the bandwidth if latency did not count.

    Reference: Yu, Agarwal and Yang, ICDE 2011 (paper 4), section VI.
    """
    return _raising_beta(problem, all_leaves(problem), _order(problem, options, seed), adaptive=False)


def balance(problem: AssignmentProblem, options: NoOptions, seed: int) -> AssignmentResult:  # noqa: ARG001
    """The least possible load balance factor within the latency bounds, by max-flow.

    Reference: Yu, Agarwal and Yang, ICDE 2011 (paper 4), section VI.
    """
    candidates = candidates_in_time(problem)
    factor, flow = least_lbf(problem, candidates)
    broker_of = spread(candidates, flow)
    filters = as_tuples(tight_filters(problem, broker_of))
    return AssignmentResult(problem, broker_of, filters, notes={"least_lbf": factor})


def closest_unbalanced(problem: AssignmentProblem, options: NoOptions, seed: int) -> AssignmentResult:  # noqa: ARG001
    """Each subscriber to the leaf broker of the least last hop, regardless of load.

    Reference: Yu, Agarwal and Yang, ICDE 2011 (paper 4), section VI.
    """
    unlimited = np.full(problem.broker_count, problem.subscriber_count, np.int64)
    return _to_nearest(problem, unlimited)


def closest(problem: AssignmentProblem, options: NoOptions, seed: int) -> AssignmentResult:  # noqa: ARG001
    """Each subscriber to the nearest leaf broker that is not full at `beta_max`.

    Reference: Yu, Agarwal and Yang, ICDE 2011 (paper 4), section VI.
    """
    return _to_nearest(problem, load_limits(problem, problem.beta_max))


def _to_nearest(problem: AssignmentProblem, limit: NDArray[np.int64]) -> AssignmentResult:
    """Each subscriber, in order, at the nearest leaf broker below its limit."""
    leaves = problem.leaves
    nearest = _nearest_below_limit(problem.subscriber_place, problem.broker_place[leaves], limit[leaves])
    broker_of = leaves[nearest]
    return AssignmentResult(problem, broker_of, as_tuples(tight_filters(problem, broker_of)))


@kernel
def _nearest_below_limit(
    position: NDArray[np.float64], broker_position: NDArray[np.float64], limit: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The nearest broker below its limit for each point in turn; the nearest of all when all are full."""
    load = np.zeros(len(limit), np.int64)
    result = np.empty(len(position), np.int64)
    for j in range(len(position)):
        best, best_of_all = -1, 0
        least, least_of_all = np.inf, np.inf
        for b in range(len(limit)):
            hop = 0.0
            for axis in range(position.shape[1]):
                hop += (position[j, axis] - broker_position[b, axis]) ** 2
            if hop < least_of_all:
                best_of_all, least_of_all = b, hop
            if hop < least and load[b] < limit[b]:
                best, least = b, hop
        result[j] = best if best >= 0 else best_of_all
        load[result[j]] += 1
    return result


def rising_betas(problem: AssignmentProblem) -> Iterator[float]:
    """The load balance factors to try: from `beta` in steps to `beta_max`."""
    beta = problem.beta
    while beta < problem.beta_max:
        yield beta
        beta += BETA_STEP
    yield problem.beta_max


def feasible_beta(
    problem: AssignmentProblem, candidates: CandidateBrokers
) -> tuple[float, dict[str, object]]:
    """The first load balance factor from `beta` up that can be met, or the least possible one; and notes."""
    for beta in rising_betas(problem):
        if max_flow(candidates, load_limits(problem, beta, int(candidates.size.sum())))[1] == 0:
            return beta, {"beta": beta}
    least, _ = least_lbf(problem, candidates)
    return least, {"beta": least, "least_lbf": least}


def _order(problem: AssignmentProblem, options: OrderOptions, seed: int) -> NDArray[np.int64]:
    """The order in which subscribers are assigned."""
    m = problem.subscriber_count
    return np.random.default_rng(seed).permutation(m) if options.shuffle else np.arange(m)


def _raising_beta(
    problem: AssignmentProblem, candidates: CandidateBrokers, order: NDArray[np.int64], adaptive: bool
) -> AssignmentResult:
    """The first run in which every subscriber finds a candidate below its limit, or the one at `beta_max`."""
    for beta in rising_betas(problem):
        rules = GreedyRules(order, adaptive, strict=beta < problem.beta_max)
        run = run_greedy(problem, candidates, load_limits(problem, beta), rules)
        if run.stranded == 0:
            break
    notes = {"beta": beta, "stranded": run.stranded}
    return AssignmentResult(problem, run.broker_of.astype(np.int32), as_tuples(run.filters), notes=notes)


def _making_room(problem: AssignmentProblem, options: GrOptions, seed: int) -> AssignmentResult:
    """Gr at `beta_max`, with removals from full brokers."""
    state, filters = _new_state(problem, candidates_in_time(problem), load_limits(problem, problem.beta_max))
    order = _order(problem, options, seed)
    chance = np.random.default_rng([seed, 1]).random(REMOVALS * len(order))
    broker_of, stranded, removed = _assign_making_room(state, order, options.make_room == "next", chance)
    notes = {"beta": problem.beta_max, "stranded": stranded, "removed": removed}
    return AssignmentResult(problem, broker_of.astype(np.int32), as_tuples(filters), notes=notes)


def guarded_greedy(
    problem: AssignmentProblem,
    candidates: CandidateBrokers,
    limit: NDArray[np.int64],
    order: NDArray[np.int64],
    filters: Filters | None = None,
) -> BrokersAndFilters:
    """Gr* within limits that can be met: every subscriber gets a candidate below its limit."""
    flow, unplaced, _ = max_flow(candidates, limit)
    if unplaced:
        raise InternalError(
            f"a guarded greedy assignment got limits that leave {unplaced:,} subscribers without a broker; "
            "please report this"
        )
    run = run_greedy(problem, candidates, limit, GreedyRules(order, adaptive=True), flow, filters)
    return run.broker_of, run.filters


class ProblemArrays(NamedTuple):
    """The arrays of a problem that kernels need: rectangles, tree, density, capacity."""

    lo: NDArray[np.float64]
    hi: NDArray[np.float64]
    parent: NDArray[np.int64]
    density: DensityArrays | None
    capacity: NDArray[np.float64]


def arrays_of(problem: AssignmentProblem) -> ProblemArrays:
    """The arrays of a problem, copied: kernels would be compiled again for read-only ones."""
    parent = problem.broker_parent.astype(np.int64)
    return ProblemArrays(
        problem.lo.copy(), problem.hi.copy(), parent, problem.density_arrays, problem.capacity.copy()
    )


class GreedyRules(NamedTuple):
    """Rules of a greedy assignment.

    Attributes:
        order: the subscribers in the order in which they are assigned.
        adaptive: those with the fewest candidates that are not full first, in that order among equals (Gr*).
        strict: stop at the first subscriber whose candidates are all full; otherwise it overloads one.
    """

    order: NDArray[np.int64]
    adaptive: bool
    strict: bool = False


class GreedyRun(NamedTuple):
    """A greedy assignment, the number of subscribers that found all candidates full, and refused choices."""

    broker_of: NDArray[np.int64]
    filters: Filters
    stranded: int
    refused: int


def run_greedy(
    problem: AssignmentProblem,
    candidates: CandidateBrokers,
    limit: NDArray[np.int64],
    rules: GreedyRules,
    flow: LoadFlow | None = None,
    filters: Filters | None = None,
) -> GreedyRun:
    """Assign subscribers one by one to the broker whose filters grow least.

    Args:
        problem: the problem.
        candidates: the candidate brokers of each subscriber.
        limit: the most subscribers per broker.
        rules: the order of the subscribers, and what happens when all candidates are full.
        flow: a complete max-flow that guards the choices; it is changed.
        filters: the filters to start from; they are changed.
    """
    state, filters = _new_state(problem, candidates, limit, filters)
    by_group = np.argsort(candidates.group[rules.order], kind="stable")
    guard = _NO_FLOW if flow is None else flow
    broker_of, stranded, refused = _assign_all(state, rules, by_group, guard)
    return GreedyRun(broker_of, filters, stranded, refused)


def _new_state(
    problem: AssignmentProblem,
    candidates: CandidateBrokers,
    limit: NDArray[np.int64],
    filters: Filters | None = None,
) -> "tuple[_GreedyState, Filters]":
    """The state before the first subscriber, and its filters."""
    n, alpha, d = problem.broker_count, problem.alpha, problem.dimensions
    if filters is None:
        filters = empty_filters(n, alpha, d)
    scratch = empty_filters(n + 1 if not problem.is_one_level else 1, alpha, d)
    arrays = arrays_of(problem)
    state = _GreedyState(
        arrays,
        candidates,
        limit,
        np.zeros(n, np.int64),
        np.zeros(len(candidates.brokers), np.bool_),
        GrowingFilters(arrays.density, arrays.parent, filters, scratch),
    )
    return state, filters


class _GreedyState(NamedTuple):
    """The state of a greedy assignment: loads, candidates that the guard has closed, and filters."""

    arrays: ProblemArrays
    candidates: CandidateBrokers
    limit: NDArray[np.int64]
    load: NDArray[np.int64]
    closed: NDArray[np.bool_]
    growing: GrowingFilters


_NO_FLOW = LoadFlow(
    np.empty(0, np.int64),
    np.empty(0, np.int64),
    np.empty((0, 0), np.int64),
    np.empty(0, np.int64),
    np.empty(0, np.int64),
    np.empty(0, np.int64),
)


@kernel
def _assign_all(
    state: _GreedyState, rules: GreedyRules, by_group: NDArray[np.int64], flow: LoadFlow
) -> tuple[NDArray[np.int64], int, int]:
    """Assign all subscribers; `by_group` has the ranks in the order, group by group, ascending.

    The flow is empty in an assignment without a guard.
    """
    candidates, limit, load, order = state.candidates, state.limit, state.load, rules.order
    lo, hi = state.arrays.lo, state.arrays.hi
    m = len(order)
    broker_of = np.full(len(candidates.group), -1, np.int64)
    following = np.zeros(len(candidates.size) + 1, np.int64)
    following[1:] = np.cumsum(candidates.size)
    ends = following[1:].copy()
    queue = _queue(candidates, limit, load, by_group, following, ends)
    guarded = len(flow.units) > 0
    stranded = 0
    refused = 0
    for step in range(m):
        rank = queue[0] % m if rules.adaptive else step
        j = order[rank]
        g = candidates.group[j]
        b = -1
        ignore_limits = False
        while b < 0:
            b = _cheapest(state, j, ignore_limits)
            if b < 0 and rules.strict:
                return broker_of, 1, refused
            if b < 0:
                stranded += 1
                ignore_limits = True
            elif guarded and not admit(candidates, flow, limit, g, b):
                _close(candidates, state.closed, g, b)
                refused += 1
                b = -1
        grow_path(state.growing, b, lo[j], hi[j], np.inf, True)
        broker_of[j] = b
        load[b] += 1
        following[g] += 1
        if rules.adaptive:
            if load[b] == limit[b]:
                queue = _queue(candidates, limit, load, by_group, following, ends)
            elif following[g] < ends[g]:
                heapq.heapreplace(queue, queue[0] - rank + by_group[following[g]])
            else:
                heapq.heappop(queue)
    return broker_of, stranded, refused


@kernel
def _assign_making_room(
    state: _GreedyState, order: NDArray[np.int64], again_next: bool, chance: NDArray[np.float64]
) -> tuple[NDArray[np.int64], int, int]:
    """Assign all subscribers, with at most one removal per number in `chance`.

    Returns:
        The broker of each subscriber, the number of those that overload one, and the number of removals.
    """
    candidates, limit, load = state.candidates, state.limit, state.load
    m = len(order)
    broker_of = np.full(m, -1, np.int64)
    held = np.full((len(limit), limit.max() + 1 if len(limit) else 1), -1, np.int64)
    waiting = np.empty(m + len(chance), np.int64)
    waiting[:m] = order
    removed_next = np.empty(m, np.int64)
    first = 0
    last = m
    top = 0
    stranded = 0
    removed = 0
    while top > 0 or first < last:
        if top > 0:
            top -= 1
            j = removed_next[top]
        else:
            j = waiting[first]
            first += 1
        b = _cheapest(state, j, False)
        if b < 0:
            g = candidates.group[j]
            for p in range(candidates.start[g], candidates.start[g + 1]):
                full = candidates.brokers[p]
                if removed == len(chance) or load[full] == 0 or load[full] > limit[full]:
                    continue
                at = int(chance[removed] * load[full])
                other = held[full, at]
                load[full] -= 1
                held[full, at] = held[full, load[full]]
                broker_of[other] = -1
                removed += 1
                if again_next:
                    removed_next[top] = other
                    top += 1
                else:
                    waiting[last] = other
                    last += 1
            b = _cheapest(state, j, False)
        if b < 0:
            b = _cheapest(state, j, True)
            stranded += 1
        if load[b] < held.shape[1]:
            held[b, load[b]] = j
        load[b] += 1
        broker_of[j] = b
        grow_path(state.growing, b, state.arrays.lo[j], state.arrays.hi[j], np.inf, True)
    return broker_of, stranded, removed


@kernel
def _queue(
    candidates: CandidateBrokers,
    limit: NDArray[np.int64],
    load: NDArray[np.int64],
    by_group: NDArray[np.int64],
    following: NDArray[np.int64],
    ends: NDArray[np.int64],
) -> list[int]:
    """A heap with (candidates that are not full, rank of the next member) per group, packed in one number."""
    m = len(by_group)
    queue = [0 for _ in range(0)]
    for g in range(len(candidates.size)):
        if following[g] < ends[g]:
            free = 0
            for p in range(candidates.start[g], candidates.start[g + 1]):
                free += load[candidates.brokers[p]] < limit[candidates.brokers[p]]
            queue.append(free * m + by_group[following[g]])
    heapq.heapify(queue)
    return queue


@kernel
def _close(candidates: CandidateBrokers, closed: NDArray[np.bool_], g: int, b: int) -> None:
    """Never offer `b` to group `g` again: a choice that was refused once would always be refused."""
    for p in range(candidates.start[g], candidates.start[g + 1]):
        if candidates.brokers[p] == b:
            closed[p] = True


@kernel
def _cheapest(state: _GreedyState, j: int, ignore_limits: bool) -> int:
    """The candidate below its limit whose path grows least, the least loaded among equals; or -1."""
    arrays, candidates, growing = state.arrays, state.candidates, state.growing
    limit, load, closed = state.limit, state.load, state.closed
    lo, hi, g = arrays.lo[j], arrays.hi[j], candidates.group[j]
    all_lo, all_hi, used = growing.filters.lo, growing.filters.hi, growing.filters.used
    brokers, capacity = candidates.brokers, arrays.capacity
    own = measure_of(arrays.density, lo, hi)
    best, least, lightest = -1, np.inf, np.inf
    # First the brokers whose filters hold the rectangle already: then hardly any other needs a look.
    for p in range(candidates.start[g], candidates.start[g + 1]):
        b = brokers[p]
        if ignore_limits or (load[b] < limit[b] and not closed[p]):
            ratio = load[b] / capacity[b]
            if ratio < lightest and box_around(all_lo, all_hi, b, used[b], lo, hi) >= 0:
                best, least, lightest = b, 0.0, ratio
    for p in range(candidates.start[g], candidates.start[g + 1]):
        b = brokers[p]
        if ignore_limits or (load[b] < limit[b] and not closed[p]):
            ratio = load[b] / capacity[b]
            is_lighter = ratio < lightest or (ratio == lightest and b < best)
            # A filter that the rectangle does not overlap grows by all of it at least.
            if (least == 0.0 and not is_lighter) or (
                own > least and are_apart(all_lo, all_hi, b, used[b], lo, hi)
            ):
                continue
            growth = grow_path(growing, b, lo, hi, least, False)
            if growth < least or (growth == least and is_lighter):
                best, least, lightest = b, growth, ratio
    return best

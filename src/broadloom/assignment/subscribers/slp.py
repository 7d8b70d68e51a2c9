"""SLP1 and SLP (paper 4, sections IV and V): filters from a linear program, then subscribers inside them.

As printed, the subscribers are placed by a max-flow that is blind to bandwidth, which gives away what the
linear program has found and is seldom feasible (`literal=True`). Here the preliminary filters say which
brokers are open to a subscriber; they are relaxed by the least growth at which loads can be met, and a
guarded greedy assignment goes on from there.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from broadloom.assignment.subscribers._boxes import span
from broadloom.assignment.subscribers._filters import Filters, as_tuples, empty_filters, refresh
from broadloom.assignment.subscribers.bound import lower_bound
from broadloom.assignment.subscribers.coreset import Guess, Phi, SlpOptions, View, filter_assign
from broadloom.assignment.subscribers.flow import least_lbf, limits, max_flow, spread
from broadloom.assignment.subscribers.greedy import feasible_beta, guarded, rising_betas
from broadloom.assignment.subscribers.reach import Reach, grouped, reach_of, take
from broadloom.assignment.subscribers.tighten import few_boxes, tight_filters, tighter
from broadloom.errors import InputError
from broadloom.kernels import kernel
from broadloom.model import AssignmentProblem, DensityArrays, measure_of
from broadloom.plans import AssignmentResult

# Preliminary filters may be relaxed by so much of the measure of all events, the least first; at last by all.
THETA = np.concatenate(([0.0], np.geomspace(1e-4, 1.0, 30)))

Made = tuple[NDArray[np.int64], Filters]


def slp1(problem: AssignmentProblem, options: SlpOptions, seed: int) -> AssignmentResult:
    """One linear program over all leaf brokers; inner brokers get filters around those below."""
    rng = np.random.default_rng(seed)
    reach = reach_of(problem)
    beta, notes = feasible_beta(problem, reach)
    if problem.subscriber_count == 0:
        return AssignmentResult(problem, np.empty(0, np.int32), ((),) * problem.broker_count, notes=notes)
    limit = limits(problem, beta)
    guess = filter_assign(_view(problem, reach, limit), options, rng)
    notes |= _told([guess])
    if options.literal:
        made, notes["unplaced"] = _by_max_flow(problem, reach, guess.phi)
    else:
        made = _best_inside(problem, reach, limit, guess.phi, _seeds(problem, guess.sparing), rng)
    return _result(problem, reach, made, notes)


def slp(problem: AssignmentProblem, options: SlpOptions, seed: int) -> AssignmentResult:
    """From the top of the tree down: a linear program among the children of each broker."""
    if problem.is_one_level or problem.subscriber_count == 0:
        return slp1(problem, options, seed)
    if options.literal:
        raise InputError(
            "slp is not literal with several levels of brokers: the paper leaves open what the latency and "
            "the load of inner brokers are; leave literal out, or choose slp1"
        )
    rng = np.random.default_rng(seed)
    reach = reach_of(problem)
    beta, notes = feasible_beta(problem, reach)
    limit = limits(problem, beta)
    phi, told = _top_down(problem, reach, limit, options, rng)
    return _result(problem, reach, _best_inside(problem, reach, limit, phi, None, rng), notes | told)


def _result(problem: AssignmentProblem, reach: Reach, made: Made, notes: dict[str, Any]) -> AssignmentResult:
    """An assignment as a result. The fractional value is no bound for the whole problem; another one is."""
    broker_of, filters = made[0].astype(np.int32), as_tuples(made[1])
    return AssignmentResult(problem, broker_of, filters, lower_bound=lower_bound(problem, reach), notes=notes)


def _told(guesses: list[Guess]) -> dict[str, Any]:
    """What there is to tell of linear programs. The value of one that was not solved is no value."""
    solved = all(guess.relaxed.solved for guess in guesses)
    return {
        "fractional": float(sum(guess.relaxed.value for guess in guesses)) if solved else None,
        "solved": solved,
        "programs": sum(guess.passes for guess in guesses),
        "outside": sum(guess.outside for guess in guesses),
        "certificate": all(guess.outside == 0 for guess in guesses),
    }


def _top_down(
    problem: AssignmentProblem,
    reach: Reach,
    limit: NDArray[np.int64],
    options: SlpOptions,
    rng: np.random.Generator,
) -> tuple[Phi, dict[str, Any]]:
    """Preliminary filters of all brokers, level by level; subscribers are divided on the way, for a start."""
    lo, hi = [problem.lo[:0]] * problem.broker_count, [problem.hi[:0]] * problem.broker_count
    below = {-1: np.arange(problem.subscriber_count)}
    guesses: list[Guess] = []
    for parent in (-1, *map(int, problem.top_down[~problem.is_leaf[problem.top_down]])):
        children, mine = np.flatnonzero(problem.broker_parent == parent), below.pop(parent)
        part, part_reach, part_limit = _among_children(problem, reach, limit, mine, children)
        child_of = np.zeros(len(mine), np.int64)
        if len(mine) and len(children) > 1:
            guess = filter_assign(_view(part, part_reach, part_limit), options, rng)
            seeds = _seeds(part, guess.sparing)
            child_of, _ = _best_inside(part, part_reach, part_limit, guess.phi, seeds, rng)
            for i, child in enumerate(children):
                boxes = slice(guess.phi.start[i], guess.phi.start[i + 1])
                lo[child], hi[child] = guess.phi.lo[boxes], guess.phi.hi[boxes]
            guesses.append(guess)
        below |= {int(child): mine[child_of == i] for i, child in enumerate(children)}
    start = np.concatenate(([0], np.cumsum([len(boxes) for boxes in lo])))
    return Phi(np.concatenate(lo), np.concatenate(hi), start), _told(guesses)


def _among_children(
    problem: AssignmentProblem,
    reach: Reach,
    limit: NDArray[np.int64],
    mine: NDArray[np.int64],
    children: NDArray[np.int64],
) -> tuple[AssignmentProblem, Reach, NDArray[np.int64]]:
    """The problem of dividing some subscribers among brokers that are siblings.

    A child is open to a subscriber if a leaf below it is: the best latency that its subtree offers. Its
    capacity is that of its leaves together. Where that is not enough for these subscribers (who were divided
    before without a look at it), it is raised as far as is needed.
    """
    above = np.full(problem.broker_count, -1)
    above[children] = np.arange(len(children))
    for broker in problem.top_down:
        if above[broker] < 0 and problem.broker_parent[broker] >= 0:
            above[broker] = above[problem.broker_parent[broker]]
    under = problem.is_leaf & (above >= 0)
    share = np.bincount(above[under], problem.capacity[under], len(children))
    part = problem.subset(mine).replace(
        broker_place=problem.broker_place[children],
        broker_parent=np.full(len(children), -1),
        capacity=share,
        broker_ids=None,
        max_latency=None,
    )
    group = np.repeat(np.arange(len(reach.size)), np.diff(reach.start))
    is_open = np.zeros((len(reach.size), len(children)), bool)
    known = under[reach.brokers]
    is_open[group[known], above[reach.brokers[known]]] = True
    part_reach = grouped(is_open[reach.group[mine]], np.arange(len(children), dtype=np.int32))
    room = np.bincount(above[under], limit[under], len(children)).astype(np.int64)
    if len(mine) and max_flow(part_reach, room)[1] > 0:
        room = np.maximum(room, limits(part, least_lbf(part, part_reach)[0]))
    return part, part_reach, room


def _view(problem: AssignmentProblem, reach: Reach, limit: NDArray[np.int64]) -> View:
    """What sampling has to know of a problem."""
    lo, hi, place = problem.lo.copy(), problem.hi.copy(), problem.subscriber_place.copy()
    return View(place, lo, hi, reach, limit.astype(np.float64), problem.density_arrays, problem.alpha)


def _best_inside(
    problem: AssignmentProblem,
    reach: Reach,
    limit: NDArray[np.int64],
    phi: Phi,
    seeds: Filters | None,
    rng: np.random.Generator,
) -> Made:
    """The better of two: inside the preliminary filters, or anywhere from a start with few of their boxes."""
    order = rng.permutation(problem.subscriber_count)
    seeded = guarded(problem, reach, limit, order, seeds)
    ways = _inside(problem, reach, limit, phi, order), tighter(problem, *seeded)
    return min(ways, key=lambda made: float(made[1].measure.sum()))


def _inside(
    problem: AssignmentProblem,
    reach: Reach,
    limit: NDArray[np.int64],
    phi: Phi,
    order: NDArray[np.int64],
) -> Made:
    """A guarded greedy assignment inside preliminary filters, which are relaxed as little as can be."""
    whole = measure_of(problem.density_arrays, problem.lo.min(axis=0), problem.hi.max(axis=0))
    parent, theta = problem.broker_parent.astype(np.int64), np.append(THETA * whole, np.inf)
    level = least_levels(
        problem.density_arrays, phi, problem.lo.copy(), problem.hi.copy(), reach, parent, theta
    )
    low, high = 0, len(theta) - 1
    while low < high:
        middle = (low + high) // 2
        if max_flow(_opened(level, middle), limit)[1] == 0:
            high = middle
        else:
            low = middle + 1
    return tighter(problem, *guarded(problem, _opened(level, high), limit, order))


def _opened(level: NDArray[np.uint8], most: int) -> Reach:
    """Who may go where, if filters are relaxed up to a level."""
    return grouped(level <= most, np.arange(level.shape[1], dtype=np.int32))


def _seeds(problem: AssignmentProblem, phi: Phi) -> Filters | None:
    """Leaf filters of at most alpha boxes around the preliminary ones; none where there are more levels."""
    if not problem.is_one_level:
        return None
    filters = empty_filters(problem.broker_count, problem.alpha, problem.dimensions)
    for b in range(problem.broker_count):
        mine = slice(phi.start[b], phi.start[b + 1])
        lo, hi = few_boxes(problem.density_arrays, phi.lo[mine], phi.hi[mine], problem.alpha)
        filters.used[b] = len(lo)
        filters.lo[b, : len(lo)], filters.hi[b, : len(lo)] = lo, hi
        refresh(problem.density_arrays, filters, b)
    return filters


def _by_max_flow(problem: AssignmentProblem, reach: Reach, phi: Phi) -> tuple[Made, int]:
    """The assignment as printed: max-flow to brokers whose filters cover, the rest wherever it is in time."""
    parent = problem.broker_parent.astype(np.int64)
    level = least_levels(
        problem.density_arrays, phi, problem.lo.copy(), problem.hi.copy(), reach, parent, THETA[:1]
    )
    inside = level == 0
    is_covered = np.flatnonzero(inside.any(axis=1))
    open_to = grouped(inside[is_covered], np.arange(problem.broker_count, dtype=np.int32))
    for beta in rising_betas(problem):
        flow, left, _ = max_flow(open_to, limits(problem, beta))
        if left == 0:
            break
    broker_of = np.full(problem.subscriber_count, -1, np.int64)
    broker_of[is_covered] = _spread_some(open_to, flow)
    nowhere = np.flatnonzero(broker_of < 0)
    rest = take(reach, nowhere)
    broker_of[nowhere] = spread(rest, max_flow(rest, np.full(problem.broker_count, len(nowhere)))[0])
    return (broker_of, tight_filters(problem, broker_of)), len(nowhere)


def _spread_some(reach: Reach, flow: Any) -> NDArray[np.int64]:
    """As `spread`, where not everybody has a place; -1 for the last members of such a group."""
    placed = np.add.reduceat(flow.units, reach.start[:-1])
    order = np.argsort(reach.group, kind="stable")
    first = np.concatenate(([0], np.cumsum(reach.size)))[:-1]
    rank = np.arange(len(order)) - np.repeat(first, reach.size)
    broker_of = np.full(len(order), -1, np.int64)
    broker_of[order[rank < np.repeat(placed, reach.size)]] = np.repeat(reach.brokers, flow.units)
    return broker_of


@kernel
def least_levels(
    density: DensityArrays | None,
    phi: Phi,
    lo: NDArray[np.float64],
    hi: NDArray[np.float64],
    reach: Reach,
    parent: NDArray[np.int64],
    theta: NDArray[np.float64],
) -> NDArray[np.uint8]:
    """By which of the ascending `theta` filters up the tree must be relaxed, a subscriber and broker.

    Brokers that are too slow for a subscriber have 255, and a broker without preliminary filter is open.
    Each subscriber stands on its own.
    """
    level = np.full((len(lo), len(parent)), 255, np.uint8)
    around_lo, around_hi = np.empty(lo.shape[1]), np.empty(lo.shape[1])
    own = np.empty(len(phi.lo))
    for k in range(len(own)):
        own[k] = measure_of(density, phi.lo[k], phi.hi[k])
    for j in range(len(lo)):
        g, low, high = reach.group[j], lo[j], hi[j]
        for p in range(reach.start[g], reach.start[g + 1]):
            leaf = reach.brokers[p]
            worst, b = 0.0, leaf
            while b >= 0:
                least = 0.0 if phi.start[b] == phi.start[b + 1] else np.inf
                for k in range(phi.start[b], phi.start[b + 1]):
                    span(low, high, phi.lo, phi.hi, k, around_lo, around_hi)
                    least = min(least, measure_of(density, around_lo, around_hi) - own[k])
                    if least <= 0.0:
                        break
                worst, b = max(worst, least), parent[b]
            at = np.searchsorted(theta, worst)
            if at < len(theta):
                level[j, leaf] = at
    return level

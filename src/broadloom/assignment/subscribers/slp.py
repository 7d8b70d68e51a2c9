"""SLP1 and SLP (paper 4, sections IV and V): filters from a linear program, then subscribers inside them.

Preliminary filters come from iterative reweighted sampling around the linear program (Algorithm 1). As
printed (`literal=True`), a max-flow that ignores bandwidth then places the subscribers, which loses what the
linear program has gained; and where the filters leave no room within the load limits, the limits are broken.
By default the preliminary filters only restrict the candidates of a subscriber: they are relaxed by the least
growth at which loads can be met, and a guarded greedy assignment continues from there.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from broadloom.assignment.subscribers.bandwidth_bound import lower_bound
from broadloom.assignment.subscribers.content_filters import (
    BrokersAndFilters,
    Filters,
    as_tuples,
    empty_filters,
    set_filter,
    span,
    tight_filters,
    tighter,
)
from broadloom.assignment.subscribers.greedy_assignment import (
    ProblemArrays,
    arrays_of,
    feasible_beta,
    guarded_greedy,
    rising_betas,
)
from broadloom.assignment.subscribers.linear_program import (
    FractionalFilters,
    PreliminaryFilters,
    ProgramSample,
    candidate_rectangles,
    covered,
    relax,
    rounded,
)
from broadloom.assignment.subscribers.load_flow import (
    CandidateBrokers,
    LoadFlow,
    candidates_from_matrix,
    candidates_in_time,
    candidates_of,
    least_lbf,
    load_limits,
    max_flow,
    spread,
)
from broadloom.checks import check_count, check_flag, check_number
from broadloom.kernels import kernel
from broadloom.model import AssignmentProblem, DensityArrays, measure_of
from broadloom.plans import AssignmentResult
from broadloom.progress import stage

# The factors of the total measure by which preliminary filters can be relaxed, the least first.
THETA = np.concatenate(([0.0], np.geomspace(1e-4, 1.0, 30)))
# Draws of a load sample before its limits are raised.
MAX_DRAWS = 20
# `g` at the start, and the subscribers per broker that are sampled for loads: by default, and in the paper.
SIZE, LOADS = 64, 20
LITERAL_SIZE, LITERAL_LOADS = 4, 10
# The most linear programs before the best filters so far are taken, unless literal.
MAX_PROGRAMS = 1
# Parts of a subscriber that can go to different brokers, as in a linear program.
PARTS = 1000


@dataclass(frozen=True)
class SlpOptions:
    """Options of slp1 and slp.

    Attributes:
        literal: run as printed: `g` from 4, samples of `10 |B|` for loads, the same candidate rectangles for
            all brokers, linear programs until the filters cover all subscribers, and a max-flow that ignores
            bandwidth. Subscribers that it cannot place within the load limits get any broker in time: the
            fewer the sample has, the more of them there are.
        passes: the most linear programs before the best filters so far are taken; None: 1, and no limit if
            literal, as in the paper. A literal run from a small `size` can need hundreds of programs.
        eps: how much filters are expanded before a sample counts as a certificate; the paper does not say.
        size: the paper's `g` at the start, from which samples of `10 g ln g` are drawn; None: 64, and 4 if
            literal. A literal run that starts higher skips stages that find no certificate.
        load_sample: the number of subscribers per broker that are sampled for loads; None: 20, and 10 if
            literal.
        clusters: the number of super-subscriptions per broker, from which candidate rectangles are made.
        threshold: an inner broker is open to a subscriber if at least this share of the leaves below is in
            time; if there is no such broker, those with the largest share are.
        tolerance: the relative accuracy of the linear program; its value is no better than that.
        iterations: the most iterations of its solver.
    """

    literal: bool = False
    passes: int | None = None
    eps: float = 0.2
    size: int | None = None
    load_sample: int | None = None
    clusters: int = 5
    threshold: float = 0.0
    tolerance: float = 1e-3
    iterations: int = 20_000

    def __post_init__(self) -> None:
        check_flag(self.literal, "option literal")
        for name, minimum in (("passes", 1), ("size", 2), ("load_sample", 1)):
            if getattr(self, name) is not None:
                check_count(getattr(self, name), f"option {name}", minimum)
        for name in ("clusters", "iterations"):
            check_count(getattr(self, name), f"option {name}", 1)
        for name, floor in (("eps", 0.0), ("threshold", 0.0), ("tolerance", 1e-12)):
            check_number(getattr(self, name), f"option {name}", floor)

    @property
    def max_programs(self) -> int | None:
        """The most linear programs; None: no limit."""
        return MAX_PROGRAMS if self.passes is None and not self.literal else self.passes

    @property
    def first_size(self) -> int:
        """The paper's `g` at the start."""
        return self.size or (LITERAL_SIZE if self.literal else SIZE)

    @property
    def loads_per_broker(self) -> int:
        """The number of subscribers per broker that are sampled for loads."""
        return self.load_sample or (LITERAL_LOADS if self.literal else LOADS)


def slp1(problem: AssignmentProblem, options: SlpOptions, seed: int) -> AssignmentResult:
    """One linear program over all leaf brokers; inner brokers get filters around those below.

    Reference: Yu, Agarwal and Yang, ICDE 2011 (paper 4), section IV.
    """
    rng = np.random.default_rng(seed)
    candidates = candidates_in_time(problem)
    beta, notes = feasible_beta(problem, candidates)
    if problem.subscriber_count == 0:
        return AssignmentResult(problem, np.empty(0, np.int32), ((),) * problem.broker_count, notes=notes)
    limit = load_limits(problem, beta)
    sampled = filter_assign(_level(problem, candidates, limit), options, rng)
    notes |= _program_notes([sampled])
    if options.literal:
        assigned, notes["unplaced"] = _by_max_flow(problem, candidates, sampled.phi)
    else:
        start = _few_filters(problem, sampled.sparing)
        assigned = _best_inside(problem, candidates, limit, sampled.phi, start, rng)
    return _result(problem, candidates, assigned, notes)


def slp(problem: AssignmentProblem, options: SlpOptions, seed: int) -> AssignmentResult:
    """From the top of the tree down: a linear program among the children of each broker.

    Reference: Yu, Agarwal and Yang, ICDE 2011 (paper 4), section V.
    """
    if problem.is_one_level or problem.subscriber_count == 0:
        return slp1(problem, options, seed)
    rng = np.random.default_rng(seed)
    candidates = candidates_in_time(problem)
    beta, notes = feasible_beta(problem, candidates)
    limit = load_limits(problem, beta)
    if options.literal:
        assigned, printed_notes = _divide_as_printed(problem, candidates, (beta, limit), options, rng)
        return _result(problem, candidates, assigned, notes | printed_notes)
    phi, program_notes = _top_down(problem, candidates, limit, options, rng)
    assigned = _best_inside(problem, candidates, limit, phi, None, rng)
    return _result(problem, candidates, assigned, notes | program_notes)


def _result(
    problem: AssignmentProblem,
    candidates: CandidateBrokers,
    assigned: BrokersAndFilters,
    notes: dict[str, Any],
) -> AssignmentResult:
    """The result of an assignment, with a proven bound: the fractional value holds for the sample only."""
    broker_of, filters = assigned[0].astype(np.int32), as_tuples(assigned[1])
    bound = lower_bound(problem, candidates)
    return AssignmentResult(problem, broker_of, filters, lower_bound=bound, notes=notes)


# Assignment inside preliminary filters


def _best_inside(
    problem: AssignmentProblem,
    candidates: CandidateBrokers,
    limit: NDArray[np.int64],
    phi: PreliminaryFilters,
    start: Filters | None,
    rng: np.random.Generator,
) -> BrokersAndFilters:
    """The better of two: inside the preliminary filters, or greedily from filters with few of their boxes."""
    order = rng.permutation(problem.subscriber_count)
    started = guarded_greedy(problem, candidates, limit, order, start)
    both = _inside(problem, candidates, limit, phi, order), tighter(problem, started)
    return min(both, key=lambda assigned: float(assigned[1].measure.sum()))


def _inside(
    problem: AssignmentProblem,
    candidates: CandidateBrokers,
    limit: NDArray[np.int64],
    phi: PreliminaryFilters,
    order: NDArray[np.int64],
) -> BrokersAndFilters:
    """A guarded greedy assignment inside preliminary filters, relaxed as little as the limits allow."""
    whole = measure_of(problem.density_arrays, problem.lo.min(axis=0), problem.hi.max(axis=0))
    theta = np.append(THETA * whole, np.inf)
    level = least_levels(arrays_of(problem), candidates, phi, theta)
    low, high = 0, len(theta) - 1
    while low < high:
        middle = (low + high) // 2
        if max_flow(_open_up_to(level, middle), limit)[1] == 0:
            high = middle
        else:
            low = middle + 1
    return tighter(problem, guarded_greedy(problem, _open_up_to(level, high), limit, order))


def _open_up_to(level: NDArray[np.uint8], highest: int) -> CandidateBrokers:
    """The candidates if filters are relaxed up to a level."""
    return candidates_from_matrix(level <= highest, np.arange(level.shape[1], dtype=np.int32))


def _few_filters(problem: AssignmentProblem, phi: PreliminaryFilters) -> Filters | None:
    """Leaf filters of at most alpha boxes around the preliminary ones; None with several levels."""
    if not problem.is_one_level:
        return None
    filters = empty_filters(problem.broker_count, problem.alpha, problem.dimensions)
    for b in range(problem.broker_count):
        boxes = slice(phi.start[b], phi.start[b + 1])
        set_filter(problem, filters, b, phi.lo[boxes], phi.hi[boxes])
    return filters


def _by_max_flow(
    problem: AssignmentProblem,
    candidates: CandidateBrokers,
    phi: PreliminaryFilters,
    limits: Iterable[NDArray[np.int64]] | None = None,
) -> tuple[BrokersAndFilters, int]:
    """The assignment as printed: max-flow to brokers whose filters cover, all others to any candidate.

    Args:
        problem: the problem.
        candidates: the candidate brokers of each subscriber.
        phi: the preliminary filters.
        limits: the limits to try, one after another; None: from `beta` to `beta_max`.
    """
    if limits is None:
        limits = (load_limits(problem, beta) for beta in rising_betas(problem))
    inside = least_levels(arrays_of(problem), candidates, phi, THETA[:1]) == 0
    is_covered = np.flatnonzero(inside.any(axis=1))
    open_to = candidates_from_matrix(inside[is_covered], np.arange(problem.broker_count, dtype=np.int32))
    for limit in limits:
        flow, unplaced, _ = max_flow(open_to, limit)
        if unplaced == 0:
            break
    broker_of = np.full(problem.subscriber_count, -1, np.int64)
    broker_of[is_covered] = _spread_some(open_to, flow)
    not_placed = np.flatnonzero(broker_of < 0)
    rest = candidates_of(candidates, not_placed)
    broker_of[not_placed] = spread(rest, max_flow(rest, np.full(problem.broker_count, len(not_placed)))[0])
    return (broker_of, tight_filters(problem, broker_of)), len(not_placed)


def _spread_some(candidates: CandidateBrokers, flow: LoadFlow) -> NDArray[np.int64]:
    """As `spread`, for a flow that does not place all; -1 for the last members of such a group."""
    placed = np.add.reduceat(flow.units, candidates.start[:-1])
    order = np.argsort(candidates.group, kind="stable")
    first = np.concatenate(([0], np.cumsum(candidates.size)))[:-1]
    rank = np.arange(len(order)) - np.repeat(first, candidates.size)
    broker_of = np.full(len(order), -1, np.int64)
    broker_of[order[rank < np.repeat(placed, candidates.size)]] = np.repeat(candidates.brokers, flow.units)
    return broker_of


@kernel
def least_levels(
    arrays: ProblemArrays, candidates: CandidateBrokers, phi: PreliminaryFilters, theta: NDArray[np.float64]
) -> NDArray[np.uint8]:
    """The index of the least `theta` (ascending) by which filters up the tree must be relaxed.

    A row per subscriber, a column per broker; 255 if the broker is not a candidate. A broker without a
    preliminary filter is open.
    """
    density, parent = arrays.density, arrays.parent
    level = np.full((len(arrays.lo), len(parent)), 255, np.uint8)
    around = np.empty((2, arrays.lo.shape[1]))
    around_lo, around_hi = around[0], around[1]
    own = np.empty(len(phi.lo))
    for k in range(len(own)):
        own[k] = measure_of(density, phi.lo[k], phi.hi[k])
    for j in range(len(arrays.lo)):
        g, low, high = candidates.group[j], arrays.lo[j], arrays.hi[j]
        for p in range(candidates.start[g], candidates.start[g + 1]):
            leaf = candidates.brokers[p]
            worst = 0.0
            b = leaf
            while b >= 0:
                least = 0.0 if phi.start[b] == phi.start[b + 1] else np.inf
                for k in range(phi.start[b], phi.start[b + 1]):
                    span(low, high, phi.lo, phi.hi, k, around)
                    least = min(least, measure_of(density, around_lo, around_hi) - own[k])
                    if least <= 0.0:
                        break
                worst = max(worst, least)
                b = parent[b]
            index = np.searchsorted(theta, worst)
            if index < len(theta):
                level[j, leaf] = index
    return level


# Several levels of brokers


def _top_down(
    problem: AssignmentProblem,
    candidates: CandidateBrokers,
    limit: NDArray[np.int64],
    options: SlpOptions,
    rng: np.random.Generator,
) -> tuple[PreliminaryFilters, dict[str, Any]]:
    """Preliminary filters of all brokers, level by level; subscribers are divided tentatively meanwhile."""
    lo, hi = [problem.lo[:0]] * problem.broker_count, [problem.hi[:0]] * problem.broker_count
    below = {-1: np.arange(problem.subscriber_count)}
    all_sampled: list[SampledFilters] = []
    for parent in (-1, *map(int, problem.top_down[~problem.is_leaf[problem.top_down]])):
        children, subscribers = np.flatnonzero(problem.broker_parent == parent), below.pop(parent)
        part, part_candidates, part_limit = _among_children(
            problem, candidates, limit, subscribers, children, options.threshold
        )
        child_of = np.zeros(len(subscribers), np.int64)
        if len(subscribers) and len(children) > 1:
            sampled = filter_assign(_level(part, part_candidates, part_limit), options, rng)
            start = _few_filters(part, sampled.sparing)
            child_of, _ = _best_inside(part, part_candidates, part_limit, sampled.phi, start, rng)
            for i, child in enumerate(children):
                boxes = slice(sampled.phi.start[i], sampled.phi.start[i + 1])
                lo[child], hi[child] = sampled.phi.lo[boxes], sampled.phi.hi[boxes]
            all_sampled.append(sampled)
        below |= {int(child): subscribers[child_of == i] for i, child in enumerate(children)}
    start_of = np.concatenate(([0], np.cumsum([len(boxes) for boxes in lo])))
    phi = PreliminaryFilters(np.concatenate(lo), np.concatenate(hi), start_of)
    return phi, _program_notes(all_sampled)


def _divide_as_printed(
    problem: AssignmentProblem,
    candidates: CandidateBrokers,
    least: tuple[float, NDArray[np.int64]],
    options: SlpOptions,
    rng: np.random.Generator,
) -> tuple[BrokersAndFilters, dict[str, Any]]:
    """SLP as printed (section V): SLP1 divides the subscribers of each broker among its children, top down.

    The paper leaves the latency and the load of inner brokers to a technical report; here they are those of
    `_among_children`. `least` is the load balance factor that can be met, and its limits.
    """
    beta, limit = least
    broker_of = np.full(problem.subscriber_count, -1, np.int64)
    below = {-1: np.arange(problem.subscriber_count)}
    all_sampled: list[SampledFilters] = []
    unplaced = 0
    for parent in (-1, *map(int, problem.top_down[~problem.is_leaf[problem.top_down]])):
        children, subscribers = np.flatnonzero(problem.broker_parent == parent), below.pop(parent)
        part, part_candidates, part_limit = _among_children(
            problem, candidates, limit, subscribers, children, options.threshold
        )
        child_of = np.zeros(len(subscribers), np.int64)
        if len(subscribers) and len(children) > 1:
            sampled = filter_assign(_level(part, part_candidates, part_limit), options, rng)
            rising = (
                np.floor(part_limit * max(one / beta, 1.0)).astype(np.int64) for one in rising_betas(problem)
            )
            (child_of, _), missed = _by_max_flow(part, part_candidates, sampled.phi, rising)
            unplaced += missed
            all_sampled.append(sampled)
        for i, child in enumerate(children):
            mine = subscribers[child_of == i]
            if problem.is_leaf[child]:
                broker_of[mine] = child
            else:
                below[int(child)] = mine
    notes = _program_notes(all_sampled) | {"unplaced": unplaced}
    return (broker_of, tight_filters(problem, broker_of)), notes


def _among_children(
    problem: AssignmentProblem,
    candidates: CandidateBrokers,
    limit: NDArray[np.int64],
    subscribers: NDArray[np.int64],
    children: NDArray[np.int64],
    threshold: float,
) -> tuple[AssignmentProblem, CandidateBrokers, NDArray[np.int64]]:
    """The problem of dividing some subscribers among sibling brokers.

    A child is open to a subscriber if a leaf below it is: the best latency that its subtree offers; with a
    threshold, if at least that share of its leaves is, or no other child has a larger share. Its capacity is
    that of its leaves together. The subscribers were divided at the level above without regard to this
    capacity; where it is too small for them, it is raised as far as needed.
    """
    above = np.full(problem.broker_count, -1)
    above[children] = np.arange(len(children))
    for broker in problem.top_down:
        if above[broker] < 0 and problem.broker_parent[broker] >= 0:
            above[broker] = above[problem.broker_parent[broker]]
    under = problem.is_leaf & (above >= 0)
    share = np.bincount(above[under], problem.capacity[under], len(children))
    part = problem.subset(subscribers).replace(
        broker_place=problem.broker_place[children],
        broker_parent=np.full(len(children), -1),
        capacity=share,
        broker_ids=None,
        max_latency=None,
    )
    group = np.repeat(np.arange(len(candidates.size)), np.diff(candidates.start))
    in_time = np.zeros((len(candidates.size), len(children)))
    known = under[candidates.brokers]
    np.add.at(in_time, (group[known], above[candidates.brokers[known]]), 1)
    in_time /= np.bincount(above[under], minlength=len(children))
    enough = np.minimum(threshold, in_time.max(axis=1, initial=0.0))
    is_open = (in_time > 0) & (in_time >= enough[:, None])
    part_candidates = candidates_from_matrix(
        is_open[candidates.group[subscribers]], np.arange(len(children), dtype=np.int32)
    )
    part_limit = np.bincount(above[under], limit[under], len(children)).astype(np.int64)
    if len(subscribers) and max_flow(part_candidates, part_limit)[1] > 0:
        least, _ = least_lbf(part, part_candidates)
        part_limit = np.maximum(part_limit, load_limits(part, least))
    return part, part_candidates, part_limit


# Preliminary filters from a sample (Algorithm 1)


class SampledLevel(NamedTuple):
    """One level of a problem: subscribers, the brokers among which they are divided, and their limits."""

    position: NDArray[np.float64]
    lo: NDArray[np.float64]
    hi: NDArray[np.float64]
    candidates: CandidateBrokers
    limit: NDArray[np.float64]
    density: DensityArrays | None
    alpha: int


class SampledFilters(NamedTuple):
    """The result of sampling: the fractional solution, and filters rounded from it.

    `sparing` are filters rounded with an exponent of 1, so that few boxes are kept. `sampled` is the size of
    the sample, `outside` the number of subscribers that the filters miss, `programs` that of linear programs.
    """

    relaxed: FractionalFilters
    phi: PreliminaryFilters
    sparing: PreliminaryFilters
    sampled: int
    outside: int
    programs: int


def _level(
    problem: AssignmentProblem, candidates: CandidateBrokers, limit: NDArray[np.int64]
) -> SampledLevel:
    """A problem as sampling needs it."""
    lo, hi, position = problem.lo.copy(), problem.hi.copy(), problem.subscriber_place.copy()
    limits = limit.astype(np.float64)
    return SampledLevel(position, lo, hi, candidates, limits, problem.density_arrays, problem.alpha)


def _program_notes(all_sampled: list[SampledFilters]) -> dict[str, Any]:
    """Notes on linear programs. Without an optimal solution there is no fractional value."""
    solved = all(sampled.relaxed.solved for sampled in all_sampled)
    return {
        "fractional": float(sum(sampled.relaxed.value for sampled in all_sampled)) if solved else None,
        "solved": solved,
        "programs": sum(sampled.programs for sampled in all_sampled),
        "outside": sum(sampled.outside for sampled in all_sampled),
        "certificate": all(sampled.outside == 0 for sampled in all_sampled),
    }


def filter_assign(level: SampledLevel, options: SlpOptions, rng: np.random.Generator) -> SampledFilters:
    """Sample, relax and round until the expanded filters cover all subscribers, or programs run out.

    The filters that miss the fewest subscribers are kept. The sizes of samples double after as many valid
    iterations as a certificate of that size could need.
    """
    m = len(level.lo)
    g = options.first_size
    programs = 0
    best: SampledFilters | None = None
    with stage("linear programs", options.max_programs) as report:
        while best is None or g <= m:
            weight, valid = np.ones(m), 0
            while valid < max(1.0, 4 * g * np.log(max(m / g, 1.0))):
                sampled, phi = _iteration(level, weight, g, options, rng)
                programs += 1
                report(programs)
                if best is None or sampled.outside < best.outside:
                    best = sampled
                if sampled.outside == 0 or programs == options.max_programs:
                    return best._replace(programs=programs)
                missed = ~covered(phi, level.lo, level.hi, level.candidates)
                valid += reweigh(weight, missed, options.eps)
            g *= 2
    return best._replace(programs=programs)


def _iteration(
    level: SampledLevel, weight: NDArray[np.float64], g: int, options: SlpOptions, rng: np.random.Generator
) -> tuple[SampledFilters, PreliminaryFilters]:
    """One sample and its linear program: the result with expanded filters, and the filters before that."""
    sample, drawn = _draw(level, weight, g, options, rng)
    clusters = options.clusters * len(level.limit)
    boxes = candidate_rectangles(level.position[drawn], sample.lo, sample.hi, clusters, rng)
    relaxed = relax(sample, boxes, options.tolerance, options.iterations, options.literal)
    phi, sparing = (rounded(relaxed, sample, exponent, rng) for exponent in (2 * np.log(len(drawn)), 1.0))
    expanded = phi.expanded(options.eps)
    outside = int(np.count_nonzero(~covered(expanded, level.lo, level.hi, level.candidates)))
    return SampledFilters(relaxed, expanded, sparing, len(drawn), outside, 1), phi


def reweigh(weight: NDArray[np.float64], missed: NDArray[np.bool_], eps: float) -> bool:
    """Double the weights of the missed if they are at most the share `eps` of all; return whether they are.

    An iteration is valid only then.

    Examples:
        >>> weight = np.ones(4)
        >>> reweigh(weight, np.array([True, False, False, False]), eps=0.3), weight.tolist()
        (True, [2.0, 1.0, 1.0, 1.0])
        >>> reweigh(weight, np.array([True, False, False, False]), eps=0.3), weight.tolist()
        (False, [2.0, 1.0, 1.0, 1.0])
    """
    valid = bool(weight[missed].sum() <= eps * weight.sum())
    if valid:
        weight[missed] *= 2
    return valid


def _draw(
    level: SampledLevel, weight: NDArray[np.float64], g: int, options: SlpOptions, rng: np.random.Generator
) -> tuple[ProgramSample, NDArray[np.int64]]:
    """A sample by weight for coverage, and a uniform one for loads that can be met by itself."""
    m, n = len(level.lo), len(level.limit)
    cover = rng.choice(m, min(m, int(10 * g * np.log(g))), replace=False, p=weight / weight.sum())
    loads = (_literal_loads if options.literal else _loads)(level, options, rng)
    drawn = np.unique(np.concatenate((cover, loads)))
    counts = np.isin(drawn, loads)
    limit = level.limit * counts.sum() / m
    may_serve = candidate_matrix(level.candidates, drawn, n)
    sample = ProgramSample(
        level.lo[drawn], level.hi[drawn], may_serve, counts, limit, level.alpha, level.density
    )
    return sample, drawn


def _loads(level: SampledLevel, options: SlpOptions, rng: np.random.Generator) -> NDArray[np.int64]:
    """A sample that fits within its share of the limits, which rise after each `MAX_DRAWS` failed draws."""
    m, slack = len(level.lo), 1.0
    count = min(m, options.loads_per_broker * len(level.limit))
    for draw in range(1, 10 * MAX_DRAWS):
        loads = rng.choice(m, count, replace=False)
        limit = np.floor(slack * level.limit * count / m + 1e-9).astype(np.int64)
        if max_flow(candidates_of(level.candidates, loads), limit)[1] == 0:
            break
        if draw % MAX_DRAWS == 0:
            slack *= 1.1
    return loads


def _literal_loads(level: SampledLevel, options: SlpOptions, rng: np.random.Generator) -> NDArray[np.int64]:
    """A sample as printed: drawn again, up to ln |S| times, while its linear program has no solution.

    It has one if and only if the sample, cut into parts, fits within its share of the limits.
    """
    m = len(level.lo)
    count = min(m, options.loads_per_broker * len(level.limit))
    limit = np.floor(PARTS * level.limit * count / m).astype(np.int64)
    for _ in range(int(np.log(m)) + 1):
        loads = rng.choice(m, count, replace=False)
        drawn = candidates_of(level.candidates, loads)
        if max_flow(drawn._replace(size=PARTS * drawn.size), limit)[1] == 0:
            break
    return loads


def candidate_matrix(
    candidates: CandidateBrokers, subscribers: NDArray[np.int64], n: int
) -> NDArray[np.bool_]:
    """Whether each of `n` brokers (columns) is a candidate of some subscribers (rows)."""
    by_group = np.zeros((len(candidates.size), n), bool)
    by_group[np.repeat(np.arange(len(candidates.size)), np.diff(candidates.start)), candidates.brokers] = True
    return by_group[candidates.group[subscribers]]

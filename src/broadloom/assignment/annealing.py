"""The default assigner (ours): guarded Gr*, then strip moves, downhill and with annealing.

Feasible whenever anything is: it starts from an assignment that max-flow keeps complete, and never leaves the
limits of load and latency.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from broadloom.assignment._filters import Filters, as_tuples, empty_filters, refresh
from broadloom.assignment._greedy import Wants, run_greedy, wants_of
from broadloom.assignment.bound import lower_bound
from broadloom.assignment.bundles import bundles_of
from broadloom.assignment.filling import fill
from broadloom.assignment.flow import least_lbf, limits, max_flow
from broadloom.assignment.greedy import rising_betas
from broadloom.assignment.placing import Placing, place_all
from broadloom.assignment.reach import Reach, reach_of, take
from broadloom.assignment.strips import strip_moves
from broadloom.assignment.tidying import rebalance, recluster
from broadloom.assignment.tighten import nest
from broadloom.errors import InputError
from broadloom.model import AssignmentProblem, AssignmentResult
from broadloom.progress import stage

# A descent ends when a pass gains less than this share.
LEAST_GAIN = 0.001
# At the start of annealing a move may cost up to this share of the mean broker's bandwidth.
HEAT = 0.5
# It cools as this power of the share of passes that are left.
COOLING = 3
# The share of strip moves that must not cost anything, however hot it is.
COLD_SHARE = 0.4
# A strip move gives up after so many members in vain, but for this share of the moves, which go to the end.
PATIENCE = 64
FAR_SHARE = 0.1
# Clustering a broker's members anew is slow and seldom pays: once in so many passes.
RECLUSTER_EVERY = 4
# Where bundles make passes quick, so many times as many are made at most.
MOST_BY_BUNDLES, REHEATS = 20, 4
# If the greedy starts differ by more than this, many more of them are made.
WIDE_SPREAD = 0.2


@dataclass(frozen=True)
class SearchOptions:
    """Options of the default assigner.

    Attributes:
        starts: how many greedy starts, in random orders; the best is kept.
        many_starts: how many when the first ones differ widely.
        passes: how many passes of annealing; 0: descent alone. More is better and takes longer.
        sample: above twice so many subscribers, search on a sample of so many and finish on all.
        polish: the most passes of descent over all subscribers after a sample.
    """

    starts: int = 3
    many_starts: int = 24
    passes: int = 150
    sample: int = 100_000
    polish: int = 5

    def __post_init__(self) -> None:
        for name, least in (("starts", 1), ("many_starts", 1), ("passes", 0), ("sample", 1), ("polish", 0)):
            if getattr(self, name) < least:
                raise InputError(f"option {name} is {getattr(self, name)}; give {least} or more")


def broadloom(problem: AssignmentProblem, options: SearchOptions, seed: int) -> AssignmentResult:
    """Guarded Gr* from several orders, then local search."""
    rng = np.random.default_rng(seed)
    reach = reach_of(problem)
    beta, notes = feasible_beta(problem, reach)
    limit = limits(problem, beta)
    if problem.subscriber_count > 2 * options.sample:
        broker_of, filters = _through_sample(problem, reach, beta, options, rng)
    else:
        broker_of, filters = _searched(problem, reach, limit, options, rng)
    bound = lower_bound(problem, reach)
    return AssignmentResult(
        problem, broker_of.astype(np.int32), as_tuples(filters), lower_bound=bound, notes=notes
    )


def feasible_beta(problem: AssignmentProblem, reach: Reach) -> tuple[float, dict[str, object]]:
    """The first load balance factor from `beta` up that max-flow can meet, or the least possible one."""
    for beta in rising_betas(problem):
        if max_flow(reach, limits(problem, beta, int(reach.size.sum())))[1] == 0:
            return beta, {"beta": beta}
    least, _ = least_lbf(problem, reach)
    return least, {"beta": least, "least_lbf": least}


def guarded(
    problem: AssignmentProblem,
    reach: Reach,
    limit: NDArray[np.int64],
    order: NDArray[np.int64],
    filters: Filters | None = None,
) -> tuple[NDArray[np.int64], Filters]:
    """Gr* that strands nobody."""
    flow, left, _ = max_flow(reach, limit)
    assert left == 0, "a guard needs limits that can be met"
    made = run_greedy(problem, reach, limit, order, True, flow, filters)
    return made.broker_of, made.filters


def _searched(
    problem: AssignmentProblem,
    reach: Reach,
    limit: NDArray[np.int64],
    options: SearchOptions,
    rng: np.random.Generator,
) -> tuple[NDArray[np.int64], Filters]:
    """The whole search on all subscribers: best start, descent, annealing, descent."""
    broker_of, filters = _best_start(problem, reach, limit, options, rng)
    search = _Search(problem, reach, limit, broker_of, filters, rng)
    search.descend(15)
    # Where bundles make passes quick, there are more of them, and it is heated again.
    quick = min(MOST_BY_BUNDLES, search.by_bundles())
    for _ in range(min(quick, REHEATS)):
        search.anneal(options.passes * -(-quick // REHEATS))
        search.descend(8)
    return search.best()


def _best_start(
    problem: AssignmentProblem,
    reach: Reach,
    limit: NDArray[np.int64],
    options: SearchOptions,
    rng: np.random.Generator,
) -> tuple[NDArray[np.int64], Filters]:
    """The best of several greedy starts, more of them where the order matters much."""
    best: tuple[NDArray[np.int64], Filters] | None = None
    costs: list[float] = []
    wanted = options.starts
    while len(costs) < wanted:
        start = guarded(problem, reach, limit, rng.permutation(problem.subscriber_count))
        costs.append(float(start[1].measure.sum()))
        if best is None or costs[-1] <= min(costs):
            best = start
        if len(costs) == options.starts and max(costs) > (1 + WIDE_SPREAD) * min(costs):
            wanted = max(options.many_starts, options.starts)
    assert best is not None
    return best


def _through_sample(
    problem: AssignmentProblem, reach: Reach, beta: float, options: SearchOptions, rng: np.random.Generator
) -> tuple[NDArray[np.int64], Filters]:
    """Search on a sample, put all into its filters, and go downhill."""
    chosen = draw(problem.subscriber_count, options.sample, rng)
    filters = sample_filters(problem.subset(chosen), beta, options, rng)
    limit = limits(problem, beta)
    broker_of, filters = fill(problem, filters, limit, rng)
    if options.polish == 0:
        return broker_of, filters
    search = _Search(problem, reach, limit, broker_of, filters, rng)
    search.descend(options.polish)
    return search.best()


def draw(count: int, sample: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Which of `count` subscribers are in the sample, ascending."""
    return np.sort(rng.choice(count, sample, replace=False))


def sample_filters(
    part: AssignmentProblem, beta: float, options: SearchOptions, rng: np.random.Generator
) -> Filters:
    """The filters that a search on a sample makes."""
    reach = reach_of(part)
    # A little less room than there is: the sample is not exactly like the whole.
    for room in (0.97, 0.985, 1.0, None):
        limit = limits(part, feasible_beta(part, reach)[0] if room is None else beta * room)
        if max_flow(reach, limit)[1] == 0:
            break
    return _searched(part, reach, limit, options, rng)[1]


class _Search:
    """Passes of local search over one placing of the subscribers."""

    def __init__(
        self,
        problem: AssignmentProblem,
        reach: Reach,
        limit: NDArray[np.int64],
        broker_of: NDArray[np.int64],
        filters: Filters,
        rng: np.random.Generator,
    ) -> None:
        self.problem, self.limit, self.rng = problem, limit, rng
        self.bundles = bundles_of(reach, problem.lo, problem.hi, broker_of, limit)
        first, every = self.bundles.first, wants_of(problem)
        self.reach = take(reach, first)
        self.wants: Wants = every._replace(lo=every.lo[first], hi=every.hi[first])
        self.placing: Placing = place_all(self.wants, broker_of[first], self.bundles.size, filters)
        self.above = self._nested()
        self._best_cost, self._passes = np.inf, 0
        self._keep_best()

    def descend(self, most: int) -> None:
        """Passes without uphill moves, until one gains next to nothing."""
        with stage("descent", most) as done:
            for i in range(most):
                before = self.cost()
                self._pass(0.0)
                done(i + 1)
                if self.cost() > (1 - LEAST_GAIN) * before:
                    break
        self._keep_best()

    def anneal(self, passes: int) -> None:
        """Passes that allow uphill moves, fewer and smaller ones as it cools."""
        with stage("annealing", passes) as done:
            for i in range(passes):
                self._pass(HEAT * (1 - i / passes) ** COOLING)
                done(i + 1)
                if i >= passes // 2:
                    self._keep_best()

    def by_bundles(self) -> int:
        """How many subscribers a bundle has, in the mean."""
        return max(1, self.problem.subscriber_count // max(1, len(self.bundles.size)))

    def cost(self) -> float:
        """The bandwidth now."""
        return float(self.above.measure.sum())

    def best(self) -> tuple[NDArray[np.int64], Filters]:
        """The best placing of all, as brokers and filters."""
        return self._best_broker[self.bundles.of], self._best_filters

    def _pass(self, heat: float) -> None:
        m, sides = len(self.bundles.size), self.placing.lo.size * 2
        key = self.rng.random(m)
        if self._passes % RECLUSTER_EVERY == 0:
            recluster(self.wants, self.above, self.placing, key)
        self._passes += 1
        rebalance(self.wants, self.reach, self.limit, self.placing, np.argsort(key))
        allowed = self.rng.random(sides) * heat * self.cost() / self.problem.broker_count
        allowed[self.rng.random(sides) < COLD_SHARE] = 0.0
        order = self.rng.permutation(sides)
        patience = np.where(self.rng.random(sides) < FAR_SHARE, m, PATIENCE)
        strip_moves(self.wants, self.reach, self.limit, self.above, self.placing, order, allowed, patience)
        self.above = self._nested()

    def _nested(self) -> Filters:
        """The boxes of the leaves as filters, with those of the inner brokers around them."""
        placing = self.placing
        n, alpha, d = placing.lo.shape
        filters = empty_filters(n, alpha, d)
        for b in range(n):
            full = np.flatnonzero(placing.size[b])
            filters.used[b] = len(full)
            filters.lo[b, : len(full)], filters.hi[b, : len(full)] = placing.lo[b, full], placing.hi[b, full]
            refresh(self.wants.density, filters, b)
        nest(self.problem, filters)
        return filters

    def _keep_best(self) -> None:
        if self.cost() < self._best_cost:
            self._best_cost = self.cost()
            self._best_broker, self._best_filters = self.placing.broker.copy(), self.above

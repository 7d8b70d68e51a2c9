"""The default assigner (ours): guarded Gr*, then strip moves, downhill and with annealing.

Feasible whenever anything is: it starts from an assignment that max-flow keeps complete, and never leaves the
limits of load and latency.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from broadloom.assignment.subscribers._filters import Filters, as_tuples
from broadloom.assignment.subscribers.bound import lower_bound
from broadloom.assignment.subscribers.filling import fill
from broadloom.assignment.subscribers.flow import limits, max_flow
from broadloom.assignment.subscribers.greedy import feasible_beta, guarded
from broadloom.assignment.subscribers.reach import Reach, reach_of
from broadloom.assignment.subscribers.search import HEAT, Search
from broadloom.checks import check_count
from broadloom.model import AssignmentProblem
from broadloom.plans import AssignmentResult

# Where bundles make passes quick, so many times as many are made at most, from a greater heat.
MOST_BY_BUNDLES, HOT = 20, 2.0
# The heat of the passes over all subscribers that follow a sample.
GENTLE = 0.2
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
        polish: how many gentle passes over all subscribers follow the search on a sample; where many are
            alike and passes are quick, all of the annealing follows.
        polish_up_to: above so many subscribers none follow, so that no machine has to hold them all.
    """

    starts: int = 3
    many_starts: int = 24
    passes: int = 150
    sample: int = 100_000
    polish: int = 12
    polish_up_to: int = 2_000_000

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            check_count(
                value, f"option {name}", minimum=1 if name in ("starts", "many_starts", "sample") else 0
            )

    def holds_all(self, count: int) -> bool:
        """Whether so many subscribers are searched or polished together, on one machine."""
        return count <= 2 * self.sample or (self.polish > 0 and count <= self.polish_up_to)


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
    # Without a look at all subscribers there is no bound either, here as on Spark.
    bound = lower_bound(problem, reach) if options.holds_all(problem.subscriber_count) else None
    return AssignmentResult(
        problem, broker_of.astype(np.int32), as_tuples(filters), lower_bound=bound, notes=notes
    )


def _searched(
    problem: AssignmentProblem,
    reach: Reach,
    limit: NDArray[np.int64],
    options: SearchOptions,
    rng: np.random.Generator,
) -> tuple[NDArray[np.int64], Filters]:
    """The whole search on all subscribers: best start, descent, annealing, descent."""
    broker_of, filters = _best_start(problem, reach, limit, options, rng)
    search = Search(problem, reach, limit, broker_of, filters, rng)
    search.descend(15)
    _anneal(search, options)
    return search.best()


def _anneal(search: Search, options: SearchOptions) -> None:
    """Annealing to the end; where bundles make passes quick, there are more, from a greater heat."""
    quick = min(MOST_BY_BUNDLES, search.by_bundles())
    search.anneal(options.passes * quick, HOT if quick > 1 else HEAT)
    search.descend(8)


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
    """Search on a sample, put all into its filters, and polish."""
    chosen = draw(problem.subscriber_count, options.sample, rng)
    filters = sample_filters(problem.subset(chosen), beta, options, rng)
    limit = limits(problem, beta)
    broker_of, filters = fill(problem, filters, limit, rng)
    if not options.holds_all(problem.subscriber_count):
        return broker_of, filters
    search = Search(problem, reach, limit, broker_of, filters, rng)
    if search.by_bundles() > 1:
        _anneal(search, options)
    else:
        search.anneal(options.polish, GENTLE)
        search.descend(4)
    return search.best()


def draw(count: int, sample: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Which of `count` subscribers are in the sample, ascending."""
    return np.sort(rng.choice(count, sample, replace=False))


def sample_filters(
    part: AssignmentProblem, beta: float, options: SearchOptions, rng: np.random.Generator
) -> Filters:
    """The filters that a search on a sample makes."""
    reach = reach_of(part)
    limit = limits(part, beta)
    if max_flow(reach, limit)[1] > 0:  # the sample is not exactly like the whole
        limit = limits(part, feasible_beta(part, reach)[0])
    return _searched(part, reach, limit, options, rng)[1]

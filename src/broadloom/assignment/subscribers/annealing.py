"""Default algorithm of subscriber assignment (ours): guarded Gr*, then strip moves with annealing.

It is feasible whenever any assignment is: it starts from an assignment that max-flow keeps complete, and
never leaves the limits of load and latency. Above `2 * sample` subscribers it searches on a sample, and
`complete` puts all subscribers into the filters that the sample has made.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from broadloom.assignment.subscribers.bandwidth_bound import lower_bound
from broadloom.assignment.subscribers.content_filters import (
    BrokersAndFilters,
    Corners,
    Filters,
    around_members,
    as_tuples,
    box_around,
    empty_filters,
    nest,
    refresh,
)
from broadloom.assignment.subscribers.greedy_assignment import (
    GreedyRules,
    arrays_of,
    feasible_beta,
    guarded_greedy,
    run_greedy,
)
from broadloom.assignment.subscribers.load_flow import (
    CandidateBrokers,
    candidates_from_masks,
    candidates_in_time,
    candidates_of,
    groups_from_masks,
    load_limits,
    masks_in_time,
    max_flow,
    number_rows,
)
from broadloom.assignment.subscribers.strip_moves import (
    Placement,
    SearchState,
    place_members,
    rebalance,
    recluster,
    strip_moves,
)
from broadloom.checks import check_count
from broadloom.errors import InternalError
from broadloom.kernels import kernel, over_ranges
from broadloom.model import AssignmentProblem
from broadloom.plans import AssignmentResult
from broadloom.progress import stage

# If the bandwidths of the greedy starts differ by more than this share, many more starts are made.
WIDE_SPREAD = 0.2
# A descent ends when a pass gains less than this share.
LEAST_GAIN = 0.001
# At the start of annealing a move can cost up to this share of the mean bandwidth per broker.
HEAT = 0.5
# Where bundles make passes quick: the heat, and the largest factor on the number of passes.
BUNDLE_HEAT, MAX_BUNDLE_FACTOR = 2.0, 20
# The heat of the passes over all subscribers that follow a sample.
POLISH_HEAT = 0.2
# The heat falls as this power of the share of passes that remain.
COOLING = 3
# The share of strip moves that must not cost anything, at any heat.
COLD_SHARE = 0.4
# A strip move gives up after this many members without success, except for a share of moves that try all.
PATIENCE = 64
FAR_SHARE = 0.1
# Clustering the members of a broker again is slow and seldom pays off: one in this many passes does it.
RECLUSTER_EVERY = 4
# A bundle takes at most this share of the largest broker's limit, so that brokers can be filled completely.
LARGEST_SHARE = 1 / 32


@dataclass(frozen=True)
class AnnealingOptions:
    """Options of the default algorithm.

    Attributes:
        starts: how many greedy starts, in random orders; the best is kept.
        many_starts: how many when the first ones differ widely.
        passes: how many passes of annealing; 0: descent alone. More is better and takes longer.
        sample: above twice this many subscribers, search on a sample of this many and finish on all.
        polish: how many passes at low heat over all subscribers follow the search on a sample; where many
            subscribers are alike and passes are quick, the full annealing follows instead.
        polish_up_to: above this many subscribers no such passes follow, so that no machine has to hold all.
    """

    starts: int = 3
    many_starts: int = 24
    passes: int = 150
    sample: int = 100_000
    polish: int = 12
    polish_up_to: int = 2_000_000

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            minimum = 1 if name in ("starts", "many_starts", "sample") else 0
            check_count(value, f"option {name}", minimum)

    def holds_all(self, count: int) -> bool:
        """Whether this many subscribers are searched or polished together, on one machine."""
        return count <= 2 * self.sample or (self.polish > 0 and count <= self.polish_up_to)


def broadloom(problem: AssignmentProblem, options: AnnealingOptions, seed: int) -> AssignmentResult:
    """Guarded Gr* from several orders, then local search."""
    rng = np.random.default_rng(seed)
    candidates = candidates_in_time(problem)
    beta, notes = feasible_beta(problem, candidates)
    if problem.subscriber_count > 2 * options.sample:
        broker_of, filters = _through_sample(problem, candidates, beta, options, rng)
    else:
        broker_of, filters = _searched(problem, candidates, load_limits(problem, beta), options, rng)
    # Without passes over all subscribers there is no bound: Spark, which never holds all of them, gives none.
    bound = lower_bound(problem, candidates) if options.holds_all(problem.subscriber_count) else None
    return AssignmentResult(
        problem, broker_of.astype(np.int32), as_tuples(filters), lower_bound=bound, notes=notes
    )


def _searched(
    problem: AssignmentProblem,
    candidates: CandidateBrokers,
    limit: NDArray[np.int64],
    options: AnnealingOptions,
    rng: np.random.Generator,
) -> BrokersAndFilters:
    """The whole search on all subscribers: best start, descent, annealing, descent."""
    start = _best_start(problem, candidates, limit, options, rng)
    search = PlacementSearch(problem, candidates, limit, start, rng)
    search.descend(15)
    _anneal(search, options)
    return search.best()


def _anneal(search: "PlacementSearch", options: AnnealingOptions) -> None:
    """The full annealing; where bundles make passes quick, with more passes and from a greater heat."""
    quick = min(MAX_BUNDLE_FACTOR, search.mean_bundle())
    search.anneal(options.passes * quick, BUNDLE_HEAT if quick > 1 else HEAT)
    search.descend(8)


def _best_start(
    problem: AssignmentProblem,
    candidates: CandidateBrokers,
    limit: NDArray[np.int64],
    options: AnnealingOptions,
    rng: np.random.Generator,
) -> BrokersAndFilters:
    """The best of several greedy starts, more of them where the order matters much."""
    best: BrokersAndFilters | None = None
    costs: list[float] = []
    wanted = options.starts
    while best is None or len(costs) < wanted:
        start = guarded_greedy(problem, candidates, limit, rng.permutation(problem.subscriber_count))
        costs.append(float(start[1].measure.sum()))
        if best is None or costs[-1] <= min(costs):
            best = start
        if len(costs) == options.starts and max(costs) > (1 + WIDE_SPREAD) * min(costs):
            wanted = max(options.many_starts, options.starts)
    return best


def _through_sample(
    problem: AssignmentProblem,
    candidates: CandidateBrokers,
    beta: float,
    options: AnnealingOptions,
    rng: np.random.Generator,
) -> BrokersAndFilters:
    """Search on a sample, put all subscribers into its filters, and polish."""
    chosen = draw_sample(problem.subscriber_count, options.sample, rng)
    filters = sample_filters(problem.subset(chosen), beta, options, rng)
    limit = load_limits(problem, beta)
    completed = complete(problem, filters, limit, rng)
    if not options.holds_all(problem.subscriber_count):
        return completed
    search = PlacementSearch(problem, candidates, limit, completed, rng)
    if search.mean_bundle() > 1:
        _anneal(search, options)
    else:
        search.anneal(options.polish, POLISH_HEAT)
        search.descend(4)
    return search.best()


def draw_sample(count: int, sample: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """The subscribers in the sample, out of `count`, ascending."""
    return np.sort(rng.choice(count, sample, replace=False))


def sample_filters(
    part: AssignmentProblem, beta: float, options: AnnealingOptions, rng: np.random.Generator
) -> Filters:
    """The filters from a search on a sample."""
    candidates = candidates_in_time(part)
    limit = load_limits(part, beta)
    if max_flow(candidates, limit)[1] > 0:  # the sample can be harder than the whole problem
        limit = load_limits(part, feasible_beta(part, candidates)[0])
    return _searched(part, candidates, limit, options, rng)[1]


# Local search


class PlacementSearch:
    """Passes of local search over one placement of the subscribers."""

    def __init__(
        self,
        problem: AssignmentProblem,
        candidates: CandidateBrokers,
        limit: NDArray[np.int64],
        start: BrokersAndFilters,
        rng: np.random.Generator,
    ) -> None:
        broker_of, filters = start
        self.problem = problem
        self.rng = rng
        self.bundles = bundles_of(problem, candidates, broker_of, limit)
        first = self.bundles.first
        all_members = arrays_of(problem)
        arrays = all_members._replace(lo=all_members.lo[first], hi=all_members.hi[first])
        self.placement: Placement = place_members(arrays, broker_of[first], self.bundles.size, filters)
        self.nested = self._nested_filters()
        self.state = SearchState(arrays, candidates_of(candidates, first), limit, self.placement, self.nested)
        self._best_cost = np.inf
        self._passes = 0
        self._keep_best()

    def descend(self, most: int) -> None:
        """At most `most` passes without uphill moves, until one gains less than `LEAST_GAIN`."""
        with stage("descent", most) as report:
            for i in range(most):
                before = self.cost()
                self._pass(0.0)
                report(i + 1)
                if self.cost() > (1 - LEAST_GAIN) * before:
                    break
        self._keep_best()

    def anneal(self, passes: int, heat: float = HEAT) -> None:
        """Passes that allow uphill moves, fewer and smaller ones as it cools."""
        with stage("annealing", passes) as report:
            for i in range(passes):
                self._pass(heat * (1 - i / passes) ** COOLING)
                report(i + 1)
                if i >= passes // 2:
                    self._keep_best()

    def mean_bundle(self) -> int:
        """The mean number of subscribers per bundle, rounded down."""
        return max(1, self.problem.subscriber_count // max(1, len(self.bundles.size)))

    def cost(self) -> float:
        """The current bandwidth."""
        return float(self.nested.measure.sum())

    def best(self) -> BrokersAndFilters:
        """The best placement so far, as brokers and filters."""
        return self._best_broker[self.bundles.of], self._best_filters

    def _pass(self, heat: float) -> None:
        """Compaction, then a strip move at each side of each box, which can cost more the higher the heat."""
        m, sides = len(self.bundles.size), self.placement.lo.size * 2
        state = self.state._replace(nested=self.nested)
        key = self.rng.random(m)
        if self._passes % RECLUSTER_EVERY == 0:
            recluster(state, key)
        self._passes += 1
        rebalance(state, np.argsort(key))
        threshold = self.rng.random(sides) * heat * self.cost() / self.problem.broker_count
        threshold[self.rng.random(sides) < COLD_SHARE] = 0.0
        order = self.rng.permutation(sides)
        patience = np.where(self.rng.random(sides) < FAR_SHARE, m, PATIENCE)
        strip_moves(state, order, threshold, patience)
        self.nested = self._nested_filters()

    def _nested_filters(self) -> Filters:
        """The boxes of the leaves as filters, with those of the inner brokers around them."""
        placement = self.placement
        return _filters_of(self.problem, placement.lo, placement.hi, placement.size > 0)

    def _keep_best(self) -> None:
        if self.cost() < self._best_cost:
            self._best_cost = self.cost()
            self._best_broker = self.placement.broker.copy()
            self._best_filters = self.nested


class Bundles(NamedTuple):
    """Bundles of interchangeable subscribers: of each bundle, one member that represents all, and its size.

    Members have the same candidates, interest and broker, and move together. `of` is the bundle of each
    subscriber.
    """

    of: NDArray[np.int64]
    first: NDArray[np.int64]
    size: NDArray[np.int64]


def bundles_of(
    problem: AssignmentProblem,
    candidates: CandidateBrokers,
    broker_of: NDArray[np.int64],
    limit: NDArray[np.int64],
) -> Bundles:
    """The subscribers of each broker in bundles; bundles of one if most subscribers differ."""
    m = problem.subscriber_count
    kind = row_kinds(np.column_stack((candidates.group, problem.lo, problem.hi)))
    if 2 * len(np.unique(kind)) >= m:
        return Bundles(np.arange(m), np.arange(m), np.ones(m, np.int64))
    most = max(1, int(limit.max() * LARGEST_SHARE))
    order = np.lexsort((broker_of, kind))
    changes = (np.diff(kind[order]) != 0) | (np.diff(broker_of[order]) != 0)
    starts = np.flatnonzero(np.concatenate(([True], changes)))
    rank = np.arange(m) - np.repeat(starts, np.diff(starts, append=m))
    number = np.cumsum(rank % most == 0) - 1
    of = np.empty(m, np.int64)
    of[order] = number
    return Bundles(of, order[rank % most == 0], np.bincount(number))


def row_kinds(rows: NDArray[np.float64]) -> NDArray[np.int64]:
    """A number per row, the same for equal rows; columns are skipped once all rows differ.

    Examples:
        >>> row_kinds(np.array([[1.0, 5.0], [1.0, 2.0], [1.0, 5.0]])).tolist()
        [1, 0, 1]
    """
    code = np.zeros(len(rows), np.int64)
    for column in rows.T:
        values, index = np.unique(column, return_inverse=True)
        distinct, code = np.unique(code * len(values) + index, return_inverse=True)
        if len(distinct) == len(rows):
            break
    return code


# Completion: all subscribers into the filters of a sample (after paper 4, section IV-B)


class KindShares(NamedTuple):
    """From rank `start[s]` on, members of kind `kind[s]` go to `broker[s]`; -1: they are placed one by one.

    A kind is a set of subscribers with the same candidates, and the same filters around them. Shares ascend
    by kind and rank; the first share of a kind starts at rank 0.
    """

    kind: NDArray[np.int64]
    start: NDArray[np.int64]
    broker: NDArray[np.int64]


def complete(
    problem: AssignmentProblem, filters: Filters, limit: NDArray[np.int64], rng: np.random.Generator
) -> BrokersAndFilters:
    """Put all subscribers into the filters, which grow where they must and shrink where they can.

    A max-flow over kinds decides how many of each kind go to which broker; only the few that need a filter to
    grow are placed one by one. The steps below need counts of kinds and ranks of their members, not all
    subscribers together: the pipeline runs them on Spark.
    """
    masks = kind_masks(problem, filters)
    kind, firsts = number_rows(masks)
    shares = allot(problem, masks[firsts], np.bincount(kind, minlength=len(firsts)), limit)
    broker_of = broker_by_rank(shares, kind, _ranks(kind))
    rest = np.flatnonzero(broker_of < 0)
    spare = limit - np.bincount(broker_of[broker_of >= 0], minlength=len(limit))
    broker_of[rest], filters = place_rest(problem.subset(rest), filters, spare, rng)
    return broker_of, filters_around(problem, *around_members(problem.lo, problem.hi, broker_of, filters))


def kind_masks(problem: AssignmentProblem, filters: Filters) -> NDArray[np.uint64]:
    """The kind of every subscriber as bits: its candidates, then those of them with a box around it."""
    in_time = masks_in_time(problem)
    both = np.hstack((in_time, np.zeros_like(in_time)))

    def mark(first: int, last: int) -> None:
        _mark_inside(
            problem.lo[first:last], problem.hi[first:last], problem.leaves, filters, both[first:last]
        )

    over_ranges(len(both), mark, "test filters")
    return both


def allot(
    problem: AssignmentProblem,
    masks: NDArray[np.uint64],
    count: NDArray[np.int64],
    limit: NDArray[np.int64],
) -> KindShares:
    """The members of each kind per broker: as many as possible at brokers with a box around them.

    The flow has a candidate for all others too, so that placing them one by one stays within the limits.
    """
    words = masks.shape[1] // 2
    inside = groups_from_masks(masks[:, words:], count, problem.leaves)
    in_time = groups_from_masks(masks[:, :words], count, problem.leaves)
    n = len(limit)
    inside_kind, in_time_kind = _row_of_entry(inside.start), _row_of_entry(in_time.start)
    index = np.searchsorted(in_time_kind * n + in_time.brokers, inside_kind * n + inside.brokers)
    units = np.zeros(len(in_time.brokers), np.int64)
    units[index] = max_flow(inside, limit)[0].units
    flow, unplaced, _ = max_flow(in_time, limit, units)
    _require_placed(unplaced)
    settled = flow.units[index]
    used = settled > 0
    rest = count - np.bincount(inside_kind, settled, len(count)).astype(np.int64)
    kind = np.concatenate((inside_kind[used], np.flatnonzero(rest)))
    size = np.concatenate((settled[used], rest[rest > 0]))
    broker = np.concatenate((inside.brokers[used], np.full(np.count_nonzero(rest), -1)))
    order = np.argsort(kind, kind="stable")
    kind, size, broker = kind[order], size[order], broker[order]
    before = np.cumsum(size) - size
    return KindShares(kind, before - before[np.searchsorted(kind, kind)], broker)


def broker_by_rank(shares: KindShares, kind: NDArray[np.int64], rank: NDArray[np.int64]) -> NDArray[np.int64]:
    """The broker of members of kinds by their rank in the kind; -1: to be placed one by one."""
    if not len(kind):
        return np.empty(0, np.int64)
    most = int(max(rank.max(), shares.start.max())) + 1
    share = np.searchsorted(shares.kind * most + shares.start, kind * most + rank, side="right") - 1
    return shares.broker[share]


def place_rest(
    rest: AssignmentProblem, filters: Filters, spare: NDArray[np.int64], rng: np.random.Generator
) -> BrokersAndFilters:
    """Place the subscribers that need a filter to grow one by one within the spare capacity."""
    candidates = candidates_from_masks(masks_in_time(rest), rest.leaves)
    flow, unplaced, _ = max_flow(candidates, spare)
    _require_placed(unplaced)
    rules = GreedyRules(rng.permutation(rest.subscriber_count), adaptive=True)
    run = run_greedy(rest, candidates, spare, rules, flow, filters)
    return run.broker_of, run.filters


def _require_placed(unplaced: int) -> None:
    if unplaced:
        raise InternalError(
            f"the completion of a sample leaves {unplaced:,} subscribers without a broker; please report this"
        )


def filters_around(
    problem: AssignmentProblem, low: NDArray[np.float64], high: NDArray[np.float64]
) -> Filters:
    """Filters of the boxes around members, (brokers, alpha, dimensions); infinite boxes have no members."""
    return _filters_of(problem, low, high, np.all(np.isfinite(low), axis=2))


def _filters_of(
    problem: AssignmentProblem,
    low: NDArray[np.float64],
    high: NDArray[np.float64],
    used: NDArray[np.bool_],
) -> Filters:
    """The used boxes of the leaves as filters, and the filters of inner brokers around them."""
    filters = empty_filters(*low.shape)
    for leaf in problem.leaves.tolist():
        count = np.count_nonzero(used[leaf])
        filters.used[leaf] = count
        filters.lo[leaf, :count] = low[leaf, used[leaf]]
        filters.hi[leaf, :count] = high[leaf, used[leaf]]
        refresh(problem.density_arrays, filters, leaf)
    nest(problem, filters)
    return filters


def _row_of_entry(start: NDArray[np.int64]) -> NDArray[np.int64]:
    """The row of each entry of compressed rows."""
    return np.repeat(np.arange(len(start) - 1), np.diff(start))


def _ranks(kind: NDArray[np.int64]) -> NDArray[np.int64]:
    """The number of earlier subscribers of the same kind."""
    order = np.argsort(kind, kind="stable")
    first = np.concatenate(([0], np.cumsum(np.bincount(kind))))
    rank = np.empty(len(kind), np.int64)
    rank[order] = np.arange(len(kind)) - first[kind[order]]
    return rank


@kernel
def _mark_inside(
    lo: Corners, hi: Corners, leaves: NDArray[np.int32], filters: Filters, masks: NDArray[np.uint64]
) -> None:
    """Set a bit in the second half for each candidate (a bit in the first) with a box around the interest."""
    words = masks.shape[1] // 2
    all_lo, all_hi, used = filters.lo, filters.hi, filters.used
    for j in range(len(lo)):
        low, high = lo[j], hi[j]
        for i in range(len(leaves)):
            word, bit, b = i >> 6, np.uint64(1) << np.uint64(i & 63), leaves[i]
            if masks[j, word] & bit and box_around(all_lo, all_hi, b, used[b], low, high) >= 0:
                masks[j, words + word] |= bit

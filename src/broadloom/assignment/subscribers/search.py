"""Local search over one placing of the subscribers (ours): passes of moves, downhill or annealed."""

import numpy as np
from numpy.typing import NDArray

from broadloom.assignment.subscribers._filters import Filters, empty_filters, refresh
from broadloom.assignment.subscribers._greedy import Wants, wants_of
from broadloom.assignment.subscribers.bundles import bundles_of
from broadloom.assignment.subscribers.placing import Placing, place_all
from broadloom.assignment.subscribers.reach import Reach, take
from broadloom.assignment.subscribers.strips import strip_moves
from broadloom.assignment.subscribers.tidying import rebalance, recluster
from broadloom.assignment.subscribers.tighten import nest
from broadloom.model import AssignmentProblem
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


class Search:
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

    def anneal(self, passes: int, heat: float = HEAT) -> None:
        """Passes that allow uphill moves, fewer and smaller ones as it cools."""
        with stage("annealing", passes) as done:
            for i in range(passes):
                self._pass(heat * (1 - i / passes) ** COOLING)
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

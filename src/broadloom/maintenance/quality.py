"""How the quality of an overlay drifts under churn, and how to get it back with few changes."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from broadloom.linking.low_degree import low_degree_edges
from broadloom.maintenance._repair import Rules
from broadloom.maintenance.fresh import fresh_edges
from broadloom.model import Weights
from broadloom.plans import Plan

# How much more links that are not there yet count, from the fewest changes to the best overlay.
BONUSES = (1.0, 0.5, 0.25, 0.1)
# A rebaseline may exceed a fresh build by these parts of its maximum degree, and of its mean degree (weight).
MAX_DEGREE_PART, PART = 0.15, 0.02
# Up to this many nodes a matrix of all pairs is made for it.
MATRIX_NODES = 4000


class Drift(NamedTuple):
    """Degrees and total weight now, and of a fresh build.

    Examples:
        >>> drift = Drift(9, 7, 5.5, 5.0, 40.0, 36.0)
        >>> drift.exceeds(6, 0.8), drift.exceeds(1, 0.8), drift.heavier_than(0.1)
        (False, True, True)
    """

    max_degree: int
    fresh_max_degree: int
    mean_degree: float
    fresh_mean_degree: float
    total_weight: float
    fresh_total_weight: float

    def exceeds(self, max_degree: float, mean_degree: float) -> bool:
        """Whether one of the degrees is above the fresh one by more than that."""
        return (
            self.max_degree - self.fresh_max_degree > max_degree
            or self.mean_degree - self.fresh_mean_degree > mean_degree
        )

    def heavier_than(self, part: float) -> bool:
        """Whether the total weight is above the fresh one by more than that part of it."""
        return self.total_weight > (1 + part) * self.fresh_total_weight


def drift_from(plan: Plan, fresh: NDArray[np.int32], edges: NDArray[np.int32] | None = None) -> Drift:
    """The drift of a plan, or of other edges among its nodes, from the edges of a fresh build."""
    now, then = (_numbers(plan, some) for some in (plan.edges if edges is None else edges, fresh))
    return Drift(now[0], then[0], now[1], then[1], now[2], then[2])


def _numbers(plan: Plan, edges: NDArray[np.int32]) -> tuple[int, float, float]:
    """Maximum degree, mean degree and total weight."""
    degree = np.bincount(edges.ravel(), minlength=plan.interest.node_count)
    weight = math.fsum(plan.weights.of(edges[:, 0], edges[:, 1]))
    return int(degree.max(initial=0)), float(degree.mean()) if len(degree) else 0.0, weight


def rebaseline_edges(plan: Plan, rules: Rules) -> NDArray[np.int32]:
    """Edges about as good as a fresh build's, of which as many as possible are the plan's.

    Links that are there count as lighter: the more, the fewer change. The largest such bonus is taken at
    which the overlay is still as good; if there is none, or there are very many nodes, it is the fresh build.
    """
    fresh = fresh_edges(plan.interest, plan.weights, rules)
    for bonus in BONUSES if 1 < plan.interest.node_count <= MATRIX_NODES else ():
        k = 0.0 if rules.by_weight else rules.rho
        edges = low_degree_edges(plan.interest, _favoured(plan, bonus), k)
        if _as_good(drift_from(plan, fresh, edges), rules.by_weight):
            return edges
    return fresh


def _favoured(plan: Plan, bonus: float) -> Weights:
    """The weights, with those of links that are not there yet raised."""
    matrix = plan.weights.matrix()
    u, v = plan.edges.T
    there = matrix[u, v].copy()
    matrix *= 1 + bonus
    matrix[u, v] = matrix[v, u] = there
    return Weights.dense(matrix)


def _as_good(drift: Drift, by_weight: bool) -> bool:
    if by_weight:
        return not drift.heavier_than(PART)
    more = MAX_DEGREE_PART * drift.fresh_max_degree, PART * drift.fresh_mean_degree
    return not drift.exceeds(*more)

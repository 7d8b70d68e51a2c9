"""How the quality of an overlay drifts under churn, against a fresh build of the same nodes."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from broadloom.model import Plan


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


def drift_from(plan: Plan, fresh: NDArray[np.int32]) -> Drift:
    """The drift of a plan from the edges of a fresh build."""
    n, numbers = plan.interest.node_count, []
    for edges in (plan.edges, fresh):
        degree = np.bincount(edges.ravel(), minlength=n)
        weight = math.fsum(plan.weights.of(edges[:, 0], edges[:, 1]))
        numbers.append((int(degree.max(initial=0)), 2 * len(edges) / max(n, 1), weight))
    (most, mean, weight), (fresh_most, fresh_mean, fresh_weight) = numbers
    return Drift(most, fresh_most, mean, fresh_mean, weight, fresh_weight)

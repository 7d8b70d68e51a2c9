"""What comes out of subscriber assignment: who serves whom, and what each broker lets through."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from broadloom.errors import InputError
from broadloom.model._check import read_only
from broadloom.model.assignment import AssignmentProblem

Filter = tuple[tuple[NDArray[np.float64], NDArray[np.float64]], ...]


@dataclass(frozen=True, eq=False)
class AssignmentResult:
    """An assignment of subscribers to leaf brokers, with a filter for every broker.

    Attributes:
        problem: what was given.
        broker_of: the broker of each subscriber, int32 (m,).
        filters: one tuple a broker of (lo, hi) pairs, the rectangles that its filter is made of.
        algorithm: what made it.
        seed: the seed of its chance.
        options: the options that the algorithm ran with.
        lower_bound: a proven bound that no allowed assignment's bandwidth can beat, or None.
        notes: what the algorithm has to tell (the load balance factor that it used, the LP's value, ...).

    Examples:
        >>> import broadloom as bl
        >>> problem = bl.AssignmentProblem([0], [[1]], [-1], [[2]], [[0]], [[3]])
        >>> result = bl.assign(problem, algorithm="closest")
        >>> result.broker_of.tolist(), result.metrics()["bandwidth"]
        ([0], 3.0)
    """

    problem: AssignmentProblem
    broker_of: NDArray[np.int32]
    filters: tuple[Filter, ...]
    algorithm: str = ""
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    lower_bound: float | None = None
    notes: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.broker_of.shape != (self.problem.subscriber_count,):
            raise InputError(
                f"{self.problem.subscriber_count:,} subscribers but an assignment of shape "
                f"{self.broker_of.shape}; give one broker a subscriber"
            )
        if len(self.filters) != self.problem.broker_count:
            raise InputError(
                f"{self.problem.broker_count:,} brokers but {len(self.filters):,} filters; give one a broker"
            )
        read_only(self.broker_of)
        for side in (side for boxes in self.filters for box in boxes for side in box):
            read_only(side)
        for name in ("options", "notes"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))

    @cached_property
    def _measured(self) -> dict[str, Any]:
        from broadloom import measures  # measures stand on the model, so they are met here, at the call

        return measures.content_metrics(self.problem, self.broker_of, self.filters)

    def metrics(self) -> dict[str, Any]:
        """Every measure of the assignment; see `broadloom.measures.content_metrics`."""
        return dict(self._measured)

    @property
    def bandwidth(self) -> float:
        """The objective: the measure of all filters together."""
        return float(self._measured["bandwidth"])

    @property
    def feasible(self) -> bool:
        """Whether every constraint holds: latency, filters, nesting, and load within `beta_max`."""
        return bool(self._measured["feasible"])

    @property
    def gap(self) -> float | None:
        """How far at most the bandwidth is above the best possible: (objective - bound) / bound."""
        if self.lower_bound is None or self.lower_bound <= 0:
            return None
        return (self.bandwidth - self.lower_bound) / self.lower_bound

    def verify(self) -> None:
        """Assert what every algorithm promises, by independent code: filters that nest, none too complex."""
        broken = [what for what in ("nesting", "alpha") if what in self._measured["violated"]]
        assert not broken, f"{self.algorithm} broke its promise of {' and '.join(broken)}"

    def summary(self) -> str:
        """The result in a sentence."""
        measured = self._measured
        state = "feasible" if self.feasible else f"NOT feasible ({', '.join(measured['violated'])})"
        return (
            f"{self.algorithm}: {measured['subscribers']:,} subscribers on {measured['leaves']:,} "
            f"brokers, bandwidth {self.bandwidth:.4g}, load balance factor {measured['lbf']:.3f}, {state}"
        )

    def __repr__(self) -> str:
        return f"AssignmentResult({self.algorithm}, {self.problem!r})"

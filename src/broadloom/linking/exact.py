"""Exact overlays (ours): an integer program whose inequalities are added as they are violated."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from broadloom.checks import check_count, check_number
from broadloom.linking._built import Built
from broadloom.linking._program import Bools, Floats, Program
from broadloom.model import Interest, Weights
from broadloom.progress import stage

# The solver's tolerances are absolute, about 1e-6: weights are scaled to this total unless small and whole.
TOTAL = 1e4
# What the tolerances may cost, relative to the total: bounds are lowered by it before they count as proven.
SAFETY = 1e-7
# A bound on a whole number is rounded up, but not for this much.
WHOLE_SAFETY = 1e-3


@dataclass(frozen=True)
class ExactOptions:
    """When to stop before the optimum is proven.

    Attributes:
        node_limit: how many nodes the solver's search may visit, over all its runs; None: no limit.
        time_limit: seconds; None: no limit. What is known by then depends on the machine.
    """

    node_limit: int | None = None
    time_limit: float | None = None

    def __post_init__(self) -> None:
        if self.node_limit is not None:
            check_count(self.node_limit, "node_limit", minimum=1)
        if self.time_limit is not None:
            check_number(self.time_limit, "time_limit")


def exact(interest: Interest, weights: Weights, options: ExactOptions, seed: int) -> Built:  # noqa: ARG001
    """The overlay of least total weight; when a limit is reached, the best one known, and what is proven.

    First the linear relaxation, with every inequality that its solution violates, then the integer
    program in the same way, until its solution connects every topic. Edges ascend.
    """
    search = _Search(Program.of(interest, weights), options)
    with stage("prove"):
        _relax(search)
        _branch(search)
    notes = {
        "optimal": search.is_optimal,
        "inequalities": len(search.program.needs),
        "solver_nodes": search.nodes,
    }
    return Built(search.program.pairs[search.best], search.proven, notes)


@dataclass
class _Search:
    """The best choice so far, the bound so far, and which pairs a better choice must or must not have."""

    program: Program
    options: ExactOptions
    start: float = field(default_factory=time.monotonic)
    nodes: int = 0
    bound: float = 0.0

    def __post_init__(self) -> None:
        count = len(self.program.pairs)
        self.best: Bools = self.program.guided(np.zeros(count))
        self.total = self.program.total(self.best)
        weight = self.program.weight
        self.whole = bool(np.all(weight == np.floor(weight)) and weight.sum() < TOTAL)
        self.scale = 1.0 if self.whole else TOTAL / self.total
        self.cost: Floats = weight * self.scale
        self.low, self.high = np.zeros(count), np.ones(count)

    @property
    def proven(self) -> float:
        """The bound lowered to safety; where totals are whole numbers, the next one of them."""
        safe = float(min(self.bound, self.total) * (1 - SAFETY))
        return float(math.ceil(safe - WHOLE_SAFETY)) if self.whole else safe

    @property
    def is_optimal(self) -> bool:
        """Whether there is nothing better, as far as the solver can tell two totals apart."""
        return bool(self.proven >= self.total * (1 - 2 * SAFETY))

    @property
    def is_over(self) -> bool:
        """Whether the optimum is found or a limit reached."""
        return self.is_optimal or 0 in self.limits("time_limit", "node_limit").values()

    def limits(self, *names: str, **others: float) -> Any:
        """What is left of the limits of these names, as the solver takes them, beside other options."""
        used = {"time_limit": time.monotonic() - self.start, "node_limit": self.nodes}
        given = {name: limit for name in names if (limit := getattr(self.options, name)) is not None}
        return others | {name: max(limit - used[name], 0) for name, limit in given.items()}

    def offer(self, x: Floats) -> None:
        """Take the choice to which x guides, if it is better."""
        chosen = self.program.guided(x)
        total = self.program.total(chosen)
        if total < self.total:
            self.best, self.total = chosen, total

    def prove(self, scaled_bound: float, reduced: Floats) -> None:
        """Note a bound, and fix the pairs that would cost more than is known to do, had they another value.

        With the reduced costs r of a dual solution, any choice x costs at least the bound plus what
        |r| each pair adds that is not at its cheaper end.
        """
        self.bound = max(self.bound, scaled_bound / self.scale)
        gap = self.total * self.scale * (1 + SAFETY) - scaled_bound
        free = self.low < self.high
        self.high[free & (reduced > gap)] = 0.0
        self.low[free & (reduced < -gap)] = 1.0


def _relax(search: _Search) -> None:
    """Solve the linear relaxation until nothing is violated."""
    from scipy.optimize import linprog  # a heavy import, for this algorithm alone

    while not search.is_over:
        matrix, need = search.program.rows()
        answer = linprog(  # type: ignore[call-overload]  # its stubs know no sparse matrix
            search.cost,
            A_ub=-matrix,
            b_ub=-need,
            bounds=np.stack((search.low, search.high), axis=1),
            method="highs-ds",
            options=search.limits("time_limit"),
        )
        if answer.x is None:
            return
        search.offer(answer.x)
        dual = np.maximum(-answer.ineqlin.marginals, 0.0)
        reduced = search.cost - matrix.T @ dual
        # Weak duality holds whatever the solver's duals are worth: each pair at the cheaper of its bounds.
        bound = need @ dual + (np.where(reduced > 0, search.low, search.high) * reduced).sum()
        search.prove(bound, reduced)
        if not search.program.separate(answer.x):
            return


def _branch(search: _Search) -> None:
    """Solve the integer program until its solution connects every topic."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    while not search.is_over:
        matrix, need = search.program.rows()
        answer = milp(
            search.cost,
            integrality=np.ones(len(search.cost), int),
            bounds=Bounds(search.low, search.high),
            constraints=LinearConstraint(matrix, lb=need),
            options=search.limits("time_limit", "node_limit", mip_rel_gap=0.0),
        )
        search.nodes += max(int(answer.mip_node_count or 0), 1)
        search.bound = max(search.bound, (answer.mip_dual_bound or 0.0) / search.scale)
        if answer.x is None:
            return
        x = np.round(answer.x)
        search.offer(x)
        if not search.program.separate(x):
            return

"""Gr and Gr* (paper 4, section III), Gr without latency, and the balanced assignment (section VI)."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from broadloom.assignment.subscribers._filters import Filters, as_tuples
from broadloom.assignment.subscribers._greedy import Greedy, run_greedy
from broadloom.assignment.subscribers.flow import least_lbf, limits, max_flow, spread
from broadloom.assignment.subscribers.reach import Reach, everywhere, reach_of
from broadloom.assignment.subscribers.tighten import tight_filters
from broadloom.checks import check_flag
from broadloom.model import AssignmentProblem, NoOptions
from broadloom.plans import AssignmentResult

# "We increase the value of beta by a small factor": the paper leaves it open.
BETA_STEP = 0.05


@dataclass(frozen=True)
class OrderOptions:
    """Options of Gr and Gr*.

    Attributes:
        shuffle: take subscribers in a random order (by the seed) in place of the order of the input.
    """

    shuffle: bool = False

    def __post_init__(self) -> None:
        check_flag(self.shuffle, "option shuffle")


def gr(problem: AssignmentProblem, options: OrderOptions, seed: int) -> AssignmentResult:
    """Each subscriber in turn to the candidate whose filters grow least."""
    return _raising_beta(problem, reach_of(problem), _order(problem, options, seed), adaptive=False)


def gr_star(problem: AssignmentProblem, options: OrderOptions, seed: int) -> AssignmentResult:
    """As Gr, but those with the fewest candidates that are not full first."""
    return _raising_beta(problem, reach_of(problem), _order(problem, options, seed), adaptive=True)


def gr_no_latency(problem: AssignmentProblem, options: OrderOptions, seed: int) -> AssignmentResult:
    """As Gr, with every leaf broker as a candidate: what bandwidth would cost if latency did not count."""
    return _raising_beta(problem, everywhere(problem), _order(problem, options, seed), adaptive=False)


def balance(problem: AssignmentProblem, options: NoOptions, seed: int) -> AssignmentResult:  # noqa: ARG001
    """The least possible load balance factor within the latency bounds, by max-flow."""
    reach = reach_of(problem)
    factor, flow = least_lbf(problem, reach)
    broker_of = spread(reach, flow)
    filters = as_tuples(tight_filters(problem, broker_of))
    return AssignmentResult(problem, broker_of, filters, notes={"least_lbf": factor})


def rising_betas(problem: AssignmentProblem) -> Iterator[float]:
    """The load balance factors to try: from `beta` in steps to `beta_max`."""
    beta = problem.beta
    while beta < problem.beta_max:
        yield beta
        beta += BETA_STEP
    yield problem.beta_max


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


def _order(problem: AssignmentProblem, options: OrderOptions, seed: int) -> NDArray[np.int64]:
    m = problem.subscriber_count
    return np.random.default_rng(seed).permutation(m) if options.shuffle else np.arange(m)


def _raising_beta(
    problem: AssignmentProblem, reach: Reach, order: NDArray[np.int64], adaptive: bool
) -> AssignmentResult:
    """The first run that strands nobody, or the last one, at `beta_max`."""
    for beta in rising_betas(problem):
        more = beta < problem.beta_max
        made = run_greedy(problem, reach, limits(problem, beta), order, adaptive, strict=more)
        if made.stranded == 0:
            break
    return as_result(problem, made, {"beta": beta, "stranded": made.stranded})


def as_result(problem: AssignmentProblem, made: Greedy, notes: dict[str, object]) -> AssignmentResult:
    """A greedy assignment as a result."""
    return AssignmentResult(problem, made.broker_of.astype(np.int32), as_tuples(made.filters), notes=notes)

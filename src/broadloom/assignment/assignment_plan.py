"""The function `assign` and the list of its algorithms."""

from dataclasses import replace
from typing import Any, overload

from broadloom.assignment import subscribers
from broadloom.assignment.market import MARKET_ALGORITHMS
from broadloom.checks import check_count
from broadloom.errors import InputError
from broadloom.model import Algorithm, AssignmentProblem, MarketProblem, NoOptions, find_algorithm
from broadloom.plans import AssignmentResult, MarketResult


def _subscriber_algorithm(
    name: str, paper: str, objective: str, summary: str, run: object, options: type = NoOptions
) -> Algorithm:
    """An algorithm for subscriber assignment (paper 4)."""
    return Algorithm(name, "assign", paper, objective, summary, run, options, AssignmentProblem)  # type: ignore[arg-type]


ALGORITHMS: tuple[Algorithm, ...] = (
    _subscriber_algorithm(
        "gr",
        "4, III",
        "bandwidth",
        "each subscriber in turn where filters grow least",
        subscribers.gr,
        subscribers.GrOptions,
    ),
    _subscriber_algorithm(
        "gr*",
        "4, III",
        "bandwidth",
        "as gr, those with the fewest open candidates first",
        subscribers.gr_star,
        subscribers.OrderOptions,
    ),
    _subscriber_algorithm(
        "gr-no-latency",
        "4, VI",
        "bandwidth",
        "as gr, without the latency bound",
        subscribers.gr_no_latency,
        subscribers.OrderOptions,
    ),
    _subscriber_algorithm(
        "closest",
        "4, VI",
        "latency",
        "each to the nearest leaf broker that is not full",
        subscribers.closest,
    ),
    _subscriber_algorithm(
        "closest-unbalanced",
        "4, VI",
        "latency",
        "each to the nearest leaf broker",
        subscribers.closest_unbalanced,
    ),
    _subscriber_algorithm(
        "balance", "4, VI", "load", "the least possible load balance factor", subscribers.balance
    ),
    _subscriber_algorithm(
        "slp1",
        "4, IV",
        "bandwidth",
        "filters from a linear program on a sample, then greedily inside them",
        subscribers.slp1,
        subscribers.SlpOptions,
    ),
    _subscriber_algorithm(
        "slp",
        "4, V",
        "bandwidth",
        "as slp1, from the top of the tree down",
        subscribers.slp,
        subscribers.SlpOptions,
    ),
    _subscriber_algorithm(
        "broadloom",
        "ours",
        "bandwidth",
        "guarded gr*, then strip moves and annealing; feasible whenever anything is",
        subscribers.broadloom,
        subscribers.AnnealingOptions,
    ),
    *MARKET_ALGORITHMS,
)


@overload
def assign(
    problem: AssignmentProblem, algorithm: str = "broadloom", seed: int = 0, **options: Any
) -> AssignmentResult: ...
@overload
def assign(
    problem: MarketProblem, algorithm: str = "broadloom", seed: int = 0, **options: Any
) -> MarketResult: ...
def assign(
    problem: AssignmentProblem | MarketProblem, algorithm: str = "broadloom", seed: int = 0, **options: Any
) -> AssignmentResult | MarketResult:
    """Assign subscribers to brokers and choose a filter per broker; or assign a market's users to brokers.

    Args:
        problem: the subscribers or users, the brokers, and the limits.
        algorithm: one of `broadloom.algorithms("assign")` for this type of problem.
        seed: the seed of randomised algorithms.
        **options: options of the algorithm.

    Returns:
        A verified result. If no assignment within the limits is found, it is the best one found, and
        `result.feasible` is false.

    Raises:
        InputError: the problem is of another type, the algorithm or an option is unknown, a subscriber has
            no broker within its latency bound, or the users of a market do not fit.

    Examples:
        >>> import broadloom as bl
        >>> problem = bl.AssignmentProblem([0], [[1], [9]], [-1, -1], [[2], [8]], [[0], [0]], [[3], [3]])
        >>> bl.assign(problem, algorithm="closest-unbalanced").broker_of
        array([0, 1], dtype=int32)
    """
    suitable = [entry for entry in ALGORITHMS if entry.problem is type(problem)]
    if not suitable:
        kinds = sorted({entry.problem.__name__ for entry in ALGORITHMS if entry.problem is not None})
        raise InputError(f"the problem is of type {type(problem).__name__}; give one of {', '.join(kinds)}")
    chosen = find_algorithm(algorithm, suitable)
    settings = chosen.with_options(options)
    check_count(seed, "seed")
    found: AssignmentResult | MarketResult = chosen.run(problem, settings, seed)
    result = replace(found, algorithm=algorithm, seed=seed, options=vars(settings))
    result.verify()
    return result

"""The verb of assignment: check, choose, run, verify, return."""

from dataclasses import replace
from typing import Any, overload

from broadloom.assignment import ALGORITHMS
from broadloom.checks import check_count
from broadloom.errors import InputError
from broadloom.model import AssignmentProblem, MarketProblem, find_algorithm
from broadloom.plans import AssignmentResult, MarketResult


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
    """Choose a broker for each subscriber and a filter for each broker; or a broker for each market user.

    Args:
        problem: what is given and what is allowed.
        algorithm: one of `broadloom.algorithms("assign")` for this type of problem.
        seed: the seed of the algorithms that draw lots.
        **options: the algorithm's own.

    Returns:
        A verified result. Where no allowed assignment is found it is the best effort, and
        `result.feasible` is false.

    Raises:
        InputError: something else than a problem, an unknown algorithm or option, or a subscriber that no
            broker reaches in time.

    Examples:
        >>> import broadloom as bl
        >>> problem = bl.AssignmentProblem([0], [[1], [9]], [-1, -1], [[2], [8]], [[0], [0]], [[3], [3]])
        >>> bl.assign(problem, algorithm="closest-unbalanced").broker_of
        array([0, 1], dtype=int32)
    """
    fitting = [one for one in ALGORITHMS if one.problem is type(problem)]
    if not fitting:
        kinds = sorted({one.problem.__name__ for one in ALGORITHMS if one.problem is not None})
        raise InputError(f"a {type(problem).__name__} cannot be assigned; give one of {', '.join(kinds)}")
    chosen = find_algorithm(algorithm, fitting)
    settings = chosen.with_options(options)
    check_count(seed, "seed")
    found: AssignmentResult | MarketResult = chosen.run(problem, settings, seed)
    result = replace(found, algorithm=algorithm, seed=seed, options=vars(settings))
    result.verify()
    return result

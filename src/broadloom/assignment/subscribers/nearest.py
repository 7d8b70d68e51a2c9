"""Assignments by distance alone (paper 4, section VI): Closest, and Closest without load balance."""

import numpy as np
from numpy.typing import NDArray

from broadloom.assignment.subscribers._filters import as_tuples
from broadloom.assignment.subscribers.flow import limits
from broadloom.assignment.subscribers.tighten import tight_filters
from broadloom.kernels import kernel
from broadloom.model import AssignmentProblem, NoOptions
from broadloom.plans import AssignmentResult


def closest_unbalanced(problem: AssignmentProblem, options: NoOptions, seed: int) -> AssignmentResult:  # noqa: ARG001
    """Each subscriber to the leaf broker of the least last hop, however full it is."""
    unlimited = np.full(problem.broker_count, problem.subscriber_count, np.int64)
    return _to_nearest(problem, unlimited)


def closest(problem: AssignmentProblem, options: NoOptions, seed: int) -> AssignmentResult:  # noqa: ARG001
    """Each subscriber to the nearest leaf broker that is not full at `beta_max`."""
    return _to_nearest(problem, limits(problem, problem.beta_max))


def _to_nearest(problem: AssignmentProblem, limit: NDArray[np.int64]) -> AssignmentResult:
    leaves = problem.leaves
    nearest = _nearest_with_room(problem.subscriber_place, problem.broker_place[leaves], limit[leaves])
    broker_of = leaves[nearest]
    return AssignmentResult(problem, broker_of, as_tuples(tight_filters(problem, broker_of)))


@kernel
def _nearest_with_room(
    place: NDArray[np.float64], broker_place: NDArray[np.float64], limit: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The nearest broker with room for each point in turn; the nearest of all when none has room."""
    load = np.zeros(len(limit), np.int64)
    result = np.empty(len(place), np.int64)
    for j in range(len(place)):
        best, best_anywhere = -1, 0
        least, least_anywhere = np.inf, np.inf
        for b in range(len(limit)):
            hop = 0.0
            for axis in range(place.shape[1]):
                hop += (place[j, axis] - broker_place[b, axis]) ** 2
            if hop < least_anywhere:
                best_anywhere, least_anywhere = b, hop
            if hop < least and load[b] < limit[b]:
                best, least = b, hop
        result[j] = best if best >= 0 else best_anywhere
        load[result[j]] += 1
    return result

"""Assign: which broker serves which subscriber (papers 4 and 5)."""

from broadloom.assignment import nearest
from broadloom.model import AssignmentProblem
from broadloom.model.algorithm import Algorithm

ALGORITHMS: tuple[Algorithm, ...] = (
    Algorithm(
        "closest",
        "assign",
        "4, VI",
        "latency",
        "each subscriber to the nearest leaf broker that is not full",
        nearest.closest,
        problem=AssignmentProblem,
    ),
    Algorithm(
        "closest-unbalanced",
        "assign",
        "4, VI",
        "latency",
        "each subscriber to the nearest leaf broker",
        nearest.closest_unbalanced,
        problem=AssignmentProblem,
    ),
)

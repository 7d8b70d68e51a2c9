"""Greedy overlays: GM (papers 1 and 2) adds the edge with the highest contribution."""

from broadloom.linking._built import Built
from broadloom.linking._components import components_of
from broadloom.linking._levels import merge_by_level
from broadloom.model import Interest, Weights
from broadloom.model.algorithm import NoOptions


def gm(interest: Interest, weights: Weights, options: NoOptions, seed: int) -> Built:  # noqa: ARG001
    """Add the edge with the highest contribution, the smallest `(u, v)` among equals, until none has any."""
    return Built(merge_by_level(components_of(interest)))

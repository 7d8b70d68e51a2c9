"""Greedy overlays: GM (papers 1 and 2) by contribution, GrMAW (paper 1, Alg. 2) by weight a contribution."""

from broadloom.linking._built import Built
from broadloom.linking._components import components_of
from broadloom.linking._keys import merge_by_key
from broadloom.linking._levels import merge_by_level
from broadloom.model import Interest, Weights
from broadloom.model.algorithm import NoOptions


def gm(interest: Interest, weights: Weights, options: NoOptions, seed: int) -> Built:  # noqa: ARG001
    """Add the edge with the highest contribution, the smallest `(u, v)` among equals, until none has any."""
    return Built(merge_by_level(components_of(interest)))


def grmaw(interest: Interest, weights: Weights, options: NoOptions, seed: int) -> Built:  # noqa: ARG001
    """Add the edge with the lowest weight a contribution, the smallest `(u, v)` among equals."""
    components = components_of(interest)
    if weights.is_uniform:  # the lowest 1/mu is the highest mu, and integers are quicker than ratios
        return Built(merge_by_level(components))
    return Built(merge_by_key(components, weights.arrays()))

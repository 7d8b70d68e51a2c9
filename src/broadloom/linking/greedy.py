"""Greedy overlays: GM (papers 1 and 2) by contribution, GrMAW (paper 1, Alg. 2) by weight a contribution."""

from dataclasses import dataclass

from broadloom.checks import check_count
from broadloom.linking._built import Built
from broadloom.linking._components import components_of
from broadloom.linking._keys import merge_by_key
from broadloom.linking._levels import merge_by_level
from broadloom.linking.low_degree import low_degree_edges
from broadloom.model import Interest, Weights


@dataclass(frozen=True)
class GreedyOptions:
    """Options of gm and grmaw.

    Attributes:
        max_degree: no node gets more links than this; None: no limit.
    """

    max_degree: int | None = None

    def __post_init__(self) -> None:
        if self.max_degree is not None:
            check_count(self.max_degree, "max_degree", minimum=1)


def gm(interest: Interest, weights: Weights, options: GreedyOptions, seed: int) -> Built:
    """Add the edge with the highest contribution, the smallest `(u, v)` among equals, until none has any."""
    return grmaw(interest, Weights.uniform(weights.node_count), options, seed)


def grmaw(interest: Interest, weights: Weights, options: GreedyOptions, seed: int) -> Built:  # noqa: ARG001
    """Add the edge with the lowest weight a contribution, the smallest `(u, v)` among equals."""
    if options.max_degree is not None:
        return Built(low_degree_edges(interest, weights, k=0, max_degree=options.max_degree))
    components = components_of(interest)
    if weights.is_uniform:  # the lowest 1/mu is the highest mu, and integers are quicker than ratios
        return Built(merge_by_level(components))
    return Built(merge_by_key(components, weights.arrays()))

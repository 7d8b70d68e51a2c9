"""A fresh build of the same nodes: where maintenance starts from, and what it is measured against."""

import numpy as np
from numpy.typing import NDArray

from broadloom.linking._components import components_of
from broadloom.linking._keys import merge_by_key
from broadloom.linking.low_degree import low_degree_edges
from broadloom.maintenance._repair import Rules
from broadloom.model import Interest, Weights


def fresh_edges(interest: Interest, weights: Weights, rules: Rules) -> NDArray[np.int32]:
    """The edges from scratch by the rule that maintenance follows: low-oda, or grmaw with weights."""
    if rules.by_weight:
        return merge_by_key(components_of(interest), weights.arrays())
    return low_degree_edges(interest, Weights.uniform(interest.node_count), rules.rho)

"""What every verb of linking checks first."""

from broadloom.errors import InputError
from broadloom.model import Interest, Weights


def fitting_weights(interest: Interest, weights: Weights | None) -> Weights:
    """The weights, 1 each where there are none, after checking that both are what they should be."""
    if not isinstance(interest, Interest):
        raise InputError(f"the interest is a {type(interest).__name__}; make one with Interest.from_lists")
    if weights is None:
        return Weights.uniform(interest.node_count)
    if not isinstance(weights, Weights):
        raise InputError(f"the weights are a {type(weights).__name__}; make them with Weights.dense")
    if weights.node_count != interest.node_count:
        raise InputError(
            f"{interest.node_count:,} nodes but weights for {weights.node_count:,}; give as many"
        )
    return weights

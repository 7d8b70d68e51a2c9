"""The verb of linking: check, choose, run, verify, return."""

from typing import Any

from broadloom.errors import InputError
from broadloom.linking import ALGORITHMS
from broadloom.measures import is_topic_connected
from broadloom.model import Interest, Overlay, Plan, Weights
from broadloom.model._check import whole
from broadloom.model.algorithm import find


def link(
    interest: Interest, weights: Weights | None = None, algorithm: str = "gm", seed: int = 0, **options: Any
) -> Plan:
    """Build an overlay in which every topic's subscribers are connected among themselves.

    Args:
        interest: who wants what.
        weights: what links cost; None: all links weigh 1.
        algorithm: one of `broadloom.algorithms()` of the stage "link".
        seed: the seed of the algorithms that draw lots.
        **options: the algorithm's own.

    Returns:
        A verified plan: its edges are in the order of selection.

    Raises:
        InputError: weights for another number of nodes, an unknown algorithm or option.

    Example:
        >>> import broadloom as bl
        >>> bl.link(bl.Interest.from_lists([[0, 1], [1], [0, 1]]), algorithm="gm").edges.tolist()
        [[0, 2], [0, 1]]
    """
    if not isinstance(interest, Interest):
        raise InputError(f"the interest is a {type(interest).__name__}; make one with Interest.from_lists")
    if weights is not None and not isinstance(weights, Weights):
        raise InputError(f"the weights are a {type(weights).__name__}; make them with Weights.dense")
    seed = whole(seed, "seed")
    if weights is None:
        weights = Weights.uniform(interest.node_count)
    if weights.node_count != interest.node_count:
        raise InputError(
            f"{interest.node_count:,} nodes but weights for {weights.node_count:,}; give as many"
        )
    chosen = find(algorithm, ALGORITHMS)
    settings = chosen.with_options(options)
    built = chosen.run(interest, weights, settings, seed)
    overlay = Overlay.from_edges(interest.node_count, built.edges)
    if not is_topic_connected(interest, overlay):
        raise RuntimeError(f"{algorithm} left a topic disconnected: this is a bug in Broadloom")
    return Plan(interest, weights, overlay, algorithm, seed, vars(settings), built.lower_bound, built.notes)

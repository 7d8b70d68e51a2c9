"""Division of the weights of links over topics that has proven a lower bound."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from broadloom.model import Interest, Weights


@dataclass(frozen=True, eq=False)
class WeightDivision:
    """The spanning trees of the topics under a division of the weights, which prove a lower bound.

    The part of a topic in the weight of any pair of its subscribers is its height: the heaviest link on the
    path of the tree between the two. The heights of a pair, summed over the topics that it shares, do not
    exceed its weight, so the sum of all trees is a lower bound. A plan keeps the division in memory, so that
    a plan for nearly the same interest starts from it; it is not saved.

    Attributes:
        interest: the interest whose topics are connected, without overlapping filters.
        weights: the weights that are divided.
        low: one end of each link of the trees, topic after topic, as an index of `interest.nodes`.
        high: the other end.
        height: the part of the topic in the weight of the link.
    """

    interest: Interest
    weights: Weights
    low: NDArray[np.int32]
    high: NDArray[np.int32]
    height: NDArray[np.float64]

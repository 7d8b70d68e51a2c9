"""Result of a link algorithm, before it is verified and becomes a plan."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from broadloom.plans import WeightDivision


@dataclass(frozen=True)
class LinkResult:
    """Edges of an overlay, with a bound and notes from the algorithm.

    Attributes:
        edges: int32 (m, 2), `u < v`, in the order of selection.
        lower_bound: a proven bound on the objective, if the algorithm has one.
        notes: facts about the run that the plan keeps.
        division: how the weights were divided to prove the bound, if that can be used again.
    """

    edges: NDArray[np.int32]
    lower_bound: float | None = None
    notes: Mapping[str, Any] = field(default_factory=dict)
    division: WeightDivision | None = None


def without_repetition(edges: NDArray[np.int32]) -> NDArray[np.int32]:
    """The edges in order, without those that have occurred before.

    Examples:
        >>> without_repetition(np.array([(1, 2), (0, 1), (1, 2)], np.int32)).tolist()
        [[1, 2], [0, 1]]
    """
    codes = edges[:, 0].astype(np.int64) << 32 | edges[:, 1]
    return edges[np.sort(np.unique(codes, return_index=True)[1])]

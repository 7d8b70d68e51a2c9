"""What a link algorithm gives back, before it is checked and becomes a plan."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Built:
    """Edges in the order of selection, a proven bound if there is one, and what else is worth telling."""

    edges: NDArray[np.int32]
    lower_bound: float | None = None
    notes: Mapping[str, Any] = field(default_factory=dict)

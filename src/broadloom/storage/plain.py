"""Values as JSON has them."""

from collections.abc import Mapping
from typing import Any

import numpy as np


def plain(value: Any) -> Any:
    """A value as JSON has it: no NumPy, no NaN, no infinity, no tuple.

    Examples:
        >>> plain({"degrees": np.array([1, 2]), "gap": np.inf})
        {'degrees': [1, 2], 'gap': None}
    """
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    if isinstance(value, (np.ndarray, np.generic)):
        return plain(value.tolist())
    return None if isinstance(value, float) and not np.isfinite(value) else value

"""Numbers as the page has them: short, so that a page of many links stays small."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

DIGITS = 6


def short(values: ArrayLike) -> list[Any]:
    """Numbers as JSON has them, to six digits; None where there is none, or an infinite one.

    Examples:
        >>> short([1.23456789, 2.0, float("inf")])
        [1.23457, 2, None]
        >>> short(np.array([3, 4]))
        [3, 4]
    """
    array = np.asarray(values)
    if array.dtype.kind != "f":
        return array.tolist()
    return [_short(value) for value in array.tolist()]


def _short(value: float) -> float | int | None:
    if not np.isfinite(value):
        return None
    rounded = float(f"{value:.{DIGITS}g}")
    return int(rounded) if rounded.is_integer() else rounded

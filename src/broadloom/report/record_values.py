"""Values of the report's record: shortened numbers, and the certificate of a plan's quality."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

DIGITS = 6
# Gaps below this are due to rounding.
_ROUNDING = 1e-9


def short(values: ArrayLike) -> list[Any]:
    """Numbers for JSON, rounded to six digits; None for NaN and infinite numbers.

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


def certificate(total: float, bound: float | None, gap: float | None, least: str) -> dict[str, Any]:
    """The certificate of a plan; `least` starts the statement of the bound, as in "no overlay weighs".

    Examples:
        >>> certificate(107.0, 100.0, 0.07, "no overlay weighs")["words"]
        'It is proven that no overlay weighs less than 100; here it is 107, 7.0% more.'
    """
    if bound is None or gap is None:
        words = "No bound was computed for this plan, so nothing is proven of how much better one could be."
    elif gap < _ROUNDING:
        words = (
            f"It is proven that {least} less than {bound:,.6g}, and here it is no more: the best possible."
        )
    else:
        words = f"It is proven that {least} less than {bound:,.6g}; here it is {total:,.6g}, {gap:.1%} more."
    total, bound, gap = short([total, *(float("nan") if one is None else one for one in (bound, gap))])
    return {"total": total, "bound": bound, "gap": gap, "words": words}

"""How good a plan is proven to be, in numbers and in words."""

from typing import Any

from broadloom.report.numbers import short

# What rounding leaves between a plan and its own bound.
_ROUNDING = 1e-9


def certificate(total: float, bound: float | None, gap: float | None, least: str) -> dict[str, Any]:
    """The certificate of a plan; `least` says what is as small as can be, as in "no overlay weighs".

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

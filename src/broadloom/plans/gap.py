"""How far from the best possible."""


def gap_to(bound: float | None, objective: float) -> float | None:
    """How far at most the objective is above the best possible: (objective - bound) / bound.

    None if nothing is proven, or only that the objective is not below 0.

    Examples:
        >>> gap_to(4.0, 5.0), gap_to(0.0, 0.0), gap_to(0.0, 5.0), gap_to(None, 5.0)
        (0.25, 0.0, None, None)
    """
    if bound is None:
        return None
    if bound <= 0:
        return 0.0 if objective == 0 else None
    return (objective - bound) / bound

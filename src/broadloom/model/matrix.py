"""Measured matrices: two directions become one weight, and missing pairs are filled or refused."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from broadloom.checks import raise_for_first
from broadloom.errors import InputError


def symmetrised(matrix: NDArray[np.float64], how: str) -> NDArray[np.float64]:
    """One weight a pair: the mean, the smaller or the larger of its directions, or the one that is known."""
    rules: dict[str, Callable[..., NDArray[np.float64]]] = {
        "mean": lambda a, b: (a + b) / 2,
        "min": np.fmin,
        "max": np.fmax,
        "refuse": lambda a, _: a,
    }
    if how not in rules:
        raise InputError(f"no symmetric rule {how!r}; there are {', '.join(rules)}")
    one, other = matrix, matrix.T
    both = ~np.isnan(one) & ~np.isnan(other)
    known = np.where(np.isnan(one), other, one)
    return np.where(both, rules[how](one, other), known)


def fill_missing(
    matrix: NDArray[np.float64], how: str, names: Sequence[str] | None = None
) -> NDArray[np.float64]:
    """The matrix with its missing pairs (NaN) refused, or filled by the shortest path over the others."""
    if how not in ("refuse", "path"):
        raise InputError(f"no rule {how!r} for missing pairs; there are refuse, path")
    holes, n = np.isnan(matrix), len(matrix)
    np.fill_diagonal(holes, False)
    if not holes.any():
        return matrix
    if how == "path":
        from scipy.sparse.csgraph import csgraph_from_dense, shortest_path  # heavy, and rarely needed

        graph = csgraph_from_dense(np.where(holes, np.inf, matrix), null_value=np.inf)
        matrix = np.where(holes, shortest_path(graph, directed=False), matrix)
        holes = np.isinf(matrix)
    called = [str(i) for i in range(n)] if names is None else [repr(name) for name in names]
    raise_for_first(
        np.triu(holes).ravel(),
        lambda i: f"{called[i // n]} and {called[i % n]} have no latency",
        "measure them or fill missing pairs by path" if how == "refuse" else "no path joins them",
    )
    return matrix


def raised(matrix: NDArray[np.float64], floor: float | None) -> NDArray[np.float64]:
    """The matrix with values from 0 to below the floor raised to it; a negative one is refused."""
    if floor is None:
        return matrix
    if not (np.isfinite(floor) and floor > 0):
        raise InputError(f"floor is {floor}; give a finite number above 0")
    n = len(matrix)
    raise_for_first(
        (matrix < 0).ravel(),
        lambda i: f"latency of {i // n} and {i % n} is {matrix[i // n, i % n]}",
        "latencies are not negative",
    )
    return np.maximum(matrix, floor)

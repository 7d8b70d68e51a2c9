"""K-means: points into clusters, the same ones for the same seed."""

import numpy as np
from numpy.typing import NDArray

# Lloyd's rounds; clusters hardly change after so many.
ROUNDS = 20


def k_means(points: NDArray[np.float64], count: int, rng: np.random.Generator) -> NDArray[np.int32]:
    """The cluster of each point: Lloyd's rounds from centres drawn among the points.

    There are `count` clusters, or as many as points if these are fewer; a centre that no point is near stays
    where it is.

    Examples:
        >>> labels = k_means(np.array([[0.0], [1.0], [9.0]]), 2, np.random.default_rng(0))
        >>> bool(labels[0] == labels[1] != labels[2])
        True
    """
    from scipy.spatial import KDTree  # a heavy import

    points = points / max(np.abs(points).max(initial=0.0), np.finfo(float).tiny)  # squares must stay finite
    centres = points[rng.choice(len(points), min(count, len(points)), replace=False)]
    for _ in range(ROUNDS):
        nearest = KDTree(centres).query(points)[1]
        members = np.bincount(nearest, minlength=len(centres))
        for axis in range(points.shape[1]):
            total = np.bincount(nearest, weights=points[:, axis], minlength=len(centres))
            centres[:, axis] = np.where(members > 0, total / np.maximum(members, 1), centres[:, axis])
    return np.asarray(KDTree(centres).query(points)[1], np.int32)

"""K-means clustering, with the same clusters for the same seed."""

import numpy as np
from numpy.typing import NDArray

# Rounds of Lloyd's algorithm; clusters hardly change after that.
ROUNDS = 20


def k_means(points: NDArray[np.float64], count: int, rng: np.random.Generator) -> NDArray[np.int32]:
    """The cluster of each point, by Lloyd's algorithm from centres drawn among the points.

    There are `count` clusters, or one per point if there are fewer points; a centre without points stays
    unchanged.

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

"""K-means: points into a number of clusters, the same ones for the same seed."""

import numpy as np
from numpy.typing import NDArray

# Lloyd's rounds; clusters hardly change after so many.
ROUNDS = 20


def k_means(points: NDArray[np.float64], count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """The cluster of each point, 0 to `count` - 1; a cluster may stay empty.

    Example:
        >>> labels = k_means(np.array([[0.0], [1.0], [9.0]]), 2, np.random.default_rng(0))
        >>> bool(labels[0] == labels[1] != labels[2])
        True
    """
    middle = points[rng.choice(len(points), count, replace=count > len(points))]
    label = np.zeros(len(points), np.int64)
    for _ in range(ROUNDS):
        label = (np.sum(middle**2, axis=1) - 2 * points @ middle.T).argmin(axis=1)
        size, total = np.bincount(label, minlength=count), np.zeros_like(middle)
        np.add.at(total, label, points)
        middle[size > 0] = total[size > 0] / size[size > 0, None]
    return label

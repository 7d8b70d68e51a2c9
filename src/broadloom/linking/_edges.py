"""Lists of edges."""

import numpy as np
from numpy.typing import NDArray


def first_of_each(edges: NDArray[np.int32]) -> NDArray[np.int32]:
    """The edges without repetition, each where it first occurs.

    Examples:
        >>> first_of_each(np.array([(1, 2), (0, 1), (1, 2)], np.int32)).tolist()
        [[1, 2], [0, 1]]
    """
    codes = edges[:, 0].astype(np.int64) << 32 | edges[:, 1]
    return edges[np.sort(np.unique(codes, return_index=True)[1])]

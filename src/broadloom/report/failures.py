"""What happens if a broker fails: the repair that maintenance would make, worked out beforehand."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from broadloom.maintenance.maintain import maintain
from broadloom.model import Plan
from broadloom.progress import stage

# Repairs are worked out for so many brokers at most, the busiest: each costs a copy of the whole overlay.
MOST_REPAIRS = 250


def failures(plan: Plan, load: NDArray[np.int64], most: int = MOST_REPAIRS) -> dict[str, Any]:
    """The backups of brokers, and the links that would be added if one failed; of the `most` busiest.

    Args:
        plan: a plan that connects every topic.
        load: how busy each broker is.
        most: for how many brokers to work it out.

    Returns:
        `brokers` (indices, ascending), and for each of them its `backups` and the links `added`.

    Examples:
        >>> import broadloom as bl
        >>> plan = bl.link(bl.Interest.from_lists([[0], [0], [0]]), algorithm="gm")
        >>> failures(plan, plan.overlay.degrees(), most=1)
        {'brokers': [0], 'backups': [[1, 2]], 'added': [[[1, 2]]]}
    """
    chosen = np.sort(np.argsort(-load, kind="stable")[:most]).tolist()
    weights = None if plan.weights.is_uniform else plan.weights
    live = maintain(plan.interest, weights, edges=plan.edges)
    added = []
    with stage("failures", len(chosen)) as done:
        for i, broker in enumerate(chosen):
            added.append(deepcopy(live).leave(broker).added.tolist())
            done(i + 1)
    return {
        "brokers": chosen,
        "backups": [live.backups(broker).tolist() for broker in chosen],
        "added": added,
    }

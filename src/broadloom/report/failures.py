"""What happens if a broker fails: the repair that maintenance would make, worked out beforehand."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from broadloom.maintenance import maintain
from broadloom.plans import Plan
from broadloom.progress import stage

# Repairs are worked out for so many brokers at most, the busiest, and for fewer of very large overlays, since
# each costs a copy of the whole: so many brokers are copied in all.
MOST_REPAIRS, MOST_COPIED = 250, 500_000
# Backups are listed where there are so many brokers at most: each has dozens.
MOST_BROKERS = 5000


def failures(plan: Plan, load: NDArray[np.int64], most: int = MOST_REPAIRS) -> dict[str, Any]:
    """The backups of all brokers, and the links that would be added if one of the `most` busiest failed.

    Args:
        plan: the plan; nothing is worked out if it does not connect every topic.
        load: how busy each broker is.
        most: for how many brokers to work out the repair.

    Returns:
        `backups`, a list a broker, or None; `failures`, or None: `brokers` (ascending), and the links `added`
        for each of them.

    Examples:
        >>> import broadloom as bl
        >>> plan = bl.link(bl.Interest.from_lists([[0], [0], [0]]), algorithm="gm")
        >>> failures(plan, plan.overlay.degrees(), most=1)
        {'backups': [[1, 2], [0, 2], [0, 1]], 'failures': {'brokers': [0], 'added': [[[1, 2]]]}}
    """
    if not plan.is_topic_connected():
        return {"backups": None, "failures": None}
    weights = None if plan.weights.is_uniform else plan.weights
    live = maintain(plan.interest, weights, edges=plan.edges)
    most = min(most, MOST_COPIED // max(1, len(load)))
    chosen = np.sort(np.argsort(-load, kind="stable")[:most]).tolist()
    added = []
    with stage("failures", len(chosen)) as done:
        for i, broker in enumerate(chosen):
            added.append(deepcopy(live).leave(broker).added.tolist())
            done(i + 1)
    nodes = live.nodes.tolist()
    backups = [live.backups(node).tolist() for node in nodes] if len(nodes) <= MOST_BROKERS else None
    return {"backups": backups, "failures": {"brokers": chosen, "added": added}}

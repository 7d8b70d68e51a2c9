"""Plan of a running fleet as JSON values: subscriptions, links, and the weights between brokers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from broadloom.errors import InputError
from broadloom.model import Interest, Overlay, PublishedTopic, Publishers, Weights

if TYPE_CHECKING:
    from broadloom.plans import Plan


def plan_message(plan: Plan) -> dict[str, Any]:
    """A plan as JSON values; weights that are not all 1 as the rows of the lower triangle of their matrix.

    Examples:
        >>> import broadloom as bl
        >>> interest = Interest.from_lists([["a"], ["a"]], node_ids=["rome", "oslo"])
        >>> plan = bl.link(interest, Weights.dense([[0, 2.5], [2.5, 0]]), algorithm="gm")
        >>> message = plan_message(plan)
        >>> message["subscriptions"], message["links"], message["weights"]
        ({'rome': ['a'], 'oslo': ['a']}, [['rome', 'oslo']], [[], [2.5]])
        >>> plan_of_message(message).total_weight
        2.5
    """
    interest = plan.interest
    names = interest.node_ids
    rows = None
    if not plan.weights.is_uniform:
        matrix = plan.weights.matrix()
        rows = [row[:u].tolist() for u, row in enumerate(matrix)]
    return {
        "algorithm": plan.algorithm,
        "seed": plan.seed,
        "subscriptions": {
            name: [interest.topic_ids[topic] for topic in interest.topics_of(u)]
            for u, name in enumerate(names)
        },
        "links": [[names[u], names[v]] for u, v in plan.edges.tolist()],
        "weights": rows,
        "publishers": plan.publishers.mode,
        "observed": [list(row) for row in plan.publishers.observed],
    }


def plan_of_message(message: Mapping[str, Any]) -> Plan:
    """The plan of a message.

    Raises:
        InputError: the message is malformed.
    """
    from broadloom.plans import Plan

    try:
        rows = {str(name): list(map(str, topics)) for name, topics in message["subscriptions"].items()}
        names = list(rows)
        index = {name: u for u, name in enumerate(names)}
        interest = Interest.from_lists(list(rows.values()), node_ids=names)
        edges = [(index[u], index[v]) for u, v in message["links"]]
        weights = Weights.uniform(len(names))
        if message["weights"] is not None:
            matrix = np.zeros((len(names), len(names)))
            for u, row in enumerate(message["weights"]):
                matrix[u, :u] = matrix[:u, u] = row
            weights = Weights.dense(matrix)
        observed = [PublishedTopic(*row) for row in message["observed"]]
        return Plan(
            interest,
            weights,
            Overlay.from_edges(len(names), edges),
            str(message["algorithm"]),
            seed=message["seed"],
            publishers=Publishers(message["publishers"], observed),
        )
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise InputError(f"the plan of the controller is malformed: {error}"[:200]) from error

"""Linking from a previous plan: keep the links that still serve, complete them, improve; what changes."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from broadloom.linking._built import Built
from broadloom.linking._components import components_of
from broadloom.linking._keys import merge_by_key
from broadloom.linking.improvement import ROUNDS, improved_edges
from broadloom.linking.reverse_delete import rarest_first
from broadloom.model import Interest, Weights
from broadloom.plans import Plan


def warm_start(
    interest: Interest,
    weights: Weights,
    previous: Plan,
    max_degree: int | None = None,
    rounds: int = ROUNDS,
) -> Built:
    """The overlay of a previous plan, adapted to what is wanted and what links cost now.

    Nodes are matched by their ids. The links of the previous plan whose ends are still there and still share
    a topic are kept; grmaw goes on from there until every topic is connected; then the whole is improved.
    Where the previous links still connect every topic, the result is never heavier than they are.

    Args:
        interest: who wants what now.
        weights: what links cost now.
        previous: the plan that runs today.
        max_degree: exchanges keep this limit; links that are kept or needed to complete may exceed it.
        rounds: how often at most edges are exchanged, as in `improve`.
    """
    kept = still_useful(interest, previous)
    added = merge_by_key(components_of(interest, kept), weights.arrays())
    edges, used = improved_edges(interest, weights, np.concatenate((kept, added)), rounds, max_degree)
    return Built(edges, notes={"improvement_rounds": used})


def still_useful(interest: Interest, previous: Plan) -> NDArray[np.int32]:
    """The previous plan's links between nodes that are still there and share a topic, in today's indices."""
    index = {name: u for u, name in enumerate(interest.node_ids)}
    today = np.array([index.get(name, -1) for name in previous.interest.node_ids], np.int32)
    edges = np.sort(today[previous.edges], axis=1) if len(previous.edges) else previous.edges
    edges = edges[edges[:, 0] >= 0]
    wants = rarest_first(interest)
    return edges[(wants[edges[:, 0]] & wants[edges[:, 1]]).any(axis=1)]


class LinkChange(NamedTuple):
    """Which links a plan adds to those of another, and which it removes: pairs of node ids, in order."""

    added: list[tuple[str, str]]
    removed: list[tuple[str, str]]


def link_change(before: Plan, after: Plan) -> LinkChange:
    """What to do to get from one plan to another.

    Examples:
        >>> import broadloom as bl
        >>> interest = bl.Interest.from_lists([[0], [0], [0]], node_ids=["a", "b", "c"])
        >>> plans = [Plan(interest, Weights.uniform(3), bl.Overlay.from_edges(3, edges), "by hand")
        ...          for edges in ([(0, 1), (1, 2)], [(0, 1), (0, 2)])]
        >>> link_change(*plans)
        LinkChange(added=[('a', 'c')], removed=[('b', 'c')])
    """
    old, new = _named_links(before), _named_links(after)
    return LinkChange(
        [new[key] for key in new if key not in old], [old[key] for key in old if key not in new]
    )


def _named_links(plan: Plan) -> dict[frozenset[str], tuple[str, str]]:
    names = plan.interest.node_ids
    links = [(names[u], names[v]) for u, v in plan.edges.tolist()]
    return {frozenset(link): link for link in links}

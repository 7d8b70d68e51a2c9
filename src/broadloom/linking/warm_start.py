"""Warm start: the overlay of a previous plan, adapted to the interest and the weights of today."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from broadloom.linking._carried_division import Matching, carried_bound, match_interests
from broadloom.linking.greedy_overlays import GreedyOptions, grmaw, merge_by_weight
from broadloom.linking.guided_search import FIRST_STEPS
from broadloom.linking.lagrangian_bound import Ascent, can_visit_all_pairs
from broadloom.linking.link_result import LinkResult
from broadloom.linking.local_search import ROUNDS, improved_edges, topic_bits
from broadloom.linking.topic_components import components_of
from broadloom.model import Interest, Weights
from broadloom.plans import Plan, WeightDivision

# The most brokers that are new, gone or changed, as a share of all, for which no new plan is made.
FEW_CHANGES = 0.02
ALWAYS_FEW = 2


def warm_start(
    interest: Interest,
    weights: Weights,
    previous: Plan,
    max_degree: int | None = None,
    rounds: int = ROUNDS,
) -> LinkResult:
    """The overlay of a previous plan, adapted to the topics and weights of today.

    Nodes are matched by their ids. The links of the previous plan whose ends still exist and still share a
    topic are kept; grmaw continues from there until every topic is connected; then the overlay is improved.
    If the previous links still connect every topic, the result is never heavier than they are.

    Args:
        interest: the topics of each node today.
        weights: the weights of the links today.
        previous: the plan that runs today.
        max_degree: exchanges keep this limit; links that are kept or complete a topic can exceed it.
        rounds: the most rounds of exchange, as in `improve`.

    Returns:
        The edges, not yet verified; the notes have the number of rounds.
    """
    interest = interest.grouped()
    kept = still_useful(interest, previous)
    added = merge_by_weight(components_of(interest, kept), weights.arrays())
    edges, used = improved_edges(interest, weights, np.concatenate((kept, added)), rounds, max_degree)
    return LinkResult(edges, notes={"improvement_rounds": used})


def warm_start_nearby(
    interest: Interest, weights: Weights, previous: Plan, max_degree: int | None = None
) -> LinkResult | None:
    """The same if few brokers have changed, improved near these only, and with a lower bound.

    The bound is that of the division that the previous plan has proven, carried over to today; of a plan
    without one, a new bound. It is missing if the instance is too large for that.

    Returns:
        The edges, not yet verified; None if too many brokers have changed, or the limit on degrees is not
        met.
    """
    today = interest.grouped()
    before = previous.interest.grouped()
    matching = match_interests(before, today, moved_nodes(previous, today, weights))
    changed = matching.changed_nodes(before, today)
    index = _indices_today(today, previous)
    count = int(changed.sum()) + int((index < 0).sum())
    if count > max(ALWAYS_FEW, FEW_CHANGES * today.node_count):
        return None
    kept = still_useful(today, previous)
    added = merge_by_weight(components_of(today, kept), weights.arrays())
    lost = index[previous.edges]
    near = changed.copy()
    near[lost[(lost < 0).any(axis=1) & (lost >= 0).any(axis=1)].max(axis=1, initial=-1)] = True
    near[added] = True
    edges, used = improved_edges(today, weights, np.concatenate((kept, added)), ROUNDS, max_degree, near=near)
    if max_degree is not None and np.bincount(edges.ravel(), minlength=1).max() > max_degree:
        return None
    bound, division = _bound(today, weights, previous, matching)
    notes = {"method": "previous plan", "changed_brokers": count, "improvement_rounds": used}
    return LinkResult(edges, bound, notes, division)


def _indices_today(interest: Interest, previous: Plan) -> NDArray[np.int32]:
    """The index today of each node of the previous plan; -1 if it has left."""
    index = {name: u for u, name in enumerate(interest.node_ids)}
    return np.array([index.get(name, -1) for name in previous.interest.node_ids], np.int32)


def _bound(
    today: Interest, weights: Weights, previous: Plan, matching: Matching
) -> tuple[float | None, WeightDivision | None]:
    """A proven lower bound, and the division that proves it."""
    division = previous.division
    if division is not None and _belongs(division, previous):
        return carried_bound(division, today, weights, matching)
    if not can_visit_all_pairs(today):
        return None, None
    ascent = Ascent(today, weights, grmaw(today, weights, GreedyOptions(), 0).edges)
    ascent.climb_to(FIRST_STEPS)
    return ascent.certify(), ascent.division


def _belongs(division: WeightDivision, plan: Plan) -> bool:
    """Whether a division is that of the plan's own interest and weights."""
    return division.interest is plan.interest.grouped() and division.weights is plan.weights


def still_useful(interest: Interest, previous: Plan) -> NDArray[np.int32]:
    """The previous plan's links between nodes that still exist and share a topic, in today's indices."""
    today = _indices_today(interest, previous)
    edges = np.sort(today[previous.edges], axis=1) if len(previous.edges) else previous.edges
    edges = edges[edges[:, 0] >= 0]
    bits = topic_bits(interest.grouped())
    return edges[(bits[edges[:, 0]] & bits[edges[:, 1]]).any(axis=1)]


def moved_nodes(previous: Plan, interest: Interest, weights: Weights) -> NDArray[np.bool_]:
    """The nodes of today whose weights to other nodes of the previous plan are not what they were.

    If the weight of a pair has changed, one of its two nodes has moved: that with more such pairs.
    """
    old = previous.weights
    moved = np.zeros(interest.node_count, bool)
    if old is weights or (old.kind == weights.kind == "uniform"):
        return moved
    index = {name: u for u, name in enumerate(previous.interest.node_ids)}
    before = np.array([index.get(name, -1) for name in interest.node_ids], np.int64)
    known = np.flatnonzero(before >= 0)
    before = before[known]
    if old.kind != weights.kind:
        moved[known] = True
    elif weights.kind == "euclidean":
        same_space = old.points.shape[1] == weights.points.shape[1]
        moved[known] = not same_space or np.any(old.points[before] != weights.points[known], axis=1)
    elif weights.kind == "sites":
        same = (old.inner, old.outer) == (weights.inner, weights.outer)
        same = same and np.array_equal(old.table, weights.table)
        moved[known] = not same or old.site[before] != weights.site[known]
    else:
        _mark_moved(moved, known, old.table, before, weights.table)
    return moved


def _mark_moved(
    moved: NDArray[np.bool_],
    known: NDArray[np.int64],
    old: NDArray[np.float64],
    before: NDArray[np.int64],
    new: NDArray[np.float64],
) -> None:
    """Mark nodes until every pair whose weight has changed has one that is marked."""
    if not np.array_equal(before, np.arange(len(old))):
        old = old[np.ix_(before, before)]
    if not np.array_equal(known, np.arange(len(new))):
        new = new[np.ix_(known, known)]
    differs = old != new
    np.fill_diagonal(differs, False)
    pairs = differs.sum(axis=1)
    while pairs.any():
        worst = int(pairs.argmax())
        moved[known[worst]] = True
        pairs -= differs[worst]
        differs[worst] = False
        differs[:, worst] = False
        pairs[worst] = 0

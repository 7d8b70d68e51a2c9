"""Broadloom's own: greedy overlays guided by the trees of the Lagrangian bound, then edge exchange."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from broadloom.checks import check_count
from broadloom.errors import InputError
from broadloom.linking import greedy
from broadloom.linking._ascent import Ascent
from broadloom.linking._built import Built
from broadloom.linking._candidates import Candidates, candidates_of, codes_of
from broadloom.linking._exchange import Exchange
from broadloom.linking._list_greedy import list_greedy
from broadloom.linking.bounds import fits, lower_bound
from broadloom.linking.improvement import improved_edges
from broadloom.linking.reverse_delete import heaviest_first, reverse_delete
from broadloom.model import Interest, Weights
from broadloom.progress import stage

# How many steps the ascent has made after its first levels; each further one doubles them.
FIRST_STEPS, SECOND_STEPS = 16, 40
FIRST_SWEEPS = 5  # of annealing, likewise, from the second level on
# A candidate that the trees always use costs the greedy algorithm this much less than it weighs.
DISCOUNTS = (0.5, 0.7)
WORTH_IT = 2e-3  # the share of the weight that a round of exchanges must save for another one to follow
MOST_EFFORT = 20


@dataclass(frozen=True)
class GuidedOptions:
    """How hard to try.

    Attributes:
        effort: 1 takes some ten times as long as `grmaw`, and each further level twice as long as the one
            before. More effort never gives a heavier overlay.
        max_degree: no node gets more links than this; None: no limit. Below a limit the trees guide nothing:
            what `grmaw` builds is improved.
    """

    effort: int = 1
    max_degree: int | None = None

    def __post_init__(self) -> None:
        if check_count(self.effort, "effort", minimum=1) not in EFFORTS:
            raise InputError(f"effort is {self.effort!r}; give a whole number from 1 to {MOST_EFFORT}")
        if self.max_degree is not None:
            check_count(self.max_degree, "max_degree", minimum=1)


EFFORTS = range(1, MOST_EFFORT + 1)


def broadloom(interest: Interest, weights: Weights, options: GuidedOptions, seed: int) -> Built:
    """Follow the minimum spanning trees that the best lower bound is made of, then exchange edges.

    Each level climbs on to a better split of the weights, builds overlays from the candidates by `grmaw` at a
    discount for those that the trees use, and improves the best one. A higher effort does what a lower one
    does, and then goes on. The bound comes with the overlay.
    """
    overlay = greedy.grmaw(interest, weights, greedy.GreedyOptions(options.max_degree), seed).edges
    if not fits(interest):
        return _unguided(
            interest, weights, overlay, options, "the instance is too large for the guided search"
        )
    if options.max_degree is not None:
        return _unguided(interest, weights, overlay, options, "the guided search knows no maximum degree")
    best = overlay[reverse_delete(interest, overlay, heaviest_first(weights, overlay))]
    ascent = Ascent(interest, weights, overlay)
    rng = np.random.default_rng(seed)
    with stage("improve", options.effort) as done:
        for level in range(options.effort):
            ascent.climb_to(_steps(level))
            ascent.certify()
            best = _improved(interest, weights, best, ascent, rng, FIRST_SWEEPS << level if level else 0)
            done(level + 1)
    notes = {"method": "guided", "steps": ascent.steps, "candidates": len(ascent.candidates.weight)}
    return Built(best, ascent.bound, notes)


def _steps(level: int) -> int:
    """How many steps of the ascent there are after a level."""
    return SECOND_STEPS << (level - 1) if level else FIRST_STEPS


def _unguided(
    interest: Interest, weights: Weights, overlay: NDArray[np.int32], options: GuidedOptions, why: str
) -> Built:
    """The greedy overlay with edges exchanged, and a bound from as many topics as can be looked at."""
    best, _ = improved_edges(interest, weights, overlay, options.effort, options.max_degree)
    bound = lower_bound(interest, weights, iterations=_steps(options.effort - 1))
    return Built(best, bound, {"method": "grmaw and improvement", "why": why})


def _improved(
    interest: Interest,
    weights: Weights,
    best: NDArray[np.int32],
    ascent: Ascent,
    rng: np.random.Generator,
    sweeps: int,
) -> NDArray[np.int32]:
    """The lightest of the best overlay so far, those that the trees lead to, and what becomes of these."""
    pool, use = _pool(interest, weights, best, ascent)
    overlays = [Exchange(interest, pool, linked) for linked in _guided(interest, weights, pool, use)]
    leader = min(overlays, key=_total_weight)
    _descend(leader)
    incumbent = Exchange(interest, pool, _linked(pool, best, interest.node_count))
    leader = min(incumbent, leader, key=_total_weight)
    if sweeps:
        annealed = Exchange(interest, pool, leader.linked)
        annealed.anneal(sweeps, rng)
        _descend(annealed)
        leader = min(leader, annealed, key=_total_weight)
    return pool.edges[leader.linked]


def _pool(
    interest: Interest, weights: Weights, best: NDArray[np.int32], ascent: Ascent
) -> tuple[Candidates, NDArray[np.float64]]:
    """The candidates of the ascent together with the best overlay's edges, and how the trees use each."""
    n = interest.node_count
    known = codes_of(ascent.candidates.edges, n)
    codes = np.union1d(known, codes_of(best, n))
    use = np.zeros(len(codes))
    use[np.searchsorted(codes, known)] = ascent.edge_use()
    return candidates_of(interest, weights, codes), use


def _linked(pool: Candidates, edges: NDArray[np.int32], nodes: int) -> NDArray[np.bool_]:
    """Which of the pool are among the edges."""
    return np.isin(codes_of(pool.edges, nodes), codes_of(edges, nodes))


def _guided(
    interest: Interest, weights: Weights, pool: Candidates, use: NDArray[np.float64]
) -> Iterator[NDArray[np.bool_]]:
    """Overlays by `grmaw` and reverse delete over the pool, one for each discount."""
    for discount in DISCOUNTS:
        taken = list_greedy(pool, pool.weight * (1.0 - discount * use), interest.subscription_count)
        edges = pool.edges[taken]
        kept = reverse_delete(interest, edges, heaviest_first(weights, edges))
        linked = np.zeros(len(pool.weight), bool)
        linked[taken[kept]] = True
        yield linked


def _descend(overlay: Exchange) -> None:
    """Exchange edges for as long as it is worth it."""
    before = np.inf
    while overlay.total_weight < before * (1.0 - WORTH_IT):
        before = overlay.total_weight
        overlay.descend()


def _total_weight(overlay: Exchange) -> float:
    return overlay.total_weight

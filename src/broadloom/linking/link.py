"""The verb of linking: check, choose, run, verify, return."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from broadloom.checks import check_count, check_flag
from broadloom.errors import InputError
from broadloom.linking import ALGORITHMS
from broadloom.linking._given import fitting_weights
from broadloom.linking.improvement import degree_limit, refuse_stars
from broadloom.linking.improvement import improve as improved
from broadloom.linking.warm_start import link_change, warm_start
from broadloom.measures import is_topic_connected
from broadloom.model import Algorithm, Interest, Overlay, Weights, find_algorithm
from broadloom.plans import Plan


def link(
    interest: Interest,
    weights: Weights | None = None,
    algorithm: str | None = None,
    seed: int = 0,
    improve: bool = False,
    previous: Plan | None = None,
    **options: Any,
) -> Plan:
    """Build an overlay in which every topic's subscribers are connected among themselves.

    Args:
        interest: who wants what.
        weights: what links cost; None: all links weigh 1.
        algorithm: one of `broadloom.algorithms()` of the stage "link"; None: "broadloom", or "gm" where all
            links weigh the same.
        seed: the seed of the algorithms that draw lots.
        improve: drop and exchange edges afterwards, as `broadloom.improve` does.
        previous: the plan that runs today, whose nodes are matched by their ids. Its links are kept where
            they serve, completed and improved; the result is the lighter of this and of a fresh start, so
            never heavier than a previous plan that still connects every topic and keeps the limit on
            degrees, where there is one; `notes["changes"]` says which links to add and remove. Weight
            decides, whatever the algorithm aims at; a plan made from the previous one is named
            `<algorithm>+previous`.
        **options: the algorithm's own.

    Returns:
        A verified plan: its edges are in the order of selection.

    Raises:
        InputError: weights for another number of nodes, an unknown algorithm or option.

    Examples:
        >>> import broadloom as bl
        >>> bl.link(bl.Interest.from_lists([[0, 1], [1], [0, 1]]), algorithm="gm").edges.tolist()
        [[0, 2], [0, 1]]
    """
    weights, seed = fitting_weights(interest, weights), check_count(seed, "seed")
    if previous is not None and not isinstance(previous, Plan):
        raise InputError(f"previous is a {type(previous).__name__}; give a plan")
    check_flag(improve, "improve")
    chosen = find_algorithm(default_algorithm(weights) if algorithm is None else algorithm, ALGORITHMS)
    if improve or previous is not None:
        refuse_stars(chosen.name)
    return finish(run(chosen, interest, weights, seed, options), improve, previous)


def default_algorithm(weights: Weights) -> str:
    """The algorithm for those who do not name one."""
    return "gm" if weights.is_uniform else "broadloom"


def finish(plan: Plan, improve: bool, previous: Plan | None) -> Plan:
    """What `link` does after the algorithm: improve the plan, and start from the one that runs today."""
    if improve:
        plan = improved(plan)
    return plan if previous is None else _from_previous(plan, previous)


def _from_previous(fresh: Plan, previous: Plan) -> Plan:
    """The lighter of a fresh plan and the previous one's, adapted; with what changes."""
    limit = degree_limit(fresh)
    built = warm_start(fresh.interest, fresh.weights, previous, limit)
    overlay = Overlay.from_edges(fresh.interest.node_count, built.edges)
    adapted = replace(fresh, overlay=overlay, algorithm=f"{fresh.algorithm}+previous")
    if not adapted.is_topic_connected():
        raise RuntimeError("the warm start left a topic disconnected: this is a bug in Broadloom")
    fits = limit is None or adapted.overlay.degrees().max(initial=0) <= limit
    chosen = adapted if fits and adapted.total_weight <= fresh.total_weight else fresh
    changes = link_change(previous, chosen)._asdict()
    start = "previous" if chosen is adapted else "fresh"
    return replace(chosen, notes={**chosen.notes, "start": start, "changes": changes})


def run(
    algorithm: Algorithm, interest: Interest, weights: Weights, seed: int, options: Mapping[str, Any]
) -> Plan:
    """A verified plan of one algorithm, which may be another engine's way to run one of the list."""
    settings = algorithm.with_options(options, ALGORITHMS)
    built = algorithm.run(interest, weights, settings, seed)
    overlay = Overlay.from_edges(interest.node_count, built.edges)
    if not is_topic_connected(interest, overlay):
        raise RuntimeError(f"{algorithm.name} left a topic disconnected: this is a bug in Broadloom")
    made = vars(settings), built.lower_bound, built.notes
    return Plan(interest, weights, overlay, algorithm.name, seed, *made)

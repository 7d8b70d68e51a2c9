"""Public functions of linking: `link`, `improve`, `lower_bound`, `link_change`."""

import math
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from broadloom.checks import check_count, check_flag, check_instance, check_number
from broadloom.errors import InputError, InternalError
from broadloom.linking._ties import TieOptions
from broadloom.linking.degree_and_diameter import (
    LowDegreeOptions,
    cd_oda,
    cd_oda_1,
    cd_oda_2,
    low_oda,
    minmax_oda,
)
from broadloom.linking.divide_and_conquer import DivideOptions, dcmaw
from broadloom.linking.exact_overlay import ExactOptions, exact
from broadloom.linking.greedy_overlays import GreedyOptions, gm, grmaw
from broadloom.linking.guided_search import GuidedOptions, broadloom
from broadloom.linking.lagrangian_bound import lagrangian_bound
from broadloom.linking.link_result import LinkResult
from broadloom.linking.local_search import ROUNDS, improved_edges
from broadloom.linking.primal_dual import pdmaw, pdrdmaw
from broadloom.linking.topic_trees import TreeOptions, trmaw
from broadloom.linking.warm_start import warm_start, warm_start_nearby
from broadloom.measures import is_topic_connected
from broadloom.model import Algorithm, Interest, Overlay, Publishers, Weights, find_algorithm
from broadloom.plans import Plan


def link(
    interest: Interest,
    weights: Weights | None = None,
    algorithm: str | None = None,
    seed: int = 0,
    improve: bool = False,
    previous: Plan | None = None,
    publishers: Publishers | None = None,
    **options: Any,
) -> Plan:
    """Build an overlay in which every topic's subscribers are connected among themselves.

    Args:
        interest: the topics of each node. Topic filters and topics that overlap are connected as one topic
            (`Interest.grouped`); the plan keeps the interest as it is.
        weights: the weights of the links; None: all links weigh 1.
        algorithm: one of `broadloom.algorithms("link")`; None: "broadloom", or "gm" if all
            links weigh the same.
        seed: the seed of the algorithms that use random numbers.
        improve: remove and exchange edges afterwards, as `broadloom.improve` does.
        previous: the plan that runs today; its nodes are matched by their ids. Its links between nodes that
            still share a topic are kept, completed and improved; the result is named
            `<algorithm>+previous`. A new plan is made, too, and returned if it is lighter. So the result is
            never heavier than a previous plan that still connects every topic and keeps the limit on
            degrees. To save nine tenths of the time, no new plan is made if both are by broadloom, at most
            2 % of the brokers have changed, and `effort`, `seconds` and `gap` are not given.
            `notes["changes"]` lists the links to add and to remove.
        publishers: where clients publish; None: at any broker. It decides which one-way links a deployment
            adds, and `Plan.not_carried`; the links between brokers that want a topic do not depend on it.
        **options: the options of the algorithm.

    Returns:
        A verified plan; its edges are in the order of selection.

    Raises:
        InputError: weights for another number of nodes, an unknown algorithm or option.

    Examples:
        >>> import broadloom as bl
        >>> bl.link(bl.Interest.from_lists([[0, 1], [1], [0, 1]]), algorithm="gm").edges.tolist()
        [[0, 2], [0, 1]]
    """
    weights = fitting_weights(interest, weights)
    seed = check_count(seed, "seed")
    if previous is not None and not isinstance(previous, Plan):
        raise InputError(f"previous is a {type(previous).__name__}; give a plan")
    if publishers is not None:
        check_instance(publishers, Publishers, "publishers", "make them with Publishers")
    check_flag(improve, "improve")
    chosen = find_algorithm(default_algorithm(weights) if algorithm is None else algorithm, ALGORITHMS)
    if improve or previous is not None:
        refuse_stars(chosen.name)
    plan = None
    if previous is not None and not improve:
        plan = _nearby(chosen, interest, weights, seed, options, previous)
    if plan is None:
        plan = finish(run(chosen, interest, weights, seed, options), improve, previous)
    return plan if publishers is None else replace(plan, publishers=publishers)


def fitting_weights(interest: Interest, weights: Weights | None) -> Weights:
    """The weights, or all 1 if they are None, after a check of the types and the number of nodes."""
    if not isinstance(interest, Interest):
        raise InputError(f"the interest is a {type(interest).__name__}; make one with Interest.from_lists")
    if weights is None:
        return Weights.uniform(interest.node_count)
    if not isinstance(weights, Weights):
        raise InputError(f"the weights are a {type(weights).__name__}; make them with Weights.dense")
    if weights.node_count != interest.node_count:
        raise InputError(
            f"{interest.node_count:,} nodes but weights for {weights.node_count:,}; give the same number"
        )
    return weights


def default_algorithm(weights: Weights) -> str:
    """The name of the algorithm to use if the caller does not name one."""
    return "gm" if weights.is_uniform else "broadloom"


def run(
    algorithm: Algorithm, interest: Interest, weights: Weights, seed: int, options: Mapping[str, Any]
) -> Plan:
    """A verified plan of one algorithm: an entry of `ALGORITHMS`, or a copy of it with another `run`."""
    settings = algorithm.with_options(options, ALGORITHMS)
    result = algorithm.run(interest.grouped(), weights, settings, seed)
    return _verified(result, interest, weights, algorithm.name, seed, vars(settings))


def _verified(
    result: LinkResult, interest: Interest, weights: Weights, name: str, seed: int, options: Mapping[str, Any]
) -> Plan:
    """The plan of a result, after a check that it connects every topic."""
    overlay = Overlay.from_edges(interest.node_count, result.edges)
    if not is_topic_connected(interest, overlay):
        raise InternalError(f"{name} left a topic disconnected; please report this")
    bound, notes, division = result.lower_bound, result.notes, result.division
    return Plan(interest, weights, overlay, name, seed, options, bound, notes, division=division)


def _nearby(
    algorithm: Algorithm,
    interest: Interest,
    weights: Weights,
    seed: int,
    options: Mapping[str, Any],
    previous: Plan,
) -> Plan | None:
    """A plan of broadloom from a previous one of its own, by a search near the few brokers that have changed.

    None if it is another algorithm, too many have changed, or a longer search is asked for.
    """
    if not algorithm.name == previous.algorithm.split("+")[0] == "broadloom":
        return None
    settings = algorithm.with_options(options, ALGORITHMS)
    if any(getattr(settings, name) is not None for name in ("effort", "seconds", "gap")):
        return None
    result = warm_start_nearby(interest, weights, previous, settings.max_degree)
    if result is None:
        return None
    plan = _verified(result, interest, weights, f"{algorithm.name}+previous", seed, vars(settings))
    changes = link_change(previous, plan)._asdict()
    return replace(plan, notes={**plan.notes, "start": "previous", "changes": changes})


def finish(plan: Plan, improve: bool, previous: Plan | None) -> Plan:
    """The plan after the last steps of `link`: improvement, and the comparison with the previous plan."""
    if improve:
        plan = _improve(plan)
    return plan if previous is None else _from_previous(plan, previous)


def improve(plan: Plan, *, exchange: bool = True, rounds: int = ROUNDS, seconds: float | None = None) -> Plan:
    """Make a plan lighter, by removing and exchanging links; every topic stays connected.

    Reverse delete removes redundant edges, heaviest first. Then, in rounds, pairs are linked that can replace
    heavier edges, and these are removed, until a round saves nothing. The plan's option `max_degree` is kept;
    a plan of low-oda or minmax-oda keeps its maximum degree. Every run gives the same plan.

    Args:
        plan: a topic-connected plan.
        exchange: whether edges are exchanged; otherwise they are only removed.
        rounds: the most rounds of exchange.
        seconds: no round starts after this time; with a limit, runs can give different plans.

    Returns:
        A plan with `notes["improvement"]`: the number of rounds, the weight before, the time limit.

    Raises:
        InputError: a topic of the plan is not connected, or `rounds` or `seconds` is negative.

    Examples:
        >>> import broadloom as bl
        >>> weights = bl.Weights.euclidean([[0], [1], [2]])
        >>> overlay = bl.Overlay.from_edges(3, [[0, 2], [1, 2]])
        >>> plan = bl.Plan(bl.Interest.from_lists([[0]] * 3), weights, overlay, "by hand")
        >>> improve(plan).edges.tolist()
        [[1, 2], [0, 1]]
    """
    if not isinstance(plan, Plan):
        raise InputError(f"the plan is a {type(plan).__name__}; give what bl.link or Plan.load returns")
    rounds = check_count(rounds, "rounds")
    check_flag(exchange, "exchange")
    if seconds is not None:
        check_number(seconds, "seconds")
    if not plan.is_topic_connected():
        raise InputError("the plan leaves a topic disconnected; improve a plan that connects every topic")
    edges, used = improved_edges(
        plan.interest.grouped(),
        plan.weights,
        plan.edges,
        rounds if exchange else 0,
        max_degree=degree_limit(plan),
        seconds=seconds,
    )
    report = {"rounds": used, "weight_before": plan.total_weight, "seconds": seconds}
    better = replace(
        plan,
        overlay=Overlay.from_edges(plan.interest.node_count, edges),
        algorithm=f"{plan.algorithm}+improve",
        notes={**plan.notes, "improvement": report},
    )
    if not better.is_topic_connected():
        raise InternalError("improvement left a topic disconnected; please report this")
    return better


_improve = improve  # `link` has an argument of this name


def degree_limit(plan: Plan) -> int | None:
    """The most links per node that improvement keeps; None: no limit.

    It is the plan's option `max_degree`, or the maximum degree of a plan that was made for low degrees.

    Raises:
        InputError: the plan was made for a low diameter, which exchanges do not keep.
    """
    made_by = plan.algorithm.split("+")[0]
    refuse_stars(made_by)
    limit = plan.options.get("max_degree")
    if limit is None and made_by in ("low-oda", "minmax-oda"):
        return int(plan.overlay.degrees().max(initial=0))
    return limit


def refuse_stars(algorithm: str) -> None:
    """Raise an `InputError` for an algorithm whose plans cannot be improved: the stars of cd-oda."""
    if algorithm.startswith("cd-oda"):
        raise InputError(
            f"{algorithm} makes stars, and exchanges would raise their diameter; "
            "link without improve and previous"
        )


def _from_previous(fresh: Plan, previous: Plan) -> Plan:
    """The lighter of the fresh plan and the adapted previous one, with the changes in its notes."""
    limit = degree_limit(fresh)
    result = warm_start(fresh.interest, fresh.weights, previous, limit)
    overlay = Overlay.from_edges(fresh.interest.node_count, result.edges)
    adapted = replace(fresh, overlay=overlay, algorithm=f"{fresh.algorithm}+previous")
    if not adapted.is_topic_connected():
        raise InternalError("the warm start left a topic disconnected; please report this")
    fits = limit is None or adapted.overlay.degrees().max(initial=0) <= limit
    chosen = adapted if fits and adapted.total_weight <= fresh.total_weight else fresh
    changes = link_change(previous, chosen)._asdict()
    start = "previous" if chosen is adapted else "fresh"
    return replace(chosen, notes={**chosen.notes, "start": start, "changes": changes})


class LinkChange(NamedTuple):
    """The links to add and to remove between two plans: pairs of node ids, in the order of each plan."""

    added: list[tuple[str, str]]
    removed: list[tuple[str, str]]


def link_change(before: Plan, after: Plan) -> LinkChange:
    """The links to add and to remove to get from one plan to another.

    Examples:
        >>> import broadloom as bl
        >>> interest = bl.Interest.from_lists([[0], [0], [0]], node_ids=["a", "b", "c"])
        >>> plans = [Plan(interest, Weights.uniform(3), bl.Overlay.from_edges(3, edges), "by hand")
        ...          for edges in ([(0, 1), (1, 2)], [(0, 1), (0, 2)])]
        >>> link_change(*plans)
        LinkChange(added=[('a', 'c')], removed=[('b', 'c')])
    """
    for plan in (before, after):
        check_instance(plan, Plan, "a plan", "give what bl.link or Plan.load returns")
    names = (before.interest.node_ids, after.interest.node_ids)
    index = {name: u for u, name in enumerate(dict.fromkeys(names[0] + names[1]))}
    old, new = (_link_codes(plan, index) for plan in (before, after))
    return LinkChange(
        _named_links(after, ~np.isin(new, old)),
        _named_links(before, ~np.isin(old, new)),
    )


def _link_codes(plan: Plan, index: Mapping[str, int]) -> NDArray[np.int64]:
    """A number for each link of a plan, from the indices of both its ends in either order."""
    ends = np.array([index[name] for name in plan.interest.node_ids], np.int64)[plan.edges]
    return ends.min(axis=1, initial=len(index)) * len(index) + ends.max(axis=1, initial=0)


def _named_links(plan: Plan, chosen: NDArray[np.bool_]) -> list[tuple[str, str]]:
    """Some links of a plan as pairs of node ids."""
    names = plan.interest.node_ids
    return [(names[u], names[v]) for u, v in plan.edges[chosen].tolist()]


def lower_bound(
    interest: Interest,
    weights: Weights | None = None,
    *,
    iterations: int = 200,
    seconds: float | None = None,
) -> float:
    """A proven lower bound on the total weight of a topic-connected overlay.

    The Lagrangian bound: split each edge's weight over the topics that its ends share, and sum the topics'
    minimum spanning trees. More iterations give a better split. If the instance is too large to visit all
    pairs of all topics, only the smallest topics count, and the bound is weaker.

    Args:
        interest: the topics of each node; topic filters and topics that overlap count as one topic.
        weights: the weights of the links; None: all links weigh 1, and the bound is on the number of links.
        iterations: the number of steps of the ascent.
        seconds: make no further step after this time; then the result depends on the machine. The time for
            the first overlay and for the proof at the end is not limited.

    Returns:
        The best bound that was proven; 0 if there is nothing to connect.

    Raises:
        InputError: weights for another number of nodes, or a limit that is negative.

    Examples:
        >>> interest = Interest.from_lists([[0, 1], [0], [0, 1]])
        >>> round(lower_bound(interest, Weights.uniform(3)), 4)
        2.0
    """
    weights = fitting_weights(interest, weights)
    iterations = check_count(iterations, "iterations")
    deadline = math.inf if seconds is None else time.monotonic() + check_number(seconds, "seconds")
    return lagrangian_bound(
        interest.grouped(), weights, iterations, until=lambda: time.monotonic() > deadline
    )


ALGORITHMS: tuple[Algorithm, ...] = (
    Algorithm(
        "broadloom",
        "link",
        "ours",
        "total weight",
        "greedy guided by the trees of the lower bound, then edge exchange",
        broadloom,
        GuidedOptions,
    ),
    Algorithm(
        "trmaw",
        "link",
        "1, Alg. 1",
        "total weight",
        "a minimum spanning tree for each topic",
        trmaw,
        TreeOptions,
    ),
    Algorithm(
        "gm",
        "link",
        "1 and 2",
        "edges",
        "add the edge with the highest contribution",
        gm,
        GreedyOptions,
    ),
    Algorithm(
        "grmaw",
        "link",
        "1, Alg. 2",
        "total weight",
        "add the edge with the lowest weight per contribution",
        grmaw,
        GreedyOptions,
    ),
    Algorithm(
        "pdmaw",
        "link",
        "1, Alg. 4",
        "total weight",
        "add the edge with the lowest residual per contribution; with a proven bound",
        pdmaw,
    ),
    Algorithm(
        "pdrdmaw",
        "link",
        "1, Alg. 5",
        "total weight",
        "pdmaw, then remove the redundant edges",
        pdrdmaw,
    ),
    Algorithm(
        "dcmaw",
        "link",
        "1, Alg. 6",
        "total weight",
        "divide, conquer each part, combine over representatives; for very many nodes",
        dcmaw,
        DivideOptions,
    ),
    Algorithm(
        "minmax-oda",
        "link",
        "2, I-B",
        "maximum degree",
        "add the highest contribution among the edges that raise the maximum degree least",
        minmax_oda,
        TieOptions,
    ),
    Algorithm(
        "low-oda",
        "link",
        "2, Alg. 1; 3, Alg. 2",
        "maximum and average degree",
        "as minmax-oda, unless its edge is more than k times worse than the best",
        low_oda,
        LowDegreeOptions,
    ),
    Algorithm(
        "cd-oda",
        "link",
        "2, VI",
        "degree at diameter 2",
        "stars around the node that shares topics with the most nodes",
        cd_oda,
        TieOptions,
    ),
    Algorithm(
        "cd-oda-1",
        "link",
        "2, VI-A",
        "degree at diameter 2",
        "stars around the node whose topics have the most subscribers",
        cd_oda_1,
        TieOptions,
    ),
    Algorithm(
        "cd-oda-2",
        "link",
        "2, VI-B",
        "degree at diameter 2",
        "stars around the node with the most subscribers per neighbour",
        cd_oda_2,
        TieOptions,
    ),
    Algorithm(
        "exact",
        "link",
        "ours",
        "total weight",
        "the least total weight, by integer programming; for small instances",
        exact,
        ExactOptions,
    ),
)

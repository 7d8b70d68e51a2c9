"""Methods of maintenance, their options, and the function that starts one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from broadloom.checks import (
    and_more,
    check_choice,
    check_count,
    check_ids,
    check_number,
    seeded_generator,
    shown,
)
from broadloom.errors import InputError
from broadloom.kernels import always_compiled
from broadloom.linking import fitting_weights
from broadloom.maintenance._overlay_arrays import OverlayContents
from broadloom.maintenance._repair import RepairRules
from broadloom.maintenance.carry_ledger import CarryLedger
from broadloom.maintenance.dynamics import OverlayDynamics, Snapshot, fresh_edges, weights_with_capacity
from broadloom.maintenance.filter_groups import group_of_topics, grouped_rows, rows_by_node
from broadloom.maintenance.live import Live, OverlayNames
from broadloom.maintenance.node_columns import IDS_NOTE, columns_of, sites_of
from broadloom.measures import disconnected_topics
from broadloom.model import (
    Algorithm,
    Interest,
    LinkProblem,
    Overlay,
    Weights,
    find_algorithm,
    read_link_problem,
)
from broadloom.plans import Plan
from broadloom.progress import stage

if TYPE_CHECKING:
    import pyarrow as pa

# In the order of the numbers that kernels take.
BACKUPS = ("primal-dual", "greedy", "primal-dual-printed", "greedy-unweighted")


@dataclass(frozen=True)
class NaiveOptions:
    """Options of the naive dynamics.

    Reference: Chen, Jacobsen and Vitenberg, technical report, 2011 (paper 3), Alg. 3 and 4.

    Attributes:
        rho: how many times worse than the best link the chosen one can be, to keep the maximum degree low:
            `k` of low-oda. It has no effect if links have weights.
    """

    rho: float = 3

    def __post_init__(self) -> None:
        check_number(self.rho, "rho", minimum=1, finite=False)

    def rules(self, by_weight: bool) -> RepairRules:
        """The options in the form that kernels take."""
        return RepairRules(True, 0, by_weight, float(self.rho), 0)


@dataclass(frozen=True)
class ShadowOptions(NaiveOptions):
    """Options of the shadow dynamics.

    Reference: Chen, Jacobsen and Vitenberg, technical report, 2011 (paper 3), Alg. 6 to 12.

    Attributes:
        rho: as for the naive dynamics.
        coverage: how often the backups of a node cover each of its topics; a larger number means lower
            degrees and slower changes.
        backups: the rule that chooses them: "primal-dual" (Alg. 12, spreads the load), "greedy" (Alg. 11,
            chooses fewer), "primal-dual-printed" (line 8 of Alg. 12 as printed: no free choices), or
            "greedy-unweighted" (Alg. 11 with equal weights: most covered topics first, for comparison).
    """

    coverage: int = 3
    backups: str = "primal-dual"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count(self.coverage, "coverage", minimum=1)
        check_choice(self.backups, "backups", BACKUPS)

    def rules(self, by_weight: bool) -> RepairRules:
        """The options in the form that kernels take."""
        cover = BACKUPS.index(self.backups)
        return RepairRules(False, cover, by_weight, float(self.rho), self.coverage)


# `run` turns the options, and whether links have weights, into rules; `Live` does the rest.
METHODS: tuple[Algorithm, ...] = (
    Algorithm(
        "shadow",
        "maintain",
        "3, Alg. 6 to 10",
        "repair time and degrees",
        "repair among the neighbours and backups of the node that changes",
        ShadowOptions.rules,
        ShadowOptions,
    ),
    Algorithm(
        "naive",
        "maintain",
        "3, Alg. 3 and 4",
        "degrees",
        "repair among all nodes",
        NaiveOptions.rules,
        NaiveOptions,
    ),
)


def options_of(method: str, **options: Any) -> NaiveOptions:
    """The checked options of a method."""
    return find_algorithm(method, METHODS).with_options(options)


def maintain(
    interest: Interest | Plan,
    weights: Weights | None = None,
    algorithm: str | None = None,
    rho: float = 3,
    coverage: int = 3,
    seed: int = 0,
    edges: ArrayLike | None = None,
    backups: str = "primal-dual",
    sites: Sequence[str] = (),
    method: str | None = None,
) -> Live:
    """Keep an overlay topic-connected while nodes join, leave and change their topics, without a rebuild.

    Reference: Chen, Jacobsen and Vitenberg, technical report, 2011 (paper 3), Alg. 3, 4 and 6 to 12.

    Args:
        interest: the topics of each node at the start; or a plan to start from: its interest, its weights,
            its links, the names of its sites, all columns of its nodes, such as addresses, its publishers,
            and what it does not carry.
        weights: the costs of links. With weights, links are chosen by weight per contribution, as in grmaw,
            and a node that joins needs a position. None: those of the plan; without a plan all links weigh 1,
            and degrees stay low, as in low-oda.
        algorithm: "shadow" (repairs among few nodes, in microseconds; the default) or "naive" (among all
            nodes).
        rho: how many times worse than the best link the chosen one can be, to keep the maximum degree low.
        coverage: for "shadow": how often the backups of a node cover each of its topics.
        seed: the seed of the choice of backups.
        edges: the links to start from, pairs of node indices; None: those of the plan, or without a plan
            those of a fresh build.
        backups: for "shadow": the rule that chooses backups, "primal-dual", "greedy",
            "primal-dual-printed" or "greedy-unweighted".
        sites: for weights by site: the name of each site, by number, so that a join can name one.
        method: an older name of `algorithm`.

    Returns:
        The live overlay; see `broadloom.Live`.

    Raises:
        InputError: the edges leave a topic disconnected, an option is wrong, or `algorithm` and `method`
            differ.

    Examples:
        >>> import broadloom as bl
        >>> live = bl.maintain(bl.Interest.from_lists([[0, 1], [1], [0, 1]]))
        >>> change = live.join([0, 1])
        >>> change.node, change.added.tolist()
        (3, [[2, 3]])
        >>> plan = bl.link(bl.Interest.from_lists([[0], [0], [0]]), bl.Weights.euclidean([[0], [2], [3]]))
        >>> bl.maintain(plan).join([0], at=[3.5]).added.tolist()
        [[2, 3]]
    """
    chosen = one_algorithm(algorithm, method)
    columns = None
    carry = None
    if isinstance(interest, Plan):
        plan, interest = interest, interest.interest
        sites = sites or (sites_of(plan) if weights is None else ())
        weights = plan.weights if weights is None else weights
        edges = plan.edges if edges is None else edges
        carry = CarryLedger(plan.publishers, plan.not_carried.subscriptions, interest.node_ids)
        columns = columns_of(plan.nodes, earlier="changes" in plan.notes and IDS_NOTE not in plan.notes)
    link_weights = fitting_weights(interest, weights)
    seed = check_count(seed, "seed")
    _check_sites(link_weights, sites)
    options_of(
        "shadow", rho=rho, coverage=coverage, backups=backups
    )  # checked even if the algorithm ignores them
    shadow_options = {"coverage": coverage, "backups": backups} if chosen != "naive" else {}
    options = options_of(chosen, rho=rho, **shadow_options)
    rules = options.rules(by_weight=not link_weights.is_uniform)
    with stage("fresh build"):
        links = (
            fresh_edges(interest.grouped(), link_weights, rules)
            if edges is None
            else _check_edges(interest, edges)
        )
    nodes = np.arange(interest.node_count)
    random_state = int(seeded_generator(seed).integers(2**64, dtype=np.uint64))
    no_backups = np.empty((0, 2), np.int32)
    group_of = group_of_topics(interest) if interest.has_filters else None
    topics = grouped_rows(interest, group_of)
    contents = OverlayContents(topics.start, topics.topics, links, no_backups, random_state)
    present = Snapshot(nodes, contents, weights_with_capacity(link_weights.arrays(), nodes, len(nodes)))
    dynamics = OverlayDynamics(rules, present, interest.topic_count, interest.node_count)
    dynamics.build_backups()
    names = OverlayNames(
        interest.topic_ids,
        dict(enumerate(interest.node_ids)),
        sites,
        columns,
        carry,
        None if group_of is None else rows_by_node(nodes.tolist(), interest.topic_start, interest.topics),
        group_of,
    )
    return Live(dynamics, chosen, options, seed, names, Counter())


def maintain_folders(
    tables: Path | None, plan: Path | None = None, weights: str | None = None, **options: Any
) -> Live:
    """Start maintenance from a folder of canonical tables, from a plan, or from both if they agree.

    Args:
        tables: the folder of tables; None: the plan has everything.
        plan: the folder of the plan; None: links of a fresh build.
        weights: the source of the weights: "plan", or one of `read_link_problem`. None: "plan" if there is a
            plan, else "auto".
        **options: options of `maintain`.

    Raises:
        InputError: there is neither, they differ, or one of them lacks what the weights need.
    """
    if plan is None:
        if tables is None:
            raise InputError("there are no tables and no plan; give a folder of tables, or a plan")
        if weights == "plan":
            raise InputError("the weights come from the plan, but there is no plan; give one")
        problem = read_link_problem(tables, weights or "auto")
        live = maintain(problem.interest, problem.weights, sites=problem.sites, **options)
        live._columns = columns_of(problem.nodes)
        live._carry = CarryLedger(None, problem.not_carried, problem.interest.node_ids)
        return live
    loaded = Plan.load(plan)
    if tables is None:
        if weights not in (None, "plan", "auto", "uniform"):
            raise InputError(
                f"weights from {weights} need the folder of tables; give it, or leave the weights of the plan"
            )
        uniform = Weights.uniform(loaded.interest.node_count) if weights == "uniform" else None
        return maintain(loaded, uniform, **options)
    own = weights in (None, "plan")
    problem = read_link_problem(tables, "uniform" if own else str(weights))
    start = replace(loaded, nodes=_agreed_nodes(loaded, problem, plan, tables))
    if own:
        return maintain(start, **options)
    return maintain(start, problem.weights, sites=problem.sites, **options)


def _agreed_nodes(plan: Plan, problem: LinkProblem, plan_path: Path, tables: Path) -> pa.Table:
    """The nodes of a plan with the columns that only the tables have; raises if the two differ."""
    interest = problem.interest
    if plan.interest.node_ids != interest.node_ids:
        raise InputError(f"{plan_path} has other nodes than the tables; link the tables first")
    pairs = [
        sorted(zip(*(table.column(name).to_pylist() for name in ("node", "topic")), strict=True))
        for table in (plan.interest.to_table(), interest.to_table())
    ]
    if pairs[0] != pairs[1]:
        (node, topic), *_ = sorted(set(pairs[0]) ^ set(pairs[1]))
        raise InputError(
            f"{plan_path} and {tables} differ: only one of them has topic {topic!r} at node {node!r}; "
            "link the tables first, or leave the tables out"
        )
    nodes = problem.nodes if plan.nodes is None else plan.nodes
    for name in problem.nodes.column_names:
        column = problem.nodes.column(name)
        if name not in nodes.column_names:
            nodes = nodes.append_column(name, column)
            continue
        rows = zip(interest.node_ids, nodes.column(name).to_pylist(), column.to_pylist(), strict=True)
        node = next((node for node, one, other in rows if one != other), None)
        if node is not None:
            raise InputError(
                f"{plan_path} and {tables} have different values of {name!r} for node {node!r}; "
                "link the tables first, or leave the tables out"
            )
    return nodes


def one_algorithm(algorithm: str | None, method: str | None) -> str:
    """The name of the algorithm, given by `algorithm` or by its older name `method`; "shadow" by default.

    Examples:
        >>> one_algorithm(None, "naive"), one_algorithm(None, None)
        ('naive', 'shadow')
        >>> one_algorithm("shadow", "naive")
        Traceback (most recent call last):
        broadloom.errors.InputError: algorithm is 'shadow' but method is 'naive'; give only algorithm
    """
    for name, value in (("algorithm", algorithm), ("method", method)):
        if not (value is None or isinstance(value, str)):
            raise InputError(f"{name} is {shown(value)}; give the name of an algorithm")
    if algorithm is not None and method is not None and algorithm != method:
        raise InputError(f"algorithm is {algorithm!r} but method is {method!r}; give only algorithm")
    chosen = method if algorithm is None else algorithm
    return "shadow" if chosen is None else chosen


def _check_sites(weights: Weights, sites: Sequence[str]) -> None:
    """Check that there are weights by site, and a unique name for each site."""
    check_ids(sites, "site")
    if sites and weights.kind != "sites":
        raise InputError(f"there are names of sites, but the weights are {weights.kind}; leave them out")
    count = max(len(weights.table), int(weights.site.max(initial=-1)) + 1)
    if sites and (len(set(sites)) < len(sites) or len(sites) < count):
        raise InputError(f"there are {len(set(sites))} names for {count} sites; give each a name of its own")


def _check_edges(interest: Interest, edges: ArrayLike) -> np.ndarray:
    """The links to start from, if they connect every topic."""
    links = Overlay.from_edges(interest.node_count, edges).edges
    broken = disconnected_topics(interest, links)
    if len(broken):
        topic = interest.topic_ids[broken[0]]
        raise InputError(
            f"the edges leave topic {topic!r} disconnected{and_more(len(broken) - 1)}; "
            "start from a topic-connected overlay, or leave the edges out"
        )
    return links


def load_kernels() -> None:
    """Compile the kernels of changes, or load them from disk, so that the first change is not slow."""
    small = Interest.from_lists([[0, 1], [0, 1], [1], [0]])
    with always_compiled():
        for algorithm in ("shadow", "naive"):
            live = maintain(small, algorithm=algorithm, edges=[(0, 1), (0, 2), (0, 3)])
            live.join([0, 1])
            live.resubscribe(1, [1])
            live.leave(0)

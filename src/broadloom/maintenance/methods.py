"""Methods of maintenance, their options, and the function that starts one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from broadloom.checks import and_more, check_count, check_number, seeded_generator
from broadloom.errors import InputError
from broadloom.linking import fitting_weights
from broadloom.maintenance._overlay_arrays import OverlayContents
from broadloom.maintenance._repair import RepairRules
from broadloom.maintenance.dynamics import OverlayDynamics, Snapshot, fresh_edges, with_room
from broadloom.maintenance.live import Live
from broadloom.measures import disconnected_topics
from broadloom.model import Algorithm, Interest, Overlay, Weights, find_algorithm
from broadloom.progress import stage

BACKUPS = ("primal-dual", "greedy")


@dataclass(frozen=True)
class NaiveOptions:
    """Options of the naive dynamics.

    Attributes:
        rho: how many times worse than the best link the chosen one may be, for the maximum degree's sake:
            `k` of low-oda. Without effect where links have weights.
    """

    rho: float = 3

    def __post_init__(self) -> None:
        check_number(self.rho, "rho", minimum=1, finite=False)

    def rules(self, by_weight: bool) -> RepairRules:
        """The options as kernels take them."""
        return RepairRules(True, False, by_weight, float(self.rho), 0)


@dataclass(frozen=True)
class ShadowOptions(NaiveOptions):
    """Options of the shadow dynamics.

    Attributes:
        rho: as for the naive dynamics.
        coverage: how often a node's backups cover each of its topics; more: lower degrees, slower changes.
        backups: how they are chosen, "primal-dual" (spreads the burden) or "greedy" (needs fewer).
    """

    coverage: int = 3
    backups: str = "primal-dual"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count(self.coverage, "coverage", minimum=1)
        if self.backups not in BACKUPS:
            raise InputError(f"backups is {self.backups!r}; give one of {', '.join(BACKUPS)}")

    def rules(self, by_weight: bool) -> RepairRules:
        """The options as kernels take them."""
        return RepairRules(False, self.backups == "greedy", by_weight, float(self.rho), self.coverage)


# `run` makes the rules of the options and of whether links have weights; `Live` does the rest.
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


def options_of(method: str, **given: Any) -> NaiveOptions:
    """The options of a method."""
    return find_algorithm(method, METHODS).with_options(given)


def maintain(
    interest: Interest,
    weights: Weights | None = None,
    method: str = "shadow",
    rho: float = 3,
    coverage: int = 3,
    seed: int = 0,
    edges: ArrayLike | None = None,
    backups: str = "primal-dual",
    sites: Sequence[str] = (),
) -> Live:
    """Keep an overlay topic-connected while nodes join, leave and change their topics, without a rebuild.

    Args:
        interest: who wants what at the start.
        weights: what links cost; with weights, links are chosen by weight a contribution, as grmaw does, and
            a node that joins tells its place. None: all links weigh 1, and degrees stay low, as with low-oda.
        method: "shadow" (repairs among few nodes, in microseconds) or "naive" (among all nodes).
        rho: how many times worse than the best link the chosen one may be, for the maximum degree's sake.
        coverage: for "shadow": how often a node's backups cover each of its topics.
        seed: the seed of the choice of backups.
        edges: start from these links, pairs of node indices; None: from a fresh build.
        backups: for "shadow": how they are chosen, "primal-dual" or "greedy".
        sites: for weights by site: what each site is called, by number, so that a join can name one.

    Returns:
        The live overlay; see `broadloom.Live`.

    Raises:
        InputError: the edges leave a topic disconnected, or an option is wrong.

    Examples:
        >>> import broadloom as bl
        >>> live = bl.maintain(bl.Interest.from_lists([[0, 1], [1], [0, 1]]))
        >>> change = live.join([0, 1])
        >>> change.node, change.added.tolist()
        (3, [[2, 3]])
    """
    given, seed = fitting_weights(interest, weights), check_count(seed, "seed")
    _check_sites(given, sites)
    options_of("shadow", rho=rho, coverage=coverage, backups=backups)  # all are checked, whichever apply
    shadow = {"coverage": coverage, "backups": backups} if method != "naive" else {}
    options = options_of(method, rho=rho, **shadow)
    rules = options.rules(by_weight=not given.is_uniform)
    with stage("fresh build"):
        links = fresh_edges(interest, given, rules) if edges is None else _checked(interest, edges)
    nodes = np.arange(interest.node_count)
    chance = int(seeded_generator(seed).integers(2**64, dtype=np.uint64))
    contents = OverlayContents(
        interest.topic_start, interest.topics, links, np.empty((0, 2), np.int32), chance
    )
    present = Snapshot(nodes, contents, with_room(given.arrays(), nodes, len(nodes)))
    dynamics = OverlayDynamics(rules, present, interest.topic_count, interest.node_count)
    dynamics.build_backups()
    names = dict(enumerate(interest.node_ids))
    return Live(dynamics, method, options, seed, interest.topic_ids, names, Counter(), sites)


def _check_sites(weights: Weights, sites: Sequence[str]) -> None:
    """Names for sites are for weights by site, and one for each."""
    if sites and weights.kind != "sites":
        raise InputError(f"there are names of sites, but the weights are {weights.kind}; leave them out")
    count = max(len(weights.table), int(weights.site.max(initial=-1)) + 1)
    if sites and (len(set(sites)) < len(sites) or len(sites) < count):
        raise InputError(f"there are {len(set(sites))} names for {count} sites; give each a name of its own")


def _checked(interest: Interest, edges: ArrayLike) -> np.ndarray:
    """Links to start from, if they connect every topic."""
    links = Overlay.from_edges(interest.node_count, edges).edges
    broken = disconnected_topics(interest, links)
    if len(broken):
        topic = interest.topic_ids[broken[0]]
        raise InputError(
            f"the edges leave topic {topic!r} disconnected{and_more(len(broken) - 1)}; "
            "start from a topic-connected overlay, or from none"
        )
    return links


def compile_kernels() -> None:
    """Compile, or load, what changes need, so that the first of them is as fast as the others."""
    small = Interest.from_lists([[0, 1], [0, 1], [1], [0]])
    for method in ("shadow", "naive"):
        live = maintain(small, method=method, edges=[(0, 1), (0, 2), (0, 3)])
        live.join([0, 1])
        live.resubscribe(1, [1])
        live.leave(0)

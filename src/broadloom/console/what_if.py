"""Session of what-if changes to a plan: repairs, undo, branches, and the script that replays them.

A situation is immutable: an operation makes a new one from the plan of the one before, by `maintain`, so undo
returns the earlier plan itself, and the same operations give the same plan wherever they run.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from broadloom.console.operations import Operation, operation_of
from broadloom.console.reconnection import reconnected
from broadloom.errors import InputError
from broadloom.linking import link
from broadloom.maintenance import Live, maintain
from broadloom.model import NotCarried, Overlay, Publishers, Weights
from broadloom.plans import Plan, site_names

if TYPE_CHECKING:
    import pyarrow as pa

NamedPair = tuple[str, str]
MAIN = "main"
# Plans whose repairs are prepared: the present one, and those that undo returns to.
MOST_PREPARED = 4
# The largest number of brokers whose weights are written out as a matrix.
MOST_IN_MATRIX = 4000
# Columns of a table of nodes that a broker takes over from the brokers of the site that it moves to.
POSITIONS = ("lat", "lon", "latitude", "longitude", "lng", "x", "y", "z")


@dataclass(frozen=True)
class Effect:
    """Effect of an operation.

    Attributes:
        operation: the operation as text.
        added: the links that it added, by names.
        removed: the links that it removed.
        cost_before: the cost before it.
        cost_after: the cost after it.
        links: the number of links after it.
        above_limit: the brokers that have more links than the limit afterwards.
        newly_above: those of them that had not before.
    """

    operation: str
    added: tuple[NamedPair, ...]
    removed: tuple[NamedPair, ...]
    cost_before: float
    cost_after: float
    links: int
    above_limit: tuple[str, ...] = ()
    newly_above: tuple[str, ...] = ()

    def record(self) -> dict[str, Any]:
        """The effect as JSON."""
        return {
            "operation": self.operation,
            "added": [list(pair) for pair in self.added],
            "removed": [list(pair) for pair in self.removed],
            "costBefore": self.cost_before,
            "costAfter": self.cost_after,
            "links": self.links,
            "aboveLimit": list(self.above_limit),
            "newlyAbove": list(self.newly_above),
        }


@dataclass(frozen=True, eq=False)
class Situation:
    """A plan, and what is different from the plan of the beginning.

    Attributes:
        plan: the plan, of the brokers that are up.
        weights: the weights of all brokers of the beginning, with those that were moved or weighed.
        nodes: the table of all brokers of the beginning, or None.
        failed: the topics of each failed broker, in the order of failures.
        cut: links that failed.
        forbidden: links that must not be used.
        pinned: links that stay.
        limit: the largest number of links of a broker, kept by re-links, and by repairs that can; 0: none.
        operations: the operations so far.
        effect: the effect of the last one.
    """

    plan: Plan
    weights: Weights
    nodes: pa.Table | None
    failed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    cut: frozenset[NamedPair] = frozenset()
    forbidden: frozenset[NamedPair] = frozenset()
    pinned: frozenset[NamedPair] = frozenset()
    limit: int = 0
    operations: tuple[Operation, ...] = ()
    effect: Effect | None = None

    def record(self) -> dict[str, Any]:
        """The situation without its plan, as JSON."""
        return {
            "failed": list(self.failed),
            "cut": sorted(map(list, self.cut)),
            "forbidden": sorted(map(list, self.forbidden)),
            "pinned": sorted(map(list, self.pinned)),
            "limit": self.limit,
            "operations": [one.text for one in self.operations],
            "effect": None if self.effect is None else self.effect.record(),
        }


class WhatIfSession:
    """A session of operations on a plan, in named branches.

    Args:
        plan: the plan of the beginning; it must connect every topic.
        seed: the seed of maintenance and of re-linking.

    Raises:
        InputError: the plan leaves a topic disconnected.

    Examples:
        >>> import broadloom as bl
        >>> interest = bl.Interest.from_lists([["a"], ["a"], ["a"]], node_ids=["rome", "oslo", "bonn"])
        >>> session = WhatIfSession(bl.link(interest, algorithm="gm"))
        >>> session.do("fail broker rome").added
        (('bonn', 'oslo'),)
        >>> session.undo()
        >>> session.plan.interest.node_ids
        ('rome', 'oslo', 'bonn')
    """

    def __init__(self, plan: Plan, seed: int = 0) -> None:
        if not plan.is_topic_connected():
            raise InputError(
                "the plan leaves a topic disconnected, so there is nothing to repair; link it again"
            )
        self.seed = seed
        self.first_plan = plan
        self._names = plan.interest.node_ids
        self._index = {name: i for i, name in enumerate(self._names)}
        self._branches: dict[str, list[Situation]] = {MAIN: [Situation(plan, plan.weights, plan.nodes)]}
        self.branch_name = MAIN
        self._prepared: list[tuple[Plan, Live]] = []  # the newest last

    # The present state.

    @property
    def situation(self) -> Situation:
        """The present situation of the present branch."""
        return self._branches[self.branch_name][-1]

    @property
    def plan(self) -> Plan:
        """The present plan."""
        return self.situation.plan

    @property
    def branches(self) -> tuple[str, ...]:
        """The names of all branches, in the order in which they were made."""
        return tuple(self._branches)

    def plan_of(self, branch: str) -> Plan:
        """The plan of a branch.

        Raises:
            InputError: there is no such branch.
        """
        return self._branch(branch)[-1].plan

    @property
    def steps(self) -> int:
        """The number of operations that can be undone in the present branch."""
        return len(self._branches[self.branch_name]) - 1

    @property
    def is_used(self) -> bool:
        """Whether operations or branches were made that would be lost with the session."""
        return len(self._branches) > 1 or self.steps > 0

    # Operations.

    def do(self, request: str | Sequence[str], relinked: Plan | None = None) -> Effect:
        """Do an operation; every topic is connected afterwards.

        Args:
            request: the operation, as text or as words; see `operation_of`.
            relinked: for a re-link: its plan, if it was computed before by `relinked_plan`.

        Raises:
            InputError: the operation is wrong, or it would leave a topic disconnected; nothing has changed.
        """
        operation = operation_of(request)
        before = self.situation
        after = _WhatIfStep(self, before, operation).result(relinked)
        effect = _effect(operation, before, after)
        done = replace(after, operations=(*before.operations, operation), effect=effect)
        self._branches[self.branch_name].append(done)
        return effect

    def undo(self) -> None:
        """Return to the situation before the last operation of the present branch.

        Raises:
            InputError: there is no operation to undo.
        """
        if not self.steps:
            raise InputError("there is nothing to undo")
        self._branches[self.branch_name].pop()

    def branch(self, name: str) -> None:
        """Start a branch at the present situation, and go to it.

        Raises:
            InputError: the name is empty or taken.
        """
        if not name.strip() or name in self._branches:
            raise InputError(f"a branch cannot be named {name!r:.80}; give a name that no branch has")
        self._branches[name] = list(self._branches[self.branch_name])
        self.branch_name = name

    def switch(self, name: str) -> None:
        """Go to another branch.

        Raises:
            InputError: there is no such branch.
        """
        self._branch(name)
        self.branch_name = name

    def script(self, source: str, output: str = "what-if") -> str:
        """A shell script of commands that gives the present plan again.

        Args:
            source: the folder of the plan of the beginning.
            output: the folder that the script writes.
        """
        words = [*(f"--do {shlex.quote(one.text)}" for one in self.situation.operations)]
        options = [f"--seed {self.seed}"] if self.seed else []
        command = [
            f"broadloom what-if {shlex.quote(source)}",
            *words,
            *options,
            f"--output {shlex.quote(output)}",
        ]
        return "#!/bin/sh\nset -eu\n" + " \\\n    ".join(command) + "\n"

    def _branch(self, name: str) -> list[Situation]:
        if name not in self._branches:
            raise InputError(
                f"there is no branch {name!r:.80}; there are {', '.join(map(repr, self._branches))}"
            )
        return self._branches[name]

    # Work that operations share.

    def prepare(self) -> None:
        """Prepare the next repair, so that it takes milliseconds."""
        plan = self.plan
        if not any(known is plan for known, _ in self._prepared):
            self._prepared = [*self._prepared, (plan, maintain(plan, seed=self.seed))][-MOST_PREPARED:]

    def live(self) -> Live:
        """A live overlay of the present plan, to be changed."""
        plan = self.plan
        for known, prepared in self._prepared:
            if known is plan:
                return deepcopy(prepared)
        return maintain(plan, seed=self.seed)

    def index_of(self, name: str) -> int:
        """The number of a broker of the beginning.

        Raises:
            InputError: there is no such broker.
        """
        if name not in self._index:
            raise InputError(f"there is no broker {name!r:.80}; give the name of a broker of the plan")
        return self._index[name]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all brokers of the beginning."""
        return self._names


def relinked_plan(situation: Situation, seed: int = 0) -> Plan:
    """A better overlay of a situation, which keeps pinned links and its limit, and avoids forbidden ones.

    It starts from the present links, and is never heavier than they are, unless links are pinned or limited.
    """
    from broadloom.deployment import LinkRequests

    plan = situation.plan
    requests = LinkRequests(plan.publishers, situation.limit or None)
    algorithm, options = requests.options_for(None, plan.weights.is_uniform, {})
    previous = None if situation.limit else plan
    made = link(plan.interest, plan.weights, algorithm, seed, previous=previous, **options)
    made = replace(made, notes={}, nodes=plan.nodes, publishers=plan.publishers, not_carried=plan.not_carried)
    return _with_rules(made, situation)


def _with_rules(plan: Plan, situation: Situation) -> Plan:
    """The plan without links that failed or are forbidden, and with pinned ones; every topic is connected."""
    refused, wanted = _rules(plan, situation)
    if not refused and not wanted:
        return plan
    edges = [edge for edge in map(tuple, plan.edges.tolist()) if edge not in refused]
    edges += sorted(wanted - set(edges))
    edges += reconnected(plan.interest.grouped(), plan.weights, _edge_array(edges), refused)
    if edges == list(map(tuple, plan.edges.tolist())):
        return plan
    return replace(plan, overlay=Overlay.from_edges(plan.interest.node_count, edges))


def _within_limit(before: Plan, made: Plan, situation: Situation) -> Plan:
    """A repaired plan whose new links keep the limit, if such links connect every topic."""
    if not above_limit(made, situation.limit):
        return made
    names = made.interest.node_ids
    degrees = made.overlay.degrees()
    added = {frozenset(pair) for pair in changed_links(before, made)[0]}
    refused, wanted = _rules(made, situation)
    kept = [
        (u, v)
        for u, v in made.edges.tolist()
        if (u, v) in wanted
        or max(degrees[u], degrees[v]) <= situation.limit
        or frozenset((names[u], names[v])) not in added
    ]
    room = situation.limit - np.bincount(np.ravel(kept).astype(np.int64), minlength=len(names))
    try:
        kept += reconnected(made.interest.grouped(), made.weights, _edge_array(kept), refused, room)
    except InputError:  # the page says which brokers are above the limit
        return made
    return replace(made, overlay=Overlay.from_edges(len(names), kept))


def _rules(plan: Plan, situation: Situation) -> tuple[set[tuple[int, int]], set[tuple[int, int]]]:
    """The links that must not be used, and those that must, by the numbers of brokers of a plan."""
    index = {name: i for i, name in enumerate(plan.interest.node_ids)}

    def numbers(pairs: Iterable[NamedPair]) -> set[tuple[int, int]]:
        known = [pair for pair in pairs if pair[0] in index and pair[1] in index]
        return {(min(index[u], index[v]), max(index[u], index[v])) for u, v in known}

    return numbers(situation.cut | situation.forbidden), numbers(situation.pinned - situation.cut)


def _edge_array(edges: Sequence[tuple[int, ...]]) -> NDArray[np.int32]:
    return np.array(edges, np.int32).reshape(-1, 2)


def _effect(operation: Operation, before: Situation, after: Situation) -> Effect:
    added, removed = changed_links(before.plan, after.plan)
    above = above_limit(after.plan, after.limit)
    known = set(above_limit(before.plan, after.limit))
    return Effect(
        operation.text,
        added,
        removed,
        before.plan.total_weight,
        after.plan.total_weight,
        len(after.plan.edges),
        above,
        tuple(name for name in above if name not in known),
    )


def above_limit(plan: Plan, limit: int) -> tuple[str, ...]:
    """The brokers with more links than a limit; 0: no limit."""
    names = plan.interest.node_ids
    return tuple(names[b] for b in np.flatnonzero(plan.overlay.degrees() > limit)) if limit else ()


def changed_links(before: Plan, after: Plan) -> tuple[tuple[NamedPair, ...], tuple[NamedPair, ...]]:
    """The links that only the later plan has, and those that only the earlier one has, by names.

    Examples:
        >>> import broadloom as bl
        >>> interest = bl.Interest.from_lists([["a"], ["a"], ["a"]], node_ids=["rome", "oslo", "bonn"])
        >>> plans = [bl.Plan(interest, bl.Weights.uniform(3), bl.Overlay.from_edges(3, edges), "by hand")
        ...          for edges in ([(0, 1), (1, 2)], [(0, 1), (0, 2)])]
        >>> changed_links(*plans)
        ((('bonn', 'rome'),), (('bonn', 'oslo'),))
    """
    old_names, new_names = before.interest.node_ids, after.interest.node_ids
    number = {name: i for i, name in enumerate(old_names)}
    for name in new_names:
        number.setdefault(name, len(number))
    names = list(number)
    shared = np.array([number[name] for name in new_names], np.int64)
    old = _link_codes(before.edges.astype(np.int64), len(names))
    new = _link_codes(shared[after.edges], len(names))

    def named(codes: NDArray[np.int64]) -> tuple[NamedPair, ...]:
        pairs = zip((codes // len(names)).tolist(), (codes % len(names)).tolist(), strict=True)
        return tuple(sorted(_pair(names[u], names[v]) for u, v in pairs))

    return named(np.setdiff1d(new, old, True)), named(np.setdiff1d(old, new, True))


def _link_codes(edges: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """One number per link, the same for both directions."""
    return np.asarray(edges.min(axis=1) * count + edges.max(axis=1), np.int64)


def _pair(u: str, v: str) -> NamedPair:
    return (u, v) if u < v else (v, u)


class _WhatIfStep:
    """One operation on one situation."""

    def __init__(self, session: WhatIfSession, before: Situation, operation: Operation) -> None:
        self.session = session
        self.before = before
        self.operation = operation
        self._position = {name: i for i, name in enumerate(before.plan.interest.node_ids)}

    def result(self, relinked: Plan | None) -> Situation:
        """The situation after the operation."""
        kind, arguments = self.operation
        if kind == ("relink",):
            made = relinked or relinked_plan(self.before, self.session.seed)
            return replace(self.before, plan=made)
        name = "_".join(("do", *kind))
        done: Situation = getattr(self, name)(*arguments)
        return done

    def do_fail_broker(self, name: str) -> Situation:
        return self._fail([name])

    def do_fail_site(self, site: str) -> Situation:
        present = [name for name in self._at_site(site) if name in self._position]
        if not present:
            raise InputError(f"site {site!r:.80} has no broker that is up")
        return self._fail(present)

    def _fail(self, names: Sequence[str]) -> Situation:
        before = self.before
        topics = {name: self._topics(name) for name in names}
        live = self.session.live()
        live.apply([(i, "leave", self._present(name), ()) for i, name in enumerate(names)])
        return self._maintained(live, replace(before, failed={**before.failed, **topics}))

    def do_restore_broker(self, name: str) -> Situation:
        if name not in self.before.failed:
            raise InputError(f"broker {name!r:.80} has not failed, so it cannot be restored")
        return self._restore([name])

    def do_restore_site(self, site: str) -> Situation:
        at_site = set(self._at_site(site))
        names = [name for name in self.before.failed if name in at_site]
        if not names:
            raise InputError(f"no broker of site {site!r:.80} has failed")
        return self._restore(names)

    def _restore(self, names: Sequence[str]) -> Situation:
        before = self.before
        live = self.session.live()
        for name in names:
            live.join(before.failed[name], name, self._place(live, name, before.weights))
        failed = {name: topics for name, topics in before.failed.items() if name not in names}
        return self._maintained(live, replace(before, failed=failed))

    def do_move(self, name: str, site: str) -> Situation:
        before = self.before
        present = self._present(name)
        like = next((other for other in self._at_site(site) if other != name), None)
        if like is None:
            raise InputError(f"there is no site {site!r:.80} with another broker; give the site of one")
        weights = _moved(before.weights, self.session.index_of(name), self.session.index_of(like))
        nodes = _moved_row(before.nodes, self.session.index_of(name), self.session.index_of(like))
        live = self.session.live()
        topics = self._topics(name)
        live.leave(present)
        live.join(topics, name, self._place(live, name, weights))
        return self._maintained(live, replace(before, weights=weights, nodes=nodes))

    def do_weigh(self, site: str, factor: str) -> Situation:
        before = self.before
        inside = np.array([self.session.index_of(name) for name in self._at_site(site)])
        weights = _weighed(before.weights, inside, float(factor), self._labels())
        chosen = [self.session.index_of(name) for name in before.plan.interest.node_ids]
        plan = replace(before.plan, weights=weights.subset(chosen), lower_bound=None)
        return replace(before, plan=plan, weights=weights)

    def do_fail_link(self, u: str, v: str) -> Situation:
        pair = self._linked(u, v)
        return self._ruled(cut=self.before.cut | {pair}, pinned=self.before.pinned - {pair})

    def do_restore_link(self, u: str, v: str) -> Situation:
        pair = self._known_pair(u, v)
        if pair not in self.before.cut:
            raise InputError(f"the link of {u!r:.80} and {v!r:.80} has not failed, so it cannot be restored")
        up = all(name in self._position for name in pair) and pair not in self.before.forbidden
        plan = self.before.plan
        if up:
            edge = sorted(self._position[name] for name in pair)
            overlay = Overlay.from_edges(len(self._position), [*plan.edges.tolist(), edge])
            plan = replace(plan, overlay=overlay)
        return replace(self.before, plan=plan, cut=self.before.cut - {pair})

    def do_pin(self, u: str, v: str) -> Situation:
        pair = self._known_pair(u, v)
        if pair in self.before.forbidden | self.before.cut:
            raise InputError(f"the link of {u!r:.80} and {v!r:.80} is forbidden or failed; allow it first")
        return self._ruled(pinned=self.before.pinned | {pair})

    def do_unpin(self, u: str, v: str) -> Situation:
        pair = self._known_pair(u, v)
        if pair not in self.before.pinned:
            raise InputError(f"the link of {u!r:.80} and {v!r:.80} is not pinned")
        return replace(self.before, pinned=self.before.pinned - {pair})

    def do_forbid(self, u: str, v: str) -> Situation:
        pair = self._known_pair(u, v)
        return self._ruled(forbidden=self.before.forbidden | {pair}, pinned=self.before.pinned - {pair})

    def do_allow(self, u: str, v: str) -> Situation:
        pair = self._known_pair(u, v)
        if pair not in self.before.forbidden:
            raise InputError(f"the link of {u!r:.80} and {v!r:.80} is not forbidden")
        return replace(self.before, forbidden=self.before.forbidden - {pair})

    def do_limit(self, most: str) -> Situation:
        return replace(self.before, limit=int(most))

    def do_subscribe(self, name: str, topic: str) -> Situation:
        if topic in self._topics(name):
            raise InputError(f"broker {name!r:.80} subscribes to {topic!r:.80} already")
        return self._resubscribed("subscribe", name, topic)

    def do_unsubscribe(self, name: str, topic: str) -> Situation:
        if topic not in self._topics(name):
            raise InputError(f"broker {name!r:.80} does not subscribe to {topic!r:.80}")
        return self._resubscribed("unsubscribe", name, topic)

    def _resubscribed(self, kind: str, name: str, topic: str) -> Situation:
        live = self.session.live()
        live.apply([(0, kind, self._present(name), (topic,))])
        return self._maintained(live, self.before)

    # Helpers.

    def _maintained(self, live: Live, after: Situation) -> Situation:
        """The situation with the plan of a live overlay, and with the links that its rules demand."""
        made = live.plan()
        names = made.interest.node_ids
        chosen = [self.session.index_of(name) for name in names]
        nodes = None if after.nodes is None else after.nodes.take(chosen)
        first = self.session.first_plan
        up = set(names)
        observed = [one for one in first.publishers.observed if one.broker in up]
        left_out = [row for row in first.not_carried.subscriptions if row.node in up]
        left_out += [row for row in made.not_carried.subscriptions if row not in left_out]
        plan = replace(
            made,
            weights=after.weights.subset(chosen),
            nodes=nodes,
            publishers=Publishers(first.publishers.mode, observed),
            not_carried=NotCarried(left_out),
            notes={},
        )
        return self._ruled_plan(plan, after)

    def _ruled(self, **rules: frozenset[NamedPair]) -> Situation:
        after = replace(self.before, **rules)  # type: ignore[arg-type]
        return self._ruled_plan(after.plan, after)

    def _ruled_plan(self, plan: Plan, after: Situation) -> Situation:
        return replace(after, plan=_within_limit(self.before.plan, _with_rules(plan, after), after))

    def _present(self, name: str) -> int:
        """The number of a broker that is up, in the present plan."""
        self.session.index_of(name)
        if name not in self._position:
            raise InputError(f"broker {name!r:.80} has failed; restore it first")
        return self._position[name]

    def _topics(self, name: str) -> tuple[str, ...]:
        interest = self.before.plan.interest
        return tuple(interest.topic_ids[topic] for topic in interest.topics_of(self._present(name)))

    def _known_pair(self, u: str, v: str) -> NamedPair:
        self.session.index_of(u)
        self.session.index_of(v)
        return _pair(u, v)

    def _linked(self, u: str, v: str) -> NamedPair:
        edge = sorted((self._present(u), self._present(v)))
        if not (self.before.plan.edges == edge).all(axis=1).any():
            raise InputError(f"brokers {u!r:.80} and {v!r:.80} are not linked")
        return _pair(u, v)

    def _labels(self) -> list[str]:
        """The site of each broker of the beginning."""
        if self.before.nodes is not None and "site" in self.before.nodes.column_names:
            return ["" if site is None else site for site in self.before.nodes.column("site").to_pylist()]
        return site_names(replace(self.session.first_plan, weights=self.before.weights)) or []

    def _at_site(self, site: str) -> list[str]:
        found = [self.session.names[i] for i, label in enumerate(self._labels()) if label == site]
        if not found or not site:
            raise InputError(f"there is no site {site!r:.80}; give the site of a broker")
        return found

    def _place(self, live: Live, name: str, weights: Weights) -> Any:
        """The position of a broker that joins, as the weights of the live overlay need it."""
        index = self.session.index_of(name)
        if live.weights_kind == "sites":
            return int(weights.site[index])
        if live.weights_kind == "euclidean":
            return weights.points[index].tolist()
        if live.weights_kind == "dense":
            present = live.nodes.tolist()
            others = [self.session.index_of(live.name_of(node)) for node in present]
            return dict(zip(present, weights.of([index] * len(others), others).tolist(), strict=True))
        return None


def _moved(weights: Weights, broker: int, like: int) -> Weights:
    """The weights after a broker has moved to where another one is."""
    if weights.kind == "sites":
        site = weights.site.copy()
        site[broker] = site[like]
        table = weights.table if weights.table.size else None
        return Weights.sites(site, weights.inner, weights.outer, table)
    if weights.kind == "euclidean":
        points = weights.points.copy()
        points[broker] = points[like]
        apart = np.sqrt(((points - points[broker]) ** 2).sum(axis=1))
        nearest = apart[apart > 0].min(initial=1.0)
        points[broker, 0] += nearest / 1000  # two brokers cannot have one point: a link has a weight
        return Weights.euclidean(points)
    if weights.kind == "dense":
        matrix = weights.matrix()
        least = matrix[like][matrix[like] > 0].min(initial=1.0)
        matrix[broker], matrix[:, broker] = matrix[like], matrix[like]
        matrix[broker, like] = matrix[like, broker] = least
        matrix[broker, broker] = 0.0
        return Weights.dense(matrix)
    return weights


def _moved_row(nodes: pa.Table | None, broker: int, like: int) -> pa.Table | None:
    """The table of nodes after a broker has moved to where another one is."""
    import pyarrow as pa

    if nodes is None:
        return None
    for name in nodes.column_names:
        if name == "site" or name in POSITIONS:
            values = nodes.column(name).to_pylist()
            values[broker] = values[like]
            column = pa.array(values, nodes.schema.field(name).type)
            nodes = nodes.set_column(nodes.column_names.index(name), name, column)
    return nodes


def _weighed(weights: Weights, inside: NDArray[np.int64], factor: float, labels: Sequence[str]) -> Weights:
    """The weights with those of all links at some brokers times a factor."""
    if weights.kind == "uniform":
        numbers = {label: i for i, label in enumerate(sorted(set(labels)))}
        site = np.array([numbers[label] for label in labels])
        weights = Weights.sites(site, 1.0, 1.0)
    if weights.kind == "sites":
        own = np.unique(weights.site[inside])
        if np.isin(weights.site, own).sum() == len(inside):
            count = int(weights.site.max()) + 1
            table = weights.table.copy()
            if not table.size:
                table = np.full((count, count), weights.outer)
                np.fill_diagonal(table, weights.inner)
            scale = np.ones_like(table)
            scale[own] = scale[:, own] = factor
            return Weights.sites(weights.site, weights.inner, weights.outer, table * scale)
    if weights.node_count > MOST_IN_MATRIX:
        raise InputError(
            f"weights of {weights.node_count:,} brokers cannot be changed by site; "
            f"give weights by site, or at most {MOST_IN_MATRIX:,} brokers"
        )
    matrix = weights.matrix()
    scale = np.ones_like(matrix)
    scale[inside] = scale[:, inside] = factor
    return Weights.dense(matrix * scale)

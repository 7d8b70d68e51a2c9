"""Live overlay: nodes join, leave and change their topics, and every topic stays connected."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from broadloom.checks import check_count, check_number
from broadloom.errors import InputError
from broadloom.maintenance.changes import (
    JOIN,
    LEAVE,
    OF_A_NODE,
    REBASELINE,
    RESUBSCRIBE,
    SUBSCRIBE,
    UNSUBSCRIBE,
    Change,
    ChangeRequest,
    Topic,
    check_nodes,
    is_text,
    topic_list,
)
from broadloom.maintenance.dynamics import (
    Drift,
    OverlayDynamics,
    as_weights,
    drift_from,
    fresh_edges,
    rebaseline_edges,
)
from broadloom.model import Interest, Overlay
from broadloom.plans import Plan

if TYPE_CHECKING:
    from broadloom.maintenance.methods import NaiveOptions


class Live:
    """An overlay under churn, made by `broadloom.maintain` or `Live.load`.

    Nodes go by ids that are never given twice: those of the interest by their index, those that join by the
    next number. Every change leaves every topic connected.

    Examples:
        >>> import broadloom as bl
        >>> live = bl.maintain(bl.Interest.from_lists([[0, 1], [1], [0, 1]]))
        >>> live.join([0]).added.tolist()
        [[2, 3]]
        >>> live.leave(0).added.tolist()
        [[1, 2]]
        >>> live.nodes.tolist(), live.edges.tolist()
        ([1, 2, 3], [[1, 2], [2, 3]])
        >>> bl.is_topic_connected(live.interest, live.edges)
        True
    """

    def __init__(
        self,
        dynamics: OverlayDynamics,
        method: str,
        options: NaiveOptions,
        seed: int,
        topic_ids: Sequence[str],
        names: dict[int, str],
        counts: Counter[str],
        sites: Sequence[str] = (),
    ) -> None:
        self.method = method
        self.options = options
        self.seed = seed
        self.counts = counts
        self._dynamics = dynamics
        self._topic_ids = list(topic_ids)
        self._topic_index = {name: topic for topic, name in enumerate(topic_ids)}
        self._names = names
        self._ids = {name: node for node, name in names.items()}
        self._sites = {name: site for site, name in enumerate(sites)}
        self._journal: Any = None

    # Changes.

    def join(self, topics: Iterable[Topic], name: str | None = None, at: object = None) -> Change:
        """A node joins.

        Args:
            topics: its topics: by index, or by id, which makes a new topic where there is none of that id.
            name: what it is called; "joined-<id>" by default.
            at: where links have weights, its place: its point, its site (by number, or by name where sites
                have names), or {node: weight} for every node.

        Raises:
            InputError: a topic is not there or given twice, the name is taken, or the place is wrong.
        """
        return self._do([ChangeRequest(JOIN, None, self._topics(topics), name, at)])[0]

    def leave(self, node: int) -> Change:
        """A node leaves.

        Raises:
            InputError: there is no such node.
        """
        return self._do([ChangeRequest(LEAVE, check_count(node, "node"))])[0]

    def resubscribe(self, node: int, topics: Iterable[Topic]) -> Change:
        """A node has these topics from now on.

        Topics that it drops are reconnected as after a leave, those that it gains as after a join, and links
        of it that no topic needs any more are removed.

        Raises:
            InputError: there is no such node, or a topic is not there or given twice.
        """
        return self._do([ChangeRequest(RESUBSCRIBE, check_count(node, "node"), self._topics(topics))])[0]

    def apply(self, events: Iterable[Sequence[Any]]) -> list[Change]:
        """Many changes in one call, such as those of `broadloom.workload.churn`; all of them, or none.

        Args:
            events: (seq, kind, node, topics): kind is "join", "leave", "subscribe", "unsubscribe" or
                "resubscribe". A join may leave its node open (None).

        Raises:
            InputError: an event is wrong; nothing has changed then.

        Examples:
            >>> import broadloom as bl
            >>> interest = bl.workload.interest(nodes=50, topics=10, sizes=(2, 5), seed=0)
            >>> live = bl.maintain(interest)
            >>> changes = live.apply(bl.workload.churn(interest, rounds=20, seed=1))
            >>> len(changes), live.metrics()["topic_connected"]
            (20, True)
        """
        return self._do([self._request(event) for event in events])

    def rebaseline(self) -> Change:
        """Move to an overlay about as good as a fresh build, with as few changes as that takes.

        At most 15 % above the fresh maximum degree, and 2 % above its mean degree or, where links have
        weights, its total weight. Links that stay are not touched; backups are chosen anew.
        """
        return self._do([ChangeRequest(REBASELINE)])[0]

    # What there is.

    @property
    def nodes(self) -> NDArray[np.int64]:
        """The ids of the nodes that are there, ascending."""
        return np.array(self._dynamics.ids(), np.int64)

    @property
    def edges(self) -> NDArray[np.int64]:
        """The links, pairs of ids (u, v), u < v, ascending."""
        present = self._dynamics.present()
        return present.ids[present.contents.edges]

    @property
    def edge_count(self) -> int:
        """How many links there are."""
        return self._dynamics.edge_count

    @property
    def max_degree(self) -> int:
        """The most links that a node has."""
        return self._dynamics.max_degree

    @property
    def mean_degree(self) -> float:
        """The mean number of links of a node."""
        return 2 * self.edge_count / max(len(self._names), 1)

    @property
    def interest(self) -> Interest:
        """Who wants what, by id: a node that has left is still a row, without topics."""
        present, count = self._dynamics.present(), self._dynamics.next_id
        sizes = np.zeros(count, np.int64)
        sizes[present.ids] = np.diff(present.contents.topic_start)
        start = np.concatenate(([0], np.cumsum(sizes)))
        names = [self._names.get(node) or self._unused(f"left-{node}") for node in range(count)]
        return Interest.from_rows(start, present.contents.topics, self._topic_ids, names)

    @property
    def topic_ids(self) -> tuple[str, ...]:
        """The id of each topic, by index."""
        return tuple(self._topic_ids)

    @property
    def weights_kind(self) -> str:
        """Of which kind the weights of links are: uniform, dense, euclidean or sites."""
        return self._dynamics.weights_kind

    @property
    def site_ids(self) -> tuple[str, ...]:
        """What each site is called, by number, where sites have names."""
        return tuple(self._sites)

    def topics_of(self, node: int) -> NDArray[np.int32]:
        """The topics of a node, ascending."""
        return self._dynamics.topics(self._there(node))

    def name_of(self, node: int) -> str:
        """What a node is called."""
        return self._names[self._there(node)]

    def named(self, name: str) -> int | None:
        """The id of the node that is called so, or None."""
        return self._ids.get(name)

    def backups(self, node: int) -> NDArray[np.int64]:
        """Who would stand in for a node, ascending; nobody under "naive"."""
        return self._dynamics.backups(self._there(node))

    def primaries(self, node: int) -> NDArray[np.int64]:
        """For whom a node would stand in, ascending."""
        return self._dynamics.primaries(self._there(node))

    def plan(self) -> Plan:
        """The overlay of the nodes that are there, as a plan; the column `id` of its nodes has their ids."""
        present = self._dynamics.present()
        n, contents = len(present.ids), present.contents
        names = [self._names[node] for node in present.ids.tolist()]
        options = {name: getattr(self.options, name) for name in self.options.__dataclass_fields__}
        return Plan(
            Interest.from_rows(contents.topic_start, contents.topics, self._topic_ids, names),
            as_weights(present.weights, n),
            Overlay(n, contents.edges),
            self.method,
            self.seed,
            options,
            notes={"changes": dict(self.counts)},
            nodes=pa.table({"node": pa.array(names, pa.string()), "id": present.ids}),
        )

    def metrics(self) -> dict[str, Any]:
        """Every measure of the overlay, and how many changes of each kind there have been.

        Examples:
            >>> import broadloom as bl
            >>> live = bl.maintain(bl.Interest.from_lists([[0], [0]]))
            >>> _ = live.join([0])
            >>> metrics = live.metrics()
            >>> metrics["edges"], metrics["joins"], metrics["repair_edges"], metrics["fallbacks"]
            (2, 1, 1, 0)
        """
        kinds = {f"{kind}s": self.counts[kind] for kind in (JOIN, LEAVE, RESUBSCRIBE, REBASELINE)}
        more = {name: self.counts[name] for name in ("repair_edges", "fallbacks")}
        return self.plan().metrics() | kinds | more

    # Quality over time.

    def drift(self) -> Drift:
        """How far degrees (and the total weight, where links have weights) are from a fresh build's."""
        plan = self.plan()
        return drift_from(plan, fresh_edges(plan.interest, plan.weights, self._dynamics.rules))

    def rebuild_due(
        self,
        max_degree: float = 6,
        mean_degree: float = 0.8,
        total_weight: float = 0.25,
        drift: Drift | None = None,
    ) -> bool:
        """Whether the overlay is worse than a fresh build by more than what is tolerated.

        Costs as much as a fresh build, unless the drift is given.

        Args:
            max_degree: by how many links the maximum degree may exceed the fresh one.
            mean_degree: by how much the mean degree may; both are for links without weights.
            total_weight: by which part of the fresh one the total weight may, where links have weights.
            drift: what `drift` has just found.

        Examples:
            >>> import broadloom as bl
            >>> live = bl.maintain(bl.Interest.from_lists([[0]] * 4), edges=[(0, 1), (0, 2), (0, 3)])
            >>> live.rebuild_due(), live.rebuild_due(max_degree=0)
            (False, True)
            >>> len(live.rebaseline().added), live.rebuild_due(max_degree=0)
            (1, False)
        """
        check_number(max_degree, "max_degree")
        check_number(mean_degree, "mean_degree")
        check_number(total_weight, "total_weight")
        drift = self.drift() if drift is None else drift
        if self._dynamics.rules.by_weight:
            return drift.heavier_than(total_weight)
        return drift.exceeds(max_degree, mean_degree)

    # Keeping it.

    def save(self, path: str | Path | None = None, overwrite: bool = False) -> None:
        """Save everything, and keep a journal of every change beside it from now on.

        A change is then acknowledged (its call returns) only when it is on the disk; `load` comes back to it
        whenever the process dies. Saving again makes the journal short.

        Args:
            path: a folder; by default where it was saved or loaded last.
            overwrite: replace what another live overlay has saved there.

        Raises:
            InputError: there is another overlay, or something else, or it cannot be written; what was saved
                before, and its journal, go on then.
        """
        from broadloom.maintenance.saved_overlay import (
            save,  # it loads live overlays, so it knows this module
        )

        save(self, path, overwrite)

    @classmethod
    def load(cls, path: str | Path) -> Live:
        """Read what `save` wrote, with all changes that were acknowledged since; the journal goes on.

        Raises:
            InputError: there is nothing saved at `path`, it is damaged, or another process has it open.
        """
        from broadloom.maintenance.saved_overlay import load

        return load(path)

    def close(self) -> None:
        """Let go of the journal; further changes are not kept."""
        if self._journal is not None:
            self._journal.close()
            self._journal = None

    def __enter__(self) -> Live:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Live({self.method}, {len(self._names):,} nodes, {self.edge_count:,} edges)"

    # Inside.

    def _request(self, event: Sequence[Any]) -> ChangeRequest:
        """An event as a request."""
        try:
            seq, kind, node, topics = event
        except (TypeError, ValueError) as error:
            raise InputError(f"an event is {event!r}; give (seq, kind, node, topics)") from error
        if kind not in (JOIN, *OF_A_NODE):
            raise InputError(f"event {seq} is a {kind!r}; give one of {', '.join((JOIN, *OF_A_NODE))}")
        if kind == JOIN and self._dynamics.rules.by_weight:
            raise InputError(f"event {seq} joins a node, but links have weights; use join(topics, at=...)")
        return ChangeRequest(kind, None if node is None else check_count(node, "node"), self._topics(topics))

    def _topics(self, topics: object) -> tuple[Topic, ...]:
        return topic_list(topics, len(self._topic_ids))

    def _there(self, node: object) -> int:
        index = check_count(node, "node")
        check_nodes([ChangeRequest(LEAVE, index)], self._names, self._dynamics.next_id)
        return index

    def _do(self, requests: list[ChangeRequest]) -> list[Change]:
        """Check all requests, do them one after the other, and keep them before they are acknowledged."""
        check_nodes(requests, self._names, self._dynamics.next_id)
        self._check_names(requests)
        requests = [self._placed(request) if request.kind == JOIN else request for request in requests]
        if self._journal is not None:
            self._journal.check()
        changes: list[Change] = []
        try:
            changes += map(self._run, requests)
        finally:
            if self._journal is not None and (done := requests[: len(changes)]):
                self._journal.append(done, changes)
        return changes

    def _check_names(self, requests: list[ChangeRequest]) -> None:
        """Names of nodes that join are texts that nobody has."""
        taken: set[str] = set()
        for name in (request.name for request in requests if request.name is not None):
            if not is_text(name):
                raise InputError(f"the name of a node is {name!r}; give a text")
            if name in self._ids or name in taken:
                raise InputError(f"there is a node {name!r} already; give each node a name of its own")
            taken.add(name)

    def _placed(self, request: ChangeRequest) -> ChangeRequest:
        """A join whose place is checked, and plain; a site that has a name keeps it."""
        at, sites = request.at, self._sites
        if not sites or not isinstance(at, str):
            return request._replace(at=self._dynamics.checked_place(at, len(sites)))
        if at not in sites and (not is_text(at) or self._dynamics.has_table):
            raise InputError(f"there is no site {at!r}; there are {', '.join(sites):.60}")
        return request

    def _run(self, request: ChangeRequest) -> Change:
        """Do one request, which was checked: it cannot fail any more."""
        node = request.node or 0
        if request.kind == JOIN:
            at = request.at
            place = self._sites.setdefault(at, len(self._sites)) if isinstance(at, str) else at
            change = self._dynamics.join(self._indices(request.topics), place)
            name = request.name or self._unused(f"joined-{change.node}")
            self._names[change.node], self._ids[name] = name, change.node
        elif request.kind == LEAVE:
            change = self._dynamics.leave(node)
            del self._ids[self._names.pop(node)]
        elif request.kind == REBASELINE:
            start = time.perf_counter()
            change = self._dynamics.relink(rebaseline_edges(self.plan(), self._dynamics.rules), start)
        else:
            change = self._dynamics.resubscribe(node, self._wanted(request, node))
        self.counts[change.kind] += 1
        self.counts["repair_edges"] += change.repair_edges
        self.counts["fallbacks"] += change.fallbacks
        return change

    def _wanted(self, request: ChangeRequest, node: int) -> NDArray[np.int32]:
        """The topics that a node is to have."""
        if request.kind == UNSUBSCRIBE:  # from a topic that nobody knows, nothing
            known = [
                topic for topic in request.topics if isinstance(topic, int) or topic in self._topic_index
            ]
            return np.setdiff1d(self._dynamics.topics(node), self._indices(known))
        topics = self._indices(request.topics)
        return np.union1d(self._dynamics.topics(node), topics) if request.kind == SUBSCRIBE else topics

    def _indices(self, topics: Iterable[Topic]) -> NDArray[np.int32]:
        """Topics as ascending indices; ids that are not known become new topics."""
        indices = [topic if isinstance(topic, int) else self._topic_of(topic) for topic in topics]
        return np.unique(np.array(indices, np.int32))

    def _topic_of(self, name: str) -> int:
        if name not in self._topic_index:
            self._topic_index[name] = len(self._topic_ids)
            self._topic_ids.append(name)
            self._dynamics.add_topics(len(self._topic_ids))
        return self._topic_index[name]

    def _unused(self, name: str) -> str:
        """A name that no node has."""
        while name in self._ids:
            name += "'"
        return name

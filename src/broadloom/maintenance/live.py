"""Live overlay: nodes join, leave and change their topics, and every topic stays connected."""

from __future__ import annotations

import copy
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from broadloom.checks import check_count, check_flag, check_instance, check_number, check_path, is_text, shown
from broadloom.errors import BroadloomError, InputError, InternalError
from broadloom.maintenance.carry_ledger import CarryLedger, is_internal
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
    EarlierLinks,
    Topic,
    check_nodes,
    check_topics,
)
from broadloom.maintenance.dynamics import (
    Drift,
    OverlayDynamics,
    Snapshot,
    as_weights,
    drift_from,
    fresh_edges,
    rebaseline_edges,
)
from broadloom.maintenance.filter_groups import FilterGroups, Topics, rows_by_node
from broadloom.maintenance.node_columns import (
    ID,
    IDS_NOTE,
    SITE,
    SITES_NOTE,
    NodeColumns,
    check_columns,
    coordinates_of,
)
from broadloom.model import Interest, trusted_overlay
from broadloom.mqtt.topic_filters import is_filter
from broadloom.notebook import html_summary
from broadloom.plans import Plan

if TYPE_CHECKING:
    from broadloom.maintenance.methods import NaiveOptions


LEFT_OUT = -1  # instead of the index of a topic


class OverlayNames(NamedTuple):
    """The names in an overlay.

    Attributes:
        topics: the id of each topic, by index.
        nodes: the name of each present node, by id.
        sites: the name of each site, by number; empty if sites have no names.
        columns: further columns of the nodes, such as their addresses.
        carry: the publishers, and what is not carried.
        rows: the topics of each node, if one of them is an MQTT topic filter; otherwise None.
        group_of: then the group of each topic, if it has another index than the topic (see `FilterGroups`).
    """

    topics: Sequence[str]
    nodes: dict[int, str]
    sites: Sequence[str] = ()
    columns: NodeColumns | None = None
    carry: CarryLedger | None = None
    rows: Mapping[int, Topics] | None = None
    group_of: Mapping[int, int] | None = None


class InterruptedDynamics:
    """The dynamics of an overlay whose last change was interrupted: every use raises an error."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise InternalError(
            "a change of this overlay was interrupted, so its links may be wrong; "
            "open it again from its folder, or build it again"
        )


class Live:
    """An overlay under churn, created by `broadloom.maintain` or `Live.load`.

    Nodes have ids that are never reused: a node of the initial interest has its index, a node that joins gets
    the next number. Every change leaves every topic connected.

    A topic can be an MQTT topic filter, such as "sensors/#". Filters and topics that overlap form one group,
    whose subscribers are connected among themselves. A filter that overlaps several groups makes one of them;
    when it goes, they are separate again. A `$SYS` topic of a change belongs to one broker, so no link
    carries it: `plan().not_carried` lists it.

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
        names: OverlayNames,
        counts: Counter[str],
    ) -> None:
        made = isinstance(dynamics, OverlayDynamics) and isinstance(names, OverlayNames)
        if not (made and isinstance(counts, Counter) and isinstance(method, str) and is_dataclass(options)):
            raise InputError("a live overlay is made by broadloom.maintain or Live.load; use one of them")
        check_count(seed, "seed")
        self.method = method
        self.options = options
        self.seed = seed
        self.counts = counts
        self._dynamics = dynamics
        self._topic_ids = list(names.topics)
        self._topic_index = {name: topic for topic, name in enumerate(names.topics)}
        self._names = names.nodes
        self._ids = {name: node for node, name in names.nodes.items()}
        self._sites = {name: site for site, name in enumerate(names.sites)}
        self._columns = names.columns or NodeColumns()
        self._carry = names.carry or CarryLedger()
        self._leaves_out = False  # whether the present request has a topic that is left out
        self._groups: FilterGroups | None = None
        if names.rows is not None:
            self._groups = FilterGroups(self._topic_ids, names.rows, names.group_of)
        self._journal: Any = None

    # Changes.

    def join(
        self,
        topics: Iterable[Topic],
        name: str | None = None,
        at: object = None,
        address: str | None = None,
        site: str | None = None,
    ) -> Change:
        """A node joins.

        Args:
            topics: its topics, by index or by id; an unknown id creates a topic.
            name: its name; "joined-<id>" by default.
            at: its position, if links have weights: its point, its site (by number, or by name if sites have
                names), or {node: weight} for every present node.
            address: its address, `host` or `host:port`, for the table of nodes.
            site: the name of its site, for the table of nodes; it is the position too if weights are by site.

        Raises:
            InputError: a topic is unknown or occurs twice, the name is taken, or the position, the address or
                the site is invalid.

        Examples:
            >>> import broadloom as bl
            >>> live = bl.maintain(bl.Interest.from_lists([["news"]], node_ids=["rome"]))
            >>> _ = live.join(["news"], "oslo", address="mqtt.oslo.example.org:8883")
            >>> live.plan().nodes.column("address").to_pylist()
            [None, 'mqtt.oslo.example.org:8883']
        """
        columns = check_columns(address, site)
        return self._execute([ChangeRequest(JOIN, None, self._check_topics(topics), name, at, columns)])[0]

    def leave(self, node: int) -> Change:
        """A node leaves.

        Raises:
            InputError: the node does not exist.
        """
        return self._execute([ChangeRequest(LEAVE, check_count(node, "node"))])[0]

    def resubscribe(self, node: int, topics: Iterable[Topic]) -> Change:
        """Replace the topics of a node.

        Topics that it drops are reconnected as after a leave, topics that it gains as after a join, and its
        links that no topic needs any more are removed.

        Raises:
            InputError: the node does not exist, or a topic is unknown or occurs twice.
        """
        request = ChangeRequest(RESUBSCRIBE, check_count(node, "node"), self._check_topics(topics))
        return self._execute([request])[0]

    def apply(self, events: Iterable[Sequence[Any]]) -> list[Change]:
        """Apply many changes in one call, such as those of `broadloom.workload.churn`: all of them, or none.

        Args:
            events: (seq, kind, node, topics): kind is "join", "leave", "subscribe", "unsubscribe" or
                "resubscribe". The node of a join can be None.

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
        if isinstance(events, (str, bytes)) or not isinstance(events, Iterable):
            raise InputError(f"the events are {shown(events)}; give a list of (seq, kind, node, topics)")
        return self._execute([self._request(event) for event in events])

    def rebaseline(self) -> Change:
        """Move to an overlay about as good as a fresh build, with as few changes as possible.

        It has at most 15 % more than the maximum degree of a fresh build, and at most 2 % more than its mean
        degree or, if links have weights, its total weight. Links that stay are not touched; backups are
        chosen again.
        """
        return self._execute([ChangeRequest(REBASELINE)])[0]

    def _execute(self, requests: Sequence[ChangeRequest]) -> list[Change]:
        """Check the nodes of all requests, run them in order, and write them to the journal, if there is one.

        Kinds and topics were checked where the requests were made.

        Raises:
            InputError: a request is wrong; nothing has changed then.
            StorageError: the journal cannot be written.
        """
        check_nodes(requests, self._names, self._dynamics.next_id)
        self._check_names(requests)
        checked = [self._check_position(one) if one.kind == JOIN else one for one in requests]
        if self._journal is not None:
            self._journal.check()
        changes: list[Change] = []
        try:
            changes += map(self._run, checked)
        except BroadloomError:
            raise
        except BaseException:  # Ctrl-C in the middle of a change
            self._dynamics = cast(OverlayDynamics, InterruptedDynamics())
            raise
        finally:
            if self._journal is not None and (done := checked[: len(changes)]):
                self._journal.append(done, changes)
        return changes

    # Present state.

    @property
    def nodes(self) -> NDArray[np.int64]:
        """The ids of the present nodes, ascending."""
        return np.array(self._dynamics.ids(), np.int64)

    @property
    def node_count(self) -> int:
        """The number of present nodes."""
        return len(self._names)

    @property
    def edges(self) -> NDArray[np.int64]:
        """The links, pairs of ids (u, v), u < v, ascending."""
        present = self._dynamics.present()
        return present.ids[present.contents.edges]

    @property
    def edge_count(self) -> int:
        """The number of links."""
        return self._dynamics.edge_count

    @property
    def max_degree(self) -> int:
        """The largest number of links of a node."""
        return self._dynamics.max_degree

    @property
    def mean_degree(self) -> float:
        """The mean number of links per node."""
        return 2 * self.edge_count / max(self.node_count, 1)

    @property
    def interest(self) -> Interest:
        """The topics of each node, by id: a node that left is a row without topics."""
        present = self._dynamics.present()
        count = self._dynamics.next_id
        rows, topics = self._subscriptions(present)
        sizes = np.zeros(count, np.int64)
        sizes[present.ids] = np.diff(rows)
        start = np.concatenate(([0], np.cumsum(sizes)))
        names = [self._names.get(node) or self._unused(f"left-{node}") for node in range(count)]
        return Interest.from_rows(start, topics, self._topic_ids, names)

    def _subscriptions(self, present: Snapshot) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """The topics of the present nodes as compressed rows; topic filters as clients wrote them."""
        if self._groups is None:
            return present.contents.topic_start, present.contents.topics
        return self._groups.filters(present.ids.tolist())

    @property
    def topic_ids(self) -> tuple[str, ...]:
        """The id of each topic, by index."""
        return tuple(self._topic_ids)

    @property
    def algorithm(self) -> str:
        """The name of the algorithm, "shadow" or "naive"; `method` is an older name."""
        return self.method

    @property
    def weights_kind(self) -> str:
        """The kind of the weights of links: uniform, dense, euclidean or sites."""
        return self._dynamics.weights_kind

    @property
    def site_ids(self) -> tuple[str, ...]:
        """The name of each site, by number; empty if sites have no names."""
        return tuple(self._sites)

    def topics_of(self, node: int) -> NDArray[np.int32]:
        """The topics of a node, ascending."""
        return self._topics(self._check_present(node))

    def name_of(self, node: int) -> str:
        """The name of a node."""
        return self._names[self._check_present(node)]

    def named(self, name: str) -> int | None:
        """The id of the node with this name, or None."""
        check_instance(name, str, "the name of a node", "give a text")
        return self._ids.get(name)

    def backups(self, node: int) -> NDArray[np.int64]:
        """The backups of a node, ascending; empty under "naive"."""
        return self._dynamics.backups(self._check_present(node))

    def primaries(self, node: int) -> NDArray[np.int64]:
        """The nodes that have this node as a backup, ascending."""
        return self._dynamics.primaries(self._check_present(node))

    def plan(self) -> Plan:
        """The overlay of the present nodes as a plan.

        The column `id` of its nodes has their ids. Nodes of the plan that maintenance started from keep all
        their columns (if one of them is `id`, the note `ids` has the ids). A node that joined has its site,
        its address and its coordinates, as far as they are known. Publishers, and what is not carried, are
        those of the plan for the nodes that stay.
        """
        import pyarrow as pa

        present = self._dynamics.present()
        contents = present.contents
        count = len(present.ids)
        ids = present.ids.tolist()
        names = [self._names[node] for node in ids]
        options = {name: getattr(self.options, name) for name in self.options.__dataclass_fields__}
        notes: dict[str, Any] = {"changes": dict(self.counts)}
        nodes = pa.table({"node": pa.array(names, pa.string())})
        if ID in self._columns:
            notes[IDS_NOTE] = ids
        else:
            nodes = nodes.append_column(ID, pa.array(present.ids))
        further = self._columns.of(ids)
        for name in further.column_names:
            nodes = nodes.append_column(name, further.column(name))
        if self._sites and len(set(present.weights.site.tolist())) < len(self._sites):
            notes[SITES_NOTE] = list(
                self._sites
            )  # of sites without brokers, no row of the nodes has the name
        return Plan(
            Interest.from_rows(*self._subscriptions(present), self._topic_ids, names),
            as_weights(present.weights, count),
            trusted_overlay(count, contents.edges),
            self.method,
            self.seed,
            options,
            notes=notes,
            nodes=nodes,
            publishers=self._carry.publishers(),
            not_carried=self._carry.not_carried(),
        )

    def metrics(self) -> dict[str, Any]:
        """Every measure of the overlay, and the number of changes of each kind so far.

        Examples:
            >>> import broadloom as bl
            >>> live = bl.maintain(bl.Interest.from_lists([[0], [0]]))
            >>> _ = live.join([0])
            >>> metrics = live.metrics()
            >>> metrics["edges"], metrics["joins"], metrics["repair_edges"], metrics["fallbacks"]
            (2, 1, 1, 0)
        """
        kinds = {f"{kind}s": self.counts[kind] for kind in (JOIN, LEAVE, RESUBSCRIBE, REBASELINE)}
        totals = {name: self.counts[name] for name in ("repair_edges", "fallbacks")}
        return self.plan().metrics() | kinds | totals

    # Quality over time.

    def drift(self) -> Drift:
        """The degrees and the total weight, now and of a fresh build."""
        plan = self.plan()
        return drift_from(plan, fresh_edges(plan.interest.grouped(), plan.weights, self._dynamics.rules))

    def rebuild_due(
        self,
        max_degree: float = 6,
        mean_degree: float = 0.8,
        total_weight: float = 0.25,
        drift: Drift | None = None,
    ) -> bool:
        """Whether the overlay is worse than a fresh build by more than these tolerances.

        It makes a fresh build, unless `drift` is passed.

        Args:
            max_degree: the tolerated excess of the maximum degree, in links.
            mean_degree: the tolerated excess of the mean degree; both are for links without weights.
            total_weight: the tolerated excess of the total weight, as a share, if links have weights.
            drift: the result of `drift`, if it is known already.

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
        drift = self.drift() if drift is None else check_instance(drift, Drift, "drift", "give live.drift()")
        if self._dynamics.rules.by_weight:
            return bool(drift.heavier_than(total_weight))
        return bool(drift.exceeds(max_degree, mean_degree))

    # Storage.

    def save(self, path: str | Path | None = None, overwrite: bool = False) -> None:
        """Save the overlay, and write every later change to a journal in the same folder.

        From then on a change is acknowledged (its call returns) only when it is on the disk; `load` restores
        it after a crash. Saving again starts a new, empty journal.

        Args:
            path: a folder; by default the one of the last save or load.
            overwrite: replace another live overlay in that folder.

        Raises:
            InputError: the folder holds another overlay or other files, or no path is known.
            StorageError: it cannot be written; the previous state and its journal stay in use then.
        """
        from broadloom.maintenance.saved_overlay import (
            save,
        )  # it loads live overlays, so it imports this module

        save(self, None if path is None else check_path(path), check_flag(overwrite, "overwrite"))

    @classmethod
    def load(cls, path: str | Path) -> Live:
        """Load a saved overlay with all acknowledged changes; its journal continues.

        Raises:
            InputError: `path` holds no saved overlay, it is damaged, or another process has it open.
            StorageError: it cannot be read.
        """
        from broadloom.maintenance.saved_overlay import load

        return load(check_path(path))

    def close(self) -> None:
        """Close the journal; later changes are not saved."""
        if self._journal is not None:
            self._journal.close()
            self._journal = None

    def __getstate__(self) -> dict[str, Any]:
        """The state for copies and pickles: a copy is a live overlay of its own, without a journal.

        Raises:
            InputError: changes are written to a journal, which two overlays cannot share.
        """
        if self._journal is not None:
            raise InputError(
                "this live overlay writes its changes to a journal, which a copy cannot share; "
                "close() it before you copy or pickle it"
            )
        return vars(self)

    def __copy__(self) -> Live:
        """As `copy.deepcopy`: a change of a copy never changes the original."""
        return copy.deepcopy(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Live:
        state = self.__getstate__()
        other = type(self).__new__(type(self))
        for name in ("_topic_ids", "_topic_index", "_names", "_ids", "_sites"):
            # Names and numbers never change, and there can be millions; others can share the list or dict.
            memo[id(state[name])] = copy.copy(state[name])
        for name, value in state.items():
            setattr(other, name, copy.deepcopy(value, memo))
        return other

    def __enter__(self) -> Live:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _repr_html_(self) -> str:
        facts: dict[str, object] = {
            "algorithm": self.algorithm,
            "nodes": self.node_count,
            "links": self.edge_count,
            "mean degree": self.mean_degree,
            "max degree": self.max_degree,
            "weights": self.weights_kind,
        }
        return html_summary("Live", facts | {f"{kind}s": self.counts[kind] for kind in (JOIN, LEAVE)})

    def __repr__(self) -> str:
        return f"Live({self.method}, {self.node_count:,} nodes, {self.edge_count:,} edges)"

    # Checks of requests.

    def _request(self, event: Sequence[Any]) -> ChangeRequest:
        """The request of an event."""
        try:
            seq, kind, node, topics = event
        except (TypeError, ValueError) as error:
            raise InputError(f"an event is {shown(event)}; give (seq, kind, node, topics)") from error
        if not isinstance(kind, str) or kind not in (JOIN, *OF_A_NODE):
            known = ", ".join((JOIN, *OF_A_NODE))
            raise InputError(f"event {shown(seq)} is a {shown(kind)}; give one of {known}")
        if kind == JOIN and self._dynamics.rules.by_weight:
            raise InputError(f"event {seq} joins a node, but links have weights; use join(topics, at=...)")
        index = None if node is None else check_count(node, "node")
        return ChangeRequest(kind, index, self._check_topics(topics))

    def _check_topics(self, topics: object) -> tuple[Topic, ...]:
        return check_topics(topics, len(self._topic_ids))

    def _check_present(self, node: object) -> int:
        index = check_count(node, "node")
        check_nodes([ChangeRequest(LEAVE, index)], self._names, self._dynamics.next_id)
        return index

    def _check_names(self, requests: Sequence[ChangeRequest]) -> None:
        """Check that the names of nodes that join are strings that no other node has."""
        taken: set[str] = set()
        for name in (request.name for request in requests if request.name is not None):
            if not is_text(name):
                raise InputError(f"the name of a node is {shown(name)}; give a text")
            if name in self._ids or name in taken:
                raise InputError(f"node {name!r} exists already; give each node a name of its own")
            taken.add(name)

    def _check_position(self, request: ChangeRequest) -> ChangeRequest:
        """The join with a checked position in plain values; a site with a name keeps the name."""
        sites = self._sites
        at = request.at
        named = request.columns.get(SITE) if request.columns else None
        if sites and named is not None:
            at = named if at is None else at
            known = isinstance(at, int) and 0 <= at < len(sites)
            if (self.site_ids[at] if known else at) != named:  # type: ignore[index]
                raise InputError(f"the new node is at {at!r}, but its site is {named!r}; give one of them")
            request = request._replace(at=at)
        if not sites or not isinstance(at, str):
            return request._replace(at=self._dynamics.check_join_position(at, len(sites)))
        if at not in sites and (not is_text(at) or self._dynamics.has_table):
            raise InputError(f"there is no site {at!r}; there are {', '.join(sites):.60}")
        return request

    def _known_columns(self, request: ChangeRequest, position: Any) -> dict[str, Any]:
        """The columns of a node that joins: those of the request, its site, and its coordinates."""
        known: dict[str, Any] = dict(request.columns or {})
        if self._sites and SITE in self._columns:
            known.setdefault(SITE, request.at if isinstance(request.at, str) else self.site_ids[position])
        if self.weights_kind == "euclidean":
            point = coordinates_of(position)
            known |= {name: value for name, value in point.items() if name in self._columns}
        return known

    # Execution of requests.

    def _run(self, request: ChangeRequest) -> Change:
        """Run one checked request; it cannot fail."""
        node = request.node or 0
        if request.kind == JOIN:
            at = request.at
            position = self._sites.setdefault(at, len(self._sites)) if isinstance(at, str) else at
            change = self._joined(self._indices(request.topics), position)
            name = request.name or self._unused(f"joined-{change.node}")
            self._names[change.node] = name
            self._ids[name] = change.node
            if request.columns or self._columns.names:
                self._columns.join(change.node, self._known_columns(request, position))
            self._note_left_out(name, request)
        elif request.kind == LEAVE:
            self._carry.change(self._names[node], request)
            change = self._left(node)
            del self._ids[self._names.pop(node)]
            self._columns.leave(node)
        elif request.kind == REBASELINE:
            change = self._rebaselined()
        else:
            change = self._resubscribed(node, self._topics_after(request, node))
            self._note_left_out(self._names[node], request)
        self.counts[change.kind] += 1
        self.counts["repair_edges"] += change.repair_edges
        self.counts["fallbacks"] += change.fallbacks
        return change

    def _note_left_out(self, name: str, request: ChangeRequest) -> None:
        """Note the topics of a request that are left out, if there are any, or were."""
        if self._leaves_out or name in self._carry:
            self._carry.change(name, request)
            self._leaves_out = False

    def _joined(self, topics: Topics, position: Any) -> Change:
        if self._groups is None:
            return self._dynamics.join(topics, position)
        earlier = EarlierLinks(self.edge_count)
        earlier.add(self._groups.add(topics, self._dynamics))
        change = self._dynamics.join(self._groups.of(topics), position)
        self._groups.set(change.node, topics)
        return earlier.before(change)

    def _left(self, node: int) -> Change:
        if self._groups is None:
            return self._dynamics.leave(node)
        earlier = EarlierLinks(self.edge_count)
        earlier.add(self._groups.drop(node, np.empty(0, np.int32), self._dynamics))
        self._groups.leave(node)
        return earlier.before(self._dynamics.leave(node))

    def _resubscribed(self, node: int, topics: Topics) -> Change:
        if self._groups is None:
            return self._dynamics.resubscribe(node, topics)
        earlier = EarlierLinks(self.edge_count)
        kept = np.intersect1d(self._groups.row(node), topics)
        split = self._groups.drop(node, kept, self._dynamics)
        earlier.add(split)
        earlier.add(self._groups.add(topics, self._dynamics))
        change = self._dynamics.resubscribe(node, self._groups.of(topics))
        self._groups.set(node, topics)
        return earlier.before(change, None if split is None else self._dynamics.prune_links(node))

    def _rebaselined(self) -> Change:
        start = time.perf_counter()
        plan = self.plan()
        edges = rebaseline_edges(replace(plan, interest=plan.interest.grouped()), self._dynamics.rules)
        return self._dynamics.relink(edges, start)

    def _topics(self, node: int) -> NDArray[np.int32]:
        """The topics of a present node, ascending; topic filters as clients wrote them."""
        return self._dynamics.topics(node) if self._groups is None else self._groups.row(node)

    def _topics_after(self, request: ChangeRequest, node: int) -> NDArray[np.int32]:
        """The topics of a node after a request that changes them."""
        if request.kind == UNSUBSCRIBE:  # unknown topics are ignored
            known = [
                topic for topic in request.topics if isinstance(topic, int) or topic in self._topic_index
            ]
            return np.setdiff1d(self._topics(node), self._indices(known))
        topics = self._indices(request.topics)
        return np.union1d(self._topics(node), topics) if request.kind == SUBSCRIBE else topics

    def _indices(self, topics: Iterable[Topic]) -> NDArray[np.int32]:
        """The topics as ascending indices; unknown ids become new topics, `$SYS` topics are left out."""
        indices = [topic if isinstance(topic, int) else self._topic_of(topic) for topic in topics]
        unique = np.unique(np.array(indices, np.int32))
        if len(unique) and unique[0] == LEFT_OUT:
            self._leaves_out = True
            return unique[1:]
        return unique

    def _topic_of(self, name: str) -> int:
        """The index of a topic, which is created if it is unknown; `LEFT_OUT` for an unknown `$SYS` topic."""
        if name not in self._topic_index:
            if is_internal(name):
                return LEFT_OUT
            self._topic_index[name] = len(self._topic_ids)
            self._topic_ids.append(name)
            self._dynamics.add_topics(len(self._topic_ids))
            if self._groups is None and is_filter(name):
                present = self._dynamics.present()
                rows = rows_by_node(
                    present.ids.tolist(), present.contents.topic_start, present.contents.topics
                )
                self._groups = FilterGroups(self._topic_ids, rows)
        return self._topic_index[name]

    def _unused(self, name: str) -> str:
        """The name, with apostrophes appended until no node has it."""
        while name in self._ids:
            name += "'"
        return name

"""The shadow and the naive dynamics of an overlay (paper 3, Alg. 3, 4 and 6 to 10)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from broadloom.kernels import compiled_for
from broadloom.linking import low_degree_edges, merge_by_weight
from broadloom.linking.topic_components import components_of
from broadloom.maintenance._overlay_arrays import (
    BACKUPS,
    LINKS,
    MAX_DEGREE,
    NODES,
    PRIMARIES,
    Capacities,
    OverlayArrays,
    OverlayContents,
    all_pairs,
    build_all_backups,
    forget,
    listed,
    new_arrays,
    rebuild_backups,
    room_of,
    rows_of,
)
from broadloom.maintenance._repair import (
    BrokenTopics,
    RepairRules,
    attach,
    connect_pairs,
    detach,
    edges_among_many,
    link_all,
    prune,
    split,
)
from broadloom.maintenance.changes import Change, Place, checked_place
from broadloom.model import DENSE, EUCLIDEAN, SITES, WEIGHT_KINDS, Interest, WeightArrays, Weights
from broadloom.plans import Plan
from broadloom.progress import stage

Nodes = NDArray[np.int32]

# Among more nodes than this a table of all pairs costs more than looking for the best pair lazily.
TABLE_NODES = 2048
# A node that joins, and a topic that grows, find room; this much of what is there, and a little.
SPARE, A_LITTLE = 1.5, 64
BACKUPS_AT_A_TIME = 512


class Snapshot(NamedTuple):
    """All that there is, of the nodes that are there, numbered by the order of their ids."""

    ids: NDArray[np.int64]
    contents: OverlayContents
    weights: WeightArrays


class OverlayDynamics:
    """An overlay that stays topic-connected while nodes come and go; nodes go by their ids."""

    def __init__(self, rules: RepairRules, present: Snapshot, topic_count: int, next_id: int) -> None:
        self.rules = rules
        self.topic_count = topic_count
        self.next_id = next_id
        self._slack = 0  # each topic has room for so many subscribers more, at least
        self._settle(present)

    @cached_property
    def _attach(self) -> Callable[..., tuple[Nodes, Nodes]]:
        """The kernel of joins, which are so quick that looking up its types would show."""
        return compiled_for(attach, self._world, self._weights, self.rules, 0, np.empty(0, np.int32))

    @property
    def world(self) -> OverlayArrays:
        """The arrays."""
        return self._world

    @property
    def max_degree(self) -> int:
        """The maximum degree."""
        return int(self._world.tally[MAX_DEGREE])

    @property
    def edge_count(self) -> int:
        """How many links there are."""
        return int(self._world.tally[LINKS])

    def ids(self) -> list[int]:
        """The nodes that are there, ascending."""
        return list(self._position)  # ids are given in ascending order, and a dict keeps it

    def is_there(self, node: int) -> bool:
        """Whether there is such a node."""
        return node in self._position

    def topics(self, node: int) -> Nodes:
        """The topics of a node, ascending."""
        return rows_of(self._world, np.array([self._position[node]]))[1]

    def backups(self, node: int) -> NDArray[np.int64]:
        """Who stands in for a node, ascending."""
        return self._named(listed(self._world.backups, BACKUPS, self._position[node]))

    def primaries(self, node: int) -> NDArray[np.int64]:
        """For whom a node stands in, ascending."""
        return self._named(listed(self._world.backups, PRIMARIES, self._position[node]))

    def build_backups(self) -> None:
        """Choose the backups of every node, in the order of their ids (Alg. 6)."""
        if self.rules.naive:
            return
        nodes = int(self._world.tally[NODES])
        with stage("backups", nodes) as done:
            for first in range(0, nodes, BACKUPS_AT_A_TIME):
                last = min(first + BACKUPS_AT_A_TIME, nodes)
                build_all_backups(self._world, self.rules.coverage, self.rules.greedy, first, last)
                done(last)

    @property
    def weights_kind(self) -> str:
        """Of which kind the weights are."""
        return WEIGHT_KINDS[self._weights.kind]

    @property
    def has_table(self) -> bool:
        """Whether a table has the weights, so that no site can be new."""
        return len(self._weights.table) > 0

    def checked_place(self, at: object, sites: int = 0) -> Place:
        """The place of a node that is to join, if it can be one; of so many sites, if they are known."""
        return checked_place(self._weights, at, self._position, sites)

    def join(self, topics: Nodes, place: Place = None) -> Change:
        """A node joins (Alg. 3, 9 and 10); its topics are int32, ascending, and its place is checked."""
        start, before = time.perf_counter(), self.edge_count
        self._make_room(nodes=1, subscriptions=len(topics), links=len(topics))
        node, v = self.next_id, int(self._world.tally[NODES])
        put_at(self._weights, v, place, self._position)
        self._subscriptions += len(topics)
        self._world.tally[NODES] += 1
        self._ids[v], self._position[node] = node, v
        self.next_id += 1
        added, candidates = self._attach(self._world, self._weights, self.rules, v, topics)
        seconds = time.perf_counter() - start
        return self._change("join", node, before, added, candidates, seconds)

    def leave(self, node: int) -> Change:
        """A node leaves (Alg. 4, 7 and 8)."""
        start, before, v = time.perf_counter(), self.edge_count, self._position[node]
        topics = self.topics(node)
        self._make_room(links=len(topics) * int(self._world.links.sizes[0, v]))
        v = self._position.pop(node)
        fell = detach(self._world, self.rules, v, topics, True)
        added, fallbacks = self._reconnect(fell, topics)
        seconds = time.perf_counter() - start
        if not self.rules.naive:
            forget(self._world, self.rules.coverage, self.rules.greedy, v)
        self._subscriptions -= len(topics)
        after = time.perf_counter() - start - seconds
        removed = _star(v, fell.near)
        return self._change("leave", node, before, added, fell.shadow, seconds, removed, fallbacks, after)

    def resubscribe(self, node: int, topics: Nodes) -> Change:
        """A node changes its topics; ours: a leave from those dropped, a join to those added."""
        start, before, v = time.perf_counter(), self.edge_count, self._position[node]
        old = self.topics(node)
        dropped, more = np.setdiff1d(old, topics), np.setdiff1d(topics, old)
        if not len(dropped) and not len(more):
            none = np.empty(0, np.int32)
            return self._change("resubscribe", node, before, _star(v, none), none, 0.0)
        links = len(dropped) * int(self._world.links.sizes[0, v]) + len(more)
        self._make_room(subscriptions=len(more), links=links)
        self._subscriptions += len(more) - len(dropped)
        w, v = self._world, self._position[node]
        suspects = self._sharing(listed(w.links, 0, v), dropped)
        wards = self._sharing(listed(w.backups, PRIMARIES, v), dropped)
        fell = detach(w, self.rules, v, dropped, False)
        repaired, fallbacks = self._reconnect(fell, dropped)
        joined, candidates = attach(w, self._weights, self.rules, v, more)
        removed = _star(v, prune(w, v, suspects))
        seconds = time.perf_counter() - start
        rebuild_backups(w, self.rules.coverage, self.rules.greedy, wards)
        after = time.perf_counter() - start - seconds
        shadow = np.union1d(fell.shadow if len(dropped) else [], candidates if len(more) else []).astype(int)
        added = np.concatenate((repaired, joined))
        return self._change("resubscribe", node, before, added, shadow, seconds, removed, fallbacks, after)

    def present(self) -> Snapshot:
        """All that there is now."""
        w, nodes = self._world, np.fromiter(self._position.values(), np.int64, len(self._position))
        number = np.full(len(w.mark), -1, np.int32)
        number[nodes] = np.arange(len(nodes))
        edges, backups = (number[all_pairs(pairs, w.tally[NODES])] for pairs in (w.links, w.backups))
        start, topics = rows_of(w, nodes)
        contents = OverlayContents(start, topics, _sorted(edges), _sorted(backups), int(w.chance[0]))
        return Snapshot(self._ids[nodes], contents, with_room(self._weights, nodes, len(nodes)))

    def relink(self, edges: Nodes, start: float) -> Change:
        """Move to other links between the nodes, numbered as in `present`; backups are chosen anew.

        Work on the links began at `start`, by `time.perf_counter`.
        """
        present, before = self.present(), self.edge_count
        old, new = ({(u, v) for u, v in some.tolist()} for some in (present.contents.edges, edges))
        none = np.empty((0, 2), np.int32)
        self._settle(present._replace(contents=present.contents._replace(edges=edges, backups=none)))
        seconds = time.perf_counter() - start
        self.build_backups()
        after = time.perf_counter() - start - seconds
        added, removed = (np.array(sorted(some), np.int32).reshape(-1, 2) for some in (new - old, old - new))
        return self._change("rebaseline", -1, before, added, none[:, 0], seconds, removed, 0, after)

    def add_topics(self, count: int) -> None:
        """There are so many topics from now on."""
        self.topic_count = count
        if count > len(self._world.size):
            self._settle(self.present())

    def _reconnect(self, fell: BrokenTopics, topics: Nodes) -> tuple[Nodes, int]:
        """Link nodes of the shadow until all is connected again; the edges, and how many needed all nodes."""
        added, left = self._connect(fell)
        if left == 0:
            return added, 0
        everybody = np.arange(self._world.tally[NODES], dtype=np.int32)
        more, still = self._connect(split(self._world, fell.near, topics, everybody))
        if still:
            raise RuntimeError("a topic stayed disconnected: this is a bug in Broadloom")
        return np.concatenate((added, more)), left

    def _connect(self, fell: BrokenTopics) -> tuple[Nodes, int]:
        """Link nodes of the shadow; the edges, and how many merges are still to be done."""
        if not len(fell.parts):
            return np.empty((0, 2), np.int32), 0
        concerned = (fell.labels >= 0).any(axis=0)
        shadow, labels = fell.shadow[concerned], fell.labels[:, concerned]
        if len(shadow) <= TABLE_NODES:
            added, merged = connect_pairs(self._world, self._weights, self.rules, shadow, labels)
        else:
            added, merged = edges_among_many(self._world, self._weights, self.rules, shadow, labels)
            link_all(self._world, added)
        return added, int((fell.parts - 1).sum()) - merged

    def _sharing(self, nodes: Nodes, topics: Nodes) -> Nodes:
        """Those of the nodes that have one of the topics."""
        words = np.zeros(self._world.bits.shape[1], np.uint64)
        np.bitwise_or.at(words, topics >> 6, np.uint64(1) << (topics & 63).astype(np.uint64))
        return nodes[(self._world.bits[nodes] & words).any(axis=1)]

    def _make_room(self, nodes: int = 0, subscriptions: int = 0, links: int = 0) -> None:
        """Make the world anew, larger, if what comes might not fit."""
        w = self._world
        if subscriptions:
            if self._slack == 0:
                self._slack = int((np.diff(w.start) - w.size).min(initial=A_LITTLE))
            self._slack -= 1
        if (
            self._slack < 0
            or w.tally[NODES] + nodes > len(w.mark)
            or w.tally[LINKS] + links > room_of(w.links)
            or self._most_backups(subscriptions) > room_of(w.backups)
        ):
            self._settle(self.present(), subscriptions, links)

    def _most_backups(self, subscriptions: int) -> int:
        """There are never more backups than this: in each cover, one for each subscription; or all pairs."""
        nodes, each = len(self._position) + 1, self._subscriptions + subscriptions
        return 1 if self.rules.naive else min(self.rules.coverage * each, nodes * nodes)

    def _settle(self, present: Snapshot, subscriptions: int = 0, links: int = 0) -> None:
        """Make the world of what is there, with room for more."""
        n, contents = len(present.ids), present.contents
        self._position = {node: v for v, node in enumerate(present.ids.tolist())}
        self._subscriptions = len(contents.topics)
        subscribers = np.bincount(contents.topics, minlength=self.topic_count)
        subscribers = np.concatenate((subscribers, np.zeros(_more(self.topic_count) - self.topic_count, int)))
        room = Capacities(
            nodes=_more(n),
            topics=len(subscribers),
            subscribers=(subscribers * SPARE).astype(np.int64) + A_LITTLE,
            links=_more(len(contents.edges) + links),
            backups=_more(self._most_backups(subscriptions)),
        )
        self._world = new_arrays(contents, room)
        self._weights = with_room(present.weights, np.arange(n), room.nodes)
        self._ids = np.concatenate((present.ids, np.zeros(room.nodes - n, np.int64)))
        self._slack = A_LITTLE - 1

    def _named(self, nodes: NDArray[np.integer]) -> NDArray[np.int64]:
        """Positions as ids."""
        return self._ids[nodes]

    def _change(
        self,
        kind: str,
        node: int,
        before: int,
        added: Nodes,
        shadow: NDArray[np.integer],
        seconds: float,
        removed: Nodes | None = None,
        fallbacks: int = 0,
        backup_seconds: float = 0.0,
    ) -> Change:
        none = np.empty((0, 2), np.int64)
        gone = none if removed is None else self._named(removed)
        candidates = self._named(shadow)
        if self.rules.naive and len(candidates):  # positions of nodes that have left are among them
            candidates = np.array([other for other in self._position if other != node], np.int64)
        named = (self._named(added), gone, candidates)
        return Change(node, *named, seconds, backup_seconds, kind, before, fallbacks)


def _more(count: int) -> int:
    return int(count * SPARE) + A_LITTLE


def _star(v: int, others: Nodes) -> Nodes:
    """The edges from v to others, each with its smaller end first."""
    return np.sort(np.stack((np.full(len(others), v, np.int32), others), axis=1), axis=1)


def _sorted(pairs: Nodes) -> Nodes:
    return pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]


def with_room(weights: WeightArrays, nodes: NDArray[np.int64], room: int) -> WeightArrays:
    """The weights among some of the nodes, in arrays of their own with room for more."""
    n, table, points, site = len(nodes), weights.table.copy(), weights.points.copy(), weights.site.copy()
    if weights.kind == DENSE:
        table = np.ones((room, room))
        table[:n, :n] = weights.table[np.ix_(nodes, nodes)]
    elif weights.kind == EUCLIDEAN:
        points = np.zeros((room, weights.points.shape[1]))
        points[:n] = weights.points[nodes]
    elif weights.kind == SITES:
        site = np.zeros(room, np.int32)
        site[:n] = weights.site[nodes]
    return weights._replace(table=table, points=points, site=site)


def as_weights(arrays: WeightArrays, count: int) -> Weights:
    """Weights among so many nodes, as users see them."""
    return Weights(
        WEIGHT_KINDS[arrays.kind], count, arrays.table, arrays.points, arrays.site, arrays.inner, arrays.outer
    )


def put_at(arrays: WeightArrays, node: int, place: Any, others: Mapping[int, int]) -> None:
    """Put the node of this position at a place that was checked: what its links will cost."""
    if arrays.kind == EUCLIDEAN:
        arrays.points[node] = place
    elif arrays.kind == SITES:
        arrays.site[node] = place
    elif arrays.kind == DENSE:
        positions = list(others.values())
        row = [place[other] for other in others]
        arrays.table[node, positions] = arrays.table[positions, node] = row


def fresh_edges(interest: Interest, weights: Weights, rules: RepairRules) -> NDArray[np.int32]:
    """The edges from scratch by the rule that maintenance follows: low-oda, or grmaw with weights."""
    if rules.by_weight:
        return merge_by_weight(components_of(interest), weights.arrays())
    return low_degree_edges(interest, Weights.uniform(interest.node_count), rules.rho)


# How much more links that are not there yet count, from the fewest changes to the best overlay.
BONUSES = (1.0, 0.5, 0.25, 0.1)
# A rebaseline may exceed a fresh build by these parts of its maximum degree, and of its mean degree (weight).
MAX_DEGREE_PART, PART = 0.15, 0.02
# Up to this many nodes a matrix of all pairs is made for it.
MATRIX_NODES = 4000


class Drift(NamedTuple):
    """Degrees and total weight now, and of a fresh build.

    Examples:
        >>> drift = Drift(9, 7, 5.5, 5.0, 40.0, 36.0)
        >>> drift.exceeds(6, 0.8), drift.exceeds(1, 0.8), drift.heavier_than(0.1)
        (False, True, True)
    """

    max_degree: int
    fresh_max_degree: int
    mean_degree: float
    fresh_mean_degree: float
    total_weight: float
    fresh_total_weight: float

    def exceeds(self, max_degree: float, mean_degree: float) -> bool:
        """Whether one of the degrees is above the fresh one by more than that."""
        return (
            self.max_degree - self.fresh_max_degree > max_degree
            or self.mean_degree - self.fresh_mean_degree > mean_degree
        )

    def heavier_than(self, part: float) -> bool:
        """Whether the total weight is above the fresh one by more than that part of it."""
        return self.total_weight > (1 + part) * self.fresh_total_weight


def drift_from(plan: Plan, fresh: NDArray[np.int32], edges: NDArray[np.int32] | None = None) -> Drift:
    """The drift of a plan, or of other edges among its nodes, from the edges of a fresh build."""
    now, then = (_numbers(plan, some) for some in (plan.edges if edges is None else edges, fresh))
    return Drift(now[0], then[0], now[1], then[1], now[2], then[2])


def _numbers(plan: Plan, edges: NDArray[np.int32]) -> tuple[int, float, float]:
    """Maximum degree, mean degree and total weight."""
    degree = np.bincount(edges.ravel(), minlength=plan.interest.node_count)
    weight = math.fsum(plan.weights.of(edges[:, 0], edges[:, 1]))
    return int(degree.max(initial=0)), float(degree.mean()) if len(degree) else 0.0, weight


def rebaseline_edges(plan: Plan, rules: RepairRules) -> NDArray[np.int32]:
    """Edges about as good as a fresh build's, of which as many as possible are the plan's.

    Links that are there count as lighter: the more, the fewer change. The largest such bonus is taken at
    which the overlay is still as good; if there is none, or there are very many nodes, it is the fresh build.
    """
    fresh = fresh_edges(plan.interest, plan.weights, rules)
    for bonus in BONUSES if 1 < plan.interest.node_count <= MATRIX_NODES else ():
        k = 0.0 if rules.by_weight else rules.rho
        edges = low_degree_edges(plan.interest, _favoured(plan, bonus), k)
        if _as_good(drift_from(plan, fresh, edges), rules.by_weight):
            return edges
    return fresh


def _favoured(plan: Plan, bonus: float) -> Weights:
    """The weights, with those of links that are not there yet raised."""
    matrix = plan.weights.matrix()
    u, v = plan.edges.T
    there = matrix[u, v].copy()
    matrix *= 1 + bonus
    matrix[u, v] = matrix[v, u] = there
    return Weights.dense(matrix)


def _as_good(drift: Drift, by_weight: bool) -> bool:
    if by_weight:
        return not drift.heavier_than(PART)
    more = MAX_DEGREE_PART * drift.fresh_max_degree, PART * drift.fresh_mean_degree
    return not drift.exceeds(*more)

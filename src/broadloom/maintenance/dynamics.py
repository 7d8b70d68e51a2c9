"""The shadow and the naive dynamics of an overlay (paper 3, Alg. 3, 4 and 6 to 10), and its drift."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from broadloom.errors import InternalError
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
    OverlayContents,
    all_pairs,
    build_all_backups,
    listed,
    new_arrays,
    pair_capacity,
    rebuild_backups,
    replace_backup,
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
from broadloom.maintenance.changes import (
    JOIN,
    LEAVE,
    REBASELINE,
    RESUBSCRIBE,
    Change,
    JoinPosition,
    check_join_position,
    trusted_change,
)
from broadloom.model import (
    DENSE,
    EUCLIDEAN,
    SITES,
    WEIGHT_KINDS,
    Interest,
    WeightArrays,
    Weights,
    trusted_weights,
)
from broadloom.plans import Plan
from broadloom.progress import stage

Nodes = NDArray[np.int32]

# With more nodes than this, a table of all pairs costs more than a lazy search for the best pair.
TABLE_NODES = 2048
# Arrays get this multiple of their contents as capacity, plus a constant.
SPARE = 1.5
SPARE_MINIMUM = 64
BACKUPS_PER_STEP = 512
# By which share a rebaseline raises the weights of new links, from the fewest changes to the best overlay.
BONUSES = (1.0, 0.5, 0.25, 0.1)
# Tolerated excess of a rebaseline over a fresh build: of the maximum degree; of the mean degree or weight.
MAX_DEGREE_SHARE = 0.15
SHARE = 0.02
# Up to this many nodes a rebaseline uses a matrix of all pairs.
MATRIX_NODES = 4000


class Snapshot(NamedTuple):
    """The present nodes with all their data, numbered in the order of their ids."""

    ids: NDArray[np.int64]
    contents: OverlayContents
    weights: WeightArrays


class OverlayDynamics:
    """An overlay that stays topic-connected while nodes join and leave; nodes are identified by their ids.

    Its arrays have spare capacity; when that is used up, they are built again, larger.
    """

    def __init__(self, rules: RepairRules, present: Snapshot, topic_count: int, next_id: int) -> None:
        self.rules = rules
        self.topic_count = topic_count
        self.next_id = next_id
        self._spare_subscribers = 0  # a lower bound, over all topics, on the spare capacity for subscribers
        self._attach_kernel = attach
        self._build_arrays(present)

    def __getstate__(self) -> dict[str, Any]:
        """The state for copies and pickles, without the compiled kernel, which is looked up again."""
        return vars(self) | {"_attach_kernel": attach}

    def _attach(self, v: int, topics: Nodes) -> tuple[Nodes, Nodes]:
        """Run the kernel of joins, for fixed types: a join is so fast that the lookup of types would show."""
        arguments = self._arrays, self._weights, self.rules, v, topics
        if self._attach_kernel is attach:
            self._attach_kernel = compiled_for(attach, *arguments)
        return self._attach_kernel(*arguments)

    @property
    def max_degree(self) -> int:
        """The maximum degree."""
        return int(self._arrays.tally[MAX_DEGREE])

    @property
    def edge_count(self) -> int:
        """The number of links."""
        return int(self._arrays.tally[LINKS])

    def ids(self) -> list[int]:
        """The present nodes, ascending."""
        return list(self._position)  # ids are assigned in ascending order, and a dict keeps it

    def topics(self, node: int) -> Nodes:
        """The topics of a node, ascending."""
        return rows_of(self._arrays, np.array([self._position[node]]))[1]

    def backups(self, node: int) -> NDArray[np.int64]:
        """The backups of a node, ascending."""
        return self._ids[listed(self._arrays.backups, BACKUPS, self._position[node])]

    def primaries(self, node: int) -> NDArray[np.int64]:
        """The nodes that have this node as a backup, ascending."""
        return self._ids[listed(self._arrays.backups, PRIMARIES, self._position[node])]

    def build_backups(self) -> None:
        """Choose the backups of every node, in the order of their ids (Alg. 6)."""
        if self.rules.naive:
            return
        nodes = int(self._arrays.tally[NODES])
        with stage("backups", nodes) as done:
            for first in range(0, nodes, BACKUPS_PER_STEP):
                last = min(first + BACKUPS_PER_STEP, nodes)
                build_all_backups(self._arrays, self.rules.coverage, self.rules.cover, first, last)
                done(last)

    @property
    def weights_kind(self) -> str:
        """The kind of the weights."""
        return WEIGHT_KINDS[self._weights.kind]

    @property
    def has_table(self) -> bool:
        """Whether a table has the weights between sites, so that a join cannot add a site."""
        return len(self._weights.table) > 0

    def check_join_position(self, at: object, sites: int = 0) -> JoinPosition:
        """The position of a node that joins, if it is valid; `sites` is the number of sites, if known."""
        return check_join_position(self._weights, at, self._position, sites)

    def join(self, topics: Nodes, position: JoinPosition = None) -> Change:
        """A node joins (Alg. 3, 9 and 10); its topics are int32, ascending, and its position is checked."""
        start = time.perf_counter()
        before = self.edge_count
        self._reserve(nodes=1, subscriptions=len(topics), links=len(topics))
        node = self.next_id
        v = int(self._arrays.tally[NODES])
        _set_position(self._weights, v, position, self._position)
        self._subscriptions += len(topics)
        self._arrays.tally[NODES] += 1
        self._ids[v] = node
        self._position[node] = v
        self.next_id += 1
        added, candidates = self._attach(v, topics)
        seconds = time.perf_counter() - start
        return trusted_change(
            node=node,
            added=self._ids[added],
            removed=np.empty((0, 2), np.int64),
            shadow=self._candidate_ids(node, candidates),
            seconds=seconds,
            backup_seconds=0.0,
            kind=JOIN,
            edges_before=before,
        )

    def leave(self, node: int) -> Change:
        """A node leaves (Alg. 4, 7 and 8)."""
        start = time.perf_counter()
        before = self.edge_count
        topics = self.topics(node)
        self._reserve(links=len(topics) * int(self._arrays.links.sizes[0, self._position[node]]))
        v = self._position.pop(node)
        broken = detach(self._arrays, self.rules, v, topics, True)
        added, fallbacks = self._reconnect(broken, topics)
        seconds = time.perf_counter() - start
        if not self.rules.naive:
            replace_backup(self._arrays, self.rules.coverage, self.rules.cover, v)
        self._subscriptions -= len(topics)
        return trusted_change(
            node=node,
            added=self._ids[added],
            removed=self._ids[_star(v, broken.near)],
            shadow=self._candidate_ids(node, broken.shadow),
            seconds=seconds,
            backup_seconds=time.perf_counter() - start - seconds,
            kind=LEAVE,
            edges_before=before,
            fallbacks=fallbacks,
        )

    def resubscribe(self, node: int, topics: Nodes) -> Change:
        """A node changes its topics; ours: a leave from those dropped, a join to those added."""
        start = time.perf_counter()
        before = self.edge_count
        old = self.topics(node)
        dropped = np.setdiff1d(old, topics)
        gained = np.setdiff1d(topics, old)
        if not len(dropped) and not len(gained):
            no_links = np.empty((0, 2), np.int64)
            no_nodes = np.empty(0, np.int64)
            return trusted_change(
                node=node,
                added=no_links,
                removed=no_links,
                shadow=no_nodes,
                seconds=0.0,
                backup_seconds=0.0,
                kind=RESUBSCRIBE,
                edges_before=before,
            )
        degree = int(self._arrays.links.sizes[0, self._position[node]])
        self._reserve(subscriptions=len(gained), links=len(dropped) * degree + len(gained))
        self._subscriptions += len(gained) - len(dropped)
        arrays = self._arrays
        v = self._position[node]
        suspects = self._sharing(listed(arrays.links, 0, v), dropped)
        primaries = self._sharing(listed(arrays.backups, PRIMARIES, v), dropped)
        broken = detach(arrays, self.rules, v, dropped, False)
        repaired, fallbacks = self._reconnect(broken, dropped)
        joined, candidates = attach(arrays, self._weights, self.rules, v, gained)
        removed = _star(v, prune(arrays, v, suspects))
        seconds = time.perf_counter() - start
        rebuild_backups(arrays, self.rules.coverage, self.rules.cover, primaries)
        backup_seconds = time.perf_counter() - start - seconds
        shadow = np.union1d(broken.shadow if len(dropped) else [], candidates if len(gained) else []).astype(
            int
        )
        return trusted_change(
            node=node,
            added=self._ids[np.concatenate((repaired, joined))],
            removed=self._ids[removed],
            shadow=self._candidate_ids(node, shadow),
            seconds=seconds,
            backup_seconds=backup_seconds,
            kind=RESUBSCRIBE,
            edges_before=before,
            fallbacks=fallbacks,
        )

    def subscriber_count(self, topic: int) -> int:
        """The number of subscribers of a topic."""
        return int(self._arrays.size[topic])

    def relabel(self, gone: Collection[int], subscribers: Mapping[int, Sequence[int]]) -> NDArray[np.int64]:
        """Make other topics of some, after groups of filters became one or were split: the links added.

        Every link stays. The rule of repairs chooses the links to add, among all subscribers of a topic.
        Backups stay too; nodes that they no longer cover get new ones.

        Args:
            gone: the topics that no node has any more.
            subscribers: the subscribers of each topic that has other ones now; all other topics stay.
        """
        present = self.present()
        old = present.contents
        number = {node: row for row, node in enumerate(present.ids.tolist())}
        rows = {topic: np.array([number[u] for u in nodes], np.int32) for topic, nodes in subscribers.items()}
        node_of = np.repeat(np.arange(len(number)), np.diff(old.topic_start))
        stay = ~np.isin(old.topics, [*gone, *subscribers])
        codes = [node_of[stay] * self.topic_count + old.topics[stay]]
        codes += [nodes * np.int64(self.topic_count) + topic for topic, nodes in rows.items()]
        ordered = np.sort(np.concatenate(codes))
        counts = np.bincount(ordered // self.topic_count, minlength=len(number))
        start = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts)))
        contents = old._replace(topic_start=start, topics=(ordered % self.topic_count).astype(np.int32))
        self._build_arrays(present._replace(contents=contents), links=sum(map(len, rows.values())))
        added = [np.empty((0, 2), np.int32)]
        short: set[int] = set()
        for topic, nodes in sorted(rows.items()):
            links, left = self._connect(split(self._arrays, nodes, np.array([topic], np.int32), nodes))
            if left:
                raise InternalError("a group of topic filters could not be connected; please report this")
            added.append(links)
            short |= _not_covered(contents.backups, nodes, len(number), self.rules.coverage)
        if not self.rules.naive:
            nodes = np.array(sorted(short), np.int32)
            rebuild_backups(self._arrays, self.rules.coverage, self.rules.cover, nodes)
        return self._ids[np.concatenate(added)]

    def prune_links(self, node: int) -> NDArray[np.int64]:
        """Remove the links of a node that no topic needs any more: the links removed."""
        v = self._position[node]
        return self._ids[_star(v, prune(self._arrays, v, listed(self._arrays.links, 0, v)))]

    def relink(self, edges: Nodes, start: float) -> Change:
        """Move to other links between the nodes, numbered as in `present`; backups are chosen again.

        The computation of the links began at `start`, by `time.perf_counter`.
        """
        present = self.present()
        before = self.edge_count
        old = {(u, v) for u, v in present.contents.edges.tolist()}
        new = {(u, v) for u, v in edges.tolist()}
        no_backups = np.empty((0, 2), np.int32)
        contents = present.contents._replace(edges=edges, backups=no_backups)
        self._build_arrays(present._replace(contents=contents))
        seconds = time.perf_counter() - start
        self.build_backups()
        backup_seconds = time.perf_counter() - start - seconds
        added, removed = (
            np.array(sorted(links), np.int32).reshape(-1, 2) for links in (new - old, old - new)
        )
        return trusted_change(
            node=-1,
            added=self._ids[added],
            removed=self._ids[removed],
            shadow=np.empty(0, np.int64),
            seconds=seconds,
            backup_seconds=backup_seconds,
            kind=REBASELINE,
            edges_before=before,
        )

    def present(self) -> Snapshot:
        """A snapshot of the present nodes."""
        arrays = self._arrays
        nodes = np.fromiter(self._position.values(), np.int64, len(self._position))
        number = np.full(len(arrays.mark), -1, np.int32)
        number[nodes] = np.arange(len(nodes))
        count = arrays.tally[NODES]
        edges, backups = (number[all_pairs(pairs, count)] for pairs in (arrays.links, arrays.backups))
        start, topics = rows_of(arrays, nodes)
        random_state = int(arrays.random_state[0])
        contents = OverlayContents(start, topics, _sorted(edges), _sorted(backups), random_state)
        return Snapshot(self._ids[nodes], contents, weights_with_capacity(self._weights, nodes, len(nodes)))

    def add_topics(self, count: int) -> None:
        """Set the number of topics, which grows."""
        self.topic_count = count
        if count > len(self._arrays.size):
            self._build_arrays(self.present())

    def _reconnect(self, broken: BrokenTopics, topics: Nodes) -> tuple[Nodes, int]:
        """Link nodes of the shadow until all is connected again: the edges, and the number of fallbacks."""
        added, left = self._connect(broken)
        if left == 0:
            return added, 0
        everybody = np.arange(self._arrays.tally[NODES], dtype=np.int32)
        more, still = self._connect(split(self._arrays, broken.near, topics, everybody))
        if still:
            raise InternalError("a change left a topic disconnected; please report this")
        return np.concatenate((added, more)), left

    def _connect(self, broken: BrokenTopics) -> tuple[Nodes, int]:
        """Link nodes of the shadow: the edges, and the number of remaining merges."""
        if not len(broken.parts):
            return np.empty((0, 2), np.int32), 0
        concerned = (broken.labels >= 0).any(axis=0)
        shadow = broken.shadow[concerned]
        labels = broken.labels[:, concerned]
        if len(shadow) <= TABLE_NODES:
            added, merged = connect_pairs(self._arrays, self._weights, self.rules, shadow, labels)
        else:
            added, merged = edges_among_many(self._arrays, self._weights, self.rules, shadow, labels)
            link_all(self._arrays, added)
        return added, int((broken.parts - 1).sum()) - merged

    def _sharing(self, nodes: Nodes, topics: Nodes) -> Nodes:
        """Those of the nodes that have one of the topics."""
        words = np.zeros(self._arrays.bits.shape[1], np.uint64)
        np.bitwise_or.at(words, topics >> 6, np.uint64(1) << (topics & 63).astype(np.uint64))
        return nodes[(self._arrays.bits[nodes] & words).any(axis=1)]

    def _reserve(self, nodes: int = 0, subscriptions: int = 0, links: int = 0) -> None:
        """Build larger arrays if a change could exceed their capacity."""
        arrays = self._arrays
        if subscriptions:
            if self._spare_subscribers == 0:
                spare = np.diff(arrays.start) - arrays.size
                self._spare_subscribers = int(spare.min(initial=SPARE_MINIMUM))
            self._spare_subscribers -= 1
        if (
            self._spare_subscribers < 0
            or arrays.tally[NODES] + nodes > len(arrays.mark)
            or arrays.tally[LINKS] + links > pair_capacity(arrays.links)
            or self._max_backups(subscriptions) > pair_capacity(arrays.backups)
        ):
            self._build_arrays(self.present(), subscriptions, links)

    def _max_backups(self, subscriptions: int) -> int:
        """An upper bound on the number of backups: one per cover and subscription; or all pairs.

        Nodes that lost subscriptions because topics were merged have more of them until they get new ones.
        """
        nodes = len(self._position) + 1
        total = self._subscriptions + subscriptions
        return 1 if self.rules.naive else min(self.rules.coverage * total, nodes * nodes) + self._surplus

    def _build_arrays(self, present: Snapshot, subscriptions: int = 0, links: int = 0) -> None:
        """Build the arrays of a snapshot, with spare capacity."""
        n = len(present.ids)
        contents = present.contents
        self._position = {node: v for v, node in enumerate(present.ids.tolist())}
        self._subscriptions = len(contents.topics)
        self._surplus = 0
        self._surplus = max(0, len(contents.backups) - self._max_backups(0))
        topic_capacity = _with_spare(self.topic_count)
        subscribers = np.bincount(contents.topics, minlength=topic_capacity)
        capacities = Capacities(
            nodes=_with_spare(n),
            topics=topic_capacity,
            subscribers=(subscribers * SPARE).astype(np.int64) + SPARE_MINIMUM,
            links=_with_spare(len(contents.edges) + links),
            backups=_with_spare(self._max_backups(subscriptions)),
        )
        self._arrays = new_arrays(contents, capacities)
        self._weights = weights_with_capacity(present.weights, np.arange(n), capacities.nodes)
        self._ids = np.concatenate((present.ids, np.zeros(capacities.nodes - n, np.int64)))
        self._spare_subscribers = SPARE_MINIMUM - 1

    def _candidate_ids(self, node: int, candidates: NDArray[np.integer]) -> NDArray[np.int64]:
        """The ids of candidates; under naive, array indices of nodes that left are among them."""
        if self.rules.naive and len(candidates):
            return np.array([other for other in self._position if other != node], np.int64)
        return self._ids[candidates]


def _with_spare(count: int) -> int:
    return int(count * SPARE) + SPARE_MINIMUM


def _star(v: int, others: Nodes) -> Nodes:
    """The edges from v to others, each with its smaller end first."""
    return np.sort(np.stack((np.full(len(others), v, np.int32), others), axis=1), axis=1)


def _sorted(pairs: Nodes) -> Nodes:
    return pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]


def _not_covered(backups: Nodes, subscribers: Nodes, nodes: int, coverage: int) -> set[int]:
    """The subscribers of a topic whose backups have it less often than asked for and possible."""
    has = np.zeros(nodes, bool)
    has[subscribers] = True
    covers = np.bincount(backups[has[backups].all(axis=1), 0], minlength=nodes)
    return set(subscribers[covers[subscribers] < min(coverage, len(subscribers) - 1)].tolist())


# Weights of a changing set of nodes.


def weights_with_capacity(weights: WeightArrays, nodes: NDArray[np.int64], capacity: int) -> WeightArrays:
    """The weights among some of the nodes, in new arrays with capacity for more nodes."""
    n = len(nodes)
    table = weights.table.copy()
    points = weights.points.copy()
    site = weights.site.copy()
    if weights.kind == DENSE:
        table = np.ones((capacity, capacity))
        table[:n, :n] = weights.table[np.ix_(nodes, nodes)]
    elif weights.kind == EUCLIDEAN:
        points = np.zeros((capacity, weights.points.shape[1]))
        points[:n] = weights.points[nodes]
    elif weights.kind == SITES:
        site = np.zeros(capacity, np.int32)
        site[:n] = weights.site[nodes]
    return weights._replace(table=table, points=points, site=site)


def as_weights(arrays: WeightArrays, count: int) -> Weights:
    """The arrays as `Weights` among `count` nodes."""
    return trusted_weights(
        WEIGHT_KINDS[arrays.kind], count, arrays.table, arrays.points, arrays.site, arrays.inner, arrays.outer
    )


def _set_position(arrays: WeightArrays, node: int, position: Any, others: Mapping[int, int]) -> None:
    """Store the checked position of a node, which determines the weights of its links."""
    if arrays.kind == EUCLIDEAN:
        arrays.points[node] = position
    elif arrays.kind == SITES:
        arrays.site[node] = position
    elif arrays.kind == DENSE:
        indices = list(others.values())
        row = [position[other] for other in others]
        arrays.table[node, indices] = arrays.table[indices, node] = row


# Fresh builds, drift and rebaselines.


def fresh_edges(interest: Interest, weights: Weights, rules: RepairRules) -> NDArray[np.int32]:
    """The edges of a fresh build by the rule of maintenance: low-oda, or grmaw with weights."""
    if rules.by_weight:
        return merge_by_weight(components_of(interest), weights.arrays())
    return low_degree_edges(interest, Weights.uniform(interest.node_count), rules.rho)


class Drift(NamedTuple):
    """Degrees and total weight, now and of a fresh build.

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
        """Whether one of the degrees exceeds the fresh one by more than this."""
        return (
            self.max_degree - self.fresh_max_degree > max_degree
            or self.mean_degree - self.fresh_mean_degree > mean_degree
        )

    def heavier_than(self, share: float) -> bool:
        """Whether the total weight exceeds the fresh one by more than this share."""
        return self.total_weight > (1 + share) * self.fresh_total_weight


def drift_from(plan: Plan, fresh: NDArray[np.int32], edges: NDArray[np.int32] | None = None) -> Drift:
    """The drift of a plan, or of other edges between its nodes, from the edges of a fresh build."""
    now = _degrees_and_weight(plan, plan.edges if edges is None else edges)
    then = _degrees_and_weight(plan, fresh)
    return Drift(now[0], then[0], now[1], then[1], now[2], then[2])


def _degrees_and_weight(plan: Plan, edges: NDArray[np.int32]) -> tuple[int, float, float]:
    """Maximum degree, mean degree and total weight."""
    degree = np.bincount(edges.ravel(), minlength=plan.interest.node_count)
    weight = math.fsum(plan.weights.of(edges[:, 0], edges[:, 1]))
    return int(degree.max(initial=0)), float(degree.mean()) if len(degree) else 0.0, weight


def rebaseline_edges(plan: Plan, rules: RepairRules) -> NDArray[np.int32]:
    """Edges about as good as those of a fresh build, with as many edges of the plan as possible.

    Edges that do not exist yet count as heavier by a bonus: the larger it is, the fewer edges change. The
    largest bonus whose overlay is good enough wins. If there is none, or there are very many nodes, the
    result is the fresh build.
    """
    fresh = fresh_edges(plan.interest, plan.weights, rules)
    for bonus in BONUSES if 1 < plan.interest.node_count <= MATRIX_NODES else ():
        k = 0.0 if rules.by_weight else rules.rho
        edges = low_degree_edges(plan.interest, _with_bonus(plan, bonus), k)
        if _is_good_enough(drift_from(plan, fresh, edges), rules.by_weight):
            return edges
    return fresh


def _with_bonus(plan: Plan, bonus: float) -> Weights:
    """The weights, with those of links that do not exist yet raised."""
    matrix = plan.weights.matrix()
    u, v = plan.edges.T
    existing = matrix[u, v].copy()
    matrix *= 1 + bonus
    matrix[u, v] = matrix[v, u] = existing
    return Weights.dense(matrix)


def _is_good_enough(drift: Drift, by_weight: bool) -> bool:
    if by_weight:
        return not drift.heavier_than(SHARE)
    return not drift.exceeds(MAX_DEGREE_SHARE * drift.fresh_max_degree, SHARE * drift.fresh_mean_degree)

"""Exact overlays (ours): an integer program whose inequalities are added as they are violated.

Pairs are chosen at least weight such that the subscribers of every topic are connected. The inequalities are
partition inequalities: if a topic's subscribers are partitioned into k parts, k - 1 chosen pairs or more
cross between the parts. For each topic they describe exactly the solutions that dominate a mixture of
spanning trees, so the linear relaxation with all of them equals the best Lagrangian bound.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from broadloom.checks import check_count, check_number
from broadloom.errors import InputError
from broadloom.kernels import kernel
from broadloom.linking.link_result import LinkResult
from broadloom.model import Interest, Weights
from broadloom.progress import stage

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Above this many pairs of subscribers, summed over the topics, even the linear relaxation takes too long.
MOST_PAIRS = 50_000
# The solver's solutions are right to 1e-6: an inequality counts as violated from here.
VIOLATED = 1e-4
# Flows are sums of the solver's doubles: less than this counts as 0.
EPSILON = 1e-9
# The solver's tolerances are absolute, about 1e-6: weights are scaled to this total unless small and whole.
TOTAL = 1e4
# The most that the tolerances cost, relative to the total: bounds are lowered by it to be proven.
SAFETY = 1e-7
# If all weights are whole numbers, a bound is rounded up if it exceeds a whole number by more than this.
WHOLE_SAFETY = 1e-3


@dataclass(frozen=True)
class ExactOptions:
    """Options of exact: when to stop before the optimum is proven.

    Attributes:
        node_limit: the most nodes that the solver's search can visit, over all its runs; None: no limit.
        time_limit: seconds; None: no limit. With a limit, the result depends on the machine.
    """

    node_limit: int | None = None
    time_limit: float | None = None

    def __post_init__(self) -> None:
        if self.node_limit is not None:
            check_count(self.node_limit, "node_limit", minimum=1)
        if self.time_limit is not None:
            check_number(self.time_limit, "time_limit")


def exact(interest: Interest, weights: Weights, options: ExactOptions, seed: int) -> LinkResult:  # noqa: ARG001
    """The overlay of least total weight; if a limit is reached, the best one known, and a proven bound.

    First the linear relaxation is solved, adding every inequality that its solution violates, then the
    integer program likewise, until its solution connects every topic. The edges ascend.
    """
    search = _CuttingPlanes(LinkProgram.of(interest, weights), options)
    with stage("prove"):
        _relax(search)
        _branch(search)
    notes = {
        "optimal": search.is_optimal,
        "inequalities": len(search.program.needs),
        "solver_nodes": search.nodes,
    }
    return LinkResult(search.program.pairs[search.best], search.proven, notes)


@dataclass
class _CuttingPlanes:
    """State of the search: the best choice, the bound, and the pairs that a better choice must (not) have."""

    program: LinkProgram
    options: ExactOptions
    start: float = field(default_factory=time.monotonic)
    nodes: int = 0
    bound: float = 0.0

    def __post_init__(self) -> None:
        count = len(self.program.pairs)
        self.best: Bools = self.program.guided(np.zeros(count))
        self.total = self.program.total(self.best)
        weight = self.program.weight
        self.whole = bool(np.all(weight == np.floor(weight)) and weight.sum() < TOTAL)
        self.scale = 1.0 if self.whole else TOTAL / self.total
        self.cost: Floats = weight * self.scale
        self.low = np.zeros(count)
        self.high = np.ones(count)

    @property
    def proven(self) -> float:
        """The bound lowered by the solver's tolerance; rounded up if all totals are whole numbers."""
        safe = float(min(self.bound, self.total) * (1 - SAFETY))
        return float(math.ceil(safe - WHOLE_SAFETY)) if self.whole else safe

    @property
    def is_optimal(self) -> bool:
        """Whether the best choice is optimal, within the solver's tolerance."""
        return bool(self.proven >= self.total * (1 - 2 * SAFETY))

    @property
    def is_over(self) -> bool:
        """Whether the optimum is found or a limit reached."""
        return self.is_optimal or 0 in self.limits("time_limit", "node_limit").values()

    def limits(self, *names: str, **others: float) -> Any:
        """The remaining limits of these names and the other options, as the solver takes them."""
        used = {"time_limit": time.monotonic() - self.start, "node_limit": self.nodes}
        limits = {name: limit for name in names if (limit := getattr(self.options, name)) is not None}
        return others | {name: max(limit - used[name], 0) for name, limit in limits.items()}

    def offer(self, x: Floats) -> None:
        """Take the choice that x guides to, if it is better."""
        chosen = self.program.guided(x)
        total = self.program.total(chosen)
        if total < self.total:
            self.best = chosen
            self.total = total

    def prove(self, scaled_bound: float, reduced: Floats) -> None:
        """Note a bound, and fix the pairs that would cost more than the best choice at their other value.

        With the reduced costs r of a dual solution, any choice costs at least the bound plus |r| for each
        pair that is not at its cheaper value.
        """
        self.bound = max(self.bound, scaled_bound / self.scale)
        gap = self.total * self.scale * (1 + SAFETY) - scaled_bound
        free = self.low < self.high
        self.high[free & (reduced > gap)] = 0.0
        self.low[free & (reduced < -gap)] = 1.0


def _relax(search: _CuttingPlanes) -> None:
    """Solve the linear relaxation until nothing is violated."""
    from scipy.optimize import linprog  # a heavy import, for this algorithm alone

    while not search.is_over:
        matrix, need = search.program.rows()
        answer = linprog(  # type: ignore[call-overload]  # its stubs know no sparse matrix
            search.cost,
            A_ub=-matrix,
            b_ub=-need,
            bounds=np.stack((search.low, search.high), axis=1),
            method="highs-ds",
            options=search.limits("time_limit"),
        )
        if answer.x is None:
            return
        search.offer(answer.x)
        dual = np.maximum(-answer.ineqlin.marginals, 0.0)
        reduced = search.cost - matrix.T @ dual
        # Weak duality holds for any duals: each pair is at the cheaper of its bounds.
        bound = need @ dual + (np.where(reduced > 0, search.low, search.high) * reduced).sum()
        search.prove(bound, reduced)
        if not search.program.separate(answer.x):
            return


def _branch(search: _CuttingPlanes) -> None:
    """Solve the integer program until its solution connects every topic."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    while not search.is_over:
        matrix, need = search.program.rows()
        answer = milp(
            search.cost,
            integrality=np.ones(len(search.cost), int),
            bounds=Bounds(search.low, search.high),
            constraints=LinearConstraint(matrix, lb=need),
            options=search.limits("time_limit", "node_limit", mip_rel_gap=0.0),
        )
        search.nodes += max(int(answer.mip_node_count or 0), 1)
        search.bound = max(search.bound, (answer.mip_dual_bound or 0.0) / search.scale)
        if answer.x is None:
            return
        x = np.round(answer.x)
        search.offer(x)
        if not search.program.separate(x):
            return


@dataclass(frozen=True)
class LinkProgram:
    """Integer program: choose pairs of least weight such that every inequality holds.

    Attributes:
        pairs: the pairs of nodes that share a topic, ascending.
        weight: the weight of each pair.
        topics: for each topic that binds, the index of each pair of its subscribers; -1 on the diagonal.
        needs: the inequalities: the least number of these pairs that must be chosen.
    """

    pairs: NDArray[np.int32]
    weight: Floats
    topics: Sequence[Ints]
    needs: dict[tuple[int, ...], int] = field(default_factory=dict)

    @classmethod
    def of(cls, interest: Interest, weights: Weights) -> LinkProgram:
        """The program of an instance, with an inequality per subscriber of a topic, and one per topic.

        Raises:
            InputError: the instance is too large to try.
        """
        groups = binding_topics(interest)
        size = sum(math.comb(len(group), 2) for group in groups)
        if size > MOST_PAIRS:
            raise InputError(
                f"exact would have to look at {size:,} pairs of subscribers over all topics, its limit is "
                f"{MOST_PAIRS:,}; use another algorithm and its lower bound"
            )
        n = max(interest.node_count, 1)
        codes = [np.minimum(g[:, None] * n + g, g * n + g[:, None]) for g in groups]
        pairs = np.unique(
            np.concatenate([np.empty(0, np.int64), *(c[np.triu_indices_from(c, 1)] for c in codes)])
        )
        topics = [np.where(np.eye(len(c), dtype=bool), -1, np.searchsorted(pairs, c)) for c in codes]
        u, v = np.divmod(pairs, n)
        program = cls(np.stack((u, v), axis=1).astype(np.int32), weights.of(u, v), topics)
        for topic in topics:
            members = np.arange(len(topic))
            program.need(topic, members)
            for subscriber in members:
                program.need(topic, members == subscriber)
        return program

    def need(self, topic: Ints, part: NDArray[np.generic]) -> bool:
        """Add the inequality of a topic and a partition; false if there is one as strong already."""
        key = tuple(np.sort(topic[_across(part)]).tolist())
        count = len(np.unique(part)) - 1
        new = self.needs.get(key, 0) < count
        if new:
            self.needs[key] = count
        return new

    def separate(self, x: Floats) -> int:
        """Add for each topic the inequality that x violates most; the number of new ones."""
        new = 0
        for topic in self.topics:
            values = np.where(topic < 0, 0.0, x[topic])
            part = most_violated_partition(values)
            if values[_across(part)].sum() < len(np.unique(part)) - 1 - VIOLATED:
                new += self.need(topic, part)
        return new

    def rows(self) -> tuple[csr_array, Floats]:
        """The inequalities as a matrix, one row each, and the least value of each row."""
        from scipy.sparse import csr_array

        start = np.cumsum([0, *map(len, self.needs)])
        columns = np.concatenate([np.array(key, np.int64) for key in self.needs])
        matrix = csr_array((np.ones(len(columns)), columns, start), shape=(len(self.needs), len(self.pairs)))
        return matrix, np.array(list(self.needs.values()), np.float64)

    def total(self, chosen: Bools) -> float:
        """The weight of a choice."""
        return math.fsum(self.weight[chosen])

    def guided(self, x: Floats) -> Bools:
        """A choice that connects every topic: spanning trees by weight * (1 - x), then reverse delete."""
        rank = np.argsort(np.argsort(self.weight * (1 - x), kind="stable"))
        chosen = np.zeros(len(self.pairs), bool)
        for topic in self.topics:
            chosen[_spanning_tree(topic, rank)] = True
        heaviest_first = np.argsort(-self.weight, kind="stable")
        for pair in heaviest_first[chosen[heaviest_first]]:
            chosen[pair] = False
            chosen[pair] = not all(_is_connected(topic, chosen) for topic in self._topics_of[pair])
        return chosen

    @cached_property
    def _topics_of(self) -> list[list[Ints]]:
        """The topics that each pair shares."""
        result: list[list[Ints]] = [[] for _ in self.pairs]
        for topic in self.topics:
            for pair in topic[np.triu_indices_from(topic, 1)]:
                result[pair].append(topic)
        return result


def binding_topics(interest: Interest) -> list[Ints]:
    """The subscribers of the topics that bind: each set once, without those that smaller sets imply.

    A topic whose subscribers are all among those of a larger one connects a piece of it. If the pieces
    connect the whole, the larger topic needs no inequality.
    """
    sets = {frozenset(interest.nodes_of(t).tolist()) for t in range(interest.topic_count)}
    kept: list[frozenset[int]] = []
    for group in sorted(sets, key=lambda s: (len(s), sorted(s))):
        pieces = [frozenset({v}) for v in group]
        for smaller in kept:
            if smaller < group:
                touched = frozenset().union(*(p for p in pieces if p & smaller))
                pieces = [p for p in pieces if not p & smaller] + [touched]
        if len(pieces) > 1:
            kept.append(group)
    return [np.array(sorted(group), np.int64) for group in kept]


def _across(part: NDArray[np.generic]) -> Bools:
    """A mask of the pairs (above the diagonal) that are in different parts."""
    return np.triu(part[:, None] != part[None, :])


def _spanning_tree(topic: Ints, rank: Ints) -> list[int]:
    """The pairs of a topic's minimum spanning tree by rank (Prim)."""
    ranks = np.where(topic < 0, len(rank), rank[topic])
    nearest = ranks[0].copy()
    parent = np.zeros(len(topic), int)
    outside = np.arange(len(topic)) > 0
    tree = []
    while outside.any():
        v = int(np.where(outside, nearest, len(rank)).argmin())
        tree.append(int(topic[parent[v], v]))
        outside[v] = False
        closer = ranks[v] < nearest
        nearest[closer] = ranks[v][closer]
        parent[closer] = v
    return tree


def _is_connected(topic: Ints, chosen: Bools) -> bool:
    """Whether the chosen pairs connect a topic."""
    linked = np.where(topic < 0, False, chosen[topic])
    seen = np.arange(len(topic)) == 0
    front = seen
    while front.any():
        front = linked[front].any(axis=0) & ~seen
        seen = seen | front
    return bool(seen.all())


@kernel
def most_violated_partition(x: NDArray[np.float64]) -> NDArray[np.int64]:
    """The partition for which (parts - 1) - (x between parts) is largest; x is a symmetric matrix.

    Greedy on a polymatroid (Cunningham 1985): give each edge in turn as much of its x as the forest
    inequalities z(E(S)) <= |S| - 1 allow. When a set S becomes tight, contract it to one node. The remaining
    nodes are the parts. It costs a minimum cut on the contracted graph for each edge between parts.
    """
    n = len(x)
    part = np.arange(n)
    z = np.zeros((n, n))
    capacity = np.empty((n + 2, n + 2))
    parent = np.empty(n + 2, np.int64)
    for u in range(n):
        for v in range(u + 1, n):
            a, b = part[u], part[v]
            if x[u, v] <= EPSILON or a == b:
                continue
            slack = _least_slack(z, part, a, b, capacity, parent)
            z[a, b] += min(x[u, v], slack)
            z[b, a] = z[a, b]
            if slack <= x[u, v] + EPSILON:
                _contract(z, part, parent)
    return part


@kernel
def _least_slack(
    z: NDArray[np.float64],
    part: NDArray[np.int64],
    a: int,
    b: int,
    capacity: NDArray[np.float64],
    parent: NDArray[np.int64],
) -> float:
    """The least |S| - 1 - z(E(S)) over the sets S of parts that contain a and b.

    Twice |S| - z(E(S)) is the sum over S of (2 - degree), plus what leaves S: a minimum cut. The nodes of S
    are those that the source still reaches at the maximum flow: those with a parent.
    """
    n = len(part)
    source, sink = n, n + 1
    for i in range(n + 2):
        for j in range(n + 2):
            capacity[i, j] = z[i, j] if i < n and j < n else 0.0
    total = 0.0
    for i in range(n):
        if part[i] == i:
            surplus = _degree(z, i) - 2.0
            total -= max(surplus, 0.0)
            capacity[source, i] = np.inf if i in (a, b) else max(surplus, 0.0)
            capacity[i, sink] = max(-surplus, 0.0)
    while _find_path(capacity, source, sink, parent):
        total += _push(capacity, source, sink, parent)
    return total / 2 - 1


@kernel
def _degree(z: NDArray[np.float64], i: int) -> float:
    """The sum of z over the edges of a node."""
    total = 0.0
    for j in range(len(z)):
        total += z[i, j]
    return total


@kernel
def _find_path(capacity: NDArray[np.float64], source: int, sink: int, parent: NDArray[np.int64]) -> bool:
    """Whether more flow fits: find a shortest path, as the parent of each node; -1 if it is not reached."""
    n = len(capacity)
    queue = np.empty(n, np.int64)
    for i in range(n):
        parent[i] = -1
    parent[source] = source
    queue[0] = source
    head = 0
    tail = 1
    while head < tail and parent[sink] < 0:
        i = queue[head]
        head += 1
        for j in range(n):
            if parent[j] < 0 and capacity[i, j] > EPSILON:
                parent[j] = i
                queue[tail] = j
                tail += 1
    return parent[sink] >= 0


@kernel
def _push(capacity: NDArray[np.float64], source: int, sink: int, parent: NDArray[np.int64]) -> float:
    """Push as much flow along the path as its capacity allows."""
    push = np.inf
    j = sink
    while j != source:
        push = min(push, capacity[parent[j], j])
        j = parent[j]
    j = sink
    while j != source:
        capacity[parent[j], j] -= push
        capacity[j, parent[j]] += push
        j = parent[j]
    return push


@kernel
def _contract(z: NDArray[np.float64], part: NDArray[np.int64], parent: NDArray[np.int64]) -> None:
    """Make one part of those that were reached, under the number of the first."""
    n = len(part)
    first = 0
    while parent[first] < 0:
        first += 1
    for i in range(first + 1, n):
        if parent[i] >= 0:
            for j in range(n):
                z[first, j] += z[i, j]
                z[j, first] += z[j, i]
                z[i, j] = z[j, i] = 0.0
    z[first, first] = 0.0
    for i in range(n):
        if parent[part[i]] >= 0:
            part[i] = first

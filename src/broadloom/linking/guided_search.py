"""Broadloom's own link algorithm: greedy overlays guided by the trees of the Lagrangian bound, then exchange.

Edges are exchanged among the candidates of the bound: remove a link, and add lighter candidates that connect
again the topics that it cut. Any candidate between the two sides of a cut connects that topic.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from broadloom.checks import check_count, check_number
from broadloom.errors import InputError
from broadloom.kernels import inner_kernel, kernel, lowest, popcount
from broadloom.linking._candidate_edges import Candidates, candidates_of, codes_of
from broadloom.linking.greedy_overlays import GreedyOptions, grmaw
from broadloom.linking.lagrangian_bound import Ascent, can_visit_all_pairs, lagrangian_bound
from broadloom.linking.link_result import LinkResult
from broadloom.linking.local_search import (
    MOST_CUTS,
    Cuts,
    LinkTable,
    clear_sides,
    find_cuts,
    heaviest_first,
    improved_edges,
    link_candidate,
    mark_sides,
    new_cuts,
    new_link_table,
    remove_link,
    restore_link,
    reverse_delete,
    topic_bits,
)
from broadloom.model import Interest, Weights
from broadloom.progress import notice, stage

# Steps of the ascent by the end of the first two levels: those of trees alone. The third level adds so many
# with covers, and each further one twice as many as the one before.
FIRST_STEPS = 20
SECOND_STEPS = 60
THIRD_STEPS = 120
FIRST_SWEEPS = (
    20  # of annealing, at the second level; each further one has four times as many, up to the most
)
MOST_SWEEPS = 10_000
# The share of its weight that the greedy algorithm does not pay for a candidate that the trees always use;
# the first level tries the last one alone.
DISCOUNTS = (0.5, 0.7)
LEAST_SAVING = 2e-3  # the share of the weight that a round of exchange must save for another one to follow
# The temperature at which annealing starts, in mean weights of a link, is so many times the gap: where the
# overlay is proven to be nearly the best, heat does harm. More sweeps start hotter. It cools down to 0.
HEAT_PER_GAP = 0.6
MORE_HEAT = 0.15  # per level, in times of the gap
MOST_HEAT = 0.5
# Annealing is done in cycles, each from the best overlay so far: that finds more than one long run.
CYCLE_SWEEPS = 40
REPLACEMENT_ROUNDS = 3  # of replacement by all pairs, at the end of a cycle; one at the first level
MANY_NODES = 2048  # with more, the first level has no such round: it takes longer than `grmaw`
MOST_DESCENTS = 20
MOST_EFFORT = 12
LEVEL_GROWTH = 4.0  # the most that a level takes, in times of the level before
CLIMB_SHARE = 0.5  # of the time of a level that the time limit cuts short
MOST_UNGUIDED_STEPS = 200  # of the bound, if the search is not guided
LONG = 600.0  # seconds: a level that is likely to take longer is announced


@dataclass(frozen=True)
class GuidedOptions:
    """Options of broadloom: when to stop, and the limit on degrees.

    Attributes:
        effort: the number of levels of the search, from 1 to 12. Level 1 takes about 15 times as long as
            `grmaw`, each further one two to six times as long as all before. More effort never gives a
            heavier overlay. None: 1, or as many as `seconds` and `gap` allow if one of them is given.
        seconds: stop the search at this time; then the result depends on the machine. The first overlay and
            a last proof are not cut short.
        gap: stop after the level at which the overlay is proven to be at most this share above the best
            possible: 0.1 is 10 %.
        max_degree: no node gets more links than this; None: no limit.
    """

    effort: int | None = None
    seconds: float | None = None
    gap: float | None = None
    max_degree: int | None = None

    def __post_init__(self) -> None:
        if self.effort is not None and check_count(self.effort, "effort", minimum=1) not in EFFORTS:
            raise InputError(
                f"effort is {self.effort!r}; give a whole number from 1 to {MOST_EFFORT}: "
                "each level takes two to six times as long as all before"
            )
        if self.seconds is not None:
            check_number(self.seconds, "seconds")
        if self.gap is not None:
            check_number(self.gap, "gap")
        if self.max_degree is not None:
            check_count(self.max_degree, "max_degree", minimum=1)

    @property
    def levels(self) -> int:
        """The most levels of the search."""
        if self.effort is not None:
            return self.effort
        return 1 if self.seconds is None and self.gap is None else MOST_EFFORT


EFFORTS = range(1, MOST_EFFORT + 1)


def broadloom(interest: Interest, weights: Weights, options: GuidedOptions, seed: int) -> LinkResult:
    """Follow the minimum spanning trees of the best lower bound, then exchange edges.

    Each level climbs to a better split of the weights, builds overlays from the candidates by `grmaw` with a
    discount for those that the trees use, and improves the best one. A higher effort continues a lower one.
    The result has the bound, and its notes why the search has stopped and what each level has reached. If it
    is interrupted (Ctrl-C), it returns the best overlay so far.
    """
    began = time.monotonic()
    overlay = grmaw(interest, weights, GreedyOptions(options.max_degree), seed).edges
    if not can_visit_all_pairs(interest):
        return _unguided(
            interest, weights, overlay, options, "the instance is too large for the guided search"
        )
    search = GuidedSearch(interest, weights, overlay, options.max_degree, seed)
    deadline = math.inf if options.seconds is None else began + options.seconds
    stopped = "effort"
    with stage("improve", options.levels) as done:
        try:
            for level in range(options.levels):
                search.run_level(level, deadline)
                done(level + 1)
                if options.gap is not None and search.gap <= options.gap:
                    stopped = "gap"
                    break
                if time.monotonic() >= deadline:
                    stopped = "seconds"
                    break
        except KeyboardInterrupt:
            stopped = "interrupt"
    notes = {
        "method": "guided",
        "stopped": stopped,
        "steps": search.ascent.steps,
        "candidates": len(search.ascent.candidates.weight),
        "levels": search.levels,
    }
    return LinkResult(search.best, search.ascent.bound, notes, search.ascent.division)


class GuidedSearch:
    """The best overlay so far, and the ascent that guides the search for a better one.

    Attributes:
        best: the edges of the lightest overlay so far.
        ascent: the ascent to the best bound.
        levels: the steps, the weight and the bound at the end of each level.
    """

    def __init__(
        self,
        interest: Interest,
        weights: Weights,
        overlay: NDArray[np.int32],
        max_degree: int | None,
        seed: int,
    ) -> None:
        """Start from a greedy overlay in its order of selection, within the limit on degrees."""
        self._max_degree = max_degree
        self._interest = interest
        self._weights = weights
        self._rng = np.random.default_rng(seed)
        self._seconds = 0.0  # of the last level
        self.best = overlay[reverse_delete(interest, overlay, heaviest_first(weights, overlay))]
        if max_degree is not None:  # the bound does not know the limit, and starts better without
            overlay = grmaw(interest, weights, GreedyOptions(), seed).edges
        self.ascent = Ascent(interest, weights, overlay)
        self.levels: list[dict[str, float]] = []

    @property
    def weight(self) -> float:
        """The weight of the best overlay."""
        return float(self._weights.of(self.best[:, 0], self.best[:, 1]).sum())

    @property
    def gap(self) -> float:
        """The most that the best overlay can be above the best possible, as a share of the bound."""
        return self.weight / self.ascent.bound - 1.0 if self.ascent.bound else 0.0

    def run_level(self, level: int, deadline: float) -> None:
        """Climb, prove the bound, and improve the overlay; a level that takes too long is cut short."""
        began = time.monotonic()
        climb_until = deadline
        if self._seconds * LEVEL_GROWTH > deadline - began:
            climb_until = began + CLIMB_SHARE * (deadline - began)
        elif deadline == math.inf and self._seconds * LEVEL_GROWTH > LONG:
            minutes = self._seconds * LEVEL_GROWTH / 60
            notice(f"Level {level + 1} can take {minutes:.0f} minutes; Ctrl-C returns the best plan so far.")
        self.ascent.climb_to(_steps(level), until=lambda: time.monotonic() > climb_until)
        self.ascent.certify()
        self._improve(level, deadline)
        self._seconds = time.monotonic() - began
        self.levels.append({"steps": self.ascent.steps, "weight": self.weight, "bound": self.ascent.bound})

    def _improve(self, level: int, deadline: float) -> None:
        """Take the lightest of the best overlay so far, the guided ones, and these after exchange."""
        pool, use = _pool(self._interest, self._weights, self.best, self.ascent)
        guided = _guided(self._interest, self._weights, pool, use, DISCOUNTS if level else DISCOUNTS[-1:])
        overlays = [EdgeExchange(self._interest, pool, linked, self._max_degree) for linked in guided]
        incumbent = EdgeExchange(
            self._interest, pool, _linked(pool, self.best, self._interest.node_count), self._max_degree
        )
        if self._max_degree is not None:
            overlays = [overlay for overlay in overlays if overlay.shed()] + [incumbent]
        leader = min(overlays, key=_total_weight)
        _descend(leader, 1 if level == 0 else MOST_DESCENTS)
        self.best = pool.edges[min(incumbent, leader, key=_total_weight).linked]
        if level == 0:
            self._replace(self.best, 1 if self._interest.node_count <= MANY_NODES else 0, deadline)
        remaining = min(FIRST_SWEEPS << 2 * (level - 1), MOST_SWEEPS) if level else 0
        heat = min((HEAT_PER_GAP + MORE_HEAT * (level - 1)) * self.gap, MOST_HEAT)
        while remaining > 0:
            sweeps = min(remaining, CYCLE_SWEEPS)
            remaining -= sweeps
            self._anneal(sweeps, heat, deadline)
            if time.monotonic() >= deadline:
                break

    def _anneal(self, sweeps: int, heat: float, deadline: float) -> None:
        """Anneal the best overlay, exchange and replace edges; keep the result if it is lighter."""
        pool, _ = _pool(self._interest, self._weights, self.best, self.ascent)
        linked = _linked(pool, self.best, self._interest.node_count)
        annealed = EdgeExchange(self._interest, pool, linked, self._max_degree)
        annealed.anneal(sweeps, heat, self._rng, deadline)
        _descend(annealed, MOST_DESCENTS)
        self._replace(pool.edges[annealed.linked], REPLACEMENT_ROUNDS, deadline)

    def _replace(self, edges: NDArray[np.int32], rounds: int, deadline: float) -> None:
        """Replace edges of an overlay by all pairs; keep the result if it is lighter than the best one."""
        seconds = None if deadline == math.inf else max(deadline - time.monotonic(), 0.0)
        edges, _ = improved_edges(self._interest, self._weights, edges, rounds, self._max_degree, seconds)
        if self._weights.of(edges[:, 0], edges[:, 1]).sum() < self.weight:
            self.best = edges


def _steps(level: int) -> int:
    """The number of steps of the ascent by the end of a level."""
    return SECOND_STEPS + THIRD_STEPS * ((1 << level - 1) - 1) if level else FIRST_STEPS


def _unguided(
    interest: Interest, weights: Weights, overlay: NDArray[np.int32], options: GuidedOptions, why: str
) -> LinkResult:
    """The greedy overlay with edges replaced, and a bound from as many topics as it can visit."""
    rounds = options.levels
    best, _ = improved_edges(interest, weights, overlay, rounds, options.max_degree, options.seconds)
    bound = lagrangian_bound(interest, weights, min(_steps(rounds - 1), MOST_UNGUIDED_STEPS))
    return LinkResult(best, bound, {"method": "grmaw and improvement", "why": why})


def _pool(
    interest: Interest, weights: Weights, best: NDArray[np.int32], ascent: Ascent
) -> tuple[Candidates, NDArray[np.float64]]:
    """The candidates of the ascent and the best overlay's edges, and the use of each by the trees."""
    n = interest.node_count
    known = codes_of(ascent.candidates.edges, n)
    codes = np.union1d(known, codes_of(best, n))
    use = np.zeros(len(codes))
    use[np.searchsorted(codes, known)] = ascent.edge_use()
    return candidates_of(interest, weights, codes), use


def _linked(pool: Candidates, edges: NDArray[np.int32], nodes: int) -> NDArray[np.bool_]:
    """A mask of the candidates that are among the edges."""
    return np.isin(codes_of(pool.edges, nodes), codes_of(edges, nodes))


def _guided(
    interest: Interest,
    weights: Weights,
    pool: Candidates,
    use: NDArray[np.float64],
    discounts: tuple[float, ...],
) -> Iterator[NDArray[np.bool_]]:
    """Overlays by `grmaw` and reverse delete over the candidates, one per discount."""
    for discount in discounts:
        taken = list_greedy(pool, pool.weight * (1.0 - discount * use), interest.subscription_count)
        edges = pool.edges[taken]
        kept = reverse_delete(interest, edges, heaviest_first(weights, edges))
        linked = np.zeros(len(pool.weight), bool)
        linked[taken[kept]] = True
        yield linked


def _descend(overlay: EdgeExchange, most: int) -> None:
    """Exchange edges until a round saves too little, that many rounds at most."""
    before = np.inf
    for _ in range(most):
        if overlay.total_weight >= before * (1.0 - LEAST_SAVING):
            return
        before = overlay.total_weight
        overlay.descend()


def _total_weight(overlay: EdgeExchange) -> float:
    return overlay.total_weight


def list_greedy(candidates: Candidates, cost: NDArray[np.float64], subscriptions: int) -> NDArray[np.int64]:
    """GrMAW (paper 1, Alg. 2) over candidate edges: those taken, the lowest cost per contribution first.

    A contribution only falls, so an edge's key only rises: the edge at the top of the heap is taken if its
    key is current, otherwise the key is updated. Ties go to the smaller edge. Entries whose ends are
    connected are dropped for good, so that a contribution is the number of remaining entries.
    """
    entries = np.diff(candidates.start)
    label = np.arange(subscriptions)
    return _greedy(
        cost,
        candidates.start,
        (candidates.low.copy(), candidates.high.copy()),
        (label, label.copy(), np.ones_like(label)),
        (np.flatnonzero(entries), cost / np.maximum(entries, 1), entries),
    )


@kernel
def _greedy(
    cost: NDArray[np.float64],
    start: NDArray[np.int64],
    ends: tuple[NDArray[np.int32], NDArray[np.int32]],
    components: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]],
    queue: tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int64]],
) -> NDArray[np.int64]:
    """The edges taken. `queue`: the edges as a heap, the key of each, and its number of remaining entries."""
    low, high = ends
    label, following, size = components
    heap, key, remaining = queue
    for i in range(len(heap) // 2 - 1, -1, -1):
        _sink(heap, len(heap), key, i)
    taken = np.empty(len(heap), np.int64)
    count = 0
    waiting = len(heap)
    while waiting:
        e = heap[0]
        contribution = _keep_unconnected(label, low, high, start[e], remaining[e])
        if contribution == remaining[e]:
            taken[count] = e
            count += 1
            for k in range(start[e], start[e] + contribution):
                _join(label, following, size, label[low[k]], label[high[k]])
            contribution = 0
        remaining[e] = contribution
        if contribution:
            key[e] = cost[e] / contribution
        else:
            waiting -= 1
            heap[0] = heap[waiting]
        _sink(heap, waiting, key, 0)
    return taken[:count]


@inner_kernel
def _keep_unconnected(
    label: NDArray[np.int64], low: NDArray[np.int32], high: NDArray[np.int32], first: int, count: int
) -> int:
    """Move the entries whose ends are in different components to the front; returns their number."""
    apart = 0
    for k in range(first, first + count):
        if label[low[k]] != label[high[k]]:
            low[first + apart] = low[k]
            high[first + apart] = high[k]
            apart += 1
    return apart


@inner_kernel
def _join(
    label: NDArray[np.int64], following: NDArray[np.int64], size: NDArray[np.int64], x: int, y: int
) -> None:
    """Give the members of the smaller component the label of the larger one, and link the two rings."""
    if size[x] < size[y]:
        x, y = y, x
    size[x] += size[y]
    member = y
    while label[member] != x:
        label[member] = x
        member = following[member]
    following[x], following[y] = following[y], following[x]


@inner_kernel
def _sink(heap: NDArray[np.int64], count: int, key: NDArray[np.float64], i: int) -> None:
    """Move the edge at index `i` of the heap down to its position, by key and then by edge."""
    if i >= count:
        return
    e = heap[i]
    while 2 * i + 1 < count:
        child = 2 * i + 1
        if child + 1 < count and _before(key, heap[child + 1], heap[child]):
            child += 1
        if not _before(key, heap[child], e):
            break
        heap[i] = heap[child]
        i = child
    heap[i] = e


@inner_kernel
def _before(key: NDArray[np.float64], e: int, f: int) -> bool:
    return key[e] < key[f] or (key[e] == key[f] and e < f)


class EdgeExchange:
    """An overlay among candidate edges, and the local search that changes it.

    No exchange adds a link to a node that has `max_degree` links.

    Attributes:
        linked: a mask of the candidates that are links of the overlay.
    """

    def __init__(
        self,
        interest: Interest,
        candidates: Candidates,
        linked: NDArray[np.bool_],
        max_degree: int | None = None,
    ) -> None:
        self._most_links = interest.node_count if max_degree is None else max_degree
        self.linked = linked.copy()
        self._candidates = candidates
        self._table = new_link_table(topic_bits(interest), candidates.edges, self.linked)

    @property
    def total_weight(self) -> float:
        """The weight of the overlay."""
        return float(self._candidates.weight[self.linked].sum())

    def descend(self) -> None:
        """Try every link once, the heaviest first; the overlay never gets heavier."""
        links = np.flatnonzero(self.linked)
        order = links[np.argsort(-self._candidates.weight[links], kind="stable")]
        self._exchange(order, np.zeros(len(order)))

    def shed(self) -> bool:
        """Exchange links of nodes that have too many, at any weight; whether that leaves no such node.

        An exchange adds no link to a node with too many, so each one brings the overlay closer to the limit.
        """
        before = -1
        while before != (links := int(np.maximum(self._table.degree - self._most_links, 0).sum())):
            before = links
            at_full = (self._table.degree > self._most_links)[self._candidates.edges].any(axis=1)
            order = np.flatnonzero(self.linked & at_full)
            order = order[np.argsort(-self._candidates.weight[order], kind="stable")]
            self._exchange(order, np.full(len(order), np.inf))
        return links == 0

    def _exchange(self, order: NDArray[np.int64], tolerance: NDArray[np.float64]) -> None:
        _exchange(self._table, self._candidates, self.linked, order, tolerance, self._most_links)

    def anneal(self, sweeps: int, heat: float, rng: np.random.Generator, deadline: float = math.inf) -> None:
        """Try every link in random order, sweep after sweep, accepting heavier overlays less and less.

        `heat`: the temperature at the start, in mean weights of a link. It grows with the square root of the
        weight of the link that is tried. If the time to the deadline is too short for all sweeps, there are
        fewer, and it cools down faster.
        """
        weight = self._candidates.weight
        mean = weight[self.linked].mean() if self.linked.any() else 0.0
        began = time.monotonic()
        done = 0.0  # from 0 to 1
        sweep = 0
        while done < 1.0:
            order = rng.permutation(np.flatnonzero(self.linked))
            tolerance = rng.exponential(heat * (1.0 - done), len(order)) * np.sqrt(mean * weight[order])
            self._exchange(order, tolerance)
            sweep += 1
            done = sweep / sweeps
            if deadline < math.inf:
                done = max(done, (time.monotonic() - began) / max(deadline - began, 1e-9))


class Repairs(NamedTuple):
    """Candidates that connect topics again, and as bits the cuts that each of them repairs."""

    edge: NDArray[np.int32]
    repaired: NDArray[np.uint64]


@kernel
def _exchange(
    table: LinkTable,
    candidates: Candidates,
    linked: NDArray[np.bool_],
    order: NDArray[np.int64],
    tolerance: NDArray[np.float64],
    most_links: int,
) -> None:
    """Exchange each link for candidates that weigh less than the link and the tolerance, if there are any.

    With infinite tolerance, only links of nodes with too many are exchanged.
    """
    edges = candidates.edges
    weight = candidates.weight
    cuts = new_cuts(len(table.degree), MOST_CUTS)
    repairs = Repairs(np.empty(len(table.edge), np.int32), np.empty(len(table.edge), np.uint64))
    chosen = np.empty(MOST_CUTS, np.int64)
    for trial in range(len(order)):
        removed = order[trial]
        u, v = int(edges[removed, 0]), int(edges[removed, 1])
        # Less than the weight: exchanges for the same weight could go on for ever.
        limit = weight[removed] * (1.0 - 1e-9) + tolerance[trial]
        if (
            not linked[removed]
            or (limit == np.inf and table.degree[u] <= most_links and table.degree[v] <= most_links)
            or _is_needed(table, weight, u, v, limit)
            or _is_needed(table, weight, v, u, limit)
        ):
            continue
        remove_link(table, u, v)
        count = find_cuts(table, u, v, cuts, False)
        taken = 0
        if 0 < count <= MOST_CUTS:
            mark_sides(cuts, count)
            found = 0
            for c in range(count):
                for i in range(cuts.start[c], cuts.start[c + 1]):
                    x = cuts.nodes[i]
                    if lowest(cuts.sides[x]) != c or table.degree[x] >= most_links:
                        continue  # it was on the side of an earlier cut, or can have no further link
                    for k in range(table.start[x] + table.degree[x], table.start[x + 1]):
                        e = table.edge[k]
                        if (
                            weight[e] < limit
                            and e != removed
                            and table.degree[table.neighbour[k]] < most_links
                        ):
                            repaired = _repaired_cuts(table.bits, cuts, x, table.neighbour[k])
                            if repaired:
                                repairs.edge[found] = e
                                repairs.repaired[found] = repaired
                                found += 1
            clear_sides(cuts, count)
            taken = _choose_repairs(weight, repairs, found, count, limit, chosen)
            if not _have_free_slots(table, edges, repairs, chosen[:taken], most_links):
                taken = 0
        if count > 0 and taken == 0:
            restore_link(table, u, v)
            continue
        linked[removed] = False
        for k in range(taken):
            e = repairs.edge[chosen[k]]
            linked[e] = True
            link_candidate(table, int(edges[e, 0]), int(edges[e, 1]))


@inner_kernel
def _have_free_slots(
    table: LinkTable,
    edges: NDArray[np.int32],
    repairs: Repairs,
    chosen: NDArray[np.int64],
    most_links: int,
) -> bool:
    """Whether the chosen repairs together leave every node within the limit."""
    fit = True
    for i in range(len(chosen)):
        for end in range(2):
            u = edges[repairs.edge[chosen[i]], end]
            links = table.degree[u]
            for j in range(len(chosen)):
                e = repairs.edge[chosen[j]]
                links += edges[e, 0] == u or edges[e, 1] == u
            fit = fit and links <= most_links
    return fit


@kernel
def _is_needed(table: LinkTable, weight: NDArray[np.float64], u: int, v: int, limit: float) -> bool:
    """Whether u shares a topic with no neighbour but v, not even by a candidate below the limit."""
    last_link = table.start[u] + table.degree[u]
    for word in range(table.bits.shape[1]):
        alone = table.bits[u, word] & table.bits[v, word]
        for i in range(table.start[u], table.start[u + 1]):
            if not alone:
                break
            if table.neighbour[i] != v and (i < last_link or weight[table.edge[i]] < limit):
                alone &= ~table.bits[table.neighbour[i], word]
        if alone:
            return True
    return False


@inner_kernel
def _repaired_cuts(bits: NDArray[np.uint64], cuts: Cuts, x: int, y: int) -> np.uint64:
    """As bits, the cuts of whose topics x and y are subscribers on different sides."""
    repaired = np.uint64(0)
    apart = cuts.sides[x] ^ cuts.sides[y]
    while apart:
        c = lowest(apart)
        apart &= apart - np.uint64(1)
        both = bits[x, cuts.word[c]] & bits[y, cuts.word[c]]
        repaired |= ((both >> cuts.bit[c]) & np.uint64(1)) << np.uint64(c)
    return repaired


@kernel
def _choose_repairs(
    weight: NDArray[np.float64],
    repairs: Repairs,
    found: int,
    count: int,
    limit: float,
    chosen: NDArray[np.int64],
) -> int:
    """Choose repairs of all cuts that weigh less than the limit; returns their number, 0 if there are none.

    The lightest candidate that repairs all cuts, or a greedy cover if that is lighter.
    """
    all_cuts = ~np.uint64(0) >> np.uint64(MOST_CUTS - count)
    open_cuts = all_cuts
    total = 0.0
    taken = 0
    while open_cuts and total < limit:
        best, least = -1, np.inf
        for i in range(found):
            gain = popcount(repairs.repaired[i] & open_cuts)
            if gain and weight[repairs.edge[i]] / gain < least:
                best, least = i, weight[repairs.edge[i]] / gain
        if best < 0:
            return 0
        chosen[taken] = best
        taken += 1
        total += weight[repairs.edge[best]]
        open_cuts &= ~repairs.repaired[best]
    lightest, least = -1, min(total, limit) if not open_cuts else limit
    for i in range(found):
        if repairs.repaired[i] == all_cuts and weight[repairs.edge[i]] < least:
            lightest, least = i, weight[repairs.edge[i]]
    if lightest >= 0:
        chosen[0] = lightest
        return 1
    return taken if not open_cuts and total < limit else 0

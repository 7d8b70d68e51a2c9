"""PdMAW (paper 1, Alg. 4): raise all duals together, add the edges that become tight. PdrdMAW (Alg. 5).

Let Y be the sum of all y so far, and M_t(e) the value of Y when the ends of e were merged in topic t. An edge
pays y for each step and topic in which its ends are in different components. Its residual is therefore
w - sum of min(Y, M_t) over the topics that it shares, and it becomes tight when Y reaches

    K(e) = (w(e) - sum of M_t(e) over its shared topics that are merged) / mu(e).

A merge at Y <= K takes Y from the numerator and 1 from the denominator, so K only rises: the algorithm is a
greedy by key, in bands, and residuals are not stored.
"""

from __future__ import annotations

import heapq
import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from broadloom.kernels import inner_kernel, kernel, lowest, popcount
from broadloom.linking._bands import (
    SEGMENT,
    TILE_ROWS,
    TINY,
    Band,
    BandSize,
    RowCounter,
    Rows,
    any_from,
    count_rows,
    counts_for,
    cut_at,
    merge_in_bands,
    sample_rows,
    with_capacity,
)
from broadloom.linking.link_result import LinkResult
from broadloom.linking.local_search import reverse_delete
from broadloom.linking.topic_components import (
    EDGES_ADDED,
    TO_MERGE,
    Components,
    add_edge,
    components_of,
    contribution,
    most_contribution,
    subscription,
    topics_in_same_component,
)
from broadloom.model import EUCLIDEAN, Interest, NoOptions, WeightArrays, Weights, weight_of

# Bounds add up some dozens of rounded numbers; a pair that misses by no more than this is computed exactly.
ROUNDING_MARGIN = 1e-12

# Screening by bounds lets pairs through that are not in the band. A longer band is worth this many times the
# size of a band in such pairs.
SCREENED_PER_PAIR = 4

Y, LAST_SNAPSHOT, RATIO, TO_MERGE_FIRST = range(4)  # indices of `DualHistory.state`

# A snapshot is due when Y has grown by this factor, but not before this share of the merges.
GROWTH = 1.25
FIRST_MERGES = 0.3


def pdmaw(interest: Interest, weights: Weights, options: NoOptions, seed: int) -> LinkResult:  # noqa: ARG001
    """Add the edge of the lowest residual per contribution and charge all edges, until none contributes.

    Reference: Chen, Tock, Jacobsen and Vitenberg, ICDCS 2015 (paper 1), Alg. 4.
    """
    edges, bound = merge_by_residual(components_of(interest), weights.arrays())
    return LinkResult(edges, lower_bound=bound)


def pdrdmaw(interest: Interest, weights: Weights, options: NoOptions, seed: int) -> LinkResult:
    """PdMAW, then remove, last added first, each edge without which every topic stays connected.

    Reference: Chen, Tock, Jacobsen and Vitenberg, ICDCS 2015 (paper 1), Alg. 5.
    """
    result = pdmaw(interest, weights, options, seed)
    return LinkResult(result.edges[reverse_delete(interest, result.edges)], result.lower_bound)


def merge_by_residual(
    components: Components, weights: WeightArrays, size: BandSize | None = None
) -> tuple[NDArray[np.int32], float]:
    """The edges in order, and a lower bound on the weight of any overlay that connects every topic."""
    size = size or BandSize(share=1 / 128)  # exact keys are expensive
    history = new_history(components)
    chosen = merge_in_bands(components, _ByResidual(components, history, weights, size))
    return chosen[:, :2].copy(), _dual_value(components, history, chosen[:, 2])


def _dual_value(components: Components, history: DualHistory, gains: NDArray[np.int32]) -> float:
    """The dual value, rounded down to be safe.

    It is the sum of y_i times the merges still to be done before step i, which is the sum of Y_i times the
    merges of step i. What an edge pays is computed with at most one rounding per topic and a few more, each
    relative to the edge's weight, and keys of the same accuracy are compared; so all duals times this factor
    are feasible, and no overlay can weigh less than their value.
    """
    most_topics = int(np.diff(components.topic_start).max(initial=0))
    value = math.fsum(history.y_of_edge[: len(gains)] * gains)
    return value * (1 - (most_topics + 16) * 2.0**-50)


class _ByResidual:
    """PdMAW's rule: in the order in which the edges become tight, K(e)."""

    columns = 3  # u, v, contribution

    def __init__(
        self, components: Components, history: DualHistory, weights: WeightArrays, size: BandSize
    ) -> None:
        self.size = size
        self._components = components
        self._history = history
        self._weights = weights

    def next_bands(self) -> list[tuple[float, int]]:
        """The highest key of each of the next bands, from a sample, limited by the pairs to be screened."""
        c = self._components
        history = self._history
        weights = self._weights
        rows, stands_for = sample_rows(c, self.size.sampled_rows)
        pairs, bounds = _sample_bounds(c, history, weights, rows)
        if not len(bounds):  # all their pairs are counted in rows that are not in the sample
            rows, stands_for = sample_rows(c, len(c.topic_start))
            pairs, bounds = _sample_bounds(c, history, weights, rows)
        size = self.size.pairs(len(c.topic_start) - 1) / stands_for
        screened = min(len(bounds) - 1, int(SCREENED_PER_PAIR * size))
        farthest = np.partition(bounds, screened)[screened]
        keys = np.sort(_keys_of(c, history, weights, pairs[:, bounds <= farthest]))
        theta = max(float(keys[0]), min(float(farthest), float(keys[min(len(keys) - 1, int(size))])))
        return cut_at(keys, theta, size)

    def collect(self, counter: RowCounter, last: float, rows: Rows) -> Band:
        """The pairs of these rows that become tight by `last`; their third row is the contribution."""
        return _collect_tight(self._components, self._history, self._weights, counter, last, rows)

    def merge(self, band: Band, last: float) -> NDArray[np.int32]:
        """Add the pairs of the band as they become tight: the edges in order, each with its contribution."""
        order = np.argsort(band.key, kind="stable")
        return _merge_tight(self._components, self._history, self._weights, band, order, last)


@kernel
def _sample_bounds(
    c: Components, history: DualHistory, weights: WeightArrays, rows: NDArray[np.int64]
) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """The pairs of these rows that contribute, and a lower bound on the key of each."""
    n = len(c.topic_start) - 1
    size = 0
    pairs = np.empty((2, n), np.int32)
    bounds = np.empty((1, n))
    for r in range(len(rows)):
        pairs = with_capacity(pairs, size, n)
        bounds = with_capacity(bounds, size, n)
        for v in range(n):
            most = most_contribution(c, rows[r], v)
            if most > 0 and counts_for(c, rows[r], v) and most > topics_in_same_component(c, rows[r], v):
                weight = weight_of(weights, rows[r], v)
                pairs[0, size], pairs[1, size] = rows[r], v
                bounds[0, size] = (weight - paid_at_most(c, history, rows[r], v, 0.0)) / most
                size += 1
    return pairs[:, :size].copy(), bounds[0, :size].copy()


@kernel
def _keys_of(
    c: Components, history: DualHistory, weights: WeightArrays, pairs: NDArray[np.int32]
) -> NDArray[np.float64]:
    """The keys of pairs that contribute."""
    keys = np.empty(pairs.shape[1])
    for i in range(len(keys)):
        u, v = int(pairs[0, i]), int(pairs[1, i])
        keys[i] = (weight_of(weights, u, v) - paid(c, history, u, v)) / contribution(c, u, v)
    return keys


def _tight_work(*arguments: Any) -> float:
    """The work of `_collect_tight`, which looks at the later nodes of each row."""
    components, _, _, _, _, rows = arguments
    return (rows[1] - rows[0]) * (len(components.topic_start) - 1) / 2


@kernel(cost=_tight_work)
def _collect_tight(
    c: Components,
    history: DualHistory,
    weights: WeightArrays,
    counter: RowCounter,
    theta: float,
    rows: Rows,
) -> Band:
    n = len(c.topic_start) - 1
    size = 0
    tile = np.empty((TILE_ROWS, n), np.int32)
    pairs = np.empty((3, n), np.int32)
    keys = np.empty((1, n))
    for u in range(rows[0], rows[1]):
        row = (u - rows[0]) % TILE_ROWS
        if row == 0:
            count_rows(c, counter, u, min(u + TILE_ROWS, rows[1]), tile)
        counts = tile[row]
        _screen_row(history, weights, counter.inside, u, theta, counts)
        pairs = with_capacity(pairs, size, n - u)
        keys = with_capacity(keys, size, n - u)
        for first in range(u + 1, n, SEGMENT):
            last = min(first + SEGMENT, n)
            if not any_from(counts[first:last], 1):
                continue
            for v in range(first, last):
                if counts[v] > 0 and _may_be_tight(c, history, weights, u, v, theta * counts[v]):
                    mu = counts[v] - topics_in_same_component(c, u, v)
                    if mu > 0:
                        key = (weight_of(weights, u, v) - paid(c, history, u, v)) / mu
                        if key <= theta:
                            pairs[0, size], pairs[1, size], pairs[2, size] = u, v, mu
                            keys[0, size] = key
                            size += 1
    return Band(pairs[:, :size].copy(), keys[0, :size].copy())


@inner_kernel
def _screen_row(
    history: DualHistory,
    weights: WeightArrays,
    inside: NDArray[np.int32],
    u: int,
    theta: float,
    counts: NDArray[np.int32],
) -> None:
    """Set `counts[v]`, for each v > u, to 0 where (u, v) is too heavy to be tight by theta in any case."""
    y = history.state[Y]
    if weights.kind == EUCLIDEAN and weights.points.shape[1] == 2:
        _screen_plane(y, weights.points, inside, u, theta, counts)
        return
    for v in range(u + 1, len(counts)):
        most = theta * counts[v] + y * min(inside[u], inside[v])
        counts[v] *= weight_of(weights, u, v) * (1 - ROUNDING_MARGIN) <= most


@inner_kernel
def _screen_plane(
    y: float,
    points: NDArray[np.float64],
    inside: NDArray[np.int32],
    u: int,
    theta: float,
    counts: NDArray[np.int32],
) -> None:
    """Compare squares, which needs no root, and without a branch, so that the loop is vectorised."""
    point = points[u]
    own = inside[u]
    later_points = points[u + 1 :]
    others = inside[u + 1 :]
    later = counts[u + 1 :]
    for v in range(len(later)):
        dx, dy = point[0] - later_points[v, 0], point[1] - later_points[v, 1]
        most = theta * later[v] + y * min(own, others[v])
        later[v] = later[v] if (dx * dx + dy * dy) * (1 - 4 * ROUNDING_MARGIN) <= most * most + TINY else 0


@inner_kernel
def _may_be_tight(
    c: Components, history: DualHistory, weights: WeightArrays, u: int, v: int, to_pay: float
) -> bool:
    """Whether (u, v) can become tight in the band: the most it can have paid plus `to_pay` is its weight."""
    missing = weight_of(weights, u, v) * (1 - ROUNDING_MARGIN) - to_pay
    return paid_at_most(c, history, u, v, missing) * (1 + ROUNDING_MARGIN) >= missing


@kernel
def _merge_tight(
    c: Components,
    history: DualHistory,
    weights: WeightArrays,
    band: Band,
    order: NDArray[np.int64],
    theta: float,
) -> NDArray[np.int32]:
    us = band.pairs[0]
    vs = band.pairs[1]
    mus = band.pairs[2]
    keys = band.key
    edges = np.empty((min(len(us), c.tally[TO_MERGE]), 3), np.int32)
    added = 0
    following = 0
    risen = [(0.0, np.int64(0)) for _ in range(0)]
    while following < len(order) or len(risen) > 0:
        if len(risen) == 0 or (
            following < len(order) and (keys[order[following]], order[following]) < risen[0]
        ):
            i = order[following]
            following += 1
        else:
            _, i = heapq.heappop(risen)
        u, v = int(us[i]), int(vs[i])
        mu = contribution(c, u, v)
        if mu == 0:
            continue
        if mu == mus[i]:  # then nothing else about its key has changed either
            raise_y(c, history, keys[i])
            history.y_of_edge[c.tally[EDGES_ADDED]] = history.state[Y]
            add_edge(c, u, v)
            edges[added, 0], edges[added, 1], edges[added, 2] = u, v, mu
            added += 1
            continue
        mus[i] = mu
        keys[i] = (weight_of(weights, u, v) - paid(c, history, u, v)) / mu
        if keys[i] <= theta:
            heapq.heappush(risen, (keys[i], i))
    return edges[:added].copy()


class DualHistory(NamedTuple):
    """The value of Y at every merge: exact for a pair, bounded from above for whole rows.

    A topic of which two nodes were both in the main component at a snapshot was merged for them by then, so
    snapshots bound M_t from above with a few words per pair.

    Attributes:
        y_of_edge: Y at each edge added.
        inside: per snapshot and node, as words: the topics in whose main component the node was.
        y_of_snapshot: Y at each snapshot.
        taken: the number of snapshots.
        state: Y, Y at the last snapshot, the growth that makes the next one due, merges at the beginning.
    """

    y_of_edge: NDArray[np.float64]
    inside: NDArray[np.uint64]
    y_of_snapshot: NDArray[np.float64]
    taken: NDArray[np.int64]
    state: NDArray[np.float64]


def new_history(components: Components, snapshots: int = 24) -> DualHistory:
    """An empty history with space for that many snapshots of the size of `components.subscribed`."""
    merges = int(components.tally[TO_MERGE])
    return DualHistory(
        np.empty(merges),
        np.empty((snapshots, *components.subscribed.shape), np.uint64),
        np.empty(snapshots),
        np.zeros(1, np.int64),
        np.array([0.0, 0.0, GROWTH, merges]),
    )


@inner_kernel
def raise_y(c: Components, history: DualHistory, y: float) -> None:
    """Raise Y to y, at which an edge becomes tight and will be added; take a snapshot first if it is due."""
    state = history.state
    early = c.tally[TO_MERGE] > (1 - FIRST_MERGES) * state[TO_MERGE_FIRST]
    if not early and state[Y] > state[RATIO] * state[LAST_SNAPSHOT] and y > state[Y]:
        _take_snapshot(c, history)
    state[Y] = max(state[Y], y)


@inner_kernel
def _take_snapshot(c: Components, history: DualHistory) -> None:
    """Record the members of the main components; if there is no space, drop every second snapshot first."""
    if history.taken[0] == len(history.y_of_snapshot):
        history.taken[0] //= 2
        for k in range(history.taken[0]):
            history.y_of_snapshot[k] = history.y_of_snapshot[2 * k + 1]
            for u in range(c.outside.shape[0]):
                for w in range(c.outside.shape[1]):
                    history.inside[k, u, w] = history.inside[2 * k + 1, u, w]
        history.state[RATIO] *= history.state[RATIO]
    k = history.taken[0]
    for u in range(c.outside.shape[0]):
        for w in range(c.outside.shape[1]):
            history.inside[k, u, w] = c.subscribed[u, w] & ~c.outside[u, w]
    history.y_of_snapshot[k] = history.state[LAST_SNAPSHOT] = history.state[Y]
    history.taken[0] += 1


@inner_kernel
def paid_at_most(c: Components, history: DualHistory, u: int, v: int, enough: float) -> float:
    """An upper bound on the sum of M_t over the topics of which u and v are both in the main component.

    It stops early, with a bound that is not the best, as soon as this is below `enough`.
    """
    later = history.state[Y]
    shared = 0
    for w in range(c.subscribed.shape[1]):
        shared += popcount(_both_inside(c, u, v, w))
    bound = later * shared
    k = history.taken[0] - 1
    while k >= 0 and bound >= enough:
        shared = 0
        for w in range(c.subscribed.shape[1]):
            shared += popcount(_both_inside(c, u, v, w) & history.inside[k, u, w] & history.inside[k, v, w])
        bound -= (later - history.y_of_snapshot[k]) * shared
        later = history.y_of_snapshot[k]
        k -= 1
    return bound


@inner_kernel
def _both_inside(c: Components, u: int, v: int, w: int) -> np.uint64:
    """The shared topics of one word in whose main component both nodes are."""
    return c.subscribed[u, w] & c.subscribed[v, w] & ~(c.outside[u, w] | c.outside[v, w])


@inner_kernel
def paid(c: Components, history: DualHistory, u: int, v: int) -> float:
    """The sum of M_t over the shared topics in which u and v are merged, in ascending order of topics."""
    total = 0.0
    for w in range(c.subscribed.shape[1]):
        merged = _both_inside(c, u, v, w) | (c.grouped[u, w] & c.grouped[v, w])
        while merged:
            bit = np.uint64(1) << np.uint64(lowest(merged))
            i, j = subscription(c, u, w, bit), subscription(c, v, w, bit)
            in_main = not c.grouped[u, w] & bit
            if in_main and c.entered[i] != c.entered[j]:  # the later one joined the other there
                total += history.y_of_edge[max(c.entered[i], c.entered[j])]
            elif in_main or c.label[i] == c.label[j]:
                total += history.y_of_edge[_merged_by(c, i, j)]
            merged ^= bit
    return total


@inner_kernel
def _merged_by(c: Components, i: int, j: int) -> int:
    """The index of the edge that merged two subscriptions that are in one component.

    Labels absorb each other in a forest whose edge indices rise towards the roots: climb from the side whose
    next step is the earlier one until both sides meet. Without branches, which would be unpredictable.
    """
    edge = 0
    while i != j:
        left, right = c.absorbed_at[i], c.absorbed_at[j]
        edge = min(left, right)
        up = c.absorbed_by[i if left < right else j]
        i, j = (up if left < right else i), (j if left < right else up)
    return edge

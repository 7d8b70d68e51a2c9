"""PdMAW (paper 1, Alg. 4): raise all duals together, take what is tight first. PdrdMAW (Alg. 5) thins it."""

from __future__ import annotations

import heapq
import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from broadloom.kernels import inner_kernel, kernel
from broadloom.linking._bands import BandSize, Rows, blocks_of_rows, cut_at, in_threads
from broadloom.linking._built import Built
from broadloom.linking._components import (
    EDGES_ADDED,
    STILL_TO_MERGE,
    Components,
    add_edge,
    components_of,
    contribution,
    most_contribution,
    same_group,
)
from broadloom.linking._residuals import History, Y, new_history, paid, paid_at_most, raise_y
from broadloom.linking._rows import (
    ROWS_AT_ONCE,
    STRIP,
    TINY,
    RowCounter,
    any_from,
    count_rows,
    counts_for,
    row_counter,
    sample_rows,
    with_room,
)
from broadloom.linking.reverse_delete import reverse_delete
from broadloom.model import EUCLIDEAN, Interest, NoOptions, WeightArrays, Weights, weight_of
from broadloom.progress import stage

# Bounds add up some dozens of rounded numbers; a pair that misses by no more than this is looked at exactly.
SLACK = 1e-12

# Screening by bounds lets pairs through that are not in the band: how many, in bands, is worth a longer band.
LOOSE = 4


class Tight(NamedTuple):
    """The pairs of a band, ascending: when each becomes tight, its contribution then, and their order."""

    u: NDArray[np.int32]
    v: NDArray[np.int32]
    mu: NDArray[np.int32]
    key: NDArray[np.float64]
    order: NDArray[np.int64]


def pdmaw(interest: Interest, weights: Weights, options: NoOptions, seed: int) -> Built:  # noqa: ARG001
    """Add the edge of the lowest residual a contribution, a price that all pay, until none contributes."""
    edges, bound = merge_by_residual(components_of(interest), weights.arrays())
    return Built(edges, lower_bound=bound)


def pdrdmaw(interest: Interest, weights: Weights, options: NoOptions, seed: int) -> Built:
    """PdMAW, then drop in reverse order of selection each edge without which every topic stays connected."""
    built = pdmaw(interest, weights, options, seed)
    return Built(built.edges[reverse_delete(interest, built.edges)], built.lower_bound)


def merge_by_residual(
    components: Components, weights: WeightArrays, size: BandSize | None = None
) -> tuple[NDArray[np.int32], float]:
    """The edges in order, and a lower bound on the weight of any overlay that connects every topic."""
    size = size or BandSize(share=1 / 128)  # an exact key is dear
    n = len(components.topic_start) - 1
    history = new_history(components)
    edges = [np.empty((0, 3), np.int32)]
    with stage("link", to_merge := int(components.tally[STILL_TO_MERGE])) as done:
        while components.tally[STILL_TO_MERGE] > 0:
            for theta, pieces in _next_bands(components, history, weights, size):
                for rows in blocks_of_rows(n, (0, n), n * (n - 1) / 2 / pieces):
                    band = _collect(components, history, weights, theta, rows, size)
                    edges.append(_sweep(components, history, weights, band, theta))
            done(to_merge - components.tally[STILL_TO_MERGE])
    chosen = np.concatenate(edges)
    return chosen[:, :2].copy(), _dual(components, history, chosen[:, 2])


def _dual(components: Components, history: History, gains: NDArray[np.int32]) -> float:
    """The dual value, rounded towards safety.

    It is the sum of y_i times the merges still to be done before step i, which is the sum of Y_i times the
    merges of step i. What an edge pays is computed with at most one rounding a topic and a few more, each
    relative to the edge's weight, and its key is compared with another such; so all duals times this factor
    are feasible, and no overlay can weigh less than their value.
    """
    most_topics = int(np.diff(components.topic_start).max(initial=0))
    value = math.fsum(history.y_of_edge[: len(gains)] * gains)
    return value * (1 - (most_topics + 16) * 2.0**-50)


def _next_bands(
    components: Components, history: History, weights: WeightArrays, size: BandSize
) -> list[tuple[float, int]]:
    """Where the next band ends: by the sampled keys, but not so far that too many pairs are looked at."""
    rows, stands_for = sample_rows(components, size.sampled_rows)
    pairs, bounds = _sample_bounds(components, history, weights, rows)
    if not len(bounds):  # all their pairs count in rows that are not among them
        rows, stands_for = sample_rows(components, len(components.topic_start))
        pairs, bounds = _sample_bounds(components, history, weights, rows)
    room = size.pairs(len(components.topic_start) - 1) / stands_for
    farthest = np.partition(bounds, at := min(len(bounds) - 1, int(LOOSE * room)))[at]
    keys = np.sort(_keys_of(components, history, weights, pairs[:, bounds <= farthest]))
    theta = max(float(keys[0]), min(float(farthest), float(keys[min(len(keys) - 1, int(room))])))
    return cut_at(keys, theta, room)


@kernel
def _sample_bounds(
    c: Components, history: History, weights: WeightArrays, rows: NDArray[np.int64]
) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """The pairs of these rows that contribute, and a lower bound on the key of each."""
    n, size = len(c.topic_start) - 1, 0
    pairs, bounds = np.empty((2, n), np.int32), np.empty((1, n))
    for r in range(len(rows)):
        pairs, bounds = with_room(pairs, size, n), with_room(bounds, size, n)
        for v in range(n):
            most = most_contribution(c, rows[r], v)
            if most > 0 and counts_for(c, rows[r], v) and most > same_group(c, rows[r], v):
                weight = weight_of(weights, rows[r], v)
                pairs[0, size], pairs[1, size] = rows[r], v
                bounds[0, size] = (weight - paid_at_most(c, history, rows[r], v, 0.0)) / most
                size += 1
    return pairs[:, :size].copy(), bounds[0, :size].copy()


@kernel
def _keys_of(
    c: Components, history: History, weights: WeightArrays, pairs: NDArray[np.int32]
) -> NDArray[np.float64]:
    """The keys of pairs that contribute."""
    keys = np.empty(pairs.shape[1])
    for i in range(len(keys)):
        u, v = int(pairs[0, i]), int(pairs[1, i])
        keys[i] = (weight_of(weights, u, v) - paid(c, history, u, v)) / contribution(c, u, v)
    return keys


def _collect(
    components: Components,
    history: History,
    weights: WeightArrays,
    theta: float,
    rows: Rows,
    size: BandSize,
) -> Tight:
    """The pairs of these rows that become tight by theta."""
    counter = row_counter(components, size.by_bits)
    inside = np.bitwise_count(components.subscribed & ~components.outside).sum(axis=1, dtype=np.int32)
    blocks = blocks_of_rows(len(components.topic_start) - 1, rows)
    found = in_threads(
        lambda block: _collect_rows(components, history, weights, counter, inside, theta, block), blocks
    )
    pairs = np.concatenate([one for one, _ in found], axis=1)
    key = np.concatenate([one for _, one in found])
    return Tight(pairs[0], pairs[1], pairs[2], key, np.argsort(key, kind="stable"))


@kernel
def _collect_rows(
    c: Components,
    history: History,
    weights: WeightArrays,
    counter: RowCounter,
    inside: NDArray[np.int32],
    theta: float,
    rows: Rows,
) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    n, size = len(c.topic_start) - 1, 0
    tile = np.empty((ROWS_AT_ONCE, n), np.int32)
    pairs, keys = np.empty((3, n), np.int32), np.empty((1, n))
    for u in range(rows[0], rows[1]):
        row = (u - rows[0]) % ROWS_AT_ONCE
        if row == 0:
            count_rows(c, counter, u, min(u + ROWS_AT_ONCE, rows[1]), tile)
        counts = tile[row]
        _screen_row(history, weights, inside, u, theta, counts)
        pairs, keys = with_room(pairs, size, n - u), with_room(keys, size, n - u)
        for first in range(u + 1, n, STRIP):
            last = min(first + STRIP, n)
            if not any_from(counts[first:last], 1):
                continue
            for v in range(first, last):
                if counts[v] > 0 and _may_be_tight(c, history, weights, u, v, theta * counts[v]):
                    mu = counts[v] - same_group(c, u, v)
                    if mu > 0:
                        key = (weight_of(weights, u, v) - paid(c, history, u, v)) / mu
                        if key <= theta:
                            pairs[0, size], pairs[1, size], pairs[2, size] = u, v, mu
                            keys[0, size] = key
                            size += 1
    return pairs[:, :size].copy(), keys[0, :size].copy()


@inner_kernel
def _screen_row(
    history: History,
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
        counts[v] *= weight_of(weights, u, v) * (1 - SLACK) <= most


@inner_kernel
def _screen_plane(
    y: float,
    points: NDArray[np.float64],
    inside: NDArray[np.int32],
    u: int,
    theta: float,
    counts: NDArray[np.int32],
) -> None:
    """Squares spare the root, and without a branch the loop runs in vectors."""
    here, own, there, others, later = points[u], inside[u], points[u + 1 :], inside[u + 1 :], counts[u + 1 :]
    for v in range(len(later)):
        dx, dy = here[0] - there[v, 0], here[1] - there[v, 1]
        most = theta * later[v] + y * min(own, others[v])
        later[v] = later[v] if (dx * dx + dy * dy) * (1 - 4 * SLACK) <= most * most + TINY else 0


@inner_kernel
def _may_be_tight(
    c: Components, history: History, weights: WeightArrays, u: int, v: int, to_pay: float
) -> bool:
    """Whether what (u, v) has paid at most, and what it pays yet by the end of the band, is its weight."""
    missing = weight_of(weights, u, v) * (1 - SLACK) - to_pay
    return paid_at_most(c, history, u, v, missing) * (1 + SLACK) >= missing


@kernel
def _sweep(
    c: Components, history: History, weights: WeightArrays, band: Tight, theta: float
) -> NDArray[np.int32]:
    """Add the pairs of the band as they become tight; the edges added, in order, each with its gain."""
    edges = np.empty((min(len(band.u), c.tally[STILL_TO_MERGE]), 3), np.int32)
    added, at = 0, 0
    risen = [(0.0, np.int64(0)) for _ in range(0)]
    while at < len(band.order) or len(risen) > 0:
        if len(risen) == 0 or (
            at < len(band.order) and (band.key[band.order[at]], band.order[at]) < risen[0]
        ):
            i = band.order[at]
            at += 1
        else:
            _, i = heapq.heappop(risen)
        u, v = int(band.u[i]), int(band.v[i])
        mu = contribution(c, u, v)
        if mu == 0:
            continue
        if mu == band.mu[i]:  # and so nothing else about its key has changed
            raise_y(c, history, band.key[i])
            history.y_of_edge[c.tally[EDGES_ADDED]] = history.state[Y]
            add_edge(c, u, v)
            edges[added, 0], edges[added, 1], edges[added, 2] = u, v, mu
            added += 1
            continue
        band.mu[i] = mu
        band.key[i] = (weight_of(weights, u, v) - paid(c, history, u, v)) / mu
        if band.key[i] <= theta:
            heapq.heappush(risen, (band.key[i], i))
    return edges[:added].copy()

"""Greedy by weight a contribution, in bands of keys: GrMAW without a heap of all pairs.

The key w/mu of a pair only rises, since its contribution only falls. A band holds the pairs whose key is at
most `theta`, sorted; a pair whose key has risen when it is reached goes to a small heap if it is still in the
band, and is found again by a later pass if it is not.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from broadloom.kernels import kernel
from broadloom.linking._bands import BandSize, Rows, blocks_of_rows, cut_at, in_threads
from broadloom.linking._components import (
    STILL_TO_MERGE,
    Components,
    add_edge,
    contribution,
    most_contribution,
    same_group,
)
from broadloom.linking._rows import (
    ROWS_AT_ONCE,
    STRIP,
    RowCounter,
    any_from,
    count_rows,
    counts_for,
    row_counter,
    sample_rows,
    screen_row,
    with_room,
)
from broadloom.model import WeightArrays, weight_of
from broadloom.progress import stage

# Screening compares w <= theta * mu, which rounds otherwise than w / mu <= theta: this much is let through.
SLACK = 1 + 1e-12


class Keys(NamedTuple):
    """The pairs of a band, ascending, each with a lower bound on its key, and their order by key."""

    u: NDArray[np.int32]
    v: NDArray[np.int32]
    key: NDArray[np.float64]
    order: NDArray[np.int64]


def merge_by_key(
    components: Components, weights: WeightArrays, size: BandSize | None = None
) -> NDArray[np.int32]:
    """Add the pair of the lowest weight a contribution until none contributes; the edges, in order."""
    size = size or BandSize()
    n = len(components.topic_start) - 1
    edges = [np.empty((0, 2), np.int32)]
    with stage("link", to_merge := int(components.tally[STILL_TO_MERGE])) as done:
        while components.tally[STILL_TO_MERGE] > 0:
            for theta, pieces in _next_bands(components, weights, size):
                for rows in blocks_of_rows(n, (0, n), n * (n - 1) / 2 / pieces):
                    band = _collect(components, weights, theta, rows, size)
                    edges.append(_sweep(components, weights, band, theta))
            done(to_merge - components.tally[STILL_TO_MERGE])
    return np.concatenate(edges)


def _next_bands(components: Components, weights: WeightArrays, size: BandSize) -> list[tuple[float, int]]:
    """The highest key of the next band, and in how many pieces to look at it; see `cut_at`."""
    rows, stands_for = sample_rows(components, size.sampled_rows)
    keys = np.sort(_sample_keys(components, weights, rows))
    if not len(keys):  # all their pairs count in rows that are not among them
        rows, stands_for = sample_rows(components, len(components.topic_start))
        keys = np.sort(_sample_keys(components, weights, rows))
    room = size.pairs(len(components.topic_start) - 1) / stands_for
    return cut_at(keys, float(keys[min(len(keys) - 1, int(room))]), room)


@kernel
def _sample_keys(c: Components, weights: WeightArrays, rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """The keys of the pairs that contribute, of these rows."""
    n, size = len(c.topic_start) - 1, 0
    keys = np.empty((1, n))
    for r in range(len(rows)):
        keys = with_room(keys, size, n)
        for v in range(n):
            most = most_contribution(c, rows[r], v)
            if most > 0 and counts_for(c, rows[r], v):
                mu = most - same_group(c, rows[r], v)
                if mu > 0:
                    keys[0, size] = weight_of(weights, rows[r], v) / mu
                    size += 1
    return keys[0, :size].copy()


def _collect(components: Components, weights: WeightArrays, theta: float, rows: Rows, size: BandSize) -> Keys:
    """The pairs of these rows whose key is at most theta."""
    counter = row_counter(components, size.by_bits)
    blocks = blocks_of_rows(len(components.topic_start) - 1, rows)
    found = in_threads(lambda block: _collect_rows(components, weights, counter, theta, block), blocks)
    u, v, key = found[0] if len(found) == 1 else map(np.concatenate, zip(*found, strict=True))
    return Keys(u, v, key, np.argsort(key, kind="stable"))


@kernel
def _collect_rows(
    c: Components, weights: WeightArrays, counter: RowCounter, theta: float, rows: Rows
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float64]]:
    n, size = len(c.topic_start) - 1, 0
    tile = np.empty((ROWS_AT_ONCE, n), np.int32)
    pairs, keys = np.empty((2, n), np.int32), np.empty((1, n))
    for u in range(rows[0], rows[1]):
        row = (u - rows[0]) % ROWS_AT_ONCE
        if row == 0:
            count_rows(c, counter, u, min(u + ROWS_AT_ONCE, rows[1]), tile)
        counts = tile[row]
        screen_row(weights, u, theta * SLACK, counts)
        pairs, keys = with_room(pairs, size, n - u), with_room(keys, size, n - u)
        for first in range(u + 1, n, STRIP):
            last = min(first + STRIP, n)
            if not any_from(counts[first:last], 1):
                continue
            for v in range(first, last):
                if counts[v] > 0:
                    mu, weight = counts[v] - same_group(c, u, v), weight_of(weights, u, v)
                    if mu > 0 and weight / mu <= theta:
                        pairs[0, size], pairs[1, size], keys[0, size] = u, v, weight / mu
                        size += 1
    return pairs[0, :size].copy(), pairs[1, :size].copy(), keys[0, :size].copy()


@kernel
def _sweep(c: Components, weights: WeightArrays, band: Keys, theta: float) -> NDArray[np.int32]:
    """Merge the pairs of the band in the order of their keys as these rise; the edges added, in order."""
    edges = np.empty((min(len(band.u), c.tally[STILL_TO_MERGE]), 2), np.int32)
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
        key = weight_of(weights, u, v) / mu
        if key == band.key[i]:
            add_edge(c, u, v)
            edges[added, 0], edges[added, 1] = u, v
            added += 1
        elif key <= theta:
            band.key[i] = key
            heapq.heappush(risen, (key, i))
    return edges[:added].copy()

"""Greedy by contribution, in bands of levels: GM without a queue and without a table of pairs.

Contributions only fall, so GM is, for each level from the highest to 1, one sweep in lexicographic order that
adds every pair whose contribution is still that high when it is reached.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from broadloom.kernels import kernel
from broadloom.linking._bands import BandSize, Rows, blocks_of_rows, in_threads
from broadloom.linking._components import (
    STILL_TO_MERGE,
    Components,
    add_edge,
    least_same_group,
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
    with_room,
)
from broadloom.progress import stage


class Levels(NamedTuple):
    """The pairs of a band, ascending, each with an upper bound on its contribution."""

    u: NDArray[np.int32]
    v: NDArray[np.int32]
    level: NDArray[np.int32]


def merge_by_level(components: Components, size: BandSize | None = None) -> NDArray[np.int32]:
    """Add the pair of the highest contribution until there is none; the edges, in order."""
    size = size or BandSize(share=1 / 32, sampled_rows=8)  # integers are quickly swept: fewer passes pay
    n = len(components.topic_start) - 1
    edges = [np.empty((0, 2), np.int32)]
    ceiling = int(np.diff(components.topic_start).max(initial=0)) + 1
    with stage("link", to_merge := int(components.tally[STILL_TO_MERGE])) as done:
        while components.tally[STILL_TO_MERGE] > 0:
            floor, pieces = _next_band(components, ceiling, size)
            for rows in blocks_of_rows(n, (0, n), n * (n - 1) / 2 / pieces):
                band = _collect(components, floor, rows, size)
                edges.append(_sweep(components, band, floor))
            ceiling = floor
            done(to_merge - components.tally[STILL_TO_MERGE])
    return np.concatenate(edges)


def _next_band(components: Components, ceiling: int, size: BandSize) -> tuple[int, int]:
    """The lowest level of the next band, and in how many pieces to sweep it if it is one level of too many.

    Within one level the order is that of the rows, so some rows can be swept before the next are looked at.
    """
    rows, stands_for = sample_rows(components, size.sampled_rows)
    at_level = _sample_levels(components, rows, ceiling)
    pairs = np.cumsum(at_level[::-1])[::-1] * stands_for
    room = size.pairs(len(components.topic_start) - 1)
    floor = next((level for level in range(1, ceiling) if pairs[level] <= room), ceiling - 1)
    return floor, max(1, math.ceil(pairs[floor] / room))


@kernel
def _sample_levels(c: Components, rows: NDArray[np.int64], ceiling: int) -> NDArray[np.int64]:
    """How many pairs of these rows there are at each level below the ceiling."""
    at_level = np.zeros(ceiling, np.int64)
    for r in range(len(rows)):
        for v in range(len(c.topic_start) - 1):
            level = most_contribution(c, rows[r], v)
            if level > 0 and counts_for(c, rows[r], v):
                at_level[level - least_same_group(c, rows[r], v)] += 1
    return at_level


def _collect(components: Components, floor: int, rows: Rows, size: BandSize) -> Levels:
    """The pairs of these rows that contribute `floor` or more."""
    counter = row_counter(components, size.by_bits)
    blocks = blocks_of_rows(len(components.topic_start) - 1, rows)
    found = in_threads(lambda block: _collect_rows(components, counter, floor, block), blocks)
    return found[0] if len(found) == 1 else Levels(*map(np.concatenate, zip(*found, strict=True)))


@kernel
def _collect_rows(c: Components, counter: RowCounter, floor: int, rows: Rows) -> Levels:
    n, size = len(c.topic_start) - 1, 0
    tile = np.empty((ROWS_AT_ONCE, n), np.int32)
    found = np.empty((3, n), np.int32)
    for u in range(rows[0], rows[1]):
        row = (u - rows[0]) % ROWS_AT_ONCE
        if row == 0:
            count_rows(c, counter, u, min(u + ROWS_AT_ONCE, rows[1]), tile)
        counts = tile[row]
        found = with_room(found, size, n - u)
        for first in range(u + 1, n, STRIP):
            last = min(first + STRIP, n)
            if not any_from(counts[first:last], floor):
                continue
            for v in range(first, last):
                if counts[v] >= floor:
                    level = counts[v] - least_same_group(c, u, v)
                    if level >= floor:
                        found[0, size], found[1, size], found[2, size] = u, v, level
                        size += 1
    return Levels(found[0, :size].copy(), found[1, :size].copy(), found[2, :size].copy())


@kernel
def _sweep(c: Components, band: Levels, floor: int) -> NDArray[np.int32]:
    """Sweep the band's levels from its highest down to `floor`; the edges added, in order."""
    edges = np.empty((min(len(band.u), c.tally[STILL_TO_MERGE]), 2), np.int32)
    added, level = 0, 0
    for i in range(len(band.u)):
        level = max(level, band.level[i])
    while level >= floor:
        for i in range(len(band.u)):
            if band.level[i] == level:
                u, v = int(band.u[i]), int(band.v[i])
                now = most_contribution(c, u, v)
                if now >= level:
                    now -= same_group(c, u, v)
                band.level[i] = now
                if now == level:
                    add_edge(c, u, v)
                    edges[added, 0], edges[added, 1] = u, v
                    added += 1
        level -= 1
    return edges[:added].copy()

"""What the figures of papers 1 and 2 measure of an overlay, and the latencies that links weigh."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from broadloom.linking.link import link
from broadloom.model import Interest, Weights
from broadloom.papers.figure import Case, Row
from broadloom.workload import mean_weight, read_matrix, weights

# Measured round trips, where a folder of data is given; nodes beyond their number share places.
MEASURED = {
    "RIPE Atlas": "latency_ripe_atlas723_2023-06-19.npz",
    "WonderNetwork": "latency_wondernetwork_2020-07-19.npz",
}
GENERATED = "points in the plane"
FLOOR_MS = 0.5  # between nodes at one place
# Kernels are compiled by a run on so many nodes, so far apart that they lie in several sites of 100.
WARM_NODES, SPREAD = 60, 5
MEASURES = (
    "mean_degree",
    "max_degree",
    "weighted_mean_degree",
    "mean_diameter",
    "weighted_mean_diameter",
)


def latency_sources() -> list[str]:
    """Where the weights of links come from on this machine, the one that most figures take first."""
    return [name for name in MEASURED if _place(name).exists()] or [GENERATED]


def latencies(nodes: int, seed: int, source: str) -> Weights:
    """Latencies between nodes, with mean 1: of a measured matrix, or distances in the plane."""
    if source == GENERATED:
        return weights(nodes, "planar", mean=1.0, seed=seed)
    matrix = read_matrix(_place(source))
    matrix = np.fmin(matrix, matrix.T)
    matrix = np.maximum(np.where(np.isnan(matrix), np.nanmedian(matrix), matrix), FLOOR_MS)
    at = np.random.default_rng(seed).permutation(-(-nodes // len(matrix)) * len(matrix))[:nodes] % len(matrix)
    chosen = matrix[np.ix_(at, at)]
    chosen[at[:, None] == at] = FLOOR_MS
    np.fill_diagonal(chosen, 0.0)
    given = Weights.dense(chosen)
    return given.scaled(1.0 / mean_weight(given))


def _place(source: str) -> Path:
    return Path(os.environ.get("BROADLOOM_DATA", "no data")) / MEASURED[source]


def measured(case: Case, interest: Interest, links: Weights | None, algorithm: str, **options: Any) -> Row:
    """A row: the case, and what an algorithm's overlay of it is like. Seconds are of the processor."""
    few = np.arange(0, interest.node_count, SPREAD)[: case.get("warm", WARM_NODES)]
    link(interest.subset(few), None if links is None else links.subset(few), algorithm, **options)  # compiles
    began = time.process_time()
    plan = link(interest, links, algorithm, **options)
    seconds = time.process_time() - began
    found = plan.metrics()
    return {**case, "algorithm": algorithm, "seconds": seconds} | {name: found[name] for name in MEASURES}

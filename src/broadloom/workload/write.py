"""A generated workload as canonical tables."""

from pathlib import Path

import numpy as np
import pyarrow as pa

from broadloom.model import Interest, Weights, write_link_problem
from broadloom.workload.churn import Event, events_table
from broadloom.workload.regions import REGIONS


def write(
    folder: str | Path,
    interest: Interest,
    weights: Weights | None = None,
    events: tuple[Event, ...] = (),
    in_regions: bool = False,
    overwrite: bool = False,
) -> None:
    """Write a workload as a folder of canonical tables: nodes, subscriptions, latency and events.

    Args:
        folder: the place; it appears whole or not at all.
        interest: who wants what.
        weights: become coordinates (euclidean), sites, or the table latency.
        events: become the table events, if there are any.
        in_regions: whether the weights' sites are the clouds' regions, so that they get their names.
        overwrite: replace what is there.
    """
    tables: dict[str, pa.Table] = {}
    if weights is not None:
        tables = _weight_tables(interest, weights, in_regions)
    if events:
        tables["events"] = events_table(interest, events)
    write_link_problem(folder, interest, tables, overwrite)


def _weight_tables(interest: Interest, weights: Weights, in_regions: bool) -> dict[str, pa.Table]:
    names = pa.array(interest.node_ids, pa.string())
    if weights.kind == "uniform":
        return {}
    if weights.kind == "euclidean":
        axes = ["x", "y", "z", *(f"x{axis}" for axis in range(3, weights.points.shape[1]))]
        return {"nodes": pa.table({"node": names} | dict(zip(axes, weights.points.T, strict=False)))}
    if weights.kind == "dense":
        return {"latency": _latency_table(interest.node_ids, weights.table, inner=False)}
    labels = _site_labels(weights, in_regions)
    tables = {"nodes": pa.table({"node": names, "site": pa.array(labels, pa.string()).take(weights.site)})}
    if len(weights.table) or (weights.inner, weights.outer) != (1.0, 10.0):
        used, first = np.unique(weights.site, return_index=True)
        between = weights.subset(first).matrix()
        inside = weights.table.diagonal()[used] if len(weights.table) else weights.inner
        np.fill_diagonal(between, inside)
        tables["latency"] = _latency_table([labels[s] for s in used], between, inner=True)
    return tables


def _site_labels(weights: Weights, in_regions: bool) -> list[str]:
    if in_regions:
        return [region.name for region in REGIONS]
    return [f"site-{site}" for site in range(weights.site.max(initial=-1) + 1)]


def _latency_table(ids: list[str] | tuple[str, ...], matrix: np.ndarray, inner: bool) -> pa.Table:
    """The upper triangle of a matrix as rows; with its diagonal if `inner`."""
    u, v = np.triu_indices(len(ids), 0 if inner else 1)
    names = pa.array(ids, pa.string())
    return pa.table({"src": names.take(u), "dst": names.take(v), "rtt_ms": matrix[u, v]})

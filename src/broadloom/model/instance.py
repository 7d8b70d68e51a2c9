"""A folder of canonical tables as what algorithms take: the interest, the weights, and the nodes' table."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from broadloom.errors import InputError
from broadloom.model._atomic import new_folder
from broadloom.model._check import refuse
from broadloom.model.interest import Interest
from broadloom.model.matrix import fill_missing, symmetrised
from broadloom.model.tables import coordinate_columns, need_table, read_table, write_table
from broadloom.model.weights import Weights

SOURCES = ("auto", "latency", "coordinates", "sites", "uniform")


@dataclass(frozen=True)
class Instance:
    """What is given: who wants what, what links cost, and the nodes' table with whatever else is known."""

    interest: Interest
    weights: Weights
    nodes: pa.Table


def read_instance(
    folder: str | Path,
    weights: str = "auto",
    missing: str = "refuse",
    floor: float | None = None,
    inner: float = 1.0,
    outer: float = 10.0,
) -> Instance:
    """The instance in a folder of canonical tables.

    Args:
        folder: holds `subscriptions` and, if there are, `nodes` and `latency`.
        weights: where weights come from: the table "latency" (between nodes, or between sites), "coordinates"
            (x, y, ... of the nodes), "sites" (`inner` and `outer`), "uniform" (all 1); "auto": the first of
            these that is there.
        missing: "refuse" a latency table with missing pairs, or fill them by the shortest "path".
        floor: raise latencies below this to it, so that a zero is no error.
        inner: the weight inside a site, for "sites".
        outer: the weight between sites, for "sites".

    Raises:
        InputError: a table or column is missing, or something in it is wrong.
    """
    place = Path(folder)
    nodes = read_table(place, "nodes")
    interest = Interest.from_table(need_table(place, "subscriptions"), nodes)
    if nodes is None:
        nodes = pa.table({"node": pa.array(interest.node_ids, pa.string())})
    latency = read_table(place, "latency")
    source = _source(weights, latency, nodes)
    if source == "latency":
        if latency is None:
            raise InputError(f"{place} has no table latency; choose other weights or add it")
        made = _from_latency(latency, nodes, missing, floor)
    elif source == "coordinates":
        made = _from_coordinates(nodes, place)
    elif source == "sites":
        made = Weights.sites(_site_numbers(nodes, place)[0], inner, outer)
    else:
        made = Weights.uniform(interest.node_count)
    return Instance(interest, made, nodes)


def write_instance(
    folder: str | Path, interest: Interest, tables: dict[str, pa.Table] | None = None, overwrite: bool = False
) -> None:
    """Write an interest as canonical tables, and more tables beside it, as one folder that appears whole.

    `tables` may hold `nodes`; by default it is the interest's nodes alone.
    """
    names, topics = pa.array(interest.node_ids, pa.string()), pa.array(interest.topic_ids, pa.string())
    owners = np.repeat(np.arange(interest.node_count), np.diff(interest.topic_start))
    own = {
        "nodes": pa.table({"node": names}),
        "subscriptions": pa.table({"node": names.take(owners), "topic": topics.take(interest.topics)}),
    }
    with new_folder(Path(folder), overwrite) as scratch:
        for name, table in (own | (tables or {})).items():
            write_table(scratch, name, table)


def _source(asked: str, latency: pa.Table | None, nodes: pa.Table) -> str:
    if asked not in SOURCES:
        raise InputError(f"no weights {asked!r}; there are {', '.join(SOURCES)}")
    if asked != "auto":
        return asked
    if latency is not None:
        return "latency"
    if coordinate_columns(nodes):
        return "coordinates"
    return "sites" if "site" in nodes.column_names else "uniform"


def _from_coordinates(nodes: pa.Table, place: Path) -> Weights:
    columns = coordinate_columns(nodes)
    if not columns:
        raise InputError(
            f"{place}: table nodes has no coordinates (x, y, ...); add them or choose other weights"
        )
    return Weights.euclidean(np.stack([nodes.column(name).to_numpy() for name in columns], axis=1))


def _site_numbers(nodes: pa.Table, place: Path | str) -> tuple[NDArray[np.int32], list[str]]:
    """The site of each node as a number, and the sites' names in ascending order."""
    if "site" not in nodes.column_names:
        raise InputError(f"{place}: table nodes has no column 'site'; add it or choose other weights")
    column = nodes.column("site")
    refuse(
        np.asarray(column.is_null()),
        lambda row: f"node {nodes.column('node')[row].as_py()!r} has no site",
        "give each node a site",
    )
    names = sorted(set(column.to_pylist()))
    return _positions(column, names).astype(np.int32), names


def _from_latency(latency: pa.Table, nodes: pa.Table, missing: str, floor: float | None) -> Weights:
    """Latency between nodes as a dense matrix; between sites, if its names are the nodes' sites, by site."""
    names = nodes.column("node").to_pylist()
    ends = [_positions(latency.column(side), names) for side in ("src", "dst")]
    if "site" in nodes.column_names and all(np.all(end < 0) for end in ends):
        site, sites = _site_numbers(nodes, "latency")
        ends = [_positions(latency.column(side), sites) for side in ("src", "dst")]
        matrix = _matrix(latency, ends, len(sites), missing, floor)
        refuse(
            np.isnan(matrix.diagonal()),
            lambda s: f"latency has no row from site {sites[s]!r} to itself",
            "give the round trip inside each site",
        )
        return Weights.sites(site, between=matrix)
    return Weights.dense(_matrix(latency, ends, len(names), missing, floor))


def _matrix(
    latency: pa.Table, ends: list[NDArray[np.int64]], size: int, missing: str, floor: float | None
) -> NDArray[np.float64]:
    """The latency table as a matrix, each pair once, symmetric by the mean of its directions."""
    for side, end in zip(("src", "dst"), ends, strict=True):
        refuse(
            end < 0,
            lambda row, side=side: (
                f"latency row {row}: {side} {latency.column(side)[row].as_py()!r} is unknown"
            ),  # type: ignore[misc]
            "name a node of table nodes, or a site in all rows",
        )
    code = ends[0] * size + ends[1]
    first = np.zeros(len(code), bool)
    first[np.unique(code, return_index=True)[1]] = True
    pair = [latency.column(side) for side in ("src", "dst")]
    refuse(
        ~first,
        lambda row: f"latency row {row}: {pair[0][row].as_py()!r} to {pair[1][row].as_py()!r} is there twice",
        "give one value a pair (ingest takes the median of samples)",
    )
    values = latency.column("rtt_ms").to_numpy().astype(np.float64)
    refuse(
        ~(np.isfinite(values) & (values >= (0 if floor is not None else np.nextafter(0, 1)))),
        lambda row: f"latency row {row}: rtt_ms is {values[row]}",
        "give a finite number above 0" + ("" if floor is not None else ", or a floor for zeros"),
    )
    matrix = np.full((size, size), np.nan)
    matrix[ends[0], ends[1]] = values if floor is None else np.maximum(values, floor)
    return fill_missing(symmetrised(matrix, "mean"), missing)


def _positions(column: pa.ChunkedArray, names: list[str]) -> NDArray[np.int64]:
    """The index of each value among the names, -1 where it is none of them."""
    found = pc.index_in(column, pa.array(names, pa.string()))
    return pc.fill_null(found, -1).to_numpy().astype(np.int64)

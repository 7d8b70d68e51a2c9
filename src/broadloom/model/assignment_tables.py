"""Subscriber assignment problems as canonical tables: publisher, brokers, subscribers, density."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from broadloom.checks import raise_for_first, repeated
from broadloom.errors import InputError
from broadloom.model.assignment import AssignmentProblem
from broadloom.model.density import Density
from broadloom.storage.folders import new_folder
from broadloom.storage.tables import need_table, read_table, write_table

LIMITS = ("max_delay", "alpha", "beta", "beta_max")


def read_problem(
    folder: str | Path, subscribers: pa.Table | None = None, **limits: float | None
) -> AssignmentProblem:
    """The problem in a folder of tables.

    Args:
        folder: holds `publisher` (one row: its place, and limits if there are), `brokers`, `subscribers`, and
            `density` if events do not fall uniformly.
        subscribers: some of them, in place of the whole table.
        **limits: max_delay, alpha, beta, beta_max, in place of those in the table.

    Raises:
        InputError: a table or column is missing, or something in it is wrong.
    """
    place = Path(folder)
    publisher, brokers = need_table(place, "publisher"), need_table(place, "brokers")
    if subscribers is None:
        subscribers = need_table(place, "subscribers")
    if publisher.num_rows != 1:
        raise InputError(f"{place}: table publisher has {publisher.num_rows} rows; expected one")
    stored = {name: publisher[name][0].as_py() for name in LIMITS if name in publisher.column_names}
    chosen: dict[str, Any] = {
        name: value for name, value in (stored | _given(limits)).items() if value is not None
    }
    bounds = subscribers["max_latency"].to_numpy() if "max_latency" in subscribers.column_names else None
    shares = brokers["capacity"].to_numpy() if "capacity" in brokers.column_names else None
    return AssignmentProblem(
        matrix(publisher, "publisher", "place")[0],
        matrix(brokers, "brokers", "place"),
        _parents(brokers),
        matrix(subscribers, "subscribers", "place"),
        matrix(subscribers, "subscribers", "lo"),
        matrix(subscribers, "subscribers", "hi"),
        max_latency=bounds,
        capacity=shares,  # type: ignore[arg-type]
        density=_density(read_table(place, "density")),
        broker_ids=tuple(brokers["broker"].to_pylist()),
        subscriber_ids=tuple(subscribers["subscriber"].to_pylist()),
        **chosen,
    )


def write_problem(folder: str | Path, problem: AssignmentProblem, overwrite: bool = False) -> None:
    """Write a problem as tables, as one folder that appears whole."""
    with new_folder(Path(folder), overwrite) as scratch:
        for name, table in problem_tables(problem).items():
            write_table(scratch, name, table)


def problem_tables(problem: AssignmentProblem) -> dict[str, pa.Table]:
    """The tables of a problem."""
    brokers = pa.array(problem.broker_ids or map(str, range(problem.broker_count)), pa.string())
    who = pa.array(problem.subscriber_ids or map(str, range(problem.subscriber_count)), pa.string())
    parent = pa.array(problem.broker_parent, mask=problem.broker_parent < 0)
    subscribers = {
        "subscriber": who,
        "place": numbers_column(problem.subscriber_place),
        "lo": numbers_column(problem.lo),
        "hi": numbers_column(problem.hi),
    }
    if problem.max_latency is not None:
        subscribers["max_latency"] = pa.array(problem.max_latency, mask=np.isnan(problem.max_latency))
    density = {} if problem.density is None else {"density": density_table(problem.density)}
    return {
        "publisher": pa.table(
            {"place": numbers_column([problem.publisher])}
            | {name: [float(getattr(problem, name))] for name in LIMITS}
        ),
        "brokers": pa.table(
            {
                "broker": brokers,
                "parent": brokers.take(parent),
                "place": numbers_column(problem.broker_place),
                "capacity": problem.capacity,
            }
        ),
        "subscribers": pa.table(subscribers),
        **density,
    }


def density_table(density: Density) -> pa.Table:
    """A histogram as a table, one row a cell."""
    corners = [
        np.stack([side.ravel() for side in np.meshgrid(*sides, indexing="ij")], axis=1)
        for sides in ([line[:-1] for line in density.edges], [line[1:] for line in density.edges])
    ]
    lo, hi = map(numbers_column, corners)
    return pa.table({"lo": lo, "hi": hi, "mass": density.mass.ravel()})


def _density(table: pa.Table | None) -> Density | None:
    """The histogram in a table of cells; those that are left out have no events."""
    if table is None or table.num_rows == 0:
        return None
    lo, hi = (matrix(table, "density", side) for side in ("lo", "hi"))
    if lo.shape != hi.shape:
        raise InputError("table density: lo and hi differ in length; give a number an axis")
    edges = [np.unique(np.concatenate((low, high))) for low, high in zip(lo.T, hi.T, strict=True)]
    cell = [np.searchsorted(line, low) for line, low in zip(edges, lo.T, strict=True)]
    is_cell = [
        line[np.minimum(at + 1, len(line) - 1)] == high
        for line, at, high in zip(edges, cell, hi.T, strict=True)
    ]
    raise_for_first(
        ~np.all(is_cell, axis=0) | np.any(lo >= hi, axis=1),
        lambda row: (
            f"table density row {row}: {lo[row].tolist()} to {hi[row].tolist()} is not one cell of the grid"
        ),
        "cut space into cells by the same lines everywhere",
    )
    shape = tuple(len(line) - 1 for line in edges)
    flat = np.ravel_multi_index(cell, shape)
    raise_for_first(
        repeated(flat),
        lambda row: f"table density row {row}: {lo[row].tolist()} to {hi[row].tolist()} is there twice",
        "give each cell once",
    )
    mass = np.zeros(shape)
    mass.ravel()[flat] = table["mass"].to_numpy()
    return Density(edges, mass)


def numbers_column(rows: NDArray[np.float64] | Sequence[NDArray[np.float64]]) -> pa.Array:
    """Rows of numbers as a column of lists."""
    flat = np.concatenate([*rows, np.empty(0)]) if isinstance(rows, list) else np.ravel(rows)
    width = len(rows[0]) if len(rows) else 0
    return pa.ListArray.from_arrays(np.arange(len(rows) + 1, dtype=np.int32) * width, flat)


def _given(limits: dict[str, float | None]) -> dict[str, float]:
    return {name: value for name, value in limits.items() if value is not None}


def matrix(table: pa.Table, name: str, column: str) -> NDArray[np.float64]:
    """A column of lists as a matrix, if all are of one length and none is missing."""
    lists = table[column].combine_chunks()
    size = np.asarray(pc.fill_null(pc.list_value_length(lists), -1))
    width = int(size[0]) if len(size) else 0
    raise_for_first(
        (size != width) | (size < 0),
        lambda row: f"table {name} row {row}: {column} is {lists[row].as_py()}",
        f"give {max(width, 1)} numbers a row, as in row 0",
    )
    return np.asarray(lists.flatten(), np.float64).reshape(len(size), width)


def _parents(brokers: pa.Table) -> NDArray[np.int32]:
    """The index of each broker's parent, -1 where there is none."""
    if "parent" not in brokers.column_names:
        return np.full(brokers.num_rows, -1, np.int32)
    parent = brokers["parent"].combine_chunks()
    found = np.asarray(pc.fill_null(pc.index_in(parent, brokers["broker"].combine_chunks()), -1))
    missing = np.asarray(pc.fill_null(pc.equal(parent, ""), True))
    raise_for_first(
        (found < 0) & ~missing,
        lambda row: f"table brokers row {row}: parent {parent[row].as_py()!r} is unknown",
        "name a broker, or none below the publisher",
    )
    return np.where(missing, -1, found).astype(np.int32)

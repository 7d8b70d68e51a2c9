"""The interest of every broker: what its clients subscribe to, and the content that its subscribers want.

Links are planned by topic, while assigned subscribers want rectangles of event space. So event space is cut
into cells, each of them a topic, and a broker wants every cell that a rectangle of its subscribers touches.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from numpy.typing import NDArray

from broadloom.errors import InputError
from broadloom.model import Grid, RowLedger
from broadloom.plans import AssignmentResult
from broadloom.storage.tables import list_column, read_table, require_table, write_table

CELLS = 128
# Before the cells' names: no client's topic begins with it, and no wildcard of theirs matches it.
CONTENT = "$content"


def check_brokers(tables: Path) -> None:
    """Refuse brokers to assign to that are not among the nodes, where a source says which nodes there are."""
    if not _nodes_are_given(tables):
        return
    known = set(require_table(tables, "nodes").column("node").to_pylist())
    for broker in require_table(tables, "brokers").column("broker").to_pylist():
        if broker not in known:
            raise InputError(f"broker {broker!r} of table brokers is not in table nodes; add it, or drop it")


def write_interest(folder: Path, tables: Path, assigned: Path | None = None, cells: int = CELLS) -> None:
    """Write the tables that `link` takes into a folder that is there.

    Args:
        folder: gets `nodes`, `subscriptions` and `latency` as far as they are known; with an assignment also
            `content`: the rectangle of each topic that is a cell.
        tables: what ingest made.
        assigned: the assignment of subscribers, if there is one.
        cells: about how many cells event space is cut into.

    Raises:
        InputError: `cells` is below 1.
    """
    if cells < 1:
        raise InputError(f"[interest] cells is {cells}; cut event space into at least 1")
    for name in ("nodes", "subscriptions", "latency"):
        if (tables / f"{name}.parquet").exists():
            shutil.copytree(tables / f"{name}.parquet", folder / f"{name}.parquet")
    if assigned is not None:
        result = AssignmentResult.load(assigned)
        if not _nodes_are_given(tables):
            _add_nodes(folder, result.problem.broker_ids or ())
        _add_content(folder, result, cells)


def _nodes_are_given(tables: Path) -> bool:
    """Whether a source said which nodes there are; otherwise ingest took those that subscribe."""
    return any(account.table == "nodes" for account in RowLedger.load(tables).accounts)


def _add_nodes(folder: Path, brokers: Iterable[str]) -> None:
    have = read_table(folder, "nodes")
    names = set(brokers).union([] if have is None else have.column("node").to_pylist())
    _replace(folder, "nodes", pa.table({"node": pa.array(sorted(names), pa.string())}))


def _add_content(folder: Path, result: AssignmentResult, cells: int) -> None:
    """Add the cells that the subscribers of each broker want, and a table of what the cells are."""
    problem = result.problem
    corners = np.concatenate([problem.lo, problem.hi])
    grid = Grid.covering(corners if len(corners) else np.zeros((0, 1)), cells)
    broker, cell = np.nonzero(_wanted(result, grid))
    content, brokers = _content(grid), pa.array(problem.broker_ids, pa.string())
    pairs = pa.table({"node": brokers.take(pa.array(broker)), "topic": content["topic"].take(pa.array(cell))})
    have = read_table(folder, "subscriptions")
    _replace(folder, "subscriptions", pairs if have is None else pa.concat_tables([have, pairs]))
    pyarrow.parquet.write_table(content, folder / "content.parquet")


def _wanted(result: AssignmentResult, grid: Grid) -> NDArray[np.bool_]:
    """Which cells the subscribers of each broker want (brokers, cells)."""
    problem = result.problem
    wanted = np.zeros((problem.broker_count, grid.channel_count), bool)
    for broker in np.unique(result.broker_of):
        mine = result.broker_of == broker
        wanted[broker] = grid.touched(problem.lo[mine], problem.hi[mine]).any(axis=0)
    return wanted


def _content(grid: Grid) -> pa.Table:
    """The topics that are cells, named by their position on each axis, and their rectangles."""
    cell = np.indices(grid.cells).reshape(len(grid.cells), -1).T
    names = ["/".join([CONTENT, *map(str, position)]) for position in cell.tolist()]
    width = (np.array(grid.hi) - grid.lo) / grid.cells
    corners = {name: list_column(grid.lo + (cell + add) * width) for name, add in (("lo", 0), ("hi", 1))}
    return pa.table({"topic": pa.array(names, pa.string())} | corners)


def _replace(folder: Path, name: str, table: pa.Table) -> None:
    shutil.rmtree(folder / f"{name}.parquet", ignore_errors=True)
    write_table(folder, name, table)

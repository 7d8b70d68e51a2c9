"""Market result: the broker of each user, and the cost (paper 5)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from broadloom import measures
from broadloom.checks import check_instance, integer_array, lock_array, raise_for_first
from broadloom.errors import InputError
from broadloom.model import LOAD_TOLERANCE, MarketProblem, check_core
from broadloom.notebook import PREVIEW_ROWS
from broadloom.plans.stage_result import StageResult
from broadloom.storage import as_path, committed, is_committed, read_plan_json

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, eq=False)
class MarketResult(StageResult):
    """An assignment of users to brokers, with the routing of their traffic through the core.

    Attributes:
        problem: the market problem.
        broker_of: the broker of each user, int32 (users,).
        core: the routing through the core: "mst", "pair" or "tree".
        algorithm: the algorithm that made the assignment.
        seed: the seed of its random choices.
        options: the options that the algorithm ran with.
        lower_bound: a proven lower bound of the cost of any assignment with this routing, or None.
        notes: further facts that the algorithm reports (whether the optimum is proven, number of moves, ...).

    Example:
        >>> import broadloom as bl
        >>> market = bl.MarketProblem([[3], [0]], [[0], [1]], [[1, 2], [2, 1]], [[0, 1], [1, 0]], capacity=9)
        >>> result = bl.assign(market, algorithm="greedy-packing")
        >>> result.broker_of.tolist(), result.cost
        ([0, 1], 9.0)
    """

    problem: MarketProblem
    broker_of: NDArray[np.int32]
    core: str = "mst"
    algorithm: str = ""
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    lower_bound: float | None = None
    notes: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_core(self.core)
        problem = check_instance(self.problem, MarketProblem, "the market", "make one with MarketProblem")
        broker_of = integer_array(self.broker_of, "brokers of users")
        if broker_of.shape != (problem.user_count,):
            raise InputError(
                f"{problem.user_count:,} users but an assignment of shape {broker_of.shape}; "
                "give one broker per user"
            )
        raise_for_first(
            (broker_of < 0) | (broker_of >= problem.broker_count),
            lambda i: f"user {problem.user_ids[i]!r} is at broker {broker_of[i]}",
            f"brokers are 0 to {problem.broker_count - 1}",
        )
        assignment = broker_of.astype(np.int32)
        lock_array(assignment)
        object.__setattr__(self, "broker_of", assignment)
        self._check_run()

    @cached_property
    def _metrics(self) -> dict[str, Any]:
        return measures.market_metrics(self.problem, self.broker_of, self.core)

    @property
    def cost(self) -> float:
        """The objective: the cost of access links and core links."""
        return float(self._metrics["cost"])

    @property
    def feasible(self) -> bool:
        """Whether no broker carries more than its capacity."""
        return bool(self._metrics["feasible"])

    @cached_property
    def flows(self) -> NDArray[np.float64]:
        """The traffic between each two brokers, the sum of both directions, (brokers, brokers)."""
        return measures.market_flows(self.problem, self.broker_of, self.core)

    def summary(self) -> str:
        """The result in a sentence."""
        measured = self._metrics
        return (
            f"{self.algorithm}: {self.problem.user_count:,} users on {measured['brokers_used']:,} of "
            f"{self.problem.broker_count:,} brokers, cost {self.cost:.6g} "
            f"(access {measured['access_cost']:.4g}, core {measured['core_cost']:.4g} by {self.core})"
            f"{self._gap_text}"
        )

    @classmethod
    def load(cls, path: str | Path, problem: MarketProblem | None = None) -> MarketResult:
        """Read a result that `save` wrote.

        Args:
            path: the folder of the result.
            problem: the market problem; None: the one in the folder. Folders of version 0.1 hold none.

        Raises:
            InputError: there is no result at `path`, it is damaged, or it has other users or brokers.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        from broadloom.storage.tables import require_table

        folder = committed(path)
        if problem is not None:
            check_instance(
                problem, MarketProblem, "the market", "give the market that the result was made from"
            )
        record = read_plan_json(folder)
        table = require_table(folder, "assignment")
        if record.get("kind") != "market":
            raise InputError(
                f"{folder / 'plan.json'} is not the record of a market; "
                "it was written by another stage, or is damaged"
            )
        if problem is None:
            problem = _saved_problem(folder, record)
        if table["user"].to_pylist() != list(problem.user_ids):
            raise InputError(
                f"{folder} assigns other users than this market has; give the market that it was made from"
            )
        brokers = pa.array(problem.broker_ids, pa.string())
        broker_of = pc.fill_null(pc.index_in(table["broker"], brokers), -1).to_numpy()
        names = ("core", "algorithm", "seed", "options", "lower_bound", "notes")
        if missing := [name for name in names if name not in record]:
            raise InputError(f"{folder / 'plan.json'} has no {missing[0]!r}; it is damaged")
        return cls(problem, broker_of, **{name: record[name] for name in names})

    @property
    def _objective(self) -> float:
        return self.cost

    @property
    def _decision(self) -> NDArray[np.int32]:
        return self.broker_of

    def _stage_values(self) -> tuple[object, ...]:
        return (self.broker_of, self.core, self.problem)

    def _facts(self) -> dict[str, object]:
        return {"core": self.core, "cost": self.cost, "feasible": self.feasible}

    def _repr_html_(self) -> str:
        users = self.problem.user_ids
        brokers = self.problem.broker_ids
        first = [(users[i], brokers[b]) for i, b in enumerate(self.broker_of[:PREVIEW_ROWS].tolist())]
        return self._html(("user", "broker"), first, len(users))

    def _fault(self) -> str | None:
        return None if self.feasible else "a broker is overloaded"

    def _own_record(self) -> dict[str, Any]:
        return {"kind": "market", "core": self.core, "channels": self.problem.channel_count}

    def _tables(self) -> dict[str, pa.Table]:
        import pyarrow as pa

        users = pa.array(self.problem.user_ids, pa.string())
        brokers = pa.array(self.problem.broker_ids, pa.string())
        u, v = np.nonzero(np.triu(self.flows, 1))
        load = np.bincount(self.broker_of, self.problem.demand, minlength=len(brokers))
        return {
            "assignment": pa.table(
                {"user": users, "broker": brokers.take(self.broker_of), "demand": self.problem.demand}
            ),
            "loads": pa.table({"broker": brokers, "load": load, "capacity": self.problem.capacity}),
            "flows": pa.table({"u": brokers.take(u), "v": brokers.take(v), "rate": self.flows[u, v]}),
            **_problem_tables(self.problem),
        }

    def __repr__(self) -> str:
        return f"MarketResult({self.algorithm}, {self.problem!r})"


def _problem_tables(problem: MarketProblem) -> dict[str, pa.Table]:
    """The market problem as tables: rates and wants as lists of channels, prices as lists of numbers."""
    import pyarrow as pa

    sender, channel = np.nonzero(problem.rates)
    start, wanted = problem.wanted
    sends = np.concatenate(([0], np.cumsum(np.bincount(sender, minlength=problem.user_count))))
    users = {
        "user": pa.array(problem.user_ids, pa.string()),
        "wants": pa.LargeListArray.from_arrays(start, pa.array(wanted, pa.int32())),
        "sends": pa.LargeListArray.from_arrays(sends, pa.array(channel, pa.int32())),
        "rates": pa.LargeListArray.from_arrays(sends, problem.rates[sender, channel]),
        "access": _rows_of_numbers(problem.access),
    }
    brokers = {
        "broker": pa.array(problem.broker_ids, pa.string()),
        "capacity": problem.capacity,
        "core": _rows_of_numbers(problem.core),
    }
    return {"market_users": pa.table(users), "market_brokers": pa.table(brokers)}


def _rows_of_numbers(matrix: NDArray[np.float64]) -> pa.Array:
    """A column with one list per row of the matrix; offsets have 64 bits, for very many users."""
    import pyarrow as pa

    rows, width = matrix.shape
    return pa.LargeListArray.from_arrays(np.arange(rows + 1, dtype=np.int64) * width, matrix.ravel())


def _saved_problem(folder: Path, record: Mapping[str, Any]) -> MarketProblem:
    """The market problem that `_problem_tables` wrote."""
    import pyarrow as pa

    from broadloom.storage.tables import read_table

    users = read_table(folder, "market_users")
    brokers = read_table(folder, "market_brokers")
    if users is None or brokers is None or "channels" not in record:
        raise InputError(
            f"{folder} does not hold its market: an older version wrote it; pass the market as problem"
        )
    shape = (users.num_rows, record["channels"])
    try:
        wants = np.zeros(shape, np.bool_)
        wants[_list_entries(users["wants"])] = True
        rates = np.zeros(shape)
        rates[_list_entries(users["sends"])] = _flat(users["rates"])
        return MarketProblem(
            rates,
            wants,
            _flat(users["access"]).reshape(users.num_rows, brokers.num_rows),
            _flat(brokers["core"]).reshape(brokers.num_rows, brokers.num_rows),
            brokers["capacity"].to_numpy(),
            tuple(users["user"].to_pylist()),
            tuple(brokers["broker"].to_pylist()),
        )
    except (KeyError, TypeError, ValueError, IndexError, pa.ArrowException) as error:
        raise InputError(f"{folder}: the market of the plan is damaged: {error}") from error


def _flat(column: pa.ChunkedArray) -> NDArray[Any]:
    """The values of all lists of a column."""
    return np.asarray(column.combine_chunks().flatten())


def _list_entries(column: pa.ChunkedArray) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The row and the value of each entry of the lists of a column."""
    import pyarrow.compute as pc

    sizes = np.asarray(pc.list_value_length(column.combine_chunks()))
    return np.repeat(np.arange(len(sizes)), sizes), _flat(column).astype(np.int64)


def is_market(folder: str | Path) -> bool:
    """Whether a folder holds the result of a market."""
    return is_committed(folder) and (committed(folder) / "assignment.parquet").exists()


def saved_market_metrics(folder: str | Path) -> dict[str, Any]:
    """The measures, lower bound and gap in the record of a saved market.

    Raises:
        InputError: there is no market at `folder`, or it is damaged.
    """
    record = read_plan_json(committed(folder))
    if record.get("kind") != "market" or not isinstance(record.get("metrics"), dict):
        raise InputError(f"{as_path(folder) / 'plan.json'} is not the record of a market, or is damaged")
    return {**record["metrics"], "lower_bound": record.get("lower_bound"), "gap": record.get("gap")}


def overloaded_brokers(folder: str | Path) -> list[str]:
    """The ids of the overloaded brokers, computed from the tables of a saved market."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from broadloom.storage.tables import require_table

    found = committed(folder)
    users = require_table(found, "assignment")
    brokers = require_table(found, "loads")
    names = brokers["broker"]
    broker_of = pc.fill_null(
        pc.index_in(users["broker"], pa.array(names.to_pylist(), pa.string())), -1
    ).to_numpy()
    if (broker_of < 0).any():
        raise InputError(f"{folder} assigns to a broker that table loads does not have; it is damaged")
    load = np.bincount(broker_of, users["demand"].to_numpy(), minlength=len(names))
    over = load > brokers["capacity"].to_numpy() * (1 + LOAD_TOLERANCE)
    return [names[i].as_py() for i in np.flatnonzero(over)]

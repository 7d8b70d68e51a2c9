"""Assignment result: the broker of each subscriber, and the content filter of each broker (paper 4)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from broadloom import measures
from broadloom.checks import check_instance
from broadloom.errors import InputError
from broadloom.model import (
    AssignmentProblem,
    ContentFilter,
    assignment_tables,
    check_assignment,
    check_filters,
    read_assignment_problem,
)
from broadloom.notebook import PREVIEW_ROWS
from broadloom.plans.stage_result import StageResult, write_plan_json
from broadloom.storage import committed, is_committed, read_plan_json

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT = 1
# Subscribers per block of a saved assignment; a block takes about 50 MB.
BLOCK_ROWS = 100_000


@dataclass(frozen=True, eq=False)
class AssignmentResult(StageResult):
    """An assignment of subscribers to leaf brokers, with a content filter for every broker.

    Attributes:
        problem: the assignment problem.
        broker_of: the broker of each subscriber, int32 (m,).
        filters: one tuple per broker of (lo, hi) pairs, the rectangles of its filter.
        algorithm: the algorithm that made the assignment.
        seed: the seed of its random choices.
        options: the options that the algorithm ran with.
        lower_bound: a proven lower bound of the bandwidth of any allowed assignment, or None.
        notes: further facts that the algorithm reports (the load balance factor used, the LP's value, ...).

    Examples:
        >>> import broadloom as bl
        >>> problem = bl.AssignmentProblem([0], [[1]], [-1], [[2]], [[0]], [[3]])
        >>> result = bl.assign(problem, algorithm="closest")
        >>> result.broker_of.tolist(), result.metrics()["bandwidth"]
        ([0], 3.0)
    """

    problem: AssignmentProblem
    broker_of: NDArray[np.int32]
    filters: tuple[ContentFilter, ...]
    algorithm: str = ""
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    lower_bound: float | None = None
    notes: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        problem = check_instance(
            self.problem, AssignmentProblem, "the problem", "make one with AssignmentProblem"
        )
        object.__setattr__(self, "broker_of", check_assignment(problem, self.broker_of))
        object.__setattr__(self, "filters", check_filters(problem, self.filters))
        self._check_run()

    @cached_property
    def _metrics(self) -> dict[str, Any]:
        return measures.content_metrics(self.problem, self.broker_of, self.filters)

    @property
    def bandwidth(self) -> float:
        """The objective: the sum of the measures of all filters."""
        return float(self._metrics["bandwidth"])

    @property
    def feasible(self) -> bool:
        """Whether every constraint holds: latency, filters, nesting, and load within `beta_max`."""
        return bool(self._metrics["feasible"])

    @property
    def overload(self) -> NDArray[np.int64]:
        """The number of subscribers of each broker above the limit of `beta_max`, int64 (n,)."""
        load = np.bincount(self.broker_of, minlength=self.problem.broker_count)
        most = self.problem.beta_max * self.problem.capacity * self.problem.subscriber_count
        return np.maximum(load - np.floor(most * (1 + 1e-9)).astype(np.int64), 0)

    def summary(self) -> str:
        """The result in a sentence."""
        return assignment_summary(self.algorithm, self._metrics)

    @classmethod
    def load(cls, path: str | Path) -> AssignmentResult:
        """Read a result that `save` wrote.

        Raises:
            InputError: there is no assignment at `path`, or it is damaged.
        """
        from broadloom.storage.tables import require_table

        folder = committed(path)
        record = read_assignment_record(folder)
        problem = read_assignment_problem(folder)
        return cls(
            problem,
            _broker_indices(folder, problem, require_table(folder, "assignments")),
            _read_filters(folder, problem),
            record["algorithm"],
            record["seed"],
            record["options"],
            record["lower_bound"],
            record["notes"],
        )

    @property
    def _objective(self) -> float:
        return self.bandwidth

    @property
    def _decision(self) -> NDArray[np.int32]:
        return self.broker_of

    def _stage_values(self) -> tuple[object, ...]:
        return (self.broker_of, self.filters, self.problem)

    def _facts(self) -> dict[str, object]:
        return {name: self._metrics[name] for name in ("bandwidth", "lbf", "delay_rms", "delay_max")}

    def _repr_html_(self) -> str:
        problem = self.problem
        brokers = problem.broker_ids or range(problem.broker_count)
        subscribers = problem.subscriber_ids or range(problem.subscriber_count)
        first = [(subscribers[j], brokers[b]) for j, b in enumerate(self.broker_of[:PREVIEW_ROWS].tolist())]
        return self._html(("subscriber", "broker"), first, problem.subscriber_count)

    def _fault(self) -> str | None:
        broken = [promise for promise in ("nesting", "alpha") if promise in self._metrics["violated"]]
        return f"filters violate {' and '.join(broken)}" if broken else None

    def _tables(self) -> dict[str, pa.Table]:
        import pyarrow as pa

        tables = assignment_tables(self.problem)
        subscribers = tables["subscribers"]["subscriber"]
        brokers = tables["brokers"]["broker"]
        tables["assignments"] = pa.table({"subscriber": subscribers, "broker": brokers.take(self.broker_of)})
        tables["filters"] = filters_table(self.filters, brokers)
        return tables

    def _own_record(self) -> dict[str, Any]:
        return {"format": FORMAT, "stage": "assign"}

    def __repr__(self) -> str:
        return f"AssignmentResult({self.algorithm}, {self.problem!r})"


def _broker_indices(folder: Path, problem: AssignmentProblem, table: pa.Table) -> NDArray[np.int32]:
    """The index of the broker in each row of a table."""
    import pyarrow as pa

    from broadloom.storage.tables import indices_in

    found = indices_in(table.column("broker"), pa.array(problem.broker_ids, pa.string()))
    if (found < 0).any():
        raise InputError(f"{folder} assigns to a broker that table brokers does not have; it is damaged")
    return found.astype(np.int32)


def _read_filters(folder: Path, problem: AssignmentProblem) -> tuple[ContentFilter, ...]:
    """The filter of each broker."""
    from broadloom.storage.tables import require_table

    boxes = require_table(folder, "filters")
    owner = _broker_indices(folder, problem, boxes)
    filters: list[list[Any]] = [[] for _ in range(problem.broker_count)]
    for b, lo, hi in zip(owner, boxes["lo"].to_pylist(), boxes["hi"].to_pylist(), strict=True):
        filters[b].append((np.array(lo, np.float64), np.array(hi, np.float64)))
    return tuple(map(tuple, filters))


class AssignedBlock(NamedTuple):
    """Some subscribers of an assignment, as a problem of their own, and the broker of each."""

    problem: AssignmentProblem
    broker_of: NDArray[np.int32]


@dataclass(frozen=True)
class SavedAssignment:
    """A saved assignment that is read block by block, for more subscribers than memory should hold.

    Attributes:
        folder: its folder.
        rows: the number of subscribers per block.

    Raises:
        InputError: there is no assignment in the folder, or it is damaged.
    """

    folder: Path
    rows: int = BLOCK_ROWS

    @cached_property
    def record(self) -> dict[str, Any]:
        """The record of the assignment (`plan.json`)."""
        return read_assignment_record(self.folder)

    @cached_property
    def first(self) -> AssignmentProblem:
        """The problem with the subscribers of the first block only."""
        return next(iter(self.blocks())).problem

    @cached_property
    def filters(self) -> tuple[ContentFilter, ...]:
        """The filter of each broker."""
        return _read_filters(self.folder, self.first)

    def summary(self) -> str:
        """The result in a sentence."""
        return assignment_summary(self.record["algorithm"], self.record["metrics"])

    def blocks(self) -> Iterator[AssignedBlock]:
        """All subscribers; at least one block, even without any."""
        from broadloom.storage.tables import table_blocks

        names = ("subscribers", "assignments")
        both = zip(*(table_blocks(self.folder, name, self.rows) for name in names), strict=True)
        for subscribers, assigned in both:
            problem = read_assignment_problem(self.folder, subscribers)
            yield AssignedBlock(problem, _broker_indices(self.folder, problem, assigned))


def assignment_summary(algorithm: str, metrics: Mapping[str, Any]) -> str:
    """An assignment in a sentence."""
    state = "feasible" if metrics["feasible"] else f"NOT feasible ({', '.join(metrics['violated'])})"
    return (
        f"{algorithm}: {metrics['subscribers']:,} subscribers on {metrics['leaves']:,} brokers, bandwidth "
        f"{metrics['bandwidth']:.4g}, load balance factor {metrics['lbf']:.3f}, {state}"
    )


def filters_table(filters: Sequence[ContentFilter], brokers: pa.Array | pa.ChunkedArray) -> pa.Table:
    """Filters as a table, one row per rectangle."""
    import pyarrow as pa

    from broadloom.storage.tables import list_column

    owner = np.repeat(np.arange(len(filters)), [len(boxes) for boxes in filters])
    sides = [[box[side] for boxes in filters for box in boxes] for side in (0, 1)]
    return pa.table({"broker": brokers.take(owner), "lo": list_column(sides[0]), "hi": list_column(sides[1])})


def write_assignment_record(
    folder: Path,
    algorithm: str,
    seed: int,
    options: Mapping[str, Any],
    notes: Mapping[str, Any],
    metrics: Mapping[str, Any],
) -> None:
    """Write the `plan.json` of an assignment that was measured elsewhere, without a lower bound."""
    run = {"algorithm": algorithm, "seed": seed, "options": options, "notes": notes, "metrics": metrics}
    own = {"format": FORMAT, "stage": "assign", "lower_bound": None, "gap": None}
    write_plan_json(folder, own | run)


def is_assignment(folder: str | Path) -> bool:
    """Whether a folder holds the result of an assignment."""
    return is_committed(folder) and (committed(folder) / "assignments.parquet").exists()


def read_assignment_record(folder: Path) -> dict[str, Any]:
    """The record of an assignment; raises if it is damaged or of a newer format."""
    path = folder / "plan.json"
    record = read_plan_json(folder)
    if record.get("stage") != "assign":
        raise InputError(
            f"{path} is not the record of an assignment; it was written by another stage, or is damaged"
        )
    if record.get("format", 0) > FORMAT:
        raise InputError(
            f"{path} has format {record['format']}, this version reads up to {FORMAT}; upgrade broadloom"
        )
    return record

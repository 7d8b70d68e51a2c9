"""Base class of the results of all stages: options, notes, gap, verification, and the folder of a plan."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from broadloom._version import VERSION
from broadloom.checks import (
    check_count,
    check_flag,
    check_instance,
    check_number,
    is_text,
    same_value,
    shown,
)
from broadloom.errors import InputError, InternalError
from broadloom.notebook import html_summary
from broadloom.storage import as_path, new_folder, to_json_value

if TYPE_CHECKING:
    import pyarrow as pa


class StageResult(ABC):
    """Base of the results of all stages; each stage adds its fields, tables and measures.

    Attributes:
        algorithm: the name of the algorithm that made the result.
        seed: the seed of its random choices.
        options: the options that the algorithm ran with.
        lower_bound: a proven lower bound of the objective, or None.
        notes: further facts that the algorithm reports.

    Two results are equal if everything is: the problem, the decision, the algorithm with its seed and
    options, the bound and the notes. So a loaded result equals the saved one.
    """

    algorithm: str
    seed: int
    options: Mapping[str, Any]
    lower_bound: float | None
    notes: Mapping[str, Any]

    @property
    @abstractmethod
    def _objective(self) -> float:
        """The number that the stage minimises, to which `lower_bound` refers."""

    @property
    @abstractmethod
    def _metrics(self) -> Mapping[str, Any]:
        """All measures; subclasses compute them once."""

    @abstractmethod
    def _fault(self) -> str | None:
        """A description of the promise that this result breaks, or None; checked by independent code."""

    @property
    @abstractmethod
    def _decision(self) -> NDArray[np.integer[Any]]:
        """The array that the stage decides: links, or the broker of each subscriber or user."""

    @abstractmethod
    def _stage_values(self) -> tuple[object, ...]:
        """The values that only this stage has, for `==`; the decision first."""

    @abstractmethod
    def _tables(self) -> dict[str, pa.Table]:
        """The tables of the plan's folder, by name."""

    @abstractmethod
    def _own_record(self) -> dict[str, Any]:
        """The entries of `plan.json` that only this stage writes."""

    def metrics(self) -> dict[str, Any]:
        """All measures of the result; see `broadloom.measures`."""
        return dict(self._metrics)

    @property
    def gap(self) -> float | None:
        """The largest possible distance from the optimum: (objective - lower_bound) / lower_bound.

        None if there is no bound, or if the bound is 0 and the objective is not.
        """
        return relative_gap(self.lower_bound, self._objective)

    @property
    def _gap_text(self) -> str:
        """The gap as the end of a sentence, empty if it is unknown."""
        return "" if self.gap is None else f", at most {self.gap:.1%} above the best possible"

    def verify(self) -> None:
        """Check the promises of every algorithm of the stage, by independent code.

        Raises:
            InternalError: the algorithm broke a promise.
        """
        fault = self._fault()
        if fault is not None:
            raise InternalError(f"{self.algorithm}: {fault}; please report this")

    def save(self, path: str | Path, overwrite: bool = False) -> None:
        """Write the result as a folder that appears at `path` by one rename.

        The folder holds Parquet tables and `plan.json`: the algorithm with its seed and options, the notes,
        the measures and the bound.

        Raises:
            InputError: the result breaks a promise of its stage, or `path` exists and `overwrite` is false.
        """
        from broadloom.storage.tables import write_table

        target = as_path(path)
        check_flag(overwrite, "overwrite")
        fault = self._fault()
        if fault is not None:
            raise InputError(f"{fault}; only a valid plan can be saved")
        run = {
            "algorithm": self.algorithm,
            "seed": self.seed,
            "options": dict(self.options),
            "notes": dict(self.notes),
            "lower_bound": self.lower_bound,
            "gap": self.gap,
            "metrics": self.metrics(),
        }
        with new_folder(target, overwrite) as folder:
            for name, table in self._tables().items():
                write_table(folder, name, table)
            write_plan_json(folder, self._own_record() | run)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, StageResult) or type(other) is not type(self):
            return NotImplemented
        return self._run_values() == other._run_values() and same_value(
            self._stage_values(), other._stage_values()
        )

    def __hash__(self) -> int:
        decision = np.asarray(self._decision, np.int64).tobytes()
        return hash((type(self).__name__, self.algorithm, self.seed, decision))

    def _run_values(self) -> tuple[object, ...]:
        """The values that every stage has, for `==`; options and notes as `plan.json` holds them."""
        mappings = (to_json_value(self.options), to_json_value(self.notes))
        return (self.algorithm, self.seed, self.lower_bound, *mappings)

    def _html(self, header: tuple[str, ...], rows: Sequence[tuple[object, ...]], total: int) -> str:
        """The summary and the first rows of the decision, for notebooks."""
        facts = {"algorithm": self.algorithm, "seed": self.seed, "lower bound": self.lower_bound}
        return html_summary(self.summary(), facts | self._facts(), header, rows, total)

    @abstractmethod
    def summary(self) -> str:
        """The result in a sentence."""

    @abstractmethod
    def _facts(self) -> dict[str, object]:
        """What the stage shows in a notebook besides the summary."""

    def _check_run(self) -> None:
        """Check the algorithm, the seed and the bound; replace `options` and `notes` by read-only copies."""
        if not isinstance(self.algorithm, str) or not (self.algorithm == "" or is_text(self.algorithm)):
            raise InputError(f"the algorithm is {shown(self.algorithm)}; give its name")
        object.__setattr__(self, "seed", check_count(self.seed, "seed"))
        if self.lower_bound is not None:
            bound = check_number(self.lower_bound, "the lower bound")
            object.__setattr__(self, "lower_bound", bound)
        for name in ("options", "notes"):
            values = check_instance(getattr(self, name), Mapping, name, "give a dict")  # type: ignore[type-abstract]
            object.__setattr__(self, name, MappingProxyType(self._plain_mapping(values)))

    @staticmethod
    def _plain_mapping(values: Mapping[str, Any]) -> dict[str, Any]:
        """A copy of options or notes."""
        return dict(values)

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"options": dict(self.options), "notes": dict(self.notes)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.__post_init__()

    def __post_init__(self) -> None:
        self._check_run()


def relative_gap(bound: float | None, objective: float) -> float | None:
    """The largest possible distance of an objective from the optimum, relative to a lower bound.

    Examples:
        >>> relative_gap(4.0, 5.0), relative_gap(0.0, 0.0), relative_gap(0.0, 5.0), relative_gap(None, 5.0)
        (0.25, 0.0, None, None)
    """
    if bound is None:
        return None
    if bound <= 0:
        return 0.0 if objective == 0 else None
    return (objective - bound) / bound


def write_plan_json(folder: Path, record: Mapping[str, Any]) -> None:
    """Write a plan's record, with the version of Broadloom, as the folder's `plan.json`."""
    values = to_json_value({"broadloom": VERSION, **record})
    (folder / "plan.json").write_text(json.dumps(values, indent=2, sort_keys=True, allow_nan=False) + "\n")

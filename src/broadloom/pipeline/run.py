"""The whole pipeline: each step reads files, writes a folder that appears whole, and is not done twice."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from broadloom._version import VERSION
from broadloom.assignment import assign
from broadloom.errors import InputError
from broadloom.linking.link import link
from broadloom.model import ASSIGNMENT_LIMITS, RowLedger, read_assignment_problem, read_link_problem
from broadloom.pipeline.config import Config
from broadloom.pipeline.ingest.sources import Input, find_inputs, total_bytes
from broadloom.pipeline.interest import check_brokers, write_interest
from broadloom.pipeline.session import Engine, session
from broadloom.plans import AssignmentResult, Plan, assignment_summary
from broadloom.progress import stage
from broadloom.report.page import html_of
from broadloom.report.record import TITLE, record_of_folders
from broadloom.storage import new_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RECORD = "run.json"
_INSTANCE = ("weights", "missing", "floor", "inner", "outer")


@dataclass(frozen=True)
class Outcome:
    """What a run has made.

    Attributes:
        output: the folder of everything.
        steps: the seconds of each step, in order; None for one that was done before.
        ledger: what became of every row.
        assignment: the assignment of subscribers in a sentence; None if there were none to assign.
        plan: the plan in a sentence.
        metrics: its measures.
    """

    output: Path
    steps: dict[str, float | None]
    ledger: RowLedger
    assignment: str | None
    plan: str
    metrics: dict[str, Any]

    @property
    def report(self) -> Path:
        """The page to read."""
        return self.output / "report" / "report.html"


def run(
    config: Config, engine: Engine | None = None, spark: SparkSession | None = None, fresh: bool = False
) -> Outcome:
    """Run the pipeline, from the first step whose input or options have changed since it was last done.

    Args:
        config: what to do.
        engine: where Spark runs; as the configuration says by default.
        spark: a session of your own, in place of an engine.
        fresh: do every step again.
    """
    inputs = find_inputs(config.sources)
    _check_inputs(config, inputs)
    fitting = (engine or config.engine()).sized(total_bytes(inputs))
    with _Work(config, inputs, fitting, spark) as work:
        return work.run(fresh)


@dataclass
class _Work(ExitStack):
    """A run: its steps, and a Spark session that starts when the first step needs it."""

    config: Config
    inputs: list[Input]
    engine: Engine
    given: SparkSession | None
    _running: SparkSession | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        super().__init__()

    @property
    def output(self) -> Path:
        """The folder of everything."""
        return self.config.output

    @property
    def has_subscribers(self) -> bool:
        """Whether there is anybody to assign."""
        return any(one.table == "subscribers" for one in self.inputs)

    def run(self, fresh: bool) -> Outcome:
        self.output.mkdir(parents=True, exist_ok=True)
        before = {} if fresh else self._record()
        done: dict[str, Any] = {}
        seconds: dict[str, float | None] = {}
        mark = _mark([(one, one.path.stat().st_size, one.path.stat().st_mtime_ns) for one in self.inputs])
        for name, options, step in self._steps():
            mark = _mark([name, VERSION, mark, options])
            seconds[name] = None
            if before.get(name) != mark or not (self.output / name).exists():
                started = time.monotonic()
                with stage(name), new_folder(self.output / name, overwrite=True) as folder:
                    step(folder)
                seconds[name] = round(time.monotonic() - started, 3)
            done[name] = mark
            self._save_record(before | done)
        metrics = json.loads((self.output / "measure" / "measures.json").read_text())
        sentence, served = Plan.load(self.output / "plan").summary(), self._assignment()
        ledger = RowLedger.load(self.output / "ingest")
        return Outcome(self.output, seconds, ledger, served.summary() if served else None, sentence, metrics)

    def _steps(self) -> list[tuple[str, object, Callable[[Path], None]]]:
        """Each step: its name, which is its folder's; the options that it depends on; and what it does."""
        assign = [("assign", dict(self.config.assign), self._assign)] if self.has_subscribers else []
        return [
            ("ingest", dict(self.config.ingest), self._ingest),
            *assign,
            ("interest", dict(self.config.interest), self._interest),
            ("link", dict(self.config.link), self._link),
            ("verify", None, self._verify),
            ("measure", None, self._measure),
            ("plan", None, self._plan),
            ("report", dict(self.config.report), self._report),
        ]

    def _ingest(self, folder: Path) -> None:
        from broadloom.pipeline.ingest.ingest import ingest_into

        ingest_into(folder, self.inputs, self._spark(), **self.config.ingest)

    def _assign(self, folder: Path) -> None:
        """The broker of each subscriber; a result that breaks a limit ends the run."""
        asked, tables = dict(self.config.assign), self.output / "ingest"
        check_brokers(tables)
        limits = {name: asked.pop(name) for name in ASSIGNMENT_LIMITS if name in asked}
        on_spark, options = asked.pop("engine", "process") == "spark", asked.pop("options", {})
        if on_spark:
            from broadloom.pipeline.assign import assign as assign_on_spark

            name = asked.pop("algorithm", "broadloom")
            metrics = assign_on_spark(
                tables, folder, spark=self._spark(), overwrite=True, limits=limits, **asked, **options
            )
            sentence = assignment_summary(name, metrics)
        else:
            result = assign(read_assignment_problem(tables, **limits), **asked, **options)
            result.save(folder, overwrite=True)
            metrics, sentence = result.metrics(), result.summary()
        if not metrics["feasible"]:
            raise InputError(f"{sentence}; give larger limits under [assign], or more brokers")

    def _interest(self, folder: Path) -> None:
        """The interest of every broker, and what is known of the links between them."""
        assigned = self.output / "assign" if self.has_subscribers else None
        write_interest(folder, self.output / "ingest", assigned, **self.config.interest)

    def _link(self, folder: Path) -> None:
        asked = dict(self.config.link)
        given = read_link_problem(
            self.output / "interest", **{name: asked.pop(name) for name in _INSTANCE if name in asked}
        )
        on_spark, options = asked.pop("engine", "process") == "spark", asked.pop("options", {})
        if on_spark:
            from broadloom.pipeline.link import link as link_on_spark

            asked.pop("algorithm", None)
            plan = link_on_spark(
                given.interest, given.weights, spark=self._spark(), scratch=self.output, **asked, **options
            )
        else:
            plan = link(given.interest, given.weights, **asked, **options)
        replace(plan, nodes=given.nodes).save(folder, overwrite=True)

    def _verify(self, folder: Path) -> None:
        from broadloom.pipeline.verify import verify

        verdict = verify(self.output / "link", spark=self._spark())
        if not verdict.good:
            raise RuntimeError(f"the plan is wrong: {verdict.summary()}")
        (folder / "verdict.json").write_text(json.dumps(vars(verdict)) + "\n")

    def _measure(self, folder: Path) -> None:
        from broadloom.pipeline.measure import measure_into

        measure_into(folder, self.output / "link", self._spark())

    def _plan(self, folder: Path) -> None:
        """Put the verified plan at its place."""
        shutil.copytree(self.output / "link", folder, dirs_exist_ok=True)

    def _report(self, folder: Path) -> None:
        title = self.config.report.get("title", TITLE)
        assigned = [self.output / "assign"] if self.has_subscribers else []
        record = record_of_folders([self.output / "plan", *assigned], title)
        (folder / "report.html").write_text(html_of(record), "utf-8")

    def _assignment(self) -> AssignmentResult | None:
        return AssignmentResult.load(self.output / "assign") if self.has_subscribers else None

    def _spark(self) -> SparkSession:
        if self._running is None:
            self._running = self.enter_context(session(self.engine, self.given))
        return self._running

    def _record(self) -> dict[str, str]:
        try:
            return dict(json.loads((self.output / RECORD).read_text()))
        except (OSError, ValueError):
            return {}

    def _save_record(self, done: dict[str, str]) -> None:
        draft = self.output / f".{RECORD}.{os.getpid()}"
        draft.write_text(json.dumps(done, indent=2) + "\n")
        draft.replace(self.output / RECORD)


def _check_inputs(config: Config, inputs: list[Input]) -> None:
    """Refuse before anything runs what the step assign would miss, and options that nothing would use."""
    have = {one.table for one in inputs}
    missing = [table for table in ("brokers", "publisher") if table not in have]
    if "subscribers" in have and missing:
        raise InputError(f"the sources have subscribers but no table {missing[0]}, which tells where it is")
    if "subscribers" not in have and (config.assign or config.interest):
        section = "assign" if config.assign else "interest"
        raise InputError(f"there is a section [{section}], but no source has the table subscribers")


def _mark(value: object) -> str:
    """A short text that another value hardly has."""
    return hashlib.sha256(json.dumps(value, default=str).encode()).hexdigest()

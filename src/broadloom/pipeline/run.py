"""Pipeline run: from raw inputs to a verified plan and its report, step by step.

Each step reads files and writes one folder, which appears by one rename. A step whose input and options have
not changed since the last run is skipped.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from broadloom._version import VERSION
from broadloom.assignment import assign
from broadloom.deployment import carried_lines, carried_record, read_link_requests
from broadloom.errors import BroadloomError, InputError, InternalError, error_from_os
from broadloom.linking import ALGORITHMS, link
from broadloom.model import (
    ASSIGNMENT_LIMITS,
    LEDGER_FILE,
    Grid,
    NotCarried,
    RowLedger,
    find_algorithm,
    read_assignment_problem,
    read_link_problem,
)
from broadloom.pipeline.ingest.raw_sources import (
    SPARK_TABLES,
    RawFile,
    RawSource,
    check_choices,
    check_dumps,
    find_files,
    total_bytes,
)
from broadloom.pipeline.spark_session import SparkEngine, hadoop_settings, session
from broadloom.plans import Plan, SavedAssignment, assignment_summary
from broadloom.progress import stage
from broadloom.report import TITLE, html_of, record_of_folders
from broadloom.storage import (
    RemotePath,
    as_path,
    committed,
    copy_remote,
    is_committed,
    is_remote,
    new_folder,
    read_toml,
    remove_path,
    use_store_settings,
    write_file,
)
from broadloom.storage.tables import list_column, read_table, require_table, write_parquet, write_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RECORD = "run.json"
# What a run says about its plan, written with the report, so that a run that has nothing to do reads no plan.
SUMMARY = "summary.json"
# The default number of cells of event space, each of which becomes a topic.
CELLS = 128
# The first level of the topic names of cells. It begins with "$", so that no wildcard of a client matches it.
CONTENT = "$content"
# The one algorithm of each step that can run on Spark; it is also the default of the step.
ON_SPARK = {"assign": "broadloom", "link": "dcmaw"}

_PROBLEM_OPTIONS = ("weights", "missing", "floor", "inner", "outer")
# The names that each section of the configuration file can have, and their types.
_SECTIONS: dict[str, dict[str, type | tuple[type, ...]]] = {
    "spark": {"master": str, "remote": str, "conf": dict},
    "ingest": {"wildcards": str, "symmetric": str},
    "assign": {
        "algorithm": str,
        "seed": int,
        **dict.fromkeys(ASSIGNMENT_LIMITS, (int, float)),
        "engine": str,
        "options": dict,
    },
    "interest": {"cells": int},
    "link": {
        "algorithm": str,
        "seed": int,
        "weights": str,
        "missing": str,
        "floor": (int, float),
        "inner": (int, float),
        "outer": (int, float),
        "publishers": str,
        "engine": str,
        "options": dict,
    },
    "report": {"title": str},
}


@dataclass(frozen=True)
class RunConfig:
    """Configuration of a run.

    Attributes:
        sources: the raw inputs; relative paths start at the folder of the configuration file.
        output: the folder for everything that the run writes.
        spark: the section of that name: master, remote, conf.
        ingest: wildcards, symmetric.
        assign: algorithm, seed, the limits of an assignment, engine, and the algorithm's options.
        interest: cells, the approximate number of cells that event space is cut into.
        link: algorithm, seed, weights and their options, publishers ("anywhere" or "observed"), engine, and
            the algorithm's options; an engine is "process" (default) or "spark".
        report: title.
    """

    sources: tuple[RawSource, ...]
    output: Path
    spark: Mapping[str, Any] = field(default_factory=dict)
    ingest: Mapping[str, Any] = field(default_factory=dict)
    assign: Mapping[str, Any] = field(default_factory=dict)
    interest: Mapping[str, Any] = field(default_factory=dict)
    link: Mapping[str, Any] = field(default_factory=dict)
    report: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def load(cls, path: str | Path) -> RunConfig:
        """Read a configuration file.

        Raises:
            InputError: the file is missing, is not TOML, or has an unknown name or a wrong value.
            StorageError: the file cannot be read.
        """
        file = as_path(path)
        content = read_toml(file)
        _check_names(content, {"sources": list, "output": str} | dict.fromkeys(_SECTIONS, dict), str(file))
        for name in ("sources", "output"):
            if not content.get(name):
                raise InputError(f"{file} has no {name}; give sources (a list) and output (a folder)")
        for section, known in _SECTIONS.items():
            _check_names(content.get(section, {}), known, f"{file} [{section}]")
        for section, algorithm in ON_SPARK.items():
            _check_engine(content.get(section, {}), algorithm, f"{file} [{section}]")
        find_algorithm(content.get("link", {}).get("algorithm", "dcmaw"), ALGORITHMS)
        check_choices(**content.get("ingest", {}))
        sources = tuple(_source(text, file) for text in content["sources"])
        sections = {section: content.get(section, {}) for section in _SECTIONS}
        return cls(sources, _from_folder(file.absolute().parent, content["output"]), **sections)

    def engine(self, master: str | None = None, remote: str | None = None, **conf: str) -> SparkEngine:
        """The Spark to use: that of the arguments, or else that of the section [spark]."""
        settings = {name: str(value) for name, value in self.spark.get("conf", {}).items()} | conf
        if master or remote:
            return SparkEngine(master, remote, settings)
        return SparkEngine(self.spark.get("master"), self.spark.get("remote"), settings)


@dataclass(frozen=True)
class RunOutcome:
    """Result of a run.

    Attributes:
        output: the folder that the run wrote to.
        steps: the seconds of each step, in order; None for a step that was skipped.
        ledger: the row counts of all tables.
        assignment: the assignment of subscribers in a sentence; None without subscribers.
        plan: the plan in a sentence.
        metrics: the measures of the plan.
        carried: what the plan carries from publishers, and what it does not carry, as lines of a text.
        carried_record: the same, complete and ready for JSON.
    """

    output: Path
    steps: dict[str, float | None]
    ledger: RowLedger
    assignment: str | None
    plan: str
    metrics: dict[str, Any]
    carried: tuple[str, ...]
    carried_record: dict[str, Any]

    @property
    def report(self) -> Path:
        """The path of the report."""
        return self.output / "report" / "report.html"


def run_pipeline(
    config: RunConfig,
    engine: SparkEngine | None = None,
    spark: SparkSession | None = None,
    fresh: bool = False,
) -> RunOutcome:
    """Run the pipeline, from the first step whose input or options have changed since it was last done.

    Args:
        config: the configuration.
        engine: the Spark to use; by default that of the configuration.
        spark: a session of your own, instead of an engine.
        fresh: run every step again.

    Raises:
        InputError: an input or an option is wrong, or the assignment breaks a limit.
        StorageError: the output cannot be written.
        UnreachableError: the cluster does not answer, or the JVM does not start.
    """
    chosen = engine or config.engine()
    use_store_settings(hadoop_settings(chosen, spark))
    with _Run(config, [], chosen, spark) as steps:
        try:
            steps.find_files()
            return steps.run(fresh)
        except (BroadloomError, ConnectionError):
            raise
        except OSError as error:
            raise error_from_os(f"cannot write to {config.output}", error) from error


@dataclass
class _Run(ExitStack):
    """One run: its steps, and a Spark session that starts when the first step needs it."""

    config: RunConfig
    files: list[RawFile]
    engine: SparkEngine
    own_session: SparkSession | None
    _running: SparkSession | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        super().__init__()

    @property
    def output(self) -> Path:
        """The folder that the run writes to."""
        return self.config.output

    @property
    def has_subscribers(self) -> bool:
        """Whether there are subscribers to assign."""
        return any(file.table == "subscribers" for file in self.files)

    def run(self, fresh: bool) -> RunOutcome:
        """Run the steps whose input or options have changed."""
        self.output.mkdir(parents=True, exist_ok=True)
        before = {} if fresh else self._record()
        done: dict[str, Any] = {}
        seconds: dict[str, float | None] = {}
        mark = _mark(
            [(file, file.size, time.time_ns() if file.stamp is None else file.stamp) for file in self.files]
        )
        for name, options, step in self._steps():
            mark = _mark([name, VERSION, mark, options])
            seconds[name] = None
            if before.get(name) != mark or not is_committed(self.output / name):
                started = time.monotonic()
                with stage(name), new_folder(self.output / name, overwrite=True) as folder:
                    step(folder)
                seconds[name] = round(time.monotonic() - started, 3)
            done[name] = mark
            self._save_record(before | done)
        metrics = json.loads((self._done("measure") / "measures.json").read_text())
        summary = json.loads((self._done("report") / SUMMARY).read_text())
        assignment = SavedAssignment(self._done("assign")).summary() if self.has_subscribers else None
        ledger = RowLedger.load(self._done("ingest"))
        carried = tuple(summary["carried"]), summary["carried_record"]
        return RunOutcome(self.output, seconds, ledger, assignment, summary["plan"], metrics, *carried)

    def find_files(self) -> None:
        """Find the files of the sources; only tables that Spark reads start the session."""

        def columns(form: str, name: str) -> tuple[list[str], str]:
            from broadloom.pipeline.ingest.raw_rows import spark_columns

            return spark_columns(self._spark(), form, name)

        self.files = find_files(self.config.sources, columns)
        _check_tables(self.config, self.files)
        self.engine = self.engine.sized(total_bytes(self.files))

    def _steps(self) -> list[tuple[str, object, Callable[[Path], None]]]:
        """For each step: its name (also of its folder), the options that it depends on, and its function."""
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

    def _done(self, name: str) -> Path:
        """The folder of a step that is complete."""
        return committed(self.output / name)

    def _ingest(self, folder: Path) -> None:
        """Write the canonical tables of the raw inputs."""
        from broadloom.pipeline.ingest.raw_to_tables import ingest_into

        notes = check_dumps(self.files)
        ingest_into(folder, self.files, self._spark(), **self.config.ingest, notes=notes)

    def _assign(self, folder: Path) -> None:
        """Assign subscribers to brokers; raises if the result breaks a limit."""
        arguments = dict(self.config.assign)
        tables = self._done("ingest")
        check_brokers(tables)
        limits = {name: arguments.pop(name) for name in ASSIGNMENT_LIMITS if name in arguments}
        on_spark = arguments.pop("engine", "process") == "spark"
        options = arguments.pop("options", {})
        if on_spark:
            from broadloom.pipeline.spark_assign import assign_on_spark

            algorithm = arguments.pop("algorithm", "broadloom")
            metrics = assign_on_spark(
                tables, folder, spark=self._spark(), overwrite=True, limits=limits, **arguments, **options
            )
            sentence = assignment_summary(algorithm, metrics)
        else:
            result = assign(read_assignment_problem(tables, **limits), **arguments, **options)
            result.save(folder, overwrite=True)
            metrics = result.metrics()
            sentence = result.summary()
        if not metrics["feasible"]:
            raise InputError(f"{sentence}; give larger limits under [assign], or more brokers")

    def _interest(self, folder: Path) -> None:
        """Write the topics of each broker, and the latencies between brokers."""
        assigned = self._done("assign") if self.has_subscribers else None
        write_interest(folder, self._done("ingest"), assigned, **self.config.interest)

    def _link(self, folder: Path) -> None:
        """Write the plan, which is not verified yet."""
        arguments = dict(self.config.link)
        problem_options = {name: arguments.pop(name) for name in _PROBLEM_OPTIONS if name in arguments}
        problem = read_link_problem(self._done("interest"), **problem_options)
        mode = arguments.pop("publishers", None)
        requests = read_link_requests(self._done("ingest"), problem.interest, mode)
        on_spark = arguments.pop("engine", "process") == "spark"
        options = arguments.pop("options", {})
        if on_spark:
            from broadloom.pipeline.spark_link import link_on_spark

            arguments.pop("algorithm", None)
            plan = link_on_spark(
                problem.interest,
                problem.weights,
                spark=self._spark(),
                scratch=folder,
                **arguments,
                **options,
            )
        else:
            plan = link(problem.interest, problem.weights, **arguments, **options)
        left_out = NotCarried(problem.not_carried)
        plan = replace(plan, nodes=problem.nodes, publishers=requests.publishers, not_carried=left_out)
        plan.save(folder, overwrite=True)

    def _verify(self, folder: Path) -> None:
        """Verify the plan and write the verdict; raises if the plan is wrong."""
        from broadloom.pipeline.spark_inspect import verify_plan

        verdict = verify_plan(self._done("link"), self._spark)
        if not verdict.good:
            raise InternalError(f"the plan is wrong: {verdict.summary()}; please report this")
        record = {name: value for name, value in vars(verdict).items() if name != "filters" or value}
        (folder / "verdict.json").write_text(json.dumps(record) + "\n")

    def _measure(self, folder: Path) -> None:
        """Write the measures of the plan."""
        from broadloom.pipeline.spark_inspect import measure_into

        measure_into(folder, self._done("link"), self._spark)

    def _plan(self, folder: Path) -> None:
        """Publish the verified plan, by hard links to the files of the step link."""
        link_files(self._done("link"), folder)

    def _report(self, folder: Path) -> None:
        """Write the report, and the summary of the plan."""
        title = self.config.report.get("title", TITLE)
        plan = Plan.load(self._done("plan"))
        names = ["plan", "assign"] if self.has_subscribers else ["plan"]
        with self._local_copies(*names) as root:
            record = record_of_folders([root / name for name in names], title, loaded={"plan": plan})
        for one in record["plans"]:
            one["source"] = one["source"].replace(str(root), str(self.output))
        (folder / "report.html").write_text(html_of(record), "utf-8")
        summary = {
            "plan": plan.summary(),
            "carried": list(carried_lines(plan)),
            "carried_record": carried_record(plan),
        }
        (folder / SUMMARY).write_text(json.dumps(summary, indent=2) + "\n")

    @contextmanager
    def _local_copies(self, *names: str) -> Iterator[Path]:
        """The folder of the run; if it is remote, a local folder with copies of steps and of the ledger."""
        if not isinstance(self.output, RemotePath):
            yield self.output
            return
        with tempfile.TemporaryDirectory(prefix="broadloom-") as scratch:
            for name in names:
                link_files(self._done(name), Path(scratch, name))
            for name in (LEDGER_FILE, "quarantine.parquet"):
                link_files(self._done("ingest") / name, Path(scratch, "ingest", name))
            yield Path(scratch)

    def _spark(self) -> SparkSession:
        """The Spark session, which the first call starts."""
        if self._running is None:
            self._running = self.enter_context(session(self.engine, self.own_session))
        return self._running

    def _record(self) -> dict[str, str]:
        """The digest of each step of earlier runs; empty if the file is missing or damaged."""
        try:
            return dict(json.loads((self.output / RECORD).read_text()))
        except (OSError, ValueError):
            return {}

    def _save_record(self, done: dict[str, str]) -> None:
        write_file(self.output / RECORD, (json.dumps(done, indent=2) + "\n").encode())


def link_files(source: Path, target: Path) -> None:
    """Make `target` a copy of the folder or file `source`, by hard links, or by copies where these fail.

    Hard links are safe, because the files of a step never change after they were written.
    """
    if isinstance(source, RemotePath):
        copy_remote(source, as_path(target))
        return
    if source.is_file():
        _link_or_copy(str(source), str(target))
        return
    shutil.copytree(source, target, copy_function=_link_or_copy, dirs_exist_ok=True)


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # the file system has no hard links; on other errors the copy fails too
        shutil.copy2(source, target)


def check_brokers(tables: Path) -> None:
    """Raise if a broker is missing in the table nodes of the sources, if they have that table."""
    if not _source_has_nodes(tables):
        return
    known = set(require_table(tables, "nodes").column("node").to_pylist())
    for broker in require_table(tables, "brokers").column("broker").to_pylist():
        if broker not in known:
            raise InputError(
                f"broker {broker!r} of table brokers is not in table nodes; "
                "add it to nodes, or remove it from brokers"
            )


def write_interest(folder: Path, tables: Path, assigned: Path | None = None, cells: int = CELLS) -> None:
    """Write the tables that `link` reads into an existing folder.

    Links are planned by topic, but assigned subscribers want rectangles of event space. Therefore event space
    is cut into cells, each of which is a topic. A broker wants every cell that a rectangle of one of its
    subscribers touches.

    Args:
        folder: the output: `nodes`, `subscriptions`, `latency` and `not_carried`, if they exist; with an
            assignment also `content`, the rectangle of each topic that is a cell.
        tables: the folder that ingest wrote.
        assigned: the folder of the assignment of subscribers, if there is one.
        cells: the approximate number of cells that event space is cut into.

    Raises:
        InputError: `cells` is below 1.
    """
    if cells < 1:
        raise InputError(f"[interest] cells is {cells}; give a whole number from 1")
    for name in ("nodes", "subscriptions", "latency", "not_carried"):
        if (tables / f"{name}.parquet").exists():
            link_files(tables / f"{name}.parquet", folder / f"{name}.parquet")
    if assigned is not None:
        saved = SavedAssignment(assigned)
        if not _source_has_nodes(tables):
            _add_nodes(folder, saved.first.broker_ids or ())
        _add_content(folder, saved, cells)


def _source_has_nodes(tables: Path) -> bool:
    """Whether a source has the table nodes; otherwise ingest makes it from the nodes that subscribe."""
    return any(account.table == "nodes" for account in RowLedger.load(tables).accounts)


def _add_nodes(folder: Path, brokers: Iterable[str]) -> None:
    before = read_table(folder, "nodes")
    names = set(brokers).union([] if before is None else before.column("node").to_pylist())
    _replace_table(folder, "nodes", pa.table({"node": pa.array(sorted(names), pa.string())}))


def _add_content(folder: Path, saved: SavedAssignment, cells: int) -> None:
    """Add the cells that the subscribers of each broker want, and a table of the cells."""
    grid = _covering_grid(saved, cells)
    broker, cell = np.nonzero(_wanted_cells(saved, grid))
    content = _content_table(grid)
    brokers = pa.array(saved.first.broker_ids, pa.string())
    pairs = pa.table({"node": brokers.take(pa.array(broker)), "topic": content["topic"].take(pa.array(cell))})
    before = read_table(folder, "subscriptions")
    _replace_table(folder, "subscriptions", pairs if before is None else pa.concat_tables([before, pairs]))
    write_parquet(content, folder / "content.parquet")


def _covering_grid(saved: SavedAssignment, cells: int) -> Grid:
    """A grid over the rectangles of all subscribers."""
    corners = np.zeros((0, 1))
    for problem, _ in saved.blocks():
        if problem.subscriber_count:
            both = np.concatenate([problem.lo, problem.hi, corners.reshape(-1, problem.dimensions)])
            corners = np.stack([both.min(axis=0), both.max(axis=0)])
    return Grid.covering(corners, cells)


def _wanted_cells(saved: SavedAssignment, grid: Grid) -> NDArray[np.bool_]:
    """Whether the subscribers of each broker want each cell, bool (brokers, cells)."""
    wanted = np.zeros((saved.first.broker_count, grid.channel_count), bool)
    for problem, broker_of in saved.blocks():
        for broker in np.unique(broker_of):
            served = broker_of == broker
            wanted[broker] |= grid.touched(problem.lo[served], problem.hi[served]).any(axis=0)
    return wanted


def _content_table(grid: Grid) -> pa.Table:
    """The table of cells: topic (`$content/` and the index on each axis), lo, hi."""
    cell = np.indices(grid.cells).reshape(len(grid.cells), -1).T
    names = ["/".join([CONTENT, *map(str, index)]) for index in cell.tolist()]
    width = (np.array(grid.hi) - grid.lo) / grid.cells
    corners = {name: list_column(grid.lo + (cell + add) * width) for name, add in (("lo", 0), ("hi", 1))}
    return pa.table({"topic": pa.array(names, pa.string())} | corners)


def _replace_table(folder: Path, name: str, table: pa.Table) -> None:
    # A table can be a hard link, so it is replaced and not written to.
    remove_path(folder / f"{name}.parquet")
    write_table(folder, name, table)


def _check_tables(config: RunConfig, files: list[RawFile]) -> None:
    """Raise if a table that the step assign needs is missing, or if a section would have no effect."""
    tables = {file.table for file in files}
    missing = [table for table in ("brokers", "publisher") if table not in tables]
    if "subscribers" in tables and missing:
        raise InputError(
            f"the sources have the table subscribers but not the table {missing[0]}; add a source with it"
        )
    if "subscribers" not in tables and (config.assign or config.interest):
        section = "assign" if config.assign else "interest"
        raise InputError(
            f"there is a section [{section}], but no source has the table subscribers; "
            "add such a source, or remove the section"
        )


def _check_names(
    section: Mapping[str, Any], known: Mapping[str, type | tuple[type, ...]], where: str
) -> None:
    for name, value in section.items():
        if name not in known:
            close = difflib.get_close_matches(name, list(known), n=1)
            hint = f" (did you mean {close[0]!r}?)" if close else ""
            raise InputError(f"{where}: unknown name {name!r}{hint}; there are {', '.join(known)}")
        if not isinstance(value, known[name]) or isinstance(value, bool):
            types = known[name] if isinstance(known[name], tuple) else (known[name],)
            expected = " or ".join(kind.__name__ for kind in types)  # type: ignore[union-attr]
            raise InputError(f"{where}: {name} is {value!r}; expected {expected}")


def _check_engine(section: Mapping[str, Any], on_spark: str, where: str) -> None:
    engine = section.get("engine", "process")
    algorithm = section.get("algorithm", on_spark)
    if engine not in ("process", "spark"):
        raise InputError(f"{where}: no engine {engine!r}; there are process, spark")
    if engine == "spark" and algorithm != on_spark:
        raise InputError(f"{where}: {algorithm} does not run on Spark; give {on_spark}, or engine process")


def _source(text: Any, file: Path) -> RawSource:
    """A source of a configuration file, its path relative to the folder of that file."""
    if not isinstance(text, str):
        raise InputError(
            f"{file}: source {text!r} is not a string; give one such as 'raw/' or 'emqx=dump.json'"
        )
    source = RawSource.parse(text)
    form, colon, name = source.path.partition(":")
    if colon and form == "table":
        return source
    prefix = f"{form}:" if colon and form in SPARK_TABLES else ""
    path = _from_folder(file.absolute().parent, name if prefix else source.path)
    return replace(source, path=f"{prefix}{path}")


def _from_folder(folder: Path, path: str) -> Path:
    """A path of a configuration file in a folder; relative paths start there. It has no `..`."""
    if is_remote(path) or path.startswith("file:"):
        return as_path(path)
    return as_path(folder) / path if is_remote(folder) else Path(os.path.normpath(folder.resolve() / path))


def _mark(value: object) -> str:
    """A digest of a value; it shows whether the value has changed since an earlier run."""
    return hashlib.sha256(json.dumps(value, default=str).encode()).hexdigest()

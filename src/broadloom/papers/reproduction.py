"""Reproduction of the papers: runs cases in processes or as Spark tasks, writes tables, claims, a page.

Cases that were run before are not run again, so a stopped run can be continued.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from broadloom.errors import InputError
from broadloom.papers import FIGURES, need_papers
from broadloom.papers.case_files import case_file, read_case, write_case, write_rows
from broadloom.papers.drawings import draw
from broadloom.papers.evidence_page import write_page
from broadloom.papers.figures import (
    CONTRADICTED,
    NOT_MEASURED,
    Case,
    Figure,
    FigureRows,
)
from broadloom.progress import stage
from broadloom.storage import as_path, is_remote, to_json_value

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from broadloom.pipeline import SparkEngine


FULL, REDUCED = "the paper's", "reduced"


class Reproduction(NamedTuple):
    """Result of `reproduce`.

    Attributes:
        page: the path of the page.
        claims: the verdicts on the claims of the requested figures.
        run: the number of cases that were run.
        known: the number of cases that had been run before.
        all_claims: the verdicts on the claims of all figures on the page.
    """

    page: Path
    claims: list[dict[str, Any]]
    run: int
    known: int
    all_claims: list[dict[str, Any]]


def reproduce(
    figures: Sequence[Figure],
    output: str | Path,
    quick: bool | Collection[int] = False,
    engine: SparkEngine | None = None,
    spark: SparkSession | None = None,
    run: bool = True,
    jobs: int = 1,
) -> Reproduction:
    """Run the cases of some figures, and write their tables, drawings and one page.

    The cases run one after another in this process, unless several jobs, or an engine or a session of Spark
    are given. A case that was run before, into the same folder, is not run again, so a stopped run continues.
    The page and the table of claims cover all figures whose cases are in the folder, including those of other
    runs.

    Args:
        figures: the figures, see `broadloom.papers.figures_of`.
        output: the folder; Spark executors must see it under the same path.
        quick: fewer and smaller cases, for all papers (minutes), or for the papers listed.
        engine: the Spark to use.
        spark: a session of your own, instead of an engine.
        run: run the missing cases; otherwise only write what is complete.
        jobs: the number of cases that run at a time, each in a process of its own.

    Raises:
        InputError: the output is not a local path.
        MissingExtraError: matplotlib is not installed.
    """
    need_papers()  # before the first case: the cases can run for hours
    folder = as_path(output, "the output").absolute()
    if is_remote(folder):
        raise InputError(f"the output is {folder}; give a local folder")
    (folder / "cases").mkdir(parents=True, exist_ok=True)
    reduced = {figure: quick if isinstance(quick, bool) else figure.paper in quick for figure in figures}
    wanted = {figure.source: list(figure.cases(small)) for figure, small in reduced.items()}
    requested = [(source, case) for source, cases in wanted.items() for case in cases]
    pending = [(source, case) for source, case in requested if not read_case(case_file(folder, source, case))]
    if pending and run:
        if engine is None and spark is None:
            run_cases(pending, folder, jobs)
        else:
            _run_on_spark(pending, folder, engine, spark)
    found = _complete_figures(reduced if run else {}, folder)
    rows: dict[bool, dict[str, FigureRows]] = {True: {}, False: {}}  # by whether the size is reduced
    for figure, (figure_rows, small) in found.items():
        rows[small][figure.key] = figure_rows
    claims = {
        figure: write_figure(figure, rows[small], folder, small) for figure, (_, small) in found.items()
    }
    every = [claim for of_figure in claims.values() for claim in of_figure]
    if every:
        write_rows(every, folder / "claims.parquet")
    page = write_page({figure: small for figure, (_, small) in found.items()}, every, folder)
    requested_claims = [claim for figure in figures for claim in claims.get(figure, [])]
    done = len(pending) if run else 0
    return Reproduction(page, requested_claims, done, len(requested) - len(pending), every)


def _complete_figures(
    requested: Mapping[Figure, bool], folder: Path
) -> dict[Figure, tuple[FigureRows, bool]]:
    """The rows of all figures with complete cases, and whether these have reduced sizes.

    Figures that were not requested are shown at the papers' sizes if they have them.
    """
    found = {}
    for figure in {figure.key: figure for figure in (*FIGURES, *requested)}.values():
        for small in [requested[figure]] if figure in requested else [False, True]:
            cases = [read_case(case_file(folder, figure.source, case)) for case in figure.cases(small)]
            if all(cases):
                found[figure] = FigureRows(tuple(row for rows in cases for row in rows)), small
                break
    return found


def run_cases(pending: Sequence[tuple[str, Case]], folder: Path, jobs: int = 1) -> None:
    """Run cases, `jobs` at a time; a case is on disk as soon as it is done."""
    with stage("cases", len(pending)) as done:
        if jobs == 1:
            for number, (key, case) in enumerate(pending, start=1):
                run_case(key, case, folder)
                done(number)
            return
        with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
            running = [pool.submit(run_case, key, case, folder) for key, case in pending]
            for number, finished in enumerate(as_completed(running), start=1):
                finished.result()
                done(number)


def _run_on_spark(
    pending: list[tuple[str, Case]], folder: Path, engine: SparkEngine | None, spark: SparkSession | None
) -> None:
    """Run one task per case; the executors write the rows."""
    from broadloom.pipeline import session

    def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for index in batch.column("id").to_pylist():
                key, case = pending[index]
                run_case(key, case, folder)
            yield batch

    paths = [case_file(folder, key, case) for key, case in pending]
    for path in paths:
        path.unlink(missing_ok=True)  # a damaged file must not count as done
    with session(engine, spark) as running, stage("cases", len(pending)) as done:
        finished = threading.Event()

        def watch() -> None:
            while not finished.wait(1.0):
                done(sum(path.exists() for path in paths))

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            running.range(len(pending)).repartition(len(pending)).mapInArrow(work, "id long").count()
        finally:
            finished.set()
            watcher.join()


def run_case(key: str, case: Case, folder: Path) -> None:
    """Run one case of a figure on one thread, and write its rows by one rename."""
    os.environ.setdefault("BROADLOOM_THREADS", "1")  # tasks run in parallel, and times are of one thread
    (figure,) = (figure for figure in FIGURES if figure.key == key)
    write_case(to_json_value(figure.run(case)), case_file(folder, key, case))


def write_figure(
    figure: Figure, rows: Mapping[str, FigureRows], folder: Path, quick: bool
) -> list[dict[str, Any]]:
    """Write the figure's rows and its drawing; return one verdict per claim.

    Args:
        figure: the figure.
        rows: the rows of all figures of that size by key: the reason for a verdict can be another figure.
        folder: where to write.
        quick: whether the rows have reduced sizes.
    """
    write_rows(rows[figure.key].all, folder / f"{figure.key}.parquet")
    draw(figure, rows[figure.key], folder / f"{figure.key}.svg")
    return verdicts(figure, rows, quick)


def verdicts(figure: Figure, rows: Mapping[str, FigureRows], quick: bool = False) -> list[dict[str, Any]]:
    """One verdict per claim of a figure, from the rows of all figures of that size by key."""
    checked = [claim for claim in figure.claims if not (quick and claim.at_full_size)]
    size = REDUCED if quick else FULL
    found = [
        {"paper": figure.paper, "figure": figure.key, "size": size, **claim.verdict(rows[figure.key], rows)}
        for claim in checked
    ]
    return [_provisional(claim) if quick else claim for claim in found]


def _provisional(claim: dict[str, Any]) -> dict[str, Any]:
    """A verdict at reduced size: small instances refute nothing that a paper says of its own sizes.

    Examples:
        >>> _provisional({"verdict": "contradicted", "reason": "2 s"})
        {'verdict': 'not measured', 'reason': 'does not hold at reduced size: 2 s'}
    """
    if claim["verdict"] != CONTRADICTED:
        return claim
    return claim | {"verdict": NOT_MEASURED, "reason": f"does not hold at reduced size: {claim['reason']}"}

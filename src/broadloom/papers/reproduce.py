"""Reproduce the papers on Spark: a task for each case of a figure, resumable case by case."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import SparkSession

from broadloom.papers import FIGURES
from broadloom.papers.figure import Case, Figure, Rows
from broadloom.papers.results import read_case, write_case, write_figure, write_page
from broadloom.pipeline import SparkEngine, session
from broadloom.progress import stage
from broadloom.storage import to_json_value


class Reproduction(NamedTuple):
    """Where the page is, what became of the claims asked for, how many cases were run now, and before."""

    page: Path
    claims: list[dict[str, Any]]
    run: int
    known: int


def reproduce(
    figures: Sequence[Figure],
    output: str | Path,
    quick: bool | Collection[int] = False,
    engine: SparkEngine | None = None,
    spark: SparkSession | None = None,
) -> Reproduction:
    """Run the cases of some figures, and write their tables, drawings and one page.

    A case that was run before, into the same folder, is not run again: a run that was killed goes on. The
    page and the table of claims are about all figures whose cases are in the folder, those of other runs too.

    Args:
        figures: which, see `broadloom.papers.figures_of`.
        output: the folder; the executors must see it under the same path.
        quick: fewer and smaller cases, for all papers within ten minutes; or for these papers only.
        engine: where Spark runs.
        spark: a session of your own, in place of an engine.
    """
    folder = Path(output).absolute()
    (folder / "cases").mkdir(parents=True, exist_ok=True)
    reduced = {figure: quick if isinstance(quick, bool) else figure.paper in quick for figure in figures}
    wanted = {figure.source: list(figure.cases(small)) for figure, small in reduced.items()}
    every = [(source, case) for source, cases in wanted.items() for case in cases]
    pending = [(source, case) for source, case in every if not read_case(_place(folder, source, case))]
    if pending:
        with session(engine, spark) as running:
            _run_all(running, pending, folder)
    found = _known(reduced, folder)
    claims = {figure: write_figure(figure, rows, folder, small) for figure, (rows, small) in found.items()}
    shown = {figure: small for figure, (_, small) in found.items()}
    page = write_page(shown, [claim for of_figure in claims.values() for claim in of_figure], folder)
    asked = [claim for figure in figures for claim in claims[figure]]
    return Reproduction(page, asked, len(pending), len(every) - len(pending))


def _known(asked: Mapping[Figure, bool], folder: Path) -> dict[Figure, tuple[Rows, bool]]:
    """The rows of all figures whose cases are all there, and whether these are small ones.

    Figures that were not asked for now are shown at the papers' sizes, where these are there.
    """
    found = {}
    for figure in {figure.key: figure for figure in (*FIGURES, *asked)}.values():
        for small in [asked[figure]] if figure in asked else [False, True]:
            cases = [read_case(_place(folder, figure.source, case)) for case in figure.cases(small)]
            if all(cases):
                found[figure] = Rows(tuple(row for rows in cases for row in rows)), small
                break
    return found


def _place(folder: Path, key: str, case: Case) -> Path:
    """The file of a case: named by what it is, so that a changed one is another."""
    digest = hashlib.sha256(json.dumps(case, sort_keys=True).encode()).hexdigest()[:16]
    return folder / "cases" / f"{key}-{digest}.json"


def _run_all(spark: SparkSession, pending: list[tuple[str, Case]], folder: Path) -> None:
    """A task for each case; the executors write what they find."""

    def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        os.environ["BROADLOOM_THREADS"] = "1"  # tasks run side by side
        for batch in batches:
            for index in batch.column("id").to_pylist():
                key, case = pending[index]
                run_case(key, case, folder)
            yield batch

    places = [_place(folder, key, case) for key, case in pending]
    for place in places:
        place.unlink(missing_ok=True)  # a damaged one is not to count as done
    with stage("cases", len(pending)) as done:
        over = threading.Event()

        def watch() -> None:
            while not over.wait(1.0):
                done(sum(place.exists() for place in places))

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            spark.range(len(pending)).repartition(len(pending)).mapInArrow(work, "id long").count()
        finally:
            over.set()
            watcher.join()


def run_case(key: str, case: Case, folder: Path) -> None:
    """Run one case of a figure, and write its rows by one rename."""
    (figure,) = (one for one in FIGURES if one.key == key)
    write_case(to_json_value(figure.run(case)), _place(folder, key, case))

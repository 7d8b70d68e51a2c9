"""Reproduce the papers on Spark: a task for each case of a figure, resumable case by case."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import SparkSession

from broadloom.model._plain import plain
from broadloom.papers import FIGURES
from broadloom.papers.figure import Case, Figure, Rows
from broadloom.papers.results import read_case, write_figure, write_page
from broadloom.pipeline.session import Engine, session
from broadloom.progress import stage


class Reproduction(NamedTuple):
    """Where the page is, what became of the claims, and how many cases were run now, and before."""

    page: Path
    claims: list[dict[str, Any]]
    run: int
    known: int


def reproduce(
    figures: Sequence[Figure],
    output: str | Path,
    quick: bool | Collection[int] = False,
    engine: Engine | None = None,
    spark: SparkSession | None = None,
) -> Reproduction:
    """Run the cases of some figures, and write their tables, drawings and one page.

    A case that was run before, into the same folder, is not run again: a run that was killed goes on.

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
    wanted = {figure.source: list(figure.cases(reduced[figure])) for figure in figures}
    every = [(source, case) for source, cases in wanted.items() for case in cases]
    pending = [(source, case) for source, case in every if not _place(folder, source, case).exists()]
    if pending:
        with session(engine, spark) as running:
            _run_all(running, pending, folder)
    claims = []
    for figure in figures:
        places = (_place(folder, figure.source, case) for case in wanted[figure.source])
        rows = [row for place in places for row in read_case(place)]
        claims += write_figure(figure, Rows(tuple(rows)), folder, reduced[figure])
    return Reproduction(write_page(reduced, claims, folder), claims, len(pending), len(every) - len(pending))


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
    place = _place(folder, key, case)
    draft = place.with_suffix(f".{os.getpid()}.draft")
    draft.write_text(json.dumps(plain(figure.run(case))), encoding="utf-8")
    draft.replace(place)

"""Reproduction of the papers on Spark: runs one task per case, and writes tables, drawings, claims, a page.

Cases that were run before are not run again, so a stopped run can be continued.
"""

from __future__ import annotations

import base64
import hashlib
import html
import io
import json
import os
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from pyspark.sql import SparkSession

from broadloom.papers import FIGURES, need_papers
from broadloom.papers.figures import Case, Figure, FigureRows, Panel
from broadloom.papers.paper1_weighted_overlays import latency_sources
from broadloom.pipeline import SparkEngine, session
from broadloom.progress import stage
from broadloom.storage import to_json_value

# Dashes and markers, which distinguish curves without colours; from the seventh curve on they are grey, with
# open markers.
STYLES = (("-", "o"), ("--", "s"), ("-.", "^"), (":", "D"), ((0, (5, 1)), "v"), ((0, (1, 1)), "x"))
MOST_DOTS = 500  # per curve; more dots are drawn as one bitmap
MOST_POINTS = 250  # per curve
MOST_MARKS = 25  # per curve
GREYS = ("0", "0.55")
VERDICTS = ["where", "claim", "theirs", "ours", "tolerance", "verdict", "why"]

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem;
  color-scheme: light dark; }
table { border-collapse: collapse; margin: 1rem 0; font-size: 0.9rem; }
td, th { border-bottom: 1px solid #8888; padding: 0.2rem 0.6rem; text-align: left; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
img { background: #fff; max-width: 100%; }
"""


class Reproduction(NamedTuple):
    """Result of `reproduce`.

    Attributes:
        page: the path of the page.
        claims: the verdicts on the claims of the requested figures.
        run: the number of cases that were run.
        known: the number of cases that had been run before.
    """

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

    A case that was run before, into the same folder, is not run again, so a stopped run continues. The page
    and the table of claims cover all figures whose cases are in the folder, including those of other runs.

    Args:
        figures: the figures, see `broadloom.papers.figures_of`.
        output: the folder; the executors must see it under the same path.
        quick: fewer and smaller cases, for all papers (about ten minutes), or for the papers listed.
        engine: the Spark to use.
        spark: a session of your own, instead of an engine.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    need_papers()  # before the first case: the cases can run for hours
    folder = Path(output).absolute()
    (folder / "cases").mkdir(parents=True, exist_ok=True)
    reduced = {figure: quick if isinstance(quick, bool) else figure.paper in quick for figure in figures}
    wanted = {figure.source: list(figure.cases(small)) for figure, small in reduced.items()}
    requested = [(source, case) for source, cases in wanted.items() for case in cases]
    pending = [
        (source, case) for source, case in requested if not read_case(_case_file(folder, source, case))
    ]
    if pending:
        with session(engine, spark) as running:
            _run_all(running, pending, folder)
    found = _complete_figures(reduced, folder)
    claims = {figure: write_figure(figure, rows, folder, small) for figure, (rows, small) in found.items()}
    shown = {figure: small for figure, (_, small) in found.items()}
    page = write_page(shown, [claim for of_figure in claims.values() for claim in of_figure], folder)
    verdicts = [claim for figure in figures for claim in claims[figure]]
    return Reproduction(page, verdicts, len(pending), len(requested) - len(pending))


def _complete_figures(
    requested: Mapping[Figure, bool], folder: Path
) -> dict[Figure, tuple[FigureRows, bool]]:
    """The rows of all figures with complete cases, and whether these have reduced sizes.

    Figures that were not requested are shown at the papers' sizes if they have them.
    """
    found = {}
    for figure in {figure.key: figure for figure in (*FIGURES, *requested)}.values():
        for small in [requested[figure]] if figure in requested else [False, True]:
            cases = [read_case(_case_file(folder, figure.source, case)) for case in figure.cases(small)]
            if all(cases):
                found[figure] = FigureRows(tuple(row for rows in cases for row in rows)), small
                break
    return found


def _case_file(folder: Path, key: str, case: Case) -> Path:
    """The file of a case; its name has a digest of the case, so that a changed case has another file."""
    digest = hashlib.sha256(json.dumps(case, sort_keys=True).encode()).hexdigest()[:16]
    return folder / "cases" / f"{key}-{digest}.json"


def _run_all(spark: SparkSession, pending: list[tuple[str, Case]], folder: Path) -> None:
    """Run one task per case; the executors write the rows."""

    def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        os.environ["BROADLOOM_THREADS"] = "1"  # tasks run in parallel
        for batch in batches:
            for index in batch.column("id").to_pylist():
                key, case = pending[index]
                run_case(key, case, folder)
            yield batch

    paths = [_case_file(folder, key, case) for key, case in pending]
    for path in paths:
        path.unlink(missing_ok=True)  # a damaged file must not count as done
    with stage("cases", len(pending)) as done:
        finished = threading.Event()

        def watch() -> None:
            while not finished.wait(1.0):
                done(sum(path.exists() for path in paths))

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            spark.range(len(pending)).repartition(len(pending)).mapInArrow(work, "id long").count()
        finally:
            finished.set()
            watcher.join()


def run_case(key: str, case: Case, folder: Path) -> None:
    """Run one case of a figure, and write its rows by one rename."""
    (figure,) = (figure for figure in FIGURES if figure.key == key)
    write_case(to_json_value(figure.run(case)), _case_file(folder, key, case))


def write_figure(figure: Figure, rows: FigureRows, folder: Path, quick: bool) -> list[dict[str, Any]]:
    """Write the figure's rows and its drawing; return one verdict per claim."""
    _write_rows(rows.all, folder / f"{figure.key}.parquet")
    draw(figure, rows, folder / f"{figure.key}.svg")
    checked = [claim for claim in figure.claims if not (quick and claim.at_full_size)]
    size = "reduced" if quick else "the paper's"
    return [{"figure": figure.key, "size": size, **claim.verdict(rows)} for claim in checked]


def draw(figure: Figure, rows: FigureRows, path: Path) -> None:
    """Draw all panels: means over seeds as lines, from minimum to maximum as bands."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure as Canvas

    with rc_context({"svg.hashsalt": figure.key, "svg.fonttype": "none"}):
        canvas = Canvas(figsize=(5 * len(figure.panels), 4.5), layout="constrained")
        all_axes = np.atleast_1d(canvas.subplots(1, len(figure.panels)))
        for axes, panel in zip(all_axes, figure.panels, strict=True):
            draw_panel(axes, figure, panel, rows)
        legend = all_axes[0].get_legend_handles_labels()
        canvas.legend(*legend, loc="outside lower center", ncols=2 * len(all_axes))
        drawn = io.BytesIO()
        canvas.savefig(drawn, format="svg", dpi=150, metadata={"Date": None})
    _put(drawn.getvalue(), path)


def curves_of(figure: Figure, rows: FigureRows) -> list[dict[str, Any]]:
    """The values that identify each curve; only rows with values for every panel count.

    Examples:
        >>> from broadloom.papers import figures_of
        >>> (figure,) = figures_of(3, "fig5")
        >>> curves_of(figure, FigureRows(({"coverage": 2, "round": 1, "max_degree": 9, "mean_degree": 4.0},)))
        [{'coverage': 2}]
    """
    needed = (figure.x, *(panel.y for panel in figure.panels))
    drawn = [row for row in rows.all if all(row.get(name) is not None for name in needed)]
    curves = {tuple(row[name] for name in figure.curves) for row in drawn}
    return [dict(zip(figure.curves, curve, strict=True)) for curve in sorted(curves)]


def draw_panel(axes: Any, figure: Figure, panel: Panel, rows: FigureRows) -> None:
    """Draw one panel of a figure."""
    curves = curves_of(figure, rows)
    points = sorted({row[figure.x] for curve in curves for row in rows.where(**curve).all})
    named = bool(points) and isinstance(points[0], str)
    for i, curve in enumerate(curves):
        of_curve = rows.where(**curve)
        found = [of_curve.values(panel.y, **{figure.x: at}) for at in points]
        shown = [k for k, values in enumerate(found) if values]
        style = _style(i, panel) | {"label": " ".join(map(str, curve.values()))}
        if panel.dots:
            dots = [(points[k], value) for k in shown for value in found[k]]
            axes.plot(*zip(*dots, strict=True), **style, rasterized=len(dots) > MOST_DOTS)
            continue
        shown = shown[:: max(1, len(shown) // MOST_POINTS)]
        x = shown if named else [points[k] for k in shown]
        marked = max(1, len(shown) // MOST_MARKS)
        axes.plot(x, [np.mean(found[k]) for k in shown], **style, markevery=marked)
        low, high = ([f(found[k]) for k in shown] for f in (min, max))
        axes.fill_between(x, low, high, color=style["color"], alpha=0.12, linewidth=0)
    if named:
        axes.set_xticks(range(len(points)), points)
    axes.set(xlabel=figure.x_label, ylabel=panel.label, yscale="log" if panel.log else "linear")
    if panel.log:  # labels such as 0.02, not 2 x 10^-2
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(_plain_between)


def _plain_between(value: float, _: int) -> str:
    """The label of a minor tick of a logarithmic axis: only 2 and 5 times a power of ten have one."""
    return f"{value:g}" if f"{value:e}"[0] in "25" else ""


def _style(i: int, panel: Panel) -> dict[str, Any]:
    """The style of the i-th curve."""
    dash, marker = STYLES[i % len(STYLES)]
    grey = GREYS[i // len(STYLES) % len(GREYS)]
    filled = grey if i // len(STYLES) % 2 == 0 else "white"
    line = "none" if panel.dots else dash
    return {
        "linestyle": line,
        "marker": marker,
        "markersize": 4,
        "color": grey,
        "markerfacecolor": filled,
    }


def write_page(reduced: Mapping[Figure, bool], claims: Sequence[Mapping[str, Any]], folder: Path) -> Path:
    """Write the page and the table of claims; `reduced` tells which figures have a reduced size."""
    if claims:
        _write_rows(claims, folder / "claims.parquet")
    reproduced = sum(claim["verdict"] == "reproduced" for claim in claims)
    parts = [
        "<!doctype html><html lang='en'><meta charset='utf-8'><title>Broadloom: the papers</title>",
        f"<style>{STYLE}</style><h1>Results of the papers, compared with ours</h1>",
        f"<p>{reproduced} of {len(claims)} claims reproduced. Latencies of paper 1: "
        f"{html.escape(', '.join(latency_sources()))}. "
        "Times are CPU seconds on the machine of this run.</p>",
    ]
    for figure, small in reduced.items():
        parts.append(
            f"<h2 id='{figure.key}'>Paper {figure.paper}, {figure.name}: {html.escape(figure.title)}</h2>"
        )
        parts.append(f"<p>{'Reduced size' if small else 'Size of the paper'}.</p>")
        parts.append(_picture(figure, folder))
        parts.append(_table([claim for claim in claims if claim["figure"] == figure.key]))
    page = folder / "index.html"
    _put(("\n".join(parts) + "\n").encode(), page)
    return page


def _write_rows(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write rows as Parquet; rows can have different columns."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    table = pa.table({name: [row.get(name) for row in rows] for name in columns})
    written = io.BytesIO()
    pa.parquet.write_table(table, written)
    _put(written.getvalue(), path)


def _put(content: bytes, path: Path) -> None:
    """Write a file by one rename: readers see the old file or the new one."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.draft")
    draft.write_bytes(content)
    draft.replace(path)


def _picture(figure: Figure, folder: Path) -> str:
    """An HTML image element with the drawing embedded."""
    drawing = base64.b64encode((folder / f"{figure.key}.svg").read_bytes()).decode()
    return f"<img alt='{html.escape(figure.title)}' src='data:image/svg+xml;base64,{drawing}'>"


def _table(claims: Sequence[Mapping[str, Any]]) -> str:
    if not claims:
        return ""
    head = "".join(f"<th>{name}</th>" for name in VERDICTS)
    body = "".join(f"<tr>{''.join(_cell(claim[name]) for name in VERDICTS)}</tr>" for claim in claims)
    return f"<table><tr>{head}</tr>{body}</table>"


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"<td class='number'>{value:.3g}</td>"
    if value is None:
        return "<td class='number'>-</td>"
    return f"<td>{html.escape(str(value))}</td>"


def write_case(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write the rows of a case."""
    _put(json.dumps(rows).encode(), path)


def read_case(path: Path) -> list[dict[str, Any]]:
    """The rows of a case; empty if it was not run, or its file is damaged."""
    try:
        rows = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return []
    return rows if isinstance(rows, list) and all(isinstance(row, dict) for row in rows) else []

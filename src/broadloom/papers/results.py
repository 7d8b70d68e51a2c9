"""What a reproduction leaves behind: a table and a drawing for each figure, all claims, and one page."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from broadloom.papers._overlays import latency_sources
from broadloom.papers.figure import Figure, Panel, Rows

# Curves differ in dashes and markers, so that they are told apart without colours.
STYLES = (("-", "o"), ("--", "s"), ("-.", "^"), (":", "D"), ((0, (5, 1)), "v"), ((0, (1, 1)), "x"))
VERDICTS = ["where", "claim", "theirs", "ours", "tolerance", "verdict", "why"]

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem;
  color-scheme: light dark; }
table { border-collapse: collapse; margin: 1rem 0; font-size: 0.9rem; }
td, th { border-bottom: 1px solid #8888; padding: 0.2rem 0.6rem; text-align: left; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
img { background: #fff; max-width: 100%; }
"""


def write_figure(figure: Figure, rows: Rows, folder: Path, quick: bool) -> list[dict[str, Any]]:
    """Write the figure's rows and its drawing; what becomes of its claims."""
    pa.parquet.write_table(pa.Table.from_pylist(list(rows.all)), folder / f"{figure.key}.parquet")
    draw(figure, rows, folder / f"{figure.key}.svg")
    about = [claim for claim in figure.claims if not (quick and claim.at_full_size)]
    size = "reduced" if quick else "the paper's"
    return [{"figure": figure.key, "size": size, **claim.verdict(rows)} for claim in about]


def draw(figure: Figure, rows: Rows, place: Path) -> None:
    """A drawing of all panels: means over seeds as lines, from the least to the most as bands."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure as Canvas

    with rc_context({"svg.hashsalt": figure.key, "svg.fonttype": "none"}):
        canvas = Canvas(figsize=(5 * len(figure.panels), 4), layout="constrained")
        for axes, panel in zip(
            np.atleast_1d(canvas.subplots(1, len(figure.panels))), figure.panels, strict=True
        ):
            _panel(axes, figure, panel, rows)
        canvas.savefig(place, format="svg", metadata={"Date": None})


def _panel(axes: Any, figure: Figure, panel: Panel, rows: Rows) -> None:
    points = sorted({row[figure.x] for row in rows.all})
    curves = sorted({tuple(str(row[name]) for name in figure.curves) for row in rows.all})
    for i, curve in enumerate(curves):
        wanted = dict(zip(figure.curves, curve, strict=True))
        found = [rows.values(panel.y, **{figure.x: at}, **wanted) for at in points]
        there = [k for k, values in enumerate(found) if values]
        where = there if isinstance(points[0], str) else [points[k] for k in there]
        dash, marker = STYLES[i % len(STYLES)]
        grey = str(0.6 * (i // len(STYLES)) / 3)
        means = [np.mean(found[k]) for k in there]
        axes.plot(
            where, means, linestyle=dash, marker=marker, markersize=4, color=grey, label=" ".join(curve)
        )
        low, high = ([f(found[k]) for k in there] for f in (min, max))
        axes.fill_between(where, low, high, color=grey, alpha=0.12, linewidth=0)
    if isinstance(points[0], str):
        axes.set_xticks(range(len(points)), points)
    axes.set(xlabel=figure.x_label, ylabel=panel.label, yscale="log" if panel.log else "linear")
    axes.legend(fontsize="x-small")


def write_page(reduced: Mapping[Figure, bool], claims: Sequence[Mapping[str, Any]], folder: Path) -> Path:
    """One page with everything, and the claims as a table; `reduced`: the figures, and whether small ones."""
    if claims:
        pa.parquet.write_table(
            pa.Table.from_pylist([dict(claim) for claim in claims]), folder / "claims.parquet"
        )
    reproduced = sum(claim["verdict"] == "reproduced" for claim in claims)
    parts = [
        "<!doctype html><html lang='en'><meta charset='utf-8'><title>Broadloom: the papers</title>",
        f"<style>{STYLE}</style><h1>The papers, ours beside theirs</h1>",
        f"<p>{reproduced} of {len(claims)} claims reproduced. Latencies of paper 1: "
        f"{html.escape(', '.join(latency_sources()))}. "
        "Seconds are of the processor, on the machine of this run.</p>",
    ]
    for figure, small in reduced.items():
        parts.append(
            f"<h2 id='{figure.key}'>Paper {figure.paper}, {figure.name}: {html.escape(figure.title)}</h2>"
        )
        parts.append(f"<p>{'Reduced size' if small else 'As large as in the paper'}.</p>")
        parts.append(_picture(figure, folder))
        parts.append(_table([claim for claim in claims if claim["figure"] == figure.key]))
    page = folder / "index.html"
    page.write_text("\n".join(parts) + "\n", encoding="utf-8")
    return page


def _picture(figure: Figure, folder: Path) -> str:
    """The drawing inside the page, so that the page is whole by itself."""
    import base64

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
    return f"<td>{html.escape(str(value))}</td>"


def read_case(place: Path) -> list[dict[str, Any]]:
    """The rows of a case that was run."""
    rows: list[dict[str, Any]] = json.loads(place.read_text(encoding="utf-8"))
    return rows

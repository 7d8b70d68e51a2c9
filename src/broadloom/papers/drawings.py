"""Drawings of figures with matplotlib, in black and white: means as lines, minimum to maximum as bands."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import numpy as np

from broadloom.papers.case_files import put
from broadloom.papers.figures import Figure, FigureRows, Panel

# Dashes and markers, which distinguish curves without colours; from the seventh curve on they are grey, with
# open markers.
STYLES = (("-", "o"), ("--", "s"), ("-.", "^"), (":", "D"), ((0, (5, 1)), "v"), ((0, (1, 1)), "x"))
MOST_DOTS = 300  # per curve; of more, evenly many are drawn along the x axis
BITMAP_DOTS = 150  # per curve; more dots are one bitmap
MOST_POINTS = 60  # per curve
MOST_MARKS = 20  # per curve
# Numbers in the attributes of a drawing, which are rounded to tenths of a point; texts follow ">".
LONG = re.compile(rb"(?<=[ \"(,])-?\d+\.\d{2,}(?=[ \"),\n])")
GREYS = ("0", "0.55")
WIDTH, HEIGHT, LINE = 5.0, 3.2, 0.2  # of a panel, and of a line of the legend, in inches
LONG_LABEL = 24  # a legend with longer labels has one column


def draw(figure: Figure, rows: FigureRows, path: Path) -> None:
    """Draw all panels, one below the other: means over seeds as lines, from minimum to maximum as bands."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure as Canvas

    # One font: every text of a drawing names all of them.
    with rc_context({"svg.hashsalt": figure.key, "svg.fonttype": "none", "font.family": "DejaVu Sans"}):
        canvas = Canvas(layout="constrained")
        all_axes = np.atleast_1d(canvas.subplots(len(figure.panels)))
        for axes, panel in zip(all_axes, figure.panels, strict=True):
            draw_panel(axes, figure, panel, rows)
        marks, labels = all_axes[0].get_legend_handles_labels()
        columns = 1 if max(map(len, labels), default=0) > LONG_LABEL else 2
        lines = -(-len(labels) // columns)
        canvas.set_size_inches(WIDTH, HEIGHT * len(figure.panels) + LINE * (lines + 1))
        canvas.legend(marks, labels, loc="outside lower center", ncols=columns, fontsize="small")
        drawn = io.BytesIO()
        canvas.savefig(
            drawn, format="svg", dpi=150, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type"))
        )
    put(LONG.sub(_rounded, drawn.getvalue()), path)


def _rounded(found: re.Match[bytes]) -> bytes:
    """A number with one decimal, or with two digits if it is below 1."""
    value = float(found[0])
    return b"%.2g" % value if abs(value) < 1 else b"%.1f" % value


def curves_of(figure: Figure, rows: FigureRows) -> list[dict[str, Any]]:
    """The values that identify each curve; only rows with values for every panel count.

    Examples:
        >>> from broadloom.papers import figures_of
        >>> (figure,) = figures_of(3, "fig5")
        >>> curves_of(figure, FigureRows(({"coverage": 2, "round": 1, "max_degree": 9, "mean_degree": 4.0},)))
        [{'coverage': 2}]
    """
    needed = (figure.x, *(panel.y for panel in figure.panels))
    needed += figure.curves
    drawn = [row for row in rows.all if all(row.get(name) is not None for name in needed)]
    curves = {tuple(row[name] for name in figure.curves) for row in drawn}
    return [dict(zip(figure.curves, curve, strict=True)) for curve in sorted(curves)]


def draw_panel(axes: Any, figure: Figure, panel: Panel, rows: FigureRows) -> None:
    """Draw one panel of a figure."""
    curves = curves_of(figure, rows)
    drawn = [row for curve in curves for row in rows.where(**curve).all if row.get(figure.x) is not None]
    points = sorted({row[figure.x] for row in drawn})
    named = bool(points) and isinstance(points[0], str)
    for i, curve in enumerate(curves):
        of_curve = rows.where(**curve)
        found = [of_curve.values(panel.y, **{figure.x: at}) for at in points]
        shown = [k for k, values in enumerate(found) if values]
        style = _style(i, panel) | {"label": " ".join(map(str, curve.values()))}
        if panel.dots:
            dots = [(k if named else points[k], value) for k in shown for value in found[k]]
            dots = dots[:: -(-len(dots) // MOST_DOTS) or 1]
            axes.plot(*zip(*dots, strict=True), **style, rasterized=len(dots) > BITMAP_DOTS)
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
    grey = GREYS[
        (i if panel.dots else i // len(STYLES)) % len(GREYS)
    ]  # dots overlap: every other kind is grey
    filled = grey if i // len(STYLES) % 2 == 0 else "white"
    line = "none" if panel.dots else dash
    return {
        "linestyle": line,
        "marker": marker,
        "markersize": 3 if panel.dots else 4,
        "color": grey,
        "markerfacecolor": filled,
    }

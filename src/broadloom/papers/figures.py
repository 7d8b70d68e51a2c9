"""Figures and tables of papers: cases to run, columns to draw, and claims to check."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Case = dict[str, Any]
Row = dict[str, Any]


@dataclass(frozen=True)
class FigureRows:
    """The rows of all cases of a figure; methods select rows and compute means."""

    all: tuple[Row, ...]

    def where(self, **wanted: Any) -> FigureRows:
        """The rows that have these values."""
        return FigureRows(
            tuple(r for r in self.all if all(r.get(name) == value for name, value in wanted.items()))
        )

    def values(self, column: str, **wanted: Any) -> list[float]:
        """The values of a column in the rows that have these values."""
        return [float(row[column]) for row in self.where(**wanted).all if row.get(column) is not None]

    def mean(self, column: str, **wanted: Any) -> float:
        """The mean of `values`; NaN without values.

        Examples:
            >>> FigureRows(({"name": "gm", "s": 1.0}, {"name": "gm", "s": 3.0})).mean("s", name="gm")
            2.0
        """
        found = self.values(column, **wanted)
        return float(np.mean(found)) if found else float("nan")

    def median(self, column: str, **wanted: Any) -> float:
        """The median of `values`, which a few slow calls do not affect; NaN without values."""
        found = self.values(column, **wanted)
        return float(np.median(found)) if found else float("nan")

    def most(self, column: str, **wanted: Any) -> float:
        """The largest of `values`; NaN without values."""
        return max(self.values(column, **wanted), default=float("nan"))

    def largest(self, column: str) -> Any:
        """The largest value of a column in all rows, of any type; None without rows."""
        return max((row[column] for row in self.all), default=None)

    def ratio(self, column: str, one: Mapping[str, Any], other: Mapping[str, Any], each: str) -> float:
        """The mean, over the values of the column `each`, of the ratio of two means."""
        points = sorted({row[each] for row in self.all})
        pairs = [
            (self.mean(column, **{each: at}, **one), self.mean(column, **{each: at}, **other))
            for at in points
        ]
        return float(np.mean([a / b for a, b in pairs]))


@dataclass(frozen=True)
class Panel:
    """One drawing of a figure: a column over the figure's x, one curve per value of its `curves`.

    Attributes:
        y: the column.
        label: the label of its axis.
        log: whether the axis is logarithmic.
        dots: draw one dot per row, not a line through means.
    """

    y: str
    label: str
    log: bool = False
    dots: bool = False


@dataclass(frozen=True)
class Claim:
    """A number in a paper's text.

    Attributes:
        where: its section or table.
        text: the claim in words.
        theirs: the paper's number.
        ours: a function that computes the same number from our rows.
        relation: "about", "at most" or "at least".
        tolerance: the largest difference, relative to theirs, that counts as reproduced.
        why: the likely reason for a difference; shown only if the claim is not reproduced.
        at_full_size: whether it can be checked only on instances of the paper's size.
    """

    where: str
    text: str
    theirs: float
    ours: Callable[[FigureRows], float]
    relation: str = "about"
    tolerance: float = 0.25
    why: str = field(kw_only=True)
    at_full_size: bool = False

    def verdict(self, rows: FigureRows) -> dict[str, Any]:
        """The claim, our number, and the verdict; "not measured" without a number."""
        ours = self.ours(rows)
        margin = abs(self.theirs) * self.tolerance
        low = -np.inf if self.relation == "at most" else self.theirs - margin
        high = np.inf if self.relation == "at least" else self.theirs + margin
        holds = bool(low <= ours <= high)
        unknown = bool(np.isnan(ours))
        return {
            "where": self.where,
            "claim": self.text,
            "theirs": f"{self.relation} {self.theirs:g}",
            "ours": None if unknown else ours,
            "tolerance": self.tolerance,
            "verdict": "reproduced" if holds else "not measured" if unknown else "not reproduced",
            "why": "" if holds else self.why,
        }


@dataclass(frozen=True)
class Figure:
    """A figure or table of a paper.

    Attributes:
        paper: its number.
        name: its name on the command line, such as "fig4" or "table1".
        title: what it shows.
        x: the column of the horizontal axis.
        x_label: the label of that axis.
        curves: the columns whose values identify a curve.
        panels: its drawings.
        cases: a function that returns the cases to run; fewer and smaller ones if its argument is true.
        run: a function that runs a case and returns its rows; executors call it.
        claims: the claims of the paper's text about it.
        shares: the name of the figure of the same paper whose cases it shows; None: its own cases.
    """

    paper: int
    name: str
    title: str
    x: str
    x_label: str
    curves: tuple[str, ...]
    panels: tuple[Panel, ...]
    cases: Callable[[bool], Iterable[Case]]
    run: Callable[[Case], list[Row]]
    claims: tuple[Claim, ...] = ()
    shares: str | None = None

    @property
    def key(self) -> str:
        """Paper and name together, as in the names of files."""
        return f"paper{self.paper}-{self.name}"

    @property
    def source(self) -> str:
        """The key of the figure whose cases it shows."""
        return f"paper{self.paper}-{self.shares or self.name}"

"""What a figure or table of a paper is here: cases to run, columns to draw, and claims to compare with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Case = dict[str, Any]
Row = dict[str, Any]


@dataclass(frozen=True)
class FigureRows:
    """The rows that the cases of a figure gave, and means over some of them."""

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
        """Their mean; NaN if there is none.

        Examples:
            >>> FigureRows(({"name": "gm", "s": 1.0}, {"name": "gm", "s": 3.0})).mean("s", name="gm")
            2.0
        """
        found = self.values(column, **wanted)
        return float(np.mean(found)) if found else float("nan")

    def median(self, column: str, **wanted: Any) -> float:
        """Their median, which a few slow calls do not move; NaN if there is none."""
        found = self.values(column, **wanted)
        return float(np.median(found)) if found else float("nan")

    def most(self, column: str, **wanted: Any) -> float:
        """The largest of them; NaN if there is none."""
        return max(self.values(column, **wanted), default=float("nan"))

    def largest(self, column: str) -> Any:
        """The largest value of a column."""
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
    """One drawing of a figure: a column over the figure's x, a curve for each value of its `curves`.

    Attributes:
        y: the column.
        label: what its axis says.
        log: whether the axis is logarithmic.
        dots: a dot for each row, rather than a line through means.
    """

    y: str
    label: str
    log: bool = False
    dots: bool = False


@dataclass(frozen=True)
class Claim:
    """A number in a paper's text.

    Attributes:
        where: the section that it stands in.
        text: what is claimed, in words.
        theirs: the paper's number.
        ours: the same from our rows.
        relation: "about", "at most" or "at least".
        tolerance: how far off, relative to theirs, still counts as reproduced.
        why: what we think of a difference; every claim has it, for no run knows its verdict before.
        at_full_size: whether it is about instances that only a run at full size has.
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
        """The claim, the number that we measure, and whether it is reproduced; "not measured" without one."""
        ours = self.ours(rows)
        room = abs(self.theirs) * self.tolerance
        low = -np.inf if self.relation == "at most" else self.theirs - room
        high = np.inf if self.relation == "at least" else self.theirs + room
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
        name: as the command line has it, "fig4" or "table1".
        title: what it shows.
        x: the column that runs along the axis.
        x_label: what the axis says.
        curves: the columns whose values make a curve.
        panels: its drawings.
        cases: the cases to run, fewer and smaller ones if quick.
        run: the rows of a case; it runs by itself, on any machine.
        claims: the numbers of the text about it.
        shares: the name of the figure of the same paper whose runs it shows, if they are not its own.
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
        """Paper and name together, as files are called."""
        return f"paper{self.paper}-{self.name}"

    @property
    def source(self) -> str:
        """The key of the figure whose cases it shows."""
        return f"paper{self.paper}-{self.shares or self.name}"

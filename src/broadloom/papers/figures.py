"""Figures and tables of papers: cases to run, columns to draw, and the claims of the text.

A claim has a kind, and each kind has one rule for all papers (`RULES`). A claim that does not hold has a
verdict that says why it cannot or does not: see `VERDICTS`. Where a paper leaves room for several set-ups,
the first row has the set-up that the paper describes and is counted; rows with other set-ups repeat it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

Case = dict[str, Any]
Row = dict[str, Any]

NUMBER, ORDER, TREND, BOUND, TIME = "number", "order", "trend", "bound", "running time"
KINDS = (NUMBER, ORDER, TREND, BOUND, TIME)
NEAR = 0.25  # numbers and running times: the largest difference, relative to theirs
LIKE = 0.1  # "alike" and "does not change": the largest difference, relative to the smaller
STEADY = 0.7  # trends: the least rank correlation
RULES = {
    NUMBER: f"ours is within {NEAR:.0%} of theirs; a cost that is lower than that is surpassed",
    ORDER: (
        "each run gives a pair of values, and the mean of their differences has the sign of the claim and "
        f"exceeds twice its standard error; for 'alike', the means differ by at most {LIKE:.0%}; a single "
        "pair decides nothing"
    ),
    TREND: (
        "from the first to the last point the mean of the runs changes in the direction of the claim by more "
        f"than twice its standard error, and the rank correlation is at least {STEADY:g}; for 'does not "
        f"change', the means differ by at most {LIKE:.0%}; a single run decides nothing"
    ),
    BOUND: "within the bound, without any tolerance",
    TIME: (
        f"seconds are reproduced if they are within {NEAR:.0%} of theirs, and surpassed if they are lower. A "
        "ratio of two running times is not comparable, whether or not ours agrees: it depends on both "
        "implementations, and the paper's are not published. An order or a trend of running times is "
        "judged, also with the algorithms as printed where we have them"
    ),
}

REPRODUCED, SURPASSED, CONTRADICTED = "reproduced", "surpassed", "contradicted"
IMPOSSIBLE, NOT_COMPARABLE, NOT_MEASURED = "impossible as printed", "not comparable", "not measured"
VERDICTS = {
    REPRODUCED: "the claim holds by the rule of its kind",
    SURPASSED: "our seconds or our cost are lower than theirs, by the factor shown",
    CONTRADICTED: (
        "the claim does not hold in our experiment, on the data that we have; an experiment shows the "
        "reason, or it is not known"
    ),
    IMPOSSIBLE: "the claim cannot hold by the paper's own definitions",
    NOT_COMPARABLE: (
        "the claim depends on data, programs or results of the paper that are missing, so it is not judged, "
        "whether or not ours agrees; the reason says what would be needed. Or it depends on settings that "
        "the paper leaves open: at least half of those that we tried disagree with the first"
    ),
    NOT_MEASURED: (
        "our runs do not decide it: there is no number, a single run, or a reduced size that does not agree"
    ),
}
NOT_KNOWN = "not known"
IMPLEMENTATION = "the paper's implementation"  # missing for ratios of running times


@dataclass(frozen=True)
class FigureRows:
    """The rows of all cases of a figure; methods select rows and compute means."""

    all: tuple[Row, ...]

    def where(self, **wanted: Any) -> FigureRows:
        """The rows that have these values."""
        names = tuple(sorted(wanted))
        if names not in self._groups:
            self._groups[names] = self._grouped(names)
        return self._groups[names].get(tuple(wanted[name] for name in names), FigureRows(()))

    @cached_property
    def _groups(self) -> dict[tuple[str, ...], dict[tuple[Any, ...], FigureRows]]:
        """Rows by the values of some columns: a page asks for the same columns many times."""
        return {}

    def _grouped(self, names: tuple[str, ...]) -> dict[tuple[Any, ...], FigureRows]:
        found: dict[tuple[Any, ...], list[Row]] = {}
        for row in self.all:
            found.setdefault(tuple(row.get(name) for name in names), []).append(row)
        return {values: FigureRows(tuple(rows)) for values, rows in found.items()}

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

    def points(self, *columns: str) -> list[tuple[Any, ...]]:
        """The distinct values of some columns together, sorted; rows without one of them do not count."""
        found = {tuple(row.get(name) for name in columns) for row in self.all}
        return sorted(point for point in found if None not in point)

    def largest(self, column: str) -> Any:
        """The largest value of a column in all rows, of any type; None without rows."""
        return max((row[column] for row in self.all), default=None)

    def ratio(self, column: str, one: Mapping[str, Any], other: Mapping[str, Any], each: str) -> float:
        """The mean, over the values of the column `each`, of the ratio of two means, where both have rows."""
        pairs = [
            (self.mean(column, **{each: at}, **one), self.mean(column, **{each: at}, **other))
            for (at,) in self.points(each)
        ]
        ratios = [a / b for a, b in pairs if not np.isnan(a) and not np.isnan(b)]
        return float(np.mean(ratios)) if ratios else float("nan")


class Measured(NamedTuple):
    """Our side of a claim.

    Attributes:
        value: our number; for orders and trends the difference relative to the smaller side, positive in the
            direction of the claim.
        margin: twice its standard error; NaN if there are too few runs for one.
        holds: whether a further condition of the kind is met, such as the rank correlation of a trend.
        text: how to show it; None: the number.
    """

    value: float
    margin: float = float("nan")
    holds: bool = True
    text: str | None = None


Ours = Callable[[FigureRows], float | Measured]
Reason = str | Callable[[FigureRows], str]
Settings = Callable[[FigureRows], tuple[int, int]]


@dataclass(frozen=True)
class Claim:
    """A statement of a paper's text.

    Attributes:
        kind: one of `KINDS`; decides the rule.
        where: its section or table.
        text: the claim in words.
        ours: a function that computes our side from the rows.
        theirs: the paper's number; None for orders and trends.
        relation: for bounds "at most" or "at least"; for orders and trends "alike" if there is no difference.
        otherwise: the verdict if it does not hold.
        missing: what of the paper would be needed to judge it; then it is not comparable, even if it agrees.
        reason: why it does not hold: the result of an experiment as text, a function that computes this text
            from the rows, or `NOT_KNOWN`.
        experiment: the key of the figure whose rows `reason` and `settings` take; None: that of the claim.
        settings: a function that counts the settings of the experiment in which the claim holds, and all of
            them; None: there is one setting.
        setup: what differs from the paper's description, if anything does; shown with the claim.
        is_cost: whether a lower number is better, as for seconds: then it can be surpassed.
        repeats: whether it is another set-up of a claim that is counted already.
        at_full_size: whether it can be checked only on instances of the paper's size.
    """

    kind: str
    where: str
    text: str
    ours: Ours
    theirs: float | None = None
    relation: str = ""
    otherwise: str = CONTRADICTED
    missing: str = ""
    reason: Reason = NOT_KNOWN
    experiment: str | None = None
    settings: Settings | None = None
    setup: str = ""
    is_cost: bool = False
    repeats: bool = False
    at_full_size: bool = False

    def verdict(self, rows: FigureRows, others: Mapping[str, FigureRows] | None = None) -> dict[str, Any]:
        """The claim, our number, the verdict and its reason.

        Args:
            rows: the rows of the claim's figure.
            others: the rows of other figures by key, for reasons that are experiments of their own.
        """
        others = others or {}
        found = self.ours(rows)
        ours = found if isinstance(found, Measured) else Measured(float(found))
        factor = self._factor(ours.value)
        holding = self._holding(others)
        verdict = self._judge(ours, factor, holding)
        needs_reason = verdict not in (REPRODUCED, SURPASSED, NOT_MEASURED)
        return {
            "kind": self.kind,
            "where": self.where,
            "claim": self.text,
            "theirs": self._theirs(),
            "ours": "" if np.isnan(ours.value) else ours.text or plain(ours.value),
            "value": None if np.isnan(ours.value) else ours.value,
            "verdict": verdict,
            "factor": factor if verdict == SURPASSED else None,
            "reason": self._reason(verdict, ours.value, rows, others) if needs_reason else "",
            "setup": self._setup(holding),
            "counted": not self.repeats,
        }

    def _judge(self, ours: Measured, factor: float, holding: tuple[int, int] | None) -> str:
        if np.isnan(ours.value) and not (self.missing and self.ours is nothing_to_run):
            return NOT_MEASURED
        if self.kind in (ORDER, TREND) and np.isnan(ours.margin):
            return NOT_MEASURED
        if self.missing and self.otherwise != IMPOSSIBLE:
            return NOT_COMPARABLE
        if factor > 1 / (1 - NEAR):
            return SURPASSED
        holds = self._holds(ours)
        if holding is not None and _half_disagree(holds, *holding):
            return NOT_COMPARABLE
        return REPRODUCED if holds else self.otherwise

    def _holding(self, others: Mapping[str, FigureRows]) -> tuple[int, int] | None:
        """The number of settings in which the claim holds, and of all; None if they were not run."""
        if self.settings is None or self.experiment is None or self.experiment not in others:
            return None
        return self.settings(others[self.experiment])

    def _setup(self, holding: tuple[int, int] | None) -> str:
        parts = [self.setup] if self.setup else []
        if holding is not None:
            parts.append(
                f"it holds in {holding[0]} of {holding[1]} settings (experiment `{self.experiment}`)"
            )
        return "; ".join(parts)

    def _holds(self, ours: Measured) -> bool:
        if self.kind in (ORDER, TREND):
            if self.relation == "alike":
                return ours.holds and abs(ours.value) <= LIKE
            return ours.holds and ours.value > ours.margin
        theirs = float(np.nan if self.theirs is None else self.theirs)
        if self.kind == BOUND:
            return ours.holds and (
                ours.value <= theirs if self.relation == "at most" else ours.value >= theirs
            )
        return ours.holds and abs(ours.value - theirs) <= NEAR * abs(theirs)

    def _factor(self, ours: float) -> float:
        """By how much ours is lower than theirs."""
        lower_is_better = (self.kind == TIME or self.is_cost) and not self.missing
        return self.theirs / ours if lower_is_better and self.theirs and ours > 0 else float("nan")

    def _theirs(self) -> str:
        if self.theirs is None:
            return "alike" if self.relation == "alike" else "yes"
        return f"{self.relation} {plain(self.theirs)}".strip()

    def _reason(self, verdict: str, ours: float, rows: FigureRows, others: Mapping[str, FigureRows]) -> str:
        parts = [f"{self.missing} would be needed"] if self.missing else []
        if self.missing and self.kind in (NUMBER, TIME) and self.theirs and not np.isnan(ours):
            parts.append(f"ours is {plain(ours / self.theirs)} times theirs")
        if verdict == NOT_COMPARABLE and not self.missing:
            parts.append("it depends on settings that the paper leaves open")
        own = self._own_reason(rows, others)
        if parts:  # the reason is known
            own = own.removeprefix(NOT_KNOWN).removeprefix("; ")
        return "; ".join([*parts, own] if own else parts)

    def _own_reason(self, rows: FigureRows, others: Mapping[str, FigureRows]) -> str:
        if isinstance(self.reason, str):
            return self.reason
        if self.experiment is None:
            return self.reason(rows)
        if self.experiment not in others:
            return f"{NOT_KNOWN} before the experiment `{self.experiment}` has run"
        return f"{self.reason(others[self.experiment])} (experiment `{self.experiment}`)"


def _half_disagree(holds: bool, held: int, settings: int) -> bool:
    """Whether at least half of the settings disagree with the judged one.

    Examples:
        >>> _half_disagree(True, 19, 36), _half_disagree(True, 18, 36), _half_disagree(False, 18, 36)
        (False, True, True)
    """
    agree = held if holds else settings - held
    return 2 * agree <= settings


def plain(value: float) -> str:
    """A number with three digits, without an exponent where that is readable.

    Examples:
        >>> plain(0.0123456), plain(2646.3), plain(5.4e10), plain(2.0)
        ('0.0123', '2,650', '5.4e+10', '2')
    """
    if value != 0 and not 1e-4 <= abs(value) < 1e6:
        return f"{value:.3g}"
    return f"{float(f'{value:.3g}'):,.12g}"


# Our side of a claim


def nothing_to_run(_: FigureRows) -> float:
    """Our side of a number that cannot be computed without what is missing."""
    return float("nan")


def mean_of(column: str, **which: Any) -> Ours:
    """The mean of a column in the rows that have these values."""
    return lambda rows: rows.mean(column, **which)


def most_of(column: str, **which: Any) -> Ours:
    """The largest value of a column in the rows that have these values."""
    return lambda rows: rows.most(column, **which)


def text_of(ours: Ours, rows: FigureRows) -> str:
    """Our side of a claim as text, for reasons."""
    found = ours(rows)
    return (found.text or plain(found.value)) if isinstance(found, Measured) else plain(found)


def exponent(points: Iterable[tuple[float, float]]) -> float:
    """The exponent of the power law through some points, by least squares of the logarithms.

    Examples:
        >>> round(exponent([(1, 3), (2, 12), (4, 48)]), 6)
        2.0
    """
    x, y = np.log(np.array(list(points), np.float64)).T
    return float(np.cov(x, y)[0, 1] / np.var(x, ddof=1))


def order(
    column: str,
    low: Mapping[str, Any],
    high: Mapping[str, Any],
    by: Iterable[str],
    **where: Any,
) -> Ours:
    """How much larger a column is for `high` than for `low`, in pairs of rows with the same `by`."""
    return lambda rows: _in_pairs(rows.where(**where), column, low, high, tuple(by))


def _in_pairs(
    rows: FigureRows, column: str, low: Mapping[str, Any], high: Mapping[str, Any], by: tuple[str, ...]
) -> Measured:
    """The mean difference of pairs (low, high) with the same `by`."""
    found = []
    for point in rows.points(*by):
        at = dict(zip(by, point, strict=True))
        found.append((rows.mean(column, **at, **low), rows.mean(column, **at, **high)))
    return paired(found)


def paired(
    pairs: Iterable[tuple[float, float]], text: Callable[[float, float], str] | None = None
) -> Measured:
    """The mean difference of pairs (low, high), a pair per run, relative to the mean of the smaller side.

    Args:
        pairs: the pairs; those with a NaN do not count.
        text: how to show the two means; by default both, and the difference.

    Examples:
        >>> found = paired([(1.0, 2.0), (1.0, 4.0)])
        >>> found.value, found.margin, found.text
        (2.0, 2.0, '1 and 3, +200 % ± 200')
        >>> paired([(1.0, 2.0)]).margin
        nan
    """
    found = np.array([pair for pair in pairs if not np.isnan(pair).any()])
    if not len(found):
        return Measured(float("nan"))
    low, high = (float(mean) for mean in found.mean(axis=0))
    base = min(abs(low), abs(high)) or max(abs(low), abs(high)) or 1.0
    difference = (found[:, 1] - found[:, 0]) / base
    value, margin = float(difference.mean()), twice_error(difference)
    shown = text(low, high) if text else f"{plain(low)} and {plain(high)}"
    return Measured(value, margin, text=f"{shown}, {_percent(value, margin)}")


def twice_error(values: Sequence[float] | np.ndarray[Any, np.dtype[np.float64]]) -> float:
    """Twice the standard error of the mean of some values; NaN for a single one.

    Examples:
        >>> twice_error([1.0, 3.0]), twice_error([1.0])
        (2.0, nan)
    """
    if len(values) < 2:
        return float("nan")
    return 2 * float(np.std(values, ddof=1)) / float(np.sqrt(len(values)))


def tried(theirs: float, found: Mapping[str, float]) -> str:
    """A reason for a number: the variants that were tried, and which of them are near the paper's number.

    Examples:
        >>> tried(10, {"ties at random": 9.0, "smallest pair": 20.0})
        "near the paper's with ties at random; tried: ties at random 9, smallest pair 20"
        >>> tried(10, {"smallest pair": 20.0})
        'not known; tried: smallest pair 20'
    """
    near = [name for name, value in found.items() if abs(value - theirs) <= NEAR * abs(theirs)]
    head = f"near the paper's with {' and with '.join(near)}" if near else NOT_KNOWN
    return f"{head}; tried: " + ", ".join(f"{name} {plain(value)}" for name, value in found.items())


def _percent(value: float, margin: float) -> str:
    """A relative difference and its margin, as in '+12 % ± 3'; both to a hundredth of a percent at most.

    Examples:
        >>> _percent(0.123, 0.03), _percent(-0.004, 0.0), _percent(20.5, 1.0), _percent(0.8, 5e-15)
        ('+12 % ± 3', '-0.4 %', 'by a factor of 21.5', '+80 %')
    """
    if value > 3:
        return f"by a factor of {plain(1 + value)}"
    share = round(100 * value, 2) or 0.0
    shown = f"{share:+.2g} %" if abs(share) < 10 else f"{share:+.0f} %"
    error = 0.0 if np.isnan(margin) else round(float(f"{100 * margin:.1g}"), 2)
    return shown + (f" ± {error:g}" if error else "")


def trend(column: str, x: str, sign: int, by: Iterable[str] = ("seed",), **where: Any) -> Ours:
    """The change of a column from the first to the last value of `x`, times `sign`, in pairs by `by`.

    A sign of 0 is for "does not change": the largest difference between the means of two points.
    """

    def ours(rows: FigureRows) -> Measured:
        rows = rows.where(**where)
        at = [point for (point,) in rows.points(x) if rows.values(column, **{x: point})]
        means = [rows.mean(column, **{x: point}) for point in at]
        if len(at) < 2:
            return Measured(float("nan"))
        if sign == 0:
            least, most = at[int(np.argmin(means))], at[int(np.argmax(means))]
            return _in_pairs(rows, column, {x: least}, {x: most}, tuple(by))
        ends = (at[0], at[-1]) if sign > 0 else (at[-1], at[0])
        found = _in_pairs(rows, column, {x: ends[0]}, {x: ends[1]}, tuple(by))
        steady = sign * rank_correlation(at, means)
        scale = min(abs(means[0]), abs(means[-1])) / (abs(means[0]) or 1.0)
        change = _percent(sign * found.value * scale, found.margin * scale)
        text = f"from {plain(means[0])} to {plain(means[-1])}, {change}, rank correlation {sign * steady:.2f}"
        return Measured(found.value, found.margin, steady >= STEADY, text)

    return ours


def rank_correlation(x: Iterable[float], y: Iterable[float]) -> float:
    """Spearman's rank correlation; 0 if one side is constant, because an equality is not a trend.

    Examples:
        >>> rank_correlation([1, 2, 3], [5, 7, 9]), rank_correlation([1, 2, 3], [4, 4, 4])
        (1.0, 0.0)
    """
    ranks = [_ranks(np.asarray(list(values), float)) for values in (x, y)]
    if any(np.ptp(rank) == 0 for rank in ranks):
        return 0.0
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def _ranks(values: np.ndarray[Any, np.dtype[np.float64]]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The ranks of values; equal values share the mean of their ranks."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return np.asarray((ends - (counts - 1) / 2)[inverse], np.float64)


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
class Figure:
    """A figure or table of a paper, or an experiment that tests a reason.

    Attributes:
        paper: its number.
        name: its name on the command line, such as "fig4", "table1" or "ties".
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
    def shown(self) -> str:
        """Its name as papers write it.

        Examples:
            >>> from broadloom.papers import figures_of
            >>> [figures_of(4, name)[0].shown for name in ("fig6", "fig7b", "table2", "others")]
            ['Fig. 6', 'Fig. 7', 'Table II', 'Experiment others']
        """
        found = re.fullmatch(r"(fig|table)(\d+)[a-z]?", self.name)
        if not found:
            return f"Experiment {self.name}"
        return f"Fig. {found[2]}" if found[1] == "fig" else f"Table {'I' * int(found[2])}"

    @property
    def source(self) -> str:
        """The key of the figure whose cases it shows."""
        return f"paper{self.paper}-{self.shares or self.name}"

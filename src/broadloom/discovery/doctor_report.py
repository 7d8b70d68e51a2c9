"""Findings of `broadloom doctor`: one line per broker and check, with the setting to write."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from broadloom.checks import check_flag, check_instance, ordered_list
from broadloom.notebook import html_summary

if TYPE_CHECKING:
    import pyarrow as pa

# Verdicts, the best first.
OK, NOT_SEEN, ADVICE, MUST_CHANGE = "ok", "not seen", "advice", "must change"
VERDICTS = (OK, NOT_SEEN, ADVICE, MUST_CHANGE)
LONGEST_TEXT = 500  # characters of what was found
FLEET = "(fleet)"  # stands for the broker in findings about several brokers


@dataclass(frozen=True)
class Finding:
    """Result of one check at one broker.

    Attributes:
        broker: the broker's name; `(fleet)` if it concerns several brokers.
        check: the name of the check.
        verdict: "ok", "not seen" (it cannot be seen from outside), "advice" or "must change".
        found: what was found.
        setting: the setting to write and where; empty if there is nothing to change.
    """

    broker: str
    check: str
    verdict: str
    found: str
    setting: str = ""

    def __post_init__(self) -> None:
        for name in ("found", "setting"):  # brokers choose parts of them, which can be hostile
            text = getattr(self, name)[:LONGEST_TEXT]
            object.__setattr__(self, name, "".join(char if char.isprintable() else "?" for char in text))


class DoctorReport:
    """Findings about the brokers of a fleet.

    Args:
        findings: the findings, in the order of the brokers.

    Attributes:
        findings: the findings.

    Examples:
        >>> import broadloom as bl
        >>> report = bl.DoctorReport([Finding("rome", "login", "must change", "anonymous is refused")])
        >>> report.ok, report.summary()
        (False, '1 must change')
    """

    def __init__(self, findings: Sequence[Finding]) -> None:
        listed = ordered_list(findings, "findings")
        for one in listed:
            check_instance(one, Finding, "a finding", "give a Finding")
        self.findings: tuple[Finding, ...] = tuple(listed)

    @property
    def ok(self) -> bool:
        """Whether nothing must change."""
        return not any(one.verdict == MUST_CHANGE for one in self.findings)

    def records(self) -> list[dict[str, str]]:
        """The findings as dictionaries: broker, check, verdict, found, setting."""
        return [asdict(one) for one in self.findings]

    def to_table(self) -> pa.Table:
        """The findings as an Arrow table."""
        import pyarrow as pa

        names = ("broker", "check", "verdict", "found", "setting")
        return pa.table(
            {name: pa.array([getattr(one, name) for one in self.findings], pa.string()) for name in names}
        )

    def lines(self, everything: bool = False) -> list[str]:
        """One line per finding, in columns; what is good is one line per broker, unless `everything`.

        Examples:
            >>> found = "anonymous clients are refused"
            >>> print(*DoctorReport([Finding("rome", "login", "must change", found, "login = ...")]).lines())
            rome  must change  login  anonymous clients are refused -> login = ...
        """
        check_flag(everything, "everything")
        brokers = dict.fromkeys(one.broker for one in self.findings)
        rows = [row for broker in brokers for row in self._rows(broker, everything)]
        widths = [max((len(row[column]) for row in rows), default=0) for column in range(3)]
        return ["  ".join([*map(str.ljust, row[:3], widths), row[3]]) for row in rows]

    def _rows(self, broker: str, everything: bool) -> list[tuple[str, str, str, str]]:
        own = [one for one in self.findings if one.broker == broker]
        shown = [one for one in own if everything or one.verdict != OK]
        shown.sort(key=lambda one: -VERDICTS.index(one.verdict))
        rows = [
            (broker, one.verdict, one.check, one.found + (f" -> {one.setting}" if one.setting else ""))
            for one in shown
        ]
        good = [one for one in own if one.verdict == OK]
        if good and not everything:
            rows.append((broker, OK, "", ", ".join(dict.fromkeys(one.check for one in good))))
        return rows

    def summary(self) -> str:
        """The number of findings by verdict, the worst first."""
        counts = Counter(one.verdict for one in self.findings)
        return ", ".join(f"{counts[verdict]} {verdict}" for verdict in reversed(VERDICTS) if counts[verdict])

    def __repr__(self) -> str:
        return f"DoctorReport({self.summary()})"

    def _repr_html_(self) -> str:
        names = ("broker", "check", "verdict", "found", "setting")
        rows = [[getattr(one, name) for name in names] for one in self.findings if one.verdict != OK]
        return html_summary("Doctor", {"findings": self.summary()}, names, rows, len(rows))

"""Comparison of a broker's own count of subscriptions with those that are known.

The count is that of sure sessions, of existing unsure ones, of subscriptions that nobody saw, less those that
are believed to exist and do not. The last two are constant as long as no line is missing. So a tick without
unsure sessions shows their sum, the *base*, and later ticks show how many subscriptions of unsure sessions
exist.

If some of several unsure sessions exist and some do not, the count cannot tell them apart. These are
*parked*: they stay wanted until a line of the log tells more, and no longer disturb the comparison.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from broadloom.agents.links.followed_sessions import FollowedSessions

PATIENT_TICKS = 3  # before unsure sessions are parked because the base is unknown


class KnownCounts(NamedTuple):
    """Subscriptions that are known at one moment: of sure sessions, and per unsure and parked session."""

    sure: int
    unsure: dict[str, int]
    parked: dict[str, int]

    @classmethod
    def of(cls, followed: FollowedSessions) -> KnownCounts:
        """The counts of the present."""
        return cls(followed.sure_count(), followed.unsure_counts(False), followed.unsure_counts(True))


class CountJudgement(NamedTuple):
    """What a count shows about unsure sessions.

    Attributes:
        exist: those that exist.
        ended: those that have ended.
        parked: those that it cannot tell apart.
    """

    exist: frozenset[str] = frozenset()
    ended: frozenset[str] = frozenset()
    parked: frozenset[str] = frozenset()


@dataclass
class CountLedger:
    """Counts of a broker since the last gap in its log.

    Attributes:
        unseen: subscriptions that the broker counts and nobody saw, at least; None: unknown.

    Examples:
        >>> ledger = CountLedger()
        >>> _ = ledger.judge(12, KnownCounts(10, {}, {}))
        >>> ledger.unseen
        2
        >>> sorted(ledger.judge(11, KnownCounts(9, {"c1": 1}, {})).ended)
        ['c1']
    """

    unseen: int | None = None
    _base: int | None = None
    _parked: dict[str, int] = field(default_factory=dict)
    _too_many: bool = False
    _ticks: int = 0

    def judge(self, count: int, known: KnownCounts) -> CountJudgement:
        """Compare a count with what was known when the broker took it."""
        rest = count - known.sure
        self._too_many = self._too_many or rest < 0
        if known.parked != self._parked:  # a line has told more about one of them
            self._base = None
        found = self._judged(rest, known)
        self._parked = known.parked | {name: known.unsure[name] for name in found.parked}
        if self._base is not None:
            self.unseen = max(0, self._base - sum(self._parked.values()))
        return found

    def _judged(self, rest: int, known: KnownCounts) -> CountJudgement:
        unsure = frozenset(known.unsure)
        total = sum(known.unsure.values())
        if rest == 0 and not self._too_many:
            self._base = 0
            return CountJudgement(ended=unsure | frozenset(known.parked))
        if not unsure:
            self._base = rest
            return CountJudgement()
        if self._base is None:
            self._ticks += 1
            if self._ticks < PATIENT_TICKS:
                return CountJudgement()
        elif rest - self._base == total:
            return CountJudgement(exist=unsure)
        elif rest == self._base:
            return CountJudgement(ended=unsure)
        self._ticks = 0
        self._base = rest
        return CountJudgement(parked=unsure)

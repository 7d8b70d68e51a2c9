"""Policy file of the operator: which ordinary clients can be moved, when, and how many at once.

A client that knows nothing of Broadloom cannot be asked, so the operator consents for it.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from broadloom.agents.moves.control_messages import ACCEPT, DECLINE, PolicyAnswer, check_place
from broadloom.checks import check_count, check_names
from broadloom.errors import InputError
from broadloom.storage import local_path, read_toml

AT_ONCE = 20
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_HOURS = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)")
_RULE = {"clients", "move", "home", "to", "hours", "days", "place"}
_DAY_MINUTES = 24 * 60


@dataclass(frozen=True)
class PolicyRule:
    """Rule for some clients.

    Attributes:
        clients: patterns of client ids, with `*`, `?` and `[...]`.
        move: whether they can be moved.
        home: the brokers that they can leave; empty: all.
        to: the brokers that they can move to; empty: all.
        hours: minutes of the day (UTC) from which and until which they can be moved; None: always.
        days: the days of the week (0: Monday) on which they can be moved; empty: all.
        place: their position in the network, for the planner; None: that of their broker.
    """

    clients: tuple[str, ...]
    move: bool = True
    home: tuple[str, ...] = ()
    to: tuple[str, ...] = ()
    hours: tuple[int, int] | None = None
    days: tuple[int, ...] = ()
    place: tuple[float, ...] | None = None

    def applies(self, client: str, home: str, foreign: str) -> bool:
        """Whether the rule is about a move."""
        return (
            any(fnmatchcase(client, pattern) for pattern in self.clients)
            and (not self.home or home in self.home)
            and (not self.to or foreign in self.to)
        )

    def is_open(self, moment: dt.datetime) -> bool:
        """Whether clients can be moved at a time."""
        minute = moment.hour * 60 + moment.minute
        day = moment.weekday()
        if self.hours is not None:
            begin, end = self.hours
            if not (begin <= minute < end if begin <= end else minute >= begin or minute < end):
                return False
            if begin > end and minute < end:  # the night began the day before
                day = (day - 1) % 7
        return not self.days or day in self.days


@dataclass(frozen=True)
class MovePolicy:
    """The operator's consent to move ordinary clients; the first rule that applies decides.

    Attributes:
        rules: the rules, in order; a client without a rule is not moved.
        at_once: the number of ordinary clients that can move at the same time.

    Examples:
        >>> policy = MovePolicy((PolicyRule(("meter-*",)),))
        >>> policy.answer("meter-1", "rome", "oslo", now=0.0).answer
        'accept'
        >>> policy.answer("pump-1", "rome", "oslo", now=0.0).answer
        'decline'
        >>> at_night = MovePolicy((PolicyRule(("*",), hours=(22 * 60, 6 * 60)),))
        >>> at_night.answer("meter-1", "rome", "oslo", now=12 * 3600.0)
        PolicyAnswer(answer='stay', until=79200.0)
    """

    rules: tuple[PolicyRule, ...] = ()
    at_once: int = AT_ONCE

    @classmethod
    def load(cls, path: str | Path) -> MovePolicy:
        """Read a policy file.

        Raises:
            InputError: the file is missing or not TOML, or a value in it is wrong or a name unknown.
        """
        file = local_path(path, "the policy file")
        content = read_toml(file)
        check_names(content, {"at_once", "rules"}, str(file))
        rules = content.get("rules", [])
        if not isinstance(rules, list) or not rules:
            raise InputError(f"{file} has no rules; give at least one as [[rules]] with clients")
        at_once = check_count(content.get("at_once", AT_ONCE), f"{file}: at_once", minimum=1)
        return cls(tuple(_rule(one, f"{file}, rule {n}") for n, one in enumerate(rules, 1)), at_once)

    def answer(self, client: str, home: str, foreign: str, now: float) -> PolicyAnswer:
        """Whether a client can be moved now, never, or from a time on (seconds since 1970)."""
        rule = next((one for one in self.rules if one.applies(client, home, foreign)), None)
        if rule is None or not rule.move:
            return DECLINE
        moment = dt.datetime.fromtimestamp(now, dt.UTC)
        if rule.is_open(moment):
            return ACCEPT
        start = moment.replace(second=0, microsecond=0)
        later = (start + dt.timedelta(minutes=minutes) for minutes in range(1, 8 * _DAY_MINUTES))
        return PolicyAnswer("stay", next(one for one in later if rule.is_open(one)).timestamp())

    def place_of(self, client: str) -> tuple[float, ...] | None:
        """The position of a client, by the first rule about it that has one; None: no rule says it."""
        matching = (one for one in self.rules if any(fnmatchcase(client, text) for text in one.clients))
        return next((one.place for one in matching if one.place is not None), None)


def _rule(section: Any, where: str) -> PolicyRule:
    if not isinstance(section, dict):
        raise InputError(f"{where} is {section!r:.40}; give a table with clients")
    check_names(section, _RULE, where)
    move = section.get("move", True)
    if not isinstance(move, bool):
        raise InputError(f"{where}: move is {move!r:.40}; give true or false")
    clients = _texts(section, "clients", where)
    if not clients:
        raise InputError(f'{where}: clients is missing; give a list of patterns, such as ["meter-*"]')
    return PolicyRule(
        clients,
        move,
        _texts(section, "home", where),
        _texts(section, "to", where),
        _hours(section.get("hours"), where),
        _days(_texts(section, "days", where), where),
        _place(section.get("place"), where),
    )


def _place(value: Any, where: str) -> tuple[float, ...] | None:
    try:
        return check_place(value)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error


def _texts(section: Mapping[str, Any], name: str, where: str) -> tuple[str, ...]:
    values = section.get(name, [])
    if not isinstance(values, list) or not all(isinstance(one, str) and one for one in values):
        raise InputError(f"{where}: {name} is {values!r:.60}; give a list of non-empty texts")
    return tuple(values)


def _hours(value: Any, where: str) -> tuple[int, int] | None:
    if value is None:
        return None
    match = _HOURS.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise InputError(f'{where}: hours is {value!r:.40}; give UTC times, such as "22:00-06:00"')
    begin = int(match[1]) * 60 + int(match[2])
    end = int(match[3]) * 60 + int(match[4])
    if begin == end:
        raise InputError(f"{where}: hours is {value!r}, which is empty; give two different times")
    return begin, end


def _days(names: tuple[str, ...], where: str) -> tuple[int, ...]:
    for name in names:
        if name not in DAYS:
            raise InputError(f"{where}: days has {name!r:.20}; give some of {', '.join(DAYS)}")
    return tuple(DAYS.index(name) for name in names)

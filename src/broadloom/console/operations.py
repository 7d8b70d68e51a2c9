"""Operations of a what-if session, as words: `fail broker rome`, `move rome eu-west-1`, `pin rome oslo`."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from typing import NamedTuple

from broadloom.errors import InputError

# The arguments of each kind of operation, as shown in error messages and in the documentation.
KINDS: dict[tuple[str, ...], tuple[str, ...]] = {
    ("fail", "broker"): ("BROKER",),
    ("fail", "site"): ("SITE",),
    ("fail", "link"): ("BROKER", "BROKER"),
    ("restore", "broker"): ("BROKER",),
    ("restore", "site"): ("SITE",),
    ("restore", "link"): ("BROKER", "BROKER"),
    ("move",): ("BROKER", "SITE"),
    ("weigh",): ("SITE", "FACTOR"),
    ("pin",): ("BROKER", "BROKER"),
    ("unpin",): ("BROKER", "BROKER"),
    ("forbid",): ("BROKER", "BROKER"),
    ("allow",): ("BROKER", "BROKER"),
    ("limit",): ("LINKS",),
    ("subscribe",): ("BROKER", "TOPIC"),
    ("unsubscribe",): ("BROKER", "TOPIC"),
    ("relink",): (),
}


class Operation(NamedTuple):
    """One operation: its kind, such as ("fail", "broker"), and its arguments."""

    kind: tuple[str, ...]
    arguments: tuple[str, ...]

    @property
    def text(self) -> str:
        """The operation as text that `operation_of` reads.

        Examples:
            >>> Operation(("fail", "broker"), ("rome two",)).text
            "fail broker 'rome two'"
        """
        return shlex.join([*self.kind, *self.arguments])


def operation_of(request: str | Sequence[str]) -> Operation:
    """An operation from text, with quotes as in a shell, or from its words.

    Raises:
        InputError: the operation does not exist, or has a wrong number of words or a wrong number.

    Examples:
        >>> operation_of("fail link rome 'oslo 2'")
        Operation(kind=('fail', 'link'), arguments=('rome', 'oslo 2'))
        >>> operation_of("limit many")
        Traceback (most recent call last):
        broadloom.errors.InputError: limit many: LINKS is a whole number, 0 for no limit
    """
    words = _words(request)
    for kind, arguments in KINDS.items():
        if tuple(words[: len(kind)]) != kind:
            continue
        given = tuple(words[len(kind) :])
        usage = " ".join([*kind, *arguments])
        if len(given) != len(arguments):
            raise InputError(f"{shlex.join(words)}: it has {len(given)} arguments; give {usage}")
        if arguments == ("BROKER", "BROKER") and given[0] == given[1]:
            raise InputError(f"{shlex.join(words)}: both ends are the same; give two brokers")
        if kind == ("limit",) and not given[0].isdecimal():
            raise InputError(f"{shlex.join(words)}: LINKS is a whole number, 0 for no limit")
        if kind == ("weigh",) and not _is_factor(given[1]):
            raise InputError(f"{shlex.join(words)}: FACTOR is a number from 0.001 to 1000")
        return Operation(kind, given)
    known = "; ".join(" ".join([*kind, *arguments]) for kind, arguments in KINDS.items())
    raise InputError(f"{shlex.join(words)!r:.80} is not an operation; there are: {known}")


def _words(request: str | Sequence[str]) -> list[str]:
    if isinstance(request, str):
        try:
            return shlex.split(request)
        except ValueError as error:
            raise InputError(f"{request!r:.80}: {error}; close each quote") from error
    if not all(isinstance(word, str) for word in request):
        raise InputError(f"the operation {request!r:.80} is not a list of texts; give its words")
    return list(request)


def _is_factor(text: str) -> bool:
    try:
        value = float(text)
    except ValueError:
        return False
    return math.isfinite(value) and 0.001 <= value <= 1000

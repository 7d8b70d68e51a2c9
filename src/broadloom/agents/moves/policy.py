"""What a client answers when it is asked to move: nobody is ever forced (paper 5, section V)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from broadloom.agents.moves.control import Request


class Answer(NamedTuple):
    """What a client answers: `accept`, `decline`, or `stay` until a time (seconds since 1970)."""

    answer: str
    until: float | None = None


Policy = Callable[[Request], Answer]

ACCEPT, DECLINE = Answer("accept"), Answer("decline")


def accept(_: Request) -> Answer:
    """Move wherever the broker asks.

    Examples:
        >>> accept(Request("0" * 16, "rome", "oslo", "10.0.0.7:1883", 5.0)).answer
        'accept'
    """
    return ACCEPT


def decline(_: Request) -> Answer:
    """Never move."""
    return DECLINE


def stay_until(moment: float, then: Policy = accept) -> Policy:
    """Stay until a moment (seconds since 1970), then answer by another policy.

    Examples:
        >>> stay_until(0.0)(Request("0" * 16, "rome", "oslo", "10.0.0.7:1883", 5.0)).answer
        'accept'
    """

    def answer(request: Request) -> Answer:
        return Answer("stay", moment) if time.time() < moment else then(request)

    return answer

"""Questions to a running event loop from other threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

from broadloom.errors import UnreachableError

T = TypeVar("T")
ANSWER_SECONDS = 10.0


def ask_loop(loop: asyncio.AbstractEventLoop, work: Callable[[], T], otherwise: T) -> T:
    """The result of a function that runs in an event loop, or `otherwise` if it does not answer in time.

    Args:
        loop: the event loop of the other thread.
        work: a quick function.
        otherwise: the answer if the loop has ended, or does not answer in time.
    """
    try:
        return require_answer(loop, work, "the event loop")
    except _NoAnswerError:
        return otherwise


def require_answer(loop: asyncio.AbstractEventLoop, work: Callable[[], T], name: str) -> T:
    """The result of a function that runs in an event loop, asked from another thread.

    Args:
        loop: the event loop of the other thread.
        work: a quick function.
        name: what the loop does, for the error.

    Raises:
        UnreachableError: the loop has ended, or does not answer in time, so the result is not known.
    """
    answer: Future[T] = Future()

    def run() -> None:
        if not answer.set_running_or_notify_cancel():
            return  # the caller no longer waits
        try:
            answer.set_result(work())
        except Exception as error:
            answer.set_exception(error)

    try:
        loop.call_soon_threadsafe(run)
    except RuntimeError as error:
        raise _NoAnswerError(f"{name} has ended") from error
    wait([answer], ANSWER_SECONDS)
    if not answer.done():
        answer.cancel()
        raise _NoAnswerError(f"{name} does not answer within {ANSWER_SECONDS:g} s")
    return answer.result()


class _NoAnswerError(UnreachableError):
    """An event loop has not answered; the function can raise other errors of that kind."""

"""Questions to a running event loop from other threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")
ANSWER_SECONDS = 10.0


def ask_loop(loop: asyncio.AbstractEventLoop, work: Callable[[], T], otherwise: T) -> T:
    """The result of a function that runs in an event loop, asked from another thread.

    Args:
        loop: the event loop of the other thread.
        work: a quick function.
        otherwise: the answer if the loop has ended, or does not answer in time.
    """
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(work())
        except Exception as error:
            answer.set_exception(error)

    try:
        loop.call_soon_threadsafe(run)
    except RuntimeError:  # the loop has ended
        return otherwise
    try:
        return answer.result(ANSWER_SECONDS)
    except TimeoutError:
        return otherwise

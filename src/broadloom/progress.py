"""Progress reports of long work; without a watcher they do nothing."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol


class Watcher(Protocol):
    """Receiver of progress reports; the command line has one that draws bars on a terminal."""

    def start(self, stage: str, total: float | None) -> None:
        """Called when a stage starts; `total` is the amount of its work, if known."""

    def done(self, amount: float) -> None:
        """Called with the amount of work done so far, from 0 to the total."""

    def end(self) -> None:
        """Called when the stage has ended."""


class Silent:
    """A watcher that shows nothing, notices included."""

    def start(self, stage: str, total: float | None) -> None:
        """Show nothing."""

    def done(self, amount: float) -> None:
        """Show nothing."""

    def end(self) -> None:
        """Show nothing."""


_watcher: ContextVar[Watcher | None] = ContextVar("watcher", default=None)


@contextmanager
def watched_by(watcher: Watcher) -> Iterator[None]:
    """Report all stages inside the block to `watcher`.

    Examples:
        >>> class Printer:
        ...     def start(self, stage, total): print(stage, total)
        ...     def done(self, amount): print(amount)
        ...     def end(self): print("over")
        >>> with watched_by(Printer()), stage("weave", 2) as done:
        ...     done(1)
        weave 2
        1
        over
    """
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


@contextmanager
def stage(name: str, total: float | None = None) -> Iterator[Callable[[float], None]]:
    """Report a stage of work; yields the function to call with the amount of work done so far."""
    watcher = _watcher.get()
    if watcher is None:
        yield lambda _: None
        return
    watcher.start(name, total)
    try:
        yield watcher.done
    finally:
        watcher.end()


def notice(text: str) -> None:
    """Print a line on standard error, on a terminal or in a notebook, unless the watcher is silent."""
    if isinstance(_watcher.get(), Silent):
        return
    if sys.stderr.isatty() or "ipykernel" in sys.modules:
        print(text, file=sys.stderr)

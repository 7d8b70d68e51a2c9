"""How far long work is: hooks that do nothing unless somebody watches."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol


class Watcher(Protocol):
    """Who is told of stages of work; the command line has one that draws bars on a terminal."""

    def start(self, stage: str, total: float | None) -> None:
        """A stage begins; `total` is the amount of its work, if that is known."""

    def done(self, amount: float) -> None:
        """So much of the stage's work is done, from 0 to its total."""

    def end(self) -> None:
        """The stage is over."""


_watcher: ContextVar[Watcher | None] = ContextVar("watcher", default=None)


@contextmanager
def watched_by(watcher: Watcher) -> Iterator[None]:
    """Tell `watcher` of all stages inside the block.

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
    """A stage of work: call what it gives with the amount done so far."""
    watcher = _watcher.get()
    if watcher is None:
        yield lambda _: None
        return
    watcher.start(name, total)
    try:
        yield watcher.done
    finally:
        watcher.end()

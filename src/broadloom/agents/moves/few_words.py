"""Warnings that nobody can fill a disk with: a few of each kind a minute, and how many more there were."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

MOST, SECONDS = 10, 60.0


class FewWords:
    """Warns of the first ones of a kind in a minute; when that is over, tells how many were left out.

    Kinds are the program's own words, so that there are few of them, whatever comes from outside. Any thread
    may warn.

    Args:
        log: where to.
        most: how many of a kind.
        seconds: in how long.
        clock: what the time is, in seconds.

    Examples:
        >>> words = FewWords(logging.getLogger("an example"), most=1, clock=lambda: 0.0)
        >>> words.warn("forged", "refused: %s", "forged"), words.warn("forged", "refused: %s", "forged")
        (True, False)
    """

    def __init__(
        self,
        log: logging.Logger,
        most: int = MOST,
        seconds: float = SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log, self._most, self._seconds, self._clock = log, most, seconds, clock
        self._since = clock()
        self._counts: dict[str, int] = {}
        self._lock = threading.RLock()

    def warn(self, kind: str, words: str, *values: object) -> bool:
        """Warn, if there is room; whether there was."""
        with self._lock:
            self.catch_up()
            self._counts[kind] = count = self._counts.get(kind, 0) + 1
        if count <= self._most:
            self._log.warning(words, *values)
        return count <= self._most

    def catch_up(self) -> None:
        """When the minute is over, tell what was left out, and begin another one."""
        with self._lock:
            if self._clock() - self._since < self._seconds:
                return
            counts, self._counts, self._since = self._counts, {}, self._clock()
        for kind, count in counts.items():
            if count > self._most:
                self._log.warning("%d more refusals like %r were not logged", count - self._most, kind)

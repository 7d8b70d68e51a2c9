"""Metrics in Prometheus' text format, and rate-limited log warnings."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence

KIND = "text/plain; version=0.0.4; charset=utf-8"
# A name, gauge or counter, what it is, and its values by their labels.
Family = tuple[str, str, str, Sequence[tuple[str, float]]]
MOST_WARNINGS, WARNING_SECONDS = 10, 60.0


def exposition(prefix: str, families: Iterable[Family]) -> str:
    """All numbers, each name with a prefix.

    Examples:
        >>> print(exposition("broadloom_live", [("up", "gauge", "who is there", [(labels(broker="a"), 1)])]))
        # HELP broadloom_live_up who is there
        # TYPE broadloom_live_up gauge
        broadloom_live_up{broker="a"} 1
        <BLANKLINE>
    """
    lines: list[str] = []
    for name, kind, told, values in families:
        lines += [f"# HELP {prefix}_{name} {told}", f"# TYPE {prefix}_{name} {kind}"]
        lines += [f"{prefix}_{name}{where} {value}" for where, value in values]
    return "\n".join(lines) + "\n"


def labels(**values: str) -> str:
    r"""Labels as they stand behind a name.

    Examples:
        >>> print(labels(broker='a "quoted" one'))
        {broker="a \"quoted\" one"}
    """
    told = ",".join(f'{name}="{_escaped(value)}"' for name, value in values.items())
    return f"{{{told}}}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


class RateLimitedLog:
    """Warns of the first ones of a kind in a minute; when that is over, tells how many were left out.

    Kinds are the program's own words, so that there are few of them, whatever comes from outside. Any thread
    may warn.

    Args:
        log: where to.
        most: how many of a kind.
        seconds: in how long.
        clock: what the time is, in seconds.

    Examples:
        >>> words = RateLimitedLog(logging.getLogger("an example"), most=1, clock=lambda: 0.0)
        >>> words.warn("forged", "refused: %s", "forged"), words.warn("forged", "refused: %s", "forged")
        (True, False)
    """

    def __init__(
        self,
        log: logging.Logger,
        most: int = MOST_WARNINGS,
        seconds: float = WARNING_SECONDS,
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

"""Metrics in Prometheus' text format, and rate-limited log warnings."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Iterable, Sequence

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# Name, type ("gauge" or "counter"), meaning, and values by their labels.
Family = tuple[str, str, str, Sequence[tuple[str, float]]]
MOST_WARNINGS, WARNING_SECONDS = 10, 60.0
MOST_TEXTS = 10_000  # of log records that are counted
_VALUES = re.compile(r"'[^']*'|\"[^\"]*\"|[0-9]+")  # what differs between texts of one kind


def exposition(prefix: str, families: Iterable[Family]) -> str:
    """Metrics in Prometheus' text format.

    Examples:
        >>> print(exposition("broadloom_live", [("up", "gauge", "connected", [(labels(broker="a"), 1)])]))
        # HELP broadloom_live_up connected
        # TYPE broadloom_live_up gauge
        broadloom_live_up{broker="a"} 1
        <BLANKLINE>
    """
    lines: list[str] = []
    for name, kind, meaning, values in families:
        lines += [f"# HELP {prefix}_{name} {meaning}", f"# TYPE {prefix}_{name} {kind}"]
        lines += [f"{prefix}_{name}{label} {value}" for label, value in values]
    return "\n".join(lines) + "\n"


def labels(**values: str) -> str:
    r"""Labels in Prometheus' text format.

    Examples:
        >>> print(labels(broker='a "quoted" one'))
        {broker="a \"quoted\" one"}
    """
    pairs = ",".join(f'{name}="{_escaped(value)}"' for name, value in values.items())
    return f"{{{pairs}}}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


class RateLimitedLog:
    """Log that writes a few warnings per kind and minute, and then the number of those that it left out.

    The program defines the kinds, so clients cannot add any. Any thread can call it.

    Args:
        log: the logger.
        most: number of warnings per kind and period.
        seconds: length of a period.
        clock: the time in seconds.

    Examples:
        >>> log = RateLimitedLog(logging.getLogger("an example"), most=1, clock=lambda: 0.0)
        >>> log.warn("forged", "refused: %s", "forged"), log.warn("forged", "refused: %s", "forged")
        (True, False)
    """

    def __init__(
        self,
        log: logging.Logger,
        most: int = MOST_WARNINGS,
        seconds: float = WARNING_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log = log
        self._most = most
        self._seconds = seconds
        self._clock = clock
        self._since = clock()
        self._counts: dict[str, int] = {}
        self._lock = threading.RLock()

    def warn(self, kind: str, text: str, *values: object) -> bool:
        """Log a warning unless its kind has reached the limit; true if it was logged."""
        with self._lock:
            self.report()
            self._counts[kind] = count = self._counts.get(kind, 0) + 1
        if count <= self._most:
            self._log.warning(text, *values)
        return count <= self._most

    def report(self) -> None:
        """At the end of a period, log how many warnings were left out."""
        with self._lock:
            if self._clock() - self._since < self._seconds:
                return
            counts = self._counts
            self._counts = {}
            self._since = self._clock()
        for kind, count in counts.items():
            if count > self._most:
                self._log.warning("%d more warnings like %r were not logged", count - self._most, kind)


class LogLimit(logging.Filter):
    """Filter of a log handler that lets a few records per text and minute pass, whatever their values.

    The text of a record is its format. A record with the format `%s` has a text of its own, in which names in
    quotes and numbers do not count. The first record that passes afterwards says how many were left out.

    Args:
        most: number of records per text and period.
        seconds: length of a period.
        clock: the time in seconds.

    Examples:
        >>> limit = LogLimit(most=1, clock=lambda: 0.0)
        >>> record = logging.LogRecord("a", logging.WARNING, "", 0, "broker %r is away", ("rome",), None)
        >>> limit.filter(record), limit.filter(record)
        (True, False)
        >>> for text in ("session 'a1' is lost", "session 'b2' is lost", "the disk is full"):
        ...     limit.filter(logging.LogRecord("a", logging.WARNING, "", 0, "%s", (text,), None))
        True
        False
        True
    """

    def __init__(
        self,
        most: int = MOST_WARNINGS,
        seconds: float = WARNING_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._most = most
        self._seconds = seconds
        self._clock = clock
        self._counts: dict[tuple[str, object], tuple[float, int]] = {}  # by logger and text: start, number
        self._lock = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a record passes."""
        now = self._clock()
        name = (record.name, record.msg)
        if record.msg == "%s":
            name = (record.name, _VALUES.sub("", record.getMessage())[:200])
        with self._lock:
            since, count = self._counts.get(name, (now, 0))
            left_out = count - self._most
            if now - since >= self._seconds:
                since, count = now, 0
                if left_out > 0:
                    record.msg = f"{record.msg} (and {left_out} more like it before)"
            self._counts[name] = (since, count + 1)
            if len(self._counts) > MOST_TEXTS:  # texts that are not constant
                self._counts.clear()
        return count < self._most

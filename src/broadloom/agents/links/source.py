"""Where changes come from: versions that a stream of `maintain` writes, or a file of events that grows."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Protocol

from broadloom.errors import InputError
from broadloom.maintenance import EventFeed, RefusedEvent, compile_kernels, event_of, maintain
from broadloom.plans import Plan

LOG = logging.getLogger("broadloom.live")
VERSIONS = "versions"


class Source(Protocol):
    """Plans, one after the other."""

    def poll(self) -> Plan | None:
        """The plan as it is now, if it is another one than the last time."""


class Fixed:
    """A plan that does not change."""

    def __init__(self, plan: Plan) -> None:
        self._plan: Plan | None = plan

    def poll(self) -> Plan | None:
        """The plan, once."""
        plan, self._plan = self._plan, None
        return plan


class Versions:
    """The newest version below the output of `broadloom maintain --stream`.

    Args:
        output: the folder of the stream.
        plan: the plan until there is a version.
    """

    def __init__(self, output: Path, plan: Plan | None = None) -> None:
        self._folder, self._last, self._first = output / VERSIONS, -1, plan

    def poll(self) -> Plan | None:
        """The newest version, if there is a newer one."""
        names = (one.name for one in self._folder.glob("[0-9]*"))
        newest = max((int(name) for name in names if name.isdecimal()), default=-1)
        first, self._first = self._first, None
        if newest <= self._last:
            return first
        try:
            plan = Plan.load(self._folder / f"{newest:012d}")
        except InputError as error:  # the stream keeps only the newest ones: it may be gone already
            LOG.warning("version %d cannot be read: %s", newest, error)
            return first
        self._last = newest
        return plan


class Events:
    """A file of events, JSON lines as `broadloom maintain` takes them, which grows.

    The file is the log: a new agent applies it from its beginning, and comes to the same overlay. A file that
    becomes shorter, or another one in its place, is read from its beginning; events are known by their seq.

    Args:
        plan: the plan before the first event.
        place: the file; it may come later.
        method: shadow or naive.
        seed: for shadow.

    Attributes:
        refused: how many events were set aside.
    """

    def __init__(self, plan: Plan, place: Path, method: str = "shadow", seed: int = 0) -> None:
        compile_kernels()  # or the first events would be slow
        live = maintain(plan.interest, plan.weights, edges=plan.edges, method=method, seed=seed)
        self._feed, self._place, self._new = EventFeed(live), place, True
        self._at, self._file = 0, -1  # how far it was read, and its number in the file system
        self.refused = 0

    @property
    def last(self) -> int:
        """The seq of the last event that was applied; -1 before the first."""
        last = self._feed.seen.last
        return -1 if last is None else last

    def poll(self) -> Plan | None:
        """The plan after all events that have come, if any have."""
        for outcome in self._feed.take(map(event_of, self._lines())):
            if isinstance(outcome, RefusedEvent):
                self.refused += 1
                LOG.warning("an event is set aside: %s", outcome.reason)
            else:
                self._new = True
        new, self._new = self._new, False
        return self._feed.live.plan() if new else None

    def _lines(self) -> list[str]:
        """The whole lines that have come since the last time."""
        try:
            with self._place.open("rb") as file:
                found = os.fstat(file.fileno())
                if found.st_ino != self._file or found.st_size < self._at:
                    self._at, self._file = 0, found.st_ino
                file.seek(self._at)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data.rpartition(b"\n")[0]
        self._at += len(whole) + 1 if whole else 0
        return [line for line in whole.decode("utf-8", "replace").split("\n") if line.strip()]

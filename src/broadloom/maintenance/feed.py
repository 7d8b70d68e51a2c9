"""Events are applied to a live overlay: each once and in order, or set aside with a reason."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from broadloom.errors import InputError
from broadloom.maintenance.changes import Change
from broadloom.maintenance.events import Event, fault_of
from broadloom.maintenance.live import Live
from broadloom.maintenance.requests import JOIN, LEAVE

UNKNOWN_NODE, THERE_ALREADY = "unknown node", "node is there already"
DUPLICATE, LATE = "duplicate: its seq was applied before", "late: a later seq was applied before"


class Applied(NamedTuple):
    """An event that was applied."""

    seq: int
    node: str
    change: Change


class Refused(NamedTuple):
    """An event that was set aside."""

    raw: str
    reason: str


class Seqs:
    """A set of numbers as ranges: of events that come in order there is one.

    Examples:
        >>> seqs = Seqs([[0, 3]])
        >>> for seq in (4, 7, 6):
        ...     seqs.add(seq)
        >>> seqs.ranges, 5 in seqs, seqs.last
        ([[0, 4], [6, 7]], False, 7)
    """

    def __init__(self, ranges: Iterable[list[int]] = ()) -> None:
        self.ranges = [list(one) for one in ranges]

    @property
    def last(self) -> int | None:
        """The largest one."""
        return self.ranges[-1][1] if self.ranges else None

    def __contains__(self, seq: int) -> bool:
        at = bisect_right(self.ranges, [seq, math.inf]) - 1
        return at >= 0 and seq <= self.ranges[at][1]

    def add(self, seq: int) -> None:
        """Put one in that is not there."""
        at = bisect_right(self.ranges, [seq, seq])
        self.ranges.insert(at, [seq, seq])
        for left in (at, at - 1):
            if 0 <= left < len(self.ranges) - 1 and self.ranges[left][1] + 1 == self.ranges[left + 1][0]:
                self.ranges[left][1] = self.ranges.pop(left + 1)[1]


class Feed:
    """Applies events to a live overlay.

    Events that come together are sorted by `seq`. One whose `seq` was applied is a duplicate, one that comes
    after a later one was applied is late; a gap is no fault, for nobody knows whether it will be filled.
    """

    def __init__(self, live: Live, seen: Seqs | None = None) -> None:
        self.live = live
        self.seen = seen or Seqs()

    def take(self, events: Iterable[Event]) -> Iterator[Applied | Refused]:
        """Apply events, in the order of their `seq`; those that say too little come first."""
        good = []
        for event in events:
            fault = fault_of(event)
            if fault is None and event.values is not None:
                good.append((event.values["seq"], event.raw, event.values))
            else:
                yield _refused(event.raw, fault or "")
        for seq, raw, values in sorted(good, key=lambda one: one[:2]):
            reason = self._untimely(seq)
            if reason is None:
                try:
                    change = self._do(values)
                except InputError as error:
                    reason = str(error)
                else:
                    self.seen.add(seq)
                    yield Applied(seq, values["node"], change)
            if reason is not None:
                yield _refused(raw, reason)

    def _untimely(self, seq: int) -> str | None:
        if seq in self.seen:
            return DUPLICATE
        return LATE if self.seen.last is not None and seq < self.seen.last else None

    def _do(self, values: Mapping[str, Any]) -> Change:
        kind, name, topics = values["kind"], values["node"], dict.fromkeys(values.get("topics") or ())
        node = self.live.named(name)
        if kind == JOIN:
            if node is not None:
                raise InputError(THERE_ALREADY)
            return self.live.join(topics, name=name, at=_place(self.live, values.get("at")))
        if node is None:
            raise InputError(UNKNOWN_NODE)
        return self.live.leave(node) if kind == LEAVE else self.live.apply([(0, kind, node, topics)])[0]


def _refused(raw: str, reason: str) -> Refused:
    """An event set aside, in texts that can be written whatever was in it."""
    return Refused(*(text.encode("utf-8", "backslashreplace").decode() for text in (raw, reason)))


def _place(live: Live, at: Any) -> Any:
    """The place of an event as `join` takes it: nodes and sites go by their names, as in tables."""
    if isinstance(at, Mapping):
        return {node: weight for name, weight in at.items() if (node := live.named(name)) is not None}
    if live.weights_kind != "sites":
        return at
    site = at[0] if isinstance(at, list) and len(at) == 1 else at
    if isinstance(site, float) and site.is_integer():
        site = int(site)
    if live.site_ids:
        return str(site) if isinstance(site, int) else site
    return int(site) if isinstance(site, str) and site.isdecimal() else site

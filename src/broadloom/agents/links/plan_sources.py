"""Where changes come from: versions that a stream of `maintain` writes, or a file of events that grows."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Protocol

from broadloom.errors import InputError
from broadloom.maintenance import EventFeed, RefusedEvent, compile_kernels, event_of, maintain
from broadloom.mqtt.topic_filters import FilterTree
from broadloom.plans import Plan

LOG = logging.getLogger("broadloom.live")
VERSIONS = "versions"


class PlanSource(Protocol):
    """Plans, one after the other."""

    def poll(self) -> Plan | None:
        """The plan as it is now, if it is another one than the last time."""


class FixedPlan:
    """A plan that does not change."""

    def __init__(self, plan: Plan) -> None:
        self._plan: Plan | None = plan

    def poll(self) -> Plan | None:
        """The plan, once."""
        plan, self._plan = self._plan, None
        return plan


class PlanVersions:
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


class EventFile:
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


class PlannedLinks:
    """What brokers need for their clients, as a plan that changes: `Links` for an agent that moves clients.

    It is a source of plans for who makes links (`poll`), which tells how far it is. What the plan has at a
    broker stays there; more comes and goes with clients.

    Args:
        plan: the plan that runs now.
        reached: asked with a broker, some of `topics`, and how many plans, counted from the first `poll`,
            it took until they were all in one: whether links carry them there.
        topics: the filters that links carry, each as a whole, if a client wants some of it; None: whatever
            clients want, which must not come to have a topic in common while links are up.
        seed: of the changes.

    Examples:
        >>> import broadloom as bl
        >>> plan = bl.link(bl.Interest.from_lists([["x"], ["x"], []]), algorithm="gm")
        >>> links = PlannedLinks(plan, reached=lambda broker, topics, plans: True)
        >>> links.carry("2", ["x"])
        >>> links.carried("2", ["x"])  # nobody has taken the new plan yet
        False
        >>> len(links.poll().edges)
        2
        >>> links.carried("2", ["x"])
        True
    """

    def __init__(
        self,
        plan: Plan,
        reached: Callable[[str, set[str], int], bool],
        topics: Iterable[str] | None = None,
        seed: int = 0,
    ) -> None:
        compile_kernels()  # or the first client would wait for it
        self._live = maintain(plan.interest, plan.weights, edges=plan.edges, seed=seed)
        self._topics = None if topics is None else FilterTree(topics)
        self._node_of = {broker: node for node, broker in enumerate(plan.interest.node_ids)}
        self._planned = {
            broker: {plan.interest.topic_ids[topic] for topic in plan.interest.topics_of(node)}
            for broker, node in self._node_of.items()
        }
        self._asked: dict[str, set[str]] = {broker: set() for broker in self._node_of}
        # What each broker needs, and with which plan that began.
        self._needs = {broker: dict.fromkeys(topics, 1) for broker, topics in self._planned.items()}
        self._reached, self._plans, self._new = reached, 0, True
        self._lock = threading.Lock()

    def carry(self, broker: str, filters: Collection[str]) -> None:
        """Plan that messages of these filters reach a broker, and all that want them from it."""
        with self._lock:
            self._ask(broker, self._asked_at(broker) | set(filters))

    def release(self, broker: str, filters: Collection[str]) -> None:
        """Plan that they do no more, but for those of the plan."""
        with self._lock:
            self._ask(broker, self._asked_at(broker) - set(filters))

    def carried(self, broker: str, filters: Collection[str]) -> bool:
        """Whether a plan that was taken has them at the broker, and its links are made."""
        with self._lock:
            self._asked_at(broker)
            needs, topics = self._needs[broker], self._as_carried(filters)
            if not topics <= needs.keys():
                return False
            since = max((needs[topic] for topic in topics), default=0)
            return since <= self._plans and self._reached(broker, topics, since)

    def poll(self) -> Plan | None:
        """The plan as it is now, if it is another one than the last time."""
        with self._lock:
            if not self._new:
                return None
            self._new, self._plans = False, self._plans + 1
            return self._live.plan()

    def _asked_at(self, broker: str) -> set[str]:
        if broker not in self._asked:
            raise InputError(f"no broker {broker!r} in the plan of links; there are {', '.join(self._asked)}")
        return self._asked[broker]

    def _ask(self, broker: str, filters: set[str]) -> None:
        self._asked[broker] = filters
        needs = self._planned[broker] | self._as_carried(filters)
        before = self._needs[broker]
        if needs != before.keys():
            self._live.resubscribe(self._node_of[broker], sorted(needs))
            self._needs[broker] = {topic: before.get(topic, self._plans + 1) for topic in needs}
            self._new = True

    def _as_carried(self, filters: Iterable[str]) -> set[str]:
        """What links carry for these filters; topics of a broker's own (`$...`) stay there."""
        wanted = [text for text in filters if not text.startswith("$")]
        if self._topics is None:
            return set(wanted)
        return {topic for text in wanted for topic in self._topics.meeting(text)}

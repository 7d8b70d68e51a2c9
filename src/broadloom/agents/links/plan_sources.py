"""Sources of plans for the link agent: one plan, versions of a stream, a file of events, moving clients."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from broadloom.deployment import addresses_of
from broadloom.errors import InputError, StorageError
from broadloom.maintenance import (
    EventFeed,
    RefusedEvent,
    brokers_without_address,
    event_of,
    load_kernels,
    maintain,
)
from broadloom.mqtt.topic_filters import FilterIndex
from broadloom.plans import Plan

LOG = logging.getLogger("broadloom.live")
VERSIONS = "versions"


class PlanSource(Protocol):
    """A sequence of plans."""

    def poll(self) -> Plan | None:
        """The current plan, if it has changed since the last call."""


class FixedPlan:
    """Source of a single plan, which does not change."""

    def __init__(self, plan: Plan) -> None:
        self._plan: Plan | None = plan

    def poll(self) -> Plan | None:
        """The plan, once."""
        plan, self._plan = self._plan, None
        return plan


class PlanVersions:
    """Source of the versions that `broadloom maintain --stream` writes.

    Args:
        output: the output folder of the stream.
        plan: the plan until there is a version.
    """

    def __init__(self, output: Path, plan: Plan | None = None) -> None:
        self._folder = output / VERSIONS
        self._last = -1
        self._first = plan

    def poll(self) -> Plan | None:
        """The newest version, if it is new."""
        names = (one.name for one in self._folder.glob("[0-9]*"))
        newest = max((int(name) for name in names if name.isdecimal()), default=-1)
        first, self._first = self._first, None
        if newest <= self._last:
            return first
        try:
            plan = Plan.load(self._folder / f"{newest:012d}")
        except (InputError, StorageError) as error:  # the stream deletes old versions, perhaps this one
            LOG.warning("version %d cannot be read: %s", newest, error)
            return first
        self._last = newest
        return plan


class EventFile:
    """Source of plans from a growing file of events: JSON lines as `broadloom maintain` reads them.

    The file is the log: a new agent applies it from the beginning and gets the same overlay. If the file
    becomes shorter or is replaced, it is read from the beginning again; events are identified by their seq.

    Args:
        plan: the plan before the first event.
        path: the file; it can appear later.
        method: shadow or naive.
        seed: the seed of shadow.

    Attributes:
        refused: number of refused events.
    """

    def __init__(self, plan: Plan, path: Path, method: str = "shadow", seed: int = 0) -> None:
        load_kernels()  # otherwise the first events would be slow
        live = maintain(plan, algorithm=method, seed=seed)
        self._feed = EventFeed(live)
        self._path = path
        self._new = True
        self._at = 0  # bytes read so far
        self._file = -1  # inode of the file
        self.refused = 0

    @property
    def last(self) -> int:
        """The seq of the last applied event; -1 before the first one."""
        last = self._feed.seen.last
        return -1 if last is None else last

    def poll(self) -> Plan | None:
        """The plan after all new events, if there are any."""
        for outcome in self._feed.take(map(event_of, self._lines())):
            if isinstance(outcome, RefusedEvent):
                self.refused += 1
                LOG.warning("an event is refused: %s", outcome.reason)
            else:
                self._new = True
        new = self._new
        self._new = False
        return self._feed.live.plan() if new else None

    def _lines(self) -> list[str]:
        """The complete lines since the last call."""
        try:
            with self._path.open("rb") as file:
                found = os.fstat(file.fileno())
                if found.st_ino != self._file or found.st_size < self._at:
                    self._at = 0
                    self._file = found.st_ino
                file.seek(self._at)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data.rpartition(b"\n")[0]
        self._at += len(whole) + 1 if whole else 0
        return [line for line in whole.decode("utf-8", "replace").split("\n") if line.strip()]


class AddressedPlans:
    """A source of plans that keeps the addresses of brokers up to date, for brokers that join.

    The first plan is taken at once: an agent that starts again needs the addresses of its links.

    Args:
        source: the source of plans.
        addresses: the address of each broker that has one; it gets those of each new plan.
    """

    def __init__(self, source: PlanSource, addresses: dict[str, str]) -> None:
        self._source = source
        self._addresses = addresses
        self._warned: set[str] = set()
        self._first: Plan | None = None
        with suppress(InputError, OSError):  # the next poll reports it
            self._first = self._polled()

    def poll(self) -> Plan | None:
        """The current plan, if it has changed since the last call."""
        first, self._first = self._first, None
        return self._polled() or first

    def _polled(self) -> Plan | None:
        plan = self._source.poll()
        if plan is not None:
            self._addresses.update(addresses_of(plan))
            for broker in set(brokers_without_address(plan) or ()) - self._warned:
                self._warned.add(broker)
                LOG.warning("broker %r has no address in the plan; the pattern of --address is used", broker)
        return plan


class PlannedLinks:
    """Source of plans that follow moving clients; `ClientLinks` for the agent that moves them.

    The link agent takes the plans (`poll`) and makes their links. The topics that the first plan has at a
    broker stay there; others come and go with clients.

    Args:
        plan: the initial plan.
        reached: returns whether links carry topics to and from a broker. It is called with the broker, the
            topics, and the number of the first plan that has all of them at the broker; the first `poll`
            returns plan 1.
        topics: the filters that links carry, each as a whole if a client needs a part of it; None: the
            filters of clients, which must not have topics in common while links are up.
        seed: the seed of the changes.

    Examples:
        >>> import broadloom as bl
        >>> plan = bl.link(bl.Interest.from_lists([["x"], ["x"], []]), algorithm="gm")
        >>> links = PlannedLinks(plan, reached=lambda broker, topics, plan: True)
        >>> links.carry("2", ["x"])
        >>> links.carried("2", ["x"])  # the new plan has not been polled yet
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
        load_kernels()  # otherwise the first client would wait for the compiler
        self._live = maintain(plan, seed=seed)
        self._topics = None if topics is None else FilterIndex(topics)
        self._node_of = {broker: node for node, broker in enumerate(plan.interest.node_ids)}
        self._planned = {
            broker: {plan.interest.topic_ids[topic] for topic in plan.interest.topics_of(node)}
            for broker, node in self._node_of.items()
        }
        self._requested: dict[str, set[str]] = {broker: set() for broker in self._node_of}
        # Per broker, the topics it needs and the number of the first plan with each.
        self._needs = {broker: dict.fromkeys(topics, 1) for broker, topics in self._planned.items()}
        self._reached = reached
        self._plans = 0
        self._new = True
        self._lock = threading.Lock()

    def carry(self, broker: str, filters: Collection[str]) -> None:
        """Plan that messages of these filters are carried to and from a broker."""
        with self._lock:
            self._request(broker, self._requested_at(broker) | set(filters))

    def release(self, broker: str, filters: Collection[str]) -> None:
        """Plan that messages of these filters are no longer carried; topics of the initial plan stay."""
        with self._lock:
            self._request(broker, self._requested_at(broker) - set(filters))

    def carried(self, broker: str, filters: Collection[str]) -> bool:
        """Whether a polled plan has the filters at the broker, and its links are up."""
        with self._lock:
            self._requested_at(broker)
            needs = self._needs[broker]
            topics = self._as_carried(filters)
            if not topics <= needs.keys():
                return False
            since = max((needs[topic] for topic in topics), default=0)
            return since <= self._plans and self._reached(broker, topics, since)

    def poll(self) -> Plan | None:
        """The current plan, if it has changed since the last call."""
        with self._lock:
            if not self._new:
                return None
            self._new = False
            self._plans += 1
            return self._live.plan()

    def _requested_at(self, broker: str) -> set[str]:
        if broker not in self._requested:
            raise InputError(
                f"broker {broker!r} is not in the plan of links; it has {', '.join(self._requested)}"
            )
        return self._requested[broker]

    def _request(self, broker: str, filters: set[str]) -> None:
        self._requested[broker] = filters
        needs = self._planned[broker] | self._as_carried(filters)
        before = self._needs[broker]
        if needs != before.keys():
            self._live.resubscribe(self._node_of[broker], sorted(needs))
            self._needs[broker] = {topic: before.get(topic, self._plans + 1) for topic in needs}
            self._new = True

    def _as_carried(self, filters: Iterable[str]) -> set[str]:
        """The filters that links carry for these; a broker's own topics (`$...`) stay there."""
        wanted = [text for text in filters if not text.startswith("$")]
        if self._topics is None:
            return set(wanted)
        return {topic for text in wanted for topic in self._topics.meeting(text)}

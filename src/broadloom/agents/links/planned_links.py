"""Links that follow moving clients: their requests become plans, by way of `maintain`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING

from broadloom.errors import InputError
from broadloom.maintenance import load_kernels, maintain
from broadloom.mqtt.topic_filters import FilterIndex

if TYPE_CHECKING:
    from broadloom.plans import Plan


class PlannedLinks:
    """Source of plans that follow moving clients; `ClientLinks` for the agent that moves them.

    `EmbeddedLinks` takes the plans (`poll`) and makes their links. The topics that the first plan has at a
    broker stay there; others come and go with clients.

    Args:
        plan: the initial plan.
        reached: returns whether links carry topics to and from a broker. It is called with the broker, the
            topics, and the number of the first plan that has all of them at the broker; the first `poll`
            returns plan 1.
        topics: the filters that links carry, each as a whole if a client needs a part of it; None: the
            filters of clients.
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

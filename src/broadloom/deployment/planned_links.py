"""Links of clients that move, planned by `maintain` and made by who follows plans: the link agent does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection

from broadloom.errors import InputError
from broadloom.maintenance.maintain import compile_kernels, maintain
from broadloom.model.plan import Plan


class PlannedLinks:
    """What brokers need for their clients, as a plan that changes: `Links` for an agent that moves clients.

    It is a source of plans for who makes links (`poll`), which tells how far it is.

    Args:
        plan: the plan that runs now.
        reached: whether the links of so many plans, counted from the first `poll`, are all made.
        seed: of the changes.

    Examples:
        >>> import broadloom as bl
        >>> plan = bl.link(bl.Interest.from_lists([["x"], ["x"], []]), algorithm="gm")
        >>> links = PlannedLinks(plan, reached=lambda number: True)
        >>> links.carry("2", ["x"])
        >>> links.carried("2", ["x"])  # nobody has taken the new plan yet
        False
        >>> len(links.poll().edges)
        2
        >>> links.carried("2", ["x"])
        True
    """

    def __init__(self, plan: Plan, reached: Callable[[int], bool], seed: int = 0) -> None:
        compile_kernels()  # or the first client would wait for it
        self._live = maintain(plan.interest, plan.weights, edges=plan.edges, seed=seed)
        self._node_of = {broker: node for node, broker in enumerate(plan.interest.node_ids)}
        self._needs = {
            broker: {plan.interest.topic_ids[topic] for topic in plan.interest.topics_of(node)}
            for broker, node in self._node_of.items()
        }
        self._reached, self._plans, self._new = reached, 0, True
        self._lock = threading.Lock()

    def carry(self, broker: str, filters: Collection[str]) -> None:
        """Plan that messages of these filters reach a broker, and all that want them from it."""
        with self._lock:
            self._resubscribe(broker, self._needs_of(broker) | set(filters))

    def release(self, broker: str, filters: Collection[str]) -> None:
        """Plan that they do no more."""
        with self._lock:
            self._resubscribe(broker, self._needs_of(broker) - set(filters))

    def carried(self, broker: str, filters: Collection[str]) -> bool:
        """Whether the plan has them at the broker, and its links are made."""
        with self._lock:
            planned = set(filters) <= self._needs_of(broker) and not self._new
            return planned and self._reached(self._plans)

    def poll(self) -> Plan | None:
        """The plan as it is now, if it is another one than the last time."""
        with self._lock:
            if not self._new:
                return None
            self._new, self._plans = False, self._plans + 1
            return self._live.plan()

    def _needs_of(self, broker: str) -> set[str]:
        if broker not in self._needs:
            raise InputError(f"no broker {broker!r} in the plan of links; there are {', '.join(self._needs)}")
        return self._needs[broker]

    def _resubscribe(self, broker: str, needs: set[str]) -> None:
        if needs != self._needs[broker]:
            self._live.resubscribe(self._node_of[broker], sorted(needs))
            self._needs[broker], self._new = needs, True

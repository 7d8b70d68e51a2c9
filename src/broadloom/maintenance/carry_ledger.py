"""Publishers of a live overlay, and what it does not carry: of the plan that it started from, and of changes.

A broker that stays keeps the publications that were observed there, and the subscriptions that are left out.
When it leaves, both are forgotten, also if a broker of the same name joins later.
"""

from __future__ import annotations

from collections.abc import Iterable

from broadloom.maintenance.changes import LEAVE, SUBSCRIBE, UNSUBSCRIBE, ChangeRequest
from broadloom.model import LeftOutSubscription, NotCarried, Publishers, Reason, publishers_among


def is_internal(topic: str) -> bool:
    """Whether a topic belongs to one broker, so that no link carries it.

    Examples:
        >>> is_internal("$SYS/broker/uptime"), is_internal("$SYSTEM"), is_internal("a/b")
        (True, False, False)
    """
    return topic.startswith("$SYS") and topic.partition("/")[0] == "$SYS"


class CarryLedger:
    """The publishers, and the subscriptions that are left out.

    Args:
        publishers: the publishers at the start.
        left_out: the subscriptions that are left out at the start.
        brokers: the names of the brokers at the start.

    Examples:
        >>> ledger = CarryLedger(Publishers("observed", [("rome", "x")]), (), ["rome", "oslo"])
        >>> ledger.change("oslo", ChangeRequest(SUBSCRIBE, 1, ("a", "$SYS/#")))
        >>> ledger.not_carried().subscriptions
        (LeftOutSubscription(node='oslo', topic='$SYS/#', reason='topic of the broker itself'),)
        >>> ledger.change("rome", ChangeRequest(LEAVE, 0))
        >>> ledger.publishers().observed
        ()
    """

    def __init__(
        self,
        publishers: Publishers | None = None,
        left_out: Iterable[LeftOutSubscription] = (),
        brokers: Iterable[str] = (),
    ) -> None:
        self._publishers = publishers or Publishers()
        self._stayed = {one.broker for one in self._publishers.observed} & set(brokers)
        self._left_out: dict[str, set[LeftOutSubscription]] = {}
        for row in left_out:
            self._left_out.setdefault(row.node, set()).add(row)

    def __contains__(self, broker: str) -> bool:
        """Whether subscriptions of a broker are left out."""
        return broker in self._left_out

    def change(self, broker: str, request: ChangeRequest) -> None:
        """Follow a change of a broker that joins, leaves or changes its topics."""
        if request.kind == LEAVE:
            self._stayed.discard(broker)
            self._left_out.pop(broker, None)
            return
        named = set(request.topics)  # wanted no longer, carried from now on, or listed again below
        rows = {row for row in self._left_out.pop(broker, ()) if row.topic not in named}
        if request.kind not in (SUBSCRIBE, UNSUBSCRIBE):
            rows = {row for row in rows if row.reason != Reason.INTERNAL}
        if request.kind != UNSUBSCRIBE:
            internal = [topic for topic in request.topics if isinstance(topic, str) and is_internal(topic)]
            rows |= {LeftOutSubscription(broker, topic, Reason.INTERNAL) for topic in internal}
        if rows:
            self._left_out[broker] = rows

    def publishers(self) -> Publishers:
        """The publishers at brokers that stayed."""
        return publishers_among(self._publishers, self._stayed)

    def not_carried(self) -> NotCarried:
        """The subscriptions that are left out."""
        return NotCarried([row for rows in self._left_out.values() for row in rows])

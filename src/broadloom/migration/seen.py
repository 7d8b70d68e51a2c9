"""Deduplication by message id: each message is given to the application once."""

from __future__ import annotations

from collections import OrderedDict

ID = "broadloom-id"  # the user property of MQTT 5 that holds a message's id
MOST = 100_000


class Seen:
    """The ids of the messages that came last, of each topic on its own.

    Args:
        most: how many are remembered.

    Examples:
        >>> seen = Seen()
        >>> seen.first("t", "a:1"), seen.first("t", "a:1"), seen.first("u", "a:1"), seen.first("t", None)
        (True, False, True, True)
    """

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._ids: OrderedDict[tuple[str, str], None] = OrderedDict()

    def first(self, topic: str, key: str | None) -> bool:
        """Whether a message is new; one without an id always is."""
        if key is None:
            return True
        if (topic, key) in self._ids:
            self._ids.move_to_end((topic, key))
            return False
        self._ids[topic, key] = None
        if len(self._ids) > self._most:
            self._ids.popitem(last=False)
        return True

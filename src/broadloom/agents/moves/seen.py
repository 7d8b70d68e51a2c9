"""Deduplication by message id: each message is given to the application once."""

from __future__ import annotations

from collections import OrderedDict
from hashlib import blake2b

ID = "broadloom-id"  # the user property of MQTT 5 that holds a message's id
MOST = 100_000
DIGEST = 16  # bytes that are kept of an id, which may be long


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
        self._ids: OrderedDict[bytes, None] = OrderedDict()

    def first(self, topic: str, key: str | None) -> bool:
        """Whether a message is new; one without an id always is."""
        if key is None:
            return True
        text = f"{topic}\0{key}".encode(errors="surrogatepass")  # no topic has a zero
        digest = blake2b(text, digest_size=DIGEST).digest()
        if digest in self._ids:
            self._ids.move_to_end(digest)
            return False
        self._ids[digest] = None
        if len(self._ids) > self._most:
            self._ids.popitem(last=False)
        return True

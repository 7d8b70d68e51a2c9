"""The guard of a swap: each message crosses by the old edge or by the new one, whichever sees it first.

The two edges cut the topic's brokers in two parts. A message that one of the four hops has claimed is dropped
at the others, so it comes to the other part once and never back, though both edges are open for a while.
Claims are in a file before the message is sent on, so that an agent that was killed goes on with them. A
message that comes again on the hop that has claimed it was not finished: it goes on.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterable
from pathlib import Path

from broadloom.deployment.wiring import Hop

_CLAIM = struct.Struct("<QB")


class Guard:
    """Claims of messages, by the digest of their id.

    Args:
        hops: the hops of both edges.
        place: the file of the claims, which may be there from before; None: only memory.

    Examples:
        >>> guard = Guard([("a", "b"), ("a", "c")], None)
        >>> guard.claim(("a", "b"), 7), guard.claim(("a", "c"), 7), guard.claim(("a", "b"), 7)
        (True, False, True)
    """

    def __init__(self, hops: Iterable[Hop], place: Path | None) -> None:
        self.hops = frozenset(hops)
        self._number = {hop: number for number, hop in enumerate(sorted(self.hops))}
        self._claims: dict[int, int] = {}
        self._place, self._file = place, -1
        if place is not None:
            if place.exists():
                data = place.read_bytes()
                whole = len(data) // _CLAIM.size * _CLAIM.size
                self._claims = dict(_CLAIM.iter_unpack(data[:whole]))
                os.truncate(place, whole)
            self._file = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def claim(self, hop: Hop, key: int) -> bool:
        """Whether a hop may carry a message.

        Raises:
            OSError: the claim could not be written, and nothing of it is left.
        """
        number = self._number[hop]
        owner = self._claims.get(key)
        if owner is None:
            if self._file >= 0:
                self._write(_CLAIM.pack(key, number))
            self._claims[key] = number
            return True
        return owner == number

    def _write(self, claim: bytes) -> None:
        """Write a claim, or nothing: after a part of one, none could be read."""
        written = os.write(self._file, claim)
        if written < len(claim):  # the disk is full
            os.ftruncate(self._file, os.fstat(self._file).st_size - written)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._place))

    def close(self, forget: bool = False) -> None:
        """Let go of the file; a swap that is over forgets it."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        if forget and self._place is not None:
            self._place.unlink(missing_ok=True)

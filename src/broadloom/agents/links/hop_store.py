"""Memory of one hop that survives its process: which packets the far broker has, and the hop's version.

The store is a memory-mapped file: the system writes its pages even if the process is killed. Only the version
is forced to the disk, so if the machine itself fails, messages in flight can arrive twice.

A broker that repeats a message uses the same packet id and sets DUP. But packet ids are used again, so a
repeated packet id alone does not mean the same message. Each slot has the number that the message had among
all messages received, and a CRC-32 of its topic and payload. Acknowledgements are sent in order, so a message
that is not acknowledged yet was followed by fewer messages than the receive window. Brokers count packet ids
up to 65,535 before they use one again. Hence: same packet id, DUP, same CRC, and fewer than 32,768 messages
since means the same message; no message ids are needed.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path

from broadloom.errors import error_from_os
from broadloom.mqtt.packets import LAST_ID
from broadloom.storage import BINARY

_MAGIC = 0x31706F486D6F6F6C  # "loomHop1"
# Positions of the header's numbers, of 8 bytes each.
_FORMAT, _VERSION, _RECEIVED, _BEGUN, _RUN, _RUN_LENGTH, _RUN_IDS = 0, 1, 2, 3, 4, 5, 6
_MOST_RUN_IDS = 10
_HEADER = _RUN_IDS + _MOST_RUN_IDS
_BYTES = 8 * (_HEADER + LAST_ID + 1)
_NUMBER_BITS = 31
_NUMBERS = 1 << _NUMBER_BITS  # receive numbers are kept modulo this
_DROPPED = 1 << 63
_LATEST = 32_768  # messages: half the packet ids, and more than any receive window in use
NEAR, FAR = 1, 2  # ends of a hop


class HopStore:
    """Packets and version of one hop.

    Args:
        path: the file; None: memory only.

    Attributes:
        is_new: whether there was no file.

    Raises:
        StorageError: the file cannot be created; the disk is full, for example.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._map = mmap.mmap(-1, _BYTES) if path is None else _mapped(path)
        self._words = memoryview(self._map).cast("Q")
        self.is_new = self._words[_FORMAT] != _MAGIC
        if self.is_new:
            self._map[:] = bytes(_BYTES)
            self._words[_FORMAT] = _MAGIC

    @property
    def version(self) -> int:
        """The version that the hop puts on messages of its own broker."""
        return self._words[_VERSION]

    @version.setter
    def version(self, version: int) -> None:
        self._words[_VERSION] = version
        if self._path is not None:  # the marker of the version is acknowledged next, and not repeated
            self._map.flush(0, mmap.PAGESIZE)

    def has_begun(self, end: int) -> bool:
        """Whether the session at an end (NEAR, FAR) is this hop's, and not one that an earlier hop left."""
        return bool(self._words[_BEGUN] & end)

    def begin(self, end: int) -> None:
        """The session at an end is this hop's."""
        self._words[_BEGUN] |= end

    @property
    def received(self) -> int:
        """The number of the last message received."""
        return self._words[_RECEIVED]

    def next_number(self) -> int:
        """The number of a message that has been received now."""
        number = self._words[_RECEIVED] + 1
        self._words[_RECEIVED] = number
        return number

    def record(self, packet: int, number: int, digest: int, dropped: bool = False) -> None:
        """The far broker has the message of a packet id, or the hop has dropped it."""
        self._words[_HEADER + packet] = (number % _NUMBERS) << 32 | digest | (_DROPPED if dropped else 0)

    def clear(self, packet: int) -> None:
        """The message of a packet id is new, and the far broker does not have it yet."""
        self._words[_HEADER + packet] = 0

    def has(self, packet: int, digest: int) -> bool:
        """Whether a repeated message was finished or stored by the far broker before."""
        slot = self._words[_HEADER + packet]
        if not slot or slot & 0xFFFFFFFF != digest:
            return False
        age = (self._words[_RECEIVED] - (slot >> 32)) % _NUMBERS
        return age < _LATEST

    def was_dropped(self, packet: int) -> bool:
        """Whether the hop dropped the last message of a packet id."""
        return bool(self._words[_HEADER + packet] & _DROPPED)

    def forget_near(self) -> None:
        """The near broker has lost its session: every later message is new."""
        self._words[_RECEIVED] += _LATEST

    def forget_far(self) -> None:
        """The far broker has lost its session, and with it the messages that it stored."""
        self._map[8 * _HEADER :] = bytes(8 * (LAST_ID + 1))

    def run(self) -> tuple[int, tuple[int, ...]]:
        """The digest of the last message, and the subscription identifiers that its copies had so far."""
        count = self._words[_RUN_LENGTH]
        return self._words[_RUN], tuple(self._words[_RUN_IDS : _RUN_IDS + count])

    def record_run(self, digest: int, identifiers: tuple[int, ...]) -> None:
        """Remember the last message and the first identifiers of its copies."""
        some = identifiers[:_MOST_RUN_IDS]
        self._words[_RUN_LENGTH] = 0
        self._words[_RUN] = digest
        for index, identifier in enumerate(some):
            self._words[_RUN_IDS + index] = identifier
        self._words[_RUN_LENGTH] = len(some)

    def close(self) -> None:
        """Close the file."""
        self._words.release()
        self._map.close()

    def delete(self) -> None:
        """Delete the file; the content stays usable until `close`."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)


def _mapped(path: Path) -> mmap.mmap:
    """Map a file into memory, with all of its pages allocated.

    Writing to a page that is not allocated would kill the process if the disk is full.
    """
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | BINARY, 0o600)
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(handle, 0, _BYTES)
            else:  # macOS, Windows
                missing = _BYTES - os.lseek(handle, 0, os.SEEK_END)
                os.write(handle, bytes(max(0, missing)))
            return mmap.mmap(handle, _BYTES)
        finally:
            os.close(handle)
    except OSError as error:
        raise error_from_os(f"{path} cannot be written", error) from error

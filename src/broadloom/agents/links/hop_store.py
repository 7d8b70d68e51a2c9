"""Memory of one hop that survives its process: which packets the far broker has, and the hop's version.

The store is a memory-mapped file: the system writes its pages even if the process is killed. Only the version
is forced to the disk, so if the machine itself fails, messages in flight can arrive twice.

A broker that repeats a message uses the same packet id and sets DUP. But packet ids are used again, so a
repeated packet id alone does not mean the same message. Each slot has the number that the message had among
all messages received, and a CRC-32 of its topic and payload. Acknowledgements are sent in order, so a message
that is not acknowledged yet was followed by fewer messages than the receive window. Brokers count packet ids
up to 65,535 before they use one again. Hence: same packet id, DUP, same CRC, and fewer than 32,768 messages
since means the same message; no message ids are needed.

The numbers on which messages depend have a check value, and a file that is damaged there is refused: a hop
that began anew would delete its sessions, with the messages in them. A flipped bit in a slot can at worst
double one message in flight.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path

from broadloom.agents.links.agent_files import damage
from broadloom.errors import error_from_os
from broadloom.mqtt.packets import LAST_ID
from broadloom.storage import BINARY

_MAGIC = 0x32706F486D6F6F6C  # "loomHop2"
# Positions of the header's numbers, of 8 bytes each.
_FORMAT, _VERSION, _VERSION_CHECK, _RECEIVED, _BEGUN, _RUN, _RUN_LENGTH, _RUN_IDS = range(8)
_CHECK = 0xA5C3_96F0_5A3C_690F  # a number and its check value differ by these bits
_MOST_RUN_IDS = 10
_HEADER = _RUN_IDS + _MOST_RUN_IDS
_BYTES = 8 * (_HEADER + LAST_ID + 1)
_NUMBER_BITS = 31
_NUMBERS = 1 << _NUMBER_BITS  # receive numbers are kept modulo this
_DROPPED = 1 << 63
_LATEST = 32_768  # messages: half the packet ids, and more than any receive window in use
NEAR, FAR = 1, 2  # ends of a hop
_BEGUN_VALUES = (_CHECK, _CHECK ^ 0xFF, _CHECK ^ 0xFF00, _CHECK ^ 0xFFFF)  # of no end, NEAR, FAR, both


class HopStore:
    """Packets and version of one hop.

    Args:
        path: the file; None: memory only.

    Attributes:
        is_new: whether there was no file.

    Raises:
        InputError: the file is damaged.
        StorageError: the file cannot be created; the disk is full, for example.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._map = mmap.mmap(-1, _BYTES) if path is None else _mapped(path)
        self._words = memoryview(self._map).cast("Q")
        self.is_new = not any(self._words[:_HEADER])
        if self.is_new:
            self.version = 0
            self._begin_with(0)
            self._words[_FORMAT] = _MAGIC
        elif path is not None and self._is_damaged():
            self.close()
            raise damage(path)

    def _is_damaged(self) -> bool:
        words = self._words
        return (
            words[_FORMAT] != _MAGIC
            or words[_VERSION] ^ words[_VERSION_CHECK] != _CHECK
            or words[_BEGUN] not in _BEGUN_VALUES
            or words[_RUN_LENGTH] > _MOST_RUN_IDS
        )

    def _begin_with(self, ends: int) -> None:
        self._words[_BEGUN] = _BEGUN_VALUES[ends]

    @property
    def version(self) -> int:
        """The version that the hop puts on messages of its own broker."""
        return self._words[_VERSION]

    @version.setter
    def version(self, version: int) -> None:
        self._words[_VERSION] = version
        self._words[_VERSION_CHECK] = version ^ _CHECK
        if self._path is not None:  # the marker of the version is acknowledged next, and not repeated
            self._map.flush(0, mmap.PAGESIZE)

    def has_begun(self, end: int) -> bool:
        """Whether the session at an end (NEAR, FAR) is this hop's, and not one that an earlier hop left."""
        return bool(_BEGUN_VALUES.index(self._words[_BEGUN]) & end)

    def begin(self, end: int) -> None:
        """The session at an end is this hop's."""
        self._begin_with(_BEGUN_VALUES.index(self._words[_BEGUN]) | end)

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

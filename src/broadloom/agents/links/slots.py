"""Which message the far broker has stored last under each packet id, kept where a killed agent leaves it.

A page of memory that belongs to a file is written by the system even if the process is killed. Nothing is
forced to the disk: if the machine itself fails, what was on its way may come twice.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path

from broadloom.mqtt.packets import LAST_ID

_BYTES = 8 * (LAST_ID + 1)


class Slots:
    """A number for each packet id; 0: none.

    Args:
        place: the file; None: only memory.
    """

    def __init__(self, place: Path | None = None) -> None:
        self._map = mmap.mmap(-1, _BYTES) if place is None else _mapped(place)
        self._keys = memoryview(self._map).cast("Q")

    def __getitem__(self, number: int) -> int:
        return self._keys[number]

    def __setitem__(self, number: int, key: int) -> None:
        self._keys[number] = key

    def clear(self) -> None:
        """Forget all."""
        self._map[:] = bytes(_BYTES)

    def close(self) -> None:
        """Let go of the file."""
        self._keys.release()
        self._map.close()


def _mapped(place: Path) -> mmap.mmap:
    """The memory of a file, which keeps a handle of its own."""
    handle = os.open(place, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        _make_room(handle)
        return mmap.mmap(handle, _BYTES)
    finally:
        os.close(handle)


def _make_room(handle: int) -> None:
    """Have the whole file on the disk: writing a page without room there would kill the process."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(handle, 0, _BYTES)
    else:  # macOS
        _fill(handle)


def _fill(handle: int) -> None:
    """Write zeros behind what the file has, until it has all."""
    while (missing := _BYTES - os.lseek(handle, 0, os.SEEK_END)) > 0:
        os.write(handle, bytes(missing))

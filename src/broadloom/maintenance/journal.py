"""The journal of a live overlay: every change is on the disk before it is acknowledged.

After a line that says what it is come records: the length of the text, its CRC-32, and the text itself, JSON.
Only the last record can be torn by a crash, and then it was never acknowledged: it is cut off.

Every state has a journal of its own, `journal.<number>`, which it names, and which is there before it is. So
one rename, that of the state, moves from one pair to the next; a journal that no state names is litter.
"""

from __future__ import annotations

import fcntl
import json
import os
import struct
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from broadloom.errors import InputError
from broadloom.maintenance.changes import Change
from broadloom.maintenance.requests import Request

FILE = "journal"
MAGIC = b"broadloom journal 1\n"
_HEAD = struct.Struct("<II")


class Entry(NamedTuple):
    """Changes that were acknowledged together.

    Attributes:
        number: how many changes there had been before them.
        requests: what was asked for.
        mark: a checksum of the links that they added and removed.
    """

    number: int
    requests: list[Request]
    mark: int


class Journal:
    """An open journal; nobody else can open it meanwhile."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = hold(folder)
        self._file = -1
        self._number = 0
        self._fault: str | None = None

    def begin(self) -> str:
        """Make an empty journal; it counts from when a state names it."""
        last = max((int(place.suffix[1:]) for place in journals_in(self.folder)), default=0)
        name = f"{FILE}.{last + 1}"
        with (self.folder / name).open("wb") as file:
            file.write(MAGIC)
            file.flush()
            os.fsync(file.fileno())
        os.fsync(self._lock)
        return name

    def go_on(self, name: str, number: int) -> None:
        """Write to the journal of this name, behind what it has, after so many changes; others go."""
        try:
            file = os.open(self.folder / name, os.O_RDWR | os.O_APPEND)
            os.fsync(self._lock)  # the state that names it is there for good before the old journal goes
        except OSError as error:
            self._fault = f"{self.folder / name} cannot be opened: {error.strerror}; load it again"
            raise InputError(self._fault) from error
        if self._file >= 0:
            os.close(self._file)
        self._file, self._number = file, number
        for litter in journals_in(self.folder):
            if litter.name != name:
                with suppress(OSError):
                    litter.unlink()

    def append(self, requests: Sequence[Request], changes: Sequence[Change]) -> None:
        """Bring changes to the disk; when this returns, they are there."""
        text = json.dumps([self._number, [request.plain() for request in requests], mark_of(changes)])
        data = text.encode()
        record, end = _HEAD.pack(len(data), zlib.crc32(data)) + data, os.lseek(self._file, 0, os.SEEK_END)
        try:
            while record:
                record = record[os.write(self._file, record) :]
            os.fsync(self._file)
        except OSError as error:
            os.ftruncate(self._file, end)  # none of it was acknowledged
            self._fault = (
                f"the journal of {self.folder} could not be written: {error.strerror}; load it again"
            )
            raise InputError(self._fault) from error
        self._number += len(requests)

    def check(self) -> None:
        """Refuse further changes after one could not be kept."""
        if self._fault is not None:
            raise InputError(self._fault)

    def close(self) -> None:
        """Let go of it."""
        for handle in (self._file, self._lock):
            if handle >= 0:
                os.close(handle)


def journals_in(folder: Path) -> list[Path]:
    """The journals in a folder: that of its state, and litter."""
    return [place for place in folder.glob(f"{FILE}.*") if place.suffix[1:].isdecimal()]


def read_entries(place: Path) -> list[Entry]:
    """The entries of a journal; a torn record at its end is cut off.

    Raises:
        InputError: there is no journal, or a record before its end is damaged.
    """
    try:
        data = place.read_bytes()
    except OSError as error:
        raise InputError(f"{place} cannot be read: {error.strerror}; restore it from a copy") from error
    if MAGIC.startswith(data) and data != MAGIC:  # cut before its first record
        place.write_bytes(MAGIC)
        return []
    if not data.startswith(MAGIC):
        raise InputError(f"{place} is not a journal; it was not written by broadloom, or is damaged")
    entries, at = [], len(MAGIC)
    while (record := _record(data, at)) is not None:
        number, requests, mark = json.loads(record)
        entries.append(Entry(number, [Request.from_plain(values) for values in requests], mark))
        at += _HEAD.size + len(record)
    if at < len(data):
        _check_torn(data, at, place)
        os.truncate(place, at)
    return entries


def mark_of(changes: Sequence[Change]) -> int:
    """A checksum of what changes did."""
    mark = 0
    for change in changes:
        for links in (change.added, change.removed):
            mark = zlib.crc32(links.astype("<i8").tobytes(), mark)
    return mark


def _record(data: bytes, at: int) -> bytes | None:
    """The text of the record at a place, or None if there is no whole one."""
    if at + _HEAD.size > len(data):
        return None
    length, check = _HEAD.unpack_from(data, at)
    text = data[at + _HEAD.size : at + _HEAD.size + length]
    return text if 0 < length == len(text) and zlib.crc32(text) == check else None


def _check_torn(data: bytes, at: int, place: Path) -> None:
    """What follows a torn record is nothing: otherwise acknowledged changes are damaged, not torn."""
    rest = data[at:]
    if len(rest) < _HEAD.size or not any(rest):
        return
    length, _ = _HEAD.unpack_from(rest)
    if _HEAD.size + length < len(rest):
        raise InputError(f"{place} is damaged at byte {at:,}, with more behind it; restore it from a copy")


def hold(folder: Path) -> int:
    """A handle on a folder with a lock, which the system lets go of if this process dies.

    Raises:
        InputError: somebody else holds it.
    """
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(handle)
        raise InputError(f"{folder} is open already, here or in another process; close it first") from error
    return handle


def open_journal(folder: Path) -> Journal:
    """The journal of a folder, which must be there."""
    try:
        return Journal(folder)
    except OSError as error:
        raise InputError(
            f"{folder} cannot be opened: {error.strerror}; save a live overlay there first"
        ) from error

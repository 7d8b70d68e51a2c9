"""The journal of a live overlay: every change is on the disk before it is acknowledged.

Every state has a journal of its own, `journal.<number>`, which it names, and which is there before it is. So
one rename, that of the state, moves from one pair to the next; a journal that no state names is litter.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from broadloom.errors import InputError
from broadloom.maintenance.changes import Change
from broadloom.maintenance.requests import Request
from broadloom.storage.records import append, hold, read_records, start_file

FILE = "journal"
MAGIC = b"broadloom journal 1\n"


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
        start_file(self.folder / name, MAGIC)
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
        try:
            append(self._file, text.encode())
        except OSError as error:
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
    entries = []
    for text in read_records(place, MAGIC):
        number, requests, mark = json.loads(text)
        entries.append(Entry(number, [Request.from_plain(values) for values in requests], mark))
    return entries


def mark_of(changes: Sequence[Change]) -> int:
    """A checksum of what changes did."""
    mark = 0
    for change in changes:
        for links in (change.added, change.removed):
            mark = zlib.crc32(links.astype("<i8").tobytes(), mark)
    return mark


def open_journal(folder: Path) -> Journal:
    """The journal of a folder, which must be there."""
    try:
        return Journal(folder)
    except OSError as error:
        raise InputError(
            f"{folder} cannot be opened: {error.strerror}; save a live overlay there first"
        ) from error

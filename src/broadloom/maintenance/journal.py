"""The journal of a live overlay: every change is on the disk before it is acknowledged."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from broadloom.errors import InputError
from broadloom.maintenance.changes import Change
from broadloom.maintenance.requests import Request
from broadloom.model._records import append, hold, read_records, start_file

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

    def start(self, number: int) -> None:
        """Begin an empty journal, after so many changes; the old one is there until the new one is."""
        start_file(self.folder / FILE, MAGIC)
        self.resume(number)

    def resume(self, number: int) -> None:
        """Go on behind the entries that are there, the last of which left so many changes."""
        if self._file >= 0:
            os.close(self._file)
        self._file, self._number = os.open(self.folder / FILE, os.O_RDWR | os.O_APPEND), number

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


def read_entries(folder: Path) -> list[Entry]:
    """The entries of a journal; a torn record at its end is cut off.

    Raises:
        InputError: there is no journal, or a record before its end is damaged.
    """
    entries = []
    for text in read_records(folder / FILE, MAGIC):
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

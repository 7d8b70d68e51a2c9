"""The agent's journal: a change is on the disk before anybody is told of it."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from broadloom.agents.moves.registry import Change, Registry, from_plain, plain
from broadloom.errors import InputError
from broadloom.storage import append_record, lock_folder, read_records, start_journal

FILE = "moves"
MAGIC = b"broadloom moves 1\n"
MOST_RECORDS, MOST_BYTES = 100_000, 64 * 2**20  # since it was last written anew


class MoveJournal:
    """An open journal; nobody else can open it meanwhile.

    Args:
        folder: where it is; made if it is not there.

    Attributes:
        registry: what its records lead to.

    Raises:
        InputError: another agent has it, it is damaged, or the folder cannot be made.
    """

    def __init__(self, folder: Path) -> None:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # who wants what is nobody else's business
        except OSError as error:
            raise InputError(f"the journal cannot be in {folder}: {error.strerror}; give a folder") from error
        self._lock = lock_folder(folder)
        self._file, self._place, self._records, self._limit = -1, folder / FILE, 0, 0
        self.registry = Registry()
        try:
            self._replay()
            self.shorten()
        except BaseException:
            self.close()
            raise

    def append(self, changes: Sequence[Change]) -> None:
        """Keep changes, all of them or none, and take them into the registry."""
        text = json.dumps([plain(change) for change in changes], separators=(",", ":"))
        append_record(self._file, text.encode())
        self.registry.apply(changes)
        self._records += 1
        if self._records >= MOST_RECORDS or os.fstat(self._file).st_size > self._limit:
            self.shorten()

    def shorten(self) -> None:
        """Write anew what there is, without what has been overtaken."""
        self.registry.forget_old()
        changes = self.registry.changes()
        start_journal(self._place, MAGIC, [json.dumps([plain(change)]).encode() for change in changes])
        if self._file >= 0:
            os.close(self._file)
        self._file, self._records = os.open(self._place, os.O_RDWR | os.O_APPEND), 0
        os.fchmod(self._file, 0o600)
        size = os.fstat(self._file).st_size
        self._limit = size + max(size, MOST_BYTES)  # so that a large one is not written anew all the time

    def close(self) -> None:
        """Let go of it."""
        for handle in (self._file, self._lock):
            if handle >= 0:
                os.close(handle)
        self._file = self._lock = -1

    def _replay(self) -> None:
        """Take in what is there."""
        for text in read_records(self._place, MAGIC) if self._place.exists() else ():
            try:
                self.registry.apply([from_plain(values) for values in json.loads(text)])
            except (ValueError, TypeError, KeyError) as error:
                raise InputError(f"{self._place} has a record of another version: {error!r:.80}") from error

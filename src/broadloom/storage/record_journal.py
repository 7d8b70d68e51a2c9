"""Journal of records in an SQLite file: each record has a checksum, and damage is refused with its position.

A record has a position, a kind, and a body of JSON values. `append` returns when it is on the disk. Each
checksum covers the record and the checksum of the record before it; a head row has the first position, the
last position and the last checksum. So a record that is changed, missing or added by anything but this class
is found. A transaction that a crash interrupted was never acknowledged, and SQLite rolls it back.

The file uses SQLite's rollback journal and not its write-ahead log: SQLite ignores a damaged part of a
write-ahead log, and every acknowledged record after it, in silence. It keeps that journal and overwrites its
header after each transaction (mode PERSIST), which waits for the disk three times instead of four. NORMAL is
durable with it: SQLite flushes its journal, then the file, then the header.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from broadloom.errors import InputError, StorageError, error_from_os
from broadloom.folder_locks import sync_path
from broadloom.storage.locations import local_path

APPLICATION = 0x42724C6A  # in the header of the file: "BrLj"
FORMAT = 1
SQLITE_HEAD = b"SQLite format 3\0"
OLD_FORMAT = b"broadloom "  # the first bytes of the journals of earlier versions
JOURNAL_LIMIT = 1 << 20  # bytes of SQLite's own journal that stay after a large transaction
NO_CHECKSUM = bytes(16)
_TABLES = (
    "CREATE TABLE records (position INTEGER PRIMARY KEY, kind TEXT, body BLOB, checksum BLOB)",
    "CREATE TABLE head (number INTEGER PRIMARY KEY, first INTEGER, last INTEGER, tail BLOB, checksum BLOB)",
)
# Result codes of SQLite, without those that mean that the content is damaged.
_IN_USE = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_OUTSIDE = {
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_READONLY,
}


class JournalDamageError(InputError):
    """A journal is damaged; the message says where, and how to repair it."""


class JournalRecord(NamedTuple):
    """A record of a journal."""

    position: int
    kind: str
    body: dict[str, Any]


class JournalRepair(NamedTuple):
    """Result of a repair.

    Attributes:
        kept: the number of records before the damage, which the new journal has.
        lost_from: the position from which records are lost; None: there was no damage.
        copy: the damaged file, which is kept; None: there was no damage.
        reason: what was damaged.
    """

    kept: int
    lost_from: int | None = None
    copy: Path | None = None
    reason: str = ""

    def summary(self) -> str:
        """The result as a sentence.

        Examples:
            >>> JournalRepair(3).summary()
            'not damaged; it has 3 records'
            >>> JournalRepair(3, 4, Path("moves.damaged-1")).summary()
            'kept 3 records; those from position 4 on are lost; the damaged file is moves.damaged-1'
        """
        if self.copy is None:
            return f"not damaged; it has {self.kept:,} records"
        lost = f"those from position {self.lost_from:,} on are lost"
        return f"kept {self.kept:,} records; {lost}; the damaged file is {self.copy}"


class JournalInUseError(InputError):
    """A journal is open in another process, or twice in this one."""


class RecordJournal:
    """Journal of records in an SQLite file, open in one process at a time.

    Args:
        path: the file, which is created if it does not exist; None: the journal is in memory.
        private: whether records that `replace` drops must not stay readable in the file, or in SQLite's.

    Attributes:
        position: the position of the last record; positions rise for ever. 0: there was no record yet.
        new_bytes: the size of the records that were written since the journal was opened or replaced.
        size: the size of the records that `replace` has written last; 0: it was not called.

    Raises:
        JournalDamageError: the file is damaged, or is not a journal.
        JournalInUseError: it is open in another process.
        StorageError: it cannot be read or written.

    Examples:
        >>> journal = RecordJournal(None)
        >>> journal.append("open", {"routes": [7]})
        1
        >>> journal.append_all([("switch", {"version": 2}), ("closed", {"change": 2})])
        3
        >>> journal.records()[1]
        JournalRecord(position=2, kind='switch', body={'version': 2})
        >>> journal.replace([("snapshot", {"version": 2})])
        4
        >>> len(journal)
        1
    """

    def __init__(self, path: Path | None, private: bool = False) -> None:
        self.path = path
        self.position = 0
        self.new_bytes = 0
        self.size = 0
        self._first = 1
        self._tail = NO_CHECKSUM
        self._verified: list[JournalRecord] | None = None
        if path is not None and not path.exists():
            create_journal(path)
        if path is not None:
            _check_kind(path)
        self._database = _connect(path)
        try:
            with _named_errors(path, "read"):
                if path is None:
                    _fill(self._database, [])
                self._database.execute("PRAGMA locking_mode = EXCLUSIVE").fetchall()
                mode = "TRUNCATE" if private else "PERSIST"
                self._database.execute(f"PRAGMA journal_mode = {mode}").fetchall()
                if private:
                    self._database.execute("PRAGMA secure_delete = ON").fetchall()
                self._database.execute(f"PRAGMA journal_size_limit = {JOURNAL_LIMIT}").fetchall()
                self._database.execute("PRAGMA synchronous = NORMAL")
                self._database.execute("BEGIN EXCLUSIVE")  # takes the lock, which `close` releases
                self._database.execute("COMMIT")
                _check_structure(self._database, path)
            self._verified = self.records()  # for the first caller, so that they are not read twice
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        return self.position - self._first + 1

    def records(self) -> list[JournalRecord]:
        """All records in their order.

        Raises:
            JournalDamageError: the file is damaged.
            StorageError: it cannot be read.
        """
        if self._verified is not None:
            verified, self._verified = self._verified, None
            return verified
        with _named_errors(self.path, "read"):
            self._first, self.position, self._tail = _read_head(self._database, self.path)
            found = list(_verified(self._database, self.path, self._first))
        if len(found) != len(self) or (found[-1][1] if found else NO_CHECKSUM) != self._tail:
            position = self._first + len(found)
            raise _damage(self.path, f"position {position} is missing, up to position {self.position}")
        return [record for record, _ in found]

    def append(self, kind: str, body: Mapping[str, Any]) -> int:
        """Append a record and return its position when it is on the disk.

        Raises:
            StorageError: it cannot be written; the journal is as it was before.
        """
        return self.append_all([(kind, body)])

    def append_all(self, records: Iterable[tuple[str, Mapping[str, Any]]]) -> int:
        """Append records, all or none of them, and return the position of the last one.

        Raises:
            StorageError: they cannot be written; the journal is as it was before.
        """
        rows = list(_rows(records, self.position, self._tail))
        self._write(rows, self._first)
        self.new_bytes += sum(len(row[2]) for row in rows)
        return self.position

    def replace(self, records: Iterable[tuple[str, Mapping[str, Any]]]) -> int:
        """Replace all records by others with the same meaning, such as a snapshot; positions go on.

        Raises:
            StorageError: they cannot be written; the journal is as it was before.
        """
        rows = list(_rows(records, self.position, NO_CHECKSUM))
        self._write(rows, self.position + 1)
        self.new_bytes = 0
        self.size = sum(len(row[2]) for row in rows)
        return self.position

    def _write(self, rows: Sequence[_Row], first: int) -> None:
        """Delete the records before a position and append others, in one transaction."""
        if not rows:
            return
        self._verified = None
        with _named_errors(self.path, "written"):
            try:
                self._database.execute("BEGIN")
                self._database.execute("DELETE FROM records WHERE position < ?", (first,))
                _insert(self._database, rows, first)
                self._database.execute("COMMIT")
            except BaseException:
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")
                raise
        self._first = first
        self.position, _, _, self._tail = rows[-1]

    def close(self) -> None:
        """Close the file and release its lock."""
        self._database.close()

    def __enter__(self) -> RecordJournal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_Row = tuple[int, str, bytes, bytes]


def check_journal(path: Path) -> int:
    """Check a journal and return its number of records.

    Raises:
        JournalDamageError: it is damaged.
        InputError: it does not exist, or is open in another process.
        StorageError: it cannot be read.
    """
    if not path.exists():
        raise InputError(f"{path} does not exist; give the file of a journal")
    with RecordJournal(path) as journal:
        return len(journal)


def repair_journal(path: Path) -> JournalRepair:
    """Replace a damaged journal by one with the records before the damage; the damaged file is kept.

    A journal without damage stays as it is.

    Raises:
        InputError: the file does not exist, is not a journal, or is open in another process.
        StorageError: it cannot be read or written.
    """
    path = local_path(path, "the journal")
    try:
        return JournalRepair(check_journal(path))  # raises for a journal of an earlier version
    except JournalDamageError as error:
        reason = str(error)
    kept = _readable_prefix(path)
    if not kept and not _begins_as_journal(path):
        raise InputError(f"{path} is not a journal; give the file that the error names, as in live/journal.1")
    number = 1
    while (copy := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    try:
        shutil.copy2(path, copy)
        create_journal(path, kept)
    except OSError as error:
        raise error_from_os(f"{path} cannot be repaired", error) from error
    return JournalRepair(len(kept), kept[-1].position + 1 if kept else 1, copy, reason)


def create_journal(path: Path, records: Sequence[JournalRecord] = ()) -> None:
    """Create a journal, or replace a closed one: the file appears at once, complete and on the disk.

    Raises:
        StorageError: it cannot be written; the old file is as it was before.
    """
    draft = path.with_name(f"{path.name}.new")
    try:
        draft.unlink(missing_ok=True)
        with _named_errors(path, "written"), closing(_connect(draft)) as database:
            database.execute("PRAGMA synchronous = EXTRA")
            _fill(database, records)
        own_journal(path).unlink(missing_ok=True)  # SQLite would take it for that of the new file
        draft.replace(path)
        sync_path(path.parent)
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise error_from_os(f"{path} cannot be written", error) from error


def own_journal(path: Path) -> Path:
    """The file next to a journal that SQLite keeps to undo a transaction."""
    return path.with_name(f"{path.name}-journal")


def delete_journal(path: Path) -> None:
    """Delete a closed journal, with the file that SQLite keeps for it.

    Raises:
        OSError: it cannot be deleted.
    """
    path.unlink(missing_ok=True)
    own_journal(path).unlink(missing_ok=True)


def _check_kind(path: Path) -> None:
    """Raise if a file is empty (SQLite would take it for a new one), or of an earlier version."""
    try:
        with path.open("rb") as file:
            start = file.read(20)
    except OSError as error:
        raise error_from_os(f"{path} cannot be read", error) from error
    if not start:
        raise _damage(path, "the file is empty")
    if start.startswith(OLD_FORMAT):
        raise InputError(
            f"{path} was written by an earlier version of broadloom; finish its work with that version, "
            "or begin with a new folder"
        )
    if start[18:] != b"\1\1":  # SQLite's format for files without a write-ahead log
        raise _damage(path, "the header of the file is not that of a journal")


def _fill(database: sqlite3.Connection, records: Sequence[JournalRecord]) -> None:
    """Make the tables of a journal, with the head row and the records."""
    database.execute(f"PRAGMA application_id = {APPLICATION}")
    database.execute(f"PRAGMA user_version = {FORMAT}")
    for table in _TABLES:
        database.execute(table)
    first = records[0].position if records else 1
    rows = list(_rows([(one.kind, one.body) for one in records], first - 1, NO_CHECKSUM))
    database.execute("BEGIN")
    _insert(database, rows, first)
    database.execute("COMMIT")


def _insert(database: sqlite3.Connection, rows: Sequence[_Row], first: int) -> None:
    """Insert rows after the present ones, and write the head row."""
    database.executemany("INSERT INTO records VALUES (?, ?, ?, ?)", rows)
    last, _, _, tail = rows[-1] if rows else (first - 1, "", b"", NO_CHECKSUM)
    checksum = _checksum(tail, first, b"head", str(last).encode())
    database.execute("INSERT OR REPLACE INTO head VALUES (1, ?, ?, ?, ?)", (first, last, tail, checksum))


def _rows(records: Iterable[tuple[str, Mapping[str, Any]]], last: int, tail: bytes) -> Iterator[_Row]:
    """The rows of records after a position and a checksum."""
    for position, (kind, body) in enumerate(records, start=last + 1):
        text = json.dumps(body, separators=(",", ":")).encode()
        tail = _checksum(tail, position, kind.encode(), text)
        yield position, kind, text, tail


def _checksum(tail: bytes, position: int, kind: bytes, text: bytes) -> bytes:
    head = b"%d %d " % (position, len(kind))
    return hashlib.blake2b(tail + head + kind + text, digest_size=len(NO_CHECKSUM)).digest()


def _check_structure(database: sqlite3.Connection, path: Path | None) -> None:
    """Raise unless the header and the tables are those of a journal, and all pages are well-formed."""
    marks = [database.execute(f"PRAGMA {name}").fetchall() for name in ("application_id", "user_version")]
    if marks != [[(APPLICATION,)], [(FORMAT,)]]:
        raise _damage(path, "the header of the file is not that of a journal")
    tables = database.execute("SELECT sql FROM sqlite_schema ORDER BY rowid").fetchall()
    if tables != [(table,) for table in _TABLES]:
        raise _damage(path, "its tables are not those of a journal")
    if database.execute("PRAGMA quick_check(1)").fetchall() != [("ok",)]:
        raise _damage(path, "the structure of its pages is wrong")


def _read_head(database: sqlite3.Connection, path: Path | None) -> tuple[int, int, bytes]:
    """The first position, the last position and the last checksum."""
    heads = database.execute("SELECT first, last, tail, checksum FROM head").fetchall()
    for first, last, tail, checksum in heads:
        kinds = (type(first), type(last), type(tail))
        is_typed = len(heads) == 1 and kinds == (int, int, bytes)
        if is_typed and checksum == _checksum(tail, first, b"head", str(last).encode()):
            return first, last, tail
    raise _damage(path, "the row with its first and last positions is wrong")


def _verified(
    database: sqlite3.Connection, path: Path | None, first: int | None
) -> Iterator[tuple[JournalRecord, bytes]]:
    """The records with their checksums; without a first position, that of the first row is taken."""
    tail = NO_CHECKSUM
    expected = first
    with closing(database.cursor()) as cursor:  # an open cursor would hold the lock of a closed file
        cursor.execute("SELECT position, kind, body, checksum FROM records ORDER BY position")
        for position, kind, text, checksum in cursor:
            if not isinstance(position, int):  # the text that defines the table is damaged
                raise _damage(path, f"{position!r} stands where the position of a record should be")
            expected = position if expected is None else expected
            if position != expected:
                raise _damage(path, f"position {expected} is missing; position {position} follows")
            is_typed = isinstance(kind, str) and isinstance(text, bytes)
            if not is_typed or checksum != _checksum(tail, position, kind.encode(), text):
                raise _damage(path, f"the record at position {position} is not as it was written")
            tail = checksum
            yield JournalRecord(position, kind, json.loads(text)), tail
            expected += 1


def _readable_prefix(path: Path) -> list[JournalRecord]:
    """The records of a damaged file up to the first that is damaged."""
    found = []
    try:
        with _named_errors(path, "read"), closing(_connect(path)) as database:
            database.execute("PRAGMA query_only = ON")
            try:
                first = _read_head(database, path)[0]
            except (JournalDamageError, sqlite3.Error):
                first = None
            for record, _ in _verified(database, path, first):
                found.append(record)
    except JournalDamageError:
        pass
    return found


def _begins_as_journal(path: Path) -> bool:
    """Whether a damaged file can have been a journal: it begins as SQLite files do, or with zeros."""
    with path.open("rb") as file:
        head = file.read(len(SQLITE_HEAD))
    return not any(head) or sum(a == b for a, b in zip(head, SQLITE_HEAD, strict=False)) * 2 >= len(head)


def _connect(path: Path | None) -> sqlite3.Connection:
    with _named_errors(path, "opened"):
        name = ":memory:" if path is None else str(path)
        return sqlite3.connect(name, timeout=0.0, isolation_level=None, check_same_thread=False)


@contextmanager
def _named_errors(path: Path | None, action: str) -> Iterator[None]:
    """Raise the errors of SQLite as errors of Broadloom, with the file."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
        if code in _IN_USE:
            message = f"{path} is open already, here or in another process; close it first"
            raise JournalInUseError(message) from error
        if code in _OUTSIDE:
            raise StorageError(f"{path} cannot be {action}: {error}") from error
        raise _damage(path, f"SQLite cannot read it ({error})") from error
    except UnicodeError as error:
        raise _damage(path, "a text is not UTF-8") from error


def _damage(path: Path | None, reason: str) -> JournalDamageError:
    return JournalDamageError(
        f"the journal {path or 'in memory'} is damaged: {reason}; restore it from a copy, or keep what is "
        f"before the damage with: broadloom repair {path}"
    )

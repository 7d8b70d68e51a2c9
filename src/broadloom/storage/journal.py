"""Files that only grow: a line that says what they are, then records that are on the disk or not there.

A record is the length of its text, the CRC-32 of it, and the text itself. Only the last one can be torn by a
crash, and then it was never acknowledged: it is cut off.
"""

from __future__ import annotations

import fcntl
import os
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

from broadloom.errors import InputError

HEAD = struct.Struct("<II")


def framed(text: bytes) -> bytes:
    """A record as it stands in the file."""
    return HEAD.pack(len(text), zlib.crc32(text)) + text


def start_journal(place: Path, magic: bytes, records: Sequence[bytes] = ()) -> None:
    """Put a new file at a place; the old one is there until the new one is."""
    draft = place.with_name(f"{place.name}.new")
    with draft.open("wb") as file:
        file.write(magic + b"".join(map(framed, records)))
        file.flush()
        os.fsync(file.fileno())
    draft.rename(place)
    folder = os.open(place.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def append_record(file: int, text: bytes) -> None:
    """Bring a record to the disk; when this returns, it is there.

    Raises:
        OSError: it could not be written, and nothing of it is left.
    """
    record, end = framed(text), os.lseek(file, 0, os.SEEK_END)
    try:
        while record:
            record = record[os.write(file, record) :]
        os.fsync(file)
    except OSError:
        os.ftruncate(file, end)  # none of it was acknowledged
        raise


def read_records(place: Path, magic: bytes) -> list[bytes]:
    """The texts of all records; a torn one at the end is cut off.

    Raises:
        InputError: the file is not there or of another kind, or a record before its end is damaged.
    """
    try:
        data = place.read_bytes()
    except OSError as error:
        raise InputError(f"{place} cannot be read: {error.strerror}") from error
    if magic.startswith(data) and data != magic:  # cut before its first record
        place.write_bytes(magic)
        return []
    if not data.startswith(magic):
        raise InputError(f"{place} is not a journal; it was not written by broadloom, or is damaged")
    texts, at = [], len(magic)
    while (text := record_at(data, at)) is not None:
        texts.append(text)
        at += HEAD.size + len(text)
    if at < len(data):
        _check_torn(data, at, place)
        os.truncate(place, at)
    return texts


def record_at(data: bytes, at: int) -> bytes | None:
    """The text of the record at a place, or None if there is no whole one."""
    if at + HEAD.size > len(data):
        return None
    length, check = HEAD.unpack_from(data, at)
    text = data[at + HEAD.size : at + HEAD.size + length]
    return text if 0 < length == len(text) and zlib.crc32(text) == check else None


def _check_torn(data: bytes, at: int, place: Path) -> None:
    """What follows a torn record is nothing: otherwise acknowledged changes are damaged, not torn."""
    rest = data[at:]
    if len(rest) < HEAD.size or not any(rest):
        return
    length, _ = HEAD.unpack_from(rest)
    if HEAD.size + length < len(rest):
        raise InputError(f"{place} is damaged at byte {at:,}, with more behind it; restore it from a copy")


def lock_folder(folder: Path) -> int:
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

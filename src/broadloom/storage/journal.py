"""Append-only record file: the format of all journals.

A file starts with a magic line that names its kind. Each record is the length of its text, the CRC-32 of the
text, and the text. `append_record` returns when the record is on the disk. Only the last record can be
truncated by a crash; it was never acknowledged, and `read_records` drops it.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

from broadloom.errors import InputError, error_from_os
from broadloom.folder_locks import lock_handle, sync_path

HEAD = struct.Struct("<II")


def start_journal(path: Path, magic: bytes, records: Sequence[bytes] = ()) -> None:
    """Create a journal, or replace one: the old file stays until the new one is on the disk.

    Raises:
        StorageError: the file cannot be written.
    """
    draft = path.with_name(f"{path.name}.new")
    try:
        with draft.open("wb") as file:
            file.write(magic + b"".join(map(_framed, records)))
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
        sync_path(path.parent)
    except OSError as error:
        raise error_from_os(f"{path} cannot be written", error) from error


def append_record(file: int, text: bytes) -> None:
    """Append a record to an open journal and flush it to the disk.

    Raises:
        OSError: the record could not be written; the file is as it was before.
    """
    record = _framed(text)
    end = os.lseek(file, 0, os.SEEK_END)
    try:
        while record:
            record = record[os.write(file, record) :]
        os.fsync(file)
    except OSError:
        os.ftruncate(file, end)
        raise


def read_records(path: Path, magic: bytes) -> list[bytes]:
    """The texts of all records; a truncated record at the end is removed from the file.

    Raises:
        InputError: the file does not exist or is of another kind, or a record before its end is damaged.
        StorageError: the file cannot be read.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise error_from_os(f"{path} cannot be read", error) from error
    if magic.startswith(data) and data != magic:  # a crash truncated the magic line
        path.write_bytes(magic)
        return []
    if not data.startswith(magic):
        raise InputError(f"{path} is not a journal; it was not written by broadloom, or is damaged")
    texts = []
    offset = len(magic)
    while (text := record_at(data, offset)) is not None:
        texts.append(text)
        offset += HEAD.size + len(text)
    if offset < len(data):
        _check_truncated(data, offset, path)
        os.truncate(path, offset)
    return texts


def record_at(data: bytes, offset: int) -> bytes | None:
    """The text of the record that starts at an offset; None if it is truncated or damaged."""
    if offset + HEAD.size > len(data):
        return None
    length, check = HEAD.unpack_from(data, offset)
    text = data[offset + HEAD.size : offset + HEAD.size + length]
    return text if 0 < length == len(text) and zlib.crc32(text) == check else None


def _framed(text: bytes) -> bytes:
    """The bytes of a record: its head (length and CRC-32) and its text."""
    return HEAD.pack(len(text), zlib.crc32(text)) + text


def _check_truncated(data: bytes, offset: int, path: Path) -> None:
    """Raise if data follows the unreadable record at `offset`: then it is damaged, not truncated."""
    rest = data[offset:]
    if len(rest) < HEAD.size or not any(rest):
        return
    length, _ = HEAD.unpack_from(rest)
    if HEAD.size + length < len(rest):
        raise InputError(f"{path} is damaged at byte {offset:,}, before its end; restore it from a copy")


def lock_folder(folder: Path) -> int:
    """Lock a folder and return its handle; the operating system releases the lock if this process dies.

    Raises:
        InputError: the folder does not exist, or another handle holds the lock.
        StorageError: the folder cannot be opened.
    """
    try:
        return lock_handle(folder)
    except BlockingIOError as error:
        raise InputError(f"{folder} is open already, here or in another process; close it first") from error
    except OSError as error:
        raise error_from_os(f"{folder} cannot be opened", error) from error

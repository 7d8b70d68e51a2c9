"""Files of a site agent: values with a checksum, and its orders as a base with a log of differences."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

from broadloom.agents.links.route_orders import AgentOrders
from broadloom.errors import InputError, error_from_os
from broadloom.folder_locks import sync_path

ORDERS = "orders.json"
LEAST_LOG_BYTES = 1_000_000  # before a new base replaces the log
_DIGITS = 32  # of a checksum


class OrdersFile:
    """Orders of an agent on the disk.

    A base has all routes; each later change appends one line with its difference to a log, so that a change
    of one route among thousands writes one line. When the log is larger than its base, `compact` writes a new
    base. The name of a log has the checksum of its base: it is never read with another one.

    Args:
        folder: the folder of the agent's state.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / ORDERS
        self._orders: AgentOrders | None = None
        self._log: Path | None = None  # None: the next orders need a new base
        self._base_size = 0
        self._log_size = 0
        self._newer: list[bytes] | None = None  # lines since `compact` has begun

    def load(self) -> AgentOrders | None:
        """The stored orders; None: there are none.

        Raises:
            InputError: a file is damaged.
            StorageError: it cannot be read.
        """
        content = _read_bytes(self._path)
        if content is None:
            return None
        check, text = _checked(content, self._path)
        orders = AgentOrders.from_json(json.loads(text))
        log = self._log_path(check)
        lines = (_read_bytes(log) or b"").split(b"\n")
        for line in lines[:-1]:
            if not _is_line(line):
                raise damage(log)
            orders = orders.with_difference(json.loads(line.partition(b" ")[2]))
        if _is_line(lines[-1][:-1]):
            raise damage(log)  # the line is complete but for its end
        if not lines[-1]:  # otherwise a crash has cut the last line, which nobody knows as stored
            self._log = log
        self._base_size = len(content)
        self._log_size = sum(len(line) + 1 for line in lines[:-1])
        self._orders = orders
        return orders

    def store(self, orders: AgentOrders) -> None:
        """Store orders; when this returns, they are on the disk.

        Raises:
            StorageError: they cannot be written; the stored ones are as before.
        """
        if self._orders is None or self._log is None:
            self._begin(_encoded(orders))
        else:
            text = orders.difference_text(self._orders).encode()
            line = _checksum(text) + b" " + text + b"\n"
            self._append(line)
            if self._newer is not None:
                self._newer.append(line)
        self._orders = orders

    @property
    def is_long(self) -> bool:
        """Whether a new base is due."""
        return self._log_size > max(LEAST_LOG_BYTES, self._base_size)

    async def compact(self) -> None:
        """Write a new base, most of it in a thread; orders can be stored meanwhile.

        Raises:
            StorageError: it cannot be written; the stored orders are as before.
        """
        orders = self._orders
        if orders is None or self._newer is not None:
            return
        self._newer = []
        try:
            content = await asyncio.to_thread(_encoded, orders)
            await asyncio.to_thread(_write_bytes, self._draft, content)
            if self._log is not None:  # otherwise a new base was written meanwhile
                self._begin(content, b"".join(self._newer), is_written=True)
        finally:
            self._newer = None

    @property
    def _draft(self) -> Path:
        return self._path.with_suffix(".base")

    def _begin(self, content: bytes, lines: bytes = b"", is_written: bool = False) -> None:
        """Begin with a new base; its log comes first, because the base makes it valid."""
        before = set(self._folder.glob("orders-*.log"))
        log = self._log_path(content[:_DIGITS])
        draft = self._draft
        if not is_written:
            draft = self._path.with_suffix(".new")
            _write_bytes(draft, content)
        _write_bytes(log, lines)
        try:
            draft.replace(self._path)
            sync_path(self._folder)
            for path in before - {log}:
                path.unlink(missing_ok=True)
        except OSError as error:
            raise error_from_os(f"{self._path} cannot be written", error) from error
        self._log = log
        self._base_size = len(content)
        self._log_size = len(lines)

    def _append(self, line: bytes) -> None:
        log = self._log
        if log is None:
            return
        try:
            with open(log, "ab", opener=private) as file:
                self._log = None  # if a part is written, the log cannot be continued
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise error_from_os(f"{log} cannot be written", error) from error
        self._log = log
        self._log_size += len(line)

    def _log_path(self, check: bytes) -> Path:
        return self._folder / f"orders-{check.decode('ascii', 'replace')[:16]}.log"


def _is_line(line: bytes) -> bool:
    """Whether a line of a log is as it was written."""
    code, _, text = line.partition(b" ")
    return code == _checksum(text)


def _encoded(orders: AgentOrders) -> bytes:
    text = json.dumps(orders.to_json(), separators=(",", ":")).encode()
    return _checksum(text) + b"\n" + text


def read_checked(path: Path) -> dict[str, Any]:
    """The object in a file with a checksum; empty if there is no file.

    Raises:
        InputError: the file is damaged.
        StorageError: it cannot be read.
    """
    content = _read_bytes(path)
    if content is None:
        return {}
    value: dict[str, Any] = json.loads(_checked(content, path)[1])
    return value


def write_checked(path: Path, value: Mapping[str, Any]) -> None:
    """Write an object with a checksum; the old file stays until the new one is on the disk.

    Raises:
        StorageError: it cannot be written.
    """
    text = json.dumps(value, separators=(",", ":")).encode()
    draft = path.with_suffix(".new")
    _write_bytes(draft, _checksum(text) + b"\n" + text)
    try:
        draft.replace(path)
        sync_path(path.parent)
    except OSError as error:
        raise error_from_os(f"{path} cannot be written", error) from error


def private(path: str, flags: int) -> int:
    """Open a file that only its owner can read."""
    return os.open(path, flags, 0o600)


def _checked(content: bytes, path: Path) -> tuple[bytes, bytes]:
    """The checksum and the text of a file."""
    check, _, text = content.partition(b"\n")
    if check != _checksum(text):
        raise damage(path)
    return check, text


def damage(path: Path) -> InputError:
    """The error that refuses a damaged file of an agent."""
    return InputError(
        f"{path} is damaged; restore it from a copy, or remove it and start the agent with --take-over"
    )


def _read_bytes(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise error_from_os(f"{path} cannot be read", error) from error


def _write_bytes(path: Path, content: bytes) -> None:
    try:
        with open(path, "wb", opener=private) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise error_from_os(f"{path} cannot be written", error) from error


def _checksum(text: bytes) -> bytes:
    return blake2b(text, digest_size=_DIGITS // 2).hexdigest().encode()

"""Reader of a log file that grows and is rotated."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

CHUNK = 256 * 1024  # bytes per read
HEAD = 64  # bytes that tell files apart
LARGEST_LINE = 64 * 1024  # bytes; the rest of a longer line is skipped


@dataclass
class LogTail:
    """Complete lines of a log file from a position on, over rotations.

    A file that was renamed is read to its end before the new one is opened. A file that was truncated is
    read from its beginning.

    Attributes:
        path: the file.
        offset: the position after the last complete line.
        inode: the file that the offset belongs to; None: none was opened.
        head: the first bytes of that file, since a new file can have the inode of a deleted one.
        gap: whether lines were missed: the file was truncated, or replaced while nobody read it.
    """

    path: Path
    offset: int = 0
    inode: int | None = None
    gap: bool = False
    head: bytes = b""
    _file: BinaryIO | None = None
    _rest: bytes = b""
    _skipping: bool = field(default=False)

    def read(self) -> list[str]:
        """The lines of the next chunk; empty: there are no more now, or the file cannot be read now."""
        try:
            if self._file is None and not self._open():
                return []
            data = self._file.read(CHUNK) if self._file is not None else b""
            if not data and self._is_replaced():
                self.close()
                return self.read() if self._open() else []
        except OSError:
            self.close()
            return []
        return list(self._lines(data))

    def skip_to_last(self, size: int) -> None:
        """Begin at the first line within the last bytes of the file."""
        found = self.path.stat()
        with self.path.open("rb") as file:
            self.head = file.read(HEAD)
        self.inode = found.st_ino
        self.offset = max(0, found.st_size - size)
        self._skipping = self.offset > 0

    def close(self) -> None:
        """Close the file; the next read opens it again."""
        if self._file is not None:
            self._file.close()
        self._file = None
        self._rest = b""

    def to_json(self) -> dict[str, Any]:
        """The position, as `resume` takes it."""
        return {"path": str(self.path), "inode": self.inode, "offset": self.offset, "head": self.head.hex()}

    def resume(self, value: Any) -> bool:
        """Continue at a position of `to_json`; False: it is of another file, or not a position."""
        if not isinstance(value, dict) or value.get("path") != str(self.path):
            return False
        inode, offset = value.get("inode"), value.get("offset")
        if not isinstance(inode, int) or not isinstance(offset, int) or offset < 0:
            return False
        try:
            self.head = bytes.fromhex(str(value.get("head")))
        except ValueError:
            return False
        self.inode, self.offset = inode, offset
        return True

    def _open(self) -> bool:
        """Open the file of the last position, under its present name, or else the file itself."""
        file = None
        if self.inode is not None:
            file = self._renamed()
            if file is None:
                self.gap = True
        if file is None:
            file = self.path.open("rb")
            self.inode = os.fstat(file.fileno()).st_ino
            self.offset = 0
        if os.fstat(file.fileno()).st_size < self.offset:  # truncated
            self.gap = True
            self.offset = 0
        self.head = file.read(HEAD)
        file.seek(self.offset)
        self._file = file
        return True

    def _renamed(self) -> BinaryIO | None:
        """The file with the inode of the last position, in the folder of the log."""
        try:
            names = sorted(self.path.parent.glob(f"{self.path.name}*"), key=lambda path: path != self.path)
        except OSError:
            return None
        for path in names[:100]:
            file = None
            try:
                if path.stat().st_ino == self.inode:
                    file = path.open("rb")
            except OSError:
                continue
            if file is not None:
                if file.read(len(self.head)) == self.head:
                    return file
                file.close()
        return None

    def _is_replaced(self) -> bool:
        """Whether the path has another file now, or the file is shorter than what was read of it."""
        if self._file is None:
            return False
        here = os.fstat(self._file.fileno())
        try:
            there = self.path.stat()
        except FileNotFoundError:
            return False  # between the two steps of a rotation
        if there.st_ino != here.st_ino:
            self.inode = None  # the old file was read to its end
            return True
        return here.st_size < self._file.tell()

    def _lines(self, data: bytes) -> Iterator[str]:
        *lines, rest = (self._rest + data).split(b"\n")
        for line in lines:
            self.offset += len(line) + 1
            if not self._skipping:
                yield line.removesuffix(b"\r").decode("utf-8", "replace")
            self._skipping = False
        self._rest = rest
        if len(rest) > LARGEST_LINE:
            self.offset += len(rest)
            self._rest = b""
            self._skipping = True

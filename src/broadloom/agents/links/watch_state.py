"""State of a subscription watch on disk: the sessions of a broker, and the log lines since then."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO
from zlib import crc32

from broadloom.storage import write_file

FORMAT = 2
MOST_BYTES = 256 << 20  # of a state that is read
LEAST_LINES = 1 << 20  # bytes of lines after which the sessions are written anew


class WatchState:
    """File with one JSON value per line: a header, one row per session, then one row per log line.

    Each line is a pair of a checksum and the value. A line is in the file before it counts, so that a process
    that is killed loses none.

    Args:
        path: the file; None: nothing is kept.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        self._base = 0
        self._bytes = 0

    def load(self) -> tuple[dict[str, Any], list[Any], list[tuple[str, str]], float] | None:
        """The header, the sessions, the lines, and the time of the last writing; None: there is none.

        Raises:
            ValueError: the file is damaged.
            OSError: it cannot be read.
        """
        if self._path is None or not self._path.exists():
            return None
        if self._path.stat().st_size > MOST_BYTES:
            raise ValueError("it is too large")
        *rows, last = self._path.read_bytes().split(b"\n")
        if _text(last[:-1]) is not None:
            raise ValueError("the end of its last line is damaged")
        # Otherwise the last line is empty, or truncated by the end of the process.
        values = [_value(row, number) for number, row in enumerate(rows, 1)]
        header = values[0] if values else None
        if not isinstance(header, dict) or header.get("format") != FORMAT:
            raise ValueError("its first line is not that of a subscription watch")
        count = header.get("sessions")
        if not isinstance(count, int) or not 0 <= count < len(values):
            raise ValueError("it lacks sessions")
        lines = [(str(kind), str(event)) for kind, event in values[count + 1 :]]
        return header, values[1 : count + 1], lines, self._path.stat().st_mtime

    def write(self, header: dict[str, Any], sessions: Iterable[Any]) -> None:
        """Replace the file by a header and sessions.

        Raises:
            BroadloomError: it cannot be written.
        """
        if self._path is None:
            return
        rows = list(sessions)
        values = [{"format": FORMAT, "sessions": len(rows)} | header, *rows]
        data = b"".join(map(_row, values))
        self.close()
        write_file(self._path, data)
        self._base = len(data)
        self._bytes = 0

    def append(self, kind: str, event: str) -> None:
        """Add a log line.

        Raises:
            OSError: it cannot be written.
        """
        if self._path is None:
            return
        if self._file is None:
            self._file = self._path.open("ab", buffering=0)
        self._bytes += self._file.write(_row([kind, event])) or 0

    def is_long(self) -> bool:
        """Whether there are so many lines that the sessions should be written anew."""
        return self._bytes > max(LEAST_LINES, 2 * self._base)

    def touch(self) -> None:
        """Note that the state was true just now."""
        if self._path is not None:
            try:
                os.utime(self._path)
            except OSError:
                return

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
        self._file = None


def _row(value: Any) -> bytes:
    """The line of a value."""
    text = json.dumps(value).encode()
    return b"[%d, %b]\n" % (crc32(text), text)


def _value(row: bytes, number: int) -> Any:
    """The value of a line, without its end."""
    text = _text(row)
    if text is None:
        raise ValueError(f"line {number} is damaged")
    return json.loads(text)


def _text(row: bytes) -> bytes | None:
    """The value of a line as text; None: it is not as it was written."""
    check, _, text = row[1:-1].partition(b", ")
    return text if check == b"%d" % crc32(text) else None

"""Reader of Mosquitto's persistence file `mosquitto.db`, versions 5 and 6 (Mosquitto 1.6 to 2.1).

The file begins with 15 fixed bytes, a checksum that is always 0, and the version of the format. Chunks
follow: a kind, a length, and as many bytes. The integers of the format are big-endian; the time at which a
session expires is written as the broker's machine stores it.

Mosquitto writes the file when it stops, every `autosave_interval` seconds (1,800 by default), and on SIGUSR1.
The file holds sessions that began without a clean start, connected or not. It holds no shared subscriptions
(`$share/...`; seen with Mosquitto 2.0.11) and no client with a clean session.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from broadloom.errors import InputError
from broadloom.formats.dump_rows import DumpFormat, DumpRow
from broadloom.model import Reason

MAGIC = b"\x00\xb5\x00mosquitto db"
VERSIONS = (5, 6)  # the lengths of chunks are wrong in older ones
NOT_IN_FILE = (
    "mosquitto.db lacks clients with a clean session and shared subscriptions ($share/...); "
    "a log with log_type subscribe shows them"
)

_SUB, _CLIENT = 5, 6
_KINDS = range(1, 7)  # configuration, message, queued message, retained, subscription, client
_HEADER = struct.Struct(">II")  # checksum, version
_CHUNK = struct.Struct(">II")  # kind, length
_SUB_FIXED = struct.Struct(">IHHBBxx")  # identifier, lengths of client and filter, QoS, options
_INTERVAL_ON = struct.Struct(">IHH")  # after the time of expiry: interval, last packet id, length of client
_CLIENT_SIZES = {5: 16, 6: 24}  # bytes before the client's id
_LATEST = 2**40  # seconds; a later time was written by a machine of the other byte order


class SavedSubscription(NamedTuple):
    """One subscription of a saved session."""

    client: str
    filter: str
    qos: int


@dataclass
class MosquittoDb:
    """The content of a persistence file, as far as it concerns subscriptions.

    Attributes:
        version: the version of the format.
        expires: the time at which each session expires, in seconds since 1970; 0: it was connected when the
            file was written, or never expires.
        subscriptions: in the order of the file.
        damage: where and how the file is damaged; None: it was read to its end.
    """

    version: int
    expires: dict[str, int] = field(default_factory=dict)
    subscriptions: list[SavedSubscription] = field(default_factory=list)
    damage: str | None = None

    def has_expired(self, client: str, now: float) -> bool:
        """Whether a session has expired; a subscription without a saved session has not."""
        return 0 < self.expires.get(client, 0) < now


def read_mosquitto_db(data: bytes) -> MosquittoDb:
    """Read a persistence file; a damaged one as far as it can be read.

    Raises:
        InputError: it is another kind of file, or its version is unknown.
    """
    start = len(MAGIC) + _HEADER.size
    if not data.startswith(MAGIC):
        raise InputError(
            "this is not a mosquitto.db: its first bytes differ; give a persistence file of Mosquitto"
        )
    if len(data) < start:
        raise InputError(
            "this mosquitto.db ends within its header; let the broker write it again (kill -USR1)"
        )
    _, version = _HEADER.unpack_from(data, len(MAGIC))
    if version not in VERSIONS:
        raise InputError(
            f"this mosquitto.db has version {version}, and 5 and 6 are known (Mosquitto 1.6 to 2.1); "
            "use the broker's log (log_type subscribe) instead"
        )
    found = MosquittoDb(version)
    at = start
    while at < len(data):
        if len(data) - at < _CHUNK.size:
            found.damage = found.damage or f"the file ends within a chunk's header, at byte {at:,}"
            return found
        kind, length = _CHUNK.unpack_from(data, at)
        begin = at + _CHUNK.size
        if kind not in _KINDS:
            found.damage = found.damage or f"byte {at:,}: a chunk of unknown kind {kind}"
            return found
        if length > len(data) - begin:
            found.damage = found.damage or f"the file ends within a chunk, at byte {at:,}"
            return found
        try:
            _read_chunk(found, kind, data[begin : begin + length])
        except (struct.error, IndexError, UnicodeDecodeError):
            found.damage = (
                found.damage or f"byte {at:,}: a chunk contradicts its length, or has text that is not UTF-8"
            )
        at = begin + length
    return found


def _read_chunk(found: MosquittoDb, kind: int, chunk: bytes) -> None:
    if kind == _CLIENT:
        client, expires = _client(found.version, chunk)
        found.expires[client] = expires
    elif kind == _SUB:
        found.subscriptions.append(_subscription(chunk))


def _client(version: int, chunk: bytes) -> tuple[str, int]:
    """The client's id, and the time at which its session expires."""
    _, _, size = _INTERVAL_ON.unpack_from(chunk, 8)
    expires = int.from_bytes(chunk[:8], "little")
    if expires > _LATEST:
        expires = int.from_bytes(chunk[:8], "big")
    return _text(chunk, _CLIENT_SIZES[version], size), expires


def _subscription(chunk: bytes) -> SavedSubscription:
    _, client_size, filter_size, qos, _ = _SUB_FIXED.unpack_from(chunk)
    at = _SUB_FIXED.size
    client = _text(chunk, at, client_size)
    return SavedSubscription(client, _text(chunk, at + client_size, filter_size), qos)


def _text(chunk: bytes, at: int, size: int) -> str:
    if at + size > len(chunk):
        raise IndexError("a text exceeds its chunk")
    return chunk[at : at + size].decode()


def parse(data: bytes, now: float | None = None) -> Iterator[DumpRow]:
    r"""One row per subscription; those of expired sessions have a reason.

    Args:
        data: the content of the file.
        now: the time at which sessions have expired or not; None: the present.

    Examples:
        >>> chunk = _SUB_FIXED.pack(0, 2, 3, 1, 0) + b"c1t/+"
        >>> file = MAGIC + _HEADER.pack(0, 6) + _CHUNK.pack(_SUB, len(chunk)) + chunk
        >>> [row[:4] for row in parse(file)]
        [('c1 1 t/+', None, 'c1', 't/+')]
        >>> [row.reason for row in parse(MAGIC + _HEADER.pack(0, 9))]
        ['version 9 of mosquitto.db is unknown: use the log']
    """
    try:
        found = read_mosquitto_db(data)
    except InputError:
        header = data[len(MAGIC) : len(MAGIC) + _HEADER.size]
        whole = data.startswith(MAGIC) and len(header) == _HEADER.size
        unknown = f"version {int.from_bytes(header[4:])} of mosquitto.db is unknown: use the log"
        yield DumpRow(data[:64].decode("ascii", "backslashreplace"), reason=unknown if whole else Reason.CUT)
        return
    at = time.time() if now is None else now
    for client, topic_filter, qos in found.subscriptions:
        fault = Reason.EXPIRED if found.has_expired(client, at) else None
        yield DumpRow(f"{client} {qos} {topic_filter}", None, client, topic_filter, fault)
    if found.damage is not None:
        yield DumpRow(found.damage, reason=Reason.CUT)


FORMAT = DumpFormat(
    "mosquitto-db",
    "Mosquitto's persistence file mosquitto.db",
    parse,
    lambda head: head.startswith("\x00") and head[2:].startswith("\x00mosquitto db"),
    binary=True,
)

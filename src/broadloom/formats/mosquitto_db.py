"""Reader of Mosquitto's persistence file `mosquitto.db`, versions 5 and 6 (Mosquitto 1.6 to 2.1).

The file begins with 15 fixed bytes, a checksum that is always 0, and the version of the format. Chunks
follow: a kind, a length, and as many bytes. The integers of the format are big-endian; the time at which a
session expires is written as the broker's machine stores it.

Mosquitto writes the file when it stops, every `autosave_interval` seconds (1,800 by default), and on SIGUSR1.
The file holds sessions that began without a clean start, connected or not. It holds no shared subscriptions
(`$share/...`; seen with Mosquitto 2.0.11) and no client with a clean session.
"""

from __future__ import annotations

import io
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO, NamedTuple

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
_LONGEST = 2**18  # bytes of a chunk that are read: two texts of at most 64 KiB
_BLOCK_BYTES = 2**20
_LATEST = 2**40  # seconds; a later time was written by a machine of the other byte order


class SavedSubscription(NamedTuple):
    """One subscription of a saved session."""

    client: str
    filter: str
    qos: int


class SavedSession(NamedTuple):
    """A saved session: its client, and when it expires (as in `MosquittoDb.expires`)."""

    client: str
    expires: int


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
        return _has_expired(self.expires.get(client, 0), now)


def _has_expired(expires: int, now: float) -> bool:
    return 0 < expires < now


def read_mosquitto_db(data: bytes | IO[bytes]) -> MosquittoDb:
    """Read a persistence file, or its bytes; a damaged one as far as it can be read.

    Raises:
        InputError: it is another kind of file, or its version is unknown.
    """
    file = io.BytesIO(data) if isinstance(data, bytes) else data
    found = MosquittoDb(read_version(file))
    for one in _records(file, found.version):
        if isinstance(one, SavedSubscription):
            found.subscriptions.append(one)
        elif isinstance(one, SavedSession):
            found.expires[one.client] = one.expires
        else:
            found.damage = found.damage or one
    return found


def read_version(file: IO[bytes]) -> int:
    """The version of a persistence file; the file is then at its first chunk.

    Raises:
        InputError: it is another kind of file, or its version is unknown.
    """
    file.seek(0)
    head = file.read(len(MAGIC) + _HEADER.size)
    if not head.startswith(MAGIC):
        raise InputError(
            "this is not a mosquitto.db: its first bytes differ; give a persistence file of Mosquitto"
        )
    if len(head) < len(MAGIC) + _HEADER.size:
        raise InputError(
            "this mosquitto.db ends within its header; let the broker write it again (kill -USR1)"
        )
    _, version = _HEADER.unpack_from(head, len(MAGIC))
    if version not in VERSIONS:
        raise InputError(
            f"this mosquitto.db has version {version}, and 5 and 6 are known (Mosquitto 1.6 to 2.1); "
            "use the broker's log (log_type subscribe) instead"
        )
    return int(version)


def _records(file: IO[bytes], version: int) -> Iterator[SavedSubscription | SavedSession | str]:
    """The subscriptions and sessions of a file from its first chunk on, and what is damaged, as text."""
    at = len(MAGIC) + _HEADER.size
    while header := file.read(_CHUNK.size):
        if len(header) < _CHUNK.size:
            yield f"the file ends within a chunk's header, at byte {at:,}"
            return
        kind, length = _CHUNK.unpack(header)
        if kind not in _KINDS:
            yield f"byte {at:,}: a chunk of unknown kind {kind}"
            return
        wanted = min(length, _LONGEST) if kind in (_SUB, _CLIENT) else 0
        chunk = file.read(wanted)
        if len(chunk) < wanted or not _skip(file, length - wanted):
            yield f"the file ends within a chunk, at byte {at:,}"
            return
        try:
            if kind == _CLIENT:
                yield _session(version, chunk)
            elif kind == _SUB:
                yield _subscription(chunk)
        except (struct.error, IndexError, UnicodeDecodeError):
            yield f"byte {at:,}: a chunk contradicts its length, or has text that is not UTF-8"
        at += _CHUNK.size + length


def _skip(file: IO[bytes], count: int) -> bool:
    """Skip so many bytes, such as the content of a message; returns whether the file has them."""
    while count > 0:
        block = len(file.read(min(count, _BLOCK_BYTES)))
        if not block:
            return False
        count -= block
    return True


def _session(version: int, chunk: bytes) -> SavedSession:
    _, _, size = _INTERVAL_ON.unpack_from(chunk, 8)
    expires = int.from_bytes(chunk[:8], "little")
    if expires > _LATEST:
        expires = int.from_bytes(chunk[:8], "big")
    return SavedSession(_text(chunk, _CLIENT_SIZES[version], size), expires)


def _subscription(chunk: bytes) -> SavedSubscription:
    _, client_size, filter_size, qos, _ = _SUB_FIXED.unpack_from(chunk)
    at = _SUB_FIXED.size
    client = _text(chunk, at, client_size)
    return SavedSubscription(client, _text(chunk, at + client_size, filter_size), qos)


def _text(chunk: bytes, at: int, size: int) -> str:
    if at + size > len(chunk):
        raise IndexError("a text exceeds its chunk")
    return chunk[at : at + size].decode()


def parse(file: IO[bytes], now: float | None = None) -> Iterator[DumpRow]:
    r"""One row per subscription; those of expired sessions have a reason.

    The file is read twice: a session can come after its subscriptions. Only the names of expired sessions are
    kept.

    Args:
        file: the open file.
        now: the time at which sessions have expired or not; None: the present.

    Examples:
        >>> chunk = _SUB_FIXED.pack(0, 2, 3, 1, 0) + b"c1t/+"
        >>> data = MAGIC + _HEADER.pack(0, 6) + _CHUNK.pack(_SUB, len(chunk)) + chunk
        >>> [row[:4] for row in parse(io.BytesIO(data))]
        [('c1 1 t/+', None, 'c1', 't/+')]
        >>> [row.reason for row in parse(io.BytesIO(MAGIC + _HEADER.pack(0, 9)))]
        ['version 9 of mosquitto.db is unknown: use the log']
    """
    try:
        version = read_version(file)
    except InputError:
        file.seek(0)
        data = file.read(64)
        header = data[len(MAGIC) : len(MAGIC) + _HEADER.size]
        whole = data.startswith(MAGIC) and len(header) == _HEADER.size
        unknown = f"version {int.from_bytes(header[4:])} of mosquitto.db is unknown: use the log"
        yield DumpRow(data.decode("ascii", "backslashreplace"), reason=unknown if whole else Reason.CUT)
        return
    at = time.time() if now is None else now
    expired: set[str] = set()
    for one in _records(file, version):
        if isinstance(one, SavedSession):
            (expired.add if _has_expired(one.expires, at) else expired.discard)(one.client)
    read_version(file)
    damage = None
    for one in _records(file, version):
        if isinstance(one, SavedSubscription):
            fault = Reason.EXPIRED if one.client in expired else None
            yield DumpRow(f"{one.client} {one.qos} {one.filter}", None, one.client, one.filter, fault)
        elif isinstance(one, str):
            damage = damage or one
    if damage is not None:
        yield DumpRow(damage, reason=Reason.CUT)


FORMAT = DumpFormat(
    "mosquitto-db",
    "Mosquitto's persistence file mosquitto.db",
    parse,
    lambda head: head.startswith("\x00") and head[2:].startswith("\x00mosquitto db"),
    binary=True,
)

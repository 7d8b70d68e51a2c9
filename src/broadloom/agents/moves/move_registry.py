"""State of all moves and clients, and its write-ahead journal (paper 5, section V).

The registry changes only by `apply`, and changes are journaled first, so a replay restores it.
"""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, get_args

from broadloom.errors import InputError, StorageError
from broadloom.mqtt.topic_filters import QosFilters
from broadloom.storage import JournalRecord, RecordJournal, create_journal, lock_folder, private_folder

log = logging.getLogger("broadloom.agents.moves")

KEPT = 10_000  # number of ended moves, and of abandoned sessions, that are kept
FILE = "moves"
KIND = "changes"  # of all records
MOST_RECORDS, MOST_BYTES = 100_000, 64 * 2**20  # written since the last compaction
COMPACTION_SECONDS = 60.0  # between attempts to compact the journal


MOVING, ORDINARY = "moving", "ordinary"  # kinds of clients
# Notes of moves in state `REPLICATED`: the client is being sent away from home, and it is on its way.
LEAVING = "the client has been ordered to move"
COMING = "waiting for the client to connect"


class MoveState(StrEnum):
    """State of a move; the foreign broker serves the client from `CONNECTED` on, its home before that."""

    REQUESTED = "requested"
    STAYING = "staying"
    ACCEPTED = "accepted"
    REPLICATED = "replicated"
    CONNECTED = "connected"
    REDIRECTED = "redirected"
    DECLINED = "declined"
    EXPIRED = "expired"
    FAILED = "failed"
    CANCELLED = "cancelled"


NEXT: dict[MoveState, frozenset[MoveState]] = {
    MoveState.REQUESTED: frozenset(
        {MoveState.STAYING, MoveState.ACCEPTED, MoveState.CONNECTED, MoveState.DECLINED, MoveState.EXPIRED}
        | {MoveState.FAILED, MoveState.CANCELLED}
    ),
    MoveState.STAYING: frozenset(
        {
            MoveState.REQUESTED,
            MoveState.ACCEPTED,
            MoveState.CONNECTED,
            MoveState.DECLINED,
            MoveState.FAILED,
            MoveState.CANCELLED,
        }
    ),
    MoveState.ACCEPTED: frozenset(
        {MoveState.REPLICATED, MoveState.CONNECTED, MoveState.FAILED, MoveState.CANCELLED}
    ),
    MoveState.REPLICATED: frozenset({MoveState.CONNECTED, MoveState.FAILED, MoveState.CANCELLED}),
    MoveState.CONNECTED: frozenset({MoveState.REDIRECTED, MoveState.FAILED}),
}
# States in which the foreign broker can have a session that the client does not use yet.
PREPARED = frozenset({MoveState.ACCEPTED, MoveState.REPLICATED})


@dataclass(frozen=True)
class Move:
    """Move of a client from its home broker to a foreign one.

    Attributes:
        id: 16 random hexadecimal digits.
        client: the client's name.
        home: the broker that served it when the move was requested.
        foreign: the broker to move to.
        state: the state of the move.
        since: the time of this state, in seconds since 1970.
        until: while staying: the time from which the client can be asked again.
        key: the operator's key; a repeated request with this key returns this move.
        note: why it has ended, or what it waits for.
    """

    id: str
    client: str
    home: str
    foreign: str
    state: MoveState
    since: float
    until: float = 0.0
    key: str = ""
    note: str = ""

    @property
    def is_over(self) -> bool:
        """Whether it has reached a final state."""
        return self.state not in NEXT

    def to(self, state: MoveState, now: float, note: str = "", until: float = 0.0) -> Move:
        """The move in its next state.

        Raises:
            InputError: a move cannot go from its state to this one.

        Examples:
            >>> move = Move("0" * 16, "meter-1", "rome", "oslo", MoveState.REQUESTED, since=0.0)
            >>> move.to(MoveState.ACCEPTED, now=1.0).state
            <MoveState.ACCEPTED: 'accepted'>
            >>> move.to(MoveState.REDIRECTED, now=1.0)
            Traceback (most recent call last):
            broadloom.errors.InputError: a move cannot go from requested to redirected
        """
        if state not in NEXT.get(self.state, ()):
            raise InputError(f"a move cannot go from {self.state} to {state}")
        return replace(self, state=state, since=now, note=note, until=until)


@dataclass(frozen=True)
class Stray:
    """Session of a client at a broker that does not serve it, to be emptied and ended.

    Attributes:
        client: the client's name.
        broker: the broker.
        since: the time when the client left it, in seconds since 1970.
        forward: whether its queue is to be forwarded; false if the client was never connected there.
        token: the payload of the mark at the end of the queue.
        last: whether the agent has ended it once already. A broker that crashes right afterwards restores the
            session from its disk, so each session is ended a second time, one TTL later.
    """

    client: str
    broker: str
    since: float
    forward: bool
    token: str
    last: bool = False


def new_id() -> str:
    """A random id."""
    return secrets.token_hex(8)


@dataclass(frozen=True)
class Resident:
    """A client and the broker that serves it.

    Attributes:
        client: its name.
        broker: its home broker.
        filters: its topic filters.
        place: its position in the network, if known.
        since: the time when it arrived there, in seconds since 1970.
        sends: the topics that it publishes to.
        heard: the time of its last message, in seconds since 1970; updated daily, so up to a day too early.
        kind: `moving`, if it takes part in its moves, or `ordinary`.
        keeps: of an ordinary client: whether its session outlives its connection; None: not known.
    """

    client: str
    broker: str
    filters: QosFilters
    place: tuple[float, ...] | None
    since: float
    sends: tuple[str, ...] = ()
    heard: float = 0.0
    kind: str = MOVING
    keeps: bool | None = True

    @property
    def needs(self) -> set[str]:
        """The filters that links must carry to and from its broker."""
        return {text for text, _ in self.filters} | set(self.sends)


@dataclass(frozen=True)
class Drained:
    """A stray session was emptied and ended."""

    client: str
    broker: str


@dataclass(frozen=True)
class Abandoned:
    """A stray session that could not be emptied; the agent no longer tries.

    Attributes:
        client: the client's name.
        broker: the broker.
        since: the time when it was abandoned, in seconds since 1970.
        forward: whether its queue was to be forwarded.
    """

    client: str
    broker: str
    since: float
    forward: bool


@dataclass(frozen=True)
class Numbered:
    """The highest number of a client's messages."""

    client: str
    number: int


@dataclass(frozen=True)
class Floor:
    """The highest number of all forgotten clients; a lower number of an unknown client is a replay."""

    number: int


@dataclass(frozen=True)
class Forgotten:
    """A client that is no longer known."""

    client: str
    broker: str


Change = Resident | Move | Stray | Drained | Abandoned | Numbered | Floor | Forgotten
_KINDS: Mapping[str, type[Any]] = {kind.__name__.lower(): kind for kind in get_args(Change)}


@dataclass
class Registry:
    """The agent's persistent state.

    Attributes:
        residents: the clients by name.
        numbers: the highest number received from each client.
        moves: the moves by id, in order of their request.
        strays: stray sessions by client and broker.
        abandoned: abandoned sessions by client and broker, until the client is back there.
        floor: the highest number of all forgotten clients.
    """

    residents: dict[str, Resident] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    moves: dict[str, Move] = field(default_factory=dict)
    strays: dict[tuple[str, str], Stray] = field(default_factory=dict)
    abandoned: dict[tuple[str, str], Abandoned] = field(default_factory=dict)
    floor: int = -1
    _active: dict[str, str] = field(default_factory=dict)
    _keys: dict[str, str] = field(default_factory=dict)

    def apply(self, changes: Iterable[Change]) -> None:
        """Apply journaled changes."""
        for change in changes:
            match change:
                case Resident():
                    self.residents[change.client] = change
                    self.abandoned.pop((change.client, change.broker), None)
                case Move():
                    self._apply_move(change)
                case Stray():
                    self.strays[change.client, change.broker] = change
                    self.abandoned.pop((change.client, change.broker), None)
                case Drained():
                    self.strays.pop((change.client, change.broker), None)
                case Abandoned():
                    self.strays.pop((change.client, change.broker), None)
                    self.abandoned[change.client, change.broker] = change
                case Numbered():
                    self.numbers[change.client] = change.number
                case Floor():
                    self.floor = change.number
                case Forgotten():
                    self.residents.pop(change.client, None)
                    self.numbers.pop(change.client, None)

    def _apply_move(self, move: Move) -> None:
        self.moves[move.id] = move
        if move.key:
            self._keys[move.key] = move.id
        if not move.is_over:
            self._active[move.client] = move.id
        elif self._active.get(move.client) == move.id:
            del self._active[move.client]

    def active_move(self, client: str) -> Move | None:
        """The active move of a client."""
        found = self._active.get(client)
        return None if found is None else self.moves[found]

    def active_moves(self) -> list[Move]:
        """All active moves."""
        return [self.moves[move] for move in self._active.values()]

    def strays_of(self, client: str) -> list[Stray]:
        """The stray sessions of a client."""
        return [stray for stray in self.strays.values() if stray.client == client]

    def ordinary_homes(self) -> list[tuple[str, str]]:
        """The ordinary clients that were moved or are moving, with the brokers that the map must have.

        A client that was sent away from home stays sent away until its move goes on.
        """
        return [
            (one.client, one.broker)
            for one in self.residents.values()
            if one.kind == ORDINARY and one.client not in self._active
        ]

    def is_moving(self, client: str) -> bool:
        """Whether a client has an active move, or a queue that is not forwarded yet."""
        return client in self._active or not all(stray.last for stray in self.strays_of(client))

    def move_of_key(self, key: str) -> Move | None:
        """The move with an operator's key."""
        found = self._keys.get(key)
        return None if found is None else self.moves[found]

    def number_of(self, client: str) -> int:
        """The number that the next message of a client must exceed."""
        return self.numbers.get(client, self.floor)

    def forgetting(self, before: float, clock: int) -> list[Change]:
        """The changes that forget the clients last heard before a time, except for those that are moving.

        Args:
            before: the time, in seconds since 1970.
            clock: clients with a higher number are kept; a higher floor would block new clients.
        """
        under_way = {*self._active, *(client for client, _ in self.strays)}
        silent = [
            Forgotten(one.client, one.broker)
            for one in self.residents.values()
            if one.kind == MOVING  # the map needs the others for ever
            and one.heard < before
            and one.client not in under_way
            and self.number_of(one.client) <= clock
        ]
        numbers = [self.number_of(one.client) for one in silent]
        return [Floor(max(self.floor, *numbers)), *silent] if silent else []

    def changes(self) -> list[Change]:
        """The shortest list of changes that leads to this state."""
        numbers = [Numbered(client, number) for client, number in self.numbers.items()]
        clients: list[Change] = [Floor(self.floor), *self.residents.values(), *numbers]
        return [*clients, *self.moves.values(), *self.strays.values(), *self.abandoned.values()]

    def forget_old(self) -> None:
        """Remove ended moves and abandoned sessions, except for the last `KEPT` of each."""
        of_forgotten = [key for key in self.abandoned if key[0] not in self.residents]
        for key in of_forgotten + list(self.abandoned)[:-KEPT]:
            self.abandoned.pop(key, None)
        for move in [move for move in self.moves.values() if move.is_over][:-KEPT]:
            del self.moves[move.id]
            self._keys.pop(move.key, None)


def plain(change: Change) -> list[Any]:
    """A change as JSON values.

    Examples:
        >>> plain(Drained("meter-1", "rome"))
        ['drained', {'client': 'meter-1', 'broker': 'rome'}]
    """
    return [type(change).__name__.lower(), asdict(change)]


def from_plain(values: list[Any]) -> Change:
    """The change that JSON values describe.

    Examples:
        >>> from_plain(["drained", {"client": "meter-1", "broker": "rome"}])
        Drained(client='meter-1', broker='rome')
    """
    kind, fields = values
    if kind == "move":
        fields = fields | {"state": MoveState(fields["state"])}
    elif kind == "resident":
        return resident_of(fields)
    change: Change = _KINDS[kind](**fields)
    return change


def resident_of(fields: Mapping[str, Any]) -> Resident:
    """The client that JSON values describe."""
    place = fields["place"]
    filters = tuple((text, qos) for text, qos in fields["filters"])
    kept = dict(fields) | {"filters": filters, "place": None if place is None else tuple(place)}
    kept["sends"] = tuple(fields["sends"])
    return Resident(**kept)


class MoveJournal:
    """Write-ahead journal of the move agent; a folder has one open journal at a time.

    Args:
        folder: its folder; created if it does not exist.

    Attributes:
        registry: the state after its records.

    Raises:
        InputError: the path is not a folder, another agent has the journal, or it is damaged.
        StorageError: the folder or the journal cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        try:
            private_folder(folder)  # clients' filters are private
        except (FileExistsError, NotADirectoryError) as error:
            raise InputError(f"the journal cannot be in {folder}: {error.strerror}; give a folder") from error
        except OSError as error:
            raise StorageError(f"the journal cannot be in {folder}: {error.strerror}") from error
        self._lock = lock_folder(folder)
        self._path = folder / FILE
        self._records: RecordJournal | None = None
        self._kept = self._size = 0  # records and bytes of the file when it was opened
        self._is_overdue = False  # a compaction has failed
        self._next_attempt = 0.0  # to compact, by the monotonic clock
        self.registry = Registry()
        try:
            self._replay(self._open())
            self.compact()
        except BaseException:
            self.close()
            raise

    def append(self, changes: Sequence[Change]) -> None:
        """Write changes, all or none, and apply them to the registry.

        Raises:
            StorageError: they cannot be written.
        """
        try:
            records = self._opened()
            records.append(KIND, {"changes": [plain(change) for change in changes]})
        except InputError as error:  # the file was damaged meanwhile
            raise StorageError(str(error)) from error
        self.registry.apply(changes)
        # The second limit grows with the state, so that a large file is not compacted all the time.
        is_long = len(records) >= self._kept + MOST_RECORDS or records.new_bytes > max(self._size, MOST_BYTES)
        if is_long or self._is_overdue:
            self.try_to_compact()

    def try_to_compact(self) -> None:
        """Compact the journal; if that fails, it stays as it is, and a later change tries again."""
        if time.monotonic() < self._next_attempt:
            return
        try:
            self.compact()
            self._is_overdue = False
        except (StorageError, InputError) as error:
            if not self._is_overdue:
                log.warning("the journal cannot be compacted yet, and grows: %s", error)
            self._is_overdue = True
            self._next_attempt = time.monotonic() + COMPACTION_SECONDS

    @property
    def position(self) -> int:
        """The position of the last record; positions rise for ever."""
        return self._opened().position

    def compact(self) -> None:
        """Write a new file without outdated records; the old one stays until the new one is on the disk."""
        self.registry.forget_old()
        changes = self.registry.changes()
        first = self.position + 1
        self._close_records()
        bodies = enumerate(({"changes": [plain(change)]} for change in changes), start=first)
        create_journal(self._path, [JournalRecord(position, KIND, body) for position, body in bodies])
        self._open()

    def close(self) -> None:
        """Close the journal."""
        self._close_records()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _opened(self) -> RecordJournal:
        """The open file; a compaction that failed has closed it."""
        return self._open() if self._records is None else self._records

    def _open(self) -> RecordJournal:
        """Open the file; only its owner can read it."""
        records = RecordJournal(self._path)
        try:
            self._path.chmod(0o600)  # SQLite gives the file that it keeps next to it the same mode
            self._size = self._path.stat().st_size
        except OSError as error:
            records.close()
            raise StorageError(f"{self._path} cannot be opened: {error.strerror}") from error
        self._records = records
        self._kept = len(records)
        return records

    def _close_records(self) -> None:
        if self._records is not None:
            self._records.close()
            self._records = None

    def _replay(self, records: RecordJournal) -> None:
        """Apply the records of the file."""
        for record in records.records():
            try:
                self.registry.apply([from_plain(values) for values in record.body["changes"]])
            except (ValueError, TypeError, KeyError) as error:
                raise InputError(
                    f"{self._path}, position {record.position}: a record of another version: {error!r:.80}"
                ) from error

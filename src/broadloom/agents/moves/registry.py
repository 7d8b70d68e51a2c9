"""What the agent knows: who is where, which moves are under way, which sessions are to be emptied.

It changes only by `apply`, and what is applied is journaled first, so that a replay leads to the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, get_args

from broadloom.agents.moves.control import Filters
from broadloom.agents.moves.move import Move, State, Stray

KEPT = 10_000  # of the moves that are over, and of the sessions that were given up


@dataclass(frozen=True)
class Resident:
    """A client and the broker that serves it.

    Attributes:
        client: its name.
        broker: its home.
        filters: what it wants.
        place: where it is, if it tells.
        since: when it came there.
        sends: the topics that it publishes to.
        heard: when it was heard of, in seconds since 1970; up to a day before it really was last.
    """

    client: str
    broker: str
    filters: Filters
    place: tuple[float, ...] | None
    since: float
    sends: tuple[str, ...] = ()
    heard: float = 0.0

    @property
    def needs(self) -> set[str]:
        """What links must carry to and from its broker."""
        return {text for text, _ in self.filters} | set(self.sends)


@dataclass(frozen=True)
class Drained:
    """A stray session is gone."""

    client: str
    broker: str


@dataclass(frozen=True)
class Abandoned:
    """A stray session could not be emptied, and is left as it is.

    Attributes:
        client: whose.
        broker: where.
        since: when it was given up, in seconds since 1970.
        forward: whether what waits there belongs to the client.
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
    """The highest number of all who were forgotten: who is not known must be above it, or it is a replay."""

    number: int


@dataclass(frozen=True)
class Forgotten:
    """A client is no longer known, nor that a broker serves it."""

    client: str
    broker: str


Change = Resident | Move | Stray | Drained | Abandoned | Numbered | Floor | Forgotten
_KINDS: Mapping[str, type[Any]] = {kind.__name__.lower(): kind for kind in get_args(Change)}


@dataclass
class Registry:
    """Everything that the agent keeps over its crash.

    Attributes:
        residents: by client.
        numbers: the highest number heard from each client.
        moves: by id, in the order in which they were asked for.
        strays: by client and broker.
        abandoned: sessions that were given up, by client and broker, until the client is back there.
        floor: the highest number of all who were forgotten.
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
        """Take in changes that are on the disk."""
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
        """The move of a client that is under way."""
        found = self._active.get(client)
        return None if found is None else self.moves[found]

    def active_moves(self) -> list[Move]:
        """All moves that are under way."""
        return [self.moves[move] for move in self._active.values()]

    def strays_of(self, client: str) -> list[Stray]:
        """The sessions of a client that are to be ended."""
        return [stray for stray in self.strays.values() if stray.client == client]

    def is_moving(self, client: str) -> bool:
        """Whether a move of a client is under way, or what it left behind still waits for it."""
        return client in self._active or not all(stray.last for stray in self.strays_of(client))

    def move_of_key(self, key: str) -> Move | None:
        """The move that the operator calls so."""
        found = self._keys.get(key)
        return None if found is None else self.moves[found]

    def number_of(self, client: str) -> int:
        """The number that the next message of a client must be above."""
        return self.numbers.get(client, self.floor)

    def forgetting(self, before: float, clock: int) -> list[Change]:
        """What forgets all clients that were last heard of before a moment, but for those under way.

        Args:
            before: the moment, in seconds since 1970.
            clock: the highest number to forget: a higher floor would be in the way of clients that come.
        """
        under_way = {*self._active, *(client for client, _ in self.strays)}
        silent = [
            Forgotten(one.client, one.broker)
            for one in self.residents.values()
            if one.heard < before and one.client not in under_way and self.number_of(one.client) <= clock
        ]
        numbers = [self.number_of(one.client) for one in silent]
        return [Floor(max(self.floor, *numbers)), *silent] if silent else []

    def changes(self) -> list[Change]:
        """The fewest changes that lead here from nothing."""
        numbers = [Numbered(client, number) for client, number in self.numbers.items()]
        clients: list[Change] = [Floor(self.floor), *self.residents.values(), *numbers]
        return [*clients, *self.moves.values(), *self.strays.values(), *self.abandoned.values()]

    def forget_old(self) -> None:
        """Forget moves that are over and sessions that were given up, but for the last ones."""
        lost = [key for key in self.abandoned if key[0] not in self.residents]
        for key in lost + list(self.abandoned)[:-KEPT]:
            self.abandoned.pop(key, None)
        for move in [move for move in self.moves.values() if move.is_over][:-KEPT]:
            del self.moves[move.id]
            self._keys.pop(move.key, None)


def plain(change: Change) -> list[Any]:
    """A change as JSON has it.

    Examples:
        >>> plain(Drained("meter-1", "rome"))
        ['drained', {'client': 'meter-1', 'broker': 'rome'}]
    """
    return [type(change).__name__.lower(), asdict(change)]


def from_plain(values: list[Any]) -> Change:
    """A change as it was written.

    Examples:
        >>> from_plain(["drained", {"client": "meter-1", "broker": "rome"}])
        Drained(client='meter-1', broker='rome')
    """
    kind, fields = values
    if kind == "move":
        fields = fields | {"state": State(fields["state"])}
    elif kind == "resident":
        return resident_of(fields)
    change: Change = _KINDS[kind](**fields)
    return change


def resident_of(fields: Mapping[str, Any]) -> Resident:
    """A client as JSON has it."""
    place, filters = fields["place"], tuple((text, qos) for text, qos in fields["filters"])
    kept = dict(fields) | {"filters": filters, "place": None if place is None else tuple(place)}
    kept["sends"] = tuple(fields["sends"])
    return Resident(**kept)

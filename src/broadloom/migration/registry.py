"""What the agent knows: who is where, which moves are under way, which sessions are to be emptied.

It changes only by `apply`, and what is applied is journaled first, so that a replay leads to the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from broadloom.migration.control import Filters
from broadloom.migration.move import Move, State, Stray

KEPT = 10_000  # of the moves that are over


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
    """

    client: str
    broker: str
    filters: Filters
    place: tuple[float, ...] | None
    since: float
    sends: tuple[str, ...] = ()

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
class Numbered:
    """The highest number of a client's messages."""

    client: str
    number: int


Change = Resident | Move | Stray | Drained | Numbered
_KINDS: Mapping[str, type[Any]] = {
    kind.__name__.lower(): kind for kind in (Resident, Move, Stray, Drained, Numbered)
}


@dataclass
class Registry:
    """Everything that the agent keeps over its crash.

    Attributes:
        residents: by client.
        numbers: the highest number heard from each client.
        moves: by id, in the order in which they were asked for.
        strays: by client and broker.
    """

    residents: dict[str, Resident] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    moves: dict[str, Move] = field(default_factory=dict)
    strays: dict[tuple[str, str], Stray] = field(default_factory=dict)
    _active: dict[str, str] = field(default_factory=dict)
    _keys: dict[str, str] = field(default_factory=dict)

    def apply(self, changes: Iterable[Change]) -> None:
        """Take in changes that are on the disk."""
        for change in changes:
            match change:
                case Resident():
                    self.residents[change.client] = change
                case Move():
                    self._apply_move(change)
                case Stray():
                    self.strays[change.client, change.broker] = change
                case Drained():
                    self.strays.pop((change.client, change.broker), None)
                case Numbered():
                    self.numbers[change.client] = change.number

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

    def changes(self) -> list[Change]:
        """The fewest changes that lead here from nothing."""
        numbers = [Numbered(client, number) for client, number in self.numbers.items()]
        return [*self.residents.values(), *numbers, *self.moves.values(), *self.strays.values()]

    def forget_old(self) -> None:
        """Forget moves that are over, but for the last ones."""
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

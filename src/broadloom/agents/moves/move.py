"""The states of a move, and which may follow which (paper 5, section V)."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from enum import StrEnum

from broadloom.errors import InputError


class State(StrEnum):
    """How far a move is; from `CONNECTED` on the foreign broker serves the client, before that its home."""

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


NEXT: dict[State, frozenset[State]] = {
    State.REQUESTED: frozenset(
        {State.STAYING, State.ACCEPTED, State.CONNECTED, State.DECLINED, State.EXPIRED}
        | {State.FAILED, State.CANCELLED}
    ),
    State.STAYING: frozenset(
        {State.REQUESTED, State.ACCEPTED, State.CONNECTED, State.DECLINED, State.FAILED, State.CANCELLED}
    ),
    State.ACCEPTED: frozenset({State.REPLICATED, State.CONNECTED, State.FAILED, State.CANCELLED}),
    State.REPLICATED: frozenset({State.CONNECTED, State.FAILED, State.CANCELLED}),
    State.CONNECTED: frozenset({State.REDIRECTED, State.FAILED}),
}
# States in which the foreign broker may have a session of the client that it does not use yet.
PREPARED = frozenset({State.ACCEPTED, State.REPLICATED})


@dataclass(frozen=True)
class Move:
    """A client on its way from its home broker to a foreign one.

    Attributes:
        id: 16 hexadecimal digits that nobody can guess.
        client: who moves.
        home: the broker that served it when it was asked.
        foreign: the broker that it is asked to move to.
        state: how far it is.
        since: when it came into this state, in seconds since 1970.
        until: while staying: when it may be asked again.
        key: what the operator calls it, so that asking twice makes one move.
        note: why it ended as it did, or what it waits for.
    """

    id: str
    client: str
    home: str
    foreign: str
    state: State
    since: float
    until: float = 0.0
    key: str = ""
    note: str = ""

    @property
    def is_over(self) -> bool:
        """Whether nothing more happens to it."""
        return self.state not in NEXT

    def to(self, state: State, now: float, note: str = "", until: float = 0.0) -> Move:
        """The move in its next state.

        Raises:
            InputError: this state does not follow.

        Examples:
            >>> move = Move("0" * 16, "meter-1", "rome", "oslo", State.REQUESTED, since=0.0)
            >>> move.to(State.ACCEPTED, now=1.0).state
            <State.ACCEPTED: 'accepted'>
            >>> move.to(State.REDIRECTED, now=1.0)
            Traceback (most recent call last):
            broadloom.errors.InputError: a move that is requested does not become redirected
        """
        if state not in NEXT.get(self.state, ()):
            raise InputError(f"a move that is {self.state} does not become {state}")
        return replace(self, state=state, since=now, note=note, until=until)


@dataclass(frozen=True)
class Stray:
    """A session of a client at a broker that does not serve it, which is to be emptied and ended.

    Attributes:
        client: whose.
        broker: where.
        since: when the client left it, in seconds since 1970.
        forward: whether what waits there belongs to the client; not if the client never was there.
        token: marks the last message that waited there.
        last: whether it has been ended before; a broker that dies right then comes back with the session that
            it had saved, so a session is ended once more when the broker has saved that it is gone.
    """

    client: str
    broker: str
    since: float
    forward: bool
    token: str
    last: bool = False


def new_id() -> str:
    """An id that nobody can guess."""
    return secrets.token_hex(8)

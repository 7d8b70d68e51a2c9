"""A link: a client at each of two brokers, and a lane each way between them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from pathlib import Path

from broadloom.agents.links.lane import Lane
from broadloom.agents.links.session import Door, Owner, Session, limits
from broadloom.agents.links.slots import Slots
from broadloom.deployment.deployment_inputs import link_name, safe
from broadloom.deployment.wiring import Hop
from broadloom.mqtt.packets import PUBCOMP, PUBREC, Publish, Welcome
from broadloom.mqtt.reserved_topics import OWN

LOG = logging.getLogger("broadloom.live")
PROBE = f"{OWN}probe"

Admit = Callable[[Hop, Publish], Publish | None]
Wanted = Callable[[Hop], Iterable[str]]


class Link(Owner):
    """Two sessions, and what goes over them.

    Args:
        ends: the two brokers.
        doors: how to reach each.
        folder: where it keeps what a new agent must know; None: nowhere.
        admit: called with the hop of each message: what to carry, or None to drop it.
        wanted: the filters of a hop, for a session that is new.
        fresh: whether sessions of before, if there are any, are of no use.
        strange: whether those would be of an agent of which nothing is known.
    """

    def __init__(
        self,
        ends: Hop,
        doors: tuple[Door, Door],
        folder: Path | None,
        admit: Admit,
        wanted: Wanted,
        fresh: bool = False,
        strange: bool = False,
    ) -> None:
        self.ends, self._wanted, self._strange = ends, wanted, strange
        self.slots: dict[Hop, Slots] = {}
        self.lanes: dict[Hop, Lane] = {}
        self._places: list[Path] = []
        for hop in (ends, ends[::-1]):
            place = None if folder is None else folder / f"{safe(hop[0])}:{safe(hop[1])}.slots"
            self._places += [place] if place else []
            self.slots[hop] = Slots(place)
            self.lanes[hop] = Lane(self.slots[hop], lambda message, hop=hop: admit(hop, message))  # type: ignore[misc]
        self.sessions = {
            broker: Session(broker, link_name(*ends), door, self, fresh=fresh)
            for broker, door in zip(ends, doors, strict=True)
        }

        for broker, session in self.sessions.items():
            flight = self.lanes[self._other(session), broker].flight
            session.taken = flight.__contains__

    def start(self) -> None:
        """Begin to connect."""
        for session in self.sessions.values():
            session.start()

    async def stop(self, forget: bool = False) -> None:
        """Disconnect; the brokers keep the sessions, or forget them."""
        await asyncio.gather(*(session.stop(forget) for session in self.sessions.values()))
        for slots in self.slots.values():
            slots.close()
        for place in self._places if forget else ():
            place.unlink(missing_ok=True)

    # What sessions call.

    def _other(self, session: Session) -> str:
        return self.ends[self.ends[0] == session.broker]

    def welcomed(self, session: Session, welcome: Welcome) -> None:
        """A session is connected: messages come from it."""
        self.lanes[session.broker, self._other(session)].near_opens(session.send, welcome.present)

    async def opened(self, session: Session, welcome: Welcome) -> None:
        """It subscribes to all that its hop carries, and then takes messages."""
        here, there = session.broker, self._other(session)
        if self._strange and welcome.present and session.connects == 1:
            LOG.warning(
                "broker %r kept session %r though the state is new: what waits there is carried, "
                "and some of it may come twice",
                here,
                session.client,
            )
        await session.subscribe([PROBE], retained=False)
        asked = set[str]()
        while more := set(self._wanted((here, there))) - asked:  # also what came to be wanted meanwhile
            await session.subscribe(sorted(more), retained=True)
            asked |= more
        self.lanes[there, here].far_opens(session.send, welcome.present, *limits(welcome))

    def closed(self, session: Session) -> None:
        """A session has lost its connection."""
        here, there = session.broker, self._other(session)
        self.lanes[here, there].near_closes()
        self.lanes[there, here].far_closes()

    def arrived(self, session: Session, message: Publish) -> None:
        """A message has come."""
        self.lanes[session.broker, self._other(session)].arrive(message)

    def answered(self, session: Session, kind: int, number: int, reason: int) -> None:
        """The far broker of a lane has answered."""
        lane = self.lanes[self._other(session), session.broker]
        if kind == PUBREC:
            lane.stored(number, reason)
        elif kind == PUBCOMP:
            lane.completed(number)

    def clogged(self, session: Session, full: bool) -> None:
        """The far broker of a lane does not keep up, or does again."""
        self.lanes[self._other(session), session.broker].clogged = full

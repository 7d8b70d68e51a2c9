"""One direction of a link: what comes from the near broker at QoS 1 goes to the far one at QoS 2, once.

A message keeps its packet id. The near broker gets its PUBACK only after the far one has said PUBCOMP:

    near                agent                far
     | PUBLISH 7 (QoS 1) |                    |
     |------------------>| PUBLISH 7 (QoS 2)  |
     |                   |------------------->|
     |                   |           PUBREC 7 |
     |                   |<-------------------|
     |             slots[7] = its id          |
     |                   | PUBREL 7           |
     |                   |------------------->|  now its subscribers get it
     |          PUBACK 7 |          PUBCOMP 7 |
     |<------------------|<-------------------|

Why none is lost: whatever breaks before PUBACK 7, the near broker sends 7 again. Why none is doubled: until
PUBREL 7 the far broker takes a second PUBLISH 7 for the first one; from then on `slots[7]` says that it has
the message, so that only PUBREL is repeated, which does no harm. A new agent knows as much as one that never
died, since packet ids are the brokers' own and the slots outlive it. That holds for messages with an id of
their own; of others nobody can tell a second one from a repeated one, so they are sent again.
"""

from __future__ import annotations

import asyncio
import logging
import mmap
import os
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from broadloom.deployment.deployment_inputs import link_name, safe
from broadloom.deployment.wiring import Hop
from broadloom.mqtt.client_session import ClientSession, SessionHandler, broker_limits
from broadloom.mqtt.endpoint import Endpoint
from broadloom.mqtt.packets import (
    DUP,
    FAILED,
    LAST_ID,
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    Connack,
    Publish,
    acknowledgement,
)
from broadloom.mqtt.reserved_topics import INTERNAL_PREFIX

LOG = logging.getLogger("broadloom.live")
WAITING, CLEANING, SENT, RELEASED, DROPPED = range(5)

Send = Callable[[bytes], None]
AdmitMessage = Callable[[Publish], "Publish | None"]
PROBE = f"{INTERNAL_PREFIX}probe"

AdmitOnHop = Callable[[Hop, Publish], Publish | None]
Wanted = Callable[[Hop], Iterable[str]]
_BYTES = 8 * (LAST_ID + 1)


class MessageInFlight:
    """A message on its way."""

    __slots__ = ("message", "orphan", "state")

    def __init__(self, message: Publish, state: int = WAITING) -> None:
        self.message, self.state = message, state
        self.orphan = False  # the near broker has forgotten it, and does not wait for its PUBACK


class HopForwarder:
    """The state of one direction; sessions tell it what comes, and it tells them what to send.

    Args:
        slots: what the far broker has stored.
        admit: called with each message: what to carry, perhaps with an id put on, or None to drop it.

    Attributes:
        flight: the messages on their way, by packet id, in the order in which they came.
        counts: messages and bytes carried, messages dropped (of QoS 0) and refused (by the far broker).
    """

    def __init__(self, slots: PacketStore, admit: AdmitMessage) -> None:
        self._slots, self._admit = slots, admit
        self.flight: dict[int, MessageInFlight] = {}
        self.counts: Counter[str] = Counter()
        self.closing = False  # take nothing more, and finish what is on its way
        self.clogged = False  # the far broker does not read what it was sent
        self._near: Send | None = None
        self._far: Send | None = None
        self._room = 0  # how many more messages the far broker takes unfinished
        self._largest = 0
        self._waiting: deque[int] = deque()
        self._unacked: deque[int] = deque()  # what came over this connection, in order
        self._open: set[int] = set()  # the same, to look up
        self._done: set[int] = set()  # of these, what waits only for those before it
        self._behind: dict[int, Publish] = {}  # new messages whose packet id an orphan still has
        self._inherited: bool | None = None  # whether the far session is older than this agent
        self._doubtful = False  # whether the far broker may hold packet ids that nobody here knows of
        self._cleaned: set[int] = set()

    # The near broker.

    def near_opens(self, send: Send, present: bool) -> None:
        """A connection to the near broker is there, with its old session or without one."""
        self._near = send
        for numbers in (self._unacked, self._open, self._done):
            numbers.clear()
        if not present:
            self._behind.clear()
            for item in self.flight.values():
                item.orphan = True
            self._doubtful = True

    def near_closes(self) -> None:
        """The connection is gone; what was not acknowledged comes again with the next one."""
        self._near = None

    def arrive(self, message: Publish) -> None:
        """A message has come from the near broker."""
        if self.closing:
            return  # it comes again when somebody takes over
        if not message.number:
            self._pass_on(message)
            return
        if message.number not in self._open:
            self._unacked.append(message.number)
            self._open.add(message.number)
        self._take(message)

    def _take(self, message: Publish) -> None:
        number = message.number
        item = self.flight.get(number)
        if item is not None:
            if item.orphan:
                self._behind[number] = message
            return  # sent once more over a new connection, while it is still on its way
        carried = self._admit(message)
        if carried is None and not message.dup:
            # Should it come again, when nobody remembers that it was dropped.
            self._slots[number] = message.key
            self._end(number)
            return
        if carried is None or (message.dup and message.key and self._slots[number] == message.key):
            # The far broker may hold it from before: it has to let it go, even if nobody needs it any more.
            self.flight[number] = MessageInFlight(
                carried or message, DROPPED if carried is None else RELEASED
            )
            if self._far is not None:
                self._room -= 1
                self._far(acknowledgement(PUBREL, number))
            return
        self._slots[number] = 0
        self.flight[number] = MessageInFlight(carried)
        self._waiting.append(number)
        self._pump()

    def _pass_on(self, message: Publish) -> None:
        """A message of QoS 0: sent if it can be, with no promise."""
        carried = self._admit(message)
        if carried is None:
            return
        if self._far is None or self.clogged:
            self.counts["dropped"] += 1
        else:
            self._count(carried)
            self._far(carried.forwarded())

    # The far broker.

    def far_opens(self, send: Send, present: bool, room: int, largest: int) -> None:
        """A connection to the far broker is there: go on where it stands.

        Args:
            send: writes to it.
            present: whether it still has the session.
            room: how many messages it takes unfinished.
            largest: how long a packet it takes.
        """
        self._far, self._room, self._largest = send, room, largest
        if self._inherited is None:
            self._inherited = present
        if not present:
            self._inherited = False
            self._slots.clear()
        again = [number for number, item in self.flight.items() if item.state != WAITING]
        for number in again:
            self._resume(number, present)
        self._pump()

    def far_closes(self) -> None:
        """The connection is gone."""
        self._far = None

    def stored(self, number: int, reason: int) -> None:
        """PUBREC: the far broker has the message, or refuses it."""
        item = self.flight.get(number)
        if item is None or item.state != SENT:
            return
        if reason >= FAILED:
            self._refuse(item, f"for reason {reason:#x}")
            self._room += 1
            self._finish(number)
            return
        self._slots[number] = item.message.key
        item.state = RELEASED
        self._write(acknowledgement(PUBREL, number))

    def completed(self, number: int) -> None:
        """PUBCOMP: the far broker has passed the message on, now or long ago."""
        item = self.flight.get(number)
        if item is None:
            return
        if item.state == CLEANING:
            self._cleaned.add(number)
            self._send(number, item)
        elif item.state in (RELEASED, DROPPED):
            if item.state == RELEASED:
                self._count(item.message)
            self._room += 1
            self._finish(number)

    def _resume(self, number: int, present: bool) -> None:
        """Send once more what the far broker has not answered."""
        item = self.flight[number]
        self._room -= 1
        if item.state == DROPPED and not present:
            self._room += 1
            self._finish(number)
        elif not present:
            self._send(number, item)  # it may have had the message: rather twice than never
        elif item.state == SENT:
            self._write(_again(item.message.forwarded()))
        else:
            self._write(acknowledgement(PUBREL, number))

    def _pump(self) -> None:
        """Send what waits, as much as the far broker takes."""
        while self._waiting and self._room > 0 and self._far is not None:
            number = self._waiting.popleft()
            item = self.flight[number]
            if len(item.message.raw) > self._largest:
                self._refuse(item, f"above {self._largest:,} bytes")
                self._finish(number)
                continue
            self._room -= 1
            if self._doubtful and self._inherited and number not in self._cleaned:
                item.state = CLEANING
                self._far(acknowledgement(PUBREL, number))
            else:
                self._send(number, item)

    def _send(self, number: int, item: MessageInFlight) -> None:
        item.state = SENT
        self._slots[number] = 0
        self._write(item.message.forwarded())

    def _write(self, packet: bytes) -> None:
        if self._far is not None:
            self._far(packet)

    # The end of a message.

    def _finish(self, number: int) -> None:
        item = self.flight.pop(number)
        if not item.orphan:
            self._end(number)
        new = self._behind.pop(number, None)
        if new is not None:
            self._take(new)
        self._pump()

    def _end(self, number: int) -> None:
        """Acknowledge it, in the order in which messages came, as MQTT wants it."""
        if number not in self._open:
            return  # the near broker sends it again over its new connection, and gets its answer then
        self._done.add(number)
        while self._unacked and self._unacked[0] in self._done:
            first = self._unacked.popleft()
            self._done.remove(first)
            self._open.remove(first)
            if self._near is not None:
                self._near(acknowledgement(PUBACK, first))

    def _refuse(self, item: MessageInFlight, why: str) -> None:
        LOG.error("a message of %r is lost: the far broker refuses it, %s", item.message.topic, why)
        self.counts["refused"] += 1

    def _count(self, message: Publish) -> None:
        if message.topic.startswith(INTERNAL_PREFIX):
            return
        self.counts["messages"] += 1
        self.counts["bytes"] += len(message.raw)

    def on_the_way(self) -> Iterator[Publish]:
        """The messages that are not finished."""
        yield from (item.message for item in self.flight.values())


def _again(packet: bytes) -> bytes:
    """A packet marked as sent before."""
    return b"%c%b" % (packet[0] | DUP, packet[1:])


class AgentLink(SessionHandler):
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
        doors: tuple[Endpoint, Endpoint],
        folder: Path | None,
        admit: AdmitOnHop,
        wanted: Wanted,
        fresh: bool = False,
        strange: bool = False,
    ) -> None:
        self.ends, self._wanted, self._strange = ends, wanted, strange
        self.slots: dict[Hop, PacketStore] = {}
        self.lanes: dict[Hop, HopForwarder] = {}
        self._places: list[Path] = []
        for hop in (ends, ends[::-1]):
            place = None if folder is None else folder / f"{safe(hop[0])}:{safe(hop[1])}.slots"
            self._places += [place] if place else []
            self.slots[hop] = PacketStore(place)
            self.lanes[hop] = HopForwarder(self.slots[hop], lambda message, hop=hop: admit(hop, message))  # type: ignore[misc]
        self.sessions = {
            broker: ClientSession(broker, link_name(*ends), door, self, fresh=fresh)
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

    def _other(self, session: ClientSession) -> str:
        return self.ends[self.ends[0] == session.broker]

    def welcomed(self, session: ClientSession, welcome: Connack) -> None:
        """A session is connected: messages come from it."""
        self.lanes[session.broker, self._other(session)].near_opens(session.send, welcome.present)

    async def opened(self, session: ClientSession, welcome: Connack) -> None:
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
        self.lanes[there, here].far_opens(session.send, welcome.present, *broker_limits(welcome))

    def closed(self, session: ClientSession) -> None:
        """A session has lost its connection."""
        here, there = session.broker, self._other(session)
        self.lanes[here, there].near_closes()
        self.lanes[there, here].far_closes()

    def arrived(self, session: ClientSession, message: Publish) -> None:
        """A message has come."""
        self.lanes[session.broker, self._other(session)].arrive(message)

    def answered(self, session: ClientSession, kind: int, number: int, reason: int) -> None:
        """The far broker of a lane has answered."""
        lane = self.lanes[self._other(session), session.broker]
        if kind == PUBREC:
            lane.stored(number, reason)
        elif kind == PUBCOMP:
            lane.completed(number)

    def clogged(self, session: ClientSession, full: bool) -> None:
        """The far broker of a lane does not keep up, or does again."""
        self.lanes[self._other(session), session.broker].clogged = full


class PacketStore:
    """A number for each packet id; 0: none.

    Args:
        place: the file; None: only memory.
    """

    def __init__(self, place: Path | None = None) -> None:
        self._map = mmap.mmap(-1, _BYTES) if place is None else _mapped(place)
        self._keys = memoryview(self._map).cast("Q")

    def __getitem__(self, number: int) -> int:
        return self._keys[number]

    def __setitem__(self, number: int, key: int) -> None:
        self._keys[number] = key

    def clear(self) -> None:
        """Forget all."""
        self._map[:] = bytes(_BYTES)

    def close(self) -> None:
        """Let go of the file."""
        self._keys.release()
        self._map.close()


def _mapped(place: Path) -> mmap.mmap:
    """The memory of a file, which keeps a handle of its own."""
    handle = os.open(place, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        _make_room(handle)
        return mmap.mmap(handle, _BYTES)
    finally:
        os.close(handle)


def _make_room(handle: int) -> None:
    """Have the whole file on the disk: writing a page without room there would kill the process."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(handle, 0, _BYTES)
    else:  # macOS
        _fill(handle)


def _fill(handle: int) -> None:
    """Write zeros behind what the file has, until it has all."""
    while (missing := _BYTES - os.lseek(handle, 0, os.SEEK_END)) > 0:
        os.write(handle, bytes(missing))

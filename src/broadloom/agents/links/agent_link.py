"""Link between two brokers: a session at each, and a forwarder per direction that delivers exactly once.

A forwarder receives from the near broker at QoS 1 and sends to the far broker at QoS 2.

A message keeps its packet id. The near broker gets PUBACK only after the far broker has sent PUBCOMP:

    near                agent                far
     | PUBLISH 7 (QoS 1) |                    |
     |------------------>| PUBLISH 7 (QoS 2)  |
     |                   |------------------->|
     |                   |           PUBREC 7 |
     |                   |<-------------------|
     |           store[7] = message id        |
     |                   | PUBREL 7           |
     |                   |------------------->|  now delivered to its subscribers
     |          PUBACK 7 |          PUBCOMP 7 |
     |<------------------|<-------------------|

No message is lost: if anything fails before PUBACK 7, the near broker sends 7 again. No message is delivered
twice: until PUBREL 7 the far broker treats a second PUBLISH 7 as a repetition; after that, `store[7]` records
that it has the message, so only PUBREL is repeated, which is harmless. A restarted agent knows as much as one
that never stopped, because brokers assign the packet ids and the store survives the process. This holds for
messages with an id; other messages cannot be distinguished from repetitions, so they are sent again.
"""

from __future__ import annotations

import asyncio
import logging
import mmap
import os
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from broadloom.deployment import Hop, link_name, safe_name
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
from broadloom.storage import BINARY

LOG = logging.getLogger("broadloom.live")
WAITING, CLEANING, SENT, RELEASED, DROPPED = range(5)  # states of a message in flight

Send = Callable[[bytes], None]
AdmitMessage = Callable[[Publish], "Publish | None"]
PROBE = f"{INTERNAL_PREFIX}probe"

AdmitOnHop = Callable[[Hop, Publish], Publish | None]
HopFilters = Callable[[Hop], Mapping[str, int]]
_BYTES = 8 * (LAST_ID + 1)  # of a packet store


class MessageInFlight:
    """A message that a hop has not finished."""

    __slots__ = ("message", "orphan", "state")

    def __init__(self, message: Publish, state: int = WAITING) -> None:
        self.message = message
        self.state = state
        self.orphan = False  # the near broker has lost its session and expects no PUBACK


class HopForwarder:
    """Forwarding state of one hop; sessions pass packets in, and it writes packets to them.

    Args:
        store: the message ids that the far broker has stored.
        admit: called with each message; returns what to forward, with an id, or None to drop it.

    Attributes:
        in_flight: the unfinished messages by packet id, in order of arrival.
        counts: messages and bytes forwarded, messages dropped (QoS 0) and refused (by the far broker).
    """

    def __init__(self, store: PacketStore, admit: AdmitMessage) -> None:
        self._store = store
        self._admit = admit
        self.in_flight: dict[int, MessageInFlight] = {}
        self.counts: Counter[str] = Counter()
        self.closing = False  # accept no more messages, and finish those in flight
        self.congested = False  # the far broker reads too slowly
        self._near: Send | None = None
        self._far: Send | None = None
        self._quota = 0  # number of further messages that the far broker accepts unfinished
        self._largest = 0
        self._waiting: deque[int] = deque()
        self._unacked: deque[int] = deque()  # received over this connection, in order
        self._open: set[int] = set()  # the same ids, for lookup
        self._done: set[int] = set()  # of these, finished ones that wait for earlier ones
        self._deferred: dict[int, Publish] = {}  # new messages whose packet id an orphan still uses
        self._inherited: bool | None = (
            None  # whether the far session is older than this process; None: unknown
        )
        self._uncertain = False  # whether the far broker can hold packet ids that are unknown here
        self._cleaned: set[int] = set()

    # The near broker.

    def near_opens(self, send: Send, present: bool) -> None:
        """The near broker is connected; `present`: it kept the session."""
        self._near = send
        for numbers in (self._unacked, self._open, self._done):
            numbers.clear()
        if not present:
            self._deferred.clear()
            for item in self.in_flight.values():
                item.orphan = True
            self._uncertain = True

    def near_closes(self) -> None:
        """The near connection is lost; unacknowledged messages are repeated over the next one."""
        self._near = None

    def arrive(self, message: Publish) -> None:
        """Receive a message from the near broker."""
        if self.closing:
            return  # the near broker repeats it to the next process
        if not message.number:
            self._forward_at_qos0(message)
            return
        if message.number not in self._open:
            self._unacked.append(message.number)
            self._open.add(message.number)
        self._take(message)

    def _take(self, message: Publish) -> None:
        number = message.number
        item = self.in_flight.get(number)
        if item is not None:
            if item.orphan:
                self._deferred[number] = message
            return  # repeated over a new connection while it is still in flight
        carried = self._admit(message)
        if carried is None and not message.dup:
            # Recorded for the case that it is repeated after a restart.
            self._store[number] = message.key
            self._end(number)
            return
        if carried is None or (message.dup and message.key and self._store[number] == message.key):
            # The far broker can hold it from before, and must release it even if it is no longer wanted.
            self.in_flight[number] = MessageInFlight(
                carried or message, DROPPED if carried is None else RELEASED
            )
            if self._far is not None:
                self._quota -= 1
                self._far(acknowledgement(PUBREL, number))
            return
        self._store[number] = 0
        self.in_flight[number] = MessageInFlight(carried)
        self._waiting.append(number)
        self._pump()

    def _forward_at_qos0(self, message: Publish) -> None:
        """Forward a message of QoS 0 if possible, without a guarantee."""
        carried = self._admit(message)
        if carried is None:
            return
        if self._far is None or self.congested:
            self.counts["dropped"] += 1
        else:
            self._count(carried)
            self._far(carried.forwarded())

    # The far broker.

    def far_opens(self, send: Send, present: bool, quota: int, largest: int) -> None:
        """The far broker is connected: resume the unfinished messages.

        Args:
            send: writes to the far broker.
            present: whether it kept the session.
            quota: number of messages that it accepts unfinished.
            largest: largest packet that it accepts, in bytes.
        """
        self._far = send
        self._quota = quota
        self._largest = largest
        if self._inherited is None:
            self._inherited = present
        if not present:
            self._inherited = False
            self._store.clear()
        started = [number for number, item in self.in_flight.items() if item.state != WAITING]
        for number in started:
            self._resume(number, present)
        self._pump()

    def far_closes(self) -> None:
        """The far connection is lost."""
        self._far = None

    def stored(self, number: int, reason: int) -> None:
        """PUBREC: the far broker has stored the message, or refuses it."""
        item = self.in_flight.get(number)
        if item is None or item.state != SENT:
            return
        if reason >= FAILED:
            self._refuse(item, f"for reason {reason:#x}")
            self._quota += 1
            self._finish(number)
            return
        self._store[number] = item.message.key
        item.state = RELEASED
        self._write(acknowledgement(PUBREL, number))

    def completed(self, number: int) -> None:
        """PUBCOMP: the far broker has delivered the message, now or earlier."""
        item = self.in_flight.get(number)
        if item is None:
            return
        if item.state == CLEANING:
            self._cleaned.add(number)
            self._send(number, item)
        elif item.state in (RELEASED, DROPPED):
            if item.state == RELEASED:
                self._count(item.message)
            self._quota += 1
            self._finish(number)

    def _resume(self, number: int, present: bool) -> None:
        """Repeat what the far broker has not acknowledged."""
        item = self.in_flight[number]
        self._quota -= 1
        if item.state == DROPPED and not present:
            self._quota += 1
            self._finish(number)
        elif not present:
            self._send(number, item)  # the far broker can have had it: twice is better than never
        elif item.state == SENT:
            self._write(_with_dup(item.message.forwarded()))
        else:
            self._write(acknowledgement(PUBREL, number))

    def _pump(self) -> None:
        """Send waiting messages, as many as the far broker accepts."""
        while self._waiting and self._quota > 0 and self._far is not None:
            number = self._waiting.popleft()
            item = self.in_flight[number]
            if len(item.message.raw) > self._largest:
                self._refuse(item, f"larger than {self._largest:,} bytes")
                self._finish(number)
                continue
            self._quota -= 1
            if self._uncertain and self._inherited and number not in self._cleaned:
                item.state = CLEANING
                self._far(acknowledgement(PUBREL, number))
            else:
                self._send(number, item)

    def _send(self, number: int, item: MessageInFlight) -> None:
        item.state = SENT
        self._store[number] = 0
        self._write(item.message.forwarded())

    def _write(self, packet: bytes) -> None:
        if self._far is not None:
            self._far(packet)

    # The end of a message.

    def _finish(self, number: int) -> None:
        item = self.in_flight.pop(number)
        if not item.orphan:
            self._end(number)
        new = self._deferred.pop(number, None)
        if new is not None:
            self._take(new)
        self._pump()

    def _end(self, number: int) -> None:
        """Acknowledge a message, in order of arrival as MQTT requires."""
        if number not in self._open:
            return  # the near broker repeats it over its new connection, and is acknowledged then
        self._done.add(number)
        while self._unacked and self._unacked[0] in self._done:
            first = self._unacked.popleft()
            self._done.remove(first)
            self._open.remove(first)
            if self._near is not None:
                self._near(acknowledgement(PUBACK, first))

    def _refuse(self, item: MessageInFlight, reason: str) -> None:
        LOG.error("a message on %r is lost: the far broker refuses it, %s", item.message.topic, reason)
        self.counts["refused"] += 1

    def _count(self, message: Publish) -> None:
        if message.topic.startswith(INTERNAL_PREFIX):
            return
        self.counts["messages"] += 1
        self.counts["bytes"] += len(message.raw)

    def in_transit(self) -> Iterator[Publish]:
        """The unfinished messages."""
        yield from (item.message for item in self.in_flight.values())


def _with_dup(packet: bytes) -> bytes:
    """A packet with the DUP flag."""
    return b"%c%b" % (packet[0] | DUP, packet[1:])


class AgentLink(SessionHandler):
    """Two sessions and two forwarders between a pair of brokers.

    Args:
        ends: the two brokers.
        endpoints: their endpoints.
        folder: the folder of the packet stores; None: they do not survive the process.
        admit: called with the hop and each message; returns what to forward, or None to drop it.
        filters_of: the filters of a hop, for a new session, with their subscription identifiers.
        fresh: whether to delete earlier sessions first.
        unknown_state: whether earlier sessions would belong to an agent whose state is lost.
    """

    def __init__(
        self,
        ends: Hop,
        endpoints: tuple[Endpoint, Endpoint],
        folder: Path | None,
        admit: AdmitOnHop,
        filters_of: HopFilters,
        fresh: bool = False,
        unknown_state: bool = False,
    ) -> None:
        self.ends = ends
        self._filters_of = filters_of
        self._unknown_state = unknown_state
        self.stores: dict[Hop, PacketStore] = {}
        self.forwarders: dict[Hop, HopForwarder] = {}
        self._paths: list[Path] = []
        for hop in (ends, ends[::-1]):
            path = None if folder is None else folder / f"{safe_name(hop[0])}:{safe_name(hop[1])}.slots"
            self._paths += [path] if path else []
            self.stores[hop] = PacketStore(path)
            self.forwarders[hop] = HopForwarder(self.stores[hop], partial(admit, hop))
        self.sessions = {
            broker: ClientSession(broker, link_name(*ends), endpoint, self, fresh=fresh)
            for broker, endpoint in zip(ends, endpoints, strict=True)
        }
        for broker, session in self.sessions.items():
            in_flight = self.forwarders[self._other(session), broker].in_flight
            session.is_id_taken = in_flight.__contains__

    def start(self) -> None:
        """Start to connect."""
        for session in self.sessions.values():
            session.start()

    async def stop(self, forget: bool = False) -> None:
        """Disconnect; the brokers keep the sessions, or delete them with `forget`."""
        await asyncio.gather(*(session.stop(forget) for session in self.sessions.values()))
        for store in self.stores.values():
            store.close()
        for path in self._paths if forget else ():
            path.unlink(missing_ok=True)

    # Callbacks of the sessions.

    def _other(self, session: ClientSession) -> str:
        return self.ends[self.ends[0] == session.broker]

    def connected(self, session: ClientSession, connack: Connack) -> None:
        """A session is connected: messages arrive from it."""
        self.forwarders[session.broker, self._other(session)].near_opens(session.send, connack.present)

    async def opened(self, session: ClientSession, connack: Connack) -> None:
        """Subscribe to the filters of the session's hop, then let the other hop send."""
        here, there = session.broker, self._other(session)
        if self._unknown_state and connack.present and session.connects == 1:
            LOG.warning(
                "broker %r kept session %r although the state is new: its queue is forwarded, "
                "and some messages can arrive twice",
                here,
                session.client,
            )
        await session.subscribe([PROBE], retained=False)
        subscribed = set[str]()
        while more := self._filters_of((here, there)):  # including those added meanwhile
            fresh = sorted(more.keys() - subscribed)
            if not fresh:
                break
            await session.subscribe(fresh, True, more)
            subscribed.update(fresh)
        self.forwarders[there, here].far_opens(session.send, connack.present, *broker_limits(connack))

    def closed(self, session: ClientSession) -> None:
        """A session has lost its connection."""
        here, there = session.broker, self._other(session)
        self.forwarders[here, there].near_closes()
        self.forwarders[there, here].far_closes()

    def arrived(self, session: ClientSession, message: Publish) -> None:
        """A message has arrived."""
        self.forwarders[session.broker, self._other(session)].arrive(message)

    def acknowledged(self, session: ClientSession, kind: int, number: int, reason: int) -> None:
        """The far broker of a hop has acknowledged a message."""
        forwarder = self.forwarders[self._other(session), session.broker]
        if kind == PUBREC:
            forwarder.stored(number, reason)
        elif kind == PUBCOMP:
            forwarder.completed(number)

    def congested(self, session: ClientSession, full: bool) -> None:
        """The far broker of a hop reads too slowly, or no longer."""
        self.forwarders[self._other(session), session.broker].congested = full


class PacketStore:
    """Digests of the messages that the far broker stored last, by packet id; 0: no message.

    It is a memory-mapped file: the system writes its pages even if the process is killed. Nothing is forced
    to the disk, so if the machine itself fails, messages in flight can arrive twice.

    Args:
        path: the file; None: memory only.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._map = mmap.mmap(-1, _BYTES) if path is None else _mapped(path)
        self._keys = memoryview(self._map).cast("Q")

    def __getitem__(self, number: int) -> int:
        return self._keys[number]

    def __setitem__(self, number: int, key: int) -> None:
        self._keys[number] = key

    def clear(self) -> None:
        """Delete all entries."""
        self._map[:] = bytes(_BYTES)

    def close(self) -> None:
        """Close the file."""
        self._keys.release()
        self._map.close()


def _mapped(path: Path) -> mmap.mmap:
    """Map a file into memory."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | BINARY, 0o600)
    try:
        _allocate(handle)
        return mmap.mmap(handle, _BYTES)
    finally:
        os.close(handle)


def _allocate(handle: int) -> None:
    """Allocate the whole file: writing to an unallocated page on a full disk would kill the process."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(handle, 0, _BYTES)
    else:  # macOS, Windows
        _fill(handle)


def _fill(handle: int) -> None:
    """Append zeros until the file has its full size."""
    while (missing := _BYTES - os.lseek(handle, 0, os.SEEK_END)) > 0:
        os.write(handle, bytes(missing))

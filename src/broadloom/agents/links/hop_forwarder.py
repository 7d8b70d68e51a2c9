"""Forwarding over one hop, exactly once: from the near broker at QoS 1 to the far broker at QoS 2.

A message keeps its packet id. The near broker gets PUBACK only after the far broker has sent PUBCOMP:

    near                agent                far
     | PUBLISH 7 (QoS 1) |                    |
     |------------------>| PUBLISH 7 (QoS 2)  |
     |                   |------------------->|
     |                   |           PUBREC 7 |
     |                   |<-------------------|
     |           store[7] = message           |
     |                   | PUBREL 7           |
     |                   |------------------->|  now delivered to its subscribers
     |          PUBACK 7 |          PUBCOMP 7 |
     |<------------------|<-------------------|

No message is lost: if anything fails before PUBACK 7, the near broker sends 7 again. No message is delivered
twice: until PUBREL 7 the far broker treats a second PUBLISH 7 as a repetition; after that, the store records
that it has the message, so only PUBREL is repeated, which is harmless. A restarted agent knows as much as one
that never stopped, because brokers assign the packet ids and the store survives the process.

Nothing here does I/O: sessions pass packets in, and the forwarder writes packets to them.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple, Protocol

from broadloom.agents.links.hop_store import HopStore
from broadloom.mqtt.packets import (
    DUP,
    FAILED,
    LARGEST_PACKET,
    LAST_ID,
    PUBACK,
    PUBREL,
    RETAIN,
    Connack,
    Publish,
    acknowledgement,
    at_quality,
    connack_limits,
)

LOG = logging.getLogger("broadloom.live")
# States of a message in flight; REPEATING: sent over an earlier connection, and not answered.
WAITING, CLEANING, SENT, RELEASED, REPEATING = range(5)
MOST_TRIES = 3  # of a message that the far broker refuses
RETRY_SECONDS = 0.5
SMALL_BYTES = 262_144  # a hop with less in flight is never held up by the others
# Reasons of DISCONNECT that blame a packet: malformed, protocol error, topic invalid, too large, payload
# format, retain or QoS not supported.
BLAMES_A_PACKET = frozenset((0x81, 0x82, 0x90, 0x95, 0x99, 0x9A, 0x9B))

SendPacket = Callable[[bytes], None]


class Hold(Enum):
    """Decision to take no message now.

    BARRIER: until everything before this one is finished; then call `pass_barrier`. ORDERS: until the agent
    has newer orders.
    """

    BARRIER = 1
    ORDERS = 2


class HopPolicy(Protocol):
    """Decides what becomes of each message of a hop."""

    def decide(self, message: Publish, digest: int) -> bytes | Hold | None:
        """The packet to forward; None: drop the message. The digest is 0 for a message of QoS 0."""

    def pass_barrier(self, message: Publish) -> bytes | None:
        """Everything before this message is finished; returns the packet to forward, or None."""


class DeadLetter(NamedTuple):
    """A message that the far broker does not take.

    Attributes:
        topic: its topic.
        packet: the whole packet.
        reason: why the far broker does not take it.
    """

    topic: str
    packet: bytes
    reason: str


class ByteBudget:
    """Bytes in flight of all hops of a process.

    Args:
        per_hop: the most bytes in flight of one hop; a single larger message still passes.
        total: the most bytes in flight of all hops together.
    """

    def __init__(self, per_hop: int = 16 << 20, total: int = 96 << 20) -> None:
        self.per_hop = per_hop
        self.total = total
        self.used = 0
        self.paused: set[RouteForwarder] = set()

    def add(self, size: int) -> None:
        """Count bytes that have come in, or gone (negative)."""
        self.used += size
        if size < 0 and self.paused and self.used < self.total:
            for forwarder in list(self.paused):
                forwarder.check_budget()


class _InFlight:
    """A message that a hop has not finished."""

    __slots__ = ("digest", "number", "orphan", "packet", "state", "topic", "tries")

    def __init__(self, topic: str, packet: bytes, number: int, digest: int, state: int) -> None:
        self.topic = topic
        self.packet = packet
        self.number = number  # among the messages received
        self.digest = digest
        self.state = state
        self.tries = 0
        self.orphan = False  # the near broker has lost its session and expects no PUBACK


class RouteForwarder:
    """Forwarding state of one hop.

    Args:
        store: the memory of the hop.
        policy: decides what becomes of each message.
        counts: messages and bytes forwarded; messages dropped (not for this hop), of QoS 0 that could not
            be sent, and set aside.
        budget: the bytes in flight of all hops.
        pause: stops or resumes the reading of messages from the near broker.
        set_aside: keeps a message that the far broker does not take.
        later: calls a function after some seconds.

    Attributes:
        in_flight: the unfinished messages by packet id, in order of arrival.
        size: bytes in flight.
        closing: whether to take no more messages, and finish those in flight.
        congested: whether the far broker reads too slowly.
    """

    def __init__(
        self,
        store: HopStore,
        policy: HopPolicy,
        counts: Counter[str],
        budget: ByteBudget,
        pause: Callable[[bool], None],
        set_aside: Callable[[DeadLetter], None],
        later: Callable[[float, Callable[[], None]], object],
    ) -> None:
        self._store = store
        self._policy = policy
        self._budget = budget
        self._pause = pause
        self._set_aside = set_aside
        self._later = later
        self.in_flight: dict[int, _InFlight] = {}
        self.size = 0
        self.counts = counts
        self.closing = False
        self.congested = False
        self._near: SendPacket | None = None
        self._far: SendPacket | None = None
        self._limits = FarLimits()
        self._quota = 0  # number of further messages that the far broker accepts unfinished
        self._waiting: deque[int] = deque()
        self._unacked: deque[int] = deque()  # received over this connection, in order
        self._open: set[int] = set()  # the same ids, for lookup
        self._done: set[int] = set()  # of these, finished ones that wait for earlier ones
        self._deferred: dict[int, Publish] = {}  # new messages whose packet id an orphan still uses
        self._held: deque[Publish] = deque()  # the first of them is not taken yet, see Hold
        self._is_advancing = False
        self._inherited: bool | None = None  # whether the far session is older than this process
        self._uncertain = False  # whether the far broker can hold packet ids that are unknown here
        self._cleaned: set[int] = set()
        self._suspects: set[int] = set()  # the far broker blames one of these: one at a time, to find it
        self._is_pumping = False
        self._is_direct = False  # whether new messages go to the far broker at once, as they are
        self._small = min(budget.per_hop, SMALL_BYTES)

    def has_finished(self, number: int) -> bool:
        """Whether all messages up to a number, among those received, are finished."""
        first = next(iter(self.in_flight.values()), None)
        return first is None or first.number > number

    # The near broker.

    def near_opens(self, send: SendPacket, present: bool) -> None:
        """The near broker is connected; `present`: it kept the session."""
        self._near = send
        for numbers in (self._unacked, self._open, self._done):
            numbers.clear()
        self._drop_held()
        self._budget.paused.discard(self)  # a new connection reads
        self.check_budget()
        if not present:
            self._store.forget_near()
            self._deferred.clear()
            for item in self.in_flight.values():
                item.orphan = True
            self._uncertain = True
            self._check_direct()

    def near_closes(self) -> None:
        """The near connection is lost; unacknowledged messages are repeated over the next one."""
        self._near = None

    def arrive(self, message: Publish) -> None:
        """Receive a message from the near broker."""
        if self.closing:
            return  # the near broker repeats it to the next process
        if message.number and message.number not in self._open:
            self._unacked.append(message.number)
            self._open.add(message.number)
        if self._held or not self._take(message):
            self._held.append(message)
            self._add(len(message.raw))

    def advance(self) -> None:
        """Take messages that had to wait, as far as possible."""
        if self._is_advancing:
            return
        self._is_advancing = True
        try:
            while self._held and self._take(self._held[0]):
                if self._held:  # a lost connection has not cleared them
                    self._add(-len(self._held.popleft().raw))
        finally:
            self._is_advancing = False

    def _take(self, message: Publish) -> bool:
        """Take a message, unless it has to wait."""
        packet_id = message.number
        item = self.in_flight.get(packet_id) if packet_id else None
        if item is not None:
            if item.orphan:
                self._deferred[packet_id] = message
            return True  # repeated over a new connection while it is still in flight
        digest = message.digest() if packet_id else 0
        if packet_id and message.dup and self._store.has(packet_id, digest):
            self._take_again(message, digest)
            return True
        decision = self._policy.decide(message, digest)
        if decision is Hold.BARRIER and not self.in_flight:
            decision = self._policy.pass_barrier(message)
        if isinstance(decision, Hold):
            return False
        if packet_id:
            self._accept(message, digest, decision)
        else:
            self._forward_at_qos0(decision)
        return True

    def _take_again(self, message: Publish, digest: int) -> None:
        """A repeated message that was finished, or stored by the far broker, before this connection."""
        packet_id = message.number
        number = self._store.next_number()
        dropped = self._store.was_dropped(packet_id)
        self._store.record(packet_id, number, digest, dropped)
        if dropped:
            self._end(packet_id)
        else:
            self._release(message, number, digest)

    def _release(self, message: Publish, number: int, digest: int) -> None:
        """Have the far broker release a packet id that it can hold from before, without another message."""
        self.in_flight[message.number] = _InFlight(message.topic, b"", number, digest, RELEASED)
        if self._far is not None:
            self._quota -= 1
            self._far(acknowledgement(PUBREL, message.number))

    def _accept(self, message: Publish, digest: int, packet: bytes | None) -> None:
        """Take over the responsibility for a new message."""
        packet_id = message.number
        number = self._store.next_number()
        if packet is None:
            self.counts["dropped"] += 1
            if message.dup:  # an earlier process can have sent something under this packet id
                self._store.record(packet_id, number, digest)  # so that no repetition is decided anew
                self._release(message, number, digest)
                return
            self._store.record(packet_id, number, digest, dropped=True)
            self._end(packet_id)
            return
        size = len(packet)
        self._store.clear(packet_id)
        if self._is_direct and self._quota > 0 and not self._waiting and size <= self._limits.largest:
            self.in_flight[packet_id] = _InFlight(message.topic, packet, number, digest, SENT)
            self._quota -= 1
            self._write(packet)
            self._add(size)
            return
        self.in_flight[packet_id] = _InFlight(message.topic, packet, number, digest, WAITING)
        self._waiting.append(packet_id)
        self._add(size)
        self._pump()

    def _forward_at_qos0(self, packet: bytes | None) -> None:
        """Forward a message of QoS 0 if possible, without a guarantee."""
        if packet is None:
            return
        if self._far is None or self.congested or len(packet) > self._limits.largest:
            self.counts["qos0_dropped"] += 1
        else:
            self._far(packet if self._limits.retain else _without_retain(packet))
            self._count(len(packet))

    def _drop_held(self) -> None:
        """Forget what the near broker repeats."""
        self._add(-sum(len(message.raw) for message in self._held))
        self._held.clear()

    # The far broker.

    def far_opens(self, send: SendPacket, connack: Connack) -> None:
        """The far broker is connected: resume the unfinished messages."""
        self._far = send
        self._limits = FarLimits.of(connack)
        self._quota = self._limits.quota
        present = connack.present
        if self._inherited is None:
            self._inherited = present
        if not present:
            self._inherited = False
            self._store.forget_far()
        self._resume(present)
        self._check_direct()
        self._pump()

    def far_closes(self) -> None:
        """The far connection is lost."""
        self._far = None
        self.congested = False
        self._is_direct = False

    def far_blames(self, reason: int) -> None:
        """The far broker has ended the connection because of a packet (reason of DISCONNECT)."""
        if reason not in BLAMES_A_PACKET:
            return
        sent = [packet_id for packet_id, item in self.in_flight.items() if item.state == SENT]
        if sent and self._suspects:
            item = self.in_flight[sent[0]]
            item.tries += 1
            if item.tries >= MOST_TRIES:
                self._refuse(sent.pop(0), f"the broker ends the connection ({reason:#x})")
        self._suspects.update(sent)
        self._check_direct()

    def stored(self, packet_id: int, reason: int) -> None:
        """PUBREC: the far broker has stored the message, or refuses it."""
        item = self.in_flight.get(packet_id)
        if item is None or item.state != SENT:
            return
        if reason >= FAILED:
            self._quota += 1
            self._try_again(packet_id, item, reason)
            return
        self._store.record(packet_id, item.number, item.digest)
        item.state = RELEASED
        self._write(acknowledgement(PUBREL, packet_id))

    def acknowledged(self, packet_id: int, reason: int) -> None:
        """PUBACK of a broker without QoS 2: it has the message, or refuses it."""
        item = self.in_flight.get(packet_id)
        if item is None or item.state != SENT:
            return
        self._quota += 1
        if reason >= FAILED:
            self._try_again(packet_id, item, reason)
            return
        self._store.record(packet_id, item.number, item.digest)
        self._count(len(item.packet))
        self._finish(packet_id)

    def completed(self, packet_id: int) -> None:
        """PUBCOMP: the far broker has delivered the message, now or earlier."""
        item = self.in_flight.get(packet_id)
        if item is None:
            return
        if item.state == CLEANING:
            self._cleaned.add(packet_id)
            self._send(packet_id, item)
        elif item.state == RELEASED:
            if item.packet:
                self._count(len(item.packet))
            self._quota += 1
            self._finish(packet_id)

    def set_congested(self, full: bool) -> None:
        """The far broker reads too slowly, or no longer."""
        self.congested = full
        self._check_direct()
        if not full:
            self._pump()

    def _check_direct(self) -> None:
        """Find out whether new messages can go to the far broker without further questions."""
        self._is_direct = (
            self._far is not None
            and self._limits.takes_all
            and not (self.congested or self._suspects or (self._uncertain and self._inherited))
        )

    def _resume(self, present: bool) -> None:
        """Repeat what the far broker has not acknowledged; `present`: it kept the session."""
        again = []
        for packet_id, item in list(self.in_flight.items()):
            if item.state == WAITING:
                continue
            if not present and not item.packet:
                self._finish(packet_id)  # finished before; nothing is left to send
            elif not present:
                item.state = WAITING  # the far broker can have had it: twice is better than never
                again.append(packet_id)
            elif item.state in (SENT, REPEATING):
                item.state = REPEATING
                again.append(packet_id)
            else:
                self._quota -= 1
                self._write(acknowledgement(PUBREL, packet_id))
        self._waiting.extendleft(reversed(again))

    def _pump(self) -> None:
        """Send waiting messages, as many as the far broker accepts."""
        if self._is_pumping:
            return
        self._is_pumping = True
        try:
            while self._waiting and self._quota > 0 and self._far is not None and not self.congested:
                if self._suspects and any(item.state == SENT for item in self.in_flight.values()):
                    return
                self._send_next(self._waiting.popleft())
        finally:
            self._is_pumping = False

    def _send_next(self, packet_id: int) -> None:
        """Send the message of a packet id, if it still waits."""
        item = self.in_flight.get(packet_id)
        if item is None or item.state not in (WAITING, REPEATING):
            return
        if len(item.packet) > self._limits.largest:
            self._refuse(packet_id, f"it is larger than {self._limits.largest:,} bytes")
            return
        self._quota -= 1
        is_new = item.state == WAITING
        if is_new and self._uncertain and self._inherited and packet_id not in self._cleaned:
            item.state = CLEANING
            self._write(acknowledgement(PUBREL, packet_id))
        else:
            self._send(packet_id, item)

    def _send(self, packet_id: int, item: _InFlight) -> None:
        flags = DUP if item.state == REPEATING and self._limits.quality else 0
        item.state = SENT
        self._store.clear(packet_id)
        self._write_packet(item, flags)
        if not self._limits.quality:
            self._quota += 1
            self._count(len(item.packet))
            self._finish(packet_id)

    def _write_packet(self, item: _InFlight, flags: int = 0) -> None:
        packet = item.packet if self._limits.retain else _without_retain(item.packet)
        if self._limits.quality < 2:
            packet = at_quality(packet, self._limits.quality)
        self._write(b"%c%b" % (packet[0] | flags, packet[1:]) if flags else packet)

    def _write(self, packet: bytes) -> None:
        if self._far is not None:
            self._far(packet)

    def _try_again(self, packet_id: int, item: _InFlight, reason: int) -> None:
        """Send a refused message again after a moment; set it aside after some tries."""
        item.tries += 1
        item.state = WAITING
        if item.tries >= MOST_TRIES:
            self._refuse(packet_id, f"the broker refuses it ({reason:#x})")
        else:
            self._later(RETRY_SECONDS * item.tries, lambda: self._retry(packet_id, item))

    def _retry(self, packet_id: int, item: _InFlight) -> None:
        if self.in_flight.get(packet_id) is item and item.state == WAITING:
            self._waiting.append(packet_id)
            self._pump()

    # The end of a message.

    def _refuse(self, packet_id: int, reason: str) -> None:
        """Set a message aside, so that the others go on."""
        item = self.in_flight[packet_id]
        self.counts["dead_letters"] += 1
        self._set_aside(DeadLetter(item.topic, item.packet, reason))
        self._store.record(packet_id, item.number, item.digest, dropped=True)
        self._finish(packet_id)

    def _finish(self, packet_id: int) -> None:
        item = self.in_flight.pop(packet_id)
        if self._suspects:
            self._suspects.discard(packet_id)
            self._check_direct()
        self._add(-len(item.packet))
        if not item.orphan:
            self._end(packet_id)
        if self._deferred and (new := self._deferred.pop(packet_id, None)) is not None:
            self._take(new)
        if self._waiting:
            self._pump()
        if self._held:
            self.advance()

    def _end(self, packet_id: int) -> None:
        """Acknowledge a message, in order of arrival as MQTT requires."""
        if packet_id not in self._open:
            return  # the near broker repeats it over its new connection, and is acknowledged then
        unacked = self._unacked
        if unacked[0] != packet_id:
            self._done.add(packet_id)
            return
        self._acknowledge(unacked.popleft())
        while unacked and unacked[0] in self._done:
            packet_id = unacked.popleft()
            self._done.remove(packet_id)
            self._acknowledge(packet_id)

    def _acknowledge(self, packet_id: int) -> None:
        self._open.remove(packet_id)
        if self._near is not None:
            self._near(acknowledgement(PUBACK, packet_id))

    def _count(self, size: int) -> None:
        self.counts["messages"] += 1
        self.counts["bytes"] += size

    # The budget of bytes.

    def _add(self, size: int) -> None:
        self.size += size
        self._budget.add(size)
        if self.size > self._small or self._budget.paused:
            self.check_budget()

    def check_budget(self) -> None:
        """Stop reading from the near broker if too much is in flight, or go on."""
        budget = self._budget
        full = self.size > budget.per_hop or (budget.used > budget.total and self.size > SMALL_BYTES)
        if full and self not in budget.paused:
            budget.paused.add(self)
            self._pause(True)
        elif not full and self in budget.paused:
            budget.paused.discard(self)
            self._pause(False)

    def release_budget(self) -> None:
        """The hop ends: give its bytes back."""
        self._budget.paused.discard(self)
        self._budget.add(-self.size)
        self.size = 0


class FarLimits(NamedTuple):
    """What the far broker accepts.

    Attributes:
        quota: number of unfinished messages.
        largest: bytes of a packet.
        quality: the highest quality of service.
        retain: whether messages can be retained.
    """

    quota: int = LAST_ID
    largest: int = LARGEST_PACKET
    quality: int = 2
    retain: bool = True

    @property
    def takes_all(self) -> bool:
        """Whether it takes messages as they are, unless they are too large."""
        return self.quality == 2 and self.retain

    @classmethod
    def of(cls, connack: Connack) -> FarLimits:
        """The limits of a broker's CONNACK."""
        return cls(*connack_limits(connack))


def _without_retain(packet: bytes) -> bytes:
    return b"%c%b" % (packet[0] & ~RETAIN, packet[1:])

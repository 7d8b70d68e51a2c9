"""Simulated MQTT brokers and a simulated network, in one process with a clock of its own.

Delays are random, connections break, brokers keep their sessions. Nothing here shares code with the agent:
packets are read and written independently.
"""

import asyncio
import random
import selectors
from collections import Counter, deque
from dataclasses import dataclass

from broadloom.mqtt.endpoint import Endpoint


class OwnTime(asyncio.SelectorEventLoop):
    """Event loop that never waits: when it is idle, its clock jumps to the next timer."""

    def __init__(self):
        super().__init__(_Jumping())
        self._selector.loop = self
        self.now = 0.0

    def time(self):
        """The simulated time."""
        return self.now


class _Jumping(selectors.SelectSelector):
    def select(self, timeout=None):
        if timeout:
            self.loop.now += timeout
        return super().select(0)


class Pipe(asyncio.Transport):
    """Connection from a client to a broker; each direction keeps the order and has random delays."""

    def __init__(self, client, broker, chance):
        super().__init__()
        self.client, self.broker, self.chance = client, broker, chance
        self.loop = asyncio.get_running_loop()
        self.open, self.session, self.rest = True, None, b""
        self.last = {"up": 0.0, "down": 0.0}
        self.coming = {"up": deque(), "down": deque()}

    def later(self, direction, call, *values):
        """Schedule a call at the end of a direction."""
        self.last[direction] = max(self.last[direction], self.loop.time()) + self.chance.choice(
            (0, 0, 0.001, 0.03)
        )
        self.coming[direction].append((call, values))
        self.loop.call_at(self.last[direction], self.next, direction)  # in order: equal timers have none

    def next(self, direction):
        """Make the next call of a direction."""
        call, values = self.coming[direction].popleft()
        call(*values)

    def write(self, data):
        """The client writes."""
        if self.open:
            self.later("up", self.broker_hears, bytes(data))

    def broker_hears(self, data):
        """Bytes come to the broker."""
        if self.open:
            self.rest += data
            while (packet := split(self.rest)) is not None:
                kind, flags, size, body = packet
                self.rest = self.rest[size:]
                self.broker.take(self, kind, flags, body)

    def down(self, data):
        """The broker writes."""
        self.later("down", lambda: self.client.data_received(data) if self.open else None)

    def close(self):
        """The client closes it."""
        self.later("up", self.cut)  # after all that was written

    def abort(self):
        """The client closes it at once."""
        self.cut()

    def cut(self):
        """Both ends see it closed; what was under way is lost."""
        if self.open:
            self.open = False
            if self.session is not None and self.session.pipe is self:
                self.session.pipe = None
            self.loop.call_soon(self.client.connection_lost, None)

    def kill(self):
        """The client is dead: what it has written may still arrive, but it hears nothing any more."""
        if self.open:
            self.client = Dead()
            self.later("up", self.cut)


class Dead(asyncio.Protocol):
    """Who was killed."""


@dataclass(frozen=True)
class FakeEndpoint(Endpoint):
    """Endpoint of a simulated broker."""

    broker: "Broker | None" = None
    chance: random.Random | None = None

    async def open(self, client):
        """Connect."""
        await asyncio.sleep(0.001)
        pipe = Pipe(client, self.broker, self.chance)
        self.broker.pipes.append(pipe)
        client.connection_made(pipe)


class Kept:
    """Session that a broker keeps."""

    def __init__(self, window):
        self.pipe, self.window, self.filters = None, window, set()
        self.queue, self.sent, self.held, self.next = deque(), {}, {}, 0


class Broker:
    """A broker: QoS 1 to clients, QoS 1 and 2 from them; sessions outlive connections."""

    def __init__(self, name, chance, window=20, forgetful=False, low_numbers=False):
        self.name, self.chance, self.window = name, chance, window
        self.forgetful, self.low_numbers = forgetful, low_numbers
        self.sessions, self.pipes = {}, []
        self.got = Counter()
        self.wanted = set()

    def publish(self, topic, payload, properties=b"", source=None):
        """Route a message, and deliver it to local subscribers."""
        if topic in self.wanted:
            self.got[payload] += 1
        for client, session in self.sessions.items():
            if topic in session.filters and client != source:
                session.queue.append((topic, payload, properties))
                self.pump(session)

    def pump(self, session):
        """Send queued messages."""
        while session.pipe and session.queue and len(session.sent) < session.window:
            if self.low_numbers:
                number = next(n for n in range(1, 65536) if n not in session.sent)
            else:
                session.next = number = session.next % 65535 + 1
            session.sent[number] = session.queue.popleft()
            session.pipe.down(written(0x32, number, session.sent[number]))

    def take(self, pipe, kind, flags, body):
        """Handle a packet."""
        session = pipe.session
        if kind == 1:
            self.connect(pipe, body)
        elif kind == 3:
            topic, number, properties, payload = publish_of(flags, body)
            if flags & 6 == 4:
                session.held.setdefault(number, (topic, payload, properties))
                pipe.down(bytes((0x50, 2)) + number.to_bytes(2))
            else:
                self.publish(topic, payload, properties, pipe.name)
                pipe.down(bytes((0x40, 2)) + number.to_bytes(2))
        elif kind == 4:
            session.sent.pop(int.from_bytes(body[:2]), None)
            self.pump(session)
        elif kind == 6:
            message = session.held.pop(int.from_bytes(body[:2]), None)
            if message is not None:
                self.publish(*message, pipe.name)
            pipe.down(bytes((0x70, 2)) + body[:2])
        elif kind in (8, 10):
            self.change(pipe, kind, body)
        elif kind == 12:
            pipe.down(b"\xd0\x00")
        elif kind == 14:
            if b"\x11\0\0\0\0" in body:
                self.sessions.pop(pipe.name, None)
            pipe.cut()

    def connect(self, pipe, body):
        """CONNECT."""
        clean, at = body[7] & 2, 11 + body[10]
        size = int.from_bytes(body[at : at + 2])
        pipe.name = body[at + 2 : at + 2 + size].decode()
        window = int.from_bytes(body[body.index(b"\x21", 10) + 1 :][:2])
        session = self.sessions.get(pipe.name)
        if session is not None and session.pipe is not None:
            session.pipe.cut()  # the client has connected anew
        present = session is not None and not clean
        if not present:
            session = self.sessions[pipe.name] = Kept(min(window, self.window))
        session.pipe, pipe.session = pipe, session
        pipe.down(bytes((0x20, 6, present, 0, 3, 0x21)) + self.window.to_bytes(2))
        for number, message in session.sent.items():
            pipe.down(written(0x3A, number, message))
        self.pump(session)

    def change(self, pipe, kind, body):
        """SUBSCRIBE or UNSUBSCRIBE."""
        at, filters = 3, []
        while at < len(body):
            size = int.from_bytes(body[at : at + 2])
            filters.append(body[at + 2 : at + 2 + size].decode())
            at += 2 + size + (kind == 8)
        session = pipe.session
        if kind == 8:
            session.filters.update(filters)
        else:
            session.filters.difference_update(filters)
            if self.forgetful:  # a broker may drop what it has not begun to send
                session.queue = deque(one for one in session.queue if one[0] not in filters)
        answers = bytes(1 if kind == 8 else 0 for _ in filters)
        pipe.down(bytes((0x90 if kind == 8 else 0xB0, 3 + len(answers))) + body[:2] + b"\0" + answers)


def split(data):
    """Kind, flags, length and body of the first packet, if it is complete."""
    size = shift = 0
    for at, byte in enumerate(data[1:5], 1):
        size |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            end = at + 1 + size
            return (data[0] >> 4, data[0] & 15, end, data[at + 1 : end]) if len(data) >= end else None
    return None


def publish_of(flags, body):
    """Topic, number, properties and payload of a message whose properties are shorter than 128 bytes."""
    at = 2 + int.from_bytes(body[:2])
    topic, number = body[2:at].decode(), 0
    if flags & 6:
        number, at = int.from_bytes(body[at : at + 2]), at + 2
    end = at + 1 + body[at]
    return topic, number, body[at + 1 : end], body[end:]


def written(first, number, message):
    """A PUBLISH of less than 16 kB."""
    topic, payload, properties = message
    name = topic.encode()
    body = (
        len(name).to_bytes(2) + name + number.to_bytes(2) + bytes((len(properties),)) + properties + payload
    )
    size = bytes((len(body),)) if len(body) < 128 else bytes((len(body) & 127 | 128, len(body) >> 7))
    return bytes((first,)) + size + body


def identified(text):
    """The property that carries an id."""
    return b"\x26\x00\x0cbroadloom-id" + len(text).to_bytes(2) + text

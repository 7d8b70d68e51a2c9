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


class SimulatedLoop(asyncio.SelectorEventLoop):
    """Event loop that never waits: when it is idle, its clock jumps to the next timer."""

    def __init__(self):
        super().__init__(_JumpingSelector())
        self._selector.loop = self
        self.now = 0.0

    def time(self):
        """The simulated time."""
        return self.now


class _JumpingSelector(selectors.SelectSelector):
    def select(self, timeout=None):
        if timeout:
            self.loop.now += timeout
        return super().select(0)


class Connection(asyncio.Transport):
    """Connection from a client to a broker; each direction keeps the order and has random delays."""

    def __init__(self, client, broker, rng):
        super().__init__()
        self.client, self.broker, self.rng = client, broker, rng
        self.loop = asyncio.get_running_loop()
        self.open, self.session, self.partial = True, None, b""
        self.last = {"up": 0.0, "down": 0.0}
        self.pending = {"up": deque(), "down": deque()}

    def later(self, direction, call, *values):
        """Schedule a call at the end of a direction."""
        self.last[direction] = max(self.last[direction], self.loop.time()) + self.rng.choice(
            (0, 0, 0.001, 0.03)
        )
        self.pending[direction].append((call, values))
        self.loop.call_at(self.last[direction], self.next, direction)  # equal timers have no order

    def next(self, direction):
        """Make the next call of a direction."""
        call, values = self.pending[direction].popleft()
        call(*values)

    def write(self, data):
        """Send bytes of the client."""
        if self.open:
            self.later("up", self.to_broker, bytes(data))

    def to_broker(self, data):
        """Deliver bytes to the broker."""
        if self.open:
            self.partial += data
            while (packet := first_packet(self.partial)) is not None:
                kind, flags, size, body = packet
                self.partial = self.partial[size:]
                self.broker.handle(self, kind, flags, body)

    def to_client(self, data):
        """Send bytes of the broker."""
        self.later("down", lambda: self.client.data_received(data) if self.open else None)

    def close(self):
        """Close the connection after all written bytes."""
        self.later("up", self.cut)

    def abort(self):
        """Close the connection at once."""
        self.cut()

    def cut(self):
        """Break the connection; bytes in transit are lost."""
        if self.open:
            self.open = False
            if self.session is not None and self.session.connection is self:
                self.session.connection = None
            self.loop.call_soon(self.client.connection_lost, None)

    def kill(self):
        """Simulate the death of the client: its bytes can still arrive, but it receives nothing more."""
        if self.open:
            self.client = DeadClient()
            self.later("up", self.cut)


class DeadClient(asyncio.Protocol):
    """Client process that was killed."""


@dataclass(frozen=True)
class FakeEndpoint(Endpoint):
    """Endpoint of a simulated broker."""

    broker: "Broker | None" = None
    rng: random.Random | None = None

    async def open(self, client):
        """Connect."""
        await asyncio.sleep(0.001)
        connection = Connection(client, self.broker, self.rng)
        self.broker.connections.append(connection)
        client.connection_made(connection)


class BrokerSession:
    """Session that a broker keeps."""

    def __init__(self, window):
        self.connection, self.window, self.filters = None, window, set()
        self.queue, self.sent, self.held, self.next = deque(), {}, {}, 0


class Broker:
    """A broker: QoS 1 to clients, QoS 1 and 2 from them; sessions outlive connections."""

    def __init__(self, name, rng, window=20, forgetful=False, low_ids=False):
        self.name, self.rng, self.window = name, rng, window
        self.forgetful, self.low_ids = forgetful, low_ids
        self.sessions, self.connections = {}, []
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
        while session.connection and session.queue and len(session.sent) < session.window:
            if self.low_ids:
                number = next(n for n in range(1, 65536) if n not in session.sent)
            else:
                session.next = number = session.next % 65535 + 1
            session.sent[number] = session.queue.popleft()
            session.connection.to_client(publish_packet(0x32, number, session.sent[number]))

    def handle(self, connection, kind, flags, body):
        """Handle a packet."""
        session = connection.session
        if kind == 1:
            self.connect(connection, body)
        elif kind == 3:
            topic, number, properties, payload = parse_publish(flags, body)
            if flags & 6 == 4:
                session.held.setdefault(number, (topic, payload, properties))
                connection.to_client(bytes((0x50, 2)) + number.to_bytes(2))
            else:
                self.publish(topic, payload, properties, connection.name)
                connection.to_client(bytes((0x40, 2)) + number.to_bytes(2))
        elif kind == 4:
            session.sent.pop(int.from_bytes(body[:2]), None)
            self.pump(session)
        elif kind == 6:
            message = session.held.pop(int.from_bytes(body[:2]), None)
            if message is not None:
                self.publish(*message, connection.name)
            connection.to_client(bytes((0x70, 2)) + body[:2])
        elif kind in (8, 10):
            self.change(connection, kind, body)
        elif kind == 12:
            connection.to_client(b"\xd0\x00")
        elif kind == 14:
            if b"\x11\0\0\0\0" in body:
                self.sessions.pop(connection.name, None)
            connection.cut()

    def connect(self, connection, body):
        """Handle CONNECT."""
        clean, at = body[7] & 2, 11 + body[10]
        size = int.from_bytes(body[at : at + 2])
        connection.name = body[at + 2 : at + 2 + size].decode()
        window = int.from_bytes(body[body.index(b"\x21", 10) + 1 :][:2])
        session = self.sessions.get(connection.name)
        if session is not None and session.connection is not None:
            session.connection.cut()  # the client has reconnected
        present = session is not None and not clean
        if not present:
            session = self.sessions[connection.name] = BrokerSession(min(window, self.window))
        session.connection, connection.session = connection, session
        connection.to_client(bytes((0x20, 6, present, 0, 3, 0x21)) + self.window.to_bytes(2))
        for number, message in session.sent.items():
            connection.to_client(publish_packet(0x3A, number, message))
        self.pump(session)

    def change(self, connection, kind, body):
        """Handle SUBSCRIBE or UNSUBSCRIBE."""
        at, filters = 3, []
        while at < len(body):
            size = int.from_bytes(body[at : at + 2])
            filters.append(body[at + 2 : at + 2 + size].decode())
            at += 2 + size + (kind == 8)
        session = connection.session
        if kind == 8:
            session.filters.update(filters)
        else:
            session.filters.difference_update(filters)
            if self.forgetful:  # a broker is allowed to drop messages that it has not sent yet
                session.queue = deque(one for one in session.queue if one[0] not in filters)
        answers = bytes(1 if kind == 8 else 0 for _ in filters)
        connection.to_client(
            bytes((0x90 if kind == 8 else 0xB0, 3 + len(answers))) + body[:2] + b"\0" + answers
        )


def first_packet(data):
    """Kind, flags, length and body of the first packet, if it is complete."""
    size = shift = 0
    for at, byte in enumerate(data[1:5], 1):
        size |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            end = at + 1 + size
            return (data[0] >> 4, data[0] & 15, end, data[at + 1 : end]) if len(data) >= end else None
    return None


def parse_publish(flags, body):
    """Topic, packet id, properties and payload of a PUBLISH with less than 128 bytes of properties."""
    at = 2 + int.from_bytes(body[:2])
    topic, number = body[2:at].decode(), 0
    if flags & 6:
        number, at = int.from_bytes(body[at : at + 2]), at + 2
    end = at + 1 + body[at]
    return topic, number, body[at + 1 : end], body[end:]


def publish_packet(first, number, message):
    """A PUBLISH packet of less than 16 kB."""
    topic, payload, properties = message
    name = topic.encode()
    body = (
        len(name).to_bytes(2) + name + number.to_bytes(2) + bytes((len(properties),)) + properties + payload
    )
    size = bytes((len(body),)) if len(body) < 128 else bytes((len(body) & 127 | 128, len(body) >> 7))
    return bytes((first,)) + size + body


def id_property(text):
    """The user property with a message id."""
    return b"\x26\x00\x0cbroadloom-id" + len(text).to_bytes(2) + text

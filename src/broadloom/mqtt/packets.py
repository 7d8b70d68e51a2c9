"""MQTT 5 packets, as few as a link needs; what is malformed is refused with a word (OASIS MQTT 5.0)."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import NamedTuple

from broadloom.mqtt.endpoint import Login
from broadloom.mqtt.reserved_topics import MESSAGE_ID

CONNECT, CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP = 0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70
SUBSCRIBE, SUBACK, UNSUBSCRIBE, UNSUBACK, PINGREQ, PINGRESP, DISCONNECT = (
    0x80,
    0x90,
    0xA0,
    0xB0,
    0xC0,
    0xD0,
    0xE0,
)
LAST_ID = 65_535
LARGEST = 268_435_455  # of any packet, by its length of four bytes
FAILED = 0x80  # reasons from here on are refusals
RETAIN, DUP = 0x01, 0x08
QOS_2 = 0x04
ID_PROPERTY = MESSAGE_ID.encode()

PING = bytes((PINGREQ, 0))
SESSION_EXPIRY, RECEIVE_MAXIMUM, MAXIMUM_PACKET, MAXIMUM_QOS = 0x11, 0x21, 0x27, 0x24
_USER = 0x26
_SIZES = {0x01: 1, 0x17: 1, 0x19: 1, MAXIMUM_QOS: 1, 0x25: 1, 0x28: 1, 0x29: 1, 0x2A: 1}
_SIZES |= {0x13: 2, RECEIVE_MAXIMUM: 2, 0x22: 2, 0x23: 2}
_SIZES |= {0x02: 4, SESSION_EXPIRY: 4, 0x18: 4, MAXIMUM_PACKET: 4}
_TEXTS = frozenset((0x03, 0x08, 0x09, 0x12, 0x15, 0x16, 0x1A, 0x1C, 0x1F))
_VARIABLE = 0x0B
# The flags of the first byte that are no free choice.
_FLAGS = {CONNACK: 0, PUBACK: 0, PUBREC: 0, PUBREL: 2, PUBCOMP: 0, SUBACK: 0, UNSUBACK: 0, PINGRESP: 0}
_FLAGS |= {DISCONNECT: 0}

_SHORT = struct.Struct(">H")


class ProtocolError(Exception):
    """A packet that no broker may send; the connection ends."""


class Publish(NamedTuple):
    """A message as it came.

    Attributes:
        raw: the whole packet.
        head: where its variable header begins.
        topic: its topic.
        number: its packet id; 0 for QoS 0.
        key: a digest of its id; 0 if it has none.
    """

    raw: bytes
    head: int
    topic: str
    number: int
    key: int

    @property
    def dup(self) -> bool:
        """Whether it was sent before."""
        return bool(self.raw[0] & DUP)

    def forwarded(self) -> bytes:
        """The packet for the far broker: the same, but at QoS 2, or at 0 if it came so."""
        first = PUBLISH | (self.raw[0] & RETAIN) | (QOS_2 if self.number else 0)
        return b"%c%b" % (first, self.raw[1:])

    def payload(self) -> bytes:
        """What it says."""
        return self.raw[_properties_of(self)[1] :]

    def stamped(self, text: bytes) -> Publish:
        """The same message with an id, for one that has none."""
        start, end = _properties_of(self)
        properties = self.raw[start:end] + b"%c%b%b" % (_USER, _text(ID_PROPERTY), _text(text))
        before = self.raw[self.head : _property_length_at(self)]
        body = before + _length(len(properties)) + properties + self.raw[end:]
        raw = b"%c%b%b" % (self.raw[0], _length(len(body)), body)
        return self._replace(raw=raw, head=len(raw) - len(body), key=_key(text))


class PacketReader:
    """The packets in a stream of bytes."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._have, self._need = 0, 2

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes, int]]:
        """Each whole packet: its kind, all its bytes, and where its variable header begins.

        Raises:
            ProtocolError: a length of more than four bytes, or flags that no packet has.
        """
        self._parts.append(data)
        self._have += len(data)
        if self._have < self._need:
            return  # a large packet is put together once, when all of it is there
        data, at, self._need = b"".join(self._parts), 0, 2
        while at < len(data):
            found = _read_length(data, at + 1, len(data))
            if found is None:
                break
            size, head = found
            kind = data[at] & 0xF0
            if kind != PUBLISH and _FLAGS.get(kind) != data[at] & 0x0F:
                raise ProtocolError(f"a packet begins with {data[at]:#04x}")
            if head + size > len(data):
                self._need = head + size - at
                break
            yield kind, data[at : head + size], head - at
            at = head + size
        self._parts, self._have = [data[at:]], len(data) - at


def read_publish(raw: bytes, head: int) -> Publish:
    """A message from the bytes of its packet.

    Raises:
        ProtocolError: it is malformed.
    """
    qos = raw[0] >> 1 & 3
    if qos > 1:
        raise ProtocolError(f"a message at QoS {qos}, though 1 was asked for")
    topic_end = _end_of_text(raw, head)
    try:
        topic = raw[head + 2 : topic_end].decode()
    except UnicodeDecodeError as error:
        raise ProtocolError("a topic that is no UTF-8") from error
    if not topic or "+" in topic or "#" in topic or "\0" in topic:
        raise ProtocolError("a message without a topic, or with a wildcard in it")
    number, at = 0, topic_end
    if qos:
        number, at = _short(raw, at), at + 2
        if not number:
            raise ProtocolError("a message with packet id 0")
    found = _read_length(raw, at, len(raw))
    if found is None or sum(found) > len(raw):
        raise ProtocolError("properties that end behind their packet")
    size, start = found
    key = _find_id(raw, start, start + size) if size else 0
    return Publish(raw, head, topic, number, key)


def read_number(raw: bytes, head: int) -> tuple[int, int]:
    """The packet id and the reason of an acknowledgement."""
    return _short(raw, head), raw[head + 2] if len(raw) > head + 2 else 0


def read_reasons(raw: bytes, head: int) -> tuple[int, bytes]:
    """The packet id of the answer to a (un)subscription, and a reason for each filter."""
    _, end = read_properties(raw, head + 2)
    return _short(raw, head), raw[end:]


class Connack(NamedTuple):
    """What a broker says when a client connects."""

    present: bool
    reason: int
    properties: Mapping[int, int]


def read_connack(raw: bytes, head: int) -> Connack:
    """The answer to CONNECT."""
    if len(raw) < head + 2:
        raise ProtocolError("an answer to CONNECT that is too short")
    properties, _ = read_properties(raw, head + 2) if len(raw) > head + 2 else ({}, 0)
    return Connack(bool(raw[head] & 1), raw[head + 1], properties)


def read_properties(raw: bytes, at: int) -> tuple[dict[int, int], int]:
    """The numbers among the properties at a place, and where they end."""
    found = _read_length(raw, at, len(raw))
    if found is None or sum(found) > len(raw):
        raise ProtocolError("properties that end behind their packet")
    size, start = found
    end, numbers = start + size, {}
    for kind, begin, stop in _walk(raw, start, end):
        if kind in _SIZES:
            numbers[kind] = int.from_bytes(raw[begin:stop])
    return numbers, end


def connect(
    client: str, clean: bool, keep_alive: int, expiry: int, window: int, login: Login | None = None
) -> bytes:
    """CONNECT; the session is kept for `expiry` seconds, and at most `window` messages come unanswered."""
    user = None if login is None else login.user
    flags = (0x02 if clean else 0) | (0 if user is None else 0xC0)
    properties = struct.pack(">BIBH", SESSION_EXPIRY, expiry, RECEIVE_MAXIMUM, window)
    body = _text(b"MQTT") + struct.pack(">BBH", 5, flags, keep_alive)
    body += _length(len(properties)) + properties + _text(client.encode())
    if login is not None and user is not None:
        body += _text(user.encode()) + _text((login.password or "").encode())
    return _packet(CONNECT, body)


def subscribe(number: int, filters: Iterable[str], retained: bool) -> bytes:
    """SUBSCRIBE at QoS 1, nothing of one's own, retained as published.

    Args:
        number: the packet id.
        filters: what to subscribe to.
        retained: whether what is retained comes too, if the subscription is new.
    """
    options = 0x01 | 0x04 | 0x08 | (0x10 if retained else 0x20)
    parts = b"".join(_text(one.encode()) + bytes((options,)) for one in filters)
    return _packet(SUBSCRIBE | 2, _SHORT.pack(number) + b"\0" + parts)


def unsubscribe(number: int, filters: Iterable[str]) -> bytes:
    """UNSUBSCRIBE."""
    return _packet(
        UNSUBSCRIBE | 2, _SHORT.pack(number) + b"\0" + b"".join(_text(one.encode()) for one in filters)
    )


def publish(
    topic: str, payload: bytes, number: int = 0, properties: Sequence[tuple[bytes, bytes]] = ()
) -> bytes:
    """PUBLISH at QoS 1, or at 0 without a number, with user properties."""
    users = b"".join(b"%c%b%b" % (_USER, _text(name), _text(value)) for name, value in properties)
    body = _text(topic.encode()) + (_SHORT.pack(number) if number else b"") + _length(len(users)) + users
    return _packet(PUBLISH | (2 if number else 0), body + payload)


def acknowledgement(kind: int, number: int) -> bytes:
    """PUBACK, PUBREC, PUBREL or PUBCOMP."""
    return b"%c\2%b" % (kind | (2 if kind == PUBREL else 0), _SHORT.pack(number))


def disconnect(expiry: int | None = None) -> bytes:
    """DISCONNECT; with an expiry the session is kept so long from now on."""
    if expiry is None:
        return bytes((DISCONNECT, 0))
    return _packet(DISCONNECT, b"\0" + b"\5" + struct.pack(">BI", SESSION_EXPIRY, expiry))


def _packet(first: int, body: bytes) -> bytes:
    return b"%c%b%b" % (first, _length(len(body)), body)


def _key(text: bytes) -> int:
    """A digest of an id, never 0."""
    return int.from_bytes(blake2b(text, digest_size=8).digest()) or 1


def _find_id(raw: bytes, start: int, end: int) -> int:
    """The digest of the id among properties, or 0."""
    if ID_PROPERTY not in raw[start:end]:
        return 0
    for kind, begin, _ in _walk(raw, start, end):
        if kind == _USER and raw[begin + 2 : (middle := _end_of_text(raw, begin))] == ID_PROPERTY:
            return _key(raw[middle + 2 : _end_of_text(raw, middle)])
    return 0


def _walk(raw: bytes, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Each property: its kind, and where its value begins and ends."""
    while at < end:
        kind, begin = raw[at], at + 1
        if kind in _SIZES:
            at = begin + _SIZES[kind]
        elif kind in _TEXTS:
            at = _end_of_text(raw, begin)
        elif kind == _USER:
            at = _end_of_text(raw, _end_of_text(raw, begin))
        elif kind == _VARIABLE and (found := _read_length(raw, begin, end)):
            at = found[1]
        else:
            raise ProtocolError(f"a property of kind {kind:#04x}")
        if at > end:
            raise ProtocolError("a property that ends behind its packet")
        yield kind, begin, at


def _property_length_at(message: Publish) -> int:
    return _end_of_text(message.raw, message.head) + (2 if message.number else 0)


def _properties_of(message: Publish) -> tuple[int, int]:
    """Where the properties of a message begin and end."""
    found = _read_length(message.raw, _property_length_at(message), len(message.raw))
    assert found is not None
    return found[1], sum(found)


def _end_of_text(raw: bytes, at: int) -> int:
    end = at + 2 + _short(raw, at)
    if end > len(raw):
        raise ProtocolError("a text that ends behind its packet")
    return end


def _short(raw: bytes, at: int) -> int:
    if at + 2 > len(raw):
        raise ProtocolError("a packet that is too short")
    return raw[at] << 8 | raw[at + 1]


def _text(value: bytes) -> bytes:
    return _SHORT.pack(len(value)) + value


def _length(size: int) -> bytes:
    """A number in one to four bytes, seven bits each."""
    out = bytearray()
    while size > 0x7F:
        out.append(size & 0x7F | 0x80)
        size >>= 7
    out.append(size)
    return bytes(out)


def _read_length(data: bytes, at: int, end: int) -> tuple[int, int] | None:
    """A number of one to four bytes and the place behind it; None if it is not all there."""
    size = shift = 0
    for place in range(at, min(at + 4, end)):
        byte = data[place]
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            return size, place + 1
        shift += 7
    if end - at >= 4:
        raise ProtocolError("a length of more than four bytes")
    return None

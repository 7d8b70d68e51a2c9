"""MQTT 5 packet codec: the packets of a client session that forwards messages (OASIS MQTT 5.0).

Probes of brokers also send CONNECT and PUBLISH of MQTT 3.1.1.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple
from zlib import crc32

from broadloom.errors import InternalError
from broadloom.mqtt.endpoint import Login
from broadloom.mqtt.reserved_topics import ROUTE_STAMP

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
LAST_ID = 65_535  # the highest packet id
LARGEST_PACKET = 268_435_455  # bytes, by the four bytes of a packet's length
FAILED = 0x80  # reason codes from here on are refusals
RETAIN, DUP = 0x01, 0x08
QOS_2 = 0x04

PING = bytes((PINGREQ, 0))
SESSION_EXPIRY, RECEIVE_MAXIMUM, MAXIMUM_PACKET, MAXIMUM_QOS = 0x11, 0x21, 0x27, 0x24
# 0: the broker does not have it; without the property it has.
RETAIN_AVAILABLE, WILDCARDS_AVAILABLE, SHARED_AVAILABLE = 0x25, 0x28, 0x2A
IDENTIFIERS_AVAILABLE = 0x29
_USER = 0x26  # kind of a user property
# Bytes of the properties with a fixed size.
_SIZES = {0x01: 1, 0x17: 1, 0x19: 1, MAXIMUM_QOS: 1, 0x25: 1, 0x28: 1, 0x29: 1, 0x2A: 1}
_SIZES |= {0x13: 2, RECEIVE_MAXIMUM: 2, 0x22: 2, 0x23: 2}
_SIZES |= {0x02: 4, SESSION_EXPIRY: 4, 0x18: 4, MAXIMUM_PACKET: 4}
_TEXTS = frozenset((0x03, 0x08, 0x09, 0x12, 0x15, 0x16, 0x1A, 0x1C, 0x1F))
_VARIABLE = 0x0B
# The required flags in the first byte of a packet.
_FLAGS = {CONNACK: 0, PUBACK: 0, PUBREC: 0, PUBREL: 2, PUBCOMP: 0, SUBACK: 0, UNSUBACK: 0, PINGRESP: 0}
_FLAGS |= {DISCONNECT: 0}

# The properties of a message that its publisher sets: payload format, expiry, content type, response topic,
# correlation data, user properties.
_OF_PUBLISHERS = frozenset((0x01, 0x02, 0x03, 0x08, 0x09, _USER))

_LONGEST_CACHED = 256  # bytes of a topic that is remembered

_SHORT = struct.Struct(">H")
_ACKNOWLEDGEMENT = struct.Struct(">BBH")
_ONE_BYTE = [bytes((number,)) for number in range(0x80)]
_ROUTE_NAME = _SHORT.pack(len(ROUTE_STAMP)) + ROUTE_STAMP.encode()


class ProtocolError(Exception):
    """A packet that violates the protocol; the connection ends."""


class Publish(NamedTuple):
    """A received message.

    Attributes:
        raw: the whole packet.
        head: the position of its variable header.
        topic: its topic.
        number: its packet id; 0 for QoS 0.
        properties_at: the position of the length of its properties.
        payload_at: the position of its payload.
        properties: the properties that its publisher set, without a stamp.
        identifiers: the identifiers of the subscriptions for which the broker sent it.
        stamp: the value of its user property `broadloom-route`; empty: none.
    """

    raw: bytes
    head: int
    topic: str
    number: int
    properties_at: int
    payload_at: int
    properties: bytes = b""
    identifiers: tuple[int, ...] = ()
    stamp: bytes = b""

    @property
    def dup(self) -> bool:
        """Whether the broker marks it as sent before."""
        return bool(self.raw[0] & DUP)

    @property
    def is_retained(self) -> bool:
        """Whether the broker marks it as retained."""
        return bool(self.raw[0] & RETAIN)

    def payload(self) -> bytes:
        """The payload."""
        return self.raw[self.payload_at :]

    def digest(self) -> int:
        """CRC-32 of the topic and the payload, which stay the same when a broker repeats the message."""
        return crc32(self.raw[self.payload_at :], crc32(self.topic.encode()))

    def with_stamp(self, value: bytes) -> bytes:
        """The packet for the next broker: the same message with a stamp, at QoS 2 or, as received, 0.

        The properties are rebuilt: the broker adds subscription identifiers, which a client must not send.
        """
        raw, head, _, number, properties_at, payload_at, properties, _, _ = self
        properties += _stamp_property(value)
        size = _length(len(properties))
        rest = properties_at - head + len(size) + len(properties) + len(raw) - payload_at
        first = PUBLISH | (raw[0] & RETAIN) | (QOS_2 if number else 0)
        return b"%c%b%b%b%b%b" % (
            first,
            _length(rest),
            raw[head:properties_at],
            size,
            properties,
            raw[payload_at:],
        )


class PacketReader:
    """Splits a stream of bytes into packets.

    Args:
        largest: the bytes of the largest packet that is accepted; None: any that MQTT allows.
    """

    def __init__(self, largest: int | None = None) -> None:
        self._largest = largest or sys.maxsize
        self._parts: list[bytes] = []
        self._size = 0
        self._needed = 2

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes, int]]:
        """Yield each complete packet: its kind, its bytes, and the position of its variable header.

        Raises:
            ProtocolError: a length has more than four bytes, a packet has wrong flags, or it is too large.
        """
        self._parts.append(data)
        self._size += len(data)
        if self._size < self._needed:
            return  # a large packet is joined once, when all of it is received
        data = b"".join(self._parts)
        at = 0
        self._needed = 2
        end = len(data)
        while at < end:
            head = at + 2
            if head <= end and data[at + 1] < 0x80:  # most packets are short
                stop = head + data[at + 1]
            elif (found := _read_length(data, at + 1, end)) is None:
                break
            else:
                head = found[1]
                stop = head + found[0]
            first = data[at]
            kind = first & 0xF0
            if kind != PUBLISH and _FLAGS.get(kind) != first & 0x0F:
                raise ProtocolError(f"a packet begins with {first:#04x}")
            if stop > end:
                if stop - at > self._largest:
                    raise ProtocolError(
                        f"a packet of {stop - at:,} bytes; at most {self._largest:,} are expected"
                    )
                self._needed = stop - at
                break
            yield kind, data[at:stop], head - at
            at = stop
        self._parts = [data[at:]]
        self._size = len(data) - at


def read_publish(raw: bytes, head: int) -> Publish:
    """Parse a PUBLISH packet.

    Raises:
        ProtocolError: it is malformed.
    """
    qos = raw[0] >> 1 & 3
    if qos > 1:
        raise ProtocolError(f"a message at QoS {qos}, though QoS 1 was requested")
    topic_end = _end_of_text(raw, head)
    name = raw[head + 2 : topic_end]
    topic = _known_topic(name) if len(name) <= _LONGEST_CACHED else _read_topic(name)
    number, at = 0, topic_end
    if qos:
        number, at = _short(raw, at), at + 2
        if not number:
            raise ProtocolError("a message with packet id 0")
    if at < len(raw) and not raw[at]:
        return Publish(raw, head, topic, number, at, at + 1)
    found = _read_length(raw, at, len(raw))
    if found is None or sum(found) > len(raw):
        raise ProtocolError("properties exceed their packet")
    size, start = found
    identifiers = []
    stamp = b""
    kept = []
    for kind, begin, stop in _walk(raw, start, start + size):
        if kind == _VARIABLE:
            identifiers.append((_read_length(raw, begin, stop) or (0, 0))[0])
        elif kind == _USER and raw.startswith(_ROUTE_NAME, begin):
            middle = begin + len(_ROUTE_NAME)
            stamp = raw[middle + 2 : _end_of_text(raw, middle)]
        elif kind in _OF_PUBLISHERS:
            kept.append(raw[begin - 1 : stop])
    properties = b"".join(kept)
    return Publish(raw, head, topic, number, at, start + size, properties, tuple(identifiers), stamp)


def _read_topic(name: bytes) -> str:
    """The topic of a message.

    Raises:
        ProtocolError: it is not one.
    """
    try:
        topic = name.decode()
    except UnicodeDecodeError as error:
        raise ProtocolError("a topic is not UTF-8") from error
    if not topic or "+" in topic or "#" in topic or "\0" in topic:
        raise ProtocolError("the topic of a message is empty or has a wildcard")
    return topic


_known_topic = lru_cache(10_000)(_read_topic)


def read_acknowledgement(raw: bytes, head: int) -> tuple[int, int]:
    """The packet id and the reason code of an acknowledgement."""
    if len(raw) == 4 and head == 2:  # without a reason: success
        return raw[2] << 8 | raw[3], 0
    return _short(raw, head), raw[head + 2] if len(raw) > head + 2 else 0


def read_reasons(raw: bytes, head: int) -> tuple[int, bytes]:
    """The packet id of a SUBACK or UNSUBACK, and one reason code per filter."""
    _, end = read_properties(raw, head + 2)
    return _short(raw, head), raw[end:]


class Connack(NamedTuple):
    """A parsed CONNACK packet.

    Attributes:
        present: whether the broker has a session of the client.
        reason: the reason code.
        properties: the numeric properties by their kind.
    """

    present: bool
    reason: int
    properties: Mapping[int, int]


def read_connack(raw: bytes, head: int) -> Connack:
    """Parse a CONNACK packet."""
    if len(raw) < head + 2:
        raise ProtocolError("CONNACK is too short")
    properties, _ = read_properties(raw, head + 2) if len(raw) > head + 2 else ({}, 0)
    return Connack(bool(raw[head] & 1), raw[head + 1], properties)


def read_properties(raw: bytes, at: int) -> tuple[dict[int, int], int]:
    """The numeric properties at a position, and the position after all properties."""
    found = _read_length(raw, at, len(raw))
    if found is None or sum(found) > len(raw):
        raise ProtocolError("properties exceed their packet")
    size, start = found
    end = start + size
    numbers = {}
    for kind, begin, stop in _walk(raw, start, end):
        if kind in _SIZES:
            numbers[kind] = int.from_bytes(raw[begin:stop])
    return numbers, end


def connack_limits(connack: Connack) -> tuple[int, int, int, bool]:
    """A broker's limits: unfinished messages, bytes of a packet, quality of service, retained messages."""
    properties = connack.properties
    return (
        properties.get(RECEIVE_MAXIMUM, LAST_ID) or LAST_ID,
        properties.get(MAXIMUM_PACKET, LARGEST_PACKET) or LARGEST_PACKET,
        properties.get(MAXIMUM_QOS, 2),
        properties.get(RETAIN_AVAILABLE, 1) != 0,
    )


def replaced_publish(message: Publish, topic: str, payload: bytes) -> bytes:
    """PUBLISH at QoS 2 with the packet id of a received message, and another topic and payload."""
    return _packet(PUBLISH | QOS_2, _text(topic.encode()) + _SHORT.pack(message.number) + b"\0" + payload)


def at_quality(packet: bytes, quality: int) -> bytes:
    """A PUBLISH packet of QoS 2 at QoS 0 or 1."""
    first = packet[0] & ~QOS_2
    if quality:
        return b"%c%b" % (first | 2, packet[1:])
    found = _read_length(packet, 1, len(packet))
    if found is None:
        raise InternalError("a packet has no length")
    head = found[1]
    topic_end = _end_of_text(packet, head)
    return _packet(first & ~DUP, packet[head:topic_end] + packet[topic_end + 2 :])


def connect(
    client: str,
    clean: bool,
    keep_alive: int,
    expiry: int,
    window: int,
    login: Login | None = None,
    will: tuple[str, bytes] | None = None,
) -> bytes:
    """CONNECT.

    Args:
        client: the client's id.
        clean: whether the broker deletes an earlier session.
        keep_alive: seconds after which a silent connection ends.
        expiry: seconds for which the broker keeps the session of an absent client.
        window: the receive maximum.
        login: user name and password.
        will: topic and payload of a retained message that the broker publishes if the connection is lost.
    """
    user = None if login is None else login.user
    flags = (0x02 if clean else 0) | (0 if user is None else 0xC0) | (0x2C if will else 0)
    properties = struct.pack(">BIBH", SESSION_EXPIRY, expiry, RECEIVE_MAXIMUM, window)
    body = _text(b"MQTT") + struct.pack(">BBH", 5, flags, keep_alive)
    body += _length(len(properties)) + properties + _text(client.encode())
    if will is not None:
        body += b"\0" + _text(will[0].encode()) + _text(will[1])
    if login is not None and user is not None:
        body += _text(user.encode()) + _text((login.password or "").encode())
    return _packet(CONNECT, body)


def connect_311(client: str, clean: bool, keep_alive: int, login: Login | None = None) -> bytes:
    """CONNECT of MQTT 3.1.1."""
    user = None if login is None else login.user
    flags = (0x02 if clean else 0) | (0 if user is None else 0xC0)
    body = _text(b"MQTT") + struct.pack(">BBH", 4, flags, keep_alive) + _text(client.encode())
    if login is not None and user is not None:
        body += _text(user.encode()) + _text((login.password or "").encode())
    return _packet(CONNECT, body)


def subscribe(
    number: int, filters: Iterable[str], retained: bool, identifier: int = 0, qos: int = 1
) -> bytes:
    """SUBSCRIBE with no-local and retain-as-published.

    Args:
        number: the packet id.
        filters: the topic filters.
        retained: whether the broker sends retained messages, if the subscription is new.
        identifier: a number that the broker sends with each message of the subscription; 0: none.
        qos: the highest quality of service of its messages.
    """
    properties = b"%c%b" % (_VARIABLE, _length(identifier)) if identifier else b""
    options = qos | 0x04 | 0x08 | (0x10 if retained else 0x20)
    parts = b"".join(_text(one.encode()) + bytes((options,)) for one in filters)
    return _packet(SUBSCRIBE | 2, _SHORT.pack(number) + _length(len(properties)) + properties + parts)


def unsubscribe(number: int, filters: Iterable[str]) -> bytes:
    """UNSUBSCRIBE."""
    return _packet(
        UNSUBSCRIBE | 2, _SHORT.pack(number) + b"\0" + b"".join(_text(one.encode()) for one in filters)
    )


def publish(
    topic: str,
    payload: bytes,
    number: int = 0,
    properties: Sequence[tuple[bytes, bytes]] = (),
    retain: bool = False,
) -> bytes:
    """PUBLISH at QoS 1, or at QoS 0 without a packet id, with user properties."""
    users = b"".join(b"%c%b%b" % (_USER, _text(name), _text(value)) for name, value in properties)
    body = _text(topic.encode()) + (_SHORT.pack(number) if number else b"") + _length(len(users)) + users
    return _packet(PUBLISH | (2 if number else 0) | (RETAIN if retain else 0), body + payload)


def publish_unreleased(topic: str, number: int) -> bytes:
    """PUBLISH of an empty message at QoS 2; Mosquitto delivers it only after PUBREL."""
    return _packet(PUBLISH | QOS_2, _text(topic.encode()) + _SHORT.pack(number) + b"\0")


def publish_311(topic: str, payload: bytes, number: int) -> bytes:
    """PUBLISH of MQTT 3.1.1 at QoS 1."""
    return _packet(PUBLISH | 2, _text(topic.encode()) + _SHORT.pack(number) + payload)


def acknowledgement(kind: int, number: int) -> bytes:
    """PUBACK, PUBREC, PUBREL or PUBCOMP."""
    return _ACKNOWLEDGEMENT.pack(kind | 2 if kind == PUBREL else kind, 2, number)


def disconnect(expiry: int | None = None) -> bytes:
    """DISCONNECT; with `expiry`, the broker keeps the session for that many seconds."""
    if expiry is None:
        return bytes((DISCONNECT, 0))
    return _packet(DISCONNECT, b"\0" + b"\5" + struct.pack(">BI", SESSION_EXPIRY, expiry))


@lru_cache(10_000)
def _stamp_property(value: bytes) -> bytes:
    """The user property of a stamp."""
    return b"%c%b%b" % (_USER, _ROUTE_NAME, _text(value))


def _packet(first: int, body: bytes) -> bytes:
    return b"%c%b%b" % (first, _length(len(body)), body)


def _walk(raw: bytes, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield each property: its kind, and the start and end of its value."""
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
            raise ProtocolError(f"a property has unknown kind {kind:#04x}")
        if at > end:
            raise ProtocolError("a property exceeds its packet")
        yield kind, begin, at


def _end_of_text(raw: bytes, at: int) -> int:
    end = at + 2 + _short(raw, at)
    if end > len(raw):
        raise ProtocolError("a string exceeds its packet")
    return end


def _short(raw: bytes, at: int) -> int:
    if at + 2 > len(raw):
        raise ProtocolError("a packet is too short")
    return raw[at] << 8 | raw[at + 1]


def _text(value: bytes) -> bytes:
    return _SHORT.pack(len(value)) + value


def _length(size: int) -> bytes:
    """A variable byte integer: one to four bytes, seven bits each."""
    if size < 0x80:
        return _ONE_BYTE[size]
    out = bytearray()
    while size > 0x7F:
        out.append(size & 0x7F | 0x80)
        size >>= 7
    out.append(size)
    return bytes(out)


def _read_length(data: bytes, at: int, end: int) -> tuple[int, int] | None:
    """A variable byte integer and the position after it; None: more bytes are needed."""
    size = shift = 0
    for position in range(at, min(at + 4, end)):
        byte = data[position]
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            return size, position + 1
        shift += 7
    if end - at >= 4:
        raise ProtocolError("a length has more than four bytes")
    return None

"""MQTT packets of versions 3.1, 3.1.1 and 5 as a relay between a client and a broker needs them."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from broadloom.mqtt.packets import (
    CONNECT,
    DUP,
    LAST_ID,
    PUBLISH,
    RECEIVE_MAXIMUM,
    RETAIN,
    SUBSCRIBE,
    UNSUBSCRIBE,
    ProtocolError,
    _end_of_text,
    _packet,
    _read_length,
    _short,
    _text,
    _walk,
)
from broadloom.mqtt.topic_filters import QosFilters

MQTT_5 = 5
TOPIC_ALIAS_MAXIMUM, TOPIC_ALIAS, SUBSCRIPTION_ID = 0x22, 0x23, 0x0B
CLEAN, HAS_WILL, HAS_PASSWORD, HAS_USER = 0x02, 0x04, 0x40, 0x80


async def read_packet(stream: asyncio.StreamReader, most: int) -> bytes:
    """Read one packet.

    Raises:
        ProtocolError: it is longer than `most` bytes, or its length is malformed.
        asyncio.IncompleteReadError: the stream ends.
    """
    head = await stream.readexactly(2)
    while head[-1] & 0x80:
        if len(head) == 5:
            raise ProtocolError("a length has more than four bytes")
        head += await stream.readexactly(1)
    found = _read_length(head, 1, len(head))
    size = 0 if found is None else found[0]
    if size > most:
        raise ProtocolError(f"a packet of {size:,} bytes; at most {most:,} are relayed")
    return head + await stream.readexactly(size)


class ConnectRequest(NamedTuple):
    """A client's CONNECT.

    Attributes:
        raw: the packet for the broker; the broker cannot use topic aliases, which a relay would have to know.
        version: 3, 4 (which is MQTT 3.1.1) or 5.
        client: the client id; empty: the broker is to choose one.
        clean: whether the client begins a new session.
        window: the most messages that the client receives without acknowledging them.
    """

    raw: bytes
    version: int
    client: str
    clean: bool
    window: int


def read_connect(raw: bytes) -> ConnectRequest:
    r"""Parse a CONNECT packet.

    Raises:
        ProtocolError: it is another packet, or malformed.

    Examples:
        >>> read_connect(b"\x10\x0e\0\4MQTT\4\2\0\x3c\0\2c1")[1:]
        (4, 'c1', True, 65535)
    """
    if raw[0] != CONNECT:
        raise ProtocolError(f"the first packet begins with {raw[0]:#04x}; expected CONNECT")
    found = _read_length(raw, 1, len(raw))
    if found is None:
        raise ProtocolError("CONNECT is too short")
    start = found[1]
    at = _end_of_text(raw, start)
    if len(raw) < at + 4:
        raise ProtocolError("CONNECT is too short")
    version, flags = raw[at] & 0x7F, raw[at + 1]
    at += 4
    window = LAST_ID
    body = raw[start:at]
    if version >= MQTT_5:
        kept = b""
        size, begin = _properties(raw, at)
        for kind, value, end in _walk(raw, begin, begin + size):
            if kind == RECEIVE_MAXIMUM:
                window = _short(raw, value) or LAST_ID
            if kind != TOPIC_ALIAS_MAXIMUM:
                kept += raw[value - 1 : end]
        at = begin + size
        body += _sized(kept)
    try:
        client = raw[at + 2 : _end_of_text(raw, at)].decode()
    except UnicodeDecodeError as error:
        raise ProtocolError("the client id is not UTF-8") from error
    return ConnectRequest(_packet(CONNECT, body + raw[at:]), version, client, bool(flags & CLEAN), window)


class RelayedPublish(NamedTuple):
    """A PUBLISH packet in any version.

    Attributes:
        topic: the topic.
        payload: the payload.
        quality: the quality of service.
        number: the packet id; 0 for QoS 0.
        is_retained: whether it is a retained message.
        properties: the properties of MQTT 5, without topic alias and subscription identifiers.
        number_at: the position of the packet id in the packet.
        is_repeated: whether the broker has sent it before, without an acknowledgement (DUP).
    """

    topic: bytes
    payload: bytes
    quality: int
    number: int
    is_retained: bool
    properties: bytes
    number_at: int
    is_repeated: bool = False

    def encoded(self, version: int, number: int) -> bytes:
        """The packet for a client of some version, with another packet id; QoS 2 becomes QoS 1."""
        quality = min(self.quality, 1)
        body = _text(self.topic) + (number.to_bytes(2) if quality else b"")
        body += _sized(self.properties) if version >= MQTT_5 else b""
        return _packet(PUBLISH | quality << 1 | (RETAIN if self.is_retained else 0), body + self.payload)


def read_any_publish(raw: bytes, version: int) -> RelayedPublish:
    r"""Parse a PUBLISH packet.

    Raises:
        ProtocolError: it is malformed.

    Examples:
        >>> read_any_publish(b"\x32\x06\0\1t\0\7x", 4)[:4]
        (b't', b'x', 1, 7)
    """
    found = _read_length(raw, 1, len(raw))
    if found is None:
        raise ProtocolError("PUBLISH is too short")
    head = found[1]
    at = _end_of_text(raw, head)
    topic = raw[head + 2 : at]
    quality = raw[0] >> 1 & 3
    number_at = at
    number = 0
    if quality:
        number = _short(raw, at)
        at += 2
    properties = b""
    if version >= MQTT_5:
        size, begin = _properties(raw, at)
        for kind, value, end in _walk(raw, begin, begin + size):
            if kind not in (TOPIC_ALIAS, SUBSCRIPTION_ID):
                properties += raw[value - 1 : end]
        at = begin + size
    flags = bool(raw[0] & RETAIN), bool(raw[0] & DUP)
    return RelayedPublish(topic, raw[at:], quality, number, flags[0], properties, number_at, flags[1])


def with_number(raw: bytes, at: int, number: int) -> bytes:
    """A packet with another packet id."""
    return raw[:at] + number.to_bytes(2) + raw[at + 2 :]


def number_of(raw: bytes) -> tuple[int, int]:
    """The packet id of an acknowledgement, SUBSCRIBE or the like, and its position."""
    found = _read_length(raw, 1, len(raw))
    if found is None:
        raise ProtocolError("a packet is too short")
    return _short(raw, found[1]), found[1]


def _properties(raw: bytes, at: int) -> tuple[int, int]:
    """The size of the properties at a position, and where they begin."""
    found = _read_length(raw, at, len(raw))
    if found is None or sum(found) > len(raw):
        raise ProtocolError("properties exceed their packet")
    return found


def _sized(properties: bytes) -> bytes:
    return _packet(0, properties)[1:]


def subscribe_plainly(number: int, filters: QosFilters) -> bytes:
    """SUBSCRIBE of MQTT 5 without retained messages; the client also receives what it publishes itself."""
    never_retained = 0x20
    parts = b"".join(_text(text.encode()) + bytes((quality | never_retained,)) for text, quality in filters)
    return _packet(SUBSCRIBE | 2, number.to_bytes(2) + b"\0" + parts)


def unsubscribe_plainly(number: int, text: str, version: int) -> bytes:
    """UNSUBSCRIBE from one filter, in the version of a client's connection."""
    properties = b"\0" if version >= MQTT_5 else b""
    return _packet(UNSUBSCRIBE | 2, number.to_bytes(2) + properties + _text(text.encode()))

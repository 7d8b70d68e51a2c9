"""Subscription identifiers: they are read from messages, and are never forwarded."""

from hypothesis import given
from hypothesis import strategies as st

from broadloom.mqtt.packets import PacketReader, publish, read_publish, subscribe

USERS = st.lists(st.tuples(st.binary(max_size=5), st.binary(max_size=200)), max_size=3)
NUMBERS = st.lists(st.integers(1, 268_435_455), max_size=4)


def variable(number):
    """A variable byte integer, as MQTT writes it."""
    out = b""
    while True:
        number, low = divmod(number, 128)
        out += bytes((low | (128 if number else 0),))
        if not number:
            return out


def with_identifiers(packet, numbers):
    """A packet with identifiers before its other properties, written by hand."""
    _, raw, head = next(PacketReader().feed(packet))
    topic_end = head + 2 + int.from_bytes(raw[head : head + 2])
    at = topic_end + (2 if raw[0] & 6 else 0)
    size, shift, start = 0, 0, at
    while True:
        byte = raw[start]
        size |= (byte & 127) << shift
        shift += 7
        start += 1
        if byte < 128:
            break
    properties = b"".join(b"\x0b" + variable(number) for number in numbers) + raw[start : start + size]
    body = raw[head:at] + variable(len(properties)) + properties + raw[start + size :]
    return bytes((raw[0],)) + variable(len(body)) + body


@given(st.text("ab/", min_size=1), st.binary(max_size=300), st.integers(0, 65_535), USERS, NUMBERS)
def test_a_message_is_read_without_its_identifiers(topic, payload, number, users, numbers):
    """What is forwarded is byte for byte the message that was published, and its stamp."""
    packet = publish(topic, payload, number, users)
    _, raw, head = next(PacketReader().feed(with_identifiers(packet, numbers)))
    message = read_publish(raw, head)
    assert message.identifiers == tuple(numbers)
    plain = read_publish(*next(PacketReader().feed(packet))[1:])
    assert message.with_stamp(b"s") == plain.with_stamp(b"s")
    assert (message.topic, message.number, message.payload()) == (topic, number, payload)


def test_a_subscription_carries_its_identifier():
    """By the example of the standard, section 3.8: properties follow the packet id."""
    assert subscribe(7, ["a"], False, 300)[2:] == b"\0\7" + b"\3\x0b\xac\2" + b"\0\1a" + b"\x2d"
    assert subscribe(7, ["a"], False)[2:] == b"\0\7" + b"\0" + b"\0\1a" + b"\x2d"

"""MQTT packets: written and read, malformed ones, stamps, and sessions that receive them."""

import asyncio
import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broadloom.mqtt import packets
from broadloom.mqtt.client_session import ClientSession, SessionHandler
from broadloom.mqtt.endpoint import Endpoint, Login
from broadloom.mqtt.packets import PacketReader, ProtocolError, at_quality, publish, read_publish

TEXTS = st.text(st.characters(exclude_characters="+#\0", exclude_categories=["Cs"]), min_size=1, max_size=30)


def one_packet(data):
    """Kind, bytes and header length of a single packet."""
    ((kind, raw, head),) = PacketReader().feed(data)
    return kind, raw, head


@given(
    topic=TEXTS,
    payload=st.binary(max_size=300),
    number=st.integers(0, 65535),
    names=st.lists(TEXTS, max_size=9),
)
def test_a_message_survives_writing_and_reading(topic, payload, number, names):
    properties = [(name.encode(), b"value") for name in names]
    kind, raw, head = one_packet(publish(topic, payload, number, properties))
    message = read_publish(raw, head)
    assert (kind, message.topic, message.number) == (packets.PUBLISH, topic, number)
    assert (message.payload(), message.stamp, message.raw) == (payload, b"", raw)


@given(
    topic=TEXTS, payload=st.binary(max_size=300), number=st.integers(0, 65535), stamp=st.binary(min_size=1)
)
def test_a_stamp_is_put_on_read_and_replaced(topic, payload, number, stamp):
    """Without changing anything else; the packet goes on at QoS 2, or at QoS 0 as it was received."""
    users = [(b"name", b"value")]
    message = read_publish(*one_packet(publish(topic, payload, number, users))[1:])
    for value in (stamp, b"another"):
        packet = message.with_stamp(value)
        assert packet[0] & 0x06 == (4 if number else 0)
        assert (b"value" in packet, packet.count(b"broadloom-route")) == (True, 1)
        received = bytes((packet[0] & ~0x06 | (2 if number else 0), *packet[1:]))  # as a broker sends it on
        again = read_publish(*one_packet(received)[1:])
        assert (again.topic, again.number, again.stamp) == (topic, number, value)
        assert (again.payload(), again.digest()) == (payload, message.digest())
        assert again.properties == message.properties
        message = again


@pytest.mark.parametrize("quality", [0, 1])
@given(topic=TEXTS, payload=st.binary(max_size=300), number=st.integers(1, 65535))
def test_a_packet_of_qos_2_can_be_sent_at_a_lower_quality(quality, topic, payload, number):
    message = read_publish(*one_packet(publish(topic, payload, number))[1:])
    lower = at_quality(message.with_stamp(b"stamp"), quality)
    again = read_publish(*one_packet(lower)[1:])
    assert (again.topic, again.payload(), again.stamp) == (topic, payload, b"stamp")
    assert again.number == (number if quality else 0)


@given(chunks=st.lists(st.integers(1, 40), max_size=60), sizes=st.lists(st.integers(0, 200), max_size=8))
def test_packets_are_complete_however_the_stream_is_split(chunks, sizes):
    sent = [publish("x", b"." * size, number + 1) for number, size in enumerate(sizes)]
    stream, got, reader = b"".join(sent), [], PacketReader()
    for size in [*chunks, len(stream)]:
        got += [raw for _, raw, _ in reader.feed(stream[:size])]
        stream = stream[size:]
    assert got == sent


def test_a_packet_that_announces_too_many_bytes_is_refused_before_they_come():
    message = publish("x", b"." * 1_000, 1)
    assert list(PacketReader(2_000).feed(message))
    reader = PacketReader(500)
    with pytest.raises(ProtocolError, match="at most 500 are expected"):
        list(reader.feed(message[:10]))


def fuzzed(rng):
    """A valid packet with some bytes changed, removed or added."""
    valid = [
        publish("a/b", b"payload", 7, [(b"broadloom-id", b"1"), (b"other", b"2")]),
        packets.acknowledgement(packets.PUBACK, 9),
        struct.pack(">BBBBBBH", 0x20, 6, 1, 0, 3, 0x21, 20),
        bytes((0x90, 4, 0, 1, 0, 1)),
        bytes((0xE0, 1, 0x8E)),
    ]
    data = bytearray(rng.choice(valid))
    for _ in range(rng.randint(0, 4)):
        at = rng.randrange(len(data) + 1)
        data[at : at + rng.randint(0, 2)] = rng.randbytes(rng.randint(0, 2))
    return bytes(data)


def test_ten_thousand_malformed_packets_close_the_connection_or_are_ignored():
    """The session neither fails otherwise nor waits for an impossible length."""

    async def scenario():
        rng = random.Random(0)
        refused = 0
        for _ in range(10_000):
            session = ClientSession("a", "client", Endpoint("", 0), SessionHandler())
            session._welcome = asyncio.get_running_loop().create_future()
            session._welcome.set_result(None)
            session._transport = FakeTransport()
            session._packets = PacketReader()
            session.data_received(fuzzed(rng))
            refused += session._transport.closed
        return refused

    assert 1000 < asyncio.run(scenario()) < 10_000


class FakeTransport:
    """Transport that can only be closed."""

    closed = False

    def abort(self):
        """Close it."""
        self.closed = True


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x30\xff\xff\xff\xff\x01", "a length has more than four bytes"),
        (b"\x10\x00", "a packet begins with 0x10"),
        (b"\x62\x02\x00\x01", None),
        (publish("x", b"", 1).replace(b"\x32", b"\x36", 1), "a message at QoS 3"),
        (publish("x", b"", 1).replace(b"x\x00\x01", b"x\x00\x00"), "packet id 0"),
        (publish("+", b""), "wildcard"),
        (publish("x", b"").replace(b"x", b"\xff"), "not UTF-8"),
        (b"\x30\x04\x00\x01x\x05", "properties exceed their packet"),
        (b"\x30\x03\x00\x09x", "a string exceeds its packet"),
    ],
)
def test_malformed_packets_are_refused_with_a_short_message(data, message):
    if message is None:
        assert [kind for kind, _, _ in PacketReader().feed(data)] == [packets.PUBREL]
        return
    with pytest.raises(ProtocolError, match=message):
        [read_publish(raw, head) for _, raw, head in PacketReader().feed(data)]


def test_the_repr_of_a_login_hides_the_password():
    assert "secret" not in repr(Login("name", "secret"))


class BadEndpoint(Endpoint):
    """Endpoint whose connections fail by an unexpected error."""

    tries = 0

    async def open(self, client):  # noqa: ARG002
        """Fail."""
        BadEndpoint.tries += 1
        raise UnicodeError("label empty or too long")


def test_a_session_tries_again_after_any_error(caplog):
    async def scenario():
        session = ClientSession("a", "client", BadEndpoint("", 0), SessionHandler())
        before = BadEndpoint.tries
        session.start()
        async with asyncio.timeout(60):
            while BadEndpoint.tries < before + 2:
                await asyncio.sleep(0.01)
        assert not session._task.done()
        await session.stop()

    asyncio.run(scenario())
    assert "internal error; trying again" in caplog.text

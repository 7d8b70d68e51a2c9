"""The relay between a client and scripted brokers: what it leaves out, refuses, and does at home."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from unittest.mock import Mock

import pytest
from ordinary import wait_for

from broadloom.agents.moves import client_relay
from broadloom.agents.moves.client_relay import ClientRelay, RelayedMove, RelayPlan
from broadloom.agents.moves.move_registry import ORDINARY, Move, MoveState, Registry, Resident
from broadloom.agents.moves.ordinary_clients import OrdinaryMover
from broadloom.agents.moves.ordinary_steps import OrdinarySteps
from broadloom.deployment.rehearsal.mosquitto_lab import HOST, free_ports
from broadloom.deployment.targets.haproxy_router import moving_to, served_by
from broadloom.mqtt.endpoint import Address, Login
from broadloom.mqtt.packets import (
    CONNACK,
    CONNECT,
    PUBACK,
    PUBLISH,
    PUBREL,
    SUBACK,
    SUBSCRIBE,
    UNSUBACK,
    UNSUBSCRIBE,
    acknowledgement,
)
from broadloom.mqtt.relayed_packets import RelayedPublish, number_of, read_any_publish, read_packet

CLIENT = "c1"
CONNECT_C1 = b"\x10\x0e\0\4MQTT\4\0\0\x3c\0\2c1"  # of MQTT 3.1.1, with a session
PRESENT = bytes((CONNACK, 2, 1, 0))
LIMIT = 10.0


def a_publish(text: str, number: int, quality: int = 1, topic: str = "t") -> bytes:
    return RelayedPublish(topic.encode(), text.encode(), quality, number, False, b"", 0).encoded(4, number)


class ScriptedBroker:
    """A broker that answers CONNECT, sends some packets, and records what it gets.

    Args:
        answer: of CONNECT; empty: it ends the connection.
        packets: what it sends then.
        echoes: whether it sends back what is published to it, as MQTT 5.
    """

    def __init__(
        self, answer: bytes = PRESENT, packets: tuple[bytes, ...] = (), echoes: bool = False
    ) -> None:
        self.answer = answer
        self.packets = packets
        self.got: list[bytes] = []
        self.changed = asyncio.Event()
        self.open = 0  # connections
        self._echoes = echoes

    async def start(self) -> Address:
        """Listen."""
        self.server = await asyncio.start_server(self._serve, HOST, 0)
        return Address(HOST, self.server.sockets[0].getsockname()[1])

    async def _serve(self, stream: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        with suppress(asyncio.IncompleteReadError, OSError):
            while True:
                raw = await read_packet(stream, 1 << 20)
                self.got.append(raw)
                self._answer(raw, writer)
                self.changed.set()
                if raw[0] == CONNECT and not self.answer:
                    break
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
        self.open -= 1

    def _answer(self, raw: bytes, writer: asyncio.StreamWriter) -> None:
        kind = raw[0] & 0xF0
        if kind == CONNECT:
            writer.write(self.answer + b"".join(self.packets))
        elif kind == SUBSCRIBE & 0xF0:
            writer.write(bytes((SUBACK, 4, *number_of(raw)[0].to_bytes(2), 0, 1)))
        elif kind == UNSUBSCRIBE & 0xF0:
            writer.write(bytes((UNSUBACK, 4, *number_of(raw)[0].to_bytes(2), 0, 0)))
        elif kind == PUBLISH and self._echoes:
            message = read_any_publish(raw, 5)
            writer.write(acknowledgement(PUBACK, message.number) + message.encoded(5, 9))

    def kinds(self) -> list[int]:
        """The kinds of the packets that it got."""
        return [raw[0] & 0xF0 for raw in self.got]

    async def until(self, kind: int, count: int = 1) -> None:
        """Wait for packets of a kind."""
        async with asyncio.timeout(LIMIT):
            while self.kinds().count(kind & 0xF0) < count:
                self.changed.clear()
                await self.changed.wait()


class RelayedSystem:
    """A move between two scripted brokers, and a relay with it."""

    def __init__(self, foreign: ScriptedBroker, home: ScriptedBroker | None = None) -> None:
        self.foreign = foreign
        # CONNACK of MQTT 5 has properties.
        self.home = home or ScriptedBroker(bytes((CONNACK, 3, 1, 0, 0)), echoes=True)
        self.events: list[str] = []
        self._clients: list[asyncio.StreamWriter] = []

    async def start(self) -> RelayedMove:
        """Start the brokers and the relay."""
        home, foreign = await self.home.start(), await self.foreign.start()
        plan = RelayPlan("0" * 16, CLIENT, (("t", 1),), home, foreign, foreign)
        self.move = RelayedMove(plan, Login(), 60.0, 0.01, "secret")
        self.move.report = lambda event, _note: self.events.append(event)
        (port,) = free_ports(1)
        self.relay = ClientRelay(Address(HOST, port), moves={CLIENT: self.move})
        await self.relay.start()
        return self.move

    async def connect(self, packet: bytes = CONNECT_C1) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A client that connects to the relay."""
        stream, writer = await asyncio.open_connection(HOST, self.relay.address.port)
        writer.write(packet)
        self._clients.append(writer)
        return stream, writer

    async def stop(self) -> None:
        """End all connections."""
        self.move.close()
        await self.relay.stop()
        for writer in self._clients:
            writer.close()
        for broker in (self.home, self.foreign):
            broker.server.close()
        async with asyncio.timeout(LIMIT):
            while self.relay._connections or self.home.open or self.foreign.open:
                await asyncio.sleep(0)
        for writer in self._clients:
            with suppress(OSError):
                await writer.wait_closed()


def witnessed(move: RelayedMove, *texts: str) -> None:
    """Let home have handled messages, and its session be read."""
    for text in texts:
        move._on_witnessed(RelayedPublish(b"t", text.encode(), 1, 1, False, b"", 0))
    move._prepared_at = -1.0
    move._on_witnessed(RelayedPublish(move._fence.encode(), move._codes["home"], 1, 1, False, b"", 0))


async def read_publish(stream: asyncio.StreamReader) -> RelayedPublish:
    async with asyncio.timeout(LIMIT):
        return read_any_publish(await read_packet(stream, 1 << 20), 4)


@pytest.mark.parametrize("is_fenced", [True, False])
def test_nothing_is_left_out_at_a_broker_that_drops_fences(is_fenced):
    """Rules of a broker can forbid them; then messages arrive twice rather than never."""

    async def check() -> tuple[list[bytes], int]:
        foreign = ScriptedBroker()
        system = RelayedSystem(foreign)
        move = await system.start()
        messages = [a_publish("1", 1), a_publish("2", 2)]
        if is_fenced:
            messages.insert(1, a_publish(move._codes["first"].decode(), 3, topic=move._fence))
        foreign.packets = tuple(messages)
        witnessed(move, "1")
        await move.take_over()
        stream, _ = await system.connect()
        assert await read_packet(stream, 1 << 20) == PRESENT
        texts = []
        while not texts or texts[-1] != b"2":
            texts.append((await read_publish(stream)).payload)
        if is_fenced:
            await foreign.until(PUBACK, 2)
        acknowledged = foreign.kinds().count(PUBACK)
        await system.stop()
        return texts, acknowledged

    expected = ([b"2"], 2) if is_fenced else ([b"1", b"2"], 0)
    assert asyncio.run(check()) == expected


def test_what_was_held_back_is_known_again_at_the_next_connection():
    """A client that leaves before the first fence has come gets nothing twice."""

    async def check() -> list[bytes]:
        foreign = ScriptedBroker(packets=(a_publish("1", 1),))
        system = RelayedSystem(foreign)
        move = await system.start()
        witnessed(move, "1")
        await move.take_over()
        stream, writer = await system.connect()
        await read_packet(stream, 1 << 20)
        async with asyncio.timeout(LIMIT):
            while move._connection is None or not move._connection._held_back:
                await asyncio.sleep(0)
            writer.close()
            while move._connection is not None:
                await asyncio.sleep(0)
        fence = a_publish(move._codes["first"].decode(), 3, topic=move._fence)
        foreign.packets = (a_publish("1", 1), fence, a_publish("2", 2))
        stream, _ = await system.connect()
        await read_packet(stream, 1 << 20)
        first = (await read_publish(stream)).payload
        await system.stop()
        return [first]

    assert asyncio.run(check()) == [b"2"]


def test_a_message_at_qos_0_does_not_hide_an_equal_one_at_qos_1():
    """It waits in no session, so the other one is another message."""

    async def check() -> None:
        move = RelayedMove(
            RelayPlan("0" * 16, CLIENT, (("t", 1),), *[Address(HOST, 1)] * 3), Login(), 1.0, 0.2, "s"
        )
        equal = RelayedPublish(b"t", b"on", 0, 0, False, b"", 0)
        fence = RelayedPublish(move._fence.encode(), move._codes["home"], 1, 1, False, b"", 0)
        move._on_witnessed(equal)
        move._on_witnessed(equal._replace(payload=b"off", quality=1))
        move._on_witnessed(fence)
        move._on_waiting(fence)
        assert move.is_wanted(equal._replace(quality=1))
        assert move.is_wanted(equal._replace(payload=b"off"))
        assert not move.is_wanted(equal._replace(payload=b"off", quality=1))

    asyncio.run(check())


def test_a_message_at_qos_2_that_the_client_has_begun_at_home_is_released_there():
    async def check() -> list[bytes]:
        system = RelayedSystem(ScriptedBroker())
        move = await system.start()
        await move.take_over()
        stream, writer = await system.connect()
        await read_packet(stream, 1 << 20)
        writer.write(acknowledgement(PUBREL, 5))
        await system.foreign.until(PUBREL)
        await system.home.until(PUBREL)
        # One that it has published here is not.
        writer.write(b"\x34\x06\0\1t\0\6x" + acknowledgement(PUBREL, 6))
        await system.foreign.until(PUBREL, 2)
        released = [raw for raw in system.home.got if raw[0] & 0xF0 == PUBREL & 0xF0]
        await system.stop()
        return released

    (released,) = asyncio.run(check())
    assert number_of(released)[0] == 5


@pytest.mark.parametrize("answer", [b"", bytes((CONNACK, 2, 0, 5))])
def test_connections_that_the_broker_refuses_do_not_end_a_move(answer, monkeypatch):
    """It ends that of a malformed CONNECT, and answers a wrong password. The client comes later."""

    async def check() -> None:
        foreign = ScriptedBroker(answer)
        system = RelayedSystem(foreign)
        move = await system.start()
        await move.take_over()
        for _ in range(5):
            stream, _ = await system.connect()
            assert await stream.read() == b""
        assert system.relay.refused == {"not authorized": 5}
        assert system.events == []
        foreign.answer = PRESENT
        stream, _ = await system.connect()
        assert await read_packet(stream, 1 << 20) == PRESENT
        async with asyncio.timeout(LIMIT):
            while system.events != ["connected"]:
                await asyncio.sleep(0)
        assert not move._refusals
        # While the client is connected, no refusal ends its move, however long they go on.
        monkeypatch.setattr(client_relay, "REFUSED_SECONDS", -1.0)
        foreign.answer = answer
        for _ in range(5):
            other, _ = await system.connect()
            assert await other.read() == b""
        assert system.events == ["connected"]
        # A client that is refused for long goes back home.
        await move._replace(None)
        stream, _ = await system.connect()
        assert await stream.read() == b""
        assert system.events == ["connected", "failed"]
        await system.stop()

    asyncio.run(check())


def test_a_move_ends_if_the_foreign_broker_is_down():
    async def check() -> list[str]:
        system = RelayedSystem(ScriptedBroker())
        move = await system.start()
        await move.take_over()
        system.foreign.server.close()
        await system.foreign.server.wait_closed()
        stream, _ = await system.connect()
        assert await stream.read() == b""
        await system.stop()
        return system.events

    assert asyncio.run(check()) == ["failed"]


def test_nobody_is_served_before_the_client_leaves_and_the_login_comes_before_the_takeover():
    """A stranger cannot disconnect the client from home."""

    async def check() -> None:
        system = RelayedSystem(ScriptedBroker(bytes((CONNACK, 2, 0, 5))))
        move = await system.start()
        stream, _ = await system.connect()
        assert await stream.read() == b""
        assert system.relay.refused == {"not moving": 1}
        assert not system.foreign.got
        move.is_leaving = True
        stream, _ = await system.connect()
        assert await stream.read() == b""
        assert CONNECT in system.foreign.kinds()
        assert not system.home.got
        await system.stop()

    asyncio.run(check())


def test_our_fence_leaves_the_session_at_home_before_the_client_goes_back():
    async def check() -> list[int]:
        system = RelayedSystem(ScriptedBroker())
        move = await system.start()
        await move.take_over()
        move.fail("for a test")
        await move.leave_home()
        await system.stop()
        return system.home.kinds()

    kinds = asyncio.run(check())
    assert kinds[:3] == [CONNECT, SUBSCRIBE & 0xF0, PUBLISH]
    assert kinds[3:5] == [PUBACK, UNSUBSCRIBE & 0xF0]


def test_a_move_that_is_given_up_does_not_take_the_session_at_home_over():
    async def check() -> list[bytes]:
        system = RelayedSystem(ScriptedBroker())
        move = await system.start()
        move.give_up()
        await move.take_over()
        await system.stop()
        return system.home.got

    assert asyncio.run(check()) == []


def test_a_client_that_is_sent_back_during_the_takeover_stays_at_home():
    """The map has its home last, whichever of the two changes was slower, and the session is left alone."""
    is_sending, can_send = threading.Event(), threading.Event()
    sent: list[str] = []

    class SlowRouter:
        def send(self, backends: dict[str, str]) -> None:
            if moving_to("f") in backends.values():
                is_sending.set()
                assert can_send.wait(LIMIT)
            sent.extend(backends.values())

        def synchronize(self) -> None:
            pass

    nowhere = Address(HOST, 1)
    (port,) = free_ports(1)
    mover = OrdinaryMover(Mock(), SlowRouter(), Login(), Address(HOST, port), None, 1.0, 0.01, "secret")
    mover.start([])
    try:
        errors: list[str | None] = []
        plan = RelayPlan("0" * 16, CLIENT, (("t", 1),), nowhere, nowhere, nowhere)
        mover.take_over(plan, "f", lambda *_: None, errors.append)
        assert is_sending.wait(LIMIT)
        mover.give_up(CLIENT, "h")
        assert wait_for(lambda: mover._relay.moves[CLIENT].is_over or bool(sent))
        can_send.set()
        assert wait_for(lambda: len(sent) == 2 and bool(errors))
        assert sent == [moving_to("f"), served_by("h")]
        assert errors == [None]
    finally:
        can_send.set()
        mover.stop()


def test_the_session_at_home_is_kept_for_ever_if_its_expiry_is_not_known():
    """A client of MQTT 5 can have any; that of its next CONNECT counts again."""

    async def check() -> bytes:
        system = RelayedSystem(ScriptedBroker())
        move = await system.start()
        resident = Resident(CLIENT, "h", (("t", 1),), None, 0.0, (), 0.0, ORDINARY, keeps=None)
        brokers = {"h": move.plan.home, "f": move.plan.foreign}
        unused = [Mock() for _ in range(7)]
        steps = OrdinarySteps(Mock(), Registry(), brokers, brokers, *unused)
        move.plan = steps._plan(Move("0" * 16, CLIENT, "h", "f", MoveState.REPLICATED, 0.0), resident)
        await move.take_over()
        await system.stop()
        return system.home.got[0]

    expiry = 0x11  # the property of CONNECT
    assert bytes((expiry, 0xFF, 0xFF, 0xFF, 0xFF)) in asyncio.run(check())

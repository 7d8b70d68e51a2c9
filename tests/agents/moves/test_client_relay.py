"""The relay between a client and scripted brokers: what it leaves out, refuses, and does at home."""

from __future__ import annotations

import asyncio
import socket
import ssl
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from ordinary import wait_for

from broadloom.agents.http_server import server_context
from broadloom.agents.moves import client_relay, client_router, relayed_move
from broadloom.agents.moves.broker_sessions import replicate_session
from broadloom.agents.moves.client_relay import ClientRelay
from broadloom.agents.moves.client_router import HaproxyRouter
from broadloom.agents.moves.move_registry import ORDINARY, Move, MoveState, Registry, Resident
from broadloom.agents.moves.ordinary_clients import OrdinaryMover
from broadloom.agents.moves.ordinary_steps import OrdinarySteps
from broadloom.agents.moves.relayed_move import RelayedMove, RelayPlan
from broadloom.deployment.rehearsal.mosquitto_lab import HOST, free_ports, killed_with_parent, listens
from broadloom.deployment.targets.haproxy_router import moving_to, read_map, served_by
from broadloom.errors import StorageError, UnreachableError
from broadloom.mqtt.endpoint import Address, Login, close_server
from broadloom.mqtt.packets import (
    CONNACK,
    CONNECT,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBACK,
    SUBSCRIBE,
    UNSUBACK,
    UNSUBSCRIBE,
    acknowledgement,
)
from broadloom.mqtt.relayed_packets import (
    MQTT_5,
    RelayedPublish,
    number_of,
    read_any_publish,
    read_connect,
    read_packet,
)
from broadloom.storage import write_file
from certificates import authority

CLIENT = "c1"
CONNECT_C1 = b"\x10\x0e\0\4MQTT\4\0\0\x3c\0\2c1"  # of MQTT 3.1.1, with a session
PRESENT = bytes((CONNACK, 2, 1, 0))
PRESENT_5 = bytes((CONNACK, 3, 1, 0, 0))  # with properties
LIMIT = 10.0


def a_publish(text: str, number: int, quality: int = 1, topic: str = "t") -> bytes:
    return RelayedPublish(topic.encode(), text.encode(), quality, number, False, b"", 0).encoded(4, number)


def is_of_agent(raw: bytes) -> bool:
    """Whether a CONNECT is of the agent in the client's name."""
    request = read_connect(raw)
    return (request.client, request.version) == (CLIENT, MQTT_5)


def message_of_home(text: str, number: int, quality: int = 1) -> bytes:
    """A message as the agent reads it, with MQTT 5."""
    topic_and_number = b"\0\1t" + number.to_bytes(2) + b"\0"
    return (
        bytes((PUBLISH | 2 * quality, len(topic_and_number) + len(text))) + topic_and_number + text.encode()
    )


class ScriptedBroker:
    """A broker that answers CONNECT, sends some packets, and records what it gets.

    Args:
        answer: of CONNECT of clients; empty: it ends the connection. The agent is always accepted.
        packets: what it sends then.
        echoes: whether it sends back what is published to it, as MQTT 5.
    """

    def __init__(
        self, answer: bytes = PRESENT, packets: tuple[bytes, ...] = (), echoes: bool = False
    ) -> None:
        self.answer = answer
        self.packets = packets
        self.packets_of_agent: tuple[bytes, ...] = ()  # what waits for the client, as the agent reads it
        self.got: list[bytes] = []
        self.changed = asyncio.Event()
        self.open = 0  # connections
        self._echoes = echoes
        self._sessions: dict[str, asyncio.StreamWriter] = {}

    def client_of(self, raw: bytes) -> str:
        """The client id by which the broker knows a connection."""
        return read_connect(raw).client

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
                if raw[0] == CONNECT and not self.answer and not is_of_agent(raw):
                    break
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
        self.open -= 1

    def _answer(self, raw: bytes, writer: asyncio.StreamWriter) -> None:
        kind = raw[0] & 0xF0
        if kind == CONNECT:
            is_agent = is_of_agent(raw)
            if is_agent or self.answer[3:4] == b"\0":
                client = self.client_of(raw)
                if client in self._sessions:
                    self._sessions[client].close()
                self._sessions[client] = writer
            writer.write(
                PRESENT_5 + b"".join(self.packets_of_agent)
                if is_agent
                else self.answer + b"".join(self.packets)
            )
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
        await asyncio.get_running_loop().shutdown_default_executor()  # threads of the move can still connect
        for broker in (self.home, self.foreign):
            await close_server(broker.server)
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


def test_what_home_has_handled_stays_known_when_home_is_read_again():
    """The session at home is not held for a client that does not come, and is read again when it does."""

    async def check() -> None:
        system = RelayedSystem(ScriptedBroker())
        move = await system.start()
        witnessed(move, "1")
        await move.take_over()
        move._cut_at -= 2 * relayed_move.HELD_SECONDS
        move.drop_home()
        assert not move._reader.is_up
        await move._cut()
        assert "home" in move._fences
        assert not move.is_wanted(RelayedPublish(b"t", b"1", 1, 1, False, b"", 0))
        await system.stop()

    asyncio.run(check())


def test_a_client_does_not_go_back_once_its_session_at_home_is_being_ended(monkeypatch):
    """Although the foreign broker dies: its session there has the only copies. Nor is home read again."""
    is_ending, can_end = threading.Event(), threading.Event()

    def forget(*_: object) -> None:
        is_ending.set()
        assert can_end.wait(LIMIT)

    monkeypatch.setattr(relayed_move, "forget", forget)

    async def check() -> None:
        system = RelayedSystem(ScriptedBroker())
        move = await system.start()
        move._ttl = 0.0
        await move.take_over()
        stream, _ = await system.connect()
        await read_packet(stream, 1 << 20)
        assert await asyncio.to_thread(is_ending.wait, LIMIT)
        read = system.home.kinds().count(CONNECT)
        await close_server(system.foreign.server)
        system.foreign._sessions[CLIENT].close()
        assert await stream.read() == b""
        async with asyncio.timeout(LIMIT):
            while system.relay._connections:
                await asyncio.sleep(0)
        await move._cut()
        assert system.home.kinds().count(CONNECT) == read
        can_end.set()
        async with asyncio.timeout(LIMIT):
            while len(system.events) < 2:
                await asyncio.sleep(0)
        assert system.events == ["connected", "drained"]
        await system.stop()

    try:
        asyncio.run(check())
    finally:
        can_end.set()


@pytest.mark.parametrize("has_all", [True, False])
def test_a_client_that_has_gone_again_has_moved_if_all_that_it_lacks_is_in_its_new_session(
    has_all, monkeypatch
):
    """It lacks a message from home that it has not acknowledged; then its move waits for it."""
    monkeypatch.setattr(relayed_move, "forget", lambda *_: None)

    async def check() -> None:
        system = RelayedSystem(ScriptedBroker())
        system.home.packets_of_agent = (message_of_home("waiting", 5),)
        move = await system.start()
        move._ttl = 0.0
        system.foreign.packets = (a_publish(move._codes["last"].decode(), 3, topic=move._fence),)
        await move.take_over()
        stream, writer = await system.connect()
        await read_packet(stream, 1 << 20)
        message = await read_publish(stream)
        await system.foreign.until(PUBACK)  # of the fence
        move._cut_at += 3600  # the client leaves within the TTL
        if has_all:
            writer.write(acknowledgement(PUBACK, message.number))
            await system.home.until(PUBACK)
        writer.close()
        async with asyncio.timeout(LIMIT):
            while move._connection is not None:
                await asyncio.sleep(0)
            move._cut_at -= 3600
            assert has_all or move._needs_client()
            while has_all and len(system.events) < 2:
                await asyncio.sleep(0)
        assert system.events == ["connected", "drained"][: 1 + has_all]
        await system.stop()

    asyncio.run(check())


def test_a_client_that_has_left_before_the_last_fence_is_waited_for():
    """Otherwise its broker would send it what it has received at home, and the fences."""

    async def check() -> None:
        system = RelayedSystem(ScriptedBroker())
        move = await system.start()
        await move.take_over()
        assert "home" in move._fences
        assert move._needs_client()
        for kind in ("first", "early", "last"):
            fence = RelayedPublish(move._fence.encode(), move._codes[kind], 1, 1, False, b"", 0)
            assert move.is_fence(fence)
            assert move._needs_client() == (kind != "last")
        move.release(5)  # the client releases a message at QoS 2, and home has it
        assert not move._needs_client()
        move._reader.close()
        move.release(6)
        assert move._needs_client()
        assert not move._has_home()
        await system.stop()

    asyncio.run(check())


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
        monkeypatch.setattr(relayed_move, "REFUSED_SECONDS", -1.0)
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
        await close_server(system.foreign.server)
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


@pytest.mark.parametrize("is_cancelled", [True, False])
def test_a_preparation_that_ends_before_home_answers_leaves_no_connection_there(is_cancelled, monkeypatch):
    """The agent stops, or the move is given up."""

    async def check() -> BaseException | None:
        system = RelayedSystem(ScriptedBroker())
        move = await system.start()
        preparing = asyncio.create_task(move.prepare())
        answer = system.home._answer

        def end(raw: bytes, writer: asyncio.StreamWriter) -> None:
            if is_cancelled:
                preparing.cancel()
            else:
                move.give_up()
                answer(raw, writer)

        monkeypatch.setattr(system.home, "_answer", end)
        (error,) = await asyncio.gather(preparing, return_exceptions=True)
        async with asyncio.timeout(LIMIT):
            while system.home.open:
                await asyncio.sleep(0)
        await system.stop()
        return error

    assert isinstance(asyncio.run(check()), asyncio.CancelledError if is_cancelled else UnreachableError)


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
        def send(self, backends: dict[str, str], is_urgent: bool = False) -> None:  # noqa: ARG002
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


def test_a_broker_that_does_not_answer_keeps_no_connection_when_the_agent_ends(monkeypatch):
    """The relay waits for its answer, and the agent does not."""
    monkeypatch.setattr(client_relay, "CLOSING_SECONDS", 0.0)
    (port,) = free_ports(1)
    mover = OrdinaryMover(Mock(), Mock(), Login(), Address(HOST, port), None, 1.0, 0.01, "secret")
    mover.start([])
    with socket.create_server((HOST, 0)) as broker, socket.create_connection((HOST, port), LIMIT) as client:
        try:
            foreign = Address(*broker.getsockname())
            move = RelayedMove(
                RelayPlan("0" * 16, CLIENT, (), foreign, foreign, foreign), Login(), 1.0, 0.0, ""
            )
            move.is_leaving = True
            mover._relay.moves[CLIENT] = move
            client.sendall(CONNECT_C1)
            broker.settimeout(LIMIT)
            waiting, _ = broker.accept()
        finally:
            mover.stop()
        with waiting:
            waiting.settimeout(LIMIT)
            while waiting.recv(1_000):
                pass


def test_the_session_at_home_is_kept_for_ever_if_its_expiry_is_not_known():
    """A client of MQTT 5 can have any; that of its next CONNECT counts again."""

    async def check() -> bytes:
        system = RelayedSystem(ScriptedBroker())
        move = await system.start()
        resident = Resident(CLIENT, "h", (("t", 1),), None, 0.0, (), 0.0, ORDINARY, keeps=None)
        brokers = {"h": move.plan.home, "f": move.plan.foreign}
        unused = [Mock() for _ in range(8)]
        steps = OrdinarySteps(Mock(), Registry(), brokers, brokers, *unused)
        move.plan = steps._plan(Move("0" * 16, CLIENT, "h", "f", MoveState.REPLICATED, 0.0), resident)
        await move.take_over()
        await system.stop()
        return system.home.got[0]

    expiry = 0x11  # the property of CONNECT
    assert bytes((expiry, 0xFF, 0xFF, 0xFF, 0xFF)) in asyncio.run(check())


def test_a_client_that_has_moved_can_connect_although_the_map_file_cannot_be_written(tmp_path, monkeypatch):
    """Routers are told, and the file is written later; a move does not begin without it."""
    has_room = False

    def write(path: Path, content: bytes, mode: int) -> None:
        if not has_room:
            raise StorageError("the disk is full")
        write_file(path, content, mode=mode)

    monkeypatch.setattr(client_router, "write_file", write)
    told: dict[str, dict[str, str]] = {"router": {}}
    router = HaproxyRouter(["router"], tmp_path / "clients.map")
    monkeypatch.setattr(router, "_tell", lambda name, backends: told[name].update(backends))
    monkeypatch.setattr(router, "_ask", lambda *_: "")
    with pytest.raises(StorageError):
        router.send({"c1": moving_to("f")})
    assert told == {"router": {}}
    (port,) = free_ports(1)
    mover = OrdinaryMover(Mock(), router, Login(), Address(HOST, port), None, 1.0, 0.01, "secret")
    mover.start([("c0", "h")])
    try:
        mover.release("c1", "f")
        assert wait_for(lambda: told["router"] == {"c0": served_by("h"), "c1": served_by("f")})
    finally:
        mover.stop()
    with pytest.raises(StorageError):
        router.synchronize()
    has_room = True
    router.synchronize()
    assert read_map((tmp_path / "clients.map").read_text()) == told["router"]


def test_a_router_that_is_dead_does_not_keep_changes_from_the_others(tmp_path, monkeypatch):
    """Nor from the file; the caller learns of it in the end."""
    shown: dict[str, dict[str, str]] = {"first": {}, "last": {}}
    can_write = False

    def ask(name: str, command: str) -> str:
        if name not in shown:
            raise UnreachableError(f"the router at {name} does not answer")
        words = command.split()
        if words[0] == "show":
            return "".join(f"0x1 {key} {backend}\n" for key, backend in shown[name].items())
        shown[name][words[3]] = words[4]
        return ""

    def write(path: Path, content: bytes, mode: int) -> None:
        if not can_write:
            raise StorageError("the disk is full")
        write_file(path, content, mode=mode)

    monkeypatch.setattr(client_router, "write_file", write)
    router = HaproxyRouter(["first", "dead", "last"], tmp_path / "clients.map")
    monkeypatch.setattr(router, "_ask", ask)
    expected = {"c1": served_by("f")}
    with pytest.raises(StorageError):
        router.send(expected, is_urgent=True)
    assert shown == {"first": expected, "last": expected}
    shown["last"] = {}  # it restarts elsewhere
    can_write = True
    with pytest.raises(UnreachableError, match="the router at dead"):
        router.synchronize()
    assert shown == {"first": expected, "last": expected}
    assert read_map((tmp_path / "clients.map").read_text()) == expected
    with pytest.raises(UnreachableError, match="the router at dead"):
        router.send({"c2": served_by("h")})
    assert shown["last"] == expected | {"c2": served_by("h")}


@pytest.mark.needs("openssl")
def test_connections_count_before_their_tls_handshake(tmp_path, monkeypatch):
    """Those that never finish it make room for others, and end in time."""
    monkeypatch.setattr(client_relay, "connection_limit", lambda: 3, raising=False)
    certificates = authority(tmp_path / "tls")
    server = server_context(str(certificates / "broker.crt"), str(certificates / "broker.key"))
    trusting = ssl.create_default_context(cafile=str(certificates / "ca.crt"))

    async def check() -> None:
        (port,) = free_ports(1)
        relay = ClientRelay(Address(HOST, port), server)
        await relay.start()
        silent = [await asyncio.open_connection(HOST, port) for _ in range(5)]
        async with asyncio.timeout(LIMIT):
            for stream, _ in silent[:2]:
                assert await stream.read() == b""
            assert (len(relay._connections), relay.refused["slow"]) == (3, 2)
            stream, writer = await asyncio.open_connection(HOST, port, ssl=trusting)
            writer.write(CONNECT_C1)
            assert await stream.read() == b""
            assert relay.refused["not moving"] == 1
            writer.close()
            while len(relay._connections) > 2:
                await asyncio.sleep(0)
            monkeypatch.setattr(client_relay, "FIRST_SECONDS", 0.1)
            late, late_writer = await asyncio.open_connection(HOST, port)
            assert await late.read() == b""
        assert relay.refused["slow"] == 4  # the third for the client, and this one
        await relay.stop()
        assert not relay._connections
        for _, one in (*silent, (late, late_writer)):
            one.close()
            with suppress(OSError):
                await one.wait_closed()

    asyncio.run(check())


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limit")
@pytest.mark.parametrize(("files", "connections"), [(1024, 256), (2, 1), (1 << 20, 2_000), (-1, 2_000)])
def test_the_relay_leaves_files_for_all_else(monkeypatch, files, connections):
    """A connection needs several, and the agent needs some for brokers, routers, its journal and its API."""
    monkeypatch.setattr("resource.getrlimit", lambda _: (files, files))
    assert client_relay.connection_limit() == connections


@pytest.mark.parametrize("is_here", [False, True])
def test_a_login_with_another_client_id_at_the_broker_gets_nothing(is_here, monkeypatch):
    """A broker with use_username_as_clientid ignores the client id of CONNECT, which the router believes."""
    as_mallory = b"\x10\x17\0\4MQTT\4%c\0\x3c\0\2c1\0\7mallory"

    class NamingBroker(ScriptedBroker):
        def client_of(self, raw: bytes) -> str:
            return "mallory" if b"mallory" in raw else CLIENT

    async def check() -> None:
        home = ScriptedBroker(bytes((CONNACK, 3, 1, 0, 0)), echoes=True)
        system = RelayedSystem(NamingBroker(), home)
        move = await system.start()
        move._on_waiting(RelayedPublish(b"t", b"secret", 1, 1, False, b"", 0))
        move.is_leaving = True
        move._is_cut = True
        move._reader = Mock(is_up=True)
        move._fences.add("home")
        if is_here:
            stream, _ = await system.connect()
            assert await read_packet(stream, 1 << 20) == PRESENT
            assert (await read_publish(stream)).payload == b"secret"
        with monkeypatch.context() as patched:
            patched.setattr(relayed_move, "PROOF_SECONDS", 0.2)
            for flags in (0x80, 0x82):  # with its session, and with a new one
                other, _ = await system.connect(as_mallory % flags)
                assert await other.read() == b""
        assert system.relay.refused == {"not authorized": 2}
        assert system.events == ["connected"] * is_here
        assert len(move._waiting) == (not is_here)
        if is_here:
            assert move._connection is not None
        else:
            stream, _ = await system.connect()
            assert await read_packet(stream, 1 << 20) == PRESENT
            assert (await read_publish(stream)).payload == b"secret"
        await system.stop()

    asyncio.run(check())


@pytest.mark.needs("mosquitto", "mosquitto_passwd")
@pytest.mark.xdist_group("moves")
def test_a_mosquitto_that_derives_client_ids_from_logins_gives_no_message_to_others(tmp_path, monkeypatch):
    """Mallory has a password of her own, and names the client that moves. The client itself is served."""
    for_clients, for_agent = free_ports(2)
    passwords = tmp_path / "passwords"
    passwords.touch(0o600)
    for user in (CLIENT, "mallory"):
        subprocess.run(["mosquitto_passwd", "-b", passwords, user, "pw"], check=True, capture_output=True)
    (tmp_path / "mosquitto.conf").write_text(
        f"per_listener_settings true\nuser root\nlistener {for_clients} {HOST}\npassword_file {passwords}\n"
        f"use_username_as_clientid true\nlistener {for_agent} {HOST}\nallow_anonymous true\n"
    )

    def connect(user: str, clean: bool) -> bytes:
        fields = b"".join(len(text).to_bytes(2) + text.encode() for text in (CLIENT, user, "pw"))
        head = b"\0\4MQTT\4" + bytes((0xC0 | 2 * clean, 0, 60))
        return bytes((CONNECT, len(head + fields))) + head + fields

    async def check() -> None:
        system = RelayedSystem(ScriptedBroker())
        move = await system.start()
        addresses = {"foreign": Address(HOST, for_agent), "foreign_for_clients": Address(HOST, for_clients)}
        plan = move.plan = replace(move.plan, **addresses)
        assert replicate_session(plan.foreign, CLIENT, Login(), (*plan.filters, (move._fence, 1))) is None
        await move.take_over()
        for name, clean, answer in (
            ("mallory", False, b""),
            ("mallory", True, b""),
            (CLIENT, False, PRESENT),
            ("mallory", True, b""),
            (CLIENT, False, PRESENT),  # in place of its first connection
        ):
            with monkeypatch.context() as patched:
                # A broker that is slow to end a connection would refuse the client, too.
                patched.setattr(relayed_move, "PROOF_SECONDS", 0.5 if name == "mallory" else LIMIT)
                stream, _ = await system.connect(connect(name, clean))
                async with asyncio.timeout(LIMIT):
                    assert await stream.read(4) == answer, name
        assert system.relay.refused == {"not authorized": 3}
        assert set(system.events) == {"connected"}
        await system.stop()

    process = subprocess.Popen(
        [*killed_with_parent(), "mosquitto", "-c", tmp_path / "mosquitto.conf"], stderr=subprocess.DEVNULL
    )
    try:
        assert wait_for(lambda: listens(for_clients) and listens(for_agent))
        asyncio.run(check())
    finally:
        process.terminate()
        process.wait()


def test_a_client_that_begins_a_new_session_gets_nothing_from_home_and_its_move_ends():
    """Whatever waits there is acknowledged, so that home sends the remainder, also if it is read again."""

    async def check() -> None:
        waiting = tuple(message_of_home(f"old {number}", number) for number in (1, 2))
        system = RelayedSystem(ScriptedBroker(packets=(a_publish("new", 1),)))
        move = await system.start()
        witnessed(move, "new")  # an equal one
        system.home.packets_of_agent = waiting
        await move.take_over()
        assert len(move._waiting) == 2
        move._reader.close()  # as after half a minute
        stream, _ = await system.connect(CONNECT_C1.replace(b"\4\0\0\x3c", b"\4\2\0\x3c"))
        await read_packet(stream, 1 << 20)
        assert (await read_publish(stream)).payload == b"new"
        await system.home.until(PUBACK, 2)
        assert not move._waiting
        assert "home" in move._fences
        await system.stop()

    asyncio.run(check())


def test_a_message_at_qos_2_that_the_client_has_received_at_home_is_released_at_the_relay():
    """Libraries hand it to the program only then. Its packet id is not given to another message before."""

    async def check() -> None:
        at_qos_2 = bytes((PUBLISH | 4,)) + a_publish("foreign", 9)[1:]
        system = RelayedSystem(ScriptedBroker(packets=(at_qos_2,)))
        system.home.packets_of_agent = acknowledgement(PUBREL, 1), message_of_home("waiting", 5, 2)
        move = await system.start()
        await move.take_over()
        assert PUBCOMP not in system.home.kinds()
        for is_first in (True, False):  # the client leaves before it has answered, and comes again
            stream, writer = await system.connect()
            await read_packet(stream, 1 << 20)
            async with asyncio.timeout(LIMIT):
                assert await read_packet(stream, 1 << 20) == acknowledgement(PUBREL, 1)
            messages = [await read_publish(stream) for _ in range(2)]
            assert [one.payload for one in messages] == [b"waiting", b"foreign"]
            assert [one.quality for one in messages] == [1, 1]
            assert 1 not in [one.number for one in messages]
            if is_first:
                writer.close()
        writer.write(acknowledgement(PUBCOMP, 1))
        writer.write(b"".join(acknowledgement(PUBACK, one.number) for one in messages))
        await system.home.until(PUBCOMP)
        await system.home.until(PUBREC)
        await system.foreign.until(PUBREC)
        assert acknowledgement(PUBCOMP, 1) in system.home.got
        assert acknowledgement(PUBREC, 5) in system.home.got
        assert acknowledgement(PUBREC, 9) in system.foreign.got
        assert not move.home_releases()
        await system.stop()

    asyncio.run(check())

"""Misuse of moves: each attempt is refused and counted, and the moves of others go on."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from types import SimpleNamespace

import pytest
from moving import (
    LIMIT,
    QUICK,
    TrafficCounter,
    addresses,
    all_moves_over,
    client_addresses,
    linked_brokers,
    payload_id,
    running_agent,
    unlinked_brokers,
    wait_for,
)

from broadloom.agents.moves.broker_sessions import CODE, MARK, TOPIC, MqttGateway, Redirection, replicate
from broadloom.agents.moves.client_relay import ClientRelay
from broadloom.agents.moves.control_codes import ClientKeys, content_code, seal
from broadloom.agents.moves.control_messages import (
    ConnectOrder,
    Register,
    Reply,
    dump,
    from_client,
    redirect_topic,
    to_client,
)
from broadloom.agents.moves.move_agent import MESSAGE_BYTES, MOST_WAITING, MOST_WAITING_OF_ONE
from broadloom.agents.moves.move_registry import MoveState
from broadloom.agents.moves.moving_client import MOST_CALLS, MovingClient
from broadloom.agents.moves.operator_api import MOST_CONNECTIONS, HttpServer, OperatorApi
from broadloom.agents.moves.operator_client import Operator
from broadloom.deployment.rehearsal.mosquitto_lab import HOST, free_ports
from broadloom.errors import StorageError
from broadloom.mqtt.endpoint import Address, Login
from broadloom.mqtt.paho import connect, message_properties, new_client, stop_client, user_properties
from broadloom.mqtt.reserved_topics import MESSAGE_ID

CONNECT_C1 = b"\x10\x0e\0\4MQTT\4\2\0\x3c\0\2c1"  # of MQTT 3.1.1
KEYS = ClientKeys("a key for tests, not a secret")
live = [pytest.mark.needs("mosquitto"), pytest.mark.xdist_group("moves")]


class Mallory:
    """A client without a key at a broker whose rules let everybody do everything."""

    def __init__(self, address) -> None:
        self.heard: list[tuple[str, bytes]] = []
        self.marks: list[str] = []
        self._client = new_client("mallory", Login())
        self._client.on_message = self._on_message
        connect(self._client, address, clean=True)
        self._client.loop_start()

    def _on_message(self, _c, _d, message) -> None:
        self.heard.append((message.topic, message.payload))
        self.marks += [value for name, value in user_properties(message.properties) if name == MARK]

    def __enter__(self):
        assert wait_for(self._client.is_connected)
        return self

    def __exit__(self, *_):
        stop_client(self._client)

    def read(self, topic: str) -> None:
        """Subscribe."""
        self._client.subscribe(topic, 1)

    def send(self, topic: str, payload: bytes, qos: int = 1, **properties: str) -> None:
        """Publish a message, and wait until the broker has it if it acknowledges it."""
        user = message_properties(list(properties.items()))
        sent = self._client.publish(topic, payload, qos, properties=user)
        if qos:
            sent.wait_for_publish(LIMIT)


class TestLive:
    """On brokers without any rules."""

    pytestmark = live

    def test_forged_and_replayed_messages_and_floods_do_not_stop_a_move(self, tmp_path):
        """Nobody else can speak for Alice or to her, though every rule would let them."""
        traffic = TrafficCounter()
        with linked_brokers("hf") as brokers:
            endpoints = addresses(brokers)
            with (
                running_agent(endpoints, tmp_path / "journal", QUICK, keys=KEYS) as agent,
                Mallory(endpoints["h"]) as mallory,
            ):
                mallory.read(from_client("+", "+"))
                alice = MovingClient(
                    "alice",
                    client_addresses(brokers),
                    "h",
                    traffic.callback("alice"),
                    identify=payload_id,
                    key=KEYS.of("alice"),
                    plain=True,
                )
                alice.subscribe("t/1")
                with alice:
                    assert wait_for(lambda: "alice" in agent.registry.residents)
                    # Forged: without a code, and with the code of another client's key.
                    body = dump(Register("bob", 2**62, "h"))
                    topic = from_client("bob", "register")
                    for payload in (body, seal(KEYS.of("mallory"), topic, body)):
                        mallory.send(topic, payload)
                    assert wait_for(lambda: agent.refused["unsigned:"] == 2)
                    # Replayed: a message of Alice that Mallory has heard.
                    assert wait_for(lambda: bool(mallory.heard))
                    mallory.send(*mallory.heard[0])
                    assert wait_for(lambda: agent.refused["replayed:"] == 1)
                    # Orders to Alice: to move to another broker, and a message that nobody published.
                    order = dump(ConnectOrder("0" * 16, "f", str(endpoints["f"]), 0))
                    mallory.send(to_client("alice", "connect"), order)
                    mallory.send(redirect_topic("alice"), b"false", **{TOPIC: "t/1"})
                    # A flood at QoS 0, while Alice moves.
                    agent.ask(lambda own: own.request_to_move("alice", "f"))
                    for _ in range(2_000):
                        mallory.send(topic, os.urandom(500), qos=0)
                    assert wait_for(lambda: all_moves_over(agent))
                    assert wait_for(lambda: agent.refused["unsigned:"] >= 1_000)
                    assert wait_for(lambda: agent._waiting_bytes == 0)
                    assert alice.home == "f"
                    assert set(agent.registry.residents) == {"alice"}
                    alice.publish("t/1", b"true")
                    assert wait_for(lambda: traffic.got["alice"].total() == 1)
                    assert ("t/1", "false") not in traffic.got["alice"]

    def test_a_subscriber_that_poses_as_the_client_gets_nothing_lost(self, tmp_path):
        """It reads the client's topics at the new broker, where the client's session is missing."""
        traffic = TrafficCounter()
        with unlinked_brokers("hf") as brokers:
            endpoints = addresses(brokers)
            with (
                running_agent(endpoints, tmp_path / "journal", QUICK, keys=KEYS) as agent,
                Mallory(endpoints["f"]) as mallory,
            ):
                alice = MovingClient(
                    "alice",
                    client_addresses(brokers),
                    "h",
                    traffic.callback("alice"),
                    key=KEYS.of("alice"),
                    plain=True,
                )
                alice.subscribe("u/1")
                with alice:
                    assert wait_for(lambda: "alice" in agent.registry.residents)
                with MovingClient("writer", client_addresses(brokers), "h", plain=True) as writer:
                    for number in range(30):
                        writer.publish("u/1", b"%d" % number)
                    assert writer.wait_until_confirmed(LIMIT)
                mallory.read(to_client("alice", "+"))
                # The agent believes that Alice is at f now, but she has no session there.
                register = Register("alice", time.time_ns(), "f", (("u/1", 1),))
                topic = from_client("alice", "register")
                mallory.send(topic, seal(KEYS.of("alice"), topic, dump(register)))
                assert wait_for(lambda: bool(agent.registry.strays))
                assert wait_for(lambda: any(one[0] == redirect_topic("alice") for one in mallory.heard))
                # She confirms the mark of the agent in Alice's name, without her key.
                refused = agent.refused["unsigned:"]
                reply = Reply("alice", time.time_ns(), mallory.marks[0], "received")
                topic = from_client("alice", "reply")
                for payload in (dump(reply), seal(KEYS.of("mallory"), topic, dump(reply))):
                    mallory.send(topic, payload)
                assert wait_for(lambda: agent.refused["unsigned:"] >= refused + 2)
                assert all(not payload for _, payload in mallory.heard if _ == redirect_topic("alice"))
                assert agent.registry.strays
                # Meanwhile another client moves.
                with MovingClient(
                    "bob", client_addresses(brokers), "h", key=KEYS.of("bob"), plain=True
                ) as bob:
                    assert wait_for(lambda: "bob" in agent.registry.residents)
                    move = agent.ask(lambda own: own.request_to_move("bob", "f")).id
                    assert wait_for(lambda: agent.registry.moves[move].state is MoveState.REDIRECTED)
                    assert bob.home == "f"
                assert ("alice", "h") in agent.registry.strays
                alice = MovingClient(
                    "alice",
                    client_addresses(brokers),
                    "f",
                    traffic.callback("alice"),
                    key=KEYS.of("alice"),
                    plain=True,
                )
                alice.subscribe("u/1")
                with alice:
                    assert wait_for(lambda: traffic.got["alice"].total() == 30)
                    assert wait_for(lambda: all_moves_over(agent))


def test_the_inbox_has_a_bound_in_bytes_and_a_share_per_client(world):
    """A client that is trusted can still send too much; others are heard all the same."""
    agent = world.agent
    payload = b"x" * 100_000
    done = []
    for _ in range(100):
        agent.post("h", from_client("loud", "register"), payload, lambda: done.append("loud"))
    size = len(payload) + MESSAGE_BYTES
    assert agent.refused["flood:"] == 100 - MOST_WAITING_OF_ONE // size
    assert (
        len(done) == agent.refused["flood:"]
    )  # refused ones are acknowledged, so that they do not come back
    agent.post("h", from_client("quiet", "register"), payload, lambda: None)
    assert agent._waiting["quiet"] == size
    # Other calls have no share of their own, known or not.
    agent.post("h", from_client("loud", "reply"), payload, lambda: None)
    for number in range(50):
        agent.post("h", from_client("loud", f"call-{number}"), payload, lambda: None)
    assert agent.refused["call"] == 50
    assert agent._waiting["loud"] <= MOST_WAITING_OF_ONE
    # Empty messages need memory, too.
    for _ in range(2 * MOST_WAITING_OF_ONE // MESSAGE_BYTES):
        agent.post("h", from_client("empty", "register"), b"", lambda: None)
    assert agent._waiting["empty"] <= MOST_WAITING_OF_ONE
    assert agent._inbox.qsize() <= 3 * MOST_WAITING_OF_ONE // MESSAGE_BYTES
    for number in range(2 * MOST_WAITING // len(payload)):
        agent.post("h", from_client(f"c{number}", "register"), payload, lambda: None)
    assert agent._waiting_bytes <= MOST_WAITING
    while not agent._inbox.empty():
        agent._inbox.get()()
    assert agent._waiting_bytes == 0
    assert not agent._waiting


def test_a_flood_of_orders_to_a_client_has_a_bound(caplog):
    """Whoever can write to its control topics; the agent repeats what is dropped."""
    client = MovingClient("alice", {"h": "127.0.0.1:1"}, "h", key=KEYS.of("alice"), plain=True)
    for number in range(3 * MOST_CALLS):
        topic = (to_client("alice", "connect"), redirect_topic("alice"))[number % 2]
        mark = message_properties([(MARK, "0" * 16)]) if number % 2 else None
        client._received(SimpleNamespace(topic=topic, payload=b"x" * 1_000, properties=mark))
    client._received(
        SimpleNamespace(topic=to_client("alice", "move"), payload=b"x" * 1_000_000, properties=None)
    )
    assert client._work.qsize() == MOST_CALLS
    assert 1 <= len([one for one in caplog.records if "too many wait" in one.message]) <= 10


def test_a_redirected_message_with_another_id_and_a_forged_mark_are_ignored():
    """A copy with another id would be new; a mark that is confirmed makes the agent delete messages."""
    heard = []
    key = KEYS.of("alice")
    client = MovingClient("alice", {"h": "127.0.0.1:1"}, "h", heard.append, key=key, plain=True)

    def receive(payload: bytes, *user: tuple[str, str]) -> None:
        properties = message_properties(list(user))
        topic = redirect_topic("alice")
        client._received(SimpleNamespace(topic=topic, payload=payload, properties=properties))

    code = content_code(key, "t/1", b"x", "w:1")
    for message_id in ("w:1", "w:1", "w:2"):
        receive(b"x", (TOPIC, "t/1"), (MESSAGE_ID, message_id), (CODE, code))
    receive(b"x", (TOPIC, "t/1"), (CODE, code))
    assert [one.payload for one in heard] == [b"x"]
    mark = "0" * 16
    for forged in ("", content_code(key, "", b"1" * 16, "")):
        receive(b"", (MARK, mark), (CODE, forged))
    assert client._work.empty()
    receive(b"", (MARK, mark), (CODE, content_code(key, "", mark.encode(), "")))
    assert client._work.qsize() == 1


def test_only_marks_that_are_awaited_count_and_a_redirection_that_has_ended_is_forgotten(monkeypatch):
    gateway = MqttGateway(dict.fromkeys("hf", Address("127.0.0.1", 1)), Login())
    begun, can_end = threading.Event(), threading.Event()

    def run(redirection: Redirection) -> None:
        begun.set()
        assert can_end.wait(LIMIT)
        for mark in ("0" * 16, redirection._present):
            gateway.confirm("alice", mark)
        assert redirection.confirmed == {redirection._present}

    monkeypatch.setattr(Redirection, "run", run)
    errors = []
    gateway.redirect("h", "f", "alice", "0" * 16, errors.append)
    assert begun.wait(LIMIT)
    can_end.set()
    assert wait_for(lambda: errors == [None])
    assert not gateway._redirections
    gateway.stop()


def test_slow_connections_do_not_keep_operators_out(world):
    """More of them than there can be; each is idle, so it makes room, and moves can be requested."""
    agent = world.agent
    world.register("a", "h")
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            if not agent._inbox.empty():
                agent._inbox.get()()
            over.wait(0.01)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    server = HttpServer(OperatorApi(agent, lambda _: {}), "token")
    server.start()
    slow = []
    try:
        before = threading.active_count()
        for _ in range(3 * MOST_CONNECTIONS):
            slow.append(socket.create_connection(("127.0.0.1", server.server_port)))
            slow[-1].sendall(b"GET /health HTTP/1.1\r\nHost: ")
        operator = Operator(f"http://127.0.0.1:{server.server_port}", "token")
        assert operator.request_to_move("a", "f")["state"] == "requested"
        assert operator.health()["refused"]["connections:"] >= 2 * MOST_CONNECTIONS
        assert threading.active_count() <= before + 10
    finally:
        for one in slow:
            one.close()
        server.shutdown()
        server.server_close()
        over.set()
        thread.join()


def test_slow_connections_do_not_keep_clients_from_the_relay(monkeypatch):
    """They make room for a client that moves; so do those that send something else than CONNECT."""
    monkeypatch.setattr("broadloom.agents.moves.client_relay.MOST_CONNECTIONS", 5)
    (port,) = free_ports(1)
    served = []

    class ArrivingMove:
        is_leaving = True

        async def serve(self, request, _stream, _writer):
            served.append(request.client)
            return ""

        def close(self):
            pass

    async def attack() -> ClientRelay:
        relay = ClientRelay(Address(HOST, port), moves={"c1": ArrivingMove()})
        await relay.start()
        slow = [(await asyncio.open_connection(HOST, port))[1] for _ in range(20)]
        for writer in slow:
            writer.write(CONNECT_C1[:5])
        for packet in (b"\x30\x02\0\0", b"\x10\xff\xff\xff\x7f", CONNECT_C1):
            stream, writer = await asyncio.open_connection(HOST, port)
            writer.write(packet)
            assert await stream.read() == b""  # the relay has ended the connection
            writer.close()
        for writer in slow:
            writer.close()
        while relay._connections:
            await asyncio.sleep(0.01)
        await relay.stop()
        return relay

    relay = asyncio.run(attack())
    assert served == ["c1"]
    assert relay.refused == {"slow": 16, "malformed": 2}


def test_a_full_disk_stops_moves_with_one_line_and_they_go_on_when_there_is_room(world, caplog, monkeypatch):
    agent = world.agent
    world.register("a", "h")
    append = world.journal.append
    full = threading.Event()
    full.set()

    def write(changes):
        if full.is_set():
            raise StorageError("moves cannot be written: No space left on device")
        append(changes)

    monkeypatch.setattr(world.journal, "append", write)
    monkeypatch.setattr("broadloom.agents.moves.move_agent.ROOM_SECONDS", 0.02)
    thread = threading.Thread(target=agent.run, daemon=True)
    thread.start()
    try:
        with pytest.raises(StorageError, match="No space left"):
            agent.ask(lambda own: own.request_to_move("a", "f"))
        body = dump(Register("b", 1, "h"))
        agent.post("h", from_client("b", "register"), body, lambda: None)
        assert wait_for(lambda: "No space left" in agent.problem)
        assert thread.is_alive()
        assert agent.ask(lambda own: list(own.registry.residents)) == ["a"]  # questions are answered
        agent.post("h", from_client("b", "reply"), b"", lambda: None)  # waits behind the register
        assert wait_for(lambda: len(agent._deferred) == 2)
        assert agent._waiting_bytes == len(body) + 2 * MESSAGE_BYTES
        assert len([one for one in caplog.records if "until the journal" in one.message]) == 1
        full.clear()
        assert wait_for(lambda: not agent.problem)
        assert agent.refused["reply"] == 1
        assert (agent._waiting_bytes, len(agent._deferred)) == (0, 0)
        assert "b" in agent.registry.residents
        assert agent.ask(lambda own: own.request_to_move("a", "f")).state is MoveState.REQUESTED
    finally:
        agent.stop()
        thread.join()


def test_a_session_that_the_agent_prepares_has_the_control_topics_of_its_client(monkeypatch):
    """Otherwise redirected messages would find no session."""
    filters = []
    monkeypatch.setattr(
        "broadloom.agents.moves.broker_sessions.replicate_session", lambda *given: filters.append(given[-1])
    )
    replicate(None, "a", Login(), (("t", 1),))
    assert filters == [(("t", 1), (to_client("a", "+"), 1))]

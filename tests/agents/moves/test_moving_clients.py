"""Live moves on real mosquitto brokers under load: nothing lost or duplicated, no client forced."""

from __future__ import annotations

import inspect
import math
import multiprocessing
import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from types import SimpleNamespace

import pytest
from moving import (
    LIMIT,
    QUICK,
    TrafficCounter,
    addresses,
    all_moves_over,
    client_addresses,
    has_moved_to,
    has_session,
    linked_brokers,
    move_states,
    payload_id,
    running_agent,
    wait_for,
    write_config,
)
from moving_child import run_agent

from broadloom import InputError
from broadloom.agents.moves import control_messages, move_service
from broadloom.agents.moves import moving_client as client_module
from broadloom.agents.moves.broker_sessions import TOPIC
from broadloom.agents.moves.control_messages import (
    AHEAD,
    ConnectOrder,
    MoveRequest,
    PolicyAnswer,
    accept,
    decline,
    dump,
    stay_until,
    to_client,
)
from broadloom.agents.moves.move_agent import MoveAgent, Timing
from broadloom.agents.moves.move_registry import MoveState
from broadloom.agents.moves.moving_client import (
    DIGEST,
    LONGEST_WAIT,
    MovingClient,
    OutboxFullError,
    SeenMessages,
)
from broadloom.agents.moves.operator_client import Operator
from broadloom.deployment.rehearsal.mosquitto_lab import HOST, free_ports
from broadloom.mqtt.endpoint import Address
from broadloom.mqtt.reserved_topics import MESSAGE_ID

pytestmark = [pytest.mark.needs("mosquitto"), pytest.mark.xdist_group("moves")]

processes = multiprocessing.get_context("forkserver")


def test_twenty_clients_move_under_load_without_lost_or_duplicated_messages(tmp_path):
    """18 accept, 2 decline, one is offline for two seconds, and the agent is killed once."""
    traffic, topics_of, over = TrafficCounter(), {}, threading.Event()
    with linked_brokers("hf") as brokers, ExitStack() as stack:
        config, port = write_config(tmp_path, brokers, QUICK)
        operator = Operator(f"http://127.0.0.1:{port}", "token", patience=2 * LIMIT)
        first, second = (
            processes.Process(target=run_agent, args=(config, "connected", "after"), daemon=True)
            for _ in range(2)
        )
        first.start()
        clients = []
        for number in range(20):
            policy, name = (decline if number in (3, 7) else accept), f"c{number}"
            client = MovingClient(
                name,
                client_addresses(brokers),
                "h",
                traffic.callback(name),
                policy,
                identify=payload_id,
                plain=True,
            )
            topics_of[name] = {f"t/{number % 10}", f"t/{(3 * number + 1) % 10}"}
            client.subscribe(*topics_of[name])
            clients.append(stack.enter_context(client))
        assert all(client.wait_until_ready(LIMIT) for client in clients)
        assert wait_for(lambda: len(operator.clients()) == 20)

        def load() -> None:
            while not over.wait(1 / 300):
                number = len(traffic.sent)
                traffic.send(clients[number % 20], f"t/{number % 10}")

        publishing = threading.Thread(target=load, daemon=True)
        publishing.start()
        clients[5].stop()  # offline: the application still publishes, and the broker queues messages

        def request_all() -> None:
            for client in clients:
                operator.request_to_move(client.name, "f", client.name)

        # In a thread, because the agent can be killed before all requests are made.
        requesting = threading.Thread(target=request_all, daemon=True)
        requesting.start()
        assert wait_for(lambda: not first.is_alive())
        second.start()
        requesting.join()
        time.sleep(2)
        clients[5].start()
        assert wait_for(lambda: settled(operator)), operator.moves()
        assert wait_for(lambda: len(traffic.sent) > 500)  # each topic has four subscribers
        over.set()
        publishing.join()
        assert all(client.wait_until_confirmed(LIMIT) for client in clients)
        wait_for(lambda: traffic.counts(topics_of)[1] == 0)
        expected, lost, doubled = traffic.counts(topics_of)
        homes = {one["client"]: one["broker"] for one in operator.clients()}
        moves = operator.health()["moves"]
        notes = [one["note"] for one in operator.moves() if one["note"]]
        second.kill()
        second.join()
    assert (lost, doubled) == (0, 0)
    assert expected > 2_000
    assert moves == {"redirected": 18, "declined": 2}, notes
    assert homes == {client.name: client.home for client in clients}
    assert sorted(name for name, home in homes.items() if home == "h") == ["c3", "c7"]


def settled(operator: Operator) -> bool:
    health = operator.health()
    return not health["strays"] and not set(health["moves"]) & {
        "requested",
        "accepted",
        "replicated",
        "connected",
    }


def counting_client(brokers, traffic, policy=accept, addresses=None, **options):
    """The client `subject` of broker h, which counts its messages."""
    addresses = addresses or client_addresses(brokers)
    client = MovingClient(
        "subject",
        addresses,
        "h",
        traffic.callback("subject"),
        policy,
        identify=payload_id,
        **options,
        plain=True,
    )
    client.subscribe("t/1")
    return client


def publisher(brokers):
    return MovingClient("publisher", client_addresses(brokers), "h", plain=True)


def request_move(agent, to="f"):
    assert wait_for(lambda: "subject" in agent.registry.residents)
    return agent.ask(lambda own: own.request_to_move("subject", to))


def brokers_with_session(brokers):
    return [name for name, address in addresses(brokers).items() if has_session(address, "subject")]


def each_arrived_once(traffic, clients):
    """Whether `subject` has received each message exactly once."""
    assert all(client.wait_until_confirmed(LIMIT) for client in clients)
    assert wait_for(lambda: traffic.counts({"subject": {"t/1"}})[1] == 0)
    return traffic.counts({"subject": {"t/1"}})[1:] == (0, 0)


def test_the_move_of_a_client_that_accepts_and_disappears_fails(tmp_path, monkeypatch):
    """Its messages wait at its home broker, and no session stays at the other one."""
    traffic = TrafficCounter()
    timing = Timing(ttl=0.3, settle=0.0, move=1.0, again=0.3)
    with linked_brokers("hf") as brokers, running_agent(addresses(brokers), tmp_path, timing) as agent:
        client, stopped = counting_client(brokers, traffic), threading.Event()
        agent._watch = lambda move: (
            threading.Thread(target=lambda: (client.stop(), stopped.set())).start()
            if move.state is MoveState.ACCEPTED
            else None
        )
        with publisher(brokers) as other, monkeypatch.context() as patch:
            # An order that arrives before the client has stopped is ignored.
            patch.setattr(client, "_on_connect_order", lambda _: None)
            client.start()
            request_move(agent)
            assert stopped.wait(LIMIT)
            patch.undo()
            for _ in range(20):
                traffic.send(other, "t/1")
            assert wait_for(lambda: all_moves_over(agent))
            assert set(move_states(agent)) == {MoveState.FAILED}
            assert brokers_with_session(brokers) == ["h"]
            client.start()  # it comes back later
            assert each_arrived_once(traffic, [other])
            client.stop()


def test_a_move_to_a_broker_that_is_down_fails_and_leaves_the_client_undisturbed(tmp_path):
    traffic = TrafficCounter()
    timing = Timing(ttl=0.3, settle=0.0, move=1.0, again=0.3)
    with linked_brokers("h") as brokers:
        endpoints = addresses(brokers) | {"f": Address("127.0.0.1", 1)}
        names = {name: str(address) for name, address in endpoints.items()}
        with (
            running_agent(endpoints, tmp_path, timing) as agent,
            counting_client(brokers, traffic, addresses=names) as client,
        ):
            request_move(agent)
            assert wait_for(lambda: MoveState.FAILED in move_states(agent))
            assert client.home == "h"
            with publisher(brokers) as other:
                traffic.send(other, "t/1")
                assert each_arrived_once(traffic, [other])


def test_a_client_that_cannot_reach_the_new_broker_returns_home(tmp_path):
    """Only the agent reaches it; the prepared session is removed, and no message is lost."""
    traffic = TrafficCounter()
    with linked_brokers("hf") as brokers, running_agent(addresses(brokers), tmp_path) as agent:
        unreachable = client_addresses(brokers) | {"f": "127.0.0.1:1"}
        with (
            counting_client(brokers, traffic, addresses=unreachable, patience=0.5) as client,
            publisher(brokers) as other,
        ):
            request_move(agent)
            for _ in range(40):
                traffic.send(other, "t/1")
                time.sleep(0.02)
            assert wait_for(lambda: all_moves_over(agent))
            assert (client.home, set(move_states(agent))) == ("h", {MoveState.FAILED})
            assert each_arrived_once(traffic, [other])
            client.stop()
            assert brokers_with_session(brokers) == ["h"]


def test_a_client_moves_only_if_and_when_it_accepts(tmp_path):
    """One declines, one does not know the broker, one learns its address, and one stays for a while first."""
    answered: list[float] = []

    def stay_first(request: MoveRequest) -> PolicyAnswer:
        answered.append(time.time())
        return stay_until(answered[0] + 0.7)(request)

    only_home = lambda brokers: {"h": client_addresses(brokers)["h"]}  # noqa: E731
    with linked_brokers("hf") as brokers, running_agent(addresses(brokers), tmp_path) as agent:
        clients = [
            MovingClient("declines", client_addresses(brokers), "h", policy=decline, plain=True),
            MovingClient("ignorant", only_home(brokers), "h", plain=True),
            MovingClient("learns", only_home(brokers), "h", learn=True, plain=True),
            MovingClient("stays-first", client_addresses(brokers), "h", policy=stay_first, plain=True),
        ]
        for client in clients:
            client.start()
        assert wait_for(lambda: len(agent.registry.residents) == 4)
        for client in clients:
            agent.ask(lambda own, client=client: own.request_to_move(client.name, "f"))
        assert wait_for(lambda: all_moves_over(agent))
        assert [client.home for client in clients] == ["h", "h", "f", "f"]
        assert move_states(agent) == {MoveState.DECLINED: 2, MoveState.REDIRECTED: 2}
        assert len(answered) >= 2  # the agent asks again when the time is over
        assert answered[-1] >= answered[0] + 0.7  # and repeats requests until it has an answer
        for client in clients:
            client.stop()


def test_messages_follow_a_client_that_restarts_at_another_broker(tmp_path):
    """The new broker is its home, and messages queued at the old one are forwarded."""
    traffic = TrafficCounter()
    with linked_brokers("hf") as brokers, running_agent(addresses(brokers), tmp_path) as agent:
        with counting_client(brokers, traffic), publisher(brokers) as other:
            assert wait_for(lambda: len(agent.registry.residents) == 2)
            traffic.send(other, "t/1")
            assert each_arrived_once(traffic, [other])
        with publisher(brokers) as other:
            for _ in range(20):
                traffic.send(other, "t/1")
            restarted = MovingClient(
                "subject",
                client_addresses(brokers),
                "f",
                traffic.callback("subject"),
                identify=payload_id,
                plain=True,
            )
            restarted.subscribe("t/1")
            restarted.start()
            assert wait_for(lambda: has_moved_to(agent, "subject", "f"))
            traffic.send(other, "t/1")
            assert each_arrived_once(traffic, [other])
            restarted.stop()
            assert brokers_with_session(brokers) == ["f"]


def test_a_client_can_answer_by_calls_and_move_without_a_request(tmp_path):
    """A staying client can accept early, and decline after it has accepted; `connect` needs no request."""
    requests: dict[str, str] = {}

    def staying(request: MoveRequest) -> PolicyAnswer:
        requests[request.foreign] = request.move
        return PolicyAnswer("stay", time.time() + 3600)

    traffic, slow = TrafficCounter(), replace(QUICK, settle=3600.0, move=3600.0)
    with linked_brokers("hf") as brokers, publisher(brokers) as other:
        client = counting_client(brokers, traffic, staying)
        with running_agent(addresses(brokers), tmp_path / "slow", slow) as agent, client:
            assert wait_for(lambda: len(agent.registry.residents) == 2)
            move = agent.ask(lambda own: own.request_to_move("subject", "f")).id
            for act, state in (
                (None, MoveState.STAYING),
                (client.accept, MoveState.REPLICATED),
                (client.decline, MoveState.FAILED),
            ):
                if act is not None:
                    act(requests["f"])
                assert wait_for(lambda: agent.registry.moves[move].state is state)  # noqa: B023
            assert agent.registry.moves[move].note == "the client declined to move"
            assert client.home == "h"
            for call in (agent.replicate, agent.connect):
                with pytest.raises(InputError, match=f"move {move} is failed"):
                    call(agent.registry.moves[move], 0.0)
            assert wait_for(lambda: all_moves_over(agent))
        with running_agent(addresses(brokers), tmp_path / "quick") as agent, client:
            client.register()
            other.register()
            assert wait_for(lambda: len(agent.registry.residents) == 2)
            with pytest.raises(InputError, match="no broker 'g'; there are h, f"):
                client.connect("g")
            for _ in range(20):
                traffic.send(other, "t/1")
            client.connect("f")
            assert wait_for(lambda: has_moved_to(agent, "subject", "f"))
            traffic.send(other, "t/1")
            assert each_arrived_once(traffic, [other])
        assert brokers_with_session(brokers) == ["f"]


def test_the_calls_of_the_paper_are_public_under_their_names():
    calls = {
        MovingClient: ("register", "accept", "decline", "connect"),
        MoveAgent: ("request_to_move", "replicate", "connect", "redirect"),
        Operator: ("summarize", "request_to_move"),
        move_service: ("summarize",),
        control_messages: ("accept", "decline"),
    }
    for owner, names in calls.items():
        for name in names:
            assert inspect.getdoc(getattr(owner, name)), (owner, name)
            assert "return" in getattr(owner, name).__annotations__


def test_a_client_remembers_its_broker_in_a_file(tmp_path):
    """It returns to the broker in the file, unless that broker is unknown."""
    memory = tmp_path / "home"
    memory.write_text("f")
    assert MovingClient("a", {"h": "x:1", "f": "x:2"}, "h", memory=memory, plain=True).home == "f"
    memory.write_text("unknown")
    assert MovingClient("a", {"h": "x:1", "f": "x:2"}, "h", memory=memory, plain=True).home == "h"
    with pytest.raises(InputError, match="no broker 'g'; there are h"):
        MovingClient("a", {"h": "x:1"}, "g", plain=True)


def incoming(topic, payload=b"{}", **properties):
    """A message as paho delivers it."""
    return SimpleNamespace(
        topic=topic, payload=payload, properties=SimpleNamespace(UserProperty=list(properties.items()))
    )


def test_a_client_ignores_control_messages_to_other_clients_and_malformed_ones(caplog):
    received = []
    client = MovingClient("a", {"h": "x:1", "f": "x:2"}, "h", received.append, plain=True)
    order = dump(ConnectOrder("0" * 16, "f", "x:2"))
    for topic in (
        "$broadloom/to/b/connect",
        "$broadloom/from/a/connect",
        "$broadloom/to/a/b/connect",
        "$broadloom/",
    ):
        client._received(incoming(topic, order))
    assert client._work.empty()
    assert caplog.text.count("a control message for another") == 4
    for payload in (b"", b"{}", b"\xff", order[:-1]):
        client._on_call("connect", payload)
        client._on_call("move", payload)
        client._on_call("refused", payload)
    client._on_call("dance", order)
    assert client.home == "h"
    wrapped = {TOPIC: "t/1", MESSAGE_ID: "p:1:1"}
    for _ in range(2):
        client._received(incoming("$broadloom/to/a/redirect", b"once", **wrapped))
    client._received(incoming("$broadloom/to/a/redirect", b"never", **{TOPIC: "broadloom/to/a/move"}))
    assert received == [("t/1", b"once", "p:1:1")]


def test_an_application_error_does_not_end_the_connection(caplog):
    def fails(_):
        raise ValueError("application error")

    client = MovingClient("a", {"h": "x:1"}, "h", fails, plain=True)
    client._received(incoming("t/1", b"x"))
    assert "failed to process a message" in caplog.text


def test_a_client_refuses_invalid_filters_topics_payloads_positions_and_names():
    client = MovingClient("a", {"h": "x:1"}, "h", plain=True)
    for text in ("", "a/#/b", "broadloom/to/b/+", "$broadloom/to/b/+", "$share/g/t", "a+"):
        with pytest.raises(InputError):
            client.subscribe(text)
    with pytest.raises(InputError, match="give at most 196,608 in all"):
        client.subscribe(*(f"{number}{'x' * 200}" for number in range(1_500)))
    assert not client._filters
    with pytest.raises(InputError, match="give 0 or 1"):
        client.subscribe("t", qos=2)
    for text in ("a/+", "#", "", "broadloom/from/b/register"):
        with pytest.raises(InputError):
            client.publish(text, b"")
    for payload in ("text", None, 7):
        with pytest.raises(InputError, match="give bytes"):
            client.publish("t", payload)
    client.publish("t", b"waits for a connection")
    assert client.unconfirmed() == 1
    for position in ([], [math.nan], [0.0, math.inf], [10**400], [0.0] * 17, ["here"], 7):
        with pytest.raises(InputError, match="give 1 to 16 finite numbers"):
            MovingClient("a", {"h": "x:1"}, "h", place=position, plain=True)
    for name in ("", "a/b", "a+", "broadloom-mover", "x" * 129):
        with pytest.raises(InputError):
            MovingClient(name, {"h": "x:1"}, "h", plain=True)


def test_unconfirmed_messages_are_kept_and_a_full_outbox_refuses_more(monkeypatch):
    """Packet ids that start again overwrite no message."""
    monkeypatch.setattr(client_module, "MOST_UNCONFIRMED", 300)
    (port,) = free_ports(1)
    with MovingClient("a", {"h": f"{HOST}:{port}"}, "h", plain=True) as client:
        keys = set()
        for _ in range(3):
            client._client._last_mid = 0
            keys |= {client.publish("t", b"x") for _ in range(100)}
        assert len(keys) == client.unconfirmed() == len(client._client._out_messages) == 300
        with pytest.raises(OutboxFullError, match="300 messages of a are unacknowledged"):
            client.publish("t", b"x")
        assert client.unconfirmed() == 300


def test_a_client_starts_only_once_and_can_stop_while_it_cannot_connect(caplog):
    """A `connect` before the start takes effect at the start."""
    with linked_brokers("hf") as brokers:
        (unused,) = free_ports(1)
        with_unreachable = client_addresses(brokers) | {"g": f"{HOST}:{unused}"}
        client = MovingClient("a", with_unreachable, "h", patience=math.inf, plain=True)
        client.connect("f")
        with client:
            with pytest.raises(InputError, match="client a is started already"):
                client.start()
            assert wait_for(lambda: client.home == "f" and client._ready.is_set())
            client.connect("g")
            assert wait_for(lambda: client.home == "g")
        assert client.home == "f"
        assert "cannot connect to 'g', and returns to" in caplog.text
        with client:
            assert client.wait_until_ready(LIMIT)


def test_a_full_outbox_empties_once_a_broker_is_connected(monkeypatch):
    """Messages published before the connection are confirmed, and then the client takes more."""
    monkeypatch.setattr(client_module, "MOST_UNCONFIRMED", 300)
    with linked_brokers("hf") as brokers:
        client = MovingClient("a", client_addresses(brokers), "h", plain=True)
        for number in range(300):
            client.publish("t/1", b"%d" % number)
        with client:
            assert client.wait_until_confirmed(LIMIT)
            client._client._last_mid = 0
            client.publish("t/1", b"more")
            assert client.wait_until_confirmed(LIMIT)


def test_a_client_does_not_obey_an_order_of_a_move_cancelled_while_it_was_offline(tmp_path, monkeypatch):
    """It accepted and went offline; the orders that waited in its session have no effect when it returns."""
    with linked_brokers("hf") as brokers, running_agent(addresses(brokers), tmp_path) as agent:
        client, order = counting_client(brokers, TrafficCounter()), to_client("subject", "connect")
        sent, received, replied = [], [], []
        send, obey, reply = agent._gateway.send, client._on_connect_order, agent._replied
        with monkeypatch.context() as patch:
            patch.setattr(client, "_on_connect_order", lambda _: None)  # as if it arrived too late
            with client:
                move = request_move(agent)
                assert wait_for(lambda: move_states(agent)[MoveState.REPLICATED] == 1)
        monkeypatch.setattr(
            agent._gateway, "send", lambda *message: (send(*message), sent.append(message[1]))
        )
        assert wait_for(lambda: sent.count(order) >= 4)  # two at each broker, which wait in its sessions
        assert agent.ask(lambda own: own.cancel(move.id)).state is MoveState.CANCELLED
        orders = sent.count(order)
        monkeypatch.setattr(client, "_on_connect_order", lambda late: (received.append(late), obey(late)))
        monkeypatch.setattr(
            agent, "_replied", lambda message, now: (replied.append(message.answer), reply(message, now))[1]
        )
        with client:
            assert wait_for(lambda: received)
            assert wait_for(lambda: "ready" in replied)
            agent.ask(lambda _: None, LIMIT)  # the agent has done what follows from that
            assert sent.count(order) == orders
            assert client.home == "h"


def test_long_message_ids_take_bounded_memory():
    """Digests are stored; the same id on different topics stays distinct."""
    seen = SeenMessages(most=2)
    key = "x" * 60_000
    assert [seen.first(topic, key) for topic in ("t", "u", "t", "u", "v", "t")] == [1, 1, 0, 0, 1, 1]
    assert {len(digest) for digest in seen._ids} == {DIGEST}


def test_a_client_remembers_only_its_last_answers(monkeypatch):
    monkeypatch.setattr("broadloom.agents.moves.moving_client.MOST_ANSWERS", 3)
    client = MovingClient("c", {"h": "127.0.0.1:1", "f": "127.0.0.1:2"}, "h", policy=decline, plain=True)
    moves = [f"{number:016x}" for number in range(9)]
    for move in moves:
        request = MoveRequest(move, "h", "f", "127.0.0.1:2", 1.0)
        client._on_call("move", dump(request))
    assert list(client._answers) == moves[-3:]


def test_a_client_that_reads_everything_registers_with_an_agent_that_starts_later(tmp_path):
    """A broker delivers its `register` to the client itself, so only the agent's answer counts."""
    with linked_brokers("hf") as brokers:
        client = MovingClient("everything", client_addresses(brokers), "h", plain=True)
        client.subscribe("#")
        with client:
            assert client.wait_until_ready(LIMIT)
            assert wait_for(lambda: client._due < math.inf)
            with running_agent(addresses(brokers), tmp_path) as agent:
                assert wait_for(lambda: "everything" in agent.registry.residents)
                assert wait_for(lambda: client._due > time.monotonic() + LONGEST_WAIT)


def test_a_client_that_publishes_all_the_time_registers_with_an_agent_that_starts_later(tmp_path):
    """Its thread never idles, and it still registers again until it has an answer."""
    with (
        linked_brokers("hf") as brokers,
        MovingClient("busy", client_addresses(brokers), "h", plain=True) as client,
    ):
        over = threading.Event()

        def publish() -> None:
            while not over.wait(0.05):
                client.publish("elsewhere", b"x")

        publishing = threading.Thread(target=publish, daemon=True)
        publishing.start()
        numbers = set()
        assert wait_for(lambda: numbers.add(client._registered) or len(numbers) > 3)
        with running_agent(addresses(brokers), tmp_path) as agent:
            assert wait_for(lambda: "busy" in agent.registry.residents)
        over.set()
        publishing.join()


def test_clients_register_again_with_an_agent_that_lost_its_journal(tmp_path, monkeypatch):
    """Registered clients repeat `register`, at a lower rate."""
    monkeypatch.setattr(client_module, "KNOWN_SECONDS", 0.2)
    with (
        linked_brokers("hf") as brokers,
        MovingClient("old", client_addresses(brokers), "h", plain=True) as client,
    ):
        for folder in ("first", "second"):
            with running_agent(addresses(brokers), tmp_path / folder) as agent:
                assert wait_for(lambda: "old" in agent.registry.residents)
        assert client.home == "h"


def test_a_client_whose_clock_is_years_ahead_can_register(tmp_path, monkeypatch, caplog):
    """It numbers its messages from the agent's clock, also after its own clock is corrected."""
    clock = SimpleNamespace(time_ns=lambda: time.time_ns() + 3 * AHEAD, monotonic=time.monotonic)
    with linked_brokers("hf") as brokers, running_agent(addresses(brokers), tmp_path) as agent:
        with monkeypatch.context() as patch:
            patch.setattr(client_module, "time", clock)
            client = MovingClient("early", client_addresses(brokers), "h", plain=True)
            client.start()
            assert wait_for(lambda: "early" in agent.registry.residents)
        client.subscribe("t/1")
        assert wait_for(lambda: agent.registry.residents["early"].filters == (("t/1", 1),))
        client.stop()
    assert "more than a year ahead" in caplog.text


def test_a_late_answer_to_an_earlier_ready_does_not_outdate_the_next_one(monkeypatch):
    """Otherwise two answers under way would outdate each other for ever, and the client would never move."""
    client = MovingClient("c", {"h": "127.0.0.1:1", "f": "127.0.0.1:2"}, "h", plain=True)
    ready, moved = [], []
    monkeypatch.setattr(client, "_send_call", lambda _call, message: ready.append(message.number))
    monkeypatch.setattr(client, "_move_to", lambda broker: moved.append(broker) or True)

    def order(number: int) -> None:
        client._on_connect_order(ConnectOrder("0" * 16, "f", "127.0.0.1:2", number))

    order(0)
    monkeypatch.setattr(client_module, "READY_SECONDS", 0.0)  # no answer in time
    order(0)
    monkeypatch.setattr(client_module, "READY_SECONDS", 60.0)
    assert len(ready) == 2
    order(ready[0])
    order(0)
    assert (len(ready), moved) == (2, [])
    order(ready[1])
    assert moved == ["f"]

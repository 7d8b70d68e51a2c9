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
    Counted,
    addresses,
    agent_of,
    has_session,
    is_over,
    is_over_at,
    known,
    linked,
    payload_id,
    states,
    wait_for,
    write_config,
)
from moving_child import run_agent

from broadloom import InputError
from broadloom.agents.moves import broker_sessions as sessions_module
from broadloom.agents.moves import control_messages, move_service
from broadloom.agents.moves import moving_client as client_module
from broadloom.agents.moves.broker_sessions import TOPIC, Redirection, replicate
from broadloom.agents.moves.control_messages import (
    AHEAD,
    ConnectOrder,
    MoveRequest,
    PolicyAnswer,
    accept,
    decline,
    dump,
    stay_until,
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
from broadloom.agents.moves.operator_api import Operator
from broadloom.deployment.rehearsal.mosquitto_lab import HOST, free_ports
from broadloom.mqtt.endpoint import Address, Login
from broadloom.mqtt.reserved_topics import MESSAGE_ID

pytestmark = [pytest.mark.needs("mosquitto"), pytest.mark.xdist_group("mosquitto")]

processes = multiprocessing.get_context("forkserver")


def test_twenty_clients_under_load(tmp_path):
    """18 accept, 2 decline, one is offline for two seconds, the agent is killed once: 0 lost, 0 doubled."""
    counted, wants, over = Counted(), {}, threading.Event()
    with linked("hf") as brokers, ExitStack() as stack:
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
            client = MovingClient(name, known(brokers), "h", counted.ear(name), policy, identify=payload_id)
            wants[name] = {f"t/{number % 10}", f"t/{(3 * number + 1) % 10}"}
            client.subscribe(*wants[name])
            clients.append(stack.enter_context(client))
        assert all(client.wait_until_ready(LIMIT) for client in clients)
        assert wait_for(lambda: len(operator.clients()) == 20)

        def load() -> None:
            while not over.wait(1 / 300):
                number = len(counted.sent)
                counted.send(clients[number % 20], f"t/{number % 10}")

        publishing = threading.Thread(target=load, daemon=True)
        publishing.start()
        clients[5].stop()  # offline: the application publishes on, and its broker collects

        def ask() -> None:
            for client in clients:
                operator.request_to_move(client.name, "f", client.name)

        asking = threading.Thread(target=ask, daemon=True)  # the agent may be gone before all are asked
        asking.start()
        assert wait_for(lambda: not first.is_alive())
        second.start()
        asking.join()
        time.sleep(2)
        clients[5].start()
        assert wait_for(lambda: settled(operator)), operator.moves()
        assert wait_for(lambda: len(counted.sent) > 500)  # each for four clients
        over.set()
        publishing.join()
        assert all(client.wait_until_confirmed(LIMIT) for client in clients)
        wait_for(lambda: counted.faults(wants)[1] == 0)
        expected, lost, doubled = counted.faults(wants)
        homes = {one["client"]: one["broker"] for one in operator.clients()}
        moves = operator.health()["moves"]
        second.kill()
        second.join()
    assert (lost, doubled) == (0, 0)
    assert expected > 2_000
    assert moves == {"redirected": 18, "declined": 2}
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


def subject(brokers, counted, policy=accept, places=None, **options):
    """A client at home that counts, in a thread of its own."""
    places = places or known(brokers)
    client = MovingClient(
        "subject", places, "h", counted.ear("subject"), policy, identify=payload_id, **options
    )
    client.subscribe("t/1")
    return client


def publisher(brokers):
    return MovingClient("publisher", known(brokers), "h")


def move_it(agent, to="f"):
    assert wait_for(lambda: "subject" in agent.registry.residents)
    return agent.ask(lambda own: own.request_to_move("subject", to))


def sessions(brokers):
    return [name for name, address in addresses(brokers).items() if has_session(address, "subject")]


def lossless(counted, clients):
    """Everything that was sent has come, once."""
    assert all(client.wait_until_confirmed(LIMIT) for client in clients)
    assert wait_for(lambda: counted.faults({"subject": {"t/1"}})[1] == 0)
    return counted.faults({"subject": {"t/1"}})[1:] == (0, 0)


def test_a_client_that_is_gone_for_good_stays_at_home(tmp_path, monkeypatch):
    """It said yes and vanished: after a time the move is given up, and everything waits at home."""
    counted = Counted()
    timing = Timing(ttl=0.3, settle=0.0, move=1.0, again=0.3)
    with linked("hf") as brokers, agent_of(addresses(brokers), tmp_path, timing) as agent:
        client, gone = subject(brokers, counted), threading.Event()
        agent._watch = lambda move: (
            threading.Thread(target=lambda: (client.stop(), gone.set())).start()
            if move.state is MoveState.ACCEPTED
            else None
        )
        with publisher(brokers) as other, monkeypatch.context() as patch:
            patch.setattr(
                client, "_on_connect_order", lambda _: None
            )  # a call that comes before it is gone is too late
            client.start()
            move_it(agent)
            assert gone.wait(LIMIT)
            patch.undo()
            for _ in range(20):
                counted.send(other, "t/1")
            assert wait_for(lambda: is_over(agent))
            assert set(states(agent)) == {MoveState.FAILED}
            assert sessions(brokers) == ["h"]
            client.start()  # it was not gone for good, after all
            assert lossless(counted, [other])
            client.stop()


def test_a_foreign_broker_that_is_never_up(tmp_path):
    """The client is not disturbed at all."""
    counted = Counted()
    timing = Timing(ttl=0.3, settle=0.0, move=1.0, again=0.3)
    with linked("h") as brokers:
        places = addresses(brokers) | {"f": Address("127.0.0.1", 1)}
        names = {name: str(address) for name, address in places.items()}
        with agent_of(places, tmp_path, timing) as agent, subject(brokers, counted, places=names) as client:
            move_it(agent)
            assert wait_for(lambda: MoveState.FAILED in states(agent))
            assert client.home == "h"
            with publisher(brokers) as other:
                counted.send(other, "t/1")
                assert lossless(counted, [other])


def test_a_client_that_cannot_reach_the_foreign_broker_goes_back(tmp_path):
    """The agent reaches it, the client does not: it is at home again, and the prepared session is gone."""
    counted = Counted()
    with linked("hf") as brokers, agent_of(addresses(brokers), tmp_path) as agent:
        places = known(brokers) | {"f": "127.0.0.1:1"}
        with subject(brokers, counted, places=places, patience=0.5) as client, publisher(brokers) as other:
            move_it(agent)
            for _ in range(40):
                counted.send(other, "t/1")
                time.sleep(0.02)
            assert wait_for(lambda: is_over(agent))
            assert (client.home, set(states(agent))) == ("h", {MoveState.FAILED})
            assert lossless(counted, [other])
            client.stop()
            assert sessions(brokers) == ["h"]


def test_nobody_is_forced(tmp_path):
    """One declines, one knows no such broker, one stays until a moment and moves then."""
    answered: list[float] = []

    def later(request: MoveRequest) -> PolicyAnswer:
        answered.append(time.time())
        return stay_until(answered[0] + 0.7)(request)

    only_home = lambda brokers: {"h": known(brokers)["h"]}  # noqa: E731
    with linked("hf") as brokers, agent_of(addresses(brokers), tmp_path) as agent:
        clients = [
            MovingClient("no", known(brokers), "h", policy=decline),
            MovingClient("stranger", only_home(brokers), "h"),
            MovingClient("learns", only_home(brokers), "h", learn=True),
            MovingClient("later", known(brokers), "h", policy=later),
        ]
        for client in clients:
            client.start()
        assert wait_for(lambda: len(agent.registry.residents) == 4)
        for client in clients:
            agent.ask(lambda own, client=client: own.request_to_move(client.name, "f"))
        assert wait_for(lambda: is_over(agent))
        assert [client.home for client in clients] == ["h", "h", "f", "f"]
        assert states(agent) == {MoveState.DECLINED: 2, MoveState.REDIRECTED: 2}
        assert len(answered) >= 2  # it was asked again when the moment had come
        assert answered[-1] >= answered[0] + 0.7  # and perhaps before, until the agent had its answer
        for client in clients:
            client.stop()


def test_a_client_may_go_elsewhere_by_itself(tmp_path):
    """It is restarted with another broker: that is its home, and what waited at the old one follows it."""
    counted = Counted()
    with linked("hf") as brokers, agent_of(addresses(brokers), tmp_path) as agent:
        with subject(brokers, counted), publisher(brokers) as other:
            assert wait_for(lambda: len(agent.registry.residents) == 2)
            counted.send(other, "t/1")
            assert lossless(counted, [other])
        with publisher(brokers) as other:
            for _ in range(20):
                counted.send(other, "t/1")
            again = MovingClient("subject", known(brokers), "f", counted.ear("subject"), identify=payload_id)
            again.subscribe("t/1")
            again.start()
            assert wait_for(lambda: is_over_at(agent, "subject", "f"))
            counted.send(other, "t/1")
            assert lossless(counted, [other])
            again.stop()
            assert sessions(brokers) == ["f"]


def test_a_reader_of_everything_does_not_pass_for_a_session_that_is_gone(monkeypatch):
    """What waits is sent on only when the broker where the client is has a session of it."""
    monkeypatch.setattr(sessions_module, "QUIET_SECONDS", 60.0)
    counted = Counted()
    with linked("hf") as brokers, MovingClient("everything", known(brokers), "f") as reader:
        places = addresses(brokers)
        assert wait_for(lambda: replicate(places["h"], "subject", Login(), (("u/1", 1),)) is None)
        with publisher(brokers) as other:
            for number in range(30):
                other.publish("u/1", b"%d" % number)
            assert other.wait_until_confirmed(LIMIT)
        reader.subscribe("#")
        assert reader.wait_until_ready(LIMIT)
        redirection = Redirection(places["h"], places["f"], "subject", Login(), "0" * 16)
        tries, sent_on = threading.Event(), redirection._forward
        redirection._forward = lambda message: (sent_on(message), tries.set())
        faults = []
        sending = threading.Thread(target=lambda: faults.append(redirection.run()), daemon=True)
        sending.start()
        assert tries.wait(60)
        time.sleep(0.2)  # a broker's answer that is wrong would have come
        again = MovingClient("subject", known(brokers), "f", counted.ear("subject"))
        again.subscribe("u/1")
        with again:
            assert wait_for(lambda: counted.got["subject"].total() == 30)
            sending.join()
        assert faults == [None]


def test_answers_by_hand_and_a_client_that_goes_without_being_asked(tmp_path):
    """Who stays may accept before its moment, and may decline after a yes; `connect` needs no request."""
    asked: dict[str, str] = {}

    def staying(request: MoveRequest) -> PolicyAnswer:
        asked[request.foreign] = request.move
        return PolicyAnswer("stay", time.time() + 3600)

    counted, slow = Counted(), replace(QUICK, settle=3600.0, move=3600.0)
    with linked("hf") as brokers, publisher(brokers) as other:
        client = subject(brokers, counted, staying)
        with agent_of(addresses(brokers), tmp_path / "slow", slow) as agent, client:
            assert wait_for(lambda: len(agent.registry.residents) == 2)
            move = agent.ask(lambda own: own.request_to_move("subject", "f")).id
            for act, state in (
                (None, MoveState.STAYING),
                (client.accept, MoveState.REPLICATED),
                (client.decline, MoveState.FAILED),
            ):
                if act is not None:
                    act(asked["f"])
                assert wait_for(lambda: agent.registry.moves[move].state is state)  # noqa: B023
            assert agent.registry.moves[move].note == "the client would not go"
            assert client.home == "h"
            for call in (agent.replicate, agent.connect):
                with pytest.raises(InputError, match=f"move {move} is failed"):
                    call(agent.registry.moves[move], 0.0)
            assert wait_for(lambda: is_over(agent))
        with agent_of(addresses(brokers), tmp_path / "quick") as agent, client:
            client.register()
            other.register()
            assert wait_for(lambda: len(agent.registry.residents) == 2)
            with pytest.raises(InputError, match="no broker 'g'; there are h, f"):
                client.connect("g")
            for _ in range(20):
                counted.send(other, "t/1")
            client.connect("f")
            assert wait_for(lambda: is_over_at(agent, "subject", "f"))
            counted.send(other, "t/1")
            assert lossless(counted, [other])
        assert sessions(brokers) == ["f"]


def test_the_calls_of_the_paper_are_public_by_their_names():
    calls = {
        MovingClient: ("register", "accept", "decline", "connect"),
        MoveAgent: ("request_to_move", "replicate", "connect", "redirect"),
        Operator: ("summarize", "request_to_move"),
        move_service: ("summarize",),
        control_messages: ("accept", "decline"),
    }
    for place, names in calls.items():
        for name in names:
            assert inspect.getdoc(getattr(place, name)), (place, name)
            assert "return" in getattr(place, name).__annotations__


def test_memory_of_where_a_client_was(tmp_path):
    """It goes back to the broker that it knows of, and a name that is unknown is not believed."""
    place = tmp_path / "home"
    place.write_text("f")
    assert MovingClient("a", {"h": "x:1", "f": "x:2"}, "h", memory=place).home == "f"
    place.write_text("elsewhere")
    assert MovingClient("a", {"h": "x:1", "f": "x:2"}, "h", memory=place).home == "h"
    with pytest.raises(InputError, match="no broker 'g'; there are h"):
        MovingClient("a", {"h": "x:1"}, "g")


def said(topic, payload=b"{}", **properties):
    return SimpleNamespace(
        topic=topic, payload=payload, properties=SimpleNamespace(UserProperty=list(properties.items()))
    )


def test_a_client_hears_only_what_is_said_to_it(caplog):
    """One that reads everything does not obey what is said to another, nor what is no call."""
    heard = []
    client = MovingClient("a", {"h": "x:1", "f": "x:2"}, "h", heard.append)
    order = dump(ConnectOrder("0" * 16, "f", "x:2"))
    for topic in (
        "broadloom/to/b/connect",
        "broadloom/from/a/connect",
        "broadloom/to/a/b/connect",
        "broadloom/",
    ):
        client._received(said(topic, order))
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
        client._received(said("$broadloom/to/a/redirect", b"once", **wrapped))
    client._received(said("$broadloom/to/a/redirect", b"never", **{TOPIC: "broadloom/to/a/move"}))
    assert heard == [("t/1", b"once", "p:1:1")]


def test_an_application_that_fails_does_not_end_the_connection(caplog):
    def fails(_):
        raise ValueError("of its own")

    client = MovingClient("a", {"h": "x:1"}, "h", fails)
    client._received(said("t/1", b"x"))
    assert "failed to process a message" in caplog.text


def test_what_a_client_cannot_want_or_send():
    client = MovingClient("a", {"h": "x:1"}, "h")
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
        with pytest.raises(InputError, match="give at most"):
            client.publish("t", payload)
    client.publish("t", b"waits for a connection")
    assert client.unconfirmed() == 1
    for place in ([], [math.nan], [0.0, math.inf], [10**400], [0.0] * 17, ["here"], 7):
        with pytest.raises(InputError, match="give 1 to 16 finite numbers"):
            MovingClient("a", {"h": "x:1"}, "h", place=place)
    for name in ("", "a/b", "a+", "broadloom-mover", "x" * 129):
        with pytest.raises(InputError):
            MovingClient(name, {"h": "x:1"}, "h")


def test_what_no_broker_confirms_is_kept_or_refused(monkeypatch):
    """Packet numbers that begin anew overwrite nothing, and a full outbox is told."""
    monkeypatch.setattr(client_module, "MOST_UNCONFIRMED", 300)
    (port,) = free_ports(1)
    with MovingClient("a", {"h": f"{HOST}:{port}"}, "h") as client:
        keys = set()
        for _ in range(3):
            client._client._last_mid = 0
            keys |= {client.publish("t", b"x") for _ in range(100)}
        assert len(keys) == client.unconfirmed() == len(client._client._out_messages) == 300
        with pytest.raises(OutboxFullError, match="300 messages of a are unacknowledged"):
            client.publish("t", b"x")
        assert client.unconfirmed() == 300


def test_a_client_is_started_once_and_stops_while_it_cannot_connect(caplog):
    """What it was told before it was started it does then, and it does not wait for a broker in vain."""
    with linked("hf") as brokers:
        (nowhere,) = free_ports(1)  # none of those that brokers have
        places = known(brokers) | {"g": f"{HOST}:{nowhere}"}
        client = MovingClient("a", places, "h", patience=math.inf)
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
            assert client.wait_until_ready(60)


def test_a_full_outbox_is_emptied_by_a_broker(monkeypatch):
    """All that was said before there was a connection arrives, and then there is room again."""
    monkeypatch.setattr(client_module, "MOST_UNCONFIRMED", 300)
    with linked("hf") as brokers:
        client = MovingClient("a", known(brokers), "h")
        for number in range(300):
            client.publish("t/1", b"%d" % number)
        with client:
            assert client.wait_until_confirmed(LIMIT)
            client._client._last_mid = 0
            client.publish("t/1", b"more")
            assert client.wait_until_confirmed(LIMIT)


def test_a_move_that_was_cancelled_is_not_made_by_a_client_that_was_away(tmp_path, monkeypatch):
    """It said yes, was away when it was called, and finds the call when it is back: the API's word holds."""
    with linked("hf") as brokers, agent_of(addresses(brokers), tmp_path) as agent:
        client = subject(brokers, Counted())
        with monkeypatch.context() as patch:
            patch.setattr(client, "_on_connect_order", lambda _: None)  # as if the call came too late
            with client:
                move = move_it(agent)
                assert wait_for(lambda: states(agent)[MoveState.REPLICATED] == 1)
        time.sleep(2 * QUICK.again)  # calls wait in its session
        assert agent.ask(lambda own: own.cancel(move.id)).state is MoveState.CANCELLED
        with client:
            assert client.wait_until_ready(LIMIT)
            time.sleep(1.0)
            assert client.home == "h"


def test_long_ids_are_kept_short():
    """Nobody fills a client's memory with ids; those of different topics stay apart."""
    seen = SeenMessages(most=2)
    key = "x" * 60_000
    assert [seen.first(topic, key) for topic in ("t", "u", "t", "u", "v", "t")] == [1, 1, 0, 0, 1, 1]
    assert {len(kept) for kept in seen._ids} == {DIGEST}


def test_answers_are_kept_for_a_while_only(monkeypatch):
    """A client that is asked for years remembers its last answers, and gives them again."""
    monkeypatch.setattr("broadloom.agents.moves.moving_client.MOST_ANSWERS", 3)
    client = MovingClient("c", {"h": "127.0.0.1:1", "f": "127.0.0.1:2"}, "h", policy=decline)
    moves = [f"{number:016x}" for number in range(9)]
    for move in moves:
        request = MoveRequest(move, "h", "f", "127.0.0.1:2", 1.0)
        client._on_call("move", dump(request))
    assert list(client._answers) == moves[-3:]


def test_who_reads_everything_is_known_to_an_agent_that_comes_later(tmp_path):
    """A broker counts such a client as a hearer of its own `register`: it goes by the agent's answer."""
    with linked("hf") as brokers:
        client = MovingClient("everything", known(brokers), "h")
        client.subscribe("#")
        with client:
            assert client.wait_until_ready(LIMIT)
            assert wait_for(lambda: client._due < math.inf)
            with agent_of(addresses(brokers), tmp_path) as agent:
                assert wait_for(lambda: "everything" in agent.registry.residents)
                assert wait_for(lambda: client._due > time.monotonic() + LONGEST_WAIT)


def test_who_publishes_all_the_time_is_known_to_an_agent_that_comes_later(tmp_path):
    """What nobody reads keeps its thread awake, and still it registers again until it is answered."""
    with linked("hf") as brokers, MovingClient("busy", known(brokers), "h") as client:
        over = threading.Event()

        def publish() -> None:
            while not over.wait(0.05):
                client.publish("elsewhere", b"x")

        publishing = threading.Thread(target=publish, daemon=True)
        publishing.start()
        numbers = set()
        assert wait_for(lambda: numbers.add(client._registered) or len(numbers) > 3)
        with agent_of(addresses(brokers), tmp_path) as agent:
            assert wait_for(lambda: "busy" in agent.registry.residents)
        over.set()
        publishing.join()


def test_an_agent_that_lost_its_journal_learns_of_clients_again(tmp_path, monkeypatch):
    """Clients register slowly even when they are known."""
    monkeypatch.setattr(client_module, "KNOWN_SECONDS", 0.2)
    with linked("hf") as brokers, MovingClient("old", known(brokers), "h") as client:
        for folder in ("first", "second"):
            with agent_of(addresses(brokers), tmp_path / folder) as agent:
                assert wait_for(lambda: "old" in agent.registry.residents)
        assert client.home == "h"


def test_a_client_whose_clock_is_years_ahead_is_heard(tmp_path, monkeypatch, caplog):
    """It counts from the agent's clock, also when its own is set right."""
    clock = SimpleNamespace(time_ns=lambda: time.time_ns() + 3 * AHEAD, monotonic=time.monotonic)
    with linked("hf") as brokers, agent_of(addresses(brokers), tmp_path) as agent:
        with monkeypatch.context() as patch:
            patch.setattr(client_module, "time", clock)
            client = MovingClient("early", known(brokers), "h")
            client.start()
            assert wait_for(lambda: "early" in agent.registry.residents)
        client.subscribe("t/1")
        assert wait_for(lambda: agent.registry.residents["early"].filters == (("t/1", 1),))
        client.stop()
    assert "more than a year ahead" in caplog.text

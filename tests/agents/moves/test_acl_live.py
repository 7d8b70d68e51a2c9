"""Mosquitto with the exported rules, passwords and two listeners: no client can move or read another."""

from __future__ import annotations

import subprocess
import time
from contextlib import ExitStack, contextmanager

import pytest
from moving import (
    LIMIT,
    QUICK,
    TrafficCounter,
    all_moves_over,
    has_moved_to,
    payload_id,
    running_agent,
    wait_for,
)

from broadloom.agents.links.embedded_links import embed_links
from broadloom.agents.moves.control_messages import (
    ConnectOrder,
    Register,
    Reply,
    dump,
    from_client,
    to_client,
)
from broadloom.agents.moves.move_registry import MoveState
from broadloom.agents.moves.move_service import AgentConfig, serving
from broadloom.agents.moves.moving_client import MovingClient
from broadloom.agents.moves.operator_client import Operator
from broadloom.deployment.rehearsal.mosquitto_lab import (
    HOST,
    free_ports,
    killed_with_parent,
    listens,
    require_mosquitto,
)
from broadloom.deployment.targets import mosquitto_bridges
from broadloom.mqtt.endpoint import Address, Login
from broadloom.mqtt.paho import connect, disconnect_now, loop_until, new_client, subscription_options
from broadloom.mqtt.reserved_topics import MOVE_AGENT

pytestmark = [
    pytest.mark.needs("mosquitto", "mosquitto_passwd"),
    pytest.mark.xdist_group("moves"),
]

LINKS = "broadloom-links"
NAMES = ("alice", "bob", "writer-h", "writer-f", MOVE_AGENT, LINKS)
SECRETS = "".join(f"user writer-{name}\ntopic readwrite secret/#\n" for name in "hf")
CONF = """\
per_listener_settings true
listener {client} {host}
use_username_as_clientid true
password_file {folder}/passwords
acl_file {folder}/acl
listener {agent} {host}
password_file {folder}/passwords
acl_file {folder}/acl
persistence true
persistence_location {folder}/
autosave_interval 1
max_queued_messages 0
"""


def login(name: str) -> Login:
    return Login(name, f"{name}-secret")


@contextmanager
def guarded_brokers(tmp_path, names, other_password=None):
    """Brokers that require a login; yields per broker the addresses for clients and for the agent.

    At the broker `other_password`, the password of the link agent is another one.
    """
    running, endpoints, ports = [], {}, iter(free_ports(2 * len(names)))
    try:
        for name in names:
            folder = tmp_path / name
            folder.mkdir()
            client, agent = next(ports), next(ports)
            endpoints[name] = Address(HOST, client), Address(HOST, agent)
            (folder / "passwords").touch(0o600)
            for user in NAMES:
                secret = "another" if (name, user) == (other_password, LINKS) else f"{user}-secret"
                command = ["mosquitto_passwd", "-b", folder / "passwords", user, secret]
                subprocess.run(command, check=True, capture_output=True)
            (folder / "acl").write_text(
                f"{SECRETS}\npattern readwrite t/#\n\n{mosquitto_bridges.acl_rules()}"
            )
            conf = CONF.format(client=client, agent=agent, host=HOST, folder=folder)
            (folder / "mosquitto.conf").write_text(conf + "user root\n")
            (folder / "acl").chmod(0o600)
            with (folder / "log").open("wb") as log:
                command = [*killed_with_parent(), require_mosquitto(), "-c", folder / "mosquitto.conf"]
                running.append(subprocess.Popen(command, stdout=log, stderr=log))
        assert wait_for(
            lambda: all(listens(endpoint.port) for pair in endpoints.values() for endpoint in pair)
        )
        yield endpoints
    finally:
        for process in running:
            process.terminate()
            process.wait()


class Eavesdropper:
    """Client that records the topics it receives and the answers to its messages."""

    def __init__(self, address: Address, name: str, user: str) -> None:
        self.received, self.answers = [], []
        self.client = new_client(name, login(user))
        self.client.on_message = lambda _c, _d, message: self.received.append(message.topic)
        self.client.on_publish = lambda _c, _d, _m, reason, _p: self.answers.append(str(reason))
        connect(self.client, address)
        assert loop_until(self.client, self.client.is_connected, LIMIT)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        disconnect_now(self.client)

    def publish(self, topic: str, payload: bytes) -> str:
        """Publish a message; return the broker's answer, or an empty text if it disconnects instead."""
        self.client.publish(topic, payload, 1)
        loop_until(self.client, lambda: bool(self.answers), LIMIT)
        return self.answers[0] if self.answers else ""

    def listen(self, seconds: float) -> list[str]:
        """Wait for some seconds; return the topics of all messages received so far."""
        end = time.monotonic() + seconds
        loop_until(self.client, lambda: time.monotonic() > end, seconds + 1)
        return self.received


def test_a_client_can_only_move_itself(tmp_path):
    """Bob can neither register nor answer for Alice, nor read her requests, nor take over her session."""
    with guarded_brokers(tmp_path, "hf") as endpoints:
        agent_addresses = {name: pair[1] for name, pair in endpoints.items()}
        client_addresses = {name: str(pair[0]) for name, pair in endpoints.items()}
        traffic = TrafficCounter()
        with running_agent(agent_addresses, tmp_path / "journal", QUICK, login=login(MOVE_AGENT)) as agent:
            agent._addresses = {
                name: pair[0] for name, pair in endpoints.items()
            }  # as the clients reach them
            alice = MovingClient(
                "alice",
                client_addresses,
                "h",
                traffic.callback("alice"),
                login=login("alice"),
                identify=payload_id,
                plain=True,
            )
            alice.subscribe("t/1")
            alice.start()
            assert wait_for(lambda: "alice" in agent.registry.residents)
            bob = Eavesdropper(endpoints["h"][0], "bob", "bob")
            bob.client.subscribe(
                subscription_options(((to_client("alice", "+"), 1), ("#", 1), (to_client("+", "+"), 1)), 0)
            )
            move = agent.ask(lambda own: own.request_to_move("alice", "f"))
            forged = 2**62
            for topic, payload in (
                (from_client("alice", "reply"), dump(Reply("alice", forged, move.id, "decline"))),
                (from_client("alice", "register"), dump(Register("alice", forged, "h"))),
                (to_client("alice", "connect"), dump(ConnectOrder(move.id, "g", "127.0.0.1:1"))),
            ):  # mosquitto 2.0 also disconnects after each
                with Eavesdropper(endpoints["f"][0], "bob", "bob") as forger:
                    assert forger.publish(topic, payload) in ("Not authorized", "")
            assert (
                bob.publish(from_client("bob", "register"), dump(Register("alice", forged, "h"))) == "Success"
            )
            assert wait_for(lambda: agent.refused["forged:"] == 1)
            assert wait_for(lambda: all_moves_over(agent))
            assert agent.registry.moves[move.id].state is MoveState.REDIRECTED
            assert alice.home == "f"
            assert bob.listen(0.1) == []
            disconnect_now(bob.client)
            impostor = Eavesdropper(
                endpoints["f"][0], "alice", "bob"
            )  # the listener uses the user name as client id
            alice.publish("t/1", b"still here")
            assert wait_for(lambda: traffic.got["alice"].total() == 1)
            assert impostor.listen(0.1) == []
            assert set(agent.registry.residents) == {"alice"}
            disconnect_now(impostor.client)
            alice.stop()


def publish_secrets(*writers: MovingClient) -> None:
    """Publish some messages that only the writers are allowed to read."""
    for writer in writers:
        for number in range(10):
            writer.publish("secret/1", f"secret-{number}".encode())


def test_a_session_opened_by_the_agent_does_not_give_a_client_the_rights_of_the_agent(tmp_path):
    """A client subscribed to topics that it is not allowed to read does not get them by moving."""
    with guarded_brokers(tmp_path, "hf") as endpoints:
        agent_addresses = {name: pair[1] for name, pair in endpoints.items()}
        client_addresses = {name: str(pair[0]) for name, pair in endpoints.items()}
        traffic = TrafficCounter()
        with (
            running_agent(agent_addresses, tmp_path / "journal", QUICK, login=login(MOVE_AGENT)) as agent,
            ExitStack() as stack,
        ):
            agent._addresses = {name: pair[0] for name, pair in endpoints.items()}
            alice = MovingClient(
                "alice",
                client_addresses,
                "h",
                traffic.callback("alice"),
                login=login("alice"),
                identify=payload_id,
                plain=True,
            )
            alice.subscribe("#")
            stack.enter_context(alice)
            writers = [
                stack.enter_context(
                    MovingClient(name, client_addresses, name[-1], login=login(name), plain=True)
                )
                for name in ("writer-h", "writer-f")
            ]
            assert wait_for(lambda: "alice" in agent.registry.residents)
            agent.ask(lambda own: own.request_to_move("alice", "f"))
            assert wait_for(lambda: publish_secrets(*writers) or all_moves_over(agent))
            assert alice.home == "f"
            writers[1].publish("t/1", b"for all")
            assert wait_for(lambda: traffic.got["alice"][("t/1", "for all")] == 1)
            assert traffic.got["alice"].total() == 1


def test_messages_that_arrive_while_the_agent_empties_a_session_are_not_forwarded(tmp_path):
    """The broker applies the rights of the agent to them; only earlier messages are forwarded."""
    with guarded_brokers(tmp_path, "hf") as endpoints:
        agent_addresses = {name: pair[1] for name, pair in endpoints.items()}
        client_addresses = {name: str(pair[0]) for name, pair in endpoints.items()}
        traffic = TrafficCounter()

        def alice_at(home):
            client = MovingClient(
                "alice",
                client_addresses,
                home,
                traffic.callback("alice"),
                login=login("alice"),
                identify=payload_id,
                plain=True,
            )
            client.subscribe("#")
            return client

        writer = MovingClient("writer-h", client_addresses, "h", login=login("writer-h"), plain=True)
        with (
            running_agent(agent_addresses, tmp_path / "journal", QUICK, login=login(MOVE_AGENT)) as agent,
            writer,
        ):
            with alice_at("h"):
                assert wait_for(lambda: "alice" in agent.registry.residents)
            for number in range(1_000):
                writer.publish("t/1", f"{number}".encode())
            assert writer.wait_until_confirmed(LIMIT)
            with alice_at("f") as alice:
                assert wait_for(lambda: publish_secrets(writer) or has_moved_to(agent, "alice", alice.home))
                assert wait_for(lambda: traffic.got["alice"].total() >= 1_000)
            assert {topic for topic, _ in traffic.got["alice"]} == {"t/1"}
            assert traffic.got["alice"].total() == 1_000


CONFIG = """\
port = 0
token_file = "token"
authentication = "broker"
[login]
plain = true
user = "{agent}"
password_file = "mover"
[timing]
ttl = 0.5
move = 2
[links]
topics = ["t/#"]
patience = 0.2
[links.login]
user = "{links}"
password_file = "links-password"
"""


def test_no_client_is_moved_to_a_broker_that_refuses_the_links(tmp_path):
    """Its clients would receive nothing; the note of the move says why it failed."""
    traffic = TrafficCounter()
    with guarded_brokers(tmp_path, "hf", other_password="f") as endpoints:
        secrets = {"token": "token", "mover": f"{MOVE_AGENT}-secret", "links-password": f"{LINKS}-secret"}
        for name, secret in secrets.items():
            (tmp_path / name).write_text(secret)
            (tmp_path / name).chmod(0o600)
        brokers = "".join(
            f'[brokers.{name}]\naddress = "{client}"\nagent_address = "{agent}"\n'
            for name, (client, agent) in endpoints.items()
        )
        (tmp_path / "agent.toml").write_text(CONFIG.format(agent=MOVE_AGENT, links=LINKS) + brokers)
        client_addresses = {name: str(pair[0]) for name, pair in endpoints.items()}
        alice = MovingClient(
            "alice", client_addresses, "h", traffic.callback("alice"), login=login("alice"), plain=True
        )
        alice.subscribe("t/1")
        other = MovingClient("writer-f", client_addresses, "f", login=login("writer-f"), plain=True)
        other.subscribe("t/1")
        with serving(AgentConfig.load(tmp_path / "agent.toml"), hold=embed_links) as service, alice, other:
            agent = service.agent
            assert wait_for(lambda: len(agent.registry.residents) == 2)
            operator = Operator(f"http://127.0.0.1:{service.port}", "token")
            assert wait_for(lambda: operator.health()["links_down"] == ["f"])
            move = agent.ask(lambda own: own.request_to_move("alice", "f"))
            assert wait_for(lambda: agent.registry.moves[move.id].is_over)
            ended = agent.registry.moves[move.id]
            assert (ended.state, ended.note) == (MoveState.FAILED, "links of 'f' are not up")
            alice.publish("t/1", b"still served")
            assert wait_for(lambda: traffic.got["alice"].total() == 1)
            assert alice.home == "h"

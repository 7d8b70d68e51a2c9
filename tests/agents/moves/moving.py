"""A small live system for tests: brokers linked by native bridges, an agent, and clients that count."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from broadloom.agents.moves.broker_sessions import MqttGateway
from broadloom.agents.moves.client_links import ClientLinks
from broadloom.agents.moves.control_codes import ClientKeys
from broadloom.agents.moves.move_agent import MoveAgent, Timing
from broadloom.agents.moves.move_registry import Move, MoveJournal, MoveState
from broadloom.agents.moves.moving_client import ClientMessage, MovingClient
from broadloom.deployment import WiredLink, Wiring
from broadloom.deployment.rehearsal.mosquitto_lab import HOST, MosquittoLab, free_ports
from broadloom.mqtt.endpoint import Address, Login
from broadloom.mqtt.paho import connect, disconnect_now, loop_until, new_client

ALL = ("t/#",)
LIMIT = 60.0  # seconds; generous, for a busy machine
QUICK = Timing(ttl=1.0, settle=0.2, answer=LIMIT, move=LIMIT, again=0.5)


def star(names: str) -> Wiring:
    """The wiring of a star around the first broker, with bridges that carry everything but control topics."""
    links = tuple(WiredLink(names[0], other, ALL, ALL) for other in names[1:])
    return Wiring(tuple(names), dict.fromkeys(names, ALL), {}, links)


@contextmanager
def linked_brokers(names: str) -> Iterator[MosquittoLab]:
    """Running brokers in a star; their bridges are up."""
    wiring = star(names)
    with MosquittoLab(wiring) as brokers:
        brokers.wait_until_linked(wiring)
        yield brokers


def unlinked_brokers(names: str) -> MosquittoLab:
    """Brokers without links."""
    return MosquittoLab(Wiring(tuple(names), {}, {}, ()))


def addresses(brokers: MosquittoLab) -> dict[str, Address]:
    return {name: Address(HOST, port) for name, port in brokers.ports.items()}


def client_addresses(brokers: MosquittoLab) -> dict[str, str]:
    """The addresses of all brokers as a client takes them."""
    return {name: str(address) for name, address in addresses(brokers).items()}


@contextmanager
def running_agent(
    brokers: Mapping[str, Address],
    folder: Path,
    timing: Timing = QUICK,
    watch: Callable[[Move], None] = lambda _: None,
    login: Login | None = None,
    links: ClientLinks | None = None,
    keys: ClientKeys | None = None,
) -> Iterator[MoveAgent]:
    """A move agent that runs in a thread of this process."""
    journal = MoveJournal(folder)
    gateway = MqttGateway(brokers, login or Login(), keys=keys)
    agent = MoveAgent(brokers, gateway, journal, links, timing, watch, keys=keys)
    gateway.start(agent.post)
    thread = threading.Thread(target=agent.run, name="agent", daemon=True)
    thread.start()
    try:
        yield agent
    finally:
        agent.stop()
        thread.join()
        gateway.stop()
        journal.close()


def payload_id(_topic: str, payload: bytes, _properties: object) -> str:
    """The id of a message: its payload, since native bridges (MQTT 3.1.1) drop user properties."""
    return payload.decode()


class TrafficCounter:
    """Messages sent, and messages that each client received after its own deduplication."""

    def __init__(self) -> None:
        self.got: dict[str, Counter[tuple[str, str]]] = {}
        self.sent: list[tuple[str, str]] = []

    def callback(self, name: str) -> Callable[[ClientMessage], None]:
        """The message callback of a client."""
        counter = self.got.setdefault(name, Counter())

        def count(message: ClientMessage) -> None:
            counter[message.topic, message.payload.decode()] += 1

        return count

    def send(self, client: MovingClient, topic: str) -> None:
        """Publish a message with a unique payload."""
        payload = f"{client.name}-{len(self.sent)}"
        self.sent.append((topic, payload))
        client.publish(topic, payload.encode())

    def counts(self, wants: Mapping[str, set[str]]) -> tuple[int, int, int]:
        """The numbers of deliveries that are expected, lost and duplicated."""
        lost = doubled = expected = 0
        for name, topics in wants.items():
            due = {message for message in self.sent if message[0] in topics}
            got = dict(self.got[name])  # a copy: messages can still arrive
            expected += len(due)
            lost += len(due - got.keys())
            doubled += sum(count - 1 for count in got.values())
        return expected, lost, doubled


def wait_for(done: Callable[[], bool], seconds: float = LIMIT) -> bool:
    """Wait for a condition; false if it does not hold in time."""
    end = time.monotonic() + seconds
    while not done():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def new_threads_ended(before: set[threading.Thread]) -> bool:
    """Whether all threads started since have ended; threads of earlier tests can end meanwhile."""
    return wait_for(lambda: set(threading.enumerate()) <= before)


def all_moves_over(agent: MoveAgent) -> bool:
    """Whether the agent has no active moves and no sessions left to empty."""
    return agent.ask(lambda own: not own.registry.active_moves() and not own.registry.strays, LIMIT)


def has_moved_to(agent: MoveAgent, client: str, broker: str) -> bool:
    """Whether a client is registered at a broker and all moves are over."""
    return agent.registry.residents[client].broker == broker and all_moves_over(agent)


def move_states(agent: MoveAgent) -> Counter[MoveState]:
    return agent.ask(lambda own: Counter(move.state for move in own.registry.moves.values()), LIMIT)


def has_session(address: Address, name: str) -> bool:
    """Whether a broker has a session of a client; the client must be disconnected."""
    present: list[bool] = []
    client = new_client(name, Login(), manual_ack=True)
    client.on_connect = lambda _c, _d, flags, *_: present.append(flags.session_present)
    connect(client, address)
    assert loop_until(client, lambda: bool(present), LIMIT)
    disconnect_now(client)
    return present[0]


def write_config(
    folder: Path,
    brokers: MosquittoLab,
    timing: Timing,
    broker_options: Mapping[str, str] | None = None,
    links: str = "",
) -> tuple[Path, int]:
    """Write the configuration of an agent, with further options per broker; return its path and its port."""
    (port,) = free_ports(1)
    (folder / "token").write_text("token")
    (folder / "token").chmod(0o600)
    times = "\n".join(f"{name} = {value}" for name, value in vars(timing).items())
    head = f'port = {port}\ntoken_file = "token"\nauthentication = "broker"'
    lines = [f"{head}\n{links}\n[login]\nplain = true\n[timing]\n{times}"]
    for name, address in addresses(brokers).items():
        lines.append(f'[brokers.{name}]\naddress = "{address}"\n{(broker_options or {}).get(name, "")}')
    path = folder / "agent.toml"
    path.write_text("\n".join(lines))
    return path, port

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
from broadloom.agents.moves.move_agent import MoveAgent, Timing
from broadloom.agents.moves.move_registry import Move, MoveJournal, MoveState
from broadloom.agents.moves.moving_client import ClientMessage, MovingClient
from broadloom.deployment import WiredLink, Wiring
from broadloom.deployment.rehearsal.mosquitto_lab import HOST, MosquittoLab, free_ports
from broadloom.mqtt.endpoint import Address, Login
from broadloom.mqtt.paho import connect, disconnect_now, loop_until, new_client

ALL = ("t/#",)
LIMIT = 60.0  # seconds for what takes none on a machine that does nothing else
QUICK = Timing(ttl=1.0, settle=0.2, answer=LIMIT, move=LIMIT, again=0.5)


def star(names: str) -> Wiring:
    """Brokers around the first one, by bridges that carry everything but control topics."""
    links = tuple(WiredLink(names[0], other, ALL, ALL) for other in names[1:])
    return Wiring(tuple(names), dict.fromkeys(names, ALL), {}, links)


@contextmanager
def linked(names: str) -> Iterator[MosquittoLab]:
    """Brokers whose bridges are up."""
    wiring = star(names)
    with MosquittoLab(wiring) as brokers:
        brokers.wait_until_linked(wiring)
        yield brokers


def unlinked(names: str) -> MosquittoLab:
    """Brokers that nothing links."""
    return MosquittoLab(Wiring(tuple(names), {}, {}, ()))


def addresses(brokers: MosquittoLab) -> dict[str, Address]:
    return {name: Address(HOST, port) for name, port in brokers.ports.items()}


def known(brokers: MosquittoLab) -> dict[str, str]:
    return {name: str(address) for name, address in addresses(brokers).items()}


@contextmanager
def agent_of(
    places: Mapping[str, Address],
    folder: Path,
    timing: Timing = QUICK,
    watch: Callable[[Move], None] = lambda _: None,
    login: Login | None = None,
    links: ClientLinks | None = None,
) -> Iterator[MoveAgent]:
    """An agent at work in a thread of this process."""
    journal, wire = MoveJournal(folder), MqttGateway(places, login or Login())
    agent = MoveAgent(places, wire, journal, links, timing, watch)
    wire.start(agent.post)
    thread = threading.Thread(target=agent.run, name="agent", daemon=True)
    thread.start()
    try:
        yield agent
    finally:
        agent.stop()
        thread.join()
        wire.stop()
        journal.close()


def payload_id(_topic: str, payload: bytes, _properties: object) -> str:
    """Native bridges speak MQTT 3.1.1 and drop user properties, so ids are in the payload."""
    return payload.decode()


class Counted:
    """Counts what each client got, after its own deduplication."""

    def __init__(self) -> None:
        self.got: dict[str, Counter[tuple[str, str]]] = {}
        self.sent: list[tuple[str, str]] = []

    def ear(self, name: str) -> Callable[[ClientMessage], None]:
        """What a client calls with its messages."""
        counter = self.got.setdefault(name, Counter())

        def heard(message: ClientMessage) -> None:
            counter[message.topic, message.payload.decode()] += 1

        return heard

    def send(self, client: MovingClient, topic: str) -> None:
        """Publish a message with an id of its own."""
        payload = f"{client.name}-{len(self.sent)}"
        self.sent.append((topic, payload))
        client.publish(topic, payload.encode())

    def faults(self, wants: Mapping[str, set[str]]) -> tuple[int, int, int]:
        """How many deliveries are expected, lost, and doubled."""
        lost = doubled = expected = 0
        for name, topics in wants.items():
            due = {one for one in self.sent if one[0] in topics}
            got = dict(self.got[name])  # at once: messages may still come
            expected += len(due)
            lost += len(due - got.keys())
            doubled += sum(count - 1 for count in got.values())
        return expected, lost, doubled


def wait_for(done: Callable[[], bool], seconds: float = LIMIT) -> bool:
    end = time.monotonic() + seconds
    while not done():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def no_new_thread(before: set[threading.Thread]) -> bool:
    """Whether all threads that were not there before have ended; those of earlier tests may end meanwhile."""
    return wait_for(lambda: set(threading.enumerate()) <= before)


def is_over(agent: MoveAgent) -> bool:
    return agent.ask(lambda own: not own.registry.active_moves() and not own.registry.strays, LIMIT)


def is_over_at(agent: MoveAgent, client: str, broker: str) -> bool:
    """Whether a client has come to a broker, and nothing is left to do."""
    return agent.registry.residents[client].broker == broker and is_over(agent)


def states(agent: MoveAgent) -> Counter[MoveState]:
    return agent.ask(lambda own: Counter(move.state for move in own.registry.moves.values()), LIMIT)


def has_session(address: Address, name: str) -> bool:
    """Whether a broker has a session of a client, which must be away."""
    found: list[bool] = []
    client = new_client(name, Login(), manual_ack=True)
    client.on_connect = lambda _c, _d, flags, *_: found.append(flags.session_present)
    connect(client, address)
    assert loop_until(client, lambda: bool(found), LIMIT)
    disconnect_now(client)
    return found[0]


def write_config(
    folder: Path,
    brokers: MosquittoLab,
    timing: Timing,
    more: Mapping[str, str] | None = None,
    links: str = "",
) -> tuple[Path, int]:
    """The configuration of an agent, and its port; `more` is what else it says of each broker."""
    (port,) = free_ports(1)
    (folder / "token").write_text("token")
    (folder / "token").chmod(0o600)
    times = "\n".join(f"{name} = {value}" for name, value in vars(timing).items())
    lines = [f'port = {port}\ntoken_file = "token"\n{links}\n[timing]\n{times}']
    for name, address in addresses(brokers).items():
        lines.append(f'[brokers.{name}]\naddress = "{address}"\n{(more or {}).get(name, "")}')
    place = folder / "agent.toml"
    place.write_text("\n".join(lines))
    return place, port

"""Ordinary clients for tests: programs that know nothing of Broadloom, and an agent that moves them."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from broadloom.agents.links.client_watch import watch_clients
from broadloom.agents.moves.move_registry import LEAVING
from broadloom.agents.moves.move_service import AgentConfig, MoveService, serving
from broadloom.agents.moves.operator_client import Operator
from broadloom.deployment.rehearsal.mosquitto_lab import SAVED
from routed import HOST, RoutedBrokers, free_ports, killed_with_parent, wait_for

POLICY = 'at_once = 100\n[[rules]]\nclients = ["c*"]\n'
TOKEN = "token"


class Subscriber:
    """A `mosquitto_sub` with a persistent session, which writes payloads to a file.

    Args:
        folder: the folder of its file.
        name: its client id.
        port: where it connects.
        version: "mqttv311" or "5".
        topic: what it subscribes to.
        options: further options.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        port: int,
        version: str = "mqttv311",
        topic: str = "t/1",
        options: Sequence[str] = (),
    ) -> None:
        self.name = name
        self._file = folder / f"{name}.out"
        session = ["-c", "-q", "1", "-V", version, *(("-x", "3600") if version == "5" else ())]
        where = ["mosquitto_sub", "-h", HOST, "-p", str(port), *options]
        self._command = [*where, "-i", name, *session, "-t", topic]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the program."""
        with self._file.open("ab") as file:
            command = [*killed_with_parent(), *self._command]
            self._process = subprocess.Popen(command, stdout=file, stderr=subprocess.DEVNULL)

    def stop(self) -> None:
        """End the program; the broker keeps its session."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait()
            self._process = None

    def got(self) -> Counter[str]:
        """The payloads that it has received."""
        return Counter(self._file.read_text().split())


class Publisher:
    """A `mosquitto_pub` that sends numbered messages at QoS 1 from the start to the end of a block."""

    def __init__(self, port: int, topic: str = "t/1", pause: float = 0.05, cycle: int = 1_000_000) -> None:
        self.sent = 0
        self._cycle = cycle  # messages until the same ones come again
        self._command = ["mosquitto_pub", "-h", HOST, "-p", str(port), "-q", "1", "-t", topic, "-l"]
        self._pause = pause
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._publish, daemon=True)

    def __enter__(self) -> Publisher:
        command = [*killed_with_parent(), *self._command, "-i", f"publisher-{os.urandom(4).hex()}"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _publish(self) -> None:
        assert self._process.stdin is not None
        while not self._over.wait(self._pause):
            self._process.stdin.write(f"m{self.sent % self._cycle}\n".encode())
            self._process.stdin.flush()
            self.sent += 1

    def missing(self, got: Counter[str]) -> list[str]:
        """The messages that a subscriber of all of them lacks."""
        return [name for name in (f"m{number}" for number in range(self.sent)) if name not in got]


def write_ordinary_config(
    folder: Path,
    system: RoutedBrokers,
    policy: str = POLICY,
    ttl: float = 1.0,
    settle: float = 0.25,
    extra: str = "",
    user: str = "",
) -> tuple[Path, Operator]:
    """The configuration of an agent that moves the clients of a system, and its API."""
    (folder / "policy.toml").write_text(policy)
    (folder / "token").write_text(TOKEN)
    (folder / "token").chmod(0o600)
    (port,) = free_ports(1)
    login = f'plain = true\nuser = "{user}"' if user else "plain = true"
    relay = ""
    if system.certificates is not None:
        login = f'ca = "{system.certificates / "ca.crt"}"'
        files = system.certificates / "broker.crt", system.certificates / "broker.key"
        relay = f'\ncertificate = "{files[0]}"\nkey = "{files[1]}"'
    parts = [
        f'port = {port}\ntoken_file = "token"\nauthentication = "broker"\npolicy = "policy.toml"\n{extra}',
        f"[login]\n{login}",
        f'[router]\nsockets = ["{system.socket}"]\nmap = "{system.map}"',
        f'relay = "{HOST}:{system.relay}"{relay}',
        f"[timing]\nttl = {ttl}\nsettle = {settle}\nagain = 0.5",
    ]
    for name, broker in system.lab.client_ports.items():
        saved = system.lab._folder_of(name) / SAVED
        parts.append(f'[brokers.{name}]\naddress = "{HOST}:{broker}"\nsubscriptions = "{saved}"')
    (folder / "agent.toml").write_text("\n".join(parts))
    return folder / "agent.toml", Operator(f"http://{HOST}:{port}", TOKEN, patience=30)


@contextmanager
def ordinary_agent(config: Path) -> Iterator[MoveService]:
    """An agent that sees ordinary clients and moves them."""
    with serving(AgentConfig.load(config), see=watch_clients) as service:
        yield service


def state_of(operator: Operator, client: str) -> str:
    """The state of the last move of a client, or nothing."""
    return next((one["state"] for one in reversed(operator.moves()) if one["client"] == client), "")


def precise_state_of(operator: Operator, client: str) -> str:
    """The state of the last move of a client, or `leaving` while the client is being sent away."""
    moves = [one for one in operator.moves() if one["client"] == client]
    return "" if not moves else "leaving" if moves[-1]["note"] == LEAVING else moves[-1]["state"]


def homes(operator: Operator) -> dict[str, str]:
    """The broker of each client."""
    return {one["client"]: one["broker"] for one in operator.clients()}


__all__ = [
    "HOST",
    "Publisher",
    "RoutedBrokers",
    "Subscriber",
    "homes",
    "ordinary_agent",
    "precise_state_of",
    "state_of",
    "wait_for",
    "write_ordinary_config",
]

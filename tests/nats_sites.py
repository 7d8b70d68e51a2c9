"""NATS brokers of an operator, with commands that stop, start and reload them, and clients under load."""

import os
import signal
import socket
import subprocess
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import broadloom as bl
from broadloom.deployment import FleetBroker, FleetHooks
from broadloom.deployment.rehearsal.mosquitto_lab import HOST, free_ports, listens
from broadloom.deployment.targets.nats_leafnodes import NO_LINKS

RUNS = 'kill -0 "$(cat "$0/pid" 2>/dev/null)" 2>/dev/null'
START = f'{RUNS} || {{ setsid "$1" -c "$0/nats.conf" >/dev/null 2>&1 & }}; until {RUNS}; do sleep 0.01; done'
STOP = f'kill "$(cat "$0/pid")" && while {RUNS}; do sleep 0.01; done; rm -f "$0/pid"'
ACCOUNTS = """\
accounts {{
  {account} {{ users: [ {{ user: app, password: app }} ], imports: $BROADLOOM_IMPORTS }}
  BROADLOOM_A: $BROADLOOM_A
  BROADLOOM_B: $BROADLOOM_B
}}
no_auth_user: app
"""
RELOAD = 'kill -HUP "$(cat "$0/pid")"'


class NatsSite:
    """A NATS server of an operator: its own configuration, which includes a file of links."""

    def __init__(
        self, program: str, folder: Path, host: str, ports: tuple[int, int, int], account: str | None = None
    ):
        self.program = program
        self.folder = folder
        self.host = host
        self.port, self.leaf_port, self.monitoring = ports
        self.links = folder / "broadloom.conf"
        self.account = account
        folder.mkdir(parents=True)
        self.links.write_text("" if account is None else NO_LINKS)
        own = "" if account is None else ACCOUNTS.format(account=account)
        (folder / "nats.conf").write_text(
            f'server_name: "{folder.name}"\nlisten: "{host}:{self.port}"\nhttp: "{host}:{self.monitoring}"\n'
            f'pid_file: "{folder}/pid"\nlog_file: "{folder}/log"\nmax_payload: 123456\n'
            f'include "broadloom.conf"\n{own}'
        )

    def hooks(self) -> FleetHooks:
        """The operator's commands."""
        words = (str(self.folder), self.program)
        return FleetHooks(
            path=str(self.links),
            stop=("sh", "-c", STOP, *words),
            start=("sh", "-c", START, *words),
            reload=("sh", "-c", RELOAD, *words),
        )

    def broker(self, name: str) -> FleetBroker:
        """The broker of a fleet."""
        return FleetBroker(
            name,
            f"{self.host}:{self.port}",
            kind="nats",
            tls=None,
            subscriptions=f"http://{self.host}:{self.monitoring}",
            leaf_listen=f"{self.host}:{self.leaf_port}",
            account=self.account,
            hooks=self.hooks(),
        )


@contextmanager
def running_nats(
    program: str,
    folder: Path,
    names: Iterable[str],
    links: Callable[[bl.Fleet], Mapping[str, str]] = lambda _: {},
    account: str | None = None,
) -> Iterator[dict[str, NatsSite]]:
    """NATS servers, without links or with the files of links that a function gives for the fleet.

    Their clients have an account of their own, if it has a name.
    """
    listed = list(names)
    ports = zip(*[iter(free_ports(3 * len(listed)))] * 3, strict=True)
    sites = {
        name: NatsSite(program, folder / name, HOST, own, account)
        for name, own in zip(listed, ports, strict=True)
    }
    for name, text in links(nats_fleet(sites)).items():
        sites[name].links.write_text(text)
    try:
        for site in sites.values():
            subprocess.run(site.hooks().start, check=True, stdin=subprocess.DEVNULL)
        end = time.monotonic() + 10
        while not all(listens(site.port) and listens(site.monitoring) for site in sites.values()):
            if time.monotonic() > end:
                raise TimeoutError("a NATS server does not listen")
            time.sleep(0.01)
        yield sites
    finally:
        for site in sites.values():
            if (site.folder / "pid").exists():
                os.kill(int((site.folder / "pid").read_text()), signal.SIGKILL)


def nats_fleet(sites: Mapping[str, NatsSite]) -> bl.Fleet:
    """The fleet of these brokers."""
    return bl.Fleet([site.broker(name) for name, site in sites.items()])


class NatsClient:
    """A client of core NATS that subscribes, publishes, and connects again after a restart."""

    def __init__(self, site: NatsSite, subjects: Iterable[str]):
        self.site = site
        self.subjects = list(subjects)
        self.received: Counter[tuple[str, bytes]] = Counter()
        self.away = 0.0  # seconds without a connection
        self._closed = False
        self._socket: socket.socket | None = None
        self._lock = threading.Lock()
        self._connect()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _connect(self) -> None:
        opened = socket.create_connection((self.site.host, self.site.port), 5)
        opened.settimeout(None)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        lines = [b'CONNECT {"verbose":false,"pedantic":false}\r\n']
        lines += [f"SUB {subject} {number}\r\n".encode() for number, subject in enumerate(self.subjects, 1)]
        opened.sendall(b"".join([*lines, b"PING\r\n"]))
        self._stream = opened.makefile("rb")
        while self._stream.readline().strip() != b"PONG":
            pass
        self._socket = opened

    def publish(self, subject: str, payload: bytes) -> bool:
        """Publish a message; False if there is no connection."""
        with self._lock:
            if self._socket is None:
                return False
            try:
                self._socket.sendall(f"PUB {subject} {len(payload)}\r\n".encode() + payload + b"\r\n")
            except OSError:
                return False
            return True

    def _run(self) -> None:
        while not self._closed:
            try:
                line = self._stream.readline()
                if line.startswith(b"MSG"):
                    words = line.split()
                    payload = self._stream.read(int(words[-1]) + 2)[:-2]
                    self.received[words[1].decode(), payload] += 1
                    continue
                if line.startswith(b"PING"):
                    with self._lock:
                        if self._socket is not None:
                            self._socket.sendall(b"PONG\r\n")
                    continue
                if line:
                    continue
            except (OSError, ValueError):
                pass
            self._come_back()

    def _come_back(self) -> None:
        if self._closed:
            return
        start = time.monotonic()
        with self._lock:
            self._hang_up()
            while not self._closed:
                try:
                    self._connect()
                    break
                except OSError:
                    time.sleep(0.01)
        self.away += time.monotonic() - start

    def _hang_up(self) -> None:
        if self._socket is not None:
            self._stream.close()
            self._socket.close()
            self._socket = None

    def close(self) -> None:
        """End the connection."""
        self._closed = True
        if self._socket is not None:
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(5)
        self._hang_up()


class NatsLoad:
    """Messages that clients publish at a constant rate, each of them known."""

    def __init__(self, clients: Mapping[str, NatsClient], rate: float):
        self.clients = clients
        self.rate = rate
        self.name = uuid.uuid4().hex
        self.sent: list[tuple[str, str, bytes]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "NatsLoad":
        self._thread.start()
        time.sleep(0.5)
        return self

    def __exit__(self, *_: object) -> None:
        time.sleep(0.5)
        self._stop.set()
        self._thread.join()
        time.sleep(1)

    def _run(self) -> None:
        pairs = [(name, subject) for name, one in self.clients.items() for subject in one.subjects]
        start = time.monotonic()
        number = 0
        while not self._stop.is_set():
            while number < (time.monotonic() - start) * self.rate:
                name, subject = pairs[number % len(pairs)]
                payload = f"{self.name} {number}".encode()
                number += 1
                if self.clients[name].publish(subject, payload):
                    self.sent.append((name, subject, payload))
            self._stop.wait(0.001)

    def counts(self) -> dict[str, int]:
        """How many deliveries were expected, lost and doubled."""
        expected = lost = doubled = 0
        for _, subject, payload in self.sent:
            for client in self.clients.values():
                if subject in client.subjects:
                    expected += 1
                    found = client.received[subject, payload]
                    lost += found == 0
                    doubled += max(0, found - 1)
        return {"published": len(self.sent), "expected": expected, "lost": lost, "doubled": doubled}

"""Laboratory of real mosquitto brokers on loopback, linked as exported, with links that can be cut."""

from __future__ import annotations

import os
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from broadloom.deployment.deployment_inputs import Settings, link_name, safe_name
from broadloom.deployment.targets import mosquitto_bridges
from broadloom.deployment.targets.mosquitto_bridges import MESH
from broadloom.deployment.wiring import WiredLink, Wiring
from broadloom.errors import MissingExtraError, UnreachableError
from broadloom.mqtt.paho import need_paho
from broadloom.storage import forget_lock, lock_handle

HOST = "127.0.0.1"
# Below the ports that the system assigns to clients, so that no client takes a broker's port.
PORTS = range(12_000, 32_000)
# Time limits; long, for a busy machine.
START_SECONDS = 60.0
LINK_SECONDS = 60.0
STOP_SECONDS = 30.0
SWEEP_SECONDS = 60.0
TRIES = 3
PREFIX = "broadloom-rehearsal-"
SAVED = "mosquitto.db"

_LISTEN = """\
listener {port} {host}
allow_anonymous true
user {user}
persistence true
persistence_location {folder}/
autosave_interval 1
max_queued_messages 0
max_inflight_messages 200
log_dest stderr
log_type all
"""
_BRIDGE = """\
bridge_protocol_version mqttv311
try_private true
cleansession false
notifications false
restart_timeout 0 1
"""


class BrokerLab(ABC):
    """Context manager of broker processes and their folder; it removes both, however it ends."""

    def __enter__(self) -> Self:
        _sweep()
        self._folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        self._lock = lock_handle(self._folder, wait=True)  # the system releases it if this process is killed
        try:
            self._begin()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._end()
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)
            os.close(self._lock)
            forget_lock(self._folder)

    @abstractmethod
    def _begin(self) -> None:
        """Start the processes."""

    @abstractmethod
    def _end(self) -> None:
        """Stop the processes."""


class MosquittoLab(BrokerLab):
    """One mosquitto broker per broker of a wiring.

    Attributes:
        wiring: the links in the brokers' present files.
        ports: the port of each broker.
        relays: the links that can be cut, by owner and peer.
        logs: the logs of each broker, one per start.
    """

    def __init__(self, wiring: Wiring, cuttable: Iterable[WiredLink] = ()) -> None:
        need_paho()  # before any broker starts
        self._program = require_mosquitto()
        self.wiring = wiring
        self._cuttable = [link[:2] for link in cuttable]
        self.ports: dict[str, int] = {}
        self.relays: dict[tuple[str, str], LinkRelay] = {}
        self.logs: dict[str, list[BrokerLog]] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def _begin(self) -> None:
        for attempt in range(TRIES):
            if self._start_all(last=attempt == TRIES - 1):
                break

    @property
    def journal(self) -> Path:
        """The file of a change's journal."""
        return self._folder / "fleet.apply"

    def start(self, broker: str) -> None:
        """Start a broker with its present file; it continues from the state that it saved."""
        folder = self._folder_of(broker)
        logs = self.logs.setdefault(broker, [])
        path = folder / f"log.{len(logs)}"
        with path.open("wb") as log:
            command = [self._program, "-c", str(folder / "mosquitto.conf")]
            self._processes[broker] = subprocess.Popen(  # noqa: S603
                [*killed_with_parent(), *command], stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )
        logs.append(BrokerLog(path))

    def stop(self, broker: str, kill: bool = False) -> None:
        """Stop a broker as its operator would, by a command; or kill it."""
        process = self._processes.pop(broker)
        if kill:
            process.kill()
        elif (command := shutil.which("kill")) is not None:
            subprocess.run([command, str(process.pid)], check=False)  # noqa: S603
        else:
            process.terminate()
        _wait_for(process)
        for link in self.wiring.links:
            if link.peer == broker:
                self._mark_down(link)

    def cut(self, link: WiredLink) -> None:
        """Cut one of the links that can be cut."""
        self.relays[link[:2]].cut()
        self._mark_down(link)

    def mend(self, link: WiredLink) -> None:
        """Let a cut link connect again."""
        self.relays[link[:2]].mend()

    def configure(self, broker: str, wiring: Wiring) -> None:
        """Write the broker's file for a wiring; the broker reads it when it starts."""
        folder = self._folder_of(broker)
        folder.mkdir(exist_ok=True)
        listen = _LISTEN.format(
            port=self.ports[broker], host=HOST, folder=folder, user="root" if _is_root() else "nobody"
        )
        settings = Settings(addresses=self._addresses(broker), tls=False)
        text = mosquitto_bridges.broker_file(wiring, broker, settings, _BRIDGE)
        (folder / "mosquitto.conf").write_text(listen + text)

    def read(self) -> None:
        """Read the new lines in the logs of all brokers."""
        for logs in self.logs.values():
            logs[-1].read()

    def wait_until_linked(self, wiring: Wiring, seconds: float = LINK_SECONDS) -> None:
        """Wait until the peer of every link of a wiring has answered it."""
        missing = [link for link in wiring.links if link.out or link.into]
        end = time.monotonic() + seconds
        while missing:
            self.read()
            missing = [link for link in missing if not self._is_up(link, wiring)]
            if missing and time.monotonic() > end:
                names = f"{missing[0].owner!r}-{missing[0].peer!r}"
                raise UnreachableError(
                    f"{len(missing)} links are not up after {seconds:g} s, {names} among them; try again on "
                    "a machine that is less busy"
                )
            time.sleep(0.02)

    def wait_until_listening(self, brokers: Sequence[str], seconds: float = START_SECONDS) -> bool:
        """Wait until brokers accept connections; false if one has ended instead."""
        end = time.monotonic() + seconds
        for broker in brokers:
            while not listens(self.ports[broker]):
                if self._processes[broker].poll() is not None:
                    return False
                if time.monotonic() > end:
                    raise UnreachableError(
                        f"broker {broker!r} does not listen after {seconds:g} s; try again on a machine that "
                        "is less busy"
                    )
                time.sleep(0.01)
        return all(self._processes[broker].poll() is None for broker in brokers)

    def wait_until_saved(self, broker: str, seconds: float = START_SECONDS) -> None:
        """Wait until a broker has saved its sessions once more: its present sessions survive a kill."""
        path = self._folder_of(broker) / SAVED
        before = _saved_at(path)
        end = time.monotonic() + seconds
        while _saved_at(path) == before:
            if time.monotonic() > end:
                raise UnreachableError(
                    f"broker {broker!r} has saved nothing in {seconds:g} s; try again on a machine that is "
                    "less busy"
                )
            time.sleep(0.02)

    def _is_up(self, link: WiredLink, wiring: Wiring) -> bool:
        """Whether a link's requests are answered: to connect, and to (un)subscribe per line of its file."""
        lines = len({*link.out, *link.into}) if wiring.relays else len(link.out) + len(link.into)
        return self.logs[link.owner][-1].answers[link_name(link.owner, link.peer)] >= 1 + lines

    def _mark_down(self, link: WiredLink) -> None:
        """Forget the answers to a link, until it opens again."""
        log = self.logs[link.owner][-1]
        log.read()
        log.answers[link_name(link.owner, link.peer)] = 0

    def _start_all(self, last: bool) -> bool:
        """Start everything; false if a broker ended (its port was taken), unless this is the last try."""
        ports = iter(free_ports(len(self.wiring.brokers) + len(self._cuttable)))
        self.ports = {broker: next(ports) for broker in self.wiring.brokers}
        self.relays = {ends: LinkRelay(HOST, next(ports), self.ports[ends[1]]) for ends in self._cuttable}
        for relay in self.relays.values():
            relay.mend()
        for broker in sorted(self.wiring.brokers, reverse=True):  # peers before the owners of links to them
            self.configure(broker, self.wiring)
            self.start(broker)
        if self.wait_until_listening(self.wiring.brokers):
            return True
        if last:
            ended = next(broker for broker, process in self._processes.items() if process.poll() is not None)
            path = self._folder_of(ended) / f"log.{len(self.logs[ended]) - 1}"
            raise UnreachableError(f"broker {ended!r} ended; the end of its log: {log_end(path)}")
        self._end()
        return False

    def _addresses(self, broker: str) -> dict[str, str]:
        """The addresses that a broker uses for the others: their own, or those of relays."""
        direct = {other: f"{HOST}:{port}" for other, port in self.ports.items()}
        relayed = {
            peer: f"{HOST}:{relay.port}" for (own, peer), relay in self.relays.items() if own == broker
        }
        return direct | relayed

    def _folder_of(self, broker: str) -> Path:
        return self._folder / safe_name(broker)

    def _end(self) -> None:
        for relay in self.relays.values():
            relay.cut()
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            _wait_for(process)
        self._processes.clear()
        for logs in self.logs.values():
            for log in logs:
                log.close()
        self.logs.clear()


def _sweep() -> None:
    """Remove the folders of laboratories that were killed: no process holds a lock on them."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        try:
            if time.time() - folder.stat().st_mtime <= SWEEP_SECONDS:  # one that is being created
                continue
            handle = lock_handle(folder)
        except OSError:  # removed by another process, not ours to open, or in use
            continue
        try:
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(handle)
            forget_lock(folder)


def _is_root() -> bool:
    return sys.platform != "win32" and os.geteuid() == 0


def _saved_at(path: Path) -> int:
    """The modification time of a file in nanoseconds; -1 if it does not exist."""
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return -1


def require_mosquitto() -> str:
    """The path of the mosquitto program; Debian does not have it on an ordinary user's PATH."""
    path = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"))
    program = shutil.which("mosquitto", path=path)
    if program is None:
        raise MissingExtraError(
            "mosquitto is not installed (a rehearsal runs it); run: apt-get install mosquitto"
        )
    return program


def free_ports(count: int) -> list[int]:
    """Different ports on loopback on which no process listens."""
    found: list[int] = []
    own = random.Random()  # noqa: S311  # its own seed: other processes choose at the same time
    for port in own.sample(PORTS, len(PORTS)):
        if len(found) == count:
            break
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
                found.append(port)
            except OSError:
                continue
    return found


def killed_with_parent() -> list[str]:
    """The prefix of a command that must end if this process is killed; empty without setpriv."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "KILL"] if setpriv else []


def log_end(log: Path) -> str:
    """The end of a log, in one line."""
    return " ".join(log.read_text(errors="replace").split())[-300:]


def _wait_for(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def listens(port: int) -> bool:
    """Whether a process accepts connections at a port."""
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


_LINE = re.compile(
    r"\d+: (?:"
    r"(?P<direction>Sending|Received) PUBLISH (?:to|from) (?P<client>\S+) "
    r"\(d\d, q(?P<qos>\d), r\d, m\d+, '(?P<topic>.*)', \.\.\. \((?P<size>\d+) bytes\)\)"
    r"|Bridge r\.(?P<opening>\S+) sending CONNECT"
    r"|Received (?:SUBACK|UNSUBACK|CONNACK) (?:from|on connection) l\.(?P<answered>\S+?)\.?"
    r")\n"
)


class BrokerLog:
    """Counts from a mosquitto broker's log, which is read while it grows.

    Attributes:
        sent: the number of messages to each client, by topic.
        received: the number of messages from each client, by topic.
        bytes_sent: the size of all packets to each client.
        answers: for each link that the broker opened, how many of its requests the peer has answered.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open(encoding="utf-8", errors="replace")
        self._incomplete = ""
        self.sent: Counter[tuple[str, str]] = Counter()
        self.received: Counter[tuple[str, str]] = Counter()
        self.bytes_sent: Counter[str] = Counter()
        self.answers: Counter[str] = Counter()

    def read(self) -> None:
        """Read the lines that were written since the last time."""
        text = self._incomplete + self._file.read()
        complete, newline, self._incomplete = text.rpartition("\n")
        for line in (complete + newline).splitlines(keepends=True):
            found = _LINE.fullmatch(line)
            if found is None:
                continue
            if found["opening"]:
                self.answers[found["opening"]] = 0
            elif found["answered"]:
                self.answers[found["answered"]] += 1
            elif found["direction"] == "Received":
                self.received[found["client"], found["topic"]] += 1
            else:
                self.sent[found["client"], found["topic"]] += 1
                topic = found["topic"].removeprefix(MESH)  # the prefix is ours and does not count
                size = packet_size(topic, int(found["size"]), int(found["qos"]))
                self.bytes_sent[found["client"]] += size

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def packet_size(topic: str, payload: int, qos: int) -> int:
    """The bytes of a PUBLISH packet of MQTT 3.1.1.

    Examples:
        >>> packet_size("x", 10, 1)
        17
    """
    rest = 2 + len(topic.encode()) + (2 if qos else 0) + payload
    header = 1 + max(1, (rest.bit_length() + 6) // 7)
    return header + rest


class LinkRelay:
    """A link that can be cut: it forwards connections from its own port to a broker's.

    Attributes:
        port: its own port.
    """

    def __init__(self, host: str, port: int, target: int) -> None:
        self.port = port
        self._host = host
        self._target = target
        self._server: socket.socket | None = None
        self._acceptor: threading.Thread | None = None
        self._sockets: list[socket.socket] = []

    def mend(self) -> None:
        """Accept connections."""
        self._server = socket.create_server((self._host, self.port))
        self._acceptor = _run(self._accept, self._server)

    def cut(self) -> None:
        """Close all connections, and accept no more."""
        if self._server is not None and self._acceptor is not None:
            _close(self._server)
            self._acceptor.join()
        for connection in self._sockets:
            _close(connection)
        self._server = None
        self._acceptor = None
        self._sockets = []

    def _accept(self, server: socket.socket) -> None:
        while True:
            try:
                near, _ = server.accept()
            except OSError:
                return
            try:
                far = socket.create_connection((self._host, self._target))
            except OSError:  # the broker is down; the next connection tries again
                near.close()
                continue
            self._sockets += (near, far)
            _run(self._forward, near, far)
            _run(self._forward, far, near)

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        _close(source)
        _close(sink)


def _run(work: Callable[..., None], *arguments: socket.socket) -> threading.Thread:
    thread = threading.Thread(target=work, args=arguments, daemon=True)
    thread.start()
    return thread


def _close(connection: socket.socket) -> None:
    """Wake the threads that wait for a socket, and close it."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()

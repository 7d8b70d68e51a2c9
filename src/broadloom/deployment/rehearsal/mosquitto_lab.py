"""Real mosquitto brokers on this machine's loopback, linked as exported, and gone when the block ends."""

from __future__ import annotations

import fcntl
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from broadloom.deployment.deployment_inputs import Settings, link_name, safe
from broadloom.deployment.targets import mosquitto_bridges
from broadloom.deployment.targets.mosquitto_bridges import MESH
from broadloom.deployment.wiring import WiredLink, Wiring
from broadloom.errors import InputError

HOST = "127.0.0.1"
# Below those that the system gives to clients, so that none of them takes a broker's port.
PORTS = range(12_000, 32_000)
START_SECONDS, LINK_SECONDS, STOP_SECONDS = 60.0, 60.0, 30.0  # much, for a machine that is busy
SWEEP_SECONDS = 60.0
TRIES = 3
PREFIX = "broadloom-rehearsal-"
SAVED = "mosquitto.db"

_LISTEN = """\
listener {port} {host}
allow_anonymous true
user {user}
persistence_location {folder}/
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
    """A context manager over processes and a folder of theirs; it leaves neither behind, however it ends."""

    def __enter__(self) -> Self:
        _sweep()
        self._folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        self._lock = os.open(self._folder, os.O_RDONLY)  # the system lets go of it if this process is killed
        fcntl.flock(self._lock, fcntl.LOCK_EX)
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

    @abstractmethod
    def _begin(self) -> None:
        """Start the processes."""

    @abstractmethod
    def _end(self) -> None:
        """Stop them."""


class MosquittoLab(BrokerLab):
    """A mosquitto broker for each one of a wiring.

    Attributes:
        wiring: how the brokers are linked, as their files say at the moment.
        ports: where each broker listens.
        relays: the links that can be cut, by their ends.
    """

    def __init__(self, wiring: Wiring, cuttable: Iterable[WiredLink] = ()) -> None:
        self._program = need_mosquitto()
        self.wiring = wiring
        self._cuttable = [link[:2] for link in cuttable]
        self.ports: dict[str, int] = {}
        self.relays: dict[tuple[str, str], LinkRelay] = {}
        self.logs: dict[str, list[BrokerLog]] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def _begin(self) -> None:
        for left in reversed(range(TRIES)):
            if self._start_all(last=not left):
                break

    def start(self, broker: str) -> None:
        """Start a broker, with the file that it has now; it goes on from the state that it kept."""
        folder = self._folder_of(broker)
        logs = self.logs.setdefault(broker, [])
        place = folder / f"log.{len(logs)}"
        with place.open("wb") as log:
            command = [self._program, "-c", str(folder / "mosquitto.conf")]
            self._processes[broker] = subprocess.Popen(  # noqa: S603
                [*dying_with_us(), *command], stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )
        logs.append(BrokerLog(place))

    def stop(self, broker: str, kill: bool = False) -> None:
        """Stop a broker as its operator would, or kill it."""
        process = self._processes.pop(broker)
        process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
        _wait_for(process)
        for link in self.wiring.links:
            if link.peer == broker:
                self._mark_down(link)

    def cut(self, link: WiredLink) -> None:
        """Cut a link that can be."""
        self.relays[link[:2]].cut()
        self._mark_down(link)

    def mend(self, link: WiredLink) -> None:
        """Let a link that was cut connect again."""
        self.relays[link[:2]].mend()

    def configure(self, broker: str, wiring: Wiring) -> None:
        """Write the broker's file as a wiring has it; a broker reads it when it starts."""
        folder = self._folder_of(broker)
        folder.mkdir(exist_ok=True)
        listen = _LISTEN.format(
            port=self.ports[broker], host=HOST, folder=folder, user="root" if os.geteuid() == 0 else "nobody"
        )
        own = Settings(places=self._places(broker), tls=False)
        text = mosquitto_bridges.broker_file(wiring, broker, own, _BRIDGE)
        (folder / "mosquitto.conf").write_text(listen + text)

    def read(self) -> None:
        """Take in what the logs of all brokers have to say."""
        for logs in self.logs.values():
            logs[-1].read()

    def wait_until_linked(self, wiring: Wiring, seconds: float = LINK_SECONDS) -> None:
        """Wait until every link of a wiring has been answered by its other end."""
        missing = [link for link in wiring.links if link.out or link.into]
        end = time.monotonic() + seconds
        while missing:
            self.read()
            missing = [link for link in missing if not self._is_up(link, wiring)]
            if missing and time.monotonic() > end:
                names = f"{missing[0].owner!r}-{missing[0].peer!r}"
                raise InputError(
                    f"{len(missing)} links are not up after {seconds:g} s, {names} among them; try again on "
                    "a machine that is less busy"
                )
            time.sleep(0.02)

    def wait_until_listening(self, brokers: Sequence[str], seconds: float = START_SECONDS) -> bool:
        """Wait until brokers take connections; false if one has ended instead."""
        end = time.monotonic() + seconds
        for broker in brokers:
            while not listens(self.ports[broker]):
                if self._processes[broker].poll() is not None:
                    return False
                if time.monotonic() > end:
                    raise InputError(
                        f"broker {broker!r} does not listen after {seconds:g} s; try again on a machine that "
                        "is less busy"
                    )
                time.sleep(0.01)
        return all(self._processes[broker].poll() is None for broker in brokers)

    def wait_until_saved(self, broker: str, seconds: float = START_SECONDS) -> None:
        """Wait until a broker has saved its sessions once more: what it has now outlives a kill."""
        place = self._folder_of(broker) / SAVED
        before, end = _saved_at(place), time.monotonic() + seconds
        while _saved_at(place) == before:
            if time.monotonic() > end:
                raise InputError(
                    f"broker {broker!r} has saved nothing in {seconds:g} s; try again on a machine that is "
                    "less busy"
                )
            time.sleep(0.02)

    def _is_up(self, link: WiredLink, wiring: Wiring) -> bool:
        """All requests of a link are answered: to connect, and to (un)subscribe for each line of its file."""
        lines = len({*link.out, *link.into}) if wiring.relays else len(link.out) + len(link.into)
        return self.logs[link.owner][-1].answers[link_name(link.owner, link.peer)] >= 1 + lines

    def _mark_down(self, link: WiredLink) -> None:
        """Forget the answers that a link got, until it opens anew."""
        log = self.logs[link.owner][-1]
        log.read()
        log.answers[link_name(link.owner, link.peer)] = 0

    def _start_all(self, last: bool) -> bool:
        """Start everything; false if a port was taken by somebody else, unless this is the last try."""
        ports = iter(free_ports(len(self.wiring.brokers) + len(self._cuttable)))
        self.ports = {broker: next(ports) for broker in self.wiring.brokers}
        self.relays = {ends: LinkRelay(HOST, next(ports), self.ports[ends[1]]) for ends in self._cuttable}
        for relay in self.relays.values():
            relay.mend()
        for broker in sorted(self.wiring.brokers, reverse=True):  # peers before those that call them
            self.configure(broker, self.wiring)
            self.start(broker)
        if self.wait_until_listening(self.wiring.brokers):
            return True
        if last:
            ended = next(broker for broker, process in self._processes.items() if process.poll() is not None)
            place = self._folder_of(ended) / f"log.{len(self.logs[ended]) - 1}"
            raise InputError(f"broker {ended!r} ended; its last words: {last_words(place)}")
        self._end()
        return False

    def _places(self, broker: str) -> dict[str, str]:
        """Where the broker finds the others: at their ports, or behind a relay that can be cut."""
        places = {other: f"{HOST}:{port}" for other, port in self.ports.items()}
        relayed = {
            peer: f"{HOST}:{relay.port}" for (own, peer), relay in self.relays.items() if own == broker
        }
        return places | relayed

    def _folder_of(self, broker: str) -> Path:
        return self._folder / safe(broker)

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
    """Remove folders of rehearsals that were killed: nobody holds a lock on them."""
    for left in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        try:
            handle = os.open(left, os.O_RDONLY)
        except OSError:
            continue
        try:
            if time.time() - os.fstat(handle).st_mtime > SWEEP_SECONDS:  # not one that is just being made
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left, ignore_errors=True)
        except BlockingIOError:
            continue
        finally:
            os.close(handle)


def _saved_at(place: Path) -> int:
    """When a file was written, in nanoseconds; -1 if it is not there."""
    try:
        return place.stat().st_mtime_ns
    except FileNotFoundError:
        return -1


def need_mosquitto() -> str:
    """The mosquitto program; Debian keeps it off a plain user's PATH."""
    path = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"))
    program = shutil.which("mosquitto", path=path)
    if program is None:
        raise InputError("mosquitto is not installed, and a rehearsal runs it; `apt-get install mosquitto`")
    return program


def free_ports(count: int) -> list[int]:
    """Ports on loopback that nobody listens on, all different."""
    found: list[int] = []
    own = random.Random()  # noqa: S311  # of its own seed: others choose at the same time
    for port in own.sample(PORTS, len(PORTS)):
        if len(found) == count:
            break
        with socket.socket() as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                one.bind((HOST, port))
                found.append(port)
            except OSError:
                continue
    return found


def dying_with_us() -> list[str]:
    """A wrapper that has the system end a broker even if this process is killed; nothing where it is not."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "KILL"] if setpriv else []


def last_words(log: Path) -> str:
    """The end of what a program said, in one line."""
    return " ".join(log.read_text(errors="replace").split())[-300:]


def _wait_for(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def listens(port: int) -> bool:
    """Whether somebody takes connections at a port."""
    with socket.socket() as one:
        return one.connect_ex((HOST, port)) == 0


_LINE = re.compile(
    r"\d+: (?:"
    r"(?P<way>Sending|Received) PUBLISH (?:to|from) (?P<client>\S+) "
    r"\(d\d, q(?P<qos>\d), r\d, m\d+, '(?P<topic>.*)', \.\.\. \((?P<size>\d+) bytes\)\)"
    r"|Bridge r\.(?P<opening>\S+) sending CONNECT"
    r"|Received (?:SUBACK|UNSUBACK|CONNACK) (?:from|on connection) l\.(?P<answered>\S+?)\.?"
    r")\n"
)


class BrokerLog:
    """A log that grows, read as far as it has come.

    Attributes:
        sent: how many messages of each topic went to each client.
        received: how many came from each.
        bytes_sent: the size of all packets to each client.
        answers: of each link that the broker opened, how many of its requests the other end has answered.
    """

    def __init__(self, place: Path) -> None:
        self._file = place.open(encoding="utf-8", errors="replace")
        self._rest = ""
        self.sent: Counter[tuple[str, str]] = Counter()
        self.received: Counter[tuple[str, str]] = Counter()
        self.bytes_sent: Counter[str] = Counter()
        self.answers: Counter[str] = Counter()

    def read(self) -> None:
        """Take in what was written since the last time."""
        text = self._rest + self._file.read()
        whole, newline, self._rest = text.rpartition("\n")
        for line in (whole + newline).splitlines(keepends=True):
            found = _LINE.fullmatch(line)
            if found is None:
                continue
            if found["opening"]:
                self.answers[found["opening"]] = 0
            elif found["answered"]:
                self.answers[found["answered"]] += 1
            elif found["way"] == "Received":
                self.received[found["client"], found["topic"]] += 1
            else:
                self.sent[found["client"], found["topic"]] += 1
                topic = found["topic"].removeprefix(MESH)  # a name of our making, which nobody pays for
                size = packet_size(topic, int(found["size"]), int(found["qos"]))
                self.bytes_sent[found["client"]] += size

    def close(self) -> None:
        """Let go of the file."""
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
    """Passes connections on from a port of its own to a broker's.

    Attributes:
        port: where it listens.
    """

    def __init__(self, host: str, port: int, target: int) -> None:
        self.port = port
        self._host, self._target = host, target
        self._server: socket.socket | None = None
        self._acceptor: threading.Thread | None = None
        self._sockets: list[socket.socket] = []

    def mend(self) -> None:
        """Take connections."""
        self._server = socket.create_server((self._host, self.port))
        self._acceptor = _run(self._accept, self._server)

    def cut(self) -> None:
        """Close all connections, and take no more."""
        if self._server is not None and self._acceptor is not None:
            _shut(self._server)
            self._acceptor.join()
        for one in self._sockets:
            _shut(one)
        self._server, self._acceptor, self._sockets = None, None, []

    def _accept(self, server: socket.socket) -> None:
        while True:
            try:
                near, _ = server.accept()
            except OSError:
                return
            try:
                far = socket.create_connection((self._host, self._target))
            except OSError:  # the broker is down; it is tried again with the next connection
                near.close()
                continue
            self._sockets += (near, far)
            _run(self._pass_on, near, far)
            _run(self._pass_on, far, near)

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        _shut(source)
        _shut(sink)


def _run(work: Callable[..., None], *arguments: socket.socket) -> threading.Thread:
    thread = threading.Thread(target=work, args=arguments, daemon=True)
    thread.start()
    return thread


def _shut(one: socket.socket) -> None:
    """Wake whoever waits for a socket, and close it."""
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()

"""Real mosquitto brokers on this machine's loopback, linked as exported, and gone when the block ends."""

from __future__ import annotations

import fcntl
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Self

from broadloom.deployment.rehearsal._log import BrokerLog
from broadloom.deployment.rehearsal._relay import Relay
from broadloom.deployment.settings import Settings, link_name, safe
from broadloom.deployment.targets import mosquitto
from broadloom.deployment.wiring import Link, Wiring
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


class Scratch(ABC):
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


class Lab(Scratch):
    """A mosquitto broker for each one of a wiring.

    Attributes:
        wiring: how the brokers are linked, as their files say at the moment.
        ports: where each broker listens.
        relays: the links that can be cut, by their ends.
    """

    def __init__(self, wiring: Wiring, cuttable: Iterable[Link] = ()) -> None:
        self._program = need_mosquitto()
        self.wiring = wiring
        self._cuttable = [link[:2] for link in cuttable]
        self.ports: dict[str, int] = {}
        self.relays: dict[tuple[str, str], Relay] = {}
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

    def cut(self, link: Link) -> None:
        """Cut a link that can be."""
        self.relays[link[:2]].cut()
        self._mark_down(link)

    def mend(self, link: Link) -> None:
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
        text = mosquitto.broker_file(wiring, broker, own, _BRIDGE)
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

    def _is_up(self, link: Link, wiring: Wiring) -> bool:
        """All requests of a link are answered: to connect, and to (un)subscribe for each line of its file."""
        lines = len({*link.out, *link.into}) if wiring.relays else len(link.out) + len(link.into)
        return self.logs[link.owner][-1].answers[link_name(link.owner, link.peer)] >= 1 + lines

    def _mark_down(self, link: Link) -> None:
        """Forget the answers that a link got, until it opens anew."""
        log = self.logs[link.owner][-1]
        log.read()
        log.answers[link_name(link.owner, link.peer)] = 0

    def _start_all(self, last: bool) -> bool:
        """Start everything; false if a port was taken by somebody else, unless this is the last try."""
        ports = iter(free_ports(len(self.wiring.brokers) + len(self._cuttable)))
        self.ports = {broker: next(ports) for broker in self.wiring.brokers}
        self.relays = {ends: Relay(HOST, next(ports), self.ports[ends[1]]) for ends in self._cuttable}
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

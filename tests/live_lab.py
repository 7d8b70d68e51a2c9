"""Laboratory of the live plane: mosquitto brokers, a site agent per broker and a controller, each a process.

Clients publish numbered messages and count what arrives. A client is owed every message of a lane (a
publisher's connection, topic and QoS) that follows the first one to arrive since it has subscribed; each must
arrive once. So no message is excused when trees change, when processes die or when brokers are away. A broker
keeps the order of messages within a lane only: it takes two connections in any order, and distributes a
message of QoS 2 at PUBREL, behind later ones of QoS 1.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from broadloom.agents.links.agent_service import controller_connection
from broadloom.agents.links.controller_protocol import STATUS_PATH
from broadloom.agents.links.stamps import FleetKey
from broadloom.deployment.fleet_file import Fleet
from broadloom.deployment.rehearsal.mosquitto_lab import HOST, free_ports, killed_with_parent, listens
from broadloom.errors import BroadloomError
from broadloom.mqtt.client_session import ClientSession, SessionHandler
from broadloom.mqtt.endpoint import Endpoint, close_server
from broadloom.mqtt.packets import (
    FAILED,
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    Connack,
    Publish,
    acknowledgement,
    publish,
)

WAIT_SECONDS = 90.0
IN_FLIGHT = 10  # of one publisher; a broker of default settings takes 20
EQUAL = b"equal"  # the payload of equal messages
KEY = "a key for a laboratory, not a secret"
KINDS = 3  # of clients per broker: exact filters, wildcards at the end, wildcards in the middle
BROKER = """\
listener {port} {host}
user {user}
allow_anonymous true
persistence true
persistence_location {folder}/
autosave_interval {autosave}
autosave_on_changes {on_changes}
max_queued_messages 0
max_inflight_messages 500
sys_interval 1
log_dest topic
log_dest stderr
log_type error
log_type warning
log_type notice
log_type information
log_type subscribe
log_type unsubscribe
"""


async def until(condition: Callable[[], object], what: str, seconds: float = WAIT_SECONDS) -> None:
    """Wait until a condition holds; fail after a long time."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not in time: {what}"
        await asyncio.sleep(0.02)


class LabProcess:
    """A process that can be killed, stopped and started again; its output is appended to a log."""

    def __init__(
        self, name: str, command: list[str], log: Path, environment: Mapping[str, str] | None = None
    ):
        self.name = name
        self.command = command
        self.log = log
        self.environment = dict(environment or {})
        self.process: subprocess.Popen[bytes] | None = None
        self.starts = 0
        self._logged_before = 0  # bytes of the log

    def start(self) -> None:
        """Start it."""
        with self.log.open("ab") as log:
            self._logged_before = log.tell()
            self.process = subprocess.Popen(
                [*killed_with_parent(), *self.command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | self.environment,
            )
        self.starts += 1

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self.process is not None
        return self.process.pid

    def is_running(self) -> bool:
        """Whether it has been started and has not ended."""
        return self.process is not None and self.process.poll() is None

    def has_started(self) -> bool:
        """Whether an agent or a controller says that it runs, since it was started last."""
        text = self.log.read_bytes()[self._logged_before :]
        return b" runs; its controller is " in text or b"the controller answers at " in text

    def end(self, number: int = signal.SIGKILL) -> int:
        """Send a signal, and wait for the end; returns the exit code."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(number)
        return self.process.wait(60)

    def pause(self, paused: bool) -> None:
        """Stop it, or let it go on."""
        if self.is_running():
            os.kill(self.pid, signal.SIGSTOP if paused else signal.SIGCONT)

    def cpu_seconds(self) -> float:
        """CPU time that the running process has used."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory(self) -> int:
        """The largest resident memory of the running process so far, in bytes."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) * 1024
        return 0


class CuttableProxy:
    """TCP proxy in front of an address: it passes bytes on, is silent, or refuses connections."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._near: set[asyncio.StreamWriter] = set()  # to those that have connected
        self._bytes_left: int | None = None
        self.delay = 0.0  # seconds that bytes take
        self._open = asyncio.Event()
        self._open.set()
        self.port = 0

    async def start(self) -> None:
        """Listen on a free port."""
        self._server = await asyncio.start_server(self._serve, HOST, 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def silence(self, silent: bool) -> None:
        """Pass no more bytes, without closing connections; or go on."""
        if silent:
            self._open.clear()
        else:
            self._open.set()

    def cut(self) -> None:
        """Close all connections."""
        for writer in self._writers:
            writer.transport.abort()

    def cut_after(self, count: int) -> None:
        """Close all connections after some more bytes, most likely in the middle of a packet."""
        self._bytes_left = count

    def inject(self, data: bytes) -> None:
        """Send bytes to those that have connected, as if they came from the address."""
        for writer in self._near:
            if not writer.transport.is_closing():
                writer.write(data)

    async def stop(self) -> None:
        """End it."""
        self.cut()
        if self._server is not None:
            await close_server(self._server)
            self.cut()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends = {writer}
        self._writers.add(writer)
        self._near.add(writer)
        try:
            far_reader, far_writer = await asyncio.open_connection(HOST, self._target)
            ends.add(far_writer)
            self._writers.add(far_writer)
            await asyncio.gather(self._pass_on(reader, far_writer), self._pass_on(far_reader, writer))
        except OSError:  # the address refuses connections
            writer.transport.abort()
        finally:
            for end in ends:
                end.close()
            self._writers -= ends
            self._near.discard(writer)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                await self._open.wait()
                if self.delay:
                    await asyncio.sleep(self.delay)
                if self._bytes_left is not None and self._bytes_left <= len(data):
                    writer.write(data[: self._bytes_left])
                    await writer.drain()
                    self._bytes_left = None
                    self.cut()
                    return
                if self._bytes_left is not None:
                    self._bytes_left -= len(data)
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()


class LiveLab:
    """Brokers by name, their agents and a controller.

    Args:
        folder: the folder of all state and logs.
        names: the brokers.
        live: more lines of the fleet file's section [live].
        autosave: how often brokers save their sessions; None: at each change.
        proxies: whether agents reach other brokers through proxies, which can be cut.
        broker_settings: more lines of the brokers' configuration, for all or by broker; `{b1}` is a port.

    Attributes:
        brokers: the broker processes.
        agents: the agent processes.
        controller: the controller process.
    """

    def __init__(
        self,
        folder: Path,
        names: Iterable[str],
        live: str = "",
        autosave: int | None = 1800,
        proxies: bool = False,
        broker_settings: str | Mapping[str, str] = "",
    ) -> None:
        self.folder = folder
        self.names = list(names)
        ports = free_ports(len(self.names) + 1)
        self.ports = dict(zip(self.names, ports, strict=False))
        self.controller_port = ports[-1]
        self._live = live
        self._has_proxies = proxies
        self.proxies: dict[tuple[str, str], CuttableProxy] = {}
        (folder / "key").write_text(KEY)
        (folder / "key").chmod(0o600)
        self.fleet_path = self.write_fleet("fleet.toml", self.ports)
        self.brokers: dict[str, LabProcess] = {}
        self.agents: dict[str, LabProcess] = {}
        user = "root" if os.geteuid() == 0 else "nobody"
        for name in self.names:
            home = folder / f"broker-{name}"
            home.mkdir()
            (home / "mosquitto.conf").write_text(
                BROKER.format(
                    port=self.ports[name],
                    host=HOST,
                    user=user,
                    folder=home,
                    autosave=autosave or 1,
                    on_changes="false" if autosave else "true",
                )
                + (
                    broker_settings if isinstance(broker_settings, str) else broker_settings.get(name, "")
                ).format(**self.ports)
            )
            program = shutil.which("mosquitto") or "mosquitto"
            self.brokers[name] = LabProcess(
                name, [program, "-c", str(home / "mosquitto.conf")], folder / f"broker-{name}.log"
            )
        self.controller = self.new_controller("controller", folder / "state")
        self._connection: Any = None

    def write_fleet(self, name: str, ports: Mapping[str, int], controller_port: int | None = None) -> Path:
        """Write a fleet file with the ports of brokers and of the controller."""
        brokers = [
            f'[brokers.{broker}]\naddress = "{HOST}:{port}"\ntls = false\n' for broker, port in ports.items()
        ]
        port = controller_port or self.controller_port
        controller = f'[live]\ncontroller = "{HOST}:{port}"\nkey_file = "key"\n{self._live}\n'
        path = self.folder / name
        path.write_text("\n".join([*brokers, controller]))
        return path

    def new_controller(self, name: str, state: Path, *options: str, fleet: Path | None = None) -> LabProcess:
        """A controller process, not started yet."""
        command = [sys.executable, "-m", "broadloom.cli", "controller", str(fleet or self.fleet_path)]
        return LabProcess(name, [*command, "--state", str(state), *options], self.folder / f"{name}.log")

    def new_agent(self, broker: str, state: Path, fleet: Path, *options: str) -> LabProcess:
        """An agent process, not started yet."""
        command = [sys.executable, "-m", "broadloom.cli", "agent", str(fleet), "--broker", broker]
        return LabProcess(
            broker, [*command, "--state", str(state), *options], self.folder / f"agent-{broker}.log"
        )

    async def start(self) -> None:
        """Start everything, and wait until the controller knows what clients of all brokers want."""
        for broker in self.brokers.values():
            broker.start()
        for name in self.names:
            await until(lambda name=name: listens(self.ports[name]), f"{name} listens")
        for name in self.names:
            fleet = self.fleet_path
            if self._has_proxies:
                ports = dict(self.ports)
                for other in self.names:
                    if other != name:
                        proxy = self.proxies[name, other] = CuttableProxy(self.ports[other])
                        await proxy.start()
                        ports[other] = proxy.port
                fleet = self.write_fleet(f"fleet-{name}.toml", ports)
            self.agents[name] = self.new_agent(name, self.folder / "state", fleet)
            self.agents[name].start()
        self.controller.start()
        await self.settled(watched=True)

    async def stop(self) -> None:
        """End everything."""
        for process in (self.controller, *self.agents.values(), *self.brokers.values()):
            if process.process is not None:
                process.end()
        for proxy in self.proxies.values():
            await proxy.stop()
        if self._connection is not None:
            self._connection.close()

    def status(self) -> dict[str, Any] | None:
        """The status of the controller; None: it does not answer."""
        if self._connection is None:
            self._connection = controller_connection(Fleet.load(self.fleet_path), FleetKey(KEY), "operator")
        try:
            code, answer = self._connection.request("GET", STATUS_PATH)
        except (BroadloomError, OSError):
            return None
        return answer if code == 200 else None

    async def status_soon(self) -> dict[str, Any] | None:
        """The status, without holding up the event loop."""
        return await asyncio.to_thread(self.status)

    async def settled(self, watched: bool = False, seconds: float = WAIT_SECONDS) -> dict[str, Any]:
        """Wait until no change is under way; `watched`: and what clients want is known of all brokers."""
        end = time.monotonic() + seconds
        found: dict[str, Any] | None = None
        while time.monotonic() < end:
            found = await self.status_soon()
            if found is not None and found["settled"]:
                brokers = found["brokers"]
                if not watched or all(
                    brokers.get(name, {}).get("filters") is not None for name in self.names
                ):
                    return found
            await asyncio.sleep(0.1)
        shown = found and {key: found[key] for key in ("opening", "waiting", "draining", "problems")}
        raise AssertionError(f"no rest in {seconds:g} s: {shown}")

    def counts(self, status: Mapping[str, Any]) -> Counter[str]:
        """The counts of all hops, of a status."""
        found: Counter[str] = Counter()
        for broker in status["brokers"].values():
            for hop in (broker.get("hops") or {}).values():
                found.update(hop["counts"])
        return found

    def tracebacks(self) -> list[str]:
        """The logs of agents and controllers that have a traceback."""
        return [
            path.name for path in self.folder.glob("*.log") if "Traceback" in path.read_text(errors="replace")
        ]


def matches(text: str, topic: str) -> bool:
    """Whether a topic matches a filter with `+` and `#`."""
    levels, names = text.split("/"), topic.split("/")
    for index, level in enumerate(levels):
        if level == "#":
            return True
        if index >= len(names) or level not in ("+", names[index]):
            return False
    return len(levels) == len(names)


class Sent(NamedTuple):
    """A published message."""

    broker: str
    topic: str
    at: float
    lane: tuple[int, int]  # the kind of client, and the QoS


class Stream:
    """Messages of one publishing broker and topic that a client is owed."""

    __slots__ = ("first", "lanes", "since")

    def __init__(self, since: int) -> None:
        self.since = since  # messages before this number do not count
        self.first: int | None = None  # the first that has arrived
        self.lanes: dict[tuple[int, int], int] = {}  # the first of each lane


class LiveLoad(SessionHandler):
    """Clients that publish and subscribe at all brokers.

    Clients publish at any broker on any topic that somebody wants.

    Args:
        ports: the port of each broker.
        topics: all topics.
        seed: of the choices.

    Attributes:
        sent: all messages, by number.
        doubled: arrivals of messages that had arrived already.
        unsure: messages that a broker had not acknowledged when its connection was lost.
        latencies: seconds from publishing to arrival at another broker.
        origins: the brokers of these messages.
        is_equal: whether all messages from now on have the same payload; then only their numbers count.
    """

    def __init__(self, ports: Mapping[str, int], topics: Iterable[str], seed: int = 0) -> None:
        self.topics = list(topics)
        self.rng = random.Random(seed)
        self.clients: dict[tuple[str, int], ClientSession] = {}
        self.filters: dict[tuple[str, int], set[str]] = {}
        for broker, port in ports.items():
            for kind in range(KINDS):
                key = (broker, kind)
                self.clients[key] = ClientSession(
                    broker, f"load-{broker}-{kind}", Endpoint(HOST, port), self, fresh=True
                )
                self.filters[key] = set()
        self._keys = {session: key for key, session in self.clients.items()}
        self.sent: list[Sent] = []
        self.unsure: set[int] = set()
        self.doubled: list[tuple[tuple[str, int], int]] = []
        self.latencies: list[float] = []
        self.origins: list[str] = []
        self.is_equal = False
        self.equal_sent: Counter[tuple[tuple[str, int], str]] = Counter()
        self.equal_got: Counter[tuple[tuple[str, int], str]] = Counter()
        self.payload = b""
        self.quality = 0  # 0: alternate between QoS 1 and 2
        self.with_ids = False
        self.paused: set[str] = set()  # brokers at which nothing is published
        self._got: dict[tuple[str, int], set[int]] = defaultdict(set)
        self._newest: dict[tuple[tuple[str, int], str, str, tuple[int, int]], int] = {}
        self._streams: dict[tuple[tuple[str, int], str, str], Stream] = {}
        self._numbers: dict[tuple[str, str], list[int]] = defaultdict(list)
        self._since: dict[tuple[tuple[str, int], str], int] = {}  # client, topic: when it subscribed
        self._ended: dict[tuple[str, int], int] = {}  # client: when it last unsubscribed
        self._flight: dict[str, dict[int, int]] = defaultdict(dict)  # broker: packet id -> number
        self._task: asyncio.Task[None] | None = None
        self.arrivals: Counter[str] = Counter()

    async def start(self) -> None:
        """Connect."""
        for client in self.clients.values():
            client.start()
        for client in self.clients.values():
            await client.up.wait()

    async def stop(self) -> None:
        """Disconnect, and have brokers delete the sessions."""
        await self.pause()
        await asyncio.gather(*(client.stop(forget=True) for client in self.clients.values()))

    # Subscriptions.

    def wanted(self, broker: str) -> set[str]:
        """The topics that clients of a broker subscribe to."""
        filters = [text for kind in range(KINDS) for text in self.filters[broker, kind]]
        return {topic for topic in self.topics if any(matches(text, topic) for text in filters)}

    def all_wanted(self) -> list[str]:
        """The topics that any client subscribes to."""
        filters = {text for texts in self.filters.values() for text in texts}
        return [topic for topic in self.topics if any(matches(text, topic) for text in filters)]

    async def subscribe(self, broker: str, kind: int, text: str) -> None:
        """One more filter of a client; messages are owed from the first that arrives on."""
        key = (broker, kind)
        self.filters[key].add(text)
        await self._request(key, text, True)
        for topic in self.topics:
            if matches(text, topic):
                self._since[key, topic] = len(self.sent)

    async def unsubscribe(self, broker: str, kind: int, text: str) -> None:
        """One filter less."""
        key = (broker, kind)
        self.filters[key].discard(text)
        for stream in [item for item in self._streams if item[0] == key and matches(text, item[2])]:
            del self._streams[stream]
        self._ended[key] = sys.maxsize  # until the broker has confirmed it, messages can arrive
        await self._request(key, text, False)
        self._ended[key] = len(self.sent)

    async def _request(self, key: tuple[str, int], text: str, wanted: bool) -> None:
        while True:
            session = self.clients[key]
            await session.up.wait()
            try:
                if wanted:
                    await session.subscribe([text], retained=False)
                else:
                    await session.unsubscribe([text])
                return
            except ConnectionError:
                await asyncio.sleep(0.1)

    # Messages.

    def run(self, rate: float) -> None:
        """Publish at a rate per second, at random brokers."""
        self._task = asyncio.create_task(self._publish_at(rate))

    async def pause(self) -> None:
        """Publish no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _publish_at(self, rate: float) -> None:
        began, done = time.monotonic(), 0
        while True:
            behind = int((time.monotonic() - began) * rate) - done
            for _ in range(min(behind, 50)):
                broker, kind = self.rng.choice(list(self.clients))
                wanted = self.all_wanted()
                if wanted and broker not in self.paused:
                    self.publish(broker, self.rng.choice(wanted), kind)
            done += behind
            await asyncio.sleep(0.005)

    def publish(self, broker: str, topic: str, kind: int = 0) -> bool:
        """Publish one message, if the broker takes it now."""
        session = self.clients[broker, kind]
        flight = self._flight[session.client]
        if not session.up.is_set() or len(flight) >= IN_FLIGHT:
            return False
        self.equal_sent[(broker, kind), topic] += self.is_equal
        number = len(self.sent)
        quality = self.quality or 1 + number % 2
        self.sent.append(Sent(broker, topic, time.monotonic(), (kind, quality)))
        self._numbers[broker, topic].append(number)
        text = EQUAL if self.is_equal else b"%d" % number
        properties = [(b"message-id", b"load-" + text)] if self.with_ids else ()
        packet_id = session._next_id()
        while packet_id in flight:
            packet_id = session._next_id()
        flight[packet_id] = number
        packet = publish(topic, text + b" " + self.payload if self.payload else text, packet_id, properties)
        session.send(packet if quality == 1 else b"%c%b" % (packet[0] & ~6 | 4, packet[1:]))
        return True

    # Callbacks of sessions.

    async def opened(self, session: ClientSession, connack: Connack) -> None:
        """What was not acknowledged can have arrived or not; a lost session subscribes again."""
        flight = self._flight[session.client]
        self.unsure.update(flight.values())
        flight.clear()
        key = self._keys[session]
        if not connack.present and self.filters[key]:
            self.arrivals["sessions lost"] += 1
            for item in [item for item in self._streams if item[0] == key]:
                del self._streams[item]
            await session.subscribe(sorted(self.filters[key]), retained=False)

    def arrived(self, session: ClientSession, message: Publish) -> None:
        """Count a message, and acknowledge it."""
        if message.number:
            session.send(acknowledgement(PUBACK, message.number))
        key = self._keys[session]
        if message.payload() == EQUAL:
            self.equal_got[key, message.topic] += 1
            return
        number = int(message.payload().split(b" ", 1)[0])
        if number in self._got[key]:
            if message.dup:  # the acknowledgement of this client was lost with its connection
                self.arrivals["repeated"] += 1
            else:
                self.doubled.append((key, number))
            return
        self._got[key].add(number)
        broker, topic, at, lane = self.sent[number]
        self.arrivals["all"] += 1
        if broker == key[0]:
            return
        newest = self._newest.get((key, broker, topic, lane), -1)
        self.arrivals["reordered"] += number < newest
        self._newest[key, broker, topic, lane] = max(number, newest)
        self.latencies.append(time.monotonic() - at)
        self.origins.append(broker)
        filters = self.filters[key]
        if topic not in filters and not any(matches(text, topic) for text in filters):
            self.arrivals["leaked"] += number >= self._ended.get(key, 0)
            return
        stream = self._streams.get((key, broker, topic))
        if stream is None:
            stream = self._streams[key, broker, topic] = Stream(self._since.get((key, topic), 0))
        if number >= stream.since:
            stream.first = min(number, stream.first if stream.first is not None else number)
            stream.lanes[lane] = min(number, stream.lanes.get(lane, number))

    def acknowledged(self, session: ClientSession, kind: int, number: int, reason: int) -> None:
        """A broker has accepted a message."""
        if kind == PUBREC and reason < FAILED:
            session.send(acknowledgement(PUBREL, number))
        else:
            assert kind in (PUBACK, PUBCOMP), f"{kind:#x} for {number}: {reason:#x}"
            self._flight[session.client].pop(number, None)

    # Counts.

    def missing(self) -> list[tuple[tuple[str, int], int]]:
        """The clients and messages that are owed and have not arrived."""
        return [(key, number) for key, number, first in self._gaps() if first is not None and number > first]

    def overtaken(self) -> list[tuple[tuple[str, int], int]]:
        """Messages that have not arrived, and of whose lane none before them has, but of another lane."""
        return [(key, number) for key, number, first in self._gaps() if first is None or number < first]

    def _gaps(self) -> Iterator[tuple[tuple[str, int], int, int | None]]:
        for (key, broker, topic), stream in self._streams.items():
            if stream.first is None:
                continue
            got = self._got[key]
            for number in reversed(self._numbers[broker, topic]):
                if number <= stream.first:
                    break
                if number not in got and number not in self.unsure:
                    yield key, number, stream.lanes.get(self.sent[number].lane)

    def unreached(self) -> list[tuple[tuple[str, int], str, str]]:
        """Client, broker and topic of which nothing has arrived although something was published."""
        found = []
        for key, filters in self.filters.items():
            for (broker, topic), numbers in self._numbers.items():
                if broker == key[0]:
                    continue
                stream = self._streams.get((key, broker, topic))
                recent = [number for number in numbers if number >= self._since.get((key, topic), 0)]
                if (
                    recent
                    and any(matches(text, topic) for text in filters)
                    and (stream is None or stream.first is None)
                ):
                    found.append((key, broker, topic))
        return found

    def counts(self) -> dict[str, int]:
        """Counts of published, arrived, lost and doubled messages."""
        return {
            "published": len(self.sent),
            "arrived": self.arrivals["all"],
            "lost": len(self.missing()),
            "overtaken": len(self.overtaken()),
            "doubled": len(self.doubled),
            "leaked": self.arrivals["leaked"],  # to clients that did not subscribe to their topics
            "reordered": self.arrivals["reordered"],  # behind later ones of their lane
        }

    async def recovery(self, seconds: float = WAIT_SECONDS) -> float:
        """Publish on all topics at all brokers; seconds until each client has a new message of each."""
        began, first = time.monotonic(), len(self.sent)
        left = {
            (key, broker, topic)
            for key in self.filters
            for broker in {broker for broker, _ in self.clients} - {key[0]}
            for topic in self.topics
            if self._wants(key, broker, topic)
        }
        while left:
            for broker, topic in sorted({item[1:] for item in left}):
                self.publish(broker, topic)
                await asyncio.sleep(0.002)
            pause = time.monotonic() + 0.5
            while left and time.monotonic() < pause:
                await asyncio.sleep(0.005)
                left = {item for item in left if self._wants(*item) and not self._has_new(*item, first)}
            assert time.monotonic() < began + seconds, f"{len(left)} have nothing new, as {sorted(left)[:3]}"
        return time.monotonic() - began

    def _wants(self, key: tuple[str, int], _: str, topic: str) -> bool:
        return any(matches(text, topic) for text in self.filters[key])

    def _has_new(self, key: tuple[str, int], broker: str, topic: str, first: int) -> bool:
        recent = itertools.takewhile(lambda number: number >= first, reversed(self._numbers[broker, topic]))
        return any(number in self._got[key] for number in recent)

    async def settle(self, seconds: float = WAIT_SECONDS, quiet: float = 1.0) -> dict[str, int]:
        """Wait until nothing is missing, and a little for duplicates; returns the counts."""
        end = time.monotonic() + seconds
        while self.missing() and time.monotonic() < end:
            await asyncio.sleep(0.2)
        await asyncio.sleep(quiet)
        return self.counts()

    def equal_counts(self, kinds: Iterable[int]) -> dict[str, int]:
        """Counts of equal messages, at clients that did not change their filters.

        A client does not get its own messages: all subscriptions here are no-local.
        """
        counts = Counter(published=sum(self.equal_sent.values()), arrived=0, lost=0, doubled=0)
        for (broker, kind), filters in self.filters.items():
            for topic in self.topics:
                if kind in kinds and any(matches(text, topic) for text in filters):
                    key = (broker, kind)
                    others = (self.equal_sent[other, topic] for other in self.clients if other != key)
                    got = self.equal_got[key, topic]
                    missing = sum(others) - got
                    counts.update(arrived=got, lost=max(0, missing), doubled=max(0, -missing))
        return dict(counts)

    async def settle_equal(self, kinds: Iterable[int], seconds: float = WAIT_SECONDS) -> dict[str, int]:
        """Wait until no equal message is missing, and a little for duplicates; returns the counts."""
        end = time.monotonic() + seconds
        while self.equal_counts(kinds)["lost"] and time.monotonic() < end:
            await asyncio.sleep(0.2)
        await asyncio.sleep(2.0)
        return self.equal_counts(kinds)

    async def reach_all(self, seconds: float = WAIT_SECONDS) -> None:
        """Publish on all topics at all their brokers until each client has something of each."""
        end = time.monotonic() + seconds
        while True:
            for broker in {broker for broker, _ in self.clients}:
                for topic in self.all_wanted():
                    self.publish(broker, topic)
                    await asyncio.sleep(0.002)
            await asyncio.sleep(0.2)
            left = self.unreached()
            if not left:
                return
            assert time.monotonic() < end, f"{len(left)} streams without a message, as {left[:3]}"


class Churn:
    """Random changes of what clients subscribe to.

    Args:
        load: the clients.
        seed: of the choices.
    """

    def __init__(self, load: LiveLoad, groups: int, items: int, seed: int = 0) -> None:
        self._load = load
        self._rng = random.Random(seed)
        exact = [f"t/{group}/{item}" for group in range(groups) for item in range(items)]
        self.choices = {
            0: exact,
            1: [f"t/{group}/+" for group in range(groups)],
            2: [f"t/+/{item}" for item in range(items)],
        }
        self.changes = 0
        self.stopped = False
        self.kinds = (0, 1, 2)  # of clients that change their filters

    async def fill(self, share: float = 0.5) -> None:
        """Begin with some subscriptions at all brokers."""
        for broker, kind in self._load.clients:
            for text in self.choices[kind]:
                if self._rng.random() < (share if kind == 0 else 0.15):
                    await self._load.subscribe(broker, kind, text)

    async def change(self) -> None:
        """Subscribe or unsubscribe one filter at one broker."""
        if self.stopped:
            return
        broker, kind = self._rng.choice([key for key in self._load.clients if key[1] in self.kinds])
        have = self._load.filters[broker, kind]
        others = [text for text in self.choices[kind] if text not in have]
        leaves = len(have) > (2 if kind == 0 else 0) and (not others or self._rng.random() < 0.5)
        self.changes += 1
        if leaves:
            await self._load.unsubscribe(broker, kind, self._rng.choice(sorted(have)))
        elif others:
            await self._load.subscribe(broker, kind, self._rng.choice(others))

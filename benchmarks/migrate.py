"""Benchmark of moves: ordinary clients behind HAProxy, kills, clients that take part, and the closed loop.

    python benchmarks/migrate.py --only ordinary,irregular,tls,kills,moving,loop

It needs mosquitto, its clients, haproxy, and openssl.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho

from _common import Section, run
from broadloom.agents.moves import MoveRefusedError, MoveState, MovingClient
from broadloom.agents.moves.control_codes import ClientKeys
from broadloom.agents.moves.move_registry import LEAVING
from broadloom.deployment.rehearsal.mosquitto_lab import HOST, killed_with_parent
from broadloom.model import read_market_problem
from broadloom.mqtt.paho import close_sockets
from broadloom.plans import MarketResult
from broadloom.storage.tables import require_table

HERE = Path(__file__).parent
for folder in ("tests", "tests/agents/moves"):
    sys.path.insert(0, str(HERE.parent / folder))

from moving import (  # noqa: E402
    QUICK,
    TrafficCounter,
    addresses,
    all_moves_over,
    client_addresses,
    linked_brokers,
    payload_id,
    running_agent,
)
from ordinary import RoutedBrokers, Subscriber, homes, wait_for, write_ordinary_config  # noqa: E402

from certificates import authority  # noqa: E402

BROKERS = ("a", "b", "c")
TOPICS = 20
SECONDS = 300.0  # the longest wait
MOVER = HERE.parent / "tests" / "agents" / "moves" / "killed_mover.py"
CLIENT_FILE = "paho.out"
ENDED = {str(state) for state in MoveState if str(state) in ("redirected", "failed", "declined", "cancelled")}


class NumberedLoad:
    """Publishers of numbered messages at QoS 1, one per broker; they are not moved.

    Args:
        ports: the brokers' ports.
        per_second: messages per second.
        irregular: whether messages come at random moments (a Poisson process) on random topics.

    Attributes:
        sent: the payloads of each topic.
    """

    def __init__(self, ports: Sequence[int], per_second: float, irregular: bool = False) -> None:
        self._random = random.Random(0) if irregular else None
        self.sent: dict[str, list[str]] = {f"t/{number}": [] for number in range(TOPICS)}
        self._pause = 1 / per_second
        self._publishing = threading.Lock()
        self._over = threading.Event()
        self._clients = []
        for number, port in enumerate(ports):
            client = paho.Client(
                paho.CallbackAPIVersion.VERSION2,
                f"load-{number}",
                protocol=paho.MQTTv311,
                clean_session=False,
            )
            client.reconnect_delay_set(1, 1)
            client.max_queued_messages_set(0)
            client.connect(HOST, port)
            client.loop_start()
            self._clients.append(client)
        self._thread = threading.Thread(target=self._publish, daemon=True)
        self._thread.start()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Publish nothing during the block."""
        with self._publishing:
            yield

    def stop(self) -> None:
        """Stop publishing, and wait until brokers have all messages."""
        self._over.set()
        self._thread.join()
        self.wait_until_confirmed()
        for client in self._clients:
            client.disconnect()
            client.loop_stop()
            close_sockets(client)

    def wait_until_confirmed(self) -> None:
        """Wait until brokers have acknowledged all messages."""
        assert wait_for(lambda: all(not client._out_messages for client in self._clients))

    def _next_pause(self) -> float:
        return self._pause if self._random is None else self._random.expovariate(1 / self._pause)

    def _publish(self) -> None:
        number = 0
        while not self._over.wait(self._next_pause()):
            with self._publishing:
                topic = f"t/{number % TOPICS if self._random is None else self._random.randrange(TOPICS)}"
                payload = f"{topic}={len(self.sent[topic])}"
                self.sent[topic].append(payload)
                self._clients[number % len(self._clients)].publish(topic, payload, 1)
                number += 1


class OrdinaryClients:
    """`mosquitto_sub` and paho clients of MQTT 3.1.1 and 5, with persistent sessions at QoS 1.

    Args:
        folder: the folder of their files.
        port: the router's port.
        programs: the number of `mosquitto_sub` processes.
        threads: the number of paho clients.
        ca: the file of trusted certificates; None: plain text.
    """

    def __init__(self, folder: Path, port: int, programs: int, threads: int, ca: Path | None = None) -> None:
        self.topic_of: dict[str, str] = {}
        self._programs = []
        versions = ("mqttv311", "5")
        for number in range(programs):
            topic = f"t/{number % TOPICS}"
            name = f"c-sub-{number}"
            self.topic_of[name] = topic
            version = versions[number // 2 % 2]
            options = () if ca is None else ("--cafile", str(ca))
            self._programs.append(Subscriber(folder, name, port, version, topic, options))
        self._file = folder / CLIENT_FILE
        self._file.touch()
        names = []
        for number in range(threads):
            topic = f"t/{number % TOPICS}"
            name = f"c-paho-{number}"
            self.topic_of[name] = topic
            names.append(f"{name}:{(4, 5)[number // 2 % 2]}:{topic}")
        command = [sys.executable, HERE / "_paho_clients.py", HOST, str(port), str(self._file), *names]
        environment = os.environ | ({} if ca is None else {"CA": str(ca)})
        self._paho = subprocess.Popen([*killed_with_parent(), *command], env=environment) if names else None
        for one in self._programs:
            one.start()

    def got(self) -> dict[str, Counter[str]]:
        """The payloads that each client has received."""
        found = {name: Counter[str]() for name in self.topic_of}
        for one in self._programs:
            found[one.name] = one.got()
        for line in self._file.read_text().splitlines():
            name, _, payload = line.partition(" ")
            found[name][payload] += 1
        return found

    def counts(self, load: NumberedLoad) -> tuple[int, int, int]:
        """The numbers of deliveries, of lost messages and of doubled ones."""
        due = lost = doubled = 0
        for name, got in self.got().items():
            sent = load.sent[self.topic_of[name]]
            due += len(sent)
            lost += sum(payload not in got for payload in sent)
            doubled += sum(count - 1 for count in got.values())
        return due, lost, doubled

    def stop(self) -> None:
        """End all clients."""
        for one in self._programs:
            one.stop()
        if self._paho is not None:
            self._paho.kill()
            self._paho.wait()


class MoverProcess:
    """The agent that moves clients, as a process."""

    def __init__(self, config: Path, state: str = "never", moment: str = "after") -> None:
        command = [sys.executable, MOVER, str(config), state, moment]
        log = config.with_suffix(".log").open("ab")
        self._process = subprocess.Popen([*killed_with_parent(), *command], stdout=log, stderr=log)
        log.close()

    def wait(self) -> None:
        """Wait until it has killed itself."""
        self._process.wait(SECONDS)

    def kill(self) -> None:
        """Kill it."""
        self._process.kill()
        self._process.wait()


class MovingSystem:
    """Three brokers behind HAProxy, ordinary clients, load, and an agent that moves them."""

    def __init__(
        self,
        programs: int,
        threads: int,
        per_second: float,
        timing: tuple[float, float],
        tls: bool = False,
        irregular: bool = False,
    ) -> None:
        self.stack = ExitStack()
        self.at_kill: Counter[str] = Counter()  # states of moves when a broker or HAProxy was killed
        self.folder = Path(self.stack.enter_context(tempfile.TemporaryDirectory(prefix="broadloom-moves-")))
        certificates = authority(self.folder / "tls") if tls else None
        self.system = self.stack.enter_context(RoutedBrokers(self.folder, BROKERS, certificates=certificates))
        policy = 'at_once = 40\n[[rules]]\nclients = ["c-*"]\n'
        self.config, self.operator = write_ordinary_config(self.folder, self.system, policy, *timing)
        ca = None if certificates is None else certificates / "ca.crt"
        self.clients = OrdinaryClients(self.folder, self.system.port, programs, threads, ca)
        self.stack.callback(self.clients.stop)
        count = programs + threads
        assert wait_for(lambda: self._connected() == count, SECONDS), "the clients do not connect"
        self.load = NumberedLoad(list(self.system.lab.ports.values()), per_second, irregular)

    def _connected(self) -> int:
        saved = self.system.lab._folder_of("a") / "log.0"
        return sum("connected from" in line and " as c-" in line for line in saved.read_text().splitlines())

    def homeless(self, clients: Iterable[str]) -> list[str]:
        """The clients that are connected to no broker, by the brokers' logs."""
        present = self.system.present()
        return [name for name in clients if not present.get(name)]

    def request_all(self, targets: dict[str, str]) -> None:
        """Request a move of each client to a broker."""
        for client, broker in targets.items():
            assert wait_for(lambda c=client, to=broker: self._request(c, to))

    def _request(self, client: str, broker: str) -> bool:
        """Request a move; false if the agent does not see the client yet."""
        try:
            self.operator.request_to_move(client, broker, key=f"{client}-{broker}")
        except MoveRefusedError:
            return False
        return True

    def states(self) -> Counter[str]:
        """The number of moves in each state; `leaving`: the client is being sent away."""
        moves = self.operator.moves()
        return Counter("leaving" if one["note"] == LEAVING else one["state"] for one in moves)

    def release(self) -> None:
        """Let moves go on that the mover holds in a state."""
        self.config.with_suffix(".released").touch()

    def wait_until_ended(self, targets: dict[str, str]) -> Counter[str]:
        """Wait until the last move of each client has ended; the numbers of outcomes."""

        def outcomes() -> Counter[str]:
            last = {one["client"]: one["state"] for one in self.operator.moves()}
            return Counter(last.get(client, "unknown") for client in targets)

        assert wait_for(lambda: set(outcomes()) <= ENDED, SECONDS), outcomes()
        return outcomes()

    def finish(self) -> tuple[int, int, int]:
        """Stop the load; the numbers of deliveries, of lost messages and of doubled ones."""
        self.load.stop()
        wait_for(lambda: self.clients.counts(self.load)[1] == 0, 90.0)
        return self.clients.counts(self.load)

    def __enter__(self) -> MovingSystem:
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()


def ordinary(quick: bool) -> Section:
    """200 ordinary clients move between three brokers under load, twice."""
    section = Section("Ordinary clients moved between three brokers behind HAProxy, under load")
    doubled = _waves(section, (4, 4) if quick else (80, 120))
    section.claim("messages doubled where the session was online", doubled, at_most=0)
    return section


def irregular(quick: bool) -> Section:
    """As `ordinary`, with messages at random moments: some acknowledgement is under way at any of them."""
    section = Section("Ordinary clients moved while messages come at random moments")
    doubled = _waves(section, (4, 4) if quick else (80, 120), irregular=True)
    repeated = section.notes["repeated"]
    section.claim(
        "doubled messages that the relay has not counted as repeated", doubled - repeated, at_most=0
    )
    return section


def tls(quick: bool) -> Section:
    """As `ordinary`, with TLS from clients to HAProxy, to brokers and to the relay, and from there on."""
    section = Section("Ordinary clients moved between three brokers behind HAProxy, with TLS")
    doubled = _waves(section, (4, 4) if quick else (80, 120), tls=True)
    section.claim("messages doubled with TLS", doubled, at_most=0)
    return section


def _waves(section: Section, sizes: tuple[int, int], **options: bool) -> int:
    """Move all clients twice under load; returns the number of doubled messages."""
    programs, threads = sizes
    with MovingSystem(programs, threads, 40.0, (3.0, 0.5), **options) as system:
        mover = MoverProcess(system.config)
        system.stack.callback(mover.kill)
        count = programs + threads
        assert wait_for(lambda: len(homes(system.operator)) >= count, SECONDS), system.operator.health()
        names = sorted(system.clients.topic_of)
        waves = [
            {name: "bc"[number % 2] for number, name in enumerate(names)},
            {name: "ca"[number % 2] for number, name in enumerate(names)},
        ]
        for number, targets in enumerate(waves, 1):
            began = time.monotonic()
            before = system.clients.counts(system.load)[2]
            system.request_all(targets)
            ended = system.wait_until_ended(targets)
            took = time.monotonic() - began
            time.sleep(5.0)  # clients connect by themselves
            doubled = system.clients.counts(system.load)[2] - before
            section.rows.append(
                {"wave": number, "clients": count, "moved": ended["redirected"], "seconds": round(took, 1)}
                | {"doubled": doubled}
            )
        due, lost, doubled = system.finish()
        relayed = system.operator.health()["relayed"]
        section.notes |= {"sent from home": relayed["from_home"], "left out": relayed["left_out"]}
        section.notes["repeated"] = relayed["repeated"]
        section.rows.append(
            {"wave": "both", "clients": count, "deliveries": due, "lost": lost, "doubled": doubled}
        )
    moved = sum(row.get("moved", 0) for row in section.rows)
    section.claim("moves that succeed", moved, at_least=2 * count)
    section.claim(f"messages lost by {count} ordinary clients", lost, at_most=0)
    return doubled


STATES = ("requested", "accepted", "replicated", "leaving", "connected", "redirected")


def kills(quick: bool) -> Section:
    """The mover, HAProxy and either broker are killed in each state of moves."""
    section = Section("Kills while ordinary clients move")
    scenarios: list[tuple[str, str, Callable[[MovingSystem, dict[str, str]], None]]] = []
    states = STATES[:2] if quick else STATES
    for state in states:
        moments = ("after",) if quick else ("before", "after")
        scenarios += [("mover", f"{moment} {state}", _kill_mover(state, moment)) for moment in moments]
    scenarios += [("haproxy", state, _kill_router(state)) for state in states]
    for broker, which in (("a", "home"), ("b", "foreign")):
        scenarios += [(which, state, _kill_broker(broker, state)) for state in states]
    for killed, moment, kill in scenarios:
        row = _killed(killed, moment, kill)
        section.rows.append(row)
        print(row, flush=True)
    section.claim("messages lost in all kills", sum(row["lost"] for row in section.rows), at_most=0)
    section.claim("clients at no broker", sum(row["homeless"] for row in section.rows), at_most=0)
    return section


def _killed(
    killed: str,
    moment: str,
    kill: Callable[[MovingSystem, dict[str, str]], None],
) -> dict[str, Any]:
    # Clients stay in state `connected` for the TTL, so that brokers can save their sessions meanwhile.
    timing = (30.0 if moment == "connected" else 3.0, 0.25)
    with MovingSystem(4, 4, 40.0, timing) as system:
        targets = dict.fromkeys(system.clients.topic_of, "b")
        kill(system, targets)
        ended = system.wait_until_ended(targets)
        time.sleep(4.0)  # clients connect by themselves
        due, lost, doubled = system.finish()
        wait_for(lambda: not system.homeless(targets), 10.0)
        states = ", ".join(f"{count} {state}" for state, count in sorted(system.at_kill.items()))
        row = {"killed": killed, "when": states or moment, "clients": len(targets)}
        return row | {
            "moved": ended["redirected"],
            "deliveries": due,
            "lost": lost,
            "doubled": doubled,
            "homeless": len(system.homeless(targets)),
        }


def _started(system: MovingSystem, mover: MoverProcess, targets: dict[str, str]) -> None:
    system.stack.callback(mover.kill)
    assert wait_for(lambda: len(homes(system.operator)) >= len(targets), SECONDS)


def _kill_mover(state: str, moment: str) -> Callable[[MovingSystem, dict[str, str]], None]:
    def kill(system: MovingSystem, targets: dict[str, str]) -> None:
        mover = MoverProcess(system.config, state, moment)
        _started(system, mover, targets)
        asking = threading.Thread(target=lambda: system.request_all(targets), daemon=True)
        asking.start()
        mover.wait()
        again = MoverProcess(system.config)
        system.stack.callback(again.kill)
        asking.join(SECONDS)

    return kill


def _kill_router(state: str) -> Callable[[MovingSystem, dict[str, str]], None]:
    def kill(system: MovingSystem, targets: dict[str, str]) -> None:
        _hold_moves(system, targets, state)
        system.system.kill_router()
        system.release()
        time.sleep(1.0)
        system.system.start_router()

    return kill


def _kill_broker(broker: str, state: str) -> Callable[[MovingSystem, dict[str, str]], None]:
    def kill(system: MovingSystem, targets: dict[str, str]) -> None:
        lab = system.system.lab
        _hold_moves(system, targets, state)
        with system.load.paused():  # a broker that is killed loses what it has acknowledged and not saved
            system.load.wait_until_confirmed()
            for _ in range(2):
                for name in BROKERS:
                    lab.wait_until_saved(name)
            system.at_kill = system.states()
            lab.stop(broker, kill=True)
            system.release()
            time.sleep(1.0)
            lab.start(broker)
            assert lab.wait_until_listening([broker])

    return kill


def _hold_moves(system: MovingSystem, targets: dict[str, str], state: str) -> None:
    """Request moves, and wait until each has reached a state, where it stays; `connected` lasts the TTL."""
    mover = MoverProcess(system.config, state, "hold")
    _started(system, mover, targets)
    system.request_all(targets)
    assert wait_for(lambda: system.states()[state] == len(targets), SECONDS), system.states()
    system.at_kill = system.states()


def moving(quick: bool) -> Section:
    """20 clients that take part (`MovingClient`), moved between three brokers under load."""
    section = Section("Clients that take part, moved between three brokers under load")
    count = 4 if quick else 20
    keys = ClientKeys("a key of a benchmark, not a secret")
    traffic = TrafficCounter()
    over = threading.Event()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="broadloom-moves-")))
        brokers = stack.enter_context(linked_brokers("abc"))
        known = client_addresses(brokers)
        agent = stack.enter_context(running_agent(addresses(brokers), folder / "journal", QUICK, keys=keys))
        wants = {}
        for number in range(count):
            name = f"m{number}"
            wants[name] = {f"t/{number % 5}"}
            client = MovingClient(
                name, known, "a", traffic.callback(name), identify=payload_id, key=keys.of(name), plain=True
            )
            client.subscribe(*wants[name])
            stack.enter_context(client)
        writer = stack.enter_context(MovingClient("writer", known, "a", key=keys.of("writer"), plain=True))
        assert wait_for(lambda: len(agent.registry.residents) == count + 1)

        def publish() -> None:
            number = 0
            while not over.wait(0.02):
                traffic.send(writer, f"t/{number % 5}")
                number += 1

        thread = threading.Thread(target=publish, daemon=True)
        thread.start()
        began = time.monotonic()
        for wave, targets in enumerate(("bc", "ca"), 1):
            for number in range(count):
                agent.ask(lambda own, n=number, to=targets[number % 2]: own.request_to_move(f"m{n}", to))
            assert wait_for(lambda: all_moves_over(agent), SECONDS)
            states = Counter(one.state for one in agent.registry.moves.values())
            took = time.monotonic() - began
            section.rows.append(
                {"wave": wave, "clients": count, "moves so far": states[MoveState.REDIRECTED]}
            )
            section.rows[-1]["seconds"] = round(took, 1)
        over.set()
        thread.join()
        assert writer.wait_until_confirmed(60.0)
        wait_for(lambda: traffic.counts(wants)[1] == 0, 60.0)
        due, lost, doubled = traffic.counts(wants)
        totals = {"wave": "both", "clients": count, "deliveries": due, "lost": lost, "doubled": doubled}
        section.rows.append(totals)
        section.claim("moves of clients that take part", states[MoveState.REDIRECTED], at_least=2 * count)
        section.claim("messages lost by clients that take part", lost, at_most=0)
        section.claim("messages doubled at clients that take part", doubled, at_most=0)
    return section


PLACES = {"a": (0, 0), "b": (10, 0), "c": (0, 10)}


def loop(quick: bool) -> Section:
    """Summarize, market, plan and run on a running fleet of ordinary clients; then the cost is measured."""
    section = Section("The closed loop on a running fleet of ordinary clients")
    per_site = 2 if quick else 10
    seconds = 5 if quick else 20
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="broadloom-moves-")))
        system = stack.enter_context(RoutedBrokers(folder, BROKERS))
        rules = "".join(
            f'[[rules]]\nclients = ["c-{name}-*"]\nplace = [{x + 1}, {y + 2}]\n'
            for name, (x, y) in PLACES.items()
        )
        config, operator = write_ordinary_config(folder, system, f"at_once = 40\n{rules}", 2.0, 0.5)
        text = config.read_text()
        for name, (x, y) in PLACES.items():
            saved = system.lab._folder_of(name) / "mosquitto.db"
            text = text.replace(f'"{saved}"', f'["{saved}", "{saved.with_name("log.0")}"]')
            text = text.replace(f"[brokers.{name}]", f"[brokers.{name}]\nplace = [{x}, {y}]\ncapacity = 1e9")
        config.write_text(text)
        mover = MoverProcess(config)
        stack.callback(mover.kill)
        assert wait_for(lambda: operator.health()["clients"] == 0, SECONDS)
        # Every third client talks on the topic of the next site.
        names = [
            f"c-{site}-{number}:t/{BROKERS[(index + (number % 3 == 0)) % 3]}"
            for index, site in enumerate(BROKERS)
            for number in range(per_site)
        ]
        command = [sys.executable, HERE / "_talking_clients.py", HOST, str(system.port), "0.5", "200", *names]
        talking = subprocess.Popen([*killed_with_parent(), *command])
        stack.callback(talking.kill)
        assert wait_for(lambda: len(homes(operator)) == len(names), SECONDS), operator.health()
        agent = f"http://{operator._host}:{operator._port}"

        def cli(*arguments: object) -> dict[str, Any]:
            command = [sys.executable, "-m", "broadloom.cli", *map(str, arguments), "--json"]
            environment = os.environ | {"BROADLOOM_TOKEN": "token"}
            done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
            assert done.returncode == 0, done.stderr + done.stdout
            return json.loads(done.stdout)

        def summarized(name: str) -> float:
            cli("migrate", "summarize", "--agent", agent, "--seconds", seconds, "-o", folder / name)
            problem = read_market_problem(folder / name)
            table = require_table(folder / name, "assignment").to_pydict()
            home = dict(zip(table["user"], table["broker"], strict=True))
            index = {broker: number for number, broker in enumerate(problem.broker_ids)}
            return MarketResult(problem, [index[home[user]] for user in problem.user_ids], "mst").cost

        before = summarized("live")
        cli("market", folder / "live", "-o", folder / "planned")
        planned = cli(
            "migrate", "plan", folder / "live", folder / "planned", "-o", folder / "moves", "--at-once", 40
        )
        ran = cli("migrate", "run", folder / "moves", "--agent", agent)
        after = summarized("after")
        section.rows.append(
            {
                "clients": len(names),
                "moves": ran["moves"],
                "moved": ran["moved"],
                "cost before, measured": before,
                "cost after, planned": planned["cost_after"],
                "cost after, measured": after,
                "difference %": round(100 * abs(after - planned["cost_after"]) / planned["cost_after"], 1),
            }
        )
        section.claim(
            "difference of measured and planned cost in %", section.rows[0]["difference %"], at_most=10
        )
        section.claim("share of the cost that is left", after / before, at_most=1.0)
    return section


SECTIONS = {
    "ordinary": ordinary,
    "irregular": irregular,
    "tls": tls,
    "kills": kills,
    "moving": moving,
    "loop": loop,
}

if __name__ == "__main__":
    os.environ["PATH"] += os.pathsep + "/usr/sbin"
    signal.signal(signal.SIGINT, signal.default_int_handler)
    run("migrate", SECTIONS)

"""Laboratory of real RabbitMQ nodes on loopback, federated as exported."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from broadloom.deployment.broker_api import request
from broadloom.deployment.deployment_inputs import Settings, safe_name
from broadloom.deployment.rehearsal.mosquitto_lab import (
    HOST,
    BrokerLab,
    free_ports,
    killed_with_parent,
    listens,
    log_end,
)
from broadloom.deployment.targets import rabbitmq_federation
from broadloom.deployment.wiring import Hop, Wiring
from broadloom.errors import InputError, MissingExtraError, UnreachableError
from broadloom.mqtt.paho import need_paho
from broadloom.progress import stage

# Not the wrapper on PATH, which changes to another user.
SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
START_SECONDS = 240.0
LINK_SECONDS = 60.0
STATISTICS_SECONDS = 20.0
LOGIN = ("guest", "guest")  # the default login of a new node, on loopback only
MOST_NODES = 8  # each takes about 140 MiB and ten seconds of CPU to start

_PLUGINS = "[rabbitmq_management,rabbitmq_mqtt,rabbitmq_federation].\n"
_CONFIG = """\
cluster_name = {name}
listeners.tcp.1 = {host}:{amqp}
management.tcp.ip = {host}
management.tcp.port = {api}
mqtt.listeners.tcp.1 = {host}:{mqtt}
mqtt.allow_anonymous = true
collect_statistics_interval = 1000
"""


class RabbitLab(BrokerLab):
    """One RabbitMQ node per broker of a wiring.

    Attributes:
        wiring: the links between the nodes.
        ports: the MQTT port of each node.
    """

    def __init__(self, wiring: Wiring) -> None:
        need_paho()  # before any node starts
        if not SERVER.exists() or shutil.which("epmd") is None:
            raise MissingExtraError(
                f"{SERVER} or epmd is not installed (a rehearsal runs them); "
                "run: apt-get install rabbitmq-server"
            )
        if len(wiring.brokers) > MOST_NODES:
            raise InputError(
                f"the plan has {len(wiring.brokers)} brokers; rehearse at most {MOST_NODES} on RabbitMQ"
            )
        self.wiring = wiring
        ports = free_ports(4 * len(wiring.brokers) + 1)
        self._epmd_port = ports.pop()
        kinds = zip(*[iter(ports)] * 4, strict=True)
        self._ports = dict(zip(wiring.brokers, kinds, strict=True))  # AMQP, API, MQTT, Erlang
        self.ports = {broker: mqtt for broker, (_, _, mqtt, _) in self._ports.items()}
        self._processes: list[subprocess.Popen[bytes]] = []

    def _begin(self) -> None:
        self._run(["epmd", "-port", str(self._epmd_port), "-address", HOST], {})
        for number, broker in enumerate(self.wiring.brokers):
            self._start(broker, f"broadloom{number}@localhost")
        with stage("start RabbitMQ"):
            _wait(lambda: all(map(self._is_up, self.wiring.brokers)), START_SECONDS, "nodes are up")

    def call(self, broker: str, method: str, path: str, body: object = None) -> Any:
        """Call the HTTP API of a node."""
        url = f"http://{HOST}:{self._ports[broker][1]}{path}"
        text, _ = request(url, method, body, LOGIN)
        return json.loads(text) if text else None

    def calls(self, wiring: Wiring) -> rabbitmq_federation.CallsAt:
        """The calls that make the links of a wiring, per node."""
        return {
            broker: rabbitmq_federation.calls(wiring, broker, self.settings()) for broker in wiring.brokers
        }

    def apply(self, calls: Mapping[str, Iterable[rabbitmq_federation.Call]]) -> None:
        """Make calls at nodes."""
        for broker, listed in calls.items():
            for call in listed:
                self.call(broker, call["method"], call["path"], call.get("body"))

    def settings(self) -> Settings:
        """The addresses of the nodes."""
        addresses = {broker: f"{HOST}:{amqp}" for broker, (amqp, _, _, _) in self._ports.items()}
        return Settings(addresses=addresses, tls=False)

    def wait_until_linked(self, wiring: Wiring) -> None:
        """Wait until every upstream hands messages to its downstream."""
        code = rabbitmq_federation.version(wiring, self.settings())
        carried = [(hop, link) for link in wiring.links for hop, texts in link.carried() if texts]

        def linked() -> bool:
            for (start, _), link in carried:
                name = quote(rabbitmq_federation.exchange(link, code), safe="")
                bound = self.call(start, "GET", f"/api/exchanges/%2F/{name}/bindings/source")
                if not any(one["destination"].startswith("federation: ") for one in bound):
                    return False
            return True

        _wait(linked, LINK_SECONDS, "links are up")

    def on_links(self, wiring: Wiring) -> Counter[Hop]:
        """The number of messages on each hop."""
        crossed: Counter[Hop] = Counter()
        code = rabbitmq_federation.version(wiring, self.settings())
        names = {
            f"federation: {rabbitmq_federation.exchange(link, code)} -> {_cluster(end)}": (start, end)
            for link in wiring.links
            for (start, end), _ in link.carried()
        }
        for broker in wiring.brokers:
            for queue in self.call(broker, "GET", "/api/queues"):
                if queue["name"] in names:
                    crossed[names[queue["name"]]] += queue.get("message_stats", {}).get("deliver_get", 0)
        return crossed

    def _start(self, broker: str, node: str) -> None:
        amqp, api, mqtt, erlang = self._ports[broker]
        folder = self._folder / safe_name(broker)
        folder.mkdir()
        (folder / "plugins").write_text(_PLUGINS)
        config = _CONFIG.format(name=_cluster(broker), host=HOST, amqp=amqp, api=api, mqtt=mqtt)
        (folder / "rabbitmq.conf").write_text(config)
        paths = {"MNESIA_BASE": "db", "LOG_BASE": "log", "ENABLED_PLUGINS_FILE": "plugins"}
        variables = {f"RABBITMQ_{name}": str(folder / path) for name, path in paths.items()}
        variables |= {"RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"), "RABBITMQ_NODENAME": node}
        variables |= {"RABBITMQ_DIST_PORT": str(erlang), "RABBITMQ_CONF_ENV_FILE": os.devnull}
        self._run([str(SERVER)], variables)

    def _run(self, command: list[str], variables: Mapping[str, str]) -> None:
        common = {"HOME": str(self._folder), "ERL_EPMD_PORT": str(self._epmd_port)}
        with (self._folder / "output").open("ab") as output:
            process = subprocess.Popen(  # noqa: S603
                [*killed_with_parent(), *command],
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                env={**os.environ, **common, **variables},
                start_new_session=True,
            )
        self._processes.append(process)

    def _is_up(self, broker: str) -> bool:
        if any(process.poll() is not None for process in self._processes):
            raise UnreachableError(f"a node ended; the end of its log: {log_end(self._folder / 'output')}")
        try:
            self.call(broker, "GET", "/api/overview")
        except UnreachableError:
            return False
        return listens(self.ports[broker])

    def _end(self) -> None:
        for process in reversed(self._processes):
            _stop_group(process)


def _stop_group(process: subprocess.Popen[bytes]) -> None:
    """Stop a process and its children: a node is a child of a shell."""
    if sys.platform == "win32":
        process.kill()
        return
    for kind in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, kind)
            process.wait(10)
            return
        except subprocess.TimeoutExpired:
            continue
        except ProcessLookupError:
            return


def _cluster(broker: str) -> str:
    return f"broadloom-{safe_name(broker)}"


def _wait(done: Callable[[], bool], seconds: float, condition: str) -> None:
    end = time.monotonic() + seconds
    while not done():
        if time.monotonic() > end:
            raise UnreachableError(
                f"not all {condition} after {seconds:g} s; try again on a machine that is less busy"
            )
        time.sleep(0.2)

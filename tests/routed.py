"""A small system for tests: linked mosquitto brokers behind an HAProxy that routes clients by a map."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from broadloom.agents.moves.client_router import HaproxyRouter
from broadloom.deployment import Fleet, FleetBroker, WiredLink, Wiring
from broadloom.deployment.fleet_file import FleetTls
from broadloom.deployment.rehearsal.mosquitto_lab import (
    HOST,
    MosquittoLab,
    free_ports,
    killed_with_parent,
    listens,
)
from broadloom.deployment.targets.haproxy_router import MAP_FILE, RouterSettings, files, map_text

LIMIT = 60.0  # seconds; generous, for a busy machine
# Lines of mosquitto's log.
CONNECTED = re.compile(r"connected from \S+ as (\S+) \(")
DISCONNECTED = re.compile(r"Client (\S+?)(?: \[\S+\])? (?:disconnected|closed|has exceeded)")
ALL = ("t/#",)


def wait_for(done: Callable[[], bool], seconds: float = LIMIT) -> bool:
    """Wait for a condition; false if it does not hold in time."""
    end = time.monotonic() + seconds
    while not done():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


class LoggingLab(MosquittoLab):
    """Brokers that publish their log, as moves of ordinary clients need it.

    Args:
        wiring: the links.
        passwords: the password of each user; others are anonymous.
        certificates: a folder with `ca.crt`, `broker.crt` and `broker.key`: clients and the agent connect by
            a port with TLS; None: they use the bridges' port.
        rules: the text of an `acl_file`; empty: everybody has all rights.
    """

    def __init__(
        self,
        wiring: Wiring,
        passwords: Mapping[str, str] | None = None,
        certificates: Path | None = None,
        rules: str = "",
    ) -> None:
        super().__init__(wiring)
        self._rules = rules
        self._passwords = passwords or {}
        self._certificates = certificates
        self._tls_ports = dict(zip(wiring.brokers, free_ports(len(wiring.brokers)), strict=True))

    @property
    def client_ports(self) -> dict[str, int]:
        """The port of each broker for clients and the agent."""
        return self.ports if self._certificates is None else self._tls_ports

    def configure(self, broker: str, wiring: Wiring) -> None:
        """Write the broker's file."""
        super().configure(broker, wiring)
        path = self._folder_of(broker) / "mosquitto.conf"
        lines = ["log_dest topic"]
        if self._passwords:
            file = path.with_name("passwords")
            file.touch(0o600)
            for user, password in self._passwords.items():
                subprocess.run(["mosquitto_passwd", "-b", file, user, password], check=True)
            lines.append(f"password_file {file}")
        if self._rules:
            path.with_name("rules").write_text(self._rules)
            path.with_name("rules").chmod(0o600)
            lines.append(f"acl_file {path.with_name('rules')}")
        if self._certificates is not None:
            lines.append(f"listener {self._tls_ports[broker]} {HOST}")
            names = {"cafile": "ca.crt", "certfile": "broker.crt", "keyfile": "broker.key"}
            lines += [f"{option} {self._certificates / name}" for option, name in names.items()]
        path.write_text("\n".join([*lines, path.read_text()]))


class RoutedBrokers:
    """Brokers in a star, linked by bridges for `t/#`, and a router in front of them.

    Args:
        folder: a folder for files.
        names: the brokers.
        passwords: the password of each user; others are anonymous.
        certificates: a folder of certificates: all connections but those of bridges have TLS; None: none has.
        rules: the text of the brokers' `acl_file`; empty: everybody has all rights.

    Attributes:
        lab: the brokers.
        port: the router's port for clients.
        relay: the port of the relay, which is free.
        router: the router's map.
    """

    def __init__(
        self,
        folder: Path,
        names: Sequence[str],
        passwords: Mapping[str, str] | None = None,
        certificates: Path | None = None,
        rules: str = "",
    ) -> None:
        self._folder = folder
        self.certificates = certificates
        links = tuple(WiredLink(names[0], other, ALL, ALL) for other in names[1:])
        self._wiring = Wiring(tuple(names), dict.fromkeys(names, ALL), {}, links)
        self.lab = LoggingLab(self._wiring, passwords, certificates, rules)
        self._process: subprocess.Popen[bytes] | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._stack.enter_context(self.lab)
        self._stack.callback(self.kill_router)
        self.lab.wait_until_linked(self._wiring)
        self.port, self.relay = free_ports(2)
        self.map = self._folder / MAP_FILE
        self.socket = self._folder / "router.sock"
        self.map.write_text(map_text({}))
        files_of = self.certificates
        tls = None
        if files_of is not None:
            tls = FleetTls(str(files_of / "ca.crt"))
            pair = [(files_of / name).read_text() for name in ("broker.crt", "broker.key")]
            (files_of / "server.pem").write_text("".join(pair))
        ports = self.lab.client_ports
        fleet = Fleet([FleetBroker(name, f"{HOST}:{port}", tls=tls) for name, port in ports.items()])
        settings = RouterSettings(
            listen=f"{HOST}:{self.port}",
            certificate=None if files_of is None else str(files_of / "server.pem"),
            relay=f"{HOST}:{self.relay}",
            relay_ca=None if files_of is None else str(files_of / "ca.crt"),
            socket=str(self.socket),
            folder=str(self._folder),
        )
        for name, text in files(fleet, settings).items():
            if name != MAP_FILE:
                (self._folder / name).write_text(text)
        self.start_router()
        self.router = HaproxyRouter([str(self.socket)], self.map)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start_router(self) -> None:
        """Start HAProxy, which reads the map file, and wait until it accepts clients."""
        config = self._folder / f"router-{self._wiring.brokers[0]}.cfg"
        with (self._folder / "haproxy.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*killed_with_parent(), "haproxy", "-db", "-f", str(config)], stdout=log, stderr=log
            )
        assert wait_for(lambda: listens(self.port))

    def kill_router(self) -> None:
        """Kill HAProxy."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def publish(
        self, client: str, topic: str = "t/x", payload: str = "x", login: tuple[str, str] | None = None
    ) -> int:
        """Publish a message through the router, by a client of its own; returns the exit code."""
        command = ["mosquitto_pub", "-h", HOST, "-p", str(self.port), "-i", client, "-q", "1"]
        command += ["-u", login[0], "-P", login[1]] if login else []
        return subprocess.run([*command, "-t", topic, "-m", payload], check=False).returncode

    def connected(self, client: str) -> list[str]:
        """The brokers to which a client has connected, in order."""
        found = []
        for broker, folder in ((name, self.lab._folder_of(name)) for name in self.lab.ports):
            for log in folder.glob("log.*"):
                lines = log.read_text(errors="replace").splitlines()
                times = [
                    line
                    for line in lines
                    if re.search(rf"connected from \S+ as {re.escape(client)} \(", line)
                ]
                found += [(line.partition(":")[0], broker) for line in times]
        return [broker for _, broker in sorted(found)]

    def present(self) -> dict[str, set[str]]:
        """The brokers to which each client is connected, by their logs; it can be the agent in its name."""
        found: dict[str, set[str]] = {}
        for broker in self.lab.ports:
            logs = self.lab._folder_of(broker).glob("log.*")
            last = max(logs, key=lambda one: int(one.suffix[1:]))  # the broker has one per start
            for line in last.read_text(errors="replace").splitlines():
                if match := CONNECTED.search(line):
                    found.setdefault(match[1], set()).add(broker)
                elif match := DISCONNECTED.search(line):
                    found.get(match[1], set()).discard(broker)
        return found

"""Real mosquitto brokers with any settings, ordinary clients at them, and the fleet file of both."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from broadloom.deployment.rehearsal.mosquitto_lab import HOST, free_ports, killed_with_parent, listens

WAIT_SECONDS = 60


def wait_until(condition: Callable[[], object], what: str) -> None:
    """Wait until a condition holds; fail after a long time."""
    end = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < end, f"not in time: {what}"
        time.sleep(0.02)


class LabBroker:
    """One mosquitto process, its log and its persistence file."""

    def __init__(self, name: str, folder: Path, port: int, settings: str = "") -> None:
        self.name, self.port = name, port
        self.folder = folder / name
        self.folder.mkdir()
        self.log, self.saved = self.folder / "broker.log", self.folder / "mosquitto.db"
        user = "root" if os.geteuid() == 0 else "nobody"
        anonymous = "" if "allow_anonymous" in settings else "allow_anonymous true\n"
        (self.folder / "mosquitto.conf").write_text(
            f"listener {port} {HOST}\nuser {user}\n{anonymous}persistence true\nsys_interval 1\n"
            f"persistence_location {self.folder}/\nlog_dest stderr\nlog_type all\n{settings}\n"
        )
        self.start()

    def start(self) -> None:
        """Start the process with an empty log, and wait until it listens."""
        program = shutil.which("mosquitto") or "mosquitto"
        with self.log.open("wb") as log:
            command = [*killed_with_parent(), program, "-c", str(self.folder / "mosquitto.conf")]
            self.process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        wait_until(lambda: listens(self.port), f"{self.name} listens")

    def lines(self) -> list[str]:
        """The lines of the log so far."""
        return self.log.read_text(errors="replace").splitlines()

    def wait_for(self, *parts: str, count: int = 1) -> None:
        """Wait until `count` lines of the log contain all parts."""
        wait_until(
            lambda: sum(all(part in line for part in parts) for line in self.lines()) >= count,
            f"{parts} in the log of {self.name}",
        )

    def save(self, text: str) -> None:
        """Let the broker write its sessions until the file contains a text."""

        def written() -> bool:
            self.process.send_signal(signal.SIGUSR1)
            return self.saved.exists() and text.encode() in self.saved.read_bytes()

        wait_until(written, f"{text} in the file of {self.name}")

    def stop(self) -> None:
        """End the process."""
        self.process.terminate()
        self.process.wait(WAIT_SECONDS)


class FleetLab:
    """Brokers by name, and the clients that the test starts at them.

    Attributes:
        brokers: by name.
        filters: the filters of all clients as they were given, by broker.
    """

    def __init__(self, folder: Path, settings: dict[str, str]) -> None:
        self.folder = folder
        ports = free_ports(len(settings))
        self.brokers = {
            name: LabBroker(name, folder, port, text)
            for (name, text), port in zip(settings.items(), ports, strict=True)
        }
        self.filters: dict[str, list[str]] = {name: [] for name in settings}
        self._clients: list[subprocess.Popen[bytes]] = []

    def subscribe(self, broker: str, client: str, *filters: str, options: tuple[str, ...] = ()) -> None:
        """Start a `mosquitto_sub`, and wait until the broker knows its filters."""
        topics = [part for text in filters for part in ("-t", text)]
        port = str(self.brokers[broker].port)
        program = shutil.which("mosquitto_sub") or "mosquitto_sub"
        command = [*killed_with_parent(), program, "-h", HOST, "-p", port, "-i", client, "-q", "1", *options]
        self._clients.append(
            subprocess.Popen([*command, *topics], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        )
        self.filters[broker] += filters
        for text in filters:
            self.brokers[broker].wait_for(f": {client} 1 {text}")

    def publish(self, broker: str, topic: str, payload: str, *options: str) -> None:
        """Publish one message at QoS 1."""
        port = str(self.brokers[broker].port)
        program = shutil.which("mosquitto_pub") or "mosquitto_pub"
        command = [program, "-h", HOST, "-p", port, "-q", "1", "-t", topic, "-m", payload, *options]
        subprocess.run(command, check=True, timeout=WAIT_SECONDS)

    def stop_client(self, index: int) -> None:
        """End a client."""
        self._clients[index].terminate()
        self._clients[index].wait(WAIT_SECONDS)

    def fleet_file(self, sources: dict[str, str], more: str = "", links: str = "") -> Path:
        """Write the fleet file; `sources` are TOML values by broker."""
        parts = [more]
        for name, broker in self.brokers.items():
            parts.append(f'[brokers.{name}]\naddress = "{HOST}:{broker.port}"\ntls = false')
            parts.append(f"subscriptions = {sources[name]}" if name in sources else "")
        path = self.folder / "fleet.toml"
        path.write_text("\n".join([*parts, links]))
        return path

    def close(self) -> None:
        """End all processes."""
        for client in self._clients:
            client.kill()
            client.wait(WAIT_SECONDS)
        for broker in self.brokers.values():
            broker.stop()


@contextmanager
def fleet_lab(folder: Path, **settings: str) -> Iterator[FleetLab]:
    """Brokers with their settings; they end with the block."""
    lab = FleetLab(folder, settings)
    try:
        yield lab
    finally:
        lab.close()

"""Mosquitto brokers of an operator: each has its own configuration, and commands that stop and start it."""

import os
import signal
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import broadloom as bl
from broadloom.deployment import FleetBroker, FleetHooks
from broadloom.deployment.rehearsal.mosquitto_lab import HOST, free_ports

START = 'kill -0 "$(cat "$0/pid" 2>/dev/null)" 2>/dev/null || mosquitto -d -c "$0/mosquitto.conf"'
STOP = 'kill "$(cat "$0/pid")" && while kill -0 "$(cat "$0/pid")" 2>/dev/null; do sleep 0.01; done'


class Site:
    """A mosquitto of an operator: its own configuration, and a folder of included files."""

    def __init__(self, folder: Path, port: int):
        self.folder = folder
        self.port = port
        self.links = folder / "conf.d" / "broadloom.conf"
        (folder / "conf.d").mkdir(parents=True)
        folder.chmod(0o777)
        (folder / "mosquitto.conf").write_text(
            f"listener {port} {HOST}\nallow_anonymous true\nuser root\npid_file {folder}/pid\n"
            f"persistence true\npersistence_location {folder}/\nautosave_interval 7\n"
            f"max_queued_messages 12345\nlog_dest file {folder}/log\nlog_type all\nsys_interval 1\n"
            f"include_dir {folder}/conf.d\n"
        )

    def hooks(self):
        """The operator's commands."""
        return FleetHooks(
            path=str(self.links),
            stop=("sh", "-c", STOP, str(self.folder)),
            start=("sh", "-c", START, str(self.folder)),
        )

    def run(self, name):
        """Run a command."""
        subprocess.run(getattr(self.hooks(), name), check=True, stdin=subprocess.DEVNULL)


@contextmanager
def running_sites(folder: Path, names: Iterable[str]) -> Iterator[dict[str, Site]]:
    """Mosquitto brokers without links."""
    listed = list(names)
    found = {
        name: Site(folder / name, port) for name, port in zip(listed, free_ports(len(listed)), strict=True)
    }
    try:
        for site in found.values():
            site.run("start")
        yield found
    finally:
        for site in found.values():
            if (site.folder / "pid").exists():
                os.kill(int((site.folder / "pid").read_text()), signal.SIGKILL)


def fleet_of(sites: Mapping[str, Site]) -> bl.Fleet:
    """The fleet of these brokers."""
    return bl.Fleet(
        [
            FleetBroker(name, f"{HOST}:{site.port}", tls=None, hooks=site.hooks())
            for name, site in sites.items()
        ]
    )

"""Discover: CPU and wall seconds of `broadloom discover` on real mosquitto brokers on this machine.

    python benchmarks/discover.py

Each broker has persistent sessions, and its source is `mosquitto.db`, checked against the broker's own count.
The numbers are those of a whole process, the least of three rounds, without the time to listen.
"""

import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import paho.mqtt.client as mqtt

from _common import Section, run
from broadloom.deployment.rehearsal.mosquitto_lab import HOST, free_ports, killed_with_parent, listens

SIZES = ((5, 20), (20, 500), (50, 5_000))  # brokers, and subscriptions per broker
PER_REQUEST = 500
SETTINGS = """\
listener {port} {host}
allow_anonymous true
user root
persistence true
persistence_location {folder}/
log_dest none
sys_interval 1
"""


def start_broker(folder: Path, port: int, stack: ExitStack) -> subprocess.Popen[bytes]:
    """Start a broker that ends with the stack."""
    folder.mkdir()
    (folder / "mosquitto.conf").write_text(SETTINGS.format(port=port, host=HOST, folder=folder))
    program = shutil.which("mosquitto", path="/usr/sbin:/usr/bin:/usr/local/sbin") or "mosquitto"
    command = [*killed_with_parent(), program, "-c", str(folder / "mosquitto.conf")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    stack.callback(process.wait)
    stack.callback(process.terminate)
    while not listens(port):
        time.sleep(0.01)
    return process


def subscribe(port: int, count: int) -> None:
    """Make persistent subscriptions, half of them with a wildcard, and disconnect."""
    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, "bench", clean_session=False)
    answered: list[int] = []
    client.on_subscribe = lambda *arguments: answered.append(arguments[2])
    client.connect(HOST, port)
    client.loop_start()
    filters = [f"site/{number}/{'+' if number % 2 else 'temp'}" for number in range(count)]
    requests = 0
    for first in range(0, count, PER_REQUEST):
        client.subscribe([(text, 1) for text in filters[first : first + PER_REQUEST]])
        requests += 1
    while len(answered) < requests:
        time.sleep(0.01)
    client.disconnect()
    client.loop_stop()


def measured(brokers: int, subscriptions: int, rounds: int) -> dict[str, float]:
    """Seconds of one size."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        sections = []
        for number, port in enumerate(free_ports(brokers)):
            process = start_broker(folder / f"b{number}", port, stack)
            subscribe(port, subscriptions)
            process.send_signal(signal.SIGUSR1)
            source = folder / f"b{number}" / "mosquitto.db"
            sections.append(
                f'[brokers.b{number}]\naddress = "{HOST}:{port}"\ntls = false\nsubscriptions = "{source}"\n'
            )
        (folder / "fleet.toml").write_text("".join(sections))
        time.sleep(2)  # the brokers publish their counts every second
        best: dict[str, float] = {}
        for _ in range(rounds):
            command = [sys.executable, "-m", "broadloom.cli", "discover", "--force", "-q", "-o", "tables"]
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            start = time.perf_counter()
            subprocess.run(command, cwd=folder, check=True)
            wall = time.perf_counter() - start
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            best = {"CPU s": min(cpu, best.get("CPU s", cpu)), "wall s": min(wall, best.get("wall s", wall))}
    return best


def fleets(quick: bool) -> Section:
    """Three sizes of fleets."""
    section = Section("Discovery of fleets")
    for brokers, subscriptions in SIZES[:1] if quick else SIZES:
        row = {"brokers": brokers, "subscriptions": brokers * subscriptions}
        section.rows.append(row | measured(brokers, subscriptions, 1 if quick else 3))
    section.claim("wall s of five brokers, without listening", section.rows[0]["wall s"], at_most=2)
    return section


if __name__ == "__main__":
    run("discover", {"fleets": fleets})

"""Moves of clients as a part of the controller: its links follow them, and do not depend on them."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress

import pytest
from moving import (
    LIMIT,
    QUICK,
    TrafficCounter,
    client_addresses,
    unlinked_brokers,
    wait_for,
    write_config,
)

import broadloom as bl
from broadloom.agents.links.controller_moves import ControllerLinks, check_moves
from broadloom.agents.moves.move_service import AgentConfig
from broadloom.agents.moves.moving_client import MovingClient
from broadloom.agents.moves.operator_client import Operator
from broadloom.deployment import Fleet, FleetBroker
from broadloom.deployment.rehearsal.mosquitto_lab import HOST, free_ports, killed_with_parent

pytest.importorskip("fastapi")


class QuietLoop:
    """Event loop that calls at once."""

    def call_soon_threadsafe(self, call, *values):
        """Call a function."""
        call(*values)


class CountedLinks:
    """Links of a controller that follow a request when they are told to."""

    def __init__(self):
        self.requests, self.followed = [], 0

    def request(self, filters, number):
        """Note a request."""
        self.requests.append((dict(filters), number))

    def has_carried(self, broker, filters, number):  # noqa: ARG002
        """Whether a request is followed."""
        return self.followed >= number

    def follow(self):
        """Follow the newest request."""
        self.followed = self.requests[-1][1]


def test_filters_are_carried_once_the_request_that_has_them_is_followed():
    """Nothing is requested before the agent has asked for the links of all its clients."""
    counted = CountedLinks()
    links = ControllerLinks(counted, QuietLoop(), ["h", "f"])
    links.carry("h", ["a", "b"])
    assert counted.requests == []
    assert not links.carried("h", ["a"])
    links.begin()
    assert counted.requests[-1][0] == {"h": ("a", "b"), "f": ()}
    assert not links.carried("h", ["a"])
    counted.follow()
    assert links.carried("h", ["a", "b"])
    assert not links.carried("f", ["a"])
    links.carry("h", ["c"])
    assert links.carried("h", ["a"])  # a later request does not delay it
    assert not links.carried("h", ["a", "c"])
    counted.follow()
    assert links.carried("h", ["a", "c"])
    links.release("h", ["a", "b", "z"])
    assert counted.requests[-1][0] == {"h": ("c",), "f": ()}
    assert not links.carried("h", ["a"])
    sent = len(counted.requests)
    links.carry("h", ["c"])
    links.release("h", ["a"])
    assert len(counted.requests) == sent
    with pytest.raises(bl.InputError, match="the fleet has no broker 'z'; it has h, f"):
        links.carry("z", ["a"])
    assert ControllerLinks(counted, QuietLoop(), ["h"])._number > counted.followed  # of a restarted agent


def test_a_configuration_that_does_not_fit_the_fleet_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("BROADLOOM_TOKEN", "token")
    fleet = Fleet([FleetBroker("h", "h.example.org")])
    for text, message in (
        ('[brokers.h]\naddress = "h:1"\n[links]\ntopics = ["t"]', r"has \[links\], but the controller holds"),
        ('[brokers.h]\naddress = "h:1"\n[brokers.f]\naddress = "f:1"', "has broker 'f', but the fleet does"),
    ):
        (tmp_path / "agent.toml").write_text(text)
        with pytest.raises(bl.InputError, match=message):
            check_moves(AgentConfig.load(tmp_path / "agent.toml"), fleet)


@contextmanager
def running_controller(folder, brokers):
    """A controller with all agents and with moves, in a process of its own; yields its status."""
    (folder / "key").write_text("a key for tests, long enough")
    (folder / "key").chmod(0o600)
    text = "".join(
        f'[brokers.{name}]\naddress = "{HOST}:{port}"\ntls = false\n' for name, port in brokers.ports.items()
    )
    fleet = folder / "fleet.toml"
    fleet.write_text(f'{text}[live]\ncontroller = "{HOST}:{free_ports(1)[0]}"\nkey_file = "key"\n')
    command = [*killed_with_parent(), sys.executable, "-m", "broadloom.cli", "controller", str(fleet)]
    command += ["--state", str(folder / "state"), "--with-agents", "--moves", str(folder / "agent.toml")]
    log = folder / "controller.log"
    with log.open("wb") as stream:
        process = subprocess.Popen(command, stdout=stream, stderr=stream)

    def status():
        command = [sys.executable, "-m", "broadloom.cli", "status", str(fleet), "--json"]
        done = subprocess.run(command, capture_output=True, text=True)
        return json.loads(done.stdout) if done.stdout else {"problems": [log.read_text()]}

    try:
        assert wait_for(lambda: "the controller answers" in log.read_text()), log.read_text()
        yield status
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT) == 0, log.read_text()


@contextmanager
def small_disk(folder):
    """A disk of 512 KiB at a folder; only root can mount one, so it is a folder like others for others."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(folder)]
    is_mounted = shutil.which("mount") and subprocess.run(command, capture_output=True).returncode == 0
    try:
        yield bool(is_mounted)
    finally:
        if is_mounted:
            subprocess.run(["umount", str(folder)], check=True)


def check_full_disk(disk, operator, reader, status, traffic, log):
    """While the disk of the moves' journal is full, nothing moves, and links carry all messages."""
    with (disk / "filler").open("wb", buffering=0) as filler, suppress(OSError):
        while True:
            filler.write(bytes(4096))
    said = "nothing moves until the journal can be written"
    # It registers again, with a record that is larger than what is left of the journal's last page.
    reader.subscribe(f"u/{'x' * 8192}")
    assert wait_for(lambda: said in str(operator.health()["problems"]))
    for _ in range(3):  # a small record would fit
        with pytest.raises(bl.UnreachableError, match=said):
            operator.request_to_move("reader", "f")
    now = status()
    assert said in str(now["problems"])
    assert now["settled"]
    assert len(operator.clients()) == 2
    enough = len(traffic.sent) + 50
    assert wait_for(lambda: traffic.got["reader"].total() > enough)
    (disk / "filler").unlink()
    assert wait_for(lambda: said not in str(operator.health()["problems"]))
    assert log.read_text().count(said) == 1


@pytest.mark.needs("mosquitto")
@pytest.mark.xdist_group("moves")
def test_clients_move_over_the_links_of_the_controller_without_loss(tmp_path):
    """The reader moves to a broker that never had its topic; the links follow, and nothing is lost.

    Before that, the disk of the moves' journal is full for a while (if root runs the test).
    """
    traffic, over = TrafficCounter(), threading.Event()
    with unlinked_brokers("hfg") as brokers, small_disk(tmp_path / "disk") as is_small:
        config, port = write_config(tmp_path, brokers, QUICK)
        config.write_text(f'journal = "disk/journal"\n{config.read_text()}')
        reader = MovingClient(
            "reader", client_addresses(brokers), "h", traffic.callback("reader"), plain=True
        )
        writer = MovingClient("writer", client_addresses(brokers), "g", plain=True)
        with running_controller(tmp_path, brokers) as status, reader, writer:
            operator = Operator(f"http://127.0.0.1:{port}", "token", patience=LIMIT)
            reader.subscribe("t/1")
            writer.publish("t/1", b"before the links are up")
            assert wait_for(lambda: len(operator.clients()) == 2)
            assert wait_for(lambda: status().get("groups") == 1)
            assert wait_for(lambda: status()["settled"])

            def load():
                while not over.wait(0.005):
                    traffic.send(writer, "t/1")

            publishing = threading.Thread(target=load, daemon=True)
            publishing.start()
            try:
                assert wait_for(lambda: len(traffic.sent) > 50)
                if is_small:
                    check_full_disk(
                        tmp_path / "disk", operator, reader, status, traffic, tmp_path / "controller.log"
                    )
                move = operator.request_to_move("reader", "f")["id"]
                is_done = wait_for(lambda: operator.move(move)["state"] == "redirected")
                log = (tmp_path / "controller.log").read_text()
                assert is_done, f"{json.dumps(operator.move(move))}\n{log}"
                enough = len(traffic.sent) + 50
                assert wait_for(lambda: len(traffic.sent) > enough)
            finally:
                over.set()
                publishing.join()
            assert writer.wait_until_confirmed(LIMIT)
            wait_for(lambda: traffic.counts({"reader": {"t/1"}})[1] == 0)
            command = [sys.executable, "-m", "broadloom.cli", "migrate", "moves", "--all", "--json"]
            command += ["--fleet", str(tmp_path / "fleet.toml")]  # by the controller's API, without a token
            listed = json.loads(subprocess.run(command, capture_output=True, text=True).stdout)["moves"]
            assert listed[-1]["id"] == move
            assert reader.home == "f"
            assert traffic.counts({"reader": {"t/1"}})[1:] == (0, 0)


@pytest.mark.needs("mosquitto")
@pytest.mark.xdist_group("moves")
def test_moves_that_cannot_start_do_not_stop_the_controller(tmp_path):
    """The port of their API is in use: the status says so, and all agents are up."""
    with unlinked_brokers("hf") as brokers:
        path, port = write_config(tmp_path, brokers, QUICK)
        config = AgentConfig.load(path)
        assert config.port == port
        with socket.create_server(("127.0.0.1", port)), running_controller(tmp_path, brokers) as status:
            said = f"clients are not moved: the agent cannot listen on 127.0.0.1:{port}"
            assert wait_for(lambda: any(said in text for text in status()["problems"])), status()["problems"]
            assert wait_for(lambda: all(one["broker_up"] for one in status()["brokers"].values()))

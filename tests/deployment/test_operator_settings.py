"""The settings of an operator survive the exported files, and the state of links is visible: real brokers."""

import re
import shlex
import shutil
import subprocess
from collections import Counter

import paho.mqtt.client as mqtt
import pytest

import broadloom as bl
from broadloom.deployment import (
    Deployment,
    FleetBroker,
    Settings,
    WiredLink,
    Wiring,
    export,
    roll_out,
    target_named,
)
from broadloom.deployment.rehearsal.mosquitto_lab import HOST, free_ports
from broadloom.deployment.targets import mosquitto_bridges
from fleet_lab import LabBroker, wait_until
from operator_sites import fleet_of, running_sites

pytestmark = [
    pytest.mark.needs("mosquitto", "mosquitto_sub", "mosquitto_pub"),
    pytest.mark.xdist_group("mosquitto"),
]

X = ("x",)
QUEUE, INFLIGHT = 7, 3
OPERATOR = f"""\
max_queued_messages {QUEUE}
max_inflight_messages {INFLIGHT}
autosave_interval 1000
"""


def link_file(near, far):
    """The exported file of a broker with a link to another."""
    wiring = Wiring(("far", "near"), {"far": X, "near": X}, {}, (WiredLink("near", "far", X, X),))
    addresses = {"near": f"{HOST}:{near}", "far": f"{HOST}:{far}"}
    files = export(wiring, target_named("mosquitto"), Settings(addresses=addresses, tls=False))
    return files["broker-near.conf"]


def test_a_file_contains_nothing_but_bridges():
    """Every line is a comment, or belongs to a connection."""
    options = set()
    for broker in ("near", "other"):
        wiring = Wiring(("near", "other"), {}, {}, (WiredLink("near", "other", X, X),))
        text = mosquitto_bridges.broker_file(wiring, broker, Settings())
        lines = [line for line in text.splitlines() if line and not line.startswith("#")]
        assert not lines or lines[0].startswith("connection ")
        options |= {line.partition(" ")[0] for line in lines}
        for setting, _ in mosquitto_bridges.ADVICE:
            assert re.search(rf"^#   {setting} ", text, re.MULTILINE)
    in_connections = {"connection", "address", "try_private", "cleansession", "restart_timeout", "topic"}
    in_connections |= {"notifications", "notifications_local_only", "local_clientid", "remote_clientid"}
    assert {option for option in options if not option.startswith("bridge_")} == in_connections


class Behaviour:
    """What clients see of the settings of a broker."""

    def __init__(self, broker):
        self.broker = broker

    def client(self, name, manual=False):
        """A client with a persistent session."""
        client = mqtt.Client(
            mqtt.CallbackAPIVersion.VERSION2,
            name,
            clean_session=False,
            manual_ack=manual,
            protocol=mqtt.MQTTv311,
        )
        client.connect(HOST, self.broker.port)
        client.loop_start()
        wait_until(client.is_connected, "connected")
        return client

    def queued(self):
        """The number of messages that are kept for an absent client."""
        name = "absent"
        client = self.client(name)
        client.subscribe("queue/#", 1)
        self.broker.wait_for(f": {name} 1 queue/#")
        client.disconnect()
        client.loop_stop()
        self.publish("queue/x", 4 * QUEUE)
        received = []
        again = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, name, clean_session=False)
        again.on_message = lambda *call: received.append(call[2].topic)
        again.connect(HOST, self.broker.port)
        again.loop_start()
        wait_until(again.is_connected, "connected")
        self.publish("queue/end", 1)
        wait_until(lambda: "queue/end" in received, "the last message")
        again.disconnect()
        again.loop_stop()
        return len(received) - 1

    def unfinished(self):
        """The number of messages that a client gets before it acknowledges one."""
        received = Counter()
        client = self.client("slow", manual=True)
        client.on_message = lambda *call: received.update([call[2].topic])
        client.subscribe([("flight/#", 1), ("end", 0)])
        self.broker.wait_for(": slow 0 end")
        self.publish("flight/x", 2 * INFLIGHT)
        self.publish("end", 1, qos=0)  # not limited, and sent after what can be sent
        wait_until(lambda: received["end"], "the last message")
        client.disconnect()
        client.loop_stop()
        return received["flight/x"]

    def saves_often(self):
        """Whether the broker writes its sessions to disk within three seconds, without being told to."""
        command = ["mosquitto_sub", "-h", HOST, "-p", str(self.broker.port), "-t", "$SYS/broker/uptime"]
        self.publish("kept", 1)
        subprocess.run([*command, "-C", "4", "-W", "60"], check=True, capture_output=True)
        return self.broker.saved.exists()

    def publish(self, topic, count, qos=1):
        """Publish messages."""
        command = ["mosquitto_pub", "-h", HOST, "-p", str(self.broker.port), "-t", topic, "-q", str(qos)]
        lines = "".join(f"{i}\n" for i in range(count))
        subprocess.run([*command, "-l"], input=lines, text=True, check=True)

    def forget(self):
        """End the sessions of these clients."""
        for name in ("absent", "slow"):
            command = ["mosquitto_sub", "-h", HOST, "-p", str(self.broker.port), "-i", name, "-t", "none"]
            subprocess.run([*command, "-E"], check=True, capture_output=True)

    def observe(self):
        """All of it."""
        return {"queued": self.queued(), "unfinished": self.unfinished(), "saves often": self.saves_often()}


def test_brokers_keep_the_settings_of_their_operator(tmp_path):
    """With and without the exported file, a broker queues, limits and saves as its mosquitto.conf says."""
    near, far = free_ports(2)
    observed = {}
    links = tmp_path / "conf.d"
    links.mkdir()
    other = LabBroker("far", tmp_path, far)
    try:
        for name in ("before", "after"):
            (tmp_path / name).mkdir()
            broker = LabBroker("near", tmp_path / name, near, f"{OPERATOR}include_dir {links}")
            try:
                if name == "after":
                    broker.wait_for("Connecting bridge", "broadloom-near:far")
                observed[name] = Behaviour(broker).observe()
            finally:
                broker.stop()
            (links / "links.conf").write_text(link_file(near, far))
    finally:
        other.stop()
    assert observed["after"] == observed["before"]
    assert observed["before"]["unfinished"] == INFLIGHT
    assert QUEUE <= observed["before"]["queued"] <= QUEUE + INFLIGHT
    assert not observed["before"]["saves often"]


def states(port, seconds="1"):
    """The states of links that a broker shows."""
    command = ["mosquitto_sub", "-h", HOST, "-p", str(port), "-t", "$SYS/broker/connection/#", "-v"]
    done = subprocess.run([*command, "-W", seconds], capture_output=True, text=True)
    return dict(line.rsplit(" ", 1) for line in done.stdout.splitlines())


def test_the_state_of_a_link_is_at_its_owner_and_nowhere_else(tmp_path):
    """`1` while it is up and `0` after; a subscriber of everything sees none of it, and the peer has none."""
    near, far = free_ports(2)
    topic = "$SYS/broker/connection/r.broadloom-near:far/state"
    other = LabBroker("far", tmp_path, far)
    owner = None
    try:
        owner = LabBroker(
            "near", tmp_path, near, link_file(near, far).replace("topic x both", "topic # both")
        )
        wait_until(lambda: states(near).get(topic) == "1", "the link is up")
        assert states(far) == {}
        for port in (near, far):
            command = ["mosquitto_sub", "-h", HOST, "-p", str(port), "-t", "#", "-W", "1", "-v"]
            assert subprocess.run(command, capture_output=True, text=True).stdout == ""
        other.stop()
        wait_until(lambda: states(near).get(topic) == "0", "the link is down")
    finally:
        if owner is not None:
            owner.stop()
        if other.process.poll() is None:
            other.stop()


def test_the_list_of_a_removal_leaves_no_session_behind(run, tmp_path):
    """After its steps, neither broker knows the link, and messages stay where they are published."""
    near, far = free_ports(2)
    addresses = {"far": f"{HOST}:{far}", "near": f"{HOST}:{near}"}
    brokers = [FleetBroker(name, address, tls=None) for name, address in addresses.items()]
    bl.Fleet(brokers).save(tmp_path / "fleet.toml")
    plan = bl.link(bl.Interest.from_lists([X, X], node_ids=["far", "near"]), algorithm="gm")
    plan.save(tmp_path / "plan")
    export = ("deploy", "export", tmp_path / "plan", "--fleet", tmp_path / "fleet.toml")
    assert run(*export, "-o", tmp_path / "conf")[0] == 0
    assert run(*export, "-o", tmp_path / "gone", "--remove")[0] == 0
    links = tmp_path / "conf.d"
    links.mkdir()
    shutil.copy(tmp_path / "conf" / "broker-far.conf", links)
    near_broker = LabBroker("near", tmp_path, near)
    owner = LabBroker("far", tmp_path, far, f"include_dir {links}")
    try:
        near_broker.wait_for("connected", "r.broadloom-far:near")
        near_broker.save("r.broadloom-far:near")
        text = (tmp_path / "gone" / "remove.txt").read_text()
        assert "\n#    far\n" in text
        owner.stop()
        (links / "broker-far.conf").unlink()
        owner.start()
        commands = [line for line in text.splitlines() if not line.startswith("#")]
        assert len(commands) == 2
        for line in commands:
            code, _, err = run(*shlex.split(line)[1:])
            assert code == 0, err
    finally:
        owner.stop()
        near_broker.stop()
    for broker in (owner, near_broker):
        assert b"broadloom-far:near" not in broker.saved.read_bytes()


def test_include_dir_of_the_whole_export_reads_no_rules_as_configuration(run, tmp_path):
    """The rules of clients are in a folder of their own, so mosquitto starts with all files of `*.conf`."""
    plan = bl.link(bl.Interest.from_lists([["x"], ["x"]], node_ids=["1", "2"]), algorithm="gm")
    plan.save(tmp_path / "plan")
    conf = tmp_path / "conf"
    options = ("--to", "mosquitto", "--no-tls", "--address", "127.0.0.{broker}:9")
    assert run("deploy", "export", tmp_path / "plan", *options, "-o", conf)[0] == 0
    assert "topic readwrite $broadloom/#" in (conf / "acl" / "migration.acl").read_text()
    assert not list(conf.glob("*acl*.conf"))
    (port,) = free_ports(1)
    broker = LabBroker("one", tmp_path, port, f"include_dir {conf}")
    broker.stop()
    assert not [line for line in broker.lines() if "Error" in line and "config" in line.lower()]


class SiteLog:
    """The port and the log of an operator's broker, from now on."""

    def __init__(self, site):
        self.port = site.port
        self._log = site.folder / "log"
        self._start = len(self._log.read_text())

    def wait_for(self, text):
        """Wait for a line."""
        wait_until(lambda: text in self._log.read_text()[self._start :], text)


def test_brokers_keep_the_settings_of_their_operator_when_a_change_is_applied(tmp_path):
    """What clients see of them, before and after `apply`; and the operator's own file stays as it is."""
    target = target_named("mosquitto")
    with running_sites(tmp_path, "ab") as sites:
        files = {name: site.folder / "mosquitto.conf" for name, site in sites.items()}
        for name, site in sites.items():
            text = files[name].read_text().replace("max_queued_messages 12345", OPERATOR)
            files[name].write_text(text)
            site.run("stop")
            site.run("start")
        own = {name: file.read_bytes() for name, file in files.items()}
        fleet = fleet_of(sites)
        settings = Settings(
            addresses={name: f"{HOST}:{site.port}" for name, site in sites.items()}, tls=False
        )
        deployments = []
        for links in ((), (WiredLink("a", "b", X, X),)):
            wiring = Wiring(("a", "b"), dict.fromkeys("ab", X), {}, links)
            deployments.append(Deployment(wiring, settings, target.files(wiring, settings)))

        def observed():
            found = {}
            for name, site in sites.items():
                behaviour = Behaviour(SiteLog(site))
                found[name] = behaviour.queued(), behaviour.unfinished()
                behaviour.forget()
            return found

        before = observed()
        assert roll_out(*deployments, target, fleet, tmp_path / "journal")["restarts"] == ["a"]
        assert "connection broadloom-a:b" in sites["a"].links.read_text()
        assert observed() == before
        assert before["a"][1] == INFLIGHT
        assert {name: file.read_bytes() for name, file in files.items()} == own

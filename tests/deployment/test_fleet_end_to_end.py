"""From five running mosquitto brokers to links that carry everything, as an operator does it.

`init`, `doctor`, `discover`, `link`, `deploy export`, and the installation of docs/deploy.md; then ordinary
clients with wildcards, shared subscriptions and persistent sessions receive every message exactly once.
"""

import json
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from contextlib import contextmanager

import paho.mqtt.client as mqtt
import pytest

import broadloom as bl
from broadloom.deployment.rehearsal.mosquitto_lab import free_ports, killed_with_parent
from broadloom.maintenance import load_kernels
from certificates import authority
from fleet_lab import HOST, FleetLab, wait_until
from naive_ingest import matches

pytestmark = [
    pytest.mark.needs("mosquitto", "mosquitto_sub", "openssl"),
    pytest.mark.xdist_group("mosquitto"),
]

NAMES = ("rome", "oslo", "bonn", "lyon", "kyiv")
# A password that a careless export would break.
PASSWORDS = {"rome": "p#ss $HOME 'x' \"y\"", "oslo": "${BROADLOOM_PASSWORD} 100%"}
TLS = "bonn"
TOPICS = (
    "sensors/a/temp",
    "sensors/b/temp",
    "sensors/b/hum",
    "alarms/fire",
    "alarms/fire/room1",
    "status/web/up",
    "z/x/temp",
    "sensors/x/temp",
    "nobody/wants/this",
)


class Subscriber:
    """A client with its filter; members of a shared group at a broker have the same group name."""

    def __init__(self, broker, name, text, group=None):
        self.broker, self.name, self.text, self.group = broker, name, text, group
        self.received = Counter()

    @property
    def subscription(self):
        """The filter as it is subscribed to."""
        return f"$share/{self.group}/{self.text}" if self.group else self.text


# No client is at kyiv, which only publishes.
COMMAND_LINE = [
    ("rome", "s1", "sensors/#", None, ()),
    ("rome", "s2", "sensors/+/temp", None, ("-c",)),
    ("rome", "s3", "alarms/#", "g", ()),
    ("rome", "s4", "alarms/#", "g", ()),
    ("oslo", "s5", "sensors/a/temp", None, ("-c",)),
    ("oslo", "s6", "alarms/+", None, ()),
    ("bonn", "s7", "alarms/#", None, ("-c",)),
]
PAHO = [
    ("bonn", "p1", "status/+/up", None),
    ("lyon", "p2", "+/x/temp", None),
    ("lyon", "p3", "alarms/#", "g"),
    ("lyon", "p4", "alarms/#", "g"),
]


class Fleet:
    """Brokers, their clients, and what each client has received."""

    def __init__(self, folder):
        self.folder = folder
        certificates = authority(folder / "certificates")
        self.ca = certificates / "ca.crt"
        settings = {name: f"include_dir {folder / 'conf.d' / name}\n" for name in NAMES}
        for name, password in PASSWORDS.items():
            file = folder / f"{name}.passwords"
            subprocess.run(["mosquitto_passwd", "-b", "-c", file, "links", password], check=True)
            file.chmod(0o644)
            settings[name] += f"allow_anonymous false\npassword_file {file}\n"
            secret = folder / f"{name}.secret"
            secret.write_text(password + "\n")
            secret.chmod(0o600)
        own = certificates / "broker"
        for file in certificates.iterdir():
            file.chmod(0o644)
        settings[TLS] += f"certfile {own}.crt\nkeyfile {own}.key\n"
        for name in NAMES:
            (folder / "conf.d" / name).mkdir(parents=True)
        self.lab = FleetLab(folder, settings)
        self.subscribers = []
        self._processes = []
        self._readers = []
        self._clients = []

    def access(self, broker):
        """Options of the clients of mosquitto."""
        options = ["-h", HOST, "-p", str(self.lab.brokers[broker].port), "-q", "1"]
        if broker in PASSWORDS:
            options += ["-u", "links", "-P", PASSWORDS[broker]]
        return [*options, "--cafile", str(self.ca)] if broker == TLS else options

    def start_clients(self):
        """Start all subscribers, and wait until they are subscribed."""
        for broker, name, text, group, options in COMMAND_LINE:
            one = Subscriber(broker, name, text, group)
            command = ["mosquitto_sub", *self.access(broker), "-i", name, *options, "-F", "%p"]
            process = subprocess.Popen(
                [*killed_with_parent(), *command, "-t", one.subscription], stdout=subprocess.PIPE, text=True
            )
            reader = threading.Thread(target=self._read, args=(process, one), daemon=True)
            reader.start()
            self._readers.append(reader)
            self._processes.append(process)
            self.subscribers.append(one)
        for client in PAHO:
            self.add_client(*client)
        self.wait_for_clients()

    def add_client(self, broker, name, text, group):
        """Start a client of paho."""
        one = Subscriber(broker, name, text, group)
        client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, name, protocol=mqtt.MQTTv5)
        client.on_connect = lambda client, *_: client.subscribe(one.subscription, 1)
        client.on_message = lambda *call: one.received.update([call[2].payload.decode()])
        client.reconnect_delay_set(1, 1)
        if broker == TLS:
            client.tls_set(str(self.ca))
        client.connect(HOST, self.lab.brokers[broker].port)
        client.loop_start()
        self._clients.append(client)
        self.subscribers.append(one)

    @staticmethod
    def _read(process, one):
        with process.stdout as lines:
            for line in lines:
                one.received[line.rstrip("\n")] += 1

    def wait_for_clients(self):
        """Wait until every broker has the subscriptions of its clients."""
        for one in self.subscribers:
            self.lab.brokers[one.broker].wait_for(f": {one.name} 1 {one.subscription}")

    def restart(self):
        """Restart all brokers, and wait until clients and links are subscribed."""
        for broker in self.lab.brokers.values():
            broker.stop()
        for broker in self.lab.brokers.values():
            broker.start()
        self.wait_for_clients()

    def publish(self, round_):
        """One message per topic and broker."""
        for broker in NAMES:
            for topic in TOPICS:
                payload = f"{round_} {broker} {topic}"
                command = ["mosquitto_pub", *self.access(broker), "-t", topic, "-m", payload]
                subprocess.run(command, check=True, timeout=30)

    def check(self, is_missing=lambda *_: False, rounds=(1, 2)):
        """Publish twice; every client must have each message that it wants once, and nothing else.

        In the second round all have arrived, so that duplicates of the first would have arrived too.
        """
        for round_ in rounds:
            self.publish(round_)
            expected = {
                f"{round_} {broker} {topic}": topic
                for broker in NAMES
                for topic in TOPICS
                if not is_missing(broker, topic)
            }
            wait_until(lambda expected=expected: not self.missing(expected), "all deliveries")
        for one in self.groups():
            counts = sum((member.received for member in one), Counter())
            assert set(counts.values()) <= {1}, (one[0].broker, one[0].text, counts.most_common(3))
            wanted = {
                f"{round_} {broker} {topic}"
                for round_ in rounds
                for broker in NAMES
                for topic in TOPICS
                if matches(one[0].text, topic) and (broker == one[0].broker or not is_missing(broker, topic))
            }
            assert set(counts) == wanted
        return sum(len(member.received) for member in self.subscribers)

    def groups(self):
        """Single clients, and the members of each shared group at a broker: they count as one."""
        found = {}
        for one in self.subscribers:
            key = (one.broker, one.text, one.group) if one.group else one.name
            found.setdefault(key, []).append(one)
        return list(found.values())

    def missing(self, expected):
        """The deliveries that are still missing."""
        return [
            (members[0].name, payload)
            for members in self.groups()
            for payload, topic in expected.items()
            if matches(members[0].text, topic) and not any(payload in one.received for one in members)
        ]

    def init(self, run, *options):
        """The fleet file, by `broadloom init`."""
        file = self.folder / "fleet.toml"
        arguments = []
        for name, broker in self.lab.brokers.items():
            arguments += ["--broker", f"{name}={HOST}:{broker.port}"]
            arguments += ["--subscriptions", f"{name}={broker.log}"]
        for name in PASSWORDS:
            arguments += ["--login", f"{name}=links:{self.folder / name}.secret"]
        arguments += ["--tls", "no", "--tls", f"{TLS}={self.ca}"]
        code, _, err = run("init", "-o", file, *arguments, *options)
        assert code == 0, err
        return file

    def close(self):
        """End all clients and brokers."""
        for client in self._clients:
            client.disconnect()
            client.loop_stop()
        for process in self._processes:
            process.kill()
            process.wait()
        for reader in self._readers:
            reader.join()
        self.lab.close()


@pytest.fixture
def fleet(tmp_path):
    folder = tmp_path / "fleet"
    folder.mkdir()
    running = Fleet(folder)
    try:
        running.start_clients()
        yield running
    finally:
        running.close()


def planned(fleet, run, file, *discover_options):
    """`doctor`, `discover` and `link`; returns the folder of the plan, and what `link` printed."""
    code, out, err = run("doctor", file, "--json")
    assert code in (0, 1), err
    wrong = [one for one in json.loads(out)["findings"] if one["verdict"] == "must change"]
    assert not wrong
    tables, plan = fleet.folder / "tables", fleet.folder / "plan"
    code, out, err = run("discover", file, "-o", tables, *discover_options)
    assert code == 0, out + err
    code, out, err = run("link", tables, "-o", plan)
    assert code == 0, err
    return plan, out


def install(fleet, run, plan, file, *options):
    """Export, and install as docs/deploy.md says: each broker includes its file, and restarts."""
    conf = fleet.folder / "conf"
    code, out, err = run("deploy", "export", plan, "--fleet", file, "-o", conf, "--with-secrets", *options)
    assert code == 0, err
    assert conf.stat().st_mode & 0o777 == 0o700
    assert {entry.stat().st_mode & 0o777 for entry in conf.glob("broker-*")} == {0o600}
    for name in NAMES:
        shutil.copy(conf / f"broker-{name}.conf", fleet.folder / "conf.d" / name / "links.conf")
    fleet.restart()
    for link in json.loads((conf / "deployment.json").read_text())["links"]:
        for text in link["into"]:
            fleet.lab.brokers[link["peer"]].wait_for(f"r.broadloom-{link['owner']}:{link['peer']} 1 {text}")
    return out


@contextmanager
def live_links(fleet, plan, file, *options):
    """The live plane in a process of its own."""
    load_kernels()  # a first compilation takes longer than the test waits
    command = [sys.executable, "-m", "broadloom.cli", "controller", file, "--plan", plan, "--with-agents"]
    command += ["--state", fleet.folder / "state", *options]
    log = fleet.folder / "live.log"
    with log.open("wb") as stream:
        process = subprocess.Popen([*killed_with_parent(), *map(str, command)], stderr=stream, stdout=stream)
    try:
        wait_until(lambda: "answers at" in log.read_text() or process.poll() is not None, "a controller")
        assert process.poll() is None, log.read_text()
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, log.read_text()


def test_exported_links_deliver_everything_exactly_once_from_any_broker(fleet, run):
    """Five brokers, two with passwords and one with TLS; eleven clients; one broker without subscribers."""
    file = fleet.init(run)
    plan, said = planned(fleet, run, file)
    assert "any broker can publish every topic: " in said
    assert "not carried" not in said
    code, out, err = run("deploy", "check", plan, "--fleet", file)
    assert (code, "no loops, no duplicates, every subscriber is reached" in out) == (0, True), err
    printed = install(fleet, run, plan, file)
    for password in PASSWORDS.values():
        assert password not in printed
    deliveries = fleet.check()
    per_message = sum(matches(members[0].text, topic) for members in fleet.groups() for topic in TOPICS)
    assert deliveries == 2 * len(NAMES) * per_message


def test_the_live_plane_delivers_everything_exactly_once_from_any_broker(fleet, run):
    """Also after a client at kyiv has subscribed: the links follow by themselves."""
    controller = f"{HOST}:{free_ports(1)[0]}"
    file = fleet.init(run, "--controller", controller, "--key-file", fleet.folder / "key")
    plan, _ = planned(fleet, run, file)

    def status():
        code, said, error = run("status", file, "--json")
        return json.loads(said) if code != 3 else {"settled": False, "problems": [error]}

    with live_links(fleet, plan, file):
        groups = bl.Plan.load(plan).interest.topic_count
        wait_until(lambda: status()["settled"] and status()["hops_up"] > 0, "links are up")
        assert status()["groups"] <= groups
        fleet.check()
        before = status()["version"]
        fleet.add_client("kyiv", "p5", "status/+/up", None)
        fleet.wait_for_clients()

        def is_followed():
            found = status()
            return found["settled"] and found["version"] > before

        wait_until(is_followed, "links that follow the client")
        for one in fleet.subscribers:
            one.received.clear()
        fleet.check(rounds=(3, 4))


def test_with_observed_publishers_exactly_what_was_listed_is_missing(fleet, run):
    """Kyiv publishes alarms while discover listens, and lyon sensors; the list names the rest."""
    file = fleet.init(run, "--publishers", "observed")
    stop = threading.Event()
    seen = [("kyiv", "alarms/fire"), ("lyon", "sensors/b/hum")]

    def keep_publishing():
        while not stop.wait(0.2):
            for broker, topic in seen:
                command = ["mosquitto_pub", *fleet.access(broker), "-t", topic, "-m", "before"]
                subprocess.run(command, check=True, timeout=30)

    publisher = threading.Thread(target=keep_publishing)
    publisher.start()
    try:
        plan, said = planned(fleet, run, file, "--listen", "2s")
    finally:
        stop.set()
        publisher.join()
    listed = {row.node: row for row in bl.Plan.load(plan).not_carried.publications}
    assert "not carried from" in said
    assert "not carried from" in run("verify", plan)[1]
    assert "not carried from" in run("deploy", "check", plan, "--fleet", file)[1]
    assert "not carried from" in install(fleet, run, plan, file)

    def is_missing(broker, topic):
        row = listed.get(broker)
        return row is not None and (
            any(matches(text, topic) for text in row.filters)
            and not any(matches(text, topic) for text in row.carried)
        )

    assert not any(is_missing(broker, topic) for broker, topic in seen)
    assert is_missing("kyiv", "status/web/up")
    for one in fleet.subscribers:
        one.received.clear()
    fleet.check(is_missing)

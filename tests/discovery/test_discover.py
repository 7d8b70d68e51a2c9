"""`broadloom discover` on five real mosquitto brokers with eleven ordinary clients, up to a plan."""

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from types import SimpleNamespace

import paho.mqtt.client as mqtt
import pytest
from broker_lab import password_file, secret, small_brokers

import broadloom as bl
from broadloom.deployment import FleetBroker
from broadloom.discovery import observed_publications
from broadloom.discovery.observed_publications import UPTIME, BrokerListener
from broadloom.model import read_link_problem
from broadloom.mqtt.topic_filters import SHARED
from broadloom.progress import Silent, watched_by
from broadloom.storage.tables import read_table
from certificates import authority
from fleet_lab import HOST, WAIT_SECONDS, fleet_lab, wait_until

pytestmark = [pytest.mark.needs("mosquitto", "mosquitto_sub"), pytest.mark.xdist_group("mosquitto")]
LISTENER = "broadloom-discover-"
TOPIC_LOG = "log_dest topic"


def wanted(lab):
    """The filters of the clients, without shared groups and the broker's own topics, by broker and sorted."""
    bare = {name: {re.sub(SHARED, "", text) for text in texts} for name, texts in lab.filters.items()}
    return sorted((name, text) for name, texts in bare.items() for text in texts if text[0] != "$")


def rows(folder, name):
    """The rows of a table as tuples."""
    return [tuple(row.values()) for row in read_table(folder, name).to_pylist()]


def wait_for_receipt(broker, topic):
    """Wait until the listener has acknowledged a message, and so all before it."""
    broker.wait_for("Sending PUBLISH", LISTENER, f"'{topic}'")
    sent = next(
        line for line in broker.lines() if "Sending" in line and LISTENER in line and f"'{topic}'" in line
    )
    client, number = re.search(r"PUBLISH to (\S+) .* m(\d+), ", sent).groups()
    broker.wait_for(f"Received PUBACK from {client} (Mid: {number},")


def paho_client(port):
    """An MQTT 5 client of paho that subscribes to three filters and leaves two of them again."""
    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, "o3", protocol=mqtt.MQTTv5)
    client.on_connect = lambda *_: client.subscribe([("paho/+", 1), ("left/#", 1), ("$share/g/left", 1)])
    client.on_subscribe = lambda *_: client.unsubscribe(["left/#", "$share/g/left"])
    client.connect(HOST, port)
    client.loop_start()
    return client


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """Five brokers: what they know of their clients is in different sources."""
    folder = tmp_path_factory.mktemp("fleet")
    with fleet_lab(folder, rome="", oslo="", bonn="", lyon=TOPIC_LOG, wien="") as running:
        keep = ("-c",)
        running.subscribe("rome", "r1", "sensors/+/temp", options=keep)
        running.subscribe("rome", "r2", "alarms/#", "$SYS/broker/uptime", options=keep)
        running.subscribe("rome", "r3", "sensors/#", options=(*keep, "-V", "5", "-x", "3600"))
        running.subscribe("oslo", "o1", "$share/group/jobs/+")
        running.subscribe("oslo", "o 2", "+/status", "alarms/fire now")
        running.subscribe("oslo", "tco-rome-oslo", "alarms/#")
        running.subscribe("bonn", "b1", "sensors/#", options=keep)
        running.subscribe("bonn", "b2", "$share/group/jobs/+", "plain")
        running.subscribe("bonn", "b3", "#")
        paho = paho_client(running.brokers["oslo"].port)
        running.brokers["oslo"].wait_for("Sending UNSUBACK to o3")
        running.filters["oslo"].append("paho/+")
        running.brokers["rome"].save("sensors/#")
        running.brokers["bonn"].save("b1")
        running.filters["oslo"].remove("alarms/#")  # of our own link
        yield running
        paho.disconnect()
        paho.loop_stop()


@pytest.fixture(scope="module")
def discovered(lab):
    """The output of one run; clients of the fourth broker come while it listens, and Ctrl-C ends it."""
    oslo, bonn = lab.brokers["oslo"], lab.brokers["bonn"]
    sources = {
        "rome": f'"{lab.brokers["rome"].saved}"',
        "oslo": f'"{oslo.log}"',
        "bonn": f'["{bonn.saved}", "{bonn.log}"]',
    }
    fleet = lab.fleet_file(sources, links='[links]\npublishers = "observed"\nmax_degree = 3')
    lab.publish("wien", "sensors/old/temp", "kept", "-r")
    output = lab.folder / "tables"
    verb = ["discover", fleet, "--listen", "10m", "-o", output, "--json"]
    command = [sys.executable, "-m", "broadloom.cli", *verb]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    for broker in lab.brokers.values():
        broker.wait_for("Sending SUBACK", LISTENER, count=2)
    lab.subscribe("lyon", "l1", "sensors/+/humidity")
    lab.subscribe("lyon", "l2", "$share/other/jobs/#")
    for name in ("wien", "rome"):
        lab.publish(name, f"sensors/{name}/temp", "21.5")
        lab.publish(name, f"sensors/{name}/temp", "22.5")
        lab.publish(name, f"end/{name}", "")
        wait_for_receipt(lab.brokers[name], f"end/{name}")
    lab.publish("lyon", "end/lyon", "")
    wait_for_receipt(lab.brokers["lyon"], "end/lyon")
    run.send_signal(signal.SIGINT)
    out, err = run.communicate(timeout=60)
    assert run.returncode == 0, (out, err)
    assert err == b""
    return output, json.loads(out)


def test_the_table_has_exactly_the_filters_of_the_clients(lab, discovered):
    """From mosquitto.db, logs and $SYS, with wildcards and shared subscriptions; our own link is left out."""
    folder, record = discovered
    assert rows(folder, "subscriptions") == sorted(
        wanted(lab), key=lambda row: (list(lab.brokers).index(row[0]), row[1])
    )
    assert record["complete"] is True
    assert sum(broker["clients"] for broker in record["brokers"]) == 11
    assert {broker["broker"]: broker["complete"] for broker in record["brokers"]} == dict.fromkeys(
        lab.brokers, True
    )


def test_publications_are_those_of_the_publishers_while_it_listened(discovered):
    """A retained message from before is not a publication; rates are bytes per second."""
    folder, record = discovered
    published = rows(folder, "publications")
    assert [row[:2] for row in published] == [
        ("rome", "end/rome"),
        ("rome", "sensors/rome/temp"),
        ("lyon", "end/lyon"),
        ("wien", "end/wien"),
        ("wien", "sensors/wien/temp"),
    ]
    packet = 2 + 2 + len("sensors/rome/temp") + 2 + 1 + len("21.5")
    assert published[1][2] == pytest.approx(2 * packet / record["brokers"][0]["listened_seconds"], rel=1e-4)


def test_what_is_left_out_is_listed_with_its_reason(discovered):
    folder, record = discovered
    assert rows(folder, "not_carried") == [("rome", "$SYS/broker/uptime", "topic of the broker itself")]
    account = record["tables"][0]
    assert account["quarantined"]["our own link"] == 1
    assert account["rows"] == account["used"] + account["duplicates"] + sum(account["quarantined"].values())
    assert json.loads((folder / "links.json").read_text()) == {"publishers": "observed", "max_degree": 3}
    assert json.loads((folder / "discovery.json").read_text()) == record


def test_a_shared_group_at_two_brokers_is_noted(discovered):
    (note,) = discovered[1]["notes"]
    assert note.startswith("the shared subscription $share/group/jobs/+ exists at oslo, bonn:")


def test_each_source_says_what_it_is(discovered):
    """A persistence file says how old it is, and what it lacks."""
    by_name = {broker["broker"]: broker for broker in discovered[1]["brokers"]}
    assert [source["kind"] for source in by_name["bonn"]["sources"]] == ["mosquitto-db", "mosquitto"]
    assert by_name["lyon"]["sources"][0]["source"] == "$SYS/broker/log"
    notes = "\n".join(by_name["rome"]["notes"])
    assert "mosquitto.db was written" in notes
    assert "lacks clients with a clean session and shared subscriptions" in notes
    notes = "\n".join(by_name["bonn"]["notes"])
    assert "mosquitto.db was written" in notes
    assert "lacks clients" not in notes  # its log is a source too
    assert all(0 < broker["rtt_ms"] < 10_000 for broker in by_name.values())


def test_the_tables_lead_to_a_plan(discovered, tmp_path, run):
    """Overlapping filters are one group, and each group is connected; the plan knows what was observed."""
    problem = read_link_problem(discovered[0])
    assert bl.link(problem.interest, problem.weights).metrics()["topic_connected"]
    assert run("link", discovered[0], "-o", tmp_path / "plan")[0] == 0
    assert run("verify", tmp_path / "plan")[0] == 0
    plan = bl.Plan.load(tmp_path / "plan")
    assert plan.publishers.mode == "observed"


def test_missing_subscriptions_are_found_by_the_count_of_the_broker(lab, tmp_path, run):
    """mosquitto.db alone lacks clean sessions and shared groups: exit code 1, and nothing is written."""
    bonn = lab.brokers["bonn"]
    fleet = tmp_path / "fleet.toml"
    text = f'[brokers.bonn]\naddress = "{HOST}:{bonn.port}"\ntls = false\nsubscriptions = "{bonn.saved}"'
    fleet.write_text(text)

    def is_counted():
        (found,) = bl.discover(fleet, tmp_path / "tables", partial=True, overwrite=True).brokers
        return found.observed.counted == 4

    wait_until(is_counted, "the broker counts the clients that have just subscribed")
    shutil.rmtree(tmp_path / "tables")
    code, out, err = run("discover", fleet, "-o", tmp_path / "tables")
    assert (code, err) == (1, "")
    expected = "the broker counts 4 subscriptions, and the sources show 1: 3 are missing; add a log"
    assert f"MISSING at bonn: {expected}" in out
    assert "nothing was written" in out
    assert not (tmp_path / "tables").exists()
    code, out, _ = run("discover", fleet, "-o", tmp_path / "tables", "--partial", "--json")
    assert (code, json.loads(out)["complete"]) == (0, False)
    assert rows(tmp_path / "tables", "not_carried") == [
        ("bonn", "#", "the broker's subscriptions are not all known")
    ]
    code, out, err = run("discover", fleet, "-o", tmp_path / "more", "--quiet")
    assert (code, out) == (1, "")
    assert err.startswith("MISSING at bonn")


def test_carried_filters_limit_subscriptions_and_listening(lab, tmp_path):
    """A filter is cut to what is carried, and the rest is listed."""
    oslo = lab.brokers["oslo"]
    text = f'[brokers.oslo]\naddress = "{HOST}:{oslo.port}"\ntls = false\nsubscriptions = "{oslo.log}"\n'
    (tmp_path / "fleet.toml").write_text(f'{text}[links]\ncarry = ["alarms/#", "jobs/+"]')
    found = bl.discover(tmp_path / "fleet.toml", tmp_path / "tables")
    assert rows(tmp_path / "tables", "subscriptions") == [
        ("oslo", "alarms/fire now"),
        ("oslo", "alarms/status"),
        ("oslo", "jobs/+"),
        ("oslo", "jobs/status"),
    ]
    assert found.brokers[0].not_carried == [
        ("+/status", "links carry only alarms/status, jobs/status of it"),
        ("paho/+", "outside of what links carry"),
    ]


def test_too_many_topics_are_cut_and_said(lab, tmp_path, monkeypatch):
    monkeypatch.setattr(observed_publications, "MOST_TOPICS", 1)
    wien = lab.brokers["wien"]
    path = tmp_path / "fleet.toml"
    path.write_text(f'[brokers.wien]\naddress = "{HOST}:{wien.port}"\ntls = false')

    listening = threading.Event()

    class Stages(Silent):
        def start(self, stage, _):
            if stage.startswith("listen"):
                listening.set()

    def publish():
        wien.wait_for("Sending SUBACK", f"{LISTENER}{os.getpid():x}-", count=2)
        for number in range(3):
            lab.publish("wien", f"many/{number}", "x")
        wait_for_receipt(wien, "many/2")
        assert listening.wait(WAIT_SECONDS)  # earlier, Ctrl-C ends the command
        os.kill(os.getpid(), signal.SIGINT)

    publisher = threading.Thread(target=publish)
    publisher.start()
    with watched_by(Stages()):
        found = bl.discover(path, tmp_path / "tables", listen=600)
    publisher.join()
    assert len(found.brokers[0].observed.traffic) == 1
    assert found.listened < 600
    assert "2 messages on topics after the first 1 are not listed" in found.brokers[0].notes


@pytest.mark.needs("openssl", "mosquitto_passwd")
def test_each_broker_has_its_own_login_and_tls(tmp_path, run):
    """A wrong password and a wrong authority are said, without the secret; the other brokers are read."""
    good, other = (authority(tmp_path / name) for name in ("good", "other"))
    users = password_file(tmp_path, reader="tops3cret")
    closed = f"allow_anonymous false\npassword_file {users}\nsys_interval 1"
    tls = f"cafile {good}/ca.crt\ncertfile {good}/broker.crt\nkeyfile {good}/broker.key"
    settings = {"rome": closed, "oslo": f"{closed}\n{tls}", "bonn": closed, "wien": f"{closed}\n{tls}"}
    secret(tmp_path, "right", "tops3cret")
    secret(tmp_path, "wrong", "0ther-s3cret")
    login = 'login = { user = "reader", password_file = "%s" }'
    lines = {
        "rome": f"tls = false\n{login % 'right'}",
        "oslo": f'tls = {{ ca = "{good}/ca.crt" }}\n{login % "right"}',
        "bonn": f"tls = false\n{login % 'wrong'}",
        "wien": f'tls = {{ ca = "{other}/ca.crt" }}\n{login % "right"}',
    }
    with small_brokers(tmp_path, **settings) as brokers:
        sections = [
            f'[brokers.{name}]\naddress = "{broker.address}"\n{lines[name]}'
            for name, broker in brokers.items()
        ]
        (tmp_path / "fleet.toml").write_text("\n".join(sections))

        def is_counted():
            found = bl.discover(tmp_path / "fleet.toml", tmp_path / "tables")
            return [one.observed.counted for one in found.brokers] == [0, 0, None, None]

        wait_until(is_counted, "two brokers publish their counts")
        code, out, err = run("discover", tmp_path / "fleet.toml", "-o", tmp_path / "tables", "--json")
    assert (code, err) == (1, "")
    by_name = {broker["broker"]: broker for broker in json.loads(out)["brokers"]}
    assert [by_name[name]["complete"] for name in settings] == [True, True, False, False]
    assert "refuses the connection (0x87)" in by_name["bonn"]["notes"][0]
    assert "certificate verify failed" in by_name["wien"]["notes"][0]
    assert "s3cret" not in out


def test_subscriptions_of_bridges_are_noted(tmp_path):
    """A bridge made by hand subscribes at both of its ends; the broker that has it counts that, too."""
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    with fleet_lab(tmp_path / "one", oslo="") as far:
        oslo = far.brokers["oslo"]
        bridge = f"connection hand\naddress {HOST}:{oslo.port}\nremote_clientid hand\ntopic # both 1"
        with fleet_lab(tmp_path / "two", rome=bridge) as near:
            rome = near.brokers["rome"]
            oslo.wait_for(": hand 1 #")
            rome.save("local.")
            sections = [
                f'[brokers.{one.name}]\ntls = false\naddress = "{HOST}:{one.port}"\nsubscriptions = "{file}"'
                for one, file in ((oslo, oslo.log), (rome, rome.saved))
            ]
            (tmp_path / "fleet.toml").write_text("\n".join(sections))
            found = []

            def is_counted():
                found[:] = bl.discover(tmp_path / "fleet.toml", tmp_path / "tables", overwrite=True).brokers
                return [one.observed.counted for one in found] == [1, 1] and found[0].observed.bridges

            wait_until(is_counted, "both brokers count the bridge")
    assert [one.problems for one in found] == [[], []]
    notes = [note for one in found for note in one.notes if "bridge" in note]
    assert notes[0].startswith("the bridge 'hand' subscribes here, which counts as interest of clients;")
    assert notes[1].startswith("the bridge 'local.hand' subscribes here")


def test_clients_that_have_just_left_are_not_missing(tmp_path):
    """The retained count of a broker can still have a client that has left: it waits for the next one."""
    with fleet_lab(tmp_path, rome="") as lab:
        rome = lab.brokers["rome"]
        counts = []
        client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id="gone")
        client.on_message = lambda _client, _data, message: counts.append(int(message.payload))
        client.connect(HOST, rome.port)
        client.subscribe([("$SYS/broker/subscriptions/count", 0), ("a", 0), ("b/+", 0)])
        client.loop_start()
        wait_until(lambda: 3 in counts, "the broker counts three subscriptions")
        client.disconnect()
        client.loop_stop()
        rome.wait_for("Client gone disconnected")
        text = f'[brokers.rome]\naddress = "{HOST}:{rome.port}"\ntls = false\nsubscriptions = "{rome.log}"'
        (tmp_path / "fleet.toml").write_text(text)
        (found,) = bl.discover(tmp_path / "fleet.toml", tmp_path / "tables").brokers
    assert (found.problems, found.observed.counted, found.found) == ([], 0, 0)


class ForgetfulSession:
    """Session at a Mosquitto with seven plain and two shared subscriptions, none of which has changed lately.

    The broker publishes a count only when it differs from the one before; retained ones expired.
    """

    client = "broadloom-discover-1"

    def __init__(self):
        self.last = {"subscriptions": 7, "shared_subscriptions": 2}
        self.filters = set()
        self.listener = None

    def tell(self, topic, text):
        """Deliver a message."""
        self.listener.arrived(self, SimpleNamespace(number=0, topic=topic, payload=lambda: text.encode()))

    async def subscribe(self, filters, retained):
        """Subscribe; with the uptime but not its retained message, the next interval is over."""
        self.filters |= set(filters)
        if UPTIME in filters:
            self.tell(UPTIME, "100 seconds")
        if UPTIME in filters and not retained:
            shared = sum(text.startswith("$share/") for text in self.filters)
            now = {"subscriptions": 7 + len(self.filters) - shared, "shared_subscriptions": 2 + shared}
            for kind in now:
                if now[kind] != self.last[kind]:
                    self.tell(f"$SYS/broker/{kind}/count", str(now[kind]))

    async def unsubscribe(self, filters):
        """Unsubscribe."""
        self.filters -= set(filters)


def test_counts_that_the_broker_has_forgotten_are_asked_for_again():
    """Mosquitto forgets a count that has not changed for a minute: no shared subscription is overlooked."""
    listener = BrokerListener(FleetBroker("rome", HOST, tls=None), ())
    session = listener._session = ForgetfulSession()
    session.listener = listener

    async def listen():
        await listener.opened(session, None)
        before = listener.found.counted, listener.doubts(9)
        await listener.recount()
        return before

    assert asyncio.run(listen()) == (None, True)
    assert (listener.found.counted, listener.doubts(9), listener.doubts(8)) == (9, False, True)
    assert session.filters == set()

"""`doctor` on real mosquitto brokers: each fault has a line of its own, and a healthy fleet has none."""

import asyncio
import json
import subprocess

import pytest
from broker_lab import SmallBroker, answering, password_file, secret, small_brokers

import broadloom as bl
from broadloom.deployment import FleetBroker, FleetLinks, FleetLogin, FleetTls
from broadloom.discovery import Finding
from broadloom.discovery.broker_probes import QUEUE_MESSAGES, log_skew
from broadloom.mqtt import Address
from broadloom.mqtt.probe_client import ProbeClient
from certificates import authority

pytestmark = [pytest.mark.needs("mosquitto"), pytest.mark.xdist_group("mosquitto")]

OPEN = "allow_anonymous true"
QUICK = "restart_timeout 1"
GOOD = "max_queued_messages 0\npersistence true\nautosave_interval 60\nlog_dest topic\nlog_type all"


def plain(name, broker, **fields):
    """A broker of a fleet without TLS."""
    return FleetBroker(name, getattr(broker, "address", broker), tls=None, **fields)


def found(report, check, broker=None):
    """The findings of a check."""
    return [one for one in report.findings if one.check == check and broker in (None, one.broker)]


def verdicts(report, check, broker=None):
    return [one.verdict for one in found(report, check, broker)]


def test_a_healthy_fleet_has_nothing_that_must_change(tmp_path):
    """Two brokers, one with a password, both with good settings and a configuration that can be read."""
    users = password_file(tmp_path, broadloom="sesame")
    login = FleetLogin("broadloom", secret(tmp_path, "secret", "sesame"))
    closed = f"allow_anonymous false\npassword_file {users}"
    with small_brokers(tmp_path, rome=f"{closed}\n{GOOD}", oslo=f"{OPEN}\n{GOOD}") as brokers:
        fleet = bl.Fleet(
            [
                plain("rome", brokers["rome"], login=login, config=str(brokers["rome"].config)),
                plain("oslo", brokers["oslo"]),
            ]
        )
        report = bl.doctor(fleet)
    assert report.ok, report.lines(everything=True)
    rome = [one for one in report.findings if one.broker == "rome"]
    checks = ["reach", "login", "mqtt 5", "session expiry", "limits", "kind", "read", "write", "own topics"]
    assert [one.check for one in rome] == [*checks, "queue", "clock", "persistence", "subscriptions"]
    assert {one.verdict for one in rome if one.check != "subscriptions"} == {"ok"}
    assert verdicts(report, "login", "oslo") == ["advice"]
    assert [one.found for one in found(report, "bridges")] == ["no broker has bridges yet"]
    assert report.to_table().num_rows == len(report.records()) == len(report.findings)
    assert "sesame" not in json.dumps(report.records())


def test_a_wrong_password_is_told_apart_from_a_refused_anonymous_client(tmp_path):
    users = password_file(tmp_path, broadloom="sesame")
    login = FleetLogin("broadloom", secret(tmp_path, "secret", "wr0ng"))
    with small_brokers(tmp_path, rome=f"allow_anonymous false\npassword_file {users}") as brokers:
        wrong = bl.doctor(bl.Fleet([plain("rome", brokers["rome"], login=login)]))
        anonymous = bl.doctor(bl.Fleet([plain("rome", brokers["rome"])]))
    (one,) = found(wrong, "login")
    assert (one.verdict, one.found) == ("must change", "user 'broadloom' is refused: wrong name or password")
    assert login.password_file in one.setting
    (one,) = found(anonymous, "login")
    assert (one.verdict, one.found) == ("must change", "anonymous clients are refused")
    assert one.setting == 'login = { user = "...", password_file = "..." } in fleet.toml'
    assert not wrong.ok
    assert not anonymous.ok
    assert "wr0ng" not in json.dumps(wrong.records())


def test_a_missing_password_file_is_a_finding_of_its_broker(tmp_path):
    login = FleetLogin("broadloom", str(tmp_path / "missing"))
    report = bl.doctor(bl.Fleet([plain("rome", "127.0.0.1:1", login=login)]))
    assert "missing cannot be read" in found(report, "login")[0].found


@pytest.mark.needs("openssl", "faketime")
def test_each_fault_of_tls_has_its_own_line(tmp_path):
    """A wrong CA, an expired certificate or one for another name, plain text for TLS, and the reverse."""
    good, _, old, named = (authority(tmp_path / name) for name in ("good", "other", "old", "named"))
    renew(old, "faketime", "2020-01-01 00:00:00")
    (named / "names").write_text("subjectAltName=DNS:elsewhere.example.org\n")
    renew(named)
    text = f"{OPEN}\ncafile {{0}}/ca.crt\ncertfile {{0}}/broker.crt\nkeyfile {{0}}/broker.key\n"
    wants = text.format(good) + "require_certificate true"
    settings = {name: text.format(tmp_path / name) for name in ("good", "old", "named")}
    (tmp_path / "brokers").mkdir()
    with small_brokers(tmp_path / "brokers", **settings, plain=OPEN, wants=wants) as at:
        ca = {name: FleetTls(f"{tmp_path}/{name}/ca.crt") for name in ("good", "other", "old", "named")}
        fleet = bl.Fleet(
            [
                FleetBroker("good", at["good"].address, tls=ca["good"]),
                FleetBroker("ca", f"localhost:{at['good'].port}", tls=ca["other"]),
                FleetBroker("old", at["old"].address, tls=ca["old"]),
                FleetBroker("named", at["named"].address, tls=ca["named"]),
                FleetBroker("plain", at["plain"].address, tls=ca["good"]),
                FleetBroker("wants", at["wants"].address, tls=ca["good"]),
            ]
        )
        report = bl.doctor(fleet)
        reverse = bl.doctor(bl.Fleet([plain("tls", at["good"])]))
    lines = {name: [(one.verdict, one.found) for one in found(report, "tls", name)] for name in fleet.brokers}
    assert lines["good"] == [("ok", "TLSv1.3, the certificate is valid")]
    wrong_ca = f"wrong CA: the certificate is not signed by the authority in {tmp_path}/other/ca.crt"
    assert lines["ca"] == [("must change", wrong_ca)]
    assert lines["old"] == [("must change", "the certificate has expired")]
    assert lines["named"] == [("must change", "the certificate is not for 127.0.0.1")]
    assert lines["plain"] == [("must change", "the port speaks plain text, not TLS")]
    assert found(report, "tls", "plain")[0].setting == "tls = false in fleet.toml"
    assert ("must change", "the broker wants a certificate of the client") in lines["wants"]
    assert [one.found for one in found(reverse, "tls")] == ["the port speaks TLS, not plain text"]


@pytest.mark.parametrize(
    "refusal",
    [b"\x20\x02\x00\x01", b"\x20\x03\x00\x84\x00", None],
    ids=["code of 3.1.1", "code of 5", "connection closed"],
)
def test_a_broker_with_mqtt_311_only_is_found(refusal):
    """Whichever way it refuses MQTT 5: the byte after the protocol's name is its version."""
    with answering(lambda packet: refusal if packet[8:9] == b"\5" else b"\x20\x02\x00\x00") as address:
        report = bl.doctor(bl.Fleet([plain("old", address)]))
    (one,) = found(report, "mqtt 5")
    assert one.verdict == "must change"
    assert "MQTT 3.1.1 only" in one.found
    assert one.setting == "update the broker: mosquitto 1.6 or later"


def test_a_missing_right_to_write_is_tried_and_not_guessed(tmp_path):
    """A line per filter that the user must not write; the others, and other users, are good."""
    users = password_file(tmp_path, broadloom="sesame")
    rules = tmp_path / "acl"
    rules.write_text("user broadloom\ntopic readwrite sensors/#\ntopic read alarms/#\n")
    rules.chmod(0o644)
    text = f"allow_anonymous false\npassword_file {users}\nacl_file {rules}"
    login = FleetLogin("broadloom", secret(tmp_path, "secret", "sesame"))
    with small_brokers(tmp_path, rome=text) as brokers:
        fleet = bl.Fleet(
            [plain("rome", brokers["rome"], login=login)], FleetLinks(("sensors/#", "alarms/+/x"))
        )
        report = bl.doctor(fleet)
        delivered = bl.doctor(fleet, deliver=True)
        everything = bl.doctor(bl.Fleet(fleet.brokers.values()))
    (one,) = found(report, "write")
    assert found(delivered, "write") == [one], "tried twice, and said once"
    assert (one.verdict, one.found) == ("must change", "no right to write alarms/+/x: not authorized (0x87)")
    assert one.setting == "topic write alarms/+/x below `user broadloom` in acl_file"
    (own,) = found(report, "own topics")
    assert own.verdict == "advice"
    assert own.setting == "topic readwrite $broadloom/# below `user broadloom` in acl_file"
    assert verdicts(report, "queue") == ["not seen"]
    assert [one.found for one in found(everything, "write")] == ["no right to write #: not authorized (0x87)"]
    assert verdicts(report, "bridges") == ["not seen"], "the user cannot read $SYS either"


def test_a_missing_right_to_read_is_found_by_a_real_message(tmp_path):
    """Mosquitto accepts every subscription, so only a message shows it; it is sent on request alone."""
    rules = tmp_path / "acl"
    rules.write_text("topic readwrite sensors/#\ntopic write alarms/#\ntopic readwrite $broadloom/#\n")
    rules.chmod(0o644)
    with small_brokers(tmp_path, rome=f"{OPEN}\nacl_file {rules}") as brokers:
        fleet = bl.Fleet([plain("rome", brokers["rome"])], FleetLinks(("sensors/#", "alarms/#")))
        silent, active = bl.doctor(fleet), bl.doctor(fleet, deliver=True)
    assert verdicts(silent, "read") == ["ok"]
    assert verdicts(active, "read") == ["ok", "must change"]
    assert found(active, "read")[1].setting == "topic read alarms/# in acl_file"


@pytest.mark.parametrize(
    ("setting", "verdict"),
    [("max_queued_messages 100", "must change"), ("", "advice"), ("max_queued_messages 5000", "ok")],
    ids=["small", "default", "large"],
)
def test_the_queue_is_counted(tmp_path, setting, verdict):
    """Mosquitto queues 1000 messages by default; fewer must change, and more are advised."""
    with small_brokers(tmp_path, rome=f"{OPEN}\n{setting}") as brokers:
        report = bl.doctor(bl.Fleet([plain("rome", brokers["rome"])]))
    (one,) = found(report, "queue")
    kept = {"must change": 100, "advice": 1000, "ok": QUEUE_MESSAGES}[verdict]
    assert one.verdict == verdict
    assert f"{kept:,}" in one.found
    if verdict != "ok":
        assert one.setting == "max_queued_messages 100000 in mosquitto.conf"


def test_a_ring_of_bridges_made_by_hand_is_found(tmp_path):
    """Three brokers in a ring: seen from outside by the state that bridges publish at both ends."""
    names = ("rome", "oslo", "bern")
    brokers = {name: SmallBroker(tmp_path / name, OPEN) for name in names}
    for name, peer in zip(names, ("oslo", "bern", "rome"), strict=True):
        brokers[name].settings += f"\nconnection to-{peer}\naddress {brokers[peer].address}\n{QUICK}"
        brokers[name].settings += f"\nremote_clientid {name}-{peer}\ntopic sensors/# both 1"
    with brokers["bern"].running(), brokers["oslo"].running(), brokers["rome"].running():
        wait_for_bridges(brokers.values(), 2)
        report = bl.doctor(bl.Fleet([plain(name, one) for name, one in brokers.items()]))
        configs = [plain(name, one, config=str(one.config)) for name, one in brokers.items()]
        known = bl.doctor(bl.Fleet(configs))
    for one in (report, known):
        (ring,) = found(one, "ring")
        assert (ring.broker, ring.verdict) == ("(fleet)", "must change")
        assert {name for name in names if name in ring.found} == set(names)
        assert "remove `connection " in ring.setting
        assert verdicts(one, "bridges") == ["advice"] * 3, (
            "each bridge has one line, however often it is seen"
        )
        assert not one.ok
    assert str(brokers["rome"].config) in found(known, "bridges", "rome")[0].setting


def test_bridges_without_a_ring_are_advice_and_links_of_broadloom_are_good(tmp_path):
    brokers = {name: SmallBroker(tmp_path / name, OPEN) for name in ("rome", "oslo", "bern")}
    for name, link in (("rome", "by-hand"), ("bern", "broadloom-bern:oslo")):
        brokers[name].settings += f"\nconnection {link}\naddress {brokers['oslo'].address}\n{QUICK}"
        brokers[name].settings += "\ntopic # both 1"
    with brokers["oslo"].running(), brokers["rome"].running(), brokers["bern"].running():
        wait_for_bridges([brokers["rome"], brokers["bern"]], 1)
        wait_for_bridges([brokers["oslo"]], 2)
        report = bl.doctor(bl.Fleet([plain(name, one) for name, one in brokers.items()]))
    assert sorted(verdicts(report, "bridges")) == ["advice", "ok"]
    assert not found(report, "ring")
    assert report.ok


@pytest.mark.needs("faketime")
def test_a_clock_two_minutes_off_is_found(tmp_path):
    """By the log that the broker publishes, or by a log file on this machine."""
    log = tmp_path / "rome.log"
    settings = (f"{OPEN}\nlog_dest topic", f"{OPEN}\nlog_dest file {log}")
    for number, setting in enumerate(settings):
        broker = SmallBroker(tmp_path / str(number), setting, prefix=("faketime", "-f", "+120s"))
        with broker.running():
            source = {"subscriptions": str(log)} if "file" in setting else {}
            report = bl.doctor(bl.Fleet([plain("rome", broker, **source)]))
        (one,) = found(report, "clock")
        assert one.verdict == "must change"
        assert one.found.startswith(("120 s ahead", "119 s ahead"))
        assert one.setting == "timedatectl set-ntp true on both machines"


def test_settings_in_mosquitto_conf_are_judged(tmp_path):
    """What cannot be seen from outside: persistence, the end of sessions, and what is logged."""
    text = f"{OPEN}\npersistent_client_expiration 2h\nlog_type error subscribe unsubscribe notice"
    with small_brokers(tmp_path, rome=text) as brokers:
        config = str(brokers["rome"].config)
        missing = str(tmp_path / "mosquitto.db")
        fleet = bl.Fleet([plain("rome", brokers["rome"], config=config, subscriptions=missing)])
        report = bl.doctor(fleet)
        lost = bl.doctor(bl.Fleet([plain("rome", brokers["rome"], config=missing)]))
    assert verdicts(report, "persistence") == ["advice"]
    assert found(report, "persistence")[0].setting == f"persistence true in {config}"
    assert found(report, "session expiry")[1].setting == f"persistent_client_expiration 14d in {config}"
    setting = found(report, "log")[0].setting
    assert setting.startswith("log_type notice, log_type subscribe, log_type unsubscribe, a line each")
    assert verdicts(report, "subscriptions") == verdicts(lost, "config") == ["must change"]


@pytest.mark.parametrize(
    ("text", "persistence", "limits"),
    [
        ("persistence true", "autosave_interval 60", None),
        ("persistence true\nautosave_interval 0", "autosave_interval 60", None),
        ("persistence true\nautosave_interval 300", None, None),
        ("persistence true\nautosave_on_changes true", None, None),
        ("max_inflight_messages 5", "persistence true", "max_inflight_messages 200"),
        ("allow_duplicate_messages true", "persistence true", "allow_duplicate_messages false"),
        ("allow_duplicate_messages false", "persistence true", None),
    ],
)
def test_what_links_need_of_mosquitto_conf_is_advice(tmp_path, text, persistence, limits):
    """Exported files do not set it."""
    with small_brokers(tmp_path, rome=f"{OPEN}\n{text}") as brokers:
        config = str(brokers["rome"].config)
        report = bl.doctor(bl.Fleet([plain("rome", brokers["rome"], config=config)]))
    for check, setting in (("persistence", persistence), ("limits", limits)):
        advice = [one.setting for one in found(report, check) if one.verdict == "advice"]
        assert advice == ([] if setting is None else [f"{setting} in {config}"])


def test_client_ids_that_are_replaced_by_user_names_are_found(tmp_path):
    """All links of a broker have one user there, so that they would end each other."""
    users = password_file(tmp_path, broadloom="sesame")
    text = f"allow_anonymous false\npassword_file {users}\nuse_username_as_clientid true"
    login = FleetLogin("broadloom", secret(tmp_path, "secret", "sesame"))
    with small_brokers(tmp_path, rome=text) as brokers:
        report = bl.doctor(bl.Fleet([plain("rome", brokers["rome"], login=login)]))
    (one,) = found(report, "client ids")
    assert one.verdict == "must change"
    assert "use_username_as_clientid" in one.setting


def test_a_broker_that_ends_in_the_middle_is_a_finding(tmp_path):
    """It accepts the login and nothing after that; the other brokers are checked all the same."""
    answers = iter([b"\x20\x03\x00\x00\x00"])

    def answer(packet):
        return next(answers, None) if packet else None

    with small_brokers(tmp_path, rome=OPEN) as brokers, answering(answer) as odd:
        report = bl.doctor(bl.Fleet([plain("odd", odd), plain("rome", brokers["rome"])]))
    assert verdicts(report, "login", "odd") == ["advice"]
    assert verdicts(report, "session", "odd") == ["must change"]
    assert verdicts(report, "write", "rome") == ["ok"]


def test_what_a_hostile_broker_says_cannot_control_a_terminal():
    one = bl.DoctorReport([Finding("rome", "kind", "ok", "\x1b[2J" + "x" * 9_999, "a\nb")]).findings[0]
    assert one.found.startswith("?[2Jxx")
    assert len(one.found) == 500
    assert one.setting == "a?b"


def test_a_mosquitto_that_does_not_publish_its_log_hides_subscriptions(tmp_path):
    with small_brokers(tmp_path, rome=OPEN, oslo=f"{OPEN}\n{GOOD}") as brokers:
        report = bl.doctor(bl.Fleet([plain(name, brokers[name]) for name in ("rome", "oslo")]))
    ((hidden,), (shown,)) = (found(report, "subscriptions", name) for name in ("rome", "oslo"))
    assert hidden.found == "discover and agents cannot see subscriptions"
    assert "; or log_dest topic, log_type subscribe, " in hidden.setting
    assert shown.found == "discover and agents cannot see subscriptions from before their start"
    assert "log_dest" not in shown.setting


def test_a_clock_that_cannot_be_seen_is_said(tmp_path):
    with small_brokers(tmp_path, rome=OPEN) as brokers:
        report = bl.doctor(bl.Fleet([plain("rome", brokers["rome"])]))
    assert [(one.verdict, one.setting) for one in found(report, "clock")] == [
        ("not seen", "log_dest topic in mosquitto.conf")
    ]


def test_the_time_zone_of_a_broker_is_not_its_skew():
    """A date in a log has no zone: two hours of another zone count for nothing, two minutes do."""
    assert log_skew("2023-11-15T00:15:20: New client", 1_700_000_000.0) == pytest.approx(120)


def test_no_client_sees_a_probe(tmp_path):
    """Not even a client that subscribes to everything."""

    async def watch(broker):
        async with ProbeClient(Address.parse(broker.address), "watcher") as watcher:
            await watcher.connect()
            await watcher.subscribe(["#", "+/#", "/#"])
            report = await asyncio.to_thread(bl.doctor, bl.Fleet([plain("rome", broker)]))
            await watcher.settle()
            return report, watcher.messages

    with small_brokers(tmp_path, rome=OPEN) as brokers:
        report, messages = asyncio.run(watch(brokers["rome"]))
        log = (brokers["rome"].folder / "log").read_text()
    assert verdicts(report, "write") == ["ok"]
    assert messages == []
    assert log.count("broadloom-doctor-") > 4


def test_no_session_stays_behind(tmp_path):
    """The persistent sessions of the probes are deleted."""
    with small_brokers(tmp_path, rome=f"{OPEN}\npersistence true\nsys_interval 1") as brokers:
        bl.doctor(bl.Fleet([plain("rome", brokers["rome"])]))
        saved = brokers["rome"].folder / "mosquitto.db"
    assert b"broadloom-doctor" not in saved.read_bytes()


def test_doctor_runs_inside_an_event_loop():
    """As in a notebook."""

    async def inside():
        return bl.doctor(bl.Fleet([plain("rome", "127.0.0.1:1")]))

    assert verdicts(asyncio.run(inside()), "reach") == ["must change"]


def test_names_that_do_not_resolve_and_silent_ports_are_findings():
    with answering(lambda _: b"HTTP/1.1 400 Bad Request\r\n\r\n") as web:
        report = bl.doctor(bl.Fleet([plain("lost", "no-such-host.invalid"), plain("web", web)]))
    assert found(report, "reach", "lost")[0].found.startswith("no-such-host.invalid has no address")
    assert verdicts(report, "login", "web") == ["must change"]


def test_the_command_line_prints_lines_or_json_and_exits_with_1(tmp_path, run):
    with small_brokers(tmp_path, rome=f"{OPEN}\n{GOOD}") as brokers:
        file = tmp_path / "fleet.toml"
        bl.Fleet([plain("rome", brokers["rome"])]).save(file)
        good = run("doctor", file)
        listed = run("doctor", file, "--all")
        bl.Fleet([plain("rome", brokers["rome"]), plain("oslo", "127.0.0.1:1")]).save(file, overwrite=True)
        bad = run("doctor", file, "--json")
        quiet = run("doctor", file, "--quiet")
        assert bl.doctor(file).ok is bl.doctor(bl.Fleet.load(file)).ok is False
    assert good[0] == 0
    assert good[1].splitlines()[-1].startswith("1 brokers: ")
    assert len(listed[1].splitlines()) > len(good[1].splitlines())
    assert bad[0] == 1
    record = json.loads(bad[1])
    assert record["ok"] is False
    assert {"broker", "check", "verdict", "found", "setting"} == set(record["findings"][0])
    assert quiet[:2] == (1, "")


def test_a_missing_fleet_file_is_one_line(tmp_path, run):
    code, out, err = run("doctor", tmp_path / "fleet.toml")
    assert (code, out) == (2, "")
    assert err.endswith("does not exist; write it with: broadloom init\n")


def wait_for_bridges(brokers, count):
    """Wait until each broker reports the state of so many bridges."""

    async def wait(broker):
        async with ProbeClient(Address.parse(broker.address), "waits") as client:
            await client.connect()
            await client.subscribe(["$SYS/broker/connection/#"])
            while len({message.topic for message in client.messages if message.payload == b"1"}) < count:
                await client.settle()
                await asyncio.sleep(0.02)

    async def wait_for_all():
        await asyncio.wait_for(asyncio.gather(*map(wait, brokers)), 60)

    asyncio.run(wait_for_all())


def renew(folder, *prefix):
    """Sign the broker's certificate again, for one day from another time on."""
    files = (
        "-in",
        "broker.csr",
        "-CA",
        "ca.crt",
        "-CAkey",
        "ca.key",
        "-extfile",
        "names",
        "-out",
        "broker.crt",
    )
    command = [*prefix, "openssl", "x509", "-req", *files, "-CAcreateserial", "-days", "1"]
    subprocess.run(command, check=True, capture_output=True, cwd=folder)

"""Injection: no name, address, topic, login or path changes the meaning of an exported file or a command.

Each hostile text goes into each field of each target. It is refused, or the result has the same structure as
with a harmless text, and contains the hostile text as a value. What is accepted is also read by the target's
own parser, where there is one: mosquitto, `nats-server -t`, and for EMQX the fields that it documents.
"""

import json
import os
import re
import shlex
import subprocess
from functools import partial
from urllib.parse import urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broadloom import Fleet, InputError, Interest
from broadloom.deployment import (
    TARGETS,
    Deployment,
    FleetBroker,
    FleetHooks,
    FleetTls,
    Wiring,
    compare_exports,
    export,
    removal,
    target_named,
)
from broadloom.deployment.link_access import password_reference
from broadloom.deployment.rehearsal.mosquitto_lab import HOST, free_ports
from broadloom.deployment.targets import haproxy_router, nats_leafnodes
from emqx_checks import check_calls
from fleet_lab import LabBroker
from injection_attempts import (
    FIELDS,
    HARMLESS,
    HOSTILE,
    PARTS,
    PATHS,
    accepted,
    attempts,
    exported,
    exported_or_refused,
)
from nats_sites import ACCOUNTS


def parts_of(target, deployment):
    read = [PARTS[target.name](text) for text in deployment.files.values()]
    return [shape for shape, _ in read], [value for _, values in read for value in values]


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_every_attempt_is_refused_or_is_a_value(target):
    """More than 200 attempts per target."""
    count = sum(1 for _ in attempts(target))
    harmless = {
        field: parts_of(target, exported(target, field, HARMLESS.get(field, "zz")))[0]
        for field in FIELDS
        if field != "leaf_listen"
    }
    harmless["leaf_listen"] = harmless["id"]
    kept = 0
    for field, text, deployment in accepted(target):
        kept += 1
        shape, values = parts_of(target, deployment)
        assert shape == harmless[field], (field, text)
        given = {"topic": f"t/{text}", "user": f"u{text}", "password": f"p{text}"}
        given |= {name: path.format(text) for name, path in PATHS.items()}
        if field in given and not (target.name == "nats" and field == "topic"):
            wanted = given[field]
            if target.name == "rabbitmq" and field == "topic":
                wanted = wanted.replace("/", ".").replace("+", "*")
            assert wanted in values, (field, text, values)
        if field not in ("password", "user", "topic"):
            assert password_reference(deployment.wiring.brokers[1]) not in str(values)
    assert count > 200
    assert 0 < kept < count


def test_every_attempt_in_accounts_of_nats_is_refused_or_is_a_value():
    """There, topics are in the file too."""
    target = target_named("nats")
    harmless = {
        field: parts_of(target, exported(target, field, HARMLESS.get(field, "zz"), account="APP"))[0]
        for field in FIELDS
        if field != "leaf_listen"
    }
    topics = 0
    for field, text, deployment in accepted(target, "APP"):
        if field == "leaf_listen":
            continue
        shape, values = parts_of(target, deployment)
        if field == "topic":
            (subject, *_) = nats_leafnodes.disjoint_subjects([f"t/{text}"])
            assert subject in values
            topics += 1
        if field != "topic" or "#" not in text:  # x/# are two subjects
            assert shape == harmless[field], (field, text)
    assert topics > 20
    for name in ('A"', "A B", "A}", "$A", "", "A\n", 7):
        with pytest.raises(InputError, match="account is"):
            FleetBroker("a", "10.0.0.1", "nats", account=name)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
@given(field=st.sampled_from(FIELDS[:-1]), text=st.text(max_size=12))
@settings(max_examples=150)
def test_any_text_is_refused_or_is_a_value(target, field, text):
    deployment = exported_or_refused(target, field, text)
    if deployment is None:
        return
    harmless = exported(target, field, HARMLESS.get(field, "zz"))
    assert parts_of(target, deployment)[0] == parts_of(target, harmless)[0]


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_the_commands_of_a_change_and_of_a_removal_are_one_line_each(target):
    """And a shell reads the names in them as words."""
    for field, text, deployment in accepted(target):
        empty = Wiring(deployment.wiring.brokers, {}, {}, ())
        nothing = Deployment(empty, deployment.settings, export(empty, target, deployment.settings))
        record = compare_exports(deployment, nothing, target)
        lines = [line for step in record["order"] for line in step.get("commands", ())]
        for name, content in removal(deployment.wiring, target, deployment.settings).items():
            lines += content.splitlines() if name.endswith(".txt") else []
            if name.endswith(".json"):
                assert {call["method"] for call in json.loads(content)} <= {"DELETE"}
        for line in lines:
            assert line.isprintable(), (field, text)
            words = shlex.split(line, comments=True)
            assert not words or words[:3] == ["broadloom", "deploy", "session"], (field, text)
            known = {"--end", "--credentials", "--no-tls", "--certificates"}
            assert known.issuperset(words[5:]) or field == "folder", (field, text)


@pytest.mark.parametrize("name", ["b\nrm -rf /", "b\r", "b\u2028rm", "\x1b[2Jb"])
def test_a_line_break_in_an_id_never_becomes_a_line_of_commands(name):
    with pytest.raises(InputError, match="has a line break or another control character"):
        Wiring(("a", name), {}, {}, ())
    with pytest.raises(InputError, match="has a line break or another control character"):
        Interest.from_lists([["x"], ["x"]], node_ids=["a", name])
    with pytest.raises(InputError, match="give a text without line breaks"):
        FleetBroker(name, "10.0.0.1")


# The targets' own parsers.


@pytest.mark.needs("mosquitto")
@pytest.mark.xdist_group("mosquitto")
def test_mosquitto_reads_all_accepted_files_as_meant(tmp_path):
    """A broker with all of them starts, knows just the topics of links, and refuses anonymous clients."""
    target = target_named("mosquitto")
    folder = tmp_path / "conf.d"
    folder.mkdir()
    topics = set()
    for number, (_, _, deployment) in enumerate(accepted(target)):
        for name, content in deployment.files.items():
            if "\nconnection" in content:
                (folder / f"{number}-{name}"[:200]).with_suffix(".conf").write_text(content)
                topics.add(deployment.wiring.links[0].out[0])
    assert len(topics) > 20
    (port,) = free_ports(1)
    broker = LabBroker("one", tmp_path, port, f"allow_anonymous false\ninclude_dir {folder}")
    try:
        broker.wait_for("running")
        for topic in topics:
            broker.wait_for("doing local SUBSCRIBE on topic ", f"topic {topic}")
        told = re.findall(r"doing local SUBSCRIBE on topic (.*)", "\n".join(broker.lines()))
        assert set(told) == topics
        done = subprocess.run(
            ["mosquitto_pub", "-h", HOST, "-p", str(port), "-t", "x", "-m", "x"],
            capture_output=True,
            text=True,
        )
        assert "not authorised" in done.stderr.lower()
    finally:
        broker.stop()


@pytest.mark.needs("nats-server")
@pytest.mark.parametrize("account", [None, "APP"])
def test_nats_server_reads_all_accepted_files(tmp_path, account):
    """It checks each file that differs from the others in more than comments."""
    target = target_named("nats")
    seen = set()
    for field, _, deployment in accepted(target, account):
        if account is not None and field not in ("topic", "user", "password"):
            continue  # as without an account
        for content in deployment.files.values():
            plain = re.sub("#.*", "", content)
            if plain not in seen:
                seen.add(plain)
                own = "" if account is None else ACCOUNTS.format(account=account)
                (tmp_path / f"{len(seen)}.conf").write_text(content + own)
    assert len(seen) > (50 if account is None else 20)
    for number in range(1, len(seen) + 1):
        command = ["nats-server", "-t", "-c", str(tmp_path / f"{number}.conf")]
        done = subprocess.run(command, capture_output=True, text=True, env={"PATH": os.environ["PATH"]})
        # The certificates do not exist: then the error names their path, which has been read as meant.
        is_read = done.returncode == 0 or "no such file or directory" in done.stderr
        assert is_read, ((tmp_path / f"{number}.conf").read_text(), done.stderr)


def test_emqx_knows_every_field_of_all_accepted_calls():
    target = target_named("emqx")
    for _, _, deployment in accepted(target):
        for content in deployment.files.values():
            check_calls(json.loads(content))


# Routers, commands of an operator, and URLs of admin APIs.


def made_or_refused(make):
    """What a function returns, or None if it is refused by an error of one line."""
    try:
        return make()
    except InputError as refused:
        message = str(refused)
    assert message.isprintable()
    return None


def router_shape(text):
    """The numbers of words of each line, as HAProxy reads them: quotes and comments as in a shell."""
    return [len(shlex.split(line, comments=True)) for line in text.splitlines()]


def routers(field, text):
    """The files of routers with a text in one field."""
    own = {"certificate": "/pki/server.pem", "relay_ca": "/pki/relay.crt", "folder": "/etc/haproxy"}
    own |= {"listen": "10.0.0.1:8883", "relay": "10.0.0.2:8781", "socket": "/run/admin.sock"}
    if field in own:
        own[field] += text
    ca = f"/pki/ca{text}" if field == "ca" else "/pki/ca.crt"
    name = f"b{text}" if field == "id" else "b"
    host = f"h{text}" if field == "host" else "h.example.org"
    fleet = Fleet([FleetBroker("a", "10.0.0.3", tls=None), FleetBroker(name, host, tls=FleetTls(ca))])
    return haproxy_router.files(fleet, haproxy_router.RouterSettings(**own))


ROUTER_FIELDS = ("id", "host", "ca", "certificate", "relay_ca", "folder", "listen", "relay", "socket")


@pytest.mark.parametrize("field", ROUTER_FIELDS)
def test_every_attempt_at_a_router_is_refused_or_is_a_value(field):
    harmless = [
        router_shape(text) for text in routers(field, "" if field in ("listen", "relay") else "z").values()
    ]
    refused = 0
    for text in HOSTILE:
        found = made_or_refused(partial(routers, field, text))
        if found is None:
            refused += 1
            continue
        assert [router_shape(one) for one in found.values()] == harmless, text
        assert all(line.isprintable() for one in found.values() for line in one.split("\n"))
    assert refused > 10


def test_every_attempt_at_a_command_is_refused_or_is_one_word_for_a_shell_too():
    hooks = FleetHooks(
        install="scp {file} {uri_host}:/etc/{broker}.conf", stop="ssh {host} halt {broker} {port}"
    )
    plain = {"broker": "b", "host": "h", "uri_host": "h", "port": "1883", "file": "/tmp/f"}
    kept = 0
    for place in plain:
        for text in (*HOSTILE, "-oProxyCommand=id", "[a]", "?", "a=b"):
            for value in (text, f"b{text}"):
                for name in ("install", "stop"):
                    shown = made_or_refused(partial(hooks.shown, name, plain | {place: value}))
                    if shown is None or value not in shown:
                        continue  # refused, or the command does not have this place
                    words = shlex.split(shown)
                    kept += 1
                    assert len(words) == (3 if name == "install" else 5)
                    assert shlex.split(" ".join(words), comments=True) == words  # on the other machine
                    assert not any(word.startswith("-") for word in words)
                    assert not re.search(r"[$`;&|<>*?~{}()'\"\\!#\s]", "".join(words))
    assert kept > 5


def test_every_attempt_at_the_url_of_an_admin_api_is_refused_or_leads_to_the_same_host():
    refused = 0
    for text in (*HOSTILE, "@evil.example.org", "#@evil.example.org", "\\@evil.example.org"):
        for url in (
            f"http://10.0.0.1{text}:8222",
            f"http://10.0.0.1:8222{text}",
            f"http://10.0.0.1:8222/{text}",
        ):
            if made_or_refused(partial(FleetBroker, "a", "10.0.0.1", "nats", subscriptions=url)) is None:
                refused += 1
                continue
            parts = urlsplit(url)
            assert (parts.hostname or "").startswith("10.0.0.1"), url
            assert re.fullmatch(r"[\w.-]+", parts.hostname or ""), url
            assert parts.username is None
    assert refused > 100

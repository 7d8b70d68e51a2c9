"""Exports: the files contain the planned links, are the same each time, and contain no secrets."""

import json
import os
import re
import subprocess
import sys

import pytest
from deploy_strategies import instances, wild_instances
from hypothesis import given, settings

from broadloom import InputError, Interest, link
from broadloom.deployment import TARGETS, Settings, WiredLink, Wiring, export, plan_trees, target_named, wire
from broadloom.deployment.targets import mosquitto_bridges, nats_leafnodes, rabbitmq_federation

LAB = Settings(tls=False)


def wiring_of(instance):
    plan, sent = instance
    return wire(plan, plan_trees(plan, sent), sent)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
@given(instance=instances() | wild_instances())
@settings(max_examples=40)
def test_files_contain_the_planned_links(target, instance):
    wiring = wiring_of(instance)
    if target.name == "emqx" and any(text[0] == "$" for one in wiring.links for text in one.out + one.into):
        with pytest.raises(InputError, match=r"begins with \$"):
            target.files(wiring, Settings())
        return
    written = target.files(wiring, Settings(accounts=True))
    assert len(written) == len(wiring.brokers)
    assert sorted(target.read_links(written, wiring)) == sorted(wiring.links)
    assert export(wiring, target, Settings(accounts=True)) == written


ALL_FILES = """
import hashlib
from broadloom import Interest, link, workload
from broadloom.deployment import TARGETS, Settings, export, plan_trees, wire
interest = workload.interest(nodes=12, topics=30, sizes=(5, 15))
plan = link(interest, algorithm="gm")
wiring = wire(plan, plan_trees(plan))
files = [export(wiring, target, Settings()) for target in TARGETS if target.name != "nats"]
print(hashlib.sha256(repr(files).encode()).hexdigest())
"""


def test_processes_with_other_hashes_write_the_same_files():
    """The order of sets and of dictionaries of texts differs between processes; that of files does not."""

    def digest(seed):
        environment = os.environ | {"PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", ALL_FILES]
        return subprocess.run(command, env=environment, capture_output=True, check=True).stdout

    assert len(digest("1")) > 60
    assert digest("1") == digest("2")


ODD = Wiring(
    ("eu/1", "eu 2", "a:b", "ü"),
    dict.fromkeys(("eu/1", "eu 2", "a:b", "ü"), ("t/x",)),
    {},
    (
        WiredLink("eu/1", "eu 2", ("t/x",), ("t/x",)),
        WiredLink("eu 2", "a:b", ("t/x",), ("t/x",)),
        WiredLink("a:b", "ü", ("t/x",), ("t/x",)),
    ),
)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_unusual_ids_give_safe_and_unique_file_names(target):
    addresses = {name: f"10.0.0.{i}:99" for i, name in enumerate(ODD.brokers)}
    written = export(ODD, target, Settings(addresses=addresses))
    assert len(written) == 4
    assert all(re.fullmatch(r"broker-[A-Za-z0-9%_.~-]+\.(conf|json)", name) for name in written)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_an_invalid_address_is_refused(target):
    with pytest.raises(InputError, match=r"the address of broker 'eu.*give host or host:port"):
        export(ODD, target, Settings())


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_secrets_are_references(target):
    plan = link(Interest.from_lists([["x"], ["x"]]), algorithm="gm")
    wiring = wire(plan, plan_trees(plan))
    text = "".join(export(wiring, target, Settings(credentials=True)).values())
    assert "/certs/" in text
    for word in re.findall(r'password"?:? "?(\w+)', text):
        assert word == "__BROADLOOM_PASSWORD__" or target.name == "nats"
    assert ("$BROADLOOM_PASSWORD" if target.name == "nats" else "__BROADLOOM_PASSWORD__") in text
    bare = "".join(export(wiring, target, LAB).values())
    assert "certs" not in bare
    assert "BROADLOOM_" not in bare


def test_mosquitto_files_have_one_line_per_filter():
    link_ = WiredLink("a", "b", ("x", "y"), ("x", "z"))
    text = mosquitto_bridges.broker_file(Wiring(("a", "b"), {}, {}, (link_,)), "a", Settings(qos=2))
    assert re.findall("topic .*", text) == ["topic x both 2", "topic y out 2", "topic z in 2"]
    assert "bridge_protocol_version mqttv311\ntry_private true\ncleansession false\n" in text
    other = mosquitto_bridges.broker_file(Wiring(("a", "b"), {}, {}, (link_,)), "b", Settings())
    assert "connection" not in other
    assert "# 'a' links here as r.broadloom-a:b" in other


def test_a_topic_that_a_target_does_not_support_is_refused_with_the_reason():
    def of(topic):
        return Wiring(("a", "b"), {}, {}, (WiredLink("a", "b", (topic,), (topic,)),))

    with pytest.raises(InputError, match="topic 'x y' has a space or a quote"):
        mosquitto_bridges.files(of("x y"), LAB)
    with pytest.raises(InputError, match=r"topic 'x.y' has a dot or a star, which RabbitMQ"):
        rabbitmq_federation.files(of("x.y"), LAB)
    with pytest.raises(InputError, match="longer than 255 bytes"):
        rabbitmq_federation.files(of("x" * 256), LAB)
    for topic in ("x.y", "x y", "x//y", "a/>"):
        with pytest.raises(InputError, match="is not a valid NATS subject"):
            nats_leafnodes.files(of(topic), LAB)


RING = Wiring(
    ("a", "b", "c"),
    {"a": ("x", "y"), "b": ("x", "y"), "c": ("x", "y")},
    {},
    (
        WiredLink("a", "b", ("x",), ("x",)),
        WiredLink("a", "c", ("y",), ("y",)),
        WiredLink("b", "c", ("x", "y"), ("x", "y")),
    ),
)


def test_nats_refuses_trees_that_close_a_ring_and_names_the_remedy():
    target = target_named("nats")
    with pytest.raises(InputError, match=r"the tree of 'y' closes a ring .* --accounts. Then there are 2"):
        export(RING, target, LAB)
    written = export(RING, target, Settings(tls=False, accounts=True))
    assert (
        "BROADLOOM_2 { users: [ { user: BROADLOOM_2, password: $BROADLOOM_2_PASSWORD } ] }"
        in (written["broker-a.conf"])
    )
    assert written["broker-a.conf"].count("url:") == 2
    assert written["broker-b.conf"].count("url:") == 2  # both accounts use the link of b and c


@pytest.mark.needs("nats-server")
@pytest.mark.parametrize("several", [False, True])
def test_nats_server_accepts_the_exported_files(several, tmp_path):
    wiring = RING if several else Wiring(RING.brokers, RING.wants, {}, RING.links[:1])
    variables = {f"BROADLOOM_{i}_PASSWORD": "p" for i in (1, 2)}
    variables |= {f"BROADLOOM_{i}_URL_{b}": "nats-leaf://u:p@127.0.0.1:7422" for i in (1, 2) for b in "abc"}
    for name, text in nats_leafnodes.files(wiring, Settings(tls=False, accounts=several)).items():
        (tmp_path / name).write_text(text)
        command = ["nats-server", "-t", "-c", str(tmp_path / name)]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **variables})
        assert done.returncode == 0, done.stderr


def test_rabbitmq_sends_from_one_end_and_takes_at_the_other():
    link_ = WiredLink("a", "b", ("x/+",), ())
    wiring = Wiring(("a", "b"), {}, {}, (link_,))
    a, b = (rabbitmq_federation.calls(wiring, broker, LAB) for broker in "ab")
    keys = [
        [call["body"]["routing_key"] for call in calls if "/e/amq.topic" in call["path"]] for calls in (a, b)
    ]
    assert keys == [["#"], ["x.*", "#"]]  # to the entry; and from the tree to the clients
    (sent,) = (call for call in a if call["body"].get("routing_key") == "x.*")
    assert sent["path"].endswith("link.a%3Ab")
    assert [call["body"]["value"]["uri"] for call in b if "value" in call["body"]] == ["amqp://a:5672"]
    assert not [call for call in a if "value" in call["body"]]
    assert json.loads(rabbitmq_federation.as_text(a)) == a


def test_an_unknown_target_is_refused_with_the_known_ones():
    with pytest.raises(InputError, match="target 'kafka' is unknown; choose mosquitto, rabbitmq, nats, emqx"):
        target_named("kafka")


@pytest.mark.parametrize(
    "wrong", [{"address": "host"}, {"qos": 3}, {"qos": 1.5}, {"tls": "yes"}, {"accounts": 1}]
)
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(InputError):
        Settings(**wrong)


def test_a_bridge_takes_ipv6_addresses_and_names_of_any_language():
    """Mosquitto takes neither brackets nor other letters than those of ASCII."""
    wiring = Wiring(("a", "b"), {}, {}, (WiredLink("a", "b", ("x",), ()),))
    for address, written in (("[::1]:1884", "::1:1884"), ("müller.de", "xn--mller-kva.de:1883")):
        chosen = Settings(addresses={"b": address}, tls=False)
        assert f"\naddress {written}\n" in mosquitto_bridges.broker_file(wiring, "a", chosen)
    with pytest.raises(InputError, match="has a zone, which links cannot have"):
        mosquitto_bridges.files(wiring, Settings(addresses={"b": "[fe80::1%eth0]"}, tls=False))


def test_addresses_are_split_into_host_and_port():
    assert Settings().host_and_port("a", 1) == ("a", 1)
    assert Settings("[::1]:5{broker}").host_and_port("7", 1) == ("[::1]", 57)
    assert Settings(addresses={"a": "[::1]"}).host_and_port("a", 9) == ("[::1]", 9)

"""EMQX: definitions have documented fields, carry every message once, and change and vanish as a whole.

EMQX itself does not run here: see `emqx_checks`.
"""

import json
from collections import Counter

import pytest
from deploy_strategies import instances, wild_instances
from hypothesis import assume, given, settings

from broadloom import Fleet, InputError, Interest, link
from broadloom.deployment import (
    Deployment,
    FleetBroker,
    FleetLogin,
    FleetTls,
    Settings,
    WiredLink,
    Wiring,
    compare_exports,
    export,
    fleet_settings,
    plan_trees,
    removal,
    sample_messages,
    target_named,
    wire,
)
from broadloom.deployment.targets import emqx_rules
from emqx_checks import EmqxFleet, check_calls, rule_of

EMQX = target_named("emqx")
LAB = Settings(tls=False)
X = ("x",)


def calls_of(files):
    """The calls by broker."""
    return {
        name.removeprefix("broker-").removesuffix(".json"): json.loads(text) for name, text in files.items()
    }


@given(instance=instances() | wild_instances())
@settings(max_examples=60)
def test_every_message_reaches_every_subscriber_once(instance):
    """In a computation of what rules select; a loop would never end."""
    plan, sent = instance
    wiring = wire(plan, plan_trees(plan, sent), sent)
    assume(not any(text[0] == "$" for one in wiring.links for text in one.out + one.into))
    files = calls_of(export(wiring, EMQX, LAB))
    for calls in files.values():
        check_calls(calls)
    fleet = EmqxFleet(files, {f"{broker}:1883": broker for broker in wiring.brokers})
    for message in sample_messages(wiring):
        if message.topic.startswith("$"):
            continue
        arrived = Counter(fleet.deliveries(message.broker, message.topic))
        assert max(arrived.values()) == 1
        assert wiring.wanting(message.topic) <= set(arrived)


def test_the_simulation_notices_a_loop():
    """Without the condition on client ids, a message goes to and fro for ever."""
    wiring = Wiring(("a", "b"), {"a": X, "b": X}, {}, (WiredLink("a", "b", X, X),))
    files = calls_of(export(wiring, EMQX, LAB))
    for calls in files.values():
        rule = calls[-1]["body"]
        _, start = rule_of(rule["sql"])
        rule["sql"] = rule["sql"].replace(start, "x" * len(start))
    with pytest.raises(AssertionError, match="a message loops"):
        EmqxFleet(files, {"a:1883": "a", "b:1883": "b"}).deliveries("a", "x", limit=100)


def test_a_connector_has_the_address_the_login_and_the_certificates_of_the_fleet():
    login = FleetLogin("links", password_env="UNUSED")
    tls = FleetTls("/pki/ca.pem", "/pki/me.crt", "/pki/me.key")
    fleet = Fleet(
        [
            FleetBroker("rome", "10.0.0.1", "emqx", tls=tls, login=login),
            FleetBroker("oslo", "10.0.0.2:1884", "emqx", tls=None),
            FleetBroker("bonn", "10.0.0.3", "emqx"),
        ]
    )
    plan = link(Interest.from_lists([["x"]] * 3, node_ids=["rome", "oslo", "bonn"]), algorithm="gm")
    full = tuple(WiredLink(u, v, X, X) for u, v in (("bonn", "oslo"), ("bonn", "rome")))
    wiring = Wiring(plan.interest.node_ids, dict.fromkeys(plan.interest.node_ids, X), {}, full)
    files = calls_of(export(wiring, EMQX, fleet_settings(fleet, plan)))
    connectors = {
        call["body"]["server"]: call["body"]
        for calls in files.values()
        for call in calls
        if call["path"].endswith("connectors")
    }
    rome = connectors["10.0.0.1:8883"]
    assert (rome["username"], rome["password"]) == ("links", "__BROADLOOM_PASSWORD_rome__")
    assert rome["ssl"] == {
        "enable": True,
        "verify": "verify_peer",
        "cacertfile": "/pki/ca.pem",
        "certfile": "/pki/me.crt",
        "keyfile": "/pki/me.key",
    }
    assert connectors["10.0.0.2:1884"]["ssl"] == {"enable": False}
    assert "username" not in connectors["10.0.0.2:1884"]
    assert connectors["10.0.0.3:8883"]["ssl"]["cacertfile"] == "/etc/ssl/certs/ca-certificates.crt"


def test_a_change_removes_old_hops_before_it_adds_new_ones():
    """Together they could be a ring, in which EMQX would send messages round and round."""
    wants = dict.fromkeys("abc", X)
    path, other = (
        Wiring(tuple("abc"), wants, {}, tuple(WiredLink(u, v, X, X) for u, v in ends))
        for ends in (("ab", "bc"), ("ab", "ac"))
    )
    old, new = (Deployment(one, LAB, export(one, EMQX, LAB)) for one in (path, other))
    steps = compare_exports(old, new, EMQX)["order"]
    assert [{call["method"] for calls in step["call"].values() for call in calls} for step in steps] == [
        {"DELETE"},
        {"POST"},
    ]
    assert set(steps[0]["call"]) == {"b", "c"}
    assert set(steps[1]["call"]) == {"a", "c"}
    with pytest.raises(InputError, match="--at-once does not apply to EMQX"):
        compare_exports(old, new, EMQX, at_once=True)


def test_a_removal_deletes_all_that_an_export_made_in_the_opposite_order():
    wiring = Wiring(("a", "b"), {"a": X, "b": X}, {}, (WiredLink("a", "b", X, X),))
    made, deleted = (calls_of(make(wiring, EMQX, LAB)) for make in (export, removal))
    for broker, calls in deleted.items():
        assert calls == [emqx_rules.undone(call) for call in reversed(made[broker])]
        assert [call["path"].split("/")[3] for call in calls] == ["rules", "actions", "connectors"]


def test_ids_that_emqx_cannot_hold_are_refused():
    name = "ü" * 100
    long = Wiring(("a", name), {}, {}, (WiredLink("a", name, X, X),))
    with pytest.raises(InputError, match="is too long for EMQX; shorten it"):
        emqx_rules.files(long, Settings(addresses={"a": "10.0.0.1", name: "10.0.0.2"}, tls=False))


def test_two_links_with_the_same_client_id_are_refused(monkeypatch):
    monkeypatch.setattr(emqx_rules, "_HASH", 0)
    links = (WiredLink("a", "c", X, X), WiredLink("b", "c", X, X))
    with pytest.raises(InputError, match="have the same client id at 'c'"):
        emqx_rules.files(Wiring(tuple("abc"), {}, {}, links), LAB)

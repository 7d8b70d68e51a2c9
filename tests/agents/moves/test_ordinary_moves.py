"""Ordinary clients (`mosquitto_sub`) are moved between mosquitto brokers behind HAProxy, and lose nothing."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ordinary import (
    Publisher,
    RoutedBrokers,
    Subscriber,
    homes,
    ordinary_agent,
    state_of,
    wait_for,
    write_ordinary_config,
)

import broadloom as bl
from broadloom.agents.moves.client_policy import MovePolicy
from broadloom.agents.moves.client_relay import KnownContents

live = [
    pytest.mark.needs("mosquitto", "mosquitto_sub", "mosquitto_pub", "haproxy"),
    pytest.mark.xdist_group("mosquitto"),
]


def moved_by_naive_streams(seed: int) -> tuple[Counter[bytes], Counter[bytes]]:
    """Messages that were published, and those that a client gets, in a simulation of its two sessions.

    Each message reaches both brokers at random times, at most `settle` apart. Home delivers up to the cut.
    """
    rng = random.Random(seed)
    settle, prepared, cut = 1.0, 3.0, 6.0
    contents = [bytes([rng.randrange(rng.choice((3, 200)))]) for _ in range(60)]
    at_home = sorted((rng.uniform(1.0, 8.0), content) for content in contents)
    range_of = (-settle, settle)
    both = [(at, at + rng.uniform(*range_of), content) for at, content in at_home]
    witnessed = [(content, home) for home, _, content in both if home >= prepared - settle and home < cut]
    got = Counter(content for home, _, content in both if home < cut)
    known = KnownContents(witnessed, prepared, settle)
    for _, foreign, content in sorted(both, key=lambda one: one[1]):
        if foreign < prepared:
            continue
        if foreign > prepared + 2 * settle:
            known.pass_early_fence()
        if foreign > cut + settle:
            known.clear()
        got[content] += not known.takes(content)
    return Counter(content for _, _, content in both), got


@given(st.integers(0, 10**6))
def test_no_message_is_left_out_that_home_has_not_delivered(seed):
    """Whatever the delays and however many messages are equal; unique messages arrive exactly once."""
    published, got = moved_by_naive_streams(seed)
    assert not published - got
    twice = got - published
    assert all(published[content] > 1 for content in twice)


def test_the_first_rule_of_the_policy_file_decides(tmp_path):
    file = tmp_path / "policy.toml"
    file.write_text(
        'at_once = 3\n[[rules]]\nclients = ["pump-*"]\nmove = false\n'
        '[[rules]]\nclients = ["*"]\nto = ["oslo"]\nhours = "22:00-06:00"\ndays = ["fri"]\nplace = [1, 2]\n'
    )
    policy = MovePolicy.load(file)
    friday = 86_400.0  # the second of January 1970
    for client, to, now, answer, until in (
        ("pump-1", "oslo", friday + 23 * 3600, "decline", None),
        ("meter-1", "rome", friday + 23 * 3600, "decline", None),
        ("meter-1", "oslo", friday + 23 * 3600, "accept", None),
        ("meter-1", "oslo", friday + 29 * 3600, "accept", None),  # Saturday morning ends Friday's night
        ("meter-1", "oslo", friday + 12 * 3600, "stay", friday + 22 * 3600),
        ("meter-1", "oslo", friday + 5 * 3600, "stay", friday + 22 * 3600),
        ("meter-1", "oslo", friday + 31 * 3600, "stay", friday + 7 * 86_400 + 22 * 3600),
    ):
        assert policy.answer(client, "paris", to, now) == (answer, until)
    assert (policy.at_once, policy.place_of("meter-1")) == (3, (1.0, 2.0))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no rules"),
        ("[[rules]]\n", "clients is missing"),
        ('[[rules]]\nclients = ["*"]\nhours = "25:00-26:00"\n', "hours is '25:00-26:00'; give UTC times"),
        ('[[rules]]\nclients = ["*"]\nhours = "05:00-05:00"\n', "which is empty"),
        ('[[rules]]\nclients = ["*"]\ndays = ["someday"]\n', "days has 'someday'"),
        ('[[rules]]\nclients = ["*"]\nmove = 1\n', "move is 1; give true or false"),
        ('[[rules]]\nclients = "c"\n', "clients is 'c'; give a list"),
        ('at_once = 0\n[[rules]]\nclients = ["*"]\n', "at_once is 0"),
        ('[[rules]]\nclients = ["*"]\nnow = true\n', "'now' is unknown"),
    ],
)
def test_a_wrong_policy_file_is_refused_with_a_reason(tmp_path, text, message):
    (tmp_path / "policy.toml").write_text(text)
    with pytest.raises(bl.InputError) as refused:
        MovePolicy.load(tmp_path / "policy.toml")
    assert message in str(refused.value)


class TestLive:
    """On real brokers behind a real router."""

    pytestmark = live

    def test_online_clients_of_both_versions_move_under_load(self, tmp_path):
        """And one that is absent gets what waited for it, when it comes back, at its new broker."""
        with RoutedBrokers(tmp_path, ("a", "b")) as system:
            clients = [Subscriber(tmp_path, f"c-{one}", system.port, one) for one in ("mqttv311", "5")]
            absent = Subscriber(tmp_path, "c-absent", system.port)
            config, operator = write_ordinary_config(tmp_path, system)
            for client in (*clients, absent):
                client.start()
            with ordinary_agent(config):
                assert wait_for(lambda: len(homes(operator)) == 3)
                absent.stop()
                with Publisher(system.lab.ports["b"]) as load:
                    assert wait_for(lambda: load.sent > 20)
                    for client in (*clients, absent):
                        assert homes(operator)[client.name] == "a"
                        operator.request_to_move(client.name, "b")
                    for client in clients:
                        assert wait_for(lambda c=client: state_of(operator, c.name) == "redirected")
                    assert state_of(operator, "c-absent") == "replicated"
                    absent.start()
                    assert wait_for(lambda: state_of(operator, "c-absent") == "redirected")
                    assert wait_for(lambda: system.connected("c-absent")[-1] == "b")
                    more = load.sent + 20
                    assert wait_for(lambda: load.sent > more)
                for client in (*clients, absent):
                    assert wait_for(lambda c=client: not load.missing(c.got())), client.name
                    # A message whose acknowledgement was under way when the client left can arrive twice.
                    assert sum(client.got().values()) - len(client.got()) <= 2
                    assert all(text.startswith("m") for text in client.got())
                    client.stop()
                assert set(homes(operator).values()) == {"b"}

    def test_the_policy_a_shared_subscription_and_a_clean_session(self, tmp_path):
        """Each is said: what the policy forbids, what cannot be moved, and what can be lost."""
        with RoutedBrokers(tmp_path, ("a", "b")) as system:
            config, operator = write_ordinary_config(tmp_path, system)
            with ordinary_agent(config):
                pump = Subscriber(tmp_path, "pump", system.port)
                shared = Subscriber(tmp_path, "c-shared", system.port, "5", "$share/g/t/1")
                clean = Subscriber(tmp_path, "c-clean", system.port)
                clean._command.remove("-c")
                for client in (pump, shared, clean):
                    client.start()
                assert wait_for(lambda: len(homes(operator)) == 3), operator.health()
                operator.request_to_move("pump", "b")
                assert wait_for(lambda: state_of(operator, "pump") == "declined")
                with pytest.raises(bl.InputError, match=r"'\$share/g/t/1' is shared"):
                    operator.request_to_move("c-shared", "b")
                with pytest.raises(bl.InputError, match="no broker shows it"):
                    operator.request_to_move("c-nobody", "b")
                operator.request_to_move("c-clean", "b")
                assert wait_for(lambda: state_of(operator, "c-clean") == "redirected")
                assert "keeps no session" in operator.moves()[-1]["note"]
                assert wait_for(lambda: "b" in system.connected("c-clean"))
                for client in (pump, shared, clean):
                    client.stop()

"""Links that follow clients: their requests, the filters that they carry, and refused configurations."""

from __future__ import annotations

import socket
import threading
from dataclasses import replace

import pytest
from moving import LIMIT, QUICK, Counted, known, no_new_thread, unlinked, wait_for, write_config

import broadloom as bl
from broadloom.agents.links.embedded_links import EmbeddedLinks, LinkConfig, address_endpoints, embed_links
from broadloom.agents.links.plan_sources import PlannedLinks
from broadloom.agents.moves.move_service import AgentConfig, serving
from broadloom.agents.moves.moving_client import MovingClient
from broadloom.mqtt.endpoint import Endpoint


def wanted(plan):
    """Who wants what in a plan."""
    interest = plan.interest
    return {
        name: {interest.topic_ids[topic] for topic in interest.topics_of(node)}
        for node, name in enumerate(interest.node_ids)
    }


def links_from(*lists, topics=None):
    names = "hfg"[: len(lists)]
    plan = bl.link(bl.Interest.from_lists(lists, node_ids=list(names)), algorithm="gm")
    return PlannedLinks(plan, lambda *_: True, topics)


def test_filters_are_carried_as_the_topics_that_they_meet():
    """And those that meet none, or are a broker's own, need no link."""
    links = links_from([], [], topics=["a/b", "a/c", "x/#"])
    links.carry("h", ["a/+", "x/1", "other", "$SYS/#"])
    links.carry("f", ["x/2"])
    assert not links.carried("h", ["a/+"])
    assert wanted(links.poll()) == {"h": {"a/b", "a/c", "x/#"}, "f": {"x/#"}}
    assert links.carried("h", ["a/+", "x/1", "other", "$SYS/#"])
    assert not links.carried("f", ["a/b"])
    links.release("h", ["x/1"])
    assert wanted(links.poll())["h"] == {"a/b", "a/c"}
    assert links.poll() is None


def test_a_topic_is_released_by_the_last_filter_that_meets_it():
    links = links_from([], [], topics=["x/#"])
    links.carry("h", ["x/1", "x/2"])
    links.poll()
    links.release("h", ["x/1"])
    assert links.poll() is None
    links.release("h", ["x/2"])
    assert wanted(links.poll())["h"] == set()


def test_topics_that_come_and_go_hold_up_no_others():
    """What was carried still is while another plan waits, and who makes links is asked for these alone."""
    asked = []
    plan = bl.link(bl.Interest.from_lists([[], []], node_ids=["h", "f"]), algorithm="gm")
    links = PlannedLinks(plan, lambda *of: not asked.append(of))
    for broker in "hf":
        links.carry(broker, ["t"])
    links.poll()
    links.carry("f", ["u"])
    assert links.carried("f", ["t"])
    assert not links.carried("f", ["t", "u"])
    links.poll()
    assert links.carried("f", ["t", "u"])
    links.release("f", ["u"])
    assert links.carried("f", ["t"])
    assert asked == [("f", {"t"}, 1), ("f", {"t", "u"}, 2), ("f", {"t"}, 1)]


def test_what_the_plan_has_stays():
    """A client that came for it and goes takes away nothing from others who want it there."""
    links = links_from(["x"], ["x"], [])
    links.carry("h", ["x", "y"])
    links.carry("g", ["x"])
    links.poll()
    links.release("h", ["x", "y"])
    links.release("g", ["x"])
    assert wanted(links.poll()) == {"h": {"x"}, "f": {"x"}, "g": set()}


def test_a_broker_that_links_do_not_know_is_refused():
    with pytest.raises(bl.InputError, match="broker 'z' is not in the plan of links; it has h, f"):
        links_from([], []).carry("z", ["x"])


def test_a_plan_that_cannot_be_followed_carries_nothing(tmp_path):
    """`a/#` beside `a/b` is no live change: nobody is told that it is carried."""
    plan = bl.link(bl.Interest.from_lists([["a/b"], ["a/b"]], node_ids=["h", "f"]), algorithm="gm")
    beside = EmbeddedLinks(plan, None, lambda _: Endpoint("127.0.0.1", 1), tmp_path, patience=0)
    beside.start()
    try:
        assert wait_for(lambda: bool(beside._agent.groups))
        beside.links.carry("h", ["a/#"])
        assert wait_for(lambda: beside._run.refused)
        assert not beside.links.carried("h", ["a/#"])
    finally:
        beside.stop()


def test_links_that_fail_are_told(tmp_path, caplog):
    """Then the agent ends, and whoever runs it starts it again; links that stand still would help nobody."""
    plan = bl.link(bl.Interest.from_lists([[], []], node_ids=["h", "f"]), algorithm="gm")
    beside = EmbeddedLinks(plan, ["t"], lambda _: Endpoint("127.0.0.1", 1), tmp_path)
    over = threading.Event()

    async def fails():
        raise OSError("of its own")

    beside._run.follow = fails
    beside.start(over.set)
    assert over.wait(60)
    beside.stop()
    assert "links have failed" in caplog.text


def test_links_log_in_as_they_are_told(tmp_path):
    """By a login of their own or the agent's; the password shows nowhere."""
    (tmp_path / "secret").write_text("never shown")
    (tmp_path / "secret").chmod(0o600)
    (tmp_path / "agent.toml").write_text(
        'token_file = "secret"\n[login]\nuser = "mover"\npassword_file = "secret"\n'
        '[brokers.h]\naddress = "h:1"\nagent_address = "[::1]:2"\n[links]\ntopics = ["t"]\n'
    )
    config = AgentConfig.load(tmp_path / "agent.toml")
    assert LinkConfig.of(config).login.user == "mover"
    own = replace(config, links={**config.links, "login": {"user": "links", "password_file": "secret"}})
    links = LinkConfig.of(own)
    endpoint = address_endpoints(own.agent_addresses, links.login, links.window)("h")
    assert (endpoint.host, endpoint.port, endpoint.login.user, endpoint.tls) == ("::1", 2, "links", None)
    assert endpoint.login.password == "never shown"
    assert "never shown" not in repr(links) + repr(own) + repr(endpoint)


def write_plan(folder, names="hf"):
    interest = bl.Interest.from_lists([["t/1"] for _ in names], node_ids=list(names))
    bl.link(interest, algorithm="gm").save(folder / "overlay")


@pytest.mark.parametrize(
    ("names", "words"),
    [("h", "'f', which is not in it"), ("hfz", r"'z', which has no \[brokers.z\]")],
)
def test_a_plan_of_other_brokers_is_refused(tmp_path, monkeypatch, names, words):
    monkeypatch.setenv("BROADLOOM_TOKEN", "token")
    write_plan(tmp_path, names)
    text = "".join(f'[brokers.{name}]\naddress = "{name}:1"\n' for name in "hf")
    (tmp_path / "agent.toml").write_text(f'{text}[links]\nplan = "overlay"')
    with pytest.raises(bl.InputError, match=words):
        LinkConfig.of(AgentConfig.load(tmp_path / "agent.toml"))


LINKS = {
    "": r"\[links\] has neither plan nor topics; give a plan's folder or a list of topics",
    "topics = 1": "topics is 1; give a list of topics or filters",
    "topics = []": r"topics is \[\]; give a list",
    "topics = [1]": "1 is not an MQTT filter that links carry",
    'topics = ["a/#/b"]': "'a/#/b' is not an MQTT filter that links carry",
    'topics = ["$SYS/#"]': r"'\$SYS/#' is not an MQTT filter that links carry",
    'topics = ["broadloom/x"]': "'broadloom/x' is not an MQTT filter that links carry",
    'topics = ["a/+", "b", "a/b"]': r"'a/\+' and 'a/b' have topics in common; give one filter for both",
    'topics = ["a", "a"]': "topics has 'a' twice; give it once",
    'topics = ["a"]\nplane = "x"': "'plane' is unknown; there are login, metrics, patience, plan",
    'plan = ""': "plan is ''; give a non-empty text",
    'plan = "nowhere"': "nowhere",
    'topics = ["a"]\nstate = "journal"': "state is the folder of the journal; give another folder",
    'topics = ["a"]\nwindow = 0': r"\[links\]: window is 0; give a whole number from 1",
    'topics = ["a"]\nwindow = 70000': "window is 70,000; give a whole number from 1 to 65,535",
    'topics = ["a"]\npatience = "x"': "patience is 'x'; give a number from 0",
    'topics = ["a"]\nmetrics = 70000': "metrics is 70,000; give a whole number from 1 to 65,535",
    'topics = ["a"]\nlogin = 3': r"login is 3; expected a section \[links.login\]",
    'topics = ["a"]\n[links.login]\nname = "x"': r"\[links.login\]: 'name' is unknown",
    'topics = ["a"]\n[links.login]\nuser = "x"': "no password_file and no BROADLOOM_PASSWORD",
}


@pytest.mark.parametrize(("text", "words"), LINKS.items())
def test_what_links_cannot_be(tmp_path, monkeypatch, text, words):
    """Each with one line that names the section and what would be right."""
    monkeypatch.setenv("BROADLOOM_TOKEN", "token")
    monkeypatch.delenv("BROADLOOM_PASSWORD", raising=False)
    brokers = "".join(f'[brokers.{name}]\naddress = "{name}:1"\n' for name in "hf")
    (tmp_path / "agent.toml").write_text(f"{brokers}[links]\n{text}")
    with pytest.raises(bl.InputError, match=words) as error:
        LinkConfig.of(AgentConfig.load(tmp_path / "agent.toml"))
    assert "\n" not in str(error.value)


def test_a_port_for_metrics_that_is_taken_is_told_at_the_start(tmp_path, monkeypatch):
    """And nothing is left: neither a thread nor a journal that is held."""
    pytest.importorskip("paho.mqtt.client")
    monkeypatch.setenv("BROADLOOM_TOKEN", "token")
    before = set(threading.enumerate())
    with socket.create_server(("127.0.0.1", 0)) as taken:
        (tmp_path / "agent.toml").write_text(
            f'port = 0\n[brokers.h]\naddress = "127.0.0.1:1"\n[links]\ntopics = ["t"]\n'
            f"metrics = {taken.getsockname()[1]}"
        )
        for _ in range(2):  # the second would find the journals held by the first
            with (
                pytest.raises(bl.InputError, match="metrics cannot listen on"),
                serving(AgentConfig.load(tmp_path / "agent.toml"), hold=embed_links),
            ):
                pass
    assert no_new_thread(before)


def test_links_that_nobody_holds_are_refused(tmp_path, monkeypatch):
    """An agent that takes everything to go everywhere, where it does not, would lose messages."""
    pytest.importorskip("paho.mqtt.client")
    monkeypatch.setenv("BROADLOOM_TOKEN", "token")
    (tmp_path / "agent.toml").write_text('[brokers.h]\naddress = "h:1"\n[links]\ntopics = ["t"]')
    with (
        pytest.raises(bl.InputError, match=r"has \[links\], but `serving` was called without"),
        serving(AgentConfig.load(tmp_path / "agent.toml")),
    ):
        pass


@pytest.mark.needs("mosquitto")
@pytest.mark.xdist_group("mosquitto")
def test_an_agent_that_is_started_again_holds_the_links_of_its_plan_and_clients(tmp_path):
    """From the plan: t/1. By its client: t/2, which the first agent heard of, and the second kept."""
    counted = Counted()
    write_plan(tmp_path)
    with unlinked("hf") as brokers:
        links = '[links]\nplan = "overlay"\ntopics = ["t/2", "t/3"]'
        config, _ = write_config(tmp_path, brokers, QUICK, links=links)
        reader = MovingClient("reader", known(brokers), "f", counted.ear("reader"))
        writer = MovingClient("writer", known(brokers), "h")
        reader.subscribe("t/+")
        with reader, writer:
            for topic in ("t/1", "t/2"):
                writer.publish(topic, b"before there are links")
            for _ in range(2):
                with serving(AgentConfig.load(config), hold=embed_links) as service:
                    assert wait_for(lambda: len(service.agent.registry.residents) == 2)
                    ask = service.agent._links.carried
                    assert wait_for(lambda: all(ask(broker, ["t/1", "t/2"]) for broker in "hf"))  # noqa: B023
                    for topic in ("t/1", "t/2"):
                        counted.send(writer, topic)
                    wait_for(lambda: counted.faults({"reader": {"t/1", "t/2"}})[1] == 0)
                    assert counted.faults({"reader": {"t/1", "t/2"}})[1:] == (0, 0)
                counted.send(writer, "t/2")  # while no agent is there, it waits
                assert writer.wait_until_confirmed(LIMIT)

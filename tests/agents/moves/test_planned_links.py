"""Links that follow clients: their requests, the filters that they carry, and refused configurations."""

from __future__ import annotations

import socket
import threading
import urllib.request
from dataclasses import replace

import pytest
from moving import (
    LIMIT,
    QUICK,
    TrafficCounter,
    addresses,
    client_addresses,
    new_threads_ended,
    unlinked_brokers,
    wait_for,
    write_config,
)

import broadloom as bl
from broadloom.agents.links.embedded_links import EmbeddedLinks, LinkConfig, address_endpoints, embed_links
from broadloom.agents.links.planned_links import PlannedLinks
from broadloom.agents.moves.move_service import AgentConfig, serving
from broadloom.agents.moves.moving_client import MovingClient
from broadloom.deployment.rehearsal.mosquitto_lab import free_ports
from broadloom.mqtt.endpoint import Address, Endpoint, Login


def topics_by_broker(plan):
    """The topics of each broker in a plan."""
    interest = plan.interest
    return {
        name: {interest.topic_ids[topic] for topic in interest.topics_of(node)}
        for node, name in enumerate(interest.node_ids)
    }


def planned_links(*lists, topics=None):
    """Links of the brokers h, f and g, which subscribe to lists of topics."""
    names = "hfg"[: len(lists)]
    plan = bl.link(bl.Interest.from_lists(lists, node_ids=list(names)), algorithm="gm")
    return PlannedLinks(plan, lambda *_: True, topics)


def test_filters_are_carried_as_the_planned_topics_that_they_overlap():
    """Filters that overlap none, and those of a broker's own topics, need no link."""
    links = planned_links([], [], topics=["a/b", "a/c", "x/#"])
    links.carry("h", ["a/+", "x/1", "other", "$SYS/#"])
    links.carry("f", ["x/2"])
    assert not links.carried("h", ["a/+"])
    assert topics_by_broker(links.poll()) == {"h": {"a/b", "a/c", "x/#"}, "f": {"x/#"}}
    assert links.carried("h", ["a/+", "x/1", "other", "$SYS/#"])
    assert not links.carried("f", ["a/b"])
    links.release("h", ["x/1"])
    assert topics_by_broker(links.poll())["h"] == {"a/b", "a/c"}
    assert links.poll() is None


def test_a_topic_is_released_with_the_last_filter_that_overlaps_it():
    links = planned_links([], [], topics=["x/#"])
    links.carry("h", ["x/1", "x/2"])
    links.poll()
    links.release("h", ["x/1"])
    assert links.poll() is None
    links.release("h", ["x/2"])
    assert topics_by_broker(links.poll())["h"] == set()


def test_a_change_of_some_topics_does_not_delay_others():
    """Carried topics stay carried while a new plan is pending; only requested topics are checked."""
    checked = []
    plan = bl.link(bl.Interest.from_lists([[], []], node_ids=["h", "f"]), algorithm="gm")
    links = PlannedLinks(plan, lambda *arguments: not checked.append(arguments))
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
    assert checked == [("f", {"t"}, 1), ("f", {"t", "u"}, 2), ("f", {"t"}, 1)]


def test_topics_of_the_plan_stay_when_clients_leave():
    links = planned_links(["x"], ["x"], [])
    links.carry("h", ["x", "y"])
    links.carry("g", ["x"])
    links.poll()
    links.release("h", ["x", "y"])
    links.release("g", ["x"])
    assert topics_by_broker(links.poll()) == {"h": {"x"}, "f": {"x"}, "g": set()}


def test_a_broker_that_is_not_in_the_plan_is_refused():
    with pytest.raises(bl.InputError, match="broker 'z' is not in the plan of links; it has h, f"):
        planned_links([], []).carry("z", ["x"])


def embedded_links(brokers, folder, plan, topics=None):
    """Embedded links between running brokers."""
    own = addresses(brokers)
    return EmbeddedLinks(plan, topics, address_endpoints(own, Login(), 500), folder)


@pytest.mark.needs("mosquitto")
@pytest.mark.xdist_group("moves")
def test_overlapping_filters_join_one_tree_under_load(tmp_path):
    """`a/#` joins the tree of `a/b` while messages flow; none is lost or duplicated."""
    plan = bl.link(bl.Interest.from_lists([["a/b"], ["a/b"]], node_ids=["h", "f"]), algorithm="gm")
    traffic, over = TrafficCounter(), threading.Event()
    with unlinked_brokers("hf") as brokers:
        embedded = embedded_links(brokers, tmp_path / "links", plan)
        links = embedded.links
        reader = MovingClient(
            "reader", client_addresses(brokers), "f", traffic.callback("reader"), plain=True
        )
        writer = MovingClient("writer", client_addresses(brokers), "h", plain=True)
        reader.subscribe("a/b")

        def load():
            while not over.wait(0.005):
                traffic.send(writer, "a/b")

        publishing = threading.Thread(target=load, daemon=True)
        embedded.start()
        try:
            with reader, writer:
                assert wait_for(lambda: links.carried("h", ["a/b"]) and links.carried("f", ["a/b"]))
                publishing.start()
                for broker in "hf":
                    links.carry(broker, ["a/#"])
                assert not links.carried("h", ["a/#"])
                assert wait_for(lambda: all(links.carried(broker, ["a/#", "a/b"]) for broker in "hf"))
                enough = len(traffic.sent) + 50
                assert wait_for(lambda: len(traffic.sent) > enough)
                over.set()
                publishing.join()
                assert writer.wait_until_confirmed(LIMIT)
                wait_for(lambda: traffic.counts({"reader": {"a/b"}})[1] == 0)
                assert traffic.counts({"reader": {"a/b"}})[1:] == (0, 0)
                assert embedded.down() == []
        finally:
            over.set()
            embedded.stop()


@pytest.mark.needs("mosquitto")
@pytest.mark.xdist_group("moves")
def test_an_absent_broker_delays_the_others_only_for_the_patience(tmp_path):
    """Broker z never answers: it is listed as down, and the others are linked without it."""
    plan = bl.link(bl.Interest.from_lists([["t"], ["t"], ["t"]], node_ids=["h", "f", "z"]), algorithm="gm")
    with unlinked_brokers("hf") as brokers:
        own = {**addresses(brokers), "z": Address("127.0.0.1", free_ports(1)[0])}
        endpoint = address_endpoints(own, Login(), 500)
        embedded = EmbeddedLinks(plan, None, endpoint, tmp_path / "links", patience=0.5)
        embedded.start()
        try:
            assert wait_for(lambda: all(embedded.links.carried(broker, ["t"]) for broker in "hf"))
            assert not embedded.links.carried("z", ["t"])
            assert embedded.down() == ["z"]
        finally:
            embedded.stop()
    assert (tmp_path / "links" / "fleet.key").stat().st_mode & 0o777 == 0o600


def test_a_failure_of_the_links_ends_the_agent(tmp_path, caplog):
    """So that its supervisor starts it again, instead of links that carry nothing."""
    plan = bl.link(bl.Interest.from_lists([[], []], node_ids=["h", "f"]), algorithm="gm")
    embedded = EmbeddedLinks(plan, ["t"], lambda _: Endpoint("127.0.0.1", 1), tmp_path)
    over = threading.Event()

    async def fails():
        raise OSError("error of the links")

    embedded._follow = fails
    embedded.start(over.set)
    assert over.wait(LIMIT)
    embedded.stop()
    assert "links have failed" in caplog.text


def test_a_state_that_is_in_use_or_damaged_is_refused_at_the_start(tmp_path):
    """No lock and no thread stay behind."""
    plan = bl.link(bl.Interest.from_lists([[], []], node_ids=["h", "f"]), algorithm="gm")
    before = set(threading.enumerate())

    def links():
        return EmbeddedLinks(plan, ["t"], lambda _: Endpoint("127.0.0.1", 1), tmp_path)

    first = links()
    with pytest.raises(bl.InputError, match="is open already"):
        links()
    first.stop()
    (tmp_path / "controller.journal").write_bytes(b"not a journal")
    second = links()
    with pytest.raises(bl.InputError, match=r"controller\.journal"):
        second.start()
    second.stop()
    assert new_threads_ended(before)


def test_links_use_their_own_login_or_that_of_the_agent(tmp_path):
    """The password is never shown."""
    (tmp_path / "secret").write_text("never shown")
    (tmp_path / "secret").chmod(0o600)
    (tmp_path / "agent.toml").write_text(
        'token_file = "secret"\n[login]\nplain = true\nuser = "mover"\npassword_file = "secret"\n'
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
    """Save a plan of links in which all brokers have the topic t/1."""
    interest = bl.Interest.from_lists([["t/1"] for _ in names], node_ids=list(names))
    bl.link(interest, algorithm="gm").save(folder / "overlay")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("h", "it does not have broker 'f'"),
        ("hfz", r"has broker 'z', but the configuration has no \[brokers.z\]"),
    ],
)
def test_a_plan_of_other_brokers_is_refused(tmp_path, monkeypatch, names, message):
    monkeypatch.setenv("BROADLOOM_TOKEN", "token")
    write_plan(tmp_path, names)
    text = "".join(f'[brokers.{name}]\naddress = "{name}:1"\n' for name in "hf")
    (tmp_path / "agent.toml").write_text(f'{text}[links]\nplan = "overlay"')
    with pytest.raises(bl.InputError, match=message):
        LinkConfig.of(AgentConfig.load(tmp_path / "agent.toml"))


LINKS = {
    "": r"\[links\] has neither plan nor topics; give a plan's folder or a list of topics",
    "topics = 1": "topics is 1; give a list of topics or filters",
    "topics = []": r"topics is \[\]; give a list",
    "topics = [1]": "1 is not an MQTT filter that links carry",
    'topics = ["a/#/b"]': "'a/#/b' is not an MQTT filter that links carry",
    'topics = ["$SYS/#"]': r"'\$SYS/#' is not an MQTT filter that links carry",
    'topics = ["broadloom/x"]': "'broadloom/x' is not an MQTT filter that links carry",
    'topics = ["a", "a"]': "topics has 'a' twice; give it once",
    'topics = ["a"]\nplane = "x"': "'plane' is unknown; there are login, patience, plan, state",
    'plan = ""': "plan is ''; give a non-empty text",
    'plan = "nowhere"': "nowhere",
    'topics = ["a"]\nstate = "journal"': "state is the folder of the journal; give another folder",
    'topics = ["a"]\nwindow = 0': r"\[links\]: window is 0; give a whole number from 1",
    'topics = ["a"]\nwindow = 70000': "window is 70,000; give a whole number from 1 to 16,384",
    'topics = ["a"]\npatience = "x"': "patience is 'x'; give a number from 0",
    'topics = ["a"]\nlogin = 3': r"login is 3; expected a section \[links.login\]",
    'topics = ["a"]\n[links.login]\nname = "x"': r"\[links.login\]: 'name' is unknown",
    'topics = ["a"]\n[links.login]\nuser = "x"': "no password_file and no BROADLOOM_PASSWORD",
}


@pytest.mark.parametrize(("text", "message"), LINKS.items())
def test_invalid_sections_of_links_are_refused_in_one_line(tmp_path, monkeypatch, text, message):
    monkeypatch.setenv("BROADLOOM_TOKEN", "token")
    monkeypatch.delenv("BROADLOOM_PASSWORD", raising=False)
    brokers = "".join(f'[brokers.{name}]\naddress = "{name}:1"\n' for name in "hf")
    (tmp_path / "agent.toml").write_text(f"{brokers}[links]\n{text}")
    with pytest.raises(bl.InputError, match=message) as error:
        LinkConfig.of(AgentConfig.load(tmp_path / "agent.toml"))
    assert "\n" not in str(error.value)


def test_a_port_in_use_is_reported_at_the_start(tmp_path, monkeypatch):
    """No thread and no locked journal stay behind."""
    pytest.importorskip("paho.mqtt.client")
    monkeypatch.setenv("BROADLOOM_TOKEN", "token")
    before = set(threading.enumerate())
    with socket.create_server(("127.0.0.1", 0)) as server:
        (tmp_path / "agent.toml").write_text(
            f'port = {server.getsockname()[1]}\n[brokers.h]\naddress = "127.0.0.1:1"\n[links]\ntopics = ["t"]'
        )
        for _ in range(2):  # the second would find the journals locked by the first
            with (
                pytest.raises(bl.InputError, match="the agent cannot listen on"),
                serving(AgentConfig.load(tmp_path / "agent.toml"), hold=embed_links),
            ):
                pass
    assert new_threads_ended(before)


def test_a_links_section_without_links_is_refused(tmp_path, monkeypatch):
    """An agent that assumes links where there are none would lose messages."""
    pytest.importorskip("paho.mqtt.client")
    monkeypatch.setenv("BROADLOOM_TOKEN", "token")
    (tmp_path / "agent.toml").write_text('[brokers.h]\naddress = "h:1"\n[links]\ntopics = ["t"]')
    with (
        pytest.raises(bl.InputError, match=r"has \[links\], but `serving` was called without"),
        serving(AgentConfig.load(tmp_path / "agent.toml")),
    ):
        pass


@pytest.mark.needs("mosquitto")
@pytest.mark.xdist_group("moves")
def test_a_restarted_agent_keeps_the_links_of_its_plan_and_of_its_clients(tmp_path):
    """The plan has t/1; a client registered t/2 with the first agent, and the second reads its journal."""
    traffic = TrafficCounter()
    write_plan(tmp_path)
    with unlinked_brokers("hf") as brokers:
        links = '[links]\nplan = "overlay"\ntopics = ["t/2", "t/3"]'
        config, _ = write_config(tmp_path, brokers, QUICK, links=links)
        reader = MovingClient(
            "reader", client_addresses(brokers), "f", traffic.callback("reader"), plain=True
        )
        writer = MovingClient("writer", client_addresses(brokers), "h", plain=True)
        reader.subscribe("t/+")
        with reader, writer:
            for topic in ("t/1", "t/2"):
                writer.publish(topic, b"before the links are up")
            for _ in range(2):
                with serving(AgentConfig.load(config), hold=embed_links) as service:
                    assert wait_for(lambda: len(service.agent.registry.residents) == 2)
                    carried = service.agent._links.carried
                    assert wait_for(lambda: all(carried(broker, ["t/1", "t/2"]) for broker in "hf"))  # noqa: B023
                    for topic in ("t/1", "t/2"):
                        traffic.send(writer, topic)
                    wait_for(lambda: traffic.counts({"reader": {"t/1", "t/2"}})[1] == 0)
                    request = urllib.request.Request(
                        f"http://127.0.0.1:{service.port}/metrics", headers={"Authorization": "Bearer token"}
                    )
                    with urllib.request.urlopen(request) as answer:
                        assert 'broadloom_migrate_hop_up{start="h",end="f"} 1' in answer.read().decode()
                    assert traffic.counts({"reader": {"t/1", "t/2"}})[1:] == (0, 0)
                traffic.send(writer, "t/2")  # it waits while no agent runs
                assert writer.wait_until_confirmed(LIMIT)

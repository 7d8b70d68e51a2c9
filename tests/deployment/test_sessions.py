"""`broadloom deploy session` on real mosquitto brokers, and the printed commands of a change."""

import shlex

import pytest

from broadloom.deployment import Deployment, Settings, WiredLink, Wiring, sample_messages
from broadloom.deployment.rehearsal import mosquitto_lab
from broadloom.deployment.rehearsal.delivery_counts import DeliveryTally, LabClients, publish_all, settle
from broadloom.deployment.rehearsal.mosquitto_lab import MosquittoLab, free_ports
from broadloom.deployment.rehearsal.rehearsals import connect
from broadloom.deployment.rollout import mosquitto_steps
from broadloom.deployment.targets import mosquitto_bridges

pytestmark = [pytest.mark.needs("mosquitto"), pytest.mark.xdist_group("mosquitto")]

X = ("x",)
ALONE = Wiring(("a",), {}, {}, ())


@pytest.fixture
def broker():
    """One running broker."""
    with MosquittoLab(ALONE) as brokers:
        yield brokers


def queued(brokers, client, count):
    """The topics of the messages queued for a client, after `count` messages and a moment more."""
    found = []
    with LabClients(
        brokers.ports, lambda _broker, topic, _payload: found.append(topic), name=client
    ) as clients:
        clients.subscribe({"a": ()})
        clients.run(lambda: len(found) >= count, 60)
        clients.run(lambda: False, 0.3)
    return sorted(found)


def publish(brokers, *topics):
    with LabClients(brokers.ports, lambda *_: None, name="publisher") as clients:
        clients.subscribe({"a": ()})
        sent = [clients.publish("a", topic, b"1") for topic in topics]
        assert clients.run(lambda: all(one.is_published() for one in sent), 60)


def test_a_session_queues_from_the_moment_it_is_opened_until_it_is_closed(run, broker):
    """Queued messages stay in the session while it changes."""
    session = ("deploy", "session", f"127.0.0.1:{broker.ports['a']}", "link-0", "--no-tls")
    publish(broker, "x", "y")
    assert run(*session, "--open=x", "--open=y/#")[:2] == (0, f"link-0 at {session[2]}: done\n")
    publish(broker, "x", "y/1", "z")
    assert run(*session, "--close=x", "--open=z")[0] == 0
    publish(broker, "x", "y/2", "z")
    assert queued(broker, "link", 4) == ["x", "y/1", "y/2", "z"]
    publish(broker, "y/3")
    assert run(*session, "--end")[0] == 0
    assert queued(broker, "link", 0) == []


def test_errors_of_a_session_are_one_line(run, broker, monkeypatch):
    (port,) = free_ports(1)
    code, _, err = run("deploy", "session", f"127.0.0.1:{port}", "link", "--open=x", "--no-tls")
    assert code == 3
    assert f"cannot change the session 'link' at 127.0.0.1:{port}: Connection refused" in err
    here = f"127.0.0.1:{broker.ports['a']}"
    for options in ((), ("--end", "--open=x")):
        code, _, err = run("deploy", "session", here, "link", "--no-tls", *options)
        assert (code, err) == (2, "broadloom: give filters to --open or to --close, or --end the session\n")
    code, _, err = run("deploy", "session", here, "link", "--end", "--certificates", "/nowhere")
    assert (code, err.count("\n"), "/nowhere" in err) == (2, 1, True)
    monkeypatch.delenv("BROADLOOM_USER", raising=False)
    code, _, err = run("deploy", "session", here, "link", "--end", "--no-tls", "--credentials")
    assert (code, "a login is required; set BROADLOOM_USER" in err) == (2, True)


def test_a_broker_that_refuses_anonymous_clients_is_reported(run, monkeypatch):
    monkeypatch.setattr(
        mosquitto_lab,
        "_LISTEN",
        mosquitto_lab._LISTEN.replace("allow_anonymous true", "allow_anonymous false"),
    )
    with MosquittoLab(ALONE) as brokers:
        here = f"127.0.0.1:{brokers.ports['a']}"
        code, _, err = run("deploy", "session", here, "link", "--open=x", "--no-tls")
    assert (code, err) == (
        2,
        f"broadloom: {here} refused the session 'link': Not authorized; check its login and access rules\n",
    )


def test_the_printed_commands_make_the_change_and_nothing_is_lost(run):
    """Topic x moves from b-c to a-c and y from a-b to a-c, with a round of messages before each line."""
    wants = {"a": ("x", "y"), "b": ("x", "y"), "c": ("x", "y")}
    both = ("x", "y")
    old = Wiring(tuple("abc"), wants, {}, (WiredLink("a", "b", both, both), WiredLink("b", "c", both, both)))
    new = Wiring(
        tuple("abc"),
        wants,
        {},
        (WiredLink("a", "b", X, X), WiredLink("a", "c", both, both), WiredLink("b", "c", ("y",), ("y",))),
    )
    tally = DeliveryTally(old)
    with MosquittoLab(old) as brokers, LabClients(brokers.ports, tally.receive) as clients:
        connect(brokers, clients, old)
        settings = Settings(
            addresses={name: f"127.0.0.1:{port}" for name, port in brokers.ports.items()}, tls=False
        )
        sides = [
            Deployment(wiring, settings, mosquitto_bridges.files(wiring, settings)) for wiring in (old, new)
        ]
        for step in mosquitto_steps(*sides, at_once=False):
            for line in step["commands"]:
                publish_all(clients, tally, sample_messages(old))
                follow(run, brokers, line, new)
        brokers.wait_until_linked(new)
        settle(clients, tally)
        during, first = tally.counts(), len(tally.published)
        publish_all(clients, tally, sample_messages(old))
        settle(clients, tally)
        after = tally.counts(first)
    assert during["published"] > 50
    assert (during["missing"], during["unexpected"]) == (0, 0)
    assert [after[key] for key in ("missing", "duplicates", "unexpected")] == [0, 0, 0]


def follow(run, brokers, line, new):
    """Run one line of a step."""
    if line.startswith("# stop "):
        brokers.stop(line.removeprefix("# stop "))
    elif line.startswith("# start "):
        broker = line.split()[2]
        brokers.wiring = new
        brokers.configure(broker, new)
        brokers.start(broker)
        brokers.wait_until_listening([broker])
    else:
        assert run(*shlex.split(line)[1:])[0] == 0

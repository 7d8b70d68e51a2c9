"""Commands `broadloom serve` and `what-if`: sources, the printed address, and refused input."""

import json
import subprocess
import sys

import pytest

import broadloom as bl
from broadloom.cli import main
from broadloom.console.server import ConsoleServer
from broadloom.deployment.rehearsal.mosquitto_lab import free_ports
from fleet_lab import fleet_lab
from routed import wait_for
from what_if_plans import plan_of


def run(*arguments):
    with pytest.raises(SystemExit) as stopped:
        main([str(one) for one in arguments])
    return stopped.value.code


@pytest.fixture
def served(monkeypatch):
    """The servers that were started; they end at once."""
    found = []
    monkeypatch.setattr(ConsoleServer, "run", lambda server: (found.append(server), server.close()))
    return found


def test_a_plan_is_served_at_an_address_with_a_token(served, tmp_path, capsys):
    plan_of("sites").save(tmp_path / "plan")
    assert run("serve", tmp_path / "plan", "--no-browser", "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    (server,) = served
    assert printed["address"] == f"http://127.0.0.1:{server.port}/?token={server.token}"
    assert len(server.token) >= 32
    assert server.session.plan == plan_of("sites")


def test_the_address_is_printed_at_once_if_the_output_is_a_file(tmp_path):
    """Python buffers what goes to a file, and the server never ends by itself."""
    plan_of("sites").save(tmp_path / "plan")
    command = [sys.executable, "-m", "broadloom.cli", "serve", str(tmp_path / "plan"), "--no-browser"]
    log = tmp_path / "log"
    with log.open("w") as output, subprocess.Popen(command, stdout=output) as server:
        try:
            assert wait_for(lambda: log.read_text().startswith("http://127.0.0.1:"), 60)
        finally:
            server.terminate()


def test_tables_are_linked_first(served, tmp_path):
    """And the plan is written, so that a script can start from it."""
    tables = tmp_path / "tables"
    assert run("generate", "--nodes", 12, "--topics", 30, "-o", tables, "-q") == 0
    assert run("serve", tables, "--no-browser", "-q") == 0
    assert bl.Plan.load(tmp_path / "tables-plan") == served[0].session.plan
    assert served[0].source == str(tmp_path / "tables-plan")


@pytest.mark.needs("mosquitto", "mosquitto_sub")
@pytest.mark.xdist_group("mosquitto")
def test_a_fleet_is_discovered_and_linked_first(served, tmp_path):
    """Real brokers: what clients subscribe to there is in the plan, with addresses and what is left out."""
    wanted = {
        "rome": ["sensors/+/temp", "alarms/#"],
        "oslo": ["alarms/fire", "$SYS/uptime"],
        "bonn": ["sensors/#"],
    }
    with fleet_lab(tmp_path, **dict.fromkeys(wanted, "")) as lab:
        for name, filters in wanted.items():
            lab.subscribe(name, f"client of {name}", *filters)
        sources = {name: f'"{broker.log}"' for name, broker in lab.brokers.items()}
        fleet = lab.fleet_file(sources)
        assert run("serve", fleet, "--no-browser", "-q") == 0
        addresses = {name: f"127.0.0.1:{broker.port}" for name, broker in lab.brokers.items()}
    (server,) = served
    plan = server.session.plan
    assert server.fleet is None
    assert server.source == str(tmp_path / "fleet-tables-plan")
    assert bl.Plan.load(server.source) == plan
    found = {
        name: sorted(plan.interest.topic_ids[topic] for topic in plan.interest.topics_of(node))
        for node, name in enumerate(plan.interest.node_ids)
    }
    assert found == {
        "rome": ["alarms/#", "sensors/+/temp"],
        "oslo": ["alarms/fire"],
        "bonn": ["sensors/#"],
    }
    assert [(row.node, row.topic) for row in plan.not_carried.subscriptions] == [("oslo", "$SYS/uptime")]
    columns = plan.nodes.select(["node", "address"]).to_pydict()
    assert dict(zip(columns["node"], columns["address"], strict=True)) == addresses
    linked = {frozenset(plan.interest.node_ids[b] for b in edge) for edge in plan.edges.tolist()}
    assert linked == {frozenset(("rome", "oslo")), frozenset(("rome", "bonn"))}
    effect = server.session.do("subscribe oslo sensors/1/temp")
    assert set(effect.added) <= {("bonn", "oslo")}
    assert server.session.plan.is_topic_connected()


def test_a_fleet_with_a_key_shows_its_controller(served, tmp_path):
    """Which does not answer here: the brokers are shown without links; --discover asks the brokers."""
    (tmp_path / "key").write_text("a key for a test, which is long enough")
    (tmp_path / "key").chmod(0o600)
    (port,) = free_ports(1)
    broker = f'[brokers.rome]\naddress = "127.0.0.1:{port}"\ntls = false\nposition = [41.9, 12.5]\n'
    live = f'[live]\ncontroller = "127.0.0.1:{port}"\nkey_file = "key"\n'
    (tmp_path / "fleet.toml").write_text(broker + live)
    assert run("serve", tmp_path / "fleet.toml", "--no-browser", "-q") == 0
    (server,) = served
    assert "does not answer" in server.fleet.record()["away"]["reason"]
    assert server.session.plan.interest.node_ids == ("rome",)
    assert server.source == str(tmp_path / "fleet-live-plan")
    assert run("serve", tmp_path / "fleet.toml", "--discover", "--no-browser", "-q") in (2, 3)
    assert len(served) == 1


@pytest.mark.parametrize("source", ["nowhere", "empty.toml"])
def test_a_wrong_source_is_one_line_and_exit_code_2(served, tmp_path, capsys, source):
    (tmp_path / "empty.toml").write_text("")
    assert run("serve", tmp_path / source, "--no-browser") == 2
    error = capsys.readouterr().err
    assert error.startswith("broadloom: ")
    assert error.count("\n") == 1
    assert served == []


def test_operations_on_the_command_line(tmp_path, capsys):
    plan_of("sites").save(tmp_path / "plan")
    done = ("--do", "fail broker broker-1", "--do", "restore broker broker-1")
    assert run("what-if", tmp_path / "plan", *done, "-o", tmp_path / "after", "--json") == 0
    effects = json.loads(capsys.readouterr().out)["effects"]
    assert [one["operation"] for one in effects] == [done[1], done[3]]
    assert run("verify", tmp_path / "after", "-q") == 0
    assert run("what-if", tmp_path / "plan", "--do", "explode", "-o", tmp_path / "x") == 2
    assert "is not an operation" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()

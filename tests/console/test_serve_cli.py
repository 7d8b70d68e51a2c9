"""Commands `broadloom serve` and `what-if`: sources, the printed address, and refused input."""

import json

import pytest

import broadloom as bl
from broadloom.cli import main
from broadloom.console.server import ConsoleServer
from what_if_plans import plan_of


def run(*arguments):
    with pytest.raises(SystemExit) as stopped:
        main([str(one) for one in arguments])
    return stopped.value.code


@pytest.fixture
def served(monkeypatch):
    """The servers that were started; they end at once."""
    found = []
    monkeypatch.setattr(ConsoleServer, "run", lambda server: (found.append(server), server._socket.close()))
    return found


def test_a_plan_is_served_at_an_address_with_a_token(served, tmp_path, capsys):
    plan_of("sites").save(tmp_path / "plan")
    assert run("serve", tmp_path / "plan", "--no-browser", "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    (server,) = served
    assert printed["address"] == f"http://127.0.0.1:{server.port}/?token={server.token}"
    assert len(server.token) >= 32
    assert server.session.plan == plan_of("sites")


def test_tables_are_linked_first(served, tmp_path):
    """And the plan is written, so that a script can start from it."""
    tables = tmp_path / "tables"
    assert run("generate", "--nodes", 12, "--topics", 30, "-o", tables, "-q") == 0
    assert run("serve", tables, "--no-browser", "-q") == 0
    assert bl.Plan.load(tmp_path / "tables-plan") == served[0].session.plan
    assert served[0].source == str(tmp_path / "tables-plan")


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

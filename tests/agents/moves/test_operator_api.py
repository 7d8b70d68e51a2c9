"""The operators' HTTP API: on loopback, only with the token, and as its OpenAPI description says."""

from __future__ import annotations

import http.client
import json
import logging
import random
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest
from moving import LIMIT, new_threads_ended
from test_move_agent import BROKERS, FakeGateway

from broadloom import InputError, UnreachableError
from broadloom.agents.moves.control_messages import Register, dump, from_client
from broadloom.agents.moves.move_agent import MoveAgent
from broadloom.agents.moves.move_plans import MoveRefusedError
from broadloom.agents.moves.move_registry import Forgotten, MoveJournal
from broadloom.agents.moves.move_service import AgentConfig, serving
from broadloom.agents.moves.operator_api import HttpServer, OperatorApi, api_description
from broadloom.agents.moves.operator_client import Operator
from broadloom.deployment.rehearsal.mosquitto_lab import free_ports
from broadloom.mqtt.endpoint import Address, Login, read_secret

TOKEN = "a-token-that-is-never-shown"


@contextmanager
def served_agent(folder, clients):
    """An agent without brokers that has registered some clients; yields it and the port of its API."""
    journal = MoveJournal(folder / "journal")
    agent = MoveAgent(BROKERS, FakeGateway(), journal)
    for client in clients:
        agent.receive(
            "h", from_client(client, "register"), dump(Register(client, 1, "h", (("t", 1),), (1.0, 2.0)))
        )
    server = HttpServer(OperatorApi(agent, lambda seconds: {"seconds": seconds}), TOKEN)
    thread = threading.Thread(target=agent.run)
    thread.start()
    server.start()
    try:
        yield agent, server.server_port
    finally:
        server.shutdown()
        server.server_close()
        agent.stop()
        thread.join()
        journal.close()


@pytest.fixture
def port(tmp_path):
    """The port of an agent with two clients."""
    with served_agent(tmp_path, "ab") as (_, port):
        yield port


def request(port, method, path, body=b"", token=TOKEN, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT)
    headers = {name: value for name, value in headers.items() if value is not None}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    connection.request(method, path, body, headers)
    response = connection.getresponse()
    content_type, content = response.headers["Content-Type"], response.read().decode()
    connection.close()
    return response.status, json.loads(content) if content_type == "application/json" else content


def test_an_operator_can_request_list_and_cancel_moves(port):
    operator = Operator(f"http://127.0.0.1:{port}", TOKEN, patience=0)
    assert [one["client"] for one in operator.clients()] == ["a", "b"]
    move = operator.request_to_move("a", "f", "key")
    assert operator.request_to_move("a", "f", "key")["id"] == move["id"]
    assert operator.move(move["id"])["state"] == "requested"
    assert operator.health()["moves"] == {"requested": 1}
    assert operator.cancel(move["id"])["state"] == "cancelled"
    assert [one["state"] for one in operator.moves()] == ["cancelled"]
    for client, to, message in (
        ("a", "h", "is at 'h' already"),
        ("a", "x", "no broker 'x'"),
        ("z", "f", "not reg"),
    ):
        with pytest.raises(MoveRefusedError, match=message):
            operator.request_to_move(client, to)
    with pytest.raises(InputError, match="without a login"):
        Operator("http://me:secret@host:1", TOKEN)
    with pytest.raises(UnreachableError, match="does not answer") as error:
        Operator("http://127.0.0.1:1", TOKEN, patience=0).health()
    assert TOKEN not in str(error.value)


def test_moves_are_listed_in_pages(port, monkeypatch):
    """Each move once, oldest first, for any page size."""
    operator = Operator(f"http://127.0.0.1:{port}", TOKEN, patience=0)
    requested = []
    for number in range(5):
        requested.append(operator.request_to_move("a", "fg"[number % 2])["id"])
        operator.cancel(requested[-1])
    for limit in range(1, 7):
        found, query = [], ""
        while query is not None:
            page = request(port, "GET", f"/moves?limit={limit}{query}")[1]
            found += [one["id"] for one in page["moves"]]
            query = page["next"] and f"&after={page['next']}"
        assert found == requested
        monkeypatch.setattr("broadloom.agents.moves.operator_api.PAGE", limit)
        assert [one["id"] for one in operator.moves()] == requested
        monkeypatch.undo()
    assert request(port, "GET", "/moves?after=x")[0] == 404


@pytest.mark.parametrize("path", ["/clients", "/moves"])
@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("limit=0", "limit is '0'; give a whole number from 1 to 1,000"),
        ("limit=1001", "limit is '1001'; give"),
        ("limit=-1", "limit is '-1'; give"),
        ("limit=", "limit is ''; give"),
        ("limit=x", "limit is 'x'; give"),
        ("limit=1.0", "limit is '1.0'; give"),
        ("limit=%C2%B2", "limit is '²'; give"),
        (f"limit={'9' * 5_000}", "limit is '99999"),
        ("a=b", "'a' is unknown; give after or limit"),
        ("after=a&Limit=1", "'Limit' is unknown; give after or limit"),
    ],
)
def test_invalid_page_queries_are_refused(port, path, query, message):
    code, body = request(port, "GET", f"{path}?{query}")
    assert (code, list(body)) == (400, ["error"])
    assert body["error"].startswith(message)
    assert "\n" not in body["error"]
    assert len(body["error"]) < 120


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 1_000])
def test_clients_are_listed_in_pages(tmp_path, monkeypatch, limit):
    """Each once, by name, for any page size, even if clients are forgotten meanwhile."""
    names = ["b", "a", "a.b", "a-b", "B", "z~", "_", "10", "9"]
    with served_agent(tmp_path, names) as (agent, port):
        monkeypatch.setattr("broadloom.agents.moves.operator_api.PAGE", limit)
        operator = Operator(f"http://127.0.0.1:{port}", TOKEN, patience=0)
        assert [one["client"] for one in operator.clients()] == sorted(names)
        agent.ask(lambda own: own.registry.apply([Forgotten("a-b", "h")]))
        page = request(port, "GET", f"/clients?limit={limit}&after=a-b")[1]
        assert [one["client"] for one in page["clients"]] == ["a.b", "b", "z~"][:limit]
        assert page["next"] == (page["clients"][-1]["client"] if limit < 3 else None)
        assert request(port, "GET", "/clients?after=%F0%9F%8D%80") == (200, {"clients": [], "next": None})


def test_the_command_line_lists_and_cancels_moves(port, run, monkeypatch):
    monkeypatch.setenv("BROADLOOM_TOKEN", TOKEN)
    agent = ("--agent", f"http://127.0.0.1:{port}")
    operator = Operator(agent[1], TOKEN, patience=0)
    one, other = (operator.request_to_move(client, "f")["id"] for client in "ab")
    code, out, _ = run("migrate", "moves", *agent)
    assert (code, one in out, other in out, "2 moves in progress" in out) == (0, True, True, True)
    code, out, _ = run("migrate", "cancel", one, *agent, "--json")
    assert (code, [move["state"] for move in json.loads(out)["moves"]]) == (0, ["cancelled"])
    lists = [
        json.loads(run("migrate", "moves", *agent, "--json", *options)[1])["moves"]
        for options in ((), ("--all",))
    ]
    assert [[move["id"] for move in listed] for listed in lists] == [[other], [one, other]]
    for move in (one, "nothing", "a b/../c"):
        code, _, err = run("migrate", "cancel", move, *agent)
        assert (code, err.count("\n"), "the agent says" in err) == (2, 1, True)
    code, out, _ = run("migrate", "cancel", other, "nothing", *agent)
    assert (code, "1 moves cancelled" in out) == (2, True)
    monkeypatch.delenv("BROADLOOM_TOKEN")
    code, _, err = run("migrate", "moves", *agent)
    assert (code, "the token is missing; give --token-file" in err) == (2, True)


def test_the_api_requires_the_token_and_a_loopback_host(port):
    for token in (None, "", "wrong", TOKEN[:-1], TOKEN + "x"):
        code, body = request(port, "GET", "/clients", token=token)
        assert code == 401
        assert TOKEN not in json.dumps(body)
    assert request(port, "GET", "/clients", Host="evil.example:80")[0] == 403
    assert request(port, "GET", "/openapi.json", token=None)[0] == 401
    with pytest.raises(InputError, match="the token is empty"):
        HttpServer(None, "")


def test_every_operation_answers_as_in_the_api_description(port):
    """The status codes and the fields of the answers are those of the description."""
    described = request(port, "GET", "/openapi.json")[1]
    assert described == json.loads(json.dumps(api_description()))
    code, move = request(port, "POST", "/moves", json.dumps({"client": "b", "to": "f"}).encode())
    assert code == 201
    assert sorted(move) == sorted(described["components"]["schemas"]["Move"]["required"])
    assert sorted(request(port, "GET", "/clients")[1]["clients"][0]) == sorted(
        described["components"]["schemas"]["Client"]["required"]
    )
    health = described["paths"]["/health"]["get"]["responses"]["200"]["content"]["application/json"]
    assert sorted(request(port, "GET", "/health")[1]) == sorted(health["schema"]["required"])
    for path, operations in described["paths"].items():
        for method, operation in operations.items():
            body = b'{"seconds": 1}' if "summarize" in path else b'{"client": "a", "to": "g"}'
            code, answer = request(port, method.upper(), path.replace("{id}", move["id"]), body)
            assert str(code) in operation["responses"], (path, answer)


def test_the_metrics_page_has_the_numbers_of_health_in_prometheus_format(port):
    """It requires the token, too."""
    request(port, "POST", "/moves", b'{"client": "a", "to": "f"}')
    code, page = request(port, "GET", "/metrics")
    values = dict(line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#"))
    expected = {"clients": "2", "strays": "0", "abandoned": "0", 'moves{state="requested"}': "1"}
    assert (code, values) == (200, {f"broadloom_migrate_{name}": value for name, value in expected.items()})
    assert request(port, "GET", "/metrics", token=None)[0] == 401


def test_unknown_paths_and_invalid_bodies_are_refused(port):
    for method, path, body, code in (
        ("GET", "/nothing", b"", 404),
        ("GET", "/moves/nothing", b"", 404),
        ("POST", "/moves/nothing/cancel", b"", 400),
        ("POST", "/moves", b"[]", 400),
        ("POST", "/moves", b"{", 400),
        ("POST", "/moves", b'{"client": 1, "to": "f"}', 400),
        ("POST", "/moves", b'{"client": "a", "to": "f", "now": true}', 400),
        ("POST", "/summarize", b'{"seconds": -1}', 400),
        ("POST", "/summarize", b'{"seconds": true}', 400),
    ):
        assert request(port, method, path, body)[0] == code, (path, body)
    for length in (str(10**9), "9" * 5_000):
        code, _ = request(port, "POST", "/moves", b"", **{"Content-Length": length})
        assert code in (400, 413)  # the server itself refuses an absurd length


def test_random_bodies_are_refused_as_client_errors(port):
    rng = random.Random(0)
    for _ in range(300):
        body = bytes(rng.randrange(256) for _ in range(rng.randrange(1, 60)))
        assert request(port, "POST", rng.choice(["/moves", "/summarize", "/moves/%00/cancel"]), body)[0] in (
            400,
            404,
        )


def test_secrets_are_read_from_private_files_and_never_shown(tmp_path, caplog):
    """A file that other users can read is refused."""
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    path.chmod(0o644)
    with pytest.raises(InputError, match="other users can read"):
        read_secret(path)
    path.chmod(0o600)
    assert read_secret(path) == TOKEN
    config = tmp_path / "agent.toml"
    config.write_text(
        'token_file = "token"\n[brokers.h]\naddress = "h.example:1883"\nagent_address = "h.example:1884"'
    )
    with caplog.at_level(logging.DEBUG):
        loaded = AgentConfig.load(config)
    shown = repr(loaded) + repr(Login("u", TOKEN)) + caplog.text
    assert loaded.token == TOKEN
    assert TOKEN not in shown
    assert (loaded.brokers["h"].port, loaded.agent_addresses["h"].port) == (1883, 1884)


CONFIGS = {
    "": "no brokers",
    "[brokers.h]": r"\[brokers.h\]: address is ''; give a non-empty text",
    '[brokers.h]\naddress = "h"': r"\[brokers.h\]: .*give host:port",
    "[brokers]\nh = 1": r"h is 1; expected a section \[brokers.h\]",
    '[brokers.h]\naddress = "h:1"\n[brokers.f]\naddress = "h:1"': "h:1 is the address of 'h' and of 'f'",
    '[brokers.h]\naddress = "h:1"\n[brokers.f]\naddress = "f:1"\nagent_address = "h:1"': (
        "h:1 is the agent_address of 'h' and of 'f'; give each its own"
    ),
    f'[brokers.{"h" * 300}]\naddress = "h:1"': "a broker is 'hhhh.*; give a printable name",
    '[brokers."a\\n"]\naddress = "h:1"': r"a broker is 'a\\n'; give a printable name",
    '[brokers."a\\u0000"]\naddress = "h:1"': r"a broker is 'a\\x00'; give a printable name",
    '[brokers.h]\naddress = "h:1"\n[login]\npassword_file = "x"': "password_file requires a user; give both",
    '[brokers.h]\naddress = "me:secret@h:1"': "contains a login",
    '[brokers.h]\naddress = "h:1"\npassword = "x"': "'password' is unknown",
    'links = 1\n[brokers.h]\naddress = "h:1"': r"links is 1; expected a section \[links\]",
    "brokers = 1": r"expected a section \[brokers\]",
    '[brokers.h]\naddress = "h:1"\nplace = "x"': "give a list of coordinates",
    '[brokers.h]\naddress = "h:1"\n[timing]\nttl = -1': "ttl is -1",
    '[brokers.h]\naddress = "h:1"\n[timing]\nslow = 1': "'slow' is unknown",
    '[brokers.h]\naddress = "h:1"\n[login]\nca = 1': "ca is 1; give a non-empty text",
    '[brokers.h]\naddress = "h:1"\n[login]\nca = "nowhere"': "nowhere cannot be used for TLS: No such file",
    '[brokers.h]\naddress = "h:1"\n[login]\nca = "agent.toml"': "agent.toml cannot be used for TLS",
    '[brokers.h]\naddress = "h:1"\n[login]\ncertificate = "x"': "certificate and key belong together",
    "x": "is not TOML",
}


@pytest.mark.parametrize(("text", "message"), CONFIGS.items())
def test_invalid_configurations_are_refused(tmp_path, monkeypatch, text, message):
    monkeypatch.setenv("BROADLOOM_TOKEN", TOKEN)
    (tmp_path / "agent.toml").write_text(text)
    with pytest.raises(InputError, match=message) as error:
        AgentConfig.load(tmp_path / "agent.toml")
    assert "secret" not in str(error.value)
    monkeypatch.delenv("BROADLOOM_TOKEN")
    (tmp_path / "agent.toml").write_text('[brokers.h]\naddress = "h:1"')
    with pytest.raises(InputError, match="no token_file and no BROADLOOM_TOKEN"):
        AgentConfig.load(tmp_path / "agent.toml")


def test_a_file_in_place_of_the_journal_folder_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"the journal cannot be in .*file: File exists; give a folder"):
        MoveJournal(tmp_path / "file")


def test_addresses_are_host_and_port():
    assert str(Address.parse("[::1]:1883")) == "[::1]:1883"
    for text in ("", "h", "h:0", "h:70000", ":1", "a b:1", "h:x"):
        with pytest.raises(InputError):
            Address.parse(text)
    with pytest.raises(InputError, match="give host:port, with a port from 1 to 65535"):
        Address.parse("h:70000")


def test_an_agent_that_cannot_start_leaves_no_thread_and_no_locked_journal(tmp_path, monkeypatch):
    """Its port is in use, or its connections fail."""
    config = tmp_path / "agent.toml"
    monkeypatch.setenv("BROADLOOM_TOKEN", TOKEN)
    with socket.create_server(("127.0.0.1", 0)) as server:
        config.write_text(f'port = {server.getsockname()[1]}\n[brokers.h]\naddress = "127.0.0.1:1"')
        with pytest.raises(InputError, match="cannot listen on"), serving(AgentConfig.load(config)):
            pass

    def fails(*_):
        raise OSError("cannot connect")

    before = set(threading.enumerate())
    config.write_text('port = 0\n[brokers.h]\naddress = "127.0.0.1:1"')
    monkeypatch.setattr("broadloom.agents.moves.broker_sessions.connect_in_background", fails)
    for _ in range(2):  # the second would find the journal locked by the first
        with pytest.raises(OSError, match="cannot connect"), serving(AgentConfig.load(config)):
            pass
    assert new_threads_ended(before)


def test_the_agent_command_serves_until_it_is_terminated(tmp_path):
    """It prints its port, shows no secrets, locks its journal, and exits with 0."""
    for name in ("token", "password"):
        (tmp_path / name).write_text(TOKEN)
        (tmp_path / name).chmod(0o600)
    (port,) = free_ports(1)
    (tmp_path / "agent.toml").write_text(
        f'port = {port}\ntoken_file = "token"\n[login]\nuser = "u"\npassword_file = "password"\n'
        '[brokers.h]\naddress = "127.0.0.1:1"\n[links]\ntopics = ["t"]\n'
    )
    command = [sys.executable, "-m", "broadloom.cli", "migrate", "agent", tmp_path / "agent.toml", "--json"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as first:
        assert json.loads(first.stdout.readline()) == {"port": port, "brokers": ["h"]}
        assert Operator(f"http://127.0.0.1:{port}", TOKEN).health()["clients"] == 0
        for file in ("cmdline", "environ"):
            assert TOKEN not in Path(f"/proc/{first.pid}/{file}").read_text(errors="replace")
        second = subprocess.run(command, capture_output=True, text=True)
        assert second.returncode == 2
        assert "is open already" in second.stderr
        first.terminate()
        _, err = first.communicate(timeout=60)
    assert first.returncode == 0
    assert TOKEN not in err

"""Subscriptions from the APIs and dumps of EMQX, NATS and RabbitMQ, each up to a plan."""

import base64
import gzip
import json
import shutil
import socket
import subprocess
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

import broadloom as bl
from broadloom.deployment import FleetBroker
from broadloom.deployment.rehearsal.mosquitto_lab import free_ports, killed_with_parent, listens
from broadloom.discovery import subscription_sources
from broadloom.discovery.subscription_sources import read_source
from broadloom.model import read_link_problem
from broadloom.storage.tables import read_table
from fleet_lab import HOST, wait_until

SECRET = "tops3cret"


@contextmanager
def api(answers, login=None):
    """An HTTP server; `answers` is a function from a path and a query to a document, or None for 404."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            parts = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(parts.query).items()}
            expected = login and f"Basic {base64.b64encode(login.encode()).decode()}"
            document = answers(parts.path, query)
            code = 401 if login and self.headers["Authorization"] != expected else 200 if document else 404
            body = document if isinstance(document, bytes) else json.dumps(document).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer((HOST, 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://{HOST}:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def emqx_api(subscriptions):
    """EMQX's list of subscriptions, in pages."""

    def answer(path, query):
        if path != "/api/v5/subscriptions":
            return None
        page, limit = int(query["page"]), int(query["limit"])
        start = (page - 1) * limit
        data = [
            {"node": "emqx@10.0.0.1", "clientid": client, "topic": topic, "qos": 1}
            for client, topic in subscriptions[start : start + limit]
        ]
        more = start + limit < len(subscriptions)
        return {
            "data": data,
            "meta": {"page": page, "limit": limit, "count": len(subscriptions), "hasnext": more},
        }

    return answer


def fleet_of(folder, **brokers):
    """A fleet file with one section per broker."""
    sections = [f'[brokers.{name}]\naddress = "{name}.example.org"\n{text}' for name, text in brokers.items()]
    (folder / "fleet.toml").write_text("\n".join(sections))
    return folder / "fleet.toml"


def pairs(folder):
    """The rows of the table `subscriptions`."""
    return [tuple(row.values()) for row in read_table(folder, "subscriptions").to_pylist()]


def plan_of(folder):
    problem = read_link_problem(folder)
    plan = bl.link(problem.interest, problem.weights)
    assert plan.metrics()["topic_connected"]
    return plan


def test_all_pages_of_emqx_are_read(tmp_path, monkeypatch):
    """With the login of the API; every filter of every client is in the table."""
    monkeypatch.setattr(subscription_sources, "PAGE_ENTRIES", 3)
    monkeypatch.setenv("API_PASSWORD", SECRET)
    rome = [(f"c{number}", f"rooms/{number % 5}/+") for number in range(10)] + [("c1", "$share/g/jobs/#")]
    oslo = [("d1", "rooms/#")]
    login = 'api_login = { user = "key", password_env = "API_PASSWORD" }'
    with api(emqx_api(rome), f"key:{SECRET}") as one, api(emqx_api(oslo), f"key:{SECRET}") as two:
        fleet = fleet_of(
            tmp_path,
            rome=f'kind = "emqx"\n{login}\nsubscriptions = "{one}"',
            oslo=f'kind = "emqx"\n{login}\nsubscriptions = "{two}/api/v5/subscriptions"',
        )
        found = bl.discover(fleet, tmp_path / "tables")
    assert found.is_complete
    assert set(pairs(tmp_path / "tables")) == {
        *(("rome", f"rooms/{number}/+") for number in range(5)),
        ("rome", "jobs/#"),
        ("oslo", "rooms/#"),
    }
    assert plan_of(tmp_path / "tables").edges.tolist() == [[0, 1]]


@pytest.mark.parametrize(
    ("answers", "login", "problem"),
    [
        (emqx_api([("c", "t")]), "key:other", "answers 401; set api_login"),
        (lambda *_: None, None, "answers 404"),
        (lambda *_: b"<html>", None, "does not answer with JSON; is it the API of emqx?"),
        (lambda *_: {"code": "BAD"}, None, "not the document that was expected"),
        (lambda *_: {"data": [{"clientid": "c", "topic": "t"}, 3]}, None, "not a JSON object"),
        (
            lambda *_: {
                "data": [{"clientid": "c", "topic": "t"}],
                "meta": {"page": 1, "limit": 9, "count": 4},
            },
            None,
            "1 of 4 entries are there",
        ),
    ],
    ids=["login", "path", "html", "document", "entry", "count"],
)
def test_an_api_that_fails_is_a_problem_of_its_broker(tmp_path, answers, login, problem, run):
    """Said in one line and in JSON, with exit code 1; the secret of the login is not shown."""
    (tmp_path / "secret").write_text(SECRET)
    (tmp_path / "secret").chmod(0o600)
    with api(answers, login) as url:
        text = 'api_login = { user = "key", password_file = "secret" }\n' if login else ""
        fleet = fleet_of(tmp_path, rome=f'kind = "emqx"\n{text}subscriptions = "{url}"')
        code, out, err = run("discover", fleet, "-o", tmp_path / "tables", "--json")
    (broker,) = json.loads(out)["brokers"]
    assert (code, broker["complete"]) == (1, False)
    assert problem in broker["problems"][0]
    assert "\n" not in broker["problems"][0]
    assert SECRET not in out + err
    assert not (tmp_path / "tables").exists()


def test_a_query_is_sent_and_not_shown():
    """A token in the URL of a source is for the API only."""
    asked = []

    def answer(path, query):
        asked.append(query)
        return emqx_api([("c", "t")])(path, query)

    with api(answer) as url:
        findings = read_source(FleetBroker("rome", "rome", "emqx"), f"{url}/?token={SECRET}")
        assert (findings.problem, findings.source) == (None, f"{url}/")
    assert asked == [{"limit": "1000", "token": SECRET, "page": "1"}]


def test_an_api_that_is_down_is_a_problem_of_its_broker():
    (port,) = free_ports(1)
    broker = FleetBroker("rome", "rome", "emqx")
    assert "does not answer" in read_source(broker, f"http://{HOST}:{port}").problem


@pytest.mark.parametrize(
    "answer", [b"nonsense\r\n\r\n", b"HTTP/1.0 200 OK\r\nContent-Length: 9\r\n\r\n{", b""]
)
def test_an_answer_that_is_not_http_is_a_problem_of_its_broker(answer):
    with socket.create_server((HOST, 0)) as server:

        def serve():
            connection, _ = server.accept()
            with connection:
                connection.recv(65_536)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        broker = FleetBroker("rome", "rome", "emqx")
        findings = read_source(broker, f"http://{HOST}:{server.getsockname()[1]}")
        thread.join()
    assert "does not answer" in findings.problem


def test_a_dump_of_several_pages_and_definitions_of_rabbitmq_lead_to_a_plan(tmp_path):
    """From files, one of them compressed; only bindings of topic exchanges count."""
    answer = emqx_api([(f"c{number}", f"t/{number}") for number in range(5)])
    pages = [answer("/api/v5/subscriptions", {"page": page, "limit": 2}) for page in (1, 2, 3)]
    (tmp_path / "emqx.json.gz").write_bytes(gzip.compress("\n".join(map(json.dumps, pages)).encode()))
    definitions = {
        "rabbit_version": "3.12.1",
        "exchanges": [{"name": "orders", "type": "topic"}, {"name": "tasks", "type": "direct"}],
        "bindings": [
            {"source": "amq.topic", "destination": "mqtt-subscription-c1qos1", "routing_key": "t.*"},
            {"source": "orders", "destination": "queue", "routing_key": "orders.#"},
            {"source": "tasks", "destination": "queue", "routing_key": "not-a-topic"},
        ],
    }
    (tmp_path / "definitions.json").write_text(json.dumps(definitions))
    fleet = fleet_of(
        tmp_path,
        rome='kind = "emqx"\nsubscriptions = "emqx.json.gz"',
        oslo='kind = "rabbitmq"\nsubscriptions = "definitions.json"',
    )
    found = bl.discover(fleet, tmp_path / "tables")
    assert found.is_complete
    assert [pair for pair in pairs(tmp_path / "tables") if pair[0] == "oslo"] == [
        ("oslo", "orders/#"),
        ("oslo", "t/+"),
    ]
    plan = plan_of(tmp_path / "tables")
    assert plan.edges.tolist() == [[0, 1]]


def test_bindings_of_rabbitmq_are_read_with_the_types_of_exchanges(tmp_path):
    """From `/api/bindings` and `/api/exchanges`, as definitions lack queues of clean sessions."""
    documents = {
        "/api/bindings": [
            {"source": "amq.topic", "destination": "q1", "destination_type": "queue", "routing_key": "a.*.#"},
            {"source": "tasks", "destination": "q1", "destination_type": "queue", "routing_key": "b"},
            {"source": "", "destination": "q1", "destination_type": "queue", "routing_key": "q1"},
        ],
        "/api/exchanges": [{"name": "tasks", "type": "fanout"}, {"name": "amq.topic", "type": "topic"}],
    }
    with api(lambda path, _: documents.get(path)) as url:
        fleet = fleet_of(tmp_path, rome=f'kind = "rabbitmq"\nsubscriptions = "{url}"')
        found = bl.discover(fleet, tmp_path / "tables")
    assert found.is_complete
    assert pairs(tmp_path / "tables") == [("rome", "a/+/#")]


@contextmanager
def nats_server(folder):
    """A real server; yields the ports of clients and of its monitoring."""
    port, monitoring = free_ports(2)
    program = shutil.which("nats-server") or "nats-server"
    command = [*killed_with_parent(), program, "-a", HOST, "-p", str(port), "-m", str(monitoring)]
    with (folder / f"nats-{port}.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        wait_until(lambda: listens(port) and listens(monitoring), "nats-server listens")
        yield port, monitoring
    finally:
        process.terminate()
        process.wait(60)


class NatsClient:
    """A client of NATS over a plain socket."""

    def __init__(self, port, name):
        self._socket = socket.create_connection((HOST, port), timeout=60)
        self._file = self._socket.makefile("rb")
        self.send(f'CONNECT {{"verbose": false, "name": "{name}"}}')

    def send(self, *lines):
        """Send lines, and wait until the server has handled them."""
        self._socket.sendall("".join(f"{line}\r\n" for line in (*lines, "PING")).encode())
        while self._file.readline().strip() != b"PONG":
            pass

    def close(self):
        """Disconnect."""
        self._file.close()
        self._socket.close()


@pytest.mark.needs("nats-server")
def test_a_nats_fleet_goes_to_a_plan_and_its_files(tmp_path, monkeypatch, run):
    """Subscriptions of all pages of connections as topic filters, and publications while it listens."""
    monkeypatch.setattr(subscription_sources, "PAGE_ENTRIES", 2)
    with nats_server(tmp_path) as rome, nats_server(tmp_path) as oslo:
        clients = [NatsClient(rome[0], f"c{number}") for number in range(5)]
        for number, client in enumerate(clients):
            client.send(f"SUB rooms.{number}.* 1", f"SUB _INBOX.{number} 2")
        other = NatsClient(oslo[0], "d1")
        other.send("SUB rooms.> 1", "SUB jobs group 2")
        sections = {
            name: f'kind = "nats"\ntls = false\nsubscriptions = "http://{HOST}:{ports[1]}"'
            for name, ports in (("rome", rome), ("oslo", oslo))
        }
        fleet = fleet_of(tmp_path, **sections)
        text = fleet.read_text()
        for name, ports in (("rome", rome), ("oslo", oslo)):
            text = text.replace(f"{name}.example.org", f"{HOST}:{ports[0]}")
        fleet.write_text(f'{text}\n[links]\ncarry = ["rooms/#"]\npublishers = "observed"')
        stop = threading.Event()

        def publish():
            while not stop.wait(0.02):
                other.send("PUB rooms.9.temp 2\r\nok", "PUB jobs 0\r\n", "PUB _INBOX.x 0\r\n")

        publisher = threading.Thread(target=publish)
        publisher.start()
        found = bl.discover(fleet, tmp_path / "tables", listen=0.5)
        stop.set()
        publisher.join()
        for client in (*clients, other):
            client.close()
    assert found.is_complete, [findings.problems for findings in found.brokers]
    assert pairs(tmp_path / "tables") == [
        *(("rome", f"rooms/{number}/+") for number in range(5)),
        ("oslo", "rooms/#"),
    ]
    published = [
        tuple(row.values())[:2] for row in read_table(tmp_path / "tables", "publications").to_pylist()
    ]
    assert published == [("oslo", "rooms/9/temp")]
    assert found.brokers[1].not_carried == [("jobs", "outside of what links carry")]
    assert all(findings.observed.rtt_ms > 0 for findings in found.brokers)
    assert plan_of(tmp_path / "tables").edges.tolist() == [[0, 1]]
    code, out, err = run("link", tmp_path / "tables", "-o", tmp_path / "plan")
    assert (code, "outside of what links carry: 'jobs' at oslo" in out) == (0, True), err
    code, out, err = run("deploy", "export", tmp_path / "plan", "--fleet", fleet, "-o", tmp_path / "conf")
    assert (code, "files for nats: 1 links" in out) == (0, True), err
    assert f"nats-leaf://{HOST}:7422" in (tmp_path / "conf" / "broker-oslo.conf").read_text()
    for name in ("rome", "oslo"):
        test = ["nats-server", "-t", "-c", str(tmp_path / "conf" / f"broker-{name}.conf")]
        subprocess.run(test, check=True, capture_output=True)


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        (
            "m.log",
            "1700000000: New connection from 10.0.0.1:5 on port 1883.\n",
            "no subscription in the log; if clients have connected since it began, write into mosquitto.conf",
        ),
        ("x.txt", "hello\n", "is of an unknown kind; there are:"),
        ("x.log", "", "is empty"),
        ("x.log.gz", "no gzip", "is truncated or damaged"),
        (None, "", "No such file"),
    ],
)
def test_a_file_that_cannot_be_used_says_why(tmp_path, name, content, problem):
    path = tmp_path / (name or "missing")
    if name:
        path.write_text(content)
    findings = read_source(FleetBroker("rome", "rome"), str(path))
    assert problem in findings.problem
    assert str(path) in findings.problem


def test_a_log_without_the_start_of_the_broker_is_noted(tmp_path):
    (tmp_path / "m.log").write_text("1700000000: c1 1 a/#\n")
    findings = read_source(FleetBroker("rome", "rome"), str(tmp_path / "m.log"))
    assert (findings.problem, findings.found()) == (None, 1)
    assert "does not begin with the broker's start" in findings.notes[0]


def test_a_mosquitto_has_no_api():
    assert "mosquitto has no API" in read_source(FleetBroker("rome", "rome"), "http://127.0.0.1:9").problem

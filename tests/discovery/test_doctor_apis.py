"""`doctor` on brokers with admin APIs: a real NATS server, and stand-ins for RabbitMQ and EMQX."""

import json
import subprocess
import threading
import time
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from broker_lab import secret, small_brokers

import broadloom as bl
from broadloom.deployment import FleetBroker, FleetLinks, FleetLogin
from broadloom.deployment.rehearsal.mosquitto_lab import HOST, free_ports, killed_with_parent, listens


def found(report, check, broker=None):
    return [one for one in report.findings if one.check == check and broker in (None, one.broker)]


@contextmanager
def nats(folder, name, settings, ports):
    """A NATS server, up within the block."""
    config = folder / f"{name}.conf"
    config.write_text(f"listen: {HOST}:{ports[0]}\nhttp: {HOST}:{ports[1]}\n{settings}\n")
    with (folder / f"{name}.log").open("wb") as log:
        command = [*killed_with_parent(), "nats-server", "-c", str(config)]
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        while not (listens(ports[0]) and listens(ports[1])):
            assert process.poll() is None, (folder / f"{name}.log").read_text()
            time.sleep(0.01)
        yield
    finally:
        process.terminate()
        process.wait()


@pytest.mark.needs("nats-server")
def test_a_nats_fleet_has_lines_for_login_rights_and_leafnodes(tmp_path):
    """A hub with a restricted user, a leafnode to it, and a server that is alone."""
    ports = iter(free_ports(7))
    at = {name: (next(ports), next(ports)) for name in ("hub", "leaf", "alone")}
    inner = next(ports)
    rights = 'permissions: { subscribe: "sensors.>", publish: "alarms.>" }'
    hub = f"leafnodes {{ listen: {HOST}:{inner} }}\n"
    hub += f"authorization {{ users: [ {{ user: u, password: sesame, {rights} }} ] }}"
    leaf = f'leafnodes {{ remotes: [ {{ url: "nats-leaf://u:sesame@{HOST}:{inner}" }} ] }}'
    login = FleetLogin("u", secret(tmp_path, "secret", "sesame"))
    wrong = FleetLogin("u", secret(tmp_path, "wrong", "wr0ng"))

    def broker(name, login=None):
        address, api = (f"{HOST}:{port}" for port in at[name])
        return FleetBroker(name, address, "nats", None, login, subscriptions=f"http://{api}")

    with ExitStack() as stack:
        for name, settings in (("hub", hub), ("leaf", leaf), ("alone", "")):
            stack.enter_context(nats(tmp_path, name, settings, at[name]))
        wait_for_leaf(at["hub"][1])
        links = FleetLinks(("sensors/#", "alarms/+"))
        report = bl.doctor(bl.Fleet([broker("hub", login), broker("leaf"), broker("alone")], links))
        delivered = bl.doctor(bl.Fleet([broker("hub", login), broker("alone")], links), deliver=True)
        refused = bl.doctor(bl.Fleet([broker("hub", wrong)]))
        anonymous = bl.doctor(bl.Fleet([broker("hub")]))
    assert [(one.broker, one.verdict) for one in found(report, "read")] == [
        ("hub", "must change"),
        ("leaf", "ok"),
        ("alone", "ok"),
    ]
    assert found(report, "read", "hub")[0].setting == "permissions.subscribe for alarms.* in nats.conf"
    assert {one.verdict for one in found(report, "write")} == {"not seen"}
    assert [(one.broker, one.verdict) for one in found(delivered, "write")] == [
        ("hub", "must change"),
        ("alone", "ok"),
    ]
    assert found(delivered, "write")[0].setting == "permissions.publish for sensors.> in nats.conf"
    (link,) = found(report, "bridges")
    assert (link.broker, link.verdict) == ("leaf", "advice")
    assert link.found.startswith("a leafnode to hub")
    assert {one.verdict for one in found(report, "clock")} == {"ok"}
    assert [(one.broker, one.verdict) for one in found(report, "links")] == [
        ("leaf", "advice"),  # without a login
        ("alone", "advice"),
    ]
    assert f"anyone who can reach {HOST}:7422 can link to it" in found(report, "links")[0].found
    assert found(refused, "login")[0].found == "user 'u' is refused: wrong name or password"
    assert found(anonymous, "login")[0].found == "anonymous clients are refused"
    assert "wr0ng" not in json.dumps(refused.records())


@pytest.mark.needs("nats-server")
def test_a_nats_server_without_tls_is_told(tmp_path):
    ports = free_ports(2)
    with nats(tmp_path, "rome", "", ports):
        report = bl.doctor(bl.Fleet([FleetBroker("rome", f"{HOST}:{ports[0]}", "nats")]))
    assert [(one.verdict, one.setting) for one in found(report, "tls")] == [
        ("must change", "tls = false in fleet.toml")
    ]


APP = "APP { users: [ { user: u, password: p } ] }"


@pytest.mark.needs("nats-server")
@pytest.mark.parametrize(
    ("accounts", "verdict", "setting"),
    [
        ("BROADLOOM_A {}, BROADLOOM_B {}", "ok", ""),
        ("BROADLOOM_A {}", "must change", "BROADLOOM_B: $BROADLOOM_B, in `accounts` of nats-server.conf"),
    ],
)
def test_accounts_of_links_that_nats_lacks_are_named(tmp_path, accounts, verdict, setting):
    ports = free_ports(2)
    with nats(tmp_path, "rome", f"accounts {{ {APP}, {accounts} }}\nno_auth_user: u", ports):
        address, api = f"{HOST}:{ports[0]}", f"http://{HOST}:{ports[1]}"
        broker = FleetBroker("rome", address, "nats", None, subscriptions=api, account="APP")
        (finding,) = found(bl.doctor(bl.Fleet([broker])), "accounts")
    assert (finding.verdict, finding.setting) == (verdict, setting)


@pytest.mark.needs("nats-server")
@pytest.mark.parametrize("user", [None, "links"])
def test_with_an_account_of_clients_the_login_is_that_of_links_only(tmp_path, user):
    login = None if user is None else FleetLogin(user, secret(tmp_path, "secret", "sesame"))
    ports = free_ports(2)
    with nats(tmp_path, "rome", f"accounts {{ {APP}, BROADLOOM_A {{}}, BROADLOOM_B {{}} }}", ports):
        address, api = f"{HOST}:{ports[0]}", f"http://{HOST}:{ports[1]}"
        broker = FleetBroker("rome", address, "nats", None, login, subscriptions=api, account="APP")
        report = bl.doctor(bl.Fleet([broker]))
    assert [one.verdict for one in found(report, "login")] == ["not seen"]
    assert bool(found(report, "links")) == (login is None)


@contextmanager
def web_api(answers, user="admin", password="sesame", skew=0.0):
    """A server of JSON documents by path, for one user; its clock is `skew` seconds ahead."""
    import base64

    right = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            allowed = self.headers.get("Authorization") == right
            document = answers.get(self.path) if allowed else None
            self.send_response(200 if document is not None else 404 if allowed else 401)
            body = b"" if document is None else json.dumps(document).encode()
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def date_time_string(self, _=None):
            return super().date_time_string(time.time() + skew)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer((HOST, 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://{HOST}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


API = {
    "rabbitmq": {
        "/api/overview": {"rabbitmq_version": "3.13.7", "cluster_name": "rome", "node": "rabbit@rome"},
        "/api/federation-links": [{"exchange": "by-hand", "uri": "amqp://oslo.invalid:5672"}],
    },
    "emqx": {
        "/api/v5/nodes": [{"node": "emqx@1", "version": "5.8.0"}],
        "/api/v5/bridges": [{"type": "mqtt", "name": "by-hand", "server": "oslo.invalid:1883"}],
    },
}


@pytest.mark.needs("mosquitto")
@pytest.mark.xdist_group("mosquitto")
@pytest.mark.parametrize("kind", API)
def test_an_admin_api_gives_version_clock_and_bridges(tmp_path, kind):
    """MQTT is spoken by a mosquitto that hides what it is; the rest comes from the API."""
    login = FleetLogin("admin", secret(tmp_path, "secret", "sesame"))
    hidden = "allow_anonymous true\nsys_interval 0"
    with small_brokers(tmp_path, rome=hidden) as at, web_api(API[kind], skew=300) as url:
        rome = FleetBroker("rome", at["rome"].address, kind, None, subscriptions=url, api_login=login)
        report = bl.doctor(bl.Fleet([rome]))
        delivered = bl.doctor(bl.Fleet([rome]), deliver=True)
        closed = bl.doctor(bl.Fleet([FleetBroker("rome", at["rome"].address, kind, None, subscriptions=url)]))
    assert found(report, "api")[0].verdict == "ok"
    assert {"rabbitmq": "RabbitMQ 3.13.7", "emqx": "EMQX 5.8.0"}[kind] in found(report, "api")[0].found
    assert found(report, "clock")[0].verdict == "must change"
    assert "its admin API" in found(report, "clock")[0].found
    (bridge,) = found(report, "bridges")
    assert bridge.verdict == "advice"
    assert "by-hand" in bridge.found
    assert found(report, "write")[0].verdict == "not seen", "these brokers deliver at once"
    assert [one.verdict for one in found(delivered, "write") + found(delivered, "read")] == ["ok", "ok"]
    assert [one.found for one in found(closed, "api")] == [
        f"{url}{next(iter(API[kind]))} answers 401; set api_login"
    ]


def wait_for_leaf(port):
    """Wait until a NATS server has a leafnode."""
    import urllib.request

    end = time.monotonic() + 60
    while time.monotonic() < end:
        with urllib.request.urlopen(f"http://{HOST}:{port}/leafz") as answer:
            if json.load(answer).get("leafs"):
                return
        time.sleep(0.02)
    raise AssertionError("no leafnode has connected")

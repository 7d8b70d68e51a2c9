"""The controller's API and its client: both prove the key, nothing is replayed, sizes are bounded."""

import asyncio
import gc
import http.client
import json
import logging
import socket
import struct
import threading
import weakref
from contextlib import asynccontextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from broadloom.agents import http_server
from broadloom.agents.http_server import ApiServer
from broadloom.agents.links import controller_api, controller_client
from broadloom.agents.links.controller_api import (
    OrderBoard,
    ProposalAnswer,
    ReportAnswer,
    StaleControllerError,
    controller_app,
)
from broadloom.agents.links.controller_client import (
    ControllerClient,
    ControllerConnection,
    ControllerRefusedError,
)
from broadloom.agents.links.controller_protocol import (
    CODE_HEADER,
    COUNT_HEADER,
    DIGEST_HEADER,
    SESSION_HEADER,
    ProtocolCodes,
    agent_path,
    body_digest,
    epoch_query,
    orders_message,
    orders_of,
)
from broadloom.agents.links.live_status import fleet_status, is_healthy, status_text
from broadloom.agents.links.route_orders import NO_EPOCH, AgentOrders, AgentReport, Epoch, HopReport, Route
from broadloom.agents.links.stamps import FleetKey
from broadloom.errors import InputError, UnreachableError
from broadloom.mqtt.endpoint import Address, tls_context
from certificates import authority

KEY = FleetKey("the key of the tests, long enough")
OTHER_KEY = FleetKey("the key of somebody else, also long")
EPOCH = Epoch(3, "c")
BOTH = frozenset({("rome", "oslo"), ("oslo", "rome")})


class ListedOrders:
    """A controller with one broker, whose orders the test sets."""

    def __init__(self):
        self.orders = AgentOrders(EPOCH, 0)
        self.reports = []
        self.is_stale = False
        self.board = OrderBoard(lambda _: self.orders)

    def set(self, number, *routes):
        """Give new orders."""
        self.orders = AgentOrders(EPOCH, number, number, routes={one.number: one for one in routes})
        self.board.announce(["rome"])

    def receive(self, report):
        """Note a report."""
        self.reports.append(report)
        return ReportAnswer(epoch=EPOCH, filters_number=report.filters_number, routes_wanted=False)

    async def orders_after(self, broker, epoch, number, wait):
        """Orders of the board."""
        if self.is_stale:
            raise StaleControllerError("the agent obeys another controller")
        if broker != "rome":
            raise InputError(f"no broker {broker}")
        return await self.board.after(broker, epoch, number, wait)

    def status(self):
        """A status with hostile names."""
        hop = HopReport(True, False, 7, 2, 300, {"messages": 5}, "no \x1b[2J answer", 12.5)
        rome = {
            "agent": "i",
            "away": False,
            "broker_up": True,
            "version": 7,
            "filters": 2,
            "hops": {"os\nlo": vars(hop)},
            "counts": {"problems": 1},
        }
        controller = {
            "epoch": list(EPOCH),
            "refused": None,
            "version": 7,
            "settled": True,
            "groups": 3,
            "opening": [{"filters": ["a", "b"], "groups": 9, "seconds": 1.5, "waits_for": ["oslo"]}],
            "waiting": [{"filters": ["c"], "groups": 1, "waits_for": ["oslo"], "reason": "away"}],
            "draining": [{"version": 6, "routes": 2, "seconds": 3.0, "reason": "oslo is away"}],
            "left_out": {},
            "problems": ["oslo is away"],
            "problem_times": {"oslo is away": "2026-01-02 03:04:05Z"},
            "changes": [
                {"version": 6, "groups": 1, "replaced": 2, "opened_s": 0.5, "drained_s": None},
                {"version": 7, "groups": 3, "replaced": 1, "opened_s": 0.25, "drained_s": 1.5},
            ],
            "brokers": {"rome": rome},
        }
        return fleet_status(controller, ["rome", "oslo"], {})

    async def adopt(self):
        """Nothing to adopt."""
        return ProposalAnswer(adopted=False, note="there is no proposal")


@asynccontextmanager
async def serving(backend, tls=None, connections=20):
    """A running API; gives its address."""
    server = ApiServer(controller_app(backend, KEY), Address("127.0.0.1", 0), tls, connections)
    await server.start()
    try:
        yield Address("127.0.0.1", server.port)
    finally:
        backend.board.close()
        await server.stop()


def connection(address, key=KEY, tls=None):
    return ControllerConnection(address, tls, key, "a test")


async def ask(address, method, target, value=None, key=KEY, tls=None):
    """One signed request over a connection of its own."""
    one = connection(address, key, tls)
    try:
        return await asyncio.to_thread(one.request, method, target, value)
    finally:
        one.close()


def run(test, **settings):
    """Run a coroutine function with a controller and the address of its API."""

    async def inner():
        backend = ListedOrders()
        async with serving(backend, **settings) as address:
            return await asyncio.wait_for(test(backend, address), 60)

    return asyncio.run(inner())


class ObedientAgent:
    """An agent that only remembers its orders."""

    def __init__(self):
        self.orders = AgentOrders()
        self.applied = []
        self.filters = ("a/#",)

    def report(self, with_routes=False):
        """The report of an agent without hops."""
        routes = tuple(self.orders.routes.values()) if with_routes else None
        return AgentReport(
            "rome",
            "i",
            self.orders.epoch,
            self.orders.number,
            filters=self.filters,
            filters_number=1,
            routes=routes,
        )

    def apply(self, orders):
        """Take orders."""
        if not self.orders.epoch.yields_to(orders.epoch):
            raise InputError("older")
        self.orders = orders
        self.applied.append(orders.number)


async def until(condition):
    """Wait for a condition; the test has a deadline of its own."""
    while not condition():
        await asyncio.sleep(0.005)


def routes(*numbers):
    return [Route(number, (f"t/{number}",), BOTH, 1) for number in numbers]


def test_reports_reach_the_controller_and_orders_the_agent():
    """Orders arrive while the agent waits for them; filters that the controller has are left out."""

    async def test(backend, address):
        agent = ObedientAgent()
        client = ControllerClient(lambda: connection(address), "rome", agent, heartbeat=0.05)
        client.start()
        await until(lambda: len(backend.reports) >= 3)
        assert backend.reports[0].filters == ("a/#",)
        assert backend.reports[-1].filters is None
        for number in (1, 2, 3):
            backend.set(number, *routes(number, number + 1))
            await until(lambda number=number: agent.orders.number == number)
            assert agent.orders == backend.orders
        await client.stop()
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("broadloom-")]

    run(test)


def test_only_changed_routes_are_sent():
    async def test(backend, address):
        one = connection(address)
        path = agent_path("rome", "orders")

        def later_than(number):
            return one.request("GET", f"{path}?{epoch_query(EPOCH, number, 0)}")

        backend.set(1, *routes(*range(100)))
        status, everything = await asyncio.to_thread(later_than, -1)
        assert (status, everything["base"], len(everything["routes"])) == (200, None, 100)
        backend.set(2, *routes(*range(1, 101)))
        _, change = await asyncio.to_thread(later_than, 1)
        assert (change["base"], [route["number"] for route in change["routes"]]) == (1, [100])
        assert change["dropped"] == [0]
        assert (await asyncio.to_thread(later_than, 2))[0] == 204
        _, unknown_base = await asyncio.to_thread(later_than, 77)
        assert (unknown_base["base"], len(unknown_base["routes"])) == (None, 100)
        one.close()

    run(test)


def test_orders_of_no_epoch_are_never_sent():
    """A controller without orders has nothing to say."""

    async def test(backend, _address):
        backend.orders = AgentOrders()
        assert await backend.board.after("rome", EPOCH, 3, 0.0) is None
        assert await backend.board.after("rome", NO_EPOCH, -1, 0.0) is None

    run(test)


def test_an_agent_of_a_newer_controller_is_left_alone():
    async def test(backend, address):
        backend.is_stale = True
        target = f"{agent_path('rome', 'orders')}?{epoch_query(Epoch(9, 'd'), 1, 0)}"
        status, answer = await ask(address, "GET", target)
        assert status == 409
        assert "another controller" in answer["detail"]

    run(test)


def test_a_wrong_key_is_refused_and_logged_once(caplog):
    """It learns nothing, reaches nothing, and cannot fill the log."""

    async def test(backend, address):
        for _ in range(5):
            with pytest.raises(ControllerRefusedError, match="another key"):
                await ask(address, "GET", "/v1/status", key=OTHER_KEY)
        assert backend.reports == []
        answer = await asyncio.to_thread(plain_request, address, "GET", "/v1/status", {})
        assert answer[0] == 403

    with caplog.at_level(logging.WARNING, "broadloom.live"):
        run(test)
    lines = [record.getMessage() for record in caplog.records if "refused" in record.getMessage()]
    assert len(lines) == 1
    assert "a test" in lines[0]


def plain_request(address, method, target, headers, body=b""):
    """A request as it is; gives status, headers and body."""
    one = http.client.HTTPConnection(address.hostname, address.port, timeout=20)
    try:
        one.request(method, target, body or None, headers)
        answer = one.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        one.close()


def signed_headers(session, count, method, target, body=b"", key=KEY):
    digest = body_digest(body)
    code = ProtocolCodes(key).request(method, target, session, count, digest)
    return {SESSION_HEADER: session, COUNT_HEADER: str(count), DIGEST_HEADER: digest, CODE_HEADER: code}


def new_session(address):
    nonce = "0123456789abcdef"
    headers = {"broadloom-nonce": nonce, CODE_HEADER: ProtocolCodes(KEY).hello(nonce)}
    _, answered, body = plain_request(address, "POST", "/v1/hello", headers)
    session = json.loads(body)["session"]
    assert answered[CODE_HEADER] == ProtocolCodes(KEY).welcome(nonce, session)
    return session


def test_no_request_can_be_used_twice_or_changed():
    """Not in its session, not in another, not with another path, method or body."""

    async def test(backend, address):
        body = json.dumps(AgentReport("rome", "i").to_json()).encode()
        path = agent_path("rome", "report")
        session = await asyncio.to_thread(new_session, address)
        headers = signed_headers(session, 1, "POST", path, body)

        async def status(method, target, headers, body=b""):
            return (await asyncio.to_thread(plain_request, address, method, target, headers, body))[0]

        kind = {"content-type": "application/json"}
        assert await status("POST", path, headers | kind, body) == 200
        assert await status("POST", path, headers | kind, body) == 401, "the same count"
        other = await asyncio.to_thread(new_session, address)
        assert await status("POST", path, headers | {SESSION_HEADER: other} | kind, body) == 403
        later = signed_headers(session, 5, "POST", path, body) | kind
        assert await status("POST", path, later, body.replace(b"rome", b"oslo")) == 400, "another body"
        assert await status("POST", path, later, body) == 401, "its count is used"
        assert await status("POST", agent_path("oslo", "report"), later, body) == 403
        assert await status("PUT", path, later, body) == 403
        forged = "9" * 10 + "/aa/" + "0" * 32
        assert await status("GET", "/v1/status", signed_headers(forged, 1, "GET", "/v1/status")) == 401
        assert len(backend.reports) == 1

    run(test)


def test_sessions_end():
    """A session that is not used soon is worth nothing; one that was idle for long cannot be used again."""
    now = [0.0]
    traffic = controller_api.SignedTraffic(None, KEY, lambda: now[0])
    first, second = traffic._new_session(), traffic._new_session()
    assert traffic._is_next(first, 1)
    assert not traffic._is_next(first, 1)
    now[0] = controller_api.CHALLENGE_SECONDS + 1
    assert not traffic._is_next(second, 1)
    assert traffic._is_next(first, 2)
    now[0] += controller_api.SESSION_SECONDS + 1
    assert traffic._is_next(traffic._new_session(), 1)
    assert not traffic._is_next(first, 3)


class Impostor(BaseHTTPRequestHandler):
    """A server that does not know the key."""

    def do_POST(self):
        """Pretend to know the key."""
        body = json.dumps({"session": "s"}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.send_header(CODE_HEADER, "00" * 32)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        """Say nothing."""


def test_a_controller_without_the_key_is_not_obeyed():
    server = HTTPServer(("127.0.0.1", 0), Impostor)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        with pytest.raises(ControllerRefusedError, match="does not know the key"):
            connection(Address("127.0.0.1", server.server_port)).request("GET", "/v1/status")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_an_answer_that_was_changed_on_its_way_is_refused(monkeypatch):
    async def test(_backend, address):
        one = connection(address)
        await asyncio.to_thread(one.request, "GET", "/v1/status")
        read = controller_client._bounded
        monkeypatch.setattr(controller_client, "_bounded", lambda *some: read(*some).replace(b"7", b"8"))
        with pytest.raises(ControllerRefusedError, match="not from the controller"):
            await asyncio.to_thread(one.request, "GET", "/v1/status")
        one.close()

    run(test)


def test_a_client_goes_on_after_a_restart_of_the_controller():
    """It says hello again, and repeats its request."""

    async def test():
        backend = ListedOrders()
        async with serving(backend) as address:
            one = connection(address)
            assert (await asyncio.to_thread(one.request, "GET", "/v1/status"))[0] == 200
        with pytest.raises(UnreachableError):
            await asyncio.to_thread(one.request, "GET", "/v1/status")
        again = ApiServer(controller_app(backend, KEY), address, None, 20)
        await again.start()
        assert (await asyncio.to_thread(one.request, "GET", "/v1/status"))[0] == 200
        one.close()
        await again.stop()

    asyncio.run(test())


def test_too_large_bodies_are_refused_unread(monkeypatch):
    """Of a stranger nothing is read; of an agent no more than the limit."""
    monkeypatch.setattr(controller_api, "LARGEST_REPORT", 1000)

    async def test(_backend, address):
        path = agent_path("rome", "report")
        body = b"x" * 1001
        stranger = {"content-length": str(10**12)}
        assert (await asyncio.to_thread(plain_request, address, "POST", path, stranger))[0] == 403
        session = await asyncio.to_thread(new_session, address)
        headers = signed_headers(session, 1, "POST", path, body)
        assert (await asyncio.to_thread(plain_request, address, "POST", path, headers, body))[0] == 413
        malformed = b'{"broker": 1}'
        headers = signed_headers(session, 2, "POST", path, malformed) | {"content-type": "application/json"}
        assert (await asyncio.to_thread(plain_request, address, "POST", path, headers, malformed))[0] == 422

    run(test)


def test_nothing_of_a_closed_connection_stays_in_memory(monkeypatch):
    """No timer and no circle of references holds the body that a stranger has sent."""
    monkeypatch.setattr(http_server, "IDLE_SECONDS", 600.0)

    async def test():
        backend = ListedOrders()
        server = ApiServer(controller_app(backend, KEY), Address("127.0.0.1", 0), None, 20)
        await server.start()
        head = b"POST /v1/proposal HTTP/1.1\r\nhost: a\r\ncontent-length: 60000\r\n\r\n"
        gc.collect()
        gc.disable()
        try:
            for is_reset in (False, True):
                reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
                writer.write(head + bytes(60_000))
                assert (await reader.read(12))[-3:] == b"403"
                (held,) = map(weakref.ref, server._server.server_state.connections)
                if is_reset:
                    option = struct.pack("ii", 1, 0)  # linger for no time: the connection is reset
                    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, option)
                writer.close()
                await until(lambda held=held: held() is None)
        finally:
            gc.enable()
            backend.board.close()
            await server.stop()

    asyncio.run(asyncio.wait_for(test(), 60))


def test_silent_and_surplus_connections_are_closed(monkeypatch):
    """Neither a connection that sends nothing, nor half a request, nor too many of them keep agents out."""
    monkeypatch.setattr(http_server, "IDLE_SECONDS", 0.3)

    def is_closed(sock):
        sock.settimeout(30)
        try:
            return sock.recv(100) == b""
        except ConnectionError:
            return True

    async def test(_backend, address):
        first = [socket.create_connection(address) for _ in range(3)]
        first[1].sendall(b"GET /v1/status HTTP/1.1\r\nhost: a")
        surplus = socket.create_connection(address)
        for sock in (surplus, *first):
            assert await asyncio.to_thread(is_closed, sock)
            sock.close()
        assert (await ask(address, "GET", "/v1/status"))[0] == 200

    run(test, connections=3)


def test_waiting_requests_are_bounded_for_each_broker():
    """A new one takes the place of the oldest, whose connection is gone."""

    async def test():
        board = OrderBoard(lambda _: AgentOrders(EPOCH, 1))
        waits = [asyncio.create_task(board.after("rome", EPOCH, 1, 50)) for _ in range(5)]
        await until(lambda: sum(task.done() for task in waits) == 3)
        assert [task.done() for task in waits] == [True, True, True, False, False]
        board.close()
        assert await asyncio.gather(*waits) == [None] * 5
        assert await board.after("rome", EPOCH, 1, 50) is None, "after the end nobody waits"

    asyncio.run(test())


def test_metrics_and_status_are_for_this_machine_or_the_token():
    async def test(_backend, address):
        status, headers, body = await asyncio.to_thread(plain_request, address, "GET", "/metrics", {})
        assert status == 200
        assert headers["content-type"].startswith("text/plain")
        found = {one.name: one for one in text_string_to_metric_families(body.decode())}
        hop = found["broadloom_hop_messages"].samples[0]
        assert (hop.labels, hop.value) == ({"start": "rome", "end": "os\nlo"}, 5)
        assert found["broadloom_hop_dead_letters"].samples[0].value == 0, (
            "not missing: a rise would be missed"
        )
        assert found["broadloom_problems"].samples[0].value == 1
        assert [one.value for one in found["broadloom_agent_up"].samples] == [1, 0]
        assert (await asyncio.to_thread(plain_request, address, "GET", "/v1/status", {}))[0] == 403
        for token, expected in ((ProtocolCodes(KEY).read_token(), 200), ("x", 403)):
            headers = {"authorization": f"Bearer {token}"}
            answer = await asyncio.to_thread(plain_request, address, "GET", "/v1/status", headers)
            assert answer[0] == expected
            answer = await asyncio.to_thread(plain_request, address, "POST", "/v1/proposal", headers)
            assert answer[0] == 403, "the token reads"
        assert (await ask(address, "POST", "/v1/proposal"))[1] == {
            "adopted": False,
            "note": "there is no proposal",
        }

    run(test)


def test_the_schema_comes_from_the_code():
    async def test(_backend, address):
        _, _, body = await asyncio.to_thread(plain_request, address, "GET", "/v1/openapi.json", {})
        paths = json.loads(body)["paths"]
        assert {"/v1/agents/{broker}/report", "/v1/agents/{broker}/orders", "/v1/status", "/metrics"} <= set(
            paths
        )

    run(test)


@pytest.mark.needs("openssl")
def test_tls_protects_the_connection(tmp_path):
    """An agent that trusts the authority is served; one that trusts another does not talk at all."""
    own, other = authority(tmp_path / "own"), authority(tmp_path / "other")

    async def test(_backend, address):
        trusted = tls_context(str(own / "ca.crt"))
        assert (await ask(address, "GET", "/v1/status", tls=trusted))[0] == 200
        for tls, reason in (
            (tls_context(str(other / "ca.crt")), r"certificate is not accepted \(.+\)$"),
            (None, "does not answer"),
        ):
            with pytest.raises(UnreachableError, match=reason):
                await ask(address, "GET", "/v1/status", tls=tls)

    run(test, tls=(str(own / "broker.crt"), str(own / "broker.key")))


def test_names_of_brokers_survive_the_path():
    async def test(backend, address):
        name = "ro/me ?#%2F ü"
        report = AgentReport(name, "i").to_json()
        status, _ = await ask(address, "POST", agent_path(name, "report"), report)
        assert status == 200
        assert backend.reports[0].broker == name
        assert (await ask(address, "POST", agent_path("oslo", "report"), report))[0] == 422

    run(test)


def test_a_status_is_shown_in_plain_text():
    status = ListedOrders().status()
    text = status_text(status)
    assert "controller c, epoch 3, version 7: settled" in text
    assert "1 of 2 agents up; 0 of 1 hops up; 300 bytes in flight" in text
    assert r"rome -> os\nlo: not connected at os\nlo no \x1b[2J answer" in text
    assert "\nproblems:\n  2026-01-02 03:04:05Z oslo is away\n" in text
    assert "\x1b" not in text
    assert not is_healthy(status)
    for line in (
        "a, b and more, 9 groups in all for 1.5 s: waits for oslo",
        "c: waits for oslo (away)",
        "2 trees before version 6, for 3 s: oslo is away",
        "version 6: 1 new trees, opened in 0.5 s; 2 old trees still in use for earlier messages",
        "version 7: 3 new trees, opened in 0.25 s; 1 old trees finished 1.5 s later",
    ):
        assert f"  {line}\n" in f"{text}\n"


def test_hops_of_an_agent_that_is_away_do_not_count_as_up():
    status = ListedOrders().status()
    rome = status["brokers"]["rome"]
    rome["hops"]["os\nlo"] |= {"far_up": True}
    assert "1 of 2 agents up; 1 of 1 hops up" in status_text(status)
    rome |= {"away": True, "away_s": 5.0}
    text = status_text(status)
    assert "0 of 2 agents up; 0 of 1 hops up" in text
    assert r"rome -> os\nlo: rome is away" in text
    rome["removed"] = True
    assert "1 of 1 hops up" in status_text(status)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (TimeoutError(), "no answer in 60 s"),
        (asyncio.CancelledError(), "it is stopping"),
        (RuntimeError("the event loop is closed"), "the event loop is closed"),
        (RuntimeError(), "RuntimeError"),
    ],
)
def test_an_agent_that_cannot_follow_says_why(error, reason, caplog):
    client = ControllerClient(ListedOrders, "rome", None)

    def fail():
        client._over.set()
        raise error

    client._repeat(fail)
    assert caplog.messages[-1].startswith("the agent cannot follow the controller: ")
    assert caplog.messages[-1].endswith(reason)


@pytest.mark.needs("openssl")
def test_a_client_that_does_not_end_its_tls_connection_leaves_none_open(tmp_path):
    """It keeps the connection after an answer; pytest fails if a socket leaks."""
    own = authority(tmp_path / "own")
    held = []

    def connect(address):
        plain = socket.create_connection(address, 10.0)
        held.append(tls_context(str(own / "ca.crt")).wrap_socket(plain, server_hostname=address.host))
        held[0].sendall(b"GET /nowhere HTTP/1.1\r\nHost: rome\r\n\r\n")
        assert held[0].recv(100).startswith(b"HTTP/1.1 4")

    run(
        lambda _, address: asyncio.to_thread(connect, address),
        tls=(str(own / "broker.crt"), str(own / "broker.key")),
    )
    gc.collect()
    held[0].close()


def test_both_threads_of_an_agent_say_once_that_the_controller_is_away(caplog, monkeypatch):
    monkeypatch.setattr(controller_client, "FIRST_PAUSE", 0.0)
    client = ControllerClient(ListedOrders, "rome", None)
    failures = iter(range(3))

    def fail():
        if next(failures, None) is None:
            client._over.set()
        raise UnreachableError("the controller does not answer")

    client._repeat(fail)
    assert caplog.messages == ["the controller does not answer; links stay as they are"]


def test_a_taken_port_is_bad_input():
    taken = socket.create_server(("127.0.0.1", 0))
    with taken, pytest.raises(InputError, match="cannot listen on"):
        ApiServer(None, Address("127.0.0.1", taken.getsockname()[1]), None, 1)


EPOCHS = st.builds(Epoch, st.integers(1, 2), st.sampled_from("ab"))
NAMES = st.sampled_from(["rome", "oslo", "ü/#"])
ROUTES = st.builds(
    Route,
    st.integers(0, 5),
    st.tuples(NAMES),
    st.frozensets(st.tuples(NAMES, NAMES), max_size=3),
    st.none() | st.integers(0, 3),
    st.none() | st.integers(0, 3),
    st.frozensets(NAMES),
)
ORDERS = st.builds(
    AgentOrders,
    EPOCHS,
    st.integers(0, 9),
    st.integers(0, 9),
    st.dictionaries(st.integers(0, 5), st.integers(0, 5)),
    st.lists(ROUTES, max_size=5).map(lambda some: {one.number: one for one in some}),
    st.dictionaries(NAMES, NAMES),
)


@given(ORDERS, st.none() | ORDERS)
def test_differences_give_the_complete_orders(after, before):
    """Whatever the agent has, over JSON."""
    message = json.loads(orders_message(after, before))
    assert orders_of(message, before) == after


@given(ORDERS, ORDERS)
def test_differences_from_other_orders_are_refused(after, before):
    message = json.loads(orders_message(after, replace(before, epoch=after.epoch)))
    with pytest.raises(InputError, match="based on number"):
        orders_of(message, replace(before, epoch=after.epoch, number=before.number + 1))

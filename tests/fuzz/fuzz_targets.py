"""Targets of fuzzing: functions that take any bytes, and fail if Broadloom breaks a promise about them.

Bad input is refused by the errors that a function names; anything else is a finding. `make fuzz` runs them
for long, guided by coverage; `make test` runs them on the corpus: the inputs that reached new code.
"""

import asyncio
import contextlib
import io
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from broadloom.agents.links.controller_api import (
    HEALTH_PATH,
    SCHEMA_PATH,
    ProposalAnswer,
    ReportAnswer,
    controller_app,
)
from broadloom.agents.links.controller_protocol import (
    CODE_HEADER,
    COUNT_HEADER,
    DIGEST_HEADER,
    SESSION_HEADER,
    ProtocolCodes,
    body_digest,
    orders_of,
)
from broadloom.agents.links.live_status import fleet_status
from broadloom.agents.links.route_orders import AgentOrders, AgentReport, Epoch, Route
from broadloom.agents.links.stamps import FleetKey, Stamps
from broadloom.errors import BroadloomError, InputError
from broadloom.formats import DumpText, mosquitto_db
from broadloom.maintenance.event_feed import events_of, fault_of
from broadloom.mqtt import packets, topic_filters
from broadloom.mqtt.client_session import ClientSession, SessionHandler
from broadloom.mqtt.endpoint import Endpoint
from broadloom.storage import record_journal
from naive_ingest import matches
from text_formats import TEXTS

CORPUS = Path(__file__).parent / "corpus"
LONGEST = 4096
STAMPS = Stamps(FleetKey("k" * 64))


def packet_codec(data: bytes) -> None:
    """Packets: refused, or read; a message that is written again is the same one."""
    reader = packets.PacketReader()
    with contextlib.suppress(packets.ProtocolError):
        for kind, raw, head in reader.feed(data):
            if kind == packets.PUBLISH:
                message = packets.read_publish(raw, head)
                stamped = message.with_stamp(b"stamp")
                (_, again, start), *more = packets.PacketReader().feed(stamped)
                copy = packets.read_publish(again, start)
                same = (copy.topic, copy.payload()) == (message.topic, message.payload())
                if more or not same or copy.stamp != b"stamp":
                    raise AssertionError("a message changes when it is stamped")
                if message.stamp:
                    STAMPS.read(message.stamp)
            elif kind == packets.CONNACK:
                packets.connack_limits(packets.read_connack(raw, head))
            elif kind in (packets.SUBACK, packets.UNSUBACK):
                packets.read_reasons(raw, head)


class _Transport:
    """Transport of a session that nobody reads."""

    closed = False

    def abort(self) -> None:
        """Close it."""
        self.closed = True

    def write(self, data: bytes) -> None:
        """Send nothing."""

    def is_closing(self) -> bool:
        """Whether it is closed."""
        return self.closed

    close = abort


def session(data: bytes) -> None:
    """A session of a client: bytes of a hostile broker close the connection, or are understood."""

    async def receive() -> None:
        client = ClientSession("a", "client", Endpoint("", 0), SessionHandler())
        client._welcome = asyncio.get_running_loop().create_future()
        client._transport = _Transport()
        client._packets = packets.PacketReader()
        for part in (data[:7], data[7:20], data[20:]):
            if not client._transport.closed:
                client.data_received(part)
        if client._welcome.done():
            client._welcome.exception()

    asyncio.run(receive())


def filters(data: bytes) -> None:
    """Topic filters: common filters and coverage agree with a naive matching of topics."""
    parts = data.decode(errors="replace").split("\n")[:3]
    first, second, topic = (*parts, "", "", "")[:3]
    if not (topic_filters.is_valid_filter(first) and topic_filters.is_valid_filter(second)):
        return
    common = topic_filters.common_filter(first, second)
    is_topic = bool(topic) and not set(topic) & set("+#\0")
    if not is_topic:
        return
    both = matches(first, topic) and matches(second, topic)
    if both != (common is not None and matches(common, topic)):
        raise AssertionError(f"{first!r} and {second!r} have {common!r} in common, but not for {topic!r}")
    if topic_filters.covers(first, second) and matches(second, topic) and not matches(first, topic):
        raise AssertionError(f"{first!r} does not cover {second!r}: {topic!r}")


def dumps(data: bytes) -> None:
    """Dumps and logs of brokers: rows with reasons, or one error."""
    with contextlib.suppress(BroadloomError):
        for _ in mosquitto_db.parse(io.BytesIO(data), now=1e9):
            pass
    text = data.decode(errors="replace")
    for form in TEXTS:
        with contextlib.suppress(BroadloomError):
            for _ in form.parse(DumpText.of(text)):
                pass


def journal(data: bytes) -> None:
    """A damaged journal: refused, or read as it was written; what is repaired can be read."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.journal")
        with record_journal.RecordJournal(path) as written:
            written.append_all([("a", {"n": n}) for n in range(3)])
            kept = written.records()
        contents = bytearray(path.read_bytes())
        for at in range(0, len(data) - 4, 5):  # position (4 bytes) and value of each damaged byte
            contents[int.from_bytes(data[at : at + 4]) % len(contents)] = data[at + 4]
        path.write_bytes(contents)
        try:
            with record_journal.RecordJournal(path) as found:
                records = found.records()
        except InputError:
            try:
                record_journal.repair_journal(path)
            except InputError:
                return
            with record_journal.RecordJournal(path) as found:
                records = found.records()
            if records != kept[: len(records)]:
                raise AssertionError("a repaired journal has other records") from None
            return
        if records != kept:
            raise AssertionError("damage was not noticed")


def api_bodies(data: bytes) -> None:
    """Bodies of requests to the controller: refused by one error, or read and written the same."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return
    for form in (AgentReport, AgentOrders, Route):
        with contextlib.suppress(InputError):
            found = form.from_json(value)
            if isinstance(found, AgentReport) and AgentReport.from_json(found.to_json()) != found:
                raise AssertionError("a report changes when it is written")
    with contextlib.suppress(InputError):
        orders_of(value, None)
    if isinstance(value, str) and max(value, default="") < "\u0100":  # what a header can hold
        ProtocolCodes(FleetKey("k" * 64)).request("GET", value, value, 1, value)


class _Backend:
    """A controller with one broker and no orders."""

    def receive(self, report: AgentReport) -> ReportAnswer:
        """Take a report."""
        return ReportAnswer(epoch=(1, "c"), filters_number=report.filters_number, routes_wanted=False)

    async def orders_after(self, broker: str, epoch: Epoch, number: int, wait: float) -> str | None:
        """There are none."""
        del epoch, number, wait
        if broker != "rome":
            raise InputError(f"no broker {broker}")

    def status(self) -> dict[str, Any]:
        """Nothing to tell."""
        return fleet_status({"brokers": {}, "problems": []}, [], {})

    async def adopt(self) -> ProposalAnswer:
        """Nothing to adopt."""
        return ProposalAnswer(adopted=False, note="")

    async def present_plan(self) -> dict[str, Any]:
        """An empty plan."""
        return {}


def http_api(data: bytes) -> None:
    """Requests to the controller's API: method, path, query and headers, then the body; signed or not.

    Whoever has no code gets no answer but a refusal; whoever has one never gets an internal error.
    """
    head, _, body = data.partition(b"\n\n")
    first, *lines = head.split(b"\n")
    method, target, is_signed = (*first.split(b" "), b"", b"", b"")[:3]
    path, _, query = target.partition(b"?")
    text = method.decode("latin-1") or "GET"
    key = FleetKey("k" * 64)
    app = controller_app(_Backend(), key)
    headers = [(name.lower(), value) for line in lines for name, _, value in [line.partition(b":")]]
    if is_signed:
        session = app._new_session()
        whole = path.decode("latin-1") + (f"?{query.decode('latin-1')}" if query else "")
        code = ProtocolCodes(key).request(text, whole, session, 1, body_digest(body))
        signs = {
            SESSION_HEADER: session,
            COUNT_HEADER: "1",
            DIGEST_HEADER: body_digest(body),
            CODE_HEADER: code,
        }
        headers += [(name.encode(), value.encode()) for name, value in signs.items()]
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": text,
        "path": path.decode(errors="replace"),
        "raw_path": path,
        "query_string": query,
        "root_path": "",
        "scheme": "http",
        "headers": headers,
        "client": ("192.0.2.1", 1),
        "server": ("192.0.2.2", 80),
    }
    statuses = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    asyncio.run(app(scope, receive, send))
    is_open = scope["path"] in (HEALTH_PATH, SCHEMA_PATH)
    if len(statuses) != 1 or statuses[0] >= 500 or (statuses[0] < 400 and not is_signed and not is_open):
        raise AssertionError(f"{text} {target!r} is answered with {statuses}")


def events(data: bytes) -> None:
    """Files of events: one error, or events whose faults are named."""
    for name in ("events.jsonl", "events.csv", "events.parquet"):
        with contextlib.suppress(InputError):
            for event in events_of(name, data):
                fault_of(event)


TARGETS: dict[str, Callable[[bytes], None]] = {
    "packets": packet_codec,
    "session": session,
    "filters": filters,
    "dumps": dumps,
    "journal": journal,
    "api": api_bodies,
    "http": http_api,
    "events": events,
}

"""Probes of one MQTT broker: reachability, TLS, login, protocol, limits, rights, queue and clock.

No client sees a probe: rights to write are tried by messages at QoS 2 that are never released, which
Mosquitto does not deliver, and the queue is tried under `$broadloom/`, which no wildcard of a client matches.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import ssl
import statistics
import time
from collections.abc import Awaitable, Iterable
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from broadloom.deployment import FleetBroker
from broadloom.discovery.findings import ADVICE, MUST_CHANGE, NOT_SEEN, OK, Finding
from broadloom.discovery.probe_client import MQTT_5, MQTT_311, ProbeClient
from broadloom.discovery.tls_probes import explain_tls_error, speaks_tls
from broadloom.errors import BroadloomError
from broadloom.mqtt.endpoint import DAY_SECONDS, Login
from broadloom.mqtt.packets import (
    FAILED,
    MAXIMUM_PACKET,
    MAXIMUM_QOS,
    RECEIVE_MAXIMUM,
    RETAIN_AVAILABLE,
    SESSION_EXPIRY,
    SHARED_AVAILABLE,
    WILDCARDS_AVAILABLE,
    Connack,
    ProtocolError,
)
from broadloom.mqtt.reserved_topics import INTERNAL_PREFIX
from broadloom.mqtt.topic_filters import common_topic, is_wild

CHECK_SECONDS = 5.0  # deadline of one check
QUEUE_SECONDS = 15.0
QUEUE_MESSAGES = 1_100  # a bit more than Mosquitto queues by default
DEFAULT_QUEUE = 1_000
GOOD_QUEUE = "max_queued_messages 100000"
FILTERS_TRIED = 10  # unreleased messages per connection; Mosquitto allows 20
SMALL_PACKET = 65_536
CLOCK_ADVICE, CLOCK_LIMIT = 5.0, 60.0  # seconds
LOG_TAIL = 262_144  # bytes at the end of a log that are searched
VERSION_TOPIC, BRIDGES_TOPIC, LOG_TOPIC = (
    "$SYS/broker/version",
    "$SYS/broker/connection/#",
    "$SYS/broker/log/#",
)
# Reason codes of CONNACK, of MQTT 3.1.1 too.
WRONG_VERSION = (0x01, 0x84)
WRONG_LOGIN = (0x04, 0x05, 0x86, 0x87)
_REASONS = {
    0x02: "client id refused",
    0x03: "server unavailable",
    0x80: "unspecified error",
    0x85: "client id refused",
    0x87: "not authorized",
    0x88: "server unavailable",
    0x89: "server busy",
    0x8A: "banned",
    0x8F: "topic filter invalid",
    0x90: "topic name invalid",
    0x97: "quota exceeded",
    0x9F: "connection rate exceeded",
    0xA1: "subscription identifiers not supported",
    0xA2: "wildcards not supported",
}
_TIME = re.compile(r"(?:(\d{9,})|(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d)): ")
_ZONE_SECONDS = 900  # time zones differ by multiples of this


class MqttProbe:
    """Checks of one MQTT broker.

    Args:
        broker: the broker.
        carry: the topic filters that links carry.
        deliver: whether to send real messages, which clients can see, to try the right to read.

    Attributes:
        findings: what was found so far.
        bridges: the client ids of bridges that the broker reports; None: it reports nothing.
        version: the version that the broker reports; empty: none.
        is_up: whether a login succeeded.
    """

    def __init__(self, broker: FleetBroker, carry: Iterable[str], deliver: bool) -> None:
        self.findings: list[Finding] = []
        self.bridges: list[str] | None = None
        self.version = ""
        self.is_up = False
        self._broker = broker
        self._carry = tuple(carry)
        self._deliver = deliver
        self._random = secrets.token_hex(6)
        self._own_topic = f"{INTERNAL_PREFIX}doctor/{self._random}"
        self._login: Login | None = None
        self._tls: ssl.SSLContext | None = None
        self._address = broker.host_and_port()
        self._can_use_own_topics = False

    async def run(self) -> None:
        """Run all checks; each ends at its deadline."""
        if not (self._read_files() and await self._guarded("reach", self._reach())):
            return
        if not await self._guarded("login", self._enter()):
            return
        self.is_up = True
        async with self._client("main") as main:
            if not await self._guarded("session", self._listen(main)):
                return
            await self._guarded("read", self._try_reads(main))
            await self._guarded("write", self._try_writes())
            await self._guarded("queue", self._try_queue(), QUEUE_SECONDS)
            await self._guarded("clock", self._collect_times(main))
            with suppress(OSError):
                await main.disconnect(0)

    def add(self, check: str, verdict: str, found: str, setting: str = "") -> None:
        """Add a finding."""
        self.findings.append(Finding(self._broker.name, check, verdict, found, setting))

    async def _guarded(self, check: str, work: Awaitable[bool], seconds: float = CHECK_SECONDS) -> bool:
        """The result of a check; false, with a finding, if it fails or does not end in time."""
        try:
            async with asyncio.timeout(seconds):
                return await work
        except TimeoutError:
            self.add(check, MUST_CHANGE, f"no answer in {seconds:g} s", "check the broker and the network")
        except (OSError, ProtocolError) as error:
            reason = str(error) or type(error).__name__
            self.add(check, MUST_CHANGE, f"the connection failed: {reason:.120}", "check the broker's log")
        return False

    def _client(self, name: str) -> ProbeClient:
        client = f"broadloom-doctor-{self._random}-{name}"
        return ProbeClient(self._address, client, self._login, self._tls)

    # Before the connection.

    def _read_files(self) -> bool:
        """Read the secret and the TLS files that the fleet file refers to."""
        try:
            self._login = self._broker.mqtt_login()
        except BroadloomError as error:
            self.add("login", MUST_CHANGE, str(error), "login in fleet.toml")
            return False
        try:
            self._tls = self._broker.tls_context()
        except BroadloomError as error:
            self.add("tls", MUST_CHANGE, str(error), "tls in fleet.toml")
            return False
        return True

    async def _reach(self) -> bool:
        """Resolve the name, open a socket, and negotiate TLS."""
        host, port = self._address.hostname, self._address.port
        loop = asyncio.get_running_loop()
        try:
            await loop.getaddrinfo(host, port)
        except OSError as error:
            reason = error.strerror or "unknown"
            self.add(
                "reach", MUST_CHANGE, f"{host} has no address: {reason}", 'address = "..." in fleet.toml'
            )
            return False
        started = loop.time()
        try:
            _, writer = await asyncio.open_connection(host, port)
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
            setting = 'start the broker, open its port, or correct address = "..." in fleet.toml'
            self.add("reach", MUST_CHANGE, f"{self._address} is not reachable: {reason:.100}", setting)
            return False
        trip = loop.time() - started
        writer.close()
        self.add("reach", OK, f"{self._address} answers in {1000 * trip:.1f} ms")
        return self._tls is None or await self._negotiate()

    async def _negotiate(self) -> bool:
        """Negotiate TLS and say why it fails."""
        try:
            async with self._client("tls") as client:
                cipher = client.tls_version
        except OSError as error:
            if isinstance(error, ssl.SSLCertVerificationError) or not await self._speaks_plain():
                found, setting = explain_tls_error(error, self._broker)
            else:
                found, setting = "the port speaks plain text, not TLS", "tls = false in fleet.toml"
            self.add("tls", MUST_CHANGE, found, setting)
            return False
        self.add("tls", OK, f"{cipher}, the certificate is valid")
        return True

    async def _speaks_plain(self) -> bool:
        """Whether the broker answers MQTT without TLS; an anonymous client asks, so no password is sent."""
        for version in (MQTT_5, MQTT_311):
            with suppress(OSError, ProtocolError, TimeoutError):
                async with ProbeClient(self._address, f"broadloom-doctor-{self._random}-plain") as client:
                    async with asyncio.timeout(CHECK_SECONDS / 4):
                        await client.connect(version=version)
                    return True
        return False

    # The login.

    async def _enter(self) -> bool:
        """Log in with MQTT 5, or find out why that fails."""
        try:
            async with self._client("login") as client:
                connack = await client.connect(expiry=DAY_SECONDS)
                if connack.reason == 0:
                    await client.disconnect(0)
        except (OSError, ProtocolError) as error:
            return await self._enter_without_mqtt_5(error)
        if connack.reason in WRONG_VERSION:
            return await self._enter_without_mqtt_5(None)
        if connack.reason:
            self._refused(connack)
            return False
        self._entered()
        self.add("mqtt 5", OK, "the broker speaks MQTT 5")
        self._judge_limits(connack)
        return True

    async def _enter_without_mqtt_5(self, error: Exception | None) -> bool:
        """Log in with MQTT 3.1.1 after MQTT 5 has failed; always false, since no other check can follow."""
        try:
            async with self._client("login") as client:
                connack = await client.connect(version=MQTT_311)
                if connack.reason == 0:
                    await client.disconnect()
        except (OSError, ProtocolError) as second:
            await self._closed(error or second)
            return False
        if connack.reason:
            self._refused(connack)
            return False
        self._entered()
        verdict = ADVICE if self._broker.kind == "rabbitmq" else MUST_CHANGE
        version = {"mosquitto": "mosquitto 1.6", "emqx": "EMQX 4", "rabbitmq": "RabbitMQ 3.13"}[
            self._broker.kind
        ]
        found = "the broker speaks MQTT 3.1.1 only; live links need MQTT 5, exported bridges do not"
        self.add("mqtt 5", verdict, found, f"update the broker: {version} or later")
        return False

    async def _tls_alert(self) -> Exception | None:
        """The error with which a broker ends a TLS connection on which nothing is sent.

        A broker that closes a connection with unread data can take its own alert back.
        """
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(CHECK_SECONDS / 4), self._client("tls") as client:
                return await client.ended()
        return None

    async def _closed(self, error: Exception) -> None:
        """Say why a broker closes the connection before its answer to CONNECT."""
        if self._tls is not None:
            error = await self._tls_alert() or error
        if self._tls is None and await speaks_tls(self._address):
            self.add(
                "tls", MUST_CHANGE, "the port speaks TLS, not plain text", "remove tls = false in fleet.toml"
            )
        elif isinstance(error, ssl.SSLError):
            found, setting = explain_tls_error(error, self._broker)
            self.add("tls", MUST_CHANGE, found, setting)
        else:
            setting = "the port of an MQTT listener in address, or see the broker's log"
            self.add("login", MUST_CHANGE, "the broker closes the connection without an answer", setting)

    def _refused(self, connack: Connack) -> None:
        login = self._broker.login
        if connack.reason not in WRONG_LOGIN:
            reason = _reason(connack.reason)
            self.add("login", MUST_CHANGE, f"the connection is refused: {reason}", "see the broker's log")
        elif login is None:
            setting = 'login = { user = "...", password_file = "..." } in fleet.toml'
            self.add("login", MUST_CHANGE, "anonymous clients are refused", setting)
        else:
            source = login.password_file or f"variable {login.password_env}"
            found = f"user {login.user!r} is refused: wrong name or password"
            self.add("login", MUST_CHANGE, found, f"the password in {source}, or the broker's user")

    def _entered(self) -> None:
        if self._broker.login is not None:
            self.add("login", OK, f"user {self._broker.login.user!r} is accepted")
        elif self._broker.tls is not None and self._broker.tls.certificate:
            self.add("login", OK, "the certificate is accepted")
        else:
            setting = "allow_anonymous false and a password_file in mosquitto.conf, and login in fleet.toml"
            advice = setting if self._broker.kind == "mosquitto" else "a login, and login in fleet.toml"
            self.add("login", ADVICE, "anonymous clients are accepted", advice)

    def _judge_limits(self, connack: Connack) -> None:
        limits = connack.properties
        expiry = limits.get(SESSION_EXPIRY, DAY_SECONDS)
        if expiry < DAY_SECONDS:
            found = f"sessions end after {expiry:,} s; links ask for {DAY_SECONDS:,} s"
            verdict = MUST_CHANGE if expiry == 0 else ADVICE
            self.add("session expiry", verdict, found, _EXPIRY_SETTINGS.get(self._broker.kind, ""))
        else:
            self.add("session expiry", OK, "the broker keeps sessions for a day")
        packet = limits.get(MAXIMUM_PACKET)
        known = [
            f"receive maximum {limits.get(RECEIVE_MAXIMUM, 65_535):,}",
            "no packet limit" if packet is None else f"packets up to {packet:,} bytes",
            f"QoS up to {limits.get(MAXIMUM_QOS, 2)}",
        ]
        if limits.get(MAXIMUM_QOS, 2) == 0:
            self.add("limits", MUST_CHANGE, "QoS 0 only; links need QoS 1", "max_qos 2 for the listener")
        elif limits.get(WILDCARDS_AVAILABLE, 1) == 0 and any(map(is_wild, self._carry)):
            setting = "allow wildcard subscriptions, or carry without wildcards in fleet.toml"
            self.add("limits", MUST_CHANGE, "no wildcard subscriptions; links need them", setting)
        elif limits.get(RETAIN_AVAILABLE, 1) == 0:
            self.add("limits", ADVICE, "no retained messages; links lose the flag", "retain_available true")
        elif packet is not None and packet < SMALL_PACKET:
            found = f"packets up to {packet:,} bytes only; larger messages cannot pass"
            self.add("limits", ADVICE, found, "max_packet_size of the broker, at least that of the others")
        else:
            shared = "" if limits.get(SHARED_AVAILABLE, 1) else ", no shared subscriptions"
            self.add("limits", OK, ", ".join(known) + shared)

    # With a session.

    async def _listen(self, main: ProbeClient) -> bool:
        """Open the main session, and read what the broker says about itself."""
        connack = await main.connect()
        if connack.reason:
            self._refused(connack)
            return False
        await main.subscribe([VERSION_TOPIC, BRIDGES_TOPIC, LOG_TOPIC])
        await main.settle()
        heads = BRIDGES_TOPIC.removesuffix("#")
        for message in main.messages:
            if message.topic == VERSION_TOPIC:
                self.version = message.payload.decode(errors="replace")[:60]
        if self.version:
            self.bridges = [
                message.topic.removeprefix(heads).removesuffix("/state")
                for message in main.messages
                if message.topic.startswith(heads) and message.payload
            ]
        self._judge_kind()
        return True

    def _judge_kind(self) -> None:
        is_mosquitto = self.version.startswith("mosquitto")
        if self.version and is_mosquitto != (self._broker.kind == "mosquitto"):
            setting = 'kind = "mosquitto" in fleet.toml' if is_mosquitto else 'kind = "..." in fleet.toml'
            self.add("kind", MUST_CHANGE, f"the broker is {self.version!r}, not {self._broker.kind}", setting)
        elif self.version:
            self.add("kind", OK, self.version)

    async def _try_reads(self, main: ProbeClient) -> bool:
        """Try to subscribe to what links read."""
        own = f"{INTERNAL_PREFIX}#"
        reasons = await self._subscribe_reasons()
        for text, reason in zip(self._carry, reasons, strict=False):
            if reason >= FAILED:
                found = f"no right to read {text}: {_reason(reason)}"
                self.add("read", MUST_CHANGE, found, self._right("read", text))
        if not any(one.check == "read" for one in self.findings):
            await self._judge_reads()
        reason = (await main.subscribe([self._own_topic]))[0]
        self._can_use_own_topics = reason < FAILED
        if reason >= FAILED:
            found = f"no right to read {own}: {_reason(reason)}; live links need it"
            self.add("own topics", ADVICE, found, self._right("readwrite", own))
        return True

    async def _judge_reads(self) -> None:
        names = _few(self._carry)
        if self._deliver:
            for text in self._carry:
                await self._try_delivery(text)
        elif self._broker.kind == "mosquitto":
            found = f"subscriptions to {names} are accepted; mosquitto accepts them without the right to read"
            self.add("read", OK, found, "")
        else:
            self.add("read", OK, f"subscriptions to {names} are accepted")

    async def _try_delivery(self, text: str) -> None:
        """Send a real message to this client itself; clients that want all topics see it."""
        topic = self._probe_topic(text)
        async with self._client("deliver") as reader, self._client("write") as writer:
            await reader.connect()
            await writer.connect()
            await reader.subscribe([topic])
            reason = await writer.publish(topic, b"broadloom doctor")
            await reader.settle()
            await writer.disconnect(0)
            await reader.disconnect(0)
        if reason >= FAILED:
            found = f"no right to write {text}: {_reason(reason)}"
            self.add("write", MUST_CHANGE, found, self._right("write", text))
        elif any(message.topic == topic for message in reader.messages):
            self.add("read", OK, f"a message to {text} is delivered")
        else:
            found = f"no right to read {text}: a message to it is not delivered"
            self.add("read", MUST_CHANGE, found, self._right("read", text))

    async def _subscribe_reasons(self) -> bytes:
        """The reason codes of subscriptions to what links carry, in a session that ends at once."""
        async with self._client("read") as client:
            await client.connect()
            reasons = await client.subscribe(self._carry, retained=False)
            await client.disconnect(0)
        return reasons

    async def _try_writes(self) -> bool:
        """Try to publish what links write, by messages that are never released."""
        if self._broker.kind != "mosquitto" or not (self.version or "mosquitto").startswith("mosquitto"):
            if not self._deliver:
                found = "cannot be tried without messages that clients see; try it with --deliver"
                self.add("write", NOT_SEEN, found)
            return True
        denied = False
        topics = {text: self._probe_topic(text) for text in self._carry}
        reasons = await self._publish_reasons([*topics.values(), self._own_topic])
        for text, reason in zip(topics, reasons, strict=False):
            if reason >= FAILED:
                denied = True
                found = f"no right to write {text}: {_reason(reason)}"
                self.add("write", MUST_CHANGE, found, self._right("write", text))
        if not denied:
            self.add("write", OK, f"messages to {_few(self._carry)} are accepted")
        if reasons[-1] >= FAILED:
            self._can_use_own_topics = False
            own = f"{INTERNAL_PREFIX}#"
            found = f"no right to write {own}: {_reason(reasons[-1])}; live links need it"
            self.add("own topics", ADVICE, found, self._right("readwrite", own))
        elif self._can_use_own_topics:
            self.add("own topics", OK, f"messages to {INTERNAL_PREFIX}# are accepted")
        return True

    async def _publish_reasons(self, topics: list[str]) -> list[int]:
        reasons: list[int] = []
        for first in range(0, len(topics), FILTERS_TRIED):
            async with self._client("write") as client:
                await client.connect()
                reasons += [
                    await client.try_publish(topic) for topic in topics[first : first + FILTERS_TRIED]
                ]
                await client.disconnect(0)
        return reasons

    async def _try_queue(self) -> bool:
        """Count the messages that the broker keeps for an absent client."""
        if self._broker.kind == "rabbitmq":  # its `#` matches all topics, and its queues have no limit
            return True
        if not self._can_use_own_topics:
            found = f"the queue cannot be tried without rights on {INTERNAL_PREFIX}#"
            self.add("queue", NOT_SEEN, found, self._right("readwrite", f"{INTERNAL_PREFIX}#"))
            return True
        async with self._client("queue") as client:
            await client.connect(clean=False, expiry=int(2 * QUEUE_SECONDS))
            await client.subscribe([self._own_topic])
            await client.disconnect(int(2 * QUEUE_SECONDS))
        async with self._client("fill") as client:
            await client.connect(version=MQTT_311)  # which has no receive maximum, so one round trip suffices
            await client.publish_many_311(self._own_topic, QUEUE_MESSAGES)
            await client.disconnect()
        async with self._client("queue") as client:
            connack = await client.connect(clean=False, expiry=int(2 * QUEUE_SECONDS))
            await client.settle()
            kept = len(client.messages)
            await client.disconnect(0)
        self._judge_queue(kept, connack.present)
        return True

    def _judge_queue(self, kept: int, is_present: bool) -> None:
        where = {"mosquitto": "mosquitto.conf", "emqx": "emqx.conf"}.get(self._broker.kind, "the broker")
        setting = {"emqx": "mqtt.max_mqueue_len = 100000"}.get(self._broker.kind, GOOD_QUEUE)
        if not is_present:
            found = "the broker forgets the session of an absent client"
            self.add("queue", MUST_CHANGE, found, "allow persistent sessions")
        elif kept >= QUEUE_MESSAGES:
            self.add("queue", OK, f"{kept:,} messages are kept for an absent client")
        else:
            found = f"only {kept:,} of {QUEUE_MESSAGES:,} messages are kept for an absent client"
            verdict = ADVICE if kept >= DEFAULT_QUEUE else MUST_CHANGE
            self.add("queue", verdict, found, f"{setting} in {where}")

    async def _collect_times(self, main: ProbeClient) -> bool:
        """Compare the broker's clock with ours, by the lines that it logs about our own connections."""
        await main.settle()
        head = LOG_TOPIC.removesuffix("#")
        lines = [
            (message.payload.decode(errors="replace"), message.arrived)
            for message in main.messages
            if message.topic.startswith(head)
        ]
        skews = [skew for line, arrived in lines if (skew := log_skew(line, arrived)) is not None]
        if skews:
            self.judge_clock(statistics.median(skews), "its log")
        return True

    def judge_clock(self, skew: float, source: str) -> None:
        """Add a finding about the clock, which is `skew` seconds ahead."""
        direction = "ahead" if skew > 0 else "behind"
        if abs(skew) <= CLOCK_ADVICE:
            self.add("clock", OK, f"within {CLOCK_ADVICE:g} s of this machine's, by {source}")
            return
        found = f"{abs(skew):,.0f} s {direction} of this machine's, by {source}"
        verdict = MUST_CHANGE if abs(skew) > CLOCK_LIMIT else ADVICE
        self.add("clock", verdict, found, "timedatectl set-ntp true on both machines")

    def read_clock_from_log(self, log: Path) -> bool:
        """Compare the clocks by a log file on this machine; false if it has no line about our connections."""
        own = f"broadloom-doctor-{self._random}-"
        try:
            with log.open("rb") as file:
                file.seek(max(0, log.stat().st_size - LOG_TAIL))
                lines = file.read().decode(errors="replace").splitlines()
        except OSError:
            return False
        ours = [line for line in lines if own in line]
        skews = [skew for line in ours if (skew := log_skew(line, time.time())) is not None]
        if skews:
            self.judge_clock(max(skews), str(log))  # the last line is the most recent
        return bool(skews)

    def _probe_topic(self, text: str) -> str:
        """A topic that a filter matches, and that has no other use."""
        return common_topic(text, text, f"broadloom-doctor-{self._random}") or text

    def _right(self, access: str, text: str) -> str:
        """The setting that gives a right."""
        user = self._broker.login.user if self._broker.login is not None else None
        if self._broker.kind == "mosquitto":
            return f"topic {access} {text} " + (f"below `user {user}` in acl_file" if user else "in acl_file")
        if self._broker.kind == "emqx":
            return f"a rule that allows {user or 'all'} to {access} {text} in Access Control, Authorization"
        return f"rabbitmqctl set_topic_permissions for {user or 'guest'}: {access} {text}"


_EXPIRY_SETTINGS = {
    "mosquitto": "persistent_client_expiration 14d in mosquitto.conf",
    "emqx": "mqtt.session_expiry_interval = 1d in emqx.conf",
    "rabbitmq": "mqtt.max_session_expiry_interval_seconds = 86400 in rabbitmq.conf",
}


def log_skew(line: str, arrived: float) -> float | None:
    """Seconds that the time in a line of a log is ahead; None: the line has no time.

    A date has no time zone, so only the difference to the nearest quarter of an hour counts.

    Examples:
        >>> log_skew("1700000120: New client", 1700000000.0)
        120.0
        >>> log_skew("New client", 1700000000.0) is None
        True
    """
    match = _TIME.match(line)
    if match is None:
        return None
    if match[1]:
        return float(match[1]) - arrived
    local = datetime.fromisoformat(f"{match[2]}+00:00").timestamp() - arrived
    return (local + _ZONE_SECONDS / 2) % _ZONE_SECONDS - _ZONE_SECONDS / 2


def _reason(code: int) -> str:
    return f"{_REASONS[code]} ({code:#04x})" if code in _REASONS else f"code {code:#04x}"


def _few(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more

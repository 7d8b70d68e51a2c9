"""Probe of the way into an MQTT broker: its name and port, TLS, the login, the protocol and its limits."""

from __future__ import annotations

import asyncio
import os
import secrets
import ssl
from collections.abc import Awaitable, Iterable
from contextlib import suppress

from broadloom.deployment import FleetBroker
from broadloom.discovery.doctor_report import ADVICE, MUST_CHANGE, OK, Finding
from broadloom.discovery.tls_probes import explain_tls_error, speaks_tls
from broadloom.errors import BroadloomError
from broadloom.mqtt.endpoint import DAY_SECONDS, Login
from broadloom.mqtt.packets import (
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
from broadloom.mqtt.probe_client import MQTT_5, MQTT_311, ProbeClient, close_connection
from broadloom.mqtt.topic_filters import is_wild

CHECK_SECONDS = 5.0  # deadline of one check
SMALL_PACKET = 65_536  # bytes
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
_EXPIRY_SETTINGS = {
    "mosquitto": "persistent_client_expiration 14d in mosquitto.conf",
    "emqx": "mqtt.session_expiry_interval = 1d in emqx.conf",
    "rabbitmq": "mqtt.max_session_expiry_interval_seconds = 86400 in rabbitmq.conf",
}


class ConnectionProbe:
    """Checks of a broker up to a login.

    Args:
        broker: the broker.
        carry: the topic filters that links carry.

    Attributes:
        findings: what was found so far.
        is_up: whether a login succeeded.
    """

    def __init__(self, broker: FleetBroker, carry: Iterable[str]) -> None:
        self.findings: list[Finding] = []
        self.is_up = False
        self._broker = broker
        self._carry = tuple(carry)
        self._random = secrets.token_hex(6)
        self._login: Login | None = None
        self._tls: ssl.SSLContext | None = None
        self._address = broker.host_and_port()

    async def enter(self) -> bool:
        """Check the way in; true if more checks are possible."""
        if not (self._read_files() and await self._guarded("reach", self._reach())):
            return False
        return await self._guarded("login", self._enter())

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
        await close_connection(writer)
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
            reason = reason_text(connack.reason)
            self.add("login", MUST_CHANGE, f"the connection is refused: {reason}", "see the broker's log")
        elif login is None:
            setting = 'login = { user = "...", password_file = "..." } in fleet.toml'
            self.add("login", MUST_CHANGE, "anonymous clients are refused", setting)
        else:
            source = login.password_file or f"variable {login.password_env}"
            found = f"user {login.user!r} is refused: wrong name or password"
            self.add("login", MUST_CHANGE, found, f"the password in {source}, or the broker's user")

    def _entered(self) -> None:
        self.is_up = True
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


def reason_text(code: int) -> str:
    """A reason code in words."""
    return f"{_REASONS[code]} ({code:#04x})" if code in _REASONS else f"code {code:#04x}"

"""Probe of a NATS server by its own protocol: TLS, login, and the right to subscribe."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import ssl
from collections.abc import Iterable
from typing import Any

from broadloom.deployment import FleetBroker
from broadloom.discovery.doctor_report import ADVICE, MUST_CHANGE, NOT_SEEN, OK, Finding
from broadloom.discovery.tls_probes import explain_tls_error
from broadloom.errors import BroadloomError
from broadloom.mqtt.endpoint import Login
from broadloom.mqtt.topic_filters import common_topic

CHECK_SECONDS = 5.0


_LOGIN_SETTING = 'login = { user = "...", password_file = "..." }'


class NatsProbe:
    """Checks of one NATS server.

    Args:
        broker: the server.
        carry: the topic filters that links carry.
        deliver: whether to send real messages, which clients can see, to try the right to write.

    Attributes:
        findings: what was found so far.
        is_up: whether a login succeeded.
    """

    def __init__(self, broker: FleetBroker, carry: Iterable[str], deliver: bool) -> None:
        self.findings: list[Finding] = []
        self.is_up = False
        self._broker = broker
        self._carry = tuple(carry)
        self._deliver = deliver
        self._login = Login()
        self._tls: ssl.SSLContext | None = None

    async def run(self) -> None:
        """Run all checks."""
        try:
            self._login = self._broker.mqtt_login()
            self._tls = self._broker.tls_context()
        except BroadloomError as error:
            self._add("login", MUST_CHANGE, str(error), "login and tls in fleet.toml")
            return
        address = self._broker.host_and_port()
        try:
            async with asyncio.timeout(CHECK_SECONDS):
                reader, writer = await asyncio.open_connection(address.hostname, address.port)
        except (OSError, TimeoutError) as error:
            reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else "no answer"
            setting = 'start the broker, open its port, or correct address = "..." in fleet.toml'
            self._add("reach", MUST_CHANGE, f"{address} is not reachable: {reason}", setting)
            return
        self._add("reach", OK, f"{address} answers")
        try:
            async with asyncio.timeout(CHECK_SECONDS):
                await self._talk(reader, writer)
        except ssl.SSLError as error:
            found, setting = explain_tls_error(error, self._broker)
            self._add("tls", MUST_CHANGE, found, setting)
        except (OSError, TimeoutError, EOFError, ValueError) as error:
            found = f"the port does not answer as NATS: {str(error) or type(error).__name__:.100}"
            self._add("login", MUST_CHANGE, found, 'the client port of nats-server in address = "..."')
        finally:
            writer.close()

    def _add(self, check: str, verdict: str, found: str, setting: str = "") -> None:
        self.findings.append(Finding(self._broker.name, check, verdict, found, setting))

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = (await reader.readline()).decode(errors="replace")
        word, _, text = line.partition(" ")
        if word != "INFO":
            raise ValueError("it does not begin with INFO")
        info: dict[str, Any] = json.loads(text)
        wants_tls = bool(info.get("tls_required"))
        if wants_tls and self._tls is None:
            self._add("tls", MUST_CHANGE, "the server requires TLS", "remove tls = false in fleet.toml")
            return
        if self._tls is not None:
            if not (wants_tls or info.get("tls_available")):
                self._add("tls", MUST_CHANGE, "the server has no TLS", "tls = false in fleet.toml")
                return
            await writer.start_tls(self._tls, server_hostname=self._broker.host_and_port().hostname)
            self._add("tls", OK, "the certificate is valid")
        options: dict[str, Any] = {"verbose": False, "pedantic": False, "lang": "python", "version": "1"}
        options["name"] = "broadloom-doctor"
        if self._login.user is not None:
            options |= {"user": self._login.user, "pass": self._login.password or ""}
        writer.write(f"CONNECT {json.dumps(options)}\r\nPING\r\n".encode())
        if not self._judge_login(await self._until_pong(reader)):
            return
        self.is_up = True
        await self._try_reads(reader, writer)
        if self._deliver:
            await self._try_writes(reader, writer)
        else:
            found = "cannot be tried without messages that clients see; try it with --deliver"
            self._add("write", NOT_SEEN, found)

    def _judge_login(self, errors: list[str]) -> bool:
        if self._broker.has_open_links:
            found = f"links need no login: anyone who can reach {self._broker.leaf_address()} can link to it"
            self._add("links", ADVICE, found, f"{_LOGIN_SETTING} in fleet.toml")
        if not errors:
            user = self._broker.login.user if self._broker.login is not None else None
            if user is not None:
                self._add("login", OK, f"user {user!r} is accepted")
            else:
                setting = "authorization in nats.conf, and login in fleet.toml"
                self._add("login", ADVICE, "anonymous clients are accepted", setting)
            return True
        if self._broker.account is not None:  # links log in at the listener for links, not as clients do
            self._add("login", NOT_SEEN, "clients have other logins than links, so rights cannot be seen")
            return False
        if self._broker.login is None:
            setting = f"{_LOGIN_SETTING} in fleet.toml"
            self._add("login", MUST_CHANGE, "anonymous clients are refused", setting)
        else:
            found = f"user {self._broker.login.user!r} is refused: wrong name or password"
            self._add("login", MUST_CHANGE, found, "the password, or authorization in nats.conf")
        return False

    async def _try_reads(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        subjects = {text: _subject(text) for text in self._carry}
        denied = []
        for number, (text, subject) in enumerate(subjects.items(), 1):
            # Unsubscribed at once, so that no message follows.
            writer.write(f"SUB {subject} {number}\r\nUNSUB {number}\r\nPING\r\n".encode())
            if await self._until_pong(reader):
                denied.append(text)
        for text in denied:
            setting = f"permissions.subscribe for {subjects[text]} in nats.conf"
            self._add("read", MUST_CHANGE, f"no right to read {text}", setting)
        if not denied:
            self._add("read", OK, f"subscriptions to {', '.join(list(subjects)[:3])} are accepted")

    async def _try_writes(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Send one real message per filter."""
        level = f"broadloom-doctor-{secrets.token_hex(6)}"
        denied = []
        for text in self._carry:
            subject = _subject(common_topic(text, text, level) or text)
            writer.write(f"PUB {subject} 16\r\nbroadloom doctor\r\nPING\r\n".encode())
            if await self._until_pong(reader):
                denied.append(text)
                setting = f"permissions.publish for {_subject(text)} in nats.conf"
                self._add("write", MUST_CHANGE, f"no right to write {text}", setting)
        if not denied:
            self._add("write", OK, f"messages to {', '.join(self._carry[:3])} are accepted")

    async def _until_pong(self, reader: asyncio.StreamReader) -> list[str]:
        """The errors before the next PONG; the server ends the connection after some of them."""
        errors: list[str] = []
        while line := await reader.readline():
            word = line.split(maxsplit=1)[0].upper() if line.strip() else b""
            if word == b"PONG":
                return errors
            if word == b"-ERR":
                errors.append(line.decode(errors="replace").strip())
                if b"authorization" in line.lower():
                    return errors
            elif word == b"MSG":
                await reader.readexactly(int(line.split()[-1]) + 2)
        if not errors:
            raise EOFError("the server closed the connection")
        return errors


def _subject(text: str) -> str:
    """The NATS subject of an MQTT filter.

    Examples:
        >>> _subject("sensors/+/x/#"), _subject("#")
        ('sensors.*.x.>', '>')
    """
    return text.replace("/", ".").replace("+", "*").replace("#", ">")

"""Broker endpoints: addresses, logins, TLS contexts and secrets; and how a server ends."""

from __future__ import annotations

import asyncio
import os
import re
import ssl
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import IPv6Address
from pathlib import Path
from typing import NamedTuple

from broadloom.checks import is_text, shown
from broadloom.errors import InputError, StorageError

LAST_PORT = 65_535
DAY_SECONDS = 86_400
# Environment variables of the login of links.
USER_VARIABLE, PASSWORD_VARIABLE = "BROADLOOM_USER", "BROADLOOM_PASSWORD"
PASSWORD_FILE_VARIABLE = f"{PASSWORD_VARIABLE}_FILE"


# Letters and digits of any language (names are looked up by IDNA), `-`, `_`, and dots between them.
_HOST = re.compile(r"[^\W_](?:[\w.-]*\w)?\.?|_[\w.-]*\w\.?")
_ZONE = re.compile(r"[A-Za-z0-9_.-]+")


class Address(NamedTuple):
    """Host and port of a broker.

    Examples:
        >>> Address.parse("10.0.0.7:8883")
        Address(host='10.0.0.7', port=8883)
        >>> Address.parse("[::1]", default_port=1883).hostname
        '::1'
    """

    host: str
    port: int

    @classmethod
    def parse(cls, text: str, default_port: int | None = None, what: str = "address") -> Address:
        """Parse `host:port`, or `host` if there is a default port.

        Args:
            text: the address; an IPv6 host is in brackets.
            default_port: the port of an address without one; None: the port is required.
            what: the name of the address in errors.

        Raises:
            InputError: the address is malformed or contains a login.
        """
        expected = "host:port" if default_port is None else "host or host:port"
        if not isinstance(text, str):
            raise InputError(f"{what} is {shown(text)}; give {expected}")
        if "@" in text:  # the error must not repeat what can be a password
            raise InputError(f"{what} contains a login; give {expected} only")
        host, colon, port = text.rpartition(":")
        if default_port is not None and (not colon or "]" in port):
            host, port = text, str(default_port)
        if not (_is_host(host) and port.isdecimal()):
            raise InputError(f"{what} is {text!r:.80}; give {expected}")
        if not 0 < int(port) <= LAST_PORT:
            raise InputError(f"{what} is {text!r:.80}; give {expected}, with a port from 1 to {LAST_PORT}")
        return cls(host, int(port))

    @property
    def hostname(self) -> str:
        """The host without the brackets of an IPv6 address."""
        return self.host.strip("[]")

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def _is_host(host: str) -> bool:
    """Whether a text is a host name, an IPv4 address, or an IPv6 address in brackets, and nothing else.

    All other characters have a meaning in URIs, configuration files or shells.
    """
    if host.startswith("["):
        address, _, zone = host[1:-1].partition("%")
        if not host.endswith("]") or ("%" in host and not _ZONE.fullmatch(zone)):
            return False
        try:
            return bool(IPv6Address(address))
        except ValueError:
            return False
    if not _HOST.fullmatch(host):
        return False
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return True


@dataclass(frozen=True)
class Login:
    """User name, password and TLS files for connections to brokers.

    Attributes:
        user: the user name; None: anonymous.
        password: the password; never shown.
        ca: the file of trusted certificates, which enables TLS; empty: the system's; None: no TLS.
        certificate: the client's certificate file and key file, if brokers require them.

    Examples:
        >>> Login("meter-1", "secret")
        Login(user='meter-1', ca=None, certificate=None)
    """

    user: str | None = None
    password: str | None = field(default=None, repr=False)
    ca: str | None = None
    certificate: tuple[str, str] | None = None

    def __post_init__(self) -> None:
        for name in ("user", "password", "ca"):
            if not _is_optional_text(getattr(self, name)):  # the error must not show a password
                raise InputError(f"the login's {name} is not a text; give a string, or None")
        files = self.certificate
        if files is not None:
            pair = tuple(files) if isinstance(files, (tuple, list)) else ()
            if len(pair) != 2 or not all(file is not None and _is_optional_text(file) for file in pair):
                raise InputError(
                    f"the login's certificate is {shown(files)}; give the files of a certificate and its key"
                )
            object.__setattr__(self, "certificate", pair)

    def tls(self) -> ssl.SSLContext | None:
        """The TLS context of this login; None: no TLS.

        Raises:
            InputError: a file cannot be used for TLS.
        """
        return None if self.ca is None else tls_context(self.ca or None, self.certificate)


def _is_optional_text(value: object) -> bool:
    """Whether a value is None, or a text that can be sent and can name a file."""
    return value is None or (isinstance(value, str) and "\0" not in value and (not value or is_text(value)))


ANONYMOUS = Login()


def tls_context(ca: str | None = None, certificate: tuple[str, str] | None = None) -> ssl.SSLContext:
    """A TLS context that verifies brokers.

    Args:
        ca: the file of trusted certificates; None: the system's.
        certificate: the client's certificate file and key file.

    Raises:
        InputError: a file cannot be used for TLS.
    """
    try:
        context = ssl.create_default_context(cafile=ca)
        if certificate is not None:
            context.load_cert_chain(*certificate)
    except OSError as error:  # includes ssl.SSLError
        names = ", ".join(file for file in (ca, *(certificate or ())) if file)
        reason = error.strerror or type(error).__name__
        raise InputError(f"{names} cannot be used for TLS: {reason:.80}") from error
    return context


def login_from_environment(tls_files: Login | None = None) -> Login:
    """The login in BROADLOOM_USER and BROADLOOM_PASSWORD or BROADLOOM_PASSWORD_FILE.

    Args:
        tls_files: a login whose TLS files to take.

    Raises:
        InputError: a variable is missing, or the password file cannot be used.
    """
    user = os.environ.get(USER_VARIABLE)
    password = os.environ.get(PASSWORD_VARIABLE)
    file = os.environ.get(PASSWORD_FILE_VARIABLE)
    if not password and file:
        password = read_secret(file)
    if not user or not password:
        raise InputError(
            f"a login is required; set {USER_VARIABLE}, and {PASSWORD_VARIABLE} or {PASSWORD_FILE_VARIABLE}"
        )
    tls = tls_files or Login()
    return Login(user, password, tls.ca, tls.certificate)


def read_secret(path: str | Path) -> str:
    """Read a password or token from a file that only its owner can read.

    Raises:
        InputError: the file does not exist, is empty or not text, or other users can read it.
        StorageError: it cannot be read.
    """
    file = Path(path)
    try:
        mode = file.stat().st_mode
        text = file.read_text().strip()
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise InputError(f"the secret in {file} cannot be read: {reason}") from error
    except OSError as error:
        raise StorageError(f"the secret in {file} cannot be read: {error.strerror}") from error
    if mode & 0o077 and sys.platform != "win32":  # which has no such bits
        raise InputError(f"other users can read the secret in {file}; run: chmod 600 {file}")
    if not text:
        raise InputError(f"{file} is empty; put the secret there, in one line")
    return text


@dataclass(frozen=True)
class Endpoint:
    """Address, TLS, login and session limits of a broker connection.

    Attributes:
        host: the broker's host.
        port: the broker's port.
        tls: the TLS context; None: no TLS.
        login: user name and password; None: anonymous.
        keep_alive: seconds after which a silent connection is pinged.
        window: maximum number of unacknowledged incoming messages.
        expiry: seconds for which the broker keeps the session of an absent client.
    """

    host: str
    port: int
    tls: ssl.SSLContext | None = None
    login: Login | None = None
    keep_alive: int = 15
    window: int = 500
    expiry: int = DAY_SECONDS

    async def open(self, client: asyncio.Protocol) -> None:
        """Open a connection for a client."""
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: client, self.host, self.port, ssl=self.tls)


def abort_connection(transport: asyncio.WriteTransport) -> None:
    """End a connection at once, also one that is closing.

    With TLS, `abort` of a transport that is closing raises AttributeError in early releases of Python 3.11,
    such as that of Debian 12; later ones do nothing.
    """
    with suppress(AttributeError):
        transport.abort()


async def close_server(server: asyncio.Server) -> None:
    """Close a server, and start to serve all connections that it has accepted.

    asyncio leaks a connection whose server closes between accepting it and making its transport.
    """
    loop = asyncio.get_running_loop()
    with suppress(NotImplementedError):  # event loop of Windows
        for listening in server.sockets:
            loop.remove_reader(listening.fileno())  # accept no more
    for _ in range(4):  # make the transport, connect the protocol, start its task, run the task
        await asyncio.sleep(0)
    server.close()

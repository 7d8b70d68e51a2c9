"""Where brokers are, and how to log in to them; passwords show nowhere."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from broadloom.errors import InputError

LAST_PORT = 65_535


class Address(NamedTuple):
    """Where a broker listens.

    Examples:
        >>> Address.of("10.0.0.7:8883")
        Address(host='10.0.0.7', port=8883)
    """

    host: str
    port: int

    @classmethod
    def of(cls, text: str) -> Address:
        """An address from host:port."""
        host, colon, port = text.rpartition(":")
        odd = any(char.isspace() or not char.isprintable() or char in "\"'/" for char in host)
        if "@" in text:  # and do not repeat what may be a password
            raise InputError("an address holds a login; give host:port alone")
        if not (colon and host and port.isdecimal() and 0 < int(port) <= LAST_PORT) or odd:
            raise InputError(f"address {text!r:.80}; give host:port")
        return cls(host, int(port))

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True)
class Login:
    """How to log in to brokers.

    Attributes:
        user: the name, or none.
        password: never shown.
        ca: the file of certificates to trust, which makes connections encrypted.
        certificate: our own, and its key, if brokers ask for one.

    Examples:
        >>> Login("meter-1", "secret")
        Login(user='meter-1', ca=None, certificate=None)
    """

    user: str | None = None
    password: str | None = field(default=None, repr=False)
    ca: str | None = None
    certificate: tuple[str, str] | None = None


def read_secret(place: str | Path) -> str:
    """A password or token from a file that only its owner can read.

    Raises:
        InputError: it cannot be read, is empty, or others may read it.
    """
    file = Path(place)
    try:
        mode, text = file.stat().st_mode, file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the secret in {file} cannot be read: {error.__class__.__name__}") from error
    if mode & 0o077:
        raise InputError(f"others may read the secret in {file}; chmod 600 {file}")
    if not text:
        raise InputError(f"{file} is empty; put the secret there, in one line")
    return text

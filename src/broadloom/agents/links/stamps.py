"""Stamps of messages between brokers: origin and tree, authenticated with the key of the fleet.

The first agent that takes a message from its own broker puts the stamp on as a user property. It tells each
further hop whether to forward the message (see `hop_routing`). `at` is the broker that the message was sent
to: if it turns up at another broker, something else than an agent has brought it there.

The code covers the stamp, not the message. A client that reads a stamp can put it on messages of its own,
and so choose which brokers these reach; it cannot make them circulate.
"""

from __future__ import annotations

import os
import secrets
from hashlib import blake2b
from hmac import compare_digest
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, unquote

from broadloom.errors import InputError, error_from_os
from broadloom.mqtt.endpoint import read_secret

MOST_CACHED = 20_000  # stamps that are remembered
SHORTEST_KEY = 16  # characters
_CODE_BYTES = 12
_PERSON = b"broadloom:"


class FleetKey:
    """Secret that the controller and the agents of one fleet share.

    Args:
        secret: the secret, of at least 16 characters.

    Raises:
        InputError: the secret is too short.

    Examples:
        >>> key = FleetKey("an example, not a secret")
        >>> key.verifies(b"order", b"text", key.mac(b"order", b"text"))
        True
    """

    def __init__(self, secret: str) -> None:
        if len(secret) < SHORTEST_KEY:
            raise InputError(
                f"the key of the fleet has {len(secret)} characters; give at least {SHORTEST_KEY} "
                "(broadloom init --key-file writes a good one)"
            )
        self._key = blake2b(secret.encode(), person=_PERSON + b"key").digest()

    @classmethod
    def load(cls, path: str | Path) -> FleetKey:
        """Read the key from a file that only its owner can read.

        Raises:
            InputError: the file is missing, is too short, or others can read it.
            StorageError: it cannot be read.
        """
        return cls(read_secret(path))

    @staticmethod
    def write(path: str | Path) -> None:
        """Write a new key to a new file that only its owner can read.

        Raises:
            InputError: the file exists already.
            StorageError: it cannot be written.
        """
        try:
            with open(path, "x", opener=_private) as file:
                file.write(secrets.token_urlsafe(32) + "\n")
        except FileExistsError as error:
            raise InputError(f"{path} exists already; give another name, or remove it") from error
        except OSError as error:
            raise error_from_os(f"{path} cannot be written", error) from error

    def mac(self, purpose: bytes, data: bytes) -> bytes:
        """The authentication code of some data for a purpose (at most 6 bytes)."""
        return blake2b(data, digest_size=32, key=self._key, person=_PERSON + purpose).digest()

    def verifies(self, purpose: bytes, data: bytes, code: bytes) -> bool:
        """Whether a code is the one of some data."""
        return compare_digest(self.mac(purpose, data), code)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


class Stamp(NamedTuple):
    """Origin and version of a message.

    Attributes:
        origin: the broker where a client published it.
        version: the version that the origin's hop had.
        route: the number of the tree that it travels on, chosen once, by the origin's hop.
        at: the broker that it was sent to.
        retained: whether it is an old retained message, for brokers that are new in its tree.
        is_last: whether the tree ends at that broker, so that its hops need not know the tree.
    """

    origin: str
    version: int
    route: int
    at: str
    retained: bool = False
    is_last: bool = False


class Stamps:
    """Writes and reads stamps, and remembers them.

    Args:
        key: the key of the fleet.

    Examples:
        >>> stamps = Stamps(FleetKey("an example, not a secret"))
        >>> stamps.read(stamps.write(Stamp("rome", 7, 12, "oslo")))
        Stamp(origin='rome', version=7, route=12, at='oslo', retained=False, is_last=False)
        >>> stamps.read(b"forged/7/12/-/oslo/rome") is None
        True
    """

    def __init__(self, key: FleetKey) -> None:
        self._key = key
        self._read: dict[bytes, Stamp | None] = {}
        self._written: dict[Stamp, bytes] = {}

    def write(self, stamp: Stamp) -> bytes:
        """The value of the user property of a stamp."""
        found = self._written.get(stamp)
        if found is None:
            if len(self._written) >= MOST_CACHED:
                self._written.clear()
            names = "/".join(quote(name, safe="") for name in (stamp.at, stamp.origin))
            kind = ("r" if stamp.retained else "") + ("l" if stamp.is_last else "") or "-"
            text = f"{stamp.version}/{stamp.route}/{kind}/{names}".encode()
            found = self._written[stamp] = self._code(text) + b"/" + text
        return found

    def read(self, value: bytes) -> Stamp | None:
        """The stamp of a user property; None: it is not one of this fleet."""
        try:
            return self._read[value]
        except KeyError:
            if len(self._read) >= MOST_CACHED:  # somebody forges stamps
                self._read.clear()
            found = self._read[value] = self._parsed(value)
            return found

    def _parsed(self, value: bytes) -> Stamp | None:
        code, _, text = value.partition(b"/")
        if not compare_digest(code, self._code(text)):
            return None
        version, route, kind, at, origin = text.decode().split("/")
        return Stamp(unquote(origin), int(version), int(route), unquote(at), "r" in kind, "l" in kind)

    def _code(self, text: bytes) -> bytes:
        return self._key.mac(b"stamp", text)[:_CODE_BYTES].hex().encode()

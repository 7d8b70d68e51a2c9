"""The file that says what an agent works with: brokers, login, journal, port."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from broadloom.errors import InputError
from broadloom.migration.address import Address, Login, read_secret
from broadloom.migration.agent import Timing
from broadloom.migration.summary import Site
from broadloom.model._check import number, whole
from broadloom.model._toml import read_toml

PORT = 8780
PASSWORD, TOKEN = "BROADLOOM_AGENT_PASSWORD", "BROADLOOM_TOKEN"  # where they may be
_PARTS = {"journal", "port", "token_file", "login", "timing", "brokers"}
_LOGIN = {"user", "password_file", "ca", "certificate", "key"}
_BROKER = {"address", "agent_address", "place", "capacity"}


@dataclass(frozen=True)
class AgentConfig:
    """What an agent works with.

    Attributes:
        journal: the folder of what survives its crash.
        brokers: where clients reach the brokers.
        doors: where the agent does; another port, where clients' ports tie client ids to user names.
        sites: what the planner knows of the brokers.
        login: the agent's.
        token: what operators must show.
        port: of the HTTP API, on loopback.
        timing: how long things may take.
    """

    journal: Path
    brokers: Mapping[str, Address]
    doors: Mapping[str, Address]
    sites: Mapping[str, Site]
    login: Login
    token: str = field(repr=False)
    port: int = PORT
    timing: Timing = field(default_factory=Timing)

    @classmethod
    def load(cls, path: str | Path) -> AgentConfig:
        """Read a configuration file; passwords and tokens are in files of their own or the environment.

        Raises:
            InputError: it cannot be read, is not TOML, or has something that is wrong or not known.
        """
        place = Path(path)
        given = read_toml(place)
        folder = place.absolute().parent
        _check(given, _PARTS, str(place))
        brokers = _part(given, "brokers", place)
        if not brokers:
            raise InputError(f"{place} has no brokers; give each as [brokers.NAME] with an address")
        for name in brokers:
            _check(_part(brokers, name, place), _BROKER, f"{place} [brokers.{name}]")
        return cls(
            journal=folder / _text(given, "journal", "journal"),
            brokers={name: Address.of(_text(one, "address", "")) for name, one in brokers.items()},
            doors={
                name: Address.of(_text(one, "agent_address", _text(one, "address", "")))
                for name, one in brokers.items()
            },
            sites={name: _site(one, name) for name, one in brokers.items()},
            login=_login(_part(given, "login", place), folder),
            token=_secret(given, "token_file", TOKEN, folder),
            port=whole(given.get("port", PORT), "port"),
            timing=_timing(_part(given, "timing", place), str(place)),
        )


def _check(given: Mapping[str, Any], known: set[str], where: str) -> None:
    for name in given:
        if name not in known:
            raise InputError(f"{where}: {name!r} is not known; there are {', '.join(sorted(known))}")


def _part(given: Mapping[str, Any], name: str, place: Path) -> Mapping[str, Any]:
    part = given.get(name, {})
    if not isinstance(part, dict):
        raise InputError(f"{place}: {name} is {part!r:.40}; expected a section [{name}]")
    return part


def _text(given: Mapping[str, Any], name: str, default: str) -> str:
    value = given.get(name, default)
    if not isinstance(value, str) or not value:
        raise InputError(f"{name} is {value!r:.80}; give a text")
    return value


def _site(given: Mapping[str, Any], name: str) -> Site:
    place = given.get("place", [0.0, 0.0])
    if not isinstance(place, list) or not place:
        raise InputError(f"broker {name!r} has place {place!r:.40}; give a list of coordinates")
    axes = tuple(number(one, f"a coordinate of broker {name!r}", float("-inf")) for one in place)
    capacity = given.get("capacity")
    return Site(axes, None if capacity is None else number(capacity, f"capacity of broker {name!r}"))


def _login(given: Mapping[str, Any], folder: Path) -> Login:
    _check(given, _LOGIN, "[login]")
    ca, certificate, key = (_file(given, name, folder) for name in ("ca", "certificate", "key"))
    if (certificate is None) != (key is None) or (certificate and not ca):
        raise InputError("[login]: certificate and key go together, and with ca")
    _check_tls(ca, certificate, key)
    password = _secret(given, "password_file", PASSWORD, folder) if "user" in given else None
    user = _text(given, "user", "") if "user" in given else None
    return Login(user, password, ca, (certificate, key) if certificate and key else None)


def _file(given: Mapping[str, Any], name: str, folder: Path) -> str | None:
    return str(folder / _text(given, name, "")) if name in given else None


def _check_tls(ca: str | None, certificate: str | None, key: str | None) -> None:
    """Refuse files that TLS cannot use, before anything has begun."""
    try:
        if ca:
            context = ssl.create_default_context(cafile=ca)
            if certificate:
                context.load_cert_chain(certificate, key)
    except OSError as error:  # an SSLError, too
        words = error.strerror or error.__class__.__name__
        names = ", ".join(one for one in (ca, certificate, key) if one)
        raise InputError(f"[login]: {names} cannot be used for TLS: {words:.80}") from error


def _secret(given: Mapping[str, Any], name: str, variable: str, folder: Path) -> str:
    """A secret from the file that is named, else from the environment."""
    if name in given:
        return read_secret(folder / _text(given, name, ""))
    if not os.environ.get(variable):
        raise InputError(f"no {name} and no {variable} in the environment; give one of them")
    return os.environ[variable]


def _timing(given: Mapping[str, Any], where: str) -> Timing:
    _check(given, {one.name for one in fields(Timing)}, f"{where} [timing]")
    return Timing(**given)

"""What an agent's configuration says, part by part: texts, secrets, logins."""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from broadloom.agents.moves.address import Login, read_secret
from broadloom.errors import InputError

log = logging.getLogger("broadloom.agents.moves")

PASSWORD, TOKEN = "BROADLOOM_AGENT_PASSWORD", "BROADLOOM_TOKEN"  # where they may be
_NOBODY = Login()
_LOGIN = {"user", "password_file", "ca", "certificate", "key"}


def check_names(given: Mapping[str, Any], known: set[str], where: str) -> None:
    """Refuse names that are not known."""
    for name in given:
        if name not in known:
            raise InputError(f"{where}: {name!r} is not known; there are {', '.join(sorted(known))}")


def part_of(given: Mapping[str, Any], name: str, place: Path, within: str = "") -> Mapping[str, Any]:
    """A section, perhaps within another one, empty if it is not there."""
    part = given.get(name, {})
    if not isinstance(part, dict):
        raise InputError(f"{place}: {name} is {part!r:.40}; expected a section [{within}{name}]")
    return part


def text_of(given: Mapping[str, Any], name: str, default: str) -> str:
    """A text that is not empty."""
    value = given.get(name, default)
    if not isinstance(value, str) or not value:
        raise InputError(f"{name} is {value!r:.80}; give a text")
    return value


def secret_of(given: Mapping[str, Any], name: str, variable: str, folder: Path) -> str:
    """A secret from the file that is named, else from the environment."""
    if name in given:
        return read_secret(folder / text_of(given, name, ""))
    if not os.environ.get(variable):
        raise InputError(f"no {name} and no {variable} in the environment; give one of them")
    return os.environ[variable]


def login_of(
    given: Mapping[str, Any],
    folder: Path,
    where: str = "[login]",
    variable: str = PASSWORD,
    like: Login = _NOBODY,
) -> Login:
    """A login, with the TLS of another one where it names none; files are named from a folder."""
    check_names(given, _LOGIN, where)
    ca, certificate, key = (_file(given, name, folder) for name in ("ca", "certificate", "key"))
    ca = ca or like.ca
    if certificate is None and key is None and like.certificate is not None:
        certificate, key = like.certificate
    if (certificate is None) != (key is None) or (certificate and not ca):
        raise InputError(f"{where}: certificate and key go together, and with ca")
    _check_tls(ca, certificate, key, where)
    if "password_file" in given and "user" not in given:
        raise InputError(f"{where}: password_file goes with a user; give both")
    password = secret_of(given, "password_file", variable, folder) if "user" in given else None
    user = text_of(given, "user", "") if "user" in given else None
    if password and not ca:
        log.warning(
            "%s: without ca, and TLS by it, the password goes over the network for all to read", where
        )
    return Login(user, password, ca, (certificate, key) if certificate and key else None)


def _file(given: Mapping[str, Any], name: str, folder: Path) -> str | None:
    return str(folder / text_of(given, name, "")) if name in given else None


def _check_tls(ca: str | None, certificate: str | None, key: str | None, where: str) -> None:
    """Refuse files that TLS cannot use, before anything has begun."""
    try:
        if ca:
            context = ssl.create_default_context(cafile=ca)
            if certificate:
                context.load_cert_chain(certificate, key)
    except OSError as error:  # an SSLError, too
        words = error.strerror or error.__class__.__name__
        names = ", ".join(one for one in (ca, certificate, key) if one)
        raise InputError(f"{where}: {names} cannot be used for TLS: {words:.80}") from error

"""Writer of the fleet file, with comments for a first reader."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Hashable, Iterable
from pathlib import Path
from typing import Any

from broadloom.deployment.fleet_file import (
    Fleet,
    FleetBroker,
    FleetLinks,
    FleetLive,
    FleetLogin,
    FleetTls,
)
from broadloom.deployment.fleet_hooks import COMMANDS, FleetHooks

_HEAD = """\
# The brokers of a fleet, and what the links between them carry. Next: broadloom doctor
# Secrets are references: password_file (readable by its owner only) or password_env, never values.
# Relative paths start at the folder of this file.
"""
# What a section without TLS or login means, if the defaults say nothing.
_UNWRITTEN: dict[str, Any] = {"kind": "mosquitto", "tls": FleetTls(), "login": None, "api_login": None}
_NOTES = {
    "kind": "mosquitto, emqx, nats, rabbitmq",
    "tls": 'false: plain text; true: the certificates of the system; or { ca = "ca.crt" }',
    "login": "false: anonymous",
    "api_login": "of the admin API",
    "position": "latitude, longitude",
    "capacity": "messages per second",
    "subscriptions": "mosquitto.db, a log, or the URL of an admin API; or a list",
    "config": "the broker's own configuration, for broadloom doctor",
    "leaf_listen": "where NATS listens for leaf nodes",
    "account": "the account of NATS clients",
    "carry": "topic filters; default: everything that clients want",
    "publishers": 'any broker can publish any topic; or "observed"',
    "controller": "where agents reach the controller",
    "key_file": "the secret of the fleet, the same on every machine",
    "max_degree": "the most links per broker",
}


def fleet_text(fleet: Fleet, folder: Path) -> str:
    """The text of a fleet file in a folder; `Fleet.load` gives an equal fleet."""
    brokers = list(fleet.brokers.values())
    shared = {name: _most_common(brokers, name) for name in _UNWRITTEN}
    lines = [_HEAD, "[defaults]"]
    for name, value in shared.items():
        if name != "api_login" or value is not None:
            lines.append(_line(name, _value(value, folder), note=True))
    for number, broker in enumerate(brokers):
        lines += ["", f"[brokers.{_key(broker.name)}]", *_broker_lines(broker, shared, folder, not number)]
    return "\n".join([*lines, "", *_link_lines(fleet.links), *_live_lines(fleet.live, folder), ""])


def _most_common(brokers: list[FleetBroker], name: str) -> Any:
    """The value of a field that most brokers have; what a missing one means, if no two have the same."""
    values: list[Hashable] = [getattr(broker, name) for broker in brokers]
    value, count = Counter(values).most_common(1)[0]
    return value if count > 1 or len(brokers) == 1 else _UNWRITTEN[name]


def _broker_lines(broker: FleetBroker, shared: dict[str, Any], folder: Path, note: bool) -> Iterable[str]:
    yield _line("address", _text(broker.address))
    for name, default in shared.items():
        if getattr(broker, name) != default:
            yield _line(name, _value(getattr(broker, name), folder))
    if broker.site is not None:
        yield _line("site", _text(broker.site))
    if broker.position is not None:
        yield _line("position", f"[{broker.position[0]!r}, {broker.position[1]!r}]", note)
    if broker.capacity is not None:
        yield _line("capacity", repr(broker.capacity), note)
    sources = [_path(source, folder) for source in broker.subscription_sources()]
    if sources:
        several = isinstance(broker.subscriptions, tuple)
        yield _line("subscriptions", f"[{', '.join(sources)}]" if several else sources[0], note)
    if broker.config is not None:
        yield _line("config", _path(broker.config, folder), note)
    if broker.leaf_listen is not None:
        yield _line("leaf_listen", _text(broker.leaf_listen), note)
    if broker.account is not None:
        yield _line("account", _text(broker.account), note)
    if broker.hooks != FleetHooks():
        yield _line("hooks", _hooks(broker.hooks, folder))


def _hooks(hooks: FleetHooks, folder: Path) -> str:
    """The commands of a broker, in TOML."""
    entries = [] if hooks.path is None else [f"path = {_path(hooks.path, folder)}"]
    for name in COMMANDS:
        words = getattr(hooks, name)
        if words is not None:
            entries.append(f"{name} = [{', '.join(map(_text, words))}]")
    if hooks.seconds != FleetHooks.seconds:
        entries.append(f"seconds = {hooks.seconds!r}")
    return f"{{ {', '.join(entries)} }}"


def _link_lines(links: FleetLinks) -> Iterable[str]:
    yield "[links]"
    yield _line("carry", f"[{', '.join(map(_text, links.carry))}]", note=True)
    yield _line("publishers", _text(links.publishers), note=links.publishers == "anywhere")
    if links.max_degree is not None:
        yield _line("max_degree", str(links.max_degree), note=True)


def _live_lines(live: FleetLive, folder: Path) -> Iterable[str]:
    """The section of agents and controller, with the values that are not the default."""
    if live == FleetLive():
        return
    yield ""
    yield "[live]"
    yield _line("controller", _text(live.controller), note=True)
    if live.listen is not None:
        yield _line("listen", _text(live.listen))
    if live.tls is not None or live.plain:
        yield _line("tls", _value(live.tls, folder))
    if live.key_file is not None:
        yield _line("key_file", _path(live.key_file, folder), note=True)
    if live.key_env is not None:
        yield _line("key_env", _text(live.key_env))
    for name in ("absent", "patience", "window", "hop_bytes", "agent_bytes"):
        value = getattr(live, name)
        if value != getattr(FleetLive, name):
            yield _line(name, _text(value) if isinstance(value, str) else repr(value))


def _line(name: str, value: str, note: bool = False) -> str:
    """A line of a section, with a comment if wished."""
    return f"{name} = {value}  # {_NOTES[name]}" if note and name in _NOTES else f"{name} = {value}"


def _value(value: Any, folder: Path) -> str:
    """A value of the defaults or of a broker, in TOML."""
    if value is None:
        return "false"
    if isinstance(value, FleetTls):
        files = {name: getattr(value, name) for name in ("ca", "certificate", "key")}
        entries = [f"{name} = {_path(file, folder)}" for name, file in files.items() if file is not None]
        return f"{{ {', '.join(entries)} }}" if entries else "true"
    if isinstance(value, FleetLogin):
        if value.password_file is not None:
            secret = f"password_file = {_path(value.password_file, folder)}"
        else:
            secret = f"password_env = {_text(value.password_env or '')}"
        return f"{{ user = {_text(value.user)}, {secret} }}"
    return _text(str(value))


def _path(text: str, folder: Path) -> str:
    """A path in TOML, relative to the folder if it is below it; URLs stay as they are."""
    if "://" in text:
        return _text(text)
    path = Path.cwd() / text
    inner = path.relative_to(folder) if path.is_relative_to(folder) and path != folder else path
    # A leading ~ of a file's own name would mean the home folder.
    return _text(f"./{inner.as_posix()}" if inner.as_posix().startswith("~") else inner.as_posix())


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _text(name)


def _text(value: str) -> str:
    """A basic string of TOML."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")

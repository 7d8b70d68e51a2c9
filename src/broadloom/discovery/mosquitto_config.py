"""Reader of mosquitto.conf, with the files that it includes: settings that matter to links, and bridges."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from broadloom.errors import error_from_os
from broadloom.mqtt.endpoint import Address

MQTT_PORT = 1883
_BRIDGE_OPTIONS = ("address", "addresses", "topic", "remote_clientid", "clientid", "notifications")


@dataclass
class ConfiguredBridge:
    """A section `connection` of mosquitto.conf.

    Attributes:
        name: its name.
        addresses: the brokers that it connects to.
        filters: the topic filters that it carries, in either direction, with the local prefix.
        client: the client id at the other broker, if it is set.
        file: the file that has it.
    """

    name: str
    addresses: list[Address] = field(default_factory=list)
    filters: list[str] = field(default_factory=list)
    client: str | None = None
    file: str = ""


@dataclass(frozen=True)
class MosquittoConfig:
    """Content of mosquitto.conf and the files that it includes.

    Attributes:
        path: the file.
        options: the values of each option outside of bridges, in order.
        bridges: the bridges.
    """

    path: Path
    options: Mapping[str, list[str]]
    bridges: tuple[ConfiguredBridge, ...]

    def last(self, option: str, default: str) -> str:
        """The value of an option that is set last."""
        return (self.options.get(option) or [default])[-1]


def read_mosquitto_config(path: str | Path) -> MosquittoConfig:
    """Read mosquitto.conf, and the files of its `include_dir`.

    Raises:
        InputError: a file does not exist.
        StorageError: a file cannot be read.
    """
    file = Path(path)
    options: dict[str, list[str]] = {}
    bridges: list[ConfiguredBridge] = []
    for source, name, value in _lines(file):
        if name == "connection":
            bridges.append(ConfiguredBridge(value, file=str(source)))
        elif bridges and name in _BRIDGE_OPTIONS:
            _add(bridges[-1], name, value)
        else:
            options.setdefault(name, []).append(value)
    return MosquittoConfig(file, options, tuple(bridges))


def _lines(file: Path, is_included: bool = False) -> Iterator[tuple[Path, str, str]]:
    """The options of a file and of those that it includes: the file, the name and the value of each."""
    try:
        lines = file.read_text(errors="replace").splitlines()
    except OSError as error:
        raise error_from_os(f"{file} cannot be read", error) from error
    for line in lines:
        name, _, value = line.strip().partition(" ")
        if not name or name.startswith("#"):
            continue
        if name == "include_dir" and not is_included:
            folder = file.parent / value.strip()
            for inner in sorted(folder.glob("*.conf")):
                yield from _lines(inner, is_included=True)
        else:
            yield file, name, value.strip()


def _add(bridge: ConfiguredBridge, name: str, value: str) -> None:
    """Add an option to a bridge."""
    if name in ("address", "addresses"):
        bridge.addresses += [_address(text) for text in value.split()]
    elif name == "topic":
        pattern, *rest = value.split()
        prefix = rest[2].strip('"') if len(rest) > 2 else ""
        bridge.filters.append(prefix + pattern.strip('"'))
    elif name in ("remote_clientid", "clientid"):
        bridge.client = value


def _address(text: str) -> Address:
    """The address of a bridge; mosquitto writes an IPv6 host without brackets."""
    host, _, port = text.rpartition(":")
    if host and port.isdecimal():
        return Address(f"[{host}]" if ":" in host and not host.startswith("[") else host, int(port))
    return Address(text, MQTT_PORT)

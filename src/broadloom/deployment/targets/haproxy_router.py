"""HAProxy target: a router in front of brokers that sends each MQTT client to the broker of a map.

HAProxy reads the client id of CONNECT and looks it up in a map, which its runtime socket changes. A client
that the map lacks goes to the router's own broker. While a client moves, the map sends it to the *relay* of
the agent that moves clients, and to its new broker if the relay does not answer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import PurePosixPath
from urllib.parse import quote

from broadloom._version import VERSION
from broadloom.checks import check_line
from broadloom.deployment.deployment_inputs import safe_name
from broadloom.deployment.fleet_file import Fleet, FleetBroker
from broadloom.deployment.link_access import SYSTEM_CERTIFICATES
from broadloom.errors import InputError
from broadloom.mqtt.endpoint import Address

TARGET = "haproxy"
MAP_FILE = "clients.map"
RELAY_PORT = 8781
FOLDER = "/etc/haproxy"
SOCKET = "/run/haproxy/admin.sock"
CERTIFICATE = f"{FOLDER}/server.pem"
_WORD = re.compile(r"[\w/.+=@:~-]+")
MOST_CONNECTIONS = 20_000  # of a router
SERVED, MOVING = "broker-", "moving-"  # prefixes of backends
_CONFIG = """\
# Router of MQTT clients next to broker {broker}, written by broadloom. Install it as {folder}/haproxy.cfg.
# Clients that {map} lacks go to {broker}. Reload HAProxy at will: the map file is kept up to date.
global
  stats socket {socket} mode 600 level admin
defaults
  mode tcp
  timeout connect 5s
  timeout check 3s
  # Until a client has sent CONNECT and its broker is found; then the tunnel's time counts.
  timeout client 15s
  timeout server 15s
  timeout tunnel 20h
  option clitcpka
  option srvtcpka
  retries 2
  option redispatch 1
frontend mqtt
  maxconn {most}
  bind {bind}
  tcp-request inspect-delay 10s
  tcp-request content reject unless {{ req.payload(0,0),mqtt_is_valid }}
  use_backend %[req.payload(0,0),mqtt_field_value(connect,client_identifier),url_enc,map({map},{default})]
  # A client without a client id
  default_backend {default}
"""


@dataclass(frozen=True)
class RouterSettings:
    """Settings of routers.

    Attributes:
        listen: `host:port`, or `port` for all addresses, at which routers accept clients.
        certificate: the file with the routers' certificate and key; None: clients connect in plain text.
        relay: the address at which the agent that moves clients accepts those that move.
        relay_ca: the file of certificates that routers trust at the relay, in `folder` unless its path is
            absolute; None: the relay is in plain text, and on the same machine.
        socket: the path of the runtime socket.
        folder: the folder of the map on the routers' machines.
    """

    listen: str = "8883"
    certificate: str | None = CERTIFICATE
    relay: str = f"127.0.0.1:{RELAY_PORT}"
    relay_ca: str | None = None
    socket: str = SOCKET
    folder: str = FOLDER

    def __post_init__(self) -> None:
        for name in ("certificate", "relay_ca", "socket", "folder"):
            if getattr(self, name) is not None:
                _check_word(getattr(self, name), name)
        if not (self.listen.isascii() and self.listen.isdecimal()):
            Address.parse(self.listen, what="listen")
        relay = Address.parse(self.relay, what="relay")
        if self.relay_ca is None and not _is_loopback(relay.hostname):
            raise InputError(
                f"relay is {self.relay!r}, on another machine, so it must have TLS; give relay_ca as well"
            )


def _check_word(path: str, name: str) -> str:
    """Raise unless HAProxy reads a path as one word, as it is."""
    if not _WORD.fullmatch(check_line(path, name)):
        raise InputError(
            f"{name} is {path!r}, which HAProxy would not read as a path; give one of letters, digits and "
            "/._-+=@:~ only"
        )
    return path


def served_by(broker: str) -> str:
    """The name of the backend of a broker, which is a value of the map.

    Examples:
        >>> served_by("rome"), served_by("eu/1")
        ('broker-rome', 'broker-eu:2F1')
    """
    return SERVED + _backend(broker)


def moving_to(broker: str) -> str:
    """The name of the backend of clients that move to a broker."""
    return MOVING + _backend(broker)


def map_key(client: str) -> str:
    """A client id as a key of the map: HAProxy encodes it in the same way before it looks it up.

    Examples:
        >>> map_key("meter 1/a+ü")
        'meter%201%2Fa%2B%C3%BC'
    """
    return quote(client, safe="")


def files(fleet: Fleet, settings: RouterSettings) -> dict[str, str]:
    """One configuration per broker, for a router next to it, and the map.

    Raises:
        InputError: a broker does not speak MQTT by itself, or HAProxy cannot verify its certificate.

    Examples:
        >>> fleet = Fleet([FleetBroker("rome", "rome.example.org"), FleetBroker("oslo", "oslo.example.org")])
        >>> sorted(files(fleet, RouterSettings()))
        ['clients.map', 'router-oslo.cfg', 'router-rome.cfg']
    """
    for broker in fleet.brokers.values():
        if broker.kind == "nats":
            raise InputError(f"broker {broker.name!r} is a NATS server; a router of MQTT clients has none")
    texts = {f"router-{safe_name(name)}.cfg": _config(fleet, name, settings) for name in fleet.brokers}
    return texts | {MAP_FILE: map_text({})}


def router_record(fleet: Fleet, settings: RouterSettings) -> dict[str, object]:
    """The record of an export of routers."""
    return {
        "broadloom": VERSION,
        "target": TARGET,
        "brokers": list(fleet.brokers),
        "tls": settings.certificate is not None,
        "relay": settings.relay,
    }


def map_text(backends: Mapping[str, str]) -> str:
    """The text of a map file.

    Args:
        backends: the backend of each client.

    Examples:
        >>> print(map_text({"meter 1": served_by("rome")}).splitlines()[-1])
        meter%201 broker-rome
    """
    lines = ["# Client ids, percent-encoded, and where HAProxy sends them; changed by broadloom."]
    lines += [f"{map_key(client)} {backend}" for client, backend in sorted(backends.items())]
    return "\n".join(lines) + "\n"


def read_map(text: str) -> dict[str, str]:
    """The backend of each percent-encoded client id in a map file."""
    rows = [line.split() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return {row[0]: row[1] for row in rows if len(row) == 2}


def _backend(broker: str) -> str:
    return safe_name(broker).replace("%", ":").replace("~", ":7E")


def _config(fleet: Fleet, broker: str, settings: RouterSettings) -> str:
    address = f":{settings.listen}" if settings.listen.isdecimal() else settings.listen
    bind = address if settings.certificate is None else f"{address} ssl crt {settings.certificate}"
    head = _CONFIG.format(
        broker=ascii(broker),
        folder=settings.folder,
        map=f"{settings.folder}/{MAP_FILE}",
        socket=settings.socket,
        bind=bind,
        most=MOST_CONNECTIONS,
        default=served_by(broker),
    )
    relay_tls = ""
    if settings.relay_ca is not None:
        host = Address.parse(settings.relay, what="relay").hostname
        ca = settings.relay_ca
        if not ca.startswith("@"):  # such as @system-ca, a name of HAProxy's
            ca = str(PurePosixPath(settings.folder, ca))
        relay_tls = f" ssl verify required ca-file {ca}{_checked_name(host)} no-check-ssl"
    watched = "check inter 500ms fall 1 rise 1 observe layer4 error-limit 1 on-error mark-down"
    parts = [head]
    for one in fleet.brokers.values():
        server = f"  server broker {_server(one)}"
        parts.append(f"backend {served_by(one.name)}\n{server}\n")
        parts.append(
            f"backend {moving_to(one.name)}\n"
            f"  server relay {settings.relay}{relay_tls} {watched}\n"
            f"{server} backup\n"
        )
    return "\n".join(parts)


def _server(broker: FleetBroker) -> str:
    """Address and TLS of a broker, as HAProxy connects to it; a name is looked up again when it fails.

    HAProxy compares certificates with host names only, and not with IP addresses.
    """
    address = f"{broker.host_and_port()} init-addr last,libc,none"
    if broker.tls is None:
        return address
    host = broker.host_and_port().hostname
    ca = broker.tls.ca or f"{SYSTEM_CERTIFICATES}/ca-certificates.crt"
    _check_word(ca, f"ca of broker {broker.name!r}")
    tls = f"{address} ssl verify required ca-file {ca}"
    if not _is_ip(host):
        return f"{tls}{_checked_name(host)}"
    if broker.tls.ca is None:
        raise InputError(
            f"broker {broker.name!r} has the address {host} and TLS, but HAProxy cannot find an IP address "
            "in a certificate; give a host name, or the ca that signs the certificates of brokers only"
        )
    return tls


def _checked_name(host: str) -> str:
    """Options that compare a certificate with a host name; HAProxy cannot do so with IP addresses."""
    return "" if _is_ip(host) else f" verifyhost {host} sni str({host})"


def _is_loopback(host: str) -> bool:
    return host == "localhost" or (_is_ip(host) and ip_address(host).is_loopback)


def _is_ip(host: str) -> bool:
    try:
        return bool(ip_address(host))
    except ValueError:
        return False

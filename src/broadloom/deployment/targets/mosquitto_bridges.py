"""Mosquitto target: one file of bridges per broker, to be included from its own configuration.

A bridge with MQTT 3.1.1 and `try_private` sends a message once where topic filters overlap, does not return
it to its sender, and keeps its session over a restart; with MQTT 5 a bridge would lose its session.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from broadloom.deployment.deployment_inputs import Settings, link_name, safe_name, variable_name
from broadloom.deployment.fleet_file import FleetBroker
from broadloom.deployment.wiring import WiredLink, Wiring
from broadloom.errors import InputError
from broadloom.mqtt.endpoint import Address, Login, login_from_environment
from broadloom.mqtt.reserved_topics import CONTROL_ROOT, INTERNAL_PREFIX, MOVE_AGENT

PORT, TLS_PORT = 1883, 8883
CERTIFICATES = "/etc/mosquitto/certs"
CERTIFICATE_FILES = ("ca.crt", "broker.crt", "broker.key")
TLS_OPTIONS = ("cafile", "certfile", "keyfile")
SYSTEM_CERTIFICATES = "/etc/ssl/certs"
# Prefix of topics that arrive over a link of a full mesh and must not be forwarded; no wildcard matches it.
MESH = "$mesh/"
ACL_FILE = "migration-acl.conf"
LINK_AGENT = "broadloom-links"

_GLOBAL = """\
# So that a restart loses nothing: sessions and queues are kept on disk, and queues have no limit.
persistence true
autosave_interval 1
max_queued_messages 0
max_inflight_messages 200
"""
_BRIDGE = """\
bridge_protocol_version mqttv311
try_private true
cleansession false
notifications true
notifications_local_only true
restart_timeout 1 30
"""
_ACL_RULES = """\
# Rights on the control topics by which clients are moved; written by broadloom.
# Put these lines at the end of each broker's acl_file. Each client logs in with its own name: the listener of
# clients has `use_username_as_clientid true`, and the agent has a separate listener without it.
user {agent}
topic readwrite {root}/#
topic readwrite {own}to/#
topic read #

# Links carry all other topics, and messages of their agents, which no `#` of another client matches.
user {links}
topic readwrite #
topic readwrite {own}#
topic deny {root}/#
topic deny {own}to/#

# A client sends only under its own name, and receives only what is addressed to it.
pattern write {root}/from/%u/+
pattern read {root}/to/%u/+
pattern read {own}to/%u/+
"""


def files(wiring: Wiring, settings: Settings) -> dict[str, str]:
    r"""The file of each broker, by name.

    Raises:
        InputError: a bridge cannot carry a topic.

    Examples:
        >>> link = WiredLink("a", "b", ("x",), ("x",))
        >>> wiring = Wiring(("a", "b"), {"a": ("x",), "b": ("x",)}, {}, (link,))
        >>> print(files(wiring, Settings(tls=False))["broker-a.conf"].split("\n\n")[1])
        connection broadloom-a:b
        address b:1883
        bridge_protocol_version mqttv311
        try_private true
        cleansession false
        notifications true
        notifications_local_only true
        restart_timeout 1 30
        local_clientid l.broadloom-a:b
        remote_clientid r.broadloom-a:b
        topic x both 1
        <BLANKLINE>
    """
    return {
        f"broker-{safe_name(broker)}.conf": broker_file(wiring, broker, settings) for broker in wiring.brokers
    }


def broker_file(wiring: Wiring, broker: str, settings: Settings, bridge: str = _BRIDGE) -> str:
    """The configuration of one broker: global settings, and a connection for each link that it owns."""
    own = [link for link in wiring.links if link.owner == broker and (link.out or link.into)]
    incoming = [link for link in wiring.links if link.peer == broker]
    head = [f"# Links of broker {broker!r}, written by broadloom; include it from mosquitto.conf.\n"]
    head += [f"# {link.owner!r} links here as {remote_id(link)}\n" for link in incoming]
    connections = [_connection(link, settings, bridge, wiring.relays) for link in own]
    return "\n".join(["".join(head) + _GLOBAL, *connections])


def broker_address(settings: Settings, broker: str) -> Address:
    """The address of a broker, with MQTT's default ports."""
    return settings.host_and_port(broker, TLS_PORT if settings.tls else PORT)


def link_login(settings: Settings) -> Login:
    """The login of links: the certificates of a broker, and the user of the environment with credentials.

    Raises:
        InputError: credentials are required, but missing in the environment.
    """
    login = login_from_environment() if settings.credentials else Login()
    if not settings.tls:
        return login
    folder = Path(settings.certificates or CERTIFICATES)
    ca, certificate, key = (str(folder / name) for name in CERTIFICATE_FILES)
    return replace(login, ca=ca, certificate=(certificate, key))


def local_id(link: WiredLink) -> str:
    """The client id of a link at its owner."""
    return f"l.{link_name(link.owner, link.peer)}"


def remote_id(link: WiredLink) -> str:
    """The client id of a link at its peer."""
    return f"r.{link_name(link.owner, link.peer)}"


def _connection(link: WiredLink, settings: Settings, bridge: str, relays: bool) -> str:
    address = broker_address(settings, link.peer)
    lines = [f"connection {link_name(link.owner, link.peer)}", f"address {address}", bridge.rstrip("\n")]
    lines += [f"local_clientid {local_id(link)}", f"remote_clientid {remote_id(link)}"]
    if link.peer in settings.brokers:
        lines += _access(settings.brokers[link.peer], settings)
    else:
        if settings.tls:
            folder = settings.certificates or CERTIFICATES
            options = zip(TLS_OPTIONS, CERTIFICATE_FILES, strict=True)
            lines += [f"bridge_{option} {folder}/{file}" for option, file in options]
        if settings.credentials:  # mosquitto does not read the environment; `envsubst` fills these in
            lines += ["remote_username ${BROADLOOM_USER}", "remote_password ${BROADLOOM_PASSWORD}"]
    return "\n".join([*lines, *_topics(link, settings.qos, relays)]) + "\n"


def _access(broker: FleetBroker, settings: Settings) -> Iterable[str]:
    """The TLS files and the login by which links connect to a broker of a fleet."""
    if broker.tls is not None:
        files = (broker.tls.ca, broker.tls.certificate, broker.tls.key)
        if broker.tls.ca is None:
            yield f"bridge_capath {SYSTEM_CERTIFICATES}"
        for option, file, own in zip(TLS_OPTIONS, CERTIFICATE_FILES, files, strict=True):
            if own is not None:
                path = own if settings.certificates is None else f"{settings.certificates}/{file}"
                if not path.isprintable():
                    raise InputError(
                        f"the path {path!r} of broker {broker.name!r} has a line break; rename it"
                    )
                yield f"bridge_{option} {path}"
    if broker.login is not None:
        yield f"remote_username {broker.login.user}"
        yield f"remote_password {settings.passwords.get(broker.name) or password_reference(broker.name)}"


def password_reference(broker: str) -> str:
    """The text in exported files for which the password of a broker has to be put.

    Examples:
        >>> password_reference("eu-1")
        '${BROADLOOM_PASSWORD_eu_2D_1}'
    """
    return f"${{BROADLOOM_PASSWORD_{variable_name(broker)}}}"


def _topics(link: WiredLink, qos: int, relays: bool) -> Iterable[str]:
    for text in sorted({*link.out, *link.into}):
        if any(char.isspace() or not char.isprintable() for char in text) or text.startswith('"'):
            raise InputError(
                f"topic {text!r} has a space or a quote, and mosquitto's bridges accept neither; rename it"
            )
        directions = [name for name, filters in (("out", link.out), ("in", link.into)) if text in filters]
        if relays:
            yield f"topic {text} {'both' if len(directions) == 2 else directions[0]} {qos}"
        else:
            prefixes = {"out": f'"" {MESH}', "in": f'{MESH} ""'}
            yield from (f"topic {text} {name} {qos} {prefixes[name]}" for name in directions)


def read_links(files: Mapping[str, str], wiring: Wiring) -> list[WiredLink]:
    """The links in exported files, so that checks see what the files say."""
    broker_of = {safe_name(broker): broker for broker in wiring.brokers}
    links = []
    for name, text in files.items():
        owner = broker_of[name.removeprefix("broker-").removesuffix(".conf")]
        for part in text.split("\nconnection ")[1:]:
            title, *lines = part.splitlines()
            peer = broker_of[title.rpartition(":")[2]]
            topics = [line.split()[1:3] for line in lines if line.startswith("topic ")]
            out = tuple(topic for topic, direction in topics if direction in ("out", "both"))
            into = tuple(topic for topic, direction in topics if direction in ("in", "both"))
            links.append(WiredLink(owner, peer, out, into))
    return links


def acl_rules(agent: str = MOVE_AGENT, links: str = LINK_AGENT) -> str:
    """The access rules of the agents' control topics, for each broker's own `acl_file`.

    Args:
        agent: the user name of the agent that moves clients.
        links: the user name of the agent that holds links.

    Examples:
        >>> print(acl_rules("mover").splitlines()[3])
        user mover
        >>> "topic readwrite $broadloom/#" in acl_rules()
        True
    """
    return _ACL_RULES.format(agent=agent, links=links, own=INTERNAL_PREFIX, root=CONTROL_ROOT)

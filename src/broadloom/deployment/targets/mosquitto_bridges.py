"""Mosquitto target: one file of bridges per broker, to be included from its own configuration.

A bridge with MQTT 3.1.1 and `try_private` sends a message once where topic filters overlap (unless the broker
has `allow_duplicate_messages true`), does not return it to its sender, and keeps its session over a restart;
with MQTT 5 a bridge would lose its session.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from broadloom.deployment.deployment_inputs import Settings, link_name, safe_name
from broadloom.deployment.link_access import (
    CERTIFICATE_FILES,
    SYSTEM_CERTIFICATES,
    link_access,
    uri_address,
)
from broadloom.deployment.wiring import WiredLink, Wiring
from broadloom.errors import InputError
from broadloom.mqtt.endpoint import Address, Login, login_from_environment
from broadloom.mqtt.reserved_topics import CONTROL_ROOT, INTERNAL_PREFIX, MOVE_AGENT

PORT, TLS_PORT = 1883, 8883
CERTIFICATES = "/etc/mosquitto/certs"
TLS_OPTIONS = ("cafile", "certfile", "keyfile")
# Prefix of topics that arrive over a link of a full mesh and must not be forwarded; no wildcard matches it.
MESH = "$mesh/"
ACL_FOLDER = "acl"  # not in a folder of which mosquitto reads all files
ACL_FILE = f"{ACL_FOLDER}/migration.acl"
LINK_AGENT = "broadloom-links"

# Settings of the whole broker that links need to lose nothing. They concern other clients too, so they are
# the operator's: files list them as advice, and `doctor` checks them.
ADVICE = (
    ("persistence true", "a restart keeps what waits for a link"),
    ("autosave_interval 60", "a crash loses at most the last minute of it"),
    ("max_queued_messages 100000", "so many messages can wait for a link; the default is 1000"),
    ("max_inflight_messages 200", "links over long distances are faster; the default is 20"),
    ("allow_duplicate_messages false", "links bring a message once; since 2.1 the default is true"),
)
_HEAD = """\
# Links of broker {broker}, written by broadloom. Copy this file to its machine, into the folder that
# `include_dir` in its mosquitto.conf names. It contains links and no setting of the broker itself.
# So that links lose nothing, mosquitto.conf should have these lines, which `broadloom doctor` checks:
{advice}
"""
# The state of a link is at its owner, in $SYS/broker/connection/REMOTE_CLIENTID/state: 1 or 0.
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
topic readwrite {own}from/#
topic readwrite {own}to/#
topic read #
topic read $SYS/#

# Links carry all other topics, and messages of their agents, which no `#` of another client matches.
user {links}
topic readwrite #
topic readwrite {own}#
topic deny {root}/#
topic deny {own}from/#
topic deny {own}to/#

# A client sends only under its own name, and receives only what is addressed to it.
pattern write {own}from/%u/+
pattern read {own}to/%u/+

# Ordinary clients receive marks that the agent's relay leaves out.
pattern read {own}to/+/fence
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
    """The configuration of one broker: a connection for each link that it owns, and advice in comments."""
    own = [link for link in wiring.links if link.owner == broker and (link.out or link.into)]
    incoming = [link for link in wiring.links if link.peer == broker]
    width = max(len(line) for line, _ in ADVICE)
    advice = "\n".join(f"#   {line:{width}}  # {reason}" for line, reason in ADVICE)
    head = [_HEAD.format(broker=ascii(broker), advice=advice)]
    head += [f"# {link.owner!a} links here as {remote_id(link)}\n" for link in incoming]
    connections = [_connection(link, settings, bridge, wiring.relays) for link in own]
    return "\n".join(["".join(head), *connections])


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
    # Mosquitto takes an IPv6 address without brackets; the port is after the last colon.
    address = uri_address(broker_address(settings, link.peer)).replace("[", "").replace("]", "")
    lines = [f"connection {link_name(link.owner, link.peer)}", f"address {address}", bridge.rstrip("\n")]
    lines += [f"local_clientid {local_id(link)}", f"remote_clientid {remote_id(link)}"]
    lines += _access(link.peer, settings)
    return "\n".join([*lines, *_topics(link, settings.qos, relays)]) + "\n"


def _access(broker: str, settings: Settings) -> Iterable[str]:
    """The TLS files and the login by which links connect to a broker."""
    access = link_access(settings, broker, CERTIFICATES)
    if access.tls and access.ca is None:
        yield f"bridge_capath {SYSTEM_CERTIFICATES}"
    for option, path in zip(TLS_OPTIONS, (access.ca, access.certificate, access.key), strict=True):
        if path is not None:
            if path != path.strip():
                raise InputError(f"the path {path!r} begins or ends with a space; rename it")
            yield f"bridge_{option} {path}"
    if access.user is not None:
        yield f"remote_username {access.user}"
        yield f"remote_password {access.password}"


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

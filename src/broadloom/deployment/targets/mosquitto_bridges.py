"""Mosquitto: a file of bridges a broker, to be included beside its own configuration.

MQTT 3.1.1 with `try_private` sends a message once where filters overlap, sends nothing back where it came
from, and keeps its session over a restart; as MQTT 5 a bridge would lose its session.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from broadloom.deployment.deployment_inputs import Settings, link_name, safe
from broadloom.deployment.wiring import WiredLink, Wiring
from broadloom.errors import InputError
from broadloom.mqtt.reserved_topics import CONTROL_ROOT, INTERNAL_PREFIX, MOVE_AGENT

PORT, TLS_PORT = 1883, 8883
CERTIFICATES = "/etc/mosquitto/certs"
# What comes over a link of a full mesh, which must not be passed on; no wildcard matches it.
MESH = "$mesh/"

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
notifications false
restart_timeout 1 30
"""


def files(wiring: Wiring, settings: Settings) -> dict[str, str]:
    r"""The file of each broker, by name.

    Raises:
        InputError: a topic that a bridge cannot carry.

    Examples:
        >>> link = WiredLink("a", "b", ("x",), ("x",))
        >>> wiring = Wiring(("a", "b"), {"a": ("x",), "b": ("x",)}, {}, (link,))
        >>> print(files(wiring, Settings(tls=False))["broker-a.conf"].split("\n\n")[1])
        connection broadloom-a:b
        address b:1883
        bridge_protocol_version mqttv311
        try_private true
        cleansession false
        notifications false
        restart_timeout 1 30
        local_clientid l.broadloom-a:b
        remote_clientid r.broadloom-a:b
        topic x both 1
        <BLANKLINE>
    """
    return {f"broker-{safe(broker)}.conf": broker_file(wiring, broker, settings) for broker in wiring.brokers}


def broker_file(wiring: Wiring, broker: str, settings: Settings, bridge: str = _BRIDGE) -> str:
    """The configuration of one broker: settings, and a connection for each link that it owns."""
    own = [link for link in wiring.links if link.owner == broker and (link.out or link.into)]
    theirs = [link for link in wiring.links if link.peer == broker]
    parts = [f"# Links of broker {broker!r}, written by broadloom; include it from mosquitto.conf.\n"]
    parts += [f"# {link.owner!r} links here as {remote_id(link)}\n" for link in theirs]
    connections = [_connection(link, settings, bridge, wiring.relays) for link in own]
    return "\n".join(["".join(parts) + _GLOBAL, *connections])


def local_id(link: WiredLink) -> str:
    """The client that a link is at its owner."""
    return f"l.{link_name(link.owner, link.peer)}"


def remote_id(link: WiredLink) -> str:
    """The client that a link is at its peer."""
    return f"r.{link_name(link.owner, link.peer)}"


def _connection(link: WiredLink, settings: Settings, bridge: str, relays: bool) -> str:
    host, port = settings.place(link.peer, TLS_PORT if settings.tls else PORT)
    lines = [f"connection {link_name(link.owner, link.peer)}", f"address {host}:{port}", bridge.rstrip("\n")]
    lines += [f"local_clientid {local_id(link)}", f"remote_clientid {remote_id(link)}"]
    if settings.tls:
        folder = settings.certificates or CERTIFICATES
        files = (("cafile", "ca.crt"), ("certfile", "broker.crt"), ("keyfile", "broker.key"))
        lines += [f"bridge_{kind} {folder}/{file}" for kind, file in files]
    if settings.credentials:  # mosquitto reads no environment, so `envsubst` fills these in
        lines += ["remote_username ${BROADLOOM_USER}", "remote_password ${BROADLOOM_PASSWORD}"]
    return "\n".join([*lines, *_topics(link, settings.qos, relays)]) + "\n"


def _topics(link: WiredLink, qos: int, relays: bool) -> Iterable[str]:
    for text in sorted({*link.out, *link.into}):
        if any(char.isspace() or not char.isprintable() for char in text) or text.startswith('"'):
            raise InputError(
                f"topic {text!r} has a space or a quote, and mosquitto's bridges take neither; rename it"
            )
        ways = [way for way, filters in (("out", link.out), ("in", link.into)) if text in filters]
        if relays:
            yield f"topic {text} {'both' if len(ways) == 2 else ways[0]} {qos}"
        else:
            prefixes = {"out": f'"" {MESH}', "in": f'{MESH} ""'}
            yield from (f"topic {text} {way} {qos} {prefixes[way]}" for way in ways)


def read_links(written: Mapping[str, str], wiring: Wiring) -> list[WiredLink]:
    """The links that files say, for a check of what is written rather than of what was meant."""
    broker_of = {safe(broker): broker for broker in wiring.brokers}
    links = []
    for name, text in written.items():
        owner = broker_of[name.removeprefix("broker-").removesuffix(".conf")]
        for part in text.split("\nconnection ")[1:]:
            title, *lines = part.splitlines()
            peer = broker_of[title.rpartition(":")[2]]
            topics = [line.split()[1:3] for line in lines if line.startswith("topic ")]
            out, into = (tuple(text for text, way in topics if way in (one, "both")) for one in ("out", "in"))
            links.append(WiredLink(owner, peer, out, into))
    return links


ACL_FILE = "migration-acl.conf"
LINK_AGENT = "broadloom-links"

_RULES = """\
# Who may use the control topics by which clients are moved; written by broadloom.
# Put these lines at the end of each broker's acl_file. LabClients log in by their own names:
# their listener has `use_username_as_clientid true`, and the agent has a listener of its own without it.
user {agent}
topic readwrite {root}/#
topic readwrite {own}to/#
topic read #

# The link agent carries all topics but those, and probes of its own, which no `#` of anybody else's matches.
user {links}
topic readwrite #
topic readwrite {own}#
topic deny {root}/#
topic deny {own}to/#

# A client speaks for itself only, and hears only what is said to it.
pattern write {root}/from/%u/+
pattern read {root}/to/%u/+
pattern read {own}to/%u/+
"""


def acl_rules(agent: str = MOVE_AGENT, links: str = LINK_AGENT) -> str:
    """The rules, for agents that log in by these names.

    Args:
        agent: the one that moves clients.
        links: the one that holds links.

    Examples:
        >>> print(acl_rules("mover").splitlines()[3])
        user mover
        >>> "topic readwrite $broadloom/#" in acl_rules()
        True
    """
    return _RULES.format(agent=agent, links=links, own=INTERNAL_PREFIX, root=CONTROL_ROOT)

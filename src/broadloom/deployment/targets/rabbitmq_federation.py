"""RabbitMQ target: one list of HTTP API calls per broker, for exchanges that are federated along the links.

Each link has its own topic exchange at both ends, and each of the two has the other as its upstream.
Bindings with `amq.topic`, the exchange of MQTT clients, select the topics of the link. Nothing restarts.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, unquote

from broadloom.deployment.deployment_inputs import Settings, safe_name
from broadloom.deployment.link_access import SYSTEM_CA_FILE, link_access, uri_address
from broadloom.deployment.targets.api_calls import Call as Call
from broadloom.deployment.targets.api_calls import CallsAt as CallsAt
from broadloom.deployment.targets.api_calls import as_text as as_text
from broadloom.deployment.wiring import Hop, WiredLink, Wiring
from broadloom.errors import InputError

PORT, TLS_PORT = 5672, 5671
CERTIFICATES = "/etc/rabbitmq/certs"
CLIENTS = "amq.topic"  # the exchange of MQTT clients
LONGEST_KEY = 255  # bytes; limit of AMQP


def files(wiring: Wiring, settings: Settings) -> dict[str, str]:
    """The file of each broker, by name: a JSON list with one call per line.

    Raises:
        InputError: a topic cannot be a routing key.

    Examples:
        >>> wiring = Wiring(("a", "b"), {}, {}, (WiredLink("a", "b", ("x",), ()),))
        >>> print(files(wiring, Settings(tls=False))["broker-a.json"])
        [
        {"body": {"durable": true, "type": "topic"}, "method": "PUT", "path": "/api/exchanges/%2F/...a%3Ab"},
        {"body": {"routing_key": "x"}, "method": "POST", "path": "/api/bindings/%2F/e/amq.topic/e/...a%3Ab"}
        ]
        <BLANKLINE>
    """
    return {
        f"broker-{safe_name(broker)}.json": as_text(calls(wiring, broker, settings))
        for broker in wiring.brokers
    }


def calls(wiring: Wiring, broker: str, settings: Settings) -> list[Call]:
    """The calls at one broker, in order."""
    listed: list[Call] = []
    for link in wiring.links:
        if broker in (link.owner, link.peer):
            out, into = (link.out, link.into) if link.owner == broker else (link.into, link.out)
            other = link.peer if link.owner == broker else link.owner
            listed.append(_put("exchanges", exchange(link), {"type": "topic", "durable": True}))
            if into:
                listed += _upstream(link, other, settings, max_hops(wiring))
            listed += [_bind(exchange(link), CLIENTS, text) for text in into]
            listed += [_bind(CLIENTS, exchange(link), text) for text in out]
    return listed


def max_hops(wiring: Wiring) -> int:
    """A limit above the length of any tree, rounded up, since a change of it would restart all links.

    Examples:
        >>> max_hops(Wiring(tuple("abcdefghijk"), {}, {}, ()))
        16
    """
    return max(8, 1 << (len(wiring.brokers) - 1).bit_length())


def exchange(link: WiredLink) -> str:
    """The name of the exchange of a link, at both ends."""
    return f"broadloom.link.{safe_name(link.owner)}:{safe_name(link.peer)}"


def routing_key(text: str) -> str:
    """The AMQP routing key of an MQTT topic or topic filter.

    Examples:
        >>> routing_key("a/+/#")
        'a.*.#'
    """
    if "." in text or "*" in text:
        raise InputError(
            f"topic {text!r} has a dot or a star, which RabbitMQ maps to another topic; rename it"
        )
    key = text.replace("/", ".").replace("+", "*")
    if len(key.encode()) > LONGEST_KEY:
        raise InputError(
            f"topic {text[:40]!r}... is longer than {LONGEST_KEY} bytes, AMQP's limit; shorten it"
        )
    return key


def change(
    old: Wiring, new: Wiring, settings: Settings, later: Settings | None = None
) -> tuple[CallsAt, CallsAt]:
    """The calls at each broker that add the new links, and those that then remove the old ones.

    Args:
        old: the present wiring.
        new: the new wiring.
        settings: the addresses of brokers.
        later: their new addresses, if these change too.

    Examples:
        >>> one, two = (Wiring(("a", "b"), {}, {}, (WiredLink("a", "b", (x,), ()),)) for x in "xy")
        >>> add, remove = change(one, two, Settings(tls=False))
        >>> add["a"][0]["body"], remove["a"][0]["method"]
        ({'routing_key': 'y'}, 'DELETE')
    """
    adds: CallsAt = {}
    removals: CallsAt = {}
    for broker in dict.fromkeys((*old.brokers, *new.brokers)):
        before = calls(old, broker, settings)
        after = calls(new, broker, later or settings)
        kept = {_object_of(call) for call in after}
        added = [call for call in after if call not in before]
        removed = [undone(call) for call in reversed(before) if _object_of(call) not in kept]
        if added:
            adds[broker] = added
        if removed:
            removals[broker] = removed
    return adds, removals


def _object_of(call: Call) -> tuple[str, str | None]:
    """The identity of the object that a call creates; a later call can change its settings."""
    return call["path"], call["body"].get("routing_key")


def undone(call: Call) -> Call:
    """The call that deletes the object that another call made.

    RabbitMQ names a binding by its percent-encoded key, and the path contains that name, encoded once more.
    """
    if call["method"] == "PUT":
        return {"method": "DELETE", "path": call["path"]}
    name = quote(call["body"]["routing_key"], safe="").replace("~", "%7E") or "~"
    return {"method": "DELETE", "path": f"{call['path']}/{quote(name, safe='')}"}


def _upstream(link: WiredLink, other: str, settings: Settings, hops: int) -> list[Call]:
    """The calls that make the other end of a link the upstream."""
    name = f"broadloom-{safe_name(other)}"
    value = {
        "uri": _uri(other, settings),
        "ack-mode": "on-confirm",
        "max-hops": hops,
        "reconnect-delay": 1,
    }
    policy = {
        "pattern": f"^{re.escape(exchange(link))}$",
        "apply-to": "exchanges",
        "definition": {"federation-upstream": name},
    }
    return [
        _put("parameters/federation-upstream", name, {"value": value}),
        _put("policies", exchange(link), policy),
    ]


def _uri(broker: str, settings: Settings) -> str:
    """The URI of a broker for links; every part is encoded, so that none can change the meaning of others."""
    access = link_access(settings, broker, CERTIFICATES)
    address = settings.host_and_port(broker, TLS_PORT if access.tls else PORT)
    login = ""
    if access.user is not None:
        login = f"{quote(access.user, safe='')}:{quote(access.password or '', safe='')}@"
    if not access.tls:
        return f"amqp://{login}{uri_address(address)}"
    files = (
        ("cacertfile", access.ca or SYSTEM_CA_FILE),
        ("certfile", access.certificate),
        ("keyfile", access.key),
    )
    options = [f"{name}={quote(file)}" for name, file in files if file is not None]
    options.append("verify=verify_peer")
    options += ["auth_mechanism=external"] if access.user is None and access.certificate else []
    return f"amqps://{login}{uri_address(address)}?{'&'.join(options)}"


def _put(kind: str, name: str, body: Mapping[str, Any]) -> Call:
    return {"method": "PUT", "path": f"/api/{kind}/%2F/{quote(name, safe='')}", "body": dict(body)}


def _bind(source: str, destination: str, text: str) -> Call:
    ends = (quote(name, safe="") for name in (source, destination))
    path = "/api/bindings/%2F/e/{}/e/{}".format(*ends)
    return {"method": "POST", "path": path, "body": {"routing_key": routing_key(text)}}


def read_links(files: Mapping[str, str], wiring: Wiring) -> list[WiredLink]:
    """The links in exported files; a hop carries what its start offers and its end accepts."""
    broker_of = {safe_name(broker): broker for broker in wiring.brokers}
    offered = defaultdict[Hop, set[str]](set)
    accepted = defaultdict[Hop, set[str]](set)
    pairs: dict[tuple[str, str], None] = {}
    for name, text in files.items():
        here = broker_of[name.removeprefix("broker-").removesuffix(".json")]
        for source, destination, key in _bindings(json.loads(text)):
            ends = (source if destination == CLIENTS else destination).removeprefix("broadloom.link.")
            owner, peer = (broker_of[end] for end in ends.split(":"))
            pairs[owner, peer] = None
            other = peer if here == owner else owner
            if destination == CLIENTS:
                accepted[other, here].add(_filter(key))
            else:
                offered[here, other].add(_filter(key))
    return [
        WiredLink(
            owner,
            peer,
            tuple(sorted(offered[owner, peer] & accepted[owner, peer])),
            tuple(sorted(offered[peer, owner] & accepted[peer, owner])),
        )
        for owner, peer in pairs
    ]


def _bindings(listed: list[Call]) -> Iterator[tuple[str, str, str]]:
    for call in listed:
        if call["path"].startswith("/api/bindings/"):
            parts = call["path"].split("/")
            yield unquote(parts[5]), unquote(parts[7]), call["body"]["routing_key"]


def _filter(key: str) -> str:
    return key.replace(".", "/").replace("*", "+")

"""RabbitMQ: a list of calls of its HTTP API a broker, for exchanges that are federated along the links.

Each link is a topic exchange of its own at both ends, and each end's has the other as its upstream. Bindings
with `amq.topic`, where MQTT clients are, say which topics go over it. Nothing needs a restart.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, unquote

from broadloom.deployment.deployment_inputs import Settings, safe
from broadloom.deployment.wiring import Hop, WiredLink, Wiring
from broadloom.errors import InputError

PORT, TLS_PORT = 5672, 5671
CERTIFICATES = "/etc/rabbitmq/certs"
CLIENTS = "amq.topic"
LONGEST_KEY = 255  # bytes, by AMQP

Call = dict[str, Any]
CallsAt = dict[str, list[Call]]  # by broker


def files(wiring: Wiring, settings: Settings) -> dict[str, str]:
    """The calls for each broker, as a JSON list with one call a line, by file name.

    Raises:
        InputError: a topic that has no routing key.

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
        f"broker-{safe(broker)}.json": as_text(calls(wiring, broker, settings)) for broker in wiring.brokers
    }


def as_text(listed: list[Call]) -> str:
    """Calls as JSON, one a line."""
    return "[\n" + ",\n".join(json.dumps(call, sort_keys=True) for call in listed) + "\n]\n"


def calls(wiring: Wiring, broker: str, settings: Settings) -> list[Call]:
    """What to call at one broker, in this order."""
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
    """More than any tree is long; the same while brokers come and go, as a change restarts all links.

    Examples:
        >>> max_hops(Wiring(tuple("abcdefghijk"), {}, {}, ()))
        16
    """
    return max(8, 1 << (len(wiring.brokers) - 1).bit_length())


def exchange(link: WiredLink) -> str:
    """The exchange of a link, at both its ends."""
    return f"broadloom.link.{safe(link.owner)}:{safe(link.peer)}"


def routing_key(text: str) -> str:
    """A topic or filter as RabbitMQ's MQTT has it in AMQP.

    Examples:
        >>> routing_key("a/+/#")
        'a.*.#'
    """
    if "." in text or "*" in text:
        raise InputError(
            f"topic {text!r} has a dot or a star, which RabbitMQ takes for another topic; rename it"
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
    """What to call at each broker first, and then, when all of that is done, to take the old back.

    Args:
        old: how brokers are linked.
        new: how they are to be linked.
        settings: where brokers are.
        later: where they will be, if that changes too.

    Examples:
        >>> one, two = (Wiring(("a", "b"), {}, {}, (WiredLink("a", "b", (x,), ()),)) for x in "xy")
        >>> add, remove = change(one, two, Settings(tls=False))
        >>> add["a"][0]["body"], remove["a"][0]["method"]
        ({'routing_key': 'y'}, 'DELETE')
    """
    adds: CallsAt = {}
    removals: CallsAt = {}
    for broker in dict.fromkeys((*old.brokers, *new.brokers)):
        before, after = calls(old, broker, settings), calls(new, broker, later or settings)
        made = {_made(call) for call in after}
        added = [call for call in after if call not in before]
        removed = [undone(call) for call in reversed(before) if _made(call) not in made]
        if added:
            adds[broker] = added
        if removed:
            removals[broker] = removed
    return adds, removals


def _made(call: Call) -> tuple[str, str | None]:
    """What a call makes: the same thing may be made anew with other settings."""
    return call["path"], call["body"].get("routing_key")


def undone(call: Call) -> Call:
    """The call that takes back what another one made.

    RabbitMQ names a binding by its key, in quotes, and that name is a part of the path, quoted once more.
    """
    if call["method"] == "PUT":
        return {"method": "DELETE", "path": call["path"]}
    name = quote(call["body"]["routing_key"], safe="").replace("~", "%7E") or "~"
    return {"method": "DELETE", "path": f"{call['path']}/{quote(name, safe='')}"}


def _upstream(link: WiredLink, other: str, settings: Settings, hops: int) -> list[Call]:
    """The other end as the source of what comes."""
    name = f"broadloom-{safe(other)}"
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
    host, port = settings.place(broker, TLS_PORT if settings.tls else PORT)
    login = "${BROADLOOM_USER}:${BROADLOOM_PASSWORD}@" if settings.credentials else ""
    if not settings.tls:
        return f"amqp://{login}{host}:{port}"
    folder = settings.certificates or CERTIFICATES
    proof = f"cacertfile={folder}/ca.crt&certfile={folder}/broker.crt&keyfile={folder}/broker.key"
    way = "" if settings.credentials else "&auth_mechanism=external"
    return f"amqps://{login}{host}:{port}?{proof}&verify=verify_peer{way}"


def _put(kind: str, name: str, body: Mapping[str, Any]) -> Call:
    vhost, _, rest = kind.partition("/")
    place = f"/api/{vhost}/{rest}/%2F" if rest else f"/api/{vhost}/%2F"
    return {"method": "PUT", "path": f"{place}/{quote(name, safe='')}", "body": dict(body)}


def _bind(source: str, destination: str, text: str) -> Call:
    ends = (quote(name, safe="") for name in (source, destination))
    path = "/api/bindings/%2F/e/{}/e/{}".format(*ends)
    return {"method": "POST", "path": path, "body": {"routing_key": routing_key(text)}}


def read_links(written: Mapping[str, str], wiring: Wiring) -> list[WiredLink]:
    """The links that the calls make: what one end offers and the other one takes."""
    broker_of = {safe(broker): broker for broker in wiring.brokers}
    offered, taken = defaultdict[Hop, set[str]](set), defaultdict[Hop, set[str]](set)
    pairs: dict[tuple[str, str], None] = {}
    for name, text in written.items():
        here = broker_of[name.removeprefix("broker-").removesuffix(".json")]
        for source, destination, key in _bindings(json.loads(text)):
            ends = (source if destination == CLIENTS else destination).removeprefix("broadloom.link.")
            owner, peer = (broker_of[end] for end in ends.split(":"))
            pairs[owner, peer] = None
            other = peer if here == owner else owner
            if destination == CLIENTS:
                taken[other, here].add(_filter(key))
            else:
                offered[here, other].add(_filter(key))
    return [
        WiredLink(
            owner,
            peer,
            tuple(sorted(offered[owner, peer] & taken[owner, peer])),
            tuple(sorted(offered[peer, owner] & taken[peer, owner])),
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

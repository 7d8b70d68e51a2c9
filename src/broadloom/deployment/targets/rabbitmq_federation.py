"""RabbitMQ target: one list of HTTP API calls per broker, for exchanges that are federated along the links.

A deployment is a set of exchanges and queues whose names have its version, a code of its links. So two
deployments can exist at the same time, and messages of one never enter the other:

- `amq.topic`, the exchange of MQTT clients, hands all messages to `broadloom.entry`, which stops those that
  came over a link, and the others to `broadloom.switch`. The alternate exchange of the switch is the tree of
  the deployment in use, by a policy: one call moves a broker from one deployment to another, and each message
  takes exactly one of them.
- `broadloom.VERSION.tree` selects by topic: to the exchange of each link, and to `amq.topic`.
- `broadloom.VERSION.link.A:B`, at both ends of a link, has the one at the other end as its upstream. What
  comes over it goes to `broadloom.VERSION.arrivals`, and from there to the tree; marks, which show that a
  link works or is empty, go to the queue `broadloom.VERSION.marks` instead.

RabbitMQ visits each exchange at most once per message, and federation brings no message back.
"""

from __future__ import annotations

import hashlib
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
ENTRY, SWITCH = "broadloom.entry", "broadloom.switch"
FRESH_ONLY = "x-federation-upstream"  # exchange type of the plugin: stops what federation has brought
MARK = "broadloom-mark"  # header of a message that shows the state of a link
PRIORITY = 100  # of policies, above those of an operator that match any name
LAYOUT = 1  # of exchanges and queues; another one gives another version
LONGEST_KEY = 255  # bytes; limit of AMQP


def files(wiring: Wiring, settings: Settings) -> dict[str, str]:
    """The file of each broker, by name: a JSON list with one call per line.

    Raises:
        InputError: a topic cannot be a routing key.

    Examples:
        >>> wiring = Wiring(("a", "b"), {}, {}, (WiredLink("a", "b", ("x",), ()),))
        >>> print(files(wiring, Settings(tls=False))["broker-a.json"].splitlines()[1])
        {"body": {"durable": true, "type": "topic"}, "method": "PUT", "path": "/api/exchanges/%2F/...tree"},
    """
    return {
        f"broker-{safe_name(broker)}.json": as_text(calls(wiring, broker, settings))
        for broker in wiring.brokers
    }


def calls(wiring: Wiring, broker: str, settings: Settings) -> list[Call]:
    """The calls at one broker, in order: its part of the deployment, and then its use."""
    made = version_calls(wiring, broker, settings)
    return [*made, *entry_calls(), switch_call(wiring, settings)] if made else []


def version(wiring: Wiring, settings: Settings) -> str:
    """The code of a deployment, in the names of everything that belongs to it: of its links and addresses.

    Examples:
        >>> version(Wiring(("a", "b"), {}, {}, (WiredLink("a", "b", ("x",), ()),)), Settings(tls=False))
        '9aee7bdd'
    """
    ends = sorted({end for link in wiring.links for end in link[:2]})
    addresses = {end: (settings.address_of(end), settings.tls) for end in ends}
    text = json.dumps([LAYOUT, [list(link) for link in sorted(wiring.links)], addresses], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()


def version_calls(wiring: Wiring, broker: str, settings: Settings) -> list[Call]:
    """The calls that make one broker's part of a deployment, which is not in use yet."""
    own = [link for link in wiring.links if broker in link[:2]]
    if not own:
        return []
    code = version(wiring, settings)
    tree, arrivals, marks = (f"broadloom.{code}.{name}" for name in ("tree", "arrivals", "marks"))
    listed = [_put("exchanges", tree, {"type": "topic", "durable": True})]
    sides = [(link, *_sides(link, broker)) for link in own]
    if any(into for *_, into in sides):
        body = {"type": "headers", "durable": True, "arguments": {"alternate-exchange": tree}}
        listed.append(_put("exchanges", arrivals, body))
        listed.append(_put("queues", marks, {"durable": True}))
        listed.append(_bind(arrivals, marks, "", {"x-match": "all", MARK: "1"}, kind="q"))
    for link, other, out, into in sides:
        name = exchange(link, code)
        listed.append(_put("exchanges", name, {"type": "fanout", "durable": True}))
        listed += [_bind(tree, name, routing_key(text)) for text in out]
        if into:
            listed += [*_upstream(name, code, other, settings, max_hops(wiring)), _bind(name, arrivals, "")]
    delivered = sorted({text for *_, into in sides for text in into})
    return [*listed, *(_bind(tree, CLIENTS, routing_key(text)) for text in delivered)]


def _sides(link: WiredLink, broker: str) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """The other end of a link, what a broker sends over it, and what comes."""
    if link.owner == broker:
        return link.peer, link.out, link.into
    return link.owner, link.into, link.out


def entry_calls() -> list[Call]:
    """The calls that hand what clients publish to the switch, which drops it if no deployment is in use."""
    return [
        _put("exchanges", ENTRY, {"type": FRESH_ONLY, "durable": True, "arguments": {"x-max-hops": 1}}),
        _put("exchanges", SWITCH, {"type": "fanout", "durable": True}),
        _bind(ENTRY, SWITCH, ""),
        _bind(CLIENTS, ENTRY, "#"),
    ]


def switch_call(wiring: Wiring, settings: Settings) -> Call:
    """The call that makes a broker use a deployment, instead of any other."""
    body = {
        "pattern": f"^{re.escape(SWITCH)}$",
        "apply-to": "exchanges",
        "priority": PRIORITY,
        "definition": {"alternate-exchange": f"broadloom.{version(wiring, settings)}.tree"},
    }
    return _put("policies", SWITCH, body)


def max_hops(wiring: Wiring) -> int:
    """A limit above the length of any tree.

    Examples:
        >>> max_hops(Wiring(tuple("abcdefghijk"), {}, {}, ()))
        16
    """
    return max(8, 1 << (len(wiring.brokers) - 1).bit_length())


def exchange(link: WiredLink, code: str) -> str:
    """The name of the exchange of a link in a deployment, at both ends."""
    return f"broadloom.{code}.link.{safe_name(link.owner)}:{safe_name(link.peer)}"


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


def change(old: Wiring, new: Wiring, before: Settings, after: Settings) -> tuple[CallsAt, CallsAt, CallsAt]:
    """The calls at each broker that add a deployment, that switch to it, and that then remove the old one.

    Args:
        old: the present wiring.
        new: the new wiring.
        before: the present settings.
        after: the new settings.

    Examples:
        >>> one, two = (Wiring(("a", "b"), {}, {}, (WiredLink("a", "b", (x,), ()),)) for x in "xy")
        >>> lab = Settings(tls=False)
        >>> [calls["a"][0]["method"] for calls in change(one, two, lab, lab)]
        ['PUT', 'PUT', 'DELETE']
    """
    adds: CallsAt = {}
    switches: CallsAt = {}
    removals: CallsAt = {}
    same = version(old, before) == version(new, after)
    for broker in dict.fromkeys((*old.brokers, *new.brokers)):
        was = version_calls(old, broker, before)
        made = version_calls(new, broker, after)
        if same:
            adds[broker] = [call for call in made if call not in was]
            continue
        adds[broker] = [*made, *(() if was or not made else entry_calls())]
        use = switch_call(new, after)
        switches[broker] = [use] if made else removed([use]) if was else []
        removals[broker] = removed([*was, *(() if made or not was else entry_calls())])
    without_empty = [{name: one for name, one in part.items() if one} for part in (adds, switches, removals)]
    return without_empty[0], without_empty[1], without_empty[2]


def removed(made: list[Call]) -> list[Call]:
    """The calls that delete what other calls made; bindings go with their exchanges.

    Examples:
        >>> [call["path"] for call in removed(entry_calls())]
        ['/api/exchanges/%2F/broadloom.switch', '/api/exchanges/%2F/broadloom.entry']
    """
    return [{"method": "DELETE", "path": call["path"]} for call in reversed(made) if call["method"] == "PUT"]


def _upstream(name: str, code: str, other: str, settings: Settings, hops: int) -> list[Call]:
    """The calls that make the exchange of the same name at another broker the upstream of an exchange."""
    upstream = f"broadloom.{code}.{safe_name(other)}"
    value = {
        "uri": _uri(other, settings),
        "ack-mode": "on-confirm",
        "max-hops": hops,
        "reconnect-delay": 1,
    }
    policy = {
        "pattern": f"^{re.escape(name)}$",
        "apply-to": "exchanges",
        "priority": PRIORITY,
        "definition": {"federation-upstream": upstream},
    }
    return [
        _put("parameters/federation-upstream", upstream, {"value": value}),
        _put("policies", name, policy),
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


def _bind(
    source: str, destination: str, key: str, arguments: Mapping[str, str] | None = None, kind: str = "e"
) -> Call:
    path = f"/api/bindings/%2F/e/{quote(source, safe='')}/{kind}/{quote(destination, safe='')}"
    body: dict[str, Any] = {"routing_key": key}
    return {
        "method": "POST",
        "path": path,
        "body": body | ({"arguments": dict(arguments)} if arguments else {}),
    }


def read_links(files: Mapping[str, str], wiring: Wiring) -> list[WiredLink]:
    """The links in exported files; a hop carries what its start sends, if its end has it as an upstream."""
    broker_of = {safe_name(broker): broker for broker in wiring.brokers}
    sent = defaultdict[Hop, set[str]](set)
    taken: set[Hop] = set()
    pairs: dict[tuple[str, str], None] = {}
    for name, text in files.items():
        here = broker_of[name.removeprefix("broker-").removesuffix(".json")]
        for source, destination, key in _bindings(json.loads(text)):
            title = next((one for one in (source, destination) if ".link." in one), None)
            if title is None or not title.startswith("broadloom."):
                continue
            owner, peer = (broker_of[end] for end in title.split(".link.", 1)[1].split(":"))
            pairs[owner, peer] = None
            other = peer if here == owner else owner
            if title == source:
                taken.add((other, here))
            else:
                sent[here, other].add(_filter(key))

    def carried(hop: Hop) -> tuple[str, ...]:
        return tuple(sorted(sent[hop])) if hop in taken else ()

    return [WiredLink(owner, peer, carried((owner, peer)), carried((peer, owner))) for owner, peer in pairs]


def _bindings(listed: list[Call]) -> Iterator[tuple[str, str, str]]:
    for call in listed:
        if call["path"].startswith("/api/bindings/"):
            parts = call["path"].split("/")
            yield unquote(parts[5]), unquote(parts[7]), call["body"]["routing_key"]


def _filter(key: str) -> str:
    return key.replace(".", "/").replace("*", "+")

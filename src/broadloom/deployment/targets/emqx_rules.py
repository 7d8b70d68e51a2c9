"""EMQX target: one list of REST API calls per broker, for rules that send the topics of each link.

Each end of a link sends what its direction carries: a connector (an MQTT client of the other broker), an
action that publishes there, and a rule that selects the topics. EMQX buffers messages in the action while the
other broker is away. A rule leaves out what the same link brought: the client of the other end has a client
id with a known start. Subscriptions at the other broker (`sources`) are not used: EMQX delivers a message
once per subscription that matches it, so topic filters that overlap would double messages.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any

from broadloom.deployment.deployment_inputs import Settings, safe_name, variable_name
from broadloom.deployment.link_access import SYSTEM_CA_FILE, LinkAccess, link_access, uri_address
from broadloom.deployment.targets.api_calls import Call, CallsAt, as_text
from broadloom.deployment.wiring import Hop, WiredLink, Wiring
from broadloom.errors import InputError

PORT, TLS_PORT = 1883, 8883
CERTIFICATES = "/etc/emqx/certs"
API = "/api/v5"
LONGEST_NAME = 254  # bytes of the name of a connector
# EMQX keeps the start of a client id as it is up to 19 bytes; clients with it are links for `discover`, too.
PREFIX = "broadloom-"
_HASH = 8  # hexadecimal digits


def files(wiring: Wiring, settings: Settings) -> dict[str, str]:
    """The file of each broker, by name: a JSON list with one call per line.

    Raises:
        InputError: a rule cannot carry a topic, or the id of a broker is too long.

    Examples:
        >>> wiring = Wiring(("a", "b"), {}, {}, (WiredLink("a", "b", ("x",), ()),))
        >>> print(files(wiring, Settings(tls=False))["broker-b.json"])
        [
        ]
        <BLANKLINE>
    """
    _check_client_ids(wiring)
    return {
        f"broker-{safe_name(broker)}.json": as_text(calls(wiring, broker, settings))
        for broker in wiring.brokers
    }


def calls(wiring: Wiring, broker: str, settings: Settings) -> list[Call]:
    r"""The calls at one broker, in order: for each link that carries topics from it, three.

    Examples:
        >>> wiring = Wiring(("a", "b"), {}, {}, (WiredLink("a", "b", ("x",), ("x",)),))
        >>> connector, action, rule = calls(wiring, "a", Settings(tls=False))
        >>> connector["body"]["server"], action["body"]["parameters"]["topic"]
        ('b:1883', '${topic}')
        >>> rule["body"]["sql"]
        'SELECT * FROM "x" WHERE substr(str(clientid), 0, 19) <> \'broadloom-89b36178-\''
    """
    listed: list[Call] = []
    for link in wiring.links:
        for (start, end), filters in link.carried():
            if start == broker and filters:
                listed += _hop(start, end, filters, settings)
    return listed


def _hop(start: str, end: str, filters: tuple[str, ...], settings: Settings) -> Iterator[Call]:
    """The calls that make one direction of a link."""
    name = hop_name(end)
    access = link_access(settings, end, CERTIFICATES)
    address = settings.host_and_port(end, TLS_PORT if access.tls else PORT)
    connector: dict[str, Any] = {
        "type": "mqtt",
        "name": name,
        "server": uri_address(address),
        "clientid_prefix": client_id_prefix(start, end),
        "proto_ver": "v5",
        "pool_size": 1,  # so that messages of one publisher stay in order
        "ssl": _ssl(access),
    }
    if access.user is not None:
        connector |= {"username": access.user, "password": access.password}
    yield _post("connectors", connector)
    parameters = {
        "topic": "${topic}",
        "payload": "${payload}",
        "qos": settings.qos,
        "retain": "${flags.retain}",
    }
    action = {
        "type": "mqtt",
        "name": name,
        "connector": name,
        "parameters": parameters,
        "resource_opts": {"request_ttl": "infinity"},  # messages wait as long as the other broker is away
    }
    yield _post("actions", action)
    topics = ", ".join(_quoted(text) for text in filters)
    back = client_id_prefix(end, start)
    sql = f"SELECT * FROM {topics} WHERE substr(str(clientid), 0, {len(back)}) <> '{back}'"  # noqa: S608
    yield _post("rules", {"id": name, "name": name, "sql": sql, "actions": [f"mqtt:{name}"]})


def _ssl(access: LinkAccess) -> dict[str, Any]:
    if not access.tls:
        return {"enable": False}
    files = {"cacertfile": access.ca or SYSTEM_CA_FILE, "certfile": access.certificate, "keyfile": access.key}
    known = {name: file for name, file in files.items() if file is not None}
    return {"enable": True, "verify": "verify_peer", **known}


def hop_name(end: str) -> str:
    """The name of connector, action and rule at one end of a link: EMQX allows letters, digits, `-`, `_`.

    Examples:
        >>> hop_name("eu-1")
        'broadloom-eu_2D_1'
    """
    name = f"broadloom-{variable_name(end)}"
    if len(name) > LONGEST_NAME:
        raise InputError(f"the id of broker {end[:40]!r}... is too long for EMQX; shorten it")
    return name


def client_id_prefix(start: str, end: str) -> str:
    """The start of the client id of one direction of a link.

    Examples:
        >>> client_id_prefix("a", "b")
        'broadloom-...-'
    """
    ends = f"{safe_name(start)}:{safe_name(end)}"
    return f"{PREFIX}{sha256(ends.encode()).hexdigest()[:_HASH]}-"


def _check_client_ids(wiring: Wiring) -> None:
    """Raise if two links into one broker have the same start of a client id."""
    seen: dict[tuple[str, str], str] = {}
    for link in wiring.links:
        for start, end in ((link.owner, link.peer), (link.peer, link.owner)):
            other = seen.setdefault((end, client_id_prefix(start, end)), start)
            if other != start:
                raise InputError(
                    f"links of {start!r} and {other!r} have the same client id at {end!r}; rename one of them"
                )


def _quoted(text: str) -> str:
    """A topic filter in a rule."""
    if text.startswith("$") or re.search(r'["\\]|\$\{', text) or not text.isprintable():
        raise InputError(
            f"topic {text!r} begins with $, or has a quote, a backslash or ${{, which a rule of EMQX reads "
            "otherwise; rename it"
        )
    return f'"{text}"'


def change(old: Wiring, new: Wiring, settings: Settings, later: Settings) -> tuple[CallsAt, CallsAt]:
    """The calls at each broker that remove old and changed hops, and those that then add the new ones.

    In this order, because EMQX does not notice a loop: old and new links together could be a ring.

    Examples:
        >>> one, two = (Wiring(("a", "b"), {}, {}, (WiredLink("a", "b", (x,), ()),)) for x in "xy")
        >>> remove, add = change(one, two, Settings(tls=False), Settings(tls=False))
        >>> len(remove["a"]), len(add["a"]), len(add)
        (3, 3, 1)
    """
    removals: CallsAt = {}
    adds: CallsAt = {}
    for broker in dict.fromkeys((*old.brokers, *new.brokers)):
        before = _by_hop(calls(old, broker, settings))
        after = _by_hop(calls(new, broker, later))
        gone = [listed for name, listed in before.items() if after.get(name) != listed]
        come = [listed for name, listed in after.items() if before.get(name) != listed]
        if gone:
            removals[broker] = [undone(call) for listed in gone for call in reversed(listed)]
        if come:
            adds[broker] = [call for listed in come for call in listed]
    return removals, adds


def _by_hop(listed: list[Call]) -> dict[str, list[Call]]:
    return {listed[i]["body"]["name"]: listed[i : i + 3] for i in range(0, len(listed), 3)}


def undone(call: Call) -> Call:
    """The call that deletes the object that another call made."""
    body = call["body"]
    name = body["id"] if call["path"].endswith("/rules") else f"{body['type']}:{body['name']}"
    return {"method": "DELETE", "path": f"{call['path']}/{name}"}


def _post(kind: str, body: Mapping[str, Any]) -> Call:
    return {"method": "POST", "path": f"{API}/{kind}", "body": dict(body)}


def read_links(files: Mapping[str, str], wiring: Wiring) -> list[WiredLink]:
    """The links in exported files; the two directions are in the files of the two brokers."""
    broker_of = {safe_name(broker): broker for broker in wiring.brokers}
    end_of = {hop_name(broker): broker for broker in wiring.brokers}
    carried: dict[Hop, tuple[str, ...]] = {}
    for name, text in files.items():
        start = broker_of[name.removeprefix("broker-").removesuffix(".json")]
        for call in json.loads(text):
            if call["path"] == f"{API}/rules":
                topics = call["body"]["sql"].removeprefix("SELECT * FROM ").rpartition(" WHERE ")[0]
                carried[start, end_of[call["body"]["id"]]] = tuple(sorted(re.findall('"([^"]*)"', topics)))
    pairs = sorted({(min(hop), max(hop)) for hop in carried})
    return [
        WiredLink(owner, peer, carried.get((owner, peer), ()), carried.get((peer, owner), ()))
        for owner, peer in pairs
    ]

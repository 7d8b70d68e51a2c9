"""Admin APIs of brokers, as `doctor` and `discover` read them: NATS monitoring, RabbitMQ management, EMQX."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

from broadloom.deployment import FleetBroker, api_url, request_from
from broadloom.deployment.targets.nats_leafnodes import FIRST, SECOND, missing_accounts, missing_imports
from broadloom.discovery.doctor_report import ADVICE, MUST_CHANGE, OK, Finding
from broadloom.discovery.existing_links import ExistingLink
from broadloom.errors import BroadloomError, UnreachableError
from broadloom.mqtt.endpoint import Address

OVERVIEWS = {"nats": "/varz", "rabbitmq": "/api/overview", "emqx": "/api/v5/nodes"}
_PORTS = {"rabbitmq": 5672, "emqx": 1883}


@dataclass
class ApiFacts:
    """What the admin API of a broker says.

    Attributes:
        findings: the findings.
        links: links to other brokers; peers are addresses or names that `doctor` resolves.
        names: the names by which other brokers' APIs call this broker.
        ports: further ports at which other brokers reach it.
        skew: seconds that its clock is ahead; None: unknown.
        answered: whether the API could be read.
    """

    findings: list[Finding] = field(default_factory=list)
    links: list[ApiLink] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    ports: set[int] = field(default_factory=set)
    skew: float | None = None
    answered: bool = False


@dataclass(frozen=True)
class ApiLink:
    """A link in an admin API.

    Attributes:
        link: the link, with an unknown peer.
        peer: the name or the address of the broker at its other end.
        any_port: whether the address has another port than the fleet file.
    """

    link: ExistingLink
    peer: str | Address
    any_port: bool = False


async def read_api(broker: FleetBroker) -> ApiFacts:
    """Read the admin API of a broker that has one in its `subscriptions`."""
    facts = ApiFacts()
    try:
        overview, facts.skew = await _get(broker, OVERVIEWS[broker.kind])
    except BroadloomError as error:
        setting = "subscriptions and api_login in fleet.toml"
        facts.findings.append(Finding(broker.name, "api", MUST_CHANGE, str(error), setting))
        return facts
    facts.answered = True
    readers = {"nats": _read_nats, "rabbitmq": _read_rabbitmq, "emqx": _read_emqx}
    await readers[broker.kind](broker, overview, facts)
    return facts


async def _read_nats(broker: FleetBroker, varz: Any, facts: ApiFacts) -> None:
    version = _text(varz, "version")
    facts.findings.append(
        Finding(broker.name, "api", OK, f"NATS {version}, payloads up to {_text(varz, 'max_payload')} bytes")
    )
    facts.names |= {name for key in ("server_id", "server_name") if (name := _text(varz, key))}
    listener = varz.get("leaf") if isinstance(varz, Mapping) else None
    if isinstance(listener, Mapping) and isinstance(listener.get("port"), int):
        facts.ports.add(listener["port"])
    if broker.account is not None:
        await _judge_accounts(broker, broker.account, facts)
    routes = await _optional(broker, "/routez")
    for route in _entries(routes, "routes"):
        name = _text(route, "remote_id")
        link = ExistingLink(
            f"route {name}",
            broker.name,
            None,
            "/routez",
            "remove it from `routes` of nats.conf",
            loops=False,
            title="a route of a NATS cluster",
        )
        facts.links.append(ApiLink(link, name))
    leaves = await _optional(broker, "/leafz")
    for leaf in _entries(leaves, "leafs"):
        peer: str | Address = _text(leaf, "name")  # not before NATS 2.10
        if not peer and isinstance(leaf, Mapping) and isinstance(leaf.get("port"), int):
            peer = Address(_text(leaf, "ip"), leaf["port"])
        link = ExistingLink(
            f"leafnode {peer}",
            broker.name,
            None,
            "/leafz",
            "remove it from `leafnodes` of nats.conf, unless it is of this plan",
            title="a leafnode",
        )
        facts.links.append(ApiLink(link, peer))


async def _judge_accounts(broker: FleetBroker, account: str, facts: ApiFacts) -> None:
    """Judge whether a NATS server has the account of its clients, and those of links."""
    listed = await _optional(broker, "/accountz")
    names = listed.get("accounts") if isinstance(listed, Mapping) else None
    if not isinstance(names, list):
        return
    fault = missing_accounts(account, names)
    if fault is None and await _has_links(broker):
        detail = await _optional(broker, f"/accountz?acc={account}")
        own = detail.get("account_detail") if isinstance(detail, Mapping) else None
        fault = missing_imports(account, _entries(own, "imports"))
    if fault is None:
        text = f"{account} and the accounts of links are defined"
        facts.findings.append(Finding(broker.name, "accounts", OK, text))
    else:
        setting = f"{fault.lines}, in `accounts` of nats-server.conf"
        facts.findings.append(Finding(broker.name, "accounts", MUST_CHANGE, fault.found, setting))


async def _has_links(broker: FleetBroker) -> bool:
    """Whether a NATS server has leaf nodes in an account of links."""
    leaves = _entries(await _optional(broker, "/leafz"), "leafs")
    return any(_text(leaf, "account") in (FIRST, SECOND) for leaf in leaves)


async def _read_rabbitmq(broker: FleetBroker, overview: Any, facts: ApiFacts) -> None:
    version = _text(overview, "rabbitmq_version")
    facts.findings.append(Finding(broker.name, "api", OK, f"RabbitMQ {version}"))
    facts.names |= {name for key in ("cluster_name", "node") if (name := _text(overview, key))}
    for path, source in (("/api/federation-links", "federation"), ("/api/shovels", "shovel")):
        for entry in _entries(await _optional(broker, path), ""):
            name = _text(entry, "exchange") or _text(entry, "queue") or _text(entry, "name")
            uri = _text(entry, "uri") or _text(entry, "dest_uri")
            link = ExistingLink(
                name, broker.name, None, source, f"rabbitmqctl clear_parameter for {source} {name}"
            )
            facts.links.append(ApiLink(link, _uri_address(uri, _PORTS["rabbitmq"]), any_port=True))


async def _read_emqx(broker: FleetBroker, nodes: Any, facts: ApiFacts) -> None:
    entries = _entries(nodes, "data") or _entries(nodes, "")
    versions = sorted({_text(node, "version") for node in entries})
    facts.findings.append(
        Finding(broker.name, "api", OK, f"EMQX {', '.join(versions)}, {len(entries)} nodes")
    )
    if len(entries) > 1:
        found = (
            f"a cluster of {len(entries)} nodes; list it once in the fleet, since its nodes share messages"
        )
        facts.findings.append(
            Finding(broker.name, "cluster", ADVICE, found, "one section per cluster in fleet.toml")
        )
    for bridge in _entries(await _optional(broker, "/api/v5/bridges"), ""):
        if _text(bridge, "type") != "mqtt":
            continue
        name = _text(bridge, "name")
        link = ExistingLink(name, broker.name, None, "/api/v5/bridges", f"remove the bridge {name} of EMQX")
        facts.links.append(ApiLink(link, _uri_address(_text(bridge, "server"), _PORTS["emqx"])))


async def _optional(broker: FleetBroker, path: str) -> Any:
    """A document that not every version has; None if it is missing."""
    try:
        return (await _get(broker, path))[0]
    except BroadloomError:
        return None


async def _get(broker: FleetBroker, path: str) -> tuple[Any, float | None]:
    """A JSON document of a broker's admin API, and the seconds that its clock is ahead."""
    parts = urlsplit(api_url(broker) or "")
    document, date = await asyncio.to_thread(get_document, broker, f"{parts.scheme}://{parts.netloc}{path}")
    return document, _skew(date)


def get_document(broker: FleetBroker, url: str) -> tuple[Any, str | None]:
    """A JSON document of a broker's admin API, and the header `Date` of the answer.

    Raises:
        InputError: the secret of the login cannot be used.
        UnreachableError: the API does not answer, or not with such a document.
    """
    text, date = request_from(broker, url)
    try:
        return json.loads(text), date
    except ValueError as error:
        where = url.partition("?")[0]
        raise UnreachableError(
            f"{where} does not answer with JSON; is it the API of {broker.kind}?"
        ) from error


def _skew(date: str | None) -> float | None:
    """Seconds that the time in a header `Date` is ahead of this machine's."""
    if date is None:
        return None
    try:
        return parsedate_to_datetime(date).timestamp() - time.time()
    except ValueError:
        return None


def _uri_address(uri: str, port: int) -> Address | str:
    """The address in a URI or `host:port`; the text itself if it has none."""
    parts = urlsplit(uri if "://" in uri else f"//{uri}")
    try:
        return Address(parts.hostname or uri, parts.port or port)
    except ValueError:
        return ""


def _text(entry: Any, name: str) -> str:
    value = entry.get(name) if isinstance(entry, Mapping) else None
    return "" if value is None else str(value)[:200]


def _entries(document: Any, name: str) -> list[Any]:
    """The list at a name, or the document itself if the name is empty; empty if there is none."""
    found = document.get(name) if name and isinstance(document, Mapping) else document
    return list(found) if isinstance(found, list) else []

"""A rehearsal: real brokers, every topic from every broker, every delivery and every link counted."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from broadloom.deployment.flow import Message, crossings
from broadloom.deployment.rehearsal._clients import TICK, Clients
from broadloom.deployment.rehearsal.failures import busiest_brokers, busiest_links, cut_link, kill_broker
from broadloom.deployment.rehearsal.lab import Lab
from broadloom.deployment.rehearsal.tally import PAYLOAD_BYTES, Tally, publish_all, settle
from broadloom.deployment.targets.mosquitto import MESH, local_id, remote_id
from broadloom.deployment.wiring import Hop, Link, Wiring
from broadloom.progress import stage

CATCH_UP_SECONDS = 30.0  # at most, for a machine that is busy


@dataclass(frozen=True)
class Outcome:
    """What a rehearsal counted.

    Attributes:
        counts: published, expected, missing, duplicates, unexpected.
        uninterested: how often a link brought a message to a broker that does not want its topic.
        links: of each link and direction, how many messages crossed it and how many the plan says.
        bytes: of all packets on links.
        failures: what was lost when brokers and links were killed.
    """

    counts: Mapping[str, int]
    uninterested: int
    links: tuple[Mapping[str, Any], ...]
    bytes: int
    failures: tuple[Mapping[str, Any], ...] = ()

    @property
    def ok(self) -> bool:
        """Whether everything came once, nowhere else, and over the links that the plan says."""
        return not (
            any(self.counts[key] for key in ("missing", "duplicates", "unexpected"))
            or self.uninterested
            or any(link["messages"] != link["planned"] for link in self.links)
        )

    def record(self) -> dict[str, Any]:
        """The outcome as JSON has it."""
        return {
            "ok": self.ok,
            **self.counts,
            "uninterested": self.uninterested,
            "messages_on_links": sum(link["messages"] for link in self.links),
            "bytes_on_links": self.bytes,
            "links": [dict(link) for link in self.links],
            "failures": [dict(failure) for failure in self.failures],
        }


def rehearse(
    wiring: Wiring, messages: Mapping[Message, int], size: int = PAYLOAD_BYTES, kill: int = 0
) -> Outcome:
    """Start the brokers, publish the messages, and count; then kill brokers and links, if asked to.

    Args:
        wiring: how brokers are linked.
        messages: how many of each to publish.
        size: the bytes of a payload.
        kill: so many brokers are killed, one after the other, and so many links are cut, the busiest first.

    Raises:
        InputError: mosquitto or paho-mqtt is not installed.
    """
    tally = Tally(wiring)
    links = busiest_links(wiring, messages, kill)
    with Lab(wiring, links) as lab, Clients(lab.ports, tally.heard) as clients:
        ready(lab, clients, wiring)
        publish_all(clients, tally, messages, size)
        settle(clients, tally)
        counted = outcome(lab, tally, messages)
        failures = [cut_link(lab, clients, tally, list(messages), link) for link in links]
        failures += [
            kill_broker(lab, clients, tally, messages, broker) for broker in busiest_brokers(wiring, kill)
        ]
    return replace(counted, failures=tuple(failures))


def ready(lab: Lab, clients: Clients, wiring: Wiring) -> None:
    """Wait until all links are up, and subscribe."""
    with stage("link brokers"):
        lab.wait_until_linked(wiring)
    clients.subscribe(subscriptions(wiring))


def subscriptions(wiring: Wiring) -> dict[str, list[str]]:
    """What the client at each broker subscribes to."""
    wants = {broker: list(wiring.wants.get(broker, ())) for broker in wiring.brokers}
    if not wiring.relays:  # what comes over links of a mesh comes under another name
        wants = {broker: [*texts, *(MESH + text for text in texts)] for broker, texts in wants.items()}
    return wants


def outcome(lab: Lab, tally: Tally, messages: Mapping[Message, int]) -> Outcome:
    """What was counted, by clients and in the brokers' logs."""
    _catch_up(lab)
    crossed, size = on_links(lab)
    planned = crossings(tally.wiring, messages)
    hops = [hop for link in tally.wiring.links for hop, _ in link.carried()]
    links = tuple(
        {"from": start, "to": end, "messages": crossed[start, end], "planned": planned[start, end]}
        for start, end in hops
        if crossed[start, end] or planned[start, end]
    )
    return Outcome(tally.counts(), seen_by_uninterested(lab, tally.wiring), links, size)


def _catch_up(lab: Lab) -> None:
    """Read the logs until each link's end has got what its beginning sent: no client waits for all of it."""
    end = time.monotonic() + CATCH_UP_SECONDS
    while True:
        lab.read()
        if all(_has_arrived(lab, link) for link in lab.wiring.links) or time.monotonic() > end:
            return
        time.sleep(TICK)


def _has_arrived(lab: Lab, link: Link) -> bool:
    ends = (link.owner, local_id(link)), (link.peer, remote_id(link))

    def count(broker: str, client: str, way: str) -> int:
        messages = (getattr(log, way).items() for log in lab.logs[broker])
        return sum(count for some in messages for (one, _), count in some if one == client)

    return all(count(*end, "received") >= count(*start, "sent") for start, end in (ends, ends[::-1]))


def on_links(lab: Lab) -> tuple[Counter[Hop], int]:
    """How many messages crossed each link each way, and the bytes of all of them."""
    crossed, size = Counter[Hop](), 0
    for link in lab.wiring.links:
        ends = ((link.owner, link.peer), local_id(link)), ((link.peer, link.owner), remote_id(link))
        for hop, client in ends:
            for log in lab.logs[hop[0]]:
                crossed[hop] += sum(count for (to, _), count in log.sent.items() if to == client)
                size += log.bytes_sent[client]
    return crossed, size


def seen_by_uninterested(lab: Lab, wiring: Wiring) -> int:
    """How many messages links brought to brokers that do not want them."""
    links = {name for link in wiring.links for name in (local_id(link), remote_id(link))}
    return sum(
        count
        for broker, logs in lab.logs.items()
        for log in logs
        for (client, topic), count in log.received.items()
        if client in links and broker not in wiring.wanting(topic.removeprefix(MESH))
    )

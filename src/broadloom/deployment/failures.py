"""What is lost when a broker or a link dies, while it is down and for good."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from broadloom.deployment._clients import Clients
from broadloom.deployment.flow import Message, crossings, journey
from broadloom.deployment.lab import Lab
from broadloom.deployment.tally import Tally, publish_all, settle, wait_quiet
from broadloom.deployment.wiring import Link, Wiring
from broadloom.progress import stage

QUIET_SECONDS = 0.7


def busiest_brokers(wiring: Wiring, count: int) -> list[str]:
    """The brokers with the most links, those with the same number in the plan's order."""
    degree = Counter(end for link in wiring.links for end in link[:2])
    order = {broker: place for place, broker in enumerate(wiring.brokers)}
    return sorted(wiring.brokers, key=lambda broker: (-degree[broker], order[broker]))[:count]


def busiest_links(wiring: Wiring, messages: Mapping[Message, int], count: int) -> list[Link]:
    """The links that the most messages cross."""
    crossed = crossings(wiring, messages)
    load = {link: sum(crossed[hop] for hop, _ in link.carried()) for link in wiring.links}
    return sorted(wiring.links, key=lambda link: (-load[link], link))[:count]


def kill_broker(
    lab: Lab, clients: Clients, tally: Tally, messages: Iterable[Message], broker: str
) -> dict[str, Any]:
    """Kill a broker, publish at all others, start it again, and tell what did not come."""
    left = [message for message in messages if message.broker != broker]
    first = len(tally.published)
    with stage(f"kill broker {broker}"):
        lab.stop(broker, kill=True)
        _publish(clients, tally, left)
        down = tally.counts(first)
        lab.start(broker)
        touched = [link for link in lab.wiring.links if broker in link[:2]]
        lab.wait_until_linked(replace(lab.wiring, links=tuple(touched)))
        settle(clients, tally)
    links = tuple(link for link in lab.wiring.links if link not in touched)
    predicted = _missed(replace(lab.wiring, links=links), left, without=broker)
    return {"killed": "broker", "name": broker, "predicted": predicted} | _told(down, tally.counts(first))


def cut_link(
    lab: Lab, clients: Clients, tally: Tally, messages: Sequence[Message], link: Link
) -> dict[str, Any]:
    """Cut a link, publish everywhere, mend it, and tell what did not come."""
    first, alone = len(tally.published), replace(lab.wiring, links=(link,))
    with stage(f"cut link {link.owner}-{link.peer}"):
        lab.cut(link)
        _publish(clients, tally, messages)
        down = tally.counts(first)
        lab.mend(link)
        lab.wait_until_linked(alone)
        settle(clients, tally)
    links = tuple(other for other in lab.wiring.links if other != link)
    predicted = _missed(replace(lab.wiring, links=links), messages)
    name = f"{link.owner}-{link.peer}"
    return {"killed": "link", "name": name, "predicted": predicted} | _told(down, tally.counts(first))


def _publish(clients: Clients, tally: Tally, messages: Iterable[Message]) -> None:
    publish_all(clients, tally, dict.fromkeys(messages, 1))
    wait_quiet(clients, tally, QUIET_SECONDS)


def _missed(wiring: Wiring, messages: Iterable[Message], without: str | None = None) -> int:
    """How many deliveries a wiring that has lost something leaves out."""
    return sum(
        len(wiring.wanting(message.topic) - ({message.broker, *journey(wiring, message)} - {without}))
        for message in messages
    )


def _told(down: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    return {
        "published": after["published"],
        "expected": after["expected"],
        "missing_while_down": down["missing"],
        "late": down["missing"] - after["missing"],
        "lost": after["missing"],
        "duplicates": after["duplicates"],
    }

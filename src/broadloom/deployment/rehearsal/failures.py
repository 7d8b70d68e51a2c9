"""What is lost when a broker or a link dies, while it is down and for good."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from broadloom.deployment.flow import Message, crossings, journey
from broadloom.deployment.rehearsal._clients import Clients
from broadloom.deployment.rehearsal.lab import Lab
from broadloom.deployment.rehearsal.tally import (
    QUIET_SECONDS,
    SETTLE_SECONDS,
    Tally,
    publish_all,
    settle,
    wait_quiet,
)
from broadloom.deployment.wiring import Link, Wiring
from broadloom.progress import stage


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
    touched = [link for link in lab.wiring.links if broker in link[:2]]
    predicted = _missed(_without(lab.wiring, touched), left, broker)
    first = len(tally.published)
    with stage(f"kill broker {broker}"):
        lab.wait_until_saved(broker)  # or it would forget clients that came just now
        lab.stop(broker, kill=True)
        down = _publish(clients, tally, left, predicted)
        lab.start(broker)
        lab.wait_until_linked(replace(lab.wiring, links=tuple(touched)))
        settle(clients, tally)
    return {"killed": "broker", "name": broker, "predicted": predicted} | _told(down, tally.counts(first))


def cut_link(
    lab: Lab, clients: Clients, tally: Tally, messages: Sequence[Message], link: Link
) -> dict[str, Any]:
    """Cut a link, publish everywhere, mend it, and tell what did not come."""
    predicted = _missed(_without(lab.wiring, [link]), messages)
    first = len(tally.published)
    with stage(f"cut link {link.owner}-{link.peer}"):
        lab.cut(link)
        down = _publish(clients, tally, messages, predicted)
        lab.mend(link)
        lab.wait_until_linked(replace(lab.wiring, links=(link,)))
        settle(clients, tally)
    name = f"{link.owner}-{link.peer}"
    return {"killed": "link", "name": name, "predicted": predicted} | _told(down, tally.counts(first))


def _publish(clients: Clients, tally: Tally, messages: Iterable[Message], predicted: int) -> dict[str, int]:
    """Publish, and count when all has come that can, and a little later."""
    first = len(tally.published)
    publish_all(clients, tally, dict.fromkeys(messages, 1))
    wait_quiet(clients, tally, QUIET_SECONDS, predicted)
    clients.run(lambda: False, SETTLE_SECONDS)
    return tally.counts(first)


def _without(wiring: Wiring, gone: Sequence[Link]) -> Wiring:
    return replace(wiring, links=tuple(link for link in wiring.links if link not in gone))


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

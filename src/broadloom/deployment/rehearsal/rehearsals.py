"""A rehearsal: real brokers, every topic from every broker, every delivery and every link counted."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import cycle
from typing import Any

from broadloom.deployment.deployment_inputs import Publication
from broadloom.deployment.rehearsal.delivery_counts import (
    PAYLOAD_BYTES,
    QUIET_SECONDS,
    SETTLE_SECONDS,
    TICK,
    DeliveryTally,
    LabClients,
    RehearsalOutcome,
    publish_all,
    settle,
    wait_quiet,
)
from broadloom.deployment.rehearsal.mosquitto_lab import MosquittoLab, packet_size
from broadloom.deployment.rehearsal.rabbitmq_lab import STATISTICS_SECONDS, RabbitLab
from broadloom.deployment.rollout import Batch, common, order
from broadloom.deployment.targets import rabbitmq_federation
from broadloom.deployment.targets.mosquitto_bridges import MESH, local_id, remote_id
from broadloom.deployment.wiring import (
    ALTERNATIVES,
    Hop,
    SampleMessage,
    WiredLink,
    Wiring,
    crossings,
    delays,
    delivery_hops,
    sample_messages,
)
from broadloom.mqtt.stand_in_sessions import update_session
from broadloom.plans import Plan
from broadloom.progress import stage

CATCH_UP_SECONDS = 30.0  # at most, for a machine that is busy


def rehearse(
    wiring: Wiring, messages: Mapping[SampleMessage, int], size: int = PAYLOAD_BYTES, kill: int = 0
) -> RehearsalOutcome:
    """Start the brokers, publish the messages, and count; then kill brokers and links, if asked to.

    Args:
        wiring: how brokers are linked.
        messages: how many of each to publish.
        size: the bytes of a payload.
        kill: so many brokers are killed, one after the other, and so many links are cut, the busiest first.

    Raises:
        InputError: mosquitto or paho-mqtt is not installed.
    """
    tally = DeliveryTally(wiring)
    links = busiest_links(wiring, messages, kill)
    with MosquittoLab(wiring, links) as lab, LabClients(lab.ports, tally.heard) as clients:
        ready(lab, clients, wiring)
        publish_all(clients, tally, messages, size)
        settle(clients, tally)
        counted = outcome(lab, tally, messages)
        failures = [cut_link(lab, clients, tally, list(messages), link) for link in links]
        failures += [
            kill_broker(lab, clients, tally, messages, broker) for broker in busiest_brokers(wiring, kill)
        ]
    return replace(counted, failures=tuple(failures))


def ready(lab: MosquittoLab, clients: LabClients, wiring: Wiring) -> None:
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


def outcome(
    lab: MosquittoLab, tally: DeliveryTally, messages: Mapping[SampleMessage, int]
) -> RehearsalOutcome:
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
    return RehearsalOutcome(tally.counts(), seen_by_uninterested(lab, tally.wiring), links, size)


def _catch_up(lab: MosquittoLab) -> None:
    """Read the logs until each link's end has got what its beginning sent: no client waits for all of it."""
    end = time.monotonic() + CATCH_UP_SECONDS
    while True:
        lab.read()
        if all(_has_arrived(lab, link) for link in lab.wiring.links) or time.monotonic() > end:
            return
        time.sleep(TICK)


def _has_arrived(lab: MosquittoLab, link: WiredLink) -> bool:
    ends = (link.owner, local_id(link)), (link.peer, remote_id(link))

    def count(broker: str, client: str, way: str) -> int:
        messages = (getattr(log, way).items() for log in lab.logs[broker])
        return sum(count for some in messages for (one, _), count in some if one == client)

    return all(count(*end, "received") >= count(*start, "sent") for start, end in (ends, ends[::-1]))


def on_links(lab: MosquittoLab) -> tuple[Counter[Hop], int]:
    """How many messages crossed each link each way, and the bytes of all of them."""
    crossed, size = Counter[Hop](), 0
    for link in lab.wiring.links:
        ends = ((link.owner, link.peer), local_id(link)), ((link.peer, link.owner), remote_id(link))
        for hop, client in ends:
            for log in lab.logs[hop[0]]:
                crossed[hop] += sum(count for (to, _), count in log.sent.items() if to == client)
                size += log.bytes_sent[client]
    return crossed, size


def seen_by_uninterested(lab: MosquittoLab, wiring: Wiring) -> int:
    """How many messages links brought to brokers that do not want them."""
    links = {name for link in wiring.links for name in (local_id(link), remote_id(link))}
    return sum(
        count
        for broker, logs in lab.logs.items()
        for log in logs
        for (client, topic), count in log.received.items()
        if client in links and broker not in wiring.wanting(topic.removeprefix(MESH))
    )


def rehearse_rabbitmq(
    wiring: Wiring, messages: Mapping[SampleMessage, int], size: int = PAYLOAD_BYTES
) -> RehearsalOutcome:
    """As `rehearse`, on RabbitMQ: MQTT clients publish and subscribe, and an observer a node sees all."""
    tally, seen = DeliveryTally(wiring), Counter[tuple[str, str]]()

    def observed(broker: str, topic: str, _payload: bytes) -> None:
        seen[broker, topic] += 1

    lab = RabbitLab(wiring)
    calls = lab.calls(wiring)  # what cannot be exported is refused before anything starts
    with lab:
        lab.apply(calls)
        lab.wait_until_linked(wiring)
        with LabClients(lab.ports, observed, name="observer") as observers:
            observers.subscribe({broker: ["#"] for broker in wiring.brokers})
            with LabClients(lab.ports, tally.heard) as clients:
                clients.subscribe(subscriptions(wiring))
                publish_all(clients, tally, messages, size)
                settle(clients, tally)
            observers.run(lambda: False, 1)
        return _rabbitmq_outcome(lab, tally, messages, seen, size)


def _rabbitmq_outcome(
    lab: RabbitLab,
    tally: DeliveryTally,
    messages: Mapping[SampleMessage, int],
    seen: Mapping[tuple[str, str], int],
    size: int,
) -> RehearsalOutcome:
    planned = crossings(tally.wiring, messages)
    end = time.monotonic() + STATISTICS_SECONDS  # nodes count in their own time
    while (crossed := lab.on_links(tally.wiring)) != planned and time.monotonic() < end:
        time.sleep(0.5)
    foreign = sum(
        count
        for (broker, topic), count in seen.items()
        if broker not in tally.wiring.wanting(topic) and SampleMessage(broker, topic) not in messages
    )
    hops = sorted({*planned, *crossed})
    links = tuple(
        {"from": hop[0], "to": hop[1], "messages": crossed[hop], "planned": planned[hop]} for hop in hops
    )
    each = {topic: packet_size(topic, size, 1) for _, topic in messages}
    sent = sum(
        count * each[message.topic] * sum(crossings(tally.wiring, {message: 1}).values())
        for message, count in messages.items()
    )
    return RehearsalOutcome(tally.counts(), foreign, links, sent)


def busiest_brokers(wiring: Wiring, count: int) -> list[str]:
    """The brokers with the most links, those with the same number in the plan's order."""
    degree = Counter(end for link in wiring.links for end in link[:2])
    order = {broker: place for place, broker in enumerate(wiring.brokers)}
    return sorted(wiring.brokers, key=lambda broker: (-degree[broker], order[broker]))[:count]


def busiest_links(wiring: Wiring, messages: Mapping[SampleMessage, int], count: int) -> list[WiredLink]:
    """The links that the most messages cross."""
    crossed = crossings(wiring, messages)
    load = {link: sum(crossed[hop] for hop, _ in link.carried()) for link in wiring.links}
    return sorted(wiring.links, key=lambda link: (-load[link], link))[:count]


def kill_broker(
    lab: MosquittoLab,
    clients: LabClients,
    tally: DeliveryTally,
    messages: Iterable[SampleMessage],
    broker: str,
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
    lab: MosquittoLab,
    clients: LabClients,
    tally: DeliveryTally,
    messages: Sequence[SampleMessage],
    link: WiredLink,
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


def _publish(
    clients: LabClients, tally: DeliveryTally, messages: Iterable[SampleMessage], predicted: int
) -> dict[str, int]:
    """Publish, and count when all has come that can, and a little later."""
    first = len(tally.published)
    publish_all(clients, tally, dict.fromkeys(messages, 1))
    wait_quiet(clients, tally, QUIET_SECONDS, predicted)
    clients.run(lambda: False, SETTLE_SECONDS)
    return tally.counts(first)


def _without(wiring: Wiring, gone: Sequence[WiredLink]) -> Wiring:
    return replace(wiring, links=tuple(link for link in wiring.links if link not in gone))


def _missed(wiring: Wiring, messages: Iterable[SampleMessage], without: str | None = None) -> int:
    """How many deliveries a wiring that has lost something leaves out."""
    return sum(
        len(wiring.wanting(message.topic) - ({message.broker, *delivery_hops(wiring, message)} - {without}))
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


OURS = "our plan"
# A full mesh of more brokers than this has too many connections for one machine.
MOST_BROKERS = 60


def compare(
    plan: Plan,
    ours: tuple[Wiring, RehearsalOutcome],
    publications: Iterable[Publication],
    messages: Mapping[SampleMessage, int],
    size: int = PAYLOAD_BYTES,
) -> list[dict[str, Any]]:
    """A row for our wiring, which has been rehearsed, and one for each alternative, rehearsed here.

    Hops and delays are those of the ways that messages take, a delay in the unit of the plan's weights.
    """
    known = list(publications)
    rows = [_row(OURS, plan, *ours, messages)]
    for name, make in ALTERNATIVES.items():
        if len(plan.interest.node_ids) <= MOST_BROKERS or name != "full mesh with interest":
            wiring = make(plan, known)
            rows.append(_row(name, plan, wiring, rehearse(wiring, messages, size), messages))
    return rows


def _row(
    name: str, plan: Plan, wiring: Wiring, outcome: RehearsalOutcome, messages: Mapping[SampleMessage, int]
) -> dict[str, Any]:
    told = outcome.record()
    return {
        "wiring": name,
        "links": len(wiring.links),
        "most_links_of_a_broker": max(_degrees(wiring).values(), default=0),
        "messages_on_links": told["messages_on_links"],
        "bytes_on_links": told["bytes_on_links"],
        **delays(wiring, messages, plan),
        **{key: told[key] for key in ("expected", "missing", "duplicates", "unexpected", "uninterested")},
    }


def _degrees(wiring: Wiring) -> dict[str, int]:
    degrees = dict.fromkeys(wiring.brokers, 0)
    for link in wiring.links:
        for end in link[:2]:
            degrees[end] += 1
    return degrees


RATE = 300.0
CALM_SECONDS = 0.5  # of load before the first step, and after the last one


def rehearse_change(
    old: Wiring, new: Wiring, rate: float = RATE, queued: bool = True, at_once: bool = False
) -> dict[str, Any]:
    """Run the change on mosquitto under load; counts of the load, and of a round of messages afterwards.

    What is published and counted is what brokers want and publish in both plans.

    Args:
        old: how brokers are linked.
        new: how they are to be linked.
        rate: messages a second, over all brokers.
        queued: whether sessions of new links are opened before old links go, as the batches say.
        at_once: whether all brokers that change restart together.
    """
    stable = common(old, new)
    batches, tally = order(old, new, at_once), DeliveryTally(stable)
    if not queued:
        batches = [batch._replace(opened=(), grown=()) for batch in batches]
    with MosquittoLab(replace(stable, links=old.links)) as lab, LabClients(lab.ports, tally.heard) as clients:
        ready(lab, clients, replace(stable, links=old.links))
        steps = [partial(_take, lab, batch) for batch in batches]
        told = _under_load(clients, tally, rate, steps)
    return told | {"batches": len(batches), "restarts": sum(len(batch.brokers) for batch in batches)}


def rehearse_live_change(old: Wiring, new: Wiring, rate: float = RATE) -> dict[str, Any]:
    """The same on RabbitMQ, which restarts nothing: all is added first, and removed then."""
    stable = common(old, new)
    tally = DeliveryTally(stable)
    lab = RabbitLab(stable)
    adds, removals = rabbitmq_federation.change(old, new, lab.settings())

    def add() -> None:
        lab.apply(adds)
        lab.wait_until_linked(new)

    with lab, LabClients(lab.ports, tally.heard) as clients:
        lab.apply(lab.calls(old))
        lab.wait_until_linked(old)
        clients.subscribe(subscriptions(stable))
        told = _under_load(clients, tally, rate, [add, partial(lab.apply, removals)])
    return told | {"batches": 2, "restarts": 0}


def _under_load(
    clients: LabClients, tally: DeliveryTally, rate: float, steps: Sequence[Callable[[], None]]
) -> dict[str, Any]:
    """Take the steps while messages are published; what came of these, and of a round of them afterwards."""
    with ChangeLoad(clients, tally, rate), stage("rewire brokers", len(steps)) as done:
        began = time.monotonic()
        for number, step in enumerate(steps, 1):
            step()
            done(number)
        seconds = time.monotonic() - began
    settle(clients, tally)
    counts, first = tally.counts(), len(tally.published)
    publish_all(clients, tally, sample_messages(tally.wiring))
    settle(clients, tally)
    after = tally.counts(first)
    return {
        "published": counts["published"],
        "expected": counts["expected"],
        "lost": counts["missing"],
        "doubled": counts["duplicates"],
        "unexpected": counts["unexpected"],
        "seconds": seconds,
        "afterwards": {key: after[key] for key in ("expected", "missing", "duplicates", "unexpected")},
    }


class ChangeLoad:
    """Publishes at a steady rate, in a thread of its own, while the block runs."""

    def __init__(self, clients: LabClients, tally: DeliveryTally, rate: float) -> None:
        self._clients, self._tally, self._rate = clients, tally, rate
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()
        time.sleep(CALM_SECONDS)

    def __exit__(self, *_: object) -> None:
        time.sleep(CALM_SECONDS)
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        began, sent = time.monotonic(), 0
        messages = cycle(sample_messages(self._tally.wiring))
        while not self._stop.is_set():
            while sent < (time.monotonic() - began) * self._rate and (message := next(messages, None)):
                number = self._tally.publish(message)
                payload = f"{number} ".encode().ljust(PAYLOAD_BYTES, b".")
                self._clients.publish(message.broker, message.topic, payload)
                sent += 1
            self._clients.turn(1 / self._rate)


def _take(lab: MosquittoLab, batch: Batch) -> None:
    """Do what a batch says, and wait until its links are up."""
    lab.wiring = replace(lab.wiring, links=batch.links)
    for what, broker, session in batch.actions():
        if session is not None:
            update_session(what, lab.ports[broker], session.client, session.filters)
        elif what == "stop":
            lab.stop(broker)
        else:
            lab.configure(broker, lab.wiring)
            lab.start(broker)
            lab.wait_until_listening([broker])
    touched = tuple(link for link in batch.links if set(batch.brokers).intersection(link[:2]))
    lab.wait_until_linked(replace(lab.wiring, links=touched))

"""Rehearsals on real brokers: of a plan, of failures, of other wirings for comparison, and of a change."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import cycle, pairwise
from typing import Any

from broadloom.deployment.apply import NEW, OLD, ChangeJournal, DeploymentChange, apply_change
from broadloom.deployment.deployment_inputs import Publication, Settings
from broadloom.deployment.fleet_control import FleetControl
from broadloom.deployment.fleet_file import Fleet, FleetBroker
from broadloom.deployment.rabbitmq_control import RabbitChange, RabbitControl
from broadloom.deployment.rehearsal.delivery_counts import (
    PAYLOAD_BYTES,
    POLL_SECONDS,
    QUIET_SECONDS,
    SETTLE_SECONDS,
    DeliveryTally,
    LabClients,
    RehearsalOutcome,
    publish_all,
    publish_one,
    settle,
    wait_until_quiet,
)
from broadloom.deployment.rehearsal.mosquitto_lab import HOST, MosquittoLab, packet_size
from broadloom.deployment.rehearsal.rabbitmq_lab import LINK_SECONDS, STATISTICS_SECONDS, RabbitLab
from broadloom.deployment.rollout import Deployment, common
from broadloom.deployment.targets import mosquitto_bridges
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
    relayed_messages,
    sample_messages,
)
from broadloom.plans import Plan
from broadloom.progress import stage

CATCH_UP_SECONDS = 30.0  # long, for a busy machine
OURS = "our plan"
# A full mesh of more brokers has too many connections for one machine.
MOST_BROKERS = 60
RATE = 300.0
CALM_SECONDS = 0.5  # of load before the first step, and after the last one


def rehearse(
    wiring: Wiring, messages: Mapping[SampleMessage, int], size: int = PAYLOAD_BYTES, kill: int = 0
) -> RehearsalOutcome:
    """Publish messages on real mosquitto brokers and count their deliveries; then kill brokers and cut links.

    Args:
        wiring: the links between brokers.
        messages: how often to publish each message.
        size: bytes of a payload.
        kill: the number of brokers to kill, and of links to cut, one after the other, the busiest first.

    Raises:
        MissingExtraError: mosquitto or paho-mqtt is not installed.
        UnreachableError: a broker does not start or answer.
    """
    tally = DeliveryTally(wiring)
    links = busiest_links(wiring, messages, kill)
    with MosquittoLab(wiring, links) as lab, LabClients(lab.ports, tally.receive) as clients:
        connect(lab, clients, wiring)
        publish_all(clients, tally, messages, size)
        settle(clients, tally)
        counted = outcome(lab, tally, messages)
        failures = [cut_link(lab, clients, tally, list(messages), link) for link in links]
        failures += [
            kill_broker(lab, clients, tally, messages, broker) for broker in busiest_brokers(wiring, kill)
        ]
    return replace(counted, failures=tuple(failures))


def connect(lab: MosquittoLab, clients: LabClients, wiring: Wiring) -> None:
    """Wait until all links are up, and subscribe the clients."""
    with stage("link brokers"):
        lab.wait_until_linked(wiring)
    clients.subscribe(subscriptions(wiring))


def subscriptions(wiring: Wiring) -> dict[str, list[str]]:
    """The subscriptions of the client at each broker."""
    wants = {broker: list(wiring.wants.get(broker, ())) for broker in wiring.brokers}
    if not wiring.relays:  # messages over links of a mesh arrive under another name
        wants = {broker: [*texts, *(MESH + text for text in texts)] for broker, texts in wants.items()}
    return wants


def outcome(
    lab: MosquittoLab, tally: DeliveryTally, messages: Mapping[SampleMessage, int]
) -> RehearsalOutcome:
    """The counts of the clients and of the brokers' logs."""
    _read_logs(lab)
    crossed, size = on_links(lab)
    planned = crossings(tally.wiring, messages)
    hops = [hop for link in tally.wiring.links for hop, _ in link.carried()]
    links = tuple(
        {"from": start, "to": end, "messages": crossed[start, end], "planned": planned[start, end]}
        for start, end in hops
        if crossed[start, end] or planned[start, end]
    )
    return RehearsalOutcome(
        tally.counts(),
        seen_by_uninterested(lab, tally.wiring),
        links,
        size,
        relayed=relayed_messages(tally.wiring, messages),
    )


def _read_logs(lab: MosquittoLab) -> None:
    """Read the logs until the end of each hop has logged all messages that its start has sent."""
    end = time.monotonic() + CATCH_UP_SECONDS
    while True:
        lab.read()
        if all(_has_arrived(lab, link) for link in lab.wiring.links) or time.monotonic() > end:
            return
        time.sleep(POLL_SECONDS)


def _has_arrived(lab: MosquittoLab, link: WiredLink) -> bool:
    ends = (link.owner, local_id(link)), (link.peer, remote_id(link))

    def count(broker: str, client: str, direction: str) -> int:
        counters = (getattr(log, direction) for log in lab.logs[broker])
        return sum(count for counter in counters for (name, _), count in counter.items() if name == client)

    return all(count(*end, "received") >= count(*start, "sent") for start, end in (ends, ends[::-1]))


def on_links(lab: MosquittoLab) -> tuple[Counter[Hop], int]:
    """The number of messages on each hop, and the bytes of all of them."""
    crossed = Counter[Hop]()
    size = 0
    for link in lab.wiring.links:
        ends = ((link.owner, link.peer), local_id(link)), ((link.peer, link.owner), remote_id(link))
        for hop, client in ends:
            for log in lab.logs[hop[0]]:
                crossed[hop] += sum(count for (to, _), count in log.sent.items() if to == client)
                size += log.bytes_sent[client]
    return crossed, size


def seen_by_uninterested(lab: MosquittoLab, wiring: Wiring) -> int:
    """The number of messages that links brought to brokers that do not want them."""
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
    """As `rehearse`, on RabbitMQ: MQTT clients publish and subscribe, and one observer per node sees all."""
    tally = DeliveryTally(wiring)
    seen = Counter[tuple[str, str]]()

    def observe(broker: str, topic: str, _payload: bytes) -> None:
        seen[broker, topic] += 1

    lab = RabbitLab(wiring)
    calls = lab.calls(wiring)  # topics that cannot be exported are refused before anything starts
    with lab:
        lab.apply(calls)
        lab.wait_until_linked(wiring)
        with LabClients(lab.ports, observe, name="observer") as observers:
            observers.subscribe({broker: ["#"] for broker in wiring.brokers})
            with LabClients(lab.ports, tally.receive) as clients:
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
    end = time.monotonic() + STATISTICS_SECONDS  # nodes update their statistics now and then
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
    size_of = {topic: packet_size(topic, size, 1) for _, topic in messages}
    sent = sum(
        count * size_of[message.topic] * sum(crossings(tally.wiring, {message: 1}).values())
        for message, count in messages.items()
    )
    return RehearsalOutcome(
        tally.counts(), foreign, links, sent, relayed=relayed_messages(tally.wiring, messages)
    )


def busiest_brokers(wiring: Wiring, count: int) -> list[str]:
    """The brokers with the most links, ties in the plan's order."""
    degree = Counter(end for link in wiring.links for end in link[:2])
    index = {broker: i for i, broker in enumerate(wiring.brokers)}
    return sorted(wiring.brokers, key=lambda broker: (-degree[broker], index[broker]))[:count]


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
    """Kill a broker, publish at all others, start it again; returns counts of missing and lost messages."""
    published = [message for message in messages if message.broker != broker]
    touched = [link for link in lab.wiring.links if broker in link[:2]]
    predicted = _missed(_without(lab.wiring, touched), published, broker)
    first = len(tally.published)
    with stage(f"kill broker {broker}"):
        lab.wait_until_saved(broker)  # otherwise it would forget the newest clients
        lab.stop(broker, kill=True)
        down = _publish_while_down(clients, tally, published, predicted)
        lab.start(broker)
        lab.wait_until_linked(replace(lab.wiring, links=tuple(touched)))
        settle(clients, tally)
    counts = _failure_counts(down, tally.counts(first))
    return {"killed": "broker", "name": broker, "predicted": predicted} | counts


def cut_link(
    lab: MosquittoLab,
    clients: LabClients,
    tally: DeliveryTally,
    messages: Sequence[SampleMessage],
    link: WiredLink,
) -> dict[str, Any]:
    """Cut a link, publish everywhere, mend it; returns the counts of missing and lost messages."""
    predicted = _missed(_without(lab.wiring, [link]), messages)
    first = len(tally.published)
    name = f"{link.owner}-{link.peer}"
    with stage(f"cut link {name}"):
        lab.cut(link)
        down = _publish_while_down(clients, tally, messages, predicted)
        lab.mend(link)
        lab.wait_until_linked(replace(lab.wiring, links=(link,)))
        settle(clients, tally)
    counts = _failure_counts(down, tally.counts(first))
    return {"killed": "link", "name": name, "predicted": predicted} | counts


def _publish_while_down(
    clients: LabClients, tally: DeliveryTally, messages: Iterable[SampleMessage], predicted: int
) -> dict[str, int]:
    """Publish, and return the counts when all messages that can arrive have arrived, and a moment longer."""
    first = len(tally.published)
    publish_all(clients, tally, dict.fromkeys(messages, 1))
    wait_until_quiet(clients, tally, QUIET_SECONDS, predicted)
    clients.run(lambda: False, SETTLE_SECONDS)
    return tally.counts(first)


def _without(wiring: Wiring, removed: Sequence[WiredLink]) -> Wiring:
    return replace(wiring, links=tuple(link for link in wiring.links if link not in removed))


def _missed(wiring: Wiring, messages: Iterable[SampleMessage], killed: str | None = None) -> int:
    """How many deliveries fail in a wiring that has lost links, and perhaps a broker."""
    return sum(
        len(wiring.wanting(message.topic) - ({message.broker, *delivery_hops(wiring, message)} - {killed}))
        for message in messages
    )


def _failure_counts(down: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    return {
        "published": after["published"],
        "expected": after["expected"],
        "missing_while_down": down["missing"],
        "late": down["missing"] - after["missing"],
        "lost": after["missing"],
        "duplicates": after["duplicates"],
    }


def compare(
    plan: Plan,
    ours: tuple[Wiring, RehearsalOutcome],
    publications: Iterable[Publication],
    messages: Mapping[SampleMessage, int],
    size: int = PAYLOAD_BYTES,
) -> list[dict[str, Any]]:
    """Compare a rehearsed wiring with common alternatives, which are rehearsed here; one row per wiring.

    Hops and delays are those of the messages' paths; a delay is in the unit of the plan's weights.
    """
    known = list(publications)
    rows = [_comparison_row(OURS, plan, *ours, messages)]
    for name, make in ALTERNATIVES.items():
        if len(plan.interest.node_ids) <= MOST_BROKERS or name != "full mesh with interest":
            wiring = make(plan, known)
            rows.append(_comparison_row(name, plan, wiring, rehearse(wiring, messages, size), messages))
    return rows


def _comparison_row(
    name: str, plan: Plan, wiring: Wiring, outcome: RehearsalOutcome, messages: Mapping[SampleMessage, int]
) -> dict[str, Any]:
    record = outcome.record()
    degree = Counter(end for link in wiring.links for end in link[:2])
    return {
        "wiring": name,
        "links": len(wiring.links),
        "most_links_of_a_broker": max(degree.values(), default=0),
        "messages_on_links": record["messages_on_links"],
        "bytes_on_links": record["bytes_on_links"],
        **delays(wiring, messages, plan),
        **{key: record[key] for key in ("expected", "missing", "duplicates", "unexpected", "uninterested")},
    }


def rehearse_change(
    old: Wiring, new: Wiring, rate: float = RATE, queued: bool = True, at_once: bool = False
) -> dict[str, Any]:
    """Make a change on real mosquitto brokers under load; returns counts during and after the change.

    The load consists of the topics that brokers want and publish in both wirings.

    Args:
        old: the present wiring.
        new: the new wiring.
        rate: messages per second, over all brokers.
        queued: whether sessions of new links are opened before old links go, as the batches require.
        at_once: whether all changing brokers restart together.
    """
    stable = common(old, new)
    tally = DeliveryTally(stable)
    change = DeploymentChange(*(_lab_deployment(wiring, stable.brokers) for wiring in (old, new)))
    steps = change.steps(at_once)
    if not queued:
        steps = [step for step in steps if step.action != "open"]
    start = replace(stable, links=old.links)
    with MosquittoLab(start) as lab, LabClients(lab.ports, tally.receive) as clients:
        connect(lab, clients, start)
        control = LabControl(lab, change)
        journal = ChangeJournal(lab.journal)
        spans = RestartSpans()
        work = partial(apply_change, change, steps, control, journal, report=spans)
        try:
            counts = change_under_load(clients, tally, rate, [work], spans)
        finally:
            control.close()
            journal.close()
    batches = sum(step.action == "wait" for step in steps)
    return counts | {"batches": batches, "restarts": sum(step.action == "start" for step in steps)}


def _lab_deployment(wiring: Wiring, brokers: Sequence[str]) -> Deployment:
    """A wiring as it is deployed in the laboratory, with a file for each broker of the change."""
    both = replace(wiring, brokers=tuple(brokers))
    settings = Settings(tls=False)
    return Deployment(both, settings, mosquitto_bridges.files(both, settings))


class LabControl(FleetControl):
    """Changes the brokers of a laboratory, as those of a fleet.

    Args:
        lab: the laboratory.
        change: the change.
    """

    transit = 0.2  # on loopback

    def __init__(self, lab: MosquittoLab, change: DeploymentChange) -> None:
        brokers = [FleetBroker(name, f"{HOST}:{port}", tls=None) for name, port in lab.ports.items()]
        super().__init__(Fleet(brokers), change)
        self._lab = lab
        self._sides = {OLD: change.old.wiring, NEW: change.new.wiring}

    def stop(self, broker: str) -> None:
        """Stop a broker."""
        self._lab.stop(broker)

    def install(self, broker: str, side: str) -> None:
        """Write the links of a broker, those of the old or the new wiring."""
        self._replace_links(broker, [link for link in self._sides[side].links if link.owner == broker])

    def remove(self, broker: str) -> None:
        """Remove the links of a broker."""
        self._replace_links(broker, [])

    def start(self, broker: str) -> None:
        """Start a broker, and wait until it answers."""
        self._expect_duplicates()
        self._lab.start(broker)
        self._lab.wait_until_listening([broker])

    def wait(self, links: Sequence[WiredLink]) -> None:
        """Wait until links are up."""
        self._lab.wait_until_linked(replace(self._lab.wiring, links=tuple(links)))
        self._stop_recording()

    def _replace_links(self, broker: str, links: Sequence[WiredLink]) -> None:
        lab = self._lab
        others = [link for link in lab.wiring.links if link.owner != broker]
        lab.wiring = replace(lab.wiring, links=tuple(sorted([*others, *links])))
        lab.configure(broker, lab.wiring)


def rehearse_live_change(old: Wiring, new: Wiring, rate: float = RATE) -> dict[str, Any]:
    """Make a change on real RabbitMQ nodes under load, without restarts; otherwise as `rehearse_change`."""
    stable = common(old, new)
    tally = DeliveryTally(stable)
    lab = RabbitLab(stable)
    change = RabbitChange(*(Deployment(wiring, lab.settings(), {}) for wiring in (old, new)))
    control = RabbitControl(change, lab.call, LINK_SECONDS)
    work = partial(apply_change, change, change.steps(), control, ChangeJournal(None))
    with lab, LabClients(lab.ports, tally.receive) as clients:
        lab.apply(lab.calls(old))
        lab.wait_until_linked(old)
        clients.subscribe(subscriptions(stable))
        counts = change_under_load(clients, tally, rate, [work])
    return counts | {"batches": 1, "restarts": 0}


class RestartSpans:
    """The times from the opening of sessions until no link has two ways, per batch of a change.

    That is when the last broker has stopped and the last session of an old link is closed or ended: a broker
    that is back queues messages for both links until then.

    It is called with each step in words, as `apply_change` reports them.
    """

    def __init__(self) -> None:
        self._steps: list[tuple[float, str, str]] = []

    def __call__(self, text: str) -> None:
        """Note the beginning of a step."""
        _, action, names = f"{text} ".split(" ", 2)
        self._steps.append((time.monotonic(), action, names.strip()))

    def spans(self) -> list[tuple[float, float]]:
        """Begin and end of each."""
        found = []
        begin = end = None
        for (at, action, _), (after, _, _) in pairwise([*self._steps, (math.inf, "", "")]):
            if action in ("open", "stop") and begin is None:
                begin = at
            if action in ("stop", "close", "end"):
                end = after
            if action == "wait" and begin is not None and end is not None:
                found.append((begin, end))
                begin = end = None
        return found

    def most_seconds_down(self) -> float:
        """The longest time from a broker's stop until it answered again; 0: none was stopped."""
        most = 0.0
        stopped: dict[str, float] = {}
        for (at, action, broker), (after, _, _) in pairwise([*self._steps, (time.monotonic(), "", "")]):
            if action == "stop":
                stopped[broker] = at
            elif action == "start" and broker in stopped:
                most = max(most, after - stopped.pop(broker))
        return most


def change_under_load(
    clients: LabClients,
    tally: DeliveryTally,
    rate: float,
    steps: Sequence[Callable[[], object]],
    restarts: RestartSpans | None = None,
) -> dict[str, Any]:
    """Take the steps while messages are published; returns their counts, and those of a round afterwards.

    Args:
        clients: the clients.
        tally: counts their messages.
        rate: messages per second.
        steps: the steps.
        restarts: the times of restarts, which the steps report; then the messages in flight are counted too.
    """
    with ChangeLoad(clients, tally, rate), stage("rewire brokers", len(steps)) as done:
        start = time.monotonic()
        for number, step in enumerate(steps, 1):
            step()
            done(number)
        seconds = time.monotonic() - start
    settle(clients, tally)
    counts = tally.counts()
    flying: dict[str, float] = {}
    if restarts is not None:
        flying = tally.in_flight(restarts.spans()) | {"most_seconds_down": restarts.most_seconds_down()}
    first = len(tally.published)
    publish_all(clients, tally, sample_messages(tally.wiring))
    settle(clients, tally)
    after = tally.counts(first)
    return {
        "published": counts["published"],
        "expected": counts["expected"],
        "lost": counts["missing"],
        "doubled": counts["duplicates"],
        **flying,
        "unexpected": counts["unexpected"],
        "seconds": seconds,
        "afterwards": {key: after[key] for key in ("expected", "missing", "duplicates", "unexpected")},
    }


class ChangeLoad:
    """Context manager that publishes at a constant rate in a background thread."""

    def __init__(self, clients: LabClients, tally: DeliveryTally, rate: float) -> None:
        self._clients = clients
        self._tally = tally
        self._rate = rate
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
        start = time.monotonic()
        sent = 0
        messages = cycle(sample_messages(self._tally.wiring))
        while not self._stop.is_set():
            while sent < (time.monotonic() - start) * self._rate and (message := next(messages, None)):
                publish_one(self._clients, self._tally, message)
                sent += 1
            self._clients.poll(1 / self._rate)

"""A rehearsal of a change: real brokers under load are rewired step by step; what was lost and doubled?"""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from itertools import cycle
from typing import Any

from broadloom.deployment._clients import Clients, end_session, subscribe, unsubscribe
from broadloom.deployment.diff import Batch, order
from broadloom.deployment.flow import sample_messages
from broadloom.deployment.lab import Lab
from broadloom.deployment.rehearsal import ready
from broadloom.deployment.tally import PAYLOAD_BYTES, Tally, publish_all, settle
from broadloom.deployment.wiring import Wiring
from broadloom.progress import stage

RATE = 300.0
CALM_SECONDS = 0.5  # of load before the first step, and after the last one


def rehearse_change(
    old: Wiring, new: Wiring, rate: float = RATE, queued: bool = True, at_once: bool = False
) -> dict[str, Any]:
    """Run the change under load; counts of the load, and of a round of messages afterwards.

    What is published and counted is what brokers want in both plans.

    Args:
        old: how brokers are linked.
        new: how they are to be linked.
        rate: messages a second, over all brokers.
        queued: whether sessions of new links are opened before old links go, as the batches say.
        at_once: whether all brokers that change restart together.
    """
    stable = common(old, new)
    batches, tally = order(old, new, at_once), Tally(stable)
    if not queued:
        batches = [batch._replace(opened=(), grown=()) for batch in batches]
    with Lab(replace(stable, links=old.links)) as lab, Clients(lab.ports, tally.heard) as clients:
        ready(lab, clients, replace(stable, links=old.links))
        load = _Load(clients, tally, rate)
        with load, stage("rewire brokers", len(batches)) as done:
            began = time.monotonic()
            for number, batch in enumerate(batches, 1):
                _take(lab, batch)
                done(number)
            seconds = time.monotonic() - began
        settle(clients, tally)
        counts, first = tally.counts(), len(tally.published)
        publish_all(clients, tally, sample_messages(stable))
        settle(clients, tally)
        after = tally.counts(first)
    lost, doubled = counts["missing"], counts["duplicates"]
    return {
        "published": counts["published"],
        "expected": counts["expected"],
        "lost": lost,
        "doubled": doubled,
        "unexpected": counts["unexpected"],
        "batches": len(batches),
        "restarts": sum(len(batch.brokers) for batch in batches),
        "seconds": seconds,
        "afterwards": {key: after[key] for key in ("expected", "missing", "duplicates", "unexpected")},
    }


def common(old: Wiring, new: Wiring) -> Wiring:
    """The brokers of both, with what is wanted in both."""
    brokers = tuple(dict.fromkeys((*old.brokers, *new.brokers)))
    wants = {
        broker: tuple(sorted(set(old.wants.get(broker, ())) & set(new.wants.get(broker, ()))))
        for broker in brokers
    }
    return Wiring(brokers, wants, {}, ())


class _Load:
    """Publishes at a steady rate, in a thread of its own, while the block runs."""

    def __init__(self, clients: Clients, tally: Tally, rate: float) -> None:
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


def _take(lab: Lab, batch: Batch) -> None:
    """Restart the brokers of a batch with their new files, and see to the sessions of links meanwhile."""
    for session in batch.opened:
        subscribe(lab.ports[session.broker], session.client, session.filters)
    for broker in batch.brokers:
        lab.stop(broker)
    down = set(batch.brokers)
    lab.wiring = replace(lab.wiring, links=batch.links)
    for broker in lab.wiring.brokers:
        if broker not in down:
            _see_to_sessions(lab, batch, broker)
    for broker in reversed(
        lab.wiring.brokers
    ):  # a peer before the owner of the link, who would use its session
        if broker in down:
            lab.configure(broker, lab.wiring)
            lab.start(broker)
            lab.wait_until_listening([broker])
            _see_to_sessions(lab, batch, broker)
    touched = tuple(link for link in batch.links if down.intersection(link[:2]))
    lab.wait_until_linked(replace(lab.wiring, links=touched))


def _see_to_sessions(lab: Lab, batch: Batch, broker: str) -> None:
    """Let a broker forget links that are gone, and keep for links that stay what these will carry."""
    port = lab.ports[broker]
    for _, client, filters in (session for session in batch.grown if session.broker == broker):
        subscribe(port, client, filters)
    for _, client, filters in (session for session in batch.shrunk if session.broker == broker):
        unsubscribe(port, client, filters)
    for _, client, _ in (session for session in batch.ended if session.broker == broker):
        end_session(port, client)

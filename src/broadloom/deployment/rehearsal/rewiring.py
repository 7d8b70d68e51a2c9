"""A rehearsal of a change: real brokers under load are rewired step by step; what was lost and doubled?"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import cycle
from typing import Any

from broadloom.deployment.diff import Batch, common, order
from broadloom.deployment.flow import sample_messages
from broadloom.deployment.rehearsal._clients import Clients
from broadloom.deployment.rehearsal.lab import Lab
from broadloom.deployment.rehearsal.rabbitmq_lab import RabbitLab
from broadloom.deployment.rehearsal.rehearsal import ready, subscriptions
from broadloom.deployment.rehearsal.tally import PAYLOAD_BYTES, Tally, publish_all, settle
from broadloom.deployment.targets import rabbitmq
from broadloom.deployment.wiring import Wiring
from broadloom.mqtt.stand_in_sessions import update_session
from broadloom.progress import stage

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
    batches, tally = order(old, new, at_once), Tally(stable)
    if not queued:
        batches = [batch._replace(opened=(), grown=()) for batch in batches]
    with Lab(replace(stable, links=old.links)) as lab, Clients(lab.ports, tally.heard) as clients:
        ready(lab, clients, replace(stable, links=old.links))
        steps = [partial(_take, lab, batch) for batch in batches]
        told = _under_load(clients, tally, rate, steps)
    return told | {"batches": len(batches), "restarts": sum(len(batch.brokers) for batch in batches)}


def rehearse_live_change(old: Wiring, new: Wiring, rate: float = RATE) -> dict[str, Any]:
    """The same on RabbitMQ, which restarts nothing: all is added first, and removed then."""
    stable = common(old, new)
    tally = Tally(stable)
    lab = RabbitLab(stable)
    adds, removals = rabbitmq.change(old, new, lab.settings())

    def add() -> None:
        lab.apply(adds)
        lab.wait_until_linked(new)

    with lab, Clients(lab.ports, tally.heard) as clients:
        lab.apply(lab.calls(old))
        lab.wait_until_linked(old)
        clients.subscribe(subscriptions(stable))
        told = _under_load(clients, tally, rate, [add, partial(lab.apply, removals)])
    return told | {"batches": 2, "restarts": 0}


def _under_load(
    clients: Clients, tally: Tally, rate: float, steps: Sequence[Callable[[], None]]
) -> dict[str, Any]:
    """Take the steps while messages are published; what came of these, and of a round of them afterwards."""
    with _Load(clients, tally, rate), stage("rewire brokers", len(steps)) as done:
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
    """Do what a batch says, and wait until its links are up."""
    lab.wiring = replace(lab.wiring, links=batch.links)
    for what, broker, session in batch.acts():
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

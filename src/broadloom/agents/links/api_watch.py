"""Watch of the subscriptions at an EMQX, NATS or RabbitMQ: by polling its API, and by EMQX's events."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable, Collection
from pathlib import Path

from broadloom.agents.links.followed_sessions import MOST_FILTERS, wanted_filter
from broadloom.deployment import FleetBroker
from broadloom.errors import BroadloomError
from broadloom.mqtt.client_session import BrokerRefusedError, ClientSession, SessionHandler, watched_task
from broadloom.mqtt.endpoint import Endpoint
from broadloom.mqtt.packets import PUBACK, Connack, Publish, acknowledgement
from broadloom.storage import write_file

POLL_SECONDS = 0.5
LONGEST_WAIT = 30.0
CPU_SHARE = 0.05  # of one core for polls
EVENTS = "$SYS/brokers/+/clients/+/+"  # connected, disconnected, subscribed, unsubscribed
MOST_STATE = 64 << 20  # bytes
_ADVICE = {
    "emqx": "the address of its API, such as http://host:18083, and api_login",
    "nats": "the address of its monitoring port, such as http://host:8222",
    "rabbitmq": "the address of its management API, such as http://host:15672, and api_login",
}


class ApiWatch(SessionHandler):
    """Follows the subscriptions at one broker by its API.

    Each poll reads all subscriptions, so nothing is missed for longer than one interval. A poll that fails
    drops nothing. The interval grows with the time that a poll takes, so that polls use a twentieth of a core
    at most.

    Args:
        broker: the broker.
        endpoint: its MQTT endpoint, for EMQX's events.
        changed: called when `current` can have changed.
        ready: called when `current` is known.
        problem: called with what an operator should know.
        state: the file for the filters; None: they are forgotten with the process.

    Attributes:
        is_complete: whether the latest poll has read all subscriptions.
        is_answered: set from the beginning, since a poll reads what was subscribed before.
        polls: the number of polls so far.
    """

    def __init__(
        self,
        broker: FleetBroker,
        endpoint: Endpoint,
        changed: Callable[[], None],
        ready: Callable[[], None],
        problem: Callable[[str], None],
        state: Path | None,
    ) -> None:
        self.is_complete = False
        self.is_answered = asyncio.Event()
        self.is_answered.set()
        self.polls = 0
        self.solved: Callable[[str], None] = lambda _: None
        self._told: set[str] = set()
        self._broker = broker
        self._changed = changed
        self._ready = ready
        self._problem = problem
        self._state = state
        self._filters: set[str] = set()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._events: ClientSession | None = None
        if broker.kind == "emqx":
            client = f"broadloom-watch-{broker.name}"
            self._events = ClientSession(broker.name, client, endpoint, self, kept=False)

    def current(self) -> Collection[str]:
        """The topic filters that clients want now."""
        return self._filters

    async def start(self) -> None:
        """Begin to poll."""
        known = self._load_state()
        urls = [source for source in self._broker.subscription_sources() if "://" in source]
        if not urls:
            self._problem(
                f"subscriptions at broker {self._broker.name!r} cannot be followed: give "
                f"{_ADVICE[self._broker.kind]}, as `subscriptions` in [brokers.{self._broker.name}]"
            )
            return
        if known:
            self._ready()
        self._task = watched_task(self._poll(urls))
        if self._events is not None:
            self._events.start()

    async def stop(self, forget: bool = False) -> None:
        """End."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._events is not None:
            await self._events.stop(forget)

    async def _poll(self, urls: list[str]) -> None:
        wait = POLL_SECONDS
        while True:
            self._wake.clear()
            began = time.monotonic()
            found, problems, cpu = await asyncio.to_thread(_read, self._broker, urls)
            self.polls += 1
            self._take(found, problems)
            if problems and not found:
                wait = min(2 * wait, LONGEST_WAIT)
            else:
                wait = max(POLL_SECONDS, cpu / CPU_SHARE, 2 * (time.monotonic() - began))
            try:
                async with asyncio.timeout(wait * random.uniform(0.9, 1.0)):  # noqa: S311
                    await self._wake.wait()
                await asyncio.sleep(max(POLL_SECONDS / 10, cpu / CPU_SHARE))
            except TimeoutError:
                continue

    def _take(self, found: set[str], problems: list[str]) -> None:
        told = {f"subscriptions at broker {self._broker.name!r}: {text}" for text in problems}
        for text in sorted(told):
            self._problem(text)
        for text in self._told - told:
            self.solved(text)
        self._told = told
        if len(found) > MOST_FILTERS:
            self._problem(f"broker {self._broker.name!r} has more than {MOST_FILTERS:,} topic filters")
            found = set(sorted(found)[:MOST_FILTERS])
        self.is_complete = not problems
        filters = self._filters | found if problems else found
        if filters != self._filters:
            self._filters = filters
            self._save_state()
        if not problems:
            self._ready()
        self._changed()

    def _load_state(self) -> bool:
        """Take the filters of an earlier run; False: there are none."""
        if self._state is None:
            return False
        try:
            if self._state.stat().st_size > MOST_STATE:
                return False
            self._filters = {str(text) for text in json.loads(self._state.read_bytes())["filters"]}
        except (OSError, ValueError, TypeError, KeyError):
            return False
        return True

    def _save_state(self) -> None:
        if self._state is None:
            return
        try:
            write_file(self._state, json.dumps({"filters": sorted(self._filters)}).encode())
        except BroadloomError as error:
            self._problem(str(error))

    # Callbacks of the session for EMQX's events: each event makes the next poll begin now.

    async def opened(self, session: ClientSession, connack: Connack) -> None:  # noqa: ARG002
        """Subscribe to the events."""
        try:
            await session.subscribe([EVENTS], retained=False)
        except BrokerRefusedError:  # polls go on
            return

    def arrived(self, session: ClientSession, message: Publish) -> None:
        """An event has arrived."""
        if message.number:
            session.send(acknowledgement(PUBACK, message.number))
        self._wake.set()


def _read(broker: FleetBroker, urls: list[str]) -> tuple[set[str], list[str], float]:
    """The filters that the APIs show, what is wrong with them, and the CPU time of this thread."""
    from broadloom.discovery.subscription_sources import read_source

    began = time.thread_time()
    found: set[str] = set()
    problems = []
    for url in urls:
        findings = read_source(broker, url)
        if findings.problem is not None:
            problems.append(findings.problem)
        for row in findings.rows:
            if row.reason is None and row.filter is not None:
                wanted = wanted_filter(row.client or "", row.filter)
                if wanted is not None:
                    found.add(wanted)
    return found, problems, time.thread_time() - began

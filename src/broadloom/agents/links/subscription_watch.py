"""Watch of what ordinary clients subscribe to at one broker, whichever kind of broker it is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from broadloom.agents.links.api_watch import ApiWatch
from broadloom.agents.links.mosquitto_watch import MosquittoWatch
from broadloom.deployment import FleetBroker
from broadloom.mqtt.endpoint import Endpoint

LINGER = 2.0
GATHER_SECONDS = 0.02
ANSWER_SECONDS = 8.0  # for which other sessions wait; a session tries again to connect after 5 at most
_BUSY_SHARE = 0.1  # of the time that gathering can take
MOST_PROBLEMS = 100  # distinct ones; further ones are not told


class _Source(Protocol):
    """A way to follow the subscriptions at one broker."""

    is_complete: bool
    is_answered: asyncio.Event
    solved: Callable[[str], None]

    def current(self) -> Collection[str]:
        """The topic filters that clients want now."""

    async def start(self) -> None:
        """Begin."""

    async def stop(self, forget: bool = False) -> None:
        """End."""


class SubscriptionWatch:
    """Follows the topic filters that clients want at one broker.

    Our own clients do not count, and neither do topics that begin with `$`; a shared subscription counts as
    its filter.

    Args:
        broker: the broker; its `subscriptions` name log files, `mosquitto.db`, or an API.
        endpoint: its endpoint.
        on_filters: called in the event loop with all filters, in order, when they are first known and when
            they have changed.
        on_problem: called with one line that an operator should know, once per problem until it is solved.
        state: the file in which the state survives a restart; None: nowhere.
        linger: seconds for which a filter stays wanted after the last client has left, so that a client
            that reconnects changes nothing.
        on_notice: called with each notice in the log of a Mosquitto.
        on_solved: called with the line of a problem that has ended.
    """

    def __init__(
        self,
        broker: FleetBroker,
        endpoint: Endpoint,
        on_filters: Callable[[tuple[str, ...]], None],
        on_problem: Callable[[str], None],
        state: Path | None = None,
        linger: float = LINGER,
        on_notice: Callable[[str], None] | None = None,
        on_solved: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._on_filters = on_filters
        self._on_problem = on_problem
        self._on_solved = on_solved
        self._linger = linger
        self._problems: set[str] = set()
        self._filters: set[str] | None = None
        self._leaving: dict[str, float] = {}
        self._is_ready = False
        self._is_stopped = False
        self._timer: asyncio.TimerHandle | None = None
        self._gather = GATHER_SECONDS
        kind = MosquittoWatch if broker.kind == "mosquitto" else ApiWatch
        self._source: _Source = kind(broker, endpoint, self._changed, self._ready, self._problem, state)
        self._source.solved = self._solved
        if on_notice is not None and isinstance(self._source, MosquittoWatch):
            self._source.on_notice = on_notice

    @property
    def filters(self) -> tuple[str, ...] | None:
        """The filters that were last told; None: they are not known yet."""
        return None if self._filters is None else tuple(sorted(self._filters))

    @property
    def is_complete(self) -> bool:
        """Whether the broker itself confirms that no subscription is missing."""
        return self._source.is_complete

    async def answered(self) -> None:
        """Wait, but not forever, until the watch sees what is subscribed from now on.

        Each session of the agent calls this before it subscribes: the broker counts its subscriptions, so the
        watch must have seen them.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._source.is_answered.wait()

    async def start(self) -> None:
        """Begin to follow; returns before the broker has answered."""
        await self._source.start()

    async def stop(self, forget: bool = False) -> None:
        """End.

        Args:
            forget: whether the broker should forget the session that follows its log.
        """
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
        await self._source.stop(forget)

    def _problem(self, text: str) -> None:
        if text not in self._problems and len(self._problems) < MOST_PROBLEMS:
            self._problems.add(text)
            self._on_problem(text)

    def _solved(self, text: str) -> None:
        if text in self._problems:
            self._problems.discard(text)
            self._on_solved(text)

    def _ready(self) -> None:
        if not self._is_ready:
            self._is_ready = True
            self._tell()

    def _changed(self) -> None:
        if self._is_ready:
            self._schedule(self._gather)

    def _schedule(self, delay: float) -> None:
        """Call `_tell` after a delay, unless it is called sooner anyway."""
        loop = asyncio.get_running_loop()
        if self._is_stopped or (self._timer is not None and self._timer.when() <= loop.time() + delay):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_later(delay, self._tell)

    def _tell(self) -> None:
        """Tell the filters if they have changed; those that nobody wants any more leave later."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if self._is_stopped:
            return
        began = time.perf_counter()
        now = asyncio.get_running_loop().time()
        current = set(self._source.current())
        left = (self._filters or set()) - current
        self._leaving = {text: self._leaving.get(text, now + self._linger) for text in left}
        current.update(text for text, end in self._leaving.items() if end > now)
        if current != self._filters:
            self._filters = current
            self._on_filters(tuple(sorted(current)))
        self._gather = max(GATHER_SECONDS, (time.perf_counter() - began) / _BUSY_SHARE)
        waiting = [end for end in self._leaving.values() if end > now]
        if waiting:
            self._schedule(max(min(waiting) - now, self._gather))

"""Moves of clients as a part of the controller: its links follow the clients that move."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

from broadloom.agents.links.client_watch import watch_clients
from broadloom.agents.links.loop_calls import ask_loop
from broadloom.agents.moves.move_service import AgentConfig, serving
from broadloom.errors import BroadloomError, InputError

if TYPE_CHECKING:
    from broadloom.deployment import Fleet

LOG = logging.getLogger("broadloom.live")
RESTART_SECONDS = 5.0  # before moves that have failed are started again
WATCH_SECONDS = 0.2


class RequestedLinks(Protocol):
    """Links of a controller, as moves request them; all calls are in its event loop."""

    def request(self, filters: Mapping[str, Collection[str]], number: int) -> None:
        """Plan links for all filters that moving clients need, by broker; numbers of requests rise."""

    def has_carried(self, broker: str, filters: Iterable[str], number: int) -> bool:
        """Whether the request with a number is followed, and links carry filters to and from a broker."""


class ControllerLinks:
    """`ClientLinks` of a controller, for the agent that moves clients.

    Nothing is requested before `begin`: then the agent has asked for the links of all known clients.

    Args:
        links: the controller's links.
        loop: its event loop.
        brokers: the brokers of the fleet.
    """

    def __init__(
        self, links: RequestedLinks, loop: asyncio.AbstractEventLoop, brokers: Iterable[str]
    ) -> None:
        self._links = links
        self._loop = loop
        self._needs: dict[str, dict[str, int]] = {name: {} for name in brokers}  # with their requests
        self._number = time.monotonic_ns()  # higher than the numbers of an earlier run
        self._has_begun = False
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Request what was asked for so far."""
        with self._lock:
            self._has_begun = True
            self._send()

    def carry(self, broker: str, filters: Collection[str]) -> None:
        """Start to carry messages of these filters to and from a broker."""
        with self._lock:
            needs = self._needs_of(broker)
            new = set(filters) - needs.keys()
            if new:
                self._number += 1
                needs.update(dict.fromkeys(new, self._number))
                self._send()

    def release(self, broker: str, filters: Collection[str]) -> None:
        """Stop carrying messages of these filters, unless clients that do not move want them."""
        with self._lock:
            needs = self._needs_of(broker)
            old = needs.keys() & set(filters)
            if old:
                self._number += 1
                for text in old:
                    del needs[text]
                self._send()

    def carried(self, broker: str, filters: Collection[str]) -> bool:
        """Whether links carry messages of these filters to and from a broker."""
        with self._lock:
            needs = self._needs_of(broker)
            if not self._has_begun or not set(filters) <= needs.keys():
                return False
            number = max((needs[text] for text in filters), default=0)
        return ask_loop(self._loop, lambda: self._links.has_carried(broker, filters, number), False)

    def _needs_of(self, broker: str) -> dict[str, int]:
        if broker not in self._needs:
            raise InputError(f"the fleet has no broker {broker!r:.60}; it has {', '.join(self._needs)}")
        return self._needs[broker]

    def _send(self) -> None:
        if self._has_begun:
            needs = {broker: tuple(sorted(texts)) for broker, texts in self._needs.items()}
            self._loop.call_soon_threadsafe(self._links.request, needs, self._number)


class ControllerMoves:
    """Agent that moves clients, in threads of the controller's process; links do not depend on it.

    Args:
        links: the controller's links.
        config: the configuration of the agent.
        fleet: the fleet.

    Attributes:
        problem: why clients are not moved now; empty: they are.

    Raises:
        InputError: the configuration has a broker that the fleet does not have, or links of its own.
    """

    def __init__(self, links: RequestedLinks, config: AgentConfig, fleet: Fleet) -> None:
        check_moves(config, fleet)
        self.problem = ""
        self._links = links
        self._config = config
        self._brokers = tuple(fleet.brokers)
        self._loop = asyncio.get_running_loop()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="broadloom-moves", daemon=True)

    def start(self) -> None:
        """Start to move clients."""
        self._thread.start()

    def stop(self) -> None:
        """End; blocks, so call it in a thread other than that of the event loop."""
        self._over.set()
        self._thread.join()

    def _keep(self) -> None:
        """Run the agent; start it again if it fails, which does not concern the links."""
        while not self._over.is_set():
            try:
                self._run()
                reason = "it has failed"
            except BroadloomError as error:
                reason = str(error)
            except Exception as error:
                LOG.exception("the agent that moves clients has failed")
                reason = type(error).__name__
            if not self._over.is_set():
                before = self.problem
                self.problem = f"clients are not moved: {reason}"
                if self.problem != before:  # one line per reason
                    LOG.error("%s; trying again", self.problem)
                self._over.wait(RESTART_SECONDS)

    def _run(self) -> None:
        """Run the agent until it fails, or all is over."""
        links = ControllerLinks(self._links, self._loop, self._brokers)
        with serving(self._config, links=links, see=watch_clients) as service:
            links.begin()
            self.problem = ""
            while service.thread.is_alive() and not self._over.wait(WATCH_SECONDS):
                self.problem = service.agent.problem


def check_moves(config: AgentConfig, fleet: Fleet) -> None:
    """Check that the controller of a fleet can have the links of an agent that moves clients.

    Raises:
        InputError: the configuration has a broker that the fleet does not have, or links of its own.
    """
    if config.links is not None:
        raise InputError(f"{config.file} has [links], but the controller holds the links; remove the section")
    unknown = sorted(config.brokers.keys() - fleet.brokers.keys())
    if unknown:
        raise InputError(
            f"{config.file} has broker {unknown[0]!r:.60}, but {fleet.path or 'the fleet'} does not; "
            "give brokers the same names in both"
        )

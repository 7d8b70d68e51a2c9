"""Site agents in the process of their controller, which keeps them running and hands them their orders."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from broadloom.agents.monitoring import RateLimitedLog
from broadloom.errors import BroadloomError

if TYPE_CHECKING:
    from broadloom.agents.links.fleet_controller import FleetController
    from broadloom.agents.links.route_orders import AgentReport
    from broadloom.agents.links.site_agent import SiteAgent

LOG = logging.getLogger("broadloom.live")
REPORT_SECONDS = 0.02  # for which changes of an agent are gathered
HEARTBEAT_SECONDS = 2.0  # between reports
RESTART_SECONDS = 5.0  # before an agent that has ended is started again


class RunnableAgent(Protocol):
    """A site agent, perhaps with what belongs to it."""

    agent: SiteAgent

    async def start(self, take_over: bool = False) -> None:
        """Start it."""

    async def stop(self) -> None:
        """Finish the messages in flight, and disconnect."""


A = TypeVar("A", bound=RunnableAgent)


class EmbeddedAgents(Generic[A]):
    """Agents in the process of their controller.

    Args:
        controller: the controller.
        receive: takes the report of an agent.
        take_over: whether agents replace others, whose state is lost, when they start for the first time.

    Attributes:
        running: the agents that run now, by broker.
    """

    def __init__(
        self,
        controller: FleetController,
        receive: Callable[[AgentReport], object],
        take_over: bool = False,
    ) -> None:
        self.running: dict[str, A] = {}
        self._controller = controller
        self._receive = receive
        self._take_over = take_over
        self._dirty: set[str] = set()  # agents whose report has changed
        self._log = RateLimitedLog(LOG, most=2)

    async def keep(self, broker: str, make: Callable[[], A]) -> None:
        """Run the agent of a broker until this is cancelled; if it has to end, start another one."""
        take_over = self._take_over
        while True:
            held = make()
            held.agent.on_change = lambda: self._dirty.add(broker)
            try:
                await held.start(take_over)
                take_over = False
                self.running[broker] = held
                self._apply(broker)
                await held.agent.failed
            except BroadloomError as error:
                self._log.warn(f"agent {broker}", "the agent of %s: %s", broker, error)
            finally:
                self.running.pop(broker, None)
                await held.stop()
            await asyncio.sleep(RESTART_SECONDS)

    def spread(self, brokers: set[str]) -> None:
        """Give agents their new orders, soon."""
        for broker in brokers & self.running.keys():
            asyncio.get_running_loop().call_soon(self._apply, broker)

    async def relay(self) -> None:
        """Take the reports of agents: soon after a change, and now and then."""
        loop = asyncio.get_running_loop()
        last = loop.time()
        while True:
            if loop.time() - last > HEARTBEAT_SECONDS:
                last = loop.time()
                self._dirty.update(self.running)
            dirty, self._dirty = self._dirty, set()
            for broker in sorted(dirty & self.running.keys()):
                self._receive(self.running[broker].agent.report(self._controller.asks_routes))
            await asyncio.sleep(REPORT_SECONDS)

    def _apply(self, broker: str) -> None:
        held = self.running.get(broker)
        orders = self._controller.orders_for(broker)
        self._dirty.add(broker)
        if held is None or orders.epoch.number == 0:
            return
        try:
            held.agent.apply(orders)
        except BroadloomError as error:
            self._log.warn("orders", "%s", error)

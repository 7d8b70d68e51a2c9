"""A run of the agent: it follows a source of plans until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, NamedTuple

import numpy as np

from broadloom.agents.links.agent import Agent
from broadloom.agents.links.metrics import serve_metrics
from broadloom.agents.links.session import PART_FAILED
from broadloom.agents.links.source import Source
from broadloom.agents.links.targets import targets
from broadloom.deployment.deployment_inputs import Publication
from broadloom.errors import InputError
from broadloom.plans import Plan

LOG = logging.getLogger("broadloom.live")
POLL_SECONDS = 0.1


class Sent(NamedTuple):
    """A broker, by its id, whose clients publish a topic."""

    broker: str
    topic: str
    rate: float = 0.0


class Run:
    """An agent and what it follows.

    Args:
        agent: the agent.
        source: where plans come from.
        sent: who publishes what.
        least: trees of least "latency" or "weight".
        slack: as for `plan_trees`.

    Attributes:
        plans: how many plans have come.
        refused: whether the last one could not be followed, so that links are as they were.
    """

    def __init__(
        self,
        agent: Agent,
        source: Source,
        sent: Iterable[Sent] = (),
        least: str = "latency",
        slack: float = 0.1,
    ) -> None:
        self.agent, self._source, self._sent = agent, source, tuple(sent)
        self._least, self._slack = least, slack
        self._stop = asyncio.Event()
        self.plans, self.refused = 0, False

    def stop(self) -> None:
        """Let `follow` end."""
        self._stop.set()

    async def follow(self) -> None:
        """Hold links, and change them with each new plan, until `stop` is called."""
        while not self._stop.is_set():
            plan = await self._poll()
            if plan is not None:
                await self._aim(plan)
                self.plans += 1
            try:
                await asyncio.wait_for(self._stop.wait(), POLL_SECONDS)
            except TimeoutError:
                continue

    async def _poll(self) -> Plan | None:
        try:
            return await asyncio.to_thread(self._source.poll)
        except (InputError, OSError) as error:
            LOG.error("changes cannot be read: %s", error)
            return None

    async def _aim(self, plan: Plan) -> None:
        since = asyncio.get_running_loop().time()
        index = {broker: number for number, broker in enumerate(plan.interest.node_ids)}
        sent = [
            Publication(index[broker], topic, rate) for broker, topic, rate in self._sent if broker in index
        ]
        before = {filters: group.target for filters, group in self.agent.groups.items()}
        try:
            wanted = await asyncio.to_thread(targets, plan, sent, before, self._least, self._slack)
            self.agent.check_addresses(wanted)
            self.refused = False
        except InputError as error:
            self.agent.counts["plans_refused"] += 1
            self.refused = True
            LOG.error("a plan is not followed: %s", error)
            if not before:
                raise  # the first one: there is nothing to hold
            return
        self.agent.aim(wanted, since)


async def serve(run: Run, metrics: int | None = None, ready: Callable[[], None] = lambda: None) -> None:
    """Run until SIGTERM or SIGINT, then finish what is on its way and disconnect.

    Args:
        run: the agent, and what it follows.
        metrics: the port of the numbers on loopback; None: none.
        ready: called when the links of the first plan are up.
    """
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, run.stop)
    await work(run, metrics, ready)


async def work(
    run: Run,
    metrics: int | None = None,
    ready: Callable[[], None] = lambda: None,
    begun: Callable[[], None] = lambda: None,
) -> None:
    """As `serve`, until the run is told to stop; `begun` is called when all is ready to follow."""
    server = None if metrics is None else await serve_metrics(run.agent, metrics)
    await run.agent.start()
    begun()
    settled = asyncio.create_task(_tell(run, ready))
    try:
        await _while_whole(run.follow())
    finally:
        settled.cancel()
        await run.agent.stop()
        if server is not None:
            server.close()


async def take_down(agent: Agent) -> None:
    """Take all links of an earlier agent down, with nothing left in their queues."""
    await agent.start()
    agent.aim({})
    try:
        await _while_whole(agent.settled())
    finally:
        await agent.stop()


def summary(agent: Agent) -> dict[str, Any]:
    """What an agent has done."""
    lanes = [lane for link in agent.links.values() for lane in link.lanes.values()]
    names = ("messages", "bytes", "dropped", "refused")
    spread = {
        f"seconds_p{part}": float(np.percentile(agent.seconds, part)) for part in (50, 99) if agent.seconds
    }
    return (
        {"links": len(agent.links), "groups": len(agent.groups), "changes": agent.counts["changes"]}
        | {name: sum(lane.counts[name] for lane in lanes) for name in names}
        | spread
    )


async def _tell(run: Run, ready: Callable[[], None]) -> None:
    while not (run.plans and run.agent.is_up()):
        await asyncio.sleep(POLL_SECONDS)
    ready()


async def _while_whole(work: Coroutine[None, None, None]) -> None:
    """Do something; should a part of the agent die, end with its fault, for links would stand still."""
    died = asyncio.get_running_loop().create_future()

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        loop.default_exception_handler(context)
        if context["message"] == PART_FAILED and not died.done():
            died.set_exception(context["exception"])

    asyncio.get_running_loop().set_exception_handler(handle)
    working = asyncio.create_task(work)
    try:
        await asyncio.wait({working, died}, return_when=asyncio.FIRST_COMPLETED)
        await (died if died.done() else working)
    finally:
        working.cancel()
        died.cancel()

"""Links that follow clients which move: a link agent in a thread, beside the agent that moves them."""

from __future__ import annotations

import asyncio
import logging
import ssl
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path

from broadloom.agents.links.agent import Agent
from broadloom.agents.links.link_config import LinkConfig
from broadloom.agents.links.planned_links import PlannedLinks
from broadloom.agents.links.serve import Run, work
from broadloom.agents.links.session import Door
from broadloom.agents.moves.address import Address, Login
from broadloom.agents.moves.config import AgentConfig
from broadloom.mqtt import packets
from broadloom.plans import Plan

LOG = logging.getLogger("broadloom.live")


class LinksBeside:
    """Holds the links that moving clients need, from `start` to `stop`.

    Args:
        plan: the links to begin with.
        topics: the filters that links carry; None: whatever clients want.
        door: how to reach a broker.
        state: the folder of what survives a crash.
        patience: how many seconds a change waits for a broker that is away.
        metrics: the port of the numbers on loopback; None: none.

    Attributes:
        links: what the agent that moves clients asks for them.
    """

    def __init__(
        self,
        plan: Plan,
        topics: Iterable[str] | None,
        door: Callable[[str], Door],
        state: Path,
        patience: float = 10.0,
        metrics: int | None = None,
    ) -> None:
        self.links = PlannedLinks(plan, self._is_reached, topics)
        self._agent, self._metrics = Agent(door, state, patience), metrics
        self._run = Run(self._agent, self.links)
        self._thread: threading.Thread | None = None
        self._begun: Future[asyncio.AbstractEventLoop] = Future()

    def start(self, failed: Callable[[], None] = lambda: None) -> None:
        """Begin; what clients need should be asked for before, or links of an earlier run are taken down.

        Args:
            failed: called if links fail later, and end.

        Raises:
            InputError: the port for metrics cannot be had.
        """
        self._thread = threading.Thread(
            target=self._hold, args=(failed,), name="broadloom-links", daemon=True
        )
        self._thread.start()
        self._begun.result()

    def down(self) -> list[str]:
        """The brokers at which a link is not up: they are away, or refuse it."""
        links = list(self._agent.links.values())
        sessions = [session for link in links for session in link.sessions.values()]
        return sorted({session.broker for session in sessions if not session.up.is_set()})

    def stop(self) -> None:
        """Finish what is on its way, and disconnect; brokers keep the sessions."""
        if not self._begun.done() or self._begun.exception() is not None:
            asyncio.run(self._agent.stop())
        elif self._thread is not None and self._thread.is_alive():
            with suppress(RuntimeError):  # its loop has just ended by itself
                self._begun.result().call_soon_threadsafe(self._run.stop)
            self._thread.join()

    def _hold(self, failed: Callable[[], None]) -> None:
        async def hold() -> None:
            loop = asyncio.get_running_loop()
            await work(self._run, self._metrics, begun=lambda: self._begun.set_result(loop))

        try:
            asyncio.run(hold())
        except BaseException as error:  # of whatever kind: links stand still
            if not self._begun.done():
                self._begun.set_exception(error)
                return
            LOG.exception("links have failed")
            failed()

    def _is_reached(self, broker: str, topics: set[str], plans: int) -> bool:
        """Whether links carry topics to and from a broker, as so many plans have them."""
        followed = self._run.plans >= plans and not self._run.refused
        return followed and self._agent.carries(broker, topics)


def links_beside(config: AgentConfig) -> LinksBeside:
    """The links of a configuration, for `serving`.

    Raises:
        InputError: something in its section `[links]` is wrong, or another process has the state.
    """
    own = LinkConfig.of(config)
    door = doors_of(config.doors, own.login, own.window)
    return LinksBeside(own.plan, own.topics, door, own.state, own.patience, own.metrics)


def doors_of(addresses: Mapping[str, Address], login: Login, window: int) -> Callable[[str], Door]:
    """How a link agent reaches brokers where the agent that moves clients does.

    Examples:
        >>> doors_of({"rome": Address("10.0.0.1", 1884)}, Login(), window=500)("rome").port
        1884
    """
    context = None if login.ca is None else ssl.create_default_context(cafile=login.ca)
    if context is not None and login.certificate is not None:
        context.load_cert_chain(*login.certificate)
    known = None if login.user is None else packets.Login(login.user, login.password or "")

    def door(broker: str) -> Door:
        host, port = addresses[broker]
        return Door(host.strip("[]"), port, context, known, window=window)

    return door

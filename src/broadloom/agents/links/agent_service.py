"""Process of a site agent: the agent, its connections with the controller, and the watchers of its broker."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from broadloom.agents.links.controller_client import ControllerClient, ControllerConnection
from broadloom.agents.links.foreign_bridges import ForeignBridges
from broadloom.agents.links.ring_guard import hold_seconds
from broadloom.agents.links.round_trips import RoundTrips
from broadloom.agents.links.site_agent import AgentSettings, EndpointOf, SiteAgent
from broadloom.agents.links.stamps import FleetKey
from broadloom.agents.links.subscription_watch import SubscriptionWatch
from broadloom.agents.monitoring import LogLimit
from broadloom.checks import nearest_name
from broadloom.deployment.fleet_file import Fleet, FleetBroker
from broadloom.errors import InputError
from broadloom.mqtt.client_session import TASK_FAILED
from broadloom.mqtt.endpoint import Endpoint
from broadloom.storage import private_folder

LOG = logging.getLogger("broadloom.live")
AGENTS = "agents"  # folder of the agents' states
WATCH_FILE = "subscriptions.json"


def fleet_broker(fleet: Fleet, broker: str, address: str | None = None) -> FleetBroker:
    """A broker of a fleet, or one that has joined with an address of its own.

    Raises:
        InputError: the fleet has no such broker.
    """
    found = fleet.brokers.get(broker)
    if found is None:
        if address is None:
            hint = nearest_name(broker, fleet.brokers)
            raise InputError(
                f"{fleet.path or 'the fleet'} has no broker {broker!r:.80}{hint}; "
                f"there are {', '.join(list(fleet.brokers)[:20])}"
            )
        found = fleet.joined(broker, address)
    return found


def check_live(fleet: Fleet) -> None:
    """Check that all brokers of a fleet can have agents.

    Raises:
        InputError: a broker does not speak MQTT 5.

    Examples:
        >>> check_live(Fleet([FleetBroker("rome", "10.0.0.7", kind="nats")]))
        Traceback (most recent call last):
        broadloom.errors.InputError: broker 'rome' is a NATS server; only MQTT 5 brokers can have agents...
    """
    for name, broker in fleet.brokers.items():
        if broker.kind == "nats":
            raise InputError(
                f"broker {name!r} is a NATS server; only MQTT 5 brokers can have agents "
                "(mosquitto, emqx, rabbitmq): give the controller and the agents a fleet file without it"
            )


def fleet_endpoint_of(fleet: Fleet) -> EndpointOf:
    """The endpoints of the brokers of a fleet, each with its own address, TLS files and login.

    Examples:
        >>> endpoint = fleet_endpoint_of(Fleet([FleetBroker("rome", "10.0.0.7:1884", tls=None)]))
        >>> endpoint("rome", None).port, endpoint("oslo", "10.0.0.8").port
        (1884, 1883)
    """
    known: dict[tuple[str, str | None], Endpoint] = {}

    def endpoint(broker: str, address: str | None) -> Endpoint:
        if (broker, address) not in known:
            found = fleet_broker(fleet, broker, address)
            if found.login is not None and found.tls is None:
                LOG.warning("the password of broker %r is sent unencrypted, because TLS is off", broker)
            known[broker, address] = replace(found.endpoint(), window=fleet.live.window)
        return known[broker, address]

    return endpoint


def agent_settings(fleet: Fleet) -> AgentSettings:
    """The limits of the agents of a fleet."""
    return AgentSettings(hop_bytes=fleet.live.hop_bytes, total_bytes=fleet.live.agent_bytes)


def agent_folder(state: Path, broker: str) -> Path:
    """The folder of an agent's state, below the state of the controller or of the machine."""
    from urllib.parse import quote

    return state / AGENTS / quote(broker, safe="")


class BrokerWatcher(Protocol):
    """Something that watches a broker from `start` to `stop`."""

    async def start(self) -> None:
        """Begin."""

    async def stop(self) -> None:
        """End."""


class WatchedAgent:
    """Site agent with the watchers of its broker: what clients want, and round-trip times.

    Args:
        fleet: the fleet.
        broker: the broker.
        folder: the folder of the agent's state.
        key: the key of the fleet.
        address: the address of a broker that the fleet file does not have.
    """

    def __init__(
        self, fleet: Fleet, broker: str, folder: Path, key: FleetKey, address: str | None = None
    ) -> None:
        self._fleet = fleet
        self._broker = fleet_broker(fleet, broker, address)
        endpoint = fleet_endpoint_of(fleet)

        def with_own_address(name: str, text: str | None) -> Endpoint:
            return endpoint(name, address if name == broker and text is None else text)

        self._endpoint = with_own_address(broker, None)
        self._folder = folder
        self.agent = SiteAgent(broker, with_own_address, folder, key, agent_settings(fleet))
        self.agent.guard.hold = hold_seconds(broker, fleet.brokers)
        self._watchers: list[BrokerWatcher] = []
        self._is_over = False

    async def start(self, take_over: bool = False) -> None:
        """Start the watchers and the agent; what it subscribes is in the log that they follow.

        Raises as `SiteAgent.start`.
        """
        with suppress(OSError):  # the agent says why
            private_folder(self._folder)
        for watcher in broker_watchers(self._fleet, self._broker, self._endpoint, self.agent, self._folder):
            await watcher.start()
            self._watchers.append(watcher)
        await self.agent.start(take_over)

    async def stop(self) -> None:
        """Finish the messages in flight, and disconnect; does nothing the second time."""
        if not self._is_over:
            self._is_over = True
            await self._stop_watchers()
            await self.agent.stop()

    async def forget(self, seconds: float) -> list[tuple[str, str]]:
        """End all sessions; returns those that could not be removed in these seconds: broker and client."""
        self._is_over = True
        await self._stop_watchers(forget=True)
        return await self.agent.forget(seconds)

    async def _stop_watchers(self, forget: bool = False) -> None:
        for watcher in self._watchers:
            if isinstance(watcher, SubscriptionWatch):
                await watcher.stop(forget)
            else:
                await watcher.stop()
        self._watchers.clear()


def broker_watchers(
    fleet: Fleet, broker: FleetBroker, endpoint: Endpoint, agent: SiteAgent, folder: Path
) -> list[BrokerWatcher]:
    """The watchers of a broker: subscriptions of its clients, bridges made by hand, round-trip times."""
    others = {name: one.host_and_port() for name, one in fleet.brokers.items() if name != broker.name}
    places = {name: Endpoint(address.hostname, address.port) for name, address in others.items()}
    trips = RoundTrips(places, agent.set_round_trips)
    state = folder / WATCH_FILE
    if broker.kind != "mosquitto":
        watch = SubscriptionWatch(
            broker, endpoint, agent.set_filters, agent.problem, state, on_solved=agent.solved
        )
        return [watch, trips]
    bridges = ForeignBridges(
        broker.name,
        endpoint,
        agent.problem,
        lambda: agent.set_foreign_bridges(bridges.names),
        agent.solved,
    )
    watch = SubscriptionWatch(
        broker,
        endpoint,
        agent.set_filters,
        agent.problem,
        state,
        on_notice=bridges.notice,
        on_solved=agent.solved,
    )
    bridges.before_subscribing = watch.answered
    agent.before_subscribing = watch.answered
    return [watch, trips, bridges]


@dataclass(frozen=True)
class AgentOptions:
    """Options of `broadloom agent`.

    Attributes:
        fleet: the fleet.
        broker: the agent's broker.
        state: the folder of its state.
        take_over: whether to replace another agent, whose state is not in this folder.
        controller: the controller's address; None: that of the fleet file.
        address: the address of a broker that has joined and is not in the fleet file.
    """

    fleet: Fleet
    broker: str
    state: Path
    take_over: bool = False
    controller: str | None = None
    address: str | None = None


def controller_connection(fleet: Fleet, key: FleetKey, peer: str) -> ControllerConnection:
    """A connection to the controller of a fleet.

    Raises:
        InputError: a file cannot be used for TLS.
    """
    return ControllerConnection(fleet.live.address(), fleet.live.client_context(), key, peer)


async def serve_agent(options: AgentOptions, ready: Callable[[], None] = lambda: None) -> None:
    """Run the agent of a broker until SIGTERM or SIGINT, then finish the messages in flight and disconnect.

    Args:
        options: the options.
        ready: called when the agent has started.

    Raises:
        InputError: the fleet has no such broker or no key, an address is given for a broker of the fleet
            file, or another agent serves the broker.
        UnreachableError: another agent has taken over.
    """
    stop = stop_signal()
    fleet = options.fleet
    check_live(fleet)
    if options.address is not None and options.broker in fleet.brokers:
        raise InputError(f"broker {options.broker!r} is in the fleet file; leave out its address")
    if options.controller is not None:
        live = replace(fleet.live, controller=options.controller)
        fleet = Fleet(fleet.brokers.values(), fleet.links, fleet.path, live)
    key = FleetKey(fleet.live.key())
    watched = WatchedAgent(fleet, options.broker, options.state, key, options.address)
    agent = watched.agent
    client = ControllerClient(
        lambda: controller_connection(fleet, key, f"agent {options.broker}"), options.broker, agent
    )
    agent.on_change = client.changed
    starting = asyncio.ensure_future(watched.start(options.take_over))
    try:
        await first_of(starting, stop)
        if not starting.done():
            return
        starting.result()
        client.start()
        ready()
        await first_of(stop, agent.failed, task_failure())
        if agent.failed.done():
            agent.failed.result()
    finally:
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await client.stop()
        await watched.stop()


def stop_signal() -> asyncio.Future[None]:
    """A future that is done at SIGTERM or SIGINT."""
    loop = asyncio.get_running_loop()
    over = loop.create_future()

    def end() -> None:
        if not over.done():
            over.set_result(None)

    for name in (signal.SIGTERM, signal.SIGINT):
        if sys.platform == "win32":
            signal.signal(name, lambda *_: loop.call_soon_threadsafe(end))
        else:
            loop.add_signal_handler(name, end)
    return over


def task_failure() -> asyncio.Future[None]:
    """A future that fails with the error of a task of an agent that has failed: links would stop silently."""
    loop = asyncio.get_running_loop()
    failed = loop.create_future()

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        loop.default_exception_handler(context)
        if context["message"] == TASK_FAILED and not failed.done():
            failed.set_exception(context["exception"])

    loop.set_exception_handler(handle)
    return failed


async def first_of(*futures: asyncio.Future[None]) -> None:
    """Wait until one of some futures is done; raises its error. None of them is cancelled."""
    done, _ = await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
    for future in done:
        future.result()


def set_up_log(quiet: bool, verbose: bool) -> None:
    """Log to standard error: with timestamps, control characters escaped, and a limit per text and minute."""
    level = logging.INFO if verbose else logging.ERROR if quiet else logging.WARNING
    handler = logging.StreamHandler()
    handler.setFormatter(EscapingFormatter("%(asctime)s %(levelname)s %(message)s"))
    handler.addFilter(LogLimit(most=20))
    logging.basicConfig(level=level, handlers=[handler])


class EscapingFormatter(logging.Formatter):
    r"""Formatter that writes one line per record; control characters are escaped, except in tracebacks.

    Examples:
        >>> record = logging.LogRecord("a", logging.INFO, "", 0, "topic %s", ("a\x1b[2J",), None)
        >>> print(EscapingFormatter("%(message)s").format(record))
        topic a\x1b[2J
    """

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (a name of the standard library)
        """The line of a record."""
        text = super().formatMessage(record)
        if text.isprintable():
            return text
        return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)

"""Embedded links: a controller and site agents in a thread of the agent that moves clients."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from broadloom.agents.links.agent_service import agent_folder, first_of, task_failure
from broadloom.agents.links.embedded_agents import EmbeddedAgents
from broadloom.agents.links.fleet_controller import FleetController
from broadloom.agents.links.loop_calls import ask_loop
from broadloom.agents.links.planned_links import PlannedLinks
from broadloom.agents.links.planned_trees import Filters, Hops, target_trees
from broadloom.agents.links.route_orders import AgentReport
from broadloom.agents.links.site_agent import SiteAgent
from broadloom.agents.links.stamps import FleetKey
from broadloom.agents.monitoring import Family, labels
from broadloom.agents.moves.control_messages import is_client_filter
from broadloom.agents.moves.move_service import AgentConfig, login_of, part_of, text_of
from broadloom.agents.moves.traffic_summary import Site
from broadloom.checks import check_count, check_names, check_number
from broadloom.deployment.fleet_file import LARGEST_WINDOW
from broadloom.errors import InputError
from broadloom.model import Interest, Overlay, Weights, publishers_among
from broadloom.mqtt.client_session import watched_task
from broadloom.mqtt.endpoint import PASSWORD_VARIABLE, Address, Endpoint, Login
from broadloom.mqtt.reserved_topics import CONTROL_ROOT
from broadloom.plans import Plan
from broadloom.storage import RecordJournal, lock_private_folder

T = TypeVar("T")
LOG = logging.getLogger("broadloom.live")
WINDOW, PATIENCE = 500, 10.0
JOURNAL, KEY = "controller.journal", "fleet.key"
POLL_SECONDS = 0.1  # between two looks for a new plan
_LINKS = {"plan", "topics", "state", "login", "window", "patience"}
_HOP_COUNTS = {
    "messages": "forwarded messages",
    "bytes": "bytes of forwarded messages",
    "qos0_dropped": "messages of QoS 0 dropped because the far broker was absent or too slow",
    "dead_letters": "messages that the far broker does not take",
}


class UnwatchedAgent:
    """Site agent without watchers: the agent that moves clients knows what they want."""

    def __init__(self, agent: SiteAgent) -> None:
        self.agent = agent

    async def start(self, take_over: bool = False) -> None:
        """Start it."""
        await self.agent.start(take_over)

    async def stop(self) -> None:
        """Finish the messages in flight, and disconnect."""
        await self.agent.stop()


class EmbeddedLinks:
    """The links that moving clients need, held in this process from `start` to `stop`.

    One thread has a controller of routes and a site agent per broker. A change waits for an absent broker
    only for the patience, then goes on without it.

    Args:
        plan: the initial plan of links.
        topics: the filters that links carry; None: the filters of clients.
        endpoint: the endpoint of a broker.
        state: the folder of the state, which has the key of the links too.
        patience: seconds for which a change waits for an absent broker.

    Attributes:
        links: the interface for the agent that moves clients.

    Raises:
        InputError: another process uses the state.
        StorageError: the state cannot be written.
    """

    def __init__(
        self,
        plan: Plan,
        topics: Iterable[str] | None,
        endpoint: Callable[[str], Endpoint],
        state: Path,
        patience: float = PATIENCE,
    ) -> None:
        self.links = PlannedLinks(plan, self._is_reached, topics)
        self._publishers = plan.publishers
        self._brokers = plan.interest.node_ids
        self._endpoint = endpoint
        self._state = state
        self._patience = patience
        self._lock: int | None = lock_private_folder(state)
        self._thread: threading.Thread | None = None
        self._started: Future[asyncio.AbstractEventLoop] = Future()
        self._stopped: asyncio.Future[None]
        self._controller: FleetController
        self._agents: EmbeddedAgents[UnwatchedAgent]
        self._targets: dict[Filters, Hops] = {}
        self._plans = 0  # number of plans received
        self._is_refused = False  # the last plan could not be followed

    def start(self, failed: Callable[[], None] = lambda: None) -> None:
        """Start to hold the links.

        Request the links of all known clients first: links of an earlier run that no client needs are taken
        down.

        Args:
            failed: called if the links fail later.

        Raises:
            InputError: the state is damaged.
            StorageError: it cannot be read or written.
        """
        self._thread = threading.Thread(
            target=self._hold, args=(failed,), name="broadloom-links", daemon=True
        )
        self._thread.start()
        self._started.result()

    def down(self) -> list[str]:
        """The brokers with a link that is not up, because they are absent or refuse it."""
        return self._asked(lambda: sorted(set(self._down())), [])

    def families(self) -> list[Family]:
        """Metrics of the links."""
        return self._asked(lambda: list(self._families()), [])

    def stop(self) -> None:
        """Finish the messages in flight, and disconnect; brokers keep the sessions."""
        if self._thread is not None:
            with suppress(RuntimeError):  # its event loop has just ended by itself
                if self._started.exception() is None:
                    self._started.result().call_soon_threadsafe(self._end)
            self._thread.join()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _end(self) -> None:
        if not self._stopped.done():
            self._stopped.set_result(None)

    def _hold(self, failed: Callable[[], None]) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # of any kind: the links have stopped
            if not self._started.done():
                self._started.set_exception(error)
                return
            LOG.exception("links have failed")
            failed()

    async def _serve(self) -> None:
        """Run the controller and the agents until `stop`."""
        loop = asyncio.get_running_loop()
        failure = task_failure()
        key = _own_key(self._state / KEY)
        self._stopped = loop.create_future()
        journal = RecordJournal(self._state / JOURNAL)
        tasks: list[asyncio.Task[None]] = []
        try:
            self._controller = FleetController(journal, loop.time, self._patience, absent="drop")
            self._agents = EmbeddedAgents(self._controller, self._controller.receive)
            self._controller.on_orders = self._agents.spread
            agents = (self._agents.keep(name, partial(self._new_agent, name, key)) for name in self._brokers)
            work = [self._follow(), self._agents.relay(), *agents]
            tasks = [watched_task(one) for one in work]
            self._started.set_result(loop)
            await first_of(self._stopped, failure)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            journal.close()

    def _new_agent(self, broker: str, key: FleetKey) -> UnwatchedAgent:
        def endpoint(name: str, _: str | None) -> Endpoint:
            return self._endpoint(name)

        return UnwatchedAgent(SiteAgent(broker, endpoint, agent_folder(self._state, broker), key))

    # Plans.

    async def _follow(self) -> None:
        """Lead the agents to the trees of each new plan."""
        while True:
            plan = await asyncio.to_thread(self.links.poll)
            if plan is not None:
                plan = replace(plan, publishers=publishers_among(self._publishers, self._brokers))
                try:
                    targets = await asyncio.to_thread(target_trees, plan, self._targets)
                    self._controller.set_target(targets)
                    self._targets = targets
                    self._is_refused = False
                except InputError as error:
                    LOG.error("a plan is refused, so the links stay as they are: %s", error)
                    self._is_refused = True
                self._plans += 1
            self._controller.tick()
            await asyncio.sleep(POLL_SECONDS)

    def _is_reached(self, broker: str, topics: set[str], plan: int) -> bool:
        """Whether links carry topics to and from a broker, and the plan with this number is followed."""
        return self._asked(lambda: self._reaches(broker, topics, plan), False)

    def _reaches(self, broker: str, topics: set[str], plan: int) -> bool:
        if self._plans < plan or self._is_refused:
            return False
        # A topic that no other broker needs has no tree.
        linked = {
            text
            for filters, hops in self._targets.items()
            if any(broker in hop for hop in hops)
            for text in filters
        }
        return self._controller.carries(broker, topics & linked)

    # What others ask.

    def _asked(self, work: Callable[[], T], otherwise: T) -> T:
        """The result of a function that runs in the thread of the links."""
        if not self._started.done() or self._started.exception() is not None:
            return otherwise
        return ask_loop(self._started.result(), work, otherwise)

    def _down(self) -> Iterator[str]:
        yield from (name for name in self._used() if name not in self._agents.running)
        for report in self._reports():
            if not report.broker_up:
                yield report.broker
            for end, hop in report.hops.items():
                if not hop.near_up:
                    yield report.broker
                if not hop.far_up:
                    yield end

    def _used(self) -> set[str]:
        """The brokers that have links."""
        return {name for hops in self._targets.values() for hop in hops for name in hop}

    def _reports(self) -> list[AgentReport]:
        return [held.agent.report() for _, held in sorted(self._agents.running.items())]

    def _families(self) -> Iterator[Family]:
        hops = [
            (labels(start=report.broker, end=end), hop)
            for report in self._reports()
            for end, hop in sorted(report.hops.items())
        ]
        for name, meaning in _HOP_COUNTS.items():
            values = [(text, hop.counts.get(name, 0)) for text, hop in hops]
            yield f"hop_{name}_total", "counter", meaning, values
        up = [(text, int(hop.near_up and hop.far_up)) for text, hop in hops]
        yield "hop_up", "gauge", "whether a hop is up", up
        waiting = [(text, hop.in_flight_bytes) for text, hop in hops]
        yield "hop_in_flight_bytes", "gauge", "bytes of unfinished messages", waiting


def embed_links(config: AgentConfig) -> EmbeddedLinks:
    """The links of a configuration, for `serving`.

    Raises:
        InputError: the section `[links]` is wrong, or another process uses the state.
        StorageError: the state cannot be written.
    """
    own = LinkConfig.of(config)
    endpoint = address_endpoints(config.agent_addresses, own.login, own.window)
    return EmbeddedLinks(own.plan, own.topics, endpoint, own.state, own.patience)


def _own_key(path: Path) -> FleetKey:
    """The key of these links, in a file that is made at the first start."""
    if not path.exists():
        FleetKey.write(path)
    return FleetKey.load(path)


def address_endpoints(
    addresses: Mapping[str, Address], login: Login, window: int
) -> Callable[[str], Endpoint]:
    """The endpoints of links at the addresses of the agent that moves clients.

    Examples:
        >>> address_endpoints({"rome": Address("10.0.0.1", 1884)}, Login(), window=500)("rome").port
        1884
    """
    tls = login.tls()

    def endpoint(broker: str) -> Endpoint:
        address = addresses[broker]
        return Endpoint(address.hostname, address.port, tls, login, window=window)

    return endpoint


@dataclass(frozen=True)
class LinkConfig:
    """Section `[links]` of an agent's configuration.

    Attributes:
        plan: the initial links; the topics that it has at a broker stay there.
        topics: the topics or filters that links carry, including those of the plan.
        state: the folder of the state of the links.
        login: the login of the links; its TLS files are those of the agent that moves clients, unless it
            names its own.
        window: maximum number of unacknowledged messages per link and direction.
        patience: seconds for which a change waits for an absent broker.
    """

    plan: Plan
    topics: tuple[str, ...]
    state: Path
    login: Login
    window: int = WINDOW
    patience: float = PATIENCE

    @classmethod
    def of(cls, config: AgentConfig) -> LinkConfig:
        """Parse the section `[links]` of a configuration.

        Raises:
            InputError: a value is wrong or missing, or a name is unknown.
        """
        section = config.links or {}
        where = f"{config.file} [links]"
        folder = config.file.absolute().parent
        check_names(section, _LINKS, where)
        if not {"plan", "topics"} & set(section):
            raise InputError(f"{where} has neither plan nor topics; give a plan's folder or a list of topics")
        if "plan" in section:
            plan = _load_plan(folder / text_of(section, "plan", ""), config.sites)
        else:
            plan = _plan_without_links(config.sites)
        login = part_of(section, "login", config.file, "links.")
        login_where = f"{config.file} [links.login]"
        return cls(
            plan,
            _topics(section.get("topics", []), plan.interest.topic_ids, where),
            _state_folder(folder / text_of(section, "state", "links"), config.journal, where),
            login_of(login, folder, login_where, PASSWORD_VARIABLE, config.login) if login else config.login,
            _count_up_to(section.get("window", WINDOW), f"{where}: window", LARGEST_WINDOW),
            check_number(section.get("patience", PATIENCE), f"{where}: patience"),
        )


def _state_folder(state: Path, journal: Path, where: str) -> Path:
    """The folder of the links' state, which must not be that of the journal."""
    if state.resolve() == journal.resolve():
        raise InputError(f"{where}: state is the folder of the journal; give another folder")
    return state


def _count_up_to(value: object, what: str, most: int) -> int:
    count = check_count(value, what, minimum=1)
    if count > most:
        raise InputError(f"{what} is {count:,}; give a whole number from 1 to {most:,}")
    return count


def _load_plan(folder: Path, sites: Mapping[str, Site]) -> Plan:
    """Load a plan of links between these brokers."""
    plan = Plan.load(folder)
    planned = set(plan.interest.node_ids)
    for names, others, problem in (
        (planned, set(sites), "it has broker {0!r}, but the configuration has no [brokers.{0}]"),
        (set(sites), planned, "it does not have broker {0!r}"),
    ):
        if missing := sorted(names - others):
            raise InputError(
                f"the plan in {folder} has other brokers than the configuration: {problem.format(missing[0])}"
            )
    return plan


def _plan_without_links(sites: Mapping[str, Site]) -> Plan:
    """A plan without links; if brokers have different positions, near brokers will be linked first."""
    places = [site.place for site in sites.values()]
    have_positions = len(set(places)) == len(places) and len({len(place) for place in places}) == 1
    weights = Weights.euclidean(places, list(sites)) if have_positions else Weights.uniform(len(sites))
    interest = Interest.from_lists([[] for _ in sites], node_ids=list(sites))
    return Plan(interest, weights, Overlay(len(sites), np.zeros((0, 2), np.int32)), "none")


def _topics(listed: object, planned: Sequence[str], where: str) -> tuple[str, ...]:
    """The filters that links carry: the planned ones and the listed ones."""
    if not isinstance(listed, list) or (not listed and not planned):
        raise InputError(f"{where}: topics is {listed!r:.60}; give a list of topics or filters")
    for text in (*listed, *planned):
        if not is_client_filter(text) or text.startswith("$"):
            raise InputError(
                f"{where}: {text!r:.80} is not an MQTT filter that links carry; "
                f"give one without a leading $ or {CONTROL_ROOT}/"
            )
    known = set(planned)
    named = [text for text in listed if text not in known]
    if len(set(named)) < len(named):
        raise InputError(f"{where}: topics has {max(named, key=named.count)!r:.80} twice; give it once")
    return (*planned, *named)

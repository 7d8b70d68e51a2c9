"""Process of the controller: routes, planner, API and timers; with `--with-agents`, all agents too."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from broadloom.agents.http_server import ApiServer
from broadloom.agents.links.agent_service import (
    WatchedAgent,
    agent_folder,
    check_live,
    first_of,
    stop_signal,
    task_failure,
)
from broadloom.agents.links.controller_api import (
    SPARE_CONNECTIONS,
    OrderBoard,
    ProposalAnswer,
    ReportAnswer,
    StaleControllerError,
    controller_app,
)
from broadloom.agents.links.controller_moves import ControllerMoves
from broadloom.agents.links.embedded_agents import EmbeddedAgents
from broadloom.agents.links.fleet_controller import FleetController
from broadloom.agents.links.fleet_planner import FleetPlanner
from broadloom.agents.links.group_trees import check_trees
from broadloom.agents.links.live_status import fleet_status
from broadloom.agents.links.plan_message import plan_message
from broadloom.agents.links.planned_trees import Filters, Hops
from broadloom.agents.links.relink_search import in_process, relink
from broadloom.agents.links.route_orders import AgentReport, Epoch
from broadloom.agents.links.stamps import FleetKey
from broadloom.agents.monitoring import RateLimitedLog
from broadloom.errors import BroadloomError, InputError
from broadloom.mqtt.client_session import watched_task
from broadloom.storage import RecordJournal, lock_private_folder

if TYPE_CHECKING:
    from broadloom.agents.moves.move_service import AgentConfig
    from broadloom.deployment import Fleet
    from broadloom.plans import Plan

LOG = logging.getLogger("broadloom.live")
PLAN_AGAIN_SECONDS = 5.0  # after a failure
GATHER_SECONDS = 0.2  # for which changes of subscriptions are gathered
TICK_SECONDS = 0.1
DOWN_POLL_SECONDS = 0.05
DRAIN_SHARE = 0.7  # of the patience, for messages that are under way; the remainder is for ending sessions
ROUND_TRIP_CHANGE = 0.2  # a smaller share of change does not matter to the plan
CONNECTIONS_PER_AGENT = 4
JOURNAL = "controller.journal"


@dataclass(frozen=True)
class ControllerOptions:
    """Options of `broadloom controller`.

    Attributes:
        fleet: the fleet.
        state: the folder of the controller's state.
        with_agents: whether all agents run in this process.
        plan: the plan to begin with; None: what clients want decides.
        events: a growing file of events; None: none.
        take_over: whether to adopt agents of another controller.
        propose: seconds between two searches for a better plan; None: no search.
        adopt: whether to move to a better plan without being told to.
        seed: seed of the planner.
        moves: the configuration of the agent that moves clients; None: clients are not moved.
        down: whether to end all links; then nothing is planned, and the planner's journal is not read.
    """

    fleet: Fleet
    state: Path
    with_agents: bool = False
    plan: Plan | None = None
    events: Path | None = None
    take_over: bool = False
    propose: float | None = None
    adopt: bool = False
    seed: int = 0
    moves: AgentConfig | None = None
    down: bool = False


class LeftSession(NamedTuple):
    """Session that could not be removed.

    Attributes:
        broker: the broker that has it.
        client: its client id; empty: not known.
        reason: why it is left.
    """

    broker: str
    client: str
    reason: str


class ControllerService:
    """Controller, planner, API and embedded agents in one event loop.

    Args:
        options: the options.
        clock: a clock that never goes back.

    Raises:
        InputError: the state is damaged or in use, or the fleet has no key or a broker without MQTT 5.
        StorageError: the state cannot be written.
    """

    def __init__(self, options: ControllerOptions, clock: Callable[[], float] = time.monotonic) -> None:
        fleet = options.fleet
        check_live(fleet)
        self._options = options
        self._key = FleetKey(fleet.live.key())
        folder = None if options.down else options.state
        with ExitStack() as opened:  # closed if one of them is damaged
            self._lock = lock_private_folder(options.state)
            opened.callback(os.close, self._lock)
            self._journal = opened.enter_context(RecordJournal(options.state / JOURNAL))
            self.controller = FleetController(
                self._journal, clock, fleet.live.patience, fleet.live.absent, options.take_over
            )
            self.planner = FleetPlanner(fleet, folder, options.plan, options.seed)
            opened.pop_all()
        self.board = OrderBoard(self.controller.orders_for)
        self._embedded: EmbeddedAgents[WatchedAgent] = EmbeddedAgents(
            self.controller, self.receive, options.take_over
        )
        self.server: ApiServer | None = None
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._log = RateLimitedLog(LOG, most=2)
        self._wanted: dict[str, tuple[str, ...]] = {}  # observed since the last planning, by broker
        self._latest: dict[str, tuple[str, int]] = {}  # process and number of the filters of each agent
        self._round_trips: dict[tuple[str, str], float] = {}
        self._new_round_trips: dict[tuple[str, str], float] = {}
        self._plan_due = asyncio.Event()
        self._planner_problem = ""
        self._events_problem = ""
        self._problems: dict[str, float] = {}  # when each began, in seconds since 1970
        self._going_down = options.down
        self._targets: Mapping[Filters, Hops] = {}
        # What moving clients need, if it has changed; what an earlier process needed is dropped.
        self._requests: Mapping[str, Collection[str]] | None = (
            dict.fromkeys(fleet.brokers, ()) if options.moves is None else None
        )
        self._request_number = 0
        self._followed_number = 0
        self._moves = None if options.moves is None else ControllerMoves(self, options.moves, fleet)
        self._thread = ThreadPoolExecutor(1, "broadloom-planner")
        self._tasks: list[asyncio.Task[None]] = []
        self._kept: set[str] = set()  # brokers with an embedded agent
        self._departed = set(self.controller.removed)
        self._joined: set[str] = set()  # brokers that the fleet file does not have
        self.controller.on_orders = self._spread

    # Life.

    async def start(self, serve: bool = True) -> None:
        """Start the API and the timers; with the options, the agents too.

        Args:
            serve: whether to listen for agents and operators.
        """
        fleet = self._options.fleet
        if serve:
            app = controller_app(self, self._key, None if self._moves is None else self._moves.respond)
            most = CONNECTIONS_PER_AGENT * len(fleet.brokers) + SPARE_CONNECTIONS
            address = fleet.live.listen_address()
            self.server = ApiServer(app, address, fleet.live.server_files(), most)
            await self.server.start()
        work = [self._tick(), self._follow_plans()]
        if self._options.events is not None:
            work.append(self._follow_events(self._options.events))
        if self._options.propose is not None:
            work.append(self._search(self._options.propose))
        if self._options.with_agents:
            work.append(self._embedded.relay())
        self._tasks = [watched_task(one) for one in work]
        joined = {
            name: address for name, address in self.controller.addresses.items() if name not in fleet.brokers
        }
        self._joined.update(joined)
        self._embed(dict.fromkeys(fleet.brokers) | joined)
        self._plan_due.set()
        if self._moves is not None:
            self._moves.start()

    async def stop(self) -> None:
        """End everything; brokers keep the sessions of embedded agents."""
        if self._moves is not None:
            await asyncio.to_thread(self._moves.stop)
        self.board.close()
        for task in self._tasks:  # each ends its agent
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.server is not None:
            await self.server.stop()
        self._thread.shutdown(wait=True, cancel_futures=True)
        self.planner.close()
        self._journal.close()
        os.close(self._lock)

    # What the API needs.

    def receive(self, report: AgentReport) -> ReportAnswer:
        """Take the report of an agent, and what clients want at its broker.

        Raises:
            InputError: the fleet has no such broker.
        """
        self._check_known(report.broker)
        self.controller.receive(report)
        mark = (report.instance, report.filters_number)
        if report.filters is not None and self._latest.get(report.broker) != mark:
            self._latest[report.broker] = mark
            self._wanted[report.broker] = report.filters
            self._plan_due.set()
        for name, value in report.round_trips.items():
            known = self._round_trips.get((report.broker, name))
            if known is None or abs(value - known) > ROUND_TRIP_CHANGE * known:
                self._round_trips[report.broker, name] = value
                self._new_round_trips[report.broker, name] = value
        instance, number = self._latest.get(report.broker, ("", -1))
        return ReportAnswer(
            epoch=self.controller.epoch,
            filters_number=number if instance == report.instance else -1,
            routes_wanted=self.controller.asks_routes,
        )

    async def orders_after(self, broker: str, epoch: Epoch, number: int, wait: float) -> str | None:
        """Orders later than a number of an epoch; None: there are none within the wait.

        Raises:
            InputError: the fleet has no such broker.
            StaleControllerError: this controller is not obeyed.
        """
        self._check_known(broker)
        if self.controller.refused is not None:
            raise StaleControllerError(self.controller.refused)
        return await self.board.after(broker, epoch, number, wait)

    def _check_known(self, broker: str) -> None:
        """Raise unless a broker is in the fleet file, has joined, or still has links."""
        if broker in self._options.fleet.brokers or broker in self._joined:
            return
        if broker not in self.controller.status()["brokers"]:
            raise InputError(
                f"the fleet has no broker {broker!r:.80}; add it to the fleet file, or let it join"
            )
        self._joined.add(broker)

    def status(self) -> dict[str, Any]:
        """The status of the fleet, as JSON values."""
        self._note_problems()
        planner = self.planner.status() | {"plan_number": self.planner.number}
        return fleet_status(self.controller.status(), self._options.fleet.brokers, planner, self._problems)

    def _note_problems(self) -> None:
        """Note the present problems of planner, events and moves, and when each began."""
        found = (
            self._planner_problem,
            self._events_problem,
            self.planner.status()["overlay"]["problem"],
            "" if self._moves is None else self._moves.problem,
        )
        self._problems = {text: self._problems.get(text, time.time()) for text in found if text}

    async def adopt(self) -> ProposalAnswer:
        """Move to the proposed plan."""
        note = await self._in_thread(self.planner.adopt)
        if note is not None:
            self._plan_due.set()
        return ProposalAnswer(adopted=note is not None, note=note or "there is no proposal")

    async def present_plan(self) -> dict[str, Any]:
        """The present plan as JSON values."""
        return await self._in_thread(lambda: plan_message(self.planner.plan()))

    # What moves of clients need.

    def request(self, filters: Mapping[str, Collection[str]], number: int) -> None:
        """Plan links for all filters that moving clients need, by broker; numbers of requests rise."""
        self._requests = filters
        self._request_number = number
        self._plan_due.set()

    def has_carried(self, broker: str, filters: Iterable[str], number: int) -> bool:
        """Whether the request with a number is followed, and links carry filters to and from a broker."""
        if self._followed_number < number:
            return False
        parts = {part for text in filters for part in self.planner.carried_parts(text)}
        # A filter that no other broker needs has no tree.
        linked = {
            text
            for group, hops in self._targets.items()
            if any(broker in hop for hop in hops)
            for text in group
        }
        return self.controller.carries(broker, parts & linked)

    # Going down.

    async def take_down(self) -> list[LeftSession]:
        """End all hops of all agents, within the patience; returns the sessions that are left."""
        self._going_down = True
        self.controller.set_target({})
        patience = self._options.fleet.live.patience
        deadline = time.monotonic() + patience * DRAIN_SHARE
        while time.monotonic() < deadline and not (self.controller.settled() and not self._left()):
            await asyncio.sleep(DOWN_POLL_SECONDS)
        self.controller.give_up()
        embedded = self._embedded.running
        left = [one for one in self._left() if one.broker not in embedded]  # those end their sessions now
        self._embedded.running = {}
        seconds = patience * (1 - DRAIN_SHARE)
        found = await asyncio.gather(*(agent.forget(seconds) for agent in embedded.values()))
        for sessions in found:
            left += [LeftSession(at, client, "the broker does not answer") for at, client in sessions]
        return sorted(set(left))

    def _left(self) -> list[LeftSession]:
        """The sessions that agents have not ended, by their last reports."""
        left = []
        for broker, one in self.status()["brokers"].items():
            if one["removed"] and one["agent"] is not None and not one["hops"] and not one["ending"]:
                continue  # its agent has reported the end of all its sessions
            if one["agent"] is None:
                text = "it was removed, and no agent says that its sessions have ended"
                text = text if one["removed"] else "it has no agent that could end its sessions"
                left.append(LeftSession(broker, "", text))
            elif one["away"]:
                left.append(LeftSession(broker, "", "the broker or its agent is away"))
            for end, hop in one["hops"].items():
                text = hop["error"] or "messages wait for it"
                left.append(LeftSession(broker, "", f"the hop to {end} is not ended: {text}"))
            left += [
                LeftSession(broker, "", f"sessions of the hop to {end} are not deleted yet")
                for end in one.get("ending", ())
            ]
        return left

    # Timers.

    async def _tick(self) -> None:
        while True:
            self.controller.tick()
            self._note_problems()
            await asyncio.sleep(TICK_SECONDS)

    async def _follow_plans(self) -> None:
        """Plan anew when what clients want has changed, a moment after the first change."""
        while True:
            await self._plan_due.wait()
            await asyncio.sleep(GATHER_SECONDS)
            self._plan_due.clear()
            if self._going_down:
                return
            wanted = self._wanted
            round_trips = self._new_round_trips
            self._wanted = {}
            self._new_round_trips = {}
            requests, self._requests = self._requests, None
            number = self._request_number
            before = self.controller.trees()
            try:
                planned = await self._in_thread(
                    lambda: self._planned(wanted, round_trips, before, requests or {})  # noqa: B023
                )
                self._follow(*planned)
                self._followed_number = number
                self._planner_problem = ""
            except BroadloomError as error:
                # Nothing is forgotten: the same again in a while, with what agents have said since.
                self._wanted = wanted | self._wanted
                self._new_round_trips = round_trips | self._new_round_trips
                if self._requests is None:
                    self._requests = requests
                asyncio.get_running_loop().call_later(PLAN_AGAIN_SECONDS, self._plan_due.set)
                self._planner_problem = f"the links stay as they are: {error}"
                self._log.warn("plan", "%s", self._planner_problem)

    def _follow(
        self, targets: Mapping[Filters, Hops], addresses: Mapping[str, str], departed: set[str]
    ) -> None:
        """Lead the fleet to the trees of a plan."""
        if self._going_down:
            return
        for broker in self._departed - departed:
            self.controller.admit(broker)
        # An agent's own fleet file can be older than this one, and lack a neighbour.
        own = {name: str(broker.host_and_port()) for name, broker in self._options.fleet.brokers.items()}
        self.controller.set_target(targets, own | dict(addresses))
        self._targets = targets
        for broker in departed - self._departed:
            self.controller.remove(broker)
        self._departed = departed
        self._joined.update(addresses)
        self._embed(addresses)

    def _planned(
        self,
        wanted: Mapping[str, tuple[str, ...]],
        round_trips: Mapping[tuple[str, str], float],
        before: Mapping[Filters, Hops],
        requests: Mapping[str, Collection[str]],
    ) -> tuple[Mapping[Filters, Hops], Mapping[str, str], set[str]]:
        """The trees that clients need; runs in the planner's thread."""
        self._measured(round_trips)
        for broker, filters in wanted.items():
            self.planner.observe(broker, filters)
        for broker, needed in requests.items():
            self.planner.request(broker, needed)
        targets = self.planner.targets(before)
        check_trees(targets, before)
        return targets, self.planner.addresses(), self.planner.departed()

    def _measured(self, round_trips: Mapping[tuple[str, str], float]) -> None:
        for (start, end), value in round_trips.items():
            self.planner.latency(start, end, value)

    def _question(self, round_trips: Mapping[tuple[str, str], float]) -> Any:
        """What a search for a better plan needs, with the newest round-trip times."""
        self._measured(round_trips)
        return self.planner.question()

    async def _follow_events(self, path: Path) -> None:
        """Apply the events of a growing file."""
        while True:
            problem = "" if path.exists() else f"{path} does not exist yet; its events are read when it does"
            try:
                if await self._in_thread(lambda: self.planner.read_events(path)):
                    self._plan_due.set()
            except BroadloomError as error:
                problem = str(error)
            if problem and problem != self._events_problem:
                self._log.warn("events", "%s", problem)
            self._events_problem = problem
            await asyncio.sleep(GATHER_SECONDS)

    async def _search(self, seconds: float) -> None:
        """Look for a better plan now and then."""
        while True:
            await asyncio.sleep(seconds)
            try:
                trips, self._new_round_trips = self._new_round_trips, {}
                question = await self._in_thread(lambda: self._question(trips))  # noqa: B023
                fresh = await in_process(relink, question)
                found = await self._in_thread(lambda: self.planner.consider(question, fresh))  # noqa: B023
                if found and self._options.adopt:
                    LOG.warning("moving to a better plan: %s", (await self.adopt()).note)
            except BroadloomError as error:
                self._log.warn("proposal", "no better plan: %s", error)

    async def _in_thread(self, work: Callable[[], Any]) -> Any:
        """Run some work of the planner, which knows one thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    # Embedded agents.

    def _spread(self, brokers: set[str]) -> None:
        """Tell agents that they have new orders."""
        self.board.announce(brokers)
        self._embedded.spread(brokers)

    def _embed(self, addresses: Mapping[str, str | None]) -> None:
        """Run the agents of brokers in this process, if the options say so."""
        if self._options.with_agents:
            for broker in addresses.keys() - self._kept:
                self._kept.add(broker)
                folder = agent_folder(self._options.state, broker)
                make = partial(
                    WatchedAgent, self._options.fleet, broker, folder, self._key, addresses[broker]
                )
                self._tasks.append(watched_task(self._embedded.keep(broker, make)))


async def serve_controller(
    options: ControllerOptions, ready: Callable[[ControllerService], None] = lambda _: None
) -> None:
    """Run the controller until SIGTERM or SIGINT.

    Args:
        options: the options.
        ready: called when it answers.

    Raises:
        InputError: the state is damaged or in use, the fleet has no key, or the address cannot be used.
        StorageError: the state cannot be written.
    """
    stop = stop_signal()
    service = ControllerService(options)
    try:
        await service.start()
        ready(service)
        await first_of(stop, task_failure())
    finally:
        await service.stop()


async def take_down_fleet(options: ControllerOptions) -> list[LeftSession]:
    """End all links of a fleet, within its patience; returns the sessions that could not be removed.

    Raises:
        InputError, StorageError: as for `serve_controller`.
    """
    service = ControllerService(replace(options, plan=None, events=None, propose=None, moves=None, down=True))
    try:
        await service.start()
        return await service.take_down()
    finally:
        await service.stop()

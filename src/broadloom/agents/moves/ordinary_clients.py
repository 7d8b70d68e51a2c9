"""Ordinary clients as brokers show them, and the thread with the relay that moves them (paper 5, section V).

The router's map, the sessions at both brokers and the relay do for such a client what a `MovingClient` does
by itself. All steps can be repeated, and leave the client at its home until it has arrived.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from broadloom.agents.monitoring import RateLimitedLog
from broadloom.agents.moves.broker_sessions import Then, forget
from broadloom.agents.moves.client_policy import MovePolicy
from broadloom.agents.moves.client_relay import ClientRelay
from broadloom.agents.moves.client_router import HaproxyRouter
from broadloom.agents.moves.move_registry import ORDINARY, Resident
from broadloom.agents.moves.relayed_move import RelayedMove, RelayPlan
from broadloom.deployment.targets.haproxy_router import moving_to, served_by
from broadloom.errors import BroadloomError, InputError, UnreachableError
from broadloom.mqtt.endpoint import Address, Login
from broadloom.mqtt.reserved_topics import INTERNAL_PREFIX
from broadloom.mqtt.topic_filters import QosFilters

log = logging.getLogger("broadloom.agents.moves")

SYNCHRONIZE_SECONDS = 5.0
SHARED = "$share/"
Report = Callable[[str, str], None]  # called with `connected`, `drained` or `failed`, and a note
NO_SESSION = "the client keeps no session: messages between its two connections can be lost"


@dataclass(frozen=True)
class SeenClient:
    """A client as its broker shows it.

    Attributes:
        client: its client id.
        broker: the broker that has its session.
        filters: the topic filters of its session.
        is_connected: whether it is connected.
        keeps: whether its session outlives its connection; None: that is not known.
        is_whole: whether all its filters are known.
    """

    client: str
    broker: str
    filters: QosFilters
    is_connected: bool
    keeps: bool | None
    is_whole: bool = True

    def own_filters(self) -> QosFilters:
        """The filters without those of a fence that was left in the session."""
        return tuple(one for one in self.filters if not one[0].startswith(INTERNAL_PREFIX))

    def resident(self, now: float = 0.0, place: tuple[float, ...] | None = None) -> Resident:
        """The client as the agent knows it from a time on (seconds since 1970)."""
        filters = self.own_filters()
        return Resident(self.client, self.broker, filters, place, now, (), now, ORDINARY, self.keeps)

    def obstacle(self) -> str:
        """Why it cannot be moved; empty: it can."""
        shared = next((text for text, _ in self.filters if text.startswith(SHARED)), None)
        return (
            ""
            if shared is None
            else f"its subscription {shared!r:.60} is shared, and shared ones do not move"
        )

    def doubt(self) -> str:
        """Why its subscriptions can be incomplete, so that it would lose some; empty: all are known."""
        if self.is_whole or self.keeps is False:
            return ""
        return (
            f"broker {self.broker!r} has not shown all its subscriptions, and it would lose the others; give "
            "mosquitto.db in `subscriptions`, with a short autosave_interval, or the log since the start"
        )


class ClientSight(Protocol):
    """The brokers' own lists of their clients."""

    def start(self) -> None:
        """Begin to follow all brokers."""

    def clients(self) -> Collection[SeenClient]:
        """All ordinary clients; any thread can call this."""

    def find(self, client: str) -> SeenClient | None:
        """The session of a client: the connected one if it has several; None: no broker shows it."""

    def is_connected(self, client: str, broker: str) -> bool:
        """Whether a broker shows that a client is connected to it."""

    def has_session(self, client: str, broker: str, is_sure: bool) -> bool:
        """Whether a broker shows a session of a client; `is_sure`: one that has not ended for sure."""

    def problems(self) -> list[str]:
        """What cannot be seen, and why."""

    def stop(self) -> None:
        """End."""


class RelayedClients(Protocol):
    """Operations of the agent for ordinary clients; tests implement it without brokers."""

    policy: MovePolicy

    def prepare(self, plan: RelayPlan, then: Then) -> None:
        """Open the client's session at the foreign broker."""

    def take_over(
        self, plan: RelayPlan, foreign: str, report: Callable[[str, str], None], then: Then
    ) -> None:
        """Send the client to the foreign broker, by the map, and disconnect it from home."""

    def call_back(self, client: str, then: Then) -> None:
        """Disconnect a client that has passed the relay by, so that it comes to it."""

    def hand_over(self, plan: RelayPlan, home: str, foreign: str, then: Then) -> None:
        """Send a client that keeps no session to the foreign broker."""

    def release(self, client: str, broker: str) -> None:
        """The client is at a broker, and connects to it by itself from now on."""

    def give_up(self, client: str, broker: str) -> None:
        """Stop a move; the client goes to its home broker."""


class OrdinaryMover:
    """Moves ordinary clients, in a thread with an event loop of its own.

    Args:
        policy: the operator's consent.
        router: the map of the routers.
        login: the login of the agent.
        relay: where the relay listens.
        tls: certificate file and key file of the relay; None: plain text, for routers on this machine.
        ttl: seconds for which home brokers continue to queue messages.
        settle: the most seconds that a message takes between brokers.
        secret: a secret of the agent, by which it knows its own messages.

    Raises:
        InputError: a file cannot be used for TLS.
    """

    def __init__(
        self,
        policy: MovePolicy,
        router: HaproxyRouter,
        login: Login,
        relay: Address,
        tls: tuple[str, str] | None,
        ttl: float,
        settle: float,
        secret: str,
    ) -> None:
        self._secret = secret
        self.policy = policy
        self._router = router
        self._login = login
        context = None
        if tls is not None:
            from broadloom.agents.http_server import server_context

            context = server_context(*tls)
        self._relay = ClientRelay(relay, context)
        self._ttl = ttl
        self._settle = settle
        self._loop = asyncio.new_event_loop()
        self._thread: threading.Thread | None = None
        self._warnings = RateLimitedLog(log)
        self._stopping: asyncio.Event | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.done: Counter[str] = Counter()  # messages of finished moves, by what happened to them

    def start(self, homes: Iterable[tuple[str, str]]) -> None:
        """Start the relay, and put the brokers of moved clients into the map.

        Raises:
            InputError: the relay cannot listen.
        """
        started: Future[None] = Future()
        thread = threading.Thread(target=self._run, args=(started,), name="broadloom-relay", daemon=True)
        self._thread = thread
        thread.start()
        try:
            started.result()
        except OSError as error:
            thread.join()
            reason = os.strerror(error.errno) if error.errno else error  # asyncio has a long text of its own
            raise InputError(
                f"the relay cannot listen at {self._relay.address}: {reason}; give another address"
            ) from error
        try:
            self._router.send({client: served_by(home) for client, home in homes}, is_urgent=True)
        except BroadloomError as error:  # told and written again soon
            self._warnings.warn("router", "the map of a router is not up to date: %s", error)

    def stop(self) -> None:
        """End all connections; the sessions stay."""
        if self._thread is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop_soon)
            self._thread.join()

    def _stop_soon(self) -> None:
        if self._stopping is not None:
            self._stopping.set()

    def refused(self) -> dict[str, int]:
        """Connections that the relay has refused, by reason."""
        return dict(self._relay.refused)

    # Steps of moves; `then` is called with the error, or None.

    def prepare(self, plan: RelayPlan, then: Then) -> None:
        """Open the client's session at the foreign broker."""
        self._submit(then, lambda: self._prepare(plan))

    def take_over(
        self, plan: RelayPlan, foreign: str, report: Callable[[str, str], None], then: Then
    ) -> None:
        """Send the client to the foreign broker, by the map, and disconnect it from home."""
        self._submit(then, lambda: self._take_over(plan, foreign, report))

    def call_back(self, client: str, then: Then) -> None:
        """Disconnect a client that has passed the relay by, so that it comes to it."""

        async def work() -> None:
            move = self._relay.moves.get(client)
            if move is not None:
                await move.call_back()

        self._submit(then, work)

    def hand_over(self, plan: RelayPlan, home: str, foreign: str, then: Then) -> None:
        """Send a client that keeps no session to the foreign broker."""

        async def work() -> None:
            await asyncio.to_thread(self._router.send, {plan.client: served_by(foreign)})
            error = await asyncio.to_thread(forget, plan.home, plan.client, self._login)
            if error:
                raise UnreachableError(f"broker {home!r}: {error}")

        self._submit(then, work)

    def release(self, client: str, broker: str) -> None:
        """The client is at a broker, and connects to it by itself from now on."""

        async def work() -> None:
            await self._route(client, served_by(broker))
            move = self._relay.moves.get(client)
            if move is not None:
                await move.end()
                self._drop(move)

        self._submit(self._ignore, work)

    def give_up(self, client: str, broker: str) -> None:
        """Stop a move; the client goes to its home broker."""

        async def work() -> None:
            move = self._relay.moves.get(client)
            if move is None:
                await self._route(client, served_by(broker))
                return
            move.give_up()
            await move.leave_home()
            async with move.routing:
                await self._route(client, served_by(broker))
            self._drop(move)

        self._submit(self._ignore, work)

    async def _prepare(self, plan: RelayPlan) -> None:
        known = self._relay.moves.get(plan.client)
        if known is not None:
            known.close()
        move = RelayedMove(plan, self._login, self._ttl, self._settle, self._secret)
        self._relay.moves[plan.client] = move
        await move.prepare()

    async def _take_over(self, plan: RelayPlan, foreign: str, report: Report) -> None:
        move = self._relay.moves.get(plan.client)
        if move is None or move.plan.move != plan.move:
            move = RelayedMove(plan, self._login, self._ttl, self._settle, self._secret)
            self._relay.moves[plan.client] = move
        move.report = report
        async with move.routing:
            if move.is_over:
                raise UnreachableError("the move was given up meanwhile")
            await asyncio.to_thread(self._router.send, {plan.client: moving_to(foreign)})
        await move.take_over()

    async def _route(self, client: str, backend: str) -> None:
        """Change the map; a router that does not answer is told again later."""
        try:
            await asyncio.to_thread(self._router.send, {client: backend}, is_urgent=True)
        except BroadloomError as error:
            self._warnings.warn("router", "the map of a router is not up to date: %s", error)

    def _drop(self, move: RelayedMove) -> None:
        """End a move; the next one of its client can have begun."""
        move.close()
        self.done.update(asdict(move.counts))
        if self._relay.moves.get(move.plan.client) is move:
            del self._relay.moves[move.plan.client]

    # The thread.

    def _submit(self, then: Then, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def run() -> None:
            error = None
            try:
                await work()
            except (BroadloomError, OSError) as failure:
                error = str(failure) or repr(failure)
            except Exception as failure:  # of any kind: the agent repeats the work
                log.exception("a step of an ordinary client's move failed")
                error = f"{failure!r:.200}"
            then(error)

        def begin() -> None:
            task = self._loop.create_task(run())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        with suppress(RuntimeError):  # the loop is closed: the agent stops
            self._loop.call_soon_threadsafe(begin)

    @staticmethod
    def _ignore(_error: str | None) -> None:
        pass

    def _run(self, started: Future[None]) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:  # ends what still waits for a broker
            runner.run(self._serve(started))

    async def _serve(self, started: Future[None]) -> None:
        self._stopping = asyncio.Event()
        try:
            await self._relay.start()
        except OSError as error:
            started.set_exception(error)
            return
        started.set_result(None)
        while not self._stopping.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(SYNCHRONIZE_SECONDS):
                    await self._stopping.wait()
            for move in self._relay.moves.values():
                move.drop_home()
            try:
                await asyncio.to_thread(self._router.synchronize)
            except BroadloomError as error:
                self._warnings.warn("router", "the map of a router is not up to date: %s", error)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._relay.stop()

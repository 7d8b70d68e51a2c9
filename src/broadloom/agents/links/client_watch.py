"""Watch of the sessions at all brokers, for moves of ordinary clients, in a thread of its own."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, TypeVar

from broadloom.agents.links.followed_sessions import ENDS, STAYS, FollowedSession
from broadloom.agents.links.loop_calls import require_answer
from broadloom.agents.links.mosquitto_watch import MosquittoWatch
from broadloom.agents.moves.ordinary_clients import SeenClient
from broadloom.deployment import FleetBroker, safe_name
from broadloom.mqtt.endpoint import Endpoint
from broadloom.mqtt.topic_filters import OWN_CLIENTS

if TYPE_CHECKING:
    from broadloom.agents.moves.move_service import AgentConfig

LOG = logging.getLogger("broadloom.agents.moves")
MOST_PROBLEMS = 100
START_SECONDS = 30.0  # for reading what is known from before
LOCAL_END = "local."
T = TypeVar("T")
_KEEPS = {ENDS: False, STAYS: True}


class ClientWatch:
    """Follows the sessions of ordinary clients at mosquitto brokers.

    The sources are the broker's log on topics (`log_dest topic` with `log_type subscribe`, `unsubscribe`
    and `notice`), and, where they are on this machine, its log file and `mosquitto.db`. The methods that ask
    for clients raise `UnreachableError` if the thread does not answer: then nothing is known.

    Args:
        config: the configuration of the agent that moves clients.
    """

    def __init__(self, config: AgentConfig) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="broadloom-clients", daemon=True)
        self._stopping = asyncio.Event()
        self._is_started = threading.Event()
        self._problems: dict[str, None] = {}
        self._watches: dict[str, MosquittoWatch] = {}
        tls = config.login.tls()
        for name, address in config.agent_addresses.items():
            sources = config.subscriptions.get(name) or None
            broker = FleetBroker(name, str(address), tls=None, subscriptions=sources)
            endpoint = Endpoint(address.hostname, address.port, tls, config.login)
            state = config.journal / f"clients-{safe_name(name)}"  # what was seen survives a restart
            watch = MosquittoWatch(broker, endpoint, _nothing, _nothing, self._on_problem, state)
            watch.solved = self._on_solved
            watch.client = f"broadloom-clients-{name}"
            self._watches[name] = watch

    def start(self) -> None:
        """Begin to follow all brokers; returns when what is known from before is read."""
        self._thread.start()
        self._is_started.wait(START_SECONDS)

    def stop(self) -> None:
        """End."""
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()

    def clients(self) -> Collection[SeenClient]:
        """All ordinary clients."""
        return self._ask(self._seen)

    def find(self, client: str) -> SeenClient | None:
        """The session of a client: the connected one if it has several; None: no broker shows it."""
        return self._ask(lambda: self._found(client))

    def is_connected(self, client: str, broker: str) -> bool:
        """Whether a broker shows that a client is connected to it."""

        def answer() -> bool:
            session = self._watches[broker].followed.sessions.get(client)
            return session is not None and session.connected

        return self._ask(answer)

    def has_session(self, client: str, broker: str, is_sure: bool) -> bool:
        """Whether a broker shows a session of a client; `is_sure`: one that has not ended for sure."""

        def answer() -> bool:
            session = self._watches[broker].followed.sessions.get(client)
            return session is not None and not (is_sure and session.unsure)

        return self._ask(answer)

    def problems(self) -> list[str]:
        """What cannot be seen, and why."""
        return list(self._problems)

    def _ask(self, work: Callable[[], T]) -> T:
        return require_answer(self._loop, work, "the watch of the brokers' clients")

    def _seen(self) -> list[SeenClient]:
        names = {name for watch in self._watches.values() for name in watch.followed.sessions}
        names -= {name for name in names if self._is_bridge(name)}
        found = [self._found(name) for name in sorted(names) if not name.startswith(OWN_CLIENTS)]
        return [one for one in found if one is not None]

    def _is_bridge(self, client: str) -> bool:
        """Whether a client is an end of a bridge between brokers, which does not move.

        A mosquitto names the end at its own broker `local.` and the name of the other end, which can be at a
        broker that is not followed. No line tells that it connects.
        """
        followed = [watch.followed for watch in self._watches.values()]
        if any(client.removeprefix(LOCAL_END) in one.bridges for one in followed):
            return True
        sessions = [one.sessions[client] for one in followed if client in one.sessions]
        return client.startswith(LOCAL_END) and not any(one.has_connected for one in sessions)

    def _found(self, client: str) -> SeenClient | None:
        sessions = {
            broker: watch.followed.sessions[client]
            for broker, watch in self._watches.items()
            if client in watch.followed.sessions
        }
        if not sessions or self._is_bridge(client):
            return None
        broker = max(sessions, key=lambda name: _rank(sessions[name]))
        session = sessions[broker]
        filters = tuple((text, session.qualities.get(text, 1)) for text in sorted(session.filters))
        keeps = _KEEPS.get(session.lasting)
        return SeenClient(client, broker, filters, session.connected, keeps, session.is_whole)

    def _on_problem(self, text: str) -> None:
        if text not in self._problems and len(self._problems) < MOST_PROBLEMS:
            self._problems[text] = None
            LOG.warning("%s", text)

    def _on_solved(self, text: str) -> None:
        self._problems.pop(text, None)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._follow())
        finally:
            self._loop.close()

    async def _follow(self) -> None:
        for watch in self._watches.values():
            await watch.start()
        self._is_started.set()
        await self._stopping.wait()
        for watch in self._watches.values():
            await watch.stop()


def _rank(session: FollowedSession) -> tuple[bool, bool, float]:
    return session.connected, not session.unsure, session.since


def _nothing() -> None:
    pass


def watch_clients(config: AgentConfig) -> ClientWatch:
    """The clients of the brokers of a configuration."""
    return ClientWatch(config)

"""An agent as a service: journal, brokers, HTTP API, all from one configuration."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, NamedTuple

from broadloom.migration._mqtt import need_paho
from broadloom.migration.agent import Agent
from broadloom.migration.config import AgentConfig
from broadloom.migration.http_api import Api, HttpServer
from broadloom.migration.journal import MoveJournal
from broadloom.migration.links import Links
from broadloom.migration.move import Move
from broadloom.migration.summary import watch_traffic
from broadloom.migration.wire import MqttWire


class Service(NamedTuple):
    """An agent, its brokers, the port of its API, and the thread that it works in, which ends if it fails."""

    agent: Agent
    brokers: tuple[str, ...]
    port: int
    thread: threading.Thread


@contextmanager
def serving(
    config: AgentConfig, links: Links | None = None, watch: Callable[[Move], None] = lambda _: None
) -> Iterator[Service]:
    """An agent at work, and its API, until the block ends.

    Args:
        config: what it works with.
        links: what brings messages to the broker that a client moves to; None: everything goes everywhere.
        watch: called with each move that has come into a new state.
    """
    need_paho()
    journal, wire = MoveJournal(config.journal), MqttWire(config.doors, config.login)
    agent = Agent(config.brokers, wire, journal, links, config.timing, watch)
    server = HttpServer(Api(agent, _summarizer(agent, config)), config.token, config.port)
    thread = threading.Thread(target=agent.run, name="broadloom-agent", daemon=True)
    try:
        wire.start(agent.heard)
        thread.start()
        server.start()
        yield Service(agent, tuple(config.brokers), server.server_port, thread)
    finally:
        server.shutdown()
        server.server_close()
        agent.stop()
        if thread.is_alive():
            thread.join()
        wire.stop()
        journal.close()


def _summarizer(agent: Agent, config: AgentConfig) -> Callable[[float], dict[str, Any]]:
    def summarize(seconds: float) -> dict[str, Any]:
        residents = agent.ask(lambda own: dict(own.registry.residents))
        homes = {name: one.broker for name, one in residents.items()}
        sent = watch_traffic(config.doors, config.login, seconds, homes.get)
        return {
            "clients": [asdict(one) for one in residents.values()],
            "sent": sent,
            "sites": {name: [site.place, site.capacity] for name, site in config.sites.items()},
        }

    return summarize

"""An agent as a service: journal, brokers, links, HTTP API, all from one configuration."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from typing import Any, NamedTuple

from broadloom.agents.moves.agent import Agent
from broadloom.agents.moves.config import AgentConfig
from broadloom.agents.moves.http_api import Api, HttpServer
from broadloom.agents.moves.journal import MoveJournal
from broadloom.agents.moves.links import HeldLinks, Links
from broadloom.agents.moves.move import Move
from broadloom.agents.moves.summary import watch_traffic
from broadloom.agents.moves.wire import MqttWire
from broadloom.errors import InputError
from broadloom.mqtt.paho import need_paho


class Service(NamedTuple):
    """An agent, its brokers, the port of its API, and the thread that it works in, which ends if it fails."""

    agent: Agent
    brokers: tuple[str, ...]
    port: int
    thread: threading.Thread


@contextmanager
def serving(
    config: AgentConfig,
    links: Links | None = None,
    watch: Callable[[Move], None] = lambda _: None,
    hold: Callable[[AgentConfig], HeldLinks] | None = None,
) -> Iterator[Service]:
    """An agent at work, and its API, until the block ends.

    Args:
        config: what it works with.
        links: what brings messages to the broker that a client moves to; None: those of the configuration,
            and if it has none, everything goes everywhere.
        watch: called with each move that has come into a new state.
        hold: makes the links of a configuration that has some: `deployment.linkd.beside.links_beside`.

    Raises:
        InputError: the configuration has links, and nobody holds them; or a port or a journal is taken.
    """
    need_paho()
    with ExitStack() as stack:  # what has begun is ended, however far it came
        journal = MoveJournal(config.journal)
        stack.callback(journal.close)
        wire = MqttWire(config.doors, config.login)
        stack.callback(wire.stop)
        held = None if links is not None or config.links is None else _held(config, hold)
        if held is not None:
            links = held.links
            stack.callback(held.stop)
        agent = Agent(config.brokers, wire, journal, links, config.timing, watch)
        down = list if held is None else held.down
        server = _listening(Api(agent, lambda seconds: summarize(agent, config, seconds), down), config)
        stack.callback(server.server_close)
        if held is not None:
            held.start(agent.stop)  # the agent has asked for all that its clients need
        wire.start(agent.heard)
        thread = threading.Thread(target=agent.run, name="broadloom-agent", daemon=True)
        thread.start()
        stack.callback(thread.join)
        stack.callback(agent.stop)
        server.start()
        stack.callback(server.shutdown)
        yield Service(agent, tuple(config.brokers), server.server_port, thread)


def _held(config: AgentConfig, hold: Callable[[AgentConfig], HeldLinks] | None) -> HeldLinks:
    if hold is None:
        raise InputError(f"{config.file} has [links], and nobody holds them; give `serving` a hold")
    return hold(config)


def _listening(api: Api, config: AgentConfig) -> HttpServer:
    try:
        return HttpServer(api, config.token, config.port)
    except (OSError, OverflowError) as error:
        words = getattr(error, "strerror", None) or "no port"
        raise InputError(f"the agent cannot listen at port {config.port}: {words}") from error


def summarize(agent: Agent, config: AgentConfig, seconds: float) -> dict[str, Any]:
    """Count for some seconds what clients send, at their brokers.

    Returns:
        As JSON has it: `clients` (who is where and wants what), `sent` (what each of them published), and
        `sites` (where brokers are). `live_tables` makes histograms and the traffic matrix of it.

    Raises:
        AwayError: a broker does not answer, so that its clients cannot be counted.
    """
    known = agent.ask(lambda own: dict(own.registry.residents))
    residents = {name: one for name, one in known.items() if one.broker in config.brokers}
    homes = {name: one.broker for name, one in residents.items()}
    sent = watch_traffic(config.doors, config.login, seconds, homes.get)
    return {
        "clients": [asdict(one) for one in residents.values()],
        "sent": sent,
        "sites": {name: [site.place, site.capacity] for name, site in config.sites.items()},
    }

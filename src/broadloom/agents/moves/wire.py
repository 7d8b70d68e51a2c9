"""The agent's connections to real brokers; what takes time runs beside it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol

from broadloom.agents.moves._mqtt import connect_later, let_go, new_client, told
from broadloom.agents.moves.address import Address, Login
from broadloom.agents.moves.control import Filters
from broadloom.agents.moves.sessions import Redirection, forget, replicate
from broadloom.mqtt.reserved_topics import AGENT, ROOT

if TYPE_CHECKING:
    from paho.mqtt.client import Client

log = logging.getLogger("broadloom.agents.moves")

CALL_SECONDS = 60  # a call that waits longer for its client is dropped: the agent repeats what still holds

# Called with the broker, the topic, the payload, and what to call when the message is taken care of.
Heard = Callable[[str, str, bytes, Callable[[], None]], None]
# Called with what went wrong, or None.
Then = Callable[[str | None], None]


class Wire(Protocol):
    """What the agent does at brokers; tests have one without brokers."""

    def send(self, broker: str, topic: str, payload: bytes) -> None:
        """Publish, once the broker is there."""

    def replicate(self, broker: str, client: str, filters: Filters, then: Then) -> None:
        """Open a session of the client there."""

    def forget(self, broker: str, client: str, then: Then) -> None:
        """End the session of the client there."""

    def redirect(self, left: str, now: str, client: str, token: str, then: Then) -> Callable[[], None]:
        """Send on what waits for the client where it no longer is; gives a way to stop it."""


class MqttWire:
    """A connection to each broker, in sessions that wait for the agent while it is away.

    Args:
        addresses: of the brokers; those that only the agent may use, where there are such.
        login: the agent's.
        workers: how many sessions are worked on at the same time.
    """

    def __init__(self, addresses: Mapping[str, Address], login: Login, workers: int = 16) -> None:
        self._addresses, self._login = addresses, login
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="broadloom-session")
        self._clients: dict[str, Client] = {}

    def start(self, heard: Heard) -> None:
        """Connect to all brokers, as often as it takes."""
        for broker, address in self._addresses.items():
            self._clients[broker] = client = new_client(AGENT, self._login, by_hand=True)
            client.on_connect = self._connected(broker)
            client.on_message = self._listener(broker, heard)
            connect_later(client, address)

    def stop(self) -> None:
        """Go; sessions stay, so that what is said meanwhile waits for the next agent."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        for client in self._clients.values():
            let_go(client)
        self._clients.clear()

    def send(self, broker: str, topic: str, payload: bytes) -> None:
        """Publish; paho keeps it while the broker is away, and the broker for a while if the client is."""
        self._clients[broker].publish(topic, payload, 1, properties=told((), seconds=CALL_SECONDS))

    def replicate(self, broker: str, client: str, filters: Filters, then: Then) -> None:
        """Open a session of the client there."""
        self._beside(then, replicate, self._addresses[broker], client, self._login, filters)

    def forget(self, broker: str, client: str, then: Then) -> None:
        """End the session of the client there."""
        self._beside(then, forget, self._addresses[broker], client, self._login)

    def redirect(self, left: str, now: str, client: str, token: str, then: Then) -> Callable[[], None]:
        """Send on what waits for the client where it no longer is."""
        places = self._addresses[left], self._addresses[now]
        redirection = Redirection(*places, client, self._login, token)
        self._beside(then, redirection.run)

        def stop() -> None:
            redirection.stopped = True

        return stop

    def _beside(self, then: Then, work: Callable[..., str | None], *arguments: Any) -> None:
        def run() -> None:
            try:
                fault = work(*arguments)
            except Exception as error:  # whatever it is, the move is tried again
                log.exception("work on a session failed")
                fault = f"{error!r:.200}"
            then(fault)

        self._pool.submit(run)

    def _connected(self, broker: str) -> Callable[..., None]:
        def connected(client: Client, _d: object, _f: object, reason: Any, _p: object) -> None:
            if reason.is_failure:
                log.warning("broker %r refuses the agent: %s", broker, reason)
            else:
                client.subscribe(f"{ROOT}/from/+/+", 1)

        return connected

    def _listener(self, broker: str, heard: Heard) -> Callable[..., None]:
        def listener(client: Client, _d: object, message: Any) -> None:
            def done() -> None:
                client.ack(message.mid, message.qos)

            heard(broker, message.topic, message.payload, done)

        return listener

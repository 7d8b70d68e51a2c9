"""Broker side of moves: the agent's connections, and `replicate` and `redirect` (paper 5, section V)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol

from broadloom.agents.moves.control_messages import control_filters, redirect_topic, to_client
from broadloom.mqtt.endpoint import Address, Login
from broadloom.mqtt.paho import (
    FAILURE,
    NO_SUBSCRIBERS,
    RETAINED_NEVER,
    TICK,
    connect,
    connect_in_background,
    disconnect_now,
    message_properties,
    new_client,
    request_once,
    stop_client,
    subscription_options,
    user_properties,
)
from broadloom.mqtt.reserved_topics import CONTROL_ROOT, MOVE_AGENT
from broadloom.mqtt.topic_filters import QosFilters

if TYPE_CHECKING:
    from paho.mqtt.client import Client

log = logging.getLogger("broadloom.agents.moves")

CALL_SECONDS = 60  # message expiry of a control message; the agent repeats those that are still valid

# Called with the broker, the topic, the payload, and a function that acknowledges the message.
OnMessage = Callable[[str, str, bytes, Callable[[], None]], None]
# Called with the error, or None on success.
Then = Callable[[str | None], None]
TOPIC = "broadloom-topic"  # the user property with the original topic of a redirected message
QUIET_SECONDS = 5.0  # without progress, after which a redirection is restarted


class BrokerGateway(Protocol):
    """Operations of the agent at brokers; tests have one without brokers."""

    def send(self, broker: str, topic: str, payload: bytes) -> None:
        """Publish a message, as soon as the broker is connected."""

    def replicate(self, broker: str, client: str, filters: QosFilters, then: Then) -> None:
        """Open a session of the client."""

    def forget(self, broker: str, client: str, then: Then) -> None:
        """End the session of the client."""

    def redirect(self, left: str, now: str, client: str, token: str, then: Then) -> Callable[[], None]:
        """Forward the queue of a client from the broker it has left; returns a function that stops it."""


class MqttGateway:
    """One connection per broker, in sessions that brokers keep while the agent is absent.

    Args:
        addresses: the brokers' addresses; those for the agent alone, where there are such.
        login: the agent's login.
        workers: number of sessions that are processed in parallel.
    """

    def __init__(self, addresses: Mapping[str, Address], login: Login, workers: int = 16) -> None:
        self._addresses = addresses
        self._login = login
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="broadloom-session")
        self._clients: dict[str, Client] = {}

    def start(self, on_message: OnMessage) -> None:
        """Connect to all brokers in the background, with unlimited retries."""
        for broker, address in self._addresses.items():
            self._clients[broker] = client = new_client(MOVE_AGENT, self._login, manual_ack=True)
            client.on_connect = self._on_connect(broker)
            client.on_message = self._on_message(broker, on_message)
            connect_in_background(client, address)

    def stop(self) -> None:
        """Disconnect; the sessions stay, so control messages wait for the next agent."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        for client in self._clients.values():
            stop_client(client)
        self._clients.clear()

    def send(self, broker: str, topic: str, payload: bytes) -> None:
        """Publish; paho queues the message while the broker is absent, and the broker if the client is."""
        self._clients[broker].publish(
            topic, payload, 1, properties=message_properties((), seconds=CALL_SECONDS)
        )

    def replicate(self, broker: str, client: str, filters: QosFilters, then: Then) -> None:
        """Open a session of the client."""
        self._submit(then, replicate, self._addresses[broker], client, self._login, filters)

    def forget(self, broker: str, client: str, then: Then) -> None:
        """End the session of the client."""
        self._submit(then, forget, self._addresses[broker], client, self._login)

    def redirect(self, left: str, now: str, client: str, token: str, then: Then) -> Callable[[], None]:
        """Forward the queue of a client from the broker it has left."""
        addresses = self._addresses[left], self._addresses[now]
        redirection = Redirection(*addresses, client, self._login, token)
        self._submit(then, redirection.run)

        def stop() -> None:
            redirection.stopped = True

        return stop

    def _submit(self, then: Then, work: Callable[..., str | None], *arguments: Any) -> None:
        def run() -> None:
            try:
                error = work(*arguments)
            except Exception as failure:  # whatever it is, the work is repeated
                log.exception("work on a session failed")
                error = f"{failure!r:.200}"
            then(error)

        self._pool.submit(run)

    def _on_connect(self, broker: str) -> Callable[..., None]:
        def on_connect(client: Client, _d: object, _f: object, reason: Any, _p: object) -> None:
            if reason.is_failure:
                log.warning("broker %r refuses the agent: %s", broker, reason)
            else:
                client.subscribe(f"{CONTROL_ROOT}/from/+/+", 1)

        return on_connect

    def _on_message(self, broker: str, receive: OnMessage) -> Callable[..., None]:
        def on_message(client: Client, _d: object, message: Any) -> None:
            def acknowledge() -> None:
                client.ack(message.mid, message.qos)

            receive(broker, message.topic, message.payload, acknowledge)

        return on_message


def replicate(address: Address, client: str, login: Login, filters: QosFilters) -> str | None:
    """Open the client's session at the foreign broker, which queues messages from now on.

    Returns:
        The error, or None.
    """
    options = subscription_options((*filters, *control_filters(client)), RETAINED_NEVER)
    code, text = request_once(address, client, login, lambda own: own.subscribe(options))
    return text if code is None or code >= FAILURE else None


def forget(address: Address, client: str, login: Login) -> str | None:
    """End the client's session at a broker, and delete its queue; returns the error, or None."""
    code, text = request_once(address, client, login, lambda _: None, clean=True)
    return None if code == 0 else text


class Redirection:
    """Forwards the queue of a client from the broker it has left, and ends its session there.

    A mark is put at the end of the queue. Messages behind the mark arrived while the agent was connected in
    the client's name, with the agent's rights instead of the client's, so they are not forwarded; the foreign
    broker has them too. A message is acknowledged only when the new session has it, so a crash repeats
    messages and never loses any. Only the client reads the topic on which it is forwarded: without its
    session the broker would report that there are no subscribers.

    Args:
        left: the address of the broker that the client has left.
        now: the address of the broker where it is.
        client: the client's name.
        login: the agent's login.
        token: the payload of the mark.

    Attributes:
        stopped: set this to stop; the session is left as it is.
    """

    def __init__(self, left: Address, now: Address, client: str, login: Login, token: str) -> None:
        self.stopped = False
        self._left = left
        self._now = now
        self._name = client
        self._login = login
        self._token = token
        self._old = new_client(client, login, manual_ack=True)
        self._new = new_client(f"{MOVE_AGENT}-{token}", login)
        self._marked = self._absent = False
        self._error: str | None = None
        self._progress = 0.0
        self._in_flight: dict[int, Any] = {}  # by the packet id under which it was forwarded
        self._repeat: list[Any] = []

    def run(self) -> str | None:
        """Forward the queue in this thread; returns the error, or None."""
        mark = to_client(self._name, "mark"), self._token.encode(), 1
        writer = f"{MOVE_AGENT}-{self._token}"
        code, text = request_once(self._left, writer, self._login, lambda own: own.publish(*mark), clean=True)
        if code == NO_SUBSCRIBERS:  # the broker has no session of the client
            return None
        return text if code else self._forward_all()

    def _forward_all(self) -> str | None:
        self._old.on_connect = self._on_connect
        self._old.on_message = lambda _c, _d, message: self._on_message(message)
        self._new.on_connect = lambda _c, _d, _f, reason, _p: self._fail_if(reason)
        self._new.on_publish = lambda _c, _d, number, reason, _p: self._on_publish(number, reason)
        try:
            connect(self._new, self._now, clean=True, seconds=0)
            connect(self._old, self._left)
            self._progress = time.monotonic()
            error = self._loop()
        except OSError as failure:
            error = failure.strerror or str(failure)
        for client in (self._new, self._old):
            disconnect_now(client)
        # Ending the session takes a new connection: unread messages would reset this one before its end.
        return error or forget(self._left, self._name, self._login)

    def _loop(self) -> str | None:
        """Read and write until the mark has arrived and all messages before it are forwarded."""
        while not (self._absent or (self._marked and not self._in_flight and not self._repeat)):
            if self.stopped or self._error:
                return self._error or "stopped"
            if time.monotonic() - self._progress > QUIET_SECONDS:
                return "no progress"
            if self._old.loop(TICK / 4) != 0 or self._new.loop(TICK / 4) != 0:
                return "the connection was lost or taken over"
            repeated = self._repeat
            self._repeat = []
            if repeated:
                time.sleep(TICK)
            for message in repeated:
                self._forward(message)
        return None

    def _on_connect(self, _c: object, _d: object, flags: Any, reason: Any, _p: object) -> None:
        self._fail_if(reason)
        self._absent = not flags.session_present

    def _fail_if(self, reason: Any) -> None:
        if reason.is_failure:
            self._error = str(reason)

    def _on_message(self, message: Any) -> None:
        if self._marked:
            return
        self._progress = time.monotonic()
        if message.topic == to_client(self._name, "mark"):
            self._marked = message.payload == self._token.encode()
        elif message.topic.startswith(f"{CONTROL_ROOT}/"):
            self._old.ack(message.mid, message.qos)  # an outdated control message
        else:
            self._forward(message)

    def _forward(self, message: Any) -> None:
        topic = redirect_topic(self._name)
        user = user_properties(message.properties)
        if message.topic != topic:  # a message that is redirected again has its topic already
            user = [(TOPIC, message.topic), *user]
        sent = self._new.publish(
            topic, message.payload, 1, properties=message_properties(user, message.properties)
        )
        self._in_flight[sent.mid] = message

    def _on_publish(self, number: int, reason: Any) -> None:
        message = self._in_flight.pop(number)
        if reason.value == 0:
            self._old.ack(message.mid, message.qos)
            self._progress = time.monotonic()
        elif reason.value == NO_SUBSCRIBERS:  # the client's session is not restored yet
            self._repeat.append(message)
        else:
            self._error = str(reason)

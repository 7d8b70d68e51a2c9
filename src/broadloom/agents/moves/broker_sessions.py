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

CALL_SECONDS = 60  # message expiry of a control message; the agent repeats it as long as it is valid

# Called with the broker, the topic, the payload, and a function that acknowledges the message.
OnMessage = Callable[[str, str, bytes, Callable[[], None]], None]
# Called with the error, or None on success.
Then = Callable[[str | None], None]
TOPIC = "broadloom-topic"  # the user property with the original topic of a redirected message
QUIET_SECONDS = 5.0  # a redirection without progress for this time fails, and is repeated later


class BrokerGateway(Protocol):
    """Operations of the agent at brokers; tests implement it without brokers."""

    def send(self, broker: str, topic: str, payload: bytes) -> None:
        """Publish a message, as soon as the broker is connected."""

    def replicate(self, broker: str, client: str, filters: QosFilters, then: Then) -> None:
        """Open a session of the client."""

    def forget(self, broker: str, client: str, then: Then) -> None:
        """End the session of the client."""

    def redirect(self, old: str, new: str, client: str, token: str, then: Then) -> Callable[[], None]:
        """Forward a client's queue from its old broker to the new one; returns a function that stops it."""


class MqttGateway:
    """Gateway by MQTT: one connection per broker, whose session the broker keeps while the agent is absent.

    Args:
        addresses: the brokers' addresses for the agent, which can differ from those for clients.
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
        """Publish; paho queues the message while the broker is absent, the broker while the client is."""
        self._clients[broker].publish(
            topic, payload, 1, properties=message_properties((), seconds=CALL_SECONDS)
        )

    def replicate(self, broker: str, client: str, filters: QosFilters, then: Then) -> None:
        """Open a session of the client."""
        self._submit(then, replicate, self._addresses[broker], client, self._login, filters)

    def forget(self, broker: str, client: str, then: Then) -> None:
        """End the session of the client."""
        self._submit(then, forget, self._addresses[broker], client, self._login)

    def redirect(self, old: str, new: str, client: str, token: str, then: Then) -> Callable[[], None]:
        """Forward a client's queue from its old broker to the new one; returns a function that stops it."""
        addresses = self._addresses[old], self._addresses[new]
        redirection = Redirection(*addresses, client, self._login, token)
        self._submit(then, redirection.run)

        def stop() -> None:
            redirection.stopped = True

        return stop

    def _submit(self, then: Then, work: Callable[..., str | None], *arguments: Any) -> None:
        def run() -> None:
            try:
                error = work(*arguments)
            except Exception as failure:  # of any kind: the agent repeats the work
                log.exception("an operation on a session failed")
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
    """Open the session of a `MovingClient`, with its control topics; returns the error, or None."""
    return replicate_session(address, client, login, (*filters, *control_filters(client)))


def replicate_session(address: Address, client: str, login: Login, filters: QosFilters) -> str | None:
    """Open the client's session at the foreign broker, which queues messages from now on.

    Returns:
        The error, or None on success.
    """
    options = subscription_options(filters, RETAINED_NEVER)
    code, text = request_once(address, client, login, lambda session: session.subscribe(options))
    return text if code is None or code >= FAILURE else None


def forget(address: Address, client: str, login: Login) -> str | None:
    """End the client's session at a broker, and delete its queue; returns the error, or None on success."""
    code, text = request_once(address, client, login, lambda _: None, clean=True)
    return None if code == 0 else text


class Redirection:
    """Forwards the queue of a client from the broker that it has left, and ends its session there.

    The agent first publishes a mark, which enters the queue behind all messages for the client. Messages
    behind the mark arrived while the agent was connected under the client's id, with the agent's rights
    instead of the client's, so they are not forwarded; the new broker has them too. A message is
    acknowledged at the old broker only when the new session has it, so a crash repeats messages and never
    loses any. Messages are forwarded on a topic that only this client reads: as long as the new broker
    reports no subscribers of it, the client's session is missing there, and the message is sent again.

    Args:
        old: the address of the broker that the client has left.
        new: the address of the broker that serves it now.
        client: the client's name.
        login: the agent's login.
        token: the payload of the mark.

    Attributes:
        stopped: set this to stop; the session is left as it is.
    """

    def __init__(self, old: Address, new: Address, client: str, login: Login, token: str) -> None:
        self.stopped = False
        self._old_address = old
        self._new_address = new
        self._name = client
        self._login = login
        self._token = token
        self._reader = new_client(client, login, manual_ack=True)
        self._writer = new_client(f"{MOVE_AGENT}-{token}", login)
        self._marked = False  # the mark has arrived
        self._session_missing = False
        self._error: str | None = None
        self._progress = 0.0
        self._in_flight: dict[int, Any] = {}  # forwarded messages by their packet id
        self._repeat: list[Any] = []  # messages that the new broker did not queue yet

    def run(self) -> str | None:
        """Forward the queue in this thread; returns the error, or None on success."""
        mark = to_client(self._name, "mark"), self._token.encode(), 1
        marker = f"{MOVE_AGENT}-{self._token}"
        code, text = request_once(
            self._old_address, marker, self._login, lambda session: session.publish(*mark), clean=True
        )
        if code == NO_SUBSCRIBERS:  # the broker has no session of the client
            return None
        return text if code else self._forward_all()

    def _forward_all(self) -> str | None:
        self._reader.on_connect = self._on_connect
        self._reader.on_message = lambda _c, _d, message: self._on_message(message)
        self._writer.on_connect = lambda _c, _d, _f, reason, _p: self._fail_if(reason)
        self._writer.on_publish = lambda _c, _d, number, reason, _p: self._on_publish(number, reason)
        try:
            connect(self._writer, self._new_address, clean=True, seconds=0)
            connect(self._reader, self._old_address)
            self._progress = time.monotonic()
            error = self._loop()
        except OSError as failure:
            error = failure.strerror or str(failure)
        for client in (self._writer, self._reader):
            disconnect_now(client)
        # A new connection ends the session: with unread messages, this one would be reset too early.
        return error or forget(self._old_address, self._name, self._login)

    def _loop(self) -> str | None:
        """Read and write until the mark has arrived and all messages before it are forwarded."""
        while not (self._session_missing or (self._marked and not self._in_flight and not self._repeat)):
            if self.stopped or self._error:
                return self._error or "stopped"
            if time.monotonic() - self._progress > QUIET_SECONDS:
                return "no progress"
            if self._reader.loop(TICK / 4) != 0 or self._writer.loop(TICK / 4) != 0:
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
        self._session_missing = not flags.session_present

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
            self._reader.ack(message.mid, message.qos)  # an outdated control message
        else:
            self._forward(message)

    def _forward(self, message: Any) -> None:
        topic = redirect_topic(self._name)
        user = user_properties(message.properties)
        if message.topic != topic:  # a message that is redirected again has its topic already
            user = [(TOPIC, message.topic), *user]
        sent = self._writer.publish(
            topic, message.payload, 1, properties=message_properties(user, message.properties)
        )
        self._in_flight[sent.mid] = message

    def _on_publish(self, number: int, reason: Any) -> None:
        message = self._in_flight.pop(number)
        if reason.value == 0:
            self._reader.ack(message.mid, message.qos)
            self._progress = time.monotonic()
        elif reason.value == NO_SUBSCRIBERS:  # the client's session is not restored yet
            self._repeat.append(message)
        else:
            self._error = str(reason)

"""Broker side of moves: the agent's connections, and `replicate` and `redirect` (paper 5, section V)."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol

from broadloom.agents.monitoring import RateLimitedLog
from broadloom.agents.moves.control_codes import ClientKeys, content_code
from broadloom.agents.moves.control_messages import control_filters, redirect_topic, to_client
from broadloom.errors import BroadloomError
from broadloom.mqtt.endpoint import Address, Login
from broadloom.mqtt.paho import (
    FAILURE,
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
from broadloom.mqtt.reserved_topics import INTERNAL_PREFIX, MESSAGE_ID, MOVE_AGENT
from broadloom.mqtt.topic_filters import QosFilters

if TYPE_CHECKING:
    from paho.mqtt.client import Client

log = logging.getLogger("broadloom.agents.moves")

CALL_SECONDS = 60  # message expiry of a control message; the agent repeats it as long as it is valid

# Called with the broker, the topic, the payload, and a function that acknowledges the message.
OnMessage = Callable[[str, str, bytes, Callable[[], None]], None]
# Called with the error, or None on success.
Then = Callable[[str | None], None]
MARK = "broadloom-mark"  # the user property of a mark in redirected messages
CODE = "broadloom-code"  # the user property with the code of a redirected message
TOPIC = "broadloom-topic"  # the user property with the original topic of a redirected message
NO_ANSWER = "the client does not answer"  # the error of a redirection to an absent client
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

    def confirm(self, client: str, mark: str) -> None:
        """A client has confirmed that it has all redirected messages before a mark."""


class MqttGateway:
    """Gateway by MQTT: one connection per broker, whose session the broker keeps while the agent is absent.

    Args:
        addresses: the brokers' addresses for the agent, which can differ from those for clients.
        login: the agent's login.
        workers: number of sessions that are processed in parallel.
        keys: the keys of clients; None: control messages have no codes.
    """

    def __init__(
        self,
        addresses: Mapping[str, Address],
        login: Login,
        workers: int = 16,
        keys: ClientKeys | None = None,
    ) -> None:
        self._keys = keys
        self._addresses = addresses
        self._login = login
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="broadloom-session")
        self._clients: dict[str, Client] = {}
        self._redirections: dict[str, Redirection] = {}  # by client
        self._warnings = RateLimitedLog(log)

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
        key = None if self._keys is None else self._keys.of(client)
        redirection = Redirection(*addresses, client, self._login, token, key)
        self._redirections[client] = redirection

        def ended(error: str | None) -> None:
            if self._redirections.get(client) is redirection:
                del self._redirections[client]
            then(error)

        self._submit(ended, redirection.run)

        def stop() -> None:
            redirection.stopped = True

        return stop

    def confirm(self, client: str, mark: str) -> None:
        """A client has confirmed that it has all redirected messages before a mark."""
        redirection = self._redirections.get(client)
        if redirection is not None:
            redirection.confirm(mark)

    def _submit(self, then: Then, work: Callable[..., str | None], *arguments: Any) -> None:
        def run() -> None:
            try:
                error = work(*arguments)
            except (BroadloomError, OSError) as failure:  # such as a missing file
                self._warnings.warn("session", "an operation on a session failed: %s", failure)
                error = f"{failure!s:.200}"
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
                client.subscribe(f"{INTERNAL_PREFIX}from/+/+", 1)

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
    instead of the client's, so they are not forwarded; the new broker has them too.

    Messages are forwarded on a topic that only this client reads. That its session is there is proven by the
    client itself: it confirms a mark before anything is forwarded, and another one behind each batch. After
    that, messages are acknowledged at the old broker, so a crash repeats messages and never loses any.

    Args:
        old: the address of the broker that the client has left.
        new: the address of the broker that serves it now.
        client: the client's name.
        login: the agent's login.
        token: the payload of the mark.
        key: the client's key, by which it knows that a message is forwarded by the agent; None: without.

    Attributes:
        stopped: set this to stop; the session is left as it is.
        confirmed: the marks that the client has confirmed.
    """

    def __init__(
        self, old: Address, new: Address, client: str, login: Login, token: str, key: str | None = None
    ) -> None:
        self._key = key
        self.stopped = False
        self.confirmed: set[str] = set()
        self._old_address = old
        self._new_address = new
        self._name = client
        self._login = login
        self._token = token
        self._reader: Client  # both are made by `run`: that reads TLS files, and can fail
        self._writer: Client
        self._marked = False  # the mark has arrived
        self._session_missing = False
        self._error: str | None = None
        self._progress = 0.0
        self._present = secrets.token_hex(8)  # the mark before all messages
        self._in_flight: set[int] = set()  # packet ids of forwarded messages
        self._forwarded: list[Any] = []
        self._batch: list[Any] = []  # forwarded messages before a mark that the client is to confirm
        self._batch_mark = ""
        self._last_message = 0.0
        self._has_asked = False
        self._waiting: list[Any] = []  # messages that are not forwarded yet

    def confirm(self, mark: str) -> None:
        """The client has confirmed a mark; only those that are awaited count."""
        if mark in (self._present, self._batch_mark):
            self.confirmed.add(mark)

    def run(self) -> str | None:
        """Forward the queue in this thread; returns the error, or None on success.

        Raises:
            InputError: the files of the login cannot be read.
        """
        self._reader = new_client(self._name, self._login, manual_ack=True)
        self._writer = new_client(f"{MOVE_AGENT}-{self._token}", self._login)
        mark = to_client(self._name, "mark"), self._token.encode(), 1
        marker = f"{MOVE_AGENT}-{self._token}"
        code, text = request_once(
            self._old_address, marker, self._login, lambda session: session.publish(*mark), clean=True
        )
        return text if code is None or code >= FAILURE else self._forward_all()

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
        """Read and write until the client has confirmed everything before the mark."""
        while not self._session_missing:
            if self.stopped or self._error:
                return self._error or "stopped"
            if time.monotonic() - self._progress > QUIET_SECONDS:
                return "no progress" if self._present in self.confirmed else NO_ANSWER
            if self._reader.loop(TICK / 4) != 0 or self._writer.loop(TICK / 4) != 0:
                return "the connection was lost or taken over"
            if self._present in self.confirmed:
                for message in self._waiting:
                    self._forward(message)
                self._waiting.clear()
            self._confirm_batch()
            if self._marked and not (self._waiting or self._forwarded or self._batch):
                return None
        return None

    def _confirm_batch(self) -> None:
        """Have the client confirm what was forwarded, and acknowledge what it has confirmed.

        The old broker sends no more than its window before it is acknowledged.
        """
        if self._batch_mark in self.confirmed:
            for message in self._batch:
                self._reader.ack(message.mid, message.qos)
            self._batch = []
            self._batch_mark = ""
            self._progress = time.monotonic()
        is_pause = self._marked or time.monotonic() - self._last_message > TICK
        if self._forwarded and not self._batch and not self._in_flight and is_pause:
            self._batch = self._forwarded
            self._forwarded = []
            self._batch_mark = secrets.token_hex(8)
            self._send_mark(self._batch_mark)

    def _send_mark(self, mark: str) -> None:
        """Send a mark, which the client confirms when it has all messages before it."""
        user = [(MARK, mark)]
        if self._key is not None:
            user.append((CODE, content_code(self._key, "", mark.encode(), "")))
        properties = message_properties(user, seconds=CALL_SECONDS)
        sent = self._writer.publish(redirect_topic(self._name), b"", 1, properties=properties)
        self._in_flight.add(sent.mid)

    def _on_connect(self, _c: object, _d: object, flags: Any, reason: Any, _p: object) -> None:
        self._fail_if(reason)
        self._session_missing = not flags.session_present

    def _fail_if(self, reason: Any) -> None:
        if reason.is_failure:
            self._error = str(reason)

    def _on_message(self, message: Any) -> None:
        if self._marked:
            return
        self._last_message = self._progress = time.monotonic()
        if message.topic == to_client(self._name, "mark"):
            self._marked = message.payload == self._token.encode()
        elif message.topic.startswith(INTERNAL_PREFIX) and message.topic != redirect_topic(self._name):
            self._reader.ack(message.mid, message.qos)  # an outdated control message
        else:
            if not self._has_asked:
                self._has_asked = True
                self._send_mark(self._present)
            self._waiting.append(message)

    def _forward(self, message: Any) -> None:
        topic = redirect_topic(self._name)
        user = user_properties(message.properties)
        if message.topic != topic:  # a message that is redirected again has its topic already
            user = [(TOPIC, message.topic), *(pair for pair in user if pair[0] not in (TOPIC, CODE, MARK))]
            if self._key is not None:
                message_id = dict(user).get(MESSAGE_ID, "")
                user.append((CODE, content_code(self._key, message.topic, message.payload, message_id)))
        sent = self._writer.publish(
            topic, message.payload, 1, properties=message_properties(user, message.properties)
        )
        self._in_flight.add(sent.mid)
        self._forwarded.append(message)

    def _on_publish(self, number: int, reason: Any) -> None:
        self._in_flight.discard(number)
        self._progress = time.monotonic()
        if reason.is_failure:
            self._error = str(reason)

"""The agent's connections to real brokers; what takes time runs beside it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol

from broadloom.agents.moves.control_messages import after_client, always_wanted, to_client
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

CALL_SECONDS = 60  # a call that waits longer for its client is dropped: the agent repeats what still holds

# Called with the broker, the topic, the payload, and what to call when the message is taken care of.
Heard = Callable[[str, str, bytes, Callable[[], None]], None]
# Called with what went wrong, or None.
Then = Callable[[str | None], None]
TOPIC = "broadloom-topic"  # the user property that tells where a redirected message was published
QUIET_SECONDS = 5.0  # without any progress, after which a redirection is tried anew


class BrokerGateway(Protocol):
    """What the agent does at brokers; tests have one without brokers."""

    def send(self, broker: str, topic: str, payload: bytes) -> None:
        """Publish, once the broker is there."""

    def replicate(self, broker: str, client: str, filters: QosFilters, then: Then) -> None:
        """Open a session of the client there."""

    def forget(self, broker: str, client: str, then: Then) -> None:
        """End the session of the client there."""

    def redirect(self, left: str, now: str, client: str, token: str, then: Then) -> Callable[[], None]:
        """Send on what waits for the client where it no longer is; gives a way to stop it."""


class MqttGateway:
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
            self._clients[broker] = client = new_client(MOVE_AGENT, self._login, manual_ack=True)
            client.on_connect = self._connected(broker)
            client.on_message = self._listener(broker, heard)
            connect_in_background(client, address)

    def stop(self) -> None:
        """Go; sessions stay, so that what is said meanwhile waits for the next agent."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        for client in self._clients.values():
            stop_client(client)
        self._clients.clear()

    def send(self, broker: str, topic: str, payload: bytes) -> None:
        """Publish; paho keeps it while the broker is away, and the broker for a while if the client is."""
        self._clients[broker].publish(
            topic, payload, 1, properties=message_properties((), seconds=CALL_SECONDS)
        )

    def replicate(self, broker: str, client: str, filters: QosFilters, then: Then) -> None:
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
                client.subscribe(f"{CONTROL_ROOT}/from/+/+", 1)

        return connected

    def _listener(self, broker: str, heard: Heard) -> Callable[..., None]:
        def listener(client: Client, _d: object, message: Any) -> None:
            def done() -> None:
                client.ack(message.mid, message.qos)

            heard(broker, message.topic, message.payload, done)

        return listener


def replicate(address: Address, client: str, login: Login, filters: QosFilters) -> str | None:
    """Open the client's own session at the foreign broker, which collects from now on.

    Returns:
        What went wrong, or None.
    """
    all_of_it = subscription_options((*filters, *always_wanted(client)), RETAINED_NEVER)
    code, words = request_once(address, client, login, lambda own: own.subscribe(all_of_it))
    return words if code is None or code >= FAILURE else None


def forget(address: Address, client: str, login: Login) -> str | None:
    """End the client's session at a broker, with all that waits there."""
    code, words = request_once(address, client, login, lambda _: None, clean=True)
    return None if code == 0 else words


class Redirection:
    """Sends on what waits for a client where it no longer is, and ends its session there.

    A mark is put behind all that waits. What comes after the mark came while we were connected in the
    client's place, with our rights and not with its own, so it is left out; the foreign broker has it too.
    A message is acknowledged only when the new session has it, so that a crash repeats and never loses.
    Nobody else reads the topic on which it is sent: without the session the broker would say so.

    Args:
        left: the broker that the client has left.
        now: the broker where it is.
        client: its name.
        login: ours.
        token: the mark.

    Attributes:
        stopped: set it, and the redirection ends and leaves the session as it is.
    """

    def __init__(self, left: Address, now: Address, client: str, login: Login, token: str) -> None:
        self.stopped = False
        self._left, self._now, self._name, self._login, self._token = left, now, client, login, token
        self._old = new_client(client, login, manual_ack=True)
        self._new = new_client(f"{MOVE_AGENT}-{token}", login)
        self._marked = self._absent = False
        self._fault: str | None = None
        self._progress = 0.0
        self._under_way: dict[int, Any] = {}  # by the number under which it was sent on
        self._again: list[Any] = []

    def run(self) -> str | None:
        """Do it, in this thread; gives what went wrong, or None."""
        mark = to_client(self._name, "mark"), self._token.encode(), 1
        writer = f"{MOVE_AGENT}-{self._token}"
        code, words = request_once(
            self._left, writer, self._login, lambda own: own.publish(*mark), clean=True
        )
        if code == NO_SUBSCRIBERS:  # the broker has no session of the client
            return None
        return words if code else self._send_all_on()

    def _send_all_on(self) -> str | None:
        self._old.on_connect = self._connected
        self._old.on_message = lambda _c, _d, message: self._heard(message)
        self._new.on_connect = lambda _c, _d, _f, reason, _p: self._fail_if(reason)
        self._new.on_publish = lambda _c, _d, number, reason, _p: self._answered(number, reason)
        try:
            connect(self._new, self._now, clean=True, seconds=0)
            connect(self._old, self._left)
            self._progress = time.monotonic()
            fault = self._loop()
        except OSError as error:
            fault = error.strerror or str(error)
        for client in (self._new, self._old):
            disconnect_now(client)
        # To end the session takes a new connection: unread messages would reset this one, and lose its end.
        return fault or forget(self._left, self._name, self._login)

    def _loop(self) -> str | None:
        """Read here, write there, until the mark has come and all before it has arrived."""
        while not (self._absent or (self._marked and not self._under_way and not self._again)):
            if self.stopped or self._fault:
                return self._fault or "stopped"
            if time.monotonic() - self._progress > QUIET_SECONDS:
                return "no progress"
            if self._old.loop(TICK / 4) != 0 or self._new.loop(TICK / 4) != 0:
                return "the connection was lost or taken over"
            again, self._again = self._again, []
            if again:
                time.sleep(TICK)
            for message in again:
                self._send_on(message)
        return None

    def _connected(self, _c: object, _d: object, flags: Any, reason: Any, _p: object) -> None:
        self._fail_if(reason)
        self._absent = not flags.session_present

    def _fail_if(self, reason: Any) -> None:
        if reason.is_failure:
            self._fault = str(reason)

    def _heard(self, message: Any) -> None:
        if self._marked:
            return
        self._progress = time.monotonic()
        if message.topic == to_client(self._name, "mark"):
            self._marked = message.payload == self._token.encode()
        elif message.topic.startswith(f"{CONTROL_ROOT}/"):
            self._old.ack(message.mid, message.qos)  # a call that was overtaken
        else:
            self._send_on(message)

    def _send_on(self, message: Any) -> None:
        topic, user = after_client(self._name), user_properties(message.properties)
        if message.topic != topic:  # one that is redirected again has its topic already
            user = [(TOPIC, message.topic), *user]
        sent = self._new.publish(
            topic, message.payload, 1, properties=message_properties(user, message.properties)
        )
        self._under_way[sent.mid] = message

    def _answered(self, number: int, reason: Any) -> None:
        message = self._under_way.pop(number)
        if reason.value == 0:
            self._old.ack(message.mid, message.qos)
            self._progress = time.monotonic()
        elif reason.value == NO_SUBSCRIBERS:  # its session there is not back yet
            self._again.append(message)
        else:
            self._fault = str(reason)

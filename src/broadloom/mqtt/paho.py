"""MQTT clients on paho-mqtt, and changes of absent clients' sessions.

This is the only module that uses paho's private parts.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

from broadloom.errors import InputError, UnreachableError, missing_extra
from broadloom.mqtt.endpoint import ANONYMOUS, Address, Login
from broadloom.mqtt.reserved_topics import INTERNAL_PREFIX
from broadloom.mqtt.topic_filters import QosFilters

if TYPE_CHECKING:
    from paho.mqtt.client import Client
    from paho.mqtt.properties import Properties
    from paho.mqtt.subscribeoptions import SubscribeOptions

SESSION_SECONDS = 24 * 3600  # after which a broker deletes the session of an absent client
KEEPALIVE = 15
ANSWER_SECONDS, UPDATE_SECONDS = 5.0, 30.0
TICK = 0.02
RETAINED_IF_NEW, RETAINED_NEVER = 1, 2
NOT_SENT = 0  # no packet has this id
NO_SUBSCRIBERS, FAILURE = 0x10, 0x80
PACKET_ID_IN_USE = 15  # paho's MQTT_ERR_QUEUE_SIZE, where its queue is unlimited
# Properties that a message keeps when it is forwarded.
_KEPT = ("PayloadFormatIndicator", "MessageExpiryInterval", "ContentType", "ResponseTopic", "CorrelationData")


class HeldMessage(NamedTuple):
    """A message that was taken from a session or seen at a broker, and can be published again."""

    topic: str
    payload: bytes
    retain: bool = False


def need_paho() -> Any:
    """Import the MQTT client library.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        import paho.mqtt.client as paho
    except ImportError as error:
        raise missing_extra("paho-mqtt", "deploy") from error
    return paho


def close_sockets(client: Client) -> None:
    """Close sockets that paho closes only when the client is garbage-collected.

    The garbage collector can reach the sockets first, which is a `ResourceWarning`.
    """
    client._reset_sockets()


def new_client(name: str, login: Login, manual_ack: bool = False) -> Client:
    """Create a client without connecting it.

    Args:
        name: the MQTT client id.
        login: user name, password and TLS files.
        manual_ack: whether the caller acknowledges messages.
    """
    paho = need_paho()
    version = paho.CallbackAPIVersion.VERSION2
    client: Client = paho.Client(version, name, protocol=paho.MQTTv5, manual_ack=manual_ack)
    _log_in(client, login)
    client.reconnect_delay_set(0.1, 1)  # type: ignore[arg-type]
    client.max_inflight_messages_set(200)
    client.max_queued_messages_set(0)
    return client


def connect(client: Client, address: Address, clean: bool = False, seconds: int = SESSION_SECONDS) -> None:
    """Connect; the broker keeps the session for `seconds` after the connection ends."""
    client.connect(
        address.hostname,
        address.port,
        KEEPALIVE,
        clean_start=clean,
        properties=_properties("CONNECT", seconds),
    )


def connect_in_background(client: Client, address: Address) -> None:
    """Connect in the client's own thread with unlimited retries; the session is kept."""
    client.connect_async(
        address.hostname,
        address.port,
        KEEPALIVE,
        clean_start=False,
        properties=_properties("CONNECT", SESSION_SECONDS),
    )
    client.loop_start()


def stop_client(client: Client) -> None:
    """Disconnect a client that runs in its own thread, and close its sockets."""
    client.disconnect()
    client.loop_stop()
    close_sockets(client)


def disconnect_now(client: Client) -> None:
    """Disconnect a client that runs in this thread."""
    client.disconnect()
    loop_until(client, lambda: client.socket() is None, 1.0)
    close_sockets(client)


def subscription_options(
    filters: QosFilters, retained: int, as_published: bool = False
) -> list[tuple[str, SubscribeOptions]]:
    """Topic filters with their subscription options.

    Args:
        filters: the topic filters, each with its QoS.
        retained: whether the broker sends messages that it has retained before.
        as_published: whether messages have the retain flag with which they were published.
    """
    from paho.mqtt.subscribeoptions import SubscribeOptions

    return [
        (text, SubscribeOptions(qos, retainAsPublished=as_published, retainHandling=retained))
        for text, qos in filters
    ]


def message_properties(
    user: Iterable[tuple[str, str]], like: Properties | None = None, seconds: int | None = None
) -> Properties:
    """Properties of a message.

    Args:
        user: the user properties.
        like: a message's properties to copy, except for user properties.
        seconds: the message expiry interval.
    """
    properties = _properties("PUBLISH", None)
    if seconds is not None:
        properties.MessageExpiryInterval = seconds
    for name in _KEPT if like is not None else ():
        if (value := getattr(like, name, None)) is not None:
            setattr(properties, name, value)
    properties.UserProperty = list(user)
    return properties


def user_properties(properties: Properties | None) -> list[tuple[str, str]]:
    """The user properties of a message; empty for a message of MQTT 3."""
    return list(getattr(properties, "UserProperty", ()))


def loop_until(client: Client, done: Callable[[], bool], seconds: float) -> bool:
    """Run the client's network loop; false on timeout or when the connection is lost."""
    end = time.monotonic() + seconds
    while not done():
        if time.monotonic() > end or client.loop(TICK) != 0:
            return False
    return True


def request_once(
    address: Address, name: str, login: Login, send: Callable[[Client], object], clean: bool = False
) -> tuple[int | None, str]:
    """Connect, send one request, wait for its answer, and disconnect.

    Args:
        address: the broker's address.
        name: the MQTT client id.
        login: user name, password and TLS files.
        send: sends the request: subscribes or publishes; if it returns None, no answer is awaited.
        clean: whether to delete the session and its queue.

    Returns:
        The reason code (None: no answer; from 128 on: a failure), and its text.
    """
    client = new_client(name, login, manual_ack=True)  # queued messages stay in the queue
    answers: list[tuple[int, str]] = []

    def on_answer(reason: Any) -> None:
        answers.append((reason.value, str(reason)))

    def on_connect(_c: Client, _d: object, _f: object, reason: Any, _p: object) -> None:
        if reason.is_failure or send(client) is None:
            on_answer(reason)

    client.on_connect = on_connect
    client.on_subscribe = lambda _c, _d, _m, reasons, _p: on_answer(max(reasons, key=lambda one: one.value))
    client.on_publish = lambda _c, _d, _m, reason, _p: on_answer(reason)
    try:
        connect(client, address, clean, 0 if clean else SESSION_SECONDS)
        if not loop_until(client, lambda: bool(answers), ANSWER_SECONDS):
            return None, "no answer"
        disconnect_now(client)
    except OSError as error:
        return None, error.strerror or str(error)
    finally:
        close_sockets(client)
    return answers[0]


def update_session(
    action: str,
    address: Address,
    client_id: str,
    filters: Sequence[str] = (),
    qos: int = 1,
    login: Login = ANONYMOUS,
) -> None:
    """Open, close or end the session of an absent client, by a connection under its client id.

    Args:
        action: "open": queue messages of the filters from now on; "close": queue no more of them, but keep
            the queue; "end": delete the session with its queue.
        address: the broker's address.
        client_id: the client whose session it is.
        filters: the topic filters to open or close.
        qos: the quality of service of opened filters.
        login: user name, password and TLS files.

    Raises:
        InputError: a TLS file cannot be used, or the broker refuses the client or a filter.
        UnreachableError: the broker cannot be reached or does not answer.
    """
    requests: dict[str, Callable[[Client], object]] = {
        "open": lambda client: client.subscribe([(text, qos) for text in filters]),
        "close": lambda client: client.unsubscribe(list(filters)),
        "end": lambda _: None,  # connecting with a clean session is enough
    }
    _request_as(client_id, address, login, requests[action], clean=action == "end")


def drain_session(
    address: Address,
    client_id: str,
    login: Login,
    keep: Callable[[list[HeldMessage]], None],
) -> None:
    """Take all messages that wait in the session of an absent client, and end the session.

    Args:
        address: the broker's address.
        client_id: the client whose session it is.
        login: user name, password and TLS files.
        keep: called with messages; what it has kept is acknowledged.

    Raises:
        InputError: a TLS file cannot be used, or the broker refuses the client.
        UnreachableError: the broker cannot be reached or does not answer.
    """
    client = _session_client(client_id, login, clean=False)
    fence = f"{INTERNAL_PREFIX}drained/{uuid.uuid4().hex}"
    waiting: list[Any] = []
    state = {"subscribed": False, "done": False}

    def on_connect(_client: Client, _data: object, _flags: object, code: Any, _properties: object) -> None:
        if not code.is_failure:
            client.subscribe(fence, 1)

    def on_message(_client: Client, _data: object, message: Any) -> None:
        if message.topic == fence:
            state["done"] = True
        else:
            waiting.append(message)

    def flush() -> None:
        if waiting:
            keep([HeldMessage(one.topic, one.payload, bool(one.retain)) for one in waiting])
            for message in waiting:
                client.ack(message.mid, message.qos)
            waiting.clear()

    client.on_connect = on_connect
    client.on_subscribe = lambda *_: state.update(subscribed=True)
    client.on_message = on_message
    what = f"cannot empty the session {client_id!r} at {address}"
    try:
        client.connect(address.hostname, address.port)
        if not loop_until(client, lambda: state["subscribed"], UPDATE_SECONDS):
            raise UnreachableError(f"{what}: no answer; is the broker running?")
        # A session is a queue: when the fence arrives, everything before it has.
        code, text = request_once(
            address, f"{client_id}-fence", login, lambda other: other.publish(fence, b"", 1), clean=True
        )
        if code is None or code >= FAILURE:
            raise UnreachableError(f"{what}: {text}")
        end = time.monotonic() + UPDATE_SECONDS
        while not state["done"]:
            before = len(waiting)
            if client.loop(TICK) != 0 or time.monotonic() > end:
                raise UnreachableError(f"{what}: the connection is lost, or nothing comes")
            if len(waiting) > before:
                end = time.monotonic() + UPDATE_SECONDS
            flush()
        flush()
        client.disconnect()
        loop_until(client, lambda: client.socket() is None, 1.0)
    except OSError as error:
        if isinstance(error, UnreachableError):
            raise
        raise UnreachableError(f"{what}: {error.strerror or error}; is the broker running?") from error
    finally:
        close_sockets(client)
    update_session("end", address, client_id, login=login)


class ArrivalWitness:
    """Subscriber that remembers which messages have arrived at a broker; it reconnects by itself.

    Of all messages it keeps a code, and for some time the messages themselves. A broker of MQTT 5 sends a
    message once per filter that it matches; each filter has its own subscription identifier, so that these
    copies count as one message.

    Args:
        address: the broker's address.
        name: the MQTT client id; the broker keeps its session while the connection is lost.
        login: user name, password and TLS files.

    Attributes:
        is_recording: whether it keeps the messages.
        is_doubtful: whether a message that equals a kept one is taken for a duplicate of it.
    """

    def __init__(self, address: Address, name: str, login: Login) -> None:
        self._address, self._name, self._login = address, name, login
        self._seen: Counter[bytes] = Counter()
        self._copies: Counter[tuple[bytes, int]] = Counter()  # by the filter over which they came
        self._recorded: list[HeldMessage] = []
        self._recorded_set: set[HeldMessage] = set()  # the same, to find one
        self._retained: dict[str, bytes] = {}  # per topic, the code of the last message to be retained
        self.is_recording = False
        self.is_doubtful = False
        self._filters: dict[str, int] = {}  # with their subscription identifiers
        self._unanswered: set[int] = set()  # subscriptions
        self._lock = threading.Lock()  # of the two above
        self._subscribed = threading.Event()
        self._fence = f"{INTERNAL_PREFIX}watched/{uuid.uuid4().hex}"
        self._fences: set[bytes] = set()  # that have come back
        self._client = new_client(name, login)
        self._client.on_connect = lambda *_: self._subscribe()
        self._client.on_subscribe = lambda _c, _d, number, _r, _p: self._on_subscribe(number)
        self._client.on_message = self._on_message
        connect_in_background(self._client, address)

    def watch(self, filters: Iterable[str]) -> None:
        """Watch these topic filters too.

        Raises:
            UnreachableError: the broker cannot be reached, or does not answer.
        """
        with self._lock:
            for text in sorted(set(filters) - set(self._filters)):
                self._filters[text] = len(self._filters) + 1
            self._unanswered.add(NOT_SENT)
            self._subscribed.clear()
        self._subscribe()
        if not self._subscribed.wait(UPDATE_SECONDS):
            raise UnreachableError(f"{self._address} did not answer {self._name!r}; is the broker running?")

    def _subscribe(self) -> None:
        if not self._client.is_connected():
            return
        with self._lock:
            self._unanswered.clear()
            for text, number in {self._fence: 0, **self._filters}.items():
                properties = _properties("SUBSCRIBE", None)
                if number:
                    properties.SubscriptionIdentifier = number
                options = subscription_options(((text, 1),), RETAINED_NEVER, as_published=True)
                _, packet = self._client.subscribe(options, properties=properties)
                self._unanswered.add(packet or NOT_SENT)

    def _on_subscribe(self, packet: int) -> None:
        with self._lock:
            self._unanswered.discard(packet)
            if not self._unanswered:
                self._subscribed.set()

    def _on_message(self, _client: Client, _data: object, message: Any) -> None:
        if message.topic == self._fence:
            self._fences.add(message.payload)
            return
        digest = _digest(message.topic, message.payload)
        numbers = getattr(message.properties, "SubscriptionIdentifier", None) or [0]
        self._copies.update((digest, number) for number in numbers)
        if max(self._copies[digest, number] for number in numbers) <= self._seen[digest]:
            return  # it has come over another filter too
        self._seen[digest] += 1
        if message.retain:
            self._retained[message.topic] = digest
        one = HeldMessage(message.topic, message.payload, bool(message.retain))
        if self.is_recording and not (self.is_doubtful and one in self._recorded_set):
            self._recorded.append(one)
            self._recorded_set.add(one)

    def catch_up(self) -> None:
        """Wait until it has received what its broker had for it when this was called.

        The broker can just have restarted: the session is a queue, and what comes after it is a fence.

        Raises:
            UnreachableError: the broker cannot be reached, or does not answer.
        """
        fence = uuid.uuid4().bytes
        end = time.monotonic() + UPDATE_SECONDS
        self._client.publish(self._fence, fence, 1)  # without a connection: as soon as there is one
        while fence not in self._fences:
            if time.monotonic() > end:
                raise UnreachableError(
                    f"{self._address} did not answer {self._name!r}; is the broker running?"
                )
            time.sleep(TICK)

    def recorded(self) -> list[HeldMessage]:
        """The messages that arrived while it recorded, in their order."""
        return list(self._recorded)

    def has_replaced(self, message: HeldMessage) -> bool:
        """Whether a message has arrived, and another one that is to be retained after it."""
        digest = _digest(message.topic, message.payload)
        return self._seen[digest] > 0 and self._retained.get(message.topic, digest) != digest

    def missing(self, messages: Sequence[tuple[str, bytes]], seconds: float) -> list[tuple[str, bytes]]:
        """Those of some messages that have not arrived, and do not arrive in some seconds."""
        end = time.monotonic() + seconds
        while True:
            seen = Counter(self._seen)
            found = []
            for topic, payload in messages:
                digest = _digest(topic, payload)
                if seen[digest] > 0:
                    seen[digest] -= 1
                else:
                    found.append((topic, payload))
            if not found or time.monotonic() > end:
                return found
            time.sleep(TICK)

    def close(self) -> None:
        """Disconnect, and have the broker delete the session."""
        stop_client(self._client)
        request_once(self._address, self._name, self._login, lambda _: None, clean=True)


def _digest(topic: str, payload: bytes) -> bytes:
    return blake2b(payload, digest_size=16, key=blake2b(topic.encode(), digest_size=32).digest()).digest()


def publish_messages(address: Address, login: Login, messages: Sequence[HeldMessage]) -> None:
    """Publish messages at QoS 1, and wait until the broker has all of them.

    Raises:
        InputError: the broker denies the right to publish one.
        UnreachableError: the broker cannot be reached, or does not acknowledge them.
    """
    client = new_client(f"broadloom-return-{uuid.uuid4().hex[:8]}", login)
    sent: list[Any] = []
    refused: list[tuple[int, str]] = []

    def on_connect(_client: Client, _data: object, _flags: object, code: Any, _properties: object) -> None:
        if not code.is_failure and not sent:
            sent.extend(client.publish(one.topic, one.payload, 1, one.retain) for one in messages)

    def on_publish(_client: Client, _data: object, number: int, code: Any, _properties: object) -> None:
        if code.is_failure:
            refused.append((number, str(code)))

    client.on_connect = on_connect
    client.on_publish = on_publish
    try:
        connect(client, address, clean=True, seconds=0)
        if not loop_until(
            client, lambda: bool(sent) and all(one.is_published() for one in sent), UPDATE_SECONDS
        ):
            raise UnreachableError(f"{address} did not acknowledge {len(messages):,} messages")
        if refused:
            number, reason = refused[0]
            topic = next(held.topic for held, one in zip(messages, sent, strict=True) if one.mid == number)
            raise InputError(f"{address} refused a message to {topic!r}: {reason}; check its access rules")
        disconnect_now(client)
    except OSError as error:
        if isinstance(error, UnreachableError):
            raise
        raise UnreachableError(f"{address}: {error.strerror or error}") from error
    finally:
        close_sockets(client)


def _session_client(client_id: str, login: Login, clean: bool) -> Client:
    """A client of MQTT 3.1.1 under the id of a link; it acknowledges nothing by itself."""
    paho = need_paho()
    client: Client = paho.Client(
        paho.CallbackAPIVersion.VERSION2, client_id, clean_session=clean, manual_ack=True
    )
    client.enable_bridge_mode()  # otherwise the broker would send the link's own messages back to it
    _log_in(client, login)
    return client


def _request_as(
    client_id: str, address: Address, login: Login, send: Callable[[Client], object], clean: bool
) -> None:
    """Connect under a client's id by MQTT 3.1.1, send a request, and disconnect when it is answered."""
    client = _session_client(client_id, login, clean)  # queued messages stay in the queue
    answers: list[list[Any]] = []

    def on_connect(_client: Client, _data: object, _flags: object, code: Any, _properties: object) -> None:
        if code.is_failure or send(client) is None:
            answers.append([code])

    client.on_connect = on_connect
    client.on_subscribe = client.on_unsubscribe = lambda _client, _data, _id, codes, _properties: (
        answers.append(list(codes))
    )
    try:
        client.connect(address.hostname, address.port)
        end = time.monotonic() + UPDATE_SECONDS
        while not answers and time.monotonic() < end:
            if client.loop(TICK) != 0:  # the link itself took over its session
                client.reconnect()
        client.disconnect()
        loop_until(client, lambda: client.socket() is None, 1.0)
    except OSError as error:
        raise UnreachableError(
            f"cannot change the session {client_id!r} at {address}: {error.strerror or error}; is the broker "
            "running?"
        ) from error
    finally:
        close_sockets(client)
    if not answers:
        raise UnreachableError(
            f"{address} did not answer {client_id!r} within {UPDATE_SECONDS:g} s; is the broker running?"
        )
    if refusals := [code for code in answers[0] if code.is_failure]:
        raise InputError(
            f"{address} refused the session {client_id!r}: {refusals[0]}; check its login and access rules"
        )


def _log_in(client: Client, login: Login) -> None:
    """Set user name, password and TLS of a client."""
    if login.user is not None:
        client.username_pw_set(login.user, login.password)
    if (tls := login.tls()) is not None:
        client.tls_set_context(tls)


def _properties(packet: str, expiry: int | None) -> Properties:
    from paho.mqtt.packettypes import PacketTypes
    from paho.mqtt.properties import Properties

    properties = Properties(getattr(PacketTypes, packet))  # type: ignore[no-untyped-call]
    if expiry is not None:
        properties.SessionExpiryInterval = expiry
    return properties

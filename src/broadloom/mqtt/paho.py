"""MQTT 5 clients on paho-mqtt, and the one place that uses its private parts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from broadloom.errors import MissingExtraError
from broadloom.mqtt.endpoint import Address, Login
from broadloom.mqtt.topic_filters import QosFilters

if TYPE_CHECKING:
    from paho.mqtt.client import Client
    from paho.mqtt.properties import Properties
    from paho.mqtt.subscribeoptions import SubscribeOptions

SESSION_SECONDS = 24 * 3600  # after which a broker forgets a client that does not come back
KEEPALIVE = 15
ANSWER_SECONDS = 5.0
TICK = 0.02
RETAINED_IF_NEW, RETAINED_NEVER = 1, 2
NO_SUBSCRIBERS, FAILURE = 0x10, 0x80
PACKET_NUMBER_TAKEN = 15  # paho's MQTT_ERR_QUEUE_SIZE, where its queue has no limit
# What a message keeps when it is sent on.
_KEPT = ("PayloadFormatIndicator", "MessageExpiryInterval", "ContentType", "ResponseTopic", "CorrelationData")


def need_paho() -> Any:
    """The MQTT client library."""
    try:
        import paho.mqtt.client as paho
    except ImportError as error:
        raise MissingExtraError("paho-mqtt is missing; run: pip install 'broadloom[deploy]'") from error
    return paho


def close_sockets(client: Client) -> None:
    """Close what paho closes only when a client is collected: the collector may come to its sockets first."""
    client._reset_sockets()


def new_client(name: str, login: Login, by_hand: bool = False) -> Client:
    """A client that is not connected yet.

    Args:
        name: its MQTT client id.
        login: how it proves itself.
        by_hand: whether messages are acknowledged by hand.
    """
    paho = need_paho()
    version = paho.CallbackAPIVersion.VERSION2
    client: Client = paho.Client(version, name, protocol=paho.MQTTv5, manual_ack=by_hand)
    if login.user is not None:
        client.username_pw_set(login.user, login.password)
    if (tls := login.tls()) is not None:
        client.tls_set_context(tls)
    client.reconnect_delay_set(0.1, 1)  # type: ignore[arg-type]
    client.max_inflight_messages_set(200)
    client.max_queued_messages_set(0)
    return client


def connect(client: Client, address: Address, clean: bool = False, seconds: int = SESSION_SECONDS) -> None:
    """Connect, and have the broker keep the session for so long after the connection ends."""
    client.connect(
        address.hostname,
        address.port,
        KEEPALIVE,
        clean_start=clean,
        properties=_properties("CONNECT", seconds),
    )


def connect_later(client: Client, address: Address) -> None:
    """Connect in the client's own thread, as often as it takes; the session is kept."""
    client.connect_async(
        address.hostname,
        address.port,
        KEEPALIVE,
        clean_start=False,
        properties=_properties("CONNECT", SESSION_SECONDS),
    )
    client.loop_start()


def let_go(client: Client) -> None:
    """Disconnect a client that a thread of its own drives, and close all that it holds."""
    client.disconnect()
    client.loop_stop()
    close_sockets(client)


def leave_now(client: Client) -> None:
    """Disconnect a client that this thread drives."""
    client.disconnect()
    loop_until(client, lambda: client.socket() is None, 1.0)
    close_sockets(client)


def wanted(filters: QosFilters, retained: int) -> list[tuple[str, SubscribeOptions]]:
    """QosFilters as they are subscribed to."""
    from paho.mqtt.subscribeoptions import SubscribeOptions

    return [(text, SubscribeOptions(qos, retainHandling=retained)) for text, qos in filters]


def told(
    user: Iterable[tuple[str, str]], like: Properties | None = None, seconds: int | None = None
) -> Properties:
    """The properties of a message: these for users, otherwise those of another, and when it is too old."""
    properties = _properties("PUBLISH", None)
    if seconds is not None:
        properties.MessageExpiryInterval = seconds
    for name in _KEPT if like is not None else ():
        if (value := getattr(like, name, None)) is not None:
            setattr(properties, name, value)
    properties.UserProperty = list(user)
    return properties


def user_properties(properties: Properties | None) -> list[tuple[str, str]]:
    """What a message says to users; nothing where it came by MQTT 3."""
    return list(getattr(properties, "UserProperty", ()))


def loop_until(client: Client, done: Callable[[], bool], seconds: float) -> bool:
    """Send and receive in this thread; false if it is not done in time or the connection is lost."""
    end = time.monotonic() + seconds
    while not done():
        if time.monotonic() > end or client.loop(TICK) != 0:
            return False
    return True


def asked(
    address: Address, name: str, login: Login, ask: Callable[[Client], object], clean: bool = False
) -> tuple[int | None, str]:
    """Connect under a name, ask one thing, wait for the answer and leave.

    Args:
        address: of the broker.
        name: the client's.
        login: ours.
        ask: subscribes or publishes; nothing is waited for if it gives None.
        clean: whether the session, and all that waits there, goes.

    Returns:
        The code of the answer (None if there was none, from 128 a failure), and what it means.
    """
    client = new_client(name, login, by_hand=True)  # what comes meanwhile stays the client's
    answers: list[tuple[int, str]] = []

    def heard(reason: Any) -> None:
        answers.append((reason.value, str(reason)))

    def connected(_c: Client, _d: object, _f: object, reason: Any, _p: object) -> None:
        if reason.is_failure or ask(client) is None:
            heard(reason)

    client.on_connect = connected
    client.on_subscribe = lambda _c, _d, _m, reasons, _p: heard(max(reasons, key=lambda one: one.value))
    client.on_publish = lambda _c, _d, _m, reason, _p: heard(reason)
    try:
        connect(client, address, clean, 0 if clean else SESSION_SECONDS)
        if not loop_until(client, lambda: bool(answers), ANSWER_SECONDS):
            return None, "no answer"
        leave_now(client)
    except OSError as error:
        return None, error.strerror or str(error)
    finally:
        close_sockets(client)
    return answers[0]


def _properties(packet: str, expiry: int | None) -> Properties:
    from paho.mqtt.packettypes import PacketTypes
    from paho.mqtt.properties import Properties

    properties = Properties(getattr(PacketTypes, packet))  # type: ignore[no-untyped-call]
    if expiry is not None:
        properties.SessionExpiryInterval = expiry
    return properties

"""MQTT client that can be moved between brokers and gets each message once (paper 5, section V)."""

from __future__ import annotations

import logging
import math
import os
import queue
import secrets
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from broadloom.agents.monitoring import RateLimitedLog
from broadloom.agents.moves.broker_sessions import CODE, MARK, TOPIC
from broadloom.agents.moves.control_codes import check_key, is_content_code, seal, unseal
from broadloom.agents.moves.control_messages import (
    ACCEPT,
    AHEAD,
    DECLINE,
    MOST_BYTES,
    MOST_FILTER_BYTES,
    MOST_FILTERS,
    QUALITIES,
    ConnectOrder,
    MoveRequest,
    Policy,
    PolicyAnswer,
    RefusedNumber,
    Register,
    Registered,
    Reply,
    accept,
    check_client,
    check_place,
    control_filters,
    dump,
    from_client,
    is_client_filter,
    is_client_topic,
    is_move_id,
    parse,
    redirect_topic,
    to_client,
    with_topics,
)
from broadloom.checks import check_flag, check_instance, check_number, check_path, check_text, shown
from broadloom.errors import BroadloomError, InputError, StorageError
from broadloom.mqtt.endpoint import Address, Login
from broadloom.mqtt.paho import (
    NO_SUBSCRIBERS,
    PACKET_ID_IN_USE,
    RETAINED_IF_NEW,
    connect_in_background,
    message_properties,
    need_paho,
    new_client,
    stop_client,
    subscription_options,
    user_properties,
)
from broadloom.mqtt.reserved_topics import CONTROL_ROOT, INTERNAL_PREFIX, MESSAGE_ID
from broadloom.mqtt.topic_filters import QosFilters

if TYPE_CHECKING:
    from paho.mqtt.client import Client

log = logging.getLogger("broadloom.agents.moves")

CONNECT_SECONDS, AGAIN_SECONDS = 10.0, 0.5
FIRST_WAIT, LONGEST_WAIT = 2.0, 60.0  # seconds until an unanswered `register` is repeated; they double
KNOWN_SECONDS = 600.0  # until an answered `register` is repeated: the agent can have lost its journal
READY_SECONDS = 2.0  # after which an order to connect is too late
TICK = 0.01
MOST_PAYLOAD = 2**28 - 2**17  # bytes; the remainder of MQTT's limit is for topic and id
MOST_ANSWERS = 1_000  # remembered answers
MOST_CALLS = 100  # control messages that wait for the client's thread; the agent repeats what is dropped
MOST_UNCONFIRMED = 50_000  # well below the 65,535 packet ids of MQTT
MOST_SEEN = 100_000  # remembered message ids
DIGEST = 16  # bytes of the digest of a message id


class OutboxFullError(InputError):
    """The outbox is full: no broker has acknowledged the last `MOST_UNCONFIRMED` messages."""


class ClientMessage(NamedTuple):
    """A message for the application, which receives it once.

    Attributes:
        topic: its topic.
        payload: its payload.
        id: its unique id, if it has one.
    """

    topic: str
    payload: bytes
    id: str | None


# The id of a message, from its topic, its payload and its user properties.
Identify = Callable[[str, bytes, Mapping[str, str]], str | None]


def property_id(_topic: str, _payload: bytes, properties: Mapping[str, str]) -> str | None:
    """The id in the user property `broadloom-id`, which MQTT 3 and native bridges do not carry."""
    return properties.get(MESSAGE_ID)


class MovingClient:
    """MQTT 5 client that can be moved between brokers and loses nothing when it moves.

    It is connected to one broker at a time. Its policy decides on each request; it moves only to brokers that
    it knows, or, with `learn`, to those whose address its home broker sends. Messages that no broker has
    acknowledged move with it, at most 50,000 of them.

    Args:
        name: its MQTT client id, and its user name where brokers require one.
        brokers: the addresses (host:port) of the brokers that it knows, by the names that the agent uses.
        home: the broker that it connects to first.
        heard: called with each message, in the thread of the connection; when it returns, the message is
            acknowledged.
        policy: decides on requests to move.
        login: user name, password and TLS files.
        place: its position in the network, for the planner.
        memory: a file that stores the name of its broker, so that it reconnects there after a restart, if
            `brokers` has it.
        identify: returns the unique id of a message, or None.
        learn: whether it accepts addresses of unknown brokers from its home broker.
        patience: seconds for which it tries to connect to a foreign broker before it returns; less than half
            of the agent's `move`, or the move can have ended when it arrives.
        key: its key, which `broadloom migrate key` prints, by which it and the agent know each other's
            messages; None: brokers authenticate it, and their rules are trusted.
        plain: whether it connects in plain text; otherwise TLS is used, by default with the certificates
            that the system trusts.

    Example:
        >>> client = MovingClient("meter-1", {"rome": "10.0.0.1:8883", "oslo": "10.0.0.7:8883"}, "rome")
        >>> client.home
        'rome'
    """

    def __init__(
        self,
        name: str,
        brokers: Mapping[str, str],
        home: str,
        heard: Callable[[ClientMessage], None] = lambda _: None,
        policy: Policy = accept,
        login: Login | None = None,
        place: Sequence[float] | None = None,
        memory: Path | None = None,
        identify: Identify = property_id,
        learn: bool = False,
        patience: float = CONNECT_SECONDS,
        key: str | None = None,
        plain: bool = False,
    ) -> None:
        self.name = check_client(name)
        check_instance(brokers, Mapping, "brokers", "give a dict of names and addresses")  # type: ignore[type-abstract]
        self._addresses = {
            check_text(broker, "a broker"): Address.parse(address) for broker, address in brokers.items()
        }
        for argument, function in (("heard", heard), ("policy", policy), ("identify", identify)):
            if not callable(function):
                raise InputError(f"{argument} is {shown(function)}; give a function")
        self._heard = heard
        self._policy = policy
        self._login = _with_tls(login, check_flag(plain, "plain"))
        self._key = None if key is None else check_key(key)
        self._place = check_place(place)
        self._memory = None if memory is None else check_path(memory, "memory")
        self._identify = identify
        self._learn = check_flag(learn, "learn")
        self._patience = check_number(patience, "patience", finite=False)
        self.home = self._load_home(check_text(home, "home"))
        self._filters: dict[str, int] = {}
        self._former: tuple[str, ...] = ()  # filters that sessions of this client can still have
        self._sends: dict[str, None] = {}  # topics in order of their first message
        self._seen = SeenMessages()
        self._warnings = RateLimitedLog(log)
        self._answers: dict[str, PolicyAnswer] = {}
        self._number = 0  # of the last control message
        self._registered = 0  # the number of the last `register`
        self._clock_ahead = 0  # nanoseconds by which this clock is ahead of the agent's, if that is far
        self._ready_to: tuple[str, int, float] = "", 0, 0.0  # the move, number and time of the last `ready`
        self._lock = threading.Lock()  # for the connection, the outbox and the numbers
        self._client: Client | None = None
        self._outbox: dict[str, tuple[str, bytes]] = {}  # by message id, in order of `publish`
        self._sent: dict[int, str] = {}  # message ids by packet id, of this connection
        self._confirmed: deque[tuple[object, int]] = deque()
        # Connection and packet id of the last control message.
        self._last_call: tuple[object, int] | None = None
        self._wait = FIRST_WAIT
        self._due = math.inf  # the time of the next `register`
        self._ready = threading.Event()
        self._stopping = threading.Event()
        self._work: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._worker: threading.Thread | None = None

    def __enter__(self) -> MovingClient:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Connect to the home broker in the background, with unlimited retries.

        Raises:
            InputError: it is started already.
            MissingExtraError: paho-mqtt is not installed.
        """
        need_paho()
        if self._worker is not None:
            raise InputError(f"client {self.name} is started already; stop it first")
        self._stopping.clear()
        self._open(self.home)  # before the worker starts, which can execute a `connect`
        self._worker = threading.Thread(target=self._do_work, name=f"{CONTROL_ROOT}-{self.name}", daemon=True)
        self._worker.start()

    def stop(self) -> None:
        """Disconnect; the broker keeps the session and queues messages."""
        if self._worker is not None:
            self._stopping.set()
            self._work.put(None)
            self._worker.join()
            self._worker = None
        self._close()

    def wait_until_ready(self, seconds: float = CONNECT_SECONDS) -> bool:
        """Wait until the broker has acknowledged the subscriptions; false if that takes longer."""
        limit = check_number(seconds, "seconds", finite=False)
        return self._ready.wait(min(limit, threading.TIMEOUT_MAX))

    def subscribe(self, *filters: str, qos: int = 1) -> None:
        """Subscribe to more filters, at the home broker and at each broker that the client moves to."""
        for text in filters:
            if not is_client_filter(text):
                raise InputError(
                    f"{shown(text)} is not a filter for clients; "
                    f"give an MQTT filter that is not shared and not below {CONTROL_ROOT}/"
                )
        if type(qos) is not int or qos not in QUALITIES:
            raise InputError(
                f"qos is {shown(qos)}; give 0 or 1, since message ids prevent duplicates as 2 would"
            )
        if len({*self._filters, *filters}) > MOST_FILTERS:
            raise InputError(f"more than {MOST_FILTERS:,} filters; give fewer to a client that can be moved")
        more = self._filters | dict.fromkeys(filters, qos)
        size = len(dump(Register(self.name, 0, self.home, tuple(more.items()), self._place)))
        if size > MOST_FILTER_BYTES:  # the agent would refuse them
            raise InputError(f"filters of {size:,} bytes; give at most {MOST_FILTER_BYTES:,} in all")
        self._filters = more
        self._former = tuple(text for text in self._former if text not in more)
        self._resubscribe()

    def unsubscribe(self, *filters: str) -> None:
        """Unsubscribe from filters, also at brokers that the client moves to.

        Each new connection does so again: the session can be from before, or prepared by the agent before.
        """
        for text in filters:
            check_text(text, "a filter")
        former = [*(text for text in self._former if text not in filters), *filter(is_client_filter, filters)]
        self._former = _last_filters(former)
        self._filters = {text: qos for text, qos in self._filters.items() if text not in filters}
        with self._lock:
            if self._client is not None and self._client.is_connected() and filters:
                self._client.unsubscribe(list(filters))
        self._work.put(self._register)

    # Calls of the paper, from any thread; the policy and the agent's orders make them automatically.

    def register(self) -> None:
        """Send name and filters to the agent; each new connection does so automatically."""
        self._work.put(self._register)

    def accept(self, move: str) -> None:
        """Accept a request to which the policy has answered `stay`.

        Args:
            move: the id of the move, from the request.
        """
        key = check_text(move, "the id of a move")
        self._work.put(lambda: self._answer(key, ACCEPT))

    def decline(self, move: str) -> None:
        """Decline a request, also after accepting it, as long as the client has not moved.

        Args:
            move: the id of the move, from the request.
        """
        key = check_text(move, "the id of a move")
        self._work.put(lambda: self._answer(key, DECLINE))

    def connect(self, broker: str) -> None:
        """Move to a broker without a request; the queue at the previous broker is forwarded.

        Raises:
            InputError: the client does not know the broker.
        """
        if not isinstance(broker, str) or broker not in self._addresses:
            raise InputError(f"no broker {shown(broker)}; there are {', '.join(self._addresses)}")
        self._work.put(lambda: broker == self.home or self._move_to(broker))

    def publish(self, topic: str, payload: bytes) -> str:
        """Send a message at least once, also if the client moves meanwhile; returns its id.

        Raises:
            InputError: a topic with wildcards, a control topic, or a payload that is too long or not bytes.
            OutboxFullError: too many messages are unacknowledged; this one is not sent.
        """
        if not is_client_topic(topic):
            raise InputError(
                f"{shown(topic)} is not a topic to publish to; "
                f"give one without wildcards, not below {CONTROL_ROOT}/"
            )
        if not isinstance(payload, bytes):
            raise InputError(f"payload is of type {type(payload).__name__}; give bytes")
        if len(payload) > MOST_PAYLOAD:  # no broker would accept it
            raise InputError(f"payload has {len(payload):,} bytes; give at most {MOST_PAYLOAD:,}")
        if topic not in self._sends and len(self._sends) < MOST_FILTERS:
            self._sends[topic] = None
            self._work.put(self._register)
        with self._lock:
            self._drop_confirmed()
            if len(self._outbox) >= MOST_UNCONFIRMED:
                count = f"{len(self._outbox):,} messages of {self.name} are unacknowledged"
                raise OutboxFullError(f"{count}; wait until a broker acknowledges some")
            # Random: receivers would drop this message as a duplicate of one with a guessed id.
            key = f"{self.name}:{secrets.token_hex(12)}"
            self._outbox[key] = topic, payload
            self._send(key)
        return key

    def unconfirmed(self) -> int:
        """Number of messages that no broker has acknowledged yet."""
        with self._lock:
            self._drop_confirmed()
            return len(self._outbox)

    def wait_until_confirmed(self, seconds: float = CONNECT_SECONDS) -> bool:
        """Wait until brokers have acknowledged all messages; false if that takes longer."""
        end = time.monotonic() + check_number(seconds, "seconds", finite=False)
        while self.unconfirmed():
            if time.monotonic() > end:
                return False
            time.sleep(TICK)
        return True

    # The connection: one at a time.

    def _open(self, broker: str) -> None:
        """Connect to a broker, and send it the unacknowledged messages."""
        self._save_home(broker)
        client = new_client(self.name, self._login)
        self._ready.clear()
        client.on_connect = self._connected
        client.on_subscribe = lambda *_: self._subscribed()
        client.on_message = lambda _c, _d, message: self._received(message)
        client.on_publish = self._published
        with self._lock:
            self._drop_confirmed()
            self._client = client
            self._sent = {}
            for key in self._outbox:
                self._send(key)
        connect_in_background(client, self._addresses[broker])

    def _close(self) -> None:
        """Disconnect; the broker keeps the session."""
        if self._client is not None:
            stop_client(self._client)
        with self._lock:
            self._drop_confirmed()
            self._client = self._last_call = None

    def _connected(self, client: Client, _d: object, _f: object, reason: Any, _p: object) -> None:
        if reason.is_failure:
            log.warning("broker %r refuses client %s: %s", self.home, self.name, reason)
        else:
            if former := self._former:
                client.unsubscribe(list(former))
            client.subscribe(subscription_options(self._all_filters(), RETAINED_IF_NEW))

    def _published(self, client: Client, _d: object, number: int, reason: Any, _p: object) -> None:
        self._confirmed.append((client, number))
        if reason.is_failure:
            log.warning("broker %r refuses a message of client %s: %s", self.home, self.name, reason)
        if reason.value == NO_SUBSCRIBERS and number not in self._sent:
            self._work.put(lambda: self._repeat_soon(client, number))

    def _repeat_soon(self, client: Client, number: int) -> None:
        """Repeat the last control message soon, because no agent has received it."""
        if self._last_call == (client, number):
            self._due = min(self._due, time.monotonic() + AGAIN_SECONDS)

    def _resubscribe(self) -> None:
        with self._lock:
            if self._client is not None and self._client.is_connected():
                self._client.subscribe(subscription_options(self._all_filters(), RETAINED_IF_NEW))

    def _subscribed(self) -> None:
        self._ready.set()
        self._wait = FIRST_WAIT
        self._work.put(self._register)

    def _all_filters(self) -> QosFilters:
        return (*self._filters.items(), *control_filters(self.name))

    def _send(self, key: str) -> None:
        """Send a message of the outbox if there is a connection; otherwise it waits for one."""
        while self._client is not None:
            sent = self._client.publish(
                *self._outbox[key], 1, properties=message_properties([(MESSAGE_ID, key)])
            )
            if sent.rc != PACKET_ID_IN_USE:  # otherwise the next id is tried; most ids are free
                self._sent[sent.mid] = key
                return

    def _drop_confirmed(self) -> None:
        # Acknowledgements are only queued at first, because paho holds a lock while it reports them.
        while self._confirmed:
            client, number = self._confirmed.popleft()
            if client is self._client:
                self._outbox.pop(self._sent.pop(number, ""), None)

    def _load_home(self, home: str) -> str:
        """The last broker of the client, if `memory` has one that it knows; otherwise `home`."""
        last = home
        if self._memory is not None and self._memory.exists():
            try:
                last = self._memory.read_text().strip()
            except OSError as error:
                raise StorageError(f"{self._memory} cannot be read: {error.strerror}") from error
        found = last if last in self._addresses else home
        if found not in self._addresses:
            raise InputError(f"no broker {found!r}; there are {', '.join(self._addresses) or 'none'}")
        return found

    def _save_home(self, broker: str) -> None:
        """Remember the broker; a client that cannot, such as with a full disk, connects nevertheless."""
        self.home = broker
        if self._memory is None:
            return
        draft = self._memory.with_name(f"{self._memory.name}.new")
        try:
            with draft.open("w") as file:
                file.write(broker)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(self._memory)
        except OSError as error:
            self._warnings.warn(
                "memory",
                "client %s cannot write %s, so it does not know after a restart that it is at %r: %s",
                self.name,
                self._memory,
                broker,
                error.strerror,
            )

    # Received messages.

    def _received(self, message: Any) -> None:
        user = dict(user_properties(message.properties))
        own, _, call = message.topic.rpartition("/")
        if message.topic == redirect_topic(self.name) and MARK in user:
            mark = user[MARK]
            if is_move_id(mark) and self._is_forwarded("", mark.encode(), "", user.get(CODE, "")):
                self._queue_call(lambda: self._confirm(mark))
        elif message.topic == redirect_topic(self.name):
            topic = user.pop(TOPIC, "")
            found = topic, message.payload, user.get(MESSAGE_ID, ""), user.pop(CODE, "")
            if is_client_topic(topic) and self._is_forwarded(*found):
                self._deliver(topic, message.payload, user)
        elif not message.topic.startswith((INTERNAL_PREFIX, f"{CONTROL_ROOT}/")):
            self._deliver(message.topic, message.payload, user)
        elif own != to_client(self.name, call).rpartition("/")[0]:
            self._warnings.warn(
                "another",
                "client %s ignored a control message for another client: %r",
                self.name,
                message.topic[:80],
            )
        elif len(message.payload) <= 2 * MOST_BYTES:
            self._queue_call(lambda: self._on_call(call, message.payload))

    def _queue_call(self, work: Callable[[], object]) -> None:
        """Have the client's thread process a control message, unless too many are waiting."""
        if self._work.qsize() < MOST_CALLS:
            self._work.put(work)
        else:
            self._warnings.warn("flood", "client %s dropped a control message: too many wait", self.name)

    def _is_forwarded(self, topic: str, payload: bytes, message_id: str, code: str) -> bool:
        """Whether the agent has forwarded a message, and not somebody else who can write to our topic."""
        known = self._key is None or is_content_code(self._key, topic, payload, message_id, code)
        if not known:
            self._warnings.warn(
                "unsigned", "client %s ignored a redirected message with a wrong code", self.name
            )
        return known

    def _deliver(self, topic: str, payload: bytes, user: Mapping[str, str]) -> None:
        """Pass a message to the application, if it is new."""
        key = self._identify(topic, payload, user)
        if self._seen.first(topic, key):
            try:
                self._heard(ClientMessage(topic, payload, key))
            except Exception:  # it would end the connection silently
                log.exception("client %s failed to process a message on %r", self.name, topic)

    # In the client's own thread.

    def _do_work(self) -> None:
        while True:
            work: Callable[[], object] | None = self._register_if_due
            with suppress(queue.Empty):
                work = self._work.get(timeout=AGAIN_SECONDS)
            if work is None:
                return
            try:
                self._open_again()
                work()
                self._register_if_due()  # also while there is always other work
            except Exception:  # for example in a policy; without an answer the client stays
                log.exception("client %s failed to execute a request", self.name)

    def _open_again(self) -> None:
        """Connect if the last attempt could not even begin, for example because a certificate was missing."""
        if self._client is None and not self._stopping.is_set():
            try:
                self._open(self.home)
            except (BroadloomError, OSError) as error:
                self._warnings.warn("connect", "client %s cannot connect yet: %s", self.name, error)

    def _register_if_due(self) -> None:
        if time.monotonic() > self._due:
            self._register()

    def _on_call(self, call: str, payload: bytes) -> None:
        """Execute a control message of the agent, if it is valid."""
        try:
            if self._key is not None:
                payload = unseal(self._key, to_client(self.name, call), payload)
            if call == "move":
                self._on_request(parse(MoveRequest, payload))
            elif call == "connect":
                self._on_connect_order(parse(ConnectOrder, payload))
            elif call == "refused":
                self._on_refused(parse(RefusedNumber, payload))
            elif call == "registered":
                self._on_registered(parse(Registered, payload))
        except InputError as error:
            self._warnings.warn(
                str(error).split(" ")[0], "client %s refused %r: %s", self.name, call[:40], error
            )

    def _on_request(self, request: MoveRequest) -> None:
        """`request_to_move`: answer by the policy; a repeated request gets the same answer."""
        answer = self._answers.get(request.move)
        if answer is None or answer.answer == "stay":
            known = self._learn_of(request.foreign, request.address)
            answer = self._policy(request) if known and request.home == self.home else DECLINE
            self._store_answer(request.move, answer)
        self._send_call("reply", Reply(self.name, self._next(), request.move, answer.answer, answer.until))

    def _answer(self, move: str, answer: PolicyAnswer) -> None:
        self._store_answer(move, answer)
        self._send_call("reply", Reply(self.name, self._next(), move, answer.answer))

    def _store_answer(self, move: str, answer: PolicyAnswer) -> None:
        """Remember an answer for repetitions of the request; the oldest ones are dropped."""
        self._answers.pop(move, None)
        self._answers[move] = answer
        if len(self._answers) > MOST_ANSWERS:
            del self._answers[next(iter(self._answers))]

    def _learn_of(self, broker: str, address: str) -> bool:
        if broker not in self._addresses and self._learn:
            self._addresses[broker] = Address.parse(address)
        return broker in self._addresses

    def _on_connect_order(self, order: ConnectOrder) -> None:
        """`connect`: connect to the foreign broker, and return if it does not answer.

        An order can have waited while its move ended, so the client asks the agent (`ready`) first.
        """
        if order.foreign == self.home:
            self._register()  # the agent has missed the last one
            return
        if not self._consents(order):
            self._answer(order.move, DECLINE)
            return
        move, number, sent_at = self._ready_to
        fresh = move == order.move and time.monotonic() - sent_at < READY_SECONDS
        if not fresh:
            self._send_ready(order.move)
            return
        if order.number != number:  # a question, or the answer to an earlier `ready`: ours is under way
            return
        if not self._move_to(order.foreign):
            self._store_answer(order.move, DECLINE)
            self._send_call("reply", Reply(self.name, self._next(), order.move, "failed"))

    def _move_to(self, broker: str) -> bool:
        """Disconnect from home and connect to another broker; false if that fails and the client returns.

        It connects twice. The session was the agent's until now, and can contain messages that the client is
        not allowed to read; these fill mosquitto's window of messages in flight until the next connection.
        """
        home = self.home
        end = time.monotonic() + self._patience
        for _ in range(2):
            self._close()
            self._open(broker)
            if not self._is_ready_before(end):
                log.warning("client %s cannot connect to %r, and returns to %r", self.name, broker, home)
                self._close()
                self._open(home)
                return False
        return True

    def _is_ready_before(self, end: float) -> bool:
        """Wait until there is a connection; false if that takes too long, or the client stops."""
        while not self._ready.wait(TICK):
            if time.monotonic() > end or self._stopping.is_set():
                return False
        return True

    def _send_ready(self, move: str) -> None:
        self._ready_to = move, self._next(), time.monotonic()
        self._send_call("reply", Reply(self.name, self._ready_to[1], move, "ready"))

    def _consents(self, order: ConnectOrder) -> bool:
        """Whether the client has accepted, or, if it was restarted since, would accept again."""
        if order.move not in self._answers:
            known = self._learn_of(order.foreign, order.address)
            request = MoveRequest(order.move, self.home, order.foreign, order.address, 0.0)
            self._store_answer(order.move, self._policy(request) if known else DECLINE)
        return self._answers[order.move].answer == "accept"

    def _on_refused(self, refused: RefusedNumber) -> None:
        """`refused`: continue from the agent's number; our clock was set back, or is far ahead."""
        with self._lock:
            ahead, behind = self._number > refused.number + AHEAD, refused.number > self._number
            if ahead:
                self._clock_ahead = max(0, time.time_ns() - refused.number)
            if ahead or behind:
                self._number = refused.number
        if ahead:
            log.warning("the clock of client %s is, or was, more than a year ahead of the agent's", self.name)
        if ahead or behind:
            self._register()

    def _on_registered(self, answer: Registered) -> None:
        """`registered`: the agent knows the client, so the next `register` can wait."""
        if answer.number >= self._registered:
            self._wait = FIRST_WAIT
            self._due = time.monotonic() + KNOWN_SECONDS

    def _register(self) -> None:
        """Send `register` if there is a connection; it is repeated later if it is not answered."""
        if self._client is None or not self._client.is_connected():
            return
        self._registered = self._next()
        self._due = time.monotonic() + self._wait
        self._wait = min(2 * self._wait, LONGEST_WAIT)
        filters = tuple(self._filters.items())
        message = Register(self.name, self._registered, self.home, filters, self._place)
        self._send_call("register", with_topics(message, tuple(self._sends)))

    def _confirm(self, mark: str) -> None:
        """Confirm that all redirected messages before a mark have arrived."""
        self._send_call("reply", Reply(self.name, self._next(), mark, "received"))

    def _send_call(self, call: str, message: Register | Reply) -> None:
        client = self._client
        if client is not None:
            topic = from_client(self.name, call)
            body = dump(message)
            if self._key is not None:
                body = seal(self._key, topic, body)
            self._last_call = client, client.publish(topic, body, 1).mid

    def _next(self) -> int:
        with self._lock:
            self._number = max(self._number + 1, time.time_ns() - self._clock_ahead)
            return self._number


def _last_filters(filters: Sequence[str]) -> tuple[str, ...]:
    """The last filters, as many as a client can have, and as long."""
    kept: list[str] = []
    size = 0
    for text in reversed(filters):
        size += len(text.encode())
        if len(kept) == MOST_FILTERS or size > MOST_FILTER_BYTES:
            break
        kept.append(text)
    return tuple(reversed(kept))


def _with_tls(login: Login | None, plain: bool) -> Login:
    """The login of a client, with TLS unless plain text is asked for."""
    given = Login() if login is None else check_instance(login, Login, "login", "give a broadloom.Login")
    if plain and given.ca is not None:
        raise InputError("plain is true, but the login has a ca, which is for TLS; give one of them")
    return given if plain or given.ca is not None else replace(given, ca="")


class SeenMessages:
    """The ids of the last messages, per topic.

    Args:
        most: number of remembered ids.

    Examples:
        >>> seen = SeenMessages()
        >>> seen.first("t", "a:1"), seen.first("t", "a:1"), seen.first("u", "a:1"), seen.first("t", None)
        (True, False, True, True)
    """

    def __init__(self, most: int = MOST_SEEN) -> None:
        self._most = most
        self._ids: OrderedDict[bytes, None] = OrderedDict()

    def first(self, topic: str, key: str | None) -> bool:
        """Whether a message is new; a message without an id always is."""
        if key is None:
            return True
        text = f"{topic}\0{key}".encode(errors="surrogatepass")  # a topic has no zero character
        digest = blake2b(text, digest_size=DIGEST).digest()
        if digest in self._ids:
            self._ids.move_to_end(digest)
            return False
        self._ids[digest] = None
        if len(self._ids) > self._most:
            self._ids.popitem(last=False)
        return True

"""A client that can be moved: it answers by its policy, and gets each message once (paper 5, section V)."""

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
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from broadloom.agents.monitoring import RateLimitedLog
from broadloom.agents.moves.broker_sessions import TOPIC
from broadloom.agents.moves.control_messages import (
    ACCEPT,
    AHEAD,
    DECLINE,
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
    after_client,
    always_wanted,
    checked_client,
    checked_place,
    dump,
    from_client,
    is_client_filter,
    is_client_topic,
    parse,
    to_client,
    with_topics,
)
from broadloom.errors import InputError
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
from broadloom.mqtt.reserved_topics import CONTROL_ROOT, MESSAGE_ID
from broadloom.mqtt.topic_filters import QosFilters

if TYPE_CHECKING:
    from paho.mqtt.client import Client

log = logging.getLogger("broadloom.agents.moves")

CONNECT_SECONDS, AGAIN_SECONDS = 10.0, 0.5
FIRST_WAIT, LONGEST_WAIT = 2.0, 60.0  # seconds for the agent to answer `register`; twice as long each time
KNOWN_SECONDS = 600.0  # after which it is said to an agent that has answered: it may have lost its journal
READY_SECONDS = 2.0  # after which an order to go comes too late
TICK = 0.01
MOST_PAYLOAD = 2**28 - 2**17  # bytes; the rest of what MQTT allows is for topic and id
MOST_ANSWERS = 1_000  # that are kept
MOST_UNCONFIRMED = 50_000  # well below the 65,535 packet numbers of MQTT
MOST_SEEN = 100_000
DIGEST = 16  # bytes that are kept of an id, which may be long


class OutboxFullError(InputError):
    """No broker has confirmed the last `MOST_UNCONFIRMED` messages; there is no room until one has."""


class ClientMessage(NamedTuple):
    """A message as the application gets it, once.

    Attributes:
        topic: where it was published.
        payload: what it says.
        id: what tells it from all others, if it has one.
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
    """An MQTT 5 client that brokers may ask to move, and that loses nothing when it does.

    It is connected to one broker at a time. Its policy decides on each request; it moves only to brokers that
    it knows, or, with `learn`, to those that its home broker tells it of. Messages that it has sent but that
    no broker has confirmed go with it, at most 50,000 of them.

    Args:
        name: its MQTT client id, and its user name where brokers ask for one.
        brokers: where the brokers that it knows are, as host:port, by the names that the agent has for them.
        home: the broker that it connects to at first.
        heard: called with each message, in the thread of the connection; when it returns, the message is
            acknowledged.
        policy: what it answers to requests.
        login: how it proves itself to brokers.
        place: where it is in the network, for the planner.
        memory: a file that keeps its broker over a restart.
        identify: what tells a message from all others.
        learn: whether it believes its home broker where others are.
        patience: for how many seconds it tries to connect to a foreign broker before it goes back; less than
            half of the agent's `move`, or the move may have been given up when it arrives.

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
    ) -> None:
        self.name = checked_client(name)
        self._addresses = {broker: Address.parse(address) for broker, address in brokers.items()}
        self._heard, self._policy, self._login = heard, policy, login or Login()
        self._place = checked_place(place)
        self._memory, self._identify, self._learn, self._patience = memory, identify, learn, patience
        self.home = self._remembered(home)
        self._filters: dict[str, int] = {}
        self._sends: dict[str, None] = {}  # topics, in the order of their first message
        self._seen, self._words = SeenMessages(), RateLimitedLog(log)
        self._answers: dict[str, PolicyAnswer] = {}
        self._number = self._registered = 0  # the last number said, and the last one of a `register`
        self._fast = 0  # nanoseconds by which our clock is ahead of the agent's, if that is far
        self._ready_to: tuple[str, int, float] = "", 0, 0.0  # the move, our number, and when we said so
        self._lock = threading.Lock()  # over the connection, the outbox and the numbers
        self._client: Client | None = None
        self._outbox: dict[str, tuple[str, bytes]] = {}  # by id, in the order in which it was filled
        self._sent: dict[int, str] = {}  # ids by packet number, of this connection
        self._confirmed: deque[tuple[object, int]] = deque()
        self._said: tuple[object, int] | None = None  # the last call, by its connection and packet number
        self._wait, self._due = FIRST_WAIT, math.inf  # when to register again, and sooner without an answer
        self._ready, self._stopping = threading.Event(), threading.Event()
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
        """ConnectOrder to the home broker, as often as it takes.

        Raises:
            InputError: it has been started, and not stopped since.
        """
        need_paho()
        if self._worker is not None:
            raise InputError(f"client {self.name} has been started; stop it before it is started again")
        self._stopping.clear()
        self._join(self.home)  # before there is a worker: a `connect` may wait for it
        self._worker = threading.Thread(target=self._do_work, name=f"{CONTROL_ROOT}-{self.name}", daemon=True)
        self._worker.start()

    def stop(self) -> None:
        """Disconnect; the broker keeps the session, and what comes waits there."""
        if self._worker is not None:
            self._stopping.set()
            self._work.put(None)
            self._worker.join()
            self._worker = None
        self._part()

    def wait_until_ready(self, seconds: float = CONNECT_SECONDS) -> bool:
        """Wait until the broker has confirmed the subscriptions; false if that takes longer."""
        return self._ready.wait(seconds)

    def subscribe(self, *filters: str, qos: int = 1) -> None:
        """Subscribe; the home broker is told now, and each broker that the client moves to later."""
        for text in filters:
            if not is_client_filter(text):
                raise InputError(f"{text!r:.80} is no MQTT filter, or a control topic, or shared")
        if qos not in QUALITIES:
            raise InputError(f"qos is {qos!r}; give 0 or 1: ids do what 2 would")
        if len({*self._filters, *filters}) > MOST_FILTERS:
            raise InputError(f"more than {MOST_FILTERS:,} filters; a client that can be moved has fewer")
        more = self._filters | dict.fromkeys(filters, qos)
        size = len(dump(Register(self.name, 0, self.home, tuple(more.items()), self._place)))
        if size > MOST_FILTER_BYTES:  # the agent would not hear of them
            raise InputError(f"filters of {size:,} bytes; give at most {MOST_FILTER_BYTES:,} in all")
        self._filters = more
        self._resubscribe()

    def unsubscribe(self, *filters: str) -> None:
        """Want less; at a broker that the client moves to, too."""
        self._filters = {text: qos for text, qos in self._filters.items() if text not in filters}
        with self._lock:
            if self._client is not None and self._client.is_connected() and filters:
                self._client.unsubscribe(list(filters))
        self._work.put(self._register)

    # Calls of the paper, from any thread; `policy`, and the agent's orders, make them by themselves.

    def register(self) -> None:
        """Tell the home broker who is here and what it wants; each new connection does so by itself."""
        self._work.put(self._register)

    def accept(self, move: str) -> None:
        """Say yes to a request to which the policy said that the client stays until later.

        Args:
            move: the id of the move, which the request has.
        """
        self._work.put(lambda: self._answer(move, ACCEPT))

    def decline(self, move: str) -> None:
        """Say no to a request, also after a yes, as long as the client has not gone.

        Args:
            move: the id of the move, which the request has.
        """
        self._work.put(lambda: self._answer(move, DECLINE))

    def connect(self, broker: str) -> None:
        """Go to a broker without being asked; what waits at the one before is sent after the client.

        Raises:
            InputError: the client knows no such broker.
        """
        if broker not in self._addresses:
            raise InputError(f"no broker {broker!r:.80}; there are {', '.join(self._addresses)}")
        self._work.put(lambda: broker == self.home or self._connect(broker))

    def publish(self, topic: str, payload: bytes) -> str:
        """Send a message at least once, also if the client moves meanwhile; gives its id.

        Raises:
            InputError: it is no topic to publish to, or the payload is no bytes or too long.
            OutboxFullError: too many messages are unconfirmed; this one is not sent.
        """
        if not is_client_topic(topic):
            raise InputError(
                f"{topic!r:.80} is no topic to publish to: it has a wildcard, or is a control topic"
            )
        if not isinstance(payload, bytes) or len(payload) > MOST_PAYLOAD:  # it would never leave the outbox
            raise InputError(f"a payload of {type(payload).__name__}; give at most {MOST_PAYLOAD:,} bytes")
        if topic not in self._sends and len(self._sends) < MOST_FILTERS:
            self._sends[topic] = None
            self._work.put(self._register)
        with self._lock:
            self._forget_confirmed()
            if len(self._outbox) >= MOST_UNCONFIRMED:
                held = f"{len(self._outbox):,} messages of {self.name} are unconfirmed"
                raise OutboxFullError(f"{held}; wait until a broker takes them")
            key = f"{self.name}:{secrets.token_hex(12)}"  # who could guess it could have it taken for seen
            self._outbox[key] = topic, payload
            self._send(key)
        return key

    def unconfirmed(self) -> int:
        """How many messages no broker has confirmed yet."""
        with self._lock:
            self._forget_confirmed()
            return len(self._outbox)

    def wait_until_confirmed(self, seconds: float = CONNECT_SECONDS) -> bool:
        """Wait until brokers have confirmed everything that was sent; false if that takes longer."""
        end = time.monotonic() + seconds
        while self.unconfirmed():
            if time.monotonic() > end:
                return False
            time.sleep(TICK)
        return True

    # The connection: one at a time.

    def _join(self, broker: str) -> None:
        """ConnectOrder to a broker, and send there what no other has confirmed."""
        self._remember(broker)
        client = new_client(self.name, self._login)
        self._ready.clear()
        client.on_connect = self._connected
        client.on_subscribe = lambda *_: self._subscribed()
        client.on_message = lambda _c, _d, message: self._received(message)
        client.on_publish = self._published
        with self._lock:
            self._forget_confirmed()
            self._client, self._sent = client, {}
            for key in self._outbox:
                self._send(key)
        connect_in_background(client, self._addresses[broker])

    def _part(self) -> None:
        """Leave the broker; its session stays."""
        if self._client is not None:
            stop_client(self._client)
        with self._lock:
            self._forget_confirmed()
            self._client = self._said = None

    def _connected(self, client: Client, _d: object, _f: object, reason: Any, _p: object) -> None:
        if reason.is_failure:
            log.warning("broker %r refuses client %s: %s", self.home, self.name, reason)
        else:
            client.subscribe(subscription_options(self._wants(), RETAINED_IF_NEW))

    def _published(self, client: Client, _d: object, number: int, reason: Any, _p: object) -> None:
        self._confirmed.append((client, number))
        if reason.is_failure:
            log.warning("broker %r does not take a message of client %s: %s", self.home, self.name, reason)
        if reason.value == NO_SUBSCRIBERS and number not in self._sent:
            self._work.put(lambda: self._nobody_heard(client, number))

    def _nobody_heard(self, client: Client, number: int) -> None:
        """No agent has received the last call, so it is repeated soon."""
        if self._said == (client, number):
            self._due = min(self._due, time.monotonic() + AGAIN_SECONDS)

    def _resubscribe(self) -> None:
        with self._lock:
            if self._client is not None and self._client.is_connected():
                self._client.subscribe(subscription_options(self._wants(), RETAINED_IF_NEW))

    def _subscribed(self) -> None:
        self._ready.set()
        self._wait = FIRST_WAIT
        self._work.put(self._register)

    def _wants(self) -> QosFilters:
        return (*self._filters.items(), *always_wanted(self.name))

    def _send(self, key: str) -> None:
        """Send a message of the outbox, if there is a connection; else it waits there for one."""
        while self._client is not None:
            sent = self._client.publish(
                *self._outbox[key], 1, properties=message_properties([(MESSAGE_ID, key)])
            )
            if sent.rc != PACKET_ID_IN_USE:  # else the next one is tried; there are more than are taken
                self._sent[sent.mid] = key
                return

    def _forget_confirmed(self) -> None:
        # Confirmations only queue up here: the connection holds a lock of its own while it tells them.
        while self._confirmed:
            client, number = self._confirmed.popleft()
            if client is self._client:
                self._outbox.pop(self._sent.pop(number, ""), None)

    def _remembered(self, home: str) -> str:
        """The broker where the client was last, if it kept that."""
        kept = home
        if self._memory is not None and self._memory.exists():
            kept = self._memory.read_text().strip()
        found = kept if kept in self._addresses else home
        if found not in self._addresses:
            raise InputError(f"no broker {found!r}; there are {', '.join(self._addresses) or 'none'}")
        return found

    def _remember(self, broker: str) -> None:
        self.home = broker
        if self._memory is not None:
            draft = self._memory.with_name(f"{self._memory.name}.new")
            with draft.open("w") as file:
                file.write(broker)
                file.flush()
                os.fsync(file.fileno())
            draft.rename(self._memory)

    # What comes.

    def _received(self, message: Any) -> None:
        user = dict(user_properties(message.properties))
        own, _, call = message.topic.rpartition("/")
        if message.topic == after_client(self.name):
            if is_client_topic(topic := user.pop(TOPIC, "")):
                self._give(topic, message.payload, user)
        elif not message.topic.startswith(f"{CONTROL_ROOT}/"):
            self._give(message.topic, message.payload, user)
        elif own != to_client(self.name, call).rpartition("/")[0]:
            self._words.warn(
                "another", "client %s refused what is said to another: %r", self.name, message.topic[:80]
            )
        else:
            self._work.put(lambda: self._told(call, message.payload))

    def _give(self, topic: str, payload: bytes, user: Mapping[str, str]) -> None:
        """Give a message to the application, if it is new."""
        key = self._identify(topic, payload, user)
        if self._seen.first(topic, key):
            try:
                self._heard(ClientMessage(topic, payload, key))
            except Exception:  # or the connection would end without a word
                log.exception("client %s could not take a message of %r", self.name, topic)

    # In the client's own thread: answer, move.

    def _do_work(self) -> None:
        while True:
            work: Callable[[], object] | None = self._register_if_due
            with suppress(queue.Empty):
                work = self._work.get(timeout=AGAIN_SECONDS)
            if work is None:
                return
            try:
                work()
                self._register_if_due()  # now and not only when it is quiet, which it may never be
            except Exception:  # of a policy, perhaps; without an answer the client stays
                log.exception("client %s could not do what it was asked", self.name)

    def _register_if_due(self) -> None:
        if time.monotonic() > self._due:
            self._register()

    def _told(self, call: str, payload: bytes) -> None:
        """Do what the agent says, if it makes sense."""
        try:
            if call == "move":
                self._asked(parse(MoveRequest, payload))
            elif call == "connect":
                self._go(parse(ConnectOrder, payload))
            elif call == "refused":
                self._count_from(parse(RefusedNumber, payload))
            elif call == "registered":
                self._known_by(parse(Registered, payload))
        except InputError as error:
            self._words.warn(
                str(error).split(" ")[0], "client %s refused %r: %s", self.name, call[:40], error
            )

    def _asked(self, request: MoveRequest) -> None:
        """`request_to_move`: `accept`, `decline` or stay, by the policy; a repeated request as before."""
        answer = self._answers.get(request.move)
        if answer is None or answer.answer == "stay":
            known = self._learn_of(request.foreign, request.address)
            answer = self._policy(request) if known and request.home == self.home else DECLINE
            self._recall(request.move, answer)
        self._say("reply", Reply(self.name, self._next(), request.move, answer.answer, answer.until))

    def _answer(self, move: str, answer: PolicyAnswer) -> None:
        self._recall(move, answer)
        self._say("reply", Reply(self.name, self._next(), move, answer.answer))

    def _recall(self, move: str, answer: PolicyAnswer) -> None:
        """Keep an answer, for when it is asked again; a move of long ago is not."""
        self._answers.pop(move, None)
        self._answers[move] = answer
        if len(self._answers) > MOST_ANSWERS:
            del self._answers[next(iter(self._answers))]

    def _learn_of(self, broker: str, address: str) -> bool:
        if broker not in self._addresses and self._learn:
            self._addresses[broker] = Address.parse(address)
        return broker in self._addresses

    def _go(self, order: ConnectOrder) -> None:
        """`connect`: go to the foreign broker, and back if it does not answer.

        An order may have waited while its move was given up, so the agent is asked before anything happens.
        """
        if order.foreign == self.home:
            self._register()  # the agent has not heard it
            return
        if not self._consents(order):
            self._answer(order.move, DECLINE)
            return
        move, number, said = self._ready_to
        fresh = move == order.move and time.monotonic() - said < READY_SECONDS
        if not fresh or order.number != number:
            if not fresh or order.number:
                self._say_ready(order.move)
            return
        if not self._connect(order.foreign):
            self._recall(order.move, DECLINE)
            self._say("reply", Reply(self.name, self._next(), order.move, "failed"))

    def _connect(self, broker: str) -> bool:
        """Leave home and connect to another broker; false if that does not answer, and the client is back.

        It connects twice: the session was the agent's until now, and what came there that the client may not
        read fills mosquitto's window of messages under way, until the client connects once more.
        """
        home, end = self.home, time.monotonic() + self._patience
        for _ in range(2):
            self._part()
            self._join(broker)
            if not self._is_ready_before(end):
                log.warning("client %s cannot connect to %r and goes back", self.name, broker)
                self._part()
                self._join(home)
                return False
        return True

    def _is_ready_before(self, end: float) -> bool:
        """Wait until there is a connection; false if that takes too long, or the client is to stop."""
        while not self._ready.wait(TICK):
            if time.monotonic() > end or self._stopping.is_set():
                return False
        return True

    def _say_ready(self, move: str) -> None:
        self._ready_to = move, self._next(), time.monotonic()
        self._say("reply", Reply(self.name, self._ready_to[1], move, "ready"))

    def _consents(self, order: ConnectOrder) -> bool:
        """Whether it said yes, or, if it has been restarted since, would say so again."""
        if order.move not in self._answers:
            known = self._learn_of(order.foreign, order.address)
            request = MoveRequest(order.move, self.home, order.foreign, order.address, 0.0)
            self._recall(order.move, self._policy(request) if known else DECLINE)
        return self._answers[order.move].answer == "accept"

    def _count_from(self, refused: RefusedNumber) -> None:
        """The agent has heard a higher number, perhaps from before a clock was set back; or ours is ahead."""
        with self._lock:
            ahead, behind = self._number > refused.number + AHEAD, refused.number > self._number
            if ahead:
                self._fast = max(0, time.time_ns() - refused.number)
            if ahead or behind:
                self._number = refused.number
        if ahead:
            log.warning("the clock of client %s is, or was, more than a year ahead of the agent's", self.name)
        if ahead or behind:
            self._register()

    def _known_by(self, answer: Registered) -> None:
        """The agent has heard us; unless it was something older, there is no need to say it again soon."""
        if answer.number >= self._registered:
            self._wait, self._due = FIRST_WAIT, time.monotonic() + KNOWN_SECONDS

    def _register(self) -> None:
        """Say `register`, if there is a connection; without an answer, it is said again later."""
        if self._client is None or not self._client.is_connected():
            return
        self._registered = self._next()
        self._due = time.monotonic() + self._wait
        self._wait = min(2 * self._wait, LONGEST_WAIT)
        filters = tuple(self._filters.items())
        message = Register(self.name, self._registered, self.home, filters, self._place)
        self._say("register", with_topics(message, tuple(self._sends)))

    def _say(self, call: str, message: Register | Reply) -> None:
        client = self._client
        if client is not None:
            self._said = client, client.publish(from_client(self.name, call), dump(message), 1).mid

    def _next(self) -> int:
        with self._lock:
            self._number = max(self._number + 1, time.time_ns() - self._fast)
            return self._number


class SeenMessages:
    """The ids of the messages that came last, of each topic on its own.

    Args:
        most: how many are remembered.

    Examples:
        >>> seen = SeenMessages()
        >>> seen.first("t", "a:1"), seen.first("t", "a:1"), seen.first("u", "a:1"), seen.first("t", None)
        (True, False, True, True)
    """

    def __init__(self, most: int = MOST_SEEN) -> None:
        self._most = most
        self._ids: OrderedDict[bytes, None] = OrderedDict()

    def first(self, topic: str, key: str | None) -> bool:
        """Whether a message is new; one without an id always is."""
        if key is None:
            return True
        text = f"{topic}\0{key}".encode(errors="surrogatepass")  # no topic has a zero
        digest = blake2b(text, digest_size=DIGEST).digest()
        if digest in self._ids:
            self._ids.move_to_end(digest)
            return False
        self._ids[digest] = None
        if len(self._ids) > self._most:
            self._ids.popitem(last=False)
        return True

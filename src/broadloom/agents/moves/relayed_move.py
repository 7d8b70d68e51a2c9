"""Move of an ordinary MQTT client through the relay: its session at home, and the messages of both brokers.

An ordinary client (any library, MQTT 3.1, 3.1.1 or 5) is moved without knowing it. Its session at the foreign
broker exists before it leaves home, so both brokers queue messages for it for a moment. While it moves, the
router sends it to this relay. The relay connects it to the foreign broker with its own CONNECT, sends it what
still waits at home, and leaves out of the foreign session what it has received at home already.

The relay stores nothing. A message from home is acknowledged there when the client has acknowledged it, and
so is one of the foreign broker. If the relay ends, nothing is lost; some messages can arrive twice.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b

from broadloom.agents.moves.broker_sessions import forget, replicate_session
from broadloom.agents.moves.relayed_connection import FENCE_SECONDS, RelayedConnection
from broadloom.agents.moves.session_reader import (
    ANSWER_SECONDS,
    MOST_WAITING,
    RECENT,
    KnownContents,
    SessionReader,
    content_digest,
    seconds_until_pause,
    tls_of,
)
from broadloom.errors import UnreachableError
from broadloom.mqtt.endpoint import Address, Login
from broadloom.mqtt.packets import FAILED, LAST_ID
from broadloom.mqtt.paho import SESSION_SECONDS, request_once
from broadloom.mqtt.relayed_packets import ConnectRequest, RelayedPublish
from broadloom.mqtt.reserved_topics import INTERNAL_PREFIX, MOVE_AGENT
from broadloom.mqtt.topic_filters import QosFilters

log = logging.getLogger("broadloom.agents.moves")

CUT_SECONDS = 5.0  # until what waits at home is known
MOST_PAUSE = 3.0  # seconds in which a client leaves home
MOST_WITNESSED = 100_000  # messages; if there are more, some arrive twice
MOST_HELD = 4 << 20  # bytes of messages from home
# A move fails after so many refusals of the foreign broker, over so many seconds, without a success.
MOST_REFUSALS, REFUSED_SECONDS = 3, 30.0
PROOF_SECONDS = 2.0  # in which a broker ends the earlier connection of a session
HELD_SECONDS = 30.0  # for which the session at home is held for a client that does not come
FOR_EVER = 0xFFFF_FFFF
FIRST, EARLY, LAST, HOME = "first", "early", "last", "home"  # fences


@dataclass(frozen=True)
class RelayPlan:
    """Description of a move for the relay.

    Attributes:
        move: the id of the move.
        client: the client id.
        filters: the topic filters of its session.
        home: the address of its home broker, for the agent.
        foreign: the address of the foreign broker, for the agent.
        foreign_for_clients: the address of the foreign broker, for clients.
        is_recovery: whether the agent has restarted, and does not know where the client is.
    """

    move: str
    client: str
    filters: QosFilters
    home: Address
    foreign: Address
    foreign_for_clients: Address
    is_recovery: bool = False


@dataclass
class RelayCounts:
    """Numbers of the messages of a relayed move.

    Attributes:
        from_home: sent to the client from home.
        repeated: of these, sent to it before at home, without an acknowledgement: they can arrive twice.
        left_out: left out of the foreign session, because home has handled them.
        connections: connections of the client.
    """

    from_home: int = 0
    repeated: int = 0
    left_out: int = 0
    connections: int = 0


class RelayedMove:
    """One client on its move: its session at home, the messages of both brokers, and its connection.

    Args:
        plan: the move.
        login: the login of the agent.
        ttl: seconds for which the home broker continues to queue messages.
        settle: the most seconds that a message takes between brokers.
        secret: a secret of the agent, by which it knows its own messages.

    Attributes:
        plan: the move.
        counts: the numbers of its messages.
        is_leaving: whether the client has been told to leave home, and can come here.
        is_over: whether the move has ended, or is given up.
        is_fenced: whether a fence has come from the foreign session, so that its broker lets fences through.
        routing: held while the map is changed for this client.
        report: called with `connected`, `drained` or `failed`, and a note.
    """

    def __init__(
        self,
        plan: RelayPlan,
        login: Login,
        ttl: float,
        settle: float,
        secret: str,
    ) -> None:
        self.report: Callable[[str, str], None] = lambda _event, _note: None
        self.plan = plan
        self.counts = RelayCounts()
        self.is_leaving = False
        self.is_over = False
        self.is_fenced = False
        self.routing = asyncio.Lock()
        self._login = login
        self._ttl = ttl
        self._settle = settle
        self._fence = f"{INTERNAL_PREFIX}to/{plan.move}/fence"
        # Nobody else can send a fence, also who has read another one; one from before a restart is still one.
        self._codes = {kind: _fence_code(secret, plan.move, kind) for kind in (FIRST, EARLY, LAST, HOME)}
        self._known = KnownContents()
        self._prepared_at = 0.0
        self._witness: SessionReader | None = None
        self._witnessed: list[tuple[bytes, float]] = []
        self._reader: SessionReader | None = None
        self._waiting: deque[RelayedPublish] = deque()
        self._held_bytes = 0  # of messages from home that the client has not acknowledged
        self._is_new = False  # the client has begun a new session
        self._has_foreign = False  # the client gets messages of the foreign session already
        self._refusals = 0
        self._refused_at = 0.0  # the first of them
        self._home_fences: list[RelayedPublish] = []
        self._releases: set[int] = set()  # packet ids that the client has released, while home was away
        self._home_releases: set[int] = set()  # of messages at QoS 2 that the client has received at home
        self._delivered: Counter[bytes] = Counter()  # from home, for a session that is read again
        self._fences: set[str] = set()
        self._progress = asyncio.Event()
        self._is_cut = False
        self._cut_at = 0.0
        self._cutting = asyncio.Lock()
        self._is_drained = False  # nothing is left at home, so the client does not go back
        self._is_past_fences = False  # the client has received the foreign session up to the last fence
        self._connection: RelayedConnection | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._is_finishing = False
        self._proving = asyncio.Lock()  # held while the client's session at the foreign broker is taken over

    # Before the client leaves.

    async def prepare(self) -> None:
        """Watch what the client receives at home, and open its session at the foreign broker.

        Raises:
            UnreachableError: a broker does not answer, or refuses.
        """
        await self._start_witness()
        await asyncio.sleep(self._settle)  # what reached home before is at the foreign broker by then
        plan = self.plan
        filters = (*plan.filters, (self._fence, 1))
        # What an earlier attempt has queued there, the client has received at home.
        error = await asyncio.to_thread(forget, plan.foreign, plan.client, self._login)
        if self.is_over:
            raise UnreachableError("the move was given up meanwhile")
        if not error:
            self._prepared_at = time.monotonic()
            error = await asyncio.to_thread(
                replicate_session, plan.foreign, plan.client, self._login, filters
            )
        if error:
            raise UnreachableError(error)
        await self._fence_foreign(FIRST)
        await asyncio.sleep(2 * self._settle)
        await self._fence_foreign(EARLY)

    async def _start_witness(self) -> None:
        self.drop_witness()
        witness = SessionReader(
            self.plan.home,
            self._login,
            f"{MOVE_AGENT}-{self.plan.move}",
            self._on_witnessed,
            clean=True,
            window=LAST_ID,
        )
        await witness.open()
        if self.is_over:
            witness.close()
            raise UnreachableError("the move was given up meanwhile")
        self._witness = witness
        own = tuple((text, min(quality, 1)) for text, quality in self.plan.filters)
        await witness.subscribe((*own, (self._fence, 1)))

    def _on_witnessed(self, message: RelayedPublish) -> None:
        """A message that reaches home; those behind the fence, the client gets from the foreign session."""
        if message.topic == self._fence.encode():
            if self._kind_of(message) == HOME:
                self._pass_fence("witness")
        elif message.quality and not (
            message.is_retained or "witness" in self._fences or len(self._witnessed) >= MOST_WITNESSED
        ):  # a message at QoS 0 waits nowhere, so there is no other copy of it
            self._witnessed.append((content_digest(message.topic, message.payload), time.monotonic()))
        if self._witness is not None:
            self._witness.acknowledge(message)

    def drop_witness(self) -> None:
        """Stop watching."""
        if self._witness is not None:
            self._witness.close()
            self._witness = None

    # The client leaves.

    async def take_over(self) -> None:
        """Take the session at home over, so that the client is disconnected, and find out what waits there.

        Raises:
            UnreachableError: a broker does not answer, or refuses.
        """
        plan = self.plan
        self.is_leaving = True
        if plan.is_recovery:  # the client can be at the foreign broker, with messages waiting at home
            async with self._proving:
                await asyncio.to_thread(request_once, plan.foreign, plan.client, self._login, lambda _: None)
        await self._cut()

    async def call_back(self) -> None:
        """If the client has connected to the foreign broker directly, disconnect it, so that it comes here.

        It has received some messages of its session there, so nothing can be left out of it any more.

        Raises:
            UnreachableError: the foreign broker does not answer.
        """
        if self._connection is not None or self._is_drained or self.is_over:
            return
        self._has_foreign = True
        self._known.clear()
        plan = self.plan
        async with self._proving:
            code, text = await asyncio.to_thread(
                request_once, plan.foreign, plan.client, self._login, lambda _: None
            )
        if code is None or code >= FAILED:
            raise UnreachableError(text)

    async def _pause(self) -> None:
        """Wait for a moment in which no message is under way to the client, or until there was none for long.

        Its acknowledgement would be lost, and the message would arrive twice.
        """
        began = time.monotonic()
        while self._witness is not None:
            for _ in range(3):  # read what has arrived
                await asyncio.sleep(0)
            now = time.monotonic()
            patience = 1 - (now - began) / MOST_PAUSE
            wait = seconds_until_pause([at for _, at in self._witnessed[-RECENT:]], now, max(patience, 0.0))
            if patience <= 0 or not wait:
                return
            await asyncio.sleep(wait)

    async def _cut(self) -> None:
        """Read what waits at home, up to a fence; all else that the witness has seen, the client has.

        The fence stays in the session, so that it is found again if the session is read again.
        """
        async with self._cutting:
            is_held = self._is_cut and self._reader is not None and self._reader.is_up
            if self.is_over or self._is_drained or is_held:
                return
            self._waiting.clear()
            self._home_fences.clear()
            self._held_bytes = 0
            self._fences.discard("home")
            if self._reader is not None:
                self._reader.close()
            self._reader = self._home_reader()
            is_present = await self._reader.open(self._pause)
            if self.is_over:  # meanwhile
                self._reader.close()
                return
            while self._releases:
                self._reader.release(self._releases.pop())
            if is_present:
                self._reader.subscribe_soon(((self._fence, 1),))
                self._reader.publish(self._fence, self._codes[HOME])
                with suppress(TimeoutError):
                    async with asyncio.timeout(CUT_SECONDS):
                        await self._until_fenced()
            else:
                self._fences.add("home")  # nothing waits there
            if not self._is_cut:
                self._is_cut = True
                self._cut_at = time.monotonic()
                self._tasks.append(asyncio.create_task(self._fence_last()))
            self.drop_witness()

    def _home_reader(self) -> SessionReader:
        return SessionReader(
            self.plan.home,
            self._login,
            self.plan.client,
            self._on_waiting,
            expiry=FOR_EVER,  # until the client is back, or the session is ended
            is_full=lambda: self._held_bytes > MOST_HELD,
            released=self._on_released,
        )

    async def _fence_last(self) -> None:
        """Mark the end of the messages in the foreign session that home can have handled too."""
        await asyncio.sleep(self._settle)
        with suppress(UnreachableError):  # then the session is not used either
            await self._fence_foreign(LAST)

    def _kind_of(self, message: RelayedPublish) -> str:
        """The kind of a fence; empty: it is not one of ours."""
        return next((kind for kind, code in self._codes.items() if message.payload == code), "")

    async def _fence_foreign(self, kind: str) -> None:
        marker = f"{MOVE_AGENT}-{self.plan.move}"
        code, text = await asyncio.to_thread(
            request_once,
            self.plan.foreign,
            marker,
            self._login,
            lambda session: session.publish(self._fence, self._codes[kind], 1),
            clean=True,
        )
        if code is None or code >= FAILED:
            raise UnreachableError(text)

    async def _until_fenced(self) -> None:
        """Wait for the fences: at home, unless more waits there than is held, and at the witness."""
        while True:
            has_enough = len(self._waiting) >= MOST_WAITING or self._held_bytes > MOST_HELD
            is_witnessed = "witness" in self._fences or self._witness is None
            if is_witnessed and (has_enough or "home" in self._fences):
                return
            self._progress.clear()
            await self._progress.wait()

    def _on_waiting(self, message: RelayedPublish) -> None:
        """A message of the session at home; those behind the fence came with the agent's rights."""
        if message.topic == self._fence.encode():
            self._home_fences.append(message)
            if self._kind_of(message) == HOME:
                self._pass_fence("home")
        elif "home" not in self._fences and self._is_new and self._reader is not None:
            self._reader.acknowledge(message)  # so that home sends the others, and the fence
        elif "home" not in self._fences:
            digest = content_digest(message.topic, message.payload)
            if self._delivered[digest] and self._reader is not None:
                self._delivered[digest] -= 1
                self._reader.acknowledge(message)
                return
            self._held_bytes += len(message.payload)
            self._waiting.append(message)
            self._progress.set()

    def _on_released(self, number: int) -> None:
        """Home releases a message at QoS 2 that the client has received, but not handed to its program."""
        if self._is_new:
            self.complete_home(number)
        else:
            self._home_releases.add(number)

    def home_releases(self) -> list[int]:
        """Packet ids of messages at QoS 2 that the client has received at home, to be released."""
        return sorted(self._home_releases)

    def complete_home(self, number: int) -> None:
        """The client has answered the release of a message from home; home sends it again if it is away."""
        self._home_releases.discard(number)
        if self._reader is not None:
            self._reader.complete(number)

    def _pass_fence(self, place: str) -> None:
        """All messages before the fence have come, at home or at the witness.

        After both, what the witness has seen can be left out of the foreign session. Without that, or if the
        client gets messages of that session already, some arrive twice. When home is read again, there is no
        witness any more, and what is known stays known.
        """
        is_first = place not in self._fences
        self._fences.add(place)
        self._progress.set()
        is_complete = self._fences >= {"home", "witness"} and len(self._witnessed) < MOST_WITNESSED
        if is_first and is_complete and self._witnessed and not self._has_foreign:
            self._known = KnownContents(self._witnessed, self._prepared_at, self._settle)
            self._witnessed = []

    # The client arrives.

    async def serve(
        self, request: ConnectRequest, stream: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> str:
        """Serve a connection of the client until it ends; returns why it was refused, or an empty text.

        The foreign broker checks the login first, and whose session it opens: a connection of somebody else
        changes nothing.
        """
        if self.is_over:
            return ""  # the router learns that soon
        self.counts.connections += 1
        connection = RelayedConnection(self, request, stream, writer)
        try:
            problem = await self._open(connection)
            if connection.is_refused:
                await self._count_refusal(problem)
                return problem
            if problem:
                if self._connection is None:
                    self.fail(problem)
                return ""
            self._refusals = 0
            with suppress(UnreachableError):  # then what waits at home follows later
                await self._cut()
            await self._replace(connection)
            self.report("connected", "")
            if not self._is_finishing:
                self._is_finishing = True
                self._tasks.append(asyncio.create_task(self._finish()))
            await connection.run()
            if connection.broker_ended and not self._is_drained and await self._is_down():
                self.fail("the foreign broker is down")
        finally:
            connection.close()
            if self._connection is connection:
                self._connection = None
        return ""

    async def _open(self, connection: RelayedConnection) -> str:
        """Connect the client to the foreign broker; returns why that fails, or an empty text.

        A broker can derive the client id from the login, whatever CONNECT says. Then somebody with a login of
        their own would get the messages of a client whose id they name. So the session has a connection
        already, of the client or of the agent in its name, and the broker must end it in favour of the new
        one.
        """
        async with self._proving:
            earlier = self._connection
            if earlier is not None and not (earlier.over.is_set() or earlier.is_stuck):
                problem = await self._open_after(connection, earlier)
                if not (connection.is_refused and earlier.over.is_set()):
                    return problem
                # The client itself has ended its earlier connection meanwhile.
            plan = self.plan
            guard = SessionReader(
                plan.foreign, self._login, plan.client, lambda _: None, expiry=SESSION_SECONDS, window=1
            )
            try:
                await guard.open()
                return await self._open_after(connection, guard)
            except UnreachableError as error:
                return str(error)
            finally:
                guard.close()

    async def _open_after(
        self, connection: RelayedConnection, earlier: RelayedConnection | SessionReader
    ) -> str:
        """Connect the client, if the broker ends an earlier connection of its session then."""

        async def is_proven() -> bool:
            with suppress(TimeoutError):
                async with asyncio.timeout(PROOF_SECONDS):
                    if isinstance(earlier, RelayedConnection):
                        await earlier.over.wait()
                        return earlier.broker_ended
                    while earlier.is_up:
                        await asyncio.sleep(PROOF_SECONDS / 200)
                    return True
            return False

        # TLS as a client has it: not with the agent's certificate.
        tls = tls_of(Login(ca=self._login.ca))
        return await connection.open(self.plan.foreign_for_clients, tls, is_proven)

    async def _count_refusal(self, problem: str) -> None:
        """The foreign broker has refused a connection, which can be that of somebody else.

        If it is down, the client goes back home; also if it refuses everybody for long.
        """
        now = time.monotonic()
        if not self._refusals:
            self._refused_at = now
        self._refusals += 1
        has_refused = self._refusals >= MOST_REFUSALS and now > self._refused_at + REFUSED_SECONDS
        if self._connection is None and (has_refused or await self._is_down()):
            self.fail(problem)

    async def _replace(self, connection: RelayedConnection) -> None:
        """End an earlier connection, and get back what the client has not acknowledged there."""
        while self._connection is not None:
            earlier = self._connection
            earlier.close()
            await earlier.over.wait()
            if self._connection is earlier:
                self._connection = None
        self._connection = connection

    async def _is_down(self) -> bool:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                address = self.plan.foreign_for_clients
                _, writer = await asyncio.open_connection(address.hostname, address.port)
                writer.close()
        except (OSError, TimeoutError):
            return True
        return False

    async def next_waiting(self) -> RelayedPublish | None:
        """The next message that waits at home; None: there are no more, or home does not send them."""
        end = time.monotonic() + CUT_SECONDS
        while not self._waiting:
            is_read = "home" in self._fences or self._reader is None or not self._reader.is_up
            if is_read or time.monotonic() > end:
                return None
            self._progress.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(0.5):
                    await self._progress.wait()
        message = self._waiting.popleft()
        self.counts.from_home += 1
        self.counts.repeated += message.is_repeated
        return message

    def drop_waiting(self) -> None:
        """The client has begun a new session, so it does not get what waits at home, now or later.

        Nor does the new session have messages that the client has received at home.
        """
        self._is_new = True
        self._has_foreign = True
        self._is_past_fences = True
        self._known.clear()
        for number in self.home_releases():
            self.complete_home(number)
        self._end_waiting(list(self._waiting))
        self._waiting.clear()
        self._held_bytes = 0

    def return_waiting(self, messages: list[RelayedPublish]) -> None:
        """Messages from home that the client has not acknowledged."""
        if self._is_new:
            self._end_waiting(messages)
        else:
            self._waiting.extendleft(reversed(messages))

    def _end_waiting(self, messages: list[RelayedPublish]) -> None:
        if self._reader is not None:
            for message in messages:
                self._reader.acknowledge(message)

    def acknowledge_home(self, message: RelayedPublish) -> None:
        """The client has a message from home."""
        self._held_bytes = max(0, self._held_bytes - len(message.payload))
        if self._reader is not None and self._reader.is_up:
            self._reader.acknowledge(message)
        else:
            self._delivered[content_digest(message.topic, message.payload)] += 1

    def release(self, number: int) -> None:
        """The client releases a message at QoS 2 that it can have published at home."""
        if self._reader is not None and self._reader.is_up:
            self._reader.release(number)
        elif not self._is_drained:
            self._releases.add(number)

    def is_fence(self, message: RelayedPublish) -> bool:
        """Whether a message is a fence; from the last one on, the client gets everything from its broker."""
        self._has_foreign = True
        if message.topic != self._fence.encode():
            return False
        kind = self._kind_of(message)
        self.is_fenced = self.is_fenced or bool(kind)
        if kind == EARLY:
            self._known.pass_early_fence()
        elif kind == LAST:
            self._known.clear()
            self._is_past_fences = True
        return True

    def is_wanted(self, message: RelayedPublish) -> bool:
        """Whether the client lacks a message of the foreign session."""
        digest = content_digest(message.topic, message.payload)
        return message.is_retained or not message.quality or not self._known.takes(digest)

    def leave_out(self) -> None:
        """A message of the foreign session is left out."""
        self.counts.left_out += 1

    def return_left_out(self, messages: list[RelayedPublish]) -> None:
        """Messages that the client seemed to have, but that were not acknowledged: they come again."""
        self._known.give_back(content_digest(one.topic, one.payload) for one in messages)

    def distrust(self) -> None:
        """The broker does not let fences through, so the client gets everything of the foreign session."""
        log.warning(
            "move %s: broker %s does not let %s read its fences, so messages arrive twice; put the rules of "
            "`deploy export` into its acl_file",
            *(self.plan.move, self.plan.foreign, self.plan.client),
        )
        self._known.clear()

    async def _finish(self) -> None:
        """After the TTL, end the session at home; then let the client connect to its broker itself."""
        while True:
            remaining = self._cut_at + self._ttl - time.monotonic()
            connection = self._connection
            if not self._is_cut or (connection is not None and not self._has_home()):
                with suppress(UnreachableError):
                    await self._cut()
                await asyncio.sleep(0.2)
            elif connection is not None and (self._waiting or connection.has_new_releases):
                with suppress(OSError):  # the client has gone, and comes again
                    await connection.send_waiting()
                await asyncio.sleep(0.02)
            elif remaining > 0:
                await asyncio.sleep(min(remaining, 0.2))
            elif self._needs_client():
                await asyncio.sleep(0.05)
            else:
                break
        self._is_drained = True
        if self._reader is not None:
            self._reader.close()
        while error := await asyncio.to_thread(forget, self.plan.home, self.plan.client, self._login):
            log.info("move %s: the session at home is not ended yet: %s", self.plan.move, error)
            await asyncio.sleep(1.0)
        self.report("drained", "")

    def _needs_client(self) -> bool:
        """Whether the session at home cannot end before the client has come, or has acknowledged messages.

        Otherwise all that the client lacks is in the foreign session, and its broker keeps it.
        """
        connection = self._connection
        if "home" not in self._fences:
            return True
        if connection is not None:
            return connection.has_home_messages
        has_rest = bool(self._waiting or self._home_releases or self._releases)
        return has_rest or not self._is_past_fences

    def _has_home(self) -> bool:
        """Whether the session at home is held, or is not needed any more."""
        has_read_all = "home" in self._fences and not (self._waiting or self._releases)
        held = self._reader is not None and self._reader.is_up
        return held or (
            has_read_all and self._connection is not None and not self._connection.has_home_messages
        )

    async def end(self) -> None:
        """Let the client connect to its broker itself, at a moment when nothing is unacknowledged."""
        await asyncio.sleep(self._settle)
        self._known.clear()
        if self._connection is not None:
            await self._connection.finish(self._fence)
        self.close()

    def fail(self, note: str) -> None:
        """The client cannot be served by the foreign broker; its session at home still has everything."""
        if not self._is_drained and not self.is_over:
            self.give_up()
            self.report("failed", note)

    async def leave_home(self) -> None:
        """Remove our fence from the session at home, before the client goes back there."""
        async with self._cutting:
            reader = self._reader
            if not self._is_cut or reader is None:
                return
            if not reader.is_up:
                self._waiting.clear()
                self._held_bytes = 0
                self._home_fences.clear()
                self._fences.discard("home")
                reader = self._reader = self._home_reader()
                try:
                    await reader.open()
                except UnreachableError as error:
                    log.info("move %s: a fence stays in the session at home: %s", self.plan.move, error)
                    return
                with suppress(TimeoutError):
                    async with asyncio.timeout(FENCE_SECONDS):
                        await self._until_fenced()
            for message in self._home_fences:
                reader.acknowledge(message)
            await reader.unsubscribe(self._fence)
            reader.close()

    def close(self) -> None:
        """End all connections; sessions stay."""
        self.give_up()
        if self._reader is not None:
            self._reader.close()

    def give_up(self) -> None:
        """End all connections, except for that to the session at home."""
        self.is_over = True
        self.drop_witness()
        for task in self._tasks:
            task.cancel()
        if self._connection is not None:
            self._connection.close()

    def drop_home(self) -> None:
        """Stop holding the session at home of a client that does not come."""
        idle = time.monotonic() - self._cut_at > HELD_SECONDS
        if self._is_cut and self._connection is None and idle and self._reader is not None:
            self._reader.close()


def _fence_code(secret: str, move: str, kind: str) -> bytes:
    """The payload of a fence of a kind."""
    key = blake2b(secret.encode()).digest()
    return blake2b(f"{move}:{kind}".encode(), key=key, digest_size=16).hexdigest().encode()

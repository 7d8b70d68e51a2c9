"""Agent that moves clients between brokers (paper 5, section V).

All work is done in one thread, `run`; requests and control messages wait in its inbox. A change is journaled
before anything is sent, and each step can be repeated, so an agent that died at any moment continues where it
stopped.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from traceback import extract_tb
from typing import Any, TypeVar

from broadloom.agents.monitoring import RateLimitedLog
from broadloom.agents.moves.broker_sessions import NO_ANSWER, BrokerGateway
from broadloom.agents.moves.client_links import ClientLinks, LinkClaims, LinksEverywhere
from broadloom.agents.moves.control_codes import ClientKeys, seal, unseal
from broadloom.agents.moves.control_messages import (
    AHEAD,
    MOST_BYTES,
    ConnectOrder,
    MoveRequest,
    RefusedNumber,
    Register,
    Registered,
    Reply,
    client_and_call,
    dump,
    parse,
    to_client,
)
from broadloom.agents.moves.move_registry import (
    COMING,
    LEAVING,
    MOVING,
    ORDINARY,
    PREPARED,
    Abandoned,
    Change,
    Drained,
    Forgotten,
    Move,
    MoveJournal,
    MoveState,
    Numbered,
    Resident,
    Stray,
    new_id,
)
from broadloom.agents.moves.ordinary_clients import ClientSight, RelayedClients, SeenClient
from broadloom.agents.moves.ordinary_steps import OrdinarySteps
from broadloom.checks import check_number
from broadloom.errors import InputError, StorageError, UnreachableError
from broadloom.mqtt.endpoint import Address
from broadloom.mqtt.paho import SESSION_SECONDS

log = logging.getLogger("broadloom.agents.moves")

TICK = 0.02
ROOM_SECONDS = 1.0  # between attempts while the disk is full
BLIND_SECONDS = 5.0  # for which brokers' lists of clients are not read again after they did not answer
AWAY_SECONDS = 5.0  # after which a client that has moved, and is not connected, counts as absent
MOST_WAITING = 64 << 20  # bytes of control messages in the inbox
MOST_WAITING_OF_ONE = 1 << 20  # of one client
MESSAGE_BYTES = 512  # of a message in the inbox without its payload
CALLS = ("register", "reply")
MOST_LATER = 10_000  # repetitions whose times are remembered
DAY = 24 * 3600
MOST_STAY = float(DAY)  # seconds after which a staying client is asked again at the latest
# `Resident.heard` is up to a day too early, and then a broker keeps a session for a day.
LEAST_FORGET = 2 * DAY + SESSION_SECONDS
T = TypeVar("T")


@dataclass(frozen=True)
class Timing:
    """Durations of the steps of a move, in seconds.

    Attributes:
        ttl: minimum time for which the home broker continues to queue messages for a client that has left it;
            longer than a message takes to any broker, and than brokers take to save sessions.
        settle: time for which the client stays after its session at the foreign broker has begun, so that
            messages sent before still reach it at home.
        answer: time limit for the client's answer to a request.
        move: time limit from the client's consent until it is connected.
        again: interval of repetitions of unanswered messages.
        abandon: time limit for emptying a session that a client has left; brokers keep that of a client that
            takes part for a day.
        forget_after: time after which a silent client is forgotten and must register again; 0: never. At
            least three days: by then no broker has a session of it.

    Examples:
        >>> Timing(ttl=-1)
        Traceback (most recent call last):
        broadloom.errors.InputError: ttl is -1; give a number from 0
        >>> Timing(forget_after=60)
        Traceback (most recent call last):
        broadloom.errors.InputError: forget_after is 60; give 0 (never) or a number from 259200 (three days)
    """

    ttl: float = 5.0
    settle: float = 0.25
    answer: float = 60.0
    move: float = 60.0
    again: float = 2.0
    abandon: float = SESSION_SECONDS
    forget_after: float = 30 * DAY

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            check_number(value, name)
        if 0 < self.forget_after < LEAST_FORGET:
            raise InputError(
                f"forget_after is {self.forget_after:g}; "
                f"give 0 (never) or a number from {LEAST_FORGET} (three days)"
            )


@dataclass(frozen=True)
class _Question:
    """Work of the agent's thread for a caller that waits for its result, and learns why it fails."""

    work: Callable[[], None]

    def __call__(self) -> None:
        self.work()


class SightUnknownError(UnreachableError):
    """The brokers' lists of clients do not answer, so it is not known whether a client is there."""


class MoveAgent:
    """Agent that moves clients between brokers, with their consent and without loss.

    Args:
        addresses: the brokers' addresses for clients.
        gateway: the connections to brokers.
        journal: the journal of its state.
        links: the links that carry messages to the broker that a client moves to.
        timing: the durations of steps.
        watch: called with each move that has reached a new state.
        ordinary: the relay and the routers that move ordinary clients; None: only `MovingClient`s are moved.
        sight: the brokers' lists of their clients.
        agent_addresses: the brokers' addresses for the agent; None: the same as for clients.
        keys: the keys of clients; None: brokers authenticate clients, and their rules are trusted.

    Attributes:
        refused: number of refused control messages by reason.
        problem: why nothing moves at the moment; empty: nothing is wrong.
    """

    def __init__(
        self,
        addresses: Mapping[str, Address],
        gateway: BrokerGateway,
        journal: MoveJournal,
        links: ClientLinks | None = None,
        timing: Timing | None = None,
        watch: Callable[[Move], None] = lambda _: None,
        ordinary: RelayedClients | None = None,
        sight: ClientSight | None = None,
        agent_addresses: Mapping[str, Address] | None = None,
        keys: ClientKeys | None = None,
    ) -> None:
        self.problem = ""
        self._keys = keys
        self._addresses = dict(addresses)
        self._gateway = gateway
        self._journal = journal
        self._links = links or LinksEverywhere()
        self.timing = timing or Timing()
        self._watch = watch
        self.registry = journal.registry
        self.refused: Counter[str] = Counter()
        self._warnings = RateLimitedLog(log)
        self._claims = LinkClaims(self._links)
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        # Work that waits until the journal can be written, or brokers' lists of clients answer.
        self._deferred: deque[Callable[[], object]] = deque()
        self._traced: set[str] = set()  # kinds of failures whose traceback is in the log
        self._blind_until = 0.0  # by the monotonic clock
        self._waiting: Counter[str] = Counter()  # bytes of control messages in the inbox, by client
        self._waiting_bytes = 0
        self._waiting_lock = threading.Lock()
        self._stopping = threading.Event()
        begun = [move.since for move in self.registry.moves.values()]
        left = [stray.since for stray in self.registry.strays.values()]
        heard = [resident.heard for resident in self.registry.residents.values()]
        self._started = max(time.time(), *begun, *left, *heard, 0.0)
        self._ticks = time.monotonic()
        self._later: dict[Any, float] = {}  # per step, the time from which it can be repeated
        self._busy: dict[tuple[str, str], Callable[[], None]] = {}  # sessions being processed; stops the work
        self._unlinked: dict[tuple[str, str], float] = {}  # when links last were incomplete
        # An absent client can still have a session when the agent starts, but not a day later.
        self._next_forgetting = self._started + SESSION_SECONDS
        self._sight = sight
        self._ordinary: OrdinarySteps | None = None
        if ordinary is not None:
            self._ordinary = OrdinarySteps(
                ordinary,
                self.registry,
                self._addresses,
                agent_addresses or self._addresses,
                self._save,
                self._in_own_thread,
                self._is_due,
                self._unlinked_end,
                self._is_at,
                self.now,
                vars(self.timing),
                self._review,
            )
        self._claim_all()

    # In the agent's own thread.

    def now(self) -> float:
        """Seconds since 1970 by a monotonic clock that is never behind the journal."""
        return self._started + time.monotonic() - self._ticks

    def _waited(self, since: float, now: float) -> float:
        """Seconds since a time, or since the start of this agent if that is later."""
        return now - max(since, self._started)

    def run(self) -> None:
        """Work until `stop`; while the journal cannot be written, only questions are answered.

        Work that fails for another reason is logged, and does not stop the rest.
        """
        stepped = 0.0
        while not self._stopping.is_set():
            work: Callable[[], None] | None = None
            with suppress(queue.Empty):
                work = self._inbox.get(timeout=TICK)
            if self.problem and work is not None and not isinstance(work, _Question):
                self._deferred.append(work)
                work = None
            is_due = time.monotonic() - stepped > (ROOM_SECONDS if self.problem else TICK)
            try:
                if work is not None:
                    self._do(work)
                    work = None
                if is_due:
                    stepped = time.monotonic()
                    self._do_deferred()  # first: what clients answered in time counts
                    self.step(self.now())
                    self._resume()
            except StorageError as error:
                if work is not None:
                    self._deferred.append(work)  # nothing was changed yet
                self._stop_moving(error)
                stepped = time.monotonic()

    def _stop_moving(self, error: StorageError) -> None:
        """The journal cannot be written: say so once."""
        if not self.problem:
            self.problem = f"nothing moves until the journal can be written: {error}"
            log.error("%s", self.problem)

    def _do(self, work: Callable[[], object]) -> None:
        """Do a piece of work; if it fails, the others go on.

        Raises:
            StorageError: the journal cannot be written.
        """
        try:
            work()
        except StorageError:
            raise
        except SightUnknownError:
            self._deferred.append(work)
        except Exception as error:
            where = extract_tb(error.__traceback__)[-1]
            kind = f"{type(error).__name__} in {where.name}, line {where.lineno}"
            self._warnings.warn(kind, "a part of the agent's work has failed: %s: %r", kind, error)
            if kind not in self._traced:
                self._traced.add(kind)
                log.warning("its traceback, once:", exc_info=error)

    def _do_deferred(self) -> None:
        """Do what could not be done before, in its order, if that is possible now."""
        for _ in range(len(self._deferred)):
            self._do(self._deferred[0])
            self._deferred.popleft()

    def _resume(self) -> None:
        """The journal can be written: say so, if it could not be before."""
        if self.problem:
            self.problem = ""
            log.warning("the journal can be written again; clients are moved")

    def receive(self, broker: str, topic: str, payload: bytes) -> bool:
        """Process a control message of a client; false if it is refused."""
        try:
            changes = self._changes_of(broker, topic, payload, self.now())
        except InputError as error:
            kind = str(error).split(" ")[0]
            self.refused[kind] += 1
            self._warnings.warn(kind, "refused at %r: %s", broker, error)
            return False
        if len(changes) == 1 and topic.endswith("/register"):
            self.registry.apply(changes)  # only a number, which need not survive a crash
        else:
            self._save(changes)
        client, call = client_and_call(topic)
        if call == "register":
            self._send(broker, client, "registered", Registered(self.registry.numbers[client]))
        return True

    def step(self, now: float) -> None:
        """Do what is due for each active move and each stray session."""
        self._warnings.report()
        for move in self.registry.active_moves():
            self._do(partial(self._advance, move, now))
        for stray in list(self.registry.strays.values()):
            self._do(partial(self.redirect, stray, now))
        if now > self._next_forgetting:
            self._next_forgetting = now + DAY
            self._do(partial(self._forget_silent, now))

    def _changes_of(self, broker: str, topic: str, payload: bytes, now: float) -> list[Change]:
        """Check a control message, and return its changes."""
        client, call = _known_call(topic)
        if self._keys is not None:
            payload = unseal(self._keys.of(client), topic, payload)
        if broker not in self._addresses:
            raise InputError(f"broker {broker!r} is unknown")
        message = parse(Register, payload) if call == "register" else parse(Reply, payload)
        if message.client != client:
            raise InputError(f"forged: {client} claims to be {message.client}")
        if isinstance(message, Register) and message.broker != broker:
            raise InputError(
                f"crossed: {client} is at {message.broker!r}; links must not carry control topics"
            )
        last = self.registry.number_of(client)
        clock = max(time.time_ns(), last)  # the system's clock can have been set back
        if message.number > clock + AHEAD:  # it would leave no numbers for later messages
            self._send(broker, client, "refused", RefusedNumber(clock))
            raise InputError(
                f"ahead: {client} sent number {message.number}, more than a year ahead of the clock"
            )
        if message.number <= last:
            if message.number < last:  # the client's clock can have been set back
                self._send(broker, client, "refused", RefusedNumber(last))
            raise InputError(f"replayed: {client} sent number {message.number} after {last}")
        if isinstance(message, Register):
            changes = self._registered(broker, message, now)
        else:
            changes = self._replied(message, now)
        return [Numbered(client, message.number), *changes]

    def _registered(self, broker: str, message: Register, now: float) -> list[Change]:
        """Changes of `register`: the broker becomes the client's home, and queues elsewhere are forwarded."""
        client = message.client
        before = self.registry.residents.get(message.client)
        arrived = before is None or before.broker != broker
        since = now if before is None or arrived else before.since
        heard = now if before is None or now > before.heard + DAY else before.heard
        changes: list[Change] = [
            Resident(client, broker, message.filters, message.place, since, message.sends, heard)
        ]
        for stray in self.registry.strays_of(client) if arrived else ():  # otherwise their TTL continues
            returned = stray.broker == broker
            changes.append(Drained(client, broker) if returned else replace(stray, since=now))
            self._stop_work(client, stray.broker)
        if before is not None and arrived:
            changes.append(Stray(client, before.broker, now, True, new_id()))
        if changes == [before]:
            changes = []
        move = self.registry.active_move(client)
        if move is None:
            return changes
        if broker == move.foreign and move.state is not MoveState.CONNECTED:
            changes.append(move.to(MoveState.CONNECTED, now))
        elif broker == move.foreign and move.note == COMING:
            changes.append(replace(move, note=""))  # the client was absent, and is back
        elif broker == move.home and move.state is MoveState.CONNECTED:
            changes.append(move.to(MoveState.FAILED, now, "the client went back"))
        elif broker not in (move.home, move.foreign):
            changes += self._end_move(move, MoveState.FAILED, now, f"the client went to {broker!r}")
        return changes

    def _replied(self, message: Reply, now: float) -> list[Change]:
        """Changes of `reply`: consent, refusal, a delay, readiness, a failure, or a confirmation."""
        if message.answer == "received":
            self._gateway.confirm(message.client, message.move)
            return []
        move = self.registry.moves.get(message.move)
        if move is None or move.client != message.client:
            raise InputError(f"move {message.move} is not a move of {message.client}")
        is_open = move.state in (MoveState.REQUESTED, MoveState.STAYING)
        if is_open and message.answer == "accept":
            # The foreign broker can have a stray session from before.
            return [Drained(move.client, move.foreign), move.to(MoveState.ACCEPTED, now)]
        if is_open and message.answer == "stay":
            until = min(message.until or now, now + MOST_STAY)
            return [replace(move, state=MoveState.STAYING, since=now, until=until)]
        if is_open and message.answer == "decline":
            return [move.to(MoveState.DECLINED, now)]
        if move.state is MoveState.REPLICATED and message.answer == "ready":
            self._inbox.put(lambda: self._send_off(move.id, message.number))
            return [] if move.note == LEAVING else [replace(move, since=now, note=LEAVING)]
        if move.state in PREPARED and message.answer in ("decline", "failed"):
            reason = "declined to move" if message.answer == "decline" else "could not connect"
            return self._end_move(move, MoveState.FAILED, now, f"the client {reason}")
        return []  # outdated

    def _end_move(self, move: Move, state: MoveState, now: float, note: str) -> list[Change]:
        """Changes that end a move whose client stays; the prepared session becomes a stray one."""
        changes: list[Change] = [move.to(state, now, note)]
        if move.state in PREPARED:
            changes.append(Stray(move.client, move.foreign, now, False, new_id()))
        return changes

    def _advance(self, move: Move, now: float) -> None:
        """Do the next step of a move, if it is due."""
        if unknown := [one for one in (move.home, move.foreign) if one not in self._addresses]:
            self._end_at_removed(move, unknown[0], now)
            return
        waited = self._waited(move.since, now)
        is_slow = move.state is MoveState.ACCEPTED and waited >= self.timing.again
        if is_slow and self._is_due((move.id, "links"), now):
            missing = self._unlinked_end(move)
            move = self._noted(move, f"waiting: links of {missing!r} are not up" if missing else "")
        if self.registry.residents[move.client].kind == ORDINARY:
            self._advance_ordinary(move, waited, now)
            return
        limit = self.timing.answer if move.state is MoveState.REQUESTED else self.timing.move
        if move.state in (MoveState.REQUESTED, *PREPARED) and waited > limit:
            ended = MoveState.EXPIRED if move.state is MoveState.REQUESTED else MoveState.FAILED
            unlinked = move.state is MoveState.ACCEPTED and self._unlinked_end(move)
            note = f"links of {unlinked!r} are not up" if unlinked else f"nothing happened in {limit:g} s"
            self._save(self._end_move(move, ended, now, note))
        elif move.state is MoveState.REQUESTED:
            self._ask_to_move(move, now)
        elif move.state is MoveState.STAYING and now >= move.until:
            self._save([move.to(MoveState.REQUESTED, now)])
        elif move.state is MoveState.ACCEPTED:
            self.replicate(move, now)
        elif move.state is MoveState.REPLICATED and waited >= self.timing.settle:
            self.connect(move, now)
        elif move.state is MoveState.CONNECTED and all(
            stray.last for stray in self.registry.strays_of(move.client)
        ):
            left = self.registry.abandoned.get((move.client, move.home))
            note = f"messages waiting at {move.home!r} were abandoned" if left and left.forward else ""
            self._save([move.to(MoveState.REDIRECTED, now, note)])

    def _advance_ordinary(self, move: Move, waited: float, now: float) -> None:
        """Do the next step of an ordinary client's move; without a router it waits for an agent with one."""
        # The end of an earlier session would end the prepared one, too.
        is_ending = move.state is MoveState.ACCEPTED and (move.client, move.foreign) in self._busy
        if self._ordinary is None or is_ending:
            return
        is_moved = (
            move.state is MoveState.CONNECTED and self.registry.residents[move.client].keeps is not False
        )
        try:
            if is_moved and waited > AWAY_SECONDS and self._is_due((move.id, "away"), now):
                move = self._noted(move, "" if self._is_at(move.client, move.foreign) else COMING)
            self._ordinary.advance(move, waited, now)
        except SightUnknownError as error:
            if move.note not in (LEAVING, COMING):  # which say how far it is
                self._noted(move, f"waiting: {error}")

    def _end_at_removed(self, move: Move, broker: str, now: float) -> None:
        """End a move of which a broker is no longer in the configuration."""
        changes = self._end_move(move, MoveState.FAILED, now, f"broker {broker!r} is no longer known")
        resident = self.registry.residents[move.client]
        if resident.kind != ORDINARY:
            self._save(changes)
            return
        if move.state is MoveState.CONNECTED and move.foreign in self._addresses:
            changes.append(Abandoned(move.client, move.home, now, True))
        elif move.state is MoveState.CONNECTED and move.home in self._addresses:
            changes.append(replace(resident, broker=move.home, since=now))
        self._save(changes)
        if self._ordinary is not None:
            self._ordinary.abandon(move)

    def _noted(self, move: Move, note: str) -> Move:
        """The move with a note that says what it waits for."""
        if move.note != note:
            self._save([replace(move, note=note)])
        return self.registry.moves[move.id]

    def _ask_to_move(self, move: Move, now: float) -> None:
        """Send `request_to_move` to the client, repeatedly until it answers."""
        if self._is_due((move.id, move.state), now):
            address = str(self._addresses[move.foreign])
            request = MoveRequest(move.id, move.home, move.foreign, address, self.timing.ttl)
            self._send(move.home, move.client, "move", request)

    def replicate(self, move: Move, now: float) -> None:
        """Open the client's session at the foreign broker, as soon as links carry its messages there.

        Called for an accepted move until it is replicated; it does nothing too early or twice.

        Raises:
            InputError: the move is not in state `ACCEPTED`.
        """
        if move.state is not MoveState.ACCEPTED:
            raise InputError(f"move {move.id} is {move.state}; sessions are replicated when it is accepted")
        key = move.client, move.foreign
        resident = self.registry.residents[move.client]
        if key in self._busy or self._unlinked_end(move):
            return
        if not self._is_due((move.id, move.state), now):
            return

        def then(error: str | None) -> None:
            self._busy.pop(key, None)
            current = self.registry.moves[move.id]
            if error:
                log.info("move %s: no session at %r yet: %s", move.id, move.foreign, error)
            elif current.state is MoveState.ACCEPTED:
                self._save([current.to(MoveState.REPLICATED, self.now())])

        self._gateway.replicate(move.foreign, move.client, resident.filters, self._in_own_thread(then))
        self._busy[key] = lambda: None

    def connect(self, move: Move, now: float) -> None:
        """Tell the client where to connect, at both brokers: it can be at either if its `register` was lost.

        Called for a replicated move until the client is connected.

        Raises:
            InputError: the move is not in state `REPLICATED`.
        """
        if move.state is not MoveState.REPLICATED:
            raise InputError(f"move {move.id} is {move.state}; clients connect when it is replicated")
        if self._is_due((move.id, move.state), now):
            order = ConnectOrder(move.id, move.foreign, str(self._addresses[move.foreign]))
            for broker in (move.home, move.foreign):
                self._send(broker, move.client, "connect", order)

    def _send_off(self, move_id: str, number: int) -> None:
        """Answer a client's `ready`: tell it to connect now, if there is time enough left for the move."""
        move = self.registry.moves[move_id]
        waited = self._waited(move.since, self.now())
        if move.note == LEAVING and waited < self.timing.move / 2:
            order = ConnectOrder(move.id, move.foreign, str(self._addresses[move.foreign]), number)
            self._send(move.home, move.client, "connect", order)

    def redirect(self, stray: Stray, now: float) -> None:
        """When the TTL has passed, forward the queue of a stray session to the client.

        Called for a stray session until it is ended; it does nothing too early or twice.
        """
        key = stray.client, stray.broker
        if stray.broker not in self._addresses or self._waited(stray.since, now) > self.timing.abandon:
            self._abandon(stray, now)
        elif key not in self._busy and self._is_ready(stray, now) and self._is_due(key, now):
            then = self._in_own_thread(lambda error: self._on_emptied(stray, error))
            if stray.forward:
                brokers = stray.broker, self.registry.residents[stray.client].broker
                self._busy[key] = self._gateway.redirect(*brokers, stray.client, stray.token, then)
            else:
                self._gateway.forget(stray.broker, stray.client, then)
                self._busy[key] = lambda: None

    def _abandon(self, stray: Stray, now: float) -> None:
        """Stop trying to empty a stray session; if it was ended once already, it counts as ended."""
        log.warning(
            "the session of %s at %r could not be emptied and is abandoned", stray.client, stray.broker
        )
        left = Abandoned(stray.client, stray.broker, now, stray.forward)
        self._save([Drained(stray.client, stray.broker) if stray.last else left])

    def _is_ready(self, stray: Stray, now: float) -> bool:
        """Whether the TTL has passed since the client left and links carry its filters to its home."""
        key = stray.client, stray.broker
        home = self.registry.residents[stray.client]
        if home.broker not in self._addresses:
            return not stray.forward  # there is no broker to forward to, until the client registers elsewhere
        # Before the session would be abandoned, its queue is forwarded even without links.
        patient = self._waited(stray.since, now) < self.timing.abandon / 2
        if stray.forward and patient and not self._are_carried(home.broker, home.needs):
            self._unlinked[key] = now
        since = max(stray.since, self._unlinked.get(key, 0.0)) if stray.forward else stray.since
        return not (stray.forward or stray.last) or now >= since + self.timing.ttl

    def _on_emptied(self, stray: Stray, error: str | None) -> None:
        key = stray.client, stray.broker
        self._busy.pop(key, None)
        current = self.registry.strays.get(key)
        if error:
            log.info("the session of %s at %r is not emptied yet: %s", *key, error)
            move = self.registry.active_move(stray.client)
            if move is not None and move.state is MoveState.CONNECTED and move.home == stray.broker:
                waiting = f"waiting: the session at {stray.broker!r} is not emptied yet: {error:.200}"
                self._noted(move, COMING if error == NO_ANSWER else waiting)
        elif current is not None and current.token == stray.token:
            gone = replace(current, since=self.now(), forward=False, last=True)
            self._save([Drained(*key) if stray.last else gone])

    def _save(self, changes: list[Change]) -> None:
        """Journal changes, and act on them."""
        self._journal.append(changes)
        for change in changes:
            match change:
                case Move():
                    log.info(
                        "move %s of %s to %r: %s", change.id, change.client, change.foreign, change.state
                    )
                    self._claim(change)
                    self._watch(change)
                case Resident():
                    self._claims.hold(change.broker, change.client, change.needs)
                    move = self.registry.active_move(change.client)
                    if move is not None:  # what it needs now, it needs at the other broker, too
                        self._claim(move)
                case Forgotten():
                    self._claims.drop(change.broker, change.client)
                case Drained() | Abandoned() if (
                    self.registry.residents[change.client].broker != change.broker
                ):
                    self._claims.drop(change.broker, change.client)
                    self._unlinked.pop((change.client, change.broker), None)

    def _forget_silent(self, now: float) -> None:
        """Forget clients that have been silent for long; they can register again."""
        if not self.timing.forget_after:
            return
        changes = self.registry.forgetting(now - self.timing.forget_after, int(now * 1e9))
        if changes:
            self._save(changes)
            self._journal.try_to_compact()
            log.info("%d clients are forgotten, because they were silent for too long", len(changes) - 1)

    def _unlinked_end(self, move: Move) -> str | None:
        """The broker of a move to which links do not carry the client's filters yet; None: they do."""
        needs = self.registry.residents[move.client].needs
        return next((one for one in (move.foreign, move.home) if not self._are_carried(one, needs)), None)

    def _is_at(self, client: str, broker: str) -> bool:
        """Whether a broker shows that an ordinary client is connected to it.

        Raises:
            SightUnknownError: that is not known.
        """
        return self._look(lambda sight: sight.is_connected(client, broker), otherwise=False)

    def _look(self, question: Callable[[ClientSight], T], otherwise: T) -> T:
        """What the brokers' lists of clients say; `otherwise` if the agent does not follow them.

        Raises:
            SightUnknownError: they do not answer; then they are not asked again for some seconds.
        """
        if self._sight is None:
            return otherwise
        if time.monotonic() >= self._blind_until:
            try:
                return question(self._sight)
            except UnreachableError:
                self._blind_until = time.monotonic() + BLIND_SECONDS
        raise SightUnknownError("the brokers' lists of clients do not answer")

    def _are_carried(self, broker: str, needs: Collection[str]) -> bool:
        """Whether links carry all filters; false if that fails, which must not stop the agent."""
        try:
            return self._links.carried(broker, needs)
        except Exception:
            if self._is_due(("links", broker), self.now()):
                log.exception("links of broker %r failed to report their state", broker)
            return False

    def _claim(self, move: Move) -> None:
        """Request links for the broker that a client is about to move to."""
        if move.state in PREPARED and move.foreign in self._addresses:
            needs = self.registry.residents[move.client].needs
            self._claims.hold(move.foreign, move.client, needs)

    def _claim_all(self) -> None:
        """Request all links that clients need, when the agent starts."""
        at_unknown = Counter[str]()
        for resident in self.registry.residents.values():
            strays = self.registry.strays_of(resident.client)
            for broker in {resident.broker, *(one.broker for one in strays)} & self._addresses.keys():
                self._claims.hold(broker, resident.client, resident.needs)
            at_unknown[resident.broker] += resident.broker not in self._addresses
        for broker, count in (+at_unknown).items():
            log.warning("%d clients were last at broker %r, which is no longer known", count, broker)
        for move in self.registry.active_moves():
            self._claim(move)

    def _stop_work(self, client: str, broker: str) -> None:
        self._busy.get((client, broker), lambda: None)()

    def _send(
        self,
        broker: str,
        client: str,
        call: str,
        message: MoveRequest | ConnectOrder | RefusedNumber | Registered,
    ) -> None:
        topic = to_client(client, call)
        body = dump(message)
        if self._keys is not None:
            body = seal(self._keys.of(client), topic, body)
        self._gateway.send(broker, topic, body)

    def _is_due(self, key: Any, now: float) -> bool:
        """Whether a step can be made or repeated now; if so, it is next due after `Timing.again` seconds."""
        if now < self._later.get(key, 0.0):
            return False
        if len(self._later) > MOST_LATER:
            self._later = {one: moment for one, moment in self._later.items() if moment > now}
        self._later[key] = now + self.timing.again
        return True

    def _in_own_thread(self, then: Callable[..., None]) -> Callable[..., None]:
        """A function that has the agent's thread call `then`."""
        return lambda *values: self._inbox.put(lambda: then(*values))

    # From any thread.

    def post(self, broker: str, topic: str, payload: bytes, done: Callable[[], None]) -> None:
        """Have the agent's thread process a control message; `done` is called after that.

        Messages with a wrong code, and those of a client that has too many waiting, are refused here.
        """
        refusal = self._refusal(topic, payload)
        if refusal:
            kind = refusal.split(" ")[0]
            with self._waiting_lock:
                self.refused[kind] += 1
            self._warnings.warn(kind, "refused at %r: %s", broker, refusal)
            done()
            return

        def work() -> None:
            # If it cannot be journaled, all this is repeated.
            self._do(lambda: self.receive(broker, topic, payload))
            client = client_and_call(topic)[0]
            size = len(payload) + MESSAGE_BYTES
            with self._waiting_lock:
                self._waiting[client] -= size
                self._waiting_bytes -= size
                if self._waiting[client] <= 0:
                    del self._waiting[client]
            done()

        self._inbox.put(work)

    def _refusal(self, topic: str, payload: bytes) -> str:
        """Why a control message is not even queued; empty: it is, and counts."""
        if len(payload) > 2 * MOST_BYTES:
            return f"flood: a message of {len(payload):,} bytes on {topic!r:.80}"
        try:
            client, _ = _known_call(topic)
            if self._keys is not None:
                unseal(self._keys.of(client), topic, payload)
        except InputError as error:
            return str(error)
        size = len(payload) + MESSAGE_BYTES
        with self._waiting_lock:
            if self._waiting[client] + size > MOST_WAITING_OF_ONE:
                return f"flood: too many messages of {client!r:.80} are waiting"
            if self._waiting_bytes + size > MOST_WAITING:
                return "flood: too many messages of all clients are waiting"
            self._waiting[client] += size
            self._waiting_bytes += size
        return ""

    def ask(self, question: Callable[[MoveAgent], T], seconds: float = 25.0) -> T:
        """Have the agent's thread call a function with the agent, and return its result.

        Raises:
            TimeoutError: the agent's thread did not answer in time.
        """
        answer: Future[T] = Future()

        def work() -> None:
            try:
                answer.set_result(question(self))
            except BaseException as error:
                answer.set_exception(error)

        self._inbox.put(_Question(work))
        return answer.result(seconds)

    def stop(self) -> None:
        """Make `run` return; sessions that are being emptied are left to the next agent."""
        self._stopping.set()
        for stop in list(self._busy.values()):
            stop()

    # Called through `ask`.

    def request_to_move(self, client: str, to: str, key: str = "") -> Move:
        """Request a move of a client to a broker; the same key gives the same move.

        Raises:
            InputError: the client or the broker is unknown, or the client is at that broker or moving.
            StorageError: nothing moves at the moment.
            UnreachableError: the brokers' lists of clients do not answer.
        """
        known = self.registry.move_of_key(key)
        if known is not None:
            if (known.client, known.foreign) != (client, to):
                raise InputError(f"key {key!r:.80} belongs to another move; give each move its own key")
            return known
        self._check_storage()
        if to not in self._addresses:
            raise InputError(f"no broker {to!r:.80}; there are {', '.join(self._addresses)}")
        resident = self._resident(client)
        if resident.broker == to:
            raise InputError(f"client {client!r} is at {to!r} already")
        if resident.broker not in self._addresses:
            raise InputError(f"client {client!r} was last at {resident.broker!r}, which is no longer known")
        if self.registry.is_moving(client):
            raise InputError(f"client {client!r} is being moved already; wait until that move has ended")
        if resident.kind == ORDINARY and self._is_another(client, to):
            raise InputError(
                f"client {client!r:.80} also has a session at {to!r}; give each client its own id"
            )
        move = Move(new_id(), client, resident.broker, to, MoveState.REQUESTED, self.now(), key=key)
        is_new = self.registry.residents.get(client) != resident
        self._save([resident, move] if is_new else [move])
        return move

    def _check_storage(self) -> None:
        """Refuse changes while earlier ones wait for the journal: these would be overtaken.

        Raises:
            StorageError: the journal cannot be written.
        """
        if self.problem:
            raise StorageError(self.problem)

    def _review(self, move: Move) -> tuple[SeenClient | None, str]:
        """An ordinary client as its broker shows it now, and why its move cannot begin; empty: it can."""
        seen = self._look(lambda sight: sight.find(move.client), otherwise=None)
        if seen is not None and seen.is_connected and seen.broker != move.home:
            return seen, f"the client is at {seen.broker!r} now"
        if self._is_another(move.client, move.foreign, move.id):
            return seen, f"the client also has a session at {move.foreign!r}; give each client its own id"
        return seen, "" if seen is None else seen.obstacle()

    def _is_another(self, client: str, broker: str, but: str = "") -> bool:
        """Whether a broker has a session with a client's id that no move has left there.

        The session of a client of MQTT 5 that was there before can have ended without a line in the log. The
        move with the id `but` does not count: it has not begun.
        """
        key = client, broker
        if self._sight is None or key in self.registry.strays or key in self.registry.abandoned:
            return False
        was_there = any(
            one.id != but and one.client == client and broker in (one.home, one.foreign)
            for one in self.registry.moves.values()
        )
        return self._look(lambda sight: sight.has_session(client, broker, is_sure=was_there), otherwise=False)

    def _resident(self, client: str) -> Resident:
        """A client: as it has registered, or as its broker shows it.

        Raises:
            InputError: it is unknown, or cannot be moved.
        """
        known = self.registry.residents.get(client)
        if known is not None and known.kind == MOVING:
            return known
        seen = self._look(lambda sight: sight.find(client), otherwise=None)
        if self._ordinary is not None and seen is not None:
            if obstacle := seen.obstacle():
                raise InputError(f"client {client!r:.80} cannot be moved: {obstacle}")
            return seen.resident(self.now())
        if self._ordinary is not None and known is not None:
            return known  # it is absent, and its session is where the agent left it
        hint = "no broker shows it" if self._ordinary is not None else "there is no [router] for others"
        raise InputError(f"client {client!r:.80} has not registered yet, and {hint}; move it when it has")

    def cancel(self, move_id: str) -> Move:
        """Cancel a move whose client has not been told to connect yet; then the client stays.

        Raises:
            InputError: the move is unknown, or it is too late to cancel it.
            StorageError: nothing moves at the moment; what clients have done meanwhile is not journaled yet.
        """
        self._check_storage()
        move = self.registry.moves.get(move_id)
        if move is None:
            raise InputError(f"no move {move_id!r:.40}; give the id of a move")
        is_early = not move.is_over and move.state is not MoveState.CONNECTED
        is_ordinary = self.registry.residents[move.client].kind == ORDINARY
        if is_early and is_ordinary and self._ordinary is not None:
            self._ordinary.cancel(move, self.now())
            return self.registry.moves[move_id]
        if move.is_over or move.state is MoveState.CONNECTED or move.note == LEAVING:
            reason = LEAVING if move.note == LEAVING else f"move {move_id} is {move.state}"
            raise InputError(f"{reason}; it is too late to cancel it")
        self._save(self._end_move(move, MoveState.CANCELLED, self.now(), "cancelled by the operator"))
        return self.registry.moves[move_id]


def _known_call(topic: str) -> tuple[str, str]:
    """The client and the call of a control topic.

    Raises:
        InputError: there is no such call.
    """
    client, call = client_and_call(topic)
    if call not in CALLS:
        raise InputError(f"call {call!r:.40} of {client:.80} is unknown; expected register or reply")
    return client, call

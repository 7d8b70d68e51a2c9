"""The agent that moves clients: what it hears, what it keeps, what it does next (paper 5, section V).

Everything happens in one thread, `run`; what others ask for, and what brokers say, waits in its inbox. A
change is in the journal before anybody is told, and each step may be repeated, so that an agent that died at
any moment goes on where it was.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from broadloom.agents.monitoring import RateLimitedLog
from broadloom.agents.moves.broker_sessions import BrokerGateway
from broadloom.agents.moves.client_links import ClientLinks, LinkClaims, LinksEverywhere
from broadloom.agents.moves.control_messages import (
    AHEAD,
    ConnectOrder,
    MoveRequest,
    RefusedNumber,
    Register,
    Registered,
    Reply,
    dump,
    parse,
    said_by,
    to_client,
)
from broadloom.agents.moves.move_registry import (
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
from broadloom.checks import check_number
from broadloom.errors import InputError
from broadloom.mqtt.endpoint import Address
from broadloom.mqtt.paho import SESSION_SECONDS

log = logging.getLogger("broadloom.agents.moves")

TICK = 0.02
MOST_LATER = 10_000
DAY = 24 * 3600
MOST_STAY = float(DAY)  # seconds after which a client that stays is asked again in any case
# A client is heard of a day later than is kept, and then a broker keeps its session for a day.
LEAST_FORGET = 2 * DAY + SESSION_SECONDS
LEAVING = "the client has been told to go"
T = TypeVar("T")


@dataclass(frozen=True)
class Timing:
    """How long things may take, in seconds.

    Attributes:
        ttl: how long the home broker goes on collecting for a client that has left it, at least; more than a
            message takes to any broker, and than brokers take to save sessions.
        settle: how long the client stays after its session at the foreign broker has begun, so that what
            was on its way before still reaches it at home.
        answer: how long a client may think about a request.
        move: how long it may take from the client's yes until it is connected.
        again: how often the agent repeats what was not answered.
        abandon: how long one agent tries to empty a session that a client has left; brokers keep it a day.
        forget_after: after how long a client that is not heard of is forgotten, and must register again; 0:
            never. Three days at least: by then no broker has a session of it.

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
            given = f"forget_after is {self.forget_after:g}"
            raise InputError(f"{given}; give 0 (never) or a number from {LEAST_FORGET} (three days)")


class MoveAgent:
    """Moves clients between brokers, each by its own consent, so that none loses a message.

    Args:
        addresses: of the brokers, as clients reach them.
        wire: what connects the agent to brokers.
        journal: what survives its crash.
        links: what brings messages to the broker that a client moves to.
        timing: how long things may take.
        watch: called with each move that has come into a new state.

    Attributes:
        refused: how many control messages were refused, by reason.
    """

    def __init__(
        self,
        addresses: Mapping[str, Address],
        wire: BrokerGateway,
        journal: MoveJournal,
        links: ClientLinks | None = None,
        timing: Timing | None = None,
        watch: Callable[[Move], None] = lambda _: None,
    ) -> None:
        self._addresses, self._wire, self._journal = dict(addresses), wire, journal
        self._links = links or LinksEverywhere()
        self.timing, self._watch = timing or Timing(), watch
        self.registry = journal.registry
        self.refused: Counter[str] = Counter()
        self._words = RateLimitedLog(log)
        self._claims = LinkClaims(self._links)
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._stopping = threading.Event()
        begun = [move.since for move in self.registry.moves.values()]
        left = [stray.since for stray in self.registry.strays.values()]
        heard = [resident.heard for resident in self.registry.residents.values()]
        self._started = max(time.time(), *begun, *left, *heard, 0.0)
        self._ticks = time.monotonic()
        self._later: dict[Any, float] = {}  # what was done lately, and when it may be done again
        self._busy: dict[tuple[str, str], Callable[[], None]] = {}  # sessions at work, and how to stop that
        self._unlinked: dict[tuple[str, str], float] = {}  # when links were last found wanting
        # Whoever is away may still have a session when an agent starts, but not a day later.
        self._next_forgetting = self._started + SESSION_SECONDS
        self._claim_all()

    # In the agent's own thread: hear, keep, step.

    def now(self) -> float:
        """Seconds since 1970, on a clock that nobody sets, and that is never behind what the journal has."""
        return self._started + time.monotonic() - self._ticks

    def _waited(self, since: float, now: float) -> float:
        """For how long something has waited since this agent is there."""
        return now - max(since, self._started)

    def run(self) -> None:
        """Work until `stop`."""
        stepped = 0.0
        while not self._stopping.is_set():
            with suppress(queue.Empty):
                self._inbox.get(timeout=TICK)()
            if time.monotonic() - stepped > TICK:
                self.step(self.now())
                stepped = time.monotonic()

    def hear(self, broker: str, topic: str, payload: bytes) -> bool:
        """Take in what a client said at a broker; false if it is refused."""
        try:
            changes = self._understood(broker, topic, payload, self.now())
        except InputError as error:
            kind = str(error).split(" ")[0]
            self.refused[kind] += 1
            self._words.warn(kind, "refused at %r: %s", broker, error)
            return False
        if len(changes) == 1 and topic.endswith("/register"):
            self.registry.apply(changes)  # only a number; repeated after a crash, it changes nothing either
        else:
            self._keep(changes)
        client, call = said_by(topic)
        if call == "register":
            self._tell(broker, client, "registered", Registered(self.registry.numbers[client]))
        return True

    def step(self, now: float) -> None:
        """Do what is due for each move and each session that was left."""
        self._words.catch_up()
        for move in self.registry.active_moves():
            self._advance(move, now)
        for stray in list(self.registry.strays.values()):
            self.redirect(stray, now)
        if now > self._next_forgetting:
            self._next_forgetting = now + DAY
            self._forget_silent(now)

    def _understood(self, broker: str, topic: str, payload: bytes, now: float) -> list[Change]:
        """What a message changes, if it is what it should be."""
        client, call = said_by(topic)
        if broker not in self._addresses:
            raise InputError(f"broker {broker!r} is unknown")
        if call not in ("register", "reply"):
            raise InputError(f"call {call!r:.40} of {client} is unknown; there are register and reply")
        message = parse(Register, payload) if call == "register" else parse(Reply, payload)
        if message.client != client:
            raise InputError(f"forged: {client} speaks for {message.client}")
        if isinstance(message, Register) and message.broker != broker:
            raise InputError(
                f"crossed: {client} is at {message.broker!r}; links must not carry control topics"
            )
        last = self.registry.number_of(client)
        clock = max(time.time_ns(), last)  # ours may have been set back
        if message.number > clock + AHEAD:  # it would leave no numbers for what comes later
            self._tell(broker, client, "refused", RefusedNumber(clock))
            raise InputError(
                f"ahead: {client} sent number {message.number}, more than a year ahead of the clock"
            )
        if message.number <= last:
            if message.number < last:  # perhaps its clock was set back
                self._tell(broker, client, "refused", RefusedNumber(last))
            raise InputError(f"replayed: {client} sent number {message.number} after {last}")
        if isinstance(message, Register):
            changes = self._registered(broker, message, now)
        else:
            changes = self._replied(message, now)
        return [Numbered(client, message.number), *changes]

    def _registered(self, broker: str, message: Register, now: float) -> list[Change]:
        """After `register`: the broker at which a client is connected is its home; others hand over to it."""
        client, before = message.client, self.registry.residents.get(message.client)
        came = before is None or before.broker != broker
        since = now if before is None or came else before.since
        heard = now if before is None or now > before.heard + DAY else before.heard
        changes: list[Change] = [
            Resident(client, broker, message.filters, message.place, since, message.sends, heard)
        ]
        for stray in self.registry.strays_of(client) if came else ():  # else their TTL runs on
            gone_back = stray.broker == broker
            changes.append(Drained(client, broker) if gone_back else replace(stray, since=now))
            self._stop_work(client, stray.broker)
        if before is not None and came:
            changes.append(Stray(client, before.broker, now, True, new_id()))
        if changes == [before]:
            changes = []
        move = self.registry.active_move(client)
        if move is None:
            return changes
        if broker == move.foreign and move.state is not MoveState.CONNECTED:
            changes.append(move.to(MoveState.CONNECTED, now))
        elif broker == move.home and move.state is MoveState.CONNECTED:
            changes.append(move.to(MoveState.FAILED, now, "the client went back"))
        elif broker not in (move.home, move.foreign):
            changes += self._given_up(move, MoveState.FAILED, now, f"the client went to {broker!r}")
        return changes

    def _replied(self, message: Reply, now: float) -> list[Change]:
        """`accept`, `decline`, a stay until later, or a failure."""
        move = self.registry.moves.get(message.move)
        if move is None or move.client != message.client:
            raise InputError(f"move {message.move} is none of {message.client}")
        asked = move.state in (MoveState.REQUESTED, MoveState.STAYING)
        if asked and message.answer == "accept":
            return [
                Drained(move.client, move.foreign),
                move.to(MoveState.ACCEPTED, now),
            ]  # it may go back there
        if asked and message.answer == "stay":
            until = min(message.until or now, now + MOST_STAY)
            return [replace(move, state=MoveState.STAYING, since=now, until=until)]
        if asked and message.answer == "decline":
            return [move.to(MoveState.DECLINED, now)]
        if move.state is MoveState.REPLICATED and message.answer == "ready":
            self._inbox.put(lambda: self._send_off(move.id, message.number))
            return [] if move.note == LEAVING else [replace(move, since=now, note=LEAVING)]
        if move.state in PREPARED and message.answer in ("decline", "failed"):
            why = "would not go" if message.answer == "decline" else "could not connect"
            return self._given_up(move, MoveState.FAILED, now, f"the client {why}")
        return []  # overtaken

    def _given_up(self, move: Move, state: MoveState, now: float, note: str) -> list[Change]:
        """The end of a move whose client stays; a session that waits for it in vain is forgotten."""
        over: list[Change] = [move.to(state, now, note)]
        if move.state in PREPARED:
            over.append(Stray(move.client, move.foreign, now, False, new_id()))
        return over

    def _advance(self, move: Move, now: float) -> None:
        """The next step of a move, if it is due."""
        if unknown := [one for one in (move.home, move.foreign) if one not in self._addresses]:
            self._keep(
                self._given_up(move, MoveState.FAILED, now, f"broker {unknown[0]!r} is no longer known")
            )
            return
        waited = self._waited(move.since, now)
        limit = self.timing.answer if move.state is MoveState.REQUESTED else self.timing.move
        if move.state in (MoveState.REQUESTED, *PREPARED) and waited > limit:
            ended = MoveState.EXPIRED if move.state is MoveState.REQUESTED else MoveState.FAILED
            unlinked = move.state is MoveState.ACCEPTED and self._unlinked_end(move)
            note = f"links of {unlinked!r} are not up" if unlinked else f"nothing happened in {limit:g} s"
            self._keep(self._given_up(move, ended, now, note))
        elif move.state is MoveState.REQUESTED:
            self._ask_to_move(move, now)
        elif move.state is MoveState.STAYING and now >= move.until:
            self._keep([move.to(MoveState.REQUESTED, now)])
        elif move.state is MoveState.ACCEPTED:
            self.replicate(move, now)
        elif move.state is MoveState.REPLICATED and waited >= self.timing.settle:
            self.connect(move, now)
        elif move.state is MoveState.CONNECTED and all(
            stray.last for stray in self.registry.strays_of(move.client)
        ):
            left = self.registry.abandoned.get((move.client, move.home))
            note = f"what waited at {move.home!r} was left there" if left and left.forward else ""
            self._keep([move.to(MoveState.REDIRECTED, now, note)])

    def _ask_to_move(self, move: Move, now: float) -> None:
        """Tell the client of `request_to_move`, again and again until it answers."""
        if self._is_due((move.id, move.state), now):
            address = str(self._addresses[move.foreign])
            request = MoveRequest(move.id, move.home, move.foreign, address, self.timing.ttl)
            self._tell(move.home, move.client, "move", request)

    def replicate(self, move: Move, now: float) -> None:
        """Open the client's session at the foreign broker, once that gets what the client wants.

        Called for a move that is accepted until it is replicated; nothing happens too early or twice.

        Raises:
            InputError: the client has not accepted, or is further than that.
        """
        if move.state is not MoveState.ACCEPTED:
            raise InputError(f"move {move.id} is {move.state}; sessions are replicated when it is accepted")
        key, resident = (move.client, move.foreign), self.registry.residents[move.client]
        if key in self._busy or self._unlinked_end(move):
            return
        if not self._is_due((move.id, move.state), now):
            return

        def then(fault: str | None) -> None:
            self._busy.pop(key, None)
            current = self.registry.moves[move.id]
            if fault:
                log.info("move %s: no session at %r yet: %s", move.id, move.foreign, fault)
            elif current.state is MoveState.ACCEPTED:
                self._keep([current.to(MoveState.REPLICATED, self.now())])

        self._busy[key] = lambda: None
        self._wire.replicate(move.foreign, move.client, resident.filters, self._posted(then))

    def connect(self, move: Move, now: float) -> None:
        """Tell the client where to connect, at both brokers: it may be at either, its register may be lost.

        Called for a move that is replicated until the client is there.

        Raises:
            InputError: there is no session at the foreign broker yet, or the client is there.
        """
        if move.state is not MoveState.REPLICATED:
            raise InputError(f"move {move.id} is {move.state}; clients connect when it is replicated")
        if self._is_due((move.id, move.state), now):
            order = ConnectOrder(move.id, move.foreign, str(self._addresses[move.foreign]))
            for broker in (move.home, move.foreign):
                self._tell(broker, move.client, "connect", order)

    def _send_off(self, move_id: str, number: int) -> None:
        """Have a client go that has just said that it is ready, if it can be there in time."""
        move = self.registry.moves[move_id]
        waited = self._waited(move.since, self.now())
        if move.note == LEAVING and waited < self.timing.move / 2:
            order = ConnectOrder(move.id, move.foreign, str(self._addresses[move.foreign]), number)
            self._tell(move.home, move.client, "connect", order)

    def redirect(self, stray: Stray, now: float) -> None:
        """When the TTL is over, send what waits where the client no longer is after it.

        Called for a session that was left until it is ended; nothing happens too early or twice.
        """
        key = stray.client, stray.broker
        if stray.broker not in self._addresses or self._waited(stray.since, now) > self.timing.abandon:
            self._abandon(stray, now)
        elif key not in self._busy and self._is_ripe(stray, now) and self._is_due(key, now):
            then = self._posted(lambda fault: self._emptied(stray, fault))
            self._busy[key] = lambda: None
            if stray.forward:
                places = stray.broker, self.registry.residents[stray.client].broker
                self._busy[key] = self._wire.redirect(*places, stray.client, stray.token, then)
            else:
                self._wire.forget(stray.broker, stray.client, then)

    def _abandon(self, stray: Stray, now: float) -> None:
        """Leave a session as it is, and what waits there; one that was ended before is most likely gone."""
        log.warning("the session of %s at %r is left as it is", stray.client, stray.broker)
        left = Abandoned(stray.client, stray.broker, now, stray.forward)
        self._keep([Drained(stray.client, stray.broker) if stray.last else left])

    def _is_ripe(self, stray: Stray, now: float) -> bool:
        """Whether the TTL is over since the client has left, and since links bring all to where it is."""
        key, home = (stray.client, stray.broker), self.registry.residents[stray.client]
        if home.broker not in self._addresses:
            return not stray.forward  # there is nowhere to send it on to, until the client comes elsewhere
        # Before it would be abandoned, what waits is sent on anyway.
        patient = self._waited(stray.since, now) < self.timing.abandon / 2
        if stray.forward and patient and not self._are_carried(home.broker, home.needs):
            self._unlinked[key] = now
        since = max(stray.since, self._unlinked.get(key, 0.0)) if stray.forward else stray.since
        return not (stray.forward or stray.last) or now >= since + self.timing.ttl

    def _emptied(self, stray: Stray, fault: str | None) -> None:
        key = stray.client, stray.broker
        self._busy.pop(key, None)
        current = self.registry.strays.get(key)
        if fault:
            log.info("the session of %s at %r is still there: %s", *key, fault)
        elif current is not None and current.token == stray.token:
            gone = replace(current, since=self.now(), forward=False, last=True)
            self._keep([Drained(*key) if stray.last else gone])

    def _keep(self, changes: list[Change]) -> None:
        """Bring changes to the disk, and follow them up."""
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
                case Forgotten():
                    self._claims.drop(change.broker, change.client)
                case Drained() | Abandoned() if (
                    self.registry.residents[change.client].broker != change.broker
                ):
                    self._claims.drop(change.broker, change.client)
                    self._unlinked.pop((change.client, change.broker), None)

    def _forget_silent(self, now: float) -> None:
        """Drop clients that were not heard of for long; who comes back registers again."""
        if not self.timing.forget_after:
            return
        changes = self.registry.forgetting(now - self.timing.forget_after, int(now * 1e9))
        if changes:
            self._keep(changes)
            self._journal.shorten()
            log.info("%d clients that were not heard of for long are forgotten", len(changes) - 1)

    def _unlinked_end(self, move: Move) -> str | None:
        """The broker of a move that does not get what the client wants, or give it; None: both do."""
        needs = self.registry.residents[move.client].needs
        return next((one for one in (move.foreign, move.home) if not self._are_carried(one, needs)), None)

    def _are_carried(self, broker: str, needs: Collection[str]) -> bool:
        """Whether links bring all of this; those that fail do not, and do not end the agent."""
        try:
            return self._links.carried(broker, needs)
        except Exception:
            if self._is_due(("links", broker), self.now()):
                log.exception("links of broker %r cannot be asked", broker)
            return False

    def _claim(self, move: Move) -> None:
        """Have the foreign broker get what a client wants that is about to come."""
        if move.state in PREPARED and move.foreign in self._addresses:
            needs = self.registry.residents[move.client].needs
            self._claims.hold(move.foreign, move.client, needs)

    def _claim_all(self) -> None:
        """Ask for all links that are needed, as an agent that has just started."""
        lost = Counter[str]()
        for resident in self.registry.residents.values():
            strays = self.registry.strays_of(resident.client)
            for broker in {resident.broker, *(one.broker for one in strays)} & self._addresses.keys():
                self._claims.hold(broker, resident.client, resident.needs)
            lost[resident.broker] += resident.broker not in self._addresses
        for broker, count in (+lost).items():
            log.warning("%d clients were last at broker %r, which is no longer known", count, broker)
        for move in self.registry.active_moves():
            self._claim(move)

    def _stop_work(self, client: str, broker: str) -> None:
        self._busy.get((client, broker), lambda: None)()

    def _tell(
        self,
        broker: str,
        client: str,
        call: str,
        message: MoveRequest | ConnectOrder | RefusedNumber | Registered,
    ) -> None:
        self._wire.send(broker, to_client(client, call), dump(message))

    def _is_due(self, key: Any, now: float) -> bool:
        """Whether something was not done lately; then it counts as done now."""
        if now < self._later.get(key, 0.0):
            return False
        if len(self._later) > MOST_LATER:
            self._later = {one: moment for one, moment in self._later.items() if moment > now}
        self._later[key] = now + self.timing.again
        return True

    def _posted(self, then: Callable[[str | None], None]) -> Callable[[str | None], None]:
        """What runs in the agent's thread, wherever it is called."""
        return lambda fault: self._inbox.put(lambda: then(fault))

    # From any thread.

    def heard(self, broker: str, topic: str, payload: bytes, done: Callable[[], None]) -> None:
        """Take in what a client said, and tell when it is kept, or refused."""

        def work() -> None:
            self.hear(broker, topic, payload)
            done()

        self._inbox.put(work)

    def ask(self, question: Callable[[MoveAgent], T], seconds: float = 25.0) -> T:
        """Have the agent's thread call a function with the agent, and give its result."""
        answer: Future[T] = Future()

        def work() -> None:
            try:
                answer.set_result(question(self))
            except BaseException as error:
                answer.set_exception(error)

        self._inbox.put(work)
        return answer.result(seconds)

    def stop(self) -> None:
        """End `run`, and leave sessions that are being emptied to the next agent."""
        self._stopping.set()
        for stop in list(self._busy.values()):
            stop()

    # Asked through `ask`.

    def request_to_move(self, client: str, to: str, key: str = "") -> Move:
        """Ask a client to move to a broker; asking again with the same key gives the same move.

        Raises:
            InputError: the client or the broker is unknown, it is there already, or it is being moved.
        """
        known = self.registry.move_of_key(key)
        if known is not None:
            if (known.client, known.foreign) != (client, to):
                raise InputError(f"key {key!r:.80} is that of another move; give each move its own")
            return known
        if to not in self._addresses:
            raise InputError(f"no broker {to!r:.80}; there are {', '.join(self._addresses)}")
        resident = self.registry.residents.get(client)
        if resident is None:
            raise InputError(f"client {client!r:.80} has not registered; it can be moved when it has")
        if resident.broker == to:
            raise InputError(f"client {client!r} is at {to!r} already")
        if resident.broker not in self._addresses:
            raise InputError(f"client {client!r} was last at {resident.broker!r}, which is no longer known")
        if self.registry.is_moving(client):
            raise InputError(f"client {client!r} is being moved already; wait until that is over")
        move = Move(new_id(), client, resident.broker, to, MoveState.REQUESTED, self.now(), key=key)
        self._keep([move])
        return move

    def cancel(self, move_id: str) -> Move:
        """Give up a move whose client has not been told to go yet; then it stays.

        Raises:
            InputError: there is no such move, or it is too late.
        """
        move = self.registry.moves.get(move_id)
        if move is None:
            raise InputError(f"no move {move_id!r:.40}")
        if move.is_over or move.state is MoveState.CONNECTED or move.note == LEAVING:
            words = LEAVING if move.note == LEAVING else f"move {move_id} is {move.state}"
            raise InputError(f"{words}; it is too late to give it up")
        self._keep(self._given_up(move, MoveState.CANCELLED, self.now(), "given up by the operator"))
        return self.registry.moves[move_id]

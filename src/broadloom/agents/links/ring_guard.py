"""Guard against bridges made by hand next to the hops: a message travels once all the same.

A bridge that Broadloom did not make brings copies of messages to a broker. A bridge of MQTT 5 keeps the
stamp: a copy whose stamp says that it was sent to another broker is dropped at once, whether or not the guard
is active. A copy without a stamp looks like a message of a local client: a bridge of MQTT 3.1.1 drops all
stamps, and messages of clients have none yet. It can arrive before the message itself, and would leave as a
new message, meet the message on its way, and reach clients twice; over MQTT 3.1.1 it would circulate.

While the guard of broker u is active, the rule is, for messages of equal topic and payload:

1. *Wait.* If u gets copies, a message without a stamp waits at u before it leaves. Each broker waits for a
   time of its own, and two brokers differ by more than the time that a message takes (`hold_seconds`).
   Messages with a stamp do not wait, nor does anything at a broker that got no copy in the last ten minutes:
   a bridge that only leads away from it.
2. *A stamp wins.* A message without a stamp is dropped if an equal one with a stamp for u has arrived, while
   it waited or in the five seconds before.
3. *Once per hop.* A message, with or without a stamp, is dropped at hop (u, v) if an equal one without a
   stamp has left over (u, v) in the two seconds before.

Of the brokers that have the message without a stamp, the one with the shortest wait is the first to let it
leave. Its stamped message reaches the others while they wait, so they drop theirs: one survives, and reaches
each broker once. If no bridge leads to the broker where the client published, the survivor is the client's
own message; otherwise it can be any copy. Only clients of brokers that a bridge leads to get a message more
than once, because the bridge brings it there.

No message is lost, whatever the delays. A message is dropped at hop (u, v) because of rule 3 only if an equal
one has left over (u, v), and because of rule 2 only if one with a stamp has come to u. That one left its
origin over all hops of the tree, in each direction; so by induction over the hops, each broker of the tree
gets one of them. (Old retained messages go to new brokers only, so they do not count.)

Bridges made by hand that form a ring among themselves bring each message for ever. While more than 20 equal
messages arrive per second, the times of rules 2 and 3 begin again.

Many operators have bridges to places outside of the fleet, which bring no copies. So a known bridge alone
drops and delays nothing: messages are compared only. The rules hold for ten minutes once three different
contents have come both with and without a stamp within a minute, once one content has come so for one hop
more than 20 times within five seconds, because it circulates, or once a stamp proves it.

The price, while the rules hold: messages of local clients are later by the wait, and equal messages of
clients within these seconds are taken for copies. The first copies that a broker gets, and copies that are
later than the wait, arrive twice; after a late one the broker waits longer. A bridge that changes the topic
makes another message, which nobody can recognise.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from broadloom.agents.links.stamps import Stamp, Stamps
    from broadloom.deployment import Hop
    from broadloom.mqtt.packets import Publish

STAMPED_SECONDS, LEFT_SECONDS = 5.0, 2.0
CIRCULATING_RATE = 20.0  # equal messages per second that no client publishes
RING_SECONDS = 600.0  # for which the guard stays active, and messages wait, after the last copy
FIRST_HOLD, LONGEST_HOLD, HOLD_STEP = 1.0, 2.5, 0.5
LATE_SECONDS = 10.0  # in which late messages count once
MOST_SUSPECTS, SUSPECT_SECONDS = 3, 60.0  # different contents that came twice, and the time to count them
MOST_REPEATS, REPEAT_SECONDS = 20, 5.0  # times that one content came twice for one hop: clients are slower
MOST_REMEMBERED = 100_000  # messages
MOST_HELD_BYTES = 4 << 20  # of one hop


def hold_seconds(broker: str, brokers: Collection[str]) -> float:
    """How long messages of a broker's clients wait while its guard is active; different for each broker.

    Examples:
        >>> [hold_seconds(name, ["lima", "oslo", "rome"]) for name in ("lima", "oslo", "rome")]
        [1.0, 1.5, 2.0]
    """
    names = sorted({broker, *brokers})
    step = min(HOLD_STEP, (LONGEST_HOLD - FIRST_HOLD) / max(1, len(names) - 1))
    return FIRST_HOLD + step * names.index(broker)


def content_hash(message: Publish) -> int:
    """Hash of what all copies of a message share; a bridge of MQTT 3.1.1 drops all properties."""
    return hash((message.topic, message.payload()))


class RingGuard:
    """Memory of the messages at one broker, while a bridge made by hand brings copies of some.

    Args:
        broker: the broker.
        now: a clock that never goes back, in seconds.
        problem: called with a sentence when messages come by a path that Broadloom did not make.
        solved: called with the same sentence when none has come by it for ten minutes.
        changed: called when `is_active` has changed.

    Attributes:
        is_active: whether the broker has a bridge made by hand, or had copies of one lately.
        hold: how long messages without a stamp wait at first.
    """

    def __init__(
        self,
        broker: str,
        now: Callable[[], float],
        problem: Callable[[str], None] = lambda _: None,
        solved: Callable[[str], None] = lambda _: None,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self.is_active = False
        self.hold = hold_seconds(broker, ())
        self.now = now
        self._broker = broker
        self._problem = problem
        self._solved = solved
        self._changed = changed
        self._bridges: frozenset[str] = frozenset()
        self._ring_until: float | None = None
        self._copies_until = 0.0
        self._sure_until = 0.0
        # Contents that came with and without a stamp; for each hop, since when and how often.
        self._suspects: dict[int, dict[Hop, tuple[float, int]]] = {}
        self._suspected_at = 0.0
        self._sources: dict[str, str] = {}  # what was said of each broker whose messages have turned up here
        self._recent: dict[int | tuple[int, Hop], _Recent] = {}
        self._longer = 0.0
        self._longer_at = 0.0
        self._arrivals: dict[int, float] = {}  # the last one of each content

    def set_bridges(self, names: Collection[str]) -> None:
        """Take over the bridges made by hand that the broker has."""
        self._bridges = frozenset(names)
        self.check()

    def found_ring(self, stamp: Stamp) -> None:
        """A message has arrived whose stamp says that it was sent to another broker."""
        self._ring_until = self._copies_until = self._sure_until = self.now() + RING_SECONDS
        if not self.is_active:
            self.check()
        if stamp.at in self._sources:
            return
        text = (
            f"messages come to broker {self._broker!r} by a path that Broadloom did not make: some that were "
            f"sent to broker {stamp.at!r} turn up here; look for a bridge made by hand from {stamp.at!r} to "
            f"{self._broker!r}, and remove it"
        )
        self._sources[stamp.at] = text
        self._problem(text)

    def check(self) -> None:
        """Switch the guard on or off; called now and then."""
        if self._ring_until is not None and self.now() >= self._ring_until:
            self._ring_until = None
            while self._sources:
                self._solved(self._sources.popitem()[1])
        is_active = bool(self._bridges) or self._ring_until is not None
        if is_active != self.is_active:
            self.is_active = is_active
            self._recent.clear()
            self._arrivals.clear()
            self._longer = 0.0
            self._changed()

    # Messages.

    def gets_copies(self) -> bool:
        """Whether the broker has got copies lately, so that messages without a stamp wait."""
        return self.is_active and self.now() < self._copies_until

    def saw_stamped(self, digest: int) -> None:
        """A message with a stamp for this broker has arrived."""
        self._remember(digest, STAMPED_SECONDS)

    def found_late(self, origin: str) -> None:
        """A message with a stamp has arrived after an equal one has left: its brokers wait too similarly.

        The second one in the order of names, which is the order of waiting, waits longer from now on.
        """
        now = self.now()
        if origin < self._broker and self.gets_copies() and now >= self._longer_at:
            self._longer_at = now + LATE_SECONDS
            self._longer = min(self._longer + HOLD_STEP, LONGEST_HOLD)

    def saw_arrive(self, digest: int) -> None:
        """A message without a stamp is at the broker; hops get it now or later."""
        now = self.now()
        if len(self._arrivals) >= MOST_REMEMBERED:
            self._arrivals = {one: at for one, at in self._arrivals.items() if at > now - STAMPED_SECONDS}
        self._arrivals[digest] = now

    def leaves_at(self, digest: int) -> float:
        """The time until which a message without a stamp waits, which a hop gets now."""
        return self._arrivals.get(digest, self.now()) + self.hold + self._longer

    def saw_leave(self, digest: int, hop: Hop) -> None:
        """A message without a stamp leaves over a hop."""
        self._remember((digest, hop), LEFT_SECONDS)

    def is_copy(self, digest: int, hop: Hop, is_stamped: bool, is_early: bool = False) -> bool:
        """Whether an equal message makes this one superfluous on a hop.

        Args:
            digest: the content of the message.
            hop: the hop.
            is_stamped: whether it has a stamp.
            is_early: whether this is asked again for the same message later.
        """
        has_left = self._is_recent((digest, hop))
        has_come = not is_stamped and self._is_recent(digest)
        if (has_come or (has_left and is_stamped)) and not is_early:
            self._suspect(digest, hop)
        return (has_left or has_come) and self.now() < self._sure_until

    def _suspect(self, digest: int, hop: Hop) -> None:
        """Two equal messages, one with a stamp and one without: clients repeat some, a bridge repeats all."""
        now = self.now()
        if now >= self._suspected_at + SUSPECT_SECONDS:
            self._suspected_at = now
            self._suspects.clear()
        hops = self._suspects.setdefault(digest, {})
        since, times = hops.get(hop, (now, 0))
        if now >= since + REPEAT_SECONDS:
            since, times = now, 0
        hops[hop] = since, times + 1
        if len(self._suspects) >= MOST_SUSPECTS or times >= MOST_REPEATS:
            self._suspects.clear()
            self._sure_until = now + RING_SECONDS

    def found_copy(self, digest: int, hop: Hop) -> None:
        """A message without a stamp was dropped at a hop.

        If it arrived after the message that it is equal to, the broker gets copies. Otherwise it can be the
        client's own message, of which a copy was faster.
        """
        now = self.now()
        known = [entry.since for key in (digest, (digest, hop)) if (entry := self._recent.get(key))]
        if any(self._arrivals.get(digest, now) >= since for since in known):
            self._copies_until = now + RING_SECONDS

    def _remember(self, key: int | tuple[int, Hop], seconds: float) -> None:
        now = self.now()
        if len(self._recent) >= MOST_REMEMBERED:
            self._recent = {one: entry for one, entry in self._recent.items() if entry.until > now}
        entry = self._recent.get(key)
        since = entry.since if entry is not None and entry.until > now else now
        self._recent[key] = _Recent(since, now + seconds, seconds)

    def _is_recent(self, key: int | tuple[int, Hop]) -> bool:
        entry = self._recent.get(key)
        return entry is not None and entry.counts(self.now())


class _Recent:
    """A message that was seen, and the copies of it since."""

    __slots__ = ("copies", "seconds", "since", "until")

    def __init__(self, since: float, until: float, seconds: float) -> None:
        self.since = since
        self.until = until
        self.seconds = seconds
        self.copies = 0

    def counts(self, now: float) -> bool:
        """Whether another one at this time is a copy.

        Bridges that form a ring of their own bring copies for ever, and fast; a client that repeats a message
        is slower, and has its next one forwarded after the time is over.
        """
        if now >= self.until:
            if self.copies < CIRCULATING_RATE * self.seconds or now >= self.until + self.seconds:
                return False
            self.until = now + self.seconds
            self.copies = 0
        self.copies += 1
        return True


class EchoQueue:
    """Messages of one hop that wait while the guard is active, in their order.

    Messages with a stamp pass those that wait, but no message passes one of an agent: markers divide the
    messages of a broker into versions.

    Args:
        hop: the hop.
        guard: the guard of its first broker.
        stamps: reads stamps.
        deliver: takes a message whose time has come.
        later: calls a function after some seconds.

    Attributes:
        waiting: the messages that wait, by number, in order of arrival.
    """

    def __init__(
        self,
        hop: Hop,
        guard: RingGuard,
        stamps: Stamps,
        deliver: Callable[[Publish], None],
        later: Callable[[float, Callable[[], None]], object],
    ) -> None:
        self._hop = hop
        self._guard = guard
        self._stamps = stamps
        self._deliver = deliver
        self._later = later
        self.waiting: dict[int, _Waiting] = {}
        self._equal: dict[int, list[int]] = {}  # numbers of waiting messages without a stamp, by content
        self._number = 0
        self._control = 0  # messages of agents among them
        self._size = 0
        self._has_timer = False

    def arrive(self, message: Publish) -> None:
        """Receive a message from the hop's own broker."""
        guard = self._guard
        leaves_at = 0.0
        content = 0
        is_control = message.topic.startswith("$")
        if not is_control:
            stamp = self._stamps.read(message.stamp) if message.stamp else None
            content = content_hash(message)
            if stamp is None:
                is_copy = guard.is_copy(content, self._hop, is_stamped=False, is_early=True)
                if guard.gets_copies() and not is_copy:
                    leaves_at = guard.leaves_at(content)
            elif stamp.at == self._hop[0] and not stamp.retained:
                guard.saw_stamped(content)
                for number in self._equal.pop(content, ()):  # they are copies, and will be dropped
                    self._let_go(number)
        may_pass = not (is_control or self._control) and not leaves_at
        if may_pass or not (self.waiting or leaves_at):
            self._deliver(message)
            return
        self._number += 1
        self.waiting[self._number] = _Waiting(leaves_at, message, content)
        if leaves_at:
            self._equal.setdefault(content, []).append(self._number)
        self._control += is_control
        self._size += len(message.raw)
        self._release()

    def clear(self) -> None:
        """The connection is lost: the broker repeats what waits."""
        self.waiting.clear()
        self._equal.clear()
        self._control = 0
        self._size = 0

    def _release(self) -> None:
        """Let messages go whose time has come, or which are too many; or all, if the guard is off."""
        guard = self._guard
        had_control = bool(self._control)
        while self.waiting:
            number, first = next(iter(self.waiting.items()))
            wait = first.leaves_at - guard.now()
            if wait > 0 and self._size <= MOST_HELD_BYTES and guard.gets_copies():
                if not self._has_timer:
                    self._has_timer = True
                    self._later(wait, self._wake)
                break
            if numbers := self._equal.get(first.content):
                numbers.remove(number)
                if not numbers:
                    del self._equal[first.content]
            self._let_go(number)
        if had_control and not self._control:  # those that waited for it pass the others now, in their order
            for number in [number for number, one in self.waiting.items() if not one.leaves_at]:
                if number in self.waiting:  # a lost connection has not cleared them
                    self._let_go(number)

    def _let_go(self, number: int) -> None:
        message = self.waiting.pop(number).message
        self._control -= message.topic.startswith("$")
        self._size -= len(message.raw)
        self._deliver(message)

    def _wake(self) -> None:
        self._has_timer = False
        self._release()


class _Waiting(NamedTuple):
    """A message that waits.

    Attributes:
        leaves_at: the time at which it leaves; 0: when those before it have left.
        message: the message.
        content: its hash; 0 for messages of agents.
    """

    leaves_at: float
    message: Publish
    content: int

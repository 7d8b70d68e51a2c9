"""The guard of a swap: each message crosses by the old edge or by the new one, whichever sees it first.

The two edges cut the topic's brokers in two parts. A message that one of the four hops has claimed is dropped
at the others, so it comes to the other part once and never back, though both edges are open for a while.
Claims are in a file before the message is sent on, so that an agent that was killed goes on with them. A
message that comes again on the hop that has claimed it was not finished: it goes on.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path

from broadloom.agents.links.tree_changes import Hops, brokers_reaching
from broadloom.deployment.wiring import Hop
from broadloom.mqtt.client_session import ClientSession, SessionHandler
from broadloom.mqtt.packets import FAILED, Publish

_CLAIM = struct.Struct("<QB")
LOG = logging.getLogger("broadloom.live")
REPEAT_SECONDS = 1.0
TELL_SECONDS = 30.0


class SwapGuard:
    """Claims of messages, by the digest of their id.

    Args:
        hops: the hops of both edges.
        place: the file of the claims, which may be there from before; None: only memory.

    Examples:
        >>> guard = SwapGuard([("a", "b"), ("a", "c")], None)
        >>> guard.claim(("a", "b"), 7), guard.claim(("a", "c"), 7), guard.claim(("a", "b"), 7)
        (True, False, True)
    """

    def __init__(self, hops: Iterable[Hop], place: Path | None) -> None:
        self.hops = frozenset(hops)
        self._number = {hop: number for number, hop in enumerate(sorted(self.hops))}
        self._claims: dict[int, int] = {}
        self._place, self._file = place, -1
        if place is not None:
            if place.exists():
                data = place.read_bytes()
                whole = len(data) // _CLAIM.size * _CLAIM.size
                self._claims = dict(_CLAIM.iter_unpack(data[:whole]))
                os.truncate(place, whole)
            self._file = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def claim(self, hop: Hop, key: int) -> bool:
        """Whether a hop may carry a message.

        Raises:
            OSError: the claim could not be written, and nothing of it is left.
        """
        number = self._number[hop]
        owner = self._claims.get(key)
        if owner is None:
            if self._file >= 0:
                self._write(_CLAIM.pack(key, number))
            self._claims[key] = number
            return True
        return owner == number

    def _write(self, claim: bytes) -> None:
        """Write a claim, or nothing: after a part of one, none could be read."""
        written = os.write(self._file, claim)
        if written < len(claim):  # the disk is full
            os.ftruncate(self._file, os.fstat(self._file).st_size - written)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._place))

    def close(self, forget: bool = False) -> None:
        """Let go of the file; a swap that is over forgets it."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        if forget and self._place is not None:
            self._place.unlink(missing_ok=True)


class Barrier:
    """What has to come where.

    Args:
        needs: the origins whose probes have to come to the beginning of each hop.
        along: the hops over which probes are carried.
    """

    def __init__(self, needs: Mapping[Hop, Iterable[str]], along: Hops) -> None:
        self.missing = {(hop, origin) for hop, origins in needs.items() for origin in origins}
        self.along = along
        self.passed = asyncio.Event()
        self._see()

    def come(self, hop: Hop, origin: str) -> None:
        """A probe has come to the beginning of a hop."""
        self.missing.discard((hop, origin))
        self._see()

    def without(self, away: set[str]) -> bool:
        """Wait no more for what is at brokers that are away, or behind them; whether that is anything."""
        along = [hop for hop in self.along if away.isdisjoint(hop)]
        reached = {hop: set(brokers_reaching(along, hop[0])) for hop, _ in self.missing if hop[0] not in away}
        kept = {(hop, origin) for hop, origin in self.missing if origin in reached.get(hop, ())}
        fewer = len(kept) < len(self.missing)
        self.missing = kept
        self._see()
        return fewer

    def _see(self) -> None:
        if not self.missing:
            self.passed.set()


class ProbeAnswers(SessionHandler):
    """What brokers say to the probes that are published at them.

    Args:
        counts: where refusals are counted.

    Attributes:
        refused_since: when each broker that takes no probes has first refused one.
    """

    def __init__(self, counts: Counter[str]) -> None:
        self._counts = counts
        self.refused_since: dict[str, float] = {}

    def answered(self, session: ClientSession, kind: int, number: int, reason: int) -> None:  # noqa: ARG002
        """PUBACK: the broker has taken a probe, or refuses it."""
        if reason < FAILED:
            self.refused_since.pop(session.broker, None)
            return
        self._counts["probes_refused"] += 1
        if session.broker not in self.refused_since:
            self.refused_since[session.broker] = asyncio.get_running_loop().time()
            LOG.error(
                "broker %r refuses probes (%#x): changes go on without it; let the agent write $broadloom/#",
                session.broker,
                reason,
            )


class Probes:
    """All barriers that are waited for.

    Args:
        agent: a name that no other agent has, and no earlier one had.
        publish: publishes a probe at a broker, if it is there.
        away: which of some brokers have been away, or refused probes, for so long that nobody waits for them.
    """

    def __init__(
        self,
        agent: str,
        publish: Callable[[str, bytes], None],
        away: Callable[[Iterable[str]], set[str]],
    ) -> None:
        self._agent, self._publish, self._away = agent, publish, away
        self._numbers = count()
        self._open: dict[int, Barrier] = {}

    async def pass_through(self, needs: Mapping[Hop, Iterable[str]], along: Hops) -> bool:
        """Wait until a probe of each origin has come to the beginning of each hop; false if some did not."""
        number, barrier = next(self._numbers), Barrier(needs, along)
        concerned = {broker for hop in along for broker in hop} | {origin for _, origin in barrier.missing}
        self._open[number] = barrier
        whole, silent_until = True, asyncio.get_running_loop().time() + TELL_SECONDS
        # At first all: a broker that has refused probes may take them now.
        asked = {origin for _, origin in barrier.missing}
        try:
            while not barrier.passed.is_set():
                if (away := self._away(concerned)) and barrier.without(away):
                    whole = False
                for origin in sorted(asked):
                    self._publish(origin, json.dumps([self._agent, number, origin]).encode())
                with suppress(TimeoutError):
                    await asyncio.wait_for(barrier.passed.wait(), REPEAT_SECONDS)
                asked = {origin for _, origin in barrier.missing}
                if asked and asyncio.get_running_loop().time() > silent_until:
                    silent_until += TELL_SECONDS
                    _tell(barrier)
        finally:
            del self._open[number]
        return whole

    def arrive(self, hop: Hop, message: Publish) -> bool:
        """A probe has come to the beginning of a hop; whether it goes on."""
        try:
            agent, number, origin = json.loads(message.payload())
        except (ValueError, TypeError):
            return False  # somebody else's
        barrier = self._open.get(number) if agent == self._agent and isinstance(number, int) else None
        if barrier is None:
            return False  # of an agent that was killed, or of a barrier that is passed
        barrier.come(hop, str(origin))
        return hop in barrier.along


def _tell(barrier: Barrier) -> None:
    """Say why a change takes so long; a queue may be long, so that it waits on."""
    hop, origin = min(barrier.missing)
    LOG.warning(
        "a change still waits for a probe of broker %r at link %s: its queue is long, or the agent may not "
        "read and write $broadloom/# there",
        origin,
        "-".join(hop),
    )

"""Guards and barriers of a swap of two edges.

During a swap each message crosses by the old edge or by the new one, whichever receives it first.

The two edges divide the topic's brokers in two parts. A message that one of the four hops has claimed is
dropped at the others, so it reaches the other part once and never returns, although both edges are open for a
while. A claim is in a file before the message is forwarded, so it survives a killed process. A message that
arrives again on the hop that has claimed it was not finished, and is forwarded.

A barrier waits until everything that brokers received before it has arrived. A probe is a message of the
agent. Published at a broker, it enters the queue of every link there behind all messages that the broker has
received before, and forwarders carry it along the hops of a topic in the same order. So when a probe of each
broker has arrived at the end of an edge, so has every message published at any of them before the probes.
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
from broadloom.deployment import Hop
from broadloom.errors import StorageError
from broadloom.mqtt.client_session import ClientSession, SessionHandler
from broadloom.mqtt.packets import FAILED, Publish
from broadloom.storage import BINARY

_CLAIM = struct.Struct("<QB")
LOG = logging.getLogger("broadloom.live")
REPEAT_SECONDS = 1.0
REPORT_SECONDS = 30.0


class SwapGuard:
    """Claims of messages by hops, by the digest of the message id.

    Args:
        hops: the hops of both edges.
        path: the file of the claims, which can exist already; None: memory only.

    Examples:
        >>> guard = SwapGuard([("a", "b"), ("a", "c")], None)
        >>> guard.claim(("a", "b"), 7), guard.claim(("a", "c"), 7), guard.claim(("a", "b"), 7)
        (True, False, True)
    """

    def __init__(self, hops: Iterable[Hop], path: Path | None) -> None:
        self.hops = frozenset(hops)
        self._number = {hop: number for number, hop in enumerate(sorted(self.hops))}
        self._claims: dict[int, int] = {}
        self._path = path
        self._file = -1
        if path is not None:
            if path.exists():
                data = path.read_bytes()
                whole = len(data) // _CLAIM.size * _CLAIM.size
                self._claims = dict(_CLAIM.iter_unpack(data[:whole]))
                os.truncate(path, whole)
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | BINARY, 0o600)

    def claim(self, hop: Hop, key: int) -> bool:
        """Claim a message for a hop; true if the hop can carry it.

        Raises:
            OSError: the claim cannot be written; then no part of it is in the file.
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
        """Write a whole claim or nothing: later claims could not be read after a partial one."""
        written = os.write(self._file, claim)
        if written < len(claim):
            os.ftruncate(self._file, os.fstat(self._file).st_size - written)
            raise StorageError(f"{self._path}: {os.strerror(errno.ENOSPC)}; free some space")

    def close(self, forget: bool = False) -> None:
        """Close the file, and delete it with `forget`, when the swap is done."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        if forget and self._path is not None:
            self._path.unlink(missing_ok=True)


class Barrier:
    """The probes that a change waits for.

    Args:
        needs: per hop, the brokers whose probes must arrive at its first broker.
        along: the hops that forward the probes.
    """

    def __init__(self, needs: Mapping[Hop, Iterable[str]], along: Hops) -> None:
        self.missing = {(hop, origin) for hop, origins in needs.items() for origin in origins}
        self.along = along
        self.passed = asyncio.Event()
        self._check()

    def arrived(self, hop: Hop, origin: str) -> None:
        """A probe has arrived at the first broker of a hop."""
        self.missing.discard((hop, origin))
        self._check()

    def without(self, absent: set[str]) -> bool:
        """Stop waiting for probes at absent brokers or behind them; true if there were any."""
        along = [hop for hop in self.along if absent.isdisjoint(hop)]
        reached = {
            hop: set(brokers_reaching(along, hop[0])) for hop, _ in self.missing if hop[0] not in absent
        }
        kept = {(hop, origin) for hop, origin in self.missing if origin in reached.get(hop, ())}
        fewer = len(kept) < len(self.missing)
        self.missing = kept
        self._check()
        return fewer

    def _check(self) -> None:
        if not self.missing:
            self.passed.set()


class ProbeAnswers(SessionHandler):
    """Acknowledgements of probes.

    Args:
        counts: counts the refusals.

    Attributes:
        refused_since: the time of the first refusal of each broker that refuses probes.
    """

    def __init__(self, counts: Counter[str]) -> None:
        self._counts = counts
        self.refused_since: dict[str, float] = {}

    def acknowledged(self, session: ClientSession, kind: int, number: int, reason: int) -> None:  # noqa: ARG002
        """PUBACK: the broker has accepted a probe, or refuses it."""
        if reason < FAILED:
            self.refused_since.pop(session.broker, None)
            return
        self._counts["probes_refused"] += 1
        if session.broker not in self.refused_since:
            self.refused_since[session.broker] = asyncio.get_running_loop().time()
            LOG.error(
                "broker %r refuses probes (%#x): changes continue without it; "
                "let the agent write $broadloom/#",
                session.broker,
                reason,
            )


class Probes:
    """All pending barriers.

    Args:
        agent: a name that no other agent has or had.
        publish: publishes a probe at a broker, if it is connected.
        absent: returns those of some brokers that have been absent, or have refused probes, for too long.
    """

    def __init__(
        self,
        agent: str,
        publish: Callable[[str, bytes], None],
        absent: Callable[[Iterable[str]], set[str]],
    ) -> None:
        self._agent = agent
        self._publish = publish
        self._absent = absent
        self._numbers = count()
        self._open: dict[int, Barrier] = {}

    async def wait(self, needs: Mapping[Hop, Iterable[str]], along: Hops) -> bool:
        """Wait until a probe of each origin has arrived at each hop; false if some were given up."""
        number = next(self._numbers)
        barrier = Barrier(needs, along)
        concerned = {broker for hop in along for broker in hop} | {origin for _, origin in barrier.missing}
        self._open[number] = barrier
        complete = True
        next_report = asyncio.get_running_loop().time() + REPORT_SECONDS
        # First to all: a broker that has refused probes can accept them now.
        origins = {origin for _, origin in barrier.missing}
        try:
            while not barrier.passed.is_set():
                if (absent := self._absent(concerned)) and barrier.without(absent):
                    complete = False
                for origin in sorted(origins):
                    self._publish(origin, json.dumps([self._agent, number, origin]).encode())
                with suppress(TimeoutError):
                    await asyncio.wait_for(barrier.passed.wait(), REPEAT_SECONDS)
                origins = {origin for _, origin in barrier.missing}
                if origins and asyncio.get_running_loop().time() > next_report:
                    next_report += REPORT_SECONDS
                    _report(barrier)
        finally:
            del self._open[number]
        return complete

    def arrive(self, hop: Hop, message: Publish) -> bool:
        """A probe has arrived at the first broker of a hop; true if the hop forwards it."""
        try:
            agent, number, origin = json.loads(message.payload())
        except (ValueError, TypeError):
            return False  # not a probe of this agent
        barrier = self._open.get(number) if agent == self._agent and isinstance(number, int) else None
        if barrier is None:
            return False  # of an earlier agent, or of a barrier that has passed
        barrier.arrived(hop, str(origin))
        return hop in barrier.along


def _report(barrier: Barrier) -> None:
    """Log the reason why a change takes long; the change continues to wait."""
    hop, origin = min(barrier.missing)
    LOG.warning(
        "a change still waits for a probe of broker %r at link %s: its queue is long, or the agent is not "
        "allowed to read and write $broadloom/# there",
        origin,
        "-".join(hop),
    )

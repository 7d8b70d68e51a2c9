"""Barriers: everything that was on its way before a moment has come through.

A probe is a message of the agent's own. Published at a broker, it goes into the queue of every link there
behind all that the broker has taken before, and lanes carry it along the hops of a topic in the same order.
So when a probe of each broker has come to the end of an edge, so has every message that was published at any
of them before the probes were.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from itertools import count

from broadloom.deployment.linkd.packets import Publish
from broadloom.deployment.linkd.steps import Hops
from broadloom.deployment.wiring import Hop

REPEAT_SECONDS = 1.0


class Barrier:
    """What has to come where."""

    def __init__(self, needs: Mapping[Hop, Iterable[str]], along: Hops) -> None:
        self.missing = {(hop, origin) for hop, origins in needs.items() for origin in origins}
        self.along = along
        self.passed = asyncio.Event()
        if not self.missing:
            self.passed.set()

    def come(self, hop: Hop, origin: str) -> None:
        """A probe has come to the beginning of a hop."""
        self.missing.discard((hop, origin))
        if not self.missing:
            self.passed.set()


class Probes:
    """All barriers that are waited for.

    Args:
        agent: a name that no other agent has, and no earlier one had.
        publish: publishes a probe at a broker; false if the broker is not there.
    """

    def __init__(self, agent: str, publish: Callable[[str, bytes], bool]) -> None:
        self._agent, self._publish = agent, publish
        self._numbers = count()
        self._open: dict[int, Barrier] = {}

    async def pass_through(
        self, needs: Mapping[Hop, Iterable[str]], along: Hops, patience: float
    ) -> set[str]:
        """Wait until a probe of each origin has come to the beginning of each hop.

        Args:
            needs: the origins for each hop.
            along: the hops over which probes are carried.
            patience: how many seconds to wait if a broker is away.

        Returns:
            Brokers whose probes were not waited for any more, since they or one on the way were away.
        """
        number, barrier = next(self._numbers), Barrier(needs, along)
        self._open[number] = barrier
        try:
            return await self._wait(number, barrier, patience)
        finally:
            del self._open[number]

    async def _wait(self, number: int, barrier: Barrier, patience: float) -> set[str]:
        concerned = {broker for hop in barrier.along for broker in hop}
        concerned |= {origin for _, origin in barrier.missing}
        patient_until = asyncio.get_running_loop().time() + patience
        while not barrier.passed.is_set():
            late = {origin for _, origin in barrier.missing}
            away = [broker for broker in concerned if not self._send(number, broker, broker in late)]
            if away and asyncio.get_running_loop().time() > patient_until:
                return late
            with suppress(TimeoutError):
                await asyncio.wait_for(barrier.passed.wait(), REPEAT_SECONDS)
        return set()

    def _send(self, number: int, broker: str, late: bool) -> bool:
        """Publish a probe at a broker, or nothing; whether the broker is there."""
        payload = json.dumps([self._agent, number, broker]).encode() if late else b""
        return self._publish(broker, payload)

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

"""Barriers: everything that was on its way before a moment has come through.

A probe is a message of the agent's own. Published at a broker, it goes into the queue of every link there behind
all that the broker has taken before, and lanes carry it along the hops of a topic in the same order. So when a
probe of each broker has come to the end of an edge, so has every message that was published at any of them
before the probes were.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping
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
            patience: how many seconds to wait for brokers that are away.

        Returns:
            Brokers that were away too long, and were not waited for any more.
        """
        number, barrier = next(self._numbers), Barrier(needs, along)
        self._open[number] = barrier
        loop, away = asyncio.get_running_loop(), set[str]()
        end = loop.time() + patience
        try:
            while not barrier.passed.is_set():
                sent = {
                    origin: self._publish(origin, self._payload(number, origin))
                    for origin in {origin for _, origin in barrier.missing}
                }
                try:
                    await asyncio.wait_for(barrier.passed.wait(), REPEAT_SECONDS)
                except TimeoutError:
                    if loop.time() > end:
                        away |= {origin for origin, done in sent.items() if not done}
                        for hop, origin in [one for one in barrier.missing if one[1] in away]:
                            barrier.come(hop, origin)
        finally:
            del self._open[number]
        return away

    def arrive(self, hop: Hop, message: Publish) -> bool:
        """A probe has come to the beginning of a hop; whether it goes on."""
        agent, number, origin = json.loads(message.payload())
        barrier = self._open.get(number) if agent == self._agent else None
        if barrier is None:
            return False  # of an agent that was killed, or of a barrier that is passed
        barrier.come(hop, origin)
        return hop in barrier.along

    def _payload(self, number: int, origin: str) -> bytes:
        return json.dumps([self._agent, number, origin]).encode()

"""Round-trip times from one site to the brokers of a fleet, measured by TCP connections."""

from __future__ import annotations

import asyncio
import random
import socket
import statistics
import struct
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress

from broadloom.mqtt.client_session import watched_task
from broadloom.mqtt.endpoint import Endpoint

SPACING_SECONDS = 0.25  # between two measurements
INTERVAL_SECONDS = 30.0  # between two measurements of one broker, once it has a few
DEADLINE_SECONDS = 5.0
FIRST_SAMPLES = 3
SAMPLES = 5
MOVED_SHARE, MOVED_MS = 0.25, 0.2  # a change below either is not told
TELL_SECONDS = 1.0
_RTT = struct.Struct("=I")
_RTT_AT = 68  # of the smoothed round-trip time in Linux's struct tcp_info, in microseconds


class RoundTrips:
    """Measures the round trip to each other broker, a few times per minute, and tells what has moved.

    The time is that of the TCP handshake, as the system measures it (Linux), so that neither TLS nor a busy
    process adds to it. A broker that does not answer keeps its last value.

    Args:
        endpoints: the other brokers' endpoints by their names.
        on_round_trips: called in the event loop with all medians in milliseconds, when one is new or has
            moved by more than a quarter.
        interval: seconds between two measurements of one broker.
    """

    def __init__(
        self,
        endpoints: Mapping[str, Endpoint],
        on_round_trips: Callable[[dict[str, float]], None],
        interval: float = INTERVAL_SECONDS,
    ) -> None:
        self._on_round_trips = on_round_trips
        self._interval = interval
        self._endpoints = dict(endpoints)
        self._samples: dict[str, deque[float]] = {}
        self._due: dict[str, float] = {}
        self._told: dict[str, float] = {}
        self._tell_at = 0.0
        self._task: asyncio.Task[None] | None = None
        self._measuring: set[asyncio.Task[None]] = set()

    def update(self, endpoints: Mapping[str, Endpoint]) -> None:
        """Replace the brokers; those with a new endpoint are measured anew."""
        for name, endpoint in self._endpoints.items():
            new = endpoints.get(name)
            if new is None or (new.host, new.port) != (endpoint.host, endpoint.port):
                self._samples.pop(name, None)
                self._due.pop(name, None)
                self._told.pop(name, None)
        self._endpoints = dict(endpoints)

    def medians(self) -> dict[str, float]:
        """The median of the latest samples per broker, in milliseconds."""
        return {name: round(statistics.median(times), 3) for name, times in self._samples.items() if times}

    async def start(self) -> None:
        """Begin to measure."""
        self._task = watched_task(self._run())

    async def stop(self) -> None:
        """End."""
        tasks = [*self._measuring, *([self._task] if self._task is not None else ())]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            name = self._next(loop.time())
            if name is not None:
                self._due[name] = loop.time() + 2 * DEADLINE_SECONDS
                task = watched_task(self._measure(name, self._endpoints[name]))
                self._measuring.add(task)
                task.add_done_callback(self._measuring.discard)
            self._tell(loop.time())
            await asyncio.sleep(SPACING_SECONDS * random.uniform(0.8, 1.2))  # noqa: S311

    def _next(self, now: float) -> str | None:
        """The broker whose measurement is the most overdue; None: none is due."""
        name = min(self._endpoints, key=lambda one: (self._due.get(one, 0.0), one), default=None)
        return name if name is not None and self._due.get(name, 0.0) <= now else None

    async def _measure(self, name: str, endpoint: Endpoint) -> None:
        seconds = None
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(DEADLINE_SECONDS):
                seconds = await handshake_seconds(endpoint.host, endpoint.port)
        if self._endpoints.get(name) is not endpoint:
            return  # replaced meanwhile
        if seconds is not None:
            self._samples.setdefault(name, deque(maxlen=SAMPLES)).append(seconds * 1_000)
        few = seconds is not None and len(self._samples[name]) < FIRST_SAMPLES
        wait = min(1.0, self._interval) if few else self._interval
        now = asyncio.get_running_loop().time()
        self._due[name] = now + wait * random.uniform(0.8, 1.2)  # noqa: S311

    def _tell(self, now: float) -> None:
        medians = self.medians()
        moved = any(_has_moved(self._told.get(name), ms) for name, ms in medians.items())
        if moved and now >= self._tell_at:
            self._told = medians
            self._tell_at = now + TELL_SECONDS
            self._on_round_trips(dict(medians))


async def handshake_seconds(host: str, port: int) -> float | None:
    """The round trip of a TCP handshake; None: a packet was lost, so that it cannot be told.

    Raises:
        OSError: the broker does not answer.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    family, kind, protocol, _, address = found[0]
    with socket.socket(family, kind, protocol) as one:
        one.setblocking(False)
        began = loop.time()
        await loop.sock_connect(one, address)
        elapsed = loop.time() - began
        measured = _system_seconds(one)
        return elapsed if measured is None else measured or None


def _system_seconds(one: socket.socket) -> float | None:
    """The round trip that the system has measured; None: it does not tell."""
    option = getattr(socket, "TCP_INFO", None)
    if option is None:
        return None
    try:
        info = one.getsockopt(socket.IPPROTO_TCP, option, 104)
    except OSError:
        return None
    if len(info) < _RTT_AT + _RTT.size:
        return None
    (microseconds,) = _RTT.unpack_from(info, _RTT_AT)
    return microseconds / 1e6


def _has_moved(before: float | None, now: float) -> bool:
    """Whether a time is new, or differs from the one that was told by more than a quarter."""
    if before is None:
        return True
    return abs(now - before) > max(MOVED_SHARE * before, MOVED_MS)

"""Watch of bridges at a Mosquitto that Broadloom did not make; they can close a ring.

A bridge announces itself on a retained topic at both of its ends, unless it has `notifications false`. Then
the broker's log still tells when it connects: at the end that made it, and at the other one if it speaks
MQTT 3.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable

from broadloom.checks import shown
from broadloom.mqtt.client_session import BrokerRefusedError, ClientSession, SessionHandler
from broadloom.mqtt.endpoint import Endpoint
from broadloom.mqtt.packets import PUBACK, Connack, Publish, acknowledgement
from broadloom.mqtt.topic_filters import is_own_name

# One retained topic per bridge, at both of its ends, unless it has `notifications false`.
PREFIX, SUFFIX = "$SYS/broker/connection/", "/state"
UPTIME = "$SYS/broker/uptime"
MOST_BRIDGES = 1_000
SLACK_SECONDS = 3.0  # of the broker's uptime
# Notices in the log of a Mosquitto.
_CONNECTS = re.compile(
    r"(?:Connecting bridge (?:\(step \d\) )?(\S+) \(|New bridge connected from \S+ as (\S+) \()"
)
_ENDS = re.compile(
    r"(?:Client|Socket error on client) (\S+?)(?: closed its| disconnected|, disconnecting| has exceeded)"
)


class ForeignBridges(SessionHandler):
    """Follows the bridges of one Mosquitto that are not ours.

    Args:
        broker: the broker's name.
        endpoint: its endpoint.
        on_problem: called in the event loop with one line per bridge, when it is seen up.
        on_change: called in the event loop when `names` has changed.
        on_solved: called in the event loop with the line of a bridge that is gone.

    Attributes:
        before_subscribing: awaited when the session is connected, before it subscribes; None: nothing is.
    """

    def __init__(
        self,
        broker: str,
        endpoint: Endpoint,
        on_problem: Callable[[str], None],
        on_change: Callable[[], None] = lambda: None,
        on_solved: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.before_subscribing: Callable[[], Awaitable[None]] | None = None
        self._announced: set[str] = set()
        self._logged: dict[str, float] = {}  # the time at which the log told of it
        self._broker = broker
        self._on_problem = on_problem
        self._on_change = on_change
        self._on_solved = on_solved
        self._reported: dict[str, str] = {}  # problems by bridge
        self._session = ClientSession(broker, f"broadloom-bridges-{broker}", endpoint, self, kept=False)

    @property
    def names(self) -> set[str]:
        """The names of the foreign bridges that are up."""
        return self._announced | self._logged.keys()

    async def start(self) -> None:
        """Begin to watch."""
        self._session.start()

    async def stop(self) -> None:
        """End."""
        await self._session.stop()

    async def opened(self, session: ClientSession, connack: Connack) -> None:  # noqa: ARG002
        """Subscribe to the states of bridges."""
        if self.before_subscribing is not None:
            await self.before_subscribing()
        try:
            await session.subscribe([f"{PREFIX}+{SUFFIX}", UPTIME], retained=True)
        except BrokerRefusedError:  # a broker of another kind, or one that hides them
            return

    def arrived(self, session: ClientSession, message: Publish) -> None:
        """Take the state of a bridge, 1 if it is up, or the time since the broker began."""
        if message.number:
            session.send(acknowledgement(PUBACK, message.number))
        if message.topic == UPTIME:
            self._take_uptime(message.payload())
            return
        name = message.topic.removeprefix(PREFIX).removesuffix(SUFFIX)
        if name == message.topic or is_own_name(name):
            return
        before = self.names
        if message.payload() != b"1":
            self._announced.discard(name)
        elif len(before) < MOST_BRIDGES:
            self._announced.add(name)
            self._report(name)
        self._compare(before)

    def notice(self, event: str) -> None:
        """Take a notice of the broker's log: a bridge connects, or a client is gone."""
        before = self.names
        found = _CONNECTS.match(event)
        if found is not None:
            name = found[1] or found[2]
            if not is_own_name(name) and len(before) < MOST_BRIDGES:
                self._logged[name] = asyncio.get_running_loop().time()
                self._report(name)
        elif (ended := _ENDS.match(event)) is not None:
            self._logged.pop(ended[1], None)
        self._compare(before)

    def _take_uptime(self, payload: bytes) -> None:
        """Forget bridges that connected before the broker was restarted."""
        number = payload.partition(b" ")[0]
        if not number.isdigit() or len(number) > 12:
            return
        began = asyncio.get_running_loop().time() - int(number) - SLACK_SECONDS
        before = self.names
        self._logged = {name: at for name, at in self._logged.items() if at >= began}
        self._compare(before)

    def _compare(self, before: set[str]) -> None:
        if self.names != before:
            for name in list(self._reported):
                if not _is_known(name, self.names):
                    self._on_solved(self._reported.pop(name))
            self._on_change()

    def _report(self, name: str) -> None:
        if not _is_known(name, self._reported) and len(self._reported) < MOST_BRIDGES:
            self._reported[name] = (
                f"broker {self._broker!r} has a bridge of its own, {shown(name)}: messages can arrive "
                "twice or circulate; remove it, or leave its topics out of `carry`"
            )
            self._on_problem(self._reported[name])


def _is_known(name: str, names: Iterable[str]) -> bool:
    """Whether a bridge is among others; the log of the end that made it leaves out the prefix of its name."""
    return any(f".{one}".endswith(f".{name}") or f".{name}".endswith(f".{one}") for one in names)

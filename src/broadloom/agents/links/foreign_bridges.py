"""Watch of bridges at a Mosquitto that Broadloom did not make; they can close a ring."""

from __future__ import annotations

from collections.abc import Callable

from broadloom.checks import shown
from broadloom.mqtt.client_session import BrokerRefusedError, ClientSession, SessionHandler
from broadloom.mqtt.endpoint import Endpoint
from broadloom.mqtt.packets import PUBACK, Connack, Publish, acknowledgement
from broadloom.mqtt.topic_filters import is_own_name

# One retained topic per bridge, at both of its ends, unless it has `notifications false`.
PREFIX, SUFFIX = "$SYS/broker/connection/", "/state"
MOST_BRIDGES = 1_000


class ForeignBridges(SessionHandler):
    """Follows the bridges of one Mosquitto that are not ours.

    Args:
        broker: the broker's name.
        endpoint: its endpoint.
        on_problem: called in the event loop with one line per bridge, when it is first seen up.
        on_change: called in the event loop when `names` has changed.

    Attributes:
        names: the names of the foreign bridges that are up.
    """

    def __init__(
        self,
        broker: str,
        endpoint: Endpoint,
        on_problem: Callable[[str], None],
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self.names: set[str] = set()
        self._broker = broker
        self._on_problem = on_problem
        self._on_change = on_change
        self._reported: set[str] = set()
        self._session = ClientSession(broker, f"broadloom-bridges-{broker}", endpoint, self, kept=False)

    async def start(self) -> None:
        """Begin to watch."""
        self._session.start()

    async def stop(self) -> None:
        """End."""
        await self._session.stop()

    async def opened(self, session: ClientSession, connack: Connack) -> None:  # noqa: ARG002
        """Subscribe to the states of bridges."""
        try:
            await session.subscribe([f"{PREFIX}+{SUFFIX}"], retained=True)
        except BrokerRefusedError:  # a broker of another kind, or one that hides them
            return

    def arrived(self, session: ClientSession, message: Publish) -> None:
        """Take the state of a bridge: 1 if it is up, else 0 or nothing."""
        if message.number:
            session.send(acknowledgement(PUBACK, message.number))
        name = message.topic.removeprefix(PREFIX).removesuffix(SUFFIX)
        if name == message.topic or is_own_name(name):
            return
        before = set(self.names)
        if message.payload() == b"1":
            self._add(name)
        else:
            self.names.discard(name)
        if self.names != before:
            self._on_change()

    def _add(self, name: str) -> None:
        if name in self.names or len(self.names) >= MOST_BRIDGES:
            return
        self.names.add(name)
        if name not in self._reported and len(self._reported) < MOST_BRIDGES:
            self._reported.add(name)
            self._on_problem(
                f"broker {self._broker!r} has a bridge of its own, {shown(name)}: messages can arrive "
                "twice or circulate; remove it, or leave its topics out of `carry`"
            )

"""Messages of a rehearsal: which were published where, and which came to which broker how often."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from broadloom.deployment.flow import Message
from broadloom.deployment.rehearsal._clients import Clients
from broadloom.deployment.targets.mosquitto import MESH
from broadloom.deployment.wiring import Wiring
from broadloom.progress import stage

PAYLOAD_BYTES = 100
# Nothing comes any more after so many seconds without a message.
QUIET_SECONDS = 5.0
SETTLE_SECONDS = 0.3
LONGEST_SECONDS = 120.0


class Tally:
    """Which message was published where, and which came to which broker how often."""

    def __init__(self, wiring: Wiring) -> None:
        self.wiring = wiring
        self.published: list[Message] = []
        self.got: Counter[tuple[str, int]] = Counter()
        self.open: set[tuple[str, int]] = set()
        self.strays = 0
        self._asked = 0

    def publish(self, message: Message) -> int:
        """Note a message; its number."""
        number = len(self.published)
        self.published.append(message)
        self.open.update((broker, number) for broker in self.wiring.wanting(message.topic))
        self._asked += len(self.wiring.wanting(message.topic))
        return number

    def runs_away(self) -> bool:
        """Whether so much has come that messages must be going round."""
        return self.got.total() > 1000 + 20 * self._asked

    def heard(self, broker: str, topic: str, payload: bytes) -> None:
        """Note what a client got; the payload begins with the number of the message."""
        text = payload.split(b" ", 1)[0]
        number = int(text) if text.isdigit() else -1
        known = 0 <= number < len(self.published)
        if known and self.published[number].topic == topic.removeprefix(MESH):
            self.got[broker, number] += 1
            self.open.discard((broker, number))
        else:
            self.strays += 1

    def counts(self, first: int = 0) -> dict[str, int]:
        """What came of the messages from a number on."""
        expected = {
            (broker, number)
            for number in range(first, len(self.published))
            for broker in self.wiring.wanting(self.published[number].topic)
        }
        got = {key: count for key, count in self.got.items() if key[1] >= first}
        return {
            "published": len(self.published) - first,
            "expected": len(expected),
            "missing": len(expected - got.keys()),
            "duplicates": sum(count - 1 for key, count in got.items() if key in expected),
            "unexpected": self.strays + sum(count for key, count in got.items() if key not in expected),
        }


def publish_all(
    clients: Clients, tally: Tally, messages: Mapping[Message, int], size: int = PAYLOAD_BYTES
) -> None:
    """Publish each message so many times, in turn, so that brokers are busy side by side."""
    rounds = max(messages.values(), default=0)
    with stage("publish", len(messages) * rounds) as done:
        for turn in range(rounds):
            for message in (message for message, count in messages.items() if turn < count):
                number = tally.publish(message)
                clients.publish(message.broker, message.topic, f"{number} ".encode().ljust(size, b"."))
                if number % 50 == 49:
                    clients.turn(0)
                    done(number)


def settle(clients: Clients, tally: Tally) -> None:
    """Wait until all has come, or nothing comes any more; and then a little, for what comes twice."""
    with stage("wait for deliveries"):
        wait_quiet(clients, tally, QUIET_SECONDS)
    seen = len(tally.open)
    clients.run(lambda: False, SETTLE_SECONDS)
    if len(tally.open) < seen:
        settle(clients, tally)


def wait_quiet(clients: Clients, tally: Tally, seconds: float, left: int = 0) -> None:
    """Send and receive until no more than `left` is missing, or nothing has come for so long."""
    for _ in range(int(LONGEST_SECONDS / seconds)):
        before = tally.got.total()
        done = clients.run(lambda: len(tally.open) <= left or tally.runs_away(), seconds)
        if done or tally.got.total() == before:
            return

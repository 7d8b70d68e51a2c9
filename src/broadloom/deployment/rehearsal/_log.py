"""What a mosquitto broker says in its log: which links are up, and each message that it got or sent."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from broadloom.deployment.targets.mosquitto import MESH

_LINE = re.compile(
    r"\d+: (?:"
    r"(?P<way>Sending|Received) PUBLISH (?:to|from) (?P<client>\S+) "
    r"\(d\d, q(?P<qos>\d), r\d, m\d+, '(?P<topic>.*)', \.\.\. \((?P<size>\d+) bytes\)\)"
    r"|Bridge r\.(?P<opening>\S+) sending CONNECT"
    r"|Received (?:SUBACK|UNSUBACK|CONNACK) (?:from|on connection) l\.(?P<answered>\S+?)\.?"
    r")\n"
)


class BrokerLog:
    """A log that grows, read as far as it has come.

    Attributes:
        sent: how many messages of each topic went to each client.
        received: how many came from each.
        bytes_sent: the size of all packets to each client.
        answers: of each link that the broker opened, how many of its requests the other end has answered.
    """

    def __init__(self, place: Path) -> None:
        self._file = place.open(encoding="utf-8", errors="replace")
        self._rest = ""
        self.sent: Counter[tuple[str, str]] = Counter()
        self.received: Counter[tuple[str, str]] = Counter()
        self.bytes_sent: Counter[str] = Counter()
        self.answers: Counter[str] = Counter()

    def read(self) -> None:
        """Take in what was written since the last time."""
        text = self._rest + self._file.read()
        whole, newline, self._rest = text.rpartition("\n")
        for line in (whole + newline).splitlines(keepends=True):
            found = _LINE.fullmatch(line)
            if found is None:
                continue
            if found["opening"]:
                self.answers[found["opening"]] = 0
            elif found["answered"]:
                self.answers[found["answered"]] += 1
            elif found["way"] == "Received":
                self.received[found["client"], found["topic"]] += 1
            else:
                self.sent[found["client"], found["topic"]] += 1
                topic = found["topic"].removeprefix(MESH)  # a name of our making, which nobody pays for
                size = packet_size(topic, int(found["size"]), int(found["qos"]))
                self.bytes_sent[found["client"]] += size

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()


def packet_size(topic: str, payload: int, qos: int) -> int:
    """The bytes of a PUBLISH packet of MQTT 3.1.1.

    Examples:
        >>> packet_size("x", 10, 1)
        17
    """
    rest = 2 + len(topic.encode()) + (2 if qos else 0) + payload
    header = 1 + max(1, (rest.bit_length() + 6) // 7)
    return header + rest

"""Probes of one MQTT broker with a session: rights, queue, clock, and what it says about itself.

No client sees a probe: rights to write are tried by messages at QoS 2 that are never released, which
Mosquitto does not deliver, and the queue is tried under `$broadloom/`, which no wildcard of a client matches.
"""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from broadloom.deployment import FleetBroker
from broadloom.discovery.connection_probes import ConnectionProbe, reason_text
from broadloom.discovery.doctor_report import ADVICE, MUST_CHANGE, NOT_SEEN, OK
from broadloom.mqtt.packets import FAILED
from broadloom.mqtt.probe_client import MQTT_311, NOT_AUTHORIZED, ProbeClient, try_writes
from broadloom.mqtt.reserved_topics import INTERNAL_PREFIX
from broadloom.mqtt.topic_filters import common_topic

QUEUE_SECONDS = 15.0
SESSION_SECONDS = 45.0  # of all checks
QUEUE_MESSAGES = 1_100  # a bit more than Mosquitto queues by default
DEFAULT_QUEUE = 1_000
GOOD_QUEUE = "max_queued_messages 100000"
CLOCK_ADVICE, CLOCK_LIMIT = 5.0, 60.0  # seconds
LOG_TAIL = 262_144  # bytes at the end of a log that are searched
VERSION_TOPIC, BRIDGES_TOPIC, LOG_TOPIC = (
    "$SYS/broker/version",
    "$SYS/broker/connection/#",
    "$SYS/broker/log/#",
)
_TIME = re.compile(r"(?:(\d{9,})|(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d)): ")
_ZONE_SECONDS = 900  # time zones differ by multiples of this


class MqttProbe(ConnectionProbe):
    """Checks of one MQTT broker.

    Args:
        broker: the broker.
        carry: the topic filters that links carry.
        deliver: whether to send real messages, which clients can see, to try the right to read.

    Attributes:
        bridges: the client ids of bridges that the broker reports; None: it reports nothing.
        version: the version that the broker reports; empty: none.
        hides_subscriptions: whether the broker does not publish its log lines about subscriptions.
    """

    def __init__(self, broker: FleetBroker, carry: Iterable[str], deliver: bool) -> None:
        super().__init__(broker, carry)
        self.bridges: list[str] | None = None
        self.version = ""
        self.hides_subscriptions = False
        self._deliver = deliver
        self._own_topic = f"{INTERNAL_PREFIX}doctor/{self._random}"
        self._can_use_own_topics = False

    async def run(self) -> None:
        """Run all checks; each ends at its deadline."""
        if await self.enter():
            await self._guarded("session", self._run_with_session(), SESSION_SECONDS)

    async def _run_with_session(self) -> bool:
        async with self._client("main") as main:
            if not await self._guarded("session", self._listen(main)):
                return False
            if not await self._guarded("read", self._try_reads(main)):
                return False
            await self._guarded("write", self._try_writes())
            await self._guarded("queue", self._try_queue(), QUEUE_SECONDS)
            await self._guarded("clock", self._collect_times(main))
            with suppress(OSError):
                await main.disconnect(0)
        return True

    async def _listen(self, main: ProbeClient) -> bool:
        """Open the main session, and read what the broker says about itself."""
        connack = await main.connect()
        if connack.reason:
            self._refused(connack)
            return False
        await main.subscribe([VERSION_TOPIC, BRIDGES_TOPIC, LOG_TOPIC])
        await main.settle()
        heads = BRIDGES_TOPIC.removesuffix("#")
        for message in main.messages:
            if message.topic == VERSION_TOPIC:
                self.version = message.payload.decode(errors="replace")[:60]
        if self.version:
            self.bridges = [
                message.topic.removeprefix(heads).removesuffix("/state")
                for message in main.messages
                if message.topic.startswith(heads) and message.payload
            ]
        self._judge_kind()
        return True

    def _judge_kind(self) -> None:
        is_mosquitto = self.version.startswith("mosquitto")
        if self.version and is_mosquitto != (self._broker.kind == "mosquitto"):
            setting = 'kind = "mosquitto" in fleet.toml' if is_mosquitto else 'kind = "..." in fleet.toml'
            self.add("kind", MUST_CHANGE, f"the broker is {self.version!r}, not {self._broker.kind}", setting)
        elif self.version:
            self.add("kind", OK, self.version)

    async def _try_reads(self, main: ProbeClient) -> bool:
        """Try to subscribe to what links read."""
        own = f"{INTERNAL_PREFIX}#"
        reasons = await self._subscribe_reasons()
        try:
            await main.settle()
        except ConnectionError:  # it was open until the other one began
            found = "a second connection of the same user ends the first; links have several at each broker"
            setting = "a listener without use_username_as_clientid for Broadloom, in mosquitto.conf"
            self.add("client ids", MUST_CHANGE, found, setting)
            return False
        for text, reason in zip(self._carry, reasons, strict=False):
            if reason >= FAILED:
                found = f"no right to read {text}: {reason_text(reason)}"
                self.add("read", MUST_CHANGE, found, self._right("read", text))
        if not any(one.check == "read" for one in self.findings):
            await self._judge_reads()
        reason = (await main.subscribe([self._own_topic]))[0]
        self._can_use_own_topics = reason < FAILED
        if reason >= FAILED:
            found = f"no right to read {own}: {reason_text(reason)}; deploy apply and live links need it"
            self.add("own topics", ADVICE, found, self._right("readwrite", own))
        return True

    async def _judge_reads(self) -> None:
        names = _few(self._carry)
        if self._deliver:
            for text in self._carry:
                await self._try_delivery(text)
        elif self._broker.kind == "mosquitto":
            found = f"subscriptions to {names} are accepted, as always by mosquitto; --deliver tries it"
            self.add("read", OK, found, "")
        else:
            self.add("read", OK, f"subscriptions to {names} are accepted")

    async def _try_delivery(self, text: str) -> None:
        """Send a real message to this client itself; clients that want all topics see it."""
        topic = self._probe_topic(text)
        async with self._client("deliver") as reader, self._client("write") as writer:
            await reader.connect()
            await writer.connect()
            await reader.subscribe([topic])
            reason = await writer.publish(topic, b"broadloom doctor")
            await reader.settle()
            await writer.disconnect(0)
            await reader.disconnect(0)
        if reason >= FAILED:
            found = f"no right to write {text}: {reason_text(reason)}"
            self.add("write", MUST_CHANGE, found, self._right("write", text))
        elif any(message.topic == topic for message in reader.messages):
            self.add("read", OK, f"a message to {text} is delivered")
        else:
            found = f"no right to read {text}: a message to it is not delivered"
            self.add("read", MUST_CHANGE, found, self._right("read", text))

    async def _subscribe_reasons(self) -> bytes:
        """The reason codes of subscriptions to what links carry, in a session that ends at once."""
        async with self._client("read") as client:
            await client.connect()
            reasons = await client.subscribe(self._carry, retained=False)
            await client.disconnect(0)
        return reasons

    async def _try_writes(self) -> bool:
        """Try to publish what links write, by messages that are never released."""
        allowed = None
        if self._broker.kind == "mosquitto" and (self.version or "mosquitto").startswith("mosquitto"):
            topics = [*map(self._probe_topic, self._carry), self._own_topic]
            allowed = await try_writes(lambda: self._client("write"), topics)
        if allowed is None:
            if not self._deliver:
                found = "cannot be tried without messages that clients see; try it with --deliver"
                self.add("write", NOT_SEEN, found)
            elif not any(one.check == "write" for one in self.findings):
                self.add("write", OK, f"messages to {_few(self._carry)} are accepted")
            return True
        tried = {one.setting for one in self.findings if one.check == "write"}  # by real messages
        for text, is_allowed in zip(self._carry, allowed, strict=False):
            setting = self._right("write", text)
            if not is_allowed and setting not in tried:
                found = f"no right to write {text}: {reason_text(NOT_AUTHORIZED)}"
                self.add("write", MUST_CHANGE, found, setting)
        if all(allowed[:-1]):
            self.add("write", OK, f"messages to {_few(self._carry)} are accepted")
        if not allowed[-1]:
            self._can_use_own_topics = False
            own = f"{INTERNAL_PREFIX}#"
            reason = reason_text(NOT_AUTHORIZED)
            found = f"no right to write {own}: {reason}; deploy apply and live links need it"
            self.add("own topics", ADVICE, found, self._right("readwrite", own))
        elif self._can_use_own_topics:
            self.add("own topics", OK, f"messages to {INTERNAL_PREFIX}# are accepted")
        return True

    async def _try_queue(self) -> bool:
        """Count the messages that the broker keeps for an absent client."""
        if self._broker.kind == "rabbitmq":  # its `#` matches all topics, and its queues have no limit
            return True
        if not self._can_use_own_topics:
            found = f"the queue cannot be tried without rights on {INTERNAL_PREFIX}#"
            self.add("queue", NOT_SEEN, found, self._right("readwrite", f"{INTERNAL_PREFIX}#"))
            return True
        async with self._client("queue") as client:
            await client.connect(clean=False, expiry=int(2 * QUEUE_SECONDS))
            await client.subscribe([self._own_topic])
            await client.disconnect(int(2 * QUEUE_SECONDS))
        async with self._client("fill") as client:
            await client.connect(version=MQTT_311)  # which has no receive maximum, so one round trip suffices
            await client.publish_many_311(self._own_topic, QUEUE_MESSAGES)
            await client.disconnect()
        async with self._client("queue") as client:
            connack = await client.connect(clean=False, expiry=int(2 * QUEUE_SECONDS))
            await client.settle()
            kept = len(client.messages)
            await client.disconnect(0)
        self._judge_queue(kept, connack.present)
        return True

    def _judge_queue(self, kept: int, is_present: bool) -> None:
        where = {"mosquitto": "mosquitto.conf", "emqx": "emqx.conf"}.get(self._broker.kind, "the broker")
        setting = {"emqx": "mqtt.max_mqueue_len = 100000"}.get(self._broker.kind, GOOD_QUEUE)
        if not is_present:
            found = "the broker forgets the session of an absent client"
            self.add("queue", MUST_CHANGE, found, "allow persistent sessions")
        elif kept >= QUEUE_MESSAGES:
            self.add("queue", OK, f"{kept:,} messages are kept for an absent client or link")
        else:
            found = f"only {kept:,} of {QUEUE_MESSAGES:,} messages are kept for an absent client or link"
            verdict = ADVICE if kept >= DEFAULT_QUEUE else MUST_CHANGE
            self.add("queue", verdict, found, f"{setting} in {where}")

    async def _collect_times(self, main: ProbeClient) -> bool:
        """Compare the broker's clock with ours, by the lines that it logs about our own connections."""
        await main.settle()
        head = LOG_TOPIC.removesuffix("#")
        lines = [
            (message.payload.decode(errors="replace"), message.arrived)
            for message in main.messages
            if message.topic.startswith(head)
        ]
        topics = {message.topic for message in main.messages}
        self.hides_subscriptions = bool(self.version) and f"{head}M/subscribe" not in topics
        skews = [skew for line, arrived in lines if (skew := log_skew(line, arrived)) is not None]
        if skews:
            self.judge_clock(statistics.median(skews), "its log")
        return True

    def judge_clock(self, skew: float, source: str) -> None:
        """Add a finding about the clock, which is `skew` seconds ahead."""
        direction = "ahead" if skew > 0 else "behind"
        if abs(skew) <= CLOCK_ADVICE:
            self.add("clock", OK, f"within {CLOCK_ADVICE:g} s of this machine's, by {source}")
            return
        found = f"{abs(skew):,.0f} s {direction} of this machine's, by {source}"
        verdict = MUST_CHANGE if abs(skew) > CLOCK_LIMIT else ADVICE
        self.add("clock", verdict, found, "timedatectl set-ntp true on both machines")

    def read_clock_from_log(self, log: Path) -> bool:
        """Compare the clocks by a log file on this machine; false if it has no line about our connections."""
        own = f"broadloom-doctor-{self._random}-"
        try:
            with log.open("rb") as file:
                file.seek(max(0, log.stat().st_size - LOG_TAIL))
                lines = file.read().decode(errors="replace").splitlines()
        except OSError:
            return False
        ours = [line for line in lines if own in line]
        skews = [skew for line in ours if (skew := log_skew(line, time.time())) is not None]
        if skews:
            self.judge_clock(max(skews), str(log))  # the last line is the most recent
        return bool(skews)

    def _probe_topic(self, text: str) -> str:
        """A topic that a filter matches, and that has no other use."""
        return common_topic(text, text, f"broadloom-doctor-{self._random}") or text

    def _right(self, access: str, text: str) -> str:
        """The setting that gives a right."""
        user = self._broker.login.user if self._broker.login is not None else None
        if self._broker.kind == "mosquitto":
            return f"topic {access} {text} " + (f"below `user {user}` in acl_file" if user else "in acl_file")
        if self._broker.kind == "emqx":
            return f"a rule that allows {user or 'all'} to {access} {text} in Access Control, Authorization"
        return f"rabbitmqctl set_topic_permissions for {user or 'guest'}: {access} {text}"


def log_skew(line: str, arrived: float) -> float | None:
    """Seconds that the time in a line of a log is ahead; None: the line has no time.

    A date has no time zone, so only the difference to the nearest quarter of an hour counts.

    Examples:
        >>> log_skew("1700000120: New client", 1700000000.0)
        120.0
        >>> log_skew("New client", 1700000000.0) is None
        True
    """
    match = _TIME.match(line)
    if match is None:
        return None
    if match[1]:
        return float(match[1]) - arrived
    local = datetime.fromisoformat(f"{match[2]}+00:00").timestamp() - arrived
    return (local + _ZONE_SECONDS / 2) % _ZONE_SECONDS - _ZONE_SECONDS / 2


def _few(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more

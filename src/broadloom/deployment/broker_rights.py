"""Rights that `deploy apply` needs at a mosquitto broker, tried without a message that clients see.

The right to read a topic cannot be tried: mosquitto accepts each subscription, and leaves messages out.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from broadloom.deployment.fleet_file import FleetBroker
from broadloom.errors import BroadloomError, UnreachableError
from broadloom.mqtt.packets import FAILED
from broadloom.mqtt.probe_client import ProbeClient, try_writes
from broadloom.mqtt.reserved_topics import INTERNAL_PREFIX
from broadloom.mqtt.topic_filters import common_topic

LINK_STATES = "$SYS/broker/connection/#"
PROBE_SECONDS = 15.0
TOPICS_TRIED = 50  # per broker


class BrokerRights(NamedTuple):
    """What a login can do at a broker.

    Attributes:
        lacking: the rights that it lacks, as rules of a mosquitto ACL, such as `topic write x`.
        states: the states of links that the broker shows, by topic; empty also if mosquitto does not let the
            login read them.
    """

    lacking: tuple[str, ...]
    states: dict[str, bytes]


def try_rights(broker: FleetBroker, filters: Iterable[str]) -> BrokerRights:
    """Try the rights of the login of a broker.

    Args:
        broker: the broker.
        filters: the topic filters that links carry there.

    Raises:
        UnreachableError: the broker does not answer.
    """
    try:
        return asyncio.run(asyncio.wait_for(_try_all(broker, sorted(filters)), PROBE_SECONDS))
    except BroadloomError:
        raise
    except (OSError, TimeoutError) as error:
        reason = str(error) or f"no answer in {PROBE_SECONDS:g} s"
        raise UnreachableError(
            f"the rights of the login of broker {broker.name!r} cannot be tried: {reason}"
        ) from error


async def _try_all(broker: FleetBroker, filters: Sequence[str]) -> BrokerRights:
    code = secrets.token_hex(6)

    def client(name: str) -> ProbeClient:
        context = broker.tls_context()
        name = f"broadloom-apply-{code}-{name}"
        return ProbeClient(broker.host_and_port(), name, broker.mqtt_login(), context)

    own, all_own = f"{INTERNAL_PREFIX}rights/{code}", f"{INTERNAL_PREFIX}#"
    lacking: dict[str, None] = {}
    async with client("read") as reader:
        await reader.connect()
        reasons = await reader.subscribe([own, LINK_STATES])
        async with client("write") as writer:
            await writer.connect()
            refusal = await writer.publish(own, b"")
            await writer.disconnect(0)
        await reader.settle()
        arrived = {message.topic: message.payload for message in reader.messages}
        states = {topic: state for topic, state in arrived.items() if topic.startswith(LINK_STATES[:-1])}
        if own not in arrived or refusal >= FAILED:
            lacking[f"topic readwrite {all_own}"] = None
        if reasons[1] >= FAILED:
            lacking[f"topic read {LINK_STATES}"] = None
        tried = filters[:TOPICS_TRIED]
        reasons = await reader.subscribe(tried, retained=False) if tried else b""
        for text, reason in zip(tried, reasons, strict=True):
            if reason >= FAILED:
                lacking[f"topic read {text}"] = None
        await reader.disconnect(0)
    topics = [common_topic(text, text, f"broadloom-apply-{code}") or text for text in tried]
    allowed = await try_writes(lambda: client("write"), topics)
    for text, is_allowed in zip(tried, allowed or [True] * len(tried), strict=True):
        if not is_allowed:
            lacking[f"topic write {text}"] = None
    return BrokerRights(tuple(lacking), states)

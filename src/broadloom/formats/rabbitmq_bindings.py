"""Parser of RabbitMQ bindings: `definitions.json`, or the list that `GET /api/bindings` returns."""

import re
from collections.abc import Iterator
from typing import Any

from broadloom.formats.dump_rows import DumpFormat, DumpRow, DumpText, entries, raw, string
from broadloom.model import Reason

_MQTT_QUEUE = re.compile(r"mqtt-subscription-(.*)qos[01]")
# Exchanges that every broker has and that do not route by topic; the first is the default exchange.
_NOT_BY_TOPIC = {"", "amq.direct", "amq.fanout", "amq.headers", "amq.match"}
# The beginnings of the names of exchanges and queues of our links.
_OWN = ("broadloom.", "federation: broadloom.", "tco.link.")
_TO_MQTT = str.maketrans("./*", "/.+")


def parse(text: DumpText) -> Iterator[DumpRow]:
    """One row per binding; the client is the owner of the MQTT queue, or else the queue itself.

    Examples:
        >>> binding = '{"source": "amq.topic", "destination": "mqtt-subscription-c1qos1", '
        >>> binding += '"destination_type": "queue", "routing_key": "t.*.temp"}'
        >>> next(parse(DumpText.of(f'{{"bindings": [{binding}]}}')))[1:4]
        (None, 'c1', 't/+/temp')
    """
    not_by_topic = _NOT_BY_TOPIC | _other_exchanges(text)
    for entry in entries(text, "bindings"):
        yield entry if isinstance(entry, DumpRow) else _row(entry, not_by_topic)


def _other_exchanges(text: DumpText) -> set[str]:
    """The exchanges whose type in the definitions is not topic."""
    listed = entries(text, "exchanges") if text.contains('"exchanges"') else ()
    exchanges = [entry for entry in listed if not isinstance(entry, DumpRow) and "type" in entry]
    return {str(exchange.get("name")) for exchange in exchanges if exchange["type"] != "topic"}


def to_mqtt(key: str) -> str:
    """A routing key as an MQTT topic filter, as RabbitMQ's MQTT plugin translates it.

    Examples:
        >>> to_mqtt("a.*.#")
        'a/+/#'
    """
    return key.translate(_TO_MQTT)


def _row(binding: dict[str, Any], not_by_topic: set[str]) -> DumpRow:
    queue = string(binding, "destination")
    key = string(binding, "routing_key")
    ends = (queue or "", string(binding, "source") or "")
    if any(name.startswith(_OWN) for name in ends):
        return DumpRow(raw(binding), None, queue, key, Reason.OWN)
    if binding.get("destination_type") == "exchange":
        return DumpRow(raw(binding), None, queue, key, Reason.BETWEEN_EXCHANGES)
    if binding.get("source", "amq.topic") in not_by_topic:
        return DumpRow(raw(binding), None, queue, key, Reason.NO_TOPIC_EXCHANGE)
    mqtt = _MQTT_QUEUE.fullmatch(queue or "")
    return DumpRow(raw(binding), None, mqtt[1] if mqtt else queue, key and to_mqtt(key))


FORMAT = DumpFormat(
    "rabbitmq",
    "RabbitMQ's definitions.json, or GET /api/bindings (JSON)",
    parse,
    lambda head: any(word in head for word in ('"rabbit_version"', '"bindings"', '"routing_key"')),
)

"""RabbitMQ: `definitions.json`, or the list that `GET /api/bindings` gives."""

import re
from collections.abc import Iterator
from typing import Any

from broadloom.formats._json import entries, raw, string
from broadloom.formats._row import Format, Row
from broadloom.model import Reason

_MQTT_QUEUE = re.compile(r"mqtt-subscription-(.*)qos[01]")
# Exchanges that every broker has and that do not go by topics; the first is the one without a name.
_NO_TOPICS = {"", "amq.direct", "amq.fanout", "amq.headers", "amq.match"}
_TO_MQTT = str.maketrans("./*", "/.+")


def parse(text: str) -> Iterator[Row]:
    """A row a binding; the client is the one whose MQTT queue it is, or the queue.

    Examples:
        >>> binding = '{"source": "amq.topic", "destination": "mqtt-subscription-c1qos1", '
        >>> binding += '"destination_type": "queue", "routing_key": "t.*.temp"}'
        >>> next(parse(f'{{"bindings": [{binding}]}}'))[1:4]
        (None, 'c1', 't/+/temp')
    """
    other = _NO_TOPICS | _no_topic_exchanges(text)
    for entry in entries(text, "bindings"):
        yield entry if isinstance(entry, Row) else _row(entry, other)


def _no_topic_exchanges(text: str) -> set[str]:
    """The exchanges that definitions list with another type than topic."""
    listed = entries(text, "exchanges") if '"exchanges"' in text else ()
    found = [one for one in listed if not isinstance(one, Row) and "type" in one]
    return {str(one.get("name")) for one in found if one["type"] != "topic"}


def to_mqtt(key: str) -> str:
    """A routing key as the MQTT plugin writes it: levels by `/`, one level by `+`.

    Examples:
        >>> to_mqtt("a.*.#")
        'a/+/#'
    """
    return key.translate(_TO_MQTT)


def _row(binding: dict[str, Any], no_topics: set[str]) -> Row:
    queue, key = string(binding, "destination"), string(binding, "routing_key")
    if binding.get("destination_type") == "exchange":
        own = (queue or "").startswith(("tco.link.", "broadloom.link."))
        reason = Reason.OWN if own else Reason.BETWEEN_EXCHANGES
        return Row(raw(binding), None, queue, key, reason)
    if binding.get("source", "amq.topic") in no_topics:
        return Row(raw(binding), None, queue, key, Reason.NO_TOPIC_EXCHANGE)
    mqtt = _MQTT_QUEUE.fullmatch(queue or "")
    return Row(raw(binding), None, mqtt[1] if mqtt else queue, key and to_mqtt(key))


FORMAT = Format(
    "rabbitmq",
    "RabbitMQ's definitions.json, or GET /api/bindings (JSON)",
    parse,
    lambda head: any(word in head for word in ('"rabbit_version"', '"bindings"', '"routing_key"')),
)

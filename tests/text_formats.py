"""Parsers of dumps and logs that are texts."""

from broadloom.formats import (
    emqx_subscriptions,
    kafka_groups,
    mosquitto_log,
    nats_subscriptions,
    rabbitmq_bindings,
    vernemq_sessions,
)

TEXTS = (
    emqx_subscriptions,
    kafka_groups,
    mosquitto_log,
    nats_subscriptions,
    rabbitmq_bindings,
    vernemq_sessions,
)

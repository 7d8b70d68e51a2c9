"""Dumps and logs of brokers: one parser per kind, plain Python over the text of one file."""

from broadloom.formats import (
    emqx_subscriptions,
    kafka_groups,
    mosquitto_log,
    nats_subscriptions,
    rabbitmq_bindings,
    vernemq_sessions,
)
from broadloom.formats.dump_rows import PAGE, DumpFormat, DumpPage, DumpRow, missing_pages_note

# In the order in which a file's beginning is compared with them.
FORMATS: tuple[DumpFormat, ...] = (
    mosquitto_log.FORMAT,
    kafka_groups.FORMAT,
    vernemq_sessions.FORMAT,
    nats_subscriptions.FORMAT,
    rabbitmq_bindings.FORMAT,
    emqx_subscriptions.FORMAT,
)

__all__ = ["FORMATS", "PAGE", "DumpFormat", "DumpPage", "DumpRow", "missing_pages_note"]

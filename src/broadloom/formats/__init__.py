"""Parsers of dumps and logs of brokers, one per kind of dump; plain Python, without Spark."""

from broadloom.formats import (
    emqx_subscriptions,
    kafka_groups,
    mosquitto_db,
    mosquitto_log,
    nats_subscriptions,
    rabbitmq_bindings,
    vernemq_sessions,
)
from broadloom.formats.dump_rows import PAGE, DumpFormat, DumpPage, DumpRow, DumpText, missing_pages_note
from broadloom.formats.missing_subscriptions import DumpProblem, dump_problem

# The first format whose `looks_like` accepts the beginning of a file is chosen.
FORMATS: tuple[DumpFormat, ...] = (
    mosquitto_db.FORMAT,
    mosquitto_log.FORMAT,
    kafka_groups.FORMAT,
    vernemq_sessions.FORMAT,
    nats_subscriptions.FORMAT,
    rabbitmq_bindings.FORMAT,
    emqx_subscriptions.FORMAT,
)

__all__ = [
    "FORMATS",
    "PAGE",
    "DumpFormat",
    "DumpPage",
    "DumpProblem",
    "DumpRow",
    "DumpText",
    "dump_problem",
    "missing_pages_note",
]

"""Dumps and logs of brokers: one small parser a kind, plain Python over the text of one file."""

from broadloom.formats import emqx, kafka, mosquitto, nats, rabbitmq, vernemq
from broadloom.formats._page import PAGE, Page, note
from broadloom.formats._row import Format, Row

# In the order in which a file's beginning is held against them.
FORMATS: tuple[Format, ...] = (
    mosquitto.FORMAT,
    kafka.FORMAT,
    vernemq.FORMAT,
    nats.FORMAT,
    rabbitmq.FORMAT,
    emqx.FORMAT,
)

__all__ = ["FORMATS", "PAGE", "Format", "Page", "Row", "note"]

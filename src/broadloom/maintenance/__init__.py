"""Maintain: what changes when a broker or a subscription comes or goes, without a rebuild (paper 3)."""

from broadloom.maintenance.changes import REBASELINE, SUBSCRIBE, UNSUBSCRIBE, Change
from broadloom.maintenance.dynamics import Drift, fresh_edges
from broadloom.maintenance.event_feed import (
    EVENT_KINDS,
    OF_EVENTS,
    UNKNOWN_KIND,
    AppliedEvent,
    EventFeed,
    EventRow,
    RefusedEvent,
    RoundLog,
    SequenceSet,
    event_of,
    events_of,
    read_events,
)
from broadloom.maintenance.live import Live
from broadloom.maintenance.methods import (
    METHODS,
    NaiveOptions,
    ShadowOptions,
    load_kernels,
    maintain,
    maintain_folders,
    one_algorithm,
)
from broadloom.maintenance.node_columns import brokers_without_address
from broadloom.maintenance.saved_overlay import changes_of, read_state, write_state

__all__ = [
    "EVENT_KINDS",
    "METHODS",
    "OF_EVENTS",
    "REBASELINE",
    "SUBSCRIBE",
    "UNKNOWN_KIND",
    "UNSUBSCRIBE",
    "AppliedEvent",
    "Change",
    "Drift",
    "EventFeed",
    "EventRow",
    "Live",
    "NaiveOptions",
    "RefusedEvent",
    "RoundLog",
    "SequenceSet",
    "ShadowOptions",
    "brokers_without_address",
    "changes_of",
    "event_of",
    "events_of",
    "fresh_edges",
    "load_kernels",
    "maintain",
    "maintain_folders",
    "one_algorithm",
    "read_events",
    "read_state",
    "write_state",
]

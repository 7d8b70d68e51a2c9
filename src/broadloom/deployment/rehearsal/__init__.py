"""Rehearsals of a plan or a change on real brokers on this machine."""

from broadloom.deployment.rehearsal.delivery_counts import RehearsalOutcome
from broadloom.deployment.rehearsal.rehearsals import (
    compare,
    rehearse,
    rehearse_change,
    rehearse_live_change,
    rehearse_rabbitmq,
)

__all__ = [
    "RehearsalOutcome",
    "compare",
    "rehearse",
    "rehearse_change",
    "rehearse_live_change",
    "rehearse_rabbitmq",
]

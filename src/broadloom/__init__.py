"""Broadloom plans, deploys and maintains the overlay of a wide-area publish/subscribe system."""

from broadloom import measures, workload
from broadloom.assignment.assign import assign
from broadloom.catalogue import algorithms
from broadloom.errors import InputError
from broadloom.linking.bounds import lower_bound
from broadloom.linking.improvement import improve
from broadloom.linking.link import link
from broadloom.linking.warm_start import link_change
from broadloom.maintenance.changes import Change
from broadloom.maintenance.live import Live
from broadloom.maintenance.maintain import maintain
from broadloom.measures import is_topic_connected
from broadloom.migration.address import Login
from broadloom.migration.client import MovingClient
from broadloom.migration.control import Request as MoveRequest
from broadloom.migration.moveplan import MovePlan
from broadloom.migration.ordering import plan_moves
from broadloom.migration.running import run_moves
from broadloom.model import (
    AssignmentProblem,
    AssignmentResult,
    Density,
    Grid,
    Interest,
    MarketProblem,
    MarketResult,
    Overlay,
    Plan,
    Weights,
    summarize,
)

__all__ = [
    "AssignmentProblem",
    "AssignmentResult",
    "Change",
    "Density",
    "Grid",
    "InputError",
    "Interest",
    "Live",
    "Login",
    "MarketProblem",
    "MarketResult",
    "MovePlan",
    "MoveRequest",
    "MovingClient",
    "Overlay",
    "Plan",
    "Weights",
    "algorithms",
    "assign",
    "improve",
    "is_topic_connected",
    "link",
    "link_change",
    "lower_bound",
    "maintain",
    "measures",
    "plan_moves",
    "run_moves",
    "summarize",
    "workload",
]

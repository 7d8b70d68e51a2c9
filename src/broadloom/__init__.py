"""Broadloom plans, deploys and maintains the overlay of a wide-area publish/subscribe system."""

from broadloom import measures, workload
from broadloom._version import VERSION
from broadloom.agents.moves import MovePlan, MoveRequest, MovingClient, plan_moves, run_moves
from broadloom.assignment import assign
from broadloom.catalogue import algorithms
from broadloom.errors import (
    BroadloomError,
    InputError,
    InternalError,
    MissingExtraError,
    StorageError,
    UnreachableError,
)
from broadloom.linking import improve, link, link_change, lower_bound
from broadloom.maintenance import Change, Live, maintain
from broadloom.measures import is_topic_connected
from broadloom.model import (
    AssignmentProblem,
    Density,
    Grid,
    Interest,
    MarketProblem,
    Overlay,
    Weights,
    summarize,
)
from broadloom.mqtt import Login
from broadloom.plans import AssignmentResult, MarketResult, Plan

__version__ = VERSION

__all__ = [
    "AssignmentProblem",
    "AssignmentResult",
    "BroadloomError",
    "Change",
    "Density",
    "Grid",
    "InputError",
    "Interest",
    "InternalError",
    "Live",
    "Login",
    "MarketProblem",
    "MarketResult",
    "MissingExtraError",
    "MovePlan",
    "MoveRequest",
    "MovingClient",
    "Overlay",
    "Plan",
    "StorageError",
    "UnreachableError",
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

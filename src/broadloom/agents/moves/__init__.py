"""Moves of live clients between brokers (paper 5, section V): the agent, its API, and the client."""

from broadloom.agents.moves.client_links import ClientLinks, HeldLinks, LinksEverywhere
from broadloom.agents.moves.client_policy import MovePolicy, PolicyRule
from broadloom.agents.moves.client_router import HaproxyRouter
from broadloom.agents.moves.control_messages import (
    MoveRequest,
    Policy,
    PolicyAnswer,
    accept,
    decline,
    stay_until,
)
from broadloom.agents.moves.move_agent import MoveAgent, Timing
from broadloom.agents.moves.move_plans import (
    MovePlan,
    MoveRefusedError,
    PlannedMove,
    RunningMove,
    RunProgress,
    plan_moves,
    run_moves,
)
from broadloom.agents.moves.move_registry import NEXT, Move, MoveState, Resident
from broadloom.agents.moves.move_service import PORT, TOKEN, AgentConfig, MoveService, serving, summarize
from broadloom.agents.moves.moving_client import ClientMessage, MovingClient, OutboxFullError
from broadloom.agents.moves.operator_client import Operator
from broadloom.agents.moves.ordinary_clients import ClientSight, OrdinaryMover, SeenClient
from broadloom.agents.moves.traffic_summary import SentTraffic, Site, live_tables, save_tables, traffic_matrix

__all__ = [
    "NEXT",
    "PORT",
    "TOKEN",
    "AgentConfig",
    "ClientLinks",
    "ClientMessage",
    "ClientSight",
    "HaproxyRouter",
    "HeldLinks",
    "LinksEverywhere",
    "Move",
    "MoveAgent",
    "MovePlan",
    "MovePolicy",
    "MoveRefusedError",
    "MoveRequest",
    "MoveService",
    "MoveState",
    "MovingClient",
    "Operator",
    "OrdinaryMover",
    "OutboxFullError",
    "PlannedMove",
    "Policy",
    "PolicyAnswer",
    "PolicyRule",
    "Resident",
    "RunProgress",
    "RunningMove",
    "SeenClient",
    "SentTraffic",
    "Site",
    "Timing",
    "accept",
    "decline",
    "live_tables",
    "plan_moves",
    "run_moves",
    "save_tables",
    "serving",
    "stay_until",
    "summarize",
    "traffic_matrix",
]

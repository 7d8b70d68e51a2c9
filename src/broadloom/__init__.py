"""Broadloom plans, deploys and maintains the overlay of a wide-area publish/subscribe system.

The public names are loaded at their first use (PEP 562), so that `import broadloom` is quick.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from broadloom._version import VERSION

if TYPE_CHECKING:
    from broadloom import measures, workload
    from broadloom.agents.moves import MovePlan, MoveRequest, MovingClient, plan_moves, run_moves
    from broadloom.assignment.assignment_plan import assign  # mypy cannot find it in the folder
    from broadloom.catalogue import algorithms
    from broadloom.compilation import compile_kernels
    from broadloom.deployment import Fleet
    from broadloom.discovery import DoctorReport, discover, doctor
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
        Publishers,
        Weights,
        summarize,
    )
    from broadloom.mqtt import Login
    from broadloom.plans import AssignmentResult, MarketResult, Plan


__all__ = [
    "AssignmentProblem",
    "AssignmentResult",
    "BroadloomError",
    "Change",
    "Density",
    "DoctorReport",
    "Fleet",
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
    "Publishers",
    "StorageError",
    "UnreachableError",
    "Weights",
    "algorithms",
    "assign",
    "compile_kernels",
    "discover",
    "doctor",
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

__version__ = VERSION

# The folder or module of each public name; a test compares it with the imports above.
_SOURCES = {
    "AssignmentProblem": "broadloom.model",
    "AssignmentResult": "broadloom.plans",
    "BroadloomError": "broadloom.errors",
    "Change": "broadloom.maintenance",
    "Density": "broadloom.model",
    "DoctorReport": "broadloom.discovery",
    "Fleet": "broadloom.deployment",
    "Grid": "broadloom.model",
    "InputError": "broadloom.errors",
    "Interest": "broadloom.model",
    "InternalError": "broadloom.errors",
    "Live": "broadloom.maintenance",
    "Login": "broadloom.mqtt",
    "MarketProblem": "broadloom.model",
    "MarketResult": "broadloom.plans",
    "MissingExtraError": "broadloom.errors",
    "MovePlan": "broadloom.agents.moves",
    "MoveRequest": "broadloom.agents.moves",
    "MovingClient": "broadloom.agents.moves",
    "Overlay": "broadloom.model",
    "Plan": "broadloom.plans",
    "Publishers": "broadloom.model",
    "StorageError": "broadloom.errors",
    "UnreachableError": "broadloom.errors",
    "Weights": "broadloom.model",
    "algorithms": "broadloom.catalogue",
    "assign": "broadloom.assignment.assignment_plan",
    "compile_kernels": "broadloom.compilation",
    "discover": "broadloom.discovery",
    "doctor": "broadloom.discovery",
    "improve": "broadloom.linking",
    "is_topic_connected": "broadloom.measures",
    "link": "broadloom.linking",
    "link_change": "broadloom.linking",
    "lower_bound": "broadloom.linking",
    "maintain": "broadloom.maintenance",
    "measures": "broadloom",
    "plan_moves": "broadloom.agents.moves",
    "run_moves": "broadloom.agents.moves",
    "summarize": "broadloom.model",
    "workload": "broadloom",
}


def __getattr__(name: str) -> Any:
    if name not in _SOURCES:
        raise AttributeError(f"module 'broadloom' has no attribute {name!r}")
    source = _SOURCES[name]
    value = (
        import_module(f"broadloom.{name}") if source == "broadloom" else getattr(import_module(source), name)
    )
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

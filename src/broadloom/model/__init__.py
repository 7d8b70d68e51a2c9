"""What is given and what comes out: plain frozen values over read-only arrays."""

from broadloom.model.assignment import AssignmentProblem
from broadloom.model.density import Density
from broadloom.model.grid import Grid
from broadloom.model.interest import Interest
from broadloom.model.market import MarketProblem
from broadloom.model.overlay import Overlay
from broadloom.model.traffic import summarize
from broadloom.model.weights import Weights

__all__ = [
    "AssignmentProblem",
    "Density",
    "Grid",
    "Interest",
    "MarketProblem",
    "Overlay",
    "Weights",
    "summarize",
]

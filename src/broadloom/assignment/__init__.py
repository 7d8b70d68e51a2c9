"""Assign: which broker serves which subscriber (papers 4 and 5)."""

from broadloom.assignment.market import MARKET_ALGORITHMS
from broadloom.assignment.subscribers import annealing, coreset, greedy, nearest, slp
from broadloom.model import Algorithm, AssignmentProblem, NoOptions


def _content(
    name: str, paper: str, objective: str, summary: str, run: object, options: type = NoOptions
) -> Algorithm:
    """An algorithm for subscriber assignment (paper 4)."""
    return Algorithm(name, "assign", paper, objective, summary, run, options, AssignmentProblem)  # type: ignore[arg-type]


ALGORITHMS: tuple[Algorithm, ...] = (
    _content(
        "gr",
        "4, III",
        "bandwidth",
        "each subscriber in turn where filters grow least",
        greedy.gr,
        greedy.OrderOptions,
    ),
    _content(
        "gr*",
        "4, III",
        "bandwidth",
        "as gr, those with the fewest open candidates first",
        greedy.gr_star,
        greedy.OrderOptions,
    ),
    _content(
        "gr-no-latency",
        "4, VI",
        "bandwidth",
        "as gr, without the latency bound",
        greedy.gr_no_latency,
        greedy.OrderOptions,
    ),
    _content(
        "closest", "4, VI", "latency", "each to the nearest leaf broker that is not full", nearest.closest
    ),
    _content(
        "closest-unbalanced",
        "4, VI",
        "latency",
        "each to the nearest leaf broker",
        nearest.closest_unbalanced,
    ),
    _content("balance", "4, VI", "load", "the least possible load balance factor", greedy.balance),
    _content(
        "slp1",
        "4, IV",
        "bandwidth",
        "filters from a linear program on a sample, then greedily inside them",
        slp.slp1,
        coreset.SlpOptions,
    ),
    _content(
        "slp",
        "4, V",
        "bandwidth",
        "as slp1, from the top of the tree down",
        slp.slp,
        coreset.SlpOptions,
    ),
    _content(
        "broadloom",
        "ours",
        "bandwidth",
        "guarded gr*, then strip moves and annealing; feasible whenever anything is",
        annealing.broadloom,
        annealing.SearchOptions,
    ),
    *MARKET_ALGORITHMS,
)

"""The prototype that the default for markets grew from: softened pairs, four steps of exact prices, descent.

Each step as it was: no breathing, prices of channels toggled exactly, and for pairs no annealing.
"""

import numpy as np
from numpy.typing import NDArray

import broadloom as bl
from broadloom.assignment.market.market_moves import toll_now
from broadloom.assignment.market.market_search import OPENING, _Search
from broadloom.assignment.market.softened import membership, priced_pass
from broadloom.kernels import kernel
from broadloom.measures.core_trees import Core
from broadloom.measures.market import Ledger, core_named, open_ledger, traffic_of


def prototype(problem: bl.MarketProblem, core: str) -> float:
    """Its cost."""
    search = _Search(problem, core)
    greedy = bl.assign(problem, "greedy-packing").broker_of
    found = search._by_pairs(greedy, OPENING, 3)
    if core != "pair":
        found = search.better(
            search.descended(_by_exact_prices(problem, found, core)), search.descended(greedy)
        )
    return search.cost(found)


def _by_exact_prices(problem: bl.MarketProblem, broker_of: NDArray[np.int32], core: str) -> NDArray[np.int32]:
    model, traffic = core_named(problem, core), traffic_of(problem)
    for softness in (4, 4, 2, 2, 1, 1, 0.5, 0.5):
        ledger = open_ledger(problem, broker_of, model)
        degree = membership(softness, int(problem.wants.sum(axis=0).max()) + 1)
        priced_pass(traffic, ledger, _all_tolls(model, ledger), degree)
        broker_of = ledger.broker_of
    return broker_of


@kernel
def _all_tolls(core: Core, ledger: Ledger) -> NDArray[np.float64]:
    """Every channel's price at every broker, at least 0."""
    brokers, channels = ledger.sent.shape
    tolls = np.empty((brokers, channels))
    for b in range(brokers):
        for t in range(channels):
            tolls[b, t] = max(0.0, toll_now(core, ledger, b, t))
    return tolls

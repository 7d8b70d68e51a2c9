"""Prototype of the default for markets: smoothed pairs, eight steps of exact channel prices, exact descent.

Each step as it was: no price cycles, channel prices computed exactly, and no smoothing schedule for pairs.
"""

import numpy as np
from numpy.typing import NDArray

import broadloom as bl
from broadloom.assignment.market.cost_ledger import Core, CostLedger, core_of, open_ledger, traffic_of
from broadloom.assignment.market.market_search import FIRST_BY_PAIRS, MarketSearch, membership, priced_pass
from broadloom.assignment.market.migration import exact_channel_price
from broadloom.kernels import kernel


def prototype(problem: bl.MarketProblem, core: str) -> float:
    """The cost that the prototype reaches."""
    search = MarketSearch(problem, core)
    greedy = bl.assign(problem, "greedy-packing").broker_of
    found = search.descend_by_pairs(greedy, FIRST_BY_PAIRS, 3)
    if core != "pair":
        found = search.cheapest(
            search.descend(_descend_by_exact_prices(problem, found, core)), search.descend(greedy)
        )
    return search.cost(found)


def _descend_by_exact_prices(
    problem: bl.MarketProblem, broker_of: NDArray[np.int32], core: str
) -> NDArray[np.int32]:
    model = core_of(problem, core)
    traffic = traffic_of(problem)
    for smoothing in (4, 4, 2, 2, 1, 1, 0.5, 0.5):
        ledger = open_ledger(problem, broker_of, model)
        degree = membership(smoothing, int(problem.wants.sum(axis=0).max()) + 1)
        priced_pass(traffic, ledger, _all_channel_prices(model, ledger), degree)
        broker_of = ledger.broker_of
    return broker_of


@kernel
def _all_channel_prices(core: Core, ledger: CostLedger) -> NDArray[np.float64]:
    """Every channel's price at every broker, at least 0."""
    brokers, channels = ledger.sent.shape
    prices = np.empty((brokers, channels))
    for b in range(brokers):
        for t in range(channels):
            prices[b, t] = max(0.0, exact_channel_price(core, ledger, b, t))
    return prices

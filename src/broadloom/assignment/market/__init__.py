"""Minimum-cost assignment of users to brokers (paper 5)."""

from typing import Any

from broadloom.assignment.market.cost_ledger import MovingCost
from broadloom.assignment.market.market_optimum import IlpOptions, ilp
from broadloom.assignment.market.market_search import MarketSearchOptions, broadloom
from broadloom.assignment.market.migration import MigrationOptions, migration
from broadloom.assignment.market.packing import MarketOptions, clustering, greedy_packing, random
from broadloom.assignment.market.steiner_mixing import MixingOptions, steiner_mixing
from broadloom.model import Algorithm, MarketProblem

__all__ = [
    "MARKET_ALGORITHMS",
    "IlpOptions",
    "MarketOptions",
    "MarketSearchOptions",
    "MigrationOptions",
    "MovingCost",
]


def _market(name: str, paper: str, summary: str, run: Any, options: type = MarketOptions) -> Algorithm:
    return Algorithm(name, "assign", paper, "cost", summary, run, options, MarketProblem)


MARKET_ALGORITHMS: tuple[Algorithm, ...] = (
    _market("random", "5, VI-B", "each user to a random broker with spare capacity", random),
    _market(
        "greedy-packing", "5, Alg. 1", "each user to the cheapest broker with spare capacity", greedy_packing
    ),
    _market("clustering", "5, Alg. 2", "users with much traffic between them share a broker", clustering),
    _market("steiner-mixing", "5, Alg. 3", "draw from one tree per channel", steiner_mixing, MixingOptions),
    _market(
        "migration",
        "5, IV-C",
        "users move one by one to where the cost falls most",
        migration,
        MigrationOptions,
    ),
    _market("ilp", "5, II-B", "the least cost, by integer programming", ilp, IlpOptions),
    _market(
        "broadloom",
        "ours",
        "local search with smoothed membership, then exact descent",
        broadloom,
        MarketSearchOptions,
    ),
)

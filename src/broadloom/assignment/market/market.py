"""The algorithms for markets (paper 5), under the names that users ask for."""

from typing import Any

from broadloom.assignment.market import clustering, market_ilp, market_search, migration, packing, steiner
from broadloom.assignment.market.market_options import MarketOptions
from broadloom.model import Algorithm, MarketProblem


def _market(name: str, paper: str, summary: str, run: Any, options: type = MarketOptions) -> Algorithm:
    return Algorithm(name, "assign", paper, "cost", summary, run, options, MarketProblem)


MARKET_ALGORITHMS: tuple[Algorithm, ...] = (
    _market("random", "5, VI-B", "each user to a random broker with room", packing.random),
    _market(
        "greedy-packing", "5, Alg. 1", "each user to the cheapest broker with room", packing.greedy_packing
    ),
    _market(
        "clustering",
        "5, Alg. 2",
        "users with much traffic between them share a broker",
        clustering.clustering,
    ),
    _market(
        "steiner-mixing", "5, Alg. 3", "draw from a tree a publisher and channel", steiner.steiner_mixing
    ),
    _market(
        "migration",
        "5, IV-C",
        "users move one by one to where the cost falls most",
        migration.migration,
        migration.MigrationOptions,
    ),
    _market(
        "ilp", "5, II-B", "the least cost, by integer programming", market_ilp.ilp, market_ilp.IlpOptions
    ),
    _market(
        "broadloom",
        "ours",
        "local search with softened membership, then exact descent",
        market_search.broadloom,
        market_search.SearchOptions,
    ),
)

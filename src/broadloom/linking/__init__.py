"""Link: which brokers are linked, so that every topic stays connected at the least cost (papers 1 and 2)."""

from broadloom.linking import greedy
from broadloom.model.algorithm import Algorithm

ALGORITHMS: tuple[Algorithm, ...] = (
    Algorithm("gm", "link", "1 and 2", "edges", "add the edge with the highest contribution", greedy.gm),
)

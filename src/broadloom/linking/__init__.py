"""Link: which brokers are linked, so that every topic stays connected at the least cost (papers 1 and 2)."""

from broadloom.linking import exact, greedy
from broadloom.model.algorithm import Algorithm

ALGORITHMS: tuple[Algorithm, ...] = (
    Algorithm("gm", "link", "1 and 2", "edges", "add the edge with the highest contribution", greedy.gm),
    Algorithm(
        "exact",
        "link",
        "ours",
        "weight",
        "the least total weight, by integer programming; for small instances",
        exact.exact,
        exact.ExactOptions,
    ),
)

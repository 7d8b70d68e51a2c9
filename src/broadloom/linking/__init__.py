"""Link: which brokers are linked, so that every topic stays connected at the least cost (papers 1 and 2)."""

from broadloom.linking import constant_diameter, greedy, guided, tree
from broadloom.model.algorithm import Algorithm

ALGORITHMS: tuple[Algorithm, ...] = (
    Algorithm(
        "trmaw", "link", "1, Alg. 1", "total weight", "a minimum spanning tree for each topic", tree.trmaw
    ),
    Algorithm("gm", "link", "1 and 2", "edges", "add the edge with the highest contribution", greedy.gm),
    Algorithm(
        "cd-oda",
        "link",
        "2, VI",
        "degree at diameter 2",
        "stars around the node that shares topics with the most nodes",
        constant_diameter.cd_oda,
    ),
    Algorithm(
        "cd-oda-1",
        "link",
        "2, VI-A",
        "degree at diameter 2",
        "stars around the node whose topics have the most subscribers",
        constant_diameter.cd_oda_1,
    ),
    Algorithm(
        "cd-oda-2",
        "link",
        "2, VI-B",
        "degree at diameter 2",
        "stars around the node with the most subscribers a neighbour",
        constant_diameter.cd_oda_2,
    ),
    Algorithm(
        "broadloom",
        "link",
        "ours",
        "total weight",
        "greedy guided by the trees of the lower bound, then edge exchange",
        guided.broadloom,
        guided.GuidedOptions,
    ),
)

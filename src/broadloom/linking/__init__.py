"""Link: which brokers are linked, so that every topic stays connected at the least cost (papers 1 and 2)."""

from broadloom.linking import constant_diameter, divide, exact, greedy, guided, low_degree, primal_dual, tree
from broadloom.model.algorithm import Algorithm

ALGORITHMS: tuple[Algorithm, ...] = (
    Algorithm(
        "broadloom",
        "link",
        "ours",
        "total weight",
        "greedy guided by the trees of the lower bound, then edge exchange",
        guided.broadloom,
        guided.GuidedOptions,
    ),
    Algorithm(
        "trmaw", "link", "1, Alg. 1", "total weight", "a minimum spanning tree for each topic", tree.trmaw
    ),
    Algorithm("gm", "link", "1 and 2", "edges", "add the edge with the highest contribution", greedy.gm),
    Algorithm(
        "grmaw",
        "link",
        "1, Alg. 2",
        "total weight",
        "add the edge with the lowest weight a contribution",
        greedy.grmaw,
    ),
    Algorithm(
        "pdmaw",
        "link",
        "1, Alg. 4",
        "total weight",
        "add the edge with the lowest residual a contribution; with a proven bound",
        primal_dual.pdmaw,
    ),
    Algorithm(
        "pdrdmaw",
        "link",
        "1, Alg. 5",
        "total weight",
        "pdmaw, then drop the edges that it can do without",
        primal_dual.pdrdmaw,
    ),
    Algorithm(
        "dcmaw",
        "link",
        "1, Alg. 6",
        "total weight",
        "divide, conquer each part, combine over representatives; for very many nodes",
        divide.dcmaw,
        divide.DivideOptions,
    ),
    Algorithm(
        "minmax-oda",
        "link",
        "2, I-B",
        "maximum degree",
        "add the highest contribution among the edges that raise the maximum degree least",
        low_degree.minmax_oda,
    ),
    Algorithm(
        "low-oda",
        "link",
        "2, Alg. 1; 3, Alg. 2",
        "maximum and average degree",
        "as minmax-oda, unless its edge is more than k times worse than the best",
        low_degree.low_oda,
        low_degree.LowDegreeOptions,
    ),
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
        "exact",
        "link",
        "ours",
        "total weight",
        "the least total weight, by integer programming; for small instances",
        exact.exact,
        exact.ExactOptions,
    ),
)

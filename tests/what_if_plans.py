"""Plans for tests of the console: brokers with names, sites and addresses."""

import numpy as np
import pyarrow as pa

import broadloom as bl


def plan_of(kind="regions", nodes=24, topics=10, seed=0):
    """A plan of brokers with names, at sites."""
    made = bl.workload.interest(nodes=nodes, topics=topics, sizes=(2, 5), seed=seed)
    names = [f"broker-{u}" for u in range(nodes)]
    interest = bl.Interest.from_lists(
        [[f"topic/{t}" for t in made.topics_of(u)] for u in range(nodes)], node_ids=names
    )
    rng = np.random.default_rng(seed)
    site = np.arange(nodes) % 5
    points = rng.random((nodes, 2))
    weights = {
        "uniform": lambda: bl.Weights.uniform(nodes),
        "sites": lambda: bl.Weights.sites(site, 1, 10),
        "regions": lambda: bl.workload.weights(nodes=nodes, kind="regions", seed=seed),
        "euclidean": lambda: bl.Weights.euclidean(points),
        "dense": lambda: bl.Weights.dense(bl.Weights.euclidean(points).matrix()),
    }[kind]()
    labels = [f"site-{s}" for s in site]
    if kind == "regions":
        labels = [bl.workload.REGIONS[s].name for s in weights.site]
    plan = bl.link(interest, weights, algorithm="grmaw")
    nodes_table = pa.table({"node": names, "site": labels, "address": [f"{name}:1883" for name in names]})
    return bl.Plan(interest, weights, plan.overlay, "grmaw", nodes=nodes_table)

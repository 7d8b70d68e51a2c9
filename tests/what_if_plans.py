"""Plans and operations for tests of the console: brokers with names, sites and addresses."""

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


def contents(plan, folder):
    """The bytes of all files of a saved plan."""
    plan.save(folder)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def random_operation(session, rng):
    """An operation with random arguments, which can be refused."""
    names = session.names
    sites = sorted(set(session.first_plan.nodes.column("site").to_pylist()))
    links = [[session.plan.interest.node_ids[b] for b in edge] for edge in session.plan.edges.tolist()]
    topics = session.first_plan.interest.topic_ids
    pair = rng.sample(names, 2)
    return rng.choice(
        [
            ["fail", "broker", rng.choice(names)],
            ["fail", "site", rng.choice(sites)],
            ["fail", "link", *rng.choice(links or [pair])],
            ["restore", "broker", rng.choice(list(session.situation.failed) or names)],
            ["restore", "site", rng.choice(sites)],
            ["restore", "link", *rng.choice(sorted(session.situation.cut) or [pair])],
            ["move", rng.choice(names), rng.choice(sites)],
            ["weigh", rng.choice(sites), rng.choice(["0.5", "2"])],
            ["pin", *pair],
            ["unpin", *rng.choice(sorted(session.situation.pinned) or [pair])],
            ["forbid", *pair],
            ["allow", *rng.choice(sorted(session.situation.forbidden) or [pair])],
            ["limit", str(rng.randrange(12))],
            ["subscribe", rng.choice(names), rng.choice([*topics, "new/topic", "topic/#"])],
            ["unsubscribe", rng.choice(names), rng.choice(topics)],
        ]
    )

"""A saved plan from two small CSV files."""

import tempfile
from pathlib import Path

import broadloom as bl
from broadloom.model import read_link_problem

with tempfile.TemporaryDirectory() as folder:
    tables = Path(folder, "tables")
    plan_folder = Path(folder, "plan")
    tables.mkdir()
    (tables / "subscriptions.csv").write_text(
        "node,topic\nparis,orders\nparis,prices\ntokyo,prices\nlima,orders\nlima,prices\n"
    )
    (tables / "latency.csv").write_text("src,dst,rtt_ms\nparis,tokyo,218\nparis,lima,194\ntokyo,lima,256\n")

    problem = read_link_problem(tables)
    plan = bl.link(problem.interest, problem.weights)
    plan.save(plan_folder)

    loaded = bl.Plan.load(plan_folder)
    for (u, v), weight in zip(loaded.edges, loaded.edge_weights, strict=True):
        print(f"{loaded.interest.node_ids[u]} - {loaded.interest.node_ids[v]}: {weight:.0f} ms")

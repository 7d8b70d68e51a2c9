"""Paper 3: shadows (Chen, Jacobsen and Vitenberg, technical report 2011).

Nodes join and leave; the overlay is repaired, not rebuilt.
Plain text that notebooks open: each "# %%" begins a cell.
"""

# %%
import broadloom as bl

interest = bl.workload.interest(nodes=200, topics=80, sizes=(5, 30), size_law="power", seed=1)
events = list(bl.workload.churn(interest, rounds=40, seed=1))

# %% [markdown]
# "shadow" repairs among the neighbours and backups of the node that changes; "naive" looks at all nodes.

# %%
degrees = {}
for method in ("shadow", "naive"):
    live = bl.maintain(interest, algorithm=method, seed=1)
    changes = live.apply(events)
    repair = sum(len(change.added) + len(change.removed) for change in changes) / len(changes)
    degrees[method] = live.mean_degree
    print(
        f"{method:6} average degree {live.mean_degree:.2f}, maximum {live.max_degree}, "
        f"links per change {repair:.1f}"
    )

fresh = bl.link(live.interest, algorithm="low-oda").metrics()
print(f"fresh  average degree {fresh['mean_degree']:.2f}, maximum {fresh['max_degree']}")

if degrees["shadow"] > 1.2 * fresh["mean_degree"]:
    raise SystemExit("the repaired overlay has many more links than a fresh one")

"""Paper 1: weighted overlays (Chen, Tock, Jacobsen and Vitenberg, ICDCS 2015).

Which links connect every topic at the least total weight?
Plain text that notebooks open: each "# %%" begins a cell.
"""

# %%
import broadloom as bl

interest = bl.workload.interest(nodes=150, topics=60, popularity="zipf", sizes=(10, 30), seed=1)
weights = bl.workload.weights(nodes=150, kind="planar", mean=10.0, seed=1)

# %% [markdown]
# A tree per topic (TrMAW) ignores that topics share subscribers; GrMAW and PdMAW do not. GM has the fewest
# links, but ignores their weights. PdrdMAW is PdMAW without its redundant links.

# %%
measured = {}
for algorithm in ("trmaw", "grmaw", "pdmaw", "pdrdmaw", "gm"):
    plan = bl.link(interest, weights, algorithm)
    measured[algorithm] = plan.metrics()["weighted_mean_degree"]
    print(f"{algorithm:8} weighted degree {measured[algorithm]:6.1f}, links {len(plan.edges)}")

# %% [markdown]
# PdMAW's dual values prove a lower bound, for any overlay.

# %%
primal_dual = bl.link(interest, weights, "pdmaw")
print(f"no overlay weighs less than {primal_dual.lower_bound:.0f}")

if not measured["grmaw"] < measured["pdmaw"] < measured["trmaw"]:
    raise SystemExit("the order of section IX-B does not hold")

"""Paper 2: low degree (Onus and Richa, ICDCS 2010).

An overlay with few links per node, on average and at most.
Plain text that notebooks open: each "# %%" begins a cell.
"""

# %%
import broadloom as bl

interest = bl.workload.interest(nodes=200, topics=100, popularity="zipf", alpha=0.5, sizes=(10, 10), seed=1)

# %% [markdown]
# GM has the lowest average degree, MinMax-ODA the lowest maximum degree. Low-ODA lies between, as k
# decides: k = 1 is GM, k = 8 is nearly MinMax-ODA. `strict=True` is the rule in the text of section III;
# Alg. 1 prints "at least".

# %%
for k in (1, 2, 3, 5, 8):
    found = bl.link(interest, algorithm="low-oda", k=k, strict=True, ties="random").metrics()
    print(f"k = {k}: average degree {found['mean_degree']:.2f}, maximum degree {found['max_degree']}")

gm = bl.link(interest, algorithm="gm", ties="random").metrics()
low = bl.link(interest, algorithm="low-oda", k=1, strict=True, ties="random").metrics()
print(f"gm:    average degree {gm['mean_degree']:.2f}, maximum degree {gm['max_degree']}")

# %% [markdown]
# The CD-ODA family builds a star per topic, so that every topic has diameter 2.

# %%
for algorithm in ("cd-oda", "cd-oda-1", "cd-oda-2"):
    found = bl.link(interest, algorithm=algorithm).metrics()
    print(f"{algorithm:8} average degree {found['mean_degree']:.2f}, diameter {found['mean_diameter']:.2f}")

if abs(gm["mean_degree"] - low["mean_degree"]) > 0.1 * gm["mean_degree"]:
    raise SystemExit("at k = 1 Low-ODA differs from GM")

"""Paper 5: minimum cost (Zhao and Wu, SECON 2011).

Users publish and read; each has one broker. Which, if every link has a price?
Plain text that notebooks open: each "# %%" begins a cell.
"""

# %%
import broadloom as bl

market = bl.workload.market(users=600, brokers=10, channels=64, width=0.02, seed=1)
random_cost = bl.assign(market, "random", core="pair").cost

# %% [markdown]
# The cost reduction ratio is the cost of random assignment over that of the algorithm.

# %%
ratios = {}
for algorithm in ("greedy-packing", "clustering", "steiner-mixing", "broadloom"):
    ratios[algorithm] = random_cost / bl.assign(market, algorithm, core="pair").cost
    print(f"{algorithm:14} cost reduction ratio {ratios[algorithm]:.2f}")

# %% [markdown]
# Steiner mixing draws each user's broker from one tree per channel; the description of its phase 1 also
# allows one tree per publisher and channel.

# %%
per_publisher = random_cost / bl.assign(market, "steiner-mixing", core="pair", trees="publisher").cost
print(f"steiner-mixing with a tree per publisher {per_publisher:.2f}")

if min(ratios.values()) <= 1:
    raise SystemExit("an algorithm is not cheaper than chance")

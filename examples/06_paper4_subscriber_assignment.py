"""Paper 4: subscriber assignment (Yu, Agarwal and Yang, ICDE 2011).

Which broker serves which subscriber, within a delay and a load, at the least bandwidth?
Plain text that notebooks open: each "# %%" begins a cell.
"""

# %%
import broadloom as bl

problem = bl.workload.subscribers(set=1, subscribers=1500, brokers=15, broad_interests="high", seed=0)

# %% [markdown]
# Gr* takes the subscribers with the fewest candidates first. Algorithms that ignore something do poorly
# there: Closest and Balance need far more bandwidth, Gr without latency breaks the bound on delay.

# %%
bandwidth = {}
for algorithm in ("gr*", "gr", "gr-no-latency", "closest", "balance"):
    found = bl.assign(problem, algorithm)
    measures = found.metrics()
    bandwidth[algorithm] = measures["bandwidth"]
    print(
        f"{algorithm:14} bandwidth {measures['bandwidth']:.2e}, delay at most {measures['delay_max']:.2f}, "
        f"lbf {measures['lbf']:.2f}, keeps every limit: {found.feasible}"
    )

if not bandwidth["gr-no-latency"] < bandwidth["gr*"] < min(bandwidth["closest"], bandwidth["balance"]):
    raise SystemExit("the order of section VI does not hold")

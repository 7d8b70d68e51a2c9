"""Markets (paper 5): cost reduction as in Fig. 9 and 10, times as in Table I, the default against all others.

    python benchmarks/market.py                      # everything, about a quarter of an hour
    python benchmarks/market.py --only cells,times

The cost reduction ratio (CRR) is the cost of random assignment, the mean of 20 draws, over an algorithm's.
CPU seconds are of one process, without the compilation of kernels. The paper's instances cannot be made
again: it does not state prices, widths and the number of channels.
"""

import time
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np

import broadloom as bl
from _common import Section, run
from _market_prototype import prototype

PAPER = ("greedy-packing", "clustering", "steiner-mixing")
OTHERS = (*PAPER, "migration")
# Settings of the table that compares the default with the other algorithms.
SETTINGS: dict[str, dict[str, Any]] = {
    "random, 1 %": {"width": 0.01},
    "random, 5 %": {"width": 0.05},
    "random, any interval": {"width": None},
    "euclidean, 1 %": {"width": 0.01, "access": "euclidean"},
    "random, 1 %, ratio 10": {"width": 0.01, "ratio": 10.0},
    "random, 1 %, ratio 100": {"width": 0.01, "ratio": 100.0},
}
# Table I, seconds on the paper's machine, without optimisation.
PAPER_SECONDS = {"random": 0.9, "greedy-packing": 91.445, "clustering": 100.235, "steiner-mixing": 179.654}
DRAWS = 20


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """The result of the work, and its CPU seconds."""
    start = time.process_time()
    return work(), time.process_time() - start


def warm_up() -> None:
    """Compile every kernel."""
    small = bl.workload.market(users=60, brokers=6, channels=8)
    for core in ("mst", "pair", "tree"):
        for name in ("random", *OTHERS, "broadloom"):
            bl.assign(small, name, core=core)
        prototype(small, core)


def random_costs(market: bl.MarketProblem, cores: Sequence[str]) -> list[float]:
    """The mean cost of random assignment under each core."""
    drawn = [bl.assign(market, "random", seed).broker_of for seed in range(DRAWS)]
    cost = bl.measures.market_cost
    return [float(np.mean([cost(market, broker_of, core).total for broker_of in drawn])) for core in cores]


def cells(quick: bool) -> Section:
    """Twelve cells: the default against every other algorithm and the prototype."""
    return _cells("The default in twelve cells, 10,000 users x 100 brokers x 128 channels", 0, quick)


def fresh(quick: bool) -> Section:
    """The same cells on markets that were not used to develop the search."""
    return _cells("The same on markets that were not looked at before", 2, quick)


def _cells(title: str, seed: int, quick: bool) -> Section:
    warm_up()
    section = Section(title)
    size = {"users": 500, "brokers": 10, "channels": 32} if quick else {}
    for name, setting in SETTINGS.items():
        market = bl.workload.market(**size, **setting, seed=seed)
        found = {other: bl.assign(market, other).broker_of for other in PAPER}
        for core, base in zip(("mst", "pair"), random_costs(market, ("mst", "pair")), strict=True):
            row = {"setting": name, "core": core, "seed": seed}
            section.rows.append(
                row | _cell(market, core, base, found, section, f"{name}, {core}, seed {seed}")
            )
    return section


def _cell(
    market: bl.MarketProblem, core: str, base: float, found: dict[str, Any], section: Section, where: str
) -> dict[str, Any]:
    """One row, and its claims."""
    costs = {name: bl.measures.market_cost(market, found[name], core).total for name in found}
    published = min(costs.values())
    for name, start in (("migration", "steiner-mixing"), ("migration from greedy", "greedy-packing")):
        costs[name] = bl.assign(market, "migration", core=core, start=found[start]).cost
    best, first = min(costs.values()), prototype(market, core)
    ours, seconds = timed(lambda: bl.assign(market, core=core))
    section.claim(f"{where}: cost over the best other's", ours.cost / best, at_most=1)
    section.claim(f"{where}: cost over the prototype's", ours.cost / first, at_most=1)
    section.claim(f"{where}: CPU s", seconds, at_most=10)
    return {name: base / cost for name, cost in costs.items()} | {
        "prototype": base / first,
        "broadloom": base / ours.cost,
        "CPU s": seconds,
        "saved % on the paper's": 100 * (1 - ours.cost / published),
        "saved % on all": 100 * (1 - ours.cost / best),
        "gap %": 100 * ours.gap,
    }


def times(quick: bool) -> Section:
    """Table I: 10,000 users and 100 brokers, access to core 1."""
    warm_up()
    section = Section("Times as in Table I, CPU seconds beside the paper's seconds")
    for width in (0.01, None):
        market = bl.workload.market(**({"users": 500, "brokers": 10} if quick else {}), width=width)
        row: dict[str, Any] = {"intervals": "any" if width is None else f"{width:.0%}"}
        bl.assign(market, "random")  # what markets compute once must not count as the time of the first
        for name in ("random", *OTHERS, "broadloom"):
            result, row[name] = timed(lambda name=name, market=market: bl.assign(market, name))
            if name != "random":
                section.claim(f"{name}, {row['intervals']} intervals: CPU s", row[name], at_most=10)
        _, row["one evaluation"] = timed(lambda r=result: bl.measures.market_cost(r.problem, r.broker_of))
        section.claim("one evaluation of the cost: CPU s", row["one evaluation"], at_most=0.5)
        section.rows.append(row)
    section.rows.append({"intervals": "the paper"} | PAPER_SECONDS)
    return section


def mean_ratios(settings: dict[str, Any], core: str, instances: int) -> dict[str, float]:
    """The mean CRR of each algorithm over instances."""
    found: dict[str, list[float]] = {name: [] for name in (*PAPER, "broadloom")}
    for seed in range(instances):
        market = bl.workload.market(**settings, seed=seed)
        base = random_costs(market, [core])[0]
        for name in found:
            found[name].append(base / bl.assign(market, name, core=core, **_cheap(name)).cost)
    return {name: float(np.mean(ratios)) for name, ratios in found.items()}


def _cheap(name: str) -> dict[str, Any]:
    return {"bound": 0} if name == "broadloom" else {}


def paper_order(row: dict[str, Any]) -> bool:
    """Whether mixing beats clustering, clustering greedy, and greedy random."""
    return row["steiner-mixing"] > row["clustering"] > row["greedy-packing"] > 1


def sizes(quick: bool) -> Section:
    """Fig. 9: 100 users per broker, from few to many brokers."""
    warm_up()
    section = Section("CRR by size as in Fig. 9, mean of 5 instances, 1 % intervals")
    for core, users in product(("mst", "pair"), (500, 1000) if quick else (1000, 2500, 5000, 10_000)):
        setting = {"users": users, "brokers": users // 100}
        row = {"core": core, "users": users} | mean_ratios(setting, core, 1 if quick else 5)
        section.rows.append(row | {"the paper's order": paper_order(row)})
    return section


def ratios(quick: bool) -> Section:
    """Fig. 10: increasing ratio of access prices to core prices."""
    warm_up()
    section = Section("CRR by access-to-core price as in Fig. 10, mean of 3 instances, 1 % intervals")
    size = {"users": 500, "brokers": 5} if quick else {"users": 10_000, "brokers": 100}
    for core, ratio in product(("mst", "pair"), (1.0, 3.0, 10.0, 30.0, 100.0)):
        row = {"core": core, "ratio": ratio} | mean_ratios(size | {"ratio": ratio}, core, 1 if quick else 3)
        section.rows.append(row | {"the paper's order": paper_order(row)})
    return section


def exact(quick: bool) -> Section:
    """Small markets: cost over the optimum."""
    warm_up()
    section = Section("Cost over the optimum by integer programming, 12 small markets")
    worst = 1.0
    for core, seed in product(("mst", "pair", "tree"), range(1 if quick else 4)):
        market = bl.workload.market(users=14, brokers=4, channels=6, width=0.3, seed=seed)
        best, seconds = timed(lambda market=market, core=core: bl.assign(market, "ilp", core=core))
        row = {"core": core, "seed": seed, "optimal": best.notes["optimal"], "ilp CPU s": seconds}
        for name in (*OTHERS, "broadloom"):
            row[name] = bl.assign(market, name, core=core).cost / best.cost
        worst = max(worst, row["broadloom"])
        section.rows.append(row)
    section.claim("the default over the optimum, at worst", worst, at_most=1.05)
    return section


def large(quick: bool) -> Section:
    """100,000 users x 1,000 brokers."""
    warm_up()
    section = Section("100,000 users x 1,000 brokers x 128 channels, 1 % intervals")
    market = bl.workload.market(
        **({"users": 2000, "brokers": 20} if quick else {"users": 100_000, "brokers": 1000})
    )
    for name, options in (
        ("greedy-packing", {}),
        ("clustering", {}),
        ("steiner-mixing", {}),
        ("broadloom", {}),
    ):
        result, seconds = timed(lambda name=name, options=options: bl.assign(market, name, **options))
        section.rows.append(
            {
                "algorithm": name,
                "CPU s": seconds,
                "cost": result.cost,
                "gap %": 100 * result.gap if result.gap else None,
            }
        )
        section.claim(f"{name}: CPU s", seconds, at_most=600)
    return section


SECTIONS = {
    "cells": cells,
    "fresh": fresh,
    "times": times,
    "sizes": sizes,
    "ratios": ratios,
    "exact": exact,
    "large": large,
}

if __name__ == "__main__":
    run("market", SECTIONS)

"""Benchmarks of certificates: where the gap between plan and bound comes from, and how it shrinks over time.

    python benchmarks/certificates.py                     # everything; takes about an hour
    python benchmarks/certificates.py --only causes       # some sections
    python benchmarks/certificates.py --quick             # a smoke test; saves nothing

Times are CPU seconds of one thread. Results go to `results/certificates.json`; `tables.py` writes them into
the documentation. Instances on measured latencies are left out where the data is missing.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from itertools import product
from typing import Any

os.environ["BROADLOOM_THREADS"] = "1"

import numpy as np

import broadloom as bl
from _common import DATA, LATENCY, Instance, Section, keep, run
from broadloom.linking import exact_overlay, guided_search, local_search
from broadloom.linking.greedy_overlays import GreedyOptions, grmaw
from broadloom.linking.guided_search import GuidedSearch
from broadloom.linking.lagrangian_bound import COVER_STEP, Ascent

SEEDS = (0, 1, 2)
SECONDS_EXACT = 15.0
# Brokers, topics, and topics per broker: 10 to 50 % of them.
SMALL = ((40, 20, (2, 10)), (80, 40, (4, 20)))
LARGE = ((490, 200, "ripe"), (1000, 200, "planar"))
CURVE = ((490, 200, "ripe"), (500, 200, "planar"), (1000, 200, "planar"))


def causes(quick: bool) -> Section:
    """Optimum, linear relaxation, trees and covers, and the plan, on instances that are small enough.

    The relaxation part of the gap is what no split over the topics alone can close. The linear relaxation is
    that of the partition inequalities of each topic, solved to the end.
    """
    section = Section("Where the gap comes from")
    shapes = SMALL[:1] if quick else SMALL
    kinds = [kind for kind in ("ripe", "wonder", "planar") if is_there(kind)]
    for (nodes, topics, sizes), kind, popularity in product(shapes, kinds, ("unif", "zipf")):
        section.rows.append(cause(Instance(nodes, topics, popularity, kind, sizes)))
        if not quick:
            keep("certificates", "causes", section)
    return section


def cause(instance: Instance) -> dict[str, Any]:
    """A row: parts of the gap in % of the best weight known."""
    interest, weights = instance.build()
    plan = bl.link(interest, weights, "broadloom")
    longer = bl.link(interest, weights, "broadloom", effort=5)
    program = exact_overlay.LinkProgram.of(interest, weights)
    exact = bl.link(interest, weights, "exact", time_limit=SECONDS_EXACT)
    best = min(longer.total_weight, exact.total_weight)
    limit = relaxation(program)
    ascent = Ascent(interest, weights, grmaw(interest, weights, GreedyOptions(), 0).edges)
    ascent.climb_to(COVER_STEP)
    trees = ascent.certify()
    ascent.climb_to(500)
    covers = ascent.certify()
    share = {
        "plan": plan.total_weight - best,
        "longer plan": longer.total_weight - best,
        "relaxation": best - limit,
        "trees": best - trees,
        "trees and covers": best - covers,
    }
    return instance.row() | {
        "best": best,
        "optimal": bool(exact.notes["optimal"]),
        **{f"{name} %": 100 * value / best for name, value in share.items()},
    }


def relaxation(program: exact_overlay.LinkProgram) -> float:
    """The optimum of the linear relaxation with all partition inequalities of each topic."""
    from scipy.optimize import linprog

    while True:
        matrix, need = program.rows()
        answer = linprog(program.weight, A_ub=-matrix, b_ub=-need, bounds=(0, 1), method="highs-ds")
        if not program.separate(answer.x):
            return float(answer.fun)


def curve(quick: bool) -> Section:
    """Weight and bound after each level of the search."""
    section = Section("Weight and bound over time")
    list(levels(Instance(60, 30, "unif", "planar", (3, 15)), 3))  # compiles the kernels
    shapes = [(120, 60, "planar")] if quick else [shape for shape in CURVE if is_there(shape[2])]
    for (nodes, topics, kind), popularity in product(shapes, ("unif", "zipf")):
        runs = [list(levels(Instance(nodes, topics, popularity, kind, seed=seed), 3)) for seed in SEEDS]
        for level, rows in enumerate(zip(*runs, strict=True)):
            mean = {key: float(np.mean([row[key] for row in rows])) for key in rows[0]}
            section.rows.append(
                Instance(nodes, topics, popularity, kind).row() | {"effort": level + 1, **mean}
            )
    claims(section)
    return section


def levels(instance: Instance, count: int) -> Iterator[dict[str, float]]:
    """A row per level: CPU seconds from the start, how far below grmaw, and the gap."""
    interest, weights = instance.build()
    began = time.process_time()
    overlay = grmaw(interest, weights, GreedyOptions(), instance.seed).edges
    search = GuidedSearch(interest, weights, overlay, None, instance.seed)
    greedy = float(weights.of(overlay[:, 0], overlay[:, 1]).sum())
    for level in range(count):
        search.run_level(level, float("inf"))
        yield {
            "CPU s": time.process_time() - began,
            "weight": search.weight,
            "bound": search.ascent.bound,
            "below grmaw %": 100 * (1 - search.weight / greedy),
            "gap %": 100 * search.gap,
        }


def claims(section: Section) -> None:
    """Compare the gaps with what was asked."""
    asked = {
        (490, "unif"): {"default": 35, "10 s": 28, "60 s": 20},
        (490, "zipf"): {"default": 14, "10 s": 8},
        (1000, "unif"): {"10 s": 25, "60 s": 17},
        (1000, "zipf"): {"10 s": 5, "60 s": 2.5},
    }
    for row in section.rows:
        time_limit = row.get("limit", "default" if row.get("effort") == 1 else None)
        most = asked.get((row["nodes"], row["popularity"]), {}).get(time_limit)
        if most:
            name = f"gap % at {row['nodes']} brokers ({row['popularity']}), {time_limit}"
            section.claim(name, row["gap %"], at_most=most)


class CpuClock:
    """The clock of a search in CPU seconds, in place of the module `time`."""

    monotonic = staticmethod(time.process_time)


class TracedSearch(GuidedSearch):
    """A search that records the CPU time, the weight and the bound after each proof and each cycle."""

    trace: list[tuple[float, float, float]]

    def _improve(self, level: int, deadline: float) -> None:
        self.trace.append((time.process_time(), self.weight, self.ascent.bound))
        super()._improve(level, deadline)

    def _replace(self, *arguments: Any) -> None:
        super()._replace(*arguments)
        self.trace.append((time.process_time(), self.weight, self.ascent.bound))


def minute(quick: bool) -> Section:
    """Weight and bound of the default, in ten CPU seconds and in a minute."""
    section = Section("Weight and bound in a minute")
    guided_search.time = local_search.time = CpuClock  # type: ignore[assignment, attr-defined]
    marks = (1.0,) if quick else (10.0, 60.0)
    shapes = [(120, 60, "planar")] if quick else [shape for shape in LARGE if is_there(shape[2])]
    for _, _, kind in shapes:
        list(traced(Instance(60, 30, "unif", kind, (3, 15)), (1.0,)))  # compiles the kernels
    found: dict[tuple[str, str], list[Any]] = {}
    for seed, (nodes, topics, kind), popularity in product(SEEDS, shapes, ("unif", "zipf")):
        instance = Instance(nodes, topics, popularity, kind, seed=seed)
        found.setdefault((kind, popularity), []).append(list(traced(instance, marks)))
        section.rows = []
        for runs in found.values():
            for rows in zip(*runs, strict=True):
                numbers = [key for key in rows[0] if isinstance(rows[0][key], float)]
                mean = {key: float(np.mean([row[key] for row in rows])) for key in numbers}
                section.rows.append(rows[0] | mean | {"seeds": len(rows)})
        if not quick:
            section.claims.clear()
            claims(section)
            keep("certificates", "minute", section)
    return section


def traced(instance: Instance, marks: tuple[float, ...]) -> Iterator[dict[str, Any]]:
    """A row for the first level, and one for each mark: the best weight and bound by then."""
    interest, weights = instance.build()
    began = time.process_time()
    overlay = grmaw(interest, weights, GreedyOptions(), instance.seed).edges
    greedy = float(weights.of(overlay[:, 0], overlay[:, 1]).sum())
    search = TracedSearch(interest, weights, overlay, None, instance.seed)
    search.trace = []
    first = 0
    for level in range(12):
        search.run_level(level, began + marks[-1])
        first = first or len(search.trace)
        if time.process_time() >= began + marks[-1]:
            break
    until = [search.trace[first - 1][0], *(began + mark for mark in marks[:-1]), math.inf]
    for name, end in zip(["default", *(f"{mark:g} s" for mark in marks)], until, strict=True):
        done = [entry for entry in search.trace if entry[0] <= end]
        weight = min(entry[1] for entry in done)
        bound = max(entry[2] for entry in done)
        yield instance.row() | {
            "limit": name,
            "CPU s": done[-1][0] - began,
            "weight": weight,
            "bound": bound,
            "below grmaw %": 100 * (1 - weight / greedy),
            "gap %": 100 * (weight / bound - 1),
        }


def large(quick: bool) -> Section:
    """A certificate for thousands of brokers, against the time of grmaw."""
    section = Section("Certificates of large instances")
    for nodes, popularity in product((250,) if quick else (4000, 16000), ("unif", "zipf")):
        instance = Instance(nodes, 200, popularity)
        interest, weights = instance.build()
        greedy, least = least_time(interest, weights, "grmaw")
        plan, took = least_time(interest, weights, "broadloom", 2 if nodes < 10_000 else 1)
        section.rows.append(
            instance.row()
            | {
                "grmaw CPU s": least,
                "CPU s": took,
                "time / grmaw": took / least,
                "below grmaw %": 100 * (1 - plan.total_weight / greedy.total_weight),
                "gap %": 100 * (plan.gap or 0.0),
            }
        )
        section.claim(f"time / grmaw at {nodes} brokers ({popularity})", took / least, at_most=5)
    return section


def least_time(
    interest: bl.Interest, weights: bl.Weights, algorithm: str, rounds: int = 2
) -> tuple[bl.Plan, float]:
    """A plan, and the least CPU seconds of some runs: the first one can compile kernels."""
    took = []
    for _ in range(rounds):
        began = time.process_time()
        plan = bl.link(interest, weights, algorithm)
        took.append(time.process_time() - began)
    return plan, min(took)


def previous(quick: bool) -> Section:
    """Warm starts after a few brokers have changed topics, left or joined, against a new plan."""
    section = Section("Start from a previous plan")
    compiled = Instance(60, 30, "unif", "planar", (3, 15))
    list(warm_starts(compiled, 1))
    shapes = [(120, 60, "planar")] if quick else [shape for shape in LARGE if is_there(shape[2])]
    for (nodes, topics, kind), popularity in product(shapes, ("unif", "zipf")):
        section.rows.extend(warm_starts(Instance(nodes, topics, popularity, kind), 2 if quick else 5))
    if not quick:
        for row in section.rows:
            if row["nodes"] == LARGE[-1][0]:
                name = f"{row['change']} at {row['nodes']} brokers ({row['popularity']})"
                section.claim(f"{name}: time / new plan", row["time / new"], at_most=0.1)
    return section


def warm_starts(instance: Instance, brokers: int) -> Iterator[dict[str, Any]]:
    """A row per kind of change: CPU seconds, weight against a new plan, and both gaps."""
    interest, weights = instance.build()
    rng = np.random.default_rng(instance.seed)
    chosen = rng.choice(instance.nodes, brokers, replace=False)
    others = np.setdiff1d(np.arange(instance.nodes), chosen)
    rows = [interest.topics_of(u).tolist() for u in range(instance.nodes)]
    for u in chosen:  # one topic goes, another one comes
        rows[u] = [*rows[u][1:], int(rng.choice(np.setdiff1d(np.arange(instance.topics), rows[u])))]
    resubscribed = bl.Interest.from_lists(rows, topics=instance.topics, node_ids=interest.node_ids)
    all_of_them = interest, weights
    fewer = interest.subset(others), weights.subset(others)
    changes = {
        "one topic each": (all_of_them, (resubscribed, weights)),
        "leave": (all_of_them, fewer),
        "join": (fewer, all_of_them),
    }
    for change, (before, after) in changes.items():
        plan = bl.link(*before, "broadloom")
        began = time.process_time()
        warm = bl.link(*after, "broadloom", previous=plan)
        middle = time.process_time()
        new = bl.link(*after, "broadloom")
        end = time.process_time()
        yield instance.row() | {
            "change": change,
            "brokers changed": brokers,
            "CPU s": middle - began,
            "time / new": (middle - began) / (end - middle),
            "weight / new": warm.total_weight / new.total_weight,
            "gap %": 100 * (warm.gap or 0.0),
            "new gap %": 100 * (new.gap or 0.0),
        }


def proofs(quick: bool) -> Section:
    """The bound against the optimum on hundreds of instances: it never exceeds it."""
    section = Section("Bound against optimum")
    rng = np.random.default_rng(0)
    ratios = []
    for _ in range(20 if quick else 400):
        nodes = int(rng.integers(4, 26))
        topics = int(rng.integers(2, 14))
        rows = [rng.choice(topics, rng.integers(1, topics + 1), replace=False).tolist() for _ in range(nodes)]
        interest = bl.Interest.from_lists(rows, topics=topics)
        table = np.triu(
            rng.choice([rng.random(), 1.0, 2.0, 3.0], (nodes, nodes))
            + rng.random() * rng.random((nodes, nodes)),
            1,
        )
        weights = bl.Weights.dense(table + table.T)
        exact = bl.link(interest, weights, "exact", time_limit=SECONDS_EXACT)
        if exact.notes["optimal"] and exact.total_weight:
            bound = bl.lower_bound(interest, weights, iterations=int(rng.choice([10, 60, 100, 300])))
            ratios.append(bound / exact.total_weight)
    section.rows.append(
        {
            "instances": len(ratios),
            "least bound / optimum": min(ratios),
            "mean": float(np.mean(ratios)),
            "most": max(ratios),
        }
    )
    section.claim("bound / optimum, most of all instances", max(ratios), at_most=1.0)
    return section


def is_there(kind: str) -> bool:
    """Whether the weights of this kind can be made here."""
    return kind not in LATENCY or (DATA / LATENCY[kind]).exists()


if __name__ == "__main__":
    sections = {
        "causes": causes,
        "curve": curve,
        "large": large,
        "previous": previous,
        "proofs": proofs,
        "minute": minute,  # the last one: it changes the clock of the search
    }
    run("certificates", sections)

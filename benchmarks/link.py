"""Benchmarks of linking: time, memory and quality, compared with floors, simple alternatives and a Java peer.

    python benchmarks/link.py                          # everything; takes hours
    python benchmarks/link.py --only peer,compile      # some sections
    python benchmarks/link.py --quick                  # a smoke test; saves nothing

Times are CPU seconds of all threads together, the best of several rounds, with compiled kernels; ratios
compare runs that took turns in one process. Memory is that of the process, with interpreter and instance.
Results go to `results/link.json`; `tables.py` writes them into the documentation.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from itertools import product
from typing import Any

import _peer
import broadloom as bl
from _common import DATA, LATENCY, Instance, Section, Task, keep, kept, link, measure, run

POPULARITIES = ("unif", "zipf", "expo")
FLOOR = Task("popcount")
# The algorithms of the size and latency sections; the others have sections of their own.
COMPARED = ("trmaw", "gm", "grmaw", "pdmaw", "pdrdmaw", "minmax-oda", "low-oda", "cd-oda-2", "broadloom")
# The algorithms of the section on ties.
TIED = ("trmaw", "gm", "minmax-oda", "low-oda", "cd-oda-2")
# Above this many pairs of subscribers over all topics, trees written with SciPy or NetworkX take too long.
SCIPY_PAIRS, NETWORKX_PAIRS = 300_000_000, 3_000_000
# Options with which our own algorithm takes about ten seconds at 1000 nodes and 200 topics.
LONGER = {"effort": 3}


def available(names: Iterable[str]) -> list[str]:
    """Those of the names that are algorithms of this version, in the same order."""
    known = {row["name"] for row in bl.algorithms("link")}
    return [name for name in names if name in known]


def sizes(quick: bool) -> Section:
    """Times, memory and quality over sizes, topics and popularities, with planar weights.

    It takes hours, and can be resumed: rows of the result file are not run again.
    """
    section = Section("Sizes: planar weights", [] if quick else kept("link", "sizes"))
    known = {(row["nodes"], row["topics"], row["popularity"]) for row in section.rows}
    nodes, topics = ((250,), (200,)) if quick else ((250, 1000, 4000, 16000), (200, 1000))
    for key in product(nodes, topics, POPULARITIES):
        if key not in known:
            section.rows += compared(Instance(*key), rounds=1 if quick or key[0] > 1000 else 3)
            if not quick:
                keep("link", "sizes", section)
    return section


def latency(quick: bool) -> Section:
    """The same on measured latencies."""
    section = Section("Measured latencies")
    known = {"wonder": 246, "ripe": 631}
    found = [name for name in known if (DATA / LATENCY[name]).exists()]
    for name, popularity in product(found[:1] if quick else found, POPULARITIES):
        section.rows += compared(Instance(known[name], 200, popularity, name), rounds=1 if quick else 3)
    return section


def compared(instance: Instance, rounds: int) -> Iterator[dict[str, Any]]:
    """A row per algorithm and per simple alternative."""
    pairs = (instance.nodes * sum(instance.sizes) / 2) ** 2 / instance.topics / 2
    runs = [{name: link(name) for name in available(COMPARED)}]
    if pairs <= SCIPY_PAIRS:
        runs.append({"trees with SciPy": Task("scipy_trees")})
    if pairs <= NETWORKX_PAIRS:
        runs.append({"trees with NetworkX": Task("networkx_trees")})
    for tasks in runs:  # each in a process of its own, as they do not release memory
        floor, *results = measure(instance, [FLOOR, *tasks.values()], rounds)
        for name, found in zip(tasks, results, strict=True):
            yield instance.row() | {
                "what": name,
                "CPU s": found["cpu_s"],
                "x popcount": found["cpu_s"] / floor["cpu_s"],
                "wall s": found["wall_s"],
                "peak MB": found["peak_mb"],
                "edges": found["edges"],
                "weight": found["total_weight"],
                "max degree": found["max_degree"],
            }


def ties(quick: bool) -> Section:
    """Random ties against the smallest pair: time and degrees, with weights that tie."""
    section = Section("Random ties against the smallest pair")
    many, few = (20, 100), (2, 4)
    shapes = [(1000, 200, many), (4000, 1000, many), (16000, 1000, many), (16000, 1000, few)]
    shapes = [(250, 200, many)] if quick else shapes
    cases = [(name, "uniform") for name in available(TIED)] + [("grmaw", "sites")]
    for (nodes, topics, each), weights in product(shapes, ("uniform", "sites")):
        names = [name for name, by in cases if by == weights]
        instance = Instance(nodes, topics, "zipf", weights, each)
        pairs = [(link(name), link(name, ties="random")) for name in names]
        found = measure(instance, [task for pair in pairs for task in pair], rounds=3 if nodes < 16000 else 1)
        for name, smallest, random in zip(names, found[::2], found[1::2], strict=True):
            times = random["cpu_s"] / smallest["cpu_s"]
            section.rows.append(
                instance.row()
                | {
                    "topics per node": "{} to {}".format(*each),
                    "algorithm": name,
                    "smallest CPU s": smallest["cpu_s"],
                    "random CPU s": random["cpu_s"],
                    "random / smallest": times,
                    "smallest edges": smallest["edges"],
                    "random edges": random["edges"],
                    "smallest max degree": smallest["max_degree"],
                    "random max degree": random["max_degree"],
                }
            )
            what = f"{name} at {nodes:,} nodes, {each[0]} to {each[1]} topics each ({weights})"
            section.claim(f"{what}: random / smallest", times, at_most=2)
    return section


def degrees(quick: bool) -> Section:
    """Paper 2, section V: degrees with both rules for ties, and with both readings of Low-ODA's rule."""
    section = Section("Degrees on the instances of paper 2, section V")
    low = [{"k": k, "strict": strict} for strict in (False, True) for k in (1, 3, 8)]
    for nodes, rule in product((100,) if quick else (100, 400, 1000), ("smallest", "random")):
        interests = [paper_2(nodes, seed) for seed in range(3 if quick else 20)]
        gm, minmax = (plans_of(interests, name, ties=rule) for name in ("gm", "minmax-oda"))
        row = {"nodes": nodes, "ties": rule}
        section.rows.append(row | {"algorithm": "gm"} | degrees_of(gm))
        section.rows.append(row | {"algorithm": "minmax-oda"} | degrees_of(minmax))
        for options in low:
            plans = plans_of(interests, "low-oda", ties=rule, **options)
            section.rows.append(
                row
                | {"algorithm": "low-oda"}
                | options
                | degrees_of(plans)
                | {"as gm": share_of_equals(plans, gm), "as minmax-oda": share_of_equals(plans, minmax)}
            )
        what = f"at {nodes} nodes, ties {rule}"
        first, last = section.rows[-3], section.rows[-1]
        section.claim(f"strict low-oda with k = 1 is gm {what}", first["as gm"], at_least=1)
        section.claim(f"strict low-oda with k = 8 is minmax-oda {what}", last["as minmax-oda"], at_least=0.9)
    return section


def plans_of(interests: list[bl.Interest], algorithm: str, **options: Any) -> list[bl.Plan]:
    """A plan per interest, each with another seed."""
    return [bl.link(one, None, algorithm, seed, **options) for seed, one in enumerate(interests)]


def degrees_of(plans: list[bl.Plan]) -> dict[str, float]:
    """The maximum degrees and the mean degree of some plans."""
    most = [int(plan.overlay.degrees().max()) for plan in plans]
    return {
        "least max degree": min(most),
        "mean max degree": sum(most) / len(most),
        "most max degree": max(most),
        "mean degree": sum(float(plan.overlay.degrees().mean()) for plan in plans) / len(plans),
    }


def share_of_equals(plans: list[bl.Plan], others: list[bl.Plan]) -> float:
    """The share of plans with the same edges in the same order as the others."""
    pairs = zip(plans, others, strict=True)
    return sum(plan.edges.tolist() == other.edges.tolist() for plan, other in pairs) / len(plans)


def paper_2(nodes: int, seed: int) -> bl.Interest:
    """An interest of paper 2, section V: 100 topics of Zipf's popularity, 10 per node."""
    return bl.workload.interest(nodes, 100, popularity="zipf", alpha=0.5, sizes=(10, 10), seed=seed)


def twin(quick: bool) -> Section:
    """The slow twins in plain Python, on instances that are small enough for them; the edges are the same."""
    section = Section("Against the plain twins")
    instance = Instance(20 if quick else 50, 40, sizes=(4, 12))
    names = available(("trmaw", "gm", "grmaw", "pdmaw", "pdrdmaw", "minmax-oda", "low-oda"))
    tasks = [task for name in names for task in (link(name), Task("twin", {"algorithm": name}))]
    found = measure(instance, tasks, rounds=1)
    for name, ours, plain in zip(names, found[::2], found[1::2], strict=True):
        section.rows.append(
            instance.row()
            | {
                "algorithm": name,
                "CPU s": ours["cpu_s"],
                "twin CPU s": plain["cpu_s"],
                "twin / ours": plain["cpu_s"] / ours["cpu_s"],
                "same edges": ours["digest"] == plain["digest"],
            }
        )
    return section


def peer(quick: bool) -> Section:
    """The Java peer on the same instances, one thread each, and whether the edges are the same."""
    section = Section("Against the Java peer, one thread")
    if not _peer.is_available():
        print("peer: no sources or no javac, skipped", file=sys.stderr)
        return section
    shapes = ((200, 200),) if quick else ((1000, 200), (5000, 1000), (10000, 1000))
    for (nodes, topics), popularity in product(shapes, ("unif", "zipf")):
        section.rows += against_peer(Instance(nodes, topics, popularity), small=nodes <= 1000)
    asked = {"gm": (2, 3), "grmaw": (4, 6), "low-oda": (2, 2)}
    for row in section.rows:
        least = asked[row["algorithm"]][row["nodes"] > 1000]
        what = f"{row['algorithm']} at {row['nodes']:,} nodes ({row['popularity']})"
        section.claim(f"{what}: times the peer's speed", row["peer / ours"], at_least=least)
        section.claim(f"{what}: the peer's edges", float(row["same edges"]), at_least=1)
    return section


def against_peer(instance: Instance, small: bool) -> Iterator[dict[str, Any]]:
    """A row per algorithm that both have."""
    names = available(_peer.ALGORITHMS)
    tasks = [Task("build", {"algorithm": name}) for name in names]
    ours = measure(instance, tasks, rounds=5 if small else 2, threads=1)
    with _peer.peer(instance) as java:
        for name, own in zip(names, ours, strict=True):
            theirs = java.run(name, rounds=5 if small else 1, warm=5 if small else 1)
            yield instance.row() | {
                "algorithm": name,
                "CPU s": own["cpu_s"],
                "peer CPU s": theirs["cpu_s"],
                "peer / ours": theirs["cpu_s"] / own["cpu_s"],
                "edges": own["edges"],
                "same edges": own["digest"] == theirs["digest"],
            }


def scale(quick: bool) -> Section:
    """Fifty and a hundred thousand nodes on all threads, in multiples of one popcount of all pairs."""
    section = Section("Scale: all threads")
    unit = 1000 if quick else 50_000
    cases = (
        (Instance(unit, 1000, "unif"), ("gm", "grmaw"), {"gm": 3.5, "grmaw": 8}),
        (Instance(unit, 1000, "zipf"), ("gm", "grmaw"), {"gm": 15}),
        (Instance(2 * unit, 1000, "unif"), ("gm",), {}),
    )
    for instance, names, most in cases:
        floor, *found = measure(instance, [FLOOR, *map(link, available(names))], rounds=1)
        for name, one in zip(available(names), found, strict=True):
            times = one["cpu_s"] / floor["cpu_s"]
            section.rows.append(
                instance.row()
                | {
                    "algorithm": name,
                    "CPU s": one["cpu_s"],
                    "wall s": one["wall_s"],
                    "popcount CPU s": floor["cpu_s"],
                    "x popcount": times,
                    "peak MB": one["peak_mb"],
                    "edges": one["edges"],
                }
            )
            what = f"{name} at {instance.nodes:,} nodes ({instance.popularity})"
            if name in most:
                section.claim(f"{what}: popcounts of all pairs", times, at_most=most[name])
            if name == "gm" and instance.nodes == unit:
                section.claim(f"{what}: peak memory in MB", one["peak_mb"], at_most=1024)
    return section


def primal_dual(quick: bool) -> Section:
    """PdMAW and the reverse delete, in multiples of GrMAW's time."""
    section = Section("Primal-dual and reverse delete")
    tasks = [
        *map(link, ("grmaw", "pdmaw", "pdrdmaw")),
        Task("delete", {"algorithm": "grmaw", "heaviest": True}),
    ]
    shapes = ((250, 200),) if quick else ((1000, 200), (10000, 200), (10000, 1000))
    for (nodes, topics), popularity in product(shapes, ("unif", "zipf")):
        instance = Instance(nodes, topics, popularity)
        greedy, dual, deleted, alone = measure(instance, tasks, rounds=1 if nodes > 1000 or quick else 5)
        ratios = {
            "pdmaw / grmaw": dual["cpu_s"] / greedy["cpu_s"],
            "delete / grmaw": alone["cpu_s"] / greedy["cpu_s"],
        }
        section.rows.append(
            instance.row()
            | {
                "grmaw CPU s": greedy["cpu_s"],
                "pdmaw CPU s": dual["cpu_s"],
                "pdrdmaw CPU s": deleted["cpu_s"],
            }
            | ratios
            | {
                "grmaw weight": greedy["total_weight"],
                "pdmaw weight": dual["total_weight"],
                "pdrdmaw weight": deleted["total_weight"],
                "grmaw, deleted": alone["total_weight"],
                "pdmaw bound": dual["lower_bound"],
            }
        )
        what = f"at {nodes:,} nodes, {topics:,} topics ({popularity})"
        section.claim(
            f"pdmaw / grmaw {what}", ratios["pdmaw / grmaw"], at_most={"unif": 2, "zipf": 3}[popularity]
        )
        section.claim(f"reverse delete / grmaw {what}", ratios["delete / grmaw"], at_most=0.2)
    return section


def divide(quick: bool) -> Section:
    """DcMAW on sites of 100 nodes, against GrMAW over all."""
    section = Section("Divide and conquer on sites")
    tasks = {
        "grmaw": link("grmaw"),
        "dcmaw": link("dcmaw", by="site"),
        "dcmaw, deleted": Task("link_delete", {"algorithm": "dcmaw", "by": "site"}),
    }
    for nodes, popularity in product((1000,) if quick else (1000, 10000), ("unif", "zipf")):
        instance = Instance(nodes, 200, popularity, "sites")
        found = dict(zip(tasks, measure(instance, tasks.values(), rounds=1 if quick else 3), strict=True))
        greedy = found["grmaw"]
        for name, one in found.items():
            section.rows.append(
                instance.row()
                | {
                    "what": name,
                    "CPU s": one["cpu_s"],
                    "time / grmaw": one["cpu_s"] / greedy["cpu_s"],
                    "weight": one["total_weight"],
                    "weight / grmaw": one["total_weight"] / greedy["total_weight"],
                }
            )
        if nodes == 10000:
            _, plain, deleted = section.rows[-3:]
            what = f"at {nodes:,} nodes ({popularity})"
            section.claim(f"dcmaw's weight / grmaw's {what}", plain["weight / grmaw"], at_most=1.015)
            section.claim(f"dcmaw's time / grmaw's {what}", plain["time / grmaw"], at_most=0.25)
            section.claim(f"the same, deleted, weight {what}", deleted["weight / grmaw"], at_most=1.0)
    return section


def default(quick: bool) -> Section:
    """Our own algorithm compared with GrMAW: weight, time and certified gap."""
    section = Section("The default algorithm against GrMAW")
    efforts = {"broadloom": link("broadloom"), "broadloom, longer": link("broadloom", **LONGER)}
    cheaper = {"unif": (7.5, 9.5), "zipf": (11.0, 14.5)}
    for popularity, asked in cheaper.items():
        instance = Instance(250 if quick else 1000, 200, popularity)
        greedy, *found = measure(instance, [link("grmaw"), *efforts.values()], rounds=1)
        for name, least, one in zip(efforts, asked, found, strict=True):
            row = instance.row() | {
                "what": name,
                "CPU s": one["cpu_s"],
                "time / grmaw": one["cpu_s"] / greedy["cpu_s"],
                "weight": one["total_weight"],
                "below grmaw %": 100 * (1 - one["total_weight"] / greedy["total_weight"]),
                "lower bound": one["lower_bound"],
            }
            section.rows.append(row)
            section.claim(f"{name} ({popularity}): % below grmaw", row["below grmaw %"], at_least=least)
        section.claim(f"broadloom ({popularity}): time / grmaw", section.rows[-2]["time / grmaw"], at_most=15)
        section.claim(f"broadloom, longer ({popularity}): CPU s", section.rows[-1]["CPU s"], at_most=15)
    return section


def exact(quick: bool) -> Section:
    """The sizes at which the optimum is found within a minute, and the other algorithms relative to it."""
    section = Section("Exact")
    shapes = ((20, 10),) if quick else ((20, 15), (30, 20), (40, 20), (60, 30), (80, 30))
    others = available(("trmaw", "gm", "grmaw", "pdrdmaw", "broadloom"))
    for (nodes, topics), popularity, weights in product(shapes, POPULARITIES, ("planar", "uniform")):
        instance = Instance(nodes, topics, popularity, weights, sizes=(2, 6) if nodes < 60 else (2, 8))
        best, *found = measure(instance, [link("exact", time_limit=60.0), *map(link, others)], rounds=1)
        section.rows.append(
            instance.row()
            | {"CPU s": best["cpu_s"], "optimal": best["notes"]["optimal"], "weight": best["total_weight"]}
            | {
                f"{n} / best": o["total_weight"] / best["total_weight"]
                for n, o in zip(others, found, strict=True)
            }
        )
    return section


def compiling(quick: bool) -> Section:
    """The first call of each algorithm in a new process, with an empty and with a filled kernel cache."""
    section = Section("Compiling: a fresh process, an empty cache, then a warm one")
    names = available(row["name"] for row in bl.algorithms("link"))
    code = (
        "import sys, broadloom as bl\n"
        "interest = bl.workload.interest(nodes=40, topics=100, sizes=(2, 4), seed=0)\n"
        "weights = bl.workload.weights(nodes=40, kind='planar', seed=0)\n"
        "[bl.link(interest, weights, name) for name in sys.argv[1:]]\n"
    )
    for name in ["import only", *(names[:2] if quick else names)]:
        words = ["-c", "import broadloom"] if name == "import only" else ["-c", code, name]
        with tempfile.TemporaryDirectory() as cache:
            cold, warm = (cpu_of_process(words, cache) for _ in range(2))
        section.rows.append({"algorithm": name, "cold CPU s": cold, "warm CPU s": warm})
        section.claim(f"{name}: cold, CPU s", cold, at_most=15)
        section.claim(f"{name}: warm, CPU s", warm, at_most=3)
    return section


def cpu_of_process(words: list[str], cache: str) -> float:
    """The CPU seconds of a new Python process with its kernel cache in that folder."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *words], check=True, env=dict(os.environ, NUMBA_CACHE_DIR=cache))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


SECTIONS = {
    "peer": peer,
    "scale": scale,
    "primal-dual": primal_dual,
    "divide": divide,
    "default": default,
    "compiling": compiling,
    "exact": exact,
    "twin": twin,
    "latency": latency,
    "ties": ties,
    "degrees": degrees,
    "sizes": sizes,
}

if __name__ == "__main__":
    run("link", SECTIONS)

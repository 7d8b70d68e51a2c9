"""Benchmarks of maintenance under churn (paper 3, VI): shadow, naive, and rebuilds by low-oda.

    python benchmarks/maintain.py                      # all sections, several minutes
    python benchmarks/maintain.py --only peer,churn

Paper 3's setting: 2000 nodes, 200 topics, 10 to 90 topics per node by a power law, 1000 rounds of joins and
leaves. The time of a round is the least of several replays of the whole sequence, as in the Java peer; a
round ends when every topic is connected again. Seconds are CPU seconds of this process.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import _peer
import broadloom as bl
from _common import HERE, Section, run
from broadloom.maintenance import Change, fresh_edges, load_kernels

ROUNDS, EVERY, REPLAYS = 1000, 50, 5
CHECKED_EVERY = {"shadow": 1, "naive": 10}  # rounds between two checks that every topic is connected


def workload(nodes: int, popularity: str, rounds: int, seed: int = 0) -> tuple[bl.Interest, tuple[Any, ...]]:
    """Generate the interest and the churn of paper 3."""
    interest = bl.workload.interest(
        nodes=nodes, topics=200, popularity=popularity, sizes=(10, 90), size_law="power", seed=seed
    )
    return interest, bl.workload.churn(interest, rounds=rounds, seed=seed)


def replay(interest: bl.Interest, events: tuple[Any, ...], replays: int, **options: Any) -> list[Change]:
    """Apply the events several times, and return the fastest change of each event."""
    load_kernels()
    if "edges" not in options:
        options["edges"] = bl.link(interest, algorithm="low-oda").edges
    runs = []
    for _ in range(replays):
        live = bl.maintain(interest, **options)
        runs.append([live.apply([event])[0] for event in events])
    best = [min(changes, key=lambda change: change.seconds) for changes in zip(*runs, strict=True)]
    assert all(change.fallbacks == 0 for change in best)
    return best


def rebuild_seconds(interest: bl.Interest, times: int = 3) -> float:
    """The least CPU seconds of several builds by low-oda from scratch."""
    seconds = []
    for _ in range(times):
        start = time.process_time()
        bl.link(interest, algorithm="low-oda")
        seconds.append(time.process_time() - start)
    return min(seconds)


def times(changes: list[Change], kind: str) -> dict[str, float]:
    """Mean, median and 99th percentile of the milliseconds of all rounds of one kind."""
    ms = 1e3 * np.array([change.seconds for change in changes if change.kind == kind])
    return {
        f"{kind} ms": ms.mean(),
        f"{kind} p50": np.quantile(ms, 0.5),
        f"{kind} p99": np.quantile(ms, 0.99),
    }


def mean(changes: list[Change], kind: str, value_of: Any) -> float:
    """The mean of `value_of(change)` over the rounds of one kind."""
    return float(np.mean([value_of(change) for change in changes if change.kind == kind]))


def peer(quick: bool) -> Section:
    """Shadow compared with the Java peer on the same churn file."""
    section = Section("Shadow against the Java peer's TcoDyn, 2,000 nodes, the same churn")
    interest, events = workload(200 if quick else 2000, "unif", 100 if quick else ROUNDS)
    replays = 1 if quick else REPLAYS
    changes = replay(interest, events, replays)
    rebuild = rebuild_seconds(interest)
    row = times(changes, "join") | times(changes, "leave") | {"rebuild ms": 1e3 * rebuild}
    section.rows.append({"who": "broadloom"} | row)
    section.claim("join over a low-oda rebuild", row["join ms"] / 1e3 / rebuild, at_most=1 / 1000)
    section.claim("leave over a low-oda rebuild", row["leave ms"] / 1e3 / rebuild, at_most=1 / 200)
    if _peer.is_available():
        theirs = java(interest, events, replays)
        section.rows.append(
            {"who": "Java peer", "join ms": theirs["join_ms"], "leave ms": theirs["leave_ms"]}
        )
        section.claim("join ms over the Java peer's", row["join ms"] / theirs["join_ms"], at_most=1)
        section.claim("leave ms over the Java peer's", row["leave ms"] / theirs["leave_ms"], at_most=1)
    section.rows.append(
        {
            "who": "paper 3, its own machine",
            "join ms": 2.69,
            "leave ms": 333.0,
            "rebuild ms": 18760.0,
        }
    )
    return section


def java(interest: bl.Interest, events: tuple[Any, ...], replays: int) -> dict[str, Any]:
    """Run the Java peer's shadow on the same input, with as many replays, and return its result."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        sources = sorted(str(source) for source in _peer.FOLDER.glob("*.java"))
        subprocess.run(["javac", "-d", scratch, *sources], check=True)
        _peer.write_interest(folder, interest)
        lines = [
            "J " + " ".join(map(str, event.topics)) if event.kind == "join" else f"L {event.node}"
            for event in events
        ]
        (folder / "churn").write_text("\n".join(lines) + "\n")
        command = [
            "java",
            "-Xmx4g",
            "-cp",
            scratch,
            "TcoDyn",
            "-in",
            str(folder / "interest"),
            "-alg",
            "Shadow",
        ]
        command += ["-churn", str(folder / "churn"), "-runs", str(replays), "-quiet"]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return json.loads(output.splitlines()[0])


def churn(quick: bool) -> Section:
    """Paper 3's comparison of shadow, naive, and low-oda from scratch."""
    section = Section("1,000 rounds of churn, 2,000 nodes, 200 topics")
    nodes, rounds = (150, 60) if quick else (2000, ROUNDS)
    load_kernels()
    for popularity in ("unif", "zipf", "expo"):
        interest, events = workload(nodes, popularity, rounds)
        rebuild = rebuild_seconds(interest)
        fresh: dict[int, tuple[int, float, float]] = {}
        for method in ("shadow", "naive"):
            row = _churn_row(interest, events, method, fresh, rebuild)
            section.rows.append({"popularity": popularity} | row)
            if method == "shadow":
                _claim_churn(section, popularity, row)
    return section


def _churn_row(
    interest: bl.Interest,
    events: tuple[Any, ...],
    method: str,
    fresh: dict[int, tuple[int, float, float]],
    rebuild: float,
) -> dict[str, Any]:
    """The row of one method over all rounds, with regular checks and comparisons with a fresh build."""
    live = bl.maintain(interest, method=method)
    changes = []
    above = []  # maximum and mean degree above those of a fresh build
    broken = 0  # checks that found a disconnected topic
    shadow_shares = []
    for number, event in enumerate(events, start=1):
        changes += live.apply([event])
        shadow_shares.append(len(changes[-1].shadow) / len(live.nodes))
        if number % CHECKED_EVERY[method] == 0:
            plan = live.plan()
            broken += not bl.is_topic_connected(plan.interest, plan.edges)
        if number % EVERY == 0:
            if number not in fresh:
                fresh[number] = _fresh_build(live)
            above.append((live.max_degree - fresh[number][0], live.mean_degree - fresh[number][1]))
    most, average = np.array(above).T
    fastest = replay(interest, events, 2, method=method)
    joins, leaves = (times(fastest, kind)[f"{kind} ms"] for kind in ("join", "leave"))
    changed = [len(change.added) + len(change.removed) for change in changes if change.kind == "leave"]
    return {
        "method": method,
        "join ms": joins,
        "leave ms": leaves,
        "rebuild / join": 1e3 * rebuild / joins,
        "rebuild / leave": 1e3 * rebuild / leaves,
        "join edges": mean(changes, "join", lambda change: change.repair_edges),
        "leave edges": mean(changes, "leave", lambda change: change.repair_edges),
        "leave changed": float(np.mean(changed)),
        "rebuild changed": fresh[EVERY][2],
        "shadow %": 100 * float(np.mean(shadow_shares)),
        "max degree above": float(most.mean()),
        "mean degree above": float(average.mean()),
        "last max above": float(most[-1]),
        "last mean above": float(average[-1]),
        "disconnected": broken,
        "fallbacks": live.counts["fallbacks"],
    }


def _fresh_build(live: bl.Live) -> tuple[int, float, float]:
    """Maximum and mean degree of a fresh build, and how many of its edges change without the last node."""
    plan = live.plan()
    uniform, rules = bl.Weights.uniform(plan.interest.node_count), live._dynamics.rules
    edges = fresh_edges(plan.interest, uniform, rules)
    smaller = plan.interest.subset(range(plan.interest.node_count - 1))
    smaller_edges = fresh_edges(smaller, bl.Weights.uniform(smaller.node_count), rules)
    changed = {tuple(edge) for edge in edges.tolist()} ^ {tuple(edge) for edge in smaller_edges.tolist()}
    degree = np.bincount(edges.ravel(), minlength=plan.interest.node_count)
    return int(degree.max()), float(degree.mean()), float(len(changed))


def _claim_churn(section: Section, popularity: str, row: dict[str, Any]) -> None:
    """Claim that degrees are near those of a fresh build, and that no topic was disconnected."""
    limits = {"max degree above": 6, "mean degree above": 0.8, "last max above": 6, "last mean above": 0.8}
    limits |= {"disconnected": 0, "fallbacks": 0}
    for name, limit in limits.items():
        section.claim(f"{popularity}: {name}", row[name], at_most=limit)


def growth(quick: bool) -> Section:
    """Time of a change and of a rebuild by the number of nodes."""
    section = Section("How it grows")
    for nodes in (100, 200) if quick else (1000, 4000, 16_000):
        interest, events = workload(nodes, "unif", 60 if quick else 200)
        bl.link(interest.subset(range(50)), algorithm="low-oda")
        start = time.process_time()
        edges = bl.link(interest, algorithm="low-oda").edges
        rebuild = time.process_time() - start
        changes = replay(interest, events, 1 if quick else 3, edges=edges)
        start = time.process_time()
        bl.maintain(interest, edges=edges)
        backups = time.process_time() - start
        row: dict[str, Any] = {"nodes": nodes, "rebuild s": rebuild, "backups s": backups}
        row |= times(changes, "join") | times(changes, "leave")
        row["backups ms per leave"] = 1e3 * mean(changes, "leave", lambda change: change.backup_seconds)
        row["shadow"] = mean(changes, "leave", lambda change: len(change.shadow))
        row["rebuild / leave"] = 1e3 * rebuild / row["leave ms"]
        section.rows.append(row)
    return section


def backups(quick: bool) -> Section:
    """Paper 3, VI-A and VI-B: choice of backups, and coverage factors."""
    section = Section("Backups: how they are chosen, and the coverage factor")
    interest, events = workload(150 if quick else 2000, "unif", 60 if quick else ROUNDS)
    edges = bl.link(interest, algorithm="low-oda").edges
    for selection, coverage in (
        ("primal-dual", 1),
        ("primal-dual", 2),
        ("primal-dual", 3),
        ("primal-dual", 4),
        ("greedy", 3),
    ):
        live = bl.maintain(interest, backups=selection, coverage=coverage, edges=edges)
        chosen = np.array([len(live.backups(node)) for node in live.nodes.tolist()])
        served = np.array([len(live.primaries(node)) for node in live.nodes.tolist()])
        changes = live.apply(events)
        section.rows.append(
            {
                "backups": selection,
                "coverage": coverage,
                "mean backups": float(chosen.mean()),
                "% of nodes": 100 * float(chosen.mean()) / len(chosen),
                "fewest primaries": int(served.min()),
                "most primaries": int(served.max()),
                "max degree": live.max_degree,
                "mean degree": live.mean_degree,
                "join edges": mean(changes, "join", lambda change: change.repair_edges),
            }
        )
    return section


def rebaselined(quick: bool) -> Section:
    """Quality over time, with a rebaseline whenever a rebuild is due."""
    section = Section("A check every 50 rounds, and a rebaseline where a rebuild is due")
    for popularity in ("unif", "zipf", "expo"):
        interest, events = workload(150 if quick else 2000, popularity, 100 if quick else ROUNDS)
        live = bl.maintain(interest)
        rebaselines = 0
        changed = 0  # links that the rebaselines changed
        changed_by_fresh = 0  # links that plain fresh builds would have changed
        for first in range(0, len(events), EVERY):
            live.apply(events[first : first + EVERY])
            if live.rebuild_due():
                rebaselines += 1
                changed_by_fresh += len(_fresh_links(live) ^ {tuple(edge) for edge in live.edges.tolist()})
                change = live.rebaseline()
                changed += len(change.added) + len(change.removed)
        drift = live.drift()
        row: dict[str, Any] = {"popularity": popularity, "rebaselines": rebaselines, "links": live.edge_count}
        row |= {"links changed": changed, "by plain fresh builds": changed_by_fresh}
        row["last max above"] = drift.max_degree - drift.fresh_max_degree
        row["last mean above"] = drift.mean_degree - drift.fresh_mean_degree
        section.rows.append(row)
        section.claim(f"{popularity}: maximum degree above a fresh build's", row["last max above"], at_most=6)
        section.claim(f"{popularity}: mean degree above a fresh build's", row["last mean above"], at_most=0.8)
    return section


def _fresh_links(live: bl.Live) -> set[tuple[int, ...]]:
    """The links of a fresh build, by node ids."""
    return {
        tuple(edge) for edge in live.nodes[bl.link(live.plan().interest, algorithm="low-oda").edges].tolist()
    }


def journal(quick: bool) -> Section:
    """Cost of the journal, which has every change on the disk before it is acknowledged."""
    section = Section("The journal: a change without it and with it, 2,000 nodes; milliseconds pass, not CPU")
    interest, events = workload(150 if quick else 2000, "unif", 60 if quick else 200)
    edges = bl.link(interest, algorithm="low-oda").edges
    load_kernels()
    row: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for name in ("without ms", "with ms"):
            live = bl.maintain(interest, edges=edges)
            if name == "with ms":
                start = time.perf_counter()
                live.save(f"{scratch}/live")
                row["save ms"] = 1e3 * (time.perf_counter() - start)
            seconds = [_wall_seconds(live, event) for event in events]
            row[name] = 1e3 * float(np.median(seconds))
        live.close()
        [file] = Path(scratch, "live").glob("journal.*[0-9]")
        row["bytes per change"] = file.stat().st_size / len(events)
        start = time.perf_counter()
        bl.Live.load(f"{scratch}/live").close()
        row |= {"changes": len(events), "load ms": 1e3 * (time.perf_counter() - start)}
    section.rows.append(row)
    return section


def _wall_seconds(live: bl.Live, event: Any) -> float:
    """Apply an event, and return the wall-clock seconds until the change is acknowledged."""
    start = time.perf_counter()
    live.apply([event])
    return time.perf_counter() - start


def kills(quick: bool) -> Section:
    """Crash test: a process is killed at random times; no change is lost or applied twice."""
    section = Section("Killed while it loads, changes or saves")
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, str(HERE / "_kills.py"), scratch, "5" if quick else "200", "0"]
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=dict(os.environ))
    counts = json.loads(done.stdout)
    section.rows.append(counts)
    section.claim("acknowledged changes lost", counts["lost"], at_most=0)
    section.claim("changes applied twice", counts["twice"], at_most=0)
    section.claim("the same as without kills", float(counts["same_as_without_kills"]), at_least=1)
    return section


SECTIONS = {
    "peer": peer,
    "churn": churn,
    "growth": growth,
    "backups": backups,
    "rebaseline": rebaselined,
    "journal": journal,
    "kills": kills,
}

if __name__ == "__main__":
    run("maintain", SECTIONS)

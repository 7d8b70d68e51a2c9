"""Paper 3: Dynamic maintenance of overlays by shadows, by Chen, Vitenberg and Jacobsen."""

from __future__ import annotations

import time
from itertools import product
from typing import Any

import numpy as np

from broadloom.linking.link import link
from broadloom.maintenance.live import Live
from broadloom.maintenance.maintain import maintain
from broadloom.papers.figure import Case, Claim, Figure, Panel, Row
from broadloom.workload import churn, interest

POPULARITIES = ("unif", "zipf", "expo")
DEGREES = (Panel("max_degree", "maximum node degree"), Panel("mean_degree", "average node degree"))
FASTER = "our low-oda takes a hundredth of the paper's time, so that a change is a larger share of it"
SHADOW, NAIVE, FRESH = ({"algorithm": name} for name in ("shadow", "naive", "low-oda"))


def _case(seed: int, quick: bool, popularity: str = "unif", **more: Any) -> Case:
    nodes, rounds = (300, 60) if quick else (2000, 1000)
    return {"seed": seed, "nodes": nodes, "rounds": rounds, "popularity": popularity} | more


def _start(case: Case, **options: Any) -> Live:
    wanted = interest(
        nodes=case["nodes"],
        topics=200,
        popularity=case["popularity"],
        sizes=(10, 90),
        size_law="power",
        seed=case["seed"],
    )
    return maintain(wanted, seed=case["seed"], **options)


def _rounds(case: Case, live: Live) -> Any:
    """Apply the churn of a case, round by round."""
    events = churn(live.interest, case["rounds"], seed=case["seed"])
    for number, event in enumerate(events, start=1):
        (change,) = live.apply([event])
        yield number, change


def _run_backups(case: Case) -> list[Row]:
    """How many backups and primaries nodes have, over the number of their topics."""
    live = _start(case, backups=case["backups"])
    rows = []
    for node in live.nodes.tolist():
        degrees = {"backups": len(live.backups(node)), "primaries": len(live.primaries(node))}
        rows.append(case | {"algorithm": case["backups"], "topics": len(live.topics_of(node))} | degrees)
    return rows


def _run_churn(case: Case) -> list[Row]:
    """Degrees after some of the rounds."""
    live = _start(case, backups=case["backups"], coverage=case["coverage"])
    every = max(1, case["rounds"] // 10)
    return [
        case | {"algorithm": "shadow", "round": number, **_degrees(live)}
        for number, _ in _rounds(case, live)
        if number % every == 0
    ]


def _run_compared(case: Case) -> list[Row]:
    """Shadow, naive and a fresh low-oda on the same churn: degrees, times, repair edges."""
    rows = []
    every = max(1, case["rounds"] // (5 if case["nodes"] < 1000 else 20))
    for method in ("shadow", "naive"):
        live = _start(case, method=method)
        for number, change in _rounds(case, live):
            row = case | {"algorithm": method, "round": number, "kind": change.kind, **_degrees(live)}
            row |= {
                "seconds": change.seconds + change.backup_seconds,
                "shadow": len(change.shadow) / live.nodes.size,
            }
            rows.append(row | {"repair": change.repair_edges, "repair_ratio": change.repair_ratio})
            if method == "shadow" and number % every == 0:
                rows.append(_fresh(case, live, number, change.kind))
    return rows


def _fresh(case: Case, live: Live, number: int, kind: str) -> Row:
    """A row of a low-oda from scratch at this round."""
    began = time.process_time()
    plan = link(live.interest, algorithm="low-oda")
    seconds = time.process_time() - began
    degree = plan.overlay.degrees()
    found = {"max_degree": int(degree.max()), "mean_degree": float(degree.mean()), "seconds": seconds}
    return case | {"algorithm": "low-oda", "round": number, "kind": kind} | found


def _degrees(live: Live) -> Row:
    return {"max_degree": live.max_degree, "mean_degree": live.mean_degree}


def _share(kind: str, algorithm: dict[str, str], theirs: float) -> Claim:
    return Claim(
        "VI-C",
        f"time of a {kind} ({algorithm['algorithm']}) over that of a fresh Low-ODA",
        theirs,
        lambda rows: rows.mean("seconds", kind=kind, **algorithm) / rows.mean("seconds", **FRESH),
        relation="at most",
        why=FASTER,
    )


def _drift(column: str, theirs: float) -> Claim:
    def ours(rows: Any) -> float:
        rounds = {row["round"] for row in rows.where(**FRESH).all}
        gaps = [rows.mean(column, round=n, **SHADOW) - rows.mean(column, round=n, **FRESH) for n in rounds]
        return float(np.mean(gaps))

    what = "maximum" if column == "max_degree" else "average"
    return Claim(
        "VI-C", f"the shadow's {what} degree less a fresh Low-ODA's", theirs, ours, relation="at most"
    )


def _covered(coverage: int, theirs: float) -> Claim:
    return Claim(
        "VI-B",
        f"maximum degree after 1000 rounds, coverage {coverage}",
        theirs,
        lambda rows: rows.mean("max_degree", round=1000, coverage=coverage),
        at_full_size=True,
    )


def _backup_figure(name: str, backups: str, share: float) -> Figure:
    return Figure(
        3,
        name,
        f"Backups and primaries chosen by {backups}",
        "topics",
        "topics of the node",
        ("algorithm",),
        (Panel("backups", "backups"), Panel("primaries", "primaries")),
        lambda quick: [_case(0, quick, backups=backups)],
        _run_backups,
        (
            Claim(
                "VI-A",
                f"mean number of backups over all nodes, {backups}",
                share,
                lambda rows: rows.mean("backups") / rows.mean("nodes"),
                tolerance=0.5,
                why="the share falls with the number of nodes",
                at_full_size=True,
            ),
        ),
    )


FIG2 = _backup_figure("fig2", "greedy", 0.011)
FIG3 = _backup_figure("fig3", "primal-dual", 0.028)
FIG4 = Figure(
    3,
    "fig4",
    "Degrees under churn by how backups are chosen",
    "round",
    "round of churn",
    ("backups",),
    DEGREES,
    lambda quick: [_case(0, quick, backups=b, coverage=3) for b in ("greedy", "primal-dual")],
    _run_churn,
    (
        Claim(
            "VI-A",
            "maximum degree after 1000 rounds, greedy backups",
            84,
            lambda rows: rows.mean("max_degree", round=1000, backups="greedy"),
            why="ties among greedy backups are broken otherwise",
            at_full_size=True,
        ),
    ),
)
FIG5 = Figure(
    3,
    "fig5",
    "Maximum degree under churn by the coverage factor",
    "round",
    "round of churn",
    ("coverage",),
    DEGREES,
    lambda quick: [_case(0, quick, backups="primal-dual", coverage=c) for c in (1, 2, 3, 4)],
    _run_churn,
    tuple(map(_covered, (1, 2, 3, 4), (31, 25, 24, 24))),
)


def _compared(quick: bool) -> list[Case]:
    names = POPULARITIES[:2] if quick else POPULARITIES
    return [_case(seed, quick, name) for name, seed in product(names, range(1 if quick else 3))]


FIG6 = Figure(
    3,
    "fig6",
    "Degrees under churn: shadow, naive and Low-ODA from scratch",
    "round",
    "round of churn",
    ("algorithm", "popularity"),
    DEGREES,
    _compared,
    _run_compared,
    (_drift("max_degree", 5.5), _drift("mean_degree", 0.798)),
)
FIG7 = Figure(
    3,
    "fig7",
    "Time of a change over the round",
    "round",
    "round of churn",
    ("algorithm", "kind"),
    (Panel("seconds", "seconds", log=True), Panel("shadow", "share of nodes in the shadow")),
    _compared,
    _run_compared,
    (
        _share("join", SHADOW, 0.00014),
        _share("join", NAIVE, 0.00043),
        _share("leave", SHADOW, 0.0178),
        _share("leave", NAIVE, 0.14),
        Claim(
            "VI-C",
            "share of nodes in the shadow",
            0.0159,
            lambda rows: rows.mean("shadow", **SHADOW),
            "at most",
            1.0,
        ),
    ),
    shares="fig6",
)
FIG8 = Figure(
    3,
    "fig8",
    "Repair edges of a change",
    "round",
    "round of churn",
    ("algorithm", "kind"),
    (Panel("repair", "repair edges"), Panel("repair_ratio", "repair ratio", log=True)),
    _compared,
    _run_compared,
    (
        Claim(
            "VI-C",
            "repair edges of a join",
            4.83,
            lambda rows: rows.mean("repair", kind="join", **SHADOW),
            tolerance=0.5,
        ),
        Claim(
            "VI-C",
            "repair edges of a leave",
            12.24,
            lambda rows: rows.mean("repair", kind="leave", **SHADOW),
            tolerance=0.5,
        ),
    ),
    shares="fig6",
)

FIGURES = (FIG2, FIG3, FIG4, FIG5, FIG6, FIG7, FIG8)

"""Paper 3: Dynamic maintenance of overlays by shadows, by Chen, Vitenberg and Jacobsen."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from broadloom.linking import link
from broadloom.maintenance import Change, Live, maintain
from broadloom.papers.figures import Case, Claim, Figure, FigureRows, Panel, Row
from broadloom.workload import churn, interest

POPULARITIES = ("unif", "zipf", "expo")
DEGREES = (Panel("max_degree", "maximum node degree"), Panel("mean_degree", "average node degree"))
REBUILDS = 100  # rounds with a Low-ODA from scratch; all rounds if there are fewer
FASTER = (
    "our low-oda is faster than the paper's by a larger factor than our changes are, so a change takes a "
    "larger share of its time"
)
OTHER_SHADOW = "backups are drawn at random, and the share of nodes in a shadow falls with their number"
OTHER_TIES = (
    "the paper does not state how ties between links are broken; a maximum degree depends on one node"
)
OTHER_LAW = (
    "the number of links and backups depends on the number of nodes, and on the power law of the sizes of "
    "subscriptions, which the paper does not state"
)
OTHER_BUILDS = (
    "how ties are broken, which the paper does not state, decides how similar two builds from scratch are"
)
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


class ChurnRound(NamedTuple):
    """A round of churn: its number, the change, the number of topics of its node, and the CPU seconds."""

    number: int
    change: Change
    size: int
    seconds: float


def _rounds(case: Case, live: Live) -> Iterator[ChurnRound]:
    """Apply the churn of a case to `live`, and yield each round."""
    events = churn(live.interest, case["rounds"], seed=case["seed"])
    for number, event in enumerate(events, start=1):
        size = len(event.topics if event.kind == "join" else live.topics_of(event.node))
        began = time.process_time()
        (change,) = live.apply([event])
        yield ChurnRound(number, change, size, time.process_time() - began)


def _run_backups(case: Case) -> list[Row]:
    """Backups and primaries of each node, over the number of its topics."""
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
        case | {"algorithm": "shadow", "round": done.number, **_degrees(live)}
        for done in _rounds(case, live)
        if done.number % every == 0
    ]


def _run_compared(case: Case) -> list[Row]:
    """Shadow, naive and a fresh low-oda on the same churn: degrees, times, repair edges."""
    _compile()
    return _compare(case)


@cache
def _compile() -> None:
    """Run everything on a small case first, so that measured times exclude the compilation of kernels."""
    _compare(_case(0, quick=True, rebuilds=REBUILDS) | {"nodes": 60, "rounds": 20})


def _compare(case: Case) -> list[Row]:
    fresh = _rebuilt(case)
    rebuild = FigureRows(tuple(fresh)).median("seconds") or np.nan  # 0 if the clock is coarse
    shadow, naive = (_maintained(case, method) for method in ("shadow", "naive"))
    for mine, other in zip(shadow, naive, strict=True):
        other["shadow_size"] = mine["shadow_size"]  # as in the paper: naive has no shadow
        del other["repair_ratio"]  # the paper shows it for the other two only
        for row in (mine, other):
            row["time_ratio"] = row["seconds"] / rebuild
    return [*shadow, *naive, *fresh]


def _maintained(case: Case, method: str) -> list[Row]:
    """One row per round. As in the paper, all added and all removed links are repair edges."""
    live, rows = _start(case, method=method), []
    for done in _rounds(case, live):
        change = done.change
        repair = len(change.added) + len(change.removed)
        rows.append(
            _row(case, method, done, repair, change.edges_before, done.seconds)
            | _degrees(live)
            | {"shadow": len(change.shadow) / live.nodes.size, "shadow_size": len(change.shadow)}
        )
    return rows


def _rebuilt(case: Case) -> list[Row]:
    """A low-oda from scratch in some of the rounds, compared with one of the round before."""
    every = max(1, case["rounds"] // case["rebuilds"])
    live, rows = _start(case, method="naive"), []
    before, _ = _fresh(live)
    for done in _rounds(case, live):
        sampled = done.number % every == 0
        if not sampled and (done.number + 1) % every:
            continue
        edges, seconds = _fresh(live)
        if sampled:
            degree = np.bincount(edges.ravel())
            repair = len(set(map(tuple, before.tolist())) ^ set(map(tuple, edges.tolist())))
            rows.append(
                _row(case, "low-oda", done, repair, len(before), seconds)
                | {"max_degree": int(degree.max()), "mean_degree": 2 * len(edges) / live.nodes.size}
            )
        before = edges
    return rows


def _fresh(live: Live) -> tuple[NDArray[np.int32], float]:
    """The links of a low-oda from scratch, by the ids of nodes, and its seconds."""
    wanted = live.interest
    began = time.process_time()
    plan = link(wanted, algorithm="low-oda")
    return plan.overlay.edges, time.process_time() - began


def _row(case: Case, algorithm: str, done: ChurnRound, repair: int, edges: int, seconds: float) -> Row:
    kind = {"algorithm": algorithm, "round": done.number, "kind": done.change.kind, "size": done.size}
    return case | kind | {"seconds": seconds, "repair": repair, "repair_ratio": repair / max(edges, 1)}


def _degrees(live: Live) -> Row:
    return {"max_degree": live.max_degree, "mean_degree": live.mean_degree}


def _share(kind: str, algorithm: dict[str, str], theirs: float) -> Claim:
    return Claim(
        "VI-C",
        f"time of a {kind} ({algorithm['algorithm']}) over that of a fresh Low-ODA, median",
        theirs,
        lambda rows: rows.median("time_ratio", kind=kind, **algorithm),
        relation="at most",
        why=FASTER,
    )


def _seconds(theirs: float, what: str, **which: str) -> Claim:
    return Claim(
        "VI-C",
        f"seconds of {what}, median",
        theirs,
        lambda rows: rows.median("seconds", **which),
        relation="at most",
        why="the processor is a different one",
        at_full_size=True,
    )


def _repair(column: str, text: str, theirs: float, why: str = OTHER_LAW, **which: str) -> Claim:
    return Claim(
        "VI-C",
        text,
        theirs,
        lambda rows: rows.mean(column, **which),
        tolerance=0.5,
        why=why,
        at_full_size=column == "repair_ratio"
        or which == FRESH,  # changes are local, but the total depends on the size
    )


def _drift(column: str, theirs: float) -> Claim:
    def ours(rows: FigureRows) -> float:
        rounds = {row["round"] for row in rows.where(**FRESH).all}
        gaps = [rows.mean(column, round=n, **SHADOW) - rows.mean(column, round=n, **FRESH) for n in rounds]
        return float(np.mean(gaps))

    what = "maximum" if column == "max_degree" else "average"
    return Claim(
        "VI-C",
        f"the shadow's {what} degree less a fresh Low-ODA's",
        theirs,
        ours,
        relation="at most",
        why=OTHER_TIES,
    )


def _reached(number: int, theirs: float) -> Claim:
    return Claim(
        "VI-C",
        f"the shadow's maximum degree after round {number}",
        theirs,
        lambda rows: rows.mean("max_degree", round=number, **SHADOW),
        why=OTHER_TIES,
        at_full_size=True,
    )


def _covered(coverage: int, theirs: float) -> Claim:
    return Claim(
        "VI-B",
        f"maximum degree after 1000 rounds, coverage {coverage}",
        theirs,
        lambda rows: rows.mean("max_degree", round=1000, coverage=coverage),
        why=OTHER_TIES,
        at_full_size=True,
    )


def _primaries(text: str, theirs: float, ours: Callable[[list[float]], float]) -> Claim:
    return Claim(
        "VI-A",
        text,
        theirs,
        lambda rows: ours(rows.values("primaries")),
        why=OTHER_LAW,
        at_full_size=True,
    )


def _backup_figure(name: str, backups: str, share: float, *more: Claim) -> Figure:
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
            *more,
        ),
    )


FIG2 = _backup_figure(
    "fig2",
    "greedy",
    0.011,
    _primaries(
        "share of the nodes with fewer than 5 primaries, greedy",
        0.429,
        lambda found: float(np.mean(np.less(found, 5))),
    ),
)
FIG3 = _backup_figure(
    "fig3",
    "primal-dual",
    0.028,
    _primaries("the fewest primaries of a node, primal-dual", 21, min),
    _primaries("the most primaries of a node, primal-dual", 59, max),
)
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
            why="ties among greedy backups are broken in another way",
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
    every = product(names, range(1 if quick else 3))
    return [_case(seed, quick, name, rebuilds=REBUILDS) for name, seed in every]


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
    (_drift("max_degree", 5.5), _drift("mean_degree", 0.798), _reached(1, 13), _reached(1000, 22)),
)
FIG7 = Figure(
    3,
    "fig7",
    "Time of a change over that of a fresh Low-ODA, by the size of the shadow",
    "shadow_size",
    "nodes in the shadow",
    ("algorithm", "kind"),
    (Panel("time_ratio", "time over a fresh Low-ODA's", log=True, dots=True),),
    _compared,
    _run_compared,
    (
        _share("join", SHADOW, 0.00014),
        _share("join", NAIVE, 0.00043),
        _share("leave", SHADOW, 0.0178),
        _share("leave", NAIVE, 0.14),
        Claim(
            "VI-C",
            "time of a change (naive) over that of a fresh Low-ODA, the largest",
            0.616,
            lambda rows: rows.most("time_ratio", **NAIVE),
            relation="at most",
            why=FASTER,
        ),
        _seconds(18.76, "a fresh Low-ODA", **FRESH),
        _seconds(0.00793, "a join (naive)", kind="join", **NAIVE),
        _seconds(2.575, "a leave (naive)", kind="leave", **NAIVE),
        _seconds(0.00269, "a join (shadow)", kind="join", **SHADOW),
        _seconds(0.333, "a leave (shadow)", kind="leave", **SHADOW),
        Claim(
            "VI-C",
            "share of the nodes in the shadow, mean",
            0.0159,
            lambda rows: rows.mean("shadow", **SHADOW),
            tolerance=0.5,
            why=OTHER_SHADOW,
            at_full_size=True,
        ),
        Claim(
            "VI-C",
            "share of the nodes in the shadow, the largest",
            0.0497,
            lambda rows: rows.most("shadow", **SHADOW),
            relation="at most",
            why=OTHER_SHADOW,
            at_full_size=True,
        ),
    ),
    shares="fig6",
)
FIG8 = Figure(
    3,
    "fig8",
    "Share of the links that a change alters, by the number of the node's topics",
    "size",
    "topics of the node that joins or leaves",
    ("algorithm", "kind"),
    (Panel("repair_ratio", "repair ratio", log=True, dots=True),),
    _compared,
    _run_compared,
    (
        _repair("repair_ratio", "repair ratio of Low-ODA", 0.094, OTHER_BUILDS, **FRESH),
        _repair("repair_ratio", "repair ratio of Low-ODA, joins", 0.113, OTHER_BUILDS, kind="join", **FRESH),
        _repair(
            "repair_ratio", "repair ratio of Low-ODA, leaves", 0.075, OTHER_BUILDS, kind="leave", **FRESH
        ),
        _repair("repair_ratio", "repair ratio of shadow, joins", 0.00068, kind="join", **SHADOW),
        _repair("repair_ratio", "repair ratio of shadow, leaves", 0.0017, kind="leave", **SHADOW),
        _repair("repair", "repair edges of Low-ODA", 610, OTHER_BUILDS, **FRESH),
        _repair("repair", "repair edges of a join (shadow)", 4.83, kind="join", **SHADOW),
        _repair("repair", "repair edges of a leave (shadow)", 12.24, kind="leave", **SHADOW),
    ),
    shares="fig6",
)

FIGURES = (FIG2, FIG3, FIG4, FIG5, FIG6, FIG7, FIG8)

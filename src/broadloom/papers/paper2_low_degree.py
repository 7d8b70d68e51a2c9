"""Paper 2: Parameterized Maximum and Average Degree Approximation, by Onus and Richa."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product

from broadloom.model import Interest
from broadloom.papers.figures import Case, Claim, Figure, FigureRows, Panel, Row
from broadloom.papers.paper1_weighted_overlays import measured
from broadloom.workload import interest

AVERAGE, MAXIMUM = "mean_degree", "max_degree"
CLOSE = (
    "the degrees of the three algorithms are close at these sizes: their order depends on the seeds, and on "
    "how ties are broken, which the paper does not state"
)
TIES = (
    "the heuristics differ little in the order of the centres of stars; the paper does not state how ties "
    "are broken"
)
GM, CD, CD2 = ({"algorithm": name} for name in ("gm", "cd-oda", "cd-oda-2"))


def _wanted(case: Case) -> Interest:
    return interest(
        nodes=case["nodes"],
        topics=case["topics"],
        popularity=case["popularity"],
        alpha=0.5,
        sizes=(case["size"], case["size"]),
        seed=case["seed"],
    )


def _run(case: Case, *algorithms: str) -> list[Row]:
    return [measured(case, _wanted(case), None, name) for name in algorithms]


def _run_k(case: Case) -> list[Row]:
    wanted = _wanted(case)
    return [measured(case, wanted, None, "low-oda", k=case["k"])]


def _case(seed: int, nodes: int, size: int = 10, popularity: str = "zipf") -> Case:
    return {"seed": seed, "nodes": nodes, "topics": 100, "popularity": popularity, "size": size}


def _by_nodes(quick: bool) -> list[Case]:
    nodes: Iterable[int] = (100, 200, 400) if quick else range(100, 1001, 100)
    return [_case(seed, n) for n, seed in product(nodes, range(3 if quick else 10))]


def _by_k(quick: bool) -> list[Case]:
    return [_case(seed, 100) | {"k": k} for k, seed in product(range(1, 9), range(5 if quick else 20))]


def _by_size(quick: bool) -> list[Case]:
    sizes = (10, 30, 50) if quick else range(10, 51, 5)
    return [_case(seed, 100, size, "unif") for size, seed in product(sizes, range(5 if quick else 20))]


def _worst(rows: FigureRows, one: dict[str, str], other: dict[str, str]) -> float:
    """The largest ratio of mean degrees over the sizes."""
    sizes = sorted({row["size"] for row in rows.all})
    return max(rows.mean(AVERAGE, size=s, **one) / rows.mean(AVERAGE, size=s, **other) for s in sizes)


def _edges(name: str, algorithm: dict[str, str], theirs: float) -> Claim:
    return Claim(
        "VI-D",
        f"{name}'s edges over GM's, at most",
        theirs,
        lambda rows: _worst(rows, algorithm, GM),
        relation="at most",
        why=TIES,
    )


def _between(column: str) -> Claim:
    """Low-ODA lies between GM and MinMax-ODA at every number of nodes."""

    def share(rows: FigureRows) -> float:
        points = sorted({row["nodes"] for row in rows.all})
        inside = 0
        for n in points:
            gm, low, minmax = (
                rows.mean(column, nodes=n, algorithm=name) for name in ("gm", "low-oda", "minmax-oda")
            )
            inside += min(gm, minmax) <= low <= max(gm, minmax)
        return inside / len(points)

    what = "maximum" if column == MAXIMUM else "average"
    return Claim(
        "V",
        f"share of points where Low-ODA's {what} degree is between the others'",
        1,
        share,
        tolerance=0.1,
        why=CLOSE,
    )


def _trend(column: str, sign: int) -> Claim:
    def slope(rows: FigureRows) -> float:
        return sign * (rows.mean(column, k=8) - rows.mean(column, k=1))

    what = "maximum degree falls" if sign < 0 else "average degree rises"
    return Claim(
        "V-C",
        f"the {what} from k = 1 to k = 8 (by at least 0)",
        0,
        slope,
        relation="at least",
        why=CLOSE,
    )


STARS = ("cd-oda", "cd-oda-1", "cd-oda-2")
THREE = ("gm", "minmax-oda", "low-oda")
FIG1 = Figure(
    2,
    "fig1",
    "Maximum degree of GM, MinMax-ODA and Low-ODA",
    "nodes",
    "nodes",
    ("algorithm",),
    (Panel(MAXIMUM, "maximum node degree"),),
    _by_nodes,
    lambda case: _run(case, *THREE),
    (_between(MAXIMUM),),
)
FIG2 = Figure(
    2,
    "fig2",
    "Average degree of GM, MinMax-ODA and Low-ODA",
    "nodes",
    "nodes",
    ("algorithm",),
    (Panel(AVERAGE, "average node degree"),),
    _by_nodes,
    lambda case: _run(case, *THREE),
    (_between(AVERAGE),),
    shares="fig1",
)
FIG3 = Figure(
    2,
    "fig3",
    "Maximum degree of Low-ODA over k",
    "k",
    "k",
    ("algorithm",),
    (Panel(MAXIMUM, "maximum node degree"),),
    _by_k,
    _run_k,
    (_trend(MAXIMUM, -1),),
)
FIG4 = Figure(
    2,
    "fig4",
    "Average degree of Low-ODA over k",
    "k",
    "k",
    ("algorithm",),
    (Panel(AVERAGE, "average node degree"),),
    _by_k,
    _run_k,
    (_trend(AVERAGE, 1),),
    shares="fig3",
)
FIG5 = Figure(
    2,
    "fig5",
    "Average degree at diameter 2: GM and the CD-ODA family",
    "size",
    "topics per node",
    ("algorithm",),
    (Panel(AVERAGE, "average node degree"),),
    _by_size,
    lambda case: _run(case, "gm", *STARS),
    (
        _edges("CD-ODA", CD, 2.3),
        _edges("CD-ODA-II", CD2, 1.8),
        Claim(
            "VI-D",
            "CD-ODA-II's degree over CD-ODA's",
            0.8,
            lambda r: r.ratio(AVERAGE, CD2, CD, "size"),
            tolerance=0.1,
            why=TIES,
        ),
        Claim(
            "VI-D",
            "CD-ODA-II's degree over CD-ODA-I's",
            0.99,
            lambda r: r.ratio(AVERAGE, CD2, {"algorithm": "cd-oda-1"}, "size"),
            tolerance=0.05,
            why=TIES,
        ),
        Claim(
            "VI-D",
            "the largest mean topic diameter of the CD-ODA family (each is 2)",
            2,
            lambda r: max(r.most("mean_diameter", algorithm=name) for name in STARS),
            tolerance=0,
            why="a topic of fewer than three nodes has a smaller diameter",
        ),
    ),
)

FIGURES = (FIG1, FIG2, FIG3, FIG4, FIG5)

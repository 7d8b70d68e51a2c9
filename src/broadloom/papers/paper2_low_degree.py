"""Paper 2: Parameterized Maximum and Average Degree Approximation, by Onus and Richa (ICDCS 2010).

Low-ODA takes e1 if its contribution is greater than that of e2 over k, as the text of section III says;
Alg. 1 prints "at least". Ties are random.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import product

import numpy as np

from broadloom.linking import link
from broadloom.model import Interest
from broadloom.papers.figures import (
    BOUND,
    NUMBER,
    ORDER,
    TREND,
    Case,
    Claim,
    Figure,
    FigureRows,
    Measured,
    Panel,
    Reason,
    Row,
    order,
    plain,
    trend,
)
from broadloom.papers.paper1_weighted_overlays import measured
from broadloom.workload import interest

AVERAGE, MAXIMUM = "mean_degree", "max_degree"
GM, LOW, MINMAX, CD, CD1, CD2 = (
    {"algorithm": name} for name in ("gm", "low-oda", "minmax-oda", "cd-oda", "cd-oda-1", "cd-oda-2")
)
PRINTED = {"algorithm": "low-oda (>=)"}
STARS = ("cd-oda", "cd-oda-1", "cd-oda-2")
RULE = "Low-ODA with > (text of section III), ties at random"


def _wanted(case: Case, seed: int) -> Interest:
    return interest(
        nodes=case["nodes"],
        topics=case["topics"],
        popularity=case["popularity"],
        alpha=0.5,
        sizes=(case["size"], case["size"]),
        seed=seed,
    )


def _case(seed: int, nodes: int, size: int = 10, popularity: str = "zipf") -> Case:
    return {"seed": seed, "nodes": nodes, "topics": 100, "popularity": popularity, "size": size}


def _row(case: Case, wanted: Interest, name: str, ties: str = "random") -> Row:
    options = {"k": case.get("k", 3), "strict": case.get("strict", True)} if name == "low-oda" else {}
    return measured(case, wanted, None, name, ties=ties, **options)


# Fig. 1 and 2: GM, MinMax-ODA and Low-ODA over the number of nodes


def _by_nodes(quick: bool) -> list[Case]:
    nodes: Iterable[int] = (100, 200, 400) if quick else range(100, 1001, 100)
    return [_case(seed, n) for n, seed in product(nodes, range(5 if quick else 20))]


def _run_three(case: Case) -> list[Row]:
    wanted = _wanted(case, case["seed"])
    return [_row(case, wanted, name) for name in ("gm", "minmax-oda", "low-oda")]


def _better(column: str, low: dict[str, str], high: dict[str, str], text: str) -> Claim:
    return Claim(
        ORDER,
        "V-A, V-B",
        text,
        order(column, low, high, ("nodes", "seed")),
        setup=RULE,
        reason=_by_rule(column),
        experiment="paper2-ties",
    )


def _by_rule(column: str) -> Reason:
    """Low-ODA's mean less MinMax-ODA's, by the number of nodes, for each rule and each way to break ties."""

    def text(rows: FigureRows) -> str:
        parts = []
        for (ties,), (rule, one) in product(rows.points("ties"), ((">", LOW), (">=", PRINTED))):
            found = rows.where(ties=ties)
            gaps = [
                f"{n} nodes {found.mean(column, nodes=n, **one) - found.mean(column, nodes=n, **MINMAX):+.2f}"
                for (n,) in found.points("nodes")
            ]
            parts.append(f"{rule}, ties {ties}: {', '.join(gaps)}")
        return "Low-ODA's less MinMax-ODA's by the number of nodes, with " + "; with ".join(parts)

    return text


def _between(column: str, low: dict[str, str], high: dict[str, str], what: str) -> Claim:
    """At how many numbers of nodes Low-ODA is between two others."""

    def ours(rows: FigureRows) -> Measured:
        nodes = [n for (n,) in rows.points("nodes")]
        means = [[rows.mean(column, nodes=n, **one) for one in (low, LOW, high)] for n in nodes]
        count = sum(least <= middle <= most for least, middle, most in means)
        share = count / len(nodes) if nodes else float("nan")
        return Measured(share, text=f"{count} of {len(nodes)} numbers of nodes")

    return Claim(
        BOUND,
        "V-A, V-B",
        f"share of the numbers of nodes at which Low-ODA's {what} degree is between GM's and MinMax-ODA's",
        ours,
        1,
        "at least",
        setup=RULE,
        reason=_by_rule(column),
        experiment="paper2-ties",
    )


def _degrades(column: str, what: str, name: str, other: dict[str, str]) -> Claim:
    return Claim(
        ORDER,
        "V",
        f"Low-ODA's {what} degree is hardly above {name}'s (printed: a small degradation)",
        order(column, other, LOW, ("nodes", "seed")),
        relation="alike",
        setup=RULE,
        reason=_by_rule(column),
        experiment="paper2-ties",
    )


FIG1 = Figure(
    2,
    "fig1",
    "Maximum degree of GM, MinMax-ODA and Low-ODA",
    "nodes",
    "nodes",
    ("algorithm",),
    (Panel(MAXIMUM, "maximum node degree"),),
    _by_nodes,
    _run_three,
    (
        _better(MAXIMUM, LOW, GM, "Low-ODA's maximum degree is below GM's"),
        _better(MAXIMUM, MINMAX, LOW, "MinMax-ODA's maximum degree is below Low-ODA's"),
        _between(MAXIMUM, MINMAX, GM, "maximum"),
        _degrades(MAXIMUM, "maximum", "MinMax-ODA", MINMAX),
    ),
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
    _run_three,
    (
        _better(AVERAGE, LOW, MINMAX, "Low-ODA's average degree is below MinMax-ODA's"),
        _better(AVERAGE, GM, LOW, "GM's average degree is below Low-ODA's"),
        _between(AVERAGE, GM, MINMAX, "average"),
        _degrades(AVERAGE, "average", "GM", GM),
    ),
    shares="fig1",
)


# Fig. 3 and 4: Low-ODA over k


def _by_k(quick: bool) -> list[Case]:
    return [_case(seed, 100) | {"k": k} for k, seed in product(range(1, 9), range(10 if quick else 100))]


def _run_k(case: Case) -> list[Row]:
    wanted = _wanted(case, case["seed"])
    printed = _row(case | {"strict": False}, wanted, "low-oda") | PRINTED
    others = [_row(case, wanted, name) for name in ("gm", "minmax-oda")]
    return [_row(case, wanted, "low-oda"), printed, *others]


def _each_k(column: str) -> Reason:
    """The means for each k, with both rules."""

    def means(rows: FigureRows, algorithm: str) -> str:
        return ", ".join(plain(rows.mean(column, k=k, algorithm=algorithm)) for (k,) in rows.points("k"))

    return lambda rows: (
        f"for k = 1 to 8 with > {means(rows, 'low-oda')}; with >= as printed {means(rows, 'low-oda (>=)')}"
    )


def _as(column: str, what: str, k: int, name: str, other: dict[str, str]) -> Claim:
    return Claim(
        ORDER,
        "V-C",
        f"at k = {k} Low-ODA's {what} degree is that of {name}",
        lambda rows: order(column, other, LOW, ("seed",))(rows.where(k=k)),
        relation="alike",
        setup=RULE,
        reason=_each_k(column),
    )


def _k_figure(name: str, column: str, what: str, sign: int, shares: str | None) -> Figure:
    moves = "falls" if sign < 0 else "rises"
    return Figure(
        2,
        name,
        f"{what.capitalize()} degree of Low-ODA over k",
        "k",
        "k",
        ("algorithm",),
        (Panel(column, f"{what} node degree"),),
        _by_k,
        _run_k,
        (
            Claim(
                TREND,
                "V-C",
                f"the {what} degree {moves} as k rises from 1 to 8",
                trend(column, "k", sign, ("seed",), **LOW),
                setup=RULE,
                reason=_each_k(column),
            ),
            _as(column, what, 1, "GM", GM),
            _as(column, what, 8, "MinMax-ODA", MINMAX),
        ),
        shares=shares,
    )


FIG3 = _k_figure("fig3", MAXIMUM, "maximum", -1, None)
FIG4 = _k_figure("fig4", AVERAGE, "average", 1, "fig3")


# Fig. 5: diameter 2, with a draw of its own for each algorithm


def _by_size(quick: bool) -> list[Case]:
    sizes = (10, 30, 50) if quick else range(10, 51, 5)
    return [_case(seed, 100, size, "unif") for size, seed in product(sizes, range(10 if quick else 100))]


def _run_stars(case: Case) -> list[Row]:
    """Each algorithm on a draw of its own, and the CD-ODA family also on GM's draw, for comparison."""
    names = ("gm", *STARS)
    rows = []
    for number, name in enumerate(names):
        rows.append(_row(case, _wanted(case, 1000 * number + case["seed"]), name) | {"draw": "own"})
    same = _wanted(case, case["seed"])
    rows += [_row(case, same, name) | {"draw": "same"} for name in names]
    return rows


OWN = {"draw": "own"}


def _worst(rows: FigureRows, one: dict[str, str], draw: str) -> float:
    """The largest ratio of mean degrees over the sizes."""
    found = rows.where(draw=draw)
    return max(
        found.mean(AVERAGE, size=s, **one) / found.mean(AVERAGE, size=s, **GM)
        for (s,) in found.points("size")
    )


def _by_ties(rows: FigureRows, ours: Callable[[FigureRows], float]) -> str:
    """A number on the same draws for all algorithms, for each way to break ties and each size."""
    parts = []
    for (ties,) in rows.points("ties"):
        found = rows.where(ties=ties)
        sizes = ", ".join(f"{size} {plain(ours(found.where(size=size)))}" for (size,) in found.points("size"))
        parts.append(f"ties {ties} {plain(ours(found))}, by topics per node: {sizes}")
    return (
        "neither the draws nor how ties are broken explain it, and no other reason is known; on the same "
        "draws for all algorithms: " + "; ".join(parts)
    )


def _edges(name: str, algorithm: dict[str, str], theirs: float) -> Claim:
    return Claim(
        BOUND,
        "VI-D",
        f"{name}'s edges over GM's, the largest mean of all sizes",
        lambda rows: _worst(rows, algorithm, "own"),
        theirs,
        "at most",
        reason=lambda rows: _by_ties(rows, lambda found: _worst(found, algorithm, "same")),
        experiment="paper2-stars",
        setup="a draw of its own for each algorithm, ties at random",
    )


def _over(
    lower: str, one: dict[str, str], name: str, other: dict[str, str], theirs: float, where: str = "VI-D"
) -> Claim:
    return Claim(
        NUMBER,
        where,
        f"by which share {lower}'s degree is below {name}'s, mean over the sizes",
        lambda rows: 1 - rows.where(**OWN).ratio(AVERAGE, one, other, "size"),
        theirs,
        reason=lambda rows: _by_ties(rows, lambda found: 1 - found.ratio(AVERAGE, one, other, "size")),
        experiment="paper2-stars",
        setup="a draw of its own for each algorithm, ties at random",
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
    _run_stars,
    (
        _edges("CD-ODA", CD, 2.3),
        _edges("CD-ODA-II", CD2, 1.8),
        _over("CD-ODA-II", CD2, "CD-ODA", CD, 0.2),
        _over("CD-ODA-I", CD1, "CD-ODA", CD, 0.2, "I-A, VI"),
        _over("CD-ODA-II", CD2, "CD-ODA-I", CD1, 0.01),
        *(
            Claim(
                ORDER,
                "VI-D",
                text,
                order(AVERAGE, low, high, ("size", "seed"), **OWN),
                setup="ties at random",
            )
            for text, low, high in (
                ("CD-ODA-II's degree is below CD-ODA's", CD2, CD),
                ("CD-ODA-I's degree is below CD-ODA's", CD1, CD),
                ("CD-ODA-II's degree is below CD-ODA-I's", CD2, CD1),
            )
        ),
        *(
            Claim(
                TREND,
                "VI-D",
                f"{name}'s average degree falls as nodes have more topics",
                trend(AVERAGE, "size", -1, ("seed",), draw="own", **one),
            )
            for name, one in (("GM", GM), ("CD-ODA", CD), ("CD-ODA-I", CD1), ("CD-ODA-II", CD2))
        ),
        Claim(
            BOUND,
            "VI-D, Lemma 7",
            "the largest mean topic diameter of the CD-ODA family",
            lambda rows: max(rows.most("mean_diameter", algorithm=name) for name in STARS),
            2,
            "at most",
            setup="the mean of a run's topics; the experiment `lemmas` has the largest of all topics",
            repeats=True,
        ),
        *(
            Claim(
                ORDER,
                "VI-D",
                f"{name}'s mean topic diameter is below GM's",
                order("mean_diameter", one, GM, ("size", "seed"), **OWN),
                setup="ties at random",
            )
            for name, one in (("CD-ODA", CD), ("CD-ODA-I", CD1), ("CD-ODA-II", CD2))
        ),
    ),
)


# Ties, and the rule of Low-ODA: experiments that test reasons


def _tie_cases(quick: bool) -> list[Case]:
    nodes, seeds = ((100, 200), 3) if quick else ((100, 400, 700, 1000), 20)
    return [
        _case(seed, n) | {"ties": ties}
        for ties, n, seed in product(("random", "smallest"), nodes, range(seeds))
    ]


def _run_ties(case: Case) -> list[Row]:
    wanted = _wanted(case, case["seed"])
    printed = _row(case | {"strict": False}, wanted, "low-oda", case["ties"]) | PRINTED
    return [*(_row(case, wanted, name, case["ties"]) for name in ("gm", "minmax-oda", "low-oda")), printed]


TIES = Figure(
    2,
    "ties",
    "Maximum and average degree by how ties are broken, and by Low-ODA's rule, > or >=",
    "nodes",
    "nodes",
    ("algorithm", "ties"),
    (Panel(MAXIMUM, "maximum node degree"), Panel(AVERAGE, "average node degree")),
    _tie_cases,
    _run_ties,
)


def _star_cases(quick: bool) -> list[Case]:
    sizes, seeds = ((10, 50), 5) if quick else (range(10, 51, 10), 50)
    return [
        _case(seed, 100, size, "unif") | {"ties": ties}
        for ties, size, seed in product(("random", "smallest"), sizes, range(seeds))
    ]


def _run_star_ties(case: Case) -> list[Row]:
    wanted = _wanted(case, case["seed"])
    return [_row(case, wanted, name, case["ties"]) | {"draw": "same"} for name in ("gm", *STARS)]


STAR_TIES = Figure(
    2,
    "stars",
    "Average degree at diameter 2 by how ties are broken, on the same draws for all algorithms",
    "size",
    "topics per node",
    ("algorithm", "ties"),
    (Panel(AVERAGE, "average node degree"),),
    _star_cases,
    _run_star_ties,
)


# Theorem 2 and Lemma 5, checked along runs of Low-ODA


def _bound_cases(quick: bool) -> list[Case]:
    return [
        _case(seed, nodes) | {"k": k}
        for nodes, k, seed in product(
            (30,) if quick else (30, 60), (1, 3, 8, 16, 30), range(3 if quick else 10)
        )
    ]


def _run_bounds(case: Case) -> list[Row]:
    """The maximum degree over the bound of Theorem 2, and the least share of Lemma 5 over the sets R_i."""
    wanted = _wanted(case, case["seed"])
    edges = link(wanted, None, "low-oda", case["seed"], k=case["k"], strict=True, ties="random").edges
    start = sum(len(wanted.topics_of(v)) for v in range(wanted.node_count))
    n, k = wanted.node_count, case["k"]
    degree = int(np.bincount(edges.ravel()).max())
    least = _least_maximum_degree(wanted)
    bound = (n / (2 * k) + 1) * 3 * (least + 1) * math.log(start)
    return [
        case
        | {
            "algorithm": "low-oda",
            "max_degree": degree,
            "share_of_bound": degree / bound,
            "least_share": _least_share(wanted, edges.tolist(), n / (2 * k) + 1),
        }
    ]


def _least_maximum_degree(wanted: Interest) -> int:
    """A lower bound of the least maximum degree: a connected topic of three nodes or more needs degree 2."""
    largest = max((len(wanted.nodes_of(topic)) for topic in range(wanted.topic_count)), default=0)
    return 2 if largest > 2 else 1


def _least_share(wanted: Interest, edges: list[list[int]], h: float) -> float | None:
    """Lemma 5: over all sets R_i, the least reduction by R_i over an upper bound of the best matching's.

    R_i has the edges that are added while the maximum degree rises by h. No matching reduces the number of
    components by more than the sum of its edges' contributions, so the heaviest matching is an upper bound.
    """
    from scipy.optimize import linear_sum_assignment

    topics = [set(wanted.topics_of(v).tolist()) for v in range(wanted.node_count)]
    label = {(v, t): (v, t) for v in range(wanted.node_count) for t in topics[v]}

    def root(node: tuple[int, int]) -> tuple[int, int]:
        while label[node] != node:
            label[node] = label[label[node]]
            node = label[node]
        return node

    def contribution(u: int, v: int) -> int:
        return sum(root((u, t)) != root((v, t)) for t in topics[u] & topics[v])

    def matching() -> float:
        """Half the heaviest assignment of nodes to other nodes: at least the heaviest matching."""
        n = wanted.node_count
        weight = np.zeros((n, n))
        for u in range(n):
            for v in range(u):
                weight[u, v] = weight[v, u] = contribution(u, v)
        return float(weight[linear_sum_assignment(weight, maximize=True)].sum()) / 2

    degree = np.zeros(wanted.node_count, int)
    shares, reduced, best, last = [], 0, matching(), h
    for u, v in edges:
        gain = contribution(u, v)
        degree[[u, v]] += 1
        if degree.max() > last:  # the edge begins the next set
            shares.append(reduced / best if best else 1.0)
            reduced, best, last = 0, matching(), last + h
        for t in topics[u] & topics[v]:
            label[root((u, t))] = root((v, t))
        reduced += gain
    # The last set ends when the overlay is topic-connected, so it reduces all that is left; if it is the only
    # one, the run says nothing.
    return min(shares, default=None)


def _least_of_all(rows: FigureRows) -> Measured:
    """The least share of Lemma 5; in some runs the maximum degree does not rise enough for a set R_i."""
    found = rows.values("least_share")
    if not found:
        return Measured(float("nan"))
    return Measured(min(found), text=f"{plain(min(found))} in the {len(found)} runs that have a set R_i")


BOUNDS = Figure(
    2,
    "bounds",
    "Theorem 2 and Lemma 5 along runs of Low-ODA",
    "k",
    "k",
    ("nodes",),
    (
        Panel("share_of_bound", "maximum degree over the bound of Theorem 2", dots=True),
        Panel("least_share", "least share of Lemma 5", dots=True),
    ),
    _bound_cases,
    _run_bounds,
    (
        Claim(
            BOUND,
            "Theorem 2",
            "the maximum degree over (n/2k + 1) 3 (d + 1) ln(C), d a lower bound of the best maximum degree",
            lambda rows: rows.most("share_of_bound"),
            1,
            "at most",
        ),
        Claim(
            BOUND,
            "Lemma 5",
            "the components that a set R_i joins, over an upper bound of the best matching's, the least",
            _least_of_all,
            1 / 3,
            "at least",
        ),
    ),
)

FIGURES = (FIG1, FIG2, FIG3, FIG4, FIG5, BOUNDS, TIES, STAR_TIES)

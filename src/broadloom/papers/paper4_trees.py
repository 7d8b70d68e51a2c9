"""Paper 4, Fig. 8 and 9: assignment in a tree of brokers, under tight and loose latency."""

from __future__ import annotations

from itertools import product

import numpy as np

from broadloom.papers.figures import (
    BOUND,
    NOT_KNOWN,
    ORDER,
    Case,
    Claim,
    Figure,
    FigureRows,
    Measured,
    Ours,
    Panel,
    Row,
    most_of,
    order,
    paired,
    plain,
)
from broadloom.papers.paper4_assignment import (
    BALANCE,
    CLOSEST,
    DRAWN_ALGORITHMS,
    FROM_1024,
    GR,
    GR_STAR,
    NO_LATENCY,
    PRINTED_SLP,
    PRINTED_SLP1,
    PRINTED_TREE,
    SET_1,
    THREE,
    TIGHT_SETUP,
    TREE_SETUP,
    UNBALANCED,
    _by_set,
    _case,
    _kept,
    _measured,
    _never,
    _overloads,
    _problem,
    _run_details,
    seeds,
)
from broadloom.papers.paper4_parameters import _by_value

# Fig. 8 and 9: a tree of brokers


def _of_levels(quick: bool) -> list[Case]:
    names = ("1HH",) if quick else SET_1
    every = product(names, ("tight", "loose"), seeds(quick))
    return [_case(n, seed, quick, 200, latency=latency) for n, latency, seed in every]


def _run_tree(case: Case) -> list[Row]:
    problem = _problem(case, levels=2, latency=case["latency"])
    names = (*DRAWN_ALGORITHMS, PRINTED_SLP)
    return [_measured(case, problem, name, levels=2) for name in names]


GEOGRAPHIES, DRAWS = "paper4-geographies", "paper4-draws"


def _each_geography(rows: FigureRows) -> str:
    """In how many geographies Gr* keeps every limit, and the most brokers that it overloads."""
    possible = [g for (g,) in rows.points("geography") if rows.mean("lbf", geography=g, **BALANCE) <= 8]
    kept = [rows.mean("feasible", geography=g, **GR_STAR) == 1 for g in possible]
    overloaded = max((rows.mean("overloaded", geography=g, **GR_STAR) for g in possible), default=0.0)
    loads = [[plain(rows.mean("lbf", geography=g, **one)) for one in (GR_STAR, BALANCE)] for g in possible]
    numbers = ", ".join(f"{ours} ({least})" for ours, least in loads)
    return (
        f"Gr* keeps every limit in {sum(kept)} of the {len(kept)} geographies of (IS:H, BI:H) where anybody "
        f"can, and overloads at most {overloaded:.1%} of the brokers; its lbf, and the least possible: "
        f"{numbers}"
    )


def _each_draw(rows: FigureRows) -> str:
    """How often SLP keeps every limit, by the sample, and the largest loads."""
    parts = []
    for (g,) in rows.where(levels=2).points("sample"):
        found = rows.where(sample=g, levels=2)
        kept, runs = sum(found.values("feasible")), len(found.all)
        loads = ", ".join(plain(value) for value in found.values("lbf"))
        parts.append(f"g = {g}: {kept:.0f} of {runs} draws keep every limit, lbf {loads}")
    return "it depends on the sample that SLP draws; (IS:L, BI:H), loose: " + "; ".join(parts)


# The three corners of the triangles in Fig. 6 and 8.
THREE_MEASURES = (
    ("bandwidth", "bandwidth"),
    ("RMS delay", "delay_rms"),
    ("standard deviation of loads", "load_std"),
)
FIG8 = Figure(
    4,
    "fig8",
    "A tree of 200 brokers, tight and loose latency",
    "latency",
    "latency",
    ("algorithm",),
    THREE,
    _of_levels,
    _run_tree,
    (
        _kept("SLP", PRINTED_TREE, f"{TREE_SETUP}; {TIGHT_SETUP}", latency="tight"),
        _kept("SLP", PRINTED_TREE, TREE_SETUP, latency="loose", reason=_each_draw, experiment=DRAWS),
        _never("Gr*", GR_STAR, TIGHT_SETUP, latency="tight", reason=_each_geography, experiment=GEOGRAPHIES),
        _never("Gr", GR, TIGHT_SETUP, latency="tight"),
        _overloads(
            "Gr*",
            GR_STAR,
            TIGHT_SETUP,
            reason=_each_geography,
            experiment=GEOGRAPHIES,
            latency="tight",
            set="1LH",
        ),
        *(
            Claim(
                BOUND,
                "VI",
                f"Gr without latency breaks the bound on delay under {latency} latency: its largest delay",
                most_of("delay_max", latency=latency, **NO_LATENCY),
                limit,
                "at least",
                setup=setup,
            )
            for latency, limit, setup in (("tight", 0.2, TIGHT_SETUP), ("loose", 1.0, ""))
        ),
        *(
            Claim(
                ORDER,
                "VI",
                f"Gr without latency needs less bandwidth than Gr* ({latency})",
                order("bandwidth", NO_LATENCY, GR_STAR, ("set", "seed"), latency=latency),
                reason=_by_set("bandwidth", NO_LATENCY, GR_STAR, latency=latency),
                setup=TIGHT_SETUP if latency == "tight" else "",
            )
            for latency in ("tight", "loose")
        ),
        Claim(
            ORDER,
            "VI",
            "under loose latency Gr* needs less bandwidth than SLP",
            order("bandwidth", GR_STAR, PRINTED_TREE, ("set", "seed"), latency="loose"),
            setup=TREE_SETUP,
        ),
        *(
            Claim(
                ORDER,
                "VI",
                f"under loose latency {name} and SLP have comparable {what}",
                order(column, one, PRINTED_TREE, ("set", "seed"), latency="loose"),
                relation="alike",
                reason=_by_value("threshold", PRINTED_TREE, latency="loose"),
                experiment="paper4-others",
                setup=TREE_SETUP,
            )
            for name, one in (("Gr*", GR_STAR), ("Gr", GR))
            for what, column in THREE_MEASURES
        ),
        *(
            Claim(
                ORDER,
                "VI",
                f"Gr* dominates Gr: its {what} is lower ({latency})",
                order(column, GR_STAR, GR, ("set", "seed"), latency=latency),
                reason=_by_set(column, GR_STAR, GR, latency=latency),
                setup=TIGHT_SETUP if latency == "tight" else "",
            )
            for latency in ("tight", "loose")
            for what, column in THREE_MEASURES
        ),
        *(
            Claim(
                ORDER,
                "VI",
                f"{name} needs more bandwidth than Gr* ({latency})",
                order("bandwidth", GR_STAR, one, ("set", "seed"), latency=latency),
                setup=TIGHT_SETUP if latency == "tight" else "",
            )
            for latency in ("tight", "loose")
            for name, one in (
                ("Closest", CLOSEST),
                ("Closest without load limits", UNBALANCED),
                ("Balance", BALANCE),
            )
        ),
    ),
)


def _more_similar(rows: FigureRows) -> Measured:
    """How far SLP's bandwidth is from Gr*'s under loose and under tight latency, in pairs of runs."""

    def gap(name: str, seed: int, latency: str) -> float:
        run = rows.where(set=name, seed=seed, latency=latency)
        return float(abs(np.log(run.mean("bandwidth", **PRINTED_TREE) / run.mean("bandwidth", **GR_STAR))))

    return paired(
        [(gap(name, seed, "loose"), gap(name, seed, "tight")) for name, seed in rows.points("set", "seed")],
        lambda loose, tight: f"a factor of {plain(np.exp(loose))} if loose, {plain(np.exp(tight))} if tight",
    )


def _share_above(rows: FigureRows) -> float:
    """The share of the workloads in which SLP needs more bandwidth than Gr*."""
    found = [rows.where(set=name, latency=latency) for name, latency in rows.points("set", "latency")]
    return float(
        np.mean([one.mean("bandwidth", **PRINTED_TREE) > one.mean("bandwidth", **GR_STAR) for one in found])
    )


FIG9 = Figure(
    4,
    "fig9",
    "(a) Bandwidth, and load balance factor, in a tree of brokers",
    "set",
    "workload",
    ("algorithm", "latency"),
    (THREE[0], Panel("lbf", "load balance factor")),
    _of_levels,
    _run_tree,
    (
        Claim(
            BOUND,
            "VI",
            "SLP needs more bandwidth than Gr* in all but one of the eight workloads (share of them)",
            _share_above,
            0.875,
            "at least",
            reason=_by_set("bandwidth", GR_STAR, PRINTED_TREE),
            setup=f"{TREE_SETUP}; {TIGHT_SETUP}",
        ),
        Claim(
            ORDER,
            "VI",
            "SLP and Gr* need more similar bandwidth under loose than under tight latency",
            _more_similar,
            setup=f"{TREE_SETUP}; {TIGHT_SETUP}",
        ),
    ),
    shares="fig8",
)
FIG9B = Figure(
    4,
    "fig9b",
    "(b) Distribution of broker loads in a tree, (IS:L, BI:H)",
    "share",
    "share of the brokers with at most this load",
    ("algorithm", "latency"),
    (Panel("load", "load over the mean load"),),
    lambda quick: [
        _case("1LH", seed, quick, 200, latency=latency)
        for latency, seed in product(("tight", "loose"), seeds(quick))
    ],
    lambda case: _run_details(case, 2, ("gr*", "gr")),
    (
        Claim(
            BOUND,
            "VI",
            "the largest load over the mean, SLP, tight",
            most_of("load", latency="tight", **PRINTED_TREE),
            8,
            "at most",
            reason=lambda rows: f"{NOT_KNOWN}; by run: {_largest_loads(rows, PRINTED_TREE)}",
            setup=f"{TREE_SETUP}; {TIGHT_SETUP}",
            repeats=True,
        ),
        Claim(
            BOUND,
            "VI",
            "the largest load over the mean, SLP, loose",
            most_of("load", latency="loose", **PRINTED_TREE),
            1.5,
            "at most",
            reason=_each_draw,
            experiment=DRAWS,
            setup=TREE_SETUP,
            repeats=True,
        ),
        Claim(
            BOUND,
            "VI",
            "Gr* breaks the limit under tight latency: its largest load over the mean",
            most_of("load", latency="tight", **GR_STAR),
            8,
            "at least",
            reason=lambda rows: f"{NOT_KNOWN}; by run: {_largest_loads(rows, GR_STAR)}",
            setup=TIGHT_SETUP,
            repeats=True,
        ),
    ),
)


def _largest_loads(rows: FigureRows, one: dict[str, str]) -> str:
    """The largest load over the mean of each run under tight latency."""
    found = rows.where(latency="tight", **one)
    return ", ".join(plain(found.most("load", seed=seed)) for (seed,) in found.points("seed"))


# Reasons for claims about trees: geographies, and draws of samples

# The first ten geographies whose least possible lbf under tight latency is from 5.5 to 8 (5,000 subscribers).
TIGHT_GEOGRAPHIES = (31, 38, 42, 47, 73, 86, 90, 102, 124, 139)


def _of_geographies(quick: bool) -> list[Case]:
    chosen = TIGHT_GEOGRAPHIES[1:3] if quick else TIGHT_GEOGRAPHIES
    size = {"subscribers": 5000 if quick else 100_000, "brokers": 200}
    return [{"set": "1HH", "seed": 0, "geography": g} | size for g in chosen]


def _run_geography(case: Case) -> list[Row]:
    problem = _problem(case, levels=2, latency="tight")
    return [_measured(case, problem, name, levels=2) for name in ("gr*", "gr", "balance")]


GEOGRAPHIES_FIGURE = Figure(
    4,
    "geographies",
    "Gr* and Gr under tight latency on ten geographies, (IS:H, BI:H)",
    "geography",
    "geography",
    ("algorithm",),
    (Panel("lbf", "load balance factor", dots=True),),
    _of_geographies,
    _run_geography,
)


def _of_draws(quick: bool) -> list[Case]:
    samples = (256, 512) if quick else (1024, 2048)
    tree = [
        _case("1LH", 0, quick, 200, latency="loose", levels=2, sample=g, draw=draw)
        for g, draw in product(samples, seeds(quick))
    ]
    one_level = [_case("1HH", 0, quick, levels=1, sample=samples[0], draw=draw) for draw in seeds(quick)]
    return tree + one_level


def _run_draw(case: Case) -> list[Row]:
    """SLP or SLP1 on the same problem with other samples: the case's draw is the seed of the algorithm."""
    levels = case["levels"]
    problem = _problem(case, levels=2, latency=case["latency"]) if levels == 2 else _problem(case)
    name = PRINTED_SLP if levels == 2 else PRINTED_SLP1
    row = _measured(case | {"seed": case["draw"]}, problem, name, levels, size=case["sample"])
    return [row | {"seed": case["seed"]}]


def _deviation(levels: int) -> Ours:
    """The standard deviation of the bandwidth over its mean, for one problem and the smaller sample."""

    def ours(rows: FigureRows) -> float:
        of_problem = rows.where(levels=levels)
        found = of_problem.values("bandwidth", sample=min(g for (g,) in of_problem.points("sample")))
        return float(np.std(found, ddof=1) / np.mean(found)) if len(found) > 1 else float("nan")

    return ours


DRAWS_FIGURE = Figure(
    4,
    "draws",
    "SLP in a tree under loose latency, (IS:L, BI:H), and SLP1 in one level, (IS:H, BI:H), by the sample",
    "draw",
    "draw",
    ("algorithm", "sample"),
    (
        Panel("lbf", "load balance factor", dots=True),
        Panel("unplaced", "subscribers without a broker that covers them", dots=True),
    ),
    _of_draws,
    _run_draw,
    tuple(
        Claim(
            BOUND,
            "VI",
            f"the deviation over five runs is insignificant: that of {name}'s bandwidth over its mean",
            _deviation(levels),
            0.1,
            "at most",
            setup=f"{setup}; insignificant is read as at most 10 %",
        )
        for name, levels, setup in (("SLP1", 1, FROM_1024), ("SLP", 2, TREE_SETUP))
    ),
)

FIGURES = (FIG8, FIG9, FIG9B, GEOGRAPHIES_FIGURE, DRAWS_FIGURE)

"""Paper 4: Subscriber Assignment for Content-Based Publish/Subscribe, by Yu, Agarwal and Yang (ICDE 2011).

"slp1 (printed)" and "slp (printed)" run the steps of the paper. Our own variants, which assign inside the
preliminary filters, are not in these figures. The paper's search for a certificate begins at g = 4; here it
begins at 1024, because it needs hundreds of linear programs otherwise (experiment "search"). The paper's
workload generator and its technical report are not available.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from itertools import combinations, product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from broadloom.assignment import assign
from broadloom.model import AssignmentProblem
from broadloom.papers.figures import (
    BOUND,
    NOT_KNOWN,
    NUMBER,
    ORDER,
    STEADY,
    Case,
    Claim,
    Figure,
    FigureRows,
    Measured,
    Panel,
    Reason,
    Row,
    most_of,
    order,
    paired,
    plain,
    rank_correlation,
)
from broadloom.plans import AssignmentResult
from broadloom.workload import subscribers

# Bandwidths in Tables I and II; the letters of set 1 are its interest skew and its broad interests, L or H.
THEIRS = {
    "1LL": {"fractional": 3.09e9, "slp1": 7.12e9, "gr*": 6.53e9, "gr": 9.50e9},
    "1HL": {"fractional": 1.2e9, "slp1": 1.86e9, "gr*": 1.53e9, "gr": 2.09e9},
    "1LH": {"fractional": 3.81e9, "slp1": 8.48e9, "gr*": 7.79e9, "gr": 1.05e10},
    "1HH": {"fractional": 1.29e9, "slp1": 2.13e9, "gr*": 2.39e9, "gr": 2.78e9},
    "2": {"fractional": 1.01e7, "slp1": 1.37e7, "gr*": 8.5e6, "gr-no-latency": 220},
    "3": {"fractional": 2.48e10, "slp1": 5.4e10, "gr*": 5.3e10, "gr-no-latency": 5.09e10},
}
SET_1 = ("1LL", "1HL", "1LH", "1HH")
PRINTED_SLP1, PRINTED_SLP = "slp1 (printed)", "slp (printed)"
ROOM_NEXT, ROOM_LATER = "gr (room, next)", "gr (room, later)"
GR_STAR, GR, NO_LATENCY, PRINTED, PRINTED_TREE = (
    {"algorithm": name} for name in ("gr*", "gr", "gr-no-latency", PRINTED_SLP1, PRINTED_SLP)
)
SEARCH = {"literal": True, "size": 1024}
GAMMA = 0.2  # the paper's threshold for trees, which only its technical report defines
OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    PRINTED_SLP1: ("slp1", SEARCH),
    PRINTED_SLP: ("slp", SEARCH | {"threshold": GAMMA}),
    ROOM_NEXT: ("gr", {"make_room": "next"}),
    ROOM_LATER: ("gr", {"make_room": "later"}),
}
CLOSEST, UNBALANCED, BALANCE = ({"algorithm": name} for name in ("closest", "closest-unbalanced", "balance"))
DRAWN_ALGORITHMS = ("gr*", "gr", "gr-no-latency", "closest-unbalanced", "closest", "balance")
ONE_LEVEL = (*DRAWN_ALGORITHMS, ROOM_NEXT, ROOM_LATER, PRINTED_SLP1)
GENERATOR = "the paper's workload generator (reference [6], not public)"
REPORT = "the technical report [15], which has the results,"
FROM_1024 = "as printed, but the search begins at g = 1024, not at 4"
TREE_SETUP = f"{FROM_1024}; latency, load and threshold ({GAMMA:g}) of inner brokers are ours"
_LEVEL = {"L": "low", "H": "high"}
LEAST_TIGHT_LBF = (5.5, 6.5)  # the paper: "the minimum possible lbf is around 6"
TIGHT_SETUP = "a geography with a least lbf from 5.5 to 6.5 (the paper: around 6)"


def _problem(case: Case, **more: Any) -> AssignmentProblem:
    name = case["set"]
    words = ("interest_skew", "broad_interests")
    skew: dict[str, Any] = {word: _LEVEL[level] for word, level in zip(words, name[1:], strict=False)}
    if case.get("latency") == "tight":
        more["geography"] = tight_geography(case["brokers"])
    if "geography" in case:
        more["geography"] = case["geography"]
    return subscribers(
        int(name[0]),
        subscribers=case["subscribers"],
        brokers=case["brokers"],
        seed=case["seed"],
        **skew,
        **more,
    )


@cache
def tight_geography(brokers: int) -> int:
    """The first geography whose least possible load balance factor under tight latency is about 6."""
    for geography in range(1000):
        trial = subscribers(
            1, subscribers=5000, brokers=brokers, levels=2, latency="tight", seed=0, geography=geography
        )
        if LEAST_TIGHT_LBF[0] <= assign(trial, "balance").metrics()["lbf"] <= LEAST_TIGHT_LBF[1]:
            return geography
    return 0


@cache
def _compile(algorithm: str, levels: int) -> None:
    """Assign a few subscribers first, so that measured times exclude the compilation of kernels."""
    _assigned(subscribers(1, subscribers=400, brokers=20, levels=levels, seed=0), algorithm, 0)


def _assigned(problem: AssignmentProblem, algorithm: str, seed: int, **options: Any) -> AssignmentResult:
    name, more = OPTIONS.get(algorithm, (algorithm, {}))
    return assign(problem, name, seed, **(more | options))


def _measured(case: Case, problem: AssignmentProblem, algorithm: str, levels: int = 1, **options: Any) -> Row:
    _compile(algorithm, levels)
    began = time.process_time()
    found = _assigned(problem, algorithm, case["seed"], **options)
    seconds = time.process_time() - began
    return _row(case, problem, algorithm, found, seconds)


def _row(
    case: Case, problem: AssignmentProblem, algorithm: str, found: AssignmentResult, seconds: float
) -> Row:
    measures = found.metrics()
    names = ("bandwidth", "delay_rms", "delay_max", "load_std", "lbf", "feasible")
    return {
        **case,
        "algorithm": algorithm,
        "seconds": seconds,
        "fractional": found.notes.get("fractional"),
        "certificate": found.notes.get("certificate"),
        "programs": found.notes.get("programs"),
        "unplaced": found.notes.get("unplaced"),
        "removed": found.notes.get("removed"),
        **{name: float(measures[name]) for name in names},
        "overloaded": np.count_nonzero(found.overload) / measures["leaves"],
        "excess": measures["lbf"] / problem.beta_max - 1,
    }


def _run(case: Case, *algorithms: str) -> list[Row]:
    problem = _problem(case)
    return [_measured(case, problem, name) for name in algorithms]


def _case(name: str, seed: int, quick: bool, brokers: int = 100, **more: Any) -> Case:
    size = (
        {"subscribers": 2000, "brokers": brokers // 5}
        if quick
        else {"subscribers": 100_000, "brokers": brokers}
    )
    return {"set": name, "seed": seed} | size | more


def seeds(quick: bool) -> range:
    """The paper averages five runs."""
    return range(2 if quick else 5)


# Fig. 6 and 7, Table I: set 1, one level


def _set_1(quick: bool) -> list[Case]:
    names = ("1HL", "1HH") if quick else SET_1
    return [_case(n, s, quick) for n, s in product(names, seeds(quick))]


def _run_set_1(case: Case) -> list[Row]:
    return _run(case, *ONE_LEVEL)


def _words(where: dict[str, Any]) -> str:
    """The rows that a claim is about, in words.

    Examples:
        >>> _words({"latency": "tight", "set": "2"})
        ', tight, set 2'
    """
    return "".join(f", {'set ' if name == 'set' else ''}{value}" for name, value in where.items())


def _each_run(rows: FigureRows, algorithm: dict[str, str], **where: Any) -> str:
    """The load balance factors of all runs, and the least possible ones."""
    loads = [", ".join(map(plain, rows.values("lbf", **one, **where))) or "-" for one in (algorithm, BALANCE)]
    return f"{NOT_KNOWN}; lbf of the runs {loads[0]}; the least possible {loads[1]}"


def _kept(
    text: str,
    algorithm: dict[str, str],
    setup: str = "",
    reason: Reason | None = None,
    experiment: str | None = None,
    **where: Any,
) -> Claim:
    return Claim(
        BOUND,
        "VI",
        f"{text} keeps every limit (share of the runs{_words(where)})",
        lambda rows: rows.mean("feasible", **algorithm, **where),
        1,
        "at least",
        experiment=experiment,
        reason=reason
        or (
            lambda rows: (
                f"{NOT_KNOWN}; lbf {plain(rows.mean('lbf', **algorithm, **where))}, overloaded brokers "
                f"{rows.mean('overloaded', **algorithm, **where):.1%}; subscribers that no filter covers "
                f"within the load limits {plain(rows.mean('unplaced', **algorithm, **where))}; "
                "feasible by set: "
                + ", ".join(
                    f"{name} {plain(rows.mean('feasible', set=name, **algorithm, **where))}"
                    for (name,) in rows.points("set")
                )
            )
        ),
        setup=setup,
    )


def _never(
    text: str,
    algorithm: dict[str, str],
    setup: str = "",
    reason: Reason | None = None,
    experiment: str | None = None,
    **where: Any,
) -> Claim:
    return Claim(
        BOUND,
        "VI",
        f"{text} never keeps every limit (share of the runs{_words(where)})",
        lambda rows: rows.mean("feasible", **algorithm, **where),
        0,
        "at most",
        experiment=experiment,
        reason=reason
        or (
            lambda rows: (
                f"{NOT_KNOWN}; lbf {plain(rows.mean('lbf', **algorithm, **where))}, the least possible "
                + plain(rows.mean("lbf", **BALANCE, **where))
            )
        ),
        setup=setup,
    )


def _overloads(
    text: str,
    algorithm: dict[str, str],
    setup: str = "",
    reason: Reason | None = None,
    experiment: str | None = None,
    **where: Any,
) -> Claim:
    return Claim(
        BOUND,
        "VI",
        f"share of the brokers that {text} overloads{_words(where)}",
        lambda rows: rows.mean("overloaded", **algorithm, **where),
        0.1,
        "at least",
        experiment=experiment,
        reason=reason or (lambda rows: f"{NOT_KNOWN}; lbf {plain(rows.mean('lbf', **algorithm, **where))}"),
        setup=setup,
    )


def _order(
    text: str, low: dict[str, str], high: dict[str, str], column: str = "bandwidth", **more: Any
) -> Claim:
    ours = order(column, low, high, ("set", "seed"))
    return Claim(ORDER, "VI", text, ours, reason=_by_set(column, low, high), **more)


def _by_set(column: str, *algorithms: dict[str, str], **where: Any) -> Reason:
    """The means of some algorithms in each set."""

    def text(rows: FigureRows) -> str:
        parts = []
        for (name,) in rows.points("set"):
            found = rows.where(set=name, **where)
            means = [f"{one['algorithm']} {plain(found.mean(column, **one))}" for one in algorithms]
            parts.append(f"set {name}: {', '.join(means)}")
        return f"{NOT_KNOWN}; {'; '.join(parts)}"

    return text


def _removals(name: str) -> Reason:
    """How many subscribers Gr removes, and the load balance factors."""
    return lambda rows: (
        f"{NOT_KNOWN}; it removes {plain(rows.mean('removed', algorithm=name))} of "
        f"{plain(rows.mean('subscribers'))} subscribers, and its lbf is "
        f"{plain(rows.mean('lbf', algorithm=name))} (the least possible is "
        f"{plain(rows.mean('lbf', **BALANCE))}); it takes {plain(rows.mean('seconds', algorithm=name))} s, "
        f"SLP1 {plain(rows.mean('seconds', **PRINTED))} s (in the paper it had more time than SLP1)"
    )


THREE = (
    Panel("bandwidth", "total bandwidth", log=True),
    Panel("delay_rms", "RMS delay"),
    Panel("load_std", "standard deviation of loads"),
)
FIG6 = Figure(
    4,
    "fig6",
    "All algorithms on set 1, one level of brokers",
    "set",
    "workload",
    ("algorithm",),
    THREE,
    _set_1,
    _run_set_1,
    (
        _kept("SLP1", PRINTED, FROM_1024),
        _kept("Gr*", GR_STAR),
        _never("Gr", GR),
        *(
            _never(
                f"Gr that makes room, and assigns the removed {when},",
                {"algorithm": name},
                setup="one subscriber is removed from each full candidate, at most 20 times per subscriber "
                "that makes room; the paper does not say how many",
                reason=_removals(name),
            )
            for when, name in (("next", ROOM_NEXT), ("later", ROOM_LATER))
        ),
        *(
            Claim(
                BOUND,
                "VI",
                f"the largest delay of {name}",
                most_of("delay_max", **one),
                0.3,
                "at most",
                setup=setup,
            )
            for name, one, setup in (
                ("SLP1", PRINTED, FROM_1024),
                ("Gr*", GR_STAR, ""),
            )
        ),
        Claim(
            BOUND,
            "VI",
            "Gr without latency breaks the bound on delay: its largest delay",
            lambda rows: rows.most("delay_max", **NO_LATENCY),
            0.3,
            "at least",
        ),
        _order("Gr has more unbalanced loads than Gr*", GR_STAR, GR, "load_std"),
        _order(
            "Closest without load limits has more unbalanced loads than Closest",
            CLOSEST,
            UNBALANCED,
            "load_std",
        ),
        *(
            _order(f"Balance has the most even loads: its lbf is below that of {name}", BALANCE, one, "lbf")
            for name, one in (
                ("Closest", CLOSEST),
                ("Closest without load limits", UNBALANCED),
                ("Gr", GR),
                ("Gr*", GR_STAR),
                ("Gr without latency", NO_LATENCY),
                ("SLP1", PRINTED),
            )
        ),
        *(
            _order(f"{name} has a wider range of loads than Closest", CLOSEST, one, "load_std", setup=setup)
            for name, one, setup in (
                ("Gr", GR, ""),
                ("Gr*", GR_STAR, ""),
                ("Gr without latency", NO_LATENCY, ""),
                ("SLP1", PRINTED, FROM_1024),
            )
        ),
        _order("Gr is faster than Gr*", GR, GR_STAR, "seconds", setup="CPU seconds of our implementations"),
        _order("Gr* is faster than SLP1", GR_STAR, PRINTED, "seconds", setup=FROM_1024),
        _order(
            "Closest without load limits does okay with load balance: its loads are more even than Gr's",
            UNBALANCED,
            GR,
            "load_std",
            setup="the paper gives no number; Gr's loads are those that it calls very unbalanced",
        ),
    ),
)


def _slp1_by_sample(rows: FigureRows) -> str:
    """SLP1's bandwidth over Gr*'s, and over its own fractional value, as the sample grows."""
    parts = []
    for (g,) in rows.points("sample"):
        bandwidth = rows.mean("bandwidth", sample=g)
        over = [bandwidth / rows.mean(name, sample=g) for name in ("gr_star", "fractional")]
        missed = plain(rows.mean("unplaced", sample=g))
        parts.append(
            f"g = {g} {plain(over[0])} and {plain(over[1])}, {missed} subscribers outside the filters"
        )
    return (
        "rounding can raise the fractional value by a factor of 2 ln |S_a| (Theorem 1); after one linear "
        "program, SLP1's bandwidth over Gr*'s and over the fractional value by the size of the sample, "
        "(IS:H, BI:H): " + "; ".join(parts)
    )


def _least_agreement(rows: FigureRows) -> float:
    """The least rank correlation of the algorithms' mean bandwidths between two workloads."""
    names = [name for (name,) in rows.points("algorithm")]
    means = [[rows.mean("bandwidth", set=s, algorithm=name) for name in names] for (s,) in rows.points("set")]
    return min((rank_correlation(a, b) for a, b in combinations(means, 2)), default=float("nan"))


FIG7 = Figure(
    4,
    "fig7",
    "(a) Bandwidth, and load balance factor, on set 1",
    "set",
    "workload",
    ("algorithm",),
    (Panel("bandwidth", "total bandwidth", log=True), Panel("lbf", "load balance factor")),
    _set_1,
    _run_set_1,
    (
        _order("Gr* needs less bandwidth than Gr", GR_STAR, GR),
        Claim(
            ORDER,
            "VI",
            "SLP1 needs less bandwidth than Gr",
            order("bandwidth", PRINTED, GR, ("set", "seed")),
            reason=_slp1_by_sample,
            experiment="paper4-fractional",
            setup=FROM_1024,
        ),
        Claim(
            ORDER,
            "VI",
            "SLP1 and Gr* need comparable bandwidth",
            order("bandwidth", GR_STAR, PRINTED, ("set", "seed")),
            relation="alike",
            reason=_slp1_by_sample,
            experiment="paper4-fractional",
            setup=FROM_1024,
        ),
        *(
            Claim(
                ORDER,
                "VI",
                f"Gr is consistently worse: it needs more bandwidth than {name}, set {which}",
                order("bandwidth", one, GR, ("seed",), set=which),
                reason=_by_set("bandwidth", one, GR),
                setup=setup,
                repeats=True,
            )
            for name, one, setup in (("Gr*", GR_STAR, ""), ("SLP1", PRINTED, FROM_1024))
            for which in SET_1
        ),
        Claim(
            BOUND,
            "VI",
            "the algorithms have the same order in all workloads: the least rank correlation of their "
            "bandwidth between two sets",
            _least_agreement,
            STEADY,
            "at least",
            setup=f"{FROM_1024}; fairly consistent is read as a rank correlation of at least {STEADY:g}",
        ),
        *(
            _order(
                f"{name} needs less bandwidth than {other}, which ignores the event space",
                one,
                high,
                setup=setup,
            )
            for name, one, setup in (("Gr", GR, ""), ("SLP1", PRINTED, FROM_1024))
            for other, high in (
                ("Closest", CLOSEST),
                ("Closest without load limits", UNBALANCED),
                ("Balance", BALANCE),
            )
        ),
        _order("Gr without latency needs less bandwidth than Gr*", NO_LATENCY, GR_STAR),
        Claim(
            NUMBER,
            "VI",
            "SLP1's lbf (close to the desired 1.5)",
            lambda rows: rows.mean("lbf", **PRINTED),
            1.5,
            setup=FROM_1024,
            reason=lambda rows: (
                f"{NOT_KNOWN}; on average {plain(rows.mean('unplaced', **PRINTED))} subscribers have no "
                "broker whose filter covers them within the load limits"
            ),
        ),
        _overloads("Gr", GR),
    ),
    shares="fig6",
)


def _bandwidth(rows: FigureRows, algorithm: str) -> float:
    """The mean bandwidth of a column of Tables I and II."""
    if algorithm == "fractional":
        return rows.mean("fractional", **PRINTED)
    return rows.mean("bandwidth", algorithm={"slp1": PRINTED_SLP1}.get(algorithm, algorithm))


def _over(rows: FigureRows, algorithm: str) -> float:
    return _bandwidth(rows, algorithm) / _bandwidth(rows, "gr*")


SHOWN = {"slp1": "SLP1", "fractional": "the fractional solution", "gr*": "Gr*", "gr": "Gr"}
SHOWN |= {"gr-no-latency": "Gr without latency"}


def _cells(name: str, algorithm: str) -> tuple[Claim, ...]:
    """A cell of Table I or II as printed, and over the cell of Gr*, which does not depend on units."""
    theirs = THEIRS[name][algorithm]
    kinds = [("", _bandwidth, theirs)]
    if algorithm != "gr*":
        kinds.append((" over Gr*'s", _over, theirs / THEIRS[name]["gr*"]))
    return tuple(
        Claim(
            NUMBER,
            "Table I" if name[0] == "1" else "Table II",
            f"bandwidth of {SHOWN[algorithm]}{over}, set {name}",
            lambda rows, ours=ours: ours(rows.where(set=name), algorithm),  # type: ignore[misc]
            number,
            missing=GENERATOR,
            reason=_range_of(name, algorithm, ours),
            setup=FROM_1024 if algorithm in ("slp1", "fractional") else "",
            repeats=bool(over),
            at_full_size=not over,
        )
        for over, ours, number in kinds
    )


def _range_of(name: str, algorithm: str, ours: Callable[[FigureRows, str], float]) -> Reason:
    """The range over seeds, or over the geographies of set 2."""
    varied = "geography" if name == "2" else "seed"

    def text(rows: FigureRows) -> str:
        rows = rows.where(set=name)
        found = [ours(rows.where(**{varied: value}), algorithm) for (value,) in rows.points(varied)]
        runs = {"seed": "seed", "geography": "geography"}[varied]
        return f"from {plain(min(found))} to {plain(max(found))}, by {runs}" if found else NOT_KNOWN

    return text


def _curve(rows: FigureRows) -> str:
    """The fractional value over Gr*'s bandwidth by the size of the sample."""
    points = [
        f"g = {g} {plain(rows.mean('fractional', sample=g) / rows.mean('gr_star', sample=g))}"
        for (g,) in rows.points("sample")
    ]
    return "the fractional value over Gr*'s bandwidth, (IS:H, BI:H), by the sample: " + ", ".join(points)


def _claims(*names: str) -> tuple[Claim, ...]:
    return tuple(claim for name in names for one in THEIRS[name] for claim in _cells(name, one))


def _above_fraction(text: str, algorithm: str) -> Claim:
    """In the paper, the bandwidth is between 1.3 and 2.7 times that of the fractional solution.

    Its own Table I has 1.275 (Gr*, 1HL) to 2.3, so 1.3 is a rounded number.
    """

    def ours(rows: FigureRows) -> Measured:
        found = [
            _bandwidth(rows.where(set=name), algorithm) / _bandwidth(rows.where(set=name), "fractional")
            for (name,) in rows.points("set")
            if name[0] == "1"
        ]
        if not found:
            return Measured(float("nan"))
        low, high = min(found), max(found)
        return Measured(high, holds=low >= 1.25, text=f"from {plain(low)} to {plain(high)}")

    return Claim(
        BOUND,
        "VI",
        f"bandwidth of {text} over that of the fractional solution, from the least to the most of set 1: "
        "from 1.3 to 2.7",
        ours,
        2.7,
        "at most",
        reason=_slp1_by_sample if algorithm == "slp1" else _curve,
        experiment="paper4-fractional",
        setup=f"{FROM_1024}; the paper's own Table I has from 1.28 to 2.3, so at least 1.25 counts as 1.3",
    )


def _yardsticks(rows: FigureRows) -> Measured:
    """The bandwidth of Gr without latency, and the fractional value, in pairs of runs."""
    runs = [rows.where(set=name, seed=seed) for name, seed in rows.points("set", "seed")]
    return paired((_bandwidth(run, "gr-no-latency"), _bandwidth(run, "fractional")) for run in runs)


TABLE1 = Figure(
    4,
    "table1",
    "Bandwidth on set 1",
    "set",
    "workload",
    ("algorithm",),
    (THREE[0],),
    _set_1,
    _run_set_1,
    (
        *_claims(*SET_1),
        _above_fraction("SLP1", "slp1"),
        _above_fraction("Gr*", "gr*"),
        Claim(
            ORDER,
            "VI",
            "the fractional solution is a better lower bound than Gr without latency: its value is higher",
            _yardsticks,
            setup=FROM_1024,
        ),
    ),
    shares="fig6",
)


# Fig. 7 (b) to (d): delays and loads of (IS:H, BI:H)

DRAWN = 400  # subscribers per algorithm


def _run_details(case: Case, levels: int = 1, names: tuple[str, ...] = DRAWN_ALGORITHMS) -> list[Row]:
    """One row per drawn subscriber: its delay over its shortest latency; one per broker: its load."""
    more = {"levels": levels, "latency": case["latency"]} if levels > 1 else {}
    problem = _problem(case, **more)
    drawn = np.random.default_rng(0).choice(problem.subscriber_count, DRAWN, replace=False)
    shortest = _latency(problem, drawn, problem.leaves).min(axis=1)
    rows = []
    for name in (*names, PRINTED_SLP if levels > 1 else PRINTED_SLP1):
        _compile(name, levels)
        found = _assigned(problem, name, case["seed"])
        own = np.array(
            [_latency(problem, drawn[[i]], found.broker_of[drawn[[i]]])[0, 0] for i in range(DRAWN)]
        )
        delay = own / shortest - 1
        base = case | {"algorithm": name}
        rows += [
            base | {"shortest": float(s), "delay": float(d)} for s, d in zip(shortest, delay, strict=True)
        ]
        load = np.sort(np.bincount(found.broker_of, minlength=problem.broker_count)[problem.leaves])
        limit = problem.subscriber_count / len(load)
        rows += [
            base | {"load": float(value / limit), "share": (rank + 1) / len(load)}
            for rank, value in enumerate(load)
        ]
    return rows


def _latency(
    problem: AssignmentProblem, some: NDArray[np.int64], brokers: NDArray[np.integer[Any]]
) -> NDArray[np.float64]:
    """The latency of some subscribers (rows) over each of the brokers (columns)."""
    hop = np.linalg.norm(
        problem.subscriber_place[some][:, None] - problem.broker_place[brokers][None], axis=2
    )
    return np.asarray(problem.uplink[brokers][None] + hop, np.float64)


def _outside(rows: FigureRows, one: dict[str, str]) -> float:
    found = rows.values("delay", **one)
    return float(np.mean(np.greater(found, 0.3 + 1e-9))) if found else float("nan")


FIG7B = Figure(
    4,
    "fig7b",
    "(b) Delay over the shortest latency, (IS:H, BI:H)",
    "shortest",
    "latency of the shortest path",
    ("algorithm",),
    (Panel("delay", "delay", dots=True),),
    lambda quick: [_case("1HH", seed, quick) for seed in seeds(quick)],
    _run_details,
    (
        Claim(
            BOUND,
            "VI",
            "share of the subscribers above the delay of 0.3, Gr*",
            lambda rows: _outside(rows, GR_STAR),
            0,
            "at most",
            repeats=True,
        ),
        Claim(
            BOUND,
            "VI",
            "share of the subscribers above the delay of 0.3, SLP1",
            lambda rows: _outside(rows, PRINTED),
            0,
            "at most",
            setup=FROM_1024,
            repeats=True,
        ),
        Claim(
            ORDER,
            "VI",
            "Closest without load limits has lower delays than Gr*",
            order("delay", UNBALANCED, GR_STAR, ("seed",)),
        ),
        Claim(
            ORDER,
            "VI",
            "Gr without latency: subscribers near the publisher have higher delays than those far away",
            lambda rows: _near_and_far(rows.where(**NO_LATENCY)),
        ),
    ),
)


def _near_and_far(rows: FigureRows) -> Measured:
    """The mean delay of the farthest and of the nearest quarter of the subscribers, in pairs of runs."""
    pairs = []
    for (seed,) in rows.points("seed"):
        points = sorted(
            (row["shortest"], row["delay"]) for row in rows.where(seed=seed).all if "delay" in row
        )
        quarter = len(points) // 4
        near, far = points[:quarter], points[-quarter:]
        pairs.append((float(np.mean([d for _, d in far])), float(np.mean([d for _, d in near]))))
    return paired(pairs)


FIG7D = Figure(
    4,
    "fig7d",
    "(c), (d) Distribution of broker loads, (IS:H, BI:H)",
    "share",
    "share of the brokers with at most this load",
    ("algorithm",),
    (Panel("load", "load over the mean load"),),
    lambda quick: [_case("1HH", seed, quick) for seed in seeds(quick)],
    _run_details,
    (
        Claim(
            BOUND,
            "VI",
            "share of the brokers above the maximum load (1.8), Gr",
            lambda rows: float(np.mean(np.greater(rows.values("load", **GR), 1.8))),
            0.1,
            "at least",
            reason=lambda rows: f"{NOT_KNOWN}; the largest load of Gr is {plain(rows.most('load', **GR))}",
            repeats=True,
        ),
        *(
            Claim(
                BOUND,
                "VI",
                f"the largest load over the mean, {name}",
                most_of("load", **one),
                1.8,
                "at most",
                setup=setup,
                repeats=name in ("Gr*", "SLP1"),
            )
            for name, one, setup in (
                ("Gr*", GR_STAR, ""),
                ("SLP1", PRINTED, FROM_1024),
                ("Gr without latency", NO_LATENCY, ""),
                ("Closest", CLOSEST, ""),
                ("Balance", BALANCE, ""),
            )
        ),
        Claim(
            BOUND,
            "VI",
            "Closest without load limits overloads some brokers: its largest load over the mean",
            most_of("load", **UNBALANCED),
            1.8,
            "at least",
        ),
    ),
    shares="fig7b",
)


# Table II: sets 2 and 3


def _of_feeds_and_grid(quick: bool) -> list[Case]:
    """Sets 2 and 3; set 2 on several geographies. Quick runs have more brokers: set 3 needs them."""
    size = {"subscribers": 2000, "brokers": 50} if quick else {"subscribers": 100_000, "brokers": 100}
    feeds = [{"set": "2", "seed": 0, "geography": g} | size for g in range(2 if quick else 5)]
    return feeds + [{"set": "3", "seed": seed} | size for seed in seeds(quick)]


def _exceeds(name: str, theirs: float) -> Claim:
    return Claim(
        NUMBER,
        "VI",
        f"by how much Gr's maximum load exceeds the limit, set {name}",
        lambda rows: rows.mean("excess", set=name, **GR),
        theirs,
        missing=GENERATOR,
        reason=lambda rows: (
            "from "
            + " to ".join(plain(f(rows.values("excess", set=name, **GR))) for f in (min, max))
            + ", by run"
        ),
    )


def _geographies(rows: FigureRows) -> list[int]:
    return [geography for (geography,) in rows.points("geography")]


def _as_in_set_1(name: str) -> tuple[Claim, ...]:
    """The findings on set 1 that the paper calls similar for the other sets."""
    runs = ("geography",) if name == "2" else ("seed",)
    return (
        _kept("SLP1", PRINTED, FROM_1024, lambda rows: _each_run(rows, PRINTED, set=name), set=name),
        _kept("Gr*", GR_STAR, reason=lambda rows: _each_run(rows, GR_STAR, set=name), set=name),
        _never("Gr", GR, reason=lambda rows: _each_run(rows, GR, set=name), set=name),
        *(
            Claim(
                BOUND,
                "VI",
                f"the largest delay of {text}, set {name}",
                most_of("delay_max", set=name, **one),
                0.3,
                "at most",
                setup=setup,
            )
            for text, one, setup in (("SLP1", PRINTED, FROM_1024), ("Gr*", GR_STAR, ""))
        ),
        Claim(
            ORDER,
            "III",
            f"Gr* needs less bandwidth than Gr, set {name}",
            order("bandwidth", GR_STAR, GR, runs, set=name),
            reason=lambda rows: _each_run(rows, GR_STAR, set=name),
        ),
        Claim(
            BOUND,
            "VI",
            f"Gr* performs well: its bandwidth over that of the fractional solution, set {name}",
            lambda rows: 1 / _over(rows.where(set=name), "fractional"),
            2.7,
            "at most",
            reason=_range_of(name, "fractional", _over),
            setup=f"{FROM_1024}; well is read as at most 2.7, as on set 1",
        ),
    )


TABLE2 = Figure(
    4,
    "table2",
    "Bandwidth on sets 2 and 3",
    "set",
    "workload",
    ("algorithm",),
    (THREE[0],),
    _of_feeds_and_grid,
    lambda case: _run(case, "gr*", "gr", "gr-no-latency", "balance", PRINTED_SLP1),
    (
        *_claims("2", "3"),
        _exceeds("2", 0.39),
        _exceeds("3", 0.58),
        *(claim for name in ("2", "3") for claim in _as_in_set_1(name)),
        Claim(
            ORDER,
            "VI",
            "Gr* needs less bandwidth than the fractional solution, set 2",
            lambda rows: paired(
                (_bandwidth(run, "gr*"), _bandwidth(run, "fractional"))
                for run in (rows.where(set="2", geography=g) for g in _geographies(rows))
            ),
            reason=_range_of("2", "fractional", _over),
            setup=FROM_1024,
        ),
    ),
)

FIGURES = (FIG6, FIG7, FIG7B, FIG7D, TABLE1, TABLE2)

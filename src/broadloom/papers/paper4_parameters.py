"""Paper 4, Fig. 10 and 11: filter complexity and running time; other results."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from broadloom.assignment import assign
from broadloom.model import AssignmentProblem
from broadloom.papers.figures import (
    BOUND,
    NOT_KNOWN,
    ORDER,
    TIME,
    TREND,
    Case,
    Claim,
    Figure,
    FigureRows,
    Measured,
    Ours,
    Panel,
    Row,
    order,
    paired,
    plain,
    trend,
)
from broadloom.papers.paper4_assignment import (
    BALANCE,
    FROM_1024,
    GR,
    GR_STAR,
    PRINTED,
    PRINTED_SLP,
    PRINTED_SLP1,
    PRINTED_TREE,
    REPORT,
    THREE,
    TREE_SETUP,
    _case,
    _measured,
    _problem,
    _run,
    seeds,
)
from broadloom.papers.paper4_samples import by_start

# Fig. 10 and 11: filter complexity, running time


def _of_alphas(quick: bool) -> list[Case]:
    alphas = (1, 3, 5) if quick else range(1, 9)
    return [_case("1HH", s, quick, alpha=alpha) for alpha, s in product(alphas, seeds(quick))]


def _run_alpha(case: Case) -> list[Row]:
    problem = _problem(case).replace(alpha=case["alpha"])
    return [_measured(case, problem, name) for name in (PRINTED_SLP1, "gr*", "gr")]


def _at_few(name: str, other: dict[str, str]) -> Ours:
    """SLP1's bandwidth over another's with more than two rectangles, and with one or two, by run."""

    def over(rows: FigureRows, seed: int, alphas: list[int]) -> float:
        runs = [rows.where(seed=seed, alpha=alpha) for alpha in alphas]
        ratios = [run.mean("bandwidth", **PRINTED) / run.mean("bandwidth", **other) for run in runs]
        return float(np.mean(ratios))

    def ours(rows: FigureRows) -> Measured:
        alphas = [alpha for (alpha,) in rows.points("alpha")]
        few, many = [a for a in alphas if a <= 2], [a for a in alphas if a > 2]
        return paired(
            [(over(rows, seed, many), over(rows, seed, few)) for (seed,) in rows.points("seed")],
            lambda above, below: f"{plain(below)} times {name}'s with one or two, {plain(above)} with more",
        )

    return ours


def _shrinks_alike(one: dict[str, str], other: dict[str, str]) -> Ours:
    """The bandwidth with the most rectangles over that with one, of two algorithms, in pairs of runs."""

    def shrunk(run: FigureRows, algorithm: dict[str, str]) -> float:
        most = run.largest("alpha")
        return run.mean("bandwidth", alpha=most, **algorithm) / run.mean("bandwidth", alpha=1, **algorithm)

    def ours(rows: FigureRows) -> Measured:
        runs = [rows.where(seed=seed) for (seed,) in rows.points("seed")]
        return paired([(shrunk(run, one), shrunk(run, other)) for run in runs])

    return ours


def _diminishing(one: dict[str, str]) -> Ours:
    """How much bandwidth a further rectangle saves above 3 and up to 3, on average, in pairs of runs."""

    def saved(rows: FigureRows, low: int, high: int) -> float:
        means = np.log([rows.mean("bandwidth", alpha=alpha, **one) for alpha in (low, high)])
        return float(1 - np.exp((means[1] - means[0]) / (high - low)))

    def ours(rows: FigureRows) -> Measured:
        most = rows.largest("alpha")
        runs = [rows.where(seed=seed) for (seed,) in rows.points("seed")]
        return paired(
            [(saved(run, 3, most), saved(run, 1, 3)) for run in runs],
            lambda above, below: f"{below:.1%} per rectangle up to 3, {above:.1%} above",
        )

    return ours


FIG10 = Figure(
    4,
    "fig10",
    "Bandwidth over the number of rectangles in a filter",
    "alpha",
    "rectangles per filter",
    ("algorithm",),
    (THREE[0],),
    _of_alphas,
    _run_alpha,
    (
        *(
            Claim(
                TREND,
                "VI",
                f"bandwidth falls with the number of rectangles, {name}",
                trend("bandwidth", "alpha", -1, ("seed",), **one),
                setup=setup,
            )
            for name, one, setup in (
                ("Gr*", GR_STAR, ""),
                ("Gr", GR, ""),
                ("SLP1", PRINTED, FROM_1024),
            )
        ),
        *(
            Claim(
                ORDER,
                "VI",
                f"with one or two rectangles SLP1 loses more against {name} than with more",
                _at_few(name, one),
                setup=FROM_1024,
            )
            for name, one in (("Gr*", GR_STAR), ("Gr", GR))
        ),
        *(
            Claim(
                ORDER,
                "VI",
                f"the effect of more rectangles is similar for {name}: what remains of the bandwidth",
                _shrinks_alike(one, other),
                relation="alike",
                setup=setup,
            )
            for name, one, other, setup in (
                ("Gr* and Gr", GR_STAR, GR, ""),
                ("SLP1 and Gr*", PRINTED, GR_STAR, FROM_1024),
            )
        ),
        *(
            Claim(
                ORDER,
                "VI",
                f"more than 3 rectangles have a diminishing effect, {name}: a further one saves less "
                "bandwidth above 3 than up to 3",
                _diminishing(one),
                setup=setup,
            )
            for name, one, setup in (("Gr*", GR_STAR, ""), ("Gr", GR, ""), ("SLP1", PRINTED, FROM_1024))
        ),
    ),
)


def _of_sizes(quick: bool) -> list[Case]:
    """A tree of brokers, and half as many brokers in one level, for all sizes."""
    sizes = (1000, 2000, 4000) if quick else (100_000, 250_000, 500_000, 1_000_000)
    brokers = 40 if quick else 200
    return [
        {"set": "1HH", "seed": seed, "subscribers": m} | network
        for network in ({"brokers": brokers, "latency": "loose"}, {"brokers": brokers // 2})
        for m in sizes
        for seed in seeds(quick)
    ]


def _run_size(case: Case) -> list[Row]:
    if "latency" not in case:
        return _run(case, PRINTED_SLP1)
    problem = _problem(case, levels=2, latency=case["latency"])
    return [_measured(case, problem, PRINTED_SLP, levels=2)]


def _hours(text: str, algorithm: str, theirs: float) -> Claim:
    return Claim(
        TIME,
        "VI",
        f"hours of {text}",
        lambda rows: rows.mean("seconds", algorithm=algorithm, subscribers=1_000_000) / 3600,
        theirs,
        missing="a search that begins at g = 4, as the paper's does,",
        reason=by_start,
        experiment="paper4-search",
        setup=f"{FROM_1024}; (IS:H, BI:H), loose latency; CPU time, the paper's is wall-clock time on "
        "another machine with another solver",
        at_full_size=True,
    )


FIG11 = Figure(
    4,
    "fig11",
    "Seconds of SLP over the number of subscribers",
    "subscribers",
    "subscribers",
    ("algorithm",),
    (Panel("seconds", "CPU seconds"),),
    _of_sizes,
    _run_size,
    (
        _hours("SLP at a million subscribers and 200 brokers", PRINTED_SLP, 4),
        _hours("SLP1 at a million subscribers and 100 brokers in one level", PRINTED_SLP1, 23),
        Claim(
            TREND,
            "VI",
            "the time rises with the number of subscribers",
            trend("seconds", "subscribers", 1, ("seed",), **PRINTED_TREE),
            setup=TREE_SETUP,
        ),
        Claim(
            ORDER,
            "VI",
            "at the most subscribers SLP in a tree is faster than SLP1 in one level",
            lambda rows: order("seconds", PRINTED_TREE, PRINTED, ("seed",))(
                rows.where(subscribers=rows.largest("subscribers"))
            ),
            missing="a search that begins at g = 4, as the paper's does,",
            reason=lambda rows: (
                f"{NOT_KNOWN}; seconds in a tree and in one level by the number of subscribers: "
                + ", ".join(
                    f"{m:,} {plain(rows.mean('seconds', subscribers=m, **PRINTED_TREE))} and "
                    + plain(rows.mean("seconds", subscribers=m, **PRINTED))
                    for (m,) in rows.points("subscribers")
                )
            ),
            setup=TREE_SETUP,
        ),
    ),
)


# Other results: constraints and parameters whose results are in the technical report

VARIED = {
    "loads": ("subscribers per broker in S_b", "load_sample", (5, 10, 20, 40)),
    "clusters": ("super-subscriptions per broker", "clusters", (2, 5, 10)),
    "threshold": ("the threshold of trees", "threshold", (0.0, 0.1, 0.2, 0.3, 0.5)),
    "last hop": ("the bound on latency", "", (0, 1)),
    "even brokers": ("the distribution of brokers in the network space", "", (0, 1)),
}
# Tried in this order until the load limits can be met: times the shortest hop; a share of the brokers.
HOP_BOUNDS = (1.3, 2.0, 3.0, 5.0, 8.0, 12.0)
SPREAD_SHARES = (1.0, 0.75, 0.5, 0.25, 0.1)
MOST_PROGRAMS = 3  # there SLP1 can search for a certificate for hours
CHOSEN = {
    "last hop": f"at most {MOST_PROGRAMS} linear programs; the bound is the least of "
    f"{', '.join(map(plain, HOP_BOUNDS))} times the shortest hop with which the load limits can be met",
    "even brokers": f"at most {MOST_PROGRAMS} linear programs; the largest share of "
    f"{', '.join(map(plain, SPREAD_SHARES))} of the brokers is anywhere with which the limits can be met",
}
VALUES = {
    "last hop": ("the path bounded", "the last hop bounded"),
    "even brokers": ("brokers near subscribers", "brokers anywhere"),
}


def _of_others(quick: bool) -> list[Case]:
    """Two runs per value: the paper does not show its results, so more would not decide the claims."""
    every = [(name, value, seed) for name in VARIED for value in VARIED[name][2] for seed in range(2)]
    cases = []
    for name, value, seed in every:
        varied: dict[str, Any] = {"varied": name, "value": value}
        if name == "threshold":
            cases += [
                _case("1HH", seed, quick, 200, latency=latency, **varied) for latency in ("tight", "loose")
            ]
        else:
            more = {} if VARIED[name][1] else {"least": True, "possible": True}
            cases.append(_case("1HH", seed, quick, **varied, **more))
    return cases


def _run_other(case: Case) -> list[Row]:
    """SLP (or SLP1) and Gr* with one parameter changed; the row has the bandwidth over Gr*'s."""
    name, value = case["varied"], case["value"]
    levels = 2 if name == "threshold" else 1
    problem = _problem(case, levels=2, latency=case["latency"]) if levels == 2 else _problem(case)
    chosen: dict[str, float] = {}
    if value and name == "last hop":
        chosen["chosen"], problem = _first_possible((b, bounded_last_hop(problem, b)) for b in HOP_BOUNDS)
    if value and name == "even brokers":
        chosen["chosen"], problem = _first_possible(
            (share, spread_brokers(problem, share, case["seed"])) for share in SPREAD_SHARES
        )
    options = {VARIED[name][1]: value} if VARIED[name][1] else {}
    if chosen:
        options["passes"] = MOST_PROGRAMS
    rows = [
        _measured(case, problem, "gr*", levels),
        _measured(case, problem, PRINTED_SLP if levels == 2 else PRINTED_SLP1, levels, **options),
    ]
    if "least" in case:
        rows.append(_measured(case, problem, "balance", levels))
    return [row | {"over_gr_star": row["bandwidth"] / rows[0]["bandwidth"]} | chosen for row in rows]


def _first_possible(
    problems: Iterable[tuple[float, AssignmentProblem]],
) -> tuple[float, AssignmentProblem]:
    """The first problem in which some assignment keeps every limit, with its number; else the last."""
    for found in problems:
        if assign(found[1], "balance").feasible:
            break
    return found


def spread_brokers(problem: AssignmentProblem, share: float, seed: int) -> AssignmentProblem:
    """A problem of one level with a share of its brokers anywhere in the bounding box of the subscribers."""
    rng = np.random.default_rng(seed)
    low, high = (extreme(problem.subscriber_place, axis=0) for extreme in (np.min, np.max))
    anywhere = rng.uniform(low, high, problem.broker_place.shape)
    moved = rng.permutation(len(anywhere)) < share * len(anywhere)
    return problem.replace(broker_place=np.where(moved[:, None], anywhere, problem.broker_place))


def bounded_last_hop(problem: AssignmentProblem, times: float) -> AssignmentProblem:
    """A problem of one level that bounds the last hop, not the path: so many times the shortest hop.

    The publisher is moved so far away, along an axis of its own, that all brokers are equally far from it.
    """
    away = 1e6 * float(np.ptp(np.vstack((problem.broker_place, problem.subscriber_place)), axis=0).max())
    hops = np.array(
        [
            np.sqrt(np.sum((problem.broker_place - position) ** 2, axis=1)).min()
            for position in problem.subscriber_place
        ]
    )

    def on_plane(positions: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.hstack((positions, np.zeros((len(positions), 1))))

    return problem.replace(
        publisher=np.append(problem.publisher, away),
        broker_place=on_plane(problem.broker_place),
        subscriber_place=on_plane(problem.subscriber_place),
        max_latency=away * (1 + 1e-12) + times * hops,
    )


def _by_value(name: str, one: dict[str, str], **where: Any) -> Callable[[FigureRows], str]:
    """The results of each value of a parameter."""

    def text(rows: FigureRows) -> str:
        found = rows.where(varied=name, **where, **one)
        return "; ".join(
            f"{_value_name(name, value)}{_chosen_of(found, value)}: "
            f"{plain(found.mean('over_gr_star', value=value))} times Gr*'s "
            f"bandwidth, lbf {plain(found.mean('lbf', value=value))}{_least_of(rows, name, value)}, "
            f"{found.mean('feasible', value=value):.0%} of the runs feasible"
            for (value,) in found.points("value")
        )

    return text


def _value_name(name: str, value: float) -> str:
    """A value of a parameter in words.

    Examples:
        >>> _value_name("last hop", 1), _value_name("threshold", 0.2)
        ('the last hop bounded', 'threshold 0.2')
    """
    return VALUES[name][int(value)] if name in VALUES else f"{name} {value:g}"


def _chosen_of(rows: FigureRows, value: float) -> str:
    """The bounds or shares with which the limits can be met, by run."""
    found = rows.values("chosen", value=value)
    return f" ({', '.join(map(plain, found))})" if found else ""


def _least_of(rows: FigureRows, name: str, value: float) -> str:
    """The least possible load balance factor, where it was computed."""
    found = rows.values("lbf", varied=name, value=value, **BALANCE)
    return f" (the least possible is {plain(float(np.mean(found)))})" if found else ""


def _robust(name: str, algorithm: str, one: dict[str, str], **where: Any) -> Claim:
    text = VARIED[name][0] + "".join(f", {value} latency" for value in where.values())
    return Claim(
        TREND,
        "VI",
        f"{algorithm}'s bandwidth over Gr*'s does not change with {text}",
        trend("over_gr_star", "value", 0, varied=name, **where, **one),
        relation="alike",
        missing=REPORT,
        reason=_by_value(name, one, **where),
        setup="; ".join([TREE_SETUP if where else FROM_1024, *([CHOSEN[name]] if name in CHOSEN else [])]),
    )


OTHERS = Figure(
    4,
    "others",
    "Other results: sizes of samples (loads), super-subscriptions (clusters), the threshold of trees, a "
    "bound on the last hop instead of the path, brokers anywhere instead of near subscribers, (IS:H, BI:H)",
    "varied",
    "what is varied (one dot per value)",
    ("algorithm",),
    (
        Panel("over_gr_star", "bandwidth over Gr*'s", dots=True),
        Panel("lbf", "load balance factor", dots=True),
    ),
    _of_others,
    _run_other,
    (
        _robust("loads", "SLP1", PRINTED),
        _robust("clusters", "SLP1", PRINTED),
        _robust("threshold", "SLP", PRINTED_TREE, latency="tight"),
        _robust("threshold", "SLP", PRINTED_TREE, latency="loose"),
        _robust("last hop", "SLP1", PRINTED),
        _robust("even brokers", "SLP1", PRINTED),
        Claim(
            BOUND,
            "VI",
            "SLP1 keeps every limit if the last hop is bounded",
            lambda rows: rows.mean("feasible", varied="last hop", value=1, **PRINTED),
            1,
            "at least",
            missing=REPORT,
            reason=_by_value("last hop", PRINTED),
            setup=f"{FROM_1024}; {CHOSEN['last hop']}",
        ),
    ),
)

FIGURES = (FIG10, FIG11, OTHERS)

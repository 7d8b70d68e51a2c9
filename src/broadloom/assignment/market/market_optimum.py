"""Optimum and lower bound of a market: integer programming (paper 5, II-B), and facility location (ours).

Integer programming, for small markets (`scipy.optimize.milp`). x[i, b]: user i is at broker b. y[x, t]:
broker x is in channel t. Rates replace the paper's 0/1 flows, which makes everything linear: f[b, x, t] is
the rate that x receives of what b's users send into t. Since sum over b of f[b, x, t] = (the rate of t) *
y[x, t] and f[b, x, t] <= (the rate of b into t), f[b, x, t] is 0 or the whole rate of b into t. Under "mst"
every source and channel has an arborescence: r[b, t, u, v] is the rate on the link from u to v, at least the
flow p[b, t, k, u, v] towards each k, and it enters only brokers in the channel. With x and y fixed the
remainder is a linear program with an integral optimum, so only x and y are integers.

Lower bound. A broker in a channel costs at least a fixed price, whatever the others do. Under trees each
broker of the channel except the source pays the link to its parent, which costs no less than its nearest
neighbour. Under pairs sum over x in S of D[b, x] >= sum over x in S of s[x] + sum over x of
min(0, D[b, x] - s[x]), for any s. The part that depends on the source alone goes to the users there. The
remainder is a facility location problem without capacities: each user pays at its broker, each broker and
channel is opened at its price. Any split of the prices among the users gives a bound, sum over users of the
cheapest broker with its shares; steps of an exponentiated subgradient improve the split.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from broadloom.assignment.market.cost_ledger import Core, assignment_cost, core_of, open_ledger
from broadloom.assignment.market.packing import MarketOptions, check_capacities
from broadloom.checks import MAX_INDEX, check_count, check_positive
from broadloom.errors import InputError
from broadloom.kernels import kernel, sum_in_order
from broadloom.model import MarketProblem
from broadloom.plans import MarketResult
from broadloom.progress import stage

if TYPE_CHECKING:
    from scipy.optimize import LinearConstraint

# Above this many variables integer programming takes too long.
MOST_VARIABLES = 200_000

# Nodes of the search for the least overload, where no assignment fits.
MOST_NODES = 10_000

# The solver accepts a constraint, and proves a bound, up to this share.
TOLERANCE = 1e-6

# At most this many shares are kept: for each channel that a user wants, one at each of its nearest brokers.
MOST_SHARES = 4_000_000

# Rounding can add up to this share: shares are reduced by it before they count, and so is the bound itself.
SAFETY = 1e-9

# Temperature of the users' soft choice, as a share of the mean difference of their two cheapest brokers.
TEMPERATURE = 0.5
# Size of the first step of the subgradient.
STEP = 2.0

# Under pairs: s as shares of the mean price from the senders of the assignment found; the best one is taken.
PAIR_SHARES = (0.0, 0.2, 0.4, 0.6, 0.8)
PAIR_TRIAL = 5


@dataclass(frozen=True)
class IlpOptions(MarketOptions):
    """Options of integer programming.

    Attributes:
        core: as for every algorithm.
        nodes: stop after this many nodes of the search tree; the notes say whether the optimum is proven.
        seconds: stop after this many seconds; None: no limit, so that every run gives the same result.
    """

    nodes: int = 10_000
    seconds: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count(self.nodes, "nodes", 1, MAX_INDEX)
        if self.seconds is not None:
            check_positive(self.seconds, "seconds")


def ilp(problem: MarketProblem, options: IlpOptions, seed: int) -> MarketResult:  # noqa: ARG001
    """The assignment of least cost, or the best one found before a limit; with a proven lower bound.

    Reference: Zhao and Wu, SECON 2011 (paper 5), section II-B.
    """
    from scipy.optimize import milp

    check_capacities(problem)
    if not problem.user_count:
        return MarketResult(problem, np.empty(0, np.int32), options.core, lower_bound=0.0)
    model = _IntegerProgram(problem, core_of(problem, options.core))
    limits: Any = {"node_limit": options.nodes, "mip_rel_gap": 0.0}
    if options.seconds is not None:
        limits["time_limit"] = options.seconds
    while True:
        solved = milp(
            model.price,
            integrality=model.integral,
            bounds=model.bounds,
            constraints=model.constraints(),
            options=limits,
        )
        if solved.x is None:
            raise InputError(_reason_without_solution(problem, " ".join(solved.message.split())))
        broker_of = model.assignment(solved.x)
        if not model.forbid_overload(broker_of):
            break
    bound = solved.mip_dual_bound * (1 - TOLERANCE)
    notes = {"optimal": bool(solved.status == 0), "nodes": int(solved.mip_node_count)}
    cost = assignment_cost(problem, broker_of, options.core)
    return MarketResult(problem, broker_of, options.core, lower_bound=min(float(bound), cost), notes=notes)


def _reason_without_solution(problem: MarketProblem, message: str) -> str:
    """Why there is no assignment: the least possible overload of a broker, or the solver's message."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    users, brokers = problem.user_count, problem.broker_count
    each = np.kron(np.eye(users), np.ones(brokers))
    load = np.kron(problem.demand, np.eye(brokers))
    least = milp(
        np.append(np.zeros(users * brokers), 1.0),
        integrality=np.append(np.ones(users * brokers), 0),
        bounds=Bounds(0, np.append(np.ones(users * brokers), np.inf)),
        constraints=[
            LinearConstraint(np.pad(each, ((0, 0), (0, 1))), 1, 1),
            LinearConstraint(np.pad(load, ((0, 0), (0, 1)), constant_values=-1.0), ub=problem.capacity),
        ],
        options={"node_limit": MOST_NODES},
    )
    if least.status != 0 or least.fun <= float(problem.limit.max() - problem.capacity.max()):
        return f"no assignment within the capacities was found: {message}"
    return (
        f"no assignment keeps every capacity: at best a broker is overloaded by {least.fun:.6g}; "
        "raise capacities or add brokers"
    )


class _IntegerProgram:
    """The integer program: prices of its variables, bounds, and constraints; forbidden overloads add more."""

    def __init__(self, problem: MarketProblem, core: Core) -> None:
        from scipy.optimize import Bounds

        self._problem = problem
        self._total = problem.rates.sum(axis=0)
        self._channels = np.flatnonzero((self._total > 0) & problem.wants.any(axis=0))
        users, brokers, channels = problem.user_count, problem.broker_count, len(self._channels)
        self._rows: list[tuple[dict[int, float], float, float]] = []
        self._size = 0
        self._at = self._variables(users, brokers)
        self._in = self._variables(brokers, channels)
        self._flow = self._variables(brokers, brokers, channels)
        links = {"mst": brokers * (brokers - 1) * brokers, "tree": brokers - 1, "pair": 0}
        kind = ("mst", "pair", "tree")[core.kind]
        if self._size + brokers * channels * links[kind] * (brokers if kind == "mst" else 1) > MOST_VARIABLES:
            raise InputError(
                f"{users:,} users, {brokers:,} brokers and {channels:,} channels are too many for ilp under "
                f"{kind}: it takes up to {MOST_VARIABLES:,} variables; use another algorithm"
            )
        prices = {
            self._at[i, b]: problem.demand[i] * problem.access[i, b]
            for i in range(users)
            for b in range(brokers)
        }
        self._add_assignment_constraints()
        self._add_flow_constraints()
        prices |= {
            "mst": self._add_mst_constraints,
            "pair": self._add_pair_constraints,
            "tree": self._add_tree_constraints,
        }[kind](core)
        self.price = np.zeros(self._size)
        self.price[list(prices)] = list(prices.values())
        self.integral = np.zeros(self._size, np.int64)
        self.integral[: self._at.size + self._in.size] = 1
        top = np.full(self._size, np.inf)
        top[: self._at.size + self._in.size] = 1.0
        self.bounds = Bounds(np.zeros(self._size), top)

    def _variables(self, *shape: int) -> NDArray[np.int64]:
        """The numbers of new variables, in an array of this shape."""
        first = self._size
        self._size += int(np.prod(shape))
        return np.arange(first, self._size).reshape(shape)

    def _constrain(self, terms: Iterable[tuple[Any, float]], low: float, high: float) -> None:
        """Add the constraint `low <= sum of factor * variable <= high`."""
        row: dict[int, float] = {}
        for variable, factor in terms:
            row[int(variable)] = row.get(int(variable), 0.0) + float(factor)
        self._rows.append((row, low, high))

    def _add_assignment_constraints(self) -> None:
        """One broker per user, capacities, and brokers are in the channels that their users want."""
        problem = self._problem
        for i in range(problem.user_count):
            self._constrain(((x, 1) for x in self._at[i]), 1, 1)
        for b in range(problem.broker_count):
            need = zip(self._at[:, b], problem.demand, strict=True)
            self._constrain(need, -np.inf, problem.limit[b])
            for c, channel in enumerate(self._channels):
                readers = np.flatnonzero(problem.wants[:, channel]).tolist()
                for i in readers:
                    self._constrain([(self._at[i, b], 1), (self._in[b, c], -1)], -np.inf, 0)
                self._constrain([(self._in[b, c], 1), *((self._at[i, b], -1) for i in readers)], -np.inf, 0)

    def _add_flow_constraints(self) -> None:
        """A broker in a channel receives the whole rate: from each broker, the rate that its users send."""
        problem = self._problem
        for c, channel in enumerate(self._channels):
            for to in range(problem.broker_count):
                received = [(f, 1.0) for f in self._flow[:, to, c]]
                self._constrain([*received, (self._in[to, c], -self._total[channel])], 0, 0)
                for b in range(problem.broker_count):
                    sent = [(self._at[i, b], -g) for i, g in enumerate(problem.rates[:, channel]) if g > 0]
                    self._constrain([(self._flow[b, to, c], 1.0), *sent], -np.inf, 0)

    def _add_pair_constraints(self, core: Core) -> dict[int, float]:
        """Each flow pays the price of its two ends."""
        pairs = np.ndindex(*self._flow.shape)
        return {int(self._flow[b, to, c]): float(core.prices[b, to]) for b, to, c in pairs}

    def _add_tree_constraints(self, core: Core) -> dict[int, float]:
        """A link of the tree carries, for each source and channel, the largest flow to its other side."""
        brokers, prices = len(core.order), {}
        below = np.eye(brokers, dtype=bool)
        for q in range(brokers - 1, 0, -1):
            below[core.parent[q]] |= below[q]
        for c in range(len(self._channels)):
            for q in range(1, brokers):
                side = np.zeros(brokers, bool)
                side[core.order[below[q]]] = True
                for b in range(brokers):
                    rate = int(self._variables(1)[0])
                    prices[rate] = float(core.edge[q])
                    for other in np.flatnonzero(side != side[b]):
                        self._constrain([(self._flow[b, other, c], 1), (rate, -1)], -np.inf, 0)
        return prices

    def _add_mst_constraints(self, core: Core) -> dict[int, float]:
        """For each source and channel an arborescence over the brokers in the channel."""
        brokers, prices = len(core.order), {}
        for b in range(brokers):
            links = [(u, v) for u in range(brokers) for v in range(brokers) if v not in (u, b)]
            for c in range(len(self._channels)):
                rate = dict(zip(links, self._variables(len(links)), strict=True))
                for (u, v), variable in rate.items():
                    prices[int(variable)] = float(core.prices[u, v])
                    self._constrain([(variable, 1), (self._flow[b, v, c], -1)], -np.inf, 0)
                for to in range(brokers):
                    if to != b:
                        self._add_path_constraints(b, to, c, rate)
        return prices

    def _add_path_constraints(
        self, source: int, to: int, channel: int, rate: dict[tuple[int, int], np.int64]
    ) -> None:
        """What `to` receives from the source flows there within the rates of the links."""
        path = dict(zip(rate, self._variables(len(rate)), strict=True))
        for link, variable in path.items():
            self._constrain([(variable, 1), (rate[link], -1)], -np.inf, 0)
        for node in {v for _, v in rate}:
            through = [
                (p, float(v == node) - float(u == node)) for (u, v), p in path.items() if node in (u, v)
            ]
            goal = [(self._flow[source, to, channel], -1.0)] if node == to else []
            self._constrain([*through, *goal], 0, 0)

    def constraints(self) -> LinearConstraint:
        """All constraints as one matrix."""
        from scipy.optimize import LinearConstraint
        from scipy.sparse import csr_array

        rows, lows, highs = zip(*self._rows, strict=True)
        start = np.concatenate(([0], np.cumsum([len(row) for row in rows])))
        columns = [column for row in rows for column in row]
        factors = [factor for row in rows for factor in row.values()]
        matrix = csr_array((factors, columns, start), shape=(len(rows), self._size))
        return LinearConstraint(matrix, lows, highs)

    def assignment(self, solution: NDArray[np.float64]) -> NDArray[np.int32]:
        """The broker of each user in a solution."""
        return np.argmax(solution[self._at], axis=1).astype(np.int32)

    def forbid_overload(self, broker_of: NDArray[np.int32]) -> bool:
        """Forbid user groups that overload a broker within the solver's tolerance; whether there were any."""
        problem = self._problem
        load = np.bincount(broker_of, problem.demand, minlength=problem.broker_count)
        over = np.flatnonzero(load > problem.limit)
        for b in over:
            users = np.flatnonzero(broker_of == b)
            self._constrain(((self._at[i, b], 1) for i in users), -np.inf, len(users) - 1)
        return bool(len(over))


def lower_bound(problem: MarketProblem, found: NDArray[np.int32], core: str, steps: int) -> float:
    """A proven lower bound on the cost under a core; `found` is a good assignment, which guides it."""
    if not problem.user_count:
        return 0.0
    access = problem.demand[:, None] * problem.access
    alone = float(access.min(axis=1).sum()) * (1 - SAFETY)
    if steps == 0:
        return alone
    if core != "pair":
        nearest = _nearest_prices(problem.core)
        opening = problem.rates.sum(axis=0) * nearest[:, None]
        paid = access - problem.sent[:, None] * nearest
        return max(alone, _facility_bound(problem, paid, opening, steps))
    ledger = open_ledger(problem, found, core_of(problem, core))
    trials = [_pair_relaxation(problem, access, ledger.sent, share) for share in PAIR_SHARES]
    values = [_facility_bound(problem, *trial, PAIR_TRIAL) for trial in trials]
    best = trials[int(np.argmax(values))]
    return max(alone, *values, _facility_bound(problem, *best, steps))


def _nearest_prices(prices: NDArray[np.float64]) -> NDArray[np.float64]:
    """The price of each broker's cheapest link; 0 for a single broker."""
    others = prices + np.diag(np.full(len(prices), np.inf))
    nearest = others.min(axis=1, initial=np.inf)
    return np.where(np.isfinite(nearest), nearest, 0.0)


def _pair_relaxation(
    problem: MarketProblem, access: NDArray[np.float64], sent: NDArray[np.float64], share: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The price of each user at each broker, and of each broker in each channel, under pairs."""
    total = sent.sum(axis=0)
    mean = (problem.core @ sent) / np.where(total > 0, total, 1.0)
    price = share * mean
    back = np.zeros_like(sent)
    for b, row in enumerate(problem.core):
        back[b] = np.minimum(0.0, row[:, None] - price).sum(axis=0)
    return access + problem.rates @ back.T, total * price


class FacilityProblem(NamedTuple):
    """Facility location without capacities, as kernels take it; each user keeps some of its cheapest brokers.

    Attributes:
        near: the brokers that each user keeps, (users, kept).
        here: the price of each user at these brokers, (users, kept).
        elsewhere: the least price of each user at any other broker.
        start: the position in `channels` of each user's first wanted channel.
        channels: the wanted channels of all users.
        opening: the price of each broker in each channel, (brokers, channels).
    """

    near: NDArray[np.int32]
    here: NDArray[np.float64]
    elsewhere: NDArray[np.float64]
    start: NDArray[np.int64]
    channels: NDArray[np.int32]
    opening: NDArray[np.float64]


def _facility_bound(
    problem: MarketProblem, paid: NDArray[np.float64], opening: NDArray[np.float64], steps: int
) -> float:
    """The bound of facility location: `paid` by users at brokers, `opening` per broker and channel."""
    start, channels = problem.wanted
    brokers = problem.broker_count
    kept = max(1, min(brokers, MOST_SHARES // max(1, len(channels))))
    near = np.argpartition(paid, kept - 1, axis=1)[:, :kept].astype(np.int32)
    here = np.take_along_axis(paid, near, axis=1)
    elsewhere = np.full(len(paid), np.inf)
    if kept < brokers:
        others = paid.copy()
        np.put_along_axis(others, near, np.inf, axis=1)
        elsewhere = others.min(axis=1)
    facility = FacilityProblem(near, here, elsewhere, start, channels, opening)
    with stage("bound", steps) as done:
        shares = np.ones((len(channels), kept))
        _normalise(facility, shares)
        best = -np.inf
        for step in range(steps):
            value, chosen = _split_value(facility, shares)
            best = max(best, value)
            _shift_shares(facility, chosen, STEP / np.sqrt(1 + step / 10), shares)
            done(step + 1)
        best = max(best, _split_value(facility, shares)[0])
    return float(best - SAFETY * (np.abs(here).max(axis=1).sum() + opening.sum()))


@kernel
def _normalise(facility: FacilityProblem, shares: NDArray[np.float64]) -> None:
    """Scale shares so that those of one broker and channel add up to slightly less than its price."""
    near, start, channels = facility.near, facility.start, facility.channels
    total = np.zeros(facility.opening.shape)
    for i in range(len(near)):
        for at in range(start[i], start[i + 1]):
            for q in range(near.shape[1]):
                total[near[i, q], channels[at]] += shares[at, q]
    for i in range(len(near)):
        for at in range(start[i], start[i + 1]):
            for q in range(near.shape[1]):
                b, t = near[i, q], channels[at]
                shares[at, q] *= (1 - SAFETY) * facility.opening[b, t] / total[b, t]


@kernel
def _split_value(facility: FacilityProblem, shares: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
    """The bound of a split, and each user's soft choice of its cheapest broker, as one share per broker."""
    users, kept = facility.here.shape
    start, elsewhere = facility.start, facility.elsewhere
    chosen, cost = np.zeros((users, kept)), facility.here.copy()
    total = apart = 0.0
    for i in range(users):
        for at in range(start[i], start[i + 1]):
            cost[i] += shares[at]
        lowest = second = np.inf
        for one in cost[i]:
            second = min(second, max(one, lowest))
            lowest = min(lowest, one)
        total += min(lowest, elsewhere[i])
        apart += second - lowest if kept > 1 else 0.0
    temperature = max(apart / users, 1e-300) * TEMPERATURE
    weight = np.empty(kept)
    for i in range(users):
        low = min(cost[i].min(), elsewhere[i])
        for b in range(kept):
            weight[b] = math.exp(-(cost[i, b] - low) / temperature)
        chosen[i] = weight / (sum_in_order(weight) + math.exp(-(elsewhere[i] - low) / temperature))
    return total, chosen


@kernel
def _shift_shares(
    facility: FacilityProblem, chosen: NDArray[np.float64], step: float, shares: NDArray[np.float64]
) -> None:
    """Move shares towards the users that choose the broker, where they count."""
    grow = np.empty(chosen.shape[1])
    for i in range(len(facility.near)):
        for b in range(len(grow)):
            grow[b] = math.exp(step * chosen[i, b])
        for at in range(facility.start[i], facility.start[i + 1]):
            shares[at] = shares[at] * grow + 1e-300
    _normalise(facility, shares)

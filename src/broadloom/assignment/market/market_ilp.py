"""The least cost by integer programming (paper 5, II-B), for small markets: `scipy.optimize.milp`.

x[i, b]: user i is at broker b. y[x, t]: broker x is in channel t. Rates take the place of the paper's 0/1
flows, which makes everything linear: f[b, x, t] is what x gets of what b's users send into t, and since
sum over b of f[b, x, t] = (all that is sent into t) * y[x, t] and f[b, x, t] <= (what b sends into t), it is
all or nothing. Under "mst" every source and channel has an arborescence: r[b, t, u, v] is the rate on the
link from u to v, at least the flow p[b, t, k, u, v] towards each k, and it enters only brokers in the
channel. With x and y given the rest is a linear program with an integral optimum: only they are integers.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from broadloom.assignment.market.market_options import MarketOptions
from broadloom.assignment.market.room import check_room
from broadloom.errors import InputError
from broadloom.measures.core_trees import Core
from broadloom.measures.market import core_named, market_cost
from broadloom.model import MarketProblem
from broadloom.plans import MarketResult

# Above this many variables nobody should wait for an answer.
MOST_VARIABLES = 200_000

# How far to look for the least overload, where nothing fits.
MOST_NODES = 10_000

# The solver takes a rule as kept, and a bound as proven, up to this share.
TOLERANCE = 1e-6


@dataclass(frozen=True)
class IlpOptions(MarketOptions):
    """What integer programming is told.

    Attributes:
        core: as for every algorithm.
        nodes: stop after so many nodes of the search tree; the notes say whether the optimum is proven.
        seconds: stop after so many seconds; None: no limit, so that runs repeat.
    """

    nodes: int = 10_000
    seconds: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nodes < 1:
            raise InputError(f"nodes is {self.nodes}; give 1 or more")
        if self.seconds is not None and not self.seconds > 0:
            raise InputError(f"seconds is {self.seconds}; give a number above 0")


def ilp(problem: MarketProblem, options: IlpOptions, seed: int) -> MarketResult:  # noqa: ARG001
    """The least cost, with the proof, or the best found and how far it is from the bound."""
    check_room(problem)
    if not problem.user_count:
        return MarketResult(problem, np.empty(0, np.int32), options.core, lower_bound=0.0)
    model = _Model(problem, core_named(problem, options.core))
    limits: Any = {"node_limit": options.nodes, "mip_rel_gap": 0.0}
    if options.seconds is not None:
        limits["time_limit"] = options.seconds
    while True:
        solved = milp(
            model.price,
            integrality=model.integral,
            bounds=model.bounds,
            constraints=model.rules(),
            options=limits,
        )
        if solved.x is None:
            raise InputError(_why_not(problem, " ".join(solved.message.split())))
        broker_of = model.assignment(solved.x)
        if not model.forbid_overload(broker_of):
            break
    bound = solved.mip_dual_bound * (1 - TOLERANCE)
    notes = {"optimal": bool(solved.status == 0), "nodes": int(solved.mip_node_count)}
    cost = market_cost(problem, broker_of, options.core).total
    return MarketResult(problem, broker_of, options.core, lower_bound=min(float(bound), cost), notes=notes)


def _why_not(problem: MarketProblem, message: str) -> str:
    """Why there is no assignment: by how much a broker is overloaded at best, or what the solver says."""
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


class _Model:
    """The integer program: prices of its variables, bounds, and rules that grow by forbidden overloads."""

    def __init__(self, problem: MarketProblem, core: Core) -> None:
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
        self._assignment_rules()
        self._flow_rules()
        prices |= {"mst": self._mst_rules, "pair": self._pair_rules, "tree": self._tree_rules}[kind](core)
        self.price = np.zeros(self._size)
        self.price[list(prices)] = list(prices.values())
        self.integral = np.zeros(self._size, np.int64)
        self.integral[: self._at.size + self._in.size] = 1
        top = np.full(self._size, np.inf)
        top[: self._at.size + self._in.size] = 1.0
        self.bounds = Bounds(np.zeros(self._size), top)

    def _variables(self, *shape: int) -> NDArray[np.int64]:
        """Numbers for so many new variables."""
        first, self._size = self._size, self._size + int(np.prod(shape))
        return np.arange(first, self._size).reshape(shape)

    def _rule(self, terms: Iterable[tuple[Any, float]], low: float, high: float) -> None:
        """`low <= sum of factor * variable <= high`."""
        row: dict[int, float] = {}
        for variable, factor in terms:
            row[int(variable)] = row.get(int(variable), 0.0) + float(factor)
        self._rows.append((row, low, high))

    def _assignment_rules(self) -> None:
        """One broker a user, capacities, and a broker is in a channel just when one of its users wants it."""
        problem = self._problem
        for i in range(problem.user_count):
            self._rule(((x, 1) for x in self._at[i]), 1, 1)
        for b in range(problem.broker_count):
            need = zip(self._at[:, b], problem.demand, strict=True)
            self._rule(need, -np.inf, problem.limit[b])
            for c, channel in enumerate(self._channels):
                readers = np.flatnonzero(problem.wants[:, channel]).tolist()
                for i in readers:
                    self._rule([(self._at[i, b], 1), (self._in[b, c], -1)], -np.inf, 0)
                self._rule([(self._in[b, c], 1), *((self._at[i, b], -1) for i in readers)], -np.inf, 0)

    def _flow_rules(self) -> None:
        """A broker in a channel gets all that is sent into it, from each broker what its users send."""
        problem = self._problem
        for c, channel in enumerate(self._channels):
            for to in range(problem.broker_count):
                got = [(f, 1.0) for f in self._flow[:, to, c]]
                self._rule([*got, (self._in[to, c], -self._total[channel])], 0, 0)
                for b in range(problem.broker_count):
                    sent = [(self._at[i, b], -g) for i, g in enumerate(problem.rates[:, channel]) if g > 0]
                    self._rule([(self._flow[b, to, c], 1.0), *sent], -np.inf, 0)

    def _pair_rules(self, core: Core) -> dict[int, float]:
        """Each flow pays the price of its two ends."""
        pairs = np.ndindex(*self._flow.shape)
        return {int(self._flow[b, to, c]): float(core.prices[b, to]) for b, to, c in pairs}

    def _tree_rules(self, core: Core) -> dict[int, float]:
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
                        self._rule([(self._flow[b, other, c], 1), (rate, -1)], -np.inf, 0)
        return prices

    def _mst_rules(self, core: Core) -> dict[int, float]:
        """For each source and channel an arborescence over the brokers in the channel."""
        brokers, prices = len(core.order), {}
        for b in range(brokers):
            links = [(u, v) for u in range(brokers) for v in range(brokers) if v not in (u, b)]
            for c in range(len(self._channels)):
                rate = dict(zip(links, self._variables(len(links)), strict=True))
                for (u, v), variable in rate.items():
                    prices[int(variable)] = float(core.prices[u, v])
                    self._rule([(variable, 1), (self._flow[b, v, c], -1)], -np.inf, 0)
                for to in range(brokers):
                    if to != b:
                        self._way_rules(b, to, c, rate)
        return prices

    def _way_rules(self, source: int, to: int, channel: int, rate: dict[tuple[int, int], np.int64]) -> None:
        """What `to` gets from the source flows there within the rates of the links."""
        way = dict(zip(rate, self._variables(len(rate)), strict=True))
        for link, variable in way.items():
            self._rule([(variable, 1), (rate[link], -1)], -np.inf, 0)
        for node in {v for _, v in rate}:
            through = [
                (p, float(v == node) - float(u == node)) for (u, v), p in way.items() if node in (u, v)
            ]
            goal = [(self._flow[source, to, channel], -1.0)] if node == to else []
            self._rule([*through, *goal], 0, 0)

    def rules(self) -> LinearConstraint:
        """All rules as one matrix."""
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
        """Forbid users that overload their broker within the solver's tolerance; whether there are any."""
        problem = self._problem
        load = np.bincount(broker_of, problem.demand, minlength=problem.broker_count)
        over = np.flatnonzero(load > problem.limit)
        for b in over:
            users = np.flatnonzero(broker_of == b)
            self._rule(((self._at[i, b], 1) for i in users), -np.inf, len(users) - 1)
        return bool(len(over))

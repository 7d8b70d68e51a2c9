"""What an assignment of a market costs: access plus core (paper 5, II-B and IV-A)."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from broadloom.errors import InputError
from broadloom.kernels import kernel
from broadloom.measures.core_trees import Core, add_flows, core_of, source_prices
from broadloom.model import MarketProblem, check_core


class MarketCost(NamedTuple):
    """What an assignment costs: on the links of users, and on the links between brokers."""

    access: float
    core: float

    @property
    def total(self) -> float:
        """Both together."""
        return self.access + self.core


class Traffic(NamedTuple):
    """What users send and want, and what they pay, as kernels take it."""

    rates: NDArray[np.float64]
    start: NDArray[np.int64]
    channels: NDArray[np.int32]
    demand: NDArray[np.float64]
    access: NDArray[np.float64]
    limit: NDArray[np.float64]


class Ledger(NamedTuple):
    """The traffic of an assignment, kept current by kernels when one user moves.

    Attributes:
        broker_of: the broker of each user.
        load: what each broker's users send and receive.
        sent: what each broker's users send into each channel, (brokers, channels).
        readers: how many of each broker's users want each channel, (brokers, channels).
        price: what a message from each broker into each channel costs on the core, (brokers, channels).
        cost: what each channel costs on the core.
    """

    broker_of: NDArray[np.int32]
    load: NDArray[np.float64]
    sent: NDArray[np.float64]
    readers: NDArray[np.int64]
    price: NDArray[np.float64]
    cost: NDArray[np.float64]


def market_cost(problem: MarketProblem, broker_of: ArrayLike, core: str = "mst") -> MarketCost:
    """What an assignment costs under a core.

    Each user pays for what it sends and receives on its link. For each source broker and channel a message
    goes once over each link of one tree, which spans the source and the brokers with a user that wants it.

    Args:
        problem: the market.
        broker_of: the broker of each user.
        core: "mst": the tree is a least spanning tree; "pair": its links lead from the source to each
            destination; "tree": all trees are parts of one least spanning tree of all brokers.

    Example:
        >>> market = MarketProblem([[3], [0]], [[0], [1]], [[1, 2], [2, 1]], [[0, 1], [1, 0]], capacity=9)
        >>> market_cost(market, [0, 1])
        MarketCost(access=6.0, core=3.0)
    """
    ledger = open_ledger(problem, broker_of, core_named(problem, core))
    paid = problem.access[np.arange(problem.user_count), ledger.broker_of]
    return MarketCost(float(np.sum(problem.demand * paid)), float(np.sum(ledger.cost)))


def market_flows(problem: MarketProblem, broker_of: ArrayLike, core: str = "mst") -> NDArray[np.float64]:
    """What crosses the link between each two brokers, both directions together, (brokers, brokers).

    Example:
        >>> market = MarketProblem([[3], [0]], [[0], [1]], [[1, 2], [2, 1]], [[0, 1], [1, 0]], capacity=9)
        >>> market_flows(market, [0, 1]).tolist()
        [[0.0, 3.0], [3.0, 0.0]]
    """
    model = core_named(problem, core)
    ledger = open_ledger(problem, broker_of, model)
    flows = np.zeros((problem.broker_count, problem.broker_count))
    for channel in range(problem.channel_count):
        add_flows(model, ledger.readers[:, channel] > 0, ledger.sent[:, channel].copy(), flows)
    return flows


def market_metrics(problem: MarketProblem, broker_of: ArrayLike, core: str = "mst") -> dict[str, Any]:
    """Every measure of an assignment of a market.

    Costs are under the core named; `memberships` counts the pairs of a broker and a channel that one of its
    users wants; `overload` is by how much the most overloaded broker exceeds its capacity.

    Example:
        >>> market = MarketProblem([[3], [0]], [[0], [1]], [[1, 2], [2, 1]], [[0, 1], [1, 0]], capacity=9)
        >>> market_metrics(market, [0, 0])["core_cost"]
        0.0
    """
    model = core_named(problem, core)
    ledger = open_ledger(problem, broker_of, model)
    cost, flows = market_cost(problem, broker_of, core), market_flows(problem, broker_of, core)
    over = ledger.load - problem.capacity
    return {
        "users": problem.user_count,
        "brokers": problem.broker_count,
        "channels": problem.channel_count,
        "core": core,
        "cost": cost.total,
        "access_cost": cost.access,
        "core_cost": cost.core,
        "brokers_used": len(np.unique(ledger.broker_of)),
        "memberships": int(np.sum(ledger.readers > 0)),
        "links_used": int(np.sum(np.triu(flows) > 0)),
        "busiest_link": float(flows.max(initial=0.0)),
        "mean_load": float(ledger.load.mean()) if problem.broker_count else 0.0,
        "max_load": float(ledger.load.max(initial=0.0)),
        "overload": float(over.max(initial=0.0)),
        "feasible": bool(np.all(ledger.load <= problem.limit)),
    }


def core_named(problem: MarketProblem, core: str) -> Core:
    """The core of that name over the market's prices, as kernels take it."""
    check_core(core)
    return core_of(problem.core, core)


def traffic_of(problem: MarketProblem) -> Traffic:
    """The market's users as kernels take them."""
    return Traffic(problem.rates, *problem.wanted, problem.demand, problem.access, problem.limit)


def open_ledger(problem: MarketProblem, broker_of: ArrayLike, core: Core) -> Ledger:
    """The traffic of an assignment, counted from nothing."""
    chosen = np.array(broker_of, np.int32)
    if chosen.shape != (problem.user_count,):
        raise InputError(
            f"{problem.user_count:,} users but an assignment of shape {chosen.shape}; give one broker a user"
        )
    if problem.user_count and not (chosen.min() >= 0 and chosen.max() < problem.broker_count):
        raise InputError(
            f"brokers {chosen.min()} to {chosen.max()}; they are 0 to {problem.broker_count - 1}"
        )
    shape = (problem.broker_count, problem.channel_count)
    ledger = Ledger(
        chosen,
        np.zeros(shape[0]),
        np.zeros(shape),
        np.zeros(shape, np.int64),
        np.zeros(shape),
        np.zeros(shape[1]),
    )
    count_traffic(traffic_of(problem), ledger)
    for channel in range(shape[1]):
        price_channel(core, ledger, channel)
    return ledger


@kernel
def count_traffic(traffic: Traffic, ledger: Ledger) -> None:
    """Fill the ledger's loads, rates and counts from its assignment."""
    ledger.load[:] = 0.0
    ledger.sent[:] = 0.0
    ledger.readers[:] = 0
    for i in range(len(ledger.broker_of)):
        b = ledger.broker_of[i]
        ledger.load[b] += traffic.demand[i]
        ledger.sent[b] += traffic.rates[i]
        for at in range(traffic.start[i], traffic.start[i + 1]):
            ledger.readers[b, traffic.channels[at]] += 1


@kernel
def price_channel(core: Core, ledger: Ledger, channel: int) -> None:
    """Bring a channel's prices and its cost up to date with who is in it."""
    out = np.empty(len(ledger.load))
    source_prices(core, ledger.readers[:, channel] > 0, out)
    ledger.price[:, channel] = out
    ledger.cost[channel] = np.sum(ledger.sent[:, channel] * out)


@kernel
def dot(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """The inner product in four interleaved sums: fast without changing the order from run to run."""
    a = b = c = d = 0.0
    whole = len(one) - len(one) % 4
    for t in range(0, whole, 4):
        a += one[t] * other[t]
        b += one[t + 1] * other[t + 1]
        c += one[t + 2] * other[t + 2]
        d += one[t + 3] * other[t + 3]
    for t in range(whole, len(one)):
        a += one[t] * other[t]
    return (a + b) + (c + d)


@kernel
def change_of_move(core: Core, traffic: Traffic, ledger: Ledger, user: int, to: int) -> float:
    """By how much the cost changes when one user moves, exactly.

    It takes O(channels), and a tree for each channel that the old broker leaves or the new one joins.
    """
    home, rates = ledger.broker_of[user], traffic.rates[user]
    if to == home:
        return 0.0
    change = traffic.demand[user] * (traffic.access[user, to] - traffic.access[user, home])
    change += dot(rates, ledger.price[to]) - dot(rates, ledger.price[home])
    for at in range(traffic.start[user], traffic.start[user + 1]):
        t = traffic.channels[at]
        if ledger.readers[home, t] == 1 or ledger.readers[to, t] == 0:
            change -= rates[t] * (ledger.price[to, t] - ledger.price[home, t])
            change += _cost_after(core, ledger, home, to, t, rates[t]) - ledger.cost[t]
    return change


@kernel
def _cost_after(core: Core, ledger: Ledger, home: int, to: int, channel: int, rate: float) -> float:
    """What a channel costs after a user that wants it and sends `rate` into it has moved."""
    member = ledger.readers[:, channel] > 0
    member[home] = ledger.readers[home, channel] > 1
    member[to] = True
    out = np.empty(len(member))
    source_prices(core, member, out)
    return np.sum(ledger.sent[:, channel] * out) + rate * (out[to] - out[home])


@kernel
def move_user(core: Core, traffic: Traffic, ledger: Ledger, user: int, to: int) -> None:
    """Move a user and bring the ledger up to date."""
    home, rates = ledger.broker_of[user], traffic.rates[user]
    ledger.broker_of[user] = to
    ledger.load[home] -= traffic.demand[user]
    ledger.load[to] += traffic.demand[user]
    ledger.sent[home] -= rates
    ledger.sent[to] += rates
    ledger.cost[:] += rates * (ledger.price[to] - ledger.price[home])
    for at in range(traffic.start[user], traffic.start[user + 1]):
        t = traffic.channels[at]
        ledger.readers[home, t] -= 1
        ledger.readers[to, t] += 1
        if ledger.readers[home, t] == 0 or ledger.readers[to, t] == 1:
            price_channel(core, ledger, t)


class MovingCost:
    """The cost of an assignment that changes one user at a time, exactly and without counting anew.

    Example:
        >>> market = MarketProblem([[3], [0]], [[0], [1]], [[1, 2], [2, 1]], [[0, 1], [1, 0]], capacity=9)
        >>> moving = MovingCost(market, [0, 1])
        >>> moving.change(user=1, to=0)
        0.0
        >>> moving.move(user=0, to=1)
        >>> moving.cost
        MarketCost(access=9.0, core=0.0)
    """

    def __init__(self, problem: MarketProblem, broker_of: ArrayLike, core: str = "mst") -> None:
        self._core, self._traffic = core_named(problem, core), traffic_of(problem)
        self._ledger = open_ledger(problem, broker_of, self._core)
        self._access = market_cost(problem, broker_of, core).access

    @property
    def broker_of(self) -> NDArray[np.int32]:
        """The broker of each user now."""
        return self._ledger.broker_of.copy()

    @property
    def cost(self) -> MarketCost:
        """What the assignment costs now."""
        return MarketCost(self._access, float(np.sum(self._ledger.cost)))

    def change(self, user: int, to: int) -> float:
        """By how much the cost would change if the user moved there."""
        self._check(user, to)
        return float(change_of_move(self._core, self._traffic, self._ledger, user, to))

    def move(self, user: int, to: int) -> None:
        """Move the user there."""
        self._check(user, to)
        traffic, home = self._traffic, self._ledger.broker_of[user]
        paid = traffic.access[user, to] - traffic.access[user, home]
        self._access += float(traffic.demand[user] * paid)
        move_user(self._core, traffic, self._ledger, user, to)

    def _check(self, user: int, to: int) -> None:
        users, brokers = self._traffic.access.shape
        if not (0 <= user < users and 0 <= to < brokers):
            raise InputError(
                f"user {user} to broker {to}; users are 0 to {users - 1}, brokers 0 to {brokers - 1}"
            )

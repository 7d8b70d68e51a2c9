"""Cost ledger of a market: the cost of an assignment, kept up to date while users move (paper 5, II-B, IV-A).

All algorithms for markets use it. The measures in `broadloom.measures` share no code with it, so that they
can check its costs.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from broadloom.errors import InputError
from broadloom.kernels import kernel, sum_in_order
from broadloom.measures import MarketCost
from broadloom.model import CORES, MarketProblem, check_core

MST, PAIR, TREE = range(len(CORES))


class UserTraffic(NamedTuple):
    """Rates, wanted channels, demand and prices of all users, as kernels take them."""

    rates: NDArray[np.float64]
    start: NDArray[np.int64]
    channels: NDArray[np.int32]
    demand: NDArray[np.float64]
    access: NDArray[np.float64]
    limit: NDArray[np.float64]


class Core(NamedTuple):
    """The core as kernels take it, with the minimum spanning tree of all brokers.

    Attributes:
        kind: `MST`, `PAIR` or `TREE`.
        prices: the price of the link between each two brokers.
        order: the brokers in the order in which the tree reached them.
        parent: the position in `order` of the broker from which each position was reached.
        edge: the price of the link between them.
    """

    kind: int
    prices: NDArray[np.float64]
    order: NDArray[np.int64]
    parent: NDArray[np.int64]
    edge: NDArray[np.float64]


class CostLedger(NamedTuple):
    """The traffic of an assignment and its cost; kernels update it when a user moves.

    Attributes:
        broker_of: the broker of each user.
        load: the rate that each broker's users send and receive.
        sent: the rate that each broker's users send into each channel, (brokers, channels).
        readers: the number of each broker's users that want each channel, (brokers, channels).
        message_price: the core cost of one message from each broker into each channel, (brokers, channels).
        cost: the core cost of each channel.
    """

    broker_of: NDArray[np.int32]
    load: NDArray[np.float64]
    sent: NDArray[np.float64]
    readers: NDArray[np.int64]
    message_price: NDArray[np.float64]
    cost: NDArray[np.float64]


class MovingCost:
    """The cost of an assignment that changes one user at a time, exact and without a full recount.

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
        self._core = core_of(problem, core)
        self._traffic = traffic_of(problem)
        self._ledger = open_ledger(problem, broker_of, self._core)
        self._access = _access_cost(problem, self._ledger)

    @property
    def broker_of(self) -> NDArray[np.int32]:
        """The current broker of each user."""
        return self._ledger.broker_of.copy()

    @property
    def cost(self) -> MarketCost:
        """The current cost."""
        return MarketCost(self._access, float(np.sum(self._ledger.cost)))

    def change(self, user: int, to: int) -> float:
        """The change of the cost if the user moved to broker `to`."""
        self._check(user, to)
        return float(change_of_move(self._core, self._traffic, self._ledger, user, to))

    def move(self, user: int, to: int) -> None:
        """Move the user to broker `to`."""
        self._check(user, to)
        traffic = self._traffic
        home = self._ledger.broker_of[user]
        paid = traffic.access[user, to] - traffic.access[user, home]
        self._access += float(traffic.demand[user] * paid)
        move_user(self._core, traffic, self._ledger, user, to)

    def _check(self, user: int, to: int) -> None:
        users, brokers = self._traffic.access.shape
        if not (0 <= user < users and 0 <= to < brokers):
            raise InputError(
                f"user {user} to broker {to}; users are 0 to {users - 1}, brokers 0 to {brokers - 1}"
            )


def assignment_cost(problem: MarketProblem, broker_of: ArrayLike, core: str) -> float:
    """The total cost of an assignment by the ledger."""
    ledger = open_ledger(problem, broker_of, core_of(problem, core))
    return _access_cost(problem, ledger) + float(np.sum(ledger.cost))


def _access_cost(problem: MarketProblem, ledger: CostLedger) -> float:
    """The cost of all users' links."""
    paid = problem.access[np.arange(problem.user_count), ledger.broker_of]
    return float(np.sum(problem.demand * paid))


def core_of(problem: MarketProblem, name: str) -> Core:
    """The core of that name over the market's prices, as kernels take it."""
    check_core(name)
    all_brokers = np.ones(problem.broker_count, np.bool_)
    return Core(CORES.index(name), problem.core, *spanning_tree(problem.core, all_brokers))


def traffic_of(problem: MarketProblem) -> UserTraffic:
    """The market's users as kernels take them."""
    return UserTraffic(problem.rates, *problem.wanted, problem.demand, problem.access, problem.limit)


def open_ledger(problem: MarketProblem, broker_of: ArrayLike, core: Core) -> CostLedger:
    """The ledger of an assignment, by a full count."""
    chosen = np.array(broker_of, np.int32)
    if chosen.shape != (problem.user_count,):
        raise InputError(
            f"{problem.user_count:,} users but an assignment of shape {chosen.shape}; "
            "give one broker per user"
        )
    if problem.user_count and not (chosen.min() >= 0 and chosen.max() < problem.broker_count):
        raise InputError(
            f"the assignment has brokers {chosen.min()} to {chosen.max()}; "
            f"give brokers from 0 to {problem.broker_count - 1}"
        )
    shape = (problem.broker_count, problem.channel_count)
    ledger = CostLedger(
        broker_of=chosen,
        load=np.zeros(shape[0]),
        sent=np.zeros(shape),
        readers=np.zeros(shape, np.int64),
        message_price=np.zeros(shape),
        cost=np.zeros(shape[1]),
    )
    count_traffic(traffic_of(problem), ledger)
    for channel in range(shape[1]):
        price_channel(core, ledger, channel)
    return ledger


@kernel
def count_traffic(traffic: UserTraffic, ledger: CostLedger) -> None:
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
def price_channel(core: Core, ledger: CostLedger, channel: int) -> None:
    """Recompute a channel's message prices and its cost from its members."""
    out = np.empty(len(ledger.load))
    source_prices(core, ledger.readers[:, channel] > 0, out)
    ledger.message_price[:, channel] = out
    ledger.cost[channel] = sum_in_order(ledger.sent[:, channel] * out)


@kernel
def dot(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """The inner product in four interleaved sums: fast, and in the same order in each run."""
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
def change_of_move(core: Core, traffic: UserTraffic, ledger: CostLedger, user: int, to: int) -> float:
    """The exact change of the cost when one user moves.

    It takes O(channels), and one tree for each channel that the old broker leaves or the new one joins.
    """
    home = ledger.broker_of[user]
    rates = traffic.rates[user]
    if to == home:
        return 0.0
    change = traffic.demand[user] * (traffic.access[user, to] - traffic.access[user, home])
    change += dot(rates, ledger.message_price[to]) - dot(rates, ledger.message_price[home])
    for at in range(traffic.start[user], traffic.start[user + 1]):
        t = traffic.channels[at]
        if ledger.readers[home, t] == 1 or ledger.readers[to, t] == 0:
            change -= rates[t] * (ledger.message_price[to, t] - ledger.message_price[home, t])
            change += _cost_after_move(core, ledger, home, to, t, rates[t]) - ledger.cost[t]
    return change


@kernel
def _cost_after_move(core: Core, ledger: CostLedger, home: int, to: int, channel: int, rate: float) -> float:
    """The cost of a channel after a user that wants it and sends `rate` into it has moved."""
    member = ledger.readers[:, channel] > 0
    member[home] = ledger.readers[home, channel] > 1
    member[to] = True
    out = np.empty(len(member))
    source_prices(core, member, out)
    return sum_in_order(ledger.sent[:, channel] * out) + rate * (out[to] - out[home])


@kernel
def move_user(core: Core, traffic: UserTraffic, ledger: CostLedger, user: int, to: int) -> None:
    """Move a user and update the ledger."""
    home = ledger.broker_of[user]
    rates = traffic.rates[user]
    ledger.cost[:] += rates * (ledger.message_price[to] - ledger.message_price[home])
    reassign(traffic, ledger, user, to)
    for at in range(traffic.start[user], traffic.start[user + 1]):
        t = traffic.channels[at]
        if ledger.readers[home, t] == 0 or ledger.readers[to, t] == 1:
            price_channel(core, ledger, t)


@kernel
def reassign(traffic: UserTraffic, ledger: CostLedger, user: int, to: int) -> None:
    """Move a user in the ledger's loads, rates and counts; prices and costs stay as they are."""
    home = ledger.broker_of[user]
    ledger.broker_of[user] = to
    ledger.load[home] -= traffic.demand[user]
    ledger.load[to] += traffic.demand[user]
    ledger.sent[home] -= traffic.rates[user]
    ledger.sent[to] += traffic.rates[user]
    for at in range(traffic.start[user], traffic.start[user + 1]):
        ledger.readers[home, traffic.channels[at]] -= 1
        ledger.readers[to, traffic.channels[at]] += 1


@kernel
def spanning_tree(
    prices: NDArray[np.float64], member: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """The minimum spanning tree of the members, by Prim from the first one: order, parent, edge per step."""
    k = int(np.sum(member))
    order, parent, edge = np.empty(k, np.int64), np.zeros(k, np.int64), np.zeros(k)
    at = 0
    for b in range(len(member)):
        if member[b]:
            order[at] = b
            at += 1
    near, best = np.zeros(k, np.int64), np.full(k, np.inf)
    for step in range(1, k):
        last, next_one = order[step - 1], step
        for q in range(step, k):
            if prices[last, order[q]] < best[q]:
                best[q], near[q] = prices[last, order[q]], step - 1
            if best[q] < best[next_one]:
                next_one = q
        order[step], order[next_one] = order[next_one], order[step]
        near[step], near[next_one] = near[next_one], near[step]
        best[step], best[next_one] = best[next_one], best[step]
        parent[step], edge[step] = near[step], best[step]
    return order, parent, edge


@kernel
def source_prices(core: Core, member: NDArray[np.bool_], out: NDArray[np.float64]) -> None:
    """For each broker: the price of its tree over itself and all members, O(brokers x members)."""
    if core.kind == MST:
        _prices_of_spanning_trees(core.prices, member, out)
    elif core.kind == PAIR:
        _prices_of_pairs(core.prices, member, out)
    else:
        _prices_in_one_tree(core, member, out)


@kernel
def _prices_of_spanning_trees(
    prices: NDArray[np.float64], member: NDArray[np.bool_], out: NDArray[np.float64]
) -> None:
    """Members share one minimum spanning tree; for another source it changes along one path at a time."""
    order, parent, edge = spanning_tree(prices, member)
    k = len(order)
    total = sum_in_order(edge)
    link = np.empty(k)
    for b in range(len(member)):
        if member[b] or k == 0:
            out[b] = total
            continue
        for q in range(k):
            link[q] = prices[b, order[q]]
        out[b] = 0.0
        # A branch at q has two links: one to b, one to its parent. The cheaper one stays; the other one is
        # the branch's offer to link the parent to b.
        for q in range(k - 1, 0, -1):
            out[b] += min(link[q], edge[q])
            link[parent[q]] = min(link[parent[q]], max(link[q], edge[q]))
        out[b] += link[0]


@kernel
def _prices_of_pairs(
    prices: NDArray[np.float64], member: NDArray[np.bool_], out: NDArray[np.float64]
) -> None:
    """Core prices are shortest paths already, so each destination costs its price."""
    out[:] = 0.0
    for x in range(len(member)):
        if member[x]:
            for b in range(len(member)):
                out[b] += prices[x, b]


@kernel
def _prices_in_one_tree(core: Core, member: NDArray[np.bool_], out: NDArray[np.float64]) -> None:
    """A source pays each link of the tree that has a member on its other side."""
    n = len(member)
    below = np.zeros(n, np.int64)
    for q in range(n - 1, -1, -1):
        below[q] += member[core.order[q]]
        if q > 0:
            below[core.parent[q]] += below[q]
    if n:
        out[core.order[0]] = 0.0
    for q in range(1, n):
        if below[q] > 0:
            out[core.order[0]] += core.edge[q]
    for q in range(1, n):
        here = out[core.order[core.parent[q]]]
        here -= core.edge[q] if below[q] > 0 else 0.0
        out[core.order[q]] = here + (core.edge[q] if below[0] > below[q] else 0.0)

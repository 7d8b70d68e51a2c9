"""Measures of markets (paper 5, II-B and IV-A): cost, flows on core links, loads.

This module shares no code with the algorithms in `broadloom.assignment.market`: each message is routed again,
from the assignment alone.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from broadloom.checks import check_instance, integer_array
from broadloom.errors import InputError
from broadloom.kernels import kernel, sum_in_order
from broadloom.model import MarketProblem, check_core


class MarketCost(NamedTuple):
    """The cost of an assignment: on the links of users, and on the links between brokers."""

    access: float
    core: float

    @property
    def total(self) -> float:
        """Access and core together."""
        return self.access + self.core


def market_cost(problem: MarketProblem, broker_of: ArrayLike, core: str = "mst") -> MarketCost:
    """The cost of an assignment under a core.

    Each user pays for what it sends and receives on its link. For each source broker and channel a message
    crosses each link of one tree once; the tree spans the source and the brokers with a user that wants the
    channel.

    Args:
        problem: the market.
        broker_of: the broker of each user.
        core: "mst": the tree is a minimum spanning tree; "pair": its links lead from the source to each
            destination; "tree": all trees are parts of one minimum spanning tree of all brokers.

    Example:
        >>> market = MarketProblem([[3], [0]], [[0], [1]], [[1, 2], [2, 1]], [[0, 1], [1, 0]], capacity=9)
        >>> market_cost(market, [0, 1])
        MarketCost(access=6.0, core=3.0)
    """
    return _route(problem, broker_of, core).cost


def market_flows(problem: MarketProblem, broker_of: ArrayLike, core: str = "mst") -> NDArray[np.float64]:
    """The rate that crosses the link between each two brokers, both directions together, (brokers, brokers).

    Example:
        >>> market = MarketProblem([[3], [0]], [[0], [1]], [[1, 2], [2, 1]], [[0, 1], [1, 0]], capacity=9)
        >>> market_flows(market, [0, 1]).tolist()
        [[0.0, 3.0], [3.0, 0.0]]
    """
    return _route(problem, broker_of, core).flows


def market_metrics(problem: MarketProblem, broker_of: ArrayLike, core: str = "mst") -> dict[str, Any]:
    """Every measure of an assignment of a market.

    Costs are under the core named. `memberships` counts the pairs of a broker and a channel that one of its
    users wants. `overload` is the load above capacity of the most overloaded broker.

    Example:
        >>> market = MarketProblem([[3], [0]], [[0], [1]], [[1, 2], [2, 1]], [[0, 1], [1, 0]], capacity=9)
        >>> market_metrics(market, [0, 0])["core_cost"]
        0.0
    """
    routed = _route(problem, broker_of, core)
    over = routed.load - problem.capacity
    return {
        "users": problem.user_count,
        "brokers": problem.broker_count,
        "channels": problem.channel_count,
        "core": core,
        "cost": routed.cost.total,
        "access_cost": routed.cost.access,
        "core_cost": routed.cost.core,
        "brokers_used": routed.brokers_used,
        "memberships": routed.memberships,
        "links_used": int(np.sum(np.triu(routed.flows) > 0)),
        "busiest_link": float(routed.flows.max(initial=0.0)),
        "mean_load": float(routed.load.mean()) if problem.broker_count else 0.0,
        "max_load": float(routed.load.max(initial=0.0)),
        "overload": float(over.max(initial=0.0)),
        "feasible": bool(np.all(routed.load <= problem.limit)),
    }


class _RoutedMarket(NamedTuple):
    """Costs, flows, loads and counts after every message of an assignment was routed."""

    cost: MarketCost
    flows: NDArray[np.float64]
    load: NDArray[np.float64]
    brokers_used: int
    memberships: int


def _route(problem: MarketProblem, broker_of: ArrayLike, core: str) -> _RoutedMarket:
    """Route every message of an assignment, channel by channel."""
    check_core(core)
    check_instance(problem, MarketProblem, "the market", "make one with MarketProblem")
    chosen = _checked(problem, broker_of)
    brokers, channels = problem.broker_count, problem.channel_count
    load = np.zeros(brokers)
    np.add.at(load, chosen, problem.demand)
    sent = _sent_by_brokers(chosen, problem.rates, brokers)
    start, wanted = problem.wanted
    member = np.zeros((brokers, channels), np.bool_)
    member[np.repeat(chosen, np.diff(start)), wanted] = True

    flows = np.zeros((brokers, brokers))
    cost = np.zeros(channels)
    tree = _spanning_tree(problem.core, np.arange(brokers))
    for channel in range(channels):
        members = np.flatnonzero(member[:, channel])
        rates = sent[:, channel].copy()
        if core == "mst":
            cost[channel] = _route_over_spanning_trees(problem.core, members, rates, flows)
        elif core == "pair":
            cost[channel] = _route_to_each(problem.core, members, rates, flows)
        else:
            cost[channel] = _route_in_tree(tree, member[:, channel].copy(), rates, flows)

    paid = problem.access[np.arange(problem.user_count), chosen]
    access = float(np.sum(problem.demand * paid))
    return _RoutedMarket(
        cost=MarketCost(access, float(np.sum(cost))),
        flows=flows,
        load=load,
        brokers_used=len(np.unique(chosen)),
        memberships=int(np.sum(member)),
    )


def _checked(problem: MarketProblem, broker_of: ArrayLike) -> NDArray[np.int32]:
    """The assignment as an array, with one broker of the market per user."""
    chosen = integer_array(broker_of, "brokers of users")
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
    return chosen.astype(np.int32)


@kernel
def _sent_by_brokers(
    broker_of: NDArray[np.int32], rates: NDArray[np.float64], brokers: int
) -> NDArray[np.float64]:
    """The rate that each broker's users send into each channel, (brokers, channels)."""
    sent = np.zeros((brokers, rates.shape[1]))
    for user in range(len(broker_of)):
        sent[broker_of[user]] += rates[user]
    return sent


class _SpanningTree(NamedTuple):
    """A minimum spanning tree from its root: each step's node, its parent's step, the price of their link."""

    node: NDArray[np.int64]
    parent: NDArray[np.int64]
    price: NDArray[np.float64]


@kernel
def _spanning_tree(prices: NDArray[np.float64], nodes: NDArray[np.int64]) -> _SpanningTree:
    """The minimum spanning tree of some nodes from the first of them (Prim)."""
    node, parent, price = nodes.copy(), np.zeros(len(nodes), np.int64), np.zeros(len(nodes))
    price[1:] = np.inf
    for step in range(1, len(node)):
        nearest = step
        for q in range(step, len(node)):
            if prices[node[step - 1], node[q]] < price[q]:
                price[q] = prices[node[step - 1], node[q]]
                parent[q] = step - 1
            if price[q] < price[nearest]:
                nearest = q
        node[step], node[nearest] = node[nearest], node[step]
        parent[step], parent[nearest] = parent[nearest], parent[step]
        price[step], price[nearest] = price[nearest], price[step]
    return _SpanningTree(node, parent, price)


@kernel
def _route_over_spanning_trees(
    prices: NDArray[np.float64],
    members: NDArray[np.int64],
    rates: NDArray[np.float64],
    flows: NDArray[np.float64],
) -> float:
    """Route one channel, from each source over the minimum spanning tree of the source and the members.

    All members share one tree. Another source's tree has only links of that tree and links of the source.
    It is found by removing leaves: a leaf keeps the cheaper of its links, to its parent and to the source;
    through the dearer one it connects its parent to the source, if that is the parent's cheapest connection.

    Returns:
        The cost of the channel; the rate that crosses each link is added to `flows`.
    """
    k = len(members)
    if k == 0:
        return 0.0
    tree = _spanning_tree(prices, members)
    is_member = np.zeros(len(rates), np.bool_)
    is_member[members] = True
    _add_flow(flows, tree.node[1:], tree.node[tree.parent[1:]], sum_in_order(rates[is_member]))
    shared = sum_in_order(tree.price)
    # The cheapest connection of each step's branch to the source, and the two ends of that link.
    offer, one, other = np.empty(k), np.empty(k, np.int64), np.empty(k, np.int64)
    cost = 0.0
    for source in range(len(rates)):
        if rates[source] == 0:
            continue
        if is_member[source]:
            cost += rates[source] * shared
            continue
        for q in range(k):
            offer[q] = prices[source, tree.node[q]]
            one[q] = source
            other[q] = tree.node[q]
        total = 0.0
        for q in range(k - 1, 0, -1):
            up = tree.parent[q]
            dearer, u, v = tree.price[q], tree.node[q], tree.node[up]
            if not offer[q] < dearer:
                dearer, offer[q] = offer[q], dearer
                u, one[q] = one[q], u
                v, other[q] = other[q], v
            total += offer[q]
            if dearer < offer[up]:
                offer[up], one[up], other[up] = dearer, u, v
        total += offer[0]
        _add_flow(flows, one, other, rates[source])
        cost += rates[source] * total
    return cost


@kernel
def _route_to_each(
    prices: NDArray[np.float64],
    members: NDArray[np.int64],
    rates: NDArray[np.float64],
    flows: NDArray[np.float64],
) -> float:
    """Route one channel, from each source to each member directly; the cost of the channel."""
    cost = 0.0
    for source in range(len(rates)):
        total = 0.0
        for x in members:
            total += prices[x, source]
            if x != source:
                flows[source, x] += rates[source]
                flows[x, source] += rates[source]
        cost += rates[source] * total
    return cost


@kernel
def _route_in_tree(
    tree: _SpanningTree, member: NDArray[np.bool_], rates: NDArray[np.float64], flows: NDArray[np.float64]
) -> float:
    """Route one channel over the links of one tree that lie between its sources and members; its cost."""
    n = len(member)
    below, rate_below = np.zeros(n, np.int64), np.zeros(n)
    for q in range(n - 1, -1, -1):
        below[q] += member[tree.node[q]]
        rate_below[q] += rates[tree.node[q]]
        if q > 0:
            below[tree.parent[q]] += below[q]
            rate_below[tree.parent[q]] += rate_below[q]
    # A message from the root crosses each link with a member below. From another node it does not cross the
    # last link downwards to that node, but upwards if there is a member elsewhere.
    total = np.zeros(n)
    for q in range(1, n):
        down = below[q] > 0
        up = below[q] < below[0]
        total[0] += tree.price[q] if down else 0.0
        crossing = rate_below[q] if up else 0.0
        crossing += rate_below[0] - rate_below[q] if down else 0.0
        u, v = tree.node[q], tree.node[tree.parent[q]]
        flows[u, v] += crossing
        flows[v, u] += crossing
    price = np.zeros(n)
    for q in range(n):
        if q > 0:
            total[q] = total[tree.parent[q]]
            total[q] -= tree.price[q] if below[q] > 0 else 0.0
            total[q] += tree.price[q] if below[q] < below[0] else 0.0
        price[tree.node[q]] = total[q]
    cost = 0.0
    for source in range(n):
        cost += rates[source] * price[source]
    return cost


@kernel
def _add_flow(
    flows: NDArray[np.float64], one: NDArray[np.int64], other: NDArray[np.int64], rate: float
) -> None:
    """Add a rate to the flows of some links, in both directions."""
    for u, v in zip(one, other):  # noqa: B905 (numba has no strict)
        flows[u, v] += rate
        flows[v, u] += rate

"""What bringing one message from each broker to all that want it costs, under each core (paper 5, III-A)."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from broadloom.kernels import kernel
from broadloom.model import CORES

MST, PAIR, TREE = range(len(CORES))


class Core(NamedTuple):
    """The core as kernels take it; the tree is the least spanning tree of all brokers, from its root on.

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


def core_of(prices: NDArray[np.float64], core: str) -> Core:
    """The core of that name over these prices."""
    return Core(CORES.index(core), prices, *spanning_tree(prices, np.ones(len(prices), np.bool_)))


@kernel
def spanning_tree(
    prices: NDArray[np.float64], member: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """The least spanning tree of the members by Prim from the first one: order, parent, edge of each step."""
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
        _tree_each(core.prices, member, out)
    elif core.kind == PAIR:
        _path_each(core.prices, member, out)
    else:
        _one_tree(core, member, out)


@kernel
def _tree_each(prices: NDArray[np.float64], member: NDArray[np.bool_], out: NDArray[np.float64]) -> None:
    """Members share one least spanning tree; another source's differs from it along one path at a time."""
    order, parent, edge = spanning_tree(prices, member)
    k = len(order)
    total = np.sum(edge)
    link = np.empty(k)
    for b in range(len(member)):
        if member[b] or k == 0:
            out[b] = total
            continue
        for q in range(k):
            link[q] = prices[b, order[q]]
        out[b] = 0.0
        # Of the two ways from q's branch, to b and to its parent, the cheaper one stays; the other one is
        # the branch's offer to link the parent to b.
        for q in range(k - 1, 0, -1):
            out[b] += min(link[q], edge[q])
            link[parent[q]] = min(link[parent[q]], max(link[q], edge[q]))
        out[b] += link[0]


@kernel
def _path_each(prices: NDArray[np.float64], member: NDArray[np.bool_], out: NDArray[np.float64]) -> None:
    """Core prices are shortest paths already, so each destination costs its price."""
    out[:] = 0.0
    for x in range(len(member)):
        if member[x]:
            for b in range(len(member)):
                out[b] += prices[x, b]


@kernel
def _one_tree(core: Core, member: NDArray[np.bool_], out: NDArray[np.float64]) -> None:
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


@kernel
def add_flows(
    core: Core, member: NDArray[np.bool_], sent: NDArray[np.float64], flows: NDArray[np.float64]
) -> None:
    """Add what crosses each link, both directions together, when broker b sends `sent[b]` to all members."""
    if core.kind == PAIR:
        for b in range(len(member)):
            for x in range(len(member)):
                if member[x] and x != b:
                    flows[b, x] += sent[b]
                    flows[x, b] += sent[b]
    elif core.kind == MST:
        _flows_of_trees(core.prices, member, sent, flows)
    else:
        _flows_of_one_tree(core, member, sent, flows)


@kernel
def _flows_of_trees(
    prices: NDArray[np.float64],
    member: NDArray[np.bool_],
    sent: NDArray[np.float64],
    flows: NDArray[np.float64],
) -> None:
    """As `_tree_each`, with the links themselves: an offer is named by its two ends."""
    order, parent, edge = spanning_tree(prices, member)
    k = len(order)
    inside = np.sum(sent[member])
    for q in range(1, k):
        _add(flows, order[q], order[parent[q]], inside)
    link, near, far = np.empty(k), np.empty(k, np.int64), np.empty(k, np.int64)
    for b in range(len(member)):
        if member[b] or k == 0 or sent[b] == 0:
            continue
        for q in range(k):
            link[q], near[q], far[q] = prices[b, order[q]], b, order[q]
        for q in range(k - 1, 0, -1):
            price, one, other = edge[q], order[q], order[parent[q]]
            if link[q] < edge[q]:
                _add(flows, near[q], far[q], sent[b])
            else:
                _add(flows, one, other, sent[b])
                price, one, other = link[q], near[q], far[q]
            if price < link[parent[q]]:
                link[parent[q]], near[parent[q]], far[parent[q]] = price, one, other
        _add(flows, near[0], far[0], sent[b])


@kernel
def _flows_of_one_tree(
    core: Core, member: NDArray[np.bool_], sent: NDArray[np.float64], flows: NDArray[np.float64]
) -> None:
    """What is sent on each side of a link crosses it if there is a member on the other side."""
    n = len(member)
    below, rate = np.zeros(n, np.int64), np.zeros(n)
    for q in range(n - 1, -1, -1):
        below[q] += member[core.order[q]]
        rate[q] += sent[core.order[q]]
        if q > 0:
            below[core.parent[q]] += below[q]
            rate[core.parent[q]] += rate[q]
    for q in range(1, n):
        crossing = rate[q] if below[0] > below[q] else 0.0
        crossing += rate[0] - rate[q] if below[q] > 0 else 0.0
        _add(flows, core.order[q], core.order[core.parent[q]], crossing)


@kernel
def _add(flows: NDArray[np.float64], u: int, v: int, rate: float) -> None:
    flows[u, v] += rate
    flows[v, u] += rate

"""What being in a channel costs a broker: the prices by which a softened search decides, under any core.

All messages of a channel pay a broker's place in its tree, so the price is the channel's rate times what the
tree costs more with the broker than without, at least 0. The few sources outside of the tree are left out:
the search only needs to know where to look, and its result is descended from exactly.
"""

import numpy as np
from numpy.typing import NDArray

from broadloom.kernels import kernel
from broadloom.measures.core_trees import MST, Core, source_prices, spanning_tree
from broadloom.measures.market import Ledger


@kernel
def rough_tolls(core: Core, ledger: Ledger) -> NDArray[np.float64]:
    """The price of each channel at each broker, (brokers, channels); the ledger's prices are current."""
    brokers, channels = ledger.sent.shape
    tolls = np.zeros((brokers, channels))
    for t in range(channels):
        member = ledger.readers[:, t] > 0
        inside = np.flatnonzero(member)
        if len(inside) == 0:
            continue
        rate, tree = np.sum(ledger.sent[:, t]), ledger.price[inside[0], t]
        saved = _saved_each(core, member, inside, tree)
        for q in range(len(inside)):
            tolls[inside[q], t] = max(0.0, rate * saved[q])
        for b in range(brokers):
            if not member[b]:
                tolls[b, t] = max(0.0, rate * (ledger.price[b, t] - tree))
    return tolls


@kernel
def _saved_each(
    core: Core, member: NDArray[np.bool_], inside: NDArray[np.int64], tree: float
) -> NDArray[np.float64]:
    """How much cheaper the tree of the members is without each of them."""
    saved, out = np.zeros(len(inside)), np.empty(len(member))
    if core.kind == MST:
        _saved_in_tree(core.prices, member, out)
        return out[inside]
    for q in range(len(inside) if len(inside) > 1 else 0):
        member[inside[q]] = False
        source_prices(core, member, out)
        saved[q] = tree - out[inside[0] if q > 0 else inside[-1]]
        member[inside[q]] = True
    return saved


@kernel
def _saved_in_tree(
    prices: NDArray[np.float64], member: NDArray[np.bool_], saved: NDArray[np.float64]
) -> None:
    """How much cheaper the least spanning tree is without each member: its links, less what joins their ends.

    Exact for members with one or two links. The ends of three or more are joined among themselves, which may
    cost a little more than the best way.
    """
    order, parent, edge = spanning_tree(prices, member)
    count = len(order)
    degree, links = np.zeros(count, np.int64), np.zeros(count)
    for q in range(1, count):
        for end in (q, parent[q]):
            degree[end] += 1
            links[end] += edge[q]
    near, below = np.zeros(len(member), np.bool_), np.zeros(count, np.bool_)
    for q in range(count):
        saved[order[q]] = links[q]
        if degree[q] == 2 and q > 0:
            child = q + 1
            while parent[child] != q:
                child += 1
            saved[order[q]] -= _cheapest_across(prices, order, parent, q, child, below)
        elif degree[q] >= 2:
            near[:] = False
            for p in range(1, count):
                if parent[p] == q:
                    near[order[p]] = True
            if q > 0:
                near[order[parent[q]]] = True
            saved[order[q]] -= np.sum(spanning_tree(prices, near)[2])


@kernel
def _cheapest_across(
    prices: NDArray[np.float64],
    order: NDArray[np.int64],
    parent: NDArray[np.int64],
    gone: int,
    child: int,
    below: NDArray[np.bool_],
) -> float:
    """The cheapest link between the child's branch and the rest, without the member between them."""
    below[:] = False
    below[child] = True
    for q in range(child + 1, len(order)):
        below[q] = below[parent[q]]
    best = np.inf
    for q in range(child, len(order)):
        if below[q]:
            for p in range(len(order)):
                if not below[p] and p != gone:
                    best = min(best, prices[order[q], order[p]])
    return best

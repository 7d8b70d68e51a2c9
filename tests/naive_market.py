"""Naive versions of paper 5's cost and algorithms, from its text and pseudo-code.

Zhao, Wu, "On the Construction of the Minimum Cost Content-Based Publish/Subscribe Overlays". Everything is
counted again in each step, in plain Python. `rates[i][c]`, `wants[i][c]`, `access[i][b]`,
`core[b][x]` and `capacity[b]` are as in `MarketProblem`, without the messages that no other user wants.
"""

import math
from itertools import product


class Market:
    """A market in plain lists, from a `MarketProblem`."""

    def __init__(self, problem) -> None:
        self.rates, self.wants = problem.rates.tolist(), problem.wants.tolist()
        self.access, self.core = problem.access.tolist(), problem.core.tolist()
        self.capacity = problem.capacity.tolist()
        self.users, self.brokers = range(len(self.rates)), range(len(self.core))
        self.channels = range(problem.channel_count)

    def demand(self, i: int) -> float:
        """b_i(out) + b_i(in)."""
        received = sum(
            self.rates[j][c] for j in self.users if j != i for c in self.channels if self.wants[i][c]
        )
        return sum(self.rates[i]) + received

    def load(self, broker_of, b: int) -> float:
        """The rate that a broker's users send and receive."""
        return sum(self.demand(i) for i in self.users if broker_of[i] == b)

    def fits(self, broker_of, i: int, b: int) -> bool:
        """Whether a user fits at a broker."""
        return self.load(broker_of, b) + self.demand(i) <= self.capacity[b] * (1 + 1e-9)

    def feasible(self, broker_of) -> bool:
        """Whether no broker is above its capacity."""
        return all(self.load(broker_of, b) <= self.capacity[b] * (1 + 1e-9) for b in self.brokers)


def spanning_tree(nodes, core) -> list[tuple[int, int]]:
    """The links of a minimum spanning tree, by Kruskal."""
    group = {v: {v} for v in nodes}
    links = []
    for _, u, v in sorted((core[u][v], u, v) for u in nodes for v in nodes if u < v):
        if group[u] is not group[v]:
            links.append((u, v))
            merged = group[u] | group[v]
            group.update(dict.fromkeys(merged, merged))
    return links


def tree_links(market: Market, source: int, members, core: str) -> list[tuple[int, int]]:
    """The links over which a message goes from the source to all members."""
    if core == "pair":
        return [(min(source, x), max(source, x)) for x in members if x != source]
    if core == "mst":
        return spanning_tree({source, *members}, market.core)
    links = spanning_tree(set(market.brokers), market.core)
    while True:
        ends = [v for link in links for v in link]
        useless = [v for v in set(ends) if ends.count(v) == 1 and v not in members and v != source]
        if not useless:
            return links if members else []
        links = [link for link in links if not set(link) & set(useless)]


def flows(market: Market, broker_of, core: str) -> dict[tuple[int, int], float]:
    """The rate on each link, with one tree per source broker and channel."""
    crossing: dict[tuple[int, int], float] = {}
    for b, c in product(market.brokers, market.channels):
        sent = sum(market.rates[i][c] for i in market.users if broker_of[i] == b)
        members = {broker_of[i] for i in market.users if market.wants[i][c]}
        for link in tree_links(market, b, members, core):
            crossing[link] = crossing.get(link, 0.0) + sent
    return crossing


def cost(market: Market, broker_of, core: str) -> float:
    """C_1 + C_2."""
    access = sum(market.demand(i) * market.access[i][broker_of[i]] for i in market.users)
    return access + sum(market.core[u][v] * rate for (u, v), rate in flows(market, broker_of, core).items())


def optimum(market: Market, core: str) -> float:
    """The least cost of all assignments within the capacities."""
    every = product(market.brokers, repeat=len(market.users))
    return min((cost(market, a, core) for a in every if market.feasible(a)), default=math.inf)


def greedy_packing(market: Market) -> list[int]:
    """Algorithm 1, users in order of demand, largest first."""
    broker_of = [-1 for _ in market.users]
    for i in sorted(market.users, key=lambda i: (-market.demand(i), i)):
        open_brokers = [b for b in market.brokers if market.fits(broker_of, i, b)]
        broker_of[i] = min(open_brokers, key=lambda b: (market.access[i][b], b))
    return broker_of


def ratio(bandwidth: float, price: float) -> float:
    """The bandwidth-to-cost ratio."""
    return 0.0 if bandwidth == 0 else math.inf if price == 0 else bandwidth / price


def between(market: Market, i: int, j: int) -> float:
    """b_ij: the traffic between two users, both directions together."""
    return sum(
        market.rates[i][c] * market.wants[j][c] + market.rates[j][c] * market.wants[i][c]
        for c in market.channels
    )


def clustering(market: Market) -> list[int]:
    """Algorithm 2, with the highest ratio."""
    broker_of = [-1 for _ in market.users]
    for b in market.brokers:
        free = [i for i in market.users if broker_of[i] < 0]
        fit = market.capacity[b] * (1 + 1e-9)
        pairs = [(i, j) for i in free for j in free if i < j and market.demand(i) + market.demand(j) <= fit]
        if pairs:
            price = {(i, j): market.access[i][b] + market.access[j][b] for i, j in pairs}
            i, j = min(pairs, key=lambda p: (-ratio(between(market, *p), price[p]), p))
            broker_of[i] = broker_of[j] = b
    for i in [i for i in market.users if broker_of[i] < 0]:
        open_brokers = [b for b in market.brokers if market.fits(broker_of, i, b)]
        traffic = {
            b: sum(between(market, i, j) for j in market.users if broker_of[j] == b) for b in open_brokers
        }
        broker_of[i] = min(open_brokers, key=lambda b: (-ratio(traffic[b], market.access[i][b]), b))
    return broker_of


def cheapest_path(market: Market, b: int, v: int) -> tuple[float, int]:
    """The price of the cheapest path from broker b to user v, and its last broker."""
    return min((market.core[b][x] + market.access[v][x], x) for x in market.brokers)


def mixing_weights(market: Market) -> list[list[float]]:
    """Phase 1 of Steiner mixing: the traffic of all trees on the link of each user to each broker."""
    weights = [[0.0 for _ in market.brokers] for _ in market.users]
    for c in market.channels:
        readers = [v for v in market.users if market.wants[v][c]]
        for s in market.users:
            if market.rates[s][c] == 0:
                continue
            entry = min(
                (market.access[s][b] + min(cheapest_path(market, b, v)[0] for v in readers if v != s), b)
                for b in market.brokers
            )[1]
            weights[s][entry] += market.rates[s][c]
            for v, b in grow_tree(market, entry, readers).items():
                if v != s:
                    weights[v][b] += market.rates[s][c]
    return weights


def channel_tree_weights(market: Market) -> list[list[float]]:
    """Phase 1 with one tree per channel, from the publisher with the highest rate."""
    weights = [[0.0 for _ in market.brokers] for _ in market.users]
    for c in market.channels:
        readers = [v for v in market.users if market.wants[v][c]]
        senders = [s for s in market.users if market.rates[s][c] > 0]
        if not senders:
            continue
        first = max(senders, key=lambda s: (market.rates[s][c], -s))
        entry = min(
            (market.access[first][b] + min(cheapest_path(market, b, v)[0] for v in readers if v != first), b)
            for b in market.brokers
        )[1]
        others = [v for v in market.users if v != first and (v in readers or v in senders)]
        total = sum(market.rates[s][c] for s in senders)
        for v, b in {**grow_tree(market, entry, others), first: entry}.items():
            own = market.rates[v][c]
            weights[v][b] += own + (total - own if market.wants[v][c] else 0.0)
    return weights


def grow_tree(market: Market, entry: int, readers) -> dict[int, int]:
    """Algorithm 3 from one broker: the broker of each reader."""
    tree, at = [entry], {}
    while len(at) < len(readers):
        nearest = {
            v: min((cheapest_path(market, b, v)[0], tree.index(b)) for b in tree)
            for v in readers
            if v not in at
        }
        v = min(nearest, key=lambda v: (nearest[v][0], v))
        at[v] = cheapest_path(market, tree[nearest[v][1]], v)[1]
        if at[v] not in tree:
            tree.append(at[v])
    return at


def migration(market: Market, broker_of, core: str) -> list[int]:
    """Rounds of users, most traffic first, each to its best broker; until no user moves in a round."""
    now = list(broker_of)
    moved = True
    while moved:
        moved = False
        for i in sorted(market.users, key=lambda i: (-market.demand(i), i)):
            others = [b for b in market.brokers if b != now[i] and market.fits(now, i, b)]
            costs = {b: cost(market, [*now[:i], b, *now[i + 1 :]], core) for b in others}
            best = min(costs, key=lambda b: (costs[b], b), default=now[i])
            if costs.get(best, math.inf) < cost(market, now, core) * (1 - 1e-9):
                now[i], moved = best, True
    return now

"""Slow twin of maintenance, from the pseudo-code of paper 3 and our rules where the paper leaves a choice.

Paper 3: Chen, Jacobsen, Vitenberg, "Reinforce Your Overlay with Shadows". Everything is recomputed from
scratch at each step, in plain Python; names are the paper's. Where links have weights, `weight(u, v)`
returns them.
"""

from collections.abc import Callable, Iterable
from fractions import Fraction
from itertools import combinations

Edge = tuple[int, int]
Weight = Callable[[int, int], float]

MASK = 2**64 - 1


class Twin:
    """An overlay under churn: `topics[v]` and `backups[v]` of each present node, and `edges`."""

    def __init__(
        self,
        topics: Iterable[Iterable[int]],
        edges: Iterable[Edge],
        random_state: int,
        method: str = "shadow",
        rho: float = 3,
        coverage: int = 3,
        backups: str = "primal-dual",
        weight: Weight | None = None,
    ) -> None:
        self.topics = {v: set(own) for v, own in enumerate(topics)}
        self.edges = set(edges)
        self.next = len(self.topics)
        self.random_state, self.rho, self.coverage, self.weight = random_state, rho, coverage, weight
        self.naive, self.greedy = method == "naive", backups in ("greedy", "greedy-unweighted")
        self.printed = backups == "primal-dual-printed"
        self.equal = backups == "greedy-unweighted"
        self.backups: dict[int, set[int]] = {v: set() for v in self.topics}
        for v in self.topics:
            self.build_backups_at(v)

    # The overlay.

    def neighbours(self, v: int) -> set[int]:
        """The nodes that are linked to v."""
        return {a + b - v for a, b in self.edges if v in (a, b)}

    def primaries(self, v: int) -> list[int]:
        """The nodes that v is a backup of, sorted."""
        return sorted(u for u in self.topics if v in self.backups[u])

    def max_degree(self) -> int:
        """D(V, E), the maximum degree."""
        return max((len(self.neighbours(v)) for v in self.topics), default=0)

    def components(self, topic: int) -> list[set[int]]:
        """The topic-connected components of a topic."""
        rest, found = {v for v, own in self.topics.items() if topic in own}, []
        while rest:
            part, todo = set(), [min(rest)]
            while todo:
                v = todo.pop()
                if v not in part:
                    part.add(v)
                    todo += self.neighbours(v) & rest
            found.append(part)
            rest -= part
        return found

    def contribution(self, u: int, v: int) -> int:
        """contrib(u, v): the number of shared topics in which u and v are not yet connected."""
        shared = self.topics[u] & self.topics[v]
        return sum(not any({u, v} <= part for part in self.components(t)) for t in shared)

    def is_topic_connected(self) -> bool:
        """Whether no topic has more than one component."""
        return all(len(self.components(t)) <= 1 for own in self.topics.values() for t in own)

    # Alg. 2 over candidate edges; degrees and components are those of the whole overlay.

    def construct_low_edges(self, candidates: Iterable[Edge]) -> list[Edge]:
        """ConstructLowEdges over E_pot: add edges and return them in the order in which they were added."""
        candidates, added = sorted(candidates), []
        while True:
            mu = {e: m for e in candidates if (m := self.contribution(*e)) > 0}
            if not mu:
                return added
            e = self.find_low_edge(mu)
            self.edges.add(e)
            added.append(e)

    def find_low_edge(self, mu: dict[Edge, int]) -> Edge:
        """findLowEdge(rho), or with weights the edge of least weight per contribution."""
        if self.weight is not None:
            return min(mu, key=lambda e: (self.weight(*e) / mu[e], e))
        most = self.max_degree()
        degree = {v: len(self.neighbours(v)) for v in self.topics}
        below_most = [e for e in mu if degree[e[0]] < most and degree[e[1]] < most] or list(mu)
        e1, e2 = (min(edges, key=lambda e: (-mu[e], e)) for edges in (below_most, mu))
        return e1 if mu[e1] * self.rho >= mu[e2] else e2

    # Alg. 11 and 12.

    def build_backups_at(self, v: int) -> None:
        """buildBackupsAt(v): choose the backups of v anew, `coverage` covers of its topics."""
        self.backups[v] = set()
        for _ in range(0 if self.naive else self.coverage):
            excluded = {v} | self.backups[v]
            weight = {
                u: 1 if self.equal else len(self.neighbours(u)) + len(self.primaries(u))
                for u in self.topics
                if u not in excluded
            }
            cover = self.greedy_cover if self.greedy else self.primal_dual_cover
            chosen = cover(sorted(self.topics[v]), weight)
            if not chosen:
                return
            self.backups[v] |= chosen

    def greedy_cover(self, rest: list[int], weight: dict[int, int]) -> set[int]:
        """Alg. 11, lines 5 to 12: the chosen nodes."""
        chosen: set[int] = set()
        while True:
            new_topics = {u: len(self.topics[u] & set(rest)) for u in weight}
            candidates = [u for u in weight if new_topics[u] > 0]
            if not candidates:
                return chosen
            w = min(candidates, key=lambda u: (Fraction(weight[u], new_topics[u]), u))
            chosen.add(w)
            rest = [t for t in rest if t not in self.topics[w]]

    def primal_dual_cover(self, rest: list[int], weight: dict[int, int]) -> set[int]:
        """Alg. 12, lines 6 to 14: the chosen nodes."""
        chosen: set[int] = set()
        while rest:
            t = rest[self.draw(len(rest))]
            candidates = [u for u in weight if t in self.topics[u] and (weight[u] > 0 or not self.printed)]
            if not candidates:
                rest = [other for other in rest if other != t]
                continue
            w = min(candidates, key=lambda u: (weight[u], u))
            price = weight[w]
            for u in candidates:
                weight[u] -= price
            chosen.add(w)
            rest = [other for other in rest if other not in self.topics[w]]
        return chosen

    def draw(self, count: int) -> int:
        """A random number below `count`, by SplitMix64."""
        self.random_state = (self.random_state + 0x9E3779B97F4A7C15) & MASK
        z = self.random_state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        z ^= z >> 31
        return (z >> 33) % count

    # Joins, leaves and changes of topics: each returns the edges added and the edges removed.

    def join(self, topics: Iterable[int]) -> tuple[list[Edge], list[Edge]]:
        """Alg. 3 (naive), or Alg. 9 and 10 (shadow)."""
        v, self.next = self.next, self.next + 1
        self.topics[v], self.backups[v] = set(topics), set()
        self.build_backups_at(v)
        return self.connect(v), []

    def connect(self, v: int) -> list[Edge]:
        """Add edges between v and its candidates, and return them."""
        others = set(self.topics) - {v} if self.naive else self.backups[v]
        return self.construct_low_edges((min(u, v), max(u, v)) for u in others)

    def leave(self, v: int) -> tuple[list[Edge], list[Edge]]:
        """Alg. 4 (naive), or Alg. 7 and 8 (shadow)."""
        removed = sorted(e for e in self.edges if v in e)
        shadow = self.shadow(v)
        primaries = self.primaries(v)
        self.edges -= set(removed)
        del self.topics[v]
        added = self.construct_low_edges(combinations(sorted(shadow), 2))
        del self.backups[v]
        for u in primaries:
            self.backups[u].discard(v)
        for u in primaries:
            self.build_backups_at(u)
        return added, removed

    def shadow(self, v: int) -> set[int]:
        """S, the nodes that a repair around v can link."""
        return set(self.topics) - {v} if self.naive else self.neighbours(v) | self.backups[v]

    def resubscribe(self, v: int, topics: Iterable[int]) -> tuple[list[Edge], list[Edge]]:
        """Our addition: leave the dropped topics, join the new ones, remove edges that no topic needs."""
        old, new = self.topics[v], set(topics)
        if old == new:
            return [], []
        shadow = self.shadow(v)
        suspects = sorted(u for u in self.neighbours(v) if self.topics[u] & (old - new))
        affected_primaries = [u for u in self.primaries(v) if self.topics[u] & (old - new)]
        self.topics[v] = old & new
        added = self.construct_low_edges(combinations(sorted(shadow), 2))
        self.topics[v] = new
        self.build_backups_at(v)
        added += self.connect(v)
        removed = []
        for u in suspects:
            e = (min(u, v), max(u, v))
            self.edges.discard(e)
            if self.is_topic_connected():
                removed.append(e)
            else:
                self.edges.add(e)
        for u in affected_primaries:
            self.build_backups_at(u)
        return added, removed

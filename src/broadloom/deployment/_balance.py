"""Loads of links, balanced: trees exchange a busy link for an idle one where that costs little."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from broadloom.deployment._spanning import Edges, Group, Pair, neighbours

ROUNDS = 20


def balance(groups: Sequence[Group], trees: Sequence[Edges], slack: float) -> list[Edges]:
    """The trees after exchanges that lower the sum of squares of all loads.

    What a tree carries crosses each of its links once, so the sum of loads stays: only its spread changes. No
    tree may cost more than (1 + slack) times what it did. Rounds over all trees, the busiest first, until
    none changes.
    """
    result, load = list(trees), defaultdict[Pair, float](float)
    for group, tree in zip(groups, trees, strict=True):
        for pair in group.links(tree):
            load[pair] += group.rate
    limits = [group.cost(tree) * (1 + slack) for group, tree in zip(groups, trees, strict=True)]
    sending = (i for i in range(len(groups)) if groups[i].rate > 0)
    busiest = sorted(sending, key=lambda i: (-groups[i].rate, min(groups[i].filters)))
    for _ in range(ROUNDS):
        before = list(result)
        for i in busiest:
            result[i] = _relieve(groups[i], result[i], limits[i], load)
        if result == before:
            break
    return result


def _relieve(group: Group, tree: Edges, limit: float, load: dict[Pair, float]) -> Edges:
    """The tree after each link outside of it has had its chance to take over from a busier one."""
    pairs = group.pairs()
    for edge in sorted(range(len(pairs)), key=lambda edge: (load[pairs[edge]], edge)):
        if edge in tree:
            continue
        for old in _busiest_first(_cycle(group, tree, edge), pairs, load):
            if load[pairs[edge]] + group.rate >= load[pairs[old]]:
                break
            swapped = tuple(sorted({*tree, edge} - {old}))
            if group.shared[edge] >= group.shared[old] and group.cost(swapped) <= limit:
                load[pairs[edge]] += group.rate
                load[pairs[old]] -= group.rate
                tree = swapped
                break
    return tree


def _busiest_first(edges: list[int], pairs: list[Pair], load: dict[Pair, float]) -> list[int]:
    return sorted(edges, key=lambda edge: (-load[pairs[edge]], edge))


def _cycle(group: Group, tree: Edges, edge: int) -> list[int]:
    """The links of the tree between the ends of a link that is not in it."""
    near = neighbours(group.ends[list(tree)], len(group.members))
    source, target = group.ends[edge].tolist()
    came: dict[int, tuple[int, int]] = {source: (source, -1)}
    todo = [source]
    for v in todo:
        for w, link in near[v]:
            if w not in came:
                came[w] = (v, link)
                todo.append(w)
    path = []
    while target != source:
        target, link = came[target]
        path.append(tree[link])
    return path

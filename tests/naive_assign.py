"""Slow and obvious twins of subscriber assignment (paper 4), without any code of the package."""

import itertools
import math

Box = tuple[tuple[float, ...], tuple[float, ...]]


def volume(box: Box) -> float:
    return math.prod(high - low for low, high in zip(*box, strict=True))


def inside(box: Box, outer: Box) -> bool:
    return all(a >= c and b <= d for a, b, c, d in zip(*box, *outer, strict=True))


def around(*boxes: Box) -> Box:
    return tuple(map(min, zip(*(lo for lo, _ in boxes), strict=True))), tuple(
        map(max, zip(*(hi for _, hi in boxes), strict=True))
    )


def union(boxes: list[Box]) -> float:
    """By inclusion and exclusion over all subsets."""
    total = 0.0
    for size in range(1, len(boxes) + 1):
        for some in itertools.combinations(boxes, size):
            lo = tuple(map(max, zip(*(lo for lo, _ in some), strict=True)))
            hi = tuple(map(min, zip(*(hi for _, hi in some), strict=True)))
            if all(a < b for a, b in zip(lo, hi, strict=True)):
                total += (-1) ** (size + 1) * volume((lo, hi))
    return total


def candidates(publisher, brokers, position, max_delay) -> list[int]:
    """One level: the brokers whose latency is within the delay of the least."""
    latency = [math.dist(publisher, b) + math.dist(b, position) for b in brokers]
    return [b for b, value in enumerate(latency) if value <= (1 + max_delay) * min(latency) * (1 + 1e-12)]


def changes(boxes: list[Box], box: Box, alpha: int) -> list[list[Box]]:
    """Each filter that takes in a rectangle by one of the rules, in the order of the rules."""
    if any(inside(box, one) for one in boxes):
        return [boxes]
    found = []
    if len(boxes) < alpha:
        found.append([*boxes, box])
    found.extend(
        [around(one, box) if k == i else one for k, one in enumerate(boxes)] for i in range(len(boxes))
    )
    if len(boxes) == alpha and alpha > 1:
        pairs = list(itertools.combinations(range(len(boxes)), 2))
        i, j = min(pairs, key=lambda pair: union([*boxes, around(boxes[pair[0]], boxes[pair[1]])]))
        merged = {i: around(boxes[i], boxes[j]), j: box}
        found.append([merged.get(k, one) for k, one in enumerate(boxes)])
    return found


def greedy(problem, adaptive: bool, beta: float):
    """Gr or Gr* on a one-level problem: the broker of each subscriber, filters, number of stranded ones."""
    n, m = problem.broker_count, problem.subscriber_count
    limit = [math.floor(beta * problem.capacity[b] * m + 1e-9) for b in range(n)]
    open_to = [
        candidates(problem.publisher, problem.broker_place, position, problem.max_delay)
        for position in problem.subscriber_place
    ]
    filters: list[list[Box]] = [[] for _ in range(n)]
    load, broker_of, stranded = [0] * n, [-1] * m, 0
    waiting = list(range(m))
    while waiting:
        free = {j: sum(load[b] < limit[b] for b in open_to[j]) for j in waiting}
        j = min(waiting, key=lambda j: (free[j], j)) if adaptive else waiting[0]
        waiting.remove(j)
        box = tuple(problem.lo[j]), tuple(problem.hi[j])
        choices = [b for b in open_to[j] if load[b] < limit[b]]
        if not choices:
            stranded, choices = stranded + 1, open_to[j]

        def cost(b, box=box):
            return min(union(changed) for changed in changes(filters[b], box, problem.alpha)) - union(
                filters[b]
            )

        b = min(choices, key=lambda b: (cost(b), load[b] / problem.capacity[b], b))
        filters[b] = min(changes(filters[b], box, problem.alpha), key=union)
        load[b] += 1
        broker_of[j] = b
    return broker_of, filters, stranded

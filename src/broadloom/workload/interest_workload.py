"""Generated interest and churn (papers 1 to 3), and the folder of tables that they are written to.

Topics are drawn by popularity, without replacement; the number of topics per node follows a law of sizes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from broadloom.checks import (
    MAX_INDEX,
    check_choice,
    check_count,
    check_flag,
    check_instance,
    check_number,
    check_path,
    index_array,
    ordered_list,
    seeded_generator,
    shown,
)
from broadloom.errors import InputError
from broadloom.model import Interest, Weights, write_link_problem
from broadloom.model.cloud_regions import REGIONS
from broadloom.progress import stage

if TYPE_CHECKING:
    import pyarrow as pa

# Names of popularity laws; the papers use the short ones.
POPULARITIES = {
    "uniform": "uniform",
    "unif": "uniform",
    "zipf": "zipf",
    "exponential": "exponential",
    "expo": "exponential",
}
SIZE_LAWS = ("uniform", "power")
EVENT_KINDS = ("join", "leave", "subscribe", "unsubscribe")

# How many random numbers are drawn at a time: it bounds the memory and does not change the result.
_BLOCK = 4_000_000


def interest(
    nodes: int = 1000,
    topics: int = 200,
    popularity: str = "uniform",
    alpha: float = 2.0,
    rate: float = 5.0,
    sizes: tuple[int, int] = (20, 100),
    size_law: str = "uniform",
    gamma: float = 2.0,
    seed: int = 0,
) -> Interest:
    """Interest of `nodes` nodes in `topics` topics, as papers 1 to 3 generate it.

    Each node draws the number of its topics, then that many different topics one after the other, each in
    proportion to its popularity among the remaining ones.

    Args:
        nodes: how many nodes.
        topics: how many topics.
        popularity: "uniform" ("unif"); "zipf": topic i in proportion to (i + 1) ** -alpha; "exponential"
            ("expo"): to exp(-rate * i / topics).
        alpha: the exponent of "zipf".
        rate: the rate of "exponential".
        sizes: the least and the greatest number of topics per node; at most the number of topics.
        size_law: "uniform" over that range, or "power": size s in proportion to s ** -gamma.
        gamma: the exponent of "power".
        seed: the seed of the random generator.

    Examples:
        >>> interest(nodes=4, topics=10, sizes=(2, 3), seed=1)
        Interest(4 nodes, 10 topics, 11 subscriptions)
    """
    shares = topic_shares(topics, popularity, alpha, rate)
    rng = seeded_generator(seed)
    wanted = _draw_sizes(rng, nodes, sizes, size_law, gamma, topics)
    most = int(wanted.max(initial=0))
    possible = np.count_nonzero(shares)
    if most > possible:
        raise InputError(
            f"a node wants {most} topics, but only {possible} can be drawn; give a flatter popularity"
        )
    with stage("draw subscriptions", nodes) as report:
        drawn = draw_topics(rng, wanted, shares, report)
    return Interest.from_rows(np.concatenate(([0], np.cumsum(wanted))), drawn, topics)


def topic_shares(topics: int, popularity: str, alpha: float = 2.0, rate: float = 5.0) -> NDArray[np.float64]:
    """The probability of each topic in a draw; they add up to 1."""
    topics = check_count(topics, "topics", maximum=MAX_INDEX)
    check_choice(popularity, "popularity", POPULARITIES)
    for name, value in (("alpha", alpha), ("rate", rate)):
        check_number(value, name, -np.inf)
    ranks = np.arange(1, topics + 1, dtype=np.float64)
    kind = POPULARITIES[popularity]
    with np.errstate(over="ignore", under="ignore"):
        if kind == "zipf":
            shares = ranks**-alpha
        elif kind == "exponential":
            shares = np.exp(-rate * (ranks - 1) / topics) if topics else ranks
        else:
            shares = np.ones(topics)
        if not np.isfinite(shares.sum()):
            name, value = ("alpha", alpha) if kind == "zipf" else ("rate", rate)
            raise InputError(f"{name} is {value}; give a number for which the shares are finite")
    return shares / shares.sum() if topics else shares


def _draw_sizes(
    rng: np.random.Generator, nodes: int, sizes: tuple[int, int], size_law: str, gamma: float, topics: int
) -> NDArray[np.int64]:
    """The number of topics of each node."""
    nodes = check_count(nodes, "nodes", maximum=MAX_INDEX)
    sizes = tuple(ordered_list(sizes, "subscription sizes"))
    if len(sizes) != 2:
        raise InputError(f"subscription sizes are {shown(sizes)}; give the fewest and the most")
    low, high = (check_count(size, "a subscription size") for size in sizes)
    if low > high:
        raise InputError(f"subscription sizes {low} to {high}; give the fewest, then the most")
    if low > topics:
        raise InputError(f"subscription sizes start at {low}, above the {topics} topics; give a smaller one")
    check_choice(size_law, "size_law", SIZE_LAWS)
    check_number(gamma, "gamma", -np.inf)
    high = min(high, topics)
    if size_law == "uniform":
        return rng.integers(low, high + 1, nodes)
    if low == 0:
        raise InputError("subscription sizes start at 0, but the size law is power; give 1 or more")
    values = np.arange(low, high + 1)
    with np.errstate(over="ignore", under="ignore"):
        chance = (values / low) ** -gamma
        total = chance.sum()
    if not np.isfinite(total):
        raise InputError(f"gamma is {gamma}; give a number for which the shares of all sizes are finite")
    return rng.choice(values, nodes, p=chance / chance.sum())


def draw_topics(
    rng: np.random.Generator,
    wanted: NDArray[np.int64],
    shares: NDArray[np.float64],
    report: Callable[[float], None] = lambda _: None,
) -> NDArray[np.int32]:
    """The topics of each node, node after node, in ascending order.

    The `k` smallest of independent exponential variables with the topics' shares as rates are `k` successive
    draws without replacement. So a block of rows is one matrix of random numbers and one partial sort.
    """
    topics, most = len(shares), int(wanted.max(initial=0))
    if most == 0:
        return np.empty(0, np.int32)
    rows = max(1, _BLOCK // topics)
    blocks = []
    for first in range(0, len(wanted), rows):
        size = wanted[first : first + rows]
        with np.errstate(divide="ignore", over="ignore"):  # topics without a chance come last
            keys = rng.standard_exponential((len(size), topics)) / shares
        best = np.argpartition(keys, min(most, topics - 1), axis=1)[:, :most]
        order = np.argsort(np.take_along_axis(keys, best, axis=1), axis=1)
        ranked = np.take_along_axis(best, order, axis=1).astype(np.int32)
        ranked[np.arange(most) >= size[:, None]] = topics
        ranked.sort(axis=1)
        blocks.append(ranked[ranked < topics])
        report(first + len(size))
    return np.concatenate(blocks)


# Churn


class ChurnEvent(NamedTuple):
    """One change: a node joins with topics, leaves, subscribes to topics or unsubscribes from them.

    The `j`-th join of a sequence over `n` nodes, counted from 0, adds node `n + j`; no index is used again.
    """

    seq: int
    kind: str
    node: int
    topics: tuple[int, ...]


def churn(
    interest: Interest, rounds: int = 1000, join: float = 0.5, change: float = 0.0, seed: int = 0
) -> tuple[ChurnEvent, ...]:
    """A sequence of changes to an interest.

    A node that joins has as many topics as a random node of the interest; they are drawn by the topics'
    popularity in the interest, without replacement. A node that leaves is drawn from those present. A change
    of subscriptions adds one topic to a node or removes one, with the same chance.

    Args:
        interest: the interest before the first event.
        rounds: how many events.
        join: the chance that a node joins rather than leaves.
        change: the chance that an event is a change of subscriptions instead.
        seed: the seed of the random generator.

    Examples:
        >>> events = churn(Interest.from_lists([[0, 1], [1]]), rounds=3, join=1.0, seed=0)
        >>> [(event.kind, event.node) for event in events]
        [('join', 2), ('join', 3), ('join', 4)]
    """
    check_instance(interest, Interest, "the interest", "make one with Interest.from_lists")
    for name, chance in (("join", join), ("change", change)):
        check_number(chance, name, 0, 1)
    rounds = check_count(rounds, "rounds")
    rng = seeded_generator(seed)
    popularity = np.diff(interest.node_start).astype(np.float64)
    sizes = np.diff(interest.topic_start)
    present = {u: set(interest.topics_of(u).tolist()) for u in range(interest.node_count)}
    order = list(present)
    events = []
    next_node = interest.node_count
    for seq in range(rounds):
        if order and rng.random() < change:
            events.append(_change(rng, seq, order, present, interest.topic_count))
        elif rng.random() < join or not order:
            topics = _draw_interest(rng, sizes, popularity)
            events.append(ChurnEvent(seq, "join", next_node, topics))
            present[next_node] = set(topics)
            order.append(next_node)
            next_node += 1
        else:
            index = int(rng.integers(len(order)))
            order[index], order[-1] = order[-1], order[index]
            node = order.pop()
            del present[node]
            events.append(ChurnEvent(seq, "leave", node, ()))
    return tuple(events)


def _draw_interest(rng: np.random.Generator, sizes: np.ndarray, popularity: np.ndarray) -> tuple[int, ...]:
    """The topics of a new node: as many as a random node has, by popularity."""
    known = np.flatnonzero(popularity)
    if not len(known):
        return ()
    wanted = sizes[rng.integers(len(sizes))]
    return tuple(known[draw_topics(rng, np.array([wanted]), popularity[known])].tolist())


def _change(
    rng: np.random.Generator, seq: int, order: list[int], present: dict[int, set[int]], topics: int
) -> ChurnEvent:
    """Add or remove one topic of a node; add if it has no topic, remove if it has all."""
    node = order[int(rng.integers(len(order)))]
    subscribed, add = sorted(present[node]), bool(rng.random() < 0.5)
    missing = sorted(set(range(topics)) - present[node])
    pool = (missing or subscribed) if add else (subscribed or missing)
    if not pool:
        return ChurnEvent(seq, "subscribe", node, ())
    topic = pool[int(rng.integers(len(pool)))]
    kind = "subscribe" if topic not in present[node] else "unsubscribe"
    present[node] ^= {topic}
    return ChurnEvent(seq, kind, node, (topic,))


# Tables


def write(
    folder: str | Path,
    interest: Interest,
    weights: Weights | None = None,
    events: tuple[ChurnEvent, ...] = (),
    in_regions: bool = False,
    overwrite: bool = False,
) -> None:
    """Write a workload as a folder of canonical tables: nodes, subscriptions, latency and events.

    Args:
        folder: the new folder; it appears complete or not at all.
        interest: the subscriptions of each node.
        weights: written as coordinates (euclidean), as sites, or as the table latency.
        events: written as the table events, if there are any; nodes that join get a position, unless the
            weights are a matrix of latencies.
        in_regions: whether the weights' sites are the cloud regions, so that they get their names.
        overwrite: replace an existing folder.
    """
    target = check_path(folder, "the folder")
    check_instance(interest, Interest, "the interest", "make one with Interest.from_lists")
    check_flag(in_regions, "in_regions")
    check_flag(overwrite, "overwrite")
    tables: dict[str, pa.Table] = {}
    if weights is not None:
        check_instance(weights, Weights, "weights", "make them with Weights.dense, or give None")
        if weights.node_count != interest.node_count:
            raise InputError(
                f"the interest has {interest.node_count:,} nodes, the weights {weights.node_count:,}; "
                "give the same number"
            )
        if in_regions and (weights.kind != "sites" or weights.site.max(initial=-1) >= len(REGIONS)):
            raise InputError("in_regions is true, but the weights are not those of regions; leave it out")
        tables = _weight_tables(interest, weights, in_regions)
    changes = ordered_list(events, "events")
    if changes:
        table = events_table(interest, tuple(changes))
        tables["events"] = table if weights is None else _with_positions(table, changes, weights, in_regions)
    write_link_problem(target, interest, tables, overwrite)


def events_table(interest: Interest, events: tuple[ChurnEvent, ...]) -> pa.Table:
    """The canonical table `events`; nodes that join are named `joined-<index>`."""
    import pyarrow as pa

    check_instance(interest, Interest, "the interest", "make one with Interest.from_lists")
    count = interest.node_count
    events = tuple(_checked_event(interest, event) for event in ordered_list(events, "events"))
    names = [interest.node_ids[e.node] if e.node < count else f"joined-{e.node}" for e in events]
    return pa.table(
        {
            "seq": pa.array([event.seq for event in events], pa.int64()),
            "kind": pa.array([event.kind for event in events], pa.string()),
            "node": pa.array(names, pa.string()),
            "topics": pa.array(
                [[interest.topic_ids[topic] for topic in event.topics] for event in events],
                pa.list_(pa.string()),
            ),
        }
    )


def _with_positions(
    table: pa.Table, events: list[ChurnEvent], weights: Weights, in_regions: bool
) -> pa.Table:
    """The table of events with a position of each node that joins, if weights are by points or by site."""
    import pyarrow as pa

    if weights.kind not in ("euclidean", "sites") or not weights.node_count:
        return table
    at = [
        _join_position(weights, node, in_regions) if kind == "join" else None for _, kind, node, _ in events
    ]
    return table.append_column("at", pa.array(at, pa.string()))


def _join_position(weights: Weights, node: int, in_regions: bool) -> str:
    """The position of a node that joins, drawn from its index; as the column `at` of the table `events`."""
    rng = seeded_generator(node)
    if weights.kind == "sites":
        site = int(weights.site[rng.integers(weights.node_count)])
        return _site_labels(weights, in_regions)[site]
    low, high = weights.points.min(axis=0), weights.points.max(axis=0)
    return json.dumps((low + (high - low) * rng.random(len(low))).tolist())


def _checked_event(interest: Interest, event: object) -> ChurnEvent:
    """An event with a kind, a node and known topics."""
    values = list(event) if isinstance(event, (tuple, list)) else []
    if len(values) != 4:
        raise InputError(f"an event is {shown(event)}; give (seq, kind, node, topics)")
    seq, kind, node, topics = values
    chosen = index_array(ordered_list(topics, "the topics of an event"), interest.topic_count, "topic")
    return ChurnEvent(
        check_count(seq, "seq"),
        check_choice(kind, "the kind of an event", EVENT_KINDS),
        check_count(node, "node", maximum=MAX_INDEX),
        tuple(chosen.tolist()),
    )


def _weight_tables(interest: Interest, weights: Weights, in_regions: bool) -> dict[str, pa.Table]:
    import pyarrow as pa

    names = pa.array(interest.node_ids, pa.string())
    if weights.kind == "uniform":
        return {}
    if weights.kind == "euclidean":
        axes = ["x", "y", "z", *(f"x{axis}" for axis in range(3, weights.points.shape[1]))]
        return {"nodes": pa.table({"node": names} | dict(zip(axes, weights.points.T, strict=False)))}
    if weights.kind == "dense":
        return {"latency": _latency_table(interest.node_ids, weights.table, inner=False)}
    labels = _site_labels(weights, in_regions)
    tables = {"nodes": pa.table({"node": names, "site": pa.array(labels, pa.string()).take(weights.site)})}
    if len(weights.table) or (weights.inner, weights.outer) != (1.0, 10.0):
        used, first = np.unique(weights.site, return_index=True)
        between = weights.subset(first).matrix()
        inside = weights.table.diagonal()[used] if len(weights.table) else weights.inner
        np.fill_diagonal(between, inside)
        tables["latency"] = _latency_table([labels[s] for s in used], between, inner=True)
    return tables


def _site_labels(weights: Weights, in_regions: bool) -> list[str]:
    if in_regions:
        return [region.name for region in REGIONS]
    return [f"site-{site}" for site in range(weights.site.max(initial=-1) + 1)]


def _latency_table(ids: list[str] | tuple[str, ...], matrix: np.ndarray, inner: bool) -> pa.Table:
    """The upper triangle of a matrix as rows; with its diagonal if `inner`."""
    import pyarrow as pa

    u, v = np.triu_indices(len(ids), 0 if inner else 1)
    names = pa.array(ids, pa.string())
    return pa.table({"src": names.take(u), "dst": names.take(v), "rtt_ms": matrix[u, v]})

"""Generated churn: nodes join and leave, and subscriptions change, one event after the other (paper 3)."""

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from broadloom.checks import check_count, seeded_generator
from broadloom.errors import InputError
from broadloom.model import Interest
from broadloom.workload.subscriptions import draw_topics


class Event(NamedTuple):
    """One change: a node joins with topics, leaves, subscribes to topics or unsubscribes from them.

    The `j`-th join of a sequence over `n` nodes, counted from 0, brings node `n + j`; no index is used again.
    """

    seq: int
    kind: str
    node: int
    topics: tuple[int, ...]


def churn(
    interest: Interest, rounds: int = 1000, join: float = 0.5, change: float = 0.0, seed: int = 0
) -> tuple[Event, ...]:
    """A sequence of changes to an interest.

    A node that joins has as many topics as a node drawn from the interest, each drawn by the topics' present
    popularity there, without replacement. A node that leaves is drawn from those that are there. A change of
    subscriptions gives a node one topic more, or takes one away, with the same chance.

    Args:
        interest: what there is before the first event.
        rounds: how many events.
        join: the chance that a node joins rather than leaves.
        change: the chance that an event is a change of subscriptions instead.
        seed: the seed of it all.

    Examples:
        >>> events = churn(Interest.from_lists([[0, 1], [1]]), rounds=3, join=1.0, seed=0)
        >>> [(event.kind, event.node) for event in events]
        [('join', 2), ('join', 3), ('join', 4)]
    """
    for name, chance in (("join", join), ("change", change)):
        if not 0 <= chance <= 1:
            raise InputError(f"{name} is {chance}; give a chance from 0 to 1")
    rounds, rng = check_count(rounds, "rounds"), seeded_generator(seed)
    popular = np.diff(interest.node_start).astype(np.float64)
    sizes = np.diff(interest.topic_start)
    present = {u: set(interest.topics_of(u).tolist()) for u in range(interest.node_count)}
    order, events, arrived = list(present), [], interest.node_count
    for seq in range(rounds):
        if order and rng.random() < change:
            events.append(_change(rng, seq, order, present, interest.topic_count))
        elif rng.random() < join or not order:
            topics = _draw_interest(rng, sizes, popular)
            events.append(Event(seq, "join", arrived, topics))
            present[arrived] = set(topics)
            order.append(arrived)
            arrived += 1
        else:
            at = int(rng.integers(len(order)))
            order[at], order[-1] = order[-1], order[at]
            del present[node := order.pop()]
            events.append(Event(seq, "leave", node, ()))
    return tuple(events)


def events_table(interest: Interest, events: tuple[Event, ...]) -> pa.Table:
    """The canonical table `events`; nodes that join are named `joined-<index>`."""
    count = interest.node_count
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


def _draw_interest(rng: np.random.Generator, sizes: np.ndarray, popular: np.ndarray) -> tuple[int, ...]:
    """The topics of a new node: as many as somebody has, by popularity."""
    known = np.flatnonzero(popular)
    if not len(known):
        return ()
    wanted = sizes[rng.integers(len(sizes))]
    return tuple(known[draw_topics(rng, np.array([wanted]), popular[known])].tolist())


def _change(
    rng: np.random.Generator, seq: int, order: list[int], present: dict[int, set[int]], topics: int
) -> Event:
    """One topic more or one less for a node; more where it has none, less where it has all."""
    node = order[int(rng.integers(len(order)))]
    have, more = sorted(present[node]), bool(rng.random() < 0.5)
    lack = sorted(set(range(topics)) - present[node])
    pool = (lack or have) if more else (have or lack)
    if not pool:
        return Event(seq, "subscribe", node, ())
    topic = pool[int(rng.integers(len(pool)))]
    kind = "subscribe" if topic not in present[node] else "unsubscribe"
    present[node] ^= {topic}
    return Event(seq, kind, node, (topic,))

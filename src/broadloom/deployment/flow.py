"""What a wiring does with messages, computed: which links they cross, whom they reach, after how long."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from broadloom.deployment.wiring import Hop, Wiring
from broadloom.mqtt.topic_filters import FilterTree, common_topic
from broadloom.plans.plan import Plan


class Message(NamedTuple):
    """A message of a topic, published at a broker."""

    broker: str
    topic: str


def journey(wiring: Wiring, message: Message) -> dict[str, Hop]:
    """The brokers that a message comes to over links, each with the hop that brings it.

    Examples:
        >>> from broadloom.deployment.wiring import Link
        >>> links = Link("a", "b", ("x",), ("x",)), Link("b", "c", ("x",), ("x",))
        >>> journey(Wiring(("a", "b", "c"), {}, {}, links), Message("a", "x"))
        {'b': ('a', 'b'), 'c': ('b', 'c')}
    """
    hops, todo = wiring.next_hops(message.topic), [message.broker]
    came: dict[str, Hop] = {}
    for here in todo:
        for end in hops.get(here, ()):
            if end not in came and end != message.broker:
                came[end] = (here, end)
                if wiring.relays:
                    todo.append(end)
    return came


def crossings(wiring: Wiring, messages: Mapping[Message, int]) -> Counter[Hop]:
    """How many messages cross each link each way."""
    crossed: Counter[Hop] = Counter()
    for message, count in messages.items():
        for hop in journey(wiring, message).values():
            crossed[hop] += count
    return crossed


def sample_messages(wiring: Wiring, each: int = 1) -> dict[Message, int]:
    """For every topic a few messages from every broker that wants it or publishes it.

    Filters with wildcards stand for a topic that they match, and each two that meet for one that both do.

    Examples:
        >>> wiring = Wiring(("a", "b"), {"a": ("x/+",), "b": ("x/y",)}, {}, ())
        >>> sorted(sample_messages(wiring))[0]
        Message(broker='a', topic='x/any')
    """
    wanted = {text for filters in wiring.wants.values() for text in filters}
    topics = {topic for known in wiring.publishes.values() for topic in known}
    known = FilterTree(wanted)
    for text in wanted:
        topics |= {topic for other in known.meeting(text) if (topic := common_topic(text, other))}
    at = {topic: set(wiring.wanting(topic)) for topic in topics}
    for broker, published in wiring.publishes.items():
        for topic in published:
            at[topic].add(broker)
    return {Message(broker, topic): each for topic in sorted(topics) for broker in sorted(at[topic])}


def delays(wiring: Wiring, messages: Iterable[Message], plan: Plan) -> dict[str, float]:
    """Hops, and the sum of the plan's weights, on the ways from publishers to brokers that want a message.

    Deliveries at the publisher's own broker are no journeys, and do not count.
    """
    index = {name: node for node, name in enumerate(plan.interest.node_ids)}
    ends = sorted({hop for link in wiring.links for hop, _ in link.carried()})
    lengths = plan.weights.of([index[u] for u, _ in ends], [index[v] for _, v in ends])
    length = dict(zip(ends, lengths.tolist(), strict=True))
    hops, delay = [], []
    for message in messages:
        far, late = {message.broker: 0}, {message.broker: 0.0}
        came = journey(wiring, message)
        for end, hop in came.items():
            far[end], late[end] = far[hop[0]] + 1, late[hop[0]] + length[hop]
        wanting = [end for end in came if end in wiring.wanting(message.topic)]
        hops += [far[end] for end in wanting]
        delay += [late[end] for end in wanting]
    return {
        "mean_hops": float(np.mean(hops)) if hops else 0.0,
        "max_hops": float(max(hops, default=0)),
        "mean_delay": float(np.mean(delay)) if delay else 0.0,
        "max_delay": max(delay, default=0.0),
    }

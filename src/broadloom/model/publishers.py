"""Publishers of a plan: where clients publish what; and the list of what a plan does not carry."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from broadloom.checks import check_number, is_text, ordered_list, plain_name, shown
from broadloom.errors import InputError
from broadloom.model.graphs import Interest
from broadloom.mqtt.topic_filters import FilterIndex, covers, is_valid_filter, is_wild

if TYPE_CHECKING:
    import pyarrow as pa

ANYWHERE, OBSERVED = "anywhere", "observed"
FIRST_NAMES = 5  # names that a text shows per line


class PublishedTopic(NamedTuple):
    """A topic that clients of a broker publish.

    Attributes:
        broker: the id of the broker.
        topic: the topic, without wildcards.
        rate: bytes per second; 0 if unknown.
    """

    broker: str
    topic: str
    rate: float = 0.0


@dataclass(frozen=True)
class Publishers:
    """Where clients publish: at any broker, or only where publications were observed.

    A broker that wants a topic can always publish it.

    Attributes:
        mode: "anywhere": every broker can publish every topic, over one-way links where it does not want it;
            "observed": one-way links only for the observed publications.
        observed: the observed publications: pairs of a broker's id and a topic, or triples with the rate in
            bytes per second. Trees use the rates in both modes.

    Examples:
        >>> Publishers("observed", [("rome", "alarms/1"), ("oslo", "alarms/2", 120.0)]).observed[0]
        PublishedTopic(broker='oslo', topic='alarms/2', rate=120.0)
        >>> Publishers().mode
        'anywhere'
    """

    mode: str = ANYWHERE
    observed: Sequence[PublishedTopic] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.mode, str) or self.mode not in (ANYWHERE, OBSERVED):
            raise InputError(f"publishers are {shown(self.mode)}; choose {ANYWHERE} or {OBSERVED}")
        rates = defaultdict[tuple[str, str], list[float]](list)
        for number, row in enumerate(ordered_list(self.observed, "observed publications")):
            broker, topic, rate = _checked(row, number)
            rates[broker, topic].append(rate)
        observed = (PublishedTopic(*pair, fsum(found)) for pair, found in sorted(rates.items()))
        object.__setattr__(self, "observed", tuple(observed))

    def to_table(self) -> pa.Table:
        """The observed publications as the canonical table `publications`: node, topic, rate."""
        import pyarrow as pa

        types = {"node": pa.string(), "topic": pa.string(), "rate": pa.float64()}
        columns = list(zip(*self.observed, strict=True)) or [()] * len(types)
        values = zip(types.items(), columns, strict=True)
        return pa.table({name: pa.array(column, kind) for (name, kind), column in values})


def publishers_among(publishers: Publishers, brokers: Collection[str]) -> Publishers:
    """The publishers without publications at other brokers.

    Examples:
        >>> publishers_among(Publishers("observed", [("rome", "x"), ("oslo", "x")]), ["rome"]).observed
        (PublishedTopic(broker='rome', topic='x', rate=0.0),)
    """
    known = set(brokers)
    return Publishers(publishers.mode, [one for one in publishers.observed if one.broker in known])


def _checked(row: object, number: int) -> PublishedTopic:
    """A publication, after a check of its values."""
    values = tuple(row) if isinstance(row, (tuple, list)) else ()
    if len(values) not in (2, 3) or not all(isinstance(text, str) and is_text(text) for text in values[:2]):
        raise InputError(
            f"publication {number} is {shown(row)}; give a broker's id, a topic, and optionally a rate"
        )
    broker, topic, *rate = values
    if is_wild(topic) or not is_valid_filter(topic):
        raise InputError(
            f"publication {number}: {broker!r} publishes {topic!r:.80}; a message's topic has no wildcards"
        )
    known = check_number(rate[0], f"publication {number}: rate") if rate else 0.0
    return PublishedTopic(broker, topic, known)


class LeftOutSubscription(NamedTuple):
    """A subscription that a plan leaves out.

    Attributes:
        node: the broker.
        topic: the topic or topic filter, as the client wrote it.
        reason: why it is left out.
    """

    node: str
    topic: str
    reason: str


class NotCarriedFrom(NamedTuple):
    """The topic filters whose messages are not carried from a broker.

    A message that is published there is missing elsewhere exactly if it matches one of `filters` and none of
    `carried`.

    Attributes:
        node: the broker.
        filters: topic filters that other brokers want.
        carried: overlapping topic filters that are carried from there.
    """

    node: str
    filters: tuple[str, ...]
    carried: tuple[str, ...] = ()


@dataclass(frozen=True)
class NotCarried:
    r"""What a plan does not carry.

    Attributes:
        subscriptions: the subscriptions that are left out, in the order of brokers and topics.
        publications: with observed publishers, the topic filters that are not carried from each broker.

    Examples:
        >>> missing = NotCarried([("rome", "$SYS/#", "belongs to one broker")])
        >>> print("\n".join(missing.lines()))
        not carried: 1 subscription
          belongs to one broker: '$SYS/#' at rome
        >>> bool(missing), bool(NotCarried())
        (True, False)
    """

    subscriptions: Sequence[LeftOutSubscription] = ()
    publications: Sequence[NotCarriedFrom] = ()

    def __post_init__(self) -> None:
        for name in ("subscriptions", "publications"):
            object.__setattr__(self, name, ordered_list(getattr(self, name), f"{name} not carried"))
        left_out = sorted({_left_out(row) for row in self.subscriptions})
        object.__setattr__(self, "subscriptions", tuple(left_out))
        object.__setattr__(self, "publications", tuple(map(_not_carried_from, self.publications)))

    def __bool__(self) -> bool:
        return bool(self.subscriptions or self.publications)

    def record(self) -> dict[str, Any]:
        """All of it, ready for JSON."""
        return {
            "subscriptions": [row._asdict() for row in self.subscriptions],
            "publications": [
                {"node": row.node, "filters": list(row.filters), "carried": list(row.carried)}
                for row in self.publications
            ],
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> NotCarried:
        """The list that `record` describes.

        Raises:
            InputError: it is damaged.
        """
        try:
            return cls(
                [LeftOutSubscription(**row) for row in record["subscriptions"]],
                [NotCarriedFrom(**row) for row in record["publications"]],
            )
        except (KeyError, TypeError) as error:
            raise InputError(f"the list of what is not carried is damaged: {error!r:.80}") from error

    def lines(self) -> Iterator[str]:
        """The section "not carried" of texts: counts, and the first names; nothing if all is carried."""
        if self.subscriptions:
            yield f"not carried: {_counted(len(self.subscriptions), 'subscription')}"
            reasons = Counter(row.reason for row in self.subscriptions)
            for reason in sorted(reasons, key=lambda one: (-reasons[one], one)):
                names = [
                    f"{shown(row.topic)} at {row.node}" for row in self.subscriptions if row.reason == reason
                ]
                yield f"  {reason}: {_first(names)}"
        if self.publications:
            count = sum(len(row.filters) for row in self.publications)
            brokers = _counted(len(self.publications), "broker")
            yield f"not carried from {brokers}, where nobody was observed to publish it: {count:,} filters"
            for row in self.publications[:FIRST_NAMES]:
                kept = (
                    f" (but {_first([plain_name(text) for text in row.carried])} is carried)"
                    if row.carried
                    else ""
                )
                yield f"  from {row.node}: {_first([plain_name(text) for text in row.filters])}{kept}"
            if len(self.publications) > FIRST_NAMES:
                more = _counted(len(self.publications) - FIRST_NAMES, "more broker")
                yield f"  and from {more}; --json lists all"


def _left_out(row: object) -> LeftOutSubscription:
    values = tuple(row) if isinstance(row, (tuple, list)) else ()
    if len(values) != 3 or not all(isinstance(text, str) for text in values):
        raise InputError(f"a subscription that is left out is {shown(row)}; give a node, a topic, a reason")
    return LeftOutSubscription(*values)


def _not_carried_from(row: object) -> NotCarriedFrom:
    values = tuple(row) if isinstance(row, (tuple, list)) else ()
    lists = values[1:]
    if not 2 <= len(values) <= 3 or not all(isinstance(texts, (tuple, list)) for texts in lists):
        raise InputError(f"what a broker cannot publish is {shown(row)}; give a node and topic filters")
    return NotCarriedFrom(values[0], *(tuple(texts) for texts in lists))


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _first(names: Sequence[str]) -> str:
    shown_names = ", ".join(names[:FIRST_NAMES])
    return f"{shown_names} and {len(names) - FIRST_NAMES:,} more" if len(names) > FIRST_NAMES else shown_names


def not_carried_publications(interest: Interest, publishers: Publishers) -> tuple[NotCarriedFrom, ...]:
    """The topic filters that are not carried from each broker; nothing if any broker can publish.

    A broker publishes into a group of overlapping topic filters if it wants one of them. Otherwise its
    one-way link carries the topic filters that match what was observed there.

    Examples:
        >>> interest = Interest.from_lists([["a/+"], ["+/b"], []], node_ids=["rome", "oslo", "bonn"])
        >>> not_carried_publications(interest, Publishers("observed", [("bonn", "a/c")]))
        (NotCarriedFrom(node='bonn', filters=('+/b',), carried=('a/+',)),)
    """
    if publishers.mode == ANYWHERE:
        return ()
    wanted = np.diff(interest.node_start) > 0
    texts = interest.topic_ids
    group_of = interest.group_of_topic
    members = defaultdict[int, list[int]](list)
    for topic in np.flatnonzero(wanted).tolist():
        members[int(group_of[topic])].append(topic)
    by_text = sorted(range(len(texts)), key=texts.__getitem__)
    in_order = [texts[topic] for topic in by_text]
    index_of = {text: topic for topic, text in enumerate(texts)}
    known = FilterIndex(text for text, one in zip(texts, wanted.tolist(), strict=True) if one)
    observed = defaultdict[str, list[str]](list)
    for one in publishers.observed:
        observed[one.broker].append(one.topic)
    found = []
    for node, broker in enumerate(interest.node_ids):
        own = np.isin(group_of, group_of[interest.topics_of(node)])
        sent = {text for topic in observed[broker] for text in known.meeting(topic)}
        carried = sorted(text for text in sent if not own[index_of[text]])
        missing = wanted & ~own
        missing[[index_of[text] for text in carried]] = False
        for wide in filter(is_wild, carried):
            group = members[int(group_of[index_of[wide]])]
            missing[[one for one in group if missing[one] and covers(wide, texts[one])]] = False
        if missing.any():
            listed = tuple(text for text, one in zip(in_order, missing[by_text].tolist(), strict=True) if one)
            groups = set(group_of[missing].tolist())
            near = tuple(text for text in carried if int(group_of[index_of[text]]) in groups)
            found.append(NotCarriedFrom(broker, listed, near))
    return tuple(found)

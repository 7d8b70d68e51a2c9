"""Live counts as histograms and as a traffic matrix, in rows of tables (paper 5, sections I and V)."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping

import pyarrow as pa

log = logging.getLogger("broadloom.agents.moves")

MOST_FLOWS = 2_000_000  # rows of a traffic matrix
Rates = Mapping[tuple[str, str], float]


def histogram_table(rates: Rates) -> pa.Table:
    """The generating function of each client: what it sends into each topic, in bytes a second.

    Examples:
        >>> histogram_table({("meter-1", "a/b"): 5.0}).to_pylist()
        [{'publisher': 'meter-1', 'topic': 'a/b', 'rate': 5.0}]
    """
    return _table(("publisher", "topic"), rates)


def traffic_table(rates: Rates, wants: Iterable[tuple[str, str]]) -> pa.Table:
    """What goes from each client to each other one, in bytes a second; no row where that is nothing.

    A matrix of more than two million rows is left out: histograms and subscriptions say the same.

    Args:
        rates: what each client sends into each topic.
        wants: clients, and the topics that they want.

    Examples:
        >>> traffic_table({("meter-1", "a"): 5.0}, [("meter-1", "a"), ("screen", "a")]).to_pylist()
        [{'src': 'meter-1', 'dst': 'screen', 'rate': 5.0}]
    """
    takers: dict[str, list[str]] = {}
    for client, topic in wants:
        takers.setdefault(topic, []).append(client)
    if (count := sum(len(takers.get(topic, ())) for _, topic in rates)) > MOST_FLOWS:
        log.warning("the traffic matrix has up to %d rows, and is left out", count)
        return _table(("src", "dst"), {})
    flows: Counter[tuple[str, str]] = Counter()
    for (sender, topic), rate in rates.items():
        for taker in takers.get(topic, ()):
            flows[sender, taker] += rate  # type: ignore[assignment]
    return _table(("src", "dst"), {pair: rate for pair, rate in flows.items() if pair[0] != pair[1]})


def _table(names: Collection[str], rates: Rates) -> pa.Table:
    one, other = names
    rows = sorted((pair, rate) for pair, rate in rates.items() if rate > 0)
    return pa.table(
        {
            one: pa.array([pair[0] for pair, _ in rows], pa.string()),
            other: pa.array([pair[1] for pair, _ in rows], pa.string()),
            "rate": pa.array([rate for _, rate in rows], pa.float64()),
        }
    )

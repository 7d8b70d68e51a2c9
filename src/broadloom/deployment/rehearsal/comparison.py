"""The same traffic on our trees and on what people wire today: links, messages, bytes, hops, delay."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from broadloom.deployment.flow import Message, delays
from broadloom.deployment.rehearsal.alternatives import ALTERNATIVES
from broadloom.deployment.rehearsal.rehearsal import Outcome, rehearse
from broadloom.deployment.rehearsal.tally import PAYLOAD_BYTES
from broadloom.deployment.traffic import Publication
from broadloom.deployment.wiring import Wiring
from broadloom.plans.plan import Plan

OURS = "our plan"
# A full mesh of more brokers than this has too many connections for one machine.
MOST_BROKERS = 60


def compare(
    plan: Plan,
    ours: tuple[Wiring, Outcome],
    publications: Iterable[Publication],
    messages: Mapping[Message, int],
    size: int = PAYLOAD_BYTES,
) -> list[dict[str, Any]]:
    """A row for our wiring, which has been rehearsed, and one for each alternative, rehearsed here.

    Hops and delays are those of the ways that messages take, a delay in the unit of the plan's weights.
    """
    known = list(publications)
    rows = [_row(OURS, plan, *ours, messages)]
    for name, make in ALTERNATIVES.items():
        if len(plan.interest.node_ids) <= MOST_BROKERS or name != "full mesh with interest":
            wiring = make(plan, known)
            rows.append(_row(name, plan, wiring, rehearse(wiring, messages, size), messages))
    return rows


def _row(
    name: str, plan: Plan, wiring: Wiring, outcome: Outcome, messages: Mapping[Message, int]
) -> dict[str, Any]:
    told = outcome.record()
    return {
        "wiring": name,
        "links": len(wiring.links),
        "most_links_of_a_broker": max(_degrees(wiring).values(), default=0),
        "messages_on_links": told["messages_on_links"],
        "bytes_on_links": told["bytes_on_links"],
        **delays(wiring, messages, plan),
        **{key: told[key] for key in ("expected", "missing", "duplicates", "unexpected", "uninterested")},
    }


def _degrees(wiring: Wiring) -> dict[str, int]:
    degrees = dict.fromkeys(wiring.brokers, 0)
    for link in wiring.links:
        for end in link[:2]:
            degrees[end] += 1
    return degrees

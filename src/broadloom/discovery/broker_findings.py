"""Findings about one broker: its sources merged, what links carry of them, and what is missing."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from broadloom.checks import and_more, has_control_characters, plain_name
from broadloom.deployment import FleetBroker, widest
from broadloom.discovery.observed_publications import Observations
from broadloom.discovery.subscription_sources import LISTENED, NO_START, OWN_CLIENT, SourceFindings
from broadloom.formats.mosquitto_db import FORMAT as MOSQUITTO_DB
from broadloom.formats.mosquitto_db import NOT_IN_FILE
from broadloom.model import Reason
from broadloom.mqtt.topic_filters import OWN_CLIENTS, SHARED, common_filter, covers, is_valid_filter

# Beginnings of the ids of the clients of `discover` and `doctor`.
PROBES = (OWN_CLIENT, "broadloom-doctor")
_GROUP = re.compile(r"^\$share/([^/]+)/")
_ADVICE = {
    "mosquitto": "the path of mosquitto.db, or of a log with log_type subscribe",
    "emqx": "the address of its API, such as http://host:18083",
    "nats": "the address of its monitoring port, such as http://host:8222",
    "rabbitmq": "the address of its management API, such as http://host:15672",
}


@dataclass
class BrokerFindings:
    """Subscriptions and publications of one broker.

    Attributes:
        broker: the broker.
        sources: what was read.
        observed: what was seen over a connection to the broker.
        clients: the clients that subscribe, without our own links.
        wanted: the topics and filters that links carry for these clients, in order.
        not_carried: topics and filters that are left out, each with its reason.
        shared_groups: the name and the filter of each shared subscription.
        rows: the number of rows of all sources.
        used: those that led to `wanted`.
        duplicates: those that repeat another row.
        quarantined: the remaining rows by reason.
        found: the number of subscriptions in the sources, our own and internal ones included.
        problems: why subscriptions or publications are missing, or can be; empty: nothing is.
        notes: what an operator must know.
    """

    broker: FleetBroker
    sources: list[SourceFindings]
    observed: Observations
    clients: set[str] = field(default_factory=set)
    wanted: list[str] = field(default_factory=list)
    not_carried: list[tuple[str, str]] = field(default_factory=list)
    shared_groups: set[tuple[str, str]] = field(default_factory=set)
    rows: int = 0
    used: int = 0
    duplicates: int = 0
    quarantined: Counter[str] = field(default_factory=Counter)
    found: int = 0
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        """Whether nothing is known to be missing."""
        return not self.problems

    def record(self) -> dict[str, Any]:
        """The findings in the types of JSON."""
        seen = self.observed
        return {
            "broker": self.broker.name,
            "kind": self.broker.kind,
            "address": str(self.broker.host_and_port()),
            "complete": self.is_complete,
            "problems": list(self.problems),
            "clients": len(self.clients),
            "subscriptions": self.found,
            "counted_by_broker": seen.counted,
            "filters": len(self.wanted),
            "not_carried": len(self.not_carried),
            "publications": len(seen.traffic),
            "listened_seconds": round(seen.seconds, 6),
            "messages": sum(traffic.messages for traffic in seen.traffic.values()),
            "rtt_ms": None if seen.rtt_ms is None else round(seen.rtt_ms, 3),
            "sources": [source.record() for source in self.sources],
            "notes": list(self.notes),
        }


def merge_findings(
    broker: FleetBroker,
    sources: list[SourceFindings],
    observed: Observations,
    carry: Sequence[str],
    needs_publishers: bool,
) -> BrokerFindings:
    """Merge the sources of a broker, and judge whether they are complete.

    Args:
        broker: the broker.
        sources: what was read of it.
        observed: what was seen over a connection to it.
        carry: the filters that links carry.
        needs_publishers: whether the plan depends on the observed publishers.
    """
    findings = BrokerFindings(broker, sources, observed)
    pairs: set[tuple[str | None, str]] = set()
    wanted: set[str] = set()
    not_carried: set[tuple[str, str]] = set()
    for row in (row for source in sources for row in source.rows):
        if (row.client or "").startswith(PROBES):
            continue
        findings.rows += 1
        if row.reason is not None or row.filter is None:
            findings.quarantined[row.reason or Reason.missing("topic")] += 1
            continue
        if (row.client, row.filter) in pairs:
            findings.duplicates += 1
            continue
        pairs.add((row.client, row.filter))
        topic_filter = re.sub(SHARED, "", row.filter)
        fault = _fault(row.client, topic_filter)
        parts, missed = ([], None) if fault else carried_parts(topic_filter, carry)
        if fault != Reason.OWN:
            findings.clients.add(row.client or "")
        if fault is None and (group := _GROUP.match(row.filter)):
            findings.shared_groups.add((group[1], topic_filter))
        wanted.update(parts)
        if parts:
            findings.used += 1
        else:
            findings.quarantined[fault or Reason.OUTSIDE] += 1
        if (reason := fault or missed) and reason != Reason.OWN:
            not_carried.add((topic_filter, reason))
    findings.found = len(distinct_subscriptions(sources))
    findings.wanted = sorted(wanted)
    findings.not_carried = sorted(not_carried)
    _judge(findings)
    if needs_publishers and not observed.seconds:
        reason = observed.problem or "nobody listened there"
        findings.problems.append(f"its publishers are unknown: {reason}")
    _add_notes(findings)
    return findings


def distinct_subscriptions(sources: Iterable[SourceFindings]) -> set[tuple[str | None, str]]:
    """The client and filter of each subscription in the sources, but for those of `discover` and `doctor`."""
    return {
        (row.client, row.filter)
        for source in sources
        for row in source.rows
        if row.reason is None and row.filter is not None and not (row.client or "").startswith(PROBES)
    }


def carried_parts(topic_filter: str, carry: Sequence[str]) -> tuple[list[str], str | None]:
    """The parts of a filter that links carry, and the reason why the rest is not; None: all is carried.

    Examples:
        >>> carried_parts("a/b/#", ["a/#", "c"]), carried_parts("+/b", ["a/#", "c"])
        ((['a/b/#'], None), (['a/b'], 'links carry only a/b of it'))
        >>> carried_parts("d", ["a/#", "c"])
        ([], 'outside of what links carry')
    """
    if any(covers(one, topic_filter) for one in carry):
        return [topic_filter], None
    common = {part for one in carry if (part := common_filter(topic_filter, one)) is not None}
    parts = sorted(widest(common))
    if not parts:
        return [], Reason.OUTSIDE
    return parts, f"links carry only {', '.join(parts)} of it"


def _fault(client: str | None, topic_filter: str) -> str | None:
    """Why a subscription is left out, whatever links carry."""
    if (client or "").startswith(OWN_CLIENTS):
        return Reason.OWN
    if topic_filter.startswith("$"):
        return Reason.INTERNAL
    is_good = is_valid_filter(topic_filter) and not has_control_characters(topic_filter)
    return None if is_good else Reason.BAD_FILTER


def _judge(findings: BrokerFindings) -> None:
    """Find out whether subscriptions are missing."""
    sources = findings.sources
    broken = [source.problem for source in sources if source.problem is not None]
    counted = findings.observed.counted
    if counted is not None:
        missing = counted - findings.found
        if missing > 0:
            shown = f"the sources show {findings.found:,}" if sources else "no source shows them"
            remedy = "" if broken else f"; {_remedy(findings)}"
            findings.problems += [
                f"the broker counts {counted:,} subscriptions, and {shown}: {missing:,} are missing{remedy}",
                *broken,
            ]
        else:
            findings.notes += broken
        return
    findings.problems += broken
    kinds = {source.kind for source in sources if source.problem is None}
    if not sources or kinds <= {LISTENED}:
        advice = _ADVICE[findings.broker.kind]
        findings.problems.append(
            f"its subscriptions are unknown; set subscriptions in [brokers.{findings.broker.name}]: {advice}"
        )
    elif kinds <= {MOSQUITTO_DB.name} and not broken:
        reason = findings.observed.problem or "it does not publish $SYS/broker/subscriptions/count"
        findings.problems.append(
            "mosquitto.db lacks clients with a clean session and shared subscriptions, and the broker's own "
            f"count is unknown ({reason}); {_remedy(findings)}"
        )
    logs = [source for source in sources if source.kind == "mosquitto"]
    if logs and all(NO_START in source.notes for source in logs):
        findings.problems.append(f"the broker's own count is unknown, and {NO_START}")


def _remedy(findings: BrokerFindings) -> str:
    kinds = {source.kind for source in findings.sources}
    if "mosquitto" not in kinds:
        return "add a log with log_type subscribe to subscriptions"
    if MOSQUITTO_DB.name not in kinds:
        return "add mosquitto.db to subscriptions, for bridges and for sessions from before the log"
    return "let the broker write mosquitto.db (kill -USR1), and add older logs"


def _add_notes(findings: BrokerFindings) -> None:
    """Collect the notes of the sources and of what was observed."""
    seen = findings.observed
    has_log = any(source.kind == "mosquitto" and source.problem is None for source in findings.sources)
    findings.notes[:0] = [
        note for source in findings.sources for note in source.notes if not (has_log and note == NOT_IN_FILE)
    ]
    if seen.problem is not None:
        findings.notes.append(f"no connection: {seen.problem}")
    if seen.counted is not None and seen.counted <= findings.found:
        more = (
            f", and the sources show {findings.found:,}: its count is older than they are, or some of them "
            "have ended; in the second case as many others could be missing"
            if seen.counted < findings.found
            else ""
        )
        findings.notes.append(f"the broker itself counts {seen.counted:,} subscriptions{more}")
    if seen.interruptions:
        findings.notes.append(f"the connection was lost {seen.interruptions} times while listening")
    if seen.cut:
        findings.notes.append(
            f"{seen.cut:,} messages on topics after the first {len(seen.traffic):,} are not listed"
        )
    if seen.lines_cut:
        findings.notes.append(f"{seen.lines_cut:,} lines of its log were left out")
    bridges = {name for name in findings.clients if name.removeprefix("local.") in seen.bridges}
    if bridges:
        findings.notes.append(
            f"the bridge {min(bridges)!r}{and_more(len(bridges) - 1)} subscribes here, which counts as "
            "interest of clients; if links replace it, remove it and discover again"
        )
    if own := findings.quarantined[Reason.OWN]:
        what = "subscription of Broadloom itself is" if own == 1 else "subscriptions of Broadloom itself are"
        findings.notes.append(f"{own:,} {what} left out")
    if leaves := findings.quarantined[Reason.LEAF_NODE]:
        what = "subscription of a leaf node is" if leaves == 1 else "subscriptions of leaf nodes are"
        findings.notes.append(
            f"{leaves:,} {what} left out; if a leaf node is not a link of this fleet, add its server to the "
            "fleet file, or what its clients want is missing"
        )
    if findings.not_carried:
        first = ", ".join(plain_name(topic) for topic, _ in findings.not_carried[:3])
        findings.notes.append(f"{len(findings.not_carried):,} filters are not carried as a whole: {first}")


def shared_group_notes(brokers: Iterable[BrokerFindings]) -> list[str]:
    """A note on each shared subscription that exists at several brokers."""
    places: dict[tuple[str, str], list[str]] = {}
    for findings in brokers:
        for group in sorted(findings.shared_groups):
            places.setdefault(group, []).append(findings.broker.name)
    return [
        f"the shared subscription $share/{group}/{topic_filter} exists at {', '.join(names)}: "
        "the members at each of these brokers get their own copy of a message"
        for (group, topic_filter), names in sorted(places.items())
        if len(names) > 1
    ]

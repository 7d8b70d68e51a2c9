"""Planner of a fleet: what clients want at each broker, by way of `maintain`, becomes trees.

It follows three sources: what agents observe, a file of events, and round-trip times that agents measure.
All are in the planner's journal, so that a restart plans the same overlay.
"""

from __future__ import annotations

import hashlib
import logging
import math
import re
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import numpy as np

from broadloom.agents.links.planned_trees import NEVER_CARRIED, Filters, FittedTrees, Hops, target_trees
from broadloom.agents.links.relink_search import RelinkQuestion, relink
from broadloom.deployment import addresses_of
from broadloom.discovery.broker_findings import carried_parts
from broadloom.errors import InputError, StorageError, error_from_os
from broadloom.maintenance import (
    AppliedEvent,
    Change,
    EventFeed,
    Live,
    RefusedEvent,
    SequenceSet,
    event_of,
    maintain,
)
from broadloom.maintenance.changes import JOIN, LEAVE, SUBSCRIBE, ChangeRequest
from broadloom.measures import is_topic_connected
from broadloom.model import Interest, PublishedTopic, Publishers, Reason, Weights
from broadloom.mqtt.topic_filters import SHARED, is_valid_filter
from broadloom.storage import RecordJournal

if TYPE_CHECKING:
    from broadloom.deployment import Fleet
    from broadloom.plans import Plan

LOG = logging.getLogger("broadloom.planner")
JOURNAL = "planner.journal"
SNAPSHOT_BYTES = 4_000_000  # of new records, before a snapshot replaces them
LEAST_CHANGE = 0.25  # of a round-trip time, as a share; less is noise
LEAST_MS = 1.0
LEAST_SAVING = 0.01  # of a proposal, as a share of the weight
SHOWN_ROWS = 1000  # of what is not carried, and of refused events
EARTH_KM = 6371.0
KM_PER_MS = 100.0  # light in fibre, there and back
CONTROL = "control topic of broadloom"
END_BYTES = 4096  # at both ends of the file of events, which tell whether it was replaced


class FleetPlanner:
    """Planner of the trees of a fleet.

    Args:
        fleet: the fleet; its brokers are the first nodes, and `links` says what is carried.
        state: the folder of the controller's state, a journal, or None for a journal in memory.
        plan: a plan to begin with: its links, its observed publishers, and what it says of brokers that no
            agent has observed yet.
        seed: the seed of `maintain` and of proposals.

    Attributes:
        number: rises with each change of the plan, and sometimes without one; a restart begins at 0.

    Raises:
        InputError: the journal is damaged, or the plan has a broker without an address.
        StorageError: the journal cannot be read or written.

    Examples:
        >>> import broadloom as bl
        >>> from broadloom.deployment import FleetBroker
        >>> brokers = [FleetBroker(name, f"{name}.example.org") for name in ("rome", "oslo", "bern")]
        >>> planner = FleetPlanner(bl.Fleet(brokers), None)
        >>> _ = planner.observe("rome", ["news"]), planner.observe("oslo", ["news", "$SYS/#"])
        >>> sorted(planner.targets()["news",])
        [('bern', 'oslo'), ('oslo', 'rome'), ('rome', 'oslo')]
        >>> planner.not_carried()
        [{'broker': 'oslo', 'filter': '$SYS/#', 'reason': 'topic of the broker itself'}]
    """

    # The state, which `_reload` sets to that of the journal.
    _fleet_names: list[str]
    _plan_digest: str
    _publishers: list[PublishedTopic]
    _left: set[str]  # brokers that have left for good
    _addresses: dict[str, str]
    _planned: dict[str, set[str]]  # what the plan wants at each broker
    _stated: dict[str, set[str]]  # what events want
    _observed: dict[str, set[str]]  # what agents have observed
    _requested: dict[str, set[str]]  # what moving clients need
    _round_trips: dict[tuple[str, str], float]
    _is_reweighted: bool  # whether round-trip times are newer than the weights
    _seen: SequenceSet  # of events
    _quarantine: deque[dict[str, str]]
    _read_to: list[
        Any
    ]  # how far the file of events is read: bytes, and the digest of the first and last ones
    # What follows from it.
    _live: Live
    _nodes: dict[str, int]
    _rows: dict[str, set[str]]  # what links carry for each broker
    _missing: dict[str, list[dict[str, str]]]  # what they do not carry
    _targets: dict[Filters, Hops]
    _proposal: dict[str, Any] | None
    _status: dict[str, Any]

    def __init__(
        self, fleet: Fleet, state: Path | RecordJournal | None, plan: Plan | None = None, seed: int = 0
    ) -> None:
        self.number = 0
        self._fleet = fleet
        self._seed = seed
        self._journal = (
            state
            if isinstance(state, RecordJournal)
            else RecordJournal(None if state is None else Path(state) / JOURNAL)
        )
        self._parts: dict[str, tuple[tuple[str, ...], str | None]] = {}
        self._fitted = FittedTrees()
        self._degree = 0  # the most neighbours of a broker in the trees
        self._reload()
        names = sorted(fleet.brokers)
        if names != self._fleet_names:
            self._commit("fleet", {"brokers": names})
        if plan is not None:
            body = _plan_record(plan, fleet)
            if body["digest"] != self._plan_digest:
                self._commit("plan", body)

    def close(self) -> None:
        """Close the journal."""
        self._journal.close()

    # Sources.

    def observe(self, broker: str, filters: Collection[str]) -> bool:
        """Take over all topic filters that clients want at a broker; returns whether they have changed."""
        wanted = set(filters)
        known = self._observed.get(broker)
        if wanted == known:
            return False
        before = known or set()
        body = {"broker": broker, "add": sorted(wanted - before), "drop": sorted(before - wanted)}
        self._commit("observe", body)
        return True

    def request(self, broker: str, filters: Collection[str]) -> bool:
        """Take over all filters that moving clients need at a broker, besides what is observed there.

        Returns:
            Whether they have changed.
        """
        wanted = set(filters)
        before = self._requested.get(broker, set())
        if wanted == before:
            return False
        body = {"broker": broker, "add": sorted(wanted - before), "drop": sorted(before - wanted)}
        self._commit("request", body)
        return True

    def latency(self, start: str, end: str, milliseconds: float) -> bool:
        """Take over a measured round-trip time; returns whether it moved enough to matter."""
        pair = (min(start, end), max(start, end))
        if start == end or not (math.isfinite(milliseconds) and milliseconds >= 0):
            return False
        known = self._round_trips.get(pair)
        change = math.inf if known is None else abs(milliseconds - known)
        if known is not None and (change <= LEAST_CHANGE * known or change <= LEAST_MS):
            return False
        self._commit("latency", {"pair": pair, "ms": max(float(milliseconds), 0.01)})
        return True

    def event(self, line: str) -> str | None:
        """Apply an event, a line of JSON as for `broadloom maintain`; returns the reason if it is refused."""
        return self._take([line], None)[0]

    def read_events(self, path: Path) -> int:
        """Apply the new complete lines of a growing file of events, in its order; returns their number.

        An event that is refused is refused for ever: a restart does not read it again. If the file is
        replaced, it is read from its beginning, and events that were applied before are duplicates.

        Raises:
            StorageError: the file cannot be read, or the journal cannot be written.
        """
        try:
            with path.open("rb") as file:
                offset, digest = self._read_to
                if _ends_digest(file, offset) != digest:
                    offset = 0
                file.seek(offset)
                data = file.read()
                data = data[: data.rfind(b"\n") + 1]
                end = offset + len(data)
                read_to = [end, _ends_digest(file, end)]
        except FileNotFoundError:
            return 0
        except OSError as error:
            raise error_from_os(f"{path} cannot be read", error) from error
        lines = [line for line in data.decode("utf-8", "replace").split("\n") if line.strip()]
        if data:
            self._take(lines, read_to)
        return len(lines)

    def _take(self, lines: Sequence[str], read_to: list[Any] | None) -> list[str | None]:
        """Apply events and write them to the journal, with the reasons of those that are refused."""
        reasons = [self._apply_event(line) for line in lines]
        rows = list(zip(lines, reasons, strict=True))
        try:
            self._journal.append("events", {"events": rows, "read_to": read_to or self._read_to})
        except StorageError:
            self._reload()
            raise
        self._read_to = read_to or self._read_to
        for line, reason in rows:
            if reason is not None:
                LOG.warning("an event is refused: %s", reason)
                self._quarantine.append({"event": line[:200], "reason": reason})
        self._show()
        return reasons

    # Results.

    def targets(self, before: Mapping[Filters, Hops] | None = None) -> dict[Filters, Hops]:
        """The directed hops of the tree of each group of filters.

        Args:
            before: the present hops of each group, which stay where they can; None: those of the last call.

        Raises:
            StorageError: the journal cannot be written.
        """
        if self._is_reweighted:
            self._commit("reweight", {})
        if self._journal.new_bytes > SNAPSHOT_BYTES:
            self.compact()
        known = self._targets if before is None else before
        self._targets = target_trees(self._plan(), known, fitted=self._fitted)
        self._degree = _most_neighbours(self._targets.values())
        self._show()
        return dict(self._targets)

    def addresses(self) -> dict[str, str]:
        """The addresses of brokers that the fleet file does not have."""
        return {name: text for name, text in self._addresses.items() if name in self._nodes}

    def departed(self) -> set[str]:
        """The brokers that have left for good."""
        return self._left - self._nodes.keys()

    def carried_parts(self, text: str) -> tuple[str, ...]:
        """The filters that links carry for a filter of a client; can be called from another thread."""
        return self._carried(text)[0]

    def plan(self) -> Plan:
        """The present overlay, with what links carry for each broker."""
        return self._plan()

    def not_carried(self) -> list[dict[str, str]]:
        """What clients want that links do not carry: broker, filter and reason."""
        return [row for broker in sorted(self._nodes) for row in self._missing[broker]]

    def status(self) -> dict[str, Any]:
        """What an operator should see, as JSON values; can be called from another thread."""
        return self._status

    # Better plans.

    def propose(self) -> dict[str, Any] | None:
        """Link the fleet afresh; returns a proposal, and keeps it, if it is better than the present links."""
        question = self.question()
        return self.consider(question, relink(question))

    def question(self) -> RelinkQuestion:
        """What a slow search for a better plan needs; `relink` can run in another process."""
        return RelinkQuestion(self._plan(), self._fleet.links.max_degree, self._seed)

    def consider(self, question: RelinkQuestion, fresh: Plan) -> dict[str, Any] | None:
        """Keep a fresh plan as the proposal if it is better than the present links; returns the proposal."""
        self._proposal = None
        present = self._plan()
        most = question.max_degree
        edges = self._edges(fresh)
        changes = {_edge(pair) for pair in edges} ^ {_edge(pair) for pair in self._edges(present)}
        saving = 1 - fresh.total_weight / present.total_weight if present.total_weight else 0.0
        is_within = most is not None and _max_degree(present) > most >= _max_degree(fresh)
        if changes and (saving >= LEAST_SAVING or is_within) and self._connects(edges):
            self._proposal = {
                "edges": edges,
                "saving": round(saving, 4),
                "weight": round(fresh.total_weight, 3),
                "present_weight": round(present.total_weight, 3),
                "max_degree": _max_degree(fresh),
                "changed_links": len(changes),
            }
        self._show()
        return self._proposal

    def adopt(self, proposal: Mapping[str, Any] | None = None) -> str | None:
        """Move to a proposal, by default the last one; returns a note, or None if there is none."""
        chosen = proposal or self._proposal
        if chosen is None:
            return None
        edges = chosen["edges"]
        if not self._connects(edges):  # what clients want has changed since
            chosen = self.propose()
            if chosen is None:
                return None
            edges = chosen["edges"]
        self._proposal = None
        self._commit("adopt", {"edges": edges})
        return (
            f"{chosen['changed_links']} links change; the weight of all links is {chosen['weight']:g} "
            f"instead of {chosen['present_weight']:g}"
        )

    # Journal.

    def compact(self) -> None:
        """Replace the records of the journal by one snapshot, and build the overlay as a restart would."""
        body = {
            "fleet": self._fleet_names,
            "digest": self._plan_digest,
            "publishers": self._publishers,
            "nodes": sorted(self._nodes),
            "left": sorted(self._left),
            "addresses": self._addresses,
            "planned": {name: sorted(texts) for name, texts in self._planned.items()},
            "stated": {name: sorted(texts) for name, texts in self._stated.items()},
            "observed": {name: sorted(texts) for name, texts in self._observed.items()},
            "requested": {name: sorted(texts) for name, texts in self._requested.items()},
            "round_trips": [[*pair, ms] for pair, ms in self._round_trips.items()],
            "edges": self._edges(self._live.plan()),
            "seen": self._seen.ranges,
            "quarantine": list(self._quarantine),
            "read_to": self._read_to,
        }
        self._journal.replace([("snapshot", body)])
        self._apply_snapshot(body)

    def _commit(self, kind: str, body: Mapping[str, Any]) -> None:
        """Write a record, then apply it."""
        self._journal.append(kind, body)
        self._apply(kind, body)
        self._show()

    def _reload(self) -> None:
        """Set the state to that of the journal."""
        self._fleet_names = []
        self._plan_digest = ""
        self._publishers = []
        self._left = set()
        self._addresses = {}
        self._planned = {}
        self._stated = {}
        self._observed = {}
        self._requested = {}
        self._round_trips = {}
        self._seen = SequenceSet()
        self._quarantine = deque(maxlen=SHOWN_ROWS)
        self._read_to = [0, _digest(b"")]  # as of an empty file
        self._targets = {}
        self._proposal = None
        self._build([], None)
        for record in self._journal.records():
            self._apply(record.kind, record.body)
        self._show()

    def _apply(self, kind: str, body: Mapping[str, Any]) -> None:
        apply = getattr(self, f"_apply_{kind}", None)
        if apply is None:
            raise InputError(
                f"the planner's journal has a record of unknown kind {kind!r:.40}; a newer broadloom wrote it"
            )
        apply(body)

    def _apply_fleet(self, body: Mapping[str, Any]) -> None:
        """Brokers come into the fleet file, or go."""
        before, self._fleet_names = self._fleet_names, list(body["brokers"])
        for name in sorted(set(before) - set(self._fleet_names)):
            self._leave(name)
        for name in self._fleet_names:
            if name not in before:
                self._join(name)

    def _apply_plan(self, body: Mapping[str, Any]) -> None:
        self._plan_digest = body["digest"]
        self._publishers = [PublishedTopic(*row) for row in body["publishers"]]
        self._planned = {name: set(texts) for name, texts in body["rows"].items()}
        self._addresses |= body["addresses"]
        wanted = self._observed, self._stated, self._requested
        # The links of the plan connect what the plan wants.
        self._observed, self._stated, self._requested = {}, {}, {}
        self._build(sorted(self._nodes.keys() | body["rows"].keys()), body["edges"])
        self._observed, self._stated, self._requested = wanted
        for name in sorted(self._nodes):
            self._refresh(name)

    def _apply_observe(self, body: Mapping[str, Any]) -> None:
        known = self._observed.setdefault(body["broker"], set())
        known.difference_update(body["drop"])
        known.update(body["add"])
        self._refresh(body["broker"])

    def _apply_request(self, body: Mapping[str, Any]) -> None:
        known = self._requested.setdefault(body["broker"], set())
        known.difference_update(body["drop"])
        known.update(body["add"])
        self._refresh(body["broker"])

    def _apply_latency(self, body: Mapping[str, Any]) -> None:
        start, end = body["pair"]
        self._round_trips[start, end] = body["ms"]
        self._is_reweighted = True

    def _apply_reweight(self, _: Mapping[str, Any]) -> None:
        self._build(sorted(self._nodes), self._edges(self._live.plan()))

    def _apply_adopt(self, body: Mapping[str, Any]) -> None:
        self._build(sorted(self._nodes), body["edges"])

    def _apply_events(self, body: Mapping[str, Any]) -> None:
        for line, reason in body["events"]:
            if reason is None:
                self._apply_event(line)
            else:
                self._quarantine.append({"event": line[:200], "reason": reason})
        self._read_to = body["read_to"]

    def _apply_snapshot(self, body: Mapping[str, Any]) -> None:
        self._fleet_names = list(body["fleet"])
        self._plan_digest = body["digest"]
        self._publishers = [PublishedTopic(*row) for row in body["publishers"]]
        self._left = set(body["left"])
        self._addresses = dict(body["addresses"])
        self._planned = {name: set(texts) for name, texts in body["planned"].items()}
        self._stated = {name: set(texts) for name, texts in body["stated"].items()}
        self._observed = {name: set(texts) for name, texts in body["observed"].items()}
        self._requested = {name: set(texts) for name, texts in body["requested"].items()}
        self._round_trips = {(start, end): ms for start, end, ms in body["round_trips"]}
        self._seen = SequenceSet(body["seen"])
        self._quarantine = deque(body["quarantine"], maxlen=SHOWN_ROWS)
        self._read_to = list(body["read_to"])
        self._build(body["nodes"], body["edges"])

    # The overlay.

    def _build(self, names: Sequence[str], edges: Iterable[Sequence[str]] | None) -> None:
        """Begin maintenance anew with these brokers and links, if the links connect what the brokers want."""
        self._missing = {}
        self._rows = {name: self._effective(name) for name in names}
        self._nodes = {name: node for node, name in enumerate(names)}
        interest = Interest.from_lists([sorted(self._rows[name]) for name in names], node_ids=names)
        pairs = None
        if edges is not None:
            pairs = [[self._nodes[u], self._nodes[v]] for u, v in edges if {u, v} <= self._nodes.keys()]
        weights = self._weights(names)
        try:
            self._live = maintain(interest, weights, seed=self._seed, edges=pairs)
        except InputError:
            if pairs is None:
                raise
            self._live = maintain(interest, weights, seed=self._seed)
        self._is_reweighted = False

    def _connects(self, edges: Iterable[Sequence[str]]) -> bool:
        """Whether links between present brokers connect what the brokers want."""
        names = sorted(self._nodes)
        index = {name: node for node, name in enumerate(names)}
        pairs = [[index[u], index[v]] for u, v in edges if {u, v} <= index.keys()]
        interest = Interest.from_lists([sorted(self._rows[name]) for name in names], node_ids=names)
        return bool(is_topic_connected(interest, pairs))

    def _join(self, name: str) -> Change | None:
        if name in self._nodes:
            return None
        self._left.discard(name)
        at = None
        if self._live.weights_kind == "dense":
            at = {node: self._weight(name, other) for other, node in self._nodes.items()}
        self._rows[name] = self._effective(name)
        change = self._live.join(sorted(self._rows[name]), name, at)
        self._nodes[name] = change.node
        return change

    def _leave(self, name: str) -> Change | None:
        if name not in self._nodes:
            return None
        self._left.add(name)
        for known in (self._stated, self._planned, self._observed, self._requested, self._rows):
            known.pop(name, None)
        return self._live.leave(self._nodes.pop(name))

    def _refresh(self, name: str) -> Change | None:
        """Let the overlay follow what clients want at a broker."""
        if name not in self._nodes:
            return None
        wanted = self._effective(name)
        if wanted == self._rows[name]:
            return None
        self._rows[name] = wanted
        return self._live.resubscribe(self._nodes[name], sorted(wanted))

    def _wanted(self, broker: str) -> set[str]:
        """What events, moving clients, and clients or else the plan, want at a broker."""
        seen = self._observed.get(broker)
        rest = self._planned.get(broker, set()) if seen is None else seen
        return self._stated.get(broker, set()) | self._requested.get(broker, set()) | rest

    def _effective(self, broker: str) -> set[str]:
        """The filters that links carry for a broker; note what they do not carry."""
        carried = set[str]()
        self._missing[broker] = []
        for text in sorted(self._wanted(broker)):
            parts, reason = self._carried(text)
            carried.update(parts)
            if reason is not None:
                self._missing[broker].append({"broker": broker, "filter": text, "reason": reason})
        return carried

    def _carried(self, text: str) -> tuple[tuple[str, ...], str | None]:
        """The parts of a filter that links carry, and the reason why the rest is not."""
        if text not in self._parts:
            plain = re.sub(SHARED, "", text)
            parts: Sequence[str] = ()
            reason: str | None = None
            if plain.startswith("$"):
                reason = Reason.INTERNAL
            elif plain.startswith(NEVER_CARRIED):
                reason = CONTROL
            elif not plain or not is_valid_filter(plain):
                reason = Reason.BAD_FILTER
            else:
                parts, reason = carried_parts(plain, self._fleet.links.carry)
            self._parts[text] = (tuple(parts), reason)
        return self._parts[text]

    def _apply_event(self, line: str) -> str | None:
        """Apply an event, or return the reason why it is refused."""
        feed = EventFeed(cast(Live, EventOverlay(self)), self._seen)
        outcome: AppliedEvent | RefusedEvent = next(iter(feed.take([event_of(line)])))
        return outcome.reason if isinstance(outcome, RefusedEvent) else None

    def _change(self, request: ChangeRequest) -> Change | None:
        """Carry out the request of an event."""
        topics = set(cast("tuple[str, ...]", request.topics))
        if request.kind == JOIN:
            name = str(request.name)
            address = (request.columns or {}).get("address")
            if address is None and name not in self._fleet.brokers:
                raise InputError(f"broker {name!r:.60} is not in the fleet file and has no address; give one")
            if address is not None:
                self._addresses[name] = address
            self._stated[name] = topics
            return self._join(name)
        name = self._live.name_of(cast(int, request.node))
        if request.kind == LEAVE:
            return self._leave(name)
        stated = self._stated.setdefault(name, set())
        if request.kind == SUBSCRIBE:
            stated |= topics
        else:
            stated -= topics
            self._planned.get(name, set()).difference_update(topics)
        return self._refresh(name)

    def _weights(self, names: Sequence[str]) -> Weights | None:
        """Measured round-trip times as weights; None: nothing is known of any pair."""
        known = [self._known_weight(u, v) for index, u in enumerate(names) for v in names[:index]]
        if all(weight is None for weight in known):
            return None
        matrix = np.array([[self._weight(u, v) for v in names] for u in names])
        return Weights.dense(np.minimum(matrix, matrix.T), names)

    def _weight(self, u: str, v: str) -> float:
        known = self._known_weight(u, v)
        return self._typical() if known is None else known

    def _known_weight(self, u: str, v: str) -> float | None:
        """The round-trip time between two brokers in milliseconds: measured, or estimated from positions."""
        measured = self._round_trips.get((min(u, v), max(u, v)))
        if measured is not None:
            return measured
        ends = [self._fleet.brokers[name].position for name in (u, v) if name in self._fleet.brokers]
        if len(ends) < 2 or ends[0] is None or ends[1] is None:
            return None
        return max(_distance_km(ends[0], ends[1]) / KM_PER_MS, 0.1)

    def _typical(self) -> float:
        return float(np.median(list(self._round_trips.values()))) if self._round_trips else 10.0

    def _plan(self) -> Plan:
        """The present overlay as a plan, with the publishers that the fleet file asks for."""
        plan = self._live.plan()
        seen = [row for row in self._publishers if row[0] in self._nodes]
        return replace(plan, publishers=Publishers(self._fleet.links.publishers, seen))

    def _edges(self, plan: Plan) -> list[list[str]]:
        names = plan.interest.node_ids
        return sorted([names[u], names[v]] for u, v in plan.edges.tolist())

    def _show(self) -> None:
        """Prepare the status."""
        rows = self.not_carried()
        most = self._fleet.links.max_degree
        degree = max(self._live.max_degree, self._degree)
        problem = (
            f"a broker has {degree} neighbours, more than max_degree = {most}, which binds proposals only; "
            "look for one with --propose"
            if most is not None and degree > most
            else None
        )
        proposal = self._proposal
        self.number += 1
        self._status = {
            "not_carried": rows[:SHOWN_ROWS],
            "not_carried_count": len(rows),
            "quarantined": list(self._quarantine),
            "proposal": proposal and {key: value for key, value in proposal.items() if key != "edges"},
            "overlay": {"links": self._live.edge_count, "max_degree": degree, "problem": problem},
        }


class EventOverlay:
    """What a feed of events needs of a live overlay; events state what is wanted beside what is observed."""

    weights_kind = "uniform"  # positions come from measured round-trip times
    site_ids = ()

    def __init__(self, planner: FleetPlanner) -> None:
        self._planner = planner

    def named(self, name: str) -> int | None:
        """The node of a broker, or None."""
        return self._planner._nodes.get(name)

    def _execute(self, requests: Sequence[ChangeRequest]) -> list[Change | None]:
        return [self._planner._change(request) for request in requests]


def _plan_record(plan: Plan, fleet: Fleet) -> dict[str, Any]:
    """What the planner takes from a plan, as the body of a record.

    Raises:
        InputError: a broker has no address, neither in the fleet file nor in the plan.
    """
    interest = plan.interest
    names = interest.node_ids
    found = addresses_of(plan)
    unknown = [name for name in names if name not in fleet.brokers]
    for name in unknown:
        if name not in found:
            raise InputError(f"broker {name!r} of the plan is not in the fleet file; add it with its address")
    body = {
        "rows": {
            name: [interest.topic_ids[topic] for topic in interest.topics_of(node)]
            for node, name in enumerate(names)
        },
        "edges": sorted([names[u], names[v]] for u, v in plan.edges.tolist()),
        "publishers": [list(row) for row in plan.publishers.observed],
        "addresses": {name: found[name] for name in unknown},
    }
    return body | {"digest": _digest(repr(body).encode())}


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _ends_digest(file: BinaryIO, size: int) -> str:
    """Digest of both ends of the first `size` bytes of a file, which tells files apart."""
    file.seek(0)
    head = file.read(min(size, END_BYTES))
    file.seek(max(0, size - END_BYTES))
    return _digest(head + file.read(min(size, END_BYTES)))


def _max_degree(plan: Plan) -> int:
    return int(np.bincount(plan.edges.ravel(), minlength=1).max())


def _most_neighbours(trees: Iterable[Hops]) -> int:
    """The most neighbours that a broker has in some trees."""
    neighbours = defaultdict[str, set[str]](set)
    for start, end in {hop for hops in set(trees) for hop in hops}:
        neighbours[start].add(end)
        neighbours[end].add(start)
    return max(map(len, neighbours.values()), default=0)


def _edge(pair: Sequence[str]) -> tuple[str, str]:
    return min(pair), max(pair)


def _distance_km(one: tuple[float, float], other: tuple[float, float]) -> float:
    """The great-circle distance between two positions, latitude and longitude in degrees."""
    a, b, c, d = map(math.radians, (*one, *other))
    share = math.sin((c - a) / 2) ** 2 + math.cos(a) * math.cos(c) * math.sin((d - b) / 2) ** 2
    return 2 * EARTH_KM * math.asin(math.sqrt(min(share, 1.0)))

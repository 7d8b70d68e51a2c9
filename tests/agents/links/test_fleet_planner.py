"""Planner of a fleet: every wanted filter reaches all brokers by its tree, over restarts and whatever events say."""

import json
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import broadloom as bl
from broadloom.agents.links.fleet_planner import FleetPlanner
from broadloom.deployment import FleetBroker, FleetLinks
from broadloom.errors import InputError, StorageError
from broadloom.mqtt.topic_filters import common_topic, covers
from broadloom.storage import RecordJournal

NAMES = ("a", "b", "c", "d", "e")
FILTERS = ("x", "y", "w/1", "w/2", "w/#", "+/1", "w/+/3", "$SYS/#", "broadloom/a", "bad/#/filter", "$share/g/x")


def fleet(names=NAMES, **links):
    brokers = [FleetBroker(name, f"{name}.example.org") for name in names]
    return bl.Fleet(brokers, FleetLinks(**links))


def reached(hops, start):
    """The brokers that a message published at `start` reaches, by the forwarding rule, each once."""
    edges = {(min(hop), max(hop)) for hop in hops}
    got, todo = [start], [start]
    while todo:
        here = todo.pop()
        for u, v in hops:
            if u == here and start in side(edges, u, v):
                got.append(v)
                todo.append(v)
    return got


def side(edges, u, v):
    """The brokers on u's side of the edge {u, v}."""
    found, todo = {u}, [u]
    while todo:
        here = todo.pop()
        for edge in edges - {(min(u, v), max(u, v))}:
            if here in edge:
                fresh = set(edge) - found
                found |= fresh
                todo += fresh
    return found


def wanted_parts(text, carry):
    plain = text.removeprefix("$share/g/")
    if plain.startswith(("$", "broadloom/")) or plain == "bad/#/filter":
        return set()
    return {plain} if any(covers(one, plain) for one in carry) else set()


def check_targets(targets, wanted, names, carry=("#",), anywhere=True):
    """Each wanted filter is in one group; its messages reach all who want it, and nobody twice."""
    for index, one in enumerate(targets):
        for other in list(targets)[:index]:
            assert all(common_topic(u, v) is None for u in one for v in other), "groups must not overlap"
    for broker, texts in wanted.items():
        for text in {part for raw in texts for part in wanted_parts(raw, carry)}:
            takers = {
                name for name, others in wanted.items() if text in {p for t in others for p in wanted_parts(t, carry)}
            }
            group = next((filters for filters in targets if text in filters), None)
            senders = set(names) if anywhere else takers
            if group is None:
                assert senders == {broker}, (text, "has no tree")
                continue
            for start in senders:
                got = reached(targets[group], start)
                assert len(got) == len(set(got)), "a message comes twice"
                assert takers <= set(got), (text, start, got)


@settings(max_examples=60)
@given(st.data())
def test_every_wanted_filter_reaches_all_brokers_over_restarts(data):
    """Observations, events and round-trip times in any order; a restart plans the same."""
    rng = random.Random(data.draw(st.integers(0, 2**32)))
    anywhere = data.draw(st.booleans())
    carry = data.draw(st.sampled_from([("#",), ("w/#",)]))
    made = fleet(carry=carry, publishers="anywhere" if anywhere else "observed")
    journal = RecordJournal(None)
    planner = FleetPlanner(made, journal)
    observed = {name: set() for name in NAMES}
    stated = {name: set() for name in NAMES}
    seq = 0
    before = {}
    for _ in range(data.draw(st.integers(1, 25))):
        luck = rng.random()
        name = rng.choice(sorted(observed))
        texts = rng.sample(FILTERS, rng.randint(0, 4))
        if luck < 0.5:
            planner.observe(name, texts)
            observed[name] = set(texts)
        elif luck < 0.7:
            seq += rng.choice([0, 1, 2])
            kind = rng.choice(["subscribe", "unsubscribe"])
            line = json.dumps({"seq": seq, "kind": kind, "node": name, "topics": texts})
            if planner.event(line) is None:
                stated[name] = stated[name] | set(texts) if kind == "subscribe" else stated[name] - set(texts)
        elif luck < 0.75:
            seq += 1
            new = f"n{seq}"
            event = {"seq": seq, "kind": "join", "node": new, "topics": [], "address": "10.0.0.1:1883"}
            assert planner.event(json.dumps(event)) is None
            observed[new], stated[new] = set(), set()
        elif luck < 0.8 and len(observed) > 2:
            seq += 1
            assert planner.event(json.dumps({"seq": seq, "kind": "leave", "node": name})) is None
            del observed[name], stated[name]
        elif luck < 0.9:
            planner.latency(name, rng.choice(NAMES), rng.choice([0.2, 5.0, 80.0]))
        elif luck < 0.95:
            planner.compact()
        else:
            planner.propose()
            planner.adopt()
        targets = planner.targets(before)
        wanted = {name: observed[name] | {t.removeprefix("$share/g/") for t in stated[name]} for name in observed}
        check_targets(targets, wanted, observed, carry, anywhere)
        again = FleetPlanner(made, journal)
        assert again.targets(before) == targets
        assert again.status() == planner.status()
        assert again.addresses() == planner.addresses()
        assert again.departed() == planner.departed()
        before = targets

"""Message-level simulation of large fleets: delivery delay, load of links and brokers, and failures.

    python benchmarks/simulate.py [--quick]

Brokers are in 246 cities, with the round-trip times that WonderNetwork measured between them. Clients
publish at random times, at brokers that want the topic; each message travels over the tree of its topic. A
broker takes messages one after the other, and the work for each is that which `live.py` measures for
mosquitto with an agent next to it. The same messages travel over two other wirings: a star, where one broker
in the middle passes everything on, and a full mesh, where the first broker sends a copy to each other one.
"""

from __future__ import annotations

import heapq
import time
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

import broadloom as bl
from _common import DATA, FLOOR_MS, LATENCY, Section, run
from broadloom.deployment.trees import plan_trees
from broadloom.kernels.jit import kernel

SIZES = (100, 1_000, 10_000)
CITIES = 246
TOPICS_PER_BROKER = (20, 100)
SECONDS = 10.0
RATE = 0.5  # messages per second and broker
# CPU seconds of one message at a broker's machine: to arrive (mosquitto, QoS 2), and to leave over one hop
# (mosquitto and agent). Measured by the section `hop` of `live.py`.
ARRIVE, LEAVE = 23.5e-6, 28.2e-6
FAILED_SHARE = 0.01
DOWN_FROM, DOWN_SECONDS, REPAIRED_AFTER = 3.0, 30.0, 2.0


class Trees(NamedTuple):
    """The trees of all topics: neighbours of each broker in each tree, as one array.

    Attributes:
        first: for each topic, the index of its first member in `member`.
        member: the members of each topic, ascending.
        topic: the topic of each member.
        start: for each member, the index of its first neighbour in `neighbour`; one more than members.
        neighbour: the neighbours of each member, as indices of `member`.
        delay: the seconds that a message takes to each neighbour.
    """

    first: NDArray[np.int64]
    member: NDArray[np.int64]
    topic: NDArray[np.int64]
    start: NDArray[np.int64]
    neighbour: NDArray[np.int64]
    delay: NDArray[np.float64]


class Traffic(NamedTuple):
    """Messages: time, topic and the member (an index of `Trees.member`) where each is published."""

    at: NDArray[np.float64]
    origin: NDArray[np.int64]


def fleet(nodes: int, seed: int = 0) -> tuple[bl.Interest, bl.Weights]:
    """Interest and weights of a fleet, with brokers in the cities of WonderNetwork."""
    trips = bl.workload.weights(CITIES, DATA / LATENCY["wonder"], seed=seed, missing="path", floor=FLOOR_MS)
    places = np.random.default_rng(seed).integers(0, trips.node_count, nodes)
    every = np.arange(trips.node_count)
    between = np.array([trips.of(np.full(len(every), place), every) for place in every])
    interest = bl.workload.interest(nodes, nodes, "zipf", 1.0, sizes=TOPICS_PER_BROKER, seed=seed)
    return interest, bl.Weights.sites(places, inner=FLOOR_MS, between=between)


def trees_of(plan: bl.Plan) -> Trees:
    """The trees of a plan, for the simulation."""
    found = plan_trees(plan, publishers="observed")
    interest, weights = plan.interest, plan.weights
    number = {text: topic for topic, text in enumerate(interest.topic_ids)}
    nodes = interest.node_count
    sizes = np.diff(interest.node_start)
    member = np.concatenate([interest.nodes_of(topic) for topic in range(interest.topic_count)]).astype(
        np.int64
    )
    topic = np.repeat(np.arange(interest.topic_count), sizes)
    keys = topic * nodes + member
    edges = [np.array(tree.edges, np.int64).reshape(-1, 2) for tree in found]
    of_edge = np.repeat([number[tree.filters[0]] for tree in found], [len(one) for one in edges])
    u, v = np.concatenate(edges).T
    near = np.searchsorted(keys, np.concatenate((of_edge * nodes + u, of_edge * nodes + v)))
    far = np.concatenate((near[len(u) :], near[: len(u)]))
    delay = weights.of(member[near], member[far]) / 2000  # from a round trip in ms to one way in s
    order = np.argsort(near, kind="stable")
    start = np.concatenate(([0], np.cumsum(np.bincount(near, minlength=len(member)))))
    first = np.concatenate(([0], np.cumsum(sizes)))
    return Trees(first, member, topic, start, far[order], delay[order])


def traffic(trees: Trees, nodes: int, seed: int = 1) -> Traffic:
    """Messages at random times, of topics in proportion to the number of brokers that want them."""
    rng = np.random.default_rng(seed)
    count = int(nodes * RATE * SECONDS)
    return Traffic(np.sort(rng.random(count)) * SECONDS, rng.integers(0, len(trees.member), count))


TREE, STAR, MESH = 0, 1, 2
CLIENT, HUB = -1, -2  # where a message comes from or goes to, if it is not a member


@kernel(cost=100)
def travel(
    wiring: int,
    sets: tuple[Trees, Trees],
    switch: float,
    messages: Traffic,
    later_origin: NDArray[np.int64],
    place: NDArray[np.int64],
    between: NDArray[np.float64],
    hub: int,
    down: NDArray[np.float64],
    delays: NDArray[np.float32],
) -> tuple[int, int, NDArray[np.float64]]:
    """Let all messages travel, in the order of time.

    Args:
        wiring: TREE, STAR or MESH.
        sets: the trees of messages that are published before `switch`, and of the others.
        switch: when trees change, in seconds.
        messages: the messages.
        later_origin: the origin of each message in the second set of trees.
        place: the place of each broker.
        between: seconds from each place to each other one.
        hub: the broker in the middle of a star.
        down: when each broker stops, and when it is back; messages for it wait meanwhile.
        delays: filled with the delay of each delivery to a broker that is up.

    Returns:
        The number of deliveries, the sum of their hops, and the seconds of work of each broker.
    """
    free = np.zeros(len(place))
    work = np.zeros(len(place))
    # Arrivals: time, member, member that it comes from, message, hops so far.
    waiting = [(0.0, 0, 0, 0, 0)]
    waiting.pop()
    found, hops, published = 0, 0, 0
    while published < len(messages.at) or len(waiting) > 0:
        if len(waiting) == 0 or (published < len(messages.at) and messages.at[published] <= waiting[0][0]):
            number, now, before, hop = published, messages.at[published], CLIENT, 0
            member = messages.origin[number] if now < switch else later_origin[number]
            published += 1
        else:
            now, member, before, number, hop = heapq.heappop(waiting)
        trees = sets[0] if messages.at[number] < switch else sets[1]
        origin = messages.origin[number] if messages.at[number] < switch else later_origin[number]
        if origin < 0:
            continue  # its broker has left
        broker = hub if member == HUB else trees.member[member]
        is_up = not down[broker, 0] <= now < down[broker, 1]
        if not is_up and before == CLIENT:
            continue  # nobody can publish there
        done = max(now if is_up else down[broker, 1], free[broker]) + ARRIVE
        work[broker] += ARRIVE
        topic = trees.topic[origin]
        if before != CLIENT and member != HUB and is_up:
            delays[found] = done - messages.at[number]
            found += 1
            hops += hop
        if wiring == TREE:
            for i in range(trees.start[member], trees.start[member + 1]):
                if trees.neighbour[i] != before:
                    done += LEAVE
                    work[broker] += LEAVE
                    arrival = done + trees.delay[i]
                    heapq.heappush(waiting, (arrival, trees.neighbour[i], member, number, hop + 1))
        elif wiring == STAR and before == CLIENT:
            done += LEAVE
            work[broker] += LEAVE
            heapq.heappush(waiting, (done + between[place[broker], place[hub]], HUB, member, number, 1))
        elif (wiring == STAR and member == HUB) or (wiring == MESH and before == CLIENT):
            for other in range(trees.first[topic], trees.first[topic + 1]):
                if other != origin:
                    done += LEAVE
                    work[broker] += LEAVE
                    arrival = done + between[place[broker], place[trees.member[other]]]
                    heapq.heappush(waiting, (arrival, other, member, number, hop + 1))
        free[broker] = done
    return found, hops, work


def slots(trees: Trees, topic: NDArray[np.int64], broker: NDArray[np.int64], nodes: int) -> NDArray[np.int64]:
    """The members that are these brokers in the trees of these topics; -1: there is none."""
    keys = trees.topic * nodes + trees.member
    wanted = topic * nodes + broker
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[at] == wanted, at, -1)


class Simulation:
    """A fleet with its plan, its messages, and what all wirings share."""

    def __init__(self, nodes: int) -> None:
        self.interest, weights = fleet(nodes)
        self.plan = bl.link(self.interest, weights)
        self.trees = trees_of(self.plan)
        self.nodes = nodes
        self.messages = traffic(self.trees, nodes)
        self.place = weights.site.astype(np.int64)
        self.between = weights.table / 2000 + np.eye(len(weights.table)) * FLOOR_MS / 2000
        self.hub = int(np.argmin(self.between[self.place].mean(axis=0)[self.place]))

    def up(self) -> NDArray[np.float64]:
        """Nobody is down."""
        return np.full((self.nodes, 2), np.inf)

    def run(
        self, wiring: int, down: NDArray[np.float64], later: Trees | None = None, switch: float = np.inf
    ) -> tuple[NDArray[np.float32], float, NDArray[np.float64]]:
        """The delays of all deliveries in seconds, the mean of their hops, and the work of each broker."""
        used = self.trees if later is None else later
        origin = self.messages.origin
        later_origin = slots(used, self.trees.topic[origin], self.trees.member[origin], self.nodes)
        sizes = np.diff(self.trees.first)[self.trees.topic[origin]]
        delays = np.empty(int((sizes - 1).sum()), np.float32)
        found, hops, work = travel(
            wiring,
            (self.trees, used),
            switch,
            self.messages,
            later_origin,
            self.place,
            self.between,
            self.hub,
            down,
            delays,
        )
        return delays[:found], hops / max(1, found), work

    def busiest_link(self) -> float:
        """Messages per second over the busiest link of the trees: each uses all links of its tree once."""
        trees = self.trees
        sent = np.bincount(trees.topic[self.messages.origin], minlength=len(trees.first) - 1)
        near = np.repeat(np.arange(len(trees.member)), np.diff(trees.start))
        ends = np.sort(trees.member[np.stack((near, trees.neighbour))], axis=0)
        load = sent[trees.topic[near]] / 2  # each link of a tree is listed at both its ends
        return float(
            np.bincount(np.unique(ends[0] * self.nodes + ends[1], return_inverse=True)[1], load).max()
            / SECONDS
        )


def wirings(quick: bool) -> Section:
    """Delay and load over the planned trees, a star and a full mesh."""
    section = Section("Messages over the planned trees, over a star and over a full mesh, simulated")
    for nodes in SIZES[:1] if quick else SIZES:
        one = Simulation(nodes)
        degree = np.bincount(one.plan.edges.ravel(), minlength=nodes)
        links = {TREE: (len(one.plan.edges), int(degree.max())), STAR: (nodes - 1, nodes - 1)}
        links[MESH] = (nodes * (nodes - 1) // 2, nodes - 1)
        for wiring, name in ((TREE, "planned trees"), (STAR, "star"), (MESH, "full mesh")):
            started = time.process_time()
            delays, hops, work = one.run(wiring, one.up())
            half, most, last = np.percentile(delays, (50, 99, 100)) * 1000
            section.rows.append(
                {
                    "brokers": nodes,
                    "wiring": name,
                    "links": links[wiring][0],
                    "most links of a broker": links[wiring][1],
                    "messages per s": nodes * RATE,
                    "deliveries per s": len(delays) / SECONDS,
                    "p50 ms": float(half),
                    "p99 ms": float(most),
                    "largest ms": float(last),
                    "hops": hops,
                    "cores of the busiest broker": float(work.max() / SECONDS),
                    "messages per s of the busiest link": one.busiest_link() if wiring == TREE else None,
                    "CPU s": time.process_time() - started,
                }
            )
    return section


def failures(quick: bool) -> Section:
    """One broker in a hundred stops for half a minute: who waits, with and without new trees."""
    section = Section(f"{FAILED_SHARE:.0%} of the brokers stop for {DOWN_SECONDS:g} s, simulated")
    for nodes in SIZES[:1] if quick else SIZES:
        one = Simulation(nodes)
        failed = np.random.default_rng(2).choice(nodes, max(1, int(nodes * FAILED_SHARE)), replace=False)
        down = one.up()
        down[failed] = DOWN_FROM, DOWN_FROM + DOWN_SECONDS
        started = time.process_time()
        live = bl.maintain(one.plan)
        for broker in failed.tolist():
            live.leave(broker)
        repair = time.process_time() - started
        left = live.plan()
        numbers = np.array([one.interest.node_ids.index(name) for name in left.interest.node_ids])
        later = trees_of(left)
        later = later._replace(member=numbers[later.member])
        for name, arguments in (
            ("none fails", (one.up(),)),
            ("trees stay", (down,)),
            (f"new trees after {REPAIRED_AFTER:g} s", (down, later, DOWN_FROM + REPAIRED_AFTER)),
        ):
            delays, _, _ = one.run(TREE, *arguments)
            half, most, last = np.percentile(delays, (50, 99, 100)) * 1000
            section.rows.append(
                {
                    "brokers": nodes,
                    "case": name,
                    "deliveries": len(delays),
                    "later than 1 s": int((delays > 1).sum()),
                    "share": float((delays > 1).mean()),
                    "p50 ms": float(half),
                    "p99 ms": float(most),
                    "largest s": float(last / 1000),
                    "CPU s of repairs": repair if len(arguments) > 1 and arguments[1] is later else None,
                }
            )
    return section


if __name__ == "__main__":
    run("simulate", {"wirings": wirings, "failures": failures})

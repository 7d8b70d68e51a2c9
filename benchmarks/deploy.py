"""Deployment benchmark: real brokers on one machine, our trees and alternative wirings.

    python benchmarks/deploy.py                      # everything, about twelve minutes
    python benchmarks/deploy.py --only wirings
    python benchmarks/deploy.py --only rabbitmq      # four nodes of RabbitMQ, three times; five minutes
    python benchmarks/deploy.py --only nats          # and BROADLOOM_NATS_SERVER, if it is set

Messages and bytes on links are counted in the brokers' logs. Delays are sums of the plan's latencies (round
trips between cloud regions, in ms) on the messages' paths: loopback has none to measure.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import broadloom as bl
from _common import Section, run
from broadloom.deployment import (
    Deployment,
    Publication,
    SampleMessage,
    Tree,
    Wiring,
    call_api,
    export,
    fleet_settings,
    plan_trees,
    roll_out,
    sample_messages,
    target_named,
    wire,
)
from broadloom.deployment.rehearsal import (
    compare,
    rehearse,
    rehearse_change,
    rehearse_live_change,
    rehearse_rabbitmq,
)
from broadloom.deployment.rehearsal.delivery_counts import DeliveryTally, LabClients
from broadloom.deployment.rehearsal.mosquitto_lab import require_mosquitto
from broadloom.deployment.rehearsal.rehearsals import (
    OURS,
    RestartSpans,
    change_under_load,
    subscriptions,
)
from broadloom.deployment.rollout import common
from broadloom.deployment.wiring import delays

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from nats_sites import NatsClient, NatsLoad, nats_fleet, running_nats
from operator_sites import fleet_of, running_sites

EACH = 10
COUNTS = ("missing", "duplicates", "unexpected", "uninterested")


def build(popularity: str, quick: bool, algorithm: str = "broadloom", seed: int = 0) -> bl.Plan:
    """30 brokers in cloud regions and 60 topics, 3 to 8 of them at each broker."""
    nodes, topics = (8, 12) if quick else (30, 60)
    interest = bl.workload.interest(
        nodes=nodes, topics=topics, popularity=popularity, alpha=1.0, sizes=(3, 8), seed=seed
    )
    return bl.link(interest, bl.workload.weights(nodes=nodes, kind="regions", seed=seed), algorithm)


def wired(plan: bl.Plan) -> Wiring:
    """The plan's trees as links."""
    return wire(plan, plan_trees(plan, publishers="observed"), publishers="observed")


def version() -> str:
    """The version of mosquitto."""
    done = subprocess.run([require_mosquitto(), "-h"], capture_output=True, text=True)
    return done.stdout.splitlines()[0]


def wirings(quick: bool) -> Section:
    """The same traffic on our plan, a full mesh with interest, one global tree and a hub."""
    section = Section(f"The same traffic on five wirings, {version()}")
    for popularity in ("unif", "zipf"):
        plan = build(popularity, quick)
        wiring = wired(plan)
        messages = sample_messages(wiring, EACH)
        outcome = rehearse(wiring, messages)
        rows = compare(plan, (wiring, outcome), (), messages)
        for row in rows:
            section.rows.append({"popularity": popularity, "brokers": plan.interest.node_count} | row)
        ours, others = rows[0], rows[1:]
        assert ours["wiring"] == OURS
        for name in COUNTS:
            section.claim(f"{popularity}: {name} on our plan", ours[name], at_most=0)
        off = sum(abs(link["messages"] - link["planned"]) for link in outcome.links)
        section.claim(f"{popularity}: messages on links that are not the plan's", off, at_most=0)
        fewest = min(row["messages_on_links"] for row in others)
        ratio = ours["messages_on_links"] / fewest
        section.claim(f"{popularity}: messages on links over the best other's", ratio, at_most=1)
    return section


def failures(quick: bool) -> Section:
    """Cut links and killed brokers: the deliveries that are late or lost."""
    section = Section(f"A link cut or a broker killed, one after the other, {version()}")
    wiring = wired(build("unif", quick))
    for row in rehearse(wiring, sample_messages(wiring), kill=3).failures:
        section.rows.append(dict(row))
        what = f"{row['killed']} {row['name']}"
        off = abs(row["missing_while_down"] - row["predicted"])
        section.claim(f"{what}: held up, beside the prediction", off, at_most=0)
        section.claim(f"{what}: lost for good", row["lost"], at_most=0)
    return section


def changes(quick: bool) -> Section:
    """One plan becomes another under load, with and without sessions that queue meanwhile."""
    section = Section(f"From the plan of grmaw to that of gm, 300 messages per second, {version()}")
    for seed in range(1 if quick else 2):
        old, new = (wired(build("unif", quick, algorithm, seed)) for algorithm in ("grmaw", "gm"))
        for queued, at_once in ((True, False), (False, False), (True, True), (False, True)):
            counts = rehearse_change(old, new, queued=queued, at_once=at_once)
            after = counts.pop("afterwards")
            shared = len({link[:2] for link in old.links} & {link[:2] for link in new.links})
            links = {"links before": len(old.links), "links after": len(new.links), "links kept": shared}
            section.rows.append({"seed": seed, "queued": queued, "at once": at_once} | links | counts)
            wrong = after["missing"] + after["duplicates"] + after["unexpected"]
            section.claim(
                f"seed {seed}, queued {queued}, at once {at_once}: wrong afterwards", wrong, at_most=0
            )
    return section


def applied(old: bl.Plan, new: bl.Plan, members: str, rate: float) -> tuple[dict[str, Any], dict[str, Any]]:
    """A change by `deploy apply` on running brokers under load, and its rehearsal."""
    target = target_named("mosquitto")
    with tempfile.TemporaryDirectory(prefix="broadloom-apply-") as folder:
        with running_sites(Path(folder), members) as sites:
            fleet = fleet_of(sites)
            sides = []
            for plan in (old, new):
                settings = fleet_settings(fleet, plan)
                wiring = wired(plan)
                sides.append(Deployment(wiring, settings, export(wiring, target, settings)))
            before, after = sides
            none = Deployment(replace(before.wiring, links=()), before.settings, {})
            none = none._replace(files=target.files(none.wiring, none.settings))
            journal = Path(folder) / "fleet.apply"
            roll_out(none, before, target, fleet, journal)
            stable = common(before.wiring, after.wiring)
            tally = DeliveryTally(stable)
            with LabClients({name: site.port for name, site in sites.items()}, tally.receive) as clients:
                clients.subscribe(subscriptions(stable))
                spans = RestartSpans()
                work = partial(roll_out, before, after, target, fleet, journal, report=spans)
                real = change_under_load(clients, tally, rate, [work], spans)
        return real, rehearse_change(before.wiring, after.wiring, rate)


def apply(quick: bool) -> Section:
    """A change of five brokers by `deploy apply`: one joins, one leaves, trees move."""
    section = Section(f"deploy apply: one of five brokers joins, one leaves, trees move, {version()}")
    for seed in range(1 if quick else 3):
        plans = []
        for members in ("abcd", "bcde"):
            interest = bl.workload.interest(nodes=5, topics=8, popularity="unif", sizes=(3, 5), seed=seed)
            lists = [[interest.topic_ids[topic] for topic in interest.topics_of(node)] for node in range(5)]
            chosen = bl.Interest.from_lists(
                [lists["abcde".index(name)] for name in members], node_ids=list(members)
            )
            weights = bl.workload.weights(nodes=4, kind="planar", seed=seed + ord(members[0]))
            plans.append(bl.link(chosen, weights, "gm"))
        for _ in range(1 if quick else 5):
            runs = applied(*plans, "abcde", 300.0)
            for what, counts in zip(("apply", "rehearsal"), runs, strict=True):
                after = counts.pop("afterwards")
                wrong = after["missing"] + after["duplicates"] + after["unexpected"]
                row = {"seed": seed, "what": what} | counts | {"wrong afterwards": wrong}
                section.rows.append({name.replace("_", " "): value for name, value in row.items()})
    for what in ("apply", "rehearsal"):
        rows = [row for row in section.rows if row["what"] == what]
        for name in ("lost", "doubled otherwise", "wrong afterwards"):
            section.claim(f"{what}: {name}", sum(row[name] for row in rows), at_most=0)
        share = max(row["doubled"] / row["in flight"] for row in rows)
        section.claim(
            f"{what}: share of deliveries in flight at a restart that are doubled", share, at_most=1
        )
    for name in () if quick else ("in flight", "doubled"):
        totals = Counter[tuple[int, str]]()
        for row in section.rows:
            totals[row["seed"], row["what"]] += row[name]
        for seed in sorted({seed for seed, _ in totals}):
            smaller, larger = sorted(totals[seed, what] for what in ("apply", "rehearsal"))
            what = f"seed {seed}: {name}, apply and rehearsal, the larger over the smaller"
            section.claim(what, larger / max(smaller, 1), at_most=2)
    section.rows = summed(section.rows)
    return section


def summed(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The runs of each seed, by apply and as rehearsals, in one row each."""
    found = []
    for seed, what in dict.fromkeys((row["seed"], row["what"]) for row in rows):
        runs = [row for row in rows if (row["seed"], row["what"]) == (seed, what)]
        names = ("expected", "lost", "in flight", "doubled", "doubled otherwise", "wrong afterwards")
        found.append(
            {"seed": seed, "what": what, "runs": len(runs)}
            | {name: sum(run[name] for run in runs) for name in names}
            | {
                "doubled per run": ", ".join(str(run["doubled"]) for run in runs),
                "most seconds down": max(run["most seconds down"] for run in runs),
                "seconds per run": sum(run["seconds"] for run in runs) / len(runs),
            }
        )
    return found


def rabbitmq(quick: bool) -> Section:
    """The same on four nodes of RabbitMQ: a rehearsal, and a live change under load."""
    section = Section("Four nodes of RabbitMQ: every message once, then the plan of trmaw becomes that of gm")
    nodes, topics = (2, 4) if quick else (4, 12)
    interest = bl.workload.interest(nodes=nodes, topics=topics, popularity="unif", sizes=(3, 6), seed=0)
    weights = bl.workload.weights(nodes=nodes, kind="regions", seed=0)
    old, new = (wired(bl.link(interest, weights, algorithm)) for algorithm in ("trmaw", "gm"))
    record = rehearse_rabbitmq(old, sample_messages(old, 5 * EACH)).record()
    counts = ("published", "expected", *COUNTS, "messages_on_links")
    planned = sum(link["planned"] for link in record["links"])
    row = {"what": "rehearsal", "brokers": nodes, "topics": topics, "links": len(old.links)}
    section.rows.append(row | {name: record[name] for name in counts} | {"planned on links": planned})
    for name in COUNTS:
        section.claim(f"{name} on our plan", record[name], at_most=0)
    off = sum(abs(link["messages"] - link["planned"]) for link in record["links"])
    section.claim("messages on links that are not the plan's", off, at_most=0)
    parts = [_part(interest, weights, keep) for keep in ((0, 1, 2), (1, 2, 3))] if not quick else [old, new]
    for what, one, two in (("live change", old, new), ("join and leave", *parts)):
        change = rehearse_live_change(one, two)
        after = change.pop("afterwards")
        section.rows.append(row | {"what": what, "links": len(two.links)} | change)
        section.claim(f"{what}: lost", change["lost"], at_most=0)
        section.claim(f"{what}: doubled", change["doubled"], at_most=0)
        wrong = after["missing"] + after["duplicates"] + after["unexpected"]
        section.claim(f"{what}: wrong afterwards", wrong, at_most=0)
    return section


def _part(interest: bl.Interest, weights: bl.Weights, keep: tuple[int, ...]) -> Wiring:
    """The links of a plan for some of the brokers."""
    lists = [[interest.topic_ids[topic] for topic in interest.topics_of(node)] for node in keep]
    chosen = bl.Interest.from_lists(lists, node_ids=[interest.node_ids[node] for node in keep])
    matrix = weights.matrix()[np.ix_(keep, keep)]
    return wired(bl.link(chosen, bl.Weights.dense(matrix), "gm"))


def nats(quick: bool) -> Section:
    """A change of five NATS brokers by `deploy apply`: one joins, one leaves, the tree moves."""
    section = Section("deploy apply on NATS: one of five brokers joins, one leaves, the tree moves")
    given = os.environ.get("BROADLOOM_NATS_SERVER")
    for program, account in ((given, "APP"), (given, None), (shutil.which("nats-server"), None)):
        for seed in range((1 if quick else 3) if program else 0):
            row = _nats_change(program or "", seed, account)
            section.rows.append(row)
            what = f"NATS {row['version']}{', own account' if account else ''}, seed {seed}"
            section.claim(f"{what}: doubled", row["doubled"], at_most=0)
            section.claim(f"{what}: wrong afterwards", row["wrong afterwards"], at_most=0)
            if account:
                section.claim(f"{what}: lost", row["lost"], at_most=0)
    return section


def _nats_change(program: str, seed: int, account: str | None) -> dict[str, Any]:
    """The counts of one change under load."""
    target = target_named("nats")
    with tempfile.TemporaryDirectory(prefix="broadloom-nats-") as folder:  # noqa: SIM117
        with running_nats(program, Path(folder), "abcde", account=account) as sites:
            fleet = nats_fleet(sites)
            sides = []
            for members in ("abcd", "bcde"):
                interest = bl.Interest.from_lists([["x", "y", "z"]] * 4, node_ids=list(members))
                weights = bl.workload.weights(nodes=4, kind="planar", seed=seed + ord(members[0]))
                plan = bl.link(interest, weights, "grmaw")
                settings = fleet_settings(fleet, plan)
                wiring = target.adapt(wired(plan))
                sides.append(Deployment(wiring, settings, export(wiring, target, settings)))
            before, after = sides
            none = Deployment(replace(before.wiring, links=()), before.settings, {})
            journal = Path(folder) / "fleet.apply"
            roll_out(none._replace(files=target.files(*none[:2])), before, target, fleet, journal)
            clients = {name: NatsClient(sites[name], "xyz") for name in "bcd"}
            try:
                with NatsLoad(clients, 300.0) as load:
                    start = time.monotonic()
                    done = roll_out(before, after, target, fleet, journal)
                    seconds = time.monotonic() - start
                with NatsLoad(clients, 300.0) as calm:
                    pass
            finally:
                for client in clients.values():
                    client.close()
            version = call_api(fleet.brokers["b"], "GET", "/varz")["version"]
    counts = calm.counts()
    return {
        "version": version,
        "own account": account is not None,
        "seed": seed,
        "restarts": len(set(done["restarts"]) & set("bcd")),
        **load.counts(),
        "seconds": seconds,
        "seconds away": max(client.away for client in clients.values()),
        "wrong afterwards": counts["lost"] + counts["doubled"],
    }


def loads(trees: list[Tree]) -> np.ndarray:
    """The load of each link."""
    load: dict[tuple[int, int], float] = {}
    for tree in trees:
        for edge in tree.edges:
            load[edge] = load.get(edge, 0.0) + tree.rate
    return np.array(list(load.values()))


def trees(quick: bool) -> Section:
    """Trees of least latency and of least weight, with and without balanced loads."""
    section = Section("Trees over a low-degree plan: delay, weight, and the load of links")
    nodes = 20 if quick else 100
    interest = bl.workload.interest(nodes=nodes, topics=60, popularity="unif", sizes=(10, 20), seed=0)
    plan = bl.link(interest, bl.workload.weights(nodes=nodes, kind="regions", seed=0), "low-oda")
    rng = np.random.default_rng(0)
    sent = [
        Publication(int(rng.choice(interest.nodes_of(t))), topic, float(rng.integers(1, 1000)))
        for t, topic in enumerate(interest.topic_ids)
    ]
    for least in ("latency", "weight"):
        for slack in (0.0, 0.1, 0.5):
            chosen = plan_trees(plan, sent, least, slack, "observed")
            section.rows.append({"least": least, "slack": slack} | _tree_row(plan, chosen, sent))
    return section


def _tree_row(plan: bl.Plan, chosen: list[Tree], sent: list[Publication]) -> dict[str, Any]:
    """Delay from the one publisher of each topic, weight, and loads."""
    wiring = wire(plan, chosen, sent, "observed")
    names = plan.interest.node_ids
    delay = delays(wiring, [SampleMessage(names[one.broker], one.topic) for one in sent], plan)
    edges = np.array([edge for tree in chosen for edge in tree.edges])
    load = loads(chosen)
    return {
        "mean delay": delay["mean_delay"],
        "worst delay": delay["max_delay"],
        "weight of all trees": float(plan.weights.of(edges[:, 0], edges[:, 1]).sum()),
        "busiest link": float(load.max()),
        "standard deviation of loads": float(load.std()),
    }


SECTIONS = {
    "wirings": wirings,
    "failures": failures,
    "changes": changes,
    "apply": apply,
    "trees": trees,
    "rabbitmq": rabbitmq,
    "nats": nats,
}

if __name__ == "__main__":
    run("deploy", SECTIONS)

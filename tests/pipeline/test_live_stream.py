"""Links on real mosquitto brokers follow a stream of Spark: events in files, versions of the plan, links."""

import asyncio
import time

import pytest
from test_stream import drop

import broadloom as bl
from broadloom.agents.links.link_agent import LinkAgent
from broadloom.agents.links.link_service import LinkRun, settings_endpoints
from broadloom.agents.links.plan_sources import PlanVersions
from broadloom.deployment import Settings, Wiring
from broadloom.deployment.rehearsal.mosquitto_lab import HOST, MosquittoLab
from broadloom.mqtt.endpoint import Endpoint
from broadloom.pipeline import maintain_on_spark
from mqtt_load import Load

pytestmark = [pytest.mark.spark, pytest.mark.needs("mosquitto")]


async def until(done, seconds=60.0):
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, "waited too long"
        await asyncio.sleep(0.01)


def edges_of(plan):
    ids = plan.interest.node_ids
    return {tuple(sorted(ids[end] for end in edge)) for edge in plan.edges.tolist()}


def test_links_follow_a_stream_of_spark_under_load(spark, tmp_path):
    """Brokers leave, return and subscribe, one has no address: no message is lost or duplicated."""
    out, incoming = tmp_path / "out", tmp_path / "in"

    async def scenario(ids):
        a, b, c, d = ids
        wants = {a: {"x", "y"}, b: {"x"}, c: {"x", "y", "z"}, d: {"y", "z"}}
        interest = bl.Interest.from_lists([sorted(wants[one]) for one in ids], node_ids=ids)
        plan = bl.link(interest, algorithm="low-oda")
        agent = LinkAgent(settings_endpoints(Settings(f"{HOST}:{{broker}}", tls=False)), tmp_path / "state")
        run, load = (
            LinkRun(agent, PlanVersions(out, plan), bl.Publishers("observed")),  # no links but the plan's
            Load({one: Endpoint(HOST, int(one)) for one in ids}, wants),
        )
        await agent.start()
        following = asyncio.create_task(run.follow())
        await until(lambda: agent.links and agent.is_up())
        await load.start()
        load.run(200)

        async def send_event(seq, kind, node, topics=None):
            """Write a file for the stream; return the newest version when the links have followed it."""
            drop(incoming, str(seq), [{"seq": seq, "kind": kind, "node": node, "topics": topics}])
            seen = run.plans
            made = await asyncio.to_thread(
                maintain_on_spark,
                lambda: bl.maintain(interest, edges=plan.edges),
                incoming,
                out,
                spark=spark,
                once=True,
            )
            newest = bl.Plan.load(out / "versions" / f"{made['version']:012d}")
            await until(lambda: run.plans > seen and (run.refused or set(agent.links) == edges_of(newest)))
            await agent.settled()
            return newest

        await load.move_off(c)
        assert c not in (await send_event(1, "leave", c)).interest.node_ids
        await send_event(2, "join", c, sorted(wants[c]))
        await load.move_to(c, ["x", "y", "z"])
        await send_event(3, "subscribe", b, ["y", "z"])
        await load.move_to(b, ["y", "z"])
        before = set(agent.links)
        await send_event(4, "join", "no address", ["x"])
        assert (run.refused, agent.counts["plans_refused"], set(agent.links)) == (True, 1, before)
        await send_event(5, "leave", "no address")
        assert not run.refused
        await load.pause()
        counts = await load.settle(60)
        run.stop()
        await following
        await agent.stop()
        await load.stop()
        return counts

    with MosquittoLab(Wiring(tuple("abcd"), {}, {}, ())) as lab:
        counts = asyncio.run(scenario([str(port) for port in lab.ports.values()]))
    assert (counts["lost"], counts["doubled"]) == (0, 0)
    assert counts["due"] > 0

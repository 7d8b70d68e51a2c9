"""What a broker loses when it is killed: the agent of the broker says so, on real mosquitto."""

import asyncio
import logging
import os
import signal

import pytest

from broadloom.agents.links.route_orders import AgentOrders, Epoch, Route
from broadloom.agents.links.site_agent import SiteAgent
from broadloom.agents.links.stamps import FleetKey
from broadloom.mqtt.endpoint import Endpoint
from fleet_lab import HOST, fleet_lab
from live_lab import until

pytestmark = [pytest.mark.needs("mosquitto"), pytest.mark.xdist_group("mosquitto")]

ROUTES = {1: Route(1, ("x",), frozenset({("rome", "oslo"), ("oslo", "rome")}), since=1)}


def test_a_killed_broker_is_reported_with_the_number_of_its_sessions(tmp_path, caplog):
    """One that ends as told to, and one that is silent for some time, have lost nothing."""
    caplog.set_level(logging.ERROR, "broadloom")

    async def scenario(lab):
        rome = lab.brokers["rome"]

        def endpoint(broker, _):
            return Endpoint(HOST, lab.brokers[broker].port, keep_alive=1)

        agent = SiteAgent("rome", endpoint, tmp_path / "state", FleetKey("only for tests, no secret"))
        await agent.start()
        agent.apply(AgentOrders(Epoch(1, "c"), 1, 1, routes=ROUTES))
        control = agent._control.session

        async def comes_back():
            await until(lambda: not control.up.is_set(), "the connection is lost")
            if rome.process.poll() is not None:
                rome.start()
            os.kill(rome.process.pid, signal.SIGCONT)
            await until(control.up.is_set, "the agent is connected again")
            await until(lambda: agent.report().hops["oslo"].near_up, "the hop is back")
            return agent.counts["broker_crashes"], agent.counts["sessions_rolled_back"]

        await until(lambda: agent.report().published == 1, "the orders are carried out")
        rome.stop()
        assert await comes_back() == (0, 0)
        os.kill(rome.process.pid, signal.SIGSTOP)
        assert await comes_back() == (0, 0)
        for count in (1, 2):
            rome.process.kill()
            rome.process.wait()
            assert await comes_back() == (count, 2 * count)
        assert agent.report().problems[-1] == (
            "broker 'rome' was killed or has crashed (crash 2 since its agent started) and is back with the "
            "state that it saved last: 2 sessions of hops there can have lost messages, or bring some a "
            "second time"
        )
        await agent.stop()

    with fleet_lab(tmp_path, rome="autosave_interval 1\nautosave_on_changes true\n", oslo="") as lab:
        asyncio.run(scenario(lab))


def test_a_broker_that_is_away_at_the_start_is_a_problem_until_it_answers(tmp_path, monkeypatch):
    monkeypatch.setattr("broadloom.agents.links.site_agent.START_SECONDS", 0.2)

    async def scenario(lab):
        rome = lab.brokers["rome"]
        rome.stop()
        endpoint = Endpoint(HOST, rome.port, keep_alive=1)
        agent = SiteAgent(
            "rome", lambda *_: endpoint, tmp_path / "state", FleetKey("only for tests, no secret")
        )
        starting = asyncio.create_task(agent.start())
        await until(lambda: agent.counts["problems"], "the problem is told")
        assert "waiting for it" in agent.report().problems[0]
        assert len(agent.report().problem_times) == 1
        monkeypatch.undo()
        rome.start()
        await starting
        assert agent.report().problems == agent.report().problem_times == ()
        await agent.stop()

    with fleet_lab(tmp_path, rome="") as lab:
        asyncio.run(scenario(lab))


def test_a_killed_broker_that_remembers_an_earlier_agent_does_not_end_the_present_one(tmp_path, caplog):
    """The broker has saved its retained messages only while the earlier agent served it."""
    caplog.set_level(logging.ERROR, "broadloom")

    async def scenario(lab):
        rome = lab.brokers["rome"]

        def new_agent():
            return SiteAgent(
                "rome",
                lambda broker, _: Endpoint(HOST, lab.brokers[broker].port),
                tmp_path / "state",
                FleetKey("only for tests, no secret"),
            )

        earlier = new_agent()
        await earlier.start()
        await asyncio.to_thread(rome.save, "online")
        await earlier.stop()
        agent = new_agent()
        await agent.start()
        rome.process.kill()
        rome.process.wait()
        rome.start()
        await until(lambda: agent.counts["broker_crashes"] or agent.failed.done(), "the agent is back")
        assert not agent.failed.done()
        await until(agent._control.session.up.is_set, "the agent serves on")
        await agent.stop()

    with fleet_lab(tmp_path, rome="") as lab:
        asyncio.run(scenario(lab))

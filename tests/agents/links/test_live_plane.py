"""The live plane as processes on real mosquitto: nothing is lost or doubled while parts die."""

import asyncio
import logging
import shutil
import signal

import pytest

from live_lab import Churn, LiveLab, LiveLoad, until

pytestmark = [pytest.mark.needs("mosquitto"), pytest.mark.xdist_group("mosquitto")]

TOPICS = [f"t/{group}/{item}" for group in range(2) for item in range(2)]


@pytest.fixture(autouse=True)
def _no_warnings_of_lost_connections(caplog):
    caplog.set_level(logging.ERROR, "broadloom")


def test_no_message_is_lost_or_doubled_while_agents_controller_and_brokers_die(tmp_path):
    """Overlapping filters, QoS 1 and 2, no ids; subscriptions change meanwhile."""

    async def scenario():
        lab = LiveLab(tmp_path, ["rome", "oslo", "lima"])
        load = LiveLoad(lab.ports, TOPICS)
        churn = Churn(load, 2, 2, seed=1)
        try:
            await lab.start()
            await load.start()
            await churn.fill(0.7)
            await load.subscribe("rome", 1, "t/0/+")
            await load.reach_all()
            load.run(100)
            for process in (lab.agents["rome"], lab.controller, lab.agents["oslo"]):
                await churn.change()
                process.end(signal.SIGKILL)
                await churn.change()
                process.start()
                before = load.arrivals["all"]
                await until(lambda before=before: load.arrivals["all"] > before + 100, "messages arrive")
            lab.brokers["lima"].end(signal.SIGTERM)
            change = asyncio.create_task(churn.change())  # it can need the broker that is away
            lab.brokers["lima"].start()
            await change
            await lab.settled()
            await load.pause()
            await load.reach_all()
            counts = await load.settle()
            assert (counts["lost"], counts["doubled"]) == (0, 0)
            assert load.arrivals["sessions lost"] == 0
            status = await lab.settled()
            assert lab.counts(status)["copies"] > 0  # filters did overlap
            assert lab.tracebacks() == []
        finally:
            await lab.stop()
            await asyncio.gather(*(client.stop() for client in load.clients.values()))

    asyncio.run(scenario())


def test_a_controller_on_an_old_copy_of_its_state_changes_nothing(tmp_path):
    """Agents that know newer orders make it refuse itself, and its status says so."""

    async def scenario():
        lab = LiveLab(tmp_path, ["rome", "oslo"])
        load = LiveLoad(lab.ports, TOPICS)
        try:
            await lab.start()
            await load.start()
            for broker in lab.names:
                await load.subscribe(broker, 0, TOPICS[0])
            await load.reach_all()
            lab.controller.end(signal.SIGKILL)
            shutil.copytree(tmp_path / "state", tmp_path / "old")
            lab.controller.start()
            for broker in lab.names:
                await load.subscribe(broker, 0, TOPICS[1])
            await load.reach_all()
            version = (await lab.settled())["version"]
            lab.controller.end(signal.SIGKILL)
            lab.controller.command[lab.controller.command.index("--state") + 1] = str(tmp_path / "old")
            lab.controller.start()
            found = {}

            def is_refused():
                found.update(lab.status() or {})
                return found.get("refused")

            await until(is_refused, "the controller says that it is refused")
            assert any("old copy" in text or "obeys" in text for text in found["problems"]), found["problems"]
            assert found["version"] != version
            await load.reach_all()
            counts = await load.settle()
            assert (counts["lost"], counts["doubled"]) == (0, 0)
        finally:
            await lab.stop()
            await asyncio.gather(*(client.stop() for client in load.clients.values()))

    asyncio.run(scenario())

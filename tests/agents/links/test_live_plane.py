"""The live plane as processes on real mosquitto: an old copy of the controller's state does no harm."""

import asyncio
import logging
import shutil
import signal

import pytest

from live_lab import LiveLab, LiveLoad, until

pytestmark = [pytest.mark.needs("mosquitto"), pytest.mark.xdist_group("mosquitto")]

TOPICS = [f"t/{group}/{item}" for group in range(2) for item in range(2)]


@pytest.fixture(autouse=True)
def _no_warnings_of_lost_connections(caplog):
    caplog.set_level(logging.ERROR, "broadloom")


@pytest.mark.faults
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

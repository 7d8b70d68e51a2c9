"""The console of a running fleet: a real controller and its API, and reports that the test makes up."""

import asyncio
import shlex
import threading
from contextlib import contextmanager

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import sync_playwright

import broadloom as bl
from broadloom.agents.links.agent_service import controller_connection
from broadloom.agents.links.controller_client import ControllerConnection
from broadloom.agents.links.controller_protocol import PLAN_PATH, agent_path
from broadloom.agents.links.controller_service import ControllerOptions, ControllerService
from broadloom.agents.links.plan_message import plan_message, plan_of_message
from broadloom.agents.links.route_orders import AgentReport, HopReport
from broadloom.agents.links.stamps import FleetKey
from broadloom.cli.serve import _running_fleet
from broadloom.console import WhatIfSession
from broadloom.console.running_fleet import RunningFleet
from broadloom.console.server import ConsoleServer
from broadloom.deployment.rehearsal.mosquitto_lab import free_ports
from broadloom.errors import InputError
from chromium import LIMIT, launch
from fleet_lab import wait_until
from what_if_plans import plan_of

POSITIONS = {"rome": (41.9, 12.5), "oslo": (59.9, 10.8), "bern": (46.9, 7.4), "wien": (48.2, 16.4)}
FILTERS = {"rome": ["news/#", "$SYS/#"], "oslo": ["news/#"], "bern": ["news/#", "a"], "wien": ["a"]}


class MadeUpFleet:
    """A controller in a thread, which can stop and start again, and agents that report what the test says."""

    def __init__(self, folder):
        (folder / "key").write_text("a key for a test, which is long enough")
        (folder / "key").chmod(0o600)
        brokers = "".join(
            f'[brokers.{name}]\naddress = "{name}.example.org"\ntls = false\nsite = "{name} city"\n'
            f"position = [{lat}, {lon}]\n"
            for name, (lat, lon) in POSITIONS.items()
        )
        self.file = folder / "fleet.toml"
        live = f'[live]\ncontroller = "127.0.0.1:{free_ports(1)[0]}"\nkey_file = "key"\n'
        self.file.write_text(brokers + live)
        self.fleet = bl.Fleet.load(self.file)
        self._state = folder / "state"
        self.start()

    def start(self):
        """Start the controller, with the state that it had."""
        ready = threading.Event()

        async def serve():
            self.service = ControllerService(ControllerOptions(self.fleet, self._state))
            self.service.controller._views._silence = 3600.0  # agents of this test report once
            self._stop = asyncio.Event()
            self._loop = asyncio.get_running_loop()
            await self.service.start()
            ready.set()
            await self._stop.wait()
            await self.service.stop()

        self._thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
        self._thread.start()
        assert ready.wait(60)
        self._connection = controller_connection(self.fleet, FleetKey(self.fleet.live.key()), "agents")

    def stop(self):
        """Stop it."""
        self._connection.close()
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(60)
        assert not self._thread.is_alive()

    def report(self, down=(), waiting=None, filters=FILTERS, number=1, problems=()):
        """All agents report; `down` are directed hops that are down, and `waiting` bytes of hops."""
        sites = list(POSITIONS)
        pairs = [(u, v) for i, u in enumerate(sites) for v in sites[i + 1 : i + 2]]
        hops = [*pairs, *((v, u) for u, v in pairs)]
        for name in sites:
            own = {
                end: HopReport(
                    True,
                    (start, end) not in down,
                    in_flight_bytes=(waiting or {}).get((start, end), 0),
                    error="refused" if (start, end) in down else "",
                )
                for start, end in hops
                if start == name
            }
            report = AgentReport(
                name,
                f"agent of {name}",
                broker_up=not any(start == name and end == name for start, end in down),
                hops=own,
                filters=tuple(filters[name]),
                filters_number=number,
                problems=tuple(problems) if name == "rome" else (),
            )
            code, answer = self._connection.request("POST", agent_path(name, "report"), report.to_json())
            assert code == 200, answer

    def plan(self):
        """The controller's plan."""
        return plan_of_message(self._connection.request("GET", PLAN_PATH)[1])


@pytest.fixture
def running(tmp_path):
    """A running fleet."""
    made = MadeUpFleet(tmp_path)
    made.report()
    wait_until(lambda: len(made.plan().edges) > 2, "the plan of the controller")
    yield made
    made.stop()


@contextmanager
def served(fleet):
    """A console of a running fleet."""
    fleet.refresh()
    source = str(fleet.path.with_name("fleet-live-plan"))
    console = ConsoleServer(
        WhatIfSession(fleet.plan), source, "Broadloom: the running fleet", "ms", fleet=fleet
    )
    thread = threading.Thread(target=console.run, daemon=True)
    thread.start()
    yield console
    console.server.should_exit = True
    thread.join(60)
    assert not thread.is_alive()


@pytest.mark.needs("chromium")
@pytest.mark.xdist_group("chromium")
def test_the_console_shows_a_running_fleet_and_changes_nothing(running, monkeypatch, tmp_path):
    """Hops, bytes, problems, what is not carried, changes as they happen; the controller away and back."""
    asked = []
    request = ControllerConnection.request

    def recorded(connection, method, target, *arguments, **options):
        if connection._peer == "console":
            asked.append((method, target))
        return request(connection, method, target, *arguments, **options)

    monkeypatch.setattr(ControllerConnection, "request", recorded)
    monkeypatch.chdir(tmp_path)
    with served(_running_fleet(running.file)) as console, sync_playwright() as playwright:
        browser = launch(playwright)
        page = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
        page.set_default_timeout(LIMIT)
        problems = []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(console.address)
        page.wait_for_selector("html[data-ready]")
        summary = page.locator("#fleet-summary")
        summary.locator("text=4 of 4 agents up, 6 of 6 hops up, 0 bytes wait").wait_for()
        page.locator("#fleet >> text=filter $SYS/#").wait_for()
        links = len(running.plan().edges)
        page.locator(".tiles li:has-text('links') strong").first.locator(f"text={links}").wait_for()
        assert Axe().run(page).violations_count == 0
        all_up = page.locator(".map canvas").screenshot()

        running.report(
            down={("oslo", "bern")}, waiting={("rome", "oslo"): 4321}, problems=["the disk of rome is full"]
        )
        summary.locator("text=5 of 6 hops up, 4,321 bytes wait").wait_for()
        text = page.inner_text("#fleet")
        assert "rome: the disk of rome is full" in text
        assert "not connected at bern refused" in text
        assert "Hops that are down: 1" in text
        assert page.locator(".map canvas").screenshot() != all_up
        page.fill("#find", "bern")
        page.press("#find", "Enter")
        rows = page.locator("#panel .live tbody tr").all_inner_texts()
        assert "oslo\tbern\tdown\t0" in rows
        assert Axe().run(page).violations_count == 0
        page.keyboard.press("Escape")

        # Clients want more: the plan on the page follows by itself, and the hops are up again.
        wanted = FILTERS | {"wien": ["a", "news/#", "b"], "oslo": ["news/#", "b"]}
        running.report(filters=wanted, number=2)
        page.locator(".tiles li", has_text="topics").locator("strong:text-is('3')").wait_for()
        assert console.session.plan.interest == running.plan().interest
        summary.locator("text=6 of 6 hops up").wait_for()

        # An operation changes the plan on the page, and not the fleet; the fleet's next plan waits.
        page.fill("#operation", "fail broker oslo")
        page.press("#operation", "Enter")
        page.locator("#what-if >> text=Failed brokers: 1").wait_for()
        running.report(filters=wanted | {"rome": ["news/#", "b"]}, number=3)
        page.locator("#other-base").wait_for()
        assert console.session.steps == 1
        page.click("#apply")
        commands = page.inner_text("#commands")
        assert (
            f"broadloom controller {shlex.quote(str(running.file))} --state state --plan what-if" in commands
        )
        assert f"broadloom what-if {tmp_path / 'fleet-live-plan'}" in commands
        assert bl.Plan.load(tmp_path / "fleet-live-plan") == console.session.first_plan
        page.click("#other-base button")
        page.locator("#other-base").wait_for(state="detached")
        page.locator("#what-if >> text=Failed brokers").wait_for(state="detached")
        page.locator(".tiles li", has_text="brokers").locator("strong:text-is('4')").wait_for()

        running.stop()
        page.locator("#away >> text=has not answered since").wait_for()
        assert "6 of 6 hops up" in summary.inner_text()
        assert Axe().run(page).violations_count == 0
        running.start()
        page.locator("#away >> text=has not answered").wait_for(state="detached")
        summary.locator("text=0 of 4 agents up").wait_for()
        running.report(filters=wanted, number=4)
        summary.locator("text=4 of 4 agents up, 6 of 6 hops up").wait_for()
        assert problems == []
        browser.close()
    assert {method for method, _ in asked} == {"GET"}
    assert set(running.service.status()["brokers"]) == set(POSITIONS)


def test_hops_of_an_agent_that_is_away_are_not_up(running):
    fleet = RunningFleet(running.fleet, running.file)
    fleet.refresh()
    assert {hop[2] for hop in fleet.record()["hops"]} == {True}
    running.service.controller._views._silence = 0.0
    assert fleet.refresh()
    assert {tuple(hop[2:]) for hop in fleet.record()["hops"] if hop[0] == "rome"} == {
        (False, 0, "rome is away")
    }
    assert running.service.status()["hops_up"] == 0
    fleet.stop()


def test_a_fleet_whose_controller_is_away_has_brokers_and_no_links(running):
    """And its plan once the controller answers."""
    running.stop()
    fleet = RunningFleet(running.fleet, running.file)
    assert fleet.refresh()
    record = fleet.record()
    assert "does not answer" in record["away"]["reason"]
    assert not record["known"]
    assert fleet.plan.interest.node_ids == tuple(POSITIONS)
    assert len(fleet.plan.edges) == 0
    assert not fleet.refresh()
    assert fleet.record(record["number"]) == {"number": record["number"]}
    running.start()
    assert fleet.refresh()
    assert fleet.record()["away"] is None
    assert sorted(fleet.plan.interest.node_ids) == sorted(POSITIONS)
    assert len(fleet.plan.edges) > 0
    fleet.stop()


def test_another_key_is_refused_and_said(running, tmp_path):
    (tmp_path / "key").write_text("another key, which is long enough too")
    fleet = RunningFleet(running.fleet, running.file)
    fleet.refresh()
    assert "has another key" in fleet.record()["away"]["reason"]
    fleet.stop()


@pytest.mark.parametrize("kind", ["uniform", "dense"])
def test_a_plan_travels_as_json(kind):
    """Subscriptions, links and weights arrive as they were."""
    plan = plan_of(kind)
    found = plan_of_message(plan_message(plan))
    assert found.interest == plan.interest
    assert found.weights == plan.weights
    assert found.edges.tolist() == plan.edges.tolist()


@pytest.mark.parametrize(
    "damage", [{"subscriptions": 1}, {"links": [["a"]]}, {"weights": [[1], [2]]}, {"observed": 3}]
)
def test_a_malformed_plan_is_refused(damage):
    with pytest.raises(InputError, match="the plan of the controller is malformed"):
        plan_of_message(plan_message(plan_of("dense", nodes=4)) | damage)

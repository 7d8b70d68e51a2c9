"""The console in Chromium and over HTTP: what it shows is what maintain does; nobody else gets in."""

import threading

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import sync_playwright

import broadloom as bl
from broadloom.console import WhatIfSession
from broadloom.console.server import ConsoleServer
from chromium import LIMIT, launch
from what_if_plans import plan_of

pytestmark = [pytest.mark.xdist_group("chromium")]


@pytest.fixture(scope="module")
def plan():
    """Sixty brokers in cloud regions."""
    return plan_of("regions", nodes=60, topics=20)


@pytest.fixture
def console(plan):
    """A running console."""
    made = ConsoleServer(WhatIfSession(plan), "plan", "Broadloom: what if", "ms")
    thread = threading.Thread(target=made.run, daemon=True)
    thread.start()
    yield made
    made.server.should_exit = True
    thread.join(60)
    assert not thread.is_alive()


@pytest.fixture
def client(console):
    """A client with the token."""
    base = f"http://127.0.0.1:{console.port}"
    headers = {"Authorization": f"Bearer {console.token}"}
    with httpx.Client(base_url=base, headers=headers, timeout=60) as made:
        yield made


PAGES = ("/", "/compare?a=main&b=main", "/api/state", "/api/record", "/api/script", "/docs", "/nowhere")


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": ""},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Basic {token}"},
        {"Host": "evil.example"},
        {"Host": "127.0.0.1"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "https://127.0.0.1:{port}"},
    ],
    ids=str,
)
def test_a_wrong_token_host_or_origin_gets_403(console, client, headers):
    """For each page and call; and nothing changes."""
    names = {"token": console.token, "port": console.port}
    wrong = {name: value.format(**names) for name, value in headers.items()}
    token = "wrong" if "Authorization" in headers else console.token
    for path in PAGES:
        address = f"{path}{'&' if '?' in path else '?'}token={token}"
        assert client.get(address, headers=wrong).status_code == 403
    body = {"words": ["fail", "broker", "broker-1"]}
    assert client.post("/api/do", json=body, headers=wrong).status_code == 403
    assert console.session.steps == 0


def test_calls_answer_with_the_state(console, client, plan):
    own = {"Origin": f"http://127.0.0.1:{console.port}"}
    done = client.post("/api/do", json={"words": ["fail", "broker", "broker-1"]}, headers=own)
    assert done.status_code == 200
    assert done.headers["cache-control"] == "no-store"
    change = bl.maintain(plan).leave(1)
    effect = done.json()["effect"]
    assert (len(effect["added"]), len(effect["removed"])) == (len(change.added), len(change.removed))
    assert done.json()["failed"] == ["broker-1"]
    assert "fail broker broker-1" in client.get("/api/script").text
    assert client.post("/api/undo").json()["steps"] == 0
    for body in (
        b"{",
        b"[]",
        b'{"words": 1}',
        b'{"words": ["explode"]}',
        b'{"words": ["fail", "broker", "x"]}',
    ):
        refused = client.post("/api/do", content=body)
        assert refused.status_code == 400
        assert refused.json()["error"]
    assert client.post("/api/undo").status_code == 400
    assert client.post("/api/use").status_code == 400
    assert client.post("/api/do", content=b"x" * 200_000).status_code == 413


def test_a_relink_can_be_cancelled_and_used(console, client):
    assert client.post("/api/relink").json()["relink"]["state"] == "running"
    assert client.post("/api/cancel").json()["relink"]["state"] == "cancelled"
    client.post("/api/relink")
    console._relinking._process.wait(300)
    found = client.get("/api/state").json()["relink"]
    assert found["state"] == "done"
    used = client.post("/api/use").json()
    assert used["operations"] == ["relink"]
    assert used["measures"]["cost"] == found["measures"]["cost"] <= used["first"]["cost"]
    assert used["measures"]["gap"] >= 0


@pytest.mark.needs("chromium")
def test_the_console_in_a_browser(console, plan):
    """A failure by keyboard, with the repair of maintain; undo, branches, comparison; no request leaves."""
    axe = Axe()
    with sync_playwright() as playwright:
        browser = launch(playwright)
        context = browser.new_context(viewport={"width": 1440, "height": 900})
        context.set_default_timeout(LIMIT)
        page = context.new_page()
        problems, hosts = [], set()
        page.on("pageerror", lambda error: problems.append(str(error)))
        context.on("request", lambda request: hosts.add(request.url.split("/")[2]))
        page.goto(console.address)
        page.wait_for_selector("html[data-ready]")
        assert axe.run(page).violations_count == 0
        page.keyboard.press("Tab")
        page.keyboard.press("Tab")
        page.keyboard.type("fail broker broker-3")
        page.keyboard.press("Enter")
        change = bl.maintain(plan).leave(3)
        page.wait_for_selector("#panel[data-choice=effect]")
        added = page.locator("#panel dt:text-is('Links added') + dd").inner_text()
        assert added == f"+ {len(change.added)}"
        page.locator(".tiles li", has_text="brokers").locator("strong:text-is('59')").wait_for()
        report = axe.run(page)
        assert report.violations_count == 0, report.generate_report()
        page.click("[aria-label='Restore broker-3']")
        page.locator(".tiles li", has_text="brokers").locator("strong:text-is('60')").wait_for()
        for steps in (1, 0):
            page.click("#undo")
            page.locator(f"#what-if >> text=Failed brokers: {steps}").wait_for(
                state="visible" if steps else "detached"
            )
        assert console.session.plan is plan
        page.fill("#branch-name", "other")
        page.press("#branch-name", "Enter")
        page.locator("#compare").wait_for()
        page.fill("#operation", "fail broker nobody")
        page.press("#operation", "Enter")
        page.locator("#refused >> text=there is no broker").wait_for()
        page.fill("#find", "broker-7")
        page.press("#find", "Enter")
        page.click("#panel button:text-is('Fail this broker')")
        page.locator(".tiles li", has_text="brokers").locator("strong:text-is('59')").wait_for()
        with context.expect_page() as opened:
            page.select_option("#compare", "main")
        opened.value.wait_for_selector("html[data-ready]")
        assert "Plans side by side" in opened.value.inner_text("#report")
        assert problems == []
        assert hosts == {f"127.0.0.1:{console.port}"}
        browser.close()

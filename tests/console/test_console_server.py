"""The console in Chromium and over HTTP: what it shows is what maintain does; nobody else gets in."""

import json
import random
import socket
import threading
from copy import deepcopy
from urllib.parse import quote

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import sync_playwright

import broadloom as bl
from broadloom.console import WhatIfSession, operation_of
from broadloom.console.server import ConsoleServer
from broadloom.console.what_if import changed_links
from chromium import LIMIT, launch
from what_if_plans import contents, plan_of, random_operation

pytestmark = [pytest.mark.xdist_group("chromium")]


@pytest.fixture(scope="module")
def plan():
    """Sixty brokers in cloud regions."""
    return plan_of("regions", nodes=60, topics=20)


@pytest.fixture(scope="module")
def served(plan):
    """A running console."""
    made = ConsoleServer(WhatIfSession(plan), "plan", "Broadloom: what if", "ms")
    thread = threading.Thread(target=made.run, daemon=True)
    thread.start()
    yield made
    made.server.should_exit = True
    thread.join(60)
    assert not thread.is_alive()


@pytest.fixture
def console(served, plan):
    """The running console with a new session."""
    served.session = WhatIfSession(plan)
    served._relinking = None
    return served


@pytest.fixture
def client(console):
    """A client with the token."""
    base = f"http://127.0.0.1:{console.port}"
    headers = {"Authorization": f"Bearer {console.token}"}
    with httpx.Client(base_url=base, headers=headers, timeout=60) as made:
        yield made


CALLS = ("state", "record", "script", "apply", "fleet")
PAGES = ("/", "/compare?a=main&b=main", *(f"/api/{name}" for name in CALLS), "/docs", "/nowhere")


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
    assert client.post("/api/restart").status_code == 400
    assert client.get("/api/fleet").json() is None
    applied = client.get("/api/apply").text
    assert "broadloom deploy apply plan what-if --fleet fleet.toml --dry-run" in applied
    assert client.post("/api/do", content=b"x" * 200_000).status_code == 413


def test_answers_do_not_wait_for_acknowledgements(console):
    """The body of an answer follows its head at once: accepted sockets inherit the option."""
    assert console._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


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


MAP = ".map canvas"
# The number of colours of the map, and the share of the most frequent one.
COLOURS = """(canvas) => { const found = {};
const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
for (let i = 0; i < data.length; i += 4) {
  const key = `${data[i]} ${data[i + 1]} ${data[i + 2]}`; found[key] = (found[key] ?? 0) + 1; }
return [Object.keys(found).length, Math.max(...Object.values(found)) / (data.length / 4)]; }"""
# Does something that sends a request to a path, and waits for the status of the answer.
OPERATE = """(text) => { const input = document.getElementById("operation"); input.value = text;
return answerOf("/api/do", () => input.form.requestSubmit()); }"""
UNDO = """() => answerOf("/api/undo", () => document.getElementById("undo").click())"""
WATCH_CALLS = """() => { const real = window.fetch; let waiting = null;
window.answerOf = (path, act) => new Promise((done) => { waiting = { path, done }; act(); });
window.fetch = async (path, ...more) => { const mine = waiting?.path === path ? waiting : null;
const answer = await real(path, ...more); mine?.done(answer.status); return answer; }; }"""
# The cells of a table of the panel.
ROWS = """(text) => [...document.querySelectorAll(`#panel .scroll[aria-label='${text}'] tbody tr`)].map(
(row) => [...row.children].map((cell) => cell.textContent))"""


class ConsolePage:
    """A page of the console, with its errors and the hosts of its requests."""

    def __init__(self, browser, console, **options):
        self.console = console
        self.context = browser.new_context(**{"viewport": {"width": 1440, "height": 900}} | options)
        self.context.set_default_timeout(LIMIT)
        self.problems, self.hosts = [], set()
        self.context.on("request", lambda request: self.hosts.add(request.url.split("/")[2]))
        self.page = self.open(console.address)

    def open(self, address):
        """Open a page, and wait until it is ready."""
        page = self.context.new_page()
        page.on("pageerror", lambda error: self.problems.append(error.stack))
        page.on("console", lambda message: self.problems.append(message.text))
        page.goto(address)
        page.wait_for_selector("html[data-ready]")
        return page

    def do(self, text):
        """Write an operation, and wait until its effect is in the panel and in the tiles."""
        self.page.fill("#operation", text)
        self.page.press("#operation", "Enter")
        self.page.locator(f"#panel h3:text-is({json.dumps(text)})").wait_for()
        self.has_brokers(self.console.session.plan.interest.node_count)

    def has_brokers(self, count):
        """Wait until the tiles show a number of brokers."""
        self.page.locator(".tiles li", has_text="brokers").locator(f"strong:text-is('{count}')").wait_for()

    def check_accessible(self, page=None):
        """Assert that the page breaks no rule of axe."""
        found = Axe().run(page or self.page)
        assert found.violations_count == 0, found.generate_report()

    @property
    def focus(self):
        """The id, or else the text, of the element with the focus."""
        return self.page.evaluate("document.activeElement.id || document.activeElement.textContent")

    def tab_to(self, name, most=60):
        """Press Tab until an element has the focus, by its id, label or text."""
        seen = "document.activeElement.ariaLabel || document.activeElement.id"
        for _ in range(most):
            self.page.keyboard.press("Tab")
            if name in (self.page.evaluate(seen), self.focus):
                return
        raise AssertionError(f"Tab does not reach {name}")

    def close(self):
        """Close it; there was no error, and no request to another host."""
        self.context.close()
        assert self.problems == []
        assert self.hosts == {f"127.0.0.1:{self.console.port}"}


@pytest.fixture(scope="module")
def chromium():
    """One browser for all tests of this file."""
    with sync_playwright() as playwright:
        browser = launch(playwright)
        yield browser
        browser.close()


@pytest.fixture
def shown(chromium, console):
    """A function that opens the console in the browser."""
    opened = []

    def show(**options):
        opened.append(ConsolePage(chromium, console, **options))
        return opened[-1]

    yield show
    for one in opened:
        one.close()


@pytest.mark.needs("chromium")
def test_each_failure_shown_is_that_of_maintain(shown, console, plan):
    """For every broker, the links that the page lists are those of `live.leave`; undo takes them back."""
    one = shown()
    one.page.evaluate(WATCH_CALLS)
    names = plan.interest.node_ids
    live = bl.maintain(plan)
    for broker, name in enumerate(names):
        assert one.page.evaluate(OPERATE, f"fail broker {name}") == 200
        one.page.locator(f"#panel h3:text-is('fail broker {name}')").wait_for()
        change = deepcopy(live).leave(broker)
        for text, links in (("Links added", change.added), ("Links removed", change.removed)):
            expected = sorted(sorted(names[b] for b in edge) for edge in links.tolist())
            assert sorted(one.page.evaluate(ROWS, text)) == expected
        assert one.page.evaluate(UNDO) == 200
    assert console.session.plan is plan


@pytest.mark.needs("chromium")
def test_two_hundred_operations_in_the_browser_and_as_many_undos(shown, console, plan, tmp_path):
    """They give the plan of the beginning, byte for byte."""
    first = contents(plan, tmp_path / "first")
    one = shown()
    one.page.evaluate(WATCH_CALLS)
    rng = random.Random(11)
    done = 0
    while done < 200:
        text = operation_of(random_operation(console.session, rng)).text
        done += one.page.evaluate(OPERATE, text) == 200
        assert console.session.steps == done
    for _ in range(200):
        assert one.page.evaluate(UNDO) == 200
    assert contents(console.session.plan, tmp_path / "last") == first
    one.page.locator("#undo:disabled").wait_for()
    one.has_brokers(60)
    one.problems = [text for text in one.problems if "400 (Bad Request)" not in text]  # refused operations


@pytest.mark.needs("chromium")
def test_a_broker_that_comes_and_goes_before_the_page_has_seen_it(shown):
    """It is in no graph of the page, so that the map has no place for it: all else is drawn."""
    one = shown()
    one.do("fail broker broker-3")
    one.page.evaluate(WATCH_CALLS)
    held = []
    one.page.route("**/api/record", lambda route: held.append(route))
    for text in ("restore broker broker-3", "fail broker broker-3"):
        assert one.page.evaluate(OPERATE, text) == 200
    one.page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert held
    one.page.unroute("**/api/record")
    one.do("fail broker broker-5")


@pytest.mark.needs("chromium")
def test_the_console_by_keyboard_only(shown, console):
    """Failure, restoring, undo, branches, re-link, commands: the focus is never lost."""
    one = shown()
    keys = one.page.keyboard
    one.tab_to("operation")
    keys.type("fail broker broker-3")
    keys.press("Enter")
    one.has_brokers(59)
    assert one.focus == "operation"
    one.tab_to("Restore broker-3")
    keys.press("Enter")
    one.has_brokers(60)
    one.tab_to("undo")
    keys.press("Enter")
    one.has_brokers(59)
    assert one.focus == "undo"
    keys.press("Space")
    one.has_brokers(60)
    one.tab_to("relink")
    keys.press("Enter")
    one.page.locator("#relink:text-is('Cancel the re-link')").wait_for()
    assert one.focus == "relink"
    keys.press("Enter")
    one.page.locator("#relink:text-is('Find a better re-link')").wait_for()
    assert console._relinking.state == "cancelled"
    one.tab_to("branch-name")
    keys.type("other")
    keys.press("Enter")
    one.page.locator("#compare").wait_for()
    assert console.session.branch_name == "other"
    one.page.focus("#branch")
    with one.page.expect_response("**/api/record"):
        keys.press("ArrowUp")
    assert console.session.branch_name == "main"
    one.tab_to("apply")
    keys.press("Enter")
    one.page.locator("#commands").wait_for()
    assert one.focus == "commands"
    keys.press("/")
    keys.type("broker-7")
    keys.press("Enter")
    one.tab_to("Fail this broker")
    keys.press("Enter")
    one.has_brokers(59)
    assert one.page.evaluate("document.activeElement !== document.body")


@pytest.mark.needs("chromium")
def test_no_view_of_the_console_breaks_a_rule_of_axe(shown, console, plan):
    """The start, effects, choices with their buttons, a re-link, a broken limit, commands, a comparison."""
    one = shown(color_scheme="dark")
    page = one.page
    one.check_accessible()
    one.do("fail broker broker-3")
    one.check_accessible()
    page.click("#theme")
    one.check_accessible()
    u, v = (plan.interest.node_ids[b] for b in plan.edges[0])
    one.do(f"fail link {u} {v}")
    one.do(f"pin {u} broker-9")
    one.do("limit 1")
    assert "The limit is 1 link on each broker." in page.inner_text("#what-if")
    assert "more: " in page.inner_text("#above-limit")
    page.click("#relink")
    page.locator("#what-if >> text=re-link: running").wait_for()
    one.check_accessible()
    page.click("#relink")
    page.fill("#operation", "fail broker nobody")
    page.press("#operation", "Enter")
    page.locator("#refused >> text=there is no broker").wait_for()
    page.click("#apply")
    page.locator("#commands").wait_for()
    one.check_accessible()
    site = next(iter(console.session.first_plan.nodes.column("site").to_pylist()))
    u, v = (console.session.plan.interest.node_ids[b] for b in console.session.plan.edges[-1])
    for hash_ in (
        "broker=broker-5",
        f"link={u}&link={v}",
        f"site={quote(site)}",
        "topic=topic/3",
        "fails=broker&name=broker-5",
        "table=links&sort=-load",
    ):
        page.evaluate("(hash) => { location.hash = hash; }", hash_)
        page.wait_for_function("(hash) => location.hash === `#${hash}`", arg=hash_)
        one.check_accessible()
    page.fill("#branch-name", "other")
    page.press("#branch-name", "Enter")
    page.locator("#compare").wait_for()
    with one.context.expect_page() as opened:
        page.select_option("#compare", "main")
    opened.value.wait_for_selector("html[data-ready]")
    assert "Plans side by side" in opened.value.inner_text("#report")
    one.check_accessible(opened.value)
    one.problems = [text for text in one.problems if "400 (Bad Request)" not in text]  # of broker nobody


@pytest.mark.needs("chromium")
def test_forced_colours_phone_and_print(shown):
    """The map has colours of its own; nothing is wider than a phone; paper has results and no controls."""
    one = shown(forced_colors="active")
    one.do("fail broker broker-3")
    colours, most = one.page.locator(MAP).evaluate(COLOURS)
    assert colours > 20
    assert most < 0.999
    one.check_accessible()
    phone = shown(viewport={"width": 390, "height": 800}, has_touch=True, is_mobile=True)
    phone.do("fail broker broker-4")
    phone.page.click("#apply")
    phone.page.locator("#commands").wait_for()
    assert phone.page.evaluate("document.documentElement.scrollWidth") <= 390
    for name in ("#operation", "#undo", "#relink", "#branch-name", "#apply"):
        phone.page.locator(name).wait_for()
        box = phone.page.locator(name).bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 390
    phone.check_accessible()
    paper = shown(color_scheme="dark")
    paper.page.emulate_media(media="print")
    for name in ("#operation", "#undo", "#relink", "#apply", "#branch-name", "#find"):
        assert not paper.page.locator(name).is_visible()
    assert "at the start" in paper.page.inner_text("#what-if")
    assert "Failed brokers: 2" in paper.page.inner_text("#what-if")
    assert paper.page.pdf(format="A4").startswith(b"%PDF")


@pytest.mark.needs("chromium")
def test_a_copied_address_shows_the_same_in_a_new_window(shown, console):
    """The choice, the part of the map and the session; a wrong token shows nothing."""
    one = shown()
    one.do("fail broker broker-3")
    one.page.fill("#find", "broker-7")
    one.page.press("#find", "Enter")
    one.page.locator("#panel h3:text-is('broker-7')").wait_for()
    one.page.click("[aria-label='Zoom in']")
    one.page.wait_for_function("() => location.hash.includes('at=')")
    other = one.open(one.page.url)
    assert other.inner_text("#panel") == one.page.inner_text("#panel")
    assert "Failed brokers: 1" in other.inner_text("#what-if")
    for page in (one.page, other):
        page.mouse.move(5, 5)
    assert other.locator(MAP).screenshot() == one.page.locator(MAP).screenshot()
    wrong = one.page.url.replace(console.token, "x" * len(console.token))
    assert one.context.new_page().goto(wrong).status == 403


@pytest.mark.needs("chromium")
def test_the_best_relink_is_measured_and_used_in_the_page(shown, console):
    """Cost, links changed, worst delay and the certified gap, of the plan now and of the re-link."""
    one = shown()
    one.do("fail broker broker-3")
    one.page.click("#relink")
    one.page.locator("#use").wait_for()
    row = one.page.locator("#what-if tbody tr", has_text="better re-link")
    one.page.wait_for_function(
        "() => [...document.querySelectorAll('#what-if tbody tr')].at(-1).children[4].textContent !== '…'"
    )
    cells = row.locator("td").all_inner_texts()
    plan = console._relinking.plan
    number = lambda text: float(text.replace(",", ""))  # noqa: E731
    assert number(cells[2]) == len(plan.edges)
    assert number(cells[3]) == pytest.approx(plan.total_weight, rel=1e-3)
    assert number(cells[4]) == pytest.approx(plan.metrics()["weighted_max_diameter"], rel=1e-3)
    assert cells[5] == f"{100 * plan.gap:.1f} %"
    added, removed = changed_links(console.session.plan, plan)
    assert number(cells[6]) == len(added) + len(removed)
    one.page.click("#use")
    one.page.locator("#panel h3:text-is('relink')").wait_for()
    assert console.session.plan is plan

"""Fixtures for tests of the page in Chromium."""

import os
from importlib import import_module
from pathlib import Path

import pytest

from chromium import LIMIT, launch

ARTEFACTS = Path(__file__).parents[2] / "artefacts" / "report"


def _needed(module):
    """The imported package; if it is missing, tests are skipped, or fail with BROADLOOM_CI=1."""
    if os.environ.get("BROADLOOM_CI") == "1":
        return import_module(module)
    return pytest.importorskip(module, reason=f"not installed: {module}")


@pytest.fixture(scope="module")
def chromium():
    """Debian's Chromium, driven by Playwright; no other event loop can run in this thread meanwhile."""
    with _needed("playwright.sync_api").sync_playwright() as playwright:
        browser = launch(playwright)
        yield browser
        browser.close()


# Resolves when the page is idle: after its timers, which are shorter, and then two frames.
IDLE = """() => new Promise((done) =>
setTimeout(() => requestAnimationFrame(() => requestAnimationFrame(done)), 200))"""


class Page:
    """A report in the browser, with its console messages, errors and requests."""

    def __init__(self, page):
        self.page = page
        self.messages, self.requests = [], []
        page.on("console", lambda message: self.messages.append(message.text))
        page.on("pageerror", lambda error: self.messages.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))

    def open(self, html, path):
        """Open a page from a file."""
        path.write_text(html)
        self.page.goto(path.as_uri())
        self.page.wait_for_selector("html[data-ready]")
        self.page.evaluate(IDLE)
        return self

    def find(self, name):
        """Type a name into the search box, and choose the first match."""
        self.page.fill("#find", name)
        self.page.press("#find", "Enter")

    @property
    def panel(self):
        """The text of the panel next to the map."""
        return self.page.inner_text("#panel")

    def fact(self, name):
        """A number of the panel, by its name."""
        return self.page.locator(f"#panel dt:text-is('{name}') + dd").inner_text()

    def picture(self):
        """A screenshot of the first map, as bytes to compare."""
        self.page.evaluate(IDLE)
        return self.page.locator(".map canvas").first.screenshot()

    def check_accessible(self):
        """Assert that the current page breaks no accessibility rule of axe."""
        found = _needed("axe_playwright_python.sync_playwright").Axe().run(self.page)
        assert found.violations_count == 0, found.generate_report()

    def keep(self, name):
        """Save a screenshot of the whole page to the artefacts."""
        ARTEFACTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=ARTEFACTS / f"{name}.png", full_page=True)


@pytest.fixture
def shown(chromium, tmp_path):
    """A function that opens a page in the browser; the page must log no message and send no request."""
    opened = []

    def show(html, **options):
        context = chromium.new_context(**{"viewport": {"width": 1440, "height": 900}} | options)
        context.set_default_timeout(LIMIT)
        page = Page(context.new_page())
        opened.append((context, page))
        return page.open(html, tmp_path / f"report-{len(opened)}.html")

    yield show
    for context, page in opened:
        context.close()
        assert page.messages == []
        assert [url for url in page.requests if not url.startswith(("file:", "blob:", "data:"))] == []

"""Debian's Chromium without a window, as tests and benchmarks drive it; and how smoothly a map is dragged."""

from typing import Any

# A machine may have no network: these keep Chromium from asking for one. Root needs --no-sandbox.
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
LIMIT = 120_000  # milliseconds for anything, on a machine that is busy
# Gathers the milliseconds between frames from now on.
WATCH = """() => { window.gaps = []; let last = performance.now();
const frame = (now) => { gaps.push(now - last); last = now; requestAnimationFrame(frame); };
requestAnimationFrame(frame); }"""


def launch(playwright: Any) -> Any:
    """Start the browser."""
    return playwright.chromium.launch(executable_path="/usr/bin/chromium", args=FLAGS, timeout=LIMIT)


def drag(page: Any, steps: int = 60) -> list[float]:
    """Drag the map of a report about; the milliseconds between frames, ascending."""
    page.locator(".map canvas").first.scroll_into_view_if_needed()
    box = page.locator(".map canvas").first.bounding_box()
    x, y = box["x"] + 200, box["y"] + 200
    page.mouse.move(x, y)
    page.mouse.down()
    page.evaluate(WATCH)
    for step in range(steps):
        page.mouse.move(x + 4 * step, y + 2 * step)
        page.wait_for_timeout(12)
    gaps = page.evaluate("gaps")
    page.mouse.up()
    return sorted(gaps)

"""Report and console: size of the page, time to make it, its speed in a browser, and failures in the console.

    python benchmarks/report.py

CPU seconds are of one process, without the compilation of kernels. The browser is Chromium without a window
or a graphics card: it draws on the processor, so other browsers are faster. Frames are those while the map is
dragged; a screen of 60 Hz has one every 16.7 ms. A picture is the script's time to draw everything again,
without the browser's time to fill the pixels. A choice is the CPU time of the page's main thread
from another address to the second frame.
The console is timed from Enter to the frame with the repair on the map, each time for another broker, half a
second after the undo of the one before; the request is the part of the server. The CPU time is that of the
server and of the page's main thread together, and then that of the repair alone.
"""

import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import broadloom as bl
from _common import Section, run
from broadloom.report import report
from broadloom.workload import REGIONS

# Topics per broker, of smaller plans and of the largest.
SIZES = ((15, 60), (5, 25))
# Ends with the second frame after another choice.
CHOICE = """(hash) => new Promise((done) => { location.hash = hash;
addEventListener("hashchange", () => requestAnimationFrame(() =>
requestAnimationFrame(() => done())), { once: true }); })"""
# Milliseconds from an operation of the console to the second frame with its effect.
OPERATION = """(text) => new Promise((done) => { const input = document.getElementById("operation");
const panel = document.getElementById("panel").parentElement, start = performance.now();
const watch = new MutationObserver(() => { const heading = panel.querySelector("#panel h3");
if (heading?.textContent !== text) return; watch.disconnect();
requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now() - start))); });
watch.observe(panel, { childList: true, subtree: true });
input.value = text; input.form.requestSubmit(); })"""

# Milliseconds of the last operation's request.
LAST_REQUEST = """() => performance.getEntriesByType("resource").filter((one) => one.name.endsWith("/api/do"))
.at(-1).duration"""

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))


def plan_of(nodes: int) -> bl.Plan:
    """A plan of brokers in cloud regions, linked by grmaw."""
    interest = bl.workload.interest(
        nodes=nodes, topics=nodes // 2, popularity="zipf", alpha=1.0, sizes=SIZES[nodes > 2000], seed=0
    )
    weights = bl.workload.weights(nodes=nodes, kind="regions", seed=0)
    plan = bl.link(interest, weights, algorithm="grmaw" if nodes <= 2000 else "dcmaw")
    sites = [REGIONS[site].name for site in weights.site.tolist()]
    table = pa.table({"node": interest.node_ids, "site": sites})
    return bl.Plan(interest, weights, plan.overlay, plan.algorithm, nodes=table)


def choice_cpu(page: Any, address: str) -> float:
    """CPU milliseconds of the page's main thread from another choice to the second frame after it."""
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    before = main_thread_cpu(session)
    page.evaluate(CHOICE, address)
    spent = main_thread_cpu(session) - before
    session.detach()
    return spent


def main_thread_cpu(session: Any) -> float:
    """CPU milliseconds of a page's main thread so far."""
    found = session.send("Performance.getMetrics")["metrics"]
    return next(1000 * one["value"] for one in found if one["name"] == "TaskDuration")


def in_browser(html: str) -> dict[str, float]:
    """Milliseconds until the page is ready, of a picture, and of frames while the map is dragged."""
    from playwright.sync_api import sync_playwright

    from chromium import drag, launch

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        path = Path(folder) / "report.html"
        path.write_text(html)
        browser = launch(playwright)
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-ready]")
        ready = page.evaluate("performance.now()")
        page.wait_for_timeout(1000)
        gaps = drag(page)
        page.wait_for_timeout(500)
        picture = float(page.locator(".map canvas").get_attribute("data-cost"))
        page.locator("button:text-is('Fit')").click()
        page.wait_for_timeout(500)
        marks = int(page.locator(".map canvas").get_attribute("data-marks"))
        kinds = ("broker=", "topic=", "fails=broker&name=")
        choices = [choice_cpu(page, f"{kind}{name}") for kind in kinds for name in range(20, 40)]
        browser.close()
    return {
        "ready ms": ready,
        "marks": marks,
        "choice CPU ms": sorted(choices)[int(0.95 * len(choices))],
        "picture ms": picture,
        "frame ms": float(np.median(gaps)),
        "95 % of frames ms": gaps[int(0.95 * len(gaps))],
    }


def size(quick: bool) -> Section:
    """Pages of plans with different numbers of brokers."""
    section = Section("The page of a report")
    report({"warm-up": plan_of(30)})
    for nodes in (100,) if quick else (200, 1000, 2000, 20_000):
        plan = plan_of(nodes)
        plan.metrics()  # saved plans have their metrics
        start = time.process_time()
        html = report({"plan": plan})
        seconds = time.process_time() - start
        row = {"brokers": nodes, "links": len(plan.edges), "MB": len(html) / 1e6, "CPU s": seconds}
        section.rows.append(row | in_browser(html))
    last = section.rows[-1]
    section.claim("median ms between frames while the map is dragged", last["frame ms"], at_most=34)
    section.claim("MB of the largest page", last["MB"], at_most=10)
    section.claim("marks in the world view of the largest page", last["marks"], at_most=2100)
    section.claim("ms until the largest page is ready", last["ready ms"], at_most=3000)
    section.claim("CPU ms of 95 % of choices in the largest page", last["choice CPU ms"], at_most=100)
    return section


def console(quick: bool) -> Section:
    """Failures in the console, from Enter to the frame with the repair, and their undo."""
    from playwright.sync_api import sync_playwright

    from broadloom.console import WhatIfSession
    from broadloom.console.server import ConsoleServer
    from chromium import launch

    section = Section("Failures in the console")
    section.notes["load"] = list(os.getloadavg())
    for nodes in (100,) if quick else (200, 1000):
        session = WhatIfSession(plan_of(nodes))
        session.prepare()
        repairs = []
        for broker in range(6 if quick else 41):
            start = time.process_time()
            session.do(f"fail broker {broker}")
            repairs.append(1000 * (time.process_time() - start))
            session.undo()
        server = ConsoleServer(session, "plan", "What if")
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        times, requests, spent = [], [], []
        with sync_playwright() as playwright:
            browser = launch(playwright)
            page = browser.new_page(viewport={"width": 1440, "height": 900})
            page.goto(server.address)
            page.wait_for_selector("html[data-ready]")
            cpu = page.context.new_cdp_session(page)
            cpu.send("Performance.enable", {"timeDomain": "threadTicks"})
            for broker in range(6 if quick else 41):
                start = main_thread_cpu(cpu) + 1000 * time.process_time()
                times.append(page.evaluate(OPERATION, f"fail broker {broker}"))
                spent.append(main_thread_cpu(cpu) + 1000 * time.process_time() - start)
                requests.append(page.evaluate(LAST_REQUEST))
                with page.expect_response("**/api/undo"):
                    page.click("#undo")
                page.wait_for_timeout(100 if quick else 500)
            browser.close()
        server.server.should_exit = True
        thread.join()
        row: dict[str, Any] = {"brokers": nodes, "failures": len(times) - 1}
        measured = (("", times), ("request ", requests), ("CPU ", spent), ("repair CPU ", repairs))
        for name, values in measured:
            found = sorted(values[1:])  # the first one loads kernels
            row[f"{name}median ms"] = float(np.median(found))
            row[f"{name}95 % ms"] = found[int(0.95 * len(found))]
        section.rows.append(row)
    section.claim("ms of 95 % of failures, to the pixels", section.rows[-1]["95 % ms"], at_most=150)
    return section


if __name__ == "__main__":
    run("report", {"size": size, "console": console})

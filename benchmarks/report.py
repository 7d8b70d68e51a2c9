"""Report: size of the page, time to make it, and its speed in a browser.

    python benchmarks/report.py

CPU seconds are of one process, without the compilation of kernels. The browser is Chromium without a window
or a graphics card: it draws on the processor, so other browsers are faster. Frames are those while the map is
dragged; a screen of 60 Hz has one every 16.7 ms. A picture is the script's time to draw everything again,
without the browser's time to fill the pixels.
"""

import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

import broadloom as bl
from _common import Section, run
from broadloom.report import report
from broadloom.workload import REGIONS

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))


def plan_of(nodes: int) -> bl.Plan:
    """A plan of brokers in cloud regions, linked by grmaw."""
    interest = bl.workload.interest(
        nodes=nodes, topics=nodes // 2, popularity="zipf", alpha=1.0, sizes=(15, 60), seed=0
    )
    weights = bl.workload.weights(nodes=nodes, kind="regions", seed=0)
    plan = bl.link(interest, weights, algorithm="grmaw")
    sites = [REGIONS[site].name for site in weights.site.tolist()]
    table = pa.table({"node": interest.node_ids, "site": sites})
    return bl.Plan(interest, weights, plan.overlay, plan.algorithm, nodes=table)


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
        browser.close()
    return {
        "ready ms": ready,
        "picture ms": picture,
        "frame ms": float(np.median(gaps)),
        "95 % of frames ms": gaps[int(0.95 * len(gaps))],
    }


def size(quick: bool) -> Section:
    """Pages of plans with different numbers of brokers."""
    section = Section("The page of a report")
    report({"warm-up": plan_of(30)})
    for nodes in (100,) if quick else (200, 1000, 2000):
        plan = plan_of(nodes)
        plan.metrics()  # saved plans have their metrics
        start = time.process_time()
        html = report({"plan": plan})
        seconds = time.process_time() - start
        row = {"brokers": nodes, "links": len(plan.edges), "MB": len(html) / 1e6, "CPU s": seconds}
        section.rows.append(row | in_browser(html))
    last = section.rows[-1]
    section.claim("median ms between frames while the map is dragged", last["frame ms"], at_most=34)
    section.claim("MB of the largest page", last["MB"], at_most=5)
    return section


if __name__ == "__main__":
    run("report", {"size": size})

"""The report: how large a page is, how long it takes to make, and how quick it is in a browser.

    python benchmarks/report.py

CPU seconds are of one process; kernels were compiled before. The browser is Chromium without a window or a
graphics card: it draws on the processor, so that another is rather quicker. Frames are those while the map is
dragged; a screen of 60 Hz has one every 16.7 ms. A picture is the script's time to draw everything anew; what
the browser takes to fill the pixels afterwards is not in it.
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
    """Brokers in the clouds' regions, linked by grmaw."""
    interest = bl.workload.interest(
        nodes=nodes, topics=nodes // 2, popularity="zipf", alpha=1.0, sizes=(15, 60), seed=0
    )
    weights = bl.workload.weights(nodes=nodes, kind="regions", seed=0)
    plan = bl.link(interest, weights, algorithm="grmaw")
    sites = [REGIONS[site].name for site in weights.site.tolist()]
    table = pa.table({"node": interest.node_ids, "site": sites})
    return bl.Plan(interest, weights, plan.overlay, plan.algorithm, nodes=table)


def in_browser(html: str) -> dict[str, float]:
    """Seconds until the page is there, and milliseconds of a picture and of frames while dragging."""
    from playwright.sync_api import sync_playwright

    from chromium import drag, launch

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        place = Path(folder) / "report.html"
        place.write_text(html)
        browser = launch(playwright)
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.goto(place.as_uri())
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
    """Pages of more and more brokers."""
    section = Section("The page of a report")
    report({"warm-up": plan_of(30)})
    for nodes in (100,) if quick else (200, 1000, 2000):
        plan = plan_of(nodes)
        plan.metrics()  # a plan that was saved has them
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

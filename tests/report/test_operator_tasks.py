"""The page in Chromium by an operator's tasks: what is broken, who left, why a link is there, what if."""

import csv
import io
import json
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pytest

import broadloom as bl
from broadloom.measures import disconnected_topics
from broadloom.report import report

pytestmark = [pytest.mark.needs("chromium"), pytest.mark.xdist_group("chromium")]

MAP = ".map canvas"
# The number of different colours of a canvas, and the share of the most frequent one.
COLOURS = """(canvas) => { const { width, height } = canvas;
const data = new Uint32Array(canvas.getContext("2d").getImageData(0, 0, width, height).data.buffer);
const counts = new Map(); for (const one of data) counts.set(one, (counts.get(one) ?? 0) + 1);
return [counts.size, Math.max(...counts.values()) / data.length]; }"""


def at_positions(positions, edges, lists=None, algorithm="by hand"):
    """A plan of brokers at positions (latitude, longitude); all have one topic unless lists are given."""
    names = list(positions)
    interest = bl.Interest.from_lists(lists or [["news"]] * len(names), node_ids=names)
    nodes = pa.table(
        {
            "node": names,
            "lat": [p and p[0] for p in positions.values()],
            "lon": [p and p[1] for p in positions.values()],
        }
    )
    index = {name: i for i, name in enumerate(names)}
    overlay = bl.Overlay.from_edges(len(names), [(index[u], index[v]) for u, v in edges])
    return bl.Plan(interest, bl.Weights.uniform(len(names)), overlay, algorithm, nodes=nodes)


WORLD = {"rome": (41.9, 12.5), "oslo": (59.9, 10.7), "los angeles": (34.1, -118.2), "sydney": (-33.9, 151.2)}


@pytest.fixture(scope="module")
def regions():
    """Eighty brokers in cloud regions."""
    interest = bl.workload.interest(nodes=80, topics=25, sizes=(3, 8), seed=0)
    interest = bl.Interest.from_lists(
        [[f"topic/{t}" for t in interest.topics_of(u)] for u in range(80)],
        node_ids=[f"broker-{u}" for u in range(80)],
    )
    weights = bl.workload.weights(nodes=80, kind="regions", seed=0)
    plan = bl.link(interest, weights, algorithm="grmaw")
    sites = [bl.workload.REGIONS[site].name for site in weights.site]
    nodes = pa.table({"node": interest.node_ids, "site": sites})
    return bl.Plan(interest, weights, plan.overlay, "grmaw", nodes=nodes)


@pytest.fixture(scope="module")
def html(regions):
    """Their page, with weights in milliseconds."""
    return report({"today": regions}, unit="ms")


def window(page):
    """What the address says of the part of the map that is shown."""
    return page.page.evaluate("new URLSearchParams(location.hash.slice(1)).get('at')")


def test_topics_that_are_not_connected_are_named(shown, regions):
    """At the top, in the panel with their parts, and in the table of topics."""
    broken = bl.Plan(
        regions.interest,
        regions.weights,
        bl.Overlay.from_edges(80, regions.edges[:-40]),
        "cut",
        nodes=regions.nodes,
    )
    expected = {regions.interest.topic_ids[t] for t in disconnected_topics(broken.interest, broken.overlay)}
    assert expected
    page = shown(report({"cut": broken}))
    assert page.page.locator("#carried").count() == 0
    listed = page.page.locator("#not-connected li button").all_inner_texts()
    assert set(listed) <= expected
    assert len(listed) == min(12, len(expected))
    page.page.click("#not-connected >> text=All of them in the table")
    rows = page.page.locator("#tables tbody tr")
    assert {row.split("\t")[0].strip() for row in rows.all_inner_texts()} <= expected
    assert f"of {len(expected)} topic" in page.page.inner_text("#rows-shown")
    page.page.click("#not-connected li button >> nth=0")
    assert "NOT connected" in page.panel
    assert "Part 2: " in page.panel
    page.check_accessible()
    page.keep("not-connected")


def test_brokers_that_left_are_drawn_and_listed(shown):
    """With the links that went with them, at the positions of the plan before."""
    before = at_positions(WORLD, [("rome", "oslo"), ("rome", "los angeles"), ("los angeles", "sydney")])
    rest = {name: WORLD[name] for name in ("rome", "oslo")}
    after = at_positions(rest, [("rome", "oslo")])
    page = shown(report({"last week": before, "today": after}))
    row = (
        page.page.locator("table", has_text="brokers left").locator("tbody tr").first.inner_text().split("\t")
    )
    assert row[2:7] == ["0", "2", "1", "2", "0"]
    plain = page.picture()
    page.page.locator("button:text-is('Show on the map')").click()
    assert page.fact("Brokers that left") == "\N{MINUS SIGN} 2"
    assert "sydney" in page.panel
    page.page.locator("button:text-is('Fit')").click()
    assert page.picture() != plain
    drawn = page.page.evaluate(COUNT_BAD)
    assert drawn > 100
    page.check_accessible()
    page.keep("brokers-that-left")


COUNT_BAD = """() => { const canvas = document.querySelector(".map canvas");
const bad = getComputedStyle(document.querySelector("#panel .bad")).color.match(/\\d+/g).map(Number);
const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
let n = 0;
for (let i = 0; i < data.length; i += 4)
  if (bad.every((value, j) => Math.abs(data[i + j] - value) < 40)) n++;
return n; }"""


def test_forced_colours_keep_the_map(shown, html):
    """Land, links and brokers differ from the ground, as without forced colours."""
    page = shown(html, forced_colors="active")
    page.picture()
    count, most = page.page.locator(MAP).evaluate(COLOURS)
    assert count > 20
    assert most < 0.999
    page.find("broker-3")
    page.page.click("#fail")
    page.check_accessible()
    page.keep("forced-colours")


def test_a_choice_far_below_brings_the_panel_into_view_and_focus(shown, html):
    page = shown(html)
    button = page.page.locator("section", has_text="Bottlenecks").last.locator("table button").first
    name = button.inner_text()
    button.click()
    assert page.page.evaluate("document.activeElement.textContent") == name
    top = page.page.locator("#panel").bounding_box()["y"]
    assert 0 <= top < 800
    page.page.click("#fail")
    assert page.page.evaluate("document.activeElement.textContent") == name
    page.page.keyboard.press("Tab")
    assert page.page.evaluate("document.querySelector('#panel').contains(document.activeElement)")


def test_links_are_great_circles(shown):
    """From Los Angeles to Sydney over the Pacific: nothing is drawn between America and Africa."""
    page = shown(report({"pacific": at_positions(WORLD, [("los angeles", "sydney"), ("rome", "oslo")])}))
    page.page.locator(MAP).hover(position={"x": 10, "y": 10})
    hits = page.page.evaluate(
        """() => { const canvas = document.querySelector(".map canvas");
        const tip = document.querySelector(".tip"), box = canvas.getBoundingClientRect(), found = [];
        for (let x = 0; x < box.width; x += 3) for (let y = 0; y < box.height; y += 3) {
          canvas.dispatchEvent(new PointerEvent("pointermove",
            { clientX: box.x + x, clientY: box.y + y, bubbles: true }));
          if (!tip.hidden && tip.textContent.startsWith("los angeles \\u2013 sydney"))
            found.push(x / box.width);
        }
        return found; }"""
    )
    assert len(hits) > 50
    assert not [x for x in hits if 0.3 < x < 0.75]
    page.keep("great-circles")


def test_one_finger_scrolls_past_the_map_on_a_phone(shown, html):
    page = shown(html, viewport={"width": 390, "height": 780}, has_touch=True, is_mobile=True)
    assert page.page.evaluate("document.documentElement.scrollWidth") <= 390
    page.page.locator(MAP).scroll_into_view_if_needed()
    box = page.page.locator(MAP).bounding_box()
    before = page.page.evaluate("scrollY")
    session = page.page.context.new_cdp_session(page.page)
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    steps = [("touchStart", [y]), *(("touchMove", [y - 20 * i]) for i in range(1, 16)), ("touchEnd", [])]
    for kind, at in steps:
        points = [{"x": x, "y": down} for down in at]
        session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
    page.picture()
    assert page.page.evaluate("scrollY") > before + 200
    assert window(page) is None
    page.check_accessible()
    page.keep("phone")


def test_a_layout_and_fit_show_the_whole_fleet(shown):
    """A fleet in Italy fills the map; another layout starts with all of it in view."""
    italy = {"rome": (41.9, 12.5), "milan": (45.5, 9.2), "naples": (40.9, 14.3), "turin": (45.1, 7.7)}
    page = shown(
        report({"italy": at_positions(italy, [("rome", "milan"), ("naples", "rome"), ("turin", "milan")])})
    )
    start = page.picture()
    spread = page.page.evaluate(MARKS)
    assert spread["right"] - spread["left"] > 0.4 or spread["bottom"] - spread["top"] > 0.4
    page.page.locator(MAP).focus()
    for _ in range(6):
        page.page.keyboard.press("+")
    page.picture()
    assert window(page) is not None
    page.page.locator("button:text-is('forces')").click()
    page.picture()
    assert window(page) is None
    spread = page.page.evaluate(MARKS)
    assert 0 <= spread["left"] < spread["right"] <= 1
    page.page.locator("button:text-is('map')").click()
    page.page.mouse.move(5, 5)
    page.page.locator("button:text-is('Fit')").click()
    page.page.mouse.move(5, 5)
    assert page.picture() == start


# The part of the map that shows marks of brokers: found by moving the pointer over it.
MARKS = """() => { const canvas = document.querySelector(".map canvas");
const tip = document.querySelector(".tip"), box = canvas.getBoundingClientRect();
const found = { left: 1, right: 0, top: 1, bottom: 0, names: [] };
for (let x = 0; x < box.width; x += 4) for (let y = 0; y < box.height; y += 4) {
  canvas.dispatchEvent(new PointerEvent("pointermove",
    { clientX: box.x + x, clientY: box.y + y, bubbles: true }));
  if (tip.hidden || tip.textContent.includes("\\u2013")) continue;
  found.names.push(tip.firstChild.textContent);
  found.left = Math.min(found.left, x / box.width); found.right = Math.max(found.right, x / box.width);
  found.top = Math.min(found.top, y / box.height); found.bottom = Math.max(found.bottom, y / box.height);
}
tip.hidden = true;
return { ...found, names: [...new Set(found.names)].sort() }; }"""


def test_brokers_without_a_position_are_in_a_box_below_the_map(shown):
    """Not in Antarctica: between them and the southernmost broker there is no land."""
    fleet = WORLD | {"lost": None, "nowhere": None}
    page = shown(report({"plan": at_positions(fleet, [("rome", "lost"), ("lost", "nowhere")])}))
    assert page.page.evaluate(MARKS)["names"] == sorted(fleet)
    svg = saved(page, "Save the map as SVG").decode()
    assert "No position: 2" in svg
    page.keep("no-position")


def saved(page, label):
    """The content of the file that a button saves."""
    with page.page.expect_download() as download:
        page.page.get_by_label(label, exact=True).click()
    return Path(download.value.path()).read_bytes()


def test_a_link_explains_itself(shown, html, regions):
    """The topics that it carries and that need it, and the dearer links that would replace it."""
    weak = bl.measures.weak_points(regions.interest, regions.overlay).links
    loads = bl.measures.link_loads(regions.interest, regions.overlay, regions.weights)
    link = int(np.argmax(weak))
    u, v = regions.edges[link].tolist()
    page = shown(html)
    page.page.evaluate(f"location.hash = 'link=broker-{u}&link=broker-{v}'")
    assert page.panel.startswith("Link\n")
    assert page.fact("Topics that it carries") == str(loads[link])
    assert page.fact("Topics that need it") == str(weak[link])
    for x, y, weight, more in alternatives(page):
        pair = [int(name.split("-")[1]) for name in (x, y)]
        exact = float(regions.weights.of(*pair))
        assert weight == pytest.approx(exact, rel=1e-3)
        assert more == pytest.approx(exact - regions.edge_weights[link], rel=1e-2, abs=0.05)
        edges = [*np.delete(regions.edges, link, axis=0).tolist(), sorted(pair)]
        assert bl.is_topic_connected(regions.interest, np.array(edges))
    page.page.click("#fail")
    assert page.fact("Topics disconnected") == str(weak[link])
    page.check_accessible()
    page.keep("link")


def alternatives(page):
    """The rows of the table of alternatives, as names and numbers."""
    rows = page.page.locator("#panel table", has_text="more").locator("tbody tr").all_inner_texts()
    for row in rows:
        x, y, weight, more = (cell.strip() for cell in row.split("\t"))
        yield (
            x,
            y,
            float(weight.replace(",", "")),
            float(more.replace(",", "").replace("\N{MINUS SIGN}", "-")),
        )


@pytest.mark.parametrize("of", ["site", "pair", "link"])
def test_failures_of_sites_pairs_and_links(shown, html, regions, of):
    """The topics that they disconnect are those of the measures, and the links to add reconnect them."""
    sites = regions.nodes.column("site").to_pylist()
    u, v = regions.edges[0].tolist()
    gone = {"site": [b for b in range(80) if sites[b] == sites[u]], "pair": [u, v], "link": []}[of]
    names = [sites[u]] if of == "site" else [f"broker-{u}", f"broker-{v}"]
    page = shown(html)
    page.page.evaluate(
        "(parts) => { location.hash = new URLSearchParams(parts).toString(); }",
        [["fails", of], *(["name", name] for name in names)],
    )
    kept = [b for b in range(80) if b not in gone]
    index = {b: i for i, b in enumerate(kept)}
    edges = [
        e for e in regions.edges.tolist() if not set(e) & set(gone) and not (of == "link" and e == [u, v])
    ]
    lists = [regions.interest.topics_of(b) for b in kept]
    interest = bl.Interest.from_lists(lists, topics=25)
    overlay = bl.Overlay.from_edges(len(kept), [(index[a], index[b]) for a, b in edges])
    assert page.fact("Topics disconnected") == str(len(disconnected_topics(interest, overlay)))
    added = (
        [
            tuple(index[int(cell.strip().split("-")[1])] for cell in row.split("\t")[:2])
            for row in page.page.locator("#panel table").first.locator("tbody tr").all_inner_texts()
            if "broker" in row
        ]
        if page.fact("Links to add") != "0"
        else []
    )
    assert page.fact("Links to add") == str(len(added))
    repaired = [(index[a], index[b]) for a, b in edges] + added
    assert bl.is_topic_connected(interest, np.array(repaired))


def test_a_copied_address_shows_the_same_and_back_goes_back(shown, html):
    page = shown(html)
    page.find("topic/3")
    page.page.locator(MAP).focus()
    for _ in range(3):
        page.page.keyboard.press("+")
    page.picture()
    page.page.click("#tables button:text-is('links')")
    page.page.click("#tables button[data-column='topics']")
    page.page.fill("#filter", "broker-1")
    page.page.locator("button:text-is('weight') >> nth=0").click()
    page.page.mouse.move(5, 5)
    address, picture = page.page.url, page.picture()
    rows = page.page.inner_text("#tables tbody")
    other = page.page.context.new_page()
    other.goto(address)
    other.wait_for_selector("html[data-ready]")
    copy = type(page)(other)
    assert copy.panel == page.panel
    assert copy.picture() == picture
    assert other.inner_text("#tables tbody") == rows
    other.close()
    page.find("broker-5")
    page.page.click("#fail")
    assert page.panel.startswith("If the broker fails")
    page.page.go_back()
    assert page.panel.startswith("Broker\nbroker-5")
    page.page.go_back()
    assert page.panel.startswith("Topic\ntopic/3")
    page.page.go_forward()
    assert page.panel.startswith("Broker\nbroker-5")


def test_an_address_without_sense_shows_the_plan(shown, html):
    page = shown(html)
    for part in (
        "plan=9&change=4-7&at=1,x,3&page=-2&sort=nothing&fails=moon&name=a",
        "%E0%A4%A",
        "topic=none",
    ):
        page.page.evaluate("(part) => { location.hash = part; }", part)
        page.picture()
    assert "This plan does not have it." in page.panel


def test_tables_are_complete_sorted_filtered_and_exported(shown, html, regions):
    page = shown(html)
    page.page.click("#tables button:text-is('links')")
    page.page.click("#tables button[data-column='weight (ms)']")
    found = list(csv.reader(io.StringIO(saved(page, "Save the rows as CSV").decode())))
    assert found[0] == ["from", "to", "weight (ms)", "topics", "topics that need it"]
    weights = [float(row[2]) for row in found[1:]]
    assert weights == sorted(weights, reverse=True)
    assert {(row[0], row[1]) for row in found[1:]} == {
        (f"broker-{u}", f"broker-{v}") for u, v in regions.edges.tolist()
    }
    assert page.page.locator("#tables th[aria-sort='descending']").count() == 1
    page.page.click("#tables button:text-is('brokers')")
    sites = regions.nodes.column("site").to_pylist()
    words = sites[0].replace("/", " ").split()
    page.page.fill("#filter", f" {words[1]}  BROKER {words[0]}")
    expected = [f"broker-{b}" for b, site in enumerate(sites) if words[0] in site and words[1] in site]
    rows = page.page.locator("#tables tbody tr").all_inner_texts()
    assert [row.split("\t")[0].strip() for row in rows] == expected
    page.check_accessible()


def test_pictures_are_saved(shown, html):
    page = shown(html)
    page.find("broker-3")
    svg = saved(page, "Save the map as SVG").decode()
    assert svg.startswith("<svg ")
    assert "broker-3</text>" in svg
    assert saved(page, "Save the map as PNG").startswith(b"\x89PNG")
    chart = page.page.locator("[aria-label^='Save as SVG: Links per broker']")
    with page.page.expect_download() as download:
        chart.click()
    text = Path(download.value.path()).read_text()
    assert text.startswith("<svg ")
    assert "var(--" not in text


def test_search_finds_sites_and_words_and_moves_the_map(shown, html, regions):
    site = regions.nodes.column("site").to_pylist()[7]
    page = shown(html)
    before = page.picture()
    page.find(" ".join(reversed(site.split("/"))))
    assert page.panel.startswith(f"Site\n{site}")
    page.find(f"broker-7 {site.split('/')[0]}")
    assert page.panel.startswith("Broker\nbroker-7")
    page.page.locator(MAP).focus()
    for _ in range(8):
        page.page.keyboard.press("+")
    page.picture()
    at = window(page)
    page.find("broker-40")
    page.picture()
    assert window(page) != at
    assert page.picture() != before


def test_units_dates_and_sources_are_said(shown, regions, tmp_path):
    from broadloom.report import html_of, record_of_folders

    regions.save(tmp_path / "plan")
    record = record_of_folders([tmp_path / "plan"], unit="ms", dated=True)
    page = shown(html_of(record))
    said = page.page.inner_text("#sources")
    assert f"from {tmp_path / 'plan'}, written 2" in said
    assert "Weights are in ms." in said
    assert json.loads(json.dumps(record))["plans"][0]["written"].endswith(" UTC")


def test_differences_have_numbers(shown, regions):
    other = bl.link(regions.interest, regions.weights, algorithm="trmaw")
    page = shown(report({"today": regions, "other": other}))
    more = len(other.edges) - len(regions.edges)
    row = page.page.locator("table.measures tr", has=page.page.locator("th:text-is('links')"))
    share = 100 * more / len(regions.edges)
    sign = "+" if more > 0 else "\N{MINUS SIGN}"
    assert row.locator("td").nth(2).inner_text() == f"{sign}{abs(more)} ({sign}{abs(round(share, 1)):g} %)"


def test_a_large_fleet_has_few_marks_and_paints_only_what_changes(shown):
    """Five thousand brokers in regions: sites are marks; another choice does not paint the links again."""
    rng = np.random.default_rng(0)
    interest = bl.Interest.from_lists([np.unique(rng.integers(0, 200, 8)) for _ in range(5000)], topics=200)
    pairs = np.unique(np.sort(rng.integers(0, 5000, (41_000, 2)), axis=1), axis=0)
    edges = pairs[pairs[:, 0] < pairs[:, 1]][:40_000]
    weights = bl.workload.weights(nodes=5000, kind="regions", seed=0)
    nodes = pa.table({"node": interest.node_ids, "site": [bl.workload.REGIONS[s].name for s in weights.site]})
    plan = bl.Plan(interest, weights, bl.Overlay.from_edges(5000, edges), "random", nodes=nodes)
    page = shown(report({"large": plan}))
    facts = page.page.locator(MAP).evaluate("(canvas) => ({ ...canvas.dataset })")
    assert 100 < int(facts["marks"]) <= 2100
    page.page.click("#tables tbody button >> nth=1")
    page.picture()
    site = page.page.locator(MAP).evaluate("(canvas) => canvas.dataset.painted")
    page.page.evaluate("location.hash = 'topic=7'")
    page.picture()
    assert page.panel.startswith("Topic\n7")
    assert page.page.locator(MAP).evaluate("(canvas) => canvas.dataset.painted") == site
    page.page.locator("button:text-is('forces')").click()
    page.page.locator(MAP).focus()
    page.page.keyboard.press("n")
    assert page.panel.startswith("Broker\n0")


def test_no_view_breaks_a_rule_of_axe(shown, regions):
    """Every kind of choice and table, of one plan and of two, on the map and by forces."""
    u, v = (regions.interest.node_ids[b] for b in regions.edges[0])
    one, other = sorted(set(regions.nodes.column("site").to_pylist()))[:2]
    page = shown(report({"today": regions, "again": regions}))
    for address in (
        f"link={u}&link={v}&links=weight",
        f"site={quote(one)}&table=links&sort=-load",
        f"between={quote(one)}&between={quote(other)}",
        f"fails=site&name={quote(one)}&table=topics&filter=1",
        f"fails=link&name={u}&name={v}",
        f"fails=pair&name={u}&name={v}&layout=forces",
        "change=0-1",
        "plan=1&topic=topic/3",
        "broker=nobody",
    ):
        page.page.evaluate("(address) => { location.hash = address; }", address)
        page.page.wait_for_function("(address) => location.hash === `#${address}`", arg=address)
        page.check_accessible()

"""The page in Chromium: selection of topics, brokers and failures; keys, themes, printing, several plans."""

import re
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

import broadloom as bl
from broadloom.model import NotCarried, Publishers
from broadloom.report import html_of, record_of, record_of_folders, report
from broadloom.report.overlay_record import failures
from chromium import drag

pytestmark = [pytest.mark.needs("chromium"), pytest.mark.xdist_group("chromium")]

EVIL = "<script>window.hacked = 1</script>"
WORSE = "\"><img src=x onerror='window.hacked=1'>&amp;{{}}${1}\u2028</title></style>"
# Counts calls of the canvas from now on: how often an image is drawn, and how often lines are drawn.
COUNT_CALLS = """() => { window.calls = { stroke: 0, drawImage: 0 };
for (const name of Object.keys(calls)) {
  const real = CanvasRenderingContext2D.prototype[name];
  CanvasRenderingContext2D.prototype[name] = function (...args) {
    calls[name]++;
    return real.apply(this, args);
  };
} }"""


def in_regions(nodes=60, topics=25, algorithm="grmaw", seed=0):
    interest = bl.workload.interest(nodes=nodes, topics=topics, sizes=(3, 8), seed=seed)
    interest = bl.Interest.from_lists(
        [[f"topic/{t}" for t in interest.topics_of(u)] for u in range(nodes)],
        node_ids=[f"broker-{u}" for u in range(nodes)],
    )
    weights = bl.workload.weights(nodes=nodes, kind="regions", seed=0)
    plan = bl.link(interest, weights, algorithm=algorithm)
    sites = [bl.workload.REGIONS[site].name for site in weights.site]
    nodes_table = pa.table({"node": interest.node_ids, "site": sites})
    return bl.Plan(
        interest, weights, plan.overlay, algorithm, lower_bound=plan.total_weight * 0.9, nodes=nodes_table
    )


@pytest.fixture(scope="module")
def plan():
    """Sixty brokers in cloud regions, with a bound."""
    return in_regions()


@pytest.fixture(scope="module")
def html(plan):
    """Its page."""
    return report({"today": plan})


def test_a_topic_shows_its_tree(shown, html, plan):
    """The panel has the numbers of the topic's sub-overlay; the map changes, and changes back."""
    page = shown(html)
    before = page.picture()
    page.find("topic/7")
    topic = plan.interest.topic_ids.index("topic/7")
    members = set(plan.interest.nodes_of(topic).tolist())
    links = [edge for edge in plan.edges.tolist() if set(edge) <= members]
    assert page.fact("Brokers") == str(len(members))
    assert page.fact("Links") == str(len(links))
    assert page.fact("Links of the tree") == str(len(members) - 1)
    cost = bl.measures.routing_costs(plan.interest, plan.overlay, plan.weights)[topic]
    assert float(page.fact("Weight of the tree").replace(",", "")) == pytest.approx(cost, rel=1e-3)
    assert page.picture() != before
    page.keep("topic")
    page.page.click("#panel .close")
    page.page.mouse.move(5, 5)
    assert page.picture() == before


def test_a_click_in_a_list_selects_a_topic_or_a_broker(shown, html):
    page = shown(html)
    page.page.click("#panel .names button >> nth=0")
    assert page.panel.startswith("Topic\n")
    page.page.click("#panel .names button >> nth=0")
    assert page.panel.startswith("Broker\n")


def test_a_click_on_the_map_selects_a_broker(shown):
    """The broker in the middle of the others is in the middle of the map."""
    points = [(0, 0), (10, 0), (0, 4), (10, 4), (5, 2)]
    interest = bl.Interest.from_lists([["news"]] * 5, node_ids=["a", "b", "c", "d", "centre"])
    plan = bl.link(interest, bl.Weights.euclidean(points), algorithm="grmaw")
    page = shown(report({"square": plan}))
    page.page.locator(".map canvas").click()
    assert "centre" in page.panel.splitlines()[1]
    assert page.fact("Links") == str(plan.overlay.degrees()[4])
    page.page.locator(".map canvas").click(position={"x": 30, "y": 30})
    assert "Choose a broker, link, site or topic" in page.panel


def test_a_failure_shows_disconnected_topics_and_the_repair(shown, html, plan):
    broker = int(np.argmax(bl.measures.weak_points(plan.interest, plan.overlay).nodes))
    page = shown(html)
    page.find(f"broker-{broker}")
    assert page.fact("Links") == str(plan.overlay.degrees()[broker])
    broken = page.fact("Topics that need it")
    page.page.click("#fail")
    found = failures(plan, plan.overlay.degrees())["failures"]
    added = found["added"][found["brokers"].index(broker)]
    assert page.fact("Links to add") == str(len(added))
    assert page.fact("Topics disconnected") == broken
    rows = page.page.locator("#panel table tbody tr")
    assert rows.count() == len(added)
    assert rows.first.inner_text().split()[:2] == [f"broker-{u}" for u in added[0]]
    page.keep("failure")


def test_all_functions_have_keys(shown, html):
    page = shown(html)
    keys = page.page.keyboard
    keys.press("/")
    keys.type("topic/1")
    keys.press("ArrowDown")
    keys.press("ArrowDown")
    keys.press("Enter")
    assert page.panel.startswith("Topic\n")
    keys.press("Escape")
    assert "Choose a broker, link, site or topic" in page.panel
    page.page.locator(".map canvas").focus()
    before = page.picture()
    for key in ("ArrowLeft", "ArrowUp", "+", "+", "-"):
        keys.press(key)
    assert page.picture() != before
    keys.press("0")
    assert page.picture() == before
    keys.press("n")
    assert "broker-0" in page.panel
    keys.press("p")
    assert "broker-59" in page.panel
    page.page.focus("#theme")
    reached = set()
    for _ in range(60):
        keys.press("Tab")
        reached.add(
            page.page.evaluate("document.activeElement.textContent || document.activeElement.tagName")
        )
    assert {"INPUT", "CANVAS", "load", "forces", "Fit", "What if it fails?"} <= reached


def test_names_stay_text(shown):
    """A topic, broker, site or title that looks like HTML is shown as it is."""
    broker = WORSE.replace("\u2028", "")  # ids of brokers have no control characters
    interest = bl.Interest.from_lists([[EVIL], [EVIL, WORSE], [WORSE]], node_ids=[EVIL, broker, "c"])
    nodes = pa.table(
        {"node": [EVIL, broker, "c"], "site": [EVIL, WORSE, EVIL], "lat": [1.0, 2, 3], "lon": [1.0, 2, 3]}
    )
    plan = bl.Plan(
        interest, bl.Weights.uniform(3), bl.Overlay.from_edges(3, [(0, 1), (1, 2)]), EVIL, nodes=nodes
    )
    record = record_of({EVIL: plan, WORSE: plan}, title=WORSE)
    record["rows"] = {
        "words": EVIL,
        "notes": [WORSE],
        "tables": [
            {"table": EVIL, "rows": 1, "used": 0, "duplicates": 0, "quarantined": {WORSE: 1}, "written": 0}
        ],
        "examples": [{"table": EVIL, "reason": WORSE, "row": EVIL}],
    }
    page = shown(html_of(record))
    for name in (EVIL, WORSE):
        page.find(name)
        assert name.split("\u2028")[0] in page.panel
    page.find(WORSE)
    page.page.click("#fail")
    page.page.locator("button:text-is('Show on the map')").click()
    page.page.locator(".map canvas").first.hover()
    assert page.page.evaluate("window.hacked") is None
    assert page.page.locator("img").count() == 0
    assert page.page.locator("script").count() == 2
    page.keep("names")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_is_accessible_in_light_and_dark(shown, html, scheme):
    page = shown(html, color_scheme=scheme)
    page.keep(f"page-{scheme}")
    for choose in (
        lambda: None,
        lambda: page.find("topic/3"),
        lambda: page.find("broker-3"),
        lambda: page.page.click("#fail"),
    ):
        choose()
        page.check_accessible()
    before = page.page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.page.click("#theme")
    assert page.page.evaluate("getComputedStyle(document.body).backgroundColor") != before


def test_the_page_prints_without_its_controls(shown, html):
    page = shown(html, color_scheme="dark")
    page.page.emulate_media(media="print")
    assert not page.page.locator("#find").is_visible()
    printed = page.page.pdf(format="A4")
    assert printed.startswith(b"%PDF")
    assert 2 <= len(re.findall(rb"/Type\s*/Page[^s]", printed)) <= 12


def test_plans_side_by_side(shown, plan):
    """Two maps, a table of measures, and the links that change from one plan to the other."""
    other = in_regions(algorithm="trmaw")
    change = bl.link_change(plan, other)
    page = shown(report({"today": plan, "proposed": other}))
    row = page.page.locator("table", has_text="brokers left").locator("tbody tr").first
    assert row.inner_text().split()[2:4] == [str(len(change.added)), str(len(change.removed))]
    page.page.locator("button:text-is('Show on the map')").click()
    assert page.fact("Links added") == f"+ {len(change.added)}"
    page.page.locator("button:text-is('side by side')").click()
    assert page.page.locator(".map canvas").count() == 2
    page.keep("side-by-side")
    page.check_accessible()


@pytest.mark.parametrize("lists", [[], [[]], [[], []], [["alone"]], [["a"], ["b"]]], ids=str)
def test_tiny_plans_have_a_page(shown, lists):
    """No broker, no topic, no link: the page still works."""
    plan = bl.link(bl.Interest.from_lists(lists), algorithm="gm")
    page = shown(report({"little": plan, "again": plan}))
    assert f"{len(lists)} brokers" in page.page.inner_text("#summary")
    page.page.locator("button:text-is('side by side')").click()


def test_brokers_without_a_position_are_below_the_map(shown):
    interest = bl.Interest.from_lists([["news"]] * 3, node_ids=["here", "nowhere", "lost"])
    nodes = pa.table({"node": interest.node_ids, "lat": [51.5, None, 95.0], "lon": [0.0, None, 0.0]})
    plan = bl.Plan(
        interest, bl.Weights.uniform(3), bl.Overlay.from_edges(3, [(0, 1), (1, 2)]), "by hand", nodes=nodes
    )
    page = shown(report({"plan": plan}))
    page.page.locator(".map canvas").focus()
    for name in ("here", "nowhere", "lost"):
        page.page.keyboard.press("n")
        assert name in page.panel
    page.keep("without-a-position")


def test_a_content_plan_shows_the_selected_broker(shown):
    problem = bl.workload.subscribers(set=1, subscribers=400, brokers=6, seed=0)
    page = shown(
        report({"gr": bl.assign(problem, algorithm="gr"), "closest": bl.assign(problem, algorithm="closest")})
    )
    before = page.picture()
    page.page.locator(".stage .names button").first.click()
    assert "Subscribers" in page.page.locator(".about").first.inner_text()
    page.page.mouse.move(5, 5)
    assert page.picture() != before
    page.keep("content")
    page.check_accessible()


def test_what_is_not_carried_is_shown_with_counts_and_can_be_searched(shown):
    """Counts by reason, every entry by search; topic filters that overlap are one topic with all names."""
    interest = bl.Interest.from_lists([["a/#"], ["a/b", "c"], []], node_ids=["rome", "oslo", "bonn"])
    left_out = [("rome", f"$SYS/broker/{i}", "belongs to one broker") for i in range(300)]
    plan = replace(
        bl.link(interest, algorithm="gm"),
        publishers=Publishers("observed", [("bonn", "a/x")]),
        not_carried=NotCarried([*left_out, ("oslo", EVIL, "outside of the fleet's carry")]),
    )
    page = shown(report({"today": plan}))
    text = page.page.inner_text("#not-carried")
    assert re.search(r"belongs to one broker\s+300", text)
    assert re.search(r"nobody was seen to publish it there\s+2", text)
    assert "303 entries, the first 200 of them here" in text
    page.page.fill("#find-not-carried", "hacked")
    rows = page.page.locator("#not-carried div[aria-live] tbody tr")
    assert [" ".join(row.split()) for row in rows.all_inner_texts()] == [
        f"oslo {EVIL} outside of the fleet's carry"
    ]
    page.page.fill("#find-not-carried", "BONN")
    reason = "not carried from the broker: nobody was seen to publish it there"
    assert [" ".join(row.split()) for row in rows.all_inner_texts()] == [f"bonn c {reason}"]
    assert [(row.node, row.filters) for row in plan.not_carried.publications] == [
        ("rome", ("c",)),
        ("bonn", ("c",)),
    ]
    page.find("a/b")
    assert page.fact("Brokers") == "2"
    assert "a/#, a/b" in page.panel
    page.check_accessible()
    page.keep("not-carried")


def test_a_plan_that_carries_everything_says_so(shown, html):
    page = shown(html)
    assert page.page.inner_text("#carried") == "Everything that clients subscribe to is carried."
    assert page.page.locator("#not-carried").count() == 0


def test_a_market_shows_users_and_flows(shown, tmp_path):
    result = bl.assign(
        bl.workload.market(users=60, brokers=5, channels=8, seed=0), algorithm="greedy-packing"
    )
    result.save(tmp_path / "market")
    page = shown(html_of(record_of_folders([tmp_path / "market"])))
    assert "60 users on" in page.page.inner_text("#summary")
    assert page.page.locator("table", has_text="rate").locator("tbody tr").count() > 0
    page.check_accessible()
    page.keep("market")


def test_the_page_is_fast_with_twenty_thousand_links(shown):
    """Two thousand brokers: few elements, and while the map is dragged, one call draws many links."""
    rng = np.random.default_rng(0)
    interest = bl.Interest.from_lists([np.unique(rng.integers(0, 300, 30)) for _ in range(2000)], topics=300)
    pairs = np.unique(np.sort(rng.integers(0, 2000, (21_000, 2)), axis=1), axis=0)
    edges = pairs[pairs[:, 0] < pairs[:, 1]][:20_000]
    overlay = bl.Overlay.from_edges(2000, edges)
    plan = bl.Plan(interest, bl.Weights.euclidean(rng.random((2000, 2))), overlay, "random")
    page = shown(report({"large": plan}))
    assert page.page.evaluate("document.querySelectorAll('*').length") < 3000
    page.page.evaluate(COUNT_CALLS)
    drag(page.page, steps=30)
    page.page.wait_for_function("calls.drawImage > 0")
    calls = page.page.evaluate("calls")
    assert calls["stroke"] < 2_500 * calls["drawImage"]
    page.find("1999")
    assert "1999" in page.panel
    page.keep("large")

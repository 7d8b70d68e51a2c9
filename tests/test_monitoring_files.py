"""The dashboard for Grafana and the page on monitoring name metrics that exist."""

import json
import re
from pathlib import Path

from broadloom.agents.links import controller_api

ROOT = Path(__file__).parents[1]
DASHBOARD = (ROOT / "packaging" / "grafana" / "broadloom.json").read_text()
PAGE = (ROOT / "docs" / "monitoring.md").read_text()
SOURCES = "\n".join(path.read_text() for path in (ROOT / "src/broadloom/agents/links").glob("*.py"))


def exists(metric):
    """Whether the controller can have a metric."""
    name = metric.removeprefix("broadloom_")
    gauges = {f"hop_{gauge}" for gauge in controller_api._HOP_GAUGES}
    if name in gauges | {*controller_api._LENGTHS, *controller_api._BROKER_GAUGES}:
        return True
    if name in ("obeyed", "settled", "refused_requests_total"):
        return True
    counted = re.fullmatch(r"(hop|agent)_(\w+)_total", name)
    return bool(counted) and f'counts["{counted[2]}"]' in SOURCES


def test_each_metric_exists():
    names = set(re.findall(r"\bbroadloom_\w+", DASHBOARD + PAGE))
    assert len(names) > 15
    assert {name for name in names if not exists(name)} == set()


def test_each_counter_is_0_before_it_counts():
    """A rule on its increase would miss a rise from a missing counter to 1."""
    prefixes = {"hop": controller_api._HOP_COUNTS, "agent": controller_api._AGENT_COUNTS}
    counted = set(re.findall(r"\bbroadloom_(hop|agent)_(\w+)_total", DASHBOARD + PAGE))
    assert len(counted) > 5
    assert all(name in prefixes[prefix] for prefix, name in counted)


def test_each_panel_has_a_title_and_a_place_of_its_own():
    panels = json.loads(DASHBOARD)["panels"]
    assert all(panel["title"] for panel in panels)
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels]
    assert len(set(places)) == len(places)
    assert len({panel["id"] for panel in panels}) == len(panels)

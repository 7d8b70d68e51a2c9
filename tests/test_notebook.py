"""HTML in notebooks: every value has one, and hostile ids cannot inject markup."""

from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import broadloom as bl
from broadloom.notebook import html_summary

HOSTILE = '<script>alert("1")</script>&amp;<img src=x onerror=alert(1)>'
TAGS = {"div", "strong", "table", "thead", "tbody", "tr", "th", "td", "p"}


class _Reader(HTMLParser):
    """Checks that tags nest, are known and have no attributes; collects the text."""

    def __init__(self):
        super().__init__()
        self.open, self.text = [], []

    def handle_starttag(self, tag, attrs):
        assert tag in TAGS
        assert not attrs
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def _text(html):
    reader = _Reader()
    reader.feed(html)
    reader.close()
    assert not reader.open
    html.encode()
    return " ".join(reader.text)


@pytest.fixture(scope="module")
def values():
    """One of each kind, with hostile ids."""
    interest = bl.Interest.from_lists([[HOSTILE], [HOSTILE], [HOSTILE]], node_ids=[HOSTILE, "b", "c"])
    plan = bl.link(interest, algorithm="gm")
    problem = bl.AssignmentProblem(
        [0],
        [[1], [2]],
        [-1, -1],
        [[3]],
        [[0]],
        [[1]],
        broker_ids=[HOSTILE, HOSTILE + "2"],
        subscriber_ids=[HOSTILE],
    )
    market = bl.MarketProblem(
        [[3], [0]], [[0], [1]], [[1], [2]], [[0]], 9, user_ids=[HOSTILE, "b"], broker_ids=[HOSTILE]
    )
    live = bl.maintain(interest)
    return {
        "interest": interest,
        "overlay": plan.overlay,
        "plan": plan,
        "assignment problem": problem,
        "assignment": bl.assign(problem, "closest"),
        "market problem": market,
        "market": bl.assign(market, "greedy-packing"),
        "live": live,
        "change": live.join([0], name=HOSTILE + "3"),
        "uniform": bl.Weights.uniform(3),
        "dense": bl.Weights.dense([[0, 1], [1, 0]]),
        "euclidean": bl.Weights.euclidean([[0, 1]]),
        "sites": bl.Weights.sites([0, 1, 0]),
        "between": bl.Weights.sites([0, 1], between=[[1, 2], [2, 1]]),
        "assignment without ids": bl.assign(
            bl.AssignmentProblem([0], [[1], [2]], [-1, -1], [[3]], [[0]], [[1]]), "closest"
        ),
        "empty interest": bl.Interest.from_lists([]),
        "empty plan": bl.link(bl.Interest.from_lists([]), algorithm="gm"),
    }


def test_every_value_has_plain_html_without_markup_of_its_ids(values):
    texts = {name: _text(value._repr_html_()) for name, value in values.items()}
    for name in ("interest", "plan", "assignment", "market"):
        assert "<script>" in texts[name], "the id is shown as text"


def test_a_plan_shows_its_summary_and_first_links():
    plan = bl.link(bl.Interest.from_lists([[0]] * 9), algorithm="gm")
    text = _text(plan._repr_html_())
    assert plan.summary() in text
    assert "... and 3 more" in text


@given(st.dictionaries(st.text(), st.text() | st.integers() | st.floats() | st.none()), st.text())
@settings(max_examples=200, deadline=None)
def test_no_text_becomes_markup(facts, title):
    """Also lone surrogates, which cannot be encoded, are shown."""
    _text(html_summary(title, facts, ("a", "b"), [(title, value) for value in facts.values()], 100))
    _text(html_summary("\ud800", {"\udfff": "<\ud800>"}))


def test_numbers_are_readable_and_missing_facts_are_left_out():
    text = _text(html_summary("x", {"many": 1234567, "share": 0.123456, "none": None, "yes": np.True_}))
    assert "1,234,567" in text
    assert "0.1235" in text
    assert "none" not in text

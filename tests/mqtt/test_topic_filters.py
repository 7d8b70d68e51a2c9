"""Topic filters, compared with the rules of the standard and with all topics of a small alphabet."""

import itertools
import re

from hypothesis import given
from hypothesis import strategies as st

import naive_ingest
from broadloom.mqtt import topic_filters as filters

LEVELS = st.sampled_from(["a", "b", "", "$x", "+"])
FILTERS = st.builds(
    lambda levels, tail: "/".join([*levels, *tail]),
    st.lists(LEVELS, min_size=1, max_size=3),
    st.sampled_from([[], ["#"]]),
).filter(bool) | st.just("#")
# All topics of up to four levels, over an alphabet with one letter more than that of the filters.
TOPICS = [
    "/".join(levels)
    for size in (1, 2, 3, 4)
    for levels in itertools.product(["a", "b", "", "$x", "c"], repeat=size)
]


@given(FILTERS, st.sets(st.sampled_from(TOPICS), max_size=12))
def test_a_filter_overlaps_exactly_the_topics_that_it_matches(text, topics):
    found = list(filters.FilterIndex(topics).meeting(text))
    assert sorted(found) == sorted(topic for topic in topics if naive_ingest.matches(text, topic))


@given(FILTERS, st.sets(FILTERS, max_size=6))
def test_filters_overlap_if_some_topic_matches_both(text, others):
    found = list(filters.FilterIndex(others).meeting(text))
    both = {
        other
        for other in others
        if any(naive_ingest.matches(text, topic) and naive_ingest.matches(other, topic) for topic in TOPICS)
    }
    assert set(found) == both
    assert len(found) == len(both)


@given(FILTERS, FILTERS)
def test_a_filter_covers_another_if_it_matches_all_of_its_topics(wide, narrow):
    matched = [topic for topic in TOPICS if naive_ingest.matches(narrow, topic)]
    assert filters.covers(wide, narrow) == all(naive_ingest.matches(wide, topic) for topic in matched)


@given(FILTERS, FILTERS)
def test_overlapping_filters_have_a_common_topic(one, other):
    found = filters.common_topic(one, other)
    assert (found is not None) == (one in filters.FilterIndex([one]).meeting(other))
    if found is not None:
        assert naive_ingest.matches(one, found)
        assert naive_ingest.matches(other, found)


@given(FILTERS, FILTERS)
def test_a_common_filter_matches_exactly_what_both_match(one, other):
    """Also for `$` topics, which no leading wildcard matches, and for `a/#`, which matches `a`."""
    valid = [topic for topic in TOPICS if topic]  # the empty topic is invalid
    both = {
        topic for topic in valid if naive_ingest.matches(one, topic) and naive_ingest.matches(other, topic)
    }
    found = filters.common_filter(one, other)
    topic = filters.common_topic(one, other)
    assert topic in (None, "") if found is None else topic is not None
    assert both == {topic for topic in valid if found is not None and naive_ingest.matches(found, topic)}
    assert found is None or filters.is_valid_filter(found)


@given(st.text(alphabet="ab/+#\0$", max_size=6))
def test_a_topic_filter_is_a_valid_filter_with_a_wildcard(text):
    wild = any(level in ("+", "#") for level in text.split("/"))
    assert filters.is_filter(text) == (wild and naive_ingest.is_filter(text))


@given(st.sets(FILTERS, min_size=1, max_size=8))
def test_a_discarded_filter_is_no_longer_found(texts):
    gone, *others = sorted(texts)
    index = filters.FilterIndex([gone, *others])
    index.discard(gone)
    for text in texts:
        assert sorted(index.meeting(text)) == sorted(filters.FilterIndex(others).meeting(text))


@given(st.lists(FILTERS, max_size=8, unique=True))
def test_groups_are_the_connected_components_of_overlaps(texts):
    groups = filters.groups(texts)
    for one, other in itertools.combinations(texts, 2):
        if other in set(filters.FilterIndex(texts).meeting(one)):
            assert groups[one] == groups[other]
    for name in set(groups.values()):
        members = {text for text in texts if groups[text] == name}
        reached, pending = set(), [name]
        while pending:
            text = pending.pop()
            if text not in reached:
                reached.add(text)
                pending += set(filters.FilterIndex(members).meeting(text)) & members
        assert reached == members
        assert name == min(members, key=lambda text: (len(text), text))


@given(st.text(alphabet="ab/+#\0$", max_size=6))
def test_filters_are_valid_by_the_rules_of_the_standard(text):
    assert filters.is_valid_filter(text) == naive_ingest.is_filter(text)


@given(FILTERS, st.sampled_from(TOPICS))
def test_a_filter_covers_exactly_the_topics_that_it_matches(text, topic):
    assert filters.covers(text, topic) == naive_ingest.matches(text, topic)


def test_a_filter_longer_than_mqtt_allows_is_not_valid():
    assert filters.is_valid_filter("a" * 65_535)
    assert not filters.is_valid_filter("a" * 65_536)
    assert not filters.is_valid_filter("\ud800")


def test_a_filter_with_very_many_levels_does_not_exhaust_the_stack():
    deep = "/".join(["a"] * 30_000)
    assert filters.groups([f"{deep}/#", deep])[f"{deep}/#"] == deep
    assert filters.common_filter(f"{deep}/#", "a/#") == f"{deep}/#"
    assert re.match(filters.VALID, deep)


def test_the_pattern_for_python_has_no_possessive_quantifiers():
    """Python 3.11.0 to 3.11.4 refuses `a/#` with them; the pattern for Java needs them for long lines."""
    assert "*+" not in filters.VALID_IN_PYTHON
    assert "*+" in filters.VALID
    for text, valid in (
        ("a/#", True),
        ("#", True),
        ("/#", True),
        ("a/+/#", True),
        ("a/#/b", False),
        ("a#", False),
    ):
        assert filters.is_valid_filter(text) is valid, text

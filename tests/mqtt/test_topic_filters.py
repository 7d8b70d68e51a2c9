"""MQTT filters: against the standard's rules written out, and against all topics of a small world."""

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
# Every topic of up to four levels over an alphabet with one letter more than filters use.
WORLD = [
    "/".join(levels)
    for size in (1, 2, 3, 4)
    for levels in itertools.product(["a", "b", "", "$x", "c"], repeat=size)
]


@given(FILTERS, st.sets(st.sampled_from(WORLD), max_size=12))
def test_meeting_is_matching_for_topics(text, topics):
    """A filter meets exactly the topics that it matches, level by level."""
    found = list(filters.FilterIndex(topics).meeting(text))
    assert sorted(found) == sorted(topic for topic in topics if naive_ingest.matches(text, topic))


@given(FILTERS, st.sets(FILTERS, max_size=6))
def test_filters_meet_if_some_topic_matches_both(text, others):
    found = list(filters.FilterIndex(others).meeting(text))
    both = {
        other
        for other in others
        if any(naive_ingest.matches(text, topic) and naive_ingest.matches(other, topic) for topic in WORLD)
    }
    assert set(found) == both
    assert len(found) == len(both)


@given(FILTERS, FILTERS)
def test_covering_is_matching_every_topic_of_the_other(wide, narrow):
    matched = [topic for topic in WORLD if naive_ingest.matches(narrow, topic)]
    assert filters.covers(wide, narrow) == all(naive_ingest.matches(wide, topic) for topic in matched)


@given(FILTERS, FILTERS)
def test_a_common_topic_is_found_wherever_filters_meet(one, other):
    found = filters.common_topic(one, other)
    assert (found is not None) == (one in filters.FilterIndex([one]).meeting(other))
    if found is not None:
        assert naive_ingest.matches(one, found)
        assert naive_ingest.matches(other, found)


@given(st.lists(FILTERS, max_size=8, unique=True))
def test_groups_are_the_components_of_meeting(texts):
    groups = filters.groups(texts)
    for one, other in itertools.combinations(texts, 2):
        if other in set(filters.FilterIndex(texts).meeting(one)):
            assert groups[one] == groups[other]
    for name in set(groups.values()):
        members = {text for text in texts if groups[text] == name}
        reached, todo = set(), [name]
        while todo:
            text = todo.pop()
            if text not in reached:
                reached.add(text)
                todo += set(filters.FilterIndex(members).meeting(text)) & members
        assert reached == members


@given(st.text(alphabet="ab/+#\0$\n", max_size=6))
def test_a_valid_filter_is_what_the_standard_says(text):
    assert filters.is_valid_filter(text) == naive_ingest.is_filter(text)


@given(FILTERS, st.sampled_from(WORLD))
def test_a_filter_covers_exactly_the_topics_that_it_matches(text, topic):
    assert filters.covers(text, topic) == naive_ingest.matches(text, topic)


def test_a_filter_longer_than_mqtt_allows_is_not_valid():
    assert filters.is_valid_filter("a" * 65_535)
    assert not filters.is_valid_filter("a" * 65_536)
    assert not filters.is_valid_filter("\ud800")


def test_a_filter_with_very_many_levels_is_no_trouble():
    """Deep filters exhaust no stack."""
    deep = "/".join(["a"] * 30_000)
    assert filters.topics_of([f"{deep}/#"], [deep])[f"{deep}/#"] == [deep]
    assert re.match(filters.VALID, deep)

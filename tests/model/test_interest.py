"""Interest: constructors accept valid input, and name the first error in one line."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broadloom import InputError, Interest
from shapes import SHAPES
from strategies import topic_lists


@pytest.mark.parametrize("lists", SHAPES.values(), ids=SHAPES)
def test_both_directions_agree(lists):
    """A node has a topic if and only if the topic has the node."""
    interest = Interest.from_lists(lists)
    by_node = {(u, int(t)) for u in range(interest.node_count) for t in interest.topics_of(u)}
    by_topic = {(int(u), t) for t in range(interest.topic_count) for u in interest.nodes_of(t)}
    assert by_node == by_topic
    assert {(u, interest.topic_ids[t]) for u, t in by_node} == {
        (u, str(t)) for u, row in enumerate(lists) for t in row
    }


@given(topic_lists(), st.randoms())
def test_order_of_rows_does_not_matter(lists, random):
    """Pairs in any order give the same interest as the lists."""
    pairs = [(f"n{u:02}", t) for u, row in enumerate(lists) for t in row]
    random.shuffle(pairs)
    nodes = [f"n{u:02}" for u in range(len(lists))]
    interest = Interest.from_pairs([n for n, _ in pairs], [t for _, t in pairs], node_ids=nodes)
    assert interest == Interest.from_lists([row[::-1] for row in lists], node_ids=nodes)


def test_number_ids_ascend_as_numbers():
    """Topic 10 comes after topic 9, though its text does not."""
    assert Interest.from_lists([[10, 9]]).topic_ids == ("9", "10")


def test_with_a_count_topics_keep_their_numbers():
    """With a count, topic ids are indices, and topics without subscribers exist."""
    interest = Interest.from_lists([[5], [2]], topics=8)
    assert interest.topic_count == 8
    assert interest.nodes_of(5).tolist() == [0]


def test_nodes_without_topics_come_from_the_nodes_table():
    """Indices follow the order of the nodes table."""
    subscriptions = pa.table({"node": ["b", "a"], "topic": ["x", "x"]})
    interest = Interest.from_table(subscriptions, pa.table({"node": ["c", "b", "a"]}))
    assert interest.node_ids == ("c", "b", "a")
    assert interest.nodes_of(0).tolist() == [1, 2]


def test_arrays_are_read_only():
    interest = Interest.from_lists([[0, 1]])
    with pytest.raises(ValueError, match="read-only"):
        interest.topics[0] = 1


def test_subset_keeps_topics_and_ids():
    interest = Interest.from_lists([["x"], ["y"], ["x", "y"]], node_ids=["a", "b", "c"])
    part = interest.subset([2, 0])
    assert part.node_ids == ("c", "a")
    assert part.topic_ids == interest.topic_ids
    assert part.topics_of(0).tolist() == [0, 1]


BAD = {
    "a topic twice": (
        lambda: Interest.from_lists([[0], [7, 7], [1, 1]]),
        "node '1' subscribes to topic '7' twice (and 1 more",
    ),
    "a pair twice": (
        lambda: Interest.from_pairs(["a", "a"], ["x", "x"]),
        "node 'a' subscribes to topic 'x' twice",
    ),
    "out of range": (
        lambda: Interest.from_lists([[0], [9]], topics=5),
        "node '1' subscribes to topic 9; topics are 0 to 4",
    ),
    "negative": (lambda: Interest.from_rows([0, 1], [-1], 3), "subscribes to topic -1"),
    "no topic": (lambda: Interest.from_lists([["x", None]]), "row 1 has no topic"),
    "empty topic": (lambda: Interest.from_pairs(["a"], [""]), "row 0 has no topic"),
    "NaN": (lambda: Interest.from_pairs(["a"], [float("nan")]), "row 0 has no topic"),
    "a fraction": (lambda: Interest.from_lists([[1.5]]), "topic ids are double"),
    "two kinds": (lambda: Interest.from_lists([["x", 3]]), "several types"),
    "unknown node": (lambda: Interest.from_pairs(["z"], ["x"], node_ids=["a"]), "row 0: node z is unknown"),
    "lengths": (lambda: Interest.from_pairs(["a"], []), "1 nodes but 0 topics"),
    "node id twice": (
        lambda: Interest.from_lists([[0], [0]], node_ids=["a", "a"]),
        "node id 'a' appears twice",
    ),
    "empty node id": (lambda: Interest.from_lists([[0]], node_ids=[""]), "node 0 has no id"),
    "ids too few": (lambda: Interest.from_lists([[0], [1]], node_ids=["a"]), "2 nodes but 1 node ids"),
    "row starts": (lambda: Interest.from_rows([0, 3, 2], [0, 1], 2), "row starts do not ascend"),
    "no column": (lambda: Interest.from_table(pa.table({"node": ["a"]})), "no column 'topic'"),
    "text for a count": (lambda: Interest.from_lists([["x"]], topics=3), "topic 'x' is not a number"),
    "a word for a list": (lambda: Interest.from_lists(["ab"]), "the topics of node 0 are 'ab'"),
    "topics below 0": (lambda: Interest.from_lists([], topics=-1), "topics is -1"),
    "beyond a count": (lambda: Interest.from_lists([[2**70]], topics=5), "beyond 64 bits"),
    "no such node": (lambda: Interest.from_lists([[0]]).subset([0, 5]), "node 5 does not exist"),
    "beyond 64 bits": (lambda: Interest.from_lists([[2**70]]), "beyond 64 bits"),
}


@pytest.mark.parametrize(("make", "message"), BAD.values(), ids=BAD)
def test_bad_input_is_named(make, message):
    """The message names the first bad entry in one line."""
    with pytest.raises(InputError) as caught:
        make()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_repr_counts():
    assert repr(Interest.from_lists([[0]] * 1234)) == "Interest(1,234 nodes, 1 topics, 1,234 subscriptions)"
    assert np.array_equal(Interest.from_lists([]).topic_start, [0])

"""Abuse of the public API that once gave a wrong result in silence, an odd error, or a locked array."""

import copy
import datetime
import pickle
import uuid
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

import broadloom as bl

INTEREST = bl.Interest.from_lists([[0, 1], [1, 2], [0, 1, 2], [2]], topics=3)
MATRIX = np.array([[0, 1, 2, 3], [1, 0, 4, 5], [2, 4, 0, 6], [3, 5, 6, 0]], float)
WEIGHTS = {
    "uniform": bl.Weights.uniform(4),
    "dense": bl.Weights.dense(MATRIX),
    "euclidean": bl.Weights.euclidean([[0, 0], [3, 4], [6, 0], [9, 9]]),
    "sites": bl.Weights.sites([0, 0, 1, 1]),
}
PROBLEM = bl.AssignmentProblem([0], [[1], [2]], [-1, -1], [[3], [0], [1]], [[0], [5], [2]], [[1], [7], [3]])
MASK = np.array([True, False, True, True])
EDGES = [(0, 2), (1, 2), (2, 3)]
BAD_IDS = {
    "a UUID": uuid.uuid4(),
    "a time": datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC),
    "a date": datetime.date(2026, 1, 2),
    "a NumPy time": np.datetime64("2026-01-02"),
    "a decimal": Decimal("1.5"),
    "a fraction": 1.5,
    "a truth value": True,
    "bytes": b"a",
    "a lone surrogate": "\ud800",
    "a surrogate in a text": "a\udfffb",
    "None": None,
    "NaN": float("nan"),
    "nothing": "",
    "a list": ["a"],
}
ODD_IDS = ["a", "$(a)", "x" * 10_000, " ", "0", "-1", "ä", "a\u0308", "\U0001f600"]


# Boolean masks.


def test_a_mask_selects_nodes_of_an_interest():
    assert INTEREST.subset(MASK) == INTEREST.subset([0, 2, 3])
    assert INTEREST.subset(MASK.tolist()) == INTEREST.subset([0, 2, 3])


@pytest.mark.parametrize("kind", WEIGHTS)
def test_a_mask_selects_nodes_of_weights(kind):
    weights = WEIGHTS[kind]
    expected = weights.matrix()[np.ix_([0, 2, 3], [0, 2, 3])]
    assert np.array_equal(weights.subset(MASK).matrix(), expected)


def test_a_mask_selects_subscribers():
    assert PROBLEM.subset([True, False, True]).lo.tolist() == PROBLEM.subset([0, 2]).lo.tolist() == [[0], [2]]


def test_a_mask_selects_topics_to_measure():
    diameters = bl.measures.topic_diameters(INTEREST, EDGES)
    chosen = bl.measures.topic_diameters(INTEREST, EDGES, topics=[False, True, True])
    assert chosen.tolist() == diameters[1:].tolist()


@pytest.mark.parametrize("mask", [[True], [True] * 5, [False] * 3, np.ones((4, 1), bool)])
def test_a_mask_of_another_shape_is_refused(mask):
    for subset in (INTEREST.subset, *(weights.subset for weights in WEIGHTS.values())):
        with pytest.raises(bl.InputError, match=r"mask has|shape"):
            subset(mask)


def test_a_mask_is_not_a_list_of_ends():
    with pytest.raises(bl.InputError, match="truth values"):
        WEIGHTS["dense"].of([True, False], [False, True])
    with pytest.raises(bl.InputError, match="truth values"):
        bl.measures.market_cost(bl.workload.market(3, 2, 2), [True, False, True])


# Nodes that do not exist, negative and repeated indices, indices that are not whole numbers.


@pytest.mark.parametrize("kind", WEIGHTS)
@pytest.mark.parametrize("nodes", [[-1], [4], [0, 2**31], [2**63], [2**70], [-(2**70)]])
def test_nodes_that_do_not_exist_are_refused(kind, nodes):
    for call in (
        WEIGHTS[kind].subset,
        INTEREST.subset,
        lambda nodes: WEIGHTS[kind].of(nodes, [0] * len(nodes)),
    ):
        with pytest.raises(bl.InputError):
            call(nodes)


@pytest.mark.parametrize("kind", WEIGHTS)
def test_repeated_nodes_of_a_subset_are_refused(kind):
    """Two copies of a node would be linked at weight 0."""
    with pytest.raises(bl.InputError, match="node 1 is given twice"):
        WEIGHTS[kind].subset([1, 0, 1])
    with pytest.raises(bl.InputError, match="appears twice"):
        INTEREST.subset([1, 0, 1])


@pytest.mark.parametrize(
    "node", [-1, 4, 2**31, 2**63, 2**70, 1.0, "1", True, None, [1], np.array([1]), np.nan]
)
def test_a_node_that_does_not_exist_has_no_topics(node):
    for call in (INTEREST.topics_of, INTEREST.nodes_of, bl.maintain(INTEREST).topics_of):
        with pytest.raises(bl.InputError):
            call(node)


@pytest.mark.parametrize(
    "nodes", [[0.0, 2.0], [0.9], np.array([1.0]), ["0"], [0, "2"], [None], [1j], "02", b"02"]
)
def test_float_and_text_indices_are_refused(nodes):
    for call in (INTEREST.subset, WEIGHTS["dense"].subset, WEIGHTS["sites"].subset, PROBLEM.subset):
        with pytest.raises(bl.InputError, match="give"):
            call(nodes)


def test_a_huge_number_of_nodes_does_not_wrap_around():
    """`4 * 2**62` is 0 in 64 bits, so distinct edges would look repeated."""
    with pytest.raises(bl.InputError, match="nodes is 4611686018427387904"):
        bl.Overlay.from_edges(2**62, [(4, 5), (0, 5)])


# Masked arrays.


def test_masked_entries_are_refused_everywhere():
    """NumPy would silently use the hidden values."""
    hidden = np.ma.array([0, 2, 3], mask=[True, False, False])
    matrix = np.ma.array(MATRIX, mask=MATRIX > 5)
    for call in (
        lambda: INTEREST.subset(hidden),
        lambda: WEIGHTS["dense"].subset(hidden),
        lambda: WEIGHTS["dense"].of(hidden, [0, 0, 0]),
        lambda: bl.Weights.dense(matrix),
        lambda: bl.Weights.dense(list(matrix)),
        lambda: bl.Weights.euclidean(matrix),
        lambda: bl.Weights.sites(hidden),
        lambda: bl.Overlay.from_edges(4, np.ma.array([[0, 1]], mask=[[False, True]])),
        lambda: bl.Interest.from_lists([hidden]),
        lambda: bl.Interest.from_pairs(hidden, hidden),
        lambda: bl.maintain(INTEREST).join(hidden),
        lambda: bl.Density([[0, 1, 2]], np.ma.array([3.0, 1.0], mask=[0, 1])),
        lambda: bl.MarketProblem([[1]], [[1]], np.ma.array([[1]], mask=[[1]]), [[0]], 9),
    ):
        with pytest.raises(bl.InputError):
            call()


def test_a_masked_array_without_masked_entries_is_an_array():
    assert bl.Weights.dense(np.ma.array(MATRIX, mask=False)) == WEIGHTS["dense"]
    assert INTEREST.subset(np.ma.array([0, 2])) == INTEREST.subset([0, 2])


# Flags.


@pytest.mark.parametrize("word", ["no", "false", "False", "yes", "", 0, 1, None, [], np.array([False])])
def test_a_word_is_not_a_flag(word, tmp_path):
    """`close="no"` must not close the prices."""
    plan = bl.link(INTEREST, algorithm="gm")
    live = bl.maintain(INTEREST)
    for call in (
        lambda: bl.MarketProblem([[3], [0]], [[0], [1]], [[1, 2], [2, 1]], [[0, 1], [1, 0]], 9, close=word),
        lambda: plan.save(tmp_path / "plan", overwrite=word),
        lambda: live.save(tmp_path / "live", overwrite=word),
        lambda: bl.link(INTEREST, improve=word),
        lambda: bl.improve(plan, exchange=word),
        lambda: bl.workload.write(tmp_path / "tables", INTEREST, in_regions=word),
        lambda: bl.workload.write(tmp_path / "tables", INTEREST, overwrite=word),
        lambda: bl.MovePlan(()).save(tmp_path / "moves", overwrite=word),
        lambda: bl.MovingClient("a", {"rome": "host:1"}, "rome", learn=word),
    ):
        with pytest.raises(bl.InputError, match="give true or false"):
            call()
    assert not list(tmp_path.iterdir())


# The caller's arrays.


def test_constructors_leave_the_arrays_of_the_caller_writeable_and_do_not_follow_them():
    matrix = MATRIX.copy()
    edges = np.array(EDGES, np.int32)
    broker_of = np.array([0, 1, 0], np.int32)
    corner = np.array([0.0]), np.array([7.0])
    topics = np.array([0, 1, 1], np.int32)
    start = np.array([0, 2, 3])
    made = [
        bl.Weights("dense", 4, table=matrix),
        bl.Overlay(4, edges),
        bl.AssignmentResult(PROBLEM, broker_of, ((corner,), (corner,))),
        bl.Interest.from_rows(start, topics, 2),
    ]
    before = [made[0].matrix().tolist(), made[1].edges.tolist(), made[2].metrics(), made[3].topics.tolist()]
    arrays = (matrix, edges, broker_of, *corner, topics, start)
    assert all(array.flags.writeable for array in arrays)
    for array in arrays:
        array[...] = 1
    assert made[0].matrix().tolist() == before[0]
    assert made[1].edges.tolist() == before[1]
    assert bl.AssignmentResult(PROBLEM, made[2].broker_of, made[2].filters).metrics() == before[2]
    assert made[3].topics.tolist() == before[3]


def test_measures_leave_the_arrays_of_the_caller_writeable():
    edges = np.array(EDGES, np.int32)
    bl.measures.metrics(INTEREST, edges, WEIGHTS["dense"])
    bl.measures.link_loads(INTEREST, edges, WEIGHTS["dense"])
    assert edges.flags.writeable


def test_a_read_only_view_of_a_writeable_array_is_copied():
    rates = np.array([[3.0], [0.0]])
    view = rates.view()
    view.flags.writeable = False
    market = bl.MarketProblem(view, [[0], [1]], [[1, 2], [2, 1]], [[0, 1], [1, 0]], capacity=9)
    rates[...] = 100
    assert market.demand.tolist() == [3.0, 3.0]


# The shapes of arrays.


@pytest.mark.parametrize("ends", [[[0, 1], [2, 3]], [[0], [1]], np.zeros((1, 1, 2), int)])
def test_ends_of_links_in_two_axes_are_refused(ends):
    with pytest.raises(bl.InputError, match="give two lists"):
        WEIGHTS["dense"].of(ends, ends)


def test_the_constructors_of_arrays_check_what_kernels_rely_on():
    """A kernel would read beyond the end of an array."""
    with pytest.raises(bl.InputError):
        bl.Interest(
            ("a",), ("x",), np.array([0, 1]), np.array([7], np.int32), np.array([0, 1]), np.array([0])
        )
    with pytest.raises(bl.InputError):
        bl.Interest(
            ("a",), ("x",), np.array([0, 1]), np.array([0], np.int32), np.array([0, 1]), np.array([9])
        )
    with pytest.raises(bl.InputError):
        bl.Overlay(2, np.array([[0, 9]], np.int32))
    with pytest.raises(bl.InputError):
        bl.Weights("dense", 9, table=MATRIX)
    with pytest.raises(bl.InputError):
        bl.AssignmentResult(PROBLEM, np.array([0, 1, 9], np.int32), ((), ()))
    with pytest.raises(bl.InputError, match="corners of 1 numbers"):
        bl.Density([[0, 1, 2]], [3.0, 1.0]).measure([0.0, 1.0], [1.0, 2.0])


# Ids.


@pytest.mark.parametrize("value", BAD_IDS.values(), ids=BAD_IDS)
def test_ids_that_are_not_text_or_whole_numbers_are_refused(value):
    zeros = [[0.0, 0.0], [0.0, 0.0]]
    for call in (
        lambda: bl.Interest.from_lists([["x"], [value]]),
        lambda: bl.Interest.from_lists([[0], [0]], node_ids=["a", value]),
        lambda: bl.Interest.from_pairs(["a", value], ["x", "x"]),
        lambda: bl.Interest.from_pairs([value], ["x"]),
        lambda: bl.Interest.from_pairs([value], ["x"], node_ids=[value]),
        lambda: bl.Interest.from_pairs(["a"], ["x"], topic_ids=["x", value]),
        lambda: bl.AssignmentProblem([0], [[1]], [-1], [[2]], [[0]], [[1]], broker_ids=[value]),
        lambda: bl.MarketProblem(zeros, zeros, zeros, zeros, 9, user_ids=["a", value]),
        lambda: bl.maintain(INTEREST).join([value]),
    ):
        with pytest.raises(bl.InputError):
            call()


def test_ids_without_an_order_or_of_one_text_are_refused():
    """The order of a set is arbitrary, and a text is not a list of its letters."""
    for ids in (
        {"a", "b", "c", "d"},
        "abcd",
        b"abcd",
        {"a": 1, "b": 2, "c": 3, "d": 4},
        4,
        np.array([["a"] * 4]),
    ):
        with pytest.raises(bl.InputError):
            bl.Interest.from_lists([[0]] * 4, node_ids=ids)
        with pytest.raises(bl.InputError):
            bl.Interest.from_pairs(ids, ids)


def test_odd_ids_survive_a_plan_on_disk(tmp_path):
    """Long texts, other scripts, and topics that differ only in a trailing NUL."""
    interest = bl.Interest.from_lists([["t\0", "t"]] * len(ODD_IDS), node_ids=ODD_IDS)
    assert interest.node_ids == tuple(ODD_IDS)
    bl.link(interest, algorithm="gm").save(tmp_path / "plan")
    assert bl.Plan.load(tmp_path / "plan").interest == interest


@pytest.mark.parametrize("wrong", ["a\0", "a\nb", "\x1b[2J", "a\u2028b", "\u202egpj", "\x9b31m"])
def test_a_node_id_with_a_control_character_is_refused(wrong):
    """It would end a line of a broker's file, or command a terminal."""
    with pytest.raises(bl.InputError, match="has a line break or another control character"):
        bl.Interest.from_lists([["t"], ["t"]], node_ids=["a", wrong])


def test_numbers_and_arrow_columns_are_ids():
    expected = bl.Interest.from_lists([["x"], ["x"]], node_ids=["7", "8"])
    for ids in ([7, 8], np.array([7, 8]), np.array([7, 8], ">i2"), iter([7, 8]), pa.array(["7", "8"])):
        assert bl.Interest.from_lists([["x"], ["x"]], node_ids=ids) == expected


# Copies.


@pytest.mark.parametrize("weights", WEIGHTS.values(), ids=WEIGHTS)
@pytest.mark.parametrize("clone", [copy.copy, copy.deepcopy, lambda live: pickle.loads(pickle.dumps(live))])
def test_a_copy_of_a_live_overlay_goes_its_own_way(weights, clone):
    """A pickle, before and after changes, behaves as the original from then on, and is independent of it."""
    at = {"uniform": None, "dense": dict.fromkeys(range(4), 2.0), "euclidean": [1, 1], "sites": 1}[
        weights.kind
    ]
    live = bl.maintain(INTEREST, weights)
    live.join([0, 1], name="new", at=at)
    other = clone(live)
    assert (other.interest, other.edges.tolist(), other.seed) == (
        live.interest,
        live.edges.tolist(),
        live.seed,
    )
    ours, its = live.leave(2), other.leave(2)
    assert (ours.added.tolist(), ours.removed.tolist()) == (its.added.tolist(), its.removed.tolist())
    other.resubscribe(0, ["brand new"])
    assert live.topic_ids == INTEREST.topic_ids
    assert live.metrics()["topic_connected"]
    assert other.metrics()["topic_connected"]


@pytest.mark.parametrize("clone", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_live_overlay_with_a_journal_cannot_be_copied(clone, tmp_path):
    """Two overlays must not write to one journal."""
    with bl.maintain(INTEREST) as live:
        live.save(tmp_path / "live")
        with pytest.raises(bl.InputError, match=r"close\(\) it before you copy or pickle it"):
            clone(live)
    assert clone(live)


# What a journal could not restore.


def test_a_node_cannot_join_where_a_saved_overlay_could_not_be_loaded(tmp_path):
    """Points so far or so near, or weights so large, that the loaded weights would be refused."""
    live = bl.maintain(INTEREST, WEIGHTS["euclidean"])
    for at in ([1e200, 0], [1e-200, 0], [np.inf, 0], ["1", "2"], [0, 0]):
        with pytest.raises(bl.InputError):
            live.join([0], at=at)
    live = bl.maintain(INTEREST, WEIGHTS["dense"])
    with pytest.raises(bl.InputError, match="the weight to node 0"):
        live.join([0], at=dict.fromkeys(range(4), 1e200))
    live.join([0], at=dict.fromkeys(range(4), 1e99))
    with live:
        live.save(tmp_path / "live")
    with bl.Live.load(tmp_path / "live") as loaded:
        assert loaded.edges.tolist() == live.edges.tolist()


# Numbers.


def test_numbers_as_text_are_refused():
    """NumPy reads them; a column of text is more often a mistake."""
    for call in (
        lambda: bl.Weights.dense([["0", "1"], ["1", "0"]]),
        lambda: bl.Weights.euclidean([["0"], ["1"]]),
        lambda: bl.MarketProblem([["3"]], [[1]], [[1]], [[0]], 9),
        lambda: bl.Density([["0", "1"]], [1.0]),
        lambda: bl.AssignmentProblem(["0"], [[1]], [-1], [[2]], [[0]], [[1]]),
        lambda: bl.Grid.over(["0"], [1], [2]),
    ):
        with pytest.raises(bl.InputError):
            call()


def test_popularities_that_overflow_or_vanish_are_refused():
    """Topics of chance 0 cannot be drawn."""
    for arguments in (
        {"popularity": "zipf", "alpha": -1e308},
        {"popularity": "expo", "rate": -1e308},
        {"popularity": "zipf", "alpha": 1e308},
        {"size_law": "power", "gamma": -1e308},
    ):
        with pytest.raises(bl.InputError):
            bl.workload.interest(nodes=3, topics=9, sizes=(2, 5), **arguments)
    drawn = bl.workload.interest(nodes=3, topics=9, sizes=(1, 1), popularity="zipf", alpha=1e308)
    assert drawn.topics.tolist() == [0, 0, 0]

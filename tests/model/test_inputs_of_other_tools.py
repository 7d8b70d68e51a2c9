"""Interests from matrices and from tables of other libraries; weights from NetworkX graphs."""

import networkx as nx
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import sparse

import broadloom as bl
from broadloom import InputError, Interest, Weights
from strategies import interests, lists_of

# Matrices.

MATRICES = hnp.arrays(np.bool_, st.tuples(st.integers(0, 6), st.integers(0, 6)))
FORMATS = ("bsr", "coo", "csc", "csr", "dia", "dok", "lil")


@given(MATRICES)
@settings(max_examples=50, deadline=None)
def test_a_matrix_is_the_interest_of_its_rows(matrix):
    """Each row lists the topics of its node, as a loop over the matrix finds them."""
    lists = [[topic for topic in range(matrix.shape[1]) if row[topic]] for row in matrix]
    expected = Interest.from_lists(lists, topics=matrix.shape[1])
    for dense in (matrix, matrix.astype(np.int8), matrix.astype(float), matrix.T.copy().T):
        assert Interest.from_matrix(dense) == expected
    assert Interest.from_matrix(matrix.tolist() or np.empty(matrix.shape)) == expected
    for name in FORMATS:
        if matrix.size or name in ("coo", "csr"):
            assert Interest.from_matrix(sparse.coo_array(matrix).asformat(name)) == expected, name
            assert Interest.from_matrix(sparse.coo_matrix(matrix.astype(int)).asformat(name)) == expected


def test_stored_zeros_are_no_subscriptions_and_the_matrix_is_unchanged():
    matrix = sparse.csr_array(([1, 0, 1], [2, 0, 1], [0, 2, 3]), shape=(2, 3))
    assert lists_of(Interest.from_matrix(matrix)) == [[2], [1]]
    assert matrix.indices.tolist() == [2, 0, 1]
    assert matrix.data.flags.writeable


def test_a_matrix_can_name_nodes_and_topics():
    interest = Interest.from_matrix([[1, 0], [1, 1]], node_ids=["rome", "oslo"], topic_ids=["b", "a"])
    assert interest == Interest.from_pairs(
        ["rome", "oslo", "oslo"], ["b", "b", "a"], node_ids=["rome", "oslo"], topic_ids=["b", "a"]
    )


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        ([[0, 2]], "the entry of node 0 and topic 1 is 2; give 0 or 1"),
        ([[0.5]], "is 0.5"),
        ([[np.nan]], "is nan"),
        ([[-1]], "is -1"),
        ([1, 0], r"shape \(2,\); give one row per node"),
        ([[1], [1, 0]], "entries that are not numbers"),
        ([["a"]], "the matrix is of <U1; give 0 and 1"),
        ([[None]], "the matrix is of object"),
        ([[1j]], "the matrix is of complex128"),
        (3, r"shape \(\)"),
        (None, r"shape \(\)"),
        (np.ma.masked_array([[1]], [[True]]), "the matrix is a MaskedArray"),
        (pd.DataFrame({"a": [1]}), "the matrix is a DataFrame; give a plain array"),
        (sparse.csr_array([[0, 3]]), "node 0 and topic 1 is 3"),
        (sparse.csr_array([[0, np.nan]]), "is nan"),
        (sparse.coo_array(np.array([1, 0])), r"shape \(2,\)"),
        (sparse.coo_array(([1] * 256, ([0] * 256, [0] * 256)), dtype=np.int8), "topic '0' twice"),
        (sparse.csr_array([[1j]]), "complex128"),
    ],
)
def test_other_matrices_are_refused(matrix, message):
    with pytest.raises(InputError, match=message):
        Interest.from_matrix(matrix)


def test_ids_of_a_matrix_must_fit():
    with pytest.raises(InputError, match="2 topics but 1 topic ids"):
        Interest.from_matrix([[1, 0]], topic_ids=["a"])
    with pytest.raises(InputError, match="1 nodes but 2 node ids"):
        Interest.from_matrix([[1, 0]], node_ids=["a", "b"])
    with pytest.raises(InputError, match="topic ids are 'ab'; give a list"):
        Interest.from_matrix([[1, 0]], topic_ids="ab")


# Tables.


class StreamOnly:
    """A table of an unknown library: nothing but the Arrow C stream interface."""

    def __init__(self, table):
        self._table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return self._table.__arrow_c_stream__(requested_schema)


class ArrayOnly:
    """A record batch of an unknown library: nothing but the Arrow C array interface."""

    def __init__(self, table):
        self._batch = table.combine_chunks().to_batches()[0]

    def __arrow_c_array__(self, requested_schema=None):
        return self._batch.__arrow_c_array__(requested_schema)


def _as_views(table):
    """Strings as views, as Polars exports them."""
    return pa.table({name: table[name].cast(pa.string_view()) for name in table.column_names})


def _as_dictionaries(table):
    """Categories, as pandas and Polars export them."""
    return pa.table({name: table[name].dictionary_encode() for name in table.column_names})


FORMS = {
    "batch": lambda table: table.combine_chunks().to_batches()[0],
    "reader": lambda table: table.to_reader(),
    "chunks": lambda table: pa.concat_tables([table.slice(0, 1), table.slice(1)]),
    "pandas": lambda table: table.to_pandas(),
    "pandas with an index": lambda table: table.to_pandas().sample(frac=1, random_state=1),
    "pandas categories": lambda table: table.to_pandas().astype("category"),
    "pandas of Arrow": lambda table: table.to_pandas(types_mapper=pd.ArrowDtype),
    "stream": StreamOnly,
    "array": ArrayOnly,
    "string views": lambda table: StreamOnly(_as_views(table)),
    "large strings": lambda table: StreamOnly(
        pa.table({name: table[name].cast(pa.large_string()) for name in table.column_names})
    ),
    "dictionaries": lambda table: StreamOnly(_as_dictionaries(table)),
    "dictionaries of views": lambda table: StreamOnly(
        pa.table({n: _as_views(table)[n].dictionary_encode() for n in table.column_names})
    ),
}


@pytest.mark.parametrize("form", FORMS)
@given(interests())
@settings(max_examples=10, deadline=None)
def test_every_form_of_a_table_gives_the_same_interest(form, interest):
    table = interest.to_table()
    if table.num_rows == 0 or (form == "dictionaries of views" and not _encodes_views()):
        return
    nodes = pa.table({"node": list(interest.node_ids)})
    topics = pa.table({"topic": list(interest.topic_ids)})
    convert = FORMS[form]
    assert Interest.from_table(convert(table)) == Interest.from_table(table)
    if form != "pandas with an index":  # the order of the rows of `nodes` counts
        assert Interest.from_table(convert(table), convert(nodes), convert(topics)) == interest
    assert Interest.from_table(table, nodes, topics) == interest


def _encodes_views():
    """Whether this pyarrow can build dictionaries of string views."""
    try:
        pa.array(["a"], pa.string_view()).dictionary_encode()
    except pa.ArrowNotImplementedError:
        return False
    return True


def test_numbers_as_ids_come_from_pandas():
    frame = pd.DataFrame({"node": [10, 9, 10], "topic": ["x", "x", "y"]}, index=["p", "q", "r"])
    assert Interest.from_table(frame).node_ids == ("9", "10")


def test_a_missing_id_of_pandas_is_refused():
    with pytest.raises(InputError, match="row 1 has no node"):
        Interest.from_table(pd.DataFrame({"node": ["a", None], "topic": ["x", "y"]}))


class LazyFrame:
    """A query that has not run yet, as in Polars."""

    def collect(self):
        """Run it; nothing does so without being asked."""
        raise AssertionError


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ([("a", "x")], "table subscriptions is a list; give a table of Arrow, pandas or Polars"),
        ({"node": ["a"], "topic": ["x"]}, "table subscriptions is a dict"),
        (None, "table subscriptions is a NoneType"),
        (LazyFrame(), "table subscriptions is a LazyFrame; collect it first"),
        (pa.chunked_array([["a"]]), "table subscriptions, a ChunkedArray, is not a table of columns"),
        (pa.array(["a"]), "is not a table of columns"),
        (pd.DataFrame({"node": ["a", 1], "topic": ["x", "x"]}), "is not a table of columns"),
        (pd.DataFrame({"node": ["a"]}), "table subscriptions has no column 'topic'"),
    ],
)
def test_other_values_are_refused(table, message):
    with pytest.raises(InputError, match=message):
        Interest.from_table(table)


def test_the_links_of_a_plan_go_through_pandas_and_back():
    """A plan's table is again a table of pairs: its ends as nodes and topics."""
    plan = bl.link(Interest.from_lists([[0]] * 4), algorithm="gm")
    frame = plan.to_table().to_pandas().rename(columns={"u": "node", "v": "topic"})
    assert Interest.from_table(frame).subscription_count == len(plan.edges)


# Weights from NetworkX.


@st.composite
def graphs(draw):
    """A connected graph of any kind with weights; nodes are numbers or texts."""
    count = draw(st.integers(2, 8))
    kind = draw(st.sampled_from([nx.Graph, nx.DiGraph, nx.MultiGraph, nx.MultiDiGraph]))
    node = (lambda i: i) if draw(st.booleans()) else (lambda i: f"node {i}")
    graph = kind()
    pairs = [(i, draw(st.integers(0, i - 1))) for i in range(1, count)]
    pairs += draw(st.lists(st.tuples(*[st.integers(0, count - 1)] * 2), max_size=12))
    for u, v in pairs:
        graph.add_edge(node(u), node(v), cost=draw(st.integers(1, 64)) / 4)
    return graph


@given(graphs(), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_weights_are_the_edges_and_paths_that_networkx_finds(graph, random):
    """A direct edge counts as it is; other pairs have the length of NetworkX's shortest path."""
    plain = nx.Graph()
    for u, v in {frozenset(edge[:2]) for edge in graph.edges()} - {frozenset([u]) for u in graph}:
        directions = [
            min(d["cost"] for s, t, d in graph.edges(data=True) if (s, t) in pairs)
            for pairs in ([(u, v)], [(v, u)])
            if graph.is_directed()
            if any((s, t) in pairs for s, t in ((e[0], e[1]) for e in graph.edges()))
        ] or [min(d["cost"] for s, t, d in graph.edges(data=True) if {s, t} == {u, v})]
        plain.add_edge(u, v, cost=sum(directions) / len(directions))
    nodes = list(plain)
    random.shuffle(nodes)
    nodes = nodes[: random.randint(1, len(nodes))]
    weights = Weights.from_networkx(graph, nodes, weight="cost", missing="path")
    lengths = dict(nx.all_pairs_dijkstra_path_length(plain, weight="cost"))
    for i, u in enumerate(nodes):
        for j, v in enumerate(nodes):
            if i != j:
                expected = plain.edges[u, v]["cost"] if plain.has_edge(u, v) else lengths[u][v]
                assert weights.of([i], [j])[0] == pytest.approx(expected)


@given(st.integers(2, 8), st.randoms(use_true_random=False))
@settings(max_examples=20, deadline=None)
def test_a_plan_and_weights_go_through_networkx_and_back(count, random):
    """The weights of a complete graph follow the order of the interest's ids, not that of the graph."""
    ids = [f"n{i}" for i in range(count)]
    matrix = np.array(
        [[0 if i == j else 1 + (i * j) % 5 + i + j for j in range(count)] for i in range(count)]
    )
    order = list(range(count))
    random.shuffle(order)
    graph = nx.Graph()
    graph.add_nodes_from(ids[i] for i in order)
    graph.add_weighted_edges_from(
        (ids[i], ids[j], float(matrix[i, j])) for i in order for j in order if i < j
    )
    interest = Interest.from_lists([["t"]] * count, node_ids=ids)
    weights = Weights.from_networkx(graph, interest)
    assert weights == Weights.dense(matrix)
    plan = bl.link(interest, weights, algorithm="trmaw")
    tree = nx.minimum_spanning_tree(graph)
    assert plan.total_weight == tree.size(weight="weight")
    assert nx.utils.graphs_equal(plan.to_networkx().edge_subgraph([]), nx.Graph())


def _graph(*edges, kind=nx.Graph):
    graph = kind()
    graph.add_weighted_edges_from(edges)
    return graph


@pytest.mark.parametrize(
    ("graph", "nodes", "options", "message"),
    [
        (_graph(("a", "b", 1)), ["a", "c"], {}, "the graph has no node 'c'; name its nodes by the ids"),
        (_graph((1, "1", 1)), ["1"], {}, "a number and a text as node '1'"),
        (_graph(("a", "b", 1), ("b", "c", 1)), ["a", "b", "c"], {}, "'a' and 'c' have no edge; connect them"),
        (_graph(("a", "b", 1), ("c", "d", 1)), "abcd", {}, "node ids are 'abcd'; give a list"),
        (_graph(("a", "b", 1), ("c", "d", 1)), ["a", "c"], {"missing": "path"}, "have no path"),
        (
            _graph(("a", "b", 1)),
            ["a", "b"],
            {"missing": "guess"},
            "missing is 'guess'; give one of refuse, path",
        ),
        (_graph(("a", "b", 0)), ["a", "b"], {}, "the edge of 'a' and 'b' has weight 0"),
        (_graph(("a", "b", -1)), ["a", "b"], {}, "has weight -1"),
        (_graph(("a", "b", np.nan)), ["a", "b"], {}, "has weight nan"),
        (_graph(("a", "b", "3")), ["a", "b"], {}, "has weight '3'"),
        (_graph(("a", "b", 1)), ["a", "b"], {"weight": "rtt"}, "has no 'rtt'; give each edge"),
        (_graph(("a", "b", 1)), ["a", "a"], {}, "'a' appears twice"),
        (_graph(("a", "b", 1)), 3, {}, "node ids are 3; give a list"),
        (_graph(("a", "b", 1)), ["a", "b"], {"weight": ["w"]}, "weight is .'w'.; give the name"),
        (_graph(("a", "b", 1)), ["a", "b"], {"missing": 3}, "missing is 3; give one of refuse, path"),
        (np.eye(2), ["a", "b"], {}, "the graph is a ndarray; give a NetworkX graph"),
    ],
)
def test_graphs_without_a_clear_answer_are_refused(graph, nodes, options, message):
    with pytest.raises(InputError, match=message):
        Weights.from_networkx(graph, nodes, **options)


def test_edges_without_weights_count_hops():
    weights = Weights.from_networkx(nx.path_graph(4), ["3", "0", "1"], weight=None, missing="path")
    assert weights.matrix().tolist() == [[0, 3, 2], [3, 0, 1], [2, 1, 0]]

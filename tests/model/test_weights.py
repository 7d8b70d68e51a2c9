"""Weights: every kind has the same values inside and outside of kernels, and bad weights are errors."""

import math
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broadloom import InputError, Weights
from strategies import weights_for


@given(st.integers(0, 9).flatmap(weights_for))
def test_weights_are_positive_and_symmetric(weights):
    """Weights of every kind are above 0 off the diagonal, and symmetric."""
    matrix = weights.matrix()
    off = ~np.eye(len(matrix), dtype=bool)
    assert np.array_equal(matrix, matrix.T)
    assert (matrix[off] > 0).all()
    assert np.isfinite(matrix).all()


@given(st.integers(2, 9).flatmap(weights_for), st.data())
def test_a_subset_keeps_its_weights(weights, data):
    nodes = data.draw(st.lists(st.integers(0, weights.node_count - 1), unique=True))
    assert np.array_equal(weights.subset(nodes).matrix(), weights.matrix()[np.ix_(nodes, nodes)])


@given(st.integers(2, 9).flatmap(weights_for))
def test_scaling_by_two_doubles_all_weights(weights):
    assert np.array_equal(weights.scaled(2.0).matrix(), 2 * weights.matrix())


def test_euclidean_weights_equal_the_formula():
    points = np.random.default_rng(0).random((6, 3))
    got = Weights.euclidean(points).matrix()
    for u in range(6):
        for v in range(6):
            total = 0.0
            for axis in range(3):
                total += (points[u, axis] - points[v, axis]) * (points[u, axis] - points[v, axis])
            assert got[u, v] == math.sqrt(total)


def test_sites_with_a_table():
    """An entry above 0 on the table's diagonal is the weight inside the site."""
    weights = Weights.sites([0, 0, 1, 1], inner=3, between=[[0, 7], [7, 2]])
    assert weights.of([0, 0, 2], [1, 2, 3]).tolist() == [3, 7, 2]


def test_rounding_does_not_count_as_asymmetry():
    matrix = np.array([[0, 1 / 3], [1 / 3 + 1e-12, 0]])
    assert matrix[0, 1] != matrix[1, 0]
    assert Weights.dense(matrix).of([1], [0]) == Weights.dense(matrix).of([0], [1])


def test_a_pickled_copy_is_read_only():
    weights = pickle.loads(pickle.dumps(Weights.dense([[0, 2], [2, 0]])))
    with pytest.raises(ValueError, match="read-only"):
        weights.table[0, 1] = 3


def test_the_argument_is_not_changed():
    matrix = np.array([[9.0, 1.0], [1.0, 9.0]])
    Weights.dense(matrix)
    assert matrix[0, 0] == 9.0
    matrix[0, 1] = 5.0


def _with(u, v, value):
    matrix = np.ones((4, 4))
    matrix[u, v] = value
    return matrix


NAN, INF = float("nan"), float("inf")
BAD = {
    "NaN": (
        lambda: Weights.dense(_with(1, 2, NAN)),
        "weight of nodes 1 and 2 is nan, the reverse 1.0: it is not finite;",
    ),
    "infinite": (lambda: Weights.dense(_with(0, 3, INF)), "weight of nodes 0 and 3 is inf"),
    "negative": (
        lambda: Weights.dense(_with(2, 1, -1)),
        "weight of nodes 2 and 1 is -1.0, the reverse 1.0: it is not above 0",
    ),
    "zero": (lambda: Weights.dense(np.zeros((3, 3))), "it is not above 0 (and 2 more"),
    "asymmetric": (
        lambda: Weights.dense(_with(1, 2, 2)),
        "nodes 1 and 2 is 2.0, the reverse 1.0: it differs",
    ),
    "not square": (lambda: Weights.dense(np.ones((2, 3))), "shape (2, 3)"),
    "words": (lambda: Weights.dense([["a", "b"], ["c", "d"]]), "weights are text"),
    "ragged": (lambda: Weights.dense([[1], [1, 2]]), "different lengths"),
    "same point": (
        lambda: Weights.euclidean([[0, 0], [1, 1], [0, 0]]),
        "nodes 0 and 2 are at the same point",
    ),
    "nowhere": (lambda: Weights.euclidean([[0, 0], [NAN, 1]]), "node 1 is at [nan, 1.0]"),
    "too far": (
        lambda: Weights.euclidean([[0.0], [1e120]]),
        "points are 1e+120 apart; weights are from 1e-100 to 1e+100",
    ),
    "too near": (lambda: Weights.euclidean([[0.0], [1e-120]]), "1e-120 apart"),
    "no axis": (lambda: Weights.euclidean(np.empty((3, 0))), "no coordinates"),
    "flat": (lambda: Weights.euclidean([1.0, 2.0]), "shape (2,)"),
    "site below 0": (lambda: Weights.sites([0, -1]), "node 1 is at site -1"),
    "site names": (lambda: Weights.sites(["a"]), "sites are <U1"),
    "sites flat": (lambda: Weights.sites([[0]]), "shape (1, 1)"),
    "inner": (lambda: Weights.sites([0], inner=0), "inner weight of sites is 0"),
    "outer": (lambda: Weights.sites([0], outer=NAN), "outer weight of sites is nan"),
    "site unknown": (lambda: Weights.sites([0, 5], between=[[0, 1], [1, 0]]), "node 1 is at site 5"),
    "between": (lambda: Weights.sites([0, 1], between=[[0, -1], [-1, 0]]), "weight of sites 0 and 1 is -1.0"),
    "count": (lambda: Weights.uniform(-1), "nodes is -1"),
    "half a node": (lambda: Weights.uniform(2.5), "nodes is 2.5"),
    "site beyond": (lambda: Weights.sites([2**40]), "node 0 is at site 1099511627776"),
    "ragged points": (lambda: Weights.euclidean([[1], [1, 2]]), "points have rows of different lengths"),
    "overflow": (lambda: Weights.dense([[0, 1e90], [1e90, 0]]).scaled(1e300), "it is not finite"),
    "underflow": (lambda: Weights.dense([[0, 1e-90], [1e-90, 0]]).scaled(1e-300), "it is not above 0"),
    "too heavy": (lambda: Weights.dense([[0, 1e101], [1e101, 0]]), "it is not from 1e-100 to 1e+100"),
    "too light": (lambda: Weights.dense([[0, 1e-101], [1e-101, 0]]), "it is not from 1e-100 to 1e+100"),
    "unknown node": (lambda: Weights.uniform(2).of([0], [9]), "node 9 does not exist; nodes are 0 to 1"),
    "uneven": (lambda: Weights.uniform(2).of([0, 1], [1]), "2 nodes against 1"),
    "by name": (
        lambda: Weights.dense(_with(0, 1, -1), list("abcd")),
        "the weight of nodes 'a' and 'b' is -1.0",
    ),
    "factor": (lambda: Weights.uniform(2).scaled(0), "the factor of the weights is 0"),
}


@pytest.mark.parametrize(("make", "message"), BAD.values(), ids=BAD)
def test_bad_weights_are_named(make, message):
    with pytest.raises(InputError) as caught:
        make()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)

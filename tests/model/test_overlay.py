"""Overlay: each edge once, in order, between known nodes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broadloom import InputError, Overlay
from strategies import overlays


@given(st.integers(0, 9).flatmap(lambda n: st.tuples(st.just(n), overlays(n))))
def test_adjacency_is_the_edges(case):
    """Each edge is listed at both ends with its index, and neighbours ascend."""
    nodes, edges = case
    overlay = Overlay.from_edges(nodes, [edge[::-1] for edge in edges])
    adjacency = overlay.adjacency()
    seen = {
        (u, int(adjacency.neighbours[k]), int(adjacency.edge[k]))
        for u in range(nodes)
        for k in range(adjacency.start[u], adjacency.start[u + 1])
    }
    assert seen == {(a, b, i) for i, (u, v) in enumerate(edges) for a, b in ((u, v), (v, u))}
    assert overlay.edges.tolist() == [list(edge) for edge in edges]
    assert np.array_equal(overlay.degrees(), np.diff(adjacency.start))


BAD = {
    "loop": ([(0, 1), (2, 2)], "edge 1 links node 2 to itself"),
    "unknown": ([(0, 9)], "edge 0 is (0, 9); nodes are 0 to 2"),
    "negative": ([(-1, 1)], "edge 0 is (-1, 1)"),
    "twice": ([(0, 1), (1, 2), (1, 0)], "edge 2 repeats (0, 1)"),
    "not pairs": ([(0, 1, 2)], "shape (1, 3)"),
    "ragged": ([(0, 1), (1,)], "different lengths"),
    "fractions": ([(0.0, 1.0)], "float64"),
}


@pytest.mark.parametrize(("edges", "message"), BAD.values(), ids=BAD)
def test_bad_edges_are_named(edges, message):
    with pytest.raises(InputError) as caught:
        Overlay.from_edges(3, edges)
    assert message in str(caught.value)

"""The algorithms of paper 1 as printed choose the links of our implementations."""

import pytest
from hypothesis import given, settings

import broadloom as bl
from broadloom.papers.paper1_printed import PRINTED_ALGORITHMS
from strategies import instances, interests


def links_of(plan):
    return list(map(tuple, plan.edges.tolist()))


@settings(max_examples=100)
@given(instances())
def test_gm_and_grmaw_as_printed_choose_our_links_in_our_order(instance):
    interest, weights = instance
    assert PRINTED_ALGORITHMS["gm"](interest, weights) == links_of(bl.link(interest, None, "gm"))
    assert PRINTED_ALGORITHMS["grmaw"](interest, weights) == links_of(bl.link(interest, weights, "grmaw"))


@settings(max_examples=100)
@given(interests())
def test_primal_dual_as_printed_chooses_our_links(interest):
    """Weights that differ: among equal ratios either pair is right."""
    weights = bl.workload.weights(nodes=interest.node_count, seed=1)
    for name in ("pdmaw", "pdrdmaw"):
        assert sorted(PRINTED_ALGORITHMS[name](interest, weights)) == sorted(
            links_of(bl.link(interest, weights, name))
        )


@settings(max_examples=100)
@given(interests())
def test_trees_as_printed_are_our_trees(interest):
    weights = bl.workload.weights(nodes=interest.node_count, seed=1)
    assert PRINTED_ALGORITHMS["trmaw"](interest, weights) == sorted(
        links_of(bl.link(interest, weights, "trmaw"))
    )


@pytest.mark.parametrize("name", sorted(PRINTED_ALGORITHMS))
@pytest.mark.parametrize("rows", [[], [[]], [[0]], [[0], [1]], [[0], [0]]])
def test_small_inputs(name, rows):
    interest = bl.Interest.from_lists(rows)
    found = PRINTED_ALGORITHMS[name](interest, bl.Weights.uniform(len(rows)))
    assert found == ([(0, 1)] if rows == [[0], [0]] else [])

"""gm and grmaw equal their slow twins edge for edge."""

from hypothesis import given, settings
from link_strategies import band_sizes, instances, interests

import naive
from broadloom.linking.greedy_overlays import merge_by_contribution, merge_by_weight
from broadloom.linking.topic_components import components_of


def as_tuples(edges):
    return list(map(tuple, edges.tolist()))


@settings(max_examples=300)
@given(interests(), band_sizes)
def test_gm_equals_its_twin_for_any_bands(instance, size):
    rows, interest = instance
    assert as_tuples(merge_by_contribution(components_of(interest), size)) == naive.gm(rows)


@settings(max_examples=400)
@given(instances(), band_sizes)
def test_grmaw_equals_its_twin_for_any_bands(instance, size):
    rows, interest, weights, matrix = instance
    edges = merge_by_weight(components_of(interest), weights.arrays(), size)
    assert as_tuples(edges) == naive.grmaw(rows, matrix)

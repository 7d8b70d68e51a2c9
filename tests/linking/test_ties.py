"""Random ties and the strict rule of Low-ODA: the edges of the slow twins, and fair choices."""

import math
from collections import Counter

import hypothesis.strategies as st
import link_strategies as strategies
import numpy as np
import pytest
from hypothesis import given, settings

import broadloom as bl
import instances
import naive
from broadloom.linking._ties import tie_rule
from broadloom.linking.greedy_overlays import merge_by_contribution, merge_by_weight
from broadloom.linking.topic_components import components_of

RANDOM = ("trmaw", "gm", "grmaw", "minmax-oda", "low-oda", "cd-oda", "cd-oda-1", "cd-oda-2")

TWINS = {
    "trmaw": naive.trmaw,
    "gm": lambda interests, _, ties: naive.gm(interests, ties),
    "grmaw": naive.grmaw,
    "minmax-oda": lambda interests, _, ties: naive.minmax_oda(interests, ties),
    "low-oda": lambda interests, _, ties: naive.low_oda(interests, ties=ties),
    "cd-oda": lambda interests, _, ties: naive.cd_oda(interests, ties),
    "cd-oda-1": lambda interests, _, ties: naive.cd_oda_1(interests, ties),
    "cd-oda-2": lambda interests, _, ties: naive.cd_oda_2(interests, ties),
}

seeds = st.integers(0, 2**62)
ks = st.sampled_from([1, 1.5, 2, 3, 7, 50.0, math.inf])
each = pytest.mark.parametrize("name", RANDOM)


def as_tuples(edges):
    return list(map(tuple, edges.tolist()))


def order_of(seed):
    """The order of ties of a seed, for the slow twins: its first random word seeds the hash."""
    word = np.random.default_rng(seed).integers(2**64 - 1, dtype=np.uint64, endpoint=True)
    return naive.at_random(int(word))


def paper_2(nodes, seed):
    """An interest of paper 2, section V: 100 topics of Zipf's popularity, 10 per node."""
    sizes = (10, 10)
    return bl.workload.interest(nodes, 100, popularity="zipf", alpha=0.5, sizes=sizes, seed=seed)


def max_degree(plan):
    return int(plan.overlay.degrees().max())


@each
@settings(max_examples=120)
@given(strategies.instances(), seeds)
def test_random_ties_are_those_of_the_twin(name, instance, seed):
    rows, interest, weights, matrix = instance
    plan = bl.link(interest, weights, name, seed, ties="random")
    assert as_tuples(plan.edges) == TWINS[name](rows, matrix, order_of(seed))


@settings(max_examples=200)
@given(strategies.interests(), strategies.band_sizes, seeds)
def test_gm_with_random_ties_for_any_bands(instance, size, seed):
    rows, interest = instance
    edges = merge_by_contribution(components_of(interest), size, tie_rule("random", seed))
    assert as_tuples(edges) == naive.gm(rows, order_of(seed))


@settings(max_examples=300)
@given(strategies.instances(), strategies.band_sizes, seeds)
def test_grmaw_with_random_ties_for_any_bands(instance, size, seed):
    rows, interest, weights, matrix = instance
    edges = merge_by_weight(components_of(interest), weights.arrays(), size, tie_rule("random", seed))
    assert as_tuples(edges) == naive.grmaw(rows, matrix, order_of(seed))


@settings(max_examples=200)
@given(strategies.instances(), strategies.band_sizes)
def test_grmaw_with_a_limit_that_does_not_bind_is_the_same(instance, size):
    """The search by rows and the search by bands break ties by the same priorities."""
    _, interest, weights, _ = instance
    edges = merge_by_weight(components_of(interest), weights.arrays(), size, tie_rule("random", 5))
    plan = bl.link(interest, weights, "grmaw", 5, ties="random", max_degree=14)
    assert as_tuples(plan.edges) == as_tuples(edges)


@settings(max_examples=200)
@given(strategies.interests(), ks, st.booleans(), st.sampled_from(["smallest", "random"]))
def test_low_oda_strict_or_not_equals_its_twin(instance, k, strict, ties):
    rows, interest = instance
    plan = bl.link(interest, None, "low-oda", 3, k=k, strict=strict, ties=ties)
    order = order_of(3) if ties == "random" else naive.smallest
    assert as_tuples(plan.edges) == naive.low_oda(rows, k, strict, order)


@settings(max_examples=100)
@given(strategies.instances(), st.sampled_from(["smallest", "random"]))
def test_strict_low_oda_with_k_1_is_the_greedy(instance, ties):
    """With equal ties, edge for edge: gm by edges, grmaw by weight."""
    _, interest, weights, _ = instance
    for objective, greedy in (("edges", "gm"), ("weight", "grmaw")):
        options = {"k": 1, "strict": True, "objective": objective, "ties": ties}
        low = bl.link(interest, weights, "low-oda", 4, **options)
        assert as_tuples(low.edges) == as_tuples(bl.link(interest, weights, greedy, 4, ties=ties).edges)


@each
@pytest.mark.parametrize("seed", range(4))
def test_larger_instances_equal_their_twins(name, seed):
    """Enough nodes for rows that use up their partners; weights that tie."""
    interests, matrix = instances.scattered(40, 25, seed, most=12, integers=True)
    interest = bl.Interest.from_lists(interests, topics=25)
    plan = bl.link(interest, bl.Weights.dense(matrix), name, seed, ties="random")
    assert as_tuples(plan.edges) == TWINS[name](interests, matrix, order_of(seed))


@each
def test_the_edges_do_not_depend_on_the_number_of_threads(name, monkeypatch):
    """Several blocks of rows, so that threads share the work."""
    monkeypatch.setattr("broadloom.linking._bands.PAIRS_PER_BLOCK", 5000)
    interest = paper_2(400, 1)
    weights = bl.Weights.sites(np.arange(400) % 20, inner=1, outer=10)
    found = []
    for threads in ("1", "2", "5"):
        monkeypatch.setenv("BROADLOOM_THREADS", threads)
        found.append(as_tuples(bl.link(interest, weights, name, 7, ties="random").edges))
    assert found[0] == found[1] == found[2]
    assert found[0] != as_tuples(bl.link(interest, weights, name, 8, ties="random").edges)


@pytest.mark.parametrize("least", [1, 50, 3000])
def test_the_edges_do_not_depend_on_the_size_of_bands(least):
    """Most pairs contribute 1, and the weights are 1 or 10: bands are cut by priority."""
    from broadloom.linking._bands import BandSize

    interest = bl.workload.interest(300, 30, sizes=(1, 4), seed=2)
    weights = bl.Weights.sites(np.arange(300) % 7, inner=1, outer=10)
    ties = tie_rule("random", 7)
    size = BandSize(share=0.0, least=least, sampled_rows=3)
    gm = merge_by_contribution(components_of(interest), size, ties)
    grmaw = merge_by_weight(components_of(interest), weights.arrays(), size, ties)
    assert as_tuples(gm) == as_tuples(bl.link(interest, None, "gm", 7, ties="random").edges)
    assert as_tuples(grmaw) == as_tuples(bl.link(interest, weights, "grmaw", 7, ties="random").edges)


def share_test(counts, choices, draws):
    """Each of the equally likely choices is within five standard deviations of its mean."""
    deviation = math.sqrt(draws / choices * (1 - 1 / choices))
    assert len(counts) == choices
    assert all(abs(count - draws / choices) < 5 * deviation for count in counts.values())


@pytest.mark.parametrize("name", ["trmaw", "gm", "grmaw", "minmax-oda", "low-oda"])
def test_each_tied_pair_is_equally_likely(name):
    """One topic: all pairs tie for the first edge; for the second, all that do not close a cycle."""
    interest = bl.Interest.from_lists([[0]] * 5)
    edges = [bl.link(interest, None, name, seed, ties="random").edges for seed in range(4000)]
    share_test(Counter(tuple(plan[0]) for plan in edges), 10, 4000)
    if name in ("gm", "grmaw"):
        second = Counter((tuple(plan[0]), tuple(plan[1])) for plan in edges)
        share_test(second, 90, 4000)


@pytest.mark.parametrize("name", ["cd-oda", "cd-oda-1", "cd-oda-2"])
def test_each_tied_centre_is_equally_likely(name):
    """Two topics of three nodes each: six equal centres, then three."""
    interest = bl.Interest.from_lists([[0], [0], [0], [1], [1], [1]])
    centres = Counter()
    for seed in range(2000):
        edges = bl.link(interest, None, name, seed, ties="random").edges
        centres[tuple(np.bincount(edges[:2].ravel()).argmax() for edges in (edges[:2], edges[2:]))] += 1
    share_test(centres, 18, 2000)


def test_a_pair_whose_contribution_has_fallen_draws_again():
    """Of three pairs that contribute 2, the last one falls to 1, where (3, 4) is: either is as likely next.

    With one priority per pair for the whole run, the pair that came last before would come last again three
    times out of four.
    """
    interest = bl.Interest.from_lists([[0, 1, 2], [0, 1, 3], [0, 2, 3], [4], [4]])
    edges = [as_tuples(bl.link(interest, None, "gm", seed, ties="random").edges) for seed in range(3000)]
    share_test(Counter(tuple(plan[2:]) for plan in edges), 6, 3000)


def test_random_ties_lower_the_maximum_degree_of_gm():
    """Paper 2, section V: the smallest pair gives GM hubs that the choice of pairs does not need."""
    pairs = []
    for nodes in (100, 300):
        for seed in range(3):
            interest = paper_2(nodes, seed)
            plans = [bl.link(interest, None, "gm", seed, ties=ties) for ties in ("smallest", "random")]
            pairs.append([max_degree(plan) for plan in plans])
    smallest, random = np.mean(pairs, axis=0)
    assert random < 0.8 * smallest


def test_strict_low_oda_spans_from_gm_to_minmax_oda():
    """Paper 2, section V-C: k = 1 behaves as GM, k = 8 practically as MinMax-ODA."""
    interest = paper_2(100, 0)
    one, eight = (bl.link(interest, None, "low-oda", k=k, strict=True) for k in (1, 8))
    minmax = bl.link(interest, None, "minmax-oda")
    assert as_tuples(one.edges) == as_tuples(bl.link(interest, None, "gm").edges)
    assert abs(max_degree(eight) - max_degree(minmax)) <= 1
    assert abs(len(eight.edges) - len(minmax.edges)) <= 0.02 * len(minmax.edges)


@each
def test_the_default_is_the_smallest_pair(name):
    """Without the option, the seed does not matter."""
    interest = paper_2(60, 0)
    weights = bl.Weights.sites(np.arange(60) % 6, inner=1, outer=10)
    plans = [bl.link(interest, weights, name, 1), bl.link(interest, weights, name, 2, ties="smallest")]
    assert as_tuples(plans[0].edges) == as_tuples(plans[1].edges)
    assert plans[0].options["ties"] == "smallest"


@each
@pytest.mark.parametrize("value", ["largest", True, None, 3, ["random"], np.array(["random"])])
def test_an_unknown_rule_names_the_choices(name, value):
    with pytest.raises(bl.InputError, match=r"ties is .*; give one of smallest, random"):
        bl.link(bl.Interest.from_lists([[0]]), algorithm=name, ties=value)


@pytest.mark.parametrize("value", ["yes", 1, None])
def test_strict_is_true_or_false(value):
    with pytest.raises(bl.InputError, match=r"strict is .*; give true or false"):
        bl.link(bl.Interest.from_lists([[0]]), algorithm="low-oda", strict=value)


@pytest.mark.parametrize("name", ["broadloom", "pdmaw", "pdrdmaw", "dcmaw", "exact"])
def test_other_algorithms_refuse_the_option(name):
    """They would ignore it; the message names the algorithms that have it."""
    with pytest.raises(bl.InputError, match="ties is an option of trmaw, gm, grmaw, minmax-oda, low-oda"):
        bl.link(bl.Interest.from_lists([[0]]), algorithm=name, ties="random")


def test_every_algorithm_lists_the_option():
    listed = {row["name"]: row["options"] for row in bl.algorithms("link")}
    assert {name for name, options in listed.items() if "ties" in options} == set(RANDOM)
    assert all(listed[name]["ties"] == "smallest" for name in RANDOM)
    assert listed["low-oda"]["strict"] is False


def test_a_plan_with_random_ties_is_saved_improved_and_continued(tmp_path):
    interest = paper_2(50, 0)
    plan = bl.link(interest, None, "low-oda", 9, ties="random", strict=True)
    plan.save(tmp_path / "plan")
    loaded = bl.Plan.load(tmp_path / "plan")
    assert as_tuples(loaded.edges) == as_tuples(plan.edges)
    assert (loaded.options["ties"], loaded.options["strict"], loaded.seed) == ("random", True, 9)
    assert bl.improve(loaded).total_weight <= plan.total_weight
    assert bl.link(interest, None, "gm", previous=loaded, ties="random").total_weight <= plan.total_weight

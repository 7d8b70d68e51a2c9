"""Pairwise contributions on Spark: the same partners as all pairs counted one by one."""

from pathlib import Path

import pytest

import broadloom as bl
from broadloom import workload
from broadloom.pipeline import spark_link

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("topics", [1, 64, 130])
def test_the_best_partners_are_those_of_all_pairs(spark, tmp_path, monkeypatch, topics):
    """Several blocks, ties by the lowest index, nodes without topics or without a partner."""
    monkeypatch.setattr(spark_link, "BLOCK", 16)
    drawn = workload.interest(nodes=50, topics=topics, sizes=(0, 6), seed=topics)
    lists = [drawn.topics_of(u).tolist() for u in range(50)]
    lists[20] = list(range(topics))
    interest = bl.Interest.from_lists(lists, topics=topics)
    rows = spark_link.top_partners(spark, interest, 5, tmp_path).toArrow()
    assert _by_node(rows) == _naive(interest, 5)


def test_partners_share_groups_of_filters(spark, tmp_path):
    interest = bl.Interest.from_lists([["a/#", "c"], ["a/b", "c"], ["+/b"], ["d"]])
    rows = spark_link.top_partners(spark, interest, 5, tmp_path).toArrow()
    assert _by_node(rows) == _naive(bl.Interest.from_lists([["g", "c"], ["g", "c"], ["g"], ["d"]]), 5)


def test_the_example_in_the_docs_runs(spark):
    page = Path(__file__).parents[2] / "docs" / "pipeline.md"
    names = {}
    exec(compile(page.read_text().split("```python\n")[1].split("```")[0], page.name, "exec"), names)
    assert names["partners"].column_names == ["node", "rank", "partner", "shared"]
    assert names["partners"].num_rows == 3000
    assert spark.range(1).count() == 1


def test_without_topics_there_are_no_partners(spark, tmp_path):
    interest = bl.Interest.from_lists([[], []])
    assert spark_link.top_partners(spark, interest, 3, tmp_path).count() == 0


def test_a_count_of_0_is_refused(spark, tmp_path):
    with pytest.raises(bl.InputError, match="give at least 1 partner per node"):
        spark_link.top_partners(spark, bl.Interest.from_lists([[0]]), 0, tmp_path)


def _naive(interest, count):
    wanted = [set(interest.topics_of(u).tolist()) for u in range(interest.node_count)]
    best = {}
    for u, mine in enumerate(wanted):
        shared = [(-len(mine & other), v) for v, other in enumerate(wanted) if v != u and mine & other]
        if shared:
            best[u] = [(v, -number) for number, v in sorted(shared)[:count]]
    return best


def _by_node(rows):
    found = {}
    for node, partner, shared in zip(
        *(
            rows.sort_by([("node", "ascending"), ("rank", "ascending")]).column(name).to_pylist()
            for name in ("node", "partner", "shared")
        ),
        strict=True,
    ):
        found.setdefault(node, []).append((partner, shared))
    return found

"""Link problems in folders: shared subscriptions, `$SYS` topics and topic filters of subscriptions."""

import itertools

import pyarrow as pa
import pytest

import broadloom as bl
from broadloom import InputError
from broadloom.model import LeftOutSubscription, read_link_problem


def folder(path, rows, **tables):
    """A folder of CSV tables."""
    path.mkdir(exist_ok=True)
    lines = ["node,topic", *(f"{node},{topic}" for node, topic in rows)]
    for name, table in ({"subscriptions": lines} | tables).items():
        (path / f"{name}.csv").write_text("\n".join(table) + "\n")
    return path


def test_shared_subscriptions_are_rows_of_their_filters_each_once(tmp_path):
    rows = [("r", "$share/g/a/+"), ("r", "$share/h/a/+"), ("r", "a/+"), ("s", "$queue/a/b"), ("s", "c")]
    problem = read_link_problem(folder(tmp_path, rows))
    assert problem.interest == bl.Interest.from_pairs(["r", "s", "s"], ["a/+", "a/b", "c"])
    assert problem.not_carried == ()


def test_topics_of_the_brokers_themselves_are_listed_as_not_carried(tmp_path):
    """With the rows of the table not_carried; and a broker without another subscription stays."""
    rows = [("r", "a"), ("q", "$SYS/#"), ("r", "$share/g/$SYS/broker/+"), ("r", "$other/x")]
    path = folder(tmp_path, rows, not_carried=["node,topic,reason", "r,b/#,outside carry"])
    problem = read_link_problem(path)
    assert problem.interest.node_ids == ("q", "r")
    assert problem.interest.topic_ids == ("$other/x", "a")
    assert problem.nodes.column("node").to_pylist() == ["q", "r"]
    assert problem.not_carried == (
        LeftOutSubscription("q", "$SYS/#", "topic of the broker itself"),
        LeftOutSubscription("r", "$SYS/broker/+", "topic of the broker itself"),
        LeftOutSubscription("r", "b/#", "outside carry"),
    )


@pytest.mark.parametrize("topic", ["a/#/b", "#/", "a/+/c#", "$share/g/", "$share/g/a/#/b", "$queue/"])
def test_a_row_with_wildcards_that_is_not_a_filter_is_refused_by_its_number(tmp_path, topic):
    rows = [("r", "a"), ("s", topic)]
    with pytest.raises(InputError, match=r"^subscriptions row 1: .* is not an MQTT topic filter; ") as caught:
        read_link_problem(folder(tmp_path, rows))
    assert topic in str(caught.value)


def test_other_texts_with_signs_stay_topics(tmp_path):
    """Not every topic is one of MQTT: `c#` has no wildcard, since a wildcard is a whole level."""
    rows = [("r", "c#"), ("s", "a+b"), ("s", "$100"), ("s", "$SYSTEM/x"), ("s", "$shared/x")]
    problem = read_link_problem(folder(tmp_path, rows))
    assert not problem.interest.has_filters
    assert set(problem.interest.topic_ids) == {topic for _, topic in rows}


def test_repeated_rows_are_still_refused(tmp_path):
    with pytest.raises(InputError):
        read_link_problem(folder(tmp_path, [("r", "a/#"), ("r", "a/#")]))


def test_a_list_of_topics_need_not_name_the_filters(tmp_path):
    path = folder(tmp_path, [("r", "a/#"), ("s", "a/b")], topics=["topic", "a/b", "z"])
    interest = read_link_problem(path).interest
    assert interest.topic_ids == ("a/b", "z", "a/#")
    assert interest.grouped().topic_ids == ("a/#", "z")
    with pytest.raises(InputError, match="topic c is unknown"):
        read_link_problem(folder(tmp_path, [("r", "c"), ("s", "a/b")], topics=["topic", "a/b"]))


def test_further_columns_of_nodes_reach_the_saved_plan(tmp_path):
    nodes = ["node,address,kind,lat,lon,capacity", "r,r.example:8883,emqx,1.5,2.5,10", "s,,nats,,,20"]
    problem = read_link_problem(folder(tmp_path / "tables", [("r", "a/#"), ("s", "a")], nodes=nodes))
    plan = bl.Plan(
        problem.interest, problem.weights, bl.Overlay.from_edges(2, [(0, 1)]), "by hand", nodes=problem.nodes
    )
    plan.save(tmp_path / "plan")
    assert bl.Plan.load(tmp_path / "plan").nodes.to_pylist() == problem.nodes.to_pylist()
    assert problem.nodes.column("address").to_pylist()[0] == "r.example:8883"


def test_a_large_table_without_wildcards_is_not_copied(tmp_path):
    """The result is that of the table itself, with its order of nodes and topics."""
    rows = list(itertools.product([f"n{i}" for i in range(40)], [f"t/{i}" for i in range(50)]))
    problem = read_link_problem(folder(tmp_path, rows))
    table = pa.table({"node": [node for node, _ in rows], "topic": [topic for _, topic in rows]})
    assert problem.interest == bl.Interest.from_table(table)
    assert problem.interest.grouped() is problem.interest

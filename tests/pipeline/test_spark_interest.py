"""Interest of brokers: the topics of their clients, and the cells that rectangles of subscribers touch."""

import numpy as np
import pyarrow as pa
import pytest

import broadloom as bl
from broadloom import InputError
from broadloom.model import RowLedger, TableAccount
from broadloom.pipeline.run import check_brokers, write_interest
from broadloom.storage.tables import read_table, require_table


def ingested(folder, nodes=None, subscriptions=(), brokers=()):
    """A folder as ingest writes it; `nodes`: the nodes of a source."""
    folder.mkdir()
    tables = {
        "brokers": pa.table({"broker": pa.array(brokers, pa.string()), "place": [[0.0]] * len(brokers)})
    }
    known = nodes or sorted({node for node, _ in subscriptions})
    if known:
        tables["nodes"] = pa.table({"node": known})
    if subscriptions:
        tables["subscriptions"] = pa.table(
            dict(zip(("node", "topic"), zip(*subscriptions, strict=True), strict=True))
        )
    for name, table in tables.items():
        (folder / f"{name}.parquet").mkdir()
        pa.parquet.write_table(table, folder / f"{name}.parquet" / "part-0.parquet")
    accounts = (TableAccount("nodes", len(nodes), len(nodes), 0, {}, len(nodes)),) if nodes else ()
    RowLedger(accounts).save(folder)
    return folder


def assignment(folder, lo, hi, brokers=("b", "a", "c")):
    """Subscribers on a line, assigned to the nearest of three brokers."""
    at = np.linspace(0, 10, len(lo))[:, None]
    problem = bl.AssignmentProblem(
        [-10], [[0], [5], [10]], [-1] * 3, at, lo, hi, max_delay=9, beta=3, beta_max=3, broker_ids=brokers
    )
    result = bl.assign(problem, "closest-unbalanced")
    result.save(folder)
    return result


def pairs(folder):
    table = require_table(folder, "subscriptions")
    return sorted(zip(table["node"].to_pylist(), table["topic"].to_pylist(), strict=True))


def test_a_broker_wants_each_cell_that_a_rectangle_of_its_subscribers_overlaps(tmp_path):
    rng = np.random.default_rng(0)
    lo = rng.uniform(0, 1, (40, 2))
    hi = lo + rng.uniform(0.01, 0.3, (40, 2))
    result = assignment(tmp_path / "assign", lo, hi)
    (tmp_path / "out").mkdir()
    write_interest(tmp_path / "out", ingested(tmp_path / "tables"), tmp_path / "assign", cells=50)
    content = require_table(tmp_path / "out", "content")
    assert content.num_rows == 49
    cells = zip(*(content[name].to_pylist() for name in ("topic", "lo", "hi")), strict=True)
    expected = {
        ("bac"[broker], topic)
        for topic, low, high in cells
        for broker, left, right in zip(result.broker_of.tolist(), lo, hi, strict=True)
        if np.all(left < high) and np.all(right > low)
    }
    assert pairs(tmp_path / "out") == sorted(expected)


def test_topics_of_clients_stay_and_nodes_are_the_union(tmp_path):
    assignment(tmp_path / "assign", [[0]] * 3, [[1]] * 3)
    tables = ingested(tmp_path / "tables", subscriptions=[("z", "t/1"), ("a", "t/2")])
    (tmp_path / "out").mkdir()
    write_interest(tmp_path / "out", tables, tmp_path / "assign", cells=1)
    assert require_table(tmp_path / "out", "nodes")["node"].to_pylist() == ["a", "b", "c", "z"]
    cells = [(broker, "$content/0") for broker in "abc"]
    assert pairs(tmp_path / "out") == sorted([("z", "t/1"), ("a", "t/2"), *cells])


def test_nodes_of_a_source_stay_and_brokers_must_be_among_them(tmp_path):
    tables = ingested(tmp_path / "tables", nodes=["c", "b", "a"], brokers=["a", "b"])
    check_brokers(tables)
    assignment(tmp_path / "assign", [[0]], [[1]])
    (tmp_path / "out").mkdir()
    write_interest(tmp_path / "out", tables, tmp_path / "assign")
    assert require_table(tmp_path / "out", "nodes")["node"].to_pylist() == ["c", "b", "a"]
    stranger = ingested(tmp_path / "others", nodes=["c", "b"], brokers=["a", "b"])
    with pytest.raises(InputError, match="broker 'a' of table brokers is not in table nodes"):
        check_brokers(stranger)


def test_without_an_assignment_the_tables_equal_those_of_ingest(tmp_path):
    (tmp_path / "out").mkdir()
    write_interest(tmp_path / "out", ingested(tmp_path / "tables", subscriptions=[("z", "t/1")]))
    assert pairs(tmp_path / "out") == [("z", "t/1")]
    assert read_table(tmp_path / "out", "content") is None


def test_without_subscribers_no_cell_is_wanted(tmp_path):
    assignment(tmp_path / "assign", np.zeros((0, 2)), np.zeros((0, 2)))
    (tmp_path / "out").mkdir()
    write_interest(tmp_path / "out", ingested(tmp_path / "tables"), tmp_path / "assign")
    assert pairs(tmp_path / "out") == []


def test_no_cells_are_refused(tmp_path):
    with pytest.raises(InputError, match="cells is 0"):
        write_interest(tmp_path, ingested(tmp_path / "tables"), cells=0)


@pytest.mark.parametrize("has_links", [True, False])
def test_unchanged_tables_are_hard_links_or_copies(tmp_path, monkeypatch, has_links):
    """A run stores each table once; on a file system without hard links it copies."""

    def refuse(*_):
        raise OSError(1, "Operation not permitted")

    if not has_links:
        monkeypatch.setattr("os.link", refuse)
    tables = ingested(tmp_path / "tables", nodes=["a", "b"], subscriptions=[("a", "t")])
    (tmp_path / "out").mkdir()
    write_interest(tmp_path / "out", tables)
    for name in ("nodes", "subscriptions"):
        old, new = (folder / f"{name}.parquet" / "part-0.parquet" for folder in (tables, tmp_path / "out"))
        assert new.samefile(old) == has_links
        assert new.read_bytes() == old.read_bytes()

"""Papers on Spark: one task per case, resumed case by case."""

import dataclasses

import pyarrow.parquet
import pytest

from broadloom.papers import paper2_low_degree
from broadloom.papers.reproduction import reproduce

pytestmark = pytest.mark.spark


def test_cases_run_once(spark, tmp_path):
    """A second run finds all cases; a lost case is run again, and the table is the same."""
    pytest.importorskip("matplotlib")
    few = lambda _: [paper2_low_degree._case(seed, 12) | {"k": k} for seed in (0, 1) for k in (1, 8)]  # noqa: E731
    figure = dataclasses.replace(paper2_low_degree.FIG3, cases=few)
    first = reproduce([figure], tmp_path, spark=spark)
    assert (first.run, first.known) == (4, 0)
    table = pyarrow.parquet.read_table(tmp_path / "paper2-fig3.parquet").drop_columns("seconds")
    next((tmp_path / "cases").iterdir()).unlink()
    again = reproduce([figure], tmp_path, spark=spark)
    assert (again.run, again.known) == (1, 3)
    assert pyarrow.parquet.read_table(tmp_path / "paper2-fig3.parquet").drop_columns("seconds").equals(table)
    assert again.page.exists()


def test_other_figures_stay_and_damaged_cases_run_again(spark, tmp_path, monkeypatch):
    """The page has all present figures; a truncated or empty file of a case counts as missing."""
    pytest.importorskip("matplotlib")
    first = dataclasses.replace(
        paper2_low_degree.FIG3,
        cases=lambda quick: [paper2_low_degree._case(0, 12 if quick else 14) | {"k": k} for k in (1, 8)],
    )
    second = dataclasses.replace(
        paper2_low_degree.FIG5,
        cases=lambda quick: [paper2_low_degree._case(s, 12, 10, "unif") for s in range(2 - quick)],
    )
    monkeypatch.setattr("broadloom.papers.reproduction.FIGURES", (first, second))
    reproduce([first], tmp_path, quick=True, spark=spark)
    found = reproduce([second], tmp_path, spark=spark)
    assert {claim["figure"] for claim in found.claims} == {"paper2-fig5"}
    page = found.page.read_text()
    assert page.index("paper2-fig3") < page.index("paper2-fig5")
    sizes = pyarrow.parquet.read_table(tmp_path / "claims.parquet").to_pylist()
    assert {(claim["figure"], claim["size"]) for claim in sizes} == {
        ("paper2-fig3", "reduced"),
        ("paper2-fig5", "the paper's"),
    }
    cut, empty = sorted((tmp_path / "cases").glob("paper2-fig3*"))
    cut.write_bytes(cut.read_bytes()[:20])
    empty.write_bytes(b"")
    again = reproduce([first], tmp_path, quick=True, spark=spark)
    assert (again.run, again.known) == (2, 0)
    assert "paper2-fig5" in again.page.read_text()

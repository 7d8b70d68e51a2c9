"""Canonical tables that somebody wrote by hand as CSV."""

import json

import pytest

import broadloom as bl
from broadloom.model import read_assignment_problem, read_market_problem, write_assignment_problem
from broadloom.storage.tables import read_table


def as_csv(folder, table):
    """Replace a Parquet file of the folder by a CSV file, with its lists as in JSON."""
    columns = read_table(folder, table).to_pydict()
    (folder / f"{table}.parquet").unlink()
    lines = [",".join(columns)]
    for row in zip(*columns.values(), strict=True):
        cells = [
            f'"{json.dumps(cell)}"' if isinstance(cell, list) else "" if cell is None else str(cell)
            for cell in row
        ]
        lines.append(",".join(cells))
    (folder / f"{table}.csv").write_text("\n".join(lines) + "\n")


def test_an_assignment_problem_can_be_written_as_csv(tmp_path):
    problem = bl.workload.subscribers(set=1, subscribers=30, brokers=4)
    write_assignment_problem(tmp_path / "tables", problem)
    for table in ("publisher", "brokers", "subscribers"):
        as_csv(tmp_path / "tables", table)
    assert read_assignment_problem(tmp_path / "tables") == problem


def test_a_market_can_be_written_as_csv(tmp_path):
    (tmp_path / "brokers.csv").write_text('broker,place\nparis,"[0, 0]"\nrome,"[3, 4]"\n')
    (tmp_path / "subscribers.csv").write_text(
        'subscriber,place,lo,hi\nanna,"[0, 1]","[0]","[0.5]"\nben,"[3, 3]",,\n'
    )
    (tmp_path / "messages.csv").write_text(
        "publisher,at,bytes,point\n"
        'ben,2026-01-01T00:00:00,100,"[0.25]"\n'
        'ben,2026-01-01T00:00:10,100,"[0.25]"\n'
    )
    market = read_market_problem(tmp_path)
    assert market.user_ids == ("anna", "ben")
    assert market.wants.any(axis=1).tolist() == [True, False]
    assert market.rates.sum(axis=1).tolist() == [0, 20]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("1 2", id="numbers"),
        pytest.param("{}", id="object"),
        pytest.param("\"[1, 'a']\"", id="text"),
        pytest.param('"[1, true]"', id="flag"),
        pytest.param('"[1, null]"', id="null"),
        pytest.param("[" * 100_000, id="deep"),
    ],
)
def test_a_text_that_is_not_a_list_of_numbers_is_an_error_that_names_its_row(tmp_path, text):
    (tmp_path / "publisher.csv").write_text(f'place\n"[1, 2]"\n{text}\n')
    with pytest.raises(bl.InputError, match=r"publisher\.csv row 1: place is .*; give a list such as"):
        read_table(tmp_path, "publisher")


def test_a_column_of_lists_that_comes_twice_is_named(tmp_path):
    (tmp_path / "brokers.csv").write_text('broker,place,place\nparis,"[0, 0]","[0, 0]"\n')
    with pytest.raises(bl.InputError, match="has column 'place' more than once"):
        read_table(tmp_path, "brokers")

"""Command `broadloom report`."""

import json
import os

import pytest

import broadloom as bl
from broadloom.cli import main


@pytest.fixture
def plan(tmp_path):
    """The folder of a small plan."""
    bl.link(bl.Interest.from_lists([["a"], ["a", "b"], ["b"]]), algorithm="gm").save(tmp_path / "plan")
    return tmp_path / "plan"


def run(*arguments):
    with pytest.raises(SystemExit) as stopped:
        main(["report", *map(str, arguments)])
    return stopped.value.code


def test_a_page_is_written(plan, tmp_path, capsys):
    assert run(plan, "-o", tmp_path / "new" / "page.html", "--title", "Ours", "--json") == 0
    done = json.loads(capsys.readouterr().out)
    page = (tmp_path / "new" / "page.html").read_text()
    assert done["bytes"] == len(page.encode())
    assert "<h1>Ours</h1>" in page
    assert "gm: 3 brokers, 2 links, every one of 2 topics connected" in page
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["page.html"]


def test_a_page_is_overwritten_only_with_force(plan, tmp_path, capsys):
    page = tmp_path / "page.html"
    assert run(plan, "-o", page, "-q") == 0
    assert run(plan, "-o", page) == 2
    assert "exists already" in capsys.readouterr().err
    assert run(plan, "-o", page, "--force", "-q") == 0


def test_only_a_file_is_replaced(plan, tmp_path, capsys):
    """A symbolic link stays, and its target is written; a pipe, a device or a folder is refused."""
    (tmp_path / "page.html").write_text("old")
    (tmp_path / "link.html").symlink_to("page.html")
    assert run(plan, "-o", tmp_path / "link.html", "--force", "-q") == 0
    assert (tmp_path / "link.html").is_symlink()
    assert "gm: 3 brokers" in (tmp_path / "page.html").read_text()
    os.mkfifo(tmp_path / "pipe")
    assert run(plan, "-o", tmp_path / "pipe", "--force") == 2
    assert "is not a file" in capsys.readouterr().err


def test_plans_of_every_kind_in_one_page(plan, tmp_path, capsys):
    problem = bl.workload.subscribers(set=1, subscribers=50, brokers=3, seed=0)
    bl.assign(problem, algorithm="gr").save(tmp_path / "content")
    market = bl.workload.market(users=20, brokers=3, channels=4, seed=0)
    bl.assign(market, algorithm="random").save(tmp_path / "market")
    assert run(plan, tmp_path / "content", tmp_path / "market", "-o", tmp_path / "page.html") == 0
    assert len(capsys.readouterr().out.splitlines()) == 4


@pytest.mark.parametrize("damage", ["nowhere", "not json", "no table", "no folder for it"])
def test_bad_input_is_one_line_and_exit_code_2(plan, tmp_path, capsys, damage):
    output = tmp_path / "page.html"
    if damage == "not json":
        (plan / "plan.json").write_text("{")
    elif damage == "no table":
        (plan / "edges.parquet").unlink()
    elif damage == "no folder for it":
        output = plan / "plan.json" / "page.html"
    assert run(tmp_path / "nowhere" if damage == "nowhere" else plan, "-o", output) == 2
    error = capsys.readouterr().err
    assert error.startswith("broadloom: ")
    assert error.count("\n") == 1
    assert not output.exists()

"""Common parts of benchmarks: measured runs in separate processes, claims, result files."""

import json
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import _common
import guard
import link as benchmark

SMALL = _common.Instance(25, 12, sizes=(2, 6))


def test_a_task_is_measured_and_equals_its_naive_twin():
    twin = _common.Task("twin", {"algorithm": "gm"})
    floor, ours, naive = _common.measure(
        SMALL, [benchmark.FLOOR, _common.link("gm"), twin], rounds=2, threads=1
    )
    assert floor["shared"] > 0
    assert ours["digest"] == naive["digest"]
    assert ours["edges"] > 0
    assert all(one["wall_s"] > 0 and one["peak_mb"] > 10 for one in (floor, ours, naive))
    assert all(one["cpu_s"] >= 0 for one in (floor, ours, naive)), "some systems count it in ticks"


def test_scipy_and_networkx_build_the_same_trees():
    scipy, networkx = _common.measure(SMALL, map(_common.Task, ("scipy_trees", "networkx_trees")), rounds=1)
    assert scipy["digest"] == networkx["digest"]


def test_a_failing_task_reports_its_error():
    with pytest.raises(RuntimeError, match="no algorithm 'gn'"):
        _common.measure(SMALL, [_common.link("gn")])


def test_claims_hold_or_not():
    section = _common.Section("a title")
    section.claim("fast", 2.0, at_most=3)
    section.claim("cheap", 2.0, at_least=3)
    assert [claim["holds"] for claim in section.claims] == [True, False]


def test_a_section_leaves_other_sections_of_the_file_unchanged(tmp_path, monkeypatch):
    monkeypatch.setattr(_common, "RESULTS", tmp_path)
    _common.keep("link", "one", _common.Section("1", [{"x": 1}]))
    _common.keep("link", "two", _common.Section("2"))
    record = json.loads((tmp_path / "link.json").read_text())
    assert record["one"]["rows"] == [{"x": 1}]
    assert set(record["two"]["made_with"]) == {"broadloom", "cores", "numba", "numpy", "python", "scipy"}


def test_an_unknown_section_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["link.py", "--only", "pear"])
    with pytest.raises(SystemExit):
        _common.run("link", benchmark.SECTIONS)
    assert "no section pear; there are peer, scale" in capsys.readouterr().err


def guarded(monkeypatch, recorded, seconds, *options):
    """The exit code of the guard for one part that needs these CPU seconds, one after the other."""
    left = iter(seconds)

    @contextmanager
    def prepare():
        yield guard.Pair(lambda: next(left), lambda: 1.0, rounds=1)

    monkeypatch.setattr(guard, "PARTS", {"link": guard.Part("what", "reference", prepare)})
    monkeypatch.setattr(guard, "kept", lambda *_: recorded)
    monkeypatch.setattr(sys, "argv", ["guard.py", *options])
    with pytest.raises(SystemExit) as caught:
        guard.main()
    return caught.value.code


def test_the_guard_fails_above_twice_the_recorded_ratio(monkeypatch):
    recorded = [{"part": "link", "ratio": 1.5}]
    assert guarded(monkeypatch, recorded, [2.9]) == 0
    assert guarded(monkeypatch, recorded, [3.5, 3.5, 2.9]) == 0, "a busy moment is measured again"
    failed = guarded(monkeypatch, recorded, [3.5, 3.3, 3.4])
    assert failed == "link takes 3.3 times its reference; at most 3 is allowed"


def test_the_guard_records_ratios(monkeypatch, tmp_path):
    monkeypatch.setattr(_common, "RESULTS", tmp_path)
    assert guarded(monkeypatch, [], [0.5], "--record") == 0
    row = {"part": "link", "what": "what", "reference": "reference", "ratio": 0.5}
    assert _common.kept("guard", "ratios") == [row]


def test_each_guarded_part_has_a_recorded_ratio():
    assert [row["part"] for row in _common.kept("guard", "ratios")] == list(guard.PARTS)

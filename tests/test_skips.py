"""Skips: a test without its program or data is skipped with a reason; in CI a missing program fails it."""

from pathlib import Path

import pytest

CONFTEST = Path(__file__).with_name("conftest.py").read_text()


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch):
    """Run one test with a marker under our conftest.py; returns its outcome and its report."""
    for name in ("BROADLOOM_CI", "BROADLOOM_DATA", "BROADLOOM_OPTIMIZE", "PYTHONOPTIMIZE"):
        monkeypatch.delenv(name, raising=False)
    (pytester.path / "tests").mkdir()
    (pytester.path / "tests" / "conftest.py").write_text(CONFTEST)
    pytester.makeini("[pytest]\nmarkers =\n  needs\n  data\n  spark")

    def run(marker: str) -> tuple[dict[str, int], str]:
        test = f"import pytest\n\n@pytest.mark.{marker}\ndef test_it(): pass\n"
        (pytester.path / "tests" / "test_it.py").write_text(test)
        result = pytester.runpytest_subprocess("-ra", "-p", "no:cacheprovider")
        return result.parseoutcomes(), result.stdout.str()

    return run


def test_runs_if_the_program_is_installed(run):
    assert run('needs("sh")')[0] == {"passed": 1}


def test_skips_with_the_missing_programs(run):
    outcome, report = run('needs("sh", "no-such-broker")')
    assert outcome == {"skipped": 1}
    assert "not installed: no-such-broker" in report


def test_fails_in_ci_if_a_program_is_missing(run, monkeypatch):
    monkeypatch.setenv("BROADLOOM_CI", "1")
    outcome, report = run('needs("no-such-broker")')
    assert outcome == {"errors": 1}
    assert "not installed: no-such-broker" in report


def test_skips_without_the_shared_data_even_in_ci(run, monkeypatch):
    monkeypatch.setenv("BROADLOOM_CI", "1")
    outcome, report = run("data")
    assert outcome == {"skipped": 1}
    assert "no shared data at" in report


def test_runs_with_the_data_of_the_environment_variable(run, monkeypatch, tmp_path):
    monkeypatch.setenv("BROADLOOM_DATA", str(tmp_path))
    assert run("data")[0] == {"passed": 1}


def test_all_spark_tests_go_to_one_worker(run, pytester):
    """Each test writes a file named after its process; with two workers there is still one file."""
    run("spark")
    test = "import os, pytest\npytestmark = pytest.mark.spark\n" + "".join(
        f"def test_{i}(): open(str(os.getpid()), 'a').close()\n" for i in range(6)
    )
    (pytester.path / "tests" / "test_it.py").write_text(test)
    pytester.runpytest_subprocess("-n", "2", "--dist", "loadgroup").assert_outcomes(passed=6)
    assert len([path for path in pytester.path.iterdir() if path.name.isdigit()]) == 1

"""The wheel, installed without extras into an empty environment outside of the repository.

`tools/smoke_test.py` runs there: it knows neither the repository nor the packages of the developers.
"""

import os
import sys
import tarfile
from pathlib import Path

import pytest

import distribution

pytestmark = pytest.mark.xdist_group("wheel")  # one worker builds and installs


@pytest.fixture(scope="session")
def built(tmp_path_factory) -> tuple[Path, Path]:
    """The wheel and the source distribution of the working tree."""
    return distribution.build(tmp_path_factory.mktemp("built"))


@pytest.fixture(scope="session")
def python(built, tmp_path_factory) -> Path:
    """The interpreter of an environment that has the wheel."""
    folder = tmp_path_factory.mktemp("environment")
    try:
        return distribution.new_environment(sys.executable, folder / "venv", built[0], locked=True)
    except SystemExit as error:
        if os.environ.get("BROADLOOM_CI") == "1":
            raise
        pytest.skip(f"the wheel cannot be installed, which needs the package index: {str(error)[-300:]}")


def test_wheel_and_source_distribution_hold_what_they_need_and_nothing_else(built):
    distribution.check_contents(*built)


def test_the_index_can_show_the_readme(built):
    distribution.check_rendering(*built)


def test_a_second_build_gives_the_same_bytes(built, tmp_path):
    again = distribution.build(tmp_path)
    assert [file.name for file in built] == [file.name for file in again]
    assert [file.read_bytes() == other.read_bytes() for file, other in zip(built, again, strict=True)] == [
        True,
        True,
    ]


def test_the_source_distribution_has_one_time_and_no_owner(built):
    """So that the same commit gives the same bytes on another machine."""
    with tarfile.open(built[1]) as archive:
        members = archive.getmembers()
    assert {member.mtime for member in members} == {distribution.source_time()}
    assert {(member.uid, member.gid, member.uname, member.gname) for member in members} == {(0, 0, "", "")}
    assert [member.name for member in members] == sorted(member.name for member in members)


@pytest.mark.parametrize("parts", ["import", "link", "help", "readme", "tables,extras"])
def test_the_installed_wheel(built, python, parts, tmp_path):
    names = parts.split(",")
    said = distribution.smoke_test(python, built[0], tmp_path / "work", *names)
    assert [line.split(", ")[1].partition(":")[0] for line in said.splitlines()] == names

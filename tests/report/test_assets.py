"""Script and style of the page: built from their sources, with all licences listed."""

import hashlib
import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ASSETS = ROOT / "src" / "broadloom" / "report" / "assets"
SOURCES = ROOT / "report-ui"
NOTE = json.loads((ASSETS / "built.json").read_text())


def digests(folder, names):
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names}


def test_assets_are_built_from_these_sources():
    """`make report-ui` builds them again."""
    written = {f"src/{file.name}" for file in (SOURCES / "src").iterdir()}
    assert {name for name in NOTE["sources"] if name.startswith("src/")} == written
    assert digests(SOURCES, NOTE["sources"]) == NOTE["sources"]


def test_assets_are_not_edited_by_hand():
    assert digests(ASSETS, NOTE["built"]) == NOTE["built"]
    assert {file.name for file in ASSETS.iterdir()} == {*NOTE["built"], "built.json"}


def test_licences_are_listed():
    text = (ASSETS / "LICENSES.txt").read_text()
    packages = json.loads((SOURCES / "package.json").read_text())["dependencies"]
    for name, version in packages.items():
        assert f"\n{name} {version} (" in text
        assert re.fullmatch(r"\d+\.\d+\.\d+", version), "versions are pinned"


def test_package_files_name_no_registry():
    for name in ("package.json", "package-lock.json", ".npmrc"):
        assert "://" not in re.sub(r'"url": "[^"]*"', "", (SOURCES / name).read_text())

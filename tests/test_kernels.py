"""Kernels: a cache on disk from another version or another process never breaks a run."""

import re
import subprocess
import sys
import threading
from pathlib import Path

import numba
from numba.core.caching import IndexDataCacheFile
from numba.core.cpu import CPUTargetOptions

from broadloom.kernels import jit

MODULE = """
from typing import NamedTuple
import numpy as np
from broadloom.kernels import kernel

class {name}(NamedTuple):
    values: np.ndarray

@kernel
def total(arrays):
    return arrays.values.sum()

print(total({name}(np.ones(3))))
"""


def _plus_one(x):
    return x + 1


def test_numba_still_has_the_private_parts_that_we_use(monkeypatch):
    """`kernels/jit.py` skips parts that are missing; this test says so before a user's cache goes stale."""
    advice = f"numba {numba.__version__} changed a private part: adapt broadloom/kernels/jit.py"
    file = jit.cache_file_of(numba.njit(**{**jit.OPTIONS, "cache": True})(_plus_one))
    assert isinstance(file, IndexDataCacheFile), f"{advice} (cache_file_of)"
    missing = [part for part in jit.CACHE_PARTS if not hasattr(file, part)]
    assert not missing, f"{advice} (CACHE_PARTS: {missing})"
    assert isinstance(file._cache_path, str), f"{advice} (_cache_path)"
    assert isinstance(file._load_index(), dict), f"{advice} (_load_index)"
    options = {*jit.OPTIONS, *jit.INNER_OPTIONS} - {"cache"}
    missing = [option for option in options if not hasattr(CPUTargetOptions, option)]
    assert not missing, f"{advice} (options: {missing})"
    monkeypatch.setattr(jit, "OPTIONS", {**jit.OPTIONS, "cache": True})
    shared = jit.cache_file_of(jit.kernel(_plus_one))
    assert shared._source_stamp[1] == jit._stamp_of_kernel_files(), f"{advice} (_source_stamp)"


def test_every_file_with_kernels_is_in_the_stamp():
    """A kernel file that does not name `broadloom.kernels` would not be compiled anew after a change."""
    package = Path(jit.__file__).parents[1]
    for file in package.rglob("*.py"):
        text = file.read_text()
        if re.search(r"@(inner_)?kernel\b|compiled_for\(", text):
            assert "broadloom.kernels" in text, file


def test_a_cache_of_another_version_is_compiled_anew(tmp_path):
    """The types that a cached kernel was compiled for may be gone in the next version."""
    script = tmp_path / "kernels_of_a_version.py"
    for name in ("Before", "After", "After"):
        script.write_text(MODULE.format(name=name))
        command = [
            sys.executable,
            "-c",
            f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import {script.stem}",
        ]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stdout == "3.0\n"


def test_a_change_in_one_file_compiles_the_kernels_of_all_anew(tmp_path):
    """Kernels are compiled into one another, which numba does not check."""
    package = tmp_path / "broadloom"
    (package / "kernels").mkdir(parents=True)
    (package / "kernels" / "jit.py").write_text(Path(jit.__file__).read_text())
    (package / "kernels" / "__init__.py").write_text("from broadloom.kernels.jit import kernel\n")
    (package / "__init__.py").touch()
    constant = package / "inner.py"
    (package / "outer.py").write_text(
        "from broadloom.kernels import kernel\nfrom broadloom.inner import inner\n\n"
        "@kernel\ndef outer():\n    return inner()\n\nprint(outer())\n"
    )
    for value in (1, 2):
        constant.write_text(
            f"from broadloom.kernels import kernel\n\n@kernel\ndef inner():\n    return {value}\n"
        )
        # -B: two files of one size, written in one second, look the same to Python's own cache of bytecode.
        command = [sys.executable, "-B", "-c", "import broadloom.outer"]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env={"PATH": ""})
        assert done.stdout == f"{value}\n", done.stderr


def test_two_processes_never_save_under_one_name(tmp_path):
    """The second process arrives in the middle of a save: it waits, and both can load their own code."""
    one, other = (IndexDataCacheFile(str(tmp_path), "kernel", "stamp") for _ in range(2))
    save_index = one._save_index
    for file in (one, other):
        file.save = jit._with_lock(file.save, str(tmp_path))
    meanwhile = threading.Thread(target=other.save, args=("other", "its code"))

    def slowly(overloads):
        meanwhile.start()
        meanwhile.join(0.2)
        save_index(overloads)

    one._save_index = slowly
    one.save("one", "its own code")
    meanwhile.join()
    assert (one.load("one"), one.load("other")) == ("its own code", "its code")

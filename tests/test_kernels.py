"""Kernels: what is on disk, from another version or from another process, never breaks a run."""

import subprocess
import sys
import threading
from pathlib import Path

from numba.core.caching import IndexDataCacheFile

from broadloom.kernels import jit

MODULE = """
from typing import NamedTuple
import numpy as np
from broadloom.kernels import kernel

class {name}(NamedTuple):
    values: np.ndarray

@kernel
def total(given):
    return given.values.sum()

print(total({name}(np.ones(3))))
"""


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
    """They are compiled into one another, which numba does not look at."""
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
    """The other one comes in the middle of a save: it waits, and both find what they saved."""
    one, other = (IndexDataCacheFile(str(tmp_path), "kernel", "stamp") for _ in range(2))
    plain = one._save_index
    for file in (one, other):
        file.save = jit._alone(file.save, str(tmp_path))
    meanwhile = threading.Thread(target=other.save, args=("other", "its code"))

    def slowly(overloads):
        meanwhile.start()
        meanwhile.join(0.2)
        plain(overloads)

    one._save_index = slowly
    one.save("one", "its own code")
    meanwhile.join()
    assert (one.load("one"), one.load("other")) == ("its own code", "its code")

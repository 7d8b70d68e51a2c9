"""Kernels: what is on disk from another version never breaks a run."""

import subprocess
import sys

MODULE = """
from typing import NamedTuple
import numpy as np
from broadloom._jit import kernel

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

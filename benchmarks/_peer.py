"""Java peer: an optimised implementation of the same algorithms, run on the same instance files."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import broadloom as bl
from _common import SHARED, Instance

FOLDER = Path(os.environ.get("BROADLOOM_PEER", SHARED / "anchors" / "java"))

# By our names: the peer's name of the algorithm, and its fastest search option according to its README.
ALGORITHMS = {"gm": ("GM", "bucket"), "grmaw": ("GrMAW", "heap"), "low-oda": ("Low", "bucket")}
HEAP = "-Xmx12g"


def is_available() -> bool:
    """Whether the peer's sources and a Java compiler exist."""
    return FOLDER.is_dir() and shutil.which("javac") is not None


@dataclass(frozen=True)
class Peer:
    """The compiled peer, with one instance in its file format."""

    folder: Path

    def run(self, algorithm: str, rounds: int, warm: int) -> dict[str, Any]:
        """The CPU seconds of the algorithm's thread, the best round after some to warm up, and the edges."""
        name, search = ALGORITHMS[algorithm]
        command: Sequence[str] = (
            *("java", HEAP, "-cp", str(self.folder), "Tco", "-alg", name, "-search", search),
            *("-in", str(self.folder / "interest"), "-w", str(self.folder / "weights.f64")),
            *("-runs", str(rounds), "-warm", str(warm), "-edges", str(self.folder / "edges")),
        )
        answer = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        edges = np.loadtxt(self.folder / "edges", dtype="<i4", ndmin=2)
        digest = hashlib.sha256(edges.tobytes()).hexdigest()[:16]
        return {"cpu_s": answer["cpu_seconds"], "edges": answer["n_edges"], "digest": digest}


@contextmanager
def peer(instance: Instance) -> Iterator[Peer]:
    """Compile the peer and write the instance for it, in a temporary folder."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        sources = sorted(str(source) for source in FOLDER.glob("*.java"))
        subprocess.run(["javac", "-d", scratch, *sources], check=True)
        write(folder, *instance.build())
        yield Peer(folder)


def write(folder: Path, interest: bl.Interest, weights: bl.Weights) -> None:
    """Write the peer's files: one line of topics per node, and the matrix of weights as raw doubles."""
    write_interest(folder, interest)
    weights.matrix().astype("<f8").tofile(folder / "weights.f64")


def write_interest(folder: Path, interest: bl.Interest) -> None:
    """Write one line of topics per node."""
    lines = [f"{interest.node_count} {interest.topic_count}"]
    lines += [" ".join(map(str, interest.topics_of(u).tolist())) for u in range(interest.node_count)]
    (folder / "interest").write_text("\n".join(lines) + "\n")

"""CPU time and memory of a command and of every process that it starts."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

TICK = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass
class Cost:
    """Seconds and bytes of a command and all its descendants.

    CPU seconds are those at the last sample of each process, up to a tenth of a second before its end.
    """

    wall: float = 0.0
    peak: int = 0
    peaks: dict[str, int] = field(default_factory=dict)
    seen: dict[int, tuple[str, float]] = field(default_factory=dict)
    output: str = ""

    @property
    def cpu(self) -> float:
        """CPU seconds of all processes."""
        return sum(seconds for _, seconds in self.seen.values())

    def cpu_of(self, program: str) -> float:
        """CPU seconds of the processes of this name."""
        return sum(seconds for name, seconds in self.seen.values() if name.startswith(program))

    def peak_of(self, program: str) -> int:
        """The most bytes that the processes of this name had at a time."""
        return max((size for name, size in self.peaks.items() if name.startswith(program)), default=0)


def cost(command: list[str], environment: dict[str, str] | None = None) -> Cost:
    """Run a command and wait for it; it must succeed."""
    found, started = Cost(), time.monotonic()
    with tempfile.TemporaryFile() as output:  # a pipe would be full before the command ends
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.DEVNULL)
        while process.poll() is None:
            sample(process.pid, found)
            time.sleep(0.1)
        found.wall = time.monotonic() - started
        output.seek(0)
        found.output = output.read().decode()
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} failed with exit code {process.returncode}")
    return found


def sample(root: int, found: Cost) -> None:
    """Add the CPU seconds and the memory of every process below `root`."""
    parent: dict[int, int] = {}
    rest: dict[int, list[str]] = {}
    names: dict[int, str] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            head, _, tail = (folder / "stat").read_text().rpartition(")")
        except OSError:
            continue
        pid = int(folder.name)
        rest[pid], names[pid] = tail.split(), head.partition("(")[2]
        parent[pid] = int(rest[pid][1])
    mine = [pid for pid in rest if _is_below(pid, root, parent) and not _is_copy(pid, parent[pid])]
    for pid in mine:
        seconds = sum(map(int, rest[pid][11:13])) / TICK
        found.seen[pid] = names[pid], max(seconds, found.seen.get(pid, ("", 0.0))[1])
    sizes: dict[str, int] = {}
    for pid in mine:
        sizes[names[pid]] = sizes.get(names[pid], 0) + int(rest[pid][21]) * PAGE
    found.peak = max(found.peak, sum(sizes.values()))
    for name, size in sizes.items():
        found.peaks[name] = max(size, found.peaks.get(name, 0))


def _is_copy(pid: int, parent: int) -> bool:
    """Whether a process is a JVM that is about to run another program; until then it shares the memory."""
    try:
        programs = {str(Path(f"/proc/{one}/exe").readlink()) for one in (pid, parent)}
    except OSError:
        return False
    return len(programs) == 1 and programs.pop().endswith("/java")


def _is_below(pid: int, root: int, parent: dict[int, int]) -> bool:
    while pid not in (0, 1, root):
        pid = parent.get(pid, 0)
    return pid == root

"""Reproduction of the papers: runs `broadloom reproduce`, and keeps its claims and its page for the docs.

python benchmarks/papers.py                      # at the papers' sizes: hours on two cores; can be continued
python benchmarks/papers.py --quick 1,2,3,4,5    # these papers at reduced sizes: minutes

Both keep their results; cases that were run are in build/reproduction, and are not run again.
"""

from __future__ import annotations

import argparse
import shutil
import time
from pathlib import Path

from rich.console import Console

from _common import Section, keep, show
from broadloom.papers import FIGURES
from broadloom.papers.paper1_weighted_overlays import latency_sources
from broadloom.papers.reproduction import reproduce

ROOT = Path(__file__).parents[1]


def main() -> None:
    """Run everything, and keep the results for the docs."""
    parser = argparse.ArgumentParser(description="Figures and claims of the papers, compared with ours.")
    parser.add_argument("--quick", default="", help="papers to run at reduced size: 4,5")
    quick = {int(paper) for paper in parser.parse_args().quick.split(",") if paper}
    began = time.perf_counter()
    found = reproduce(FIGURES, ROOT / "build" / "reproduction", quick)
    notes = {
        "cases run": found.run,
        "cases known before": found.known,
        "latencies": latency_sources(),
        "seconds elapsed": round(time.perf_counter() - began),
    }
    section = Section("Claims of the papers", found.claims, notes=notes)
    show(Console(), section)
    keep("papers", "claims", section)
    shutil.copy(found.page, ROOT / "docs" / "reproduction.html")


if __name__ == "__main__":
    main()

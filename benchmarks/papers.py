"""Reproduction of the papers: runs `broadloom reproduce`, and keeps its claims and its page for the docs.

python benchmarks/papers.py                      # at the papers' sizes: hours on one core; can be continued
python benchmarks/papers.py --quick 1,2,3,4,5    # these papers at reduced sizes: minutes
python benchmarks/papers.py --show-only          # run nothing; keep the results of complete figures

All keep their results; cases that were run are in build/reproduction, and are not run again.
"""

from __future__ import annotations

import argparse
import shutil
import time
from pathlib import Path

from rich.console import Console

from _common import Section, keep, show
from broadloom.papers import FIGURES
from broadloom.papers.cited_papers import PAPERS
from broadloom.papers.evidence_page import scores
from broadloom.papers.figures import RULES, VERDICTS
from broadloom.papers.paper1_weighted_overlays import latency_sources
from broadloom.papers.reproduction import reproduce

ROOT = Path(__file__).parents[1]


def main() -> None:
    """Run everything, and keep the results for the docs."""
    parser = argparse.ArgumentParser(description="Figures and claims of the papers, compared with ours.")
    parser.add_argument("--quick", default="", help="papers to run at reduced size: 4,5")
    parser.add_argument("--show-only", action="store_true", help="run nothing")
    asked = parser.parse_args()
    quick = {int(paper) for paper in asked.quick.split(",") if paper}
    began = time.perf_counter()
    found = reproduce(FIGURES, ROOT / "build" / "reproduction", quick, run=not asked.show_only)
    notes = {
        "cases run": found.run,
        "cases known before": found.known,
        "latencies": latency_sources(),
        "seconds elapsed": round(time.perf_counter() - began),
    }
    counted = scores(found.all_claims)
    used = [verdict for verdict in VERDICTS if any(row[verdict] for row in counted)]
    columns = ["paper", "size", "kind", "claims", *used]
    kept = Section("Scores", [{name: row[name] for name in columns} for row in counted], notes=notes)
    show(Console(), kept)
    keep("papers", "scores", kept)
    keep("papers", "claims", Section("Claims of the papers", found.all_claims, notes=notes))
    keep("papers", "rules", Section("Rules", [{"kind": kind, "rule": rule} for kind, rule in RULES.items()]))
    meanings = [{"verdict": name, "meaning": text} for name, text in VERDICTS.items()]
    keep("papers", "verdicts", Section("Verdicts", meanings))
    differences = [{"paper": f"{n}, {one.short}", "what differs": one.differs} for n, one in PAPERS.items()]
    keep("papers", "differences", Section("What differs from the papers", differences))
    shutil.copy(found.page, ROOT / "docs" / "reproduction.html")


if __name__ == "__main__":
    main()

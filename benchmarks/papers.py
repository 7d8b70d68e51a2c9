"""Reproduction of the papers: runs `broadloom reproduce`, and keeps its rows, claims and page for the docs.

python benchmarks/papers.py                      # at the papers' sizes: hours on one core; can be continued
python benchmarks/papers.py --jobs 2             # two cases at a time, each in a process of its own
python benchmarks/papers.py --only paper2-fig1   # the cases of some figures, by the names of the files
python benchmarks/papers.py --quick 1,2,3,4,5    # these papers at reduced sizes: minutes
python benchmarks/papers.py --show-only          # run nothing; judge the claims of the rows that are kept

The figures run one after another, the cheapest first. The rows of a figure that is complete at the paper's
size are kept in benchmarks/results/reproduction, one file per figure; these cases are not run again, nor are
those in build/reproduction. After a change of an algorithm delete the files of its figures in both.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from _common import DATA, RESULTS, Section, keep, show
from broadloom.papers import FIGURES
from broadloom.papers.case_files import case_file, pack, read_case, unpack
from broadloom.papers.cited_papers import PAPERS
from broadloom.papers.evidence_page import scores
from broadloom.papers.figures import RULES, VERDICTS, Figure
from broadloom.papers.paper1_weighted_overlays import latency_sources
from broadloom.papers.reproduction import reproduce, run_cases

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "build" / "reproduction"
KEPT = RESULTS / "reproduction"
# CPU minutes of the figures with cases of their own, as estimated from some of the cases: the order of a run.
MINUTES = {}


def main() -> None:
    """Run what was asked for, and keep the results for the docs."""
    parser = argparse.ArgumentParser(description="Figures and claims of the papers, compared with ours.")
    parser.add_argument("--quick", default="", help="papers to run at reduced size: 4,5")
    parser.add_argument("--only", default="", help="figures to run: paper2-fig1,paper3-ties")
    parser.add_argument("--jobs", type=int, default=1, help="cases that run at a time")
    parser.add_argument("--show-only", action="store_true", help="run nothing")
    asked = parser.parse_args()
    os.environ.setdefault("BROADLOOM_DATA", str(DATA))
    quick = {int(paper) for paper in asked.quick.split(",") if paper}
    only = {key for key in asked.only.split(",") if key} or set(MINUTES)
    if only - set(MINUTES):
        parser.error(f"no figure {', '.join(sorted(only - set(MINUTES)))}; there are {', '.join(MINUTES)}")
    (FOLDER / "cases").mkdir(parents=True, exist_ok=True)
    KEPT.mkdir(exist_ok=True)
    for path in sorted(KEPT.glob("*.json.gz")):
        unpack(path, FOLDER)
    if not asked.show_only:
        for figure in in_order(only):
            run_figure(figure, figure.paper in quick, asked.jobs)
    keep_results()


def in_order(keys: set[str]) -> Iterator[Figure]:
    """The figures of some keys with cases of their own, the cheapest first."""
    by_key = {figure.key: figure for figure in FIGURES}
    yield from (by_key[key] for key in sorted(keys, key=lambda key: MINUTES[key]))


def run_figure(figure: Figure, quick: bool, jobs: int) -> None:
    """Run the cases of a figure that are missing, and keep its rows if they have the paper's size."""
    began = time.perf_counter()
    cases = list(figure.cases(quick))
    pending = [(figure.key, case) for case in cases if not read_case(case_file(FOLDER, figure.key, case))]
    run_cases(pending, FOLDER, jobs)
    if not quick:
        pack(FOLDER, figure.key, cases, KEPT / f"{figure.key}.json.gz")
    elapsed = time.perf_counter() - began
    print(f"{figure.key}: {len(pending)} of {len(cases)} cases run in {elapsed:,.0f} s", file=sys.stderr)


def keep_results() -> None:
    """Judge the claims of all figures that are complete, and keep them and the page."""
    found = reproduce(FIGURES, FOLDER, run=False)
    notes = {"latencies": latency_sources()}
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

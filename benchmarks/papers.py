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
import math
import os
import shutil
import sys
import time
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
MINUTES = {
    "paper2-lemmas": 0.1,
    "paper2-bounds": 0.2,
    "paper2-ties": 0.1,
    "paper2-fig1": 0.2,
    "paper2-stars": 0.2,
    "paper2-fig3": 0.3,
    "paper2-fig5": 0.9,
    "paper3-fig2": 0.1,
    "paper3-fig3": 0.1,
    "paper3-rules": 0.1,
    "paper3-thousand": 0.1,
    "paper3-coverage": 0.3,
    "paper3-fig4": 0.2,
    "paper3-fig5": 0.3,
    "paper3-covers": 0.3,
    "paper3-ties": 4,
    "paper3-fig6": 6,
    "paper1-lemmas": 0.1,
    "paper1-division": 0.1,
    "paper1-random": 0.5,
    "paper1-combined": 1,
    "paper1-fit": 0.4,
    "paper1-fig7": 0.6,
    "paper1-fig8": 0.7,
    "paper1-fig4": 2,
    "paper1-fig6": 4,
    "paper1-fig5": 4.4,
    "paper1-fig9": 6,
    "paper1-printed": 11,
    "paper5-table1": 1,
    "paper5-settings": 1,
    "paper5-fig9": 14,
    "paper5-fig10": 24,
    "paper4-instance": 0.1,
    "paper4-geographies": 0.4,
    "paper4-fig7b": 1.1,
    "paper4-table2": 1.4,
    "paper4-fig9b": 1.9,
    "paper4-draws": 2,
    "paper4-fractional": 6,
    "paper4-fig10": 8,
    "paper4-fig6": 8.3,
    "paper4-fig8": 11,
    "paper4-fig11": 13,
    "paper4-others": 40,
    "paper4-search": 45,
}


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
    known = {figure.key: figure for figure in FIGURES if figure.shares is None}
    only = asked.only.split(",") if asked.only else list(known)
    unknown = [key for key in only if key not in known]
    if unknown:
        parser.error(f"no figure {', '.join(unknown)}; there are {', '.join(known)}")
    (FOLDER / "cases").mkdir(parents=True, exist_ok=True)
    KEPT.mkdir(exist_ok=True)
    for path in sorted(KEPT.glob("*.json.gz")):
        unpack(path, FOLDER)
    if not asked.show_only:
        for key in sorted(only, key=lambda key: MINUTES.get(key, math.inf)):
            run_figure(known[key], known[key].paper in quick, asked.jobs)
    keep_results()


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

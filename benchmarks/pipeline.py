"""The pipeline benchmark: what ingest, link on Spark and their overhead cost on this machine.

    python benchmarks/pipeline.py                    # all sections, about a quarter of an hour
    python benchmarks/pipeline.py --only ingest
    python benchmarks/pipeline.py --quick            # small, nothing is kept

CPU seconds are those of the driver, the JVM and the Python workers together, the start of Spark included.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from _common import Section, run
from _tree import Cost, cost
from broadloom import workload

CLI = [sys.executable, "-m", "broadloom.cli"]


def ingest(quick: bool) -> Section:
    """Rows per second of ingest, with one row in a hundred bad and a driver of 2 GiB."""
    section = Section("Ingest of device subscriptions (CSV), 200 brokers, 1 % bad rows, driver of 2 GiB")
    sizes = (20_000,) if quick else (500_000, 2_000_000, 10_000_000)
    for rows in sizes:
        with tempfile.TemporaryDirectory() as place:
            raw = Path(place, "raw")
            planted = workload.devices(raw, subscriptions=rows)
            spent = cost(
                [
                    *CLI,
                    "ingest",
                    str(raw),
                    "-o",
                    f"{place}/tables",
                    "--json",
                    "--conf",
                    "spark.driver.memory=2g",
                ]
            )
            account = next(
                table for table in json.loads(spent.output)["tables"] if table["table"] == "subscriptions"
            )
            bad = sum(planted.values()) - planted["repeated"]
            assert sum(account["quarantined"].values()) == bad
            section.rows.append({"rows": rows, "quarantined": bad} | _row(spent, rows))
    if not quick:
        section.claim("10,000,000 rows, CPU seconds", section.rows[-1]["CPU s"], at_most=70)
    return section


def demo(quick: bool) -> Section:
    """The whole pipeline on the demo's data, from process start to the report, cold and warm."""
    section = Section("The whole pipeline: 200 brokers, 500,000 device subscriptions")
    with tempfile.TemporaryDirectory() as place:
        workload.devices(Path(place, "raw"), subscriptions=20_000 if quick else 500_000)
        Path(place, "run.toml").write_text(
            'sources = ["raw"]\noutput = "out"\n[ingest]\nsymmetric = "mean"\n'
        )
        for what in ("cold", "warm"):
            spent = cost([*CLI, "run", f"{place}/run.toml", "--json"])
            steps = {name: seconds or 0.0 for name, seconds in json.loads(spent.output)["steps"].items()}
            section.rows.append({"run": what, "wall s": spent.wall, "CPU s": spent.cpu} | steps)
    return section


def _row(spent: Cost, rows: int) -> dict[str, float]:
    return {
        "wall s": spent.wall,
        "CPU s": spent.cpu,
        "JVM CPU s": spent.cpu_of("java"),
        "rows per CPU s": rows / spent.cpu,
        "peak MB": spent.peak / 1e6,
    }


SECTIONS = {"ingest": ingest, "demo": demo}

if __name__ == "__main__":
    run("pipeline", SECTIONS)

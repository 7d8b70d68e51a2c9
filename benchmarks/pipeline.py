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

from _common import HERE, RESULTS, Section, keep, run
from _tree import Cost, cost
from broadloom import workload

ROWS = (500_000, 2_000_000, 10_000_000)
# Nodes, topics, nodes a site.
INSTANCES = ((10_000, 200, 100), (100_000, 200, 100), (1_000_000, 1000, 500))
# The most nodes for which grmaw is run too.
BOTH_RUN = 10_000
# CPU seconds by stage; "hand out" is inside "conquer", and what "all" has beyond divide, conquer and combine
# is the check of the finished plan.
STAGES = ("start", "divide", "hand out", "tasks", "conquer", "combine", "all")
CLI = [sys.executable, "-m", "broadloom.cli"]


def ingest(quick: bool) -> Section:
    """Rows per second of ingest, with one row in a hundred bad and a driver of 2 GiB."""
    section = Section("Ingest of device subscriptions (CSV), 200 brokers, 1 % bad rows, driver of 2 GiB")
    for rows in (20_000,) if quick else ROWS:
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
            size = sum(file.stat().st_size for file in raw.iterdir()) / 1e6
            section.rows.append({"rows": rows, "MB": size, "quarantined": bad} | _row(spent, rows))
            if rows == ROWS[0]:
                agree = _plain_pass(raw) == (account["rows"], account["quarantined"], account["duplicates"])
                section.claim("the accounts are those of a plain Python pass", int(agree), at_least=1)
    section.claim("10,000,000 rows, CPU seconds", section.rows[-1]["CPU s"], at_most=60)
    return section


def _plain_pass(raw: Path) -> tuple[int, dict[str, int], int]:
    """Rows, rows by reason and duplicates, by the plain program that the tests use too."""
    sys.path.append(str(HERE.parent / "tests"))
    import naive_ingest

    names = [line.split(",")[0] for line in (raw / "nodes.csv").read_text().split()[1:]]
    topics = (raw / "topics.csv").read_text().split()[1:]
    files = sorted(raw.glob("subscriptions-*.csv"))
    rows, reasons, duplicates, _ = naive_ingest.ingest(files, set(names), set(topics))
    return rows, dict(reasons), duplicates


def demo(quick: bool) -> Section:
    """The whole pipeline on the demo's data, from process start to the report, cold and warm."""
    section = Section(
        "The whole pipeline: 200 brokers, 500,000 device subscriptions, 10,000 subscribers; kernels compiled"
    )
    with tempfile.TemporaryDirectory() as place:
        workload.devices(Path(place, "raw"), subscriptions=20_000 if quick else 500_000, subscribers=10_000)
        config = (HERE.parent / "examples" / "demo.toml").read_text()
        Path(place, "run.toml").write_text(config.replace("../demo/", ""))
        for what in ("cold", "warm"):
            spent = cost([*CLI, "run", f"{place}/run.toml", "--json"])
            steps = {name: seconds or 0.0 for name, seconds in json.loads(spent.output)["steps"].items()}
            section.rows.append({"run": what, "wall s": spent.wall, "CPU s": spent.cpu} | steps)
    section.claim("the first run, wall seconds", section.rows[0]["wall s"], at_most=60)
    return section


def link(quick: bool) -> Section:
    """Dcmaw by site on Spark and in one process: CPU seconds by stage, memory, and the price of Spark."""
    section = Section(
        "dcmaw in sites (inner 1, outer 10), two cores: one process, and Spark on the same machine"
    )
    for size in ((1000, 200, 100),) if quick else INSTANCES:
        alone, spark = (_linked(section, size, where) for where in ("process", "spark"))
        assert (alone["weight"], alone["edges"]) == (spark["weight"], spark["edges"])
        more = spark["CPU s"] - alone["CPU s"]
        section.rows[-1] |= {"over one process s": more, "share of Spark": more / spark["CPU s"]}
        if size[0] <= BOTH_RUN:
            whole = _linked(section, size, "grmaw")
            ratio = alone["weight"] / whole["weight"]
            section.claim(f"dcmaw's weight / grmaw's at {size[0]:,} nodes", ratio, at_most=1.015)
        if not quick:
            keep("pipeline", "link", section)  # the next size takes long: what is known is known
    return section


def _linked(section: Section, size: tuple[int, int, int], where: str) -> dict[str, float]:
    """Link in a process of its own, and add a row that tells what it cost."""
    spent = cost([sys.executable, str(HERE / "_link_on_spark.py"), *map(str, size), where])
    told = json.loads(spent.output)
    stages = {name: told["stages"].get(name, (0, 0))[1] for name in STAGES}
    told["CPU s"] = stages["start"] + stages["all"]
    row = {"nodes": size[0], "topics": size[1], "where": where, "weight": told["weight"]} | stages
    wall = sum(told["stages"].get(name, (0, 0))[0] for name in ("start", "all"))
    each = {"CPU s": told["CPU s"], "us a node": told["CPU s"] / size[0] * 1e6}
    section.rows.append(row | each | {"wall s": wall, "peak MB": spent.peak / 1e6})
    return told


def cluster(quick: bool) -> Section:  # noqa: ARG001 (computed, not run)
    """What more machines of two cores would take, from the CPU seconds of `link`.

    T(M) = start + driver + shared / (2 M): the executors share the tasks that conquer parts and join groups
    of them, and the rest (divide, hand out, the last join, the last check) is the driver's own. Nothing is
    said of the network, which one machine does not show.
    """
    section = Section("Computed, not run: T(M) = start + driver + shared / (2 M), in seconds")
    kept = json.loads((RESULTS / "pipeline.json").read_text())["link"]["rows"]
    for row in kept:
        if row["where"] == "spark":
            shared = row["tasks"]
            driver = row["all"] - shared
            times = {
                f"{machines} machines": row["start"] + driver + shared / (2 * machines)
                for machines in (1, 10, 100)
            }
            section.rows.append({"nodes": row["nodes"], "driver": driver, "shared": shared} | times)
    return section


def _row(spent: Cost, rows: int) -> dict[str, float]:
    return {
        "wall s": spent.wall,
        "CPU s": spent.cpu,
        "JVM CPU s": spent.cpu_of("java"),
        "rows per CPU s": rows / spent.cpu,
        "peak MB": spent.peak / 1e6,
    }


SECTIONS = {"ingest": ingest, "demo": demo, "link": link, "cluster": cluster}

if __name__ == "__main__":
    run("pipeline", SECTIONS)

"""Benchmark of the pipeline: the cost of ingest, of linking on Spark, and of Spark itself on this machine.

    python benchmarks/pipeline.py                    # all sections, about a quarter of an hour
    python benchmarks/pipeline.py --only ingest
    python benchmarks/pipeline.py --only large       # 30 million rows, and --only billion for the estimate
    python benchmarks/pipeline.py --quick            # small, results are not saved

CPU seconds are those of the driver, the JVM and the Python workers together, the start of Spark included.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

import broadloom as bl
from _common import HERE, RESULTS, Section, keep, run
from _tree import Cost, cost
from broadloom import workload

ROWS = (20_000, 500_000, 2_000_000, 10_000_000)
# Nodes, topics, nodes per site.
INSTANCES = ((10_000, 200, 100), (100_000, 200, 100), (1_000_000, 1000, 500))
# The largest number of nodes for which grmaw is run too.
GRMAW_UP_TO = 10_000
# CPU seconds per stage; "hand out" is part of "conquer", and "all" minus divide, conquer and combine is the
# check of the finished plan.
STAGES = ("start", "divide", "hand out", "tasks", "conquer", "combine", "all")
# Brokers, topics, and the numbers of rows of the large runs; the growth between the last two is extrapolated.
LARGE = (1000, 1_000_000, (3_000_000, 10_000_000, 30_000_000))
CLI = [sys.executable, "-m", "broadloom.cli"]


def ingest(quick: bool) -> Section:
    """Rows per second of ingest, with one row in a hundred bad and a driver of 2 GiB."""
    section = Section("Ingest of device subscriptions (CSV), 200 brokers, 1 % bad rows, driver of 2 GiB")
    for rows in (20_000,) if quick else ROWS:
        with tempfile.TemporaryDirectory() as folder:
            raw = Path(folder, "raw")
            planted = workload.devices(raw, subscriptions=rows)
            spent = cost(
                [
                    *CLI,
                    "ingest",
                    str(raw),
                    "-o",
                    f"{folder}/tables",
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
            if rows == 500_000:
                agree = _plain_pass(raw) == (account["rows"], account["quarantined"], account["duplicates"])
                section.claim("the accounts are those of a plain Python pass", int(agree), at_least=1)
    section.claim("20,000 rows, CPU seconds", section.rows[0]["CPU s"], at_most=15)
    section.claim("10,000,000 rows, CPU seconds", section.rows[-1]["CPU s"], at_most=40)
    return section


def _plain_pass(raw: Path) -> tuple[int, dict[str, int], int]:
    """Rows, rows by reason and duplicates, counted by the naive ingest of the tests."""
    sys.path.append(str(HERE.parent / "tests"))
    import naive_ingest

    names = [line.split(",")[0] for line in (raw / "nodes.csv").read_text().split()[1:]]
    topics = (raw / "topics.csv").read_text().split()[1:]
    files = sorted(raw.glob("subscriptions-*.csv"))
    rows, reasons, duplicates, *_ = naive_ingest.ingest(files, set(names), set(topics), "group")
    return rows, dict(reasons), duplicates


def peers(quick: bool) -> Section:
    """Ingest against DuckDB and Polars on the same input, one after the other; they must agree in all counts.

    Both are installed in an environment of their own, whose Python is named by BROADLOOM_PEERS.
    """
    section = Section("Ingest, DuckDB and Polars on the same input: CPU seconds of whole processes")
    python = os.environ.get("BROADLOOM_PEERS")
    if python is None:
        raise SystemExit("set BROADLOOM_PEERS to a Python with duckdb and polars: pip install duckdb polars")
    for rows in (20_000,) if quick else ROWS:
        with tempfile.TemporaryDirectory() as folder:
            raw = Path(folder, "raw")
            workload.devices(raw, subscriptions=rows)
            memory = ["--conf", "spark.driver.memory=2g"]
            spent = cost([*CLI, "ingest", str(raw), "-o", f"{folder}/tables", "--json", *memory])
            tables = json.loads(spent.output)["tables"]
            account = next(table for table in tables if table["table"] == "subscriptions")
            row = {"rows": rows, "CPU s": spent.cpu, "peak MB": spent.peak / 1e6}
            for name in ("duckdb", "polars"):
                peer = cost([python, str(HERE / "_ingest_peers.py"), name, str(raw), f"{folder}/{name}"])
                counts = json.loads(peer.output)
                assert counts.pop("used") == account["used"]
                refused = {reason: n for reason, n in counts.items() if reason not in ("good", "header")}
                assert refused == account["quarantined"]
                row |= {f"{name} CPU s": peer.cpu, f"{name} peak MB": peer.peak / 1e6}
                row |= {f"times {name}": spent.cpu / peer.cpu}
            section.rows.append(row)
    return section


def inspect(quick: bool) -> Section:
    """Verification and measures of one plan, in one process and on Spark, the start of Spark included."""
    section = Section("Verify and measure one plan of 1,000 brokers: one process, and Spark on this machine")
    for topics in (2_000,) if quick else (10_000, 100_000):
        with tempfile.TemporaryDirectory() as folder:
            interest = workload.interest(nodes=1000, topics=topics, sizes=(200, 1000), seed=1)
            sites = workload.weights(1000, "planar", seed=2)
            bl.link(interest, sites, "gm").save(Path(folder, "plan"))
            for where, master in (("process", []), ("spark", ["--master", "local[2]"])):
                spent = [
                    cost([*CLI, verb, f"{folder}/plan", "--json", *master]) for verb in ("verify", "measure")
                ]
                cpu = {"verify CPU s": spent[0].cpu, "measure CPU s": spent[1].cpu}
                size = {"topics": topics, "subscriptions": interest.subscription_count, "where": where}
                section.rows.append(size | cpu | {"peak MB": max(one.peak for one in spent) / 1e6})
    last = section.rows[-2]
    both = last["verify CPU s"] + last["measure CPU s"]
    section.claim("100,000 topics verified and measured, CPU seconds", both, at_most=20)
    return section


def demo(quick: bool) -> Section:
    """The whole pipeline on the demo's data, from process start to the report, cold and warm."""
    section = Section(
        "The whole pipeline: 200 brokers, 500,000 device subscriptions, 10,000 subscribers; kernels compiled"
    )
    with tempfile.TemporaryDirectory() as folder:
        workload.devices(Path(folder, "raw"), subscriptions=20_000 if quick else 500_000, subscribers=10_000)
        config = (HERE.parent / "examples" / "demo.toml").read_text()
        Path(folder, "run.toml").write_text(config.replace("../demo/", ""))
        for state in ("cold", "warm"):
            spent = cost([*CLI, "run", f"{folder}/run.toml", "--json"])
            steps = {name: seconds or 0.0 for name, seconds in json.loads(spent.output)["steps"].items()}
            section.rows.append({"run": state, "wall s": spent.wall, "CPU s": spent.cpu} | steps)
    section.claim("the first run, wall seconds", section.rows[0]["wall s"], at_most=25)
    return section


def large(quick: bool) -> Section:
    """The whole pipeline on large inputs with a driver of 2 GiB: seconds per step, memory, and bytes."""
    brokers, topics, sizes = (50, 10_000, (100_000, 200_000)) if quick else LARGE
    section = Section(f"The whole pipeline: {brokers:,} brokers, {topics:,} topics, driver of 2 GiB")
    for rows in sizes:
        with tempfile.TemporaryDirectory() as folder:
            _large_input(Path(folder, "raw"), brokers, topics, rows)
            Path(folder, "run.toml").write_text(
                'sources = ["raw"]\noutput = "out"\n[link]\nalgorithm = "gm"\nweights = "coordinates"\n'
                '[spark]\nconf = { "spark.driver.memory" = "2g" }\n'
            )
            spent = cost([*CLI, "run", f"{folder}/run.toml", "--json"])
            account = json.loads(Path(folder, "out", "ingest", "ingest.json").read_text())
            [used] = [table for table in account["tables"] if table["table"] == "subscriptions"]
            steps = json.loads(spent.output)["steps"]
            row = {"rows": rows, "pairs": used["written"], "CSV MB": _bytes(Path(folder, "raw")) / 1e6}
            row |= {"CPU s": spent.cpu, "wall s": spent.wall, "peak MB": spent.peak / 1e6}
            row |= {"JVM peak MB": spent.peak_of("java") / 1e6}
            row |= {"Python peak MB": max(spent.peak_of("python"), spent.peak_of("broadloom")) / 1e6}
            row |= {"output MB": _bytes(Path(folder, "out")) / 1e6}
            section.rows.append(row | {name: seconds for name, seconds in steps.items() if seconds})
        if not quick:
            keep("pipeline", "large", section)  # the next size takes long
    return section


def billion(quick: bool) -> Section:
    """The estimate for a billion rows of the same kind, from the growth between the two largest runs.

    CPU time, input and output grow with the rows, memory of Python with the pairs of a broker and a topic,
    of which `link` holds all; the memory of the JVM is limited by its setting, and is left out. The number of
    pairs follows from the distribution of the input.
    """
    section = Section(
        "Computed, not run: a billion rows, by the growth between the two largest runs of large"
    )
    kept = (
        large(quick).rows if quick else json.loads((RESULTS / "pipeline.json").read_text())["large"]["rows"]
    )
    brokers, topics, _ = (50, 10_000, ()) if quick else LARGE
    before, last = kept[-2:]
    rows = 1_000_000_000
    pairs = _expected_pairs(brokers, topics, rows)
    by_row = dict.fromkeys(("CPU s", "CSV MB"), ("rows", rows))
    by_pair = dict.fromkeys(("Python peak MB", "output MB"), ("pairs", pairs))
    row: dict[str, float] = {"rows": rows, "pairs": pairs}
    growth: dict[str, float] = {
        "rows": last["rows"] - before["rows"],
        "pairs": last["pairs"] - before["pairs"],
    }
    for name, (driver, size) in {**by_row, **by_pair}.items():
        per_unit = (last[name] - before[name]) / (last[driver] - before[driver])
        growth[name] = last[name] - before[name]
        row[name] = last[name] + per_unit * (size - last[driver])
    expected = _expected_pairs(brokers, topics, last["rows"])
    section.claim("pairs of the largest run / those of the formula", last["pairs"] / expected, at_most=1.01)
    section.rows += [{"of": "largest run"} | {name: last[name] for name in row}]
    section.rows += [{"of": "growth"} | growth, {"of": "estimate"} | row]
    return section


def _expected_pairs(brokers: int, topics: int, rows: int) -> float:
    """The expected number of different pairs of a broker and a topic among the rows of `_large_input`."""
    limits = (np.arange(topics + 1) / topics) ** (1 / 3)
    return float(brokers * -np.expm1(-rows * np.diff(limits) / brokers).sum())


def _large_input(folder: Path, brokers: int, topics: int, rows: int) -> None:
    """Subscriptions of devices to topics of which few are wanted by very many, and brokers on a plane."""
    rng = np.random.default_rng(5)
    folder.mkdir()
    places = rng.random((brokers, 2)) * 100
    lines = [f"b{number},{x:.3f},{y:.3f}" for number, (x, y) in enumerate(places)]
    (folder / "nodes.csv").write_text("\n".join(["node,x,y", *lines]) + "\n")
    at_a_time = 1_000_000
    for number, start in enumerate(range(0, rows, at_a_time)):
        count = min(at_a_time, rows - start)
        columns = {
            "node": (rng.integers(0, brokers, count), "b"),
            "client": (np.arange(start, start + count) // 5, "d"),
            "topic": ((topics * rng.random(count) ** 3).astype(np.int64), "t/"),
        }
        table = pa.table(
            {
                name: pc.binary_join_element_wise(prefix, pa.array(values).cast(pa.string()), "")
                for name, (values, prefix) in columns.items()
            }
        )
        with (folder / f"subscriptions-{number}.csv").open("wb") as file:
            file.write(b"node,client,topic\n")
            pa.csv.write_csv(table, file, pa.csv.WriteOptions(include_header=False, quoting_style="none"))


def _bytes(folder: Path) -> int:
    """The size of all files below a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def assign(quick: bool) -> Section:
    """Assignment by broadloom in one process and on Spark: the same plan, CPU seconds and memory."""
    section = Section("Assign subscribers (set 1, 100 brokers): one process, and Spark on this machine")
    for count in (10_000,) if quick else (100_000, 1_000_000, 3_000_000):
        with tempfile.TemporaryDirectory() as folder:
            cost([*CLI, "subscribers", "--subscribers", str(count), "-o", f"{folder}/tables", "--quiet"])
            spent = {}
            for where, words in (("process", []), ("spark", ["--master", "local[2]"])):
                command = [*CLI, "assign", f"{folder}/tables", "-o", f"{folder}/{where}", "--quiet"]
                spent[where] = cost([*command, *words])
            plans = [Path(folder, where, "assignments.parquet") for where in spent]
            assert pa.parquet.read_table(plans[0]) == pa.parquet.read_table(plans[1])
        for where, one in spent.items():
            row = {"subscribers": count, "where": where, "CPU s": one.cpu, "peak MB": one.peak / 1e6}
            section.rows.append(row | {"of one process": one.cpu / spent["process"].cpu})
    return section


def link(quick: bool) -> Section:
    """Dcmaw by site on Spark and in one process: CPU seconds per stage, memory, and the cost of Spark."""
    section = Section(
        "dcmaw in sites (inner 1, outer 10), two cores: one process, and Spark on the same machine"
    )
    for size in ((1000, 200, 100),) if quick else INSTANCES:
        process, spark = (_linked(section, size, where) for where in ("process", "spark"))
        assert (process["weight"], process["edges"]) == (spark["weight"], spark["edges"])
        more = spark["CPU s"] - process["CPU s"]
        section.rows[-1] |= {"over one process s": more, "share of Spark": more / spark["CPU s"]}
        if size[0] <= GRMAW_UP_TO:
            grmaw = _linked(section, size, "grmaw")
            ratio = process["weight"] / grmaw["weight"]
            section.claim(f"dcmaw's weight / grmaw's at {size[0]:,} nodes", ratio, at_most=1.015)
        if not quick:
            keep("pipeline", "link", section)  # the next size takes long
    return section


def _linked(section: Section, size: tuple[int, int, int], where: str) -> dict[str, float]:
    """Link in a process of its own, and add a row with its cost."""
    spent = cost([sys.executable, str(HERE / "_link_on_spark.py"), *map(str, size), where])
    result = json.loads(spent.output)
    stages = {name: result["stages"].get(name, (0, 0))[1] for name in STAGES}
    result["CPU s"] = stages["start"] + stages["all"]
    row = {"nodes": size[0], "topics": size[1], "where": where, "weight": result["weight"]} | stages
    wall = sum(result["stages"].get(name, (0, 0))[0] for name in ("start", "all"))
    each = {"CPU s": result["CPU s"], "us a node": result["CPU s"] / size[0] * 1e6}
    section.rows.append(row | each | {"wall s": wall, "peak MB": spent.peak / 1e6})
    return result


def cluster(quick: bool) -> Section:  # noqa: ARG001 (computed, not run)
    """The time on more machines of two cores, computed from the CPU seconds of `link`.

    T(M) = start + driver + shared / (2 M): the executors share the tasks that conquer parts and join groups
    of them, and the driver does the remainder (divide, hand out, the last join, the last check). The
    network is not part of this model.
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


SECTIONS = {
    "ingest": ingest,
    "inspect": inspect,
    "assign": assign,
    "demo": demo,
    "large": large,
    "billion": billion,
    "link": link,
    "cluster": cluster,
    "peers": peers,
}

if __name__ == "__main__":
    run("pipeline", SECTIONS)

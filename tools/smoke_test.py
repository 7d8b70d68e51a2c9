"""Smoke test of an installed Broadloom, run with the interpreter of an environment by `distribution.py`.

    python -I smoke_test.py VERSION [PART...]

Parts: import, link, help, readme, tables, extras, algorithms, compiled; by default all, in this order. It
uses only the standard library and the package.
"""

import hashlib
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

BROADLOOM = Path(sysconfig.get_path("scripts")) / ("broadloom.exe" if os.name == "nt" else "broadloom")
# Commands that need an extra, and its name. The part "tables" makes `people` and `linked`.
EXTRAS = {
    "ingest logs -o out": "spark",
    "run pipeline.toml": "spark",
    "assign people --master local[1] -o out": "spark",
    "reproduce 1 fig4 --quick": "papers",
    "assign people -a slp1 -o out": "lp",
    "deploy rehearse linked": "deploy",
    "migrate agent agent.toml --quiet": "deploy",
}
AGENT = """
token_file = "token"
authentication = "broker"
login = { user = "agent", password_file = "token" }
brokers.a.address = "127.0.0.1:1"
"""
MEASURES = ("total_weight", "mean_degree", "max_degree", "max_diameter", "mean_routing_cost")
# Digests of the links and measures of each algorithm on `problem`, the same on every Python.
DIGESTS = {
    "default": "3173428a975e016e",
    "broadloom": "3173428a975e016e",
    "trmaw": "500c61ab2cf9cec5",
    "gm": "dc007e6d618fd602",
    "grmaw": "c24d8d064b941e92",
    "pdmaw": "c472f8f1e68847e2",
    "pdrdmaw": "51e97dfa5599013d",
    "dcmaw": "c24d8d064b941e92",
    "minmax-oda": "8417bc4f18cf0a34",
    "low-oda": "8417bc4f18cf0a34",
    "cd-oda": "303a900bbf6b26b9",
    "cd-oda-1": "303a900bbf6b26b9",
    "cd-oda-2": "1618232a2b42209d",
    "maintain": "82847726d2980068",
}


def problem():
    """40 brokers with some of 24 topics each, and weights, made without random numbers."""
    import broadloom as bl

    nodes = range(40)
    topics = [
        [f"t{number}" for number in range(24) if (7 * node + 13 * number**2) % 11 < 4] for node in nodes
    ]
    weights = [[(u - v) ** 2 % 17 + 1.0 if u != v else 0.0 for v in nodes] for u in nodes]
    return bl.Interest.from_lists(topics), bl.Weights.dense(weights)


def digest(plan):
    """A digest of a plan's links, in order, and of its measures to nine digits."""
    found = plan.metrics()
    text = json.dumps([plan.edges.tolist(), *(f"{name} {found[name]:.9g}" for name in MEASURES)])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def check_import(version):
    """The package that is imported is the installed one, and has the version of the wheel."""
    import broadloom

    place = Path(broadloom.__file__).resolve()
    assert place.is_relative_to(Path(sysconfig.get_path("purelib")).resolve()), f"imported from {place}"
    assert (place.parent / "py.typed").exists()
    assert importlib.metadata.version("broadloom") == version
    assert broadloom_says("--version") == f"broadloom {version}\n"


def check_link(_):
    """The default algorithm gives the same links and measures as on the Python of the developers."""
    import broadloom as bl

    compare("default", bl.link(*problem()))


def check_algorithms(_):
    """Every algorithm for links gives the same links and measures as on the Python of the developers."""
    import broadloom as bl

    for row in bl.algorithms("link"):
        if row["name"] != "exact":
            compare(row["name"], bl.link(*problem(), row["name"], seed=0))
    with bl.maintain(*problem()) as live:
        live.leave(3)
        live.resubscribe(5, ["t1", "t2", "t3"])
        compare("maintain", live.plan())


def check_compiled(version):
    """Kernels that are compiled even for a small instance give the same links and measures."""
    environment = {**os.environ, "BROADLOOM_KERNELS": "compiled"}
    subprocess.run([sys.executable, "-I", __file__, version, "link"], check=True, env=environment)


def compare(name, plan):
    """Compare a plan with the recorded digest."""
    found = digest(plan)
    if DIGESTS.get(name) != found:
        raise AssertionError(f"{name}: digest {found}, not {DIGESTS.get(name)}; {plan.metrics()}")


def check_help(_):
    """Each verb and each verb of a verb shows its help."""
    verbs = verbs_of()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        inner = list(pool.map(verbs_of, verbs))
        pairs = [(verb, name) for verb, names in zip(verbs, inner, strict=True) for name in names]
        found = list(pool.map(lambda pair: verbs_of(*pair), pairs))
    assert len(verbs) >= 16, verbs
    assert len(pairs) >= 11, pairs
    assert not any(found)


def verbs_of(*words):
    """The verbs that the help of a verb lists; it must also describe the verb."""
    text = broadloom_says(*words, "--help")
    assert text.startswith(f"Usage: {' '.join(('broadloom', *words))} "), text
    assert "--help" in text
    listed = text.partition("\nCommands:\n")[2].partition("\n\n")[0]
    return re.findall(r"^  ([a-z][a-z-]*)(?= |$)", listed, re.MULTILINE)


def check_readme(_):
    """The Python example of the README, as the wheel's metadata has it, runs and saves a plan."""
    metadata = importlib.metadata.metadata("broadloom")
    text = metadata.get_payload() or metadata["Description"]
    code = text.split("```python\n")[1].split("```")[0]
    Path("example.py").write_text(code, encoding="utf-8")
    subprocess.run([sys.executable, "-I", "example.py"], check=True, stdout=subprocess.DEVNULL)
    assert Path("example", "plan.json").exists()
    broadloom_says("verify", "example")


def check_tables(_):
    """A small instance is generated, linked, verified, and shown as a page on the command line."""
    broadloom_says("generate", "--nodes", "12", "--topics", "20", "--sizes", "2", "6", "-o", "tables")
    broadloom_says("link", "tables", "-o", "linked")
    assert json.loads(broadloom_says("verify", "linked", "--json"))
    broadloom_says("report", "linked", "-o", "report.html")
    assert Path("report.html").stat().st_size > 100_000
    broadloom_says("subscribers", "--subscribers", "50", "--brokers", "4", "-o", "people")


def check_extras(_):
    """Without its extra, a command ends with code 2 and one line that names the extra."""
    Path("logs").mkdir()
    Path("pipeline.toml").write_text("")
    Path("agent.toml").write_text(AGENT)
    Path("token").write_text("0123456789abcdef" * 4)
    Path("token").chmod(0o600)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(_check_extra, EXTRAS.items()))


def _check_extra(case):
    """Run one command that needs an extra."""
    command, extra = case
    done = subprocess.run([BROADLOOM, *command.split()], capture_output=True, text=True)
    line = rf'broadloom: [\w-]+ is not installed( \(.*\))?; run: pip install "broadloom\[{extra}\]"\n'
    assert done.returncode == 2, (command, done.returncode, done.stderr)
    assert re.fullmatch(line, done.stderr), (command, done.stderr)
    assert not done.stdout, (command, done.stdout)


def broadloom_says(*words):
    """The standard output of the installed command; it must succeed."""
    done = subprocess.run([BROADLOOM, *words], capture_output=True, text=True)
    assert done.returncode == 0, (words, done.returncode, done.stderr)
    return done.stdout


PARTS = {
    "import": check_import,
    "link": check_link,
    "help": check_help,
    "readme": check_readme,
    "tables": check_tables,
    "extras": check_extras,
    "algorithms": check_algorithms,
    "compiled": check_compiled,
}

if __name__ == "__main__":
    for part in sys.argv[2:] or PARTS:
        PARTS[part](sys.argv[1])
        print(f"Python {sys.version.split()[0]}, {part}: {PARTS[part].__doc__}", flush=True)

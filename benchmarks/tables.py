"""Generator of the documentation's tables: results of benchmarks, algorithms, commands, public names.

    python benchmarks/tables.py            # write them
    python benchmarks/tables.py --check    # only check whether a page is out of date (exit code 1)

A page names a table, and the text between the two lines is replaced:

    <!-- table: link/peer | nodes, algorithm, peer / ours | popularity=unif -->
    <!-- end of table -->

The name is that of a result file and of a section in it, or of one of `LISTS`. Then follow the columns (by
default all) and a condition on the rows (by default none).
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

import broadloom as bl
from _common import RESULTS, cell, columns
from broadloom.papers import FIGURES
from broadloom.papers.figures import plain
from broadloom.papers.reproduction import FULL
from cli_reference import purposes
from licences import licences

PAGES = Path(__file__).parents[1] / "docs"
MARKED = re.compile(r"(<!-- table: (.*?) -->\n).*?(<!-- end of table -->)", re.DOTALL)

Rows = Sequence[Mapping[str, Any]]


def main() -> None:
    """Write every page that is out of date, or only name them."""
    stale = {page: new for page in sorted(PAGES.rglob("*.md")) if (new := filled(page)) != page.read_text()}
    for page, text in stale.items():
        name = page.relative_to(PAGES)
        print(f"{name} is out of date" if "--check" in sys.argv else f"{name} written")
        if "--check" not in sys.argv:
            page.write_text(text)
    sys.exit(1 if stale and "--check" in sys.argv else 0)


def filled(page: Path) -> str:
    """The text of the page with current tables."""
    return MARKED.sub(lambda found: found[1] + requested_table(found[2]) + found[3], page.read_text())


def requested_table(request: str) -> str:
    """The table that a page requests, in Markdown."""
    name, chosen, condition = [part.strip() for part in (request + "||").split("|")[:3]]
    rows = LISTS[name]() if name in LISTS else section_rows(name)
    if not rows:
        return f"\n*Not measured yet: `python benchmarks/{name.split('/')[0]}.py`.*\n\n"
    conditions = dict(part.strip().split("=") for part in condition.split(",") if part)
    rows = [row for row in rows if all(str(row.get(key)) in conditions[key].split("/") for key in conditions)]
    return markdown(rows, [column.strip() for column in chosen.split(",") if column])


def section_rows(name: str) -> Rows:
    """The rows of a section (`link/peer`) or its claims (`link/peer/claims`); empty if it was never run."""
    file, section, *rest = name.split("/")
    path = RESULTS / f"{file}.json"
    record = json.loads(path.read_text()) if path.exists() else {}
    return record.get(section, {}).get(rest[0] if rest else "rows", [])


def markdown(rows: Rows, chosen: Sequence[str] = ()) -> str:
    """Rows as a Markdown table, numbers to the right."""
    names = list(chosen) or columns(rows)
    header = [name.replace("_", " ") for name in names]
    lines = [header, [_ruler(row_value) for row_value in map(rows[0].get, names)] if rows else []]
    lines += [[cell(row.get(name)).replace("|", "\\|") for name in names] for row in rows]
    return "\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n\n"


def _ruler(value: Any) -> str:
    return "---:" if isinstance(value, int | float) and not isinstance(value, bool) else "---"


def algorithms(stage: str, problem: str | None = None) -> Rows:
    """The algorithms of a stage, from the list in the code."""
    return [
        {
            "name": f"`{row['name']}`",
            "paper": row["paper"],
            "minimises": row["objective"],
            "rule": row["summary"],
            "options": ", ".join(f"`{name}={default!r}`" for name, default in row["options"].items()),
        }
        for row in bl.algorithms(stage)
        if problem in (None, row["problem"])
    ]


def documented_names(*, top: bool) -> Rows:
    """Names on the pages of the API, and the first lines of their docstrings: `bl.NAME`, or all others."""
    rows = []
    for page in sorted((PAGES / "api").glob("*.md")):
        for name in re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE):
            if (name.count(".") == 1) == top:
                found = resolve_name(name)
                line = (inspect.getdoc(found) or "").split("\n")[0]
                link = f"[`{name.removeprefix('broadloom.')}`](api/{page.name}#{name})"
                rows.append({"name": link, "what it is": line})
    return sorted(rows, key=lambda row: row["name"].lower())


def misses(name: str) -> Rows:
    """The claims of a benchmark that do not hold; one row that says so if all hold."""
    record = json.loads((RESULTS / f"{name}.json").read_text())
    claims = [claim for section in record.values() for claim in section["claims"]]
    missed = [{k: claim[k] for k in ("claim", "asked", "measured")} for claim in claims if not claim["holds"]]
    return missed or [{"claim": f"nothing: all of {len(claims)} claims hold"}]


def paper_claims() -> Rows:
    """The claims of the papers as the docs list them; `noted` tells which have a set-up or a reason."""
    shown = {figure.key: figure.shown for figure in FIGURES}
    rows = []
    for claim in section_rows("papers/claims"):
        size = "" if claim["size"] == FULL else ", reduced"
        row = {
            "paper": claim["paper"],
            "figure": f"{shown.get(claim['figure'], claim['figure'])}{size}",
            "verdict": claim["verdict"] + ("" if claim.get("counted", True) else " (another set-up)"),
            "factor": plain(claim["factor"]) if claim["factor"] else "",
            "set-up": claim["setup"],
            "noted": "yes" if claim["setup"] or claim["reason"] else "no",
        }
        row |= {name: claim[name] for name in ("where", "claim", "kind", "theirs", "ours", "reason")}
        rows.append({name: _escaped(value) for name, value in row.items()})
    return rows


def _escaped(value: Any) -> Any:
    """A text in which Markdown reads stars as stars, as in Gr*."""
    return value.replace("*", "\\*") if isinstance(value, str) else value


LISTS: dict[str, Callable[[], Rows]] = {
    "link algorithms": partial(algorithms, "link"),
    "assign algorithms": partial(algorithms, "assign", "AssignmentProblem"),
    "market algorithms": partial(algorithms, "assign", "MarketProblem"),
    "licences": licences,
    "commands": purposes,
    "public names": partial(documented_names, top=True),
    "other names": partial(documented_names, top=False),
    "link misses": partial(misses, "link"),
    "pipeline misses": partial(misses, "pipeline"),
    "paper claims": paper_claims,
}

if __name__ == "__main__":
    main()

"""The evidence page: one section per paper, each figure with its claims beside it, verdicts first."""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from broadloom.papers.case_files import put
from broadloom.papers.cited_papers import PAPERS
from broadloom.papers.figures import KINDS, RULES, VERDICTS, Figure, plain
from broadloom.papers.paper1_weighted_overlays import latency_sources

GROUP_ID = re.compile(r'(?<=<g) id="\w+"')  # the same in all drawings; other ids are unique
STYLE = """
:root { color-scheme: light dark; --line: #8886; --quiet: #777; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 76rem; margin: 1.5rem auto; padding: 0 1rem; }
nav a { margin-right: 1rem; }
table { border-collapse: collapse; font-size: 0.9rem; }
td, th { border-bottom: 1px solid var(--line); padding: 0.2rem 0.7rem 0.2rem 0; text-align: left;
  vertical-align: top; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
.scroll { overflow-x: auto; }
.figure { display: grid; grid-template-columns: minmax(0, 1fr); gap: 1rem; margin: 1rem 0 2.5rem; }
.figure > svg { background: #fff; width: 100%; max-width: 34rem; height: auto; }
.claims { list-style: none; margin: 0; padding: 0; font-size: 0.93rem; }
.claims li { border-top: 1px solid var(--line); padding: 0.5rem 0; overflow-wrap: anywhere; }
.claims small { color: var(--quiet); display: block; }
.verdict { font-weight: 600; margin-right: 0.4rem; }
.verdict::before { content: "\\25CF\\00A0"; }
.reproduced { color: #1a7f37; } .surpassed { color: #0969da; } .contradicted { color: #cf222e; }
.impossible, .not { color: #9a6700; }
@media (min-width: 900px) { .figure { grid-template-columns: minmax(0, 4fr) minmax(0, 5fr); } }
@media (prefers-color-scheme: dark) {
  .reproduced { color: #3fb950; } .surpassed { color: #58a6ff; } .contradicted { color: #ff7b72; }
  .impossible, .not { color: #d29922; } :root { --quiet: #aaa; }
}
"""


def write_page(reduced: Mapping[Figure, bool], claims: Sequence[Mapping[str, Any]], folder: Path) -> Path:
    """Write the page; `reduced` tells which figures have a reduced size."""
    papers = sorted({figure.paper for figure in reduced})
    parts = [
        "<!doctype html><html lang='en'><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width, initial-scale=1'>",
        f"<title>Broadloom: the papers</title><style>{STYLE}</style>",
        "<h1>Claims of the papers, and what our runs say</h1>",
        "<nav>" + "".join(f"<a href='#paper{n}'>Paper {n}</a>" for n in papers) + "</nav>",
        _rules(),
        f"<p>Link weights of paper 1: {html.escape(', '.join(latency_sources()))}. Times are CPU seconds "
        "of one thread on the machine of the run, without the compilation of kernels.</p>",
    ]
    for paper in papers:
        of_paper = [claim for claim in claims if claim["paper"] == paper]
        cited = PAPERS[paper]
        parts.append(f"<h2 id='paper{paper}'>Paper {paper}: {html.escape(cited.short)}</h2>")
        parts.append(f"<p>{html.escape(cited.text)}</p><p>What differs: {html.escape(cited.differs)}</p>")
        parts.append(_scores(of_paper))
        for figure, small in reduced.items():
            if figure.paper == paper:
                own = [claim for claim in of_paper if claim["figure"] == figure.key]
                parts.append(_section(figure, small, own, folder))
    page = folder / "index.html"
    put(("\n".join(parts) + "\n").encode(), page)
    return page


def scores(claims: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row per paper, size of the runs, and kind of claim: how many have each verdict.

    Other set-ups of a claim are not counted.

    Examples:
        >>> claim = {"paper": 2, "size": "reduced", "kind": "trend", "verdict": "reproduced", "counted": True}
        >>> (row,) = scores([claim, claim | {"counted": False}])
        >>> row["claims"], row["reproduced"], row["contradicted"]
        (1, 1, 0)
    """
    names = ("paper", "size", "kind")
    counted = Counter(
        (*(claim[name] for name in names), claim["verdict"]) for claim in claims if claim["counted"]
    )
    groups = {group[:3] for group in counted}
    in_order = sorted(groups, key=lambda group: (group[0], group[1] == "reduced", KINDS.index(group[2])))
    return [
        dict(zip(names, group, strict=True))
        | {"claims": sum(counted[(*group, verdict)] for verdict in VERDICTS)}
        | {verdict: counted[(*group, verdict)] for verdict in VERDICTS}
        for group in in_order
    ]


def _rules() -> str:
    """The meaning of verdicts and the rule of each kind, folded."""
    verdicts = "".join(
        f"<tr><td>{_badge(name)}</td><td>{html.escape(text)}</td></tr>" for name, text in VERDICTS.items()
    )
    rules = "".join(f"<tr><td>{kind}</td><td>{html.escape(RULES[kind])}</td></tr>" for kind in KINDS)
    return (
        "<details><summary>Verdicts, and the rule of each kind of claim</summary>"
        f"<table>{verdicts}</table><table>{rules}</table></details>"
    )


def _scores(claims: Sequence[Mapping[str, Any]]) -> str:
    rows = scores(claims)
    used = [verdict for verdict in VERDICTS if any(row[verdict] for row in rows)]
    head = "".join(f"<th>{name}</th>" for name in ("size", "kind", *used))
    body = "".join(
        f"<tr><td>{row['size']}</td><td>{row['kind']}</td>"
        + "".join(f"<td class='number'>{row[v] or ''}</td>" for v in used)
        + "</tr>"
        for row in rows
    )
    return f"<div class='scroll'><table><tr>{head}</tr>{body}</table></div>"


def _section(figure: Figure, small: bool, claims: Sequence[Mapping[str, Any]], folder: Path) -> str:
    """A figure and its claims."""
    items = "".join(map(_item, claims)) or "<li>No claim of its own: it tests reasons of other claims.</li>"
    size = "Reduced size." if small else "Size of the paper."
    return (
        f"<h3 id='{figure.key}'>{figure.shown}: {html.escape(figure.title)}</h3><p>{size}</p>"
        f"<div class='figure'>{_picture(figure, folder)}<ul class='claims'>{items}</ul></div>"
    )


def _item(claim: Mapping[str, Any]) -> str:
    ours = html.escape(claim["ours"]) or "-"
    factor = f" {plain(claim['factor'])} times" if claim["factor"] else ""
    counted = "" if claim["counted"] else "; another set-up of a claim, not counted"
    notes = [f"{claim['where']}, {claim['kind']}{counted}"]
    notes += [f"set-up: {claim['setup']}"] if claim["setup"] else []
    notes += [f"reason: {claim['reason']}"] if claim["reason"] else []
    small = "".join(f"<small>{_linked(html.escape(note))}</small>" for note in notes)
    return (
        f"<li>{_badge(claim['verdict'], factor)}{html.escape(claim['claim'])}<br>"
        f"theirs: {html.escape(claim['theirs'])}; ours: {ours}{small}</li>"
    )


def _linked(text: str) -> str:
    """A text with links from the names of experiments to their sections."""
    return re.sub(r"experiment `(paper\d-[a-z]+)`", r"experiment <a href='#\1'>\1</a>", text)


def _badge(verdict: str, factor: str = "") -> str:
    return f"<span class='verdict {verdict.split()[0]}'>{verdict}{factor}</span>"


def _picture(figure: Figure, folder: Path) -> str:
    """The drawing as a part of the page."""
    drawing = " ".join((folder / f"{figure.key}.svg").read_text().split())
    drawing = GROUP_ID.sub("", drawing[drawing.index("<svg") :])
    label = html.escape(figure.title, quote=True)
    return drawing.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)

"""HTML page of a report: the record and the script that shows it in one file, which works offline."""

from __future__ import annotations

import base64
import hashlib
import json
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from broadloom.storage import write_file

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="generator" content="Broadloom {version}">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<header id="top">
<h1>{title}</h1>
<div id="summary">{summary}</div>
</header>
<main id="report"><noscript>The map and the charts need JavaScript, which is off here.</noscript></main>
<script type="application/json" id="record">{record}</script>
{console}<script>{script}</script>
</body>
</html>
"""
_CONSOLE = '<script type="application/json" id="console">{console}</script>\n'


def html_of(record: dict[str, Any], console: dict[str, Any] | None = None) -> str:
    """The page that shows a record.

    Args:
        record: the record.
        console: for the page of a console: its token and its state; it can then call its own server.

    The page's content security policy forbids all requests and all scripts except its own, which is
    identified by its hash; its layouts run in a worker whose script is a part of it.

    Examples:
        >>> from broadloom.report import record_of
        >>> page = html_of(record_of({}, title="A <b>bold</b> title"))
        >>> "<h1>A &lt;b&gt;bold&lt;/b&gt; title</h1>" in page
        True
    """
    assets = files("broadloom.report") / "assets"
    script = (assets / "report.js").read_text("utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    connect = "" if console is None else "connect-src 'self'; "
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
        f"{connect}img-src data: blob:; worker-src blob:; base-uri 'none'; form-action 'none'"
    )
    return _PAGE.format(
        policy=policy,
        version=escape(record["broadloom"]),
        title=escape(record["title"]),
        style=(assets / "report.css").read_text("utf-8"),
        summary="".join(f"<p>{escape(line)}</p>" for line in _summaries(record["plans"])),
        record=as_script(record),
        console="" if console is None else _CONSOLE.format(console=as_script(console)),
        script=script,
    )


def _summaries(plans: list[dict[str, Any]]) -> list[str]:
    """One sentence per plan, with its name if there are several."""
    if len(plans) == 1:
        return [plans[0]["summary"]]
    return [f"{plan['name']}: {plan['summary']}" for plan in plans]


def as_script(record: Any) -> str:
    r"""A record as JSON inside a script element: `<` and line separators are escaped, so no text can end it.

    Examples:
        >>> as_script({"topic": "</script>"})
        '{"topic":"\\u003c/script>"}'
    """
    text = json.dumps(record, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c")


def write_page(page: str, path: Path) -> None:
    """Write a page by one rename; if `path` is a symbolic link, its target is replaced.

    Raises:
        InputError: `path` exists and is not a file, or one of its parents is not a folder.
        StorageError: the file cannot be written.
    """
    write_file(path, page.encode())

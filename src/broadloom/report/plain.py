"""A plain page: headings, sentences and tables, in one file without anything from elsewhere."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0; }
td, th { padding: .2rem .8rem .2rem 0; text-align: left; border-bottom: 1px solid #8884; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
"""


@dataclass(frozen=True)
class Section:
    """A part of a page: a heading, a sentence, and a table if there is one."""

    heading: str
    words: str
    header: Sequence[str] = ()
    rows: Iterable[Sequence[Any]] = ()


def page(title: str, sections: Iterable[Section]) -> str:
    """A whole HTML page.

    Examples:
        >>> "<h2>Links</h2>" in page("A plan", [Section("Links", "There are 3.", ["u", "v"], [["a", "b"]])])
        True
    """
    body = "".join(_section(section) for section in sections)
    return (
        '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n<h1>{escape(title)}</h1>\n{body}</html>\n"
    )


def named(values: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Names and values as the rows of a table, with spaces in the names.

    Examples:
        >>> named({"max_degree": 3})
        [('max degree', 3)]
    """
    return [(name.replace("_", " "), value) for name, value in values.items()]


def _section(section: Section) -> str:
    parts = [f"<h2>{escape(section.heading)}</h2>\n<p>{escape(section.words)}</p>\n"]
    rows = [f"<tr>{''.join(map(_cell, row))}</tr>\n" for row in section.rows]
    if rows:
        head = "".join(f"<th>{escape(name)}</th>" for name in section.header)
        parts.append(f"<table>\n<tr>{head}</tr>\n{''.join(rows)}</table>\n")
    return "".join(parts)


def _cell(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return f"<td>{escape(str(value))}</td>"
    shown = f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"
    return f'<td class="number">{shown}</td>'

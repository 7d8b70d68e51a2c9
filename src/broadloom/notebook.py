"""HTML summaries of values, which notebooks show instead of their `repr`."""

from collections.abc import Mapping, Sequence
from html import escape

# The number of rows of a preview, and the length at which a text in it is cut.
PREVIEW_ROWS = 5
LONGEST_TEXT = 60


def html_summary(
    title: str,
    facts: Mapping[str, object],
    header: Sequence[str] = (),
    rows: Sequence[Sequence[object]] = (),
    total: int = 0,
) -> str:
    """A title, a table of facts, and the first rows of a table; all texts are escaped.

    Args:
        title: the title.
        facts: the value of each fact; a fact that is None is left out.
        header: the columns of a preview, if there is one.
        rows: its rows.
        total: the number of rows of which these are the first.

    Examples:
        >>> html_summary("Overlay", {"nodes": 1200, "named": "<b>"}).count("&lt;b&gt;")
        1
    """
    shown = [
        f"<tr><th>{_cell(name)}</th><td>{_cell(value)}</td></tr>"
        for name, value in facts.items()
        if value is not None
    ]
    parts = [f"<div><strong>{_escaped(title)}</strong>", f"<table>{''.join(shown)}</table>"]
    if rows:
        head = "".join(f"<th>{_cell(name)}</th>" for name in header)
        body = ["".join(f"<td>{_cell(value)}</td>" for value in row) for row in rows]
        lines = "".join(f"<tr>{cells}</tr>" for cells in body)
        parts.append(f"<table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>")
    if total > len(rows):
        parts.append(f"<p>... and {total - len(rows):,} more</p>")
    return "".join((*parts, "</div>"))


def _cell(value: object) -> str:
    """A value as escaped text: numbers with separators or four digits, long texts cut."""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.4g}"
    text = str(value)
    return _escaped(text if len(text) <= LONGEST_TEXT else f"{text[: LONGEST_TEXT - 3]}...")


def _escaped(text: str) -> str:
    """The text for HTML; characters that cannot be encoded are replaced."""
    return escape(text.encode("utf-8", "replace").decode("utf-8"))

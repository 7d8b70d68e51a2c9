"""Parser of VerneMQ sessions: `vmq-admin session show --client_id --topic --node`, as a table or as JSON.

The command shows 100 rows unless it is called with `--limit`.
"""

import re
from collections.abc import Iterator

from broadloom.formats.dump_rows import DumpFormat, DumpRow, DumpText, entries, raw, string
from broadloom.model import Reason

_COLUMNS = ("node", "client_id", "topic")
_RULE = re.compile(r"\+[-+]*\+")


def parse(text: DumpText) -> Iterator[DumpRow]:
    r"""One row per subscription; the broker is the `node`, if that column was shown.

    Examples:
        >>> table = "+---+\n|client_id|topic|\n+---+\n|c1       |t/1  |\n+---+\n"
        >>> next(parse(DumpText.of(table)))[2:4]
        ('c1', 't/1')
    """
    if _is_json(text):
        for entry in entries(text, "table"):
            if isinstance(entry, DumpRow):
                yield entry
            else:
                yield DumpRow(raw(entry), *(string(entry, name) for name in _COLUMNS))
        return
    header: list[str] = []
    for line in text.lines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.strip() or _RULE.fullmatch(line.strip()):
            continue
        if "client_id" in cells and "topic" in cells:
            header = cells
        else:
            yield _row(line, header, cells)


def _is_json(text: DumpText) -> bool:
    first = next((piece.lstrip() for piece in text.pieces() if piece.strip()), "")
    return first[:1] in ("{", "[")


def _row(line: str, header: list[str], cells: list[str]) -> DumpRow:
    if not header or not line.startswith("|") or not line.rstrip().endswith("|") or len(cells) != len(header):
        return DumpRow(line, reason=Reason.FIELDS)
    shown = dict(zip(header, cells, strict=True))
    return DumpRow(line, *(shown.get(name) or None for name in _COLUMNS))


FORMAT = DumpFormat(
    "vernemq",
    "VerneMQ's vmq-admin session show --client_id --topic --node (table or JSON)",
    parse,
    lambda head: "client_id" in head and (head.lstrip()[:2] == "+-" or '"table"' in head),
)

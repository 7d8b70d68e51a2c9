"""HTTP API calls of targets: JSON lists with one call per line, and the calls that undo others."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

Call = dict[str, Any]
CallsAt = dict[str, list[Call]]  # by broker


def as_text(calls: Iterable[Call]) -> str:
    """Calls as JSON, one per line.

    Examples:
        >>> print(as_text([{"method": "DELETE", "path": "/x"}]))
        [
        {"method": "DELETE", "path": "/x"}
        ]
        <BLANKLINE>
    """
    lines = [json.dumps(call, sort_keys=True) for call in calls]
    return "[\n" + ",\n".join(lines) + ("\n]\n" if lines else "]\n")
